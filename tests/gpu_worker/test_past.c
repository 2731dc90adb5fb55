/*
 * tests/gpu_worker/test_past.c - a prompt after tokens whose entries are given: the bits of one
 * prompt of all of them, whatever the lengths, the chunks, the pieces in which the past comes, and
 * what lay in the device's buffers before. HILL_TEST_SEED draws other shapes and lengths.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/draws.h"
#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/engine_run.h"
#include "tests/gpu_worker/random_model.h"

enum { MOST = 700, MORE = 2 };

/* Past entries of a layer, from those that the run has, in pieces of any size. */
static void give_past(struct engine_run *run, uint32_t layer, uint32_t n_past, uint64_t *state)
{
    struct hill_why why = {0};
    for (uint32_t at = engine_past_from(run->engine, layer); at < n_past;) {
        uint32_t rest = n_past - at, n = 1 + draw_from(state, ENGINE_PAST_TOKENS);
        n = n < rest ? n : rest;
        int rc = 0;
        while (rc == 0)
            rc = engine_prefill_past(run->engine, layer, at, n,
                                     run->entries[layer] + (size_t)at * run->entry_bytes, &why);
        if (rc < 0)
            RUN_CHECK(rc);
        at += n;
    }
}

/* run->entries of positions below n_past are there; the others are made, and run->logits. */
static void prefill_after(struct engine_run *run, const uint32_t *tokens, uint32_t n_past,
                          uint32_t n, uint64_t *state)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_prefill_begin(run->engine, n_past, n - n_past, &why));
    RUN_CHECK(engine_prefill_tokens(run->engine, tokens + n_past, n - n_past, &why));
    uint32_t units = engine_prefill_units(run->engine), layers = run->hp.n_layers;
    uint32_t chunks = units / layers;
    for (uint32_t u = 0, queued = 0; u < units; u++) {
        for (; queued < units && queued < u + 2; queued++) {
            if (queued % chunks == 0)
                give_past(run, queued / chunks, n_past, state);
            RUN_CHECK(engine_prefill_enqueue(run->engine, queued, &why));
        }
        struct engine_unit unit = engine_prefill_unit(run->engine, u);
        RUN_CHECK(engine_prefill_read(
            run->engine, u, 0, unit.count,
            run->entries[unit.layer] + (size_t)unit.first * run->entry_bytes, &why));
    }
    RUN_CHECK(engine_prefill_logits(run->engine, run->logits, &why));
    run->n_tokens = n;
    memset(run->uploaded, 0, sizeof *run->uploaded * layers);
}

/* What a run has made: entries of all layers, logits of the prompt and of MORE steps. */
struct made {
    uint8_t *entries[8];
    float *logits;
};

static void keep(struct made *m, const struct engine_run *run, uint32_t n, uint32_t row)
{
    for (uint32_t l = 0; row == 0 && l < run->hp.n_layers; l++) {
        m->entries[l] = malloc((size_t)n * run->entry_bytes);
        memcpy(m->entries[l], run->entries[l], (size_t)n * run->entry_bytes);
    }
    memcpy(m->logits + (size_t)row * run->hp.n_vocab, run->logits,
           run->hp.n_vocab * sizeof *run->logits);
}

static void compare(const struct made *m, const struct engine_run *run, uint32_t n, uint32_t row)
{
    for (uint32_t l = 0; row == 0 && l < run->hp.n_layers; l++)
        assert_memory_equal(m->entries[l], run->entries[l], (size_t)n * run->entry_bytes);
    assert_memory_equal(m->logits + (size_t)row * run->hp.n_vocab, run->logits,
                        run->hp.n_vocab * sizeof *run->logits);
}

static void compare_once(struct random_model *m, uint64_t *state)
{
    uint32_t tokens[MOST + MORE], others[MOST];
    uint32_t n = 2 + draw_from(state, MOST - 2), n_past = 1 + draw_from(state, n - 1);
    if (draw_from(state, 3) == 0)
        n_past = n - 1 - draw_from(state, n < 40 ? n - 1 : 40); /* a short question */
    uint32_t batch_a = 1 + draw_from(state, 600), batch_b = 1 + draw_from(state, 300);
    struct engine *engine = make_engine(m);
    struct engine_run run;
    struct made made = {.logits = calloc((MORE + 1) * m->hp.n_vocab, sizeof(float))};
    make_tokens(tokens, n + MORE, m->hp.n_vocab, draw_from(state, 1000));
    make_tokens(others, MOST, m->hp.n_vocab, 5);
    run_init(&run, engine, batch_a, MOST + MORE);
    run_prefill(&run, tokens, n);
    keep(&made, &run, n, 0);
    for (uint32_t i = 0; i < MORE; i++) {
        run_step(&run, tokens[n + i]);
        keep(&made, &run, n, i + 1);
    }
    run_prefill(&run, others, MOST); /* leaves other keys and values behind */
    run_finish(&run);
    run_init(&run, engine, batch_b, MOST + MORE);
    for (uint32_t l = 0; l < run.hp.n_layers; l++)
        memcpy(run.entries[l], made.entries[l], (size_t)n_past * run.entry_bytes);
    prefill_after(&run, tokens, n_past, n, state);
    compare(&made, &run, n, 0);
    for (uint32_t i = 0; i < MORE; i++) {
        run_step(&run, tokens[n + i]);
        compare(&made, &run, n, i + 1);
    }
    for (uint32_t l = 0; l < run.hp.n_layers; l++)
        free(made.entries[l]);
    free(made.logits);
    run_finish(&run);
    engine_destroy(engine);
}

static void a_past_changes_no_bit(void **state)
{
    (void)state;
    draws_seed(16);
    for (int i = 0; i < 12; i++) {
        struct random_model m;
        random_model_make_windowed(&m, 20 + (uint64_t)i, i % 2 ? 1 + draw(200) : 0);
        compare_once(&m, &draws);
        random_model_free(&m);
    }
}

static void what_is_out_of_order_is_refused(void **state)
{
    (void)state;
    struct random_shape shape = RANDOM_SHAPE_SMALL(2);
    struct random_model m;
    struct engine_run run;
    struct hill_why why;
    uint32_t tokens[10];
    random_model_make(&m, &shape, 3);
    struct engine *engine = make_engine(&m);
    make_tokens(tokens, 10, m.hp.n_vocab, 3);
    run_init(&run, engine, 4, 20);
    RUN_CHECK(engine_prefill_begin(engine, 6, 4, &why));
    RUN_CHECK(engine_prefill_tokens(engine, tokens + 6, 4, &why));
    const void *entries = run.entries[0];
    assert_int_equal(engine_prefill_enqueue(engine, 0, &why), HILL_E_INVALID); /* no past yet */
    assert_int_equal(engine_prefill_past(engine, 1, 0, 6, entries, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past(engine, 0, 1, 5, entries, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past(engine, 0, 0, 7, entries, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past(engine, 0, 0, 0, entries, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past(engine, 0, 0, 6, entries, &why), 1);
    assert_int_equal(engine_prefill_past(engine, 0, 6, 1, entries, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_enqueue(engine, 0, &why), 0);
    assert_int_equal(engine_prefill_enqueue(engine, 1, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_weigh(engine, &why), HILL_E_INVALID);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

/* What engine_kv_bytes_needed says is what is allocated afterwards. */
static void assert_told(uint32_t n_past, uint32_t n)
{
    draws = 1;
    uint32_t tokens[400];
    struct random_shape shape = RANDOM_SHAPE_SMALL(2);
    struct random_model m;
    struct engine_run run;
    random_model_make(&m, &shape, 16);
    struct engine *engine = make_engine(&m);
    make_tokens(tokens, n, m.hp.n_vocab, 16);
    run_init(&run, engine, 64, n);
    uint64_t told = engine_kv_bytes_needed(engine, n_past, n - n_past);
    assert_true(n_past == 0 || told < engine_kv_bytes_needed(engine, 0, n));
    prefill_after(&run, tokens, n_past, n, &draws);
    assert_true(engine_kv_bytes(engine) <= told && engine_kv_bytes(engine) + 1024 >= told);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

static void memory_is_told_before_it_is_taken(void **state)
{
    (void)state;
    assert_told(0, 200);
    assert_told(350, 400);
}

/* Prompts of which each alone keeps within the cap, that of the largest: so do they one after the
 * other. Where there is room buffers stay. */
static void memory_of_several_keeps_within_the_cap(void **state)
{
    static const struct {
        uint32_t n_past, n;
    } prompts[] = {{0, 300}, {260, 40}, {0, 30}, {190, 200}, {0, 300}};
    (void)state;
    struct random_shape shape = RANDOM_SHAPE_SMALL(2);
    struct hill_why why;
    struct random_model m;
    struct engine_run run;
    random_model_make(&m, &shape, 17);
    struct engine *engine = make_engine(&m);
    run_init(&run, engine, 64, 400);
    uint64_t cap = 0, needed[5], more = engine_mass_bytes_needed(engine, 300);
    for (int i = 0; i < 5; i++) {
        needed[i] = engine_kv_bytes_needed(engine, prompts[i].n_past, prompts[i].n) +
                    (prompts[i].n_past ? 0 : more);
        cap = needed[i] > cap ? needed[i] : cap;
    }
    for (int round = 0; round < 2; round++, cap *= 2) {
        for (int i = 0; i < 5; i++) {
            uint32_t n_past = prompts[i].n_past, n = prompts[i].n;
            RUN_CHECK(engine_prefill_within(engine, n_past, n, n_past ? 0 : more, cap, &why));
            RUN_CHECK(engine_prefill_begin(engine, n_past, n, &why));
            if (!n_past)
                RUN_CHECK(engine_prefill_weigh(engine, &why));
            if (engine_kv_bytes(engine) > cap)
                fail_msg("prompt %d: %llu bytes, the cap is %llu", i,
                         (unsigned long long)engine_kv_bytes(engine), (unsigned long long)cap);
        }
    }
    assert_true(engine_kv_bytes(engine) > needed[4]); /* also those of the prompts with a past */
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_past_changes_no_bit),
        cmocka_unit_test(what_is_out_of_order_is_refused),
        cmocka_unit_test(memory_is_told_before_it_is_taken),
        cmocka_unit_test(memory_of_several_keeps_within_the_cap),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
