/*
 * gpu_worker/stored.c - taking from the prefix store. See stored.h; stored_leave.c has the other
 * direction.
 */
#include "gpu_worker/stored_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/probe_heads.h"
#include "kv/plane.h"
#include "prefix/run_cache.h"

#define PAGE    4096u
#define TURN_MS 20u /* others may wait so long for their step, as for a prompt's unit */

/* ---- the store ------------------------------------------------------------------------------- */

/* All that the entries of a prefill depend on beside the model and the tokens: the store outlives
 * a change of driver, and of kernels within a version. */
static uint64_t settings_of(const struct worker *w)
{
    char text[CLDEVICE_NAME_BYTES + 512], driver[256] = "";
    /* none: the name alone tells devices apart */
    if (clGetDeviceInfo(w->device.device, CL_DRIVER_VERSION, sizeof driver, driver, NULL))
        driver[0] = '\0';
    int n = snprintf(text, sizeof text, "%s\n%s\n%s\n%016llx\n%u", HILL_VERSION, w->device.name,
                     driver, (unsigned long long)engine_kernels(),
                     model_rope_choice(&w->hparams, w->settings.plan.ctx_tokens));
    return XXH64(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, 0);
}

/* The keys by which important tokens are found; the heads are chosen once for a store. */
static int open_keys(struct worker *w, const struct chunk_terms *terms,
                     const struct chunk_shape *shape, struct hill_why *why)
{
    struct chunk_keys *keys = calloc(1, sizeof *keys);
    uint16_t *heads = calloc((size_t)terms->n_layers * shape->n_probes, sizeof *heads);
    int rc = keys && heads ? 0 : hill_fail(why, HILL_E_NOMEM, "no memory for a prefix store");
    if (!rc) {
        rc = chunk_keys_open(keys, w->settings.prefix_dir, terms, shape, why);
        if (!rc && !keys->heads)
            rc = probe_heads_choose(w, shape->n_probes, heads, why);
        if (!rc && !keys->heads)
            rc = chunk_keys_choose(keys, heads, why);
        if (rc)
            chunk_keys_close(keys);
    }
    free(heads);
    if (rc)
        free(keys);
    else
        drive_store_keep_keys(w->store, keys);
    return rc;
}

static int write_run(void *engine, uint32_t slot, const void *entries, struct hill_why *why)
{
    return engine_write_run(engine, slot, entries, why);
}

static int read_run(void *engine, uint32_t slot, void *entries, struct hill_why *why)
{
    return engine_read_run(engine, slot, entries, why);
}

/* HILL_TEST_RUN_CACHE=lru: what is compared with. */
static bool goes_by_age(void)
{
    const char *rule = getenv("HILL_TEST_RUN_CACHE");
    bool by_age = rule && strcmp(rule, "lru") == 0;
    if (by_age)
        log_warn("test hook HILL_TEST_RUN_CACHE: of important tokens in memory those go that were "
                 "not of use for longest");
    return by_age;
}

/* One of its levels, or both. */
static int make_cache(struct worker *w, const struct run_cache_terms *terms, uint32_t run_tokens,
                      struct hill_why *why)
{
    int rc = run_cache_open(&w->runs, terms);
    if (rc)
        return hill_fail(why, rc, "%s", hill_strerror(rc));
    rc = engine_keep_runs(w->engine, run_cache_slots(w->runs), run_tokens, why);
    if (!rc)
        return 0;
    run_cache_close(w->runs);
    w->runs = NULL;
    return rc;
}

static void open_cache(struct worker *w, const struct chunk_keys *keys)
{
    const struct epoch_settings *s = &w->settings;
    struct hill_why why = {""};
    struct run_cache_terms terms = {.run_bytes = (uint32_t)chunk_keys_run_bytes(keys),
                                    .memory_bytes = s->prefix_cache_bytes,
                                    .device_bytes = s->prefix_gpu_cache_bytes,
                                    .device = {write_run, read_run, w->engine}};
    if (!terms.memory_bytes && !terms.device_bytes)
        return;
    terms.by_age = goes_by_age();
    int rc = make_cache(w, &terms, keys->run_tokens, &why);
    if (rc && terms.memory_bytes && terms.device_bytes) {
        log_warn("a cache of %.1f MiB on the device (--prefix-gpu-cache-mb) for important tokens: "
                 "%s; none is kept there",
                 (double)terms.device_bytes / 1048576.0, why.text);
        terms.device_bytes = 0;
        rc = make_cache(w, &terms, keys->run_tokens, &why);
    }
    if (rc)
        log_warn("a cache of %.1f MiB (%s) for important tokens: %s; they are read from the drive "
                 "every time",
                 (double)(terms.memory_bytes + terms.device_bytes) / 1048576.0,
                 terms.memory_bytes ? "--prefix-cache-mb" : "--prefix-gpu-cache-mb", why.text);
    else
        log_info("important tokens of stored prefixes: room for %u runs of %u tokens of a layer on "
                 "the device, %u in memory",
                 run_cache_slots(w->runs), keys->run_tokens, run_cache_room(w->runs));
}

/* Without keys all of a prefix is read, as always. */
static int open_with_keys(struct worker *w, const struct chunk_terms *terms, struct hill_why *why)
{
    const struct epoch_settings *s = &w->settings;
    const struct chunk_shape shape = {.n_kv_heads = w->hparams.n_kv_heads,
                                      .head_dim = w->hparams.head_dim,
                                      .n_probes = chunk_probes_of(w->hparams.n_kv_heads)};
    uint64_t cap = chunk_keys_leave(terms, &shape, s->prefix_bytes);
    int rc = drive_store_open(w->store, s->prefix_dir, terms, cap, why);
    struct hill_why reason;
    if (!rc && open_keys(w, terms, &shape, &reason))
        log_warn("%s: prefixes are read whole", reason.text);
    if (!rc && w->store->keys)
        open_cache(w, w->store->keys);
    return rc;
}

int stored_open(struct worker *w, struct hill_why *why)
{
    const struct epoch_settings *s = &w->settings;
    struct chunk_terms terms = {.model_bytes = gguf_file_bytes(w->file),
                                .n_layers = w->hparams.n_layers,
                                .entry_bytes = worker_entry_bytes(w),
                                .n_vocab = w->hparams.n_vocab};
    if (w->store || !s->prefix_dir[0])
        return 0;
    terms.model_identity = gguf_identity(w->file);
    w->store = calloc(1, sizeof *w->store);
    if (!w->store)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a prefix store");
    int rc;
    if (s->prefix_share > 0) {
        rc = open_with_keys(w, &terms, why);
    } else {
        chunk_keys_remove(s->prefix_dir); /* nobody would keep them up to date */
        rc = drive_store_open(w->store, s->prefix_dir, &terms, s->prefix_bytes, why);
    }
    if (rc)
        stored_close(w);
    return rc;
}

uint64_t stored_pages(uint64_t at, uint64_t bytes)
{
    return (at + bytes + PAGE - 1) / PAGE * PAGE - at / PAGE * PAGE;
}

int64_t stored_charge(struct worker *w, uint64_t bytes)
{
    int64_t now = clock_now_ns();
    int64_t asked = w->model.figures.on ? now + (int64_t)(w->model.figures.latency_us * 1e3) : now;
    struct device_span flash = device_charge(&w->model, DEVICE_FLASH_READ, bytes, device_at(asked));
    return device_charge(&w->model, DEVICE_LINK_UP, bytes, flash).due;
}

void stored_close(struct worker *w)
{
    struct hill_why why;
    if (w->store)
        drive_store_close(w->store);
    free(w->store);
    if (w->runs && engine_keep_runs(w->engine, 0, 0, &why))
        log_warn("%s", why.text);
    run_cache_close(w->runs);
    w->store = NULL;
    w->runs = NULL;
    w->store_slow = false;
}

void stored_listen(struct worker *w, struct shm_doorbell *bell)
{
    if (w->store)
        drive_store_wake(w->store, bell ? worker_ring : NULL, bell);
}

/* A conversation, and how its tokens were decoded. */
static uint64_t owner_of(const struct request *r)
{
    const Hill__Selection *s = r->prefill->selection;
    const struct epoch_settings *e = &r->w->settings;
    char text[256];
    if (!r->prefill->conversation)
        return 0;
    int n = snprintf(text, sizeof text, "%016llx %d %.17g %u %u %u %d %u %u %d %u %u",
                     (unsigned long long)r->prefill->conversation, (int)s->policy, s->alpha,
                     s->budget, s->sinks, s->window, (int)s->importance, s->exact_below,
                     kv_digest_bits(&e->plan.geometry), (int)e->speculate, e->exact_layers,
                     s->granularity);
    uint64_t owner = XXH64(text, (size_t)n, 0);
    return owner ? owner : 1;
}

struct stored *stored_make(const struct request *r)
{
    struct stored *x = calloc(1, sizeof *x);
    if (x) {
        x->settings = settings_of(r->w);
        x->owner = owner_of(r);
    }
    return x;
}

/* ---- a prompt -------------------------------------------------------------------------------- */

static bool may_take(const struct request *r)
{
    return r->w->store && r->prefill->keep && !r->prefill->restore && !r->prompt_kept.units;
}

/* Its longest stored prefix, where that is longer than what is there. */
static int look(struct request *r, struct hill_why *why)
{
    struct stored *x = r->stored;
    struct chunk_query query = {.tokens = r->tokens,
                                .n = r->prompt - 1, /* the last one's logits begin the answer */
                                .settings = x->settings,
                                .owner = r->prefill->anew ? 0 : x->owner};
    x->chunks = calloc(r->prompt / CHUNK_TOKENS + 1ull, sizeof *x->chunks);
    x->room = malloc(r->w->store->file.slot_bytes);
    if (!x->chunks || !x->room || drive_store_find(r->w->store, &query, &x->hit, x->chunks))
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    return 0;
}

/* What follows is computed, in the next turn. */
static int compute(struct request *r)
{
    r->n_past = r->reused;
    r->state = REQUEST_RESTORED;
    return 0;
}

int stored_find(struct request *r, struct hill_why *why)
{
    if (!may_take(r))
        return 0;
    struct stored *x = r->stored = stored_make(r);
    int rc = x ? look(r, why) : hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    /* what is there and the store's go together where both are plain */
    if (!rc && (x->hit.n_tokens <= r->reused || x->hit.n_plain < r->reused))
        stored_drop(r);
    return rc;
}

int stored_begin(struct request *r, uint32_t n_plain, struct hill_why *why)
{
    r->n_plain = n_plain < r->reused ? n_plain : r->prompt;
    int rc = n_plain < r->reused ? 0 : stored_find(r, why);
    if (rc)
        return rc;
    struct stored *x = r->stored;
    if (!x)
        return compute(r);
    x->next = r->reused / CHUNK_TOKENS;
    x->begun_ns = clock_now_ns();
    r->state = REQUEST_FETCHING;
    return 0;
}

/* Tokens of a chunk of n, from r->reused to `end`, into every layer. */
static int append(struct request *r, uint32_t n, uint32_t end, struct hill_why *why)
{
    uint32_t bytes = worker_entry_bytes(r->w), from = r->reused % CHUNK_TOKENS;
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < r->w->hparams.n_layers; layer++)
        rc = request_append_entries(r, layer, r->reused, end - from,
                                    r->stored->room + ((uint64_t)layer * n + from) * bytes, why);
    return rc;
}

/* Behind the first token, which came of important ones alone. */
static bool is_later(const struct request *r)
{
    return r->state == REQUEST_FILLING;
}

/* 1: the chunk is in room, 0: it is of no use. */
static int read_chunk(struct request *r)
{
    struct stored *x = r->stored;
    struct drive_store *store = r->w->store;
    struct drive_chunk chunk = x->chunks[x->next];
    struct hill_why reason;
    int rc = drive_store_read(store, chunk, x->room, &x->next_n, &x->next_cost, &reason);
    if (rc && rc != HILL_E_WOULD_BLOCK)
        log_warn("%s; it is dropped, and computed again", reason.text);
    if (rc)
        return 0;
    uint64_t bytes = stored_pages(0, chunk_entries_bytes(&store->file.terms, x->next_n));
    *(is_later(r) ? &r->later_bytes : &r->loaded_bytes) += bytes;
    x->due = stored_charge(r->w, bytes);
    x->read = true;
    drive_store_add_keys(store, chunk, x->room);
    return 1;
}

/* 1: there is more, 0: that was all that is of use, or a code. HILL_E_WOULD_BLOCK: a modelled drive
 * has it later. */
static int take_chunk(struct request *r, struct hill_why *why)
{
    struct stored *x = r->stored;
    uint32_t rest = x->hit.n_tokens - x->next * CHUNK_TOKENS;
    if (!x->read && !read_chunk(r))
        return 0;
    if (clock_now_ns() < x->due)
        return HILL_E_WOULD_BLOCK;
    uint32_t n = x->next_n, from = r->reused % CHUNK_TOKENS, end = rest < n ? rest : n;
    int rc = append(r, n, end, why);
    if (rc)
        return rc;
    x->read = false;
    drive_store_use(r->w->store, x->chunks[x->next]);
    worker_unit_of_work(r->w);
    r->loaded_entries += is_later(r) ? 0 : (uint64_t)(end - from) * r->w->hparams.n_layers;
    r->drive_tokens += end - from;
    r->saved_ms += x->next_cost * 1e-3 * (end - from) / n;
    r->reused += end - from;
    return ++x->next < x->hit.n_chunks;
}

static int finish(struct request *r)
{
    struct stored *x = r->stored;
    if (x->hit.n_plain < r->reused)
        r->n_plain = x->hit.n_plain;
    r->drive_ms = (clock_now_ns() - x->begun_ns) * 1e-6;
    log_info("request %llu: %u of its %u prompt tokens are there, %u of them decoded; from the "
             "prefix store %u, in %.1f ms",
             (unsigned long long)r->prefill->identity, r->reused, r->prompt,
             r->reused > x->hit.n_plain ? r->reused - x->hit.n_plain : 0, r->drive_tokens,
             r->drive_ms);
    stored_drop(r);
    if (r->reused)
        request_note_beginning(r);
    return compute(r);
}

int stored_take(struct request *r, struct hill_why *why)
{
    int64_t end = clock_deadline_ms(TURN_MS);
    int rc = 1;
    while (rc == 1 && clock_now_ns() < end) {
        uint32_t seen = dataplane_seen(&r->w->plane);
        rc = take_chunk(r, why);
        if (rc != HILL_E_WOULD_BLOCK)
            continue;
        dataplane_sleep(&r->w->plane, seen, r->stored->due < end ? r->stored->due : end);
        rc = worker_waiting(r->w, why);
        rc = rc ? rc : 1;
    }
    return rc;
}

int stored_turn(struct request *r, struct hill_why *why)
{
    int rc = stored_take(r, why);
    return rc < 0 ? rc : rc ? 0 : finish(r);
}

void stored_drop(struct request *r)
{
    if (r->stored) {
        free(r->stored->chunks);
        free(r->stored->room);
    }
    free(r->stored);
    r->stored = NULL;
}
