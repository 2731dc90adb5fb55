/*
 * csd_agent/cold_state.h - the cold pool's state, shared by cold_*.c.
 * Nobody else includes it. Concurrency: one thread.
 */
#pragma once

#include "csd_agent/cold_pool.h"

#define BOUNCE_BYTES                                                                               \
    (4u << 20) /* page-aligned memory of transfers; holds many of the largest entries */

#define BOUNCE_PAGES (BOUNCE_BYTES / CSD_ALIGN)

/* The planes of a stripe. When slots come in order, the last page of the entries is partly filled,
 * and so are the pages of the last group of digests. */
enum plane { PLANE_DIGESTS, PLANE_KEYS, PLANE_ENTRIES, PLANE_COUNT };

/* Copy of pages of flash that are not full yet, so that the next demote need not read them. */
struct tail_pages {
    uint64_t offset, bytes; /* in the file; 0 bytes: none */
    uint64_t room;          /* of pages */
    uint8_t *pages;
};

/* What is known of a claimed stripe beyond its directory record. */
struct cold_stripe {
    uint32_t used;     /* highest committed slot + 1 */
    uint64_t *written; /* bitmap of slots: on flash, but not committed yet */
    uint64_t *digest_pages, *key_pages,
        *entry_pages; /* bitmaps: written to since the claim, so not to be made up of zeros */
    uint32_t *positions, *checksums; /* of written slots */
    struct tail_pages tails[PLANE_COUNT];
};

/* The stripes of a (sequence, layer), by stripe order. */
struct cold_owner {
    uint32_t *stripes;
    uint32_t n_stripes, capacity;
    uint32_t committed; /* slots */
};

/* The stretches that a query reads. */
struct span_list {
    struct csd_span *spans;
    uint32_t n, room;
};

/* A fetch whose entries are read, as many at a time as its memory holds. */
struct fetch_run {
    uint8_t *memory;          /* BOUNCE_BYTES */
    struct fetch_item *items; /* in slot order; NULL: none runs */
    const uint8_t **entries;  /* where an item's entry is read to */
    struct csd_extent *extents;
    uint32_t n_items, n_extents, from, to; /* items that are being read, if that has begun */
    uint32_t which;                        /* of the drive's transfers */
    bool begun;
    bool in_place; /* nothing is read: the file lies in memory */
};

struct cold_pool {
    struct csd_drive *drive;
    struct pool_directory *directory;
    struct pool_layout layout;
    uint32_t n_sequences;
    bool kept;                    /* what an earlier agent wrote is there */
    struct cold_stripe **stripes; /* [n_stripes], NULL: free */
    struct cold_owner *owners;    /* [n_sequences][n_layers] */
    /* Stripes whose directory record has changed, each once, oldest first. */
    uint32_t *dirty; /* [n_stripes], circular */
    uint8_t *is_dirty;
    uint32_t dirty_first, n_dirty;
    uint8_t *bounce;          /* BOUNCE_BYTES */
    uint8_t *directory_pages; /* pool_directory_page_bytes */
    /* [which], and of the other one what is read ahead */
    struct span_list spans[2];
    struct fetch_run fetches[2];
    uint32_t spans_which, fetch_which;
    bool query_ahead, fetch_ahead; /* there is something */
    void (*begun)(void *context);
    void *begun_context;
    struct cold_page *pages;    /* [BOUNCE_PAGES]: of a scattered demote, */
    struct csd_extent *extents; /* and its transfers */
};

static inline struct cold_owner *cold_owner(const struct cold_pool *pool, uint32_t sequence,
                                            uint32_t layer)
{
    return &pool->owners[(uint64_t)sequence * pool->layout.geometry.n_layers + layer];
}

static inline bool bit_test(const uint64_t *bits, uint64_t i)
{
    return (bits[i / 64] >> (i % 64)) & 1u;
}

static inline void bit_set(uint64_t *bits, uint64_t i)
{
    bits[i / 64] |= (uint64_t)1 << (i % 64);
}

static inline void bit_clear(uint64_t *bits, uint64_t i)
{
    bits[i / 64] &= ~((uint64_t)1 << (i % 64));
}

/* Find the state of a stripe for (sequence, layer), claiming it when it is free. HILL_E_PROTOCOL
 * when it is another's. */
int cold_stripe_claim(struct cold_pool *pool, uint32_t stripe, uint32_t sequence, uint32_t layer,
                      uint32_t order, struct cold_stripe **out, struct hill_why *why);

/* A written slot counts from now on. */
void cold_commit_slot(struct cold_pool *pool, struct cold_owner *owner, uint32_t slot);

/* NULL allowed. */
void cold_stripe_destroy(struct cold_stripe *stripe);

/* The stripe's directory record has to be written some time. */
void cold_mark_dirty(struct cold_pool *pool, uint32_t stripe);

/* [BOUNCE_PAGES] of cold_reuse.c's own, for free(). */
struct cold_page *cold_pages_create(void);

/* A demote into slots that lie anywhere (cold_reuse.c): all of it on flash, or an error. */
int cold_write_scattered(struct cold_pool *pool, const struct cold_demote *demote,
                         struct cold_cost *cost, struct hill_why *why);

/* Forget the copies of partly filled pages (all slots are written, or a write failed). */
void cold_stripe_drop_tails(struct cold_stripe *stripe);
