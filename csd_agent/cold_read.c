/*
 * csd_agent/cold_read.c - queries and fetches; see cold_pool.h.
 *
 * A query hands the used part of each stripe of (sequence, layer), in stripe order, to the drive,
 * which scores next to the flash; groups of tokens without a committed slot are passed over where
 * enough of them follow one another, and those that the host scores. A fetch reads the covering
 * pages of its entries: entries in slot order, pages that overlap or follow each other as one read,
 * as many as fit the bounce buffer at a time. Both tell when all their reads have been asked for,
 * so that those of the next command can begin; these go on into the same memory when that command
 * runs. Nothing else runs in between.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

#include "base/fault.h"
#include "base/grow.h"

/* ---- query ---- */

/* Digests that are not read for a gap: what is less is read faster than asked for anew. */
#define SKIP_BYTES (4 * CSD_ALIGN)

_Static_assert(RECORD_HOST_SLOTS % KV_GROUP_TOKENS == 0, "the host has whole groups");

struct query_context {
    const struct cold_pool *pool;
    const struct cold_query *query;
    const struct csd_score_job *job;
    struct cold_cost *cost;
};

static int pass_scores(void *context, uint32_t span, uint32_t first_slot, uint32_t n,
                       const uint16_t *scores)
{
    const struct query_context *c = context;

    c->cost->scored_bytes = c->job->scored_bytes;
    c->cost->scored_dram_bytes = c->job->scored_dram_bytes;
    return c->query->scored(c->query->context, c->job->spans[span].stripe, first_slot, n, scores);
}

/* Groups first .. end - 1, as far as slots are in use. */
static struct csd_span span_of(uint32_t stripe, uint32_t first, uint32_t end, uint32_t used)
{
    uint32_t slot = first * KV_GROUP_TOKENS, last = end * KV_GROUP_TOKENS;
    return (struct csd_span){stripe, slot, (last < used ? last : used) - slot};
}

/* Has the group of the stripe a committed slot? */
static bool group_counts(const struct pool_stripe *record, uint32_t group)
{
    uint32_t slot = group * KV_GROUP_TOKENS;
    return (uint16_t)(record->valid[slot / 64] >> (slot % 64)) != 0;
}

_Static_assert(KV_GROUP_TOKENS == 16, "a group's bits are a quarter of a word's");

static int add_span(struct span_list *list, struct csd_span span, struct hill_why *why)
{
    if (!GROW(list->spans, list->room, list->n + 1))
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u spans of digests", list->n + 1);
    list->spans[list->n++] = span;
    return 0;
}

/* Does the host score the group of the stripe? */
static bool host_has(const struct cold_pool *pool, const struct cold_query *query, uint32_t stripe,
                     uint32_t group)
{
    uint64_t slot = (uint64_t)pool->directory->stripes[stripe].order * pool->layout.stripe_slots +
                    group * KV_GROUP_TOKENS;
    uint64_t bit = slot / RECORD_HOST_SLOTS;
    return bit / 64 < query->n_host_words && bit_test(query->host, bit);
}

/* Groups first .. end - 1 that follow one another, but for some that do not count; none: both 0. */
struct group_run {
    uint32_t first, end;
};

static void extend(struct group_run *run, uint32_t group)
{
    if (run->end == run->first)
        run->first = group;
    run->end = group + 1;
}

/* The drive scores them. */
static int end_span(struct span_list *list, struct group_run *run, uint32_t stripe, uint32_t used,
                    struct hill_why *why)
{
    struct group_run r = *run;
    *run = (struct group_run){0};
    return r.end > r.first ? add_span(list, span_of(stripe, r.first, r.end, used), why) : 0;
}

/* The host does. */
static void end_passed(const struct cold_pool *pool, struct group_run *run, uint32_t stripe)
{
    if (run->end > run->first)
        csd_drive_pass(pool->drive, stripe, run->first * KV_GROUP_TOKENS,
                       (run->end - run->first) * KV_GROUP_TOKENS);
    *run = (struct group_run){0};
}

/* A stripe's spans: from its first group that counts to the last, but for gaps of SKIP_BYTES and
 * for what the host scores. */
static int add_spans(const struct cold_pool *pool, const struct cold_query *query, uint32_t stripe,
                     struct span_list *list, struct hill_why *why)
{
    const struct pool_stripe *record = &pool->directory->stripes[stripe];
    uint64_t group_bytes = (uint64_t)KV_GROUP_TOKENS * pool_read_bytes(&pool->layout);
    uint32_t used = pool->stripes[stripe]->used;
    struct group_run ours = {0}, passed = {0};
    int status = 0;

    for (uint32_t g = 0; status == 0 && g * KV_GROUP_TOKENS < used; g++) {
        if (!group_counts(record, g))
            continue;
        bool host = host_has(pool, query, stripe, g);
        if (host || (ours.end && (g - ours.end) * group_bytes >= SKIP_BYTES))
            status = end_span(list, &ours, stripe, used, why);
        if (!host)
            end_passed(pool, &passed, stripe);
        extend(host ? &passed : &ours, g);
    }
    end_passed(pool, &passed, stripe);
    return status == 0 ? end_span(list, &ours, stripe, used, why) : status;
}

/* All that the query has to read. */
static int list_spans(const struct cold_pool *pool, const struct cold_query *query,
                      struct span_list *list, struct hill_why *why)
{
    const struct cold_owner *owner = cold_owner(pool, query->sequence, query->layer);
    int status = 0;

    list->n = 0;
    if (pool->layout.key_bytes && !pool_has_keys(&pool->layout))
        return hill_fail(why, HILL_E_PROTOCOL, "this pool has parts of keys, not to be scored");
    if (owner->committed != query->committed)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "sequence %u, layer %u has %u committed slots, the query expects %u",
                         query->sequence, query->layer, owner->committed, query->committed);
    for (uint32_t i = 0; status == 0 && i < owner->n_stripes; i++)
        status = add_spans(pool, query, owner->stripes[i], list, why);
    return status;
}

static void tell_begun(void *context)
{
    const struct query_context *c = context;
    if (c->pool->begun)
        c->pool->begun(c->pool->begun_context);
}

int cold_pool_query(struct cold_pool *pool, const struct cold_query *query, struct cold_cost *cost,
                    struct hill_why *why)
{
    struct csd_score_job job = {.query = query->query, .scored = pass_scores, .begun = tell_begun};
    struct query_context context = {pool, query, &job, cost};
    int status = 0;

    job.context = &context;
    pool->spans_which ^= pool->query_ahead;
    struct span_list *list = &pool->spans[pool->spans_which];
    if (!pool->query_ahead)
        status = list_spans(pool, query, list, why);
    pool->query_ahead = false;
    if (status != 0 || list->n == 0)
        return status;
    job.spans = list->spans;
    job.n_spans = list->n;
    status = csd_drive_score(pool->drive, &job, why);
    cost->flash_read_bytes += job.flash_read_bytes;
    return status;
}

bool cold_pool_query_ahead(struct cold_pool *pool, const struct cold_query *query)
{
    struct span_list *list = &pool->spans[!pool->spans_which];

    if (list_spans(pool, query, list, NULL) != 0 || list->n == 0)
        return false;
    csd_drive_ahead(pool->drive, list->spans, list->n);
    return pool->query_ahead = true;
}

/* ---- fetch ---- */

struct fetch {
    struct cold_pool *pool;
    const struct cold_fetch *wanted;
    struct fetch_run *run;
    struct cold_cost *cost;
    struct hill_why *why;
    uint32_t *bad_position;
};

static int compare_slots(const void *a, const void *b)
{
    uint32_t x = ((const struct fetch_item *)a)->cold_slot;
    uint32_t y = ((const struct fetch_item *)b)->cold_slot;
    return (x > y) - (x < y);
}

static int refuse(const struct fetch *f, const struct fetch_item *item, int code, const char *why)
{
    *f->bad_position = item->position;
    return hill_fail(f->why, code, "cannot fetch position %u from cold slot %u: %s", item->position,
                     item->cold_slot, why);
}

static bool staging_current(const struct fetch *f, const struct fetch_item *item)
{
    return shm_arena_generation(f->wanted->staging, item->staging_slot) == item->generation;
}

static int check_item(const struct fetch *f, const struct fetch_item *item, uint32_t sequence)
{
    const struct cold_pool *pool = f->pool;
    uint32_t position = cold_pool_position(pool, item->cold_slot);

    if (position == COLD_NO_POSITION)
        return refuse(f, item, HILL_E_PROTOCOL, "the slot is not committed");
    const struct pool_stripe *record =
        &pool->directory->stripes[item->cold_slot / pool->layout.stripe_slots];
    if (record->sequence != sequence || record->layer != f->wanted->layer)
        return refuse(f, item, HILL_E_PROTOCOL, "it belongs to another sequence or layer");
    if (position != item->position)
        return refuse(f, item, HILL_E_PROTOCOL, "the slot holds another position");
    if (item->staging_slot >= f->wanted->staging->slot_count)
        return refuse(f, item, HILL_E_PROTOCOL, "there is no such staging slot");
    if (!staging_current(f, item))
        return refuse(f, item, HILL_E_PROTOCOL, "its staging slot was given back");
    return 0;
}

/* Plan reads for the items that follow, as far as the run's memory goes. */
static void plan_reads(const struct cold_pool *pool, struct fetch_run *r)
{
    const struct pool_layout *layout = &pool->layout;
    uint64_t entry_bytes = kv_entry_bytes(&layout->geometry), used = 0;
    struct csd_extent *run = NULL;

    r->n_extents = 0;
    for (r->from = r->to; r->to < r->n_items; r->to++) {
        uint64_t at = pool_entry_at(layout, r->items[r->to].cold_slot);
        uint64_t first = page_floor(at), end = page_ceil(at + entry_bytes);
        bool follows = run && first <= run->offset + run->bytes;
        uint64_t more = follows ? end - (run->offset + run->bytes) : end - first;
        if (used + more > BOUNCE_BYTES)
            break;
        if (!follows) {
            run = &r->extents[r->n_extents++];
            *run = (struct csd_extent){.offset = first, .memory = r->memory + used};
        }
        run->bytes += more;
        used += more;
        r->entries[r->to] = (uint8_t *)run->memory + (at - run->offset);
    }
}

/* Where the item's entry is, now that it has been read; NULL: the file is shorter. */
static const uint8_t *entry_of(const struct fetch *f, uint32_t i)
{
    const struct pool_layout *layout = &f->pool->layout;
    if (!f->run->in_place)
        return f->run->entries[i];
    return csd_drive_view(f->pool->drive, pool_entry_at(layout, f->run->items[i].cold_slot),
                          kv_entry_bytes(&layout->geometry));
}

/* Check the entry that was read and put it into its staging slot. */
static int deliver(const struct fetch *f, uint32_t i)
{
    const struct fetch_item *item = &f->run->items[i];
    const struct pool_layout *layout = &f->pool->layout;
    uint32_t entry_bytes = kv_entry_bytes(&layout->geometry), slots = layout->stripe_slots;
    uint32_t expected =
        f->pool->stripes[item->cold_slot / slots]->checksums[item->cold_slot % slots];
    const uint8_t *entry = entry_of(f, i);

    if (!entry)
        return refuse(f, item, HILL_E_IO, "the file ends before it");
    if (pool_entry_checksum(entry, entry_bytes) != expected)
        return refuse(f, item, HILL_E_DAMAGED, "the entry's checksum is wrong");
    if (!staging_current(f, item))
        return refuse(f, item, HILL_E_PROTOCOL, "its staging slot was given back");
    memcpy(shm_arena_slot(f->wanted->staging, item->staging_slot), entry, entry_bytes);
    FAULT_POINT(csd_agent, fetch, begun);
    return 0;
}

static void end_run(struct fetch_run *r)
{
    free(r->items);
    free(r->entries);
    free(r->extents);
    *r = (struct fetch_run){.memory = r->memory, .which = r->which};
}

/* The items copied [I20], looked at as they came, then in slot order. */
static int prepare(const struct fetch *f)
{
    const struct cold_fetch *w = f->wanted;
    struct fetch_run *r = f->run;
    int status = 0;

    r->n_items = w->n_items;
    r->items = calloc(w->n_items, sizeof *r->items);
    r->entries = calloc(w->n_items, sizeof *r->entries);
    r->extents = calloc(w->n_items, sizeof *r->extents);
    if (!r->items || !r->entries || !r->extents)
        return hill_fail(f->why, HILL_E_NOMEM, "no memory to fetch %u entries", w->n_items);
    if (kv_entry_bytes(&f->pool->layout.geometry) > w->staging->stride)
        return hill_fail(f->why, HILL_E_PROTOCOL, "staging slots of %u bytes cannot hold an entry",
                         w->staging->stride);
    memcpy(r->items, w->items, w->n_items * sizeof *w->items);
    uint32_t sequence = w->sequence;
    for (uint32_t i = 0, row = 0; status == 0 && i < w->n_items; i++) {
        if (row < w->n_rows && w->rows[row].first == i)
            sequence = w->rows[row++].sequence;
        status = check_item(f, &r->items[i], sequence);
    }
    qsort(r->items, w->n_items, sizeof *r->items, compare_slots);
    return status;
}

static bool all_in_place(const struct fetch *f)
{
    const struct fetch_run *r = f->run;
    bool all = true;
    for (uint32_t e = 0; all && e < r->n_extents; e++)
        all = csd_drive_view(f->pool->drive, r->extents[e].offset, r->extents[e].bytes);
    return all;
}

static int begin_reads(const struct fetch *f)
{
    struct fetch_run *r = f->run;
    plan_reads(f->pool, r);
    r->in_place = all_in_place(f);
    int status = r->in_place
                     ? 0
                     : csd_drive_begin(f->pool->drive, r->which, r->extents, r->n_extents, f->why);
    r->begun = status == 0;
    return status;
}

static int end_reads(const struct fetch_run *r, struct csd_drive *drive, struct hill_why *why)
{
    return r->in_place ? 0 : csd_drive_end(drive, r->which, r->extents, r->n_extents, why);
}

static int fetch_all(const struct fetch *f)
{
    struct fetch_run *r = f->run;
    int status = 0;

    while (status == 0 && (r->begun || r->to < r->n_items)) {
        status = r->begun ? 0 : begin_reads(f);
        if (status == 0 && r->to == r->n_items && f->pool->begun)
            f->pool->begun(f->pool->begun_context);
        if (status == 0) {
            status = end_reads(r, f->pool->drive, f->why);
            r->begun = false;
        }
        if (status != 0) {
            *f->bad_position = r->items[r->from].position;
            return status;
        }
        FAULT_POINT(csd_agent, fetch, read);
        for (uint32_t e = 0; e < r->n_extents; e++) {
            f->cost->flash_read_bytes += r->extents[e].bytes;
            f->cost->link_kv_bytes += r->extents[e].bytes;
        }
        for (uint32_t i = r->from; status == 0 && i < r->to; i++)
            status = deliver(f, i);
    }
    return status;
}

int cold_pool_fetch(struct cold_pool *pool, const struct cold_fetch *fetch, struct cold_cost *cost,
                    uint32_t *bad_position, struct hill_why *why)
{
    pool->fetch_which ^= pool->fetch_ahead;
    struct fetch_run *run = &pool->fetches[pool->fetch_which];
    const struct fetch f = {pool, fetch, run, cost, why, bad_position};
    int status = 0;

    *bad_position = 0;
    if (!pool->fetch_ahead)
        status = prepare(&f);
    pool->fetch_ahead = false;
    if (status == 0)
        status = fetch_all(&f);
    FAULT_POINT(csd_agent, fetch, done);
    end_run(run);
    return status;
}

bool cold_pool_fetch_ahead(struct cold_pool *pool, const struct cold_fetch *fetch)
{
    struct fetch_run *run = &pool->fetches[!pool->fetch_which];
    uint32_t bad_position;
    const struct fetch f = {pool, fetch, run, NULL, NULL, &bad_position};

    pool->fetch_ahead = prepare(&f) == 0 && begin_reads(&f) == 0;
    if (!pool->fetch_ahead)
        end_run(run);
    return pool->fetch_ahead;
}

/* ---- reading ahead ---- */

void cold_pool_when_begun(struct cold_pool *pool, void (*begun)(void *context), void *context)
{
    pool->begun = begun;
    pool->begun_context = context;
}

void cold_pool_drop_ahead(struct cold_pool *pool)
{
    struct fetch_run *run = &pool->fetches[!pool->fetch_which];

    csd_drive_drop_ahead(pool->drive);
    if (pool->fetch_ahead) {
        end_reads(run, pool->drive, NULL);
        end_run(run);
    }
    pool->query_ahead = pool->fetch_ahead = false;
}
