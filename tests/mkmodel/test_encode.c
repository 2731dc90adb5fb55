/* tests/mkmodel/test_encode.c - rounding of floats into GGUF's tensor types. */
#include "tests/mkmodel/small_gguf.h"

#include "base/half.h"
#include "tools/mkmodel/encode.h"

static uint64_t random_state = 20240229;

static uint32_t next_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float half_of(uint16_t bits)
{
    uint8_t bytes[2];
    memcpy(bytes, &bits, 2);
    return small_half(bytes);
}

static void every_half_comes_back_unchanged(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++)
        if ((bits & 0x7fff) <= 0x7c00)
            assert_int_equal(half_from_float(half_of((uint16_t)bits)), bits);
}

/* Halfway values between neighbours go to the even one, anything beside them to the nearer. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint16_t bits = 0; bits < 0x7bff; bits++) {
        const float low = half_of(bits), high = half_of((uint16_t)(bits + 1));
        const float middle = (low + high) / 2; /* exact in a float */
        assert_int_equal(half_from_float(middle), bits % 2 == 0 ? bits : bits + 1);
        assert_int_equal(half_from_float(nextafterf(middle, 0)), bits);
        assert_int_equal(half_from_float(nextafterf(middle, INFINITY)), bits + 1);
        assert_int_equal(half_from_float(-nextafterf(middle, 0)), 0x8000 | bits);
    }
    assert_int_equal(half_from_float(65519.9f), 0x7bff);
    assert_int_equal(half_from_float(65520.0f), 0x7c00);
    assert_int_equal(half_from_float(-1e30f), 0xfc00);
}

static void bf16_is_the_nearest_upper_half(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++) {
        const uint32_t bits = next_bits();
        float value, back, step;
        memcpy(&value, &bits, 4);
        if (!isfinite(value) || fabsf(value) > 1e38f || fabsf(value) < 1e-30f)
            continue;
        const uint32_t wide = (uint32_t)bf16_from_float(value) << 16;
        memcpy(&back, &wide, 4);
        step = ldexpf(1, ilogbf(value) - 7);
        assert_true(fabsf(back - value) <= step / 2);
    }
}

static void q8_0_errs_by_at_most_half_a_step(void **state)
{
    (void)state;
    float values[96];
    uint8_t out[3 * 34];
    for (int i = 0; i < 96; i++)
        values[i] = i < 64 ? (float)(int32_t)next_bits() * 1e-9f : 0;
    assert_int_equal(encode_row(GGUF_TENSOR_Q8_0, values, 96, out), sizeof out);
    for (int i = 0; i < 96; i++) {
        const uint8_t *block = out + i / 32 * 34;
        const float scale = small_half(block);
        const float back = scale * (float)(int8_t)block[2 + i % 32];
        /* half a quantum, and the scale's own rounding (2^-11) over 127 quanta */
        assert_true(fabsf(back - values[i]) <= scale * (0.5f + 127.0f / 2048) * 1.001f);
    }
    assert_true(small_half(out) > 0);
    assert_true(small_half(out + 68) == 0);
}

/* Sub-blocks of four sizes in a block: a code errs by half a step (IQ4: of its widest), and the
 * scales and mins of small ones are rounded to the units of large ones. What lies in a wrong place
 * errs by as much as the largest value. All codes occur. */
static void quantised_blocks_err_by_a_step(void **state)
{
    (void)state;
    static const struct {
        enum gguf_tensor_type type;
        float most; /* error beside the largest value */
    } types[] = {{GGUF_TENSOR_Q4_0, 0.15f},   {GGUF_TENSOR_Q4_1, 0.07f},  {GGUF_TENSOR_Q5_0, 0.07f},
                 {GGUF_TENSOR_Q5_1, 0.04f},   {GGUF_TENSOR_Q2_K, 0.75f},  {GGUF_TENSOR_Q3_K, 0.35f},
                 {GGUF_TENSOR_Q4_K, 0.16f},   {GGUF_TENSOR_Q5_K, 0.13f},  {GGUF_TENSOR_Q6_K, 0.03f},
                 {GGUF_TENSOR_IQ4_NL, 0.15f}, {GGUF_TENSOR_IQ4_XS, 0.17f}};
    enum { N = 4 * 256 };
    for (unsigned t = 0; t < sizeof types / sizeof *types; t++) {
        const struct block_format *f = block_format(types[t].type);
        float values[N], back[N];
        uint8_t out[N * 4], seen[64] = {0};
        struct block_parts parts;
        for (unsigned i = 0; i < N; i++) /* the last block is zeros */
            values[i] =
                i < N * 3 / 4 ? (float)(int32_t)next_bits() * 1e-9f / (float)(1 + i / 32 % 4) : 0;
        assert_int_equal(encode_row(types[t].type, values, N, out), N / f->items * f->bytes);
        block_floats(f, out, N, back);
        for (unsigned i = 0; i < N; i++) {
            if (!(fabsf(back[i] - values[i]) <= types[t].most * 2.15f / (float)(1 + i / 32 % 4)))
                fail_msg("%s: value %u is %g, not %g", f->name, i, back[i], values[i]);
        }
        for (unsigned b = 0; b < N / f->items; b++) {
            block_split(f, out + b * f->bytes, &parts);
            for (unsigned i = 0; i < f->items; i++)
                seen[parts.codes[i]] = 1;
        }
        for (unsigned code = 0; code < 1u << f->bits; code++)
            /* a type without mins does not reach its lowest level: its scale is for the highest */
            if (!seen[code] && (f->min_sign || f->table || code))
                fail_msg("%s: code %u is never used", f->name, code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_comes_back_unchanged),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bf16_is_the_nearest_upper_half),
        cmocka_unit_test(q8_0_errs_by_at_most_half_a_step),
        cmocka_unit_test(quantised_blocks_err_by_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
