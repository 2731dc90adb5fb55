/* tests/bench/test_kept_rounds.c - which rounds in the file are a test's own. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/kept_rounds.h"

static char path[64];
static struct bench_samples samples[KEPT_METHODS_MAX];
static char commits[256];

static int make_file(void **unused)
{
    (void)unused;
    snprintf(path, sizeof path, "/tmp/hill-kept-XXXXXX");
    int fd = mkstemp(path);
    setenv("BENCH_COMMIT", "abc", 1);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **unused)
{
    (void)unused;
    return unlink(path);
}

static struct kept_test test_of(const char *name, const char *settings, uint32_t n)
{
    return (struct kept_test){path, name, settings, n};
}

static void test_rounds_come_back_in_order_with_their_commits(void **unused)
{
    (void)unused;
    const struct kept_test t = test_of("a, 512", "-c 1", 2);
    kept_rounds_add(&t, (const double[]){3.5, 4});
    setenv("BENCH_COMMIT", "def", 1);
    kept_rounds_add(&t, (const double[]){1.25, 2});
    assert_int_equal(kept_rounds_load(&t, 7, samples, commits), 2);
    assert_true(samples[0].count == 2 && samples[0].values[0] == 3.5);
    assert_true(samples[0].values[1] == 1.25 && samples[1].values[1] == 2);
    assert_string_equal(commits, "abc, def");
    assert_int_equal(kept_rounds_load(&t, 1, samples, NULL), 1); /* no more than asked for */
    assert_true(samples[0].values[0] == 3.5);
}

static void test_other_tests_settings_and_peers_do_not_count(void **unused)
{
    (void)unused;
    const struct kept_test t = test_of("a", "-c 1", 1), name = test_of("b", "-c 1", 1),
                           settings = test_of("a", "-c 2", 1), peers = test_of("a", "-c 1", 2);
    kept_rounds_add(&name, (const double[]){1});
    kept_rounds_add(&settings, (const double[]){2});
    kept_rounds_add(&peers, (const double[]){3, 3});
    assert_int_equal(kept_rounds_load(&t, 7, samples, commits), 0);
    assert_string_equal(commits, "");
    kept_rounds_add(&t, (const double[]){4});
    assert_int_equal(kept_rounds_load(&t, 7, samples, NULL), 1);
    assert_true(samples[0].values[0] == 4);
}

static void test_a_damaged_line_is_passed_over(void **unused)
{
    (void)unused;
    const struct kept_test t = test_of("a", "", 1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"test\":\"a\",\"settings\":\"\",\"values\":[1\n"
          "{\"test\":\"a\",\"settings\":\"\",\"values\":[\"1\"]}\n\n[]\n",
          f);
    fclose(f);
    kept_rounds_add(&t, (const double[]){5});
    assert_int_equal(kept_rounds_load(&t, 7, samples, NULL), 1);
    assert_true(samples[0].values[0] == 5);
}

static void test_a_test_is_forgotten_and_others_stay(void **unused)
{
    (void)unused;
    const struct kept_test a = test_of("a", "1", 1), b = test_of("b", "1", 1);
    kept_rounds_add(&a, (const double[]){1});
    kept_rounds_add(&b, (const double[]){2});
    const struct kept_test other = test_of("a", "2", 1);
    kept_rounds_drop(&other); /* whatever the settings */
    assert_int_equal(kept_rounds_load(&a, 7, samples, NULL), 0);
    assert_int_equal(kept_rounds_load(&b, 7, samples, NULL), 1);
}

/* A commit that is the beginning of one that was noted is another one. */
static void test_commits_are_compared_whole(void **unused)
{
    (void)unused;
    const struct kept_test t = test_of("a", "", 1);
    const char *const at[] = {"abcd", "abc", "abcd with uncommitted changes", "abcd", "abc"};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        setenv("BENCH_COMMIT", at[i], 1);
        kept_rounds_add(&t, (const double[]){1});
    }
    assert_int_equal(kept_rounds_load(&t, 7, samples, commits), 5);
    assert_string_equal(commits, "abcd, abc, abcd with uncommitted changes");
}

static void test_commits_of_several_tests_are_noted_once(void **unused)
{
    (void)unused;
    char all[256] = "", longest[300];
    kept_rounds_note_commits(all, sizeof all, "abcd, ef");
    kept_rounds_note_commits(all, sizeof all, "abc, ef, abcd");
    kept_rounds_note_commits(all, sizeof all, "");
    assert_string_equal(all, "abcd, ef, abc");
    memset(longest, 'x', sizeof longest);
    longest[299] = 0;
    kept_rounds_note_commits(all, sizeof all, longest); /* has no room */
    assert_string_equal(all, "abcd, ef, abc");
}

static void test_without_a_file_there_are_none(void **unused)
{
    (void)unused;
    const struct kept_test t = {"/tmp/hill-kept-not-there/x", "a", "", 1};
    kept_rounds_drop(&t);
    assert_int_equal(kept_rounds_load(&t, 7, samples, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rounds_come_back_in_order_with_their_commits,
                                        make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_other_tests_settings_and_peers_do_not_count, make_file,
                                        remove_file),
        cmocka_unit_test_setup_teardown(test_a_damaged_line_is_passed_over, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_a_test_is_forgotten_and_others_stay, make_file,
                                        remove_file),
        cmocka_unit_test_setup_teardown(test_commits_are_compared_whole, make_file, remove_file),
        cmocka_unit_test(test_commits_of_several_tests_are_noted_once),
        cmocka_unit_test(test_without_a_file_there_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
