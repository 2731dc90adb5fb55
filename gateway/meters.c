/* gateway/meters.c - see meters.h. */
#include "gateway/meters.h"

#include <inttypes.h>
#include <string.h>

#include "proto/envelope.h"

/* seconds; the last one is +Inf */
static const double bounds[METER_BUCKETS - 1] = {0.005, 0.01, 0.02, 0.05, 0.1, 0.25,
                                                 0.5,   1,    5,    30,   120};

void meters_time(struct meter_times *times, double seconds)
{
    unsigned i = 0;
    while (i < METER_BUCKETS - 1 && seconds > bounds[i])
        i++;
    times->counts[i]++;
    times->n++;
    times->sum += seconds;
}

struct attention_bytes meters_attention(const Hill__SequenceStats *q, uint32_t prompt_tokens,
                                        uint32_t predicted_tokens)
{
    uint64_t entries = q->gpu->tokens + q->hot->tokens + q->cold->tokens,
             bytes = q->gpu->bytes + q->hot->bytes + q->cold->bytes;
    if (!entries)
        return (struct attention_bytes){0};
    double entry = (double)bytes / (double)entries;
    /* the first token is the prompt's; the others have contexts of prompt + 1 to all but one */
    return (struct attention_bytes){
        .selected = (double)(q->gpu->hits + q->hot->hits + q->cold->hits) * entry,
        .full = (double)q->queries * (prompt_tokens + predicted_tokens / 2.0) * entry,
    };
}

void meters_add(struct meters *m, const Hill__Summary *s)
{
    m->requests++;
    m->prompt_tokens += s->prompt_tokens;
    m->generation_tokens += s->predicted_tokens;
    if (s->gpu) {
        m->stages[0] += s->gpu->gpu_busy_ms / 1e3;
        m->stages[1] += s->gpu->gpu_idle_ms / 1e3;
        m->link[3] += s->gpu->link_gpu_bytes;
    }
    const Hill__SequenceStats *q = s->scorer;
    if (!q)
        return;
    if (s->attempts <= 1) { /* else the queries are of the last attempt alone */
        struct attention_bytes a = meters_attention(q, s->prompt_tokens, s->predicted_tokens);
        m->attention.selected += a.selected;
        m->attention.full += a.full;
    }
    m->hits[0] += q->gpu->hits;
    m->hits[1] += q->hot->hits;
    m->hits[2] += q->cold->hits;
    m->link[0] += q->link_key_bytes;
    m->link[1] += q->link_score_bytes;
    m->link[2] += q->link_kv_bytes;
    m->moves[0] += q->promoted;
    m->moves[1] += q->demoted;
    m->moves[2] += q->bounced;
    m->stages[2] += q->score_hot_ms / 1e3;
    m->stages[3] += q->score_cold_ms / 1e3;
    m->stages[4] += q->merge_ms / 1e3;
    m->stages[5] += q->fetch_ms / 1e3;
}

/* ---- Prometheus' text ----------------------------------------------------------------------- */

static void add_kind(struct text_buffer *out, const char *name, const char *kind, const char *help)
{
    text_printf(out, "# HELP hillinfer_%s %s\n# TYPE hillinfer_%s %s\n", name, help, name, kind);
}

static void add_count(struct text_buffer *out, const char *name, const char *help, uint64_t value)
{
    add_kind(out, name, "counter", help);
    text_printf(out, "hillinfer_%s %" PRIu64 "\n", name, value);
}

static void add_gauge(struct text_buffer *out, const char *name, const char *help, double value)
{
    add_kind(out, name, "gauge", help);
    text_printf(out, "hillinfer_%s %.12g\n", name, value);
}

static void add_labelled(struct text_buffer *out, const char *name, const char *label,
                         const char *value, double number)
{
    text_printf(out, "hillinfer_%s{%s=\"%s\"} %.12g\n", name, label, value, number);
}

static void add_times(struct text_buffer *out, const char *name, const char *help,
                      const struct meter_times *times)
{
    uint64_t below = 0;
    add_kind(out, name, "histogram", help);
    for (unsigned i = 0; i < METER_BUCKETS - 1; i++) {
        below += times->counts[i];
        text_printf(out, "hillinfer_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], below);
    }
    text_printf(out, "hillinfer_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, times->n);
    text_printf(out, "hillinfer_%s_sum %.9g\nhillinfer_%s_count %" PRIu64 "\n", name, times->sum,
                name, times->n);
}

/* Of several drives: what of the cold tier each has. */
static void add_drives(struct text_buffer *out, const Hill__StatusReply *s)
{
    for (size_t i = 0, d = 0; i < s->n_workers; i++) {
        uint64_t entries = 0;
        if (!*s->workers[i]->drive)
            continue;
        if (d == 0)
            add_kind(out, "drive_entries", "gauge",
                     "KV entries of the requests that run, by drive");
        for (size_t q = 0; q < s->n_sequences; q++)
            entries += d < s->sequences[q]->n_drives ? s->sequences[q]->drives[d]->tokens : 0;
        add_labelled(out, "drive_entries", "worker", proto_worker_name(s->workers[i]),
                     (double)entries);
        d++;
    }
}

static void add_tiers(struct text_buffer *out, const Hill__StatusReply *s)
{
    double bytes[3] = {0};
    for (size_t i = 0; i < s->n_sequences; i++) {
        bytes[0] += (double)s->sequences[i]->gpu->bytes;
        bytes[1] += (double)s->sequences[i]->hot->bytes;
        bytes[2] += (double)s->sequences[i]->cold->bytes;
    }
    add_kind(out, "kv_tier_bytes", "gauge", "KV entries of the requests that run, by tier");
    add_labelled(out, "kv_tier_bytes", "tier", "gpu", bytes[0]);
    add_labelled(out, "kv_tier_bytes", "tier", "hot", bytes[1]);
    add_labelled(out, "kv_tier_bytes", "tier", "cold", bytes[2]);
    add_drives(out, s);
    add_kind(out, "kv_tier_cap_bytes", "gauge", "hard cap of each tier");
    add_labelled(out, "kv_tier_cap_bytes", "tier", "gpu", (double)s->gpu_kv_cap_bytes);
    add_labelled(out, "kv_tier_cap_bytes", "tier", "hot", (double)s->hot_cap_bytes);
    add_labelled(out, "kv_tier_cap_bytes", "tier", "cold", (double)s->cold_cap_bytes);
}

/* What flash wears by: entries, digests and the pool's directory, in whole pages. */
static void add_flash(struct text_buffer *out, const Hill__StatusReply *s)
{
    const Hill__CsdModelCounters *c = s->csd_model_counters;
    add_gauge(out, "uptime_seconds", "of the pipeline's coordinator", s->uptime_seconds);
    if (c)
        add_count(out, "flash_written_bytes_total", "to the cold pool, meanwhile",
                  c->written_bytes + c->directory_bytes);
}

static void add_workers(struct text_buffer *out, const Hill__StatusReply *s)
{
    add_kind(out, "worker_up", "gauge", "1: the worker is ready");
    for (size_t i = 0; i < s->n_workers; i++)
        add_labelled(out, "worker_up", "worker", proto_worker_name(s->workers[i]),
                     strcmp(s->workers[i]->state, "ready") == 0);
    add_kind(out, "worker_restarts_total", "counter", "of each process, since the pipeline began");
    for (size_t i = 0; i < s->n_workers; i++)
        add_labelled(out, "worker_restarts_total", "worker", proto_worker_name(s->workers[i]),
                     s->workers[i]->restarts);
    if (s->coordinator)
        add_labelled(out, "worker_restarts_total", "worker", "coordinator",
                     s->coordinator->restarts);
}

static void add_sums(struct text_buffer *out, const struct meters *m)
{
    static const char *const tiers[] = {"gpu", "hot", "cold"},
                             *const links[] = {"key", "score", "kv", "gpu"},
                             *const moves[] = {"promoted", "demoted", "bounced"},
                             *const stages[] = {"gpu_busy",   "gpu_idle", "score_hot",
                                                "score_cold", "merge",    "fetch"};
    add_kind(out, "kv_hits_total", "counter", "selected (token, layer) entries that a tier served");
    for (unsigned i = 0; i < 3; i++)
        add_labelled(out, "kv_hits_total", "tier", tiers[i], (double)m->hits[i]);
    add_kind(out, "link_bytes_total", "counter", "bytes over the links, by kind");
    for (unsigned i = 0; i < 4; i++)
        add_labelled(out, "link_bytes_total", "kind", links[i], (double)m->link[i]);
    add_kind(out, "attention_bytes_total", "counter",
             "KV entries that decoding has read, and that full attention would have");
    add_labelled(out, "attention_bytes_total", "kind", "selected", m->attention.selected);
    add_labelled(out, "attention_bytes_total", "kind", "full", m->attention.full);
    add_kind(out, "stage_seconds_total", "counter", "time of each stage of the decode");
    for (unsigned i = 0; i < 6; i++)
        add_labelled(out, "stage_seconds_total", "stage", stages[i], m->stages[i]);
    add_kind(out, "moves_total", "counter", "KV entries moved between hot and cold");
    for (unsigned i = 0; i < 3; i++)
        add_labelled(out, "moves_total", "kind", moves[i], (double)m->moves[i]);
}

void meters_write(struct text_buffer *out, const struct meters *m, const Hill__StatusReply *s)
{
    add_count(out, "prompt_tokens_total", "of requests over HTTP that are over", m->prompt_tokens);
    add_count(out, "generation_tokens_total", "of requests over HTTP that are over",
              m->generation_tokens);
    add_count(out, "http_generations_total", "requests over HTTP that are over", m->requests);
    add_count(out, "http_refused_total", "requests over HTTP that were refused", m->refused);
    add_gauge(out, "requests_running", "all clients'", s->requests_running);
    add_gauge(out, "requests_waiting", "all clients'", s->requests_waiting);
    add_times(out, "time_to_first_token_seconds", "from the request to its first token",
              &m->first_token);
    add_times(out, "inter_token_latency_seconds", "between two tokens of a request",
              &m->between_tokens);
    add_tiers(out, s);
    add_flash(out, s);
    add_sums(out, m);
    if (s->beta >= 0 && s->csd_attached)
        add_gauge(out, "beta", "hot entries for each cold one", s->beta);
    add_workers(out, s);
}
