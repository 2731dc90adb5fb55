/*
 * gpu_worker/dataplane.h - this worker's ends of the rings and its view of the staging arena, for
 * one epoch.
 *
 * Writes: append and query ring. Reads: selection ring, staging arena, hot pool. Sleeps on the GPU
 * doorbell. What comes in is checked before it is returned: whole (record_check), of this epoch
 * (others are dropped), within tables. Every wait has a deadline and calls `waiting`, which empties
 * what comes in meanwhile and whose error ends the wait. Failure: HILL_E_PEER_GONE (the scorer
 * died: a new epoch will come), HILL_E_TIMEOUT, HILL_E_PROTOCOL (a malformed record, which is
 * dropped), HILL_E_DAMAGED, or what `waiting` said. Who calls it: the GPU worker's loop, and
 * whatever has a record to send. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/party.h"
#include "proto/records.h"

struct dataplane {
    struct party party;
    struct shm_ring_end *append, *query, *selection; /* of the party */
    uint32_t epoch;
    int (*waiting)(void *context, struct hill_why *why);
    void *context;
    uint64_t dropped; /* records of another epoch or query */
    bool holding;     /* records are staged, see dataplane_hold */
};

/* Enter the epoch: its segments are mapped and party.bell is valid; open waits for the scorer to
 * lay out rings and arena. waiting is called in every wait, from here on. */
int dataplane_attach(struct dataplane *plane, const struct epoch_settings *settings,
                     int (*waiting)(void *context, struct hill_why *why), void *context,
                     struct hill_why *why);
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
