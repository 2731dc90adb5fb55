/*
 * test_timeline.c - a token's critical path against steps worked by hand.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "gateway/timeline.h"

#define US INT64_C(1000)

static struct timeline timeline;

static void add(enum stage stage, uint32_t sequence, uint32_t step, uint32_t layer, int64_t from_us,
                int64_t to_us)
{
    struct stage_event e = {.start_ns = (1000 + from_us) * US,
                            .end_ns = (1000 + to_us) * US,
                            .stage = stage,
                            .sequence = sequence,
                            .step = step,
                            .layer = layer};
    timeline_add(&timeline, &e, sizeof e);
}

static json_t *written_with(uint32_t sequence, bool others)
{
    struct text_buffer out = {0};
    const struct timeline_of of = {41, sequence, others};
    timeline_write(&out, &timeline, &of);
    json_t *json = json_loadb(out.bytes, out.length, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    text_finish(&out);
    return json;
}

static json_t *written(uint32_t sequence)
{
    return written_with(sequence, false);
}

static double number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

/* One layer: the query, the scorer's and the drive's part of the selection, attention. */
static void add_layer(uint32_t sequence, uint32_t step, uint32_t layer, int64_t at)
{
    add(STAGE_query, sequence, step, layer, at, at + 10);
    add(STAGE_await_selection, sequence, step, layer, at + 10, at + 60);
    add(STAGE_answer, sequence, step, layer, at + 12, at + 55);
    add(STAGE_score_hot, sequence, step, layer, at + 13, at + 23);
    add(STAGE_agent_score, sequence, step, layer, at + 15, at + 33);
    add(STAGE_score_cold, sequence, step, layer, at + 23, at + 35);
    add(STAGE_select, sequence, step, layer, at + 35, at + 40);
    add(STAGE_gather, sequence, step, layer, at + 40, at + 54);
    add(STAGE_agent_fetch, sequence, step, layer, at + 44, at + 52);
    add(STAGE_attend, sequence, step, layer, at + 60, at + 70);
}

static void a_step_worked_by_hand(void **state)
{
    (void)state;
    add_layer(3, 7, 0, 0);
    add_layer(3, 7, 1, 70);
    add(STAGE_logits, 3, 7, 2, 140, 165);
    add(STAGE_agent_demote, 3, 7, 0, 141, 150); /* nobody waits for it */
    add(STAGE_query, 3, 8, 0, 170, 180);
    add(STAGE_score_hot, 1, 90, 0, 20, 90); /* another's */
    json_t *t = written(3), *path = json_object_get(t, "path_us");
    assert_true(number(t, "request") == 41 && number(t, "step") == 7 && number(t, "us") == 170);
    /* a layer's GPU: query, attention, and what is on its way from and to the scorer */
    assert_true(number(path, "gpu_worker") == 2 * (10 + 10 + 2 + 5) + 25);
    /* the drive: once the hot keys are scored, and while it fetches */
    assert_true(number(path, "csd_agent") == 2 * (10 + 8));
    assert_true(number(path, "cpu_scorer") == 2 * (43 - 18));
    assert_true(number(path, "between") == 5);
    const json_t *spans = json_object_get(t, "spans"), *span = json_array_get(spans, 4);
    assert_int_equal(json_array_size(spans), 22);
    assert_string_equal(json_string_value(json_object_get(span, "stage")), "agent_score");
    assert_string_equal(json_string_value(json_object_get(span, "process")), "csd_agent");
    assert_true(number(span, "at_us") == 15 && number(span, "us") == 18 &&
                number(span, "path_us") == 10);
    json_decref(t);
    timeline_finish(&timeline);
}

/* Sequence 3 is the second row of steps whose first is sequence 1: that one has the step's
 * waits. */
static void add_shared_step(int64_t at)
{
    add(STAGE_query, 1, 90, 0, at - 10, at);
    add(STAGE_query, 3, 7, 0, at, at + 10);
    add(STAGE_answer, 1, 90, 0, at - 5, at + 30);
    add(STAGE_score_hot, 1, 90, 0, at - 5, at + 28);
    add(STAGE_await_selection, 1, 90, 0, at + 10, at + 60);
    add(STAGE_score_hot, 3, 7, 0, at + 30, at + 45);
    add(STAGE_upload, 1, 90, 0, at + 31, at + 36);
    add(STAGE_attend, 3, 7, 0, at + 50, at + 60);
    add(STAGE_logits, 1, 90, 1, at + 60, at + 80);
    add(STAGE_prefill, 2, 0, 4, at + 82, at + 90);
    add(STAGE_query, 1, 91, 0, at + 90, at + 97);
    add(STAGE_query, 3, 8, 0, at + 100, at + 110);
}

static size_t others_in(const json_t *t)
{
    size_t i, n = 0;
    const json_t *span;
    json_array_foreach(json_object_get(t, "spans"), i, span)
    {
        n += json_is_true(json_object_get(span, "other"));
        assert_true(number(span, "at_us") >= 0 && number(span, "us") >= 0);
    }
    return n;
}

static void a_step_that_is_shared(void **state)
{
    (void)state;
    add_shared_step(0);
    json_t *t = written_with(3, true), *path = json_object_get(t, "path_us");
    assert_true(number(t, "us") == 100);
    /* query, the wait while nobody computes, attend, logits; of the first row its answer after the
     * own query, the upload within the own scoring, the next query; the prompt */
    assert_true(number(path, "gpu_worker") == 10 + (50 - 45) + 10 + 20);
    assert_true(number(path, "cpu_scorer") == 15 - 5);
    assert_true(number(path, "csd_agent") == 0);
    assert_true(number(path, "others") == (30 - 10) + 5 + 8 + 7);
    assert_true(number(path, "between") == 2 + 3);
    assert_int_equal(others_in(t), 5);
    json_decref(t);
    timeline_finish(&timeline);
}

/* Somebody else's key: of its requests nothing is told, and its time is no one's. */
static void others_that_are_not_told_of(void **state)
{
    (void)state;
    add_shared_step(0);
    json_t *t = written_with(3, false), *path = json_object_get(t, "path_us");
    assert_int_equal(others_in(t), 0);
    assert_int_equal(json_array_size(json_object_get(t, "spans")), 5);
    assert_true(number(path, "others") == 0);
    /* the step's own waits, that stand at the first row's, are there */
    assert_true(number(path, "gpu_worker") == 10 + (30 - 10) + (50 - 45) + 10 + 20);
    assert_true(number(path, "cpu_scorer") == 15);
    assert_true(number(path, "between") == 20);
    json_decref(t);
    timeline_finish(&timeline);
}

/* The row is left out of the others' next step, which lies in the window: that one is theirs. */
static void a_step_of_others_in_between(void **state)
{
    (void)state;
    add_shared_step(0);
    add(STAGE_await_selection, 1, 91, 0, 97, 98);
    add(STAGE_logits, 1, 91, 1, 98, 99);
    for (int others = 0; others < 2; others++) {
        json_t *t = written_with(3, others), *path = json_object_get(t, "path_us");
        assert_int_equal(json_array_size(json_object_get(t, "spans")), others ? 12 : 5);
        assert_int_equal(others_in(t), others ? 7 : 0);
        assert_true(number(path, "between") == (others ? 2 + 1 : 20));
        json_decref(t);
    }
    timeline_finish(&timeline);
}

/* It steps alone, and then others do. */
static void a_step_beside_that_of_others(void **state)
{
    (void)state;
    add_layer(3, 7, 0, 0);
    add(STAGE_logits, 3, 7, 1, 70, 80);
    add(STAGE_query, 1, 90, 0, 80, 85);
    add(STAGE_await_selection, 1, 90, 0, 85, 95);
    add(STAGE_logits, 1, 90, 1, 96, 99);
    add(STAGE_query, 3, 8, 0, 100, 110);
    json_t *t = written_with(3, false);
    assert_int_equal(json_array_size(json_object_get(t, "spans")), 11);
    assert_true(number(json_object_get(t, "path_us"), "between") == 20);
    json_decref(t);
    timeline_finish(&timeline);
}

static void without_a_whole_step_there_is_none(void **state)
{
    (void)state;
    json_t *t = written(0);
    assert_true(json_is_null(t));
    json_decref(t);
    add_layer(0, 4, 0, 0);
    t = written(0);
    assert_true(json_is_null(t)); /* the next one has not begun */
    json_decref(t);
    add(STAGE_query, 0, 6, 0, 90, 95);
    t = written(0);
    assert_true(json_is_null(t)); /* step 5 was not seen */
    json_decref(t);
    timeline_finish(&timeline);
}

/* The slot's request before, whose steps have numbers as this one's, and the one after. */
static void what_began_outside_is_another_requests(void **state)
{
    (void)state;
    add(STAGE_query, 3, 900, 0, -50, -40);
    add(STAGE_query, 3, 901, 0, -20, 5);
    add_layer(3, 7, 0, 0);
    add(STAGE_query, 3, 8, 0, 70, 80);
    add(STAGE_query, 3, 950, 0, 90, 95);
    add(STAGE_query, 3, 951, 0, 97, 99);
    timeline_keep(&timeline, 1000 * US, 1090 * US);
    json_t *t = written(3);
    assert_true(number(t, "step") == 7 && number(t, "us") == 70);
    json_decref(t);
    timeline_finish(&timeline);
}

static void nonsense_is_left_out(void **state)
{
    (void)state;
    add_layer(0, 4, 0, 0);
    add(STAGE_COUNT, 0, 4, 0, 1, 2);
    add(STAGE_select, 0, 4, 0, 50, 20);
    add(STAGE_query, 0, 5, 0, 70, 80);
    json_t *t = written(0);
    assert_int_equal(json_array_size(json_object_get(t, "spans")), 10);
    json_decref(t);
    struct stage_event *many = calloc(TIMELINE_EVENTS_MAX, sizeof *many);
    timeline_add(&timeline, many, TIMELINE_EVENTS_MAX * sizeof *many);
    assert_true(timeline.n == TIMELINE_EVENTS_MAX);
    free(many);
    timeline_finish(&timeline);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_worked_by_hand),
        cmocka_unit_test(a_step_that_is_shared),
        cmocka_unit_test(others_that_are_not_told_of),
        cmocka_unit_test(a_step_of_others_in_between),
        cmocka_unit_test(a_step_beside_that_of_others),
        cmocka_unit_test(without_a_whole_step_there_is_none),
        cmocka_unit_test(what_began_outside_is_another_requests),
        cmocka_unit_test(nonsense_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
