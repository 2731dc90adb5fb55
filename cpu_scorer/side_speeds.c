/* cpu_scorer/side_speeds.c - see side_speeds.h. */
#include "cpu_scorer/side_speeds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu_scorer/evaluate_digest.h"
#include "cpu_scorer/holding.h"

#define SIDE_BYTES   (32u << 20) /* of FP16 KV on each side, at most: more than caches hold */
#define BATCH        64u         /* entries made and placed at a time */
#define ROUNDS_MAX   15u
#define DRIVE_ROUNDS 3
#define DRIVE_PART   4u           /* of the cold tokens, for the shorter of two queries */
#define FETCH_SHARE  5u           /* of the cold tokens: the default alpha is a fifth, too */
#define BUSY_NS      CLOCK_MS(20) /* longer than this nobody keeps a CPU busy for the drive's sake */

enum rate { F_C, F_S, B_C, B_S, RATES };

struct profile_run {
    struct side_speeds *m;
    struct core *core;
    struct digest_row *digest;
    struct query *q;
    struct sequence *s;
    int64_t began_ns, fill_until_ns, until_ns;
    uint32_t hot_each, hot_first; /* hot tokens of a layer, and of layer 0, which has the cold */
    uint32_t hot_tokens, cold_tokens, fetch_tokens;
    uint32_t hot_there, cold_there, fill_layer; /* so far */
    uint32_t stripes[LAYOUT_DRIVES_MAX];
    uint32_t n_blocks;
    uint32_t *blocks; /* of all layers */
    uint16_t *scores;
    uint8_t *entries;  /* [BATCH][entry bytes] */
    uint32_t *staging; /* [2 * fetch_tokens]: fetched, copied */
    float *query;
    uint64_t random;
    uint32_t n_rounds, n_queries;
    double samples[RATES][ROUNDS_MAX];
    /* of several drives: queries of a part of the cold tokens and of all, fetches of few and of
     * many */
    struct drive_time {
        uint32_t tokens;
        int64_t shortest_ns;
    } part[LAYOUT_DRIVES_MAX], whole[LAYOUT_DRIVES_MAX], few[LAYOUT_DRIVES_MAX],
        many[LAYOUT_DRIVES_MAX];
    char why[160];
};

static int give_up(struct profile_run *r, int code, const char *text)
{
    snprintf(r->why, sizeof r->why, "%s", text);
    return code;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint64_t next_random(struct profile_run *r)
{
    r->random ^= r->random << 13;
    r->random ^= r->random >> 7;
    r->random ^= r->random << 17;
    return r->random;
}

/* FP16 numbers of magnitude 1 to 2 with random signs, four at a time. */
static void make_entries(struct profile_run *r, uint32_t n)
{
    uint64_t bytes = (uint64_t)n * r->core->tiers.hkm.entry_bytes;
    for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
        uint64_t four =
            (next_random(r) & UINT64_C(0x83ff83ff83ff83ff)) | UINT64_C(0x3c003c003c003c00);
        memcpy(r->entries + at, &four, sizeof four);
    }
}

/* ---- waiting ------------------------------------------------------------------------------ */

typedef bool is_done(const struct profile_run *r);

static bool all_committed(const struct profile_run *r)
{
    return r->s->layers[0].uncommitted == 0;
}

static bool cold_scored(const struct profile_run *r)
{
    return r->digest->cold_done || r->digest->status;
}

static bool fetched(const struct profile_run *r)
{
    return r->q->answer.fetches_open == 0;
}

/* What the agent has sent, and what can be flipped for it: 1, 0 or an error. */
static int look(struct profile_run *r)
{
    int moved = agent_pump(r->m->agent);
    int flipped = moved < 0 ? 0 : demotions_pump(r->m->demotions);
    if (moved < 0 || flipped < 0)
        return moved < 0 ? moved : flipped;
    if (r->s->status)
        return r->s->status;
    return r->m->agent->status ? r->m->agent->status : moved | flipped;
}

static int wait_until(struct profile_run *r, is_done *done)
{
    for (;;) { /* the agent's deadline ends it: agent_pause looks at that */
        uint32_t seen = shm_doorbell_read(r->core->io.bell);
        int moved = look(r);
        if (done(r))
            return r->s->status;
        if (moved < 0)
            return moved;
        if (moved)
            continue;
        int rc = agent_pause(r->m->agent, seen, 0);
        if (rc)
            return rc;
    }
}

/* Wait until `push` has found room in the command ring. */
static int wait_to_push(struct profile_run *r, int (*push)(struct profile_run *))
{
    for (;;) {
        uint32_t seen = shm_doorbell_read(r->core->io.bell);
        int rc = push(r);
        if (rc)
            return rc < 0 ? rc : 0;
        rc = look(r);
        if (rc == 0)
            rc = agent_pause(r->m->agent, seen, 0);
        if (rc < 0)
            return rc;
    }
}

/* ---- the sequence ------------------------------------------------------------------------- */

/* Up to `want` cold tokens, the same number on each drive, and stripes for them. */
static void choose_cold(struct profile_run *r, uint32_t want)
{
    const struct cold_map *cold = &r->core->tiers.cold;
    uint32_t n_drives = 0;
    for (uint32_t d = 0; d < cold->n_drives; d++)
        n_drives += cold->drives[d].n_stripes > 0;
    uint32_t each = n_drives ? (want + n_drives - 1) / n_drives : 0;
    for (uint32_t d = 0; d < cold->n_drives; d++) {
        uint64_t room = (uint64_t)cold->drives[d].n_free * cold->stripe_slots;
        uint32_t n = room < each ? (uint32_t)room : each;
        r->stripes[d] = (n + cold->stripe_slots - 1) / cold->stripe_slots;
        r->cold_tokens += n;
    }
    r->cold_tokens = smaller(r->cold_tokens, want);
}

/* Sizes, within what the context, the tiers and staging have room for. */
static int choose_sizes(struct profile_run *r)
{
    const struct core *c = r->core;
    const struct tiers *t = &c->tiers;
    const struct kv_geometry *g = &c->config.geometry;
    uint32_t ctx = c->config.ctx_tokens;
    uint32_t layers = g->n_layers, want = SIDE_BYTES / t->hkm.entry_bytes + 1;
    uint32_t blocks_each =
        smaller(t->hkm.n_unreserved / layers, want / (KV_HOT_BLOCK_TOKENS * layers) + 1);
    if (blocks_each == 0 || ctx < 2)
        return give_up(r, HILL_E_NOSPACE, "the hot pool has no room");
    r->hot_each = smaller(blocks_each * KV_HOT_BLOCK_TOKENS, ctx);
    r->hot_first = smaller(r->hot_each, ctx / 2);
    r->hot_tokens = r->hot_first + (layers - 1) * r->hot_each;
    choose_cold(r, smaller(ctx - r->hot_first, want));
    uint32_t ring = shm_ring_payload_max(agent_ring(r->m->agent, 0, RING_COMMAND));
    uint32_t items =
        ring < sizeof(struct record_fetch)
            ? 0
            : (ring - (uint32_t)sizeof(struct record_fetch)) / (uint32_t)sizeof(struct fetch_item);
    r->fetch_tokens =
        smaller(r->cold_tokens / FETCH_SHARE + 1, smaller(items, c->config.gpu_slots));
    r->fetch_tokens = smaller(r->fetch_tokens, LAYOUT_FETCH_ITEMS_MAX);
    r->fetch_tokens = smaller(r->fetch_tokens, t->staging->free_count / 2);
    r->fetch_tokens = smaller(r->fetch_tokens, r->hot_each);
    if (r->cold_tokens == 0 || r->fetch_tokens == 0)
        return give_up(r, HILL_E_NOSPACE, "the cold pool or staging has no room");
    return 0;
}

static uint32_t blocks_max(const struct profile_run *r)
{
    return r->core->config.geometry.n_layers *
           ((r->hot_each + KV_HOT_BLOCK_TOKENS - 1) / KV_HOT_BLOCK_TOKENS);
}

static int allocate(struct profile_run *r)
{
    const struct kv_geometry *g = &r->core->config.geometry;
    uint32_t blocks = blocks_max(r);
    r->blocks = calloc(blocks, sizeof *r->blocks);
    r->scores = calloc(blocks, KV_HOT_BLOCK_TOKENS * sizeof *r->scores);
    r->entries = malloc((size_t)BATCH * r->core->tiers.hkm.entry_bytes);
    r->staging = calloc(2 * (size_t)r->fetch_tokens, sizeof *r->staging);
    r->query = calloc((size_t)g->n_heads * g->head_dim, sizeof *r->query);
    if (!r->blocks || !r->scores || !r->entries || !r->staging || !r->query)
        return give_up(r, HILL_E_NOMEM, "out of memory");
    return 0;
}

static int open_sequence(struct profile_run *r)
{
    struct core *c = r->core;
    struct tiers *t = &c->tiers;
    struct sequence *s = r->s;
    uint32_t blocks_each = (r->hot_each + KV_HOT_BLOCK_TOKENS - 1) / KV_HOT_BLOCK_TOKENS;
    memset(s->layers, 0, c->config.geometry.n_layers * sizeof *s->layers);
    memset(&s->stats, 0, sizeof s->stats);
    s->state = SEQUENCE_ACTIVE;
    s->status = 0;
    s->request_id = 0; /* nobody's */
    s->max_tokens = s->prompt_tokens = c->config.ctx_tokens;
    s->settings = (struct kv_selection_settings){.alpha = 1, .importance = c->config.importance};
    s->cold_used = s->moves_wanted = s->reads_hot = s->sums = false;
    holding_begin(c, s);
    s->first_tag = r->m->agent->next_tag;
    s->staging_max = s->k_max = 0;
    r->q->header = core_header(c, s->index, 0, 0);
    r->q->sequence = s;
    r->q->vector = r->query;
    int rc = hkm_reserve(&t->hkm, s->index, blocks_each);
    for (uint32_t d = 0; rc == 0 && d < t->cold.n_drives; d++)
        rc = cold_map_reserve(&t->cold, tiers_part(t, s->index, 0, d), r->stripes[d]);
    return rc ? give_up(r, HILL_E_NOSPACE, "the tiers have no room") : 0;
}

/* A batch of hot tokens, layer after layer; how many. */
static uint32_t fill_hot(struct profile_run *r, uint32_t *layer)
{
    struct layer_state *l = &r->s->layers[*layer];
    uint32_t goal = *layer ? r->hot_each : r->hot_first, n = smaller(goal - l->appended, BATCH);
    make_entries(r, n);
    n = hkm_append(&r->core->tiers.hkm, r->s->index, *layer, l->appended, n, r->entries);
    l->appended += n;
    if (l->appended == goal)
        ++*layer;
    return n;
}

/* A batch of cold tokens of layer 0, behind its hot ones; 0: no room in the ring now. */
static uint32_t fill_cold(struct profile_run *r, uint32_t goal)
{
    uint32_t n = smaller(goal - r->cold_there, BATCH);
    make_entries(r, n);
    n = demote_entries(r->m->demotions, r->s, 0, r->hot_first + r->cold_there, n, r->entries);
    r->s->layers[0].uncommitted += n;
    return n;
}

/* Up to so many cold tokens, and to all hot ones with the last of them, as far as time allows: the
 * drive writes while the hot pool is filled. */
static int fill(struct profile_run *r, uint32_t goal)
{
    uint32_t layers = r->core->config.geometry.n_layers;
    uint32_t hot_goal = goal == r->cold_tokens ? r->hot_tokens : 0;
    while (r->hot_there < hot_goal || r->cold_there < goal) {
        uint32_t seen = shm_doorbell_read(r->core->io.bell), n = 0, m = 0;
        int rc = look(r);
        if (rc < 0)
            return rc;
        if (r->fill_layer < layers)
            r->hot_there += n = fill_hot(r, &r->fill_layer);
        if (r->cold_there < goal)
            r->cold_there += m = fill_cold(r, goal);
        if (clock_now_ns() >= r->fill_until_ns)
            break;
        if (n == 0 && m == 0 && rc == 0 && (rc = agent_pause(r->m->agent, seen, 0)) != 0)
            return rc;
    }
    return wait_until(r, all_committed);
}

/* Both tiers are what there was time for. */
static int end_filling(struct profile_run *r)
{
    uint32_t layers = r->core->config.geometry.n_layers;
    r->hot_tokens = r->hot_there;
    r->cold_tokens = r->cold_there;
    r->fetch_tokens = smaller(r->fetch_tokens, r->cold_there);
    for (uint32_t i = 0; i < layers; i++)
        r->n_blocks += hkm_blocks(&r->core->tiers.hkm, r->s->index, i, r->blocks + r->n_blocks,
                                  blocks_max(r) - r->n_blocks);
    if (r->cold_there == 0 || r->hot_there == 0)
        return give_up(r, HILL_E_TIMEOUT, "the drive takes nothing");
    return 0;
}

/* ---- a round ------------------------------------------------------------------------------ */

static int push_query(struct profile_run *r)
{
    return digest_relay(r->digest);
}

static int relay_query(struct profile_run *r)
{
    const struct kv_geometry *g = &r->core->config.geometry;
    for (uint32_t i = 0; i < g->n_heads * g->head_dim; i++)
        r->query[i] = (float)(int)(next_random(r) % 2001) / 1000.0f - 1.0f;
    r->q->id = ++r->n_queries;
    r->q->n_tokens = r->hot_first + r->cold_there; /* their sample is not made: any will do */
    digest_open(r->digest->evaluator, r->q);
    return wait_to_push(r, push_query);
}

/* Run a job that has been started to its end, with a look at the agent between chunks. */
static int finish_job(struct profile_run *r, int64_t *ns)
{
    int rc = 0;
    while (rc >= 0 && score_pool_work(r->core->pool))
        rc = agent_pump(r->m->agent);
    score_pool_wait(r->core->pool); /* also after an error: helpers read the tables */
    *ns = score_pool_last_ns(r->core->pool);
    return rc < 0 ? rc : agent_pump(r->m->agent);
}

static double per_second(double bytes, int64_t ns)
{
    return bytes * 1e9 / (double)(ns > 0 ? ns : 1);
}

/* Jobs one after another until the drive is done, at least one: bytes a second. A modelled CPU's
 * real work is over long before: one job, as in a query. */
static int keep_busy(struct profile_run *r, is_done *done, void (*start)(struct profile_run *),
                     double bytes, double *rate)
{
    int64_t began = clock_now_ns(), sum = 0;
    uint32_t n = 0;
    do {
        int64_t ns;
        start(r);
        int rc = finish_job(r, &ns);
        if (rc < 0)
            return rc;
        sum += ns;
        n++;
    } while (!(r->core->device.figures.cpu > 0) && !done(r) && clock_now_ns() - began < BUSY_NS);
    *rate = per_second(bytes * n, sum);
    return 0;
}

static void start_scoring(struct profile_run *r)
{
    struct score_job job = digest_job(r->digest, r->blocks, r->n_blocks, r->scores);
    score_pool_start(r->core->pool, &job, NULL);
}

static int score_round(struct profile_run *r, double rates[RATES])
{
    const struct core *c = r->core;
    const struct digest_row *e = r->digest;
    double entry = c->tiers.hkm.entry_bytes;
    int rc = kv_selector_begin(r->q->selector, &r->s->settings, r->hot_first + r->cold_tokens);
    if (rc == 0)
        rc = relay_query(r);
    if (rc == 0) /* a block is scored whole, also where it is not full */
        rc = keep_busy(r, cold_scored, start_scoring, entry * KV_HOT_BLOCK_TOKENS * r->n_blocks,
                       &rates[F_C]);
    if (c->device.figures.cpu > 0) /* modelled: the same work takes longer */
        rates[F_C] = fmin(rates[F_C], c->device.figures.cpu * 1e9);
    if (rc == 0)
        rc = wait_until(r, cold_scored);
    digest_close(r->digest);
    if (rc || e->status)
        return rc ? rc : e->status;
    rates[F_S] = 0;
    for (uint32_t d = 0; d < r->m->agent->n_drives; d++) {
        const struct digest_drive *drive = &e->drives[d];
        if (drive->expected)
            rates[F_S] += per_second(entry * drive->expected, drive->done_ns - e->relayed_ns);
    }
    return 0;
}

static void note_time(struct drive_time *time, int round, uint32_t tokens, int64_t took)
{
    if (round == 0 || took < time->shortest_ns)
        *time = (struct drive_time){tokens, took};
}

/* One of a few rounds: the first always, the others while there is time. */
static bool has_time(const struct profile_run *r, int round)
{
    return round == 0 || (round < DRIVE_ROUNDS && clock_now_ns() < r->until_ns);
}

/* How long each of several drives takes for what it has now, while no CPU is kept busy. */
static int time_drives(struct profile_run *r, struct drive_time times[LAYOUT_DRIVES_MAX])
{
    const struct digest_row *e = r->digest;
    for (int round = 0; has_time(r, round); round++) {
        int rc = kv_selector_begin(r->q->selector, &r->s->settings, r->hot_first + r->cold_there);
        if (rc == 0)
            rc = relay_query(r);
        if (rc == 0)
            rc = wait_until(r, cold_scored);
        digest_close(r->digest);
        if (rc || e->status)
            return rc ? rc : e->status;
        for (uint32_t d = 0; d < r->m->agent->n_drives; d++) {
            uint32_t asked = e->drives[d].expected; /* 0: it has nothing of the query */
            note_time(&times[d], round, asked, asked ? e->drives[d].done_ns - e->relayed_ns : 0);
        }
    }
    return 0;
}

/* Entries from all over the cold tokens, into the first staging slots. */
static void plan_fetch(struct profile_run *r, uint32_t n)
{
    struct answer *a = &r->q->answer;
    answer_begin(a);
    for (uint32_t i = 0; i < n; i++)
        a->positions[i] = r->hot_first + (uint32_t)((uint64_t)i * r->cold_tokens / n);
    answer_locate(a, r->s, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        a->items[i].staging = r->staging[i];
        a->items[i].flags = ANSWER_BRING;
    }
    answer_plan(a);
}

static int push_fetch(struct profile_run *r)
{
    return answer_push_fetches(&r->q->answer, &r->q->header);
}

/* Entries from all over a layer's hot ones, into the other staging slots. */
static void start_copying(struct profile_run *r)
{
    const struct tiers *t = &r->core->tiers;
    uint32_t layer = r->core->config.geometry.n_layers - 1;
    uint32_t there = hkm_hot_tokens(&t->hkm, r->s->index, layer);
    struct copy_item *copies = r->q->answer.copies;
    struct copy_job job = {.items = copies, .bytes = t->hkm.entry_bytes};
    if (there == 0)
        there = hkm_hot_tokens(&t->hkm, r->s->index, layer = 0);
    for (uint32_t i = 0; i < r->fetch_tokens; i++) {
        uint32_t position = (uint32_t)((uint64_t)i * there / r->fetch_tokens);
        uint32_t word = core_location(r->core, r->s, layer, position);
        copies[job.n++] =
            (struct copy_item){shm_arena_slot(t->staging, r->staging[r->fetch_tokens + i]),
                               hkm_entry(&t->hkm, hkm_slot(word))};
    }
    score_pool_start_copy(r->core->pool, &job, NULL);
}

static int move_round(struct profile_run *r, double rates[RATES])
{
    struct shm_arena *staging = r->core->tiers.staging;
    const struct answer *a = &r->q->answer;
    double bytes = (double)r->core->tiers.hkm.entry_bytes * r->fetch_tokens;
    int rc = shm_arena_take(staging, 2 * r->fetch_tokens, r->staging);
    if (rc)
        return give_up(r, rc, "staging has no room");
    int64_t start = clock_now_ns();
    plan_fetch(r, r->fetch_tokens);
    rc = wait_to_push(r, push_fetch);
    if (rc == 0)
        rc = keep_busy(r, fetched, start_copying, bytes, &rates[B_C]);
    if (rc == 0)
        rc = wait_until(r, fetched);
    rates[B_S] = per_second(bytes, clock_now_ns() - start);
    if (a->fetches_open == 0) /* else lost with the agent, until the next epoch */
        shm_arena_give(staging, 2 * r->fetch_tokens, r->staging);
    return rc ? rc : a->status;
}

/* How long each of several drives takes to bring its part of n entries. */
static int time_fetches(struct profile_run *r, uint32_t n, struct drive_time times[])
{
    struct shm_arena *staging = r->core->tiers.staging;
    const struct answer *a = &r->q->answer;
    for (int round = 0; has_time(r, round); round++) {
        int rc = shm_arena_take(staging, n, r->staging);
        if (rc)
            return give_up(r, rc, "staging has no room");
        plan_fetch(r, n);
        rc = wait_to_push(r, push_fetch);
        if (rc == 0)
            rc = wait_until(r, fetched);
        if (a->fetches_open == 0) /* else lost with the agent, until the next epoch */
            shm_arena_give(staging, n, r->staging);
        if (rc || a->status)
            return rc ? rc : a->status;
        for (uint32_t d = 0; d < r->m->agent->n_drives; d++)
            note_time(&times[d], round, a->drives[d].n_fetches,
                      a->drives[d].done_ns - a->drives[d].sent_ns);
    }
    return 0;
}

static int measure(struct profile_run *r)
{
    int rc = 0;
    bool warm = false; /* the first round only warms up, when there is time for more */
    while (rc == 0 && r->n_rounds < ROUNDS_MAX) {
        double rates[RATES];
        if (r->n_rounds && clock_now_ns() >= r->until_ns)
            break;
        rc = score_round(r, rates);
        if (rc == 0)
            rc = move_round(r, rates);
        if (rc)
            break;
        if (!warm && clock_now_ns() < r->until_ns) {
            warm = true;
            continue;
        }
        for (int i = 0; i < RATES; i++)
            r->samples[i][r->n_rounds] = rates[i];
        r->n_rounds++;
    }
    return rc;
}

/* ---- the result --------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between sorted samples, which are n > 0. */
static double quantile(const double *sorted, uint32_t n, double share)
{
    double at = share * (n - 1);
    uint32_t below = (uint32_t)at, above = below + 1 < n ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

/* Bytes a second, by what more tokens take longer: a command's fixed time is nobody's speed. */
static double speed_of(const struct drive_time *less, const struct drive_time *more, double entry)
{
    if (!more->tokens)
        return 0;
    if (less->tokens && more->tokens > less->tokens && more->shortest_ns > less->shortest_ns)
        return per_second(entry * (more->tokens - less->tokens),
                          more->shortest_ns - less->shortest_ns);
    return per_second(entry * more->tokens, more->shortest_ns);
}

static void sum_up(struct profile_run *r, struct scorer_profile *out)
{
    double *const median[RATES] = {&out->median.f_c, &out->median.f_s, &out->median.B_c,
                                   &out->median.B_s};
    double *const spread[RATES] = {&out->spread.f_c, &out->spread.f_s, &out->spread.B_c,
                                   &out->spread.B_s};
    for (int i = 0; i < RATES; i++) {
        qsort(r->samples[i], r->n_rounds, sizeof r->samples[i][0], by_size);
        *median[i] = quantile(r->samples[i], r->n_rounds, 0.5);
        *spread[i] = (quantile(r->samples[i], r->n_rounds, 0.75) -
                      quantile(r->samples[i], r->n_rounds, 0.25)) /
                     *median[i];
    }
    out->n_drives = r->m->agent->n_there > 1 ? r->m->agent->n_drives : 0;
    double entry = r->core->tiers.hkm.entry_bytes;
    for (uint32_t d = 0; d < out->n_drives; d++)
        out->drives[d] = (struct scorer_drive_rates){speed_of(&r->part[d], &r->whole[d], entry),
                                                     speed_of(&r->few[d], &r->many[d], entry)};
    out->rounds = r->n_rounds;
    out->hot_tokens = r->hot_tokens;
    out->cold_tokens = r->cold_tokens;
    out->fetch_tokens = r->fetch_tokens;
}

static int fill_and_time(struct profile_run *r)
{
    bool several = r->m->agent->n_there > 1;
    int rc = several ? fill(r, r->cold_tokens / DRIVE_PART + 1) : 0;
    if (rc == 0 && several && r->cold_there == 0)
        return give_up(r, HILL_E_TIMEOUT, "the drives take nothing");
    if (rc == 0 && several)
        rc = time_drives(r, r->part);
    if (rc == 0)
        rc = fill(r, r->cold_tokens);
    if (rc == 0)
        rc = end_filling(r);
    if (rc == 0 && several)
        rc = time_drives(r, r->whole);
    if (rc == 0 && several)
        rc = time_fetches(r, r->fetch_tokens / DRIVE_PART + 1, r->few);
    return rc == 0 && several ? time_fetches(r, r->fetch_tokens, r->many) : rc;
}

/* All of it; the sequence is closed whatever happens. */
static int run(struct profile_run *r)
{
    const double equal[LAYOUT_DRIVES_MAX] = {0};
    struct cold_map *cold = &r->core->tiers.cold;
    double shares[LAYOUT_DRIVES_MAX];
    for (uint32_t d = 0; d < cold->n_drives; d++)
        shares[d] = cold->drives[d].share;
    cold_map_set_speeds(cold, equal);
    int rc = choose_sizes(r);
    if (rc == 0)
        rc = allocate(r);
    bool opened = rc == 0;
    if (rc == 0)
        rc = open_sequence(r);
    if (rc == 0)
        rc = fill_and_time(r);
    if (rc == 0)
        rc = measure(r);
    cold_map_set_speeds(cold, shares);
    if (opened && rc != HILL_E_CANCELLED)
        requests_close(r->m->requests, r->s); /* its stripes are trimmed as a request's are */
    return rc;
}

static int take_profile(struct side_speeds *m, int64_t limit_ns, struct scorer_profile *out)
{
    int64_t now = clock_now_ns();
    struct profile_run r = {.m = m,
                            .core = m->core,
                            .digest = &((struct digest_evaluator *)(void *)m->evaluator)->rows[0],
                            .q = m->query,
                            .s = &m->core->sequences[0],
                            .began_ns = now,
                            .fill_until_ns = now + limit_ns / 2,
                            .until_ns = now + limit_ns,
                            .random = UINT64_C(0x9e3779b97f4a7c15)};
    int rc = run(&r);
    if (rc == 0)
        sum_up(&r, out);
    free(r.blocks);
    free(r.scores);
    free(r.entries);
    free(r.staging);
    free(r.query);
    out->status = rc;
    out->took_ns = clock_now_ns() - now;
    snprintf(out->text, sizeof out->text, "cannot measure the two sides: %s",
             r.why[0] ? r.why : hill_strerror(rc));
    return rc;
}

/* ---- asked for ------------------------------------------------------------------------------ */

static void refuse(struct scorer_profile *out, int code, const char *text)
{
    out->status = code;
    snprintf(out->text, sizeof out->text, "%s", text);
}

int side_speeds_pump(struct side_speeds *m)
{
    const struct core *c = m->core;
    struct scorer_profile out = {0};
    bool active = false, ending = false;
    int rc = 0;
    if (!m->limit_ns)
        return 0;
    requests_forget_dormant(m->requests);
    requests_forget_resting(m->requests);
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        active |= c->sequences[i].state == SEQUENCE_ACTIVE;
        ending |= c->sequences[i].state != SEQUENCE_FREE;
    }
    if (!active && ending)
        return 0; /* once it is cleared up */
    int64_t limit = m->limit_ns;
    m->limit_ns = 0;
    if (active)
        refuse(&out, HILL_E_BUSY, "a request runs: speeds are measured between requests");
    else if (!core_has_drive(c) || m->agent->status)
        refuse(&out, HILL_E_INVALID, "no CSD is attached: there is nothing to balance");
    else if (m->evaluator->ops != &evaluate_digest)
        refuse(&out, HILL_E_UNSUPPORTED,
               "this policy evaluates on the CPU alone: there is nothing to balance");
    else
        rc = take_profile(m, limit, &out);
    if (rc == HILL_E_CANCELLED)
        return rc; /* a new epoch: nobody waits for this answer */
    if (c->hooks.profiled)
        c->hooks.profiled(c->hooks.context, &out);
    return 1;
}
