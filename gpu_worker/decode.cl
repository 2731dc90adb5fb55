/*
 * decode.cl - the phases of a step (step.cl), a work item a task: for devices on which a work item
 * has a register tile and a launch costs as much as a phase. The kernel runs in two ways:
 *     decode_step     one phase; the work item's index is its task
 *     decode_layers   all phases of some layers in one launch, for devices where a launch costs as
 *                     much as a phase: every work item takes tasks off the phase's counter and,
 *                     when none is left, waits until all of them are done. It waits only for tasks
 *                     that running work items have taken, so one item alone gets through as well.
 * Which item computes a task changes nothing, nor does the way it is run. Weights are of any tensor
 * type (product.cl, which comes before this); before a product with quantised weights a phase of
 * its own makes its input int8, times the norm's weights. x and norm weights are padded with zeros
 * to whole vectors. Sums of a product with F32, F16 or BF16 weights run in four interleaved chains
 * of fixed order; the norm's factor is linear and is applied to the result. A task of a product
 * takes its panel times all rows, so that a step reads the weights once; each row has its own
 * chains, whose order does not depend on how many rows there are, nor on which one it is.
 */
#define WHOLE (HEAD_DIM / 16)
/* Of an attention task: KV heads (so that their keys are 512 bytes or more side by side), and value
 * vectors that are summed at a time for all heads of their groups (so that the sums stay in
 * registers). */
#define BLOCK_HEADS                                                                                \
    (HEAD_DIM >= 256 ? 1 : (256 / HEAD_DIM < N_KV_HEADS ? 256 / HEAD_DIM : N_KV_HEADS))
#define HEAD_BLOCKS ((N_KV_HEADS + BLOCK_HEADS - 1) / BLOCK_HEADS)
#define AT_ONCE     (GROUP >= 16 ? 1 : 16 / GROUP)

#if __has_builtin(__builtin_nontemporal_store)
#define STREAM(value, p) __builtin_nontemporal_store((value), (p))
#else
#define STREAM(value, p) (*(p) = (value))
#endif
/* Entries that are on their way to the cache while one is scored: one more than have 6 KiB of keys
 * and values of the task's heads (docs/decisions/registers.md). */
#define AHEAD (6144 / (BLOCK_HEADS * HEAD_DIM * 4) + 1)

/* What the norm before a product makes of its result, for each row (norm_result). */
struct norms {
    float factors[MAX_ROWS];
#if LAYER_NORM
    float shifts[MAX_ROWS];
#endif
};

/* ---- products ---- */

/* Of every row of x before a product of k inputs. */
static void find_norms(const struct step *s, uint k, struct norms *out)
{
    for (uint r = 0; r < s->n_rows; r++) {
        __global const float *x = s->x + r * X_STRIDE;
#if LAYER_NORM
        float16 sum = (float16)(0.0f);
        for (uint i = 0; i < (k + 15) / 16; i++)
            sum += vload16(i, x);
        float mean = add_lanes(sum) / (float)k, square = 0.0f;
        for (uint i = 0; i < k; i++)
            square = fma(x[i] - mean, x[i] - mean, square);
        out->factors[r] = 1.0f / sqrt(square / (float)k + s->eps);
        out->shifts[r] = mean * out->factors[r];
#else
        out->factors[r] = rms_factor(x, k, s->eps);
#endif
    }
}

static float16 after_norm(const struct norms *n, uint r, float16 y, struct weights w, uint panel)
{
#if LAYER_NORM
    return norm_result(n->factors[r], n->shifts[r], y, w, panel);
#else
    return norm_result(n->factors[r], 0.0f, y, w, panel);
#endif
}

/* The query's input, then the guess'. */
static void quantise_qkv(const struct step *s, uint task)
{
    uint own = count_quant_tasks(s, s->qkv);
    if (task < own)
        quantise(s->x, X_STRIDE, s->next_norm, s->qkv.k, s->quantised, task);
    else
        quantise(s->x, X_STRIDE, s->guess_norm, s->guesser.k, quantised_guess(s), task - own);
}

/* y [n_rows]: a panel of w times every row of x and the norm's weights g; the norm's factor is
 * still to come. */
static void product_with_norm(const struct step *s, __global const float *g, __global const uint *q,
                              struct weights w, uint panel, float16 *y)
{
    product_scaled(s->n_rows, s->x, X_STRIDE, g, q, w.matrix, w.k, panel, y);
}

/* x += a . w, or branch = a . w where a norm comes between */
static void add_product(const struct step *s, __global const float *a, size_t stride,
                        struct weights w, uint panel)
{
    float16 y[MAX_ROWS];
    product(s->n_rows, a, stride, s->quantised, w.matrix, w.k, panel, y);
    for (uint r = 0; r < s->n_rows; r++) {
#if NORM_BRANCHES
        vstore16(add_bias(y[r], w, panel), panel, s->branch + r * X_STRIDE);
#else
        __global float *x = s->x + r * X_STRIDE;
        vstore16(vload16(panel, x) + add_bias(y[r], w, panel), panel, x);
#endif
    }
}

/* x += norm(branch), a row; both are padded. */
static void join(const struct step *s, __global const float *g, uint r, uint k)
{
    __global const float *branch = s->branch + r * X_STRIDE;
    __global float *x = s->x + r * X_STRIDE;
    float factor = rms_factor(branch, k, s->eps);
    for (uint i = 0; i < (k + 15) / 16; i++)
        vstore16(vload16(i, x) + vload16(i, branch) * factor * vload16(i, g), i, x);
}

/* activated = activate(gate, up) of norm(x); the panels of gate, then as many of up; without a gate
 * all are up */
static void gate_up(const struct step *s, uint panel, const struct norms *norms)
{
    float16 gates[MAX_ROWS], ups[MAX_ROWS];
    product_with_norm(s, s->ffn_norm, s->quantised, s->gate_up, panel, gates);
    product_with_norm(s, s->ffn_norm, s->quantised, s->gate_up, s->gate_up.n_panels / 2 + panel,
                      ups);
    for (uint r = 0; r < s->n_rows; r++) {
        uint other = s->gate_up.n_panels / 2 + panel;
        float16 gate = after_norm(norms, r, gates[r], s->gate_up, panel);
        float16 up = after_norm(norms, r, ups[r], s->gate_up, other);
        __global float *to = s->activated + r * ACT_STRIDE;
#if GATED
        vstore16(activate(gate, up), panel, to);
#else
        vstore16(activate(gate, gate), panel, to);
        vstore16(activate(up, up), other, to);
#endif
    }
}

/* A row's 16 outputs of the projections; nothing is kept from dims on. */
static void keep_projection(const struct step *s, uint r, uint panel, float16 y, __global float *q,
                            const struct heads *heads, uint dims)
{
    float lanes[16];
    vstore16(y, 0, lanes);
    for (uint lane = 0; lane < 16 && panel * 16 + lane < dims; lane += 2)
        keep_pair(s, r, panel * 16 + lane, lanes[lane], lanes[lane + 1], q, heads);
}

static void finish_head(const struct step *s, uint task)
{
#if NORM_HEADS
    struct head_place h = find_head(s, task);
    float sum = 0.0f;
    for (uint i = 0; i < HEAD_DIM; i++)
        sum = fma(h.from[i], h.from[i], sum);
    float factor = 1.0f / sqrt(sum / (float)HEAD_DIM + s->eps);
    for (uint i = 0; i < HEAD_DIM; i += 2)
        finish_pair(h, factor, i);
#endif
}

/* The next layer's panels, then those of the guess. */
static void project(const struct step *s, uint task, const struct norms *norms)
{
    float16 y[MAX_ROWS];
    bool guess = task >= s->qkv.n_panels;
    uint panel = guess ? task - s->qkv.n_panels : task,
         dims = guess ? N_HEADS * HEAD_DIM : QKV_DIMS;
    __global float *q = guess ? s->guess : s->q;
    struct weights w = guess ? s->guesser : s->qkv;
    product_with_norm(s, guess ? s->guess_norm : s->next_norm,
                      guess ? quantised_guess(s) : s->quantised, w, panel, y);
    for (uint r = 0; r < s->n_rows; r++)
        keep_projection(s, r, panel, after_norm(norms, r, y[r], w, panel), q + r * Q_STRIDE,
                        guess ? &s->guess_heads : &s->next_heads, dims);
}

static void give_logits(const struct step *s, uint panel, const struct norms *norms)
{
    float16 y[MAX_ROWS];
    product_with_norm(s, s->next_norm, s->quantised, s->head, panel, y);
    for (uint r = 0; r < s->n_rows; r++)
        vstore16(after_norm(norms, r, y[r], s->head, panel), panel, s->logits + r * LOGITS_STRIDE);
}

/* ---- attention ---- */

/* slots [uploads[i][1]] = staging [uploads[i][0]], unless the attention does that */
static void scatter(const struct step *s, uint upload)
{
    if (s->uploads[2 * upload] & ATTENDED)
        return;
    __global const ushort *from = (__global const ushort *)staged(s, upload);
    __global ushort *to = (__global ushort *)slot_of_upload(s, upload);
    uint i = 0;
    for (; i + 16 <= ENTRY; i += 16)
        vstore16(vload16(0, from + i), 0, to + i);
    for (; i < ENTRY; i++)
        to[i] = from[i];
}

static void prefetch_heads(__global const half *entry, uint kv0, uint heads)
{
    __global const half *k = entry + kv0 * HEAD_DIM, *v = k + N_KV_HEADS * HEAD_DIM;
    for (uint i = 0; i < heads * HEAD_DIM; i += 32) {
        PREFETCH_LEVEL2(k + i);
        PREFETCH_LEVEL2(v + i);
    }
}

/* Scores of n entries with all heads of `heads` KV heads from kv0, times log2(e) / sqrt(HEAD_DIM):
 * scores [heads * GROUP][DECODE_TILE], -infinity from n on. A key is loaded once for its group. */
static void score_entries(__global const float *row_q, __global const half *const *entries, uint n,
                          uint kv0, uint heads, float *scores)
{
    for (uint i = n; i < DECODE_TILE; i++)
        for (uint h = 0; h < heads * GROUP; h++)
            scores[h * DECODE_TILE + i] = -INFINITY;
    for (uint i = 0; i < min(n, (uint)AHEAD); i++)
        prefetch_heads(entries[i], kv0, heads);
    for (uint i = 0; i < n; i++) {
        if (i + AHEAD < n)
            prefetch_heads(entries[i + AHEAD], kv0, heads);
        for (uint kv = 0; kv < heads; kv++) {
            __global const half *key = entries[i] + (kv0 + kv) * HEAD_DIM;
            float16 k[VECTORS];
#pragma unroll
            for (int j = 0; j < WHOLE; j++)
                k[j] = vload_half16(j, key);
#pragma unroll
            for (uint g = 0; g < GROUP; g++) {
                __global const float *q = row_q + ((kv0 + kv) * GROUP + g) * HEAD_DIM;
                float16 sum = (float16)(0.0f);
#pragma unroll
                for (int j = 0; j < WHOLE; j++)
                    sum = fma(vload16(j, q), k[j], sum);
                float score = add_lanes(sum);
                for (int j = WHOLE * 16; j < HEAD_DIM; j++)
                    score = fma(q[j], vload_half(j, key), score);
                scores[(kv * GROUP + g) * DECODE_TILE + i] = score * SCORE_SCALE;
            }
        }
    }
}

/* scores become 2^(score - highest); the highest and their sum go to the partial result. */
static void soften(float *scores, __global float *to)
{
    float16 high = vload16(0, scores), sum = (float16)(0.0f);
    for (uint v = 1; v < DECODE_TILE / 16; v++)
        high = fmax(high, vload16(v, scores));
    float highest = max_lanes(high);
    for (uint v = 0; v < DECODE_TILE / 16; v++) {
        float16 p = exp2(vload16(v, scores) - highest);
        sum += p;
        vstore16(p, v, scores);
    }
    to[PADDED_DIM] = highest;
    to[PADDED_DIM + 1] = add_lanes(sum);
}

/* Weighted sums of the values of `heads` KV heads, from kv0, for all heads of their groups: each
 * value is loaded once, and of an entry as many vectors side by side as there are registers for
 * sums. heads: a constant, for the compiler. to: the partial results of these heads. */
static inline void sum_values(__global const half *const *entries, uint n, uint kv0, uint heads,
                              const float *p, __global float *to)
{
    /* a head's last vector may run into what follows it; those lanes are dropped later */
    for (uint first = 0; first < heads * VECTORS; first += AT_ONCE) {
        float16 o[GROUP * AT_ONCE];
#pragma unroll
        for (int j = 0; j < GROUP * AT_ONCE; j++)
            o[j] = (float16)(0.0f);
        for (uint i = 0; i < n; i++) {
            __global const half *values = entries[i] + (N_KV_HEADS + kv0) * HEAD_DIM;
#pragma unroll
            for (uint j = 0; j < AT_ONCE; j++) {
                uint kv = (first + j) / VECTORS;
                if (kv >= heads)
                    break;
                float16 v = vload_half16((first + j) % VECTORS, values + kv * HEAD_DIM);
#pragma unroll
                for (uint g = 0; g < GROUP; g++)
                    o[g * AT_ONCE + j] = fma((float16)(p[(kv * GROUP + g) * DECODE_TILE + i]), v,
                                             o[g * AT_ONCE + j]);
            }
        }
#pragma unroll
        for (uint g = 0; g < GROUP; g++)
            for (uint j = 0; j < AT_ONCE && (first + j) / VECTORS < heads; j++)
                vstore16(o[g * AT_ONCE + j], (first + j) % VECTORS,
                         to + ((first + j) / VECTORS * GROUP + g) * PARTIAL);
    }
}

/* The task's heads of an entry that came from staging: to its slot, past the caches, which it would
 * not stay in. */
static void keep_heads(const struct step *s, __global const half *entry, uint upload, uint kv0,
                       uint heads)
{
    __global half *slot = slot_of_upload(s, upload);
    for (uint part = 0; part < 2; part++) {
        size_t at = (part * N_KV_HEADS + kv0) * HEAD_DIM;
        __global const ushort16 *from = (__global const ushort16 *)(entry + at);
        __global ushort16 *to = (__global ushort16 *)(slot + at);
        for (uint i = 0; i < heads * WHOLE; i++)
            STREAM(from[i], to + i);
    }
}

/* Partial attention over a tile of a row's list: partial [tiles][N_HEADS][PARTIAL], the values,
 * then the highest score and the sum. */
static void attend(const struct step *s, uint task)
{
    uint tile = task / HEAD_BLOCKS, kv0 = task % HEAD_BLOCKS * BLOCK_HEADS;
    uint r = row_of_tile(s, tile);
    uint start = (tile - s->lists[r].y) * DECODE_TILE,
         n = min((uint)DECODE_TILE, s->lists[r].x - start);
    uint heads = min((uint)BLOCK_HEADS, (uint)N_KV_HEADS - kv0);
    __global const uint *items = s->items + (size_t)r * s->item_stride + start;
    __global const half *entries[DECODE_TILE];
    float scores[BLOCK_HEADS * GROUP * DECODE_TILE];
    for (uint i = 0; i < n; i++)
        entries[i] = entry_of_item(s, r, items[i]);
    score_entries(s->q + r * Q_STRIDE, entries, n, kv0, heads, scores);
    __global float *to = s->partial + ((size_t)tile * N_HEADS + kv0 * GROUP) * PARTIAL;
    for (uint h = 0; h < heads * GROUP; h++)
        soften(scores + h * DECODE_TILE, to + h * PARTIAL);
    if (heads == BLOCK_HEADS)
        sum_values(entries, n, kv0, BLOCK_HEADS, scores, to);
    else
        for (uint kv = 0; kv < heads; kv++)
            sum_values(entries, n, kv0 + kv, 1, scores + kv * GROUP * DECODE_TILE,
                       to + kv * GROUP * PARTIAL);
    for (uint i = 0; i < n; i++)
        if (items[i] & STAGED && items[i] != FRESH)
            keep_heads(s, entries[i], items[i] & ~STAGED, kv0, heads);
}

/* attended [N_HEADS][HEAD_DIM] of a row: the tiles of a head put together, in order. */
static void combine(const struct step *s, uint task)
{
    uint r = task / N_HEADS, head = task % N_HEADS,
         tiles = (s->lists[r].x + DECODE_TILE - 1) / DECODE_TILE;
    __global const float *partial = s->partial + (size_t)s->lists[r].y * N_HEADS * PARTIAL;
    __global float *attended = s->attended + r * Q_STRIDE;
    float highest = -INFINITY, total = 0.0f;
    float16 o[VECTORS];
    for (uint t = 0; t < tiles; t++)
        highest = fmax(highest, partial[((size_t)t * N_HEADS + head) * PARTIAL + PADDED_DIM]);
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        o[j] = (float16)(0.0f);
    for (uint t = 0; t < tiles; t++) {
        __global const float *from = partial + ((size_t)t * N_HEADS + head) * PARTIAL;
        float weight = exp2(from[PADDED_DIM] - highest);
        total = fma(from[PADDED_DIM + 1], weight, total);
#pragma unroll
        for (int j = 0; j < VECTORS; j++)
            o[j] = fma((float16)(weight), vload16(j, from), o[j]);
    }
    for (int j = 0; j < VECTORS; j++) {
        float lanes[16];
        vstore16(o[j] / total, 0, lanes);
        for (int c = 0; c < 16 && j * 16 + c < HEAD_DIM; c++)
            attended[head * HEAD_DIM + j * 16 + c] = lanes[c];
    }
}

/* ---- phases ---- */

static uint count_tasks(const struct step *s, uint phase)
{
    switch (phase) {
    case SCATTER: return s->n_uploads;
    case ATTEND: return s->n_tiles * HEAD_BLOCKS;
    case COMBINE: return s->n_rows * N_HEADS;
    case QUANT_OUTPUT: return count_quant_tasks(s, s->output);
    case OUTPUT: return s->output.n_panels;
    case JOIN_ATTENTION:
    case JOIN_FFN: return NORM_BRANCHES ? s->n_rows : 0;
    case QUANT_GATE_UP: return count_quant_tasks(s, s->gate_up);
    case GATE_UP: return s->gate_up.n_panels / 2;
    case QUANT_DOWN: return count_quant_tasks(s, s->down);
    case DOWN: return s->down.n_panels;
    case QUANT_QKV: return count_quant_tasks(s, s->qkv) + count_quant_tasks(s, s->guesser);
    case QUANT_LOGITS: return count_quant_tasks(s, s->head);
    case QKV: return s->qkv.n_panels + s->guesser.n_panels;
    case HEADS: return NORM_HEADS && s->qkv.n_panels ? s->n_rows * HEADS_OF_ROW(s) : 0;
    default: return s->head.n_panels;
    }
}

/* The norm before the phase's products. */
static void phase_norms(const struct step *s, uint phase, struct norms *norms)
{
    if (phase == GATE_UP || phase == QKV || phase == LOGITS)
        find_norms(s, phase == GATE_UP ? s->gate_up.k : phase == QKV ? s->qkv.k : s->head.k, norms);
}

static void run_task(const struct step *s, uint phase, uint task, const struct norms *norms)
{
    switch (phase) {
    case SCATTER: scatter(s, task); break;
    case ATTEND: attend(s, task); break;
    case COMBINE: combine(s, task); break;
    case QUANT_OUTPUT:
        quantise(s->attended, Q_STRIDE, NULL, s->output.k, s->quantised, task);
        break;
    case OUTPUT: add_product(s, s->attended, Q_STRIDE, s->output, task); break;
    case JOIN_ATTENTION: join(s, s->post_attn_norm, task, s->gate_up.k); break;
    case QUANT_GATE_UP:
        quantise(s->x, X_STRIDE, s->ffn_norm, s->gate_up.k, s->quantised, task);
        break;
    case GATE_UP: gate_up(s, task, norms); break;
    case QUANT_DOWN: quantise(s->activated, ACT_STRIDE, NULL, s->down.k, s->quantised, task); break;
    case DOWN: add_product(s, s->activated, ACT_STRIDE, s->down, task); break;
    case JOIN_FFN: join(s, s->post_ffn_norm, task, s->gate_up.k); break;
    case QUANT_QKV: quantise_qkv(s, task); break;
    case QKV: project(s, task, norms); break;
    case HEADS: finish_head(s, task); break;
    case QUANT_LOGITS: quantise(s->x, X_STRIDE, s->next_norm, s->head.k, s->quantised, task); break;
    default: give_logits(s, task, norms);
    }
}

/*
 * counters [16 words each]: of each phase the tasks taken and the tasks done, in all layers of a
 * launch together, then the work items that have left; zero before a launch and, because the last
 * to leave clears them, after it. PoCL's atomics order everything around them; the plain reads in
 * between only watch.
 */
#define TAKEN(phase) (counters + 32 * (phase))
#define DONE(phase)  (counters + 32 * (phase) + 16)
#define LEFT         (counters + 32 * (LOGITS + 1))
#ifndef LOOKS
#define LOOKS 64u /* for each weight of a row: some 30 ns, while a task reads 16 rows */
#endif

/* Tasks in a row: weights are read fastest in long stretches. Fewer towards the end, so that nobody
 * waits long for the last. False when none is left. */
static bool take_tasks(__global volatile uint *taken, uint n, uint *first, uint *end)
{
    uint seen = *taken;
    while (seen < n) {
        uint count = clamp((n - seen) / (uint)(2 * get_num_groups(0)), 1u, 64u);
        uint found = atomic_cmpxchg(taken, seen, seen + count);
        if (found == seen) {
            *first = seen;
            *end = seen + count;
            return true;
        }
        seen = found;
    }
    return false;
}

/* Until all n tasks of a phase are done. False: nothing has been done for so many looks that the
 * thread of the work item that is at the last one can hardly be running, nor has another left in
 * that time: this one has, and is counted. */
static bool await_phase(__global volatile uint *done, uint n, __global volatile uint *left,
                        uint most)
{
    uint seen = *done, gone = *left;
    for (uint looks = 0; seen < n; looks++) {
        uint now = *done;
        if (now == seen && looks < most)
            continue;
        if (now == seen && atomic_cmpxchg(left, gone, gone + 1) == gone)
            return false;
        seen = now;
        gone = *left;
        looks = 0;
    }
    return true;
}

/* The phases of a layer from `first` on; before [LOGITS + 1]: tasks of the layers before it in this
 * launch. False: this work item has left. What it waited for is done by one that is not waiting,
 * so one is always there for the rest; the CPU that is given back may be the one that is lacking.
 */
static bool run_fused(const struct step *s, uint first, uint *before,
                      __global volatile uint *counters)
{
    struct norms norms;
    uint most = LOOKS * (s->down.k + 4096u);
    for (uint phase = first; phase <= LOGITS; phase++) {
        uint n = count_tasks(s, phase), start = before[phase];
        if (n == 0)
            continue;
        before[phase] += n;
        phase_norms(s, phase, &norms);
        uint task, end;
        while (take_tasks(TAKEN(phase), start + n, &task, &end)) {
            for (uint t = task; t < end; t++)
                run_task(s, phase, t - start, &norms);
            atomic_add(DONE(phase), end - task);
        }
        if (!await_phase(DONE(phase), start + n, LEFT, most))
            return false;
        atomic_add(DONE(phase), 0);
    }
    return true;
}

static void leave(__global volatile uint *counters)
{
    if (atomic_inc(LEFT) + 1 == get_num_groups(0)) {
        for (uint phase = 0; phase <= LOGITS; phase++)
            *TAKEN(phase) = *DONE(phase) = 0;
        *LEFT = 0;
    }
}

__kernel void decode_step(STEP_PARAMETERS)
{
    struct step s = AS_STEP;
    struct norms norms;
    phase_norms(&s, phase, &norms);
    run_task(&s, phase, get_global_id(0), &norms);
}

/* ---- layers in one launch ---- */

/* Where a layer's weights and slots lie, and their shapes: on a device that works in the host's
 * memory addresses stay what they are. As engine_internal.h's struct layer_place. */
struct matrix_place {
    ulong matrix, bias;
    uint n_panels, k, quantised, reserved;
};
struct layer_place {
    struct matrix_place qkv, output, gate_up, down;
    ulong attn_norm, ffn_norm, post_attn_norm, post_ffn_norm, q_norm, k_norm, slots;
    uint turn, rotated;
};

/* The addresses of a layer: what only the device knows. */
__kernel void note_layer(__global struct layer_place *places, uint layer, __global const uint *qkv,
                         __global const float *qkv_bias, __global const uint *output,
                         __global const float *output_bias, __global const uint *gate_up,
                         __global const float *gate_up_bias, __global const uint *down,
                         __global const float *down_bias, __global const float *attn_norm,
                         __global const float *ffn_norm, __global const float *post_attn_norm,
                         __global const float *post_ffn_norm, __global const float *q_norm,
                         __global const float *k_norm, __global half *slots)
{
    __global struct layer_place *p = &places[layer];
    p->qkv.matrix = (ulong)qkv;
    p->qkv.bias = (ulong)qkv_bias;
    p->output.matrix = (ulong)output;
    p->output.bias = (ulong)output_bias;
    p->gate_up.matrix = (ulong)gate_up;
    p->gate_up.bias = (ulong)gate_up_bias;
    p->down.matrix = (ulong)down;
    p->down.bias = (ulong)down_bias;
    p->attn_norm = (ulong)attn_norm;
    p->ffn_norm = (ulong)ffn_norm;
    p->post_attn_norm = (ulong)post_attn_norm;
    p->post_ffn_norm = (ulong)post_ffn_norm;
    p->q_norm = (ulong)q_norm;
    p->k_norm = (ulong)k_norm;
    p->slots = (ulong)slots;
}

static struct weights weights_at(__global const struct matrix_place *m, uint n_panels)
{
    struct weights w = {(__global const uint *)m->matrix,
                        (__global const float *)m->bias,
                        n_panels,
                        m->k,
                        m->quantised,
                        m->n_panels};
    return w;
}

static struct heads heads_at(__global const struct layer_place *p, __global const float *turn)
{
    struct heads h = {(__global const float *)p->q_norm, (__global const float *)p->k_norm,
                      turn + p->turn, p->rotated};
    return h;
}

/* The projections of layer `stage` come next, or with n_layers the logits: what its step is made
 * of. places [n_layers + 1]: the last has the output norm and, as its output, the matrix of the
 * logits. */
static void open_stage(struct step *s, __global const struct layer_place *places, uint stage,
                       uint n_layers, uint guess_from, __global const float *turn)
{
    __global const struct layer_place *own = &places[stage ? stage - 1 : 0], *next = &places[stage];
    bool last = stage == n_layers,
         guesses = guess_from && stage + 1 >= guess_from && stage + 1 < n_layers;
    __global const struct layer_place *guess = guesses ? &places[stage + 1] : own;
    s->slots = (__global half *)own->slots;
    s->ffn_norm = (__global const float *)own->ffn_norm;
    s->post_attn_norm = (__global const float *)own->post_attn_norm;
    s->post_ffn_norm = (__global const float *)own->post_ffn_norm;
    s->next_norm = (__global const float *)next->attn_norm;
    s->guess_norm = (__global const float *)guess->attn_norm;
    s->output = weights_at(&own->output, own->output.n_panels);
    s->gate_up = weights_at(&own->gate_up, own->gate_up.n_panels);
    s->down = weights_at(&own->down, own->down.n_panels);
    s->qkv = weights_at(&next->qkv, last ? 0 : next->qkv.n_panels);
    s->guesser = weights_at(&guess->qkv, guesses ? (N_HEADS * HEAD_DIM + 15) / 16 : 0);
    s->head = weights_at(&places[n_layers].output, last ? places[n_layers].output.n_panels : 0);
    s->next_heads = heads_at(next, turn);
    s->guess_heads = heads_at(guess, turn);
}

/* The row's part of the buffers that are kept for every layer is `rows_kept` rows a layer long, or
 * 0: one layer's. */
static void open_lists(struct step *s, __global half *fresh, __global const uint *items,
                       __global const uint2 *lists, uint stage, uint rows_kept)
{
    size_t own = (size_t)(stage ? stage - 1 : 0) * rows_kept;
    s->fresh = fresh + own * FRESH_STRIDE;
    s->next_fresh = fresh + (size_t)stage * rows_kept * FRESH_STRIDE;
    s->items = items + own * s->item_stride;
    s->lists = lists + own;
    uint2 end = s->lists[s->n_rows - 1];
    s->n_tiles = end.y + (end.x + DECODE_TILE - 1) / DECODE_TILE;
}

/* Stages first .. end - 1: of stage i attention and FFN of layer i - 1, then the projections of
 * layer i, or with n_layers the logits. The first one begins with phase `phase`. */
__kernel void decode_layers(__global float *x, __global float *q, __global float *guess,
                            __global float *attended, __global float *activated,
                            __global float *partial, __global float *logits, __global float *branch,
                            __global float *keys, __global half *fresh, __global half *staging,
                            __global const half *hot, __global const float *turn,
                            __global const uint *items, __global const uint *uploads,
                            __global const uint2 *lists, __global uint *quantised,
                            __global const struct layer_place *places, uint n_rows, uint rows_kept,
                            uint item_stride, uint n_uploads, uint staging_stride, uint hot_start,
                            float eps, uint n_layers, uint guess_from, uint first, uint end,
                            uint phase, __global volatile uint *counters)
{
    struct step s = {x, q, guess, attended, activated, partial, logits, branch, keys};
    uint before[LOGITS + 1];
    for (uint i = 0; i <= LOGITS; i++)
        before[i] = 0;
    s.staging = staging;
    s.hot = hot + (size_t)hot_start * 32;
    s.uploads = uploads;
    s.quantised = quantised;
    s.n_rows = n_rows;
    s.item_stride = item_stride;
    s.n_uploads = n_uploads;
    s.staging_stride = staging_stride;
    s.eps = eps;
    for (uint stage = first; stage < end; stage++) {
        open_stage(&s, places, stage, n_layers, guess_from, turn);
        open_lists(&s, fresh, items, lists, stage, rows_kept);
        if (!run_fused(&s, stage == first ? phase : SCATTER, before, counters))
            return;
    }
    leave(counters);
}
