/*
 * csd_agent/listen.h - the drive's part of an agent on another host: hill-csd-agent --listen.
 *
 * What: waits for an agent that relays (relay.h), and serves it with the same data plane as a local
 * one: rings and staging of its own, in private memory, which this file fills and empties as the
 * scorer would. The pool, the device that scores and the threads are this host's, by its own
 * options; geometry, caps and the device model come with Configure. One agent at a time. When it is
 * lost, or sends what it may not, the session ends: the pool is closed, and the next agent finds it
 * as one whose agent was killed (its entries are adopted). Who calls it: main.c. Concurrency: one
 * data loop, and the link's thread. Failure: a session's end is a line in the log; the process ends
 * on SIGTERM or when it cannot listen.
 */
#pragma once

#include <stdbool.h>

#include "csd_agent/agent.h"
#include "proto/drive_link.h"

/* Was --listen, or what goes with it, asked for? */
bool listen_is_asked(int argc, char **argv);
/* The process from its options to its end; its exit code. */
int listen_main(int argc, char **argv);

/* The two directions alone, for tests and fuzzers: an epoch over private memory. */
struct listener_epoch {
    struct party scorer; /* the scorer's ends, which are played here */
    bool open;
    uint32_t epoch;
    struct listener_read *reads; /* FETCHes and READ_KEYS that are not answered */
    uint32_t sent;               /* of the first answered one: entries or bytes that have gone */
};
int listener_epoch_open(struct listener_epoch *e, struct party *agent,
                        const struct epoch_settings *s, struct hill_why *why);
void listener_epoch_close(struct listener_epoch *e);
/* A RECORD from the agent into its ring. HILL_E_PROTOCOL: it may not be. */
int listener_take_record(struct listener_epoch *e, const struct drive_message *m,
                         struct hill_why *why);
