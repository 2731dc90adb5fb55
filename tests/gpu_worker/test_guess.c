/*
 * tests/gpu_worker/test_guess.c - the guessed queries of a step: against norm, product and rotation
 * in double; and that guessing changes no other bit, nor do the other rows of a step change a
 * guess.
 *
 * Tokens here attend to themselves alone: where their entries come from is test_engine.c's.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/reference.h"

#define ROWS   3u
#define LAYERS 4u

static const struct random_shape base_shape = RANDOM_SHAPE_SMALL(LAYERS);

static const struct engine_row all_rows[ROWS] = {{0, 7, 5}, {1, 40, 0}, {2, 99, 31}};

/* What a step gave out: [rows][LAYERS][q], and the logits. */
struct result {
    float *q, *guess, *logits;
    uint32_t q_dims, n_vocab;
};

static void result_free(struct result *r)
{
    free(r->q);
    free(r->guess);
    free(r->logits);
}

/* One step of the rows, guessing from layer `from` on (0: never). */
static void step(struct result *out, const struct random_model *m, bool shares_memory,
                 uint32_t n_rows, const struct engine_row *rows, uint32_t from)
{
    struct hill_why why = {0};
    struct engine *engine = make_engine_on(m, !shares_memory);
    uint32_t q_dims = m->shape.n_heads * m->shape.head_dim, layers = m->shape.n_layers;
    uint8_t *entry = calloc(4ull * m->shape.n_kv_heads, m->shape.head_dim);
    *out = (struct result){.q = calloc(n_rows * layers * q_dims, 4),
                           .guess = calloc(n_rows * layers * q_dims, 4),
                           .logits = calloc(n_rows * m->shape.n_vocab, 4),
                           .q_dims = q_dims,
                           .n_vocab = m->shape.n_vocab};
    RUN_CHECK(engine_configure(engine, 16, 64, ROWS, &why));
    RUN_CHECK(engine_guess_from(engine, from, &why));
    RUN_CHECK(engine_step_begin(engine, n_rows, rows, &why));
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            RUN_CHECK(
                engine_step_query(engine, l, r, out->q + (r * layers + l) * q_dims, entry, &why));
            assert_int_equal(engine_guesses(engine, l + 1),
                             from && l + 1 >= from && l + 1 < layers);
            if (engine_guesses(engine, l + 1))
                RUN_CHECK(engine_step_guess(engine, l + 1, r,
                                            out->guess + (r * layers + l + 1) * q_dims, &why));
            RUN_CHECK(engine_step_attend(engine, l, r, 0, NULL, &why));
        }
        RUN_CHECK(engine_step_run(engine, l, &why));
    }
    for (uint32_t r = 0; r < n_rows; r++)
        RUN_CHECK(engine_step_logits(engine, r, out->logits + r * m->shape.n_vocab, &why));
    engine_destroy(engine);
    free(entry);
}

static void assert_near(const float *got, const double *want, uint32_t n, uint32_t layer)
{
    double largest = 0, error = 0;
    for (uint32_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(want[i]));
        error = fmax(error, fabs(got[i] - want[i]));
    }
    if (!(largest > 0 && error <= 3e-4 * largest))
        fail_msg("guess of layer %u: off by %g of %g", layer, error, largest);
}

/* The rows' guesses of layers `from` on against the oracle. */
static void compare_with_oracle(const struct random_shape *shape, bool shares_memory, uint32_t from,
                                uint64_t seed)
{
    struct random_model m;
    struct result got;
    random_model_make(&m, shape, seed);
    uint32_t q_dims = shape->n_heads * shape->head_dim;
    uint8_t seen[64] = {0}; /* of the tokens before: none */
    step(&got, &m, shares_memory, ROWS, all_rows, from);
    for (uint32_t r = 0; r < ROWS; r++) {
        struct reference reference;
        reference_init(&reference, &m, 64);
        reference.guesses = calloc((size_t)shape->n_layers * q_dims, sizeof(double));
        reference.n_tokens = all_rows[r].position;
        reference_token(&reference, all_rows[r].token, seen);
        for (uint32_t l = from; l < shape->n_layers; l++)
            assert_near(got.guess + (r * shape->n_layers + l) * q_dims,
                        reference.guesses + (size_t)l * q_dims, q_dims, l);
        reference_free(&reference);
    }
    result_free(&got);
    random_model_free(&m);
}

static void guesses_are_the_next_layers_queries_of_this_input(void **state)
{
    (void)state;
    compare_with_oracle(&base_shape, true, 1, 1);
}

/* The last panel of the queries holds keys too, and rotation stops within a head. */
static void queries_that_end_within_a_panel(void **state)
{
    (void)state;
    const struct random_shape s = RANDOM_SHAPE_ODD(LAYERS);
    compare_with_oracle(&s, true, 1, 2);
}

static void half_precision_weights(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_F16;
    compare_with_oracle(&s, true, 1, 3);
}

static void exact_layers_are_not_guessed(void **state)
{
    (void)state;
    compare_with_oracle(&base_shape, true, 3, 4);
}

static void memory_of_its_own(void **state)
{
    (void)state;
    compare_with_oracle(&base_shape, false, 1, 5);
}

static void guessing_changes_no_other_bit(void **state)
{
    (void)state;
    struct random_model m;
    random_model_make(&m, &base_shape, 7);
    for (int shares = 0; shares < 2; shares++) {
        struct result with, without;
        step(&with, &m, shares, ROWS, all_rows, 1);
        step(&without, &m, shares, ROWS, all_rows, 0);
        assert_memory_equal(with.q, without.q, 4ull * ROWS * LAYERS * with.q_dims);
        assert_memory_equal(with.logits, without.logits, 4ull * ROWS * with.n_vocab);
        result_free(&with);
        result_free(&without);
    }
    random_model_free(&m);
}

static void other_rows_change_no_bit_of_a_guess(void **state)
{
    (void)state;
    struct random_model m;
    struct result all;
    random_model_make(&m, &base_shape, 8);
    step(&all, &m, true, ROWS, all_rows, 1);
    for (uint32_t r = 0; r < ROWS; r++) {
        struct result alone;
        step(&alone, &m, true, 1, &all_rows[r], 1);
        assert_memory_equal(alone.guess, all.guess + r * LAYERS * all.q_dims,
                            4ull * LAYERS * all.q_dims);
        result_free(&alone);
    }
    result_free(&all);
    random_model_free(&m);
}

static void out_of_order_is_refused(void **state)
{
    (void)state;
    struct hill_why why = {0};
    struct random_model m;
    float q[64];
    uint8_t entry[256];
    random_model_make(&m, &base_shape, 9);
    struct engine *engine = make_engine(&m);
    RUN_CHECK(engine_configure(engine, 16, 64, ROWS, &why));
    RUN_CHECK(engine_guess_from(engine, 2, &why));
    RUN_CHECK(engine_step_begin(engine, 1, all_rows, &why));
    assert_int_equal(engine_step_guess(engine, 1, 0, q, &why), HILL_E_INVALID); /* exact */
    RUN_CHECK(engine_step_query(engine, 0, 0, q, entry, &why));
    assert_int_equal(engine_step_guess(engine, 2, 0, q, &why), HILL_E_INVALID); /* too early */
    RUN_CHECK(engine_step_attend(engine, 0, 0, 0, NULL, &why));
    RUN_CHECK(engine_step_run(engine, 0, &why));
    assert_int_equal(engine_step_guess(engine, 2, 0, q, &why), HILL_E_INVALID); /* not awaited */
    RUN_CHECK(engine_step_query(engine, 1, 0, NULL, entry, &why));
    RUN_CHECK(engine_step_guess(engine, 2, 0, q, &why));
    assert_int_equal(engine_step_guess(engine, 2, 1, q, &why), HILL_E_INVALID); /* no such row */
    engine_destroy(engine);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_the_next_layers_queries_of_this_input),
        cmocka_unit_test(queries_that_end_within_a_panel),
        cmocka_unit_test(half_precision_weights),
        cmocka_unit_test(exact_layers_are_not_guessed),
        cmocka_unit_test(memory_of_its_own),
        cmocka_unit_test(guessing_changes_no_other_bit),
        cmocka_unit_test(other_rows_change_no_bit_of_a_guess),
        cmocka_unit_test(out_of_order_is_refused),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
