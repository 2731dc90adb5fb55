/* cpu_scorer/demotion.c - see demotion.h. */
#include "cpu_scorer/demotion.h"

#include <string.h>

#include "base/fault.h"
#include "cpu_scorer/holding.h"

/* ---- records in flight ---------------------------------------------------------------------- */

static struct demote *free_demote(struct demotions *d)
{
    for (uint32_t i = 0; i < MAX_DEMOTES; i++)
        if (!d->items[i].used)
            return &d->items[i];
    return NULL;
}

static void drop(struct demotions *d, struct demote *demote)
{
    d->core->sequences[demote->sequence].demotes--;
    d->n--;
    d->n_moves -= demote->from != DEMOTE_NEW && !demote->done;
    demote->used = false;
}

void demotions_forget(struct demotions *d, const struct sequence *s)
{
    for (uint32_t i = 0; i < MAX_DEMOTES; i++)
        if (d->items[i].used && d->items[i].sequence == s->index)
            drop(d, &d->items[i]);
}

static void take_demote(void *context, const void *record)
{
    struct demotions *d = context;
    const struct record_completion *r = record;
    struct demote *demote = &d->items[r->tag % 256 % MAX_DEMOTES];
    if (!demote->used || demote->tag != r->tag || demote->done ||
        agent_drive(d->agent, demote->first_slot) != d->agent->from)
        return; /* another drive's agent cannot say that it is written */
    demote->done = true;
    d->n_moves -= demote->from != DEMOTE_NEW; /* its flip may have to wait for a step (pump) */
    FAULT_POINT(cpu_scorer, demote, answered);
    if (!r->status && r->count == demote->n)
        return;
    struct sequence *s = &d->core->sequences[demote->sequence];
    if (s->state == SEQUENCE_ACTIVE)
        core_fail(d->core, s, r->status ? agent_status(r->status) : HILL_E_PROTOCOL,
                  "writing %u entries of layer %u to the cold pool", demote->n, demote->layer);
    drop(d, demote);
}

int demotions_init(struct demotions *d, struct core *core, struct agent *agent,
                   struct evaluator *evaluator, struct hill_why *why)
{
    struct demote_parts parts;
    *d = (struct demotions){.core = core, .agent = agent, .evaluator = evaluator};
    if (!core->config.csd)
        return 0;
    agent_on(agent, RECORD_DEMOTE, take_demote, d);
    uint32_t most = shm_ring_payload_max(agent_ring(agent, 0, RING_BACKGROUND));
    for (d->slots_max = core->config.demote_slots; d->slots_max > 0; d->slots_max--) {
        record_demote_parts(&parts, &core->config.geometry, KV_GROUP_TOKENS - 1, d->slots_max);
        if (parts.scattered_total <= most)
            return 0;
    }
    return hill_fail(why, HILL_E_INVALID,
                     "the background ring takes records of %u bytes, too few for one entry", most);
}

/* ---- a record ------------------------------------------------------------------------------- */

/* Reserved in the background ring, its parts to be filled. */
struct demote_record {
    struct record_demote *record;
    struct demote_parts parts;
    struct demote *demote;
    uint32_t n, slot, order;
    uint32_t drive, part; /* to which it goes, and what of the list is there */
    bool scattered;       /* into demote->slots */
};

/* How many of n tokens find slots. *scattered: in those of spare copies, where these take all of
 * what was hot, or where no other slot is left; else behind the list's others. */
static uint32_t room_for(const struct cold_map *cold, uint32_t list, bool from_hot, uint32_t n,
                         bool *scattered)
{
    uint32_t spare = cold_map_spare(cold, list), room = cold_map_room(cold, list);
    *scattered = spare > 0 && ((from_hot && spare >= n) || room == 0);
    room = *scattered ? spare : room;
    if (*scattered && room > MOVES_DOWN)
        room = MOVES_DOWN;
    return n < room ? n : room;
}

static int reserve(struct demotions *d, struct sequence *s, uint32_t layer, bool from_hot,
                   uint32_t n, struct demote_record *out)
{
    const struct tiers *t = &d->core->tiers;
    n = cold_map_deal(&t->cold, tiers_list(t, s->index, layer), n, from_hot, &out->drive);
    out->part = tiers_part(t, s->index, layer, out->drive);
    out->n = room_for(&t->cold, out->part, from_hot, n, &out->scattered);
    if (out->n > d->slots_max)
        out->n = d->slots_max;
    out->demote = free_demote(d);
    if (d->agent->status || out->n == 0 || !out->demote)
        return HILL_E_WOULD_BLOCK;
    /* which lane the first slot is in is known when slots are taken; the last needs most room */
    record_demote_parts(&out->parts, &d->core->config.geometry, KV_GROUP_TOKENS - 1, out->n);
    void *payload;
    uint64_t bytes = out->scattered ? out->parts.scattered_total : out->parts.total;
    int rc = shm_ring_reserve(agent_ring(d->agent, out->drive, RING_BACKGROUND), (uint32_t)bytes,
                              &payload);
    if (rc)
        return rc;
    out->record = payload;
    return 0;
}

/* Slots of copies for these positions; what they were copies of has none any more. */
static void take_copies(struct demotions *d, struct sequence *s, uint32_t layer,
                        const uint32_t *positions, struct demote_record *r)
{
    uint32_t lost[MOVES_DOWN], *slots = r->demote->slots;
    struct tiers *t = &d->core->tiers;
    uint64_t *given =
        cold_map_room(&t->cold, r->part) ? &s->stats.given_stream : &s->stats.given_room;
    cold_map_reuse(&t->cold, r->part, positions, r->n, slots, lost);
    for (uint32_t i = 0; i < r->n; i++)
        if (lost[i] != COLD_NOBODY && s->kept) {
            s->layers[layer].kept[lost[i]] = COLD_LOST;
            *given += 1;
        }
    r->slot = slots[0];
    r->order = 0; /* of several stripes, which the agent knows */
}

/* Take the slots. hot: the positions, moved down; NULL: they are first_position and those after it,
 * on their way in. */
static void take_slots(struct demotions *d, struct sequence *s, uint32_t layer,
                       uint32_t first_position, const uint32_t *hot, struct demote_record *r)
{
    struct tiers *t = &d->core->tiers;
    uint32_t *positions = (uint32_t *)((uint8_t *)r->record + r->parts.positions);
    memset(r->record, 0, r->parts.entries); /* no padding and no lane carries old bytes */
    for (uint32_t i = 0; i < r->n; i++)
        positions[i] = hot ? hot[i] : first_position + i;
    if (r->scattered)
        take_copies(d, s, layer, positions, r);
    else if (hot)
        cold_map_take_positions(&t->cold, r->part, hot, r->n, &r->slot, &r->order);
    else
        cold_map_take(&t->cold, r->part, first_position, r->n, &r->slot, &r->order);
    record_demote_parts(&r->parts, &d->core->config.geometry, r->slot, r->n);
    uint32_t *slots = (uint32_t *)((uint8_t *)r->record + r->parts.total);
    for (uint32_t i = 0; r->scattered && i < r->n; i++)
        slots[i] = agent_slot(d->agent, r->demote->slots[i]);
}

/* What a later process must find in the slots. */
static void note_checks(struct demotions *d, const struct sequence *s, uint32_t layer,
                        const struct demote_record *r, const uint8_t *entries)
{
    struct hkm *hkm = &d->core->tiers.hkm;
    const uint32_t *positions = (const uint32_t *)((uint8_t *)r->record + r->parts.positions);
    if (!hkm->identities[s->index])
        return;
    for (uint32_t i = 0; i < r->n; i++)
        hkm->cold_checks[r->scattered ? r->demote->slots[i] : r->slot + i] =
            hkm_check_of(hkm, s->index, layer, positions[i],
                         hkm_sum(hkm, entries + (uint64_t)i * hkm->entry_bytes));
}

static void fill_plane(struct demotions *d, struct sequence *s, uint32_t layer,
                       struct demote_record *r, const uint8_t *entries, const uint32_t *hot)
{
    const uint32_t *slots = r->scattered ? r->demote->slots : NULL;
    struct plane_source from = {entries, hot, slots, r->n, r->slot};
    if (d->evaluator->ops->plane)
        d->evaluator->ops->plane(d->evaluator, s, layer, &from,
                                 (uint8_t *)r->record + r->parts.digests);
}

static void publish(struct demotions *d, struct sequence *s, uint32_t layer, enum demote_from from,
                    struct demote_record *r)
{
    struct demote *demote = r->demote; /* its slots are there already */
    demote->tag = agent_tag(d->agent) | (uint64_t)(demote - d->items);
    demote->sequence = s->index;
    demote->layer = layer;
    demote->first_slot = r->slot;
    demote->n = r->n;
    demote->used = true;
    demote->done = false;
    demote->from = from;
    demote->scattered = r->scattered;
    *r->record = (struct record_demote){.header = core_header(d->core, s->index, 0, layer),
                                        .tag = demote->tag,
                                        .first_slot = agent_slot(d->agent, r->slot),
                                        .n_slots = r->n,
                                        .stripe_order = r->order,
                                        .scattered = r->scattered};
    d->n++;
    d->n_moves += from != DEMOTE_NEW;
    s->demotes++;
    s->cold_used = true;
    FAULT_POINT(cpu_scorer, demote, filled);
    agent_publish(d->agent, r->drive, RING_BACKGROUND, RECORD_DEMOTE,
                  (uint32_t)(r->scattered ? r->parts.scattered_total : r->parts.total));
    FAULT_POINT(cpu_scorer, demote, pushed);
}

uint32_t demote_entries(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t first,
                        uint32_t n, const uint8_t *entries)
{
    struct demote_record r;
    if (reserve(d, s, layer, false, n, &r))
        return 0;
    take_slots(d, s, layer, first, NULL, &r);
    memcpy((uint8_t *)r.record + r.parts.entries, entries,
           (size_t)r.n * d->core->tiers.hkm.entry_bytes);
    note_checks(d, s, layer, &r, entries);
    fill_plane(d, s, layer, &r, entries, NULL);
    publish(d, s, layer, DEMOTE_NEW, &r);
    return r.n;
}

bool demote_again(struct demotions *d, struct sequence *s, uint32_t layer, uint32_t position,
                  const uint8_t *entry)
{
    struct demote_record r;
    if (!core_has_drive(d->core) || reserve(d, s, layer, true, 1, &r))
        return false;
    take_slots(d, s, layer, 0, &position, &r);
    memcpy((uint8_t *)r.record + r.parts.entries, entry, d->core->tiers.hkm.entry_bytes);
    note_checks(d, s, layer, &r, entry);
    fill_plane(d, s, layer, &r, entry, NULL);
    publish(d, s, layer, DEMOTE_NEW, &r);
    return true;
}

uint32_t demote_hot(struct demotions *d, struct sequence *s, uint32_t layer,
                    const uint32_t *positions, uint32_t n)
{
    struct demote_record r;
    /* of a layer that is read in place nothing could be freed before the step goes on, which may
     * wait until the moves of others have made room for appends */
    if (n == 0 || d->n_moves >= MOVES_OPEN_MAX || holding_reads(s, layer) ||
        reserve(d, s, layer, true, n, &r))
        return 0;
    take_slots(d, s, layer, 0, positions, &r);
    const struct hkm *hkm = &d->core->tiers.hkm;
    uint8_t *entries = (uint8_t *)r.record + r.parts.entries;
    for (uint32_t i = 0; i < r.n; i++)
        memcpy(entries + (uint64_t)i * hkm->entry_bytes,
               hkm_entry(hkm, hkm_slot(core_location(d->core, s, layer, positions[i]))),
               hkm->entry_bytes);
    note_checks(d, s, layer, &r, entries);
    fill_plane(d, s, layer, &r, NULL, positions);
    publish(d, s, layer, DEMOTE_HOT, &r);
    s->layers[layer].moving = r.n;
    return r.n;
}

uint32_t demote_staged(struct demotions *d, struct sequence *s, uint32_t layer,
                       const uint32_t *positions, const uint32_t *staging, uint32_t n)
{
    struct demote_record r;
    if (reserve(d, s, layer, true, n, &r))
        return 0;
    take_slots(d, s, layer, 0, positions, &r);
    uint8_t *entries = (uint8_t *)r.record + r.parts.entries;
    uint32_t bytes = d->core->tiers.hkm.entry_bytes;
    for (uint32_t i = 0; i < r.n; i++)
        memcpy(entries + (uint64_t)i * bytes, shm_arena_slot(d->core->tiers.staging, staging[i]),
               bytes);
    note_checks(d, s, layer, &r, entries);
    fill_plane(d, s, layer, &r, entries, NULL);
    publish(d, s, layer, DEMOTE_DRIVE, &r);
    return r.n;
}

bool demotions_to(const struct demotions *d, const struct sequence *s, uint32_t drive)
{
    for (uint32_t i = 0; i < MAX_DEMOTES; i++)
        if (d->items[i].used && d->items[i].sequence == s->index &&
            agent_drive(d->agent, d->items[i].first_slot) == drive)
            return true;
    return false;
}

/* ---- commits -------------------------------------------------------------------------------- */

static uint32_t slot_of(const struct demote *d, uint32_t i)
{
    return d->scattered ? d->slots[i] : d->first_slot + i;
}

/* Of an entry that goes from one drive to another: the slot that it leaves. */
static uint32_t slot_before(const struct demotions *d, const struct demote *demote, uint32_t i)
{
    const struct tiers *t = &d->core->tiers;
    uint32_t position = cold_map_taken_position(&t->cold, slot_of(demote, i));
    return hkm_slot(hkm_location(&t->hkm, demote->sequence, demote->layer, position));
}

static int push_commit(struct demotions *d, const struct demote *demote)
{
    uint32_t slots[LAYOUT_COMMIT_SLOTS_MAX], before[MOVES_DOWN];
    bool moves = demote->from == DEMOTE_DRIVE;
    uint32_t bytes = (uint32_t)(sizeof(struct record_commit) + demote->n * sizeof *slots);
    if (moves && !agent_has_room(d->agent, bytes)) /* both of them, or none */
        return HILL_E_WOULD_BLOCK;
    for (uint32_t i = 0; i < demote->n; i++)
        slots[i] = slot_of(demote, i);
    for (uint32_t i = 0; moves && i < demote->n; i++)
        before[i] = slot_before(d, demote, i);
    int rc = agent_push_slots(d->agent, RECORD_COMMIT, demote->sequence, demote->layer, slots,
                              demote->n);
    return rc || !moves ? rc
                        : agent_push_slots(d->agent, RECORD_RELEASE, demote->sequence,
                                           demote->layer, before, demote->n);
}

/* An entry went down: not for the first time, where its copy was given away. */
static void note_cold(struct sequence *s, uint32_t layer, uint32_t position)
{
    uint32_t *kept = s->kept ? &s->layers[layer].kept[position] : NULL;
    s->stats.ever_cold += !kept || *kept == COLD_NONE;
    if (kept)
        *kept = COLD_NONE;
}

/* The entry is at a new cold slot; one on a drive that it leaves is nobody's. */
static void flip_one(struct demotions *d, const struct demote *demote, uint32_t i)
{
    struct tiers *t = &d->core->tiers;
    uint32_t list = tiers_list(t, demote->sequence, demote->layer), slot = slot_of(demote, i);
    uint32_t before = demote->from == DEMOTE_DRIVE ? slot_before(d, demote, i) : COLD_NONE;
    uint32_t position = cold_map_taken_position(&t->cold, slot);
    cold_map_commit(&t->cold, list, slot, 1);
    hkm_set_cold(&t->hkm, demote->sequence, demote->layer, position, slot);
    if (before == COLD_NONE) {
        struct sequence *s = &d->core->sequences[demote->sequence];
        note_cold(s, demote->layer, position);
        if (t->cold.n_drives == 1 && s->layers[demote->layer].cold_end <= position)
            s->layers[demote->layer].cold_end = position + 1; /* it may be carried next */
        return;
    }
    cold_map_uncommit(&t->cold, list, before);
    cold_map_disown(&t->cold, list, before);
}

/* A sequence that has grown beyond what M_0 holds of it has more blocks for entries than it is to
 * keep: those that have become free are lent to the digests of what goes down next. */
static void lend_freed(struct tiers *t, const struct sequence *s)
{
    uint32_t has = tiers_blocks(t, s->index), least = s->share.all - s->share.lent;
    if (s->share.lent == 0 || has <= least)
        return;
    for (uint32_t layer = 0; layer < t->hkm.geometry.n_layers; layer++) {
        uint32_t used = t->hkm.lists[tiers_list(t, s->index, layer)].n_blocks;
        least = used > least ? used : least;
    }
    if (least < has && hkm_shrink(&t->hkm, s->index, least))
        tiers_lend(t, s->index, hot_share_lent(&s->share, least));
}

static void flip(struct demotions *d, const struct demote *demote)
{
    struct sequence *s = &d->core->sequences[demote->sequence];
    struct layer_state *l = &s->layers[demote->layer];
    for (uint32_t i = 0; i < demote->n; i++) {
        flip_one(d, demote, i);
        FAULT_POINT(cpu_scorer, flip, begun);
    }
    FAULT_POINT(cpu_scorer, flip, done);
    if (demote->from == DEMOTE_NEW)
        l->uncommitted -= demote->n;
    else
        l->moving -= demote->n;
    if (demote->from != DEMOTE_HOT)
        return;
    s->stats.demoted += demote->n;
    s->stats.reused += demote->scattered ? demote->n : 0;
    lend_freed(&d->core->tiers, s);
}

int demotions_pump(struct demotions *d)
{
    int moved = 0;
    for (uint32_t i = 0; d->n && i < MAX_DEMOTES; i++) {
        struct demote *demote = &d->items[i];
        if (!demote->used || !demote->done)
            continue;
        struct sequence *s = &d->core->sequences[demote->sequence];
        if (core_runs(s)) {
            if (demote->from == DEMOTE_HOT && holding_reads(s, demote->layer))
                continue; /* the hot slots would be free */
            if (push_commit(d, demote))
                break; /* no credits now */
            FAULT_POINT(cpu_scorer, commit, pushed);
            flip(d, demote);
        }
        drop(d, demote);
        moved = 1;
    }
    return moved;
}
