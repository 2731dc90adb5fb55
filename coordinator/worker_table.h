/*
 * coordinator/worker_table.h - the workers, their states, and when to start, end and give up on
 * them (policy).
 *
 * What: a table indexed by enum worker. Events (started, Hello, Ready, heartbeat, exit) change a
 * worker's state; worker_table_due says what has to be done now. It starts and signals nothing
 * itself: worker_process.h is the mechanism. Time is passed in, so tests run on a clock of their
 * own. Policy: restarts are at least 1 s apart, doubling to 30 s while the worker does not stay
 * READY for 30 s, twice as long after a death before the first Ready; 5 deaths before the first
 * Ready give it up. 3 s without a heartbeat: SIGTERM; 5 s after any SIGTERM: SIGKILL. 10 s without
 * Hello: SIGTERM. Who calls it: pipeline.c and its parts. Concurrency: one thread.
 */
#ifndef HILL_COORDINATOR_WORKER_TABLE_H
#define HILL_COORDINATOR_WORKER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/envelope.h"

enum worker { WORKER_GPU, WORKER_SCORER, WORKER_AGENT, WORKER_COUNT };

enum worker_state {
    WORKER_STOPPED,    /* no process, none wanted */
    WORKER_STARTED,    /* spawned; no Hello yet */
    WORKER_CONFIGURED, /* Hello seen, Configure sent; no Ready for the epoch yet */
    WORKER_READY,      /* Ready for the current epoch */
    WORKER_STOPPING,   /* SIGTERM sent; SIGKILL follows at kill_at_ns */
    WORKER_BACKOFF,    /* died; starts again at start_at_ns */
};

enum worker_event {
    WORKER_WANTED,        /* the drive was attached, or the pipeline starts */
    WORKER_UNWANTED,      /* the drive is detached; the caller ends the process */
    WORKER_SPAWNED,       /* there is a process */
    WORKER_TOLD,          /* a Configure was sent: after Hello, and at each new epoch */
    WORKER_SAID_READY,    /* for the current epoch */
    WORKER_TERMINATED,    /* SIGTERM was sent: hangs, is not wanted, or the pipeline ends */
    WORKER_DIED,          /* its process has ended, and it is still wanted */
    WORKER_DIED_UNWANTED, /* its process has ended as it was to */
};

enum worker_action { WORKER_DO_NOTHING, WORKER_DO_START, WORKER_DO_TERMINATE, WORKER_DO_KILL };

#define WORKER_BACKOFF_FIRST_NS  INT64_C(1000000000)
#define WORKER_BACKOFF_MAX_NS    INT64_C(30000000000)
#define WORKER_STABLE_NS         INT64_C(30000000000)
#define WORKER_HEARTBEAT_NS      INT64_C(3000000000)
#define WORKER_HELLO_NS          INT64_C(10000000000)
#define WORKER_KILL_NS           INT64_C(5000000000)
#define WORKER_FIRST_READY_TRIES 5u

struct worker_row {
    /* constant */
    const char *name, *binary; /* "gpu_worker", "hill-gpu-worker" */
    Hill__Role role;
    unsigned stop_order; /* 0 is stopped first */
    /* of the worker */
    enum worker_state state;
    bool wanted;           /* is to run (the agent: while a CSD is attached) */
    bool ever_ready;       /* some process of it reached Ready */
    unsigned early_deaths; /* before the first Ready */
    uint32_t restarts;
    int64_t backoff_ns;  /* the last one; 0: none yet */
    int64_t start_at_ns; /* BACKOFF: when to start */
    /* of its process */
    int32_t pid; /* 0: none */
    uint64_t start_time;
    bool process_ready; /* this process reached Ready */
    int64_t started_ns, ready_ns, heartbeat_ns, kill_at_ns;
    bool killed;
    uint64_t work_done;
    uint64_t cpu_ms, rss_bytes; /* as of the last heartbeat */
    char device[128];
    int failure_code; /* of its last Failure; 0: none */
    char failure_text[256];
    struct proto_address address; /* length 0: no Hello yet */
};

struct worker_table {
    struct worker_row rows[WORKER_COUNT];
};

void worker_table_init(struct worker_table *table, bool with_agent);
const char *worker_state_name(enum worker_state state);
/* The state after an event; the same one where the event does not matter in it. */
enum worker_state worker_state_after(enum worker_state state, enum worker_event event);
/* Is a Failure one that a restarted worker would not meet again (a peer died or hung)? */
bool worker_failure_passes(int code);

/* Does a process of it exist? */
bool worker_running(const struct worker_row *row);
/* Every wanted worker is READY, and no unwanted one runs. */
bool worker_table_ready(const struct worker_table *table);
bool worker_table_any_running(const struct worker_table *table);

/* Events. */
void worker_table_started(struct worker_table *table, enum worker w, int32_t pid,
                          uint64_t start_time, int64_t now_ns);
void worker_table_configured(struct worker_table *table, enum worker w);
void worker_table_ready_at(struct worker_table *table, enum worker w, int64_t now_ns);
void worker_table_heartbeat(struct worker_table *table, enum worker w, uint64_t work_done,
                            int64_t now_ns);
void worker_table_usage(struct worker_table *table, enum worker w, uint64_t cpu_ms,
                        uint64_t rss_bytes);
void worker_table_failure(struct worker_table *table, enum worker w, int code, const char *text);
/* SIGTERM and SIGKILL have been sent. */
void worker_table_terminated(struct worker_table *table, enum worker w, int64_t now_ns);
void worker_table_killed(struct worker_table *table, enum worker w);
/* Its process has ended: STOPPED when it is not wanted, else BACKOFF. True when it has been given
 * up (too many deaths before the first Ready). */
bool worker_table_exited(struct worker_table *table, enum worker w, int64_t now_ns);

/* Want it from now on (STOPPED becomes due to start) or no longer (the caller terminates it). */
void worker_table_want(struct worker_table *table, enum worker w, bool wanted, int64_t now_ns);

/* What has to be done with w now. Starting and terminating stop as soon as the event is reported.
 */
enum worker_action worker_table_due(const struct worker_table *table, enum worker w,
                                    int64_t now_ns);
/* When worker_table_due may next say something else (absolute ns, CLOCK_NEVER: at an event only).
 */
int64_t worker_table_next_ns(const struct worker_table *table);

/* The worker whose process must end next in an orderly shutdown; WORKER_COUNT when none runs. */
enum worker worker_table_stop_next(const struct worker_table *table);

enum worker worker_table_by_pid(const struct worker_table *table, int32_t pid);
enum worker worker_table_by_role(Hill__Role role); /* WORKER_COUNT: no worker's role */
enum worker worker_table_by_address(const struct worker_table *table,
                                    const struct proto_address *address);

#endif
