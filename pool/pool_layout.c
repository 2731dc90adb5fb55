/*
 * pool/pool_layout.c - how a cap is divided into superblock, directory, digest and entry stripes.
 * Who calls it: coordinator (default cap), scorer (capacity), agent (format, open).
 * Concurrency: pure functions. Failure: HILL_E_INVALID with needed and given MiB.
 */
#include <string.h>

#include "pool/pool_disk.h"

#define DIGEST_STRIPE_TARGET (1u << 20)
#define STRIPE_SLOTS_STEP    256u
#define STRIPE_SLOTS_MAX     4096u

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + POOL_PAGE_BYTES - 1) & ~(uint64_t)(POOL_PAGE_BYTES - 1);
}

/* The multiple of 256 whose digests come closest below 1 MiB. */
static uint32_t stripe_slots(const struct kv_geometry *g)
{
    uint32_t steps = DIGEST_STRIPE_TARGET / (STRIPE_SLOTS_STEP * kv_digest_bytes(g));
    if (steps == 0)
        steps = 1;
    uint32_t slots =
        steps > STRIPE_SLOTS_MAX / STRIPE_SLOTS_STEP ? STRIPE_SLOTS_MAX : steps * STRIPE_SLOTS_STEP;
    return slots;
}

void pool_layout_fill(struct pool_layout *out, const struct kv_geometry *g, uint32_t key_bytes,
                      uint32_t n_stripes)
{
    uint64_t slots = stripe_slots(g);
    const struct kv_geometry geometry = *g; /* it may be out's own */
    g = &geometry;
    memset(out, 0, sizeof(*out)); /* padding too: layouts are compared */
    out->geometry = geometry;
    out->geometry.digest_bits = kv_digest_bits(g);
    out->stripe_slots = (uint32_t)slots;
    out->n_stripes = n_stripes;
    out->key_bytes = key_bytes;
    out->reserved = 0;
    out->digest_stripe_bytes = key_bytes ? 0 : whole_pages(slots * kv_digest_bytes(g));
    out->key_stripe_bytes = whole_pages(slots * key_bytes);
    out->entry_stripe_bytes = whole_pages(slots * kv_entry_bytes(g));
    out->directory_record_bytes =
        whole_pages(sizeof(struct pool_record) + slots / 8 + slots * 2 * sizeof(uint32_t));
    out->directory_offset = sizeof(struct pool_superblock);
    out->digest_offset = out->directory_offset + n_stripes * out->directory_record_bytes;
    out->key_offset = out->digest_offset + n_stripes * out->digest_stripe_bytes;
    out->entry_offset = out->key_offset + n_stripes * out->key_stripe_bytes;
    out->total_bytes = out->entry_offset + n_stripes * out->entry_stripe_bytes;
}

uint32_t pool_max_stripes(const struct kv_geometry *g)
{
    return INT32_MAX / stripe_slots(g); /* slot ids have 31 bits */
}

static uint64_t stripe_bytes(const struct pool_layout *l) /* over all regions */
{
    return l->directory_record_bytes + l->digest_stripe_bytes + l->key_stripe_bytes +
           l->entry_stripe_bytes;
}

int pool_layout_with_keys(struct pool_layout *out, const struct kv_geometry *g, uint32_t key_bytes,
                          uint64_t cap_bytes, struct hill_why *why)
{
    int rc = kv_geometry_check(g, why);
    if (rc != 0)
        return rc;
    pool_layout_fill(out, g, key_bytes, g->n_layers); /* the least that is of use */
    if (cap_bytes < out->total_bytes)
        return hill_fail(why, HILL_E_INVALID,
                         "cold cap too small for a stripe of each of %u layers: %.2f MiB needed, "
                         "%.2f MiB given",
                         g->n_layers, (double)out->total_bytes / 1048576.0,
                         (double)cap_bytes / 1048576.0);
    uint64_t stripes = (cap_bytes - out->directory_offset) / stripe_bytes(out);
    uint32_t most = pool_max_stripes(g);
    pool_layout_fill(out, g, key_bytes, stripes < most ? (uint32_t)stripes : most);
    return 0;
}

static uint64_t stripes_for_tokens(const struct kv_geometry *g, uint32_t n_sequences,
                                   uint32_t n_tokens)
{
    uint64_t slots = stripe_slots(g), stripes = ((uint64_t)n_tokens + slots - 1) / slots;
    return stripes * n_sequences * g->n_layers;
}

uint64_t pool_slots_for_tokens(const struct kv_geometry *g, uint32_t n_sequences, uint32_t n_tokens)
{
    return stripes_for_tokens(g, n_sequences, n_tokens) * stripe_slots(g);
}

uint64_t pool_bytes_with_keys(const struct kv_geometry *g, uint32_t key_bytes, uint32_t n_sequences,
                              uint32_t n_tokens)
{
    struct pool_layout one;
    pool_layout_fill(&one, g, key_bytes, 1);
    uint64_t stripes = stripes_for_tokens(g, n_sequences, n_tokens);
    if (stripes < g->n_layers)
        stripes = g->n_layers;
    return one.directory_offset + stripes * stripe_bytes(&one);
}
