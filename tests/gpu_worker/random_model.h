/*
 * tests/gpu_worker/random_model.h - a Llama-architecture GGUF of any shape with random weights,
 * kept in memory twice: as the file that is given to the engine, and as float matrices for the
 * oracle.
 */
#pragma once

#include <math.h>

#include "model/hparams.h"
#include "tests/model/gguf_writer.h"

struct random_shape {
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, rope_dims, n_ff, n_vocab;
    float rope_base, rope_scale;
    uint32_t type; /* enum gguf_tensor_type of the matrices */
    int tied, rope_freqs;
    const uint32_t *part_types; /* NULL, or [PART_ATTN_NORM]: of a layer's matrices, instead */
};

/* The shape most tests start from: two query heads share a KV head. */
#define RANDOM_SHAPE_SMALL(layers)                                                                 \
    {                                                                                              \
        .n_layers = (layers), .n_embd = 48, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16,         \
        .rope_dims = 16, .n_ff = 72, .n_vocab = 101, .rope_base = 10000, .rope_scale = 1,          \
        .type = GGUF_TENSOR_F32                                                                    \
    }

/* Nothing of it is a multiple of four: one KV head for four query heads, rotated in a part. (Who
 * wants an odd shape takes this one: a device that compiles the kernels for each is asked once.) */
#define RANDOM_SHAPE_ODD(layers)                                                                   \
    {                                                                                              \
        .n_layers = (layers), .n_embd = 37, .n_heads = 4, .n_kv_heads = 1, .head_dim = 10,         \
        .rope_dims = 6, .n_ff = 71, .n_vocab = 101, .rope_base = 10000, .rope_scale = 1,           \
        .type = GGUF_TENSOR_F32                                                                    \
    }

enum {
    PART_Q,
    PART_K,
    PART_V,
    PART_O,
    PART_GATE,
    PART_UP,
    PART_DOWN,
    PART_ATTN_NORM,
    PART_FFN_NORM,
    PART_COUNT
};

struct random_model {
    struct random_shape shape;
    struct gguf_file *file;
    struct model_hparams hp;
    float *embedding, *output, *output_norm, *factors;
    float *(*parts)[PART_COUNT]; /* [n_layers]: row-major [rows][row length] */
};

/* IEEE half, worked from the definition; denormals flushed. */
uint16_t to_half(float value);

float from_half(uint16_t half);

void random_key_halves(struct writer *w, const struct random_shape *s);

/* The weights, and the file's bytes (the caller frees them). */
struct blob random_model_build(struct random_model *m, const struct random_shape *s, uint64_t seed);

void random_model_make(struct random_model *m, const struct random_shape *s, uint64_t seed);

/* Three layers of the small shape; window: not 0, values are padded, and two of the layers see so
 * many tokens. */
void random_model_make_windowed(struct random_model *m, uint64_t seed, uint32_t window);

void random_model_free(struct random_model *m);
