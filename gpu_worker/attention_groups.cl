/*
 * attention_groups.cl - norm_rows, join_rows and attend_chunk of attention.cl, which it follows,
 * for devices with local memory: the same arguments and layouts.
 * Norms: a work group has a row. Attention: the same tiles of keys from position 0 on; a group has
 * one row tile of one head: an item scores one key against half of the rows, then sums some
 * dimensions of the values for some rows. Index 0 of the range: row tile, index 1: head.
 */
#define SCORE_ROWS (ROWS * KEYS / GROUP_ITEMS) /* of an item: its key's scores */
#define ROW_ITEMS  8                           /* items that soften a row */
#if ROWS != 12 || KEYS * 2 != GROUP_ITEMS
#error "a group has 12 rows, and two items for each key of a tile"
#endif
/* Values: dimensions side by side, as many rows as there are items for. */
#define DIM_ITEMS (HEAD_DIM < GROUP_ITEMS ? HEAD_DIM : GROUP_ITEMS)
#define DIM_TURNS ((HEAD_DIM + GROUP_ITEMS - 1) / GROUP_ITEMS)
#define ROW_SLICES                                                                                 \
    (GROUP_ITEMS / DIM_ITEMS >= 12  ? 12                                                           \
     : GROUP_ITEMS / DIM_ITEMS >= 6 ? 6                                                            \
     : GROUP_ITEMS / DIM_ITEMS >= 4 ? 4                                                            \
                                    : GROUP_ITEMS / DIM_ITEMS)
#define ROWS_EACH (ROWS / ROW_SLICES)
/* o [ROWS_EACH] += weights * value; two weights at a time where their number is even. */
#if ROWS_EACH % 2
#define ADD_ROWS(weights, value, o)                                                                \
    _Pragma("unroll") for (int r = 0; r < ROWS_EACH; r++)(o)[r] =                                  \
        fma((weights)[r], (value), (o)[r])
#else
#define ADD_ROWS(weights, value, o)                                                                \
    _Pragma("unroll") for (int r = 0; r < ROWS_EACH; r += 2)                                       \
    {                                                                                              \
        float2 pair = *(__local const float2 *)((weights) + r);                                    \
        (o)[r] = fma(pair.x, (value), (o)[r]);                                                     \
        (o)[r + 1] = fma(pair.y, (value), (o)[r + 1]);                                             \
    }
#endif

/* 1 / sqrt(mean((x - mean)^2) + eps) of k values: with mean 0 the bits of rms_factor, since int8
 * activations are made of what this scales. */
static float factor_of(__global const float *from, uint k, float mean, float eps,
                       __local float *scratch)
{
    float square = 0.0f;
    for (uint i = ITEM; ITEM < 16 && i < k; i += 16)
        square = fma(from[i] - mean, from[i] - mean, square);
    return 1.0f / sqrt(group_sum(square, 16, scratch) / (float)k + eps);
}

KERNEL norm_rows(uint index0, __global const float *x, uint stride, uint first_row,
                 __global const float *g, uint k, float eps, __global float *out)
{
    __local float scratch[16];
    size_t row = index0 + get_group_id(0);
    __global const float *from = x + (first_row + row) * stride;
    __global float *to = out + row / ROWS * ROWS * k + row % ROWS;
    float mean = 0.0f;
#if LAYER_NORM
    for (uint i = ITEM; ITEM < 16 && i < k; i += 16)
        mean += from[i];
    mean = group_sum(mean, 16, scratch) / (float)k;
#endif
    float factor = factor_of(from, k, mean, eps, scratch);
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        to[(size_t)i * ROWS] = (from[i] - mean) * factor * g[i];
}

KERNEL join_rows(uint index0, __global const float *branch, uint stride, __global const float *bias,
                 __global const float *norm, uint k, float eps, __global float *hidden,
                 uint first_row)
{
    __local float scratch[16];
    size_t row = index0 + get_group_id(0);
    __global const float *from = branch + row * stride;
    __global float *to = hidden + (first_row + row) * stride;
    float factor = norm ? factor_of(from, k, 0.0f, eps, scratch) : 1.0f;
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        to[i] += norm ? from[i] * factor * norm[i] : from[i] + bias[i];
}

/* p [KEYS][ROWS]: as score_tile; q [HEAD_DIM][ROWS]. Two rows at a time come from local memory. */
static void score_keys(__local const float *q, __global const half *kt, uint key0, uint position,
                       uint window, __local float *p)
{
    uint in_tile = ITEM % KEYS, row0 = ITEM / KEYS * SCORE_ROWS;
    __global const half *key = kt + in_tile / 16 * HEAD_DIM * 16 + in_tile % 16;
    float2 scores[SCORE_ROWS / 2];
#pragma unroll
    for (int r = 0; r < SCORE_ROWS / 2; r++)
        scores[r] = (float2)(0.0f);
#pragma unroll 8
    for (uint i = 0; i < HEAD_DIM; i++) {
        float2 k = (float2)(vload_half((size_t)i * 16, key));
        __local const float2 *rows = (__local const float2 *)(q + i * ROWS + row0);
#pragma unroll
        for (int r = 0; r < SCORE_ROWS / 2; r++)
            scores[r] = fma(rows[r], k, scores[r]);
    }
    __local float2 *to = (__local float2 *)(p + in_tile * ROWS + row0);
    uint at = key0 + in_tile, row = position + row0;
#pragma unroll
    for (int r = 0; r < SCORE_ROWS / 2; r++) {
        bool first = at <= row + 2 * r, second = at <= row + 2 * r + 1;
#if WINDOWS
        first = first && !(window && at + window <= row + 2 * r);
        second = second && !(window && at + window <= row + 2 * r + 1);
#endif
        to[r] = (float2)(first ? scores[r].x * SCORE_SCALE : HIDDEN,
                         second ? scores[r].y * SCORE_SCALE : HIDDEN);
    }
}

/* p becomes 2^(p - m); m, l: highest score and sum of a row so far, alpha: the factor for what was
 * summed before, [ROWS] each. spread [2 * GROUP_ITEMS] */
static void soften_rows(__local float *p, __local float *m, __local float *l, __local float *alpha,
                        __local float *spread)
{
    uint row = ITEM / ROW_ITEMS, first = ITEM % ROW_ITEMS;
    bool mine = row < ROWS;
    float highest = -INFINITY, sum = 0.0f, before = mine ? m[row] : 0.0f;
    for (uint i = first; mine && i < KEYS; i += ROW_ITEMS)
        highest = fmax(highest, p[i * ROWS + row]);
    spread[ITEM] = highest;
    SYNC;
    highest = before;
    for (uint i = 0; i < ROW_ITEMS; i++)
        highest = fmax(highest, spread[ITEM - first + i]);
    for (uint i = first; mine && i < KEYS; i += ROW_ITEMS) {
        float e = exp2(p[i * ROWS + row] - highest);
        p[i * ROWS + row] = e;
        sum += e;
    }
    spread[GROUP_ITEMS + ITEM] = sum;
    SYNC;
    if (mine && first == 0) {
        for (uint i = 1; i < ROW_ITEMS; i++)
            sum += spread[GROUP_ITEMS + ITEM + i];
        alpha[row] = exp2(before - highest);
        l[row] = fma(l[row], alpha[row], sum);
        m[row] = highest;
    }
    SYNC;
}

/* o [DIM_TURNS][ROWS_EACH] = o * alpha + p . v over n_keys keys, of this item's rows from row0. */
static void add_values(__local const float *p, __local const float *alpha, __global const half *v,
                       uint n_keys, uint row0, float *o)
{
    uint dim0 = ITEM % DIM_ITEMS;
#pragma unroll
    for (int t = 0; t < DIM_TURNS; t++) {
        uint dim = dim0 + t * GROUP_ITEMS;
        if (dim >= HEAD_DIM)
            break;
#pragma unroll
        for (int r = 0; r < ROWS_EACH; r++)
            o[t * ROWS_EACH + r] *= alpha[row0 + r];
#pragma unroll 8
        for (uint i = 0; i < n_keys; i++) {
            float value = vload_half((size_t)i * PADDED_DIM + dim, v);
            ADD_ROWS(p + i * ROWS + row0, value, o + t * ROWS_EACH);
        }
    }
}

KERNEL attend_chunk(uint index0, __global const float *q, uint tiles, __global const half *kt,
                    __global const half *v, uint panels, uint first, uint n_rows, uint window,
                    __global float *out, __global float *log_sums)
{
    __local float p[ROWS * KEYS] __attribute__((aligned(8))),
        ql[ROWS * HEAD_DIM] __attribute__((aligned(8))), m[ROWS], l[ROWS], alpha[ROWS],
        spread[2 * GROUP_ITEMS];
    size_t tile = index0 + get_group_id(0), head = get_group_id(1), kv_head = head / GROUP;
    uint position = first + tile * ROWS, n_keys = first + min((uint)(tile + 1) * ROWS, n_rows);
    uint start = 0, slice = ITEM / DIM_ITEMS, row0 = slice * ROWS_EACH;
    __global const float *qt = q + (head * tiles + tile) * HEAD_DIM * ROWS;
    __global const half *kh = kt + kv_head * panels * HEAD_DIM * 16;
    __global const half *vh = v + kv_head * panels * 16 * PADDED_DIM;
    float o[DIM_TURNS * ROWS_EACH];
    for (int i = 0; i < DIM_TURNS * ROWS_EACH; i++)
        o[i] = 0.0f;
    for (uint i = ITEM; i < ROWS * HEAD_DIM; i += GROUP_ITEMS)
        ql[i] = qt[i];
    if (ITEM < ROWS) {
        m[ITEM] = -INFINITY;
        l[ITEM] = 0.0f;
    }
#if WINDOWS
    if (window && position >= window)
        start = (position - window + 1) / KEYS * KEYS;
#endif
    for (uint key0 = start; key0 < n_keys; key0 += KEYS) {
        SYNC; /* the last tile's weights have been read */
        score_keys(ql, kh + (size_t)key0 * HEAD_DIM, key0, position, window, p);
        SYNC;
        soften_rows(p, m, l, alpha, spread);
        if (slice < ROW_SLICES)
            add_values(p, alpha, vh + (size_t)key0 * PADDED_DIM, min((uint)KEYS, n_keys - key0),
                       row0, o);
    }
    if (log_sums && ITEM < ROWS)
        log_sums[(head * tiles + tile) * ROWS + ITEM] = m[ITEM] + log2(l[ITEM]);
    __global float *to = out + (tile * N_HEADS + head) * HEAD_DIM * ROWS;
    for (int t = 0; t < DIM_TURNS && slice < ROW_SLICES; t++) {
        uint dim = ITEM % DIM_ITEMS + t * GROUP_ITEMS;
        for (int r = 0; r < ROWS_EACH && dim < HEAD_DIM; r++)
            to[dim * ROWS + row0 + r] = o[t * ROWS_EACH + r] / l[row0 + r];
    }
}
