/*
 * model/arch.h - the architectures this engine computes, as one table: what general.architecture
 * says, and for each name its norms, rotation, activation, and tensors.
 *
 * Tensor names are those of GGUF files (llama.cpp's converter); 'opt' has none there, so its names
 * are ours (docs/models.md). Shapes in GGUF order: dims[0] contiguous. Who calls it: hparams.c
 * (checks every tensor of a file against the table), gpu_worker (loads by role). What is not in the
 * table is refused by name. Concurrency: constant data.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/gguf.h"

enum arch_norm {
    ARCH_NORM_RMS,  /* x / sqrt(mean(x^2) + eps) * weight */
    ARCH_NORM_LAYER /* (x - mean) / sqrt(var + eps) * weight + bias */
};

enum arch_rotary {
    ARCH_ROTARY_NONE,  /* learned positions are added to the embedding instead */
    ARCH_ROTARY_PAIRS, /* dimensions (2i, 2i+1) of a head turn together */
    ARCH_ROTARY_HALVES /* dimensions (i, i + rope_dims/2): GPT-NeoX's order */
};

enum arch_activation {
    ARCH_SILU_GATED, /* silu(gate) * up */
    ARCH_GELU_GATED, /* gelu(gate) * up, the tanh form of gelu */
    ARCH_RELU        /* relu(up): no gate */
};

/* Tensors of a layer by what they do; blk.%u. and the name of the role make a tensor's name. */
enum arch_part {
    ARCH_PART_ATTN_NORM,
    ARCH_PART_ATTN_NORM_BIAS,
    ARCH_PART_Q,
    ARCH_PART_K,
    ARCH_PART_V,
    ARCH_PART_QKV, /* q, k, v rows one after the other */
    ARCH_PART_Q_BIAS,
    ARCH_PART_K_BIAS,
    ARCH_PART_V_BIAS,
    ARCH_PART_QKV_BIAS,
    ARCH_PART_Q_NORM, /* RMS norm of each head, before the rotation */
    ARCH_PART_K_NORM,
    ARCH_PART_OUTPUT,
    ARCH_PART_OUTPUT_BIAS,
    ARCH_PART_POST_ATTN_NORM, /* of the attention's output, before it is added */
    ARCH_PART_FFN_NORM,
    ARCH_PART_FFN_NORM_BIAS,
    ARCH_PART_GATE,
    ARCH_PART_UP,
    ARCH_PART_GATE_UP, /* gate rows, then up rows */
    ARCH_PART_UP_BIAS,
    ARCH_PART_DOWN,
    ARCH_PART_DOWN_BIAS,
    ARCH_PART_POST_FFN_NORM, /* of the FFN's output, before it is added */
    ARCH_PART_COUNT
};

struct model_arch {
    const char *name; /* general.architecture, and the prefix of its metadata keys */
    enum arch_norm norm;
    enum arch_rotary rotary;
    enum arch_activation activation;
    uint32_t required, optional; /* bits 1 << enum arch_part; QKV, where it is optional, stands for
                                    Q, K and V */
    uint32_t unrotated_every;    /* layers i with (i + 1) % n == 0 are not rotated; 0: all are */
    uint32_t global_every;    /* with a window: layers i with (i + 1) % n == 0 attend to all; 0: no
                              windows */
    bool scales_embedding;    /* by sqrt(n_embd) */
    bool has_rope_factors;    /* rope_factors_long, rope_factors_short: LongRoPE */
    bool has_yarn_multiplier; /* yarn_log_multiplier lessens YaRN's amplitude */
    uint32_t position_offset; /* learned positions: row of position 0 */
};

/* NULL: not in the table. */
const struct model_arch *arch_find(struct gguf_string name);
/* The table's names for a message: "llama, qwen2, ..." */
const char *arch_names(void);

/* "attn_q.weight" and so on. */
const char *arch_part_name(enum arch_part part);

static inline bool arch_requires(const struct model_arch *arch, enum arch_part part)
{
    return arch->required >> part & 1;
}

static inline bool arch_takes(const struct model_arch *arch, enum arch_part part)
{
    return (arch->required | arch->optional) >> part & 1;
}
