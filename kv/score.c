/*
 * kv/score.c - the plain reference of the integer score, names of the importance functions, choice
 * of code path.
 *
 * This is the definition that AVX2, AVX-512 and the OpenCL kernel are tested against. Offsets are
 * taken off in unsigned 64-bit numbers: a damaged one gives a wrong score, never undefined
 * behaviour. Otherwise nothing wraps (kv/score.h). Who calls it: the scorer's threads, the agent's
 * fallback. Concurrency: pure functions.
 */
#include <stdbool.h>
#include <string.h>

#include "kv/score.h"

static const char *const importance_names[KV_IMPORTANCE_COUNT] = {
    [KV_IMPORTANCE_SUM] = "sum",
    [KV_IMPORTANCE_MAX] = "max",
    [KV_IMPORTANCE_NORM] = "norm",
    [KV_IMPORTANCE_HEADS] = "heads",
};

const char *kv_importance_name(uint32_t importance)
{
    return importance < KV_IMPORTANCE_COUNT ? importance_names[importance] : NULL;
}

int kv_importance_parse(const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i++) {
        if (strcmp(name, importance_names[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    return HILL_E_INVALID;
}

static int32_t head_product(const int8_t *q, const int8_t *k, uint32_t head_dim)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < head_dim; i++)
        sum += (int32_t)q[i] * k[i];
    return sum;
}

/* A term of a token, less no offset. */
static int64_t term_of(const struct kv_query *query, uint32_t t, const int8_t *key,
                       uint8_t exponent, uint32_t head_dim)
{
    int64_t product = head_product(query->mantissas + t * head_dim, key, head_dim);
    return product * ((int64_t)1 << (kv_key_exponent(exponent) + kv_query_shift(query->shifts[t])));
}

void kv_largest_reference(const struct kv_geometry *g, const struct kv_query *query,
                          const struct kv_group_steps *of, int64_t (*largest)[KV_GROUP_TOKENS])
{
    uint32_t terms = kv_query_terms(g, query->importance), share = terms / g->n_kv_heads;
    int8_t key[KV_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < of->n * KV_GROUP_TOKENS; i++) {
        uint32_t lane = i % KV_GROUP_TOKENS;
        uint64_t token = (uint64_t)(i / KV_GROUP_TOKENS) * of->every * KV_GROUP_TOKENS + lane;
        for (uint32_t t = 0; t < terms; t++) {
            uint8_t exponent = kv_digest_get_head(g, of->groups, token, t / share, key);
            int64_t term = term_of(query, t, key, exponent, g->head_dim);
            largest[t][lane] = term > largest[t][lane] ? term : largest[t][lane];
        }
    }
}

void kv_score_reference(const struct kv_geometry *g, const struct kv_query *query,
                        const uint8_t *groups, uint32_t n, uint16_t *scores)
{
    uint32_t terms = kv_query_terms(g, query->importance), share = terms / g->n_kv_heads;
    int8_t key[KV_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < n; t++) {
        uint64_t sum = 0;
        int64_t maximum = INT64_MIN;
        for (uint32_t i = 0; i < terms; i++) {
            uint8_t exponent = kv_digest_get_head(g, groups, t, i / share, key);
            uint64_t term = (uint64_t)term_of(query, i, key, exponent, g->head_dim);
            term -= query->offsets ? (uint64_t)query->offsets[i] : 0;
            sum += term;
            maximum = (int64_t)term > maximum ? (int64_t)term : maximum;
        }
        scores[t] = kv_score16(query->importance == KV_IMPORTANCE_SUM ? (int64_t)sum : maximum);
    }
}

/* ---- a query's bytes ------------------------------------------------------------------------ */

uint32_t kv_query_bytes(const struct kv_geometry *g, uint32_t importance)
{
    return kv_query_terms(g, importance) * ((uint32_t)sizeof(int64_t) + g->head_dim + 1);
}

uint32_t kv_query_bytes_max(const struct kv_geometry *g)
{
    return g->n_heads * ((uint32_t)sizeof(int64_t) + kv_head_words(g) * kv_word_dims(g) + 1);
}

/* Where its parts lie. */
struct query_parts {
    int64_t *offsets;
    int8_t *mantissas;
    uint8_t *shifts;
};

static struct query_parts parts_of(uint32_t terms, uint32_t mantissa_bytes, void *bytes)
{
    int8_t *mantissas = (int8_t *)bytes + terms * sizeof(int64_t);
    return (struct query_parts){bytes, mantissas, (uint8_t *)mantissas + mantissa_bytes};
}

static void put_offsets(const struct kv_query *query, uint32_t terms, int64_t *offsets)
{
    if (query->offsets)
        memmove(offsets, query->offsets, terms * sizeof *offsets);
    else
        memset(offsets, 0, terms * sizeof *offsets);
}

struct kv_query kv_query_make(const struct kv_geometry *g, uint32_t importance, const float *q,
                              void *bytes, int32_t *exponent)
{
    uint32_t terms = kv_query_terms(g, importance);
    struct query_parts to = parts_of(terms, terms * g->head_dim, bytes);
    *exponent = kv_digest_query(g, importance, q, to.mantissas, to.shifts);
    memset(to.offsets, 0, terms * sizeof *to.offsets);
    return (struct kv_query){to.mantissas, to.shifts, importance, to.offsets};
}

void kv_query_put(const struct kv_geometry *g, const struct kv_query *query, void *bytes)
{
    uint32_t terms = kv_query_terms(g, query->importance);
    struct query_parts to = parts_of(terms, terms * g->head_dim, bytes);
    put_offsets(query, terms, to.offsets);
    memcpy(to.mantissas, query->mantissas, (size_t)terms * g->head_dim);
    memcpy(to.shifts, query->shifts, terms);
}

struct kv_query kv_query_at(const struct kv_geometry *g, uint32_t importance, const void *bytes)
{
    uint32_t terms = kv_query_terms(g, importance);
    struct query_parts from = parts_of(terms, terms * g->head_dim, (void *)(uintptr_t)bytes);
    return (struct kv_query){from.mantissas, from.shifts, importance, from.offsets};
}

uint32_t kv_query_send(const struct kv_geometry *g, const struct kv_query *query, void *bytes)
{
    uint32_t terms = kv_query_terms(g, query->importance);
    uint32_t words_bytes = kv_query_words_bytes(g, terms);
    struct query_parts to = parts_of(terms, words_bytes, bytes);
    put_offsets(query, terms, to.offsets);
    memmove(to.mantissas, kv_query_words(g, terms, query->mantissas, to.mantissas), words_bytes);
    memcpy(to.shifts, query->shifts, terms);
    return terms * (uint32_t)sizeof(int64_t) + words_bytes + terms;
}

kv_score_fn *kv_score_choose(const char *name)
{
    const struct {
        const char *name;
        kv_score_fn *score;
        int here;
    } paths[] = {/* the best first */
                 {"avx512vnni", kv_score_avx512vnni, kv_score_has_avx512vnni()},
                 {"avx512", kv_score_avx512, kv_score_has_avx512()},
                 {"avx2", kv_score_avx2, kv_score_has_avx2()},
                 {"reference", kv_score_reference, 1}};
    bool any = name == NULL || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (paths[i].here && (any || strcmp(name, paths[i].name) == 0))
            return paths[i].score;
    }
    return NULL;
}

kv_largest_fn *kv_largest_choose(void)
{
    if (kv_score_has_avx512vnni())
        return kv_largest_avx512vnni;
    if (kv_score_has_avx512())
        return kv_largest_avx512;
    return kv_score_has_avx2() ? kv_largest_avx2 : kv_largest_reference;
}
