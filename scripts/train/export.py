#!/usr/bin/env python3
"""export.py - write a checkpoint of train.py as a GGUF v3 file (Llama architecture, F16 matrices, F32 norms).

Why a writer of its own: the format's few dozen lines need no package, and the metadata must be what hill-mkmodel writes
(tokenizer model gpt2, 256 bytes + BOS + EOS + the one merge's token), so that every loader takes both alike.
Fails: nothing is left half-written (temporary file, rename).
"""
import argparse
import pathlib
import struct

import numpy
import torch

from model import BOS, EOS, VOCAB, Model, Shape

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TYPE_F32, TYPE_F16 = 0, 1
NORMAL, CONTROL = 1, 3


def string(text):
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def byte_spelling(byte):
    """The byte as byte-level BPE vocabularies spell it: printable Latin-1 stands for itself, the others go up."""
    def itself(b):
        return 0x21 <= b <= 0x7e or (b >= 0xa1 and b != 0xad)
    return chr(byte if itself(byte) else 0x100 + sum(not itself(b) for b in range(byte)))


def vocabulary():
    special = {BOS: "<|begin_of_text|>", EOS: "<|endoftext|>", 258: "\u0100\u0100"}
    return [special.get(t) or byte_spelling(t) for t in range(VOCAB)]


def metadata(shape, name):
    one = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}

    def value(kind, x):
        return string(x) if kind == STRING else struct.pack(one[kind], x)

    def entry(key, kind, x):
        return string(key) + struct.pack("<I", kind) + value(kind, x)

    def array(key, kind, items):
        head = string(key) + struct.pack("<IIQ", ARRAY, kind, len(items))
        return head + b"".join(value(kind, i) for i in items)
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, name),
        entry("general.alignment", U32, ALIGNMENT),
        entry("general.file_type", U32, 1),
        entry("llama.block_count", U32, shape.layers),
        entry("llama.context_length", U32, shape.ctx),
        entry("llama.embedding_length", U32, shape.width),
        entry("llama.feed_forward_length", U32, shape.ff),
        entry("llama.attention.head_count", U32, shape.heads),
        entry("llama.attention.head_count_kv", U32, shape.kv_heads),
        entry("llama.attention.key_length", U32, shape.head_dim),
        entry("llama.attention.value_length", U32, shape.head_dim),
        entry("llama.attention.layer_norm_rms_epsilon", F32, shape.eps),
        entry("llama.rope.dimension_count", U32, shape.head_dim),
        entry("llama.rope.freq_base", F32, shape.rope_base),
        entry("llama.vocab_size", U32, VOCAB),
        entry("tokenizer.ggml.model", STRING, "gpt2"),
        entry("tokenizer.ggml.pre", STRING, "gpt-2"),
        array("tokenizer.ggml.tokens", STRING, vocabulary()),
        array("tokenizer.ggml.token_type", I32, [CONTROL if t in (BOS, EOS) else NORMAL for t in range(VOCAB)]),
        array("tokenizer.ggml.merges", STRING, ["\u0100 \u0100"]),  # loaders want one; text never needs it
        entry("tokenizer.ggml.bos_token_id", U32, BOS),
        entry("tokenizer.ggml.eos_token_id", U32, EOS),
        entry("tokenizer.ggml.add_bos_token", BOOL, True),
        entry("tokenizer.ggml.add_eos_token", BOOL, False),
    ]


def tensors(model):
    """-> (name, array, type) in the order of the file."""
    for name, p in model.state_dict().items():
        kind = TYPE_F32 if p.dim() < 2 else TYPE_F16
        yield name if name.endswith(".weight") else name + ".weight", \
            p.float().numpy().astype(numpy.float32 if kind == TYPE_F32 else numpy.float16), kind


def padded(raw):
    return raw + bytes(-len(raw) % ALIGNMENT)


def gguf(model, name):
    pairs, parts, directory, offset = metadata(model.shape, name), [], [], 0
    for key, array, kind in tensors(model):
        if not numpy.isfinite(array).all():
            raise SystemExit(f"export: {key} does not fit its type: not finite")
        directory.append(string(key) + struct.pack("<I", array.ndim)
                         + b"".join(struct.pack("<Q", d) for d in reversed(array.shape))
                         + struct.pack("<IQ", kind, offset))
        parts.append(padded(array.tobytes()))
        offset += len(parts[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(directory), len(pairs)) + b"".join(pairs) + b"".join(directory)
    return padded(head) + b"".join(parts)


def load(checkpoint):
    """The model of a checkpoint, its weights rounded to what the file holds."""
    saved = torch.load(checkpoint, weights_only=True, map_location="cpu")
    model = Model(Shape(ff=saved["ff"]))
    model.load_state_dict({k: p.half().float() if p.dim() > 1 else p for k, p in saved["model"].items()})
    return model, saved


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--name", default="HillInfer reference model")
    args = parser.parse_args()
    model, saved = load(args.checkpoint)
    raw = gguf(model, args.name)
    temporary = args.out.with_name(args.out.name + ".tmp")
    temporary.write_bytes(raw)
    temporary.replace(args.out)
    print(f"{args.out}: {len(raw)} bytes, {sum(p.numel() for p in model.parameters())} parameters, "
          f"{saved['tokens']} tokens seen")


if __name__ == "__main__":
    main()
