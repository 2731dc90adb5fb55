/*
 * tests/gpu_worker/test_select.c - a prompt over some of the tokens before it: with all of them it
 * has the bits of a prompt over all; with some, it and the tokens behind it have the logits of a
 * forward pass in double that sees these alone; what its queries attend to, and those that are
 * guessed a layer ahead, are softmax weights in double. Which runs are chosen, and which heads,
 * against a search over all. HILL_TEST_SEED draws other lengths and choices.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_worker/important_runs.h"
#include "gpu_worker/probe_heads.h"
#include "tests/draws.h"
#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/reference.h"

enum { PAST_MOST = 320, OWN_MOST = 40, DECODED = 3, MOST = PAST_MOST + OWN_MOST + DECODED };
enum { RUN_SLOTS = 331 };

/* Of a layer's past tokens those that are seen, in pieces of any size. */
static uint32_t give(struct engine_run *run, uint32_t layer, uint32_t n_past, const uint8_t *seen)
{
    struct hill_why why = {0};
    uint32_t n = 0, at = 0;
    uint8_t *entries = malloc((size_t)n_past * run->entry_bytes);
    for (uint32_t t = engine_past_from(run->engine, layer); t < n_past; t++)
        if (seen[t])
            memcpy(entries + (size_t)n++ * run->entry_bytes,
                   run->entries[layer] + (size_t)t * run->entry_bytes, run->entry_bytes);
    while (at < n) {
        uint32_t piece = 1 + draw(ENGINE_PAST_TOKENS);
        piece = piece < n - at ? piece : n - at;
        int rc = engine_prefill_past(run->engine, layer, at, piece,
                                     entries + (size_t)at * run->entry_bytes, &why);
        if (rc < 0)
            RUN_CHECK(rc);
        at += rc ? piece : 0;
    }
    free(entries);
    return n;
}

static uint32_t runs_on_device; /* that were given */

/* The same of runs, of which some are in slots of the device by any order, written right before;
 * what the host has of these is wrong. */
static void give_runs(struct engine_run *run, uint32_t layer, uint32_t n_past, uint32_t run_tokens)
{
    struct hill_why why = {0};
    size_t bytes = (size_t)run_tokens * run->entry_bytes;
    uint32_t n = n_past / run_tokens, window = ENGINE_PAST_TOKENS / run_tokens, at = 0;
    uint32_t slots[PAST_MOST], shift = draw(RUN_SLOTS);
    uint8_t *entries = malloc(n * bytes), *back = malloc(bytes);
    memcpy(entries, run->entries[layer], n * bytes);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = ENGINE_NO_SLOT;
        if (draw(2))
            continue;
        slots[i] = (i * 7 + shift) % RUN_SLOTS; /* 7 is no part of RUN_SLOTS: one run each */
        RUN_CHECK(engine_write_run(run->engine, slots[i], entries + i * bytes, &why));
        RUN_CHECK(engine_read_run(run->engine, slots[i], back, &why));
        assert_memory_equal(back, entries + i * bytes, bytes);
        memset(entries + i * bytes, 0x3c, bytes);
        runs_on_device++;
    }
    while (at < n) {
        uint32_t piece = 1 + draw(window);
        piece = piece < n - at ? piece : n - at;
        int rc = engine_prefill_past_runs(run->engine, layer, at * run_tokens, piece * run_tokens,
                                          entries + at * bytes, slots + at, &why);
        if (rc < 0)
            RUN_CHECK(rc);
        for (uint32_t i = 0; rc && i < piece; i++) /* another run: behind what was queued */
            if (slots[at + i] != ENGINE_NO_SLOT && draw(2))
                RUN_CHECK(engine_write_run(run->engine, slots[at + i], entries, &why));
        at += rc ? piece : 0;
    }
    free(entries);
    free(back);
}

static uint32_t count(const struct engine_run *run, uint32_t layer, uint32_t n_past,
                      const uint8_t *seen)
{
    uint32_t n = 0;
    for (uint32_t t = engine_past_from(run->engine, layer); t < n_past; t++)
        n += seen[t];
    return n;
}

/* The sums of one head's keys, which lie in entries. */
static void probe(struct engine_run *run, uint32_t layer, uint32_t n_past, uint16_t first,
                  uint32_t n_heads, float *sums)
{
    struct hill_why why = {0};
    uint32_t key = 2 * run->hp.head_dim;
    uint16_t heads[4];
    uint8_t *keys = malloc((size_t)n_past * n_heads * key);
    for (uint32_t i = 0; i < n_heads; i++)
        heads[i] = (uint16_t)(first + i);
    for (uint32_t t = 0; t < n_past; t++)
        memcpy(keys + (size_t)t * n_heads * key,
               run->entries[layer] + (size_t)t * run->entry_bytes + (size_t)first * key,
               (size_t)n_heads * key);
    RUN_CHECK(engine_prefill_probe(run->engine, heads, n_heads, keys, sums, &why));
    free(keys);
}

/* With the keys that the guess of all heads was probed with: what they give when they are given. */
static void expect_same_keys(struct engine_run *run, uint32_t layer, uint32_t n_past)
{
    struct hill_why why = {0};
    const uint16_t heads[] = {0, 1, 2, 3};
    float *kept = malloc(n_past * sizeof *kept), *given = malloc(n_past * sizeof *given);
    RUN_CHECK(engine_prefill_probe(run->engine, heads, run->hp.n_kv_heads, NULL, kept, &why));
    probe(run, layer, n_past, 0, run->hp.n_kv_heads, given);
    assert_memory_equal(kept, given, n_past * sizeof *kept);
    free(kept);
    free(given);
}

/* Slots are there for runs of so many tokens; 0: none, all comes from the host. */
static uint32_t run_tokens_kept;

/* run->entries of the past are there. sums [n_layers][n_kv_heads + 1][n_past], or NULL: of each
 * head, and of all; with them guessed [n_layers][n_kv_heads][n_past], from layer 1 on. */
static void prefill_some(struct engine_run *run, const uint32_t *tokens, uint32_t n_past,
                         uint32_t n, const uint8_t *seen, float *sums, float *guessed)
{
    struct hill_why why = {0};
    uint32_t kv = run->hp.n_kv_heads;
    RUN_CHECK(engine_prefill_begin(run->engine, n_past, n - n_past, &why));
    RUN_CHECK(engine_prefill_select(run->engine, &why));
    RUN_CHECK(engine_prefill_tokens(run->engine, tokens + n_past, n - n_past, &why));
    for (uint32_t l = 0; l < run->hp.n_layers; l++) {
        RUN_CHECK(engine_prefill_keys(run->engine, l, count(run, l, n_past, seen), &why));
        if (sums && l > 0)
            expect_same_keys(run, l, n_past);
        for (uint32_t h = 0; sums && h <= kv; h++)
            probe(run, l, n_past, (uint16_t)(h < kv ? h : 0), h < kv ? 1 : kv,
                  sums + ((size_t)l * (kv + 1) + h) * n_past);
        if (sums && l + 1 < run->hp.n_layers)
            RUN_CHECK(engine_prefill_guess(run->engine, l + 1, &why));
        for (uint32_t h = 0; sums && l + 1 < run->hp.n_layers && h < kv; h++)
            probe(run, l + 1, n_past, (uint16_t)h, 1,
                  guessed + ((size_t)(l + 1) * kv + h) * n_past);
        if (sums && l + 1 < run->hp.n_layers) /* all heads: for expect_same_keys */
            probe(run, l + 1, n_past, 0, kv, sums + ((size_t)(l + 1) * (kv + 1)) * n_past);
        if (run_tokens_kept)
            give_runs(run, l, n_past, run_tokens_kept);
        else
            give(run, l, n_past, seen);
        RUN_CHECK(engine_prefill_enqueue(run->engine, l, &why));
        RUN_CHECK(engine_prefill_read(run->engine, l, 0, n - n_past,
                                      run->entries[l] + (size_t)n_past * run->entry_bytes, &why));
    }
    RUN_CHECK(engine_prefill_logits(run->engine, run->logits, &why));
}

/* With what is on the device, too, in runs of run_tokens; 0: nothing is. */
static void all_are_all(struct random_model *m, uint32_t run_tokens)
{
    uint32_t tokens[MOST], n_past = 64 * (1 + draw(PAST_MOST / 64)),
                           n = n_past + 1 + draw(OWN_MOST);
    uint8_t seen[PAST_MOST];
    struct engine_run run;
    struct engine *engine = make_engine(m);
    struct hill_why why = {0};
    memset(seen, 1, sizeof seen);
    make_tokens(tokens, n, m->hp.n_vocab, draw(1000));
    run_init(&run, engine, OWN_MOST, MOST);
    if (run_tokens)
        RUN_CHECK(engine_keep_runs(engine, RUN_SLOTS, run_tokens, &why));
    run_tokens_kept = run_tokens;
    run_prefill(&run, tokens, n);
    float *logits = malloc(m->hp.n_vocab * sizeof *logits);
    uint8_t *own = malloc((size_t)m->hp.n_layers * OWN_MOST * run.entry_bytes);
    size_t bytes = (size_t)(n - n_past) * run.entry_bytes;
    memcpy(logits, run.logits, m->hp.n_vocab * sizeof *logits);
    for (uint32_t l = 0; l < m->hp.n_layers; l++) {
        memcpy(own + l * bytes, run.entries[l] + (size_t)n_past * run.entry_bytes, bytes);
        memset(run.entries[l] + (size_t)n_past * run.entry_bytes, 0, bytes);
    }
    prefill_some(&run, tokens, n_past, n, seen, NULL, NULL);
    assert_memory_equal(logits, run.logits, m->hp.n_vocab * sizeof *logits);
    for (uint32_t l = 0; l < m->hp.n_layers; l++)
        assert_memory_equal(own + l * bytes, run.entries[l] + (size_t)n_past * run.entry_bytes,
                            bytes);
    free(logits);
    free(own);
    run_finish(&run);
    engine_destroy(engine);
}

static void with_all_tokens_no_bit_changes(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct random_model m;
        random_model_make_windowed(&m, 20 + (uint64_t)i, i % 2 ? 1 + draw(200) : 0);
        all_are_all(&m, 0);
        random_model_free(&m);
    }
}

static void runs_on_the_device_change_no_bit(void **state)
{
    (void)state;
    for (uint32_t run_tokens = 1; run_tokens <= 64; run_tokens *= 4) {
        struct random_shape shape = RANDOM_SHAPE_SMALL(2);
        struct random_model m;
        random_model_make(&m, &shape, 40 + run_tokens);
        all_are_all(&m, run_tokens);
        random_model_free(&m);
    }
    run_tokens_kept = 0;
    assert_true(runs_on_device > 50);
}

/* What the queries of one KV head attend to in layer 0, of tokens that are all seen: a softmax over
 * the past alone. */
static void weigh_in_double(const struct random_model *m, const uint32_t *tokens, uint32_t n_past,
                            uint32_t n, uint32_t kv_head, double *want)
{
    uint32_t group = m->hp.n_heads / m->hp.n_kv_heads;
    for (uint32_t q = kv_head * group; q < (kv_head + 1) * group; q++) {
        struct reference reference;
        reference_init(&reference, m, n);
        reference.mass_head = q + 1;
        for (uint32_t i = 0; i < n; i++) {
            double sum = 0;
            reference.masses = calloc((size_t)m->hp.n_layers * n, sizeof(double));
            reference_token(&reference, tokens[i], NULL);
            for (uint32_t t = 0; t < n_past; t++)
                sum += reference.masses[t];
            for (uint32_t t = 0; i >= n_past && t < n_past; t++)
                want[t] += reference.masses[t] / sum;
            free(reference.masses);
            reference.masses = NULL;
        }
        reference_free(&reference);
    }
}

/* The next token at its own position, behind the entries of those that are seen alone. */
static void step_some(struct engine_run *run, uint32_t token, const uint8_t *seen)
{
    struct hill_why why = {0};
    uint32_t n = run->n_tokens, slots[MOST];
    RUN_CHECK(engine_step_begin(run->engine, 1, &(struct engine_row){0, token, n}, &why));
    for (uint32_t l = 0; l < run->hp.n_layers; l++) {
        uint32_t n_slots = 0;
        RUN_CHECK(engine_step_query(run->engine, l, 0, run->q,
                                    run->entries[l] + (size_t)n * run->entry_bytes, &why));
        run_upload(run, l, run->uploaded[l], n - run->uploaded[l]);
        run->uploaded[l] = n;
        for (uint32_t t = 0; t < n; t++)
            if (seen[t])
                slots[n_slots++] = run->slot_of[t];
        RUN_CHECK(engine_step_attend(run->engine, l, 0, n_slots, slots, &why));
        RUN_CHECK(engine_step_run(run->engine, l, &why));
    }
    RUN_CHECK(engine_step_logits(run->engine, 0, run->logits, &why));
    run->n_tokens = n + 1;
}

static void expect_logits(const struct engine_run *run, const struct reference *reference)
{
    for (uint32_t i = 0; i < run->hp.n_vocab; i++)
        assert_true(fabs(run->logits[i] - reference->logits[i]) <
                    2e-3 * (1 + fabs(reference->logits[i])));
}

/* += what a token's guessed queries of a layer give each past token, in each KV head [n_past]: the
 * entries' keys are the engine's. */
static void add_guess_in_double(const struct engine_run *run, uint32_t layer, uint32_t n_past,
                                const double *queries, double *want)
{
    uint32_t dim = run->hp.head_dim, group = run->hp.n_heads / run->hp.n_kv_heads;
    double *weights = malloc(n_past * sizeof *weights);
    for (uint32_t q = 0; q < run->hp.n_heads; q++) {
        double sum = 0;
        for (uint32_t t = 0; t < n_past; t++) {
            const uint16_t *key =
                (const uint16_t *)(run->entries[layer] + (size_t)t * run->entry_bytes) +
                q / group * dim;
            double score = 0;
            for (uint32_t i = 0; i < dim; i++)
                score += queries[q * dim + i] * (double)from_half(key[i]);
            sum += weights[t] = exp(score / sqrt(dim));
        }
        for (uint32_t t = 0; t < n_past; t++)
            want[(size_t)(q / group) * n_past + t] += weights[t] / sum;
    }
    free(weights);
}

/* A prompt of so many tokens. */
static void against_double(struct random_shape shape, uint32_t own)
{
    uint32_t n_past = 64 * (1 + draw(3)), n = n_past + own, tokens[MOST];
    uint8_t seen[MOST];
    struct random_model m;
    struct reference reference;
    struct engine_run run;
    random_model_make(&m, &shape, draw(1000));
    make_tokens(tokens, n, shape.n_vocab, draw(1000));
    memset(seen, 1, sizeof seen);
    for (uint32_t t = 0; t < n_past; t++)
        seen[t] = draw(3) == 0;
    struct engine *engine = make_engine(&m);
    run_init(&run, engine, OWN_MOST, MOST);
    run_prefill(&run, tokens, n_past);
    uint32_t rows = shape.n_kv_heads + 1;
    float *sums = malloc((size_t)shape.n_layers * rows * n_past * sizeof *sums);
    size_t heads = (size_t)shape.n_kv_heads * n_past;
    uint32_t q_dims = shape.n_heads * shape.head_dim;
    float *guessed = malloc(shape.n_layers * heads * sizeof *guessed);
    double *of_guesses = calloc(shape.n_layers * heads, sizeof *of_guesses);
    prefill_some(&run, tokens, n_past, n, seen, sums, guessed);
    reference_init(&reference, &m, n + DECODED);
    for (uint32_t i = 0; i < n; i++) {
        bool asks = i >= n_past;
        reference.masses =
            asks ? calloc((size_t)shape.n_layers * (n + DECODED), sizeof(double)) : NULL;
        reference.guesses = asks ? calloc((size_t)shape.n_layers * q_dims, sizeof(double)) : NULL;
        /* the first layer's queries do not depend on what is seen */
        reference_token(&reference, tokens[i], asks ? seen : NULL);
        for (uint32_t l = 1; asks && i + ENGINE_GUESS_TOKENS >= n && l < shape.n_layers; l++)
            add_guess_in_double(&run, l, n_past, reference.guesses + (size_t)l * q_dims,
                                of_guesses + l * heads);
        free(reference.masses);
        free(reference.guesses);
        reference.masses = reference.guesses = NULL;
    }
    for (size_t t = heads; t < shape.n_layers * heads; t++)
        assert_true(fabs(guessed[t] - of_guesses[t]) <= 2e-3 * of_guesses[t] + 1e-5);
    free(guessed);
    free(of_guesses);
    expect_logits(&run, &reference);
    run.n_tokens = n;
    for (uint32_t i = 0; i < DECODED; i++) {
        uint32_t token = draw(shape.n_vocab);
        step_some(&run, token, seen);
        reference_token(&reference, token, seen);
        expect_logits(&run, &reference);
    }
    reference_free(&reference);
    for (uint32_t h = 0; h < shape.n_kv_heads; h++) {
        double *want = calloc(n_past, sizeof *want);
        weigh_in_double(&m, tokens, n_past, n, h, want);
        for (uint32_t t = 0; t < n_past; t++)
            assert_true(fabs(sums[h * n_past + t] - want[t]) <= 2e-3 * want[t] + 1e-5);
        free(want);
    }
    for (uint32_t l = 0; l < shape.n_layers; l++) {
        const float *of = sums + (size_t)l * rows * n_past;
        double total = 0;
        for (uint32_t t = 0; t < n_past; t++) {
            double parts = 0;
            for (uint32_t h = 0; h < shape.n_kv_heads; h++)
                parts += of[(size_t)h * n_past + t];
            total += parts;
            assert_true(fabs(parts - of[(size_t)shape.n_kv_heads * n_past + t]) <=
                        1e-4 * parts + 1e-6);
        }
        assert_true(fabs(total - (double)(n - n_past) * shape.n_heads) < 1e-3 * total);
    }
    free(sums);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

static void with_some_it_is_a_pass_that_sees_these(void **state)
{
    (void)state;
    struct random_shape one = RANDOM_SHAPE_SMALL(3), several = RANDOM_SHAPE_SMALL(3);
    one.n_heads = one.n_kv_heads = 1;
    for (int i = 0; i < 3; i++) {
        uint32_t own = i ? 1 + draw(20) : OWN_MOST; /* more than are guessed, too */
        against_double(one, own);
        against_double(several, own);
    }
}

static void what_is_out_of_order_is_refused(void **state)
{
    (void)state;
    struct random_shape shape = RANDOM_SHAPE_SMALL(2);
    struct random_model m;
    struct engine_run run;
    struct hill_why why;
    uint32_t tokens[MOST];
    float sums[64];
    uint16_t head = 0;
    random_model_make(&m, &shape, 3);
    struct engine *engine = make_engine(&m);
    make_tokens(tokens, 80, m.hp.n_vocab, 3);
    run_init(&run, engine, 4, MOST);
    RUN_CHECK(engine_prefill_begin(engine, 64, 8, &why));
    assert_int_equal(engine_prefill_select(engine, &why), HILL_E_INVALID); /* two chunks */
    RUN_CHECK(engine_prefill_begin(engine, 63, 4, &why));
    assert_int_equal(engine_prefill_select(engine, &why), HILL_E_INVALID); /* a tile is cut */
    RUN_CHECK(engine_prefill_begin(engine, 64, 4, &why));
    assert_int_equal(engine_prefill_keys(engine, 0, 8, &why), HILL_E_INVALID);
    RUN_CHECK(engine_prefill_select(engine, &why));
    assert_int_equal(engine_prefill_keys(engine, 0, 8, &why), HILL_E_INVALID); /* no tokens yet */
    RUN_CHECK(engine_prefill_tokens(engine, tokens + 64, 4, &why));
    assert_int_equal(engine_prefill_probe(engine, &head, 1, run.entries[0], sums, &why),
                     HILL_E_INVALID);
    assert_int_equal(engine_prefill_keys(engine, 0, 65, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_enqueue(engine, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_guess(engine, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_guess(engine, 1, &why), HILL_E_INVALID); /* no input yet */
    assert_int_equal(engine_prefill_keys(engine, 0, 8, &why), 0);
    assert_int_equal(engine_prefill_guess(engine, 0, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_guess(engine, 2, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_probe(engine, &head, 1, NULL, sums, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_keys(engine, 1, 8, &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past(engine, 0, 0, 9, run.entries[0], &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_enqueue(engine, 0, &why), HILL_E_INVALID);
    uint32_t slots[2] = {0, 2};
    assert_int_equal(engine_prefill_past_runs(engine, 0, 0, 8, run.entries[0], slots, &why),
                     HILL_E_INVALID); /* none are kept */
    assert_int_equal(engine_keep_runs(engine, 2, ENGINE_PAST_TOKENS + 1, &why), HILL_E_INVALID);
    assert_int_equal(engine_keep_runs(engine, 1u << 30, ENGINE_PAST_TOKENS, &why), HILL_E_NOMEM);
    assert_int_equal(engine_write_run(engine, 0, run.entries[0], &why), HILL_E_INVALID);
    uint64_t bytes = engine_kv_bytes(engine);
    RUN_CHECK(engine_keep_runs(engine, 2, 4, &why));
    assert_true(engine_kv_bytes(engine) >= bytes + 8ull * run.entry_bytes);
    assert_int_equal(engine_write_run(engine, 2, run.entries[0], &why), HILL_E_INVALID);
    assert_int_equal(engine_read_run(engine, 2, run.entries[0], &why), HILL_E_INVALID);
    assert_int_equal(engine_prefill_past_runs(engine, 0, 0, 8, run.entries[0], slots, &why),
                     HILL_E_INVALID);
    slots[1] = 1;
    assert_int_equal(engine_prefill_past_runs(engine, 0, 0, 6, run.entries[0], slots, &why),
                     HILL_E_INVALID);
    assert_int_equal(engine_prefill_past_runs(engine, 0, 0, 8, run.entries[0], slots, &why), 1);
    RUN_CHECK(engine_keep_runs(engine, 0, 0, &why));
    assert_int_equal(engine_read_run(engine, 0, run.entries[0], &why), HILL_E_INVALID);
    run_finish(&run);
    engine_destroy(engine);
    random_model_free(&m);
}

static double mass_of(const float *mass, uint32_t run, uint32_t run_tokens)
{
    double sum = 0;
    for (uint32_t i = 0; i < run_tokens; i++)
        sum += mass[run * run_tokens + i];
    return sum;
}

static void the_most_attended_runs_are_chosen(void **state)
{
    (void)state;
    enum { RUNS = 100, TOKENS = 8 };
    float mass[RUNS * TOKENS];
    uint32_t chosen[RUNS];
    assert_int_equal(important_runs(10000, 8, 0.2), 250);
    assert_int_equal(important_runs(1000, 8, 0.2), 64); /* 512 tokens */
    assert_int_equal(important_runs(256, 8, 0.2), 32);
    for (int i = 0; i < 20; i++) {
        bool in[RUNS] = {false};
        double least = 1e30;
        uint32_t wanted = 5 + draw(RUNS - 5);
        for (uint32_t t = 0; t < RUNS * TOKENS; t++)
            mass[t] = (float)draw(50) / 7;
        mass[draw(RUNS * TOKENS)] = NAN;
        assert_int_equal(important_choose(mass, RUNS, TOKENS, wanted, chosen), 0);
        for (uint32_t r = 0; r < wanted; r++) {
            assert_true(r == 0 || chosen[r - 1] < chosen[r]);
            in[chosen[r]] = true;
        }
        for (uint32_t t = 0; t < RUNS * TOKENS; t++)
            mass[t] = mass[t] > 0 ? mass[t] : 0;
        assert_true(in[0] && in[RUNS - 1] && in[RUNS - IMPORTANT_NEWEST / TOKENS]);
        for (uint32_t r = 1; r < RUNS - IMPORTANT_NEWEST / TOKENS; r++)
            if (in[r] && mass_of(mass, r, TOKENS) < least)
                least = mass_of(mass, r, TOKENS);
        for (uint32_t r = 0; r < RUNS; r++)
            assert_true(in[r] || mass_of(mass, r, TOKENS) <= least);
    }
}

/* Head 2 ranks as the sum of all does, head 0 the other way round. */
static void heads_that_rank_as_all_do_are_chosen(void **state)
{
    (void)state;
    enum { N = 500, HEADS = 4 };
    static float sums[HEADS * N];
    uint16_t heads[2];
    for (uint32_t t = 0; t < N; t++) {
        float x = (float)(t * 7919 % N);
        sums[0 * N + t] = (float)N - x;
        sums[1 * N + t] = (float)draw(N) / 5;
        sums[2 * N + t] = 3 * x;
        sums[3 * N + t] = (x + (float)draw(N)) / 10;
    }
    assert_int_equal(probe_heads_compare(sums, HEADS, N, 1, heads), 0);
    assert_int_equal(heads[0], 2);
    assert_int_equal(probe_heads_compare(sums, HEADS, N, 2, heads), 0);
    assert_int_equal(heads[0], 2);
    assert_int_equal(heads[1], 3);
}

int main(void)
{
    draws_seed(16);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_all_tokens_no_bit_changes),
        cmocka_unit_test(runs_on_the_device_change_no_bit),
        cmocka_unit_test(with_some_it_is_a_pass_that_sees_these),
        cmocka_unit_test(what_is_out_of_order_is_refused),
        cmocka_unit_test(the_most_attended_runs_are_chosen),
        cmocka_unit_test(heads_that_rank_as_all_do_are_chosen),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
