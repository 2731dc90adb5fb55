/*
 * gpu_worker/stored_leave.c - what a request leaves in the prefix store. See stored.h.
 *
 * Twice: when its prompt is done, the whole chunks of plain tokens, so that the next prompt, which
 * waits for that, finds them; at its end the rest. From the first chunk that the store lacks on,
 * some chunks at a time: their entries are read from the scorer layer by layer, then the chunks are
 * given to the store's writer one a turn. Without a conversation only whole chunks of plain tokens
 * are left; a conversation's last chunk may be short, and the next turn replaces it.
 *
 * The writer is waited for when its queue is full, and before Done until all is written, so that a
 * kill after Done loses nothing; but never long: WRITER_WAIT_MS and a twentieth of the request's
 * time. When that is over the writer is slow: what is left is not kept, and nobody waits for it
 * again until it has done something.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/stored_internal.h"

#define GROUP_BYTES    (8u << 20)
#define GROUP_MAX      16u
#define WRITER_WAIT_MS 250

bool stored_owes(const struct request *r)
{
    if (r->state != REQUEST_DECODE || r->over_rc || !r->w->store || !r->prefill->keep ||
        r->prefill->restore || !r->predicted || r->holds_chosen)
        return false;
    return r->over ? !r->left : !r->left_prompt;
}

/* The chunk at x->first as it would be left. n 0: nothing is. */
static struct chunk wanted(const struct request *r, uint32_t first)
{
    const struct stored *x = r->stored;
    uint32_t rest = x->n_entries - first;
    uint32_t plain = r->n_plain > first ? r->n_plain - first : 0;
    struct chunk c = {.settings = x->settings, .first = first};
    c.n = rest < CHUNK_TOKENS ? rest : CHUNK_TOKENS;
    c.n_plain = plain < c.n ? plain : c.n;
    c.owner = c.n_plain < c.n ? x->owner : 0;
    if (!x->owner && c.n_plain < CHUNK_TOKENS)
        c.n = 0;
    memcpy(c.tokens, r->tokens + first, c.n * sizeof *c.tokens);
    return c;
}

/* Past all chunks that the store has already. False: that was all. */
static bool skip(struct request *r)
{
    struct stored *x = r->stored;
    while (x->first < x->n_entries) {
        struct chunk c = wanted(r, x->first);
        struct drive_chunk same = {0};
        if (c.n)
            same = drive_store_same(r->w->store, x->parent, &c);
        if (!same.stamp)
            return c.n > 0;
        x->parent = same;
        x->first += c.n;
        if (c.n < CHUNK_TOKENS)
            return false;
    }
    return false;
}

/* What a token's prefill took, by this request's, without what the drive and the search for
 * important tokens took; of one that computed nothing, or that an earlier attempt computed in part,
 * 0. */
static double token_us(const struct request *r)
{
    uint32_t computed = r->resumed || r->prompt_kept.units ? 0 : r->prompt - r->reused;
    double prompt_us = (r->prompt_done_ns - r->begun_ns) * 1e-3 - (r->drive_ms + r->probe_ms) * 1e3;
    return computed && prompt_us > 0 ? prompt_us / computed : 0;
}

static void hand_over(struct request *r)
{
    r->stored->handed_over = true;
    r->stored->given = drive_store_given(r->w->store);
}

static int begin(struct request *r, struct hill_why *why)
{
    struct stored *x = r->stored = stored_make(r);
    if (!x)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a prefix that is kept");
    uint64_t slot_bytes = r->w->store->file.slot_bytes;
    bool stop = r->finish == HILL__FINISH_REASON__FINISH_STOP; /* the newest has been through */
    uint32_t plain = r->n_plain < r->prompt ? r->n_plain : r->prompt;
    x->n_entries = r->over ? r->n_tokens - (stop ? 0 : 1) : plain / CHUNK_TOKENS * CHUNK_TOKENS;
    x->group =
        GROUP_BYTES / slot_bytes > GROUP_MAX ? GROUP_MAX : (uint32_t)(GROUP_BYTES / slot_bytes);
    x->group = x->group ? x->group : 1;
    if (!skip(r)) {
        hand_over(r); /* what its prompt left may still be on its way */
        return 0;
    }
    x->room = malloc(x->group * slot_bytes);
    return x->room ? 0 : hill_fail(why, HILL_E_NOMEM, "out of memory for a prefix that is kept");
}

/* ---- reading a group ------------------------------------------------------------------------- */

static void begin_group(struct request *r)
{
    struct stored *x = r->stored;
    x->in_group = x->n_tokens = x->layer = x->token = x->put = 0;
    while (x->in_group < x->group && x->first + x->n_tokens < x->n_entries) {
        struct chunk c = wanted(r, x->first + x->n_tokens);
        if (!c.n)
            break;
        x->in_group++;
        x->n_tokens += c.n;
    }
}

static int ask(struct request *r, struct hill_why *why)
{
    struct stored *x = r->stored;
    uint32_t most = request_read_max(r), left = x->n_tokens - x->token;
    x->asked = left < most ? left : most;
    struct record_read read = {
        .first = x->first + x->token, .n_tokens = x->asked, .what = READ_ENTRIES};
    int rc = request_push_read(r, x->layer, &read, why);
    x->read_id = read.read_id;
    x->asked_ns = clock_now_ns();
    return rc;
}

/* Where an entry of the group goes: chunk by chunk, [layer][token]. */
static uint8_t *place(const struct request *r, uint32_t token)
{
    const struct stored *x = r->stored;
    const struct worker *w = r->w;
    uint32_t chunk = token / CHUNK_TOKENS, rest = x->n_tokens - chunk * CHUNK_TOKENS;
    uint32_t n = rest < CHUNK_TOKENS ? rest : CHUNK_TOKENS;
    return x->room + chunk * w->store->file.slot_bytes +
           ((uint64_t)x->layer * n + token % CHUNK_TOKENS) * worker_entry_bytes(w);
}

/* Out of staging; looked at again afterwards [I10]. */
static int copy(struct request *r, const struct record_entries *e)
{
    struct stored *x = r->stored;
    const struct dataplane *plane = &r->w->plane;
    const struct staged_entry *slots = (const struct staged_entry *)(e + 1);
    if (e->status)
        return hill_fail(&x->why, e->status, "the scorer cannot read them: %s",
                         hill_strerror(e->status));
    if (e->n_entries != x->asked || e->header.layer != x->layer)
        return hill_fail(&x->why, HILL_E_PROTOCOL, "%u entries of layer %u came for %u of %u",
                         e->n_entries, e->header.layer, x->asked, x->layer);
    for (uint32_t i = 0; i < e->n_entries; i++) {
        const struct selected_upload slot = {slots[i].staging_slot, slots[i].generation, 0, 0};
        int rc = dataplane_check_staged(plane, &slot, 1, &x->why);
        if (rc)
            return rc;
        memcpy(place(r, x->token + i), shm_arena_slot(&plane->party.arena, slot.staging_slot),
               worker_entry_bytes(r->w));
        rc = dataplane_check_staged(plane, &slot, 1, &x->why);
        if (rc)
            return rc;
    }
    x->token += e->n_entries;
    if (x->token == x->n_tokens)
        x->token = 0, x->layer++;
    return 0;
}

bool stored_take_entries(struct worker *w, const struct record_entries *e)
{
    struct request *r = w->requests[e->header.sequence];
    if (!r || !r->stored || !r->stored->asked || r->stored->read_id != e->read_id)
        return false;
    r->stored->rc = copy(r, e);
    r->stored->asked = 0;
    worker_unit_of_work(w);
    return true;
}

/* ---- giving it to the writer ----------------------------------------------------------------- */

/* Is there time to wait for the writer still? */
static bool may_wait(struct request *r)
{
    struct stored *x = r->stored;
    struct worker *w = r->w;
    int64_t now = clock_now_ns();
    uint64_t done = drive_store_done(w->store);
    if (!x->wait_until_ns)
        x->wait_until_ns = now + CLOCK_MS(WRITER_WAIT_MS) + (now - r->begun_ns) / 20;
    if (w->store_slow && w->store_done == done)
        return false;
    x->waits = now < x->wait_until_ns;
    if (x->waits)
        return true;
    if (!w->store_slow)
        log_warn("the drive of the prefix store %.300s is slow: requests end before all of theirs "
                 "is written, and what its queue has no room for is not kept",
                 w->store->file.dir);
    w->store_slow = true;
    w->store_done = done;
    return false;
}

int64_t stored_deadline(const struct worker *w, int64_t deadline)
{
    for (uint32_t i = 0; i < w->n_sequences; i++) {
        const struct request *r = w->requests[i];
        if (r && r->stored && r->stored->waits && r->stored->wait_until_ns < deadline)
            deadline = r->stored->wait_until_ns;
    }
    return deadline;
}

/* 1: nothing holds the request any more. */
static int await_writer(struct request *r, bool *done)
{
    struct stored *x = r->stored;
    *done = !r->over || drive_store_done(r->w->store) >= x->given || !may_wait(r);
    return *done;
}

/* The next chunk of the group. False: nothing more is left. */
static bool put(struct request *r)
{
    struct stored *x = r->stored;
    struct drive_store *store = r->w->store;
    struct chunk c = wanted(r, x->first);
    c.cost = token_us(r) * c.n;
    struct drive_chunk chunk = drive_store_same(store, x->parent, &c); /* another's, meanwhile */
    if (!chunk.stamp)
        chunk = drive_store_put(store, x->parent, &c, x->room + x->put * store->file.slot_bytes);
    if (!chunk.stamp)
        return false;
    r->left_chunks++;
    x->parent = chunk;
    x->first += c.n;
    if (++x->put == x->in_group)
        x->in_group = 0;
    worker_unit_of_work(r->w);
    return c.n == CHUNK_TOKENS;
}

/* 1: it moved on, 0: it waits, negative: no more can be left. *done: all is. */
static int go_on(struct request *r, bool *done, struct hill_why *why)
{
    struct stored *x = r->stored;
    x->waits = false;
    if (x->rc) {
        *why = x->why;
        return x->rc;
    }
    if (x->asked)
        return clock_now_ns() < x->asked_ns + WORKER_WAIT_MS * 1000000ll
                   ? 0
                   : hill_fail(why, HILL_E_TIMEOUT, "the scorer sent no answer to a READ in time");
    if (x->handed_over)
        return await_writer(r, done);
    if (x->in_group == 0)
        begin_group(r);
    if (x->in_group && x->layer < r->w->hparams.n_layers) {
        int rc = ask(r, why);
        return rc ? rc : 1;
    }
    bool room = drive_store_takes(r->w->store);
    if (x->in_group && !room && may_wait(r))
        return 0;
    if (!x->in_group || !room || !put(r))
        hand_over(r);
    return 1;
}

int stored_leave(struct request *r, struct hill_why *why)
{
    bool done = false;
    int rc = r->stored ? 0 : begin(r, why);
    if (!rc)
        rc = go_on(r, &done, why);
    if (rc == HILL_E_NODEV || rc == HILL_E_PEER_GONE || rc == HILL_E_CANCELLED)
        return rc; /* of the epoch or the request */
    if (rc >= 0 && !done)
        return rc;
    if (rc < 0)
        log_warn("request %llu: not all of it is kept in the prefix store: %s",
                 (unsigned long long)r->prefill->identity, why->text);
    stored_drop(r);
    r->left_prompt = true;
    r->left = r->over || rc < 0;
    return 1;
}

bool stored_reads(const struct request *r)
{
    return r->stored && r->stored->asked;
}
