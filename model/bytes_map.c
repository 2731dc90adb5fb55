/* model/bytes_map.c - see bytes_map.h. */
#include "model/bytes_map.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"

int bytes_map_init(struct bytes_map *map, uint64_t n)
{
    uint64_t capacity = 16;
    while (capacity / 2 < n) {
        if (capacity > UINT64_MAX / 2 / sizeof *map->entries)
            return HILL_E_NOMEM;
        capacity *= 2;
    }
    map->entries = calloc(capacity, sizeof *map->entries);
    map->mask = capacity - 1;
    return map->entries ? 0 : HILL_E_NOMEM;
}

void bytes_map_finish(struct bytes_map *map)
{
    free(map->entries);
    map->entries = NULL;
}

/* The key's entry, or the free one where it belongs. The map is never full, so the walk ends. */
static struct bytes_map_entry *locate(const struct bytes_map *map, const void *key, uint64_t length,
                                      uint32_t *hash)
{
    uint64_t h = XXH3_64bits(key, length);
    *hash = (uint32_t)(h >> 32);
    for (uint64_t i = h & map->mask;; i = (i + 1) & map->mask) {
        struct bytes_map_entry *entry = &map->entries[i];
        if (!entry->key || (entry->hash == *hash && entry->length == length &&
                            memcmp(entry->key, key, length) == 0))
            return entry;
    }
}

uint32_t bytes_map_put(struct bytes_map *map, const void *key, uint64_t length, uint32_t value)
{
    uint32_t hash;
    struct bytes_map_entry *entry = locate(map, key, length, &hash);
    uint32_t before = entry->key ? entry->value : BYTES_MAP_NONE;
    *entry = (struct bytes_map_entry){key, length, value, hash};
    return before;
}

uint32_t bytes_map_get(const struct bytes_map *map, const void *key, uint64_t length)
{
    uint32_t hash;
    struct bytes_map_entry *entry = locate(map, key, length, &hash);
    return entry->key ? entry->value : BYTES_MAP_NONE;
}
