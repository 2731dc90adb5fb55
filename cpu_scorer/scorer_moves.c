/*
 * cpu_scorer/scorer_moves.c - placement by a policy: what moves up and down between queries.
 *
 * What: each layer of a sequence that is placed by a policy (placement/placement_bkp.c) has one of its
 * own. It is told which entries each answered query had to upload or named in the hot pool, since
 * what the GPU has kept costs nothing wherever else it lies, and orders a batch of moves; nothing
 * new is ordered before that batch is over, the policy only counts meanwhile.
 *
 * Moving up is done right after the answer: what the query has just fetched (the agent has checked
 * it) lies in staging until the sequence's next query. It is copied from there into hot slots and
 * digested, the words flip, and a RELEASE tells the agent that the cold slots do not count any
 * more. The drive reads nothing for it, and the copies stay in the cold pool.
 *
 * Moving down follows: an entry whose copy is still in the cold pool by COMMIT of that slot and the
 * flip, at once; the others by DEMOTE, completion, COMMIT and flip (scorer_agent.c). Until that
 * is over a layer has up to MOVES_UP more hot tokens than its target; the reservation has a block
 * for that, and where it is used up nothing comes up. So M_0 is never exceeded.
 *
 * Words flip here and in agent_pump_commits alone, both only while no query is open; COMMIT,
 * RELEASE and AGENT_QUERY share an ordered ring. Failure: what finds no room stays where it is, and
 * the policy is told so.
 */
#include "cpu_scorer/scorer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- life --------------------------------------------------------------------------------- */

static struct placement_settings settings_of(const struct scorer *p, const struct sequence *s)
{
    struct placement_settings out = placement_defaults();
    double k = kv_budget_tokens(&s->settings, s->max_tokens);
    out.max_tokens = s->max_tokens;
    out.sinks = s->settings.sinks;
    out.window = s->settings.window;
    out.alpha = s->settings.budget ? k / s->max_tokens : s->settings.alpha;
    if (p->config.margin > 0)
        out.margin = p->config.margin;
    out.pin = p->config.pin < 0 ? out.alpha : p->config.pin;
    return out;
}

int moves_begin(struct scorer *p, struct sequence *s)
{
    struct placement_settings settings = settings_of(p, s);
    uint64_t n = (uint64_t)p->config.geometry.n_layers * s->max_tokens;
    s->kept = malloc(n * sizeof *s->kept);
    int rc = s->kept ? 0 : HILL_E_NOMEM;
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        s->kept[i] = COLD_NONE;
    for (uint32_t layer = 0; rc == 0 && layer < p->config.geometry.n_layers; layer++) {
        s->layers[layer].kept = s->kept + (uint64_t)layer * s->max_tokens;
        rc = placement_create(&s->layers[layer].policy, PLACEMENT_BKP, &settings, NULL);
    }
    if (rc)
        moves_end(p, s);
    return rc;
}

void moves_end(struct scorer *p, struct sequence *s)
{
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++) {
        placement_destroy(s->layers[layer].policy);
        s->layers[layer].policy = NULL;
    }
    free(s->kept);
    s->kept = NULL;
}

uint64_t moves_bounced(const struct scorer *p, const struct sequence *s)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; s->kept && layer < p->config.geometry.n_layers; layer++)
        sum += placement_stats(s->layers[layer].policy)->bounced;
    return sum;
}

/* ---- ordering ----------------------------------------------------------------------------- */

static bool is_idle(const struct layer_state *l)
{
    return l->n_down + l->moving == 0;
}

/* What is to go down, as far as the batch has room; the rest is given up: the policy orders it
 * again. */
static void take_demoted(struct scorer *p, struct sequence *s, uint32_t layer,
                         const struct placement_moves *moves)
{
    struct layer_state *l = &s->layers[layer];
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        uint32_t position = moves->demoted[i];
        if (hkm_tag(hkm_location(&p->hkm, s->index, layer, position)) != HKM_HOT)
            continue;
        if (l->n_down < MOVES_DOWN)
            l->down[l->n_down++] = position;
        else
            placement_place(l->policy, position, true);
    }
}

/* How many of `n` tokens may be hot. A beta that has fallen is followed a batch at a time. */
static uint32_t hot_target(struct sequence *s, const struct layer_state *l, uint32_t n)
{
    uint32_t target = hot_share_target(&s->share, n), hot = placement_hot_tokens(l->policy);
    uint32_t least = hot > MOVES_DOWN / 2 ? hot - MOVES_DOWN / 2 : 0;
    if (!s->share.adapts || placement_tokens(l->policy) == 0 || target > least)
        return target;
    return least < s->share.limit ? least : s->share.limit;
}

/* Tell the policy of tokens up to `n` that it does not know yet. */
static void grow(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t n)
{
    struct layer_state *l = &s->layers[layer];
    struct placement_moves moves;
    if (n < s->prompt_tokens)
        return; /* the first that it hears of is the whole prompt */
    while (placement_tokens(l->policy) < n) {
        uint32_t known = placement_tokens(l->policy), to = known ? n : s->prompt_tokens;
        int rc = placement_append(l->policy, to - known, hot_target(s, l, to), &moves);
        take_demoted(p, s, layer, &moves);
        if (rc)
            return; /* out of memory: what was ordered stands, and it is tried again */
    }
}

/* ---- down --------------------------------------------------------------------------------- */

/* Entries whose copy is in the cold pool: their slots count again. */
static int recommit(struct scorer *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[MOVES_DOWN], n = 0, left = 0, list = scorer_list(p, s->index, layer);
    for (uint32_t i = 0; i < l->n_down; i++)
        if (l->kept[l->down[i]] != COLD_NONE)
            slots[n++] = l->kept[l->down[i]];
    if (n == 0 || agent_push_slots(p, RECORD_COMMIT, s->index, layer, slots, n))
        return 0;
    for (uint32_t i = 0; i < l->n_down; i++) {
        uint32_t position = l->down[i], slot = l->kept[position];
        if (slot == COLD_NONE) {
            l->down[left++] = position;
            continue;
        }
        cold_map_commit(&p->cold, list, slot, 1);
        hkm_set_cold(&p->hkm, s->index, layer, position, slot);
        l->kept[position] = COLD_NONE;
    }
    s->stats.demoted += n;
    l->n_down = left;
    return 1;
}

static int go_down(struct scorer *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    int moved = recommit(p, s, layer);
    if (l->n_down == 0 || l->kept[l->down[0]] != COLD_NONE)
        return moved;
    uint32_t n = 1;
    while (n < l->n_down && l->kept[l->down[n]] == COLD_NONE)
        n++;
    n = agent_demote_hot(p, s, layer, l->down, n);
    l->n_down -= n;
    memmove(l->down, l->down + n, l->n_down * sizeof *l->down);
    return moved | (n > 0);
}

/* ---- up ----------------------------------------------------------------------------------- */

/* The entry of a position that was fetched for the query. NULL: it was not. */
static const void *staged(const struct scorer *p, uint32_t position)
{
    uint32_t low = 0, n = p->n_fetches;
    while (n > 1) {
        uint32_t half = n / 2;
        low += p->fetches[low + half].position <= position ? half : 0;
        n -= half;
    }
    return n && p->fetches[low].position == position
               ? shm_arena_slot(p->io.staging, p->fetches[low].staging_slot)
               : NULL;
}

/* What the query has just fetched becomes hot: copy and digest, flip, and the cold slots stop
 * counting. */
static void come_up(struct scorer *p, struct sequence *s, uint32_t layer,
                    const struct placement_moves *moves)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[MOVES_UP], n = 0, list = scorer_list(p, s->index, layer);
    void *room; /* first: without room in the ring nothing flips */
    bool full =
        shm_ring_reserve(&p->io.rings[RING_COMMAND],
                         (uint32_t)(sizeof(struct record_release) + sizeof slots), &room) != 0;
    for (uint32_t i = 0; i < moves->n_promoted; i++) {
        uint32_t position = moves->promoted[i];
        uint32_t word = hkm_location(&p->hkm, s->index, layer, position);
        if (hkm_tag(word) == HKM_HOT)
            continue;
        const void *entry = staged(p, position);
        if (full || n == MOVES_UP || hkm_tag(word) != HKM_COLD || !entry ||
            hkm_append(&p->hkm, s->index, layer, position, 1, entry) == 0) {
            placement_place(l->policy, position, false); /* new tokens have taken the room */
            continue;
        }
        cold_map_uncommit(&p->cold, list, hkm_slot(word));
        l->kept[position] = slots[n++] = hkm_slot(word);
    }
    if (n && agent_push_slots(p, RECORD_RELEASE, s->index, layer, slots, n))
        scorer_fail(p, s, HILL_E_PEER_GONE, "telling the CSD agent what moved up in layer %u",
                    layer);
    s->stats.promoted += n;
}

void moves_note(struct scorer *p, struct sequence *s, uint32_t layer, const uint32_t *missed,
                uint32_t n)
{
    struct layer_state *l = &s->layers[layer];
    struct placement_moves moves;
    if (!l->policy)
        return;
    uint32_t known = placement_tokens(l->policy), n_known = n;
    while (n_known && missed[n_known - 1] >= known)
        n_known--; /* newer than what the policy was told: hot anyway */
    if (!is_idle(l) || p->agent_status || s->status) {
        placement_watch(l->policy, missed, n_known);
        return;
    }
    if (placement_step(l->policy, missed, n_known, NULL, MOVES_UP, &moves))
        return;
    take_demoted(p, s, layer, &moves);
    come_up(p, s, layer, &moves);
}

/* ---- the pump ----------------------------------------------------------------------------- */

static int pump_layer(struct scorer *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    int moved = 0;
    if (is_idle(l) && l->appended >= placement_tokens(l->policy) + MOVE_TOKENS_MIN)
        grow(p, s, layer, l->appended);
    if (l->n_down && l->moving == 0 && !scorer_reading(s, layer))
        moved |= go_down(p, s, layer);
    return moved;
}

int moves_pump(struct scorer *p, struct sequence *s)
{
    uint32_t n = p->config.geometry.n_layers;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t layer = (s->move_layer + i) % n;
        if (!pump_layer(p, s, layer))
            continue;
        s->move_layer = (layer + 1) % n; /* a query may have come: one layer at a time */
        return 1;
    }
    return 0;
}
