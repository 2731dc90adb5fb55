/*
 * gateway/reasoning.h - a model's reasoning, split off its answer.
 *
 * What: text goes in as it comes; what stands between <think> and </think>, or [THINK] and [/THINK]
 * (model/tokenizer.h: reasoning_tags), at the beginning of an answer comes out as reasoning, all
 * else as text. White space around the reasoning and before the text behind it is left out; an
 * answer without reasoning stays as it is. A verbatim reader leaves nothing out: reasoning comes
 * with its tags and all white space. How the answer was cut into pieces makes no difference, but a
 * tag is not seen where an answer begins in its middle.
 * Pure. Who calls it: job_generate.c. Concurrency: one thread per reader. Failure: a failed
 * allocation shows in text->failed.
 */
#pragma once

#include "gateway/text_buffer.h"
#include "model/tokenizer.h"

enum reasoning_state {
    REASONING_OVER,   /* the rest is text; of a reader that is all zero: everything */
    REASONING_BEGIN,  /* nothing has come yet but white space, or a part of a tag */
    REASONING_OPENED, /* the same, and the prompt has ended with a tag */
    REASONING_INSIDE,
    REASONING_BEHIND, /* the tag that ends it has come, and white space */
};

struct reasoning_reader {
    enum reasoning_state state;
    const struct reasoning_tags *tags; /* of the reasoning that is open */
    bool began;                        /* some reasoning has come out */
    bool verbatim;                     /* set before reasoning_begin: nothing is left out */
    struct text_buffer held;           /* white space, and what may be a part of a tag */
};

/* The tags whose first one a rendered prompt ends with, so that the answer begins as reasoning;
 * else NULL. */
const struct reasoning_tags *reasoning_opened(const struct prompt_piece *pieces, size_t n);
/* opened: that; begun: how the answer begins, before what is fed. */
void reasoning_begin(struct reasoning_reader *reader, const struct reasoning_tags *opened,
                     const char *begun, size_t n);
/* What is certain is added to reasoning and text. */
void reasoning_feed(struct reasoning_reader *reader, const char *bytes, size_t n,
                    struct text_buffer *reasoning, struct text_buffer *text);
/* The answer is at its end: reasoning that was cut stays reasoning. */
void reasoning_flush(struct reasoning_reader *reader, struct text_buffer *reasoning,
                     struct text_buffer *text);
void reasoning_finish(struct reasoning_reader *reader);
