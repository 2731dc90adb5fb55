/*
 * bench/bench_ablation.c - figure "ablation": a decode step of hillinfer whole, and without the
 * paper's parts, on the paper's device model.
 *
 * What: without HKM, entries are hot by recency alone and the GPU keeps nothing from one query to
 * the next; without APP, beta is a fixed number and no query is guessed ahead, so that nothing
 * overlaps. M_0 leaves room for less than half of the entries, the same in each row. What the
 * program does not offer yet is not switched on, and the section says so. Points and their options:
 * bench/point.h. Concurrency: one thread. Failure: as there.
 */
#include <stdio.h>
#include <string.h>

#include "bench/point.h"
#include "kv/policy_cost.h"

#define STEPS     16u
#define HOT_SHARE 0.4
#define SHAPES    2u
#define MB        1e-6

static struct variant {
    const char *name, *label;
    bool hkm, app;
    char options[256];
    bool there[SHAPES];
    struct point_result result[SHAPES];
} variants[] = {
    {.name = "hillinfer", .label = "whole", .hkm = true, .app = true},
    {.name = "without HKM", .label = "no-hkm", .hkm = false, .app = true},
    {.name = "without APP", .label = "no-app", .hkm = true, .app = false},
    {.name = "without both", .label = "neither", .hkm = false, .app = false},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

static struct {
    uint32_t tokens, rows;
} shapes[SHAPES] = {{16384, 1}, {16384, 4}};
static uint32_t n_shapes = SHAPES, steps = STEPS;
static bool speculates;

/* MiB of M_0 for a hot share: entries with digests and tables, and staging. */
static double hot_mb(uint32_t tokens, uint32_t rows)
{
    struct kv_geometry g = point_geometry();
    double row = tokens * (kv_entry_bytes(&g) + kv_digest_bytes(&g) + 16.0) / 1048576;
    return 8 + rows * POINT_LAYERS * row * HOT_SHARE + (rows + 1) * row * POINT_ALPHA * 1.1;
}

static void measure(void)
{
    for (uint32_t i = 0; i < n_shapes; i++)
        for (size_t v = 0; v < VARIANTS; v++) {
            struct variant *t = &variants[v];
            snprintf(t->options, sizeof t->options,
                     "--hot-mb %.0f --placement %s --gpu-keep %g --beta %s%s",
                     hot_mb(shapes[i].tokens, shapes[i].rows), t->hkm ? "bkp" : "recency",
                     t->hkm ? POINT_ALPHA : 0, t->app ? "auto" : "0.25",
                     !speculates ? ""
                     : t->app    ? " --speculate on"
                                 : " --speculate off");
            struct point p = {.policy = "hillinfer",
                              .tokens = shapes[i].tokens,
                              .rows = shapes[i].rows,
                              .steps = steps,
                              .drive = POINT_MODELLED,
                              .csd_model = point_csd_model(),
                              .options = t->options,
                              .label = t->label};
            t->there[i] = point_get(&p, &t->result[i]);
        }
}

static void print_head(void)
{
    printf("## Ablation\n\nMilliseconds of a decode step, the median of %u; a modelled drive "
           "(`--csd-model %s`), M_0 for at most %.0f %% of the entries, model and method as for "
           "the policies.\n"
           "HKM: placement by hit rates, and a GPU that keeps %g of the context; without it, the "
           "newest are hot and the GPU keeps nothing (`--placement recency --gpu-keep 0`).\n",
           steps, point_csd_model(), 100 * HOT_SHARE, POINT_ALPHA);
    if (speculates)
        printf("APP: beta by Eq. 4 (`--beta auto`) and queries guessed a layer ahead (`--speculate "
               "on`); without it, `--beta 0.25 --speculate off`.\n\n");
    else
        printf("APP: `--beta auto`; without it, `--beta 0.25`. This program guesses no queries "
               "ahead: nothing overlaps in any row.\n\n");
}

static void print_variant(const struct variant *t, uint32_t i)
{
    const struct point_result *r = &t->result[i], *whole = &variants[0].result[i];
    if (!t->there[i])
        return;
    printf("| %u | %u | %s | %.2f |", shapes[i].tokens, shapes[i].rows, t->name, r->step_ms);
    if (variants[0].there[i])
        printf(" %.2f |", r->step_ms / whole->step_ms);
    else
        printf(" |");
    printf(" %.0f %% | %.3f | %.0f %% | %.3f | %.3f | %.3f |\n", 100 * r->idle_ms / r->step_ms,
           r->beta, 100 * r->cold_hits / (r->gpu_hits + r->hot_hits + r->cold_hits),
           r->flash_read * MB, r->link_kv * MB, r->gpu_upload * MB);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("ablation", argc, argv);
    point_prepare(&o);
    speculates = point_offers("speculate", "on");
    if (o.quick) {
        n_shapes = 1;
        shapes[0].tokens = 512;
        steps = 3;
    }
    measure();
    print_head();
    printf("| tokens | batch | | ms/token | of whole | GPU idle | beta | cold of selected | flash "
           "read, MB | link_kv, MB | GPU upload, MB |\n"
           "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (uint32_t i = 0; i < n_shapes; i++)
        for (size_t v = 0; v < VARIANTS; v++)
            print_variant(&variants[v], i);
    return 0;
}
