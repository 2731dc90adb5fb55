/* Tests of coordinator/service_requests.c and service_profile.c: requests while a drive comes or
 * goes, while they are saved and begin anew, and beside a measurement of both sides. No worker and
 * no client is there: what is sent to them is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/service.h"

static struct service sv;
static struct settings settings;
static struct supervisor supervisor;
static struct router router;

static int setup(void **state)
{
    (void)state;
    memset(&settings, 0, sizeof settings);
    memset(&sv, 0, sizeof sv);
    memset(&supervisor, 0, sizeof supervisor);
    settings.epoch.trace_path = settings.epoch.record_path = "";
    settings.options.recovery_ms = 1000;
    worker_table_init(&supervisor.workers, 1, &settings.limits);
    supervisor.settings = &settings;
    supervisor.epoch = 2; /* with what an earlier one has left */
    supervisor.tiers_epoch = 1;
    router.workers = &supervisor.workers;
    sv.settings = &settings;
    sv.router = &router;
    sv.supervisor = &supervisor;
    sv.started_ns = clock_now_ns();
    request_book_init(&sv.book, 2);
    prefix_store_init(&sv.prefixes);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    request_book_finish(&sv.book);
    prefix_store_finish(&sv.prefixes);
    return 0;
}

static struct request *make(void)
{
    struct request *r = request_create(&sv.book, calloc(3, sizeof(uint32_t)), 3, 8);
    assert_non_null(r);
    r->accepted_ns = clock_now_ns();
    return r;
}

static struct request *run(void)
{
    struct request *r = make();
    assert_int_equal(request_book_add(&sv.book, r), 0);
    assert_ptr_equal(request_book_advance(&sv.book), r);
    assert_int_equal(request_begin_attempt(&sv.book, r, 1), 0);
    return r;
}

/* A detach would take its entries away. Who has none waits for the detach. */
static void a_drive_stays_until_those_of_a_killed_coordinator_are_back(void **state)
{
    (void)state;
    struct request *back = make(), *fresh = make();
    back->returns = true;
    request_book_park(&sv.book, back, REQUEST_AWAITED, clock_deadline_ms(60000));
    assert_int_equal(request_book_add(&sv.book, fresh), 0);
    supervisor.change = CHANGE_DETACH_WAITS;
    requests_start(&sv, clock_now_ns());
    assert_null(sv.book.running);
    assert_true(requests_reading(&sv));
    request_book_unpark(&sv.book, back); /* its client has come */
    assert_true(requests_reading(&sv));
    requests_start(&sv, clock_now_ns());
    assert_ptr_equal(sv.book.running, back);
    assert_ptr_equal(sv.book.first, fresh);
    assert_int_equal(request_begin_attempt(&sv.book, back, 1), 0);
    back->recovery.resumed = true;
    assert_false(requests_reading(&sv));
}

/* Workers are there: one that is new loads its drive for as long as it takes. */
static void a_slow_attach_is_no_outage(void **state)
{
    (void)state;
    struct request *r = run();
    int64_t now = clock_now_ns();
    requests_interrupt(&sv, false);
    supervisor.change = CHANGE_ATTACH;
    requests_tick(&sv, now + CLOCK_MS(1500));
    requests_tick(&sv, now + CLOCK_MS(3000));
    assert_ptr_equal(sv.book.running, r);
    supervisor.workers.rows[WORKER_AGENT].ever_ready = true; /* now others are waited for */
    requests_tick(&sv, now + CLOCK_MS(3900));
    assert_ptr_equal(sv.book.running, r);
    requests_tick(&sv, now + CLOCK_MS(4100));
    assert_null(sv.book.running);
}

/* Who has ordered it to be saved hears that, and the next order is taken. */
static void a_save_does_not_outlive_the_attempt_that_it_was_ordered_in(void **state)
{
    (void)state;
    struct request *r = run();
    Hill__Done done = HILL__DONE__INIT;
    Hill__Message message = PROTO_MESSAGE(DONE, done, &done);
    struct arrival a = {.message = &message};
    r->saving_path = strdup("/nowhere");
    r->recovery.resumed = true;
    done.request_id = r->wire_id;
    done.finish = HILL__FINISH_REASON__FINISH_ERROR;
    done.code = HILL_E_DAMAGED;
    request_on_done(&sv, &a);
    assert_int_equal(r->state, REQUEST_INTERRUPTED);
    assert_null(r->saving_path);
}

static void the_drives_counters_are_those_of_all_attempts(void **state)
{
    (void)state;
    struct request *r = run();
    sv.csd_model.before.commands = 10;
    r->csd_before.commands = 3;
    request_interrupt(r, true);
    requests_start(&sv, clock_now_ns());
    assert_int_equal(r->csd_before.commands, 3);
}

static void all_are_ready(void)
{
    settings.epoch.csd_attached = supervisor.epoch_exists = true;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (supervisor.workers.rows[w].wanted)
            supervisor.workers.rows[w].state = WORKER_READY;
}

static void ask_profile(uint8_t client)
{
    struct arrival a = {.from = {.bytes = {client}, .length = 1}};
    profile_take_request(&sv, &a);
}

/* Of what is measured at the start, or of a new drive, the client that asks meanwhile is told. */
static void a_client_gets_the_measurement_under_way(void **state)
{
    (void)state;
    all_are_ready();
    sv.profile.asked = true;
    ask_profile(1);
    assert_int_equal(sv.profile.client.bytes[0], 1);
    ask_profile(2); /* refused */
    assert_int_equal(sv.profile.client.bytes[0], 1);
}

/* Measuring takes the slots, and what is kept there. */
static void nothing_is_measured_over_what_waits_for_its_client(void **state)
{
    (void)state;
    struct request *back = make();
    back->returns = true;
    request_book_park(&sv.book, back, REQUEST_AWAITED, clock_deadline_ms(60000));
    all_are_ready();
    ask_profile(1);
    assert_false(sv.profile.asked);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_drive_stays_until_those_of_a_killed_coordinator_are_back),
        T(a_slow_attach_is_no_outage),
        T(a_save_does_not_outlive_the_attempt_that_it_was_ordered_in),
        T(the_drives_counters_are_those_of_all_attempts),
        T(a_client_gets_the_measurement_under_way),
        T(nothing_is_measured_over_what_waits_for_its_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
