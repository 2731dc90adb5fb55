/*
 * coordinator/worker_table.h - the workers, their states, and when to start, end and give up on
 * them (policy).
 *
 * What: a table indexed by enum worker. Events (started, Hello, Ready, heartbeat, exit) change a
 * worker's state; worker_table_due says what has to be done now. It starts and signals nothing
 * itself: worker_process.h is the mechanism. Time is passed in, so tests run on a clock of their
 * own. Policy: a process that made progress (a unit of work, a token of the pipeline, READY for
 * 10 s) is started again after 20 ms; each death in a row without progress doubles the wait, from
 * 0.25 s to 30 s, and after the tenth (the fifth, when it was never Ready) it is given up. Who
 * hangs gets SIGTERM, and SIGKILL 0.5 s later; who is told to end has 5 s. Who calls it: the
 * coordinator's supervisor. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/envelope.h"
#include "proto/layout.h"

/* WORKER_AGENT is the first drive's, those of further ones follow. */
enum worker {
    WORKER_GPU,
    WORKER_SCORER,
    WORKER_AGENT,
    WORKER_COUNT = WORKER_AGENT + LAYOUT_DRIVES_MAX
};

static inline bool worker_is_agent(enum worker w)
{
    return w >= WORKER_AGENT && w < WORKER_COUNT;
}

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

/* How a worker hangs. */
enum worker_hang {
    WORKER_HANGS_NOT,
    WORKER_HANGS_MUTE,   /* no Hello after its start */
    WORKER_HANGS_SILENT, /* no heartbeat: the whole process stands still */
    WORKER_HANGS_STUCK,  /* heartbeats, but its data loop does not go round */
};

#define WORKER_RESTART_NS       INT64_C(20000000) /* after a life with progress */
#define WORKER_BACKOFF_FIRST_NS INT64_C(250000000)
#define WORKER_BACKOFF_MAX_NS   INT64_C(30000000000)
#define WORKER_STABLE_NS        INT64_C(10000000000)
#define WORKER_HELLO_NS         INT64_C(10000000000)
#define WORKER_KILL_NS          INT64_C(5000000000)
#define WORKER_KILL_HUNG_NS     INT64_C(500000000)
#define WORKER_TRIES            10u /* deaths in a row without progress */
#define WORKER_TRIES_UNREADY    5u  /* of a worker that was never Ready */
#define WORKER_STUCK_LONGEST    4 /* times the longest turn that its data loop has come back from */
/* times as long while kernels are built and weights loaded: a stall that began with Configure */
#define WORKER_STUCK_CONFIGURED 10

/* When silence and standing still are a hang. */
struct worker_limits {
    int64_t silent_ns; /* --hang-ms */
    int64_t stuck_ns;  /* --stall-ms */
};

struct worker_row {
    /* constant */
    const char *name, *binary; /* "gpu_worker", "hill-gpu-worker" */
    Hill__Role role;
    unsigned stop_order; /* 0 is stopped first */
    /* of the worker */
    enum worker_state state;
    bool wanted;     /* is to run (the agent: while a CSD is attached) */
    bool ever_ready; /* some process of it reached Ready */
    unsigned deaths; /* in a row, without progress */
    uint32_t restarts;
    int64_t backoff_ns;  /* the last one; 0: none yet */
    int64_t start_at_ns; /* BACKOFF: when to start */
    /* of its process */
    int32_t pid; /* 0: none */
    uint64_t start_time;
    bool process_ready; /* this process reached Ready */
    bool progressed;    /* this process did something of use */
    int64_t started_ns, ready_ns, heartbeat_ns, kill_at_ns;
    int64_t said_ready_ns; /* the last time */
    int64_t told_ns;       /* CONFIGURED: since when; what stood still before is not loading */
    bool killed;
    uint64_t work_done;
    int64_t stuck_ns, longest_ns; /* of its data loop's turns: the one under way, the longest */
    int64_t stuck_since_ns;       /* began the one under way */
    uint64_t cpu_ms, rss_bytes;   /* as of the last heartbeat */
    char device[128];
    int failure_code; /* of its last Failure; 0: none */
    char failure_text[256];
    struct proto_address address; /* length 0: no Hello yet */
};

struct worker_table {
    struct worker_row rows[WORKER_COUNT];
    struct worker_limits limits;
};

/* agents: that are wanted, the first ones. */
void worker_table_init(struct worker_table *table, unsigned agents,
                       const struct worker_limits *limits);
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
/* There was no room for a process: as a death without progress, true when it has been given up. */
bool worker_table_not_started(struct worker_table *table, enum worker w, int64_t now_ns);
void worker_table_configured(struct worker_table *table, enum worker w, int64_t now_ns);
void worker_table_ready_at(struct worker_table *table, enum worker w, int64_t now_ns);
void worker_table_heartbeat(struct worker_table *table, enum worker w, uint64_t work_done,
                            int64_t now_ns);
/* Of the heartbeat that has come now. */
void worker_table_loop(struct worker_table *table, enum worker w, int64_t stuck_ns,
                       int64_t longest_ns, int64_t now_ns);
void worker_table_usage(struct worker_table *table, enum worker w, uint64_t cpu_ms,
                        uint64_t rss_bytes);
/* The pipeline made progress (a token, a unit of a prompt): all that are READY had a part in it. */
void worker_table_progress(struct worker_table *table);
/* The caller was not there to hear anything (it computed, or was stopped): nobody was silent. */
void worker_table_forgive(struct worker_table *table, int64_t now_ns);
void worker_table_failure(struct worker_table *table, enum worker w, int code, const char *text);
/* SIGTERM has been sent, in_ns before SIGKILL; then SIGKILL. */
void worker_table_terminated(struct worker_table *table, enum worker w, int64_t in_ns,
                             int64_t now_ns);
void worker_table_killed(struct worker_table *table, enum worker w);
/* Its process has ended: STOPPED when it is not wanted, else BACKOFF. True when it has been given
 * up (too many deaths in a row without progress). */
bool worker_table_exited(struct worker_table *table, enum worker w, bool orderly, int64_t now_ns);

/* Want it from now on (STOPPED becomes due to start) or no longer (the caller terminates it). */
void worker_table_want(struct worker_table *table, enum worker w, bool wanted, int64_t now_ns);

/* What has to be done with w now. Starting and terminating stop as soon as the event is reported.
 */
enum worker_action worker_table_due(const struct worker_table *table, enum worker w,
                                    int64_t now_ns);
/* Why it is to be terminated. */
enum worker_hang worker_table_hangs(const struct worker_table *table, enum worker w,
                                    int64_t now_ns);
/* How long its data loop may stand still. */
int64_t worker_table_stuck_limit(const struct worker_table *table, enum worker w);
/* When worker_table_due may next say something else (absolute ns, CLOCK_NEVER: at an event only).
 * Without starts: something else than WORKER_DO_START, which the caller does not carry out now. */
int64_t worker_table_next_ns(const struct worker_table *table, bool starts);

/* The worker whose process must end next in an orderly shutdown; WORKER_COUNT when none runs. */
enum worker worker_table_stop_next(const struct worker_table *table);

/* Of this role, the process with this pid; WORKER_COUNT: none. */
enum worker worker_table_by_pid(const struct worker_table *table, Hill__Role role, int32_t pid);
enum worker worker_table_by_address(const struct worker_table *table,
                                    const struct proto_address *address);
