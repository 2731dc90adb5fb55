/* tests/bench/test_point.c - which points POINTS asks for, and the model's shape. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tools/bench/point.h"

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

static void test_a_session_is_bound_to_guesses_and_score_bits_alone(void **unused)
{
    (void)unused;
    char words[128];
    point_session_words("", words, sizeof words);
    assert_string_equal(words, "");
    point_session_words("--hot-mb 64 --beta auto", words, sizeof words);
    assert_string_equal(words, "");
    point_session_words("--score-bits 4", words, sizeof words);
    assert_string_equal(words, "--score-bits 4");
    point_session_words("--exact-layers 1 --beta auto --speculate on --hot-mb 3", words,
                        sizeof words);
    assert_string_equal(words, "--speculate on --exact-layers 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_list_all_points_are_asked_for),
        cmocka_unit_test(test_a_list_names_shapes_for_all_policies_or_for_one),
        cmocka_unit_test(test_entries_fill_whole_pages),
        cmocka_unit_test(test_a_session_is_bound_to_guesses_and_score_bits_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
