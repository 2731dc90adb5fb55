/*
 * matmul.cl - products of many rows with a weight matrix (prefill).
 *
 * Built once per weight type (-D WEIGHT_F16=0|1). One work item computes ROWS x 32 results and keeps them in registers;
 * its sum runs over k = 0, 1, 2, ... whatever the row, so a result does not depend on where its row lies.
 * Rows come packed:    a [tiles][stride][ROWS], ROWS consecutive rows side by side
 * Weights come packed: w [panels][k][16], 16 consecutive outputs side by side, an even number of panels
 * Index 0 of the range is the row tile (it runs fastest: the two panels stay in cache), index 1 the pair of panels.
 */
#if WEIGHT_F16
typedef half weight;
#define LOAD_WEIGHTS(p, i) vload_half16((i), (p))
#else
typedef float weight;
#define LOAD_WEIGHTS(p, i) vload16((i), (p))
#endif

static void tile_product(__global const float *a, __global const weight *w, uint k, float16 *acc0,
                         float16 *acc1)
{
    __global const weight *w0 = w, *w1 = w + (size_t)16 * k;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        acc0[r] = acc1[r] = (float16)(0.0f);
    for (uint i = 0; i < k; i++) {
        float16 v0 = LOAD_WEIGHTS(w0, i), v1 = LOAD_WEIGHTS(w1, i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float16 x = (float16)(a[(size_t)i * ROWS + r]);
            acc0[r] = fma(x, v0, acc0[r]);
            acc1[r] = fma(x, v1, acc1[r]);
        }
    }
}

/* out [n_rows][out_stride] = a . w */
__kernel void gemm_store(__global const float *a, uint a_stride, __global const weight *w, uint k,
                         uint n_rows, __global float *out, uint out_stride)
{
    size_t tile = get_global_id(0), pair = get_global_id(1);
    float16 acc0[ROWS], acc1[ROWS];
    tile_product(a + tile * a_stride * ROWS, w + pair * 32 * k, k, acc0, acc1);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        size_t row = tile * ROWS + r;
        if (row < n_rows) {
            vstore16(acc0[r], 0, out + row * out_stride + pair * 32);
            vstore16(acc1[r], 1, out + row * out_stride + pair * 32);
        }
    }
}

/* hidden [first_row + n_rows][out_stride] += a . w (the residual connection) */
__kernel void gemm_add(__global const float *a, uint a_stride, __global const weight *w, uint k,
                       uint n_rows, __global float *hidden, uint out_stride, uint first_row)
{
    size_t tile = get_global_id(0), pair = get_global_id(1);
    float16 acc0[ROWS], acc1[ROWS];
    tile_product(a + tile * a_stride * ROWS, w + pair * 32 * k, k, acc0, acc1);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        size_t row = tile * ROWS + r;
        if (row < n_rows) {
            __global float *to = hidden + (first_row + row) * out_stride + pair * 32;
            vstore16(vload16(0, to) + acc0[r], 0, to);
            vstore16(vload16(1, to) + acc1[r], 1, to);
        }
    }
}

/* The FFN's first product, activated (activation.cl), packed for the next product: out [tiles][out_stride][ROWS]. A pair of panels
 * is gate and up, or two of up. bias: NULL, or what is added first, [16 * panels]; without a gate only. */
__kernel void gemm_activate(__global const float *a, uint a_stride, __global const weight *w, uint k,
                            __global const float *bias, __global float *out, uint out_stride)
{
    size_t tile = get_global_id(0), pair = get_global_id(1);
    float16 gate[ROWS], up[ROWS];
    tile_product(a + tile * a_stride * ROWS, w + pair * 32 * k, k, gate, up);
#if GATED
    float block[ROWS][16];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        vstore16(activate(gate[r], up[r]), 0, block[r]);
    __global float *to = out + (tile * out_stride + pair * 16) * ROWS;
    for (int c = 0; c < 16; c++)
        for (int r = 0; r < ROWS; r++)
            to[c * ROWS + r] = block[r][c];
#else
    float16 bias0 = bias ? vload16(2 * pair, bias) : (float16)(0.0f), bias1 = bias ? vload16(2 * pair + 1, bias) : (float16)(0.0f);
    float block[ROWS][32];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        vstore16(activate(gate[r], gate[r] + bias0), 0, block[r]);
        vstore16(activate(up[r], up[r] + bias1), 1, block[r]);
    }
    __global float *to = out + (tile * out_stride + pair * 32) * ROWS;
    for (int c = 0; c < 32; c++)
        for (int r = 0; r < ROWS; r++)
            to[c * ROWS + r] = block[r][c];
#endif
}
