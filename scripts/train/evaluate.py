#!/usr/bin/env python3
"""evaluate.py - what a checkpoint can do, with full attention, on held-out seeds and texts.

What:   for each task and length the share of questions answered exactly (every byte of the answer, and the full stop
        after it, is the model's first choice: what greedy decoding writes), and the loss in nats a byte on held-out
        text. JSON on stdout, a line each. Weights are rounded to F16 as in the GGUF; the arithmetic is F32.
Who:    a person, for the model card. What a selection policy does to the same model is hill-eval's to measure.
"""
import argparse
import json
import pathlib

import torch

import data
import export
import hilltasks
import train


@torch.no_grad()
def right_answers(model, examples):
    right = 0
    for tokens, first in examples:
        row = torch.tensor([tokens])
        hidden = model.hidden(row, torch.arange(len(tokens))[None])[:, first - 1:-1]
        right += bool((model.output(hidden).argmax(-1) == row[:, first:]).all())
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path, help="folder made by gather.py")
    parser.add_argument("--task", action="append", choices=sorted(hilltasks.TASKS))
    parser.add_argument("--bytes", type=int, action="append", help="prompt lengths (default 512 2048 4096)")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--noise", action="store_true", help="hide the facts in repeated sentences, not in text")
    parser.add_argument("--rows", type=int, nargs=2, default=(32, 4096), metavar=("ROWS", "LENGTH"),
                        help="held-out text to measure the loss on (default 32 4096); 0 0: none")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, saved = export.load(args.checkpoint)
    text = data.Text(args.data / "heldout.txt")
    print(json.dumps({"tokens_seen": saved["tokens"], "step": saved["step"]}), flush=True)
    if args.rows[0]:
        loss = train.held_out_loss(model, text, *args.rows)
        print(json.dumps({"heldout_loss": round(loss, 4), "rows": args.rows[0], "length": args.rows[1]}), flush=True)
    for size in args.bytes or (512, 2048, 4096):
        for task in args.task or hilltasks.TASKS:
            examples = data.held_out(task, size, args.count, None if args.noise else text)
            print(json.dumps({"task": task, "bytes": size, "right": right_answers(model, examples),
                              "of": args.count}), flush=True)


if __name__ == "__main__":
    main()
