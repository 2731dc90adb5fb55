/*
 * coordinator/router.h - the coordinator's three sockets, and one table of who may send what to
 * whom.
 *
 * What: binds worker.sock, heartbeat.sock and control.sock in the run folder; receives, finds the
 * row of {message, sender} and calls its handler; sends to workers and clients. Supervisor and
 * service register their rows (supervisor.h, service.h); nobody else reads a socket. Who calls it:
 * the coordinator's pipeline, supervisor and service. Concurrency: one thread. Failure: a message
 * that is malformed, of nobody known or in no row of its sender is counted, answered with a Reply,
 * and otherwise without effect.
 */
#pragma once

#include "coordinator/worker_table.h"

/* Senders of a row, as bits. */
enum sender {
    FROM_GPU = 1u << WORKER_GPU,
    FROM_SCORER = 1u << WORKER_SCORER,
    FROM_AGENT = ((1u << LAYOUT_DRIVES_MAX) - 1) << WORKER_AGENT, /* any of them */
    FROM_WORKERS = FROM_GPU | FROM_SCORER | FROM_AGENT,
    FROM_NEWCOMER = 1u << WORKER_COUNT, /* on worker.sock, of no known address */
    FROM_HEARTBEATS =
        1u << (WORKER_COUNT + 1), /* on heartbeat.sock, which has addresses of its own */
    FROM_CLIENT = 1u << (WORKER_COUNT + 2),
};

/* A message that has come; its handler may keep it (and set message to NULL). */
struct arrival {
    Hill__Message *message;
    struct proto_address from;
    enum worker worker; /* who sent it; WORKER_COUNT: no known worker */
};

struct route {
    Hill__Message__BodyCase body;
    unsigned senders;
    void (*take)(void *owner, struct arrival *arrival);
};

#define ROUTER_TABLES 2u

struct router {
    void *context, *worker_socket, *heartbeat_socket, *control_socket;
    const struct worker_table *workers; /* for their addresses */
    struct {
        const struct route *rows;
        unsigned count;
        void *owner;
    } tables[ROUTER_TABLES];
    uint64_t malformed, bad_heartbeats; /* bad_heartbeats: of malformed */
};

/* 0, or HILL_E_NOMEM, HILL_E_IO. */
int router_open(struct router *r, const char *folder, const struct worker_table *workers,
                struct hill_why *why);
void router_close(struct router *r); /* safe on a zeroed struct */

/* Handlers of `owner`; at most ROUTER_TABLES times. */
void router_register(struct router *r, const struct route *rows, unsigned count, void *owner);
/* Take what has arrived, heartbeats first: whoever is checked for silence has been heard out. */
void router_turn(struct router *r);

/* HILL_E_PEER_GONE: it is not there. */
int router_to_worker(struct router *r, enum worker w, const Hill__Message *message);
int router_to_client(struct router *r, const struct proto_address *to,
                     const Hill__Message *message);
/* A Reply to a client. */
int router_reply(struct router *r, const struct proto_address *to, int code, const char *text);
/* A worker's message is counted as out of place, and answered so. */
void router_refuse(struct router *r, const struct proto_address *from, const char *text);
