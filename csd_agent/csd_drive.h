/*
 * csd_agent/csd_drive.h - a drive as the cold pool uses it: transfers whose pages are checked, and
 * queries scored next to the flash.
 *
 * What: everything that is the same for every kind of drive: which batches a query is cut into,
 * what is read while what is scored, checksums of pages (page_sums.h), digests in DRAM
 * (digest_cache.h). What differs is behind struct csd_ops (backend.h). Who calls it: the cold pool
 * (cold_*.c); tools/bench. Concurrency: one thread. Failure: negative codes with a line in why;
 * after one the drive can still be closed.
 */
#pragma once

#include "csd_agent/backend.h"

/* n_slots slots of a stripe, from the first of a group on. */
struct csd_span {
    uint32_t stripe, first_slot, n_slots;
};

struct csd_score_job {
    struct kv_query query;
    const struct csd_span *spans;
    uint32_t n_spans;
    /* Called in the order of spans and slots, as batches complete, with the scores of n consecutive
     * slots of a stripe from first_slot. Another batch may be scored meanwhile. A negative code
     * ends the job and is its result. */
    int (*scored)(void *context, uint32_t span, uint32_t first_slot, uint32_t n,
                  const uint16_t *scores);
    /* Called once, when all that is read for it has been asked for: the drive will soon have
     * nothing to do. NULL allowed. */
    void (*begun)(void *context);
    void *context;
    uint64_t flash_read_bytes; /* out: also on failure */
    /* out: read from flash, and from the drive's DRAM, of digests whose scores were handed over;
     * within scored those that it is called for count already */
    uint64_t scored_bytes, scored_dram_bytes;
};

struct csd_drive;

/* By URL, as csd_backend_open. */
int csd_drive_open(struct csd_drive **out, const char *url, const struct csd_options *options,
                   struct hill_why *why);
/* NULL allowed. */
void csd_drive_close(struct csd_drive *drive);

/* A descriptor through which pool/ reads and writes superblock and directory. */
int csd_drive_pool_fd(struct csd_drive *drive);
/* Once, before what follows: load the scoring program for that layout. */
int csd_drive_prepare(struct csd_drive *drive, const struct pool_layout *layout,
                      struct hill_why *why);

/* Flash <-> host memory; returns when all is there (or durable as far as the drive says).
 * HILL_E_DAMAGED: a page of digests or keys is not what was written. */
int csd_drive_transfer(struct csd_drive *drive, const struct csd_extent *extents, size_t n_extents,
                       struct hill_why *why);
/* The same in two halves, of two such transfers at most, `which` 0 and 1: what was begun without an
 * error is to be ended. Extents and memory are the caller's until then. Transfer is which 0. */
int csd_drive_begin(struct csd_drive *drive, uint32_t which, const struct csd_extent *extents,
                    size_t n_extents, struct hill_why *why);
int csd_drive_end(struct csd_drive *drive, uint32_t which, const struct csd_extent *extents,
                  size_t n_extents, struct hill_why *why);
/* Entries where they lie, of a drive whose flash is a file in memory, until something is read or
 * written: no page of theirs has a checksum to be looked at. NULL: they are to be read. */
const uint8_t *csd_drive_view(struct csd_drive *drive, uint64_t offset, uint64_t bytes);
/* In-storage scoring: no key leaves the drive, only scores do. */
int csd_drive_score(struct csd_drive *drive, struct csd_score_job *job, struct hill_why *why);
/* Begin to read for the query that is scored next, which has these very spans, as far as batches
 * are free; called before a score, or from within `begun` of one. */
void csd_drive_ahead(struct csd_drive *drive, const struct csd_span *spans, uint32_t n_spans);
/* That query does not come, or is another one. */
void csd_drive_drop_ahead(struct csd_drive *drive);
/* These pages, of the plane of digests or keys, are right: what is read there from now on is to be
 * the same. */
void csd_drive_seal(struct csd_drive *drive, uint64_t offset, uint64_t bytes,
                    const uint8_t *memory);
/* Digests that it may keep in its DRAM; from now on. */
void csd_drive_limit_dram(struct csd_drive *drive, uint64_t bytes);
/* Its digests are nobody's any more: their DRAM is free for others. */
void csd_drive_free_stripe(struct csd_drive *drive, uint32_t stripe);
/* The host scores these slots, from the first of a group on: their DRAM is free for others, too. */
void csd_drive_pass(struct csd_drive *drive, uint32_t stripe, uint32_t first_slot,
                    uint32_t n_slots);
/* HILL_E_IO: it answers with errors alone, and only opening it anew can help. */
int csd_drive_lost(struct csd_drive *drive, struct hill_why *why);
/* What it runs on, for people. */
void csd_drive_describe(struct csd_drive *drive, char *text, size_t size);
/* Memory from alloc may be used in transfers. */
void *csd_drive_alloc(struct csd_drive *drive, size_t bytes);
void csd_drive_release(struct csd_drive *drive, void *memory);
