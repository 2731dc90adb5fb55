/* tests/bench/test_point.c - which points POINTS asks for, the model's shape, what a point is
 * measured with, what a batch's rows add up to. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tools/bench/point_run.h"

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

/* A round that was kept is of the defaults that were in force. */
static void test_settings_name_what_was_not_asked_for(void **unused)
{
    (void)unused;
    char text[1200], other[1200];
    struct point p = real_point("--speculate on");
    unsetenv("HILL_IMPORTANCE");
    point_settings(&p, text, sizeof text);
    assert_non_null(strstr(text, "; importance "));
    assert_non_null(strstr(text, "; rows-in-flight "));
    assert_null(strstr(text, "; speculate "));
    setenv("HILL_IMPORTANCE", "max", 1);
    point_settings(&p, other, sizeof other);
    unsetenv("HILL_IMPORTANCE");
    assert_non_null(strstr(other, "; importance max;"));
    assert_string_not_equal(text, other);
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

/* A status of two layers: the row that was first has made `tokens`, and the last one a few. */
static json_t *status_of(int tokens, double busy_ms, int first_flash, int queries)
{
    return json_pack(
        "{s:[{s:i,s:i},{s:i,s:i}], s:{s:f,s:f,s:f,s:f,s:f}, s:{s:i,s:i}, "
        "s:[{s:i,s:i,s:{s:{s:i},s:{s:i,s:i},s:{s:i,s:i}},s:{s:i},s:{s:i,s:i,s:i,s:i}}, {s:i}]}",
        "requests", "request", 7, "predicted_tokens", tokens, "request", 8, "predicted_tokens",
        tokens - 95, "csd_model", "flash_ms", busy_ms, "dram_ms", busy_ms / 2, "score_ms",
        busy_ms / 4, "link_ms", 2 * busy_ms, "late_ms", busy_ms / 8, "writes", "pages", 900,
        "directory", 100, "sequences", "request", 7, "queries", queries, "tiers", "gpu", "hits",
        6 * queries, "hot", "hits", queries, "tokens", 40, "cold", "hits", 3 * queries, "tokens",
        360, "moves", "ever_cold", 300, "bytes", "flash_read", first_flash, "link_key",
        first_flash / 2, "link_score", 0, "link_kv", first_flash / 2, "request", 8);
}

/* The row that came first reads little, since it has the caches; the last one reads 1000 a step. */
static void test_a_batch_is_the_sum_of_rows_that_differ(void **unused)
{
    (void)unused;
    struct point_result r = {.flash_read = 1000,
                             .link_key = 400,
                             .link_score = 50,
                             .link_kv = 50,
                             .gpu_hits = 5,
                             .cold_hits = 5,
                             .hot = 20,
                             .cold = 180,
                             .ever_cold = 500};
    json_t *answer = json_pack("{s:i, s:[o,o]}", "request_id", 8, "rows",
                               status_of(100, 40, 5000, 200), status_of(110, 120, 7000, 220));
    point_read_rows(answer, 2, &r);
    json_decref(answer);
    assert_true(r.all_flash == 1200 && r.all_link == 700); /* 2000 more in 10 steps */
    assert_true(r.hot_share == 0.1 && r.cold_share == 0.4);
    assert_true(r.ever_cold == 800 && r.written == 1000);
    assert_true(r.busy_flash_ms == 8 && r.busy_dram_ms == 4 && r.busy_score_ms == 2);
    assert_true(r.busy_link_ms == 16 && r.late_step_ms == 1);
}

/* Its steps beside the last row's count whole, those after them by the rows that were left. */
static void test_a_look_after_the_last_row_is_over(void **unused)
{
    (void)unused;
    struct point_result r = {.step_ms = 1};
    json_t *after = status_of(112, 200, 7000, 220);
    json_t *answer = json_pack("{s:i, s:i, s:[o,o]}", "request_id", 8, "predicted_tokens", 13,
                               "rows", status_of(100, 40, 5000, 200), after);
    json_array_remove(json_object_get(after, "requests"), 1);
    point_read_rows(answer, 2, &r);
    json_decref(answer);
    assert_true(r.busy_flash_ms == 16); /* 160 for 12 and 8 tokens of two rows */
}

static void test_a_row_alone_is_all_rows(void **unused)
{
    (void)unused;
    struct point_result r = {
        .flash_read = 10, .link_kv = 20, .hot = 1, .cold = 3, .busy_dram_ms = 7};
    json_t *answer = json_pack("{s:i}", "request_id", 8);
    point_read_rows(answer, 2, &r);
    json_decref(answer);
    assert_true(r.all_flash == 10 && r.all_link == 20 && r.hot_share == 0.25);
    assert_true(r.cold_share == 0 && r.busy_dram_ms == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_list_all_points_are_asked_for),
        cmocka_unit_test(test_a_list_names_shapes_for_all_policies_or_for_one),
        cmocka_unit_test(test_entries_fill_whole_pages),
        cmocka_unit_test(test_settings_name_the_kv_and_what_was_asked_for_once),
        cmocka_unit_test(test_settings_name_what_was_not_asked_for),
        cmocka_unit_test(test_memory_for_a_hot_share_grows_by_what_lies_in_it),
        cmocka_unit_test(test_a_batch_is_the_sum_of_rows_that_differ),
        cmocka_unit_test(test_a_look_after_the_last_row_is_over),
        cmocka_unit_test(test_a_row_alone_is_all_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
