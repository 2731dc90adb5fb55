/*
 * kv/plane.h - what each policy evaluates keys from, and so what the cold pool keeps of a key
 * beside its entry.
 *
 * hillinfer scores digests, where they lie. The others evaluate FP16 keys on the CPU; those of cold
 * tokens come over the link with every query. So that this reads keys alone (entries are packed,
 * and a page of them is half values), the pool of a pipeline started with such a policy has a plane
 * of keys instead of one of digests. Keys come in windows: KV_KEY_WINDOWS areas of shared memory
 * behind the staging arena, each filled by one READ_KEYS, part of M_0. host-digest has the pool of
 * hillinfer and reads its digests in the same way, whole groups of them. An agent that casts
 * (--csd-digests) has a plane of keys, too. Concurrency: pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/group.h"
#include "kv/select.h"

#define KV_KEY_WINDOWS      4u
#define KV_KEY_WINDOW_BYTES (1u << 20) /* at most: a command's latency is hidden from 1 MiB on */
/* What the last READ_KEYS of a query brings is evaluated when nothing else comes any more: the
 * nearer the end, the smaller they get, down to this, which still takes longer than a command's
 * latency. */
#define KV_KEY_LAST_BYTES (1u << 18)
#define KV_PAGE_BYTES     4096u /* of the pool's transfers */

/* Does the policy evaluate FP16 keys on the CPU? Else digests, or nothing (full). */
static inline bool kv_policy_reads_keys(uint32_t policy)
{
    return policy != KV_POLICY_HILLINFER && policy != KV_POLICY_FULL &&
           policy != KV_POLICY_HOST_DIGEST;
}

/* May a request have this policy in a pipeline that was started with that one? Memory, and the
 * plane in the cold pool, are set up for one way to evaluate. */
bool kv_policy_served(uint32_t pipeline, uint32_t request);

/* Bytes of a token in the plane of keys; 0: the plane is of digests. Whole keys, which the agent
 * takes out of the entries, or (prefetch) parts of them (kv/partial.h), which come with a DEMOTE in
 * the place of the mantissas: they take no more room. */
uint32_t kv_plane_key_bytes(const struct kv_geometry *g, uint32_t policy);

/* Of the pool's plane, which an agent that scores can do without digests too: cast, and it has
 * whole keys, which are made digests while they stream past (hillinfer). */
static inline uint32_t kv_pool_key_bytes(const struct kv_geometry *g, uint32_t policy, bool cast)
{
    return cast ? 2 * kv_key_dims(g) : kv_plane_key_bytes(g, policy);
}

/* Bytes of a token in what READ_KEYS brings: of the plane of keys, or of digests (host-digest); 0:
 * the policy reads neither. */
uint32_t kv_plane_read_bytes(const struct kv_geometry *g, uint32_t policy);

/* Bytes of a window, a multiple of a page: 1 MiB (a group of digests, where that is more), or what
 * all keys or digests of a context take; 0 where nothing is read. */
uint32_t kv_key_window_bytes(const struct kv_geometry *g, uint32_t policy, uint32_t ctx_tokens);

/* Pages that hold n keys from `at` (bytes from a page's border) on, in bytes. */
static inline uint64_t kv_key_pages(uint64_t at, uint64_t n, uint32_t key_bytes)
{
    uint64_t first = at % KV_PAGE_BYTES, end = first + n * key_bytes;
    return (end + KV_PAGE_BYTES - 1) / KV_PAGE_BYTES * KV_PAGE_BYTES;
}
