/*
 * kv/select_lanes.h - what select.c calls in select_avx2.c; nobody else includes it. They may be
 * called where the CPU has AVX2 and POPCNT.
 */
#pragma once

#include <stdint.h>

/* How many of n scores are `least` or more. */
uint32_t kv_select_count_avx2(const uint16_t *scores, uint32_t n, uint16_t least);

/* Positions first .. end - 1 whose scores[position] is `least` or more, ascending; returns how
 * many. */
uint32_t kv_select_list_avx2(const uint16_t *scores, uint32_t first, uint32_t end, uint16_t least,
                             uint32_t *positions);
