/*
 * coordinator/service_log.c - the requests' token logs (token_log.h): created when a request is
 * accepted, a record for each token before its client gets it, flushed as --log-fsync says.
 *
 * Only a request whose client has given it a key has one: nobody could ask for another. They lie in
 * the state folder, not in the run folder: that one may be in memory and be cleared at a boot. Who
 * calls it: service_intake.c, service_requests.c, service_follow.c. Concurrency: one thread.
 * Failure: a log that cannot be written is one line; the request goes on without.
 */
#include "coordinator/service.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/whole_io.h"
#include "session/session.h"

void request_logs_folder(const struct service *sv, char out[HILL_PATH_BYTES + 16])
{
    snprintf(out, HILL_PATH_BYTES + 16, "%s/requests", sv->settings->state_dir);
}

void request_log_name(char out[REQUEST_LOG_NAME_BYTES], uint64_t run_id, uint64_t id)
{
    snprintf(out, REQUEST_LOG_NAME_BYTES, "%016" PRIx64 "-%016" PRIx64 ".log", run_id, id);
}

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t request_accepted_ns(int64_t accepted_us)
{
    int64_t ago_us = now_us() - accepted_us;
    return clock_now_ns() - (ago_us > 0 ? ago_us * 1000 : 0);
}

void request_fill_prefill(struct service *sv, struct request *r, Hill__Prefill *out,
                          Hill__Selection *selection, struct session_terms *terms,
                          Hill__SessionFile *restore, Hill__SessionFile *save)
{
    selection_to_wire(selection, &r->selection);
    out->tokens = r->prompt;
    out->n_tokens = r->n_prompt;
    out->predict = r->predict;
    out->forced = r->prompt + r->n_prompt;
    out->n_forced = r->n_forced;
    out->sampling = &r->sampling;
    out->selection = selection;
    if (r->restore_path) {
        session_to_wire(sv, r, r->restore_path, terms, restore);
        restore->checksum = r->restore_checksum;
        restore->n_prompt = r->restore_n_prompt;
        restore->first_append = r->restore_first_append;
        out->restore = restore;
        out->from_prompt = r->from_prompt;
        out->question = r->n_question;
    }
    if (r->save_path) {
        session_to_wire(sv, r, r->save_path, terms, save);
        out->save = save;
    }
}

static int create(struct service *sv, struct request *r, const Hill__Message *message,
                  struct hill_why *why)
{
    char folder[HILL_PATH_BYTES + 16], name[REQUEST_LOG_NAME_BYTES],
        path[HILL_PATH_BYTES + 16 + REQUEST_LOG_NAME_BYTES];
    uint64_t run_id = sv->supervisor->folder->run_id;
    request_logs_folder(sv, folder);
    request_log_name(name, run_id, r->id);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int flush_ms = sv->settings->options.log_flush_ms, code = 0;
    bool made = mkdir(folder, 0700) == 0;
    if (!made && errno != EEXIST)
        code = hill_from_errno(errno);
    else if (made && flush_ms != TOKEN_LOG_FLUSH_NEVER)
        code = whole_flush_folder(folder); /* its own name, too */
    int err = errno;
    if (code && made)
        rmdir(folder); /* the next request tries again */
    return code ? hill_fail(why, code, "making or flushing folder %.300s failed: %s", folder,
                            strerror(err))
                : token_log_create(&r->log, path, run_id, flush_ms, message, why);
}

void request_log_begin(struct service *sv, struct request *r)
{
    struct hill_why why;
    Hill__RequestOrder order = HILL__REQUEST_ORDER__INIT;
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__SessionFile restore, save;
    struct session_terms terms;
    Hill__Selection selection;
    if (!r->key)
        return;
    request_fill_prefill(sv, r, &prefill, &selection, &terms, &restore, &save);
    session_fill_terms(sv, &r->selection, &terms);
    order.request_id = r->id;
    order.key = r->key;
    order.prefill = &prefill;
    order.terms = (ProtobufCBinaryData){sizeof terms, (uint8_t *)&terms};
    order.ignore_eos = r->ignore_eos;
    order.want_progress = r->want_progress;
    order.want_passages = r->want_passages;
    order.answer_end = r->answer_end;
    order.no_prefix_cache = r->prefix.off;
    order.conversation = r->prefix.conversation;
    order.after = r->prefix.after;
    order.accepted_us = now_us();
    if (create(sv, r, &PROTO_MESSAGE(REQUEST_ORDER, request_order, &order), &why))
        log_warn("request %" PRIu64 ": %s; going on without a token log: should the coordinator "
                 "die, the request is lost",
                 r->id, why.text);
}

static void tell(const struct request *r, const struct hill_why *why)
{
    log_warn("request %" PRIu64 ": %s; going on: its client alone has the tokens from here on",
             r->id, why->text);
}

void request_log_token(struct request *r, uint32_t index, double logprob)
{
    int64_t now = clock_now_ns();
    struct token_log_token token = {.index = index,
                                    .token = r->tokens[index],
                                    .logprob = logprob,
                                    .since_ns = now - r->accepted_ns};
    const struct hash_state *state = request_state_after(r, index);
    if (state)
        token.logits = *state;
    struct hill_why why;
    if (r->logprobs)
        r->logprobs[index] = logprob;
    if (r->log && token_log_append(r->log, &token, now, &why))
        tell(r, &why);
}

void request_log_decoded(struct request *r)
{
    struct hill_why why;
    if (r->log &&
        token_log_note_decoded(r->log, r->prefix.hit.n_tokens - r->prefix.hit.n_plain, &why))
        tell(r, &why);
}

void request_log_selected(struct request *r)
{
    struct hill_why why;
    if (r->log && token_log_note_selected(r->log, &why))
        tell(r, &why);
}

void request_log_start(struct request *r)
{
    struct hill_why why;
    if (r->log && token_log_start(r->log, r->sequence, r->wire_id, &why))
        tell(r, &why);
}

void request_logs_tell_taken(struct service *sv)
{
    uint64_t ids[REQUEST_PARALLEL_MAX];
    uint32_t tokens[REQUEST_PARALLEL_MAX];
    struct request *told[REQUEST_PARALLEL_MAX];
    Hill__Taken taken = HILL__TAKEN__INIT;
    for (struct request *r = sv->book.running; r; r = r->next) {
        if (!r->wire_id || r->n_taken == r->n_tokens)
            continue;
        told[taken.n_request_ids] = r;
        ids[taken.n_request_ids] = r->wire_id;
        tokens[taken.n_request_ids++] = r->n_tokens;
    }
    if (!taken.n_request_ids)
        return;
    taken.request_ids = ids;
    taken.tokens = tokens;
    taken.n_tokens = taken.n_request_ids;
    if (router_to_worker(sv->router, WORKER_GPU, &PROTO_MESSAGE(TAKEN, taken, &taken)))
        return; /* said again; a worker that is gone begins anew */
    for (size_t i = 0; i < taken.n_request_ids; i++)
        told[i]->n_taken = tokens[i];
}

void request_logs_flush(struct service *sv, int64_t now_ns)
{
    /* what waits for room again has tokens, too */
    struct request *const lists[] = {sv->book.running, sv->book.first};
    struct hill_why why;
    for (int i = 0; i < 2; i++)
        for (struct request *r = lists[i]; r; r = r->next)
            if (r->log && token_log_flush(r->log, now_ns, &why))
                tell(r, &why);
}

int64_t request_logs_flush_ns(const struct service *sv)
{
    const struct request *const lists[] = {sv->book.running, sv->book.first};
    int64_t next = CLOCK_NEVER;
    for (int i = 0; i < 2; i++)
        for (const struct request *r = lists[i]; r; r = r->next)
            if (r->log && token_log_flush_ns(r->log) < next)
                next = token_log_flush_ns(r->log);
    return next;
}
