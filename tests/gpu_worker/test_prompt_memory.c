/*
 * tests/gpu_worker/test_prompt_memory.c - a prompt that is lost after any unit goes on over the
 * same memory: the same logits and entries, bit for bit, also where a unit was half done. What is
 * of another prompt, or damaged, is not found; a bit that has changed costs what it must.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kv/plan.h"
#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/engine_run.h"
#include "tests/gpu_worker/random_model.h"

enum { TOKENS = 70, NAME = 77, WORDS = 4096 };

static const struct random_shape shape = RANDOM_SHAPE_SMALL(3);

struct scene {
    struct random_model model;
    uint32_t tokens[TOKENS];
    struct engine *engine;
    struct engine_run run, undisturbed;
    uint8_t *memory;
    uint64_t bytes;
    uint32_t batch;
    bool in_place;
};

static void attach(struct scene *s)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_attach_prompt(s->engine, s->memory, s->bytes, s->in_place, &why));
}

/* Nothing of the prompt is left but the memory: another one is computed in between. */
static void lose(struct scene *s)
{
    struct hill_why why = {0};
    uint32_t others[TOKENS];
    make_tokens(others, TOKENS, shape.n_vocab, 6);
    RUN_CHECK(engine_attach_prompt(s->engine, NULL, 0, false, &why));
    run_prefill(&s->run, others, TOKENS);
}

static void set_up_scene(struct scene *s, uint32_t batch, bool in_place)
{
    *s = (struct scene){.batch = batch, .in_place = in_place && device.shares_memory};
    random_model_make(&s->model, &shape, 5);
    make_tokens(s->tokens, TOKENS, shape.n_vocab, 5);
    s->engine = make_engine(&s->model);
    run_init(&s->run, s->engine, batch, TOKENS);
    run_init(&s->undisturbed, s->engine, batch, TOKENS);
    run_prefill(&s->undisturbed, s->tokens, TOKENS);
    s->bytes = engine_prompt_bytes(s->engine, TOKENS);
    s->memory = aligned_alloc(4096, s->bytes);
    assert_non_null(s->memory);
    memset(s->memory, 0xff, s->bytes); /* what an earlier prompt has left */
    attach(s);
}

static void tear_down_scene(struct scene *s)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_attach_prompt(s->engine, NULL, 0, false, &why));
    run_finish(&s->undisturbed);
    run_finish(&s->run);
    engine_destroy(s->engine);
    free(s->memory);
    random_model_free(&s->model);
}

static void begin(struct scene *s, const struct engine_keep *keep)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_prefill_begin_kept(s->engine, TOKENS, keep, &why));
    RUN_CHECK(engine_prefill_tokens(s->engine, s->tokens, TOKENS, &why));
}

/* Units from `unit` to `end`, read and kept; and one more is computed, as in a pipeline. */
static void compute(struct scene *s, uint32_t unit, uint32_t end)
{
    struct hill_why why = {0};
    uint32_t units = engine_prefill_units(s->engine);
    for (; unit < end; unit++) {
        struct engine_unit u = engine_prefill_unit(s->engine, unit);
        for (uint32_t q = engine_prefill_queued(s->engine); q < unit + 2 && q < units; q++)
            RUN_CHECK(engine_prefill_enqueue(s->engine, q, &why));
        RUN_CHECK(engine_prefill_read(
            s->engine, unit, 0, u.count,
            s->run.entries[u.layer] + (size_t)u.first * s->run.entry_bytes, &why));
        RUN_CHECK(engine_prefill_save(s->engine, unit, &why));
    }
    RUN_CHECK(engine_finish(s->engine, &why));
}

static struct engine_prompt find(const struct scene *s, bool expected)
{
    struct engine_prompt found = {0};
    assert_int_equal(engine_prompt_find(s->engine, NAME, TOKENS, &found), expected);
    return found;
}

/* As if the process had been killed when all of its newest unit was done but the word. */
static void take_last_word(struct scene *s)
{
    uint32_t words[2];
    memcpy(words, s->memory + WORDS, sizeof words);
    assert_int_equal(words[0], words[1]);
    words[1]--;
    memcpy(s->memory + WORDS, words, sizeof words);
}

/* The rest, from entries of unit `from` on, is as it is undisturbed. */
static void finish_prompt(struct scene *s, uint32_t from)
{
    struct hill_why why = {0};
    struct engine_keep keep = {NAME, true, from};
    begin(s, &keep);
    compute(s, from, engine_prefill_units(s->engine));
    RUN_CHECK(engine_prefill_logits(s->engine, s->run.logits, &why));
    assert_memory_equal(s->run.logits, s->undisturbed.logits, shape.n_vocab * sizeof(float));
    uint32_t units = engine_prefill_units(s->engine);
    for (uint32_t unit = from; unit < units; unit++) {
        struct engine_unit u = engine_prefill_unit(s->engine, unit);
        size_t at = (size_t)u.first * s->run.entry_bytes;
        assert_memory_equal(s->run.entries[u.layer] + at, s->undisturbed.entries[u.layer] + at,
                            (size_t)u.count * s->run.entry_bytes);
    }
}

static void lose_after(struct scene *s, uint32_t units, bool half)
{
    const struct engine_keep keep = {.name = NAME};
    attach(s);
    begin(s, &keep);
    uint32_t all = engine_prefill_units(s->engine);
    compute(s, 0, units);
    lose(s);
    if (half)
        take_last_word(s);
    attach(s);
    uint32_t done = s->in_place && units < all ? units + 1 : units; /* with what was queued */
    struct engine_prompt found = find(s, done - half > 0);
    if (done - half == 0)
        return;
    assert_int_equal(found.units, done - half);
    assert_int_equal(found.begun, half);
    assert_int_equal(found.oldest, 0); /* so short a prompt is there as a whole */
    finish_prompt(s, units % 2 && units < found.units ? units : units / 2);
}

static void check_all_units(uint32_t batch, bool in_place)
{
    struct scene s;
    set_up_scene(&s, batch, in_place);
    uint32_t units = shape.n_layers * ((TOKENS + batch - 1) / batch);
    for (uint32_t i = 1; i <= units; i++) {
        lose_after(&s, i, false);
        lose_after(&s, i, true);
    }
    tear_down_scene(&s);
}

static void test_goes_on_in_place(void **unused)
{
    (void)unused;
    check_all_units(32, true);
    check_all_units(128, true); /* all tokens in one chunk */
}

static void test_goes_on_from_copies(void **unused)
{
    (void)unused;
    check_all_units(32, false);
    check_all_units(128, false);
}

/* kv_plan_prompt_bytes is the segment's size, engine_kv_bytes_needed what is taken of the GPU. */
static void test_the_plan_is_kept(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < 4; i++) {
        struct scene s;
        const struct engine_keep keep = {.name = NAME};
        set_up_scene(&s, i / 2 ? 32 : 128, i % 2);
        const struct kv_plan_input in = {
            .geometry = {shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.head_dim},
            .n_embd = shape.n_embd,
            .ctx_tokens = TOKENS,
            .batch_tokens = s.batch};
        for (uint32_t n = 1; n <= TOKENS; n++)
            assert_true(engine_prompt_bytes(s.engine, n) <= kv_plan_prompt_bytes(&in));
        begin(&s, &keep);
        assert_true(engine_kv_bytes(s.engine) <= engine_kv_bytes_needed(s.engine, 0, TOKENS));
        tear_down_scene(&s);
    }
}

/* One that is begun over another is not taken for it, nor is one whose head or words are
 * damaged. */
static void test_only_this_prompt_is_found(void **unused)
{
    (void)unused;
    struct scene s;
    struct engine_prompt found;
    const struct engine_keep keep = {.name = NAME}, other = {.name = NAME + 1};
    set_up_scene(&s, 32, true);
    find(&s, false);
    begin(&s, &keep);
    find(&s, false); /* no unit yet */
    compute(&s, 0, 3);
    const uint32_t units = s.in_place ? 4 : 3; /* with what was queued */
    assert_int_equal(find(&s, true).units, units);
    assert_false(engine_prompt_find(s.engine, NAME + 1, TOKENS, &found));
    assert_false(engine_prompt_find(s.engine, NAME, TOKENS - 1, &found));
    for (uint32_t byte = 0; byte < 40; byte++) {
        s.memory[byte] ^= 4;
        find(&s, false);
        s.memory[byte] ^= 4;
    }
    uint32_t *words = (uint32_t *)(void *)(s.memory + WORDS);
    words[0] += 2;
    find(&s, false);
    words[0] = words[1] = 1000;
    find(&s, false);
    words[0] = words[1] = units;
    find(&s, true);
    begin(&s, &other);
    find(&s, false);
    tear_down_scene(&s);
}

/* ---- a bit that has changed ---------------------------------------------------------------- */

/* Where the parts lie: as at the head of prompt_memory.c. */
static uint64_t pages(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

static uint8_t *hidden_row(const struct scene *s, uint32_t row)
{
    return s->memory + 2 * 4096 + (uint64_t)row * 4 * ((shape.n_embd + 31) / 32 * 32);
}

static uint8_t *row_before(const struct scene *s, uint32_t row)
{
    return hidden_row(s, 0) + pages(hidden_row(s, TOKENS) - hidden_row(s, 0)) +
           (hidden_row(s, row) - hidden_row(s, 0));
}

static uint8_t *entry_of(const struct scene *s, uint32_t unit, uint32_t i)
{
    uint32_t chunk = s->batch < TOKENS ? s->batch : TOKENS; /* all units of so short a prompt fit */
    return row_before(s, 0) + pages(hidden_row(s, chunk) - hidden_row(s, 0)) +
           ((uint64_t)unit * chunk + i) * s->run.entry_bytes;
}

/* A prompt of which so many units are done and nothing is under way. */
static void leave_units(struct scene *s, uint32_t units)
{
    const struct engine_keep keep = {.name = NAME};
    attach(s);
    begin(s, &keep);
    compute(s, 0, s->in_place ? units - 1 : units); /* in place one more is queued */
    lose(s);
    attach(s);
    struct engine_prompt found = find(s, true);
    assert_int_equal(found.units, units);
    assert_false(found.begun || found.damaged);
}

/* Chunk 0 of three changed last. */
static void check_flips(bool in_place)
{
    struct scene s;
    set_up_scene(&s, 32, in_place);
    const struct engine_prompt whole = {.units = 4};
    struct {
        uint8_t *byte;
        bool stays;
        struct engine_prompt found;
    } flips[] = {
        {hidden_row(&s, 0), true, {3, true, 0, true}},
        {hidden_row(&s, 31) + 4 * shape.n_embd - 1, true, {3, true, 0, true}},
        {hidden_row(&s, 32), false, {4, false, 0, true}},
        {hidden_row(&s, TOKENS - 1), false, {4, false, 0, true}},
        {row_before(&s, 5), true, whole},                 /* nobody needs it */
        {entry_of(&s, 0, 0), true, {4, false, 1, true}},  /* of the layer before */
        {entry_of(&s, 2, 5), true, {4, false, 3, true}},  /* its last one */
        {entry_of(&s, 3, 31), false, {4, false, 4, true}} /* of the layer: its keys and values */
    };
    leave_units(&s, 4);
    for (uint32_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        *flips[i].byte ^= 16;
        struct engine_prompt found = find(&s, flips[i].stays);
        assert_int_equal(found.damaged, flips[i].found.damaged);
        if (flips[i].stays) {
            assert_int_equal(found.units, flips[i].found.units);
            assert_int_equal(found.begun, flips[i].found.begun);
            assert_int_equal(found.oldest, flips[i].found.oldest);
        }
        *flips[i].byte ^= 16;
    }
    take_last_word(&s); /* now the last unit is under way, and what is beside counts */
    assert_int_equal(find(&s, true).units, 3);
    *hidden_row(&s, 3) ^= 1;
    assert_false(find(&s, true).damaged);
    *row_before(&s, 31) ^= 1;
    assert_true(find(&s, false).damaged);
    tear_down_scene(&s);
}

static void test_a_bit_that_has_changed_is_found(void **unused)
{
    (void)unused;
    check_flips(true);
    check_flips(false);
}

/* Of a row; row TOKENS: the first of those before. */
static uint64_t *sum_of(const struct scene *s, uint32_t row)
{
    uint32_t chunk = s->batch < TOKENS ? s->batch : TOKENS;
    uint32_t units = shape.n_layers * ((TOKENS + chunk - 1) / chunk);
    uint8_t *first =
        entry_of(s, 0, 0) + pages((uint64_t)(entry_of(s, units, 0) - entry_of(s, 0, 0)));
    return (uint64_t *)(void *)first + row;
}

/* Killed when the rows of the next unit were put aside and it had not begun: they fit their sums,
 * but are not what the newest unit began with. */
static void test_rows_before_another_unit_are_not_taken(void **unused)
{
    (void)unused;
    for (uint32_t in_place = 0; in_place < 2; in_place++) {
        struct scene s;
        set_up_scene(&s, 32, in_place);
        leave_units(&s, 4);
        uint32_t *words = (uint32_t *)(void *)(s.memory + WORDS);
        assert_int_equal(words[2], 4);
        words[2] = 5; /* unit 4 changes chunk 1 */
        memcpy(row_before(&s, 0), hidden_row(&s, 32),
               (size_t)(hidden_row(&s, 64) - hidden_row(&s, 32)));
        memcpy(sum_of(&s, TOKENS), sum_of(&s, 32), 32 * sizeof(uint64_t));
        assert_false(find(&s, true).damaged);
        *hidden_row(&s, 0) ^= 16;
        find(&s, false);
        tear_down_scene(&s);
    }
}

/* The newest unit's result is damaged: that unit alone is computed again. */
static void test_only_the_damaged_unit_is_computed_again(void **unused)
{
    (void)unused;
    for (uint32_t in_place = 0; in_place < 2; in_place++)
        for (uint32_t units = 2; units < 3 * shape.n_layers; units++) {
            struct scene s;
            set_up_scene(&s, 32, in_place);
            leave_units(&s, units);
            *hidden_row(&s, (units - 1) % 3 * 32 + 1) ^= 64;
            assert_int_equal(find(&s, true).units, units - 1);
            finish_prompt(&s, units - 1);
            tear_down_scene(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goes_on_in_place),
        cmocka_unit_test(test_goes_on_from_copies),
        cmocka_unit_test(test_the_plan_is_kept),
        cmocka_unit_test(test_only_this_prompt_is_found),
        cmocka_unit_test(test_a_bit_that_has_changed_is_found),
        cmocka_unit_test(test_only_the_damaged_unit_is_computed_again),
        cmocka_unit_test(test_rows_before_another_unit_are_not_taken),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
