/* gpu_worker/mend.c - see mend.h. */
#include "gpu_worker/mend.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/request.h"

#define DEVICE_POLL_NS 1000000ll /* between looks at a device that does not ring */
#define TURN_MS        20        /* others may wait so long for their step, as for a unit */
#define STILL_MS       300000    /* a layer of a token and its past, on the slowest device */

struct mend {
    uint32_t n, next; /* items; the one that is made */
    bool runs;        /* its token is under way */
    int64_t moved_ns;
    void *entry;
    struct damaged_entry items[RECORD_DAMAGED_MAX]; /* by position, then layer */
};

uint32_t mend_entries(const struct request *r)
{
    return r->mend && r->prefill->resume->mends ? r->mend->n : 0;
}

int mend_take(struct request *r, const struct record_seq_ready *record)
{
    if (!record->n_damaged)
        return 0;
    struct mend *m = r->mend = calloc(1, sizeof *m);
    if (m)
        m->entry = malloc(worker_entry_bytes(r->w));
    if (!m || !m->entry)
        return HILL_E_NOMEM;
    m->n = record->n_damaged; /* at most RECORD_DAMAGED_MAX: record_check */
    memcpy(m->items, record + 1, m->n * sizeof *m->items);
    return 0;
}

void mend_drop(struct request *r)
{
    if (r->mend)
        free(r->mend->entry);
    free(r->mend);
    r->mend = NULL;
}

int mend_begin(struct request *r, struct hill_why *why)
{
    struct mend *m = r->mend;
    if (!m)
        return 0;
    if (!r->prefill->resume->mends)
        return hill_fail(why, HILL_E_DAMAGED,
                         "%u entries are damaged, and its prompt was not computed as one", m->n);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->items[i].position >= r->prompt)
            return hill_fail(why, HILL_E_PROTOCOL,
                             "a damaged entry of position %u, of a prompt of %u tokens",
                             m->items[i].position, r->prompt);
    m->moved_ns = clock_now_ns();
    r->state = REQUEST_MENDING;
    return 0;
}

/* The next item's token begins. */
static int begin_token(struct request *r, struct hill_why *why)
{
    struct engine *e = r->w->engine;
    struct mend *m = r->mend;
    uint32_t position = m->items[m->next].position;
    uint64_t cap = r->w->settings.gpu_kv_cap_bytes;
    uint64_t needed = engine_kv_bytes_needed(e, position, 1);
    if (cap && needed > cap)
        return hill_fail(why, HILL_E_NOSPACE,
                         "an entry after %u tokens needs %.1f MiB of GPU memory to be made again, "
                         "the cap is %.1f",
                         position, needed / 1048576.0, cap / 1048576.0);
    r->n_past = position;
    r->unit = r->queued = 0;
    int rc = engine_prefill_within(e, position, 1, 0, cap, why);
    if (!rc)
        rc = engine_prefill_begin(e, position, 1, why);
    if (!rc)
        rc = engine_prefill_tokens(e, r->tokens + position, 1, why);
    r->units = engine_prefill_units(e);
    m->runs = rc == 0;
    return rc || position == 0 ? rc : past_open(r, why);
}

static void end_token(struct request *r)
{
    past_drop(r);
    r->mend->runs = false;
    r->n_past = r->unit = r->queued = r->units = 0;
}

/* The current layer's entry is computed: is it one that is damaged? */
static int take_unit(struct request *r, struct hill_why *why)
{
    struct mend *m = r->mend;
    const struct damaged_entry *item = &m->items[m->next];
    uint32_t layer = r->unit, position = item->position;
    int rc = engine_prefill_read(r->w->engine, r->unit, 0, 1, m->entry, why);
    if (!rc && item->layer == layer) {
        rc = request_append_entries(r, layer, position, 1, m->entry, why);
        m->next++;
    }
    r->unit++;
    worker_unit_of_work(r->w);
    if (!rc && (m->next == m->n || m->items[m->next].position != position))
        end_token(r);
    return rc;
}

/* 1: it moved on, 0: it waits, or an error. */
static int step(struct request *r, struct hill_why *why)
{
    struct engine *e = r->w->engine;
    if (!r->mend->runs) {
        int rc = begin_token(r, why);
        return rc ? rc : 1;
    }
    int moved = past_pump(r, why);
    if (moved)
        return moved;
    if (r->queued == r->unit && past_is_there(r, r->queued)) {
        int rc = engine_prefill_enqueue(e, r->queued, why);
        r->queued += rc ? 0 : 1;
        return rc ? rc : 1;
    }
    int rc = r->queued > r->unit ? engine_prefill_done(e, r->unit, why) : 0;
    if (rc == 1)
        rc = take_unit(r, why);
    else
        return rc;
    return rc ? rc : 1;
}

static int finish(struct request *r)
{
    log_info("request %llu: %u damaged entries are made again, in %.1f ms",
             (unsigned long long)r->prefill->identity, r->mend->n,
             (clock_now_ns() - r->begun_ns) * 1e-6);
    mend_drop(r);
    r->prompt_done_ns = r->token_ns = clock_now_ns(); /* what is made again is no decoding */
    r->state = REQUEST_DECODE;
    return 0;
}

int mend_turn(struct request *r, struct hill_why *why)
{
    struct worker *w = r->w;
    int64_t turn = clock_deadline_ms(TURN_MS);
    while (clock_now_ns() < turn) {
        if (r->mend->next == r->mend->n)
            return finish(r);
        uint32_t seen = dataplane_seen(&w->plane);
        int rc = step(r, why);
        if (rc > 0)
            r->mend->moved_ns = clock_now_ns();
        if (rc > 0)
            continue;
        if (rc < 0)
            return rc;
        if (clock_now_ns() >= r->mend->moved_ns + STILL_MS * 1000000ll)
            return hill_fail(why, HILL_E_NODEV,
                             "the device did not finish a layer of one token in %d s",
                             STILL_MS / 1000);
        w->waiting = r;
        rc = worker_waiting(w, why);
        w->waiting = NULL;
        if (rc)
            return rc;
        dataplane_sleep(&w->plane, seen, clock_now_ns() + DEVICE_POLL_NS);
    }
    return 0;
}
