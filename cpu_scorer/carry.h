/*
 * cpu_scorer/carry.h - cold entries are carried away from where they lie, a batch at a time: up
 * into the hot pool, or over to another drive.
 *
 * What: FETCH brings a batch of one layer into free staging slots. A query that comes meanwhile
 * waits in AWAIT [I4], so an answer is late by one batch at most. Up: the entries become hot and
 * the drive is told (RELEASE). Over: they go out as a DEMOTE to the drive that lacks most of its
 * share (cold_map_deal), staging is free again and queries go on; its completion brings COMMIT on
 * the one drive, RELEASE on the other, and the flip (demotion.h). Until then nothing else of the
 * layer moves. While MOVES_OPEN_MAX of them are out none is fetched. Selections do not depend on
 * any of it. Who calls it: drain.c and share_out.c, which say what is carried, one batch at a time.
 * Failure: an entry that cannot be read, and what has no place any more, stays where it is. A
 * DEMOTE that fails fails its request, as any does: what it has on the drive goes when it ends. An
 * agent that never answers keeps the batch's staging slots, which nobody has set aside but the
 * sequence that fails with it [I9].
 */
#pragma once

#include "cpu_scorer/moves.h"

#define CARRY_BATCH MOVES_DOWN /* a quarter of a millisecond of a drive that reads 1 GB/s */

enum carry_phase {
    CARRY_NONE,
    CARRY_FETCHES, /* until the FETCH's completion */
    CARRY_LANDS,   /* fetched: until it is hot, or out to the other drive */
    CARRY_OVER,    /* whoever ordered the batch takes its result: carry_end */
};

struct carry {
    struct core *core;
    struct agent *agent;
    struct demotions *demotions;
    struct {
        agent_handler *take;
        void *context;
    } queries; /* whose the other FETCHes are */
    /* the batch */
    enum carry_phase phase;
    bool up;
    uint32_t sequence, layer, drive, n, landed;
    uint64_t request_id, tag;
    uint32_t borrowed; /* of its staging slots: beyond those that the sequence has set aside */
    uint32_t positions[CARRY_BATCH], slots[CARRY_BATCH], staging[CARRY_BATCH];
    int status; /* why what has not landed stays */
};

/* After the queries have been created: FETCHes are told apart here. */
void carry_init(struct carry *c, struct core *core, struct agent *agent,
                struct demotions *demotions);

/* How many staging slots a batch of this sequence may take now: of its own, and where it `borrows`
 * of those that nobody has set aside, so that a SEQ_BEGIN that comes may find too few. */
uint32_t carry_room(const struct carry *c, const struct sequence *s, uint32_t drive, bool borrows);
/* Carry up to n of the layer's cold entries on this drive, no more than carry_room, the newest of
 * those below the batch before (cold_end of the layer), which has been through what lies above: 1,
 * or 0: there are none, or no room now. None is under way. */
int carry_start(struct carry *c, struct sequence *s, uint32_t layer, uint32_t drive, bool up,
                uint32_t n);
/* Only while no query is past AWAIT. 1, 0. */
int carry_pump(struct carry *c);
/* The batch that is over: `landed` of its entries have left the drive, or are on their way to
 * another one; `status` why not all. */
void carry_end(struct carry *c);
