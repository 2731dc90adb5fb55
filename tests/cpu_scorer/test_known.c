/* tests/cpu_scorer/test_known.c - queries whose selection is known before a step, in the whole
 * pipeline between a fake GPU worker and a fake agent; see pipeline_rig.h. */
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/rounds.h"

enum { PROMPT = 16, STEPS = TEST_ROUNDS(120), MAX = PROMPT + STEPS };

/* What a step's answers have named in place. */
struct named {
    uint32_t reading[RIG_LAYERS][RIG_CTX][2], n[RIG_LAYERS];
};

static void keep_named(struct rig_request *q, uint32_t layer, struct named *named)
{
    memcpy(named->reading[layer], q->reading, q->n_reading * sizeof *q->reading);
    named->n[layer] = q->n_reading;
    q->n_reading = 0;
}

/* The bytes of all layers are what they were. */
static void check_named(struct rig_request *q, const struct named *named)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        q->n_reading = named->n[layer];
        q->reading_layer = layer;
        memcpy(q->reading, named->reading[layer], q->n_reading * sizeof *q->reading);
        gpu_check_reading(q);
    }
    q->n_reading = 0;
}

static void ask_known(struct rig_request *q, struct rig_question asked[RIG_LAYERS])
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        gpu_fill_question(q, layer, q->n, QUERY_KNOWN, &asked[layer]);
        asked[layer].query.n_heads = 0;
        gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &asked[layer], sizeof asked[layer].query);
    }
}

/* A step: true when it was answered ahead, false when it was declined and asked layer by layer. */
static bool decode_known(struct rig_request *q)
{
    static struct named named;
    struct rig_question asked[RIG_LAYERS];
    int status = 0;
    ask_known(q, asked);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        int answer = gpu_answer(q, layer, q->n, &asked[layer]);
        assert_true(layer == 0 || answer == status); /* all of them, or none */
        status = answer;
        keep_named(q, layer, &named);
    }
    if (status) {
        assert_int_equal(status, HILL_E_WOULD_BLOCK);
        assert_int_equal(gpu_decode(q), 0);
        return false;
    }
    usleep(q->linger_us);
    check_named(q, &named);
    struct record_reads_done done = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_push(q->rig, RING_QUERY, RECORD_READS_DONE, &done, sizeof done);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        gpu_append(q, layer, 1);
    q->n++;
    gpu_step_end(q);
    return true;
}

/* Returns how many steps were answered ahead; the hash is that of the oracle. */
static uint32_t run_request(const struct rig_options *options,
                            const struct kv_selection_settings *settings, uint64_t *hash)
{
    struct rig *r = rig_start(options);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, settings, 0);
    uint32_t ahead = 0;
    q->linger_us = 200;
    gpu_prefill(q);
    for (uint32_t i = 0; i < STEPS; i++) {
        bool now = decode_known(q);
        assert_true(!now || ahead == i); /* once declined, never again */
        ahead += now;
        if (i % 8 == 7)
            rig_settle(r); /* what is to go down goes, however slow the agent's thread is */
    }
    *hash = XXH64_digest(q->hash);
    struct scorer_stats s = gpu_end(q);
    assert_int_equal(s.selection_hash, *hash);
    assert_int_equal(s.queries, STEPS * RIG_LAYERS);
    assert_int_equal(s.guess_queries, 0);
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
    return ahead;
}

static void test_known_selections_are_answered_ahead(void **unused)
{
    (void)unused;
    struct kv_selection_settings full = usual;
    uint64_t hash, other;
    full.policy = KV_POLICY_FULL;
    struct rig_options o = {.csd = false, .reads_hot = true};
    assert_int_equal(run_request(&o, &full, &hash), STEPS);
    o.reads_hot = false; /* then entries come through staging, a layer at a time */
    assert_int_equal(run_request(&o, &full, &other), 0);
    assert_int_equal(other, hash);
}

/* What has gone down has to be fetched; until the first goes, and while a step reads in place,
 * nothing that was named is given to others. A prompt of sinks and newest tokens is hot at first.
 */
static void test_cold_entries_are_asked_for_layer_by_layer(void **unused)
{
    static const double betas[] = {4, 0.66, 0.25};
    (void)unused;
    struct kv_selection_settings full = usual;
    uint64_t hash, other;
    full.policy = KV_POLICY_FULL;
    struct rig_options o = {.csd = false, .reads_hot = true};
    run_request(&o, &full, &hash);
    for (int i = 0; i < 6; i++) {
        o = (struct rig_options){.csd = true,
                                 .beta = betas[i % 3],
                                 .placement = i < 3 ? PLACEMENT_RECENCY : PLACEMENT_BKP,
                                 .pin = 0.05,
                                 .reads_hot = true};
        uint32_t ahead = run_request(&o, &full, &other);
        assert_int_equal(other, hash);
        assert_true(ahead > 0 && ahead < STEPS);
        print_message("beta %g: %u of %u steps ahead\n", o.beta, ahead, STEPS);
    }
}

/* A selection by scores is not known. */
static void test_a_known_query_that_is_none_fails_its_request(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false, .reads_hot = true};
    struct rig *r = rig_start(&o);
    struct rig_question asked[RIG_LAYERS];
    struct rig_request *q = gpu_begin(r, 0, 100, 120, &usual, 0);
    gpu_prefill(q);
    ask_known(q, asked);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        assert_int_equal(gpu_answer(q, layer, q->n, &asked[layer]), HILL_E_PROTOCOL);
    assert_int_equal(r->n_failures, 1);
    gpu_end(q);
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_selections_are_answered_ahead),
        cmocka_unit_test(test_cold_entries_are_asked_for_layer_by_layer),
        cmocka_unit_test(test_a_known_query_that_is_none_fails_its_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
