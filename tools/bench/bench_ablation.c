/*
 * tools/bench/bench_ablation.c - figure "ablation": a decode step of hillinfer whole, and without
 * the paper's parts, on the paper's device model and on this machine's drive.
 *
 * What: without HKM, entries are hot by recency alone and the GPU keeps nothing from one query to
 * the next; without APP, beta is a fixed number and no query is guessed ahead, so that nothing
 * overlaps; between whole and that, one row in which only the overlap is off. M_0 leaves room for
 * less than half of the entries, as many in each row; guesses get their staging on top. Points and
 * their options: tools/bench/point.h. Concurrency: one thread. Failure: as there.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/picture.h"
#include "tools/bench/point.h"
#include "kv/policy_cost.h"

#define STEPS      16u
#define STEPS_ROOM 512u /* tokens of context beyond the prompt, about */
#define MIB        1048576.0
#define HOT_SHARE  0.4
#define SHAPES     2u
#define DRIVES     2u
#define MB         1e-6

static struct variant {
    const char *name, *label;
    bool hkm, balance, overlap;
    char options[256];
    bool there[DRIVES][SHAPES];
    struct point_result result[DRIVES][SHAPES];
} variants[] = {
    {.name = "hillinfer", .label = "whole", .hkm = true, .balance = true, .overlap = true},
    {.name = "without overlap", .label = "no-overlap", .hkm = true, .balance = true},
    {.name = "without HKM", .label = "no-hkm", .balance = true, .overlap = true},
    {.name = "without APP", .label = "no-app", .hkm = true},
    {.name = "without both", .label = "neither"},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

static const enum point_drive drives[DRIVES] = {POINT_MODELLED, POINT_NATIVE};

static struct {
    uint32_t tokens, rows;
} shapes[SHAPES] = {{16384, 1}, {16384, 4}};
static uint32_t n_shapes = SHAPES, steps = STEPS;

/* MiB of M_0 for a hot share: entries with digests and tables, and staging for a selection of each
 * row and one more; where queries are guessed, for as many again, so that as much stays for hot
 * entries in each variant. */
static double hot_mb(uint32_t tokens, uint32_t rows, bool guesses)
{
    struct kv_geometry g = point_geometry();
    double hot = rows * POINT_LAYERS * HOT_SHARE * tokens *
                 (kv_entry_bytes(&g) + kv_digest_bytes(&g) + 16.0);
    double selections = rows + 1.0 + (guesses ? rows : 0);
    double staging = selections * POINT_ALPHA * (tokens + STEPS_ROOM) * kv_entry_bytes(&g);
    return ceil((hot + staging) / MIB) + 8;
}

static void measure_variant(struct variant *v, uint32_t drive, uint32_t shape)
{
    snprintf(v->options, sizeof v->options,
             "--hot-mb %.0f --placement %s --gpu-keep %g --beta %s%s",
             hot_mb(shapes[shape].tokens, shapes[shape].rows, v->overlap),
             v->hkm ? "bkp" : "recency", v->hkm ? POINT_ALPHA : 0, v->balance ? "auto" : "0.25",
             v->overlap ? " --speculate on --exact-layers 1" : "");
    struct point p = {.policy = "hillinfer",
                      .tokens = shapes[shape].tokens,
                      .rows = shapes[shape].rows,
                      .steps = steps,
                      .drive = drives[drive],
                      .csd_model = point_csd_model(),
                      .options = v->options,
                      .label = v->label};
    v->there[drive][shape] = point_get(&p, &v->result[drive][shape]);
}

static void measure(void)
{
    point_expect(DRIVES * n_shapes * (uint32_t)VARIANTS);
    for (uint32_t d = 0; d < DRIVES; d++)
        for (uint32_t i = 0; i < n_shapes; i++)
            for (size_t v = 0; v < VARIANTS; v++)
                measure_variant(&variants[v], d, i);
}

static void print_head(void)
{
    printf(
        "## Ablation\n\nMilliseconds of a decode step, the median of %u; M_0 for at most %.0f %% "
        "of the entries, model and method as for the policies.\n"
        "HKM: placement by hit rates, and a GPU that keeps %g of the context; without it, the "
        "newest are hot and the GPU keeps nothing (`--placement recency --gpu-keep 0`).\n"
        "APP: beta by Eq. 4 (`--beta auto`), and queries guessed a layer ahead, so that scoring "
        "and fetching overlap with attention and FFN (`--speculate on --exact-layers 1`: of this "
        "model's two layers the second one's); without overlap, `--speculate off`; without APP, "
        "`--beta 0.25 --speculate off`.\n"
        "This model has little compute that could hide anything; the figure `speculation` shows "
        "the overlap where there is more.\n",
        steps, 100 * HOT_SHARE, POINT_ALPHA);
}

static void print_variant(const struct variant *v, uint32_t drive, uint32_t i)
{
    const struct point_result *r = &v->result[drive][i], *whole = &variants[0].result[drive][i];
    if (!v->there[drive][i])
        return;
    printf("| %u x %u | %s | %.2f |", shapes[i].tokens, shapes[i].rows, v->name, r->step_ms);
    if (variants[0].there[drive][i])
        printf(" %.2f |", r->step_ms / whole->step_ms);
    else
        printf(" |");
    printf(" %.0f %% | %.3f | %.0f %% | %.3g | %.3g | %.3g |\n", 100 * r->idle_ms / r->step_ms,
           r->beta, 100 * r->cold_hits / (r->gpu_hits + r->hot_hits + r->cold_hits),
           r->flash_read * MB, r->link_kv * MB, r->gpu_upload * MB);
}

static void print_drive(uint32_t drive)
{
    if (drives[drive] == POINT_MODELLED)
        printf("\n### Under the paper's device model\n\n`--csd-model %s`\n\n", point_csd_model());
    else
        printf("\n### This machine's drive\n\nNo model; entries in DRAM are read in place.\n\n");
    printf("| tokens x batch | | ms/token | of whole | GPU idle | beta | cold of selected | flash "
           "read, MB | link_kv, MB | GPU upload, MB |\n"
           "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (uint32_t i = 0; i < n_shapes; i++)
        for (size_t v = 0; v < VARIANTS; v++)
            print_variant(&variants[v], drive, i);
}

/* A bar for each variant around each shape. */
static void draw(uint32_t drive)
{
    static struct picture p;
    static char names[SHAPES][32];
    bool modelled = drives[drive] == POINT_MODELLED;
    p = (struct picture){.name = modelled ? "ablation" : "ablation-native",
                         .title = modelled ? "Ablation, modelled drive"
                                           : "Ablation, this machine's drive",
                         .x_label = "tokens x batch",
                         .y_label = "ms/token",
                         .n_categories = n_shapes};
    for (uint32_t i = 0; i < n_shapes; i++) {
        snprintf(names[i], sizeof names[i], "%u x %u", shapes[i].tokens, shapes[i].rows);
        p.categories[i] = names[i];
    }
    for (size_t v = 0; v < VARIANTS; v++) {
        struct picture_series *s = picture_add(&p, variants[v].name, false);
        for (uint32_t i = 0; i < n_shapes; i++)
            if (variants[v].there[drive][i])
                picture_point(s, i, variants[v].result[drive][i].step_ms);
    }
    picture_show(&p);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("ablation", argc, argv);
    point_prepare(&o);
    if (o.quick) {
        n_shapes = 1;
        shapes[0].tokens = 512;
        steps = 3;
    }
    measure();
    print_head();
    for (uint32_t d = 0; d < DRIVES; d++) {
        print_drive(d);
        draw(d);
    }
    point_print_commits();
    return 0;
}
