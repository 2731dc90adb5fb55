/* cpu_scorer/scorer.c - life of a scorer, its loop and its waits; see scorer.h. */
#include "cpu_scorer/scorer_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kv/plane.h"

#define IDLE_NS CLOCK_MS(1000) /* the longest sleep: a wake-up a second costs nothing */
#define SPIN_NS                                                                                    \
    30000 /* in a query: a helper's last chunk is done by then, a wake-up would take longer */

/* ---- life --------------------------------------------------------------------------------- */

static uint32_t blocks_max(const struct scorer_config *c)
{
    return c->ctx_tokens / KV_HOT_BLOCK_TOKENS + 2;
}

static int create_sequences(struct scorer *p)
{
    const struct scorer_config *c = &p->config;
    p->sequences = calloc(c->n_sequences, sizeof *p->sequences);
    if (!p->sequences)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < c->n_sequences; i++) {
        struct sequence *s = &p->sequences[i];
        s->index = i;
        s->layers = calloc(c->geometry.n_layers, sizeof *s->layers);
        s->hash = XXH64_createState();
        if (!s->layers || !s->hash || ahead_create(p, s))
            return HILL_E_NOMEM;
    }
    return 0;
}

static int create_buffers(struct scorer *p)
{
    const struct scorer_config *c = &p->config;
    p->positions = calloc(c->gpu_slots, sizeof *p->positions);
    p->slots = calloc(c->gpu_slots, sizeof *p->slots);
    p->missed = calloc(c->gpu_slots, sizeof *p->missed);
    p->fetches = calloc(c->gpu_slots, sizeof *p->fetches);
    p->copies = calloc(c->gpu_slots, sizeof *p->copies);
    p->late = c->speculates ? calloc(c->gpu_slots, sizeof *p->late) : p->fetches;
    p->filled = c->speculates ? calloc(c->gpu_slots, 1) : NULL;
    p->blocks = calloc(blocks_max(c), sizeof *p->blocks);
    p->scores = calloc((size_t)blocks_max(c) * KV_HOT_BLOCK_TOKENS, sizeof *p->scores);
    p->query_mantissas = calloc(kv_key_dims(&c->geometry), 1);
    p->query_shifts = calloc(c->geometry.n_kv_heads, 1);
    if (!p->positions || !p->slots || !p->missed || !p->fetches || !p->copies || !p->blocks ||
        !p->late || (c->speculates && !p->filled) || !p->scores || !p->query_mantissas ||
        !p->query_shifts)
        return HILL_E_NOMEM;
    int rc = kv_selector_create(&p->selector, c->ctx_tokens);
    if (rc == 0)
        rc = keys_create(p);
    if (rc == 0)
        rc = create_sequences(p);
    return rc;
}

static int create_tables(struct scorer *p, struct hill_why *why)
{
    const struct scorer_config *c = &p->config;
    uint32_t n_lists = c->n_sequences * c->geometry.n_layers;
    struct hkm_config config = {.geometry = c->geometry,
                                .ctx_tokens = c->ctx_tokens,
                                .n_sequences = c->n_sequences,
                                .gpu_slots = c->gpu_slots,
                                .n_blocks = c->hot_blocks};
    int rc = hkm_init(&p->hkm, p->io.hot, p->io.hot_bytes, &config, why);
    if (rc)
        return rc;
    p->hkm.no_digests = kv_policy_reads_keys(c->policy);
    gpu_slots_init(&p->gpu, p->hkm.gpu_table, n_lists, c->gpu_slots);
    rc = cold_map_init(&p->cold, c->csd ? c->stripe_slots : 1, c->csd ? c->n_stripes : 0, n_lists);
    return rc ? hill_fail(why, rc, "cannot map a cold pool of %u stripes of %u slots: %s",
                          c->n_stripes, c->stripe_slots, hill_strerror(rc))
              : 0;
}

/* A DEMOTE of demote_slots must fit the ring. */
static int fit_demotes(struct scorer *p, struct hill_why *why)
{
    struct demote_parts parts;
    if (!p->config.csd)
        return 0;
    uint32_t most = shm_ring_payload_max(&p->io.rings[RING_BACKGROUND]);
    for (uint32_t n = p->config.demote_slots; n > 0; n--) {
        record_demote_parts(&parts, &p->config.geometry, KV_GROUP_TOKENS - 1, n);
        if (parts.scattered_total <= most) {
            p->config.demote_slots = n;
            return 0;
        }
    }
    return hill_fail(why, HILL_E_INVALID,
                     "the background ring takes records of %u bytes, too few for one entry", most);
}

int scorer_create(struct scorer **out, const struct scorer_config *config,
                  const struct scorer_io *io, const struct scorer_hooks *hooks,
                  struct hill_why *why)
{
    *out = NULL;
    if (!config->ctx_tokens || !config->n_sequences || !config->gpu_slots || !config->score ||
        !config->block_tokens)
        return hill_fail(why, HILL_E_INVALID,
                         "cannot set up scoring: context, sequences, GPU slots or block size is 0");
    if (config->csd && kv_policy_reads_keys(config->policy) && !io->key_windows)
        return hill_fail(why, HILL_E_INVALID,
                         "cannot set up scoring: there are no windows for the keys that policy %s "
                         "reads from the drive",
                         kv_policy_name(config->policy));
    struct scorer *p = calloc(1, sizeof *p);
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "cannot set up scoring: out of memory");
    p->config = *config;
    p->io = *io;
    p->hooks = *hooks;
    p->next_tag = 1;
    p->staging_unreserved = io->staging->slot_count;
    int rc = fit_demotes(p, why);
    if (rc == 0)
        rc = create_tables(p, why);
    if (rc == 0 && (rc = create_buffers(p)) != 0)
        hill_fail(why, rc, "cannot set up scoring for a context of %u tokens: %s",
                  config->ctx_tokens, hill_strerror(rc));
    struct topology topology;
    topology_read(&topology);
    if (rc == 0)
        topology_place(&topology, p->hkm.digests,
                       (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(&config->geometry),
                       p->hkm.n_blocks);
    if (rc == 0 &&
        (rc = score_pool_create(&p->pool, config->threads, config->score, &topology)) != 0)
        hill_fail(why, rc, "cannot start %u scoring threads: %s", config->threads,
                  hill_strerror(rc));
    if (rc) {
        scorer_destroy(p);
        return rc;
    }
    *out = p;
    return 0;
}

void scorer_destroy(struct scorer *p)
{
    if (!p)
        return;
    score_pool_destroy(p->pool); /* first: its threads read the hot pool */
    for (uint32_t i = 0; p->sequences && i < p->config.n_sequences; i++) {
        if (p->sequences[i].layers)
            moves_end(p, &p->sequences[i]);
        free(p->sequences[i].layers);
        ahead_destroy(&p->sequences[i]);
        XXH64_freeState(p->sequences[i].hash);
    }
    free(p->sequences);
    keys_destroy(p);
    kv_selector_destroy(p->selector);
    cold_map_finish(&p->cold);
    free(p->positions);
    free(p->slots);
    free(p->missed);
    if (p->late != p->fetches)
        free(p->late);
    free(p->filled);
    free(p->fetches);
    free(p->copies);
    free(p->blocks);
    free(p->scores);
    free(p->query_mantissas);
    free(p->query_shifts);
    free(p);
}

uint64_t scorer_private_bytes(const struct scorer *p)
{
    const struct scorer_config *c = &p->config;
    uint64_t placement =
        c->placement == SCORER_BKP && c->csd
            ? c->n_sequences * placement_live_bytes(c->geometry.n_layers, c->ctx_tokens)
            : 0;
    uint64_t guesses = c->speculates
                           ? (uint64_t)c->gpu_slots * (c->n_sequences * 3 * sizeof(uint32_t) +
                                                       sizeof(struct fetch_item) + 1) +
                                 (uint64_t)p->cold.n_lists * 2 * sizeof(uint64_t)
                           : 0;
    return placement + guesses + keys_private_bytes(p) + kv_selector_bytes(c->ctx_tokens) +
           (uint64_t)p->cold.n_stripes * p->cold.stripe_slots * sizeof(uint32_t) +
           (uint64_t)p->cold.n_stripes * p->cold.stripe_slots / KV_GROUP_TOKENS +
           p->cold.n_stripes * sizeof(struct cold_stripe) +
           (uint64_t)p->cold.n_lists * (sizeof(struct cold_list) + sizeof(struct layer_state)) +
           (uint64_t)c->gpu_slots * ((3 + c->n_sequences) * sizeof(uint32_t) +
                                     sizeof(struct fetch_item) + sizeof(struct copy_item)) +
           (uint64_t)blocks_max(c) * (sizeof(uint32_t) + KV_HOT_BLOCK_TOKENS * sizeof(uint16_t));
}

uint32_t scorer_hot_blocks(const struct scorer *p)
{
    return p->hkm.n_blocks;
}

void scorer_set_beta(struct scorer *p, double beta)
{
    p->config.beta = beta;
    for (uint32_t i = 0; p->config.adapts && beta > 0 && i < p->config.n_sequences; i++)
        if (p->sequences[i].state == SEQUENCE_ACTIVE && p->sequences[i].kept)
            p->sequences[i].share.beta = beta;
}

void scorer_set_cpu(struct scorer *p, double gb_per_s)
{
    p->config.cpu_gb_per_s = gb_per_s;
}

const struct hkm *scorer_tables(const struct scorer *p)
{
    return &p->hkm;
}

/* ---- records ------------------------------------------------------------------------------ */

bool scorer_accept(struct scorer *p, uint32_t type, const void *payload, uint32_t bytes)
{
    struct hill_why why = {""};
    const struct record_header *header = payload;
    int rc = record_check(type, payload, bytes, &p->config.geometry, p->config.n_sequences, &why);
    if (rc == 0 && header->epoch == p->config.epoch)
        return true;
    p->dropped_records++;
    if (rc)
        log_warn("a record was dropped: %s", why.text);
    else
        log_debug("a record of epoch %u was dropped in epoch %u", header->epoch, p->config.epoch);
    return false;
}

void scorer_fail(struct scorer *p, struct sequence *s, int code, const char *format, ...)
{
    char text[400];
    va_list args;
    if (s->status)
        return; /* the first reason stands */
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    s->status = code;
    log_warn("request %llu failed: %s (%s)", (unsigned long long)s->request_id, text,
             hill_strerror(code));
    p->hooks.failure(p->hooks.context, code, text, s->request_id);
}

/* ---- the loop ----------------------------------------------------------------------------- */

int scorer_pause(struct scorer *p, uint32_t seen, bool busy)
{
    if (p->hooks.interrupted(p->hooks.context))
        return HILL_E_CANCELLED;
    shm_ring_flush(&p->io.rings[RING_SELECTION]);
    agent_check_deadline(p);
    int64_t deadline = clock_now_ns() + IDLE_NS;
    if (p->commands_open && !p->agent_status) {
        int64_t agent = p->agent_heard_ns + p->config.agent_deadline_ns;
        deadline = agent < deadline ? agent : deadline;
    }
    if (p->query.hot_due_ns && p->query.hot_due_ns < deadline)
        deadline = p->query.hot_due_ns;
    /* a timeout is only another look */
    shm_doorbell_wait(p->io.bell, seen, deadline, busy ? SPIN_NS : 0);
    return p->hooks.interrupted(p->hooks.context) ? HILL_E_CANCELLED : 0;
}

/* One turn: everything that can move on now, what frees others first. */
static int turn(struct scorer *p)
{
    static int (*const pumps[])(struct scorer *) = {
        agent_pump, agent_pump_commits, append_pump_endings, append_pump,
        query_pump, agent_pump_moves,   profile_pump,
    };
    int moved = 0;
    for (size_t i = 0; i < sizeof pumps / sizeof pumps[0]; i++) {
        int rc = pumps[i](p);
        if (rc < 0)
            return rc;
        moved |= rc;
    }
    return moved;
}

int scorer_run(struct scorer *p)
{
    for (;;) {
        uint32_t seen = shm_doorbell_read(p->io.bell);
        int rc = turn(p);
        if (rc < 0)
            return rc;
        if (rc > 0) {
            if (p->hooks.interrupted(p->hooks.context))
                return HILL_E_CANCELLED;
            continue;
        }
        rc = scorer_pause(p, seen, false);
        if (rc)
            return rc;
    }
}
