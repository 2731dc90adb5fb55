/*
 * tests/shm/test_arena.c - shm/arena against a brute-force model, its generations, and what the
 * header check refuses.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/arena.h"
#include "tests/shm/oracle.h"

#define SLOTS      37u
#define SLOT_BYTES 100u

static void *make_arena(uint64_t *space)
{
    *space = shm_arena_bytes(SLOTS, SLOT_BYTES);
    void *memory = aligned_alloc(4096, (*space + 4095) / 4096 * 4096);
    assert_non_null(memory);
    memset(memory, 0, *space);
    assert_int_equal(shm_arena_init(memory, SLOTS, SLOT_BYTES), 0);
    return memory;
}

static void sizes_are_checked(void **state)
{
    (void)state;
    _Alignas(64) uint8_t header[128] = {0};
    assert_int_equal(shm_arena_bytes(SLOTS, SLOT_BYTES), 4096 + SLOTS * 128);
    assert_int_equal(shm_arena_bytes(1008, 64), 4096 + 1008 * 64);
    assert_int_equal(shm_arena_bytes(1009, 1), 8192 + 1009 * 64);
    assert_true(shm_arena_bytes(1000000, 4000000000u) > 4000000000000000u);
    assert_int_equal(shm_arena_bytes(0, 64), 0);
    assert_int_equal(shm_arena_bytes(64, 0), 0);
    assert_int_equal(shm_arena_bytes(UINT32_MAX, 64), 0);
    assert_int_equal(shm_arena_bytes(1, UINT32_MAX), 0);
    assert_int_equal(shm_arena_init(header, 0, 64), HILL_E_INVALID);
    assert_int_equal(shm_arena_init(header + 4, 1, 64), HILL_E_INVALID);
}

static void slots_are_apart_and_inside(void **state)
{
    (void)state;
    uint64_t space;
    struct shm_arena arena;
    uint8_t *memory = make_arena(&space);
    assert_int_equal(shm_arena_view(&arena, memory, space), 0);
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint8_t *slot = shm_arena_slot(&arena, i);
        assert_int_equal((uintptr_t)slot % 64, 0);
        assert_true(slot >= memory + 4096 && slot + SLOT_BYTES <= memory + space);
        if (i)
            assert_true(slot >= (uint8_t *)shm_arena_slot(&arena, i - 1) + SLOT_BYTES);
    }
    assert_int_equal((uint8_t *)shm_arena_slot(&arena, 0) - memory, 4096);
    shm_arena_finish(&arena);
    free(memory);
}

/* Entries side by side cross to a GPU as one piece. */
static void what_is_given_is_taken_in_its_order(void **state)
{
    enum { N = 5 };
    (void)state;
    uint64_t space;
    struct shm_arena owner;
    uint32_t first[N], again[N];
    void *memory = make_arena(&space);
    assert_int_equal(shm_arena_own(&owner, memory, space), 0);
    assert_int_equal(shm_arena_take(&owner, N, first), 0);
    shm_arena_give(&owner, N, first);
    assert_int_equal(shm_arena_take(&owner, N, again), 0);
    assert_memory_equal(first, again, sizeof first);
    shm_arena_finish(&owner);
    free(memory);
}

/* What the owner should know: which slots are out, and how often each came back. */
static void taking_and_giving_follow_the_model(void **state)
{
    (void)state;
    uint64_t space, random = 5;
    struct shm_arena owner, view;
    bool out[SLOTS] = {false};
    uint32_t generation[SLOTS], out_count = 0, refused = 0;
    void *memory = make_arena(&space);
    assert_int_equal(shm_arena_own(&owner, memory, space), 0);
    assert_int_equal(shm_arena_view(&view, memory, space), 0);
    for (uint32_t i = 0; i < SLOTS; i++)
        generation[i] = 1;
    for (int step = 0; step < 20000; step++) {
        uint32_t slots[SLOTS + 8], count = (uint32_t)(oracle_next(&random) % 9);
        if (oracle_next(&random) % 2) {
            int rc = shm_arena_take(&owner, count, slots);
            assert_int_equal(rc, count <= SLOTS - out_count ? 0 : HILL_E_WOULD_BLOCK);
            refused += rc != 0;
            for (uint32_t i = 0; i < count && !rc; i++) {
                assert_true(slots[i] < SLOTS);
                assert_false(out[slots[i]]);
                out[slots[i]] = true;
                out_count++;
            }
        } else {
            uint32_t n = 0, from = (uint32_t)(oracle_next(&random) % SLOTS);
            for (uint32_t i = 0; i < SLOTS && n < count; i++) {
                uint32_t slot = (from + i) % SLOTS;
                if (!out[slot])
                    continue;
                out[slot] = false;
                generation[slot]++;
                out_count--;
                slots[n++] = slot;
            }
            shm_arena_give(&owner, n, slots);
        }
        for (uint32_t i = 0; i < SLOTS; i++)
            assert_int_equal(shm_arena_generation(&view, i), generation[i]);
        assert_int_equal(owner.free_count, SLOTS - out_count);
    }
    assert_true(refused > 100);
    shm_arena_finish(&view);
    shm_arena_finish(&owner);
    free(memory);
}

static void a_new_owner_starts_free_with_new_generations(void **state)
{
    (void)state;
    uint64_t space;
    struct shm_arena first, second;
    uint32_t slots[SLOTS];
    void *memory = make_arena(&space);
    assert_int_equal(shm_arena_own(&first, memory, space), 0);
    assert_int_equal(shm_arena_take(&first, 5, slots), 0);
    uint32_t old = shm_arena_generation(&first, slots[4]);
    shm_arena_finish(&first); /* as if it had died: nothing was given back */
    assert_int_equal(shm_arena_own(&second, memory, space), 0);
    assert_int_not_equal(shm_arena_generation(&second, slots[4]), old);
    assert_int_equal(shm_arena_take(&second, SLOTS, slots), 0);
    assert_int_equal(shm_arena_take(&second, 1, slots), HILL_E_WOULD_BLOCK);
    assert_int_equal(shm_arena_take(&second, 0, slots), 0);
    shm_arena_finish(&second);
    free(memory);
}

static void damaged_headers_are_refused(void **state)
{
    (void)state;
    uint64_t space;
    struct shm_arena arena;
    struct shm_arena_header *header = make_arena(&space), good;
    memcpy(&good, header, sizeof good);
    assert_int_equal(shm_arena_view(&arena, header, space - 1), HILL_E_DAMAGED);
    assert_int_equal(shm_arena_view(&arena, header, 63), HILL_E_DAMAGED);
    static const uint32_t wrong[] = {0, 1u << 20, 1u << 31, UINT32_MAX};
    for (unsigned i = 0; i < 4; i++) {
        header->slot_count = wrong[i];
        assert_int_equal(shm_arena_view(&arena, header, space), HILL_E_DAMAGED);
        header->slot_count = good.slot_count;
        header->slot_bytes = wrong[i];
        assert_int_equal(shm_arena_own(&arena, header, space), HILL_E_DAMAGED);
        header->slot_bytes = good.slot_bytes;
        header->slots_offset = wrong[i];
        assert_int_equal(shm_arena_view(&arena, header, space), HILL_E_DAMAGED);
        header->slots_offset = good.slots_offset;
    }
    atomic_store_explicit(&header->magic, SHM_ARENA_MAGIC + 1, memory_order_relaxed);
    assert_int_equal(shm_arena_view(&arena, header, space), HILL_E_DAMAGED);
    atomic_store_explicit(&header->magic, SHM_ARENA_MAGIC, memory_order_relaxed);
    assert_int_equal(shm_arena_view(&arena, header, space), 0);
    free(header);
}

/* Gives `slot` in a child, twice if asked; true when that ended it by SIGABRT. */
static bool give_aborts(struct shm_arena *arena, uint32_t slot, int times)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        while (times--)
            shm_arena_give(arena, 1, &slot);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void giving_what_is_not_out_aborts(void **state)
{
    (void)state;
    uint64_t space;
    struct shm_arena arena;
    uint32_t slot;
    void *memory = make_arena(&space);
    assert_int_equal(shm_arena_own(&arena, memory, space), 0);
    assert_int_equal(shm_arena_take(&arena, 1, &slot), 0);
    assert_false(give_aborts(&arena, slot, 1));
    assert_true(give_aborts(&arena, slot, 2));
    assert_true(give_aborts(&arena, (slot + 1) % SLOTS, 1));
    assert_true(give_aborts(&arena, SLOTS, 1));
    assert_true(give_aborts(&arena, UINT32_MAX, 1));
    shm_arena_finish(&arena);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(slots_are_apart_and_inside),
        cmocka_unit_test(what_is_given_is_taken_in_its_order),
        cmocka_unit_test(taking_and_giving_follow_the_model),
        cmocka_unit_test(a_new_owner_starts_free_with_new_generations),
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(giving_what_is_not_out_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
