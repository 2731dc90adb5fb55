#!/usr/bin/env python3
"""ngram.py - the baseline: an interpolated byte 5-gram (Kneser-Ney discounts), trained and measured on the same texts.

What: prints the loss in nats a byte on DATA/heldout.txt for orders 1..N; with --rows, on the very rows that train.py's
      held-out loss uses (their first bytes have their context cut off in the same way).
How:  counts by sorting n-gram codes (numpy); absolute discount per order D = n1 / (n1 + 2 n2), lower orders by
      continuation counts.
"""
import argparse
import pathlib

import numpy


def codes(data, n):
    """Each position's last n bytes as one integer; positions before the start read byte 0."""
    out = numpy.zeros(len(data), dtype=numpy.uint64)
    for back in range(n):
        shifted = numpy.zeros(len(data), dtype=numpy.uint64)
        shifted[back:] = data[:len(data) - back]
        out |= shifted << numpy.uint64(8 * back)
    return out


def lookup(keys, counts, wanted):
    at = numpy.minimum(numpy.searchsorted(keys, wanted), len(keys) - 1)
    return numpy.where(keys[at] == wanted, counts[at], 0)


class Order:
    """One order of the model: counts of its n-grams and the sums over each context."""

    def __init__(self, grams, counts):
        self.grams, self.counts = grams, counts.astype(numpy.float64)
        ones, twos = (counts == 1).sum(), (counts == 2).sum()
        self.discount = ones / max(1, ones + 2 * twos)
        self.contexts, first = numpy.unique(grams >> numpy.uint64(8), return_index=True)
        self.totals = numpy.add.reduceat(self.counts, first)
        self.kinds = numpy.diff(numpy.append(first, len(grams)))

    def mix(self, grams, lower):
        context = grams >> numpy.uint64(8)
        total = lookup(self.contexts, self.totals, context)
        kinds = lookup(self.contexts, self.kinds, context)
        seen = numpy.maximum(lookup(self.grams, self.counts, grams) - self.discount, 0)
        safe = numpy.maximum(total, 1)
        return numpy.where(total > 0, seen / safe + self.discount * kinds / safe * lower, lower)


def train(data, n):
    orders, above = [None] * n, None
    for k in range(n, 0, -1):
        # Keys put the newest byte lowest; sorting by (context, byte) then groups contexts together.
        if above is None:
            grams, counts = numpy.unique(codes(data, k)[k - 1:], return_counts=True)
        else:
            mask = numpy.uint64((1 << 8 * k) - 1)
            grams, counts = numpy.unique(above & mask, return_counts=True)  # continuation counts
        orders[k - 1], above = Order(grams, counts), grams
    return orders


def probabilities(orders, data):
    p = numpy.full(len(data), 1 / 256)
    for k, order in enumerate(orders, 1):
        p = order.mix(codes(data, k), p)
    return p


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs=2, metavar=("ROWS", "LENGTH"), help="as in evaluate.py")
    args = parser.parse_args()

    def read(name):
        raw = numpy.fromfile(args.data / name, dtype=numpy.uint8)
        return numpy.where(raw == 0x1e, 10, raw).astype(numpy.uint8)
    learned, held = read("train.txt"), read("heldout.txt")
    for n in range(1, args.order + 1):
        orders = train(learned, n)
        loss = -numpy.log(probabilities(orders, held)).mean()
        line = f"order {n}: {loss:.4f} nats a byte on the whole held-out text"
        if args.rows:
            rows, length = args.rows
            stride = (len(held) - length) // rows
            parts = [-numpy.log(probabilities(orders, held[i * stride:i * stride + length])) for i in range(rows)]
            line += f", {numpy.concatenate(parts).mean():.4f} on {rows} rows of {length}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
