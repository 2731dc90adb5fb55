/*
 * tools/bench/bench_policies.c - figure "policies": what a decode step costs under each policy, on
 * real KV and under the device model; then bytes and limits on random weights (policy_bytes.h).
 *
 * What: hillinfer beside every policy that the coordinator accepts (oracle left out: it costs what
 * h2o costs and is no system), with the same M_0, the same share of the context kept on the GPU and
 * the same alpha. hillinfer's drive has DRAM for a quarter of the cold digests; host-digest has a
 * plain SSD, with the same M_0 (the drive's DRAM is extra then), of which it caches digests in none
 * or a part: by these rows its bar is judged. Once it has as much DRAM in all: that row is there to
 * compare. Which KV and how many rows: KV="NAME:ROWS ..." (workload.h); POLICIES="words" chooses
 * what stands beside hillinfer; STEPS=N; rounds and their variables: comparison.h. Concurrency: one
 * thread. Failure: as point.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/comparison.h"
#include "tools/bench/policy_bytes.h"
#include "kv/group.h"

#define ALPHA      0.1
#define HOT_SHARE  0.2
#define HOT_QUICK  0.8  /* full stages all entries, and of short contexts that is more than M_0 */
#define DRAM_SHARE 0.25 /* of the cold digests */
#define STEPS      32u
#define KV         "qwen0.5b-32768-moby:8 qwen0.5b-16384-moby:4 qwen0.5b-16384-moby:1"
#define KV_QUICK   "hill-ref-2048-heldout:2"
#define KV_MAX     8u
#define FILE_KEPT  "build/bench/points/policies.jsonl"
#define FILE_QUICK "build/bench/points/policies-quick.jsonl"
#define MIB        1048576.0

#define EQUAL_DRAM "host-digest, the drive's DRAM on top of M_0"

static struct part {
    struct workload kv;
    struct comparison c;
    uint32_t rows;
    bool there;
} parts[KV_MAX];
static uint32_t n_parts, steps;
static double hot_share = HOT_SHARE;

/* How often hillinfer must be as fast. */
static const struct bar {
    const char *policy;
    double asked, least;
} bars[] = {{"full", 4.21, 2},
            {"h2o", 4.21, 2},
            {"prefetch", 4.21, 2},
            {"leoam", 4.21, 2},
            {COMPARISON_HOST_DIGEST, 1.5, 1.1}};
#define BARS (sizeof bars / sizeof *bars)

/* ---- what is compared ---- */

static double cold_digest_bytes(const struct point *p)
{
    const struct kv_geometry *g = &p->kv->geometry;
    return (1 - hot_share) * p->rows * p->tokens * (double)g->n_layers * kv_digest_bytes(g);
}

/* beta: hillinfer's own; others fill M_0, which counts more than beta. */
static struct method *add(struct part *p, const char *name, const char *policy, bool guesses,
                          double dram, double more_mb)
{
    struct point like = {.kv = &p->kv,
                         .policy = policy,
                         .tokens = p->kv.tokens,
                         .rows = p->rows,
                         .steps = steps,
                         .drive = POINT_MODELLED,
                         .csd_model = point_csd_model(),
                         .options = "",
                         .label = ""};
    struct method *m = comparison_add(&p->c, name, &like, 0);
    bool ours = strcmp(policy, "hillinfer") == 0;
    snprintf(m->options, sizeof m->options,
             "--alpha %g --gpu-keep %g --beta %s --speculate %s --hot-mb %.2f", ALPHA, ALPHA,
             ours ? "auto" : "1000", guesses ? "on" : "off",
             point_hot_mb(&like, hot_share, ALPHA, true) + more_mb);
    comparison_set_dram(m, dram);
    return m;
}

/* Digests of cold tokens in the host's memory, a part of M_0. */
static void add_cache(struct method *m, double bytes)
{
    size_t used = strlen(m->options);
    snprintf(m->options + used, sizeof m->options - used, " --digest-mb %.2f", bytes / MIB);
}

static void add_methods(struct part *p)
{
    char names[POINT_POLICIES_MAX][24];
    struct point shape = {.kv = &p->kv, .tokens = p->kv.tokens, .rows = p->rows};
    double dram = DRAM_SHARE * cold_digest_bytes(&shape);
    snprintf(p->c.name, sizeof p->c.name, "%.63s x %u", p->kv.name, p->rows);
    add(p, "hillinfer", "hillinfer", true, dram, 0);
    struct method *m = add(p, "hillinfer, INT4", "hillinfer", true, dram / 2, 0);
    strncat(m->options, " --score-bits 4", sizeof m->options - strlen(m->options) - 1);
    for (uint32_t i = 1, n = point_policies(names); i < n; i++)
        for (size_t b = 0; b < BARS; b++)
            if (strcmp(names[i], bars[b].policy) == 0 && bench_is_asked("POLICIES", names[i]))
                add(p, bars[b].policy, bars[b].policy,
                    strcmp(names[i], "prefetch") == 0 ||
                        strcmp(names[i], COMPARISON_HOST_DIGEST) == 0,
                    0, 0);
    if (!point_offers("policy", COMPARISON_HOST_DIGEST) ||
        !bench_is_asked("POLICIES", COMPARISON_HOST_DIGEST))
        return;
    m = add(p, "host-digest, caches a quarter within M_0", COMPARISON_HOST_DIGEST, true, 0, 0);
    add_cache(m, dram);
    m = add(p, EQUAL_DRAM, COMPARISON_HOST_DIGEST, true, 0, dram / MIB);
    add_cache(m, dram);
}

static void open_parts(const struct bench_options *o)
{
    char names[KV_MAX][COMPARISON_KV_NAME];
    n_parts = comparison_kv(o, KV, KV_QUICK, names, KV_MAX);
    for (uint32_t i = 0; i < n_parts; i++) {
        struct part *p = &parts[i];
        char *colon = strchr(names[i], ':');
        p->rows = colon ? (uint32_t)atoi(colon + 1) : 1;
        if (colon)
            *colon = 0;
        if (p->rows < 1 || p->rows > 25)
            bench_fail("%s: 1 to 25 rows", names[i]);
        workload_open(&p->kv, names[i]);
    }
}

/* Sessions first: no pipeline may run then. */
static void measure(const struct bench_options *o)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        struct part *p = &parts[i];
        add_methods(p);
        p->there =
            workload_make_session(&p->kv, "hillinfer") && workload_make_session(&p->kv, "h2o");
        if (p->there)
            comparison_measure_all(&p->c, 1, o->quick ? FILE_QUICK : FILE_KEPT, o);
    }
}

/* ---- the section ---- */

static const char *verdict(const struct bar *bar, double ratio)
{
    return ratio >= bar->asked ? "met" : ratio >= bar->least ? "missed, floor met" : "missed";
}

/* Bars are of equal host DRAM: the drive's own comes on top of M_0. */
static bool is_judged(const struct method *m)
{
    return strcmp(m->name, EQUAL_DRAM) != 0;
}

static void print_bar(const struct method *m, const struct method *ours, const struct bar *bar)
{
    struct bench_samples ratio = comparison_ratio(m, ours);
    printf("| %s |", m->name);
    bench_print_quartiles(&ratio, " %.2f | %.2f - %.2f |");
    if (is_judged(m))
        printf(" %.2f | %.1f | %s |\n", bar->asked, bar->least, verdict(bar, bench_median(&ratio)));
    else
        printf(" | | |\n");
}

static void print_bars(const struct comparison *c)
{
    printf("\n| over | times hillinfer's step | quartiles | asked | floor | |\n"
           "|---|---:|---:|---:|---:|---|\n");
    for (uint32_t i = 1; i < c->n; i++)
        for (size_t b = 0; b < BARS; b++)
            if (strcmp(c->methods[i].point.policy, bars[b].policy) == 0)
                print_bar(&c->methods[i], &c->methods[0], &bars[b]);
}

static void print_missing_policies(void)
{
    for (size_t b = 0; b < BARS; b++)
        if (!point_offers("policy", bars[b].policy))
            printf("There is no policy %s here: it has no row.\n", bars[b].policy);
}

static void print_head(void)
{
    printf("## Policies\n\n"
           "A decode step on real KV (a text's first tokens, read once into a session that every "
           "row restores; then %u steps of all rows), under each policy: the same M_0 (a hot share "
           "of %.1f), `--alpha %g --gpu-keep %g`. hillinfer: bkp, `--beta auto`, queries guessed a "
           "layer ahead, and a drive with DRAM for a quarter of the cold digests (half of that "
           "with INT4), extra to M_0; host-digest guesses too, on a plain SSD; prefetch guesses as "
           "it is meant to; the others do not, and their settings have not been searched. "
           "host-digest's bar is of the rows with the same M_0; the one with as much DRAM in all "
           "has none. "
           "The drive is modelled, `--csd-model %s` but for its `dram`: no measurement of a real "
           "one. " COMPARISON_SCORE " The GPU is this machine's CPU.\n\n",
           steps, hot_share, ALPHA, ALPHA, point_csd_model());
    comparison_print_legend();
    printf("Of several rows busy times are of all of them, by the counted bytes and the model's "
           "rates.\n");
    print_missing_policies();
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("policies", argc, argv);
    point_prepare(&o);
    if (o.quick) {
        hot_share = HOT_QUICK;
        o.rounds = 1;
    }
    steps = comparison_steps(&o, STEPS);
    open_parts(&o);
    measure(&o);
    print_head();
    for (uint32_t i = 0; i < n_parts; i++) {
        if (!parts[i].there) {
            printf("\n**%s x %u**: not measured, %s.\n", parts[i].kv.name, parts[i].rows,
                   parts[i].kv.missing);
            continue;
        }
        comparison_print(&parts[i].c);
        if (parts[i].c.rounds)
            print_bars(&parts[i].c);
    }
    policy_bytes(&o);
    return 0;
}
