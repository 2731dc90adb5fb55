/*
 * cpu_scorer/demotion.h - entries on their way down: DEMOTE, its completion, COMMIT, flip
 * [I2].
 *
 * What: DEMOTE on the background ring (a copy of entry and plane), its completion (the copy is on
 * flash), COMMIT on the command ring and the location word's flip, then the hot slot is free. The
 * commit precedes every later query on the same ring, and both happen only while no query is
 * scored: agent and scorer cut at the same place [I4]. An entry that has moved up (moves.h) leaves
 * its copy where it was; to go down again it needs the COMMIT alone. Copies beyond what is kept
 * (cold_map.h) give their slots to entries that go down without one, and to new ones where no other
 * slot is left: a scattered DEMOTE, which the agent sees after the RELEASE of those slots. An entry
 * that goes from one drive to another (carry.h) does as one from the hot pool, but that its flip
 * frees a slot of the other drive, by RELEASE.
 * Who calls it: whatever places or moves entries; data thread alone. Failure: a DEMOTE that fails
 * fails its request.
 */
#pragma once

#include "cpu_scorer/evaluator.h"

#define MAX_DEMOTES 128u /* DEMOTE commands in flight; the index is the low byte of their tag */
/* DEMOTEs in flight of what is not new, from hot or a drive, below which another may begin: bulk
 * must not delay what a query waits for. What is in staging goes out all the same. */
#define MOVES_OPEN_MAX 4u
#define MOVE_TOKENS_MIN                                                                            \
    4u /* over the target before moving: one more or less is not worth a record of its own */

enum demote_from { DEMOTE_NEW, DEMOTE_HOT, DEMOTE_DRIVE };

struct demote {
    uint64_t tag;
    uint32_t sequence, layer, first_slot, n;
    enum demote_from from;
    bool used, done;
    bool scattered; /* into slots of copies: `slots`, else first_slot and those after it */
    uint32_t slots[MOVES_DOWN];
};

struct demotions {
    struct core *core;
    struct agent *agent;
    struct evaluator *evaluator;
    struct demote items[MAX_DEMOTES];
    uint32_t slots_max;  /* of one DEMOTE, within what the ring takes */
    uint32_t n, n_moves; /* in use; of them not new and not written yet */
};

/* HILL_E_INVALID: the ring takes no DEMOTE at all. */
int demotions_init(struct demotions *d, struct core *core, struct agent *agent,
                   struct evaluator *evaluator, struct hill_why *why);

/* Send up to n tokens (entries, from `first`) straight to the cold pool; returns how many, 0: no
 * room now. */
uint32_t demote_entries(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t first,
                        uint32_t n, const uint8_t *entries);
/* One token again, whose slot was lost. False: no room now. */
bool demote_again(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t position,
                  const uint8_t *entry);
/* The same from the hot pool, for any hot positions, counted as a move of the layer: into slots of
 * copies that are not kept any longer, while there are such, else behind the layer's others. */
uint32_t demote_hot(struct demotions *d, struct sequence *s, uint32_t layer,
                    const uint32_t *positions, uint32_t n);

/* The same from another drive: the first of n cold entries, whose bytes lie in these staging slots
 * and which are counted as a move of the layer already. */
uint32_t demote_staged(struct demotions *d, struct sequence *s, uint32_t layer,
                       const uint32_t *positions, const uint32_t *staging, uint32_t n);
/* Is something of the sequence on its way to this drive? */
bool demotions_to(const struct demotions *d, const struct sequence *s, uint32_t drive);

/* Commit and flip what has arrived below. Only while no query is scored. */
int demotions_pump(struct demotions *d);
/* Drop the sequence's demotions whose completion will not come any more. */
void demotions_forget(struct demotions *d, const struct sequence *s);
