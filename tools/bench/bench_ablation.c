/*
 * tools/bench/bench_ablation.c - figure "ablation": a decode step of hillinfer on real KV, whole,
 * and with one of its parts changed.
 *
 * What: every row differs from the row that it is paired with by one factor: where cold digests are
 * scored, the drive's DRAM, which entries are hot, beta, guesses a layer ahead, digest bits, and of
 * a batch how many of its rows the scorer is at together. M_0 is the same in all rows of a
 * comparison and is filled; of the comparison of beta each fixed beta has the M_0 that it fills,
 * and beside it stands Eq. 4 with as much; of that of placements M_0 differs by the placements'
 * tables, and decides alone (a beta above it), so that as many entries are hot in all rows. Which
 * KV and how many rows: KV="NAME:ROWS ..." (workload.h); STEPS=N decode steps; rounds and their
 * variables: comparison.h. FULL=1 adds this machine's drive.
 * Concurrency: one thread. Failure: as point.h; KV that is not there is named and left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/comparison.h"
#include "tools/bench/kept_rounds.h"
#include "kv/group.h"

#define ALPHA      0.1
#define STEPS      64u
#define KV         "qwen0.5b-16384-moby:4 smollm2-8192-lines"
#define KV_QUICK   "hill-ref-2048-heldout"
#define KV_MAX     4u
#define FILLS_M0   "1000" /* beta: M_0 alone decides how much is hot */
#define BATCH      4u     /* of the comparison of rows in flight, where $KV names one row */
#define MIB        1048576.0
#define FILE_KEPT  "build/bench/points/ablation.jsonl"
#define FILE_QUICK "build/bench/points/ablation-quick.jsonl"

/* whole first; guessing is off by default, and --gpu-keep no more than a selection */
#define BASE                                                                                       \
    "--alpha %g --gpu-keep %g --beta %s --placement bkp --speculate on --hot-mb %.2f --digest-mb " \
    "0"

enum factor { STORAGE, CACHES, DRAM, HKM, APP, AHEAD, BITS, ROWS, FACTORS };
static const char *const factor_names[FACTORS] = {
    "in-storage scoring, no DRAM in the drive",
    "in-storage scoring, equal host DRAM (a) and equal DRAM in all (b)",
    "the drive's DRAM",
    "HKM: which entries are hot",
    "APP: beta, at the M_0 that each fixed beta fills",
    "speculation: the next layer's queries",
    "digest bits",
    "rows in flight of a batch"};

enum drive { MODELLED, NATIVE, DRIVES };
static const enum point_drive drives[DRIVES] = {POINT_MODELLED, POINT_NATIVE};

struct part {
    struct workload kv;
    uint32_t rows;
    struct comparison comparisons[DRIVES * FACTORS];
    uint32_t n;
    bool there, predicted;
    double beta, bounded; /* by Eq. 4, before the rounds */
    char commit[256];     /* that they were predicted at */
};

static struct part parts[KV_MAX];
static uint32_t n_parts, steps;
static const char *kept_file = FILE_KEPT;

static void part_title(const struct part *p, char out[44])
{
    snprintf(out, 44, p->rows > 1 ? "%.36s x %u" : "%.36s", p->kv.name, p->rows);
}

/* ---- what is compared ---- */

static void set_options(struct method *m, double hot_share, const char *beta)
{
    snprintf(m->options, sizeof m->options, BASE, ALPHA, ALPHA, beta,
             point_hot_mb(&m->point, PLACEMENT_BKP, hot_share, ALPHA, true));
}

/* Replaces a word behind an option; the option must be there. */
static void set_word(struct method *m, const char *option, const char *value)
{
    char rest[sizeof m->options];
    char *at = strstr(m->options, option);
    if (!at)
        bench_fail("no %s in %s", option, m->options);
    at += strlen(option);
    snprintf(rest, sizeof rest, "%s", at + strcspn(at, " "));
    snprintf(at, sizeof m->options - (size_t)(at - m->options), "%s%s", value, rest);
}

static void add_option(struct method *m, const char *words)
{
    strncat(m->options, words, sizeof m->options - strlen(m->options) - 1);
}

static struct point point_of(const struct part *p, enum drive drive)
{
    return (struct point){.kv = &p->kv,
                          .policy = "hillinfer",
                          .tokens = p->kv.tokens,
                          .rows = p->rows,
                          .steps = steps,
                          .drive = drives[drive],
                          .csd_model = point_csd_model(),
                          .options = "",
                          .label = ""};
}

static struct method *add(struct comparison *c, const char *name, const struct point *like,
                          uint32_t against)
{
    struct method *m = comparison_add(c, name, like, against);
    set_options(m, COMPARISON_HOT_SHARE, "auto");
    return m;
}

static double cold_digest_bytes(const struct point *like)
{
    const struct kv_geometry *g = &like->kv->geometry;
    return (1 - COMPARISON_HOT_SHARE) * like->rows * like->tokens * g->n_layers *
           (double)kv_digest_bytes(g);
}

/* Of the cold digests; all: a little more, of new tokens. */
static const struct cache {
    double share;
    const char *drive, *host;
} caches[] = {{0.10, "hillinfer, DRAM for 10 %", "(b) host-digest, 10 % more M_0 for digests"},
              {0.25, "hillinfer, DRAM for 25 %", "(b) host-digest, 25 % more"},
              {0.50, "hillinfer, DRAM for 50 %", "(b) host-digest, 50 % more"},
              {1.05, "hillinfer, DRAM for all", "(b) host-digest, all more"}};
#define CACHES_N (sizeof caches / sizeof *caches)

/* The CPU scores the same digests, of which it caches some; more: on top of M_0. */
static struct method *add_host(struct comparison *c, const char *name, const struct point *like,
                               uint32_t against, double cached, double more)
{
    char words[64];
    struct method *m = add(c, name, like, against);
    m->point.policy = COMPARISON_HOST_DIGEST;
    snprintf(words, sizeof words, "%.2f",
             point_hot_mb(&m->point, PLACEMENT_BKP, COMPARISON_HOT_SHARE, ALPHA, true) +
                 more / MIB);
    set_word(m, "--hot-mb ", words);
    set_word(m, "--beta ", FILLS_M0); /* Eq. 4 is of two sides that score; M_0 counts more */
    snprintf(words, sizeof words, " --digest-mb %.2f", cached / MIB);
    if (cached > 0)
        add_option(m, words);
    comparison_set_dram(m, 0);
    return m;
}

/* The same digests read from a plain drive by the CPU; neither drive has DRAM. */
static void add_storage(struct comparison *c, const struct point *like)
{
    comparison_set_dram(add(c, "hillinfer, no DRAM in the drive", like, 0), 0);
    if (point_offers("policy", COMPARISON_HOST_DIGEST))
        add_host(c, "host-digest: the CPU scores, plain drive", like, 0, 0, 0);
}

/* (a): the drive's DRAM comes on top, and host-digest has M_0 for everything: without a cache of
 * digests, with which hillinfer's rows are paired, and with one that takes the room of hot entries.
 * (b): it has as much on top, for digests, and is paired with hillinfer's row. */
static void add_caches(struct comparison *c, const struct point *like)
{
    double digests = cold_digest_bytes(like);
    if (!point_offers("policy", COMPARISON_HOST_DIGEST))
        return;
    add_host(c, "(a) host-digest without a cache of digests", like, 0, 0, 0);
    for (size_t i = 0; i < CACHES_N; i++)
        comparison_set_dram(add(c, caches[i].drive, like, 0), caches[i].share * digests);
    for (size_t i = 0; i < CACHES_N; i++)
        add_host(c, caches[i].host, like, 1 + (uint32_t)i, caches[i].share * digests,
                 caches[i].share * digests);
    add_host(c, "(a) host-digest, 25 % cached within M_0", like, 0, 0.25 * digests, 0);
}

static void add_drams(struct comparison *c, const struct point *like)
{
    double digests = cold_digest_bytes(like);
    add(c, "hillinfer, whole: DRAM for all cold digests", like, 0);
    comparison_set_dram(add(c, "DRAM for half of the cold digests", like, 0), digests / 2);
    comparison_set_dram(add(c, "DRAM for a quarter", like, 0), digests / 4);
    comparison_set_dram(add(c, "DRAM for a tenth", like, 0), digests / 10);
    comparison_set_dram(add(c, "no DRAM", like, 0), 0);
}

/* All decode the same KV, each its own copy. */
static void add_rows(struct comparison *c, const struct point *like)
{
    struct point batch = *like;
    batch.rows = like->rows > 1 ? like->rows : BATCH;
    add_option(add(c, "all rows in flight", &batch, 0), " --rows-in-flight 4");
    add_option(add(c, "one row in flight", &batch, 0), " --rows-in-flight 1");
    add_option(add(c, "two rows in flight", &batch, 0), " --rows-in-flight 2");
}

static const struct fixed {
    const char *beta, *name, *ours;
    double share; /* of the entries that this beta makes hot; above 1: M_0 has room for all */
} betas[] = {{"0.25", "beta 0.25", "Eq. 4 with as much M_0 as 0.25 fills", 0.2},
             {"1", "beta 1", "Eq. 4 with as much M_0 as 1 fills", 0.5},
             {"4", "beta 4", "Eq. 4 with as much M_0 as 4 fills", 0.8},
             {"16", "beta 16, near what Eq. 4 says", "auto with room for all entries", 1.1}};
#define BETAS (sizeof betas / sizeof *betas)

static void add_betas(struct comparison *c, const struct point *like)
{
    for (size_t i = 0; i < BETAS; i++) {
        uint32_t ours = c->n;
        set_options(comparison_add(c, betas[i].ours, like, ours), betas[i].share, "auto");
        set_options(comparison_add(c, betas[i].name, like, ours), betas[i].share, betas[i].beta);
    }
}

static void add_placements(struct comparison *c, const struct point *like)
{
    static const struct {
        enum placement_kind kind;
        const char *name;
    } rows[] = {{PLACEMENT_BKP, "hillinfer: bkp"},
                {PLACEMENT_RECENCY, "recency"},
                {PLACEMENT_PAPER, "paper: its pools, by what the GPU lacked"},
                {PLACEMENT_LRU, "lru"},
                {PLACEMENT_LFU, "lfu"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct method *m = add(c, rows[i].name, like, 0);
        char hot_mb[32];
        snprintf(hot_mb, sizeof hot_mb, "%.2f",
                 point_hot_mb(&m->point, rows[i].kind, COMPARISON_HOT_SHARE, ALPHA, true));
        set_word(m, "--placement ", placement_name(rows[i].kind));
        set_word(m, "--hot-mb ", hot_mb);
        set_word(m, "--beta ", FILLS_M0);
    }
}

static void add_factor(struct part *p, enum factor f, enum drive drive)
{
    struct comparison *c = &p->comparisons[p->n++];
    struct point like = point_of(p, drive);
    char kv[44]; /* the name is a part of p, as c is */
    part_title(p, kv);
    snprintf(c->name, sizeof c->name, "%s, %s: %.68s", kv,
             drive == MODELLED ? "modelled drive" : "this machine's drive", factor_names[f]);
    if (f == APP) {
        add_betas(c, &like);
    } else if (f == STORAGE) {
        add_storage(c, &like);
    } else if (f == CACHES) {
        add_caches(c, &like);
    } else if (f == DRAM) {
        add_drams(c, &like);
    } else if (f == ROWS) {
        add_rows(c, &like);
    } else if (f == HKM) {
        add_placements(c, &like);
    } else {
        add(c, "hillinfer, whole", &like, 0);
        if (f == AHEAD)
            set_word(add(c, "without speculation", &like, 0), "--speculate ", "off");
        else {
            add_option(add(c, "INT4", &like, 0), " --score-bits 4");
            if (p->rows == 1) /* the agent's CPU casts: a batch takes minutes a run */
                add_option(add(c, "FP16 keys, cast by the drive", &like, 0), " --csd-digests cast");
        }
    }
}

/* ---- measuring ---- */

/* Before the sweep, and kept with it; without $RESUME another one takes the place of the last. */
static void predict(struct part *p)
{
    char name[128], title[44], settings[1200];
    struct method *whole = &p->comparisons[AHEAD].methods[0];
    struct bench_samples kept[2];
    part_title(p, title);
    snprintf(name, sizeof name, "%s: predicted beta", title);
    point_settings(&whole->point, settings, sizeof settings);
    const struct kept_test test = {kept_file, name, settings, 2};
    bool asked = bench_is_asked("TESTS", factor_names[APP]) && !bench_is_set("PREPARE");
    p->predicted = kept_rounds_load(&test, 1, kept, p->commit) == 1;
    if (asked && !(p->predicted && bench_is_set("RESUME"))) {
        double values[2];
        values[0] = point_predicted_beta(&whole->point, &values[1]);
        kept_rounds_drop(&test);
        kept_rounds_add(&test, values);
        p->predicted = kept_rounds_load(&test, 1, kept, p->commit) == 1;
    }
    if (p->predicted) {
        p->beta = kept[0].values[0];
        p->bounded = kept[1].values[0];
    }
}

static void measure_part(struct part *p, const struct bench_options *o)
{
    p->there = workload_make_session(&p->kv, "hillinfer");
    if (!p->there)
        return;
    for (enum drive d = MODELLED; d < (o->full ? DRIVES : NATIVE); d++)
        for (enum factor f = 0; f < FACTORS; f++)
            if (d == MODELLED || (f != STORAGE && f != CACHES && f != DRAM)) /* of the model */
                add_factor(p, f, d);
    predict(p);
    comparison_measure_all(p->comparisons, p->n, kept_file, o);
}

/* ---- the section ---- */

static void print_head(void)
{
    printf(
        "## Ablation\n\n"
        "A decode step of all sequences of a batch (x N; else of one, and of %u where rows in "
        "flight are compared) on real KV: a text's first "
        "tokens, read once into a session, which every row restores; then %u steps. Each row "
        "differs from the row that it is paired with by one factor; the rows of a table are "
        "measured in turn in every round. Where it is not the factor: bkp, `--beta auto`, "
        "queries guessed a layer ahead "
        "(`--speculate on`), INT8, `--alpha %g --gpu-keep %g`, and M_0 for a hot share of %.1f "
        "(`--hot-mb`, the same in all rows of a table; of placements more or less by their "
        "tables, with `--beta " FILLS_M0 "`, so that all rows have as many hot entries). Every "
        "placement brings up at most %u entries a layer and step, of what the GPU lacked, and "
        "none while a batch of moves is under way; so the paper's pools (placement paper), which "
        "count every access and name no rate, have a limit here that is not theirs, and count "
        "less. "
        "The drive is modelled, `--csd-model %s`: no measurement of a real one; its pool lies "
        "in memory, and the GPU is the machine's OpenCL device, with memory of its own (hot "
        "entries are "
        "copied to it). " COMPARISON_SCORE "\n\n",
        BATCH, steps, ALPHA, ALPHA, COMPARISON_HOT_SHARE, PLACEMENT_LIVE_RATE, point_csd_model());
    comparison_print_legend();
    if (!point_offers("policy", COMPARISON_HOST_DIGEST))
        printf("There is no policy host-digest here: in-storage scoring has no row.\n");
}

/* Does Eq. 4 ask for more than M_0 holds beside a fixed beta? Then both rows are one setting. */
static bool asks_for_more(const struct part *p, size_t fixed)
{
    return p->predicted && betas[fixed].share < 1 && p->beta >= atof(betas[fixed].beta);
}

/* What Eq. 4 says, and of which pairs that makes one setting measured twice. */
static void print_prediction(const struct part *p)
{
    bool any = false;
    printf("Eq. 4 says beta %.3g of the modelled drive before the rounds (%.3g within M_0; at %s): "
           "a hot share of %.2f.\n",
           p->beta, p->bounded, p->commit, p->beta / (1 + p->beta));
    for (size_t i = 0; i < BETAS; i++)
        if (asks_for_more(p, i)) {
            printf("%s%s", any ? ", " : "Eq. 4 asks for more than M_0 holds beside ",
                   betas[i].name);
            any = true;
        }
    if (any)
        printf(": there both rows are the same setting, and their ratio shows only the noise.\n");
}

/* Of each part: the row that has it, and the one without, by their numbers in the comparison. */
static const struct worth {
    enum factor factor;
    uint32_t with, without;
    const char *part;
} worths[] = {
    {STORAGE, 0, 1, "in-storage scoring, no DRAM in the drive"},
    {CACHES, 2, 0, "in-storage scoring, DRAM for a quarter of the cold digests, (a)"},
    {CACHES, 2, 6, "the same, as much DRAM in all, (b)"},
    {DRAM, 0, 4, "the drive's DRAM, for all cold digests"},
    {DRAM, 2, 4, "the drive's DRAM, for a quarter"},
    {ROWS, 0, 1, "rows in flight"},
    {HKM, 0, 1, "placement bkp, beside recency"},
    {APP, 0, 1, "Eq. 4, beside beta 0.25"},
    {APP, 2, 3, "Eq. 4, beside beta 1"},
    {APP, 4, 5, "Eq. 4, beside beta 4"},
    {APP, 6, 7, "all hot where M_0 has room, beside beta 16"},
    {AHEAD, 0, 1, "queries guessed a layer ahead"},
    {BITS, 1, 0, "INT4 digests"},
};

static const char *verdict(const struct bench_samples *ratio)
{
    double sorted[BENCH_ROUNDS_MAX];
    memcpy(sorted, ratio->values, sizeof sorted);
    if (ratio->count < BENCH_QUARTILES_LEAST)
        return "too few rounds";
    if (bench_quantile(sorted, ratio->count, 0.25) > 1)
        return "yes";
    return bench_quantile(sorted, ratio->count, 0.75) < 1 ? "no, it costs time" : "not shown";
}

/* Times of the row without a part over those of the row with it, on the modelled drive. */
static void print_worths(const struct part *p)
{
    printf(
        "\nWhat each part is worth: how many times as long a step takes without it. It pays "
        "where the lower quartile is above 1.\n\n| part | without it | quartiles | rounds | pays "
        "|\n|---|---:|---:|---:|---|\n");
    for (size_t i = 0; i < sizeof worths / sizeof *worths; i++) {
        const struct worth *w = &worths[i];
        const struct comparison *c = &p->comparisons[w->factor];
        if (!c->rounds || w->with >= c->n || w->without >= c->n) {
            printf("| %s | not measured | | | |\n", w->part);
            continue;
        }
        struct bench_samples ratio =
            comparison_ratio(&c->methods[w->without], &c->methods[w->with]);
        printf("| %s |", w->part);
        bench_print_quartiles(&ratio, " %.3f | %.3f - %.3f |");
        printf(" %u | %s |\n", c->rounds,
               w->factor == APP && asks_for_more(p, w->with / 2) ? "one setting twice"
                                                                 : verdict(&ratio));
    }
    printf("\nhost-digest has no digests of cold tokens within M_0 here; with the best of its "
           "settings it stands in figure policies.\n");
}

static void print_part(const struct part *p)
{
    char title[44];
    part_title(p, title);
    if (!p->there) {
        printf("\n### %s\n\nNot measured: %s.\n", title, p->kv.missing);
        return;
    }
    const struct kv_geometry *g = &p->kv.geometry;
    printf("\n### %s\n\n%u layers, %u KV heads x %u: an entry of %u bytes, a digest of %u.\n",
           title, g->n_layers, g->n_kv_heads, g->head_dim, kv_entry_bytes(g), kv_digest_bytes(g));
    if (p->predicted)
        print_prediction(p);
    print_worths(p);
    for (uint32_t i = 0; i < p->n; i++)
        comparison_print(&p->comparisons[i]);
}

static void open_parts(const struct bench_options *o)
{
    struct comparison_kv list[KV_MAX];
    n_parts = comparison_kv(o, KV, KV_QUICK, list, KV_MAX);
    for (uint32_t i = 0; i < n_parts; i++) {
        parts[i].rows = list[i].rows;
        workload_open(&parts[i].kv, list[i].name);
    }
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("ablation", argc, argv);
    point_prepare(&o);
    if (o.quick) {
        kept_file = FILE_QUICK;
        o.rounds = 1;
    }
    steps = comparison_steps(&o, STEPS);
    open_parts(&o);
    for (uint32_t i = 0; i < n_parts; i++)
        measure_part(&parts[i], &o);
    print_head();
    for (uint32_t i = 0; i < n_parts; i++)
        print_part(&parts[i]);
    return 0;
}
