/* tools/mkmodel/weights_wired.c - see weights_wired.h. */
#include "tools/mkmodel/weights_wired.h"

#include <math.h>
#include <string.h>

#include "tools/mkmodel/weights_random.h"

#define CONSTANT_VALUE 4.0f
/* Attention logits, in nats, by which the right token must lead each other one: e^16 is far above
 * any context. */
#define POSITION_LEAD 16.0
#define MATCH_LEAD    16.0
/* A position gain beyond this would make F16 rounding of keys as large as the lead. */
#define MAX_POSITION_LOGIT 1000.0
/* A slow pair may turn by this angle within the context; the match then loses under 0.2 %. */
#define MAX_SLOW_TURN 0.05
/* Each step back counts that much less, so that the more recent part of a match decides. */
#define MATCH_DECAY 0.8
/* Two codes have cosine <= 0.25: a token that differs loses at least that much of its weight. */
#define CODE_GAP 0.75
/* Tied, the prediction lies over the token's own output code and has to be far louder. */
#define TIED_COPY_GAIN 8.0f

/* Squared norms of the residual stream, the same for every token. */
#define NORM2_EMBEDDING                                                                            \
    ((float)CODE_OUT_DIMS + (float)CODE_MATCH_DIMS + CONSTANT_VALUE * CONSTANT_VALUE)
#define NORM2_PREVIOUS ((float)WIRED_SLOW_DIMS)

static double pair_angle(const struct mkmodel_shape *shape, uint32_t pair)
{
    return pow((double)(float)shape->rope_base, -2.0 * pair / shape->head_dim);
}

/* How far sum cos(theta x) stays below its peak (x = 0) at every other offset within the context.
 */
static double position_gap(const struct wired_plan *plan)
{
    double gap = WIRED_FAST_PAIRS;
    for (uint32_t x = 1; x < plan->shape.n_ctx; x++) {
        double below = 0;
        for (uint32_t pair = 0; pair < WIRED_FAST_PAIRS; pair++)
            below += 1 - cos((double)plan->theta[pair] * x);
        gap = fmin(gap, below);
    }
    return gap;
}

static int check_room(const struct mkmodel_shape *shape, struct hill_why *why)
{
    const uint32_t min_head_dim = WIRED_SLOW_DIMS + 2 * WIRED_FAST_PAIRS;
    if (shape->n_layers < 2)
        return hill_fail(why, HILL_E_INVALID, "--layers %u: the wired model needs at least 2",
                         shape->n_layers);
    if (shape->n_heads < WIRED_LOOKBACK)
        return hill_fail(why, HILL_E_INVALID, "--heads %u: the wired model needs at least %u",
                         shape->n_heads, WIRED_LOOKBACK);
    if (shape->n_embd < WIRED_MIN_WIDTH)
        return hill_fail(why, HILL_E_INVALID, "--width %u: the wired model needs at least %u",
                         shape->n_embd, (unsigned)WIRED_MIN_WIDTH);
    if (shape->head_dim < min_head_dim)
        return hill_fail(why, HILL_E_INVALID, "--head-dim %u: the wired model needs at least %u",
                         shape->head_dim, min_head_dim);
    if (shape->n_vocab != SHAPE_MIN_VOCAB)
        return hill_fail(why, HILL_E_INVALID, "--vocab %u: the wired model has exactly %u tokens",
                         shape->n_vocab, SHAPE_MIN_VOCAB);
    return 0;
}

int wired_plan_init(struct wired_plan *plan, const struct mkmodel_shape *shape,
                    struct hill_why *why)
{
    int code = check_room(shape, why);
    if (code)
        return code;
    *plan = (struct wired_plan){.shape = *shape,
                                .copy_gain = shape->tied ? TIED_COPY_GAIN : 1,
                                .prediction = shape->tied ? WIRED_CODE : WIRED_OUT};
    const double turn = pair_angle(shape, (shape->head_dim - WIRED_SLOW_DIMS) / 2) * shape->n_ctx;
    if (turn > MAX_SLOW_TURN)
        return hill_fail(
            why, HILL_E_INVALID,
            "--head-dim %u with --rope-base %g turns the slow pairs by %.2g rad within "
            "--ctx-size %u, at most %g is allowed",
            shape->head_dim, shape->rope_base, turn, shape->n_ctx, MAX_SLOW_TURN);
    for (uint32_t pair = 0; pair < WIRED_FAST_PAIRS; pair++)
        plan->theta[pair] = (float)pair_angle(shape, pair);
    const double gain = POSITION_LEAD / position_gap(plan);
    if (gain * WIRED_FAST_PAIRS > MAX_POSITION_LOGIT)
        return hill_fail(
            why, HILL_E_INVALID,
            "--head-dim %u with --rope-base %g leaves two positions within --ctx-size %u alike",
            shape->head_dim, shape->rope_base, shape->n_ctx);
    /* Attention divides q.k by the root of the head size. */
    const double root = sqrt((double)shape->head_dim);
    plan->position_gain = (float)(gain * root);
    const double oldest =
        MATCH_LEAD / (CODE_GAP * CODE_MATCH_DIMS) * root; /* weight of the match 7 places back */
    for (uint32_t i = 0; i < WIRED_LOOKBACK; i++)
        plan->match_gain[i] = (float)(oldest * pow(MATCH_DECAY, -(double)(WIRED_LOOKBACK - 1 - i)));
    return 0;
}

static void embedding_row(uint32_t token, float *out)
{
    code_out(token, out + WIRED_CODE);
    code_match(token, out + WIRED_MATCH);
    out[WIRED_CONSTANT] = CONSTANT_VALUE;
}

static void position_query_row(const struct wired_plan *plan, uint32_t head, uint32_t dim,
                               float *out)
{
    if (head >= WIRED_LOOKBACK || dim / 2 >= WIRED_FAST_PAIRS)
        return;
    const double phase = -(double)(head + 1) * (double)plan->theta[dim / 2];
    const double part = dim % 2 == 0 ? cos(phase) : sin(phase);
    out[WIRED_CONSTANT] = (float)(plan->position_gain * part / CONSTANT_VALUE);
}

/* Where in the newest-token window a slow dimension looks: index 0..127, 16 per place; or nothing.
 */
static int slow_index(const struct wired_plan *plan, uint32_t dim)
{
    return (int)dim - (int)(plan->shape.head_dim - WIRED_SLOW_DIMS);
}

static void query_row(const struct wired_plan *plan, uint32_t layer, uint64_t row, float *out)
{
    const uint32_t head = (uint32_t)(row / plan->shape.head_dim);
    const uint32_t dim = (uint32_t)(row % plan->shape.head_dim);
    if (layer == 0) {
        position_query_row(plan, head, dim, out);
        return;
    }
    const int index = slow_index(plan, dim);
    if (head == 0 && index >= 0)
        out[WIRED_MATCH + index] = plan->match_gain[index / (int)CODE_MATCH_DIMS];
}

/* All KV heads are alike. */
static void key_row(const struct wired_plan *plan, uint32_t layer, uint64_t row, float *out)
{
    const uint32_t dim = (uint32_t)(row % plan->shape.head_dim);
    if (layer == 0) {
        if (dim % 2 == 0 && dim / 2 < WIRED_FAST_PAIRS)
            out[WIRED_CONSTANT] = 1 / CONSTANT_VALUE;
        return;
    }
    const int index = slow_index(plan, dim);
    if (index >= 0)
        out[WIRED_PREVIOUS + index] = 1;
}

static void value_row(const struct wired_plan *plan, uint32_t layer, uint64_t row, float *out)
{
    const uint32_t dim = (uint32_t)(row % plan->shape.head_dim);
    if (layer == 0 && dim < CODE_MATCH_DIMS)
        out[WIRED_MATCH + dim] = 1;
    if (layer == 1 && dim < CODE_OUT_DIMS)
        out[WIRED_CODE + dim] = 1;
}

/* row is a dimension of the residual stream, out spans all heads. */
static void projection_row(const struct wired_plan *plan, uint32_t layer, uint64_t row, float *out)
{
    if (layer == 0 && row >= WIRED_PREVIOUS && row < WIRED_CONSTANT) {
        const uint64_t head = (row - WIRED_PREVIOUS) / CODE_MATCH_DIMS;
        out[head * plan->shape.head_dim + (row - WIRED_PREVIOUS) % CODE_MATCH_DIMS] = 1;
    }
    const uint64_t first = plan->prediction;
    if (layer == 1 && row >= first && row < first + CODE_OUT_DIMS)
        out[row - first] = plan->copy_gain;
}

/* RMSNorm divides by sqrt(norm2 / width): weights of that size give the plain values back. */
static void norm_row(const struct wired_plan *plan, enum tensor_role role, uint32_t layer,
                     float *out)
{
    const uint32_t width = plan->shape.n_embd;
    float norm2 = NORM2_EMBEDDING;
    if (layer > 0 || role != ROLE_ATTN_NORM)
        norm2 += NORM2_PREVIOUS;
    if (layer > 1 || role == ROLE_OUTPUT_NORM || (layer == 1 && role == ROLE_FFN_NORM))
        norm2 += plan->copy_gain * plan->copy_gain * CODE_OUT_DIMS;
    const float root = sqrtf(norm2 / (float)width);
    for (uint32_t i = 0; i < width; i++)
        out[i] = root;
    if (role != ROLE_OUTPUT_NORM)
        return;
    /* Only the prediction reaches the logits, at its plain size. */
    memset(out, 0, width * sizeof *out);
    for (uint32_t i = 0; i < CODE_OUT_DIMS; i++)
        out[plan->prediction + i] = root / plan->copy_gain;
}

void wired_row(const struct wired_plan *plan, enum tensor_role role, uint32_t layer, uint64_t row,
               float *out)
{
    uint64_t length, rows;
    shape_of_role(&plan->shape, role, &length, &rows);
    memset(out, 0, length * sizeof *out);
    switch (role) {
    case ROLE_TOKEN_EMBD:
        embedding_row((uint32_t)row, out);
        break;
    case ROLE_OUTPUT:
        code_out((uint32_t)row, out + plan->prediction);
        break;
    case ROLE_OUTPUT_NORM:
    case ROLE_ATTN_NORM:
    case ROLE_FFN_NORM:
        norm_row(plan, role, layer, out);
        break;
    case ROLE_ATTN_Q:
    case ROLE_ATTN_K:
    case ROLE_ATTN_V:
        if (layer > 1)
            random_row(&plan->shape, role, layer, row, out);
        else if (role == ROLE_ATTN_Q)
            query_row(plan, layer, row, out);
        else if (role == ROLE_ATTN_K)
            key_row(plan, layer, row, out);
        else
            value_row(plan, layer, row, out);
        break;
    case ROLE_ATTN_OUTPUT:
        projection_row(plan, layer, row, out);
        break;
    case ROLE_FFN_GATE:
    case ROLE_FFN_UP:
    case ROLE_FFN_DOWN:
        break;
    }
}
