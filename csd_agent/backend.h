/*
 * csd_agent/backend.h - the operations a computational storage drive offers, as a table.
 *
 * What: the agent is the same for every drive; what differs (how flash is read and written, where
 * scores are computed) is behind struct csd_ops, chosen by the scheme of the URL. This version has
 * "file:PATH" (file_backend.c): a file or block device and an OpenCL device that stands in for the
 * drive's processor. "xrt:" is known by name and refused. Who calls it: the cold pool (cold_*.c).
 * Concurrency: one thread per backend. Failure: negative codes with a line in why; after one the
 * backend can still be closed.
 */
#ifndef HILL_CSD_AGENT_BACKEND_H
#define HILL_CSD_AGENT_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/score.h"
#include "pool/pool.h"

#define CSD_ALIGN POOL_PAGE_BYTES /* of offsets, lengths and addresses of a transfer */

struct csd_options {
    const char *device; /* OpenCL device, as in base/cldevice.h; NULL: the first */
    bool create;        /* make the file when there is none */
    bool on_host;       /* no device: the host's CPU scores, in this process's thread */
    bool force_buffered, force_pread; /* tests: act as if O_DIRECT, io_uring were not to be had */
    uint64_t
        batch_bytes; /* digests that a launch covers at least; 0: CSD_BATCH_BYTES (tests: small) */
};

/* A launch costs 40-75 us, so that 1 MiB (350 us of flash at 3 GB/s) hides it. */
#define CSD_BATCH_BYTES (1u << 20)

/* One contiguous transfer between flash and host memory. */
struct csd_extent {
    uint64_t offset; /* on flash */
    void *memory;
    uint64_t bytes;
    bool write;
};

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
    void *context;
    uint64_t flash_read_bytes; /* out: also on failure */
    /* out: read from flash, and from the drive's DRAM, of digests whose scores were handed over;
     * within scored those that it is called for count already */
    uint64_t scored_bytes, scored_dram_bytes;
};

struct csd_backend; /* a backend's own struct starts with this one */

struct csd_ops {
    const char *scheme; /* "file" */
    /* rest: the URL after "scheme:" */
    int (*open)(struct csd_backend **out, const char *rest, const struct csd_options *options,
                struct hill_why *why);
    void (*close)(struct csd_backend *backend);
    /* A descriptor through which pool/ reads and writes superblock and directory. */
    int (*pool_fd)(struct csd_backend *backend);
    /* Once, before the others: load the scoring program for that layout. */
    int (*prepare)(struct csd_backend *backend, const struct pool_layout *layout,
                   struct hill_why *why);
    /* Flash <-> host memory; returns when all is there (or durable as far as the drive says).
     * HILL_E_DAMAGED: a page of digests or keys is not what was written. */
    int (*transfer)(struct csd_backend *backend, const struct csd_extent *extents, size_t n_extents,
                    struct hill_why *why);
    /* In-storage scoring: no key leaves the drive, only scores do. */
    int (*score)(struct csd_backend *backend, struct csd_score_job *job, struct hill_why *why);
    /* These pages, of the plane of digests or keys, are right: what is read there from now on is to
     * be the same. */
    void (*seal)(struct csd_backend *backend, uint64_t offset, uint64_t bytes,
                 const uint8_t *memory);
    /* Digests that it may keep in its DRAM; from now on. */
    void (*limit_dram)(struct csd_backend *backend, uint64_t bytes);
    /* Its digests are nobody's any more: their DRAM is free for others. */
    void (*free_stripe)(struct csd_backend *backend, uint32_t stripe);
    /* What it runs on, for people. */
    void (*describe)(struct csd_backend *backend, char *text, size_t size);
    /* Memory from alloc may be used in transfers. */
    void *(*alloc)(struct csd_backend *backend, size_t bytes);
    void (*release)(struct csd_backend *backend, void *memory, size_t bytes);
};

struct csd_backend {
    const struct csd_ops *ops;
};

extern const struct csd_ops csd_file_ops;

/* Open by URL. HILL_E_UNSUPPORTED for a scheme of a later version, HILL_E_INVALID for an unknown
 * one. */
int csd_backend_open(struct csd_backend **out, const char *url, const struct csd_options *options,
                     struct hill_why *why);
/* NULL allowed. */
void csd_backend_close(struct csd_backend *backend);

#endif
