/* tests/bench/test_picture.c - what gnuplot is told, by a stand-in on PATH that keeps its input. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/bench/played_program.h"
#include "tools/bench/picture.h"

static char folder[] = "/tmp/hill-picture.XXXXXX";
static char script[1 << 14]; /* of the last picture */

static int set_up(void **unused)
{
    char path[4096];
    (void)unused;
    assert_non_null(mkdtemp(folder));
    put_program(folder, "gnuplot",
                "#!/bin/sh\ncat >\"$PICTURE_FOLDER/script\"\n"
                ": >\"$PICTURE_FOLDER/benchmarks-it.svg.part\"\n");
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("PICTURE_FOLDER", folder, 1);
    return 0;
}

static int tear_down(void **unused)
{
    static const char *const names[] = {"gnuplot", "script", "benchmarks-it.svg"};
    char path[128];
    (void)unused;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static void write_it(const struct picture *p)
{
    char path[128];
    assert_true(picture_write(p));
    snprintf(path, sizeof path, "%s/benchmarks-it.svg", folder);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/script", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    script[fread(script, 1, sizeof script - 1, f)] = 0;
    fclose(f);
}

static void assert_has(const char *words)
{
    if (!strstr(script, words))
        fail_msg("no '%s' in\n%s", words, script);
}

static void test_bars_of_series_stand_beside_one_another(void **unused)
{
    (void)unused;
    static struct picture p;
    p = (struct picture){.name = "it",
                         .title = "t",
                         .x_label = "x",
                         .y_label = "y",
                         .n_categories = 2,
                         .categories = {"one", "two"}};
    picture_point(picture_add(&p, "a", false), 0, 5);
    picture_add(&p, "nothing of it", false);
    picture_point(picture_add(&p, "b", false), 1, 7);
    write_it(&p);
    /* two that have points share 0.8 around the category; the empty one keeps its colour only */
    assert_has("$series0 using ($1+-0.2):2:(0.4) with boxes lc 1");
    assert_has("$series2 using ($1+0.2):2:(0.4) with boxes lc 3");
    assert_null(strstr(script, "$series1 using"));
    assert_has("set xtics (\"one\" 0)");
    assert_has("set xtics add (\"two\" 1)");
    assert_has("set xrange [-0.5:1.5]");
}

static void test_lines_and_what_is_predicted_have_one_colour(void **unused)
{
    (void)unused;
    static struct picture p;
    p = (struct picture){
        .name = "it", .title = "t", .x_label = "x", .y_label = "y", .log_x = true, .y_max = 1};
    picture_point(picture_add(&p, "a", false), 4096, 0.5);
    picture_point(picture_add(&p, "a, predicted", true), 4096, 0.25);
    write_it(&p);
    assert_has("$series0 with linespoints lc 1 lw 1.5 pt 4 ps 0.7 dt 1 title \"a\"");
    assert_has("$series1 with linespoints lc 1 lw 1.5 pt 4 ps 0 dt 2 title \"a, predicted\"");
    assert_has("set logscale x 2");
    assert_has("set yrange [0:1]");
    assert_has("$series0 << END\n4096 0.5\nEND\n");
}

static void test_without_points_there_is_no_picture(void **unused)
{
    (void)unused;
    static struct picture p;
    p = (struct picture){.name = "it", .title = "t", .x_label = "x", .y_label = "y"};
    picture_add(&p, "a", false);
    assert_false(picture_write(&p));
}

/* It is told more than a pipe holds, and so is still being told when it has ended. */
static void test_a_figure_outlives_a_gnuplot_that_fails(void **unused)
{
    (void)unused;
    static char label[1 << 18];
    static struct picture p;
    memset(label, 'x', sizeof label - 1);
    p = (struct picture){.name = "it", .title = "t", .x_label = label, .y_label = "y"};
    picture_point(picture_add(&p, "a", false), 1, 1);
    put_program(folder, "gnuplot", "#!/bin/sh\nexit 1\n");
    assert_false(picture_write(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bars_of_series_stand_beside_one_another),
        cmocka_unit_test(test_lines_and_what_is_predicted_have_one_colour),
        cmocka_unit_test(test_without_points_there_is_no_picture),
        cmocka_unit_test(test_a_figure_outlives_a_gnuplot_that_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
