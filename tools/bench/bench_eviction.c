/*
 * tools/bench/bench_eviction.c - figure "eviction": how many tokens of a trace of requests the
 * prefix store finds, by its own rule of what goes first, by others and at best.
 *
 * What: counting alone (prefix_trace.h): no clock is read, so a busy machine changes nothing. The
 * trace is the file that PREFIX_TRACE names, by default Mooncake's conversations in $BENCH_DATA;
 * without it the figure is skipped (77). Who calls it: tools/bench/run.
 * Concurrency: one thread. Failure: bench_fail().
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prefix/chunk_tree.h"
#include "tools/bench/harness.h"
#include "tools/bench/prefix_trace.h"

#define DEFAULT_TRACE "mooncake_conversation.jsonl.gz"
#define SLOTS_LEAST   1024u
#define SLOTS_MOST    (1u << 21)
enum { SIZES = 12 }; /* from SLOTS_LEAST to SLOTS_MOST, each twice the one before */

static const char *const names[TRACE_RULES] = {
    [TRACE_STORE] = "store",     [TRACE_LRU] = "LRU",
    [TRACE_LFU] = "LFU",         [TRACE_UTILITY] = "frequency x cost",
    [TRACE_OPTIMUM] = "optimum",
};

static struct trace_score scores[SIZES][TRACE_RULES];

static void print_table(const char *what, uint32_t first, uint32_t n, bool saved)
{
    printf("| %s |", what);
    for (uint32_t rule = 0; rule < TRACE_RULES; rule++)
        printf(" %s |", names[rule]);
    printf("\n|---:|");
    for (uint32_t rule = 0; rule < TRACE_RULES; rule++)
        printf("---:|");
    printf("\n");
    for (uint32_t i = first; i < n; i++) {
        printf("| %u |", (SLOTS_LEAST << i) / 1024 * CHUNK_TOKENS);
        for (uint32_t rule = 0; rule < TRACE_RULES; rule++) {
            const struct trace_score *s = &scores[i][rule];
            printf(" %.3f |",
                   100 * (saved ? s->saved / s->cost : (double)s->hits / (double)s->tokens));
        }
        printf("\n");
    }
}

static void print_worst(uint32_t first, uint32_t n)
{
    uint32_t below = 0;
    for (uint32_t i = first; i < n; i++)
        below += scores[i][TRACE_STORE].hits < scores[i][TRACE_LRU].hits;
    printf("\nAt %u of these %u sizes the store finds fewer tokens than LRU.\n", below, n - first);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("eviction", argc, argv);
    char usual[512];
    struct prefix_trace trace = {0};
    bench_data_file(DEFAULT_TRACE, usual);
    const char *path = bench_is_set("PREFIX_TRACE") ? getenv("PREFIX_TRACE") : usual;
    const char *slash = strrchr(path, '/');
    if (access(path, R_OK)) {
        fprintf(stderr, "eviction: there is no trace at %s\n", path);
        return 77;
    }
    prefix_trace_read(&trace, path);
    uint32_t first = o.quick ? 4 : 0, n = o.quick ? 6 : SIZES;
    for (uint32_t i = first; i < n; i++) {
        bench_progress(i + 1 - first, n - first, "playing the trace");
        for (uint32_t rule = 0; rule < TRACE_RULES; rule++)
            scores[i][rule] = prefix_trace_play(&trace, rule, SLOTS_LEAST << i);
    }
    printf(
        "## What the prefix store keeps\n\n%u requests (`%s`), %llu tokens of prompts, played in "
        "their order against the bookkeeping of `--prefix-dir`: chunks of %u tokens, of which one "
        "goes only when nothing follows it. `store` is the store's own code; the optimum (Belady) "
        "knows the requests to come. Found, in %% of all prompts' tokens, by the store's size in "
        "Ki tokens:\n\n",
        trace.n_requests, slash ? slash + 1 : path, (unsigned long long)scores[first][0].tokens,
        CHUNK_TOKENS);
    print_table("Ki tokens", first, n, false);
    print_worst(first, n);
    printf("\nThe same in %% of the prompts' cost, of which a token's is 1 + position / %.0f:\n\n",
           TRACE_EVEN_TOKENS);
    print_table("Ki tokens", first, n, true);
    prefix_trace_free(&trace);
    return 0;
}
