/* coordinator/supervisor.c - see supervisor.h. */
#include "coordinator/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/supervisor_parts.h"

#define REAP_DELAY_MS 100 /* lets a dying worker's last words arrive before its end is acted on */

/* Is it the agent of a drive that is being attached, which has not worked yet? */
static bool is_new_drive(const struct supervisor *s, enum worker w)
{
    return s->change == CHANGE_ATTACH && w == WORKER_AGENT + s->change_drive &&
           !s->workers.rows[w].ever_ready;
}

bool supervisor_awaits_new_drive(const struct supervisor *s)
{
    return is_new_drive(s, WORKER_AGENT + s->change_drive);
}

/* Has the agent, which failed with that code, found no way to its drive's host? */
static bool is_unreached(const struct supervisor *s, enum worker w, int code)
{
    return worker_is_agent(w) && code == HILL_E_IO &&
           strncmp(settings_url(s->settings, w - WORKER_AGENT), "tcp:", 4) == 0;
}

/* --csd-on-loss wait: for a drive that has been there, and for its host, however long. */
static bool waits_for_drive(const struct supervisor *s, enum worker w)
{
    const struct worker_row *row = &s->workers.rows[w];
    bool away = row->failure_code == HILL_E_IO || row->failure_code == HILL_E_NODEV;
    return worker_is_agent(w) && away && row->ever_ready && !s->settings->options.csd_degrades;
}

/* ---- a worker's end ---------------------------------------------------------------------- */

static void log_end(const struct supervisor *s, const struct worker_row *row, int32_t pid,
                    const char *how)
{
    if (s->ending || !row->wanted)
        log_debug("%s (pid %d) %s", row->name, (int)pid, how);
    else
        log_warn("%s (pid %d) %s; starting it again in %.2f s", row->name, (int)pid, how,
                 (double)row->backoff_ns / 1e9);
}

static void worker_exited(struct supervisor *s, enum worker w, const struct worker_end *end)
{
    struct worker_row *row = &s->workers.rows[w];
    int32_t pid = row->pid;
    bool knew_epoch = row->address.length != 0;
    bool given_up =
        worker_table_exited(&s->workers, w, end->orderly, clock_now_ns()) && !waits_for_drive(s, w);
    if (run_folder_write_pids(s->folder, &s->workers) == 0) /* else: it names one more, no harm */
        s->pids_lack_one = false;
    if (!given_up)
        log_end(s, row, pid, end->text);
    if (s->ending)
        return;
    /* without another reason what is kept may be why. (Of several that are killed at once each dies
       so in an epoch of its own: it is counted by itself.) */
    bool says_why = row->failure_code && !worker_failure_passes(row->failure_code);
    if (knew_epoch && supervisor_kept_tiers(s) && s->children[w].ready_epoch != s->epoch &&
        !says_why)
        s->children[w].unready_deaths++;
    if (worker_is_agent(w) && s->leaves_epoch_be && !row->wanted) {
        s->leaves_epoch_be = false;
        if (!s->epoch_delayed) /* which waits for the last process to end: it may be this one */
            return;
    }
    bool lost = is_new_drive(s, w) && row->wanted;
    if (lost)
        drive_undo_attach(s, row->failure_code ? row->failure_code : HILL_E_PEER_GONE,
                          row->failure_code ? row->failure_text
                                            : "the CSD agent ended before it was ready");
    if (worker_is_agent(w) && s->change == CHANGE_DETACH && s->settings->epoch.csd_plain) {
        worker_table_want(&s->workers, w, true, clock_now_ns());
        row->ever_ready = true; /* the drive has worked: an agent that cannot use it is no reason to
                                   end the pipeline */
    }
    lost |= drive_lose(s, w, given_up);
    if (given_up && !lost) {
        supervisor_give_up(s, w, end->text);
        return;
    }
    /* of one that is lost: the others have been configured with a drive */
    if (s->epoch_delayed ? !worker_table_any_running(&s->workers) : knew_epoch || lost)
        supervisor_next_epoch(s, !worker_is_agent(w), "a worker has ended");
}

static void reap(struct supervisor *s, int64_t now_ns)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        struct supervised *child = &s->children[w];
        if (child->process.fd < 0 || now_ns < child->reap_at_ns)
            continue;
        worker_process_reap(&child->process);
        worker_exited(s, w, &child->end);
    }
}

int supervisor_watch_fd(const struct supervisor *s, enum worker w)
{
    const struct supervised *child = &s->children[w];
    return child->reap_at_ns == CLOCK_NEVER ? child->process.fd : -1;
}

void supervisor_child_ended(struct supervisor *s, enum worker w)
{
    struct supervised *child = &s->children[w];
    if (child->reap_at_ns != CLOCK_NEVER || !worker_process_ended(&child->process, &child->end))
        return;
    bool at_once = s->ending || child->end.killed;
    child->reap_at_ns = clock_now_ns() + (at_once ? 0 : CLOCK_MS(REAP_DELAY_MS));
}

void supervisor_new_epoch(struct supervisor *s, const char *reason)
{
    drive_lose_drain(s);
    supervisor_next_epoch(s, true, reason);
}

void supervisor_uncounted_epoch(struct supervisor *s, const char *reason)
{
    drive_lose_drain(s);
    supervisor_next_epoch(s, false, reason);
}

/* ---- messages ---------------------------------------------------------------------------- */

static void take_hello(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Hello *hello = a->message->hello;
    enum worker w = worker_table_by_pid(&s->workers, hello->role, hello->pid);
    if (w == WORKER_COUNT) {
        router_refuse(s->router, &a->from, "a Hello from a process that was not started here");
        return;
    }
    struct worker_row *row = &s->workers.rows[w];
    if (row->state != WORKER_STARTED)
        return; /* it is being stopped */
    if (hello->records_version != PROTO_RECORDS_VERSION ||
        hello->protocol_version != PROTO_VERSION || strcmp(hello->version, HILL_VERSION) != 0) {
        char text[256];
        snprintf(text, sizeof text,
                 "%s is version %.40s with protocol %u and records version %llu, this coordinator "
                 "is %s with %u and %u: install them together",
                 row->binary, hello->version, hello->protocol_version,
                 (unsigned long long)hello->records_version, HILL_VERSION, PROTO_VERSION,
                 PROTO_RECORDS_VERSION);
        supervisor_end(s, HILL_E_PEER_GONE, text); /* after an upgrade another start cures it */
        return;
    }
    row->address = a->from;
    s->hooks.worker_came(s->hooks.context, w);
    worker_table_heartbeat(&s->workers, w, 0, clock_now_ns());
    worker_table_configured(&s->workers, w, clock_now_ns());
    supervisor_configure(s, w);
}

static void take_ready(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Ready *ready = a->message->ready;
    struct worker_row *row = &s->workers.rows[a->worker];
    if (ready->epoch != s->epoch || !s->epoch_exists)
        return; /* of an epoch that is over; the answer to the newer Configure follows */
    snprintf(row->device, sizeof row->device, "%s", ready->device);
    if (!row->process_ready)
        log_info("%s (pid %d) is ready%s%s", row->name, (int)row->pid, *ready->device ? " on " : "",
                 ready->device);
    worker_table_ready_at(&s->workers, a->worker, clock_now_ns());
    s->children[a->worker].ready_epoch = s->epoch;
    if (supervisor_ready(s))
        supervisor_tiers_work(s);
}

/* Does a fatal Failure say that a worker cannot work with what is kept? What another worker has
 * said stays said. */
static bool spoils_tiers(const struct supervisor *s, enum worker w, int code)
{
    if (s->tiers_epoch == s->epoch || s->children[w].ready_epoch == s->epoch)
        return false;    /* nothing was taken over, or it has been, and it worked */
    if (w == WORKER_GPU) /* its device and its memory are nobody's tiers */
        return code != HILL_E_NODEV && code != HILL_E_NOMEM;
    if (w == WORKER_SCORER)
        return true;
    /* a drive that is new has nothing of it; one that is busy, does not answer, or is of another
       machine and cannot be reached, says nothing about it, nor does one that is only read still
       and let go (drive_lose); a failing device here does */
    return !is_new_drive(s, w) && !is_unreached(s, w, code) && code != HILL_E_BUSY &&
           !s->settings->epoch.csd_plain && !worker_failure_passes(code);
}

void supervisor_failed(struct supervisor *s, enum worker w, const Hill__Failure *failure)
{
    struct worker_row *row = &s->workers.rows[w];
    if (!failure->fatal) {
        log_debug("%s: %s", row->name, failure->text);
        return;
    }
    worker_table_failure(&s->workers, w, failure->code, failure->text);
    s->tiers_spoilt |= spoils_tiers(s, w, failure->code);
    /* the agent of a coordinator that was killed may have left transfers under way */
    bool left = worker_is_agent(w) && failure->code == HILL_E_BUSY && supervisor_kept_tiers(s);
    if (s->ending || row->ever_ready || left || worker_failure_passes(failure->code)) {
        log_debug("%s cannot go on: %s", row->name, failure->text); /* it has said so itself */
        return;                                                     /* its exit does the rest */
    }
    if (is_new_drive(s, w)) {
        drive_undo_attach(s, failure->code, failure->text);
    } else {
        char text[400];
        snprintf(text, sizeof text, "%s: %s", row->name, row->failure_text);
        supervisor_end(s, failure->code, text);
    }
}

static void take_heartbeat(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Heartbeat *beat = a->message->heartbeat;
    enum worker w = worker_table_by_pid(&s->workers, beat->role, beat->pid);
    if (w == WORKER_COUNT) {
        s->router->malformed++;
        return;
    }
    worker_table_heartbeat(&s->workers, w, beat->work_done, clock_now_ns());
    worker_table_loop(&s->workers, w, CLOCK_MS(beat->stuck_ms), CLOCK_MS(beat->longest_ms),
                      clock_now_ns());
    worker_table_usage(&s->workers, w, beat->cpu_ms, beat->rss_bytes);
    if (w == WORKER_SCORER && beat->live) {
        proto_free(s->live);
        s->live = a->message;
        a->message = NULL;
    }
}

static void take_shutdown(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    router_reply(s->router, &a->from, 0, "");
    supervisor_end(s, 0, "hillctl asked for it");
}

static const struct route routes[] = {
    {HILL__MESSAGE__BODY_HELLO, FROM_NEWCOMER, take_hello},
    {HILL__MESSAGE__BODY_READY, FROM_WORKERS, take_ready},
    {HILL__MESSAGE__BODY_HEARTBEAT, FROM_HEARTBEATS, take_heartbeat},
    {HILL__MESSAGE__BODY_ATTACH, FROM_CLIENT, drive_take_attach},
    {HILL__MESSAGE__BODY_DETACH, FROM_CLIENT, drive_take_detach},
    {HILL__MESSAGE__BODY_DRAINED, FROM_SCORER, drive_take_drained},
    {HILL__MESSAGE__BODY_SHUTDOWN, FROM_CLIENT, take_shutdown},
};

/* ---- what time brings -------------------------------------------------------------------- */

/* Text that says how it hangs. */
static void describe_hang(const struct supervisor *s, enum worker w, int64_t now_ns, char *out,
                          size_t room)
{
    const struct worker_row *row = &s->workers.rows[w];
    switch (worker_table_hangs(&s->workers, w, now_ns)) {
    case WORKER_HANGS_MUTE:
        snprintf(out, room, "has not said Hello for %.1f s",
                 (double)(now_ns - row->started_ns) / 1e9);
        break;
    case WORKER_HANGS_STUCK:
        snprintf(out, room, "has done nothing for %.1f s (limit %.1f s)",
                 (double)row->stuck_ns / 1e9,
                 (double)worker_table_stuck_limit(&s->workers, w) / 1e9);
        break;
    default:
        snprintf(out, room, "has sent no heartbeat for %.2f s",
                 (double)(now_ns - row->heartbeat_ns) / 1e9);
    }
}

static bool starts_workers(const struct supervisor *s)
{
    return !s->epoch_delayed && !s->ending;
}

static void do_action(struct supervisor *s, enum worker w, enum worker_action action,
                      int64_t now_ns)
{
    struct worker_row *row = &s->workers.rows[w];
    if (action == WORKER_DO_START && starts_workers(s)) {
        supervisor_start(s, w);
    } else if (action == WORKER_DO_TERMINATE) {
        char how[96];
        describe_hang(s, w, now_ns, how, sizeof how);
        log_warn("%s (pid %d) %s: SIGTERM, SIGKILL in %.1f s", row->name, (int)row->pid, how,
                 (double)WORKER_KILL_HUNG_NS / 1e9);
        supervisor_terminate(s, w, WORKER_KILL_HUNG_NS, "because it hangs");
    } else if (action == WORKER_DO_KILL) {
        log_warn("%s (pid %d) does not end: SIGKILL", row->name, (int)row->pid);
        kill(row->pid, SIGKILL);
        worker_table_killed(&s->workers, w);
    }
}

void supervisor_away(struct supervisor *s, int64_t now_ns)
{
    worker_table_forgive(&s->workers, now_ns);
}

void supervisor_progress(struct supervisor *s)
{
    worker_table_progress(&s->workers);
    if (!s->progressed)
        run_folder_note_progress(s->folder);
    s->progressed = true;
}

void supervisor_tick(struct supervisor *s, int64_t now_ns)
{
    reap(s, now_ns);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        do_action(s, w, worker_table_due(&s->workers, w, now_ns), now_ns);
    enum worker next = s->ending ? worker_table_stop_next(&s->workers) : WORKER_COUNT;
    if (next != WORKER_COUNT)
        supervisor_terminate(s, next, WORKER_KILL_NS, "in order");
}

int64_t supervisor_next_ns(const struct supervisor *s)
{
    int64_t next = worker_table_next_ns(&s->workers, starts_workers(s));
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (s->children[w].process.fd >= 0 && s->children[w].reap_at_ns < next)
            next = s->children[w].reap_at_ns;
    return next;
}

bool supervisor_ready(const struct supervisor *s)
{
    return !s->ending && s->epoch_exists && worker_table_ready(&s->workers);
}

/* ---- life -------------------------------------------------------------------------------- */

void supervisor_open(struct supervisor *s, struct settings *settings, struct run_folder *folder,
                     struct router *router, const struct supervisor_hooks *hooks)
{
    *s = (struct supervisor){
        .settings = settings, .folder = folder, .router = router, .hooks = *hooks};
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        s->children[w] = (struct supervised){.process.fd = -1, .reap_at_ns = CLOCK_NEVER};
    worker_table_init(&s->workers,
                      settings->epoch.csd_attached ? epoch_drives(&settings->epoch) : 0,
                      &settings->limits);
    for (uint32_t d = 0; d < settings->epoch.csd_drives; d++) /* of several, those that were left */
        if (!settings->epoch.drives[d].attached)
            worker_table_want(&s->workers, WORKER_AGENT + d, false, clock_now_ns());
    router_register(router, routes, sizeof routes / sizeof *routes, s);
}

void supervisor_expect_ready(struct supervisor *s, bool all)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        s->workers.rows[w].ever_ready = s->workers.rows[w].wanted && (all || worker_is_agent(w));
}

void supervisor_close(struct supervisor *s)
{
    if (s->folder)
        supervisor_remove_segments(s, false);
    proto_free(s->live);
}
