/*
 * tests/model/gguf_writer.h - a little GGUF writer for the tests, written from the specification
 * and sharing nothing with model/gguf.c. It writes what it is told, sound or not. Out of memory
 * aborts.
 */
#ifndef TESTS_MODEL_GGUF_WRITER_H
#define TESTS_MODEL_GGUF_WRITER_H

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

static inline void put(struct blob *b, const void *data, size_t size)
{
    if (b->size + size > b->capacity) {
        b->capacity = (b->size + size) * 2 + 64;
        b->data = realloc(b->data, b->capacity);
        if (!b->data)
            abort();
    }
    if (size)
        memcpy(b->data + b->size, data, size);
    b->size += size;
}

static inline void put_u32(struct blob *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static inline void put_u64(struct blob *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static inline void put_bytes(struct blob *b, const void *text, uint64_t length)
{
    put_u64(b, length);
    put(b, text, length);
}

static inline void put_text(struct blob *b, const char *text)
{
    put_bytes(b, text, strlen(text));
}

/* A file in the making: the parts are counted and put together by writer_build. */
struct writer {
    uint32_t version;
    uint64_t alignment; /* of the data section; general.alignment is not written by itself */
    uint64_t n_values, n_tensors;
    struct blob values, directory, data;
};

static inline struct writer writer_new(void)
{
    return (struct writer){.version = 3, .alignment = 32};
}

static inline void writer_free(struct writer *w)
{
    free(w->values.data);
    free(w->directory.data);
    free(w->data.data);
}

static inline void key(struct writer *w, const char *name, uint32_t type)
{
    put_text(&w->values, name);
    put_u32(&w->values, type);
    w->n_values++;
}

static inline void key_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, 4);
    put_u32(&w->values, v);
}

static inline void key_f32(struct writer *w, const char *name, float v)
{
    key(w, name, 6);
    put(&w->values, &v, 4);
}

static inline void key_bool(struct writer *w, const char *name, uint8_t v)
{
    key(w, name, 7);
    put(&w->values, &v, 1);
}

static inline void key_text(struct writer *w, const char *name, const char *v)
{
    key(w, name, 8);
    put_text(&w->values, v);
}

static inline void key_array(struct writer *w, const char *name, uint32_t item_type, uint64_t count)
{
    key(w, name, 9);
    put_u32(&w->values, item_type);
    put_u64(&w->values, count);
}

static inline void key_texts(struct writer *w, const char *name, const char *const *v, uint64_t n)
{
    key_array(w, name, 8, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&w->values, v[i]);
}

/* The directory entry alone, whatever it claims. */
static inline void tensor_entry(struct writer *w, const char *name, uint32_t n_dims,
                                const uint64_t *dims, uint32_t type, uint64_t offset)
{
    put_text(&w->directory, name);
    put_u32(&w->directory, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(&w->directory, dims[d]);
    put_u32(&w->directory, type);
    put_u64(&w->directory, offset);
    w->n_tensors++;
}

/* A matrix of `bytes` bytes of data (zeros when data is NULL), aligned. */
static inline void tensor(struct writer *w, const char *name, uint64_t width, uint64_t height,
                          uint32_t type, const void *data, size_t bytes)
{
    const uint64_t dims[2] = {width, height};
    while (w->data.size % w->alignment)
        put(&w->data, "", 1);
    tensor_entry(w, name, height == 1 ? 1 : 2, dims, type, w->data.size);
    for (size_t i = 0; i < bytes; i++)
        put(&w->data, data ? (const char *)data + i : "", 1);
}

static inline struct blob writer_build(const struct writer *w)
{
    struct blob b = {0};
    put(&b, "GGUF", 4);
    put_u32(&b, w->version);
    put_u64(&b, w->n_tensors);
    put_u64(&b, w->n_values);
    put(&b, w->values.data, w->values.size);
    put(&b, w->directory.data, w->directory.size);
    while (b.size % w->alignment)
        put(&b, "", 1);
    put(&b, w->data.data, w->data.size);
    return b;
}

/* Write bytes into a temporary file, open it, and remove the name again. */
static inline int open_bytes(struct gguf_file **out, const void *data, size_t size,
                             struct hill_why *why)
{
    char path[] = "/tmp/hill-gguf-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
    why->text[0] = 0;
    int rc = gguf_open(out, path, why);
    unlink(path);
    return rc;
}

/* Build, open and free the writer. */
static inline int open_writer(struct gguf_file **out, struct writer *w, struct hill_why *why)
{
    struct blob b = writer_build(w);
    int rc = open_bytes(out, b.data, b.size, why);
    free(b.data);
    writer_free(w);
    return rc;
}

/* xorshift64*: the same numbers everywhere. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
