/*
 * model/rope.c - how fast each pair of a head turns: plain, linear scaling, a tensor of factors
 * (llama3, LongRoPE), YaRN. See hparams.h.
 */
#include <math.h>
#include <stdlib.h>

#include "model/hparams.h"

#define PI 3.14159265358979323846

uint32_t model_rope_tables(const struct model_hparams *hp)
{
    return hp->arch->rotary == ARCH_ROTARY_NONE ? 0 : hp->window ? 2 : 1;
}

uint32_t model_layer_rope_table(const struct model_hparams *hp, uint32_t layer)
{
    return model_layer_window(hp, layer) ? 1 : 0;
}

uint32_t model_rope_choice(const struct model_hparams *hp, uint32_t ctx_tokens)
{
    if (!hp->arch->has_rope_factors)
        return 0;
    return ctx_tokens > hp->rope_original_tokens ? 2 : 1;
}

/* The pair that turns `rotations` times within the original context (arXiv:2309.00071, section
 * 3.2), as a real number. */
static double yarn_pair(const struct model_hparams *hp, double rotations)
{
    return hp->rope_dims * log(hp->rope_original_tokens / (rotations * 2 * PI)) /
           (2 * log(hp->rope_base));
}

/* The share of the unscaled frequency in pair i: 1 for fast pairs, 0 for slow ones, a ramp between.
 * Bounds are rounded outwards, as in the authors' code. */
static double yarn_unscaled(const struct model_hparams *hp, uint32_t i)
{
    double low = fmax(floor(yarn_pair(hp, hp->yarn_beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(hp, hp->yarn_beta_slow)), hp->rope_dims - 1);
    double ramp = (i - low) / fmax(0.001, high - low);
    return 1 - fmin(fmax(ramp, 0), 1);
}

static const struct gguf_tensor *factors_of(const struct model_hparams *hp,
                                            const struct gguf_file *file, uint32_t ctx_tokens)
{
    uint32_t choice = model_rope_choice(hp, ctx_tokens);
    return gguf_tensor(file, choice == 0   ? "rope_freqs.weight"
                             : choice == 1 ? "rope_factors_short.weight"
                                           : "rope_factors_long.weight");
}

/* In double: at position 10^5 a float angle would be off by 0.01 radians. */
int model_rope_frequencies(const struct model_hparams *hp, const struct gguf_file *file,
                           uint32_t table, uint32_t ctx_tokens, double *out, struct hill_why *why)
{
    uint32_t pairs = hp->rope_dims / 2;
    bool windowed = table == 1; /* not scaled */
    const struct gguf_tensor *factors = windowed ? NULL : factors_of(hp, file, ctx_tokens);
    float *factor = calloc(pairs + 1, sizeof *factor);
    int rc = factor ? 0 : hill_fail(why, HILL_E_NOMEM, "no memory for rotary tables");
    if (!rc && factors && factors->dims[0] != pairs)
        rc = hill_fail(why, HILL_E_DAMAGED, "%s: rotary factors are not %u values", gguf_path(file),
                       pairs);
    if (!rc && factors)
        rc = gguf_tensor_rows_f32(factors, 0, 1, factor);
    for (uint32_t i = 0; !rc && i < pairs; i++) {
        double plain =
            pow(windowed ? hp->rope_base_window : hp->rope_base, -2.0 * i / hp->rope_dims);
        double share = hp->rope_yarn ? yarn_unscaled(hp, i) : 0;
        double f = windowed ? plain : plain / hp->rope_scale;
        if (hp->rope_yarn && !windowed)
            f = f * (1 - share) + plain * share;
        out[i] = factors ? f / factor[i] : f;
    }
    free(factor);
    return rc;
}
