/*
 * test_stop_strings.c - where an answer ends does not depend on how it came: random texts in random
 * pieces against a plain search of the whole text.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/stop_strings.h"

#define ROUNDS 3000

/* The first place at which some stop string ends; before the longest that ends there. */
static size_t oracle(const char *text, const struct stop_string *stops, unsigned n)
{
    size_t length = strlen(text);
    for (size_t end = 1; end <= length; end++) {
        size_t longest = 0;
        for (unsigned i = 0; i < n; i++)
            if (stops[i].bytes <= end && stops[i].bytes > longest &&
                strncmp(text + end - stops[i].bytes, stops[i].text, stops[i].bytes) == 0)
                longest = stops[i].bytes;
        if (longest)
            return end - longest;
    }
    return length;
}

static void try_one(const char *text, const struct stop_string *stops, unsigned n, unsigned *seed)
{
    struct stop_matcher matcher = {.n = n};
    struct text_buffer out = {0};
    size_t length = strlen(text), at = 0, wanted = oracle(text, stops, n);
    bool stopped = false;
    memcpy(matcher.strings, stops, n * sizeof *stops);
    while (at < length && !stopped) {
        size_t piece = (size_t)rand_r(seed) % 4;
        piece = piece < length - at ? piece : length - at;
        stopped = stop_feed(&matcher, text + at, piece, &out);
        at += piece;
        assert_true(out.length <= wanted); /* nothing of a stop string is ever out */
    }
    if (!stopped)
        stop_flush(&matcher, &out);
    assert_int_equal(out.length, wanted);
    if (wanted)
        assert_memory_equal(out.bytes, text, wanted);
    assert_int_equal(stopped, wanted < length);
    stop_finish(&matcher);
    text_finish(&out);
}

static void test_as_a_search_of_the_whole_text(void **state)
{
    (void)state;
    const char *given = getenv("HILL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 17;
    print_message("HILL_TEST_SEED=%u\n", seed);
    for (unsigned round = 0; round < ROUNDS; round++) {
        char text[40], words[4][6];
        struct stop_string stops[4];
        unsigned n = 1 + (unsigned)rand_r(&seed) % 4, length = (unsigned)rand_r(&seed) % 39;
        for (unsigned i = 0; i < length; i++)
            text[i] = (char)('a' + rand_r(&seed) % 3);
        text[length] = '\0';
        for (unsigned s = 0; s < n; s++) {
            unsigned bytes = 1 + (unsigned)rand_r(&seed) % 5;
            for (unsigned i = 0; i < bytes; i++)
                words[s][i] = (char)('a' + rand_r(&seed) % 3);
            stops[s] = (struct stop_string){words[s], bytes};
        }
        try_one(text, stops, n, &seed);
    }
}

static void test_without_stop_strings_all_goes_through(void **state)
{
    (void)state;
    struct stop_matcher matcher = {.n = 0};
    struct text_buffer out = {0};
    assert_false(stop_feed(&matcher, "abc", 3, &out));
    assert_int_equal(out.length, 3);
    text_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_a_search_of_the_whole_text),
        cmocka_unit_test(test_without_stop_strings_all_goes_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
