/* cpu_scorer/cold_map.c - see cold_map.h. */
#include "cpu_scorer/cold_map.h"

#include <stdlib.h>
#include <string.h>

#define UNCOMMITTED 0x80000000u

int cold_map_init(struct cold_map *map, uint32_t stripe_slots, uint32_t n_stripes, uint32_t n_lists)
{
    *map = (struct cold_map){.stripe_slots = stripe_slots,
                             .n_stripes = n_stripes,
                             .n_free = n_stripes,
                             .n_lists = n_lists};
    if (!stripe_slots || (uint64_t)stripe_slots * n_stripes >= UNCOMMITTED)
        return HILL_E_INVALID;
    map->stripes = calloc(n_stripes ? n_stripes : 1, sizeof *map->stripes);
    map->lists = calloc(n_lists ? n_lists : 1, sizeof *map->lists);
    map->positions = calloc((size_t)n_stripes * stripe_slots + 1, sizeof *map->positions);
    if (!map->stripes || !map->lists || !map->positions) {
        cold_map_finish(map);
        return HILL_E_NOMEM;
    }
    for (uint32_t s = 0; s < n_stripes; s++)
        map->stripes[s].list = COLD_NONE;
    for (uint32_t l = 0; l < n_lists; l++)
        map->lists[l].first = map->lists[l].current = COLD_NONE;
    return 0;
}

void cold_map_finish(struct cold_map *map)
{
    free(map->stripes);
    free(map->lists);
    free(map->positions);
    memset(map, 0, sizeof *map);
}

/* The start of n consecutive free stripes; 0 when there is no such run (stripes are then taken one
 * by one). */
static uint32_t find_run(const struct cold_map *map, uint32_t n)
{
    uint32_t run = 0;
    for (uint32_t s = 0; s < map->n_stripes; s++) {
        run = map->stripes[s].list == COLD_NONE ? run + 1 : 0;
        if (run == n)
            return s + 1 - n;
    }
    return 0;
}

int cold_map_reserve(struct cold_map *map, uint32_t list, uint32_t n)
{
    struct cold_list *l = &map->lists[list];
    if (n > map->n_free)
        return HILL_E_NOSPACE;
    uint32_t *link = &l->first;
    uint32_t order = 0;
    for (uint32_t s = n ? find_run(map, n) : 0; order < n; s++) {
        if (map->stripes[s].list != COLD_NONE)
            continue;
        map->stripes[s] = (struct cold_stripe){.list = list, .order = order++, .next = COLD_NONE};
        *link = s;
        link = &map->stripes[s].next;
    }
    map->n_free -= n;
    l->n_stripes = n;
    l->current = l->first;
    return 0;
}

void cold_map_release(struct cold_map *map, uint32_t list)
{
    struct cold_list *l = &map->lists[list];
    for (uint32_t s = l->first; s != COLD_NONE;) {
        uint32_t next = map->stripes[s].next;
        map->stripes[s].list = COLD_NONE;
        memset(&map->positions[(uint64_t)s * map->stripe_slots], 0,
               map->stripe_slots * sizeof *map->positions);
        map->n_free++;
        s = next;
    }
    *l = (struct cold_list){.first = COLD_NONE, .current = COLD_NONE};
}

uint32_t cold_map_room(const struct cold_map *map, uint32_t list)
{
    const struct cold_list *l = &map->lists[list];
    if (l->current == COLD_NONE)
        return 0;
    if (l->used < map->stripe_slots)
        return map->stripe_slots - l->used;
    return map->stripes[l->current].next == COLD_NONE ? 0 : map->stripe_slots;
}

/* n consecutive slots, their positions to be filled. */
static uint32_t take_slots(struct cold_map *map, uint32_t list, uint32_t n, uint32_t *slot,
                           uint32_t *order)
{
    struct cold_list *l = &map->lists[list];
    uint32_t room = cold_map_room(map, list);
    if (n > room)
        n = room;
    if (n == 0)
        return 0;
    if (l->used == map->stripe_slots) {
        l->current = map->stripes[l->current].next;
        l->used = 0;
    }
    *slot = l->current * map->stripe_slots + l->used;
    *order = map->stripes[l->current].order;
    l->used += n;
    return n;
}

uint32_t cold_map_take(struct cold_map *map, uint32_t list, uint32_t first_position, uint32_t n,
                       uint32_t *slot, uint32_t *order)
{
    n = take_slots(map, list, n, slot, order);
    for (uint32_t i = 0; i < n; i++)
        map->positions[*slot + i] = (first_position + i) | UNCOMMITTED;
    return n;
}

uint32_t cold_map_take_positions(struct cold_map *map, uint32_t list, const uint32_t *positions,
                                 uint32_t n, uint32_t *slot, uint32_t *order)
{
    n = take_slots(map, list, n, slot, order);
    for (uint32_t i = 0; i < n; i++)
        map->positions[*slot + i] = positions[i] | UNCOMMITTED;
    return n;
}

void cold_map_commit(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        map->positions[slot + i] &= ~UNCOMMITTED;
    map->lists[list].committed += n;
}

void cold_map_uncommit(struct cold_map *map, uint32_t list, uint32_t slot)
{
    map->positions[slot] |= UNCOMMITTED;
    map->lists[list].committed--;
}

uint32_t cold_map_position(const struct cold_map *map, uint32_t list, uint64_t slot)
{
    if (slot >= (uint64_t)map->n_stripes * map->stripe_slots)
        return COLD_NONE;
    uint32_t stripe = (uint32_t)(slot / map->stripe_slots);
    const struct cold_list *l = &map->lists[list];
    const struct cold_stripe *s = &map->stripes[stripe];
    if (s->list != list || l->current == COLD_NONE)
        return COLD_NONE;
    uint32_t current_order = map->stripes[l->current].order;
    uint32_t offset = (uint32_t)(slot % map->stripe_slots);
    if (s->order > current_order || (s->order == current_order && offset >= l->used))
        return COLD_NONE; /* not handed out */
    uint32_t position = map->positions[slot];
    return position & UNCOMMITTED ? COLD_NONE : position;
}

uint32_t cold_map_taken_position(const struct cold_map *map, uint32_t slot)
{
    return map->positions[slot] & ~UNCOMMITTED;
}
