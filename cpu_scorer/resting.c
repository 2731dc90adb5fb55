/* cpu_scorer/resting.c - see resting.h. */
#include "cpu_scorer/resting.h"

#include <stdlib.h>
#include <string.h>

#include "cpu_scorer/holding.h"
#include "cpu_scorer/moves.h"
#include "kv/plane.h"

#define CUT_SLOTS 64u /* of one RELEASE */

/* ---- to rest --------------------------------------------------------------------------------- */

uint32_t resting_tokens(const struct core *c, const struct sequence *s,
                        const struct record_seq_end *end)
{
    uint32_t n = s->max_tokens;
    bool entries_alone = !kv_policy_reads_keys(c->config.policy);
    if (!end->keep || !c->config.keeps || !entries_alone || core_is_emptied(c) || !s->identity ||
        s->damage.n || s->replay_to || s->status ||
        (end->status && end->status != HILL_E_CANCELLED))
        return 0;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        if (s->layers[layer].appended < n)
            n = s->layers[layer].appended;
    return n;
}

void resting_begin(struct core *c, struct sequence *s, uint32_t n_tokens)
{
    kept_end(tiers_kept(&c->tiers, s->index));
    holding_release_all(c, s);
    c->tiers.staging_unreserved += s->staging_max;
    s->staging_max = 0;
    s->leaving = s->moves_wanted = false;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        s->layers[layer].n_down = s->layers[layer].moving = 0; /* of a batch that was carried */
        gpu_slots_clear(&c->tiers.gpu, tiers_list(&c->tiers, s->index, layer));
    }
    s->rests = (struct resting){.identity = s->identity,
                                .since = ++c->n_rested,
                                .n_tokens = n_tokens,
                                .max_tokens = s->max_tokens};
    s->state = SEQUENCE_RESTING;
}

/* ---- taken up -------------------------------------------------------------------------------- */

bool resting_fits(const struct sequence *s, const struct record_seq_begin *r)
{
    return s->state == SEQUENCE_RESTING && r->after && r->after == s->rests.identity &&
           r->after_tokens > 0 && r->after_tokens <= s->rests.n_tokens &&
           r->after_tokens < r->prompt_tokens && r->policy != KV_POLICY_H2O;
}

void resting_add_room(const struct core *c, const struct sequence *s, struct hot_share_room *room)
{
    room->unreserved += tiers_blocks(&c->tiers, s->index) * room->n_layers +
                        cached_digests_lent(&c->tiers.digests, s->index);
    for (uint32_t d = 0; d < room->n_drives; d++)
        if (cold_map_takes(&c->tiers.cold, d))
            room->drives[d].free_stripes += tiers_stripes(&c->tiers, s->index, d) * room->n_layers;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The most hot tokens that a layer has. */
static uint32_t most_hot(const struct core *c, const struct sequence *s)
{
    uint32_t hot = 0;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        hot = larger(hot, hkm_hot_tokens(&c->tiers.hkm, s->index, layer));
    return hot;
}

/* And slots of a drive that are nobody's: they take room of their own. */
static uint32_t most_lost(const struct core *c, const struct sequence *s, uint32_t drive,
                          uint32_t to)
{
    uint32_t lost = 0;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        const struct cold_list *l =
            &c->tiers.cold.lists[tiers_part(&c->tiers, s->index, layer, drive)];
        /* so is what is cut, and a copy where none are kept any more */
        lost =
            larger(lost, (s->share.copies ? l->lost : l->copies) + s->layers[layer].appended - to);
    }
    return lost;
}

/* Slots of so many stripes that the plan counts with: what nobody owns can lie in the others. Of
 * several drives a drive's part of the plan is not known. */
static uint32_t planned_slots(const struct core *c, const struct sequence *s, uint32_t stripes)
{
    uint32_t slots = stripes * c->tiers.cold.stripe_slots, n = s->max_tokens;
    if (!s->share.copies)
        n -= hot_share_target(&s->share, n);
    return c->tiers.cold.n_drives > 1 || slots < n ? slots : n;
}

/* On one drive, so many stripes a layer for n_tokens and what is nobody's. */
static uint32_t grown(const struct core *c, const struct sequence *s, uint32_t drive,
                      uint32_t n_tokens, uint32_t stripes)
{
    uint32_t slots = c->tiers.cold.stripe_slots;
    uint32_t taken = planned_slots(c, s, stripes) + most_lost(c, s, drive, n_tokens);
    if (!core_has_drive(c) || !c->tiers.cold.drives[drive].n_stripes)
        return stripes;
    return larger((taken + slots - 1) / slots, tiers_stripes(&c->tiers, s->index, drive));
}

int resting_grow(struct core *c, struct sequence *s, uint32_t n_tokens, uint32_t *blocks,
                 uint32_t stripes[LAYOUT_DRIVES_MAX])
{
    struct tiers *t = &c->tiers;
    uint32_t hot = most_hot(c, s), n_layers = c->config.geometry.n_layers;
    if (s->share.limit < s->max_tokens) /* a block in which new tokens wait for room */
        *blocks = larger(*blocks, (hot + KV_HOT_BLOCK_TOKENS - 1) / KV_HOT_BLOCK_TOKENS + 1);
    *blocks = larger(*blocks, tiers_blocks(&c->tiers, s->index));
    s->share.all = larger(s->share.all, *blocks); /* what it has is its part */
    for (uint32_t d = 0; d < t->cold.n_drives; d++) {
        stripes[d] = grown(c, s, d, n_tokens, stripes[d]);
        uint64_t more = (uint64_t)(stripes[d] - tiers_stripes(&c->tiers, s->index, d)) * n_layers;
        if (more > t->cold.drives[d].n_free)
            return HILL_E_BUSY;
    }
    uint32_t lent = hot_share_lent(&s->share, *blocks);
    if (lent * n_layers < cached_digests_lent(&t->digests, s->index))
        tiers_lend(t, s->index, lent); /* first: entries may need what comes back */
    if (hkm_reserve(&t->hkm, s->index, *blocks))
        return HILL_E_BUSY;
    tiers_lend(t, s->index, lent);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t d = 0; d < t->cold.n_drives; d++)
            if (cold_map_reserve(&t->cold, tiers_part(t, s->index, layer, d), stripes[d]))
                return HILL_E_BUSY; /* they were counted: cannot be; the sequence is closed */
    return 0;
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* The cold slots of the newest tokens from `to` on: at most CUT_SLOTS. *from: the lowest position
 * that was looked at. */
static uint32_t list_cold(const struct core *c, const struct sequence *s, uint32_t layer,
                          uint32_t to, uint32_t *slots, uint32_t *from)
{
    uint32_t n = 0, p = s->layers[layer].appended;
    for (; p > to && n < CUT_SLOTS; p--) {
        uint32_t word = core_location(c, s, layer, p - 1);
        if (hkm_tag(word) == HKM_COLD)
            slots[n++] = hkm_slot(word);
    }
    *from = p;
    return n;
}

static void forget_token(struct core *c, struct sequence *s, uint32_t layer, uint32_t position)
{
    struct tiers *t = &c->tiers;
    struct layer_state *l = &s->layers[layer];
    uint32_t list = tiers_list(t, s->index, layer);
    uint32_t word = core_location(c, s, layer, position);
    if (hkm_tag(word) == HKM_COLD) {
        cold_map_uncommit(&t->cold, list, hkm_slot(word));
        cold_map_disown(&t->cold, list, hkm_slot(word));
    } else if (s->kept) {
        if (cold_is_slot(l->kept[position]))
            cold_map_disown(&t->cold, list, l->kept[position]);
        l->kept[position] = COLD_NONE;
    }
    hkm_drop(&t->hkm, s->index, layer, position);
}

static int cut_some(struct core *c, struct agent *a, struct sequence *s, uint32_t layer,
                    uint32_t to)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[CUT_SLOTS], from, n = list_cold(c, s, layer, to, slots, &from);
    int rc = n ? agent_push_slots(a, RECORD_RELEASE, s->index, layer, slots, n) : 0;
    if (rc)
        return rc;
    while (l->appended > from)
        forget_token(c, s, layer, --l->appended);
    return 0;
}

int resting_cut(struct core *c, struct agent *a, struct sequence *s, uint32_t n_tokens)
{
    for (; s->rests.layer < c->config.geometry.n_layers; s->rests.layer++) {
        struct layer_state *l = &s->layers[s->rests.layer];
        while (l->appended > n_tokens) {
            int rc = cut_some(c, a, s, s->rests.layer, n_tokens);
            if (rc)
                return rc == HILL_E_WOULD_BLOCK ? 0 : rc;
        }
        if (l->low > n_tokens)
            l->low = n_tokens; /* what comes there may be hot */
    }
    return 1;
}

/* ---- placed anew ----------------------------------------------------------------------------- */

/* Copies of hot tokens: as they were kept for a sequence of another length, or nobody's. */
static void take_copies_over(struct core *c, struct sequence *s, const uint32_t *kept)
{
    for (uint32_t layer = 0; kept && layer < c->config.geometry.n_layers; layer++) {
        const uint32_t *from = kept + (uint64_t)layer * s->rests.max_tokens;
        for (uint32_t p = 0; p < s->layers[layer].appended; p++) {
            if (s->kept)
                s->layers[layer].kept[p] = from[p];
            else if (cold_is_slot(from[p]))
                cold_map_disown(&c->tiers.cold, tiers_list(&c->tiers, s->index, layer), from[p]);
        }
    }
}

int resting_end(struct core *c, struct sequence *s)
{
    uint32_t *kept = s->kept;
    s->kept = NULL;
    moves_end(c, s); /* the placements */
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        s->layers[layer].kept = NULL;
    int rc = s->share.copies ? moves_recover(c, s, 0) : 0;
    if (!rc)
        take_copies_over(c, s, kept);
    free(kept);
    return rc;
}
