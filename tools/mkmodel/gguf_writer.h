/*
 * tools/mkmodel/gguf_writer.h - write a GGUF v3 file: metadata, tensor directory, then the data, in
 * that order.
 *
 * The file appears whole or not at all: everything goes to a temporary file beside the target,
 * which is synced and renamed by gguf_writer_commit(). A target that exists and is no regular file
 * (a device, a pipe) is written in place. Errors stick: after the first one, calls do nothing and
 * commit returns it, so callers need not look after every value. Who calls it: build.c. Failure:
 * HILL_E_NOSPACE, HILL_E_IO, HILL_E_PERMISSION, HILL_E_NOMEM, HILL_E_CANCELLED (*stop became
 * non-zero). Concurrency: one thread.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/gguf.h"

#define GGUF_WRITER_ALIGNMENT 32u

struct gguf_bytes { /* a growing buffer */
    uint8_t *data;
    size_t used, capacity;
};

struct gguf_writer {
    int fd;                            /* -1 when nothing is open */
    int error;                         /* the first error, 0 so far */
    char *path;                        /* target, symbolic links resolved */
    char *temporary;                   /* NULL when the target is written in place */
    const volatile sig_atomic_t *stop; /* NULL, or a flag a signal handler sets */
    struct gguf_bytes metadata, directory, pending;
    uint64_t n_metadata, n_tensors;
    uint64_t data_bytes; /* offset of the next tensor in the data section */
    uint64_t written;
    char reason[256];
};

/* Begin a file; after success gguf_writer_commit() must follow, whatever happens. */
int gguf_writer_open(struct gguf_writer *writer, const char *path,
                     const volatile sig_atomic_t *stop, struct hill_why *why);

/* Metadata, in any order. */
void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value);
void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value);
void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value);
/* An array's head; count items follow by gguf_writer_item_*. */
void gguf_writer_array(struct gguf_writer *writer, const char *key, enum gguf_type item_type,
                       uint64_t count);
void gguf_writer_item_string(struct gguf_writer *writer, const char *value);
void gguf_writer_item_i32(struct gguf_writer *writer, int32_t value);

/* Declare a tensor of n_dims dimensions (1 or 2) and bytes bytes of data. */
void gguf_writer_tensor(struct gguf_writer *writer, const char *name, uint32_t n_dims,
                        const uint64_t *dims, enum gguf_tensor_type type, uint64_t bytes);

/* Metadata and directory are complete: write them. Then the tensors' data, in the order declared:
 * any number of gguf_writer_data() calls, and gguf_writer_data_end() after each tensor. */
void gguf_writer_begin_data(struct gguf_writer *writer);
void gguf_writer_data(struct gguf_writer *writer, const void *data, size_t bytes);
void gguf_writer_data_end(struct gguf_writer *writer);

/* Flush, sync, rename; on any error remove the temporary file and say why. Frees everything. */
int gguf_writer_commit(struct gguf_writer *writer, uint64_t *file_bytes, struct hill_why *why);
