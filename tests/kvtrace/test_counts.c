/*
 * Importance counts by hand, and hill-kvtrace's choice of placements.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/kvtrace/counts.h"
#include "tools/kvtrace/placement_report.h"

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-counts-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static struct trace_file *write_trace(bool with_scores)
{
    static const struct trace_settings settings = {.geometry = {2, 1, 1, 2}};
    static const uint16_t first[] = {5, 1, 9, 3, 7}, second[] = {0, 0, 0, 0, 0, 0}, one[] = {4};
    struct trace_writer *w;
    struct trace_file *file;
    struct hill_why why;
    assert_int_equal(trace_open(&w, path, &settings, &why), 0);
    struct trace_query q = {.n_tokens = 5, .scores = with_scores ? first : NULL};
    assert_int_equal(trace_query(w, &q), 0);
    q.n_tokens = 6;
    q.scores = second;
    assert_int_equal(trace_query(w, &q), 0);
    q.layer = 1;
    q.n_tokens = 1;
    q.scores = one;
    assert_int_equal(trace_query(w, &q), 0);
    assert_int_equal(trace_close(w), 0);
    assert_int_equal(trace_file_open(&file, path, &why), 0);
    return file;
}

static void counts_worked_by_hand(void **state)
{
    (void)state;
    /* 5 tokens: 2 is the highest, 1 the lowest. 6 equal ones: two newest, two oldest. */
    static const uint32_t expected[6][3] = {{0, 1, 1}, {0, 0, 2}, {1, 1, 0},
                                            {0, 2, 0}, {1, 1, 0}, {1, 0, 0}};
    struct trace_file *file = write_trace(true);
    struct counts c;
    struct hill_why why;
    assert_int_equal(counts_take(&c, file, 0, &why), 0);
    assert_int_equal(c.n_tokens, 6);
    assert_int_equal(c.n_queries, 2);
    assert_memory_equal(c.of, expected, sizeof expected);
    counts_free(&c);
    assert_int_equal(counts_take(&c, file, -1, &why), 0);
    assert_int_equal(c.n_queries, 3);
    for (uint32_t i = 0; i < 6; i++) /* each token once in each query that has it */
        assert_int_equal(c.of[i][0] + c.of[i][1] + c.of[i][2], i == 0 ? 3 : i < 5 ? 2 : 1);
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    assert_int_equal(counts_print(&c, f), 0);
    fclose(f);
    assert_non_null(strstr(text, "position\timportant\tsecondary\tunimportant\n"));
    assert_non_null(strstr(text, "\n2\t1\t1\t0\n"));
    free(text);
    char svg[80];
    snprintf(svg, sizeof svg, "%s.svg", path);
    assert_int_equal(counts_draw(&c, "a <b> & c", svg, &why), 0);
    f = fopen(svg, "r");
    char head[2000] = {0};
    assert_true(fread(head, 1, sizeof head - 1, f) > 100);
    assert_non_null(strstr(head, "<svg "));
    assert_non_null(strstr(head, "a &#60;b&#62; &#38; c"));
    fclose(f);
    unlink(svg);
    assert_int_not_equal(counts_draw(&c, "", "/tmp/hill-no-such-folder/x.svg", &why), 0);
    counts_free(&c);
    trace_file_close(file);
}

static void counting_needs_scores(void **state)
{
    (void)state;
    struct trace_file *file = write_trace(false);
    struct counts c;
    struct hill_why why;
    assert_int_equal(counts_take(&c, file, -1, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "record 0"));
    trace_file_close(file);
}

static void placements_by_name(void **state)
{
    (void)state;
    struct report r;
    struct hill_why why;
    assert_int_equal(report_parse_placements(&r, "all", &why), 0);
    for (unsigned i = 0; i < PLACEMENT_COUNT; i++)
        assert_true(r.wanted[i]);
    assert_int_equal(report_parse_placements(&r, "bkp,score", &why), 0);
    assert_true(r.wanted[PLACEMENT_BKP] && r.wanted[PLACEMENT_SCORE]);
    assert_false(r.wanted[PLACEMENT_LRU] || r.wanted[PLACEMENT_LFU] || r.wanted[PLACEMENT_BELADY]);
    static const char *const wrong[] = {
        "", "fifo", "bkp,", ",bkp", "bkp,all", "bkp lru", "aaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(report_parse_placements(&r, wrong[i], &why), HILL_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_worked_by_hand),
        cmocka_unit_test(counting_needs_scores),
        cmocka_unit_test(placements_by_name),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
