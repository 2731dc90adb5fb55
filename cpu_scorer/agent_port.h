/*
 * cpu_scorer/agent_port.h - the port to the drives' agents: their rings, commands, silence.
 *
 * What: each drive has an agent with four rings. Modules above it name a drive, reserve a command
 * in its ring, fill it and publish it; in a command slots have the drive's own numbers
 * (agent_slot), in all tables those of cold_map.h. COMMIT and RELEASE are split here by drive. What
 * comes back is checked [I20], counted and handed to who asked for it (agent_on). Every payload
 * byte of the agent's two rings is a Score Block's tuples (link_score), a fixed header or a
 * completion (control), or, being nothing of these, counted as link_key. A raw key that came over
 * would show there, as do those that READ_KEYS brings on purpose (completions say how many bytes)
 * [I19]. Who calls it: the data thread. Failure: where an agent is silent past the deadline with
 * commands open, the port is given up until the next epoch, with all drives: nearly every sequence
 * has entries on each of them, and the coordinator has found a process that stands still long
 * before. A peer seen gone is only silent: the coordinator brings a new epoch.
 */
#pragma once

#include "cpu_scorer/core.h"

/* A completion of a command of this type, or a Score Block. */
typedef void agent_handler(void *context, const void *record);

#define AGENT_TYPES 64u /* of records */

/* Of one drive. */
struct agent_line {
    uint32_t commands_open; /* commands without a completion */
    int64_t heard_ns;       /* last sign of life while commands are open */
    int64_t done_ns;        /* when it last answered a query, FETCH or READ_KEYS, or left a rest */
    int64_t moved_ns;       /* when it last answered another command */
};

/* What a drive's commands of a kind took, of late. */
struct agent_cost {
    double ns, entries;
};

struct agent {
    struct core *core;
    uint32_t n_drives; /* places */
    uint32_t n_there;  /* of them with a drive */
    struct agent_line lines[LAYOUT_DRIVES_MAX];
    uint32_t from; /* while a record is being handled: the drive that has sent it */
    struct {
        agent_handler *take;
        void *context;
    } handlers[AGENT_TYPES]; /* by the command's type; RECORD_SCORE_BLOCK: of those */
    uint64_t next_tag;
    int status; /* negative: an agent did not answer in time; no command is sent any more */
    struct agent_cost fetches, writes; /* of FETCH and DEMOTE */
    uint64_t control_bytes;            /* completions and Score Block headers */
};

/* When (clock_now_ns) the drive of `from` began with the query that r answers, which was asked at
 * since. A drive reads for one query or FETCH after the other. A real one writes between them; a
 * modelled one scores while its flash is written. */
int64_t agent_began(const struct agent *a, const struct record_completion *r, int64_t since);

void agent_init(struct agent *a, struct core *core);
void agent_on(struct agent *a, uint32_t type, agent_handler *take, void *context);

/* Room in a drive's command ring: 1; 0: none now; negative: the ring is damaged or the agent
 * lost. */
int agent_reserve(struct agent *a, uint32_t drive, uint32_t bytes, void **payload);
/* The command that was reserved goes out; so does a DEMOTE, in the background ring. */
void agent_publish(struct agent *a, uint32_t drive, enum layout_ring ring, uint32_t type,
                   uint32_t bytes);
uint64_t agent_tag(struct agent *a);
/* Entries that one FETCH may name. */
uint32_t agent_fetch_max(const struct agent *a, uint32_t drive);
/* A drive's own ring: RING_COMMAND or RING_BACKGROUND. All drives' are of one size. */
struct shm_ring_end *agent_ring(const struct agent *a, uint32_t drive, enum layout_ring ring);

/* Whose slot it is, and what its drive calls it. */
static inline uint32_t agent_drive(const struct agent *a, uint32_t slot)
{
    return cold_map_drive(&a->core->tiers.cold, slot);
}
static inline uint32_t agent_slot(const struct agent *a, uint32_t slot)
{
    const struct cold_map *cold = &a->core->tiers.cold;
    return slot - cold_map_base(cold, cold_map_drive(cold, slot));
}

/* Have all drives' command rings room for so many bytes? */
bool agent_has_room(struct agent *a, uint32_t bytes);
/* A COMMIT or RELEASE of these slots, to each drive that has some: to all, or, with an error, to
 * none. 0, or an error. */
int agent_push_slots(struct agent *a, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n);
/* To all drives; s->trims says to which. 0, or HILL_E_WOULD_BLOCK. */
int agent_trim(struct agent *a, struct sequence *s);
/* To this one, of a sequence that goes on; nobody waits for the completion. */
int agent_trim_drive(struct agent *a, struct sequence *s, uint32_t drive);
/* One of several drives, which has nothing to answer, is not there any more. */
void agent_leave(struct agent *a, uint32_t drive);

/* What a completion's status says of a request: what is damaged on the drive is an entry of it, or
 * its key. A drive that is offline, or the agent's own device, is not the GPU worker's. */
static inline int agent_status(int status)
{
    return status == HILL_E_DAMAGED ? HILL_E_ENTRY : status == HILL_E_NODEV ? HILL_E_IO : status;
}

/* What a command has read and written is counted as the request's: a part of the whole, where
 * others' share it. Of a FETCH whoever sent it does so. */
void agent_count(struct sequence *s, const struct record_completion *r, uint32_t part,
                 uint32_t whole);
/* And what a FETCH for a selection has taken, as the drive's time in a step. What READs and carried
 * batches take is no part of it: beta follows these times. */
void agent_count_time(const struct agent *a, struct sequence *s, const struct record_completion *r,
                      uint32_t part, uint32_t whole);

/* What writing an entry takes of the drives' time, over what fetching one does: as their
 * completions say; 0: not known yet. */
double agent_write_cost(const struct agent *a);

/* Take what the agent has sent: 1, 0, or an error. */
int agent_pump(struct agent *a);

/* Sleep until the doorbell moves on from `seen`, at most until due_ns (0: none) or the agent's
 * deadline. 0, or HILL_E_CANCELLED. The only place where the data thread sleeps. */
int agent_pause(struct agent *a, uint32_t seen, int64_t due_ns);
