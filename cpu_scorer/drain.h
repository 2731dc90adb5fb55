/*
 * cpu_scorer/drain.h - the drive is emptied while requests decode.
 *
 * What: from drain_begin on no sequence is given room on the drive, and what lies there comes up, a
 * batch at a time: the newest cold entries of a layer are fetched into free staging slots, become
 * hot, and the drive is told (RELEASE). A query may come meanwhile; it waits in AWAIT until the
 * batch is over [I4], so an answer is late by one batch at most. Each sequence gets hot blocks
 * for all of its tokens, as far as M_0 has them unreserved: those that do are hot for good and give
 * their stripes back; of the others the newest entries are hot and the rest stays on the drive, where
 * their new entries go as well. Selections do not depend on any of it.
 * Who calls it: scorer.c. Failure: an entry that cannot be read stays where it is, and with it all
 * that its request has on the drive then; a query that selects it fails its request, as it would
 * have. An agent that never answers keeps the batch's staging slots, which nobody has set aside but
 * the sequence that fails with it [I9].
 */
#ifndef HILL_CPU_SCORER_DRAIN_H
#define HILL_CPU_SCORER_DRAIN_H

#include "cpu_scorer/moves.h"

#define DRAIN_BATCH 64u /* entries: a quarter of a millisecond of a drive that reads 1 GB/s */

struct drain {
    struct core *core;
    struct agent *agent;
    struct {
        agent_handler *take;
        void *context;
    } queries; /* whose the other FETCHes are */
    /* the batch under way */
    uint32_t sequence, layer, n;
    uint64_t request_id, tag; /* tag 0: no FETCH is out */
    uint32_t borrowed; /* of its staging slots: beyond those that the sequence has set aside */
    uint32_t positions[DRAIN_BATCH], slots[DRAIN_BATCH], staging[DRAIN_BATCH];
    bool fetched;
    int status;
    uint64_t spoilt[KV_MAX_SEQUENCES]; /* request with an entry that cannot be read; 0: none */
    uint32_t next;                     /* list: whose turn it is */
    struct scorer_drained done;
    bool told, told_over;
};

/* After the queries have been created: FETCHes are told apart here. */
void drain_init(struct drain *d, struct core *core, struct agent *agent);
void drain_begin(struct drain *d);
/* Only while no query is past AWAIT. 1, 0. */
int drain_pump(struct drain *d);

#endif
