/* gateway/answers.c - see answers.h. */
#include "gateway/answers.h"

#include <inttypes.h>
#include <string.h>

static void add_head(struct text_buffer *out, const struct answer_head *head, const char *object)
{
    text_printf(out,
                "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", head->id,
                object, head->created);
    text_add_json(out, head->model, strlen(head->model));
    text_puts(out, ",\"system_fingerprint\":\"hillinfer-" HILL_VERSION "\"");
}

static void add_usage(struct text_buffer *out, const struct answer_figures *f)
{
    text_printf(out,
                ",\"usage\":{\"prompt_tokens\":%" PRIu32 ",\"completion_tokens\":%" PRIu32
                ",\"total_tokens\":%" PRIu64
                ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu32 "}}",
                f->prompt_tokens, f->predicted_tokens,
                (uint64_t)f->prompt_tokens + f->predicted_tokens, f->cached_tokens);
}

static void add_rate(struct text_buffer *out, const char *what, uint32_t tokens, double ms)
{
    text_printf(out, "\"%s_n\":%" PRIu32 ",\"%s_ms\":", what, tokens, what);
    text_add_number(out, ms);
    text_printf(out, ",\"%s_per_token_ms\":", what);
    text_add_number(out, tokens ? ms / tokens : 0);
    text_printf(out, ",\"%s_per_second\":", what);
    text_add_number(out, ms > 0 ? tokens * 1e3 / ms : 0);
}

static void add_looks(struct text_buffer *out, const struct answer_head *head)
{
    if (head->looks && head->looks->length)
        text_add(out, head->looks->bytes, head->looks->length);
    out->failed |= head->looks && head->looks->failed;
}

/* As llama-server has them. */
static void add_timings(struct text_buffer *out, const struct answer_figures *f)
{
    if (!f->measured)
        return;
    text_printf(out, ",\"timings\":{\"cache_n\":%" PRIu32 ",", f->cached_tokens);
    add_rate(out, "prompt", f->prompt_tokens - f->cached_tokens, f->prompt_ms);
    text_puts(out, ",");
    add_rate(out, "predicted", f->predicted_tokens, f->predicted_ms);
    text_puts(out, "}");
}

/* logprobs: NULL for none. */
static void add_finish(struct text_buffer *out, const char *finish, struct logprobs *logprobs)
{
    text_puts(out, ",\"logprobs\":");
    if (logprobs)
        logprobs_write(out, logprobs);
    else
        text_puts(out, "null");
    if (finish)
        text_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else
        text_puts(out, ",\"finish_reason\":null}]");
}

/* llama-server's own form: an answer, or a chunk of one. */
static void add_fill(struct text_buffer *out, const struct answer_head *head, const char *text,
                     size_t bytes, const struct answer_figures *figures)
{
    text_puts(out, "{\"index\":0,\"content\":");
    text_add_json(out, bytes ? text : "", bytes);
    text_printf(out, ",\"tokens\":[],\"stop\":%s", figures ? "true" : "false");
    if (figures) {
        text_puts(out, ",\"model\":");
        text_add_json(out, head->model, strlen(head->model));
        text_printf(out,
                    ",\"tokens_predicted\":%" PRIu32 ",\"tokens_evaluated\":%" PRIu32
                    ",\"tokens_cached\":%" PRIu64 ",\"truncated\":false,\"stop_type\":\"%s\"",
                    figures->predicted_tokens, figures->prompt_tokens,
                    (uint64_t)figures->prompt_tokens + figures->predicted_tokens, head->stop_type);
        add_timings(out, figures);
    }
    text_puts(out, "}");
}

static void add_fill_event(struct text_buffer *out, const struct answer_head *head,
                           const char *text, size_t bytes, const struct answer_figures *figures)
{
    text_puts(out, "data: ");
    add_fill(out, head, text, bytes, figures);
    text_puts(out, "\n\n");
}

void answer_whole(struct text_buffer *out, const struct answer_head *head,
                  const struct answer_parts *parts, const char *finish,
                  const struct answer_figures *figures, struct logprobs *logprobs)
{
    const struct text_buffer *text = &parts->text, *calls = &parts->calls,
                             *reasoning = &parts->reasoning;
    if (head->fill) {
        add_fill(out, head, text->bytes, text->length, figures);
        return;
    }
    add_head(out, head, head->chat ? "chat.completion" : "text_completion");
    text_puts(out, head->chat ? ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                              : ",\"choices\":[{\"index\":0,");
    if (reasoning->length) {
        text_puts(out, "\"reasoning_content\":");
        text_add_json(out, reasoning->bytes, reasoning->length);
        text_puts(out, ",");
    }
    text_puts(out, head->chat ? "\"content\":" : "\"text\":");
    if (calls->length && !text->length)
        text_puts(out, "null");
    else
        text_add_json(out, text->length ? text->bytes : "", text->length);
    if (calls->length) {
        text_puts(out, ",\"tool_calls\":[");
        text_add(out, calls->bytes, calls->length);
        text_puts(out, "]");
    }
    if (head->chat)
        text_puts(out, ",\"refusal\":null}");
    add_finish(out, finish, logprobs);
    add_usage(out, figures);
    add_timings(out, figures);
    add_looks(out, head);
    text_puts(out, "}");
}

/* ---- a stream ----------------------------------------------------------------------------- */

static void begin_event(struct text_buffer *out, const struct answer_head *head)
{
    text_puts(out, "data: ");
    add_head(out, head, head->chat ? "chat.completion.chunk" : "text_completion");
}

static void end_event(struct text_buffer *out, const struct answer_head *head)
{
    text_puts(out, head->usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void answer_begin(struct text_buffer *out, const struct answer_head *head)
{
    if (!head->chat)
        return;
    begin_event(out, head);
    text_puts(out,
              ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    add_finish(out, NULL, NULL);
    end_event(out, head);
}

/* before: what stands before the text, from the event's choices on. */
static void add_chunk(struct text_buffer *out, const struct answer_head *head, const char *before,
                      const char *text, size_t bytes, struct logprobs *logprobs)
{
    begin_event(out, head);
    text_printf(out, ",\"choices\":[{\"index\":0,%s", before);
    text_add_json(out, text, bytes);
    if (head->chat)
        text_puts(out, "}");
    add_finish(out, NULL, logprobs);
    end_event(out, head);
}

void answer_chunk(struct text_buffer *out, const struct answer_head *head, const char *text,
                  size_t bytes, struct logprobs *logprobs)
{
    if (head->fill)
        add_fill_event(out, head, text, bytes, NULL);
    else
        add_chunk(out, head, head->chat ? "\"delta\":{\"content\":" : "\"text\":", text, bytes,
                  logprobs);
}

void answer_reasoning(struct text_buffer *out, const struct answer_head *head,
                      const struct text_buffer *reasoning, struct logprobs *logprobs)
{
    add_chunk(out, head, "\"delta\":{\"reasoning_content\":", reasoning->bytes, reasoning->length,
              logprobs);
}

void answer_calls(struct text_buffer *out, const struct answer_head *head,
                  const struct text_buffer *calls)
{
    begin_event(out, head);
    text_puts(out, ",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[");
    text_add(out, calls->bytes, calls->length);
    text_puts(out, "]}");
    add_finish(out, NULL, NULL);
    end_event(out, head);
}

static void add_nothing(struct text_buffer *out, const struct answer_head *head, const char *finish)
{
    text_puts(out, head->chat ? ",\"choices\":[{\"index\":0,\"delta\":{}"
                              : ",\"choices\":[{\"index\":0,\"text\":\"\"");
    add_finish(out, finish, NULL);
}

void answer_progress(struct text_buffer *out, const struct answer_head *head, double total,
                     double done, double ms)
{
    begin_event(out, head);
    add_nothing(out, head, NULL);
    text_printf(out,
                ",\"prompt_progress\":{\"total\":%.0f,\"processed\":%.0f,"
                "\"time_ms\":%.0f}",
                total, done, ms);
    end_event(out, head);
}

void answer_end(struct text_buffer *out, const struct answer_head *head, const char *finish,
                const struct answer_figures *figures)
{
    if (head->fill) {
        add_fill_event(out, head, NULL, 0, figures);
        return;
    }
    begin_event(out, head);
    add_nothing(out, head, finish);
    add_timings(out, figures);
    add_looks(out, head);
    end_event(out, head);
    if (head->usage) {
        begin_event(out, head);
        text_puts(out, ",\"choices\":[]");
        add_usage(out, figures);
        text_puts(out, "}\n\n");
    }
    text_puts(out, "data: [DONE]\n\n");
}

void answer_error(struct text_buffer *out, const char *json, size_t bytes)
{
    text_puts(out, "data: ");
    text_add(out, json, bytes);
    text_puts(out, "\n\n");
}

void answer_comment(struct text_buffer *out)
{
    text_puts(out, ": waiting\n\n");
}
