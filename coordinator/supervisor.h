/*
 * coordinator/supervisor.h - the workers: their processes, the epochs they meet in, the drive that
 * comes and goes, and the end.
 *
 * What: starts and ends workers as worker_table.h says, creates and removes each epoch's segments,
 * configures who says Hello, changes the drive for a client, and ends everything in order. An
 * epoch is one set of segments: when a worker that knew it dies, the segments are unlinked, the
 * next epoch's are created, the survivors get a new Configure, and the dead worker gets its own at
 * Hello. The hot segment goes on to the next epoch while there are requests that can go on with
 * it; after a worker has died three times before it was Ready with it, or when a worker says that
 * it cannot work with it (a drive that is being attached has nothing of it), it is made anew. It
 * goes on to the next coordinator, too (tiers_record.h), which begins with the epoch after the
 * last. It knows no request: whoever has some (service.h) is told through the hooks. Who calls it:
 * pipeline.c (the loop), the service. Concurrency: one thread. Failure: no room for new segments
 * while survivors still map the old ones: all are ended first, then it is tried once more; what a
 * restart cannot cure ends the pipeline with that worker's line and code.
 */
#pragma once

#include "coordinator/router.h"
#include "coordinator/run_folder.h"
#include "coordinator/settings.h"
#include "coordinator/worker_process.h"

enum drive_change {
    CHANGE_NONE,
    /* for prompts under way, which would have to be read again, and for requests of a killed
       coordinator that come back to their entries */
    CHANGE_ATTACH_WAITS,
    CHANGE_ATTACH,       /* an agent was started for a new drive; until all are ready */
    CHANGE_DETACH_WAITS, /* as CHANGE_ATTACH_WAITS */
    CHANGE_DRAINS, /* the scorer empties the drive; until it says that it is done, or cannot */
    CHANGE_DETACH, /* the agent was told to end; until the others are ready without it */
    CHANGE_UNDO,   /* the new drive cannot be used: as CHANGE_DETACH, then the client is told why */
};

/* What the owner of the requests hears. */
struct supervisor_hooks {
    void *context;
    /* what was sent to workers is lost; counts: as an attempt of the requests */
    void (*epoch_ends)(void *context, bool counts);
    void (*ending)(void *context, int code, const char *text);  /* once; code 0: as asked for */
    void (*worker_came)(void *context, enum worker w);          /* said Hello: a new process */
    void (*balance)(void *context, struct epoch_settings *now); /* beta, host_scores */
    bool (*is_busy)(void *context);                             /* a request runs */
    bool (*is_reading)(void *context);  /* one of them, or that returns, could not go on yet in
                                           another epoch */
    bool (*can_go_on)(void *context);   /* requests ever can, on drives that come and go */
    bool (*keeps_tiers)(void *context); /* after epoch_ends: requests can go on with the entries */
};

struct supervisor {
    struct settings *settings;
    struct run_folder *folder;
    struct router *router;
    struct supervisor_hooks hooks;
    struct worker_table workers;
    struct supervised {
        struct worker_process process; /* fd -1: none */
        struct worker_end end;
        int64_t reap_at_ns;   /* it has ended as `end` says; CLOCK_NEVER: not so far as is known */
        uint32_t ready_epoch; /* the last in which it, or one before it, was Ready */
        /* since all were ready: before it was Ready in an epoch that took the tiers over */
        unsigned unready_deaths;
    } children[WORKER_COUNT];
    uint32_t epoch;
    uint32_t tiers_epoch;  /* in which the hot segment was made; 0: there is none */
    bool tiers_spoilt;     /* a worker cannot work with what is kept */
    bool epoch_exists;     /* its segments have been created */
    bool epoch_delayed;    /* no room for new segments until the workers let go of the old ones */
    int64_t plain_idle_ns; /* since when no request runs beside a plain drive; 0: not so */
    enum drive_change change;
    uint32_t change_drive; /* whose change it is */
    struct proto_address change_client;
    int64_t change_began_ns;
    int change_code;       /* UNDO: what the client is told when the pipeline is ready again */
    char change_text[512]; /* DETACH: what is said of it */
    char change_url[HILL_PATH_BYTES + 32]; /* ATTACH_WAITS; empty: the default one */
    struct csd_model change_model;         /* ATTACH_WAITS: of that drive, */
    bool change_names_model;               /* if the client has said one */
    bool leaves_epoch_be; /* the agent that ends is used by nobody: its end is no epoch's */
    Hill__Message *live;  /* the scorer's last heartbeat with statistics, owned; NULL: none yet */
    bool announced;       /* that all workers are ready, once */
    bool progressed;      /* since this process started */
    bool pids_lack_one;   /* a worker runs that the run folder's pids do not name */
    bool ending;
    int end_code;
    struct hill_why end_why;
};

/* Register the handlers. */
void supervisor_open(struct supervisor *s, struct settings *settings, struct run_folder *folder,
                     struct router *router, const struct supervisor_hooks *hooks);
/* Create the first epoch's segments, or take over those that a killed coordinator has left. 0, or
 * why there are none. */
int supervisor_begin(struct supervisor *s, struct hill_why *why);
/* Does this epoch have the entries of the one before it? */
bool supervisor_kept_tiers(const struct supervisor *s);
/* This coordinator comes after a killed one, whose drives were there: its agents are tried as often
 * as workers that have been ready, and waited for or left as these. all: so are the others, since
 * requests of that one are waited for. */
void supervisor_expect_ready(struct supervisor *s, bool all);
/* The drives, or the device model, are others from now on: the next coordinator is to know. */
void supervisor_note_drives(struct supervisor *s);
void supervisor_close(struct supervisor *s); /* safe on a zeroed struct */

/* What becomes readable when a worker ends; -1: nothing of it is to be waited for. */
int supervisor_watch_fd(const struct supervisor *s, enum worker w);
/* It has become readable. */
void supervisor_child_ended(struct supervisor *s, enum worker w);
/* The loop that calls supervisor_tick was away until now: nobody was silent meanwhile. */
void supervisor_away(struct supervisor *s, int64_t now_ns);
/* A token or a unit of a prompt is done. */
void supervisor_progress(struct supervisor *s);
/* What time brings: starts, missed heartbeats, the end in stop order. */
void supervisor_tick(struct supervisor *s, int64_t now_ns);
int64_t supervisor_next_ns(const struct supervisor *s);
/* Are all wanted workers ready in an epoch that exists? */
bool supervisor_ready(const struct supervisor *s);
/* Ready, and nothing else is to be waited for: a change of the drive goes on, or its client is
 * answered. */
void supervisor_settled(struct supervisor *s);
/* Is no request to be started now but those that return: a change of the drive waits for those that
 * run? */
bool supervisor_holds_back(const struct supervisor *s);
/* Is a drive being attached whose agent has not been ready yet? */
bool supervisor_awaits_new_drive(const struct supervisor *s);

/* Begin the next epoch: interrupts what runs. A failure ends the pipeline. */
void supervisor_new_epoch(struct supervisor *s, const char *reason);
/* The same, and it counts as an attempt of none but the requests that are interrupted already. */
void supervisor_uncounted_epoch(struct supervisor *s, const char *reason);
/* A worker cannot go on, it says. */
void supervisor_failed(struct supervisor *s, enum worker w, const Hill__Failure *failure);
/* End in order: workers are stopped one after the other. code 0: as asked for; the first call
 * counts. */
void supervisor_end(struct supervisor *s, int code, const char *text);
/* Do not wait for them. */
void supervisor_kill_all(struct supervisor *s);
