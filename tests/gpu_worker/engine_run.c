/*
 * tests/gpu_worker/engine_run.c - the engine driven token by token, the test as its scorer.
 * Interface: engine_run.h.
 */
#include "tests/gpu_worker/engine_run.h"

void run_init(struct engine_run *run, struct engine *engine, uint32_t batch, uint32_t capacity)
{
    struct hill_why why = {0};
    memset(run, 0, sizeof *run);
    run->engine = engine;
    run->hp = *engine_hparams(engine);
    run->capacity = capacity;
    run->entry_bytes = 4 * run->hp.n_kv_heads * run->hp.head_dim;
    run->entries = calloc(run->hp.n_layers, sizeof *run->entries);
    run->stride = (run->entry_bytes + 63) / 64 * 64;
    run->staging = aligned_alloc(4096, ((size_t)capacity * run->stride + 4095) / 4096 * 4096);
    run->uploads = calloc(capacity, sizeof *run->uploads);
    for (uint32_t l = 0; l < run->hp.n_layers; l++)
        run->entries[l] = calloc(capacity, run->entry_bytes);
    run->slot_of = calloc(capacity, sizeof *run->slot_of);
    for (uint32_t i = 0; i < capacity; i++)
        run->slot_of[i] = i;
    run->uploaded = calloc(run->hp.n_layers, sizeof *run->uploaded);
    run->q = calloc((size_t)run->hp.n_heads * run->hp.head_dim, sizeof *run->q);
    run->logits = calloc(run->hp.n_vocab, sizeof *run->logits);
    RUN_CHECK(engine_configure(engine, batch, capacity, 1, &why));
    RUN_CHECK(engine_attach_staging(engine, run->staging, run->stride, capacity, &why));
}

void run_finish(struct engine_run *run)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_attach_staging(run->engine, NULL, 0, 0, &why));
    RUN_CHECK(engine_attach_hot(run->engine, NULL, 0, &why));
    for (uint32_t l = 0; l < run->hp.n_layers; l++)
        free(run->entries[l]);
    free(run->hot);
    free(run->masses);
    free(run->whole);
    free(run->slots);
    free(run->staging);
    free(run->uploads);
    free(run->entries);
    free(run->slot_of);
    free(run->uploaded);
    free(run->q);
    free(run->logits);
}

void run_prefill(struct engine_run *run, const uint32_t *tokens, uint32_t n)
{
    struct hill_why why = {0};
    RUN_CHECK(engine_prefill_begin(run->engine, 0, n, &why));
    if (run->masses)
        RUN_CHECK(engine_prefill_weigh(run->engine, &why));
    if (run->whole)
        engine_prefill_whole(run->engine);
    RUN_CHECK(engine_prefill_tokens(run->engine, tokens, n / 2, &why));
    RUN_CHECK(engine_prefill_tokens(run->engine, tokens + n / 2, n - n / 2, &why));
    uint32_t units = engine_prefill_units(run->engine);
    RUN_CHECK(engine_prefill_enqueue(run->engine, 0, &why));
    for (uint32_t u = 0; u < units; u++) {
        struct engine_unit unit = engine_prefill_unit(run->engine, u);
        if (u + 1 < units)
            RUN_CHECK(engine_prefill_enqueue(run->engine, u + 1, &why));
        RUN_CHECK(engine_prefill_read(
            run->engine, u, 0, unit.count,
            run->entries[unit.layer] + (size_t)unit.first * run->entry_bytes, &why));
        for (uint32_t at = 0; run->masses && unit.first + unit.count == n && at < n; at += 100)
            RUN_CHECK(engine_prefill_mass(run->engine, unit.layer, at, n - at < 100 ? n - at : 100,
                                          run->masses + (size_t)unit.layer * run->capacity + at,
                                          &why));
    }
    for (uint32_t i = 0; run->whole && i < n; i++)
        RUN_CHECK(engine_prefill_logits_of(run->engine, i, run->whole + (size_t)i * run->hp.n_vocab,
                                           &why));
    RUN_CHECK(engine_prefill_logits(run->engine, run->logits, &why));
    run->n_tokens = n;
    memset(run->uploaded, 0, sizeof *run->uploaded * run->hp.n_layers);
}

/* The staging slot of the i-th upload. */
static uint32_t staging_slot(const struct engine_run *run, uint32_t i)
{
    uint32_t piece = i / RUN_PIECE * RUN_PIECE;
    switch (run->order) {
    case RUN_IN_PIECES:
        return run->capacity - piece - RUN_PIECE + i % RUN_PIECE;
    case RUN_SCATTERED:
        return i * 7 % run->capacity;
    default:
        return run->capacity - 1 - i;
    }
}

void run_upload(struct engine_run *run, uint32_t layer, uint32_t first, uint32_t count)
{
    struct hill_why why = {0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t from = staging_slot(run, i);
        memcpy(run->staging + (size_t)from * run->stride,
               run->entries[layer] + (size_t)(first + i) * run->entry_bytes, run->entry_bytes);
        run->uploads[i] = (struct engine_upload){from, run->slot_of[first + i]};
    }
    RUN_CHECK(engine_step_upload(run->engine, layer, 0, count, run->uploads, &why));
}

void run_read_in_place(struct engine_run *run)
{
    struct hill_why why = {0};
    uint32_t n = run->hp.n_layers * run->capacity;
    uint64_t bytes = RUN_HOT_OFFSET + (uint64_t)n * run->entry_bytes;
    run->hot = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    run->slots = calloc(run->capacity, sizeof *run->slots);
    RUN_CHECK(engine_attach_hot(run->engine, run->hot, bytes, &why));
    RUN_CHECK(engine_place_hot(run->engine, RUN_HOT_OFFSET, n, &why));
}

/* Where the first n entries of a layer are read. */
static const uint32_t *run_list(struct engine_run *run, uint32_t layer, uint32_t n)
{
    if (!run->hot)
        return run->slot_of;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = layer * run->capacity + run->capacity - 1 - i;
        run->slots[i] = i % 2 ? run->slot_of[i] : ENGINE_HOT | at;
        memcpy(run->hot + RUN_HOT_OFFSET + (size_t)at * run->entry_bytes,
               run->entries[layer] + (size_t)i * run->entry_bytes, run->entry_bytes);
    }
    return run->slots;
}

void run_step(struct engine_run *run, uint32_t token)
{
    struct hill_why why = {0};
    uint32_t n = run->n_tokens;
    RUN_CHECK(engine_step_begin(run->engine, 1, &(struct engine_row){0, token, n}, &why));
    for (uint32_t l = 0; l < run->hp.n_layers; l++) {
        RUN_CHECK(engine_step_query(run->engine, l, 0, run->q,
                                    run->entries[l] + (size_t)n * run->entry_bytes, &why));
        run_upload(run, l, run->uploaded[l], n - run->uploaded[l]);
        run->uploaded[l] = n;
        uint32_t window = model_layer_window(&run->hp, l); /* the token itself is one of them */
        uint32_t before = window && n > window - 1 ? n - (window - 1) : 0;
        RUN_CHECK(
            engine_step_attend(run->engine, l, 0, n - before, run_list(run, l, n) + before, &why));
        RUN_CHECK(engine_step_run(run->engine, l, &why));
    }
    RUN_CHECK(engine_step_logits(run->engine, 0, run->logits, &why));
    run->n_tokens = n + 1;
}

uint32_t run_greedy(const struct engine_run *run)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < run->hp.n_vocab; i++)
        if (run->logits[i] > run->logits[best])
            best = i;
    return best;
}
