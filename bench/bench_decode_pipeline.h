/*
 * bench/bench_decode_pipeline.h - the running pipeline and the peer's programs, for the figures
 * "decode", "prefill", "batch" and "speculation".
 *
 * What: makes the random-weight model (12 layers, width 768, 12 heads, FFN 2048, vocabulary 32000,
 * F16: 134 M parameters), starts the real pipeline on it with scripts/hillinfer, asks it for one
 * request at a time and reads the numbers it reports; runs llama.cpp's programs from PEER_DIR where
 * that is set. Everything runs on two threads. Of a random-weight model a byte of the prompt is a
 * token. Who calls it: bench_decode.c, bench_prefill.c, bench_batch.c, bench_speculation.c.
 * Failure: bench_fail(). What was started and written is stopped and removed at exit.
 */
#ifndef HILL_BENCH_DECODE_PIPELINE_H
#define HILL_BENCH_DECODE_PIPELINE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "bench/harness.h"

#define MODEL_LAYERS 12u
#define MODEL_WIDTH  768u
#define MODEL_HEADS  12u
#define MODEL_FFN    2048u
#define MODEL_VOCAB  32000u
#define THREADS      2u

/* What a decode step has to read, in bytes: weights of all layers and the output matrix; of a token
 * of the context its digest (a byte a dimension and an exponent a head) or its entry, in all
 * layers. */
#define LAYER_WEIGHTS (2.0 * (4.0 * MODEL_WIDTH * MODEL_WIDTH + 3.0 * MODEL_WIDTH * MODEL_FFN))
#define STEP_WEIGHTS  (MODEL_LAYERS * LAYER_WEIGHTS + 2.0 * MODEL_WIDTH * MODEL_VOCAB)
#define TOKEN_DIGEST  ((double)MODEL_LAYERS * (MODEL_WIDTH + MODEL_HEADS))
#define TOKEN_ENTRY   (4.0 * MODEL_LAYERS * MODEL_WIDTH)

struct pipeline_answer {
    uint32_t prompt_tokens, predicted;
    double prompt_ms, predicted_ms, idle_ms;
    double gpu_hits, hot_hits,
        upload_bytes; /* of the whole answer; hits are entries of one layer */
};

static char pipeline_folder[4096];
static bool pipeline_runs;
static const char *peer_folder;

/* A command's whole output, NUL-terminated; the caller frees it. NULL when the command failed. */
static inline char *capture(const char *format, ...)
{
    char command[16384];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    FILE *f = popen(command, "r");
    size_t used = 0, space = 1 << 16;
    char *text = malloc(space);
    if (!f || !text)
        bench_fail("cannot run %s", command);
    for (size_t n; (n = fread(text + used, 1, space - used - 1, f)) > 0;) {
        used += n;
        if (space - used < 4096 && !(text = realloc(text, space *= 2)))
            bench_fail("no memory for the output of %s", command);
    }
    text[used] = 0;
    if (pclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

static inline void run_or_fail(const char *what, char *output)
{
    if (!output)
        bench_fail("%s failed", what);
    free(output);
}

static inline void pipeline_stop(void)
{
    if (pipeline_runs)
        free(capture("HILL_RUN_DIR=%s/run scripts/hillinfer down >&2", pipeline_folder));
    pipeline_runs = false;
}

static inline void pipeline_clean(void)
{
    pipeline_stop();
    if (*pipeline_folder)
        free(capture("rm -rf %s", pipeline_folder));
}

/* The folder, the model, and whether there is a peer. */
static inline void pipeline_prepare(const struct bench_options *o)
{
    snprintf(pipeline_folder, sizeof pipeline_folder, "%s/%s.XXXXXX", o->folder, o->figure);
    if (!mkdtemp(pipeline_folder))
        bench_fail("cannot make a folder in %s", o->folder);
    atexit(pipeline_clean);
    run_or_fail("make programs", capture("make --no-print-directory -s programs >&2"));
    run_or_fail("hill-mkmodel",
                capture("build/bin/hill-mkmodel -o %s/model.gguf --random --layers %u --width %u "
                        "--heads %u --kv-heads %u --head-dim %u --ffn %u --vocab %u --type f16 >&2",
                        pipeline_folder, MODEL_LAYERS, MODEL_WIDTH, MODEL_HEADS, MODEL_HEADS,
                        MODEL_WIDTH / MODEL_HEADS, MODEL_FFN, MODEL_VOCAB));
    peer_folder = getenv("PEER_DIR");
    if (peer_folder && !*peer_folder)
        peer_folder = NULL;
}

/* A prompt of n tokens (the first is the start of the text), as NAME.txt in the folder. */
static inline void pipeline_prompt(const char *name, uint32_t n)
{
    char path[4200];
    uint64_t state = 7;
    snprintf(path, sizeof path, "%s/%s.txt", pipeline_folder, name);
    FILE *f = fopen(path, "w");
    if (!f)
        bench_fail("cannot write %s", path);
    for (uint32_t i = 1; i < n; i++)
        putc('a' + (int)(bench_random(&state) >> 33) % 26, f);
    if (fclose(f))
        bench_fail("cannot write %s", path);
}

/* On a model file, with what else it is to be started with. */
static inline void pipeline_start_with(const char *model, const char *options)
{
    pipeline_runs = true; /* also when only a part of it has come up */
    run_or_fail("hillinfer up",
                capture("HILL_RUN_DIR=%s/run scripts/hillinfer up --detach -m %s -t %u "
                        "--state-dir %s/state --log-level error %s >&2",
                        pipeline_folder, model, THREADS, pipeline_folder, options));
}

/* On NAME.gguf of the folder, everything hot. */
static inline void pipeline_start_model(const char *name, const char *options)
{
    char model[4200], all[512];
    snprintf(model, sizeof model, "%s/%s.gguf", pipeline_folder, name);
    snprintf(all, sizeof all, "--csd none %s", options);
    pipeline_start_with(model, all);
}

static inline void pipeline_start(const char *options)
{
    pipeline_start_model("model", options);
}

static inline double json_at(json_t *root, const char *a, const char *b, const char *c)
{
    json_t *v = json_object_get(root, a);
    if (b)
        v = json_object_get(v, b);
    if (c)
        v = json_object_get(v, c);
    if (!json_is_number(v))
        bench_fail("the answer has no number %s %s %s", a, b ? b : "", c ? c : "");
    return json_number_value(v);
}

/* What the pipeline answered; frees text. */
static inline struct pipeline_answer pipeline_read(char *text, const char *prompt, uint32_t predict)
{
    json_error_t error;
    json_t *root = text ? json_loads(text, 0, &error) : NULL;
    if (!root)
        bench_fail("the pipeline gave no answer to prompt %s", prompt);
    struct pipeline_answer a = {
        .prompt_tokens = (uint32_t)json_at(root, "prompt_tokens", NULL, NULL),
        .predicted = (uint32_t)json_at(root, "predicted_tokens", NULL, NULL),
        .prompt_ms = json_at(root, "prompt_ms", NULL, NULL),
        .predicted_ms = json_at(root, "predicted_ms", NULL, NULL),
        .idle_ms = json_at(root, "stages", "gpu_idle_ms", NULL),
        .gpu_hits = json_at(root, "tiers", "gpu", "hits"),
        .hot_hits = json_at(root, "tiers", "hot", "hits"),
        .upload_bytes = json_at(root, "bytes", "gpu_upload", NULL),
    };
    json_decref(root);
    free(text);
    if (a.predicted != predict)
        bench_fail("%u of %u tokens came", a.predicted, predict);
    return a;
}

static inline struct pipeline_answer pipeline_ask(const char *prompt, uint32_t predict)
{
    return pipeline_read(
        capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/%s.txt -n %u --temp 0 "
                "--ignore-eos --json",
                pipeline_folder, pipeline_folder, prompt, predict),
        prompt, predict);
}

/* Steps a second: the first token comes out of the prompt, each further one out of a step. */
static inline double decode_speed(const struct pipeline_answer *a)
{
    return (a->predicted - 1) * 1e3 / a->predicted_ms;
}

/* llama-bench: tokens a second of the one test that `options` ask for. */
static inline double peer_bench(const char *options)
{
    json_error_t error;
    char *text = capture("%s/llama-bench -m %s/model.gguf -t %u -r 1 -o json %s 2>/dev/null",
                         peer_folder, pipeline_folder, THREADS, options);
    json_t *root = text ? json_loads(text, 0, &error) : NULL;
    json_t *speed = root ? json_object_get(json_array_get(root, 0), "avg_ts") : NULL;
    if (!json_is_number(speed))
        bench_fail("%s/llama-bench %s gave no number", peer_folder, options);
    double value = json_number_value(speed);
    json_decref(root);
    free(text);
    return value;
}

/* "median | lowest - highest" */
static inline void print_samples(const char *name, const struct bench_samples *s,
                                 const struct bench_samples *peer)
{
    printf("| %s | %.1f | %.1f - %.1f |", name, bench_median(s), bench_lowest(s), bench_highest(s));
    if (peer && peer->count)
        printf(" %.2f |\n", bench_median(s) / bench_median(peer));
    else
        printf(" |\n");
}

#endif
