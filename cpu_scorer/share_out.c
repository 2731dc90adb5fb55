/* cpu_scorer/share_out.c - see share_out.h. */
#include "cpu_scorer/share_out.h"

void share_out_init(struct share_out *p, struct core *core, struct carry *carry)
{
    *p = (struct share_out){.core = core, .carry = carry};
}

/* The drive from which a batch of the layer is to go, and how many entries; 0: its drives have
 * their shares, within a batch. */
static uint32_t excess_of(const struct cold_map *cold, uint32_t list, uint32_t *drive)
{
    double most = 0, lacks = 0;
    for (uint32_t d = 0; d < cold->n_drives; d++) {
        double excess = cold_map_excess(cold, list, d);
        if (excess > most) {
            most = excess;
            *drive = d;
        }
        lacks = -excess > lacks ? -excess : lacks;
    }
    return most < CARRY_BATCH || lacks < CARRY_BATCH ? 0 : CARRY_BATCH;
}

static bool is_shared_out(struct share_out *p, const struct sequence *s)
{
    return s->adoption.first_tag && core_runs(s) && !s->leaving &&
           p->over[s->index] != s->request_id;
}

/* 1: a batch is out. *open: a layer of the sequence still has to be looked at. */
static int start_layer(struct share_out *p, struct sequence *s, uint32_t layer, bool *open)
{
    const struct tiers *t = &p->core->tiers;
    const struct layer_state *l = &s->layers[layer];
    uint32_t drive = 0, room, n = excess_of(&t->cold, tiers_list(t, s->index, layer), &drive);
    if (n == 0)
        return 0;
    *open = true;
    room = carry_room(p->carry, s, drive);
    return !l->uncommitted && !l->moving &&
           carry_start(p->carry, s, layer, drive, false, n < room ? n : room);
}

static int start_batch(struct share_out *p, struct sequence *s)
{
    uint32_t n_layers = p->core->config.geometry.n_layers;
    bool open = false;
    for (uint32_t i = 0; i < n_layers; i++) {
        uint32_t layer = (p->next + i) % n_layers;
        if (!start_layer(p, s, layer, &open))
            continue;
        p->next = layer + 1;
        p->carries = true;
        return 1;
    }
    if (!open)
        p->over[s->index] = s->request_id;
    return 0;
}

static int end_batch(struct share_out *p)
{
    const struct carry *b = p->carry;
    p->carries = false;
    if (b->status)
        p->over[b->sequence] = b->request_id;
    carry_end(p->carry);
    return 1;
}

int share_out_pump(struct share_out *p)
{
    const struct core *c = p->core;
    if (p->carries)
        return p->carry->phase == CARRY_OVER ? end_batch(p) : 0;
    if (c->tiers.cold.n_drives < 2 || core_is_emptied(c) || p->carry->agent->status)
        return 0;
    for (uint32_t i = 0; p->carry->phase == CARRY_NONE && i < c->config.n_sequences; i++)
        if (is_shared_out(p, &c->sequences[i]) && start_batch(p, &c->sequences[i]))
            return 1;
    return 0;
}
