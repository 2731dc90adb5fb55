/* tests/bench/test_point.c - which points POINTS asks for, the model's shape, what a point is
 * measured with. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

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

static const struct workload real = {
    .name = "a-1000-b", .model = "a.gguf", .tokens = 1000, .geometry = {3, 4, 2, 8}};

static struct point real_point(const char *options)
{
    return (struct point){.kv = &real,
                          .policy = "hillinfer",
                          .tokens = 1000,
                          .rows = 1,
                          .steps = 5,
                          .drive = POINT_MODELLED,
                          .csd_model = "flash=1",
                          .options = options,
                          .label = ""};
}

static void test_settings_name_the_kv_and_what_was_asked_for_once(void **unused)
{
    (void)unused;
    char text[1200];
    struct point p = real_point("--alpha 0.1 --hot-mb 9 --gpu-keep 0.3 --beta auto");
    point_settings(&p, text, sizeof text);
    assert_non_null(strstr(text, "a-1000-b; 5 steps; "));
    assert_non_null(strstr(text, "--csd-model flash=1 "));
    const char *const words[] = {"--alpha ", "--hot-mb ", "--gpu-keep ", "--beta ", "--policy "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = strstr(text, words[i]);
        assert_non_null(at);
        assert_null(strstr(at + 1, words[i])); /* not the usual value beside the asked one */
    }
}

static void test_memory_for_a_hot_share_grows_by_what_lies_in_it(void **unused)
{
    (void)unused;
    struct workload wide = real;
    struct point p = real_point("");
    wide.tokens = p.tokens = 1u << 20;
    p.kv = &wide;
    double half = point_hot_mb(&p, PLACEMENT_BKP, 0.5, 0.1, false);
    double whole = point_hot_mb(&p, PLACEMENT_BKP, 1, 0.1, false);
    /* 3 layers of half a Mi tokens: entries of 64 bytes, digests of 20, 8 of tables and checks */
    assert_true(whole - half > 3 * 0.5 * (64 + 18) && whole - half < 3 * 0.5 * (64 + 18 + 24));
    assert_true(point_hot_mb(&p, PLACEMENT_BKP, 0.5, 0.1, true) > half + 6); /* staging, guesses */
    /* lru's tables are larger than bkp's, and as many entries are to be hot */
    assert_true(point_hot_mb(&p, PLACEMENT_LRU, 0.5, 0.1, false) > half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_list_all_points_are_asked_for),
        cmocka_unit_test(test_a_list_names_shapes_for_all_policies_or_for_one),
        cmocka_unit_test(test_entries_fill_whole_pages),
        cmocka_unit_test(test_settings_name_the_kv_and_what_was_asked_for_once),
        cmocka_unit_test(test_memory_for_a_hot_share_grows_by_what_lies_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
