/* cpu_scorer/resting.c - see resting.h. */
#include "cpu_scorer/resting.h"

#include <stdlib.h>
#include <string.h>

#include "cpu_scorer/holding.h"
#include "cpu_scorer/moves.h"

#define CUT_SLOTS 64u /* of one RELEASE */

/* ---- to rest ---------------------------------------------------------------------------------- */

uint32_t resting_tokens(const struct core *c, const struct sequence *s,
                        const struct record_seq_end *end)
{
    uint32_t n = s->max_tokens;
    if (!end->keep || !c->config.keeps || c->drains || !s->identity || s->status ||
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
        s->layers[layer].n_down = 0;
        gpu_slots_clear(&c->tiers.gpu, tiers_list(&c->tiers, s->index, layer));
    }
    s->rests = (struct resting){.identity = s->identity,
                                .since = ++c->n_rested,
                                .n_tokens = n_tokens,
                                .max_tokens = s->max_tokens};
    s->state = SEQUENCE_RESTING;
}

/* ---- taken up --------------------------------------------------------------------------------- */

bool resting_fits(const struct sequence *s, const struct record_seq_begin *r)
{
    return s->state == SEQUENCE_RESTING && r->after && r->after == s->rests.identity &&
           r->after_tokens > 0 && r->after_tokens <= s->rests.n_tokens &&
           r->after_tokens < r->prompt_tokens && r->policy != KV_POLICY_H2O;
}

static uint32_t blocks_held(const struct core *c, const struct sequence *s)
{
    return c->tiers.hkm.lists[tiers_list(&c->tiers, s->index, 0)].limit; /* of every layer */
}

static uint32_t stripes_held(const struct core *c, const struct sequence *s)
{
    return c->tiers.cold.lists[tiers_list(&c->tiers, s->index, 0)].n_stripes;
}

void resting_add_room(const struct core *c, const struct sequence *s, struct hot_share_room *room)
{
    room->unreserved += blocks_held(c, s) * room->n_layers;
    room->free_stripes += stripes_held(c, s) * room->n_layers;
}

/* The most hot tokens that a layer has, and slots that are nobody's: they take room of their own. */
static void find_most(const struct core *c, const struct sequence *s, uint32_t to, uint32_t *hot,
                      uint32_t *lost)
{
    *hot = *lost = 0;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        const struct cold_list *l = &c->tiers.cold.lists[tiers_list(&c->tiers, s->index, layer)];
        uint32_t n = hkm_hot_tokens(&c->tiers.hkm, s->index, layer);
        *hot = n > *hot ? n : *hot;
        /* so is what is cut, and a copy where none are kept any more */
        uint32_t nobodys = (s->share.copies ? l->lost : l->copies) + s->layers[layer].appended - to;
        *lost = nobodys > *lost ? nobodys : *lost;
    }
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Slots that its plan counts with: what nobody owns lies in the same stripes. */
static uint32_t cold_tokens(const struct sequence *s)
{
    return s->share.copies ? s->max_tokens
                           : s->max_tokens - hot_share_target(&s->share, s->max_tokens);
}

int resting_grow(struct core *c, struct sequence *s, uint32_t n_tokens, uint32_t *blocks,
                 uint32_t *stripes)
{
    struct tiers *t = &c->tiers;
    uint32_t hot, lost, slots = t->cold.stripe_slots;
    find_most(c, s, n_tokens, &hot, &lost);
    if (s->share.limit < s->max_tokens) /* a block in which new tokens wait for room */
        *blocks = larger(*blocks, (hot + KV_HOT_BLOCK_TOKENS - 1) / KV_HOT_BLOCK_TOKENS + 1);
    *blocks = larger(*blocks, blocks_held(c, s));
    if (c->config.csd)
        *stripes = larger((cold_tokens(s) + lost + slots - 1) / slots, stripes_held(c, s));
    uint64_t more = (uint64_t)(*stripes - stripes_held(c, s)) * c->config.geometry.n_layers;
    if (more > t->cold.n_free || hkm_grow(&t->hkm, s->index, *blocks))
        return HILL_E_BUSY;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        if (cold_map_grow(&t->cold, tiers_list(t, s->index, layer), *stripes))
            return HILL_E_BUSY; /* they were counted: cannot be; the sequence is closed */
    return 0;
}

/* ---- cutting ---------------------------------------------------------------------------------- */

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
    } else if (s->kept && l->kept[position] != COLD_NONE) {
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

/* ---- placed anew ------------------------------------------------------------------------------ */

/* Copies of hot tokens: as they were kept for a sequence of another length, or nobody's. */
static void take_copies_over(struct core *c, struct sequence *s, const uint32_t *kept)
{
    for (uint32_t layer = 0; kept && layer < c->config.geometry.n_layers; layer++) {
        const uint32_t *from = kept + (uint64_t)layer * s->rests.max_tokens;
        for (uint32_t p = 0; p < s->layers[layer].appended; p++) {
            if (s->kept)
                s->layers[layer].kept[p] = from[p];
            else if (from[p] != COLD_NONE)
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
