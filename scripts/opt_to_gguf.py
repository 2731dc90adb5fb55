#!/usr/bin/env python3
"""Write a GGUF file from an OPT checkpoint of transformers.

    scripts/opt_to_gguf.py FOLDER OUT.gguf [f32|f16]

FOLDER holds config.json, the weights, vocab.json and merges.txt. llama.cpp has no OPT, so the names
are ours (docs/models.md). Matrices become F16 unless f32 is asked for; norms, biases and positions
stay F32. Refused: OPT-350m, which puts its norms after the blocks and projects its embeddings.
Needs numpy, torch, transformers and gguf; nothing of the product does.
"""
import json
import os
import sys

import numpy as np

LAYER = {
    "self_attn_layer_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "final_layer_norm": "ffn_norm",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
}
SINGLE = {
    "embed_tokens.weight": "token_embd.weight",
    "embed_positions.weight": "position_embd.weight",
    "final_layer_norm.weight": "output_norm.weight",
    "final_layer_norm.bias": "output_norm.bias",
}


def tensors(state, tied):
    """(name, float32 array) of each tensor of a state_dict."""
    for name, value in state.items():
        value = value.float().numpy()
        name = name.removeprefix("model.").removeprefix("decoder.")
        if name == "lm_head.weight":
            if not tied:
                yield "output.weight", value
        elif name in SINGLE:
            yield SINGLE[name], value
        elif name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            module, kind = rest.rsplit(".", 1)
            yield f"blk.{layer}.{LAYER[module]}.{kind}", value
        else:
            raise SystemExit(f"tensor {name} has no place: not an OPT that this engine computes")


def check(config):
    if config.model_type != "opt":
        raise SystemExit(f"the model is {config.model_type}, not opt")
    if not config.do_layer_norm_before or config.word_embed_proj_dim != config.hidden_size:
        raise SystemExit("norms after the blocks, or projected embeddings (OPT-350m): not supported")
    if config.activation_function != "relu":
        raise SystemExit(f"activation {config.activation_function}: only relu is OPT's")


def add_vocabulary(w, folder, config):
    """GPT-2's byte-level BPE; rows beyond the vocabulary are unused."""
    with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as f:
        ids = json.load(f)
    with open(os.path.join(folder, "merges.txt"), encoding="utf-8") as f:
        merges = [line.rstrip("\n") for line in f if line.strip() and not line.startswith("#version")]
    by_id = {i: text for text, i in ids.items()}
    special = {config.bos_token_id, config.eos_token_id, config.pad_token_id}
    texts = [by_id.get(i, f"[unused{i}]") for i in range(config.vocab_size)]
    types = [5 if i not in by_id else 3 if i in special else 1 for i in range(config.vocab_size)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(texts)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(config.bos_token_id)
    w.add_eos_token_id(config.eos_token_id)
    w.add_add_bos_token(True)


def main(folder, out, matrices):
    import torch
    import transformers
    from gguf import GGUFWriter

    model = transformers.OPTForCausalLM.from_pretrained(folder, dtype=torch.float32)
    c = model.config
    check(c)
    w = GGUFWriter(out, "opt")
    w.add_block_count(c.num_hidden_layers)
    w.add_embedding_length(c.hidden_size)
    w.add_feed_forward_length(c.ffn_dim)
    w.add_head_count(c.num_attention_heads)
    w.add_context_length(c.max_position_embeddings)
    w.add_layer_norm_eps(1e-5)
    add_vocabulary(w, folder, c)
    for name, value in tensors(model.state_dict(), c.tie_word_embeddings):
        half = matrices == "f16" and value.ndim == 2 and name != "position_embd.weight"
        w.add_tensor(name, value.astype(np.float16 if half else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["f16"], ["f32"]):
        raise SystemExit("usage: opt_to_gguf.py FOLDER OUT.gguf [f32|f16]")
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) == 4 else "f16")
