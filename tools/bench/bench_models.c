/*
 * tools/bench/bench_models.c - figure "models": real quantised models through the running pipeline, beside
 * the peers of PEER_DIR on the same files.
 *
 * What: of each model that is in $HILL_MODELS or the cache folder, tokens a second of decoding at depth
 * 0 and of prompts of 512 and 4096 tokens, everything hot; then the llama-bench of each peer, with the
 * options given behind its folder (peer.h), method after method in every round. The text of a prompt
 * is the word "the" again and again, a token each in these vocabularies; the pipeline says how many
 * they were. Threads and failure: run_pipeline.h. Concurrency: the pipeline waits for requests while
 * a peer runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench/peer.h"
#include "tools/bench/run_pipeline.h"

#define STEPS     64u
#define TESTS     3u /* decode, then two lengths of prompts */
#define PEERS_MAX 8u

static const char *const files[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                                    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"};
#define MODELS (sizeof files / sizeof *files)

struct measured {
    struct bench_samples ours[TESTS], peers[PEERS_MAX][TESTS];
};

/* The model's path; false: it is not there. */
static bool find_model(const char *file, char path[512])
{
    const char *folder = getenv("HILL_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    if (folder && *folder)
        snprintf(path, 512, "%s/%s", folder, file);
    else if (cache && *cache)
        snprintf(path, 512, "%s/hillinfer/models/%s", cache, file);
    else
        snprintf(path, 512, "%s/.cache/hillinfer/models/%s", getenv("HOME"), file);
    return access(path, R_OK) == 0;
}

static void write_prompt(const char *name, uint32_t words)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.txt", pipeline_folder, name);
    FILE *out = fopen(path, "w");
    if (!out)
        bench_fail("cannot write %s", path);
    for (uint32_t i = 0; i < words; i++)
        fputs(i ? " the" : "the", out);
    fclose(out);
}

static void measure_ours(struct measured *m, const uint32_t lengths[TESTS])
{
    for (uint32_t t = 0; t < TESTS; t++) {
        char name[32];
        snprintf(name, sizeof name, "%u", lengths[t]);
        struct pipeline_answer a = pipeline_ask(name, t ? 1 : STEPS + 1);
        bench_sample(&m->ours[t],
                     t ? a.prompt_tokens * 1e3 / a.prompt_ms : pipeline_decode_speed(&a));
    }
}

static void measure_peer(struct measured *m, uint32_t peer, const char *model,
                         const uint32_t lengths[TESTS])
{
    for (uint32_t t = 0; t < TESTS; t++) {
        char options[64];
        snprintf(options, sizeof options, "-p %u -n %u", t ? lengths[t] : 0, t ? 0 : STEPS);
        bench_sample(&m->peers[peer][t], peer_bench_of(peer, model, options));
    }
}

static void measure(struct measured *m, const char *model, const struct bench_options *o,
                    const uint32_t lengths[TESTS])
{
    pipeline_start_with(model, "-c 4300 --csd none");
    for (uint32_t t = 0; t < TESTS; t++) {
        char name[32];
        snprintf(name, sizeof name, "%u", lengths[t]);
        write_prompt(name, lengths[t]);
        pipeline_ask(name, 3); /* buffers grow and kernels are compiled once */
    }
    for (uint32_t round = 0; round < o->rounds; round++) {
        bench_progress(round + 1, o->rounds, model);
        measure_ours(m, lengths);
        for (uint32_t peer = 0; peer < peer_count(); peer++)
            measure_peer(m, peer, model, lengths);
    }
    pipeline_stop();
}

static void print_row(const char *name, struct bench_samples *s, const struct bench_samples *best)
{
    double median = bench_median(s);
    printf("| %s | %.1f | %.1f - %.1f |", name, median, bench_quantile(s->values, s->count, 0.25),
           bench_quantile(s->values, s->count, 0.75));
    if (best && best->count)
        printf(" %.2f |\n", median / bench_median(best));
    else
        printf(" - |\n");
}

static void print_model(struct measured *m, const char *file, const uint32_t lengths[TESTS])
{
    printf("\n**%s**\n\n| test, method | tokens/s, median | quartiles | of the best peer |\n"
           "|---|---:|---:|---:|\n",
           file);
    for (uint32_t t = 0; t < TESTS; t++) {
        const struct bench_samples *best = NULL;
        char test[32], name[400];
        for (uint32_t p = 0; p < peer_count(); p++)
            if (!best || bench_median(&m->peers[p][t]) > bench_median(best))
                best = &m->peers[p][t];
        snprintf(test, sizeof test, t ? "prompt of %u" : "decode at depth 0", lengths[t]);
        snprintf(name, sizeof name, "%s, hillinfer", test);
        print_row(name, &m->ours[t], best);
        for (uint32_t p = 0; p < peer_count(); p++) {
            snprintf(name, sizeof name, "%s, peer %u", test, p + 1);
            print_row(name, &m->peers[p][t], best);
        }
    }
}

/* What decides which instructions a program may use. */
static void print_flags(void)
{
    char *flags = capture("grep -m1 '^flags' /proc/cpuinfo | tr ' ' '\\n' | "
                          "grep -E '^(avx|amx|fma|f16c)' | sort | tr '\\n' ' '");
    printf("CPU flags: %s\n", flags ? flags : "unknown");
    free(flags);
}

int main(int argc, char **argv)
{
    static struct measured measured[MODELS];
    struct bench_options o = bench_start("models", argc, argv);
    const uint32_t lengths[TESTS] = {2, o.quick ? 64 : 512, o.quick ? 128 : 4096};
    bool there[MODELS] = {false};
    if (peer_count() > PEERS_MAX)
        bench_fail("PEER_DIR has more than %u folders", PEERS_MAX);
    pipeline_prepare_folder(&o);
    for (uint32_t i = 0; i < (o.quick ? 1 : MODELS); i++) {
        char path[512];
        there[i] = find_model(files[i], path);
        if (there[i])
            measure(&measured[i], path, &o, lengths);
    }
    printf("## Models\n\nTokens a second on the same file; %u threads, everything hot, %u rounds, "
           "methods in turn.\n",
           PIPELINE_THREADS, o.rounds);
    print_flags();
    for (uint32_t p = 0; p < peer_count(); p++)
        printf("Peer %u: `llama-bench%s`.\n", p + 1,
               strchr(peer_name(p), ' ') ? strchr(peer_name(p), ' ') : "");
    if (!peer_count())
        printf("No peer: PEER_DIR was not set.\n");
    for (uint32_t i = 0; i < MODELS; i++) {
        if (there[i])
            print_model(&measured[i], files[i], lengths);
        else if (!o.quick || i == 0)
            printf("\n%s was not there.\n", files[i]);
    }
    return 0;
}
