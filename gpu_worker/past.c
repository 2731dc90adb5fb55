/* gpu_worker/past.c - see past.h. */
#include "gpu_worker/past.h"

#include <stdlib.h>
#include <string.h>

#include "gpu_worker/request.h"

#define WINDOWS 2u

/* Entries first .. first + n - 1 of a layer. */
struct past_window {
    uint32_t layer, first, n;
    uint32_t read_id;
    int64_t asked_ns;
    bool there; /* its slots are named: slots [n] */
    struct staged_entry *slots;
};

struct past {
    uint32_t at_once, depth;       /* tokens of a window; windows that fit into staging */
    uint32_t layer;                /* whose entries are given to the engine; those before are */
    uint32_t ask_layer, ask_first; /* of the next READ */
    struct past_window windows[WINDOWS]; /* the oldest first */
    uint32_t n_windows;
    bool copied;   /* the oldest: into room */
    uint8_t *room; /* [at_once][entry] */
    int rc;        /* why entries cannot be had */
    struct hill_why why;
};

static uint32_t n_layers(const struct request *r)
{
    return r->w->hparams.n_layers;
}

int past_open(struct request *r, struct hill_why *why)
{
    uint32_t k = request_read_max(r);
    struct past *p = r->past = calloc(1, sizeof *p);
    if (!p)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt that goes on");
    p->depth = k < WINDOWS ? 1 : WINDOWS;
    p->at_once = k / p->depth < ENGINE_PAST_TOKENS ? k / p->depth : ENGINE_PAST_TOKENS;
    p->ask_first = engine_past_from(r->w->engine, 0);
    p->room = malloc((size_t)p->at_once * worker_entry_bytes(r->w));
    bool fails = !p->room;
    for (uint32_t i = 0; i < WINDOWS; i++)
        fails |= !(p->windows[i].slots = calloc(p->at_once, sizeof *p->windows[i].slots));
    return fails ? hill_fail(why, HILL_E_NOMEM, "out of memory for a prompt that goes on") : 0;
}

void past_drop(struct request *r)
{
    for (uint32_t i = 0; r->past && i < WINDOWS; i++)
        free(r->past->windows[i].slots);
    if (r->past)
        free(r->past->room);
    free(r->past);
    r->past = NULL;
}

bool past_is_there(const struct request *r, uint32_t layer)
{
    return !r->past || layer < r->past->layer;
}

/* ---- windows -------------------------------------------------------------------------------- */

/* The READ says what has been read: all windows but the one that is here, if one is. */
static int ask(struct request *r, struct hill_why *why)
{
    struct past *p = r->past;
    struct past_window *window = &p->windows[p->n_windows];
    uint32_t rest = r->n_past - p->ask_first;
    window->layer = p->ask_layer;
    window->first = p->ask_first;
    window->n = rest < p->at_once ? rest : p->at_once;
    window->there = false;
    struct record_read read = {.first = window->first,
                               .n_tokens = window->n,
                               .what = READ_ENTRIES,
                               .ahead = p->n_windows > 0};
    int rc = request_push_read(r, window->layer, &read, why);
    window->read_id = read.read_id;
    window->asked_ns = clock_now_ns();
    if (rc)
        return rc;
    p->n_windows++;
    p->ask_first += window->n;
    if (p->ask_first < r->n_past)
        return 0;
    if (++p->ask_layer < n_layers(r))
        p->ask_first = engine_past_from(r->w->engine, p->ask_layer);
    return 0;
}

/* Out of staging; looked at again afterwards [I10]. */
static int copy(struct request *r, struct hill_why *why)
{
    const struct dataplane *plane = &r->w->plane;
    const struct past_window *window = &r->past->windows[0];
    uint32_t bytes = worker_entry_bytes(r->w);
    for (uint32_t i = 0; i < window->n; i++) {
        const struct selected_upload slot = {window->slots[i].staging_slot,
                                             window->slots[i].generation, 0, 0};
        int rc = dataplane_check_staged(plane, &slot, 1, why);
        if (rc)
            return rc;
        memcpy(r->past->room + (size_t)i * bytes,
               shm_arena_slot(&plane->party.arena, slot.staging_slot), bytes);
        rc = dataplane_check_staged(plane, &slot, 1, why);
        if (rc)
            return rc;
    }
    r->past->copied = true;
    return 0;
}

static void pop(struct past *p)
{
    struct past_window first = p->windows[0];
    p->windows[0] = p->windows[1];
    p->windows[1] = first; /* its slots' memory */
    p->n_windows--;
    p->copied = false;
}

/* The oldest window to the engine. 1, 0 (not now), or an error. */
static int give(struct request *r, struct hill_why *why)
{
    struct past *p = r->past;
    const struct past_window *window = &p->windows[0];
    uint32_t chunks = r->units / n_layers(r);
    int rc = 0;
    if (!p->n_windows || !window->there || r->queued != window->layer * chunks)
        return 0;
    if (!p->copied && (rc = copy(r, why)) != 0)
        return rc;
    rc = engine_prefill_past(r->w->engine, window->layer, window->first, window->n, p->room, why);
    if (rc != 1)
        return rc;
    if (window->first + window->n == r->n_past)
        p->layer++;
    pop(p);
    worker_unit_of_work(r->w);
    return 1;
}

int past_pump(struct request *r, struct hill_why *why)
{
    struct past *p = r->past;
    if (!p)
        return 0;
    if (p->rc) {
        *why = p->why;
        return p->rc;
    }
    int given = give(r, why);
    if (given)
        return given;
    if (p->ask_layer < n_layers(r) && p->n_windows < p->depth) {
        int rc = ask(r, why);
        return rc ? rc : 1;
    }
    if (p->n_windows && !p->windows[0].there &&
        clock_now_ns() >= p->windows[0].asked_ns + WORKER_WAIT_MS * 1000000ll)
        return hill_fail(why, HILL_E_TIMEOUT, "the scorer sent no answer to a READ in time");
    return 0;
}

/* ---- answers -------------------------------------------------------------------------------- */

static struct past_window *asked(const struct worker *w, const struct record_entries *e)
{
    struct request *r = w->requests[e->header.sequence];
    for (uint32_t i = 0; r && r->past && i < r->past->n_windows; i++)
        if (r->past->windows[i].read_id == e->read_id && !r->past->windows[i].there)
            return &r->past->windows[i];
    return NULL;
}

bool past_take_entries(struct worker *w, const struct record_entries *e)
{
    struct past_window *window = asked(w, e);
    if (!window)
        return false;
    struct past *p = w->requests[e->header.sequence]->past;
    if (e->status)
        p->rc = hill_fail(&p->why, e->status, "the scorer cannot read entries %u.. of layer %u: %s",
                          window->first, window->layer, hill_strerror(e->status));
    else if (e->n_entries != window->n || e->header.layer != window->layer)
        p->rc = hill_fail(&p->why, HILL_E_PROTOCOL, "%u entries of layer %u came for %u of %u",
                          e->n_entries, e->header.layer, window->n, window->layer);
    else
        memcpy(window->slots, e + 1, window->n * sizeof *window->slots);
    window->there = true;
    return true;
}
