/*
 * gpu_worker/pack.h - weights of every tensor type, packed into panels of 16 outputs for the
 * kernels of prefill and decode alike (product.cl).
 *
 * A panel of a type that is not quantised is [k][16] values as stored. A panel of a quantised type
 * is its blocks, scales before their codes, and costs what the 16 rows cost in the file (K-quants
 * and IQ4_XS at most 3.6 % more: scales of 6 bits become bytes). It is read in one go from end to
 * end: with scales in a place of their own, reading took twice the time. L is a lane, one of the 16
 * outputs.
 *     codes: for each 32 values, 64 * bits bytes. Byte 4 L + j of a vector of 64 has values 4 g + j
 *            of lane L, for several groups g = 0 .. 7, lowest bits first:
 *            8 bits   vector g
 *            4 to 6   low nibbles: vector g % 4, nibble g / 4; the rest: fifth bits in one vector,
 *                     bit g; fifth and sixth in two, vector g % 2, bits g / 2 * 2
 *            2 and 3  low pairs: vector g % 2, bits g / 2 * 2; third bits in one vector, bit g
 *     scales, 32-value types: before each block d [16], then the mins [16] where there are any, F16
 *     scales, 256-value types: before each block d [16], then dmin [16] where there are mins, F16;
 *            before each 32 values Q4_K, Q5_K: scales [16], mins [16]; Q3_K, Q6_K: scales of the
 *            first 16 values [16], of the last [16]; Q2_K: the same with scale | min << 4; IQ4_XS:
 *            scales [16]
 * A panel takes a multiple of 64 bytes. Who calls it: weights.c, tests. Failure: none. Concurrency:
 * stateless.
 */
#pragma once

#include "model/blocks.h"

/* What a panel of rows of k values takes. */
uint64_t pack_panel_bytes(const struct block_format *format, uint32_t k);

/* rows [16]: where the outputs' rows lie in the file; NULL: an output that is 0. out is
 * overwritten. */
void pack_panel(const struct block_format *format, uint32_t k, const uint8_t *const rows[16],
                uint8_t *out);
