/*
 * kv/plan.c - what a context costs in each tier (kv/plan.h).
 *
 * Counts are below 2^24 tokens, 2^10 layers, 2^6 sequences and 2^18 bytes an entry (kv/geometry.h),
 * so that no product here leaves 64 bits. Who calls it: coordinator, scorer, GPU worker.
 * Concurrency: pure functions.
 */
#include "kv/plan.h"

#include "kv/bounds.h"
#include "kv/group.h"
#include "kv/mass.h"
#include "kv/partial.h"
#include "kv/plane.h"
#include "kv/sample.h"
#include "shm/arena.h"

#define KV_MAX_HOT_BLOCKS (KV_MAX_SLOTS / KV_HOT_BLOCK_TOKENS)

static uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

static uint64_t padded(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

/* Floats that a row of int8 activations takes, for quantised weights: of the longest input of a
 * product, a byte a value and five words for each 32. */
static uint64_t quantised_row(const struct kv_plan_input *in)
{
    uint64_t longest = (uint64_t)in->geometry.n_heads * in->geometry.head_dim;
    longest = in->n_embd > longest ? in->n_embd : longest;
    longest = in->n_ff > longest ? in->n_ff : longest;
    return padded(longest, 32) / 32 * 13;
}

/* Of a position. */
static uint64_t angles(const struct kv_plan_input *in)
{
    return (uint64_t)in->geometry.head_dim * (in->rope_tables ? in->rope_tables : 1);
}

/* Bytes that prefill of n_prompt tokens takes besides the slot table: an upper bound of the GPU
 * worker's buffers, whose strides are multiples of 32 floats and whose rows and keys come in tiles.
 */
static uint64_t prefill_bytes(const struct kv_plan_input *in, uint32_t n_prompt)
{
    const struct kv_geometry *g = &in->geometry;
    /* rounded up to a multiple of whatever tile up to that */
    uint64_t rows = (uint64_t)smaller(in->batch_tokens, n_prompt) + KV_GPU_ROW_TILE - 1;
    uint64_t keys = padded(n_prompt, KV_GPU_KEY_TILE), heads = (uint64_t)g->n_heads * g->head_dim;
    /* hidden states, and the rotary angles of a position */
    uint64_t states = 4 * (uint64_t)n_prompt * (padded(in->n_embd, 32) + angles(in));
    /* the current layer's keys, and its values padded to whole vectors */
    uint64_t layer = 2 * keys * g->n_kv_heads * (g->head_dim + padded(g->head_dim, 16));
    /* of a chunk: normalised input, q with k and v, packed q, attention output, FFN activations,
     * these as int8; and entries on their way out, twice */
    uint64_t row = padded(in->n_embd, 32) + padded(heads + 2 * (uint64_t)kv_key_dims(g), 32) +
                   2 * heads + padded(in->n_ff, 32) + quantised_row(in);
    /* of h2o a chunk's softmax denominators, sums of a layer's keys by heads, and of two layers of
     * all heads */
    uint64_t mass = in->selection.policy == KV_POLICY_H2O
                        ? 4 * (rows * g->n_heads + keys * (g->n_heads + 2ull))
                        : 0;
    return states + layer + rows * (4 * row + 2 * (uint64_t)kv_entry_bytes(g)) + mass;
}

static uint64_t sequences(const struct kv_plan_input *in)
{
    return in->n_sequences ? in->n_sequences : 1;
}

/* One slot of a sequence in every layer: the entry, its place in the list, its share of partial
 * attention. */
static uint64_t slot_bytes(const struct kv_plan_input *in)
{
    const struct kv_geometry *g = &in->geometry;
    uint64_t partial = 4 * (uint64_t)g->n_heads * (padded(g->head_dim, 16) + 16);
    return (uint64_t)g->n_layers * kv_entry_bytes(g) + 4 +
           padded(partial, KV_GPU_LIST_TILE) / KV_GPU_LIST_TILE;
}

/* What decoding takes whatever the number of slots: a row of scratch for each sequence, and what
 * they share. */
static uint64_t decode_bytes(const struct kv_plan_input *in)
{
    const struct kv_geometry *g = &in->geometry;
    uint64_t heads = (uint64_t)g->n_heads * g->head_dim;
    /* a hidden state, what is normed before it is added, keys before their heads are normed */
    uint64_t states = 2 * padded(in->n_embd, 32) + kv_key_dims(g);
    uint64_t floats = states + angles(in) + 2 * (heads + 16) + padded(in->n_ff, 32) +
                      padded(in->n_vocab, 32) +
                      (uint64_t)g->n_heads * (padded(g->head_dim, 16) + 16) +
                      2 * quantised_row(in) + (in->speculates ? heads + 32 : 0);
    uint64_t further = (sequences(in) - 1) * ((uint64_t)kv_entry_bytes(g) + 256);
    return 4 * floats * sequences(in) + further +
           KV_GPU_UPLOAD_TILE * ((uint64_t)kv_entry_bytes(g) + 4) +
           g->n_layers * ((uint64_t)kv_entry_bytes(g) + 96) +
           4096 /* roundings of single buffers */;
}

uint64_t kv_plan_gpu_bytes(const struct kv_plan_input *in, uint32_t n_prompt, uint32_t n_predict)
{
    uint32_t total = smaller((uint64_t)n_prompt + n_predict, UINT32_MAX);
    return prefill_bytes(in, n_prompt) + decode_bytes(in) +
           slot_bytes(in) * sequences(in) * kv_most_tokens(&in->selection, &in->windows, total);
}

uint64_t kv_plan_prompt_bytes(const struct kv_plan_input *in)
{
    uint32_t chunk = smaller(in->batch_tokens, in->ctx_tokens);
    uint64_t row = 4 * padded(in->n_embd, 32), entry = kv_entry_bytes(&in->geometry);
    uint64_t window = padded(in->ctx_tokens, chunk ? chunk : 1) + 3 * (uint64_t)chunk;
    uint64_t rows = (uint64_t)in->ctx_tokens + chunk;
    uint64_t sums = 8 * (rows + window + KV_PROMPT_LAG / entry);
    return row * rows + entry * window + KV_PROMPT_LAG + sums + 10 * 4096ull;
}

static uint32_t forced_tokens(const struct kv_plan_input *in)
{
    return smaller((uint64_t)in->selection.sinks + in->selection.window, in->ctx_tokens);
}

uint32_t kv_plan_gpu_slots(const struct kv_plan_input *in, uint64_t gpu_cap_bytes)
{
    uint64_t fixed = prefill_bytes(in, in->ctx_tokens) + decode_bytes(in);
    if (gpu_cap_bytes < fixed)
        return 0;
    uint32_t slots = smaller((gpu_cap_bytes - fixed) / (slot_bytes(in) * sequences(in)),
                             kv_most_tokens(&in->selection, &in->windows, in->ctx_tokens));
    uint32_t window = smaller(in->windows.tokens, in->ctx_tokens);
    return slots < forced_tokens(in) || slots + 1 < window ? 0 : slots;
}

uint64_t kv_plan_state_bytes(const struct kv_geometry *g, uint32_t policy, uint32_t ctx_tokens)
{
    uint64_t fine = (uint64_t)ctx_tokens / KV_CHUNK_FINE + 1;
    switch (policy) {
    case KV_POLICY_H2O:
    case KV_POLICY_ORACLE:
        return padded(KV_MASS_STEPS * (KV_MASS_STAMP_BYTES + 4 * (uint64_t)ctx_tokens), 64);
    case KV_POLICY_PREFETCH:
        return padded(kv_plane_key_bytes(g, policy) + KV_CHECK_BYTES, 64);
    case KV_POLICY_LEOAM:
        return padded(fine * (2 * (uint64_t)kv_bounds_halves(g) + KV_CHECK_BYTES), 64);
    case KV_POLICY_HILLINFER:
    case KV_POLICY_FULL: /* whose scorer serves hillinfer too */
    case KV_POLICY_HOST_DIGEST: {
        uint32_t sample = kv_sample_count(ctx_tokens);
        return padded((uint64_t)kv_groups_touched(0, sample) * kv_group_bytes(g) +
                          (uint64_t)sample * KV_CHECK_BYTES,
                      64);
    }
    default:
        return 0;
    }
}

/* The hot segment but its blocks, as cpu_scorer/hkm.c lays it out (its test compares): header,
 * location words, lists, GPU slot tables with one list of scratch, what is kept of sequences,
 * checks of cold slots, what policies know, and the alignment of planes. */
static uint64_t segment_tables(const struct kv_plan_input *in, uint64_t lists, uint64_t k)
{
    return 192 + padded(lists * in->ctx_tokens * 4, 64) + padded(lists * 16, 64) +
           padded(padded(lists * 4, 8) + (lists + 1) * k * 8, 64) + sequences(in) * KV_KEPT_BYTES +
           padded(in->cold_slots * KV_CHECK_BYTES, 64) +
           lists * kv_plan_state_bytes(&in->geometry, in->selection.policy, in->ctx_tokens) +
           6 * 64;
}

uint64_t kv_plan_windows_offset(const struct kv_geometry *g, uint32_t staging_slots)
{
    return padded(shm_arena_bytes(staging_slots, kv_entry_bytes(g)), KV_PAGE_BYTES);
}

/* 0 for an arena that cannot be. */
uint64_t kv_plan_staging_bytes(const struct kv_plan_input *in, uint32_t slots)
{
    const struct kv_geometry *g = &in->geometry;
    uint64_t arena = shm_arena_bytes(slots, kv_entry_bytes(g));
    uint64_t window = kv_key_window_bytes(g, in->selection.policy, in->ctx_tokens);
    return arena && window ? kv_plan_windows_offset(g, slots) + KV_KEY_WINDOWS * window : arena;
}

/* Attention mass of so many tokens (cpu_scorer/mass_table.c): rows, blocks' maxima and sums,
 * masses, the query. */
static uint64_t mass_tables(const struct kv_geometry *g, uint64_t tokens)
{
    uint64_t row = kv_mass_row(g), blocks = tokens / KV_MASS_BLOCK + 1;
    return 4 * (tokens * (row + 1) + (2 * blocks + 1) * row + kv_mass_query_floats(g));
}

/* Bounds of chunks (cpu_scorer/chunk_table.c): abstracts of coarse ones, the query's parts, bounds
 * of chunks, the search, candidates and their masses. */
static uint64_t chunk_tables(const struct kv_plan_input *in, uint64_t lists)
{
    const struct kv_geometry *g = &in->geometry;
    uint64_t fine = in->ctx_tokens / KV_CHUNK_FINE + 1, row = kv_mass_row(g);
    uint64_t coarse = in->ctx_tokens / KV_CHUNK_COARSE + 1;
    return lists * coarse * 2 * kv_bounds_halves(g) +
           4 * (3 * kv_mass_query_floats(g) + (fine + KV_CHUNK_FINE + 3) * row) +
           fine * (8 + 4 + 4 + 4 + 2 * KV_CHUNK_FINE) + (fine / 64 + 1) * 8 + 14 * 64 +
           mass_tables(g, fine * KV_CHUNK_FINE);
}

/* What reading cold keys takes (cpu_scorer/key_reader.c): n ranges, windows, a window's pieces.
 */
static uint64_t reading_tables(const struct kv_plan_input *in, uint64_t n_ranges)
{
    uint64_t window = kv_key_window_bytes(&in->geometry, in->selection.policy, in->ctx_tokens);
    uint64_t key_bytes = kv_plane_read_bytes(&in->geometry, in->selection.policy);
    uint64_t ranges = KV_KEY_WINDOW_BYTES / KV_PAGE_BYTES;
    return 8 * (n_ranges + 1) + KV_KEY_WINDOWS * (24 + 8 * ranges) + 256 +
           16 * (window / (key_bytes * 64) + ranges + 1);
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

struct kv_lent_unit kv_lent_unit(const struct kv_geometry *g)
{
    const uint32_t frame = KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS;
    uint32_t groups = KV_HOT_BLOCK_TOKENS * kv_entry_bytes(g) / kv_group_bytes(g);
    uint32_t n_blocks = frame / common_divisor(frame, groups);
    return (struct kv_lent_unit){n_blocks, groups, n_blocks * (frame + groups) / frame};
}

uint64_t kv_lent_block_bytes(const struct kv_geometry *g)
{
    struct kv_lent_unit unit = kv_lent_unit(g);
    return KV_LENT_BLOCK_BYTES + (uint64_t)KV_CACHED_FRAME_BYTES * unit.n_frames / unit.n_blocks;
}

uint64_t kv_plan_digest_cache(const struct kv_plan_input *in)
{
    uint64_t blocks = in->cold_slots / KV_HOT_BLOCK_TOKENS;
    uint64_t block = KV_HOT_BLOCK_TOKENS / KV_GROUP_TOKENS * kv_group_bytes(&in->geometry);
    uint64_t lists = sequences(in) * in->geometry.n_layers;
    uint64_t tables = blocks * KV_CACHED_BLOCK_BYTES + lists * KV_CACHED_LIST_BYTES;
    uint64_t all = tables + blocks * (block + KV_CACHED_FRAME_BYTES);
    if (!kv_plan_caches_digests(in->selection.policy))
        return 0;
    if (in->lends_digests)
        return tables + sequences(in) * KV_CACHED_OWNER_BYTES;
    return in->digest_cache_bytes < all ? in->digest_cache_bytes : all;
}

/* What reading digests takes (cpu_scorer/evaluate_host.c): the cache, runs of groups in it. */
static uint64_t host_tables(const struct kv_plan_input *in)
{
    return kv_plan_digest_cache(in) + 8 * ((uint64_t)in->ctx_tokens + 1) +
           kv_query_bytes_max(&in->geometry) + reading_tables(in, in->ctx_tokens);
}

/* What the cache of hillinfer takes (cpu_scorer/evaluate_digest.c): itself, one query's scores of
 * it, and of each row which blocks these are. */
static uint64_t near_tables(const struct kv_plan_input *in, uint64_t rows)
{
    uint64_t blocks = in->ctx_tokens / KV_HOT_BLOCK_TOKENS + 2, cache = kv_plan_digest_cache(in);
    return cache ? cache + blocks * (KV_HOT_BLOCK_TOKENS * 2 + rows * 4) : 0;
}

/* What evaluating on the host takes, but for hillinfer's hot blocks. */
static uint64_t evaluation_tables(const struct kv_plan_input *in, uint64_t lists, uint64_t rows)
{
    const struct kv_geometry *g = &in->geometry;
    struct kv_geometry parts = kv_partial_geometry(g);
    if (in->selection.policy == KV_POLICY_HOST_DIGEST)
        return host_tables(in);
    if (!kv_policy_reads_keys(in->selection.policy))
        return near_tables(in, rows);
    if (in->selection.policy == KV_POLICY_LEOAM)
        return chunk_tables(in, lists) + reading_tables(in, in->ctx_tokens);
    if (in->selection.policy == KV_POLICY_PREFETCH)
        return mass_tables(&parts, in->ctx_tokens) + 4 * kv_mass_query_floats(&parts) +
               reading_tables(in, in->cold_slots / 256);
    return mass_tables(g, in->ctx_tokens) + reading_tables(in, in->cold_slots / 256);
}

/* What the scorer keeps besides the segments: of each row in flight its state, the selector, the
 * query and its digest, selected slots, fetches and copies; the cold map (which position a cold
 * slot holds, how many of a group are copies, and its stripes of at least 256 slots), one query's
 * blocks and scores, what was staged for each sequence, a list's state, and placement; for guesses
 * a second list of what was staged, what was guessed and where it is, its hits, and fetches. */
static uint64_t private_tables(const struct kv_plan_input *in, uint64_t lists, uint64_t k)
{
    uint64_t blocks = in->ctx_tokens / KV_HOT_BLOCK_TOKENS + 2;
    uint64_t guesses = in->speculates ? (sequences(in) * 12 + 17) * k + lists * 16 : 0;
    uint64_t rows = kv_rows_in_flight(in->rows_in_flight, in->n_sequences, in->speculates);
    uint64_t row = KV_ROW_BYTES + kv_selector_bytes(in->ctx_tokens) + k * (12 + 16 + 16) +
                   4 * (uint64_t)in->geometry.n_heads * in->geometry.head_dim +
                   kv_query_bytes_max(&in->geometry);
    return guesses + rows * row + in->cold_slots * 4 + in->cold_slots / KV_GROUP_TOKENS +
           in->cold_slots / 256 * 12 + blocks * (4 + KV_HOT_BLOCK_TOKENS * 2) +
           sequences(in) * k * 4 + lists * 512 + sequences(in) * in->placement_bytes +
           evaluation_tables(in, lists, rows);
}

/* Everything but n_blocks. One block above the tokens' own lets a layer open its next block before
 * one is given back. */
static void plan_fixed(struct kv_hot_plan *out, const struct kv_plan_input *in,
                       uint64_t *min_blocks, uint64_t *full_blocks)
{
    const struct kv_geometry *g = &in->geometry;
    uint64_t n = sequences(in), lists = n * g->n_layers;
    uint32_t k = kv_most_tokens(&in->selection, &in->windows, in->ctx_tokens);

    out->staging_slots = smaller((n + 1 + (in->speculates ? n : 0)) * k +
                                     n * smaller(in->selection.window, in->ctx_tokens),
                                 UINT32_MAX);
    out->staging_bytes = kv_plan_staging_bytes(in, out->staging_slots);
    out->tables_bytes = segment_tables(in, lists, k);
    out->private_bytes = private_tables(in, lists, k);
    out->block_bytes =
        24 + KV_HOT_BLOCK_TOKENS *
                 (uint64_t)(kv_entry_bytes(g) + kv_digest_bytes(g) + 4 + KV_CHECK_BYTES);
    *min_blocks = lists * (kv_hot_blocks(forced_tokens(in)) + 1);
    *full_blocks = lists * (kv_hot_blocks(in->ctx_tokens) + 1);
}

/* Of a block, with what the scorer keeps beside it. */
static uint64_t whole_block(const struct kv_hot_plan *plan, const struct kv_plan_input *in)
{
    return plan->block_bytes + (kv_plan_lends(in) ? kv_lent_block_bytes(&in->geometry) : 0);
}

static uint64_t hot_bytes(const struct kv_hot_plan *plan, const struct kv_plan_input *in,
                          uint64_t blocks)
{
    return plan->staging_bytes + plan->tables_bytes + plan->private_bytes +
           blocks * whole_block(plan, in);
}

uint64_t kv_plan_hot_min_bytes(const struct kv_plan_input *in)
{
    struct kv_hot_plan plan;
    uint64_t min_blocks, full_blocks;
    plan_fixed(&plan, in, &min_blocks, &full_blocks);
    return hot_bytes(&plan, in, min_blocks);
}

uint64_t kv_plan_hot_full_bytes(const struct kv_plan_input *in)
{
    struct kv_hot_plan plan;
    uint64_t min_blocks, full_blocks;
    plan_fixed(&plan, in, &min_blocks, &full_blocks);
    return hot_bytes(&plan, in, full_blocks);
}

static int check_input(const struct kv_plan_input *in, struct hill_why *why)
{
    int rc = kv_geometry_check(&in->geometry, why);
    if (rc == 0)
        rc = kv_selection_check(&in->selection, why);
    if (rc == 0 && (in->ctx_tokens == 0 || in->ctx_tokens > KV_MAX_TOKENS))
        rc = hill_fail(why, HILL_E_INVALID, "context is %u tokens, not 1..%u", in->ctx_tokens,
                       KV_MAX_TOKENS);
    if (rc == 0 && in->n_sequences > KV_MAX_SEQUENCES)
        rc = hill_fail(why, HILL_E_INVALID, "%u sequences are more than %u", in->n_sequences,
                       KV_MAX_SEQUENCES);
    if (rc == 0 && in->cold_slots > KV_MAX_SLOTS)
        rc = hill_fail(
            why, HILL_E_INVALID,
            "the cold pools of all drives have %llu slots for %u sequences of %u tokens in "
            "%u layers, more than the %u that can be told apart; lower --ctx-size, "
            "--parallel or the number of drives",
            (unsigned long long)in->cold_slots, (uint32_t)sequences(in), in->ctx_tokens,
            in->geometry.n_layers, KV_MAX_SLOTS);
    return rc;
}

int kv_plan_hot(struct kv_hot_plan *out, const struct kv_plan_input *in, uint64_t hot_cap_bytes,
                struct hill_why *why)
{
    uint64_t min_blocks, full_blocks;
    int rc = check_input(in, why);
    if (rc != 0)
        return rc;
    plan_fixed(out, in, &min_blocks, &full_blocks);
    if (out->staging_bytes == 0 || min_blocks > KV_MAX_HOT_BLOCKS)
        return hill_fail(why, HILL_E_INVALID,
                         "%u sequences of %u tokens are beyond what a hot pool can address",
                         (uint32_t)sequences(in), in->ctx_tokens);
    if (hot_cap_bytes < hot_bytes(out, in, min_blocks))
        return hill_fail(why, HILL_E_INVALID,
                         "--hot-mb is too small for tables, sinks and windows of --ctx-size %u and "
                         "--parallel %u in %u layers: %.2f MiB needed, %.2f MiB given",
                         in->ctx_tokens, (uint32_t)sequences(in), in->geometry.n_layers,
                         (double)hot_bytes(out, in, min_blocks) / 1048576.0,
                         (double)hot_cap_bytes / 1048576.0);
    uint64_t fit = (hot_cap_bytes - hot_bytes(out, in, 0)) / whole_block(out, in);
    out->n_blocks = smaller(fit < full_blocks ? fit : full_blocks, KV_MAX_HOT_BLOCKS);
    out->private_bytes += out->n_blocks * (whole_block(out, in) - out->block_bytes);
    return 0;
}
