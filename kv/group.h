/*
 * kv/group.h - how key digests lie in memory and on flash: in groups of sixteen tokens.
 *
 * A token's digest is, per KV head, its mantissas in 32-bit words and one exponent byte. A word is
 *     INT8: four mantissas, dimension 4w + j in byte j of word w;
 *     INT4: eight mantissas, each as mantissa + 8 in a nibble, dimension 8w + j in the lower one of
 *           byte j, dimension 8w + 4 + j in the upper one.
 * A last word that is not full is filled up with mantissas of zero. Sixteen tokens make a group,
 * their words side by side, one token a lane:
 *
 *     exponents   u8    [n_kv_heads][16 tokens], padded to 64 bytes
 *     mantissas   u32   [n_kv_heads][words][16 tokens]
 *
 * So one 512-bit vector holds four or eight dimensions of sixteen tokens: multiplied with a query's
 * bytes in every lane and added up, it leaves sixteen products, one a lane, and nothing is ever
 * summed across lanes. A group is read strictly in order, each vector fills one cache line, and
 * work-items of an OpenCL device, one a token, read next to each other. Groups follow one another:
 * token i of an array of groups is lane i % 16 of group i / 16. A group is always there as a whole;
 * what its lanes without a token hold does not matter to anyone. The same bytes are in the hot
 * pool, in DEMOTE records and on flash. Who calls it: whoever lays out, writes, moves or scores
 * digests. Concurrency: pure functions; two threads must not write tokens of one group at a time.
 */
#pragma once

#include <stdint.h>

#include "kv/geometry.h"

#define KV_GROUP_TOKENS 16u
#define KV_GROUP_ALIGN  64u
#define KV_NIBBLE_BIAS  8

/* Mantissas of a 32-bit word: 4 or 8. */
static inline uint32_t kv_word_dims(const struct kv_geometry *g)
{
    return 32u / kv_digest_bits(g);
}

/* Words of one head of one token. */
static inline uint32_t kv_head_words(const struct kv_geometry *g)
{
    return (g->head_dim + kv_word_dims(g) - 1) / kv_word_dims(g);
}

/* Where a group's mantissas start. */
static inline uint32_t kv_group_mantissas_at(const struct kv_geometry *g)
{
    return (g->n_kv_heads * KV_GROUP_TOKENS + KV_GROUP_ALIGN - 1) / KV_GROUP_ALIGN * KV_GROUP_ALIGN;
}

/* A multiple of KV_GROUP_ALIGN; below 2^21 for every geometry that is allowed. */
static inline uint32_t kv_group_bytes(const struct kv_geometry *g)
{
    return kv_group_mantissas_at(g) +
           g->n_kv_heads * kv_head_words(g) * KV_GROUP_TOKENS * (uint32_t)sizeof(uint32_t);
}

/* A token's share of a group (padding included): what n tokens take where n is a multiple of 16. */
static inline uint32_t kv_digest_bytes(const struct kv_geometry *g)
{
    return kv_group_bytes(g) / KV_GROUP_TOKENS;
}

/* Groups that tokens first .. first + n - 1 of an array of groups lie in. */
static inline uint32_t kv_groups_touched(uint32_t first, uint32_t n)
{
    return n == 0 ? 0 : (first % KV_GROUP_TOKENS + n + KV_GROUP_TOKENS - 1) / KV_GROUP_TOKENS;
}

/* One KV head of token `index` of the groups: its mantissas [head_dim] and its exponent byte (get
 * returns that). Put leaves the group's other lanes as they are. */
void kv_digest_put_head(const struct kv_geometry *g, uint8_t *groups, uint64_t index, uint32_t h,
                        const int8_t *mantissas, uint8_t exponent);
uint8_t kv_digest_get_head(const struct kv_geometry *g, const uint8_t *groups, uint64_t index,
                           uint32_t h, int8_t *mantissas);

/* Copy n tokens' digests between groups that do not overlap. Where both sides hold the same whole
 * groups these are copied at once; lanes of tokens that are not copied stay as they are. */
void kv_digest_copy(const struct kv_geometry *g, uint8_t *to, uint64_t to_index,
                    const uint8_t *from, uint64_t from_index, uint32_t n);

/* A query's mantissas [n_heads][head_dim] (of KV heads' sums, or of each query head: kv/score.h),
 * INT8 always, with each head filled up with zeros to the dimensions of whole words of keys:
 * `mantissas` themselves where heads are that already, else a copy in room (KV_QUERY_WORDS_ROOM
 * bytes are enough for all, kv_query_words_bytes for these). */
#define KV_QUERY_WORDS_ROOM (KV_MAX_KEY_DIMS + KV_MAX_HEADS * 7)
static inline uint32_t kv_query_words_bytes(const struct kv_geometry *g, uint32_t n_heads)
{
    return n_heads * kv_head_words(g) * kv_word_dims(g);
}
const int8_t *kv_query_words(const struct kv_geometry *g, uint32_t n_heads, const int8_t *mantissas,
                             int8_t *room);
