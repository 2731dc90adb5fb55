/*
 * tests/model/gguf_writer.c - a GGUF file in memory, key by key and tensor by tensor. Interface:
 * gguf_writer.h.
 */
#include "tests/model/gguf_writer.h"

void put(struct blob *b, const void *data, size_t size)
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

void put_u32(struct blob *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

void put_u64(struct blob *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_bytes(struct blob *b, const void *text, uint64_t length)
{
    put_u64(b, length);
    put(b, text, length);
}

void put_text(struct blob *b, const char *text)
{
    put_bytes(b, text, strlen(text));
}

struct writer writer_new(void)
{
    return (struct writer){.version = 3, .alignment = 32};
}

void writer_free(struct writer *w)
{
    free(w->values.data);
    free(w->directory.data);
    free(w->data.data);
}

void key(struct writer *w, const char *name, uint32_t type)
{
    put_text(&w->values, name);
    put_u32(&w->values, type);
    w->n_values++;
}

void key_u32(struct writer *w, const char *name, uint32_t v)
{
    key(w, name, 4);
    put_u32(&w->values, v);
}

void key_f32(struct writer *w, const char *name, float v)
{
    key(w, name, 6);
    put(&w->values, &v, 4);
}

void key_bool(struct writer *w, const char *name, uint8_t v)
{
    key(w, name, 7);
    put(&w->values, &v, 1);
}

void key_text(struct writer *w, const char *name, const char *v)
{
    key(w, name, 8);
    put_text(&w->values, v);
}

void key_array(struct writer *w, const char *name, uint32_t item_type, uint64_t count)
{
    key(w, name, 9);
    put_u32(&w->values, item_type);
    put_u64(&w->values, count);
}

void key_texts(struct writer *w, const char *name, const char *const *v, uint64_t n)
{
    key_array(w, name, 8, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&w->values, v[i]);
}

void tensor_entry(struct writer *w, const char *name, uint32_t n_dims, const uint64_t *dims,
                  uint32_t type, uint64_t offset)
{
    put_text(&w->directory, name);
    put_u32(&w->directory, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(&w->directory, dims[d]);
    put_u32(&w->directory, type);
    put_u64(&w->directory, offset);
    w->n_tensors++;
}

void tensor(struct writer *w, const char *name, uint64_t width, uint64_t height, uint32_t type,
            const void *data, size_t bytes)
{
    const uint64_t dims[2] = {width, height};
    while (w->data.size % w->alignment)
        put(&w->data, "", 1);
    tensor_entry(w, name, height == 1 ? 1 : 2, dims, type, w->data.size);
    for (size_t i = 0; i < bytes; i++)
        put(&w->data, data ? (const char *)data + i : "", 1);
}

struct blob writer_build(const struct writer *w)
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

int open_bytes(struct gguf_file **out, const void *data, size_t size, struct hill_why *why)
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

int open_writer(struct gguf_file **out, struct writer *w, struct hill_why *why)
{
    struct blob b = writer_build(w);
    int rc = open_bytes(out, b.data, b.size, why);
    free(b.data);
    writer_free(w);
    return rc;
}

uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}
