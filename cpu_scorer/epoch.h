/*
 * cpu_scorer/epoch.h - one epoch of the data plane: segments attached, rings laid out and opened,
 * scorer made.
 *
 * What: turns a Configure message into a running scorer, and takes it down again. The scorer lays
 * out rings and staging for everybody and owns the hot segment. Who calls it: main.c, one at a
 * time. Failure: every number of the message is checked against the segments that are really there;
 * the reason is in why, and nothing stays attached.
 */
#ifndef HILL_CPU_SCORER_EPOCH_H
#define HILL_CPU_SCORER_EPOCH_H

#include "cpu_scorer/scorer.h"
#include "proto/hill.pb-c.h"
#include "proto/recording.h"
#include "shm/segment.h"

struct epoch {
    struct shm_segment rings, staging, hot;
    struct shm_ring_end ends[RING_COUNT];
    struct shm_arena arena;
    uint8_t *key_windows; /* behind the arena; NULL: none */
    struct scorer *scorer;
    struct trace_writer *trace;  /* NULL: none */
    struct recording *recording; /* of the rings; NULL: none */
    struct shm_doorbell *bell;
};

/* The pipeline's part of a Configure, checked. */
int epoch_config(struct scorer_config *out, const Hill__Configure *c, struct hill_why *why);

int epoch_open(struct epoch *e, const Hill__Configure *c, const struct scorer_hooks *hooks,
               struct hill_why *why);
/* Safe on a zeroed struct. */
void epoch_close(struct epoch *e);

/* Bytes of M_0 that this process holds: hot segment, staging, private buffers. */
uint64_t epoch_resident_bytes(const struct epoch *e);

#endif
