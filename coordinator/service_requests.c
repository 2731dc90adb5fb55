/*
 * coordinator/service_requests.c - the running requests: attempts, tokens, summaries.
 *
 * Who calls it: the other parts of the pipeline. Concurrency: one thread. Failure: a request that
 * fails gets a Summary with FINISH_ERROR, a code and one line; the pipeline goes on.
 */
#include "coordinator/service.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "kv/plane.h"
#include "session/session.h"

#define PROGRESS_EVERY_NS INT64_C(200000000)
#define RETURN_NS         INT64_C(10000000000) /* a slot is kept free for a client that comes back */

/* ---- summary ----------------------------------------------------------------------------- */

static void fill_restarts(Hill__Restarts *out, const struct worker_table *workers,
                          const struct request *r)
{
    out->gpu_worker = workers->rows[WORKER_GPU].restarts;
    out->cpu_scorer = workers->rows[WORKER_SCORER].restarts;
    for (enum worker w = WORKER_AGENT; w < WORKER_COUNT; w++)
        out->csd_agent += workers->rows[w].restarts;
    out->coordinator = coordinator_restarts();
    if (out->coordinator < r->restarts) /* of those that a person has started, too */
        out->coordinator = r->restarts;
}

void request_drop(struct service *sv, struct request *r)
{
    token_log_remove(r->log);
    r->log = NULL;
    request_book_remove(&sv->book, r);
}

/* Out of the lists. One with a log stays until its client has the Summary, for as long as that
 * would wait for a coordinator; without that client it is of no use. */
static void leave(struct service *sv, struct request *r)
{
    int64_t patience_ns = CLOCK_MS(sv->settings->options.recovery_ms);
    if (r->log && !r->client_gone && !sv->supervisor->ending)
        request_book_park(&sv->book, r, REQUEST_DELIVERED, clock_now_ns() + patience_ns);
    else
        request_drop(sv, r);
}

/* What is done on its sequence from here on is not its own. */
static void leave_sequence(struct service *sv, const struct request *r)
{
    if (r->wire_id)
        trace_note_turn(sv, r->sequence, 0);
}

static void say_over(const struct request *r, Hill__FinishReason reason, int code, const char *text)
{
    if (code)
        log_warn("request %" PRIu64 " failed: %s", r->id, text);
    else
        log_info("request %" PRIu64 " is %s: %u tokens in %.2f s", r->id,
                 reason == HILL__FINISH_REASON__FINISH_CANCEL ? "cancelled" : "done", r->n_tokens,
                 (double)(clock_now_ns() - r->accepted_ns) / 1e9);
}

/* Send the Summary and remove the request. */
static void finish(struct service *sv, struct request *r, Hill__FinishReason reason, int code,
                   const char *text)
{
    Hill__Summary summary = HILL__SUMMARY__INIT;
    Hill__Restarts restarts = HILL__RESTARTS__INIT;
    Hill__Selection selection;
    Hill__CsdModel model;
    Hill__CsdModelCounters counters;
    struct profile_wire profile;
    char rest[16];
    /* its client has all tokens */
    if (code && (request_take_first_end(r) || session_take_saved_end(sv, r))) {
        log_warn("request %" PRIu64 ": its statistics could not be made again: %s", r->id, text);
        reason = r->done->done->finish;
        code = 0;
        text = "";
    }
    uint64_t rest_bytes = r->n_tokens ? detokenizer_flush(&r->text, rest) : 0;
    if (rest_bytes && !r->rest_there)
        request_send_text(sv, r, rest, rest_bytes, TEXT_NO_TOKEN, 0);
    selection_to_wire(&selection, &r->selection);
    fill_restarts(&restarts, &sv->supervisor->workers, r);
    summary.request_id = r->id;
    summary.finish = reason;
    summary.code = code;
    summary.text = (char *)text;
    summary.prompt_tokens = r->n_prompt;
    summary.predicted_tokens = r->n_tokens;
    summary.ttft_ms = r->first_token_ns ? (double)(r->first_token_ns - r->accepted_ns) / 1e6 : 0;
    csd_model_show(sv, &r->csd_before, &model, &counters);
    summary.csd_model = &model;
    summary.csd_model_counters = &counters;
    summary.restarts = &restarts;
    summary.selection = &selection;
    summary.speculate = sv->settings->epoch.speculate;
    summary.exact_layers = sv->settings->epoch.exact_layers;
    summary.attempts = r->attempts;
    summary.recoveries = r->recovery.recoveries;
    summary.steps_repeated = r->recovery.steps_repeated;
    summary.units_repeated = r->recovery.units_repeated;
    summary.entries_repeated = r->recovery.entries_repeated;
    summary.reused_tokens = request_reused(r);
    summary.history_tokens = r->prefix.hit.n_history;
    summary.reused_decoded = request_reused_decoded(r);
    summary.beta = profile_beta_effective(sv);
    summary.profile = profile_show(sv, &profile);
    if (r->done) {
        summary.gpu = r->done->done;
        summary.gpu->request_id = r->id;
    }
    if (r->stats) {
        summary.scorer = r->stats->sequence_stats;
        summary.scorer->request_id = r->id;
        summary.beta = summary.scorer->beta;
    }
    summary.sequence = r->sequence;
    char *texts = request_fill_passages(sv, r, &summary);
    session_save_lost(sv, r, code ? text : "it is over");
    request_leave_prefix(sv, r, reason != HILL__FINISH_REASON__FINISH_CANCEL && !code);
    say_over(r, reason, code, text);
    leave_sequence(sv, r);
    request_send(sv, r, &PROTO_MESSAGE(SUMMARY, summary, &summary));
    free(texts);
    free(summary.passages);
    leave(sv, r);
}

void request_fail(struct service *sv, struct request *r, int code, const char *text)
{
    finish(sv, r, HILL__FINISH_REASON__FINISH_ERROR, code, text);
}

/* Done and, if they came, the statistics are there. */
static void finish_done(struct service *sv, struct request *r)
{
    const Hill__Done *done = r->done->done;
    bool success = done->finish == HILL__FINISH_REASON__FINISH_STOP ||
                   done->finish == HILL__FINISH_REASON__FINISH_LENGTH;
    if (success && r->n_attempt < r->n_tokens) {
        request_fail(
            sv, r, HILL_E_DAMAGED,
            "internal error: the repeated request ended before the tokens that were already sent");
    } else if (done->finish == HILL__FINISH_REASON__FINISH_ERROR) {
        char text[512];
        snprintf(text, sizeof text, "%s",
                 r->failure_text[0] ? r->failure_text
                 : done->text[0]    ? done->text
                                    : hill_strerror(done->code));
        request_fail(sv, r, done->code < 0 ? done->code : HILL_E_PROTOCOL, text);
    } else {
        if (success && !r->stats)
            log_warn("request %" PRIu64 ": the scorer's statistics did not come; its answer has no "
                     "selection_hash",
                     r->id);
        finish(sv, r, done->finish, 0, "");
    }
}

void requests_end_all(struct service *sv, Hill__FinishReason reason, int code, const char *text)
{
    while (sv->book.running)
        finish(sv, sv->book.running, reason, code, text);
    while (sv->book.first)
        finish(sv, sv->book.first, reason, code, text);
    for (struct request *r; (r = sv->book.parked);) {
        if (!code || r->state != REQUEST_AWAITED) {
            request_drop(sv, r);
            continue;
        }
        log_warn("request %" PRIu64
                 ": its token log stays, for the next pipeline in this run folder",
                 r->id);
        request_book_remove(&sv->book, r); /* its client may wait for that */
    }
}

/* ---- attempts ---------------------------------------------------------------------------- */

static uint32_t list_stop_tokens(uint32_t *out, const struct settings *s, const struct request *r)
{
    uint32_t count = r->ignore_eos ? 0 : s->n_stop_tokens;
    memcpy(out, s->stop_tokens, count * sizeof *out);
    if (!r->ignore_eos && r->answer_end != TOKEN_NONE)
        out[count++] = r->answer_end;
    return count;
}

static int send_prefill(struct service *sv, struct request *r)
{
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__SessionFile restore, save;
    struct session_terms terms; /* the same for both */
    Hill__Selection selection;
    Hill__Resume resume = HILL__RESUME__INIT;
    struct hash_state states[REQUEST_STATES];
    uint32_t n_states = request_resume_states(r, &resume.first_state, states);
    if (r->attempts == 1)
        r->csd_before = csd_model_used(sv);
    request_fill_prefill(sv, r, &prefill, &selection, &terms, &restore, &save);
    prefill.request_id = r->wire_id;
    prefill.sequence = r->sequence;
    uint32_t stop_tokens[SETTINGS_STOP_TOKENS_MAX + 1];
    prefill.stop_tokens = stop_tokens;
    prefill.n_stop_tokens = list_stop_tokens(stop_tokens, sv->settings, r);
    prefill.identity = r->id;
    prefill.anew = r->recovery.barred;
    prefill.keep = request_keeps(sv, r);
    prefill.whole_prefix = r->n_tokens && !r->prefix.selected;
    prefill.ahead_max = request_ahead_max(r);
    prefill.conversation = r->prefix.conversation;
    Hill__Reuse reuse;
    prefill.reuse = request_fill_reuse(r, &reuse) ? &reuse : NULL;
    if (n_states && !prefill.reuse) { /* on another's slot there is nothing of its own */
        resume.tokens = r->tokens;
        resume.n_tokens = r->n_tokens;
        resume.logits_states.data = (uint8_t *)states;
        resume.logits_states.len = n_states * sizeof *states;
        resume.mends = !r->restore_path && !r->prefix.decoded && !r->prefix.drive_decoded &&
                       !r->prefix.selected;
        resume.plain = request_resume_plain(r);
        prefill.resume = &resume;
    }
    int code = router_to_worker(sv->router, WORKER_GPU, &PROTO_MESSAGE(PREFILL, prefill, &prefill));
    FAULT_POINT(coordinator, prefill, sent);
    return code;
}

/* Send it, for the first time or again; may remove it. */
static void start(struct service *sv, struct request *r, int64_t now_ns)
{
    int given_up = request_begin_attempt(&sv->book, r, now_ns);
    if (given_up && r->done) {
        finish_done(sv, r); /* without the statistics */
        return;
    }
    if (given_up && r->recovery.damaged) {
        request_fail(sv, r, HILL_E_ENTRY,
                     "gave up after starting the request 5 times without a new token: entries in "
                     "the cold pool were damaged; check the drive");
        return;
    }
    if (given_up) {
        request_fail(
            sv, r, HILL_E_TIMEOUT,
            "gave up after starting the request 5 times without a new token: a worker died each "
            "time");
        return;
    }
    if (r->attempts > 1)
        log_info("request %" PRIu64 ": starting it again (attempt %u)", r->id, r->attempts);
    log_debug("request %" PRIu64 ": starting on sequence %u", r->id, r->sequence);
    request_log_start(r);
    trace_note_turn(sv, r->sequence, r->id);
    int code = send_prefill(sv, r);
    if (code == HILL_E_TOO_LONG)
        request_fail(sv, r, code, "the prompt is larger than a control message can be");
    else if (code) /* the GPU worker is gone; until its exit brings the next epoch this may be tried
                      again, by whatever wakes the loop */
        request_not_sent(r);
    else
        request_sent(r);
}

void requests_start(struct service *sv, int64_t now_ns)
{
    if (!supervisor_kept_tiers(sv->supervisor))
        request_book_stay_away(&sv->book, false);
    for (struct request *r = sv->book.running, *next; r; r = next) {
        next = r->next;
        if (r->state == REQUEST_INTERRUPTED)
            start(sv, r, now_ns);
    }
    /* a change of the drive waits for those that return (requests_reading) */
    for (struct request *r;
         (!supervisor_holds_back(sv->supervisor) || request_book_next_returns(&sv->book)) &&
         (r = request_book_advance(&sv->book));) {
        request_take_prefix(sv, r);
        start(sv, r, now_ns);
    }
}

/* All tokens of one with a Done are out, and the statistics may still come: it keeps what it
 * has. */
static void interrupt(struct service *sv, struct request *r, bool counts)
{
    session_save_interrupted(sv, r);
    if (!r->done)
        request_interrupt(r, counts);
    if (!r->outage_ns)
        r->outage_ns = clock_now_ns();
}

void requests_interrupt(struct service *sv, bool counts)
{
    for (struct request *r = sv->book.running, *next; r; r = next) {
        next = r->next;
        if (r->state == REQUEST_CANCELLING)
            finish(sv, r, HILL__FINISH_REASON__FINISH_CANCEL, 0, "");
        else if (r->state == REQUEST_FINISHING && !request_repeat_end(r))
            finish_done(sv, r);
        else
            interrupt(sv, r, counts);
    }
    prefix_store_clear(&sv->prefixes); /* of those that have finished just now, too */
}

/* HILL_TEST_CANCEL_MS: tests do not want to wait for ten seconds. */
static int64_t cancel_ns(void)
{
    const char *text = getenv("HILL_TEST_CANCEL_MS");
    long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value < REQUEST_CANCEL_NS / 1000000 ? CLOCK_MS(value) : REQUEST_CANCEL_NS;
}

void request_cancel(struct service *sv, struct request *r)
{
    if (r->state == REQUEST_WAITING || r->state == REQUEST_INTERRUPTED) {
        finish(sv, r, HILL__FINISH_REASON__FINISH_CANCEL, 0, "");
    } else if (r->state == REQUEST_RUNNING) {
        Hill__Cancel cancel = HILL__CANCEL__INIT;
        cancel.request_id = r->wire_id;
        router_to_worker(sv->router, WORKER_GPU, &PROTO_MESSAGE(CANCEL, cancel, &cancel));
        r->state = REQUEST_CANCELLING;
        r->deadline_ns = clock_now_ns() + cancel_ns();
    }
}

/* ---- what the GPU worker says ------------------------------------------------------------ */

const char *request_bad_token(const struct request *r, int code)
{
    if (code == HILL_E_UNSUPPORTED)
        return "this GPU worker does not score given tokens";
    if (code != HILL_E_DAMAGED)
        return "internal error: the GPU worker sent a token out of order";
    return r->prefix.decoded || r->prefix.drive_decoded ? REQUEST_DECODED_LOST
           : r->prefix.selected
               ? REQUEST_SELECTED_LOST
               : "internal error: the repeated request made other tokens than were already sent";
}

static void take_token(struct service *sv, struct request *r, const Hill__Token *token)
{
    if (r->state != REQUEST_RUNNING)
        return;
    request_taken_up(r);
    FAULT_POINT(coordinator, token, taken);
    int fresh = request_take_token(r, token->index, token->token, clock_now_ns());
    if (fresh < 0 && request_begin_anew(r)) {
        log_warn("request %" PRIu64 ": what was kept of it makes another token %u; it begins anew",
                 r->id, token->index);
        supervisor_new_epoch(sv->supervisor, "the GPU worker is out of step");
        return;
    }
    if (fresh < 0) {
        request_fail(sv, r, fresh, request_bad_token(r, fresh));
        supervisor_new_epoch(sv->supervisor, "the GPU worker is out of step");
        return;
    }
    if (!fresh)
        return;
    request_note_state(r, token->index, token->logits_state.data, token->logits_state.len);
    supervisor_progress(sv->supervisor);
    if (!token->index && r->prefix.selected)
        request_log_selected(r);
    request_log_token(r, token->index, token->logprob);
    FAULT_POINT(coordinator, token, logged);
    if (request_send_token(sv, r, token->token, token->logprob)) {
        request_fail(sv, r, HILL_E_NOMEM, "out of memory for the text of a token");
        supervisor_new_epoch(sv->supervisor, "a request was dropped");
    }
    FAULT_POINT(coordinator, token, passed);
}

static void take_progress(struct service *sv, struct request *r, const Hill__Progress *progress)
{
    int64_t now = clock_now_ns();
    bool last = progress->units_done == progress->units_total;
    r->prefix.drive_decoded |= progress->decoded_tokens > 0;
    if (!r->n_tokens)
        r->prefix.selected = progress->selected;
    if (r->state != REQUEST_RUNNING || !progress->units_total)
        return;
    request_taken_up(r);
    request_note_units(r, progress->units_done);
    double share = (double)progress->units_done / (double)progress->units_total;
    if (share > r->prefill_share)
        supervisor_progress(sv->supervisor);
    r->prefill_share = share;
    if (!r->want_progress || r->n_tokens || (!last && now - r->progress_ns < PROGRESS_EVERY_NS))
        return;
    r->progress_ns = now;
    double seconds = (double)(now - r->prefill_ns) / 1e9;
    Hill__PrefillProgress body = HILL__PREFILL_PROGRESS__INIT;
    body.request_id = r->id;
    body.tokens_total = r->n_prompt;
    body.tokens_done = share * r->n_prompt;
    body.tokens_per_second = seconds > 0 ? body.tokens_done / seconds : 0;
    body.seconds_left = share > 0 ? seconds * (1 - share) / share : 0;
    request_send(sv, r, &PROTO_MESSAGE(PREFILL_PROGRESS, prefill_progress, &body));
}

/* The scorer has no room for it beside the others: it waits until one of them has ended. False: it
 * cannot be that. */
static bool wait_for_room(struct service *sv, struct request *r)
{
    bool first = r->attempts == 1; /* later ones: the slot has been cleared */
    leave_sequence(sv, r);
    if (request_book_refused(&sv->book, r))
        return false;
    if (first)
        request_return_prefix(sv, r);
    session_save_lost(sv, r, "there is no room for it beside the others yet; ask again");
    log_info("request %" PRIu64 ": no room beside the others; it waits", r->id);
    return true;
}

void request_on_done(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    struct request *r = request_book_by_wire(&sv->book, a->message->done->request_id);
    if (!r)
        return;
    const Hill__Done *done = a->message->done;
    bool cancelled = r->state == REQUEST_CANCELLING;
    FAULT_POINT(coordinator, done, taken);
    /* with all its tokens out there is nothing to be started again for, whatever the file's error
     */
    bool failed = done->finish == HILL__FINISH_REASON__FINISH_ERROR && !done->save_failed;
    bool busy = failed && done->code == HILL_E_BUSY;
    /* one whose statistics alone are missing does not wait: it has its answer */
    if (busy && r->state == REQUEST_RUNNING && !r->first_done && wait_for_room(sv, r))
        return;
    if (failed && done->code == HILL_E_ENTRY) {
        log_warn("request %" PRIu64 ": %s; what is kept is looked at, and it goes on", r->id,
                 r->failure_text[0] ? r->failure_text : done->text);
        r->recovery.damaged = true;
        if (!cancelled)
            request_interrupt(r, true);
        supervisor_uncounted_epoch(sv->supervisor, "an entry is damaged");
        return;
    }
    bool lost = failed && worker_failure_passes(done->code);
    if (failed && !lost && request_begin_anew(r)) {
        log_warn("request %" PRIu64 ": what was kept of it is of no use (%s); it begins anew",
                 r->id, done->text);
        session_save_lost(sv, r, "it begins anew; ask again");
        return;
    }
    if (lost && !cancelled) {
        log_warn("request %" PRIu64 ": the GPU worker lost its peer (%s); starting it again", r->id,
                 done->text);
        supervisor_new_epoch(sv->supervisor, "the GPU worker lost a peer");
        return;
    }
    if (request_take_done(r, a->message, clock_now_ns()))
        return;
    a->message = NULL;
    if (cancelled)
        r->done->done->finish = HILL__FINISH_REASON__FINISH_CANCEL;
    if (request_is_over(r, clock_now_ns()))
        finish_done(sv, r);
}

void request_on_token(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    struct request *r = request_book_by_wire(&sv->book, a->message->token->request_id);
    if (r)
        take_token(sv, r, a->message->token);
}

void request_on_resumed(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Resumed *resumed = a->message->resumed;
    struct request *r = request_book_by_wire(&sv->book, resumed->request_id);
    if (!r || r->state != REQUEST_RUNNING)
        return;
    request_taken_up(r);
    if (resumed->tokens ? request_take_resumed(r, resumed->tokens, clock_now_ns())
                        : request_take_units(r, resumed->units, resumed->units_repeated)) {
        request_fail(sv, r, HILL_E_PROTOCOL, "internal error: the GPU worker goes on from nowhere");
        supervisor_new_epoch(sv->supervisor, "the GPU worker is out of step");
        return;
    }
    r->recovery.entries_repeated += resumed->entries_repeated;
    log_info("request %" PRIu64 ": goes on after %u of %u tokens, %u units of its prompt", r->id,
             resumed->tokens, r->n_tokens, resumed->units);
}

bool requests_keep_tiers(const struct service *sv)
{
    bool keeps = request_book_returns(&sv->book);
    for (const struct request *r = sv->book.running; r; r = r->next)
        keeps |= r->state == REQUEST_INTERRUPTED;
    return keeps && requests_can_go_on(sv);
}

/* With the third token of an attempt the scorer has noted its first step. */
bool requests_reading(const struct service *sv)
{
    if (request_book_returns(&sv->book))
        return true;
    for (const struct request *r = sv->book.running; r; r = r->next)
        if (r->state == REQUEST_INTERRUPTED || (r->state == REQUEST_RUNNING && r->n_attempt < 3 &&
                                                (!r->recovery.resumed || r->recovery.in_prompt)))
            return true;
    return false;
}

void request_on_progress(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    struct request *r = request_book_by_wire(&sv->book, a->message->progress->request_id);
    if (r)
        take_progress(sv, r, a->message->progress);
}

/* ---- what others say of a request --------------------------------------------------------- */

void request_on_stats(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    struct request *r = request_book_by_wire(&sv->book, a->message->sequence_stats->request_id);
    if (!r || request_take_stats(r, a->message))
        return;
    a->message = NULL;
    if (request_is_over(r, clock_now_ns()))
        finish_done(sv, r);
}

void request_on_failure(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Failure *failure = a->message->failure;
    struct request *r = request_book_by_wire(&sv->book, failure->request_id);
    if (r && !r->failure_code) {
        r->failure_code = failure->code;
        snprintf(r->failure_text, sizeof r->failure_text, "%s", failure->text);
    }
    supervisor_failed(sv->supervisor, a->worker, failure);
}

/* ---- deadlines --------------------------------------------------------------------------- */

/* A client that does not ask any more is stopped or slow, or dead. What is sent tells them apart:
 * no text at all, which every client takes at any time. To a dead one it cannot be sent: clients
 * come over ipc alone, so the kernel has closed the connection. A live one's queue is never full
 * (router.c); where sending fails all the same, tokens could not be sent either. */
static void look_for_client(struct service *sv, struct request *r, int64_t now_ns)
{
    if (!r->client_asks || now_ns - r->client_seen_ns <= REQUEST_SILENCE_NS)
        return;
    r->client_seen_ns = now_ns;
    request_send_text(sv, r, "", 0, TEXT_NO_TOKEN, 0);
}

static void drop_gone_clients(struct service *sv, struct request *list, int64_t now_ns)
{
    for (struct request *r = list, *next; r; r = next) {
        next = r->next;
        look_for_client(sv, r, now_ns);
        if (r->client_gone)
            request_cancel(sv, r);
    }
}

static void drop_parked(struct service *sv, int64_t now_ns)
{
    if (now_ns - sv->started_ns > RETURN_NS)
        request_book_stay_away(&sv->book, true);
    for (struct request *r = sv->book.parked, *next; r; r = next) {
        next = r->next;
        if (now_ns < r->deadline_ns)
            continue;
        if (r->state == REQUEST_AWAITED)
            log_warn("request %" PRIu64 ": its client has not come back within %.3g s; it is "
                     "dropped",
                     r->id, sv->settings->options.recovery_ms / 1e3);
        request_drop(sv, r);
    }
}

static int64_t outage_ends_ns(const struct service *sv, const struct request *r)
{
    return r->state == REQUEST_INTERRUPTED && r->outage_ns
               ? r->outage_ns + CLOCK_MS(sv->settings->options.recovery_ms)
               : CLOCK_NEVER;
}

static void fail_overdue(struct service *sv, struct request *r)
{
    char text[128];
    snprintf(text, sizeof text,
             "the worker that was lost did not come back within the %.3g s of --recovery-timeout",
             sv->settings->options.recovery_ms / 1e3);
    request_fail(sv, r, HILL_E_TIMEOUT, text);
}

void requests_tick(struct service *sv, int64_t now_ns)
{
    request_logs_tell_taken(sv);
    request_logs_flush(sv, now_ns);
    drop_parked(sv, now_ns);
    drop_gone_clients(sv, sv->book.running, now_ns);
    drop_gone_clients(sv, sv->book.first, now_ns);
    for (struct request *r = sv->book.running, *next; r; r = next) {
        next = r->next;
        if (r->outage_ns && supervisor_awaits_new_drive(sv->supervisor))
            r->outage_ns = now_ns; /* nothing that was there is lost */
        if (request_is_over(r, now_ns)) {
            finish_done(sv, r);
        } else if (now_ns >= outage_ends_ns(sv, r)) {
            if (r->done)
                finish_done(sv, r); /* without the statistics */
            else
                fail_overdue(sv, r);
        } else if (r->state == REQUEST_CANCELLING && now_ns >= r->deadline_ns) {
            log_warn("request %" PRIu64 ": the GPU worker did not cancel it within %.3g s", r->id,
                     (double)cancel_ns() / 1e9);
            supervisor_new_epoch(sv->supervisor,
                                 "a cancelled request goes on"); /* ends it, and changes the list */
            return;
        }
    }
}

int64_t requests_next_ns(const struct service *sv)
{
    int64_t next = request_logs_flush_ns(sv);
    for (const struct request *r = sv->book.parked; r; r = r->next) {
        int64_t due = r->returns ? sv->started_ns + RETURN_NS + 1 : r->deadline_ns;
        next = due < next ? due : next;
    }
    if (!sv->book.running && !sv->book.first)
        return next;
    int64_t look = clock_now_ns() + CLOCK_MS(1000); /* for clients that are gone */
    next = look < next ? look : next;
    for (const struct request *r = sv->book.running; r; r = r->next) {
        bool waits = r->state == REQUEST_CANCELLING || r->state == REQUEST_FINISHING;
        int64_t outage_ns = outage_ends_ns(sv, r);
        if (waits && r->deadline_ns < next)
            next = r->deadline_ns;
        next = outage_ns < next ? outage_ns : next;
    }
    return next;
}
