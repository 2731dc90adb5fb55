/*
 * cpu_scorer/drain.h - a drive is emptied while requests decode.
 *
 * What: from drain_begin on no sequence is given room on the drive, and what lies there is carried
 * away (carry.h), the newest entries of a layer first, a batch at a time.
 * The only drive: its entries come up. Each sequence gets hot blocks for all of its tokens, as far
 * as M_0 has them unreserved: those that do are hot for good and give their stripes back; of the
 * others the newest entries are hot and the rest stays on the drive, where their new entries go as
 * well. One of several: its entries go to the others, where these have as many stripes to spare as
 * the sequence has on the drive; else up, where M_0 has blocks for all of its tokens. That is found
 * out for all sequences before anything moves: where one has no place for what it has there,
 * nothing changes, the drive takes entries again, and the answer says how much has none. What rests
 * is carried nowhere: it goes (`clears`) where all others have a place, its room included. Who
 * calls it: scorer.c, which has that go, and before what an earlier epoch has left. Failure: an
 * entry that cannot be read stays where it is, and with it all that its request has on the drive
 * then; a query that selects it fails its request, as it would have. A DEMOTE to another drive that
 * fails fails its request, whose end empties the drive of it.
 */
#pragma once

#include "cpu_scorer/carry.h"

struct drain {
    struct core *core;
    struct agent *agent;
    struct carry *carry;
    uint32_t drive;
    bool planned;              /* of several: every sequence has a place for what it has there */
    bool clears;               /* of several: they have, once what rests has gone */
    bool carries;              /* the batch that is under way is this one's */
    bool up[KV_MAX_SEQUENCES]; /* it is hot for good; else it goes to the other drives */
    uint64_t spoilt[KV_MAX_SEQUENCES]; /* request with an entry that cannot be read; 0: none */
    uint32_t next;                     /* list: whose turn it is */
    struct scorer_drained done;
    bool on, told, told_over;
};

void drain_init(struct drain *d, struct core *core, struct agent *agent, struct carry *carry);
void drain_begin(struct drain *d, uint32_t drive);
/* Only while no query is past AWAIT. 1, 0. */
int drain_pump(struct drain *d);
