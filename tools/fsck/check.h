/*
 * tools/fsck/check.h - all of a cold pool, looked at once.
 *
 * What: pool_survey for superblock and directory, then each slot that counts. Who calls it: main.c,
 * tests. Ownership: nothing. Failure: HILL_E_DAMAGED and others for what cannot be looked at at all
 * (no pool, a damaged superblock, a file that is too short); what is damaged or cannot be read
 * within is counted, and named on stdout unless quiet. Concurrency: one thread.
 */
#pragma once

#include "pool/pool.h"

#define POOL_CHECK_LINES 20u /* of a kind */

struct pool_check {
    bool quiet;
    /* out */
    struct pool_layout layout;
    struct pool_identity identity;
    uint64_t generation;
    uint32_t stripes;                               /* in use */
    uint64_t slots;                                 /* that count */
    uint64_t bad_records, bad_entries, bad_digests; /* digests, or keys in their place */
    uint64_t bad_stripes;                           /* that cannot be read */
    uint64_t
        twice; /* stripes of one order, or slots of one position, of the same (sequence, layer) */
};

int pool_check_file(struct pool_check *check, int fd, struct hill_why *why);
