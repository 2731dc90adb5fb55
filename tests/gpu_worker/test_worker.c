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

#include "tests/gpu_worker/engine_run.h"
#include "tests/gpu_worker/stage.h"

enum { PROMPT = 75, PREDICT = 20 };

static const struct random_shape shape = {.n_layers = 3,
                                          .n_embd = 48,
                                          .n_heads = 4,
                                          .n_kv_heads = 2,
                                          .head_dim = 16,
                                          .rope_dims = 16,
                                          .n_ff = 72,
                                          .n_vocab = 101,
                                          .rope_base = 10000,
                                          .rope_scale = 1,
                                          .type = GGUF_TENSOR_F32};
static struct stage stage;
static uint32_t prompt[PROMPT], expected[PREDICT];
static uint64_t expected_hash;

/* What the engine says without any process around it. */
static void run_engine_alone(void)
{
    struct hill_why why = {0};
    struct cldevice device;
    struct engine *engine;
    struct engine_run run;
    RUN_CHECK(cldevice_open(&device, NULL, &why));
    RUN_CHECK(engine_create(&engine, &device, stage.m.file, &stage.m.hp, &why));
    run_init(&run, engine, 32, STAGE_CTX);
    run_prefill(&run, prompt, PROMPT);
    XXH64_state_t *hash = XXH64_createState();
    XXH64_reset(hash, 0);
    for (uint32_t i = 0; i < PREDICT; i++) {
        if (i)
            run_step(&run, expected[i - 1]);
        XXH64_update(hash, run.logits, sizeof(float) * shape.n_vocab);
        expected[i] = run_greedy(&run);
    }
    expected_hash = XXH64_digest(hash);
    XXH64_freeState(hash);
    run_finish(&run);
    engine_destroy(engine);
    cldevice_close(&device);
}

static void request(void)
{
    stage.stall_at = stage.refuse_at = stage.old_generation_at = stage.cancel_at = 0;
    stage_request(&stage, prompt, PROMPT, PREDICT, UINT32_MAX);
}

static void assert_whole(void)
{
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.finish, HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(stage.n_tokens, PREDICT);
    assert_memory_equal(stage.tokens, expected, sizeof expected);
    assert_true(stage.logits_hash == expected_hash);
    STAGE_UNTIL(&stage, stage.n_ends == stage.n_begins);
}

static void a_request_gives_the_engines_tokens_and_logits(void **state)
{
    (void)state;
    request();
    assert_whole();
    assert_int_equal(stage.n_steps, PREDICT); /* prefill and one per token but the last */
    assert_true(stage.busy_ms > 0 && stage.idle_ms > 0);
}

static void a_stop_token_ends_it_unsent(void **state)
{
    (void)state;
    uint32_t at = 1;
    while (at + 1 < PREDICT && expected[at] == expected[0])
        at++;
    stage_request(&stage, prompt, PROMPT, PREDICT, expected[at]);
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.finish, HILL__FINISH_REASON__FINISH_STOP);
    assert_int_equal(stage.n_tokens, at);
}

static void a_cancel_ends_one_request(void **state)
{
    (void)state;
    request();
    stage.cancel_at = 8;
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_true(stage.n_tokens < PREDICT);
    STAGE_UNTIL(&stage, stage.n_ends == stage.n_begins);
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
        stage_cancel(&stage);
        usleep(3000 * (unsigned)i); /* the worker goes a little further each time */
        STAGE_UNTIL(&stage, stage.done);
        assert_int_equal(stage.finish, HILL__FINISH_REASON__FINISH_CANCEL);
    }
    request();
    assert_whole();
}

static void a_failed_selection_ends_one_request(void **state)
{
    (void)state;
    request();
    stage.refuse_at = 5;
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.finish, HILL__FINISH_REASON__FINISH_ERROR);
    assert_int_equal(stage.code, HILL_E_DAMAGED);
    request();
    assert_whole();
}

static void a_stale_staging_slot_is_not_used(void **state)
{
    (void)state;
    request();
    stage.old_generation_at = 4;
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.code, HILL_E_PROTOCOL);
    request();
    assert_whole();
}

static void a_request_that_cannot_fit_is_refused(void **state)
{
    (void)state;
    uint32_t begins = stage.n_begins;
    stage_request(&stage, prompt, PROMPT, STAGE_CTX, UINT32_MAX);
    STAGE_UNTIL(&stage, stage.done);
    assert_int_equal(stage.code, HILL_E_TOO_LONG);
    assert_int_equal(stage.n_begins, begins);
}

/* In mid-request, while a selection is waited for: the request is dropped without a word and can be
 * sent again. */
static void a_new_epoch_takes_the_worker_along(void **state)
{
    (void)state;
    request();
    stage.stall_at = 7;
    STAGE_UNTIL(&stage, stage.n_queries == 7);
    uint32_t ready = stage.n_ready;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
    assert_false(stage.done);
    stage.n_ends = stage.n_begins = 0;
    request();
    assert_whole();
}

static const char *find_program(void)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/hill-gpu-worker",
             getenv("HILL_BIN") ? getenv("HILL_BIN") : "build/bin");
    return path;
}

int main(void)
{
    const char *program = find_program();
    if (access(program, X_OK) != 0) {
        printf("no %s (HILL_BIN): skipped\n", program);
        return 77;
    }
    stage_open(&stage, &shape, program);
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
        cmocka_unit_test(a_request_that_cannot_fit_is_refused),
        cmocka_unit_test(a_new_epoch_takes_the_worker_along),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    int status = stage_close(&stage);
    if (status != 0)
        printf("the worker ended with %d\n", status);
    return failed || status != 0;
}
