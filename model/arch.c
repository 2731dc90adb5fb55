/*
 * model/arch.c - the table of architectures. See arch.h.
 *
 * Sources: llama: Touvron et al. 2023; mistral3: arXiv:2601.08584; qwen2: arXiv:2407.10671; qwen3:
 * arXiv:2505.09388; smollm3: NoPE every fourth layer, arXiv:2501.18795; gemma3: arXiv:2503.19786;
 * phi3: arXiv:2404.14219; opt: arXiv:2205.01068. Names and defaults: the converters and loaders of
 * llama.cpp (2026).
 */
#include "model/arch.h"

#include <string.h>

#define BIT(part) (1u << ARCH_PART_##part)

#define ATTENTION  (BIT(ATTN_NORM) | BIT(Q) | BIT(K) | BIT(V) | BIT(OUTPUT))
#define GATED_FFN  (BIT(FFN_NORM) | BIT(GATE) | BIT(UP) | BIT(DOWN))
#define QKV_BIASES (BIT(Q_BIAS) | BIT(K_BIAS) | BIT(V_BIAS))
#define JOINT_QKV  (BIT(QKV) | BIT(QKV_BIAS))
#define HEAD_NORMS (BIT(Q_NORM) | BIT(K_NORM))

static const struct model_arch table[] = {
    {.name = "llama", /* Llama 1 to 3.3, Mistral, TinyLlama, SmolLM2 */
     .rotary = ARCH_ROTARY_PAIRS,
     .required = ATTENTION | GATED_FFN,
     .optional = QKV_BIASES | BIT(OUTPUT_BIAS) | JOINT_QKV},
    {.name = "mistral3", /* Ministral 3, Devstral 2; Mistral Small 3 is "llama" */
     .rotary = ARCH_ROTARY_PAIRS,
     .required = ATTENTION | GATED_FFN,
     .optional = QKV_BIASES | BIT(OUTPUT_BIAS) | JOINT_QKV,
     .has_yarn_multiplier = true},
    {.name = "qwen2",
     .rotary = ARCH_ROTARY_HALVES,
     .required = ATTENTION | GATED_FFN,
     .optional = QKV_BIASES | JOINT_QKV},
    {.name = "qwen3",
     .rotary = ARCH_ROTARY_HALVES,
     .required = ATTENTION | GATED_FFN | HEAD_NORMS,
     .optional = BIT(QKV)},
    {.name = "smollm3",
     .rotary = ARCH_ROTARY_PAIRS,
     .required = ATTENTION | GATED_FFN,
     .optional = BIT(QKV),
     .unrotated_every = 4},
    {.name = "gemma3",
     .rotary = ARCH_ROTARY_HALVES,
     .activation = ARCH_GELU_GATED,
     .required = ATTENTION | GATED_FFN | HEAD_NORMS | BIT(POST_ATTN_NORM) | BIT(POST_FFN_NORM),
     .optional = BIT(QKV),
     .global_every = 6,
     .scales_embedding = true},
    {.name = "phi3",
     .rotary = ARCH_ROTARY_HALVES,
     .required = BIT(ATTN_NORM) | BIT(QKV) | BIT(OUTPUT) | BIT(FFN_NORM) | BIT(GATE_UP) | BIT(DOWN),
     .has_rope_factors = true},
    {.name = "opt",
     .norm = ARCH_NORM_LAYER,
     .rotary = ARCH_ROTARY_NONE,
     .activation = ARCH_RELU,
     .required = ATTENTION | BIT(ATTN_NORM_BIAS) | QKV_BIASES | BIT(OUTPUT_BIAS) | BIT(FFN_NORM) |
                 BIT(FFN_NORM_BIAS) | BIT(UP) | BIT(UP_BIAS) | BIT(DOWN) | BIT(DOWN_BIAS),
     .position_offset = 2},
};

#define TABLE_LENGTH (sizeof table / sizeof table[0])

const struct model_arch *arch_find(struct gguf_string name)
{
    for (size_t i = 0; i < TABLE_LENGTH; i++)
        if (gguf_string_is(name, table[i].name))
            return &table[i];
    return NULL;
}

const char *arch_names(void)
{
    return "llama, mistral3, qwen2, qwen3, smollm3, gemma3, phi3, opt";
}

const char *arch_part_name(enum arch_part part)
{
    static const char *const names[ARCH_PART_COUNT] = {
        [ARCH_PART_ATTN_NORM] = "attn_norm.weight",
        [ARCH_PART_ATTN_NORM_BIAS] = "attn_norm.bias",
        [ARCH_PART_Q] = "attn_q.weight",
        [ARCH_PART_K] = "attn_k.weight",
        [ARCH_PART_V] = "attn_v.weight",
        [ARCH_PART_QKV] = "attn_qkv.weight",
        [ARCH_PART_Q_BIAS] = "attn_q.bias",
        [ARCH_PART_K_BIAS] = "attn_k.bias",
        [ARCH_PART_V_BIAS] = "attn_v.bias",
        [ARCH_PART_QKV_BIAS] = "attn_qkv.bias",
        [ARCH_PART_Q_NORM] = "attn_q_norm.weight",
        [ARCH_PART_K_NORM] = "attn_k_norm.weight",
        [ARCH_PART_OUTPUT] = "attn_output.weight",
        [ARCH_PART_OUTPUT_BIAS] = "attn_output.bias",
        [ARCH_PART_POST_ATTN_NORM] = "post_attention_norm.weight",
        [ARCH_PART_FFN_NORM] = "ffn_norm.weight",
        [ARCH_PART_FFN_NORM_BIAS] = "ffn_norm.bias",
        [ARCH_PART_GATE] = "ffn_gate.weight",
        [ARCH_PART_UP] = "ffn_up.weight",
        [ARCH_PART_GATE_UP] = "ffn_up.weight",
        [ARCH_PART_UP_BIAS] = "ffn_up.bias",
        [ARCH_PART_DOWN] = "ffn_down.weight",
        [ARCH_PART_DOWN_BIAS] = "ffn_down.bias",
        [ARCH_PART_POST_FFN_NORM] = "post_ffw_norm.weight",
    };
    return names[part];
}
