/*
 * model/bytes_map.h - find a number by a string of bytes: the names of a GGUF file, the tokens of a
 * vocabulary.
 *
 * What: an open-addressing hash table of fixed capacity. Keys are not copied: they must outlive the
 * map. Who calls it: gguf.c, tokenizer*.c. Internal to model/. Concurrency: read-only after it is
 * filled. Failure: HILL_E_NOMEM at init only.
 */
#pragma once

#include <stdint.h>

#define BYTES_MAP_NONE UINT32_MAX

struct bytes_map_entry {
    const void *key; /* NULL: free */
    uint64_t length;
    uint32_t value;
    uint32_t hash; /* upper half, saves most comparisons */
};

struct bytes_map {
    struct bytes_map_entry *entries;
    uint64_t mask; /* capacity - 1 */
};

/* Room for n keys (at most half full). */
int bytes_map_init(struct bytes_map *map, uint64_t n);
void bytes_map_finish(struct bytes_map *map);

/* Store value under key; an existing one is overwritten and returned, else BYTES_MAP_NONE. */
uint32_t bytes_map_put(struct bytes_map *map, const void *key, uint64_t length, uint32_t value);

/* BYTES_MAP_NONE when absent. */
uint32_t bytes_map_get(const struct bytes_map *map, const void *key, uint64_t length);
