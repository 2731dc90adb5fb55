/* gpu_worker/selected.c - see selected.h. */
#include "gpu_worker/selected.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/important_runs.h"
#include "gpu_worker/selected_internal.h"

/* ---- begin ----------------------------------------------------------------------------------- */

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
    return n - important_runs(n, selected_run_tokens(r), r->w->settings.prefix_share) *
                   selected_run_tokens(r);
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
    uint32_t run_tokens = selected_run_tokens(r);
    uint32_t most = x->loads_all ? x->n_past / run_tokens : x->wanted;
    for (uint32_t l = 0; l < r->w->hparams.n_layers; l++) {
        uint32_t window = model_layer_window(&r->w->hparams, l);
        uint32_t seen = window + 2 * CHUNK_TOKENS < x->n_past ? window + 2 * CHUNK_TOKENS
                                                              : x->n_past; /* both ends are whole */
        if (window && seen / run_tokens > most)
            most = seen / run_tokens;
    }
    return most;
}

static bool allocate_past(struct layer_past *p, uint64_t run_bytes, uint32_t most, uint32_t n_past)
{
    p->runs = malloc(most * sizeof *p->runs);
    p->slots = malloc(most * sizeof *p->slots);
    p->from = malloc(most * sizeof *p->from);
    p->ahead_runs = malloc(most * sizeof *p->ahead_runs);
    p->entries = malloc(most * run_bytes);
    p->ahead = malloc(most * run_bytes);
    p->mass = malloc(n_past * sizeof *p->mass);
    return p->runs && p->slots && p->from && p->ahead_runs && p->entries && p->ahead && p->mass;
}

static bool allocate(struct selected *x, uint32_t entry, uint32_t most)
{
    uint64_t run = (uint64_t)x->store->run_tokens * entry;
    bool there = true;
    x->sums = malloc(x->n_chunks * x->store->sums_bytes);
    for (int i = 0; i < 2; i++) {
        x->keys[i] = malloc(x->n_chunks * x->store->piece_bytes);
        there &= x->keys[i] && allocate_past(&x->past[i], run, most, x->n_past);
    }
    x->probe = malloc(x->n_chunks * chunk_keys_unpacked_bytes(x->store));
    x->spans = malloc((most > x->n_chunks ? most : x->n_chunks) * sizeof *x->spans);
    return there && x->sums && x->probe && x->spans;
}

static bool hook(const char *name, const char *value, const char *what)
{
    const char *asked = getenv(name);
    bool is = asked && strcmp(asked, value) == 0;
    if (is)
        log_warn("test hook %s: %s", name, what);
    return is;
}

static void take_hooks(struct selected *x)
{
    x->loads_all = hook("HILL_TEST_IMPORTANT_LOAD", "all", "unimportant tokens are loaded, too");
    if (hook("HILL_TEST_IMPORTANT_GUESS", "on", "layers are guessed, however fast the drive is"))
        x->guessing = GUESSING_ON;
    if (hook("HILL_TEST_IMPORTANT_GUESS", "off", "no layer is guessed"))
        x->guessing = GUESSING_OFF;
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
    x->wanted = important_runs(x->n_past, selected_run_tokens(r), w->settings.prefix_share);
    take_hooks(x);
    if (!allocate(x, worker_entry_bytes(w), most_runs(r, x)) ||
        span_reader_open(&x->reader, worker_ring, w->plane.party.bell))
        return hill_fail(why, HILL_E_NOMEM, "out of memory or threads for a stored prefix");
    int rc = selected_layers_begin(r, why);
    r->state = rc ? r->state : REQUEST_RESTORED;
    return rc;
}

/* Also by a reader that was left behind. */
static void release(void *selected)
{
    struct selected *x = selected;
    for (int i = 0; i < 2; i++) {
        free(x->past[i].runs);
        free(x->past[i].slots);
        free(x->past[i].from);
        free(x->past[i].ahead_runs);
        free(x->past[i].entries);
        free(x->past[i].ahead);
        free(x->past[i].mass);
        free(x->keys[i]);
    }
    free(x->sums);
    free(x->probe);
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

/* ---- its life -------------------------------------------------------------------------------- */

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
    int rc = selected_layers_turn(r, why);
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
    bool asked = x->wanted * selected_run_tokens(r) < x->n_past;
    log_info("request %llu: of %u tokens in the prefix store %u a layer, chosen by the keys of %u "
             "heads, %u of %u layers guessed ahead: %.1f MiB before the first token, waited for "
             "%.1f ms",
             (unsigned long long)r->prefill->identity, x->n_past,
             x->wanted * selected_run_tokens(r), asked ? x->store->shape.n_probes : 0, x->n_guessed,
             r->w->hparams.n_layers, (double)r->loaded_bytes / 1048576.0, r->drive_ms);
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
