/* prefix/chunk_order.c - see chunk_order.h. */
#include "prefix/chunk_order.h"

#include <stdlib.h>
#include <string.h>

void chunk_order_none(uint8_t *order)
{
    for (uint32_t i = 0; i < CHUNK_TOKENS; i++)
        order[i] = (uint8_t)i;
}

void chunk_order_by(const float *mass, bool keeps_first, uint8_t *order)
{
    chunk_order_none(order);
    for (uint32_t i = keeps_first ? 1 : 0; i < CHUNK_TOKENS; i++) { /* insertion: it is stable */
        uint8_t token = order[i];
        float own = mass[token] > 0 ? mass[token] : 0;
        uint32_t at = i;
        for (; at > (keeps_first ? 1u : 0u); at--) {
            float before = mass[order[at - 1]] > 0 ? mass[order[at - 1]] : 0;
            if (before >= own)
                break;
            order[at] = order[at - 1];
        }
        order[at] = token;
    }
}

_Static_assert(CHUNK_TOKENS == 64, "a bit for each token");

bool chunk_order_is_whole(const uint8_t *order)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i < CHUNK_TOKENS; i++)
        seen |= order[i] < CHUNK_TOKENS ? UINT64_C(1) << order[i] : 0;
    return seen == UINT64_MAX;
}

void chunk_order_store(const struct chunk_terms *t, const void *entries, const uint8_t *orders,
                       void *stored)
{
    const uint8_t *from = entries;
    uint64_t bytes = t->entry_bytes;
    uint8_t *to = stored, *order = to + t->n_layers * CHUNK_TOKENS * bytes;
    for (uint32_t l = 0; l < t->n_layers; l++, from += CHUNK_TOKENS * bytes) {
        if (orders)
            memcpy(order, orders + (size_t)l * CHUNK_TOKENS, CHUNK_TOKENS);
        else
            chunk_order_none(order);
        for (uint32_t i = 0; i < CHUNK_TOKENS; i++, to += bytes)
            memcpy(to, from + order[i] * bytes, bytes);
        order += CHUNK_TOKENS;
    }
}

int chunk_order_restore(const struct chunk_terms *t, void *stored)
{
    uint64_t bytes = t->entry_bytes, layer_bytes = CHUNK_TOKENS * bytes;
    uint8_t *layer = stored, none[CHUNK_TOKENS], *copy = malloc(layer_bytes);
    const uint8_t *order = layer + t->n_layers * layer_bytes;
    int rc = copy ? 0 : HILL_E_NOMEM;
    chunk_order_none(none);
    for (uint32_t l = 0; !rc && l < t->n_layers; l++, layer += layer_bytes, order += CHUNK_TOKENS) {
        if (memcmp(order, none, sizeof none) == 0)
            continue;
        if (!chunk_order_is_whole(order)) {
            rc = HILL_E_DAMAGED;
            break;
        }
        memcpy(copy, layer, layer_bytes);
        for (uint32_t i = 0; i < CHUNK_TOKENS; i++)
            memcpy(layer + order[i] * bytes, copy + i * bytes, bytes);
    }
    free(copy);
    return rc;
}
