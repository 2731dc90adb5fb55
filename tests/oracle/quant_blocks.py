#!/usr/bin/env python3
"""Blocks of every quantised GGUF type with the values that the `gguf` package reads from them.

    tests/oracle/quant_blocks.py tests/model/quant_blocks.bin

Blocks are random bytes, but for their F16 scales, which are random and finite (and once 0, once
subnormal, once negative). A record: type, blocks, bytes of all blocks, values of all blocks (four
little endian words), the blocks, the values as F32. A record of type 0xffffffff with zeros ends the
file. tests/model/test_blocks.c holds model/blocks.c against it.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES
from gguf.quants import dequantize

BLOCKS = 6
# where the F16 numbers of a block stand
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0],
}


def main():
    random = np.random.default_rng(20260101)
    with open(sys.argv[1], "wb") as out:
        for kind, places in HALVES.items():
            items, size = GGML_QUANT_SIZES[kind]
            blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
            for place in places:
                halves = random.uniform(-0.1, 0.1, BLOCKS).astype(np.float16)
                halves[1], halves[2], halves[3] = 0, 3e-7, -abs(halves[3])
                blocks[:, place:place + 2] = halves.view(np.uint8).reshape(BLOCKS, 2)
            values = dequantize(blocks, kind).astype("<f4").reshape(-1)
            assert values.size == BLOCKS * items and np.isfinite(values).all()
            out.write(np.array([kind, BLOCKS, blocks.size, values.size], "<u4").tobytes())
            out.write(blocks.tobytes() + values.tobytes())
        out.write(np.array([0xffffffff, 0, 0, 0], "<u4").tobytes())


if __name__ == "__main__":
    main()
