/*
 * gateway/answers.h - answers of a model in OpenAI's JSON, whole and as a stream of events.
 *
 * What: fields that OpenAI's clients read, and beside them llama-server's `timings` and
 * `prompt_progress`. Pure: text in, text out. Who calls it: the gateway's jobs. Concurrency:
 * stateless.
 */
#pragma once

#include <stdint.h>

#include "gateway/logprobs.h"
#include "gateway/text_buffer.h"

struct answer_head {
    bool chat;  /* else a completion */
    bool usage; /* of a stream: include_usage */
    char id[48];
    const char *model;
    int64_t created;                 /* seconds since 1970 */
    bool fill;                       /* an infill: llama-server's own form */
    const char *stop_type;           /* of that, at its end */
    const struct text_buffer *looks; /* members that stand beside the timings; NULL: none */
};

struct answer_figures {
    uint32_t prompt_tokens, predicted_tokens;
    uint32_t cached_tokens; /* of the prompt: not computed */
    bool measured;          /* the times are known */
    double prompt_ms, predicted_ms;
};

/* What a model has written; reasoning and calls of a chat alone. */
struct answer_parts {
    struct text_buffer reasoning, text;
    struct text_buffer calls; /* of tools, items of a list */
};

/* logprobs, here and below: those of what is certain are written; NULL: none */
void answer_whole(struct text_buffer *out, const struct answer_head *head,
                  const struct answer_parts *parts, const char *finish,
                  const struct answer_figures *figures, struct logprobs *logprobs);

/* ---- a stream: begin, then chunks and progress, then end or error ---- */
void answer_begin(struct text_buffer *out, const struct answer_head *head);
void answer_chunk(struct text_buffer *out, const struct answer_head *head, const char *text,
                  size_t bytes, struct logprobs *logprobs);
void answer_reasoning(struct text_buffer *out, const struct answer_head *head,
                      const struct text_buffer *reasoning, struct logprobs *logprobs);
void answer_calls(struct text_buffer *out, const struct answer_head *head,
                  const struct text_buffer *calls);
void answer_progress(struct text_buffer *out, const struct answer_head *head, double total,
                     double done, double ms);
void answer_end(struct text_buffer *out, const struct answer_head *head, const char *finish,
                const struct answer_figures *figures);
/* json: what api_error_write made. */
void answer_error(struct text_buffer *out, const char *json, size_t bytes);
void answer_comment(struct text_buffer *out); /* so that a client that is gone is noticed */
