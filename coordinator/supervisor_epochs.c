/* coordinator/supervisor_epochs.c - segments, and who is told of them; see supervisor_parts.h. */
#include "coordinator/supervisor_parts.h"

#include "base/clock.h"
#include "base/fault.h"
#include "proto/party.h"

#define UNREADY_DEATHS_MAX 3u

void supervisor_remove_segments(struct supervisor *s, bool keep)
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

void supervisor_tiers_work(struct supervisor *s)
{
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        s->children[w].unready_deaths = 0;
}

/* Does the hot segment go on to the next epoch? */
static bool keeps_tiers(struct supervisor *s)
{
    bool keep = s->tiers_epoch && !s->tiers_spoilt && s->hooks.keeps_tiers(s->hooks.context);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        keep &= s->children[w].unready_deaths < UNREADY_DEATHS_MAX;
    if (!keep)
        supervisor_tiers_work(s); /* they are made anew */
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
    s->hooks.balance(s->hooks.context, &now);
    return now;
}

void supervisor_configure(struct supervisor *s, enum worker w)
{
    struct epoch_settings now = settings_now(s);
    struct epoch_wire wire;
    if (worker_is_agent(w))
        settings_of_drive(s->settings, w - WORKER_AGENT, &now);
    if (!s->epoch_exists)
        return; /* supervisor_next_epoch tells everyone who is there when it has created one */
    epoch_settings_to_wire(&wire, &now);
    worker_table_configured(&s->workers, w, clock_now_ns());
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
            supervisor_terminate(s, w, WORKER_KILL_NS, "to free shared memory");
}

/* What a coordinator that comes after a kill of this one will find. NULL: nothing. */
static void note_tiers(struct supervisor *s, const struct epoch_settings *now)
{
    struct hill_why why;
    run_folder_forget_left(s->folder, false);
    if (!now || s->pids_lack_one) /* that worker could outlive this process, and write into them */
        tiers_record_remove(s->folder->path);
    else if (tiers_record_write(s->folder->path, now, settings_asked(s->settings), &why))
        log_warn("%s; should the coordinator die, requests are computed again", why.text);
}

void supervisor_note_drives(struct supervisor *s)
{
    struct hill_why why = {""};
    struct drives_record drives;
    if (s->change == CHANGE_ATTACH)
        return; /* nobody knows yet whether it can be used */
    settings_note_drives(s->settings, &drives);
    if (drives_record_write(s->folder->path, &drives, &why))
        log_warn("%s; should the coordinator die, the drives are those of the options", why.text);
    if (!s->epoch_exists)
        return;
    const struct epoch_settings now = settings_now(s); /* they are part of what tiers fit */
    note_tiers(s, &now);
}

void supervisor_next_epoch(struct supervisor *s, bool counts, const char *reason)
{
    struct hill_why why = {{0}};
    s->hooks.epoch_ends(s->hooks.context, counts);
    if (s->ending)
        return;
    supervisor_remove_segments(s, keeps_tiers(s));
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
            supervisor_configure(s, w);
    }
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
    supervisor_next_epoch(s, true, "the first one");
    *why = s->end_why;
    return s->ending ? s->end_code : 0;
}

bool supervisor_kept_tiers(const struct supervisor *s)
{
    return s->tiers_epoch < s->epoch;
}
