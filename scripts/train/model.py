"""model.py - the reference model's forward pass: a plain Llama decoder (RMSNorm, rotary pairs, GQA, SwiGLU).

Why:   the same arithmetic as every GGUF engine's "llama" architecture, so that a trained checkpoint needs no
       conversion beyond a copy (export.py). Rotary pairs are neighbours (2i, 2i+1), as GGUF's llama files have them.
Who:   train.py, wire.py, evaluate.py, export.py. No state outside the module; not thread-safe while training.
"""
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

BOS, EOS, VOCAB = 256, 257, 259  # 258 is the one merge's token (see tools/mkmodel/README.md); text never needs it


@dataclasses.dataclass
class Shape:
    layers: int = 6
    width: int = 192
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 512
    rope_base: float = 1e10
    ctx: int = 32768
    eps: float = 1e-5


def rotary(positions, shape):
    """positions [B, T] (float64) -> cos, sin [B, 1, T, head_dim/2] (float32)."""
    pair = torch.arange(shape.head_dim // 2, dtype=torch.float64)
    angle = positions.double()[:, None, :, None] * shape.rope_base ** (-2 * pair / shape.head_dim)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        s = self.shape = shape
        self.attn_norm = nn.Parameter(torch.ones(s.width))
        self.attn_q = nn.Linear(s.width, s.heads * s.head_dim, bias=False)
        self.attn_k = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=False)
        self.attn_v = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=False)
        self.attn_output = nn.Linear(s.heads * s.head_dim, s.width, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(s.width))
        self.ffn_gate = nn.Linear(s.width, s.ff, bias=False)
        self.ffn_up = nn.Linear(s.width, s.ff, bias=False)
        self.ffn_down = nn.Linear(s.ff, s.width, bias=False)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.shape.head_dim).transpose(1, 2)

    def forward(self, x, cos, sin):
        s = self.shape
        h = F.rms_norm(x, (s.width,), self.attn_norm, s.eps)
        q = rotate(self.split(self.attn_q(h), s.heads), cos, sin)
        k = rotate(self.split(self.attn_k(h), s.kv_heads), cos, sin)
        v = self.split(self.attn_v(h), s.kv_heads)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.attn_output(a.transpose(1, 2).flatten(2))
        h = F.rms_norm(x, (s.width,), self.ffn_norm, s.eps)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(VOCAB, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.Parameter(torch.ones(shape.width))
        self.output = nn.Linear(shape.width, VOCAB, bias=False)

    def hidden(self, tokens, positions):
        """tokens [B, T], positions [B, T] -> normed residual stream [B, T, width]."""
        cos, sin = rotary(positions, self.shape)
        x = self.token_embd(tokens)
        for layer in self.blk:
            x = layer(x, cos, sin)
        return F.rms_norm(x, (self.shape.width,), self.output_norm, self.shape.eps)

    def forward(self, tokens, positions):
        return self.output(self.hidden(tokens, positions))
