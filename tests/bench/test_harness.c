/* tests/bench/test_harness.c - quantiles of samples, and where texts are looked for. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

#include "tools/bench/harness.h"

static void test_a_quantile_lies_between_the_nearest_values(void **unused)
{
    (void)unused;
    double four[] = {40, 10, 30, 20}, three[] = {3, 1, 2}, one[] = {7};
    assert_true(bench_quantile(four, 4, 0.5) == 25);
    assert_true(bench_quantile(four, 4, 0.25) == 17.5);
    assert_true(bench_quantile(four, 4, 0.75) == 32.5);
    assert_true(bench_quantile(four, 4, 0) == 10 && bench_quantile(four, 4, 1) == 40);
    assert_true(bench_quantile(three, 3, 0.5) == 2 && bench_quantile(three, 3, 0.75) == 2.5);
    assert_true(bench_quantile(one, 1, 0) == 7 && bench_quantile(one, 1, 0.99) == 7);
}

static void test_the_median_of_an_even_number_is_between_the_middle_two(void **unused)
{
    (void)unused;
    struct bench_samples s = {.count = 0};
    bench_sample(&s, 4);
    bench_sample(&s, 1);
    assert_true(bench_median(&s) == 2.5);
    assert_true(bench_lowest(&s) == 1 && bench_highest(&s) == 4);
}

static void test_texts_lie_in_the_named_folder_or_below_build(void **unused)
{
    (void)unused;
    char path[512];
    setenv("BENCH_DATA", "/texts", 1);
    bench_data_file("a.txt", path);
    assert_string_equal(path, "/texts/a.txt");
    setenv("BENCH_DATA", "", 1);
    bench_data_file("a.txt", path);
    assert_string_equal(path, "build/bench/data/a.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_quantile_lies_between_the_nearest_values),
        cmocka_unit_test(test_the_median_of_an_even_number_is_between_the_middle_two),
        cmocka_unit_test(test_texts_lie_in_the_named_folder_or_below_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
