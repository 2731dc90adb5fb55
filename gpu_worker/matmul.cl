/*
 * matmul.cl - products of many rows with a weight matrix (prefill). Follows product.cl, which has
 * the tensor types.
 *
 * One work item computes ROWS x 32 results: two panels. Of F32, F16 and BF16 weights it keeps as
 * many of them in registers as shared.cl says, and its sum runs over k = 0, 1, 2, ...; of
 * quantised weights it takes one panel after the other, block after block. So a result does not
 * depend on where its row lies, nor on the rows beside it.
 * Rows come packed: a [tiles][stride][ROWS], ROWS consecutive rows side by side; for quantised
 * weights also as quantise_rows gives them. Weights come packed as pack.h says, an even number of
 * panels. Index 0 of the range is the row tile (it runs fastest: the two panels stay in cache),
 * index 1 the pair of panels. Kernels take what index 0 begins at as an argument: a range with an
 * offset would be another build of the kernel.
 */
#define QUANT_TILE(k)                                                                              \
    ((size_t)ROWS *                                                                                \
     ((k) / 4 +                                                                                    \
      (k) / 32 * FIELDS)) /* words of a tile: [k / 4][ROWS], then [k / 32][FIELDS][ROWS] */

/* SUM_ROWS rows times SUM_PANELS panels at a time. PARTS: 1, or 4, both halves of the rows for each
 * panel. */
#define PARTS (2 * ROWS / (SUM_ROWS * SUM_PANELS))
#define DEFINE_PAIR(NAME, TYPE, LOAD)                                                              \
    static void part_##NAME(__global const float *a, __global const TYPE *w0,                      \
                            __global const TYPE *w1, uint k, float16 *acc0, float16 *acc1)         \
    {                                                                                              \
        float16 sums[SUM_PANELS][SUM_ROWS];                                                        \
        _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                       \
        {                                                                                          \
            sums[0][r] = sums[SUM_PANELS - 1][r] = (float16)(0.0f);                                \
        }                                                                                          \
        for (uint i = 0; i < k; i++) {                                                             \
            float16 v0 = LOAD(i, w0), v1 = SUM_PANELS == 2 ? LOAD(i, w1) : v0;                     \
            _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                   \
            {                                                                                      \
                float16 x = (float16)(a[(size_t)i * ROWS + r]);                                    \
                sums[0][r] = fma(x, v0, sums[0][r]);                                               \
                if (SUM_PANELS == 2)                                                               \
                    sums[SUM_PANELS - 1][r] = fma(x, v1, sums[SUM_PANELS - 1][r]);                 \
            }                                                                                      \
        }                                                                                          \
        _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                       \
        {                                                                                          \
            acc0[r] = sums[0][r];                                                                  \
            if (SUM_PANELS == 2)                                                                   \
                acc1[r] = sums[SUM_PANELS - 1][r];                                                 \
        }                                                                                          \
    }                                                                                              \
    static void pair_##NAME(__global const float *a, __global const uchar *panel0,                 \
                            __global const uchar *panel1, uint k, float16 *acc0, float16 *acc1)    \
    {                                                                                              \
        __global const TYPE *w0 = (__global const TYPE *)panel0,                                   \
                            *w1 = (__global const TYPE *)panel1;                                   \
        _Pragma("nounroll") for (int turn = 0; turn < PARTS; turn++)                               \
        {                                                                                          \
            int row = turn * SUM_ROWS % ROWS;                                                      \
            part_##NAME(a + row, turn < 2 ? w0 : w1, w1, k,                                        \
                        (turn < 2 ? acc0 : acc1) + row, acc1 + row);                               \
        }                                                                                          \
    }
#if HAS(F32)
DEFINE_PAIR(f32, float, LOAD_F32)
#endif
#if HAS(F16)
DEFINE_PAIR(f16, half, LOAD_F16)
#endif
#if HAS(BF16)
DEFINE_PAIR(bf16, ushort, LOAD_BF16)
#endif

static void float_pair(uint type, __global const float *a, __global const uchar *panel0,
                       __global const uchar *panel1, uint k, float16 *acc0, float16 *acc1)
{
    switch (type) {
#if HAS(F32)
    case F32: pair_f32(a, panel0, panel1, k, acc0, acc1); break;
#endif
#if HAS(F16)
    case F16: pair_f16(a, panel0, panel1, k, acc0, acc1); break;
#endif
#if HAS(BF16)
    case BF16: pair_bf16(a, panel0, panel1, k, acc0, acc1); break;
#endif
    default: break;
    }
}

static void quant_tile(uint type, __global const uint *quantised, __global const uchar *panel,
                       uint k, float16 *y)
{
    struct activations x = {quantised,     ROWS, 1, quantised + (size_t)(k / 4) * ROWS,
                            FIELDS * ROWS, ROWS, 1};
    switch (type) {
        QUANT_CASES(ROWS)
    default: break;
    }
}

/* Results of two panels of the matrix; a and quantised: the row tile's. */
static void tile_product(__global const float *a, __global const uint *quantised,
                         __global const uint *matrix, uint k, uint panel0, uint panel1,
                         float16 *acc0, float16 *acc1)
{
    struct run run0 = find_run(matrix, panel0), run1 = find_run(matrix, panel1);
    __global const uchar *w0 = panel_of(matrix, run0, panel0), *w1 = panel_of(matrix, run1, panel1);
    if (run0.type == run1.type && IS_FLOAT(run0.type)) {
        float_pair(run0.type, a, w0, w1, k, acc0, acc1);
        return;
    }
    float16 twice[ROWS];
    if (IS_FLOAT(run0.type))
        float_pair(run0.type, a, w0, w0, k, acc0, twice);
    else
        quant_tile(run0.type, quantised, w0, k, acc0);
    if (IS_FLOAT(run1.type))
        float_pair(run1.type, a, w1, w1, k, acc1, twice);
    else
        quant_tile(run1.type, quantised, w1, k, acc1);
}

/* out [n_rows][out_stride] = a . w */
__kernel void gemm_store(uint index0, __global const float *a, uint a_stride,
                         __global const uint *quantised, __global const uint *w, uint k,
                         uint n_rows, __global float *out, uint out_stride)
{
    size_t tile = index0 + get_global_id(0), pair = get_global_id(1);
    float16 acc0[ROWS], acc1[ROWS];
    tile_product(a + tile * a_stride * ROWS, quantised + tile * QUANT_TILE(k), w, k, 2 * pair,
                 2 * pair + 1, acc0, acc1);
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
__kernel void gemm_add(uint index0, __global const float *a, uint a_stride,
                       __global const uint *quantised, __global const uint *w, uint k, uint n_rows,
                       __global float *hidden, uint out_stride, uint first_row)
{
    size_t tile = index0 + get_global_id(0), pair = get_global_id(1);
    float16 acc0[ROWS], acc1[ROWS];
    tile_product(a + tile * a_stride * ROWS, quantised + tile * QUANT_TILE(k), w, k, 2 * pair,
                 2 * pair + 1, acc0, acc1);
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

/* The FFN's first product, activated (shared.cl), packed for the next product: out
 * [tiles][out_stride][ROWS]. Gate's panels, then as many of up's; without a gate all are up's.
 * bias: NULL, or what is added first, [16 * panels]; without a gate only. Rows beyond n_rows are
 * computed too: the tile is there. */
__kernel void gemm_activate(uint index0, __global const float *a, uint a_stride,
                            __global const uint *quantised, __global const uint *w, uint k,
                            __global const float *bias, __global float *out, uint out_stride,
                            uint n_rows)
{
    size_t tile = index0 + get_global_id(0), panel = get_global_id(1);
    float16 gate[ROWS], up[ROWS];
    size_t half_panels = get_global_size(1);
    tile_product(a + tile * a_stride * ROWS, quantised + tile * QUANT_TILE(k), w, k, panel,
                 half_panels + panel, gate, up);
    float block[ROWS][16];
    __global float *to = out + (tile * out_stride + panel * 16) * ROWS;
#if GATED
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        vstore16(activate(gate[r], up[r]), 0, block[r]);
    for (int c = 0; c < 16; c++)
        for (int r = 0; r < ROWS; r++)
            to[c * ROWS + r] = block[r][c];
#else
    for (int second = 0; second < 2; second++) {
        size_t at = panel + second * half_panels;
        float16 add = bias ? vload16(at, bias) : (float16)(0.0f);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float16 v = (second ? up[r] : gate[r]) + add;
            vstore16(activate(v, v), 0, block[r]);
        }
        to = out + (tile * out_stride + at * 16) * ROWS;
        for (int c = 0; c < 16; c++)
            for (int r = 0; r < ROWS; r++)
                to[c * ROWS + r] = block[r][c];
    }
#endif
}

/* ROWS values of a packed row tile, in the first lanes. */
#if ROWS != 12
#error "quantise_rows takes tiles of 12 rows"
#endif
#define LOAD_ROWS(p) ((float16)(vload8(0, (p)), vload4(2, (p)), (float4)(0.0f)))
#define STORE_ROWS(v, p)                                                                           \
    {                                                                                              \
        vstore8((v).lo, 0, (p));                                                                   \
        vstore4((v).hi.lo, 2, (p));                                                                \
    }

/* A block of 32 values of each row of a tile: a [tiles][stride][ROWS] to int8, as product.cl takes
 * it. */
__kernel void quantise_rows(uint index0, __global const float *a, uint a_stride, uint k,
                            __global uint *out)
{
    size_t tile = index0 + get_global_id(0), block = get_global_id(1);
    __global const float *from = a + (tile * a_stride + block * 32) * ROWS;
    __global uint *words = out + tile * QUANT_TILE(k) + block * 8 * ROWS;
    __global uint *fields = out + tile * QUANT_TILE(k) + ((size_t)(k / 4) + block * FIELDS) * ROWS;
    int16 bits = (int16)(0);
    for (int i = 0; i < 32; i++)
        bits = max(bits, MAGNITUDE(int16, LOAD_ROWS(from + i * ROWS)));
    float16 largest = as_float16(bits), inverse = inverse_scale(largest), scale = scale_of(largest);
    int16 sums[2] = {(int16)(0), (int16)(0)};
    for (int g = 0; g < 8; g++) {
        uint16 word = (uint16)(0);
        for (int j = 0; j < 4; j++) {
            int16 q = convert_int16(rint(LOAD_ROWS(from + (4 * g + j) * ROWS) * inverse));
            sums[g / 4] += q;
            word |= (as_uint16(q) & 255u) << (uint)(8 * j);
        }
        STORE_ROWS(word, words + g * ROWS)
    }
    int16 all = sums[0] + sums[1];
    STORE_ROWS(as_uint16(scale), fields + SCALE * ROWS)
    STORE_ROWS(as_uint16(-all), fields + MINUS_SUM * ROWS)
    STORE_ROWS(as_uint16(-sums[0]), fields + MINUS_FIRST * ROWS)
    STORE_ROWS(as_uint16(-sums[1]), fields + MINUS_LAST * ROWS)
    STORE_ROWS(as_uint16(scale * convert_float16(all)), fields + SCALED_SUM * ROWS)
}
