/*
 * gpu_worker/dataplane.h - this worker's ends of the rings and its view of the staging arena, for
 * one epoch.
 *
 * Writes: append and query ring. Reads: selection ring, staging arena, hot pool. Sleeps on the GPU
 * doorbell. What comes in is checked before it is returned: whole (record_check), of this epoch
 * (others are dropped), within tables. Every wait has a deadline and calls `waiting`, which empties
 * what comes in meanwhile and whose error ends the wait. Failure: HILL_E_PEER_GONE (the scorer
 * died: a new epoch will come), HILL_E_TIMEOUT, HILL_E_PROTOCOL (a malformed record, which is
 * dropped), HILL_E_DAMAGED, or what `waiting` said. Who calls it: worker.c, schedule.c, step.c,
 * request.c. Concurrency: one thread.
 */
#ifndef HILL_GPU_WORKER_DATAPLANE_H
#define HILL_GPU_WORKER_DATAPLANE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/layout.h"
#include "proto/records.h"
#include "shm/arena.h"

struct dataplane_settings {
    uint64_t run_id;
    uint32_t epoch;
    struct layout_input layout;
    int (*waiting)(void *context, struct hill_why *why);
    void *context;
};

struct dataplane {
    struct dataplane_settings settings;
    struct shm_segment rings, staging, hot;
    struct shm_ring_end append, query, selection;
    struct shm_arena arena;
    struct shm_doorbell *bell;
    uint64_t dropped; /* records of another epoch or query */
    bool holding;     /* records are staged, see dataplane_hold */
};

/* Map the epoch's segments; bell is valid from here on, so that control messages can ring it. */
int dataplane_attach(struct dataplane *plane, const struct dataplane_settings *settings,
                     struct hill_why *why);
/* Map the hot pool too, to read from; it goes with the rest. */
int dataplane_attach_hot(struct dataplane *plane, struct hill_why *why);
/* Open the rings and the arena, waiting for the scorer to lay them out. */
int dataplane_open(struct dataplane *plane, int64_t deadline_ns, struct hill_why *why);
/* Safe on a zeroed struct. */
void dataplane_detach(struct dataplane *plane);

/* Room for a record in a ring, waiting for it (what is held back goes out first); publish with
 * dataplane_publish. */
int dataplane_reserve(struct dataplane *plane, struct shm_ring_end *ring, uint32_t bytes,
                      void **payload, int64_t deadline_ns, struct hill_why *why);
int dataplane_push(struct dataplane *plane, struct shm_ring_end *ring, uint32_t type,
                   const void *record, uint32_t bytes, int64_t deadline_ns, struct hill_why *why);

void dataplane_publish(struct dataplane *plane, struct shm_ring_end *ring, uint32_t type,
                       uint32_t bytes);

/* From here to dataplane_flush records are only staged: a step's records for the scorer wake it
 * once and not once each, which would cost a switch of threads each where it lands on this CPU. */
void dataplane_hold(struct dataplane *plane);
void dataplane_flush(struct dataplane *plane);

/* The next record of this epoch in the selection ring, or HILL_E_WOULD_BLOCK. The payload is valid
 * until shm_ring_release of the ring, which the caller owes. */
int dataplane_next(struct dataplane *plane, uint32_t *type, const void **payload,
                   struct hill_why *why);

/* Are the uploads' staging slots of the generation that the selection said? Asked before they are
 * read and again afterwards: HILL_E_PROTOCOL when one is not. */
int dataplane_check_staged(const struct dataplane *plane, const struct selected_upload *uploads,
                           uint32_t n, struct hill_why *why);

/* Sleep until the bell rings (true) or the deadline, at most 100 ms; spins a little first. seen: of
 * dataplane_seen. */
uint32_t dataplane_seen(const struct dataplane *plane);
bool dataplane_sleep(const struct dataplane *plane, uint32_t seen, int64_t deadline_ns);

#endif
