/* coordinator/supervisor_processes.c - workers are started and ended; see supervisor_parts.h. */
#include "coordinator/supervisor_parts.h"

#include <signal.h>
#include <stdio.h>

#include "base/clock.h"

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

void supervisor_give_up(struct supervisor *s, enum worker w, const char *how)
{
    const struct worker_row *row = &s->workers.rows[w];
    char text[512];
    snprintf(text, sizeof text, "gave up because %s %s, %u times in a row without progress%s%s",
             row->name, how, row->deaths, row->failure_code ? ": " : "", row->failure_text);
    /* what passes by itself is worth another try later */
    bool lasts = row->failure_code && !worker_failure_passes(row->failure_code);
    supervisor_end(s, lasts ? row->failure_code : HILL_E_PEER_GONE, text);
}

/* No process, no descriptor, no memory: somebody may let go of some. */
static void start_later(struct supervisor *s, enum worker w, const char *why)
{
    struct worker_row *row = &s->workers.rows[w];
    worker_table_failure(&s->workers, w, HILL_E_NOMEM, why);
    if (worker_table_not_started(&s->workers, w, clock_now_ns()))
        supervisor_give_up(s, w, "could not be started");
    else
        log_warn("%s; trying again in %.2f s", why, (double)row->backoff_ns / 1e9);
}

void supervisor_start(struct supervisor *s, enum worker w)
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
    s->pids_lack_one = run_folder_write_pids(s->folder, &s->workers) != 0;
    if (s->pids_lack_one) {
        log_warn(
            "writing %s/pids failed; after a kill of this process, workers that hang are not found",
            s->folder->path);
        tiers_record_remove(s->folder->path); /* they would write into what it names */
    }
}

void supervisor_terminate(struct supervisor *s, enum worker w, int64_t in_ns, const char *reason)
{
    struct worker_row *row = &s->workers.rows[w];
    if (!worker_running(row) || row->state == WORKER_STOPPING)
        return;
    log_debug("ending %s (pid %d) %s", row->name, (int)row->pid, reason);
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    if (row->address.length)
        router_to_worker(s->router, w, &PROTO_MESSAGE(SHUTDOWN, shutdown, &shutdown));
    kill(row->pid, SIGTERM);
    worker_table_terminated(&s->workers, w, in_ns, clock_now_ns());
}
