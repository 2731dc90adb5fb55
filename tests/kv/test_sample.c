/*
 * test_sample.c - what query heads reach on the sample is the log sum exp of the book, worked out
 * here from the mantissas; and the sample is a matter of positions alone.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kv/sample.h"
#include "tests/rounds.h"

#define SEED 55001u

struct scene {
    struct kv_geometry g;
    uint32_t n_tokens, count;
    int32_t exponent; /* of a mantissa at shift 0 */
    uint8_t *groups;
    int8_t *mantissas;
    uint8_t shifts[16];
    struct kv_query query;
};

static void scene_make(struct scene *s, uint32_t n_tokens)
{
    uint32_t kv_heads = 1 + (uint32_t)rand() % 3;
    s->g = (struct kv_geometry){1, kv_heads * (1 + (uint32_t)rand() % 5), kv_heads,
                                1 + (uint32_t)rand() % 70, rand() % 2 ? 4 : 8};
    s->n_tokens = n_tokens;
    s->count = kv_sample_count(n_tokens);
    s->exponent = rand() % 30 - 20;
    s->groups = malloc((size_t)(s->count / 16 + 1) * kv_group_bytes(&s->g));
    s->mantissas = malloc((size_t)s->g.n_heads * s->g.head_dim);
    uint16_t *keys = malloc((size_t)(s->count + 1) * kv_key_dims(&s->g) * sizeof *keys);
    for (uint32_t i = 0; i < s->count * kv_key_dims(&s->g); i++)
        keys[i] = (uint16_t)((rand() & 0x83ff) | (8 + rand() % 12) << 10);
    kv_digest_keys(&s->g, keys, kv_key_dims(&s->g), s->count, s->groups, 0);
    free(keys);
    for (uint32_t i = 0; i < s->g.n_heads * s->g.head_dim; i++)
        s->mantissas[i] = (int8_t)(rand() % 255 - 127);
    for (uint32_t h = 0; h < s->g.n_heads; h++)
        s->shifts[h] = (uint8_t)(rand() % (KV_QUERY_SHIFT_MAX + 1));
    s->query = (struct kv_query){s->mantissas, s->shifts, KV_IMPORTANCE_HEADS, NULL};
}

static void scene_free(struct scene *s)
{
    free(s->groups);
    free(s->mantissas);
}

/* The logit of sample i. */
static long double oracle_logit(const struct scene *s, uint32_t head, uint32_t sample)
{
    int8_t key[KV_MAX_HEAD_DIM];
    long double term = 0;
    uint8_t byte =
        kv_digest_get_head(&s->g, s->groups, sample, head / (s->g.n_heads / s->g.n_kv_heads), key);
    for (uint32_t i = 0; i < s->g.head_dim; i++)
        term += s->mantissas[head * s->g.head_dim + i] * (long double)key[i];
    return ldexpl(term, byte + s->shifts[head] + s->exponent - (s->g.digest_bits == 4 ? 6 : 10)) /
           sqrtl(s->g.head_dim);
}

/* Of the others every second one, every fourth, ... where there are more than 512: those whose
 * position is followed by a multiple of 64, of 128, ... */
static long double oracle_reach(const struct scene *s, uint32_t head)
{
    uint32_t step = 32, first = s->n_tokens < 4 ? s->n_tokens : 4;
    long double best = -INFINITY, sum = 0;
    while (s->n_tokens / step > 512)
        step *= 2;
    for (uint32_t p = step - 1; p < s->n_tokens; p += step)
        best = fmaxl(best, oracle_logit(s, head, 4 + (p + 1) / 32 - 1));
    long double most = best;
    for (uint32_t p = 0; p < first; p++)
        most = fmaxl(most, oracle_logit(s, head, p));
    for (uint32_t p = 0; p < first; p++)
        sum += expl(oracle_logit(s, head, p) - most);
    return most + logl(sum + expl(best - most));
}

static void offsets_are_what_heads_reach_on_the_sample(void **state)
{
    static const uint32_t lengths[] = {1,   3,    4,     31,    32,    33,     64,
                                       500, 2048, 16383, 16416, 40000, 140000, 300000};
    (void)state;
    print_message("seed %u\n", SEED);
    srand(SEED);
    for (int round = 0; round < TEST_ROUNDS(240); round++) {
        struct scene s;
        int64_t offsets[16];
        scene_make(&s, lengths[(size_t)round % (sizeof lengths / sizeof *lengths)]);
        long double unit =
            ldexpl(1, s.exponent - (s.g.digest_bits == 4 ? 6 : 10)) / sqrtl(s.g.head_dim);
        kv_sample_offsets(&s.g, &s.query, s.exponent, s.groups, s.n_tokens, offsets);
        for (uint32_t h = 0; h < s.g.n_heads; h++) {
            long double off = (long double)offsets[h] * unit - oracle_reach(&s, h);
            assert_true(fabsl(off) <= 1.0L / 128 + unit + 0x1p-30L); /* rounded to 1/64 */
        }
        scene_free(&s);
    }
}

/* A sampled token from n_tokens on is as if it were not there; one below counts. */
static void only_tokens_of_the_query_count(void **state)
{
    (void)state;
    srand(SEED + 1);
    struct scene s;
    int64_t before[16], after[16], later[16];
    scene_make(&s, 640);
    kv_sample_offsets(&s.g, &s.query, s.exponent, s.groups, 640 - 1, before);
    int8_t other[KV_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < s.g.n_heads; t++) { /* one that reaches far for each head in turn */
        uint32_t h = t / (s.g.n_heads / s.g.n_kv_heads);
        for (uint32_t i = 0; i < s.g.head_dim; i++)
            other[i] = (int8_t)(s.mantissas[t * s.g.head_dim + i] < 0 ? -7 : 7);
        kv_digest_put_head(&s.g, s.groups, 23, h, other, KV_KEY_EXP_MAX);
        kv_sample_offsets(&s.g, &s.query, s.exponent, s.groups, 640 - 1, after);
        kv_sample_offsets(&s.g, &s.query, s.exponent, s.groups, 640, later);
        assert_memory_equal(before, after, s.g.n_heads * sizeof *before);
        assert_true(later[t] > after[t]);
    }
    scene_free(&s);
}

static void samples_go_by_position(void **state)
{
    uint32_t i = 0;
    (void)state;
    for (uint32_t p = 0; p < 5000; p++) {
        assert_int_equal(kv_sample_count(p), i);
        if (p < 4 || p % 32 == 31)
            assert_int_equal(kv_sample_position(i++), p);
    }
}

/* A query of zeros, one near zero, no token. */
static void nothing_to_measure_by(void **state)
{
    const struct kv_geometry g = {1, 2, 1, 4};
    const int8_t q[8] = {0, 0, 0, 0, -5, 0, 0, 7}, key[4] = {10, 0, -1, 2};
    const uint8_t shifts[2] = {0, 3};
    const struct kv_query query = {q, shifts, KV_IMPORTANCE_HEADS, NULL};
    uint8_t groups[2 * 1024] = {0};
    int64_t offsets[2] = {1, 1};
    (void)state;
    assert_true(kv_groups_touched(0, 20) * kv_group_bytes(&g) <= sizeof groups);
    for (uint32_t i = 0; i < 20; i++)
        kv_digest_put_head(&g, groups, i, 0, key, 5);
    kv_sample_offsets(&g, &query, 0, groups, 0, offsets);
    assert_int_equal(offsets[0] | offsets[1], 0);
    kv_sample_offsets(&g, &query, 0, groups, 500, offsets); /* log 5 is 103 / 64, a unit 2^-11 */
    assert_int_equal(offsets[0], 103 * 2048 / 64);
    assert_int_equal(offsets[1], (-50 + 14) * 256 + 103 * 2048 / 64);
    kv_sample_offsets(&g, &query, -150, groups, 500, offsets);
    assert_true(offsets[0] == (int64_t)1 << 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_are_what_heads_reach_on_the_sample),
        cmocka_unit_test(only_tokens_of_the_query_count),
        cmocka_unit_test(samples_go_by_position),
        cmocka_unit_test(nothing_to_measure_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
