/*
 * placement/placement.c - the common part of all placements: see placement.h.
 *
 * Tiers change here and in placement_tiers.c alone, so that capacity, balance and statistics are
 * right whatever a placement does. Who calls it: see placement.h. Concurrency: one thread per
 * placement. Failure: codes.
 */
#include "placement/placement_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct placement_ops *const all_ops[PLACEMENT_COUNT] = {
    [PLACEMENT_RECENCY] = &placement_recency_ops, [PLACEMENT_BKP] = &placement_bkp_ops,
    [PLACEMENT_PAPER] = &placement_paper_ops,     [PLACEMENT_LRU] = &placement_lru_ops,
    [PLACEMENT_LFU] = &placement_lfu_ops,         [PLACEMENT_SCORE] = &placement_score_ops,
    [PLACEMENT_BELADY] = &placement_belady_ops,
};

const char *placement_name(enum placement_kind kind)
{
    return (unsigned)kind < PLACEMENT_COUNT ? all_ops[kind]->name : NULL;
}

int placement_parse(const char *name, enum placement_kind *out)
{
    for (unsigned i = 0; i < PLACEMENT_COUNT; i++)
        if (strcmp(name, all_ops[i]->name) == 0) {
            *out = (enum placement_kind)i;
            return 0;
        }
    return HILL_E_INVALID;
}

struct placement_settings placement_defaults(void)
{
    return (struct placement_settings){.sinks = 4,
                                       .window = 32,
                                       .alpha = 0.2,
                                       .pin = 0.2,
                                       .half_life = 16,
                                       .margin = 1,
                                       .write_cost = PLACEMENT_WRITE_SHARE,
                                       .rest_steps = 2};
}

/* ---- life --------------------------------------------------------------------------------- */

static int check_settings(const struct placement_ops *ops, const struct placement_settings *s,
                          struct hill_why *why)
{
    if (s->max_tokens == 0 || s->max_tokens > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "a placement for %u tokens, not in 1..%u",
                         s->max_tokens, KV_MAX_TOKENS);
    if (s->sinks > KV_MAX_TOKENS || s->window > KV_MAX_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "sinks %u and window %u, above %u", s->sinks,
                         s->window, KV_MAX_TOKENS);
    /* this way round NaN is refused too */
    if (!(s->alpha > 0 && s->alpha <= 1) || !(s->pin >= 0 && s->pin <= 1))
        return hill_fail(why, HILL_E_INVALID, "alpha %g not in (0, 1] or pin %g not in [0, 1]",
                         s->alpha, s->pin);
    if (s->half_life == 0 || s->half_life > 256 || !(s->margin >= 0 && s->margin <= 64))
        return hill_fail(why, HILL_E_INVALID,
                         "half life %u not in 1..256 or margin %g not in [0, 64]", s->half_life,
                         s->margin);
    if (!(s->write_cost >= 0 && s->write_cost <= PLACEMENT_COST_MAX))
        return hill_fail(why, HILL_E_INVALID, "write cost %g not in [0, %g]", s->write_cost,
                         PLACEMENT_COST_MAX);
    if (ops->needs_future && s->future == NULL)
        return hill_fail(why, HILL_E_INVALID,
                         "placement %s needs the future: it works offline only", ops->name);
    return 0;
}

int placement_create(struct placement **out, enum placement_kind kind,
                     const struct placement_settings *settings, struct hill_why *why)
{
    *out = NULL;
    if ((unsigned)kind >= PLACEMENT_COUNT)
        return hill_fail(why, HILL_E_INVALID, "placement %d is unknown", (int)kind);
    int rc = check_settings(all_ops[kind], settings, why);
    if (rc)
        return rc;
    struct placement *p = calloc(1, sizeof *p);
    if (p == NULL)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a placement");
    p->ops = all_ops[kind];
    p->settings = *settings;
    p->hot = calloc(settings->max_tokens, sizeof *p->hot);
    p->moved = calloc(settings->max_tokens, sizeof *p->moved);
    p->own = calloc(1, p->ops->bytes(settings));
    rc = p->hot && p->moved && p->own ? 0 : HILL_E_NOMEM;
    if (rc == 0 && p->ops->create)
        rc = p->ops->create(p);
    p->settings.future = NULL; /* the caller's, and only during this call */
    if (rc) {
        placement_destroy(p);
        return hill_fail(why, rc, "out of memory for the tables of a placement");
    }
    *out = p;
    return 0;
}

void placement_destroy(struct placement *placement)
{
    if (placement == NULL)
        return;
    if (placement->own && placement->ops->destroy)
        placement->ops->destroy(placement);
    free(placement->own);
    free(placement->hot);
    free(placement->moved);
    free(placement->promoted.items);
    free(placement->demoted.items);
    free(placement);
}

uint64_t placement_bytes(enum placement_kind kind, const struct placement_settings *settings)
{
    if ((unsigned)kind >= PLACEMENT_COUNT)
        return 0;
    return sizeof(struct placement) +
           (uint64_t)settings->max_tokens * (sizeof(bool) + sizeof(uint32_t)) +
           all_ops[kind]->bytes(settings);
}

uint64_t placement_live_bytes(enum placement_kind kind, uint32_t n_layers, uint32_t max_tokens)
{
    struct placement_settings settings = placement_defaults();
    settings.max_tokens = max_tokens;
    if (kind == PLACEMENT_RECENCY)
        return 0;
    return n_layers * (placement_bytes(kind, &settings) + (uint64_t)max_tokens * sizeof(uint32_t));
}

/* ---- moves -------------------------------------------------------------------------------- */

static void clear_moves(struct placement *p)
{
    p->promoted.count = p->demoted.count = 0;
}

static void show_moves(const struct placement *p, struct placement_moves *moves)
{
    *moves = (struct placement_moves){.promoted = p->promoted.items,
                                      .demoted = p->demoted.items,
                                      .n_promoted = p->promoted.count,
                                      .n_demoted = p->demoted.count};
}

/* ---- growing ------------------------------------------------------------------------------ */

static uint32_t window_start(const struct placement *p, uint32_t n_tokens)
{
    return n_tokens > p->settings.window ? n_tokens - p->settings.window : 0;
}

/* Tokens that the window has left behind come into play. */
static void advance_window(struct placement *p, uint32_t from)
{
    uint32_t position = p->forced_from > p->settings.sinks ? p->forced_from : p->settings.sinks;
    p->forced_from = from;
    for (; p->ops->enter && position < from; position++)
        if (p->hot[position])
            p->ops->enter(p, position);
}

static void set_capacity(struct placement *p, uint32_t capacity)
{
    uint64_t forced = (uint64_t)p->settings.sinks + p->settings.window;
    if (forced > p->n_tokens)
        forced = p->n_tokens;
    p->capacity = capacity > forced ? capacity : (uint32_t)forced;
}

static void place_prompt(struct placement *p)
{
    uint32_t sinks = p->settings.sinks < p->n_tokens ? p->settings.sinks : p->n_tokens;
    uint32_t hot = p->capacity < p->n_tokens ? p->capacity : p->n_tokens;
    uint32_t from = p->n_tokens - (hot - (sinks < hot ? sinks : hot));
    for (uint32_t i = 0; i < p->n_tokens; i++)
        p->hot[i] = i < sinks || i >= from;
    p->n_hot = hot;
    p->stats.placed_cold += p->n_tokens - hot;
}

int placement_append(struct placement *p, uint32_t count, uint32_t capacity,
                     struct placement_moves *moves)
{
    clear_moves(p);
    show_moves(p, moves);
    if (count > p->settings.max_tokens - p->n_tokens)
        return HILL_E_INVALID;
    uint32_t first = p->n_tokens;
    p->n_tokens += count;
    set_capacity(p, capacity);
    if (first == 0) {
        place_prompt(p);
    } else {
        for (uint32_t i = first; i < p->n_tokens; i++) {
            p->hot[i] = true;
            p->moved[i] = 0;
        }
        p->n_hot += count;
    }
    advance_window(p, window_start(p, p->n_tokens));
    int rc = 0;
    while (rc == 0 && p->n_hot > p->capacity) {
        uint32_t victim = p->ops->victim(p);
        if (victim == PLACEMENT_NONE)
            break; /* cannot be: what a placement will not give up fits into the capacity */
        rc = placement_demote(p, victim);
    }
    show_moves(p, moves);
    return rc;
}

int placement_trim(struct placement *p, uint32_t n_tokens)
{
    if (n_tokens > p->n_tokens)
        return HILL_E_INVALID;
    uint32_t from = window_start(p, n_tokens), low = p->settings.sinks;
    for (uint32_t i = from > low ? from : low; i < p->forced_from; i++)
        if (p->ops->leave && p->hot[i])
            p->ops->leave(p, i);
    for (uint32_t i = n_tokens; i < p->n_tokens; i++) {
        p->n_hot -= p->hot[i];
        p->hot[i] = false;
        p->moved[i] = 0;
    }
    p->n_tokens = n_tokens;
    p->forced_from = from;
    set_capacity(p, p->capacity);
    if (p->ops->trimmed)
        p->ops->trimmed(p);
    clear_moves(p);
    return 0;
}

int placement_place(struct placement *p, uint32_t position, bool hot)
{
    if (position >= p->n_tokens)
        return HILL_E_INVALID;
    if (p->hot[position] == hot)
        return 0;
    bool in_play = !placement_is_forced(p, position);
    if (!hot && in_play && p->ops->leave)
        p->ops->leave(p, position);
    p->hot[position] = hot;
    p->n_hot += hot ? 1u : UINT32_MAX;
    if (!hot) /* its promotion, if it had one, was given up: the next one is no bounce after that */
        p->moved[position] = 0;
    if (hot && in_play && p->ops->enter)
        p->ops->enter(p, position);
    return 0;
}

/* ---- stepping ----------------------------------------------------------------------------- */

static bool are_sound(const struct placement *p, const uint32_t *selected, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (selected[i] >= p->n_tokens || (i && selected[i] <= selected[i - 1]))
            return false;
    return true;
}

int placement_watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    clear_moves(p);
    if (!are_sound(p, selected, n))
        return HILL_E_INVALID;
    p->step++;
    p->stats.steps++;
    for (uint32_t i = 0; i < n; i++) {
        if (placement_is_forced(p, selected[i]))
            continue;
        if (p->hot[selected[i]])
            p->stats.hits_hot++;
        else
            p->stats.hits_cold++;
    }
    if (p->ops->watch)
        p->ops->watch(p, selected, n);
    return 0;
}

int placement_step(struct placement *p, const uint32_t *selected, uint32_t n,
                   const uint16_t *scores, uint32_t rate, struct placement_moves *moves)
{
    clear_moves(p);
    show_moves(p, moves);
    if (p->ops->needs_scores && scores == NULL)
        return HILL_E_INVALID;
    int rc = placement_watch(p, selected, n);
    if (rc)
        return rc;
    uint32_t limit = p->settings.rate ? p->settings.rate : UINT32_MAX;
    if (rate && rate < limit)
        limit = rate;
    rc = p->ops->step(p, selected, n, scores, limit);
    show_moves(p, moves);
    return rc;
}

/* ---- questions ---------------------------------------------------------------------------- */

void placement_set_write_cost(struct placement *p, double misses)
{
    p->settings.write_cost = misses < PLACEMENT_COST_MAX ? misses : PLACEMENT_COST_MAX;
}

bool placement_is_hot(const struct placement *placement, uint32_t position)
{
    return placement->hot[position];
}

uint32_t placement_tokens(const struct placement *placement)
{
    return placement->n_tokens;
}

uint32_t placement_hot_tokens(const struct placement *placement)
{
    return placement->n_hot;
}

const struct placement_stats *placement_stats(const struct placement *placement)
{
    return &placement->stats;
}
