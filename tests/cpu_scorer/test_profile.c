/* tests/cpu_scorer/test_profile.c - both sides measured between requests, and nothing of it left.
 */
#include <math.h>

#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 300, STEPS = 20, MAX = PROMPT + STEPS };

static uint64_t request(struct rig *r)
{
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(gpu_decode(q), 0);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats stats = gpu_end(q);
    assert_int_equal(stats.selection_hash, hash);
    return hash;
}

static bool sound(const struct scorer_rates *rates, double least)
{
    const double all[] = {rates->f_c, rates->f_s, rates->B_c, rates->B_s};
    for (int i = 0; i < 4; i++)
        if (!isfinite(all[i]) || all[i] < least)
            return false;
    return true;
}

static void test_four_rates_with_their_spread(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = true, .beta = 0.25});
    const struct scorer_profile *m = rig_profile(r);
    if (m->status)
        fail_msg("%s", m->text);
    assert_true(sound(&m->median, 1) && sound(&m->spread, 0));
    assert_true(m->rounds > 0 && m->took_ns > 0);
    /* layer 0 has half of the context hot, the others all that the blocks allow; the rest of layer
     * 0 is cold */
    assert_int_equal(m->hot_tokens, RIG_CTX / 2 + (RIG_LAYERS - 1) * RIG_CTX);
    assert_int_equal(m->cold_tokens, RIG_CTX - RIG_CTX / 2);
    assert_int_equal(m->fetch_tokens, (RIG_CTX - RIG_CTX / 2) / 5 + 1);
    rig_stop(r);
}

/* The sides are as fast as they are with the queries that requests make. */
static void test_queries_are_of_the_pipelines_importance(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i++) {
        struct rig *r =
            rig_start(&(struct rig_options){.csd = true, .beta = 0.25, .importance = i});
        assert_int_equal(rig_profile(r)->status, 0);
        assert_int_equal(atomic_load_explicit(&r->agent->importance, memory_order_relaxed), i);
        rig_stop(r);
    }
}

static void test_a_request_after_it_finds_everything_free(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    uint64_t before = request(r);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_profile(r)->status, 0);
    assert_int_equal(request(r), before);
    assert_int_equal(r->staging.free_count, RIG_STAGING);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

static void test_tiers_of_few_blocks_and_stripes_are_measured_too(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 0.25, .hot_blocks = 2 * RIG_LAYERS, .n_stripes = RIG_LAYERS};
    struct rig *r = rig_start(&o);
    const struct scorer_profile *m = rig_profile(r);
    if (m->status)
        fail_msg("%s", m->text);
    assert_true(sound(&m->median, 1));
    assert_int_equal(m->hot_tokens, 2 * RIG_LAYERS * KV_HOT_BLOCK_TOKENS);
    assert_true(m->cold_tokens <= RIG_LAYERS * RIG_STRIPE && m->cold_tokens > 0);
    rig_stop(r);
}

/* Its speed is that of the cold side: nothing is said drive by drive. */
static void test_of_several_drives_the_last_one_is_measured_as_one(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = true, .beta = 0.25, .n_drives = 3});
    assert_int_equal(rig_profile(r)->n_drives, 3);
    for (uint32_t d = 1; d < 3; d++) {
        rig_drain_drive(r, d);
        rig_settle(r);
    }
    assert_int_equal(atomic_load_explicit(&r->n_drained, memory_order_acquire), 2);
    const struct scorer_profile *m = rig_profile(r);
    if (m->status)
        fail_msg("%s", m->text);
    assert_true(sound(&m->median, 1));
    assert_int_equal(m->n_drives, 0);
    rig_stop(r);
}

static void test_refused_while_a_request_runs(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = true, .beta = 0.25});
    struct rig_request *q = gpu_begin(r, 1, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    const struct scorer_profile *m = rig_profile(r);
    assert_int_equal(m->status, HILL_E_BUSY);
    assert_true(m->text[0]);
    assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    assert_int_equal(rig_profile(r)->status, 0);
    rig_stop(r);
}

static void test_refused_without_a_drive(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){.csd = false});
    assert_int_equal(rig_profile(r)->status, HILL_E_INVALID);
    rig_stop(r);
}

static void test_a_silent_agent_ends_it(void **unused)
{
    (void)unused;
    struct rig *r =
        rig_start(&(struct rig_options){.csd = true, .beta = 0.25, .agent_deadline_ms = RIG_SOON});
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    assert_int_equal(rig_profile(r)->status, HILL_E_TIMEOUT);
    rig_stop(r);
}

/* 1 MB/s: far below what any machine scores. A query's hot tokens take what they take at that rate.
 */
static void test_a_modelled_cpu_takes_its_time_and_changes_nothing(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    uint64_t real = request(r);
    assert_true(r->stats.steps > 0 && r->stats.imbalance >= 0 && r->stats.imbalance < 1);
    rig_stop(r);
    o.cpu_gb_per_s = 0.001;
    r = rig_start(&o);
    assert_int_equal(request(r), real);
    double least = (double)STEPS * RIG_LAYERS * (PROMPT * 0.2) * RIG_ENTRY * 1000;
    assert_true((double)r->stats.score_hot_ns >= least);
    const struct scorer_profile *m = rig_profile(r);
    assert_int_equal(m->status, 0);
    assert_true(m->median.f_c == 1e6);
    rig_stop(r);
}

/* Decode with another beta from now on; how many tokens are hot at the end. */
static uint64_t decode_with(struct rig_request *q, uint32_t hundredths, uint32_t steps)
{
    struct rig *r = q->rig;
    rig_set_beta(r, hundredths);
    gpu_decode_settled(q, steps); /* checked against the oracle */
    return atomic_load_explicit(&r->hot_now, memory_order_relaxed);
}

static void test_beta_changes_while_a_request_runs(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 1, .placement = PLACEMENT_BKP, .pin = 0.05, .adapts = true};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, RIG_CTX, &usual, 0);
    gpu_prefill(q);
    uint64_t first = decode_with(q, 100, 40);
    uint64_t less = decode_with(q, 10, 120);
    uint64_t more = decode_with(q, 1000, 120);
    assert_true(less < first);
    assert_true(more > less);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats stats = gpu_end(q);
    assert_int_equal(stats.selection_hash, hash);
    assert_true(stats.promoted > 0 && stats.demoted > 0);
    rig_stop(r);
}

/* How many tokens are hot, layers together, after a prompt that was begun with a beta of 1. */
static uint64_t hot_after_prompt(uint32_t hundredths, bool in_its_middle)
{
    struct rig_options o = {
        .csd = true, .beta = 1, .placement = PLACEMENT_BKP, .pin = 0.05, .adapts = true};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, RIG_CTX, &usual, 0);
    gpu_append(q, 0, 20);
    if (in_its_middle)
        rig_set_beta(r, hundredths);
    gpu_prefill(q);
    uint64_t hot = decode_with(q, hundredths, 120);
    gpu_end(q);
    rig_stop(r);
    return hot;
}

/* What was placed by the old beta is moved as if the change had come after the prompt. */
static void test_beta_changes_while_a_prompt_is_read(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        uint32_t hundredths = i ? 1000 : 10;
        uint64_t after = hot_after_prompt(hundredths, false);
        uint64_t within = hot_after_prompt(hundredths, true);
        assert_in_range(within, after - after / 8, after + after / 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_four_rates_with_their_spread),
        cmocka_unit_test(test_queries_are_of_the_pipelines_importance),
        cmocka_unit_test(test_a_request_after_it_finds_everything_free),
        cmocka_unit_test(test_tiers_of_few_blocks_and_stripes_are_measured_too),
        cmocka_unit_test(test_of_several_drives_the_last_one_is_measured_as_one),
        cmocka_unit_test(test_refused_while_a_request_runs),
        cmocka_unit_test(test_refused_without_a_drive),
        cmocka_unit_test(test_a_modelled_cpu_takes_its_time_and_changes_nothing),
        cmocka_unit_test(test_beta_changes_while_a_request_runs),
        cmocka_unit_test(test_beta_changes_while_a_prompt_is_read),
        cmocka_unit_test(test_a_silent_agent_ends_it),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
