/*
 * tests/draws.h - what a test draws at random, of a seed that it prints; HILL_TEST_SEED is another.
 *
 * A linear congruential generator (Knuth's MMIX) whose upper bits are used: the same numbers on
 * every machine. For test programs; each file that includes this has draws of its own.
 */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t draws;

/* Begin anew: with HILL_TEST_SEED where that is set, else as given. */
static inline void draws_seed(uint64_t otherwise)
{
    const char *seed = getenv("HILL_TEST_SEED");
    draws = seed ? strtoull(seed, NULL, 0) : otherwise;
    printf("HILL_TEST_SEED=%llu\n", (unsigned long long)draws);
}

/* 0 to below - 1, of a state of the caller's. */
static inline uint32_t draw_from(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

static inline uint32_t draw(uint32_t below)
{
    return draw_from(&draws, below);
}
