/*
 * csd_agent/digest_cache.h - digests in the drive's DRAM: what queries have read stays there, up to
 * a cap.
 *
 * What: pages of digests, in memory in pieces of 64 KiB of a stripe. A page that a query has read
 * from flash is put in; one that is written is written through, to flash and here. A stripe that is
 * freed goes, and so do pieces that the host scores. When the cap is reached one has to go that no
 * query has asked for lately (of a sequence that rests), else nothing new comes in: each query
 * reads all pieces of a layer, so one that was put in for another that is still of use would be
 * gone again before it is read. It stands in for the DRAM of a drive's card (`dram` of --csd-model)
 * or is real for a file (--csd-dram-mb). A pool whose plane is of keys has no digests: nothing
 * comes in. Who calls it: csd_drive.c. Concurrency: one thread. Failure: without memory nothing
 * comes in.
 */
#pragma once

#include "csd_agent/backend.h"

#define PIECE_PAGES 16u /* the last of a stripe has fewer */

struct cached_piece {
    uint8_t *pages;                     /* NULL: nothing of it is here */
    uint64_t there;                     /* bits: of its pages */
    uint64_t asked;                     /* query that asked for it last */
    struct cached_piece *older, *newer; /* in the queue: those that were asked for next to it */
};

struct digest_cache {
    struct pool_layout layout;
    uint64_t cap_bytes, bytes;
    uint64_t query;              /* their number so far */
    uint32_t of_stripe;          /* pieces */
    struct cached_piece *pieces; /* [n_stripes][of_stripe], then the end of the queue */
};

int digest_cache_create(struct digest_cache *c,
                        const struct pool_layout *layout); /* HILL_E_NOMEM */
void digest_cache_destroy(struct digest_cache *c);         /* of a zeroed struct, too */
/* At once: what is above it goes. */
void digest_cache_limit(struct digest_cache *c, uint64_t cap_bytes);

/* It is nobody's any more. */
void digest_cache_free_stripe(struct digest_cache *c, uint32_t stripe);

/* These bytes of a stripe's digests are scored by the host: pieces that lie within go. */
void digest_cache_pass(struct digest_cache *c, uint32_t stripe, uint64_t first, uint64_t bytes);

/* A query begins. */
void digest_cache_turn(struct digest_cache *c);
/* How many of the first bytes of a range are here together or not at all. */
uint64_t digest_cache_together(const struct digest_cache *c, uint64_t offset, uint64_t bytes);
/* All of this range of whole pages is here: copied to `to`. */
bool digest_cache_get(struct digest_cache *c, uint64_t offset, uint64_t bytes, uint8_t *to);
/* It was read from flash, or written there: pages of any stripes. What is not of a stripe's digests
 * is passed over. */
void digest_cache_put(struct digest_cache *c, uint64_t offset, uint64_t bytes, const uint8_t *from);
/* A write of it has failed. */
void digest_cache_drop(struct digest_cache *c, uint64_t offset, uint64_t bytes);
