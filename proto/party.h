/*
 * proto/party.h - the one road from the settings of an epoch into it, the same for every process.
 *
 * What: epoch_create makes the segments of an epoch (the coordinator; a replay that stands in for
 * it). A party is one process's part in the epoch: party_attach maps the segments that it uses and
 * finds the key windows; party_open lays rings and staging out (the scorer, which takes part in
 * every ring) or waits until the scorer has, and opens this party's ends; party_leave gives all of
 * it back. A replay plays over private memory: party_attach_alone, then party_open as the scorer,
 * and party_beside for the parties it stands in for. Segments and rings: proto/layout.h.
 *
 *     coordinator                 scorer                        GPU worker, agent
 *     epoch_create                party_attach                  party_attach
 *     Configure to all    ->      party_open: lays out    ->    party_open: waits for the layout
 *     epoch_unlink                party_leave                   party_leave
 *
 * Who calls it: coordinator, the three workers, their replays, test rigs. Concurrency: one thread a
 * party. Failure: each number is checked against the memory that is really there; the reason is in
 * why, and nothing stays mapped. A wait ends at its deadline, or with what `waiting` says.
 */
#pragma once

#include "proto/epoch_settings.h"
#include "shm/arena.h"
#include "shm/doorbell.h"

struct party {
    enum layout_party who;
    uint32_t drive; /* of PARTY_AGENT */
    struct layout_input layout;
    uint32_t staging_slots;
    bool agent_rings; /* those of the agents are opened */
    bool borrowed;    /* the segments are another party's */
    struct shm_segment rings, staging;
    struct shm_segment hot;    /* the scorer's; others: party_attach_hot */
    struct shm_segment prompt; /* the GPU worker's: party_attach_prompt */
    /* this party's; .ring is NULL where it has none; an agent's: as if its drive were the first */
    struct shm_ring_end ends[LAYOUT_RINGS_MAX];
    struct shm_arena arena;    /* the scorer owns it, others view it */
    struct shm_doorbell *bell; /* this party's; NULL: not attached */
    uint8_t *key_windows;      /* [KV_KEY_WINDOWS][key_window_bytes]; NULL: none */
    uint32_t key_window_bytes;
};

/* What a party does while it waits for the scorer's layout; an error ends the wait. */
struct party_wait {
    int (*waiting)(void *context, struct hill_why *why); /* NULL: nothing */
    void *context;
    int64_t deadline_ns;
};

/* ---- segments ---- */

/* Create the segments of s->epoch: rings and staging; hot (unless s->hot_bytes is 0) and prompt,
 * without pages, unless they are kept (s->tiers_epoch); hot on NUMA nodes and huge pages. Those
 * that are there already go on failure: HILL_E_NOSPACE when /dev/shm has no room. */
int epoch_create(const struct epoch_settings *s, struct hill_why *why);
/* Remove the names of all that were made in this epoch; also of those that are not there. */
void epoch_unlink(uint64_t run_id, uint32_t epoch);
/* Of rings and staging alone: the others are kept for an epoch to come. */
void epoch_unlink_data(uint64_t run_id, uint32_t epoch);
/* Memory that the others take; not there: none. */
uint64_t epoch_held_bytes(uint64_t run_id, uint32_t epoch);
/* Is the hot segment of s->tiers_epoch there, and as these settings have it? 0, or why not. */
int epoch_kept(const struct epoch_settings *s, struct hill_why *why);

/* ---- parties ---- */

/* Map rings and staging (the scorer: hot too), written by others already. bell is valid from here
 * on, so that control messages can ring it. As shm_segment_attach; HILL_E_DAMAGED: too small for
 * its rings; HILL_E_INVALID: no room for the staging slots or the key windows. */
int party_attach(struct party *p, enum layout_party who, const struct epoch_settings *s,
                 struct hill_why *why);
/* The scorer's part over private memory of these sizes, which no other process sees. As
 * shm_segment_private, and as above. */
int party_attach_alone(struct party *p, const struct epoch_settings *s, struct hill_why *why);
/* Map the hot pool, to be read only. As shm_segment_attach. */
int party_attach_hot(struct party *p, const struct epoch_settings *s, struct hill_why *why);
/* Map the prompt segment, whose pages are still to be filled (shm_segment_fill). As
 * shm_segment_attach. */
int party_attach_prompt(struct party *p, const struct epoch_settings *s, struct hill_why *why);
/* Lay out (scorer) or wait for the layout, and open this party's ring ends and the arena. wait may
 * be NULL for the scorer. Without a drive the scorer does not open the agent's rings. Scorer: as
 * shm_arena_init, shm_arena_own and layout_init. Others: HILL_E_TIMEOUT at the deadline, what
 * `waiting` says, HILL_E_DAMAGED for staging slots that hold no entry, and as layout_open. */
int party_open(struct party *p, const struct party_wait *wait, struct hill_why *why);
/* The other side's ends over the memory of p, which is open and outlives this. As party_open, but
 * HILL_E_WOULD_BLOCK where the layout is not there. */
int party_beside(struct party *out, enum layout_party who, const struct party *p,
                 struct hill_why *why);
/* Close and unmap. Safe on a zeroed struct, which it leaves. */
void party_leave(struct party *p);
