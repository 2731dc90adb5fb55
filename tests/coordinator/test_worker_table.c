/* Tests of coordinator/worker_table.[ch]: states, back-off, heartbeats, stop order, on a clock of
 * their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/worker_table.h"

#define SECOND INT64_C(1000000000)

static struct worker_table table;
static int64_t now;
static int32_t next_pid;

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    next_pid = 100;
    worker_table_init(&table, true);
    return 0;
}

static void start(enum worker w)
{
    worker_table_started(&table, w, next_pid++, 1, now);
}

static void make_ready(enum worker w)
{
    start(w);
    worker_table_configured(&table, w);
    worker_table_ready_at(&table, w, now);
    worker_table_heartbeat(&table, w, 0, now);
}

/* Seconds from now until w is started again; the table is in BACKOFF. */
static double backoff_seconds(enum worker w)
{
    assert_int_equal(table.rows[w].state, WORKER_BACKOFF);
    int64_t at = table.rows[w].start_at_ns;
    assert_int_equal(worker_table_due(&table, w, at - 1), WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, w, at), WORKER_DO_START);
    return (double)(at - now) / 1e9;
}

/* The table of README.md, read there: every state and every event, what it says and nothing else. */
static void test_transitions_are_those_of_the_readme(void **state)
{
    static const char *const rows[] = {"stopped",    "backoff", "started",
                                       "configured", "ready",   "stopping"};
    static const enum worker_state order[] = {WORKER_STOPPED,    WORKER_BACKOFF, WORKER_STARTED,
                                              WORKER_CONFIGURED, WORKER_READY,   WORKER_STOPPING};
    (void)state;
    for (unsigned r = 0; r < 6; r++) {
        FILE *readme = fopen("coordinator/README.md", "r");
        char line[256], head[32];
        if (!readme)
            skip(); /* run from elsewhere */
        snprintf(head, sizeof head, "| `%s` |", rows[r]);
        do
            assert_non_null(fgets(line, sizeof line, readme));
        while (strncmp(line, head, strlen(head)) != 0);
        fclose(readme);
        char *cell = line + strlen(head), *rest;
        for (int event = 0; event <= WORKER_DIED_UNWANTED; event++, cell = rest + 1) {
            assert_non_null(rest = strchr(cell, '|'));
            *rest = '\0';
            char *word = cell + strspn(cell, " ");
            word[strcspn(word, " ")] = '\0';
            enum worker_state to = worker_state_after(order[r], (enum worker_event)event);
            assert_string_equal(*word ? word : rows[r], worker_state_name(to));
        }
    }
}

static void test_fresh_table_starts_all_wanted_workers(void **state)
{
    (void)state;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        assert_int_equal(worker_table_due(&table, w, now), WORKER_DO_START);
    worker_table_init(&table, false);
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now), WORKER_DO_NOTHING);
    assert_int_equal(table.rows[WORKER_AGENT].state, WORKER_STOPPED);
}

static void test_ready_is_not_started(void **state)
{
    (void)state;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        start(w);
    assert_false(worker_table_ready(&table));
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        worker_table_configured(&table, w);
    assert_false(worker_table_ready(&table));
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        assert_false(worker_table_ready(&table));
        worker_table_ready_at(&table, w, now);
    }
    assert_true(worker_table_ready(&table));
    worker_table_configured(&table, WORKER_SCORER); /* of the next epoch */
    assert_false(worker_table_ready(&table));
}

static void test_restarts_double_from_one_second_to_thirty(void **state)
{
    (void)state;
    static const double expected[] = {1, 2, 4, 8, 16, 30, 30};
    for (unsigned i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        make_ready(WORKER_GPU);
        now += SECOND;
        assert_false(worker_table_exited(&table, WORKER_GPU, now));
        assert_true(backoff_seconds(WORKER_GPU) == expected[i]);
        now = table.rows[WORKER_GPU].start_at_ns;
    }
    assert_int_equal(table.rows[WORKER_GPU].restarts, 7);
}

static void test_a_stable_life_forgets_the_back_off(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        make_ready(WORKER_GPU);
        worker_table_exited(&table, WORKER_GPU, now);
        now = table.rows[WORKER_GPU].start_at_ns;
    }
    make_ready(WORKER_GPU);
    now += WORKER_STABLE_NS;
    worker_table_exited(&table, WORKER_GPU, now);
    assert_true(backoff_seconds(WORKER_GPU) == 1);
}

static void test_death_before_ready_waits_longer_and_is_given_up(void **state)
{
    (void)state;
    static const double expected[] = {2, 4, 8, 16, 30};
    for (unsigned i = 0; i < 5; i++) {
        start(WORKER_AGENT);
        bool given_up = worker_table_exited(&table, WORKER_AGENT, now);
        assert_int_equal(given_up, i == 4);
        assert_true(backoff_seconds(WORKER_AGENT) == expected[i]);
        now = table.rows[WORKER_AGENT].start_at_ns;
    }
}

static void test_a_worker_that_was_ready_once_is_not_given_up(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    worker_table_exited(&table, WORKER_GPU, now);
    for (unsigned i = 0; i < 20; i++) {
        start(WORKER_GPU);
        assert_false(worker_table_exited(&table, WORKER_GPU, now));
    }
}

static void test_silence_is_answered_by_term_then_kill(void **state)
{
    (void)state;
    make_ready(WORKER_SCORER);
    now += 2 * SECOND;
    worker_table_heartbeat(&table, WORKER_SCORER, 5, now);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 3 * SECOND - 1),
                     WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 3 * SECOND),
                     WORKER_DO_TERMINATE);
    now += 3 * SECOND;
    worker_table_terminated(&table, WORKER_SCORER, now);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now), WORKER_DO_NOTHING);
    worker_table_heartbeat(&table, WORKER_SCORER, 5, now); /* too late */
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 5 * SECOND), WORKER_DO_KILL);
    worker_table_killed(&table, WORKER_SCORER);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 50 * SECOND), WORKER_DO_NOTHING);
    worker_table_exited(&table, WORKER_SCORER, now);
    assert_int_equal(table.rows[WORKER_SCORER].state, WORKER_BACKOFF);
}

static void test_a_second_term_does_not_move_the_kill(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    worker_table_terminated(&table, WORKER_GPU, now);
    worker_table_terminated(&table, WORKER_GPU, now + 4 * SECOND);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now + 5 * SECOND), WORKER_DO_KILL);
}

static void test_a_stopping_worker_becomes_neither_configured_nor_ready(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    worker_table_terminated(&table, WORKER_GPU, now);
    worker_table_configured(&table, WORKER_GPU);
    worker_table_ready_at(&table, WORKER_GPU, now);
    assert_int_equal(table.rows[WORKER_GPU].state, WORKER_STOPPING);
}

static void test_no_hello_in_ten_seconds(void **state)
{
    (void)state;
    start(WORKER_GPU);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now + 10 * SECOND - 1),
                     WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now + 10 * SECOND), WORKER_DO_TERMINATE);
}

static void test_detach_and_attach(void **state)
{
    (void)state;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        make_ready(w);
    worker_table_want(&table, WORKER_AGENT, false, now);
    assert_false(worker_table_ready(&table)); /* it still runs */
    worker_table_terminated(&table, WORKER_AGENT, now);
    assert_false(worker_table_exited(&table, WORKER_AGENT, now));
    assert_int_equal(table.rows[WORKER_AGENT].state, WORKER_STOPPED);
    assert_int_equal(table.rows[WORKER_AGENT].restarts, 0);
    assert_true(worker_table_ready(&table));
    worker_table_want(&table, WORKER_AGENT, true, now);
    assert_false(worker_table_ready(&table));
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now), WORKER_DO_START);
}

static void test_unwanted_worker_in_back_off_is_not_started(void **state)
{
    (void)state;
    start(WORKER_AGENT);
    worker_table_exited(&table, WORKER_AGENT, now);
    worker_table_want(&table, WORKER_AGENT, false, now);
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now + 100 * SECOND), WORKER_DO_NOTHING);
}

static void test_stop_order(void **state)
{
    (void)state;
    static const enum worker expected[] = {WORKER_GPU, WORKER_SCORER, WORKER_AGENT};
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        make_ready(w);
    for (unsigned i = 0; i < WORKER_COUNT; i++) {
        assert_int_equal(worker_table_stop_next(&table), expected[i]);
        worker_table_want(&table, expected[i], false, now);
        worker_table_terminated(&table, expected[i], now);
        assert_int_equal(worker_table_stop_next(&table), expected[i]); /* until it has ended */
        worker_table_exited(&table, expected[i], now);
    }
    assert_int_equal(worker_table_stop_next(&table), WORKER_COUNT);
    assert_false(worker_table_any_running(&table));
    assert_true(worker_table_next_ns(&table) == CLOCK_NEVER);
}

static void test_next_deadline_is_the_earliest(void **state)
{
    (void)state;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        make_ready(w);
    worker_table_heartbeat(&table, WORKER_GPU, 0, now + SECOND);
    assert_true(worker_table_next_ns(&table) == now + 3 * SECOND);
    worker_table_exited(&table, WORKER_AGENT, now);
    assert_true(worker_table_next_ns(&table) == now + SECOND);
}

static void test_lookups(void **state)
{
    (void)state;
    struct proto_address address = {.bytes = {1, 2, 3}, .length = 3}, none = {.length = 0};
    make_ready(WORKER_GPU);
    table.rows[WORKER_GPU].address = address;
    assert_int_equal(worker_table_by_address(&table, &address), WORKER_GPU);
    assert_int_equal(worker_table_by_address(&table, &none), WORKER_COUNT);
    address.bytes[2] = 4;
    assert_int_equal(worker_table_by_address(&table, &address), WORKER_COUNT);
    assert_int_equal(worker_table_by_pid(&table, table.rows[WORKER_GPU].pid), WORKER_GPU);
    assert_int_equal(worker_table_by_pid(&table, 0), WORKER_COUNT);
    assert_int_equal(worker_table_by_role(HILL__ROLE__ROLE_CSD_AGENT), WORKER_AGENT);
    assert_int_equal(worker_table_by_role(HILL__ROLE__ROLE_CLIENT), WORKER_COUNT);
}

#define T(test) cmocka_unit_test_setup(test, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transitions_are_those_of_the_readme),
        T(test_fresh_table_starts_all_wanted_workers),
        T(test_ready_is_not_started),
        T(test_restarts_double_from_one_second_to_thirty),
        T(test_a_stable_life_forgets_the_back_off),
        T(test_death_before_ready_waits_longer_and_is_given_up),
        T(test_a_worker_that_was_ready_once_is_not_given_up),
        T(test_silence_is_answered_by_term_then_kill),
        T(test_a_second_term_does_not_move_the_kill),
        T(test_a_stopping_worker_becomes_neither_configured_nor_ready),
        T(test_no_hello_in_ten_seconds),
        T(test_detach_and_attach),
        T(test_unwanted_worker_in_back_off_is_not_started),
        T(test_stop_order),
        T(test_next_deadline_is_the_earliest),
        T(test_lookups),
    };
    return cmocka_run_group_tests_name("worker_table", tests, NULL, NULL);
}
