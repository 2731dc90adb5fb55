/*
 * tests/base/test_stage_trace.c - the ring of stage events: order, overwriting, a reader beside a
 * writer (TSan too), and the macros of this process.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/stage_trace.h"

static struct stage_event event_of(uint64_t n)
{
    return (struct stage_event){.start_ns = (int64_t)n,
                                .end_ns = (int64_t)(n * 3),
                                .stage = (uint32_t)(n % STAGE_COUNT),
                                .sequence = (uint32_t)(n * 5),
                                .step = (uint32_t)(n * 7),
                                .layer = (uint32_t)(n * 11),
                                .bytes = n * 13};
}

static bool same(const struct stage_event *a, const struct stage_event *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void events_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct stage_ring *ring = stage_ring_create(8);
    struct stage_event out[8];
    uint64_t lost = 0;
    assert_non_null(ring);
    assert_int_equal(stage_ring_take(ring, out, 8, &lost), 0);
    for (uint64_t n = 0; n < 5; n++) {
        struct stage_event event = event_of(n);
        stage_ring_put(ring, &event);
    }
    assert_int_equal(stage_ring_take(ring, out, 3, &lost), 3);
    for (uint64_t n = 0; n < 3; n++) {
        struct stage_event event = event_of(n);
        assert_true(same(&out[n], &event));
    }
    assert_int_equal(stage_ring_take(ring, out, 8, &lost), 2);
    struct stage_event last = event_of(4);
    assert_true(same(&out[1], &last));
    assert_int_equal(lost, 0);
    stage_ring_destroy(ring);
}

static void the_oldest_are_overwritten_and_counted(void **state)
{
    (void)state;
    struct stage_ring *ring = stage_ring_create(8);
    struct stage_event out[16];
    uint64_t lost = 0;
    assert_non_null(ring);
    for (uint64_t n = 0; n < 8 + 13; n++) {
        struct stage_event event = event_of(n);
        stage_ring_put(ring, &event);
    }
    assert_int_equal(stage_ring_take(ring, out, 16, &lost), 8);
    assert_int_equal(lost, 13);
    for (uint64_t n = 0; n < 8; n++) {
        struct stage_event event = event_of(13 + n);
        assert_true(same(&out[n], &event));
    }
    stage_ring_destroy(ring);
}

static void what_is_forgotten_is_not_lost(void **state)
{
    (void)state;
    struct stage_ring *ring = stage_ring_create(8);
    struct stage_event out[8], event = event_of(99);
    uint64_t lost = 0;
    assert_non_null(ring);
    for (uint64_t n = 0; n < 30; n++) {
        struct stage_event other = event_of(n);
        stage_ring_put(ring, &other);
    }
    stage_ring_forget(ring);
    stage_ring_put(ring, &event);
    assert_int_equal(stage_ring_take(ring, out, 8, &lost), 1);
    assert_int_equal(lost, 0);
    assert_true(same(&out[0], &event));
    stage_ring_destroy(ring);
}

/* ---- a writer that laps its reader --------------------------------------------------------- */

enum { WRITTEN = 300000 };

static void *write_many(void *argument)
{
    struct stage_ring *ring = argument;
    for (uint64_t n = 0; n < WRITTEN; n++) {
        struct stage_event event = event_of(n);
        stage_ring_put(ring, &event);
    }
    return NULL;
}

/* Every event comes once, whole and in order, or is counted as lost. */
static void a_reader_beside_the_writer_sees_whole_events(void **state)
{
    (void)state;
    struct stage_ring *ring = stage_ring_create(64);
    struct stage_event out[48];
    uint64_t lost = 0, next = 0, seen = 0;
    pthread_t writer;
    assert_non_null(ring);
    assert_int_equal(pthread_create(&writer, NULL, write_many, ring), 0);
    while (seen + lost < WRITTEN) {
        uint32_t n = stage_ring_take(ring, out, 48, &lost);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t number = (uint64_t)out[i].start_ns;
            struct stage_event whole = event_of(number);
            assert_true(number >= next && number < WRITTEN);
            assert_true(same(&out[i], &whole));
            next = number + 1;
        }
        seen += n;
    }
    assert_int_equal(seen + lost, WRITTEN);
    assert_true(seen > 0);
    pthread_join(writer, NULL);
    stage_ring_destroy(ring);
}

/* ---- the macros --------------------------------------------------------------------------- */

static void work(uint32_t layer)
{
    STAGE_BEGIN(merge, 2, 3, layer);
    STAGE_BEGIN(select, 2, 3, layer);
    STAGE_END(select, 4);
    STAGE_END(merge, 1000);
}

static void stages_are_recorded_while_tracing_is_on(void **state)
{
    (void)state;
    struct stage_event out[8];
    uint64_t lost = 0;
    work(0);
    assert_int_equal(stage_trace_take(out, 8, &lost), 0);
    assert_int_equal(stage_trace_switch(true), 0);
    work(5);
    assert_int_equal(stage_trace_switch(false), 0);
    work(6);
    assert_int_equal(stage_trace_take(out, 8, &lost), 2);
    assert_string_equal(stage_name(out[0].stage), "select");
    assert_string_equal(stage_name(out[1].stage), "merge");
    assert_int_equal(out[1].sequence, 2);
    assert_int_equal(out[1].step, 3);
    assert_int_equal(out[1].layer, 5);
    assert_int_equal(out[1].bytes, 1000);
    assert_true(out[1].start_ns > 0 && out[1].start_ns <= out[0].start_ns);
    assert_true(out[0].end_ns >= out[0].start_ns && out[0].end_ns <= out[1].end_ns);
    assert_int_equal(lost, 0);
    /* switched on anew: what came before is not shown */
    assert_int_equal(stage_trace_switch(true), 0);
    assert_int_equal(stage_trace_take(out, 8, &lost), 0);
    assert_int_equal(stage_trace_switch(false), 0);
}

static void every_stage_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (uint32_t a = 0; a < STAGE_COUNT; a++)
        for (uint32_t b = 0; b < a; b++)
            assert_string_not_equal(stage_name(a), stage_name(b));
    assert_null(stage_name(STAGE_COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_out_as_they_went_in),
        cmocka_unit_test(the_oldest_are_overwritten_and_counted),
        cmocka_unit_test(what_is_forgotten_is_not_lost),
        cmocka_unit_test(a_reader_beside_the_writer_sees_whole_events),
        cmocka_unit_test(stages_are_recorded_while_tracing_is_on),
        cmocka_unit_test(every_stage_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
