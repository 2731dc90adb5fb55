"""wire.py - starting weights: the first three layers as a working copy machine, the rest ready to learn.

Why:   a model this small sees some ten million bytes in its training; an induction circuit that reaches thousands of
       tokens back would hardly form. So it starts with one (the idea of tools/mkmodel/weights_wired.c), and training decides
       what to keep, to soften and to build on it.
Who:   train.py, once, before the first step.

Residual stream (width >= 144), the first 142 dimensions:
  CUR   8 + 4   codes of the token itself: an E8 root (240 of them, cosine <= 1/2), a D4 root (24 classes of bytes)
  P1-4  4 x 12  the same codes of the tokens 1..4 places back        (layer 0, heads 1..4)
  P5-8  4 x 4   the D4 codes of the tokens 5..8 places back          (layer 1, head 1: P1-4 of four places back)
  CODE  32      +-1: what the token looks like to the unembedding
  OUT   32      the copy machine's prediction, in the same code
  CONST, BOS    a constant, and a mark only BOS carries
Layer 1 heads 3, 4 match four bytes and two bytes; layer 2 head 1 matches eight. All of them fall back on BOS, whose
CODE is nothing, where nothing matches well enough.
"""
import itertools
import math

import torch

from model import BOS, VOCAB

CUR, P, P5, CODE, OUT = 0, 12, 60, 76, 108
CONST, BOSMARK, FREE = 140, 141, 142
CONST_VALUE = 2.0
POSITION_PAIRS = 15   # the fastest pairs tell places apart
POSITION_DECAY = 0.75 # each slower pair weighs less: found by search, the best ratio of lead to peak within 40 000 places
POSITION_LEAD = 16.0  # nats by which the right place leads every other
SINK_PAIR = 15        # slow enough (2e-5 rad a token) to be blind to distance
MATCH_DIM = 32        # pairs 16..31


def e8_roots():
    roots = []
    for i, j in itertools.combinations(range(8), 2):
        for a, b in itertools.product((1, -1), repeat=2):
            v = [0.0] * 8
            v[i], v[j] = a, b
            roots.append(v)
    for signs in itertools.product((0.5, -0.5), repeat=8):
        if sum(s < 0 for s in signs) % 2 == 0:
            roots.append(list(signs))
    return torch.tensor(roots) * 2  # norm^2 8: elements of about 1


def d4_roots():
    return torch.tensor([[a if k == i else b if k == j else 0.0 for k in range(4)]
                         for i, j in itertools.combinations(range(4), 2)
                         for a, b in itertools.product((1.0, -1.0), repeat=2)]) * math.sqrt(2)  # norm^2 4


def wire_embedding(model, rng):
    e = torch.zeros(VOCAB, model.shape.width)
    order = torch.randperm(240, generator=rng)
    common = list(b"abcdefghijklmnopqrstuvwxyz0123456789 .,:;=-_ABCDEFGHIJKLMNOPQRSTUVWXYZ\n")
    rank = {b: i for i, b in enumerate(common)}
    e8, d4 = e8_roots(), d4_roots()
    for token in range(VOCAB):
        e[token, CUR:CUR + 8] = e8[order[token % 240]]
        e[token, CUR + 8:CUR + 12] = d4[rank.get(token, token) % 24]
    e[:, CODE:CODE + 32] = torch.randint(0, 2, (VOCAB, 32), generator=rng) * 2.0 - 1
    e[BOS, CUR:CUR + 12] = 0
    e[BOS, CODE:CODE + 32] = 0
    e[BOS, BOSMARK] = math.sqrt(44)  # the norm of what it lacks
    e[:, CONST] = CONST_VALUE
    e[:, FREE:] = torch.randn(VOCAB, model.shape.width - FREE, generator=rng) * 0.5
    model.token_embd.weight.copy_(e)
    return e


def position_query(shape, offset):
    """Gains and phases that make q.k peak where the key stands `offset` places back, for keys (1, 0)."""
    pair = torch.arange(POSITION_PAIRS, dtype=torch.float64)
    theta = shape.rope_base ** (-2 * pair / shape.head_dim)
    weight = POSITION_DECAY ** pair
    away = torch.arange(1, shape.ctx, dtype=torch.float64)
    gap = (weight[:, None] * (1 - torch.cos(theta[:, None] * away))).sum(0).min().item()
    gain = weight * POSITION_LEAD / gap * math.sqrt(shape.head_dim)
    q = torch.zeros(shape.head_dim)
    q[0:2 * POSITION_PAIRS:2] = (gain * torch.cos(-offset * theta)).float()
    q[1:2 * POSITION_PAIRS:2] = (gain * torch.sin(-offset * theta)).float()
    return q


def rms_at(model, layer, text):
    """Root mean square of the residual stream that enters a layer, on a sample of text."""
    seen = {}
    hook = model.blk[layer].register_forward_pre_hook(lambda m, a: seen.update(x=a[0]))
    model.hidden(text, torch.arange(text.shape[1]).repeat(text.shape[0], 1))
    hook.remove()
    return seen["x"][:, 16:].pow(2).mean().sqrt().item()


def const_at(model, layer, text):
    """What the constant is worth after a layer's norm, and how much (relative) it varies, on a sample of text."""
    seen = {}
    hook = model.blk[layer].attn_q.register_forward_pre_hook(lambda m, a: seen.update(x=a[0]))
    model.hidden(text, torch.arange(text.shape[1]).repeat(text.shape[0], 1))
    hook.remove()
    value = seen["x"][:, 16:, CONST]
    return value.mean().item(), (value.std() / value.mean()).item()


def rows(weight, head, shape):
    return weight[head * shape.head_dim:(head + 1) * shape.head_dim]


def wire_position_head(model, layer, head, kv_head, offset, const):
    q = rows(model.blk[layer].attn_q.weight, head, model.shape)
    k = rows(model.blk[layer].attn_k.weight, kv_head, model.shape)
    q.zero_(), k.zero_()
    q[:, CONST] = position_query(model.shape, offset) / const
    k[0:2 * POSITION_PAIRS:2, CONST] = 1 / const


def code_rows():
    """The dimensions of the residual stream that hold D4 codes: of the token itself and of the eight before it."""
    return [code4(n) + i for n in range(9) for i in range(4)]


def wire_codes(model, rms):
    """The way of the D4 codes: only the position heads write where they lie, and those write nothing else there."""
    for layer in model.blk[:2]:
        layer.attn_output.weight[code_rows()] = 0
        layer.ffn_down.weight[code_rows()] = 0
    for head in range(4):
        v = rows(model.blk[0].attn_v.weight, head // 2, model.shape)
        v[8:12] = 0
        v[range(8, 12), range(CUR + 8, CUR + 12)] = rms[0]
        model.blk[0].attn_output.weight[range(code4(head + 1), code4(head + 1) + 4), range(head * 64 + 8, head * 64 + 12)] = 1
        v = rows(model.blk[1].attn_v.weight, 0, model.shape)
        v[4 * head:4 * head + 4] = 0
        v[range(4 * head, 4 * head + 4), range(code4(head + 1), code4(head + 1) + 4)] = rms[1]
        model.blk[1].attn_output.weight[range(code4(head + 5), code4(head + 5) + 4), range(4 * head, 4 * head + 4)] = 1


@torch.no_grad()
def wire_anew(model, text):
    """Position heads, the way of the codes and the match of eight bytes, to the norms as they are now."""
    for norm in (model.blk[0].attn_norm, model.blk[1].attn_norm, model.blk[2].attn_norm):
        norm[[CONST, BOSMARK] + code_rows()] = 1
    model.token_embd.weight[:, CONST] = CONST_VALUE
    for n in range(2):
        model.blk[n].attn_output.weight[[CONST, BOSMARK]] = 0
        model.blk[n].ffn_down.weight[[CONST, BOSMARK]] = 0
    wire_codes(model, [1, 1])
    for _ in range(2):  # the norms depend on what is wired
        wire_codes(model, [rms_at(model, 0, text), rms_at(model, 1, text)])
        for head in range(4):
            wire_position_head(model, 0, head, head // 2, head + 1, const_at(model, 0, text)[0])
        wire_position_head(model, 1, 0, 0, 4, const_at(model, 1, text)[0])
    wire_eight(model, rms_at(model, 2, text))


class Pins:
    """Weights that stay as they are. Position heads add up large products to tell places apart: a step of an optimiser
    along them shifts a head to another place long before its gradient says so (seen: the head four places back ended at three
    and a half). What they read, the constant, must not vary from token to token either. And the codes eight places back are
    needed clean by few questions and are in the way of many small gains: text alone buries them (seen as well)."""

    def __init__(self, model):
        d, self.held = model.shape.head_dim, []
        fixed = [CONST, BOSMARK] + code_rows()
        one, two, three = model.blk[0], model.blk[1], model.blk[2]
        for p, where in ((model.token_embd.weight, (slice(None), [CONST, BOSMARK] + fixed[2:6])),
                         (one.attn_output.weight, fixed), (one.ffn_down.weight, fixed),
                         (two.attn_output.weight, fixed), (two.ffn_down.weight, fixed),
                         (one.attn_q.weight, slice(None)), (one.attn_k.weight, slice(None)),
                         (one.attn_v.weight, [*range(8, 12), *range(d + 8, d + 12)]),
                         (two.attn_q.weight, slice(0, d)), (two.attn_k.weight, slice(0, d)),
                         (two.attn_v.weight, slice(0, 16)),
                         (three.attn_q.weight, slice(0, d)), (three.attn_k.weight, slice(0, d)),
                         (one.attn_norm, fixed), (two.attn_norm, fixed), (three.attn_norm, fixed)):
            self.held.append((p, where, p.detach()[where].clone()))

    @torch.no_grad()
    def restore(self):
        for p, where, value in self.held:
            p[where] = value


def wire_layer0(model, rms):
    layer, shape = model.blk[0], model.shape
    for head in range(shape.kv_heads):
        v = rows(layer.attn_v.weight, head, shape)
        v[:12] = 0
        v[range(12), range(CUR, CUR + 12)] = rms
    for head in range(4):
        wire_position_head(model, 0, head, head // 2, head + 1, CONST_VALUE / rms)
        layer.attn_output.weight[:, head * 64:head * 64 + 12] = 0
        layer.attn_output.weight[range(P + 12 * head, P + 12 * head + 12), range(head * 64, head * 64 + 12)] = 1


def wire_match(layer, shape, head, kv_head, places, weights, norm2, sink, strength, rms):
    """places: list of (first dim of the query's code, of the key's code, dims). strength: how loud it copies; 0: leave that as it is."""
    q, k = rows(layer.attn_q.weight, head, shape), rows(layer.attn_k.weight, kv_head, shape)
    v = rows(layer.attn_v.weight, kv_head, shape)
    q.zero_(), k.zero_()
    at = MATCH_DIM
    root = math.sqrt(shape.head_dim)
    for (query, key, dims), weight in zip(places, weights):
        for i in range(dims):
            q[at, query + i] = weight * root / norm2 * rms
            k[at, key + i] = rms
            at += 1
    q[2 * SINK_PAIR, CONST] = sink * root * rms / CONST_VALUE
    k[2 * SINK_PAIR, BOSMARK] = rms / math.sqrt(44)
    if not strength:
        return
    v[:32] = 0
    v[range(32), range(CODE, CODE + 32)] = rms
    o = layer.attn_output.weight
    o[:, head * 64:head * 64 + 32] = 0
    o[range(OUT, OUT + 32), range(head * 64, head * 64 + 32)] = strength


def code8(n):
    return CUR if n == 0 else P + 12 * (n - 1)


def code4(n):
    return code8(n) + 8 if n <= 4 else P5 + 4 * (n - 5)


def wire_layer1(model, rms):
    layer, shape = model.blk[1], model.shape
    wire_position_head(model, 1, 0, 0, 4, CONST_VALUE / rms)
    v, o = rows(layer.attn_v.weight, 0, shape), layer.attn_output.weight
    v[:16] = 0
    o[:, :16] = 0
    for n in range(4):
        v[range(4 * n, 4 * n + 4), range(code4(n + 1), code4(n + 1) + 4)] = rms
        o[range(code4(n + 5), code4(n + 5) + 4), range(4 * n, 4 * n + 4)] = 1
    four = [(code8(n), code8(n + 1), 8) for n in range(4)]
    wire_match(layer, shape, 3, 1, four, (10, 8, 0, 0), 8, 14, 0.5, rms)
    wire_match(layer, shape, 2, 1, four, (12, 10, 8, 7), 8, 26, 1.0, rms)


def wire_eight(model, rms, strength=0.0):
    eight = [(code4(n), code4(n + 1), 4) for n in range(8)]
    wire_match(model.blk[2], model.shape, 0, 0, eight, [10 * 0.9 ** n for n in range(8)], 4, 40, strength, rms)


@torch.no_grad()
def wire(model, text, seed):
    """text [B, T]: a sample, rows starting with BOS, to measure norms on."""
    shape = model.shape
    assert shape.heads >= 4 and shape.kv_heads >= 2 and shape.head_dim == 64 and shape.width > FREE
    rng = torch.Generator().manual_seed(seed)
    for layer in model.blk:
        for linear in (layer.attn_q, layer.attn_k, layer.attn_v, layer.ffn_gate, layer.ffn_up):
            linear.weight.normal_(0, 0.6 / math.sqrt(shape.width), generator=rng)
        layer.attn_output.weight.zero_()
        layer.ffn_down.weight.zero_()
    e = wire_embedding(model, rng)
    wire_layer0(model, rms_at(model, 0, text))
    wire_layer1(model, rms_at(model, 1, text))
    wire_eight(model, rms_at(model, 2, text), 1.5)
    last = rms_at(model, shape.layers - 1, text)
    model.output.weight.normal_(0, 0.002, generator=rng)
    model.output.weight[:, OUT:OUT + 32] = e[:, CODE:CODE + 32] * last * 10 / 96
