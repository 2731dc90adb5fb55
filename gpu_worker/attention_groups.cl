/*
 * attention_groups.cl - attend_chunk of attention.cl, which it follows, for devices with local
 * memory: the same arguments and layouts, the same tiles of keys from position 0 on. A work group
 * has one row tile of one head: an item scores one key against half of the rows, then sums some
 * dimensions of the values for some rows. Index 0 of the range: row tile, index 1: head.
 */
#define ITEM       get_local_id(0)
#define SYNC       barrier(CLK_LOCAL_MEM_FENCE)
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

/* p [ROWS][KEYS]: as score_tile. */
static void score_keys(__global const float *q, __global const half *kt, uint key0, uint position,
                       uint window, __local float *p)
{
    uint in_tile = ITEM % KEYS, row0 = ITEM / KEYS * SCORE_ROWS;
    __global const half *key = kt + in_tile / 16 * HEAD_DIM * 16 + in_tile % 16;
    float scores[SCORE_ROWS];
#pragma unroll
    for (int r = 0; r < SCORE_ROWS; r++)
        scores[r] = 0.0f;
    for (uint i = 0; i < HEAD_DIM; i++) {
        float k = vload_half((size_t)i * 16, key);
#pragma unroll
        for (int r = 0; r < SCORE_ROWS; r++)
            scores[r] = fma(q[i * ROWS + row0 + r], k, scores[r]);
    }
#pragma unroll
    for (int r = 0; r < SCORE_ROWS; r++) {
        uint at = key0 + in_tile, row = position + row0 + r;
        bool seen = at <= row;
#if WINDOWS
        seen = seen && !(window && at + window <= row);
#endif
        p[(row0 + r) * KEYS + in_tile] = seen ? scores[r] * SCORE_SCALE : HIDDEN;
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
        highest = fmax(highest, p[row * KEYS + i]);
    spread[ITEM] = highest;
    SYNC;
    highest = before;
    for (uint i = 0; i < ROW_ITEMS; i++)
        highest = fmax(highest, spread[ITEM - first + i]);
    for (uint i = first; mine && i < KEYS; i += ROW_ITEMS) {
        float e = exp2(p[row * KEYS + i] - highest);
        p[row * KEYS + i] = e;
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
        for (uint i = 0; i < n_keys; i++) {
            float value = vload_half((size_t)i * PADDED_DIM + dim, v);
#pragma unroll
            for (int r = 0; r < ROWS_EACH; r++)
                o[t * ROWS_EACH + r] = fma(p[(row0 + r) * KEYS + i], value, o[t * ROWS_EACH + r]);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(GROUP_ITEMS, 1, 1))) void
attend_chunk(uint index0, __global const float *q, uint tiles, __global const half *kt,
             __global const half *v, uint panels, uint first, uint n_rows, uint window,
             __global float *out, __global float *log_sums)
{
    __local float p[ROWS * KEYS], m[ROWS], l[ROWS], alpha[ROWS], spread[2 * GROUP_ITEMS];
    size_t tile = index0 + get_group_id(0), head = get_group_id(1), kv_head = head / GROUP;
    uint position = first + tile * ROWS, n_keys = first + min((uint)(tile + 1) * ROWS, n_rows);
    uint start = 0, slice = ITEM / DIM_ITEMS, row0 = slice * ROWS_EACH;
    __global const float *qt = q + (head * tiles + tile) * HEAD_DIM * ROWS;
    __global const half *kh = kt + kv_head * panels * HEAD_DIM * 16;
    __global const half *vh = v + kv_head * panels * 16 * PADDED_DIM;
    float o[DIM_TURNS * ROWS_EACH];
    for (int i = 0; i < DIM_TURNS * ROWS_EACH; i++)
        o[i] = 0.0f;
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
        score_keys(qt, kh + (size_t)key0 * HEAD_DIM, key0, position, window, p);
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
