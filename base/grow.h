/*
 * base/grow.h - an array that grows as it fills.
 *
 * What: GROW gives an array of `room` items room for `wanted`: a power of two, so that n items cost
 * O(n) copies. wanted: read more than once, so without side effects. Who calls it: whoever collects
 * what it cannot count before. Failure: false, also where `room` cannot hold the number; items and
 * room stay as they were. Concurrency: none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GROW(items, room, wanted)                                                                  \
    ((wanted) <= (room) || ((__typeof__(room))grow_room(wanted) >= (wanted) &&                     \
                            grow_array(&(items), grow_room(wanted), sizeof *(items)) &&            \
                            ((room) = (__typeof__(room))grow_room(wanted), true)))

/* 0: no power of two that fits. */
static inline uint64_t grow_room(uint64_t wanted)
{
    uint64_t room = 16;
    while (room && room < wanted)
        room *= 2;
    return room;
}

/* array: the address of a pointer of any type. */
static inline bool grow_array(void *array, uint64_t room, size_t item_bytes)
{
    void *items, *larger;
    memcpy(&items, array, sizeof items);
    if (room > SIZE_MAX / item_bytes)
        return false;
    larger = realloc(items, room * item_bytes);
    if (larger)
        memcpy(array, &larger, sizeof larger);
    return larger != NULL;
}
