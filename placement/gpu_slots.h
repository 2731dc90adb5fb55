/*
 * placement/gpu_slots.h - the GPU's slot table: which KV entries the GPU holds, and where.
 *
 * What: for each (sequence, layer) the GPU has `capacity` slots. The table is an inclusive cache of
 * the tiers below: an entry that is selected again keeps its slot and is not uploaded again;
 * entries that are not in the current selection give way, oldest position first, when slots are
 * needed. Where the GPU reads hot entries in place, they are not asked for here.
 * The GPU worker follows the table blindly. Memory: 8 bytes per slot, and a count per list,
 * in memory of the caller (the hot segment). Invariant: the entries of a list are sorted by
 * position, and their slots are a permutation of 0 .. count-1. Who calls it: the scorer's data
 * thread, and placement/trace_replay.c, which puts the same table in front of a placement offline.
 * Concurrency: one thread per table. Failure: HILL_E_NOSPACE.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

#define GPU_SLOTS_UPLOAD 0x80000000u /* flag in an answer: the entry is not there yet */

struct gpu_slot_entry {
    uint32_t position, slot;
};

struct gpu_slots {
    uint32_t n_lists, capacity;
    uint32_t *counts;               /* [n_lists], shared memory */
    struct gpu_slot_entry *entries; /* [n_lists][capacity], shared memory */
    struct gpu_slot_entry *scratch; /* [capacity], shared memory: the list being built */
};

/* Bytes for n_lists lists of `capacity` slots. */
uint64_t gpu_slots_bytes(uint32_t n_lists, uint32_t capacity);

/* Start with all lists empty in 8-byte aligned memory of gpu_slots_bytes. */
void gpu_slots_init(struct gpu_slots *table, void *memory, uint32_t n_lists, uint32_t capacity);

/* Forget a list: its entries will be uploaded again. */
void gpu_slots_clear(struct gpu_slots *table, uint32_t list);

/* Give every selected position (ascending, no doubles) a slot: slots[i], with GPU_SLOTS_UPLOAD set
 * when the entry must be uploaded to it. Returns the number of uploads; HILL_E_NOSPACE when k >
 * capacity. */
int64_t gpu_slots_select(struct gpu_slots *table, uint32_t list, const uint32_t *positions,
                         uint32_t k, uint32_t *slots);

/* Which of these positions (ascending) are on the GPU: slots[i], or GPU_SLOTS_UPLOAD. Changes
 * nothing. */
void gpu_slots_find(const struct gpu_slots *table, uint32_t list, const uint32_t *positions,
                    uint32_t k, uint32_t *slots);

/* Forget all but `keep` entries of a list, those in slots 0 .. keep-1: an answer that was given
 * stays good, the others will be uploaded again. */
void gpu_slots_keep(struct gpu_slots *table, uint32_t list, uint32_t keep);

static inline uint32_t gpu_slots_resident(const struct gpu_slots *table, uint32_t list)
{
    return table->counts[list];
}
