/*
 * tools/bench/bench_gaps.c - figure "gaps": how long a sequence that decodes waits between two
 * tokens while the prompt of another is computed.
 *
 * What: the running pipeline on the 134 M random-weight model; one client decodes, and another asks
 * for a prompt of 4096 and of 16384 tokens, interleaved with nobody asking. Decode steps run
 * between the (layer, chunk) units of the prompt. Times are those at which tokens reach the client.
 * Who calls it: tools/bench/run. Concurrency: one thread; the pipeline is processes.
 */
#include <stdio.h>

#include "tools/bench/clients.h"
#include "tools/bench/dense_model.h"
#include "tools/bench/run_pipeline.h"

#define CONTEXT      256u /* prompt of the one that decodes */
#define TOKENS_ALONE 65u

static const uint32_t prompts[] = {0, 4096, 0, 16384}; /* 0: nobody asks */
enum { PROMPTS = sizeof prompts / sizeof prompts[0] };

struct gaps {
    uint32_t n;
    double median, longest, first; /* ms; first: until the prompt's first token */
};

/* The gaps between the tokens of `c` that came in (from, to]. */
static void sample_gaps(const struct bench_client *c, int64_t from, int64_t to, struct gaps *out)
{
    static double gaps[CLIENT_TOKENS];
    uint32_t n = 0;
    for (uint32_t t = 1; t < c->n; t++)
        if (c->at_ns[t] > from && c->at_ns[t] <= to)
            gaps[n++] = (double)(c->at_ns[t] - c->at_ns[t - 1]) * 1e-6;
    if (n < 8)
        bench_fail("only %u tokens came beside the prompt", n);
    out->n = n;
    out->median = bench_quantile(gaps, n, 0.5);
    out->longest = gaps[n - 1]; /* they are sorted now */
}

static bool has_enough(const struct bench_client *clients, uint32_t n)
{
    (void)n;
    return clients[0].n >= TOKENS_ALONE;
}

/* One client decodes; another asks for a prompt of n tokens (0: nobody asks). */
static void decode_beside(uint32_t n, struct gaps *out)
{
    static struct bench_client clients[2];
    char name[16];
    snprintf(name, sizeof name, "%u", n);
    client_prepare(&clients[0], "short");
    if (n)
        client_prepare(&clients[1], name);
    client_ask(&clients[0], CLIENT_TOKENS);
    clients_follow(clients, 1, clients_first_token);
    if (n) {
        client_ask(&clients[1], 1);
        clients_follow(clients, 2, clients_second_began);
        sample_gaps(&clients[0], clients[1].asked_ns, clients[1].at_ns[0], out);
        out->first = (double)(clients[1].at_ns[0] - clients[1].asked_ns) * 1e-6;
    } else {
        clients_follow(clients, 1, has_enough);
        sample_gaps(&clients[0], clients[0].at_ns[0], clients[0].at_ns[clients[0].n - 1], out);
    }
    client_cancel(&clients[0]);
    clients_follow(clients, n ? 2 : 1, clients_all_over);
    client_close(&clients[0].client);
    if (n)
        client_close(&clients[1].client);
}

static void print_gaps(const struct gaps *gaps, uint32_t n)
{
    printf("## Gaps beside a prompt\n\nOne client decodes while another's prompt is computed (`-c "
           "20000 -np 2 --alpha 0.05`, 134 M parameters): the gaps between its tokens from the "
           "moment that the other asks until its first token, in ms. Between two steps of the one "
           "lies a unit (a layer of a chunk) of the other's prompt at most.\n\n"
           "| the other's prompt | gaps | median | longest | the other's first token after |\n"
           "|---|---:|---:|---:|---:|\n");
    for (uint32_t i = 0; i < n; i++) {
        char name[32] = "none", first[32] = "";
        if (prompts[i]) {
            snprintf(name, sizeof name, "%u tokens", prompts[i]);
            snprintf(first, sizeof first, "%.0f", gaps[i].first);
        }
        printf("| %s | %u | %.1f | %.1f | %s |\n", name, gaps[i].n, gaps[i].median, gaps[i].longest,
               first);
    }
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("gaps", argc, argv);
    static struct gaps gaps[PROMPTS];
    uint32_t n = o.quick ? 2 : PROMPTS;
    char name[16];
    dense_model_prepare(&o);
    pipeline_prompt("short", CONTEXT, 0);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%u", prompts[i]);
        if (prompts[i])
            pipeline_prompt(name, prompts[i], 0);
    }
    pipeline_start("model", "-c 20000 -np 2 --alpha 0.05");
    clients_together("short", 1, 9, 1); /* memory is touched for the first time */
    for (uint32_t i = 0; i < n; i++) {
        bench_progress(i + 1, n, "decoding beside a prompt");
        decode_beside(prompts[i], &gaps[i]);
    }
    pipeline_stop();
    print_gaps(gaps, n);
    return 0;
}
