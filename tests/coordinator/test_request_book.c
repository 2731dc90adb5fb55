/* Tests of coordinator/request_book.[ch]: queue, attempts, tokens of repeated attempts, completion.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "coordinator/request_book.h"

static struct request_book book;

static int setup(void **state)
{
    (void)state;
    request_book_init(&book);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    request_book_finish(&book);
    return 0;
}

static struct request *add(uint8_t client, uint32_t predict)
{
    struct request *r = request_create(&book, calloc(3, sizeof(uint32_t)), 3, predict);
    assert_non_null(r);
    r->client.length = 1;
    r->client.bytes[0] = client;
    assert_int_equal(request_book_add(&book, r), 0);
    return r;
}

static struct request *run_first(uint32_t predict)
{
    struct request *r = add(1, predict);
    assert_ptr_equal(request_book_advance(&book), r);
    assert_int_equal(request_begin_attempt(&book, r, 5), 0);
    return r;
}

static Hill__Message *message_of(Hill__Message__BodyCase body, Hill__FinishReason finish)
{
    Hill__Message *message = malloc(sizeof *message);
    hill__message__init(message);
    message->body_case = body;
    if (body == HILL__MESSAGE__BODY_DONE) {
        message->done = malloc(sizeof *message->done);
        hill__done__init(message->done);
        message->done->finish = finish;
    } else {
        message->sequence_stats = malloc(sizeof *message->sequence_stats);
        hill__sequence_stats__init(message->sequence_stats);
    }
    return message;
}

static void test_first_come_first_served_one_at_a_time(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1);
    assert_int_equal(book.n_waiting, 3);
    assert_ptr_equal(request_book_advance(&book), a);
    assert_null(request_book_advance(&book));
    request_book_remove(&book, a);
    assert_ptr_equal(request_book_advance(&book), b);
    request_book_remove(&book, b);
    assert_ptr_equal(request_book_advance(&book), c);
    assert_int_equal(book.n_waiting, 0);
    assert_int_equal(book.n_done, 2);
}

static void test_queue_is_bounded(void **state)
{
    (void)state;
    for (unsigned i = 0; i < REQUEST_WAITING_MAX; i++)
        add(1, 1);
    struct request *r = request_create(&book, NULL, 0, 1);
    assert_int_equal(request_book_add(&book, r), HILL_E_BUSY);
    request_destroy(r);
    assert_int_equal(book.n_waiting, REQUEST_WAITING_MAX);
}

static void test_removing_from_the_middle_and_the_end_keeps_the_queue(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1);
    request_book_remove(&book, b);
    request_book_remove(&book, c);
    struct request *d = add(4, 1);
    assert_ptr_equal(request_book_advance(&book), a);
    request_book_remove(&book, a);
    assert_ptr_equal(request_book_advance(&book), d);
    assert_int_equal(book.n_waiting, 0);
    assert_null(book.first);
}

static void test_find_is_by_client_and_id(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(2, 1);
    request_book_advance(&book);
    struct proto_address one = {.bytes = {1}, .length = 1}, two = {.bytes = {2}, .length = 1},
                         three = {.bytes = {3}, .length = 1};
    assert_ptr_equal(request_book_find(&book, &one, 0), a);
    assert_ptr_equal(request_book_find(&book, &two, 0), b);
    assert_ptr_equal(request_book_find(&book, &two, c->id), c);
    assert_null(request_book_find(&book, &one, c->id)); /* another's */
    assert_null(request_book_find(&book, &three, 0));
}

static void test_a_late_message_of_a_lost_attempt_finds_nothing(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    uint64_t first = r->wire_id;
    assert_ptr_equal(request_book_by_wire(&book, first), r);
    request_interrupt(r);
    assert_null(request_book_by_wire(&book, first));
    assert_null(request_book_by_wire(&book, 0));
    request_begin_attempt(&book, r, 6);
    assert_null(request_book_by_wire(&book, first));
    assert_ptr_equal(request_book_by_wire(&book, r->wire_id), r);
}

static void test_attempts_are_bounded(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    for (unsigned i = 1; i < REQUEST_ATTEMPTS_MAX; i++) {
        request_interrupt(r);
        assert_int_equal(request_begin_attempt(&book, r, 6), 0);
    }
    request_interrupt(r);
    assert_int_equal(request_begin_attempt(&book, r, 6), HILL_E_PEER_GONE);
    assert_int_equal(r->attempts, REQUEST_ATTEMPTS_MAX);
}

static void test_repeated_tokens_are_compared_and_not_sent_again(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    assert_int_equal(request_take_token(r, 0, 11, 7), 1);
    assert_int_equal(request_take_token(r, 1, 12, 8), 1);
    assert_int_equal(r->first_token_ns, 7);
    request_interrupt(r);
    request_begin_attempt(&book, r, 9);
    assert_int_equal(request_take_token(r, 0, 11, 10), 0);
    assert_int_equal(request_take_token(r, 1, 12, 11), 0);
    assert_int_equal(request_take_token(r, 2, 13, 12), 1);
    assert_int_equal(r->n_tokens, 3);
    assert_int_equal(r->first_token_ns, 7);
}

static void test_an_attempt_has_clocks_and_progress_of_its_own(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    r->prefill_share = 0.5;
    request_take_token(r, 0, 11, 7);
    request_take_token(r, 1, 12, 9);
    assert_int_equal(r->attempt_first_ns, 7);
    assert_int_equal(r->attempt_last_ns, 9);
    request_interrupt(r);
    request_begin_attempt(&book, r, 20);
    assert_true(r->prefill_share == 0);
    request_take_token(r, 0, 11, 30);
    assert_int_equal(r->attempt_first_ns, 30);
    assert_int_equal(r->attempt_last_ns, 30);
}

static void test_a_repeated_token_that_differs_is_damage(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    request_take_token(r, 0, 11, 7);
    request_interrupt(r);
    request_begin_attempt(&book, r, 9);
    assert_int_equal(request_take_token(r, 0, 99, 10), HILL_E_DAMAGED);
}

static void test_tokens_out_of_order_or_too_many_are_refused(void **state)
{
    (void)state;
    struct request *r = run_first(2);
    assert_int_equal(request_take_token(r, 1, 11, 7), HILL_E_PROTOCOL);
    assert_int_equal(request_take_token(r, 0, 11, 7), 1);
    assert_int_equal(request_take_token(r, 0, 11, 7), HILL_E_PROTOCOL);
    assert_int_equal(request_take_token(r, 1, 12, 7), 1);
    assert_int_equal(request_take_token(r, 2, 13, 7), HILL_E_PROTOCOL);
    assert_int_equal(r->n_tokens, 2);
}

static void test_over_when_done_and_statistics_are_there(void **state)
{
    (void)state;
    struct request *r = run_first(2);
    assert_false(request_is_over(r, INT64_MAX));
    assert_int_equal(
        request_take_done(
            r, message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_LENGTH), 100),
        0);
    assert_false(request_is_over(r, 100 + REQUEST_STATS_NS - 1));
    assert_true(request_is_over(r, 100 + REQUEST_STATS_NS));
    assert_int_equal(request_take_stats(r, message_of(HILL__MESSAGE__BODY_SEQUENCE_STATS, 0)), 0);
    assert_true(request_is_over(r, 101));
}

static void test_statistics_may_come_first_and_errors_wait_less(void **state)
{
    (void)state;
    struct request *r = run_first(2);
    assert_int_equal(request_take_stats(r, message_of(HILL__MESSAGE__BODY_SEQUENCE_STATS, 0)), 0);
    assert_false(request_is_over(r, INT64_MAX));
    request_take_done(r, message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_STOP),
                      100);
    assert_true(request_is_over(r, 100));
    request_interrupt(r);
    assert_null(r->done);
    assert_null(r->stats);
    request_begin_attempt(&book, r, 200);
    request_take_done(r, message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_ERROR),
                      200);
    assert_true(request_is_over(r, 200 + REQUEST_STATS_ERR_NS));
}

static void test_a_second_done_is_refused(void **state)
{
    (void)state;
    struct request *r = run_first(2);
    request_take_done(r, message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_STOP), 1);
    Hill__Message *second = message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_STOP);
    assert_int_equal(request_take_done(r, second, 1), HILL_E_PROTOCOL);
    proto_free(second);
    assert_int_equal(request_take_token(r, 0, 1, 1), HILL_E_PROTOCOL); /* after Done */
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_first_come_first_served_one_at_a_time),
        T(test_queue_is_bounded),
        T(test_removing_from_the_middle_and_the_end_keeps_the_queue),
        T(test_find_is_by_client_and_id),
        T(test_a_late_message_of_a_lost_attempt_finds_nothing),
        T(test_attempts_are_bounded),
        T(test_repeated_tokens_are_compared_and_not_sent_again),
        T(test_an_attempt_has_clocks_and_progress_of_its_own),
        T(test_a_repeated_token_that_differs_is_damage),
        T(test_tokens_out_of_order_or_too_many_are_refused),
        T(test_over_when_done_and_statistics_are_there),
        T(test_statistics_may_come_first_and_errors_wait_less),
        T(test_a_second_done_is_refused),
    };
    return cmocka_run_group_tests_name("request_book", tests, NULL, NULL);
}
