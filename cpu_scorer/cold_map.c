/* cpu_scorer/cold_map.c - see cold_map.h. */
#include "cpu_scorer/cold_map.h"

#include <stdlib.h>
#include <string.h>

#include "kv/group.h"

#define UNCOMMITTED 0x80000000u
#define COPY        0x40000000u /* of an entry that has moved up; uncommitted too */
#define POSITION    0x3fffffffu

_Static_assert(UNCOMMITTED == 1u << 31, "the top bit");
_Static_assert(COLD_NOBODY == POSITION && KV_MAX_TOKENS < POSITION,
               "a position leaves room for both bits");

int cold_map_init(struct cold_map *map, uint32_t stripe_slots, uint32_t n_stripes, uint32_t n_lists)
{
    return cold_map_init_drives(map, stripe_slots, n_stripes, &n_stripes, 1, n_lists);
}

int cold_map_init_drives(struct cold_map *map, uint32_t stripe_slots, uint32_t drive_stripes,
                         const uint32_t *n_stripes_each, uint32_t n_drives, uint32_t n_lists)
{
    uint64_t all = (uint64_t)drive_stripes * n_drives;
    uint32_t n_stripes = all > UINT32_MAX ? UINT32_MAX : (uint32_t)all, n_parts;
    *map = (struct cold_map){.stripe_slots = stripe_slots,
                             .n_stripes = n_stripes,
                             .n_lists = n_lists,
                             .n_drives = n_drives,
                             .drive_stripes = drive_stripes};
    n_parts = n_lists * n_drives;
    for (uint32_t d = 0; d < n_drives; d++)
        map->drives[d] = (struct cold_drive){
            .n_stripes = n_stripes_each[d], .n_free = n_stripes_each[d], .share = 1.0 / n_drives};
    if (!stripe_slots || (uint64_t)stripe_slots * n_stripes >= UNCOMMITTED ||
        (n_stripes && stripe_slots % KV_GROUP_TOKENS))
        return HILL_E_INVALID;
    map->stripes = calloc(n_stripes ? n_stripes : 1, sizeof *map->stripes);
    map->lists = calloc(n_parts ? n_parts : 1, sizeof *map->lists);
    map->positions = calloc((size_t)n_stripes * stripe_slots + 1, sizeof *map->positions);
    map->copies = calloc((size_t)n_stripes * stripe_slots / KV_GROUP_TOKENS + 1, 1);
    if (!map->stripes || !map->lists || !map->positions || !map->copies) {
        cold_map_finish(map);
        return HILL_E_NOMEM;
    }
    for (uint32_t s = 0; s < n_stripes; s++)
        map->stripes[s].list = COLD_NONE;
    for (uint32_t l = 0; l < n_parts; l++)
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

/* ---- drives ---- */

uint32_t cold_map_committed(const struct cold_map *map, uint32_t list)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < map->n_drives; d++)
        sum += map->lists[cold_map_part(map, list, d)].committed;
    return sum;
}

uint32_t cold_map_stripes(const struct cold_map *map, uint32_t list)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < map->n_drives; d++)
        sum += map->lists[cold_map_part(map, list, d)].n_stripes;
    return sum;
}

static void work_out_shares(struct cold_map *map)
{
    double sum = 0;
    uint32_t there = 0;
    for (uint32_t d = 0; d < map->n_drives; d++) {
        sum += cold_map_takes(map, d) ? map->drives[d].speed : 0;
        there += cold_map_takes(map, d);
    }
    for (uint32_t d = 0; d < map->n_drives; d++)
        map->drives[d].share = !cold_map_takes(map, d) ? 0
                               : sum > 0               ? map->drives[d].speed / sum
                                                       : 1.0 / there;
}

void cold_map_set_speeds(struct cold_map *map, const double *speeds)
{
    for (uint32_t d = 0; d < map->n_drives; d++)
        map->drives[d].speed = speeds[d];
    work_out_shares(map);
}

void cold_map_leave(struct cold_map *map, uint32_t drive, bool leaves)
{
    map->drives[drive].leaves = leaves;
    work_out_shares(map);
}

void cold_map_gone(struct cold_map *map, uint32_t drive)
{
    map->drives[drive].n_stripes = map->drives[drive].n_free = 0;
    cold_map_leave(map, drive, false);
}

/* Entries of a part that count, or will when they are written. */
static uint32_t load_of(const struct cold_map *map, const struct cold_list *l)
{
    if (l->current == COLD_NONE)
        return 0;
    return map->stripes[l->current].order * map->stripe_slots + l->used - l->copies;
}

static double load_of_all(const struct cold_map *map, uint32_t list)
{
    double sum = 0;
    for (uint32_t d = 0; d < map->n_drives; d++)
        sum += load_of(map, cold_map_on(map, list, d));
    return sum;
}

static bool has_room(const struct cold_map *map, uint32_t part)
{
    return cold_map_room(map, part) || cold_map_spare(map, part);
}

bool cold_map_uneven(const struct cold_map *map, uint32_t list, uint32_t n, uint32_t *drive)
{
    double all = load_of_all(map, list), most = 0, lacks = 0;
    for (uint32_t d = 0; d < map->n_drives; d++) {
        uint32_t part = cold_map_part(map, list, d);
        double excess = load_of(map, &map->lists[part]) - map->drives[d].share * all;
        if (excess > most) {
            most = excess;
            *drive = d;
        }
        if (-excess > lacks && has_room(map, part))
            lacks = -excess;
    }
    return most >= n && lacks >= n;
}

uint32_t cold_map_deal(const struct cold_map *map, uint32_t list, uint32_t n, bool from_hot,
                       uint32_t *drive)
{
    double total, most = 0;
    uint32_t found = COLD_NONE;
    *drive = 0;
    if (map->n_drives == 1)
        return n;
    total = n + load_of_all(map, list);
    for (uint32_t d = 0; d < map->n_drives; d++) {
        uint32_t part = cold_map_part(map, list, d);
        double lacks = map->drives[d].share * total - load_of(map, &map->lists[part]);
        if (map->drives[d].leaves || !has_room(map, part))
            continue;
        if (found == COLD_NONE || lacks > most) {
            found = d;
            most = lacks;
        }
    }
    if (found == COLD_NONE)
        return 0;
    *drive = found;
    if (from_hot || !(most > 0))
        return n;
    uint32_t groups = (uint32_t)(most / KV_GROUP_TOKENS) + 1;
    return groups < n / KV_GROUP_TOKENS ? groups * KV_GROUP_TOKENS : n;
}

/* The part of a list that has a slot. */
static struct cold_list *part_of(const struct cold_map *map, uint32_t list, uint32_t slot)
{
    return &map->lists[cold_map_part(map, list, cold_map_drive(map, slot))];
}

static struct cold_drive *drive_of(struct cold_map *map, uint32_t part)
{
    return &map->drives[part % map->n_drives];
}

/* The numbers of a part's drive's stripes: from here, as many as it has. */
static uint32_t first_stripe(const struct cold_map *map, uint32_t part)
{
    return part % map->n_drives * map->drive_stripes;
}

static uint32_t end_stripe(const struct cold_map *map, uint32_t part)
{
    return first_stripe(map, part) + map->drives[part % map->n_drives].n_stripes;
}

/* ---- stripes ---- */

/* The start of n consecutive free stripes; the drive's first when there is no such run (stripes are
 * then taken one by one). */
static uint32_t find_run(const struct cold_map *map, uint32_t part, uint32_t n)
{
    uint32_t run = 0;
    for (uint32_t s = first_stripe(map, part); n && s < end_stripe(map, part); s++) {
        run = map->stripes[s].list == COLD_NONE ? run + 1 : 0;
        if (run == n)
            return s + 1 - n;
    }
    return first_stripe(map, part);
}

int cold_map_reserve(struct cold_map *map, uint32_t list, uint32_t n)
{
    struct cold_list *l = &map->lists[list];
    uint32_t order = l->n_stripes, *link = &l->first;
    bool empty = order == 0;
    if (order > n || n - order > drive_of(map, list)->n_free)
        return HILL_E_NOSPACE;
    drive_of(map, list)->n_free -= n - order;
    while (*link != COLD_NONE)
        link = &map->stripes[*link].next;
    for (uint32_t s = empty ? find_run(map, list, n) : first_stripe(map, list); order < n; s++) {
        if (map->stripes[s].list != COLD_NONE)
            continue;
        map->stripes[s] = (struct cold_stripe){.list = list, .order = order++, .next = COLD_NONE};
        *link = s;
        link = &map->stripes[s].next;
    }
    l->n_stripes = n;
    if (empty)
        l->current = l->first;
    return 0;
}

/* ---- recovery ---- */

#define HOLE (UNCOMMITTED | COPY | COLD_NOBODY)

int cold_map_hold(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t position)
{
    uint32_t stripe = slot / map->stripe_slots;
    if (stripe >= map->n_stripes)
        return HILL_E_DAMAGED;
    uint32_t part = cold_map_part(map, list, cold_map_drive_of(map, stripe));
    struct cold_list *l = &map->lists[part];
    if (stripe >= end_stripe(map, part))
        return HILL_E_DAMAGED;
    struct cold_stripe *s = &map->stripes[stripe];
    if (s->list == COLD_NONE) {
        *s = (struct cold_stripe){.list = part, .next = l->first};
        l->first = stripe;
        l->n_stripes++;
        drive_of(map, part)->n_free--;
        for (uint32_t i = 0; i < map->stripe_slots; i++)
            map->positions[(uint64_t)stripe * map->stripe_slots + i] = HOLE;
    }
    if (s->list != part || map->positions[slot] != HOLE)
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
    struct cold_list *l = part_of(map, list, slot);
    make_hole(map, l, slot);
    l->committed--;
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
    for (uint32_t s = first_stripe(map, list); s < end_stripe(map, list); s++) {
        if (map->stripes[s].list != list || s == current)
            continue;
        link = link_stripe(map, list, s, order++, link);
        find_holes(map, list, s, map->stripe_slots);
    }
    link_stripe(map, list, current, order, link);
    find_holes(map, list, current, l->used);
    return cold_map_reserve(map, list, n);
}

void cold_map_disown(struct cold_map *map, uint32_t list, uint32_t slot)
{
    struct cold_list *l = part_of(map, list, slot);
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
        drive_of(map, list)->n_free++;
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

static void drop_copy(struct cold_map *map, struct cold_list *l, uint32_t slot)
{
    l->lost -= cold_map_taken_position(map, slot) == COLD_NOBODY;
    map->positions[slot] &= ~COPY;
    map->copies[slot / KV_GROUP_TOKENS]--;
    l->copies--;
}

void cold_map_commit(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n)
{
    struct cold_list *l = part_of(map, list, slot);
    for (uint32_t i = slot; i < slot + n; i++) {
        if (map->positions[i] & COPY)
            drop_copy(map, l, i);
        map->positions[i] &= ~UNCOMMITTED;
    }
    l->committed += n;
}

void cold_map_uncommit(struct cold_map *map, uint32_t list, uint32_t slot)
{
    struct cold_list *l = part_of(map, list, slot);
    map->positions[slot] |= UNCOMMITTED | COPY;
    map->copies[slot / KV_GROUP_TOKENS]++;
    l->copies++;
    l->committed--;
}

uint32_t cold_map_spare(const struct cold_map *map, uint32_t list)
{
    const struct cold_list *l = &map->lists[list];
    uint32_t kept = l->committed / PLACEMENT_COPIES_PART, known = l->copies - l->lost;
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
        drop_copy(map, &map->lists[list], slots[i]);
        map->positions[slots[i]] = positions[i] | UNCOMMITTED;
    }
    return n;
}

/* How many slots of the stripe, from its first on, are handed out to the list. */
static uint32_t handed_out(const struct cold_map *map, uint32_t list, uint32_t stripe)
{
    uint32_t part = cold_map_part(map, list, cold_map_drive_of(map, stripe));
    const struct cold_list *l = &map->lists[part];
    const struct cold_stripe *s = &map->stripes[stripe];
    if (s->list != part || l->current == COLD_NONE)
        return 0;
    uint32_t current_order = map->stripes[l->current].order;
    return s->order < current_order ? map->stripe_slots : s->order == current_order ? l->used : 0;
}

static uint32_t counting_position(const struct cold_map *map, uint32_t slot)
{
    uint32_t position = map->positions[slot];
    return position & UNCOMMITTED ? COLD_NONE : position;
}

uint32_t cold_map_position(const struct cold_map *map, uint32_t list, uint64_t slot)
{
    if (slot >= (uint64_t)map->n_stripes * map->stripe_slots)
        return COLD_NONE;
    uint32_t stripe = (uint32_t)(slot / map->stripe_slots);
    bool out = slot % map->stripe_slots < handed_out(map, list, stripe);
    return out ? counting_position(map, (uint32_t)slot) : COLD_NONE;
}

void cold_map_positions(const struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n,
                        uint32_t *positions)
{
    uint32_t end = handed_out(map, list, slot / map->stripe_slots), from = slot % map->stripe_slots;
    uint32_t out = end <= from ? 0 : end - from < n ? end - from : n;
    for (uint32_t i = 0; i < out; i++)
        positions[i] = counting_position(map, slot + i);
    for (uint32_t i = out; i < n; i++)
        positions[i] = COLD_NONE;
}

uint32_t cold_map_taken_position(const struct cold_map *map, uint32_t slot)
{
    return map->positions[slot] & POSITION;
}

uint64_t cold_map_counting(const struct cold_map *map, uint32_t slot, uint32_t n)
{
    const uint32_t *positions = &map->positions[slot];
    uint64_t counting = n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
    uint32_t others = 0;
    for (uint32_t i = 0; i < n; i++) /* without a branch: nearly always none is */
        others += positions[i] >> 31;
    for (uint32_t i = 0; others && i < n; i++)
        counting &= ~((uint64_t)(positions[i] >> 31) << i);
    return counting;
}
