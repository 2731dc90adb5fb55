/*
 * shm/arena.c - see arena.h. The free list is a stack, so that the slot given back last, still warm
 * in the caches, is taken next.
 */
#include "shm/arena.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_ALIGN  64u
#define SLOTS_ALIGN 4096u
/* slots_offset is 32 bits wide */
#define SLOT_COUNT_MAX ((UINT32_MAX - SLOTS_ALIGN) / 4 - sizeof(struct shm_arena_header))

static uint64_t stride_bytes(uint32_t slot_bytes)
{
    return ((uint64_t)slot_bytes + SLOT_ALIGN - 1) & ~(uint64_t)(SLOT_ALIGN - 1);
}

static uint64_t slots_offset(uint32_t slot_count)
{
    uint64_t end = sizeof(struct shm_arena_header) + (uint64_t)slot_count * sizeof(uint32_t);
    return (end + SLOTS_ALIGN - 1) & ~(uint64_t)(SLOTS_ALIGN - 1);
}

uint64_t shm_arena_bytes(uint32_t slot_count, uint32_t slot_bytes)
{
    if (slot_count == 0 || slot_count > SLOT_COUNT_MAX || slot_bytes == 0 ||
        stride_bytes(slot_bytes) > UINT32_MAX)
        return 0;
    return slots_offset(slot_count) + slot_count * stride_bytes(slot_bytes);
}

int shm_arena_init(void *memory, uint32_t slot_count, uint32_t slot_bytes)
{
    struct shm_arena_header *header = memory;
    if (!shm_arena_bytes(slot_count, slot_bytes) || (uintptr_t)memory % SLOT_ALIGN)
        return HILL_E_INVALID;
    header->slot_count = slot_count;
    header->slot_bytes = slot_bytes;
    header->slots_offset = (uint32_t)slots_offset(slot_count);
    /* release: pairs with the acquire in view; the header is complete */
    atomic_store_explicit(&header->magic, SHM_ARENA_MAGIC, memory_order_release);
    return 0;
}

int shm_arena_view(struct shm_arena *arena, void *memory, uint64_t space)
{
    struct shm_arena_header *header = memory;
    memset(arena, 0, sizeof *arena);
    /* acquire: pairs with the release in init */
    if (space < sizeof *header || (uintptr_t)memory % SLOT_ALIGN ||
        atomic_load_explicit(&header->magic, memory_order_acquire) != SHM_ARENA_MAGIC)
        return HILL_E_DAMAGED;
    uint32_t slot_count = header->slot_count, slot_bytes = header->slot_bytes;
    uint64_t bytes = shm_arena_bytes(slot_count, slot_bytes);
    if (!bytes || bytes > space || header->slots_offset != slots_offset(slot_count))
        return HILL_E_DAMAGED;
    arena->header = header;
    arena->generations = (_Atomic uint32_t *)(header + 1);
    arena->slots = (uint8_t *)memory + slots_offset(slot_count);
    arena->slot_count = slot_count;
    arena->stride = (uint32_t)stride_bytes(slot_bytes);
    return 0;
}

static void bump_generation(struct shm_arena *arena, uint32_t slot)
{
    /* relaxed load: single writer. release: pairs with the acquire in shm_arena_generation */
    uint32_t old = atomic_load_explicit(&arena->generations[slot], memory_order_relaxed);
    atomic_store_explicit(&arena->generations[slot], old + 1, memory_order_release);
}

int shm_arena_own(struct shm_arena *arena, void *memory, uint64_t space)
{
    int rc = shm_arena_view(arena, memory, space);
    if (rc)
        return rc;
    arena->free_list = malloc(arena->slot_count * sizeof *arena->free_list);
    arena->taken = calloc(arena->slot_count, 1);
    if (!arena->free_list || !arena->taken) {
        shm_arena_finish(arena);
        return HILL_E_NOMEM;
    }
    arena->free_count = arena->slot_count;
    for (uint32_t i = 0; i < arena->slot_count; i++) {
        arena->free_list[i] = arena->slot_count - 1 - i; /* slot 0 on top */
        bump_generation(arena, i);
    }
    return 0;
}

void shm_arena_finish(struct shm_arena *arena)
{
    free(arena->free_list);
    free(arena->taken);
    memset(arena, 0, sizeof *arena);
}

int shm_arena_take(struct shm_arena *arena, uint32_t count, uint32_t *slots)
{
    if (count > arena->free_count)
        return HILL_E_WOULD_BLOCK;
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = arena->free_list[--arena->free_count];
        arena->taken[slots[i]] = 1;
    }
    return 0;
}

void shm_arena_give(struct shm_arena *arena, uint32_t count, const uint32_t *slots)
{
    for (uint32_t i = count; i-- > 0;) { /* slots that lay side by side stay so */
        uint32_t slot = slots[i];
        if (slot >= arena->slot_count || !arena->taken[slot])
            abort(); /* a bug: two owners of one slot would follow */
        arena->taken[slot] = 0;
        bump_generation(arena, slot);
        arena->free_list[arena->free_count++] = slot;
    }
}
