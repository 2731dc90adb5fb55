/*
 * model/hparams.h - the shape of a Llama-architecture model, read from GGUF metadata and checked
 * against the tensors.
 *
 * Tensor names and shapes (GGUF order: dims[0] contiguous): token_embd.weight [n_embd, n_vocab],
 * output_norm.weight [n_embd], output.weight [n_embd, n_vocab] (absent: tied to token_embd),
 * blk.%u.{attn_norm,ffn_norm}.weight [n_embd], attn_q [n_embd, n_heads*head_dim], attn_k and attn_v
 * [n_embd, n_kv_heads*head_dim], attn_output [n_heads*head_dim, n_embd], ffn_gate, ffn_up [n_embd,
 * n_ff], ffn_down [n_ff, n_embd]; optional rope_freqs.weight [rope_dims/2]. Failure:
 * HILL_E_UNSUPPORTED (architecture, experts, scaling type, key_length != value_length, per-layer
 * counts, a tensor that has no place above), HILL_E_DAMAGED (missing or misshapen tensor, absurd
 * count).
 */
#ifndef HILL_MODEL_HPARAMS_H
#define HILL_MODEL_HPARAMS_H

#include <stdint.h>

#include "model/gguf.h"

struct model_hparams {
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    uint32_t n_ctx_train; /* 0: not stated */
    uint32_t rope_dims;   /* rotated dimensions of a head (<= head_dim), pairs (2i, 2i+1): GGUF's
                             llama order */
    float rope_base;      /* default 10000 */
    float rope_scale;     /* linear scaling: positions are divided by it; default 1 */
    float rms_eps;        /* default 1e-5 */
};

int model_hparams_read(struct model_hparams *out, const struct gguf_file *file,
                       struct hill_why *why);

#endif
