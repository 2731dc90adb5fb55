/* test_bounds.c - abstracts of chunks against a plain minimum and maximum, and bounds against the
 * products of the keys they stand for. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kv/bounds.h"
#include "tests/draws.h"
#include "tests/kv/half.h"

enum { TOKENS = 16 };

static const struct kv_geometry shapes[] = {
    {1, 1, 1, 1}, {1, 4, 2, 16}, {1, 8, 4, 9}, {1, 6, 3, 20}, {1, 32, 8, 64},
};

static void test_abstracts_are_the_least_and_the_largest(void **unused)
{
    (void)unused;
    draws_seed(5);
    for (uint32_t round = 0; round < 200; round++) {
        struct kv_geometry g = shapes[round % 5];
        uint32_t dims = kv_key_dims(&g), stride = 2 * dims, n = 1 + draw(TOKENS);
        uint16_t *keys = calloc((size_t)n * stride, 2), *abstract = calloc(2 * dims, 2);
        for (uint32_t i = 0; i < n * stride; i++)
            keys[i] = (uint16_t)draw(65536);                  /* infinities and others too */
        for (uint32_t done = 0, run; done < n; done += run) { /* as they come */
            run = 1 + draw(n - done);
            kv_bounds_add(&g, keys + (size_t)done * stride, stride, run, done == 0, abstract);
        }
        for (uint32_t d = 0; d < dims; d++) {
            double least = 1e9, largest = -1e9;
            for (uint32_t i = 0; i < n; i++) {
                least = fmin(least, half_value(keys[(size_t)i * stride + d]));
                largest = fmax(largest, half_value(keys[(size_t)i * stride + d]));
            }
            assert_true(half_value(abstract[d]) == least);
            assert_true(half_value(abstract[dims + d]) == largest);
        }
        free(keys);
        free(abstract);
    }
}

static float *floats(size_t n)
{
    return aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
}

static void test_a_bound_is_above_every_key_of_its_chunk(void **unused)
{
    (void)unused;
    draws_seed(6);
    for (uint32_t round = 0; round < 120; round++) {
        struct kv_geometry g = shapes[round % 5];
        uint32_t dims = kv_key_dims(&g), row = kv_mass_row(&g), zero = 0, numbers[TOKENS];
        size_t size = kv_mass_query_floats(&g), all = (size_t)g.n_heads * g.head_dim;
        float *q = floats(all), *whole = floats(size), *positive = floats(size);
        float *negative = floats(size), *rows = floats((size_t)TOKENS * row);
        float *low = floats(row), *high = floats(row);
        uint16_t *keys = calloc((size_t)TOKENS * dims, 2), *abstract = calloc(2 * dims, 2);
        const struct kv_mass_ops *ops = kv_mass_choose(round % 2 ? "auto" : "reference");
        for (size_t i = 0; i < all; i++)
            q[i] = (float)draw(2001) / 1000 - 1;
        for (uint32_t i = 0; i < TOKENS * dims; i++)
            keys[i] = (uint16_t)(draw(2) << 15 | draw(0x4400));
        for (uint32_t i = 0; i < TOKENS; i++)
            numbers[i] = i;
        kv_bounds_add(&g, keys, dims, TOKENS, 1, abstract);
        kv_mass_query(&g, q, whole);
        kv_bounds_query(&g, whole, positive, negative);
        ops->logits(&g, whole, keys, dims, TOKENS, numbers, TOKENS, rows);
        ops->logits(&g, negative, abstract, dims, 1, &zero, 1, low);
        ops->logits(&g, positive, abstract + dims, dims, 1, &zero, 1, high);
        for (uint32_t h = 0; h < g.n_heads; h++) {
            float bound = low[h] + high[h], best = -1e30f;
            for (uint32_t i = 0; i < TOKENS; i++)
                best = fmaxf(best, rows[i * row + h]);
            assert_true(best <= bound + 1e-4f * fabsf(bound) + 1e-6f);
            if (g.head_dim == 1) /* of one dimension it is met */
                assert_true(fabsf(best - bound) <= 1e-5f);
        }
        free(q);
        free(whole);
        free(positive);
        free(negative);
        free(rows);
        free(low);
        free(high);
        free(keys);
        free(abstract);
    }
}

static void test_candidates_are_twice_what_can_be_selected(void **unused)
{
    struct kv_selection_settings s = {
        .alpha = 0.1, .sinks = 4, .window = 16, .policy = KV_POLICY_LEOAM};
    (void)unused;
    assert_int_equal(kv_bounds_candidates(&s, 1000), 2 * (100 - 20));
    assert_int_equal(kv_bounds_candidates(&s, 100), 0);
    assert_int_equal(kv_bounds_candidates(&s, 10), 0);
    s.alpha = 1;
    assert_int_equal(kv_bounds_candidates(&s, 1000), 980);
    s.alpha = 0.7;
    assert_int_equal(kv_bounds_candidates(&s, 1000), 980);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abstracts_are_the_least_and_the_largest),
        cmocka_unit_test(test_a_bound_is_above_every_key_of_its_chunk),
        cmocka_unit_test(test_candidates_are_twice_what_can_be_selected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
