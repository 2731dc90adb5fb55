/*
 * tests/gpu_worker/test_batch.c - decode steps of many rows: each row's logits and entries have the
 * bits of the row run alone, whichever rows go along, on any device path; and they are right. What
 * the engine allocates is what the plan counts.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kv/plan.h"
#include "tests/gpu_worker/engine_device.h"
#include "tests/gpu_worker/reference.h"

enum { LANES = 8, STEPS = 4, CAPACITY = 200, CHUNK = 32 };

/* The device as it is, as one with memory of its own, or that with kernels of work groups. */
enum where { AS_IT_IS, OWN_MEMORY, WORK_GROUPS };

static const struct random_shape base_shape = RANDOM_SHAPE_SMALL(2);

/* A sequence: its entries are kept on the host, some of them in its GPU slots as well. */
struct lane {
    uint32_t id, sequence, prompt, n_tokens, tokens[CAPACITY];
    uint8_t *entries[4];           /* [layer][CAPACITY][entry bytes] */
    uint8_t resident[4][CAPACITY]; /* in slot slot_of(position) */
    float *logits[STEPS];          /* alone */
};

struct bed {
    struct random_model m;
    struct engine *engine;
    struct lane lanes[LANES];
    uint32_t entry_bytes, stride;
    uint8_t *staging; /* [LANES][CAPACITY] */
    bool everything;  /* lists hold all positions, not a random part */
    uint64_t seed;
};

static uint32_t slot_of(uint32_t position)
{
    return (position * 7 + 3) % CAPACITY; /* 7 and 200 share no factor */
}

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    uint64_t state = (((a * 31 + b) * 1009 + c) * 8191 + d) * 65537 + e;
    next_random(&state);
    return next_random(&state) >> 7;
}

static bool is_selected(const struct bed *b, const struct lane *l, uint32_t layer,
                        uint32_t position)
{
    return b->everything || mix(b->seed, l->id, l->n_tokens, layer, position) % 3;
}

/* Uploads what the row's list lacks and now and then something it does not list; then the list. */
static void attend(struct bed *b, struct lane *l, uint32_t layer, uint32_t row)
{
    struct hill_why why = {0};
    struct engine_upload uploads[CAPACITY];
    uint32_t slots[CAPACITY], n_slots = 0, n_uploads = 0;
    for (uint32_t p = 0; p < l->n_tokens; p++) {
        bool listed = is_selected(b, l, layer, p);
        bool wanted = listed || mix(b->seed, l->id, layer, p, 5) % 50 == 0;
        if (wanted && !l->resident[layer][p]) {
            uint32_t staging = l->id * CAPACITY + CAPACITY - 1 - n_uploads;
            memcpy(b->staging + (size_t)staging * b->stride,
                   l->entries[layer] + (size_t)p * b->entry_bytes, b->entry_bytes);
            uploads[n_uploads++] = (struct engine_upload){staging, slot_of(p)};
            l->resident[layer][p] = 1;
        }
        if (listed)
            slots[n_slots++] = slot_of(p);
    }
    RUN_CHECK(engine_step_upload(b->engine, layer, row, n_uploads, uploads, &why));
    RUN_CHECK(engine_step_attend(b->engine, layer, row, n_slots, slots, &why));
}

/* One step of n lanes; keep: logits are remembered, else compared with those of the lane alone. */
static void step(struct bed *b, struct lane *const *lanes, uint32_t n, bool alone)
{
    struct hill_why why = {0};
    struct engine_row rows[LANES];
    float q[512], *logits = calloc(b->m.hp.n_vocab, sizeof *logits);
    uint8_t *entry = malloc(b->entry_bytes);
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (struct engine_row){alone ? 0 : lanes[r]->sequence,
                                      lanes[r]->tokens[lanes[r]->n_tokens], lanes[r]->n_tokens};
    RUN_CHECK(engine_step_begin(b->engine, n, rows, &why));
    for (uint32_t layer = 0; layer < b->m.hp.n_layers; layer++) {
        for (uint32_t i = 0; i < n; i++) { /* in another order than the lists */
            struct lane *l = lanes[n - 1 - i];
            uint8_t *kept = l->entries[layer] + (size_t)l->n_tokens * b->entry_bytes;
            RUN_CHECK(engine_step_query(b->engine, layer, n - 1 - i, q, entry, &why));
            if (alone)
                memcpy(kept, entry, b->entry_bytes);
            else
                assert_memory_equal(kept, entry, b->entry_bytes);
        }
        for (uint32_t r = 0; r < n; r++)
            attend(b, lanes[r], layer, r);
        RUN_CHECK(engine_step_run(b->engine, layer, &why));
    }
    for (uint32_t r = 0; r < n; r++) {
        struct lane *l = lanes[r];
        float *kept = l->logits[l->n_tokens++ - l->prompt];
        RUN_CHECK(engine_step_logits(b->engine, r, alone ? kept : logits, &why));
        if (!alone)
            assert_memory_equal(logits, kept, sizeof *logits * b->m.hp.n_vocab);
    }
    free(entry);
    free(logits);
}

static void rewind_lane(struct lane *l)
{
    l->n_tokens = l->prompt;
    memset(l->resident, 0, sizeof l->resident);
}

static void configure(struct bed *b, uint32_t n_sequences)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_configure(b->engine, CHUNK, CAPACITY, n_sequences, &why));
    RUN_CHECK(engine_attach_staging(b->engine, b->staging, b->stride, LANES * CAPACITY, &why));
}

static void prefill(struct bed *b, struct lane *l)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_prefill_begin(b->engine, 0, l->prompt, &why));
    RUN_CHECK(engine_prefill_tokens(b->engine, l->tokens, l->prompt, &why));
    for (uint32_t u = 0; u < engine_prefill_units(b->engine); u++) {
        struct engine_unit unit = engine_prefill_unit(b->engine, u);
        RUN_CHECK(engine_prefill_enqueue(b->engine, u, &why));
        RUN_CHECK(engine_prefill_read(b->engine, u, 0, unit.count,
                                      l->entries[unit.layer] + (size_t)unit.first * b->entry_bytes,
                                      &why));
    }
}

/* Lanes of 1 .. 1 + span prompt tokens, each decoded alone. By work groups of whole chunks: for
 * each other number of rows PoCL compiles kernels anew, and test_engine has those that are not
 * whole. */
static void open_bed(struct bed *b, const struct random_shape *shape, uint32_t span, uint64_t seed,
                     enum where where)
{
    random_model_make(&b->m, shape, seed);
    b->engine = where == WORK_GROUPS ? make_engine_with(&b->m, true)
                                     : make_engine_on(&b->m, where == OWN_MEMORY);
    b->seed = seed;
    b->entry_bytes = 4 * shape->n_kv_heads * shape->head_dim;
    b->stride = (b->entry_bytes + 63) / 64 * 64;
    b->staging = aligned_alloc(4096, ((size_t)LANES * CAPACITY * b->stride + 4095) / 4096 * 4096);
    memset(b->staging, 0, (size_t)LANES * CAPACITY * b->stride);
    configure(b, 1);
    for (uint32_t i = 0; i < LANES; i++) {
        struct lane *l = &b->lanes[i];
        l->id = l->sequence = i;
        l->prompt = 1 + (uint32_t)(mix(seed, i, 1, 2, 3) % (span + 1));
        if (where == WORK_GROUPS)
            l->prompt = l->prompt < CHUNK ? CHUNK : l->prompt / CHUNK * CHUNK;
        l->n_tokens = l->prompt;
        for (uint32_t t = 0; t < CAPACITY; t++)
            l->tokens[t] = (uint32_t)(mix(seed, i, t, 4, 5) % shape->n_vocab);
        for (uint32_t layer = 0; layer < shape->n_layers; layer++)
            l->entries[layer] = calloc(CAPACITY, b->entry_bytes);
        for (uint32_t s = 0; s < STEPS; s++)
            l->logits[s] = calloc(shape->n_vocab, sizeof(float));
        prefill(b, l);
        rewind_lane(l);
        for (uint32_t s = 0; s < STEPS; s++)
            step(b, &l, 1, true);
        rewind_lane(l);
    }
}

static void close_bed(struct bed *b)
{
    engine_destroy(b->engine);
    for (uint32_t i = 0; i < LANES; i++) {
        for (uint32_t layer = 0; layer < b->m.shape.n_layers; layer++)
            free(b->lanes[i].entries[layer]);
        for (uint32_t s = 0; s < STEPS; s++)
            free(b->lanes[i].logits[s]);
    }
    free(b->staging);
    random_model_free(&b->m);
}

/* Any of the lanes that have steps left, in any order, until none has. */
static void run_together(struct bed *b, uint32_t n_sequences)
{
    uint64_t state = b->seed + 1;
    configure(b, n_sequences);
    for (;;) {
        struct lane *rows[LANES];
        uint32_t n = 0, left = 0;
        for (uint32_t i = 0; i < LANES; i++) {
            struct lane *l = &b->lanes[(i * 5 + b->seed) % LANES];
            if (l->n_tokens == l->prompt + STEPS)
                continue;
            left++;
            if (next_random(&state) >> 33 & 3)
                rows[n++] = l;
        }
        if (!left)
            return;
        if (n)
            step(b, rows, n, false);
    }
}

static void compare_with_alone(const struct random_shape *shape, uint32_t span, uint64_t seed,
                               enum where where)
{
    static struct bed b;
    memset(&b, 0, sizeof b);
    open_bed(&b, shape, span, seed, where);
    run_together(&b, LANES);
    close_bed(&b);
}

static void rows_give_the_bits_they_give_alone(void **state)
{
    (void)state;
    compare_with_alone(&base_shape, 60, 1, AS_IT_IS);
}

static void with_half_precision_weights_too(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_F16;
    s.n_embd = 50; /* neither fours nor sixteens */
    s.n_ff = 71;
    compare_with_alone(&s, 60, 2, AS_IT_IS);
}

/* Prompts, too, have the bits that kernels for registers of another number and width give. */
static void with_the_vectors_of_another_cpu(void **state)
{
    (void)state;
    static struct bed b;
    static struct lane again;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_F16;
    s.n_embd = 150; /* more than a block of places, and no whole one */
    s.n_ff = 71;
    s.head_dim = s.rope_dims = 40; /* three vectors */
    memset(&b, 0, sizeof b);
    open_bed(&b, &s, CAPACITY - STEPS - 1, 2, AS_IT_IS); /* tiles of 64 keys */
    engine_destroy(b.engine);
    b.engine = make_engine_of_other_vectors(&b.m);
    configure(&b, 1);
    for (uint32_t i = 0; i < LANES; i++) {
        struct lane *l = &b.lanes[i];
        size_t bytes = (size_t)l->prompt * b.entry_bytes;
        memcpy(&again, l, sizeof again);
        for (uint32_t layer = 0; layer < s.n_layers; layer++)
            again.entries[layer] = calloc(CAPACITY, b.entry_bytes);
        prefill(&b, &again);
        for (uint32_t layer = 0; layer < s.n_layers; layer++) {
            assert_memory_equal(again.entries[layer], l->entries[layer], bytes);
            free(again.entries[layer]);
        }
    }
    run_together(&b, LANES);
    close_bed(&b);
}

static void with_odd_heads_and_one_kv_head(void **state)
{
    (void)state;
    const struct random_shape s = RANDOM_SHAPE_ODD(2);
    compare_with_alone(&s, 40, 3, AS_IT_IS);
}

static void with_lists_of_more_than_a_tile(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_F16;
    s.n_heads = 6;
    s.head_dim = s.rope_dims = 32;
    compare_with_alone(&s, CAPACITY - STEPS - 1, 4, AS_IT_IS);
}

static void on_a_device_with_memory_of_its_own(void **state)
{
    (void)state;
    compare_with_alone(&base_shape, CAPACITY - STEPS - 1, 5, OWN_MEMORY);
}

/* Whatever is beside a row, its activations become the same integers. */
static void with_quantised_weights(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_Q8_0;
    s.n_embd = 64;
    s.n_ff = 96;
    compare_with_alone(&s, 40, 6, AS_IT_IS);
    compare_with_alone(&s, 40, 6, OWN_MEMORY);
}

static void by_work_groups(void **state)
{
    (void)state;
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_Q8_0;
    s.n_embd = 64;
    s.n_ff = 96;
    compare_with_alone(&s, CAPACITY - STEPS - 1, 7, WORK_GROUPS);
}

/* Sequences that differ by 32 among them. */
static void in_any_of_the_most_sequences(void **state)
{
    (void)state;
    static struct bed b;
    memset(&b, 0, sizeof b);
    open_bed(&b, &base_shape, 20, 8, AS_IT_IS);
    for (uint32_t i = 0; i < LANES; i++)
        b.lanes[i].sequence = i < 4 ? 1 + 10 * i : 33 + 10 * (i - 4);
    assert_int_equal(b.lanes[LANES - 1].sequence, ENGINE_SEQUENCES_MAX - 1);
    run_together(&b, ENGINE_SEQUENCES_MAX);
    close_bed(&b);
}

/* Not only alike but right: with everything listed, logits are those of a forward pass in double.
 */
static void rows_agree_with_the_oracle(void **state)
{
    (void)state;
    static struct bed b;
    memset(&b, 0, sizeof b);
    b.everything = true;
    open_bed(&b, &base_shape, 50, 6, AS_IT_IS);
    run_together(&b, LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        const struct lane *l = &b.lanes[i];
        struct reference reference;
        reference_init(&reference, &b.m, l->prompt + STEPS);
        for (uint32_t t = 0; t < l->prompt + STEPS; t++) {
            reference_token(&reference, l->tokens[t], NULL);
            for (uint32_t v = 0; t >= l->prompt && v < b.m.shape.n_vocab; v++) {
                double want = reference.logits[v], got = l->logits[t - l->prompt][v];
                if (!(fabs(got - want) <= 3e-4 * (1 + fabs(want))))
                    fail_msg("lane %u, step %u: %g, not %g", i, t - l->prompt, got, want);
            }
        }
        reference_free(&reference);
    }
    close_bed(&b);
}

/* A row that has failed attends to nothing for the rest of the step; the others do not notice. */
static void a_row_without_a_list_harms_nobody(void **state)
{
    (void)state;
    static struct bed b;
    struct hill_why why = {0};
    memset(&b, 0, sizeof b);
    open_bed(&b, &base_shape, 60, 7, AS_IT_IS);
    configure(&b, LANES);
    struct engine_row rows[3];
    float q[512], logits[101];
    uint8_t entry[4096];
    for (uint32_t r = 0; r < 3; r++)
        rows[r] =
            (struct engine_row){r, b.lanes[r].tokens[b.lanes[r].n_tokens], b.lanes[r].n_tokens};
    RUN_CHECK(engine_step_begin(b.engine, 3, rows, &why));
    for (uint32_t layer = 0; layer < b.m.hp.n_layers; layer++) {
        RUN_CHECK(engine_step_query(b.engine, layer, 0, q, entry, &why));
        attend(&b, &b.lanes[0], layer, 0);
        RUN_CHECK(engine_step_attend(b.engine, layer, 1, 0, NULL, &why));
        attend(&b, &b.lanes[2], layer, 2);
        RUN_CHECK(engine_step_run(b.engine, layer, &why));
    }
    for (uint32_t r = 0; r < 3; r += 2) {
        RUN_CHECK(engine_step_logits(b.engine, r, logits, &why));
        assert_memory_equal(logits, b.lanes[r].logits[0], sizeof logits);
    }
    close_bed(&b);
}

/* A step in one launch, every list given before the first layer and read in place: bits of the same
 * rows one by one, also where the lists of one row had to be made layer by layer after all. */
static void step_ahead(struct bed *b, struct lane *const *lanes, uint32_t n, bool whole)
{
    struct hill_why why = {0};
    struct engine_row rows[LANES] = {{0}};
    uint32_t slots[CAPACITY], layers = b->m.hp.n_layers;
    float logits[101];
    uint8_t entry[4096];
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (struct engine_row){lanes[r]->sequence, lanes[r]->tokens[lanes[r]->n_tokens],
                                      lanes[r]->n_tokens};
    RUN_CHECK(engine_step_begin(b->engine, n, rows, &why));
    assert_int_equal(engine_step_entry(b->engine, 0, 0, entry, &why), HILL_E_INVALID);
    for (uint32_t i = 0; i < n * layers; i++) {
        const struct lane *l = lanes[i % n];
        uint32_t layer = layers - 1 - i / n, n_slots = 0; /* in any order */
        for (uint32_t p = 0; p < l->n_tokens; p++)
            if (is_selected(b, l, layer, p))
                slots[n_slots++] = ENGINE_HOT | ((l->id * layers + layer) * CAPACITY + p);
        if (whole || i % n)
            RUN_CHECK(engine_step_attend(b->engine, layer, i % n, n_slots, slots, &why));
    }
    for (uint32_t layer = 0; !whole && layer < layers; layer++) {
        assert_int_equal(engine_step_run_all(b->engine, &why), HILL_E_INVALID);
        RUN_CHECK(engine_step_query(b->engine, layer, 0, NULL, entry, &why));
        attend(b, lanes[0], layer, 0);
        RUN_CHECK(engine_step_run(b->engine, layer, &why));
    }
    if (whole)
        RUN_CHECK(engine_step_run_all(b->engine, &why));
    for (uint32_t r = 0; r < n; r++) {
        struct lane *l = lanes[r];
        RUN_CHECK(engine_step_logits(b->engine, r, logits, &why));
        assert_memory_equal(logits, l->logits[l->n_tokens - l->prompt],
                            sizeof *logits * b->m.hp.n_vocab);
        for (uint32_t layer = 0; layer < layers; layer++) {
            RUN_CHECK(engine_step_entry(b->engine, layer, r, entry, &why));
            assert_memory_equal(entry, l->entries[layer] + (size_t)l->n_tokens * b->entry_bytes,
                                b->entry_bytes);
        }
        l->n_tokens++;
    }
}

static void run_ahead(const struct random_shape *shape, uint32_t span, uint64_t seed)
{
    static struct bed b;
    struct hill_why why = {0};
    memset(&b, 0, sizeof b);
    open_bed(&b, shape, span, seed, AS_IT_IS);
    uint32_t layers = shape->n_layers, n = LANES * layers * CAPACITY;
    uint8_t *hot = aligned_alloc(4096, ((size_t)n * b.entry_bytes + 4095) / 4096 * 4096);
    for (uint32_t i = 0; i < LANES * layers; i++)
        memcpy(hot + (size_t)i * CAPACITY * b.entry_bytes, b.lanes[i / layers].entries[i % layers],
               (size_t)CAPACITY * b.entry_bytes);
    configure(&b, LANES);
    RUN_CHECK(engine_attach_hot(b.engine, hot, (uint64_t)n * b.entry_bytes, &why));
    RUN_CHECK(engine_place_hot(b.engine, 0, n, &why));
    struct lane *rows[LANES];
    for (uint32_t s = 0; s < STEPS; s++) {
        for (uint32_t i = 0; i < LANES; i++)
            rows[i] = &b.lanes[(i + s) % LANES];
        step_ahead(&b, rows, s == 2 ? 1 : LANES, s != 3);
        for (uint32_t i = 1; s == 2 && i < LANES; i++)
            step_ahead(&b, rows + i, 1, true);
    }
    close_bed(&b);
    free(hot);
}

static void a_step_in_one_launch_has_the_same_bits(void **state)
{
    (void)state;
    if (!device.shares_memory)
        skip();
    struct random_shape s = base_shape;
    s.type = GGUF_TENSOR_Q8_0;
    s.n_embd = 64;
    s.n_ff = 96;
    run_ahead(&base_shape, 60, 11);
    run_ahead(&s, CAPACITY - STEPS - 1, 12);
}

/* A work item that waits for another leaves at once, in each layer's launch and in a step's. */
static void with_work_items_that_leave(void **state)
{
    (void)state;
    static struct bed b;
    if (device.compute_units < 2 || !device.shares_memory)
        skip();
    memset(&b, 0, sizeof b);
    open_bed(&b, &base_shape, CAPACITY - STEPS - 1, 13, AS_IT_IS);
    engine_destroy(b.engine);
    setenv("HILL_TEST_LOOKS", "0", 1);
    b.engine = make_engine(&b.m);
    run_together(&b, LANES);
    close_bed(&b);
    run_ahead(&base_shape, 60, 14);
    unsetenv("HILL_TEST_LOOKS");
}

/* kv_plan_gpu_bytes bounds what is allocated, and not by far: admission relies on it. */
static void check_plan(const struct random_shape *shape, uint32_t n_sequences, bool own_memory,
                       bool weighs)
{
    enum { PREDICT = 40, BATCH = 64 };
    /* sums of attention grow with the prompt: for one that what is rounded up does not hide */
    uint32_t prompt = weighs ? 8000 : 300;
    struct hill_why why = {0};
    struct random_model m;
    random_model_make(&m, shape, 9);
    struct kv_plan_input in = {
        .geometry = {shape->n_layers, shape->n_heads, shape->n_kv_heads, shape->head_dim},
        .n_embd = shape->n_embd,
        .n_ff = shape->n_ff,
        .n_vocab = shape->n_vocab,
        .ctx_tokens = prompt + PREDICT,
        .batch_tokens = BATCH,
        .n_sequences = n_sequences,
        .selection = {.alpha = 1, .policy = weighs ? KV_POLICY_H2O : KV_POLICY_HILLINFER}};
    struct engine *engine = make_engine_on(&m, own_memory);
    RUN_CHECK(engine_configure(engine, BATCH, prompt + PREDICT, n_sequences, &why));
    uint64_t planned = kv_plan_gpu_bytes(&in, prompt, PREDICT);
    uint64_t needed = engine_kv_bytes_needed(engine, 0, prompt) +
                      (weighs ? engine_mass_bytes_needed(engine, prompt) : 0);
    RUN_CHECK(engine_prefill_begin(engine, 0, prompt, &why));
    if (weighs)
        RUN_CHECK(engine_prefill_weigh(engine, &why));
    uint64_t taken = engine_kv_bytes(engine);
    if (needed > planned || taken > needed)
        fail_msg("%u sequences%s%s: %llu bytes taken, %llu needed, %llu planned", n_sequences,
                 own_memory ? ", memory of its own" : "", weighs ? ", h2o" : "",
                 (unsigned long long)taken, (unsigned long long)needed,
                 (unsigned long long)planned);
    engine_destroy(engine);
    random_model_free(&m);
}

static void the_plan_bounds_what_is_allocated(void **state)
{
    (void)state;
    const struct random_shape odd = RANDOM_SHAPE_ODD(2);
    for (int own = 0; own < 2; own++) {
        for (uint32_t n = 1; n <= 8; n += 7) {
            check_plan(&base_shape, n, own, false);
            check_plan(&odd, n, own, false);
        }
        check_plan(&base_shape, 1, own, true);
        check_plan(&odd, 1, own, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_give_the_bits_they_give_alone),
        cmocka_unit_test(with_half_precision_weights_too),
        cmocka_unit_test(with_the_vectors_of_another_cpu),
        cmocka_unit_test(with_odd_heads_and_one_kv_head),
        cmocka_unit_test(with_lists_of_more_than_a_tile),
        cmocka_unit_test(on_a_device_with_memory_of_its_own),
        cmocka_unit_test(with_quantised_weights),
        cmocka_unit_test(by_work_groups),
        cmocka_unit_test(in_any_of_the_most_sequences),
        cmocka_unit_test(rows_agree_with_the_oracle),
        cmocka_unit_test(a_row_without_a_list_harms_nobody),
        cmocka_unit_test(a_step_in_one_launch_has_the_same_bits),
        cmocka_unit_test(with_work_items_that_leave),
        cmocka_unit_test(the_plan_bounds_what_is_allocated),
    };
    return cmocka_run_group_tests(tests, device_open, device_close);
}
