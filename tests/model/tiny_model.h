/*
 * tests/model/tiny_model.h - a whole little Llama-architecture GGUF with a byte-level vocabulary,
 * for damage and shape tests.
 */
#pragma once

#include "tests/model/gguf_writer.h"

enum {
    TINY_LAYERS = 2,
    TINY_EMBD = 8,
    TINY_HEADS = 4,
    TINY_KV = 2,
    TINY_FF = 12,
    TINY_VOCAB = 258
};

/* GPT-2's spelling of a byte, with a NUL. */
void spell_byte(int byte, char out[4]);

/* The 256 bytes in order (id = byte), then the texts in more. merges NULL: the key is left out. */
void byte_vocabulary(struct writer *w, const char *pre, const char *const *more, uint64_t n_more,
                     const char *const *merges, uint64_t n_merges);

void tiny_f32(struct writer *w, const char *name, uint64_t width, uint64_t height);

/* The metadata without general.architecture. */
void tiny_counts(struct writer *w);

/* Tensors, but for the one named skip. */
void tiny_tensors(struct writer *w, const char *skip);

void tiny_vocabulary(struct writer *w);
