/*
 * tools/bench/bench_prefill.c - figure "prefill": prompts of 512 and 4096 tokens through the
 * running pipeline, beside llama.cpp.
 *
 * What: tokens a second from the request to the first token, entries handed to the scorer and their
 * digests made included, with everything hot; llama-bench of PEER_DIR, where that is set, takes
 * turns on the same model file, with its fastest flags for the length (peer.h). Shape, threads and
 * failure: dense_model.h, run_pipeline.h. Concurrency: one thread here; the pipeline's processes
 * and the peer never run a request at the same time.
 */
#include <stdio.h>

#include "tools/bench/dense_model.h"
#include "tools/bench/peer.h"
#include "tools/bench/run_pipeline.h"

#define LENGTHS 2u

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("prefill", argc, argv);
    const uint32_t lengths[LENGTHS] = {o.quick ? 64 : 512, o.quick ? 256 : 4096};
    static struct bench_samples ours[LENGTHS], peers[LENGTHS];
    static char flags[LENGTHS][128]; /* the peer's fastest */
    char name[192], options[64];
    dense_model_prepare(&o);
    for (uint32_t i = 0; i < LENGTHS; i++) {
        snprintf(name, sizeof name, "%u", lengths[i]);
        pipeline_prompt(name, lengths[i], 0);
        snprintf(options, sizeof options, "-p %u -n 0", lengths[i]);
        if (peer_is_there())
            peer_first_flags(options, PEER_PROBES, flags[i]);
    }
    pipeline_start("model", "-c 4200");
    pipeline_ask(name, 1); /* buffers grow and kernels are compiled once */
    for (uint32_t round = 0; round < o.rounds; round++) {
        for (uint32_t i = 0; i < LENGTHS; i++) {
            snprintf(name, sizeof name, "%u", lengths[i]);
            bench_progress(round + 1, o.rounds, name);
            struct pipeline_answer a = pipeline_ask(name, 1);
            if (a.prompt_tokens != lengths[i])
                bench_fail("a prompt of %u tokens, not %u", a.prompt_tokens, lengths[i]);
            bench_sample(&ours[i], a.prompt_tokens * 1e3 / a.prompt_ms);
            snprintf(options, sizeof options, "-p %u -n 0", lengths[i]);
            if (peer_is_there())
                bench_sample(&peers[i], peer_first_bench(options, flags[i]));
        }
    }
    printf("## Prefill\n\nTokens a second; 134 M parameters in F16 (random weights), %u threads, "
           "everything hot, %u rounds, methods in turn.\n\n",
           PIPELINE_THREADS, o.rounds);
    printf(
        "| method | tokens/s, median | lowest - highest | of llama.cpp |\n|---|---:|---:|---:|\n");
    for (uint32_t i = 0; i < LENGTHS; i++) {
        snprintf(name, sizeof name, "hillinfer, %u tokens", lengths[i]);
        bench_print_samples(name, &ours[i], &peers[i]);
        snprintf(name, sizeof name, "llama.cpp, %s, %u tokens", flags[i], lengths[i]);
        if (peer_is_there())
            bench_print_samples(name, &peers[i], &peers[i]);
    }
    if (!peer_is_there())
        printf("\nNo peer: PEER_DIR was not set.\n");
    peer_print_versions(1);
    return 0;
}
