/* kv/plane.c - see plane.h. */
#include "kv/plane.h"

#include "kv/partial.h"

/* h2o and oracle differ in what they rank by alone. */
static uint32_t evaluator(uint32_t policy)
{
    return policy == KV_POLICY_ORACLE ? KV_POLICY_H2O
           : policy == KV_POLICY_FULL ? KV_POLICY_HILLINFER
                                      : policy;
}

bool kv_policy_served(uint32_t pipeline, uint32_t request)
{
    return request == KV_POLICY_FULL || evaluator(pipeline) == evaluator(request);
}

uint32_t kv_plane_key_bytes(const struct kv_geometry *g, uint32_t policy)
{
    if (policy == KV_POLICY_PREFETCH)
        return 2 * g->n_kv_heads * kv_partial_dims(g);
    return kv_policy_reads_keys(policy) ? 2 * kv_key_dims(g) : 0;
}

uint32_t kv_plane_read_bytes(const struct kv_geometry *g, uint32_t policy)
{
    return policy == KV_POLICY_HOST_DIGEST ? kv_digest_bytes(g) : kv_plane_key_bytes(g, policy);
}

uint32_t kv_key_window_bytes(const struct kv_geometry *g, uint32_t policy, uint32_t ctx_tokens)
{
    uint32_t item = kv_plane_read_bytes(g, policy), tokens = ctx_tokens, most = KV_KEY_WINDOW_BYTES;
    if (item == 0)
        return 0;
    if (policy == KV_POLICY_HOST_DIGEST) {
        uint64_t group = kv_key_pages(0, 1, kv_group_bytes(g)) + 2 * KV_PAGE_BYTES;
        tokens = kv_groups_touched(0, ctx_tokens) * KV_GROUP_TOKENS;
        most = group > most ? (uint32_t)group : most;
    }
    uint64_t all = kv_key_pages(0, tokens, item) + 2 * KV_PAGE_BYTES;
    return all < most ? (uint32_t)all : most;
}
