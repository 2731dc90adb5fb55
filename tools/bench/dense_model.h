/*
 * tools/bench/dense_model.h - the model of the figures in which weights matter: 12 layers, width
 * 768, 12 heads, FFN 2048, vocabulary 32000, F16: 134 M parameters with random values.
 *
 * Who calls it: bench_decode.c, bench_prefill.c, bench_batch.c, bench_gaps.c, bench_speculation.c,
 * bench_placement.c. Concurrency: none. Failure: bench_fail().
 */
#pragma once

#include "tools/bench/harness.h"

#define MODEL_LAYERS 12u
#define MODEL_WIDTH  768u
#define MODEL_HEADS  12u
#define MODEL_FFN    2048u
#define MODEL_VOCAB  32000u

/* What a decode step has to read, in bytes: weights of all layers and the output matrix; of a token
 * of the context its digest (`bits` a dimension and an exponent a head) or its entry, in all
 * layers. */
#define LAYER_WEIGHTS      (2.0 * (4.0 * MODEL_WIDTH * MODEL_WIDTH + 3.0 * MODEL_WIDTH * MODEL_FFN))
#define STEP_WEIGHTS       (MODEL_LAYERS * LAYER_WEIGHTS + 2.0 * MODEL_WIDTH * MODEL_VOCAB)
#define TOKEN_DIGEST(bits) ((double)MODEL_LAYERS * (MODEL_WIDTH * (bits) / 8.0 + MODEL_HEADS))
#define TOKEN_ENTRY        (4.0 * MODEL_LAYERS * MODEL_WIDTH)

/* Writes it as NAME.gguf into the figure's folder. */
void dense_model_make(const char *name);
/* The figure's folder and programs (pipeline_prepare_folder), and this model as model.gguf. */
void dense_model_prepare(const struct bench_options *o);
