/*
 * kv/score.h - the digest of keys and queries, and the integer score [I6].
 *
 * Key digest, per (token, KV head): exponent e = clamp(min e with amax <= 127 * 2^e, -10, 6),
 * mantissas m = clamp(round_half_even(k / 2^e), -127, 127); stored exponent byte e + 10 (0..16).
 * With 4 bits (--score-bits 4) mantissas are -7..7, amax <= 7 * 2^e, e -6..10, the byte e + 6.
 * Smaller keys underflow gradually, larger ones saturate; NaN counts as 0, infinity as +-65504. An
 * all-zero head is all zero with byte 0.
 *
 * A query has terms (kv_query_terms): one for each KV head, of the FP32 queries of its group summed
 * in head order (GQA: a sum of inner products is the inner product with the sum; for
 * KV_IMPORTANCE_NORM each sum is divided by its length), or with KV_IMPORTANCE_HEADS one for each
 * query head, as it is. They are quantised likewise, with e not clamped to -10..6 but relative to
 * the largest term's: shift byte = clamp(e_term - (e_max - 8), 0, 8), mantissas at exponent e_max -
 * 8 + shift. Product of term t, whose KV head is t / (terms / n_kv_heads): P_t = sum_j m_q m_k
 * (int32). The term: (P_t << (key byte + query shift)) - offset_t, window 24 bits. Offsets are 0
 * but for KV_IMPORTANCE_HEADS (kv/sample.h). A token's score combines the terms (kv_importance)
 * into an int64 (below 2^(14 + 16 + 24) = 2^54, with offsets below 2^56), and kv_score16 maps it,
 * monotone, to 16 bits. Bytes above 16 and shifts above 8, which damage alone makes, count as 16
 * and 8: a wrong score, and the same one on all paths. Source: HillInfer paper 4.4 (raw inner
 * product, low precision for scoring only); docs/importance.md for the combinations. CPU reference,
 * AVX2, AVX-512 and the OpenCL kernel agree bit for bit. Concurrency: pure functions.
 */
#pragma once

#include <stdint.h>

#include "kv/geometry.h"
#include "kv/group.h"

#define KV_KEY_EXP_BIAS    10 /* of the byte; with 4 bits KV_KEY_EXP_BIAS4 */
#define KV_KEY_EXP_BIAS4   6
#define KV_KEY_EXP_MAX     16 /* largest stored exponent byte */
#define KV_QUERY_SHIFT_MAX 8

enum kv_importance { /* how a query's terms become one score; numbers are part of the record
                        format */
                     KV_IMPORTANCE_SUM = 0,   /* the paper's: sum over heads */
                     KV_IMPORTANCE_MAX = 1,   /* maximum over KV heads */
                     KV_IMPORTANCE_NORM = 2,  /* the same, each KV head's query divided by its
                                                length: only the digest differs */
                     KV_IMPORTANCE_HEADS = 3, /* maximum over query heads, each less its offset */
                     KV_IMPORTANCE_COUNT
};

/* "sum", "max", "norm", "heads"; NULL / HILL_E_INVALID when unknown. */
const char *kv_importance_name(uint32_t importance);
int kv_importance_parse(const char *name, uint32_t *out);

/* Are n FP16 numbers numbers, neither NaN nor infinite? */
bool kv_halfs_are_finite(const uint16_t *halfs, uint64_t n);

/* Digest n keys into tokens first .. first + n - 1 of `groups` (kv/group.h): k is FP16 bits
 * [n][stride_halfs] (the first n_kv_heads*head_dim of each row are the key). */
void kv_digest_keys(const struct kv_geometry *g, const uint16_t *k, uint64_t stride_halfs,
                    uint32_t n, uint8_t *groups, uint64_t first);

/* Is the digest of token `index` of `groups` the one that this key makes? scratch: of a group
 * (kv_group_bytes), whose padding is 0. */
bool kv_digest_is_of(const struct kv_geometry *g, const uint16_t *k, const uint8_t *groups,
                     uint64_t index, uint8_t *scratch);

/* A query's terms. */
static inline uint32_t kv_query_terms(const struct kv_geometry *g, uint32_t importance)
{
    return importance == KV_IMPORTANCE_HEADS ? g->n_heads : g->n_kv_heads;
}

/* Digest a query: q is FP32 [n_heads][head_dim], after rotary embedding. mantissas
 * [terms][head_dim], shifts [terms]. Non-finite values and sums count as 0; an all-zero term has
 * shift 0. The length that KV_IMPORTANCE_NORM divides by is the query's alone, so its score knows
 * nothing of the other keys, nor of where they lie. Returns the exponent of a mantissa at shift 0.
 */
int32_t kv_digest_query(const struct kv_geometry *g, uint32_t importance, const float *q,
                        int8_t *mantissas, uint8_t *shifts);

/* Monotone map int64 -> u16: magnitude a (15 bits): a < 512: a itself; else e = floor(log2 a), ((e
 * - 8) << 9) | ((a >> (e - 9)) & 511); result 0x8000 + magnitude for values >= 0, 0x7fff -
 * magnitude for negative ones (of -value, so -1 < 0). */
static inline uint16_t kv_score16(int64_t value)
{
    uint64_t a = value < 0 ? (uint64_t)0 - (uint64_t)value : (uint64_t)value;
    uint32_t magnitude;
    if (a < 512) {
        magnitude = (uint32_t)a;
    } else {
        uint32_t e = 63u - (uint32_t)__builtin_clzll(a);
        magnitude = ((e - 8u) << 9) | (uint32_t)((a >> (e - 9u)) & 511u);
    }
    return (uint16_t)(value < 0 ? 0x7fffu - magnitude : 0x8000u + magnitude);
}

/* A key's exponent byte as scores count it. */
static inline uint8_t kv_key_exponent(uint8_t byte)
{
    return byte < KV_KEY_EXP_MAX ? byte : KV_KEY_EXP_MAX;
}

/* A query's shift byte as scores count it. */
static inline uint8_t kv_query_shift(uint8_t byte)
{
    return byte < KV_QUERY_SHIFT_MAX ? byte : KV_QUERY_SHIFT_MAX;
}

struct kv_query {
    const int8_t *mantissas; /* [terms][head_dim] */
    const uint8_t *shifts;   /* [terms] */
    uint32_t importance;     /* enum kv_importance */
    const int64_t *offsets;  /* [terms], in units of terms; NULL: all 0 */
};

/* A query's digest in memory and in records lies from an 8-byte boundary on: offsets, mantissas,
 * shifts, of each term (kv_query_terms). Its bytes. */
uint32_t kv_query_bytes(const struct kv_geometry *g, uint32_t importance);
/* The most that a digest of this geometry takes, also in the form of kv_query_send. */
uint32_t kv_query_bytes_max(const struct kv_geometry *g);
/* Digest q [n_heads][head_dim] (kv_digest_query) into such bytes, offsets 0; returns the query over
 * them. */
struct kv_query kv_query_make(const struct kv_geometry *g, uint32_t importance, const float *q,
                              void *bytes, int32_t *exponent);
/* Write a query as such bytes, for a record. */
void kv_query_put(const struct kv_geometry *g, const struct kv_query *query, void *bytes);
/* The query over such bytes, which stay the caller's. */
struct kv_query kv_query_at(const struct kv_geometry *g, uint32_t importance, const void *bytes);
/* Write a query as devices take it: mantissas with each term filled up to whole words of keys
 * (kv_query_words). Returns the bytes written. */
uint32_t kv_query_send(const struct kv_geometry *g, const struct kv_query *query, void *bytes);

/* Scores of the first n tokens of `groups`, the last of which may be partly filled but is there as
 * a whole: scores [n]. */
typedef void kv_score_fn(const struct kv_geometry *g, const struct kv_query *query,
                         const uint8_t *groups, uint32_t n, uint16_t *scores);

/* Groups that lie `every` groups apart: n of them, from the first byte of the first one on. */
struct kv_group_steps {
    const uint8_t *groups;
    uint32_t n, every;
};

/* Raises largest [terms][KV_GROUP_TOKENS] to each term of the query, less no offset, with the token
 * in that lane of each of the groups, where that is more. */
typedef void kv_largest_fn(const struct kv_geometry *g, const struct kv_query *query,
                           const struct kv_group_steps *of, int64_t (*largest)[KV_GROUP_TOKENS]);

kv_score_fn kv_score_reference;
kv_largest_fn kv_largest_reference;
#if defined(__x86_64__)
kv_score_fn kv_score_avx2;           /* only where kv_score_has_avx2() */
kv_largest_fn kv_largest_avx2;       /* likewise */
kv_score_fn kv_score_avx512;         /* only where kv_score_has_avx512() */
kv_largest_fn kv_largest_avx512;     /* likewise */
kv_score_fn kv_score_avx512vnni;     /* only where kv_score_has_avx512vnni() */
kv_largest_fn kv_largest_avx512vnni; /* likewise */
int kv_score_has_avx2(void);
int kv_score_has_avx512(void);
int kv_score_has_avx512vnni(void);
#else
#define kv_score_avx2             kv_score_reference
#define kv_largest_avx2           kv_largest_reference
#define kv_score_avx512           kv_score_reference
#define kv_largest_avx512         kv_largest_reference
#define kv_score_avx512vnni       kv_score_reference
#define kv_largest_avx512vnni     kv_largest_reference
#define kv_score_has_avx2()       0
#define kv_score_has_avx512()     0
#define kv_score_has_avx512vnni() 0
#endif

/* By name: "auto" (best for this CPU), "reference", "avx2", "avx512", "avx512vnni"; NULL when
 * unknown or not on this CPU; no name is "auto". Processes pass the Configure record's choice. */
kv_score_fn *kv_score_choose(const char *name);
/* The best one for this CPU. */
kv_largest_fn *kv_largest_choose(void);
