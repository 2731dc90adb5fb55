/*
 * decode_groups.cl - the phases of a step (step.cl), a work group a task: for devices with local
 * memory, on which neighbouring work items read neighbouring words (GPUs). Each phase is a launch
 * of one of these kernels; group i has the phase's task i. LANES is 1 (shared.cl).
 *
 * Products: a group of PRODUCT_ITEMS items has a panel of 16 outputs. A slice, 16 items side by
 * side, reads 16 words side by side of the panel as pack.h lays it out; slice i takes the parts of
 * 32 values (of F32, F16, BF16: the values) i, i + SLICES, ... of the sum. The slices' sums are
 * added in local memory, in their order. A weight is read and unpacked once for AT_ONCE rows; for
 * what is left of the rows, once a row.
 * Attention: a group has a tile of a row's list and up to GROUP_HEADS heads of one KV head.
 * Every order of sums is fixed by shapes and the list's length: a row's bits do not depend on the
 * rows beside it, nor on when a group runs. Norms of rows are in `partial` from a phase that
 * prepares a product's input until the product is done.
 */
#define SLICES  (PRODUCT_ITEMS / 16)
#define SLICE   (get_local_id(0) / 16)
#define AT_ONCE 4
#define PRODUCT __kernel __attribute__((reqd_work_group_size(PRODUCT_ITEMS, 1, 1))) void

/* ---- uploads ---- */

KERNEL scatter_groups(STEP_PARAMETERS)
{
    struct step s = AS_STEP;
    uint upload = get_group_id(0);
    __global const uint *from = (__global const uint *)staged(&s, upload);
    __global uint *to = (__global uint *)slot_of_upload(&s, upload);
    for (uint i = ITEM; i < ENTRY / 2; i += GROUP_ITEMS)
        to[i] = from[i];
}

/* ---- attention ---- */

#define KEY_WORDS   (HEAD_DIM / 2)
#define KEY_STRIDE  (KEY_WORDS | 1) /* odd: keys side by side lie in different banks */
#define KEYS_STAGED (2048 / KEY_WORDS < DECODE_TILE ? 2048 / KEY_WORDS : DECODE_TILE)
#define HEAD_PARTS  ((GROUP + GROUP_HEADS - 1) / GROUP_HEADS)
/* Items that read a value, a word each, and how many values are read at a time. */
#define VALUE_ITEMS  (KEY_WORDS < GROUP_ITEMS ? KEY_WORDS : GROUP_ITEMS)
#define VALUE_SLICES (GROUP_ITEMS / VALUE_ITEMS)

/* Entries of a tile of a row's list, and the heads that attend to them: `heads` from `head` on.
 * entries [DECODE_TILE]: where they lie, so that reading one does not wait for the list. */
struct attended {
    const struct step *step;
    __global const half *__local *entries;
    uint row, n, kv_head, head, heads;
};

static void find_entries(const struct attended *a, __global const uint *items)
{
    for (uint i = ITEM; i < a->n; i += GROUP_ITEMS)
        a->entries[i] = entry_of_item(a->step, a->row, items[i]) + a->kv_head * HEAD_DIM;
    SYNC;
}

/* scores [heads][DECODE_TILE], -infinity from n on; keys [KEYS_STAGED][KEY_STRIDE] */
static void score_tile(const struct attended *a, __local uint *keys, __local float *scores)
{
    for (uint from = 0; from < a->n; from += KEYS_STAGED) {
        uint count = min((uint)KEYS_STAGED, a->n - from);
#pragma unroll 8
        for (uint j = ITEM; j < count * KEY_WORDS; j += GROUP_ITEMS)
            keys[j / KEY_WORDS * KEY_STRIDE + j % KEY_WORDS] =
                ((__global const uint *)a->entries[from + j / KEY_WORDS])[j % KEY_WORDS];
        SYNC;
        for (uint j = ITEM; j < count * a->heads; j += GROUP_ITEMS) {
            uint i = j % count, h = j / count;
            __local const uint *key = keys + i * KEY_STRIDE;
            __global const float *q = a->step->q + a->row * Q_STRIDE + (a->head + h) * HEAD_DIM;
            float score = 0.0f;
#pragma unroll 8
            for (uint d = 0; d < KEY_WORDS; d++) {
                float2 k = vload_half2(d, (__local const half *)key);
                score = fma(q[2 * d + 1], k.y, fma(q[2 * d], k.x, score));
            }
            scores[h * DECODE_TILE + from + i] = score * SCORE_SCALE;
        }
        SYNC;
    }
    for (uint i = a->n + ITEM; i < DECODE_TILE; i += GROUP_ITEMS)
        for (uint h = 0; h < a->heads; h++)
            scores[h * DECODE_TILE + i] = -INFINITY;
    SYNC;
}

/* scores become 2^(score - highest); the highest and their sum go to the partial results. Slice h
 * has head h. spread [2 * GROUP_ITEMS] */
static void soften(uint heads, __local float *scores, __local float *spread, __global float *to)
{
    bool mine = SLICE < heads;
    __local float *row = scores + SLICE * DECODE_TILE;
    float highest = -INFINITY, sum = 0.0f;
    for (uint i = LANE; mine && i < DECODE_TILE; i += 16)
        highest = fmax(highest, row[i]);
    spread[ITEM] = highest;
    SYNC;
    for (uint i = 0; i < 16; i++)
        highest = fmax(highest, spread[SLICE * 16 + i]);
    for (uint i = LANE; mine && i < DECODE_TILE; i += 16) {
        row[i] = exp2(row[i] - highest);
        sum += row[i];
    }
    spread[GROUP_ITEMS + ITEM] = sum;
    SYNC;
    if (mine && LANE == 0) {
        for (uint i = 1; i < 16; i++)
            sum += spread[GROUP_ITEMS + ITEM + i];
        to[SLICE * PARTIAL + PADDED_DIM] = highest;
        to[SLICE * PARTIAL + PADDED_DIM + 1] = sum;
    }
}

/* Weighted sums of the values, two dimensions an item. spread [2 * GROUP_ITEMS] */
static void sum_values(const struct attended *a, __local const float *p, __local float *spread,
                       __global float *to)
{
    uint slice = ITEM / VALUE_ITEMS;
    for (uint first = 0; first < KEY_WORDS; first += VALUE_ITEMS) {
        uint word = first + ITEM % VALUE_ITEMS;
        bool mine = slice < VALUE_SLICES && word < KEY_WORDS;
        float2 sums[GROUP_HEADS];
#pragma unroll
        for (uint h = 0; h < GROUP_HEADS; h++)
            sums[h] = (float2)(0.0f);
#pragma unroll 4
        for (uint i = slice; mine && i < a->n; i += VALUE_SLICES) {
            float2 v = vload_half2(word, a->entries[i] + N_KV_HEADS * HEAD_DIM);
#pragma unroll
            for (uint h = 0; h < GROUP_HEADS; h++)
                if (h < a->heads)
                    sums[h] = fma((float2)(p[h * DECODE_TILE + i]), v, sums[h]);
        }
#pragma unroll
        for (uint h = 0; h < GROUP_HEADS; h++) {
            SYNC;
            vstore2(sums[h], ITEM, spread);
            SYNC;
            if (!mine || slice > 0 || h >= a->heads)
                continue;
            float2 sum = sums[h];
            for (uint i = 1; i < VALUE_SLICES; i++)
                sum += vload2(i * VALUE_ITEMS + ITEM, spread);
            vstore2(sum, word, to + h * PARTIAL);
        }
    }
}

/* Partial attention over a tile of a row's list: partial [tiles][N_HEADS][PARTIAL], the values,
 * then the highest score and the sum. */
KERNEL attend_groups(STEP_PARAMETERS)
{
    __local uint staged_keys[KEYS_STAGED * KEY_STRIDE];
    __local float scores[GROUP_HEADS * DECODE_TILE], spread[2 * GROUP_ITEMS];
    __global const half *__local entries[DECODE_TILE];
    struct step s = AS_STEP;
    uint tile = get_group_id(0) / (N_KV_HEADS * HEAD_PARTS),
         part = get_group_id(0) % (N_KV_HEADS * HEAD_PARTS);
    uint r = row_of_tile(&s, tile), start = (tile - s.lists[r].y) * DECODE_TILE,
         in_group = part % HEAD_PARTS * GROUP_HEADS;
    struct attended a;
    a.step = &s;
    a.entries = entries;
    a.row = r;
    a.n = min((uint)DECODE_TILE, s.lists[r].x - start);
    a.kv_head = part / HEAD_PARTS;
    a.head = a.kv_head * GROUP + in_group;
    a.heads = min((uint)GROUP_HEADS, (uint)GROUP - in_group);
    __global float *to = s.partial + ((size_t)tile * N_HEADS + a.head) * PARTIAL;
    find_entries(&a, s.items + (size_t)r * s.item_stride + start);
    score_tile(&a, staged_keys, scores);
    soften(a.heads, scores, spread, to);
    sum_values(&a, scores, spread, to);
}

/* attended [N_HEADS][HEAD_DIM] of a row: the tiles of a head put together, in order. */
KERNEL combine_groups(STEP_PARAMETERS)
{
    struct step s = AS_STEP;
    uint r = get_group_id(0) / N_HEADS, own = get_group_id(0) % N_HEADS,
         tiles = (s.lists[r].x + DECODE_TILE - 1) / DECODE_TILE;
    __global const float *from = s.partial + ((size_t)s.lists[r].y * N_HEADS + own) * PARTIAL;
    float highest = -INFINITY;
    for (uint t = 0; t < tiles; t++)
        highest = fmax(highest, from[(size_t)t * N_HEADS * PARTIAL + PADDED_DIM]);
    for (uint d = ITEM; d < HEAD_DIM; d += GROUP_ITEMS) {
        float total = 0.0f, sum = 0.0f;
        for (uint t = 0; t < tiles; t++) {
            __global const float *p = from + (size_t)t * N_HEADS * PARTIAL;
            float weight = exp2(p[PADDED_DIM] - highest);
            total = fma(p[PADDED_DIM + 1], weight, total);
            sum = fma(weight, p[d], sum);
        }
        s.attended[r * Q_STRIDE + own * HEAD_DIM + d] = sum / total;
    }
}

/* ---- inputs of products ---- */

/* partial [n_rows][2]: a row's factor and shift (norm_result) before a product of k inputs. */
static void find_norm(const struct step *s, uint r, uint k, __local float *scratch)
{
    __global const float *x = s->x + r * X_STRIDE;
    float mean = 0.0f, square = 0.0f;
#if LAYER_NORM
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        mean += x[i];
    mean = group_sum(mean, GROUP_ITEMS, scratch) / (float)k;
#endif
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        square = fma(x[i] - mean, x[i] - mean, square);
    float factor = 1.0f / sqrt(group_sum(square, GROUP_ITEMS, scratch) / (float)k + s->eps);
    if (ITEM == 0) {
        s->partial[2 * r] = factor;
        s->partial[2 * r + 1] = mean * factor;
    }
}

/* Some blocks of a row of x, times g unless NULL, to q: as decode_product.cl's quantise, its bits.
 * 32 items have a block. largest, sums [GROUP_ITEMS] */
static void quantise(__global const float *x, size_t stride, __global const float *g, uint k,
                     __global uint *q, uint task, __local int *largest, __local int *sums)
{
    uint r = task / quant_tasks_of_row(k), first = task % quant_tasks_of_row(k) * QUANT_BLOCKS;
    uint end = min(first + QUANT_BLOCKS, k / 32), in_block = ITEM % 32;
    x += r * stride;
    q += (size_t)r * QUANT_STRIDE;
    for (; first < end; first += GROUP_ITEMS / 32) {
        uint block = first + ITEM / 32, i = block * 32 + in_block;
        float v = block >= end ? 0.0f : g ? x[i] * g[i] : x[i];
        largest[ITEM] = MAGNITUDE(int, v);
        for (uint n = 16; n > 0; n /= 2) {
            SYNC;
            if (in_block < n)
                largest[ITEM] = max(largest[ITEM], largest[ITEM + n]);
        }
        SYNC;
        float most = as_float(largest[ITEM - in_block]);
        int code = convert_int(rint(v * inverse_scale(most)));
        sums[ITEM] = code;
        for (uint n = 8; n > 0; n /= 2) { /* of each half of the block */
            SYNC;
            if (in_block % 16 < n)
                sums[ITEM] += sums[ITEM + n];
        }
        SYNC;
        if (block < end)
            ((__global char *)q)[i] = convert_char(code);
        if (block < end && in_block == 0)
            keep_fields(scale_of(most), sums[ITEM], sums[ITEM + 16], q + k / 4 + block * FIELDS, 1);
        SYNC;
    }
}

/* Before a product of normed inputs the rows' norms, one a group; then the input of quantised
 * weights. */
KERNEL prepare_groups(STEP_PARAMETERS)
{
    __local float scratch[GROUP_ITEMS];
    __local int largest[GROUP_ITEMS], sums[GROUP_ITEMS];
    struct step s = AS_STEP;
    bool of_x = phase != QUANT_OUTPUT && phase != QUANT_DOWN;
    uint task = get_group_id(0), norms = of_x ? n_rows : 0;
    struct weights w = phase == QUANT_OUTPUT    ? s.output
                       : phase == QUANT_GATE_UP ? s.gate_up
                       : phase == QUANT_DOWN    ? s.down
                       : phase == QUANT_QKV     ? s.qkv
                                                : s.head;
    if (task < norms) {
        find_norm(&s, task, w.k, scratch);
    } else {
        uint own = count_quant_tasks(&s, w);
        bool guesses = task - norms >= own; /* the query's input, then the guess' */
        __global const float *from = of_x ? s.x : phase == QUANT_OUTPUT ? s.attended : s.activated;
        __global const float *g = !of_x                    ? (__global const float *)0
                                  : guesses                ? s.guess_norm
                                  : phase == QUANT_GATE_UP ? s.ffn_norm
                                                           : s.next_norm;
        quantise(from,
                 of_x                    ? X_STRIDE
                 : phase == QUANT_OUTPUT ? Q_STRIDE
                                         : ACT_STRIDE,
                 g, guesses ? s.guesser.k : w.k, guesses ? quantised_guess(&s) : s.quantised,
                 task - norms - (guesses ? own : 0), largest, sums);
    }
}

/* ---- products ---- */

/* Rows of activations: x [n][stride], times g unless NULL; q: what quantise made of them. */
struct input {
    __global const float *x, *g;
    size_t stride;
    __global const uint *q;
};

#define FLOAT_PARTS(LOAD, TYPE)                                                                    \
    for (uint i = SLICE; i < k; i += SLICES) {                                                     \
        float w = LOAD(i, (__global const TYPE *)panel), g = in.g ? in.g[i] : 1.0f;                \
        _Pragma("unroll") for (int r = 0; r < rows; r++) y[r] =                                    \
            fma(in.x[r * in.stride + i] * g, w, y[r]);                                             \
    }                                                                                              \
    break;

/* This item's part of a panel's products with `rows` rows is added to y. */
#define DEFINE_SLICE(ROWS_)                                                                        \
    static void slice_##ROWS_(struct input in, uint type, __global const uchar *panel, uint k,     \
                              float *y)                                                            \
    {                                                                                              \
        const int rows = ROWS_;                                                                    \
        const uint first = SLICE, step = SLICES;                                                   \
        struct activations x = {in.q + 8 * first, 1, QUANT_STRIDE, in.q + k / 4 + first * FIELDS,  \
                                FIELDS,           1, QUANT_STRIDE};                                \
        switch (type) {                                                                            \
            CASE_FLOATS                                                                            \
            QUANT_CASES(ROWS_)                                                                     \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }
#if HAS(F32)
#define CASE_F32                                                                                   \
    case F32:                                                                                      \
        FLOAT_PARTS(LOAD_F32, float)
#else
#define CASE_F32
#endif
#if HAS(F16)
#define CASE_F16                                                                                   \
    case F16:                                                                                      \
        FLOAT_PARTS(LOAD_F16, half)
#else
#define CASE_F16
#endif
#if HAS(BF16)
#define CASE_BF16                                                                                  \
    case BF16:                                                                                     \
        FLOAT_PARTS(LOAD_BF16, ushort)
#else
#define CASE_BF16
#endif
#define CASE_FLOATS CASE_F32 CASE_F16 CASE_BF16
DEFINE_SLICE(4)
DEFINE_SLICE(1)

/* Of so many rows that are left, those that are next. */
static uint rows_at_once(uint left)
{
    return left >= AT_ONCE ? AT_ONCE : 1;
}

/* A panel times rows first .. first + n - 1: item (slice i, lane) gets that lane's output of row
 * first + i, the other slices get 0. sums [AT_ONCE * PRODUCT_ITEMS] may be used afterwards. */
static float group_product(struct input in, uint first, uint n, __global const uint *matrix, uint k,
                           uint panel, __local float *sums)
{
    struct run run = find_run(matrix, panel);
    float y[AT_ONCE], total = 0.0f;
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++)
        y[r] = 0.0f;
    in.x += first * in.stride;
    in.q += (size_t)first * QUANT_STRIDE;
    if (n == AT_ONCE)
        slice_4(in, run.type, panel_of(matrix, run, panel), k, y);
    else
        slice_1(in, run.type, panel_of(matrix, run, panel), k, y);
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++)
        sums[r * PRODUCT_ITEMS + ITEM] = y[r];
    SYNC;
    for (uint slice = 0; SLICE < n && slice < SLICES; slice++)
        total += sums[SLICE * PRODUCT_ITEMS + slice * 16 + LANE];
    SYNC;
    return total;
}

#define PRODUCT_SCRATCH __local float sums[AT_ONCE * PRODUCT_ITEMS]

/* x += a . w, or branch = a . w where a norm comes between */
PRODUCT add_groups(STEP_PARAMETERS)
{
    PRODUCT_SCRATCH;
    struct step s = AS_STEP;
    uint panel = get_group_id(0);
    bool ffn = phase == DOWN;
    struct weights w = ffn ? s.down : s.output;
    struct input in = {ffn ? s.activated : s.attended, NULL, ffn ? ACT_STRIDE : Q_STRIDE,
                       s.quantised};
    for (uint r = 0, n; r < n_rows; r += n) {
        n = rows_at_once(n_rows - r);
        float y = group_product(in, r, n, w.matrix, w.k, panel, sums);
        if (SLICE >= n)
            continue;
        y = add_bias(y, w, panel);
#if NORM_BRANCHES
        STORE_LANES(y, panel, s.branch + (r + SLICE) * X_STRIDE);
#else
        __global float *to = s.x + (r + SLICE) * X_STRIDE;
        STORE_LANES(LOAD_LANES(panel, to) + y, panel, to);
#endif
    }
}

/* A row's result of a product of normed inputs. */
static float after_norm(const struct step *s, uint r, float y, struct weights w, uint panel)
{
    return norm_result(s->partial[2 * r], s->partial[2 * r + 1], y, w, panel);
}

/* activated = activate(gate, up) of norm(x); the panels of gate, then as many of up; without a gate
 * all are up */
PRODUCT gate_up_groups(STEP_PARAMETERS)
{
    PRODUCT_SCRATCH;
    struct step s = AS_STEP;
    struct weights w = s.gate_up;
    uint panel = get_group_id(0), other = w.n_panels / 2 + panel;
    struct input in = {s.x, s.ffn_norm, X_STRIDE, s.quantised};
    for (uint r = 0, n; r < n_rows; r += n) {
        n = rows_at_once(n_rows - r);
        float gate = group_product(in, r, n, w.matrix, w.k, panel, sums);
        float up = group_product(in, r, n, w.matrix, w.k, other, sums);
        if (SLICE >= n)
            continue;
        gate = after_norm(&s, r + SLICE, gate, w, panel);
        up = after_norm(&s, r + SLICE, up, w, other);
        __global float *to = s.activated + (r + SLICE) * ACT_STRIDE;
#if GATED
        STORE_LANES(activate(gate, up), panel, to);
#else
        STORE_LANES(activate(gate, gate), panel, to);
        STORE_LANES(activate(up, up), other, to);
#endif
    }
}

/* The next layer's panels, then those of the guess. */
PRODUCT project_groups(STEP_PARAMETERS)
{
    PRODUCT_SCRATCH;
    struct step s = AS_STEP;
    uint task = get_group_id(0);
    bool guesses = task >= s.qkv.n_panels;
    uint panel = guesses ? task - s.qkv.n_panels : task,
         dims = guesses ? N_HEADS * HEAD_DIM : QKV_DIMS, row = panel * 16 + LANE;
    struct weights w = guesses ? s.guesser : s.qkv;
    struct heads heads = guesses ? s.guess_heads : s.next_heads;
    struct input in = {s.x, guesses ? s.guess_norm : s.next_norm, X_STRIDE,
                       guesses ? quantised_guess(&s) : s.quantised};
    for (uint r = 0, n; r < n_rows; r += n) {
        n = rows_at_once(n_rows - r);
        float y = group_product(in, r, n, w.matrix, w.k, panel, sums);
        if (SLICE < n)
            y = after_norm(&s, r + SLICE, y, w, panel);
        sums[ITEM] = y;
        SYNC;
        if (SLICE < n && LANE % 2 == 0 && row < dims)
            keep_pair(&s, r + SLICE, row, y, sums[ITEM + 1],
                      (guesses ? s.guess : s.q) + (r + SLICE) * Q_STRIDE, &heads);
        SYNC;
    }
}

PRODUCT logits_groups(STEP_PARAMETERS)
{
    PRODUCT_SCRATCH;
    struct step s = AS_STEP;
    uint panel = get_group_id(0);
    struct input in = {s.x, s.next_norm, X_STRIDE, s.quantised};
    for (uint r = 0, n; r < n_rows; r += n) {
        n = rows_at_once(n_rows - r);
        float y = group_product(in, r, n, s.head.matrix, s.head.k, panel, sums);
        if (SLICE < n)
            STORE_LANES(after_norm(&s, r + SLICE, y, s.head, panel), panel,
                        s.logits + (r + SLICE) * LOGITS_STRIDE);
    }
}

/* ---- what some architectures norm besides ---- */

/* x += norm(branch), a row */
KERNEL join_groups(STEP_PARAMETERS)
{
    __local float scratch[GROUP_ITEMS];
    struct step s = AS_STEP;
    uint r = get_group_id(0), k = s.gate_up.k;
    __global const float *from = s.branch + r * X_STRIDE;
    __global const float *g = phase == JOIN_FFN ? s.post_ffn_norm : s.post_attn_norm;
    float square = 0.0f;
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        square = fma(from[i], from[i], square);
    float factor = 1.0f / sqrt(group_sum(square, GROUP_ITEMS, scratch) / (float)k + s.eps);
    for (uint i = ITEM; i < k; i += GROUP_ITEMS)
        s.x[r * X_STRIDE + i] += from[i] * factor * g[i];
}

/* A head of q, of K or of the guess. */
KERNEL heads_groups(STEP_PARAMETERS)
{
    __local float scratch[GROUP_ITEMS];
    struct step s = AS_STEP;
    struct head_place h = find_head(&s, get_group_id(0));
    float square = 0.0f;
    for (uint i = ITEM; i < HEAD_DIM; i += GROUP_ITEMS)
        square = fma(h.from[i], h.from[i], square);
    float factor = 1.0f / sqrt(group_sum(square, GROUP_ITEMS, scratch) / (float)HEAD_DIM + s.eps);
    barrier(CLK_GLOBAL_MEM_FENCE); /* all have read what is overwritten now */
    for (uint i = 2 * ITEM; i < HEAD_DIM; i += 2 * GROUP_ITEMS)
        finish_pair(h, factor, i);
}
