/* cpu_scorer/cold_map.c - see cold_map.h. */
#include "cpu_scorer/cold_map.h"

#include <stdlib.h>
#include <string.h>

#include "kv/group.h"

#define UNCOMMITTED 0x80000000u
#define COPY        0x40000000u /* of an entry that has moved up; uncommitted too */
#define POSITION    0x3fffffffu

_Static_assert(COLD_NOBODY == POSITION && KV_MAX_TOKENS < POSITION,
               "a position leaves room for both bits");

int cold_map_init(struct cold_map *map, uint32_t stripe_slots, uint32_t n_stripes, uint32_t n_lists)
{
    *map = (struct cold_map){.stripe_slots = stripe_slots,
                             .n_stripes = n_stripes,
                             .n_free = n_stripes,
                             .n_lists = n_lists};
    if (!stripe_slots || (uint64_t)stripe_slots * n_stripes >= UNCOMMITTED ||
        (n_stripes && stripe_slots % KV_GROUP_TOKENS))
        return HILL_E_INVALID;
    map->stripes = calloc(n_stripes ? n_stripes : 1, sizeof *map->stripes);
    map->lists = calloc(n_lists ? n_lists : 1, sizeof *map->lists);
    map->positions = calloc((size_t)n_stripes * stripe_slots + 1, sizeof *map->positions);
    map->copies = calloc((size_t)n_stripes * stripe_slots / KV_GROUP_TOKENS + 1, 1);
    if (!map->stripes || !map->lists || !map->positions || !map->copies) {
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
    free(map->copies);
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

/* ---- recovery ---- */

#define HOLE (UNCOMMITTED | COPY | COLD_NOBODY)

int cold_map_hold(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t position)
{
    uint32_t stripe = slot / map->stripe_slots;
    struct cold_list *l = &map->lists[list];
    if (stripe >= map->n_stripes)
        return HILL_E_DAMAGED;
    struct cold_stripe *s = &map->stripes[stripe];
    if (s->list == COLD_NONE) {
        *s = (struct cold_stripe){.list = list, .next = l->first};
        l->first = stripe;
        l->n_stripes++;
        map->n_free--;
        for (uint32_t i = 0; i < map->stripe_slots; i++)
            map->positions[(uint64_t)stripe * map->stripe_slots + i] = HOLE;
    }
    if (s->list != list || map->positions[slot] != HOLE)
        return HILL_E_DAMAGED;
    map->positions[slot] = position;
    l->committed++;
    return 0;
}

/* Slots after the last one that is held have not been handed out; those before are copies. */
static void make_hole(struct cold_map *map, struct cold_list *l, uint32_t slot)
{
    map->positions[slot] = HOLE;
    map->copies[slot / KV_GROUP_TOKENS]++;
    l->copies++;
    l->lost++;
}

void cold_map_drop(struct cold_map *map, uint32_t list, uint32_t slot)
{
    make_hole(map, &map->lists[list], slot);
    map->lists[list].committed--;
}

/* Slots of a stripe up to its last one that is held. */
static uint32_t held_part(const struct cold_map *map, uint32_t stripe)
{
    uint32_t first = stripe * map->stripe_slots, used = map->stripe_slots;
    while (used > 0 && map->positions[first + used - 1] == HOLE)
        used--;
    return used;
}

/* The stripe that was being filled: the others were full, but for what has gone from them since, so
 * its end is the emptiest. Numbers do not say it: a list that grows takes any free stripe. */
static uint32_t find_current(const struct cold_map *map, uint32_t list, uint32_t *used)
{
    uint32_t found = COLD_NONE;
    *used = UINT32_MAX;
    for (uint32_t s = map->lists[list].first; s != COLD_NONE; s = map->stripes[s].next) {
        uint32_t part = held_part(map, s);
        if (part < *used || (part == *used && s > found)) {
            *used = part;
            found = s;
        }
    }
    return found;
}

/* The list's next stripe; all of it has been handed out. */
static uint32_t *link_stripe(struct cold_map *map, uint32_t list, uint32_t stripe, uint32_t order,
                             uint32_t *link)
{
    map->stripes[stripe].order = order;
    map->stripes[stripe].next = COLD_NONE;
    *link = map->lists[list].current = stripe;
    return &map->stripes[stripe].next;
}

static void find_holes(struct cold_map *map, uint32_t list, uint32_t stripe, uint32_t used)
{
    uint32_t first = stripe * map->stripe_slots;
    for (uint32_t i = 0; i < map->stripe_slots; i++)
        if (i >= used)
            map->positions[first + i] = 0;
        else if (map->positions[first + i] == HOLE)
            make_hole(map, &map->lists[list], first + i);
}

int cold_map_recovered(struct cold_map *map, uint32_t list, uint32_t n)
{
    struct cold_list *l = &map->lists[list];
    uint32_t order = 0, *link = &l->first;
    if (l->n_stripes == 0)
        return cold_map_reserve(map, list, n);
    uint32_t current = find_current(map, list, &l->used);
    for (uint32_t s = 0; s < map->n_stripes; s++) {
        if (map->stripes[s].list != list || s == current)
            continue;
        link = link_stripe(map, list, s, order++, link);
        find_holes(map, list, s, map->stripe_slots);
    }
    link_stripe(map, list, current, order, link);
    find_holes(map, list, current, l->used);
    return cold_map_grow(map, list, n);
}

int cold_map_grow(struct cold_map *map, uint32_t list, uint32_t n)
{
    struct cold_list *l = &map->lists[list];
    uint32_t order = l->n_stripes, *link = &l->first;
    if (order == 0)
        return cold_map_reserve(map, list, n);
    if (order > n || n - order > map->n_free)
        return HILL_E_NOSPACE;
    map->n_free -= n - order;
    while (*link != COLD_NONE)
        link = &map->stripes[*link].next;
    for (uint32_t s = 0; order < n; s++) {
        if (map->stripes[s].list != COLD_NONE)
            continue;
        map->stripes[s] = (struct cold_stripe){.list = list, .order = order++, .next = COLD_NONE};
        *link = s;
        link = &map->stripes[s].next;
    }
    l->n_stripes = n;
    return 0;
}

void cold_map_disown(struct cold_map *map, uint32_t list, uint32_t slot)
{
    struct cold_list *l = &map->lists[list];
    l->lost += cold_map_taken_position(map, slot) != COLD_NOBODY;
    map->positions[slot] = HOLE;
}

void cold_map_release(struct cold_map *map, uint32_t list)
{
    struct cold_list *l = &map->lists[list];
    for (uint32_t s = l->first; s != COLD_NONE;) {
        uint32_t next = map->stripes[s].next;
        map->stripes[s].list = COLD_NONE;
        memset(&map->positions[(uint64_t)s * map->stripe_slots], 0,
               map->stripe_slots * sizeof *map->positions);
        memset(&map->copies[(uint64_t)s * map->stripe_slots / KV_GROUP_TOKENS], 0,
               map->stripe_slots / KV_GROUP_TOKENS);
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

static void drop_copy(struct cold_map *map, uint32_t list, uint32_t slot)
{
    map->lists[list].lost -= cold_map_taken_position(map, slot) == COLD_NOBODY;
    map->positions[slot] &= ~COPY;
    map->copies[slot / KV_GROUP_TOKENS]--;
    map->lists[list].copies--;
}

void cold_map_commit(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n)
{
    for (uint32_t i = slot; i < slot + n; i++) {
        if (map->positions[i] & COPY)
            drop_copy(map, list, i);
        map->positions[i] &= ~UNCOMMITTED;
    }
    map->lists[list].committed += n;
}

void cold_map_uncommit(struct cold_map *map, uint32_t list, uint32_t slot)
{
    map->positions[slot] |= UNCOMMITTED | COPY;
    map->copies[slot / KV_GROUP_TOKENS]++;
    map->lists[list].copies++;
    map->lists[list].committed--;
}

uint32_t cold_map_spare(const struct cold_map *map, uint32_t list)
{
    const struct cold_list *l = &map->lists[list];
    uint32_t kept = l->committed / COLD_COPIES_PART, known = l->copies - l->lost;
    return l->lost + (known > kept ? known - kept : 0);
}

/* Slots of copies out of the groups that have `each` of them, until there are n. Returns the new
 * n_found. */
static uint32_t find_copies(const struct cold_map *map, uint32_t list, uint32_t each, uint32_t n,
                            uint32_t n_found, uint32_t *slots)
{
    uint32_t groups = map->stripe_slots / KV_GROUP_TOKENS;
    for (uint32_t s = map->lists[list].first; s != COLD_NONE && n_found < n;
         s = map->stripes[s].next)
        for (uint32_t g = s * groups; g < (s + 1) * groups && n_found < n; g++)
            for (uint32_t i = 0; map->copies[g] == each && i < KV_GROUP_TOKENS && n_found < n; i++)
                if (map->positions[g * KV_GROUP_TOKENS + i] & COPY)
                    slots[n_found++] = g * KV_GROUP_TOKENS + i;
    return n_found;
}

/* How many groups of the list have 0, 1, .. 16 copies. */
static void count_groups(const struct cold_map *map, uint32_t list,
                         uint32_t groups_with[KV_GROUP_TOKENS + 1])
{
    uint32_t groups = map->stripe_slots / KV_GROUP_TOKENS;
    memset(groups_with, 0, (KV_GROUP_TOKENS + 1) * sizeof *groups_with);
    for (uint32_t s = map->lists[list].first; s != COLD_NONE; s = map->stripes[s].next)
        for (uint32_t g = s * groups; g < (s + 1) * groups; g++)
            groups_with[map->copies[g]]++;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t cold_map_reuse(struct cold_map *map, uint32_t list, const uint32_t *positions, uint32_t n,
                        uint32_t *slots, uint32_t *lost)
{
    uint32_t spare = cold_map_spare(map, list), found = 0, groups_with[KV_GROUP_TOKENS + 1];
    if (n > spare)
        n = spare;
    if (n > 0)
        count_groups(map, list, groups_with);
    for (uint32_t each = KV_GROUP_TOKENS; each > 0 && found < n; each--)
        if (groups_with[each])
            found = find_copies(map, list, each, n, found, slots);
    qsort(slots, n, sizeof *slots, compare);
    for (uint32_t i = 0; i < n; i++) {
        lost[i] = cold_map_taken_position(map, slots[i]);
        drop_copy(map, list, slots[i]);
        map->positions[slots[i]] = positions[i] | UNCOMMITTED;
    }
    return n;
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
    return map->positions[slot] & POSITION;
}
