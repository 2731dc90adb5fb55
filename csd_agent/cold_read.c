/*
 * csd_agent/cold_read.c - queries and fetches; see cold_pool.h.
 *
 * A query hands the used part of each stripe of (sequence, layer), in stripe order, to the drive,
 * which scores next to the flash; groups of tokens without a committed slot are passed over where
 * enough of them follow one another. A fetch reads the covering pages of its entries: entries in
 * slot order, pages that overlap or follow each other as one read, as many as fit the bounce buffer
 * at a time.
 */
#include <stdlib.h>
#include <string.h>

#include "csd_agent/cold_state.h"

#include "base/fault.h"

/* ---- query ---- */

/* Digests that are not read for a gap: what is less is read faster than asked for anew. */
#define SKIP_BYTES (4 * CSD_ALIGN)

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
    return c->query->scored(c->query->context, c->pool->spans[span].stripe, first_slot, n, scores);
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

static int add_span(struct cold_pool *pool, uint32_t *n_spans, struct csd_span span,
                    struct hill_why *why)
{
    if (*n_spans == pool->spans_room) {
        uint32_t room = pool->spans_room ? 2 * pool->spans_room : 64;
        struct csd_span *grown = realloc(pool->spans, room * sizeof *grown);
        if (!grown)
            return hill_fail(why, HILL_E_NOMEM, "no memory for %u spans of digests", room);
        pool->spans = grown;
        pool->spans_room = room;
    }
    pool->spans[(*n_spans)++] = span;
    return 0;
}

/* A stripe's spans: from its first group that counts to the last, but for gaps of SKIP_BYTES. */
static int add_spans(struct cold_pool *pool, uint32_t stripe, uint32_t *n_spans,
                     struct hill_why *why)
{
    const struct pool_stripe *record = &pool->directory->stripes[stripe];
    uint64_t group_bytes = (uint64_t)KV_GROUP_TOKENS * pool_read_bytes(&pool->layout);
    uint32_t used = pool->stripes[stripe]->used, end = 0, first = 0;
    int status = 0;

    for (uint32_t g = 0; status == 0 && g * KV_GROUP_TOKENS < used; g++) {
        if (!group_counts(record, g))
            continue;
        if (end > first && (g - end) * group_bytes >= SKIP_BYTES) {
            status = add_span(pool, n_spans, span_of(stripe, first, end, used), why);
            first = g;
        } else if (end == first) {
            first = g;
        }
        end = g + 1;
    }
    if (status == 0 && end > first)
        status = add_span(pool, n_spans, span_of(stripe, first, end, used), why);
    return status;
}

int cold_pool_query(struct cold_pool *pool, const struct cold_query *query, struct cold_cost *cost,
                    struct hill_why *why)
{
    const struct cold_owner *owner = cold_owner(pool, query->sequence, query->layer);
    struct csd_score_job job = {.query = query->query, .scored = pass_scores};
    struct query_context context = {pool, query, &job, cost};

    job.context = &context;
    if (pool->layout.key_bytes && !pool_has_keys(&pool->layout))
        return hill_fail(why, HILL_E_PROTOCOL, "this pool has parts of keys, not to be scored");
    if (owner->committed != query->expected)
        return hill_fail(why, HILL_E_PROTOCOL,
                         "sequence %u, layer %u has %u committed slots, the query expects %u",
                         query->sequence, query->layer, owner->committed, query->expected);
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < owner->n_stripes; i++)
        status = add_spans(pool, owner->stripes[i], &job.n_spans, why);
    if (status != 0 || job.n_spans == 0)
        return status;
    job.spans = pool->spans;
    status = csd_drive_score(pool->drive, &job, why);
    cost->flash_read_bytes += job.flash_read_bytes;
    return status;
}

/* ---- fetch ---- */

struct fetch {
    struct cold_pool *pool;
    struct shm_arena *staging;
    struct cold_cost *cost;
    struct hill_why *why;
    uint32_t *bad_position;
    struct fetch_item *items; /* in slot order */
    const uint8_t **memory;   /* where an item's entry was read to */
    struct csd_extent *extents;
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
    return shm_arena_generation(f->staging, item->staging_slot) == item->generation;
}

static int check_item(const struct fetch *f, const struct fetch_item *item, uint32_t sequence,
                      uint32_t layer)
{
    const struct cold_pool *pool = f->pool;

    if (cold_pool_position(pool, item->cold_slot) == COLD_NO_POSITION)
        return refuse(f, item, HILL_E_PROTOCOL, "the slot is not committed");
    const struct pool_stripe *record =
        &pool->directory->stripes[item->cold_slot / pool->layout.stripe_slots];
    if (record->sequence != sequence || record->layer != layer)
        return refuse(f, item, HILL_E_PROTOCOL, "it belongs to another sequence or layer");
    if (cold_pool_position(pool, item->cold_slot) != item->position)
        return refuse(f, item, HILL_E_PROTOCOL, "the slot holds another position");
    if (item->staging_slot >= f->staging->slot_count)
        return refuse(f, item, HILL_E_PROTOCOL, "there is no such staging slot");
    if (!staging_current(f, item))
        return refuse(f, item, HILL_E_PROTOCOL, "its staging slot was given back");
    return 0;
}

/* Plan reads for items from `from` on, as far as the bounce buffer goes; returns the item after the
 * last. */
static uint32_t plan_reads(struct fetch *f, uint32_t from, uint32_t n_items, uint32_t *n_extents)
{
    const struct pool_layout *layout = &f->pool->layout;
    uint64_t entry_bytes = kv_entry_bytes(&layout->geometry), used = 0;
    struct csd_extent *run = NULL;
    uint32_t i;

    *n_extents = 0;
    for (i = from; i < n_items; i++) {
        uint64_t at = pool_entry_at(layout, f->items[i].cold_slot);
        uint64_t first = at & ~(uint64_t)(CSD_ALIGN - 1);
        uint64_t end = (at + entry_bytes + CSD_ALIGN - 1) & ~(uint64_t)(CSD_ALIGN - 1);
        bool follows = run && first <= run->offset + run->bytes;
        uint64_t more = follows ? end - (run->offset + run->bytes) : end - first;
        if (used + more > BOUNCE_BYTES)
            break;
        if (!follows) {
            run = &f->extents[(*n_extents)++];
            *run = (struct csd_extent){.offset = first, .memory = f->pool->bounce + used};
        }
        run->bytes += more;
        used += more;
        f->memory[i] = (uint8_t *)run->memory + (at - run->offset);
    }
    return i;
}

/* Check the entry that was read and put it into its staging slot. */
static int deliver(const struct fetch *f, uint32_t i)
{
    const struct fetch_item *item = &f->items[i];
    const struct pool_layout *layout = &f->pool->layout;
    uint32_t entry_bytes = kv_entry_bytes(&layout->geometry), slots = layout->stripe_slots;
    uint32_t expected =
        f->pool->stripes[item->cold_slot / slots]->checksums[item->cold_slot % slots];

    if (pool_entry_checksum(f->memory[i], entry_bytes) != expected)
        return refuse(f, item, HILL_E_DAMAGED, "the entry's checksum is wrong");
    if (!staging_current(f, item))
        return refuse(f, item, HILL_E_PROTOCOL, "its staging slot was given back");
    memcpy(shm_arena_slot(f->staging, item->staging_slot), f->memory[i], entry_bytes);
    FAULT_POINT(csd_agent, fetch, begun);
    return 0;
}

static int fetch_sorted(struct fetch *f, uint32_t n_items)
{
    int status = 0;

    for (uint32_t from = 0, next; status == 0 && from < n_items; from = next) {
        uint32_t n_extents;
        next = plan_reads(f, from, n_items, &n_extents);
        status = csd_drive_transfer(f->pool->drive, f->extents, n_extents, f->why);
        if (status != 0) {
            *f->bad_position = f->items[from].position;
            return status;
        }
        FAULT_POINT(csd_agent, fetch, read);
        for (uint32_t e = 0; e < n_extents; e++) {
            f->cost->flash_read_bytes += f->extents[e].bytes;
            f->cost->link_kv_bytes += f->extents[e].bytes;
        }
        for (uint32_t i = from; status == 0 && i < next; i++)
            status = deliver(f, i);
    }
    return status;
}

int cold_pool_fetch(struct cold_pool *pool, uint32_t sequence, uint32_t layer,
                    const struct fetch_item *items, uint32_t n_items, const struct fetch_row *rows,
                    uint32_t n_rows, struct shm_arena *staging, struct cold_cost *cost,
                    uint32_t *bad_position, struct hill_why *why)
{
    struct fetch f = {.pool = pool,
                      .staging = staging,
                      .cost = cost,
                      .why = why,
                      .bad_position = bad_position,
                      .items = calloc(n_items, sizeof *f.items),
                      .memory = calloc(n_items, sizeof *f.memory),
                      .extents = calloc(n_items, sizeof *f.extents)};
    int status = 0;

    *bad_position = 0;
    if (!f.items || !f.memory || !f.extents)
        status = hill_fail(why, HILL_E_NOMEM, "no memory to fetch %u entries", n_items);
    if (status == 0 && kv_entry_bytes(&pool->layout.geometry) > staging->stride)
        status = hill_fail(why, HILL_E_PROTOCOL, "staging slots of %u bytes cannot hold an entry",
                           staging->stride);
    for (uint32_t i = 0, row = 0; status == 0 && i < n_items; i++) {
        if (row < n_rows && rows[row].first == i)
            sequence = rows[row++].sequence;
        status = check_item(&f, &items[i], sequence, layer);
    }
    if (status == 0) {
        memcpy(f.items, items, n_items * sizeof *items);
        qsort(f.items, n_items, sizeof *f.items, compare_slots);
        status = fetch_sorted(&f, n_items);
    }
    FAULT_POINT(csd_agent, fetch, done);
    free(f.items);
    free(f.memory);
    free(f.extents);
    return status;
}
