/* cpu_scorer/carry.c - see carry.h. */
#include "cpu_scorer/carry.h"

#include "base/fault.h"
#include "base/log.h"
#include "cpu_scorer/holding.h"

/* ---- a FETCH ------------------------------------------------------------------------------ */

static void take_fetch(void *context, const void *record)
{
    struct carry *c = context;
    const struct record_completion *r = record;
    if (c->phase != CARRY_FETCHES || r->tag != c->tag || c->drive != c->agent->from) {
        if (c->queries.take)
            c->queries.take(c->queries.context, record);
        return;
    }
    agent_count(&c->core->sequences[c->sequence], r, 1, 1);
    c->phase = CARRY_LANDS;
    c->status = r->status ? r->status : r->count == c->n ? 0 : HILL_E_PROTOCOL;
}

void carry_init(struct carry *c, struct core *core, struct agent *agent,
                struct demotions *demotions)
{
    *c = (struct carry){
        .core = core,
        .agent = agent,
        .demotions = demotions,
        .queries = {agent->handlers[RECORD_FETCH].take, agent->handlers[RECORD_FETCH].context}};
    if (core->config.csd)
        agent_on(agent, RECORD_FETCH, take_fetch, c);
}

static int push_fetch(struct carry *c)
{
    void *payload;
    uint32_t bytes = (uint32_t)(sizeof(struct record_fetch) + c->n * sizeof(struct fetch_item));
    if (agent_reserve(c->agent, c->drive, bytes, &payload) != 1)
        return 0;
    struct record_fetch *r = payload;
    struct fetch_item *items = (struct fetch_item *)(r + 1);
    c->tag = agent_tag(c->agent);
    *r = (struct record_fetch){
        .header = core_header(c->core, c->sequence, 0, c->layer), .tag = c->tag, .n_entries = c->n};
    for (uint32_t i = 0; i < c->n; i++)
        items[i] =
            (struct fetch_item){agent_slot(c->agent, c->slots[i]), c->positions[i], c->staging[i],
                                shm_arena_generation(c->core->tiers.staging, c->staging[i])};
    agent_publish(c->agent, c->drive, RING_COMMAND, RECORD_FETCH, bytes);
    c->core->coming_up = true;
    FAULT_POINT(cpu_scorer, drain, fetched);
    return 1;
}

/* ---- staging ------------------------------------------------------------------------------ */

/* Staging slots that nobody lacks if the agent never answers: what the sequence, which fails then,
 * has set aside and holds nothing in, and what nobody has set aside. */
static uint32_t own_slots(const struct sequence *s)
{
    uint32_t held = holding_slots(s);
    return s->staging_max > held ? s->staging_max - held : 0;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t carry_room(const struct carry *c, const struct sequence *s, uint32_t drive, bool borrows)
{
    const struct tiers *t = &c->core->tiers;
    uint32_t slots = own_slots(s) + (borrows ? t->staging_unreserved : 0);
    slots = smaller(slots, t->staging->free_count);
    return smaller(smaller(agent_fetch_max(c->agent, drive), CARRY_BATCH), slots);
}

/* Beyond the sequence's own they are as if set aside, until they are given back. */
static int take_staging(struct carry *c)
{
    struct tiers *t = &c->core->tiers;
    uint32_t own = own_slots(&c->core->sequences[c->sequence]);
    if (shm_arena_take(t->staging, c->n, c->staging))
        return HILL_E_WOULD_BLOCK;
    c->borrowed = c->n > own ? c->n - own : 0;
    t->staging_unreserved -= c->borrowed;
    return 0;
}

static void give_staging(struct carry *c)
{
    shm_arena_give(c->core->tiers.staging, c->n, c->staging);
    c->core->tiers.staging_unreserved += c->borrowed;
}

/* ---- a batch ------------------------------------------------------------------------------ */

/* The newest cold positions of a layer on this drive below `end`, at most `most`. */
static void choose_below(struct carry *c, const struct sequence *s, uint32_t end, uint32_t most)
{
    c->n = 0;
    for (uint32_t p = end; p-- > 0 && c->n < most;) {
        uint32_t word = core_location(c->core, s, c->layer, p);
        if (hkm_tag(word) != HKM_COLD || agent_drive(c->agent, hkm_slot(word)) != c->drive)
            continue;
        c->positions[c->n] = p;
        c->slots[c->n++] = hkm_slot(word);
    }
}

/* The search goes on where the one before ended, so that a drive is emptied in one pass; what it
 * has passed over, as what could not land, comes in another one. */
static void choose(struct carry *c, const struct sequence *s, uint32_t most)
{
    const struct layer_state *l = &s->layers[c->layer];
    choose_below(c, s, smaller(l->cold_end, l->appended), most);
    if (c->n == 0)
        choose_below(c, s, l->appended, most);
}

int carry_start(struct carry *c, struct sequence *s, uint32_t layer, uint32_t drive, bool up,
                uint32_t n)
{
    c->sequence = s->index;
    c->request_id = s->request_id;
    c->layer = layer;
    c->drive = drive;
    c->up = up;
    c->landed = 0;
    c->status = 0;
    if (!up && c->demotions->n_moves >= MOVES_OPEN_MAX)
        return 0; /* queries would wait for writes: a batch that is fetched goes out at once */
    choose(c, s, n);
    if (c->n == 0 || take_staging(c))
        return 0;
    if (!push_fetch(c)) {
        give_staging(c);
        return 0;
    }
    s->layers[layer].cold_end = c->positions[c->n - 1];
    if (!up)
        s->layers[layer].moving = c->n;
    c->phase = CARRY_FETCHES;
    return 1;
}

/* Where they were they still are: up they come, and the drive is told. 0: no room in the ring. */
static int land_up(struct carry *c, struct sequence *s)
{
    struct core *core = c->core;
    struct layer_state *l = &s->layers[c->layer];
    uint32_t list = tiers_list(&core->tiers, s->index, c->layer), came[CARRY_BATCH], n = 0;
    /* first: without room in the ring nothing flips */
    if (!agent_has_room(c->agent, (uint32_t)(sizeof(struct record_release) + sizeof came)))
        return 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t position = c->positions[i];
        if (core_location(core, s, c->layer, position) != hkm_word(HKM_COLD, c->slots[i]) ||
            moves_bring_up(core, s, c->layer, position,
                           shm_arena_slot(core->tiers.staging, c->staging[i])) == COLD_NONE)
            continue;
        FAULT_POINT(cpu_scorer, drain, flipped);
        cold_map_disown(&core->tiers.cold, list, c->slots[i]);
        l->low = position < l->low ? position : l->low;
        came[n++] = c->slots[i];
    }
    if (n && agent_push_slots(c->agent, RECORD_RELEASE, s->index, c->layer, came, n))
        core_fail(core, s, HILL_E_PEER_GONE, "telling the CSD agent what came up in layer %u",
                  c->layer);
    s->stats.promoted += n;
    c->landed = n;
    return 1;
}

/* Out to the drives that they are dealt to. 0: no room in a ring now. */
static int land_over(struct carry *c, struct sequence *s)
{
    const struct cold_map *cold = &c->core->tiers.cold;
    while (c->landed < c->n) {
        uint32_t left = c->n - c->landed, drive;
        if (cold_map_deal(cold, tiers_list(&c->core->tiers, s->index, c->layer), left, true,
                          &drive) == 0 ||
            drive == c->drive) {
            c->status = HILL_E_NOSPACE; /* new entries have taken the room */
            s->layers[c->layer].moving -= left;
            return 1;
        }
        uint32_t n = demote_staged(c->demotions, s, c->layer, c->positions + c->landed,
                                   c->staging + c->landed, left);
        if (n == 0)
            return 0;
        c->landed += n;
    }
    return 1;
}

static void say_stays(const struct carry *c, const struct sequence *s)
{
    log_warn("request %llu: what it has on the drive stays there: reading entries of layer %u "
             "failed (%s)",
             (unsigned long long)s->identity, c->layer, hill_strerror(c->status));
}

static int land(struct carry *c)
{
    struct sequence *s = &c->core->sequences[c->sequence];
    bool ours = core_runs(s) && !s->leaving && s->request_id == c->request_id;
    if (ours && c->status) {
        say_stays(c, s);
        s->layers[c->layer].moving -= c->up ? 0 : c->n;
    } else if (ours && !(c->up ? land_up(c, s) : land_over(c, s))) {
        return 0;
    }
    give_staging(c);
    c->core->coming_up = false;
    c->phase = CARRY_OVER;
    return 1;
}

int carry_pump(struct carry *c)
{
    if (c->agent->status)
        c->core->coming_up = false; /* its slots stay taken: the agent may still write to them */
    if (c->agent->status || c->phase != CARRY_LANDS)
        return 0;
    return land(c);
}

void carry_end(struct carry *c)
{
    c->phase = CARRY_NONE;
}
