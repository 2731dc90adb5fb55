/*
 * kv/policy_cost.h - what a policy must read, move and score for one query of one layer: the byte
 * formulas that counters are compared with, and that predict times over modelled rates.
 *
 *              evaluated from          crosses the link             a token of it
 *     full       nothing                 -                            -
 *     hillinfer  digests, both sides     scores of cold tokens        4 bytes
 *     host-      digests, on the CPU     digests of cold tokens      digest
 *     digest                             that are not cached
 *     h2o        FP16 keys, on the CPU   keys of all cold tokens      key
 *     oracle     as h2o                  as h2o                       key
 *     prefetch   parts of FP16 keys      parts of keys of all cold    part of a key
 *     leoam      abstracts of chunks,    keys of candidates that      key
 *                then keys, on the CPU     are cold
 *     each       -                       entries that were selected,  entry
 *                                          are cold and not on the GPU
 *
 * Sums of items; transfers come in whole pages (4 KiB), so that each run of items takes up to a
 * page more (kv_cost_pages, kv_cost_chunk_pages). Which chunks are candidates, and so how many runs
 * they make, is decided by keys: the formula is told the engine's counts of them, as it is told how
 * many entries were fetched, or takes kv_cost_spread_candidates. Who calls it: benches and tests.
 * Pure functions.
 */
#pragma once

#include "kv/group.h"
#include "kv/bounds.h"
#include "kv/plane.h"

struct kv_cost_load {
    struct kv_geometry geometry;
    struct kv_selection_settings selection;
    uint32_t hot, cold; /* tokens of the layer in each tier */
    uint32_t cached;    /* host-digest: cold ones whose digests are in the host's cache */
    /* leoam; 0 for the others, as all counts of queries means that need not be whole */
    double candidates_hot, candidates_cold;
    double between;   /* cold tokens that lie between candidates in a run of pages */
    double runs;      /* of pages with cold candidates */
    uint32_t fetched; /* entries that the query brings up from the drive */
};

struct kv_cost {
    uint64_t flash_read;                    /* all of it */
    uint64_t link_key, link_score, link_kv; /* to the host */
    uint64_t dram_read;                     /* by evaluation */
    uint64_t products;                      /* multiplications of evaluation, both sides */
};

/* Bytes of whole pages that `runs` runs of together `bytes` take on average, when they begin at any
 * item of a page. */
static inline uint64_t kv_cost_pages(uint64_t bytes, uint64_t runs, uint32_t item_bytes)
{
    uint32_t step = item_bytes < KV_PAGE_BYTES ? item_bytes : KV_PAGE_BYTES;
    return bytes + runs * (KV_PAGE_BYTES - step);
}

/* The same of runs of whole chunks, whose borders are not just anywhere: sinks are hot, and the
 * token behind them has the first cold slot, at a page's border. */
static inline double kv_cost_chunk_pages(double bytes, double runs, uint32_t item_bytes,
                                         uint32_t sinks)
{
    uint32_t off = 0, n = KV_PAGE_BYTES / KV_CHUNK_FINE; /* the offsets repeat within so many */
    for (uint32_t c = 0; c < n; c++)                     /* modulo 2^32, and so modulo a page */
        off += (c * KV_CHUNK_FINE - sinks) * item_bytes % KV_PAGE_BYTES != 0;
    return bytes + runs * KV_PAGE_BYTES * off / n;
}

/* leoam's candidates when they fall into the tiers as all tokens do, all in one run. */
static inline void kv_cost_spread_candidates(struct kv_cost_load *load)
{
    uint64_t n = (uint64_t)load->hot + load->cold;
    uint64_t all = kv_bounds_candidates(&load->selection, (uint32_t)n);
    load->candidates_cold = n ? (double)(all * load->cold / n) : 0;
    load->candidates_hot = (double)all - load->candidates_cold;
    load->between = load->runs = 0;
}

static inline struct kv_cost kv_policy_cost(const struct kv_cost_load *load)
{
    const struct kv_geometry *g = &load->geometry;
    uint64_t key = kv_plane_key_bytes(g, load->selection.policy), digest = kv_digest_bytes(g);
    uint64_t heads = g->n_heads, n = (uint64_t)load->hot + load->cold;
    struct kv_cost c = {.link_kv = (uint64_t)load->fetched * kv_entry_bytes(g)};
    switch (load->selection.policy) {
    case KV_POLICY_HILLINFER:
        c.flash_read = load->cold * digest;
        c.link_score = load->cold * UINT64_C(4);
        c.dram_read = load->hot * digest;
        c.products = n * kv_key_dims(g);
        break;
    case KV_POLICY_HOST_DIGEST:
        c.flash_read = c.link_key = (load->cold - load->cached) * digest;
        c.dram_read = ((uint64_t)load->hot + load->cached) * digest;
        c.products = n * kv_key_dims(g);
        break;
    case KV_POLICY_H2O:
    case KV_POLICY_ORACLE:
    case KV_POLICY_PREFETCH: /* parts of keys: `key` is what the plane has of one */
        c.flash_read = c.link_key = load->cold * key;
        c.dram_read = load->hot * key;
        c.products = n * heads * (key / 2 / g->n_kv_heads);
        break;
    case KV_POLICY_LEOAM:
        c.flash_read = c.link_key =
            (uint64_t)kv_cost_chunk_pages((load->candidates_cold + load->between) * (double)key,
                                          load->runs, (uint32_t)key, load->selection.sinks);
        c.dram_read = (uint64_t)(load->candidates_hot * (double)key) +
                      (n + KV_CHUNK_COARSE - 1) / KV_CHUNK_COARSE * kv_bounds_halves(g) * 2;
        c.products =
            (uint64_t)(load->candidates_hot + load->candidates_cold) * heads * g->head_dim +
            2 * ((n + KV_CHUNK_COARSE - 1) / KV_CHUNK_COARSE) * heads * g->head_dim;
        break;
    default: /* full: nothing is evaluated */
        break;
    }
    c.flash_read += c.link_kv;
    return c;
}
