/*
 * tools/bench/bench_batch.c - figure "batch": tokens a second of the GPU worker's engine when a
 * step takes 1, 2, 4 or 8 sequences.
 *
 * What: first the engine alone, without scorer and rings: a model of random weights (the shape of
 * the figures decode and prefill), each sequence with a list of CONTEXT entries in its slots. The
 * weights are read once a step, so a further row costs its arithmetic and its own entries only.
 * Every row must give the logits it gives alone, bit by bit. Then the running pipeline with as many
 * clients, on that model and on one whose weights dominate by far, each speed taken while all of
 * them decode. Who calls it: tools/bench/run. Concurrency: one thread and the device's; the
 * pipeline is processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tools/bench/clients.h"
#include "tools/bench/dense_model.h"
#include "tools/bench/run_pipeline.h"
#include "gpu_worker/engine.h"

#define STEPS   16u
#define CONTEXT 256u
#define ROWS    8u
#define PREDICT 193u /* tokens of each client; more than the steps beside other prompts */

enum { SIZES = 4 };
static const uint32_t sizes[SIZES] = {1, 2, 4, ROWS};

struct bed {
    struct cldevice device;
    struct gguf_file *file;
    struct model_hparams hp;
    struct engine *engine;
    uint8_t *staging;
    uint64_t stride, staging_bytes;
    uint32_t slots[CONTEXT];
    struct engine_upload uploads[CONTEXT];
    float *q, *logits, *alone; /* alone [ROWS][n_vocab]: a row's logits in a step of its own */
    uint8_t *entry;
};

static void check(int rc, const struct hill_why *why)
{
    if (rc)
        bench_fail("the engine failed: %s", why->text);
}

/* Values of K and V between -1 and 1, in FP16: sign, a small exponent, some mantissa. */
static void fill_staging(struct bed *b)
{
    uint64_t state = 11;
    for (uint64_t i = 0; i < b->staging_bytes / 2; i++) {
        uint64_t bits = bench_random(&state) >> 32;
        ((uint16_t *)(void *)b->staging)[i] =
            (uint16_t)((bits & 0x83ff) | (8 + (bits >> 16) % 7) << 10);
    }
}

static void open_bed(struct bed *b, const struct bench_options *o)
{
    struct hill_why why = {.text = ""};
    char path[4200];
    memset(b, 0, sizeof *b);
    dense_model_prepare(o);
    snprintf(path, sizeof path, "%s/model.gguf", pipeline_folder);
    cldevice_set_threads(PIPELINE_THREADS);
    check(gguf_open(&b->file, path, &why), &why);
    check(model_hparams_read(&b->hp, b->file, &why), &why);
    check(cldevice_open(&b->device, NULL, &why), &why);
    check(engine_create(&b->engine, &b->device, b->file, &b->hp, &why), &why);
    b->stride = (4ull * b->hp.n_kv_heads * b->hp.head_dim + 63) / 64 * 64;
    b->staging_bytes = b->stride * CONTEXT;
    b->staging = bench_memory(b->staging_bytes);
    fill_staging(b);
    b->q = calloc((size_t)b->hp.n_heads * b->hp.head_dim, sizeof *b->q);
    b->entry = calloc(1, b->stride);
    b->logits = calloc(b->hp.n_vocab, sizeof *b->logits);
    b->alone = calloc((size_t)ROWS * b->hp.n_vocab, sizeof *b->alone);
    if (!b->q || !b->entry || !b->logits || !b->alone)
        bench_fail("no memory");
    for (uint32_t i = 0; i < CONTEXT; i++) {
        b->slots[i] = i;
        b->uploads[i] = (struct engine_upload){i, i};
    }
    check(engine_configure(b->engine, 64, CONTEXT, ROWS, &why), &why);
    check(engine_attach_staging(b->engine, b->staging, b->stride, CONTEXT, &why), &why);
}

static void close_bed(struct bed *b)
{
    struct hill_why why = {.text = ""};
    check(engine_attach_staging(b->engine, NULL, 0, 0, &why), &why);
    engine_destroy(b->engine);
    cldevice_close(&b->device);
    gguf_close(b->file);
    bench_memory_free(b->staging, b->staging_bytes);
    free(b->q);
    free(b->entry);
    free(b->logits);
    free(b->alone);
}

/* Sequences first .. first + n - 1 take a token; fresh: their slots are filled as well. */
static void step(struct bed *b, uint32_t first, uint32_t n, bool fresh)
{
    struct hill_why why = {.text = ""};
    struct engine_row rows[ROWS];
    for (uint32_t r = 0; r < n; r++)
        rows[r] = (struct engine_row){first + r, 100 + 7 * (first + r), CONTEXT};
    check(engine_step_begin(b->engine, n, rows, &why), &why);
    for (uint32_t layer = 0; layer < b->hp.n_layers; layer++) {
        for (uint32_t r = 0; r < n; r++)
            check(engine_step_query(b->engine, layer, r, b->q, b->entry, &why), &why);
        for (uint32_t r = 0; r < n; r++) {
            if (fresh)
                check(engine_step_upload(b->engine, layer, r, CONTEXT, b->uploads, &why), &why);
            check(engine_step_attend(b->engine, layer, r, CONTEXT, b->slots, &why), &why);
        }
        check(engine_step_run(b->engine, layer, &why), &why);
    }
    for (uint32_t r = 0; r < n; r++)
        check(engine_step_logits(b->engine, r, b->logits, &why), &why);
}

/* Each row of a batch must have the bits of its own step. */
static void check_rows(struct bed *b, uint32_t n)
{
    struct hill_why why = {.text = ""};
    step(b, 0, n, false);
    for (uint32_t r = 0; r < n; r++) {
        check(engine_step_logits(b->engine, r, b->logits, &why), &why);
        if (memcmp(b->logits, b->alone + (size_t)r * b->hp.n_vocab,
                   sizeof *b->logits * b->hp.n_vocab) != 0)
            bench_fail("row %u of %u gives other logits than alone", r, n);
    }
}

static double tokens_per_second(struct bed *b, uint32_t n, uint32_t steps)
{
    int64_t start = clock_now_ns();
    for (uint32_t i = 0; i < steps; i++)
        step(b, 0, n, false);
    return n * steps * 1e9 / (double)(clock_now_ns() - start);
}

/* ---- the running pipeline ---- */

/* A model whose pipeline is measured with several clients. */
struct shape {
    const char *file, *text, *prompt, *options;
    uint32_t prompt_tokens, rounds, n_sizes;
    const uint32_t *sizes;
};

static const uint32_t both[2] = {1, ROWS};

/* The shape of Llama 3.2 1B, but for the output matrix, which has weights of its own. */
static void make_large(void)
{
    run_or_fail(
        "hill-mkmodel",
        capture("build/bin/hill-mkmodel -o %s/large.gguf --random --layers 16 --width 2048 "
                "--heads 32 --kv-heads 8 --head-dim 64 --ffn 8192 --vocab 128256 --type f16 "
                ">&2",
                pipeline_folder));
}

/* A prompt's units, each with a step of the others beside it, come before a client decodes: the
 * first client's context is then longer than the last one's. But it is over as much earlier, and
 * each asks for as many tokens, so that what is attended to is the same in the mean, however many
 * clients there are. */
static void measure_clients(const struct shape *shape, struct bench_samples *samples)
{
    pipeline_prompt(shape->prompt, shape->prompt_tokens, 0);
    pipeline_start(shape->file, shape->options);
    clients_together(shape->prompt, 1, 9, 1); /* memory is touched for the first time */
    for (uint32_t round = 0; round < shape->rounds; round++)
        for (uint32_t i = 0; i < shape->n_sizes; i++) {
            uint32_t n = shape->sizes[i];
            bench_progress(round + 1, shape->rounds, shape->text);
            bench_sample(&samples[i], clients_together(shape->prompt, n, PREDICT, 8));
        }
}

/* ---- the section ---- */

static void print_table(const char *head, const uint32_t *of, uint32_t n,
                        const struct bench_samples *samples)
{
    printf("| %s | tokens/s, median | lowest - highest | of one |\n|---|---:|---:|---:|\n", head);
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%u", of[i]);
        bench_print_samples(name, &samples[i], &samples[0]);
    }
}

static void print_clients(const struct shape *shape, const struct bench_samples *samples)
{
    printf(
        "\nThe running pipeline on %s (`%s`): clients that all ask at once, prompts of %u "
        "tokens, all attended to; each makes %u tokens, so the contexts of a row are those from %u "
        "to %u and their mean is the same in all rows; tokens a second of all together, while "
        "all of them decode; %u round%s, numbers of clients in turn.\n\n",
        shape->text, shape->options, shape->prompt_tokens, PREDICT, shape->prompt_tokens + 1,
        shape->prompt_tokens + PREDICT, shape->rounds, shape->rounds > 1 ? "s" : "");
    print_table("clients at once", shape->sizes, shape->n_sizes, samples);
}

static void measure_engine(const struct bench_options *o, struct bench_samples *samples)
{
    struct bed bed;
    open_bed(&bed, o);
    for (uint32_t r = 0; r < ROWS; r++) {
        step(&bed, r, 1, true);
        memcpy(bed.alone + (size_t)r * bed.hp.n_vocab, bed.logits,
               sizeof *bed.logits * bed.hp.n_vocab);
    }
    for (uint32_t i = 0; i < SIZES; i++)
        check_rows(&bed, sizes[i]);
    for (uint32_t round = 0; round < o->rounds; round++) {
        bench_progress(round + 1, o->rounds, "batch");
        for (uint32_t i = 0; i < SIZES; i++)
            bench_sample(&samples[i], tokens_per_second(&bed, sizes[i], o->quick ? 2 : STEPS));
    }
    close_bed(&bed);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("batch", argc, argv);
    static struct bench_samples engine[SIZES], small[SIZES], large[2];
    struct shape shapes[] = {
        {"model", "134 M parameters", "short", "-c 768 -np 8 --alpha 1", CONTEXT, o.rounds, SIZES,
         sizes},
        {"large", "1.5 G parameters (the shape of Llama 3.2 1B, vocabulary 128256, F16)", "tiny",
         "-c 256 -np 8 --alpha 1", 17, 1, 2, both}};
    measure_engine(&o, engine);
    measure_clients(&shapes[0], small);
    pipeline_stop();
    if (!o.quick) {
        make_large();
        measure_clients(&shapes[1], large);
        pipeline_stop();
    }
    printf(
        "## Batch\n\nTokens a second of the GPU worker's engine, all sequences together, over %u "
        "steps; 134 M parameters in F16 (random weights), %u threads, %u entries attended by "
        "each, %u rounds, sizes in turn. Every row gave the bits that it gives alone.\n\n",
        o.quick ? 2 : STEPS, PIPELINE_THREADS, CONTEXT, o.rounds);
    print_table("sequences in a step", sizes, SIZES, engine);
    print_clients(&shapes[0], small);
    if (!o.quick)
        print_clients(&shapes[1], large);
    return 0;
}
