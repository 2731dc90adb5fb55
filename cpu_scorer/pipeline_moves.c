/*
 * cpu_scorer/pipeline_moves.c - placement by a policy: what moves up and down between queries.
 *
 * What: each layer of a sequence that is placed by a policy (policy/policy_bkp.c) has one of its
 * own. It is told what each answered query selected and orders a batch of moves; nothing new is
 * ordered before that batch is over, the policy only counts meanwhile. A batch: down   an entry
 * whose copy is still in the cold pool: COMMIT of that slot and the flip, at once; the others by
 * DEMOTE, completion, COMMIT and flip (pipeline_agent.c) up     when those are down: the entries,
 * which a FETCH on the background ring has brought into staging slots of their own (the agent
 * checks their checksums), are copied into hot slots and digested, the words flip, and a RELEASE
 * tells the agent that the cold slots do not count any more. Their copies stay there. So M_0 is
 * never exceeded: room is made before it is used. Words flip here and in agent_pump_commits alone,
 * both only while no query is open; COMMIT, RELEASE and AGENT_QUERY share an ordered ring. Work is
 * done between queries, a batch of at most MOVES_UP or MOVES_DOWN at a time; bulk goes over the
 * background ring, which the agent looks at when no command waits. Failure: a promotion that cannot
 * be read is given up, and the layer promotes nothing more; a query that needs the entry fails with
 * the reason.
 */
#include "cpu_scorer/pipeline_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define STAGING_MOST (PROMOTES_MAX * MOVES_UP)

/* ---- promotions in flight ----------------------------------------------------------------- */

static void drop_promote(struct pipeline *p, struct promote *u, bool give)
{
    struct sequence *s = &p->sequences[u->sequence];
    if (give) {
        shm_arena_give(p->io.staging, u->n, u->staging);
        s->move_taken -= u->n;
    }
    if (s->layers[u->layer].promote == u)
        s->layers[u->layer].promote = NULL;
    u->used = false;
}

bool moves_complete(struct pipeline *p, const struct record_completion *c)
{
    for (uint32_t i = 0; i < PROMOTES_MAX; i++) {
        struct promote *u = &p->promotes[i];
        struct sequence *s = &p->sequences[u->sequence];
        if (!u->used || u->tag != c->tag || u->done)
            continue;
        u->done = true;
        u->status = c->status ? c->status : c->count == u->n ? 0 : HILL_E_PROTOCOL;
        s->promotes--;
        if (s->layers[u->layer].promote != u)
            drop_promote(p, u, true); /* the request that wanted it is over */
        return true;
    }
    return false;
}

void moves_forget(struct pipeline *p, struct sequence *s)
{
    for (uint32_t i = 0; i < PROMOTES_MAX; i++)
        if (p->promotes[i].used && p->promotes[i].sequence == s->index)
            drop_promote(p, &p->promotes[i], p->promotes[i].done);
    s->promotes = 0;
}

/* The fetches of a request that is over: those that are back are dropped, the others when they
 * come.
 */
static void orphan_promotes(struct pipeline *p, struct sequence *s)
{
    for (uint32_t i = 0; i < PROMOTES_MAX; i++) {
        struct promote *u = &p->promotes[i];
        if (!u->used || u->sequence != s->index)
            continue;
        s->layers[u->layer].promote = NULL;
        if (u->done)
            drop_promote(p, u, true);
    }
}

/* ---- life --------------------------------------------------------------------------------- */

static struct policy_settings settings_of(const struct pipeline *p, const struct sequence *s)
{
    struct policy_settings out = policy_defaults();
    double k = kv_budget_tokens(&s->settings, s->max_tokens);
    out.max_tokens = s->max_tokens;
    out.sinks = s->settings.sinks;
    out.window = s->settings.window;
    out.alpha = s->settings.budget ? k / s->max_tokens : s->settings.alpha;
    out.pin = p->config.pin < 0 ? out.alpha : p->config.pin;
    return out;
}

int moves_begin(struct pipeline *p, struct sequence *s)
{
    struct policy_settings settings = settings_of(p, s);
    uint64_t n = (uint64_t)p->config.geometry.n_layers * s->max_tokens;
    s->kept = malloc(n * sizeof *s->kept);
    int rc = s->kept ? 0 : HILL_E_NOMEM;
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        s->kept[i] = COLD_NONE;
    for (uint32_t layer = 0; rc == 0 && layer < p->config.geometry.n_layers; layer++) {
        s->layers[layer].kept = s->kept + (uint64_t)layer * s->max_tokens;
        rc = policy_create(&s->layers[layer].policy, POLICY_BKP, &settings, NULL);
    }
    if (rc)
        moves_end(p, s);
    return rc;
}

void moves_end(struct pipeline *p, struct sequence *s)
{
    orphan_promotes(p, s);
    for (uint32_t layer = 0; layer < p->config.geometry.n_layers; layer++) {
        policy_destroy(s->layers[layer].policy);
        s->layers[layer].policy = NULL;
    }
    free(s->kept);
    s->kept = NULL;
}

void moves_reserve(struct pipeline *p, struct sequence *s)
{
    uint32_t most = s->kept ? STAGING_MOST : 0;
    s->move_staging = p->staging_unreserved < most ? p->staging_unreserved : most;
    p->staging_unreserved -= s->move_staging;
}

void moves_unreserve(struct pipeline *p, struct sequence *s)
{
    p->staging_unreserved += s->move_staging - s->move_taken; /* lost ones stay taken */
    s->move_staging = s->move_taken = 0;
}

uint64_t moves_bounced(const struct pipeline *p, const struct sequence *s)
{
    uint64_t sum = 0;
    for (uint32_t layer = 0; s->kept && layer < p->config.geometry.n_layers; layer++)
        sum += policy_stats(s->layers[layer].policy)->bounced;
    return sum;
}

/* ---- ordering ----------------------------------------------------------------------------- */

static bool is_idle(const struct layer_state *l)
{
    return l->n_up + l->n_down + l->moving == 0;
}

/* What is ordered, as far as the batch has room; the rest is given up: the policy orders it again.
 */
static void take_orders(struct pipeline *p, struct sequence *s, uint32_t layer,
                        const struct policy_moves *moves)
{
    struct layer_state *l = &s->layers[layer];
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        uint32_t position = moves->demoted[i];
        bool hot = hkm_tag(hkm_location(&p->hkm, s->index, layer, position)) == HKM_HOT;
        if (hot && l->n_down < MOVES_DOWN)
            l->down[l->n_down++] = position;
        else if (hot)
            policy_place(l->policy, position, true);
    }
    for (uint32_t i = 0; i < moves->n_promoted; i++) {
        uint32_t position = moves->promoted[i];
        bool cold = hkm_tag(hkm_location(&p->hkm, s->index, layer, position)) == HKM_COLD;
        if (cold && l->n_up < MOVES_UP)
            l->up[l->n_up++] = position;
        else if (cold)
            policy_place(l->policy, position, false);
    }
}

/* Tell the policy of tokens up to `n` that it does not know yet. */
static void grow(struct pipeline *p, struct sequence *s, uint32_t layer, uint32_t n)
{
    struct layer_state *l = &s->layers[layer];
    struct policy_moves moves;
    if (n < s->prompt_tokens)
        return; /* the first that it hears of is the whole prompt */
    while (policy_tokens(l->policy) < n) {
        uint32_t known = policy_tokens(l->policy), to = known ? n : s->prompt_tokens;
        int rc =
            policy_append(l->policy, to - known, placement_hot_target(&s->placement, to), &moves);
        take_orders(p, s, layer, &moves);
        if (rc)
            return; /* out of memory: what was ordered stands, and it is tried again */
    }
}

void moves_note(struct pipeline *p, struct sequence *s, uint32_t layer, const uint32_t *positions,
                uint32_t k)
{
    struct layer_state *l = &s->layers[layer];
    struct policy_moves moves;
    if (!l->policy)
        return;
    uint32_t known = policy_tokens(l->policy);
    while (k && positions[k - 1] >= known)
        k--; /* newer than what the policy was told: hot anyway */
    uint32_t room = (s->move_staging - s->move_taken) / MOVES_UP ? MOVES_UP : 0;
    if (!is_idle(l) || !room || l->up_stopped || p->agent_status)
        policy_watch(l->policy, positions, k);
    else if (policy_step(l->policy, positions, k, NULL, room, &moves) == 0)
        take_orders(p, s, layer, &moves);
}

/* ---- down --------------------------------------------------------------------------------- */

/* Entries whose copy is in the cold pool: their slots count again. */
static int recommit(struct pipeline *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    uint32_t slots[MOVES_DOWN], n = 0, left = 0, list = pipeline_list(p, s->index, layer);
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

static int go_down(struct pipeline *p, struct sequence *s, uint32_t layer)
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

static void give_up(struct layer_state *l)
{
    for (uint32_t i = 0; i < l->n_up; i++)
        policy_place(l->policy, l->up[i], false);
    l->n_up = 0;
}

static struct promote *free_promote(struct pipeline *p)
{
    for (uint32_t i = 0; i < PROMOTES_MAX; i++)
        if (!p->promotes[i].used)
            return &p->promotes[i];
    return NULL;
}

static int fetch_up(struct pipeline *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    struct promote *u = free_promote(p);
    uint32_t bytes = (uint32_t)(sizeof(struct record_fetch) + l->n_up * sizeof(struct fetch_item));
    void *payload;
    if (!u || s->move_staging - s->move_taken < l->n_up ||
        shm_ring_reserve(&p->io.rings[RING_BACKGROUND], bytes, &payload) ||
        shm_arena_take(p->io.staging, l->n_up, u->staging))
        return 0;
    struct record_fetch *record = payload;
    struct fetch_item *items = (struct fetch_item *)(record + 1);
    u->tag = agent_tag(p);
    u->sequence = s->index;
    u->layer = layer;
    u->n = l->n_up;
    u->used = true;
    u->done = false;
    *record = (struct record_fetch){
        .header = pipeline_header(p, s->index, 0, layer), .tag = u->tag, .n_entries = u->n};
    for (uint32_t i = 0; i < u->n; i++)
        items[i] = (struct fetch_item){hkm_slot(hkm_location(&p->hkm, s->index, layer, l->up[i])),
                                       l->up[i], u->staging[i],
                                       shm_arena_generation(p->io.staging, u->staging[i])};
    shm_ring_publish(&p->io.rings[RING_BACKGROUND], RECORD_FETCH, bytes);
    agent_sent(p);
    s->move_taken += u->n;
    s->promotes++;
    l->promote = u;
    return 1;
}

/* The fetched entries become hot: copy and digest, flip, and their cold slots stop counting. */
static int come_up(struct pipeline *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    struct promote *u = l->promote;
    uint32_t slots[MOVES_UP], n = 0, list = pipeline_list(p, s->index, layer);
    void *room;
    if (u->status) {
        log_warn("request %llu: entries of layer %u cannot be read to move up (%s); the layer's "
                 "placement stays as it is",
                 (unsigned long long)s->request_id, layer, hill_strerror(u->status));
        l->up_stopped = true;
        give_up(l);
        drop_promote(p, u, true);
        return 1;
    }
    /* first: without room in the ring nothing flips */
    if (shm_ring_reserve(&p->io.rings[RING_COMMAND],
                         (uint32_t)(sizeof(struct record_release) + sizeof slots), &room))
        return 0;
    for (uint32_t i = 0; i < u->n; i++) {
        uint32_t position = l->up[i];
        uint32_t slot = hkm_slot(hkm_location(&p->hkm, s->index, layer, position));
        if (hkm_append(&p->hkm, s->index, layer, position, 1,
                       shm_arena_slot(p->io.staging, u->staging[i])) == 0) {
            policy_place(l->policy, position, false); /* new tokens have taken the room */
            continue;
        }
        cold_map_uncommit(&p->cold, list, slot);
        l->kept[position] = slots[n++] = slot;
    }
    if (n && agent_push_slots(p, RECORD_RELEASE, s->index, layer, slots, n))
        pipeline_fail(p, s, HILL_E_PEER_GONE, "telling the CSD agent what moved up in layer %u",
                      layer);
    s->stats.promoted += n;
    l->n_up = 0;
    drop_promote(p, u, true);
    return 1;
}

/* ---- the pump ----------------------------------------------------------------------------- */

static int pump_layer(struct pipeline *p, struct sequence *s, uint32_t layer)
{
    struct layer_state *l = &s->layers[layer];
    int moved = 0;
    if (is_idle(l) && l->appended >= policy_tokens(l->policy) + MOVE_TOKENS_MIN)
        grow(p, s, layer, l->appended);
    if (l->n_down && l->moving == 0)
        moved |= go_down(p, s, layer);
    if (l->n_up && !l->promote)
        moved |= fetch_up(p, s, layer);
    if (l->promote && l->promote->done && l->n_down + l->moving == 0)
        moved |= come_up(p, s, layer);
    return moved;
}

int moves_pump(struct pipeline *p, struct sequence *s)
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
