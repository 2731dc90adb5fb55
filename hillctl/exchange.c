/*
 * hillctl/exchange.c - see exchange.h.
 */
#include "hillctl/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define PING_MS 2000

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
    sampling.seed = options->seed;
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
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    int code = client_send(x->client, &message, why);
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

/* 1: the request is over. */
static int take_message(struct exchange *x, Hill__Message *message, struct hill_why *why)
{
    x->last_heard_ns = clock_now_ns();
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        x->id = message->accepted->request_id;
        return 0;
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        if (message->prefill_progress->request_id == x->id)
            show_progress(x, message->prefill_progress);
        return 0;
    case HILL__MESSAGE__BODY_TEXT:
        return message->text->request_id == x->id ? take_text(x, message->text, why) : 0;
    case HILL__MESSAGE__BODY_STATUS_REPLY:
        if (message->status_reply->uptime_seconds * 1e9 <
            (double)(x->last_heard_ns - x->started_ns) - 1e9)
            return hill_fail(why, HILL_E_PEER_GONE,
                             "the coordinator was replaced; the request is lost, ask again");
        return 0;
    case HILL__MESSAGE__BODY_REPLY:
        if (message->reply->code == 0)
            return 0;
        return hill_fail(why, message->reply->code, "%s", message->reply->text);
    case HILL__MESSAGE__BODY_SUMMARY:
        if (message->summary->request_id != x->id)
            return 0; /* of the request before, which was left when it was cancelled twice */
        x->summary = message;
        x->report.summary = message->summary;
        if (message->summary->finish == HILL__FINISH_REASON__FINISH_ERROR)
            return hill_fail(why,
                             message->summary->code < 0 ? message->summary->code : HILL_E_PROTOCOL,
                             "%s", message->summary->text);
        if (message->summary->finish == HILL__FINISH_REASON__FINISH_CANCEL)
            return hill_fail(why, HILL_E_CANCELLED, "cancelled");
        return 1;
    default:
        return 0;
    }
}

int exchange_follow(struct exchange *x, struct hill_why *why)
{
    x->started_ns = x->last_heard_ns = x->last_ping_ns = clock_now_ns();
    for (;;) {
        Hill__Message *message = NULL;
        int code = client_receive(x->client, clock_deadline_ms(PING_MS / 4), &message, why);
        if (code == HILL_E_CANCELLED) {
            if (x->cancelling)
                return code; /* asked twice: leave at once */
            exchange_clear_progress(x);
            send_cancel(x);
            continue;
        }
        if (code == 0) {
            code = take_message(x, message, why);
            if (message != x->summary)
                proto_free(message);
            if (code != 0)
                return code == 1 ? 0 : code;
        } else if (code != HILL_E_TIMEOUT) {
            return code;
        }
        int64_t now = clock_now_ns();
        if (now - x->last_ping_ns > CLOCK_MS(PING_MS))
            send_ping(x);
        if (now - x->last_heard_ns > CLOCK_MS(CLIENT_ANSWER_MS))
            return hill_fail(why, HILL_E_PEER_GONE, "the pipeline in %s stopped answering",
                             x->client->run_dir);
    }
}

void exchange_reset(struct exchange *x)
{
    proto_free(x->summary);
    free(x->report.text);
    free(x->report.tokens);
    free(x->report.logprobs);
    x->summary = NULL;
    x->report = (struct report){0};
    x->cancelling = x->progress_shown = false;
    x->id = 0;
}
