/*
 * gateway/api_error.h - why a request is refused, in OpenAI's shape.
 *
 * What: {"error": {"message", "type", "param", "code"}} with the HTTP status; type follows from the
 * status. Who calls it: whatever reads or answers a request. Concurrency: stateless.
 */
#pragma once

#include "gateway/text_buffer.h"

struct api_error {
    int status;             /* HTTP; 0: nothing is wrong */
    const char *code;       /* "unknown_field"; NULL: null */
    char param[64];         /* the field; empty: null */
    char text[512];         /* one line */
    unsigned retry_after_s; /* of 429 and 503; 0: not said */
};

/* Returns -1, so that `return api_refuse(...)` reads well. code and param may be NULL. */
int api_refuse(struct api_error *error, int status, const char *code, const char *param,
               const char *format, ...) __attribute__((format(printf, 5, 6)));
/* What a pipeline's code (base/error.h) and line come to. Returns -1. */
int api_refuse_as(struct api_error *error, int code, const char *text);

void api_error_write(struct text_buffer *out, const struct api_error *error);
