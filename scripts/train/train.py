#!/usr/bin/env python3
"""train.py - train the reference model on CPU.

What:   DATA (from gather.py) -> RUN/checkpoint.pt (weights, optimiser, progress; written every few minutes and at the
        end) and RUN/log.jsonl (loss, held-out loss, accuracy of held-out tasks by length).
How:    starts from wire.py's weights. Row length grows with progress; progress is training time over --minutes, so
        the plan fits whatever machine it runs on (of a step ten seconds at most: pauses do not count).
        Muon for the matrices that start plain, Adam for the wired ones, the embedding and the output.
Restart: run the same command again; it goes on from the checkpoint. SIGTERM, SIGINT: checkpoint, then exit 0.
"""
import argparse
import json
import math
import pathlib
import signal
import time

import torch
import torch.nn.functional as F

import data
import wire
from model import Model, Shape

# progress at which it starts, row length, rows, share of task rows
STAGES = [(0.0, 256, 24, 0.6), (0.08, 512, 12, 0.5), (0.45, 1024, 6, 0.5), (0.70, 2048, 3, 0.5), (0.88, 4096, 2, 0.5)]
WIRED_LAYERS = 3


def orthogonal(g):
    """Newton-Schulz: the nearest (roughly) orthogonal matrix to each of [N, rows, cols], rows <= cols."""
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum whose step is made orthogonal; matrices of one shape go through together."""

    def __init__(self, params, lr, momentum=0.95, decay=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for (rows, cols), params in shapes.items():
                for p in params:
                    m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    m.lerp_(p.grad, 1 - group["momentum"])
                g = torch.stack([p.grad.lerp(self.state[p]["momentum"], group["momentum"]) for p in params])
                u = orthogonal(g.mT).mT if rows > cols else orthogonal(g)
                for p, step in zip(params, u):
                    p.mul_(1 - group["lr"] * group["decay"])
                    p.add_(step, alpha=-group["lr"] * 0.2 * math.sqrt(max(rows, cols)))


def optimisers(model, args):
    plain, wired, ends, norms = [], [], [], []
    for name, p in model.named_parameters():
        if p.dim() < 2:
            norms.append(p)
        elif not name.startswith("blk."):
            ends.append(p)
        elif "attn" in name and int(name.split(".")[1]) < WIRED_LAYERS:
            wired.append(p)
        else:
            plain.append(p)
    adam = torch.optim.AdamW([{"params": wired, "lr": args.lr_wired}, {"params": ends, "lr": args.lr_ends},
                              {"params": norms, "lr": args.lr_wired}], betas=(0.9, 0.97), weight_decay=0.0)
    muon = Muon(plain, args.lr, decay=0.02)
    for opt in (adam, muon):
        for group in opt.param_groups:
            group["base"] = group["lr"]
    return [adam, muon]


def rate(progress, step):
    return min(1, (step + 1) / 50) * (1.0 if progress < 0.5 else max(0.05, 1 - (progress - 0.5) / 0.5 * 0.95))


def loss_of(model, tokens, weights, positions):
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(tokens[:, :-1], positions[:, :-1])
        logits = model.output(hidden)
    losses = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    w = weights[:, 1:].flatten()
    text = (w == 1.0)
    return (losses * w).sum() / w.sum(), (losses * text).sum().item() / max(1, text.sum().item())


@torch.no_grad()
def accuracy(model, examples):
    """Share of examples whose every answer byte is the model's first choice: what greedy decoding would write."""
    right = 0
    for tokens, first in examples:
        row = torch.tensor([tokens])
        positions = torch.arange(len(tokens))[None]
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.hidden(row, positions)[:, first - 1:-1]
            choice = model.output(hidden).argmax(-1)
        right += bool((choice == row[:, first:]).all())
    return right / len(examples)


@torch.no_grad()
def held_out_loss(model, text, rows, length):
    total = 0.0
    stride = (len(text.bytes) - length) // rows
    for i in range(rows):
        row = torch.tensor([[256] + text.bytes[i * stride:i * stride + length].tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(row[:, :-1], torch.arange(length)[None]).float()
        total += F.cross_entropy(logits[0], row[0, 1:]).item()
    return total / rows


def evaluate(model, heldout):
    report = {"heldout_loss": round(held_out_loss(model, heldout, 8, 1024), 4)}
    for size, count in ((256, 8), (1024, 8), (4096, 3)):
        report[f"passkey_{size}"] = accuracy(model, data.held_out("passkey", size, count, heldout))
    for task in ("values", "variables", "copy", "frequent", "question"):
        report[f"{task}_512"] = accuracy(model, data.held_out(task, 512, 8, heldout))
    report["keys_2048"] = accuracy(model, data.held_out("keys", 2048, 5, heldout))
    return report


class Run:
    def __init__(self, args):
        self.args, self.step, self.elapsed, self.tokens, self.stop = args, 0, 0.0, 0, False
        self.text, self.heldout = data.Text(args.data / "train.txt"), data.Text(args.data / "heldout.txt")
        torch.manual_seed(args.seed)
        self.model = Model(Shape(ff=args.ff))
        self.opts = optimisers(self.model, args)
        self.path = args.run / "checkpoint.pt"
        if self.path.exists():
            self.load()
        else:
            wire.wire(self.model, data.batch(args.seed, -1, self.text, 4, 512, 0)[0], args.seed)
        if args.rewire:
            wire.wire_anew(self.model, data.batch(args.seed, -1, self.text, 4, 512, 0)[0])
        self.pins = wire.Pins(self.model)
        for layer in self.model.blk if args.compile else ():
            layer.compile(dynamic=False)

    def load(self):
        saved = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for opt, state in zip(self.opts, saved["opts"]):
            bases = [g["base"] for g in opt.param_groups]
            opt.load_state_dict(state)
            for group, base in zip(opt.param_groups, bases):
                group["base"] = base
        self.step, self.elapsed, self.tokens = saved["step"], saved["elapsed"], saved["tokens"]

    def save(self):
        temporary = self.path.with_suffix(".tmp")
        torch.save({"model": self.model.state_dict(), "opts": [o.state_dict() for o in self.opts], "step": self.step,
                    "elapsed": self.elapsed, "tokens": self.tokens, "ff": self.args.ff}, temporary)
        temporary.replace(self.path)

    def log(self, **fields):
        line = json.dumps({"step": self.step, "minutes": round(self.elapsed / 60, 2), "tokens": self.tokens, **fields})
        with open(self.args.run / "log.jsonl", "a") as f:
            f.write(line + "\n")
        print(line, flush=True)

    def one_step(self, progress):
        _, length, rows, share = [s for s in STAGES if s[0] <= progress][-1]
        if self.args.length:
            length, rows, share = self.args.length, max(1, 6144 // self.args.length), self.args.task_share
        tokens, weights, positions = data.batch(self.args.seed, self.step, self.text, rows, length + 1, share)
        loss, text_loss = loss_of(self.model, tokens, weights, positions)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for opt in self.opts:
            for group in opt.param_groups:
                group["lr"] = group["base"] * rate(progress, self.step)
            opt.step()
            opt.zero_grad(set_to_none=True)
        self.pins.restore()
        self.step += 1
        self.tokens += rows * length
        return length, loss.item(), text_loss

    def train(self):
        last_eval = last_save = time.monotonic()
        sums, count = [0.0, 0.0], 0
        while self.elapsed < self.args.minutes * 60 and not self.stop:
            start = time.monotonic()
            length, *losses = self.one_step(self.elapsed / (self.args.minutes * 60))
            took = time.monotonic() - start
            self.elapsed += min(took, 10)
            sums, count = [s + x for s, x in zip(sums, losses)], count + 1
            if count == 20 or self.step < 4:
                self.log(length=length, loss=round(sums[0] / count, 4), text_loss=round(sums[1] / count, 4),
                         tok_s=round(self.tokens / self.elapsed))
                sums, count = [0.0, 0.0], 0
            if time.monotonic() - last_save > 120:
                self.save()
                last_save = time.monotonic()
            if time.monotonic() - last_eval > self.args.eval_every * 60:
                began = time.monotonic()
                with torch.compiler.set_stance("force_eager"):  # its rows come in all lengths
                    self.log(**evaluate(self.model, self.heldout))
                last_eval = time.monotonic()
                self.elapsed += min(60, last_eval - began)
        self.save()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path, help="folder made by gather.py")
    parser.add_argument("run", type=pathlib.Path, help="folder for the checkpoint and the log")
    parser.add_argument("--minutes", type=float, default=95, help="training time in all (default 95)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ff", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.01, help="Muon (default 0.01)")
    parser.add_argument("--lr-wired", type=float, default=1e-3, help="Adam, wired matrices (default 0.001)")
    parser.add_argument("--lr-ends", type=float, default=3e-3, help="Adam, embedding and output (default 0.003)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eval-every", type=float, default=5, help="minutes (default 5)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the layers")
    parser.add_argument("--length", type=int, help="rows of this length whatever the progress")
    parser.add_argument("--task-share", type=float, default=0.5, help="of such rows (default 0.5)")
    parser.add_argument("--rewire", action="store_true", help="set the position heads and the match of eight bytes anew")
    parser.add_argument("--evaluate", action="store_true", help="only evaluate the checkpoint, or the starting weights")
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    run = Run(args)
    if args.evaluate:
        run.log(**evaluate(run.model, run.heldout))
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(run, "stop", True))
    run.train()
    with torch.compiler.set_stance("force_eager"):
        run.log(**evaluate(run.model, run.heldout))


if __name__ == "__main__":
    main()
