/*
 * coordinator/service_status.c - the answer to `hillctl status`: workers, caps, all that runs with
 * what the scorer said of it last, and what was measured.
 *
 * Who calls it: service.c. Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"

static void fill_worker(Hill__WorkerStatus *out, const struct worker_row *row, int64_t now_ns)
{
    hill__worker_status__init(out);
    out->role = row->role;
    out->name = (char *)row->name;
    out->state = (char *)worker_state_name(row->state);
    out->pid = row->pid;
    out->restarts = row->restarts;
    out->device = (char *)row->device;
    out->last_heartbeat_ms = worker_running(row) ? (double)(now_ns - row->heartbeat_ns) / 1e6 : 0;
    out->cpu_ms = row->cpu_ms;
    out->rss_bytes = row->rss_bytes;
    out->work_done = row->work_done;
}

static void fill_own(Hill__WorkerStatus *out)
{
    hill__worker_status__init(out);
    out->role = HILL__ROLE__ROLE_COORDINATOR;
    out->state = (char *)worker_state_name(WORKER_READY);
    out->pid = (int32_t)getpid();
    out->restarts = coordinator_restarts();
    process_usage(&out->cpu_ms, &out->rss_bytes);
}

static void fill_running(Hill__RunningRequest *out, const struct request *r, int64_t now_ns)
{
    hill__running_request__init(out);
    out->request_id = r->id;
    out->prompt_tokens = r->n_prompt;
    out->predict = r->predict;
    out->predicted_tokens = r->n_attempt;
    out->attempts = r->attempts;
    out->sequence = r->sequence;
    if (!r->prefill_ns)
        return; /* not sent yet */
    out->elapsed_ms = (double)(now_ns - r->prefill_ns) / 1e6;
    out->prefill_ms = out->elapsed_ms;
    out->prefill_tokens_done = r->prefill_share * r->n_prompt;
    if (!r->n_attempt)
        return;
    double decode_s = (double)(r->attempt_last_ns - r->attempt_first_ns) / 1e9;
    out->prefill_ms = (double)(r->attempt_first_ns - r->prefill_ns) / 1e6;
    out->prefill_tokens_done = r->n_prompt;
    out->predicted_per_second = decode_s > 0 ? (r->n_attempt - 1 - r->attempt_from) / decode_s : 0;
}

/* What the scorer said of a request's current attempt; NULL: nothing yet. */
static const Hill__SequenceStats *stats_of(const struct service *sv, const struct request *r)
{
    const Hill__Heartbeat *beat = sv->supervisor->live->heartbeat;
    if (!r->wire_id)
        return NULL;
    if (beat->live->request_id == r->wire_id)
        return beat->live;
    for (size_t i = 0; i < beat->n_live_others; i++)
        if (beat->live_others[i]->request_id == r->wire_id)
            return beat->live_others[i];
    return NULL;
}

/* All that runs, under the ids that clients know. */
struct running_status {
    Hill__RunningRequest requests[REQUEST_PARALLEL_MAX];
    Hill__SequenceStats stats[REQUEST_PARALLEL_MAX], last;
    Hill__RunningRequest *request_list[REQUEST_PARALLEL_MAX];
    Hill__SequenceStats *stats_list[REQUEST_PARALLEL_MAX];
    size_t n_requests, n_stats;
};

static void collect_running(struct running_status *out, const struct service *sv, int64_t now_ns)
{
    out->n_requests = out->n_stats = 0;
    for (const struct request *r = sv->book.running; r; r = r->next) {
        size_t i = out->n_requests++, j = out->n_stats;
        fill_running(&out->requests[i], r, now_ns);
        out->request_list[i] = &out->requests[i];
        const Hill__SequenceStats *stats = sv->supervisor->live ? stats_of(sv, r) : NULL;
        if (!stats)
            continue;
        out->stats[j] = *stats; /* its tiers stay the heartbeat's */
        out->stats[j].request_id = r->id;
        out->stats_list[j] = &out->stats[j];
        out->n_stats++;
    }
}

/* The ids of a list's requests, as many as there is room for. */
static size_t list_ids(uint64_t *out, const struct request *list)
{
    size_t n = 0;
    for (const struct request *r = list; r && n < REQUEST_WAITING_MAX; r = r->next)
        if (r->state == REQUEST_WAITING || r->state == REQUEST_AWAITED)
            out[n++] = r->id;
    return n;
}

static void fill_status_running(Hill__StatusReply *reply, const struct service *sv,
                                struct running_status *all)
{
    reply->requests_running = sv->book.n_running;
    reply->requests = all->request_list;
    reply->n_requests = all->n_requests;
    reply->sequences = all->stats_list;
    reply->n_sequences = all->n_stats;
    reply->running = all->n_requests ? all->request_list[0] : NULL;
    if (all->n_stats) {
        reply->live = all->stats_list[0];
    } else if (sv->supervisor->live) { /* the last word on a sequence that is over */
        all->last = *sv->supervisor->live->heartbeat->live;
        all->last.request_id = 0;
        reply->live = &all->last;
    }
}

void status_take_request(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct settings *s = sv->settings;
    int64_t now = clock_now_ns();
    Hill__StatusReply reply = HILL__STATUS_REPLY__INIT;
    Hill__Selection selection;
    Hill__WorkerStatus workers[WORKER_COUNT], *list[WORKER_COUNT], own;
    struct running_status all;
    Hill__CsdModel model;
    Hill__CsdModelCounters counters;
    struct profile_wire profile;
    uint64_t waiting[REQUEST_WAITING_MAX], awaited[REQUEST_WAITING_MAX];
    uint32_t n_workers = WORKER_AGENT + epoch_drives(&s->epoch);
    for (enum worker w = 0; w < n_workers; w++) {
        fill_worker(&workers[w], &sv->supervisor->workers.rows[w], now);
        if (worker_is_agent(w) && settings_several(s))
            workers[w].drive = (char *)s->drives[w - WORKER_AGENT].url;
        list[w] = &workers[w];
    }
    selection_to_wire(&selection, &s->epoch.plan.selection);
    reply.epoch = sv->supervisor->epoch;
    reply.model = (char *)s->model_path;
    reply.ready = supervisor_ready(sv->supervisor);
    reply.csd_attached = settings_has_drive(s);
    reply.csd_url = (char *)(s->epoch.csd_attached ? s->csd_url : "");
    reply.workers = list;
    reply.n_workers = n_workers;
    reply.requests_waiting = sv->book.n_waiting;
    reply.requests_done = sv->book.n_done;
    reply.waiting = waiting;
    reply.n_waiting = list_ids(waiting, sv->book.first);
    reply.awaited = awaited;
    reply.n_awaited = list_ids(awaited, sv->book.parked);
    reply.hot_cap_bytes = s->epoch.hot_cap_bytes;
    reply.gpu_kv_cap_bytes = s->epoch.gpu_kv_cap_bytes;
    reply.cold_cap_bytes = s->epoch.cold_cap_bytes;
    reply.malformed_messages = sv->router->malformed;
    reply.selection = &selection;
    reply.beta = profile_beta_effective(sv);
    reply.beta_auto = s->epoch.beta_auto;
    reply.profile = profile_show(sv, &profile);
    reply.uptime_seconds = (double)(now - sv->started_ns) / 1e9;
    reply.ctx_tokens = s->epoch.plan.ctx_tokens;
    fill_own(&own);
    reply.coordinator = &own;
    reply.parallel = s->epoch.plan.n_sequences;
    collect_running(&all, sv, now);
    fill_status_running(&reply, sv, &all);
    csd_model_show(sv, &(Hill__CsdModelCounters){0}, &model, &counters);
    reply.csd_model = &model;
    reply.csd_model_counters = &counters;
    router_to_client(sv->router, &a->from, &PROTO_MESSAGE(STATUS_REPLY, status_reply, &reply));
    request_book_heard(&sv->book, &a->from, true, now);
}
