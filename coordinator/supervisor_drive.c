/* coordinator/supervisor_drive.c - the drive comes and goes; see supervisor_parts.h. */
#include "coordinator/supervisor_parts.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"

#define MIB           1048576.0
#define PLAIN_IDLE_MS 1000 /* heartbeats bring the loop round several times in it */

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
    enum worker w = WORKER_AGENT + s->change_drive;
    worker_table_want(&s->workers, w, wanted, clock_now_ns());
    if (!wanted)
        supervisor_terminate(s, w, WORKER_KILL_NS, reason);
}

void drive_undo_attach(struct supervisor *s, int code, const char *text)
{
    set_change(s, CHANGE_UNDO);
    s->change_code = code;
    snprintf(s->change_text, sizeof s->change_text, "cannot attach %.150s: %.300s",
             settings_url(s->settings, s->change_drive), text);
    log_warn("%s; going on without %s", s->change_text,
             settings_several(s->settings) ? "it" : "a CSD");
    settings_undo_attach(s->settings, s->change_drive);
    supervisor_note_drives(s);
    want_agent(s, false, "because its drive cannot be used");
}

static void attach_now(struct supervisor *s)
{
    struct hill_why why = {{0}};
    const struct csd_model *said = s->change_names_model ? &s->change_model : NULL;
    char model[CSD_MODEL_TEXT];
    int code = settings_attach(s->settings, s->change_drive, s->change_url, said, &why);
    if (code) {
        router_reply(s->router, &s->change_client, code, why.text);
        set_change(s, CHANGE_NONE);
        return;
    }
    log_info("attaching %s, --cold-mb %.3f, csd model %s",
             settings_url(s->settings, s->change_drive),
             (double)settings_cap(s->settings, s->change_drive) / 1048576.0,
             csd_model_print(model, settings_model(s->settings, s->change_drive)));
    set_change(s, CHANGE_ATTACH);
    FAULT_POINT(coordinator, attach, begun);
    want_agent(s, true, NULL);
    supervisor_next_epoch(s, false, "a CSD is being attached");
}

/* Nobody uses the drive any more: its agent's end is noticed by nobody. idle: nor does the scorer
 * know that; then it is told by an epoch without a drive. */
static void detach_now(struct supervisor *s, bool idle)
{
    log_info("detaching %s", settings_url(s->settings, s->change_drive));
    if (s->change != CHANGE_NONE) /* else the client has been answered: the drive was only read */
        set_change(s, CHANGE_DETACH);
    const struct worker_row *agent = &s->workers.rows[WORKER_AGENT + s->change_drive];
    bool serves = agent->state == WORKER_READY;
    s->leaves_epoch_be = !idle && worker_running(agent);
    settings_detach(s->settings, s->change_drive);
    supervisor_note_drives(s);
    want_agent(s, false, "because it is detached");
    if (!idle &&
        !serves) /* one before it has died meanwhile: the others wait for it in a new epoch */
        supervisor_next_epoch(s, false, "the agent of a drive that nobody needs has died");
}

/* What does not fit M_0 stays on the drive, which a process without its accelerator reads. */
static void detach_to_plain(struct supervisor *s)
{
    log_info("detaching %s; what is left there is read by the host's CPU", s->settings->csd_url);
    set_change(s, CHANGE_DETACH);
    settings_detach_to_plain(s->settings);
    supervisor_note_drives(s);
    want_agent(s, false, "because it is detached"); /* its exit brings another one, and the epoch */
}

static void ask_to_drain(struct supervisor *s)
{
    Hill__Drain drain = HILL__DRAIN__INIT;
    drain.drive = s->change_drive;
    if (router_to_worker(s->router, WORKER_SCORER, &PROTO_MESSAGE(DRAIN, drain, &drain)) == 0)
        set_change(s, CHANGE_DRAINS);
}

/* A change that has not begun ends with its client. hillctl passes over what it is sent here. */
static void drop_abandoned(struct supervisor *s)
{
    Hill__Accepted waits = HILL__ACCEPTED__INIT;
    if (s->change != CHANGE_ATTACH_WAITS && s->change != CHANGE_DETACH_WAITS)
        return;
    if (router_to_client(s->router, &s->change_client,
                         &PROTO_MESSAGE(ACCEPTED, accepted, &waits)) != HILL_E_PEER_GONE)
        return;
    log_info("who asked to attach or detach a drive has gone: it is not done");
    set_change(s, CHANGE_NONE);
}

/* With all workers ready: what waits for that, for prompts, for requests that come back, or for
 * requests at all, goes on. */
static void change_goes_on(struct supervisor *s)
{
    bool busy = s->hooks.is_busy(s->hooks.context);
    if (s->hooks.is_reading(s->hooks.context))
        return;
    if (busy && !s->hooks.can_go_on(s->hooks.context))
        return; /* these begin anew in another epoch: they end first */
    drop_abandoned(s);
    if (s->change == CHANGE_ATTACH_WAITS)
        attach_now(s);
    else if (s->change == CHANGE_DETACH_WAITS && busy)
        ask_to_drain(s);
    else if (s->change == CHANGE_DETACH_WAITS)
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
    enum drive_change change = s->change;
    set_change(s, CHANGE_NONE);
    if (change == CHANGE_ATTACH) {
        supervisor_note_drives(s); /* before the client hears that it holds */
        FAULT_POINT(coordinator, attach, noted);
    }
    router_reply(s->router, &s->change_client, undone ? s->change_code : 0, text);
}

/* The scorer says when nobody needs what stayed on a detached drive, but a request that was
 * cancelled while it waited for an epoch is on its books for ever. None runs, and the scorer has
 * had its time: then an epoch without a drive says so. */
static void leave_plain_drive(struct supervisor *s)
{
    int64_t now = clock_now_ns();
    bool needed = !s->settings->epoch.csd_plain || s->hooks.is_busy(s->hooks.context) ||
                  s->hooks.keeps_tiers(s->hooks.context); /* whose clients come back for it */
    if (needed || s->plain_idle_ns == 0)
        s->plain_idle_ns = needed ? 0 : now;
    if (needed || now - s->plain_idle_ns < CLOCK_MS(PLAIN_IDLE_MS))
        return;
    s->plain_idle_ns = 0;
    detach_now(s, false);
    supervisor_next_epoch(s, false, "nobody needs the detached drive any more");
}

void supervisor_settled(struct supervisor *s)
{
    if (s->change == CHANGE_ATTACH_WAITS || s->change == CHANGE_DETACH_WAITS)
        change_goes_on(s);
    else if (s->change != CHANGE_NONE && s->change != CHANGE_DRAINS)
        say_changed(s);
    else if (s->change == CHANGE_NONE)
        leave_plain_drive(s);
}

bool supervisor_holds_back(const struct supervisor *s)
{
    return s->change != CHANGE_NONE;
}

/* May the drive change now? Answers the client when not. */
static bool may_change(struct supervisor *s, const struct proto_address *from)
{
    const char *text = NULL;
    drop_abandoned(s);
    if (s->ending)
        text = "the pipeline is ending";
    else if (s->change != CHANGE_NONE)
        text = "another attach or detach is under way";
    if (text)
        router_reply(s->router, from, HILL_E_BUSY, text);
    return !text;
}

/* The agent that reads what is left on a drive has been ready: one of another kind in its place,
 * which cannot open its device, would be tried again and again, and no attach be undone. */
static int check_kind(const struct settings *settings, const char *url, struct hill_why *why)
{
    const char *wanted = *url ? url : settings->csd_default_url;
    size_t kind = strcspn(settings->csd_url, ":") + 1;
    if (!settings->epoch.csd_plain || strncmp(wanted, settings->csd_url, kind) == 0)
        return 0;
    return hill_fail(why, HILL_E_BUSY,
                     "requests that run still have entries on %.200s: attach that with a URL of "
                     "the same kind, or wait",
                     settings->csd_url);
}

void drive_take_attach(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    struct hill_why why = {{0}};
    const char *url = a->message->attach->url, *text = a->message->attach->csd_model;
    struct csd_model model = {.on = false};
    if (!may_change(s, &a->from))
        return;
    uint32_t drive;
    int code =
        settings_may_attach(s->settings, url, s->workers.rows[WORKER_AGENT].device, &drive, &why);
    if (!code)
        code = check_kind(s->settings, url, &why);
    if (!code && *text)
        code = csd_model_parse(&model, text, &why);
    if (code) {
        router_reply(s->router, &a->from, code, why.text);
        return;
    }
    begin_change(s, CHANGE_ATTACH_WAITS, &a->from);
    s->change_drive = drive;
    s->change_model = model;
    s->change_names_model = *text;
    snprintf(s->change_url, sizeof s->change_url, "%s", url);
}

/* Has an agent that was started again ended before it was ready? */
static bool is_in_vain(const struct worker_row *row)
{
    return row->deaths && !worker_running(row) && !row->process_ready &&
           !worker_failure_passes(row->failure_code);
}

/* Does a detach wait for a drive for which an agent was started again in vain? Whatever
 * --csd-on-loss says, nobody waits for that. */
static bool is_let_go(const struct supervisor *s, enum worker w)
{
    bool leaves = s->change == CHANGE_DETACH_WAITS ||
                  (s->change == CHANGE_DETACH && s->settings->epoch.csd_plain);
    return leaves && w == WORKER_AGENT + s->change_drive && is_in_vain(&s->workers.rows[w]);
}

/* Nor does anybody wait for what is left on a drive that has been detached or lost, when an agent
 * says that it cannot be had. Where the drive is held by another process it can be, later. */
static bool is_rest_lost(const struct supervisor *s, enum worker w)
{
    const struct worker_row *row = &s->workers.rows[w];
    return s->settings->epoch.csd_plain && row->failure_code && row->failure_code != HILL_E_BUSY &&
           is_in_vain(row);
}

void drive_take_detach(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    if (!may_change(s, &a->from))
        return;
    struct hill_why why = {{0}};
    uint32_t drive;
    int code = settings_may_detach(s->settings, a->message->detach->url, &drive, &why);
    if (code) {
        router_reply(s->router, &a->from, code, why.text);
        return;
    }
    begin_change(s, CHANGE_DETACH_WAITS, &a->from);
    s->change_drive = drive;
    enum worker w = WORKER_AGENT + drive;
    if (is_let_go(s, w) && drive_lose(s, w, false))
        supervisor_next_epoch(s, false, "a drive that is away is detached");
}

/* One of several: the others have its entries, or they have no place. */
static void take_drained_of_several(struct supervisor *s, const Hill__Drained *d)
{
    const char *url = settings_url(s->settings, s->change_drive);
    char text[sizeof s->change_text];
    if (d->over) {
        snprintf(s->change_text, sizeof s->change_text,
                 ": %llu entries (%.3f MiB) moved to DRAM or other drives from %.200s, %.3f s",
                 (unsigned long long)d->moved, (double)d->moved_bytes / MIB, url,
                 (double)(clock_now_ns() - s->change_began_ns) / 1e9);
        detach_now(s, false);
        return;
    }
    snprintf(
        text, sizeof text,
        "cannot detach %.200s now: %llu entries (%.0f bytes) of requests that run have no place "
        "in DRAM or on the other drives, or cannot be read; ask again when the requests are "
        "over",
        url, (unsigned long long)d->left, (double)d->left_bytes);
    log_warn("%s", text);
    router_reply(s->router, &s->change_client, HILL_E_NOSPACE, text);
    set_change(s, CHANGE_NONE);
}

/* How far the scorer has come with emptying the drive. */
void drive_take_drained(void *owner, struct arrival *a)
{
    struct supervisor *s = owner;
    const Hill__Drained *d = a->message->drained;
    if (s->change == CHANGE_DRAINS && settings_several(s->settings)) {
        take_drained_of_several(s, d);
    } else if (s->change == CHANGE_DRAINS) {
        snprintf(s->change_text, sizeof s->change_text,
                 ": %llu entries (%.3f MiB) moved up, %llu (%.3f MiB) %s%.200s, %.3f s",
                 (unsigned long long)d->moved, (double)d->moved_bytes / MIB,
                 (unsigned long long)d->left, (double)d->left_bytes / MIB,
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

/* The drive's host does not answer: nor would it answer an agent that is to read what is left
 * there, and requests that have stripes there begin anew. */
static bool is_out_of_reach(const struct supervisor *s, enum worker w)
{
    return s->workers.rows[w].failure_code == HILL_E_IO &&
           strncmp(s->settings->csd_url, "tcp:", 4) == 0;
}

static void go_on_without(struct supervisor *s)
{
    settings_detach(s->settings, 0);
    supervisor_note_drives(s);
    worker_table_want(&s->workers, WORKER_AGENT, false, clock_now_ns());
}

/* A client whose detach is under way gets it, in other words. */
static void detach_lost(struct supervisor *s, const char *text)
{
    if (s->change == CHANGE_DETACH_WAITS)
        set_change(s, CHANGE_DETACH);
    if (s->change == CHANGE_DETACH)
        snprintf(s->change_text, sizeof s->change_text, ": %s", text);
}

static void lose_rest(struct supervisor *s)
{
    char text[sizeof s->change_text - 2];
    const char *why = s->workers.rows[WORKER_AGENT].failure_text;
    snprintf(text, sizeof text,
             "%.200s is out of reach%s%.200s%s: requests that have stripes there begin anew "
             "without it",
             s->settings->csd_url, *why ? " (" : "", why, *why ? ")" : "");
    log_warn("%s", text);
    detach_lost(s, text);
    go_on_without(s);
}

static const char *why_not_waited(const struct supervisor *s)
{
    return s->settings->options.csd_degrades ? "--csd-on-loss degrade" : "it is being detached";
}

/* One of several: the others go on, and requests that have stripes set aside on it begin anew.
 * False: a change that is under way ends otherwise. */
static bool lose_one(struct supervisor *s, enum worker w)
{
    uint32_t drive = w - WORKER_AGENT;
    bool changes = s->change != CHANGE_NONE && s->change_drive == drive;
    if (changes && s->change != CHANGE_DETACH_WAITS)
        return false;
    log_warn("%s is lost: going on without it (%s); requests that have stripes there begin anew",
             settings_url(s->settings, drive), why_not_waited(s));
    if (changes)
        detach_lost(s, "the drive was lost before it was empty");
    settings_detach(s->settings, drive);
    supervisor_note_drives(s);
    worker_table_want(&s->workers, w, false, clock_now_ns());
    return true;
}

void drive_lose_drain(struct supervisor *s)
{
    if (s->change == CHANGE_DRAINS)
        set_change(s, CHANGE_DETACH_WAITS);
}

bool drive_lose(struct supervisor *s, enum worker w, bool given_up)
{
    drive_lose_drain(s);
    drop_abandoned(s);
    bool let_go = is_let_go(s, w), plain = s->settings->epoch.csd_plain;
    if (s->epoch_delayed)
        return false; /* all workers were ended to free shared memory: no drive is lost by that */
    bool rest_lost = is_rest_lost(s, w) || (given_up && plain);
    if (!worker_is_agent(w) || !s->workers.rows[w].wanted ||
        !(let_go || rest_lost || s->settings->options.csd_degrades))
        return false;
    if (settings_several(s->settings))
        return lose_one(s, w);
    /* also during a change, which waits for it */
    if (rest_lost || ((plain || let_go) && is_out_of_reach(s, w))) {
        lose_rest(s);
        return true;
    }
    if (plain || (s->change != CHANGE_NONE && s->change != CHANGE_DETACH_WAITS))
        return false;
    log_warn("the drive is lost: going on without it (%s)", why_not_waited(s));
    detach_lost(s, "the drive was lost before it was empty");
    if (!s->hooks.is_busy(s->hooks.context) && !s->hooks.keeps_tiers(s->hooks.context)) {
        go_on_without(s);
        return true;
    }
    settings_detach_to_plain(s->settings);
    supervisor_note_drives(s);
    return true;
}
