/* cpu_scorer/holding.c - see holding.h. */
#include "cpu_scorer/holding.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ----------------------------------------------------------------------------------- */

int holding_create(const struct core *c, struct sequence *s)
{
    uint32_t n = c->config.gpu_slots, layers = c->config.geometry.n_layers;
    s->held[0].staging = calloc(n, sizeof(uint32_t));
    if (!s->held[0].staging)
        return HILL_E_NOMEM;
    if (!c->config.speculates)
        return 0;
    s->held[1].staging = calloc(n, sizeof(uint32_t));
    s->guess.positions = calloc(n, sizeof(uint32_t));
    s->guess.staging = calloc(n, sizeof(uint32_t));
    s->guess_chosen = calloc(layers, sizeof *s->guess_chosen);
    s->guess_found = calloc(layers, sizeof *s->guess_found);
    return s->held[1].staging && s->guess.positions && s->guess.staging && s->guess_chosen &&
                   s->guess_found
               ? 0
               : HILL_E_NOMEM;
}

void holding_destroy(struct sequence *s)
{
    free(s->held[0].staging);
    free(s->held[1].staging);
    free(s->guess.positions);
    free(s->guess.staging);
    free(s->guess_chosen);
    free(s->guess_found);
}

uint64_t holding_private_bytes(const struct scorer_config *c)
{
    uint64_t n = c->n_sequences;
    uint64_t guesses = c->speculates ? 3 * c->gpu_slots * sizeof(uint32_t) +
                                           2 * c->geometry.n_layers * sizeof(uint64_t)
                                     : 0;
    return n * (c->gpu_slots * sizeof(uint32_t) + guesses);
}

void holding_begin(const struct core *c, struct sequence *s)
{
    uint32_t n = s->guess_chosen ? c->config.geometry.n_layers : 0;
    for (uint32_t layer = 0; layer < n; layer++)
        s->guess_chosen[layer] = s->guess_found[layer] = 0;
    s->stats.n_layers = n;
    s->stats.guess_chosen = s->guess_chosen;
    s->stats.guess_found = s->guess_found;
    s->held[0].n_staging = s->held[1].n_staging = 0;
    s->held[0].n_newest = s->held[1].n_newest = 0;
    s->guess.there = false;
    s->known_step = UINT32_MAX;
    holding_reads_done(s);
}

/* ---- what has been read --------------------------------------------------------------------- */

static void release(struct core *c, struct holding *h)
{
    shm_arena_give(c->tiers.staging, h->n_staging, h->staging);
    h->n_staging = h->n_newest = 0;
    h->reading = false;
}

void holding_keep_newest(struct core *c, struct sequence *s)
{
    struct holding *h = &s->held[0];
    uint32_t older = h->n_staging - h->n_newest;
    shm_arena_give(c->tiers.staging, older, h->staging);
    memmove(h->staging, h->staging + older, h->n_newest * sizeof *h->staging);
    h->n_staging = h->n_newest;
    h->reading = false;
}

static void drop_guess(struct core *c, struct guess *g)
{
    for (uint32_t i = 0; g->there && i < g->n; i++)
        if (g->staging[i] != GUESS_NONE)
            shm_arena_give(c->tiers.staging, 1, &g->staging[i]);
    g->there = false;
}

void holding_release(struct core *c, struct sequence *s, const struct record_header *header,
                     uint32_t kind)
{
    if (kind == QUERY_KNOWN && s->known_step == header->step)
        return;
    if (kind == QUERY_EXACT || kind == QUERY_KNOWN) {
        release(c, &s->held[0]);
        release(c, &s->held[1]);
        if (s->guess.step != header->step || s->guess.layer != header->layer)
            drop_guess(c, &s->guess);
        return;
    }
    release(c, &s->held[1]);
    drop_guess(c, &s->guess);
    struct holding empty = s->held[1];
    s->held[1] = s->held[0];
    s->held[0] = empty;
}

bool holding_goes_ahead(struct sequence *s, const struct record_header *header)
{
    if (s->known_step != header->step) {
        s->known_step = header->step;
        s->declined = !s->reads_hot || s->cold_used || s->cold_from < s->cold_to;
        s->held[0].reading = !s->declined;
        s->held[0].layer = ALL_LAYERS;
    }
    return !s->declined;
}

void holding_reads_done(struct sequence *s)
{
    s->held[0].reading = s->held[1].reading = false;
}

uint32_t holding_slots(const struct sequence *s)
{
    const struct guess *g = &s->guess;
    uint32_t n = s->held[0].n_staging + s->held[1].n_staging;
    for (uint32_t i = 0; g->there && i < g->n; i++)
        n += g->staging[i] != GUESS_NONE;
    return n;
}

void holding_release_all(struct core *c, struct sequence *s)
{
    release(c, &s->held[0]);
    release(c, &s->held[1]);
    drop_guess(c, &s->guess);
}

/* ---- an answer ------------------------------------------------------------------------------ */

void holding_use_guess(struct sequence *s, struct answer *a)
{
    struct guess *g = &s->guess;
    uint32_t at = 0;
    for (uint32_t i = 0; i < a->n_items; i++) {
        struct answer_item *item = &a->items[i];
        if (!(item->flags & ANSWER_UPLOAD))
            continue;
        while (g->there && at < g->n && g->positions[at] < item->position)
            at++;
        if (g->there && at < g->n && g->positions[at] == item->position &&
            g->staging[at] != GUESS_NONE) {
            item->staging = g->staging[at];
            g->staging[at] = GUESS_NONE;
        } else {
            item->flags |= ANSWER_BRING;
        }
    }
}

int holding_take(struct sequence *s, struct answer *a)
{
    struct holding *h = &s->held[0];
    uint32_t next = 0;
    /* before more are taken: a selection's worth is set aside for both */
    drop_guess(a->core, &s->guess);
    int rc = shm_arena_take(a->core->tiers.staging, a->n_fetches + a->n_copies, a->slots);
    h->n_staging = 0;
    for (uint32_t i = 0; i < a->n_items; i++) {
        struct answer_item *item = &a->items[i];
        if (!(item->flags & ANSWER_UPLOAD) || (rc && (item->flags & ANSWER_BRING)))
            continue;
        if (item->flags & ANSWER_BRING)
            item->staging = a->slots[next++];
        h->staging[h->n_staging++] = item->staging;
    }
    return rc;
}

int holding_take_all(struct sequence *s, struct answer *a)
{
    struct holding *h = &s->held[0];
    uint32_t *slots = h->staging + h->n_staging;
    int rc = shm_arena_take(a->core->tiers.staging, a->n_items, slots);
    h->n_newest = rc ? 0 : a->n_items;
    h->n_staging += h->n_newest;
    for (uint32_t i = 0; i < h->n_newest; i++)
        a->items[i].staging = slots[i];
    return rc;
}

void holding_lose(struct sequence *s)
{
    s->held[0].n_staging = s->held[0].n_newest = 0;
}

/* ---- a guess -------------------------------------------------------------------------------- */

int holding_guess(struct sequence *s, struct answer *a)
{
    struct guess *g = &s->guess;
    int rc = shm_arena_take(a->core->tiers.staging, a->n_fetches + a->n_copies, a->slots);
    if (rc)
        return rc;
    for (uint32_t i = 0, next = 0; i < a->n_items; i++) {
        struct answer_item *item = &a->items[i];
        bool lacking = item->flags & ANSWER_BRING;
        g->positions[i] = item->position;
        g->staging[i] = item->staging = lacking ? a->slots[next++] : GUESS_NONE;
    }
    g->n = a->n_items;
    g->there = true; /* from here on its slots are given back with it */
    return 0;
}

void holding_keep_guess(struct sequence *s, const struct record_header *header)
{
    s->guess.step = header->step;
    s->guess.layer = header->layer;
}

void holding_lose_guess(struct sequence *s, struct answer *a)
{
    if (a->fetches_open)
        s->guess.there = false; /* its slots are lost with the agent, until the next epoch */
    drop_guess(a->core, &s->guess);
}

void holding_compare(struct sequence *s, const struct answer *a, uint32_t layer, uint32_t n_tokens)
{
    const struct guess *g = &s->guess;
    uint32_t window = s->settings.window, at = 0, chosen = 0, found = 0;
    uint32_t newest = n_tokens > window ? n_tokens - window : 0;
    if (!g->there)
        return;
    for (uint32_t i = 0; i < a->n_items; i++) {
        uint32_t position = a->items[i].position;
        if (position < s->settings.sinks || position >= newest)
            continue; /* not chosen: they always are */
        while (at < g->n && g->positions[at] < position)
            at++;
        chosen++;
        found += at < g->n && g->positions[at] == position;
    }
    s->guess_chosen[layer] += chosen;
    s->guess_found[layer] += found;
}
