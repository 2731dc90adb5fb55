/*
 * tests/filter.h - HILL_TEST_FILTER=PATTERN in the environment: only those tests of the program
 * (* and ? as in a shell). A rig that every test of a device shares includes this once.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>

__attribute__((constructor)) static void filter_tests(void)
{
    cmocka_set_test_filter(getenv("HILL_TEST_FILTER"));
}
