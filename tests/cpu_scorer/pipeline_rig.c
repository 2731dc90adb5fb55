/*
 * tests/cpu_scorer/pipeline_rig.c - the rig's memory, rings, hooks and threads: start, profile,
 * stop.
 */
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/cpu_scorer/hkm_audit.h"
#include "tests/filter.h"

static const uint32_t rig_capacities[RING_COUNT] = {
    [RING_APPEND] = 1u << 13,     [RING_QUERY] = 1u << 12,      [RING_SELECTION] = 1u << 16,
    [RING_COMMAND] = 1u << 12,    [RING_BACKGROUND] = 1u << 13, [RING_SCORE] = 1u << 10,
    [RING_COMPLETION] = 1u << 10,
};

static bool rig_interrupted(void *context)
{
    struct rig *r = context;
    if (atomic_exchange_explicit(&r->ask_profile, false, memory_order_acquire))
        scorer_ask_profile(r->pipeline, CLOCK_MS(1000));
    uint32_t beta = atomic_exchange_explicit(&r->set_beta, 0, memory_order_relaxed);
    if (beta)
        scorer_set_beta(r->pipeline, beta / 100.0);
    if (atomic_exchange_explicit(&r->ask_drain, false, memory_order_acquire))
        scorer_drain(r->pipeline, r->drain_drive);
    return atomic_load_explicit(&r->interrupt, memory_order_acquire);
}

static void rig_profiled(void *context, const struct scorer_profile *profile)
{
    struct rig *r = context;
    r->profile = *profile;
    /* release: pairs with the acquire in rig_profile */
    atomic_store_explicit(&r->profiled, true, memory_order_release);
}

static void rig_drained(void *context, const struct scorer_drained *drained)
{
    struct rig *r = context;
    r->drained = *drained;
    atomic_fetch_add_explicit(&r->n_drained, 1, memory_order_release);
}

/* Not in the test's thread, where alone it may fail: rig_stop looks. */
static void note_unless(struct rig *r, bool right)
{
    if (!right)
        atomic_fetch_add_explicit(&r->n_wrong_stats, 1, memory_order_relaxed);
}

/* What the coordinator takes: it refuses other statistics, and a heartbeat that has them. */
static void check_shares(struct rig *r, const struct scorer_stats *stats)
{
    note_unless(r, stats->drive_spread >= 0 && stats->drive_spread <= 1);
    note_unless(r, stats->imbalance >= 0 && stats->imbalance <= 1);
}

static void rig_stats(void *context, const struct scorer_stats *stats)
{
    struct rig *r = context;
    check_shares(r, stats);
    r->stats = *stats; /* the SEQ_STATS record publishes it */
}

static void rig_failure(void *context, int code, const char *text, uint64_t request_id)
{
    (void)code;
    (void)text;
    (void)request_id;
    atomic_fetch_add_explicit(&((struct rig *)context)->n_failures, 1, memory_order_relaxed);
}

static void rig_work_done(void *context, uint64_t count)
{
    struct rig *r = context;
    struct scorer_stats live[RIG_SEQUENCES_MAX];
    (void)count;
    uint32_t n = scorer_live_stats(r->pipeline, live, RIG_SEQUENCES_MAX);
    for (uint32_t i = 0; i < n; i++)
        check_shares(r, &live[i]);
    note_unless(r, n < 2 || live[0].request_id != live[1].request_id);
    if (n)
        atomic_store_explicit(&r->hot_now, live[0].hot.tokens, memory_order_relaxed);
    if (n > atomic_load_explicit(&r->live_most, memory_order_relaxed)) /* single writer */
        atomic_store_explicit(&r->live_most, n, memory_order_relaxed);
}

static void *rig_pipeline_main(void *arg)
{
    struct rig *r = arg;
    r->run_result = scorer_run(r->pipeline);
    return NULL;
}

static void *rig_memory(uint64_t bytes)
{
    void *memory;
    assert_int_equal(posix_memalign(&memory, 4096, bytes), 0);
    memset(memory, 0, bytes);
    return memory;
}

static void rig_open_ring(struct rig *r, enum layout_ring ring, uint32_t drive)
{
    static const enum layout_party from[RING_COUNT] = {
        PARTY_GPU, PARTY_GPU, PARTY_SCORER, PARTY_SCORER, PARTY_SCORER, PARTY_AGENT, PARTY_AGENT};
    uint64_t bytes = shm_ring_bytes(rig_capacities[ring]);
    struct shm_ring_end *other = ring < RING_COMMAND ? r->gpu : r->agents[drive]->ends;
    struct shm_doorbell *own = &r->bells[PARTY_SCORER], *peer = &r->bells[PARTY_GPU];
    bool produces = from[ring] == PARTY_SCORER;
    uint32_t at = layout_ring_of(ring, drive);
    r->ring_memory[at] = rig_memory(bytes);
    assert_int_equal(shm_ring_init(r->ring_memory[at], rig_capacities[ring], UINT32_MAX - 3), 0);
    if (!r->csd && ring >= RING_COMMAND)
        return;
    if (ring >= RING_COMMAND)
        peer = r->agents[drive]->bell;
    assert_int_equal(shm_ring_open(&r->scorer[at], r->ring_memory[at], bytes, produces, own, peer),
                     0);
    assert_int_equal(shm_ring_open(&other[ring], r->ring_memory[at], bytes, !produces, peer, own),
                     0);
}

static void rig_open_rings(struct rig *r, const struct rig_options *o)
{
    for (int ring = 0; ring < RING_COUNT; ring++)
        for (uint32_t d = 0; d < (ring < RING_COMMAND ? 1 : r->n_drives); d++)
            rig_open_ring(r, (enum layout_ring)ring, d);
    for (int ring = 0; o->taps && ring < RING_COUNT; ring++)
        r->scorer[ring].tap = &o->taps[ring];
}

static void rig_make_agents(struct rig *r)
{
    for (uint32_t d = 0; d < r->n_drives; d++) {
        struct rig_agent *a = r->agents[d] = calloc(1, sizeof *a);
        assert_non_null(a);
        a->bell = d ? &r->drive_bells[d] : &r->bells[PARTY_AGENT];
        a->scorer = &r->bells[PARTY_SCORER];
        a->random = 99 + d;
        a->open_query = RIG_SPANS;
        a->wrong_score_position = a->damaged_position = UINT32_MAX;
    }
    r->agent = r->agents[0];
}

struct scorer_config rig_config(const struct rig_options *o)
{
    struct scorer_config config = {
        .geometry = rig_geometry,
        .epoch = RIG_EPOCH,
        .ctx_tokens = RIG_CTX,
        .n_sequences = o->n_sequences ? o->n_sequences : RIG_SEQUENCES,
        .threads = o->threads ? o->threads : 2,
        .rows = o->rows,
        .gpu_drop = o->gpu_drop,
        .block_tokens = 32,
        .gpu_slots = RIG_GPU_SLOTS,
        .hot_blocks = o->hot_blocks ? o->hot_blocks : 120,
        .demote_slots = 1000,
        .beta = o->beta,
        .placement = o->placement,
        .pin = o->pin,
        .adapts = o->adapts,
        .keeps = true,
        .adopts = o->hot != NULL,
        .margin = 0.5, /* so that much moves */
        .csd_model = {.on = o->cpu_gb_per_s > 0, .cpu = o->cpu_gb_per_s},
        .csd = o->csd,
        .speculates = o->speculates,
        .stripe_slots = RIG_STRIPE,
        .n_stripes = o->n_stripes ? o->n_stripes : RIG_STRIPES,
        .score = o->score ? o->score : kv_score_reference,
        .importance = o->importance,
        .windows = o->windows,
        .policy = o->policy,
        .mass = kv_mass_choose(o->mass ? o->mass : "auto"),
        .key_window_bytes = kv_plane_read_bytes(&rig_geometry, o->policy) ? 8192 : 0,
        .digest_cache_bytes = kv_plan_caches_digests(o->policy) ? o->digest_cache_bytes : 0,
        .host_scores = o->host_scores,
        .lends_digests = o->host_scores > 0 && o->policy == KV_POLICY_HILLINFER,
        .agent_deadline_ns = CLOCK_MS(o->agent_deadline_ms ? o->agent_deadline_ms : 60000)};
    config.n_drives = o->n_drives > 1 ? o->n_drives : 0;
    for (uint32_t d = 0; d < config.n_drives; d++) {
        config.drives[d].n_stripes = o->drive_stripes[d] ? o->drive_stripes[d] : RIG_STRIPES;
        config.drives[d].speed = o->speeds[d];
    }
    return config;
}

struct rig *rig_start(const struct rig_options *o)
{
    struct rig *r = calloc(1, sizeof *r);
    struct scorer_config config = rig_config(o);
    struct hill_why why = {""};
    hill_log_init("rig", HILL_LOG_ERROR);
    r->csd = o->csd;
    r->reads_hot = o->reads_hot;
    r->past_tokens = o->past_tokens;
    r->layer_windows = o->windows;
    r->n_drives = config.n_drives ? config.n_drives : 1;
    rig_make_agents(r);
    rig_open_rings(r, o);
    r->n_staging = o->staging ? o->staging : RIG_STAGING;
    uint64_t staging = shm_arena_bytes(r->n_staging, RIG_ENTRY);
    r->staging_memory = rig_memory(staging);
    assert_int_equal(shm_arena_init(r->staging_memory, r->n_staging, RIG_ENTRY), 0);
    assert_int_equal(shm_arena_own(&r->staging, r->staging_memory, staging), 0);
    assert_int_equal(shm_arena_view(&r->staging_view, r->staging_memory, staging), 0);
    for (uint32_t d = 0; d < r->n_drives; d++)
        assert_int_equal(shm_arena_view(&r->agents[d]->staging, r->staging_memory, staging), 0);
    struct hkm_config tables = {
        .geometry = rig_geometry,
        .ctx_tokens = RIG_CTX,
        .n_sequences = config.n_sequences,
        .gpu_slots = RIG_GPU_SLOTS,
        .n_blocks = config.hot_blocks,
        .state_bytes = kv_plan_state_bytes(&rig_geometry, o->policy, RIG_CTX),
        .cold_slots = config.csd ? r->n_drives * config.n_stripes * RIG_STRIPE : 0};
    struct scorer_io io = {.rings = r->scorer,
                           .bell = &r->bells[PARTY_SCORER],
                           .staging = &r->staging,
                           .trace = o->trace};
    if (config.key_window_bytes)
        io.key_windows = r->windows = rig_memory(KV_KEY_WINDOWS * config.key_window_bytes);
    for (uint32_t d = 0; d < r->n_drives; d++) {
        r->agents[d]->windows = io.key_windows;
        r->agents[d]->window_bytes = config.key_window_bytes;
        r->agents[d]->key_bytes = kv_plane_key_bytes(&rig_geometry, o->policy);
    }
    io.hot_bytes = hkm_tables_bytes(&tables) + config.hot_blocks * hkm_block_bytes(&rig_geometry);
    io.hot = r->hot_memory = o->hot ? o->hot : rig_memory(io.hot_bytes);
    struct scorer_hooks hooks = {
        r, rig_interrupted, rig_stats, rig_failure, rig_work_done, rig_profiled, rig_drained};
    if (scorer_create(&r->pipeline, &config, &io, &hooks, &why))
        fail_msg("scorer_create: %s", why.text);
    assert_int_equal(pthread_create(&r->pipeline_thread, NULL, rig_pipeline_main, r), 0);
    for (uint32_t d = 0; r->csd && d < r->n_drives; d++)
        assert_int_equal(pthread_create(&r->agent_threads[d], NULL, rig_agent_main, r->agents[d]),
                         0);
    return r;
}

/* Agents ring the pipeline alone, and it alone rings them: who has not been rung meanwhile has had
 * nothing to do. */
static bool is_settled(const struct rig *r)
{
    const struct shm_doorbell *bell = &r->bells[PARTY_SCORER];
    uint32_t seen = shm_doorbell_read(bell);
    bool asleep = shm_doorbell_asleep(bell);
    for (uint32_t d = 0; r->csd && d < r->n_drives; d++)
        asleep &= atomic_load(&r->agents[d]->at_rest) && shm_doorbell_asleep(r->agents[d]->bell);
    return asleep && shm_doorbell_asleep(bell) && shm_doorbell_read(bell) == seen;
}

void rig_settle(struct rig *r)
{
    int64_t deadline = clock_deadline_ms(60000);
    while (!is_settled(r)) {
        assert_true(clock_now_ns() < deadline);
        usleep(100);
    }
}

uint32_t rig_tap(void *context, enum shm_ring_moment moment, uint32_t type, const void *payload,
                 uint32_t bytes)
{
    (void)context;
    (void)type;
    (void)payload;
    return moment == SHM_RING_CREDITS ? bytes : moment == SHM_RING_RESERVED;
}

const struct scorer_profile *rig_profile(struct rig *r)
{
    int64_t deadline = clock_deadline_ms(60000);
    atomic_store_explicit(&r->profiled, false, memory_order_relaxed);
    atomic_store_explicit(&r->ask_profile, true, memory_order_release);
    shm_doorbell_ring(&r->bells[PARTY_SCORER]);
    while (!atomic_load_explicit(&r->profiled, memory_order_acquire) && clock_now_ns() < deadline)
        shm_doorbell_wait(&r->bells[PARTY_GPU], shm_doorbell_read(&r->bells[PARTY_GPU]),
                          clock_deadline_ms(1), 0);
    assert_true(atomic_load_explicit(&r->profiled, memory_order_acquire));
    return &r->profile;
}

void rig_set_beta(struct rig *r, uint32_t hundredths)
{
    atomic_store_explicit(&r->set_beta, hundredths, memory_order_relaxed);
    while (atomic_load_explicit(&r->set_beta, memory_order_relaxed))
        shm_doorbell_ring(&r->bells[PARTY_SCORER]);
}

void rig_drain(struct rig *r)
{
    rig_drain_drive(r, 0);
}

void rig_drain_drive(struct rig *r, uint32_t drive)
{
    r->drain_drive = drive;
    atomic_store_explicit(&r->ask_drain, true, memory_order_release);
    shm_doorbell_ring(&r->bells[PARTY_SCORER]);
}

/* Interrupt the pipeline, as a Configure would; its return code. */
static int rig_interrupt(struct rig *r)
{
    atomic_store_explicit(&r->interrupt, true, memory_order_release);
    shm_doorbell_ring(&r->bells[PARTY_SCORER]);
    pthread_join(r->pipeline_thread, NULL);
    return r->run_result;
}

static void rig_free_agents(struct rig *r)
{
    for (uint32_t d = 0; d < r->n_drives; d++) {
        for (int ring = 0; ring < RING_COUNT; ring++)
            shm_ring_close(&r->agents[d]->ends[ring]);
        shm_arena_finish(&r->agents[d]->staging);
        free(r->agents[d]);
    }
}

enum { SLOTS = RIG_STRIPE * RIG_STRIPES };

struct rig_slot *rig_take_slots(const struct rig *r, uint32_t drive)
{
    struct rig_slot *slots = malloc(SLOTS * sizeof *slots);
    assert_non_null(slots);
    memcpy(slots, r->agents[drive]->slots, SLOTS * sizeof *slots);
    return slots;
}

void rig_give_slots(struct rig *r, uint32_t drive, const struct rig_slot *slots)
{
    struct rig_agent *a = r->agents[drive];
    memcpy(a->slots, slots, SLOTS * sizeof *slots);
    for (uint32_t i = 0; i < SLOTS; i++)
        a->slots[i].written = a->slots[i].committed = false;
    a->keeps = true;
}

void rig_stop(struct rig *r)
{
    free(rig_stop_keeping(r));
}

void *rig_stop_keeping(struct rig *r)
{
    struct hill_why why = {""};
    void *hot = r->hot_memory;
    assert_int_equal(rig_interrupt(r), HILL_E_CANCELLED);
    assert_int_equal(atomic_load_explicit(&r->n_wrong_stats, memory_order_relaxed), 0);
    if (hkm_audit(scorer_tables(r->pipeline), &why))
        fail_msg("audit: %s", why.text);
    for (uint32_t d = 0; d < r->n_drives; d++) {
        atomic_store_explicit(&r->agents[d]->stop, true, memory_order_release);
        shm_doorbell_ring(r->agents[d]->bell);
        if (r->csd)
            pthread_join(r->agent_threads[d], NULL);
    }
    scorer_destroy(r->pipeline);
    for (uint32_t ring = 0; ring < LAYOUT_RINGS_MAX; ring++)
        shm_ring_close(&r->scorer[ring]);
    for (int ring = 0; ring < RING_COUNT; ring++)
        shm_ring_close(&r->gpu[ring]);
    rig_free_agents(r);
    for (uint32_t ring = 0; ring < LAYOUT_RINGS_MAX; ring++)
        free(r->ring_memory[ring]);
    shm_arena_finish(&r->staging);
    shm_arena_finish(&r->staging_view);
    free(r->staging_memory);
    free(r->windows);
    free(r);
    return hot;
}
