/*
 * kv/sample.h - a sample of a layer's keys, and what a query's heads reach on it: the offsets of
 * KV_IMPORTANCE_HEADS.
 *
 * A head attends by softmax: a product counts by how far it lies below what the head reaches at
 * most. A maximum over heads therefore means something only with each head's products taken less
 * that. The whole of it is not known before all scores are there, on two tiers; a sample of keys
 * stands in for it: the first KV_SAMPLE_FIRST tokens (attention's sinks) and of the others every
 * KV_SAMPLE_EVERY-th. A head's offset is the log sum exp of its products, over the root of the head
 * size, with each of the first tokens and the largest with any of the others (docs/importance.md).
 *
 * The sample goes by position alone, so that a score knows nothing of where entries lie [I6]. A
 * query over n tokens takes those below n, and of more than KV_SAMPLE_MOST others every second one,
 * every fourth, ... Sample i is the token at kv_sample_position(i), and token i of an array of
 * groups (kv/group.h). The largest product is an integer; what the logarithm adds is rounded to
 * 1/64, so that the last bit of a machine's exp and log does not matter. Who calls it: the scorer
 * (cpu_scorer/key_sample.h). Concurrency: pure functions.
 */
#pragma once

#include <stdint.h>

#include "kv/score.h"

#define KV_SAMPLE_FIRST 4u
#define KV_SAMPLE_EVERY 32u
#define KV_SAMPLE_MOST  512u

/* Of n tokens: those of the sample. */
static inline uint32_t kv_sample_count(uint32_t n_tokens)
{
    return (n_tokens < KV_SAMPLE_FIRST ? n_tokens : KV_SAMPLE_FIRST) + n_tokens / KV_SAMPLE_EVERY;
}

static inline uint32_t kv_sample_position(uint32_t i)
{
    return i < KV_SAMPLE_FIRST ? i : (i - KV_SAMPLE_FIRST + 1) * KV_SAMPLE_EVERY - 1;
}

/* The offsets [terms] of a query (whose own are not looked at) over n_tokens tokens, in units of
 * its terms; exponent: what kv_digest_query has returned. 0 without a token. */
void kv_sample_offsets(const struct kv_geometry *g, const struct kv_query *query, int32_t exponent,
                       const uint8_t *groups, uint32_t n_tokens, int64_t *offsets);
