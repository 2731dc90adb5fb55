/*
 * gateway/job_generate.c - a request for text: ordered, followed, answered. See job.h.
 *
 * The request has a key, so that another coordinator in the same run folder goes on with it
 * (hillctl/exchange.c does the same for the command line): nothing that is here is sent again.
 */
#include "gateway/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "gateway/tools.h"
#include "kv/select.h"

#define COMMENT_MS 1000  /* of silence in a stream, until a comment is sent */
#define CANCEL_MS  12000 /* the coordinator makes a new epoch after 10 s */

static uint64_t random_number(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
        number = (uint64_t)clock_now_ns();
    return number ? number : 1;
}

/* ---- the order -------------------------------------------------------------------------------- */

/* Selection as the pipeline has it, changed as was asked (hillctl/asked_selection.c). */
static void make_selection(Hill__Selection *out, const struct order *o,
                           const Hill__Selection *pipelines)
{
    hill__selection__init(out);
    out->alpha = pipelines->alpha;
    out->budget = pipelines->budget;
    out->sinks = pipelines->sinks;
    out->window = pipelines->window;
    out->policy = pipelines->policy;
    out->importance = pipelines->importance;
    out->exact_below = o->has_alpha || o->has_budget ? 0 : pipelines->exact_below;
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
    /* chosen here, so that another coordinator makes the same tokens */
    out->seed = o->seed ? o->seed : random_number();
    out->logprobs = o->logprobs;
    out->json = o->json;
}

/* What was sent is the coordinator's and, once, this job's: what is ignored of a body may be large. */
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
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Sampling sampling;
    Hill__Selection selection;
    Hill__PromptPiece *parts = calloc(n + 1, sizeof *parts), **list = calloc(n + 1, sizeof *list);
    for (size_t i = 0; parts && list && i < n; i++) {
        hill__prompt_piece__init(&parts[i]);
        parts[i].text = (ProtobufCBinaryData){pieces[i].bytes, (uint8_t *)pieces[i].text};
        parts[i].kind = (Hill__PromptKind)pieces[i].kind;
        list[i] = &parts[i];
    }
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
    generate.key = gen->key = random_number();
    message.body_case = HILL__MESSAGE__BODY_GENERATE;
    message.generate = &generate;
    gen->order = parts && list ? proto_copy(&message) : NULL;
    gen->losses = job->gateway->upstream.losses;
    gen->recovery_ms = job->gateway->settings->patience_s * 1000;
    gen->begun_ns = clock_now_ns();
    job->state = JOB_GENERATING;
    if (!gen->order)
        job_fail(job, HILL_E_NOMEM, "out of memory for the prompt");
    else if (job_call(job, gen->order))
        forget_body(job);
    free(parts);
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
    snprintf(head->id, sizeof head->id, "%s-%016" PRIx64 "%08" PRIx32,
             head->chat ? "chatcmpl" : "cmpl", random_number(), (uint32_t)random_number());
}

/* Another file's beginning ends what is filled in, too. */
static void send_infill(struct job *job)
{
    const struct order *o = &job->order;
    struct prompt_piece pieces[] = {
        {FILL_BEFORE, strlen(FILL_BEFORE), PROMPT_SPECIAL},
        {json_string_value(o->before), json_string_length(o->before), PROMPT_TEXT},
        {o->prompt, o->prompt_bytes, PROMPT_TEXT},
        {FILL_AFTER, strlen(FILL_AFTER), PROMPT_SPECIAL},
        {json_string_value(o->after), json_string_length(o->after), PROMPT_TEXT},
        {FILL_WANTED, strlen(FILL_WANTED), PROMPT_SPECIAL}};
    send_order(job, pieces, sizeof pieces / sizeof *pieces, "<|file_sep|>");
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
    struct gateway *g = job->gateway;
    struct call_reader *reader = &job->generation.reader;
    struct api_error error;
    const struct chat_format *format = chat_prompt_format(upstream_model(&g->upstream));
    if (tools_tell(&job->order, format, &error)) {
        job_refuse(job, &error);
        return;
    }
    reader->id = random_number();
    reader->form = job->order.tools ? chat_format_tools(format) : CHAT_TOOLS_NONE;
    job->state = JOB_RENDERING;
    job->render =
        render_start(g->upstream.info, job->order.messages, job->order.n_messages, g->render_fd);
    if (!job->render)
        job_fail(job, HILL_E_NOMEM, "out of memory for the conversation");
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

void generate_rendered(struct job *job)
{
    const struct chat_prompt *prompt = &job->render->prompt;
    struct generation *gen = &job->generation;
    struct text_buffer begun = {0};
    struct prompt_piece *pieces = calloc(prompt->n_pieces + 1, sizeof *pieces);
    tools_begin(&begun, &job->order, gen->reader.form);
    if (!pieces || begun.failed) {
        job_fail(job, HILL_E_NOMEM, "out of memory for the prompt");
    } else {
        memcpy(pieces, prompt->pieces, prompt->n_pieces * sizeof *pieces);
        pieces[prompt->n_pieces] = (struct prompt_piece){begun.bytes, begun.length, PROMPT_TEXT};
        calls_feed(&gen->reader, begun.length ? begun.bytes : "", begun.length, &gen->text,
                   &gen->calls, job->order.stream);
        send_order(job, pieces, prompt->n_pieces + (begun.length ? 1 : 0), prompt->answer_end);
    }
    text_finish(&begun);
    free(pieces);
}

/* ---- what the coordinator says ------------------------------------------------------------------ */

static void send_short(struct job *job, Hill__Message__BodyCase body, void *content)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    message.body_case = body;
    message.cancel = content; /* a union of pointers */
    if (job->line)
        proto_send(job->line, NULL, &message);
}

void generate_cancel(struct job *job)
{
    struct generation *gen = &job->generation;
    Hill__Cancel cancel = HILL__CANCEL__INIT; /* id 0: the one of this line */
    if (gen->cancelling)
        return;
    gen->cancelling = true;
    looks_stop(job);
    send_short(job, HILL__MESSAGE__BODY_CANCEL, &cancel);
    job->deadline_ns = clock_deadline_ms(CANCEL_MS);
}

static void send_follow(struct job *job)
{
    struct generation *gen = &job->generation;
    Hill__Follow follow = HILL__FOLLOW__INIT;
    gen->serial = ++gen->follow;
    gen->answered = false;
    gen->following = true;
    follow.key = gen->key;
    follow.serial = gen->serial;
    follow.tokens = gen->tokens;
    follow.n_tokens = gen->n_tokens;
    follow.text_bytes = gen->text_bytes;
    send_short(job, HILL__MESSAGE__BODY_FOLLOW, &follow);
}

static void take_accepted(struct job *job, const Hill__Accepted *accepted)
{
    struct generation *gen = &job->generation;
    if (accepted->serial != gen->serial)
        return;                  /* of a Follow that another loss has overtaken */
    if (!accepted->request_id) { /* its log was damaged, or never written: it begins again */
        gen->serial = 0;
        proto_send(job->line, NULL, gen->order);
        return;
    }
    bool first = !gen->id;
    gen->id = accepted->request_id;
    gen->figures.prompt_tokens = accepted->prompt_tokens;
    gen->recovery_ms = accepted->recovery_timeout_ms;
    if (!accepted->serial && gen->n_tokens) {
        send_follow(job); /* it has begun again; some of its tokens are here */
        return;
    }
    gen->answered = true;
    gen->lost_ns = 0;
    if (first && job->order.stream) {
        job->stream = true;
        job->out_ns = clock_now_ns();
        job_answer(job, 200, "text/event-stream");
        answer_begin(&job->out, &gen->head);
    }
}

/* What is certain goes out. */
static void pass_text(struct job *job)
{
    struct generation *gen = &job->generation;
    if (!job->stream || (!gen->text.length && !gen->calls.length))
        return;
    if (gen->text.length)
        answer_chunk(&job->out, &gen->head, gen->text.bytes, gen->text.length, &gen->logprobs);
    if (gen->calls.length)
        answer_calls(&job->out, &gen->head, &gen->calls);
    gen->text.length = gen->calls.length = 0;
    job->out_ns = clock_now_ns();
    job->changed = true;
}

/* What the stop strings have let go is text or a call. */
static void read_calls(struct job *job)
{
    struct generation *gen = &job->generation;
    logprobs_sure(&gen->logprobs, gen->sure.length);
    if (gen->sure.length)
        calls_feed(&gen->reader, gen->sure.bytes, gen->sure.length, &gen->text, &gen->calls,
                   job->order.stream);
    gen->text.failed |= gen->sure.failed || gen->calls.failed;
    gen->sure.length = 0;
}

static bool keep_token(struct job *job, uint32_t token)
{
    struct generation *gen = &job->generation;
    int64_t now = clock_now_ns();
    if (gen->n_tokens == gen->tokens_room) {
        size_t room = gen->tokens_room * 2 + 64;
        uint32_t *larger = realloc(gen->tokens, room * sizeof *larger);
        if (!larger)
            return false;
        gen->tokens = larger;
        gen->tokens_room = room;
    }
    gen->tokens[gen->n_tokens++] = token;
    struct meters *m = &job->gateway->meters;
    if (gen->token_ns)
        meters_time(&m->between_tokens, (double)(now - gen->token_ns) / 1e9);
    else
        meters_time(&m->first_token, (double)(now - gen->begun_ns) / 1e9);
    gen->token_ns = now;
    looks_on_token(job, now);
    return true;
}

static void take_text(struct job *job, const Hill__Text *text)
{
    struct generation *gen = &job->generation;
    if (gen->cancelling || text->request_id != gen->id || !gen->answered)
        return;
    gen->text_bytes += text->text.len;
    /* UINT32_MAX: more text of the token before */
    if (text->token != UINT32_MAX && !keep_token(job, text->token)) {
        generate_cancel(job);
        job_fail(job, HILL_E_NOMEM, "out of memory for the answer");
        return;
    }
    logprobs_add(&gen->logprobs, (const char *)text->text.data, text->text.len, text->logprob,
                 text->token != UINT32_MAX);
    bool stopped =
        stop_feed(&gen->stops, (const char *)text->text.data, text->text.len, &gen->sure);
    read_calls(job);
    pass_text(job);
    if (stopped)
        generate_cancel(job); /* the Summary ends it */
}

static void take_progress(struct job *job, const Hill__PrefillProgress *p)
{
    const struct generation *gen = &job->generation;
    if (!job->stream || !job->order.progress || p->request_id != gen->id)
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
    read_calls(job);
    calls_flush(&gen->reader, &gen->text, &gen->calls, job->order.stream);
    pass_text(job);
    looks_write(job);
    if (gen->reader.n && strcmp(finish, "stop") == 0)
        finish = "tool_calls";
    gen->figures.predicted_tokens = (uint32_t)gen->n_tokens;
    gen->head.stop_type = gen->stops.stopped            ? "word"
                          : strcmp(finish, "stop") == 0 ? "eos"
                                                        : "limit";
    if (job->stream) {
        answer_end(&job->out, &gen->head, finish, &gen->figures);
    } else {
        answer_whole(&job->out, &gen->head, &gen->text, &gen->calls, finish, &gen->figures,
                     &gen->logprobs);
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
    if (summary->request_id != gen->id || !gen->answered)
        return;
    Hill__Delivered delivered = HILL__DELIVERED__INIT;
    delivered.request_id = gen->id;
    send_short(job, HILL__MESSAGE__BODY_DELIVERED, &delivered);
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

void generate_take(struct job *job, const Hill__Message *message)
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
        if (looks_refused(job, message->reply) || job->generation.finish) {
            if (job->generation.finish) /* all of it is here: nothing of it can fail any more */
                answer_when_seen(job, job->generation.finish);
            break;
        }
        if (job->generation.cancelling)
            end_cancelled(job); /* it was over before the Cancel came */
        else if (message->reply->code)
            job_fail(job, message->reply->code, message->reply->text);
        break;
    default:
        break;
    }
    if (job->out.failed || job->generation.text.failed)
        job_end(job); /* out of memory: the connection is cut */
}

/* ---- time ------------------------------------------------------------------------------------- */

/* Another coordinator is there. */
static void follow(struct job *job)
{
    struct generation *gen = &job->generation;
    if (gen->id) {
        send_follow(job);
        return;
    }
    gen->following = true; /* it knows the request by its key, if it has taken it already */
    proto_send(job->line, NULL, gen->order);
}

/* A coordinator that was lost is waited for as long as the pipeline says. */
static void watch(struct job *job, int64_t now_ns)
{
    struct generation *gen = &job->generation;
    const struct upstream *up = &job->gateway->upstream;
    if (up->losses != gen->losses) {
        gen->losses = up->losses;
        looks_lost(job);
        gen->answered = gen->following = false;
        gen->lost_ns = gen->lost_ns ? gen->lost_ns : now_ns;
    }
    if (gen->answered) /* it hangs, or does so no more; a connection that is lost takes answered away */
        gen->lost_ns = upstream_silent_since(up, now_ns);
    if (gen->lost_ns && !gen->answered && up->client.connected && !gen->following)
        follow(job);
    if (gen->lost_ns && now_ns - gen->lost_ns > CLOCK_MS(gen->recovery_ms))
        job_fail(job, HILL_E_TIMEOUT, "the coordinator was lost and did not come back");
    else if (!gen->id && now_ns > job->deadline_ns)
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
    proto_free(gen->order);
    stop_finish(&gen->stops);
    calls_finish(&gen->reader);
    text_finish(&gen->text);
    text_finish(&gen->calls);
    text_finish(&gen->sure);
    logprobs_finish(&gen->logprobs);
    looks_finish(job);
    free(gen->tokens);
    *gen = (struct generation){0};
}
