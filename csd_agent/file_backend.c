/*
 * csd_agent/file_backend.c - "file:PATH": flash is a file or block device, the drive's processor an
 * OpenCL device.
 *
 * Scoring reads the digests of the spans (in a pool without them: the keys) batch by batch and
 * scores a batch while those that follow are being read, so that the drive has work all the time:
 *
 *     read 0, 1, 2 | read 1, 2, 3 | read 2, 3, 4    |
 *                  | score 0      | score 1, hand 0 | score 2, hand 1 ...
 *
 * A batch is at least batch_bytes of flash (or what is left), made of pieces: consecutive groups of
 * one stripe's digests (kv/group.h), or consecutive keys, read by covering pages. Invariant: no
 * read or launch is in flight when score returns. Who calls it: through struct csd_ops (backend.h), which
 * also has concurrency and failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "csd_agent/backend.h"
#include "csd_agent/digest_cache.h"
#include "csd_agent/file_io.h"
#include "csd_agent/page_sums.h"
#include "csd_agent/score_device.h"

#define CAPACITY_BATCHES 4u /* room of a batch buffer, in batch_bytes */

/* What lies in a batch. */
struct batch_plan {
    struct score_piece pieces[SCORE_BATCH_PIECES];
    struct {
        uint32_t span, first_slot;
        uint64_t bytes; /* of pages */
        bool dram;      /* they were there */
    } from[SCORE_BATCH_PIECES];
    struct csd_extent extents[SCORE_BATCH_PIECES]; /* a piece's */
    struct csd_extent reads[SCORE_BATCH_PIECES];   /* those that are read from flash */
    uint32_t n_pieces, n_reads;
    uint64_t bytes; /* of pages */
};

struct file_backend {
    struct csd_backend base;
    struct file_io *io;
    struct score_device *score;
    struct pool_layout layout;
    struct page_sums sums;
    struct digest_cache cache;
    char *device; /* OpenCL device asked for */
    uint64_t batch_bytes, capacity;
    bool on_host;
    struct batch_plan plans[SCORE_BATCHES];
};

static void file_close(struct csd_backend *backend)
{
    struct file_backend *f = (struct file_backend *)backend;

    /* The kernel may still write into the batches of a drive that stopped answering. */
    if (!f->io || !file_io_dead(f->io))
        score_device_destroy(f->score);
    file_io_close(f->io);
    page_sums_destroy(&f->sums);
    digest_cache_destroy(&f->cache);
    free(f->device);
    free(f);
}

static int file_open(struct csd_backend **out, const char *rest, const struct csd_options *options,
                     struct hill_why *why)
{
    struct file_backend *f = calloc(1, sizeof *f);

    *out = NULL;
    if (!f)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
    f->base.ops = &csd_file_ops;
    f->batch_bytes = options->batch_bytes ? options->batch_bytes : CSD_BATCH_BYTES;
    f->on_host = options->on_host;
    f->device = strdup(options->device ? options->device : "");
    int status = f->device ? file_io_open(&f->io, rest, options, why)
                           : hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
    if (status != 0) {
        file_close(&f->base);
        return status;
    }
    *out = &f->base;
    return 0;
}

static int file_pool_fd(struct csd_backend *backend)
{
    return file_io_fd(((struct file_backend *)backend)->io);
}

static int file_prepare(struct csd_backend *backend, const struct pool_layout *layout,
                        struct hill_why *why)
{
    struct file_backend *f = (struct file_backend *)backend;

    uint64_t group = (uint64_t)KV_GROUP_TOKENS * pool_read_bytes(layout) + 2 * CSD_ALIGN;

    f->layout = *layout;
    f->capacity = CAPACITY_BATCHES * f->batch_bytes;
    if (f->capacity < group) /* with covering pages */
        f->capacity = group;
    f->capacity = (f->capacity + CSD_ALIGN - 1) / CSD_ALIGN * CSD_ALIGN;
    if (page_sums_create(&f->sums, layout) || digest_cache_create(&f->cache, layout))
        return hill_fail(why, HILL_E_NOMEM, "no memory for the checksums of %u stripes",
                         layout->n_stripes);
    const struct score_settings settings = {.geometry = layout->geometry,
                                            .batch_bytes = f->capacity,
                                            .cast = pool_has_keys(layout),
                                            .on_host = f->on_host,
                                            .device = f->device};
    return score_device_create(&f->score, &settings, why);
}

/* Is what was read what was written? */
static int check_read(const struct file_backend *f, const struct csd_extent *e,
                      struct hill_why *why)
{
    uint64_t bad;
    int status = page_sums_check(&f->sums, e->offset, e->bytes, e->memory, &bad);
    if (status == 0)
        return 0;
    uint64_t from = bad - f->sums.from;
    uint64_t each =
        f->layout.key_bytes ? f->layout.key_stripe_bytes : f->layout.digest_stripe_bytes;
    return hill_fail(
        why, status,
        "the %s in page %llu of stripe %llu of the cold pool are damaged (byte %llu of "
        "the file): the checksum is wrong",
        f->layout.key_bytes ? "keys" : "digests", (unsigned long long)(from % each / CSD_ALIGN),
        (unsigned long long)(from / each), (unsigned long long)bad);
}

static void note_written(struct file_backend *f, const struct csd_extent *e, bool written)
{
    if (written) {
        page_sums_note(&f->sums, e->offset, e->bytes, e->memory);
        digest_cache_put(&f->cache, e->offset, e->bytes, e->memory);
    } else {
        page_sums_forget(&f->sums, e->offset, e->bytes);
        digest_cache_drop(&f->cache, e->offset, e->bytes);
    }
}

static int file_transfer(struct csd_backend *backend, const struct csd_extent *extents,
                         size_t n_extents, struct hill_why *why)
{
    struct file_backend *f = (struct file_backend *)backend;
    int status = file_io_run(f->io, extents, n_extents, why);
    for (size_t i = 0; f->sums.sums && i < n_extents; i++) {
        if (extents[i].write)
            note_written(f, &extents[i], status == 0);
        else if (status == 0)
            status = check_read(f, &extents[i], why);
    }
    return status;
}

static void file_seal(struct csd_backend *backend, uint64_t offset, uint64_t bytes,
                      const uint8_t *memory)
{
    page_sums_note(&((struct file_backend *)backend)->sums, offset, bytes, memory);
}

static void file_limit_dram(struct csd_backend *backend, uint64_t bytes)
{
    digest_cache_limit(&((struct file_backend *)backend)->cache, bytes);
}

static void file_free_stripe(struct csd_backend *backend, uint32_t stripe)
{
    digest_cache_free_stripe(&((struct file_backend *)backend)->cache, stripe);
}

static void file_describe(struct csd_backend *backend, char *text, size_t size)
{
    const struct file_backend *f = (const struct file_backend *)backend;

    snprintf(text, size, "%s, %s, %s%s", f->score ? score_device_name(f->score) : "no device",
             file_io_uring(f->io) ? "io_uring" : "pread",
             file_io_direct(f->io) ? "O_DIRECT" : "page cache",
             pool_has_keys(&f->layout) ? ", FP16 keys are cast" : "");
}

static void *file_alloc(struct csd_backend *backend, size_t bytes)
{
    (void)backend;
    return aligned_alloc(CSD_ALIGN, (bytes + CSD_ALIGN - 1) / CSD_ALIGN * CSD_ALIGN);
}

static void file_release(struct csd_backend *backend, void *memory, size_t bytes)
{
    (void)bytes;
    if (!file_io_dead(((struct file_backend *)backend)->io))
        free(memory);
}

/* ---- scoring ---- */

/* Where the next piece starts: so many slots behind the first of the span. */
struct span_cursor {
    uint32_t span, slot;
};

static uint64_t page_floor(uint64_t at)
{
    return at & ~(uint64_t)(CSD_ALIGN - 1);
}

static uint64_t page_ceil(uint64_t at)
{
    return page_floor(at + CSD_ALIGN - 1);
}

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
static bool plan_batch(const struct file_backend *f, const struct csd_score_job *job,
                       struct span_cursor *at, struct batch_plan *plan, uint8_t *memory)
{
    plan->n_pieces = 0;
    plan->bytes = 0;
    while (at->span < job->n_spans && plan->bytes < f->batch_bytes &&
           plan->n_pieces < SCORE_BATCH_PIECES) {
        const struct csd_span *span = &job->spans[at->span];
        uint32_t left = span->n_slots - at->slot;
        uint32_t n = slots_that_fit(&f->layout, left, f->capacity - plan->bytes);
        if (left > 0 && n == 0)
            break;
        if (n > 0)
            add_piece(&f->layout, plan, memory, span, *at, n);
        at->slot += n;
        if (n == left)
            *at = (struct span_cursor){at->span + 1, 0};
    }
    return plan->n_pieces > 0;
}

/* A query on its way through the batches: numbers count batches, b of SCORE_BATCHES is number
 * modulo that. done <= launched <= started <= done + SCORE_BATCHES. */
struct stream {
    struct file_backend *f;
    struct csd_score_job *job;
    struct span_cursor at;            /* what is to be read next */
    uint32_t started, launched, done; /* reads started, scoring launched, scores handed over */
    bool planned_all;
};

/* What lies in the drive's DRAM is not read from flash. */
static void take_from_dram(struct file_backend *f, struct batch_plan *plan)
{
    plan->n_reads = 0;
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        const struct csd_extent *e = &plan->extents[i];
        plan->from[i].dram = digest_cache_get(&f->cache, e->offset, e->bytes, e->memory);
        if (!plan->from[i].dram)
            plan->reads[plan->n_reads++] = *e;
    }
}

/* What has come from flash is right, and in DRAM from now on. */
static int take_reads(struct file_backend *f, const struct batch_plan *plan, uint64_t *read_bytes,
                      struct hill_why *why)
{
    int status = 0;
    for (uint32_t i = 0; i < plan->n_reads; i++)
        *read_bytes += plan->reads[i].bytes;
    for (uint32_t i = 0; status == 0 && i < plan->n_reads; i++) {
        const struct csd_extent *e = &plan->reads[i];
        status = check_read(f, e, why);
        if (status == 0)
            digest_cache_put(&f->cache, e->offset, e->bytes, e->memory);
    }
    return status;
}

/* Plan the next batch and start reading its digests, unless nothing is left. */
static int start_batch(struct stream *s, struct hill_why *why)
{
    uint32_t b = s->started % SCORE_BATCHES;
    struct batch_plan *plan = &s->f->plans[b];
    uint8_t *memory;

    if (s->at.span == s->job->n_spans) {
        s->planned_all = true;
        return 0;
    }
    int status = score_device_map(s->f->score, b, &memory, why);
    if (status != 0)
        return status;
    if (!plan_batch(s->f, s->job, &s->at, plan, memory)) {
        s->planned_all = true;
        return 0;
    }
    take_from_dram(s->f, plan);
    status = file_io_start(s->f->io, b, plan->reads, plan->n_reads, why);
    s->started += status == 0;
    return status;
}

/* Score the oldest batch that is being read. */
static int launch_batch(struct stream *s, struct hill_why *why)
{
    uint32_t b = s->launched % SCORE_BATCHES;
    struct batch_plan *plan = &s->f->plans[b];

    s->launched++; /* whatever comes of it, its read is over */
    int status = file_io_finish(s->f->io, b, why);
    if (status != 0)
        return status;
    status = take_reads(s->f, plan, &s->job->flash_read_bytes, why);
    if (status != 0)
        return status;
    return score_device_launch(s->f->score, b, plan->pieces, plan->n_pieces, why);
}

static int hand_over(const struct batch_plan *plan, struct csd_score_job *job,
                     const uint16_t *scores)
{
    int status = 0;

    for (uint32_t i = 0; status == 0 && i < plan->n_pieces; i++) {
        *(plan->from[i].dram ? &job->scored_dram_bytes : &job->scored_bytes) += plan->from[i].bytes;
        status = job->scored(job->context, plan->from[i].span, plan->from[i].first_slot,
                             plan->pieces[i].n_slots, scores);
        scores += plan->pieces[i].n_slots;
    }
    return status;
}

static int finish_batch(struct stream *s, struct hill_why *why)
{
    uint32_t b = s->done++ % SCORE_BATCHES;
    const uint16_t *scores;
    int status = score_device_wait(s->f->score, b, &scores, why);

    return status == 0 ? hand_over(&s->f->plans[b], s->job, scores) : status;
}

/* After a failure: nothing may be in flight when score returns. */
static void abandon(struct stream *s)
{
    const uint16_t *scores;

    for (; s->launched < s->started; s->launched++)
        file_io_finish(s->f->io, s->launched % SCORE_BATCHES, NULL);
    for (uint32_t b = 0; b < SCORE_BATCHES; b++)
        score_device_wait(s->f->score, b, &scores, NULL);
}

static int file_score(struct csd_backend *backend, struct csd_score_job *job, struct hill_why *why)
{
    struct file_backend *f = (struct file_backend *)backend;
    struct stream s = {.f = f, .job = job};

    job->flash_read_bytes = job->scored_bytes = job->scored_dram_bytes = 0;
    digest_cache_turn(&f->cache);
    int status = score_device_query(f->score, &job->query, why);
    while (status == 0) {
        while (status == 0 && !s.planned_all && s.started - s.done < SCORE_BATCHES)
            status = start_batch(&s, why);
        if (status == 0 && s.done == s.started)
            return 0;
        if (status == 0 && s.launched < s.started)
            status = launch_batch(&s, why);
        /* the batch before, so that one is always being scored; at the end, the last one too */
        if (status == 0 && (s.launched - s.done > 1 || s.launched == s.started))
            status = finish_batch(&s, why);
    }
    abandon(&s);
    return status;
}

const struct csd_ops csd_file_ops = {
    .scheme = "file",
    .open = file_open,
    .close = file_close,
    .pool_fd = file_pool_fd,
    .prepare = file_prepare,
    .transfer = file_transfer,
    .score = file_score,
    .seal = file_seal,
    .limit_dram = file_limit_dram,
    .free_stripe = file_free_stripe,
    .describe = file_describe,
    .alloc = file_alloc,
    .release = file_release,
};
