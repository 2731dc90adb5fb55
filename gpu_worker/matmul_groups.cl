/*
 * matmul_groups.cl - matmul.cl's kernels for devices with local memory: the same names, arguments,
 * layouts and orders of sums, so the same results. Follows product.cl, with X_SPACE local and LANES
 * 1 (shared.cl).
 *
 * A work group computes TILES row tiles times two panels: 16 items side by side have a tile, each
 * of them ROWS results of one output of both panels in registers. 32 values of all rows at a time
 * come to local memory; weights are read by 16 neighbours side by side and go to registers. Index 0
 * of the range is the block of TILES row tiles, index 1 the pair of panels.
 */
#define TILES      (GROUP_ITEMS / 16)
#define BLOCK_ROWS (TILES * ROWS)
#define QUANT_TILE(k)                                                                              \
    ((size_t)ROWS *                                                                                \
     ((k) / 4 +                                                                                    \
      (k) / 32 * FIELDS)) /* words of a tile: [k / 4][ROWS], then [k / 32][FIELDS][ROWS] */

/* Rows of a block: tiles tile .. end - 1 of these are there. */
struct block {
    __global const float *a;
    __global const uint *quantised;
    size_t a_stride;
    uint k, tile, end;
};

/* 32 values of the rows: a [32][BLOCK_ROWS]; q [TILES][ROWS][ROW_WORDS], of a row 8 words, then the
 * fields; rows that are not there are 0. Tiles begin in different banks of local memory. */
#define ROW_WORDS  16
#define TILE_WORDS (ROWS * ROW_WORDS + 4)
struct stage {
    __local float *a;
    __local uint *q;
};
#define STAGE                                                                                      \
    __local float stage_a[32 * BLOCK_ROWS];                                                        \
    __local uint stage_q[TILES * TILE_WORDS] __attribute__((aligned(16)));                         \
    struct stage stage = {stage_a, stage_q}

static void stage_floats(struct block b, uint k0, uint n, struct stage to)
{
    for (uint j = ITEM; j < n * BLOCK_ROWS; j += GROUP_ITEMS) {
        uint t = j / (n * ROWS), at = j % (n * ROWS);
        float v = b.tile + t < b.end ? b.a[((b.tile + t) * b.a_stride + k0) * ROWS + at] : 0.0f;
        to.a[at / ROWS * BLOCK_ROWS + t * ROWS + at % ROWS] = v;
    }
}

/* Part `part` of 32 values: words, then fields. */
static void stage_quantised(struct block b, uint part, struct stage to)
{
    for (uint j = ITEM; j < (8 + FIELDS) * BLOCK_ROWS; j += GROUP_ITEMS) {
        uint t = j / ((8 + FIELDS) * ROWS), at = j % ((8 + FIELDS) * ROWS);
        size_t from = at < 8 * ROWS ? part * 8 * ROWS + at
                                    : (b.k / 4 + part * FIELDS) * ROWS + (at - 8 * ROWS);
        to.q[t * TILE_WORDS + at % ROWS * ROW_WORDS + at / ROWS] =
            b.tile + t < b.end ? b.quantised[(b.tile + t) * QUANT_TILE(b.k) + from] : 0;
    }
}

#define FLOAT_STAGE(LOAD, TYPE)                                                                    \
    for (uint i = 0; i < n; i++) {                                                                 \
        float v0 = LOAD(k0 + i, (__global const TYPE *)panel0),                                    \
              v1 = LOAD(k0 + i, (__global const TYPE *)panel1);                                    \
        _Pragma("unroll") for (int r = 0; r < ROWS; r++)                                           \
        {                                                                                          \
            acc0[r] = fma(x[i * BLOCK_ROWS + r], v0, acc0[r]);                                     \
            acc1[r] = fma(x[i * BLOCK_ROWS + r], v1, acc1[r]);                                     \
        }                                                                                          \
    }                                                                                              \
    break;

/* Values k0 .. k0 + n - 1 of two panels of a float type. */
static void add_floats(uint type, __local const float *x, __global const uchar *panel0,
                       __global const uchar *panel1, uint k0, uint n, float *acc0, float *acc1)
{
    switch (type) {
#if HAS(F32)
    case F32:
        FLOAT_STAGE(LOAD_F32, float)
#endif
#if HAS(F16)
    case F16:
        FLOAT_STAGE(LOAD_F16, half)
#endif
#if HAS(BF16)
    case BF16:
        FLOAT_STAGE(LOAD_BF16, ushort)
#endif
    default:
        break;
    }
}

/* Part `first` of a panel of a quantised type. */
static void add_quantised(uint type, __local const uint *q, __global const uchar *panel, uint first,
                          float *y)
{
    const uint k = 32 * (first + 1), step = 1;
    struct activations x = {q, 1, ROW_WORDS, q + 8, 0, 1, ROW_WORDS};
    switch (type) {
        QUANT_CASES(ROWS)
    default:
        break;
    }
}

static void add_stage(uint type, struct stage stage, __global const uchar *panel, uint k0, uint n,
                      float *acc)
{
    float twice[ROWS];
    for (int r = 0; r < ROWS; r++)
        twice[r] = 0.0f;
    if (IS_FLOAT(type))
        add_floats(type, stage.a + ITEM / 16 * ROWS, panel, panel, k0, n, acc, twice);
    else
        add_quantised(type, stage.q + ITEM / 16 * TILE_WORDS, panel, k0 / 32, acc);
}

/* This item's results of two panels: of output LANE of each, for the rows of its tile. */
static void block_product(struct block b, __global const uint *matrix, uint panel0, uint panel1,
                          struct stage stage, float *acc0, float *acc1)
{
    struct run run0 = find_run(matrix, panel0), run1 = find_run(matrix, panel1);
    __global const uchar *w0 = panel_of(matrix, run0, panel0), *w1 = panel_of(matrix, run1, panel1);
    bool float0 = IS_FLOAT(run0.type), float1 = IS_FLOAT(run1.type);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        acc0[r] = acc1[r] = 0.0f;
    for (uint k0 = 0; k0 < b.k; k0 += 32) {
        uint n = min(32u, b.k - k0);
        SYNC; /* the last stage has been read */
        if (float0 || float1)
            stage_floats(b, k0, n, stage);
        if (!float0 || !float1)
            stage_quantised(b, k0 / 32, stage);
        SYNC;
        if (float0 && run0.type == run1.type) {
            add_floats(run0.type, stage.a + ITEM / 16 * ROWS, w0, w1, k0, n, acc0, acc1);
        } else {
            add_stage(run0.type, stage, w0, k0, n, acc0);
            add_stage(run1.type, stage, w1, k0, n, acc1);
        }
    }
}

static struct block block_of(uint index0, __global const float *a, uint a_stride,
                             __global const uint *quantised, uint k, uint n_rows)
{
    struct block b = {
        a, quantised, a_stride, k, index0 + get_group_id(0) * TILES, (n_rows + ROWS - 1) / ROWS};
    return b;
}

/* out [n_rows][out_stride] = a . w */
KERNEL gemm_store(uint index0, __global const float *a, uint a_stride,
                  __global const uint *quantised, __global const uint *w, uint k, uint n_rows,
                  __global float *out, uint out_stride)
{
    STAGE;
    struct block b = block_of(index0, a, a_stride, quantised, k, n_rows);
    size_t pair = get_group_id(1), row0 = (b.tile + ITEM / 16) * ROWS;
    float acc0[ROWS], acc1[ROWS];
    block_product(b, w, 2 * pair, 2 * pair + 1, stage, acc0, acc1);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (row0 + r < n_rows) {
            STORE_LANES(acc0[r], 2 * pair, out + (row0 + r) * out_stride);
            STORE_LANES(acc1[r], 2 * pair + 1, out + (row0 + r) * out_stride);
        }
}

/* hidden [first_row + n_rows][out_stride] += a . w (the residual connection) */
KERNEL gemm_add(uint index0, __global const float *a, uint a_stride, __global const uint *quantised,
                __global const uint *w, uint k, uint n_rows, __global float *hidden,
                uint out_stride, uint first_row)
{
    STAGE;
    struct block b = block_of(index0, a, a_stride, quantised, k, n_rows);
    size_t pair = get_group_id(1), row0 = (b.tile + ITEM / 16) * ROWS;
    float acc0[ROWS], acc1[ROWS];
    block_product(b, w, 2 * pair, 2 * pair + 1, stage, acc0, acc1);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (row0 + r < n_rows) {
            __global float *to = hidden + (first_row + row0 + r) * out_stride;
            STORE_LANES(LOAD_LANES(2 * pair, to) + acc0[r], 2 * pair, to);
            STORE_LANES(LOAD_LANES(2 * pair + 1, to) + acc1[r], 2 * pair + 1, to);
        }
}

/* The FFN's first product, activated, packed for the next one: out [tiles][out_stride][ROWS]. */
KERNEL gemm_activate(uint index0, __global const float *a, uint a_stride,
                     __global const uint *quantised, __global const uint *w, uint k,
                     __global const float *bias, __global float *out, uint out_stride, uint n_rows)
{
    STAGE;
    struct block b = block_of(index0, a, a_stride, quantised, k, n_rows);
    size_t panel = get_group_id(1), other = get_num_groups(1) + panel, tile = b.tile + ITEM / 16;
    float gate[ROWS], up[ROWS];
    block_product(b, w, panel, other, stage, gate, up);
    if (tile >= b.end)
        return;
    __global float *to = out + (tile * out_stride + LANE) * ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#if GATED
        to[panel * 16 * ROWS + r] = activate(gate[r], up[r]);
#else
        float one = gate[r] + (bias ? LOAD_LANES(panel, bias) : 0.0f),
              two = up[r] + (bias ? LOAD_LANES(other, bias) : 0.0f);
        to[panel * 16 * ROWS + r] = activate(one, one);
        to[other * 16 * ROWS + r] = activate(two, two);
#endif
    }
}

/* A block of 32 values of a row of a tile: a [tiles][stride][ROWS] to int8, as product.cl takes it.
 * Index 0: row; index 1: block. An item has it alone. */
__kernel void quantise_rows(uint index0, __global const float *a, uint a_stride, uint k,
                            __global uint *out)
{
    size_t tile = index0 + get_global_id(0) / ROWS, r = get_global_id(0) % ROWS,
           block = get_global_id(1);
    __global const float *from = a + (tile * a_stride + block * 32) * ROWS + r;
    __global uint *words = out + tile * QUANT_TILE(k) + block * 8 * ROWS + r;
    __global uint *fields = out + tile * QUANT_TILE(k) + ((k / 4) + block * FIELDS) * ROWS + r;
    int bits = 0;
    for (int i = 0; i < 32; i++)
        bits = max(bits, MAGNITUDE(int, from[i * ROWS]));
    float largest = as_float(bits), inverse = inverse_scale(largest);
    int sums[2] = {0, 0};
    for (int g = 0; g < 8; g++) {
        uint word = 0;
        for (int j = 0; j < 4; j++) {
            int q = convert_int(rint(from[(4 * g + j) * ROWS] * inverse));
            sums[g / 4] += q;
            word |= ((uint)q & 255u) << (uint)(8 * j);
        }
        words[g * ROWS] = word;
    }
    keep_fields(scale_of(largest), sums[0], sums[1], fields, ROWS);
}
