/* coordinator/worker_table.c - see worker_table.h. */
#include "coordinator/worker_table.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

static const struct worker_row constants[WORKER_COUNT] = {
    /* The GPU worker goes first: then nobody produces any more. The agent goes last: it completes
       what is under way. */
    [WORKER_GPU] = {.name = "gpu_worker",
                    .binary = "hill-gpu-worker",
                    .role = HILL__ROLE__ROLE_GPU_WORKER,
                    .stop_order = 0},
    [WORKER_SCORER] = {.name = "cpu_scorer",
                       .binary = "hill-cpu-scorer",
                       .role = HILL__ROLE__ROLE_CPU_SCORER,
                       .stop_order = 1},
    [WORKER_AGENT] = {.name = "csd_agent",
                      .binary = "hill-csd-agent",
                      .role = HILL__ROLE__ROLE_CSD_AGENT,
                      .stop_order = 2},
    [WORKER_AGENT + 1] = {.name = "csd_agent_2",
                          .binary = "hill-csd-agent",
                          .role = HILL__ROLE__ROLE_CSD_AGENT,
                          .stop_order = 2},
    [WORKER_AGENT + 2] = {.name = "csd_agent_3",
                          .binary = "hill-csd-agent",
                          .role = HILL__ROLE__ROLE_CSD_AGENT,
                          .stop_order = 2},
    [WORKER_AGENT + 3] = {.name = "csd_agent_4",
                          .binary = "hill-csd-agent",
                          .role = HILL__ROLE__ROLE_CSD_AGENT,
                          .stop_order = 2},
};

_Static_assert(LAYOUT_DRIVES_MAX == 4, "an agent's row for each drive");

const char *worker_state_name(enum worker_state state)
{
    static const char *const names[] = {"stopped", "started",  "configured",
                                        "ready",   "stopping", "backoff"};
    return names[state];
}

#define STATES (WORKER_BACKOFF + 1)
#define EVENTS (WORKER_DIED_UNWANTED + 1)
/* Of a transition that is not in the table: the state stays. */
#define TO(state) ((state) + 1)

static const uint8_t transitions[STATES][EVENTS] = {
    [WORKER_STOPPED] = {[WORKER_WANTED] = TO(WORKER_BACKOFF)},
    [WORKER_BACKOFF] =
        {[WORKER_UNWANTED] = TO(WORKER_STOPPED), [WORKER_SPAWNED] = TO(WORKER_STARTED)},
    [WORKER_STARTED] = {[WORKER_TOLD] = TO(WORKER_CONFIGURED),
                        [WORKER_TERMINATED] = TO(WORKER_STOPPING),
                        [WORKER_DIED] = TO(WORKER_BACKOFF),
                        [WORKER_DIED_UNWANTED] = TO(WORKER_STOPPED)},
    [WORKER_CONFIGURED] = {[WORKER_SAID_READY] = TO(WORKER_READY),
                           [WORKER_TERMINATED] = TO(WORKER_STOPPING),
                           [WORKER_DIED] = TO(WORKER_BACKOFF),
                           [WORKER_DIED_UNWANTED] = TO(WORKER_STOPPED)},
    [WORKER_READY] = {[WORKER_TOLD] = TO(WORKER_CONFIGURED),
                      [WORKER_TERMINATED] = TO(WORKER_STOPPING),
                      [WORKER_DIED] = TO(WORKER_BACKOFF),
                      [WORKER_DIED_UNWANTED] = TO(WORKER_STOPPED)},
    [WORKER_STOPPING] =
        {[WORKER_DIED] = TO(WORKER_BACKOFF), [WORKER_DIED_UNWANTED] = TO(WORKER_STOPPED)},
};

enum worker_state worker_state_after(enum worker_state state, enum worker_event event)
{
    uint8_t to = transitions[state][event];
    return to ? (enum worker_state)(to - 1) : state;
}

/* The only place where a state changes. False: the event does not matter in this state. */
static bool step(struct worker_row *row, enum worker_event event)
{
    enum worker_state to = worker_state_after(row->state, event);
    if (to == row->state)
        return false;
    log_debug("%s (pid %d): %s -> %s", row->name, (int)row->pid, worker_state_name(row->state),
              worker_state_name(to));
    row->state = to;
    return true;
}

bool worker_failure_passes(int code)
{
    return code == HILL_E_PEER_GONE || code == HILL_E_TIMEOUT || code == HILL_E_WOULD_BLOCK;
}

void worker_table_init(struct worker_table *table, unsigned agents,
                       const struct worker_limits *limits)
{
    table->limits = *limits;
    memcpy(table->rows, constants, sizeof constants);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        worker_table_want(table, w, w < WORKER_AGENT + agents, 0);
}

bool worker_running(const struct worker_row *row)
{
    return row->state != WORKER_STOPPED && row->state != WORKER_BACKOFF;
}

bool worker_table_ready(const struct worker_table *table)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        const struct worker_row *row = &table->rows[w];
        if (row->wanted ? row->state != WORKER_READY : worker_running(row))
            return false;
    }
    return true;
}

bool worker_table_any_running(const struct worker_table *table)
{
    return worker_table_stop_next(table) != WORKER_COUNT;
}

/* ---- events ------------------------------------------------------------------------------ */

/* The process was of use: what died before is forgotten. */
static void made_progress(struct worker_row *row)
{
    row->progressed = true;
    row->deaths = 0;
}

void worker_table_started(struct worker_table *table, enum worker w, int32_t pid,
                          uint64_t start_time, int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    row->pid = pid;
    row->start_time = start_time;
    row->process_ready = row->progressed = row->killed = false;
    row->stuck_ns = row->longest_ns = 0;
    row->started_ns = row->heartbeat_ns = now_ns;
    row->work_done = row->cpu_ms = row->rss_bytes = 0;
    row->device[0] = '\0';
    row->failure_code = 0;
    row->failure_text[0] = '\0';
    row->address.length = 0;
    step(row, WORKER_SPAWNED);
}

void worker_table_configured(struct worker_table *table, enum worker w, int64_t now_ns)
{
    if (step(&table->rows[w], WORKER_TOLD)) /* a further one finds it still at the one before */
        table->rows[w].told_ns = now_ns;
}

void worker_table_ready_at(struct worker_table *table, enum worker w, int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    if (!step(row, WORKER_SAID_READY))
        return;
    if (!row->process_ready)
        row->ready_ns = now_ns;
    row->said_ready_ns = now_ns;
    row->stuck_ns = 0;
    row->process_ready = row->ever_ready = true;
}

void worker_table_heartbeat(struct worker_table *table, enum worker w, uint64_t work_done,
                            int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    row->heartbeat_ns = now_ns;
    row->work_done = work_done;
    if (work_done)
        made_progress(row);
}

void worker_table_loop(struct worker_table *table, enum worker w, int64_t stuck_ns,
                       int64_t longest_ns, int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    /* a heartbeat may have been overtaken by the Ready that ended a long turn */
    int64_t since_ready = now_ns - row->said_ready_ns;
    bool overtaken = row->state == WORKER_READY && since_ready < stuck_ns;
    row->stuck_ns = overtaken ? since_ready : stuck_ns;
    row->stuck_since_ns = now_ns - row->stuck_ns;
    row->longest_ns = longest_ns;
}

void worker_table_progress(struct worker_table *table)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (table->rows[w].state == WORKER_READY)
            made_progress(&table->rows[w]);
}

void worker_table_forgive(struct worker_table *table, int64_t now_ns)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        table->rows[w].started_ns = table->rows[w].heartbeat_ns = now_ns;
}

void worker_table_usage(struct worker_table *table, enum worker w, uint64_t cpu_ms,
                        uint64_t rss_bytes)
{
    table->rows[w].cpu_ms = cpu_ms;
    table->rows[w].rss_bytes = rss_bytes;
}

void worker_table_failure(struct worker_table *table, enum worker w, int code, const char *text)
{
    table->rows[w].failure_code = code;
    snprintf(table->rows[w].failure_text, sizeof table->rows[w].failure_text, "%s", text);
}

void worker_table_terminated(struct worker_table *table, enum worker w, int64_t in_ns,
                             int64_t now_ns)
{
    if (step(&table->rows[w], WORKER_TERMINATED))
        table->rows[w].kill_at_ns = now_ns + in_ns;
}

void worker_table_killed(struct worker_table *table, enum worker w)
{
    table->rows[w].killed = true;
}

/* When to try again after that many deaths in a row without progress. */
static int64_t backoff_after(unsigned deaths)
{
    int64_t wait = deaths ? WORKER_BACKOFF_FIRST_NS : WORKER_RESTART_NS;
    for (unsigned i = 1; i < deaths && wait < WORKER_BACKOFF_MAX_NS; i++)
        wait *= 2;
    return wait < WORKER_BACKOFF_MAX_NS ? wait : WORKER_BACKOFF_MAX_NS;
}

/* True: there will be no further try. */
static bool back_off(struct worker_row *row, bool fruitless, int64_t now_ns)
{
    if (fruitless)
        row->deaths++;
    row->backoff_ns = backoff_after(row->deaths);
    row->start_at_ns = now_ns + row->backoff_ns;
    return row->deaths >= (row->ever_ready ? WORKER_TRIES : WORKER_TRIES_UNREADY);
}

bool worker_table_not_started(struct worker_table *table, enum worker w, int64_t now_ns)
{
    return back_off(&table->rows[w], true, now_ns);
}

bool worker_table_exited(struct worker_table *table, enum worker w, bool orderly, int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    step(row, row->wanted ? WORKER_DIED : WORKER_DIED_UNWANTED);
    if (row->process_ready && now_ns - row->ready_ns >= WORKER_STABLE_NS)
        made_progress(row);
    row->pid = 0;
    row->address.length = 0;
    if (!row->wanted)
        return false;
    row->restarts++;
    return back_off(row, !row->progressed && !orderly, now_ns);
}

void worker_table_want(struct worker_table *table, enum worker w, bool wanted, int64_t now_ns)
{
    struct worker_row *row = &table->rows[w];
    row->wanted = wanted;
    if (step(row, wanted ? WORKER_WANTED : WORKER_UNWANTED) && wanted) {
        row->start_at_ns = now_ns;
        row->backoff_ns = 0;
        row->ever_ready = false;
        row->deaths = 0;
    }
}

/* ---- what is due ------------------------------------------------------------------------- */

int64_t worker_table_stuck_limit(const struct worker_table *table, enum worker w)
{
    const struct worker_row *row = &table->rows[w];
    int64_t limit = table->limits.stuck_ns, longest = row->longest_ns * WORKER_STUCK_LONGEST;
    if (row->state == WORKER_CONFIGURED && row->stuck_since_ns >= row->told_ns)
        limit *= WORKER_STUCK_CONFIGURED;
    return longest > limit ? longest : limit;
}

/* Since when is it to be taken for one that hangs, and how? CLOCK_NEVER: by what it said last, it
 * does not. */
static int64_t hangs_at(const struct worker_table *table, enum worker w, enum worker_hang *how)
{
    const struct worker_row *row = &table->rows[w];
    *how = WORKER_HANGS_MUTE;
    if (row->state == WORKER_STARTED) /* a process that is being loaded has no heartbeat yet */
        return row->started_ns + WORKER_HELLO_NS;
    *how = WORKER_HANGS_STUCK;
    if (row->stuck_ns >= worker_table_stuck_limit(table, w))
        return row->heartbeat_ns;
    *how = WORKER_HANGS_SILENT;
    return row->heartbeat_ns + table->limits.silent_ns;
}

/* When the action that the state waits for falls due, and which it is. */
static int64_t due_at(const struct worker_table *table, enum worker w, enum worker_action *action)
{
    const struct worker_row *row = &table->rows[w];
    enum worker_hang how;
    *action = WORKER_DO_TERMINATE;
    switch (row->state) {
    case WORKER_BACKOFF:
        *action = WORKER_DO_START;
        return row->start_at_ns;
    case WORKER_STARTED:
    case WORKER_CONFIGURED:
    case WORKER_READY:
        return hangs_at(table, w, &how);
    case WORKER_STOPPING:
        *action = WORKER_DO_KILL;
        return row->killed ? CLOCK_NEVER : row->kill_at_ns;
    default:
        *action = WORKER_DO_NOTHING;
        return CLOCK_NEVER;
    }
}

enum worker_action worker_table_due(const struct worker_table *table, enum worker w, int64_t now_ns)
{
    enum worker_action action;
    return now_ns >= due_at(table, w, &action) ? action : WORKER_DO_NOTHING;
}

enum worker_hang worker_table_hangs(const struct worker_table *table, enum worker w, int64_t now_ns)
{
    enum worker_hang how;
    return now_ns >= hangs_at(table, w, &how) ? how : WORKER_HANGS_NOT;
}

int64_t worker_table_next_ns(const struct worker_table *table, bool starts)
{
    int64_t next = CLOCK_NEVER;
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        enum worker_action action;
        int64_t at = due_at(table, w, &action);
        if (at < next && (starts || action != WORKER_DO_START))
            next = at;
    }
    return next;
}

enum worker worker_table_stop_next(const struct worker_table *table)
{
    enum worker best = WORKER_COUNT;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&table->rows[w]) &&
            (best == WORKER_COUNT || table->rows[w].stop_order < table->rows[best].stop_order))
            best = w;
    return best;
}

/* ---- who is it --------------------------------------------------------------------------- */

enum worker worker_table_by_pid(const struct worker_table *table, Hill__Role role, int32_t pid)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (constants[w].role == role && table->rows[w].pid == pid)
            return w;
    return WORKER_COUNT;
}

enum worker worker_table_by_address(const struct worker_table *table,
                                    const struct proto_address *address)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        const struct proto_address *known = &table->rows[w].address;
        if (known->length && known->length == address->length &&
            memcmp(known->bytes, address->bytes, known->length) == 0)
            return w;
    }
    return WORKER_COUNT;
}
