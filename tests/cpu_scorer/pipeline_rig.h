/*
 * tests/cpu_scorer/pipeline_rig.h - a pipeline between a fake GPU worker and a fake agent, over
 * real rings in one process.
 *
 * The pipeline runs in a thread, the fake agent in another, the test is the GPU worker. Rings are
 * tiny, so that back-pressure and wrap-around happen all the time. The agent is in
 * rig_agent.h. The GPU worker's oracle scores all tokens from its own copy and sorts.
 */
#ifndef HILL_TESTS_CPU_SCORER_PIPELINE_RIG_H
#define HILL_TESTS_CPU_SCORER_PIPELINE_RIG_H

#include "tests/cpu_scorer/rig_agent.h"

/* ---- the rig ------------------------------------------------------------------------------ */

/* Of most requests. */
static const struct kv_selection_settings usual = {
    .alpha = 0.1, .sinks = 4, .window = 16, .policy = KV_POLICY_HILLINFER};

struct rig_options {
    double beta;
    enum scorer_placement placement;
    double pin; /* of bkp */
    bool adapts;
    bool csd;
    kv_score_fn *score;
    uint32_t hot_blocks; /* 0: plenty */
    uint32_t n_stripes;  /* 0: plenty */
    int64_t agent_deadline_ms;
    bool reads_hot; /* the GPU worker reads hot entries where they lie */
    bool speculates;
    uint32_t policy;     /* the pipeline's */
    const char *mass;    /* path that evaluates keys; NULL: auto */
    double cpu_gb_per_s; /* modelled */
};

struct rig {
    void *ring_memory[RING_COUNT];
    void *staging_memory, *hot_memory, *windows;
    struct shm_doorbell bells[PARTY_COUNT];
    struct shm_ring_end scorer[RING_COUNT], gpu[RING_COUNT];
    struct shm_arena staging, staging_view;
    struct scorer *pipeline;
    struct rig_agent *agent;
    pthread_t pipeline_thread, agent_thread;
    int run_result;
    _Atomic bool interrupt;
    bool csd, reads_hot;
    struct scorer_stats stats; /* of the last request that ended; read after SEQ_STATS */
    _Atomic uint32_t n_failures;
    _Atomic bool ask_profile, profiled; /* asked for; profile is there */
    struct scorer_profile profile;
    _Atomic uint64_t hot_now;   /* entries of a running sequence, as live statistics say */
    _Atomic uint32_t set_beta;  /* in hundredths; 0: as it is */
    _Atomic uint32_t live_most; /* sequences with live statistics at the same time, at most */
};

static const uint32_t rig_capacities[RING_COUNT] = {
    [RING_APPEND] = 1u << 13,     [RING_QUERY] = 1u << 11,      [RING_SELECTION] = 1u << 16,
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
    return atomic_load_explicit(&r->interrupt, memory_order_acquire);
}

static void rig_profiled(void *context, const struct scorer_profile *profile)
{
    struct rig *r = context;
    r->profile = *profile;
    /* release: pairs with the acquire in rig_profile */
    atomic_store_explicit(&r->profiled, true, memory_order_release);
}

static void rig_stats(void *context, const struct scorer_stats *stats)
{
    ((struct rig *)context)->stats = *stats; /* the SEQ_STATS record publishes it */
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
    struct scorer_stats live[RIG_SEQUENCES];
    (void)count;
    uint32_t n = scorer_live_stats(r->pipeline, live, RIG_SEQUENCES);
    if (n == RIG_SEQUENCES)
        assert_true(live[0].request_id != live[1].request_id);
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

static void rig_open_ring(struct rig *r, enum layout_ring ring)
{
    static const enum layout_party from[RING_COUNT] = {
        PARTY_GPU, PARTY_GPU, PARTY_SCORER, PARTY_SCORER, PARTY_SCORER, PARTY_AGENT, PARTY_AGENT};
    static const enum layout_party to[RING_COUNT] = {PARTY_SCORER, PARTY_SCORER, PARTY_GPU,
                                                     PARTY_AGENT,  PARTY_AGENT,  PARTY_SCORER,
                                                     PARTY_SCORER};
    uint64_t bytes = shm_ring_bytes(rig_capacities[ring]);
    struct shm_ring_end *other = ring < RING_COMMAND ? r->gpu : r->agent->ends;
    bool produces = from[ring] == PARTY_SCORER;
    r->ring_memory[ring] = rig_memory(bytes);
    assert_int_equal(shm_ring_init(r->ring_memory[ring], rig_capacities[ring], UINT32_MAX - 3), 0);
    if (!r->csd && ring >= RING_COMMAND)
        return;
    struct shm_doorbell *own = &r->bells[PARTY_SCORER];
    struct shm_doorbell *peer = &r->bells[produces ? to[ring] : from[ring]];
    assert_int_equal(
        shm_ring_open(&r->scorer[ring], r->ring_memory[ring], bytes, produces, own, peer), 0);
    assert_int_equal(shm_ring_open(&other[ring], r->ring_memory[ring], bytes, !produces, peer, own),
                     0);
}

static struct scorer_config rig_config(const struct rig_options *o)
{
    return (struct scorer_config){
        .geometry = rig_geometry,
        .epoch = RIG_EPOCH,
        .ctx_tokens = RIG_CTX,
        .n_sequences = RIG_SEQUENCES,
        .threads = 2,
        .block_tokens = 32,
        .gpu_slots = RIG_GPU_SLOTS,
        .hot_blocks = o->hot_blocks ? o->hot_blocks : 120,
        .demote_slots = 1000,
        .beta = o->beta,
        .placement = o->placement,
        .pin = o->pin,
        .adapts = o->adapts,
        .margin = 0.5, /* so that much moves */
        .cpu_gb_per_s = o->cpu_gb_per_s,
        .csd = o->csd,
        .speculates = o->speculates,
        .stripe_slots = RIG_STRIPE,
        .n_stripes = o->n_stripes ? o->n_stripes : RIG_STRIPES,
        .score = o->score ? o->score : kv_score_reference,
        .policy = o->policy,
        .mass = kv_mass_choose(o->mass ? o->mass : "auto"),
        .key_window_bytes = kv_policy_reads_keys(o->policy) ? 8192 : 0,
        .agent_deadline_ns = CLOCK_MS(o->agent_deadline_ms ? o->agent_deadline_ms : 60000)};
}

static struct rig *rig_start(const struct rig_options *o)
{
    struct rig *r = calloc(1, sizeof *r);
    struct scorer_config config = rig_config(o);
    struct hill_why why = {""};
    hill_log_init("rig", HILL_LOG_ERROR);
    r->csd = o->csd;
    r->reads_hot = o->reads_hot;
    r->agent = calloc(1, sizeof *r->agent);
    r->agent->bell = &r->bells[PARTY_AGENT];
    r->agent->random = 99;
    r->agent->wrong_score_position = r->agent->damaged_position = UINT32_MAX;
    for (int ring = 0; ring < RING_COUNT; ring++)
        rig_open_ring(r, (enum layout_ring)ring);
    uint64_t staging = shm_arena_bytes(RIG_STAGING, RIG_ENTRY);
    r->staging_memory = rig_memory(staging);
    assert_int_equal(shm_arena_init(r->staging_memory, RIG_STAGING, RIG_ENTRY), 0);
    assert_int_equal(shm_arena_own(&r->staging, r->staging_memory, staging), 0);
    assert_int_equal(shm_arena_view(&r->staging_view, r->staging_memory, staging), 0);
    assert_int_equal(shm_arena_view(&r->agent->staging, r->staging_memory, staging), 0);
    struct hkm_config tables = {rig_geometry, RIG_CTX, RIG_SEQUENCES, RIG_GPU_SLOTS,
                                config.hot_blocks};
    struct scorer_io io = {
        .rings = r->scorer, .bell = &r->bells[PARTY_SCORER], .staging = &r->staging};
    if (config.key_window_bytes)
        io.key_windows = r->windows = rig_memory(KV_KEY_WINDOWS * config.key_window_bytes);
    r->agent->windows = io.key_windows;
    r->agent->window_bytes = config.key_window_bytes;
    r->agent->key_bytes = kv_plane_key_bytes(&rig_geometry, o->policy);
    io.hot_bytes = hkm_tables_bytes(&tables) + config.hot_blocks * hkm_block_bytes(&rig_geometry);
    io.hot = r->hot_memory = rig_memory(io.hot_bytes);
    struct scorer_hooks hooks = {r,           rig_interrupted, rig_stats,
                                 rig_failure, rig_work_done,   rig_profiled};
    if (scorer_create(&r->pipeline, &config, &io, &hooks, &why))
        fail_msg("scorer_create: %s", why.text);
    assert_int_equal(pthread_create(&r->pipeline_thread, NULL, rig_pipeline_main, r), 0);
    if (r->csd)
        assert_int_equal(pthread_create(&r->agent_thread, NULL, agent_main, r->agent), 0);
    return r;
}

/* Ask for a profile and wait for it. */
static inline const struct scorer_profile *rig_profile(struct rig *r)
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

/* Interrupt the pipeline, as a Configure would; its return code. */
static int rig_interrupt(struct rig *r)
{
    atomic_store_explicit(&r->interrupt, true, memory_order_release);
    shm_doorbell_ring(&r->bells[PARTY_SCORER]);
    pthread_join(r->pipeline_thread, NULL);
    return r->run_result;
}

static void rig_stop(struct rig *r)
{
    struct hill_why why = {""};
    assert_int_equal(rig_interrupt(r), HILL_E_CANCELLED);
    if (hkm_audit(scorer_tables(r->pipeline), &why))
        fail_msg("audit: %s", why.text);
    atomic_store_explicit(&r->agent->stop, true, memory_order_release);
    shm_doorbell_ring(&r->bells[PARTY_AGENT]);
    if (r->csd)
        pthread_join(r->agent_thread, NULL);
    scorer_destroy(r->pipeline);
    for (int ring = 0; ring < RING_COUNT; ring++) {
        shm_ring_close(&r->scorer[ring]);
        shm_ring_close(&r->gpu[ring]);
        shm_ring_close(&r->agent->ends[ring]);
        free(r->ring_memory[ring]);
    }
    shm_arena_finish(&r->staging);
    shm_arena_finish(&r->staging_view);
    shm_arena_finish(&r->agent->staging);
    free(r->staging_memory);
    free(r->hot_memory);
    free(r->windows);
    free(r->agent);
    free(r);
}

/* ---- the fake GPU worker ------------------------------------------------------------------ */

struct rig_request {
    struct rig *rig;
    uint32_t sequence, step, n, query_id;
    uint64_t request_id, random;
    struct kv_selection_settings settings;
    uint16_t entries[RIG_LAYERS][RIG_CTX][RIG_ENTRY / 2];
    uint8_t gpu[RIG_LAYERS][RIG_GPU_SLOTS][RIG_ENTRY];
    uint32_t appended[RIG_LAYERS];
    XXH64_state_t *hash; /* the oracle's */
    uint64_t uploads, in_place;
    bool check;                       /* against the oracle */
    double seen[RIG_LAYERS][RIG_CTX]; /* the oracle's sums of attention mass */
    bool kept[RIG_LAYERS][2][16];     /* prefetch: columns of each KV head that count */
    /* of the last selection: what the attention still reads in the hot pool */
    uint32_t reading[RIG_GPU_SLOTS][2], n_reading, reading_layer; /* hot slot, position */
    uint32_t linger_us;                                           /* of each attention */
    /* the oracle's, of guesses that are verified */
    uint64_t guess_chosen[RIG_LAYERS], guess_found[RIG_LAYERS];
};

static void gpu_push(struct rig *r, enum layout_ring ring, uint32_t type, const void *record,
                     uint32_t bytes)
{
    int64_t deadline = clock_deadline_ms(60000);
    int rc;
    while ((rc = shm_ring_push(&r->gpu[ring], type, record, bytes)) == HILL_E_WOULD_BLOCK &&
           clock_now_ns() < deadline)
        shm_ring_wait(&r->gpu[ring], bytes, deadline);
    assert_int_equal(rc, 0);
}

/* Wait for the next record of the selection ring, which stays peeked. */
static const void *gpu_wait(struct rig *r, uint32_t expected)
{
    uint32_t type, bytes;
    const void *payload;
    assert_int_equal(shm_ring_wait(&r->gpu[RING_SELECTION], 0, clock_deadline_ms(60000)), 0);
    assert_int_equal(shm_ring_peek(&r->gpu[RING_SELECTION], &type, &payload, &bytes), 0);
    assert_int_equal(record_check(type, payload, bytes, &rig_geometry, RIG_SEQUENCES, NULL), 0);
    assert_int_equal(type, expected);
    return payload;
}

static struct record_header gpu_header(const struct rig_request *q, uint32_t layer)
{
    return (struct record_header){RIG_EPOCH, q->sequence, q->step, layer};
}

static void gpu_push_begin(const struct rig_request *q, uint32_t max)
{
    const struct kv_selection_settings *settings = &q->settings;
    struct record_seq_begin begin = {.header = gpu_header(q, 0),
                                     .request_id = q->request_id,
                                     .prompt_tokens = q->n,
                                     .max_tokens = max,
                                     .alpha = settings->alpha,
                                     .budget = settings->budget,
                                     .sinks = settings->sinks,
                                     .window = settings->window,
                                     .policy = settings->policy,
                                     .importance = settings->importance,
                                     .reads_hot = q->rig->reads_hot};
    gpu_push(q->rig, RING_APPEND, RECORD_SEQ_BEGIN, &begin, sizeof begin);
}

static struct rig_request *gpu_begin(struct rig *r, uint32_t sequence, uint32_t prompt,
                                     uint32_t max, const struct kv_selection_settings *settings,
                                     int expected_status)
{
    struct rig_request *q = calloc(1, sizeof *q);
    q->rig = r;
    q->sequence = sequence;
    q->request_id = 1000 + sequence;
    q->random = 4711 + sequence;
    q->settings = *settings;
    q->n = prompt;
    q->check = true;
    q->hash = XXH64_createState();
    XXH64_reset(q->hash, 0);
    gpu_push_begin(q, max);
    const struct record_seq_ready *ready = gpu_wait(r, RECORD_SEQ_READY);
    assert_int_equal(ready->status, expected_status);
    if (r->reads_hot && !expected_status) {
        const struct hkm *tables = scorer_tables(r->pipeline);
        assert_ptr_equal((uint8_t *)r->hot_memory + 64ull * ready->hot_offset, tables->entries);
        assert_int_equal(ready->hot_entries, tables->n_blocks * KV_HOT_BLOCK_TOKENS);
    } else {
        assert_int_equal(ready->hot_entries, 0);
    }
    shm_ring_release(&r->gpu[RING_SELECTION]);
    return q;
}

static uint16_t rig_half(uint64_t *random)
{
    return (uint16_t)(rig_random(random, 2) << 15 | (9 + rig_random(random, 9)) << 10 |
                      rig_random(random, 1024));
}

static double rig_half_value(uint16_t bits)
{
    double size = ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25); /* rig_half's are normal */
    return bits & 0x8000 ? -size : size;
}

/* The eight columns of each KV head with the largest sums over the first n tokens. */
static void rig_keep_columns(struct rig_request *q, uint32_t layer, uint32_t n)
{
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t d = 0; d < 16; d++) {
            double sums[16] = {0};
            uint32_t before = 0;
            for (uint32_t i = 0; i < n * 16; i++)
                sums[i % 16] += fabs(rig_half_value(q->entries[layer][i / 16][h * 16 + i % 16]));
            for (uint32_t other = 0; other < 16; other++)
                before += sums[other] > sums[d] || (sums[other] == sums[d] && other < d);
            q->kept[layer][h][d] = before < 8;
        }
}

static void gpu_append(struct rig_request *q, uint32_t layer, uint32_t n)
{
    struct {
        struct record_append append;
        uint8_t entries[24][RIG_ENTRY];
    } out = {.append = {.header = gpu_header(q, layer), .first = q->appended[layer]}};
    out.append.n_tokens = n;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *entry = q->entries[layer][q->appended[layer] + i];
        for (uint32_t j = 0; j < RIG_ENTRY / 2; j++)
            entry[j] = rig_half(&q->random);
        memcpy(out.entries[i], entry, RIG_ENTRY);
    }
    if (q->appended[layer] == 0)
        rig_keep_columns(q, layer, n);
    gpu_push(q->rig, RING_APPEND, RECORD_APPEND, &out,
             (uint32_t)(sizeof out.append + n * RIG_ENTRY));
    q->appended[layer] += n;
}

/* What the attention reads in the hot pool is there still. */
static void gpu_check_reading(const struct rig_request *q)
{
    const struct hkm *tables = scorer_tables(q->rig->pipeline);
    const uint8_t *entries = tables->entries;
    for (uint32_t i = 0; i < q->n_reading; i++) /* not given to another, nor free for one */
        assert_int_equal(tables->positions[q->reading[i][0]], q->reading[i][1]);
    for (uint32_t i = 0; i < q->n_reading; i++)
        assert_memory_equal(entries + (size_t)q->reading[i][0] * RIG_ENTRY,
                            q->entries[q->reading_layer][q->reading[i][1]], RIG_ENTRY);
}

/* The attention of the last query is over: the record that says so may follow. */
static void gpu_finish_reading(struct rig_request *q)
{
    if (q->n_reading && q->linger_us)
        usleep(q->linger_us);
    gpu_check_reading(q);
    q->n_reading = 0;
}

static void gpu_reads_done(struct rig_request *q)
{
    struct record_reads_done done = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_finish_reading(q);
    if (q->rig->reads_hot)
        gpu_push(q->rig, RING_QUERY, RECORD_READS_DONE, &done, sizeof done);
}

static void gpu_step_end(struct rig_request *q)
{
    gpu_reads_done(q);

    struct record_step_end end = {.header = gpu_header(q, 0), .n_tokens = q->n};
    gpu_push(q->rig, RING_APPEND, RECORD_STEP_END, &end, sizeof end);
    q->step++;
}

/* What the prompt's queries attended to, made up, some tokens at a time. */
static void gpu_weigh(struct rig_request *q, uint32_t layer)
{
    for (uint32_t first = 0; first < q->n; first += 100) {
        uint32_t n = q->n - first < 100 ? q->n - first : 100;
        struct {
            struct record_mass mass;
            float values[100];
        } out = {.mass = {.header = gpu_header(q, layer), .first = first, .n_tokens = n}};
        for (uint32_t i = 0; i < n; i++) {
            out.values[i] = (float)rig_random(&q->random, 1000) / 500;
            q->seen[layer][first + i] += out.values[i];
        }
        gpu_push(q->rig, RING_APPEND, RECORD_MASS, &out,
                 (uint32_t)(sizeof out.mass + n * sizeof(float)));
    }
}

static void gpu_prefill(struct rig_request *q)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        while (q->appended[layer] < q->n) {
            uint32_t left = q->n - q->appended[layer];
            gpu_append(q, layer, left < 24 ? left : 24);
        }
        if (q->settings.policy == KV_POLICY_H2O)
            gpu_weigh(q, layer);
    }
    gpu_step_end(q);
}

/* What must be selected: every token scored from our copy, sorted, the best k with the forced ones.
 */
struct rig_ranked {
    uint32_t position;
    int64_t rank;
};

static int rank_order(const void *a, const void *b)
{
    const struct rig_ranked *x = a, *y = b;
    return x->rank < y->rank ? 1 : x->rank > y->rank ? -1 : 0;
}

static int position_order(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static uint32_t oracle_select(const struct rig_request *q, uint32_t layer, uint32_t n,
                              const float *query, uint32_t *positions)
{
    static struct rig_ranked ranked[RIG_CTX];
    int8_t mantissas[RIG_DIMS];
    uint8_t shifts[2], group[1024];
    struct kv_query digest = {mantissas, shifts, q->settings.importance};
    kv_digest_query(&rig_geometry, q->settings.importance, query, mantissas, shifts);
    for (uint32_t p = 0; p < n; p++) {
        uint16_t score;
        kv_digest_keys(&rig_geometry, q->entries[layer][p], RIG_ENTRY / 2, 1, group, 0);
        kv_score_reference(&rig_geometry, &digest, group, 1, &score);
        bool forced = p < q->settings.sinks || p + q->settings.window >= n;
        ranked[p] = (struct rig_ranked){p, ((int64_t)forced << 48) | ((int64_t)score << 32) | p};
    }
    qsort(ranked, n, sizeof *ranked, rank_order);
    uint32_t k = kv_budget_tokens(&q->settings, n);
    for (uint32_t i = 0; i < k; i++)
        positions[i] = ranked[i].position;
    qsort(positions, k, sizeof *positions, position_order);
    return k;
}

/* Attention mass of n tokens, by the book. */
static void oracle_mass(const struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                        double *mass)
{
    static double weights[RIG_CTX];
    memset(mass, 0, n * sizeof *mass);
    for (uint32_t h = 0; h < 4; h++) {
        double most = -1e300, sum = 0;
        for (uint32_t p = 0; p < n; p++) {
            double dot = 0;
            for (uint32_t i = 0; i < 16; i++)
                if (q->settings.policy != KV_POLICY_PREFETCH || q->kept[layer][h / 2][i])
                    dot += (double)query[h * 16 + i] *
                           rig_half_value(q->entries[layer][p][h / 2 * 16 + i]);
            weights[p] = dot / 4;
            most = fmax(most, weights[p]);
        }
        for (uint32_t p = 0; p < n; p++)
            sum += weights[p] = exp(weights[p] - most);
        for (uint32_t p = 0; p < n; p++)
            mass[p] += weights[p] / sum;
    }
}

/* Forced tokens are in, and of the others none that is left out beats one that is in by more than
 * a score's precision. The positions are the caller's to hash. */
static uint32_t check_by_mass(struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                              const struct selected_item *items, uint32_t *positions)
{
    static double mass[RIG_CTX];
    bool in[RIG_CTX] = {false};
    double least = 1e300, most = 0;
    uint32_t k = kv_budget_tokens(&q->settings, n);
    oracle_mass(q, layer, n, query, mass);
    for (uint32_t p = 0; p < n; p++)
        q->seen[layer][p] += mass[p];
    for (uint32_t i = 0; i < k; i++)
        in[positions[i] = items[i].position] = true;
    for (uint32_t p = 0; p < n; p++) {
        double rank = q->settings.policy == KV_POLICY_H2O ? q->seen[layer][p] : mass[p];
        if (p < q->settings.sinks || p + q->settings.window >= n)
            assert_true(in[p]);
        else if (in[p])
            least = fmin(least, rank);
        else
            most = fmax(most, rank);
    }
    assert_true(most <= least * (1 + 0x1p-9));
    return k;
}

struct rig_chunk {
    uint32_t chunk;
    double logits[4], mass;
};

static int chunk_order(const void *a, const void *b)
{
    const struct rig_chunk *x = a, *y = b;
    return x->mass < y->mass ? 1 : x->mass > y->mass ? -1 : x->chunk < y->chunk ? 1 : -1;
}

/* What the keys of positions first .. end - 1 can have at most for each head, by the book. */
static void oracle_bounds(const struct rig_request *q, uint32_t layer, const float *query,
                          uint32_t first, uint32_t end, struct rig_chunk *out)
{
    for (uint32_t h = 0; h < 4; h++) {
        out->logits[h] = 0;
        for (uint32_t i = 0; i < 16; i++) {
            double most = -1e300;
            for (uint32_t p = first; p < end; p++)
                most = fmax(most, (double)query[h * 16 + i] *
                                      rig_half_value(q->entries[layer][p][h / 2 * 16 + i]));
            out->logits[h] += most / 4;
        }
    }
}

/* By attention mass among themselves, the most first. */
static void oracle_rank(struct rig_chunk *chunks, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++)
        chunks[c].mass = 0;
    for (uint32_t h = 0; h < 4; h++) {
        double most = -1e300, sum = 0;
        for (uint32_t c = 0; c < n; c++)
            most = fmax(most, chunks[c].logits[h]);
        for (uint32_t c = 0; c < n; c++)
            sum += exp(chunks[c].logits[h] - most);
        for (uint32_t c = 0; c < n; c++)
            chunks[c].mass += exp(chunks[c].logits[h] - most) / sum;
    }
    qsort(chunks, n, sizeof *chunks, chunk_order);
}

static bool rig_is_free(const struct rig_request *q, uint32_t p, uint32_t n)
{
    return p >= q->settings.sinks && p + q->settings.window < n;
}

/* leoam's candidates: coarse chunks by their bounds until there are four times as many tokens as
 * can be selected, their fine chunks until there are twice as many. */
static void oracle_candidates(const struct rig_request *q, uint32_t layer, uint32_t n,
                              const float *query, bool *candidate)
{
    static struct rig_chunk coarse[RIG_CTX / 64 + 1], fine[RIG_CTX / 16 + 1];
    uint32_t k = kv_budget_tokens(&q->settings, n), forced = q->settings.sinks + q->settings.window;
    uint32_t target = 2 * (k - forced), found = 0, refined = 0, n_fine = 0;
    for (uint32_t c = 0; c < n / 64; c++) {
        coarse[c].chunk = c;
        oracle_bounds(q, layer, query, c * 64, c * 64 + 64, &coarse[c]);
    }
    oracle_rank(coarse, n / 64);
    coarse[n / 64].chunk = n / 64; /* not whole: always refined */
    for (uint32_t i = 0; i <= n / 64; i++) {
        if (i < n / 64 && refined >= 2 * target)
            continue;
        for (uint32_t p = coarse[i].chunk * 64; p < coarse[i].chunk * 64 + 64; p++) {
            refined += i < n / 64 && rig_is_free(q, p, n);
            if (p % 16 == 0 && p + 16 <= n) {
                fine[n_fine].chunk = p / 16;
                oracle_bounds(q, layer, query, p, p + 16, &fine[n_fine++]);
            }
        }
    }
    oracle_rank(fine, n_fine);
    for (uint32_t p = n / 16 * 16; p < n; p++) /* not whole: always looked at */
        found += candidate[p] = rig_is_free(q, p, n);
    for (uint32_t i = 0; i < n_fine && found < target; i++)
        for (uint32_t p = fine[i].chunk * 16; p < fine[i].chunk * 16 + 16; p++)
            found += candidate[p] = rig_is_free(q, p, n);
}

/* Of the candidates those with the most attention mass among themselves are in. */
static uint32_t check_by_chunks(struct rig_request *q, uint32_t layer, uint32_t n,
                                const float *query, const struct selected_item *items,
                                uint32_t *positions)
{
    static struct rig_chunk keys[RIG_CTX];
    bool in[RIG_CTX] = {false}, candidate[RIG_CTX] = {false};
    uint32_t k = kv_budget_tokens(&q->settings, n), n_keys = 0;
    double least = 1e300, most = -1e300;
    oracle_candidates(q, layer, n, query, candidate);
    for (uint32_t i = 0; i < k; i++)
        in[positions[i] = items[i].position] = true;
    for (uint32_t p = 0; p < n; p++) {
        assert_true(in[p] ? candidate[p] || !rig_is_free(q, p, n) : rig_is_free(q, p, n));
        if (!candidate[p])
            continue;
        keys[n_keys].chunk = p;
        oracle_bounds(q, layer, query, p, p + 1, &keys[n_keys++]);
    }
    oracle_rank(keys, n_keys);
    for (uint32_t i = 0; i < n_keys; i++)
        if (in[keys[i].chunk])
            least = fmin(least, keys[i].mass);
        else
            most = fmax(most, keys[i].mass);
    assert_true(most <= least * (1 + 0x1p-9));
    return k;
}

/* Apply the uploads, then look at what attention would read. */
static void check_answer(struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                         const struct record_selection *answer)
{
    static uint32_t positions[RIG_CTX];
    const struct selected_item *items = (const struct selected_item *)(answer + 1);
    const struct selected_upload *uploads =
        (const struct selected_upload *)(items + answer->n_selected);
    for (uint32_t i = 0; i < answer->n_uploads; i++) {
        const struct selected_upload *u = &uploads[i];
        assert_int_equal(shm_arena_generation(&q->rig->staging_view, u->staging_slot),
                         u->generation);
        memcpy(q->gpu[layer][u->gpu_slot], shm_arena_slot(&q->rig->staging_view, u->staging_slot),
               RIG_ENTRY);
    }
    q->uploads += answer->n_uploads;
    q->reading_layer = layer;
    for (uint32_t i = 0; i < answer->n_selected; i++) {
        if (!(items[i].gpu_slot & SELECTED_HOT))
            continue;
        assert_true(q->rig->reads_hot);
        q->reading[q->n_reading][0] = items[i].gpu_slot & ~SELECTED_HOT;
        q->reading[q->n_reading++][1] = items[i].position;
        q->in_place++;
    }
    gpu_check_reading(q);
    for (uint32_t i = 0; i < answer->n_selected; i++)
        if (!(items[i].gpu_slot & SELECTED_HOT))
            assert_memory_equal(q->gpu[layer][items[i].gpu_slot],
                                q->entries[layer][items[i].position], RIG_ENTRY);
    if (!q->check)
        return;
    bool mass = kv_policy_reads_keys(q->settings.policy);
    assert_int_equal(answer->n_selected, kv_budget_tokens(&q->settings, n));
    uint32_t k = q->settings.policy == KV_POLICY_LEOAM
                     ? check_by_chunks(q, layer, n, query, items, positions)
                 : mass ? check_by_mass(q, layer, n, query, items, positions)
                        : oracle_select(q, layer, n, query, positions);
    uint32_t head[2] = {q->step, layer};
    for (uint32_t i = 0; i < k; i++)
        assert_int_equal(items[i].position, positions[i]);
    XXH64_update(q->hash, head, sizeof head);
    XXH64_update(q->hash, positions, k * sizeof *positions);
}

struct rig_question {
    struct record_query query;
    float q[64];
};

static void gpu_fill_question(struct rig_request *q, uint32_t layer, uint32_t n,
                              enum query_kind kind, struct rig_question *out)
{
    *out = (struct rig_question){.query = {.header = gpu_header(q, layer),
                                           .query_id = ++q->query_id * 2 + q->sequence,
                                           .kind = kind,
                                           .n_heads = 4,
                                           .n_tokens = n,
                                           .request_id = q->request_id}};
    for (int i = 0; i < 64; i++)
        out->q[i] = (float)(int)(rig_random(&q->random, 2001)) / 1000.0f - 1.0f;
}

/* Ask, and append the next token before or after. */
static void gpu_ask(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first,
                    struct rig_question *out)
{
    gpu_finish_reading(q);
    gpu_fill_question(q, layer, n, QUERY_EXACT, out);
    if (append_first)
        gpu_append(q, layer, 1);
    gpu_push(q->rig, RING_QUERY, RECORD_QUERY, out, sizeof *out);
    if (!append_first && q->appended[layer] == n)
        gpu_append(q, layer, 1);
}

static int gpu_answer(struct rig_request *q, uint32_t layer, uint32_t n,
                      const struct rig_question *asked)
{
    const struct record_selection *answer = gpu_wait(q->rig, RECORD_SELECTION);
    assert_int_equal(answer->query_id, asked->query.query_id);
    int status = answer->status;
    if (status == 0)
        check_answer(q, layer, n, asked->q, answer);
    else
        assert_int_equal(answer->n_selected, 0);
    shm_ring_release(&q->rig->gpu[RING_SELECTION]);
    return status;
}

static int gpu_query(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first)
{
    struct rig_question asked;
    gpu_ask(q, layer, n, append_first, &asked);
    return gpu_answer(q, layer, n, &asked);
}

/* One decode step: every layer asks for the tokens before this one, and appends it. The first
 * failure. */
static inline int gpu_decode(struct rig_request *q)
{
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        int status = gpu_query(q, layer, q->n, (q->step + layer) % 2);
        if (status)
            return status;
    }
    q->n++;
    gpu_step_end(q);
    return 0;
}

/* How much of what the exact query chooses its guess had chosen. */
static void oracle_recall(struct rig_request *q, uint32_t layer, uint32_t n, const float *guess,
                          const float *exact)
{
    static uint32_t guessed[RIG_CTX], wanted[RIG_CTX];
    uint32_t k = oracle_select(q, layer, n, guess, guessed);
    oracle_select(q, layer, n, exact, wanted);
    for (uint32_t i = 0; i < k; i++) {
        if (wanted[i] < q->settings.sinks || wanted[i] + q->settings.window >= n)
            continue;
        q->guess_chosen[layer]++;
        for (uint32_t j = 0; j < k; j++)
            q->guess_found[layer] += guessed[j] == wanted[i];
    }
}

/* A decode step whose queries are guessed from layer 1 on: the next layer's guess goes out before
 * this layer's attention reads, and that reads on while the guess is worked at. */
static inline int gpu_decode_guessed(struct rig_request *q, enum query_kind kind)
{
    struct rig_question asked[RIG_LAYERS], exact;
    int status = 0;
    for (uint32_t layer = 0; layer < RIG_LAYERS && !status; layer++) {
        gpu_finish_reading(q);
        if (layer == 0) {
            gpu_ask(q, 0, q->n, q->step % 2, &asked[0]);
        } else if (kind == QUERY_AHEAD) { /* the exact query is not quite what was guessed */
            gpu_fill_question(q, layer, q->n, QUERY_EXACT, &exact);
            memcpy(exact.q, asked[layer].q, sizeof exact.q - 16 * sizeof *exact.q);
            oracle_recall(q, layer, q->n, asked[layer].q, exact.q);
            asked[layer] = exact;
            gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &exact, sizeof exact);
        }
        if (q->appended[layer] == q->n)
            gpu_append(q, layer, 1);
        if (layer + 1 < RIG_LAYERS) {
            gpu_fill_question(q, layer + 1, q->n, kind, &asked[layer + 1]);
            gpu_push(q->rig, RING_QUERY, RECORD_QUERY, &asked[layer + 1], sizeof asked[0]);
        }
        status = gpu_answer(q, layer, q->n, &asked[layer]);
    }
    if (status)
        return status;
    q->n++;
    gpu_step_end(q);
    return 0;
}

static void gpu_free(struct rig_request *q)
{
    XXH64_freeState(q->hash);
    free(q);
}

static struct scorer_stats gpu_end(struct rig_request *q)
{
    struct rig *r = q->rig;
    struct record_seq_end end = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_push(r, RING_APPEND, RECORD_SEQ_END, &end, sizeof end);
    const struct record_seq_stats *stats = gpu_wait(r, RECORD_SEQ_STATS);
    assert_int_equal(stats->request_id, q->request_id);
    struct scorer_stats answer = r->stats;
    shm_ring_release(&r->gpu[RING_SELECTION]);
    gpu_free(q);
    return answer;
}

/* The pipeline has no record for the GPU worker. */
static inline bool nothing_was_said(struct rig *r)
{
    uint32_t type, bytes;
    const void *payload;
    return shm_ring_peek(&r->gpu[RING_SELECTION], &type, &payload, &bytes) == HILL_E_WOULD_BLOCK;
}

#endif
