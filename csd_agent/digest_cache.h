/*
 * csd_agent/digest_cache.h - digests in the drive's DRAM: what queries have read stays there, up to
 * a cap.
 *
 * What: pages of digests, a stripe's together, in memory. A page that a query has read from flash
 * is put in; one that is written is written through, to flash and here. A stripe that is freed
 * goes. When the cap is reached one has to go that no query has asked for lately (of a sequence
 * that rests), else nothing new comes in: each query reads all stripes of a layer, so one that was
 * put in for another that is still of use would be gone again before it is read. It stands in for
 * the DRAM of a drive's card (`dram` of --csd-model) or is real for a file (--csd-dram-mb). A pool
 * whose plane is of keys has no digests: nothing comes in. Who calls it: csd_drive.c. Concurrency:
 * one thread. Failure: without memory nothing comes in.
 */
#pragma once

#include "csd_agent/backend.h"

struct cached_stripe {
    uint8_t *pages;  /* [digest_stripe_bytes]; NULL: nothing of it is here */
    uint64_t *there; /* bits: of its pages */
    uint64_t asked;  /* query that asked for it last */
};

struct digest_cache {
    struct pool_layout layout;
    uint64_t cap_bytes, bytes;
    uint64_t query;                /* their number so far */
    bool full;                     /* this query has found the cap reached and no stripe idle */
    struct cached_stripe *stripes; /* [n_stripes] */
};

int digest_cache_create(struct digest_cache *c,
                        const struct pool_layout *layout); /* HILL_E_NOMEM */
void digest_cache_destroy(struct digest_cache *c);         /* of a zeroed struct, too */
/* At once: what is above it goes. */
void digest_cache_limit(struct digest_cache *c, uint64_t cap_bytes);

/* It is nobody's any more. */
void digest_cache_free_stripe(struct digest_cache *c, uint32_t stripe);

/* A query begins. */
void digest_cache_turn(struct digest_cache *c);
/* All of this range of whole pages, which lies in one stripe, is here: copied to `to`. */
bool digest_cache_get(struct digest_cache *c, uint64_t offset, uint64_t bytes, uint8_t *to);
/* It was read from flash, or written there: pages of any stripes. What is not of a stripe's digests
 * is passed over. */
void digest_cache_put(struct digest_cache *c, uint64_t offset, uint64_t bytes, const uint8_t *from);
/* A write of it has failed. */
void digest_cache_drop(struct digest_cache *c, uint64_t offset, uint64_t bytes);
