/*
 * cpu_scorer/scorer_ahead.c - what selections hold until they have been read, and what guessed
 * queries bring ahead.
 *
 * A query says by its kind which earlier selections of its sequence the attention has read: an
 * exact one, all; a guess, which comes while the newest is still to be read, all but that. So where
 * queries are guessed two selections of a sequence are alive at a time, in staging and in what is
 * read in place, and twice the staging slots are set aside for it.
 *
 * A guess that is attended to (QUERY_SPECULATIVE) is a query like any other. One that is verified
 * (QUERY_AHEAD) has no answer: what it selects and the GPU lacks is brought to staging and stays
 * there for the exact query of the same (step, layer). That one scores for itself and takes over
 * what it needs; the rest is free, and what the guess had missed is brought late. Entries do not
 * change, so what has moved between the tiers meanwhile does not matter: a guess holds copies.
 *
 * Who calls it: scorer_query.c, scorer_append.c. Concurrency and failure: as scorer.h says.
 */
#include "cpu_scorer/scorer_internal.h"

#include <stdlib.h>

/* ---- life --------------------------------------------------------------------------------- */

int ahead_create(struct scorer *p, struct sequence *s)
{
    const struct scorer_config *c = &p->config;
    s->held[0].staging = calloc(c->gpu_slots, sizeof(uint32_t));
    if (!s->held[0].staging)
        return HILL_E_NOMEM;
    if (!c->speculates)
        return 0;
    s->held[1].staging = calloc(c->gpu_slots, sizeof(uint32_t));
    s->guess.positions = calloc(c->gpu_slots, sizeof(uint32_t));
    s->guess.staging = calloc(c->gpu_slots, sizeof(uint32_t));
    s->guess_chosen = calloc(c->geometry.n_layers, sizeof *s->guess_chosen);
    s->guess_found = calloc(c->geometry.n_layers, sizeof *s->guess_found);
    return s->held[1].staging && s->guess.positions && s->guess.staging && s->guess_chosen &&
                   s->guess_found
               ? 0
               : HILL_E_NOMEM;
}

void ahead_destroy(struct sequence *s)
{
    free(s->held[0].staging);
    free(s->held[1].staging);
    free(s->guess.positions);
    free(s->guess.staging);
    free(s->guess_chosen);
    free(s->guess_found);
}

void ahead_begin(struct scorer *p, struct sequence *s)
{
    uint32_t n = s->guess_chosen ? p->config.geometry.n_layers : 0;
    for (uint32_t layer = 0; layer < n; layer++)
        s->guess_chosen[layer] = s->guess_found[layer] = 0;
    s->stats.n_layers = n;
    s->stats.guess_chosen = s->guess_chosen;
    s->stats.guess_found = s->guess_found;
    s->held[0].n_staging = s->held[1].n_staging = 0;
    s->guess.there = false;
    ahead_reads_done(s);
}

/* ---- what has been read -------------------------------------------------------------------- */

static void release(struct scorer *p, struct holding *h)
{
    shm_arena_give(p->io.staging, h->n_staging, h->staging);
    h->n_staging = 0;
    h->reading = false;
}

static void drop_guess(struct scorer *p, struct guess *g)
{
    for (uint32_t i = 0; g->there && i < g->n; i++)
        if (g->staging[i] != GUESS_NONE)
            shm_arena_give(p->io.staging, 1, &g->staging[i]);
    g->there = false;
}

void ahead_release(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    if (q->kind == QUERY_EXACT) {
        release(p, &s->held[0]);
        release(p, &s->held[1]);
        if (s->guess.step != q->header.step || s->guess.layer != q->header.layer)
            drop_guess(p, &s->guess);
        return;
    }
    release(p, &s->held[1]);
    drop_guess(p, &s->guess);
    struct holding empty = s->held[1];
    s->held[1] = s->held[0];
    s->held[0] = empty;
}

void ahead_reads_done(struct sequence *s)
{
    s->held[0].reading = s->held[1].reading = false;
}

void ahead_release_all(struct scorer *p, struct sequence *s)
{
    release(p, &s->held[0]);
    release(p, &s->held[1]);
    drop_guess(p, &s->guess);
}

/* ---- a guess ------------------------------------------------------------------------------- */

int ahead_plan(struct scorer *p, struct sequence *s, const struct record_query *q, uint32_t k)
{
    struct guess *g = &s->guess;
    uint32_t n = 0, layer = q->header.layer;
    gpu_slots_find(&p->gpu, scorer_list(p, s->index, layer), p->positions, k, p->slots);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t word = hkm_location(&p->hkm, s->index, layer, p->positions[i]);
        bool in_place = s->reads_hot && hkm_tag(word) == HKM_HOT;
        g->positions[i] = p->positions[i];
        g->staging[i] = GUESS_NONE;
        if ((p->slots[i] & GPU_SLOTS_UPLOAD) && !in_place)
            g->staging[i] = n++;
    }
    int rc = shm_arena_take(p->io.staging, n, p->missed);
    if (rc)
        return rc;
    g->n = k;
    g->there = true; /* from here on its slots are given back with it */
    for (uint32_t i = 0; i < k; i++) {
        if (g->staging[i] == GUESS_NONE)
            continue;
        g->staging[i] = p->missed[g->staging[i]];
        rc = rc ? rc : scorer_bring(p, s, layer, g->positions[i], g->staging[i]);
    }
    return rc;
}

void ahead_keep(struct sequence *s, const struct record_query *q)
{
    s->guess.step = q->header.step;
    s->guess.layer = q->header.layer;
}

void ahead_lose(struct scorer *p, struct sequence *s)
{
    if (p->query.fetches_open)
        s->guess.there = false; /* its slots are lost with the agent, until the next epoch */
    drop_guess(p, &s->guess);
}

/* ---- the exact query ----------------------------------------------------------------------- */

void ahead_compare(struct sequence *s, const struct record_query *q, const uint32_t *positions,
                   uint32_t k)
{
    const struct guess *g = &s->guess;
    uint32_t window = s->settings.window, at = 0, chosen = 0, found = 0;
    uint32_t newest = q->n_tokens > window ? q->n_tokens - window : 0;
    if (!g->there)
        return;
    for (uint32_t i = 0; i < k; i++) {
        if (positions[i] < s->settings.sinks || positions[i] >= newest)
            continue; /* not chosen: they always are */
        while (at < g->n && g->positions[at] < positions[i])
            at++;
        chosen++;
        found += at < g->n && g->positions[at] == positions[i];
    }
    s->guess_chosen[q->header.layer] += chosen;
    s->guess_found[q->header.layer] += found;
}

/* Staging slots that the guess has filled for these uploads; p->filled says for which. Returns how
 * many are missing. */
static uint32_t take_over(struct scorer *p, struct sequence *s, uint32_t k)
{
    struct guess *g = &s->guess;
    uint32_t upload = 0, at = 0, missing = 0;
    for (uint32_t i = 0; i < k; i++) {
        if (!(p->slots[i] & GPU_SLOTS_UPLOAD))
            continue;
        while (g->there && at < g->n && g->positions[at] < p->positions[i])
            at++;
        bool filled = g->there && at < g->n && g->positions[at] == p->positions[i] &&
                      g->staging[at] != GUESS_NONE;
        if (filled) {
            s->held[0].staging[upload] = g->staging[at];
            g->staging[at] = GUESS_NONE;
        }
        p->filled[upload++] = filled;
        missing += !filled;
    }
    return missing;
}

int ahead_take_staging(struct scorer *p, struct sequence *s, uint32_t k, uint32_t n_uploads)
{
    struct holding *h = &s->held[0];
    if (!p->config.speculates) {
        int rc = shm_arena_take(p->io.staging, n_uploads, h->staging);
        h->n_staging = rc ? 0 : n_uploads;
        return rc;
    }
    uint32_t missing = take_over(p, s, k);
    drop_guess(p, &s->guess); /* before more are taken: a selection's worth is set aside for both */
    uint32_t *taken = p->missed;
    int rc = shm_arena_take(p->io.staging, missing, taken);
    uint32_t n = 0;
    for (uint32_t u = 0; u < n_uploads; u++) {
        if (p->filled[u])
            h->staging[n++] = h->staging[u];
        else if (!rc)
            h->staging[n++] = *taken++;
    }
    h->n_staging = n;
    return rc;
}
