/*
 * csd_agent/csd_drive.c - a drive as the cold pool uses it, over the operations of its kind; see
 * csd_drive.h.
 *
 * Scoring reads the digests of the spans (in a pool without them: the keys) batch by batch and
 * scores a batch while those that follow are being read, so that the drive has work all the time:
 *
 *     read 0, 1, 2 | read 1, 2, 3 | read 2, 3, 4    |
 *                  | score 0      | score 1, hand 0 | score 2, hand 1 ...
 *
 * Where the host's CPU scores, a batch is scored when its launch returns, and handed over at once:
 * its buffer is for the next read.
 *
 * A batch is at least batch_bytes of flash (in a long query twice that; HOST_BYTES on the host's
 * CPU), or what is left. It is made of pieces: consecutive groups of one stripe's digests
 * (kv/group.h), or consecutive keys, read by covering pages. Batches that are free when all of a
 * query is being read are for the one that follows, if that is known (csd_drive_ahead). Invariant:
 * no launch is in flight when score returns, nor a read but for that.
 */
#include "csd_agent/csd_drive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "csd_agent/digest_cache.h"
#include "csd_agent/page_sums.h"

#define HOST_JOB SCORE_BATCHES /* and the next: to and from the host; the others are the batches' */

#define CAPACITY_BATCHES 4u /* room of a batch buffer, in batch_bytes */

/* A query that fills so many batches has them twice as large: fewer launches, more on its way. What
 * is scored after the last read has come is then a small part of it. */
#define LONG_BATCHES 32u

/* The host's CPU has no launch to pay for, and buffers that are small enough for its caches are
 * read into faster: four in turn of 512 KiB had 0.86 to 0.97 of the fastest plain loop, of 128 and
 * 256 KiB as much, of 1 MiB 0.6 (virtual machine, EPYC, November 2026). Where the options ask for
 * a size that counts instead. */
#define HOST_BYTES (512u << 10)

/* What lies in a batch. */
struct batch_plan {
    struct score_piece pieces[SCORE_BATCH_PIECES];
    struct {
        uint32_t span, first_slot;
        uint64_t bytes; /* of pages */
        uint64_t dram;  /* of these, what was there */
    } from[SCORE_BATCH_PIECES];
    struct csd_extent extents[SCORE_BATCH_PIECES]; /* a piece's */
    struct csd_extent reads[SCORE_BATCH_PIECES];   /* those that are read from flash */
    uint32_t n_pieces, n_reads;
    uint64_t bytes; /* of pages */
    uint32_t read;  /* that is looked at next, or in part has been, */
    uint64_t seen;  /* of its bytes so many */
};

/* Where the next piece starts: so many slots behind the first of the span. */
struct span_cursor {
    uint32_t span, slot;
};

/* A query on its way through the batches: numbers count batches, of all queries, b of SCORE_BATCHES
 * is number modulo that. done <= launched <= started <= done + SCORE_BATCHES. */
struct stream {
    const struct csd_span *spans; /* NULL: there is none */
    uint32_t n_spans;
    struct span_cursor at;            /* what is to be read next */
    uint64_t batch_bytes;             /* of flash in a batch, at least */
    uint64_t started, launched, done; /* reads started, scoring launched, scores handed over */
    bool planned_all;
};

struct csd_drive {
    struct csd_backend *backend;
    const struct csd_ops *ops;
    struct csd_capabilities can;
    struct pool_layout layout;
    struct page_sums sums;
    struct digest_cache cache;
    uint64_t batch_bytes, capacity;
    bool usual_batches; /* no size was asked for */
    struct batch_plan plans[SCORE_BATCHES];
    struct stream now, next; /* next: of the query that follows, read ahead */
};

int csd_drive_open(struct csd_drive **out, const char *url, const struct csd_options *options,
                   struct hill_why *why)
{
    struct csd_drive *d = calloc(1, sizeof *d);

    *out = NULL;
    if (!d)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the drive");
    int status = csd_backend_open(&d->backend, url, options, why);
    if (status != 0) {
        free(d);
        return status;
    }
    d->ops = d->backend->ops;
    d->usual_batches = options->batch_bytes == 0;
    d->batch_bytes = d->usual_batches ? CSD_BATCH_BYTES : options->batch_bytes;
    *out = d;
    return 0;
}

void csd_drive_close(struct csd_drive *d)
{
    if (!d)
        return;
    const struct csd_statistics s = d->backend->done;
    log_debug(
        "drive: %llu launches, %llu bytes read for them, %llu copied for the host, %llu written",
        (unsigned long long)s.launches, (unsigned long long)s.device_bytes,
        (unsigned long long)s.host_bytes, (unsigned long long)s.written_bytes);
    csd_backend_close(d->backend);
    page_sums_destroy(&d->sums);
    digest_cache_destroy(&d->cache);
    free(d);
}

int csd_drive_pool_fd(struct csd_drive *d)
{
    return csd_pool_fd(d->backend);
}

/* Is what was read what was written? */
static int check_read(const struct csd_drive *d, const struct csd_extent *e, struct hill_why *why)
{
    uint64_t bad;
    int status = page_sums_check(&d->sums, e->offset, e->bytes, e->memory, &bad);
    if (status == 0)
        return 0;
    uint64_t from = bad - d->sums.from;
    uint64_t each =
        d->layout.key_bytes ? d->layout.key_stripe_bytes : d->layout.digest_stripe_bytes;
    return hill_fail(
        why, status,
        "the %s in page %llu of stripe %llu of the cold pool are damaged (byte %llu of "
        "the file): the checksum is wrong",
        d->layout.key_bytes ? "keys" : "digests", (unsigned long long)(from % each / CSD_ALIGN),
        (unsigned long long)(from / each), (unsigned long long)bad);
}

/* Is what has come from flash right, up to `end` in memory? */
static int check_up_to(const struct csd_drive *d, struct batch_plan *plan, const uint8_t *end,
                       struct hill_why *why)
{
    int status = 0;
    while (status == 0 && plan->read < plan->n_reads) {
        const struct csd_extent *e = &plan->reads[plan->read];
        uint8_t *from = (uint8_t *)e->memory + plan->seen;
        uint64_t left = e->bytes - plan->seen;
        if (from >= end)
            break;
        uint64_t n = left < (uint64_t)(end - from) ? left : page_ceil((uint64_t)(end - from));
        const struct csd_extent part = {
            .offset = e->offset + plan->seen, .memory = from, .bytes = n};
        status = check_read(d, &part, why);
        plan->seen = n == left ? 0 : plan->seen + n;
        plan->read += n == left;
    }
    return status;
}

static int check_slice(void *context, uint32_t b, uint64_t to, struct hill_why *why)
{
    struct csd_drive *d = context;
    struct batch_plan *plan = &d->plans[b];
    return check_up_to(d, plan, (uint8_t *)plan->extents[0].memory + to, why);
}

int csd_drive_prepare(struct csd_drive *d, const struct pool_layout *layout, struct hill_why *why)
{
    uint64_t group = (uint64_t)KV_GROUP_TOKENS * pool_read_bytes(layout) + 2 * CSD_ALIGN;

    d->layout = *layout;
    d->capacity = CAPACITY_BATCHES * d->batch_bytes;
    if (d->capacity < group) /* with covering pages */
        d->capacity = group;
    d->capacity = page_ceil(d->capacity);
    if (page_sums_create(&d->sums, layout) || digest_cache_create(&d->cache, layout))
        return hill_fail(why, HILL_E_NOMEM, "no memory for the checksums of %u stripes",
                         layout->n_stripes);
    d->can = d->ops->capabilities(d->backend);
    if (layout->key_bytes && !d->can.casts)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "a %s: drive scores digests alone: its pool cannot be one of keys "
                         "(--csd-digests sidecar, --policy hillinfer)",
                         d->ops->scheme);
    const struct csd_program program = {
        layout->geometry, d->capacity, pool_has_keys(layout), {check_slice, d}};
    return d->ops->load(d->backend, &program, why);
}

static void note_written(struct csd_drive *d, const struct csd_extent *e, bool written)
{
    if (written) {
        page_sums_note(&d->sums, e->offset, e->bytes, e->memory);
        digest_cache_put(&d->cache, e->offset, e->bytes, e->memory);
    } else {
        page_sums_doubt(&d->sums, e->offset, e->bytes, e->memory);
        digest_cache_drop(&d->cache, e->offset, e->bytes);
    }
}

static int check_transfer(struct csd_drive *d, const struct csd_extent *extents, size_t n_extents,
                          int status, struct hill_why *why)
{
    for (size_t i = 0; d->sums.sums && i < n_extents; i++) {
        if (extents[i].write)
            note_written(d, &extents[i], status == 0);
        else if (status == 0)
            status = check_read(d, &extents[i], why);
    }
    return status;
}

int csd_drive_begin(struct csd_drive *d, uint32_t which, const struct csd_extent *extents,
                    size_t n_extents, struct hill_why *why)
{
    return csd_start(d->backend, HOST_JOB + which, extents, n_extents, why);
}

int csd_drive_end(struct csd_drive *d, uint32_t which, const struct csd_extent *extents,
                  size_t n_extents, struct hill_why *why)
{
    int status = csd_finish(d->backend, HOST_JOB + which, why);
    return check_transfer(d, extents, n_extents, status, why);
}

int csd_drive_transfer(struct csd_drive *d, const struct csd_extent *extents, size_t n_extents,
                       struct hill_why *why)
{
    int status = csd_drive_begin(d, 0, extents, n_extents, why);
    return status == 0 ? csd_drive_end(d, 0, extents, n_extents, why)
                       : check_transfer(d, extents, n_extents, status, why);
}

const uint8_t *csd_drive_view(struct csd_drive *d, uint64_t offset, uint64_t bytes)
{
    return csd_view(d->backend, offset, bytes);
}

void csd_drive_seal(struct csd_drive *d, uint64_t offset, uint64_t bytes, const uint8_t *memory)
{
    page_sums_note(&d->sums, offset, bytes, memory);
}

void csd_drive_limit_dram(struct csd_drive *d, uint64_t bytes)
{
    digest_cache_limit(&d->cache, d->can.host_sees ? bytes : 0);
}

void csd_drive_free_stripe(struct csd_drive *d, uint32_t stripe)
{
    digest_cache_free_stripe(&d->cache, stripe);
}

void csd_drive_pass(struct csd_drive *d, uint32_t stripe, uint32_t first_slot, uint32_t n_slots)
{
    if (!d->layout.key_bytes)
        digest_cache_pass(&d->cache, stripe, (uint64_t)first_slot * pool_read_bytes(&d->layout),
                          (uint64_t)n_slots * pool_read_bytes(&d->layout));
}

int csd_drive_lost(struct csd_drive *d, struct hill_why *why)
{
    return csd_lost(d->backend, why);
}

void csd_drive_describe(struct csd_drive *d, char *text, size_t size)
{
    d->ops->describe(d->backend, text, size);
    size_t used = strlen(text);
    if (pool_has_keys(&d->layout) && used < size)
        snprintf(text + used, size - used, ", FP16 keys are cast");
}

void *csd_drive_alloc(struct csd_drive *d, size_t bytes)
{
    (void)d;
    return aligned_alloc(CSD_ALIGN, page_ceil(bytes));
}

void csd_drive_release(struct csd_drive *d, void *memory)
{
    if (!csd_is_dead(d->backend))
        free(memory);
}

/* ---- scoring ---- */

/* How many of `left` slots, from the first of a group on, fit into `space` bytes with all their
 * covering pages. A cut falls between groups, on a multiple of 256 slots where it can. */
static uint32_t slots_that_fit(const struct pool_layout *layout, uint32_t left, uint64_t space)
{
    uint64_t borders = 2 * CSD_ALIGN, group = (uint64_t)KV_GROUP_TOKENS * pool_read_bytes(layout);
    uint64_t groups = space > borders ? (space - borders) / group : 0;
    uint64_t fit = groups * KV_GROUP_TOKENS;

    if (fit >= left)
        return left;
    return (uint32_t)(fit >= 256 ? fit & ~(uint64_t)255 : fit);
}

static void add_piece(const struct pool_layout *layout, struct batch_plan *plan, uint8_t *memory,
                      const struct csd_span *span, struct span_cursor at, uint32_t n_slots)
{
    uint32_t slot = span->first_slot + at.slot;
    uint32_t whole =
        layout->key_bytes ? n_slots : kv_groups_touched(slot, n_slots) * KV_GROUP_TOKENS;
    uint64_t keys = pool_read_at(layout, span->stripe * layout->stripe_slots + slot);
    uint64_t first = page_floor(keys);
    uint64_t end = page_ceil(keys + (uint64_t)whole * pool_read_bytes(layout));

    plan->pieces[plan->n_pieces] =
        (struct score_piece){.n_slots = n_slots, .at = (uint32_t)(plan->bytes + keys - first)};
    plan->from[plan->n_pieces].span = at.span;
    plan->from[plan->n_pieces].first_slot = slot;
    plan->from[plan->n_pieces].bytes = end - first;
    plan->extents[plan->n_pieces] = (struct csd_extent){
        .offset = first, .memory = memory + plan->bytes, .bytes = end - first, .write = false};
    plan->bytes += end - first;
    plan->n_pieces++;
}

/* Fill the plan from the cursor on; false when nothing was left. */
static bool plan_batch(const struct csd_drive *d, struct stream *s, struct batch_plan *plan,
                       uint8_t *memory)
{
    struct span_cursor *at = &s->at;

    plan->n_pieces = 0;
    plan->bytes = 0;
    while (at->span < s->n_spans && plan->bytes < s->batch_bytes &&
           plan->n_pieces < SCORE_BATCH_PIECES) {
        const struct csd_span *span = &s->spans[at->span];
        uint32_t left = span->n_slots - at->slot;
        uint32_t n = slots_that_fit(&d->layout, left, d->capacity - plan->bytes);
        if (left > 0 && n == 0)
            break;
        if (n > 0)
            add_piece(&d->layout, plan, memory, span, *at, n);
        at->slot += n;
        if (n == left)
            *at = (struct span_cursor){at->span + 1, 0};
    }
    return plan->n_pieces > 0;
}

/* What follows the read before, on flash and in memory, is a part of it. */
static void add_read(struct batch_plan *plan, const struct csd_extent *e)
{
    struct csd_extent *last = plan->n_reads ? &plan->reads[plan->n_reads - 1] : NULL;

    if (last && last->offset + last->bytes == e->offset &&
        (uint8_t *)last->memory + last->bytes == (uint8_t *)e->memory)
        last->bytes += e->bytes;
    else
        plan->reads[plan->n_reads++] = *e;
}

/* The first bytes of a piece's pages out of the drive's DRAM: those that it keeps together, or all,
 * where each piece that is left needs a read of the plan for itself. */
static uint64_t get_some(struct csd_drive *d, const struct batch_plan *plan, uint32_t piece,
                         const struct csd_extent *e, bool *there)
{
    bool room = plan->n_reads + (plan->n_pieces - piece) < SCORE_BATCH_PIECES;
    uint64_t n = room ? digest_cache_together(&d->cache, e->offset, e->bytes) : e->bytes;
    *there = d->can.host_sees && digest_cache_get(&d->cache, e->offset, n, e->memory);
    return n;
}

/* What lies in the drive's DRAM is not read from flash. */
static void take_from_dram(struct csd_drive *d, struct batch_plan *plan)
{
    plan->n_reads = 0;
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        struct csd_extent left = plan->extents[i];
        plan->from[i].dram = 0;
        for (uint64_t n; left.bytes > 0; left.bytes -= n) {
            bool there;
            n = get_some(d, plan, i, &left, &there);
            plan->from[i].dram += there ? n : 0;
            if (!there)
                add_read(plan, &(struct csd_extent){
                                   .offset = left.offset, .memory = left.memory, .bytes = n});
            left.offset += n;
            left.memory = (uint8_t *)left.memory + n;
        }
    }
}

/* Score what has come from flash once it has been found right: where the host's CPU scores slice by
 * slice, so that memory is read once. What came is in DRAM from now on. */
static int check_and_execute(struct csd_drive *d, uint32_t b, struct hill_why *why)
{
    struct batch_plan *plan = &d->plans[b];
    const uint8_t *end = (uint8_t *)plan->extents[0].memory + plan->bytes;
    int status = 0;

    plan->read = 0;
    plan->seen = 0;
    if (d->can.host_sees && !d->can.looks)
        status = check_up_to(d, plan, end, why);
    if (status == 0)
        status = d->ops->execute(d->backend, b, plan->pieces, plan->n_pieces, why);
    for (uint32_t i = 0; d->can.host_sees && status == 0 && i < plan->n_reads; i++)
        digest_cache_put(&d->cache, plan->reads[i].offset, plan->reads[i].bytes,
                         plan->reads[i].memory);
    return status;
}

/* Plan the next batch and start reading its digests, unless nothing is left. */
static int start_batch(struct csd_drive *d, struct stream *s, struct hill_why *why)
{
    uint32_t b = s->started % SCORE_BATCHES;
    struct batch_plan *plan = &d->plans[b];
    uint8_t *memory;

    if (s->at.span == s->n_spans) {
        s->planned_all = true;
        return 0;
    }
    int status = d->ops->batch(d->backend, b, &memory, why);
    if (status != 0)
        return status;
    if (!plan_batch(d, s, plan, memory)) {
        s->planned_all = true;
        return 0;
    }
    take_from_dram(d, plan);
    status = csd_start(d->backend, b, plan->reads, plan->n_reads, why);
    s->started += status == 0;
    return status;
}

/* As many batches as are free. */
static int start_batches(struct csd_drive *d, struct stream *s, struct hill_why *why)
{
    int status = 0;
    while (status == 0 && !s->planned_all && s->started - d->now.done < SCORE_BATCHES)
        status = start_batch(d, s, why);
    return status;
}

/* Score the oldest batch that is being read. */
static int launch_batch(struct csd_drive *d, struct csd_score_job *job, struct hill_why *why)
{
    uint32_t b = d->now.launched % SCORE_BATCHES;
    struct batch_plan *plan = &d->plans[b];

    d->now.launched++; /* whatever comes of it, its read is over */
    int status = csd_finish(d->backend, b, why);
    if (status != 0)
        return status;
    for (uint32_t i = 0; i < plan->n_reads; i++)
        job->flash_read_bytes += plan->reads[i].bytes;
    return check_and_execute(d, b, why);
}

static int hand_over(const struct batch_plan *plan, struct csd_score_job *job,
                     const uint16_t *scores)
{
    int status = 0;

    for (uint32_t i = 0; status == 0 && i < plan->n_pieces; i++) {
        job->scored_dram_bytes += plan->from[i].dram;
        job->scored_bytes += plan->from[i].bytes - plan->from[i].dram;
        status = job->scored(job->context, plan->from[i].span, plan->from[i].first_slot,
                             plan->pieces[i].n_slots, scores);
        scores += plan->pieces[i].n_slots;
    }
    return status;
}

static int finish_batch(struct csd_drive *d, struct csd_score_job *job, struct hill_why *why)
{
    uint32_t b = d->now.done++ % SCORE_BATCHES;
    const uint16_t *scores;
    int status = d->ops->wait(d->backend, b, &scores, why);

    return status == 0 ? hand_over(&d->plans[b], job, scores) : status;
}

void csd_drive_drop_ahead(struct csd_drive *d)
{
    for (; d->next.launched < d->next.started; d->next.launched++)
        csd_finish(d->backend, d->next.launched % SCORE_BATCHES, NULL);
    d->next = (struct stream){0};
}

/* What fails here fails again where somebody hears of it. */
static void go_on_ahead(struct csd_drive *d)
{
    if (d->next.spans && start_batches(d, &d->next, NULL) != 0)
        csd_drive_drop_ahead(d);
}

/* The stream of a query of which nothing has been read. */
static struct stream new_stream(const struct csd_drive *d, const struct csd_span *spans,
                                uint32_t n_spans)
{
    uint64_t first = d->now.started, slots = 0;

    for (uint32_t i = 0; i < n_spans; i++)
        slots += spans[i].n_slots;
    bool is_long = slots * pool_read_bytes(&d->layout) >= LONG_BATCHES * d->batch_bytes;
    uint64_t bytes = is_long ? 2 * d->batch_bytes : d->batch_bytes;
    if (d->can.looks && d->usual_batches)
        bytes = HOST_BYTES;
    return (struct stream){.spans = spans,
                           .n_spans = n_spans,
                           .batch_bytes = bytes,
                           .started = first,
                           .launched = first,
                           .done = first};
}

void csd_drive_ahead(struct csd_drive *d, const struct csd_span *spans, uint32_t n_spans)
{
    d->next = new_stream(d, spans, n_spans);
    go_on_ahead(d);
}

/* After a failure: nothing may be in flight when score returns. */
static void abandon(struct csd_drive *d)
{
    const uint16_t *scores;

    csd_drive_drop_ahead(d);
    for (; d->now.launched < d->now.started; d->now.launched++)
        csd_finish(d->backend, d->now.launched % SCORE_BATCHES, NULL);
    for (uint32_t b = 0; b < SCORE_BATCHES; b++)
        d->ops->wait(d->backend, b, &scores, NULL);
    d->now.done = d->now.started;
}

/* Its stream: what was begun of it goes on. */
static void begin_stream(struct csd_drive *d, const struct csd_score_job *job)
{
    if (d->next.spans != job->spans || d->next.n_spans != job->n_spans)
        csd_drive_drop_ahead(d);
    d->now = d->next.spans ? d->next : new_stream(d, job->spans, job->n_spans);
    d->next = (struct stream){0};
}

int csd_drive_score(struct csd_drive *d, struct csd_score_job *job, struct hill_why *why)
{
    bool told = false;

    job->flash_read_bytes = job->scored_bytes = job->scored_dram_bytes = 0;
    begin_stream(d, job);
    digest_cache_turn(&d->cache);
    int status = d->ops->query(d->backend, &job->query, why);
    while (status == 0) {
        status = start_batches(d, &d->now, why);
        if (status == 0 && d->now.done == d->now.started)
            return 0;
        if (status == 0 && d->now.launched < d->now.started)
            status = launch_batch(d, job, why);
        if (status == 0 && d->now.planned_all && !told && job->begun)
            job->begun(job->context);
        told |= d->now.planned_all;
        go_on_ahead(d); /* while the device scores */
        /* the batch before, so that one is always being scored; at the end, the last one too */
        if (status == 0 && (d->can.looks || d->now.launched - d->now.done > 1 ||
                            d->now.launched == d->now.started))
            status = finish_batch(d, job, why);
    }
    abandon(d);
    return status;
}
