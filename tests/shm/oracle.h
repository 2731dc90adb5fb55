/*
 * tests/shm/oracle.h - what record number i of a run must look like, from its number alone.
 * Both ends derive it on their own, so that no record has to carry its expectation. Shares no code
 * with shm/. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* splitmix64 */
uint64_t oracle_next(uint64_t *state);

uint64_t oracle_hash(uint64_t seed, uint64_t i);

uint32_t oracle_type(uint64_t seed, uint64_t i);

/* 0 .. max; both ends of the range come up often, small sizes too */
uint32_t oracle_size(uint64_t seed, uint64_t i, uint32_t max);

void oracle_fill(uint64_t seed, uint64_t i, uint8_t *bytes, uint32_t size);

bool oracle_matches(uint64_t seed, uint64_t i, const uint8_t *bytes, uint32_t size);
