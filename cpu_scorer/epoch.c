/* cpu_scorer/epoch.c - see epoch.h. */
#include "cpu_scorer/epoch.h"

#include <numa.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu_scorer/hkm.h"
#include "kv/plan.h"
#include "kv/plane.h"
#include "placement/placement.h"
#include "pool/pool.h"

/* The coordinator replaces an agent that stands still before (--stall-ms, 30 s), and the GPU worker
 * waits longer for what it has asked (60 s). */
#define AGENT_DEADLINE_MS 45000

_Static_assert((int)HILL__PLACEMENT__PLACEMENT_RECENCY == PLACEMENT_RECENCY &&
                   (int)HILL__PLACEMENT__PLACEMENT_BKP == PLACEMENT_BKP &&
                   (int)HILL__PLACEMENT__PLACEMENT_PAPER == PLACEMENT_PAPER &&
                   (int)HILL__PLACEMENT__PLACEMENT_LRU == PLACEMENT_LRU &&
                   (int)HILL__PLACEMENT__PLACEMENT_LFU == PLACEMENT_LFU &&
                   PLACEMENT_LFU + 1 == PLACEMENT_LIVE_COUNT,
               "Placement has the numbers of enum placement_kind");

/* A pool's stripes, as its agent computes them. */
static int size_pool(struct scorer_config *out, const struct epoch_settings *s,
                     const struct kv_plan_input *in, uint64_t cap, uint32_t *n_stripes,
                     struct hill_why *why)
{
    struct pool_layout pool;
    int rc = pool_layout_with_keys(&pool, &in->geometry, epoch_key_bytes(s), cap, why);
    if (rc)
        return rc;
    out->stripe_slots = pool.stripe_slots;
    /* no more than all sequences together can use: what maps them is counted in M_0 */
    uint64_t usable = in->cold_slots / epoch_drives(s) / pool.stripe_slots;
    *n_stripes = pool.n_stripes < usable ? pool.n_stripes : (uint32_t)usable;
    return 0;
}

static int size_drives(struct scorer_config *out, const struct epoch_settings *s,
                       const struct kv_plan_input *in, struct hill_why *why)
{
    out->n_drives = s->csd_drives;
    for (uint32_t d = 0; d < out->n_drives; d++) {
        const struct epoch_drive *drive = &s->drives[d];
        out->drives[d].speed = drive->speed;
        int rc = drive->attached
                     ? size_pool(out, s, in, drive->cap_bytes, &out->drives[d].n_stripes, why)
                     : 0;
        if (rc)
            return rc;
    }
    /* numbers do not follow from caps, so that words stand when a drive comes with another one */
    out->n_stripes = (uint32_t)(in->cold_slots / out->n_drives / out->stripe_slots);
    return 0;
}

/* What the plan allows under M_0, and the cold pool's sizes, as the agent computes them. */
static int plan_sizes(struct scorer_config *out, const struct epoch_settings *s,
                      struct hill_why *why)
{
    struct kv_plan_input in = s->plan;
    struct kv_hot_plan plan;
    in.placement_bytes = placement_live_bytes(out->placement, in.geometry.n_layers, in.ctx_tokens);
    in.cold_slots =
        epoch_drives(s) * pool_slots_for_tokens(&in.geometry, in.n_sequences, in.ctx_tokens);
    int rc = kv_plan_hot(&plan, &in, s->hot_cap_bytes, why);
    if (rc)
        return rc;
    out->hot_blocks = plan.n_blocks;
    out->csd = s->csd_attached && s->cold_cap_bytes;
    out->digest_cache_bytes = kv_plan_digest_cache(&in);
    out->lends_digests = kv_plan_lends(&in);
    out->cold_slots = in.cold_slots; /* so that a drive can come or go without a new hot segment */
    out->drains = out->csd && s->csd_plain;
    if (!out->csd)
        return 0;
    return epoch_drives(s) > 1 ? size_drives(out, s, &in, why)
                               : size_pool(out, s, &in, s->cold_cap_bytes, &out->n_stripes, why);
}

int epoch_config(struct scorer_config *out, const struct epoch_settings *s, struct hill_why *why)
{
    const struct kv_plan_input *plan = &s->plan;
    struct layout_input layout = epoch_layout(s);
    const char *simd = epoch_simd_name(s->simd);
    *out = (struct scorer_config){
        .geometry = plan->geometry,
        .epoch = s->epoch,
        .ctx_tokens = plan->ctx_tokens,
        .windows = plan->windows,
        .n_sequences = plan->n_sequences,
        .threads = s->threads,
        .rows = plan->rows_in_flight,
        .block_tokens = s->block_tokens,
        .gpu_slots = s->gpu_slots,
        .beta = s->beta,
        .host_scores = s->host_scores,
        .adapts = s->beta_auto,
        .csd_model = s->csd_model,
        .placement = (enum placement_kind)s->placement,
        .pin = s->pin,
        .speculates = plan->speculates,
        .gpu_drop = s->gpu_drop,
        .hot_cap_bytes = s->hot_cap_bytes,
        .gpu_cap_bytes = s->gpu_kv_cap_bytes,
        .cold_cap_bytes = s->cold_cap_bytes,
        .agent_deadline_ns = CLOCK_MS(AGENT_DEADLINE_MS),
        .keeps = true,
        .adopts = s->tiers_epoch < s->epoch,
        .demote_slots = layout_demote_slots_max(&layout),
        .policy = plan->selection.policy,
        .importance = plan->selection.importance,
        .key_window_bytes =
            kv_key_window_bytes(&plan->geometry, plan->selection.policy, plan->ctx_tokens),
        .score = kv_score_choose(simd),
        .mass = kv_mass_choose(simd),
    };
    if (!out->score)
        return hill_fail(why, HILL_E_INVALID, "this CPU has no scoring path '%s'", simd);
    if (!out->mass)
        return hill_fail(why, HILL_E_INVALID, "this CPU cannot evaluate keys with '%s'", simd);
    return plan_sizes(out, s, why);
}

/* Each epoch has a file of its own, so that a scorer that is started again does not write over the
 * trace of the one before. */
static int open_trace(struct epoch *e, struct hill_why *why)
{
    const struct epoch_settings *s = &e->settings;
    const struct kv_selection_settings *selection = &s->plan.selection;
    char name[TRACE_NAME_BYTES];
    struct trace_settings settings = {.geometry = s->plan.geometry,
                                      .sinks = selection->sinks,
                                      .window = selection->window,
                                      .budget = selection->budget,
                                      .ctx_tokens = s->plan.ctx_tokens,
                                      .alpha = selection->alpha,
                                      .beta = s->beta};
    const char *slash = strrchr(s->model_path, '/');
    if (!s->trace_path[0])
        return 0;
    snprintf(settings.model, sizeof settings.model, "%s", slash ? slash + 1 : s->model_path);
    int rc = trace_open_new(&e->trace, s->trace_path, &settings, name, why);
    if (rc == 0)
        log_info("KV trace: %s", name);
    return rc;
}

/* From before the first record on: what a replay starts from is an empty scorer. */
static int open_recording(struct epoch *e, struct hill_why *why)
{
    char name[RECORDING_NAME_BYTES];
    if (!e->settings.record_path[0])
        return 0;
    int rc = recording_create(&e->recording, e->settings.record_path, &e->settings, name, why);
    if (rc == 0) {
        recording_tap(e->recording, e->party.ends, &e->party.arena, e->party.key_windows);
        log_info("recording the rings: %s", name);
    }
    return rc;
}

static int open_party(struct epoch *e, struct hill_why *why)
{
    int rc = party_attach(&e->party, PARTY_SCORER, &e->settings, why);
    if (rc)
        return rc;
    int placed = shm_segment_place(&e->party.hot);
    log_debug("hot pool: huge pages %s, %s (%d NUMA nodes)", placed & 1 ? "asked for" : "refused",
              placed & 2 ? "interleaved over the nodes" : "on one node",
              numa_available() < 0 ? 1 : numa_num_configured_nodes());
    return party_open(&e->party, NULL, why);
}

struct scorer_io epoch_io(struct party *party)
{
    return (struct scorer_io){.rings = party->ends,
                              .bell = party->bell,
                              .staging = &party->arena,
                              .key_windows = party->key_windows,
                              .hot = shm_segment_payload(&party->hot),
                              .hot_bytes = shm_segment_payload_bytes(&party->hot)};
}

int epoch_open(struct epoch *e, const Hill__Configure *c, const struct scorer_hooks *hooks,
               struct hill_why *why)
{
    struct scorer_config config;
    memset(e, 0, sizeof *e);
    int rc = epoch_settings_read(&e->settings, c, why);
    if (rc == 0)
        rc = epoch_config(&config, &e->settings, why);
    if (rc == 0)
        rc = open_party(e, why);
    if (rc == 0)
        rc = open_trace(e, why);
    if (rc == 0)
        rc = open_recording(e, why);
    if (rc == 0) {
        struct scorer_io io = epoch_io(&e->party);
        io.trace = e->trace;
        io.trace_scores = e->settings.trace_scores;
        rc = scorer_create(&e->scorer, &config, &io, hooks, why);
    }
    if (rc) {
        epoch_close(e);
        return rc;
    }
    log_debug("epoch %u: %u hot blocks of %u tokens, %u cold stripes of %u tokens, %u threads",
              config.epoch, scorer_hot_blocks(e->scorer), KV_HOT_BLOCK_TOKENS, config.n_stripes,
              config.stripe_slots, config.threads);
    return 0;
}

void epoch_close(struct epoch *e)
{
    scorer_destroy(e->scorer);
    int rc = trace_close(e->trace);
    if (rc)
        log_error("writing the KV trace failed: %s", hill_strerror(rc));
    rc = recording_close(e->recording);
    if (rc)
        log_error("the recording of the rings is of no use: %s", hill_strerror(rc));
    party_leave(&e->party);
    memset(e, 0, sizeof *e);
}

uint64_t epoch_resident_bytes(const struct epoch *e)
{
    return shm_segment_payload_bytes(&e->party.hot) + shm_segment_payload_bytes(&e->party.staging) +
           scorer_private_bytes(e->scorer);
}
