/*
 * prefix/probe_keys.h - keys of a chunk in four bits, by which important tokens are looked for
 * (pure).
 *
 * What: of each column (a dimension of a head) the least of the chunk's values and a fifteenth of
 * their range are kept in FP16, and a number of such steps for each token. A column by itself,
 * because values of a few columns are far from 0 in all tokens (a bias of the projection): a scale
 * for each token would leave the other columns nothing. Layout: uint16_t least [columns], uint16_t
 * step [columns], then [token][column / 2] bytes with the even column's number in the lower half.
 * A value that is no number counts as the column's least. Who calls it: this folder, gpu_worker,
 * tests.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Of n_tokens and their columns: what they take packed. */
uint64_t probe_keys_bytes(uint32_t n_tokens, uint32_t n_columns);
/* keys, FP16: [n_tokens][n_columns]. */
void probe_keys_pack(const uint16_t *keys, uint32_t n_tokens, uint32_t n_columns, uint8_t *to);
/* Off by half a step at most, and by FP16's rounding. */
void probe_keys_unpack(const uint8_t *from, uint32_t n_tokens, uint32_t n_columns, uint16_t *keys);
