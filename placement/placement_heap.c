/*
 * placement/placement_heap.c - an indexed binary heap, for the placements that need an exact order
 * (lru, lfu, paper, belady). Concurrency: one thread. Failure: none.
 */
#include "placement/placement_internal.h"

#include <string.h>

void placement_heap_init(struct placement_heap *heap, uint32_t max, void **rest)
{
    heap->keys = placement_table(rest, max, sizeof *heap->keys);
    heap->items = placement_table(rest, max, sizeof *heap->items);
    heap->where = placement_table(rest, max, sizeof *heap->where);
    memset(heap->where, 0xff, max * sizeof *heap->where);
}

static bool before(const struct placement_heap *h, uint32_t a, uint32_t b)
{
    return h->keys[a] < h->keys[b] || (h->keys[a] == h->keys[b] && a < b);
}

static void put(struct placement_heap *h, uint32_t index, uint32_t position)
{
    h->items[index] = position;
    h->where[position] = index;
}

static void rise(struct placement_heap *h, uint32_t index)
{
    uint32_t position = h->items[index];
    for (; index > 0 && before(h, position, h->items[(index - 1) / 2]); index = (index - 1) / 2)
        put(h, index, h->items[(index - 1) / 2]);
    put(h, index, position);
}

static void sink(struct placement_heap *h, uint32_t index)
{
    uint32_t position = h->items[index];
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= h->count)
            break;
        if (child + 1 < h->count && before(h, h->items[child + 1], h->items[child]))
            child++;
        if (!before(h, h->items[child], position))
            break;
        put(h, index, h->items[child]);
        index = child;
    }
    put(h, index, position);
}

void placement_heap_set(struct placement_heap *heap, uint32_t position, uint64_t key)
{
    if (heap->where[position] == PLACEMENT_NONE)
        put(heap, heap->count++, position);
    heap->keys[position] = key;
    rise(heap, heap->where[position]);
    sink(heap, heap->where[position]);
}

void placement_heap_remove(struct placement_heap *heap, uint32_t position)
{
    uint32_t index = heap->where[position];
    if (index == PLACEMENT_NONE)
        return;
    heap->where[position] = PLACEMENT_NONE;
    uint32_t last = heap->items[--heap->count];
    if (last == position)
        return;
    put(heap, index, last);
    rise(heap, index);
    sink(heap, heap->where[last]);
}

uint32_t placement_heap_top(const struct placement_heap *heap)
{
    return heap->count ? heap->items[0] : PLACEMENT_NONE;
}
