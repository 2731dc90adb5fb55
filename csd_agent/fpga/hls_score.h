/*
 * csd_agent/fpga/hls_score.h - the digest-scoring kernel as Vitis HLS takes it, in plain C.
 *
 * What: for runs of digest groups (kv/group.h) that lie in the card's memory, one 16-bit score a
 * token; the integers of kv_score_reference (kv/score.h), bit for bit. Units are those of the
 * hardware: a beat is 64 bytes (16 words of 32 bits, one a token), a group's scores are 16 numbers.
 * A group is scored as a whole; lanes without a token get a score that nobody looks at. A shape is
 * an argument, not a constant: one bitstream serves every model. Places are counted in 32 bits: in
 * words of digests, so that these lie below 16 GiB, and in scores, so that there are fewer than
 * 2^28 groups. Who calls it: a host program through the kernel's arguments, in this order; here the
 * test bench, tests/csd_agent/test_hls_score.c. Concurrency: one launch at a time. Failure: none; a
 * shape beyond the limits below must not be given.
 */
#pragma once

#include <stdint.h>

#define HLS_LANES           16u /* tokens of a group; words of a beat */
#define HLS_KV_HEADS_MAX    256u
#define HLS_HEADS_MAX       1024u  /* of a query */
#define HLS_QUERY_WORDS_MAX 18176u /* 65536 dimensions, each head filled up to words of eight */
#define HLS_BY_QUERY_HEAD   3u     /* KV_IMPORTANCE_HEADS */
#define HLS_TERMS           8u     /* of a KV head, that share a beat */
#define HLS_RUN_WORDS       4u     /* of a run: first beat, groups, first group of scores, 0 */

/* How often a group is read for so many terms of a KV head. */
static inline uint32_t hls_passes(uint32_t terms)
{
    return (terms + HLS_TERMS - 1) / HLS_TERMS;
}

/*
 * digests      groups, from a 64-byte boundary on
 * runs         [n_runs][HLS_RUN_WORDS]
 * query        as devices take it (kv_query_send): offsets, two words each, lower half first;
 *              mantissas, INT8, four a word; shifts, four a word
 * query_heads  of a KV head: terms of each with KV_IMPORTANCE_HEADS (hls_passes)
 * head_words   words of a key's head (kv_head_words)
 * importance   enum kv_importance: 0 the sum over terms, else the maximum
 * scores       [groups][16]
 */
void hill_score_int8(const uint32_t *digests, const uint32_t *runs, const uint32_t *query,
                     uint32_t n_runs, uint32_t n_kv_heads, uint32_t query_heads,
                     uint32_t head_words, uint32_t importance, uint16_t *scores);
/* Of INT4 keys. */
void hill_score_int4(const uint32_t *digests, const uint32_t *runs, const uint32_t *query,
                     uint32_t n_runs, uint32_t n_kv_heads, uint32_t query_heads,
                     uint32_t head_words, uint32_t importance, uint16_t *scores);
