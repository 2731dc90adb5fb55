/*
 * tests/cpu_scorer/test_read.c - sessions in the scorer's pipeline (scorer_read.c): entries that
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
        {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.6, .placement = PLACEMENT_BKP, .pin = 0.05, .reads_hot = true},
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
        struct scorer_stats stats = gpu_end(q);
        assert_int_equal(stats.hot.hits + stats.cold.hits, served); /* reading hits nothing */
        assert_int_equal(stats.queries, STEPS * RIG_LAYERS);
        assert_int_equal(stats.fetch_cold_ns, RIG_FETCH_NS * stats.cold.hits); /* nor takes time */
        rig_stop(r);
    }
}

static void test_what_is_read_is_no_part_of_a_step(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    gpu_prefill(q);
    read_all(q);
    struct scorer_stats stats = gpu_end(q);
    assert_true(stats.link_kv_bytes > 0);
    assert_int_equal(stats.fetch_cold_ns, 0);
    assert_int_equal(stats.copy_hot_ns, 0);
    rig_stop(r);
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

/* A part of a layer, ahead of what the newest READ has brought: its slots are copied out. */
static void read_ahead(struct rig_request *q, uint32_t first, uint32_t n, struct staged_entry *out)
{
    struct record_read read = {.header = gpu_header(q, 1),
                               .read_id = ++q->query_id * 2 + q->sequence,
                               .first = first,
                               .n_tokens = n,
                               .request_id = q->request_id,
                               .ahead = 1};
    gpu_push(q->rig, RING_QUERY, RECORD_READ, &read, sizeof read);
    const struct record_entries *answer = gpu_wait(q->rig, RECORD_ENTRIES);
    assert_int_equal(answer->status, 0);
    memcpy(out, answer + 1, n * sizeof *out);
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
}

static bool are_staged(struct rig_request *q, uint32_t first, uint32_t n,
                       const struct staged_entry *slots)
{
    const struct shm_arena *view = &q->rig->staging_view;
    bool there = true;
    for (uint32_t i = 0; i < n; i++)
        there &= shm_arena_generation(view, slots[i].staging_slot) == slots[i].generation &&
                 memcmp(shm_arena_slot(view, slots[i].staging_slot), q->entries[1][first + i],
                        RIG_ENTRY) == 0;
    return there;
}

/* Two windows are alive at a time, as many as a selection's slots hold: each stays until the one
 * after the next is asked for. */
static void test_what_is_read_ahead_stays_for_one_more(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    uint32_t most = kv_budget_tokens(&settings, MAX), n = most / 2;
    struct staged_entry slots[4][MAX];
    gpu_prefill(q);
    for (uint32_t i = 0; i < 4; i++) {
        read_ahead(q, i * n, n, slots[i]);
        assert_true(are_staged(q, i * n, n, slots[i]));
        assert_true(i < 1 || are_staged(q, (i - 1) * n, n, slots[i - 1]));
        assert_true(i < 2 || !are_staged(q, (i - 2) * n, n, slots[i - 2]));
    }
    struct record_read read = {.header = gpu_header(q, 1),
                               .read_id = ++q->query_id * 2 + q->sequence,
                               .n_tokens = most - n + 1,
                               .request_id = q->request_id,
                               .ahead = 1};
    gpu_push(r, RING_QUERY, RECORD_READ, &read, sizeof read);
    assert_int_equal(((const struct record_entries *)gpu_wait(r, RECORD_ENTRIES))->status,
                     HILL_E_PROTOCOL);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    assert_true(are_staged(q, 3 * n, n, slots[3])); /* what is refused takes nothing away */
    assert_int_equal(gpu_decode(q), 0);
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
    assert_int_equal(ask_entries(q, 1, 95, 10)->status, HILL_E_ENTRY);
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

/* The next entries of a layer, which another sequence has had. */
static void gpu_append_copy(struct rig_request *to, const struct rig_request *from, uint32_t layer)
{
    uint32_t first = to->appended[layer], left = from->n - first, n = left < 24 ? left : 24;
    struct {
        struct record_append append;
        uint8_t entries[24][RIG_ENTRY];
    } out = {.append = {.header = gpu_header(to, layer), .first = first, .n_tokens = n}};
    memcpy(out.entries, from->entries[layer][first], (size_t)n * RIG_ENTRY);
    memcpy(to->entries[layer][first], from->entries[layer][first], (size_t)n * RIG_ENTRY);
    gpu_push(to->rig, RING_APPEND, RECORD_APPEND, &out,
             (uint32_t)(sizeof out.append + n * RIG_ENTRY));
    to->appended[layer] += n;
}

/* The sums of all tokens of a layer. */
static void gpu_push_mass(struct rig_request *q, uint32_t layer, const float *mass)
{
    struct {
        struct record_mass mass;
        float values[MAX];
    } out = {.mass = {.header = gpu_header(q, layer), .n_tokens = q->n}};
    memcpy(out.values, mass, q->n * sizeof *mass);
    for (uint32_t p = 0; p < q->n; p++)
        q->seen[layer][p] = mass[p];
    gpu_push(q->rig, RING_APPEND, RECORD_MASS, &out,
             (uint32_t)(sizeof out.mass + q->n * sizeof *mass));
}

/* The oracle's sums of a layer, from a READ. */
static void read_masses(struct rig_request *q, uint32_t layer, float *out)
{
    for (uint32_t first = 0; first < q->n; first += AT_ONCE) {
        uint32_t n = q->n - first < AT_ONCE ? q->n - first : AT_ONCE;
        struct record_read read = {.header = gpu_header(q, layer),
                                   .read_id = ++q->query_id * 2 + q->sequence,
                                   .first = first,
                                   .n_tokens = n,
                                   .what = READ_MASS,
                                   .request_id = q->request_id};
        gpu_push(q->rig, RING_QUERY, RECORD_READ, &read, sizeof read);
        const struct record_mass *answer = gpu_wait(q->rig, RECORD_MASS);
        assert_int_equal(answer->read_id, read.read_id);
        assert_int_equal(answer->status, 0);
        assert_int_equal(answer->first, first);
        assert_int_equal(answer->n_tokens, n);
        memcpy(out + first, answer + 1, n * sizeof *out);
        shm_ring_release(&q->rig->gpu[RING_SELECTION]);
    }
    for (uint32_t p = 0; p < q->n; p++)
        assert_true(fabs(out[p] - q->seen[layer][p]) <= 1e-4 * q->seen[layer][p]);
}

/* h2o: what is read is what all queries so far attended to; given to another sequence with the same
 * entries it goes on to the bit. */
static void test_attention_is_read_and_goes_on(void **unused)
{
    static float mass[RIG_LAYERS][RIG_CTX], again[RIG_CTX];
    struct kv_selection_settings h2o = settings;
    struct rig_options o = {.csd = true, .beta = 0.25, .policy = KV_POLICY_H2O};
    (void)unused;
    h2o.policy = KV_POLICY_H2O;
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &h2o, 0);
    gpu_prefill(q);
    for (int step = 0; step < STEPS - 10; step++)
        assert_int_equal(gpu_decode(q), 0);
    struct rig_request *restored = gpu_begin(r, 1, q->n, MAX, &h2o, 0);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        read_masses(q, layer, mass[layer]);
        while (restored->appended[layer] < q->n)
            gpu_append_copy(restored, q, layer);
        gpu_push_mass(restored, layer, mass[layer]);
    }
    gpu_step_end(restored);
    restored->step = q->step;
    restored->random = q->random;
    XXH64_reset(q->hash, 0);
    for (int step = 0; step < 10; step++) {
        restored->random = q->random;
        assert_int_equal(gpu_decode(q), 0);
        assert_int_equal(gpu_decode(restored), 0);
    }
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        read_masses(q, layer, mass[layer]);
        read_masses(restored, layer, again);
        assert_memory_equal(mass[layer], again, q->n * sizeof *again);
    }
    assert_true(XXH64_digest(q->hash) == XXH64_digest(restored->hash));
    gpu_end(restored);
    q->check = false;
    gpu_end(q);
    rig_stop(r);
}

static void test_attention_of_another_policy_is_not_read(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &settings, 0);
    gpu_prefill(q);
    struct record_read read = {.header = gpu_header(q, 0),
                               .read_id = ++q->query_id * 2,
                               .n_tokens = 3,
                               .what = READ_MASS,
                               .request_id = q->request_id};
    gpu_push(r, RING_QUERY, RECORD_READ, &read, sizeof read);
    const struct record_mass *answer = gpu_wait(r, RECORD_MASS);
    assert_int_equal(answer->status, HILL_E_PROTOCOL);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    assert_int_equal(gpu_decode(q), 0); /* the request goes on */
    gpu_end(q);
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_are_read_wherever_they_lie),
        cmocka_unit_test(test_what_is_read_is_no_part_of_a_step),
        cmocka_unit_test(test_more_than_a_selection_may_have_is_refused),
        cmocka_unit_test(test_what_is_read_ahead_stays_for_one_more),
        cmocka_unit_test(test_a_damaged_entry_is_not_read),
        cmocka_unit_test(test_a_restored_hash_goes_on),
        cmocka_unit_test(test_attention_is_read_and_goes_on),
        cmocka_unit_test(test_attention_of_another_policy_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
