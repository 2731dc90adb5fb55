/*
 * cpu_scorer/key_sample.h - the digests of a sample of keys (kv/sample.h), in DRAM wherever the
 * entries lie, and queries' digests with the offsets that follow from them.
 *
 * What: of each (sequence, layer) the sample's groups and a check for each of its tokens, in the
 * hot segment (kv_plan_state_bytes), so that they outlive the scorer. Invariant: a token's sample
 * is there before the token is placed, so that every placed token of the sample has one; what a cut
 * leaves behind is written over before it counts. Who calls it: evaluators that score digests; data
 * thread alone. Failure: HILL_E_DAMAGED from adopt.
 */
#pragma once

#include "cpu_scorer/core.h"

/* The tokens of a record are about to be placed. */
void key_sample_look(const struct core *c, const struct sequence *s, const struct record_append *r);

/* An earlier scorer's: is the sample of the tokens that the layers have what it was? */
int key_sample_adopt(const struct core *c, const struct sequence *s);

/* The query q [n_heads][head_dim] of a layer over n_tokens tokens, into bytes (kv_query_bytes). */
struct kv_query key_sample_query(const struct core *c, const struct sequence *s, uint32_t layer,
                                 const float *q, uint32_t n_tokens, void *bytes);
