/*
 * hillctl/exchange.c - see exchange.h.
 */
#include "hillctl/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "chat/chat_prompt.h"

#define PING_MS     2000
#define LOOK_MS     50    /* while the coordinator is gone */
#define RECOVERY_MS 60000 /* until the pipeline has said its own */

static int sent(const struct exchange *x, int code, struct hill_why *why)
{
    return code < 0 ? hill_fail(why, code, "sending to the pipeline in %s failed: %s",
                                x->client->run_dir, hill_strerror(code))
                    : code;
}

int exchange_send_order(struct exchange *x, const Hill__Message *order, struct hill_why *why)
{
    client_look(x->client);
    return sent(
        x, follower_begin(&x->follower, x->client->socket, order, x->client->losses, RECOVERY_MS),
        why);
}

int exchange_send(struct exchange *x, const struct exchange_request *request, struct hill_why *why)
{
    const struct hill_request_options *options = request->options;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__PromptPiece **pieces = chat_prompt_wire(request->pieces, request->n_pieces);
    if (!pieces)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the prompt");
    sampling.temperature = (float)options->temperature;
    sampling.top_k = options->top_k;
    sampling.top_p = (float)options->top_p;
    sampling.min_p = (float)options->min_p;
    sampling.repeat_penalty = (float)options->repeat_penalty;
    sampling.unset = options->unset;
    /* chosen here, so that the request can be asked for again and be the same one */
    sampling.seed = options->seed ? options->seed : client_random();
    generate.pieces = pieces;
    generate.n_pieces = request->n_ids ? 0 : request->n_pieces;
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
    generate.conversation = request->conversation;
    generate.after = request->after;
    generate.selection = request->selection;
    generate.no_prefix_cache = options->no_prefix_cache;
    int code = exchange_send_order(x, &PROTO_MESSAGE(GENERATE, generate, &generate), why);
    free(pieces);
    return code;
}

static void send_cancel(struct exchange *x)
{
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this connection */
    client_send(x->client, &PROTO_MESSAGE(CANCEL, cancel, &cancel), NULL);
    x->cancelling = true;
}

static void send_ping(struct exchange *x)
{
    client_ping(x->client, NULL);
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
    double *logprobs = realloc(r->logprobs, (x->follower.n_tokens + 1) * sizeof *logprobs);
    if (logprobs)
        r->logprobs = logprobs;
    if (!text || !logprobs)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the answer");
    if (t->text.len)
        memcpy(r->text + r->text_bytes, t->text.data, t->text.len);
    r->text_bytes += t->text.len;
    r->tokens = x->follower.tokens;
    r->n_tokens = x->follower.n_tokens;
    if (t->token != UINT32_MAX) /* else the rest of a character, not a token */
        r->logprobs[r->n_tokens - 1] = t->logprob;
    exchange_clear_progress(x);
    if (!x->quiet && t->text.len && /* of no text protobuf-c's pointer is NULL */
        (fwrite(t->text.data, 1, t->text.len, stdout) != t->text.len || fflush(stdout) != 0))
        return hill_fail(why, HILL_E_IO, "writing the answer to stdout failed: %s",
                         strerror(errno));
    return 0;
}

static void show_loss(struct exchange *x)
{
    if (!x->terminal)
        return;
    fprintf(stderr, "\r\033[Kthe coordinator was lost; waiting for it, %.3g s at most",
            x->follower.recovery_ms / 1e3);
    fflush(stderr);
    x->progress_shown = true;
}

/* What has become of the connection: 0, or the code that ends the exchange. */
static int watch(struct exchange *x, int64_t now, struct hill_why *why)
{
    const struct client *c = x->client;
    bool silent = now - x->last_heard_ns > CLOCK_MS(CLIENT_ANSWER_MS);
    const struct follower_line line = {c->connected, c->losses, silent ? x->last_heard_ns : 0};
    if (silent && !c->connected && !c->losses)
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s does not answer", c->run_dir);
    int news = follower_watch(&x->follower, &line, now);
    if (news == FOLLOWER_LOST)
        show_loss(x);
    if (x->follower.lost_ns && !c->connected && client_pipeline_ended(c))
        return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s has ended", c->run_dir);
    if (news == HILL_E_TIMEOUT)
        return hill_fail(why, news,
                         "the coordinator in %s was lost and did not come back within the %.3g s "
                         "of --recovery-timeout",
                         c->run_dir, x->follower.recovery_ms / 1e3);
    return news < 0 ? sent(x, news, why) : 0;
}

/* ---- the exchange ------------------------------------------------------------------------ */

/* 1: the request is over. */
static int take_summary(struct exchange *x, Hill__Message *message, struct hill_why *why)
{
    const Hill__Summary *summary = message->summary;
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
    int news = follower_take(&x->follower, message);
    if (news == FOLLOWER_ANEW) {
        exchange_clear_progress(x);
        fputs("hillctl: the coordinator came back without the request: it begins again\n", stderr);
    }
    if (news != FOLLOWER_TAKEN)
        return news == HILL_E_NOMEM ? hill_fail(why, news, "out of memory for the answer")
               : news < 0           ? sent(x, news, why)
                                    : 0;
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        if (x->cancelling) /* a Cancel before it may have died with a coordinator */
            send_cancel(x);
        return 0;
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        show_progress(x, message->prefill_progress);
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        return take_text(x, message->text, why);
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
    bool leave = x->cancelling || x->follower.lost_ns;
    exchange_clear_progress(x);
    send_cancel(x);
    return leave ? code : 0;
}

int exchange_follow(struct exchange *x, struct hill_why *why)
{
    x->last_heard_ns = x->last_ping_ns = clock_now_ns();
    for (;;) {
        Hill__Message *message = NULL;
        int64_t patience_ms = x->follower.lost_ns ? LOOK_MS : PING_MS / 4;
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
        if (x->client->connected && now - x->last_ping_ns > CLOCK_MS(2 * PING_MS))
            x->last_heard_ns = now; /* it was this process that stood still: what came waits */
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
    free(x->report.text);
    free(x->report.logprobs);
    follower_finish(&x->follower);
    x->summary = NULL;
    x->report = (struct report){0};
    x->cancelling = x->progress_shown = false;
}
