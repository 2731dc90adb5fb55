/* cpu_scorer/admission.c - see admission.h. */
#include "cpu_scorer/admission.h"

#include "base/log.h"
#include "cpu_scorer/adoption.h"
#include "cpu_scorer/moves.h"
#include "cpu_scorer/resting.h"
#include "kv/plane.h"

static int reserve_tiers(struct core *core, struct sequence *s, uint32_t blocks,
                         const uint32_t *stripes)
{
    struct tiers *t = &core->tiers;
    if (hkm_reserve(&t->hkm, s->index, blocks))
        return HILL_E_TOO_LONG;
    tiers_lend(t, s->index, s->share.lent);
    for (uint32_t layer = 0; layer < t->hkm.geometry.n_layers; layer++)
        for (uint32_t d = 0; d < t->cold.n_drives; d++)
            if (cold_map_reserve(&t->cold, tiers_part(t, s->index, layer, d), stripes[d]))
                return HILL_E_TOO_LONG; /* hot_share_plan counted them; admission_begin undoes it */
    return 0;
}

/* For a selection of k tokens; where queries are guessed two of them are alive at a time. */
static uint32_t staging_of(const struct core *core, uint32_t k)
{
    return core->config.speculates ? 2 * k : k;
}

int admission_check(const struct core *core, const struct agent *agent, const struct sequence *s,
                    struct hill_why *why)
{
    const struct scorer_config *config = &core->config;
    const struct tiers *t = &core->tiers;
    uint32_t k = kv_most_tokens(&s->settings, &config->windows, s->max_tokens),
             staged = staging_of(core, k);
    if (agent->status)
        return hill_fail(why, agent->status, "the CSD agent does not answer");
    if (!kv_policy_served(config->policy, s->settings.policy))
        return hill_fail(why, HILL_E_UNSUPPORTED, "this pipeline is set up for policy %s, not %s",
                         kv_policy_name(config->policy), kv_policy_name(s->settings.policy));
    if (s->max_tokens > config->ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG, "%u tokens are beyond the context of %u",
                         s->max_tokens, config->ctx_tokens);
    if (k > config->gpu_slots)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "%u selected tokens per layer are beyond the GPU's %u slots; raise "
                         "--gpu-kv-mb or lower the budget",
                         k, config->gpu_slots);
    if (staged > t->staging_unreserved)
        return hill_fail(why, staged > t->staging->slot_count ? HILL_E_TOO_LONG : HILL_E_BUSY,
                         "%u selected tokens are beyond the %u staging slots left; raise --hot-mb "
                         "or lower the budget",
                         staged, t->staging_unreserved);
    return 0;
}

/* What is free now, for a sequence whose queries are of this policy. */
static struct hot_share_room free_room(const struct core *core, uint32_t policy)
{
    const struct tiers *t = &core->tiers;
    bool lends = t->digests.config.n_owners && t->digests.n_frames;
    struct hot_share_room room = {.n_layers = core->config.geometry.n_layers,
                                  .n_sequences = core->config.n_sequences,
                                  .hot_blocks = t->hkm.n_blocks,
                                  .unreserved = t->hkm.n_unreserved,
                                  .n_drives = t->cold.n_drives,
                                  .stripe_slots = t->cold.stripe_slots,
                                  .cold_pool = core_has_drive(core)};
    if (lends && policy == KV_POLICY_HILLINFER) {
        room.lent_blocks = t->digests.unit.n_blocks;
        room.lent_frames = t->digests.unit.n_frames;
    }
    for (uint32_t d = 0; d < room.n_drives; d++) {
        bool takes = cold_map_takes(&t->cold, d);
        room.drives[d].stripes = takes ? t->cold.drives[d].n_stripes : 0;
        room.drives[d].free_stripes = takes ? t->cold.drives[d].n_free : 0;
        room.drives[d].share = t->cold.drives[d].share;
    }
    return room;
}

static void begin_share(const struct core *core, struct sequence *s)
{
    s->share = (struct hot_share){.beta = core->config.beta,
                                  .scores = core->config.host_scores,
                                  .adapts = core->config.adapts,
                                  .sinks = s->settings.sinks,
                                  .window = s->settings.window};
}

/* May it begin, and with which blocks and stripes a layer? goes_on: what the sequence has already
 * is room for it. */
static int plan_tiers(struct core *core, const struct agent *agent, struct sequence *s,
                      bool goes_on, uint32_t *blocks, uint32_t *stripes, struct hill_why *why)
{
    struct hot_share_room room = free_room(core, s->settings.policy);
    int rc = admission_check(core, agent, s, why);
    if (rc)
        return rc;
    begin_share(core, s);
    if (goes_on)
        resting_add_room(core, s, &room);
    room.wants_copies = moves_wants_placement(core, s);
    rc = hot_share_plan(&s->share, &room, s->max_tokens, blocks, stripes, why);
    if (rc == 0 && room.wants_copies && !s->share.copies)
        log_info("request %llu: placed by recency: the cold pool has no room for copies of what "
                 "moves up",
                 (unsigned long long)s->identity);
    return rc;
}

/* What is kept for nobody who runs or has asked for it. */
static bool may_be_given_up(const struct sequence *s, uint32_t slot)
{
    return s->state == SEQUENCE_DORMANT ||
           (s->state == SEQUENCE_RESTING && (!s->begin_held || s->index == slot));
}

int admission_beside_running(const struct core *core, const struct agent *agent,
                             const struct record_seq_begin *r)
{
    struct sequence s = {.settings = record_selection_settings(r), .max_tokens = r->max_tokens};
    struct hot_share_room room = free_room(core, r->policy);
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    for (uint32_t i = 0; i < core->config.n_sequences; i++)
        if (may_be_given_up(&core->sequences[i], r->header.sequence))
            resting_add_room(core, &core->sequences[i], &room);
    begin_share(core, &s);
    int rc = admission_check(core, agent, &s, NULL);
    return rc ? rc : hot_share_plan(&s.share, &room, s.max_tokens, &blocks, stripes, NULL);
}

void admission_take_staging(struct core *core, struct sequence *s)
{
    s->k_max = kv_most_tokens(&s->settings, &core->config.windows, s->max_tokens);
    s->staging_max = staging_of(core, s->k_max);
    core->tiers.staging_unreserved -= s->staging_max;
}

int admission_begin(struct core *core, const struct agent *agent, struct sequence *s,
                    uint64_t identity, struct hill_why *why)
{
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    int rc = plan_tiers(core, agent, s, false, &blocks, stripes, why);
    if (rc == 0 && s->share.copies && (rc = moves_begin(core, s)) != 0)
        hill_fail(why, rc, "no memory for the placement of %u tokens", s->max_tokens);
    if (rc)
        return rc;
    rc = reserve_tiers(core, s, blocks, stripes);
    if (rc) {
        moves_end(core, s);
        tiers_release_near(&core->tiers, s->index);
        tiers_release_cold(&core->tiers, s->index);
        return hill_fail(why, rc, "the tiers have no room");
    }
    const struct kept_plan plan = adoption_plan(s, blocks, stripes);
    core->tiers.hkm.identities[s->index] = identity;
    kept_begin(tiers_kept(&core->tiers, s->index), identity, &plan);
    admission_take_staging(core, s);
    return 0;
}

int admission_grow(struct core *core, const struct agent *agent, struct sequence *s,
                   uint32_t n_tokens, struct hill_why *why)
{
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
    int rc = plan_tiers(core, agent, s, true, &blocks, stripes, why);
    if (rc == 0 && resting_grow(core, s, n_tokens, &blocks, stripes))
        rc = hill_fail(why, HILL_E_BUSY, "the tiers have no room beside others");
    if (rc)
        return rc;
    s->plan = adoption_plan(s, blocks, stripes);
    admission_take_staging(core, s);
    return 0;
}
