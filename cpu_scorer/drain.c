/* cpu_scorer/drain.c - see drain.h. */
#include "cpu_scorer/drain.h"

#include "base/fault.h"
#include "base/log.h"
#include "cpu_scorer/adoption.h"
#include "cpu_scorer/holding.h"

#define ONE_DRIVE 0u /* of several none is drained: those change while no request runs */

/* ---- a FETCH ------------------------------------------------------------------------------ */

static void take_fetch(void *context, const void *record)
{
    struct drain *d = context;
    const struct record_completion *r = record;
    if (!d->tag || r->tag != d->tag) {
        if (d->queries.take)
            d->queries.take(d->queries.context, record);
        return;
    }
    d->fetched = true;
    d->status = r->status ? r->status : r->count == d->n ? 0 : HILL_E_PROTOCOL;
}

void drain_init(struct drain *d, struct core *core, struct agent *agent)
{
    *d = (struct drain){
        .core = core,
        .agent = agent,
        .queries = {agent->handlers[RECORD_FETCH].take, agent->handlers[RECORD_FETCH].context}};
    if (core->config.csd)
        agent_on(agent, RECORD_FETCH, take_fetch, d);
}

static int push_fetch(struct drain *d)
{
    void *payload;
    uint32_t bytes = (uint32_t)(sizeof(struct record_fetch) + d->n * sizeof(struct fetch_item));
    if (agent_reserve(d->agent, ONE_DRIVE, bytes, &payload) != 1)
        return 0;
    struct record_fetch *r = payload;
    struct fetch_item *items = (struct fetch_item *)(r + 1);
    d->tag = agent_tag(d->agent);
    *r = (struct record_fetch){
        .header = core_header(d->core, d->sequence, 0, d->layer), .tag = d->tag, .n_entries = d->n};
    for (uint32_t i = 0; i < d->n; i++)
        items[i] = (struct fetch_item){d->slots[i], d->positions[i], d->staging[i],
                                       shm_arena_generation(d->core->tiers.staging, d->staging[i])};
    agent_publish(d->agent, ONE_DRIVE, RING_COMMAND, RECORD_FETCH, bytes);
    d->core->coming_up = true;
    FAULT_POINT(cpu_scorer, drain, fetched);
    return 1;
}

/* ---- a sequence --------------------------------------------------------------------------- */

static uint32_t blocks_for(uint32_t tokens)
{
    return (tokens + KV_HOT_BLOCK_TOKENS - 1) / KV_HOT_BLOCK_TOKENS;
}

static uint32_t blocks_held(const struct core *c, const struct sequence *s)
{
    return c->tiers.hkm.lists[tiers_list(&c->tiers, s->index, 0)].limit;
}

/* What a later epoch is to find: everything that a sequence without a drive has. */
static void note_plan(const struct core *c, struct sequence *s, uint32_t held)
{
    const uint32_t stripes[LAYOUT_DRIVES_MAX] = {held};
    const struct kept_plan plan = adoption_plan(s, blocks_held(c, s), stripes);
    kept_replan(tiers_kept(&c->tiers, s->index), &plan);
}

static uint32_t stripes_held(const struct core *c, const struct sequence *s)
{
    return cold_map_stripes(&c->tiers.cold, tiers_list(&c->tiers, s->index, 0));
}

/* Placed by recency, nobody knows of what its copies are: their slots take whatever goes down. */
static void disown_copies(struct core *c, const struct sequence *s)
{
    for (uint32_t layer = 0; s->kept && layer < c->config.geometry.n_layers; layer++)
        for (uint32_t p = 0; p < s->layers[layer].appended; p++)
            if (cold_is_slot(s->layers[layer].kept[p]))
                cold_map_disown(&c->tiers.cold, tiers_list(&c->tiers, s->index, layer),
                                s->layers[layer].kept[p]);
}

/* It is placed by recency from now on, with as many hot blocks as there are for it. */
static void prepare(struct drain *d, struct sequence *s)
{
    struct core *c = d->core;
    uint32_t all = blocks_for(s->max_tokens), now = blocks_held(c, s);
    uint32_t more = all > now ? hkm_extend(&c->tiers.hkm, s->index, all - now) : 0;
    bool placed = s->share.copies || s->share.beta > 0;
    if (!more && !placed)
        return;
    s->bounced_before += moves_bounced(c, s);
    disown_copies(c, s);
    moves_end(c, s);
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        s->layers[layer].kept = NULL;
        s->layers[layer].n_down = 0;
    }
    now += more;
    s->share.beta = 0;
    s->share.adapts = s->share.copies = false;
    s->share.limit = now >= all ? s->max_tokens : (now - 1) * KV_HOT_BLOCK_TOKENS;
    s->moves_wanted = true;
    note_plan(c, s, stripes_held(c, s));
}

static uint32_t cold_entries(const struct core *c, const struct sequence *s)
{
    uint32_t sum = 0;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        sum += cold_map_committed(&c->tiers.cold, tiers_list(&c->tiers, s->index, layer));
    return sum;
}

/* Nothing of it is on the drive, nor will be: what of its prompt was to go down at once has. */
static bool is_free_of(const struct core *c, const struct sequence *s)
{
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        if (s->layers[layer].appended < s->cold_to)
            return false;
    return s->demotes == 0 && s->share.limit >= s->max_tokens && cold_entries(c, s) == 0;
}

/* Its stripes go back, at the agent, too. [I3] is kept: nobody is given stripes any more. */
static int leave_drive(struct drain *d, struct sequence *s)
{
    struct core *c = d->core;
    if (s->cold_used && agent_trim(d->agent, s))
        return 0;
    s->cold_used = false;
    tiers_release_cold(&c->tiers, s->index);
    note_plan(c, s, 0);
    return 1;
}

/* ---- a batch ------------------------------------------------------------------------------ */

/* How many more hot tokens the layer may have. */
static uint32_t room_of(const struct core *c, const struct sequence *s, uint32_t layer)
{
    uint32_t hot = hkm_hot_tokens(&c->tiers.hkm, s->index, layer);
    uint32_t target = hot_share_target(&s->share, s->layers[layer].appended);
    return target > hot ? target - hot : 0;
}

/* The newest cold positions of a layer with room; how many. */
static uint32_t choose(struct drain *d, struct sequence *s, uint32_t layer, uint32_t most)
{
    uint32_t room = room_of(d->core, s, layer), n = 0;
    most = room < most ? room : most;
    for (uint32_t p = s->layers[layer].appended; p-- > 0 && n < most;) {
        uint32_t word = core_location(d->core, s, layer, p);
        if (hkm_tag(word) != HKM_COLD)
            continue;
        d->positions[n] = p;
        d->slots[n++] = hkm_slot(word);
    }
    return n;
}

static bool is_drained(const struct drain *d, const struct sequence *s)
{
    return core_runs(s) && !s->leaving && d->spoilt[s->index] != s->request_id;
}

/* Staging slots that nobody lacks if the agent never answers: what the sequence, which fails then,
 * has set aside and holds nothing in, and what nobody has set aside. */
static uint32_t own_slots(const struct sequence *s)
{
    uint32_t held = holding_slots(s);
    return s->staging_max > held ? s->staging_max - held : 0;
}

/* A layer that has something to come up, from `next` on: into the batch. *blocked: it has, but no
 * staging slot may be taken for it now. */
static bool find_batch(struct drain *d, uint32_t most, bool *blocked)
{
    const struct core *c = d->core;
    uint32_t n_layers = c->config.geometry.n_layers, n_lists = c->config.n_sequences * n_layers;
    for (uint32_t i = 0; i < n_lists; i++) {
        uint32_t list = (d->next + i) % n_lists;
        struct sequence *s = &c->sequences[list / n_layers];
        if (!is_drained(d, s) || !cold_map_committed(&c->tiers.cold, list) ||
            s->layers[list % n_layers].uncommitted || s->layers[list % n_layers].moving ||
            room_of(c, s, list % n_layers) == 0)
            continue;
        uint32_t slots = own_slots(s) + c->tiers.staging_unreserved;
        slots = slots < most ? slots : most;
        *blocked |= slots == 0;
        d->n = choose(d, s, list % n_layers, slots);
        if (!d->n)
            continue;
        d->sequence = s->index;
        d->request_id = s->request_id;
        d->layer = list % n_layers;
        d->next = (list + 1) % n_lists;
        return true;
    }
    d->n = 0;
    return false;
}

static uint32_t batch_max(const struct drain *d)
{
    const struct core *c = d->core;
    uint32_t ring = shm_ring_payload_max(agent_ring(d->agent, ONE_DRIVE, RING_COMMAND));
    uint32_t items =
        (ring - (uint32_t)sizeof(struct record_fetch)) / (uint32_t)sizeof(struct fetch_item);
    uint32_t most = items < DRAIN_BATCH ? items : DRAIN_BATCH;
    return c->tiers.staging->free_count < most ? c->tiers.staging->free_count : most;
}

/* Beyond the sequence's own they are as if set aside, until they are given back. */
static int take_staging(struct drain *d)
{
    struct tiers *t = &d->core->tiers;
    uint32_t own = own_slots(&d->core->sequences[d->sequence]);
    if (shm_arena_take(t->staging, d->n, d->staging))
        return HILL_E_WOULD_BLOCK;
    d->borrowed = d->n > own ? d->n - own : 0;
    t->staging_unreserved -= d->borrowed;
    return 0;
}

static void give_staging(struct drain *d)
{
    shm_arena_give(d->core->tiers.staging, d->n, d->staging);
    d->core->tiers.staging_unreserved += d->borrowed;
    d->n = 0;
}

/* 1: a batch is out; 0: nothing can come up now; *blocked: for want of staging or ring. */
static int start_batch(struct drain *d, bool *blocked)
{
    uint32_t most = batch_max(d);
    if (!find_batch(d, most, blocked))
        return 0;
    *blocked = true;
    if (take_staging(d)) {
        d->n = 0;
        return 0;
    }
    d->fetched = false;
    if (push_fetch(d))
        return 1;
    give_staging(d);
    return 0;
}

/* What has been fetched becomes hot, if it is still where it was. */
static uint32_t come_up(struct drain *d, struct sequence *s)
{
    struct tiers *t = &d->core->tiers;
    uint32_t list = tiers_list(t, s->index, d->layer), n = 0;
    struct layer_state *l = &s->layers[d->layer];
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t position = d->positions[i];
        if (core_location(d->core, s, d->layer, position) != hkm_word(HKM_COLD, d->slots[i]) ||
            moves_bring_up(d->core, s, d->layer, position,
                           shm_arena_slot(t->staging, d->staging[i])) == COLD_NONE)
            continue;
        FAULT_POINT(cpu_scorer, drain, flipped);
        cold_map_disown(&t->cold, list, d->slots[i]);
        l->low = position < l->low ? position : l->low;
        d->slots[n++] = d->slots[i];
    }
    return n;
}

/* 0: no room in the ring now. */
static int finish_batch(struct drain *d)
{
    struct core *c = d->core;
    struct sequence *s = &c->sequences[d->sequence];
    /* first: without room in the ring nothing flips */
    uint32_t bytes = (uint32_t)(sizeof(struct record_release) + sizeof d->slots), n = 0;
    bool ours = is_drained(d, s) && s->request_id == d->request_id;
    if (ours && !d->status && !agent_has_room(d->agent, bytes))
        return 0;
    if (ours && d->status) {
        d->spoilt[s->index] = s->request_id;
        log_warn("request %llu: what it has on the drive stays there: reading entries of layer %u "
                 "failed (%s)",
                 (unsigned long long)s->request_id, d->layer, hill_strerror(d->status));
    } else if (ours) {
        n = come_up(d, s);
        if (n && agent_push_slots(d->agent, RECORD_RELEASE, s->index, d->layer, d->slots, n))
            core_fail(c, s, HILL_E_PEER_GONE, "telling the CSD agent what came up in layer %u",
                      d->layer);
        s->stats.promoted += n;
        d->done.moved += n;
    }
    give_staging(d);
    d->tag = 0;
    c->coming_up = false;
    return 1;
}

/* ---- the pump ----------------------------------------------------------------------------- */

void drain_begin(struct drain *d)
{
    d->core->drains = true;
    d->told = d->told_over = false;
}

/* Sequences get room, or have no use for the drive any more. */
static int prepare_all(struct drain *d)
{
    int moved = 0;
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++) {
        struct sequence *s = &d->core->sequences[i];
        if (!core_runs(s) || s->leaving)
            continue;
        prepare(d, s);
        if (stripes_held(d->core, s) && is_free_of(d->core, s))
            moved |= leave_drive(d, s);
    }
    return moved;
}

static void count_left(struct drain *d)
{
    const struct core *c = d->core;
    d->done.left = 0;
    d->done.over = agent_open(d->agent) == 0;
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        const struct sequence *s = &c->sequences[i];
        bool active = s->state == SEQUENCE_ACTIVE;
        d->done.left += active ? cold_entries(c, s) : 0;
        d->done.over &= s->state == SEQUENCE_FREE ||
                        (active && !s->cold_used && stripes_held(c, s) == 0 && !s->leaving);
    }
    d->done.moved_bytes = d->done.moved * c->tiers.hkm.entry_bytes;
    d->done.left_bytes = d->done.left * c->tiers.hkm.entry_bytes;
}

/* Not while something is on its way that may change what is told. */
static bool is_settled(const struct drain *d)
{
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++) {
        const struct sequence *s = &d->core->sequences[i];
        if (s->state != SEQUENCE_FREE && s->state != SEQUENCE_ACTIVE)
            return false;
        if (s->demotes || s->leaving)
            return false;
    }
    return agent_open(d->agent) == 0;
}

static void tell(struct drain *d)
{
    const struct scorer_hooks *hooks = &d->core->hooks;
    if ((d->told && d->told_over) || !is_settled(d))
        return;
    count_left(d);
    if (d->told && !d->done.over)
        return;
    d->told = true;
    d->told_over = d->done.over;
    if (hooks->drained)
        hooks->drained(hooks->context, &d->done);
}

int drain_pump(struct drain *d)
{
    bool blocked = false;
    if (d->agent->status)
        d->core->coming_up = false; /* its slots stay taken: the agent may still write to them */
    if (!d->core->drains || d->agent->status)
        return 0;
    if (d->n)
        return d->fetched ? finish_batch(d) : 0;
    int moved = prepare_all(d);
    if (start_batch(d, &blocked))
        return 1;
    if (!moved && !blocked)
        tell(d);
    return moved;
}
