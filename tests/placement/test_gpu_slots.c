/* tests/placement/test_gpu_slots.c - the GPU slot table against a simulated GPU that only does as
 * it is told. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "placement/gpu_slots.h"
#include "tests/draws.h"

enum { LISTS = 3, CAPACITY = 40, POSITIONS = 90, EMPTY = 0xffff };

static uint32_t gpu[LISTS][CAPACITY]; /* position held by each slot */

static uint32_t slot_of(uint32_t list, uint32_t position)
{
    for (uint32_t i = 0; i < CAPACITY; i++)
        if (gpu[list][i] == position)
            return i;
    return EMPTY;
}

static uint32_t random_selection(uint32_t *positions, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < POSITIONS && n < k; p++)
        if (draw(POSITIONS - p) < k - n)
            positions[n++] = p;
    return n;
}

static void check_selection(struct gpu_slots *table, uint32_t list, const uint32_t *positions,
                            uint32_t k)
{
    uint32_t slots[CAPACITY], uploads = 0;
    int64_t answered = gpu_slots_select(table, list, positions, k, slots);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t before = slot_of(list, positions[i]);
        if (before != EMPTY) /* resident: same slot, no upload */
            assert_int_equal(slots[i], before);
        else {
            assert_true(slots[i] & GPU_SLOTS_UPLOAD);
            uploads++;
        }
    }
    assert_int_equal(answered, uploads);
    for (uint32_t i = 0; i < k; i++) {
        assert_true((slots[i] & ~GPU_SLOTS_UPLOAD) < CAPACITY);
        if (slots[i] & GPU_SLOTS_UPLOAD)
            gpu[list][slots[i] & ~GPU_SLOTS_UPLOAD] = positions[i];
    }
    /* after the uploads every selected entry is where the answer says: no upload hit another one's
     * slot */
    for (uint32_t i = 0; i < k; i++)
        assert_int_equal(gpu[list][slots[i] & ~GPU_SLOTS_UPLOAD], positions[i]);
}

static void test_random_selections_match_a_simulated_gpu(void **unused)
{
    (void)unused;
    struct gpu_slots table;
    uint32_t positions[CAPACITY];
    void *memory = calloc(1, gpu_slots_bytes(LISTS, CAPACITY));
    draws_seed(77);
    gpu_slots_init(&table, memory, LISTS, CAPACITY);
    for (uint32_t l = 0; l < LISTS; l++)
        for (uint32_t i = 0; i < CAPACITY; i++)
            gpu[l][i] = EMPTY;
    for (int round = 0; round < 20000; round++) {
        uint32_t list = draw(LISTS);
        if (draw(200) == 0) {
            gpu_slots_clear(&table, list);
            for (uint32_t i = 0; i < CAPACITY; i++)
                gpu[list][i] = EMPTY;
        }
        uint32_t k = draw(10) ? draw(CAPACITY + 1) : CAPACITY;
        check_selection(&table, list, positions, random_selection(positions, k));
        assert_true(gpu_slots_resident(&table, list) <= CAPACITY);
    }
    free(memory);
}

/* All selected, a third kept: the same third needs no upload the next time, and the simulated GPU,
 * which only does as it is told, holds everything selected after each query. */
static void test_what_is_not_kept_is_uploaded_again(void **unused)
{
    (void)unused;
    struct gpu_slots table;
    uint32_t positions[30], slots[30], kept[10];
    void *memory = calloc(1, gpu_slots_bytes(LISTS, CAPACITY));
    gpu_slots_init(&table, memory, LISTS, CAPACITY);
    for (uint32_t i = 0; i < CAPACITY; i++)
        gpu[0][i] = EMPTY;
    for (uint32_t i = 0; i < 30; i++)
        positions[i] = 2 * i;
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t n = 0, expected[10];
        assert_int_equal(gpu_slots_select(&table, 0, positions, 30, slots), round ? 20 : 30);
        for (uint32_t i = 0; i < 30; i++) {
            uint32_t slot = slots[i] & ~GPU_SLOTS_UPLOAD;
            if (slots[i] & GPU_SLOTS_UPLOAD)
                gpu[0][slot] = positions[i];
            assert_int_equal(gpu[0][slot], positions[i]);
            if (slot < 10)
                expected[n++] = positions[i];
        }
        assert_int_equal(n, 10);
        if (round)
            assert_memory_equal(kept, expected, sizeof kept);
        memcpy(kept, expected, sizeof kept);
        gpu_slots_keep(&table, 0, 10);
        assert_int_equal(gpu_slots_resident(&table, 0), 10);
    }
    gpu_slots_keep(&table, 0, 0);
    assert_int_equal(gpu_slots_select(&table, 0, positions, 30, slots), 30);
    free(memory);
}

static void test_more_than_the_capacity_is_refused(void **unused)
{
    (void)unused;
    struct gpu_slots table;
    uint32_t positions[5] = {1, 2, 3, 4, 5}, slots[5];
    void *memory = calloc(1, gpu_slots_bytes(1, 4));
    gpu_slots_init(&table, memory, 1, 4);
    assert_int_equal(gpu_slots_select(&table, 0, positions, 5, slots), HILL_E_NOSPACE);
    assert_int_equal(gpu_slots_select(&table, 0, positions, 4, slots), 4);
    assert_int_equal(gpu_slots_select(&table, 0, positions, 4, slots), 0);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_selections_match_a_simulated_gpu),
        cmocka_unit_test(test_what_is_not_kept_is_uploaded_again),
        cmocka_unit_test(test_more_than_the_capacity_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
