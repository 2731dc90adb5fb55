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
    request_book_init(&book, 1);
    return 0;
}

static int setup_three(void **state)
{
    (void)state;
    request_book_init(&book, 3);
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

static void test_a_forced_token_must_be_the_one_that_was_given(void **state)
{
    (void)state;
    struct request *r = run_first(2);
    r->n_prompt = 1;
    r->n_forced = 2;
    r->prompt[1] = 7;
    r->prompt[2] = 9;
    assert_int_equal(request_take_token(r, 0, 7, 1), 1);
    assert_int_equal(request_take_token(r, 1, 8, 2), HILL_E_UNSUPPORTED);
    assert_int_equal(request_take_token(r, 1, 9, 3), 1);
    assert_int_equal(request_take_token(r, 2, 9, 4), HILL_E_PROTOCOL);
    assert_int_equal(r->n_tokens, 2);
}

static void test_find_is_by_client_and_id(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(2, 1);
    request_book_advance(&book);
    struct proto_address one = {.bytes = {1}, .length = 1}, two = {.bytes = {2}, .length = 1},
                         three = {.bytes = {3}, .length = 1};
    assert_ptr_equal(request_book_find(&book, &one, 0), a);
    assert_ptr_equal(request_book_find(&book, &two, 0), c);
    assert_ptr_equal(request_book_find(&book, &two, b->id), b);
    assert_ptr_equal(request_book_find(&book, &two, c->id), c);
    assert_null(request_book_find(&book, &one, c->id)); /* another's */
    assert_null(request_book_find(&book, &three, 0));
    struct request *d = add(1, 1); /* it waits, a runs */
    assert_ptr_equal(request_book_find(&book, &one, 0), d);
}

static void test_a_late_message_of_a_lost_attempt_finds_nothing(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    uint64_t first = r->wire_id;
    assert_ptr_equal(request_book_by_wire(&book, first), r);
    request_interrupt(r, true);
    assert_null(request_book_by_wire(&book, first));
    assert_null(request_book_by_wire(&book, 0));
    request_begin_attempt(&book, r, 6);
    assert_null(request_book_by_wire(&book, first));
    assert_ptr_equal(request_book_by_wire(&book, r->wire_id), r);
}

static void test_attempts_that_a_drive_ends_are_not_counted(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    for (unsigned i = 0; i < 10 * REQUEST_ATTEMPTS_MAX; i++) {
        request_interrupt(r, false);
        assert_int_equal(request_begin_attempt(&book, r, 6), 0);
    }
    assert_int_equal(r->fruitless, 1);
}

static void test_attempts_are_bounded(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    for (unsigned i = 1; i < REQUEST_ATTEMPTS_MAX; i++) {
        request_interrupt(r, true);
        assert_int_equal(request_begin_attempt(&book, r, 6), 0);
    }
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 6), HILL_E_PEER_GONE);
    assert_int_equal(r->attempts, REQUEST_ATTEMPTS_MAX);
}

static void test_what_could_not_be_sent_is_no_attempt(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    for (unsigned i = 0; i < 2 * REQUEST_ATTEMPTS_MAX; i++) {
        request_not_sent(r);
        assert_int_equal(r->state, REQUEST_INTERRUPTED);
        assert_int_equal(r->attempts, 0);
        assert_int_equal(request_begin_attempt(&book, r, 6), 0);
    }
    assert_int_equal(r->attempts, 1);
}

static void test_repeated_tokens_are_compared_and_not_sent_again(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    assert_int_equal(request_take_token(r, 0, 11, 7), 1);
    assert_int_equal(request_take_token(r, 1, 12, 8), 1);
    assert_int_equal(r->first_token_ns, 7);
    request_interrupt(r, true);
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
    request_interrupt(r, true);
    request_begin_attempt(&book, r, 20);
    assert_true(r->prefill_share == 0);
    request_take_token(r, 0, 11, 30);
    assert_int_equal(r->attempt_first_ns, 30);
    assert_int_equal(r->attempt_last_ns, 30);
}

/* Five attempts in a row without a new token; a new one, and there are five more. */
static void test_progress_begins_the_count_of_attempts_anew(void **state)
{
    (void)state;
    struct request *r = run_first(40);
    for (unsigned i = 0; i < 3 * REQUEST_ATTEMPTS_MAX; i++) {
        if (i)
            assert_int_equal(request_begin_attempt(&book, r, 6), 0);
        for (uint32_t t = 0; t <= i; t++)
            assert_int_equal(request_take_token(r, t, 20 + t, 7), t == i);
        request_interrupt(r, true);
    }
    assert_int_equal(r->attempts, 3 * REQUEST_ATTEMPTS_MAX);
}

static void make_tokens(struct request *r, uint32_t from, uint32_t n)
{
    XXH64_state_t *hash = XXH64_createState();
    struct hash_state s;
    for (uint32_t t = from; t < from + n; t++) {
        XXH64_reset(hash, t);
        hash_state_save(&s, hash);
        assert_int_equal(request_take_token(r, t, 100 + t, 7), 1);
        request_note_state(r, t, &s, sizeof s);
    }
    XXH64_freeState(hash);
}

/* The states of the newest tokens are there, of eight at most, and of none that came without. */
static void test_an_attempt_goes_on_with_the_newest_states(void **state)
{
    (void)state;
    struct hash_state states[REQUEST_STATES];
    struct request *r = run_first(40);
    uint32_t first;
    XXH64_state_t *hash = XXH64_createState();
    assert_int_equal(request_resume_states(r, &first, states), 0);
    make_tokens(r, 0, 3);
    assert_int_equal(request_resume_states(r, &first, states), 3);
    assert_int_equal(first, 0);
    make_tokens(r, 3, 20);
    assert_int_equal(request_resume_states(r, &first, states), REQUEST_STATES);
    assert_int_equal(first, 15);
    for (uint32_t i = 0; i < REQUEST_STATES; i++) {
        struct hash_state expected;
        XXH64_reset(hash, 15 + i);
        hash_state_save(&expected, hash);
        assert_memory_equal(&states[i], &expected, sizeof expected);
    }
    assert_int_equal(request_take_token(r, 23, 1, 7), 1);
    request_note_state(r, 23, NULL, 0);
    assert_int_equal(request_resume_states(r, &first, states), 0);
    make_tokens(r, 24, 2);
    assert_int_equal(request_resume_states(r, &first, states), 2);
    assert_int_equal(first, 24);
    XXH64_freeState(hash);
}

/* However far the worker is ahead, the scorer keeps a step before the newest token here: of the
 * steps that make tokens up to ahead of those, and the one under way. */
static void test_the_worker_stays_within_what_is_kept(void **state)
{
    (void)state;
    struct request *r = run_first(40);
    for (uint32_t policy = 0; policy < KV_POLICY_COUNT; policy++) {
        r->selection.policy = policy;
        uint32_t kept = policy == KV_POLICY_H2O ? KV_MASS_STEPS : REQUEST_STATES;
        assert_int_equal(request_ahead_max(r), kept - 2);
    }
}

static void test_units_that_stand_are_not_done_again(void **state)
{
    (void)state;
    struct request *r = run_first(40);
    request_note_units(r, 4);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 9), 0);
    assert_int_equal(request_take_units(r, 0, 1), HILL_E_PROTOCOL);
    assert_int_equal(request_take_units(r, 3, 1), 0); /* the fourth was begun */
    assert_int_equal(request_take_units(r, 3, 1), HILL_E_PROTOCOL);
    request_note_units(r, 2); /* given to the scorer again: not computed */
    request_note_units(r, 7);
    assert_int_equal(r->recovery.units_repeated, 1);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 12), 0);
    assert_int_equal(request_take_units(r, 5, 0), 0);
    request_note_units(r, 9);
    assert_int_equal(r->recovery.units_repeated, 3); /* two had been told of */
    assert_int_equal(r->recovery.recoveries, 2);
    make_tokens(r, 0, 1);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 20), 0);
    assert_int_equal(request_take_token(r, 0, 100, 21), 0);
    assert_int_equal(request_take_units(r, 9, 0), HILL_E_PROTOCOL); /* it is past them */
}

static void test_what_is_done_again_is_counted(void **state)
{
    (void)state;
    struct hash_state states[REQUEST_STATES];
    struct request *r = run_first(40);
    uint32_t first;
    request_note_units(r, 4);
    request_interrupt(r, true); /* in the prompt: its units come again */
    assert_int_equal(request_begin_attempt(&book, r, 9), 0);
    request_note_units(r, 3);
    request_note_units(r, 6);
    assert_int_equal(r->recovery.units_repeated, 4);
    make_tokens(r, 0, 10);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 20), 0);
    assert_int_equal(request_take_resumed(r, 11, 21), HILL_E_PROTOCOL);
    assert_int_equal(request_take_resumed(r, 0, 21), HILL_E_PROTOCOL);
    assert_int_equal(request_take_resumed(r, 9, 21), 0); /* goes on: one step comes again */
    assert_int_equal(request_take_resumed(r, 9, 21), HILL_E_PROTOCOL);
    assert_int_equal(request_take_token(r, 9, 109, 22), 0);
    make_tokens(r, 10, 1);
    assert_int_equal(r->attempt_first_ns, 21);
    assert_int_equal(r->recovery.recoveries, 1);
    assert_int_equal(r->recovery.steps_repeated, 1);
    assert_int_equal(r->recovery.units_repeated, 4);
    /* it is of no use: the next attempt begins anew, with all six units */
    assert_true(request_begin_anew(r));
    assert_int_equal(r->state, REQUEST_INTERRUPTED);
    assert_int_equal(request_resume_states(r, &first, states), 0);
    assert_int_equal(request_begin_attempt(&book, r, 30), 0);
    request_note_units(r, 6);
    assert_int_equal(r->recovery.units_repeated, 10);
    for (uint32_t t = 0; t < 11; t++)
        assert_int_equal(request_take_token(r, t, 100 + t, 31), 0);
    assert_int_equal(r->recovery.steps_repeated, 12);
    assert_false(request_begin_anew(r)); /* it did begin anew */
    make_tokens(r, 11, 1);
    assert_true(request_resume_states(r, &first, states) > 0);
}

static void test_a_repeated_token_that_differs_is_damage(void **state)
{
    (void)state;
    struct request *r = run_first(4);
    request_take_token(r, 0, 11, 7);
    request_interrupt(r, true);
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

static struct request *finishing(Hill__FinishReason finish)
{
    struct request *r = run_first(2);
    assert_int_equal(request_take_token(r, 0, 11, 7), 1);
    request_take_done(r, message_of(HILL__MESSAGE__BODY_DONE, finish), 100);
    return r;
}

static void test_lost_statistics_are_made_again(void **state)
{
    (void)state;
    struct request *r = finishing(HILL__FINISH_REASON__FINISH_STOP);
    uint64_t wire_id = r->wire_id;
    assert_true(request_repeat_end(r));
    assert_int_equal(r->state, REQUEST_INTERRUPTED);
    assert_true(request_repeat_end(r)); /* one epoch ends right after another */
    assert_false(request_is_over(r, INT64_MAX));
    assert_ptr_equal(request_book_by_wire(&book, wire_id), r);
    assert_int_equal(request_begin_attempt(&book, r, 200), 0);
    assert_null(r->done);
    assert_int_equal(r->n_tokens, 1);
    assert_null(request_book_by_wire(&book, wire_id));
    assert_int_equal(request_take_token(r, 0, 11, 7), 0);
}

static void test_an_answer_is_whole_when_its_repeat_fails(void **state)
{
    (void)state;
    struct request *r = finishing(HILL__FINISH_REASON__FINISH_STOP);
    assert_false(request_take_first_end(r));
    for (unsigned i = 0; i < 2; i++) { /* the repeat is interrupted, and begins again */
        if (!i)
            assert_true(request_repeat_end(r));
        assert_int_equal(request_begin_attempt(&book, r, 200), 0);
        assert_null(r->done);
        request_interrupt(r, true);
    }
    assert_int_equal(request_begin_attempt(&book, r, 300), 0);
    request_take_done(r, message_of(HILL__MESSAGE__BODY_DONE, HILL__FINISH_REASON__FINISH_ERROR),
                      300);
    request_take_stats(r, message_of(HILL__MESSAGE__BODY_SEQUENCE_STATS, 0));
    assert_true(request_take_first_end(r));
    assert_int_equal(r->done->done->finish, HILL__FINISH_REASON__FINISH_STOP);
    assert_null(r->stats);
    assert_false(request_take_first_end(r));
}

static void test_statistics_that_come_late_are_taken(void **state)
{
    (void)state;
    struct request *r = finishing(HILL__FINISH_REASON__FINISH_LENGTH);
    assert_true(request_repeat_end(r));
    assert_int_equal(request_take_stats(r, message_of(HILL__MESSAGE__BODY_SEQUENCE_STATS, 0)), 0);
    assert_true(request_is_over(r, 101));
    assert_false(request_repeat_end(r));
}

static void test_an_end_that_is_none_is_not_repeated(void **state)
{
    (void)state;
    struct request *r = finishing(HILL__FINISH_REASON__FINISH_CANCEL);
    assert_false(request_repeat_end(r));
    assert_int_equal(r->state, REQUEST_FINISHING);
    request_book_remove(&book, r);
    assert_false(request_repeat_end(run_first(2)));
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
    request_interrupt(r, true);
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

/* ---- several at a time ------------------------------------------------------------------- */

/* Everything that may start, in one go, as the coordinator does it. */
static unsigned start_all(void)
{
    unsigned n = 0;
    for (struct request *r; (r = request_book_advance(&book)); n++)
        assert_int_equal(request_begin_attempt(&book, r, 5), 0);
    return n;
}

static void test_as_many_run_as_there_are_slots_in_order(void **state)
{
    (void)state;
    struct request *r[5];
    for (uint8_t i = 0; i < 5; i++)
        r[i] = add(i, 1);
    assert_int_equal(start_all(), 3);
    assert_int_equal(book.n_running, 3);
    assert_int_equal(book.n_waiting, 2);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(r[i]->sequence, i);
        assert_ptr_equal(request_book_by_wire(&book, r[i]->wire_id), r[i]);
    }
    assert_ptr_equal(book.running, r[0]);
    assert_ptr_equal(r[0]->next, r[1]);
    assert_ptr_equal(r[1]->next, r[2]);
    request_book_remove(&book, r[1]);
    assert_ptr_equal(request_book_advance(&book), r[3]);
    assert_int_equal(r[3]->sequence, 1); /* the free one */
    assert_null(request_book_advance(&book));
    assert_ptr_equal(r[2]->next, r[3]);
}

static void test_the_slot_that_was_free_for_longest_is_taken(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1);
    start_all();
    request_book_remove(&book, c);
    request_book_remove(&book, a);
    request_book_remove(&book, b);
    struct request *d = add(4, 1), *e = add(5, 1), *f = add(6, 1);
    start_all();
    assert_int_equal(d->sequence, 2);
    assert_int_equal(e->sequence, 0);
    assert_int_equal(f->sequence, 1);
}

static void test_interrupted_ones_keep_their_order_and_count_attempts(void **state)
{
    (void)state;
    struct request *a = add(1, 4), *b = add(2, 4), *c = add(3, 4);
    start_all();
    uint64_t wire = b->wire_id;
    request_take_token(b, 0, 11, 7);
    for (struct request *r = book.running; r; r = r->next)
        request_interrupt(r, true);
    assert_null(request_book_by_wire(&book, wire));
    assert_null(request_book_advance(&book)); /* they run still: nobody new comes in */
    assert_ptr_equal(book.running, a);
    assert_ptr_equal(a->next, b);
    assert_ptr_equal(b->next, c);
    request_begin_attempt(&book, b, 9);
    assert_int_equal(request_take_token(b, 0, 11, 10), 0);
    assert_int_equal(b->attempts, 2);
}

static void test_without_room_a_request_waits_at_its_place_until_another_ends(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1), *d = add(4, 1);
    start_all();
    assert_int_equal(request_book_refused(&book, b), 0);
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(b->attempts, 0);
    assert_ptr_equal(book.first, b);
    assert_ptr_equal(b->next, d);
    assert_int_equal(book.n_running, 2);
    assert_null(request_book_advance(&book)); /* a slot is free, but d does not overtake b */
    request_book_remove(&book, c);
    assert_ptr_equal(request_book_advance(&book), b);
    request_begin_attempt(&book, b, 6);
    assert_null(request_book_advance(&book)); /* until b has been taken up */
    request_taken_up(b);
    assert_ptr_equal(request_book_advance(&book), d);
    assert_ptr_equal(book.running, a);
}

static void test_room_that_came_free_meanwhile_is_tried_at_once(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1);
    start_all();
    request_book_remove(&book, a); /* ends while b's refusal is on its way */
    assert_int_equal(request_book_refused(&book, b), 0);
    assert_ptr_equal(request_book_advance(&book), b);
    request_begin_attempt(&book, b, 6);
    assert_int_equal(request_book_refused(&book, b), 0);
    assert_null(request_book_advance(&book));
    assert_ptr_equal(book.running, c);
}

static void test_two_refused_ones_come_back_in_order(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(3, 1);
    start_all();
    request_book_refused(&book, c);
    request_book_refused(&book, b);
    assert_ptr_equal(book.first, b);
    assert_ptr_equal(b->next, c);
    request_book_remove(&book, a);
    assert_ptr_equal(request_book_advance(&book), b);
    assert_null(request_book_advance(&book));
}

static void test_refused_with_nobody_beside_it_is_tried_a_few_times(void **state)
{
    (void)state;
    struct request *r = add(1, 1);
    for (unsigned i = 0; i < REQUEST_ALONE_MAX; i++) {
        assert_ptr_equal(request_book_advance(&book), r);
        request_begin_attempt(&book, r, 5);
        assert_int_equal(request_book_refused(&book, r), 0);
    }
    assert_ptr_equal(request_book_advance(&book), r);
    request_begin_attempt(&book, r, 5);
    assert_int_equal(request_book_refused(&book, r), HILL_E_TIMEOUT);
    assert_int_equal(r->state, REQUEST_RUNNING);
    assert_int_equal(book.n_running, 1);
}

static void test_a_sign_of_life_counts_for_all_of_a_client(void **state)
{
    (void)state;
    struct request *a = add(1, 1), *b = add(2, 1), *c = add(2, 1), *d = add(2, 1);
    struct proto_address two = {.bytes = {2}, .length = 1};
    start_all();
    request_book_heard(&book, &two, true, 77);
    assert_int_equal(a->client_seen_ns, 0);
    assert_false(a->client_asks);
    assert_int_equal(b->client_seen_ns, 77);
    assert_int_equal(c->client_seen_ns, 77);
    assert_true(d->client_asks); /* it waits */
    assert_int_equal(d->state, REQUEST_WAITING);
    request_book_heard(&book, &two, false, 78);
    assert_true(d->client_asks);
}

static void test_parked_ones_run_nowhere_and_come_back_at_their_place(void **state)
{
    (void)state;
    struct request *old = request_create(&book, calloc(3, sizeof(uint32_t)), 3, 2);
    request_keep_id(&book, old, 5);
    old->key = 50;
    request_book_park(&book, old, REQUEST_AWAITED, 77);
    struct request *fresh = add(1, 1);
    assert_true(fresh->id > 5);
    assert_int_equal(book.n_waiting, 1);
    assert_ptr_equal(request_book_by_key(&book, 50), old);
    assert_null(request_book_by_key(&book, 0)); /* nobody's */
    request_book_unpark(&book, old);
    assert_int_equal(book.n_waiting, 2);
    assert_ptr_equal(request_book_advance(&book), old); /* it came before */
    assert_ptr_equal(request_book_advance(&book), fresh);
    assert_int_equal(book.n_done, 0);
}

/* A request of a coordinator before, with entries on this slot. */
static struct request *park_on(uint32_t sequence, uint64_t id)
{
    struct request *r = request_create(&book, calloc(3, sizeof(uint32_t)), 3, 2);
    request_keep_id(&book, r, id);
    r->returns = true;
    r->sequence = sequence;
    request_book_park(&book, r, REQUEST_AWAITED, 77);
    return r;
}

static void test_who_returns_gets_its_slot_before_all_others(void **state)
{
    (void)state;
    struct request *on_two = park_on(2, 5), *on_none = park_on(0, 6);
    struct request *a = add(1, 1), *b = add(1, 1);
    assert_true(request_book_returns(&book));
    assert_ptr_equal(request_book_advance(&book), a);
    assert_int_equal(a->sequence, 1); /* the others are kept for those whose clients may come */
    assert_false(a->returns);
    assert_null(request_book_advance(&book));
    request_book_unpark(&book, on_two);
    assert_ptr_equal(request_book_advance(&book), on_two);
    assert_int_equal(on_two->sequence, 2);
    assert_true(on_two->returns); /* no prefix is to be looked for */
    assert_null(request_book_advance(&book));
    request_book_stay_away(&book, true); /* that client does not come soon */
    assert_ptr_equal(request_book_advance(&book), b);
    assert_int_equal(b->sequence, 0);
    request_book_unpark(&book, on_none);
    request_book_remove(&book, a);
    assert_ptr_equal(request_book_advance(&book), on_none);
    assert_int_equal(on_none->sequence, 1);
    assert_false(on_none->returns);
}

/* What a client reads counts requests alone, however often they were sent to the workers. */
static void test_attempts_take_no_requests_number(void **state)
{
    (void)state;
    struct request *r = run_first(40);
    uint64_t first = r->wire_id;
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&book, r, 2), 0);
    assert_true(r->wire_id > first);
    struct request *next = request_create(&book, calloc(3, sizeof(uint32_t)), 3, 2);
    assert_int_equal(next->id, r->id + 1);
    request_destroy(next);
}

/* One that is over and those that came after it on its slot, in whatever order logs are found. */
static void test_of_two_on_a_slot_the_newest_returns(void **state)
{
    (void)state;
    const uint64_t attempts[2][3] = {{20, 30, 10}, {10, 20, 30}};
    for (unsigned i = 0; i < 2; i++) {
        struct request *r[3];
        for (unsigned k = 0; k < 3; k++) {
            r[k] = request_create(&book, calloc(3, sizeof(uint32_t)), 3, 2);
            r[k]->returns = true;
            r[k]->sequence = 1;
            request_book_claim(&book, r[k], attempts[i][k]);
            request_book_park(&book, r[k], REQUEST_AWAITED, 77);
        }
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(r[k]->returns, attempts[i][k] == 30);
        assert_true(book.next_attempt > 30);
        for (unsigned k = 0; k < 3; k++)
            request_book_remove(&book, r[k]);
    }
}

/* Its slot is another's meanwhile: it begins anew where there is room. */
static void test_who_returns_to_a_taken_slot_begins_anew(void **state)
{
    (void)state;
    struct request *first = park_on(1, 5), *second = park_on(1, 6);
    request_book_unpark(&book, first);
    request_book_unpark(&book, second);
    assert_ptr_equal(request_book_advance(&book), first);
    assert_int_equal(first->sequence, 1);
    assert_ptr_equal(request_book_advance(&book), second);
    assert_int_not_equal(second->sequence, 1);
    assert_false(second->returns);
    assert_false(request_book_returns(&book));
}

static void test_a_delivered_one_has_left_its_slot_and_counts_once(void **state)
{
    (void)state;
    struct request *r = run_first(1);
    r->key = 50;
    request_book_park(&book, r, REQUEST_DELIVERED, 77);
    assert_int_equal(book.n_running, 0);
    assert_int_equal(book.n_done, 1);
    assert_null(request_book_by_key(&book, 50)); /* there is nothing to go on with */
    struct request *next = add(2, 1);
    assert_ptr_equal(request_book_advance(&book), next);
    request_book_remove(&book, r);
    assert_int_equal(book.n_done, 1);
    assert_null(book.parked);
}

static void test_a_parked_one_can_be_dropped(void **state)
{
    (void)state;
    struct request *r = request_create(&book, calloc(3, sizeof(uint32_t)), 3, 2);
    request_book_park(&book, r, REQUEST_AWAITED, 77);
    request_book_remove(&book, r);
    assert_null(book.parked);
    assert_int_equal(book.n_done, 1);
}

#define T3(test) cmocka_unit_test_setup_teardown(test, setup_three, teardown)
#define T(test)  cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_first_come_first_served_one_at_a_time),
        T3(test_who_returns_gets_its_slot_before_all_others),
        T3(test_who_returns_to_a_taken_slot_begins_anew),
        T3(test_of_two_on_a_slot_the_newest_returns),
        T(test_queue_is_bounded),
        T(test_removing_from_the_middle_and_the_end_keeps_the_queue),
        T(test_a_forced_token_must_be_the_one_that_was_given),
        T(test_find_is_by_client_and_id),
        T(test_a_late_message_of_a_lost_attempt_finds_nothing),
        T(test_attempts_are_bounded),
        T(test_attempts_that_a_drive_ends_are_not_counted),
        T(test_what_could_not_be_sent_is_no_attempt),
        T(test_repeated_tokens_are_compared_and_not_sent_again),
        T(test_an_attempt_has_clocks_and_progress_of_its_own),
        T(test_attempts_take_no_requests_number),
        T(test_progress_begins_the_count_of_attempts_anew),
        T(test_an_attempt_goes_on_with_the_newest_states),
        T(test_the_worker_stays_within_what_is_kept),
        T(test_units_that_stand_are_not_done_again),
        T(test_what_is_done_again_is_counted),
        T(test_a_repeated_token_that_differs_is_damage),
        T(test_tokens_out_of_order_or_too_many_are_refused),
        T(test_over_when_done_and_statistics_are_there),
        T(test_lost_statistics_are_made_again),
        T(test_an_answer_is_whole_when_its_repeat_fails),
        T(test_statistics_that_come_late_are_taken),
        T(test_an_end_that_is_none_is_not_repeated),
        T(test_statistics_may_come_first_and_errors_wait_less),
        T(test_a_second_done_is_refused),
        T3(test_as_many_run_as_there_are_slots_in_order),
        T3(test_the_slot_that_was_free_for_longest_is_taken),
        T3(test_interrupted_ones_keep_their_order_and_count_attempts),
        T3(test_without_room_a_request_waits_at_its_place_until_another_ends),
        T3(test_room_that_came_free_meanwhile_is_tried_at_once),
        T3(test_two_refused_ones_come_back_in_order),
        T3(test_refused_with_nobody_beside_it_is_tried_a_few_times),
        T3(test_a_sign_of_life_counts_for_all_of_a_client),
        T3(test_parked_ones_run_nowhere_and_come_back_at_their_place),
        T(test_a_delivered_one_has_left_its_slot_and_counts_once),
        T(test_a_parked_one_can_be_dropped),
    };
    return cmocka_run_group_tests_name("request_book", tests, NULL, NULL);
}
