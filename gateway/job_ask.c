/*
 * gateway/job_ask.c - what is answered from one message of the coordinator, or from what it has
 * said before: health, models, slots, metrics, tokens. See job.h.
 */
#include "gateway/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/embed.h"
#include "chat/chat_prompt.h"

HILL_EMBED(gateway_page, "gateway/page.html");

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask_status(struct job *job)
{
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    job_call(job, &PROTO_MESSAGE(STATUS_REQUEST, status_request, &request));
}

static void ask_tokenize(struct job *job)
{
    const struct order *o = &job->order;
    Hill__Tokenize tokenize = HILL__TOKENIZE__INIT;
    Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *list[] = {&piece};
    piece.text = (ProtobufCBinaryData){o->prompt_bytes, (uint8_t *)o->prompt};
    piece.kind =
        o->parse_special ? HILL__PROMPT_KIND__PROMPT_SPECIAL : HILL__PROMPT_KIND__PROMPT_TEXT;
    tokenize.pieces = list;
    tokenize.n_pieces = 1;
    tokenize.add_bos = o->add_special;
    tokenize.with_pieces = o->with_pieces;
    job_call(job, &PROTO_MESSAGE(TOKENIZE, tokenize, &tokenize));
}

static void ask_detokenize(struct job *job)
{
    Hill__Detokenize detokenize = HILL__DETOKENIZE__INIT;
    detokenize.tokens = job->order.ids;
    detokenize.n_tokens = job->order.n_ids;
    job_call(job, &PROTO_MESSAGE(DETOKENIZE, detokenize, &detokenize));
}

/* ---- what is known --------------------------------------------------------------------------- */

static void add_model(struct job *job)
{
    const struct upstream *up = &job->gateway->upstream;
    text_puts(&job->out, "{\"id\":");
    text_add_json(&job->out, up->model_name, strlen(up->model_name));
    text_printf(&job->out,
                ",\"object\":\"model\",\"created\":%" PRId64
                ",\"owned_by\":\"hillinfer\",\"meta\":{\"n_ctx\":%u}}",
                (int64_t)time(NULL), upstream_model(up)->ctx_tokens);
}

static void answer_page(struct job *job)
{
    text_add(&job->out, gateway_page, (size_t)(gateway_page_end - gateway_page));
    job_answer_whole(job, "text/html; charset=utf-8");
}

static void answer_models(struct job *job)
{
    text_puts(&job->out, "{\"object\":\"list\",\"data\":[");
    add_model(job);
    text_puts(&job->out, "]}");
    job_answer_whole(job, "application/json");
}

static void answer_model(struct job *job)
{
    struct api_error error;
    const char *own = job->gateway->upstream.model_name;
    if (!job->wanted || strcmp(job->wanted, own) != 0) {
        api_refuse(&error, 404, "model_not_found", "model", "the model that is served is %.200s",
                   own);
        job_refuse(job, &error);
        return;
    }
    add_model(job);
    job_answer_whole(job, "application/json");
}

static void add_bytes(struct text_buffer *out, const char *name, const ProtobufCBinaryData *bytes)
{
    text_printf(out, ",\"%s\":", name);
    text_add_json(out, bytes->len ? (const char *)bytes->data : "", bytes->len);
}

static void answer_props(struct job *job)
{
    const struct upstream *up = &job->gateway->upstream;
    const Hill__ModelInfo *model = upstream_model(up);
    const Hill__Sampling *s = model->sampling;
    struct text_buffer *out = &job->out;
    text_printf(out, "{\"default_generation_settings\":{\"n_ctx\":%u", model->ctx_tokens);
    if (s)
        text_printf(out,
                    ",\"params\":{\"temperature\":%g,\"top_k\":%u,\"top_p\":%g,\"min_p\":%g,"
                    "\"repeat_penalty\":%g}",
                    (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p,
                    (double)s->repeat_penalty);
    text_printf(out, "},\"total_slots\":%u", up->status->status_reply->parallel);
    text_puts(out, ",\"model_path\":");
    text_add_json(out, model->path, strlen(model->path));
    add_bytes(out, "chat_template", &model->chat_template);
    add_bytes(out, "bos_token", &model->bos_text);
    add_bytes(out, "eos_token", &model->eos_text);
    text_puts(out, ",\"modalities\":{\"vision\":false,\"audio\":false},\"build_info\":"
                   "\"hillinfer-" HILL_VERSION "\"}");
    job_answer_whole(job, "application/json");
}

/* ---- what the coordinator says --------------------------------------------------------------- */

/* A pipeline without a drive has no agent, and it is not away. */
static bool away(const Hill__WorkerStatus *worker)
{
    return strcmp(worker->state, "ready") != 0 && strcmp(worker->state, "stopped") != 0;
}

static void answer_health(struct job *job, const Hill__StatusReply *status)
{
    struct api_error error;
    char names[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < status->n_workers; i++)
        if (away(status->workers[i]) && used < sizeof names)
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s is %s", used ? ", " : "",
                                 proto_worker_name(status->workers[i]), status->workers[i]->state);
    if (status->ready && !names[0]) {
        text_puts(&job->out, "{\"status\":\"ok\"}");
        job_answer_whole(job, "application/json");
        return;
    }
    api_refuse(&error, 503, "worker_away", NULL, "the pipeline is not ready: %s",
               names[0] ? names : "its workers are being configured");
    error.retry_after_s = 1;
    job_refuse(job, &error);
}

/* May who asks know more of this request than that it is there? With keys, only of its own. */
static bool is_own(const struct job *job, uint64_t request_id)
{
    if (!job->gateway->settings->keys.n)
        return true;
    for (const struct job *other = job->gateway->jobs; other; other = other->next)
        if (other->generation.follower.id == request_id && other->key == job->key)
            return true;
    return false;
}

/* Of a request that runs: where its entries lie, and what it has read of them. */
static void add_kv(struct text_buffer *out, const Hill__StatusReply *status,
                   const Hill__RunningRequest *r)
{
    const Hill__SequenceStats *q = NULL;
    for (size_t i = 0; i < status->n_sequences; i++)
        if (status->sequences[i]->request_id == r->request_id)
            q = status->sequences[i];
    if (!q)
        return;
    const struct attention_bytes a = meters_attention(q, r->prompt_tokens, r->predicted_tokens);
    const Hill__TierStats *tiers[] = {q->gpu, q->hot, q->cold};
    static const char *const names[] = {"gpu", "hot", "cold"};
    text_puts(out, ",\"kv\":{");
    for (unsigned i = 0; i < 3; i++)
        text_printf(out,
                    "\"%s\":{\"entries\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"hits\":%" PRIu64 "},",
                    names[i], tiers[i]->tokens, tiers[i]->bytes, tiers[i]->hits);
    text_printf(out, "\"selected_bytes\":%.0f,\"full_bytes\":%.0f,\"link_bytes\":%" PRIu64 "}",
                a.selected, a.full, q->link_key_bytes + q->link_score_bytes + q->link_kv_bytes);
}

static void add_slot(struct job *job, const Hill__StatusReply *status, uint32_t slot)
{
    const Hill__RunningRequest *r = NULL;
    for (size_t i = 0; i < status->n_requests; i++)
        if (status->requests[i]->sequence == slot)
            r = status->requests[i];
    text_printf(&job->out, "%s{\"id\":%" PRIu32 ",\"n_ctx\":%" PRIu32 ",\"is_processing\":%s",
                slot ? "," : "", slot, status->ctx_tokens, r ? "true" : "false");
    if (r && is_own(job, r->request_id)) {
        text_printf(&job->out,
                    ",\"id_task\":%" PRIu64 ",\"n_prompt_tokens\":%" PRIu32
                    ",\"n_prompt_tokens_processed\":%.0f,\"next_token\":{\"n_decoded\":%" PRIu32
                    ",\"n_remain\":%" PRIu32 "}",
                    r->request_id, r->prompt_tokens, r->prefill_tokens_done, r->predicted_tokens,
                    r->predict > r->predicted_tokens ? r->predict - r->predicted_tokens : 0);
        add_kv(&job->out, status, r);
    }
    text_puts(&job->out, "}");
}

static void answer_slots(struct job *job, const Hill__StatusReply *status)
{
    text_puts(&job->out, "[");
    for (uint32_t slot = 0; slot < status->parallel && slot < 1024; slot++)
        add_slot(job, status, slot);
    text_puts(&job->out, "]");
    job_answer_whole(job, "application/json");
}

static void answer_status(struct job *job, const Hill__StatusReply *status)
{
    if (job->route.endpoint == ENDPOINT_HEALTH) {
        answer_health(job, status);
    } else if (job->route.endpoint == ENDPOINT_SLOTS) {
        answer_slots(job, status);
    } else {
        meters_write(&job->out, &job->gateway->meters, status);
        job_answer_whole(job, "text/plain; version=0.0.4; charset=utf-8");
    }
}

/* llama-server's: a piece is a text, or a list of bytes where it is none. */
static void add_piece(struct text_buffer *out, uint32_t token, const ProtobufCBinaryData *piece)
{
    json_t *text = json_stringn(piece->len ? (const char *)piece->data : "", piece->len);
    text_printf(out, "{\"id\":%" PRIu32 ",\"piece\":", token);
    if (text)
        text_add_json(out, piece->len ? (const char *)piece->data : "", piece->len);
    for (size_t i = 0; !text && i < piece->len; i++)
        text_printf(out, "%s%u", i ? "," : "[", piece->data[i]);
    text_puts(out, text ? "}" : "]}");
    json_decref(text);
}

static void answer_tokens(struct job *job, const Hill__Tokens *tokens)
{
    struct text_buffer *out = &job->out;
    if (job->route.endpoint == ENDPOINT_DETOKENIZE) {
        text_puts(out, "{\"content\":");
        text_add_json(out, (const char *)tokens->text.data, tokens->text.len);
        text_puts(out, "}");
    } else {
        text_puts(out, "{\"tokens\":[");
        for (size_t i = 0; i < tokens->n_tokens; i++) {
            text_puts(out, i ? "," : "");
            if (job->order.with_pieces && i < tokens->n_pieces)
                add_piece(out, tokens->tokens[i], &tokens->pieces[i]);
            else
                text_printf(out, "%" PRIu32, tokens->tokens[i]);
        }
        text_puts(out, "]}");
    }
    job_answer_whole(job, "application/json");
}

void ask_take(struct job *job, const Hill__Message *message)
{
    if (message->body_case == HILL__MESSAGE__BODY_STATUS_REPLY)
        answer_status(job, message->status_reply);
    else if (message->body_case == HILL__MESSAGE__BODY_TOKENS)
        answer_tokens(job, message->tokens);
    else if (message->body_case == HILL__MESSAGE__BODY_REPLY)
        job_refused(job, message->reply);
}

/* ---- a template alone ------------------------------------------------------------------------ */

void ask_rendered(struct job *job)
{
    const struct chat_prompt *prompt = &job->render->prompt;
    struct text_buffer whole = {0};
    for (uint64_t i = 0; i < prompt->n_pieces; i++)
        text_add(&whole, prompt->pieces[i].text, prompt->pieces[i].bytes);
    if (job->order.begun_bytes)
        text_add(&whole, job->order.begun, job->order.begun_bytes);
    text_puts(&job->out, "{\"prompt\":");
    text_add_json(&job->out, whole.bytes, whole.length);
    text_puts(&job->out, "}");
    text_finish(&whole);
    job_answer_whole(job, "application/json");
}

static void render_messages(struct job *job)
{
    job_render(job, chat_prompt_format(upstream_model(&job->gateway->upstream)));
}

/* ---- the beginning --------------------------------------------------------------------------- */

static enum order_kind order_of(enum endpoint endpoint)
{
    return endpoint == ENDPOINT_TOKENIZE     ? ORDER_TOKENIZE
           : endpoint == ENDPOINT_DETOKENIZE ? ORDER_DETOKENIZE
                                             : ORDER_CHAT;
}

void ask_begin(struct job *job)
{
    struct api_error error;
    enum endpoint endpoint = job->route.endpoint;
    job->state = JOB_ASKING;
    if (job->route.post &&
        order_read(&job->order, order_of(endpoint), job->body.bytes, job->body.length, &error)) {
        job_refuse(job, &error);
        return;
    }
    if (endpoint == ENDPOINT_PAGE) {
        answer_page(job);
        return;
    }
    if (!upstream_known(&job->gateway->upstream)) {
        job_unavailable(job);
        return;
    }
    switch (endpoint) {
    case ENDPOINT_MODELS:
        answer_models(job);
        break;
    case ENDPOINT_MODEL:
        answer_model(job);
        break;
    case ENDPOINT_PROPS:
        answer_props(job);
        break;
    case ENDPOINT_TOKENIZE:
        ask_tokenize(job);
        break;
    case ENDPOINT_DETOKENIZE:
        ask_detokenize(job);
        break;
    case ENDPOINT_APPLY_TEMPLATE:
        render_messages(job);
        break;
    default:
        ask_status(job);
    }
}
