/* test_partial.c - which columns prefetch keeps, against a sort; and partial queries and keys. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kv/partial.h"
#include "kv/plane.h"
#include "tests/draws.h"
#include "tests/kv/half.h"

static const struct kv_geometry shapes[] = {
    {1, 4, 2, 16}, {1, 8, 4, 9}, {1, 6, 3, 20}, {1, 4, 4, 2}, {1, 2, 1, 1},
};

static void test_the_largest_columns_are_kept(void **unused)
{
    (void)unused;
    draws_seed(3);
    for (uint32_t round = 0; round < 100; round++) {
        struct kv_geometry g = shapes[round % 5];
        uint32_t stride = 2 * kv_key_dims(&g), n = 1 + draw(KV_PARTIAL_TOKENS);
        uint32_t kept = kv_partial_dims(&g);
        uint16_t *keys = calloc((size_t)n * stride, 2);
        uint16_t *columns = calloc((size_t)g.n_kv_heads * kept, 2);
        for (uint32_t i = 0; i < n * stride; i++)
            keys[i] = (uint16_t)draw(65536);
        kv_partial_columns(&g, keys, stride, n, columns);
        for (uint32_t h = 0; h < g.n_kv_heads; h++) {
            double sums[64] = {0};
            for (uint32_t d = 0; d < g.head_dim; d++)
                for (uint32_t i = 0; i < n; i++)
                    sums[d] += fabs(half_value(keys[(size_t)i * stride + h * g.head_dim + d]));
            for (uint32_t k = 0; k < kept; k++) {
                uint32_t column = columns[h * kept + k], larger = 0;
                assert_true(column < g.head_dim && (k == 0 || columns[h * kept + k - 1] < column));
                for (uint32_t d = 0; d < g.head_dim; d++)
                    larger += sums[d] > sums[column] || (sums[d] == sums[column] && d < column);
                assert_true(larger < kept);
            }
        }
        free(keys);
        free(columns);
    }
}

static void test_queries_keep_the_columns_of_their_group(void **unused)
{
    struct kv_geometry g = {1, 4, 2, 8}, part = kv_partial_geometry(&g);
    const uint16_t columns[] = {1, 3, 6, 7, 0, 2, 5, 7};
    float q[32], out[16];
    uint16_t key[16], kept[8];
    (void)unused;
    assert_int_equal(part.head_dim, 4);
    for (uint32_t i = 0; i < 32; i++)
        q[i] = (float)i;
    for (uint32_t i = 0; i < 16; i++)
        key[i] = (uint16_t)(100 + i);
    kv_partial_query(&g, columns, q, out);
    kv_partial_key(&g, columns, key, kept);
    for (uint32_t h = 0; h < 4; h++)
        for (uint32_t k = 0; k < 4; k++)
            assert_float_equal(out[h * 4 + k], (h * 8 + columns[h / 2 * 4 + k]) * sqrt(4) / sqrt(8),
                               1e-4);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(kept[i], 100 + i / 4 * 8 + columns[i]);
}

/* They come in the place of the mantissas. */
static void test_parts_take_no_more_room_than_mantissas(void **unused)
{
    (void)unused;
    for (uint32_t dim = 1; dim <= KV_MAX_HEAD_DIM; dim++) {
        struct kv_geometry g = {1, 3, 3, dim};
        uint32_t bytes = kv_plane_key_bytes(&g, KV_POLICY_PREFETCH);
        assert_true(bytes > 0 && (bytes <= kv_key_dims(&g) || bytes == 2 * kv_key_dims(&g)));
        if (dim >= 10)
            assert_true(bytes * 10 >= 9 * kv_key_dims(&g));
    }
}

/* The hook is read before main: this program again, which says how many of 64 it keeps. */
static void test_the_hook_keeps_three_of_ten(void **unused)
{
    int status;
    (void)unused;
    pid_t child = fork();
    if (child == 0) {
        setenv("HILL_TEST_FEW_COLUMNS", "1", 1);
        execl("/proc/self/exe", "few", (char *)NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 19);
}

int main(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "few") == 0)
        return (int)kv_partial_dims(&(struct kv_geometry){1, 1, 1, 64});
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_hook_keeps_three_of_ten),
        cmocka_unit_test(test_the_largest_columns_are_kept),
        cmocka_unit_test(test_queries_keep_the_columns_of_their_group),
        cmocka_unit_test(test_parts_take_no_more_room_than_mantissas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
