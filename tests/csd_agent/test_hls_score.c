/*
 * test_hls_score.c - the HLS kernel's C test bench: its scores are those of kv_score_reference, bit
 * for bit, on a million random keys of a small shape, on thousands of larger ones, and on those
 * that are at an end of a range.
 */
#include "tests/csd_agent/score_forms.h"

#include "csd_agent/fpga/hls_score.h"
#include "tests/kv/digests.h"
#include "tests/rounds.h"

_Static_assert(HLS_LANES == KV_GROUP_TOKENS && HLS_LANES * sizeof(uint32_t) == KV_GROUP_ALIGN,
               "a beat is a word of each token of a group");
_Static_assert(HLS_KV_HEADS_MAX == KV_MAX_KV_HEADS, "every shape that is allowed");
_Static_assert(HLS_HEADS_MAX == KV_MAX_HEADS && HLS_BY_QUERY_HEAD == KV_IMPORTANCE_HEADS,
               "every query that is allowed");
_Static_assert(HLS_QUERY_WORDS_MAX * 4 == KV_QUERY_WORDS_ROOM, "every query that is allowed");

/* Memory of the card: what the kernel is given, and the same for the reference. */
struct card {
    struct kv_geometry g;
    uint32_t n_groups;
    uint32_t *digests, *query;
    uint16_t *scores, *expected;
    int8_t mantissas[KV_MAX_KEY_DIMS];
    uint8_t shifts[KV_MAX_HEADS];
    int64_t offsets[KV_MAX_HEADS];
};

static void *zeros(size_t n, size_t size)
{
    void *memory = calloc(n, size);
    assert_non_null(memory);
    return memory;
}

static struct card *make_card(const struct kv_geometry *g, uint32_t n_groups)
{
    struct card *c = zeros(1, sizeof *c);
    c->g = *g;
    c->n_groups = n_groups;
    c->digests = zeros(n_groups, kv_group_bytes(g));
    c->query = zeros((kv_query_bytes_max(g) + 3) / 4, sizeof *c->query);
    c->scores = zeros((size_t)n_groups * KV_GROUP_TOKENS, sizeof *c->scores);
    c->expected = zeros((size_t)n_groups * KV_GROUP_TOKENS, sizeof *c->expected);
    return c;
}

static void free_card(struct card *c)
{
    free(c->digests);
    free(c->query);
    free(c->scores);
    free(c->expected);
    free(c);
}

static void draw_query(struct card *c)
{
    random_mantissas(c->mantissas, (size_t)c->g.n_heads * c->g.head_dim);
    for (uint32_t h = 0; h < c->g.n_heads; h++) {
        c->shifts[h] = (uint8_t)random_below(KV_QUERY_SHIFT_MAX + 1);
        c->offsets[h] =
            ((int64_t)random_below(1u << 20) - (1 << 19)) * ((int64_t)1 << random_below(25));
    }
}

static void launch(struct card *c, const uint32_t *runs, uint32_t n_runs, uint32_t importance)
{
    (kv_digest_bits(&c->g) == 4 ? hill_score_int4 : hill_score_int8)(
        c->digests, runs, c->query, n_runs, c->g.n_kv_heads, c->g.n_heads / c->g.n_kv_heads,
        kv_head_words(&c->g), importance, c->scores);
}

/* All groups as one run, against the reference. */
static void compare(struct card *c, uint32_t importance)
{
    const uint32_t run[HLS_RUN_WORDS] = {0, c->n_groups, 0, 0};
    const struct kv_query query = {c->mantissas, c->shifts, importance, c->offsets};
    uint32_t n = c->n_groups * KV_GROUP_TOKENS;

    kv_query_send(&c->g, &query, c->query);
    memset(c->scores, 0, n * sizeof *c->scores);
    launch(c, run, 1, importance);
    kv_score_reference(&c->g, &query, (const uint8_t *)c->digests, n, c->expected);
    assert_memory_equal(c->scores, c->expected, n * sizeof *c->scores);
}

static void test_equals_the_reference_on_a_million_random_keys(void **state)
{
    static const struct {
        struct kv_geometry g;
        uint32_t keys;
    } parts[] = {
        {{1, 4, 2, 8}, 500000},    {{1, 4, 2, 8, 4}, 480000}, {{1, 9, 3, 64}, 8000},
        {{1, 9, 3, 64, 4}, 8000},  {{1, 32, 8, 128}, 1000},   {{1, 32, 8, 128, 4}, 1000},
        {{1, 15, 5, 11}, 1000},    {{1, 5, 5, 11, 4}, 1000},  {{1, 256, 256, 256}, 16},
        {{1, 1, 1, 512, 4}, 1000}, {{1, 14, 2, 64}, 1000},    {{1, 16, 2, 64, 4}, 1000},
        {{1, 22, 2, 16}, 1000},    {{1, 17, 1, 24, 4}, 1000}, /* 2 and 3 passes by query head */
    };
    uint32_t total = 0;
    (void)state;
    random_seed(21);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t keys = TEST_ROUNDS(parts[i].keys);
        struct card *c = make_card(&parts[i].g, (keys + KV_GROUP_TOKENS - 1) / KV_GROUP_TOKENS);
        draw_query(c);
        random_digests(&c->g, (uint8_t *)c->digests, c->n_groups);
        compare(c, (uint32_t)i % KV_IMPORTANCE_HEADS);
        compare(c, KV_IMPORTANCE_HEADS);
        total += c->n_groups * KV_GROUP_TOKENS;
        free_card(c);
    }
    print_message("%u keys\n", total);
    assert_true(total >= TEST_ROUNDS(1000000));
}

/* The query is at an end of its range, too. */
static void extreme_digests(struct card *c)
{
    uint16_t key[5 * 64];
    for (uint32_t i = 0; i < c->n_groups * KV_GROUP_TOKENS; i++) {
        extreme_key(&c->g, i, key);
        kv_digest_keys(&c->g, key, kv_key_dims(&c->g), 1, (uint8_t *)c->digests, i);
    }
}

static void test_equals_the_reference_at_the_ends_of_every_range(void **state)
{
    static const int8_t mantissas[] = {127, -127, 0, 1, -1};
    static const uint8_t shifts[] = {0, KV_QUERY_SHIFT_MAX};
    const struct kv_geometry shapes[] = {{1, 10, 5, 64}, {1, 10, 5, 64, 4}, {1, 2, 1, 3}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct card *c = make_card(&shapes[s], (EXTREME_KEYS + 15) / KV_GROUP_TOKENS);
        extreme_digests(c);
        for (uint32_t i = 0; i < 2 * sizeof mantissas; i++) {
            memset(c->mantissas, mantissas[i / 2], (size_t)c->g.n_heads * c->g.head_dim);
            memset(c->shifts, shifts[i % 2], c->g.n_heads);
            for (uint32_t h = 0; h < c->g.n_heads; h++)
                c->offsets[h] = (h % 2 ? 1 : -1) * ((int64_t)1 << 50);
            compare(c, KV_IMPORTANCE_SUM);
            compare(c, KV_IMPORTANCE_MAX);
            compare(c, KV_IMPORTANCE_HEADS);
        }
        free_card(c);
    }
}

/* Exponents up to 255, -128, nibbles of any kind: the reference's wrong score, not another one. */
static void test_equals_the_reference_on_bytes_that_no_digest_has(void **state)
{
    const struct kv_geometry shapes[] = {{1, 12, 6, 20}, {1, 12, 6, 20, 4}};
    (void)state;
    random_seed(22);
    for (size_t s = 0; s < 2; s++) {
        struct card *c = make_card(&shapes[s], 40);
        for (uint32_t round = 0; round < 8; round++) {
            draw_query(c);
            random_bytes(c->digests, (size_t)c->n_groups * kv_group_bytes(&c->g));
            random_bytes(c->shifts, c->g.n_heads);
            random_bytes(c->offsets, c->g.n_heads * sizeof *c->offsets);
            compare(c, round % KV_IMPORTANCE_COUNT);
        }
        free_card(c);
    }
}

/* Runs of groups that lie apart, out of order and longer than a burst of scores. */
static void test_scores_each_run_to_its_place_and_nothing_else(void **state)
{
    const struct kv_geometry g = {1, 3, 3, 4};
    enum { GROUPS = 700 };
    static const struct {
        uint32_t from, n, to;
    } runs[] = {{650, 3, 7}, {0, 600, 50}, {620, 0, 40}, {699, 1, 0}, {610, 1, 20}};
    uint32_t table[5][HLS_RUN_WORDS], beats = kv_group_bytes(&g) / 64, total = 0;
    struct card *c = make_card(&g, GROUPS);
    uint8_t *taken = zeros(GROUPS, 1);

    (void)state;
    random_seed(23);
    draw_query(c);
    random_digests(&c->g, (uint8_t *)c->digests, c->n_groups);
    compare(c, KV_IMPORTANCE_SUM); /* leaves what is expected of every group */
    memset(c->scores, 0xee, GROUPS * KV_GROUP_TOKENS * sizeof *c->scores);
    for (uint32_t r = 0; r < 5; r++)
        memcpy(table[r], (uint32_t[]){runs[r].from * beats, runs[r].n, runs[r].to, 0}, 16);
    launch(c, table[0], 5, KV_IMPORTANCE_SUM);
    for (uint32_t r = 0; r < 5; r++) {
        assert_memory_equal(c->scores + runs[r].to * KV_GROUP_TOKENS,
                            c->expected + runs[r].from * KV_GROUP_TOKENS,
                            runs[r].n * KV_GROUP_TOKENS * sizeof *c->scores);
        memset(taken + runs[r].to, 1, runs[r].n);
        total += runs[r].n;
    }
    for (uint32_t i = 0; i < GROUPS * KV_GROUP_TOKENS; i++) {
        if (!taken[i / KV_GROUP_TOKENS])
            assert_int_equal(c->scores[i], 0xeeee);
    }
    assert_int_equal(total, 605);
    free(taken);
    free_card(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_reference_on_a_million_random_keys),
        cmocka_unit_test(test_equals_the_reference_at_the_ends_of_every_range),
        cmocka_unit_test(test_equals_the_reference_on_bytes_that_no_digest_has),
        cmocka_unit_test(test_scores_each_run_to_its_place_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, score_forms_open, score_forms_close);
}
