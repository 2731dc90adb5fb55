/*
 * test_follower.c - a client's side of a request, against a coordinator played by hand: what it is
 * sent, over losses of the connection, and which of its messages count.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <zmq.h>

#include "base/clock.h"
#include "proto/follower.h"

enum { ID = 7, RECOVERY_MS = 1000 };

static void *context, *coordinator, *line;
static struct follower f;
static Hill__Message *came; /* the newest that the coordinator was sent */

static const Hill__Message *next_at_coordinator(void)
{
    proto_free(came);
    came = NULL;
    zmq_pollitem_t item = {coordinator, 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, 60000);
    assert_int_equal(proto_receive(coordinator, NULL, &came, NULL), 0);
    return came;
}

static void nothing_at_coordinator(void)
{
    Hill__Message *message;
    assert_int_equal(proto_receive(coordinator, NULL, &message, NULL), HILL_E_WOULD_BLOCK);
}

static int setup(void **state)
{
    (void)state;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    context = zmq_ctx_new();
    coordinator = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_bind(coordinator, "inproc://follower"), 0);
    line = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_connect(line, "inproc://follower"), 0);
    generate.prompt = (ProtobufCBinaryData){1, (uint8_t *)"x"};
    generate.predict = 9;
    sampling.top_p = sampling.repeat_penalty = 1;
    generate.sampling = &sampling;
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    assert_int_equal(follower_begin(&f, line, &message, 3, RECOVERY_MS), 0);
    const Hill__Message *sent = next_at_coordinator();
    assert_int_equal(sent->body_case, HILL__MESSAGE__BODY_GENERATE);
    assert_true(sent->generate->key == f.key && f.key && !generate.key);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    follower_finish(&f);
    proto_free(came);
    came = NULL;
    zmq_close(line);
    zmq_close(coordinator);
    zmq_ctx_term(context);
    return 0;
}

static int accepted(uint64_t id, uint32_t serial)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Accepted body = HILL__ACCEPTED__INIT;
    body.request_id = id;
    body.serial = serial;
    body.recovery_timeout_ms = 500;
    message.body_case = HILL__MESSAGE__BODY_ACCEPTED;
    message.accepted = &body;
    return follower_take(&f, &message);
}

static int text(uint64_t id, uint32_t token, const char *bytes)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Text body = HILL__TEXT__INIT;
    body.request_id = id;
    body.token = token;
    body.text = (ProtobufCBinaryData){strlen(bytes), (uint8_t *)bytes};
    message.body_case = HILL__MESSAGE__BODY_TEXT;
    message.text = &body;
    return follower_take(&f, &message);
}

static int summary(uint64_t id)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Summary body = HILL__SUMMARY__INIT;
    body.request_id = id;
    message.body_case = HILL__MESSAGE__BODY_SUMMARY;
    message.summary = &body;
    return follower_take(&f, &message);
}

static int watch(bool connected, uint32_t losses, int64_t silent_since_ns, int64_t now_ns)
{
    const struct follower_line how = {connected, losses, silent_since_ns};
    return follower_watch(&f, &how, now_ns);
}

static void expect_follow(uint32_t serial, size_t n_tokens, uint64_t text_bytes)
{
    const Hill__Message *sent = next_at_coordinator();
    assert_int_equal(sent->body_case, HILL__MESSAGE__BODY_FOLLOW);
    assert_true(sent->follow->key == f.key && sent->follow->serial == serial);
    assert_true(sent->follow->n_tokens == n_tokens && sent->follow->text_bytes == text_bytes);
    for (size_t i = 0; i < n_tokens; i++)
        assert_int_equal(sent->follow->tokens[i], f.tokens[i]);
}

static void what_is_not_its_own_is_nothing(void **state)
{
    (void)state;
    assert_int_equal(text(ID, 5, "early"), FOLLOWER_NOTHING);
    assert_int_equal(accepted(ID, 0), FOLLOWER_TAKEN);
    assert_int_equal(text(ID + 1, 5, "another's"), FOLLOWER_NOTHING);
    assert_int_equal(summary(ID + 1), FOLLOWER_NOTHING);
    assert_int_equal(text(ID, 5, "ab"), FOLLOWER_TAKEN);
    assert_int_equal(text(ID, UINT32_MAX, "c"), FOLLOWER_TAKEN);
    assert_true(f.n_tokens == 1 && f.tokens[0] == 5 && f.text_bytes == 3);
    nothing_at_coordinator();
    assert_int_equal(summary(ID), FOLLOWER_TAKEN);
    assert_int_equal(next_at_coordinator()->body_case, HILL__MESSAGE__BODY_DELIVERED);
    assert_int_equal(came->delivered->request_id, ID);
}

static void it_goes_on_at_another_coordinator(void **state)
{
    (void)state;
    accepted(ID, 0);
    for (uint32_t i = 0; i < 200; i++)
        text(ID, i, "x");
    assert_int_equal(watch(false, 4, 0, 100), FOLLOWER_LOST);
    assert_true(f.lost_ns == 100);
    assert_int_equal(text(ID, 900, "late"), FOLLOWER_NOTHING);
    assert_int_equal(watch(false, 4, 0, 200), FOLLOWER_NOTHING);
    nothing_at_coordinator();
    assert_int_equal(watch(true, 4, 0, 300), FOLLOWER_NOTHING);
    expect_follow(1, 200, 200);
    watch(true, 4, 0, 400);
    nothing_at_coordinator(); /* one Follow for a loss */
    assert_int_equal(watch(true, 5, 0, 500), FOLLOWER_LOST);
    expect_follow(2, 200, 200);
    assert_int_equal(accepted(ID, 1), FOLLOWER_NOTHING); /* overtaken */
    assert_int_equal(text(ID, 200, "x"), FOLLOWER_NOTHING);
    assert_int_equal(accepted(ID, 2), FOLLOWER_TAKEN);
    assert_true(f.lost_ns == 0);
    assert_int_equal(text(ID, 200, "x"), FOLLOWER_TAKEN);
    assert_int_equal(f.n_tokens, 201);
}

static void what_is_left_of_nothing_is_sent_again(void **state)
{
    (void)state;
    accepted(ID, 0);
    text(ID, 5, "ab");
    watch(true, 4, 0, 100);
    expect_follow(1, 1, 2);
    assert_int_equal(accepted(0, 1), FOLLOWER_ANEW);
    assert_true(f.id == 0); /* that number may be another's now */
    assert_int_equal(next_at_coordinator()->body_case, HILL__MESSAGE__BODY_GENERATE);
    assert_true(came->generate->key == f.key && came->generate->predict == 9);
    /* it begins at its first token, which is here: the coordinator is told, and compares */
    assert_int_equal(accepted(ID + 1, 0), FOLLOWER_NOTHING);
    assert_int_equal(text(ID + 1, 5, "ab"), FOLLOWER_NOTHING);
    expect_follow(2, 1, 2);
    assert_int_equal(accepted(ID + 1, 2), FOLLOWER_TAKEN);
    assert_int_equal(text(ID + 1, 6, "c"), FOLLOWER_TAKEN);
    assert_true(f.n_tokens == 2 && f.text_bytes == 3);
}

static void one_that_was_never_accepted_is_asked_for(void **state)
{
    (void)state;
    watch(true, 4, 0, 100);
    expect_follow(1, 0, 0);
    assert_int_equal(accepted(ID, 0), FOLLOWER_NOTHING); /* the Follow's answer counts */
    assert_int_equal(accepted(ID, 1), FOLLOWER_TAKEN);
    assert_int_equal(text(ID, 5, "a"), FOLLOWER_TAKEN);
}

static void silence_is_a_loss_until_it_ends(void **state)
{
    (void)state;
    accepted(ID, 0);
    assert_int_equal(watch(true, 3, 50, CLOCK_MS(1)), FOLLOWER_NOTHING);
    assert_true(f.lost_ns == 50);
    assert_int_equal(text(ID, 5, "a"), FOLLOWER_TAKEN); /* the same coordinator, the same request */
    assert_int_equal(watch(true, 3, 0, CLOCK_MS(2)), FOLLOWER_NOTHING);
    assert_true(f.lost_ns == 0);
    nothing_at_coordinator();
}

static void patience_ends_as_the_pipeline_says(void **state)
{
    (void)state;
    watch(false, 4, 0, 100);
    assert_int_equal(watch(false, 4, 0, 100 + CLOCK_MS(999)), FOLLOWER_NOTHING);
    assert_int_equal(watch(false, 4, 0, 101 + CLOCK_MS(1000)), HILL_E_TIMEOUT);
    accepted(ID, 0);
    watch(true, 4, 0, 200); /* its Follow */
    accepted(ID, 1);        /* with the pipeline's own 500 ms */
    assert_int_equal(watch(true, 4, 300, 300 + CLOCK_MS(499)), FOLLOWER_NOTHING);
    assert_int_equal(watch(true, 4, 300, 301 + CLOCK_MS(500)), HILL_E_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_not_its_own_is_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(it_goes_on_at_another_coordinator, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_left_of_nothing_is_sent_again, setup, teardown),
        cmocka_unit_test_setup_teardown(one_that_was_never_accepted_is_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(silence_is_a_loss_until_it_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(patience_ends_as_the_pipeline_says, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
