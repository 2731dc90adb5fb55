/*
 * csd_agent/backend.h - the operations a computational storage drive offers, as a table.
 *
 * What: the agent is the same for every drive; what differs (how flash is read and written, where
 * scores are computed) is behind struct csd_ops, chosen by the scheme of the URL:
 *     file:PATH                    file_backend.c: a file or block device, and the host's CPU or
 *                                  an OpenCL device in the place of the drive's processor
 *     xrt:PATH,xclbin=FILE[,...]   xrt_backend.c: a SmartSSD; never run on one
 * The table has the shape of XRT, of SNIA's CS API and of NVMe's computational programs: storage
 * to device memory, execute, read back. Who calls it: csd_drive.c. Concurrency: one thread per
 * backend. Failure: negative codes with a line in why; after one the backend can still be closed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "csd_agent/score_device.h"
#include "pool/pool.h"

#define CSD_ALIGN POOL_PAGE_BYTES /* of offsets, lengths and addresses of a transfer */

static inline uint64_t page_floor(uint64_t at)
{
    return at & ~(uint64_t)(CSD_ALIGN - 1);
}

static inline uint64_t page_ceil(uint64_t at)
{
    return page_floor(at + CSD_ALIGN - 1);
}

/* What scores for a file: drive unless an OpenCL device is named: the host's CPU, in the agent's
 * thread. */
#define CSD_HOST_CPU "host"

static inline bool csd_means_host(const char *device)
{
    return !device || *device == '\0' || strcmp(device, CSD_HOST_CPU) == 0;
}

struct csd_options {
    const char *device; /* of a file: drive: an OpenCL device, as in base/cldevice.h; CSD_HOST_CPU,
                           "" or NULL: the host's CPU */
    const char *simd;   /* how the host's CPU scores: kv_score_choose; NULL: "auto"; static text */
    bool create;        /* make the file when there is none */
    bool on_host;       /* of any drive: the host's CPU scores, whatever the device */
    bool force_buffered, force_pread; /* tests: act as if O_DIRECT, io_uring were not to be had */
    uint64_t
        batch_bytes; /* digests that a launch covers at least; 0: CSD_BATCH_BYTES (tests: small) */
};

/* A launch costs 40-75 us, so that 1 MiB (350 us of flash at 3 GB/s) hides it. */
#define CSD_BATCH_BYTES (1u << 20)

#define CSD_JOBS (SCORE_BATCHES + 2) /* transfers on their way at the same time */

/* One contiguous transfer between flash and memory. */
struct csd_extent {
    uint64_t offset; /* on flash */
    void *memory;
    uint64_t bytes;
    bool write;
};

struct csd_capabilities {
    bool casts;     /* scores FP16 keys, too */
    bool host_sees; /* the host may read a batch's memory at the speed of its own */
    bool looks;     /* program.look is called within execute */
};

/* What is loaded: the scoring program, and memory for batches. */
struct csd_program {
    struct kv_geometry geometry;
    uint64_t batch_bytes;   /* capacity of each of SCORE_BATCHES batches */
    bool cast;              /* keys come in the place of digests */
    struct score_look look; /* where the host's CPU scores */
};

/* Since open. */
struct csd_statistics {
    uint64_t launches, device_bytes, host_bytes, written_bytes; /* read for either; written */
};

struct csd_backend; /* a backend's own struct starts with this one */

struct csd_ops {
    const char *scheme; /* "file" */
    /* rest: the URL after "scheme:" */
    int (*open)(struct csd_backend **out, const char *rest, const struct csd_options *options,
                struct hill_why *why);
    void (*close)(struct csd_backend *backend);
    /* What it runs on, for people. */
    void (*describe)(struct csd_backend *backend, char *text, size_t size);
    struct csd_capabilities (*capabilities)(struct csd_backend *backend);

    /* Load the program and allocate the device's memory: once, before what follows. */
    int (*load)(struct csd_backend *backend, const struct csd_program *program,
                struct hill_why *why);
    /* Where what is read for batch b goes, batch_bytes of it; contents undefined. */
    int (*batch)(struct csd_backend *backend, uint32_t b, uint8_t **memory, struct hill_why *why);
    /* The query of the launches that follow; none may be in flight. */
    int (*query)(struct csd_backend *backend, const struct kv_query *query, struct hill_why *why);
    /* Start scoring pieces [n_pieces] of batch b. */
    int (*execute)(struct csd_backend *backend, uint32_t b, const struct score_piece *pieces,
                   uint32_t n_pieces, struct hill_why *why);
    /* Wait until batch b's scores are on the host: one for each slot of its pieces, piece after
     * piece. Without a launch there is nothing to wait for. */
    int (*wait)(struct csd_backend *backend, uint32_t b, const uint16_t **scores,
                struct hill_why *why);
};

struct csd_backend {
    const struct csd_ops *ops;
    struct file_io *io;         /* flash, of each kind a file or a block device */
    struct csd_statistics done; /* counted by each kind alike: csd_start, execute */
};

extern const struct csd_ops csd_file_ops, csd_xrt_ops;

/* Open by URL. HILL_E_INVALID for a scheme that is unknown. */
int csd_backend_open(struct csd_backend **out, const char *url, const struct csd_options *options,
                     struct hill_why *why);
/* A descriptor through which pool/ reads and writes superblock and directory. */
int csd_pool_fd(const struct csd_backend *backend);

/* Transfers, asynchronous: start, and finish, which every started job needs. Job b is batch b's:
 * flash to the device. Jobs SCORE_BATCHES to CSD_JOBS - 1: flash to or from host memory. Extents
 * are the caller's until finish. */
int csd_start(struct csd_backend *backend, uint32_t job, const struct csd_extent *extents,
              size_t n_extents, struct hill_why *why);
int csd_finish(struct csd_backend *backend, uint32_t job, struct hill_why *why);
/* Where flash is a file in memory: its bytes where they lie (file_io_view). NULL: they are to be
 * read. */
const uint8_t *csd_view(struct csd_backend *backend, uint64_t offset, uint64_t bytes);
/* The drive has stopped answering: memory that it was given must not be freed. */
bool csd_is_dead(const struct csd_backend *backend);
/* HILL_E_IO: it answers with errors alone (file_io_lost). */
int csd_lost(struct csd_backend *backend, struct hill_why *why);

/* NULL allowed. */
void csd_backend_close(struct csd_backend *backend);
