/*
 * gpu_worker/stored.c - taking from the prefix store. See stored.h; stored_leave.c has the other
 * direction.
 */
#include "gpu_worker/stored_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kv/plane.h"

#define TURN_MS 20u /* others may wait so long for their step, as for a prompt's unit */

/* ---- the store -------------------------------------------------------------------------------- */

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
    int rc = drive_store_open(w->store, s->prefix_dir, &terms, s->prefix_bytes, why);
    if (rc)
        stored_close(w);
    return rc;
}

void stored_close(struct worker *w)
{
    if (w->store)
        drive_store_close(w->store);
    free(w->store);
    w->store = NULL;
    w->store_slow = false;
}

static void ring(void *bell)
{
    shm_doorbell_ring(bell);
}

void stored_listen(struct worker *w, struct shm_doorbell *bell)
{
    if (w->store)
        drive_store_wake(w->store, bell ? ring : NULL, bell);
}

/* A conversation, and how its tokens were decoded. */
static uint64_t owner_of(const struct request *r)
{
    const Hill__Selection *s = r->prefill->selection;
    const struct epoch_settings *e = &r->w->settings;
    char text[256];
    if (!r->prefill->conversation)
        return 0;
    int n = snprintf(text, sizeof text, "%016llx %d %.17g %u %u %u %d %u %u %d %u",
                     (unsigned long long)r->prefill->conversation, (int)s->policy, s->alpha,
                     s->budget, s->sinks, s->window, (int)s->importance, s->exact_below,
                     kv_digest_bits(&e->plan.geometry), (int)e->speculate, e->exact_layers);
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

/* ---- a prompt --------------------------------------------------------------------------------- */

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

int stored_begin(struct request *r, uint32_t n_plain, struct hill_why *why)
{
    r->n_plain = n_plain < r->reused ? n_plain : r->prompt;
    if (!may_take(r) || n_plain < r->reused)
        return compute(r);
    struct stored *x = r->stored = stored_make(r);
    int rc = x ? look(r, why) : hill_fail(why, HILL_E_NOMEM, "out of memory for a stored prefix");
    if (rc)
        return rc;
    /* what is there and the store's go together where both are plain */
    if (x->hit.n_tokens <= r->reused || x->hit.n_plain < r->reused) {
        stored_drop(r);
        return compute(r);
    }
    x->next = r->reused / CHUNK_TOKENS;
    x->begun_ns = clock_now_ns();
    r->state = REQUEST_FETCHING;
    return 0;
}

/* Tokens first .. end of a chunk's, from r->reused on, into every layer. */
static int append(struct request *r, uint32_t n, uint32_t end, struct hill_why *why)
{
    struct dataplane *plane = &r->w->plane;
    uint32_t bytes = worker_entry_bytes(r->w), from = r->reused % CHUNK_TOKENS;
    uint32_t at_once = layout_append_tokens_max(&plane->party.layout);
    for (uint32_t layer = 0; layer < r->w->hparams.n_layers; layer++)
        for (uint32_t i = from; i < end;) {
            uint32_t count = end - i < at_once ? end - i : at_once;
            uint32_t size = (uint32_t)sizeof(struct record_append) + count * bytes;
            void *payload;
            r->w->waiting = r;
            int rc =
                dataplane_reserve(plane, plane->append, size, &payload, worker_deadline(), why);
            r->w->waiting = NULL;
            if (rc)
                return rc;
            *(struct record_append *)payload =
                (struct record_append){.header = request_header(r, layer),
                                       .first = r->reused - from + i,
                                       .n_tokens = count};
            memcpy((struct record_append *)payload + 1,
                   r->stored->room + ((uint64_t)layer * n + i) * bytes, (uint64_t)count * bytes);
            shm_ring_publish(plane->append, RECORD_APPEND, size);
            i += count;
        }
    return 0;
}

/* 1: there is more, 0: that was all that is of use, or a code. */
static int take_chunk(struct request *r, struct hill_why *why)
{
    struct stored *x = r->stored;
    struct hill_why reason;
    uint32_t n, rest = x->hit.n_tokens - x->next * CHUNK_TOKENS;
    double cost;
    struct drive_chunk chunk = x->chunks[x->next];
    int rc = drive_store_read(r->w->store, chunk, x->room, &n, &cost, &reason);
    if (rc) {
        if (rc != HILL_E_WOULD_BLOCK)
            log_warn("%s; it is dropped, and computed again", reason.text);
        return 0;
    }
    uint32_t from = r->reused % CHUNK_TOKENS, end = rest < n ? rest : n;
    rc = append(r, n, end, why);
    if (rc)
        return rc;
    drive_store_use(r->w->store, chunk);
    worker_unit_of_work(r->w);
    r->drive_tokens += end - from;
    r->saved_ms += cost * 1e-3 * (end - from) / n;
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

int stored_turn(struct request *r, struct hill_why *why)
{
    int64_t end = clock_deadline_ms(TURN_MS);
    int rc = 1;
    while (rc == 1 && clock_now_ns() < end)
        rc = take_chunk(r, why);
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
