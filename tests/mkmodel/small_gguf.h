/*
 * tests/mkmodel/small_gguf.h - a second, naive GGUF reader, so that the writer is not judged by
 * code it shares.
 *
 * Reads a whole file into memory; asserts (cmocka) on anything it does not expect. Tests only, one
 * thread.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct small_tensor {
    char name[64];
    uint32_t n_dims, type;
    uint64_t dims[4], offset;
};

struct small_gguf {
    uint8_t *bytes;
    size_t size, at, data; /* data: start of the tensor data */
    uint64_t n_tensors, n_values;
    struct small_tensor *tensors;
    struct {
        char key[64];
        uint32_t type, item_type;
        uint64_t count;
        size_t at;
    } values[64];
};

uint64_t small_number(struct small_gguf *g, size_t width);

void small_text(struct small_gguf *g, char text[64]);

void small_open(struct small_gguf *g, const char *path);

void small_close(struct small_gguf *g);

/* Index of a key; fails the test when absent. */
unsigned small_find(const struct small_gguf *g, const char *key);

uint32_t small_u32(const struct small_gguf *g, const char *key);

float small_f32(const struct small_gguf *g, const char *key);

/* NULL when absent. */
const struct small_tensor *small_tensor(const struct small_gguf *g, const char *name);

float small_half(const uint8_t *bytes);

size_t small_tensor_bytes(const struct small_tensor *t);

/* All items, malloc'ed; fails the test when the tensor is absent or outside the file. */
float *small_load(const struct small_gguf *g, const char *name);
