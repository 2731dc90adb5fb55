/*
 * csd_agent/score_device.h - the OpenCL device that scores keys next to the flash.
 *
 * What: batches, each a page-aligned host buffer that flash is read into (the device's own memory
 * where it shares the host's, copied by map and unmap where it does not), a table of what lies
 * where in it, and scores. What lies there are digests, or FP16 keys that are cast to digests and
 * scored as those would be, bit for bit. While one batch is scored (its own queue) others are being
 * filled:
 *
 *     memory = map(b); read keys into memory; launch(b, pieces); ... wait(b, &scores)
 *
 * Without a device the host's CPU scores within launch, slice by slice, and lets its caller look at
 * each slice first (score_look): what the caller has read then is in the CPU's cache.
 *
 * Who calls it: file_backend.c. Concurrency: one thread. Failure: HILL_E_NODEV and HILL_E_NOMEM
 * from base/cldevice.h, with the call's name in why.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kv/geometry.h"
#include "kv/score.h"

#define SCORE_BATCHES      4u
#define SCORE_GROUP_SLOTS  64u /* slots of one work-group */
#define SCORE_BATCH_PIECES 1024u

/* Consecutive slots whose digests (from the first of a group on) or keys lie in a batch; their
 * scores follow those of the piece before. */
struct score_piece {
    uint32_t n_slots;
    uint32_t
        at; /* bytes from the batch's start, a multiple of KV_GROUP_ALIGN; of keys an even one */
};

struct score_device;

/* What the device is taken for: it decides the kernel's form (score.cl). */
enum score_as {
    SCORE_AS_IT_IS, /* a CPU, an accelerator (an FPGA), or any other */
    SCORE_AS_GPU,   /* tests: one of the latter two, with memory of its own */
    SCORE_AS_ACCELERATOR,
};

/* Called before a slice of batch b is scored, slice after slice in the order of the pieces; `to`:
 * the byte of the batch at which the slice ends. What is not 0 ends the launch and is its
 * result. */
struct score_look {
    int (*look)(void *context, uint32_t b, uint64_t to, struct hill_why *why);
    void *context;
};

struct score_settings {
    struct kv_geometry geometry;
    uint64_t batch_bytes; /* capacity of a batch, a multiple of 4096 */
    bool cast;          /* keys [slots][n_kv_heads][head_dim], FP16, come in the place of digests */
    bool on_host;       /* no device: kv/score.h on the CPU, in the thread that launches */
    const char *simd;   /* of on_host: kv_score_choose; NULL, or what this CPU lacks: "auto" */
    const char *device; /* as in base/cldevice.h */
    enum score_as as;
    struct score_look look; /* of on_host; look NULL: none */
};

/* HILL_E_INVALID: a batch of that size cannot be; HILL_E_NODEV, HILL_E_NOMEM. */
int score_device_create(struct score_device **out, const struct score_settings *settings,
                        struct hill_why *why);
/* NULL allowed. Launches must have been waited for. */
void score_device_destroy(struct score_device *d);

const char *score_device_name(const struct score_device *d);
/* Slots that a batch can hold; a launch must not have more. */
uint32_t score_device_slots_max(const struct score_device *d);

/* The query of the launches that follow; no launch may be in flight. */
int score_device_query(struct score_device *d, const struct kv_query *query, struct hill_why *why);

/* Host memory of batch b, to be filled; contents undefined. */
int score_device_map(struct score_device *d, uint32_t b, uint8_t **memory, struct hill_why *why);

/* Start scoring; returns at once. At most SCORE_BATCH_PIECES pieces, all inside the batch
 * (HILL_E_INVALID). */
int score_device_launch(struct score_device *d, uint32_t b, const struct score_piece *pieces,
                        uint32_t n_pieces, struct hill_why *why);

/* Wait for the launch; scores are valid until the next launch of b. */
int score_device_wait(struct score_device *d, uint32_t b, const uint16_t **scores,
                      struct hill_why *why);
