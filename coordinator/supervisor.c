/* coordinator/supervisor.c - see supervisor.h. */
#include "coordinator/supervisor.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "proto/party.h"

#define TIERS_UNREADY_MAX 3u

#define REAP_DELAY_MS 100 /* lets a dying worker's last words arrive before its end is acted on */

/* ---- the end ----------------------------------------------------------------------------- */

void supervisor_end(struct supervisor *s, int code, const char *text)
{
    if (s->ending)
        return;
    s->ending = true;
    s->end_code = code;
    snprintf(s->end_why.text, sizeof s->end_why.text, "%s", text);
    if (s->announced && (code == 0 || code == HILL_E_CANCELLED))
        log_info("ending: %s", text);
    s->hooks.ending(s->hooks.context, code, text);
}

void supervisor_kill_all(struct supervisor *s)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&s->workers.rows[w]))
            kill(s->workers.rows[w].pid, SIGKILL);
}

/* ---- processes --------------------------------------------------------------------------- */

static void give_up(struct supervisor *s, enum worker w, const char *how)
{
    const struct worker_row *row = &s->workers.rows[w];
    char text[512];
    snprintf(text, sizeof text, "gave up because %s %s, %u times in a row without progress%s%s",
             row->name, how, row->deaths, row->failure_code ? ": " : "", row->failure_text);
    supervisor_end(s, row->failure_code ? row->failure_code : HILL_E_PEER_GONE, text);
}

/* No process, no descriptor, no memory: somebody may let go of some. */
static void start_later(struct supervisor *s, enum worker w, const char *why)
{
    struct worker_row *row = &s->workers.rows[w];
    worker_table_failure(&s->workers, w, HILL_E_NOMEM, why);
    if (worker_table_not_started(&s->workers, w, clock_now_ns()))
        give_up(s, w, "could not be started");
    else
        log_warn("%s; trying again in %.2f s", why, (double)row->backoff_ns / 1e9);
}

static void start(struct supervisor *s, enum worker w)
{
    struct hill_why why = {{0}};
    struct worker_process *process = &s->children[w].process;
    int code = worker_process_start(process, s->workers.rows[w].binary, s->folder->path,
                                    s->settings->log_level, &why);
    if (code == HILL_E_NOMEM) {
        start_later(s, w, why.text);
        return;
    }
    if (code) {
        supervisor_end(s, code, why.text);
        return;
    }
    s->children[w].reap_at_ns = CLOCK_NEVER;
    worker_table_started(&s->workers, w, process->pid, process->start_time, clock_now_ns());
    if (run_folder_write_pids(s->folder, &s->workers)) {
        log_warn(
            "writing %s/pids failed; after a kill of this process, workers that hang are not found",
            s->folder->path);
        tiers_record_remove(s->folder->path); /* they would write into what it names */
    }
}

/* SIGTERM, and SIGKILL in_ns later. */
static void terminate_in(struct supervisor *s, enum worker w, int64_t in_ns, const char *reason)
{
    struct worker_row *row = &s->workers.rows[w];
    if (!worker_running(row) || row->state == WORKER_STOPPING)
        return;
    log_debug("ending %s (pid %d) %s", row->name, (int)row->pid, reason);
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    shutdown.graceful = true;
    message.body_case = HILL__MESSAGE__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    if (row->address.length)
        router_to_worker(s->router, w, &message);
    kill(row->pid, SIGTERM);
    worker_table_terminated(&s->workers, w, in_ns, clock_now_ns());
}

static void terminate(struct supervisor *s, enum worker w, const char *reason)
{
    terminate_in(s, w, WORKER_KILL_NS, reason);
}

/* ---- epochs ------------------------------------------------------------------------------ */

/* keep: all but the hot segment. */
static void remove_segments(struct supervisor *s, bool keep)
{
    uint64_t run_id = s->folder->run_id;
    if (s->epoch)
        epoch_unlink_data(run_id, s->epoch);
    if (s->tiers_epoch && !keep) {
        epoch_unlink(run_id, s->tiers_epoch);
        s->tiers_epoch = 0;
    }
    s->epoch_exists = false;
}

/* Does the hot segment go on to the next epoch? */
static bool keeps_tiers(struct supervisor *s)
{
    bool keep = s->tiers_epoch && !s->tiers_spoilt && s->tiers_unready < TIERS_UNREADY_MAX &&
                s->hooks.keeps_tiers(s->hooks.context);
    s->tiers_unready = keep ? s->tiers_unready + 1 : 0;
    s->tiers_spoilt = false;
    return keep;
}

/* The settings as they hold in this epoch. */
static struct epoch_settings settings_now(const struct supervisor *s)
{
    struct epoch_settings now = s->settings->epoch;
    now.run_id = s->folder->run_id;
    now.epoch = s->epoch;
    now.tiers_epoch = s->tiers_epoch;
    now.beta = s->hooks.beta(s->hooks.context);
    return now;
}

static void configure(struct supervisor *s, enum worker w)
{
    struct epoch_settings now = settings_now(s);
    struct epoch_wire wire;
    if (!s->epoch_exists)
        return; /* supervisor_new_epoch tells everyone who is there when it has created one */
    epoch_settings_to_wire(&wire, &now);
    worker_table_configured(&s->workers, w);
    int code = router_to_worker(s->router, w, &wire.message);
    if (code)
        log_warn("configuring %s failed: %s; it will be found dead", s->workers.rows[w].name,
                 hill_strerror(code));
}

static void delay_epoch(struct supervisor *s)
{
    log_warn("no room for new segments while workers hold the old ones: restarting all workers");
    s->epoch_delayed = true;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&s->workers.rows[w]))
            terminate(s, w, "to free shared memory");
}

/* What a coordinator that comes after a kill of this one will find. NULL: nothing. */
static void note_tiers(struct supervisor *s, const struct epoch_settings *now)
{
    struct hill_why why;
    run_folder_forget_left(s->folder, false);
    if (!now)
        tiers_record_remove(s->folder->path);
    else if (tiers_record_write(s->folder->path, now, &why))
        log_warn("%s; should the coordinator die, requests are computed again", why.text);
}

static void new_epoch(struct supervisor *s, bool counts, const char *reason)
{
    struct hill_why why = {{0}};
    s->hooks.epoch_ends(s->hooks.context, counts);
    if (s->ending)
        return;
    remove_segments(s, keeps_tiers(s));
    s->epoch++;
    s->tiers_epoch = s->tiers_epoch ? s->tiers_epoch : s->epoch;
    s->epoch_delayed = false;
    struct epoch_settings now = settings_now(s);
    int code = epoch_create(&now, &why);
    s->epoch_exists = code == 0;
    if (code && s->tiers_epoch == s->epoch)
        s->tiers_epoch = 0; /* it was not made */
    note_tiers(s, code == 0 ? &now : NULL);
    FAULT_POINT(coordinator, epoch, created);
    if (code == HILL_E_NOSPACE && worker_table_any_running(&s->workers)) {
        delay_epoch(s);
        return;
    }
    if (code) {
        supervisor_end(s, code, why.text);
        return;
    }
    log_debug("epoch %u: %s", s->epoch, reason);
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        const struct worker_row *row = &s->workers.rows[w];
        if (row->address.length && (row->state == WORKER_CONFIGURED || row->state == WORKER_READY))
            configure(s, w);
    }
}

void supervisor_new_epoch(struct supervisor *s, const char *reason)
{
    new_epoch(s, true, reason);
}

/* ---- the drive --------------------------------------------------------------------------- */

/* The only place where a change of the drive changes its state. */
static void set_change(struct supervisor *s, enum drive_change change)
{
    static const char *const names[] = {"none",   "attach, waits", "attach", "detach, waits",
                                        "drains", "detach",        "undo"};
    log_debug("change of the drive: %s -> %s", names[s->change], names[change]);
    s->change = change;
}

static void begin_change(struct supervisor *s, enum drive_change change,
                         const struct proto_address *from)
{
    set_change(s, change);
    s->change_client = *from;
    s->change_began_ns = clock_now_ns();
    s->change_text[0] = '\0';
}

static void want_agent(struct supervisor *s, bool wanted, const char *reason)
{
    worker_table_want(&s->workers, WORKER_AGENT, wanted, clock_now_ns());
    if (!wanted)
        terminate(s, WORKER_AGENT, reason);
}

/* A newly attached agent cannot work: detach again; the client is told why when the others are
 * ready again. */
static void undo_attach(struct supervisor *s, int code, const char *text)
{
    set_change(s, CHANGE_UNDO);
    s->change_code = code;
    snprintf(s->change_text, sizeof s->change_text, "cannot attach %.150s: %.300s",
             s->settings->csd_url, text);
    log_warn("%s; going on without a CSD", s->change_text);
    settings_detach(s->settings);
    want_agent(s, false, "because its drive cannot be used");
}

static void attach_now(struct supervisor *s)
{
    struct hill_why why = {{0}};
    int code = settings_attach(s->settings, s->change_url, &why);
    if (code) {
        router_reply(s->router, &s->change_client, code, why.text);
        set_change(s, CHANGE_NONE);
        return;
    }
    log_info("attaching %s, --cold-mb %.3f", s->settings->csd_url,
             (double)s->settings->epoch.cold_cap_bytes / 1048576.0);
    set_change(s, CHANGE_ATTACH);
    want_agent(s, true, NULL);
    new_epoch(s, false, "a CSD is being attached");
}

/* Nobody uses the drive any more: its agent's end is noticed by nobody. idle: nor does the scorer
 * know that; then it is told by an epoch without a drive. */
static void detach_now(struct supervisor *s, bool idle)
{
    log_info("detaching %s", s->settings->csd_url);
    if (s->change != CHANGE_NONE) /* else the client has been answered: the drive was only read */
        set_change(s, CHANGE_DETACH);
    s->leaves_epoch_be = !idle;
    settings_detach(s->settings);
    want_agent(s, false, "because it is detached");
}

/* What does not fit M_0 stays on the drive, which a process without its accelerator reads. */
static void detach_to_plain(struct supervisor *s)
{
    log_info("detaching %s; what is left there is read by the host's CPU", s->settings->csd_url);
    set_change(s, CHANGE_DETACH);
    settings_detach_to_plain(s->settings);
    want_agent(s, false, "because it is detached"); /* its exit brings another one, and the epoch */
}

static void ask_to_drain(struct supervisor *s)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Drain drain = HILL__DRAIN__INIT;
    message.body_case = HILL__MESSAGE__BODY_DRAIN;
    message.drain = &drain;
    if (router_to_worker(s->router, WORKER_SCORER, &message) == 0)
        set_change(s, CHANGE_DRAINS);
}

/* With all workers ready: what waits for that, for prompts, or for requests at all, goes on. */
static void change_goes_on(struct supervisor *s)
{
    bool busy = s->hooks.is_busy(s->hooks.context);
    if (s->hooks.is_reading(s->hooks.context))
        return;
    if (busy && !s->hooks.can_go_on(s->hooks.context))
        return; /* these begin anew in another epoch: they end first */
    if (s->change == CHANGE_ATTACH_WAITS)
        attach_now(s);
    else if (busy)
        ask_to_drain(s);
    else
        detach_now(s, true);
}

static void say_changed(struct supervisor *s)
{
    bool undone = s->change == CHANGE_UNDO;
    char text[sizeof s->change_text + 32];
    snprintf(text, sizeof text, "%s%s",
             undone                       ? ""
             : s->change == CHANGE_ATTACH ? "attached"
                                          : "detached",
             s->change_text);
    router_reply(s->router, &s->change_client, undone ? s->change_code : 0, text);
    set_change(s, CHANGE_NONE);
}

void supervisor_settled(struct supervisor *s)
{
    if (s->change == CHANGE_ATTACH_WAITS || s->change == CHANGE_DETACH_WAITS)
        change_goes_on(s);
    else if (s->change != CHANGE_NONE && s->change != CHANGE_DRAINS)
        say_changed(s);
}

bool supervisor_holds_back(const struct supervisor *s)
{
    return s->change != CHANGE_NONE;
}

/* May the drive change now? Answers the client when not. */
static bool may_change(struct supervisor *s, const struct proto_address *from)
{
    const char *text = NULL;
    if (s->ending)
        text = "the pipeline is ending";
    else if (s->change != CHANGE_NONE)
        text = "another attach or detach is under way";
    if (text)
        router_reply(s->router, from, HILL_E_BUSY, text);
    return !text;
}

static void take_attach(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    struct hill_why why = {{0}};
    const char *url = a->message->attach->url;
    if (!may_change(s, &a->from))
        return;
    int code = settings_may_attach(s->settings, url, &why);
    if (code) {
        router_reply(s->router, &a->from, code, why.text);
        return;
    }
    begin_change(s, CHANGE_ATTACH_WAITS, &a->from);
    snprintf(s->change_url, sizeof s->change_url, "%s", url);
}

static void take_detach(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    if (!may_change(s, &a->from))
        return;
    if (!settings_has_drive(s->settings)) {
        router_reply(s->router, &a->from, HILL_E_INVALID, "no CSD is attached");
        return;
    }
    begin_change(s, CHANGE_DETACH_WAITS, &a->from);
}

/* How far the scorer has come with emptying the drive. */
static void take_drained(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Drained *d = a->message->drained;
    const double mib = 1048576.0;
    if (s->change == CHANGE_DRAINS) {
        snprintf(s->change_text, sizeof s->change_text,
                 ": %llu entries (%.3f MiB) moved up, %llu (%.3f MiB) %s%.200s, %.3f s",
                 (unsigned long long)d->moved, (double)d->moved_bytes / mib,
                 (unsigned long long)d->left, (double)d->left_bytes / mib,
                 d->over ? "left on "
                         : "stay until their requests end, without its accelerator, on ",
                 s->settings->csd_url, (double)(clock_now_ns() - s->change_began_ns) / 1e9);
        if (d->over)
            detach_now(s, false);
        else
            detach_to_plain(s);
    } else if (d->over && s->change == CHANGE_NONE && s->settings->epoch.csd_plain) {
        detach_now(s, false);
    }
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

/* A worker has ended that an epoch is made without: what a change of the drive waited for from it
 * does not come, and a drive that is lost may be one that is detached. */
static void lose_drive(struct supervisor *s, enum worker w)
{
    const struct epoch_settings *e = &s->settings->epoch;
    if (s->change == CHANGE_DRAINS)
        set_change(s, CHANGE_DETACH_WAITS);
    if (w != WORKER_AGENT || !s->workers.rows[w].wanted || s->change != CHANGE_NONE ||
        !s->settings->options.csd_degrades || e->csd_plain)
        return;
    log_warn("the drive is lost: going on without it (--csd-on-loss degrade)");
    if (s->hooks.is_busy(s->hooks.context)) {
        settings_detach_to_plain(s->settings);
    } else {
        settings_detach(s->settings);
        worker_table_want(&s->workers, WORKER_AGENT, false, clock_now_ns());
    }
}

static void worker_exited(struct supervisor *s, enum worker w, const struct worker_end *end)
{
    struct worker_row *row = &s->workers.rows[w];
    int32_t pid = row->pid;
    bool knew_epoch = row->address.length != 0;
    bool given_up = worker_table_exited(&s->workers, w, end->orderly, clock_now_ns());
    run_folder_write_pids(s->folder, &s->workers);
    if (!given_up)
        log_end(s, row, pid, end->text);
    if (s->ending)
        return;
    if (w == WORKER_AGENT && s->leaves_epoch_be && !row->wanted) {
        s->leaves_epoch_be = false;
        return;
    }
    if (s->change == CHANGE_ATTACH && w == WORKER_AGENT && !row->ever_ready && row->wanted) {
        undo_attach(s, row->failure_code ? row->failure_code : HILL_E_PEER_GONE,
                    row->failure_code ? row->failure_text
                                      : "the CSD agent ended before it was ready");
        knew_epoch = true; /* the others have been configured with a drive */
    } else if (given_up) {
        give_up(s, w, end->text);
        return;
    }
    if (w == WORKER_AGENT && s->change == CHANGE_DETACH && s->settings->epoch.csd_plain)
        worker_table_want(&s->workers, w, true, clock_now_ns());
    lose_drive(s, w);
    if (s->epoch_delayed ? !worker_table_any_running(&s->workers) : knew_epoch)
        new_epoch(s, w != WORKER_AGENT, "a worker has ended");
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

/* ---- messages ---------------------------------------------------------------------------- */

static void take_hello(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Hello *hello = a->message->hello;
    enum worker w = worker_table_by_role(hello->role);
    if (w == WORKER_COUNT || s->workers.rows[w].pid != hello->pid) {
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
        supervisor_end(s, HILL_E_UNSUPPORTED, text);
        return;
    }
    row->address = a->from;
    s->hooks.worker_came(s->hooks.context, w);
    worker_table_heartbeat(&s->workers, w, 0, clock_now_ns());
    worker_table_configured(&s->workers, w);
    configure(s, w);
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
    if (supervisor_ready(s))
        s->tiers_unready = 0;
}

void supervisor_failed(struct supervisor *s, enum worker w, const Hill__Failure *failure)
{
    struct worker_row *row = &s->workers.rows[w];
    if (!failure->fatal) {
        log_debug("%s: %s", row->name, failure->text);
        return;
    }
    worker_table_failure(&s->workers, w, failure->code, failure->text);
    s->tiers_spoilt = s->tiers_epoch < s->epoch;
    if (s->ending || row->ever_ready || worker_failure_passes(failure->code)) {
        log_debug("%s cannot go on: %s", row->name, failure->text); /* it has said so itself */
        return;                                                     /* its exit does the rest */
    }
    if (s->change == CHANGE_ATTACH && w == WORKER_AGENT) {
        undo_attach(s, failure->code, failure->text);
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
    enum worker w = worker_table_by_role(beat->role);
    if (w == WORKER_COUNT || beat->pid != s->workers.rows[w].pid) {
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
    {HILL__MESSAGE__BODY_ATTACH, FROM_CLIENT, take_attach},
    {HILL__MESSAGE__BODY_DETACH, FROM_CLIENT, take_detach},
    {HILL__MESSAGE__BODY_DRAINED, FROM_SCORER, take_drained},
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

static void do_action(struct supervisor *s, enum worker w, enum worker_action action,
                      int64_t now_ns)
{
    struct worker_row *row = &s->workers.rows[w];
    if (action == WORKER_DO_START && !s->epoch_delayed && !s->ending) {
        start(s, w);
    } else if (action == WORKER_DO_TERMINATE) {
        char how[96];
        describe_hang(s, w, now_ns, how, sizeof how);
        log_warn("%s (pid %d) %s: SIGTERM, SIGKILL in %.1f s", row->name, (int)row->pid, how,
                 (double)WORKER_KILL_HUNG_NS / 1e9);
        terminate_in(s, w, WORKER_KILL_HUNG_NS, "because it hangs");
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
        terminate(s, next, "in order");
}

int64_t supervisor_next_ns(const struct supervisor *s)
{
    int64_t next = worker_table_next_ns(&s->workers);
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
    worker_table_init(&s->workers, settings->epoch.csd_attached, &settings->limits);
    router_register(router, routes, sizeof routes / sizeof *routes, s);
}

/* What a killed coordinator has left is this one's, where it is set up as that was. */
static void take_tiers_over(struct supervisor *s)
{
    const struct tiers_record *left = &s->folder->left;
    struct hill_why why = {"it was set up otherwise"};
    if (!left->tiers_epoch)
        return;
    s->epoch = left->epoch;
    s->tiers_epoch = left->tiers_epoch;
    struct epoch_settings now = settings_now(s);
    if (left->settings == tiers_record_settings(&now) && epoch_kept(&now, &why) == 0)
        return;
    log_info("entries of a killed pipeline are not kept: %s", why.text);
    run_folder_forget_left(s->folder, true);
    s->tiers_epoch = 0;
}

int supervisor_begin(struct supervisor *s, struct hill_why *why)
{
    take_tiers_over(s);
    supervisor_new_epoch(s, "the first one");
    *why = s->end_why;
    return s->ending ? s->end_code : 0;
}

bool supervisor_kept_tiers(const struct supervisor *s)
{
    return s->tiers_epoch < s->epoch;
}

void supervisor_close(struct supervisor *s)
{
    if (s->folder)
        remove_segments(s, false);
    proto_free(s->live);
}
