/* tests/mkmodel/test_codes.c - the two codes tell every pair of tokens apart. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/mkmodel/codes.h"

static float inner(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void match_codes_have_norm_4_and_cosine_at_most_a_quarter(void **state)
{
    (void)state;
    static float words[CODE_MATCH_TOKENS][CODE_MATCH_DIMS];
    for (uint32_t t = 0; t < CODE_MATCH_TOKENS; t++)
        code_match(t, words[t]);
    for (uint32_t a = 0; a < CODE_MATCH_TOKENS; a++) {
        assert_float_equal(inner(words[a], words[a], CODE_MATCH_DIMS), 16, 0);
        for (uint32_t b = 0; b < a; b++)
            assert_true(inner(words[a], words[b], CODE_MATCH_DIMS) <= 4);
    }
}

static void byte_match_codes_are_plus_or_minus_one(void **state)
{
    (void)state;
    float word[CODE_MATCH_DIMS];
    for (uint32_t t = 0; t < 256; t++) {
        code_match(t, word);
        for (uint32_t i = 0; i < CODE_MATCH_DIMS; i++)
            assert_true(word[i] == 1 || word[i] == -1);
    }
}

static void output_codes_have_cosine_at_most_a_quarter(void **state)
{
    (void)state;
    static float words[CODE_OUT_TOKENS][CODE_OUT_DIMS];
    for (uint32_t t = 0; t < CODE_OUT_TOKENS; t++)
        code_out(t, words[t]);
    for (uint32_t a = 0; a < CODE_OUT_TOKENS; a++) {
        assert_float_equal(inner(words[a], words[a], CODE_OUT_DIMS), 32, 0);
        for (uint32_t b = 0; b < a; b++)
            assert_true(inner(words[a], words[b], CODE_OUT_DIMS) <= 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(match_codes_have_norm_4_and_cosine_at_most_a_quarter),
        cmocka_unit_test(byte_match_codes_are_plus_or_minus_one),
        cmocka_unit_test(output_codes_have_cosine_at_most_a_quarter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
