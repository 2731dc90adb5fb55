/*
 * test_cast_score.c - FP16 keys that are cast while they are scored have the scores of the digests
 * that kv/ makes of them, in every form of the kernel, bit for bit.
 */
#include "tests/csd_agent/score_forms.h"
#include "tests/rounds.h"

#define BATCH_BYTES 1310720u
#define KEYS        1000u

struct keys {
    struct kv_geometry g;
    uint32_t n;
    uint16_t *halfs;  /* [n][key dims] */
    uint8_t *digests; /* as kv/ makes them */
    uint16_t *expected;
};

static void make_keys(struct keys *k, const struct kv_geometry *g, uint32_t n)
{
    uint32_t dims = kv_key_dims(g);
    *k = (struct keys){.g = *g, .n = n, .halfs = calloc(n, 2ul * dims)};
    k->digests = calloc(kv_groups_touched(0, n), kv_group_bytes(g));
    k->expected = calloc(n, sizeof *k->expected);
    assert_true(k->halfs && k->digests && k->expected);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *key = k->halfs + (size_t)i * dims;
        /* any bits, of one magnitude or below, or an extreme one */
        uint16_t kept = (uint16_t)(0x8000u | ((2u << random_below(15)) - 1));
        random_bytes(key, 2ul * dims);
        for (uint32_t d = 0; d < dims; d++)
            key[d] &= kept;
        if (i < EXTREME_KEYS)
            extreme_key(g, i, key);
    }
    kv_digest_keys(g, k->halfs, dims, n, k->digests, 0);
}

static void free_keys(struct keys *k)
{
    free(k->halfs);
    free(k->digests);
    free(k->expected);
}

/* All keys as pieces of random lengths, each with a gap before it. */
static uint32_t fill(const struct keys *k, uint8_t *memory, struct score_piece *pieces,
                     uint32_t most)
{
    uint32_t bytes = 2 * kv_key_dims(&k->g), at = 0, done = 0, n_pieces = 0;
    memset(memory, 0xff, BATCH_BYTES);
    while (done < k->n) {
        uint32_t n = n_pieces + 1 == most ? k->n - done : 1 + random_below(k->n / 4);
        n = n < k->n - done ? n : k->n - done;
        at += 2 * random_below(40);
        memcpy(memory + at, k->halfs + (size_t)done * bytes / 2, (size_t)n * bytes);
        pieces[n_pieces++] = (struct score_piece){n, at};
        at += n * bytes;
        done += n;
    }
    assert_true(at <= BATCH_BYTES);
    return n_pieces;
}

static void compare(struct score_device *d, struct keys *k, const struct kv_query *query,
                    uint32_t b)
{
    struct score_piece pieces[12];
    struct hill_why why = {""};
    const uint16_t *scores;
    uint8_t *memory;

    kv_score_reference(&k->g, query, k->digests, k->n, k->expected);
    assert_int_equal(score_device_query(d, query, &why), 0);
    assert_int_equal(score_device_map(d, b, &memory, &why), 0);
    uint32_t n_pieces = fill(k, memory, pieces, 12);
    assert_int_equal(score_device_launch(d, b, pieces, n_pieces, &why), 0);
    assert_int_equal(score_device_wait(d, b, &scores, &why), 0);
    assert_memory_equal(scores, k->expected, k->n * sizeof *scores);
}

static void check_form(const struct kv_geometry *g, enum score_form form, uint32_t rounds)
{
    struct score_device *d = score_form_create(g, form, BATCH_BYTES, true);
    bool few = getenv("HILL_TEST_FEW"); /* the device is a simulator, as slow as one */
    uint32_t most = few ? 40 : KEYS, room = BATCH_BYTES / (2 * kv_key_dims(g)) - 16;
    struct keys k;

    print_message("%u KV heads of %u, INT%u, form %d\n", g->n_kv_heads, g->head_dim,
                  kv_digest_bits(g), (int)form);
    make_keys(&k, g, room < most ? room : most);
    for (uint32_t round = 0; round < (few ? 2 : rounds); round++) {
        struct kv_query query = random_query(g, round % KV_IMPORTANCE_COUNT);
        compare(d, &k, &query, round % SCORE_BATCHES);
        free_query(&query);
    }
    free_keys(&k);
    score_device_destroy(d);
}

static void test_every_form_scores_cast_keys_as_their_digests(void **state)
{
    /* whole vectors of sixteen, and what is left of them */
    const struct kv_geometry int8 = {1, 10, 5, 40}, int4 = {1, 10, 5, 40, 4};
    (void)state;
    random_seed(31);
    for (enum score_form form = AS_IT_IS; form <= NO_DEVICE; form++)
        check_form(&int8, form, TEST_ROUNDS(12));
    check_form(&int4, AS_IT_IS, TEST_ROUNDS(12));
    check_form(&int4, NO_DEVICE, TEST_ROUNDS(12));
}

static void test_shapes_without_or_with_nothing_but_whole_vectors(void **state)
{
    const struct kv_geometry shapes[] = {{1, 3, 3, 11}, {1, 32, 8, 128, 4}};
    (void)state;
    random_seed(32);
    for (int i = 0; i < 2; i++)
        check_form(&shapes[i], AS_IT_IS, 4);
}

static void test_refuses_pieces_outside_the_batch(void **state)
{
    const struct kv_geometry g = {1, 10, 5, 40};
    struct score_piece outside[] = {{10, BATCH_BYTES - 3998}, {10, 31}, {0, 0}};
    struct hill_why why = {""};
    uint8_t *memory;
    (void)state;
    for (enum score_form form = AS_IT_IS; form <= NO_DEVICE; form += NO_DEVICE) {
        struct score_device *d = score_form_create(&g, form, BATCH_BYTES, true);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(score_device_map(d, 0, &memory, &why), 0);
            assert_int_equal(score_device_launch(d, 0, &outside[i], 1, &why), HILL_E_INVALID);
        }
        score_device_destroy(d);
    }
}

/* Also those behind the last whole group of sixteen. */
static void test_a_batch_takes_all_keys_that_it_has_room_for(void **state)
{
    const struct kv_geometry g = {1, 10, 5, 40};
    const uint32_t room = BATCH_BYTES / (2 * 5 * 40);
    const struct score_piece pieces[] = {{7, 0}, {room - 7, 7 * 2 * 5 * 40}};
    int8_t mantissas[5 * 40];
    const uint8_t shifts[5] = {3, 0, 1, 2, 0};
    const struct kv_query query = {mantissas, shifts, KV_IMPORTANCE_SUM, NULL};
    struct hill_why why = {""};
    struct keys k;
    uint8_t *memory;
    (void)state;
    random_seed(33);
    random_mantissas(mantissas, kv_key_dims(&g));
    make_keys(&k, &g, room);
    kv_score_reference(&g, &query, k.digests, room, k.expected);
    assert_int_not_equal(room % KV_GROUP_TOKENS, 0);
    for (enum score_form form = AS_IT_IS; form <= NO_DEVICE; form++) {
        struct score_device *d = score_form_create(&g, form, BATCH_BYTES, true);
        const uint16_t *scores;
        assert_int_equal(score_device_slots_max(d), room);
        assert_int_equal(score_device_query(d, &query, &why), 0);
        assert_int_equal(score_device_map(d, 0, &memory, &why), 0);
        memcpy(memory, k.halfs, (size_t)room * 2 * kv_key_dims(&g));
        assert_int_equal(score_device_launch(d, 0, pieces, 2, &why), 0);
        assert_int_equal(score_device_wait(d, 0, &scores, &why), 0);
        assert_memory_equal(scores, k.expected, room * sizeof *scores);
        score_device_destroy(d);
    }
    free_keys(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_scores_cast_keys_as_their_digests),
        cmocka_unit_test(test_shapes_without_or_with_nothing_but_whole_vectors),
        cmocka_unit_test(test_refuses_pieces_outside_the_batch),
        cmocka_unit_test(test_a_batch_takes_all_keys_that_it_has_room_for),
    };
    return cmocka_run_group_tests(tests, score_forms_open, score_forms_close);
}
