/*
 * tests/gpu_worker/reference.h - the Llama forward pass as the papers write it, in double, one
 * token after the other: the oracle of the engine. It shares no code with it. K and V are rounded
 * to FP16, as entries are, nothing else is.
 */
#pragma once

#include "tests/gpu_worker/random_model.h"

struct reference {
    const struct random_model *m;
    uint32_t n_tokens, capacity;
    double *k, *v; /* [n_layers][capacity][n_kv_heads][head_dim] */
    double *logits;
    double *guesses; /* NULL, or [n_layers][n_heads][head_dim] of the last token: what a layer's
                        weights make of the input of the layer before */
    double *masses; /* NULL, or [n_layers][capacity]: softmax weights, summed over queries, heads */
    uint32_t mass_head; /* 0: of all heads; h + 1: of head h alone */
};

void reference_init(struct reference *r, const struct random_model *m, uint32_t capacity);

void reference_free(struct reference *r);

/* One more token; r->logits follow. seen: of every layer, see reference_attend. */
void reference_token(struct reference *r, uint32_t token, const uint8_t *seen);
