/*
 * tools/bench/run_pipeline.h - the running pipeline, as the figures drive it: started, asked,
 * stopped by scripts/hillinfer, its answers read as JSON.
 *
 * What: a figure has one folder, which holds its models, prompts, run and state folder, and at most
 * one pipeline at a time, which runs on PIPELINE_THREADS threads. Of a random-weight model a byte
 * of the prompt is a token. Who calls it: the figures that run the pipeline; point.c, clients.c,
 * dense_model.c, peer.c. Concurrency: one thread. Failure: bench_fail() in all of them; what was
 * started and written is stopped and removed at exit.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "tools/bench/harness.h"

#define PIPELINE_THREADS 2u
/* $BENCH_THREADS, for figures of real KV on a machine with a GPU; else PIPELINE_THREADS. */
uint32_t pipeline_threads(void);

/* The figure's folder; set by pipeline_prepare_folder. */
extern const char *pipeline_folder;

/* ---- commands ---- */

/* A shell command's whole output, NUL-terminated; the caller frees it. NULL: the command failed. */
char *capture(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same in two halves: the command runs meanwhile. */
FILE *capture_start(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *capture_rest(FILE *command);
/* What a shell command needs before a path for another program: "$PWD/" where it is relative, or
 * "".
 */
const char *pipeline_before(const char *path);
/* Ends the figure when output is NULL, and frees it. */
void run_or_fail(const char *what, char *output);

/* ---- JSON ---- */

/* What `what` printed; frees text. Never NULL. */
json_t *json_of(char *text, const char *what);
/* The number a, a.b or a.b.c; b and c may be NULL. */
double json_at(const json_t *root, const char *a, const char *b, const char *c);

/* ---- the pipeline ---- */

/* Makes the folder, and builds the programs. */
void pipeline_prepare_folder(const struct bench_options *o);

/* A real model's path, in $HILL_MODELS or the folder of `hillinfer get-models`; false: it is not
 * there. */
bool pipeline_find_model(const char *file, char path[512]);

/* A prompt of n tokens (the first is the start of the text) as NAME.txt in the folder; each variant
 * has its own text. */
void pipeline_prompt(const char *name, uint32_t n, uint32_t variant);

/* Start it on a model file, with what else `hillinfer up` is to be told. */
void pipeline_start_with(const char *model, const char *options);
/* false: it does not come up, and has said why on stderr. */
bool pipeline_try_start(const char *model, const char *options);
/* On NAME.gguf of the folder, everything hot. */
void pipeline_start(const char *name, const char *options);
void pipeline_stop(void);

/* `hillctl status --json`; the caller drops the reference. */
json_t *pipeline_status(void);

struct pipeline_answer {
    uint32_t prompt_tokens, predicted;
    double prompt_ms, predicted_ms;
    /* of the whole answer; bytes that decode steps have read (docs/interface.md, `bytes`) */
    double upload_bytes, weight_bytes, attended_bytes, scored_bytes;
};

/* Continue NAME.txt of the folder greedily by `predict` tokens. */
struct pipeline_answer pipeline_ask(const char *prompt, uint32_t predict);

/* What has a session of a prompt in the file at `path`, saved before the first decode step. */
void pipeline_save(const char *prompt_path, const char *session);
/* Restores it; each of the tokens comes out of a step, and predicted_ms are of these alone. */
struct pipeline_answer pipeline_restore(const char *session, uint32_t steps);

/* Steps a second of pipeline_ask: the first token comes out of the prompt, each further one out of
 * a step. */
double pipeline_decode_speed(const struct pipeline_answer *a);
