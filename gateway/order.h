/*
 * gateway/order.h - what a request body asks for.
 *
 * What: every field is in one table (order_fields.c): taken with type and range, accepted without
 * effect, or refused by name unless it has the value that asks for nothing; a field outside the
 * table is refused by name, as in OpenAI's API. null is the same as no field. Pure: the fuzzer
 * calls it. Who calls it: the gateway's jobs. Failure: -1 and *error (400). Concurrency: stateless.
 */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "gateway/api_error.h"
#include "gateway/stop_strings.h"
#include "model/chat_template.h"

#define FILL_FILES_MAX 1024u /* texts of other files */

enum order_kind {
    ORDER_CHAT = 1, /* of /apply-template, too */
    ORDER_COMPLETION = 2,
    ORDER_TOKENIZE = 4,
    ORDER_DETOKENIZE = 8,
    ORDER_INFILL = 16
};

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

struct order {
    enum order_kind kind;
    json_t *root; /* owned; texts point into it */
    /* what is asked */
    struct chat_message *messages; /* [n_messages], owned */
    unsigned n_messages;
    const char *begun; /* how the answer begins: the text of a last message of the assistant's */
    size_t begun_bytes;
    char *texts;          /* of messages that came in several parts; owned */
    const json_t **calls; /* [n_messages] of tools, of an assistant's message; owned; NULL: none */
    const json_t *tools;  /* that may be called; NULL: none */
    enum tool_choice tool_choice;
    const char *tool_name;
    char **told; /* [n_told] texts of messages that tell of tools (tools.h); owned */
    size_t n_told;
    bool told_failed;
    bool no_think;      /* the template's enable_thinking is false, where it has that switch */
    const char *prompt; /* or the text of tokenize */
    size_t prompt_bytes;
    const json_t *before, *after; /* of infill: the texts around what is wanted */
    const json_t *extra;          /* of infill: texts of other files, {"filename", "text"} */
    uint32_t *ids;                /* a prompt of tokens instead, or those of detokenize; owned */
    size_t n_ids;
    /* how it is sampled */
    uint32_t predict; /* HILL_PREDICT_UNTIL_CONTEXT or the number */
    bool prompt_only; /* no token is wanted: the prompt is read, for requests that begin with it */
    double temperature, top_p, min_p, repeat_penalty;
    uint32_t top_k;
    uint32_t unset; /* of these five: enum hill_sampling_field, what the body leaves open */
    uint64_t seed;  /* 0: any */
    bool ignore_eos, logprobs;
    bool json;            /* the answer is one JSON object */
    bool split_reasoning; /* of a chat: what the answer reasons stands apart */
    bool cache_prompt;    /* what finished requests have left may be used, and is left */
    struct stop_string stops[STOP_STRINGS_MAX];
    unsigned n_stops;
    char *stop_texts; /* once the body is forgotten; owned */
    /* how it is selected; else as the pipeline does */
    bool has_alpha, has_budget, has_policy;
    double alpha;
    uint32_t budget, policy;
    /* how it is answered */
    bool stream, include_usage, progress;
    bool selection, timeline;      /* which passages were chosen; where a token's time went */
    bool add_special, with_pieces; /* of tokenize */
    bool parse_special;            /* control tokens spelt out in the prompt are those tokens */
};

/* order_finish it, after a failure, too. */
int order_read(struct order *order, enum order_kind kind, const char *body, size_t bytes,
               struct api_error *error);
void order_finish(struct order *order);
/* The prompt has been sent: of the body stay the stop strings. HILL_E_NOMEM: all of it stays. */
int order_forget_body(struct order *order);

/* ---- parts of it ---- */

/* messages of a chat into order->messages (order_messages.c) */
int order_read_messages(struct order *order, const json_t *list, struct api_error *error);
