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

static const struct worker_limits limits = {.silent_ns = 2 * SECOND, .stuck_ns = 20 * SECOND};

static struct worker_table table;
static int64_t now;
static int32_t next_pid;

static int setup(void **state)
{
    (void)state;
    now = 1000 * SECOND;
    next_pid = 100;
    worker_table_init(&table, 1, &limits);
    return 0;
}

static void start(enum worker w)
{
    worker_table_started(&table, w, next_pid++, 1, now);
}

static void make_ready(enum worker w)
{
    start(w);
    worker_table_configured(&table, w, now);
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

/* The table of README.md, read there: every state and every event, what it says and nothing
 * else. */
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
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        assert_int_equal(worker_table_due(&table, w, now), WORKER_DO_START);
    worker_table_init(&table, 0, &limits);
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now), WORKER_DO_NOTHING);
    assert_int_equal(table.rows[WORKER_AGENT].state, WORKER_STOPPED);
}

static void test_ready_is_not_started(void **state)
{
    (void)state;
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        start(w);
    assert_false(worker_table_ready(&table));
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        worker_table_configured(&table, w, now);
    assert_false(worker_table_ready(&table));
    for (enum worker w = 0; w <= WORKER_AGENT; w++) {
        assert_false(worker_table_ready(&table));
        worker_table_ready_at(&table, w, now);
    }
    assert_true(worker_table_ready(&table));
    worker_table_configured(&table, WORKER_SCORER, now); /* of the next epoch */
    assert_false(worker_table_ready(&table));
}

static bool dies(enum worker w)
{
    return worker_table_exited(&table, w, false, now);
}

static void test_a_life_with_progress_is_followed_by_the_next_at_once(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 50; i++) {
        make_ready(WORKER_GPU);
        worker_table_heartbeat(&table, WORKER_GPU, 1, now); /* a unit of work */
        assert_false(dies(WORKER_GPU));
        assert_true(backoff_seconds(WORKER_GPU) == 0.02);
    }
    assert_int_equal(table.rows[WORKER_GPU].restarts, 50);
    make_ready(WORKER_SCORER);
    start(WORKER_AGENT);
    worker_table_progress(&table); /* a token: of those that were ready */
    assert_false(dies(WORKER_SCORER));
    assert_false(dies(WORKER_AGENT));
    assert_true(backoff_seconds(WORKER_SCORER) == 0.02);
    assert_true(backoff_seconds(WORKER_AGENT) == 0.25);
}

static void test_deaths_without_progress_double_the_wait_and_end_in_giving_up(void **state)
{
    (void)state;
    static const double expected[WORKER_TRIES] = {0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30};
    for (unsigned i = 0; i < WORKER_TRIES; i++) {
        make_ready(WORKER_GPU);
        assert_int_equal(dies(WORKER_GPU), i + 1 == WORKER_TRIES);
        assert_int_equal(table.rows[WORKER_GPU].deaths, i + 1);
        assert_true(backoff_seconds(WORKER_GPU) == expected[i]);
        now = table.rows[WORKER_GPU].start_at_ns;
    }
}

static void test_progress_forgets_the_deaths_before_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3 * WORKER_TRIES; i++) {
        make_ready(WORKER_GPU);
        if (i % 4 == 3)
            worker_table_progress(&table);
        assert_false(dies(WORKER_GPU));
        assert_int_equal(table.rows[WORKER_GPU].deaths, (i + 1) % 4);
    }
}

static void test_ten_seconds_of_ready_are_progress(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    dies(WORKER_GPU);
    make_ready(WORKER_GPU);
    now += 10 * SECOND - 1;
    dies(WORKER_GPU);
    assert_int_equal(table.rows[WORKER_GPU].deaths, 2);
    make_ready(WORKER_GPU);
    now += 10 * SECOND;
    dies(WORKER_GPU);
    assert_int_equal(table.rows[WORKER_GPU].deaths, 0);
}

static void test_a_worker_that_was_never_ready_is_given_up_earlier(void **state)
{
    (void)state;
    for (unsigned i = 0; i < WORKER_TRIES_UNREADY; i++) {
        start(WORKER_AGENT);
        assert_int_equal(dies(WORKER_AGENT), i + 1 == WORKER_TRIES_UNREADY);
    }
}

static void test_no_room_for_a_process_is_a_death_without_progress(void **state)
{
    (void)state;
    for (unsigned i = 0; i < WORKER_TRIES_UNREADY; i++) {
        assert_int_equal(worker_table_not_started(&table, WORKER_GPU, now),
                         i + 1 == WORKER_TRIES_UNREADY);
        assert_int_equal(table.rows[WORKER_GPU].state, WORKER_BACKOFF);
        assert_true(table.rows[WORKER_GPU].start_at_ns > now);
    }
}

static void test_an_orderly_end_does_not_count(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * WORKER_TRIES; i++) {
        make_ready(WORKER_AGENT);
        assert_false(worker_table_exited(&table, WORKER_AGENT, true, now)); /* restart csd_agent */
        assert_true(backoff_seconds(WORKER_AGENT) == 0.02);
    }
}

static void test_silence_is_answered_by_term_then_kill(void **state)
{
    (void)state;
    make_ready(WORKER_SCORER);
    now += SECOND;
    worker_table_heartbeat(&table, WORKER_SCORER, 5, now);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 2 * SECOND - 1),
                     WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 2 * SECOND),
                     WORKER_DO_TERMINATE);
    now += 2 * SECOND;
    assert_int_equal(worker_table_hangs(&table, WORKER_SCORER, now), WORKER_HANGS_SILENT);
    worker_table_terminated(&table, WORKER_SCORER, WORKER_KILL_HUNG_NS, now);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now), WORKER_DO_NOTHING);
    worker_table_heartbeat(&table, WORKER_SCORER, 5, now); /* too late */
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + SECOND / 2 - 1),
                     WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + SECOND / 2), WORKER_DO_KILL);
    worker_table_killed(&table, WORKER_SCORER);
    assert_int_equal(worker_table_due(&table, WORKER_SCORER, now + 50 * SECOND), WORKER_DO_NOTHING);
    dies(WORKER_SCORER);
    assert_int_equal(table.rows[WORKER_SCORER].state, WORKER_BACKOFF);
}

/* The GPU worker says that its data loop has stood still for so long. */
static enum worker_hang says_stuck(double seconds)
{
    worker_table_heartbeat(&table, WORKER_GPU, 1, now);
    worker_table_loop(&table, WORKER_GPU, (int64_t)(seconds * 1e9),
                      table.rows[WORKER_GPU].longest_ns, now);
    enum worker_hang how = worker_table_hangs(&table, WORKER_GPU, now);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now),
                     how ? WORKER_DO_TERMINATE : WORKER_DO_NOTHING);
    return how;
}

static void test_a_data_loop_that_stands_still_is_a_hang(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    assert_int_equal(says_stuck(30), WORKER_HANGS_NOT); /* from before it said Ready */
    now += 1000 * SECOND;
    assert_int_equal(says_stuck(19.9), WORKER_HANGS_NOT);
    assert_int_equal(says_stuck(20), WORKER_HANGS_STUCK);
    table.rows[WORKER_GPU].longest_ns = 4 * SECOND; /* four times that is less than the limit */
    assert_int_equal(says_stuck(20), WORKER_HANGS_STUCK);
    table.rows[WORKER_GPU].longest_ns = 6 * SECOND; /* a slow device: it may go on */
    assert_int_equal(says_stuck(23.9), WORKER_HANGS_NOT);
    assert_int_equal(says_stuck(24), WORKER_HANGS_STUCK);
    table.rows[WORKER_GPU].longest_ns = 0;
    worker_table_configured(&table, WORKER_GPU, now - 200 * SECOND); /* builds kernels */
    assert_int_equal(says_stuck(199), WORKER_HANGS_NOT);
    assert_int_equal(says_stuck(200), WORKER_HANGS_STUCK);
}

/* The epochs that others begin do not make it one that loads. */
static void test_who_hung_before_a_configure_does_not_load(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    now += 1000 * SECOND;
    worker_table_configured(&table, WORKER_GPU, now - 5 * SECOND);
    assert_int_equal(says_stuck(19.9), WORKER_HANGS_NOT);
    assert_int_equal(says_stuck(20), WORKER_HANGS_STUCK);
    now += 10 * SECOND;
    worker_table_configured(&table, WORKER_GPU, now); /* nor does another one */
    assert_int_equal(says_stuck(30), WORKER_HANGS_STUCK);
    worker_table_ready_at(&table, WORKER_GPU, now);
    worker_table_configured(&table, WORKER_GPU, now);
    now += 40 * SECOND;
    worker_table_configured(&table, WORKER_GPU, now); /* comes while it still loads */
    assert_int_equal(says_stuck(40), WORKER_HANGS_NOT);
}

static void test_nobody_is_silent_while_the_caller_is_away(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    start(WORKER_AGENT);
    now += 60 * SECOND;
    worker_table_forgive(&table, now);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now), WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now), WORKER_DO_NOTHING);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now + 2 * SECOND), WORKER_DO_TERMINATE);
}

static void test_a_second_term_does_not_move_the_kill(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    worker_table_terminated(&table, WORKER_GPU, WORKER_KILL_NS, now);
    worker_table_terminated(&table, WORKER_GPU, WORKER_KILL_NS, now + 4 * SECOND);
    assert_int_equal(worker_table_due(&table, WORKER_GPU, now + 5 * SECOND), WORKER_DO_KILL);
}

static void test_a_stopping_worker_becomes_neither_configured_nor_ready(void **state)
{
    (void)state;
    make_ready(WORKER_GPU);
    worker_table_terminated(&table, WORKER_GPU, WORKER_KILL_NS, now);
    worker_table_configured(&table, WORKER_GPU, now);
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
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        make_ready(w);
    worker_table_want(&table, WORKER_AGENT, false, now);
    assert_false(worker_table_ready(&table)); /* it still runs */
    worker_table_terminated(&table, WORKER_AGENT, WORKER_KILL_NS, now);
    assert_false(worker_table_exited(&table, WORKER_AGENT, false, now));
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
    worker_table_exited(&table, WORKER_AGENT, false, now);
    worker_table_want(&table, WORKER_AGENT, false, now);
    assert_int_equal(worker_table_due(&table, WORKER_AGENT, now + 100 * SECOND), WORKER_DO_NOTHING);
}

static void test_stop_order(void **state)
{
    (void)state;
    static const enum worker expected[] = {WORKER_GPU, WORKER_SCORER, WORKER_AGENT};
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        make_ready(w);
    for (unsigned i = 0; i <= WORKER_AGENT; i++) {
        assert_int_equal(worker_table_stop_next(&table), expected[i]);
        worker_table_want(&table, expected[i], false, now);
        worker_table_terminated(&table, expected[i], WORKER_KILL_NS, now);
        assert_int_equal(worker_table_stop_next(&table), expected[i]); /* until it has ended */
        worker_table_exited(&table, expected[i], false, now);
    }
    assert_int_equal(worker_table_stop_next(&table), WORKER_COUNT);
    assert_false(worker_table_any_running(&table));
    assert_true(worker_table_next_ns(&table, true) == CLOCK_NEVER);
}

static void test_next_deadline_is_the_earliest(void **state)
{
    (void)state;
    for (enum worker w = 0; w <= WORKER_AGENT; w++)
        make_ready(w);
    worker_table_heartbeat(&table, WORKER_GPU, 0, now + SECOND);
    assert_true(worker_table_next_ns(&table, true) == now + 2 * SECOND);
    worker_table_exited(&table, WORKER_AGENT, false, now);
    assert_true(worker_table_next_ns(&table, true) == now + SECOND / 4);
    /* one that is not started now is nothing to wake up for */
    assert_true(worker_table_next_ns(&table, false) == now + 2 * SECOND);
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
    table.rows[WORKER_AGENT].pid = 7;
    table.rows[WORKER_AGENT + 1].pid = 8;
    assert_int_equal(worker_table_by_pid(&table, HILL__ROLE__ROLE_CSD_AGENT, 7), WORKER_AGENT);
    assert_int_equal(worker_table_by_pid(&table, HILL__ROLE__ROLE_CSD_AGENT, 8), WORKER_AGENT + 1);
    assert_int_equal(worker_table_by_pid(&table, HILL__ROLE__ROLE_CSD_AGENT, 9), WORKER_COUNT);
    assert_int_equal(worker_table_by_pid(&table, HILL__ROLE__ROLE_CLIENT, 7), WORKER_COUNT);
}

#define T(test) cmocka_unit_test_setup(test, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transitions_are_those_of_the_readme),
        T(test_fresh_table_starts_all_wanted_workers),
        T(test_ready_is_not_started),
        T(test_a_life_with_progress_is_followed_by_the_next_at_once),
        T(test_deaths_without_progress_double_the_wait_and_end_in_giving_up),
        T(test_progress_forgets_the_deaths_before_it),
        T(test_ten_seconds_of_ready_are_progress),
        T(test_a_worker_that_was_never_ready_is_given_up_earlier),
        T(test_no_room_for_a_process_is_a_death_without_progress),
        T(test_an_orderly_end_does_not_count),
        T(test_silence_is_answered_by_term_then_kill),
        T(test_a_data_loop_that_stands_still_is_a_hang),
        T(test_who_hung_before_a_configure_does_not_load),
        T(test_nobody_is_silent_while_the_caller_is_away),
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
