/* gpu_worker/selected.c - see selected.h. */
#include "gpu_worker/selected.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/important_runs.h"
#include "gpu_worker/stored_internal.h"
#include "prefix/run_cache.h"
#include "prefix/span_reader.h"

enum phase {
    PHASE_SUMS,  /* checksums of all chunks are read */
    PHASE_LAYER, /* the next layer is to begin */
    PHASE_KEYS,  /* its queries are queued, its probe heads' keys are read */
    PHASE_RUNS,  /* what is chosen is read */
    PHASE_GIVE,  /* ...and given to the engine */
};

struct load {
    uint64_t job;
    int64_t due; /* of the modelled drive */
};

struct selected {
    struct span_reader *reader;
    const struct chunk_keys *store;
    uint32_t n_past, n_chunks; /* tokens before the prompt, their chunks */
    uint32_t wanted;           /* runs of a layer without a window */
    bool loads_all;            /* HILL_TEST_IMPORTANT_LOAD */
    enum phase phase;
    uint32_t layer;
    uint32_t *runs, n_runs, given; /* of the layer: chosen, ascending; tokens that the engine has */
    uint32_t *slots;               /* [runs]: the device's, or ENGINE_NO_SLOT: in entries */
    uint8_t *sums;                 /* [n_chunks][sums_bytes] */
    uint8_t *keys[2];              /* of piece i in i % 2: [n_chunks][piece_bytes] */
    uint16_t *probe;               /* of the layer: [n_past][probe][head_dim] */
    uint8_t *entries;              /* of the layer: [runs][entry] */
    float *mass;                   /* [n_past] */
    double all_mass;               /* of them together; 0: a layer that takes all, not asked */
    struct span *spans;            /* [max(n_chunks, runs)] of the load that is asked for */
    struct load sums_load, keys_load[2], runs_load;
    int64_t waits_since; /* for the drive; 0: it does not */
    int64_t probe_ns, wait_ns;
};

/* ---- begin ----------------------------------------------------------------------------------- */

static uint32_t run_tokens(const struct request *r)
{
    return r->w->store->keys->run_tokens;
}

/* Whole chunks of plain tokens. */
static uint32_t takes(const struct request *r)
{
    const struct chunk_hit *hit = &r->stored->hit;
    uint32_t plain = hit->n_plain < hit->n_tokens ? hit->n_plain : hit->n_tokens;
    return plain / CHUNK_TOKENS * CHUNK_TOKENS;
}

/* Is there room in --gpu-kv-mb for what the probe takes? */
static bool fits(const struct request *r, uint32_t n)
{
    const struct worker *w = r->w;
    uint32_t own = r->prompt - n;
    uint64_t needed = engine_kv_bytes_needed(w->engine, n, own) +
                      engine_probe_bytes_needed(w->engine, n, own, w->store->keys->shape.n_probes);
    return !w->settings.gpu_kv_cap_bytes || needed <= w->settings.gpu_kv_cap_bytes;
}

/* Of what it takes, by no layer. */
static uint32_t not_taken(const struct request *r)
{
    uint32_t n = takes(r);
    return n - important_runs(n, run_tokens(r), r->w->settings.prefix_share) * run_tokens(r);
}

bool selected_suits(const struct request *r)
{
    const struct worker *w = r->w;
    const struct chunk_hit *hit = &r->stored->hit;
    uint32_t n = takes(r);
    bool decoded = hit->n_tokens > hit->n_plain; /* the conversation's own are always taken */
    if (!w->store->keys || w->store_silent || r->whole_prefix || decoded || !n ||
        r->reused > n / 2 || r->prompt - n > w->settings.plan.batch_tokens || request_weighs(r) ||
        !fits(r, n))
        return false;
    return w->settings.prefix_share >= 1 || not_taken(r);
}

uint32_t selected_cut(struct request *r)
{
    struct chunk_hit *hit = &r->stored->hit;
    hit->n_tokens = takes(r);
    hit->n_chunks = hit->n_tokens / CHUNK_TOKENS;
    return not_taken(r);
}

static uint32_t most_runs(const struct request *r, const struct selected *x)
{
    uint32_t most = x->loads_all ? x->n_past / run_tokens(r) : x->wanted;
    for (uint32_t l = 0; l < r->w->hparams.n_layers; l++) {
        uint32_t window = model_layer_window(&r->w->hparams, l);
        uint32_t seen = window + 2 * CHUNK_TOKENS < x->n_past ? window + 2 * CHUNK_TOKENS
                                                              : x->n_past; /* both ends are whole */
        if (window && seen / run_tokens(r) > most)
            most = seen / run_tokens(r);
    }
    return most;
}

static bool allocate(struct selected *x, uint32_t entry, uint32_t most)
{
    uint64_t run = (uint64_t)x->store->run_tokens * entry;
    x->sums = malloc(x->n_chunks * x->store->sums_bytes);
    for (int i = 0; i < 2; i++)
        x->keys[i] = malloc(x->n_chunks * x->store->piece_bytes);
    x->probe = malloc(x->n_chunks * chunk_keys_unpacked_bytes(x->store));
    x->entries = malloc(most * run);
    x->mass = malloc(x->n_past * sizeof *x->mass);
    x->runs = malloc(most * sizeof *x->runs);
    x->slots = malloc(most * sizeof *x->slots);
    x->spans = malloc((most > x->n_chunks ? most : x->n_chunks) * sizeof *x->spans);
    return x->sums && x->keys[0] && x->keys[1] && x->probe && x->entries && x->mass && x->runs &&
           x->slots && x->spans;
}

/* HILL_TEST_IMPORTANT_LOAD=all: important tokens are found and attended to as ever, but all of the
 * prefix is loaded: what loading less saves, apart from attending to less. */
static bool asks_for_all(void)
{
    const char *value = getenv("HILL_TEST_IMPORTANT_LOAD");
    bool all = value && strcmp(value, "all") == 0;
    if (all)
        log_warn("test hook HILL_TEST_IMPORTANT_LOAD: unimportant tokens are loaded, too");
    return all;
}

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
    return x->wanted * run_tokens(r) == x->n_past || model_layer_window(&r->w->hparams, layer);
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

static int begin(struct request *r, struct hill_why *why)
{
    const struct worker *w = r->w;
    struct selected *x = r->selected = calloc(1, sizeof *x);
    if (!x)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    x->store = w->store->keys;
    x->n_past = r->n_plain = r->n_past = r->stored->hit.n_tokens = takes(r);
    x->n_chunks = r->stored->hit.n_chunks = x->n_past / CHUNK_TOKENS;
    x->wanted = important_runs(x->n_past, run_tokens(r), w->settings.prefix_share);
    x->loads_all = asks_for_all();
    if (!allocate(x, worker_entry_bytes(w), most_runs(r, x)) ||
        span_reader_open(&x->reader, worker_ring, w->plane.party.bell))
        return hill_fail(why, HILL_E_NOMEM, "out of memory or threads for a stored prefix");
    int rc = load_sums(r, why);
    if (!rc)
        rc = load_keys(r, 0, why);
    r->state = rc ? r->state : REQUEST_RESTORED;
    return rc;
}

/* Also by a reader that was left behind. */
static void release(void *selected)
{
    struct selected *x = selected;
    free(x->runs);
    free(x->slots);
    free(x->sums);
    free(x->keys[0]);
    free(x->keys[1]);
    free(x->probe);
    free(x->entries);
    free(x->mass);
    free(x->spans);
    free(x);
}

/* A drive that has not answered could leave threads and memory behind for each further request. */
static void note_silence(struct worker *w)
{
    if (!w->store_silent)
        log_warn("prefix store %.300s: its drive does not answer; memory that it may still write "
                 "to is left to it until it does, and from now on prefixes are read whole",
                 w->store->keys->dir);
    w->store_silent = true;
}

void selected_drop(struct request *r)
{
    struct selected *x = r->selected;
    r->selected = NULL;
    if (!x)
        return;
    if (span_reader_close(x->reader, release, x)) /* first: it writes into the rest */
        release(x);
    else
        note_silence(r->w);
}

/* ---- a layer --------------------------------------------------------------------------------- */

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

/* The newest tokens, as many as the layer's window may see; without a window all of them. */
static void take_window(struct request *r)
{
    struct selected *x = r->selected;
    uint32_t first = engine_past_from(r->w->engine, x->layer) / run_tokens(r);
    x->n_runs = x->n_past / run_tokens(r) - first;
    for (uint32_t i = 0; i < x->n_runs; i++)
        x->runs[i] = first + i;
}

static struct run_name name_of(const struct request *r, uint32_t i)
{
    const struct selected *x = r->selected;
    uint32_t per_chunk = x->store->n_runs;
    return (struct run_name){r->stored->chunks[x->runs[i] / per_chunk].stamp, x->layer,
                             x->runs[i] % per_chunk};
}

/* The share that a chosen run has of what the layer's past is attended to. */
static double importance_of(const struct selected *x, uint32_t i)
{
    uint32_t n = x->store->run_tokens;
    return x->all_mass > 0 ? important_mass(x->mass + (uint64_t)x->runs[i] * n, n) / x->all_mass
                           : 1.0 / x->n_runs;
}

static bool is_cached(struct request *r, uint32_t i)
{
    struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    struct run_name name = name_of(r, i);
    struct run_place at;
    if (!r->w->runs || !run_cache_use(r->w->runs, &name, importance_of(x, i), &at))
        return false;
    if (!at.entries) { /* it was right when it came there, and stays until cache_runs */
        x->slots[i] = at.slot;
        r->cached_bytes += bytes;
        r->cached_gpu_bytes += bytes;
        return true;
    }
    if (!chunk_keys_run_fits(x->store, sums_of(x, x->runs[i] / x->store->n_runs), x->layer,
                             name.run, at.entries)) { /* gone bad in memory: the drive has it */
        run_cache_drop(r->w->runs, &name);
        return false;
    }
    memcpy(x->entries + i * bytes, at.entries, bytes);
    r->cached_bytes += bytes;
    return true;
}

static uint32_t spans_of_all(struct request *r)
{
    struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store) * x->store->n_runs;
    for (uint32_t i = 0; i < x->n_chunks; i++)
        x->spans[i] = (struct span){
            x->store->data_fd, chunk_keys_run_at(x->store, r->stored->chunks[i].slot, x->layer, 0),
            bytes, x->entries + i * bytes};
    return x->n_chunks;
}

/* What the cache has not. Runs side by side in a chunk are one span. */
static uint32_t spans_of_runs(struct request *r)
{
    struct selected *x = r->selected;
    uint32_t n = 0;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    bool goes_on = false; /* the run before is at the last span's end */
    for (uint32_t i = 0; i < x->n_runs; i++) {
        uint32_t chunk = x->runs[i] / x->store->n_runs, run = x->runs[i] % x->store->n_runs;
        goes_on = goes_on && run && x->runs[i - 1] + 1 == x->runs[i];
        if (is_cached(r, i)) {
            goes_on = false;
        } else if (goes_on) {
            x->spans[n - 1].bytes += bytes;
        } else {
            uint64_t at = chunk_keys_run_at(x->store, r->stored->chunks[chunk].slot, x->layer, run);
            x->spans[n++] = (struct span){x->store->data_fd, at, bytes, x->entries + i * bytes};
            goes_on = true;
        }
    }
    return n;
}

static int load_runs(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    memset(x->slots, 0xff, x->n_runs * sizeof *x->slots); /* ENGINE_NO_SLOT */
    uint32_t n = x->loads_all ? spans_of_all(r) : spans_of_runs(r);
    r->loaded_entries += x->loads_all ? x->n_past : (uint64_t)x->n_runs * run_tokens(r);
    x->given = 0;
    x->phase = PHASE_RUNS;
    int rc = load(r, n, &x->runs_load, why);
    bool first = x->layer % x->store->piece_layers == 0;
    return rc || !first ? rc : load_keys(r, x->layer / x->store->piece_layers + 1, why);
}

/* The layer's queries; where all that it may see is taken, nothing is to be asked. */
static int begin_layer(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    if (x->layer == r->w->hparams.n_layers || x->layer > r->unit + 1)
        return 0; /* the engine keeps the entries of two units */
    bool all = takes_all(r, x->layer);
    x->n_runs = x->wanted;
    x->all_mass = 0;
    if (all)
        take_window(r);
    int rc = engine_prefill_keys(r->w->engine, x->layer, x->n_runs * run_tokens(r), why);
    if (!rc && all)
        rc = load_runs(r, why);
    else
        x->phase = PHASE_KEYS;
    return rc ? rc : 1;
}

/* Checked, and as the engine reads them. */
static int unpack_keys(const struct request *r, struct hill_why *why)
{
    const struct selected *x = r->selected;
    uint64_t halfs = chunk_keys_unpacked_bytes(x->store) / sizeof *x->probe;
    for (uint32_t i = 0; i < x->n_chunks; i++) {
        const uint8_t *keys = keys_of(x, x->layer, i);
        if (!chunk_keys_fit(x->store, sums_of(x, i), x->layer, keys))
            return damaged(r, i, "keys", why);
        chunk_keys_unpack(x->store, keys, x->probe + i * halfs);
    }
    return 0;
}

static int choose(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    const struct chunk_keys *store = x->store;
    uint32_t n_probes = store->shape.n_probes;
    int rc = is_there(r, &x->keys_load[x->layer / store->piece_layers % 2], why);
    if (rc != 1)
        return rc;
    rc = unpack_keys(r, why);
    if (!rc)
        rc = engine_finish(r->w->engine, why); /* the layer before, which is not probing */
    if (rc)
        return rc;
    int64_t start = clock_now_ns();
    rc = engine_prefill_probe(r->w->engine, store->heads + (size_t)x->layer * n_probes, n_probes,
                              x->probe, x->mass, why);
    if (!rc &&
        important_choose(x->mass, x->n_past / run_tokens(r), run_tokens(r), x->wanted, x->runs))
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    x->probe_ns += clock_now_ns() - start;
    if (rc)
        return rc;
    x->all_mass = important_mass(x->mass, x->n_past);
    rc = load_runs(r, why);
    return rc ? rc : 1;
}

/* Once all of them are known to be right, and those on the device are queued to be read. */
static int cache_runs(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    int rc = 0;
    for (uint32_t i = 0; !rc && r->w->runs && i < x->n_runs; i++) {
        struct run_name name = name_of(r, i);
        rc = run_cache_put(r->w->runs, &name, importance_of(x, i),
                           x->entries + i * chunk_keys_run_bytes(x->store), why);
    }
    return rc;
}

/* Of all runs the chosen ones, to where they lie if they alone are loaded. */
static void take_chosen(struct selected *x)
{
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    for (uint32_t i = 0; i < x->n_runs; i++)
        memmove(x->entries + i * bytes, x->entries + x->runs[i] * bytes, bytes);
}

static int take_runs(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint32_t per_chunk = x->store->n_runs;
    int rc = is_there(r, &x->runs_load, why);
    if (rc == 1 && x->loads_all)
        take_chosen(x);
    for (uint32_t i = 0; rc == 1 && i < x->n_runs; i++) {
        uint32_t chunk = x->runs[i] / per_chunk;
        if (x->slots[i] == ENGINE_NO_SLOT &&
            !chunk_keys_run_fits(x->store, sums_of(x, chunk), x->layer, x->runs[i] % per_chunk,
                                 x->entries + i * chunk_keys_run_bytes(x->store)))
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
static int append_chosen(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    uint64_t bytes = chunk_keys_run_bytes(x->store);
    int rc = 0;
    for (uint32_t i = 0; !rc && i < x->n_runs; i++)
        if (x->slots[i] != ENGINE_NO_SLOT)
            rc = engine_read_run(r->w->engine, x->slots[i], x->entries + i * bytes, why);
    return rc ? rc
              : request_append_entries(r, x->layer, 0, x->n_runs * run_tokens(r), x->entries, why);
}

/* 1, 0: the device has what was given before, or an error. */
static int give(struct request *r, struct hill_why *why)
{
    struct selected *x = r->selected;
    struct engine *e = r->w->engine;
    uint32_t all = x->n_runs * run_tokens(r), rest = all - x->given;
    uint32_t n = rest < ENGINE_PAST_TOKENS ? rest : ENGINE_PAST_TOKENS;
    const uint8_t *entries = x->entries + (uint64_t)x->given * worker_entry_bytes(r->w);
    const uint32_t *slots = x->slots + x->given / run_tokens(r);
    int rc = any_slot(slots, n / run_tokens(r))
                 ? engine_prefill_past_runs(e, x->layer, x->given, n, entries, slots, why)
                 : engine_prefill_past(e, x->layer, x->given, n, entries, why);
    if (rc != 1)
        return rc;
    x->given += n;
    if (x->given < all)
        return 1;
    rc = engine_prefill_enqueue(e, x->layer, why);
    if (!rc && r->holds_chosen) /* while the device computes the layer */
        rc = append_chosen(r, why);
    if (!rc)
        rc = cache_runs(r, why);
    if (rc)
        return rc;
    r->queued++;
    x->layer++;
    x->phase = PHASE_LAYER;
    return 1;
}

static int turn(struct request *r, struct hill_why *why)
{
    switch (r->selected->phase) {
    case PHASE_SUMS:
        return take_sums(r, why);
    case PHASE_LAYER:
        return begin_layer(r, why);
    case PHASE_KEYS:
        return choose(r, why);
    case PHASE_RUNS:
        return take_runs(r, why);
    default:
        return give(r, why);
    }
}

int selected_begin_again(struct request *r)
{
    selected_drop(r);
    stored_drop(r);
    r->unit = r->queued = r->units = r->reused = 0;
    r->ready = false;
    r->state = REQUEST_WAITING;
    return 0;
}

/* Nothing of it is anywhere else yet, or it begins again. */
static int take_all_instead(struct request *r, struct hill_why *why)
{
    log_warn("%s: all of the prefix is read first", why->text);
    selected_drop(r);
    stored_drop(r);
    r->whole_prefix = true;
    r->unit = r->queued = 0;
    if (r->holds_chosen)
        return selected_begin_again(r);
    int rc = stored_begin(r, r->reused, why);
    return rc ? rc : 1;
}

int selected_begin(struct request *r, struct hill_why *why)
{
    int rc = begin(r, why);
    if (rc == HILL_E_NOMEM) /* all of it takes less */
        rc = take_all_instead(r, why);
    return rc < 0 ? rc : 0;
}

int selected_pump(struct request *r, struct hill_why *why)
{
    int rc = turn(r, why);
    if (rc == 1)
        worker_unit_of_work(r->w);
    return rc == HILL_E_DAMAGED ? take_all_instead(r, why) : rc;
}

/* ---- behind the first token ------------------------------------------------------------------ */

int selected_pass_unit(struct request *r, struct hill_why *why)
{
    const struct selected *x = r->selected;
    int rc = r->holds_chosen ? 0 : engine_prefill_pass(r->w->engine, r->unit, why);
    if (rc || r->unit + 1 < r->units)
        return rc;
    r->drive_ms = x->wait_ns * 1e-6;
    r->probe_ms = x->probe_ns * 1e-6;
    bool asked = x->wanted * run_tokens(r) < x->n_past;
    log_info("request %llu: of %u tokens in the prefix store %u a layer, chosen by the keys of %u "
             "heads: %.1f MiB before the first token, waited for %.1f ms",
             (unsigned long long)r->prefill->identity, x->n_past, x->wanted * run_tokens(r),
             asked ? x->store->shape.n_probes : 0, (double)r->loaded_bytes / 1048576.0,
             r->drive_ms);
    return 0;
}

int selected_fill(struct request *r, struct hill_why *why)
{
    int rc = r->reused < r->selected->n_past ? stored_take(r, why) : 0;
    if (rc)
        return rc < 0 ? rc : 0;
    stored_drop(r);
    selected_drop(r);
    if (r->reused)
        request_note_beginning(r);
    r->n_past = r->reused;
    r->n_plain = r->prompt;
    r->state = REQUEST_RESTORED;
    return 0;
}
