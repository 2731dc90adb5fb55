/*
 * attention.cl - norm, rotary embedding and attention of the prefill.
 *
 * Prefill: exact causal attention with an online softmax; keys are walked in tiles of KEYS
 * positions from 0, so that a query's result depends on its position alone. A work item owns SUBS
 * row tiles of ROWS queries of one head: both products keep as many results in registers as
 * shared.cl says.
 *     q   [N_HEADS][tiles][HEAD_DIM][ROWS]     packed queries of a chunk, F32
 *     kt  [N_KV_HEADS][panels][HEAD_DIM][16]   keys of the layer, FP16, 16 positions side by side
 *     v   [N_KV_HEADS][16 * panels][PADDED_DIM] values of the layer, FP16
 *     entry: K [N_KV_HEADS][HEAD_DIM], V [N_KV_HEADS][HEAD_DIM], FP16
 * K and V saturate at the largest FP16: an infinity would poison entries that are masked.
 * index0: what index 0 of the range begins at.
 */
#define VECTORS    ((HEAD_DIM + 15) / 16)
#define PADDED_DIM (16 * VECTORS)
#define GROUP      (N_HEADS / N_KV_HEADS)
#define ENTRY      (2 * N_KV_HEADS * HEAD_DIM)

#ifndef GROUP_ITEMS /* else attention_groups.cl has norms */
#if LAYER_NORM
static float mean_of(__global const float *from, uint k)
{
    float16 sum = (float16)(0.0f);
    for (uint i = 0; i < (k + 15) / 16; i++)
        sum += vload16(i, from);
    return add_lanes(sum) / (float)k;
}

static float layer_factor(__global const float *from, float mean, uint k, float eps)
{
    float sum = 0.0f;
    for (uint i = 0; i < k; i++)
        sum = fma(from[i] - mean, from[i] - mean, sum);
    return 1.0f / sqrt(sum / (float)k + eps);
}
#endif

/* out, packed [tiles][k][ROWS], = norm(x [n_rows][stride]) * g. LayerNorm's own bias is in that of
 * the product which follows (weights.c). */
__kernel void norm_rows(uint index0, __global const float *x, uint stride, uint first_row,
                        __global const float *g, uint k, float eps, __global float *out)
{
    size_t row = index0 + get_global_id(0);
    __global const float *from = x + (first_row + row) * stride;
    __global float *to = out + row / ROWS * ROWS * k + row % ROWS;
#if LAYER_NORM
    float mean = mean_of(from, k), factor = layer_factor(from, mean, k, eps);
    for (uint i = 0; i < k; i++)
        to[(size_t)i * ROWS] = (from[i] - mean) * factor * g[i];
#else
    float factor = rms_factor(from, k, eps);
    for (uint i = 0; i < k; i++)
        to[(size_t)i * ROWS] = from[i] * factor * g[i];
#endif
}

/* hidden [first_row + row][stride] += branch [row][stride], after its bias or its RMS norm (either
 * may be NULL). */
__kernel void join_rows(uint index0, __global const float *branch, uint stride,
                        __global const float *bias, __global const float *norm, uint k, float eps,
                        __global float *hidden, uint first_row)
{
    size_t row = index0 + get_global_id(0);
    __global const float *from = branch + row * stride;
    __global float *to = hidden + (first_row + row) * stride;
    float factor = norm ? rms_factor(from, k, eps) : 1.0f;
    for (uint i = 0; i < k; i++)
        to[i] += norm ? from[i] * factor * norm[i] : from[i] + bias[i];
}
#endif

/* Index 1 of a range over rows: which heads are a work item's, where several share a row. */
#define EACH_HEAD(head, n)                                                                         \
    for (uint head = get_global_id(1); head < (n); head += get_global_size(1))

/* A head's factor: 1 where heads are not normed. */
static float head_factor(__global const float *head, __global const float *bias, float eps)
{
#if NORM_HEADS
    float sum = 0.0f;
    for (uint i = 0; i < HEAD_DIM; i++) {
        float v = bias ? head[i] + bias[i] : head[i];
        sum = fma(v, v, sum);
    }
    return 1.0f / sqrt(sum / (float)HEAD_DIM + eps);
#else
    return 1.0f;
#endif
}

/* Value i of a projection's head, with its bias and its norm g. */
static float head_value(__global const float *head, __global const float *bias,
                        __global const float *g, float factor, uint i)
{
    float v = bias ? head[i] + bias[i] : head[i];
#if NORM_HEADS
    return v * factor * g[i];
#else
    return v;
#endif
}

/* Values i and i + 1 of a projection's head, as head_value has them, turned by the row's angle. */
static float2 turned_pair(__global const float *head, __global const float *bias,
                          __global const float *g, float factor, __global const float *angle,
                          uint rotated, uint i)
{
    float a = head_value(head, bias, g, factor, i), b = head_value(head, bias, g, factor, i + 1);
    if (i < rotated) {
        float c = angle[i], s = angle[i + 1], t = a;
        a = a * c - b * s;
        b = t * s + b * c;
    }
    return (float2)(a, b);
}

/* A query's place in q [N_HEADS][tiles][HEAD_DIM][ROWS]; its values are ROWS apart. */
static __global float *query_of(__global float *q, uint head, uint tiles, size_t row)
{
    return q + (head * (size_t)tiles + row / ROWS) * HEAD_DIM * ROWS + row % ROWS;
}

/* One row of qkv [n_rows][stride], at position first + row: bias (or NULL), heads' norms, rotation
 * of the first `rotated` dimensions of a head; then packed, rounded, and laid out as entries too,
 * the first as entry first_entry. turn [first_turn + row][ROPE_DIMS / 2][2]. */
__kernel void rotate_store(uint index0, __global const float *qkv, uint stride,
                           __global const float *bias, __global const float *q_norm,
                           __global const float *k_norm, float eps, __global const float *turn,
                           uint first_turn, uint rotated, uint first, __global float *q, uint tiles,
                           __global half *kt, __global half *v, uint panels, __global half *entries,
                           uint first_entry)
{
    size_t row = index0 + get_global_id(0), position = first + row;
    __global const float *from = qkv + row * stride;
    __global const float *angle = turn + (first_turn + row) * ROPE_DIMS;
    __global half *entry = entries + (first_entry + row) * ENTRY;
    EACH_HEAD(head, N_HEADS + N_KV_HEADS)
    {
        bool is_query = head < N_HEADS;
        uint kv_head = head - N_HEADS;
        __global float *to_q = query_of(q, head, tiles, row);
        __global half *to_k =
            kt + (kv_head * (size_t)panels + position / 16) * HEAD_DIM * 16 + position % 16;
        __global const float *values = from + head * HEAD_DIM,
                             *add = bias ? bias + head * HEAD_DIM : bias;
        __global const float *g = is_query ? q_norm : k_norm;
        float factor = head_factor(values, add, eps);
        for (uint i = 0; i < HEAD_DIM; i += 2) {
            float2 pair = turned_pair(values, add, g, factor, angle, rotated, i);
            if (is_query) {
                to_q[(size_t)i * ROWS] = pair.x;
                to_q[(size_t)(i + 1) * ROWS] = pair.y;
            } else {
                pair = (float2)(saturate(pair.x), saturate(pair.y));
                vstore_half(pair.x, (size_t)i * 16, to_k);
                vstore_half(pair.y, (size_t)(i + 1) * 16, to_k);
                vstore_half(pair.x, kv_head * HEAD_DIM + i, entry);
                vstore_half(pair.y, kv_head * HEAD_DIM + i + 1, entry);
            }
        }
    }
    EACH_HEAD(head, N_KV_HEADS)
    {
        __global half *to = v + (head * (size_t)panels * 16 + position) * PADDED_DIM;
        for (uint i = 0; i < HEAD_DIM; i++) {
            uint at = (N_HEADS + N_KV_HEADS + head) * HEAD_DIM + i;
            float a = saturate(bias ? from[at] + bias[at] : from[at]);
            vstore_half(a, i, to);
            vstore_half(a, (N_KV_HEADS + head) * HEAD_DIM + i, entry);
        }
    }
}

/* Of such a row the queries alone. */
__kernel void rotate_queries(uint index0, __global const float *qkv, uint stride,
                             __global const float *bias, __global const float *q_norm, float eps,
                             __global const float *turn, uint first_turn, uint rotated,
                             __global float *q, uint tiles)
{
    size_t row = index0 + get_global_id(0);
    __global const float *from = qkv + row * stride;
    __global const float *angle = turn + (first_turn + row) * ROPE_DIMS;
    EACH_HEAD(head, N_HEADS)
    {
        __global float *to = query_of(q, head, tiles, row);
        __global const float *values = from + head * HEAD_DIM,
                             *add = bias ? bias + head * HEAD_DIM : bias;
        float factor = head_factor(values, add, eps);
        for (uint i = 0; i < HEAD_DIM; i += 2) {
            float2 pair = turned_pair(values, add, q_norm, factor, angle, rotated, i);
            to[(size_t)i * ROWS] = pair.x;
            to[(size_t)(i + 1) * ROWS] = pair.y;
        }
    }
}

/* The entry of an earlier token, packed as rotate_store packs a new one: its bits. */
static void pack_entry(__global const ushort *key, size_t position, __global ushort *kt,
                       __global ushort *v, uint panels)
{
    __global const ushort *value = key + N_KV_HEADS * HEAD_DIM;
    EACH_HEAD(head, N_KV_HEADS)
    {
        __global ushort *to_k =
            kt + (head * (size_t)panels + position / 16) * HEAD_DIM * 16 + position % 16;
        __global ushort *to_v = v + (head * (size_t)panels * 16 + position) * PADDED_DIM;
        for (uint i = 0; i < HEAD_DIM; i++) {
            to_k[(size_t)i * 16] = key[head * HEAD_DIM + i];
            to_v[i] = value[head * HEAD_DIM + i];
        }
    }
}

/* Entries of earlier tokens, from entry `from` on, at positions first + row. */
__kernel void load_entries(uint index0, __global const ushort *entries, uint from, uint first,
                           __global ushort *kt, __global ushort *v, uint panels)
{
    size_t row = index0 + get_global_id(0);
    pack_entry(entries + (from + row) * ENTRY, first + row, kt, v, panels);
}

/* The same of runs of run_tokens entries each: the i-th of them is the run sources[i] of `kept`, or
 * where that is none, the i-th of entries. */
__kernel void load_runs(uint index0, __global const ushort *entries, __global const ushort *kept,
                        __global const uint *sources, uint run_tokens, uint first,
                        __global ushort *kt, __global ushort *v, uint panels)
{
    size_t row = index0 + get_global_id(0);
    size_t source = sources[row / run_tokens], within = row % run_tokens;
    if (source == UINT_MAX)
        pack_entry(entries + row * ENTRY, first + row, kt, v, panels);
    else
        pack_entry(kept + (source * run_tokens + within) * ENTRY, first + row, kt, v, panels);
}

/* A checksum of each row: as row_sum of prompt_sums.c. */
#define SUM_PRIME 0x9e3779b97f4a7c15UL
__kernel void sum_rows(uint index0, __global const uint *rows, uint words, uint from,
                       __global ulong *sums, uint to)
{
    size_t i = index0 + get_global_id(0);
    __global const uint *row = rows + (from + i) * words;
    ulong4 h = (ulong4)(words + 1, words + 2, words + 3, words + 4);
    uint at = 0;
    for (; at + 4 <= words; at += 4)
        h = (h ^ convert_ulong4(vload4(0, row + at))) * SUM_PRIME;
    for (; at < words; at++)
        h.x = (h.x ^ row[at]) * SUM_PRIME;
    sums[to + i] = ((h.x * SUM_PRIME ^ h.y) * SUM_PRIME ^ h.z) * SUM_PRIME ^ h.w;
}

/* Scores of ROWS queries (first at position `position`) against KEYS keys from key0, times log2(e)
 * / sqrt(HEAD_DIM); keys after the query are HIDDEN, and with a window those that are `window`
 * tokens or more before it. p [ROWS][KEYS]. A row may see nothing of a tile in front of its window:
 * HIDDEN is finite then, and what such a tile gave is forgotten exactly (times 2^-1e30 = 0) with
 * the first key that is seen. */
#if WINDOWS
#define HIDDEN (-1e30f)
#else
#define HIDDEN (-INFINITY)
#endif
static void score_tile(__global const float *q, __global const half *kt, uint key0, uint position,
                       uint window, float *p)
{
    const float scale = SCORE_SCALE;
    const int16 lanes = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int c = 0; c < KEYS / 16; c += SUM_PANELS) {
        __global const half *k0 = kt + (size_t)c * 16 * HEAD_DIM,
                            *k1 = k0 + (SUM_PANELS - 1) * 16 * HEAD_DIM;
#pragma nounroll
        for (int row0 = 0; row0 < ROWS; row0 += SUM_ROWS) {
            float16 acc[SUM_PANELS][SUM_ROWS];
#pragma unroll
            for (int r = 0; r < SUM_ROWS; r++)
                acc[0][r] = acc[SUM_PANELS - 1][r] = (float16)(0.0f);
            for (uint i = 0; i < HEAD_DIM; i++) {
                float16 v0 = vload_half16(i, k0), v1 = SUM_PANELS == 2 ? vload_half16(i, k1) : v0;
#pragma unroll
                for (int r = 0; r < SUM_ROWS; r++) {
                    float16 x = (float16)(q[i * ROWS + row0 + r]);
                    acc[0][r] = fma(x, v0, acc[0][r]);
                    if (SUM_PANELS == 2)
                        acc[SUM_PANELS - 1][r] = fma(x, v1, acc[SUM_PANELS - 1][r]);
                }
            }
#pragma unroll
            for (int panel = 0; panel < SUM_PANELS; panel++) {
                int16 key = lanes + (int)(key0 + (c + panel) * 16);
#pragma unroll
                for (int r = 0; r < SUM_ROWS; r++) {
                    int16 last = (int16)((int)(position + row0 + r));
                    float16 score =
                        select(acc[panel][r] * scale, (float16)(HIDDEN), key > last);
#if WINDOWS
                    if (window)
                        score = select(score, (float16)(HIDDEN), key <= last - (int)window);
#endif
                    vstore16(score, c + panel, p + (row0 + r) * KEYS);
                }
            }
        }
    }
}

/* Vectors j and, with two panels, j + 1 of value_tile's o, for SUM_ROWS rows from row0. */
#define DEFINE_VALUES(NAME, PANELS)                                                                \
    static void NAME(const float *p, const float *alpha, __global const half *v, uint n_keys,      \
                     int j, int row0, float16 *o)                                                  \
    {                                                                                              \
        float16 acc[PANELS][SUM_ROWS];                                                             \
        _Pragma("unroll") for (int panel = 0; panel < PANELS; panel++)                             \
            _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                   \
                acc[panel][r] = o[(j + panel) * ROWS + row0 + r] * alpha[row0 + r];                \
        for (uint i = 0; i < n_keys; i++) {                                                        \
            __global const half *row = v + (size_t)i * PADDED_DIM;                                 \
            float16 v0 = vload_half16(j, row),                                                     \
                    v1 = PANELS == 2 ? vload_half16(j + PANELS - 1, row) : v0;                     \
            _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                   \
            {                                                                                      \
                float16 x = (float16)(p[(row0 + r) * KEYS + i]);                                   \
                acc[0][r] = fma(x, v0, acc[0][r]);                                                 \
                if (PANELS == 2)                                                                   \
                    acc[PANELS - 1][r] = fma(x, v1, acc[PANELS - 1][r]);                           \
            }                                                                                      \
        }                                                                                          \
        _Pragma("unroll") for (int panel = 0; panel < PANELS; panel++)                             \
            _Pragma("unroll") for (int r = 0; r < SUM_ROWS; r++)                                   \
                o[(j + panel) * ROWS + row0 + r] = acc[panel][r];                                  \
    }
DEFINE_VALUES(values_1, 1)
#if SUM_PANELS == 2
DEFINE_VALUES(values_2, 2)
#endif

/* o [VECTORS][ROWS] = o * alpha + p . v over n_keys keys */
static void value_tile(const float *p, const float *alpha, __global const half *v, uint n_keys,
                       float16 *o)
{
#pragma nounroll
    for (int row0 = 0; row0 < ROWS; row0 += SUM_ROWS) {
        int j = 0;
#if SUM_PANELS == 2
        for (; j + 1 < VECTORS; j += 2)
            values_2(p, alpha, v, n_keys, j, row0, o);
#endif
#pragma nounroll
        for (; j < VECTORS; j++)
            values_1(p, alpha, v, n_keys, j, row0, o);
    }
}

/* Online softmax of one tile: p becomes 2^(p - m), l [ROWS] sums per lane, alpha the factor for
 * what was summed before. */
static void soften_tile(float *p, float *m, float16 *l, float *alpha)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float16 top = vload16(0, p + r * KEYS);
        for (int c = 1; c < KEYS / 16; c++)
            top = fmax(top, vload16(c, p + r * KEYS));
        float highest = fmax(m[r], max_lanes(top));
        float16 sum = (float16)(0.0f);
        for (int c = 0; c < KEYS / 16; c++) {
            float16 e = exp2(vload16(c, p + r * KEYS) - highest);
            vstore16(e, c, p + r * KEYS);
            sum += e;
        }
        alpha[r] = exp2(m[r] - highest);
        l[r] = l[r] * alpha[r] + sum;
        m[r] = highest;
    }
}

#ifndef GROUP_ITEMS /* else attention_groups.cl has it */
/*
 * Chunk rows at positions first .. first + n_rows - 1. Index 0: block of SUBS row tiles, index 1:
 * head. out, packed for the output projection: [tiles][N_HEADS * HEAD_DIM][ROWS]; log_sums
 * [N_HEADS][tiles][ROWS], or NULL: log2 of each softmax' denominator, of scores as score_tile has
 * them. window: 0, or how many tokens up to itself a token sees.
 */
__kernel void attend_chunk(uint index0, __global const float *q, uint tiles,
                           __global const half *kt, __global const half *v, uint panels, uint first,
                           uint n_rows, uint window, __global float *out, __global float *log_sums)
{
    size_t block = index0 + get_global_id(0), head = get_global_id(1), kv_head = head / GROUP;
    uint tile0 = block * SUBS, tile_end = min(tile0 + SUBS, (n_rows + ROWS - 1) / ROWS);
    uint n_keys = first + min(tile_end * ROWS, n_rows);
    __global const float *qh = q + (head * tiles) * HEAD_DIM * ROWS;
    __global const half *kh = kt + kv_head * panels * HEAD_DIM * 16;
    __global const half *vh = v + kv_head * panels * 16 * PADDED_DIM;
    float16 o[SUBS * VECTORS * ROWS], l[SUBS * ROWS];
    float m[SUBS * ROWS], p[ROWS * KEYS], alpha[ROWS];
    for (int i = 0; i < SUBS * VECTORS * ROWS; i++)
        o[i] = (float16)(0.0f);
    for (int i = 0; i < SUBS * ROWS; i++) {
        l[i] = (float16)(0.0f);
        m[i] = -INFINITY;
    }
    uint start = 0;
#if WINDOWS
    if (window && first + tile0 * ROWS >= window)
        start = (first + tile0 * ROWS - window + 1) / KEYS * KEYS;
#endif
    for (uint key0 = start; key0 < n_keys; key0 += KEYS) {
        for (uint tile = tile0; tile < tile_end; tile++) {
            uint sub = tile - tile0, position = first + tile * ROWS;
            if (key0 >= position + ROWS)
                continue;
            score_tile(qh + (size_t)tile * HEAD_DIM * ROWS, kh + (size_t)key0 * HEAD_DIM, key0,
                       position, window, p);
            soften_tile(p, m + sub * ROWS, l + sub * ROWS, alpha);
            value_tile(p, alpha, vh + (size_t)key0 * PADDED_DIM, min((uint)KEYS, n_keys - key0),
                       o + sub * VECTORS * ROWS);
        }
    }
    for (uint tile = tile0; tile < tile_end; tile++) {
        uint sub = tile - tile0;
        __global float *to = out + ((size_t)tile * N_HEADS + head) * HEAD_DIM * ROWS;
        for (int r = 0; r < ROWS; r++) {
            float sum = add_lanes(l[sub * ROWS + r]);
            if (log_sums)
                log_sums[(head * tiles + tile) * ROWS + r] = m[sub * ROWS + r] + log2(sum);
            for (int j = 0; j < VECTORS; j++) {
                float lanes[16];
                vstore16(o[(sub * VECTORS + j) * ROWS + r] / sum, 0, lanes);
                for (int c = 0; c < 16 && j * 16 + c < HEAD_DIM; c++)
                    to[(j * 16 + c) * ROWS + r] = lanes[c];
            }
        }
    }
}
#endif

/*
 * What keys are attended to: sums [N_HEADS][16 * panels] of each key's softmax weight over the
 * queries so far, to which a chunk's rows are added. Index 0: tile of KEYS keys, index 1: head.
 * Weights are added one row after the other, in the order of positions, so that a sum does not
 * depend on how the prompt is cut into chunks; keys of this chunk begin at 0. A weight that is no
 * number counts as 0.
 */
__kernel void weigh_chunk(uint index0, __global const float *q, uint tiles, __global const half *kt,
                          uint panels, uint first, uint n_rows, uint window,
                          __global const float *log_sums, __global float *sums)
{
    size_t head = get_global_id(1);
    uint key0 = (index0 + get_global_id(0)) * KEYS;
    __global const float *qh = q + (head * tiles) * HEAD_DIM * ROWS;
    __global const half *kh =
        kt + (head / GROUP) * panels * HEAD_DIM * 16 + (size_t)key0 * HEAD_DIM;
    __global float *to = sums + head * panels * 16 + key0;
    float p[ROWS * KEYS];
    float16 total[KEYS / 16];
    for (uint c = 0; c < KEYS / 16; c++) {
        int16 key =
            (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15) + (int)(key0 + c * 16);
        total[c] = select(vload16(c, to), (float16)(0.0f), key >= (int16)((int)first));
    }
    for (uint row = key0 < first ? 0 : (key0 - first) / ROWS * ROWS; row < n_rows; row += ROWS) {
        score_tile(qh + (size_t)row * HEAD_DIM, kh, key0, first + row, window, p);
        for (uint r = 0; r < min((uint)ROWS, n_rows - row); r++) {
            float16 log_sum = (float16)(log_sums[head * tiles * ROWS + row + r]);
            for (uint c = 0; c < KEYS / 16; c++)
                total[c] += fmax(exp2(vload16(c, p + r * KEYS) - log_sum), (float16)(0.0f));
        }
    }
    for (uint c = 0; c < KEYS / 16; c++)
        vstore16(total[c], c, to);
}

/* out [16 * panels]: the heads' sums, added in their order. Index 0: 16 keys. */
__kernel void weigh_heads(uint index0, __global const float *sums, uint panels, __global float *out)
{
    size_t panel = index0 + get_global_id(0);
    float16 total = vload16(panel, sums);
    for (uint head = 1; head < N_HEADS; head++)
        total += vload16(head * panels + panel, sums);
    vstore16(total, panel, out);
}

/*
 * Which keys of earlier tokens a chunk's queries attend to, in one KV head alone: keys [n][stride]
 * of several heads, of which one begins at `at`, packed as rotate_store packs them. n is a multiple
 * of KEYS: nothing is masked. Index 0: key.
 */
__kernel void pack_keys(uint index0, __global const ushort *keys, uint stride, uint at,
                        __global ushort *kt)
{
    size_t key = index0 + get_global_id(0);
    __global const ushort *from = keys + key * stride + at;
    __global ushort *to = kt + key / 16 * HEAD_DIM * 16 + key % 16;
    for (uint i = 0; i < HEAD_DIM; i++)
        to[(size_t)i * 16] = from[i];
}

/* Their softmax' denominators, log2: log_sums [GROUP][tiles][ROWS]. Index 0: row tile, index 1:
 * head of the KV head's group. */
__kernel void probe_rows(uint index0, __global const float *q, uint tiles, __global const half *kt,
                         uint n_keys, uint kv_head, __global float *log_sums)
{
    size_t tile = index0 + get_global_id(0), in_group = get_global_id(1);
    __global const float *qt =
        q + ((kv_head * GROUP + in_group) * tiles + tile) * HEAD_DIM * ROWS;
    float p[ROWS * KEYS], m[ROWS], alpha[ROWS];
    float16 l[ROWS];
    for (int r = 0; r < ROWS; r++) {
        l[r] = (float16)(0.0f);
        m[r] = -INFINITY;
    }
    for (uint key0 = 0; key0 < n_keys; key0 += KEYS) {
        score_tile(qt, kt + (size_t)key0 * HEAD_DIM, key0, n_keys, 0, p);
        soften_tile(p, m, l, alpha);
    }
    for (int r = 0; r < ROWS; r++)
        log_sums[(in_group * tiles + tile) * ROWS + r] = m[r] + log2(add_lanes(l[r]));
}

/* sums [n_keys] += each key's softmax weights, over the group's heads and the rows, in that order.
 * Index 0: tile of KEYS keys. A weight that is no number counts as 0. */
__kernel void probe_keys(uint index0, __global const float *q, uint tiles, __global const half *kt,
                         uint n_keys, uint n_rows, uint kv_head, __global const float *log_sums,
                         __global float *sums)
{
    uint key0 = (index0 + get_global_id(0)) * KEYS;
    __global const half *kh = kt + (size_t)key0 * HEAD_DIM;
    float p[ROWS * KEYS];
    float16 total[KEYS / 16];
    for (uint c = 0; c < KEYS / 16; c++)
        total[c] = vload16(c, sums + key0);
    for (uint in_group = 0; in_group < GROUP; in_group++)
        for (uint row = 0; row < n_rows; row += ROWS) {
            __global const float *qt =
                q + ((kv_head * GROUP + in_group) * tiles + row / ROWS) * HEAD_DIM * ROWS;
            score_tile(qt, kh, key0, n_keys, 0, p);
            for (uint r = 0; r < min((uint)ROWS, n_rows - row); r++) {
                float16 log_sum = (float16)(log_sums[in_group * tiles * ROWS + row + r]);
                for (uint c = 0; c < KEYS / 16; c++)
                    total[c] += fmax(exp2(vload16(c, p + r * KEYS) - log_sum), (float16)(0.0f));
            }
        }
    for (uint c = 0; c < KEYS / 16; c++)
        vstore16(total[c], c, sums + key0);
}
