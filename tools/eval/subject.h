/*
 * tools/eval/subject.h - the model that is measured: its tokenizer (to count what fits) and what
 * tells it from another.
 *
 * Who calls it: main.c, items.c. Failure: codes of gguf.h and tokenizer.h. Concurrency: none.
 */
#pragma once

#include "proto/options_hill.h"
#include "model/chat_template.h"

struct subject {
    char path[HILL_PATH_BYTES];
    struct tokenizer *tokenizer;
    /* of the size, the first and the last MiB: metadata and the last tensors, which training
     * changes; a file of many GiB is not read for it */
    uint64_t fingerprint;
    uint32_t trained_tokens;        /* context that the model was trained for; 0: not said */
    const struct chat_format *chat; /* NULL: no chat template, or none that is known */
    char *bos, *eos;                /* as the vocabulary spells them; "" for none */
    uint64_t entry_bytes;           /* of one token's KV entries, all layers */
};

int subject_open(struct subject *subject, const char *path, struct hill_why *why);
void subject_close(struct subject *subject);

/* Tokens of a text, with what the coordinator puts before a prompt (special) or as it stands. */
int subject_count(const struct subject *subject, const char *text, size_t bytes, bool special,
                  uint32_t *count, struct hill_why *why);

/* The tokens of a text, with what the coordinator puts before a prompt; the caller frees them. */
int subject_encode(const struct subject *subject, const char *text, size_t bytes, uint32_t **tokens,
                   uint32_t *count, struct hill_why *why);

/* Tokens of a question as the one message of a conversation, or of the plain text when no chat
 * template is known; the caller frees them. */
int subject_chat(const struct subject *subject, const char *text, size_t bytes, uint32_t **tokens,
                 uint32_t *count, struct hill_why *why);
