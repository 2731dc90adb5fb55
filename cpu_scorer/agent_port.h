/*
 * cpu_scorer/agent_port.h - the port to the CSD agent: its four rings, its commands, its silence.
 *
 * What: modules above reserve a command, fill it and publish it; what comes back is checked [I20],
 * counted and handed to who asked for it (agent_on). Every payload byte of the agent's two rings
 * is a Score Block's tuples (link_score), a fixed header or a completion (control), or, being
 * nothing of these, counted as link_key. A raw key that came over would show there, as do those
 * that READ_KEYS brings on purpose (completions say how many bytes) [I19].
 * Who calls it: the data thread. Failure: an agent that is silent past the deadline with commands
 * open is given up until the next epoch. A peer seen gone is only silent: the coordinator brings a
 * new epoch.
 */
#ifndef HILL_CPU_SCORER_AGENT_PORT_H
#define HILL_CPU_SCORER_AGENT_PORT_H

#include "cpu_scorer/core.h"

/* A completion of a command of this type, or a Score Block. */
typedef void agent_handler(void *context, const void *record);

#define AGENT_TYPES 64u /* of records */

struct agent {
    struct core *core;
    struct {
        agent_handler *take;
        void *context;
    } handlers[AGENT_TYPES]; /* by the command's type; RECORD_SCORE_BLOCK: of those */
    uint64_t next_tag;
    uint32_t commands_open; /* commands without a completion */
    int64_t heard_ns;       /* last sign of life while commands are open */
    int status; /* negative: the agent did not answer in time; no command is sent any more */
    uint64_t control_bytes; /* completions and Score Block headers */
};

void agent_init(struct agent *a, struct core *core);
void agent_on(struct agent *a, uint32_t type, agent_handler *take, void *context);

/* Room in the command ring: 1; 0: none now; negative: the ring is damaged or the agent lost. */
int agent_reserve(struct agent *a, uint32_t bytes, void **payload);
/* The command that was reserved goes out; so does a DEMOTE, in the background ring. */
void agent_publish(struct agent *a, enum layout_ring ring, uint32_t type, uint32_t bytes);
uint64_t agent_tag(struct agent *a);

/* A COMMIT or RELEASE of these slots. 0, or an error. */
int agent_push_slots(struct agent *a, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n);
/* 0, or HILL_E_WOULD_BLOCK. */
int agent_trim(struct agent *a, struct sequence *s);

/* Take what the agent has sent: 1, 0, or an error. */
int agent_pump(struct agent *a);

/* Sleep until the doorbell moves on from `seen`, at most until due_ns (0: none) or the agent's
 * deadline; busy: a query is under way, look out for a moment first. 0, or HILL_E_CANCELLED. The
 * only place where the data thread sleeps. */
int agent_pause(struct agent *a, uint32_t seen, int64_t due_ns, bool busy);

#endif
