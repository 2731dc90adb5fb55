/* cpu_scorer/scorer.c - life of a scorer and its loop; see scorer.h. */
#include <stdlib.h>

#include "cpu_scorer/adoption.h"
#include "cpu_scorer/drain.h"
#include "cpu_scorer/holding.h"
#include "cpu_scorer/intake.h"
#include "cpu_scorer/moves.h"
#include "cpu_scorer/query_rows.h"
#include "cpu_scorer/sequence_stats.h"
#include "cpu_scorer/share_out.h"
#include "cpu_scorer/side_speeds.h"

struct scorer {
    struct core core;
    struct agent agent;
    struct evaluator *evaluator;
    struct demotions demotions;
    struct requests requests;
    struct intake intake;
    struct queries queries;
    struct side_speeds side_speeds;
    struct carry carry;
    struct drain drain;
    struct share_out share_out;
};

/* ---- life ----------------------------------------------------------------------------------- */

static int create_buffers(struct scorer *p, struct hill_why *why)
{
    int rc = evaluator_create(&p->evaluator, &p->core, &p->agent);
    for (uint32_t i = 0; rc == 0 && i < p->core.config.n_sequences; i++)
        rc = holding_create(&p->core, &p->core.sequences[i]);
    if (rc == 0)
        rc = queries_create(&p->queries, &p->core, &p->agent, &p->demotions, p->evaluator);
    return rc ? hill_fail(why, rc, "cannot set up scoring for a context of %u tokens: %s",
                          p->core.config.ctx_tokens, hill_strerror(rc))
              : 0;
}

int scorer_create(struct scorer **out, const struct scorer_config *config,
                  const struct scorer_io *io, const struct scorer_hooks *hooks,
                  struct hill_why *why)
{
    *out = NULL;
    struct scorer *p = calloc(1, sizeof *p);
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "cannot set up scoring: out of memory");
    int rc = core_create(&p->core, config, io, hooks, why);
    agent_init(&p->agent, &p->core);
    if (rc == 0)
        rc = create_buffers(p, why);
    if (rc == 0)
        rc = demotions_init(&p->demotions, &p->core, &p->agent, p->evaluator, why);
    if (rc) {
        scorer_destroy(p);
        return rc;
    }
    carry_init(&p->carry, &p->core, &p->agent, &p->demotions);
    share_out_init(&p->share_out, &p->core, &p->carry);
    drain_init(&p->drain, &p->core, &p->agent, &p->carry);
    if (config->drains)
        drain_begin(&p->drain, 0);
    p->core.mends = p->evaluator->ops->mends;
    adoption_find(&p->core);
    requests_init(&p->requests, &p->core, &p->agent, &p->demotions, p->evaluator);
    p->intake = (struct intake){.core = &p->core,
                                .demotions = &p->demotions,
                                .evaluator = p->evaluator,
                                .requests = &p->requests};
    p->side_speeds = (struct side_speeds){.core = &p->core,
                                          .agent = &p->agent,
                                          .demotions = &p->demotions,
                                          .evaluator = p->evaluator,
                                          .requests = &p->requests,
                                          .query = &p->queries.rows[0]};
    *out = p;
    return 0;
}

void scorer_destroy(struct scorer *p)
{
    if (!p)
        return;
    for (uint32_t i = 0; p->core.sequences && i < p->core.config.n_sequences; i++) {
        if (p->core.sequences[i].layers)
            moves_end(&p->core, &p->core.sequences[i]);
        holding_destroy(&p->core.sequences[i]);
    }
    score_pool_destroy(p->core.pool); /* its threads read what goes now */
    p->core.pool = NULL;
    evaluator_destroy(p->evaluator);
    queries_destroy(&p->queries);
    core_destroy(&p->core);
    free(p);
}

uint64_t scorer_private_bytes(const struct scorer *p)
{
    const struct scorer_config *c = &p->core.config;
    uint64_t placement =
        c->csd ? c->n_sequences *
                     placement_live_bytes(c->placement, c->geometry.n_layers, c->ctx_tokens)
               : 0;
    return placement + p->evaluator->ops->bytes(p->evaluator) + queries_private_bytes(c) +
           holding_private_bytes(c) + core_private_bytes(&p->core);
}

uint32_t scorer_hot_blocks(const struct scorer *p)
{
    return p->core.tiers.hkm.n_blocks;
}

const struct hkm *scorer_tables(const struct scorer *p)
{
    return &p->core.tiers.hkm;
}

uint32_t scorer_live_stats(struct scorer *p, struct scorer_stats *out, uint32_t max)
{
    return sequence_stats_live(&p->core, out, max);
}

/* ---- what changes meanwhile ----------------------------------------------------------------- */

void scorer_set_beta(struct scorer *p, double beta)
{
    struct core *c = &p->core;
    c->config.beta = beta;
    for (uint32_t i = 0; c->config.adapts && beta > 0 && i < c->config.n_sequences; i++) {
        struct sequence *s = &c->sequences[i];
        if (s->state == SEQUENCE_ACTIVE && s->kept && s->share.adapts)
            s->share.beta = beta;
    }
}

void scorer_set_host_scores(struct scorer *p, double share)
{
    p->core.config.host_scores = share;
}

void scorer_set_speeds(struct scorer *p, const double speeds[LAYOUT_DRIVES_MAX])
{
    if (p->core.config.csd && p->core.config.n_drives > 1)
        cold_map_set_speeds(&p->core.tiers.cold, speeds);
}

void scorer_drain(struct scorer *p, uint32_t drive)
{
    if (!p->core.config.csd || drive >= p->agent.n_drives)
        return;
    if (p->agent.n_drives == 1)
        requests_forget_resting(&p->requests); /* nobody would carry their entries away */
    requests_forget_dormant(&p->requests);     /* those of running requests have been asked for */
    drain_begin(&p->drain, drive);
}

void scorer_set_model(struct scorer *p, struct csd_model figures)
{
    p->core.device.figures = figures;
}

void scorer_ask_profile(struct scorer *p, int64_t limit_ns)
{
    p->side_speeds.limit_ns = limit_ns > 0 ? limit_ns : SCORER_PROFILE_NS;
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* A pump does what can be done now and returns 1 (something moved), 0 (nothing to do, or it must
 * wait) or a negative code that ends the loop. None of them sleeps. */

/* While a query is scored nothing of its sequence moves (answers of other rows bring up what is
 * theirs); while it waits for its tokens, what brings those does, and what makes room. */
static bool is_scored(const struct scorer *p)
{
    return queries_scored(&p->queries);
}

/* Flips, sequences that end, and new records: 1 when something came. */
static int pump_tokens(struct scorer *p)
{
    const struct query *awaited = queries_awaited(&p->queries);
    int flipped = demotions_pump(&p->demotions);
    int ended = awaited ? 0 : requests_pump(&p->requests);
    int taken = awaited && query_has_tokens(awaited) ? 0 : intake_pump(&p->intake);
    return taken < 0 ? taken : flipped | ended | taken;
}

/* What moves up and down; `asked`: the queries have moved on in this turn. A turn in which a query
 * waits for commits alone looks at nothing but the agent's rings, which a recording does not count,
 * and moves may be ordered in it without a record that shows it: the turn itself is counted. */
static int pump_moves(struct scorer *p, int asked)
{
    bool awaited = queries_awaited(&p->queries) != NULL;
    if (is_scored(p) || (asked && awaited))
        return 0;
    if (awaited)
        shm_ring_decide(&p->core.io.rings[RING_APPEND]);
    return moves_pump(&p->demotions);
}

/* What is carried away from a drive. */
static int pump_carry(struct scorer *p)
{
    int moved = carry_pump(&p->carry);
    moved |= drain_pump(&p->drain);
    if (p->drain.clears)
        requests_forget_resting(&p->requests);
    return moved | share_out_pump(&p->share_out);
}

/* One turn: everything that can move on now, what frees others first. */
static int turn(struct scorer *p)
{
    bool awaited = queries_awaited(&p->queries) != NULL;
    int heard = agent_pump(&p->agent), came, asked;
    if (heard < 0)
        return heard;
    int carried = is_scored(p) ? 0 : pump_carry(p);
    do { /* what a query waits for is taken as long as it comes */
        came = is_scored(p) ? 0 : pump_tokens(p);
        asked = came < 0 ? came : queries_pump(&p->queries);
        if (asked < 0)
            return asked;
    } while (awaited && came && !asked);
    int moved = pump_moves(p, asked);
    int measured = p->queries.n == 0 ? side_speeds_pump(&p->side_speeds) : 0;
    return measured < 0 ? measured : heard | came | asked | moved | measured | carried;
}

int scorer_run(struct scorer *p)
{
    const struct queries *qs = &p->queries;
    const struct core *c = &p->core;
    for (;;) {
        uint32_t seen = shm_doorbell_read(c->io.bell);
        int rc = turn(p);
        if (rc == 0)
            rc = agent_pause(&p->agent, seen, queries_due_ns(qs));
        else if (rc > 0)
            rc = qs->n == 0 && c->hooks.interrupted(c->hooks.context) ? HILL_E_CANCELLED : 0;
        if (rc)
            return rc;
    }
}
