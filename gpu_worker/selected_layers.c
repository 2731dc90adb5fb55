/*
 * gpu_worker/selected_layers.c - the layers of a prompt over important tokens, one by one: keys are
 * read, what is important is found, read and given to the engine. See selected_internal.h.
 */
#include <string.h>

#include "gpu_worker/important_runs.h"
#include "gpu_worker/selected.h"
#include "gpu_worker/selected_internal.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* Page by page, as the drive reads; the modelled one has it some time later. */
static int load(struct request *r, uint32_t n_spans, struct load *out, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_spans; i++)
        bytes += stored_pages(x->spans[i].at, x->spans[i].bytes);
    r->loaded_bytes += bytes;
    out->due = bytes ? stored_charge(r->w, bytes) : 0;
    return span_reader_give(x->reader, x->spans, n_spans, &out->job)
               ? hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix")
               : 0;
}

/* A layer's, of a chunk. */
static uint8_t *keys_of(const struct selected *x, uint32_t layer, uint32_t chunk)
{
    const struct chunk_keys *store = x->store;
    return x->keys[layer / store->piece_layers % 2] + chunk * store->piece_bytes +
           layer % store->piece_layers * chunk_keys_layer_bytes(store);
}

static int load_sums(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    for (uint32_t i = 0; i < x->n_chunks; i++)
        x->spans[i] =
            (struct span){x->store->fd, chunk_keys_sums_at(x->store, r->stored->chunks[i].slot),
                          x->store->sums_bytes, x->sums + i * x->store->sums_bytes};
    return load(r, x->n_chunks, &x->sums_load, why);
}

/* Are all tokens that the layer may see taken, unasked? */
static bool takes_all(const struct request *r, uint32_t layer)
{
    const struct selected *x = r->selected;
    return x->wanted * selected_run_tokens(r) == x->n_past ||
           model_layer_window(&r->w->hparams, layer);
}

/* Of a piece: from its first layer that is asked to its last; there may be none. */
static int load_keys(struct request *r, uint32_t piece, struct hill_why *why)
{
    struct selected *x = r->selected;
    const struct model_hparams *hp = &r->w->hparams;
    uint32_t first = piece * x->store->piece_layers, end = first + x->store->piece_layers;
    uint32_t n = 0, from = 0;
    for (uint32_t l = first; l < end && l < hp->n_layers; l++)
        if (!takes_all(r, l)) {
            from = n ? from : l;
            n = l - from + 1;
        }
    for (uint32_t i = 0; i < x->n_chunks; i++)
        x->spans[i] = (struct span){x->store->fd,
                                    chunk_keys_layer_at(x->store, r->stored->chunks[i].slot, from),
                                    n * chunk_keys_layer_bytes(x->store), keys_of(x, from, i)};
    return n ? load(r, x->n_chunks, &x->keys_load[piece % 2], why) : 0;
}

/* 1, 0, or why not. A wait for it is one in which nothing is computed. */
static int is_there(struct request *r, const struct load *load, struct hill_why *why)
{
    struct selected *x = r->selected;
    int64_t now = clock_now_ns();
    int rc = span_reader_done(x->reader, load->job);
    if (rc == HILL_E_DAMAGED) /* beyond a file's end: chunks that were left without the option */
        return hill_fail(why, rc, "prefix store %.300s has no keys of some chunks yet",
                         x->store->dir);
    if (rc < 0)
        return hill_fail(why, HILL_E_DAMAGED, "reading prefix store %.300s failed: %s",
                         x->store->dir, hill_strerror(rc));
    if (rc && now >= load->due) {
        x->wait_ns += x->waits_since ? now - x->waits_since : 0;
        x->waits_since = 0;
        return 1;
    }
    x->waits_since = x->waits_since ? x->waits_since : now;
    if (now - x->waits_since < WORKER_WAIT_MS * 1000000ll)
        return 0;
    return hill_fail(why, HILL_E_IO, "prefix store %.300s: the drive has not read in %d s",
                     x->store->dir, WORKER_WAIT_MS / 1000);
}

static const uint8_t *sums_of(const struct selected *x, uint32_t chunk)
{
    return x->sums + chunk * x->store->sums_bytes;
}

/* Also where a chunk has none yet: they are written when it is read whole. */
static int damaged(const struct request *r, uint32_t chunk, const char *what, struct hill_why *why)
{
    chunk_keys_forget(r->selected->store, r->stored->chunks[chunk].slot);
    return hill_fail(why, HILL_E_DAMAGED,
                     "prefix store %.300s: the %s of chunk %u are not right, or not there",
                     r->selected->store->dir, what, r->stored->chunks[chunk].slot);
}

static int take_sums(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    int rc = is_there(r, &x->sums_load, why);
    for (uint32_t i = 0; rc == 1 && i < x->n_chunks; i++)
        if (!chunk_keys_are_sums(x->store, sums_of(x, i), r->stored->chunks[i].stamp))
            rc = damaged(r, i, "checksums", why);
    if (rc == 1)
        x->phase = PHASE_LAYER;
    return rc;
}

/* ---- a layer is asked for -------------------------------------------------------------------- */

/* 0, or in a layer with a window the first run that the prompt may see. */
static uint32_t first_run(const struct request *r, uint32_t layer)
{
    return engine_past_from(r->w->engine, layer) / selected_run_tokens(r);
}

static uint32_t count_runs(const struct request *r, uint32_t layer)
{
    const struct selected *x = r->selected;
    return takes_all(r, layer) ? x->n_past / selected_run_tokens(r) - first_run(r, layer)
                               : x->wanted;
}

static struct run_name name_of(const struct request *r, const struct layer_past *p, uint32_t i)
{
    uint32_t per_chunk = r->selected->store->n_runs;
    return (struct run_name){r->stored->chunks[p->runs[i] / per_chunk].stamp, p->layer,
                             p->runs[i] % per_chunk};
}

/* The share that a chosen run has of what the layer's past is attended to. */
static double importance_of(const struct selected *x, const struct layer_past *p, uint32_t i)
{
    uint32_t n = x->store->run_tokens;
    return p->all_mass > 0 ? important_mass(p->mass + (uint64_t)p->runs[i] * n, n) / p->all_mass
                           : 1.0 / p->n;
}

static bool is_cached(struct request *r, struct layer_past *p, uint32_t i)
{
    const struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    struct run_name name = name_of(r, p, i);
    struct run_place at;
    if (!r->w->runs || !run_cache_use(r->w->runs, &name, importance_of(x, p, i), &at))
        return false;
    if (!at.entries) { /* it was right when it came there */
        p->slots[i] = at.slot;
        run_cache_hold(r->w->runs, at.slot, true);
        r->cached_bytes += bytes;
        r->cached_gpu_bytes += bytes;
        return true;
    }
    if (!chunk_keys_run_fits(x->store, sums_of(x, p->runs[i] / x->store->n_runs), p->layer,
                             name.run, at.entries)) { /* gone bad in memory: the drive has it */
        run_cache_drop(r->w->runs, &name);
        return false;
    }
    memcpy(p->entries + i * bytes, at.entries, bytes);
    r->cached_bytes += bytes;
    return true;
}

static uint32_t spans_of_all(struct request *r, const struct layer_past *p)
{
    struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store) * x->store->n_runs;
    for (uint32_t i = 0; i < x->n_chunks; i++)
        x->spans[i] = (struct span){
            x->store->data_fd, chunk_keys_run_at(x->store, r->stored->chunks[i].slot, p->layer, 0),
            bytes, p->entries + i * bytes};
    return x->n_chunks;
}

/* What the cache has not. Runs side by side in a chunk are one span. */
static uint32_t spans_of_runs(struct request *r, struct layer_past *p)
{
    struct selected *x = r->selected;
    uint32_t n = 0;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    bool goes_on = false; /* the run before is at the last span's end */
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t chunk = p->runs[i] / x->store->n_runs, run = p->runs[i] % x->store->n_runs;
        goes_on = goes_on && run && p->runs[i - 1] + 1 == p->runs[i];
        if (is_cached(r, p, i)) {
            goes_on = false;
        } else if (goes_on) {
            x->spans[n - 1].bytes += bytes;
        } else {
            uint64_t at = chunk_keys_run_at(x->store, r->stored->chunks[chunk].slot, p->layer, run);
            x->spans[n++] = (struct span){x->store->data_fd, at, bytes, p->entries + i * bytes};
            goes_on = true;
        }
    }
    return n;
}

/* Keys of the next layers come behind the runs of the first layer of a piece. */
static int load_runs(struct request *r, struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    memset(p->slots, 0xff, p->n * sizeof *p->slots); /* ENGINE_NO_SLOT */
    uint32_t n = x->loads_all ? spans_of_all(r, p) : spans_of_runs(r, p);
    r->loaded_entries += x->loads_all ? x->n_past : (uint64_t)p->n * selected_run_tokens(r);
    int rc = load(r, n, &p->load, why);
    bool first = p->layer % x->store->piece_layers == 0;
    return rc || !first ? rc : load_keys(r, p->layer / x->store->piece_layers + 1, why);
}

/* Checked, and as the engine reads them. */
static int unpack_keys(const struct request *r, uint32_t layer, struct hill_why *why)
{
    const struct selected *x = r->selected;
    uint64_t halfs = chunk_keys_unpacked_bytes(x->store) / sizeof *x->probe;
    for (uint32_t i = 0; i < x->n_chunks; i++) {
        const uint8_t *keys = keys_of(x, layer, i);
        if (!chunk_keys_fit(x->store, sums_of(x, i), layer, keys))
            return damaged(r, i, "keys", why);
        chunk_keys_unpack(x->store, keys, x->probe + i * halfs);
    }
    return 0;
}

/* By the layer's own queries, or a layer ahead by guessed ones. 1, 0: its keys are not there yet,
 * or an error. */
static int choose(struct request *r, struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct engine *e = r->w->engine;
    uint32_t n_probes = x->store->shape.n_probes, tokens = selected_run_tokens(r);
    const uint16_t *heads = x->store->heads + (size_t)p->layer * n_probes;
    int rc = is_there(r, &x->keys_load[p->layer / x->store->piece_layers % 2], why);
    if (rc != 1)
        return rc;
    rc = p->layer > x->layer ? engine_prefill_guess(e, p->layer, why) : 0;
    rc = rc ? rc : unpack_keys(r, p->layer, why);
    rc = rc ? rc : engine_finish(e, why); /* the layer before, which is not probing */
    if (rc)
        return rc;
    int64_t start = clock_now_ns();
    rc = engine_prefill_probe(e, heads, n_probes, x->probe, p->mass, why);
    if (!rc && important_choose(p->mass, x->n_past / tokens, tokens, x->wanted, p->runs))
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    x->probe_ns += clock_now_ns() - start;
    p->all_mass = rc ? 0 : important_mass(p->mass, x->n_past);
    return rc ? rc : 1;
}

static void take_window(const struct request *r, struct layer_past *p)
{
    uint32_t n = count_runs(r, p->layer);
    for (uint32_t i = 0; i < n; i++)
        p->runs[i] = first_run(r, p->layer) + i;
}

/* The layer that begins, where it was not asked for before, and the one after it. */
static int ask(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint32_t layer = x->asked;
    bool ahead = layer > x->layer;
    if (layer > x->layer + 1 || layer == r->w->hparams.n_layers ||
        (ahead && layer < x->ahead_from)) {
        x->phase = PHASE_RUNS;
        return 1;
    }
    struct layer_past *p = &x->past[layer % 2];
    p->layer = layer;
    p->all_mass = 0;
    int rc = 1;
    if (takes_all(r, layer))
        take_window(r, p);
    else
        rc = choose(r, p, why);
    if (rc != 1)
        return rc;
    x->asked++;
    x->n_ahead += ahead;
    p->n = count_runs(r, layer);
    rc = load_runs(r, p, why);
    return rc ? rc : 1;
}

/* ---- a layer is computed --------------------------------------------------------------------- */

/* Of what it was asked for: the layer that the engine computes next. */
static struct layer_past *current(struct selected *x)
{
    return &x->past[x->layer % 2];
}

static int begin_layer(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    if (x->layer == r->w->hparams.n_layers || x->layer > r->unit + 1)
        return 0; /* the engine keeps the entries of two units */
    x->given = 0;
    x->phase = PHASE_ASK;
    int rc = engine_prefill_keys(r->w->engine, x->layer,
                                 count_runs(r, x->layer) * selected_run_tokens(r), why);
    return rc ? rc : 1;
}

/* Once all of them are known to be right, and those on the device are queued to be read. These stay
 * where they are until all others have come. */
static int cache_runs(struct request *r, const struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct run_cache *runs = r->w->runs;
    int rc = 0;
    for (uint32_t i = 0; !rc && runs && i < p->n; i++) {
        struct run_name name = name_of(r, p, i);
        if (p->slots[i] == ENGINE_NO_SLOT)
            rc = run_cache_put(runs, &name, importance_of(x, p, i),
                               p->entries + i * chunk_keys_run_bytes(x->store), why);
    }
    return rc;
}

static void let_go(struct run_cache *runs, struct layer_past *p)
{
    for (uint32_t i = 0; runs && i < p->n; i++)
        if (p->slots[i] != ENGINE_NO_SLOT)
            run_cache_hold(runs, p->slots[i], false);
    p->n = 0;
}

/* Of all runs the chosen ones, to where they lie if they alone are loaded. */
static void take_chosen(const struct selected *x, struct layer_past *p)
{
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    for (uint32_t i = 0; i < p->n; i++)
        memmove(p->entries + i * bytes, p->entries + p->runs[i] * bytes, bytes);
}

static int take_runs(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct layer_past *p = current(x);
    uint32_t per_chunk = x->store->n_runs;
    int rc = is_there(r, &p->load, why);
    if (rc == 1 && x->loads_all)
        take_chosen(x, p);
    for (uint32_t i = 0; rc == 1 && i < p->n; i++) {
        uint32_t chunk = p->runs[i] / per_chunk;
        if (p->slots[i] == ENGINE_NO_SLOT &&
            !chunk_keys_run_fits(x->store, sums_of(x, chunk), x->layer, p->runs[i] % per_chunk,
                                 p->entries + i * chunk_keys_run_bytes(x->store)))
            rc = damaged(r, chunk, "entries", why);
    }
    if (rc != 1)
        return rc;
    x->phase = PHASE_GIVE;
    return 1;
}

static bool any_slot(const uint32_t *slots, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && slots[i] == ENGINE_NO_SLOT)
        i++;
    return i < n;
}

/* The layer's entries to the scorer, those of runs on the device, too. */
static int append_chosen(struct request *r, const struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    uint32_t n = p->n * selected_run_tokens(r);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < p->n; i++)
        if (p->slots[i] != ENGINE_NO_SLOT)
            rc = engine_read_run(r->w->engine, p->slots[i], p->entries + i * bytes, why);
    return rc ? rc : request_append_entries(r, x->layer, 0, n, p->entries, why);
}

/* All of the layer's past was given: it is computed. */
static int compute(struct request *r, struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    int rc = engine_prefill_enqueue(r->w->engine, x->layer, why);
    if (!rc && r->holds_chosen) /* while the device computes the layer */
        rc = append_chosen(r, p, why);
    if (!rc)
        rc = cache_runs(r, p, why);
    if (rc)
        return rc;
    let_go(r->w->runs, p);
    r->queued++;
    x->layer++;
    x->phase = PHASE_LAYER;
    return 1;
}

/* 1, 0: the device has what was given before, or an error. */
static int give(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct layer_past *p = current(x);
    struct engine *e = r->w->engine;
    uint32_t all = p->n * selected_run_tokens(r), rest = all - x->given;
    uint32_t n = rest < ENGINE_PAST_TOKENS ? rest : ENGINE_PAST_TOKENS;
    const uint8_t *entries = p->entries + (uint64_t)x->given * worker_entry_bytes(r->w);
    const uint32_t *slots = p->slots + x->given / selected_run_tokens(r);
    int rc = any_slot(slots, n / selected_run_tokens(r))
                 ? engine_prefill_past_runs(e, x->layer, x->given, n, entries, slots, why)
                 : engine_prefill_past(e, x->layer, x->given, n, entries, why);
    if (rc != 1)
        return rc;
    x->given += n;
    return x->given < all ? 1 : compute(r, p, why);
}

/* ---- what selected.c calls ------------------------------------------------------------------- */

int selected_layers_begin(struct request *r, struct hill_why *why)
{
    int rc = load_sums(r, why);
    return rc ? rc : load_keys(r, 0, why);
}

int selected_layers_turn(struct request *r, struct hill_why *why)
{
    switch (r->selected->phase) {
    case PHASE_SUMS:
        return take_sums(r, why);
    case PHASE_LAYER:
        return begin_layer(r, why);
    case PHASE_ASK:
        return ask(r, why);
    case PHASE_RUNS:
        return take_runs(r, why);
    default:
        return give(r, why);
    }
}

void selected_layers_let_go(struct request *r)
{
    for (int i = 0; i < 2; i++)
        let_go(r->w->runs, &r->selected->past[i]);
}
