#!/usr/bin/env python3
"""A real model here, in llama.cpp and in F32: docs/parity.md's table, of one model.

    tests/oracle/parity.py MODEL --peer PEER_LOGITS --text BOOK -o FOLDER

PEER_LOGITS: peer_logits.c, built as docs/parity.md says. 8 prompts and the 64 tokens that llama.cpp's greedy
choice puts after each of them are given to all; so are 4 windows of BOOK of 1 000 tokens, whose last 500 count.
What FOLDER holds is not computed again. F32 is f32_logits.py. Needs numpy, gguf, jq's place is taken by json;
4 GB of disk. The pipeline is the one that is built: scripts/hillinfer.
"""
import argparse
import json
import math
import os
import subprocess
import sys

import numpy as np
from gguf import GGUFReader

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "Write a short summary of how photosynthesis works. Plants",
    "def quicksort(items):",
    "The main difference between a list and a tuple in Python is",
    "Dear Sir or Madam, I am writing to complain about",
    "In 1969, the first people to walk on the moon were",
    "To make a good tomato soup you need",
]
GIVEN, WINDOWS, WINDOW, SCORED = 64, 4, 1000, 500


class Folder:
    """Files that are made once."""

    def __init__(self, path):
        os.makedirs(path, exist_ok=True)
        self.path = path

    def file(self, name):
        return os.path.join(self.path, name)

    def make(self, name, write):
        path = self.file(name)
        if not os.path.exists(path):
            write(path + ".part")
            os.rename(path + ".part", path)
        return path


def run_to(path, command, **more):
    with open(path, "w") as out:
        subprocess.run(command, check=True, stdout=out, **more)


def lines(path):
    return [line.split() for line in open(path)]


def put(path, rows):
    with open(path, "w") as out:
        out.writelines(" ".join(map(str, row)) + "\n" for row in rows)


# ---- texts ----

def windows_of(text):
    whole = open(text, encoding="utf-8").read()
    pieces = []
    for i in range(WINDOWS):
        piece = " ".join(whole[int(len(whole) * (i + 0.5) / WINDOWS):][:6500].split())
        pieces.append(piece[piece.index(" ") + 1:])
    return pieces


def tokens(a, f, name, texts):
    def write(path):
        with open(f.file(name + ".txt"), "w", encoding="utf-8") as out:
            out.writelines(t + "\n" for t in texts)
        run_to(path, [a.peer, a.model, "tokens", f.file(name + ".txt")])
    return f.make(name + ".all", write)


def texts(a, f):
    """Files of ids: prompts with their greedy text, windows."""
    prompts = tokens(a, f, "prompts", PROMPTS)
    greedy = f.make("greedy", lambda path: run_to(
        path, [a.peer, a.model, "greedy", prompts, str(GIVEN), f.file("greedy.peer")]))
    both = f.make("greedy.ids", lambda path: put(path, [p + g for p, g in zip(lines(prompts), lines(greedy))]))
    whole = tokens(a, f, "windows", windows_of(a.text))
    return both, f.make("windows.ids", lambda path: put(path, [w[:WINDOW] for w in lines(whole)]))


# ---- the pipeline ----

class Pipeline:
    def __init__(self, a, f, **environment):
        self.run = ["--run-dir", f.file("run")]
        subprocess.run([os.path.join(ROOT, "scripts/hillinfer"), "up", "--detach", *self.run, "--state-dir",
                        f.file("state"), "-m", a.model, "-c", "1100", "--csd", "none", "--policy", "full"],
                       check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([os.path.join(ROOT, "scripts/hillinfer"), "down", *self.run], stdout=subprocess.DEVNULL)

    def ask(self, ids, *more):
        done = subprocess.run([os.path.join(ROOT, "build/bin/hillctl"), "generate", *self.run, "--token-ids", "-p",
                               " ".join(ids), "--json", *more], check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)


def decoded(a, f, ids, n, logits):
    """Writes the log-probabilities of the last n ids of each line, decoded; logits: a file for those, or None."""
    def write(path):
        if logits and os.path.exists(logits):
            os.remove(logits)
        with Pipeline(a, f, **({"HILL_TEST_LOGITS": logits} if logits else {})) as p:
            put(path, [p.ask(line, "--score-from", str(len(line) - n))["logprobs"] for line in lines(ids)])
    return write


def prefilled(a, f, ids, n, logits):
    """The same from the logits that prefill computes."""
    def write(path):
        whole, rows = f.file("prompt.part"), []
        if logits and os.path.exists(logits):
            os.remove(logits)
        with Pipeline(a, f, HILL_TEST_PROMPT_LOGITS=whole) as p:
            for line in lines(ids):
                p.ask(line, "-n", "1", "--temp", "0")
                x = np.fromfile(whole, np.float32).reshape(len(line), -1)[-n - 1:-1]
                os.remove(whole)
                if logits:
                    x.tofile(open(logits, "ab"))
                rows.append(log_softmax(x)[np.arange(n), [int(w) for w in line[-n:]]])
        put(path, rows)
    return write


# ---- comparing ----

def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def compare(want, got, vocab):
    """Positions, other argmax, of them with want's two best at least 0.2 apart, the widest such gap, mean KL."""
    want, got = (np.fromfile(p, np.float32).reshape(-1, vocab) for p in (want, got))
    two = np.partition(want, -2, axis=1)[:, -2:]
    gaps = (two[:, 1] - two[:, 0])[want.argmax(1) != got.argmax(1)]
    kl = 0.0
    for w, g in zip(want, got):
        w, g = log_softmax(w), log_softmax(g)
        kl += float((np.exp(w) * (w - g)).sum())
    return len(want), len(gaps), int((gaps >= 0.2).sum()), max(gaps, default=0), kl / len(want)


def perplexity(path):
    values = [float(w) for line in lines(path) for w in line]
    return math.exp(-sum(values) / len(values))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    for name in ("--peer", "--text", "-o"):
        p.add_argument(name, required=True)
    a = p.parse_args()
    a.model = os.path.realpath(a.model)
    f = Folder(os.path.realpath(a.o))
    greedy, windows = texts(a, f)
    f32 = [sys.executable, os.path.join(HERE, "f32_logits.py"), a.model]
    g, s = str(GIVEN), str(SCORED)
    f.make("greedy.batch.lp", lambda o: run_to(o, [a.peer, a.model, "batch", greedy, g, f.file("greedy.batch")]))
    f.make("greedy.f32.lp", lambda o: run_to(o, f32 + [greedy, g, f.file("greedy.f32")]))
    f.make("greedy.decode.lp", decoded(a, f, greedy, GIVEN, f.file("greedy.decode")))
    f.make("greedy.prefill.lp", prefilled(a, f, greedy, GIVEN, f.file("greedy.prefill")))
    books = {
        "llama.cpp": f.make("windows.peer", lambda o: run_to(o, [a.peer, a.model, "batch", windows, s])),
        "F32": f.make("windows.f32", lambda o: run_to(o, f32 + [windows, s])),
        "decode": f.make("windows.decode", decoded(a, f, windows, SCORED, None)),
        "prefill": f.make("windows.prefill", prefilled(a, f, windows, SCORED, None)),
    }
    vocab = len(GGUFReader(a.model).get_field("tokenizer.ggml.tokens").data)
    for want in ("peer", "f32"):
        for got in ("decode", "prefill", "batch", "peer", "f32"):
            if want != got:
                n, other, wide, widest, kl = compare(f.file("greedy." + want), f.file("greedy." + got), vocab)
                print(f"{got:8} against {want:5} same argmax {100 - 100 * other / n:.2f} % ({other} of {n} differ, "
                      f"{wide} with a gap of 0.2 or more, widest {widest:.2f}), mean KL {kl:.6f}")
    for name, path in books.items():
        print(f"{name:10} perplexity {perplexity(path):.4f}")


main()
