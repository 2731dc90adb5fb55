/*
 * tests/model/test_blocks.c - what a block of each quantised type says, against values that the
 * `gguf` Python package read from the same bytes (tests/oracle/quant_blocks.py).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/embed.h"
#include "base/half.h"
#include "model/blocks.h"

HILL_EMBED(quant_blocks, "tests/model/quant_blocks.bin");

#define END 0xffffffffu

struct record {
    uint32_t type, n_blocks, n_bytes, n_values;
};

/* Every value, bit by bit: both sides compute in F32, in one order. */
static void values_are_those_of_the_gguf_package(void **state)
{
    (void)state;
    const char *at = quant_blocks;
    uint32_t types = 0;
    for (struct record r; memcpy(&r, at, sizeof r), r.type != END; types++) {
        const struct block_format *format = block_format(r.type);
        assert_non_null(format);
        assert_int_equal(r.n_bytes, r.n_blocks * format->bytes);
        assert_int_equal(r.n_values, r.n_blocks * format->items);
        at += sizeof r;
        float *got = malloc(r.n_values * sizeof *got);
        block_floats(format, (const uint8_t *)at, r.n_values, got);
        at += r.n_bytes;
        for (uint32_t i = 0; i < r.n_values; i++) {
            float want;
            memcpy(&want, at + 4 * i, 4);
            if (got[i] != want) /* 0 and -0 are the same value */
                fail_msg("%s: value %u is %.9g, not %.9g", format->name, i, got[i], want);
        }
        at += 4 * r.n_values;
        free(got);
    }
    assert_int_equal(types, 12);
}

/* The parts are what the value is made of, and every code is in its range. */
static void parts_make_the_value(void **state)
{
    (void)state;
    const char *at = quant_blocks;
    for (struct record r; memcpy(&r, at, sizeof r), r.type != END;) {
        const struct block_format *f = block_format(r.type);
        at += sizeof r;
        for (uint32_t b = 0; b < r.n_blocks; b++) {
            struct block_parts p;
            const uint8_t *block = (const uint8_t *)at + b * f->bytes;
            float values[BLOCK_ITEMS_MAX];
            block_split(f, block, &p);
            block_floats(f, block, f->items, values);
            for (uint32_t i = 0; i < f->items; i++) {
                assert_true(p.codes[i] < 1u << f->bits);
                double level = f->table ? f->table[p.codes[i]] : p.codes[i] - f->zero;
                double want = (double)half_to_float(p.d) * p.scale[i / f->sub_items] * level +
                              (double)f->min_sign * half_to_float(p.dmin) * p.min[i / f->sub_items];
                double error = want - values[i];
                assert_true(error <= 2e-5 && error >= -2e-5);
            }
        }
        at += r.n_bytes + 4 * r.n_values;
    }
}

static void types_have_names(void **state)
{
    (void)state;
    assert_string_equal(block_type_name(12), "Q4_K");
    assert_string_equal(block_type_name(16), "IQ2_XXS");
    assert_string_equal(block_type_name(4711), "unknown");
    assert_null(block_format(16));
    assert_int_equal(block_format(0)->items, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_gguf_package),
        cmocka_unit_test(parts_make_the_value),
        cmocka_unit_test(types_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
