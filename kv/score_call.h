/*
 * kv/score_call.h - what the vector paths of the integer score work out once a call.
 *
 * Included by score_avx2.c and score_lanes512.h alone. Concurrency: pure functions.
 */
#pragma once

#include "kv/score.h"

/* A product fits into 32 bits, times its query's shift, too; -128 is a key's that is damaged. */
_Static_assert(KV_MAX_HEAD_DIM * 128ll * 127 << KV_QUERY_SHIFT_MAX <= INT32_MAX,
               "a longer head needs 64 bits before its key's exponent");

struct score_call {
    const struct kv_geometry *geometry;
    uint32_t terms, share; /* share: of a KV head */
    uint32_t n_words;      /* of a head */
    uint32_t term_bytes;   /* of a term's words */
    bool largest;          /* of the terms, not their sum */
    const int8_t *words;   /* the query's, [terms][term_bytes] */
    const uint8_t *end;    /* the last byte of the groups */
    /* of each term; surplus: what a path's products have too much */
    int32_t surplus[KV_MAX_HEADS], shifts[KV_MAX_HEADS];
    int64_t offsets[KV_MAX_HEADS];
    int8_t room[KV_QUERY_WORDS_ROOM];
};

/* All but `surplus` of a call over groups up to `end`. Members beyond the query's terms stay as
 * they are: a call is not cleared, since it is large and nobody reads them. */
static inline void score_call_make(struct score_call *c, const struct kv_geometry *geometry,
                                   const struct kv_query *query, const uint8_t *end)
{
    c->geometry = geometry;
    c->terms = kv_query_terms(geometry, query->importance);
    c->share = c->terms / geometry->n_kv_heads;
    c->n_words = kv_head_words(geometry);
    c->term_bytes = c->n_words * kv_word_dims(geometry);
    c->largest = query->importance != KV_IMPORTANCE_SUM;
    c->words = kv_query_words(geometry, c->terms, query->mantissas, c->room);
    c->end = end - 1;
    for (uint32_t t = 0; t < c->terms; t++) {
        c->shifts[t] = kv_query_shift(query->shifts[t]);
        c->offsets[t] = query->offsets ? query->offsets[t] : 0;
    }
}

/* Where n groups end, which are `every` groups apart; n: above 0. */
static inline const uint8_t *score_call_end(const struct kv_geometry *geometry,
                                            const uint8_t *groups, uint32_t n, uint32_t every)
{
    return groups + ((uint64_t)(n - 1) * every + 1) * kv_group_bytes(geometry);
}
