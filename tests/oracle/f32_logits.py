#!/usr/bin/env python3
"""Logits of a GGUF file in F32 arithmetic on its dequantised weights: the reference of docs/parity.md.

    f32_logits.py MODEL IDS N [OUT] [--round LIST]

IDS: a line of token ids for each text. The last N ids of each line are given: their log-probabilities go to
stdout, the logits before each of them to OUT, float32 [line][N][n_vocab]. llama, qwen2 and gemma3; a layer's
weights are in memory at a time. No code is shared with the engine. Needs numpy and gguf.

--round adds one rounding after the other, to see what each of them costs:
    int8   the inputs of products with quantised weights become int8 in blocks of 32, scale max/127 in F32
    peer   the same as llama.cpp does it: 32 values, scale in F16, for Q4_1, Q5_0, Q8_0; 256 values for K-quants
    kv     K and V in F16
    query  the rotated query and the softmax weights in F16
    noise  every product's result is scaled by 1 + 1e-7 u, u uniform in -1 .. 1: another order of sums
"""
import argparse

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

F = np.float32


class Model:
    def __init__(self, path, rounds):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.rounds = rounds
        self.random = np.random.default_rng(1)
        self.arch = self.field("general.architecture", True)
        a = self.arch
        self.n, self.layers = self.field(f"{a}.embedding_length"), self.field(f"{a}.block_count")
        self.heads, self.kv_heads = self.field(f"{a}.attention.head_count"), self.field(f"{a}.attention.head_count_kv")
        self.dim = self.field(f"{a}.attention.key_length") or self.n // self.heads
        self.eps = F(self.field(f"{a}.attention.layer_norm_rms_epsilon"))
        self.base = self.field(f"{a}.rope.freq_base")
        self.window = self.field(f"{a}.attention.sliding_window")
        if a not in ("llama", "qwen2", "gemma3"):
            raise SystemExit(f"no reference for {a}")

    def field(self, name, text=False):
        f = self.reader.get_field(name)
        return None if f is None else f.contents()

    def tensor(self, name):
        t = self.tensors.get(name)
        return None if t is None else dequantize(t.data, t.tensor_type).astype(F)

    def product(self, x, name):
        """x [rows][k] times the transposed tensor."""
        kind = self.tensors[name].tensor_type.name
        if kind not in ("F32", "F16"):
            if "int8" in self.rounds:
                x = to_int8(x, 32, False)
            elif "peer" in self.rounds:
                x = to_int8(x, 256 if kind.endswith("_K") else 32, not kind.endswith("_K"))
        y = x @ self.tensor(name).T
        return self.noisy(y)

    def noisy(self, y):
        if "noise" in self.rounds:
            y *= 1 + F(1e-7) * self.random.uniform(-1, 1, y.shape).astype(F)
        return y

    def half(self, x, what):
        return x.astype(np.float16).astype(F) if what in self.rounds else x


def to_int8(x, block, half_scale):
    b = x.reshape(-1, block)
    scale = np.abs(b).max(1, keepdims=True) / F(127)
    inverse = np.divide(F(1), scale, out=np.zeros_like(scale), where=scale > 1e-30)
    q = np.rint(b * inverse)
    if half_scale:
        scale = scale.astype(np.float16).astype(F)
    return (q * scale).reshape(x.shape).astype(F)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=F) + eps) * weight


def rotate(x, positions, base, halves):
    """x [rows][heads][dim]"""
    dim = x.shape[-1]
    angle = positions[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    c, s = np.cos(angle).astype(F)[:, None, :], np.sin(angle).astype(F)[:, None, :]
    out = np.empty_like(x)
    a, b = (x[..., :dim // 2], x[..., dim // 2:]) if halves else (x[..., 0::2], x[..., 1::2])
    u, v = (out[..., :dim // 2], out[..., dim // 2:]) if halves else (out[..., 0::2], out[..., 1::2])
    u[...], v[...] = a * c - b * s, a * s + b * c
    return out


def attend(m, q, k, v, window):
    """One text: q [rows][heads][dim]; k, v [rows][kv heads][dim]"""
    rows, group = len(q), m.heads // m.kv_heads
    at = np.arange(rows)
    hidden = at[None, :] > at[:, None]
    if window:
        hidden |= at[:, None] - at[None, :] >= window
    out = np.empty_like(q)
    for h in range(m.heads):
        s = m.half(q[:, h], "query") @ k[:, h // group].T / F(np.sqrt(m.dim))
        s[hidden] = -np.inf
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        out[:, h] = m.half(p, "query") @ v[:, h // group]
    return out


def layer(m, i, x, positions, spans):
    def t(part):
        return m.tensor(f"blk.{i}.{part}.weight")
    halves, local = m.arch != "llama", m.arch == "gemma3" and i % 6 != 5
    base = 10000.0 if local else m.base
    h = norm(x, t("attn_norm"), m.eps)
    parts = []
    for part, heads in (("q", m.heads), ("k", m.kv_heads), ("v", m.kv_heads)):
        y = m.product(h, f"blk.{i}.attn_{part}.weight")
        bias = m.tensor(f"blk.{i}.attn_{part}.bias")
        y = (y if bias is None else y + bias).reshape(len(x), heads, m.dim)
        if part != "v":
            if t(f"attn_{part}_norm") is not None:
                y = norm(y, t(f"attn_{part}_norm"), m.eps)
            y = rotate(y, positions, base, halves)
        parts.append(y if part == "q" else m.half(y, "kv"))
    q, k, v = parts
    a = np.concatenate([attend(m, q[b:e], k[b:e], v[b:e], m.window if local else 0) for b, e in spans])
    y = m.product(a.reshape(len(x), -1), f"blk.{i}.attn_output.weight")
    if t("post_attention_norm") is not None:
        y = norm(y, t("post_attention_norm"), m.eps)
    x = x + y
    h = norm(x, t("ffn_norm"), m.eps)
    gate, up = m.product(h, f"blk.{i}.ffn_gate.weight"), m.product(h, f"blk.{i}.ffn_up.weight")
    if m.arch == "gemma3":
        act = gate * F(0.5) * (1 + np.tanh(F(np.sqrt(2 / np.pi)) * (gate + F(0.044715) * gate ** 3)))
    else:
        act = gate / (1 + np.exp(-gate))
    y = m.product(act * up, f"blk.{i}.ffn_down.weight")
    if t("post_ffw_norm") is not None:
        y = norm(y, t("post_ffw_norm"), m.eps)
    return x + y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("ids")
    p.add_argument("n", type=int)
    p.add_argument("out", nargs="?")
    p.add_argument("--round", default="")
    a = p.parse_args()
    m = Model(a.model, set(filter(None, a.round.split(","))))
    texts = [[int(w) for w in line.split()] for line in open(a.ids)]
    ends = np.cumsum([len(t) for t in texts])
    spans = [(int(e) - len(t), int(e)) for e, t in zip(ends, texts)]
    ids = np.concatenate(texts)
    positions = np.concatenate([np.arange(len(t)) for t in texts]).astype(np.float64)
    x = m.tensor("token_embd.weight")[ids]
    if m.arch == "gemma3":
        x = x * F(np.sqrt(m.n))
    for i in range(m.layers):
        x = layer(m, i, x, positions, spans)
    x = norm(x, m.tensor("output_norm.weight"), m.eps)
    output = "output.weight" if "output.weight" in m.tensors else "token_embd.weight"
    out = open(a.out, "wb") if a.out else None
    for (_, e), text in zip(spans, texts):
        logits = m.product(x[e - a.n - 1:e - 1], output)
        if out:
            logits.astype(F).tofile(out)
        largest = logits.max(1).astype(np.float64)
        sums = np.log(np.exp(logits - largest[:, None], dtype=np.float64).sum(1)) + largest
        print(" ".join(f"{lp:.6f}" for lp in logits[np.arange(a.n), text[-a.n:]] - sums))


main()
