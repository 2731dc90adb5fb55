/* cpu_scorer/moves.c - see moves.h. */
#include "cpu_scorer/moves.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "cpu_scorer/holding.h"

/* ---- life --------------------------------------------------------------------------------- */

static struct placement_settings settings_of(const struct core *c, const struct sequence *s,
                                             uint32_t layer)
{
    struct placement_settings out = placement_defaults();
    uint32_t window = kv_window_tokens(&c->config.windows, layer, s->max_tokens);
    double k = window ? window : kv_budget_tokens(&s->settings, s->max_tokens);
    out.max_tokens = s->max_tokens;
    out.sinks = s->settings.sinks;
    out.window = s->settings.window;
    out.alpha = window || s->settings.budget ? k / s->max_tokens : s->settings.alpha;
    if (c->config.margin > 0)
        out.margin = c->config.margin;
    out.copies = s->layers[layer].kept;
    out.pin = c->config.pin < 0 ? out.alpha : c->config.pin;
    return out;
}

bool moves_wants_placement(const struct core *c, const struct sequence *s)
{
    return c->config.placement != PLACEMENT_RECENCY && core_has_drive(c) && s->share.beta > 0 &&
           s->settings.policy != KV_POLICY_FULL;
}

int moves_begin(const struct core *c, struct sequence *s)
{
    uint64_t n = (uint64_t)c->config.geometry.n_layers * s->max_tokens;
    s->kept = malloc(n * sizeof *s->kept);
    int rc = s->kept ? 0 : HILL_E_NOMEM;
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        s->kept[i] = COLD_NONE;
    for (uint32_t layer = 0; rc == 0 && layer < c->config.geometry.n_layers; layer++) {
        s->layers[layer].kept = s->kept + (uint64_t)layer * s->max_tokens;
        const struct placement_settings settings = settings_of(c, s, layer);
        rc = placement_create(&s->layers[layer].placement, c->config.placement, &settings, NULL);
    }
    if (rc)
        moves_end(c, s);
    return rc;
}

void moves_end(const struct core *c, struct sequence *s)
{
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        placement_destroy(s->layers[layer].placement);
        s->layers[layer].placement = NULL;
    }
    free(s->kept);
    s->kept = NULL;
}

uint64_t moves_bounced(const struct core *c, const struct sequence *s)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; s->kept && layer < c->config.geometry.n_layers; layer++)
        sum += placement_stats(s->layers[layer].placement)->bounced;
    return sum;
}

/* ---- ordering ----------------------------------------------------------------------------- */

/* Entries that need a write wait until they are so many: a record of few writes as many pages as
 * one of many. Where little is cold they are few, so that beta stays what it is to be. */
static uint32_t together(const struct core *c, const struct sequence *s, uint32_t layer)
{
    uint32_t n = cold_map_committed(&c->tiers.cold, tiers_list(&c->tiers, s->index, layer)) / 16;
    return n < 1 ? 1 : n < MOVES_TOGETHER ? n : MOVES_TOGETHER;
}

/* Is the last batch over, but for what waits to go down with the next one? */
static bool is_idle(const struct core *c, const struct sequence *s, uint32_t layer)
{
    const struct layer_state *l = &s->layers[layer];
    return l->moving == 0 && l->n_down < together(c, s, layer);
}

static bool has_copy(const struct layer_state *l, uint32_t position)
{
    return cold_is_slot(l->kept[position]);
}

/* What is to go down, as far as the batch has room; the rest is given up: the placement orders it
 * again; lru much later, because what is hot again enters as the most recent. */
static void take_demoted(struct demotions *d, struct sequence *s, uint32_t layer,
                         const struct placement_moves *moves)
{
    struct layer_state *l = &s->layers[layer];
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        uint32_t position = moves->demoted[i];
        if (hkm_tag(core_location(d->core, s, layer, position)) != HKM_HOT)
            continue;
        if (l->n_down < MOVES_DOWN)
            l->down[l->n_down++] = position;
        else
            placement_place(l->placement, position, true);
    }
}

/* How many of `n` tokens may be hot. A beta that has fallen is followed a batch at a time. */
static uint32_t hot_target(struct sequence *s, const struct layer_state *l, uint32_t n)
{
    uint32_t target = hot_share_target(&s->share, n), hot = placement_hot_tokens(l->placement);
    uint32_t least = hot > MOVES_DOWN / 2 ? hot - MOVES_DOWN / 2 : 0;
    if (!s->share.adapts || target > least)
        return target;
    return least < s->share.limit ? least : s->share.limit;
}

/* Tokens up to `to` that went down on their way in: the placement takes what it appends for hot. */
static int append_cold(struct layer_state *l, uint32_t to)
{
    uint32_t from = placement_tokens(l->placement), hot = placement_hot_tokens(l->placement);
    struct placement_moves none;
    int rc = placement_append(l->placement, to - from, hot + to - from, &none);
    for (uint32_t p = from; rc == 0 && p < to; p++)
        rc = placement_place(l->placement, p, false);
    return rc;
}

/* The placement's first tokens, each where it is: beta may have changed since they were placed.
 * What is not committed yet is cold. */
static int append_first(const struct core *c, struct sequence *s, uint32_t layer, uint32_t n)
{
    struct placement *placement = s->layers[layer].placement;
    struct placement_moves none;
    int rc = placement_append(placement, n, hot_share_target(&s->share, n), &none);
    for (uint32_t p = 0; rc == 0 && p < n; p++)
        rc = placement_place(placement, p, hkm_tag(core_location(c, s, layer, p)) == HKM_HOT);
    if (rc)
        placement_trim(placement, 0); /* all of it, or nothing */
    return rc;
}

/* Tell the placement of tokens up to `n`, and take what is to go down for them. Of a prompt from
 * its first token on it hears when the prompt is whole; one that goes on with an earlier request's
 * tokens is told as its own come, because they may need the room of those. */
static void grow(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t n)
{
    struct layer_state *l = &s->layers[layer];
    struct placement_moves moves;
    uint32_t known = placement_tokens(l->placement);
    int rc = 0;
    if (known == 0 && n < s->prompt_tokens)
        return;
    if (known == 0) {
        rc = append_first(d->core, s, layer, s->prompt_tokens);
    } else if (known < s->cold_to && n > s->cold_from) {
        if (known < s->cold_from)
            rc = placement_append(l->placement, s->cold_from - known, UINT32_MAX, &moves);
        if (!rc)
            rc = append_cold(l, n < s->cold_to ? n : s->cold_to);
    }
    if (rc)
        return; /* out of memory: what was ordered stands, and it is tried again */
    placement_append(l->placement, n - placement_tokens(l->placement), hot_target(s, l, n), &moves);
    take_demoted(d, s, layer, &moves);
}

/* ---- recovery ----------------------------------------------------------------------------- */

int moves_recover(const struct core *c, struct sequence *s, uint32_t least)
{
    int rc = moves_begin(c, s);
    for (uint32_t layer = 0; rc == 0 && layer < c->config.geometry.n_layers; layer++) {
        if (s->layers[layer].appended < least)
            break;
        rc = append_first(c, s, layer, s->layers[layer].appended);
    }
    if (rc)
        moves_end(c, s);
    return rc;
}

/* ---- down --------------------------------------------------------------------------------- */

/* A copy may be an earlier request's, with whose tokens this one goes on: its check names that one
 * until it is an entry again. */
static void bind_copy(struct hkm *h, const struct sequence *s, uint32_t layer, uint32_t position,
                      uint32_t slot)
{
    if (h->identities[s->index])
        h->cold_checks[slot] = hkm_check_of(h, s->index, layer, position, h->cold_checks[slot].sum);
}

/* Entries whose copy is in the cold pool: their slots count again. */
static int recommit(struct demotions *d, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[MOVES_DOWN], n = 0, left = 0,
                                list = tiers_list(&d->core->tiers, s->index, layer);
    for (uint32_t i = 0; i < l->n_down; i++)
        if (has_copy(l, l->down[i]))
            slots[n++] = l->kept[l->down[i]];
    if (n == 0 || agent_push_slots(d->agent, RECORD_COMMIT, s->index, layer, slots, n))
        return 0;
    FAULT_POINT(cpu_scorer, recommit, pushed);
    for (uint32_t i = 0; i < l->n_down; i++) {
        uint32_t position = l->down[i], slot = l->kept[position];
        if (!has_copy(l, position)) {
            l->down[left++] = position;
            continue;
        }
        cold_map_commit(&d->core->tiers.cold, list, slot, 1);
        bind_copy(&d->core->tiers.hkm, s, layer, position, slot);
        hkm_set_cold(&d->core->tiers.hkm, s->index, layer, position, slot);
        l->kept[position] = COLD_NONE;
    }
    FAULT_POINT(cpu_scorer, recommit, flipped);
    s->stats.demoted += n;
    s->stats.demoted_free += n;
    l->n_down = left;
    return 1;
}

/* Will the next batch, or the next tokens, find no room? */
static bool lacks_room(const struct core *c, const struct sequence *s, uint32_t layer)
{
    const struct hkm *h = &c->tiers.hkm;
    uint32_t blocks = h->lists[tiers_list(&c->tiers, s->index, layer)].limit;
    return hkm_hot_tokens(h, s->index, layer) + MOVES_UP + MOVE_TOKENS_MIN >=
           blocks * KV_HOT_BLOCK_TOKENS;
}

static int go_down(struct demotions *d, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    int moved = recommit(d, s, layer);
    uint32_t n = 0;
    while (n < l->n_down && !has_copy(l, l->down[n]))
        n++;
    if (n == 0 || (n < together(d->core, s, layer) && !lacks_room(d->core, s, layer)))
        return moved;
    n = demote_hot(d, s, layer, l->down, n);
    l->n_down -= n;
    memmove(l->down, l->down + n, l->n_down * sizeof *l->down);
    return moved | (n > 0);
}

/* ---- up ----------------------------------------------------------------------------------- */

uint32_t moves_bring_up(struct core *c, const struct sequence *s, uint32_t layer, uint32_t position,
                        const void *entry)
{
    struct tiers *t = &c->tiers;
    uint32_t word = core_location(c, s, layer, position);
    if (hkm_tag(word) != HKM_COLD || !entry ||
        hkm_append(&t->hkm, s->index, layer, position, 1, entry) == 0)
        return COLD_NONE;
    cold_map_uncommit(&t->cold, tiers_list(t, s->index, layer), hkm_slot(word));
    return hkm_slot(word);
}

/* A copy on a drive that is being left is nobody's. */
static void keep_no_copy_on_leaving(struct core *c, const struct sequence *s, uint32_t layer,
                                    uint32_t position)
{
    struct cold_map *cold = &c->tiers.cold;
    uint32_t *slot = &s->layers[layer].kept[position];
    if (!cold_is_slot(*slot) || cold_map_takes(cold, cold_map_drive(cold, *slot)))
        return;
    cold_map_disown(cold, tiers_list(&c->tiers, s->index, layer), *slot);
    *slot = COLD_LOST;
}

void moves_leave_drives(struct core *c, const struct sequence *s)
{
    for (uint32_t layer = 0; s->kept && layer < c->config.geometry.n_layers; layer++)
        for (uint32_t p = 0; p < s->layers[layer].appended; p++)
            keep_no_copy_on_leaving(c, s, layer, p);
}

/* Still hot, because it waits to go down: it stays. */
static void keep_hot(struct layer_state *l, uint32_t position)
{
    for (uint32_t i = 0; i < l->n_down; i++)
        if (l->down[i] == position) {
            memmove(l->down + i, l->down + i + 1, (l->n_down - i - 1) * sizeof *l->down);
            l->n_down--;
            return;
        }
}

/* What the query has just fetched becomes hot: copy and digest, flip, and the cold slots stop
 * counting. */
static void come_up(struct demotions *d, struct sequence *s, uint32_t layer, const struct answer *a,
                    const struct placement_moves *moves)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[MOVES_UP], n = 0;
    bool full = /* first: without room in the ring nothing flips */
        !agent_has_room(d->agent, (uint32_t)(sizeof(struct record_release) + sizeof slots));
    for (uint32_t i = 0; i < moves->n_promoted; i++) {
        uint32_t position = moves->promoted[i];
        if (hkm_tag(core_location(d->core, s, layer, position)) == HKM_HOT) {
            keep_hot(l, position);
            continue;
        }
        uint32_t slot = full || n == MOVES_UP ? COLD_NONE
                                              : moves_bring_up(d->core, s, layer, position,
                                                               answer_staged(a, position));
        if (slot == COLD_NONE) {
            placement_place(l->placement, position, false); /* new tokens have taken the room */
            continue;
        }
        l->kept[position] = slots[n++] = slot;
        keep_no_copy_on_leaving(d->core, s, layer, position);
        FAULT_POINT(cpu_scorer, promote, flipped);
    }
    if (n && agent_push_slots(d->agent, RECORD_RELEASE, s->index, layer, slots, n))
        core_fail(d->core, s, HILL_E_PEER_GONE, "telling the CSD agent what moved up in layer %u",
                  layer);
    if (n)
        FAULT_POINT(cpu_scorer, release, pushed);
    s->stats.promoted += n;
}

void moves_note(struct demotions *d, struct sequence *s, uint32_t layer, struct answer *a)
{
    struct layer_state *l = &s->layers[layer];
    struct placement_moves moves;
    uint32_t *missed = a->positions, n = 0;
    if (!l->placement)
        return;
    uint32_t known = placement_tokens(l->placement); /* what is newer is hot anyway */
    for (uint32_t i = 0; i < a->n_items && a->items[i].position < known; i++)
        if (a->items[i].flags & (ANSWER_UPLOAD | ANSWER_IN_PLACE))
            missed[n++] = a->items[i].position;
    if (!is_idle(d->core, s, layer) || d->agent->status || s->status) {
        placement_watch(l->placement, missed, n);
        return;
    }
    double cost = agent_write_cost(d->agent);
    if (cost > 0)
        placement_set_write_cost(l->placement, PLACEMENT_WRITE_SHARE * cost);
    if (placement_step(l->placement, missed, n, NULL, MOVES_UP, &moves))
        return;
    come_up(d, s, layer, a, &moves); /* first: what waited to go down may have come up */
    take_demoted(d, s, layer, &moves);
}

/* ---- the pump ------------------------------------------------------------------------------- */

/* Are a layer's blocks full before MOVE_TOKENS_MIN new tokens have come? A sequence that goes on
 * with an earlier request's tokens may have more of them hot than its share. */
static bool is_full(const struct core *c, const struct sequence *s, uint32_t layer)
{
    const struct hkm *h = &c->tiers.hkm;
    uint32_t blocks = h->lists[tiers_list(&c->tiers, s->index, layer)].limit;
    return hkm_hot_tokens(h, s->index, layer) >= blocks * KV_HOT_BLOCK_TOKENS;
}

static int pump_layer(struct demotions *d, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    int moved = 0;
    if (is_idle(d->core, s, layer) &&
        (l->appended >= placement_tokens(l->placement) + MOVE_TOKENS_MIN ||
         is_full(d->core, s, layer)))
        grow(d, s, layer, l->appended);
    if (l->n_down && l->moving == 0 && !holding_reads(s, layer))
        moved |= go_down(d, s, layer);
    return moved;
}

static int pump_placed(struct demotions *d, struct sequence *s)
{
    uint32_t n = d->core->config.geometry.n_layers;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t layer = (s->move_layer + i) % n;
        if (!pump_layer(d, s, layer))
            continue;
        s->move_layer = (layer + 1) % n; /* a query may have come: one layer at a time */
        return 1;
    }
    return 0;
}

/* The oldest hot tokens above the sinks that follow one another: *first, and how many (at most
 * max). */
static uint32_t oldest_hot(const struct core *c, struct sequence *s, uint32_t layer, uint32_t max,
                           uint32_t *first)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t at = l->low > s->settings.sinks ? l->low : s->settings.sinks, n = 0;
    while (at < l->appended && hkm_tag(core_location(c, s, layer, at)) != HKM_HOT)
        at++;
    *first = l->low = at;
    while (n < max && at + n < l->appended &&
           hkm_tag(core_location(c, s, layer, at + n)) == HKM_HOT)
        n++;
    return n;
}

static int move_oldest(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t n)
{
    uint32_t first, positions[MOVES_DOWN];
    n = oldest_hot(d->core, s, layer, n < MOVES_DOWN ? n : MOVES_DOWN, &first);
    for (uint32_t i = 0; i < n; i++)
        positions[i] = first + i;
    return demote_hot(d, s, layer, positions, n) > 0;
}

static int pump_recency(struct demotions *d, struct sequence *s)
{
    int moved = 0;
    bool over = false;
    if (!s->moves_wanted || d->n_moves >= MOVES_OPEN_MAX)
        return 0;
    for (uint32_t layer = 0; layer < d->core->config.geometry.n_layers; layer++) {
        struct layer_state *l = &s->layers[layer];
        uint32_t hot = hkm_hot_tokens(&d->core->tiers.hkm, s->index, layer);
        uint32_t target = hot_share_target(&s->share, l->appended);
        if (hot < target + MOVE_TOKENS_MIN)
            continue;
        over = true;
        if (l->moving == 0 && d->n_moves < MOVES_OPEN_MAX)
            moved |= move_oldest(d, s, layer, hot - target);
    }
    s->moves_wanted = over;
    return moved;
}

int moves_pump(struct demotions *d)
{
    int moved = 0;
    if (!d->core->config.csd || d->agent->status)
        return 0;
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++) {
        struct sequence *s = &d->core->sequences[i];
        if (core_runs(s) && !s->leaving)
            moved |= s->kept ? pump_placed(d, s) : pump_recency(d, s);
    }
    return moved;
}
