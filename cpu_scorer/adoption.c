/* cpu_scorer/adoption.c - see adoption.h. */
#include "cpu_scorer/adoption.h"

#include <string.h>

#include "base/log.h"

/* ---- what is noted ------------------------------------------------------------------------ */

/* What is lent is for entries again in a later epoch, whose scorer has no digest of what is cold.
 */
struct kept_plan adoption_plan(const struct sequence *s, uint32_t blocks,
                               const uint32_t stripes[LAYOUT_DRIVES_MAX])
{
    uint32_t lent = hot_share_lent(&s->share, blocks);
    uint32_t limit = lent ? (blocks + lent - 1) * KV_HOT_BLOCK_TOKENS : s->share.limit;
    struct kept_plan plan = {.settings = s->settings,
                             .beta = s->share.beta,
                             .sinks = s->share.sinks,
                             .window = s->share.window,
                             .limit = limit,
                             .adapts = s->share.adapts,
                             .copies = s->share.copies,
                             .blocks = blocks + lent,
                             .prompt_tokens = s->prompt_tokens,
                             .max_tokens = s->max_tokens,
                             .past_tokens = s->past_tokens};
    memcpy(plan.stripes, stripes, sizeof plan.stripes);
    return plan;
}

void adoption_note(const struct core *c, struct sequence *s)
{
    uint32_t stripes[LAYOUT_DRIVES_MAX] = {0};
    for (uint32_t d = 0; d < c->tiers.cold.n_drives; d++)
        stripes[d] = tiers_stripes(&c->tiers, s->index, d);
    const struct kept_plan plan = adoption_plan(s, tiers_blocks(&c->tiers, s->index), stripes);
    kept_replan(tiers_kept(&c->tiers, s->index), &plan);
}

static void take_plan(const struct core *c, struct sequence *s, const struct kept_plan *p)
{
    s->settings = p->settings;
    s->prompt_tokens = p->prompt_tokens;
    s->max_tokens = p->max_tokens;
    s->share =
        (struct hot_share){.beta = p->adapts && c->config.beta > 0 ? c->config.beta : p->beta,
                           .sinks = p->sinks,
                           .window = p->window,
                           .limit = p->limit,
                           .adapts = p->adapts,
                           .copies = p->copies};
}

/* ---- what an earlier process has left ------------------------------------------------------- */

/* The slot has the check of the position's entry, and is nobody else's. */
static bool hold_one(struct core *c, uint32_t sequence, uint32_t layer, uint32_t position,
                     uint32_t slot)
{
    struct tiers *t = &c->tiers;
    if (slot >= t->hkm.header->n_cold_slots)
        return false;
    struct hkm_check found = t->hkm.cold_checks[slot];
    struct hkm_check is = hkm_check_of(&t->hkm, sequence, layer, position, found.sum);
    return found.bound == is.bound &&
           cold_map_hold(&t->cold, tiers_list(t, sequence, layer), slot, position) == 0;
}

/* The cold slots that the words name. */
static int hold_layer(struct core *c, uint32_t sequence, uint32_t layer, uint32_t n_tokens,
                      struct damage *damage)
{
    struct hkm *h = &c->tiers.hkm;
    for (uint32_t p = 0; p < n_tokens; p++) {
        uint32_t word = hkm_location(h, sequence, layer, p);
        if (hkm_tag(word) != HKM_COLD || hold_one(c, sequence, layer, p, hkm_slot(word)))
            continue;
        if (!damage || !damage_add(damage, layer, p))
            return HILL_E_DAMAGED;
        hkm_drop(h, sequence, layer, p);
    }
    return 0;
}

/* Take one layer's first tokens as they are. */
static int take_layer(struct core *c, struct sequence *s, uint32_t layer, uint32_t n_tokens,
                      struct damage *damage, struct hill_why *why)
{
    int rc = hkm_recover(&c->tiers.hkm, s->index, layer, n_tokens, damage, why);
    if (rc == 0 && (rc = hold_layer(c, s->index, layer, n_tokens, damage)) != 0)
        hill_fail(why, rc, "a cold slot of layer %u is not what it was", layer);
    return rc;
}

/* All layers up to their newest whole step; of a prompt that is not whole, what is there without a
 * gap, layer after layer, a session's entries before the others: entries that follow a gap are on
 * no side's books [I25]. A few damaged entries of a whole step are noted, to be made again. */
static int take_layers(struct core *c, struct sequence *s, const struct kept_plan *plan,
                       uint32_t step_tokens, struct hill_why *why)
{
    bool mends = c->mends && step_tokens && !plan->past_tokens; /* a session has its own file */
    struct damage *damage = mends ? &s->damage : NULL;
    uint32_t n = step_tokens, all = 0;
    uint32_t whole = plan->past_tokens ? plan->past_tokens : plan->prompt_tokens;
    int rc = 0;
    bool gap = false;
    for (uint32_t layer = 0; rc == 0 && layer < c->config.geometry.n_layers; layer++) {
        if (!step_tokens)
            n = gap ? 0 : hkm_placed(&c->tiers.hkm, s->index, layer, plan->prompt_tokens);
        gap |= n < whole;
        all += n;
        rc = take_layer(c, s, layer, n, damage, why);
    }
    return rc || all ? rc : hill_fail(why, HILL_E_INVALID, "there is nothing of it");
}

static int look_at(struct core *c, struct sequence *s, struct hill_why *why)
{
    struct tiers *t = &c->tiers;
    const struct kept *k = tiers_kept(t, s->index);
    struct kept_plan plan;
    uint64_t identity = kept_read(k, &plan);
    const struct kept_step *newest = kept_newest(k, 1, c->config.ctx_tokens);
    uint32_t step_tokens = newest ? newest->n_tokens : 0;
    if (!identity || !c->config.keeps)
        return hill_fail(why, HILL_E_INVALID, "nothing of it is kept");
    t->hkm.identities[s->index] = identity;
    s->damage.n = 0;
    if (plan.max_tokens > c->config.ctx_tokens || plan.prompt_tokens > plan.max_tokens ||
        step_tokens > plan.max_tokens || hkm_reserve(&t->hkm, s->index, plan.blocks))
        return hill_fail(why, HILL_E_DAMAGED, "what was set aside for it cannot be");
    int rc = take_layers(c, s, &plan, step_tokens, why);
    if (rc == 0)
        take_plan(c, s, &plan);
    return rc;
}

static bool has_stripes(const struct kept_plan *p)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        sum += p->stripes[d];
    return sum > 0;
}

/* Stripes of each layer that a sequence may have on each drive: what no sequence of before has set
 * aside beside its own, no more than its part of the pool. */
static void most_stripes(const struct core *c, const struct kept_plan *p,
                         uint32_t most[LAYOUT_DRIVES_MAX])
{
    const struct cold_map *cold = &c->tiers.cold;
    uint32_t layers = c->config.geometry.n_layers, taken[LAYOUT_DRIVES_MAX] = {0};
    struct kept_plan other;
    for (uint32_t i = 0; i < c->config.n_sequences; i++)
        if (c->sequences[i].state == SEQUENCE_DORMANT &&
            kept_read(tiers_kept(&c->tiers, i), &other))
            for (uint32_t d = 0; d < cold->n_drives; d++)
                taken[d] += other.stripes[d];
    for (uint32_t d = 0; d < cold->n_drives; d++) {
        uint32_t all = cold->drives[d].n_stripes / layers, share = all / c->config.n_sequences;
        uint32_t there = p->stripes[d] + (all > taken[d] ? all - taken[d] : 0);
        most[d] = share > p->stripes[d] ? share : p->stripes[d];
        most[d] = there < most[d] ? there : most[d];
    }
}

/* Stripes of a layer for so many tokens, by the drives' shares. False: there are not as many. */
static bool choose_stripes(const struct core *c, const uint32_t most[LAYOUT_DRIVES_MAX],
                           uint32_t tokens, uint32_t stripes[LAYOUT_DRIVES_MAX])
{
    const struct cold_map *cold = &c->tiers.cold;
    struct hot_share_room room = {.n_drives = cold->n_drives, .stripe_slots = cold->stripe_slots};
    for (uint32_t d = 0; d < cold->n_drives; d++)
        room.drives[d].share = cold->drives[d].share;
    return hot_share_stripes(&room, most, tokens, stripes);
}

/* A drive is there, and none was when the sequence began, or it was to be left: room on it, for
 * copies, too, if there is that much. Its hot blocks stay its own, so it can go without. */
static void give_drive(const struct core *c, struct sequence *s, struct kept_plan *p)
{
    uint32_t most[LAYOUT_DRIVES_MAX], stripes[LAYOUT_DRIVES_MAX] = {0};
    most_stripes(c, p, most);
    s->share.beta = c->config.beta;
    uint32_t cold_tokens = s->max_tokens - hot_share_target(&s->share, s->max_tokens);
    bool copies = moves_wants_placement(c, s) && choose_stripes(c, most, s->max_tokens, stripes);
    if (!copies && !choose_stripes(c, most, cold_tokens, stripes))
        return;
    p->beta = c->config.beta;
    p->copies = copies;
    p->adapts = copies && c->config.adapts;
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        p->stripes[d] = stripes[d] > p->stripes[d] ? stripes[d] : p->stripes[d];
}

/* A drive has come beside others: its part of the stripes that the sequence has, if it has as many
 * to spare; what lies there follows (share_out.h). */
static void give_another(const struct core *c, struct kept_plan *p)
{
    const struct cold_map *cold = &c->tiers.cold;
    uint32_t most[LAYOUT_DRIVES_MAX], stripes[LAYOUT_DRIVES_MAX] = {0};
    uint32_t slots = 0; /* no more than the pools have */
    most_stripes(c, p, most);
    for (uint32_t d = 0; d < cold->n_drives; d++)
        slots += p->stripes[d] * cold->stripe_slots;
    if (!choose_stripes(c, most, slots, stripes))
        return;
    for (uint32_t d = 0; d < cold->n_drives; d++)
        if (p->stripes[d] == 0)
            p->stripes[d] = stripes[d];
}

/* Drives come and go: what was set aside for it is made what this epoch has. */
static void replan(const struct core *c, struct sequence *s, struct kept_plan *p)
{
    const struct kept_plan before = *p;
    if (core_has_drive(c) && c->config.beta > 0 && !(p->beta > 0)) {
        give_drive(c, s, p);
    } else if (core_has_drive(c) && c->tiers.cold.n_drives > 1) {
        give_another(c, p);
    } else if (!c->config.csd && p->limit >= p->max_tokens) {
        p->beta = 0;
        p->copies = p->adapts = 0;
        memset(p->stripes, 0, sizeof p->stripes);
    }
    if (memcmp(&before, p, sizeof before) != 0)
        kept_replan(tiers_kept(&c->tiers, s->index), p);
    take_plan(c, s, p);
}

/* The stripes that it has set aside beyond those that hold something: when all have theirs. */
static int settle(struct core *c, struct sequence *s, struct hill_why *why)
{
    struct kept_plan plan;
    kept_read(tiers_kept(&c->tiers, s->index), &plan);
    replan(c, s, &plan);
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        for (uint32_t d = 0; d < c->tiers.cold.n_drives; d++)
            if (cold_map_recovered(&c->tiers.cold, tiers_part(&c->tiers, s->index, layer, d),
                                   plan.stripes[d]))
                return hill_fail(why, HILL_E_NOSPACE, "the cold pool has no room for it");
    return 0;
}

static void free_left(struct core *c, struct sequence *s, bool was_there,
                      const struct hill_why *why)
{
    if (was_there)
        log_info("sequence %u of an earlier epoch is not kept: %s", s->index, why->text);
    kept_end(tiers_kept(&c->tiers, s->index));
    tiers_release_near(&c->tiers, s->index);
    tiers_release_cold(&c->tiers, s->index);
    s->state = SEQUENCE_FREE;
}

void adoption_find(struct core *c)
{
    struct hill_why why = {""};
    uint32_t n = c->config.n_sequences;
    for (uint32_t i = 0; c->tiers.adopted && i < n; i++) {
        struct sequence *s = &c->sequences[i];
        struct kept_plan plan;
        bool was_there = kept_read(tiers_kept(&c->tiers, i), &plan) != 0;
        s->state = SEQUENCE_DORMANT;
        if (look_at(c, s, &why))
            free_left(c, s, was_there, &why);
    }
    for (uint32_t i = 0; c->tiers.adopted && i < n; i++) {
        struct sequence *s = &c->sequences[i];
        if (s->state == SEQUENCE_DORMANT && settle(c, s, &why))
            free_left(c, s, true, &why);
    }
}

/* ---- taken up ------------------------------------------------------------------------------- */

bool adoption_fits(const struct core *c, const struct sequence *s, const struct record_seq_begin *r,
                   const struct kept_step **step)
{
    const struct kept *k = tiers_kept(&c->tiers, s->index);
    struct kept_plan plan;
    const struct kv_selection_settings asked = record_selection_settings(r);
    bool same = s->state == SEQUENCE_DORMANT && r->adopt_max &&
                r->identity == kept_read(k, &plan) && r->prompt_tokens == plan.prompt_tokens &&
                r->max_tokens == plan.max_tokens &&
                memcmp(&asked, &plan.settings, sizeof asked) == 0;
    same &= r->past_tokens == plan.past_tokens;
    /* a step before a damaged decoded token needs none of it */
    uint32_t decoded = damage_first(&s->damage, plan.prompt_tokens);
    uint32_t most = decoded < r->adopt_max ? decoded : r->adopt_max;
    *step = same && r->adopt_min ? kept_newest(k, r->adopt_min, most) : NULL;
    if (same && r->adopt_min && !*step)
        *step = kept_newest(k, r->adopt_min, r->adopt_max);
    /* what of a prompt was to go to a drive that is being left has no place */
    bool prompt = !s->damage.n && !r->adopt_min && r->adopt_max <= plan.prompt_tokens;
    return same && (*step || (prompt && (core_has_drive(c) || !has_stripes(&plan))));
}

/* Tokens from `to` on are nowhere any more: first no step says that they are there. */
static void cut(struct core *c, struct sequence *s, uint32_t to)
{
    struct tiers *t = &c->tiers;
    kept_cut(tiers_kept(t, s->index), to);
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        for (uint32_t p = to; p < s->max_tokens; p++) {
            uint32_t word = core_location(c, s, layer, p);
            if (hkm_tag(word) == HKM_NOWHERE && damage_has(&s->damage, layer, p))
                continue;
            if (hkm_tag(word) == HKM_NOWHERE)
                break;
            hkm_drop(&t->hkm, s->index, layer, p);
            if (hkm_tag(word) == HKM_COLD)
                cold_map_drop(&t->cold, tiers_list(t, s->index, layer), hkm_slot(word));
        }
    damage_cut(&s->damage, to);
}

/* On goes the prompt, as it was to be placed when it began. */
static void begin_prompt(struct core *c, struct sequence *s, const struct kept_plan *plan)
{
    s->share.beta = plan->beta;
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        s->layers[layer].appended = hkm_placed(&c->tiers.hkm, s->index, layer, s->prompt_tokens);
    hot_share_cold_range(&s->share, s->prompt_tokens, &s->cold_from, &s->cold_to);
}

/* As at the end of a step, but for what follows a damaged decoded token: selections are not kept,
 * so that the steps from there on are made again. The hash is that of the step all the same, since
 * they select what they selected. */
static void cut_to_step(struct core *c, struct sequence *s)
{
    uint32_t decoded = damage_first(&s->damage, s->prompt_tokens), to = s->adoption.n_tokens;
    if (decoded < to) {
        to = decoded;
        s->replay_to = s->adoption.step;
    }
    cut(c, s, to);
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
        s->layers[layer].appended = to;
}

static int begin_step(struct sequence *s, const struct kept_step *from)
{
    s->cold_from = s->cold_to = 0;
    s->hashed_step = from->step;
    s->moves_wanted = true;
    return hash_state_load(s->hash, &from->selection_hash) ? 0 : HILL_E_DAMAGED;
}

int adoption_begin(struct core *c, struct sequence *s, const struct kept_step *step, uint32_t most)
{
    const struct kept_step from =
        step ? *step : (struct kept_step){0}; /* cut() forgets newer ones */
    struct kept_plan plan;
    int rc = 0;
    kept_read(tiers_kept(&c->tiers, s->index), &plan);
    take_plan(c, s, &plan);
    s->adoption = (struct adoption){
        .stripe = COLD_NONE, .prompt = !step, .step = from.step, .n_tokens = from.n_tokens};
    s->replay_to = 0;
    if (step) {
        cut_to_step(c, s);
        rc = begin_step(s, &from);
    } else {
        cut(c, s, most);
        begin_prompt(c, s, &plan);
    }
    if (rc == 0 && s->share.copies)
        rc = moves_recover(c, s, s->prompt_tokens);
    s->state = SEQUENCE_ADOPTING;
    return rc;
}

bool adoption_pays(const struct core *c, const struct sequence *s)
{
    return !s->damage.n || damage_pays(&s->damage, c->config.geometry.n_layers, s->prompt_tokens,
                                       s->layers[0].appended - s->prompt_tokens);
}

void adoption_answer(const struct core *c, const struct sequence *s, struct record_seq_ready *out)
{
    uint32_t layer = 0, lacks = s->adoption.n_tokens - s->layers[0].appended;
    out->header.step = s->adoption.prompt ? s->hashed_step : s->adoption.step - lacks;
    out->replay_to = s->replay_to;
    out->n_damaged = s->damage.n;
    while (s->adoption.prompt && layer + 1 < c->config.geometry.n_layers &&
           s->layers[layer + 1].appended)
        layer++;
    out->header.layer = layer;
    out->kept_tokens = s->layers[layer].appended;
}

/* ---- the agent ------------------------------------------------------------------------------ */

/* The entry in the position's cold slot, or its digest, is damaged: the slot is nobody's. False:
 * that is more than can be made again. */
static bool lose(struct core *c, struct sequence *s, uint32_t layer, uint32_t position)
{
    struct tiers *t = &c->tiers;
    if (!c->mends || s->adoption.prompt || s->past_tokens || position >= s->layers[layer].appended)
        return false;
    uint32_t word = core_location(c, s, layer, position), list = tiers_list(t, s->index, layer);
    if (hkm_tag(word) != HKM_COLD || !damage_add(&s->damage, layer, position))
        return false;
    cold_map_drop(&t->cold, list, hkm_slot(word));
    hkm_drop(&t->hkm, s->index, layer, position);
    return true;
}

static void take_adopt(void *context, const void *record)
{
    const struct agent *a = context;
    const struct record_completion *r = record;
    struct sequence *s = &a->core->sequences[r->header.sequence];
    struct adoption *o = &s->adoption;
    if (s->state != SEQUENCE_ADOPTING || r->tag < o->first_tag || !o->open[a->from])
        return;
    o->open[a->from]--;
    if (r->status == HILL_E_DAMAGED && lose(a->core, s, r->header.layer, r->detail))
        o->again = true;
    else if (r->status && !o->status)
        o->status = r->status;
}

/* Some cold slots were damaged. Asked once more the agent passes over what counts already. After a
 * damaged decoded token it begins anew, since some of what counts is to be nobody's. 1: asked for;
 * 0: no room now; negative: no memory. */
static int ask_again(struct agent *a, struct sequence *s)
{
    struct core *c = a->core;
    int rc = 0;
    if (damage_first(&s->damage, s->prompt_tokens) != DAMAGE_NONE) {
        if (agent_trim(a, s))
            return 0;
        cut_to_step(c, s);
        if (s->kept) {
            moves_end(c, s);
            rc = moves_recover(c, s, s->prompt_tokens);
        }
    }
    s->adoption.again = false;
    s->adoption.part = s->adoption.slot = 0;
    s->adoption.stripe = COLD_NONE;
    return rc ? rc : 1;
}

void adoption_listen(struct agent *a)
{
    agent_on(a, RECORD_ADOPT, take_adopt, a);
}

static bool is_open(const struct adoption *o)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++)
        sum += o->open[d];
    return sum > 0;
}

/* The committed slots of the stripe from `slot` on, at most `most`; *next: where to go on. */
static uint32_t fill_items(const struct agent *a, uint32_t list, uint32_t stripe, uint32_t slot,
                           uint32_t most, struct adopt_item *items, uint32_t *next)
{
    const struct core *c = a->core;
    const struct cold_map *cold = &c->tiers.cold;
    uint32_t n = 0;
    for (; slot < cold->stripe_slots && n < most; slot++) {
        uint32_t at = stripe * cold->stripe_slots + slot;
        uint32_t position = cold_map_position(cold, list, at);
        if (position != COLD_NONE)
            items[n++] =
                (struct adopt_item){agent_slot(a, at), position, c->tiers.hkm.cold_checks[at].sum};
    }
    *next = slot;
    return n;
}

/* One command: what of the stripe fits. 1: it is out; 0: no room now; or an error. */
static int push_adopt(struct agent *a, struct sequence *s)
{
    const struct cold_map *cold = &a->core->tiers.cold;
    struct adoption *o = &s->adoption;
    uint32_t layer = o->part / cold->n_drives, drive = o->part % cold->n_drives;
    uint32_t list = tiers_list(&a->core->tiers, s->index, layer);
    uint32_t room = shm_ring_payload_max(agent_ring(a, drive, RING_COMMAND));
    uint32_t most = (room - (uint32_t)sizeof(struct record_adopt)) / sizeof(struct adopt_item);
    if (most > cold->stripe_slots)
        most = cold->stripe_slots;
    void *payload;
    int rc = agent_reserve(
        a, drive, (uint32_t)(sizeof(struct record_adopt) + most * sizeof(struct adopt_item)),
        &payload);
    if (rc != 1)
        return rc;
    struct record_adopt *r = payload;
    *r = (struct record_adopt){.header = core_header(a->core, s->index, 0, layer),
                               .tag = agent_tag(a),
                               .stripe = o->stripe - drive * cold->drive_stripes,
                               .stripe_order = cold->stripes[o->stripe].order};
    r->n_slots =
        fill_items(a, list, o->stripe, o->slot, most, (struct adopt_item *)(r + 1), &o->slot);
    if (!o->first_tag)
        o->first_tag = r->tag;
    o->open[drive]++;
    s->cold_used = true;
    agent_publish(a, drive, RING_COMMAND, RECORD_ADOPT,
                  (uint32_t)(sizeof *r + r->n_slots * sizeof(struct adopt_item)));
    return 1;
}

static uint32_t parts_of(const struct core *c)
{
    return c->config.geometry.n_layers * c->tiers.cold.n_drives;
}

/* The stripe that is next; false: there is none, in this part or the ones after it. */
static bool find_stripe(const struct core *c, struct sequence *s)
{
    const struct cold_map *cold = &c->tiers.cold;
    struct adoption *o = &s->adoption;
    uint32_t first_part = tiers_part(&c->tiers, s->index, 0, 0);
    for (; o->part < parts_of(c); o->part++, o->stripe = COLD_NONE) {
        const struct cold_list *l = &cold->lists[first_part + o->part];
        bool used = l->current != COLD_NONE && (l->current != l->first || l->used > 0);
        if (!used)
            continue;
        bool first = o->stripe == COLD_NONE;
        if (!first && o->slot < cold->stripe_slots)
            return true;
        if (first || o->stripe != l->current) {
            o->stripe = first ? l->first : cold->stripes[o->stripe].next;
            o->slot = 0;
            return true;
        }
    }
    return false;
}

int adoption_pump(struct agent *a, struct sequence *s, bool *moved)
{
    struct adoption *o = &s->adoption;
    const struct core *c = a->core;
    while (!o->status && find_stripe(c, s)) {
        int rc = push_adopt(a, s);
        if (rc < 0)
            o->status = rc;
        if (rc != 1)
            break;
        *moved = true;
    }
    if (a->status)
        return a->status;
    if (is_open(o))
        return 0;
    if (o->status || o->part < parts_of(c) || !o->again)
        return o->status ? o->status : o->part == parts_of(c);
    int asked = ask_again(a, s);
    *moved |= asked == 1;
    return asked < 0 ? asked : 0;
}
