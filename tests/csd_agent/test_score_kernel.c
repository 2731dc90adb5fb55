/*
 * test_score_kernel.c - the OpenCL kernel equals kv_score_reference bit for bit.
 */
#include "tests/csd_agent/score_forms.h"

#include "tests/kv/digests.h"
#include "tests/rounds.h"

#define BATCH_BYTES 1310720u /* more than the largest group */

/* The device is a simulator, as slow as one: a part of each test. */
static bool only_a_part(void)
{
    return getenv("HILL_TEST_FEW") != NULL;
}

/* Groups of n slots; the lanes after the last hold noise. */
static void fill(uint8_t *groups, const struct kv_geometry *g, uint32_t n, bool damaged)
{
    int8_t *m = malloc(kv_key_dims(g));
    uint8_t *e = malloc(g->n_kv_heads);
    assert_true(m && e);
    random_bytes(groups, (size_t)kv_groups_touched(0, n) * kv_group_bytes(g));
    for (uint32_t t = 0; !damaged && t < n; t++) {
        random_keys(g, m);
        for (uint32_t h = 0; h < g->n_kv_heads; h++)
            e[h] = (uint8_t)random_below(KV_KEY_EXP_MAX + 1);
        kv_digest_put(g, groups, t, m, e);
    } /* damaged, bytes that no digest has: the same wrong score, not another one */
    free(m);
    free(e);
}

/* Random pieces at random places of a batch, scored and compared. */
static void compare_batch(struct score_device *d, uint32_t b, const struct kv_geometry *g,
                          const struct kv_query *query, bool damaged)
{
    uint32_t at = 0, n_pieces = 0, n_slots = 0;
    struct score_piece pieces[8];
    struct hill_why why = {""};
    const uint16_t *scores;
    uint16_t expected[512];
    uint8_t *memory;

    assert_int_equal(score_device_map(d, b, &memory, &why), 0);
    while (n_pieces < 8) {
        uint32_t n = 1 + random_below(150), gap = random_below(4) * KV_GROUP_ALIGN;
        uint64_t bytes = (uint64_t)kv_groups_touched(0, n) * kv_group_bytes(g);
        if (at + gap + bytes > BATCH_BYTES) {
            n = 1 + random_below(KV_GROUP_TOKENS);
            bytes = kv_group_bytes(g);
        }
        if (at + gap + bytes > BATCH_BYTES)
            break;
        pieces[n_pieces++] = (struct score_piece){n, at + gap};
        fill(memory + at + gap, g, n, damaged);
        at += gap + (uint32_t)bytes;
        n_slots += n;
    }
    uint8_t *copy = malloc(BATCH_BYTES);
    assert_non_null(copy);
    memcpy(copy, memory, BATCH_BYTES);
    assert_int_equal(score_device_launch(d, b, pieces, n_pieces, &why), 0);
    assert_int_equal(score_device_wait(d, b, &scores, &why), 0);
    for (uint32_t i = 0, slot = 0; i < n_pieces; slot += pieces[i++].n_slots) {
        kv_score_reference(g, query, copy + pieces[i].at, pieces[i].n_slots, expected);
        assert_memory_equal(scores + slot, expected, pieces[i].n_slots * sizeof *expected);
    }
    assert_true(n_slots > 0);
    free(copy);
}

static struct score_device *create(const struct kv_geometry *g, enum score_form where)
{
    return score_form_create(g, where, BATCH_BYTES, false);
}

static void check_geometry_on(const struct kv_geometry *g, enum score_form where)
{
    struct score_device *d = create(g, where);
    struct hill_why why = {""};

    print_message("%u KV heads of %u, INT%u\n", g->n_kv_heads, g->head_dim, kv_digest_bits(g));
    for (uint32_t round = 0; round < 8; round += only_a_part() ? 7 : 1) {
        struct kv_query query = random_query(g, round % KV_IMPORTANCE_COUNT);
        assert_int_equal(score_device_query(d, &query, &why), 0);
        compare_batch(d, round / 2 % SCORE_BATCHES, g, &query, round >= 6);
        free_query(&query);
    }
    score_device_destroy(d);
}

static void check_geometry(const struct kv_geometry *g)
{
    for (enum score_form where = AS_IT_IS; where <= NO_DEVICE; where++)
        check_geometry_on(g, where);
}

static void test_equals_the_reference_for_shapes_of_models(void **state)
{
    static const struct kv_geometry shapes[] = {
        {1, 8, 4, 8},   {1, 32, 8, 128}, {1, 1, 1, 64},      {1, 4, 4, 80},     {1, 256, 256, 256},
        {1, 1, 1, 512}, {1, 8, 4, 8, 4}, {1, 32, 8, 128, 4}, {1, 1, 1, 512, 4},
    };
    (void)state;
    random_seed(1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!only_a_part() || kv_key_dims(&shapes[i]) <= 64)
            check_geometry(&shapes[i]);
}

static void test_equals_the_reference_for_random_geometries(void **state)
{
    (void)state;
    random_seed(2);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t heads = 1 + random_below(12), share = 1 + random_below(4);
        struct kv_geometry g = {1, heads * share, heads, 1 + random_below(200), i % 2 ? 4 : 8};
        check_geometry_on(&g, AS_IT_IS);
        check_geometry_on(&g, i / 2 % 2 ? AS_ACCELERATOR : AS_GPU); /* a build takes a second */
        check_geometry_on(&g, NO_DEVICE);
    }
}

/* All of n groups, a batch's room at a time. */
static void score_all(enum score_form where, const struct kv_geometry *g,
                      const struct kv_query *query, const uint8_t *groups, uint32_t n_groups,
                      uint16_t *scores)
{
    uint32_t most = BATCH_BYTES / kv_group_bytes(g);
    struct score_device *d = create(g, where);
    struct hill_why why = {""};
    const uint16_t *made;
    uint8_t *memory;

    assert_int_equal(score_device_query(d, query, &why), 0);
    for (uint32_t done = 0, n; done < n_groups; done += n) {
        n = n_groups - done < most ? n_groups - done : most;
        struct score_piece piece = {n * KV_GROUP_TOKENS, 0};
        assert_int_equal(score_device_map(d, 0, &memory, &why), 0);
        memcpy(memory, groups + (size_t)done * kv_group_bytes(g), (size_t)n * kv_group_bytes(g));
        assert_int_equal(score_device_launch(d, 0, &piece, 1, &why), 0);
        assert_int_equal(score_device_wait(d, 0, &made, &why), 0);
        memcpy(scores + (size_t)done * KV_GROUP_TOKENS, made, piece.n_slots * sizeof *scores);
    }
    score_device_destroy(d);
}

static void test_every_form_equals_the_reference_on_a_million_random_keys(void **state)
{
    /* whose kernels are built already */
    static const struct kv_geometry shapes[] = {{1, 8, 4, 8}, {1, 8, 4, 8, 4}};
    const uint32_t n_groups = only_a_part() ? 10 : TEST_ROUNDS(31250),
                   n = n_groups * KV_GROUP_TOKENS;
    uint16_t *expected = malloc(n * sizeof *expected), *scores = malloc(n * sizeof *scores);
    int8_t mantissas[32];
    uint8_t shifts[4] = {3, 0, 8, 1};

    (void)state;
    random_seed(3);
    for (size_t i = 0; i < 2; i++) {
        struct kv_query query = {mantissas, shifts, KV_IMPORTANCE_SUM, NULL};
        uint8_t *groups = malloc((size_t)n_groups * kv_group_bytes(&shapes[i]));
        assert_true(groups && scores && expected);
        random_bytes(mantissas, sizeof mantissas);
        random_digests(&shapes[i], groups, n_groups);
        kv_score_reference(&shapes[i], &query, groups, n, expected);
        for (enum score_form where = AS_IT_IS; where <= NO_DEVICE; where++) {
            score_all(where, &shapes[i], &query, groups, n_groups, scores);
            assert_memory_equal(scores, expected, n * sizeof *scores);
        }
        free(groups);
    }
    free(expected);
    free(scores);
}

static void test_refuses_pieces_outside_the_batch(void **state)
{
    struct kv_geometry g = {1, 8, 4, 8}; /* whose kernels are built already */
    struct score_piece outside[] = {{10, BATCH_BYTES - 512}, {10, 32}, {0, 0}};
    struct hill_why why = {""};
    uint8_t *memory;

    (void)state;
    for (enum score_form where = AS_IT_IS; where <= NO_DEVICE; where += NO_DEVICE) {
        struct score_device *d = create(&g, where);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(score_device_map(d, 0, &memory, &why), 0);
            assert_int_equal(score_device_launch(d, 0, &outside[i], 1, &why), HILL_E_INVALID);
        }
        score_device_destroy(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_reference_for_shapes_of_models),
        cmocka_unit_test(test_equals_the_reference_for_random_geometries),
        cmocka_unit_test(test_every_form_equals_the_reference_on_a_million_random_keys),
        cmocka_unit_test(test_refuses_pieces_outside_the_batch),
    };
    return cmocka_run_group_tests(tests, score_forms_open, score_forms_close);
}
