/* tests/cpu_scorer/test_pipeline_faults.c - what goes wrong beside the whole pipeline, and whom it
 * harms: a damaged drive, a silent agent, records out of order, epochs that end in a session's
 * question; see pipeline_rig.h. */
#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 500, STEPS = 60, MAX = PROMPT + STEPS };

/* A request, most of it on the drive, after its first step. 0: the usual deadline for the agent. */
static struct rig_request *decoding(uint32_t agent_deadline_ms)
{
    struct rig_options o = {.csd = true, .beta = 0.25, .agent_deadline_ms = agent_deadline_ms};
    struct rig_request *q = gpu_begin(rig_start(&o), 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    return q;
}

/* A query of layer 0, of a request of that number. */
static void push_query(struct rig_request *q, uint64_t query_id, uint64_t request_id)
{
    struct rig_question out = {.query = {.header = gpu_header(q, 0),
                                         .query_id = query_id,
                                         .n_heads = 4,
                                         .n_tokens = q->n,
                                         .request_id = request_id}};
    gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &out, sizeof out);
}

static void test_a_damaged_entry_fails_its_request_only(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct kv_selection_settings full = usual;
    struct rig_request *other = gpu_begin(r, 1, 200, 300, &usual, 0);
    gpu_prefill(other);
    assert_int_equal(gpu_decode(other), 0);
    full.policy = KV_POLICY_FULL;
    struct rig_request *q = gpu_begin(r, 0, 300, 310, &full, 0);
    r->agent->damaged_position = 200; /* hot in the other request */
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), HILL_E_ENTRY);
    assert_int_equal(gpu_query(q, 1, 300, false), HILL_E_ENTRY); /* and stays failed */
    assert_int_equal(r->n_failures, 1);
    r->agent->damaged_position = UINT32_MAX;
    gpu_end(q);
    for (int i = 0; i < 5; i++)
        assert_int_equal(gpu_decode(other), 0);
    gpu_end(other);
    q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0); /* on the same slot */
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
}

/* HILL_E_NODEV would be the GPU worker's own device, and end it. */
static void test_a_drive_that_is_offline_fails_its_request_only(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct kv_selection_settings full = usual;
    full.policy = KV_POLICY_FULL;
    struct rig_request *q = gpu_begin(r, 0, 300, 310, &full, 0);
    gpu_prefill(q);
    r->agent->offline = true;
    assert_int_equal(gpu_decode(q), HILL_E_IO);
    r->agent->offline = false;
    gpu_end(q);
    q = gpu_begin(r, 0, 300, 310, &full, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
}

/* The words lie in shared memory: one that says nothing of a selected token is named. */
static void test_a_damaged_word_fails_its_request(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    const struct hkm *h = scorer_tables(r->pipeline);
    struct kv_selection_settings full = usual;
    full.policy = KV_POLICY_FULL;
    struct rig_request *q = gpu_begin(r, 0, 300, 310, &full, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    rig_settle(r);
    _Atomic uint32_t *word = &h->words[(uint64_t)hkm_list_index(h, 0, 0) * h->ctx_tokens + 100];
    uint32_t was = atomic_exchange(word, hkm_word(HKM_NOWHERE, 0));
    assert_int_equal(gpu_query(q, 0, q->n, false), HILL_E_ENTRY);
    assert_int_equal(r->n_failures, 1);
    rig_settle(r);
    atomic_store(word, was);
    gpu_end(q);
    rig_stop(r);
}

static void test_tokens_out_of_order_fail_the_request(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_append(q, 0, 10);
    q->appended[0] = 5;
    gpu_append(q, 0, 10);
    assert_int_equal(gpu_query(q, 0, 10, false), HILL_E_PROTOCOL);
    gpu_end(q);
    rig_stop(r);
}

static void test_keys_and_values_that_are_no_numbers_fail_the_request(void **unused)
{
    static const uint16_t none[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    for (uint32_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
        gpu_append(q, 0, 10);
        q->spoil = none[i];
        q->spoil_at = i * (RIG_ENTRY / 2 - 1) / 4; /* from the key's first to the value's last */
        gpu_append(q, 0, 10);
        assert_int_equal(gpu_query(q, 0, 10, false), HILL_E_DAMAGED);
        gpu_end(q);
    }
    assert_int_equal(r->n_failures, sizeof none / sizeof *none);
    rig_stop(r);
}

static void test_a_silent_agent_is_a_timeout(void **unused)
{
    (void)unused;
    struct rig_request *q = decoding(RIG_SOON);
    struct rig *r = q->rig;
    r->agent->silent = true;
    assert_int_equal(gpu_decode(q), HILL_E_TIMEOUT);
    gpu_end(q);
    gpu_free(gpu_begin(r, 0, PROMPT, MAX, &usual, HILL_E_TIMEOUT)); /* until the next epoch */
    assert_true(r->n_failures >= 1);
    rig_stop(r);
}

/* A slot that is scored twice or is not the request's, or that has no score: its query fails, and
 * the request with it [I5]. Another one goes on. */
static void test_each_token_is_scored_once(void **unused)
{
    (void)unused;
    for (enum rig_lie lie = RIG_SCORES_TWICE; lie <= RIG_COUNTS_FEWER; lie++) {
        struct rig_request *q = decoding(0);
        struct rig *r = q->rig;
        struct rig_request *other = gpu_begin(r, 1, PROMPT, MAX, &usual, 0);
        gpu_prefill(other);
        atomic_store_explicit(&r->agent->lie, lie, memory_order_relaxed);
        assert_int_equal(gpu_decode(q), HILL_E_PROTOCOL);
        assert_int_equal(gpu_decode(other), 0);
        assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 1);
        gpu_end(q);
        gpu_end(other);
        rig_stop(r);
    }
}

static void test_an_interruption_leaves_a_waiting_query(void **unused)
{
    (void)unused;
    struct rig_request *q = decoding(0);
    struct rig *r = q->rig;
    r->agent->silent = true;
    push_query(q, 9, q->request_id);
    struct timespec pause = {.tv_nsec = 100000000};
    nanosleep(&pause, NULL);
    int64_t start = clock_now_ns();
    gpu_free(q);
    rig_stop(r); /* says HILL_E_CANCELLED */
    assert_true(clock_now_ns() - start < CLOCK_MS(30000));
}

/* A cancelled request's query may come when its slot is another's already. */
static void test_a_query_of_a_request_that_is_over_is_refused(void **unused)
{
    (void)unused;
    struct rig_request *q = decoding(0);
    struct rig *r = q->rig;
    push_query(q, 77, q->request_id + 1);
    const struct record_selection *answer = gpu_wait(r, RECORD_SELECTION);
    assert_int_equal(answer->query_id, 77);
    assert_int_equal(answer->status, HILL_E_PROTOCOL);
    assert_int_equal(answer->n_selected, 0);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    /* the running one does not notice: its hash is checked at its end */
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
}

/* The counter is a measurement: bytes that are neither scores nor completions show up in it. */
static void test_foreign_bytes_on_the_link_are_counted_as_keys(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    r->agent->leak = true;
    assert_int_equal(gpu_decode(q), 0);
    assert_int_equal(gpu_decode(q), 0);
    struct scorer_stats s = gpu_end(q);
    assert_int_equal(s.link_key_bytes, 100);
    assert_int_equal(s.dropped_records, 1);
    rig_stop(r);
}

static void test_a_record_of_another_epoch_is_dropped(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    struct rig *r = rig_start(&o);
    struct record_seq_end stale = {.header = {RIG_EPOCH - 1, 0, 0, 0}, .request_id = 1};
    gpu_push(r, RING_APPEND, RECORD_SEQ_END, &stale, sizeof stale);
    struct rig_request *q = gpu_begin(r, 0, 100, 110, &usual, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    assert_int_equal(gpu_end(q).dropped_records, 1);
    rig_stop(r);
}

/* More refusals than the selection ring has room for: the worker counts the answers. */
static void test_every_senseless_beginning_is_answered(void **unused)
{
    (void)unused;
    enum { BEGINNINGS = 4000 };
    struct rig_options o = {.csd = false};
    struct rig *r = rig_start(&o);
    struct record_seq_begin begin = {.header = {RIG_EPOCH, 1, 0, 0}, .request_id = 1}; /* empty */
    uint32_t sent = 0, answered = 0;
    while (answered < BEGINNINGS) {
        int rc = HILL_E_WOULD_BLOCK;
        if (sent < BEGINNINGS)
            rc = shm_ring_push(&r->gpu[RING_APPEND], RECORD_SEQ_BEGIN, &begin, sizeof begin);
        if (rc == 0) {
            sent++;
            continue;
        }
        assert_int_equal(rc, HILL_E_WOULD_BLOCK);
        const struct record_seq_ready *ready = gpu_wait(r, RECORD_SEQ_READY);
        assert_int_equal(ready->status, HILL_E_PROTOCOL);
        shm_ring_release(&r->gpu[RING_SELECTION]);
        answered++;
        if (answered == 1) /* time for the pipeline to fill its ring */
            usleep(200000);
    }
    assert_true(nothing_was_said(r));
    rig_stop(r);
}

/* ---- a question on a session -------------------------------------------------------------- */

enum { PAST = 300, ASKED = 600, ASKED_MAX = 640 }; /* the session, its question, the answer */

/* The layer's tokens up to n. */
static void append_up_to(struct rig_request *q, uint32_t layer, uint32_t n)
{
    while (q->appended[layer] < n)
        gpu_append(q, layer, n - q->appended[layer] < 24 ? n - q->appended[layer] : 24);
}

/* Another epoch begins, and the request goes on with its session's tokens alone. */
static struct rig *ask_again(struct rig_options *o, struct rig *r, struct rig_request *q)
{
    struct rig_ready answer;
    struct rig_slot *slots[RIG_DRIVES];
    rig_settle(r);
    for (uint32_t d = 0; d < r->n_drives; d++)
        slots[d] = rig_take_slots(r, d);
    o->hot = rig_stop_keeping(r);
    r = rig_start(o);
    for (uint32_t d = 0; d < r->n_drives; d++) {
        rig_give_slots(r, d, slots[d]);
        free(slots[d]);
    }
    q->step = 0;
    q->n = ASKED;
    XXH64_reset(q->hash, 0);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        q->appended[layer] = PAST;
    gpu_go_on(q, r, ASKED, ASKED_MAX, 0, PAST, &answer);
    assert_int_equal(answer.ready.status, 0);
    assert_int_equal(answer.ready.header.layer, RIG_LAYERS - 1);
    assert_int_equal(answer.ready.kept_tokens, PAST);
    return r;
}

/* Most of the question goes down at once. It is interrupted in its midst, and when it is answered
 * in part, so often that all slots of the drive would be used up. */
static void interrupt_question(struct rig_options o)
{
    o.csd = true;
    o.beta = o.beta > 0 ? o.beta : 0.25;
    o.n_sequences = 1;
    o.past_tokens = PAST;
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, ASKED, ASKED_MAX, &usual, 0);
    for (int life = 0; life < 6; life++) {
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
            append_up_to(q, layer, PAST);
        append_up_to(q, 0, ASKED);
        append_up_to(q, 1, PAST + 150);
        if (life % 2) {
            gpu_prefill(q);
            gpu_decode_settled(q, 8);
        }
        r = ask_again(&o, r, q);
    }
    gpu_prefill(q);
    gpu_decode_settled(q, ASKED_MAX - ASKED);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats stats = gpu_end(q);
    assert_int_equal(stats.selection_hash, hash);
    assert_int_equal(stats.hot.tokens + stats.cold.tokens, RIG_LAYERS * ASKED_MAX);
    if (o.host_scores > 0) /* what was lent is for entries */
        assert_true(stats.hot.tokens > RIG_LAYERS * 300 && stats.near_tokens == 0);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
}

static void test_a_question_that_is_interrupted_again_and_again_finds_room(void **unused)
{
    (void)unused;
    /* exactly what is cold of ASKED_MAX tokens */
    interrupt_question((struct rig_options){.n_stripes = 2 * RIG_LAYERS});
    interrupt_question(
        (struct rig_options){.n_drives = 2, .drive_stripes = {RIG_LAYERS, RIG_LAYERS}});
    /* and copies of all of them */
    interrupt_question((struct rig_options){.placement = PLACEMENT_BKP, .pin = 0.05});
    /* and where digests had lain in hot blocks */
    interrupt_question(
        (struct rig_options){.beta = 9, .host_scores = 1, .hot_blocks = 7 * RIG_LAYERS});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_damaged_entry_fails_its_request_only),
        cmocka_unit_test(test_a_drive_that_is_offline_fails_its_request_only),
        cmocka_unit_test(test_a_damaged_word_fails_its_request),
        cmocka_unit_test(test_tokens_out_of_order_fail_the_request),
        cmocka_unit_test(test_keys_and_values_that_are_no_numbers_fail_the_request),
        cmocka_unit_test(test_a_silent_agent_is_a_timeout),
        cmocka_unit_test(test_each_token_is_scored_once),
        cmocka_unit_test(test_an_interruption_leaves_a_waiting_query),
        cmocka_unit_test(test_a_query_of_a_request_that_is_over_is_refused),
        cmocka_unit_test(test_foreign_bytes_on_the_link_are_counted_as_keys),
        cmocka_unit_test(test_a_record_of_another_epoch_is_dropped),
        cmocka_unit_test(test_every_senseless_beginning_is_answered),
        cmocka_unit_test(test_a_question_that_is_interrupted_again_and_again_finds_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
