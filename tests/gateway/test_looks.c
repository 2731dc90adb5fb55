/*
 * test_looks.c - what the coordinator says of a job's stage events never costs its answer: refusals
 * of the watch, in any order with the Summary, against what the client gets.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "gateway/job.h"

enum { ID = 7 };

static void *context, *coordinator;
static struct gateway gateway;
static struct job *job;

static const struct gateway_settings settings = {.idle_s = 60, .patience_s = 60};

/* A request whose first token has come: it has asked for the watch. */
static int setup(void **state)
{
    (void)state;
    gateway = (struct gateway){.settings = &settings, .generating = 1};
    context = zmq_ctx_new();
    coordinator = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_bind(coordinator, "inproc://looks"), 0);
    job = job_create(&gateway);
    job->line = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_connect(job->line, "inproc://looks"), 0);
    job->state = JOB_GENERATING;
    job->order.timeline = job->order.selection = true;
    struct generation *gen = &job->generation;
    gen->follower = (struct follower){.socket = job->line, .id = ID, .answered = true};
    gen->counted = true;
    gen->head.model = "m";
    gen->head.looks = &gen->looks.json;
    gen->begun_ns = gen->token_ns = clock_now_ns();
    looks_on_token(job, gen->token_ns);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    job_end(job);
    job_destroy(job);
    zmq_close(coordinator);
    zmq_ctx_term(context);
    return 0;
}

static void take_reply(int code)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Reply reply = HILL__REPLY__INIT;
    reply.code = code;
    reply.text = (char *)"no";
    message.body_case = HILL__MESSAGE__BODY_REPLY;
    message.reply = &reply;
    if (job->state == JOB_GENERATING) /* as job_receive does */
        generate_take(job, &message);
}

static void take_summary(Hill__FinishReason finish)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Summary summary = HILL__SUMMARY__INIT;
    summary.request_id = ID;
    summary.finish = finish;
    message.body_case = HILL__MESSAGE__BODY_SUMMARY;
    message.summary = &summary;
    if (job->state == JOB_GENERATING)
        generate_take(job, &message);
}

static void take_coordinators(uint32_t serial, uint32_t expected)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__TraceAnswer answer = HILL__TRACE_ANSWER__INIT;
    answer.role = HILL__ROLE__ROLE_COORDINATOR;
    answer.serial = serial;
    answer.expected = expected;
    message.body_case = HILL__MESSAGE__BODY_TRACE_ANSWER;
    message.trace_answer = &answer;
    if (job->state == JOB_GENERATING)
        generate_take(job, &message);
}

static void expect_answer(void)
{
    text_add(&job->out, "", 1);
    assert_int_equal(job->state, JOB_OVER);
    assert_int_equal(job->status, 200);
    assert_non_null(strstr(job->out.bytes, "\"selection\":null"));
    assert_non_null(strstr(job->out.bytes, "\"timeline\":null"));
    assert_null(strstr(job->out.bytes, "\"error\""));
}

/* On and off are both refused, as another client watches. */
static void both_are_refused(void **state)
{
    (void)state;
    take_summary(HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(job->state, JOB_GENERATING); /* it waits for the events */
    assert_int_equal(job->generation.looks.unanswered, 2);
    take_reply(HILL_E_BUSY);
    take_reply(HILL_E_BUSY);
    expect_answer();
}

static void both_are_refused_before_the_summary(void **state)
{
    (void)state;
    looks_stop(job);
    take_reply(HILL_E_BUSY);
    take_reply(HILL_E_BUSY);
    assert_int_equal(job->state, JOB_GENERATING);
    take_summary(HILL__FINISH_REASON__FINISH_STOP);
    expect_answer();
}

/* Off is refused with another code: the pipeline is about to end. */
static void a_pipeline_that_ends(void **state)
{
    (void)state;
    take_coordinators(1, 3);
    take_summary(HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(job->generation.looks.unanswered, 1);
    take_reply(HILL_E_PEER_GONE);
    expect_answer();
}

/* With a stop string the request is cancelled behind the off: no refusal stands for its end. */
static void a_stop_string(void **state)
{
    (void)state;
    job->generation.stops.stopped = true;
    generate_cancel(job);
    take_reply(HILL_E_BUSY);
    take_reply(HILL_E_BUSY);
    assert_int_equal(job->state, JOB_GENERATING);
    take_summary(HILL__FINISH_REASON__FINISH_CANCEL);
    expect_answer();
}

/* A coordinator that is replaced meanwhile knows nothing of the request, and sends no Summary. */
static void a_stop_string_without_a_summary(void **state)
{
    (void)state;
    job->generation.stops.stopped = true;
    generate_cancel(job);
    job->deadline_ns = 0;
    generate_tick(job, clock_now_ns());
    expect_answer();
}

/* The answer is whole and its Cancel came too late: that costs nothing either. */
static void a_late_cancel(void **state)
{
    (void)state;
    take_coordinators(1, 3);
    job->generation.stops.stopped = true;
    generate_cancel(job);
    take_summary(HILL__FINISH_REASON__FINISH_LENGTH);
    take_coordinators(2, 1);
    take_reply(HILL_E_INVALID);
    assert_int_equal(job->state, JOB_GENERATING); /* the worker's events are to come */
    job->generation.looks.deadline_ns = 0;        /* they never do */
    generate_tick(job, clock_now_ns());
    expect_answer();
}

/* What is about the request itself is told. */
static void a_failure_is_the_requests(void **state)
{
    (void)state;
    take_coordinators(1, 3);
    take_reply(HILL_E_TIMEOUT);
    assert_int_equal(job->state, JOB_OVER);
    assert_true(job->status >= 500);
}

/* Answers of a coordinator that has died do not come. */
static void another_coordinator_owes_nothing(void **state)
{
    (void)state;
    looks_lost(job);
    assert_int_equal(job->generation.looks.unanswered, 0);
    take_summary(HILL__FINISH_REASON__FINISH_LENGTH);
    expect_answer();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(both_are_refused_before_the_summary, setup, teardown),
        cmocka_unit_test_setup_teardown(a_pipeline_that_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stop_string, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stop_string_without_a_summary, setup, teardown),
        cmocka_unit_test_setup_teardown(a_late_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failure_is_the_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(another_coordinator_owes_nothing, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
