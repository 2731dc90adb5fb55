/* Tests of coordinator/service_prefix.c: which entries of a request that has ended are everybody's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/service.h"

#define N_PROMPT 6u

static struct service sv;
static struct settings settings;
static struct request *r;

/* A chat's turn that has ended: two tokens, and all entries but the last one's are kept. */
static int setup(void **state)
{
    (void)state;
    memset(&settings, 0, sizeof settings);
    memset(&sv, 0, sizeof sv);
    settings.epoch.trace_path = settings.epoch.record_path = "";
    sv.settings = &settings;
    request_book_init(&sv.book, 2);
    prefix_store_init(&sv.prefixes);
    r = request_create(&sv.book, calloc(N_PROMPT, sizeof(uint32_t)), N_PROMPT, 2);
    r->prefix.conversation = 9;
    assert_int_equal(request_book_add(&sv.book, r), 0);
    assert_ptr_equal(request_book_advance(&sv.book), r);
    assert_int_equal(request_begin_attempt(&sv.book, r, 1), 0);
    assert_int_equal(request_take_token(r, 0, 1, 1), 1);
    assert_int_equal(request_take_token(r, 1, 2, 2), 1);
    r->stats = malloc(sizeof *r->stats);
    hill__message__init(r->stats);
    r->stats->body_case = HILL__MESSAGE__BODY_SEQUENCE_STATS;
    r->stats->sequence_stats = malloc(sizeof *r->stats->sequence_stats);
    hill__sequence_stats__init(r->stats->sequence_stats);
    r->stats->sequence_stats->kept_tokens = N_PROMPT + 1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    request_book_finish(&sv.book);
    prefix_store_finish(&sv.prefixes);
    return 0;
}

static uint32_t plain_left(void)
{
    request_leave_prefix(&sv, r, true);
    return sv.prefixes.entries[r->sequence].n_plain;
}

static void a_prompt_that_was_computed_is_everybodys(void **state)
{
    (void)state;
    assert_int_equal(plain_left(), N_PROMPT);
}

static void what_follows_decoded_entries_is_not(void **state)
{
    (void)state;
    r->prefix.hit = (struct prefix_hit){.request = 1, .n_tokens = 4, .n_plain = 3};
    assert_int_equal(plain_left(), 3);
}

/* Its log says that there are decoded ones, and no more: the slot was taken over as it was. */
static void decoded_entries_of_before_a_coordinators_death_are_not(void **state)
{
    (void)state;
    r->prefix.decoded = true;
    assert_int_equal(plain_left(), 0);
}

static void what_an_attempt_before_took_from_the_drive_is_not(void **state)
{
    (void)state;
    r->recovery.resumed = true;
    assert_int_equal(plain_left(), N_PROMPT); /* there is no such store */
    strcpy(settings.prefix_dir, "/x");
    assert_int_equal(plain_left(), 0);
    r->recovery.in_prompt = true; /* a prompt goes on only where nothing was taken */
    assert_int_equal(plain_left(), N_PROMPT);
    r->recovery.in_prompt = false;
    r->prefix.conversation = 0; /* it is given plain ones alone */
    assert_int_equal(plain_left(), N_PROMPT);
}

/* What goes on leaves its prompt in the drive's store as it would have done at once. */
static void what_of_a_prompt_that_goes_on_is_plain(void **state)
{
    (void)state;
    assert_int_equal(request_resume_plain(r), N_PROMPT);
    r->prefix.hit = (struct prefix_hit){.request = 1, .n_tokens = 4, .n_plain = 4};
    assert_int_equal(request_resume_plain(r), N_PROMPT);
    r->prefix.hit.n_plain = 3;
    r->prefix.decoded = true;
    assert_int_equal(request_resume_plain(r), 3);
    r->prefix.hit = (struct prefix_hit){0}; /* of a coordinator before */
    assert_int_equal(request_resume_plain(r), 0);
    r->prefix.decoded = false;
    r->prefix.drive_decoded = true;
    assert_int_equal(request_resume_plain(r), 0);
}

/* Its first token came of important tokens; its entries are computed over all. */
static void a_first_token_of_important_tokens_changes_nothing(void **state)
{
    (void)state;
    r->done = malloc(sizeof *r->done);
    hill__message__init(r->done);
    r->done->body_case = HILL__MESSAGE__BODY_DONE;
    r->done->done = malloc(sizeof *r->done->done);
    hill__done__init(r->done->done);
    r->done->done->reused_tokens = r->done->done->reused_plain = 4;
    assert_int_equal(plain_left(), N_PROMPT);
    r->done->done->selected = true;
    assert_int_equal(plain_left(), N_PROMPT);
}

/* Tokens that were made over prefilled entries are not made again over decoded ones. */
static void a_request_with_tokens_takes_plain_entries_alone(void **state)
{
    (void)state;
    uint32_t tokens[N_PROMPT] = {0};
    const struct prefix_entry e = {.request = 70,
                                   .conversation = 9,
                                   .tokens = tokens,
                                   .n_tokens = N_PROMPT,
                                   .n_kept = 5,
                                   .n_plain = 3,
                                   .finished = true};
    assert_int_equal(prefix_store_put(&sv.prefixes, 1, &e), 0);
    request_take_prefix(&sv, r);
    assert_int_equal(r->prefix.hit.n_tokens, 3);
    assert_int_equal(r->prefix.hit.n_plain, 3);
    assert_int_equal(prefix_store_put(&sv.prefixes, 0, &e), 0);
    r->n_tokens = 0;
    request_take_prefix(&sv, r);
    assert_int_equal(r->prefix.hit.n_tokens, 5);
}

/* Its worker has no room for it beside others: what its slot held may be named, and taken again. */
static void what_a_refused_request_has_taken_is_given_back(void **state)
{
    (void)state;
    uint32_t tokens[N_PROMPT] = {0};
    const struct prefix_entry e = {
        .request = 70, .tokens = tokens, .n_tokens = N_PROMPT, .n_kept = 5, .n_plain = 3};
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Done done = HILL__DONE__INIT;
    struct arrival a = {.message = &message};
    assert_int_equal(prefix_store_put(&sv.prefixes, 1, &e), 0);
    request_take_prefix(&sv, r);
    assert_int_equal(r->sequence, 1);
    assert_null(prefix_store_request(&sv.prefixes, 70));
    done.request_id = r->wire_id;
    done.finish = HILL__FINISH_REASON__FINISH_ERROR;
    done.code = HILL_E_BUSY;
    message.body_case = HILL__MESSAGE__BODY_DONE;
    message.done = &done;
    request_on_done(&sv, &a);
    assert_int_equal(r->state, REQUEST_WAITING);
    assert_ptr_equal(prefix_store_request(&sv.prefixes, 70), &sv.prefixes.entries[1]);
    assert_memory_equal(sv.prefixes.entries[1].tokens, tokens, sizeof tokens);
    assert_ptr_equal(request_book_advance(&sv.book), r);
    request_take_prefix(&sv, r);
    assert_int_equal(r->prefix.hit.n_tokens, 3);
    assert_int_equal(r->sequence, 1);
}

static void say_progress(uint32_t decoded, bool selected)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Progress progress = HILL__PROGRESS__INIT;
    struct arrival a = {.message = &message};
    progress.request_id = r->wire_id;
    progress.decoded_tokens = decoded;
    progress.selected = selected;
    message.body_case = HILL__MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    request_on_progress(&sv, &a);
}

/* Another attempt that makes other tokens is nobody's mistake where decoded entries were read from
 * the drive before and could not be again. */
static void decoded_entries_from_the_drive_are_named(void **state)
{
    (void)state;
    say_progress(0, false);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&sv.book, r, 2), 0);
    assert_non_null(strstr(request_bad_token(r, request_take_token(r, 0, 7, 3)), "internal error"));
    say_progress(3, false);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&sv.book, r, 3), 0);
    say_progress(0, false); /* this attempt computes them */
    assert_string_equal(request_bad_token(r, request_take_token(r, 0, 7, 4)), REQUEST_DECODED_LOST);
    assert_non_null(strstr(request_bad_token(r, HILL_E_PROTOCOL), "out of order"));
}

/* Nor where the first token came of important tokens alone: later attempts do not change that. */
static void important_tokens_of_the_first_attempt_are_named(void **state)
{
    (void)state;
    say_progress(0, true); /* it has tokens, which came otherwise */
    assert_false(r->prefix.selected);
    r->n_tokens = 0;
    say_progress(0, true);
    request_interrupt(r, true); /* before its first token: whose it is, is open again */
    assert_int_equal(request_begin_attempt(&sv.book, r, 2), 0);
    say_progress(0, false);
    assert_false(r->prefix.selected);
    say_progress(0, true);
    assert_int_equal(request_take_token(r, 0, 1, 3), 1);
    request_interrupt(r, true);
    assert_int_equal(request_begin_attempt(&sv.book, r, 4), 0);
    say_progress(0, false); /* its prefix was in the tiers */
    assert_string_equal(request_bad_token(r, request_take_token(r, 0, 7, 5)),
                        REQUEST_SELECTED_LOST);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_prompt_that_was_computed_is_everybodys),
        T(what_follows_decoded_entries_is_not),
        T(decoded_entries_of_before_a_coordinators_death_are_not),
        T(what_an_attempt_before_took_from_the_drive_is_not),
        T(what_of_a_prompt_that_goes_on_is_plain),
        T(a_first_token_of_important_tokens_changes_nothing),
        T(what_a_refused_request_has_taken_is_given_back),
        T(a_request_with_tokens_takes_plain_entries_alone),
        T(decoded_entries_from_the_drive_are_named),
        T(important_tokens_of_the_first_attempt_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
