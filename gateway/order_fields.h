/*
 * gateway/order_fields.h - the fields that a request body may have: one table.
 *
 * What: which field belongs to which endpoint, and what becomes of it. docs/http.md lists the same.
 * Who calls it: order.c. Concurrency: stateless.
 */
#pragma once

#include "gateway/order.h"

enum field_id {
    FIELD_IGNORED, /* no effect here, whatever it says */
    FIELD_REFUSED, /* unless it has a value that asks for nothing */
    FIELD_FLAG,    /* true or false, into the order */
    FIELD_NUMBER,  /* a real number, in the range of an option */
    FIELD_MODEL,
    FIELD_MESSAGES,
    FIELD_TOOLS,
    FIELD_TOOL_CHOICE,
    FIELD_PROMPT,
    FIELD_BEFORE,
    FIELD_AFTER,
    FIELD_EXTRA,
    FIELD_TOKENS,
    FIELD_STOP,
    FIELD_STREAM_OPTIONS,
    FIELD_PREDICT,
    FIELD_SEED,
    FIELD_TOP_K,
    FIELD_LOGPROBS,
    FIELD_RESPONSE_FORMAT,
    FIELD_TEMPLATE_KWARGS,
    FIELD_EFFORT,
    FIELD_REASONING,
    FIELD_ALPHA,
    FIELD_BUDGET,
    FIELD_POLICY,
};

struct order_field {
    const char *name;
    unsigned kinds; /* enum order_kind, added up */
    enum field_id id;
    const char *neutral; /* of a refused one: values that ask for nothing, as a JSON list */
    const char *why;     /* of a refused one */
    size_t at;           /* of a flag or a number: where in struct order */
    const char *option;  /* of a number */
};

/* NULL: there is no such field. */
const struct order_field *order_field_find(const char *name, enum order_kind kind);
bool order_field_is_neutral(const struct order_field *field, const json_t *value);
