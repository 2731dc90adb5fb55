/*
 * csd_agent/agent.h - the life of the agent between worker_link_open and worker_link_close.
 *
 * What: waits for Configure, attaches the epoch's segments, opens the pool, says Ready, then serves
 * the rings until the process is to stop. A Configure with a higher epoch may come at any time:
 * everything is dropped and opened again. When the scorer is gone the agent lets the segments go
 * and waits for the next Configure. Who calls it: main.c. Concurrency: the calling thread is the
 * data loop. Failure: what makes the agent useless is told to the coordinator (Failure, fatal) and
 * returned.
 */
#pragma once

#include "csd_agent/commands.h"
#include "proto/party.h"
#include "proto/worker_link.h"

/* Where the rings are no shared memory (listen.h). */
struct agent_host {
    void *context;
    /* The epoch's rings and staging, this party's ends open; and away with them, after the party
     * has left. */
    int (*attach)(void *context, struct party *party, const struct epoch_settings *s,
                  struct hill_why *why);
    void (*leave)(void *context);
    /* What has come, into rings and mailbox; what is in output rings, away. True: something moved.
     * Called each turn and while an output ring is full. */
    bool (*pump)(void *context);
    void (*set_doorbell)(void *context, struct shm_doorbell *bell);
};

/* 0 after an orderly stop, else the code of the failure (already logged and sent). host: NULL in a
 * pipeline. */
int agent_run(struct worker_link *link, const struct agent_host *host);

/* Of an epoch, the same for the replay: the pool under this URL, and the plane's part in it. */
int agent_open_pool(struct data_plane *plane, const struct epoch_settings *s, const char *url,
                    struct hill_why *why);
void agent_join(struct data_plane *plane, struct party *party, uint32_t epoch);
