/*
 * coordinator/serve_clients.c - messages of clients (hillctl): generate, cancel, status, attach,
 * detach, shutdown.
 *
 * Who calls it: the loop in pipeline.c. Failure: what cannot be taken is answered by a Reply with a
 * code and one line and changes nothing; a malformed message is counted, too.
 */
#include "coordinator/pipeline_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"

int client_reply(struct pipeline *p, const struct proto_address *to, int code, const char *text)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Reply reply = HILL__REPLY__INIT;
    reply.code = code;
    reply.text = (char *)text;
    message.body_case = HILL__MESSAGE__BODY_REPLY;
    message.reply = &reply;
    return to->length ? proto_send(p->control_socket, to, &message) : HILL_E_PEER_GONE;
}

/* ---- generate ---------------------------------------------------------------------------- */

static uint64_t random_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint32_t)clock_now_ns();
    return seed ? seed : 1;
}

_Static_assert((int)PROMPT_SPECIAL == HILL__PROMPT_KIND__PROMPT_SPECIAL &&
                   (int)PROMPT_LITERAL == HILL__PROMPT_KIND__PROMPT_LITERAL,
               "kinds of pieces go over the wire as they are");

/* Token ids as they were sent: none outside the vocabulary. */
static int copy_token_ids(const struct tokenizer *tokenizer, const Hill__Generate *generate,
                          uint32_t **tokens, uint64_t *count, struct hill_why *why)
{
    size_t n = generate->n_token_ids;
    for (size_t i = 0; i < n; i++)
        if (generate->token_ids[i] >= tokenizer_vocab_size(tokenizer))
            return hill_fail(why, HILL_E_INVALID, "token id %u is outside the vocabulary of %u",
                             generate->token_ids[i], tokenizer_vocab_size(tokenizer));
    *tokens = malloc(n * sizeof **tokens);
    if (!*tokens)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %zu tokens", n);
    memcpy(*tokens, generate->token_ids, n * sizeof **tokens);
    *count = n;
    return 0;
}

/* The tokens of the request's prompt, whichever way it was sent. */
static int encode_prompt(const struct tokenizer *tokenizer, const Hill__Generate *generate,
                         uint32_t **tokens, uint64_t *count, struct hill_why *why)
{
    if (generate->n_token_ids)
        return copy_token_ids(tokenizer, generate, tokens, count, why);
    size_t n = generate->n_pieces;
    struct prompt_piece whole = {(const char *)generate->prompt.data, generate->prompt.len,
                                 PROMPT_TEXT};
    struct prompt_piece *pieces = n ? malloc(n * sizeof *pieces) : &whole;
    if (!pieces)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %zu pieces", n);
    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct prompt_piece){(const char *)generate->pieces[i]->text.data,
                                          generate->pieces[i]->text.len,
                                          (enum prompt_kind)generate->pieces[i]->kind};
    int code = tokenizer_encode_pieces(tokenizer, pieces, n ? n : 1, true, tokens, count);
    if (n)
        free(pieces);
    return code ? hill_fail(why, code, "cannot tokenise the prompt: %s", hill_strerror(code)) : 0;
}

/* Tokenise and admit; *request is new and in no queue. */
static int make_request(struct pipeline *p, const Hill__Generate *generate, struct request **out,
                        struct hill_why *why)
{
    const struct settings *s = p->settings;
    uint32_t *tokens = NULL;
    uint64_t count = 0;
    struct kv_selection_settings selection = s->epoch.plan.selection;
    if (generate->selection)
        selection = selection_from_wire(generate->selection);
    int code = encode_prompt(s->tokenizer, generate, &tokens, &count, why);
    if (code)
        return code;
    uint32_t n_prompt = count < UINT32_MAX ? (uint32_t)count : UINT32_MAX,
             ctx = s->epoch.plan.ctx_tokens;
    uint32_t predict = generate->predict;
    if (predict == HILL_PREDICT_UNTIL_CONTEXT)
        predict = n_prompt < ctx ? ctx - n_prompt : 1;
    if (generate->score_from >= n_prompt && n_prompt) {
        free(tokens);
        return hill_fail(why, HILL_E_INVALID,
                         "nothing to score: the prompt has %u tokens, scoring begins at %u",
                         n_prompt, generate->score_from);
    }
    uint32_t n_forced = generate->score_from ? n_prompt - generate->score_from : 0;
    if (n_forced) {
        n_prompt = generate->score_from;
        predict = n_forced;
    }
    code = n_prompt ? settings_admit(s, &selection, n_prompt, predict, why)
                    : hill_fail(why, HILL_E_INVALID, "the prompt is empty");
    if (code) {
        free(tokens);
        return code;
    }
    struct request *r = request_create(&p->book, tokens, n_prompt, predict);
    if (!r)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request of %u tokens", n_prompt);
    r->selection = selection;
    r->n_forced = n_forced;
    r->ignore_eos = generate->ignore_eos || n_forced;
    r->want_progress = generate->want_progress;
    r->sampling = *generate->sampling; /* numbers alone */
    r->sampling.base.n_unknown_fields = 0;
    r->sampling.base.unknown_fields = NULL;
    if (!r->sampling.seed)
        r->sampling.seed = random_seed();
    detokenizer_init(&r->text, s->tokenizer, true);
    *out = r;
    return 0;
}

int request_room(struct pipeline *p, struct hill_why *why)
{
    if (p->ending)
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline is ending");
    return p->book.n_waiting >= REQUEST_WAITING_MAX
               ? hill_fail(why, HILL_E_BUSY, "%u requests wait already; try again later",
                           REQUEST_WAITING_MAX)
               : 0;
}

int request_accept(struct pipeline *p, const struct proto_address *from, struct request *r,
                   const char *save_path, struct hill_why *why)
{
    if (save_path[0] && !(r->save_path = strdup(save_path))) {
        request_destroy(r);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a request");
    }
    r->client = *from;
    r->accepted_ns = r->client_heard_ns = clock_now_ns();
    request_book_add(&p->book, r); /* there is room: request_room has looked */
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Accepted accepted = HILL__ACCEPTED__INIT;
    accepted.request_id = r->id;
    accepted.prompt_tokens = r->n_prompt;
    message.body_case = HILL__MESSAGE__BODY_ACCEPTED;
    message.accepted = &accepted;
    request_send(p, r, &message);
    log_info("request %" PRIu64 ": %u %s tokens, at most %u to predict", r->id, r->n_prompt,
             r->restore_path ? "restored" : "prompt", r->predict);
    return 0;
}

static void take_generate(struct pipeline *p, const struct proto_address *from,
                          const Hill__Generate *generate)
{
    struct hill_why why = {{0}};
    struct request *r = NULL;
    int code = request_room(p, &why);
    if (!code)
        code = make_request(p, generate, &r, &why);
    if (!code)
        code = request_accept(p, from, r, generate->save_path, &why);
    if (code)
        client_reply(p, from, code, why.text);
}

static void take_cancel(struct pipeline *p, const struct proto_address *from,
                        const Hill__Cancel *cancel)
{
    struct request *r = request_book_find(&p->book, from, cancel->request_id);
    if (r)
        request_cancel(p, r);
    else
        client_reply(p, from, HILL_E_INVALID, "there is no such request of this client");
}

/* ---- status ------------------------------------------------------------------------------ */

static void fill_worker(Hill__WorkerStatus *out, const struct worker_row *row, int64_t now_ns)
{
    hill__worker_status__init(out);
    out->role = row->role;
    out->state = (char *)worker_state_name(row->state);
    out->pid = row->pid;
    out->restarts = row->restarts;
    out->device = (char *)row->device;
    out->last_heartbeat_ms = worker_running(row) ? (double)(now_ns - row->heartbeat_ns) / 1e6 : 0;
    out->cpu_ms = row->cpu_ms;
    out->rss_bytes = row->rss_bytes;
    out->work_done = row->work_done;
}

static void fill_own(Hill__WorkerStatus *out)
{
    hill__worker_status__init(out);
    out->role = HILL__ROLE__ROLE_COORDINATOR;
    out->state = (char *)worker_state_name(WORKER_READY);
    out->pid = (int32_t)getpid();
    out->restarts = coordinator_restarts();
    process_usage(&out->cpu_ms, &out->rss_bytes);
}

static void fill_running(Hill__RunningRequest *out, const struct request *r, int64_t now_ns)
{
    hill__running_request__init(out);
    out->request_id = r->id;
    out->prompt_tokens = r->n_prompt;
    out->predict = r->predict;
    out->predicted_tokens = r->n_attempt;
    out->attempts = r->attempts;
    out->sequence = r->sequence;
    if (!r->prefill_ns)
        return; /* not sent yet */
    out->elapsed_ms = (double)(now_ns - r->prefill_ns) / 1e6;
    out->prefill_ms = out->elapsed_ms;
    out->prefill_tokens_done = r->prefill_share * r->n_prompt;
    if (!r->n_attempt)
        return;
    double decode_s = (double)(r->attempt_last_ns - r->attempt_first_ns) / 1e9;
    out->prefill_ms = (double)(r->attempt_first_ns - r->prefill_ns) / 1e6;
    out->prefill_tokens_done = r->n_prompt;
    out->predicted_per_second = decode_s > 0 ? (r->n_attempt - 1) / decode_s : 0;
}

/* What the scorer said of a request's current attempt; NULL: nothing yet. */
static const Hill__SequenceStats *stats_of(const struct pipeline *p, const struct request *r)
{
    const Hill__Heartbeat *beat = p->live->heartbeat;
    if (!r->wire_id)
        return NULL;
    if (beat->live->request_id == r->wire_id)
        return beat->live;
    for (size_t i = 0; i < beat->n_live_others; i++)
        if (beat->live_others[i]->request_id == r->wire_id)
            return beat->live_others[i];
    return NULL;
}

/* All that runs, under the ids that clients know. */
struct running_status {
    Hill__RunningRequest requests[REQUEST_PARALLEL_MAX];
    Hill__SequenceStats stats[REQUEST_PARALLEL_MAX], last;
    Hill__RunningRequest *request_list[REQUEST_PARALLEL_MAX];
    Hill__SequenceStats *stats_list[REQUEST_PARALLEL_MAX];
    size_t n_requests, n_stats;
};

static void collect_running(struct running_status *out, const struct pipeline *p, int64_t now_ns)
{
    out->n_requests = out->n_stats = 0;
    for (const struct request *r = p->book.running; r; r = r->next) {
        size_t i = out->n_requests++, j = out->n_stats;
        fill_running(&out->requests[i], r, now_ns);
        out->request_list[i] = &out->requests[i];
        const Hill__SequenceStats *stats = p->live ? stats_of(p, r) : NULL;
        if (!stats)
            continue;
        out->stats[j] = *stats; /* its tiers stay the heartbeat's */
        out->stats[j].request_id = r->id;
        out->stats_list[j] = &out->stats[j];
        out->n_stats++;
    }
}

static void fill_status_running(Hill__StatusReply *reply, const struct pipeline *p,
                                struct running_status *all)
{
    reply->requests_running = p->book.n_running;
    reply->requests = all->request_list;
    reply->n_requests = all->n_requests;
    reply->sequences = all->stats_list;
    reply->n_sequences = all->n_stats;
    reply->running = all->n_requests ? all->request_list[0] : NULL;
    if (all->n_stats) {
        reply->live = all->stats_list[0];
    } else if (p->live) { /* the last word on a sequence that is over */
        all->last = *p->live->heartbeat->live;
        all->last.request_id = 0;
        reply->live = &all->last;
    }
}

static void take_status(struct pipeline *p, const struct proto_address *from)
{
    const struct settings *s = p->settings;
    int64_t now = clock_now_ns();
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__StatusReply reply = HILL__STATUS_REPLY__INIT;
    Hill__Selection selection;
    Hill__WorkerStatus workers[WORKER_COUNT], *list[WORKER_COUNT], own;
    struct running_status all;
    Hill__CsdModel model;
    Hill__CsdModelCounters counters;
    struct profile_wire profile;
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        fill_worker(&workers[w], &p->workers.rows[w], now);
        list[w] = &workers[w];
    }
    selection_to_wire(&selection, &s->epoch.plan.selection);
    reply.epoch = p->epoch;
    reply.model = (char *)s->model_path;
    reply.ready = !p->ending && p->epoch_exists && worker_table_ready(&p->workers);
    reply.csd_attached = s->epoch.csd_attached;
    reply.csd_url = (char *)(s->epoch.csd_attached ? s->csd_url : "");
    reply.workers = list;
    reply.n_workers = WORKER_COUNT;
    reply.requests_waiting = p->book.n_waiting;
    reply.requests_done = p->book.n_done;
    reply.hot_cap_bytes = s->epoch.hot_cap_bytes;
    reply.gpu_kv_cap_bytes = s->epoch.gpu_kv_cap_bytes;
    reply.cold_cap_bytes = s->epoch.cold_cap_bytes;
    reply.malformed_messages = p->malformed;
    reply.selection = &selection;
    reply.beta = profile_beta_effective(p);
    reply.beta_auto = s->epoch.beta_auto;
    reply.profile = profile_show(p, &profile);
    reply.uptime_seconds = (double)(now - p->started_ns) / 1e9;
    reply.ctx_tokens = s->epoch.plan.ctx_tokens;
    fill_own(&own);
    reply.coordinator = &own;
    reply.parallel = s->epoch.plan.n_sequences;
    collect_running(&all, p, now);
    fill_status_running(&reply, p, &all);
    csd_model_show(p, &(struct csd_model_use){0}, &model, &counters);
    reply.csd_model = &model;
    reply.csd_model_counters = &counters;
    message.body_case = HILL__MESSAGE__BODY_STATUS_REPLY;
    message.status_reply = &reply;
    proto_send(p->control_socket, from, &message);
    request_book_heard(&p->book, from, true, now);
}

/* ---- the drive, the end ------------------------------------------------------------------ */

/* May the drive change now? Answers the client when not. */
static bool may_change(struct pipeline *p, const struct proto_address *from)
{
    const char *text = NULL;
    if (p->ending)
        text = "the pipeline is ending";
    else if (p->book.running || p->book.first)
        text = "a request runs or waits: this version attaches and detaches between requests only";
    else if (p->change != CHANGE_NONE)
        text = "another attach or detach is under way";
    else if (!p->epoch_exists || !worker_table_ready(&p->workers))
        text = "the pipeline is not ready yet";
    if (text)
        client_reply(p, from, HILL_E_BUSY, text);
    return !text;
}

static void take_attach(struct pipeline *p, const struct proto_address *from,
                        const Hill__Attach *attach)
{
    struct hill_why why = {{0}};
    if (!may_change(p, from))
        return;
    if (p->settings->epoch.csd_attached) {
        client_reply(p, from, HILL_E_INVALID, "a CSD is attached already; detach it first");
        return;
    }
    int code = settings_attach(p->settings, attach->url, &why);
    if (code) {
        client_reply(p, from, code, why.text);
        return;
    }
    log_info("attaching %s, --cold-mb %.3f", p->settings->csd_url,
             (double)p->settings->epoch.cold_cap_bytes / 1048576.0);
    p->change = CHANGE_ATTACH;
    p->change_client = *from;
    worker_table_want(&p->workers, WORKER_AGENT, true, clock_now_ns());
    epoch_begin(p, "a CSD is being attached");
}

static void take_detach(struct pipeline *p, const struct proto_address *from)
{
    if (!may_change(p, from))
        return;
    if (!p->settings->epoch.csd_attached) {
        client_reply(p, from, HILL_E_INVALID, "no CSD is attached");
        return;
    }
    log_info("detaching %s", p->settings->csd_url);
    p->change = CHANGE_DETACH;
    p->change_client = *from;
    settings_detach(p->settings);
    worker_table_want(&p->workers, WORKER_AGENT, false, clock_now_ns());
    worker_terminate(p, WORKER_AGENT,
                     "because it is detached"); /* its exit brings the epoch without a drive */
}

/* ---- all --------------------------------------------------------------------------------- */

static void take_message(struct pipeline *p, const struct proto_address *from,
                         const Hill__Message *message)
{
    request_book_heard(&p->book, from, false, clock_now_ns());
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_GENERATE:
        take_generate(p, from, message->generate);
        break;
    case HILL__MESSAGE__BODY_CANCEL:
        take_cancel(p, from, message->cancel);
        break;
    case HILL__MESSAGE__BODY_STATUS_REQUEST:
        take_status(p, from);
        break;
    case HILL__MESSAGE__BODY_ATTACH:
        take_attach(p, from, message->attach);
        break;
    case HILL__MESSAGE__BODY_DETACH:
        take_detach(p, from);
        break;
    case HILL__MESSAGE__BODY_CSD_MODEL_CHANGE:
        csd_model_take_change(p, from, message->csd_model_change);
        break;
    case HILL__MESSAGE__BODY_SAVE_SESSION:
        session_take_save(p, from, message->save_session);
        break;
    case HILL__MESSAGE__BODY_RESTORE_SESSION:
        session_take_restore(p, from, message->restore_session);
        break;
    case HILL__MESSAGE__BODY_TRACE_REQUEST:
        trace_ask(p, from, message->trace_request);
        break;
    case HILL__MESSAGE__BODY_PROFILE_REQUEST:
        profile_take_request(p, from);
        break;
    case HILL__MESSAGE__BODY_SHUTDOWN:
        client_reply(p, from, 0, "");
        pipeline_end(p, 0, "hillctl asked for it");
        break;
    default:
        p->malformed++;
        client_reply(p, from, HILL_E_PROTOCOL, "message refused: clients do not send this one");
    }
}

void serve_clients(struct pipeline *p)
{
    for (unsigned i = 0; i < PIPELINE_BURST; i++) {
        struct proto_address from;
        struct hill_why why = {{0}};
        Hill__Message *message;
        int code = proto_receive(p->control_socket, &from, &message, &why);
        if (code == HILL_E_PROTOCOL) {
            p->malformed++;
            log_warn("a client's message was refused: %s", why.text);
            client_reply(p, &from, code, why.text);
        } else if (code) {
            return;
        } else {
            take_message(p, &from, message);
            proto_free(message);
        }
    }
}
