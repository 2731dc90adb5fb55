/*
 * activation.cl - what an FFN does between its products, and LayerNorm's share of a product; in front of every kernel's source.
 *
 * ACTIVATION is model/arch.h's enum arch_activation. With a gate, panels of the first product alternate gate, up, and a pair
 * gives 16 values; without one each panel gives 16.
 */
#define SILU_GATED 0
#define GELU_GATED 1
#define RELU       2
#define GATED      (ACTIVATION != RELU)

static float16 activate(float16 gate, float16 up)
{
#if ACTIVATION == GELU_GATED
    /* x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3) */
    float16 u = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exp(-2.0f * u)) * up;
#elif ACTIVATION == SILU_GATED
    return gate / (1.0f + exp(-gate)) * up;
#else
    return fmax(up, (float16)(0.0f));
#endif
}
