/*
 * coordinator/epoch.c - epochs of the data plane, and the workers' processes.
 *
 * What: an epoch is one set of segments. When a worker that knew it dies, the segments are
 * unlinked, the next epoch's are created, and the survivors get a Configure with the new epoch; the
 * dead worker gets its own at Hello. Who calls it: the other parts of the pipeline. Concurrency:
 * one thread. Failure: no room for new segments while survivors still map the old ones: all are
 * ended first, then it is tried once more.
 */
#include "coordinator/pipeline_internal.h"

#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/worker_process.h"
#include "proto/party.h"

void epoch_remove_segments(struct pipeline *p)
{
    if (p->epoch)
        epoch_unlink(p->folder->run_id, p->epoch);
    p->epoch_exists = false;
}

/* The settings as they hold in this epoch. */
static struct epoch_settings settings_now(const struct pipeline *p)
{
    struct epoch_settings s = p->settings->epoch;
    s.run_id = p->folder->run_id;
    s.epoch = p->epoch;
    s.beta = profile_beta(p);
    return s;
}

void epoch_configure(struct pipeline *p, enum worker w)
{
    struct epoch_settings now = settings_now(p);
    struct epoch_wire wire;
    if (!p->epoch_exists)
        return; /* epoch_begin tells everyone who is there when it has created one */
    epoch_settings_to_wire(&wire, &now);
    worker_table_configured(&p->workers, w);
    int code = worker_send(p, w, &wire.message);
    if (code)
        log_warn("configuring %s failed: %s; it will be found dead", p->workers.rows[w].name,
                 hill_strerror(code));
}

static void delay_epoch(struct pipeline *p)
{
    log_warn("no room for new segments while workers hold the old ones: restarting all workers");
    p->epoch_delayed = true;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&p->workers.rows[w]))
            worker_terminate(p, w, "to free shared memory");
}

void epoch_begin(struct pipeline *p, const char *reason)
{
    struct hill_why why = {{0}};
    requests_interrupt(p);
    profile_interrupt(p);
    if (p->ending)
        return;
    epoch_remove_segments(p);
    p->epoch++;
    p->epoch_delayed = false;
    struct epoch_settings now = settings_now(p);
    int code = epoch_create(&now, &why);
    p->epoch_exists = code == 0;
    if (code == HILL_E_NOSPACE && worker_table_any_running(&p->workers)) {
        delay_epoch(p);
        return;
    }
    if (code) {
        pipeline_end(p, code, why.text);
        return;
    }
    log_debug("epoch %u: %s", p->epoch, reason);
    for (enum worker w = 0; w < WORKER_COUNT; w++) {
        const struct worker_row *row = &p->workers.rows[w];
        if (row->address.length && (row->state == WORKER_CONFIGURED || row->state == WORKER_READY))
            epoch_configure(p, w);
    }
}

/* ---- processes --------------------------------------------------------------------------- */

void worker_start(struct pipeline *p, enum worker w)
{
    struct hill_why why = {{0}};
    int32_t pid;
    uint64_t start_time;
    int code = worker_process_start(&pid, &start_time, p->workers.rows[w].binary, p->folder->path,
                                    p->settings->log_level, &why);
    if (code) {
        pipeline_end(p, code, why.text);
        return;
    }
    worker_table_started(&p->workers, w, pid, start_time, clock_now_ns());
    if (run_folder_write_pids(p->folder, &p->workers))
        log_warn(
            "writing %s/pids failed; after a kill of this process, workers that hang are not found",
            p->folder->path);
}

void worker_terminate(struct pipeline *p, enum worker w, const char *reason)
{
    struct worker_row *row = &p->workers.rows[w];
    if (!worker_running(row) || row->state == WORKER_STOPPING)
        return;
    log_debug("ending %s (pid %d) %s", row->name, (int)row->pid, reason);
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    shutdown.graceful = true;
    message.body_case = HILL__MESSAGE__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    if (row->address.length)
        worker_send(p, w, &message);
    kill(row->pid, SIGTERM);
    worker_table_terminated(&p->workers, w, clock_now_ns());
}

static void worker_exited(struct pipeline *p, enum worker w, const char *how)
{
    struct worker_row *row = &p->workers.rows[w];
    int32_t pid = row->pid;
    bool knew_epoch = row->address.length != 0, expected = p->ending || !row->wanted;
    bool given_up = worker_table_exited(&p->workers, w, clock_now_ns());
    run_folder_write_pids(p->folder, &p->workers);
    if (expected)
        log_debug("%s (pid %d) %s", row->name, (int)pid, how);
    else
        log_warn("%s (pid %d) %s; starting it again in %.0f s", row->name, (int)pid, how,
                 (double)row->backoff_ns / 1e9);
    if (p->ending)
        return;
    if (p->change == CHANGE_ATTACH && w == WORKER_AGENT && !row->ever_ready && row->wanted) {
        change_attach_failed(p, row->failure_code ? row->failure_code : HILL_E_PEER_GONE,
                             row->failure_code ? row->failure_text
                                               : "the CSD agent ended before it was ready");
        knew_epoch = true; /* the others have been configured with a drive */
    } else if (given_up) {
        char text[512];
        snprintf(text, sizeof text, "%s ended %u times before it was ready%s%s", row->name,
                 row->early_deaths, row->failure_code ? ": " : "", row->failure_text);
        pipeline_end(p, row->failure_code ? row->failure_code : HILL_E_PEER_GONE, text);
        return;
    }
    if (p->epoch_delayed ? !worker_table_any_running(&p->workers) : knew_epoch)
        epoch_begin(p, "a worker has ended");
}

void workers_reap(struct pipeline *p)
{
    int32_t pid;
    char how[64];
    p->reap_at_ns = CLOCK_NEVER;
    while (worker_process_reap(&pid, how, sizeof how)) {
        enum worker w = worker_table_by_pid(&p->workers, pid);
        if (w != WORKER_COUNT)
            worker_exited(p, w, how);
    }
}

/* ---- attach and detach ------------------------------------------------------------------- */

void change_finish(struct pipeline *p, int code, const char *text)
{
    if (p->change == CHANGE_NONE)
        return;
    p->change = CHANGE_NONE;
    client_reply(p, &p->change_client, code, text);
}

void change_attach_failed(struct pipeline *p, int code, const char *text)
{
    p->change = CHANGE_UNDO;
    p->change_code = code;
    snprintf(p->change_text, sizeof p->change_text, "cannot attach %.150s: %.300s",
             p->settings->csd_url, text);
    log_warn("%s; going on without a CSD", p->change_text);
    settings_detach(p->settings);
    worker_table_want(&p->workers, WORKER_AGENT, false, clock_now_ns());
    worker_terminate(p, WORKER_AGENT, "because its drive cannot be used");
}
