/*
 * tools/mkmodel/shape.h - what is to be built: the shape of the model, and the names of its
 * tensors' roles.
 *
 * Who uses it: every part of mkmodel. A shape that passed shape_check() is safe to build: counts
 * fit 32 bits, products 64 bits, and rows fit the tensor type's blocks. Concurrency: plain data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/gguf.h"

#define SHAPE_N_BYTES     256u /* tokens 0..255 are the bytes */
#define SHAPE_TOKEN_BOS   256u
#define SHAPE_TOKEN_EOS   257u
#define SHAPE_TOKEN_MERGE 258u /* the only merge's result: two NUL bytes */
#define SHAPE_MIN_VOCAB   259u

struct mkmodel_shape {
    bool random; /* plain random weights; else the wired induction model */
    bool tied;   /* no output.weight: the token embedding is the unembedding */
    uint32_t n_layers, n_heads, n_kv_heads, n_embd, head_dim, n_ff, n_vocab, n_ctx;
    enum gguf_tensor_type type; /* of all matrices; norm weights are always F32 */
    double rope_base;
    uint64_t seed;
    const char *chat_template; /* Jinja; NULL: the model has none */
    const char *metadata;      /* "KEY=NUMBER,...": further keys; NULL: none */
    const char *tokens;        /* "TEXT,...": of the tokens from SHAPE_MIN_VOCAB on; NULL: none */
};

/* Tensor roles. Shapes in GGUF order: [row length, rows]. */
enum tensor_role {
    ROLE_TOKEN_EMBD,  /* [n_embd, n_vocab] */
    ROLE_OUTPUT_NORM, /* [n_embd] */
    ROLE_OUTPUT,      /* [n_embd, n_vocab], absent when tied */
    ROLE_ATTN_NORM,   /* [n_embd] */
    ROLE_ATTN_Q,      /* [n_embd, n_heads * head_dim] */
    ROLE_ATTN_K,      /* [n_embd, n_kv_heads * head_dim] */
    ROLE_ATTN_V,      /* [n_embd, n_kv_heads * head_dim] */
    ROLE_ATTN_OUTPUT, /* [n_heads * head_dim, n_embd] */
    ROLE_FFN_NORM,    /* [n_embd] */
    ROLE_FFN_GATE,    /* [n_embd, n_ff] */
    ROLE_FFN_UP,      /* [n_embd, n_ff] */
    ROLE_FFN_DOWN,    /* [n_ff, n_embd] */
};

/* A number of shape.metadata. */
struct shape_number {
    char key[128];
    bool real; /* with a point */
    double value;
};

/* The one at *text, which moves behind it; false: there is none. */
bool shape_next_number(const char **text, struct shape_number *out);

/* The text of a token that shape->tokens names; false: it names none, or one that is too long. */
bool shape_token_text(const struct mkmodel_shape *shape, uint32_t token, char text[32]);

/* The defaults of the wired or the random model. */
struct mkmodel_shape shape_default(bool random);

/* HILL_E_INVALID with a line that names the option when the options do not fit one another. */
int shape_check(const struct mkmodel_shape *shape, struct hill_why *why);

/* Row length and number of rows of a tensor; a norm has one row. */
void shape_of_role(const struct mkmodel_shape *shape, enum tensor_role role, uint64_t *row_length,
                   uint64_t *rows);

/* true for the three norms, which are one-dimensional and always F32. */
bool role_is_norm(enum tensor_role role);
