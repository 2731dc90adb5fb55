/*
 * model/gguf.h - read a GGUF file (versions 2 and 3, little endian) through mmap.
 *
 * What: the key-value metadata and the tensor directory, every length, count and offset checked
 * against the file before it is used. Nothing is copied but the directory; strings and tensor data
 * point into the mapping. Source: the public GGUF specification. Types read: those of blocks.h
 * (others are called by name when refused). Who calls it: coordinator (metadata, tokenizer),
 * gpu_worker (weights), chat/, tools/mkmodel, tools/eval. Failure: HILL_E_DAMAGED (truncated, wrong
 * magic, absurd count, offset outside the file), HILL_E_UNSUPPORTED (version, big endian, tensor
 * type, array of arrays), HILL_E_NOMEM, HILL_E_IO and the other codes of hill_from_errno; why names
 * the file and the field. Concurrency: read-only after open. A file cut short while it is mapped
 * ends the process (SIGBUS).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "model/blocks.h"

/* Types of metadata values, numbers of the specification. */
enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf_string {
    const char *data; /* not NUL-terminated */
    uint64_t length;
};

struct gguf_value {
    struct gguf_string key;
    enum gguf_type type;
    enum gguf_type item_type; /* of an array */
    uint64_t count;           /* of an array, else 1 */
    const uint8_t *data;      /* first byte of the value(s) in the file; items may be unaligned */
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t n_dims;
    uint64_t dims[4]; /* dims[0] is contiguous (the row length); unused are 1 */
    enum gguf_tensor_type type;
    const void *data; /* into the mapping, aligned as the file says (at least 1) */
    uint64_t bytes;   /* checked to lie in the file */
};

struct gguf_file;

/* Map and check the file; on failure *out is NULL. */
int gguf_open(struct gguf_file **out, const char *path, struct hill_why *why);
void gguf_close(struct gguf_file *file); /* NULL allowed */

uint64_t gguf_file_bytes(const struct gguf_file *file);
const char *gguf_path(const struct gguf_file *file); /* as it was opened with */

/* Tells a file's content apart from another's: a hash of everything before the tensors' data
 * (metadata, vocabulary, directory) and of 4 KiB at the head, in the middle and at the end of each
 * tensor's. Reads that much of the file; never 0. */
uint64_t gguf_identity(const struct gguf_file *file);

/* NULL when absent. */
const struct gguf_value *gguf_find(const struct gguf_file *file, const char *key);
const struct gguf_tensor *gguf_tensor(const struct gguf_file *file, const char *name);
uint64_t gguf_tensor_count(const struct gguf_file *file);
const struct gguf_tensor *gguf_tensor_at(const struct gguf_file *file, uint64_t index);

/* An integer of any type as its bits and sign; false for what is no integer. */
bool gguf_integer(const struct gguf_value *value, uint64_t *bits, bool *negative);

/* Typed access: true when present and of a fitting type (any integer type for u64, range checked).
 */
bool gguf_get_u64(const struct gguf_file *file, const char *key, uint64_t *out);
bool gguf_get_f64(const struct gguf_file *file, const char *key, double *out);
bool gguf_get_bool(const struct gguf_file *file, const char *key, bool *out);
bool gguf_get_string(const struct gguf_file *file, const char *key, struct gguf_string *out);
bool gguf_string_is(struct gguf_string string, const char *text);

/* Walk a string array forward: *cursor starts at array->data and *index at 0; false past the end or
 * when it is none. */
bool gguf_next_string(const struct gguf_value *array, const uint8_t **cursor, uint64_t *index,
                      struct gguf_string *out);

/* String number index of the array under key; empty for none. Time O(index). */
struct gguf_string gguf_string_at(const struct gguf_file *file, const char *key, uint64_t index);

/* Rows of a tensor as F32: row_count rows of dims[0] from row first. Plain, for tests and tables,
 * not for speed. HILL_E_INVALID when the tensor has no such rows. */
int gguf_tensor_rows_f32(const struct gguf_tensor *tensor, uint64_t first, uint64_t row_count,
                         float *out);

/* The tensor's pages leave this process' memory; a later look at them reads them again. For a
 * tensor whose data has been copied elsewhere. */
void gguf_forget_pages(const struct gguf_tensor *tensor);
