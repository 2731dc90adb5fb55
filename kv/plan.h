/*
 * kv/plan.h - what a context costs in each tier: budgets are hard [I22].
 *
 * One place computes every size, so that coordinator (admission, defaults, segment creation),
 * scorer, GPU worker and agent agree. All sizes in bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/geometry.h"
#include "kv/group.h"
#include "kv/select.h"

/* What the GPU worker may round to, at most: rows of a chunk, keys of a layer, entries of an
 * upload; at least: entries of a list's tile. */
#define KV_GPU_ROW_TILE    16u
#define KV_GPU_KEY_TILE    64u
#define KV_GPU_UPLOAD_TILE 1024u
#define KV_GPU_LIST_TILE   128u

/* Slots of a hot block; a block belongs to one (sequence, layer). */
#define KV_HOT_BLOCK_TOKENS 64u

_Static_assert(KV_HOT_BLOCK_TOKENS % KV_GROUP_TOKENS == 0, "a block is whole groups of digests");

/* Hot blocks that so many tokens take. */
static inline uint32_t kv_hot_blocks(uint32_t n_tokens)
{
    return n_tokens / KV_HOT_BLOCK_TOKENS + (n_tokens % KV_HOT_BLOCK_TOKENS != 0);
}

/* Queries at once: of each sequence one, and where queries are guessed that of the next layer. */
static inline uint32_t kv_rows_in_flight(uint32_t asked, uint32_t n_sequences, bool speculates)
{
    uint32_t n = (n_sequences ? n_sequences : 1) * (speculates ? 2 : 1);
    return asked == 0 ? 1 : asked < n ? asked : n;
}

struct kv_plan_input {
    struct kv_geometry geometry;
    uint32_t n_embd, n_ff, n_vocab;
    uint32_t rope_tables;    /* rotary angles of a position: tables of head_dim; 0 means 1 */
    uint32_t ctx_tokens;     /* -c */
    uint32_t batch_tokens;   /* -b: prefill chunk */
    uint32_t n_sequences;    /* -np: sequences at once; 0 means 1 */
    uint32_t rows_in_flight; /* --rows-in-flight: queries at once, at most; 0 means 1 */
    struct kv_selection_settings selection;
    struct kv_layer_windows windows;
    uint64_t
        placement_bytes; /* what placement keeps of one sequence (placement_live_bytes); 0: none */
    bool speculates;     /* queries are guessed: two selections of a sequence are alive at a time */
    uint64_t cold_slots; /* of the cold pool that all sequences together can use; 0: none */
    uint64_t digest_cache_bytes; /* --digest-mb: digests of cold tokens in M_0, at most */
    bool lends_digests; /* --digest-mb auto: they lie in hot blocks that are lent to them */
};

/* GPU KV bytes (cap --gpu-kv-mb) for a request of n_prompt + n_predict tokens: prefill (hidden
 * states, one layer's KV, chunk activations, of h2o what its attention is summed in; one prompt at
 * a time) and decode (for each of n_sequences a slot table of n_layers * k entries and a row of
 * scratch); k = kv_most_tokens of the final length. An upper bound of what the GPU worker
 * allocates: its engine test says so. */
uint64_t kv_plan_gpu_bytes(const struct kv_plan_input *in, uint32_t n_prompt, uint32_t n_predict);

/* Entries of a sequence's GPU slot table per layer under a cap for the whole context of all
 * n_sequences (at most kv_most_tokens of it); 0 when not even sinks + window fit. */
uint32_t kv_plan_gpu_slots(const struct kv_plan_input *in, uint64_t gpu_cap_bytes);

/* Payload of the prompt segment: of the one prompt that is being computed, at most ctx_tokens, its
 * hidden states (which count as GPU memory, wherever they lie), a chunk of them as it was before,
 * and newly computed entries: those of a layer, of one chunk more, and at least KV_PROMPT_LAG
 * bytes, which is what may be on its way to the tiers. */
#define KV_PROMPT_LAG (8u << 20)
uint64_t kv_plan_prompt_bytes(const struct kv_plan_input *in);

#define KV_MAX_SEQUENCES 64u
/* Of each tier: what a location word has bits for (cpu_scorer/hkm.h). */
#define KV_MAX_SLOTS 0x3fffffffu

/* Of each sequence in the hot segment: what outlives the scorer (cpu_scorer/kept.h). Of each slot,
 * hot or cold: what its entry must be (struct hkm_check). */
#define KV_KEPT_BYTES  1280u
#define KV_CHECK_BYTES 8u

/* Of each (sequence, layer) in the hot segment: what policies know of them
 * beside the entries, which outlives the scorer: sums of attention mass after each of the newest
 * steps (h2o, oracle; cpu_scorer/mass_sums.h), columns (prefetch), bounds of fine chunks (leoam;
 * cpu_scorer/chunk_table.h), a sample of digests (hillinfer, host-digest;
 * cpu_scorer/key_sample.h), with a check for each of these. A multiple of 64; 0: nothing. Four
 * steps: the one under way, the newest whole one, and two whose tokens may be lost with a process.
 */
#define KV_MASS_STEPS       4u
#define KV_MASS_STAMP_BYTES 16u
uint64_t kv_plan_state_bytes(const struct kv_geometry *g, uint32_t policy, uint32_t ctx_tokens);

/* Of each row in flight, beside its arrays: what the scorer knows of a query (struct query, and
 * struct digest_row of what the drives say to it). */
#define KV_ROW_BYTES 1024u

/* Of the cache of cold digests (cpu_scorer/cached_digests.h) beside the digests: for each block of
 * 64 slots of the cold pool, each (sequence, layer), and each block that it holds. */
#define KV_CACHED_BLOCK_BYTES 4u
#define KV_CACHED_LIST_BYTES  4u
#define KV_CACHED_FRAME_BYTES 16u
/* And of each sequence whose hot blocks it may have, and each of these blocks. */
#define KV_CACHED_OWNER_BYTES 8u
#define KV_LENT_BLOCK_BYTES   8u
/* What the cache may take of M_0 for itself: as asked, at most what all cold digests take; where
 * they lie in hot blocks, its tables alone. 0 with a policy that scores no digests. */
uint64_t kv_plan_digest_cache(const struct kv_plan_input *in);
static inline bool kv_plan_caches_digests(uint32_t policy)
{
    return policy == KV_POLICY_HILLINFER || policy == KV_POLICY_HOST_DIGEST;
}
static inline bool kv_plan_lends(const struct kv_plan_input *in)
{
    return in->lends_digests && in->selection.policy == KV_POLICY_HILLINFER;
}

/* Hot blocks are lent to cold digests in units of n_blocks, the fewest that hold whole frames
 * (digests of 64 tokens): a block has room for four groups where its own digests would lie, and for
 * `groups` where its entries would. Four blocks of FP16 entries and INT8 digests hold 19 frames. */
struct kv_lent_unit {
    uint32_t n_blocks, groups, n_frames;
};
#define KV_LENT_UNIT_MAX 4u /* blocks */
struct kv_lent_unit kv_lent_unit(const struct kv_geometry *g);
/* Of each block that may be lent, what the cache's tables take: whose and in which unit it is, and
 * its frames. */
uint64_t kv_lent_block_bytes(const struct kv_geometry *g);

/* The staging segment's payload: an arena of that many slots, and the key windows behind it. 0: out
 * of range. */
uint64_t kv_plan_staging_bytes(const struct kv_plan_input *in, uint32_t staging_slots);
/* Where the key windows lie in the staging segment's payload (kv/plane.h). */
uint64_t kv_plan_windows_offset(const struct kv_geometry *g, uint32_t staging_slots);

/* M_0 = staging + tables + hot blocks + the scorer's private tables. */
struct kv_hot_plan {
    uint64_t staging_bytes; /* the staging arena: n + 1 queries' worth of slots, n more where they
                               are guessed, and n windows; and the key windows behind it */
    uint64_t tables_bytes;  /* in the hot segment: location words, lists, GPU slot tables */
    uint64_t block_bytes;   /* of one hot block: entries, digests, owner */
    uint64_t private_bytes; /* the scorer's own: selector, cold map, placement, buffers; with what
                               n_blocks need to be lent */
    uint32_t staging_slots;
    uint32_t n_blocks; /* hot blocks that fit under the cap, at most what all contexts need */
};

/* HILL_E_INVALID (why: needed and given MiB) when the cap cannot hold staging, tables and, for
 * every layer of every sequence, sinks + window tokens (rounded up to blocks) plus one block. */
int kv_plan_hot(struct kv_hot_plan *out, const struct kv_plan_input *in, uint64_t hot_cap_bytes,
                struct hill_why *why);

/* The smallest cap that kv_plan_hot accepts, and the cap at which ctx_tokens tokens of every
 * sequence are all hot. */
uint64_t kv_plan_hot_min_bytes(const struct kv_plan_input *in);
uint64_t kv_plan_hot_full_bytes(const struct kv_plan_input *in);
