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
#include "shm/segment.h"

struct part {
    const char *what;
    uint64_t bytes;
    bool place; /* on NUMA nodes and huge pages: worth it for the big one */
};

#define PART_COUNT 3

static void list_parts(const struct settings *s, struct part parts[PART_COUNT])
{
    parts[0] = (struct part){"rings", s->rings_bytes, false};
    parts[1] = (struct part){"staging", s->staging_bytes, false};
    parts[2] = (struct part){"hot", s->hot_bytes, true};
}

void epoch_remove_segments(struct pipeline *p)
{
    struct part parts[PART_COUNT];
    char name[SHM_NAME_BYTES];
    list_parts(p->settings, parts);
    for (unsigned i = 0; i < PART_COUNT && p->epoch; i++) {
        shm_segment_name(name, p->folder->run_id, p->epoch, parts[i].what);
        shm_segment_unlink(name);
    }
    p->epoch_exists = false;
}

static int create_segments(struct pipeline *p, struct hill_why *why)
{
    struct part parts[PART_COUNT];
    list_parts(p->settings, parts);
    for (unsigned i = 0; i < PART_COUNT; i++) {
        struct shm_segment segment = {0};
        char name[SHM_NAME_BYTES];
        shm_segment_name(name, p->folder->run_id, p->epoch, parts[i].what);
        int code = shm_segment_create(&segment, name, parts[i].bytes, p->settings->fingerprint,
                                      p->epoch, why);
        if (code) {
            epoch_remove_segments(p);
            return code;
        }
        if (parts[i].place)
            shm_segment_place(&segment);
        shm_segment_detach(&segment); /* the coordinator never looks into one */
    }
    p->epoch_exists = true;
    return 0;
}

void selection_to_wire(Hill__Selection *out, const struct kv_selection_settings *selection)
{
    hill__selection__init(out);
    out->alpha = selection->alpha;
    out->budget = selection->budget;
    out->sinks = selection->sinks;
    out->window = selection->window;
    out->policy = selection->policy;
    out->importance = selection->importance;
}

static void fill_sizes(Hill__Configure *c, const struct settings *s)
{
    c->hot_cap_bytes = s->hot_cap_bytes;
    c->gpu_kv_cap_bytes = s->gpu_cap_bytes;
    c->gpu_slots = s->gpu_slots;
    c->cold_cap_bytes = s->cold_cap_bytes;
    c->staging_bytes = s->staging_bytes;
    c->hot_bytes = s->hot_bytes;
    c->rings_bytes = s->rings_bytes;
    c->staging_slots = s->hot.staging_slots;
}

static void fill_model(Hill__Configure *c, const struct settings *s)
{
    const struct kv_plan_input *plan = &s->plan;
    c->model_path = (char *)s->model_path;
    c->n_layers = plan->geometry.n_layers;
    c->n_heads = plan->geometry.n_heads;
    c->n_kv_heads = plan->geometry.n_kv_heads;
    c->head_dim = plan->geometry.head_dim;
    c->score_bits = kv_digest_bits(&plan->geometry);
    c->n_embd = plan->n_embd;
    c->n_ff = plan->n_ff;
    c->n_vocab = plan->n_vocab;
    c->ctx_tokens = plan->ctx_tokens;
    c->n_sequences = plan->n_sequences;
    c->batch_tokens = plan->batch_tokens;
}

void epoch_configure(struct pipeline *p, enum worker w)
{
    const struct settings *s = p->settings;
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__Configure configure = HILL__CONFIGURE__INIT;
    Hill__Selection selection;
    Hill__CsdModel model;
    if (!p->epoch_exists)
        return; /* epoch_begin tells everyone who is there when it has created one */
    selection_to_wire(&selection, &s->plan.selection);
    configure.run_id = p->folder->run_id;
    configure.epoch = p->epoch;
    fill_model(&configure, s);
    fill_sizes(&configure, s);
    configure.threads = s->threads;
    configure.block_tokens = s->options.block_tokens;
    configure.selection = &selection;
    configure.beta = profile_beta(p);
    configure.beta_auto = s->options.beta_auto;
    configure.csd_attached = s->csd_attached;
    configure.csd_url = (char *)(s->csd_attached ? s->csd_url : "");
    configure.device = (char *)(s->options.device ? s->options.device : "");
    configure.simd = (char *)s->options.simd;
    configure.importance = (char *)s->options.importance;
    configure.placement = (char *)s->options.placement;
    configure.pin = s->options.pin;
    configure.speculate = (char *)s->options.speculate;
    configure.exact_layers = s->options.exact_layers;
    configure.gpu_drop = 1 - s->options.gpu_keep;
    configure.trace_path = (char *)s->trace_path;
    configure.record_path = (char *)s->record_path;
    configure.trace_scores = s->options.trace_scores;
    proto_set_csd_model(&model, &s->options.csd_model);
    configure.csd_model = &model;
    message.body_case = HILL__MESSAGE__BODY_CONFIGURE;
    message.configure = &configure;
    worker_table_configured(&p->workers, w);
    int code = worker_send(p, w, &message);
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
    int code = create_segments(p, &why);
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
