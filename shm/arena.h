/*
 * shm/arena.h - equal-size slots with generations in shared memory (the staging arena).
 *
 * What: one owner takes and gives slots; other processes read or fill the slots they are told of
 * by index. A slot's generation goes up when it is given back, so that a late writer or reader can
 * be told from a current one [I10]. The free list is the owner's private memory: after the owner
 * died a new one starts with all slots free (shm_arena_own).
 * Concurrency: take/give by the owner's thread; generation and slot pointers by anyone.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

#define SHM_ARENA_MAGIC 0x4e455241u

struct shm_arena_header {
    _Atomic uint32_t magic;
    uint32_t slot_count;
    uint32_t slot_bytes;   /* payload of a slot; its stride is rounded up to 64 */
    uint32_t slots_offset; /* from the header to slot 0, 4096-aligned */
    uint8_t pad[48];
    /* then: _Atomic uint32_t generation[slot_count] (owner writes) */
};

_Static_assert(sizeof(struct shm_arena_header) == 64, "arena header layout");

struct shm_arena {
    struct shm_arena_header *header;
    _Atomic uint32_t *generations;
    uint8_t *slots;
    uint32_t slot_count, stride;
    uint32_t *free_list; /* owner only, a stack; NULL in a view */
    uint8_t *taken;      /* owner only: 1 for a slot that is taken */
    uint32_t free_count;
};

/* Memory for slot_count slots of slot_bytes; 0 when such an arena cannot be. */
uint64_t shm_arena_bytes(uint32_t slot_count, uint32_t slot_bytes);

/* Lay out an arena in zeroed, 64-byte aligned memory of shm_arena_bytes. HILL_E_INVALID: such an
 * arena cannot be, or memory is not 64-byte aligned. */
int shm_arena_init(void *memory, uint32_t slot_count, uint32_t slot_bytes);

/* Map as a reader (view) or as the owner; the header is checked against space: HILL_E_DAMAGED,
 * owner also HILL_E_NOMEM. Owning bumps every generation: what a dead owner had given out is old.
 */
int shm_arena_view(struct shm_arena *arena, void *memory, uint64_t space);
int shm_arena_own(struct shm_arena *arena, void *memory, uint64_t space);
void shm_arena_finish(struct shm_arena *arena);

/* Owner: take count slots (all or none): 0 or HILL_E_WOULD_BLOCK. Their contents are not cleared.
 */
int shm_arena_take(struct shm_arena *arena, uint32_t count, uint32_t *slots);
/* Owner: give slots back; bumps their generations. Those of one call are taken again in the order
 * in which they are given: slots side by side stay so. Giving a free slot or none of
 * the arena is a bug (abort). */
void shm_arena_give(struct shm_arena *arena, uint32_t count, const uint32_t *slots);

/* Owner of a mirror: the slot has the generation that the arena it stands for has. */
static inline void shm_arena_follow(struct shm_arena *arena, uint32_t slot, uint32_t generation)
{
    /* release: pairs with the acquire in shm_arena_generation */
    atomic_store_explicit(&arena->generations[slot], generation, memory_order_release);
}

static inline void *shm_arena_slot(const struct shm_arena *arena, uint32_t slot)
{
    return arena->slots + (uint64_t)slot * arena->stride;
}

static inline uint32_t shm_arena_generation(const struct shm_arena *arena, uint32_t slot)
{
    /* acquire: pairs with the release in give; what was written before is seen */
    return atomic_load_explicit(&arena->generations[slot], memory_order_acquire);
}
