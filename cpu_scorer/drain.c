/* cpu_scorer/drain.c - see drain.h. */
#include "cpu_scorer/drain.h"

#include <string.h>

#include "cpu_scorer/adoption.h"

void drain_init(struct drain *d, struct core *core, struct agent *agent, struct carry *carry)
{
    *d = (struct drain){.core = core, .agent = agent, .carry = carry};
}

static bool is_one_of_several(const struct drain *d)
{
    return d->core->tiers.cold.n_drives > 1;
}

/* ---- a sequence --------------------------------------------------------------------------- */

static uint32_t stripes_held(const struct drain *d, const struct sequence *s)
{
    return tiers_stripes(&d->core->tiers, s->index, d->drive);
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

/* What is cold comes up: all hot blocks are for entries, whoever has lent them. */
static void take_lent(struct core *c)
{
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        struct sequence *s = &c->sequences[i];
        if (cached_digests_lent(&c->tiers.digests, i) == 0)
            continue;
        tiers_lend(&c->tiers, i, 0);
        s->share.lent = 0;
        if (core_runs(s))
            adoption_note(c, s);
    }
}

/* It is placed by recency from now on, with as many hot blocks as there are for it. */
static void prepare(struct drain *d, struct sequence *s)
{
    struct core *c = d->core;
    uint32_t all = kv_hot_blocks(s->max_tokens), now = tiers_blocks(&c->tiers, s->index);
    if (all > now)
        take_lent(c);
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
    if (is_one_of_several(d)) /* what of its prompt is to come finds no room on the others */
        s->cold_from = s->cold_to = 0;
    s->moves_wanted = true;
    adoption_note(c, s);
}

static uint32_t cold_entries(const struct drain *d, const struct sequence *s)
{
    const struct tiers *t = &d->core->tiers;
    uint32_t sum = 0;
    for (uint32_t layer = 0; layer < d->core->config.geometry.n_layers; layer++)
        sum += cold_map_on(&t->cold, tiers_list(t, s->index, layer), d->drive)->committed;
    return sum;
}

/* Nothing of it is on the drive, nor will be: what of its prompt was to go down at once has. */
static bool is_free_of(const struct drain *d, const struct sequence *s)
{
    if (cold_entries(d, s) || demotions_to(d->carry->demotions, s, d->drive))
        return false;
    for (uint32_t layer = 0; layer < d->core->config.geometry.n_layers; layer++)
        if (!is_one_of_several(d) && s->layers[layer].appended < s->cold_to)
            return false;
    return is_one_of_several(d) || s->share.limit >= s->max_tokens;
}

/* Its stripes go back, at the agent, too. [I3] is kept: nobody is given stripes any more. */
static int leave_drive(struct drain *d, struct sequence *s)
{
    struct tiers *t = &d->core->tiers;
    if (s->cold_used && agent_trim_drive(d->agent, s, d->drive))
        return 0;
    s->cold_used = s->cold_used && is_one_of_several(d);
    for (uint32_t layer = 0; layer < d->core->config.geometry.n_layers; layer++)
        cold_map_release(&t->cold, tiers_part(t, s->index, layer, d->drive));
    adoption_note(d->core, s);
    return 1;
}

/* ---- places, of one of several ------------------------------------------------------------ */

/* Where each sequence's entries go, and what is left for the next one. */
struct places {
    uint32_t free[LAYOUT_DRIVES_MAX];                      /* stripes of a layer */
    uint32_t blocks;                                       /* of a layer */
    uint32_t stripes[KV_MAX_SEQUENCES][LAYOUT_DRIVES_MAX]; /* of a layer, then */
};

/* The other drive with something free that lacks most of its share of `all` stripes. */
static uint32_t next_drive(const struct drain *d, const uint32_t *stripes, const uint32_t *left,
                           uint32_t all)
{
    const struct cold_map *cold = &d->core->tiers.cold;
    uint32_t found = COLD_NONE;
    double most = 0;
    for (uint32_t e = 0; e < cold->n_drives; e++) {
        double lacks = cold->drives[e].share * all - stripes[e];
        if (e == d->drive || left[e] == 0 || (found != COLD_NONE && lacks <= most))
            continue;
        found = e;
        most = lacks;
    }
    return found;
}

/* As many stripes on the other drives as it has on this one, beside those that it has there. */
static bool find_stripes(const struct drain *d, const struct sequence *s, struct places *p)
{
    uint32_t left[LAYOUT_DRIVES_MAX], *stripes = p->stripes[s->index], all = 0, drive;
    memcpy(left, p->free, sizeof left);
    for (uint32_t e = 0; e < d->core->tiers.cold.n_drives; e++) {
        stripes[e] = e == d->drive ? 0 : tiers_stripes(&d->core->tiers, s->index, e);
        all += tiers_stripes(&d->core->tiers, s->index, e);
    }
    for (uint32_t i = 0; i < stripes_held(d, s); i++) {
        if ((drive = next_drive(d, stripes, left, all)) == COLD_NONE)
            return false;
        stripes[drive]++;
        left[drive]--;
    }
    memcpy(p->free, left, sizeof left);
    return true;
}

/* Hot blocks for all of its tokens. */
static bool find_blocks(const struct drain *d, const struct sequence *s, struct places *p)
{
    uint32_t all = kv_hot_blocks(s->max_tokens), now = tiers_blocks(&d->core->tiers, s->index);
    uint32_t more = all > now ? all - now : 0;
    if (more > p->blocks)
        return false;
    p->blocks -= more;
    return true;
}

static bool has_place(struct drain *d, const struct sequence *s, struct places *p)
{
    d->up[s->index] = !find_stripes(d, s, p);
    return !d->up[s->index] || find_blocks(d, s, p);
}

static void go_over(struct drain *d, struct sequence *s, const uint32_t *stripes)
{
    struct tiers *t = &d->core->tiers;
    for (uint32_t layer = 0; layer < d->core->config.geometry.n_layers; layer++)
        for (uint32_t e = 0; e < t->cold.n_drives; e++)
            if (e != d->drive)
                cold_map_reserve(&t->cold, tiers_part(t, s->index, layer, e),
                                 stripes[e]); /* counted */
    moves_leave_drives(d->core, s);
    adoption_note(d->core, s);
}

static bool is_on_drive(const struct drain *d, const struct sequence *s)
{
    return s->state == SEQUENCE_ACTIVE && stripes_held(d, s) > 0;
}

static bool rests(const struct drain *d, uint32_t i)
{
    return d->core->sequences[i].state == SEQUENCE_RESTING;
}

/* What is free, what is lent, and what those that rest will give back. */
static void find_room(const struct drain *d, struct places *p)
{
    const struct tiers *t = &d->core->tiers;
    uint32_t n_layers = d->core->config.geometry.n_layers, n = d->core->config.n_sequences;
    uint32_t blocks = t->hkm.n_unreserved;
    for (uint32_t i = 0; i < n; i++)
        blocks +=
            cached_digests_lent(&t->digests, i) + (rests(d, i) ? tiers_blocks(t, i) * n_layers : 0);
    p->blocks = blocks / n_layers;
    for (uint32_t e = 0; e < t->cold.n_drives; e++) {
        if (!cold_map_takes(&t->cold, e))
            continue;
        p->free[e] = t->cold.drives[e].n_free / n_layers;
        for (uint32_t i = 0; i < n; i++)
            p->free[e] += rests(d, i) ? tiers_stripes(t, i, e) : 0;
    }
}

/* False: some have no place, `left` entries. Where something rests it goes first (`clears`). */
static bool plan_places(struct drain *d)
{
    const struct core *c = d->core;
    struct places p = {.blocks = 0};
    find_room(d, &p);
    d->done.left = 0;
    d->clears = false;
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        d->clears |= rests(d, i);
        if (is_on_drive(d, &c->sequences[i]) && !has_place(d, &c->sequences[i], &p))
            d->done.left += cold_entries(d, &c->sequences[i]);
    }
    d->clears &= d->done.left == 0;
    for (uint32_t i = 0; d->done.left == 0 && !d->clears && i < c->config.n_sequences; i++)
        if (is_on_drive(d, &c->sequences[i]) && !d->up[i])
            go_over(d, &c->sequences[i], p.stripes[i]);
    return d->done.left == 0;
}

/* What an earlier epoch has left, what is being taken up and what ends is somebody's or gone
 * first. */
static bool may_plan(const struct drain *d)
{
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++)
        switch (d->core->sequences[i].state) {
        case SEQUENCE_FREE:
        case SEQUENCE_ACTIVE:
            break;
        case SEQUENCE_RESTING:
            if (!d->core->sequences[i].begin_held)
                break;
            return false;
        default:
            return false;
        }
    return true;
}

/* ---- a batch ------------------------------------------------------------------------------ */

/* How many more hot tokens the layer may have. */
static uint32_t room_of(const struct core *c, const struct sequence *s, uint32_t layer)
{
    uint32_t hot = hkm_hot_tokens(&c->tiers.hkm, s->index, layer);
    uint32_t target = hot_share_target(&s->share, s->layers[layer].appended);
    return target > hot ? target - hot : 0;
}

static bool goes_up(const struct drain *d, const struct sequence *s)
{
    return !is_one_of_several(d) || d->up[s->index];
}

static bool is_drained(const struct drain *d, const struct sequence *s)
{
    return core_runs(s) && !s->leaving && d->spoilt[s->index] != s->request_id;
}

/* Entries of the layer that can be carried away now. */
static uint32_t wanted_of(const struct drain *d, const struct sequence *s, uint32_t layer)
{
    const struct tiers *t = &d->core->tiers;
    uint32_t there = cold_map_on(&t->cold, tiers_list(t, s->index, layer), d->drive)->committed;
    uint32_t room = goes_up(d, s) ? room_of(d->core, s, layer) : CARRY_BATCH;
    if (!is_drained(d, s) || s->layers[layer].uncommitted || s->layers[layer].moving)
        return 0;
    return there < room ? there : room;
}

/* 1: a batch is out; 0: nothing can be carried now; *blocked: for want of staging or ring. */
static int start_batch(struct drain *d, bool *blocked)
{
    const struct core *c = d->core;
    uint32_t n_layers = c->config.geometry.n_layers, n_lists = c->config.n_sequences * n_layers;
    for (uint32_t i = 0; i < n_lists; i++) {
        uint32_t list = (d->next + i) % n_lists;
        struct sequence *s = &c->sequences[list / n_layers];
        uint32_t n = wanted_of(d, s, list % n_layers), room;
        if (n == 0)
            continue;
        room = carry_room(d->carry, s, d->drive, true);
        *blocked = true;
        if (!carry_start(d->carry, s, list % n_layers, d->drive, goes_up(d, s),
                         n < room ? n : room))
            continue;
        d->next = (list + 1) % n_lists;
        d->carries = true;
        return 1;
    }
    return 0;
}

static int end_batch(struct drain *d)
{
    const struct carry *b = d->carry;
    d->carries = false;
    d->done.moved += b->landed;
    if (b->status)
        d->spoilt[b->sequence] = b->request_id;
    carry_end(d->carry);
    return 1;
}

/* ---- what is told ------------------------------------------------------------------------- */

/* Sequences get room, or have no use for the drive any more. */
static int prepare_all(struct drain *d)
{
    int moved = 0;
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++) {
        struct sequence *s = &d->core->sequences[i];
        if (!core_runs(s) || s->leaving)
            continue;
        if (goes_up(d, s) && (!is_one_of_several(d) || stripes_held(d, s)))
            prepare(d, s);
        if (stripes_held(d, s) && is_free_of(d, s))
            moved |= leave_drive(d, s);
    }
    return moved;
}

static void count_left(struct drain *d)
{
    const struct core *c = d->core;
    bool several = is_one_of_several(d);
    d->done.left = 0;
    d->done.over = d->agent->lines[d->drive].commands_open == 0;
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        const struct sequence *s = &c->sequences[i];
        bool active = s->state == SEQUENCE_ACTIVE;
        d->done.left += active ? cold_entries(d, s) : 0;
        d->done.over &=
            s->state == SEQUENCE_FREE || (active && (several || !s->cold_used) &&
                                          stripes_held(d, s) == 0 && (several || !s->leaving));
    }
}

/* May what the sequence has on one of several still change? Those that have failed or ended are
 * gone soon. */
static bool is_under_way(const struct drain *d, const struct sequence *s)
{
    return stripes_held(d, s) &&
           (s->status || s->leaving || demotions_to(d->carry->demotions, s, d->drive) ||
            (is_drained(d, s) && cold_entries(d, s)));
}

/* Not while something is on its way that may change what is told. */
static bool is_settled(const struct drain *d)
{
    for (uint32_t i = 0; i < d->core->config.n_sequences; i++) {
        const struct sequence *s = &d->core->sequences[i];
        if (s->state != SEQUENCE_FREE && s->state != SEQUENCE_ACTIVE)
            return false;
        if (is_one_of_several(d) ? is_under_way(d, s) : s->demotes || s->leaving)
            return false;
    }
    return d->agent->lines[d->drive].commands_open == 0;
}

static void say(struct drain *d)
{
    const struct scorer_hooks *hooks = &d->core->hooks;
    d->done.moved_bytes = d->done.moved * d->core->tiers.hkm.entry_bytes;
    d->done.left_bytes = d->done.left * d->core->tiers.hkm.entry_bytes;
    if (hooks->drained)
        hooks->drained(hooks->context, &d->done);
}

static void tell(struct drain *d)
{
    if ((d->told && d->told_over) || !is_settled(d))
        return;
    count_left(d);
    if (d->told && !d->done.over)
        return;
    d->told = true;
    d->told_over = d->done.over;
    d->core->drained = d->done.over;
    say(d);
}

/* One of several: nobody uses it any more, or it takes entries again. */
static void end_of_several(struct drain *d, bool over)
{
    struct core *c = d->core;
    d->on = false;
    c->drains &= over; /* else the last one of several is gone */
    c->drained = c->drains;
    d->done.over = over;
    if (over) {
        agent_leave(d->agent, d->drive);
        cold_map_gone(&c->tiers.cold, d->drive);
    } else {
        cold_map_leave(&c->tiers.cold, d->drive, false);
    }
    say(d);
}

/* ---- the pump ----------------------------------------------------------------------------- */

void drain_begin(struct drain *d, uint32_t drive)
{
    struct core *c = d->core;
    bool others = false;
    d->drive = drive;
    d->on = true;
    d->planned = d->clears = d->told = d->told_over = false;
    for (uint32_t i = 0; i < c->config.n_sequences; i++)
        for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
            c->sequences[i].layers[layer].cold_end = UINT32_MAX;
    if (is_one_of_several(d)) {
        d->done = (struct scorer_drained){0};
        memset(d->spoilt, 0, sizeof d->spoilt);
        cold_map_leave(&c->tiers.cold, drive, true);
    }
    for (uint32_t e = 0; e < c->tiers.cold.n_drives; e++)
        others |= e != drive && cold_map_takes(&c->tiers.cold, e);
    c->drains = !others;
    c->drained = false;
}

static int pump_several(struct drain *d)
{
    bool blocked = false;
    if (!d->planned && !may_plan(d))
        return 0;
    if (!d->planned && !plan_places(d)) {
        end_of_several(d, false);
        return 1;
    }
    if (d->clears)
        return 1;
    d->planned = true;
    int moved = prepare_all(d);
    if (start_batch(d, &blocked))
        return 1;
    if (moved || blocked || !is_settled(d))
        return moved;
    count_left(d);
    if (d->done.over || d->done.left)
        end_of_several(d, d->done.over);
    return moved;
}

int drain_pump(struct drain *d)
{
    bool blocked = false;
    if (!d->on || d->agent->status)
        return 0;
    if (d->carries)
        return d->carry->phase == CARRY_OVER ? end_batch(d) : 0;
    if (d->carry->phase != CARRY_NONE)
        return 0;
    if (is_one_of_several(d))
        return pump_several(d);
    int moved = prepare_all(d);
    if (start_batch(d, &blocked))
        return 1;
    if (!moved && !blocked)
        tell(d);
    return moved;
}
