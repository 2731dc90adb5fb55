/* hillctl/control.c - the short commands: status, attach, detach, stop. */
#include "hillctl/command_list.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "hillctl/report.h"
#include "hillctl/short_command.h"
#include "kv/score.h"
#include "kv/select.h"
#include "proto/drive_url.h"

#define CHANGE_MS                                                                                  \
    3600000 /* a change waits for prompts under way, then for a pool to be formatted or emptied */

static const struct option_spec status_specs[] = {
    OPTION("json", FLAG, NULL, "print one JSON object"),
};

static json_t *worker_json(const Hill__WorkerStatus *w)
{
    json_t *drive = *w->drive ? json_text(w->drive, strlen(w->drive)) : NULL;
    return json_pack(
        "{s:s, s:i, s:i, s:o, s:f, s:I, s:I, s:I, s:o*}", "state", w->state, "pid", w->pid,
        "restarts", (int)w->restarts, "device", json_text(w->device, strlen(w->device)),
        "last_heartbeat_ms", w->last_heartbeat_ms, "cpu_ms", (json_int_t)w->cpu_ms, "rss_bytes",
        (json_int_t)w->rss_bytes, "work_done", (json_int_t)w->work_done, "drive", drive);
}

/* null: no request runs. */
static json_t *running_json(const Hill__RunningRequest *r)
{
    if (!r)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "request",
                     (json_int_t)r->request_id, "sequence", (json_int_t)r->sequence,
                     "prompt_tokens", (json_int_t)r->prompt_tokens, "predict",
                     (json_int_t)r->predict, "predicted_tokens", (json_int_t)r->predicted_tokens,
                     "prefill_tokens_done", r->prefill_tokens_done, "elapsed_ms", r->elapsed_ms,
                     "prefill_ms", r->prefill_ms, "predicted_per_second", r->predicted_per_second,
                     "attempts", (json_int_t)r->attempts);
}

static json_t *ids_json(const uint64_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)ids[i]));
    return list;
}

static json_t *requests_json(const Hill__StatusReply *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_requests; i++)
        json_array_append_new(list, running_json(s->requests[i]));
    return list;
}

static json_t *sequences_json(const Hill__StatusReply *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_sequences; i++)
        json_array_append_new(list, report_live_json(s->sequences[i]));
    return list;
}

static json_t *status_json(const Hill__StatusReply *s)
{
    json_t *workers = json_object();
    for (size_t i = 0; i < s->n_workers; i++)
        json_object_set_new(workers, proto_worker_name(s->workers[i]), worker_json(s->workers[i]));
    const char *policy = s->selection ? kv_policy_name(s->selection->policy) : NULL;
    const char *importance = s->selection ? kv_importance_name(s->selection->importance) : NULL;
    json_t *object = json_pack(
        "{s:b, s:I, s:o, s:b, s:o, s:I, s:s?, s:f, s:I, s:s?, s:f, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:f, s:o, s:o, s:o, s:o, s:I, s:o, s:o}",
        "ready", s->ready, "epoch", (json_int_t)s->epoch, "model",
        json_text(s->model, strlen(s->model)), "csd_attached", s->csd_attached, "csd_url",
        json_text(s->csd_url, strlen(s->csd_url)), "ctx_size", (json_int_t)s->ctx_tokens, "policy",
        policy, "alpha", s->selection ? s->selection->alpha : 0.0, "budget",
        (json_int_t)(s->selection ? s->selection->budget : 0), "importance", importance, "beta",
        s->beta, "hot_cap_bytes", (json_int_t)s->hot_cap_bytes, "gpu_kv_cap_bytes",
        (json_int_t)s->gpu_kv_cap_bytes, "cold_cap_bytes", (json_int_t)s->cold_cap_bytes,
        "requests_running", (json_int_t)s->requests_running, "requests_waiting",
        (json_int_t)s->requests_waiting, "requests_done", (json_int_t)s->requests_done,
        "malformed_messages", (json_int_t)s->malformed_messages, "uptime_seconds",
        s->uptime_seconds, "workers", workers, "coordinator",
        s->coordinator ? worker_json(s->coordinator) : json_null(), "running",
        running_json(s->running), "live", report_live_json(s->live), "parallel",
        (json_int_t)s->parallel, "requests", requests_json(s), "sequences", sequences_json(s));
    json_object_set_new(object, "waiting", ids_json(s->waiting, s->n_waiting));
    json_object_set_new(object, "awaited", ids_json(s->awaited, s->n_awaited));
    json_object_set_new(object, "exact_below",
                        json_integer(s->selection ? (json_int_t)s->selection->exact_below : 0));
    json_object_set_new(object, "beta_auto", json_boolean(s->beta_auto));
    json_object_set_new(object, "profile", report_profile_json(s->profile));
    json_object_set_new(object, "writes", report_writes_json(s->csd_model_counters));
    json_object_set_new(object, "csd_model",
                        report_csd_model_json(s->csd_model, s->csd_model_counters));
    return object;
}

static void print_ids(const char *head, const char *what, const uint64_t *ids, size_t n)
{
    if (!n)
        return;
    printf("%-10s requests", head);
    for (size_t i = 0; i < n; i++)
        printf(" %" PRIu64, ids[i]);
    printf(": %s\n", what);
}

/* A line for each request that runs, with what it holds in the tiers. */
static void print_running(const Hill__StatusReply *s)
{
    const double mib = 1024.0 * 1024.0;
    for (size_t i = 0; i < s->n_requests; i++) {
        const Hill__RunningRequest *r = s->requests[i];
        printf("request    %" PRIu64 ": prompt %.0f of %" PRIu32 " tokens, %" PRIu32 " of %" PRIu32
               " made, %.1f tokens/s",
               r->request_id, r->prefill_tokens_done, r->prompt_tokens, r->predicted_tokens,
               r->predict, r->predicted_per_second);
        for (size_t j = 0; j < s->n_sequences; j++) {
            const Hill__SequenceStats *q = s->sequences[j];
            if (q->request_id == r->request_id)
                printf("; GPU %.1f, hot %.1f, cold %.1f MiB", (double)q->gpu->bytes / mib,
                       (double)q->hot->bytes / mib, (double)q->cold->bytes / mib);
        }
        putchar('\n');
    }
}

static void status_print(const Hill__StatusReply *s)
{
    const double mib = 1024.0 * 1024.0;
    printf("%s, epoch %" PRIu32 ", up %.0f s\n", s->ready ? "ready" : "not ready", s->epoch,
           s->uptime_seconds);
    printf("model      %s, context %" PRIu32 " tokens\n", s->model, s->ctx_tokens);
    printf("drive      %s\n", s->csd_attached ? s->csd_url : "none attached");
    report_csd_model_print(stdout, "csd model  ", s->csd_model, s->csd_model_counters);
    printf("caps       GPU %.1f MiB, hot %.1f MiB, cold %.1f MiB\n",
           (double)s->gpu_kv_cap_bytes / mib, (double)s->hot_cap_bytes / mib,
           (double)s->cold_cap_bytes / mib);
    if (s->csd_attached)
        printf("beta       %.4g%s%s\n", s->beta,
               s->beta_auto && s->beta >= HILL_BETA_ALL_HOT ? ": all hot" : "",
               !s->beta_auto ? ""
               : s->profile  ? " (measured)"
                             : " (auto, not measured)");
    printf("requests   %" PRIu32 " running of %" PRIu32 ", %" PRIu32 " waiting, %" PRIu64 " done\n",
           s->requests_running, s->parallel, s->requests_waiting, s->requests_done);
    print_running(s);
    print_ids("waiting", "for a turn", s->waiting, s->n_waiting);
    print_ids("awaited", "for their clients, since the coordinator was lost", s->awaited,
              s->n_awaited);
    for (size_t i = 0; i < s->n_workers; i++) {
        const Hill__WorkerStatus *w = s->workers[i];
        printf("%-10s %-10s pid %-8d restarts %-3" PRIu32 " %s\n", proto_worker_name(w), w->state,
               w->pid, w->restarts, w->device);
    }
}

int command_status(int argc, char **argv)
{
    struct short_command c = {.program = {.name = "hillctl status",
                                          .usage = "[--json] [--run-dir DIR]",
                                          .summary = "Show the pipeline: workers, caps, requests.",
                                          .example = "hillctl status --json | jq .workers"},
                              .own = {.title = "output", .specs = status_specs, .count = 1}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    Hill__Message *answer;
    struct hill_why why;
    int code = client_status(&c.client, CLIENT_ANSWER_MS, &answer, &why);
    if (code == 0) {
        if (options_flag(c.options, "json")) {
            code = report_write_json(status_json(answer->status_reply), &why);
        } else {
            status_print(answer->status_reply);
        }
        proto_free(answer);
    }
    return short_command_end(&c, code, &why);
}

/* A request that is answered by Reply. */
static int change(struct short_command *c, const Hill__Message *message)
{
    struct hill_why why;
    int code = short_command_change(c, message, CHANGE_MS, &why);
    return short_command_end(c, code, &why);
}

/* The drive that is named, as the pipeline is to see it; empty: none is. */
static int named_drive(const struct short_command *c, char out[HILL_PATH_BYTES],
                       struct hill_why *why)
{
    out[0] = '\0';
    return options_positional_count(c->options)
               ? drive_url_absolute(out, options_positional(c->options, 0), why)
               : 0;
}

int command_attach(int argc, char **argv)
{
    struct short_command c = {
        .program = {
            .name = "hillctl attach",
            .usage = "[URL [CSD_MODEL]] [--run-dir DIR]",
            .summary = "Attach the computational storage drive, also while requests decode.",
            .example = "hillctl attach file:/mnt/nvme/cold.pool",
            .notes =
                "CSD_MODEL: as --csd-model has it, or off. Without it a drive has the "
                "model that it\nhad when it was here last, if no other one was attached in "
                "its place since; else that\nof --csd-model; another drive has none. A relative "
                "path is of the current folder.\n",
            .positional_max = 2}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    Hill__Attach attach = HILL__ATTACH__INIT;
    char url[HILL_PATH_BYTES];
    struct hill_why why;
    int code = named_drive(&c, url, &why);
    if (code)
        return short_command_end(&c, code, &why);
    attach.url = url;
    attach.csd_model =
        (char *)(options_positional_count(c.options) > 1 ? options_positional(c.options, 1) : "");
    return change(&c, &PROTO_MESSAGE(ATTACH, attach, &attach));
}

int command_detach(int argc, char **argv)
{
    struct short_command c = {
        .program = {.name = "hillctl detach",
                    .usage = "[URL] [--run-dir DIR]",
                    .summary = "Empty the drive as far as --hot-mb allows, and detach it; one of "
                               "several into the others, or it stays.",
                    .example = "hillctl detach",
                    .positional_max = 1}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    Hill__Detach detach = HILL__DETACH__INIT;
    char url[HILL_PATH_BYTES];
    struct hill_why why;
    int code = named_drive(&c, url, &why);
    if (code)
        return short_command_end(&c, code, &why);
    detach.url = url;
    return change(&c, &PROTO_MESSAGE(DETACH, detach, &detach));
}

int command_stop(int argc, char **argv)
{
    struct short_command c = {
        .program = {.name = "hillctl stop",
                    .usage = "[--run-dir DIR]",
                    .summary = "End the pipeline in order: the running request is cancelled first.",
                    .example = "hillctl stop"}};
    int left = short_command_begin(&c, argc, argv);
    if (left != 0)
        return left - 1;
    Hill__Shutdown shutdown = HILL__SHUTDOWN__INIT;
    return change(&c, &PROTO_MESSAGE(SHUTDOWN, shutdown, &shutdown));
}
