/*
 * gateway/text_buffer.h - bytes that grow at the end and are taken from the front, and JSON
 * strings.
 *
 * What: what an answer is written into. A failed allocation is remembered in `failed`: the caller
 * looks once, at the end. Who calls it: whatever writes an answer. Concurrency: one thread per
 * buffer.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct text_buffer {
    char *bytes;
    size_t length, room;
    bool failed; /* out of memory: something is missing */
};

void text_add(struct text_buffer *buffer, const char *text, size_t bytes);
void text_puts(struct text_buffer *buffer, const char *text);
void text_printf(struct text_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* As a JSON string, with its quotes; bytes that are no UTF-8 become U+FFFD. */
void text_add_json(struct text_buffer *buffer, const char *text, size_t bytes);
/* A JSON number; null where it is none. */
void text_add_number(struct text_buffer *buffer, double number);
void text_drop(struct text_buffer *buffer, size_t bytes); /* from the front */
/* How many bytes at its end are the beginning of a word that is longer: the most; 0: none. */
size_t text_begun(const struct text_buffer *buffer, const char *word, size_t bytes);
void text_finish(struct text_buffer *buffer);
