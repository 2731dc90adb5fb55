/*
 * gateway/job_generate.c - a request for text: ordered, followed, answered. See job.h.
 *
 * Another coordinator in the same run folder goes on with it (proto/follower.h), and the client's
 * answer with that.
 */
#include "gateway/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "chat/chat_prompt.h"
#include "gateway/fill.h"
#include "gateway/tools.h"
#include "kv/select.h"

#define COMMENT_MS 1000  /* of silence in a stream, until a comment is sent */
#define CANCEL_MS  12000 /* the coordinator makes a new epoch after 10 s */

/* ---- the order ------------------------------------------------------------------------------- */

/* Selection as the pipeline has it, changed as was asked (hillctl/asked_selection.c). */
static void make_selection(Hill__Selection *out, const struct order *o,
                           const Hill__Selection *pipelines)
{
    *out = *pipelines; /* numbers alone */
    out->base.n_unknown_fields = 0;
    out->base.unknown_fields = NULL;
    if (o->has_alpha || o->has_budget)
        out->exact_below = 0;
    if (o->has_policy)
        out->policy = (Hill__Policy)o->policy;
    if (o->has_alpha) {
        out->alpha = o->alpha;
        out->budget = 0;
    }
    if (o->has_budget)
        out->budget = o->budget;
}

static void make_sampling(Hill__Sampling *out, const struct order *o)
{
    hill__sampling__init(out);
    out->temperature = (float)o->temperature;
    out->top_k = o->top_k;
    out->top_p = (float)o->top_p;
    out->min_p = (float)o->min_p;
    out->repeat_penalty = (float)o->repeat_penalty;
    out->unset = o->unset;
    /* chosen here, so that another coordinator makes the same tokens */
    out->seed = o->seed ? o->seed : client_random();
    out->logprobs = o->logprobs;
    out->json = o->json;
}

/* What was sent is the coordinator's and, once, this job's: what is ignored of a body may be
 * large. */
static void forget_body(struct job *job)
{
    struct generation *gen = &job->generation;
    render_finish(job->render);
    job->render = NULL;
    order_forget_body(&job->order);
    memcpy(gen->stops.strings, job->order.stops, sizeof job->order.stops);
    gen->stops.n = job->order.n_stops;
}

static void send_order(struct job *job, const struct prompt_piece *pieces, size_t n,
                       const char *answer_end)
{
    const struct order *o = &job->order;
    struct generation *gen = &job->generation;
    const Hill__StatusReply *status = job->gateway->upstream.status->status_reply;
    Hill__Generate generate = HILL__GENERATE__INIT;
    Hill__Sampling sampling;
    Hill__Selection selection;
    Hill__PromptPiece **list = chat_prompt_wire(pieces, n);
    make_sampling(&sampling, o);
    generate.pieces = list;
    generate.n_pieces = n;
    generate.token_ids = o->ids;
    generate.n_token_ids = o->n_ids;
    if (answer_end)
        generate.answer_end = (ProtobufCBinaryData){strlen(answer_end), (uint8_t *)answer_end};
    generate.predict = o->predict;
    generate.at_most = true;
    generate.ignore_eos = o->ignore_eos;
    generate.sampling = &sampling;
    if ((o->has_alpha || o->has_budget || o->has_policy) && status->selection) {
        make_selection(&selection, o, status->selection);
        generate.selection = &selection;
    }
    /* with several keys one could tell by the time whether another has sent the same text */
    generate.no_prefix_cache = !o->cache_prompt || job->gateway->settings->keys.n > 1;
    generate.want_passages = o->selection;
    generate.want_progress = true; /* a gateway that was killed is noticed in a long prompt, too */
    Hill__Message message = PROTO_MESSAGE(GENERATE, generate, &generate);
    gen->begun_ns = clock_now_ns();
    job->state = JOB_GENERATING;
    if (!list)
        job_fail(job, HILL_E_NOMEM, "out of memory for the prompt");
    else if (job_open_line(job) &&
             job_sent(job, follower_begin(&gen->follower, job->line, &message,
                                          job->gateway->upstream.losses,
                                          job->gateway->settings->patience_s * 1000)))
        forget_body(job);
    free(list);
}

static void make_head(struct job *job)
{
    struct answer_head *head = &job->generation.head;
    head->chat = job->order.kind == ORDER_CHAT;
    head->fill = job->order.kind == ORDER_INFILL;
    head->usage = job->order.include_usage;
    head->looks = &job->generation.looks.json;
    head->model = job->gateway->upstream.model_name;
    head->created = (int64_t)time(NULL);
}

/* By the number that the logs have, and one of its own: another pipeline counts anew. */
static void name_answer(struct job *job, uint64_t request)
{
    struct answer_head *head = &job->generation.head;
    job->request = request;
    snprintf(head->id, sizeof head->id, "%s-%" PRIu64 "-%016" PRIx64,
             head->chat ? "chatcmpl" : "cmpl", request, client_random());
}

/* Another file's beginning ends what is filled in, too. */
static void send_infill(struct job *job)
{
    const struct order *o = &job->order;
    size_t n = 0;
    struct prompt_piece *pieces = fill_pieces(o, job->gateway->upstream.files, &n);
    if (pieces)
        send_order(job, pieces, n, FILL_FILE);
    else
        job_fail(job, HILL_E_NOMEM, "out of memory for the prompt");
    free(pieces);
}

/* Refused: false. */
static bool admit(struct job *job, enum order_kind kind)
{
    struct gateway *g = job->gateway;
    struct api_error error;
    if (kind == ORDER_INFILL && upstream_known(&g->upstream) && !g->upstream.fills)
        api_refuse(&error, 501, "not_served", NULL,
                   "/infill: %.100s has no tokens for filling in (as Qwen Coder has)",
                   g->upstream.model_name);
    else if (order_read(&job->order, kind, job->body.bytes, job->body.length, &error) == 0) {
        if (!upstream_known(&g->upstream)) {
            job_unavailable(job);
            return false;
        }
        if (g->generating < g->settings->requests)
            return true;
        api_refuse_as(&error, HILL_E_BUSY, "as many requests as --requests are under way already");
    }
    job_refuse(job, &error);
    return false;
}

static void begin_chat(struct job *job)
{
    struct call_reader *reader = &job->generation.reader;
    const struct chat_format *format = chat_prompt_format(upstream_model(&job->gateway->upstream));
    reader->id = client_random();
    reader->form = job->order.tools ? chat_format_tools(format) : CHAT_TOOLS_NONE;
    job_render(job, format);
}

void generate_begin(struct job *job)
{
    enum order_kind kind = job->route.endpoint == ENDPOINT_CHAT     ? ORDER_CHAT
                           : job->route.endpoint == ENDPOINT_INFILL ? ORDER_INFILL
                                                                    : ORDER_COMPLETION;
    if (!admit(job, kind))
        return;
    job->gateway->generating++;
    job->generation.counted = true;
    make_head(job);
    job->generation.logprobs.wanted = job->order.logprobs;
    job->generation.logprobs.chat = kind == ORDER_CHAT;
    if (kind == ORDER_CHAT) {
        begin_chat(job);
        return;
    }
    if (kind == ORDER_INFILL) {
        send_infill(job);
        return;
    }
    const struct prompt_piece whole = {job->order.prompt, job->order.prompt_bytes,
                                       job->order.parse_special ? PROMPT_SPECIAL : PROMPT_TEXT};
    send_order(job, &whole, job->order.n_ids ? 0 : 1, NULL);
}

/* What the answer begins with. JSON has no reasoning before it, and a call that has to be none. */
static void begin_readers(struct job *job, const struct text_buffer *begun)
{
    const struct chat_prompt *prompt = &job->render->prompt;
    const struct order *o = &job->order;
    struct generation *gen = &job->generation;
    gen->thoughts.verbatim = !o->split_reasoning;
    if (!o->json && !begun->length)
        reasoning_begin(&gen->thoughts, reasoning_opened(prompt->pieces, prompt->n_pieces),
                        o->begun, o->begun_bytes);
    calls_feed(&gen->reader, begun->length ? begun->bytes : "", begun->length, &gen->parts.text,
               &gen->parts.calls, o->stream);
}

void generate_rendered(struct job *job)
{
    const struct chat_prompt *prompt = &job->render->prompt;
    const struct order *o = &job->order;
    struct generation *gen = &job->generation;
    struct text_buffer begun = {0};
    struct prompt_piece *pieces = calloc(prompt->n_pieces + 1, sizeof *pieces);
    tools_begin(&begun, o, gen->reader.form);
    if (!pieces || begun.failed) {
        job_fail(job, HILL_E_NOMEM, "out of memory for the prompt");
    } else {
        memcpy(pieces, prompt->pieces, prompt->n_pieces * sizeof *pieces);
        /* as what a template renders of an assistant */
        pieces[prompt->n_pieces] =
            (struct prompt_piece){begun.length ? begun.bytes : o->begun,
                                  begun.length ? begun.length : o->begun_bytes, PROMPT_TEXT};
        if (!o->prompt_only)
            begin_readers(job, &begun);
        send_order(job, pieces, prompt->n_pieces + (begun.length || o->begun_bytes ? 1 : 0),
                   prompt->answer_end);
    }
    text_finish(&begun);
    free(pieces);
}

/* ---- what the coordinator says --------------------------------------------------------------- */

void generate_cancel(struct job *job)
{
    struct generation *gen = &job->generation;
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this line */
    if (gen->cancelling)
        return;
    gen->cancelling = true;
    looks_stop(job);
    if (job->line)
        proto_send(job->line, NULL, &PROTO_MESSAGE(CANCEL, cancel, &cancel));
    job->deadline_ns = clock_deadline_ms(CANCEL_MS);
}

/* Its head says the number; one that is out stays. */
static void take_number(struct job *job, uint64_t request)
{
    uint64_t before = job->generation.accepted;
    if (before == request)
        return;
    job->generation.accepted = request;
    if (before)
        log_info("request %" PRIu64 " goes on as request %" PRIu64 ": its token log is lost",
                 before, request);
    if (!job->stream)
        name_answer(job, request);
}

static void take_accepted(struct job *job, const Hill__Accepted *accepted)
{
    struct generation *gen = &job->generation;
    gen->figures.prompt_tokens = accepted->prompt_tokens;
    take_number(job, accepted->request_id);
    if (!job->order.stream || job->stream)
        return;
    job->stream = true;
    job->out_ns = clock_now_ns();
    job_answer(job, 200, "text/event-stream");
    answer_begin(&job->out, &gen->head);
}

/* What is certain goes out. */
static void pass_text(struct job *job)
{
    struct generation *gen = &job->generation;
    struct answer_parts *parts = &gen->parts;
    if (!job->stream || (!parts->reasoning.length && !parts->text.length && !parts->calls.length))
        return;
    if (parts->reasoning.length)
        answer_reasoning(&job->out, &gen->head, &parts->reasoning, &gen->logprobs);
    if (parts->text.length)
        answer_chunk(&job->out, &gen->head, parts->text.bytes, parts->text.length, &gen->logprobs);
    if (parts->calls.length)
        answer_calls(&job->out, &gen->head, &parts->calls);
    parts->reasoning.length = parts->text.length = parts->calls.length = 0;
    job->out_ns = clock_now_ns();
    job->changed = true;
}

/* What the stop strings have let go is reasoning, text or a call. last: nothing follows it. */
static void read_parts(struct job *job, bool last)
{
    struct generation *gen = &job->generation;
    struct answer_parts *parts = &gen->parts;
    /* a call within a thought is none, also where the thought is a part of the text */
    struct text_buffer *thought = job->order.split_reasoning ? &parts->reasoning : &parts->text;
    logprobs_sure(&gen->logprobs, gen->sure.length);
    reasoning_feed(&gen->thoughts, gen->sure.bytes, gen->sure.length, thought, &gen->said);
    if (last)
        reasoning_flush(&gen->thoughts, thought, &gen->said);
    if (gen->said.length)
        calls_feed(&gen->reader, gen->said.bytes, gen->said.length, &parts->text, &parts->calls,
                   job->order.stream);
    if (last)
        calls_flush(&gen->reader, &parts->text, &parts->calls, job->order.stream);
    parts->text.failed |= gen->sure.failed || gen->said.failed || parts->calls.failed;
    gen->sure.length = gen->said.length = 0;
}

static void note_token(struct job *job)
{
    struct generation *gen = &job->generation;
    struct meters *m = &job->gateway->meters;
    int64_t now = clock_now_ns();
    if (gen->token_ns)
        meters_time(&m->between_tokens, (double)(now - gen->token_ns) / 1e9);
    else
        meters_time(&m->first_token, (double)(now - gen->begun_ns) / 1e9);
    gen->token_ns = now;
    looks_on_token(job, now);
}

static void take_text(struct job *job, const Hill__Text *text)
{
    struct generation *gen = &job->generation;
    bool token = text->token != UINT32_MAX; /* else more text of the one before */
    if (job->order.prompt_only)
        return;
    if (token)
        note_token(job);
    logprobs_add(&gen->logprobs, (const char *)text->text.data, text->text.len, text->logprob,
                 token);
    bool stopped =
        stop_feed(&gen->stops, (const char *)text->text.data, text->text.len, &gen->sure);
    read_parts(job, false);
    pass_text(job);
    if (stopped)
        generate_cancel(job); /* the Summary ends it */
}

static void take_progress(struct job *job, const Hill__PrefillProgress *p)
{
    const struct generation *gen = &job->generation;
    if (!job->stream || !job->order.progress)
        return;
    answer_progress(&job->out, &gen->head, p->tokens_total, p->tokens_done,
                    (double)(clock_now_ns() - gen->begun_ns) / 1e6);
    job->out_ns = clock_now_ns();
    job->changed = true;
}

static void answer_now(struct job *job, const char *finish)
{
    struct generation *gen = &job->generation;
    if (!gen->stops.stopped)
        stop_flush(&gen->stops, &gen->sure);
    read_parts(job, true);
    pass_text(job);
    if (job->stream && logprobs_due(&gen->logprobs)) /* of a tag, or white space, at the end */
        answer_chunk(&job->out, &gen->head, "", 0, &gen->logprobs);
    looks_write(job);
    if (gen->reader.n && strcmp(finish, "stop") == 0)
        finish = "tool_calls";
    if (job->order.prompt_only)
        finish = "length";
    else
        gen->figures.predicted_tokens = (uint32_t)gen->follower.n_tokens;
    gen->head.stop_type = gen->stops.stopped            ? "word"
                          : strcmp(finish, "stop") == 0 ? "eos"
                                                        : "limit";
    if (job->stream) {
        answer_end(&job->out, &gen->head, finish, &gen->figures);
    } else {
        answer_whole(&job->out, &gen->head, &gen->parts, finish, &gen->figures, &gen->logprobs);
        job_answer(job, 200, "application/json");
    }
    job_end(job);
}

/* When all that is to be seen of it is here. */
static void answer_when_seen(struct job *job, const char *finish)
{
    job->generation.finish = finish;
    if (!looks_wait(job, clock_now_ns()))
        answer_now(job, finish);
}

static void take_summary(struct job *job, const Hill__Summary *summary)
{
    struct generation *gen = &job->generation;
    meters_add(&job->gateway->meters, summary);
    gen->figures.cached_tokens = summary->reused_tokens;
    if (summary->gpu) {
        gen->figures.measured = true;
        gen->figures.prompt_ms = summary->gpu->prompt_ms;
        gen->figures.predicted_ms = summary->gpu->predicted_ms;
    }
    looks_keep(job, summary);
    if (job->detached)
        job_end(job);
    else if (gen->stops.stopped || summary->finish == HILL__FINISH_REASON__FINISH_STOP)
        answer_when_seen(job, "stop");
    else if (summary->finish == HILL__FINISH_REASON__FINISH_LENGTH)
        answer_when_seen(job, "length");
    else if (summary->finish == HILL__FINISH_REASON__FINISH_CANCEL)
        job_fail(job, HILL_E_PEER_GONE, "the pipeline is ending");
    else
        job_fail(job, summary->code, summary->text);
}

/* A cancelled request will not be heard of any more. */
static void end_cancelled(struct job *job)
{
    if (job->generation.stops.stopped && !job->detached)
        answer_now(job, "stop");
    else
        job_end(job);
}

/* A Reply: of the watch over its stages, or of the request. */
static void take_reply(struct job *job, const Hill__Reply *reply)
{
    struct generation *gen = &job->generation;
    if (looks_refused(job, reply) || gen->finish) {
        if (gen->finish) /* all of it is here: nothing of it can fail any more */
            answer_when_seen(job, gen->finish);
    } else if (gen->cancelling) {
        end_cancelled(job); /* it was over before the Cancel came */
    } else if (reply->code) {
        job_refused(job, reply);
    }
}

/* What is about this request, and new. */
static void take_own(struct job *job, const Hill__Message *message)
{
    switch (message->body_case) {
    case HILL__MESSAGE__BODY_ACCEPTED:
        take_accepted(job, message->accepted);
        break;
    case HILL__MESSAGE__BODY_TEXT:
        take_text(job, message->text);
        break;
    case HILL__MESSAGE__BODY_PREFILL_PROGRESS:
        take_progress(job, message->prefill_progress);
        break;
    case HILL__MESSAGE__BODY_SUMMARY:
        take_summary(job, message->summary);
        break;
    case HILL__MESSAGE__BODY_TRACE_ANSWER:
        looks_take(job, message->trace_answer);
        if (job->generation.finish)
            answer_when_seen(job, job->generation.finish);
        break;
    case HILL__MESSAGE__BODY_REPLY:
        take_reply(job, message->reply);
        break;
    default:
        break;
    }
}

void generate_take(struct job *job, const Hill__Message *message)
{
    struct generation *gen = &job->generation;
    if (gen->cancelling && message->body_case == HILL__MESSAGE__BODY_TEXT)
        return; /* behind its end */
    int news = follower_take(&gen->follower, message);
    if (news == FOLLOWER_TAKEN)
        take_own(job, message);
    else if (news == FOLLOWER_ANEW && !gen->cancelling)
        job_sent(job, 0); /* it is to be accepted once more */
    else if (news < 0) {
        generate_cancel(job);
        job_fail(job, news, hill_strerror(news));
    }
    if (job->out.failed || gen->parts.text.failed)
        job_end(job); /* out of memory: the connection is cut */
}

/* ---- time ------------------------------------------------------------------------------------ */

/* A coordinator that was lost is waited for as long as the pipeline says. */
static void watch(struct job *job, int64_t now_ns)
{
    struct generation *gen = &job->generation;
    const struct upstream *up = &job->gateway->upstream;
    const struct follower_line line = {up->client.connected, up->losses,
                                       upstream_silent_since(up, now_ns)};
    int news = follower_watch(&gen->follower, &line, now_ns);
    if (news == FOLLOWER_LOST)
        looks_lost(job);
    if (news == HILL_E_TIMEOUT)
        job_fail(job, news, "the coordinator was lost and did not come back");
    else if (news < 0)
        job_fail(job, news, hill_strerror(news));
    else if (!gen->follower.id && now_ns > job->deadline_ns)
        job_fail(job, HILL_E_TIMEOUT, "the coordinator does not answer");
}

void generate_tick(struct job *job, int64_t now_ns)
{
    struct generation *gen = &job->generation;
    if (gen->finish) {
        answer_when_seen(job, gen->finish);
        return;
    }
    if (gen->cancelling) {
        if (now_ns > job->deadline_ns)
            end_cancelled(job);
        return;
    }
    watch(job, now_ns);
    if (job->stream && !job->closed && now_ns - job->out_ns > CLOCK_MS(COMMENT_MS)) {
        answer_comment(&job->out);
        job->out_ns = now_ns;
        job->changed = true;
    }
}

void generate_finish(struct job *job)
{
    struct generation *gen = &job->generation;
    follower_finish(&gen->follower);
    stop_finish(&gen->stops);
    reasoning_finish(&gen->thoughts);
    calls_finish(&gen->reader);
    text_finish(&gen->parts.reasoning);
    text_finish(&gen->parts.text);
    text_finish(&gen->parts.calls);
    text_finish(&gen->sure);
    text_finish(&gen->said);
    logprobs_finish(&gen->logprobs);
    looks_finish(job);
    *gen = (struct generation){0};
}
