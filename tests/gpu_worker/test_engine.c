/*
 * tests/gpu_worker/test_engine.c - the engine against a plain forward pass in double, on small
 * random models of many shapes; and what must not change a bit: chunk borders, slot numbers, a
 * second run.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_worker/sampler.h"
#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/reference.h"

static const struct random_shape base_shape = RANDOM_SHAPE_SMALL(2);

/* The largest difference beside the largest logit. K or V on the edge between two halves may round
 * either way: that, and F32 sums, is what the tolerance is for. Quantised weights are multiplied
 * with activations of 8 bits, whose noise is about 1 % here; test_product has their exact bits. */
static void assert_near(const float *got, const double *want, uint32_t n, bool quantised,
                        const char *what)
{
    double largest = 0, error = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(isfinite(got[i]));
        largest = fmax(largest, fabs(want[i]));
        error = fmax(error, fabs(got[i] - want[i]));
    }
    if (!(error <= (quantised ? 0.05 : 3e-4) * largest))
        fail_msg("%s: off by %g of %g", what, error, largest);
}

/* Prefill n tokens, decode 3 more; logits against the oracle each time. */
static void compare_with_reference(const struct random_shape *shape, uint32_t n, uint32_t batch,
                                   uint64_t seed)
{
    enum { MORE = 3 };
    uint32_t tokens[700];
    struct random_model m;
    struct reference reference;
    struct engine_run run;
    bool quantised = block_format(shape->type)->bits > 0;
    random_model_make(&m, shape, seed);
    make_tokens(tokens, n + MORE, shape->n_vocab, seed);
    reference_init(&reference, &m, n + MORE);
    for (uint32_t i = 0; i < n; i++)
        reference_token(&reference, tokens[i], NULL);
    struct engine *engine = make_engine(&m);
    run_init(&run, engine, batch, n + MORE);
    run_prefill(&run, tokens, n);
    assert_near(run.logits, reference.logits, shape->n_vocab, quantised, "prefill");
    for (uint32_t i = 0; i < MORE; i++) {
        reference_token(&reference, tokens[n + i], NULL);
        run_step(&run, tokens[n + i]);
        assert_near(run.logits, reference.logits, shape->n_vocab, quantised, "decode");
    }
    run_finish(&run);
    engine_destroy(engine);
    reference_free(&reference);
    random_model_free(&m);
}

static void grouped_heads(void **state)
{
    (void)state;
    compare_with_reference(&base_shape, 75, 32, 1);
}

static void one_kv_head_of_odd_size(void **state)
{
    (void)state;
    const struct random_shape s = RANDOM_SHAPE_ODD(2);
    compare_with_reference(&s, 33, 13, 2);
}

static void every_head_its_own_keys(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.n_heads = s.n_kv_heads = 3;
    s.head_dim = s.rope_dims = 80;
    s.n_layers = 3;
    s.tied = 1;
    compare_with_reference(&s, 150, 64, 3);
}

static void heads_wider_than_the_model(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.head_dim = s.rope_dims = 256;
    s.n_heads = 2;
    s.n_kv_heads = 1;
    s.rope_base = 1e15f;
    compare_with_reference(&s, 70, 48, 4);
}

static void half_precision_weights(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_F16;
    s.n_heads = 6;
    s.head_dim = s.rope_dims = 32;
    compare_with_reference(&s, 50, 50, 5);
}

static void bfloat_weights_with_scaled_rotation(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_BF16;
    s.rope_scale = 4;
    s.rope_freqs = 1;
    compare_with_reference(&s, 40, 16, 6);
}

static void q8_0_weights(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_Q8_0;
    s.n_embd = 64;
    s.n_ff = 96;
    compare_with_reference(&s, 40, 16, 7);
}

/* q, k and v are one matrix: panels with rows of two types, one with rows of all three. */
static void types_that_meet_within_a_panel(void **state)
{
    static const uint32_t types[][PART_ATTN_NORM] = {
        {GGUF_TENSOR_Q8_0, GGUF_TENSOR_F16, GGUF_TENSOR_BF16, GGUF_TENSOR_F32, GGUF_TENSOR_F16,
         GGUF_TENSOR_Q8_0, GGUF_TENSOR_BF16},
        {GGUF_TENSOR_F16, GGUF_TENSOR_Q8_0, GGUF_TENSOR_Q8_0, GGUF_TENSOR_BF16, GGUF_TENSOR_Q8_0,
         GGUF_TENSOR_F32, GGUF_TENSOR_Q8_0},
        {GGUF_TENSOR_Q8_0, GGUF_TENSOR_F32, GGUF_TENSOR_Q8_0, GGUF_TENSOR_F16, GGUF_TENSOR_BF16,
         GGUF_TENSOR_F16, GGUF_TENSOR_Q8_0}};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct random_shape s = base_shape;
        s.type = GGUF_TENSOR_Q8_0; /* of the embedding and the output */
        s.part_types = types[i];
        s.n_embd = 64;
        s.n_ff = 96;
        s.n_heads = 4;
        s.n_kv_heads = 1;
        s.head_dim = i == 0 ? 6 : 10; /* rows 24, 6, 6; 40, 10, 10 */
        s.rope_dims = 6;
        compare_with_reference(&s, 40, 16, 20 + i);
    }
}

static void one_token_prompt(void **state)
{
    (void)state;
    compare_with_reference(&base_shape, 1, 8, 8);
}

/* More entries than one tile of the decode's list, more keys than several tiles of prefill's. */
static void long_prompt(void **state)
{
    (void)state;
    compare_with_reference(&base_shape, 600, 100, 9);
}

/* Two, since a device takes seconds to compile the kernels for each. The tests above have a head of
 * its own keys, heads of less than a vector and of whole vectors; of this seed are 9 heads of 54 on
 * 3 KV heads and 4 of 44 on 2: an even and an odd number of vectors, the last of them not full. */
static void random_shapes(void **state)
{
    (void)state;
    uint64_t seed = 20336871;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 2; i++) {
        struct random_shape s = base_shape;
        s.n_kv_heads = 1 + (uint32_t)(next_random(&seed) % 3);
        s.n_heads = s.n_kv_heads * (1 + (uint32_t)(next_random(&seed) % 3));
        s.head_dim = 2 + 2 * (uint32_t)(next_random(&seed) % 30);
        s.rope_dims = s.head_dim;
        s.n_embd = 8 + (uint32_t)(next_random(&seed) % 60);
        s.n_ff = 1 + (uint32_t)(next_random(&seed) % 90);
        s.n_vocab = 2 + (uint32_t)(next_random(&seed) % 90);
        s.type = next_random(&seed) % 2 ? GGUF_TENSOR_F16 : GGUF_TENSOR_F32;
        compare_with_reference(&s, 1 + (uint32_t)(next_random(&seed) % 90),
                               1 + (uint32_t)(next_random(&seed) % 64), seed);
    }
}

/* The first pass is what the others must be, bit by bit. */
static void keep_or_compare(float *kept, const float *logits, uint32_t n_vocab, int pass)
{
    if (pass == 0)
        memcpy(kept, logits, n_vocab * sizeof *kept);
    else
        assert_memory_equal(kept, logits, n_vocab * sizeof *kept);
}

static void run_both(const struct random_model *m, uint32_t batch_a, uint32_t batch_b, bool permute,
                     uint32_t n)
{
    uint32_t tokens[512];
    struct engine *engine = make_engine(m);
    struct engine_run run;
    float *first = calloc(2 * m->hp.n_vocab, sizeof *first);
    uint8_t *entries = NULL;
    make_tokens(tokens, n + 2, m->hp.n_vocab, 77);
    for (int pass = 0; pass < 2; pass++) {
        run_init(&run, engine, pass ? batch_b : batch_a, n + 9);
        for (uint32_t i = 0; permute && pass && i < n + 9; i++)
            run.slot_of[i] = (i * 7 + 3) % (n + 9);
        run_prefill(&run, tokens, n);
        size_t bytes = (size_t)n * run.entry_bytes;
        if (pass == 0) {
            entries = malloc(bytes);
            memcpy(entries, run.entries[m->hp.n_layers - 1], bytes);
        } else {
            assert_memory_equal(entries, run.entries[m->hp.n_layers - 1], bytes);
        }
        keep_or_compare(first, run.logits, m->hp.n_vocab, pass);
        run_step(&run, tokens[n]);
        run_step(&run, tokens[n + 1]);
        keep_or_compare(first + m->hp.n_vocab, run.logits, m->hp.n_vocab, pass);
        run_finish(&run);
    }
    free(entries);
    free(first);
    engine_destroy(engine);
}

static void chunk_borders_change_no_bit(void **state)
{
    (void)state;
    struct random_model m;
    random_model_make(&m, &base_shape, 11);
    run_both(&m, 512, 25, false, 300);
    random_model_free(&m);
}

/* A token's logits within a prompt are those of the prompt that ends there. */
static void logits_of_a_whole_prompt(void **state)
{
    enum { N = 150 };
    (void)state;
    uint32_t tokens[N];
    struct random_shape shape = base_shape;
    struct random_model m;
    struct engine_run run;
    struct hill_why why = {0};
    shape.type = GGUF_TENSOR_Q8_0;
    shape.n_embd = 64;
    shape.n_ff = 96;
    random_model_make(&m, &shape, 19);
    make_tokens(tokens, N, m.hp.n_vocab, 19);
    struct engine *engine = make_engine(&m);
    run_init(&run, engine, 64, N);
    run.whole = calloc((size_t)N * m.hp.n_vocab, sizeof *run.whole);
    run_prefill(&run, tokens, N);
    float *whole = run.whole;
    run.whole = NULL;
    for (uint32_t n = 1; n <= N; n += n % 64 < 2 ? 1 : 20) {
        run_prefill(&run, tokens, n);
        assert_memory_equal(run.logits, whole + (size_t)(n - 1) * m.hp.n_vocab,
                            m.hp.n_vocab * sizeof *whole);
        if (n > 1)
            assert_int_equal(engine_prefill_logits_of(engine, n - 2, run.logits, &why),
                             HILL_E_INVALID);
    }
    free(whole);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

static void slot_numbers_change_no_bit(void **state)
{
    (void)state;
    struct random_model m;
    random_model_make(&m, &base_shape, 12);
    run_both(&m, 64, 64, true, 293); /* 302 slots, coprime to 7 */
    random_model_free(&m);
}

/* Phase by phase, with uploads in several batches, as on a device with memory of its own: straight
 * from staging where entries lie side by side there, else through pinned memory. */
static void memory_of_its_own_changes_no_bit(void **state)
{
    enum { N = 2600, MORE = 3, CAPACITY = 2650 }; /* six batches: each half is used three times */
    (void)state;
    uint32_t *tokens = calloc(N + MORE, sizeof *tokens);
    struct random_shape shape = base_shape;
    shape.type = GGUF_TENSOR_F16;
    struct random_model m;
    random_model_make(&m, &shape, 17);
    make_tokens(tokens, N + MORE, m.hp.n_vocab, 17);
    float *first = calloc(MORE * m.hp.n_vocab, sizeof *first);
    for (int pass = 0; pass < 4; pass++) {
        struct engine *engine = make_engine_on(&m, pass > 0);
        struct engine_run run;
        run_init(&run, engine, 64, CAPACITY);
        run.order = pass > 0 ? (enum run_order)(pass - 1) : RUN_DOWN;
        assert_int_equal(run.stride, run.entry_bytes); /* else nothing goes in pieces */
        run_prefill(&run, tokens, N);
        for (uint32_t i = 0; i < MORE; i++) {
            run_step(&run, tokens[N + i]);
            keep_or_compare(first + i * m.hp.n_vocab, run.logits, m.hp.n_vocab, pass);
        }
        run_finish(&run);
        engine_destroy(engine);
    }
    free(tokens);
    free(first);
    random_model_free(&m);
}

/* A prompt in chunks of `batch`, then steps with other slots: the logits after each. */
static void run_logits(struct engine *engine, uint32_t batch, const uint32_t *tokens, uint32_t n,
                       uint32_t more, float *logits)
{
    struct engine_run run;
    run_init(&run, engine, batch, n + more);
    for (uint32_t i = 0; i < n + more; i++)
        run.slot_of[i] = (i + batch) % (n + more);
    run_prefill(&run, tokens, n);
    for (uint32_t i = 0; i <= more; i++) {
        memcpy(logits + (size_t)i * run.hp.n_vocab, run.logits, run.hp.n_vocab * sizeof *logits);
        if (i < more)
            run_step(&run, tokens[n + i]);
    }
    run_finish(&run);
}

/* The two sets of kernels agree up to rounding; chunks and slots change no bit of work groups'. */
static void work_groups_agree_with_register_tiles(void **state)
{
    enum { N = 150, MORE = 2 };
    (void)state;
    static const enum gguf_tensor_type types[] = {GGUF_TENSOR_F16, GGUF_TENSOR_Q8_0};
    uint32_t tokens[N + MORE];
    for (uint32_t i = 0; i < 2; i++) {
        struct random_shape shape = base_shape;
        struct random_model m;
        shape.type = types[i];
        shape.n_embd = 64;
        shape.n_ff = 96;
        random_model_make(&m, &shape, 30 + i);
        make_tokens(tokens, N + MORE, m.hp.n_vocab, 30 + i);
        size_t values = (size_t)(MORE + 1) * m.hp.n_vocab;
        float *tiles = calloc(3 * values, sizeof *tiles), *groups = tiles + values,
              *again = groups + values, largest = 0, error = 0;
        struct engine *engine = make_engine_with(&m, false);
        run_logits(engine, 64, tokens, N, MORE, tiles);
        engine_destroy(engine);
        engine = make_engine_with(&m, true);
        run_logits(engine, 64, tokens, N, MORE, groups);
        run_logits(engine, 25, tokens, N, MORE, again);
        engine_destroy(engine);
        assert_memory_equal(groups, again, values * sizeof *groups);
        for (size_t v = 0; v < values; v++) {
            float size = fabsf(tiles[v]), off = fabsf(tiles[v] - groups[v]);
            if (!(size <= largest))
                largest = size;
            if (!(off <= error)) /* what is no number, too */
                error = off;
        }
        print_message("type %d: off by %.1e of the largest logit\n", (int)types[i],
                      error / largest);
        assert_true(isfinite(largest) && largest > 0);
        assert_true(error <= 1e-3f * largest);
        free(tiles);
        random_model_free(&m);
    }
}

/* Entries that are read where they lie give the same bits; what does not lie there is refused. */
static void entries_read_in_place_change_no_bit(void **state)
{
    enum { N = 150, MORE = 3 };
    (void)state;
    uint32_t tokens[N + MORE];
    struct random_model m;
    struct hill_why why = {0};
    if (!device.shares_memory)
        skip();
    random_model_make(&m, &base_shape, 18);
    make_tokens(tokens, N + MORE, m.hp.n_vocab, 18);
    float *first = calloc(MORE * m.hp.n_vocab, sizeof *first);
    struct engine *engine = make_engine(&m);
    for (int pass = 0; pass < 2; pass++) {
        struct engine_run run;
        run_init(&run, engine, 64, N + MORE);
        if (pass)
            run_read_in_place(&run);
        run_prefill(&run, tokens, N);
        for (uint32_t i = 0; i < MORE; i++) {
            run_step(&run, tokens[N + i]);
            keep_or_compare(first + i * m.hp.n_vocab, run.logits, m.hp.n_vocab, pass);
        }
        if (pass) {
            uint32_t n = engine_hot_entries(engine), wild = ENGINE_HOT | n;
            RUN_CHECK(engine_step_begin(engine, 1, &(struct engine_row){0, 1, run.n_tokens}, &why));
            RUN_CHECK(engine_step_query(engine, 0, 0, run.q, run.staging, &why));
            assert_int_equal(engine_step_attend(engine, 0, 0, 1, &wild, &why), HILL_E_INVALID);
            assert_int_equal(engine_place_hot(engine, RUN_HOT_OFFSET, n - 1, &why),
                             HILL_E_PROTOCOL);
            RUN_CHECK(
                engine_attach_hot(engine, run.hot, RUN_HOT_OFFSET + n * run.entry_bytes, &why));
            assert_int_equal(engine_place_hot(engine, 32, 1, &why), HILL_E_PROTOCOL);
            assert_int_equal(engine_place_hot(engine, RUN_HOT_OFFSET, n + 1, &why),
                             HILL_E_PROTOCOL);
            assert_int_equal(engine_place_hot(engine, 64ull << 32, 0, &why), HILL_E_PROTOCOL);
        }
        run_finish(&run);
    }
    engine_destroy(engine);
    free(first);
    random_model_free(&m);
}

/* Decoding a token with everything selected is prefilling one token more, up to rounding. */
static void decode_continues_prefill(void **state)
{
    (void)state;
    uint32_t tokens[200];
    struct random_model m;
    struct engine_run run;
    random_model_make(&m, &base_shape, 13);
    struct engine *engine = make_engine(&m);
    make_tokens(tokens, 200, m.hp.n_vocab, 13);
    run_init(&run, engine, 64, 200);
    run_prefill(&run, tokens, 200);
    double *want = calloc(m.hp.n_vocab, sizeof *want);
    for (uint32_t i = 0; i < m.hp.n_vocab; i++)
        want[i] = run.logits[i];
    run_prefill(&run, tokens, 199);
    run_step(&run, tokens[199]);
    assert_near(run.logits, want, m.hp.n_vocab, false, "decode after prefill");
    free(want);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

/* Only the selected entries count. */
static void selection_limits_attention(void **state)
{
    enum { N = 60 };
    (void)state;
    struct hill_why why = {0};
    uint32_t tokens[N + 1], slots[N], n_slots = 0;
    uint8_t seen[N];
    struct random_shape shape = base_shape;
    shape.n_layers = 1; /* what the prompt's tokens saw of each other stays out of it */
    struct random_model m;
    struct reference reference;
    struct engine_run run;
    random_model_make(&m, &shape, 14);
    struct engine *engine = make_engine(&m);
    make_tokens(tokens, N + 1, m.hp.n_vocab, 14);
    reference_init(&reference, &m, N + 1);
    run_init(&run, engine, 64, N);
    run_prefill(&run, tokens, N);
    for (uint32_t i = 0; i < N; i++) {
        reference_token(&reference, tokens[i], NULL);
        seen[i] = i % 3 == 0;
        if (seen[i])
            slots[n_slots++] = i;
    }
    reference_token(&reference, tokens[N], seen);
    RUN_CHECK(engine_step_begin(engine, 1, &(struct engine_row){0, tokens[N], N}, &why));
    uint8_t *entry = malloc(run.entry_bytes);
    RUN_CHECK(engine_step_query(engine, 0, 0, run.q, entry, &why));
    run_upload(&run, 0, 0, N);
    RUN_CHECK(engine_step_attend(engine, 0, 0, n_slots, slots, &why));
    RUN_CHECK(engine_step_run(engine, 0, &why));
    RUN_CHECK(engine_step_logits(engine, 0, run.logits, &why));
    assert_near(run.logits, reference.logits, m.hp.n_vocab, false, "a third of the entries");
    free(entry);
    reference_free(&reference);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

static void what_is_out_of_range_is_refused(void **state)
{
    (void)state;
    struct hill_why why = {0};
    struct random_model m;
    random_model_make(&m, &base_shape, 15);
    struct engine *engine = make_engine(&m);
    uint32_t token = m.hp.n_vocab, slot = 8, good = 1;
    static _Alignas(4096) uint8_t staging[4096];
    uint8_t entry[1024] = {0};
    float q[64], logits[101];
    struct engine_row rows[2] = {{0, good, 0}, {0, good, 0}};
    assert_int_equal(engine_configure(engine, 0, 8, 1, &why), HILL_E_INVALID);
    assert_int_equal(engine_configure(engine, 16, 8, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_configure(engine, 16, 8, ENGINE_SEQUENCES_MAX + 1, &why),
                     HILL_E_INVALID);
    assert_int_equal(engine_configure(engine, 16, 8, 2, &why), 0);
    assert_int_equal(engine_attach_staging(engine, staging, 128, 1, &why), 0);
    assert_int_equal(engine_prefill_begin(engine, 0, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_begin(engine, 0, 1, &why), 0);
    assert_int_equal(engine_prefill_tokens(engine, &token, 1, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_enqueue(engine, 0, &why), HILL_E_INVALID); /* no tokens yet */
    assert_int_equal(engine_prefill_tokens(engine, &good, 2, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_logits(engine, logits, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_begin(engine, 2, rows, &why), HILL_E_INVALID); /* twice */
    rows[1].sequence = 2;
    assert_int_equal(engine_step_begin(engine, 2, rows, &why), HILL_E_INVALID);
    rows[1] = (struct engine_row){1, token, 0};
    assert_int_equal(engine_step_begin(engine, 2, rows, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_begin(engine, 3, rows, &why), HILL_E_INVALID);
    rows[1].token = good;
    assert_int_equal(engine_step_begin(engine, 2, rows, &why), 0);
    assert_int_equal(engine_step_query(engine, 1, 0, q, entry, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_query(engine, 0, 2, q, entry, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_run(engine, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_run_all(engine, &why), HILL_E_INVALID); /* there are no lists */
    assert_int_equal(engine_step_attend(engine, 9, 0, 0, NULL, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_query(engine, 0, 0, q, entry, &why), 0);
    assert_int_equal(engine_step_attend(engine, 1, 0, 0, NULL, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_entry(engine, 0, 0, entry, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_upload(engine, 0, 0, 1, &(struct engine_upload){0, slot}, &why),
                     HILL_E_INVALID);
    assert_int_equal(engine_step_upload(engine, 0, 1, 1, &(struct engine_upload){1, 0}, &why),
                     HILL_E_INVALID);
    assert_int_equal(engine_step_attend(engine, 0, 0, 1, &slot, &why), HILL_E_INVALID);
    assert_int_equal(engine_step_attend(engine, 0, 0, 0, NULL, &why), 0);
    assert_int_equal(engine_step_run(engine, 0, &why), HILL_E_INVALID); /* row 1 has no list */
    assert_int_equal(engine_step_logits(engine, 0, logits, &why), HILL_E_INVALID);
    engine_destroy(engine);
    random_model_free(&m);
}

/* A model whose first value of a tensor, or the scale of its first block, is NaN. */
static void make_damaged(struct random_model *m, const struct random_shape *s, const char *name)
{
    struct hill_why why = {0};
    struct blob bytes = random_model_build(m, s, 41);
    RUN_CHECK(open_bytes(&m->file, bytes.data, bytes.size, &why));
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    memset(memmem(bytes.data, bytes.size, t->data, t->bytes), 0xff, 4);
    gguf_close(m->file);
    RUN_CHECK(open_bytes(&m->file, bytes.data, bytes.size, &why));
    RUN_CHECK(model_hparams_read(&m->hp, m->file, &why));
    free(bytes.data);
}

static bool prefill_has_numbers(struct engine_run *run, uint32_t middle)
{
    const uint32_t tokens[] = {5, middle, 7};
    run_prefill(run, tokens, 3);
    return sampler_has_numbers(run->logits, run->hp.n_vocab);
}

static void assert_nan_shows(const struct random_shape *s, const char *name, bool groups)
{
    struct random_model m;
    struct engine_run run;
    bool of_a_token = strcmp(name, "token_embd.weight") == 0; /* of token 0 alone */
    make_damaged(&m, s, name);
    struct engine *engine = make_engine_with(&m, groups);
    run_init(&run, engine, 64, 8);
    assert_false(prefill_has_numbers(&run, 0));
    assert_int_equal(prefill_has_numbers(&run, 6), of_a_token);
    run_step(&run, 0);
    run_step(&run, 8);
    assert_false(sampler_has_numbers(run.logits, run.hp.n_vocab));
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

/* NaN in keys and values of an earlier token, and among activations that are quantised: the logits
 * are NaN, too. */
static void nan_comes_through_to_the_logits(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.n_embd = 64;
    s.n_ff = 96;
    for (int groups = 0; groups < 2; groups++) {
        s.type = GGUF_TENSOR_F16;
        assert_nan_shows(&s, "token_embd.weight", groups);
        s.type = GGUF_TENSOR_Q8_0;
        assert_nan_shows(&s, "token_embd.weight", groups);
        assert_nan_shows(&s, "blk.1.ffn_norm.weight", groups);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_heads),
        cmocka_unit_test(one_kv_head_of_odd_size),
        cmocka_unit_test(every_head_its_own_keys),
        cmocka_unit_test(heads_wider_than_the_model),
        cmocka_unit_test(half_precision_weights),
        cmocka_unit_test(bfloat_weights_with_scaled_rotation),
        cmocka_unit_test(q8_0_weights),
        cmocka_unit_test(types_that_meet_within_a_panel),
        cmocka_unit_test(one_token_prompt),
        cmocka_unit_test(long_prompt),
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(chunk_borders_change_no_bit),
        cmocka_unit_test(logits_of_a_whole_prompt),
        cmocka_unit_test(slot_numbers_change_no_bit),
        cmocka_unit_test(memory_of_its_own_changes_no_bit),
        cmocka_unit_test(work_groups_agree_with_register_tiles),
        cmocka_unit_test(entries_read_in_place_change_no_bit),
        cmocka_unit_test(decode_continues_prefill),
        cmocka_unit_test(selection_limits_attention),
        cmocka_unit_test(what_is_out_of_range_is_refused),
        cmocka_unit_test(nan_comes_through_to_the_logits),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
