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
    if (bytes) /* else what was loaded into it before may still be on its way */
        out->due = stored_charge(r->w, bytes);
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
    if (rc || now - x->waits_since < WORKER_WAIT_MS * 1000000ll)
        return 0; /* rc: it is read, and waits for the modelled drive alone */
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
    struct drive_chunk read = r->stored->chunks[chunk];
    chunk_keys_forget(r->selected->store, read.slot, read.stamp);
    return hill_fail(why, HILL_E_DAMAGED,
                     "prefix store %.300s: the %s of chunk %u are not right, or not there",
                     r->selected->store->dir, what, read.slot);
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

/* ---- what is asked for ---------------------------------------------------------------------- */

/* Of the layer that the engine computes next. */
static struct layer_past *current(struct selected *x)
{
    return &x->past[x->layer % 2];
}

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
    if (!at.entries) { /* it was right when it came there, and stays until cache_runs */
        p->slots[i] = at.slot;
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

/* Run i of some that are ascending, into its place, as a span or the end of the one before: goes_on
 * where that is the run before. Returns the spans that there are. */
static uint32_t add_span(struct request *r, uint32_t n, bool goes_on, uint32_t layer, uint32_t run,
                         uint8_t *to)
{
    struct selected *x = r->selected;
    uint32_t chunk = run / x->store->n_runs, in_chunk = run % x->store->n_runs;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    if (goes_on && in_chunk) { /* of the same chunk */
        x->spans[n - 1].bytes += bytes;
        return n;
    }
    uint64_t at = chunk_keys_run_at(x->store, r->stored->chunks[chunk].slot, layer, in_chunk);
    x->spans[n] = (struct span){x->store->data_fd, at, bytes, to};
    return n + 1;
}

/* What is chosen and neither in a cache nor read ahead. */
static uint32_t spans_of_runs(struct request *r, struct layer_past *p)
{
    uint64_t bytes = chunk_keys_run_bytes(r->selected->store);
    uint32_t n = 0, last = UINT32_MAX - 1; /* the run that was added last */
    for (uint32_t i = 0; i < p->n; i++) {
        if (is_cached(r, p, i) || p->from[i] != NOT_AHEAD)
            continue;
        n = add_span(r, n, last + 1 == p->runs[i], p->layer, p->runs[i], p->entries + i * bytes);
        last = p->runs[i];
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

/* All that the layer may see. */
static void take_window(const struct request *r, struct layer_past *p)
{
    uint32_t first = first_run(r, p->layer);
    p->n = count_runs(r, p->layer);
    p->all_mass = 0;
    for (uint32_t i = 0; i < p->n; i++)
        p->runs[i] = first + i;
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

/* What the layer's queries attend to, or where it is a layer ahead guessed ones: the most important
 * runs, as many as wanted. keys: NULL where the device has them from the guess. */
static int look(struct request *r, struct layer_past *p, const uint16_t *keys, uint32_t wanted,
                struct hill_why *why)
{
    struct selected *x = r->selected;
    struct engine *e = r->w->engine;
    uint32_t n_probes = x->store->shape.n_probes, tokens = selected_run_tokens(r);
    int rc = engine_finish(e, why); /* what is queued is not looking */
    if (rc)
        return rc;
    int64_t start = clock_now_ns();
    rc = p->layer > x->layer ? engine_prefill_guess(e, p->layer, why) : 0;
    if (!rc)
        rc = engine_prefill_probe(e, x->store->heads + (size_t)p->layer * n_probes, n_probes, keys,
                                  p->mass, why);
    if (!rc && important_choose(p->mass, x->n_past / tokens, tokens, wanted, p->runs))
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    x->probe_ns += clock_now_ns() - start;
    x->n_looks++;
    return rc;
}

/* Which of the chosen runs were read ahead. Both lists are ascending. */
static void find_ahead(struct layer_past *p)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        while (at < p->n_ahead && p->ahead_runs[at] < p->runs[i])
            at++;
        p->from[i] = at < p->n_ahead && p->ahead_runs[at] == p->runs[i] ? at : NOT_AHEAD;
    }
}

/* By the layer's own queries. 1, 0: its keys are not there yet, or an error. */
static int choose(struct request *r, struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    int rc = is_there(r, &x->keys_load[p->layer / x->store->piece_layers % 2], why);
    if (rc != 1)
        return rc;
    rc = p->guessed ? 0 : unpack_keys(r, p->layer, why);
    rc = rc ? rc : look(r, p, p->guessed ? NULL : x->probe, x->wanted, why);
    if (rc)
        return rc;
    p->n = x->wanted;
    p->all_mass = important_mass(p->mass, x->n_past);
    return 1;
}

/* The layer whose queries are queued. */
static int ask(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct layer_past *p = current(x);
    int rc = 1;
    if (takes_all(r, p->layer))
        take_window(r, p);
    else
        rc = choose(r, p, why);
    if (rc != 1)
        return rc;
    find_ahead(p);
    rc = load_runs(r, p, why);
    x->phase = PHASE_AHEAD;
    return rc ? rc : 1;
}

/* ---- a layer ahead --------------------------------------------------------------------------- */

/* Of a guess those of most weight: nearly all of them will be chosen. */
static uint32_t part_ahead(uint32_t wanted)
{
    return wanted * 2 / 3;
}

/* Is the drive what is waited for, and are the layer's keys there? */
static bool guesses(const struct request *r, const struct layer_past *p)
{
    const struct selected *x = r->selected;
    const struct load *keys = &x->keys_load[p->layer / x->store->piece_layers % 2];
    bool slow = x->n_unguessed && x->unguessed_wait_ns / x->n_unguessed > x->probe_ns / x->n_looks;
    return p->layer >= SELECTED_UNGUESSED && (slow || x->guessing == GUESSING_ON) &&
           clock_now_ns() >= keys->due && span_reader_done(x->reader, keys->job) == 1;
}

/* Of n runs what no cache has. Where in a cache the others are is asked in the layer's own turn:
 * until then they may move. */
static int load_ahead(struct request *r, struct layer_past *p, uint32_t n, struct hill_why *why)
{
    uint64_t bytes = chunk_keys_run_bytes(r->selected->store);
    uint32_t n_spans = 0, last = UINT32_MAX - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t run = p->runs[i];
        struct run_name name = name_of(r, p, i);
        if (r->w->runs && run_cache_has(r->w->runs, &name))
            continue;
        n_spans =
            add_span(r, n_spans, last + 1 == run, p->layer, run, p->ahead + p->n_ahead * bytes);
        p->ahead_runs[p->n_ahead++] = run;
        last = run;
    }
    return load(r, n_spans, &p->load, why);
}

/* The runs that the layer probably chooses, into p->runs: how many, or an error. */
static int guess(struct request *r, struct layer_past *p, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint32_t n = part_ahead(x->wanted);
    int rc = unpack_keys(r, p->layer, why);
    rc = rc ? rc : look(r, p, x->probe, n, why);
    if (rc)
        return rc;
    p->guessed = true;
    x->n_guessed++;
    return (int)n;
}

/* The next layer, behind what this one has asked for. */
static int ask_ahead(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint32_t layer = x->layer + 1;
    struct layer_past *p = &x->past[layer % 2];
    int n = 0;
    p->layer = layer;
    p->n_ahead = 0;
    p->guessed = false;
    x->phase = PHASE_RUNS;
    if (layer == r->w->hparams.n_layers || x->guessing == GUESSING_OFF || x->loads_all)
        return 1;
    if (takes_all(r, layer)) {
        take_window(r, p);
        n = (int)p->n;
    } else if (guesses(r, p)) {
        n = guess(r, p, why);
    }
    int rc = n > 0 ? load_ahead(r, p, (uint32_t)n, why) : n;
    return rc ? rc : 1;
}

/* ---- a layer is computed --------------------------------------------------------------------- */

static int begin_layer(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    if (x->layer == r->w->hparams.n_layers || x->layer > r->unit + 1)
        return 0; /* the engine keeps the entries of two units */
    x->given = 0;
    x->phase = PHASE_CHOOSE;
    int rc = engine_prefill_keys(r->w->engine, x->layer,
                                 count_runs(r, x->layer) * selected_run_tokens(r), why);
    return rc ? rc : 1;
}

/* Once all of them are known to be right, and those on the device are queued to be read: the host
 * has no bytes of these. */
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

/* Of all runs the chosen ones, to where they lie if they alone are loaded. */
static void take_chosen(const struct selected *x, struct layer_past *p)
{
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    for (uint32_t i = 0; i < p->n; i++)
        memmove(p->entries + i * bytes, p->entries + p->runs[i] * bytes, bytes);
}

/* Those that were read ahead, to their places. Where they are all of the layer's, nothing else was
 * read. */
static void take_ahead(const struct selected *x, struct layer_past *p)
{
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    if (p->n_ahead == p->n && p->from[p->n - 1] == p->n - 1) {
        uint8_t *entries = p->entries;
        p->entries = p->ahead;
        p->ahead = entries;
        return;
    }
    for (uint32_t i = 0; i < p->n; i++)
        if (p->from[i] != NOT_AHEAD && p->slots[i] == ENGINE_NO_SLOT)
            memcpy(p->entries + i * bytes, p->ahead + p->from[i] * bytes, bytes);
}

/* How long the drive was waited for where nothing had been asked for ahead. */
static void note_wait(struct selected *x, const struct layer_past *p, int64_t wait_ns)
{
    if (p->guessed || p->all_mass == 0)
        return;
    x->n_unguessed++;
    x->unguessed_wait_ns += wait_ns;
}

static int take_runs(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct layer_past *p = current(x);
    uint32_t per_chunk = x->store->n_runs;
    int64_t waited = x->wait_ns;
    int rc = is_there(r, &p->load, why);
    if (rc == 1 && x->loads_all)
        take_chosen(x, p);
    if (rc == 1) {
        take_ahead(x, p);
        note_wait(x, p, x->wait_ns - waited);
        x->phase = PHASE_GIVE;
    }
    for (uint32_t i = 0; rc == 1 && i < p->n; i++) {
        uint32_t chunk = p->runs[i] / per_chunk;
        if (p->slots[i] == ENGINE_NO_SLOT &&
            !chunk_keys_run_fits(x->store, sums_of(x, chunk), x->layer, p->runs[i] % per_chunk,
                                 p->entries + i * chunk_keys_run_bytes(x->store)))
            rc = damaged(r, chunk, "entries", why);
    }
    return rc;
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
    case PHASE_CHOOSE:
        return ask(r, why);
    case PHASE_AHEAD:
        return ask_ahead(r, why);
    case PHASE_RUNS:
        return take_runs(r, why);
    default:
        return give(r, why);
    }
}
