/*
 * gateway/stop_strings.h - an answer ends before the first stop string that it completes.
 *
 * What: text goes in as it comes and comes out as far as it cannot be the beginning of a stop
 * string. Where several strings end at the same byte the longest counts. How the text was cut into
 * pieces makes no difference. Who calls it: job_generate.c. Concurrency: one thread per matcher.
 */
#pragma once

#include "gateway/text_buffer.h"

#define STOP_STRINGS_MAX      16u
#define STOP_STRING_BYTES_MAX 256u

struct stop_string {
    const char *text; /* the caller's; not empty */
    size_t bytes;
};

struct stop_matcher {
    struct stop_string strings[STOP_STRINGS_MAX];
    unsigned n;
    struct text_buffer held; /* not given out yet */
    bool stopped;
};

/* Text that is certain is added to out. True: a stop string is complete, nothing more comes. */
bool stop_feed(struct stop_matcher *matcher, const char *text, size_t bytes,
               struct text_buffer *out);
/* The answer is over: what was held back is text. */
void stop_flush(struct stop_matcher *matcher, struct text_buffer *out);
void stop_finish(struct stop_matcher *matcher);
