/*
 * tests/gpu_worker/test_weigh.c - what a prompt's queries attend to, summed (prefill_mass.c):
 * against softmax weights in double; that chunks and other memory change no bit of the sums, and
 * summing changes no bit of anything else.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/reference.h"

static const struct random_shape base_shape = RANDOM_SHAPE_SMALL(3);

/* A prompt of n tokens in chunks; the run is the caller's to finish. */
static struct engine *start(struct engine_run *run, const struct random_model *m,
                            const uint32_t *tokens, uint32_t n, uint32_t batch, bool weighs,
                            bool own_memory)
{
    struct engine *engine = make_engine_on(m, own_memory);
    run_init(run, engine, batch, n + 8);
    if (weighs)
        run->masses = calloc((size_t)m->hp.n_layers * run->capacity, sizeof *run->masses);
    run_prefill(run, tokens, n);
    return engine;
}

static void finish(struct engine_run *run, struct engine *engine)
{
    run_finish(run);
    engine_destroy(engine);
}

/* A layer's sums add up to a 1 for each query and head; each is near the oracle's. */
static void compare_with_reference(const struct random_shape *shape, uint32_t n, uint32_t batch,
                                   uint64_t seed)
{
    uint32_t tokens[700];
    struct random_model m;
    struct reference reference;
    struct engine_run run;
    random_model_make(&m, shape, seed);
    make_tokens(tokens, n, shape->n_vocab, 38);
    reference_init(&reference, &m, n);
    reference.masses = calloc((size_t)shape->n_layers * n, sizeof *reference.masses);
    for (uint32_t i = 0; i < n; i++)
        reference_token(&reference, tokens[i], NULL);
    struct engine *engine = start(&run, &m, tokens, n, batch, true, false);
    for (uint32_t layer = 0; layer < shape->n_layers; layer++) {
        const float *got = run.masses + (size_t)layer * run.capacity;
        const double *want = reference.masses + (size_t)layer * n;
        double sum = 0;
        for (uint32_t t = 0; t < n; t++) {
            sum += got[t];
            if (!(fabs(got[t] - want[t]) <= 2e-3 * want[t] + 1e-5))
                fail_msg("layer %u, token %u: %g, not %g", layer, t, got[t], want[t]);
        }
        assert_true(fabs(sum - (double)n * shape->n_heads) < 1e-3 * n * shape->n_heads);
    }
    finish(&run, engine);
    reference_free(&reference);
    random_model_free(&m);
}

static void sums_are_the_softmax_weights(void **state)
{
    (void)state;
    compare_with_reference(&base_shape, 200, 64, 1);
    compare_with_reference(&base_shape, 1, 64, 2);
    compare_with_reference(&base_shape, 65, 7, 3);
}

static void of_every_shape(void **state)
{
    (void)state;
    struct random_shape s = RANDOM_SHAPE_ODD(3);
    compare_with_reference(&s, 90, 40, 4);
    s = base_shape;
    s.n_heads = s.n_kv_heads = 3;
    s.head_dim = s.rope_dims = 80;
    s.n_layers = 1; /* the last layer is the first */
    compare_with_reference(&s, 150, 64, 5);
    compare_with_reference(&s, 600, 512, 6);
}

static void chunks_and_memory_change_no_bit(void **state)
{
    enum { N = 301 };
    static const uint32_t batches[] = {N, 64, 25, 13};
    (void)state;
    uint32_t tokens[N];
    struct random_model m;
    struct engine_run runs[2];
    random_model_make(&m, &base_shape, 7);
    make_tokens(tokens, N, m.hp.n_vocab, 38);
    struct engine *first = start(&runs[0], &m, tokens, N, 128, true, false);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct engine *other = start(&runs[1], &m, tokens, N, batches[i], true, i == 1);
        assert_memory_equal(runs[0].masses, runs[1].masses,
                            (size_t)m.hp.n_layers * runs[0].capacity * sizeof(float));
        finish(&runs[1], other);
    }
    finish(&runs[0], first);
    random_model_free(&m);
}

static void summing_changes_no_other_bit(void **state)
{
    enum { N = 150 };
    (void)state;
    uint32_t tokens[N];
    struct random_model m;
    struct engine_run runs[2];
    struct engine *engines[2];
    random_model_make(&m, &base_shape, 8);
    make_tokens(tokens, N, m.hp.n_vocab, 38);
    for (int i = 0; i < 2; i++)
        engines[i] = start(&runs[i], &m, tokens, N, 64, i == 1, false);
    assert_memory_equal(runs[0].logits, runs[1].logits, m.hp.n_vocab * sizeof(float));
    for (uint32_t layer = 0; layer < m.hp.n_layers; layer++)
        assert_memory_equal(runs[0].entries[layer], runs[1].entries[layer],
                            (size_t)N * runs[0].entry_bytes);
    for (int i = 0; i < 2; i++)
        finish(&runs[i], engines[i]);
    random_model_free(&m);
}

/* Out of order it is refused; what it takes was told before. */
static void calls_out_of_order_are_refused(void **state)
{
    enum { N = 100 };
    (void)state;
    struct hill_why why = {0};
    uint32_t tokens[N];
    float mass[N];
    struct random_model m;
    struct engine_run run;
    random_model_make(&m, &base_shape, 9);
    make_tokens(tokens, N, m.hp.n_vocab, 38);
    struct engine *engine = start(&run, &m, tokens, N, 64, false, false);
    assert_int_equal(engine_prefill_weigh(engine, &why), HILL_E_INVALID); /* units are queued */
    assert_int_equal(engine_prefill_mass(engine, 2, 0, N, mass, &why), HILL_E_INVALID);
    finish(&run, engine);
    engine = start(&run, &m, tokens, N, 64, true, false);
    assert_int_equal(engine_prefill_mass(engine, 2, 0, N, mass, &why), 0);
    assert_int_equal(engine_prefill_mass(engine, 2, 1, N, mass, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_mass(engine, 2, 0, 0, mass, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_mass(engine, 3, 0, 1, mass, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_mass(engine, 0, 0, 1, mass, &why), HILL_E_INVALID); /* gone */
    uint64_t told = engine_kv_bytes_needed(engine, 0, N) + engine_mass_bytes_needed(engine, N);
    assert_true(engine_kv_bytes(engine) <= told && engine_kv_bytes(engine) + 1536 >= told);
    finish(&run, engine);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_softmax_weights),
        cmocka_unit_test(of_every_shape),
        cmocka_unit_test(chunks_and_memory_change_no_bit),
        cmocka_unit_test(summing_changes_no_other_bit),
        cmocka_unit_test(calls_out_of_order_are_refused),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
