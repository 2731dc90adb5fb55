/* tests/cpu_scorer/test_guesses.c - guessed queries in the whole pipeline between a fake GPU worker
 * and a fake agent; see pipeline_rig.h. */
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/rounds.h"

enum { PROMPT = 500, STEPS = TEST_ROUNDS(60), MAX = PROMPT + STEPS };

/* Guesses, with every placement and both ways to read: each selection is checked against the
 * oracle's for the query that is attended to, and the hash is one. */
static struct scorer_stats guessed_request(const struct rig_options *options, enum query_kind kind)
{
    static struct rig_request kept; /* for its oracle */
    struct rig *r = rig_start(options);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    q->linger_us = options->reads_hot ? 100 : 0;
    gpu_prefill(q);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(gpu_decode_guessed(q, kind), 0);
    uint64_t hash = XXH64_digest(q->hash), uploads = q->uploads, in_place = q->in_place;
    memcpy(&kept, q, sizeof kept);
    struct scorer_stats s = gpu_end(q);
    assert_int_equal(s.selection_hash, hash);
    assert_int_equal(s.queries, STEPS * RIG_LAYERS);
    assert_int_equal(s.guess_queries, STEPS * (RIG_LAYERS - 1));
    assert_int_equal(s.hot.hits + s.cold.hits, uploads + in_place);
    assert_int_equal(s.n_layers, RIG_LAYERS);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        assert_int_equal(s.guess_chosen[layer], kept.guess_chosen[layer]);
        assert_int_equal(s.guess_found[layer], kept.guess_found[layer]);
        if (kind == QUERY_AHEAD && layer > 0)
            assert_true(s.guess_found[layer] > 0 && s.guess_found[layer] < s.guess_chosen[layer]);
    }
    assert_int_equal(r->n_failures, 0);
    assert_int_equal(s.dropped_records, 0);
    rig_stop(r);
    return s;
}

static void test_guesses_select_the_same_at_every_place(void **unused)
{
    static const enum query_kind kinds[] = {QUERY_SPECULATIVE, QUERY_AHEAD};
    static const double betas[] = {0, 4, 0.66, 0.25};
    (void)unused;
    for (int k = 0; k < 2; k++) {
        uint64_t hash = 0;
        for (int i = 0; i < 16; i += TEST_STRIDE(5)) { /* under TSan each beta once, too */
            struct rig_options o = {.csd = betas[i % 4] > 0,
                                    .beta = betas[i % 4],
                                    .placement = i & 4 ? PLACEMENT_BKP : PLACEMENT_RECENCY,
                                    .pin = 0.05,
                                    .reads_hot = i & 8,
                                    .rows = 1 + i % 3 % 2, /* beside the layer before, or not */
                                    .speculates = true};
            struct scorer_stats s = guessed_request(&o, kinds[k]);
            hash = i ? hash : s.selection_hash;
            assert_int_equal(s.selection_hash, hash);
            /* what a guess had brought is not fetched again */
            if (kinds[k] == QUERY_AHEAD && o.csd)
                assert_true(s.late_fetches > 0 && s.late_fetches < s.cold.hits);
            else
                assert_int_equal(s.late_fetches, 0);
        }
    }
}

/* Two at a time, the one replaced again and again with a guess under way, in a staging arena that
 * has room for two selections of each and no more. */
static void test_guesses_give_back_what_they_hold(void **unused)
{
    static const enum query_kind kinds[] = {QUERY_SPECULATIVE, QUERY_AHEAD};
    enum { MOST = PROMPT + 60 };
    (void)unused;
    for (int k = 0; k < 2; k++) {
        struct rig_options o = {.csd = true,
                                .beta = 0.66,
                                .placement = PLACEMENT_BKP,
                                .pin = 0.05,
                                .rows = 4,
                                .speculates = true};
        struct rig *r = rig_start(&o);
        uint32_t spare = RIG_STAGING - 4 * kv_budget_tokens(&usual, MOST), *slots;
        slots = calloc(spare, sizeof *slots);
        assert_int_equal(shm_arena_take(&r->staging, spare, slots), 0);
        struct rig_request *b = gpu_begin(r, 1, PROMPT, MOST, &usual, 0);
        gpu_prefill(b);
        for (int i = 0; i < 8; i++) {
            struct rig_question unanswered;
            struct rig_request *a = gpu_begin(r, 0, PROMPT, MOST, &usual, 0);
            gpu_prefill(a);
            for (int j = 0; j < 3; j++) {
                assert_int_equal(gpu_decode_guessed(a, kinds[k]), 0);
                assert_int_equal(gpu_decode_guessed(b, kinds[k]), 0);
            }
            gpu_fill_question(a, 1, a->n, QUERY_AHEAD, &unanswered);
            gpu_push(r, RING_QUERY, RECORD_QUERY, &unanswered, sizeof unanswered);
            assert_int_equal(gpu_decode_guessed(b, kinds[k]), 0); /* behind it */
            gpu_free(a);
        }
        uint64_t hash = XXH64_digest(b->hash);
        assert_int_equal(gpu_end(b).selection_hash, hash);
        assert_int_equal(r->n_failures, 0);
        free(slots);
        rig_stop(r);
    }
}

static void test_an_unexpected_guess_fails_its_request(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    struct rig *r = rig_start(&o);
    struct rig_question guess;
    struct rig_request *q = gpu_begin(r, 0, 100, 120, &usual, 0);
    gpu_prefill(q);
    gpu_fill_question(q, 1, q->n, QUERY_SPECULATIVE, &guess);
    gpu_push(r, RING_QUERY, RECORD_QUERY, &guess, sizeof guess);
    assert_int_equal(gpu_answer(q, 1, q->n, &guess), HILL_E_PROTOCOL);
    gpu_end(q);
    rig_stop(r);
}

/* An entry that a guess could not read fails the request at its exact query. */
static void test_a_damaged_entry_under_a_guess_fails_its_request(void **unused)
{
    (void)unused;
    struct kv_selection_settings full = usual;
    struct rig_options o = {.csd = true, .beta = 0.25, .speculates = true};
    struct rig *r = rig_start(&o);
    full.policy = KV_POLICY_FULL; /* so that it is selected */
    struct rig_request *q = gpu_begin(r, 0, 200, 210, &full, 0);
    gpu_prefill(q);
    atomic_store_explicit(&r->agent->damaged_position, 50, memory_order_relaxed);
    struct rig_question guess, exact;
    gpu_fill_question(q, 1, q->n, QUERY_AHEAD, &guess);
    gpu_push(r, RING_QUERY, RECORD_QUERY, &guess, sizeof guess);
    gpu_fill_question(q, 1, q->n, QUERY_EXACT, &exact);
    gpu_push(r, RING_QUERY, RECORD_QUERY, &exact, sizeof exact);
    assert_int_equal(gpu_answer(q, 1, q->n, &exact), HILL_E_ENTRY);
    assert_int_equal(r->n_failures, 1);
    gpu_end(q);
    atomic_store_explicit(&r->agent->damaged_position, UINT32_MAX, memory_order_relaxed);
    q = gpu_begin(r, 0, 200, 210, &full, 0); /* others go on */
    gpu_prefill(q);
    assert_int_equal(gpu_decode_guessed(q, QUERY_AHEAD), 0);
    gpu_end(q);
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guesses_select_the_same_at_every_place),
        cmocka_unit_test(test_guesses_give_back_what_they_hold),
        cmocka_unit_test(test_an_unexpected_guess_fails_its_request),
        cmocka_unit_test(test_a_damaged_entry_under_a_guess_fails_its_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
