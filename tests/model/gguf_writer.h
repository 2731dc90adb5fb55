/*
 * tests/model/gguf_writer.h - a little GGUF writer for the tests, written from the specification
 * and sharing nothing with model/gguf.c. It writes what it is told, sound or not. Out of memory
 * aborts.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf.h"

struct blob {
    uint8_t *data;
    size_t size, capacity;
};

void put(struct blob *b, const void *data, size_t size);

void put_u32(struct blob *b, uint32_t v);

void put_u64(struct blob *b, uint64_t v);

void put_text(struct blob *b, const char *text);

/* A file in the making: the parts are counted and put together by writer_build. */
struct writer {
    uint32_t version;
    uint64_t alignment; /* of the data section; general.alignment is not written by itself */
    uint64_t n_values, n_tensors;
    struct blob values, directory, data;
};

struct writer writer_new(void);

void writer_free(struct writer *w);

void key(struct writer *w, const char *name, uint32_t type);

void key_u32(struct writer *w, const char *name, uint32_t v);

void key_f32(struct writer *w, const char *name, float v);

void key_bool(struct writer *w, const char *name, uint8_t v);

void key_text(struct writer *w, const char *name, const char *v);

void key_array(struct writer *w, const char *name, uint32_t item_type, uint64_t count);

void key_texts(struct writer *w, const char *name, const char *const *v, uint64_t n);

/* The directory entry alone, whatever it claims. */
void tensor_entry(struct writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                  uint32_t type, uint64_t offset);

/* A matrix of `bytes` bytes of data (zeros when data is NULL), aligned. */
void tensor(struct writer *w, const char *name, uint64_t width, uint64_t height, uint32_t type,
            const void *data, size_t bytes);

struct blob writer_build(const struct writer *w);

/* Write bytes into a temporary file, open it, and remove the name again. */
int open_bytes(struct gguf_file **out, const void *data, size_t size, struct hill_why *why);

/* Build, open and free the writer. */
int open_writer(struct gguf_file **out, struct writer *w, struct hill_why *why);

/* xorshift64*: the same numbers everywhere. */
uint64_t next_random(uint64_t *state);
