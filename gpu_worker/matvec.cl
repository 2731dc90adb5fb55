/*
 * matvec.cl - products of one row with a weight matrix (decode), with the norm before and the rotary embedding or
 * SwiGLU after it in the same launch.
 *
 * Built once per weight type (-D WEIGHT_F16=0|1), in one program after matmul.cl, which
 * defines `weight` and LOAD_WEIGHTS and says how weights are packed. One work item computes one
 * panel of 16 outputs (two of them for SwiGLU). The norm's factor is linear, so each item computes it again
 * (k / 16 operations beside its 16 k) and applies it to its results. Sums run in four interleaved chains of fixed order.
 * x and its norm weights are padded with zeros to whole vectors.
 */
static float add_lanes(float16 v)
{
    float8 a = v.lo + v.hi;
    float4 b = a.lo + a.hi;
    return (b.x + b.z) + (b.y + b.w);
}

/* 1 / sqrt(mean(x^2) + eps) */
static float norm_factor(__global const float *x, uint k, float eps)
{
    float16 sum = (float16)(0.0f);
    for (uint i = 0; i < (k + 15) / 16; i++) {
        float16 v = vload16(i, x);
        sum = fma(v, v, sum);
    }
    return 1.0f / sqrt(add_lanes(sum) / (float)k + eps);
}

static float16 panel_product(__global const float *x, __global const weight *w, uint k)
{
    float16 a = (float16)(0.0f), b = a, c = a, d = a;
    uint i = 0;
    for (; i + 4 <= k; i += 4) {
        a = fma((float16)(x[i]), LOAD_WEIGHTS(w, i), a);
        b = fma((float16)(x[i + 1]), LOAD_WEIGHTS(w, i + 1), b);
        c = fma((float16)(x[i + 2]), LOAD_WEIGHTS(w, i + 2), c);
        d = fma((float16)(x[i + 3]), LOAD_WEIGHTS(w, i + 3), d);
    }
    for (; i < k; i++)
        a = fma((float16)(x[i]), LOAD_WEIGHTS(w, i), a);
    return (a + b) + (c + d);
}

/* As above, of x * g. */
static float16 panel_product_scaled(__global const float *x, __global const float *g,
                                    __global const weight *w, uint k)
{
    float16 a = (float16)(0.0f), b = a, c = a, d = a;
    uint i = 0;
    for (; i + 4 <= k; i += 4) {
        a = fma((float16)(x[i] * g[i]), LOAD_WEIGHTS(w, i), a);
        b = fma((float16)(x[i + 1] * g[i + 1]), LOAD_WEIGHTS(w, i + 1), b);
        c = fma((float16)(x[i + 2] * g[i + 2]), LOAD_WEIGHTS(w, i + 2), c);
        d = fma((float16)(x[i + 3] * g[i + 3]), LOAD_WEIGHTS(w, i + 3), d);
    }
    for (; i < k; i++)
        a = fma((float16)(x[i] * g[i]), LOAD_WEIGHTS(w, i), a);
    return (a + b) + (c + d);
}

/* out [panels * 16] = norm(x) . w: the logits */
__kernel void matvec_norm(__global const float *x, __global const float *g, float eps,
                          __global const weight *w, uint k, __global float *out)
{
    size_t panel = get_global_id(0);
    float16 y = panel_product_scaled(x, g, w + panel * 16 * k, k) * norm_factor(x, k, eps);
    vstore16(y, panel, out);
}

/* hidden [panels * 16] += a . w */
__kernel void matvec_add(__global const float *a, __global const weight *w, uint k,
                         __global float *hidden)
{
    size_t panel = get_global_id(0);
    float16 y = panel_product(a, w + panel * 16 * k, k);
    vstore16(vload16(panel, hidden) + y, panel, hidden);
}

/* out [pairs * 16] = silu(gate) * up of norm(x) */
__kernel void matvec_swiglu(__global const float *x, __global const float *g, float eps,
                            __global const weight *w, uint k, __global float *out)
{
    size_t pair = get_global_id(0);
    float factor = norm_factor(x, k, eps);
    float16 gate = panel_product_scaled(x, g, w + pair * 32 * k, k) * factor;
    float16 up = panel_product_scaled(x, g, w + (pair * 32 + 16) * k, k) * factor;
    vstore16(gate / (1.0f + exp(-gate)) * up, pair, out);
}

/*
 * The projections of one token: q [N_HEADS][HEAD_DIM] in F32, K and V in FP16 as the entry [2][N_KV_HEADS][HEAD_DIM] of a slot.
 * Rotation pairs (2i, 2i + 1) of a head never straddle two panels: head sizes are even.
 * turn [ROPE_DIMS / 2][2]: cosine and sine at this token's position.
 */
__kernel void matvec_qkv(__global const float *x, __global const float *g, float eps,
                         __global const weight *w, uint k, __global const float *turn,
                         __global float *q, __global half *entries, uint slot)
{
    size_t panel = get_global_id(0);
    __global half *entry = entries + (size_t)slot * 2 * N_KV_HEADS * HEAD_DIM;
    float16 y = panel_product_scaled(x, g, w + panel * 16 * k, k) * norm_factor(x, k, eps);
    float lanes[16];
    vstore16(y, 0, lanes);
    for (uint lane = 0; lane < 16; lane += 2) {
        uint row = panel * 16 + lane;
        if (row >= QKV_DIMS)
            break;
        uint dim = row % HEAD_DIM;
        float a = lanes[lane], b = lanes[lane + 1];
        if (row < (N_HEADS + N_KV_HEADS) * HEAD_DIM && dim < ROPE_DIMS) {
            float c = turn[dim], s = turn[dim + 1], t = a;
            a = a * c - b * s;
            b = t * s + b * c;
        }
        if (row < N_HEADS * HEAD_DIM) {
            q[row] = a;
            q[row + 1] = b;
        } else {
            vstore_half(clamp(a, -65504.0f, 65504.0f), row - N_HEADS * HEAD_DIM, entry);
            vstore_half(clamp(b, -65504.0f, 65504.0f), row + 1 - N_HEADS * HEAD_DIM, entry);
        }
    }
}
