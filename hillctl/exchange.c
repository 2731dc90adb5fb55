/*
 * hillctl/exchange.c - see exchange.h.
 */
#include "hillctl/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <inttypes.h>
#include <sys/random.h>

#include "base/clock.h"

#define PING_MS     2000
#define LOOK_MS     50    /* while the coordinator is gone */
#define RECOVERY_MS 60000 /* until the pipeline has said its own */

static uint64_t random_number(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
        number = (uint64_t)clock_now_ns();
    return number ? number : 1;
}

uint64_t exchange_new_key(void)
{
    return random_number();
}

int exchange_send_order(struct exchange *x, uint64_t key, const Hill__Message *order,
                        struct hill_why *why)
{
    proto_free(x->order);
    x->order = proto_copy(order);
    if (!x->order)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the request");
    client_look(x->client);
    x->losses = x->client->losses;
    x->key = key;
    x->serial = 0;
    x->answered = x->following = false;
    x->lost_ns = 0;
    if (!x->recovery_ms)
        x->recovery_ms = RECOVERY_MS;
    return client_send(x->client, order, why);
}

int exchange_send(struct exchange *x, const struct exchange_request *request, struct hill_why *why)
{
    const struct hill_request_options *options = request->options;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    size_t n = request->n_pieces;
    Hill__PromptPiece *pieces = calloc(n + 1, sizeof *pieces), **list = calloc(n + 1, sizeof *list);
    if (!pieces || !list) {
        free(pieces);
        free(list);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt of %zu pieces", n);
    }
    for (size_t i = 0; i < n; i++) {
        hill__prompt_piece__init(&pieces[i]);
        pieces[i].text =
            (ProtobufCBinaryData){request->pieces[i].bytes, (uint8_t *)request->pieces[i].text};
        pieces[i].kind = (Hill__PromptKind)request->pieces[i].kind;
        list[i] = &pieces[i];
    }
    sampling.temperature = (float)options->temperature;
    sampling.top_k = options->top_k;
    sampling.top_p = (float)options->top_p;
    sampling.min_p = (float)options->min_p;
    sampling.repeat_penalty = (float)options->repeat_penalty;
    /* chosen here, so that the request can be asked for again and be the same one */
    sampling.seed = options->seed ? options->seed : random_number();
    generate.pieces = list;
    generate.n_pieces = request->n_ids ? 0 : n;
    generate.token_ids = (uint32_t *)request->ids;
    generate.n_token_ids = request->n_ids;
    generate.score_from = options->score_from;
    if (request->answer_end)
        generate.answer_end =
            (ProtobufCBinaryData){strlen(request->answer_end), (uint8_t *)request->answer_end};
    generate.predict = options->predict;
    generate.ignore_eos = options->ignore_eos;
    generate.sampling = &sampling;
    generate.want_progress = x->terminal;
    generate.save_path = (char *)request->save;
    generate.key = exchange_new_key();
    generate.conversation = request->conversation;
    generate.after = request->after;
    generate.selection = request->selection;
    generate.no_prefix_cache = options->no_prefix_cache;
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    int code = exchange_send_order(x, generate.key, &message, why);
    free(pieces);
    free(list);
    return code;
}

static void send_cancel(struct exchange *x)
{
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this connection */
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_CANCEL;
    message.cancel = &cancel;
    client_send(x->client, &message, NULL);
    x->cancelling = true;
}

static void send_ping(struct exchange *x)
{
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = HILL__MESSAGE__BODY_STATUS_REQUEST;
    message.status_request = &request;
    client_send(x->client, &message, NULL);
    x->last_ping_ns = clock_now_ns();
}

void exchange_clear_progress(struct exchange *x)
{
    if (x->progress_shown)
        fputs("\r\033[K", stderr);
    x->progress_shown = false;
}

static void show_progress(struct exchange *x, const Hill__PrefillProgress *p)
{
    if (!x->terminal)
        return;
    fprintf(stderr, "\r\033[Kprefill %.0f / %.0f tokens, %.0f tokens/s, %.0f s left",
            p->tokens_done, p->tokens_total, p->tokens_per_second, p->seconds_left);
    fflush(stderr);
    x->progress_shown = true;
}

static int take_text(struct exchange *x, const Hill__Text *t, struct hill_why *why)
{
    struct report *r = &x->report;
    char *text = realloc(r->text, r->text_bytes + t->text.len + 1);
    if (text)
        r->text = text;
    uint32_t *tokens = realloc(r->tokens, (r->n_tokens + 1) * sizeof *tokens);
    if (tokens)
        r->tokens = tokens;
    double *logprobs = realloc(r->logprobs, (r->n_tokens + 1) * sizeof *logprobs);
    if (logprobs)
        r->logprobs = logprobs;
    if (!text || !tokens || !logprobs)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the answer");
    if (t->text.len)
        memcpy(r->text + r->text_bytes, t->text.data, t->text.len);
    r->text_bytes += t->text.len;
    r->tokens[r->n_tokens] = t->token;
    r->logprobs[r->n_tokens] = t->logprob;
    r->n_tokens += t->token != UINT32_MAX; /* UINT32_MAX: the rest of a character, not a token */
    exchange_clear_progress(x);
    if (!x->quiet &&
        (fwrite(t->text.data, 1, t->text.len, stdout) != t->text.len || fflush(stdout) != 0))
        return hill_fail(why, HILL_E_IO, "writing the answer to stdout failed: %s",
                         strerror(errno));
    return 0;
}

/* ---- a coordinator that is lost, and another one ------------------------------------------- */

static int send_follow(struct exchange *x, struct hill_why *why)
{
    Hill__Follow follow = HILL__FOLLOW__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    x->serial = ++x->follow;
    x->answered = false;
    x->following = true;
    follow.key = x->key;
    follow.serial = x->serial;
    follow.tokens = x->report.tokens;
    follow.n_tokens = x->report.n_tokens;
    follow.text_bytes = x->report.text_bytes;
    message.body_case = HILL__MESSAGE__BODY_FOLLOW;
    message.follow = &follow;
    return client_send(x->client, &message, why);
}

static int take_accepted(struct exchange *x, const Hill__Accepted *accepted, struct hill_why *why)
{
    if (accepted->serial != x->serial)
        return 0;                /* of a Follow that was overtaken by another loss */
    if (!accepted->request_id) { /* its log was damaged, or was never written */
        exchange_clear_progress(x);
        fputs("hillctl: the coordinator came back without the request: it begins again\n", stderr);
        x->serial = 0;
        return client_send(x->client, x->order, why);
    }
    x->id = accepted->request_id;
    x->recovery_ms = accepted->recovery_timeout_ms;
    if (!accepted->serial && x->report.n_tokens)
        return send_follow(x, why); /* it has begun again; some of its tokens are here */
    x->answered = true;
    x->lost_ns = 0;
    return 0;
}

static void show_loss(struct exchange *x)
{
    if (!x->terminal)
        return;
    fprintf(stderr, "\r\033[Kthe coordinator was lost; waiting for it, %.3g s at most",
            x->recovery_ms / 1e3);
    fflush(stderr);
    x->progress_shown = true;
}

/* What has become of the connection: 0, or the code that ends the exchange. */
static int watch(struct exchange *x, int64_t now, struct hill_why *why)
{
    const struct client *c = x->client;
    if (c->losses != x->losses) {
        x->losses = c->losses;
        x->answered = x->following = false;
        x->lost_ns = x->lost_ns ? x->lost_ns : now;
        show_loss(x);
    }
    if (!x->lost_ns && now - x->last_heard_ns > CLOCK_MS(CLIENT_ANSWER_MS)) {
        if (!c->connected && !c->losses)
            return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s does not answer",
                             c->run_dir);
        x->lost_ns = x->last_heard_ns; /* it hangs */
    }
    if (x->lost_ns && !c->connected && client_pipeline_ended(c))
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s has ended", c->run_dir);
    if (x->lost_ns && now - x->lost_ns > CLOCK_MS(x->recovery_ms))
        return hill_fail(why, HILL_E_TIMEOUT,
                         "the coordinator in %s was lost and did not come back within the %.3g s "
                         "of --recovery-timeout",
                         c->run_dir, x->recovery_ms / 1e3);
    bool back = x->lost_ns && c->connected && c->losses && !x->following && !x->answered;
    return back ? send_follow(x, why) : 0;
}

/* ---- the exchange ------------------------------------------------------------------------ */

static void send_delivered(struct exchange *x)
{
    Hill__Delivered delivered = HILL__DELIVERED__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    delivered.request_id = x->id;
    message.body_case = HILL__MESSAGE__BODY_DELIVERED;
    message.delivered = &delivered;
    client_send(x->client, &message, NULL); /* lost: the coordinator waits for it in vain */
}

/* 1: the request is over. */
static int take_summary(struct exchange *x, Hill__Message *message, struct hill_why *why)
{
    const Hill__Summary *summary = message->summary;
    if (summary->request_id != x->id || !x->answered)
        return 0; /* of the request before, which was left when it was cancelled twice */
    send_delivered(x);
    x->summary = message;
    x->report.summary = summary;
    if (summary->finish == HILL__FINISH_REASON__FINISH_ERROR)
        return hill_fail(why, summary->code < 0 ? summary->code : HILL_E_PROTOCOL, "%s",
                         summary->text);
    if (summary->finish == HILL__FINISH_REASON__FINISH_CANCEL)
        return hill_fail(why, HILL_E_CANCELLED, "cancelled");
    return 1;
}

/* 1: the request is over. */
static int take_message(struct exchange *x, Hill__Message *message, struct hill_why *why)
{
    x->last_heard_ns = clock_now_ns();
    if (x->answered)
        x->lost_ns = 0;
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        return take_accepted(x, message->accepted, why);
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        if (message->prefill_progress->request_id == x->id && x->answered)
            show_progress(x, message->prefill_progress);
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        return message->text->request_id == x->id && x->answered ? take_text(x, message->text, why)
                                                                 : 0;
    case HILL__MESSAGE__BODY_REPLY:
        if (message->reply->code == 0)
            return 0;
        return hill_fail(why, message->reply->code, "%s", message->reply->text);
    case HILL__MESSAGE__BODY_SUMMARY:
        return take_summary(x, message, why);
    default:
        return 0;
    }
}

/* SIGINT: the request is cancelled; asked twice, or with nobody to cancel it: leave at once. */
static int interrupt(struct exchange *x, int code)
{
    bool leave = x->cancelling || x->lost_ns;
    exchange_clear_progress(x);
    send_cancel(x);
    return leave ? code : 0;
}

int exchange_follow(struct exchange *x, struct hill_why *why)
{
    x->last_heard_ns = x->last_ping_ns = clock_now_ns();
    for (;;) {
        Hill__Message *message = NULL;
        int64_t patience_ms = x->lost_ns ? LOOK_MS : PING_MS / 4;
        int code = client_receive(x->client, clock_deadline_ms(patience_ms), &message, why);
        if (code == 0) {
            code = take_message(x, message, why);
            if (message != x->summary)
                proto_free(message);
        } else if (code == HILL_E_CANCELLED) {
            code = interrupt(x, code);
        } else if (code == HILL_E_TIMEOUT) {
            code = 0;
        }
        int64_t now = clock_now_ns();
        if (code == 0)
            code = watch(x, now, why);
        if (code != 0)
            return code == 1 ? 0 : code;
        if (now - x->last_ping_ns > CLOCK_MS(PING_MS) && x->client->connected)
            send_ping(x);
    }
}

void exchange_reset(struct exchange *x)
{
    proto_free(x->summary);
    proto_free(x->order);
    free(x->report.text);
    free(x->report.tokens);
    free(x->report.logprobs);
    x->summary = x->order = NULL;
    x->report = (struct report){0};
    x->cancelling = x->progress_shown = false;
    x->id = 0;
}
