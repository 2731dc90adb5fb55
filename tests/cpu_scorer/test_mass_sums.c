/* Tests of cpu_scorer/mass_sums.[ch]: which step's sums are where, what a death leaves, flipped
 * bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cpu_scorer/mass_sums.h"
#include "kv/plan.h"

enum { CTX = 40, PROMPT = 30, LISTS = 3, LIST = 1 };

static const struct kv_geometry geometry = {1, 2, 2, 16};
static struct mass_sums sums;

static int setup(void **state)
{
    (void)state;
    sums.stride = kv_plan_state_bytes(&geometry, KV_POLICY_H2O, CTX);
    sums.ctx_tokens = CTX;
    sums.memory = aligned_alloc(64, LISTS * sums.stride);
    memset(sums.memory, 0xa5, LISTS * sums.stride); /* another sequence's */
    mass_sums_clear(&sums, LIST);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(sums.memory);
    return 0;
}

/* What token i has after a step. */
static float value(uint32_t step, uint32_t i)
{
    return (float)(100 * step + i);
}

static void give_prompt(void)
{
    float mass[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++)
        mass[i] = value(0, i);
    mass_sums_give(&sums, LIST, 0, 12, mass);
    mass_sums_give(&sums, LIST, 12, PROMPT - 12, mass + 12);
}

static void fill(uint32_t step, float *after)
{
    for (uint32_t i = 0; i < PROMPT + step - 1; i++)
        after[i] = value(step, i);
}

static void take_step(uint32_t step)
{
    float *after = mass_sums_begin(&sums, LIST, step);
    fill(step, after);
    mass_sums_end(&sums, LIST, after, step, PROMPT + step - 1);
}

/* Of all tokens that there were before a step, those of the step before it. */
static void check_before(uint32_t step)
{
    uint32_t n;
    const float *before = mass_sums_before(&sums, LIST, step, &n);
    assert_int_equal(n, step > 1 ? PROMPT + step - 2 : PROMPT);
    for (uint32_t i = 0; i < n; i++)
        assert_true(before[i] == value(step - 1, i));
}

static void each_step_has_the_sums_of_the_one_before(void **state)
{
    (void)state;
    uint32_t n = 1;
    assert_null(mass_sums_before(&sums, LIST, 1, &n));
    assert_int_equal(n, 0);
    give_prompt();
    for (uint32_t step = 1; step < 10; step++) {
        check_before(step);
        take_step(step);
        check_before(step); /* sent again: the same */
        take_step(step);
    }
    float newest[CTX];
    mass_sums_read(&sums, LIST, 20, CTX - 20, newest);
    for (uint32_t i = 20; i < CTX; i++)
        assert_true(newest[i - 20] == (i < PROMPT + 8 ? value(9, i) : 0));
    for (uint64_t i = 0; i < sums.stride; i++) { /* the lists beside it */
        assert_int_equal(sums.memory[i], 0xa5);
        assert_int_equal(sums.memory[2 * sums.stride + i], 0xa5);
    }
}

static void what_is_no_mass_counts_as_none(void **state)
{
    (void)state;
    const float mass[] = {NAN, -1, INFINITY, 2};
    float read[4];
    mass_sums_give(&sums, LIST, 0, 4, mass);
    mass_sums_read(&sums, LIST, 0, 4, read);
    for (int i = 0; i < 4; i++)
        assert_true(read[i] == (i == 3 ? 2 : 0));
}

/* Killed in step 9, before its sums count or after: the three steps before it are there. */
static void a_step_that_is_there_is_gone_on_with(void **state)
{
    (void)state;
    for (uint32_t last = 6; last < 10; last++)
        for (int whole = 0; whole < 2; whole++) {
            mass_sums_clear(&sums, LIST);
            give_prompt();
            for (uint32_t step = 1; step < 9; step++)
                take_step(step);
            fill(9, mass_sums_begin(&sums, LIST, 9));
            if (whole)
                take_step(9);
            bool there = last < 9 || whole;
            uint32_t stands = there ? last : 8;
            assert_int_equal(mass_sums_adopt(&sums, LIST, last), 0);
            for (uint32_t step = stands + 1; step < stands + 6; step++) { /* and on */
                check_before(step);
                take_step(step);
            }
        }
    assert_int_equal(mass_sums_adopt(&sums, LIST, 2), HILL_E_DAMAGED); /* long gone */
}

static void flipped_bits_are_found(void **state)
{
    (void)state;
    give_prompt();
    take_step(1);
    take_step(2);
    uint8_t *whole = malloc(sums.stride);
    memcpy(whole, sums.memory + LIST * sums.stride, sums.stride);
    uint32_t found = 0;
    for (uint64_t bit = 0; bit < 8 * sums.stride; bit++) {
        sums.memory[LIST * sums.stride + bit / 8] ^= (uint8_t)(1 << bit % 8);
        int rc = mass_sums_adopt(&sums, LIST, 2);
        assert_true(rc == 0 || rc == HILL_E_DAMAGED);
        found += rc != 0;
        if (rc == 0)
            check_before(3); /* a bit of what nobody has written */
        memcpy(sums.memory + LIST * sums.stride, whole, sums.stride);
    }
    /* of the prompt and both steps: their tokens, how many they are, whose they are, the check; and
     * of the place that is free, that it has none */
    assert_int_equal(found, 32 * (PROMPT + PROMPT + PROMPT + 1) + 3 * 128 + 64);
    free(whole);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(each_step_has_the_sums_of_the_one_before),
        T(what_is_no_mass_counts_as_none),
        T(a_step_that_is_there_is_gone_on_with),
        T(flipped_bits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
