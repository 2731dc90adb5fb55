/*
 * tests/prefix/test_chunk_order.c - orders of a chunk's tokens against a sort that shares no code;
 * entries there and back; what is no order.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/chunk_order.h"
#include "tests/draws.h"

enum { LAYERS = 3, ENTRY = 24, N = CHUNK_TOKENS };
enum { CHUNK = LAYERS * N * ENTRY };

static const struct chunk_terms terms = {.n_layers = LAYERS, .entry_bytes = ENTRY};

/* Does token a lie before b? */
static bool before(const float *mass, uint32_t a, uint32_t b)
{
    float x = mass[a] > 0 ? mass[a] : 0, y = mass[b] > 0 ? mass[b] : 0;
    return x > y || (!(x < y) && a < b);
}

static void the_most_attended_come_first(void **unused)
{
    (void)unused;
    for (int round = 0; round < 200; round++) {
        float mass[N];
        uint8_t order[N];
        bool keeps = draw(2), seen[N] = {false};
        for (uint32_t i = 0; i < N; i++)
            mass[i] = (float)draw(round % 2 ? 5 : 1000) / 7 - 1;
        mass[draw(N)] = NAN;
        mass[draw(N)] = INFINITY;
        chunk_order_by(mass, keeps, order);
        assert_true(chunk_order_is_whole(order));
        for (uint32_t i = 0; i < N; i++)
            seen[order[i]] = true;
        for (uint32_t i = 0; i < N; i++)
            assert_true(seen[i]);
        if (keeps)
            assert_int_equal(order[0], 0);
        for (uint32_t i = keeps ? 2 : 1; i < N; i++)
            assert_true(before(mass, order[i - 1], order[i]));
    }
}

static void entries_come_back(void **unused)
{
    (void)unused;
    static uint8_t text[CHUNK], stored[CHUNK + LAYERS * N];
    uint8_t orders[LAYERS * N];
    float mass[N];
    for (uint32_t i = 0; i < CHUNK; i++)
        text[i] = (uint8_t)draw(256);
    assert_int_equal(chunk_stored_bytes(&terms, N), sizeof stored);
    assert_int_equal(chunk_stored_bytes(&terms, N - 1), (N - 1) * LAYERS * ENTRY);
    for (int round = 0; round < 20; round++) {
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t i = 0; i < N; i++)
                mass[i] = (float)draw(50);
            chunk_order_by(mass, l == 0, orders + l * N);
        }
        chunk_order_store(&terms, text, orders, stored);
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t i = 0; i < N; i++)
                assert_memory_equal(stored + (l * N + i) * ENTRY,
                                    text + (l * N + orders[l * N + i]) * ENTRY, ENTRY);
        assert_memory_equal(stored + CHUNK, orders, sizeof orders);
        assert_int_equal(chunk_order_restore(&terms, stored), 0);
        assert_memory_equal(stored, text, CHUNK);
    }
    chunk_order_store(&terms, text, NULL, stored);
    assert_memory_equal(stored, text, CHUNK);
    chunk_order_none(orders);
    assert_memory_equal(stored + CHUNK + N, orders, N);
}

static void what_is_no_order_is_refused(void **unused)
{
    (void)unused;
    static uint8_t text[CHUNK], stored[CHUNK + LAYERS * N];
    for (int round = 0; round < 50; round++) {
        chunk_order_store(&terms, text, NULL, stored);
        uint8_t *order = stored + CHUNK + draw(LAYERS) * N;
        uint32_t at = draw(N);
        order[at] = (uint8_t)(order[at] + 1 + draw(255)); /* twice there, or beyond the chunk */
        assert_false(chunk_order_is_whole(order));
        assert_int_equal(chunk_order_restore(&terms, stored), HILL_E_DAMAGED);
    }
}

int main(void)
{
    draws_seed(20261124);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_attended_come_first),
        cmocka_unit_test(entries_come_back),
        cmocka_unit_test(what_is_no_order_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
