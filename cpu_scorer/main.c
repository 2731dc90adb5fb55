/*
 * hill-cpu-scorer - keeps the KV cache's hot tier and decides which entries each query needs
 *
 * SYNOPSIS
 *     hill-cpu-scorer --run-dir DIR [--log-level LEVEL]
 * DESCRIPTION
 *     Started by hill-coordinator. Takes K and V of new tokens from the GPU worker, places them in
 *     the hot pool or sends them to the CSD agent, scores the hot ones itself, merges the agent's
 *     scores, selects, and hands the selected entries to the GPU worker. Everything it needs to
 *     know comes with Configure; one of a higher epoch makes it drop everything and start anew.
 * DIAGNOSTICS
 *     Exits 0 on --help, --version and an orderly shutdown, 100 when the configuration is
 *     impossible, 111 when the environment fails (no memory, no segment), 1 when the data plane is
 *     damaged. A request's failure is reported and survived.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu_scorer/epoch.h"
#include "kv/plan.h"
#include "proto/worker_link.h"

#define STAGES_STEPS  2u            /* decode steps between two StageTimes */
#define LIVE_EVERY_NS CLOCK_MS(200) /* heartbeats carry them twice a second */

struct wire_stats {
    Hill__SequenceStats stats;
    Hill__TierStats gpu, hot, cold;
    Hill__DriveStats drives[LAYOUT_DRIVES_MAX], *drive_list[LAYOUT_DRIVES_MAX];
};

/* What of a sequence has been told in StageTimes. */
struct told {
    uint64_t request_id, queries, hot_copied, cold_hits, near_tokens;
    int64_t score_hot_ns, score_cold_ns, fetch_cold_ns, copy_hot_ns;
};

struct process {
    struct worker_link *link;
    Hill__Message *configure; /* the newest, not yet acted on */
    uint32_t epoch;
    struct epoch data;
    int64_t live_ns; /* when the live statistics were last handed to the heartbeats */
    struct scorer_stats live[KV_MAX_SEQUENCES];
    struct told told[KV_MAX_SEQUENCES];
    uint32_t n_told, n_layers;
    uint64_t stages_work;  /* done since the last StageTimes */
    uint64_t stages_every; /* 0: nobody wants them */
    struct wire_stats wire[KV_MAX_SEQUENCES];
};

static void take_balance(struct process *s, const Hill__Balance *m)
{
    double speeds[LAYOUT_DRIVES_MAX] = {0};
    scorer_set_beta(s->data.scorer, m->beta);
    scorer_set_host_scores(s->data.scorer, m->host_scores);
    if (m->n_speeds != s->data.settings.csd_drives)
        return;
    for (size_t d = 0; d < m->n_speeds; d++) /* of none there is no array */
        speeds[d] = m->speeds[d];
    scorer_set_speeds(s->data.scorer, speeds);
}

/* What is neither a Configure nor the end; without an epoch there is nothing to do it with. */
static void take_message(struct process *s, const Hill__Message *message)
{
    if (!s->data.scorer)
        return;
    if (message->body_case == HILL__MESSAGE__BODY_PROFILE_REQUEST)
        scorer_ask_profile(s->data.scorer, CLOCK_MS(message->profile_request->limit_ms));
    else if (message->body_case == HILL__MESSAGE__BODY_BALANCE)
        take_balance(s, message->balance);
    else if (message->body_case == HILL__MESSAGE__BODY_CSD_MODEL)
        scorer_set_model(s->data.scorer, proto_csd_model(message->csd_model));
    else if (message->body_case == HILL__MESSAGE__BODY_DRAIN)
        scorer_drain(s->data.scorer, message->drain->drive);
}

/* Look at the control plane; true when the current epoch must be left. */
static bool interrupted(void *context)
{
    struct process *s = context;
    Hill__Message *message;
    while ((message = worker_link_poll(s->link)) != NULL) {
        if (message->body_case != HILL__MESSAGE__BODY_CONFIGURE ||
            message->configure->epoch < s->epoch) {
            take_message(s, message);
            proto_free(message);
            continue;
        }
        if (s->configure)
            proto_free(s->configure);
        s->configure = message;
        s->epoch = message->configure->epoch;
    }
    return s->configure || worker_link_stopping(s->link);
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* Statistics that are the same on the wire, and those that are milliseconds there. */
/* clang-format off */
#define SAME(X)                                                                                    \
    X(request_id) X(selection_hash) X(budget) X(beta) X(link_key_bytes) X(link_score_bytes)        \
    X(link_kv_bytes) X(flash_read_bytes) X(flash_write_bytes) X(scored_bytes) X(near_tokens)       \
    X(imbalance) X(promoted) X(demoted) X(bounced) X(demoted_free) X(given_stream) X(given_room) X(ever_cold)   \
    X(queries) X(dropped_records) X(guess_queries) X(late_fetches) X(kept_tokens)
/* clang-format on */
#define TIMES(X)       X(score_hot) X(score_cold) X(score_cpu) X(merge) X(fetch) X(bounds)
#define FILL(field)    out->field = in->field;
#define FILL_MS(stage) out->stage##_ms = ms(in->stage##_ns);

static void fill_tier(Hill__TierStats *out, const struct scorer_tier *in)
{
    hill__tier_stats__init(out);
    FILL(tokens)
    FILL(bytes)
    FILL(cap_bytes)
    FILL(hits)
}

static void fill_drives(struct wire_stats *wire, const struct scorer_stats *in)
{
    wire->stats.n_drives = in->n_drives;
    wire->stats.drives = wire->drive_list;
    wire->stats.drive_spread = in->drive_spread;
    for (uint32_t d = 0; d < in->n_drives; d++) {
        Hill__DriveStats *out = wire->drive_list[d] = &wire->drives[d];
        hill__drive_stats__init(out);
        out->tokens = in->drives[d].tokens;
        out->score_ms = ms(in->drives[d].score_ns);
        out->fetch_ms = ms(in->drives[d].fetch_ns);
    }
}

static void fill_stats(struct wire_stats *wire, const struct scorer_stats *in)
{
    Hill__SequenceStats *out = &wire->stats;
    hill__sequence_stats__init(out);
    fill_tier(out->gpu = &wire->gpu, &in->gpu);
    fill_tier(out->hot = &wire->hot, &in->hot);
    fill_tier(out->cold = &wire->cold, &in->cold);
    SAME(FILL)
    TIMES(FILL_MS)
    out->steps_compared = in->steps;
    fill_drives(wire, in);
    out->candidates_hot = in->candidates.hot;
    out->candidates_cold = in->candidates.cold;
    out->candidate_runs = in->candidates.runs;
    out->between_candidates = in->candidates.between;
    out->n_guess_chosen = out->n_guess_found = in->guess_chosen ? in->n_layers : 0;
    out->guess_chosen = (uint64_t *)in->guess_chosen; /* read only */
    out->guess_found = (uint64_t *)in->guess_found;
}

/* Heartbeats carry the running sequences' statistics from now on; returns of how many. */
static uint32_t set_live(struct process *s)
{
    Hill__SequenceStats *list[KV_MAX_SEQUENCES];
    uint32_t n = scorer_live_stats(s->data.scorer, s->live, KV_MAX_SEQUENCES);
    for (uint32_t i = 0; i < n; i++) {
        fill_stats(&s->wire[i], &s->live[i]);
        list[i] = &s->wire[i].stats;
    }
    worker_link_set_live(s->link, list, n);
    return n;
}

static void send_stats(void *context, const struct scorer_stats *in)
{
    struct process *s = context;
    struct wire_stats wire;
    fill_stats(&wire, in);
    wire.stats.chosen = (uint32_t *)in->passages.chosen; /* read only */
    wire.stats.n_chosen = in->passages.n;
    wire.stats.passage_tokens = in->passages.tokens;
    wire.stats.chosen_queries = in->passages.queries;
    worker_link_send(s->link, &PROTO_MESSAGE(SEQUENCE_STATS, sequence_stats, &wire.stats));
    set_live(s); /* it is still among them, as it ended: the last one's stay */
}

static void tell_failure(void *context, int code, const char *text, uint64_t request_id)
{
    worker_link_failure(((struct process *)context)->link, code, text, false, request_id);
}

static void fill_rates(Hill__Rates *out, const struct scorer_rates *in)
{
    hill__rates__init(out);
    out->f_c = in->f_c;
    out->f_s = in->f_s;
    out->b_c = in->B_c;
    out->b_s = in->B_s;
}

static void send_profile(void *context, const struct scorer_profile *in)
{
    Hill__ProfileResult result = HILL__PROFILE_RESULT__INIT;
    Hill__Profile profile = HILL__PROFILE__INIT;
    Hill__Rates rates, spread;
    fill_rates(profile.rates = &rates, &in->median);
    fill_rates(profile.spread = &spread, &in->spread);
    double f_s[LAYOUT_DRIVES_MAX], B_s[LAYOUT_DRIVES_MAX];
    for (uint32_t d = 0; d < in->n_drives; d++) {
        f_s[d] = in->drives[d].f_s;
        B_s[d] = in->drives[d].B_s;
    }
    profile.n_drives_f_s = profile.n_drives_b_s = in->n_drives;
    profile.drives_f_s = f_s;
    profile.drives_b_s = B_s;
    profile.rounds = in->rounds;
    profile.hot_tokens = in->hot_tokens;
    profile.cold_tokens = in->cold_tokens;
    profile.fetch_tokens = in->fetch_tokens;
    profile.took_ms = ms(in->took_ns);
    result.code = in->status;
    result.text = (char *)(in->status ? in->text : "");
    result.profile = in->status ? NULL : &profile;
    Hill__Message message = PROTO_MESSAGE(PROFILE_RESULT, profile_result, &result);
    worker_link_send(((struct process *)context)->link, &message);
}

static void send_drained(void *context, const struct scorer_drained *in)
{
    Hill__Drained out = HILL__DRAINED__INIT;
    out.moved = in->moved;
    out.left = in->left;
    out.moved_bytes = in->moved_bytes;
    out.left_bytes = in->left_bytes;
    out.over = in->over;
    worker_link_send(((struct process *)context)->link, &PROTO_MESSAGE(DRAINED, drained, &out));
}

/* What was told of this sequence last; all zero: nothing yet. */
static struct told told_of(const struct process *s, uint64_t request_id)
{
    for (uint32_t i = 0; i < s->n_told; i++)
        if (s->told[i].request_id == request_id)
            return s->told[i];
    return (struct told){.request_id = request_id};
}

static struct told add_stages(const struct process *s, Hill__StageTimes *sum,
                              const struct scorer_stats *now)
{
    struct told last = told_of(s, now->request_id);
    uint64_t queries = now->queries - last.queries;
    sum->queries += queries;
    sum->hot_tokens += queries * now->hot.tokens / s->n_layers; /* they change slowly */
    sum->cold_tokens += queries * now->cold.tokens / s->n_layers;
    sum->near_tokens += now->near_tokens - last.near_tokens;
    sum->hot_hits += now->hot_copied - last.hot_copied;
    sum->cold_hits += now->cold.hits - last.cold_hits;
    sum->score_hot_ns += (uint64_t)(now->score_hot_ns - last.score_hot_ns);
    sum->score_cold_ns += (uint64_t)(now->score_cold_ns - last.score_cold_ns);
    sum->fetch_cold_ns += (uint64_t)(now->fetch_cold_ns - last.fetch_cold_ns);
    sum->copy_hot_ns += (uint64_t)(now->copy_hot_ns - last.copy_hot_ns);
    return (struct told){now->request_id,    now->queries,       now->hot_copied,
                         now->cold.hits,     now->near_tokens,   now->score_hot_ns,
                         now->score_cold_ns, now->fetch_cold_ns, now->copy_hot_ns};
}

static void tell_stages(struct process *s)
{
    Hill__StageTimes times = HILL__STAGE_TIMES__INIT;
    struct told told[KV_MAX_SEQUENCES];
    uint32_t n = scorer_live_stats(s->data.scorer, s->live, KV_MAX_SEQUENCES);
    for (uint32_t i = 0; i < n; i++)
        told[i] = add_stages(s, &times, &s->live[i]);
    memcpy(s->told, told, n * sizeof *told);
    s->n_told = n;
    if (times.queries)
        worker_link_send(s->link, &PROTO_MESSAGE(STAGE_TIMES, stage_times, &times));
}

static void count_work(void *context, uint64_t count)
{
    struct process *s = context;
    s->stages_work += count;
    if (s->stages_every && s->stages_work >= s->stages_every) {
        s->stages_work = 0;
        tell_stages(s);
    }
    int64_t now = clock_now_ns();
    worker_link_work_done(s->link, count);
    if (now - s->live_ns >= LIVE_EVERY_NS && set_live(s))
        s->live_ns = now;
}

/* Take up the newest Configure and serve it until it is over: 0, or why this process must end. */
static int serve_epoch(struct process *s)
{
    struct scorer_hooks hooks = {s,          interrupted,  send_stats,  tell_failure,
                                 count_work, send_profile, send_drained};
    struct hill_why why = {""};
    char device[64];
    Hill__Message *message = s->configure;
    s->configure = NULL;
    int rc = epoch_open(&s->data, message->configure, &hooks, &why);
    if (rc == 0) {
        const struct epoch_settings *settings = &s->data.settings;
        s->n_layers = settings->plan.geometry.n_layers;
        /* a step is a query and an append of each layer, and its end */
        s->stages_every = settings->beta_auto ? STAGES_STEPS * (2 * s->n_layers + 1) : 0;
        s->n_told = 0;
        snprintf(device, sizeof device, "%u threads, %s", settings->threads,
                 epoch_simd_name(settings->simd));
        worker_link_set_epoch(s->link, s->epoch);
        worker_link_set_doorbell(s->link, s->data.party.bell);
        worker_link_ready(s->link, s->epoch, device, epoch_resident_bytes(&s->data));
        rc = scorer_run(s->data.scorer);
        worker_link_set_doorbell(s->link, NULL);
        if (rc != HILL_E_CANCELLED)
            hill_fail(&why, rc, "a ring of the data plane is damaged");
    } else if (rc == HILL_E_PEER_GONE || (interrupted(s) && s->configure)) {
        /* its segments are gone: a newer Configure is here or on its way */
        log_debug("epoch %u is left before it was entered: %s", s->epoch, why.text);
        rc = HILL_E_CANCELLED;
    }
    proto_free(message);
    epoch_close(&s->data);
    if (rc == HILL_E_CANCELLED)
        return 0;
    log_debug("serving epoch %u failed: %s; ending", s->epoch, why.text);
    worker_link_failure(s->link, rc, why.text, true, 0);
    return rc;
}

static int serve(struct process *s)
{
    int rc = 0;
    while (rc == 0 && !worker_link_stopping(s->link)) {
        struct shm_doorbell *bell = worker_link_doorbell(s->link);
        uint32_t seen = shm_doorbell_read(bell);
        if (!interrupted(s))
            shm_doorbell_wait(bell, seen, clock_deadline_ms(1000), 0);
        else if (s->configure && !worker_link_stopping(s->link))
            rc = serve_epoch(s);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static struct process s; /* zeroed; large for a stack */
    int rc = worker_link_open(&s.link, argc, argv, HILL__ROLE__ROLE_CPU_SCORER, "hill-cpu-scorer",
                              "Keeps the hot KV tier, scores it, and selects what a query needs.");
    if (rc)
        return rc > 0 ? 0 : hill_exit_code(rc);
    rc = serve(&s);
    if (s.configure)
        proto_free(s.configure);
    worker_link_close(s.link);
    return rc ? hill_exit_code(rc) : 0;
}
