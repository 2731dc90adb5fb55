#!/usr/bin/env python3
"""columns.py - which columns of keys should prefetch keep? An oracle for docs/policies.md.

What:   runs a GGUF of the reference model's kind (F16 or F32, bytes as tokens) in exact attention over questions and their answers, and asks of every
        way to choose columns what share of the exact attention mass (softmax, summed over heads) the tokens hold that are selected with those columns
        alone, at the rows that predict every other byte of the answer. Queries are guessed a layer ahead (layer 0's are exact), as the product's.
How:    one list of columns a KV head; sums are means over tokens, |q| over the head's group as well; budget alpha, 4 sinks, window of 32, as everywhere.
Who:    a person:  hilltasks.py --bytes 1536 --count 4 --text ../../models/heldout.txt >tasks.jsonl;  columns.py ../../models/hill-ref.gguf tasks.jsonl
Fails:  a traceback for a file that is no such model; nothing is written but stdout. Needs numpy.
"""
import json
import struct
import sys

import numpy as np

SINKS, WINDOW, ALPHA = 4, 32, 0.1
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """Metadata and tensors of a file."""

    def __init__(self, path):
        self.bytes, self.at = open(path, "rb").read(), 8
        n_tensors, n_keys = self.read("Q"), self.read("Q")
        self.keys = {}
        for _ in range(n_keys):
            name = self.text()
            self.keys[name] = self.value(self.read("I"))
        places = {}
        for _ in range(n_tensors):
            name = self.text()
            dims = [self.read("Q") for _ in range(self.read("I"))]
            places[name] = dims, self.read("I"), self.read("Q")
        align = self.keys.get("general.alignment", 32)
        base = (self.at + align - 1) // align * align
        self.tensors = {name: np.frombuffer(self.bytes, {0: np.float32, 1: np.float16}[kind], int(np.prod(dims)), base + offset)
                        .astype(np.float32).reshape(dims[::-1]) for name, (dims, kind, offset) in places.items()}

    def read(self, kind):
        value, = struct.unpack_from("<" + kind, self.bytes, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def text(self):
        n = self.read("Q")
        self.at += n
        return self.bytes[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner = self.read("I")
            return [self.value(inner) for _ in range(self.read("Q"))]
        return self.read(SCALARS[kind])


def byte_tokens(words):
    """GPT-2's alphabet: byte -> id."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in plain]
    ids = {word: i for i, word in enumerate(words)}
    return {b: ids[chr(c)] for b, c in zip(plain + others, plain + [256 + i for i in range(len(others))])}


class Model:
    def __init__(self, path):
        file = Gguf(path)
        self.w, keys = file.tensors, file.keys
        self.layers, self.heads = keys["llama.block_count"], keys["llama.attention.head_count"]
        self.kv_heads, self.eps = keys["llama.attention.head_count_kv"], keys["llama.attention.layer_norm_rms_epsilon"]
        self.d = self.w["blk.0.attn_q.weight"].shape[0] // self.heads
        self.group, self.base = self.heads // self.kv_heads, keys["llama.rope.freq_base"]
        self.bos, self.ids = keys["tokenizer.ggml.bos_token_id"], byte_tokens(keys["tokenizer.ggml.tokens"])

    def norm(self, x, g):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * g

    def rotated(self, layer, name, x, heads):
        x = (self.norm(x, self.w[f"blk.{layer}.attn_norm.weight"]) @ self.w[f"blk.{layer}.{name}.weight"].T).reshape(len(x), heads, self.d)
        angle = np.arange(len(x))[:, None, None] * self.base ** (-2 * np.arange(self.d // 2) / self.d)
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * np.cos(angle) - x[..., 1::2] * np.sin(angle)
        out[..., 1::2] = x[..., 0::2] * np.sin(angle) + x[..., 1::2] * np.cos(angle)
        return out

    def run(self, tokens):
        """-> per layer: q, k and the query guessed from the input of the layer before."""
        x, before, out = self.w["token_embd.weight"][tokens], None, []
        for layer in range(self.layers):
            w = {name: self.w[f"blk.{layer}.{name}.weight"] for name in ("attn_norm", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")}
            q, k = self.rotated(layer, "attn_q", x, self.heads), self.rotated(layer, "attn_k", x, self.kv_heads)
            v = (self.norm(x, w["attn_norm"]) @ w["attn_v"].T).reshape(len(x), self.kv_heads, self.d)
            out.append((q, k, q if before is None else self.rotated(layer, "attn_q", before, self.heads)))
            before = x
            attended = [softmax(np.where(np.tri(len(x), dtype=bool), q[:, h] @ k[:, h // self.group].T / self.d ** 0.5, -np.inf)) @ v[:, h // self.group]
                        for h in range(self.heads)]
            x = x + np.concatenate(attended, 1) @ w["attn_output"].T
            h = self.norm(x, w["ffn_norm"])
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        return out


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mass(m, q, k):
    return sum(softmax(k[:, h // m.group] @ q[h] / m.d ** 0.5) for h in range(m.heads))


def share(exact, rank):
    """Of the exact mass, what the selected tokens hold."""
    n = len(rank)
    rank = rank.copy()
    rank[:SINKS] = rank[max(n - WINDOW, 0):] = np.inf
    return exact[np.argsort(-rank, kind="stable")[:int(np.ceil(ALPHA * n))]].sum() / exact.sum()


def choices(m, q, k, n_prompt):
    """name -> kept columns [kv heads, d]."""
    out = {}
    for kept in (m.d // 2, m.d * 3 // 10):
        for n, name in ((64, "64 tokens"), (n_prompt, "all")):
            qs = np.abs(q[:n]).reshape(-1, m.kv_heads, m.group, m.d).mean((0, 2))
            ks = np.abs(k[:n]).mean(0)
            for rule, weight in (("k", ks), ("q + k", qs + ks), ("q * k", qs * ks)):
                columns = np.zeros((m.kv_heads, m.d), bool)
                np.put_along_axis(columns, np.argsort(-weight, kind="stable")[:, :kept], True, 1)
                out[f"{rule}, {kept} of {m.d}, {name}"] = columns
    return out


def main():
    m, found = Model(sys.argv[1]), {}
    for line in open(sys.argv[2]):
        task = json.loads(line)
        prompt, answer = task["prompt"].encode(), task["answers"][0].encode()
        tokens = np.array([m.bos] + [m.ids[b] for b in prompt + answer])
        for layer, (q, k, guess) in enumerate(m.run(tokens)):
            columns = choices(m, q, k, len(prompt) + 1)
            for row in range(len(prompt), len(tokens) - 1, 2):
                exact, keys = mass(m, q[row], k[:row]), k[:row]
                ranks = {"exact mass": exact, "guess, all columns": mass(m, guess[row], keys)}
                ranks.update((name, mass(m, guess[row], keys * kept)) for name, kept in columns.items())
                for name, rank in ranks.items():
                    found.setdefault(name, [[] for _ in range(m.layers)])[layer].append(share(exact, rank))
    for name, layers in found.items():
        means = [np.mean(layer) for layer in layers]
        print(f"{name:28s}", " ".join(f"{mean:.3f}" for mean in means), f"  layers from 1 on {np.mean(means[1:]):.3f}")


main()
