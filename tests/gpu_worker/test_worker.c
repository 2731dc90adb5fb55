/*
 * tests/gpu_worker/test_worker.c - the hill-gpu-worker process between a played coordinator and a
 * played scorer: tokens and logits are those of the engine alone, and whatever goes wrong ends one
 * request, never the worker.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <xxhash.h>

#include "model/tokenizer.h"
#include "tests/gpu_worker/engine_run.h"
#include "tests/gpu_worker/stage.h"

enum { PROMPT = 75, PREDICT = 20 };

static const struct random_shape shape = RANDOM_SHAPE_SMALL(3);
static struct stage stage;
static struct stage_lane *const first = &stage.lanes[0];
static uint32_t prompt[PROMPT], expected[PREDICT];
static uint64_t expected_hash;

/* What runs at the same time: part of the prompt, and what comes of it alone. Each goes on long
 * enough for the next ones to be prefilled meanwhile. */
static struct story {
    uint32_t first, n, predict, tokens[STAGE_TOKENS];
    uint64_t hash;
} stories[STAGE_LANES] = {{0, PROMPT, 45, {0}, 0}, {5, 40, 25, {0}, 0}, {11, 64, 12, {0}, 0}};

/* What the engine says without any process around it. */
static uint64_t run_alone(struct engine *engine, const uint32_t *from, uint32_t n, uint32_t predict,
                          uint32_t *tokens)
{
    struct engine_run run;
    run_init(&run, engine, 32, STAGE_CTX);
    run_prefill(&run, from, n);
    XXH64_state_t *hash = XXH64_createState();
    XXH64_reset(hash, 0);
    for (uint32_t i = 0; i < predict; i++) {
        if (i)
            run_step(&run, tokens[i - 1]);
        XXH64_update(hash, run.logits, sizeof(float) * shape.n_vocab);
        tokens[i] = run_greedy(&run);
    }
    uint64_t digest = XXH64_digest(hash);
    XXH64_freeState(hash);
    run_finish(&run);
    return digest;
}

static void run_engine_alone(void)
{
    struct hill_why why = {0};
    struct cldevice device;
    struct engine *engine;
    RUN_CHECK(cldevice_open(&device, NULL, &why));
    RUN_CHECK(engine_create(&engine, &device, stage.m.file, &stage.m.hp, &why));
    expected_hash = run_alone(engine, prompt, PROMPT, PREDICT, expected);
    for (uint32_t i = 0; i < STAGE_LANES; i++) {
        struct story *s = &stories[i];
        s->hash = run_alone(engine, prompt + s->first, s->n, s->predict, s->tokens);
    }
    engine_destroy(engine);
    cldevice_close(&device);
}

static void request(void)
{
    first->stall_at = first->refuse_at = first->old_generation_at = first->cancel_at =
        first->wild_at = 0;
    stage_request(&stage, 0, prompt, PROMPT, PREDICT, UINT32_MAX);
}

static void assert_whole(void)
{
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(first->n_tokens, PREDICT);
    assert_memory_equal(first->tokens, expected, sizeof expected);
    assert_true(first->logits_hash == expected_hash);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
}

/* A request with this fault (a field of its lane) at a query ends with that code. */
static void assert_fails(uint32_t *fault, uint32_t at, int code)
{
    request();
    *fault = at;
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_ERROR);
    assert_int_equal(first->code, code);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
}

static void assert_cancelled(uint32_t at)
{
    request();
    first->cancel_at = at;
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
}

static void a_request_gives_the_engines_tokens_and_logits(void **state)
{
    (void)state;
    request();
    assert_whole();
    assert_int_equal(first->n_steps, PREDICT); /* prefill and one per token but the last */
    assert_true(first->busy_ms > 0 && first->idle_ms > 0);
}

static void a_stop_token_ends_it_unsent(void **state)
{
    (void)state;
    uint32_t at = 1;
    while (at + 1 < PREDICT && expected[at] == expected[0])
        at++;
    stage_request(&stage, 0, prompt, PROMPT, PREDICT, expected[at]);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_STOP);
    assert_int_equal(first->n_tokens, at);
}

static void a_cancel_ends_one_request(void **state)
{
    (void)state;
    assert_cancelled(8);
    assert_true(first->n_tokens < PREDICT);
    request();
    assert_whole();
}

/* Before the scorer has even answered SEQ_BEGIN: its late answer must not be taken for the next
 * request's. */
static void a_cancel_at_once_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        request();
        stage_cancel(&stage, first);
        usleep(3000 * (unsigned)i); /* the worker goes a little further each time */
        STAGE_UNTIL(&stage, first->done);
        assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
    }
    request();
    assert_whole();
}

static void a_failed_selection_ends_one_request(void **state)
{
    (void)state;
    assert_fails(&first->refuse_at, 5, HILL_E_DAMAGED);
    request();
    assert_whole();
}

static void a_stale_staging_slot_is_not_used(void **state)
{
    (void)state;
    assert_fails(&first->old_generation_at, 4, HILL_E_PROTOCOL);
    request();
    assert_whole();
}

/* Of what lies in the hot pool nothing is copied; the scorer is told after each step that it was
 * read. */
static void hot_entries_are_read_in_place(void **state)
{
    (void)state;
    first->n_in_place = 0;
    request();
    assert_whole();
    if (!first->reads_hot)
        skip(); /* a device with memory of its own */
    assert_int_equal(first->n_reads_done, PREDICT - 1);
    assert_true(first->n_in_place > 0);
}

/* A step reads every matrix once: rows are padded to panels, and each matrix has a head. Each layer
 * attends to some entries, of the context at most. */
static void what_steps_read_is_counted(void **state)
{
    (void)state;
    const struct random_shape *s = &shape;
    uint64_t q = (uint64_t)s->n_heads * s->head_dim, kv = (uint64_t)s->n_kv_heads * s->head_dim;
    uint64_t layer = (2 * q + 2 * kv + 3ull * s->n_ff) * s->n_embd;
    uint64_t matrices = sizeof(float) * (s->n_layers * layer + (uint64_t)s->n_vocab * s->n_embd);
    uint64_t entry = 2 * kv * sizeof(uint16_t), steps = PREDICT - 1;
    request();
    assert_whole();
    assert_int_equal(first->weights_read % steps, 0);
    assert_in_range(first->weights_read / steps, matrices, matrices * 3 / 2);
    assert_int_equal(first->attended_bytes % entry, 0);
    assert_in_range(first->attended_bytes / entry, steps * s->n_layers * 2,
                    steps * s->n_layers * (PROMPT + PREDICT));
}

/* Everything that a GPU of its own would have to receive takes its time on the modelled link, hot
 * entries too; the tokens stay. The model goes with the next message. */
static void a_modelled_link_carries_every_upload(void **state)
{
    (void)state;
    stage_set_model(&stage, "gpu_link=0.004");
    request();
    assert_whole();
    assert_false(first->reads_hot);
    assert_true(first->link_bytes > 0);
    assert_int_equal(first->link_bytes, first->upload_bytes);
    assert_true(first->link_ns >= first->link_bytes * 250); /* each selection rounds up */
    assert_true(first->link_ns <= first->link_bytes * 250 + PREDICT * shape.n_layers);
    assert_true(first->idle_ms * 1e6 >= (double)first->link_ns * 0.99);
    stage_set_model(&stage, "off");
    request();
    assert_whole();
    assert_int_equal(first->link_bytes + first->link_ns, 0);
}

static void an_entry_outside_the_hot_pool_is_not_used(void **state)
{
    (void)state;
    assert_fails(&first->wild_at, 4, HILL_E_PROTOCOL);
    request();
    assert_whole();
}

static void a_request_that_cannot_fit_is_refused(void **state)
{
    (void)state;
    uint32_t begins = first->n_begins;
    stage_request(&stage, 0, prompt, PROMPT, STAGE_CTX, UINT32_MAX);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->code, HILL_E_TOO_LONG);
    assert_int_equal(first->n_begins, begins);
}

/* The tokenizer of this model is none that is known. */
static void json_of_an_unknown_tokenizer_is_refused_as_such(void **state)
{
    (void)state;
    struct tokenizer *tokenizer;
    struct hill_why why;
    int code = tokenizer_open(&tokenizer, stage.m.file, &why);
    assert_true(code && code != HILL_E_NOMEM);
    stage.json = true;
    request();
    stage.json = false;
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->code, code);
    request();
    assert_whole();
}

/* In mid-request, while a selection is waited for: the request is dropped without a word and can be
 * sent again. */
static void a_new_epoch_takes_the_worker_along(void **state)
{
    (void)state;
    request();
    first->stall_at = 7;
    STAGE_UNTIL(&stage, first->n_queries == 7);
    uint32_t ready = stage.n_ready;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
    assert_false(first->done);
    first->n_ends = first->n_begins = 0;
    request();
    assert_whole();
}

/* Both lie in the mailbox of a worker that has nothing to do. */
static void a_request_right_before_a_new_epoch_is_let_go(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) { /* it may look between the two */
        int status;
        uint32_t ready = stage.n_ready, refused = stage.n_refused;
        kill(stage.pid, SIGSTOP);
        assert_int_equal(waitpid(stage.pid, &status, WUNTRACED), stage.pid);
        stage_send_request(&stage, 0, prompt, PROMPT, PREDICT, UINT32_MAX);
        stage_enter_epoch(&stage);
        stage_configure(&stage);
        kill(stage.pid, SIGCONT);
        STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
        assert_int_equal(stage.n_refused, refused);
        first->n_ends = first->n_begins = 0;
        request();
        assert_whole();
    }
}

/* ---- several at once ---- */

static void start_story(uint32_t i)
{
    struct stage_lane *lane = &stage.lanes[i];
    lane->stall_at = lane->refuse_at = lane->old_generation_at = lane->cancel_at = lane->wild_at =
        0;
    stage_request(&stage, i, prompt + stories[i].first, stories[i].n, stories[i].predict,
                  UINT32_MAX);
}

/* The second joins when the first has three tokens, the third when the second has two. */
static void start_stories(void)
{
    stage.most_at_once = 0;
    start_story(0);
    STAGE_UNTIL(&stage, stage.lanes[0].n_tokens >= 3);
    start_story(1);
    STAGE_UNTIL(&stage, stage.lanes[1].n_tokens >= 2);
    start_story(2);
}

/* Until all three decode, each with some steps to go. On a busy machine a first one is over before
 * the last one has begun: again, then. */
static void start_together(void)
{
    const uint32_t layers = shape.n_layers, to_go = 4;
    for (int round = 0; round < 20; round++) {
        bool all = true;
        start_stories();
        STAGE_UNTIL(&stage, stage.lanes[2].n_tokens >= 1);
        for (uint32_t i = 0; i < STAGE_LANES; i++)
            all &= stage.lanes[i].n_queries / layers + to_go < stories[i].predict;
        if (all)
            return;
        for (uint32_t i = 0; i < STAGE_LANES; i++)
            STAGE_UNTIL(&stage,
                        stage.lanes[i].done && stage.lanes[i].n_ends == stage.lanes[i].n_begins);
    }
    fail_msg("three never decode together");
}

static void assert_story(uint32_t i)
{
    const struct stage_lane *lane = &stage.lanes[i];
    STAGE_UNTIL(&stage, lane->done);
    assert_int_equal(lane->finish, HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(lane->n_tokens, stories[i].predict);
    assert_memory_equal(lane->tokens, stories[i].tokens, sizeof *lane->tokens * stories[i].predict);
    assert_true(lane->logits_hash == stories[i].hash);
    STAGE_UNTIL(&stage, lane->n_ends == lane->n_begins);
}

static void three_join_and_leave_with_their_own_bits(void **state)
{
    (void)state;
    uint32_t most = 0;
    for (int i = 0; most < 3 && i < 10; i++) { /* on a busy machine one may be over too soon */
        start_stories();
        for (uint32_t lane = 0; lane < STAGE_LANES; lane++)
            assert_story(lane);
        most = stage.most_at_once;
    }
    assert_int_equal(most, 3);
    for (uint32_t i = 0; i < STAGE_LANES; i++) {
        const struct stage_lane *lane = &stage.lanes[i];
        double sum = lane->busy_ms + lane->idle_ms;
        assert_true(lane->idle_ms > 0 && fabs(sum - lane->decode_ms) <= 1e-6 * sum);
        assert_true(lane->gap_ms > 0 && lane->gap_ms <= lane->decode_ms);
    }
}

/* All at once: prompts one after another, then steps together. */
static void three_at_once_with_their_own_bits(void **state)
{
    (void)state;
    for (uint32_t i = STAGE_LANES; i-- > 0;)
        start_story(i);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        assert_story(i);
}

static void a_cancel_ends_one_of_three(void **state)
{
    (void)state;
    start_together();
    stage.lanes[1].cancel_at = stage.lanes[1].n_queries + 2; /* in mid-step, never answered */
    STAGE_UNTIL(&stage, stage.lanes[1].done);
    assert_int_equal(stage.lanes[1].finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_true(stage.lanes[1].n_tokens < stories[1].predict);
    assert_story(0);
    assert_story(2);
    start_story(1); /* its place is free again */
    assert_story(1);
}

static void a_cancel_in_the_queue_ends_one_of_three(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        start_story(i);
    stage_cancel(&stage, &stage.lanes[2]);
    STAGE_UNTIL(&stage, stage.lanes[2].done);
    assert_int_equal(stage.lanes[2].finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_story(0);
    assert_story(1);
}

/* The first's selection is refused; the last has a fault (a field of its lane) `after` queries on.
 * The second is itself. */
static void assert_two_fail(uint32_t *last_fault, uint32_t after)
{
    start_together();
    stage.lanes[0].refuse_at = stage.lanes[0].n_queries + 2;
    *last_fault = stage.lanes[2].n_queries + after;
    assert_story(1);
    STAGE_UNTIL(&stage, stage.lanes[0].done && stage.lanes[2].done);
    assert_int_equal(stage.lanes[0].code, HILL_E_DAMAGED);
    assert_int_equal(stage.lanes[2].code, HILL_E_PROTOCOL);
}

static void a_failure_ends_one_of_three(void **state)
{
    (void)state;
    assert_two_fail(&stage.lanes[2].old_generation_at, 4);
}

static void a_place_that_is_taken_or_not_there_is_refused(void **state)
{
    (void)state;
    uint32_t refused = stage.n_refused;
    start_story(0);
    stage_send_request(&stage, 0, prompt, PROMPT, PREDICT, UINT32_MAX);
    STAGE_UNTIL(&stage, stage.n_refused == refused + 1);
    assert_int_equal(stage.refused_code, HILL_E_PROTOCOL);
    stage_send_request(&stage, STAGE_LANES, prompt, PROMPT, PREDICT, UINT32_MAX);
    STAGE_UNTIL(&stage, stage.n_refused == refused + 2);
    assert_int_equal(stage.refused_code, HILL_E_INVALID);
    assert_story(0);
}

static void a_new_epoch_lets_all_go(void **state)
{
    (void)state;
    start_stories();
    stage.lanes[1].stall_at = stage.lanes[1].n_queries + 5;
    STAGE_UNTIL(&stage, stage.lanes[1].n_queries == stage.lanes[1].stall_at);
    uint32_t ready = stage.n_ready;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
    for (uint32_t i = 0; i < STAGE_LANES; i++) {
        assert_false(stage.lanes[i].done);
        stage.lanes[i].n_begins = stage.lanes[i].n_ends = 0;
    }
    start_stories();
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        assert_story(i);
}

/* While one runs to its end another one has as many tokens as it may; it ends when its last is
 * taken. */
static void nobody_runs_ahead_of_the_coordinator(void **state)
{
    (void)state;
    const uint32_t predict = 8; /* two waits on the way, and one before the end */
    for (uint32_t taken = 0, most = 3; taken < predict; taken = most, most += 3) {
        most = most < predict ? most : predict;
        stage.ahead_max = 3;
        if (!taken)
            stage_request(&stage, 0, prompt, PROMPT, predict, UINT32_MAX);
        else
            stage_say_taken(&stage, first, taken);
        stage.ahead_max = 0;
        STAGE_UNTIL(&stage, first->n_tokens == most);
        start_story(2);
        assert_story(2);
        assert_int_equal(first->n_tokens, most);
        assert_false(first->done);
    }
    uint32_t ends = first->n_ends;
    stage_say_taken(&stage, first, predict);
    STAGE_UNTIL(&stage, first->done && first->n_ends == ends + 1);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_LENGTH);
    assert_memory_equal(first->tokens, expected, predict * sizeof *expected);
}

static void one_that_waits_to_be_heard_is_cancelled(void **state)
{
    (void)state;
    stage.ahead_max = 3;
    stage_request(&stage, 0, prompt, PROMPT, 3, UINT32_MAX);
    stage.ahead_max = 0;
    STAGE_UNTIL(&stage, first->n_tokens == 3);
    stage_cancel(&stage, first);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
}

/* ---- guesses: the played scorer selects everything, so the bits are those of the engine ---- */

static void speculate(Hill__Speculate mode, uint32_t exact_layers)
{
    uint32_t ready = stage.n_ready;
    stage.settings.speculate = mode;
    stage.settings.exact_layers = exact_layers;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        stage.lanes[i].n_begins = stage.lanes[i].n_ends = 0;
}

/* In an epoch in which hot entries are read in place and one in which all is staged. */
static void guesses_come_in_order_and_in_number(void **state)
{
    static const struct {
        Hill__Speculate mode;
        uint32_t exact_layers, kinds[3]; /* queries of a step */
    } cases[] = {{HILL__SPECULATE__SPECULATE_ON, 1, {1, 2, 0}},
                 {HILL__SPECULATE__SPECULATE_ON, 2, {2, 1, 0}},
                 {HILL__SPECULATE__SPECULATE_VERIFY, 1, {3, 0, 2}},
                 {HILL__SPECULATE__SPECULATE_VERIFY, 3, {3, 0, 0}}};
    (void)state;
    for (int i = 0; i < 8; i++) {
        speculate(cases[i / 2].mode, cases[i / 2].exact_layers);
        request();
        assert_whole();
        for (int kind = 0; kind < 3; kind++)
            assert_int_equal(first->n_kinds[kind], (PREDICT - 1) * cases[i / 2].kinds[kind]);
    }
}

static void guesses_of_three_with_their_own_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        speculate(i ? HILL__SPECULATE__SPECULATE_VERIFY : HILL__SPECULATE__SPECULATE_ON, 1);
        start_stories();
        for (uint32_t lane = 0; lane < STAGE_LANES; lane++)
            assert_story(lane);
    }
}

static void failures_of_guesses_end_one_request(void **state)
{
    (void)state;
    speculate(HILL__SPECULATE__SPECULATE_ON, 1);
    assert_two_fail(&stage.lanes[2].old_generation_at, 5);
    for (uint32_t at = 4; at <= 6; at++) /* an exact query and two guesses */
        assert_cancelled(at);
    request();
    assert_whole();
}

static void a_new_epoch_without_guesses_asks_exactly(void **state)
{
    (void)state;
    speculate(HILL__SPECULATE__SPECULATE_ON, 1);
    request();
    first->stall_at = 8;
    first->n_queries = 0;                       /* the last request's until this one begins */
    STAGE_UNTIL(&stage, first->n_queries >= 8); /* the guess after it goes out too */
    speculate(HILL__SPECULATE__SPECULATE_OFF, 0);
    request();
    assert_whole();
    assert_int_equal(first->n_kinds[QUERY_EXACT], 3 * (PREDICT - 1));
}

/* ---- known selections: policy full, everything in the hot pool ---- */

static void ask_ahead(bool on)
{
    stage.policy = on ? KV_POLICY_FULL : KV_POLICY_HILLINFER;
    stage.all_hot = on;
    do
        speculate(HILL__SPECULATE__SPECULATE_OFF, 0);
    while (on && stage.settings.epoch % 2 == 0); /* the next one has a hot pool */
}

static void known_selections_are_asked_for_ahead(void **state)
{
    (void)state;
    ask_ahead(true);
    request();
    assert_whole();
    if (!first->reads_hot)
        skip(); /* a device with memory of its own */
    assert_int_equal(first->n_kinds[QUERY_KNOWN], 3 * (PREDICT - 1));
    assert_int_equal(first->n_kinds[QUERY_EXACT], 0);
    assert_int_equal(first->n_reads_done, PREDICT - 1);
    assert_int_equal(first->upload_bytes, 0);
    assert_true(first->busy_ms > 0 && first->idle_ms > 0);
    speculate(HILL__SPECULATE__SPECULATE_OFF, 0); /* no hot pool */
    request();
    assert_whole();
    assert_int_equal(first->n_kinds[QUERY_KNOWN], 0);
}

static void what_is_declined_is_asked_exactly(void **state)
{
    (void)state;
    ask_ahead(true);
    first->decline_from = 4;
    request();
    assert_whole();
    if (!first->reads_hot)
        skip();
    assert_int_equal(first->n_kinds[QUERY_KNOWN], 4 * 3);
    assert_int_equal(first->n_kinds[QUERY_EXACT], 3 * (PREDICT - 1 - 3));
    /* one of three, in whose step the others' lists are there */
    start_stories();
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        assert_story(i);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        stage.lanes[i].decline_from = 2 * i;
    start_stories();
    for (uint32_t i = 0; i < STAGE_LANES; i++) {
        assert_story(i);
        stage.lanes[i].decline_from = 0;
    }
}

static void failures_ahead_end_one_request(void **state)
{
    (void)state;
    ask_ahead(true);
    if (!first->reads_hot)
        skip();
    for (uint32_t at = 4; at <= 6; at++) { /* all layers of a step */
        assert_cancelled(at);
        assert_fails(&first->wild_at, at, HILL_E_PROTOCOL);
    }
    assert_two_fail(&stage.lanes[2].wild_at, 5);
    /* one row is cancelled in the step in which another is declined: the third goes on */
    start_together();
    stage.lanes[0].decline_from = stage.lanes[0].expect_step + 1;
    stage.lanes[0].cancelled_then = &stage.lanes[2];
    STAGE_UNTIL(&stage, stage.lanes[2].done);
    assert_int_equal(stage.lanes[2].finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_story(0);
    assert_story(1);
    stage.lanes[0].decline_from = 0;
    request();
    assert_whole();
    ask_ahead(false);
}

int main(void)
{
    if (!stage_open(&stage, &shape))
        return 77;
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + i * i) % shape.n_vocab;
    run_engine_alone();
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == 1 || stage.n_failures);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gives_the_engines_tokens_and_logits),
        cmocka_unit_test(a_stop_token_ends_it_unsent),
        cmocka_unit_test(a_cancel_ends_one_request),
        cmocka_unit_test(a_cancel_at_once_leaves_nothing_behind),
        cmocka_unit_test(a_failed_selection_ends_one_request),
        cmocka_unit_test(a_stale_staging_slot_is_not_used),
        cmocka_unit_test(hot_entries_are_read_in_place),
        cmocka_unit_test(what_steps_read_is_counted),
        cmocka_unit_test(a_modelled_link_carries_every_upload),
        cmocka_unit_test(an_entry_outside_the_hot_pool_is_not_used),
        cmocka_unit_test(a_request_that_cannot_fit_is_refused),
        cmocka_unit_test(json_of_an_unknown_tokenizer_is_refused_as_such),
        cmocka_unit_test(a_new_epoch_takes_the_worker_along),
        cmocka_unit_test(a_request_right_before_a_new_epoch_is_let_go),
        cmocka_unit_test(three_join_and_leave_with_their_own_bits),
        cmocka_unit_test(three_at_once_with_their_own_bits),
        cmocka_unit_test(a_cancel_ends_one_of_three),
        cmocka_unit_test(a_cancel_in_the_queue_ends_one_of_three),
        cmocka_unit_test(a_failure_ends_one_of_three),
        cmocka_unit_test(a_place_that_is_taken_or_not_there_is_refused),
        cmocka_unit_test(a_new_epoch_lets_all_go),
        cmocka_unit_test(nobody_runs_ahead_of_the_coordinator),
        cmocka_unit_test(one_that_waits_to_be_heard_is_cancelled),
        cmocka_unit_test(guesses_come_in_order_and_in_number),
        cmocka_unit_test(guesses_of_three_with_their_own_bits),
        cmocka_unit_test(failures_of_guesses_end_one_request),
        cmocka_unit_test(a_new_epoch_without_guesses_asks_exactly),
        cmocka_unit_test(known_selections_are_asked_for_ahead),
        cmocka_unit_test(what_is_declined_is_asked_exactly),
        cmocka_unit_test(failures_ahead_end_one_request),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    int status = stage_close(&stage);
    if (status != 0)
        printf("the worker ended with %d\n", status);
    return failed || status != 0;
}
