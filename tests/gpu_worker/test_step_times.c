/* tests/gpu_worker/test_step_times.c - medians of steps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_worker/step_times.h"

static void test_no_step_has_no_time(void **unused)
{
    (void)unused;
    struct step_times t = {0};
    assert_true(step_times_token_ms(&t) == 0);
    assert_true(step_times_idle_ms(&t) == 0);
}

static void test_one_slow_step_does_not_count(void **unused)
{
    (void)unused;
    struct step_times t = {0};
    const int64_t tokens[] = {4000000, 900000000, 2000000, 3000000};
    for (uint32_t i = 0; i < 4; i++)
        step_times_add(&t, tokens[i], tokens[i] / 2);
    assert_true(step_times_token_ms(&t) == 3.5);
    assert_true(step_times_idle_ms(&t) == 1.75);
    step_times_add(&t, 1000000, 0);
    assert_true(step_times_token_ms(&t) == 3);
}

static void test_the_newest_steps_are_kept(void **unused)
{
    (void)unused;
    struct step_times t = {0};
    for (uint32_t i = 0; i < STEP_TIMES; i++)
        step_times_add(&t, 8000000, 1000000);
    for (uint32_t i = 0; i < STEP_TIMES / 2 + 1; i++)
        step_times_add(&t, 2000000, 500000);
    assert_true(step_times_token_ms(&t) == 2);
    assert_true(step_times_idle_ms(&t) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_step_has_no_time),
        cmocka_unit_test(test_one_slow_step_does_not_count),
        cmocka_unit_test(test_the_newest_steps_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
