/*
 * tools/mkmodel/weights_wired.h - the weights of the induction ("copy") model, wired by hand.
 *
 * The model continues a text the way the longest matching earlier passage went on. README.md draws
 * it; the facts every function here relies on:
 * - Residual stream: named slices (enum wired_slice). All embeddings have one norm, and layer 0
 * adds the same norm to every token, so RMSNorm divides by a constant and the norm weights multiply
 * by it: each layer sees plain values.
 * - Layer 0, head h - 1 copies the match code of the token h places back into slice h (h = 1..8).
 * Keys are (1, 0) in the fastest WIRED_FAST_PAIRS rotary pairs, queries have the phase -h theta:
 * q.k = sum cos(theta (distance - h)).
 * - Layer 1, head 0 compares the newest eight match codes with the eight before each earlier token,
 * in the slowest 64 pairs, and copies that token's output code into the output slice. Other heads
 * have zero queries, so that a selection by the sum over heads sees this head alone.
 * - Later layers pass through: random q, k, v (something to score, store and move), zero output
 * projection.
 *
 * Who calls it: build.c. Failure: HILL_E_INVALID when the shape cannot hold the wiring.
 * Concurrency: read-only after init.
 */
#pragma once

#include "tools/mkmodel/codes.h"
#include "tools/mkmodel/shape.h"

#define WIRED_LOOKBACK   8u  /* tokens compared: slices 1..8 */
#define WIRED_FAST_PAIRS 14u /* rotary pairs that tell positions apart */
#define WIRED_SLOW_DIMS  (WIRED_LOOKBACK * CODE_MATCH_DIMS)

enum wired_slice {
    WIRED_CODE = 0,                                    /* output code of the token, 32 */
    WIRED_OUT = WIRED_CODE + CODE_OUT_DIMS,            /* output code of the prediction, 32 */
    WIRED_MATCH = WIRED_OUT + CODE_OUT_DIMS,           /* match code of the token, 16 */
    WIRED_PREVIOUS = WIRED_MATCH + CODE_MATCH_DIMS,    /* match codes 1..8 places back, 8 x 16 */
    WIRED_CONSTANT = WIRED_PREVIOUS + WIRED_SLOW_DIMS, /* one dimension, WIRED_CONSTANT_VALUE */
    WIRED_MIN_WIDTH = WIRED_CONSTANT + 1,
};

struct wired_plan {
    struct mkmodel_shape shape;
    float theta[WIRED_FAST_PAIRS];    /* angle of a fast pair per position */
    float position_gain;              /* length of a layer-0 query in each fast pair */
    float match_gain[WIRED_LOOKBACK]; /* weight of the match i places back, i = 0..7 */
    float copy_gain;                  /* of the predicted output code, as layer 1 writes it */
    enum wired_slice prediction;      /* WIRED_OUT, or WIRED_CODE when tied */
};

/* Work the gains out for a checked shape. */
int wired_plan_init(struct wired_plan *plan, const struct mkmodel_shape *shape,
                    struct hill_why *why);

/* One row, as long as shape_of_role() says. */
void wired_row(const struct wired_plan *plan, enum tensor_role role, uint32_t layer, uint64_t row,
               float *out);
