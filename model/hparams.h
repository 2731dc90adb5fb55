/*
 * model/hparams.h - the shape of a model, read from GGUF metadata and checked against the tensors
 * that its architecture has (arch.h).
 *
 * Beside a layer's tensors: token_embd.weight [n_embd, n_vocab], output_norm.weight [n_embd],
 * output.weight [n_embd, n_vocab] (absent: tied to token_embd); optional rope_freqs.weight
 * [rope_dims/2], or of LongRoPE rope_factors_long.weight and rope_factors_short.weight of that
 * length; of learned positions position_embd.weight [n_embd, offset + n_ctx_max]; of LayerNorm
 * output_norm.bias. Failure: HILL_E_UNSUPPORTED (architecture, experts, scaling type, soft caps,
 * key_length != value_length, per-layer counts, a tensor that has no place), HILL_E_DAMAGED
 * (missing or misshapen tensor, absurd count).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/arch.h"
#include "model/gguf.h"

struct model_hparams {
    const struct model_arch *arch;
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    uint32_t n_ctx_train;   /* 0: not stated */
    uint32_t n_ctx_max;     /* positions at most: those learned, or with unscaled queries; else 0 */
    uint32_t rope_dims;     /* rotated dimensions of a head (<= head_dim); 0: none */
    float rope_base;        /* default 10000 */
    float rope_scale;       /* linear scaling: positions are divided by it; YaRN's s; default 1 */
    float rope_base_window; /* of layers with a window; default 10000 */
    bool rope_yarn;
    float yarn_beta_fast, yarn_beta_slow; /* defaults 32 and 1 */
    uint32_t rope_original_tokens;        /* YaRN, LongRoPE: the context before it was stretched */
    float rope_amplitude;                 /* rotated dimensions are multiplied by it; default 1 */
    uint32_t window;                      /* 0: no layer has one */
    uint32_t global_every;   /* with a window: layers i with (i + 1) % n == 0 have none */
    uint32_t attention_dims; /* queries are divided by its square root */
    float norm_eps;          /* default 1e-5 */
};

/* HILL_E_DAMAGED: a key or tensor that is missing, or has another type, shape or range;
 * HILL_E_UNSUPPORTED: what the arithmetic would not use. why names the key or the tensor. */
int model_hparams_read(struct model_hparams *out, const struct gguf_file *file,
                       struct hill_why *why);

/* The name of a layer's tensor; the tensor, or NULL. */
void model_layer_tensor_name(char out[64], uint32_t layer, enum arch_part part);
const struct gguf_tensor *model_layer_tensor(const struct gguf_file *file, uint32_t layer,
                                             enum arch_part part);

bool model_layer_rotates(const struct model_hparams *hparams, uint32_t layer);
/* A token of the layer attends to itself and this many less one before it; 0: to all. */
uint32_t model_layer_window(const struct model_hparams *hparams, uint32_t layer);

/* Rotary tables: 0, or 1, or 2 where layers with a window have one of their own. */
uint32_t model_rope_tables(const struct model_hparams *hparams);
uint32_t model_layer_rope_table(const struct model_hparams *hparams, uint32_t layer);
/* Radians per position of each pair of a table: out [rope_dims / 2]. ctx_tokens: the context of a
 * sequence, which decides between LongRoPE's factors (arXiv:2402.13753). HILL_E_NOMEM or what the
 * factors' tensor gives. */
int model_rope_frequencies(const struct model_hparams *hparams, const struct gguf_file *file,
                           uint32_t table, uint32_t ctx_tokens, double *out, struct hill_why *why);
/* Which of LongRoPE's factors a context takes: 0 where there is no choice, 1 short, 2 long. Keys
 * that were computed with one are of no use with the other. */
uint32_t model_rope_choice(const struct model_hparams *hparams, uint32_t ctx_tokens);
