/*
 * coordinator/service_follow.c - a coordinator was lost and this one goes on: the requests in the
 * token logs of this run folder, and the clients that come back for them.
 *
 * A request goes on when its client has come: on the slot that it had, where its entries are (the
 * first epoch keeps the tiers for it), else it begins again: prompt and tokens are computed anew.
 * Every token that is made again is compared with that of its log or its client [I21]. Who calls
 * it: pipeline.c (at the start), service.c, service_intake.c, service_restore.c. Failure: a log
 * that is damaged before its first token is removed with one line, its client told that the request
 * is lost; one that is damaged later ends there, and the client's own tokens fill the rest.
 * Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "session/session.h"
#include "session/session_writer.h"

#define FORGOTTEN_S (7 * 24 * 3600)

/* ---- what a log says becomes a request --------------------------------------------------- */

static bool in_vocabulary(const struct service *sv, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] >= tokenizer_vocab_size(sv->settings->tokenizer))
            return false;
    return true;
}

/* May this pipeline go on with it? Else why not, for its client. */
static int check(struct service *sv, const struct token_log_contents *c, struct hill_why *why)
{
    const Hill__RequestOrder *order = c->order->request_order;
    const Hill__Prefill *p = order->prefill;
    const struct kv_selection_settings selection = selection_from_wire(p->selection);
    struct session_header then = {.step = 1};
    struct session_terms here;
    struct hill_why detail = {{0}};
    memcpy(&then.terms, order->terms.data, sizeof then.terms);
    session_fill_terms(sv, &selection, &here);
    int code = session_compare(&then, &here, "of the token log", &detail);
    if (!code)
        code = settings_admit_again(
            sv->settings, &selection, p->restore ? 1 : (uint32_t)p->n_tokens,
            p->restore ? (uint32_t)p->n_tokens + p->predict - 1 : p->predict, &detail);
    if (code)
        return hill_fail(why, code, "this coordinator cannot go on with the request: %.400s",
                         detail.text);
    bool known = in_vocabulary(sv, p->tokens, p->n_tokens) &&
                 in_vocabulary(sv, p->forced, p->n_forced) &&
                 (order->answer_end == TOKEN_NONE || in_vocabulary(sv, &order->answer_end, 1));
    for (uint32_t i = 0; i < c->n_tokens && known; i++)
        known = in_vocabulary(sv, &c->tokens[i].token, 1);
    if (!known)
        return hill_fail(why, HILL_E_DAMAGED, "its token log has tokens outside the vocabulary");
    if (c->fruitless >= REQUEST_ATTEMPTS_MAX)
        return hill_fail(why, HILL_E_TIMEOUT,
                         "gave up: the coordinator died %u times without a token in between",
                         c->fruitless);
    return 0;
}

static bool copy_paths(struct request *r, const Hill__Prefill *p)
{
    r->restore_path = p->restore ? strdup(p->restore->path) : NULL;
    r->restore_checksum = p->restore ? p->restore->checksum : 0;
    r->restore_n_prompt = p->restore ? p->restore->n_prompt : 0;
    r->restore_first_append = p->restore ? p->restore->first_append : 0;
    r->save_path = p->save ? strdup(p->save->path) : NULL;
    return (r->restore_path || !p->restore) && (r->save_path || !p->save);
}

static void copy_tokens(struct request *r, const struct token_log_contents *c)
{
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        r->tokens[i] = c->tokens[i].token;
        if (r->logprobs)
            r->logprobs[i] = c->tokens[i].logprob;
        if (c->tokens[i].logits.bytes)
            request_note_state(r, i, &c->tokens[i].logits, sizeof c->tokens[i].logits);
    }
    r->n_tokens = c->n_tokens;
    if (r->n_tokens) /* all units of its prompt have been computed once */
        r->recovery.units_lost = UINT64_MAX;
    if (r->n_tokens)
        r->first_token_ns = r->accepted_ns + c->tokens[0].since_ns;
}

/* NULL: out of memory. */
static struct request *rebuild(struct service *sv, const struct token_log_contents *c)
{
    const Hill__RequestOrder *order = c->order->request_order;
    const Hill__Prefill *p = order->prefill;
    uint32_t *prompt = malloc((p->n_tokens + p->n_forced) * sizeof *prompt);
    if (!prompt)
        return NULL;
    memcpy(prompt, p->tokens, p->n_tokens * sizeof *prompt);
    if (p->n_forced)
        memcpy(prompt + p->n_tokens, p->forced, p->n_forced * sizeof *prompt);
    struct request *r = request_create(&sv->book, prompt, (uint32_t)p->n_tokens, p->predict);
    if (!r)
        return NULL;
    request_keep_id(&sv->book, r, order->request_id);
    r->key = order->key;
    r->from_prompt = p->from_prompt;
    r->n_question = p->question;
    r->ignore_eos = order->ignore_eos;
    r->want_progress = order->want_progress;
    r->want_passages = order->want_passages;
    r->answer_end = order->answer_end;
    r->prefix.off = order->no_prefix_cache;
    r->prefix.conversation = order->conversation;
    r->prefix.after = order->after;
    r->prefix.decoded = c->decoded;
    /* only a coordinator before this one knew */
    r->prefix.drive_decoded = order->conversation && sv->settings->prefix_dir[0];
    r->prefix.selected = c->selected;
    r->selection = selection_from_wire(p->selection);
    request_set_sampling(r, p->sampling);
    r->accepted_ns = request_accepted_ns(order->accepted_us);
    r->restarts = c->restarts + 1;
    if (request_set_forced(r, (uint32_t)p->n_forced) || request_keep_logprobs(r) ||
        !copy_paths(r, p)) {
        request_destroy(r);
        return NULL;
    }
    copy_tokens(r, c);
    if (r->save_path)
        session_writer_clear(r->save_path); /* what the lost worker left of it */
    return r;
}

static void take_log(struct service *sv, const char *path)
{
    struct token_log *log;
    struct token_log_contents contents;
    struct hill_why why = {{0}};
    int64_t deadline_ns = clock_deadline_ms(sv->settings->options.recovery_ms);
    int code = token_log_open(&log, path, sv->supervisor->folder->run_id,
                              sv->settings->options.log_flush_ms, &contents, &why);
    if (code) {
        log_warn("%s; its request is lost", why.text);
        if (code == HILL_E_DAMAGED)
            unlink(path);
        return;
    }
    struct request *r = rebuild(sv, &contents);
    if (!r) {
        log_warn("out of memory for the request of token log %s; it stays", path);
        token_log_close(log);
    } else {
        r->log = log;
        r->failure_code = check(sv, &contents, &why);
        snprintf(r->failure_text, sizeof r->failure_text, "%s", why.text);
        r->returns = contents.started && contents.sequence < sv->book.parallel &&
                     !r->failure_code && requests_can_go_on(sv);
        r->sequence = contents.sequence;
        request_book_claim(&sv->book, r, contents.attempt);
        request_book_park(&sv->book, r, REQUEST_AWAITED, deadline_ns);
        if (contents.damaged)
            log_warn("token log %s is damaged behind token %u: %" PRIu64 " bytes are dropped", path,
                     r->n_tokens, contents.torn_bytes);
        log_info("request %" PRIu64 ": found with %u of its tokens; waiting for its client", r->id,
                 r->n_tokens);
    }
    token_log_contents_finish(&contents);
}

/* Of a run folder whose pipeline has not come back: nobody waits for so long, and it has a prompt
 * in plain text. */
static void forget_old(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode) &&
        time(NULL) - info.st_mtime > FORGOTTEN_S && unlink(path) == 0)
        log_info("token log %s is a week old: removed", path);
}

void requests_take_over(struct service *sv)
{
    char folder[HILL_PATH_BYTES + 16], name[REQUEST_LOG_NAME_BYTES],
        path[HILL_PATH_BYTES + 16 + 256 + 1];
    request_logs_folder(sv, folder);
    DIR *listing = opendir(folder);
    if (!listing)
        return; /* there was none yet */
    request_log_name(name, sv->supervisor->folder->run_id, 0);
    size_t own = strcspn(name, "-") + 1; /* other run folders may share the state folder */
    for (struct dirent *entry; (entry = readdir(listing));)
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            if (strncmp(entry->d_name, name, own) == 0) {
                /* also where its log cannot be read and stays: a new request would find it there */
                request_book_skip_id(&sv->book, strtoull(entry->d_name + own, NULL, 16));
                take_log(sv, path);
            } else {
                forget_old(path);
            }
        }
    closedir(listing);
}

/* ---- a client comes back ----------------------------------------------------------------- */

/* Tokens that the client has and the log had not. */
static int take_tokens(struct request *r, const uint32_t *tokens, size_t n)
{
    uint32_t known = r->n_tokens < n ? r->n_tokens : (uint32_t)n;
    if (n > r->predict || (known && memcmp(tokens, r->tokens, known * sizeof *tokens) != 0))
        return HILL_E_DAMAGED;
    for (uint32_t i = known; i < n; i++) {
        r->tokens[i] = tokens[i];
        r->n_tokens = i + 1;
        request_log_token(r, i, 0);
    }
    return 0;
}

static void follow(struct service *sv, struct request *r, const struct proto_address *from,
                   const Hill__Follow *order)
{
    r->client = *from;
    r->client_gone = false;
    r->client_seen_ns = clock_now_ns();
    request_send_accepted(sv, r, order->serial);
    if (r->state == REQUEST_AWAITED && r->failure_code) {
        request_begin_text(r, sv->settings->tokenizer);
        request_fail(sv, r, r->failure_code, r->failure_text);
        return;
    }
    const char *why = "its client has other tokens than its token log";
    int code = in_vocabulary(sv, order->tokens, order->n_tokens)
                   ? take_tokens(r, order->tokens, order->n_tokens)
                   : HILL_E_PROTOCOL;
    if (!code && r->state == REQUEST_AWAITED && r->prefix.decoded && r->n_tokens && !r->returns) {
        code = HILL_E_DAMAGED;
        why = REQUEST_DECODED_LOST;
    }
    if (!code)
        code = request_send_again(sv, r, (uint32_t)order->n_tokens, order->text_bytes);
    log_info("request %" PRIu64 ": its client is back with %zu tokens of %u", r->id,
             order->n_tokens, r->n_tokens);
    if (!code && r->state == REQUEST_AWAITED) {
        request_book_unpark(&sv->book, r);
    } else if (code) {
        bool ran = r->state == REQUEST_RUNNING;
        request_fail(sv, r, code, code == HILL_E_NOMEM ? "out of memory for the text" : why);
        if (ran)
            supervisor_new_epoch(sv->supervisor, "a request was dropped");
    }
}

void follow_take(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Follow *order = a->message->follow;
    struct request *r = request_book_by_key(&sv->book, order->key);
    if (r) {
        follow(sv, r, &a->from, order);
        return;
    }
    Hill__Accepted none = HILL__ACCEPTED__INIT;
    none.serial = order->serial;
    router_to_client(sv->router, &a->from, &PROTO_MESSAGE(ACCEPTED, accepted, &none));
}

bool follow_instead(struct service *sv, const struct proto_address *from, uint64_t key)
{
    Hill__Follow order = HILL__FOLLOW__INIT;
    struct request *r = request_book_by_key(&sv->book, key);
    if (r)
        follow(sv, r, from, &order);
    return r != NULL;
}

void delivered_take(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    for (struct request *r = sv->book.parked; r; r = r->next)
        if (r->state == REQUEST_DELIVERED && r->id == a->message->delivered->request_id &&
            request_same_client(r, &a->from)) {
            request_drop(sv, r);
            return;
        }
}
