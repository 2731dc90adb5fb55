"""data.py - batches of text and of generated tasks, and the held-out examples.

Every batch is a function of (seed, step): a restart from a checkpoint goes on with the same data.
Who: train.py, evaluate.py, wire.py's sample. Single-threaded.
"""
import pathlib
import random
import sys

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import hilltasks  # noqa: E402
from model import BOS  # noqa: E402

TASK_WEIGHTS = {"passkey": 2, "keys": 3, "values": 3, "variables": 2, "copy": 2, "frequent": 1, "question": 2}
LOSS_WEIGHT = {"hay": 1.0, "fact": 0.1, "ask": 0.2, "answer": 4.0}
SEPARATOR = 0x1e


class Text:
    """One file of gather.py: documents with a separator between them."""

    def __init__(self, path):
        self.bytes = numpy.fromfile(path, dtype=numpy.uint8)
        self.bytes = numpy.where(self.bytes == SEPARATOR, 10, self.bytes).astype(numpy.uint8)

    def take(self, rng, size):
        start = rng.randrange(len(self.bytes) - size)
        return self.bytes[start:start + size]

    def haystack(self, rng, size):
        return bytes(self.take(rng, size)).decode("latin-1")  # one character a byte; see encode()


def encode(parts):
    """[(text, kind)] -> tokens and loss weights, BOS first."""
    tokens, weights = [BOS], [0.0]
    for text, kind in parts:
        raw = text.encode("latin-1")
        tokens += raw
        weights += [LOSS_WEIGHT[kind]] * len(raw)
    return tokens, weights


def jumps(rng, length):
    """Positions that leap ahead at a few places: far distances turn up in short rows."""
    steps = numpy.ones(length, dtype=numpy.int64)
    steps[0] = 0
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            steps[rng.randrange(1, length)] += int(2 ** rng.uniform(4, 13))
    return numpy.cumsum(steps)


def text_row(rng, text, length):
    return [BOS] + text.take(rng, length - 1).tolist(), [0.0] + [1.0] * (length - 1)


def task_row(rng, text, length):
    task = rng.choices(list(TASK_WEIGHTS), TASK_WEIGHTS.values())[0]
    hay = text.haystack if rng.random() < 0.75 else None
    tokens, weights = encode(hilltasks.make(task, rng.randrange(hilltasks.HELD_OUT), length - 1, hay)[0])
    if len(tokens) > length:
        tokens, weights = [BOS] + tokens[-length + 1:], [0.0] + weights[-length + 1:]
    fill = length - len(tokens)
    return tokens + [10] * fill, weights + [0.0] * fill


def batch(seed, step, text, rows, length, task_share):
    rng = random.Random(f"{seed}/{step}")
    made = [(task_row if rng.random() < task_share else text_row)(rng, text, length) for _ in range(rows)]
    tokens = torch.tensor([m[0] for m in made])
    weights = torch.tensor([m[1] for m in made])
    positions = torch.from_numpy(numpy.stack([jumps(rng, length) for _ in range(rows)]))
    return tokens, weights, positions


def held_out(task, size, count, text):
    """-> list of (tokens, index of the first answer token): one question each, the answer at the end."""
    out = []
    for seed in range(hilltasks.HELD_OUT, hilltasks.HELD_OUT + count):
        prompt, _, answer = hilltasks.one(task, seed, size, text and text.haystack)
        tokens = [BOS] + list(prompt.encode("latin-1"))
        out.append((tokens + list(answer.encode("latin-1")), len(tokens)))
    return out
