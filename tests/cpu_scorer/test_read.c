/*
 * tests/cpu_scorer/test_read.c - sessions in the scorer's pipeline (pipeline_read.c): entries that
 * are to be saved come as they were appended, wherever they lie; a restored selection hash goes on.
 * See pipeline_rig.h.
 */
#include "tests/cpu_scorer/pipeline_rig.h"

static const struct kv_selection_settings settings = {
    .alpha = 0.1, .sinks = 4, .window = 16, .policy = KV_POLICY_HILLINFER};

enum { PROMPT = 300, STEPS = 30, MAX = PROMPT + STEPS, AT_ONCE = 17 };

/* Ask for entries; the answer stays peeked. */
static const struct record_entries *ask_entries(struct rig_request *q, uint32_t layer,
                                                uint32_t first, uint32_t n)
{
    struct record_read read = {.header = gpu_header(q, layer),
                               .read_id = ++q->query_id * 2 + q->sequence,
                               .first = first,
                               .n_tokens = n,
                               .request_id = q->request_id};
    gpu_push(q->rig, RING_QUERY, RECORD_READ, &read, sizeof read);
    const struct record_entries *answer = gpu_wait(q->rig, RECORD_ENTRIES);
    assert_int_equal(answer->read_id, read.read_id);
    return answer;
}

/* Every entry of every layer is what was appended, and the hash is the oracle's so far. */
static void read_all(struct rig_request *q)
{
    XXH64_state_t *hash = XXH64_createState();
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        for (uint32_t first = 0; first < q->n; first += AT_ONCE) {
            uint32_t n = q->n - first < AT_ONCE ? q->n - first : AT_ONCE;
            const struct record_entries *answer = ask_entries(q, layer, first, n);
            const struct staged_entry *slots = (const struct staged_entry *)(answer + 1);
            assert_int_equal(answer->status, 0);
            assert_int_equal(answer->n_entries, n);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(shm_arena_generation(&q->rig->staging_view, slots[i].staging_slot),
                                 slots[i].generation);
                assert_memory_equal(shm_arena_slot(&q->rig->staging_view, slots[i].staging_slot),
                                    q->entries[layer][first + i], RIG_ENTRY);
            }
            assert_true(hash_state_load(hash, &answer->selection_hash));
            assert_true(XXH64_digest(hash) == XXH64_digest(q->hash));
            shm_ring_release(&q->rig->gpu[RING_SELECTION]);
        }
    XXH64_freeState(hash);
}

static void test_entries_are_read_wherever_they_lie(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = false},
        {.csd = false, .reads_hot = true},
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.6, .placement = PIPELINE_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.6, .placement = PIPELINE_BKP, .pin = 0.05, .reads_hot = true},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct rig *r = rig_start(&places[i]);
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
        gpu_prefill(q);
        read_all(q);
        for (int step = 0; step < STEPS; step++)
            assert_int_equal(gpu_decode(q), 0);
        read_all(q);
        uint64_t served = q->uploads + q->in_place;
        struct pipeline_stats stats = gpu_end(q);
        assert_int_equal(stats.hot.hits + stats.cold.hits, served); /* reading hits nothing */
        assert_int_equal(stats.queries, STEPS * RIG_LAYERS);
        rig_stop(r);
    }
}

static void test_more_than_a_selection_may_have_is_refused(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    gpu_prefill(q);
    uint32_t most = kv_budget_tokens(&settings, MAX);
    assert_int_equal(ask_entries(q, 0, 0, most)->status, 0);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    const struct record_entries *answer = ask_entries(q, 0, 0, most + 1);
    assert_int_equal(answer->status, HILL_E_PROTOCOL);
    assert_int_equal(answer->n_entries, 0);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    assert_int_equal(gpu_decode(q), 0); /* the request goes on */
    gpu_end(q);
    rig_stop(r);
}

static void test_a_damaged_entry_is_not_read(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    gpu_prefill(q);
    r->agent->damaged_position = 100;
    assert_int_equal(ask_entries(q, 1, 95, 10)->status, HILL_E_DAMAGED);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    q->check = false;
    assert_true(gpu_decode(q) != 0); /* what the drive cannot read fails its request */
    gpu_end(q);
    rig_stop(r);
}

static void test_a_restored_hash_goes_on(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    struct record_resume resume = {.header = gpu_header(q, 0), .request_id = q->request_id};
    XXH64_update(q->hash, "what was selected before", 24);
    hash_state_save(&resume.selection_hash, q->hash);
    gpu_push(r, RING_APPEND, RECORD_RESUME, &resume, sizeof resume);
    gpu_prefill(q);
    for (int step = 0; step < STEPS; step++)
        assert_int_equal(gpu_decode(q), 0);
    uint64_t hash = XXH64_digest(q->hash);
    assert_true(gpu_end(q).selection_hash == hash);
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_are_read_wherever_they_lie),
        cmocka_unit_test(test_more_than_a_selection_may_have_is_refused),
        cmocka_unit_test(test_a_damaged_entry_is_not_read),
        cmocka_unit_test(test_a_restored_hash_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
