#!/usr/bin/env python3
"""An independent forward pass for the wired model: numpy, straight from the paper's formulas.

usage: wired_model.py MODEL.gguf TEXTFILE [-n N] [--budget K] [--sinks 4] [--window 32]

Prints the greedy continuation of the text. With --budget, the last prompt token and all generated ones attend
only to K tokens per layer, selected by the plain sum over heads of INT8 products (power-of-two scales),
sinks and newest window always in: what the pipeline does. Layers whose output projection is zero are skipped, and
so is the FFN when ffn_down is zero. It shares no code with the C sources. Needs numpy; `make check` does not run it.
"""
import argparse
import struct
import sys

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    def __init__(self, path):
        self.blob = open(path, "rb").read()
        self.at = 4
        assert self.blob[:4] == b"GGUF" and self.scalar(4) == 3
        n_tensors, n_metadata = self.scalar(10), self.scalar(10)
        self.meta = {}
        for _ in range(n_metadata):
            key = self.string().decode()
            self.meta[key] = self.value(self.scalar(4))
        self.directory = {}
        for _ in range(n_tensors):
            name = self.string().decode()
            dims = [self.scalar(10) for _ in range(self.scalar(4))]
            self.directory[name] = (dims, self.scalar(4), self.scalar(10))
        align = self.meta.get("general.alignment", 32)
        self.data = -(-self.at // align) * align

    def scalar(self, kind):
        size = struct.calcsize("<" + SCALARS[kind])
        self.at += size
        return struct.unpack_from("<" + SCALARS[kind], self.blob, self.at - size)[0]

    def string(self):
        length = self.scalar(10)
        self.at += length
        return self.blob[self.at - length:self.at]

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            item, count = self.scalar(4), self.scalar(10)
            return [self.value(item) for _ in range(count)]
        return self.scalar(kind)

    def tensor(self, name):
        dims, kind, offset = self.directory[name]
        count, at = int(np.prod(dims)), self.data + offset
        if kind == 0:
            flat = np.frombuffer(self.blob, "<f4", count, at)
        elif kind == 1:
            flat = np.frombuffer(self.blob, "<f2", count, at).astype(np.float32)
        elif kind == 30:
            flat = (np.frombuffer(self.blob, "<u2", count, at).astype(np.uint32) << 16).view(np.float32)
        elif kind == 8:
            block = np.dtype([("scale", "<f2"), ("quanta", "i1", 32)])
            blocks = np.frombuffer(self.blob, block, count // 32, at)
            flat = (blocks["quanta"] * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)
        else:
            sys.exit(f"{name}: tensor type {kind}")
        return flat.reshape(dims[::-1])


def digest(x):
    """INT8 quanta and the power-of-two scale, along the last axis."""
    largest = np.abs(x).max(-1, keepdims=True)
    scale = 2.0 ** np.ceil(np.log2(np.maximum(largest, 1e-30) / 127))
    return np.rint(x / scale).astype(np.int64), scale


class Model:
    def __init__(self, path, args):
        g = Gguf(path)
        m = lambda key: g.meta["llama." + key]
        self.args = args
        self.heads, self.kv_heads = m("attention.head_count"), m("attention.head_count_kv")
        self.dim, self.eps = m("attention.key_length"), m("attention.layer_norm_rms_epsilon")
        pairs = np.arange(self.dim // 2, dtype=np.float32)
        self.theta = np.float32(m("rope.freq_base")) ** (-2 * pairs / np.float32(self.dim))
        self.embd = g.tensor("token_embd.weight")
        self.output = g.tensor("output.weight") if "output.weight" in g.directory else self.embd
        self.output_norm = g.tensor("output_norm.weight")
        self.bos = g.meta["tokenizer.ggml.bos_token_id"]
        self.layers = []
        for i in range(m("block_count")):
            t = lambda name: g.tensor(f"blk.{i}.{name}.weight")
            assert not t("ffn_down").any(), "the FFN is not part of this oracle"
            if t("attn_output").any():
                self.layers.append([t(n) for n in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")])
        self.cache = [None] * len(self.layers)

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x, positions):
        angle = (positions[:, None].astype(np.float32) * self.theta)[:, None, :]
        c, s, out = np.cos(angle), np.sin(angle), np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
        return out

    def select(self, q, k):
        """Positions the newest query may attend to, by the integer score."""
        n, group = len(k), self.heads // self.kv_heads
        budget = self.args.budget
        if not budget or budget >= n:
            return np.arange(n)
        q_int, q_scale = digest(q[0].reshape(self.kv_heads, group, -1).sum(1))
        k_int, k_scale = digest(k.astype(np.float32))
        score = ((k_int * q_int).sum(-1) * k_scale[..., 0] * q_scale[:, 0]).sum(-1)
        score[:self.args.sinks] = score[n - self.args.window:] = np.inf
        return np.sort(np.lexsort((-np.arange(n), -score))[:budget])

    def attend(self, q, k, v, first):
        """Causal attention of queries at positions first.. over the cache; unused key dimensions are dropped."""
        out, group = np.empty_like(q), self.heads // self.kv_heads
        for h in range(self.heads):
            keys, values = k[:, h // group].astype(np.float32), v[:, h // group].astype(np.float32)
            used, carried = q[:, h].any(0), values.any(0)
            if not used.any():  # a zero query: the plain mean
                out[:, h] = np.cumsum(values, 0)[first:] / np.arange(first + 1, first + len(q) + 1)[:, None]
                continue
            out[:, h] = 0
            keys, values, queries = keys[:, used], values[:, carried], q[:, h][:, used]
            for a in range(0, len(q), 512):
                rows = queries[a:a + 512]
                end = first + a + len(rows)
                logits = rows @ keys[:end].T / np.sqrt(np.float32(self.dim))
                late = np.arange(end)[None, :] > (first + a + np.arange(len(rows)))[:, None]
                logits[late] = -np.inf
                p = np.exp(logits - logits.max(1, keepdims=True))
                out[a:a + 512, h, carried] = (p / p.sum(1, keepdims=True)) @ values[:end]
        return out

    def forward(self, tokens, first, chosen=False):
        """Logits after the last of tokens (positions first..)."""
        x = self.embd[tokens]
        positions = np.arange(first, first + len(tokens))
        for i, (norm, wq, wk, wv, wo) in enumerate(self.layers):
            y = self.norm(x, norm)
            heads = lambda w, n: (y @ w.T).reshape(len(tokens), n, self.dim)
            k = self.rotate(heads(wk, self.kv_heads), positions).astype(np.float16)
            v = heads(wv, self.kv_heads).astype(np.float16)
            if self.cache[i] is not None:
                k, v = np.concatenate([self.cache[i][0], k]), np.concatenate([self.cache[i][1], v])
            self.cache[i] = (k, v)
            if i == len(self.layers) - 1:  # nobody reads the earlier rows of the last layer
                x, y, positions = x[-1:], y[-1:], positions[-1:]
            tokens = positions
            q = self.rotate(heads(wq, self.heads), positions)
            if chosen:
                picked = self.select(q, k)
                k, v = k[picked], v[picked]
                attended = self.attend(q, k, v, len(k) - 1)
            else:
                attended = self.attend(q, k, v, int(positions[0]))
            x = x + attended.reshape(len(positions), -1) @ wo.T
        return (self.norm(x, self.output_norm) @ self.output.T)[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("-n", type=int, default=10)
    for name, default in (("--budget", 0), ("--sinks", 4), ("--window", 32)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--verbose", action="store_true", help="print each step's two best logits to stderr")
    args = parser.parse_args()
    model = Model(args.model, args)
    tokens = [model.bos] + list(open(args.text, "rb").read())
    model.forward(np.array(tokens[:-1]), 0)
    position, token, text = len(tokens) - 1, tokens[-1], b""
    for _ in range(args.n):
        logits = model.forward(np.array([token]), position, chosen=True)
        order = np.argsort(-logits)
        if args.verbose:
            print(bytes([order[0] & 255]), logits[order[:2]], file=sys.stderr)
        token, position = int(order[0]), position + 1
        text += bytes([token]) if token < 256 else b"?"
    print(text.decode(errors="replace"))


if __name__ == "__main__":
    main()
