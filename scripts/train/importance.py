#!/usr/bin/env python3
"""importance.py - which importance finds the tokens that matter? An oracle for docs/importance.md.

What:   runs a checkpoint in exact arithmetic and asks of every selection rule (a) what share of the exact attention mass
        (softmax, summed over heads) the selected tokens hold, layer by layer, over the second half of held-out texts and
        tasks; (b) with --accuracy, how many task answers survive, and (c) what the loss on text becomes, when
        attention is restricted to the selected tokens. Prints Markdown tables and the measured checkpoint's step and tokens.
How:    budget, sinks, window and ties as kv/select.c has them; INT8 and INT4 digests written anew here from kv/score.h.
        Rows of text before the measured half, and prompts, see everything, as the product's prefill does. Of a task the
        rows that predict the answer are restricted: the answer is given (teacher forcing), and counts as right
        when each of its bytes is the model's first choice, which is what greedy decoding would have written.
Who:    a person, after training. Needs the folder gather.py made. Single-threaded state; nothing is written but stdout.
Fails:  a traceback for a file that is no checkpoint; nothing is half-written.
"""
import argparse
import math
import pathlib

import torch
import torch.nn.functional as F

import data
from model import BOS, Model, Shape, rotary, rotate

SINKS, WINDOW = 4, 32
ALPHAS = (0.05, 0.1, 0.2)
NEVER = -torch.inf


# ---- the model, one layer at a time --------------------------------------------------------------------------------

def project(layer, x, cos, sin):
    """Residual stream [T, width] -> q [heads, T, d], k, v [kv heads, T, d]."""
    s = layer.shape
    h = F.rms_norm(x[None], (s.width,), layer.attn_norm, s.eps)
    q = rotate(layer.split(layer.attn_q(h), s.heads), cos, sin)
    k = rotate(layer.split(layer.attn_k(h), s.kv_heads), cos, sin)
    return q[0], k[0], layer.split(layer.attn_v(h), s.kv_heads)[0]


def speculate(layer, before, cos, sin):
    """The query of `layer` from the residual stream that entered the layer before it."""
    h = F.rms_norm(before[None], (layer.shape.width,), layer.attn_norm, layer.shape.eps)
    return rotate(layer.split(layer.attn_q(h), layer.shape.heads), cos, sin)[0]


def finish(layer, x, attended):
    """attended [heads, T, d] -> the residual stream after the layer."""
    x = x + layer.attn_output(attended.transpose(0, 1).flatten(1))
    h = F.rms_norm(x, (layer.shape.width,), layer.ffn_norm, layer.shape.eps)
    return x + layer.ffn_down(F.silu(layer.ffn_gate(h)) * layer.ffn_up(h))


def logits_of(model, x):
    return model.output(F.rms_norm(x, (model.shape.width,), model.output_norm, model.shape.eps))


def run_full(model, tokens):
    """-> per layer a dict of x (its input), q, k, v and spec (the speculative query); full attention."""
    cos, sin = rotary(torch.arange(len(tokens))[None], model.shape)
    x, seen = model.token_embd(torch.tensor(tokens)), []
    for layer in model.blk:
        q, k, v = project(layer, x, cos, sin)
        spec = speculate(layer, seen[-1]["x"], cos, sin) if seen else q
        seen.append({"x": x, "q": q, "k": k, "v": v, "spec": spec})
        group = len(q) // len(k)
        a = F.scaled_dot_product_attention(q[None], k.repeat_interleave(group, 0)[None],
                                           v.repeat_interleave(group, 0)[None], is_causal=True)
        x = finish(layer, x, a[0])
    return seen, x


# ---- digests (kv/score.h) ------------------------------------------------------------------------------------------

def exponent_of(largest, top):
    """Smallest e with largest <= top * 2^e; top 127 or 7."""
    bits = top.bit_length()
    fraction, e = torch.frexp(largest.double())
    return torch.where(fraction <= top / 2 ** bits, e - bits, e - bits + 1)


def digest_keys(k, top):
    """[heads, T, d] -> whole-number mantissas (float64), exponent bytes [heads, T]."""
    k = k.half().double()
    e = exponent_of(k.abs().amax(-1), top).clamp(-10, 6)
    m = (k * 2.0 ** -e[..., None]).round().clamp(-top, top)
    return m, e + 10


def digest_query(q):
    """Summed queries [kv heads, R, d] -> mantissas, shifts [kv heads, R]."""
    q = q.double()
    e = exponent_of(q.abs().amax(-1), 127)
    base = e.amax(0) - 8
    shift = (e - base).clamp(0, 8)
    return (q * 2.0 ** -(base + shift)[..., None]).round().clamp(-127, 127), shift


def score16(value):
    """kv_score16 of int64 values."""
    a = value.abs()
    e = (torch.frexp(a.double())[1] - 1).clamp(min=9)
    magnitude = torch.where(a < 512, a, ((e - 8) << 9) | ((a >> (e - 9)) & 511))
    return torch.where(value < 0, 0x7fff - magnitude, 0x8000 + magnitude)


def integer_score(view, top, scale=lambda q: q, how="sum"):
    m, byte = digest_keys(view.k, top)
    q, shift = digest_query(scale(view.summed(view.q)))
    terms = (q @ m.mT).long() << (byte[:, None, :] + shift[..., None]).long()
    return score16(terms.sum(0) if how == "sum" else terms.amax(0)).double()


# ---- what a rule may look at ---------------------------------------------------------------------------------------

class View:
    """Queries of rows (absolute positions `rows`) over all keys of one layer. `past` holds what earlier rows saw:
    highest [kv heads, R] (of every earlier step's products), latest [kv heads, R] (the step before), heavy [R, T]."""

    def __init__(self, q, k, rows, spec=None, past=None):
        self.q, self.k, self.rows, self.spec, self.past = q, k, rows, spec, past
        self.kv_heads = len(k)
        self.hidden = torch.arange(k.shape[1])[None] > rows[:, None]

    def summed(self, q):
        return q.unflatten(0, (self.kv_heads, -1)).sum(1)

    def products(self, q=None):
        """Raw inner products of the summed queries, [kv heads, R, T]."""
        return self.summed(self.q if q is None else q) @ self.k.mT

    def each(self):
        """The same of every query head, [heads, R, T]."""
        return self.q @ self.k.repeat_interleave(len(self.q) // self.kv_heads, 0).mT

    def mass(self):
        """Attention [heads, R, T]."""
        scaled = self.each() / math.sqrt(self.q.shape[-1])
        return scaled.masked_fill(self.hidden, NEVER).softmax(-1)

    def top(self, products):
        """Each head's largest visible product, [heads, R, 1]."""
        return products.masked_fill(self.hidden, NEVER).amax(-1, keepdim=True)


def length(q):
    return q.norm(dim=-1, keepdim=True) + 1e-30


def unit(q):
    return q / length(q)


def key_norm(view):
    """The longest key so far, [kv heads, R, 1]: what the scorer knows when it digests keys."""
    return view.k.norm(dim=-1).cummax(-1)[0][:, view.rows, None]


def own_power(view):
    """Every head's query at its own power of two: the shifts are dropped."""
    q = view.summed(view.q)
    return (view.products() * 2.0 ** -exponent_of(q.abs().amax(-1, keepdim=True), 127).float()).sum(0)


def running(view):
    return (view.products() / view.past["highest"][..., None].clamp(min=1e-3)).sum(0)


def norm_sums(view, q=None):
    """Products with the summed queries, each sum divided by its length."""
    return unit(view.summed(view.q if q is None else q)) @ view.k.mT


def root_sums(view):
    q = view.summed(view.q)
    return (q / length(q).sqrt()) @ view.k.mT


def unit_groups(view):
    """As norm_sums, every head's query divided by its own length before the sum: none drowns the others of its group."""
    return unit(view.summed(unit(view.q))) @ view.k.mT


def unit_each(view):
    return unit(view.q) @ view.k.repeat_interleave(len(view.q) // view.kv_heads, 0).mT


def below_top(view, products):
    return products - view.top(products)


RULES = {  # name: (rule, what it is); a rule gives [R, T], or [kv heads, R, T] where each head has its own tokens
    "oracle": (lambda v: v.mass().sum(0), "exact attention mass, one list for all heads"),
    "sum": (lambda v: v.products().sum(0), "sum over heads of the raw product (the paper)"),
    "max": (lambda v: v.products().amax(0), "maximum over KV heads"),
    "norm": (lambda v: norm_sums(v).amax(0), "maximum over KV heads, each KV head's (summed) query divided by its length ‖q_h‖"),
    "norm-sum": (lambda v: norm_sums(v).sum(0), "sum over KV heads of the same"),
    "unit": (lambda v: unit_groups(v).amax(0), "as `norm`, each head's query divided by its length before the group's sum too"),
    "unit-once": (lambda v: (v.summed(unit(v.q)) @ v.k.mT).amax(0), "the same, the group's sum left as it is"),
    "unit-sum": (lambda v: unit_groups(v).sum(0), "sum over KV heads; lengths as in `unit`"),
    "root": (lambda v: root_sums(v).amax(0), "as `norm`, divided by the square root of ‖q_h‖"),
    "each-max": (lambda v: v.each().amax(0), "maximum over query heads"),
    "each-norm": (lambda v: unit_each(v).amax(0), "maximum over query heads, each query divided by its length"),
    "power": (own_power, "sum over KV heads, each query at its own power of two"),
    "norm-key": (lambda v: (norm_sums(v) / key_norm(v)).amax(0), "`norm`, divided by the longest key so far as well"),
    "running": (running, "sum over KV heads, divided by the head's largest product of earlier steps"),
    "below-bound": (lambda v: (v.products() - length(v.summed(v.q)) * key_norm(v)).amax(0),
                    "maximum of (product − ‖q_h‖ · longest key so far)"),
    "below-last": (lambda v: (v.products() - v.past["latest"][..., None]).amax(0),
                   "maximum of (product − the head's largest product one step before)"),
    "below-top": (lambda v: below_top(v, v.products()).amax(0), "maximum of (product − the head's largest), not possible on two tiers"),
    "below-top-each": (lambda v: below_top(v, v.each()).amax(0), "the same over query heads"),
    "own": (lambda v: v.products(), "each KV head its own tokens, raw"),
    "own-max": (lambda v: v.each().unflatten(0, (v.kv_heads, -1)).amax(1), "each KV head its own tokens, maximum in its group"),
    "own-oracle": (lambda v: v.mass().unflatten(0, (v.kv_heads, -1)).sum(1), "each KV head its own tokens, exact mass"),
    "sum-int8": (lambda v: integer_score(v, 127), "sum, INT8 digests (the product)"),
    "max-int8": (lambda v: integer_score(v, 127, how="max"), "max, INT8 digests (the product)"),
    "norm-int8": (lambda v: integer_score(v, 127, unit, "max"), "norm, INT8 digests (the product)"),
    "sum-int4": (lambda v: integer_score(v, 7), "sum, INT4 keys"),
    "norm-int4": (lambda v: integer_score(v, 7, unit, "max"), "norm, INT4 keys"),
    "sum-spec": (lambda v: v.products(v.spec).sum(0), "sum, speculative query"),
    "norm-spec": (lambda v: norm_sums(v, v.spec).amax(0), "norm, speculative query"),
    "h2o": (lambda v: v.past["heavy"], "H2O: attention summed over earlier steps (nothing evicted)"),
    "window": (lambda v: torch.zeros_like(v.hidden, dtype=torch.float32), "sinks + the newest"),
}
LOOKS_BACK = ("running", "below-last", "h2o")


# ---- selection (kv/select.c) ---------------------------------------------------------------------------------------

def budget(rows, alpha):
    n = rows + 1
    k = torch.ceil(n * alpha - 1e-9).long()
    return torch.minimum(torch.clamp(k, min=SINKS + WINDOW), n)


def ranked(view, score):
    """Token positions by rank, [..., R, T]: forced ones first, then by score, the newer of equals."""
    position = torch.arange(view.k.shape[1])[None]
    forced = (position < SINKS) | (position > view.rows[:, None] - WINDOW)
    score = score.double().masked_fill(forced, torch.inf).masked_fill(view.hidden, NEVER)
    order = score.flip(-1).argsort(dim=-1, descending=True, stable=True)
    return score.shape[-1] - 1 - order


def recall(view, mass, order):
    """mass [heads, R, T], order -> the share found for every alpha."""
    if order.dim() == 3:
        mass = mass.unflatten(0, (len(order), -1)).sum(1)
    else:
        mass = mass.sum(0)
    found = mass.gather(-1, order).cumsum(-1)
    total = mass.sum(-1)
    return [(found.gather(-1, (budget(view.rows, a) - 1).expand(found.shape[:-1])[..., None])[..., 0] / total).mean().item()
            for a in ALPHAS]


def selected(view, rule, alpha):
    """Mask of the tokens each row may see, [R, T] or [kv heads, R, T]."""
    order = ranked(view, RULES[rule][0](view))
    keep = torch.arange(order.shape[-1])[None] < budget(view.rows, alpha)[:, None]
    return torch.zeros(order.shape, dtype=torch.bool).scatter(-1, order, keep.expand(order.shape))


# ---- (a) the share of attention mass -------------------------------------------------------------------------------

def past_of(layer, rows):
    """What earlier steps saw, under full attention."""
    every = torch.arange(layer["k"].shape[1])
    view = View(layer["q"], layer["k"], every)
    top = view.top(view.products())[..., 0]
    heavy = view.mass().sum(0).cumsum(0)
    return {"highest": top.cummax(-1)[0][:, rows - 1], "latest": top[:, rows - 1], "heavy": heavy[rows - 1]}


def measure_recall(model, samples, step, rules):
    """-> {rule: [layers][alphas]}, the mean over samples."""
    total = {r: torch.zeros(model.shape.layers, len(ALPHAS)) for r in rules}
    for tokens in samples:
        rows = torch.arange(len(tokens) // 2, len(tokens), step)
        for number, layer in enumerate(run_full(model, tokens)[0]):
            view = View(layer["q"][:, rows], layer["k"], rows, layer["spec"][:, rows], past_of(layer, rows))
            mass = view.mass()
            for r in rules:
                total[r][number] += torch.tensor(recall(view, mass, ranked(view, RULES[r][0](view))))
    return {r: t / len(samples) for r, t in total.items()}


# ---- (b), (c) what the model makes of it ---------------------------------------------------------------------------

def add_past(seen, first):
    """What the rows before `first` leave behind for rules that look back."""
    for layer in seen:
        view = View(layer["q"][:, :first], layer["k"], torch.arange(first))
        layer["top"] = view.top(view.products())[..., 0]
        layer["heavy"] = view.mass().sum((0, 1))


def past_while_restricted(view, was):
    first = view.rows[0]
    top = torch.cat((was["top"], view.top(view.products())[..., 0]), 1)
    heavy = was["heavy"] + F.pad(view.mass().sum(0).cumsum(0)[:-1], (0, 0, 1, 0))
    return {"highest": top.cummax(1)[0][:, first - 1:-1], "latest": top[:, first - 1:-1], "heavy": heavy}


def run_restricted(model, seen, tokens, first, rule, alpha, dense):
    """Rows from `first` on again, each seeing only what the rule selects; layers below `dense` see everything."""
    rows = torch.arange(first, len(tokens))
    cos, sin = rotary(rows[None], model.shape)
    x = model.token_embd(torch.tensor(tokens[first:]))
    before = x
    for number, (layer, was) in enumerate(zip(model.blk, seen)):
        q, k, v = project(layer, x, cos, sin)
        k, v = torch.cat((was["k"][:, :first], k), 1), torch.cat((was["v"][:, :first], v), 1)
        view = View(q, k, rows, speculate(layer, before, cos, sin) if number else q)
        if rule in LOOKS_BACK:
            view.past = past_while_restricted(view, was)
        mask = ~view.hidden if number < dense or rule == "full" else selected(view, rule, alpha)
        if mask.dim() == 3:
            mask = mask.repeat_interleave(len(q) // len(k), 0)
        group = len(q) // len(k)
        a = F.scaled_dot_product_attention(q, k.repeat_interleave(group, 0), v.repeat_interleave(group, 0), attn_mask=mask)
        before, x = x, finish(layer, x, a)
    return logits_of(model, x)


def answered(model, seen, tokens, first, *how):
    choice = run_restricted(model, seen, tokens, first - 1, *how)[:-1].argmax(-1)
    return bool((choice == torch.tensor(tokens[first:])).all())


def text_loss(model, seen, tokens, *how):
    first = len(tokens) // 2
    logits = run_restricted(model, seen, tokens, first, *how)[:-1]
    return F.cross_entropy(logits, torch.tensor(tokens[first + 1:])).item()


def measure_use(model, texts, tasks, rules):
    """-> {(rule, dense, alpha): {column: mean}}"""
    ways = [("full", 0, 1.0)] + [(r, d, a) for r, d in rules for a in ALPHAS]
    out, back = {w: {} for w in ways}, any(r in LOOKS_BACK for r, _ in rules)
    for name, examples in tasks.items():
        for tokens, first in examples:
            seen = run_full(model, tokens)[0]
            if back:
                add_past(seen, first - 1)
            for w in ways:
                right = answered(model, seen, tokens, first, w[0], w[2], w[1])
                out[w][name] = out[w].get(name, 0) + right / len(examples)
    for tokens in texts:
        seen = run_full(model, tokens)[0]
        if back:
            add_past(seen, len(tokens) // 2)
        for w in ways:
            out[w]["loss"] = out[w].get("loss", 0) + text_loss(model, seen, tokens, w[0], w[2], w[1]) / len(texts)
    return out


# ---- tables --------------------------------------------------------------------------------------------------------

def heading(columns):
    return "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)


def print_recall(found, title, dense):
    layers = len(next(iter(found.values())))
    print(f"\n{title}\n\n" + heading(["`rule`", "selection"] + [f"α = {a}" for a in ALPHAS] +
                                     [f"layers {dense}.., α = {a}" for a in ALPHAS]))
    for r, table in found.items():
        cells = [f"{x:.3f}" for x in (*table.mean(0), *table[dense:].mean(0))]
        print("| " + " | ".join([f"`{r}`", RULES[r][1]] + cells) + " |")
    print("\nLayer by layer, α = 0.1:\n\n" + heading(["`rule`"] + [str(n) for n in range(layers)]))
    for r, table in found.items():
        print("| " + " | ".join([f"`{r}`"] + [f"{x:.3f}" for x in table[:, ALPHAS.index(0.1)]]) + " |")


def print_use(out):
    columns = list(next(iter(out.values())))
    print("\nAnswers right, and loss (nats a byte) on the second half of held-out texts:\n")
    print(heading(["`rule`", "dense layers", "α"] + columns))
    for (rule, dense, alpha), row in out.items():
        cells = [f"{row[c]:.4f}" if c == "loss" else f"{row[c]:.2f}" for c in columns]
        print("| " + " | ".join([f"`{rule}`", str(dense), str(alpha)] + cells) + " |")


def load(path):
    saved = torch.load(path, weights_only=True)
    model = Model(Shape(ff=saved["ff"]))
    model.load_state_dict(saved["model"])
    print(f"Checkpoint: step {saved['step']}, {saved['tokens']} tokens, {saved['elapsed'] / 60:.1f} minutes of training.")
    return model


def text_samples(text, count, size):
    stride = (len(text.bytes) - size) // max(1, count)
    return [[BOS] + text.bytes[i * stride:i * stride + size - 1].tolist() for i in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path, help="folder made by gather.py")
    parser.add_argument("--length", type=int, default=1536, help="tokens of a sample (default 1536)")
    parser.add_argument("--texts", type=int, default=4, help="held-out texts (default 4)")
    parser.add_argument("--each", type=int, default=2, help="held-out examples of a task (default 2)")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first SKIP held-out examples: fresh ones")
    parser.add_argument("--task", action="append", choices=list(data.TASK_WEIGHTS), help="default: passkey, keys, variables, copy")
    parser.add_argument("--rule", action="append", choices=list(RULES), help="default: all; with --accuracy: a few")
    parser.add_argument("--step", type=int, default=4, help="measure each STEP-th row of the second half (default 4)")
    parser.add_argument("--dense", type=int, default=2, help="layers that stay dense in the second reading (default 2)")
    parser.add_argument("--accuracy", action="store_true", help="answers and loss instead of attention mass")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, text = load(args.checkpoint), data.Text(args.data / "heldout.txt")
    texts = text_samples(text, args.texts, args.length)
    tasks = {t: data.held_out(t, args.length, args.skip + args.each, text)[args.skip:]
             for t in args.task or ("passkey", "keys", "variables", "copy")}
    print(f"{args.texts} texts and {args.each} examples of each of {', '.join(tasks)}; {args.length} tokens.")
    with torch.no_grad():
        if args.accuracy:
            rules = args.rule or ["oracle", "sum", "max", "norm", "own-max", "window"]
            print_use(measure_use(model, texts, tasks, [(r, d) for r in rules for d in sorted({0, args.dense})]))
            return
        rules = args.rule or list(RULES)
        print_recall(measure_recall(model, texts, args.step, rules), "Share of attention mass, texts:", args.dense)
        examples = [tokens for rows in tasks.values() for tokens, _ in rows]
        print_recall(measure_recall(model, examples, args.step, rules), "Share of attention mass, tasks:", args.dense)


if __name__ == "__main__":
    main()
