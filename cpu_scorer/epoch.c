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
#include "proto/records.h"

#define AGENT_DEADLINE_MS 30000
#define THREADS_MAX       256u

static struct layout_input layout_of(const Hill__Configure *c)
{
    return (struct layout_input){
        .geometry = {c->n_layers, c->n_heads, c->n_kv_heads, c->head_dim, c->score_bits},
        .ctx_tokens = c->ctx_tokens,
        .n_sequences = c->n_sequences,
    };
}

/* What the plan allows under M_0, and the cold pool's sizes, as the agent computes them. */
static int plan_sizes(struct scorer_config *out, const Hill__Configure *c, struct hill_why *why)
{
    struct kv_plan_input in = {.geometry = out->geometry,
                               .n_embd = c->n_embd,
                               .n_ff = c->n_ff,
                               .n_vocab = c->n_vocab,
                               .ctx_tokens = c->ctx_tokens,
                               .batch_tokens = c->batch_tokens,
                               .n_sequences = c->n_sequences,
                               .speculates = out->speculates};
    struct kv_hot_plan plan;
    if (!c->selection)
        return hill_fail(why, HILL_E_PROTOCOL, "the configuration has no selection settings");
    in.selection = (struct kv_selection_settings){
        .alpha = c->selection->alpha,
        .budget = c->selection->budget,
        .sinks = c->selection->sinks,
        .window = c->selection->window,
        .policy = c->selection->policy,
        .importance = c->selection->importance,
    };
    if (out->placement == SCORER_BKP)
        in.placement_bytes = placement_live_bytes(out->geometry.n_layers, c->ctx_tokens);
    in.cold_slots = pool_slots_for_tokens(&out->geometry, c->n_sequences, c->ctx_tokens);
    int rc = kv_plan_hot(&plan, &in, c->hot_cap_bytes, why);
    if (rc)
        return rc;
    out->policy = in.selection.policy;
    out->key_window_bytes = kv_key_window_bytes(&out->geometry, out->policy, c->ctx_tokens);
    out->hot_blocks = plan.n_blocks;
    out->csd = c->csd_attached && c->cold_cap_bytes;
    if (out->csd) {
        struct pool_layout pool;
        rc = pool_layout_with_keys(&pool, &out->geometry,
                                   kv_plane_key_bytes(&out->geometry, in.selection.policy),
                                   c->cold_cap_bytes, why);
        if (rc)
            return rc;
        out->stripe_slots = pool.stripe_slots;
        /* no more than all sequences together can use: what maps them is counted in M_0 */
        uint64_t usable = in.cold_slots / pool.stripe_slots;
        out->n_stripes = pool.n_stripes < usable ? pool.n_stripes : (uint32_t)usable;
    }
    return 0;
}

int epoch_config(struct scorer_config *out, const Hill__Configure *c, struct hill_why *why)
{
    struct layout_input in = layout_of(c);
    memset(out, 0, sizeof *out);
    out->geometry = in.geometry;
    int rc = kv_geometry_check(&out->geometry, why);
    if (rc)
        return rc;
    if (c->n_sequences == 0 || c->threads > THREADS_MAX || c->gpu_slots == 0 ||
        c->gpu_slots > c->ctx_tokens || c->block_tokens == 0 ||
        c->block_tokens > RECORD_STRIPE_SLOTS_MAX || !(c->beta >= 0) || c->staging_slots == 0)
        return hill_fail(
            why, HILL_E_INVALID,
            "cannot configure: sequences %u, threads %u, GPU slots %u, block tokens %u, "
            "staging slots %u, beta %g",
            c->n_sequences, c->threads, c->gpu_slots, c->block_tokens, c->staging_slots, c->beta);
    out->epoch = c->epoch;
    out->ctx_tokens = c->ctx_tokens;
    out->n_sequences = c->n_sequences;
    out->threads = c->threads;
    out->block_tokens = c->block_tokens;
    out->gpu_slots = c->gpu_slots;
    out->beta = c->beta;
    out->adapts = c->beta_auto;
    out->cpu_gb_per_s = proto_csd_model(c->csd_model).cpu;
    out->placement = strcmp(c->placement, "bkp") == 0 ? SCORER_BKP : SCORER_RECENCY;
    out->pin = c->pin;
    out->speculates = c->speculate[0] && strcmp(c->speculate, "off") != 0;
    out->gpu_drop = c->gpu_drop;
    out->hot_cap_bytes = c->hot_cap_bytes;
    out->gpu_cap_bytes = c->gpu_kv_cap_bytes;
    out->cold_cap_bytes = c->cold_cap_bytes;
    out->agent_deadline_ns = CLOCK_MS(AGENT_DEADLINE_MS);
    out->demote_slots = layout_demote_slots_max(&in);
    out->score = kv_score_choose(c->simd && c->simd[0] ? c->simd : "auto");
    if (!out->score)
        return hill_fail(why, HILL_E_INVALID, "this CPU has no scoring path '%s'", c->simd);
    out->mass = kv_mass_choose(c->simd && c->simd[0] ? c->simd : "auto");
    if (!out->mass)
        return hill_fail(why, HILL_E_INVALID, "this CPU cannot evaluate keys with '%s'", c->simd);
    return plan_sizes(out, c, why);
}

static int attach_segments(struct epoch *e, const Hill__Configure *c, struct hill_why *why)
{
    struct layout_input in = layout_of(c);
    struct {
        struct shm_segment *segment;
        const char *what;
    } parts[] = {{&e->rings, "rings"}, {&e->staging, "staging"}, {&e->hot, "hot"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char name[SHM_NAME_BYTES];
        shm_segment_name(name, c->run_id, c->epoch, parts[i].what);
        int rc = shm_segment_attach(parts[i].segment, name, layout_fingerprint(&in), c->epoch, why);
        if (rc)
            return rc;
    }
    int placed = shm_segment_place(&e->hot);
    log_info("hot pool: %s pages, %s (%d NUMA nodes)", placed & 1 ? "huge" : "normal",
             placed & 2 ? "interleaved over the nodes" : "on one node",
             numa_available() < 0 ? 1 : numa_num_configured_nodes());
    return 0;
}

static int open_staging(struct epoch *e, const Hill__Configure *c, const struct kv_geometry *g,
                        uint32_t key_window_bytes, struct hill_why *why)
{
    uint32_t entry_bytes = kv_entry_bytes(g);
    uint64_t needed = shm_arena_bytes(c->staging_slots, entry_bytes);
    uint64_t given = shm_segment_payload_bytes(&e->staging);
    if (!needed || needed > given)
        return hill_fail(why, HILL_E_INVALID,
                         "the staging segment has %llu bytes, %u slots need %llu",
                         (unsigned long long)given, c->staging_slots, (unsigned long long)needed);
    void *payload = shm_segment_payload(&e->staging);
    uint64_t at = kv_plan_windows_offset(g, c->staging_slots);
    uint64_t windows = KV_KEY_WINDOWS * (uint64_t)key_window_bytes;
    if (windows && (at > given || given - at < windows))
        return hill_fail(why, HILL_E_INVALID, "the staging segment has no room for key windows");
    e->key_windows = windows ? (uint8_t *)payload + at : NULL;
    int rc = shm_arena_init(payload, c->staging_slots, entry_bytes);
    if (rc == 0)
        rc = shm_arena_own(&e->arena, payload, given);
    return rc ? hill_fail(why, rc, "cannot lay out the staging arena: %s", hill_strerror(rc)) : 0;
}

/* Without a CSD the agent's rings are laid out, but nobody opens them. */
static int open_rings(struct epoch *e, const Hill__Configure *c, bool csd, struct hill_why *why)
{
    struct layout_input in = layout_of(c);
    void *payload = shm_segment_payload(&e->rings);
    uint64_t bytes = shm_segment_payload_bytes(&e->rings);
    int rc = layout_init(payload, bytes, &in);
    if (rc)
        return hill_fail(why, rc, "cannot lay out the rings in %llu bytes: %s",
                         (unsigned long long)bytes, hill_strerror(rc));
    e->bell = layout_doorbell(payload, PARTY_SCORER);
    for (int ring = 0; ring < RING_COUNT; ring++) {
        if (!csd && ring >= RING_COMMAND)
            continue;
        rc = layout_open(&e->ends[ring], payload, bytes, &in, (enum layout_ring)ring, PARTY_SCORER);
        if (rc)
            return hill_fail(why, rc, "cannot open the %s ring: %s",
                             layout_ring_name((enum layout_ring)ring), hill_strerror(rc));
    }
    return 0;
}

/* Each epoch has a file of its own, so that a scorer that is started again does not write over the
 * trace of the one before. */
static int open_trace(struct epoch *e, const Hill__Configure *c, struct hill_why *why)
{
    char name[TRACE_NAME_BYTES];
    struct trace_settings settings = {.geometry = layout_of(c).geometry,
                                      .sinks = c->selection->sinks,
                                      .window = c->selection->window,
                                      .budget = c->selection->budget,
                                      .ctx_tokens = c->ctx_tokens,
                                      .alpha = c->selection->alpha,
                                      .beta = c->beta};
    const char *slash = strrchr(c->model_path, '/');
    if (!c->trace_path[0])
        return 0;
    snprintf(settings.model, sizeof settings.model, "%s", slash ? slash + 1 : c->model_path);
    int rc = trace_open_new(&e->trace, c->trace_path, &settings, name, why);
    if (rc == 0)
        log_info("KV trace: %s", name);
    return rc;
}

/* From before the first record on: what a replay starts from is an empty scorer. */
static int open_recording(struct epoch *e, const Hill__Configure *c, struct hill_why *why)
{
    char name[RECORDING_NAME_BYTES];
    if (!c->record_path[0])
        return 0;
    int rc = recording_create(&e->recording, c->record_path, c, name, why);
    if (rc == 0) {
        recording_tap(e->recording, e->ends, &e->arena, e->key_windows);
        log_info("recording the rings: %s", name);
    }
    return rc;
}

int epoch_open(struct epoch *e, const Hill__Configure *c, const struct scorer_hooks *hooks,
               struct hill_why *why)
{
    struct scorer_config config;
    memset(e, 0, sizeof *e);
    int rc = epoch_config(&config, c, why);
    if (rc == 0)
        rc = attach_segments(e, c, why);
    if (rc == 0)
        rc = open_staging(e, c, &config.geometry, config.key_window_bytes, why);
    if (rc == 0)
        rc = open_rings(e, c, config.csd, why);
    if (rc == 0)
        rc = open_trace(e, c, why);
    if (rc == 0)
        rc = open_recording(e, c, why);
    if (rc == 0) {
        struct scorer_io io = {.rings = e->ends,
                               .bell = e->bell,
                               .staging = &e->arena,
                               .key_windows = e->key_windows,
                               .hot = shm_segment_payload(&e->hot),
                               .hot_bytes = shm_segment_payload_bytes(&e->hot),
                               .trace = e->trace,
                               .trace_scores = c->trace_scores};
        rc = scorer_create(&e->scorer, &config, &io, hooks, why);
    }
    if (rc) {
        epoch_close(e);
        return rc;
    }
    log_info("epoch %u: %u hot blocks of %u tokens, %u cold stripes of %u tokens, %u threads",
             c->epoch, scorer_hot_blocks(e->scorer), KV_HOT_BLOCK_TOKENS, config.n_stripes,
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
    for (int ring = 0; ring < RING_COUNT; ring++)
        shm_ring_close(&e->ends[ring]);
    if (e->arena.header)
        shm_arena_finish(&e->arena);
    shm_segment_detach(&e->rings);
    shm_segment_detach(&e->staging);
    shm_segment_detach(&e->hot);
    memset(e, 0, sizeof *e);
}

uint64_t epoch_resident_bytes(const struct epoch *e)
{
    return shm_segment_payload_bytes(&e->hot) + shm_segment_payload_bytes(&e->staging) +
           scorer_private_bytes(e->scorer);
}
