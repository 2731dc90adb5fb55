/*
 * The integer score: reference against a 128-bit oracle, every other path that this CPU has against
 * the reference, and the 16-bit map.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/score.h"
#include "tests/rounds.h"
#include "tests/kv/digests.h"

#define SEED       77001u
#define ROUNDS     TEST_ROUNDS(400)
#define TOKENS_MAX 70u

static const char *const fast_paths[] = {"avx2", "avx512", "avx512vnni"};
#define N_FAST_PATHS (sizeof(fast_paths) / sizeof(fast_paths[0]))

struct scene {
    struct kv_geometry g;
    uint32_t n;
    int8_t *q, *k;
    uint8_t *shifts, *exponents;
    uint8_t *groups; /* of k and exponents */
    int64_t *offsets;
    uint32_t terms, share; /* of a KV head */
    struct kv_query query;
};

/* of a key of `bits` */
static int8_t random_key(uint32_t bits, int extreme)
{
    int most = bits == 4 ? 7 : 127;
    if (extreme)
        return (int8_t)(rand() % 2 ? most : -most);
    return (int8_t)(rand() % (2 * most + 1) - most);
}

static int8_t random_mantissa(int extreme)
{
    if (extreme)
        return rand() % 2 ? 127 : -127;
    return (int8_t)(rand() % 255 - 127);
}

/* Digests in rows of tokens, put into groups whose other bytes are random: those must not matter.
 */
static uint8_t *make_groups(const struct kv_geometry *g, const int8_t *k, const uint8_t *exponents,
                            uint32_t n)
{
    size_t bytes = (size_t)kv_groups_touched(0, n) * kv_group_bytes(g);
    uint8_t *groups = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        groups[i] = (uint8_t)rand();
    for (uint32_t t = 0; t < n; t++)
        kv_digest_put(g, groups, t, k + (size_t)t * kv_key_dims(g), exponents + t * g->n_kv_heads);
    return groups;
}

/* exact sizes on the heap, so that a load beyond a head's end is found under ASan */
static void scene_make(struct scene *s, int round)
{
    int extreme = round % 4;
    s->g = (struct kv_geometry){1, 64, 1 + (uint32_t)rand() % 64, 1 + (uint32_t)rand() % 512};
    if (round % 5 == 0)
        s->g.head_dim = 32u * (1 + (uint32_t)rand() % 16);
    if (round % 5 == 1) /* several heads or tokens to a vector */
        s->g = (struct kv_geometry){1, 64, 1 + (uint32_t)rand() % 9, 1 + (uint32_t)rand() % 64};
    s->g.digest_bits = round % 7 < 4 ? 8 : 4;
    uint32_t importance = (uint32_t)rand() % KV_IMPORTANCE_COUNT;
    s->g.n_heads = s->g.n_kv_heads * (1 + (uint32_t)rand() % 9);
    if (s->g.n_heads * s->g.head_dim > KV_MAX_KEY_DIMS)
        s->g.n_heads = s->g.n_kv_heads;
    s->share = importance == KV_IMPORTANCE_HEADS ? s->g.n_heads / s->g.n_kv_heads : 1;
    s->terms = s->g.n_kv_heads * s->share;
    s->n = (uint32_t)rand() % (round % 3 == 0 ? TOKENS_MAX + 1 : 6);
    uint32_t dims = kv_key_dims(&s->g);
    s->q = malloc((size_t)dims * s->share);
    s->shifts = malloc(s->terms);
    s->offsets = malloc(s->terms * sizeof *s->offsets);
    s->k = malloc((size_t)dims * s->n + 1);
    s->exponents = malloc((size_t)s->g.n_kv_heads * s->n + 1);
    for (uint32_t i = 0; i < dims * s->share; i++)
        s->q[i] = extreme == 2 ? 127 : random_mantissa(extreme);
    for (uint32_t i = 0; i < dims * s->n; i++)
        s->k[i] = extreme == 2 ? (s->g.digest_bits == 4 ? -7 : -127)
                               : random_key(s->g.digest_bits, extreme);
    for (uint32_t i = 0; i < s->terms; i++) {
        int64_t most = (int64_t)1 << (extreme ? 47 : rand() % 40);
        s->shifts[i] = extreme ? KV_QUERY_SHIFT_MAX : (uint8_t)(rand() % 9);
        s->offsets[i] =
            extreme ? most : (int64_t)(((double)rand() / RAND_MAX - 0.5) * (double)most);
    }
    for (uint32_t i = 0; i < s->g.n_kv_heads * s->n; i++)
        s->exponents[i] = extreme ? KV_KEY_EXP_MAX : (uint8_t)(rand() % 17);
    s->groups = make_groups(&s->g, s->k, s->exponents, s->n);
    s->query = (struct kv_query){s->q, s->shifts, importance, rand() % 4 ? s->offsets : NULL};
}

static void scene_free(struct scene *s)
{
    free(s->q);
    free(s->k);
    free(s->shifts);
    free(s->offsets);
    free(s->exponents);
    free(s->groups);
}

/* Magnitude by repeated halving instead of leading zeros. */
static uint16_t oracle_score16(__int128 value)
{
    __int128 a = value < 0 ? -value : value;
    long magnitude = 0, e = 8;
    while (a >= 512 * 2) {
        a /= 2;
        e++;
    }
    if (a < 512 && e == 8)
        magnitude = (long)a;
    else
        magnitude = (e + 1 - 8) * 512 + (long)(a - 512);
    return (uint16_t)(value < 0 ? 32767 - magnitude : 32768 + magnitude);
}

static uint16_t oracle_score(const struct scene *s, uint32_t t)
{
    __int128 sum = 0, largest = 0;
    for (uint32_t j = 0; j < s->terms; j++) {
        uint32_t h = j / s->share;
        __int128 term = 0;
        for (uint32_t i = 0; i < s->g.head_dim; i++)
            term += (__int128)s->q[j * s->g.head_dim + i] *
                    s->k[(t * s->g.n_kv_heads + h) * s->g.head_dim + i];
        for (int b = s->exponents[t * s->g.n_kv_heads + h] + s->shifts[j]; b > 0; b--)
            term *= 2;
        term -= s->query.offsets ? s->offsets[j] : 0;
        sum += term;
        largest = j == 0 || term > largest ? term : largest;
    }
    assert_true(sum < (__int128)1 << 56 && sum > -((__int128)1 << 56));
    return oracle_score16(s->query.importance == KV_IMPORTANCE_SUM ? sum : largest);
}

static void the_reference_matches_a_128_bit_oracle(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED);
    srand(SEED);
    for (int round = 0; round < ROUNDS; round++) {
        struct scene s;
        uint16_t scores[TOKENS_MAX];
        scene_make(&s, round);
        kv_score_reference(&s.g, &s.query, s.groups, s.n, scores);
        for (uint32_t t = 0; t < s.n; t++)
            assert_int_equal(scores[t], oracle_score(&s, t));
        scene_free(&s);
    }
}

/* Those of this CPU, with the reference. */
static void every_path_agrees(const struct kv_geometry *g, const struct kv_query *query,
                              const uint8_t *groups, uint32_t n)
{
    uint16_t reference[TOKENS_MAX], fast[TOKENS_MAX + 1];
    kv_score_reference(g, query, groups, n, reference);
    for (size_t i = 0; i < N_FAST_PATHS; i++) {
        kv_score_fn *score = kv_score_choose(fast_paths[i]);
        if (score == NULL)
            continue;
        memset(fast, 0xa5, sizeof(fast));
        score(g, query, groups, n, fast);
        assert_memory_equal(fast, reference, n * sizeof(*fast));
        assert_int_equal(fast[n], 0xa5a5); /* and not one score more */
    }
}

static void every_path_equals_the_reference_bit_for_bit(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 1);
    srand(SEED + 1);
    for (int round = 0; round < 4 * ROUNDS; round++) {
        struct scene s;
        scene_make(&s, round);
        every_path_agrees(&s.g, &s.query, s.groups, s.n);
        scene_free(&s);
    }
}

static void compare_paths_of(uint32_t heads, uint32_t dim, uint32_t n, uint32_t bits)
{
    struct kv_geometry g = {1, heads, heads, dim, bits};
    uint32_t dims = kv_key_dims(&g);
    int8_t *q = malloc(dims), *k = malloc((size_t)dims * n);
    uint8_t shifts[KV_MAX_KV_HEADS], *exponents = malloc((size_t)heads * n);
    for (uint32_t i = 0; i < dims; i++)
        q[i] = random_mantissa(0);
    for (uint32_t i = 0; i < dims * n; i++)
        k[i] = random_key(bits, 0);
    for (uint32_t i = 0; i < heads * n; i++)
        exponents[i] = (uint8_t)(rand() % (KV_KEY_EXP_MAX + 1));
    for (uint32_t h = 0; h < heads; h++)
        shifts[h] = (uint8_t)(rand() % (KV_QUERY_SHIFT_MAX + 1));
    int64_t offsets[KV_MAX_KV_HEADS];
    for (uint32_t h = 0; h < heads; h++)
        offsets[h] = (int64_t)(rand() - RAND_MAX / 2) * 1000;
    struct kv_query query = {q, shifts, (uint32_t)rand() % KV_IMPORTANCE_COUNT, offsets};
    uint8_t *groups = make_groups(&g, k, exponents, n);
    every_path_agrees(&g, &query, groups, n);
    free(q);
    free(k);
    free(exponents);
    free(groups);
}

static void compare_paths(uint32_t heads, uint32_t dim, uint32_t n)
{
    compare_paths_of(heads, dim, n, 8);
    compare_paths_of(heads, dim, n, 4);
}

static void every_head_dimension_agrees_on_all_paths(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 3);
    srand(SEED + 3);
    for (uint32_t dim = 1; dim <= KV_MAX_HEAD_DIM; dim++)
        compare_paths(1 + dim % 7, dim, 1 + dim % 35);
}

static void every_number_of_heads_and_tokens_agrees_on_all_paths(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 4);
    srand(SEED + 4);
    for (uint32_t heads = 1; heads <= KV_MAX_KV_HEADS; heads++)
        compare_paths(heads, 8 * (1 + heads % 9), 16);
    for (uint32_t n = 1; n <= TOKENS_MAX; n++)
        for (uint32_t heads = 1; heads <= 8; heads++)
            compare_paths(heads, 8 + (n * heads) % 60, n);
}

/* a damaged exponent byte is a wrong score, not undefined behaviour, and the same one on all paths
 */
static void exponents_out_of_range_are_harmless(void **state)
{
    (void)state;
    struct kv_geometry g = {1, 2, 2, 40};
    int8_t q[80], k[80];
    uint8_t shifts[2] = {255, 8}, exponents[2];
    uint8_t *groups = calloc(1, kv_group_bytes(&g));
    memset(q, 127, sizeof(q));
    memset(k, -127, sizeof(k));
    for (uint32_t e = 0; e < 256; e++) {
        exponents[0] = (uint8_t)e;
        exponents[1] = (uint8_t)(255 - e);
        kv_digest_put(&g, groups, 0, k, exponents);
        struct kv_query query = {q, shifts, e % KV_IMPORTANCE_COUNT, NULL};
        every_path_agrees(&g, &query, groups, 1);
    }
    free(groups);
}

/* what no digest holds: -128, in every lane, and words beyond a head's last dimension */
static void mantissas_out_of_range_agree_on_all_paths(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 5);
    srand(SEED + 5);
    for (uint32_t round = 0; round < 140; round++) {
        uint32_t dim = 1 + round / 2;
        struct kv_geometry g = {1, 3, 3, dim, round % 2 ? 8 : 4};
        uint32_t n = 1 + dim % 33, bytes = kv_groups_touched(0, n) * kv_group_bytes(&g);
        int8_t q[3 * 70];
        uint8_t shifts[3] = {0, 8, 3}, *groups = malloc(bytes);
        for (uint32_t i = 0; i < kv_key_dims(&g); i++)
            q[i] = random_mantissa(dim % 3);
        for (uint32_t i = 0; i < bytes; i++)
            groups[i] = rand() % 3 ? 0x80 : (uint8_t)rand();
        struct kv_query query = {q, shifts, dim % KV_IMPORTANCE_COUNT, NULL};
        every_path_agrees(&g, &query, groups, n);
        free(groups);
    }
}

static int64_t random_value(void)
{
    uint64_t bits = (uint64_t)rand() << 33 ^ (uint64_t)rand() << 11 ^ (uint64_t)rand();
    int64_t value = (int64_t)(bits >> (9 + rand() % 55));
    return rand() % 2 ? -value : value;
}

static void score16_is_monotone(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED + 2);
    srand(SEED + 2);
    for (int i = 0; i < TEST_ROUNDS(1000000); i++) {
        int64_t a = random_value(), b = rand() % 4 ? random_value() : a + rand() % 3 - 1;
        if (a > b) {
            int64_t c = a;
            a = b;
            b = c;
        }
        assert_true(kv_score16(a) <= kv_score16(b));
    }
}

static void score16_matches_the_oracle_around_every_power_of_two(void **state)
{
    (void)state;
    for (int64_t v = -70000; v <= 70000; v++)
        assert_int_equal(kv_score16(v), oracle_score16(v));
    for (int b = 9; b <= 62; b++) {
        for (int64_t d = -1100; d <= 1100; d++) {
            int64_t v = ((int64_t)1 << b) + d;
            assert_int_equal(kv_score16(v), oracle_score16(v));
            assert_int_equal(kv_score16(-v), oracle_score16(-v));
            assert_true(kv_score16(v - 1) <= kv_score16(v));
        }
    }
    assert_int_equal(kv_score16(0), 0x8000);
    assert_int_equal(kv_score16(-1), 0x7ffe);
    assert_true(kv_score16(INT64_MIN) <= kv_score16(-INT64_MAX));
    assert_true(kv_score16(INT64_MAX) > kv_score16(INT64_MAX / 2));
}

static void paths_and_importances_go_by_name(void **state)
{
    (void)state;
    uint32_t importance = 9;
    assert_ptr_equal(kv_score_choose("reference"), kv_score_reference);
    assert_ptr_equal(kv_score_choose("auto"), kv_score_choose(NULL));
    assert_null(kv_score_choose("AVX2"));
    assert_null(kv_score_choose(""));
    assert_ptr_equal(kv_score_choose("avx2"), kv_score_has_avx2() ? kv_score_avx2 : NULL);
    assert_ptr_equal(kv_score_choose("avx512"), kv_score_has_avx512() ? kv_score_avx512 : NULL);
    assert_ptr_equal(kv_score_choose("avx512vnni"),
                     kv_score_has_avx512vnni() ? kv_score_avx512vnni : NULL);
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i++) {
        assert_int_equal(kv_importance_parse(kv_importance_name(i), &importance), 0);
        assert_int_equal(importance, i);
    }
    assert_int_equal(kv_importance_parse("mean", &importance), HILL_E_INVALID);
    assert_null(kv_importance_name(KV_IMPORTANCE_COUNT));
}

/* Of any bytes, also such as no digest has; groups that are not looked at lie between. */
static void largest_terms_are_the_references(kv_largest_fn *largest)
{
    for (int round = 0; round < TEST_ROUNDS(400); round++) {
        struct scene s;
        scene_make(&s, round);
        struct kv_group_steps of = {NULL, (uint32_t)rand() % 5, 1 + (uint32_t)rand() % 3};
        size_t room = (size_t)s.terms * KV_GROUP_TOKENS * sizeof(int64_t);
        size_t bytes = of.n ? ((of.n - 1) * of.every + 1) * (size_t)kv_group_bytes(&s.g) : 0;
        int64_t(*expected)[KV_GROUP_TOKENS] = malloc(room), (*got)[KV_GROUP_TOKENS] = malloc(room);
        uint8_t *groups = malloc(bytes + 1);
        for (size_t i = 0; i < bytes; i++)
            groups[i] = round % 4 ? (uint8_t)rand() : 0x80;
        for (uint32_t i = 0; i < s.terms * KV_GROUP_TOKENS; i++)
            ((int64_t *)expected)[i] = rand() % 2 ? INT64_MIN : (int64_t)rand() << rand() % 32;
        for (uint32_t t = 0; round % 2 && t < s.terms; t++)
            s.shifts[t] = (uint8_t)rand();
        memcpy(got, expected, room);
        of.groups = groups;
        kv_largest_reference(&s.g, &s.query, &of, expected);
        largest(&s.g, &s.query, &of, got);
        assert_memory_equal(got, expected, room);
        free(expected);
        free(got);
        free(groups);
        scene_free(&s);
    }
}

static void largest_terms_of_every_path_are_the_references(void **state)
{
    (void)state;
    assert_ptr_equal(kv_largest_choose(), kv_score_has_avx512vnni() ? kv_largest_avx512vnni
                                          : kv_score_has_avx512()   ? kv_largest_avx512
                                          : kv_score_has_avx2()     ? kv_largest_avx2
                                                                    : kv_largest_reference);
    if (!kv_score_has_avx2())
        skip();
    print_message("seed %u\n", SEED + 6);
    srand(SEED + 6);
    largest_terms_are_the_references(kv_largest_avx2);
    if (kv_score_has_avx512())
        largest_terms_are_the_references(kv_largest_avx512);
    if (kv_score_has_avx512vnni())
        largest_terms_are_the_references(kv_largest_avx512vnni);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_matches_a_128_bit_oracle),
        cmocka_unit_test(every_path_equals_the_reference_bit_for_bit),
        cmocka_unit_test(every_head_dimension_agrees_on_all_paths),
        cmocka_unit_test(every_number_of_heads_and_tokens_agrees_on_all_paths),
        cmocka_unit_test(exponents_out_of_range_are_harmless),
        cmocka_unit_test(mantissas_out_of_range_agree_on_all_paths),
        cmocka_unit_test(score16_is_monotone),
        cmocka_unit_test(score16_matches_the_oracle_around_every_power_of_two),
        cmocka_unit_test(paths_and_importances_go_by_name),
        cmocka_unit_test(largest_terms_of_every_path_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
