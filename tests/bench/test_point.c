/* tests/bench/test_point.c - which points POINTS asks for, and the model's shape. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "bench/point.h"

static void test_without_a_list_all_points_are_asked_for(void **unused)
{
    (void)unused;
    unsetenv("POINTS");
    assert_true(point_asked("full", 4096, 1));
    setenv("POINTS", "", 1);
    assert_true(point_asked("full", 4096, 1));
}

static void test_a_list_names_shapes_for_all_policies_or_for_one(void **unused)
{
    (void)unused;
    setenv("POINTS", "4096x1, h2o:16384x8", 1);
    assert_true(point_asked("full", 4096, 1));
    assert_true(point_asked("h2o", 4096, 1));
    assert_true(point_asked("h2o", 16384, 8));
    assert_false(point_asked("full", 16384, 8));
    assert_false(point_asked("full", 4096, 12)); /* not a beginning of "4096x1" */
    assert_false(point_asked("full", 40961, 1));
}

static void test_entries_fill_whole_pages(void **unused)
{
    (void)unused;
    struct kv_geometry g = point_geometry();
    assert_int_equal(kv_entry_bytes(&g), 4096); /* else bytes of fetches are not entries' alone */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_list_all_points_are_asked_for),
        cmocka_unit_test(test_a_list_names_shapes_for_all_policies_or_for_one),
        cmocka_unit_test(test_entries_fill_whole_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
