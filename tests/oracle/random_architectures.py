#!/usr/bin/env python3
"""Tiny random-weight models of each architecture: a GGUF file and the logits transformers gives.

    tests/oracle/random_architectures.py [NAME...]

writes a file of tests/gpu_worker/fixtures/ for NAME (F32, tensors as the converters of llama.cpp lay them out;
opt as docs/models.md says) and NAME.expected: little-endian uint32 n_prompt, n_steps, n_vocab,
ctx_tokens; n_prompt + n_steps token ids; then float32 logits [n_steps + 1][n_vocab]: after the prompt
and after each of the further tokens. The forward pass is transformers' own, in float32 on the CPU;
no code is shared with the engine. Needs torch, transformers and gguf.
"""
import os
import struct
import sys

import numpy as np
import torch
import transformers as tf
from gguf import GGUFWriter

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu_worker", "fixtures")
VOCAB, PROMPT, STEPS = 61, 45, 6


def rope_order(w, heads):
    """transformers keeps halves of a head; GGUF's llama order keeps pairs side by side."""
    d = w.shape[0] // heads
    return w.reshape(heads, 2, d // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def common(w, c, arch, **more):
    w.add_block_count(c.num_hidden_layers)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(getattr(c, "intermediate_size", None) or c.ffn_dim)
    w.add_head_count(c.num_attention_heads)
    w.add_context_length(c.max_position_embeddings)
    if hasattr(c, "num_key_value_heads"):
        w.add_head_count_kv(c.num_key_value_heads)
    if hasattr(c, "rms_norm_eps"):
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if getattr(c, "head_dim", None):
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)


def scale_yarn(w, factor, original):
    w.add_string(f"{w.arch}.rope.scaling.type", "yarn")
    w.add_float32(f"{w.arch}.rope.scaling.factor", factor)
    w.add_uint32(f"{w.arch}.rope.scaling.original_context_length", original)


def llama3_factors(p, dims):
    """The factors that the converter writes as rope_freqs: how much slower each pair turns."""
    base, factor = p["rope_theta"], p["factor"]
    low, high, original = p["low_freq_factor"], p["high_freq_factor"], p["original_max_position_embeddings"]
    out = []
    for i in range(dims // 2):
        turns = original * base ** (-2 * i / dims) / (2 * np.pi)
        smooth = min(max((turns - low) / (high - low), 0), 1)
        out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensors(model, arch):
    names = {**NAMES, **(GEMMA if arch == "gemma3" else {})}
    for name, value in model.state_dict().items():
        value = value.float().numpy()
        name = name.removeprefix("model.")
        if name == "embed_tokens.weight":
            yield "token_embd.weight", value
        elif name == "norm.weight":
            yield "output_norm.weight", value + (arch == "gemma3")
        elif name == "lm_head.weight":
            if not model.config.tie_word_embeddings:
                yield "output.weight", value
        else:
            _, layer, rest = name.split(".", 2)
            module, kind = rest.rsplit(".", 1)
            if arch in ("llama", "smollm3") and module[-6:] in ("q_proj", "k_proj"):
                c = model.config
                heads = c.num_attention_heads if "q_proj" in module else c.num_key_value_heads
                value = rope_order(value, heads)
            if arch == "gemma3" and "norm" in module:
                value = value + 1
            yield f"blk.{layer}.{names[module]}.{kind}", value


SHAPE = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
             attn_implementation="eager", bos_token_id=0, eos_token_id=1, pad_token_id=2)


def rope(theta=10000.0, **more):
    return dict(rope_type=more.pop("rope_type", "default"), rope_theta=theta, **more)


def llama(**more):
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**SHAPE, **more}))


def make_llama_yarn(w):
    model = llama(rope_parameters=rope(rope_type="yarn", factor=4.0,
                                       original_max_position_embeddings=64))
    scale_yarn(w, 4.0, 64)
    w.add_rope_freq_base(10000.0)
    return model


def make_llama_llama3(w):
    p = rope(500000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=64)
    model = llama(rope_parameters=p)
    w.add_rope_freq_base(500000.0)
    w.add_tensor("rope_freqs.weight", llama3_factors(p, 8))
    return model


def make_llama_linear(w):
    model = llama(rope_parameters=rope(rope_type="linear", factor=2.0), tie_word_embeddings=True)
    w.add_string("llama.rope.scaling.type", "linear")
    w.add_float32("llama.rope.scaling.factor", 2.0)
    return model


def make_qwen2(w):
    w.add_rope_freq_base(1000000.0)
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(
        **{**SHAPE, "num_attention_heads": 6, "hidden_size": 48}, rope_parameters=rope(1000000.0)))


def make_qwen2_yarn(w):
    w.add_rope_freq_base(1000000.0)
    scale_yarn(w, 4.0, 32)
    return tf.Qwen2ForCausalLM(tf.Qwen2Config(**SHAPE, rope_parameters=rope(
        1000000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)))


def make_qwen3(w):
    w.add_rope_freq_base(1000000.0)
    return tf.Qwen3ForCausalLM(tf.Qwen3Config(**SHAPE, head_dim=20,
                                              rope_parameters=rope(1000000.0)))


def make_smollm3(w):
    w.add_rope_freq_base(5000000.0)
    return tf.SmolLM3ForCausalLM(tf.SmolLM3Config(
        **{**SHAPE, "num_hidden_layers": 4}, rope_parameters=rope(5000000.0)))


def make_gemma3(w):
    w.add_rope_freq_base(1000000.0)
    w.add_sliding_window(12)
    w.add_string("gemma3.rope.scaling.type", "linear")
    w.add_float32("gemma3.rope.scaling.factor", 8.0)
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 7, "hidden_size": 24, "intermediate_size": 24},
        head_dim=8, query_pre_attn_scalar=8, sliding_window=12,
        rope_parameters={"sliding_attention": rope(10000.0),
                         "full_attention": rope(1000000.0, rope_type="linear", factor=8.0)}))


def phi3(w, factors, ctx):
    more = {}
    dims, original = 6, 64  # three quarters of a head of 8
    if factors:
        rng = np.random.default_rng(5)
        short = (1 + rng.random(dims // 2)).astype(np.float32)
        long = (2 + 6 * rng.random(dims // 2)).astype(np.float32)
        more = dict(rope_type="longrope", short_factor=short.tolist(), long_factor=long.tolist(),
                    original_max_position_embeddings=original)
        w.add_tensor("rope_factors_short.weight", short)
        w.add_tensor("rope_factors_long.weight", long)
        scale = ctx / original
        w.add_float32("phi3.rope.scaling.attn_factor",
                      float(np.sqrt(1 + np.log(scale) / np.log(original))))
    w.add_uint32("phi3.rope.scaling.original_context_length", original)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(dims)
    return tf.Phi3ForCausalLM(tf.Phi3Config(
        **SHAPE, original_max_position_embeddings=original,
        rope_parameters=rope(10000.0, partial_rotary_factor=0.75, **more)))


def make_phi3(w):
    return phi3(w, False, 256)


def make_phi3_long(w):
    return phi3(w, True, 256)


def make_opt(w):
    w.add_layer_norm_eps(1e-5)
    shape = {k: v for k, v in SHAPE.items()
             if k not in ("num_key_value_heads", "intermediate_size", "max_position_embeddings")}
    return tf.OPTForCausalLM(tf.OPTConfig(**shape, ffn_dim=80, max_position_embeddings=96,
                                          word_embed_proj_dim=32, activation_function="relu"))


# name: maker, architecture, length of the prompt, name of the file (LongRoPE: a prompt on each side of
# its context, of one file)
MODELS = {
    "llama_yarn": (make_llama_yarn, "llama", 100),
    "llama_llama3": (make_llama_llama3, "llama", 100),
    "llama_linear": (make_llama_linear, "llama", PROMPT),
    "qwen2": (make_qwen2, "qwen2", PROMPT),
    "qwen2_yarn": (make_qwen2_yarn, "qwen2", PROMPT),
    "qwen3": (make_qwen3, "qwen3", PROMPT),
    "smollm3": (make_smollm3, "smollm3", PROMPT),
    "gemma3": (make_gemma3, "gemma3", 150),
    "phi3": (make_phi3, "phi3", PROMPT),
    "phi3_long": (make_phi3_long, "phi3", 100),
    "phi3_short": (make_phi3_long, "phi3", PROMPT, "phi3_long"),
    "opt": (make_opt, "opt", PROMPT),
}


def randomise(model, rng):
    """Weights large enough that every part of the arithmetic shows in the logits."""
    for name, p in model.named_parameters():
        if p.dim() > 1:
            # keys are rounded to FP16 in the engine, not here: sharp attention would show that
            scale = 1.0 if "embed" in name else (0.8 if "attn" in name else 1.6) / np.sqrt(p.shape[1])
            value = scale * rng.standard_normal(p.shape)
        elif name.endswith("bias"):
            value = 0.4 * rng.standard_normal(p.shape)
        else:  # a norm's weights; gemma's are stored less one
            value = (0 if isinstance(model, tf.Gemma3ForCausalLM) else 1) + 0.2 * rng.standard_normal(p.shape)
        p.data = torch.tensor(value, dtype=torch.float32)


def write(name):
    make, arch, n_prompt, *file = MODELS[name]
    file = file[0] if file else name
    rng = np.random.default_rng(sum(file.encode()))
    w = GGUFWriter(os.path.join(FOLDER, file + ".gguf"), arch)
    model = make(w).eval().float()
    randomise(model, rng)
    common(w, model.config, arch)
    if arch == "opt":
        sys.path.insert(0, os.path.join(FOLDER, "..", "..", "..", "scripts"))
        import opt_to_gguf
        named = opt_to_gguf.tensors(model.state_dict(), tied=True)
    else:
        named = tensors(model, arch)
    for tensor, value in named:
        w.add_tensor(tensor, np.ascontiguousarray(value, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    ids = rng.integers(0, VOCAB, n_prompt + STEPS)
    with torch.no_grad():
        logits = model(torch.tensor(ids[None]), use_cache=False).logits[0].numpy()
    with open(os.path.join(FOLDER, name + ".expected"), "wb") as f:
        ctx = 256 if n_prompt + STEPS > 64 else 64
        f.write(struct.pack("<4I", n_prompt, STEPS, VOCAB, ctx))
        f.write(ids.astype("<u4").tobytes())
        f.write(logits[n_prompt - 1:].astype("<f4").tobytes())
    print(f"{name}: {model.config.model_type}, logits {np.abs(logits).max():.2f} at most")


if __name__ == "__main__":
    for n in sys.argv[1:] or MODELS:
        write(n)
