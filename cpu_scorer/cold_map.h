/*
 * cpu_scorer/cold_map.h - who owns which stripes of the cold pool, and which position a cold slot
 * holds.
 *
 * What: the scorer's mirror of the pool's directory. A sequence reserves for each layer, when it
 * begins, all the stripes that it can ever need; the run is consecutive where there is one, so that
 * a layer's digests stream. Slots of a (sequence, layer) are handed out in order. A slot is handed
 * out uncommitted; only committed slots count (may be scored). A slot whose entry has moved up is a
 * copy: uncommitted, and committed again when the entry goes down again, which writes nothing. But
 * the drive's stream over the digests passes copies too. So only as many are kept as a part of the
 * slots that count (PLACEMENT_COPIES_PART); what is above that is handed out again to entries that
 * have no copy, from the groups of digests (kv/group.h) that have most of them, because a group is
 * written as a whole.
 *
 * Several drives: stripes have one numbering, drive_stripes for each drive whether its pool has so
 * many or not, so that a slot says whose it is. A list is one (sequence, layer); what it has on one
 * drive is a part (cold_map_part), with stripes and an order of its own. Where the next entries go
 * cold_map_deal says: to the part that lacks most of its drive's share, so that all drives take
 * equally long for a query. A drive that is left (cold_map_leave) takes nothing more. With one
 * drive a list is its part.
 *
 * Memory: 4 bytes per cold slot and one per group, private (with the selector
 * the scorer's only large private memory). Who calls it: the scorer's data thread alone. The pool's
 * file is never opened here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "placement/placement.h"
#include "proto/layout.h"

#define COLD_NONE   UINT32_MAX
#define COLD_LOST   PLACEMENT_LOST /* of an entry that has been cold: its copy is gone */
#define COLD_NOBODY 0x3fffffffu    /* position of a slot whose entry no one knows any more */

/* Of what may also be COLD_NONE or COLD_LOST. */
static inline bool cold_is_slot(uint32_t slot)
{
    return slot < COLD_LOST;
}

struct cold_stripe {
    uint32_t list;  /* the part that has it; COLD_NONE: free */
    uint32_t order; /* within its part */
    uint32_t next;  /* stripe of the next order, COLD_NONE at the end */
};

/* A part of a list. */
struct cold_list {
    uint32_t first, current; /* stripes; current is being filled */
    uint32_t n_stripes;
    uint32_t used; /* slots handed out in current */
    uint32_t committed;
    uint32_t copies; /* slots of entries that have moved up */
    uint32_t lost;   /* of them: nobody's */
};

struct cold_map {
    uint32_t stripe_slots;
    uint32_t n_stripes; /* numbers: of all drives */
    uint32_t n_lists, n_drives, drive_stripes;
    struct cold_drive {
        uint32_t n_stripes, n_free; /* that its pool has, that no part has */
        double speed;               /* against the others' */
        double share;               /* of the entries of every list */
        bool leaves;                /* of several: it is being left */
    } drives[LAYOUT_DRIVES_MAX];
    struct cold_stripe *stripes;
    struct cold_list *lists; /* [n_lists * n_drives] */
    uint32_t *positions;     /* [n_stripes * stripe_slots], top bits: uncommitted, a copy */
    uint8_t *copies;         /* [groups of 16 slots] of a group's */
};

/* stripe_slots: whole groups, unless there are no stripes. */
int cold_map_init(struct cold_map *map, uint32_t stripe_slots, uint32_t n_stripes,
                  uint32_t n_lists);
/* Several drives: with so many stripes each, at most drive_stripes, and equal shares. */
int cold_map_init_drives(struct cold_map *map, uint32_t stripe_slots, uint32_t drive_stripes,
                         const uint32_t *n_stripes, uint32_t n_drives, uint32_t n_lists);
void cold_map_finish(struct cold_map *map);

/* Whose a slot or stripe is, and what a part's drive calls it. */
static inline uint32_t cold_map_drive_of(const struct cold_map *map, uint32_t stripe)
{
    return map->n_drives > 1 ? stripe / map->drive_stripes : 0;
}
static inline uint32_t cold_map_drive(const struct cold_map *map, uint32_t slot)
{
    return cold_map_drive_of(map, slot / map->stripe_slots);
}
static inline uint32_t cold_map_base(const struct cold_map *map, uint32_t drive)
{
    return drive * map->drive_stripes * map->stripe_slots;
}
static inline uint32_t cold_map_part(const struct cold_map *map, uint32_t list, uint32_t drive)
{
    return list * map->n_drives + drive;
}
static inline const struct cold_list *cold_map_on(const struct cold_map *map, uint32_t list,
                                                  uint32_t drive)
{
    return &map->lists[cold_map_part(map, list, drive)];
}
/* May something new be placed on it? */
static inline bool cold_map_takes(const struct cold_map *map, uint32_t drive)
{
    return map->drives[drive].n_stripes && !map->drives[drive].leaves;
}
/* What a list has on all drives: slots that count, stripes. */
uint32_t cold_map_committed(const struct cold_map *map, uint32_t list);
uint32_t cold_map_stripes(const struct cold_map *map, uint32_t list);

/* Each drive's speed, against the others': the shares of what is dealt from now on. All 0:
 * equal. */
void cold_map_set_speeds(struct cold_map *map, const double *speeds);
/* Of several drives: this one takes nothing more, or does again. */
void cold_map_leave(struct cold_map *map, uint32_t drive, bool leaves);
/* It is gone: no part has a stripe of it. */
void cold_map_gone(struct cold_map *map, uint32_t drive);
/* Has *drive, the most of all, n entries of the list or more beyond its share, and does another one
 * that has room lack as many? */
bool cold_map_uneven(const struct cold_map *map, uint32_t list, uint32_t n, uint32_t *drive);
/* The next up to n entries of a list go to *drive: returns how many of them, 0 where no drive has
 * room or spare copies. from_hot: what has been hot goes down in one record. */
uint32_t cold_map_deal(const struct cold_map *map, uint32_t list, uint32_t n, bool from_hot,
                       uint32_t *drive);

/* In what follows `list` is a part where no slot is named. */

/* A list is to have n stripes, no fewer than now. HILL_E_NOSPACE: nothing changed. */
int cold_map_reserve(struct cold_map *map, uint32_t list, uint32_t n);
void cold_map_release(struct cold_map *map, uint32_t list);

/* A new process finds its committed slots by the location words: each of them is held, then
 * cold_map_recovered orders the list's stripes and adds free ones up to n. Slots between those that
 * are held count as copies, of COLD_NOBODY, so that they are handed out again. HILL_E_DAMAGED:
 * there is no such slot, or it is held by another; HILL_E_NOSPACE. The list is to be released then.
 */
int cold_map_hold(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t position);
int cold_map_recovered(struct cold_map *map, uint32_t list, uint32_t n);

/* This slot, a copy, is nobody's any more. */
void cold_map_disown(struct cold_map *map, uint32_t list, uint32_t slot);

/* Up to n slots for positions first, first + 1, ...: consecutive, in one stripe. Returns how many
 * (0: the reservation is used up); *slot the first of them, *order the order of their stripe. */
uint32_t cold_map_take(struct cold_map *map, uint32_t list, uint32_t first_position, uint32_t n,
                       uint32_t *slot, uint32_t *order);

/* The same for any positions, which need not follow one another. */
uint32_t cold_map_take_positions(struct cold_map *map, uint32_t list, const uint32_t *positions,
                                 uint32_t n, uint32_t *slot, uint32_t *order);

/* How many copies of the list are more than are kept. */
uint32_t cold_map_spare(const struct cold_map *map, uint32_t list);

/* Up to n of the spare copies' slots, ascending, for these positions in this order; lost: the
 * positions whose copies they were. Returns how many. */
uint32_t cold_map_reuse(struct cold_map *map, uint32_t list, const uint32_t *positions, uint32_t n,
                        uint32_t *slots, uint32_t *lost);

/* How many slots the next cold_map_take can give at most. */
uint32_t cold_map_room(const struct cold_map *map, uint32_t list);

/* A held slot of a recovered list is nobody's any more. */
void cold_map_drop(struct cold_map *map, uint32_t list, uint32_t slot);

/* These slots count from now on. */
void cold_map_commit(struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n);

/* This committed slot does not count any more: a copy. */
void cold_map_uncommit(struct cold_map *map, uint32_t list, uint32_t slot);

/* The position at a committed slot of the list, whatever drive it is on, COLD_NONE otherwise. slot
 * may be anything. */
uint32_t cold_map_position(const struct cold_map *map, uint32_t list, uint64_t slot);

/* The same of n slots of the map from this one on, all of one stripe. */
void cold_map_positions(const struct cold_map *map, uint32_t list, uint32_t slot, uint32_t n,
                        uint32_t *positions);

/* Which of the n slots from this one on, at most 64 of one stripe, all handed out, count: as
 * bits. */
uint64_t cold_map_counting(const struct cold_map *map, uint32_t slot, uint32_t n);

/* The position at a slot that was handed out; COLD_NOBODY. */
uint32_t cold_map_taken_position(const struct cold_map *map, uint32_t slot);
