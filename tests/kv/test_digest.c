/*
 * The digest of keys and queries against an oracle in double precision that shares no code with it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kv/score.h"
#include "tests/kv/digests.h"

#define SEED 20240611u

static double half_value(uint16_t h) /* NaN counts as 0, infinity as 65504 */
{
    double sign = (h & 0x8000) ? -1.0 : 1.0;
    int e = (h >> 10) & 31, f = h & 1023;
    if (e == 31)
        return f ? 0.0 : sign * 65504.0;
    return sign * (e == 0 ? ldexp(f, -24) : ldexp(1024 + f, e - 25));
}

/* half even by looking at the distances, not by the rounding mode */
static double round_half_even(double x)
{
    double low = floor(x), rest = x - low;
    if (rest > 0.5 || (rest == 0.5 && fmod(low, 2.0) != 0.0))
        return low + 1.0;
    return low;
}

static int clamp_to(int most, double x)
{
    return x > most ? most : x < -most ? -most : (int)x;
}

static void oracle_head(const uint16_t *k, uint32_t dim, uint32_t bits, int8_t *m, uint8_t *byte)
{
    const int most = bits == 4 ? 7 : 127, lowest = bits == 4 ? -6 : -10;
    double largest = 0;
    for (uint32_t i = 0; i < dim; i++)
        largest = fmax(largest, fabs(half_value(k[i])));
    int e = lowest;
    while (e < lowest + 16 && largest > most * pow(2, e))
        e++;
    for (uint32_t i = 0; i < dim; i++)
        m[i] = (int8_t)clamp_to(most, round_half_even(half_value(k[i]) / pow(2, e)));
    *byte = (uint8_t)(e - lowest);
}

static void check_keys_of(const struct kv_geometry *g, const uint16_t *k, uint64_t stride,
                          uint32_t n)
{
    uint32_t dims = kv_key_dims(g);
    int8_t *m = malloc((size_t)n * dims), *om = malloc(dims);
    uint8_t *e = malloc((size_t)n * g->n_kv_heads), oe;
    uint32_t first = n % 21; /* not always lane 0 */
    uint8_t *groups = malloc((size_t)kv_groups_touched(0, first + n) * kv_group_bytes(g));
    kv_digest_keys(g, k, stride, n, groups, first);
    for (uint32_t t = 0; t < n; t++) {
        kv_digest_get(g, groups, first + t, m + (size_t)t * dims, e + t * g->n_kv_heads);
        for (uint32_t h = 0; h < g->n_kv_heads; h++) {
            oracle_head(k + t * stride + h * g->head_dim, g->head_dim, kv_digest_bits(g), om, &oe);
            assert_int_equal(e[t * g->n_kv_heads + h], oe);
            assert_memory_equal(m + (size_t)t * dims + h * g->head_dim, om, g->head_dim);
        }
    }
    free(m);
    free(om);
    free(e);
    free(groups);
}

/* INT8 and INT4 */
static void check_keys(const struct kv_geometry *g, const uint16_t *k, uint64_t stride, uint32_t n)
{
    struct kv_geometry four = *g;
    four.digest_bits = 4;
    check_keys_of(g, k, stride, n);
    check_keys_of(&four, k, stride, n);
}

static void every_half_alone_matches_the_oracle(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 1, 1, 1};
    uint16_t *all = malloc(65536 * sizeof(*all));
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    check_keys(&g, all, 1, 65536);
    free(all);
}

/* the partner sets the exponent, so that every half is rounded at every exponent */
static void every_half_beside_a_larger_one_matches_the_oracle(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 2, 1, 2};
    static const uint16_t partners[] = {0x0001, 0x2fff, 0x2ff0, 0x33f0, 0x37f1, 0x3bf0, 0x3ff0,
                                        0x43f0, 0x47f0, 0x4bf0, 0x4ff0, 0x53f0, 0x57f0, 0x5bf0,
                                        0x5ff0, 0x63f0, 0x67f0, 0x6bf0, 0x6ff0, 0x6ff1, 0x7bff};
    uint16_t *pairs = malloc(2 * 65536 * sizeof(*pairs));
    for (size_t p = 0; p < sizeof(partners) / sizeof(partners[0]); p++) {
        for (uint32_t i = 0; i < 65536; i++) {
            pairs[2 * i] = (uint16_t)i;
            pairs[2 * i + 1] = partners[p];
        }
        check_keys(&g, pairs, 2, 65536);
    }
    free(pairs);
}

static void random_keys_of_any_shape_and_stride_match_the_oracle(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED);
    srand(SEED);
    for (int round = 0; round < 200; round++) {
        struct kv_geometry g = {1, 8, 1u << (rand() % 4), 1 + (uint32_t)rand() % 96};
        uint64_t stride = kv_key_dims(&g) + (uint64_t)(rand() % 40);
        uint16_t *k = malloc(5 * stride * sizeof(*k));
        for (uint64_t i = 0; i < 5 * stride; i++)
            k[i] = (uint16_t)(rand() >> 3);
        check_keys(&g, k, stride, 5);
        free(k);
    }
}

static void a_zero_head_is_all_zero(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 2, 2, 3};
    uint16_t k[6] = {0x8000, 0, 0x8000, 0x3c00, 0, 0};
    int8_t m[6];
    uint8_t e[2], groups[256];
    assert_int_equal(kv_group_bytes(&g), 192);
    kv_digest_keys(&g, k, 6, 1, groups, 0);
    kv_digest_get(&g, groups, 0, m, e);
    assert_int_equal(e[0], 0);
    assert_int_equal(m[0] | m[1] | m[2], 0);
    assert_int_equal(e[1], 4); /* 1.0 = 64 * 2^-6; 2^-7 would need 128 */
    assert_int_equal(m[3], 64);
    g.digest_bits = 4;
    kv_digest_keys(&g, k, 6, 1, groups, 0);
    kv_digest_get(&g, groups, 0, m, e);
    assert_int_equal(e[0], 0);
    assert_int_equal(m[0] | m[1] | m[2], 0);
    assert_int_equal(e[1], 4); /* 1.0 = 4 * 2^-2; 2^-3 would need 8 */
    assert_int_equal(m[3], 4);
}

/* An element of the summed query of a KV head, FP32 after every addition. */
static float oracle_sum(const float *q, uint32_t group, uint32_t head_dim, uint32_t i)
{
    volatile float sum = 0;
    for (uint32_t j = 0; j < group; j++) {
        float v = q[j * head_dim + i];
        sum = sum + (isnan(v) || isinf(v) ? 0.0f : v);
    }
    return isinf(sum) ? 0.0f : sum;
}

/* Divided by their length, worked out with 64 bits of precision. */
static void oracle_unit(float *v, uint32_t n)
{
    long double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (long double)v[i] * v[i];
    for (uint32_t i = 0; i < n && squares > 0; i++)
        v[i] = (float)(v[i] / sqrtl(squares));
}

static void oracle_query(const struct kv_geometry *g, uint32_t importance, const float *q,
                         int8_t *m, uint8_t *shifts)
{
    uint32_t terms = importance == KV_IMPORTANCE_HEADS ? g->n_heads : g->n_kv_heads;
    uint32_t group = g->n_heads / terms;
    float *sums = malloc(terms * g->head_dim * sizeof(*sums));
    int e_of[KV_MAX_HEADS], e_max = -100000;
    for (uint32_t h = 0; h < terms; h++) {
        double largest = 0;
        const float *heads = q + h * group * g->head_dim;
        float *of = sums + h * g->head_dim;
        for (uint32_t i = 0; i < g->head_dim; i++)
            of[i] = oracle_sum(heads, group, g->head_dim, i);
        if (importance == KV_IMPORTANCE_NORM)
            oracle_unit(of, g->head_dim);
        for (uint32_t i = 0; i < g->head_dim; i++)
            largest = fmax(largest, fabs((double)of[i]));
        e_of[h] = -100000;
        if (largest > 0) {
            e_of[h] = -200;
            while (largest > 127.0 * pow(2, e_of[h]))
                e_of[h]++;
        }
        e_max = e_of[h] > e_max ? e_of[h] : e_max;
    }
    for (uint32_t h = 0; h < terms; h++) {
        int shift = e_max == -100000 ? 0 : e_of[h] - (e_max - 8);
        shift = shift < 0 ? 0 : shift;
        shifts[h] = (uint8_t)shift;
        for (uint32_t i = 0; i < g->head_dim; i++) {
            double v = sums[h * g->head_dim + i];
            m[h * g->head_dim + i] =
                (int8_t)(v == 0 ? 0
                                : clamp_to(127, round_half_even(v / pow(2, e_max - 8 + shift))));
        }
    }
    free(sums);
}

static float random_float(int spread)
{
    uint32_t special = (uint32_t)rand() % 200;
    if (special == 0)
        return NAN;
    if (special == 1)
        return INFINITY;
    if (special == 2)
        return -INFINITY;
    if (special == 3)
        return 3.0e38f;
    return ldexpf((float)rand() / (float)RAND_MAX * 2.0f - 1.0f,
                  rand() % (2 * spread + 1) - spread);
}

static void random_queries_match_the_oracle(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 1);
    srand(SEED + 1);
    for (int round = 0; round < 6000; round++) {
        uint32_t kv_heads = 1u << (rand() % 4);
        struct kv_geometry g = {1, kv_heads * (1 + (uint32_t)rand() % 4), kv_heads,
                                1 + (uint32_t)rand() % 20};
        uint32_t n = g.n_heads * g.head_dim;
        float *q = malloc(n * sizeof(*q));
        int spread = round / 3 % 3 == 0 ? 140 : round / 3 % 3 == 1 ? 10 : 1;
        for (uint32_t i = 0; i < n; i++)
            q[i] = round % 50 == 49 ? 0.0f : random_float(spread);
        int8_t *m = malloc(n), *om = malloc(n);
        uint8_t s[32], os[32];
        uint32_t importance = (uint32_t)round % KV_IMPORTANCE_COUNT;
        kv_digest_query(&g, importance, q, m, s);
        oracle_query(&g, importance, q, om, os);
        uint32_t terms = importance == KV_IMPORTANCE_HEADS ? g.n_heads : kv_heads;
        assert_memory_equal(s, os, terms);
        assert_memory_equal(m, om, terms * g.head_dim);
        free(q);
        free(m);
        free(om);
    }
}

/* 127 * 2^e exactly is still exponent e, one step above is e + 1; halves go to the even mantissa */
static void the_query_exponent_is_the_smallest_that_holds(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 3, 3, 2};
    float q[6] = {127.0f, 0.5f, nextafterf(127.0f, 200.0f), 3.0f, 0x1p-20f, 0.0f};
    int8_t m[6];
    uint8_t s[3];
    kv_digest_query(&g, KV_IMPORTANCE_SUM, q, m, s); /* e: 0, 1, -26; e_max 1, base -7 */
    assert_int_equal(s[0], 7);
    assert_int_equal(s[1], 8);
    assert_int_equal(s[2], 0);
    assert_int_equal(m[0], 127);
    assert_int_equal(m[1], 0);
    assert_int_equal(m[2], 64);
    assert_int_equal(m[3], 2);
    assert_int_equal(m[4], 0);
}

/* maximum takes the sum's digest; how long a KV head's query is does not count for norm */
static void only_norm_makes_queries_equally_long(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 4, 2, 3};
    float q[12] = {3, -1, 0.5f, 0.25f, 2, -7, 1, 1, -2, 0.125f, 0, 5}, longer[12];
    int8_t sum[6], other[6];
    uint8_t sum_shifts[2], shifts[2];
    for (int i = 0; i < 12; i++)
        longer[i] = ldexpf(q[i], 7 * (i / 6) - 9);
    kv_digest_query(&g, KV_IMPORTANCE_SUM, q, sum, sum_shifts);
    kv_digest_query(&g, KV_IMPORTANCE_MAX, q, other, shifts);
    assert_memory_equal(other, sum, 6);
    assert_memory_equal(shifts, sum_shifts, 2);
    kv_digest_query(&g, KV_IMPORTANCE_SUM, longer, other, shifts);
    assert_memory_not_equal(shifts, sum_shifts, 2);
    kv_digest_query(&g, KV_IMPORTANCE_NORM, q, sum, sum_shifts);
    assert_memory_not_equal(other, sum, 6);
    kv_digest_query(&g, KV_IMPORTANCE_NORM, longer, other, shifts);
    assert_memory_equal(other, sum, 6);
    assert_memory_equal(shifts, sum_shifts, 2);
}

/* the smallest and the largest FP32 numbers have a length; a zero head has none and stays zero */
static void norm_takes_any_length(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 3, 3, 2};
    float q[6] = {0x1p-149f, 0, 3.0e38f, -3.0e38f, 0, -0.0f};
    int8_t m[6];
    uint8_t shifts[3];
    kv_digest_query(&g, KV_IMPORTANCE_NORM, q, m, shifts); /* 1, 0; .7071, -.7071; e: -6, -7 */
    assert_int_equal(shifts[0], 8);
    assert_int_equal(m[0], 64);
    assert_int_equal(m[1], 0);
    assert_int_equal(shifts[1], 7);
    assert_int_equal(m[2], 91); /* 90.51 */
    assert_int_equal(m[3], -91);
    assert_int_equal(shifts[2], 0);
    assert_int_equal(m[4] | m[5], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_alone_matches_the_oracle),
        cmocka_unit_test(every_half_beside_a_larger_one_matches_the_oracle),
        cmocka_unit_test(random_keys_of_any_shape_and_stride_match_the_oracle),
        cmocka_unit_test(a_zero_head_is_all_zero),
        cmocka_unit_test(random_queries_match_the_oracle),
        cmocka_unit_test(the_query_exponent_is_the_smallest_that_holds),
        cmocka_unit_test(only_norm_makes_queries_equally_long),
        cmocka_unit_test(norm_takes_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
