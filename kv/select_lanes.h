/*
 * kv/select_lanes.h - what select.c calls in select_avx2.c; nobody else includes it. They may be
 * called where the CPU has AVX2.
 */
#pragma once

#include <stdint.h>

/* How many of n scores are `least` or more. */
uint32_t kv_select_count_avx2(const uint16_t *scores, uint32_t n, uint16_t least);

/* Positions first .. end - 1 whose scores[position] is `least` or more, ascending, but for the
 * first `skip` of just that score, after which there must be one more; returns how many. */
uint32_t kv_select_list_avx2(const uint16_t *scores, uint32_t first, uint32_t end, uint16_t least,
                             uint32_t skip, uint32_t *positions);

/* ranks[p] = min(most, the highest of scores[q] with q / size == p / size), for p from `first` on,
 * a multiple of 64; size: a power of two up to 64. Returns the first position not done: there are
 * fewer than 16, or than size, before `end`. */
uint32_t kv_select_groups_avx2(const uint16_t *scores, uint32_t first, uint32_t end, uint32_t size,
                               uint16_t most, uint16_t *ranks);
