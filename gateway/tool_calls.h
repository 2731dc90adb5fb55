/*
 * gateway/tool_calls.h - calls of tools, found in what a model writes.
 *
 * What: text goes in as it comes; what is no call comes out as text, a call when it is whole. What
 * looks like a call and is none (no JSON, no name) comes out as text. Who calls it: job_generate.c.
 * Concurrency: one thread per reader. Failure: a failed allocation shows in held.failed.
 */
#pragma once

#include <stdint.h>

#include "gateway/text_buffer.h"
#include "model/chat_template.h"

struct call_reader {
    enum chat_tools form;           /* CHAT_TOOLS_NONE: all is text */
    uint64_t id;                    /* of the answer; calls' ids are made of it */
    bool inside, began;             /* of a call; something has come that is no white space */
    unsigned n;                     /* calls that have come out */
    struct text_buffer held, space; /* of a call or what may begin one; white space before it */
};

/* text: what is certain to be text is added. calls: whole calls are added, as items of a list of
 * JSON, for a stream with "index". */
void calls_feed(struct call_reader *reader, const char *bytes, size_t n, struct text_buffer *text,
                struct text_buffer *calls, bool stream);
/* The answer is at its end: a call that was cut is text. */
void calls_flush(struct call_reader *reader, struct text_buffer *text, struct text_buffer *calls,
                 bool stream);
void calls_finish(struct call_reader *reader);
