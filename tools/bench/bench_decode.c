/*
 * tools/bench/bench_decode.c - figure "decode": tokens a second at the start of a text and deep in
 * it, beside llama.cpp, and the bytes a token moves.
 *
 * What: the running pipeline with everything hot, at depth 0 and after a prompt of 16384 tokens
 * with --alpha 0.05, and with --budget of the same size; llama.cpp (PEER_DIR) on the same model
 * file, with its fastest flags for either depth (peer.h): llama-bench at depth 0, llama-cli after
 * the same prompt, whose KV state it keeps in a file between the rounds. Bytes: weights + digests +
 * selected entries is what a step has to read; beside it what the pipeline counts of that: the
 * entries. The deep part has three rounds at most, since a prompt takes most of a minute; depth 0
 * has five in each round, since a request takes a quarter of a second there and the machine's
 * memory is faster at one moment than at the next. Shape, threads and failure: dense_model.h,
 * run_pipeline.h. Concurrency: as bench_prefill.c.
 */
#include <stdio.h>

#include "tools/bench/dense_model.h"
#include "tools/bench/peer.h"
#include "tools/bench/run_pipeline.h"

#define STEPS       32u
#define REPEATS     5u   /* of depth 0 in a round */
#define DEEP_STEPS  192u /* the first ones touch memory for the first time */
#define DEEP_ROUNDS 3u
#define ALPHA       0.05
#define PEER_TEST   "-p 0 -n 32" /* depth 0 */

enum method { SHALLOW, DEEP_ALPHA, DEEP_BUDGET, PEER_SHALLOW, PEER_DEEP, METHODS };

static struct bench_samples samples[METHODS];
static struct pipeline_answer deep_answer;
static char peer_flags_at[2][128]; /* at depth 0, and deep */

static void choose_peer_flags(uint32_t depth)
{
    char options[64];
    peer_first_flags(PEER_TEST, PEER_PROBES, peer_flags_at[0]);
    peer_depth_options(0, depth, STEPS, options);
    peer_first_flags(options, 1, peer_flags_at[1]); /* each run reads the prompt */
}

static void measure_shallow(const struct bench_options *o)
{
    pipeline_start("model", "-c 4096");
    pipeline_prompt("short", 2, 0);
    pipeline_ask("short", 3);
    for (uint32_t round = 0, n = o->rounds * REPEATS; round < n; round++) {
        bench_progress(round + 1, n, "depth 0");
        struct pipeline_answer a = pipeline_ask("short", STEPS + 1);
        bench_sample(&samples[SHALLOW], pipeline_decode_speed(&a));
        if (peer_is_there())
            bench_sample(&samples[PEER_SHALLOW], peer_first_bench(PEER_TEST, peer_flags_at[0]));
    }
    pipeline_stop();
}

static void measure_deep(const struct bench_options *o, uint32_t depth)
{
    uint32_t rounds = o->rounds < DEEP_ROUNDS ? o->rounds : DEEP_ROUNDS;
    char options[2][64];
    /* --alpha rounds up; the context grows by a step's token */
    snprintf(options[0], sizeof options[0], "-c %u --alpha %g", depth + 256, ALPHA);
    snprintf(options[1], sizeof options[1], "-c %u --budget %u", depth + 256,
             (uint32_t)(ALPHA * depth + 1));
    pipeline_prompt("deep", depth, 0);
    if (peer_is_there())
        peer_first_decode("deep", peer_flags_at[1], depth, DEEP_STEPS); /* makes the state */
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < 2; i++) {
            bench_progress(round + 1, rounds, i ? "deep, --budget" : "deep, --alpha");
            pipeline_start("model", options[i]);
            struct pipeline_answer a = pipeline_ask("deep", DEEP_STEPS + 1);
            pipeline_stop();
            if (a.prompt_tokens != depth)
                bench_fail("a prompt of %u tokens, not %u", a.prompt_tokens, depth);
            bench_sample(&samples[i ? DEEP_BUDGET : DEEP_ALPHA], pipeline_decode_speed(&a));
            if (!i)
                deep_answer = a;
        }
        if (peer_is_there())
            bench_sample(&samples[PEER_DEEP],
                         peer_first_decode("deep", peer_flags_at[1], depth, DEEP_STEPS));
    }
}

static void print_bytes(uint32_t depth)
{
    const struct pipeline_answer *a = &deep_answer;
    double steps = a->predicted - 1, mean = depth + (steps - 1) / 2, mb = 1e-6;
    double formula[3] = {STEP_WEIGHTS, mean * TOKEN_DIGEST, ALPHA * mean * TOKEN_ENTRY};
    /* each step attends to the new token's entry too, in every layer */
    double attended =
        (a->gpu_hits + a->hot_hits) / steps * TOKEN_ENTRY / MODEL_LAYERS + TOKEN_ENTRY;
    double uploaded = a->upload_bytes / steps;
    printf("\nBytes of a step at depth %u, --alpha %g, MB (10^6). Nobody counts what the kernels "
           "read of weights and digests: there is the formula alone.\n\n",
           depth, ALPHA);
    printf("| | formula | counted | from |\n|---|---:|---:|---|\n");
    printf("| weights | %.1f | | the model's shape: every matrix once |\n", formula[0] * mb);
    printf("| digests | %.1f | | the context: every digest once |\n", formula[1] * mb);
    printf("| selected entries | %.1f | %.1f | hits of GPU and hot pool, and the new entry |\n",
           formula[2] * mb, attended * mb);
    printf("| entries gathered into staging | | %.1f | upload counter |\n", uploaded * mb);
    printf("| sum | %.1f | | |\n", (formula[0] + formula[1] + formula[2]) * mb);
    printf("\nBesides, %.1f MB are written: uploads into staging and from there into the GPU's "
           "slots.\n",
           2 * uploaded * mb);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("decode", argc, argv);
    uint32_t depth = o.quick ? 1024 : 16384;
    dense_model_prepare(&o);
    if (peer_is_there())
        choose_peer_flags(depth);
    measure_shallow(&o);
    measure_deep(&o, depth);
    printf("## Decode\n\nTokens a second over %u steps at depth 0, over %u deep ones; 134 M "
           "parameters in F16 (random weights), %u "
           "threads, everything hot (--csd none), %u rounds at depth 0 and %u at %u, methods in "
           "turn.\n\n",
           STEPS, DEEP_STEPS, PIPELINE_THREADS, samples[SHALLOW].count, samples[DEEP_ALPHA].count,
           depth);
    printf(
        "| method | tokens/s, median | lowest - highest | of llama.cpp |\n|---|---:|---:|---:|\n");
    char name[192];
    bench_print_samples("hillinfer, depth 0", &samples[SHALLOW], &samples[PEER_SHALLOW]);
    snprintf(name, sizeof name, "llama.cpp, %s, depth 0", peer_flags_at[0]);
    if (peer_is_there())
        bench_print_samples(name, &samples[PEER_SHALLOW], &samples[PEER_SHALLOW]);
    snprintf(name, sizeof name, "hillinfer, depth %u, --alpha %g", depth, ALPHA);
    bench_print_samples(name, &samples[DEEP_ALPHA], &samples[PEER_DEEP]);
    snprintf(name, sizeof name, "hillinfer, depth %u, --budget %u", depth,
             (uint32_t)(ALPHA * depth + 1));
    bench_print_samples(name, &samples[DEEP_BUDGET], &samples[PEER_DEEP]);
    snprintf(name, sizeof name, "llama.cpp, %s, depth %u", peer_flags_at[1], depth);
    if (peer_is_there())
        bench_print_samples(name, &samples[PEER_DEEP], &samples[PEER_DEEP]);
    else
        printf("\nNo peer: PEER_DIR was not set.\n");
    peer_print_versions(1);
    print_bytes(depth);
    return 0;
}
