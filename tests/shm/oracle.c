/*
 * tests/shm/oracle.c - records of a size, a type and bytes that are functions of a number.
 * Interface: oracle.h.
 */
#include "tests/shm/oracle.h"

uint64_t oracle_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t oracle_hash(uint64_t seed, uint64_t i)
{
    uint64_t state = seed * 1000003 + i;
    return oracle_next(&state);
}

uint32_t oracle_type(uint64_t seed, uint64_t i)
{
    return (uint32_t)(oracle_hash(seed, i) >> 32);
}

uint32_t oracle_size(uint64_t seed, uint64_t i, uint32_t max)
{
    uint64_t h = oracle_hash(seed + 1, i);
    switch (h % 16) {
    case 0:
        return 0;
    case 1:
        return max;
    case 2:
    case 3:
    case 4:
    case 5:
        return (uint32_t)((h >> 8) % 64) % (max + 1);
    default:
        return (uint32_t)((h >> 8) % ((uint64_t)max + 1));
    }
}

void oracle_fill(uint64_t seed, uint64_t i, uint8_t *bytes, uint32_t size)
{
    uint64_t state = oracle_hash(seed + 2, i), word = 0;
    for (uint32_t k = 0; k < size; k++) {
        if (k % 8 == 0)
            word = oracle_next(&state);
        bytes[k] = (uint8_t)(word >> (k % 8 * 8));
    }
}

bool oracle_matches(uint64_t seed, uint64_t i, const uint8_t *bytes, uint32_t size)
{
    uint64_t state = oracle_hash(seed + 2, i), word = 0;
    for (uint32_t k = 0; k < size; k++) {
        if (k % 8 == 0)
            word = oracle_next(&state);
        if (bytes[k] != (uint8_t)(word >> (k % 8 * 8)))
            return false;
    }
    return true;
}
