/*
 * test_mass.c - attention mass against a double-precision oracle; every path, order of arrival and
 * cut into blocks gives the same bits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/mass.h"
#include "tests/draws.h"
#include "tests/kv/half.h"

static float uniform(float from, float to)
{
    return from + (to - from) * (float)draw(1u << 20) / (float)(1u << 20);
}

struct scene {
    struct kv_geometry g;
    uint32_t n, stride;
    float *q, *prepared, *rows, *max, *sum, *scale, *mass;
    uint16_t *keys;
    uint32_t *positions;
};

static float *floats(uint64_t n)
{
    float *out = aligned_alloc(64, (n * sizeof *out + 63) / 64 * 64);
    assert_non_null(out);
    memset(out, 0xff, n * sizeof *out);
    return out;
}

static void scene_open(struct scene *s, struct kv_geometry g, uint32_t n)
{
    uint32_t row = kv_mass_row(&g), blocks = n / KV_MASS_BLOCK + 1;
    *s = (struct scene){.g = g, .n = n, .stride = kv_entry_bytes(&g) / 2};
    s->q = floats(g.n_heads * g.head_dim);
    s->prepared = floats(kv_mass_query_floats(&g));
    s->rows = floats((uint64_t)n * row);
    s->max = floats((uint64_t)blocks * row);
    s->sum = floats((uint64_t)blocks * row);
    s->scale = floats(row);
    s->mass = floats(n);
    s->keys = calloc((size_t)n * s->stride, 2);
    s->positions = calloc(n, sizeof *s->positions);
    for (uint32_t i = 0; i < g.n_heads * g.head_dim; i++)
        s->q[i] = uniform(-3, 3);
    for (uint64_t i = 0; i < (uint64_t)n * s->stride; i++) /* up to 2 in size; some tiny */
        s->keys[i] = (uint16_t)((draw(2) << 15) | draw(draw(20) ? 0x4000 : 0x400));
    for (uint32_t i = 0; i < n; i++)
        s->positions[i] = i;
}

static void scene_close(struct scene *s)
{
    free(s->q);
    free(s->prepared);
    free(s->rows);
    free(s->max);
    free(s->sum);
    free(s->scale);
    free(s->mass);
    free(s->keys);
    free(s->positions);
}

/* All of it; keys in chunks in a random order. */
static void work_out(struct scene *s, const struct kv_mass_ops *ops)
{
    uint32_t row = kv_mass_row(&s->g), blocks = (s->n + KV_MASS_BLOCK - 1) / KV_MASS_BLOCK;
    uint32_t chunk = 1 + draw(90), n_chunks = (s->n + chunk - 1) / chunk;
    uint32_t turn = draw(n_chunks);
    memset(s->rows, 0xff, (size_t)s->n * row * sizeof *s->rows);
    kv_mass_query(&s->g, s->q, s->prepared);
    for (uint32_t i = 0; i < n_chunks; i++) {
        uint32_t first = (n_chunks - 1 - (i + turn) % n_chunks) * chunk;
        uint32_t n = s->n - first < chunk ? s->n - first : chunk;
        ops->logits(&s->g, s->prepared, s->keys + (size_t)first * s->stride, s->stride, n,
                    s->positions + first, s->n, s->rows);
    }
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t n = s->n - b * KV_MASS_BLOCK;
        ops->maximum(s->rows + (size_t)b * KV_MASS_BLOCK * row, row,
                     n < KV_MASS_BLOCK ? n : KV_MASS_BLOCK, s->max + b * row);
    }
    kv_mass_merge_max(s->max, row, blocks);
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t n = s->n - b * KV_MASS_BLOCK;
        ops->weigh(s->rows + (size_t)b * KV_MASS_BLOCK * row, row,
                   n < KV_MASS_BLOCK ? n : KV_MASS_BLOCK, s->max, s->sum + b * row);
    }
    kv_mass_merge_sum(&s->g, s->sum, blocks, s->scale);
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t n = s->n - b * KV_MASS_BLOCK;
        ops->mass(s->rows + (size_t)b * KV_MASS_BLOCK * row, row,
                  n < KV_MASS_BLOCK ? n : KV_MASS_BLOCK, s->scale, s->mass + b * KV_MASS_BLOCK);
    }
}

static void oracle(const struct scene *s, double *mass)
{
    uint32_t group = s->g.n_heads / s->g.n_kv_heads, d = s->g.head_dim;
    double *logit = calloc(s->n, sizeof *logit);
    memset(mass, 0, s->n * sizeof *mass);
    for (uint32_t h = 0; h < s->g.n_heads; h++) {
        double most = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < s->n; t++) {
            double dot = 0;
            for (uint32_t i = 0; i < d; i++)
                dot += (double)s->q[h * d + i] *
                       half_value(s->keys[(size_t)t * s->stride + h / group * d + i]);
            logit[t] = dot / sqrt(d);
            most = fmax(most, logit[t]);
        }
        for (uint32_t t = 0; t < s->n; t++)
            sum += exp(logit[t] - most);
        for (uint32_t t = 0; t < s->n; t++)
            mass[t] += exp(logit[t] - most) / sum;
    }
    free(logit);
}

static const struct kv_geometry shapes[] = {
    {1, 1, 1, 1}, {1, 4, 2, 16}, {1, 8, 4, 8}, {1, 6, 3, 20}, {1, 32, 8, 64}, {1, 17, 17, 40},
};

static void test_mass_is_the_softmax_over_all_tokens(void **unused)
{
    (void)unused;
    draws_seed(11);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct scene s;
        scene_open(&s, shapes[i], 1 + draw(700));
        double *wanted = calloc(s.n, sizeof *wanted), all = 0;
        work_out(&s, kv_mass_choose("auto"));
        oracle(&s, wanted);
        for (uint32_t t = 0; t < s.n; t++) {
            all += s.mass[t];
            if (fabs(s.mass[t] - wanted[t]) > 2e-5 * wanted[t] + 1e-12)
                fail_msg("shape %zu, token %u: %g, wanted %g", i, t, s.mass[t], wanted[t]);
        }
        assert_true(fabs(all - s.g.n_heads) < 1e-3 * s.g.n_heads);
        free(wanted);
        scene_close(&s);
    }
}

static void test_paths_and_orders_give_the_same_bits(void **unused)
{
    static const char *const names[] = {"reference", "avx2", "avx512", "auto"};
    (void)unused;
    draws_seed(12);
    for (uint32_t round = 0; round < 24; round++) {
        struct scene s;
        scene_open(&s, shapes[round % 6], 1 + draw(900));
        float *first = NULL;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const struct kv_mass_ops *ops = kv_mass_choose(names[i]);
            if (!ops)
                continue;
            work_out(&s, ops);
            if (!first) {
                first = floats(s.n);
                memcpy(first, s.mass, s.n * sizeof *first);
            }
            if (memcmp(first, s.mass, s.n * sizeof *first) != 0)
                fail_msg("round %u: path %s differs", round, names[i]);
        }
        free(first);
        scene_close(&s);
    }
}

static void test_what_is_no_number_stays_finite(void **unused)
{
    struct scene s;
    (void)unused;
    draws_seed(13);
    scene_open(&s, shapes[1], 300);
    s.q[3] = NAN;
    s.q[20] = INFINITY;
    s.keys[5] = 0x7c00;                    /* infinity */
    s.keys[s.stride + 7] = 0xfe01;         /* NaN */
    s.keys[2 * (size_t)s.stride] = 0x0001; /* the smallest */
    float *first = floats(s.n);
    work_out(&s, kv_mass_choose("reference"));
    memcpy(first, s.mass, s.n * sizeof *first);
    work_out(&s, kv_mass_choose("auto"));
    assert_memory_equal(first, s.mass, s.n * sizeof *first);
    for (uint32_t t = 0; t < s.n; t++)
        assert_true(s.mass[t] >= 0 && s.mass[t] <= 4.001f);
    free(first);
    scene_close(&s);
}

static void test_tokens_beyond_the_query_are_left_out(void **unused)
{
    struct scene s;
    (void)unused;
    draws_seed(14);
    scene_open(&s, shapes[1], 64);
    memset(s.rows, 0x55, 64 * kv_mass_row(&s.g) * sizeof *s.rows);
    kv_mass_query(&s.g, s.q, s.prepared);
    s.positions[3] = UINT32_MAX;
    kv_mass_choose("auto")->logits(&s.g, s.prepared, s.keys, s.stride, 64, s.positions, 40, s.rows);
    uint32_t row = kv_mass_row(&s.g), untouched;
    memset(&untouched, 0x55, sizeof untouched);
    for (uint32_t t = 0; t < 64; t++)
        assert_int_equal(memcmp(s.rows + t * row, &untouched, sizeof untouched) == 0,
                         t == 3 || t >= 40);
    scene_close(&s);
}

static void test_scores_are_monotone(void **unused)
{
    uint16_t before = 0;
    (void)unused;
    assert_int_equal(kv_mass_score16(0), 0);
    assert_int_equal(kv_mass_score16(NAN), 0);
    assert_int_equal(kv_mass_score16(INFINITY), 0xffff);
    assert_int_equal(kv_mass_score16(0x1.fffffep28f), 0xffff);
    for (double m = 1e-12; m < 1e10; m *= 1.0003) {
        uint16_t score = kv_mass_score16((float)m);
        assert_true(score >= before);
        before = score;
    }
    assert_true(kv_mass_score16(0.002f) > kv_mass_score16(0.00199f));
}

static void test_unknown_paths_are_none(void **unused)
{
    (void)unused;
    assert_null(kv_mass_choose("sse9"));
    assert_string_equal(kv_mass_choose("reference")->name, "reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_is_the_softmax_over_all_tokens),
        cmocka_unit_test(test_paths_and_orders_give_the_same_bits),
        cmocka_unit_test(test_what_is_no_number_stays_finite),
        cmocka_unit_test(test_tokens_beyond_the_query_are_left_out),
        cmocka_unit_test(test_scores_are_monotone),
        cmocka_unit_test(test_unknown_paths_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
