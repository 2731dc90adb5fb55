/*
 * cpu_scorer/share_out.h - a drive that has come gets its share of what is cold already.
 *
 * What: with several drives, entries of a sequence that an earlier epoch has left lie as they were
 * dealt then. A layer's entries are carried (carry.h) from the drive that has most beyond its share
 * to the one that lacks most, a batch at a time, until no drive has a batch more than its share, or
 * none that has room lacks a batch; what goes down afterwards is dealt by shares anyway. A batch
 * takes the sequence's own staging slots alone: no SEQ_BEGIN is refused for it. Selections do not
 * depend on it. Who calls it: scorer.c. Failure: what cannot be read or has no place stays, and the
 * sequence is as it is.
 */
#pragma once

#include "cpu_scorer/carry.h"

struct share_out {
    struct core *core;
    struct carry *carry;
    bool carries; /* the batch that is under way is this one's */
    uint64_t
        over[KV_MAX_SEQUENCES]; /* request whose drives have their shares, or stay as they are */
    uint32_t next;              /* list: whose turn it is */
};

void share_out_init(struct share_out *p, struct core *core, struct carry *carry);
/* Only while no query is past AWAIT. 1, 0. */
int share_out_pump(struct share_out *p);
