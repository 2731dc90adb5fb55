/* cpu_scorer/share_out.c - see share_out.h. */
#include "cpu_scorer/share_out.h"

void share_out_init(struct share_out *p, struct core *core, struct carry *carry)
{
    *p = (struct share_out){.core = core, .carry = carry};
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
    uint32_t drive = 0;
    if (!cold_map_uneven(&t->cold, tiers_list(t, s->index, layer), CARRY_BATCH, &drive))
        return 0;
    *open = true;
    return !l->uncommitted && !l->moving &&
           carry_start(p->carry, s, layer, drive, false, carry_room(p->carry, s, drive, false));
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
    if (c->tiers.cold.n_drives < 2 || !core_has_drive(c) || core_is_emptied(c) ||
        p->carry->agent->status)
        return 0;
    for (uint32_t i = 0; p->carry->phase == CARRY_NONE && i < c->config.n_sequences; i++)
        if (is_shared_out(p, &c->sequences[i]) && start_batch(p, &c->sequences[i]))
            return 1;
    return 0;
}
