/*
 * step.cl - what both sets of decode kernels share: buffers of a step, its phases, and what becomes
 * of a product's results. decode.cl (a work item a task) and decode_groups.cl (a work group a task)
 * follow it; LANES says which (shared.cl).
 *
 * A step is n rows, each a token of a sequence of its own: a layer's uploads, attention, output
 * projection and FFN, then the next layer's projections (or the logits). With them, on the same
 * input, the query of the layer after the next may be guessed. A phase is a number of independent
 * tasks; each phase reads what the one before it wrote.
 *     entry: K [N_KV_HEADS][HEAD_DIM], V [N_KV_HEADS][HEAD_DIM], FP16. K and V saturate at the
 *     largest FP16: an infinity would poison entries that are masked. NaN stays NaN.
 */
#define VECTORS    ((HEAD_DIM + 15) / 16)
#define PADDED_DIM (16 * VECTORS)
#define GROUP      (N_HEADS / N_KV_HEADS)
#define ENTRY      (2 * N_KV_HEADS * HEAD_DIM)
#define PARTIAL    (PADDED_DIM + 16)
/* Where an item of the list lies: a slot; or an upload's place in staging, from where its task
 * copies it to its slot too; or in the hot pool, where it stays; or it is the fresh entry. */
#define STAGED   0x80000000u /* | index of the upload */
#define HOT      0x40000000u /* | index of the entry in the hot pool */
#define FRESH    0xffffffffu
#define ATTENDED 0x80000000u /* in an upload's staging slot: an item says STAGED */

/* A row's part of the buffers, in their elements; as engine_internal.h says. */
#define Q_STRIDE     ((N_HEADS * HEAD_DIM + 15) / 16 * 16 + 16)
#define FRESH_STRIDE ((ENTRY + 16 + 15) / 16 * 16)

enum phase {
    SCATTER,
    ATTEND,
    COMBINE,
    QUANT_OUTPUT,
    OUTPUT,
    JOIN_ATTENTION,
    QUANT_GATE_UP,
    GATE_UP,
    QUANT_DOWN,
    DOWN,
    JOIN_FFN,
    QUANT_QKV,
    QKV,
    HEADS,
    QUANT_LOGITS,
    LOGITS
};

struct weights {
    __global const uint *matrix; /* as product.cl says */
    __global const float *bias;  /* NULL, or as engine_internal.h says */
    uint n_panels, k, quantised; /* quantised: some of its panels are */
    uint n_biased;               /* panels of the bias; n_panels is how many are computed */
};

/* How a layer's heads of q and k are normed (or NULL) and turned: the first `rotated` dimensions,
 * by angles from turn on. */
struct heads {
    __global const float *q_norm, *k_norm, *turn;
    uint rotated;
};

/*
 * Buffers of rows: x [n][X_STRIDE], q, guess and attended [n][Q_STRIDE], activated [n][ACT_STRIDE],
 * logits [n][LOGITS_STRIDE], fresh [n][FRESH_STRIDE], a table's turns [n][ROPE_DIMS], branch
 * [n][X_STRIDE], keys [n][N_KV_HEADS * HEAD_DIM], items [n][item_stride]; quantised:
 * [n][QUANT_STRIDE] words, the rows of the product that is next, then [n][QUANT_STRIDE] of the
 * guess; lists [n]: items of the row's list and its first tile among all rows' tiles. slots: of all
 * sequences; items and uploads say where.
 */
struct step {
    __global float *x, *q, *guess, *attended, *activated, *partial, *logits;
    /* what is normed before it is added; keys before their heads are normed */
    __global float *branch, *keys;
    /* fresh entries of the layer that attends, and of the one after it */
    __global half *slots, *fresh, *next_fresh, *staging;
    __global const half *hot; /* its first entry */
    __global const float *ffn_norm, *next_norm, *guess_norm, *post_attn_norm, *post_ffn_norm;
    __global const uint *items, *uploads;
    __global const uint2 *lists;
    __global uint *quantised;
    uint n_rows, item_stride, n_tiles, n_uploads, staging_stride;
    float eps;
    /* guesser: the projections of the layer after, to where q ends */
    struct weights output, gate_up, down, qkv, guesser, head;
    struct heads next_heads, guess_heads;
};

/* ---- products ---- */

static uint count_quant_tasks(const struct step *s, struct weights w)
{
    return w.quantised && w.n_panels ? s->n_rows * quant_tasks_of_row(w.k) : 0;
}

static floats add_bias(floats y, struct weights w, uint panel)
{
    return w.bias ? y + LOAD_LANES(panel, w.bias) : y;
}

/* A row's result of a product of normed inputs, of which `factor` and `shift` are still to come:
 * y * factor - shift * sums. RMS norm has no shift. */
static floats norm_result(float factor, float shift, floats y, struct weights w, uint panel)
{
    y = y * factor;
#if LAYER_NORM
    y -= shift * LOAD_LANES(w.n_biased + panel, w.bias);
#endif
    return add_bias(y, w, panel);
}

static __global uint *quantised_guess(const struct step *s)
{
    return s->quantised + (size_t)s->n_rows * QUANT_STRIDE;
}

static void turn_pair(float *a, float *b, __global const float *turn, uint dim)
{
    float c = turn[dim], sine = turn[dim + 1], t = *a;
    *a = *a * c - *b * sine;
    *b = t * sine + *b * c;
}

static void keep_halves(float a, float b, uint at, __global half *entry)
{
    vstore_half(saturate(a), at, entry);
    vstore_half(saturate(b), at + 1, entry);
}

/*
 * Outputs `row` and row + 1 of a row's projections: q [N_HEADS][HEAD_DIM] in F32, K and V as a
 * fresh entry. Rotation pairs (2i, 2i + 1) of a head never straddle two panels: head sizes are
 * even. Where heads are normed, q and K wait for phase HEADS as they are.
 */
static void keep_pair(const struct step *s, uint r, uint row, float a, float b, __global float *q,
                      const struct heads *heads)
{
#if NORM_HEADS
    if (row >= N_HEADS * HEAD_DIM && row < (N_HEADS + N_KV_HEADS) * HEAD_DIM) {
        __global float *key =
            s->keys + (size_t)r * N_KV_HEADS * HEAD_DIM + row - N_HEADS * HEAD_DIM;
        key[0] = a;
        key[1] = b;
        return;
    }
#else
    uint dim = row % HEAD_DIM;
    if (row < (N_HEADS + N_KV_HEADS) * HEAD_DIM && dim < heads->rotated)
        turn_pair(&a, &b, heads->turn + r * ROPE_DIMS, dim);
#endif
    if (row < N_HEADS * HEAD_DIM) {
        q[row] = a;
        q[row + 1] = b;
    } else {
        keep_halves(a, b, row - N_HEADS * HEAD_DIM, s->next_fresh + r * FRESH_STRIDE);
    }
}

/* ---- heads that are normed ---- */

/* Of a row the heads of q, of K, and of the guess. */
#define HEADS_OF_ROW(s) (2 * N_HEADS + N_KV_HEADS - ((s)->guesser.n_panels ? 0 : N_HEADS))

/* A head whose norm and rotation are to come: in place, or rounded to `entry` if there is one. */
struct head_place {
    __global float *from;
    __global const float *g, *turn;
    uint rotated;
    __global half *entry;
};

static struct head_place find_head(const struct step *s, uint task)
{
    uint r = task / HEADS_OF_ROW(s), head = task % HEADS_OF_ROW(s);
    bool guess = head >= N_HEADS + N_KV_HEADS, key = !guess && head >= N_HEADS;
    const struct heads *heads = guess ? &s->guess_heads : &s->next_heads;
    uint kv = head - N_HEADS, of_guess = head - N_HEADS - N_KV_HEADS;
    struct head_place h;
    h.from = key     ? s->keys + ((size_t)r * N_KV_HEADS + kv) * HEAD_DIM
             : guess ? s->guess + r * Q_STRIDE + of_guess * HEAD_DIM
                     : s->q + r * Q_STRIDE + head * HEAD_DIM;
    h.g = key ? heads->k_norm : heads->q_norm;
    h.turn = heads->turn + r * ROPE_DIMS;
    h.rotated = heads->rotated;
    h.entry = key ? s->next_fresh + r * FRESH_STRIDE + kv * HEAD_DIM : (__global half *)0;
    return h;
}

/* Values i and i + 1 of it. */
static void finish_pair(struct head_place h, float factor, uint i)
{
    float a = h.from[i] * factor * h.g[i], b = h.from[i + 1] * factor * h.g[i + 1];
    if (i < h.rotated)
        turn_pair(&a, &b, h.turn, i);
    if (h.entry) {
        keep_halves(a, b, i, h.entry);
    } else {
        h.from[i] = a;
        h.from[i + 1] = b;
    }
}

/* ---- lists ---- */

static __global const half *staged(const struct step *s, uint upload)
{
    return s->staging + (size_t)(s->uploads[2 * upload] & ~ATTENDED) * s->staging_stride;
}

static __global half *slot_of_upload(const struct step *s, uint upload)
{
    return s->slots + (size_t)s->uploads[2 * upload + 1] * ENTRY;
}

static __global const half *entry_of_item(const struct step *s, uint r, uint item)
{
    if (item == FRESH)
        return s->fresh + r * FRESH_STRIDE;
    if (item & STAGED)
        return staged(s, item & ~STAGED);
    return item & HOT ? s->hot + (size_t)(item & ~HOT) * ENTRY : s->slots + (size_t)item * ENTRY;
}

/* The row whose list tile `tile` of all rows' belongs to. */
static uint row_of_tile(const struct step *s, uint tile)
{
    uint r = 0;
    while (r + 1 < s->n_rows && s->lists[r + 1].y <= tile)
        r++;
    return r;
}

/* ---- a phase in a launch ---- */

#define WEIGHTS(name)                                                                              \
    __global const uint *name, __global const float *name##_bias, uint name##_panels,              \
        uint name##_k, uint name##_quantised, uint name##_biased
#define AS_WEIGHTS(name)                                                                           \
    {                                                                                              \
        name, name##_bias, name##_panels, name##_k, name##_quantised, name##_biased                \
    }
#define HEADS_OF(name)                                                                             \
    __global const float *name##_q_norm, __global const float *name##_k_norm, uint name##_turn,    \
        uint name##_rotated
#define AS_HEADS(name)                                                                             \
    {                                                                                              \
        name##_q_norm, name##_k_norm, turn + name##_turn, name##_rotated                           \
    }

/* What every kernel that is one phase takes. */
#define STEP_PARAMETERS                                                                            \
    __global float *x, __global float *q, __global float *guess, __global float *attended,         \
        __global float *activated, __global float *partial, __global float *logits,                \
        __global float *branch, __global float *keys, __global half *slots, __global half *fresh,  \
        __global half *staging, __global const float *turn, __global const float *ffn_norm,        \
        __global const float *next_norm, __global const float *guess_norm,                         \
        __global const float *post_attn_norm, __global const float *post_ffn_norm,                 \
        __global const uint *items, __global const uint *uploads, __global const uint2 *lists,     \
        __global uint *quantised, uint n_rows, uint item_stride, uint staging_stride, float eps,   \
        WEIGHTS(output), WEIGHTS(gate_up), WEIGHTS(down), WEIGHTS(qkv), WEIGHTS(guesser),          \
        WEIGHTS(head), HEADS_OF(next), HEADS_OF(guessed), uint phase
#define AS_STEP                                                                                    \
    {                                                                                              \
        x, q, guess, attended, activated, partial, logits, branch, keys, slots, fresh, fresh,      \
            staging, NULL, ffn_norm, next_norm, guess_norm, post_attn_norm, post_ffn_norm, items,  \
            uploads, lists, quantised, n_rows, item_stride, 0, 0, staging_stride, eps,             \
            AS_WEIGHTS(output), AS_WEIGHTS(gate_up), AS_WEIGHTS(down), AS_WEIGHTS(qkv),            \
            AS_WEIGHTS(guesser), AS_WEIGHTS(head), AS_HEADS(next), AS_HEADS(guessed)               \
    }
