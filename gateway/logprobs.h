/*
 * gateway/logprobs.h - how probable each token of an answer was, in OpenAI's two forms.
 *
 * What: tokens go in as they come, each with the text that came with it, and come out with the text
 * that is certain (stop_strings.h may hold some back): a token whose text begins behind that waits.
 * What is behind a stop string never comes out. Alternatives are not known here: top_logprobs is
 * empty. Who calls it: job_generate.c, answers.c. Concurrency: one thread per list. Failure: a
 * failed allocation shows in raw.failed.
 */
#pragma once

#include <stdint.h>

#include "gateway/text_buffer.h"

struct logprob_entry {
    uint64_t begin, bytes; /* of its text in raw */
    uint64_t offset;       /* characters before it */
    double logprob;
};

struct logprobs {
    bool wanted, chat; /* chat: the form of chats, else of completions */
    struct logprob_entry *list;
    size_t n, room, next; /* next: the first that is not out yet */
    struct text_buffer raw;
    uint64_t characters; /* of raw */
    uint64_t sure;       /* bytes of raw that are certain */
};

/* A token; or, with new_token false, more text of the newest. */
void logprobs_add(struct logprobs *l, const char *text, size_t bytes, double logprob,
                  bool new_token);
/* `bytes` more of the text are certain. */
void logprobs_sure(struct logprobs *l, size_t bytes);
/* The value of "logprobs" for what is certain and not out yet; null where none are wanted. */
void logprobs_write(struct text_buffer *out, struct logprobs *l);
/* Is anything certain, and not out yet? */
bool logprobs_due(const struct logprobs *l);
void logprobs_finish(struct logprobs *l);
