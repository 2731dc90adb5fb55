/*
 * tools/bench/bench_policies.c - figure "policies": what a decode step costs under each policy, on
 * real KV and under the device model; then bytes and limits on random weights (policy_bytes.h).
 *
 * What: hillinfer beside every policy that the coordinator accepts (oracle left out: it costs what
 * h2o costs and is no system), with the same M_0, which all of them fill, the same share of the
 * context kept on the GPU and the same alpha. Each has its best setting, found before by a sweep
 * that is printed: what is hot, guesses, and how much of M_0 holds digests, each with the others
 * (INT4 has a sweep of its own); one round each, then three of the best two. What the pipeline
 * refuses is printed as refused. prefetch stands there with InfiniGen's 3 of 10 columns, too; h2o,
 * prefetch and leoam with the alphas at which they answer as well as hillinfer ("as right").
 * hillinfer's drive has DRAM for a quarter of the cold digests; host-digest has a plain SSD, with
 * the same M_0 (the drive's DRAM is extra then): by this row its bar is judged. Once it has as much
 * DRAM in all: that row is there to compare. Which KV and how many rows: KV="NAME:ROWS ..."
 * (workload.h); POLICIES="words" chooses what stands beside hillinfer, SETTINGS="words" what is
 * tried of each, VARIANTS="words" which further rows of a policy there are, by parts of names;
 * STEPS=N; HOT_SHARE=0.05 gives M_0 room for a twentieth of the entries; rounds and their
 * variables: comparison.h (a sweep's name has the word "settings"). With fewer than five rounds a
 * sweep's one round decides. Concurrency: one thread. Failure: as point.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/comparison.h"
#include "tools/bench/policy_bytes.h"
#include "kv/group.h"
#include "kv/plane.h"
#include "kv/select.h"

#define ALPHA      0.1
#define HOT_QUICK  0.8  /* full stages all entries, and of short contexts that is more than M_0 */
#define DRAM_SHARE 0.25 /* of the cold digests */
#define STEPS      32u
#define KV         "qwen0.5b-32768-moby:8 qwen0.5b-16384-moby:4 qwen0.5b-16384-moby:1"
#define KV_QUICK   "hill-ref-2048-heldout:2"
#define KV_MAX     8u
#define FILE_KEPT  "build/bench/points/policies.jsonl"
#define FILE_QUICK "build/bench/points/policies-quick.jsonl"
#define MIB        1048576.0

#define EQUAL_DRAM   "host-digest, the drive's DRAM on top of M_0"
#define FEW_COLUMNS  "prefetch, 3 of 10 columns"
#define FEW_HOOK     "HILL_TEST_FEW_COLUMNS"
#define ONE_ROW      "hillinfer, one row in flight"
#define TWO_ROWS     "hillinfer, two rows in flight" /* about what the others have */
#define NO_DIGESTS   "hillinfer, no digests in M_0"
#define AUTO_DIGESTS "hillinfer, digests as it finds" /* --digest-mb auto */
#define FOUR_BITS    "hillinfer, INT4"
#define HOST_BITS    "host-digest, INT4"
#define ALONE        "each token for itself" /* of a row's name */
#define EACH_ALONE   "hillinfer, " ALONE
#define AS_INT4      "as right as INT4" /* of a rival's row that has less to equal */

#define SETTINGS_MAX 15u
#define FINAL_LEAST  5u /* rounds of a table that is worth finals */
#define FINAL_ROUNDS 3u /* of the best two settings, which one round does not tell apart */

struct setting {
    const char *name, *options;
    double digests; /* share of all tokens' digests that M_0 has room for; AS_IT_FINDS */
    double alpha;   /* 0: ALPHA */
};

#define AS_IT_FINDS (-1) /* --digest-mb auto */

/* With all INT8 digests M_0 has hardly room for an entry. A hot share of 0.2 leaves four fifths of
 * the tokens cold; the more digests M_0 holds, the more tokens are cold. */
#define DIGEST_SETTING(placement, name, share)                                                     \
    {                                                                                              \
        placement ", " name, "--placement " placement " --speculate on", share                     \
    }
#define DIGEST_SETTINGS(placement)                                                                 \
    DIGEST_SETTING(placement, "no digests in M_0", 0),                                             \
        DIGEST_SETTING(placement, "1/5 of them", .2), DIGEST_SETTING(placement, "2/5", .4),        \
        DIGEST_SETTING(placement, "3/5", .6), DIGEST_SETTING(placement, "4/5", .8),                \
        DIGEST_SETTING(placement, "9/10", .9), DIGEST_SETTING(placement, "all", 1)

static const struct bar {
    const char *name, *policy; /* name: of its row */
    uint32_t digest_bits;
    double asked, least; /* how often hillinfer must be as fast */
    /* what is tried of the rival, up to one without a name; the first is what it has where nothing
     * was tried */
    struct setting settings[SETTINGS_MAX + 1];
} bars[] = {
    {"hillinfer",
     "hillinfer",
     8,
     0,
     0,
     {DIGEST_SETTINGS("bkp"), DIGEST_SETTINGS("recency"),
      DIGEST_SETTING("recency", "as it finds", AS_IT_FINDS)}},
    {FOUR_BITS,
     "hillinfer",
     4,
     0,
     0,
     {DIGEST_SETTINGS("bkp"), DIGEST_SETTINGS("recency"),
      DIGEST_SETTING("recency", "as it finds", AS_IT_FINDS)}},
    /* attends to everything, so a guess is always right: the next layer's entries come while this
     * one is computed */
    {"full",
     "full",
     8,
     4.21,
     2,
     {{"one layer at a time", "--speculate off", 0}, {"guesses", "--speculate on", 0}}},
    {"h2o",
     "h2o",
     8,
     4.21,
     2,
     {{"bkp", "--placement bkp --speculate off", 0},
      {"recency", "--placement recency --speculate off", 0},
      {"bkp, guesses", "--placement bkp --speculate on", 0},
      {"recency, guesses", "--placement recency --speculate on", 0}}},
    {"prefetch",
     "prefetch",
     8,
     4.21,
     2,
     {{"bkp", "--placement bkp --speculate on", 0},
      {"recency", "--placement recency --speculate on", 0}}},
    {"leoam",
     "leoam",
     8,
     4.21,
     2,
     {{"bkp", "--placement bkp --speculate off", 0},
      {"recency", "--placement recency --speculate off", 0},
      {"bkp, guesses", "--placement bkp --speculate on", 0},
      {"recency, guesses", "--placement recency --speculate on", 0}}},
    {COMPARISON_HOST_DIGEST,
     COMPARISON_HOST_DIGEST,
     8,
     1.5,
     1.1,
     {DIGEST_SETTINGS("bkp"), DIGEST_SETTINGS("recency")}},
    {HOST_BITS,
     COMPARISON_HOST_DIGEST,
     4,
     1.5,
     1.1,
     {DIGEST_SETTINGS("bkp"), DIGEST_SETTINGS("recency")}}};
#define BARS (sizeof bars / sizeof *bars)
#define OURS 0 /* all others are rivals */

/* The share of the context with which a rival answers as well as hillinfer with ALPHA, on key-value
 * questions and, but for ALONE, with groups of 8 tokens (docs/accuracy-real.md, "As right as
 * hillinfer"). */
static const struct as_right {
    const char *name, *policy;
    double alpha;
} as_right[] = {{"h2o, as right", "h2o", 0.8},
                {"prefetch, as right", "prefetch", 0.25},
                {"prefetch, as right, " ALONE, "prefetch", 0.2},
                {"prefetch, " AS_INT4 ", " ALONE, "prefetch", 0.15},
                {"leoam, as right", "leoam", 0.3}};

/* ours: no digests, as it finds, each alone, one row, two rows; 3 of 10 columns; equal DRAM */
#define VARIANTS_MAX 7u
_Static_assert(BARS + sizeof as_right / sizeof *as_right + VARIANTS_MAX <= COMPARISON_METHODS_MAX,
               "a whole run's rows");

static struct part {
    struct workload kv;
    struct comparison c, sweeps[BARS], finals[BARS];
    uint32_t two[BARS][2]; /* which settings the finals are of */
    uint32_t rows;
    bool there;
} parts[KV_MAX];
static uint32_t n_parts, steps;
static double hot_share;

/* ---- what is compared ---- */

static bool is_ours(const struct bar *bar)
{
    return strcmp(bar->policy, "hillinfer") == 0;
}

static double digest_bytes(const struct part *p, uint32_t digest_bits)
{
    struct kv_geometry g = p->kv.geometry;
    g.digest_bits = digest_bits;
    return (double)p->rows * p->kv.tokens * g.n_layers * kv_digest_bytes(&g);
}

/* The drive's DRAM. */
static double dram_bytes(const struct part *p, uint32_t digest_bits)
{
    return DRAM_SHARE * (1 - hot_share) * digest_bytes(p, digest_bits);
}

/* Entries of a page of flash: --granularity of every row that selects. */
static uint32_t entries_of_a_page(const struct workload *kv)
{
    uint32_t tokens = 1;
    while (tokens < KV_GRANULARITY_MAX &&
           2 * tokens * kv_entry_bytes(&kv->geometry) <= KV_PAGE_BYTES)
        tokens *= 2;
    return tokens;
}

/* beta: hillinfer's own; others fill M_0, which counts more than beta. digests: of cold tokens in
 * the host's memory, a part of M_0. */
static struct method *add(struct part *p, struct comparison *c, const char *name,
                          const struct bar *bar, const struct setting *how, double more_mb)
{
    struct point like = {.kv = &p->kv,
                         .policy = bar->policy,
                         .tokens = p->kv.tokens,
                         .rows = p->rows,
                         .steps = steps,
                         .drive = POINT_MODELLED,
                         .csd_model = point_csd_model(),
                         .options = "",
                         .label = ""};
    struct method *m = comparison_add(c, name, &like, 0);
    double digests = how->digests * digest_bytes(p, bar->digest_bits) / MIB;
    int n = snprintf(m->options, sizeof m->options,
                     "--alpha %g --gpu-keep %g --granularity %u --beta %s --hot-mb %.2f",
                     how->alpha > 0 ? how->alpha : ALPHA, ALPHA,
                     strstr(name, ALONE) ? 1 : entries_of_a_page(&p->kv),
                     is_ours(bar) ? "auto" : "1000",
                     point_hot_mb(&like, PLACEMENT_BKP, hot_share, ALPHA, true) + more_mb);
    if (*how->options)
        n += snprintf(m->options + n, sizeof m->options - (size_t)n, " %s", how->options);
    if (how->digests != AS_IT_FINDS)
        n += snprintf(m->options + n, sizeof m->options - (size_t)n, " --digest-mb %.2f", digests);
    if (bar->digest_bits != 8)
        snprintf(m->options + n, sizeof m->options - (size_t)n, " --score-bits %u",
                 bar->digest_bits);
    comparison_set_dram(m, is_ours(bar) ? dram_bytes(p, bar->digest_bits) : 0);
    return m;
}

static void add_option(struct method *m, const char *option)
{
    size_t n = strlen(m->options);
    snprintf(m->options + n, sizeof m->options - n, " %s", option);
}

static bool is_variant(const char *name)
{
    return bench_is_asked("VARIANTS", name);
}

static bool is_asked(const struct bar *bar)
{
    return point_offers("policy", bar->policy) &&
           (is_ours(bar) || bench_is_asked("POLICIES", bar->policy)) &&
           (bar->digest_bits == 8 || is_variant(bar->name));
}

static void name_it(const struct part *p, struct comparison *c, const char *what, const char *of)
{
    int n = snprintf(c->name, sizeof c->name, "%.63s x %u", p->kv.name, p->rows);
    if (bench_is_set("HOT_SHARE"))
        n += snprintf(c->name + n, sizeof c->name - (size_t)n, ", hot share %g", hot_share);
    snprintf(c->name + n, sizeof c->name - (size_t)n, "%s%s", what, of);
}

static void add_sweep(struct part *p, size_t bar)
{
    struct comparison *c = &p->sweeps[bar];
    name_it(p, c, ", settings of ", bars[bar].name);
    for (const struct setting *s = bars[bar].settings; s->name; s++)
        if (bench_is_asked("SETTINGS", s->name))
            add(p, c, s->name, &bars[bar], s, 0)->may_refuse = true;
}

/* By its median, of those that were not refused, but not `but`; c->n: there is none. */
static uint32_t fastest(const struct comparison *c, uint32_t but)
{
    uint32_t best = c->n;
    for (uint32_t i = 0; c->rounds && i < c->n; i++) {
        double ms = bench_median(&c->methods[i].measured[M_STEP]);
        if (ms > 0 && i != but &&
            (best == c->n || ms < bench_median(&c->methods[best].measured[M_STEP])))
            best = i;
    }
    return best;
}

/* What a sweep's method tries. */
static const struct setting *setting_of(size_t bar, const struct method *m)
{
    const struct setting *s = bars[bar].settings;
    while (strcmp(s->name, m->name) != 0)
        s++;
    return s;
}

/* After the sweep. */
static void add_final(struct part *p, size_t bar)
{
    const struct comparison *sweep = &p->sweeps[bar];
    struct comparison *c = &p->finals[bar];
    uint32_t *two = p->two[bar];
    two[0] = fastest(sweep, sweep->n);
    two[1] = fastest(sweep, two[0]);
    if (two[0] == sweep->n || two[1] == sweep->n)
        return;
    name_it(p, c, ", best two settings of ", bars[bar].name);
    for (uint32_t i = 0; i < 2; i++) {
        const struct setting *s = setting_of(bar, &sweep->methods[two[i]]);
        add(p, c, s->name, &bars[bar], s, 0)->may_refuse = true;
    }
}

/* The fastest that was tried. */
static const struct setting *best_of(const struct part *p, size_t bar)
{
    static const struct setting nothing = {"", "", 0, 0};
    const struct comparison *sweep = &p->sweeps[bar], *final = &p->finals[bar];
    uint32_t won = fastest(final, final->n), best = fastest(sweep, sweep->n);
    if (!sweep->n)
        return bars[bar].settings[0].name ? &bars[bar].settings[0] : &nothing;
    return setting_of(bar, won < final->n    ? &final->methods[won]
                           : best < sweep->n ? &sweep->methods[best]
                                             : &sweep->methods[0]);
}

/* As ALPHA's row of the policy, but with the share of the context that its answers need. */
static void add_as_right(struct part *p, const struct bar *bar, const struct setting *best)
{
    for (size_t i = 0; i < sizeof as_right / sizeof *as_right; i++)
        if (strcmp(as_right[i].policy, bar->policy) == 0 && is_variant(as_right[i].name)) {
            struct setting how = *best;
            how.alpha = as_right[i].alpha;
            /* M_0 may lack room for what it stages */
            add(p, &p->c, as_right[i].name, bar, &how, 0)->may_refuse = true;
        }
}

/* Rows beside ours; best: its setting. */
static void add_variants(struct part *p, const struct setting *best)
{
    const struct bar *ours = &bars[OURS];
    struct setting none = *best, found = *best;
    none.digests = 0;
    found.digests = AS_IT_FINDS;
    if (best->digests != 0 && is_variant(NO_DIGESTS))
        add(p, &p->c, NO_DIGESTS, ours, &none, 0);
    if (best->digests != AS_IT_FINDS && is_variant(AUTO_DIGESTS))
        add(p, &p->c, AUTO_DIGESTS, ours, &found, 0);
    if (is_variant(EACH_ALONE))
        add(p, &p->c, EACH_ALONE, ours, best, 0);
    if (p->rows > 1 && is_variant(ONE_ROW))
        add_option(add(p, &p->c, ONE_ROW, ours, best, 0), "--rows-in-flight 1");
    if (p->rows > 2 && is_variant(TWO_ROWS))
        add_option(add(p, &p->c, TWO_ROWS, ours, best, 0), "--rows-in-flight 2");
}

/* With the drive's DRAM, too, for digests as long as some are not in M_0. */
static void add_equal_dram(struct part *p, const struct bar *bar, const struct setting *best)
{
    struct setting more = *best;
    more.digests = fmin(more.digests + DRAM_SHARE * (1 - hot_share), 1);
    if (is_variant(EQUAL_DRAM))
        add(p, &p->c, EQUAL_DRAM, bar, &more, dram_bytes(p, bar->digest_bits) / MIB);
}

static void add_methods(struct part *p)
{
    name_it(p, &p->c, "", "");
    for (size_t b = 0; b < BARS; b++) {
        const struct bar *bar = &bars[b];
        const struct setting best = *best_of(p, b);
        if (!is_asked(bar))
            continue;
        add(p, &p->c, bar->name, bar, &best, 0);
        add_as_right(p, bar, &best);
        if (b == OURS)
            add_variants(p, &best);
        if (strcmp(bar->name, "prefetch") == 0 && is_variant(FEW_COLUMNS))
            add(p, &p->c, FEW_COLUMNS, bar, &best, 0)->point.hook = FEW_HOOK;
        if (strcmp(bar->name, COMPARISON_HOST_DIGEST) == 0)
            add_equal_dram(p, bar, &best);
    }
}

static double choose_hot_share(const struct bench_options *o)
{
    if (!bench_is_set("HOT_SHARE"))
        return o->quick ? HOT_QUICK : COMPARISON_HOT_SHARE;
    double share = atof(getenv("HOT_SHARE"));
    if (!(share > 0 && share < 1))
        bench_fail("HOT_SHARE is '%s', not a number between 0 and 1", getenv("HOT_SHARE"));
    return share;
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

/* Sessions first: no pipeline may run then. */
static void measure(const struct bench_options *o)
{
    const char *file = o->quick ? FILE_QUICK : FILE_KEPT;
    struct bench_options once = *o, some = *o;
    once.rounds = 1;
    some.rounds = o->quick ? 1 : FINAL_ROUNDS;
    for (uint32_t i = 0; i < n_parts; i++) {
        struct part *p = &parts[i];
        p->there =
            workload_make_session(&p->kv, "hillinfer") && workload_make_session(&p->kv, "h2o");
        if (!p->there)
            continue;
        for (size_t b = 0; b < BARS; b++)
            if (is_asked(&bars[b]) && bars[b].settings[0].name)
                add_sweep(p, b);
        for (size_t b = 0; b < BARS; b++)
            if (p->sweeps[b].n) {
                comparison_measure_all(&p->sweeps[b], 1, file, &once);
                if (o->rounds >= FINAL_LEAST)
                    add_final(p, b);
                if (p->finals[b].n)
                    comparison_measure_all(&p->finals[b], 1, file, &some);
            }
        add_methods(p);
        comparison_measure_all(&p->c, 1, file, o);
    }
}

/* ---- the section ---- */

static const char *verdict(const struct bar *bar, double ratio)
{
    return ratio >= bar->asked ? "met" : ratio >= bar->least ? "missed, floor met" : "missed";
}

/* Bars are of equal host DRAM: the drive's own comes on top of M_0; of policies as they are, not of
 * one that loses its answers; and of rows whose alpha answers as well as what they are judged
 * against. */
static bool is_judged(const struct method *m, const struct method *over)
{
    bool four_bits = strcmp(over->name, FOUR_BITS) == 0;
    if (m->point.hook || strcmp(m->name, EQUAL_DRAM) == 0 ||
        (strstr(m->name, ALONE) && four_bits != (strstr(m->name, AS_INT4) != NULL)) ||
        (!four_bits && strcmp(over->name, "hillinfer") != 0))
        return false;
    return strcmp(m->point.policy, COMPARISON_HOST_DIGEST) != 0 ||
           (strcmp(m->name, HOST_BITS) == 0) == four_bits;
}

/* over: one of our methods; where nothing is asked of the two there is the ratio alone. */
static void print_bar(const struct method *m, const struct method *over, const struct bar *bar)
{
    struct bench_samples ratio = comparison_ratio(m, over);
    printf("| %s | %s |", m->name, over->name);
    bench_print_quartiles(&ratio, " %.2f | %.2f - %.2f |");
    if (is_judged(m, over))
        printf(" %.2f | %.1f | %s |\n", bar->asked, bar->least, verdict(bar, bench_median(&ratio)));
    else
        printf(" | | |\n");
}

static void print_settings(const struct comparison *c, const struct setting *best)
{
    for (uint32_t i = 0; i < c->n; i++) {
        double ms = bench_median(&c->methods[i].measured[M_STEP]);
        const char *mark = strcmp(c->methods[i].name, best->name) == 0 ? "**" : "";
        printf("%s%s ", i ? ", " : "", c->methods[i].name);
        if (ms > 0)
            printf("%s%.2f%s", mark, ms, mark);
        else
            printf("refused");
    }
    printf(" (at %s)", c->commits);
}

static void print_sweeps(const struct part *p)
{
    bool any = false;
    for (size_t b = 0; b < BARS; b++) {
        const struct comparison *c = &p->sweeps[b], *final = &p->finals[b];
        const struct setting *best = best_of(p, b);
        if (!c->n)
            continue;
        printf(
            "%s%s: ",
            any ? "; "
                : "\nSettings that were tried, ms a step, one round each; a second list is of the "
                  "best two: ",
            bars[b].name);
        if (c->rounds)
            print_settings(c, best);
        else
            printf("not measured, %s", best->name);
        if (final->rounds) {
            printf(", %u round%s: ", final->rounds, final->rounds > 1 ? "s" : "");
            print_settings(final, best);
        }
        any = true;
    }
    if (any)
        printf(".\n");
}

/* Of our rows but the first: INT4's, and beside host-digest those that tell what the drive's
 * scoring gives from what else ours has. */
static bool is_paired(const struct method *m, const struct method *ours)
{
    if (strcmp(ours->name, FOUR_BITS) == 0)
        return is_judged(m, ours);
    return strcmp(m->name, COMPARISON_HOST_DIGEST) == 0 &&
           (strcmp(ours->name, TWO_ROWS) == 0 || strcmp(ours->name, NO_DIGESTS) == 0);
}

/* What is asked of the policy. */
static const struct bar *bar_of(const struct method *m)
{
    const struct bar *bar = bars;
    while (strcmp(bar->policy, m->point.policy) != 0)
        bar++;
    return bar;
}

static void print_bars(const struct comparison *c)
{
    const struct method *ours = &c->methods[0];
    printf("\n| step of | times that of | | quartiles | asked | floor | |\n"
           "|---|---|---:|---:|---:|---:|---|\n");
    for (uint32_t i = 1; i < c->n; i++) {
        const struct method *m = &c->methods[i];
        const struct bar *bar = bar_of(m);
        if (is_ours(bar) || comparison_was_refused(m))
            continue;
        print_bar(m, ours, bar);
        for (uint32_t k = 1; k < i; k++)
            if (is_paired(m, &c->methods[k]))
                print_bar(m, &c->methods[k], bar);
    }
}

static void print_missing_policies(void)
{
    for (size_t b = 0; b < BARS; b++)
        if (bars[b].digest_bits == 8 && !point_offers("policy", bars[b].policy))
            printf("There is no policy %s here: it has no row.\n", bars[b].policy);
}

static void print_head(void)
{
    printf(
        "## Policies\n\n"
        "A decode step on real KV (a text's first tokens, read once into a session that every "
        "row restores; then %u steps of all rows), under each policy: the same M_0 (a hot share "
        "of %g), `--alpha %g --gpu-keep %g --granularity G`, G as many tokens as have their "
        "entries on a page of flash (the row \"each token for itself\": 1). hillinfer: `--beta "
        "auto`, queries guessed a layer ahead, and a drive with DRAM for a quarter of the cold "
        "digests, extra to M_0. The others are on a plain SSD. Each has the fastest of the "
        "settings that are listed below the table, in which shares are of all tokens' digests "
        "(INT4's of INT4 ones): so many have room in M_0. prefetch keeps its columns on flash "
        "alone (`--digest-mb` holds digests). The row \"no digests in M_0\" differs from the first "
        "in that alone: all cold tokens are scored by the drive. \"As it finds\" is `--digest-mb "
        "auto`: what each row has is planned when it begins. "
        "host-digest's bar is of the row with the same M_0; the one with as much DRAM in all "
        "has none. InfiniGen keeps 3 of 10 columns (of rotated weights, which are not here: "
        "`docs/policies.md` says what that does to answers), prefetch half; the time of 3 of 10 is "
        "our kernel's, which pads a head's columns to whole vectors of 16 (19 of 64 to 32, half of "
        "them) and copies the rest apart, so that only its bytes are 0.6 of half's. "
        "Of a batch hillinfer has up to four rows of a layer at the scorer together; of the others "
        "one is scored, and the next one while it fetches, as with `--rows-in-flight 2`; with 1 a "
        "row begins when the one before is answered. h2o evicts nothing: it reads all cold keys "
        "for every query, where H2O would have dropped most of them and never see them again "
        "(`docs/policies.md`). At the same alpha h2o, prefetch and leoam find fewer answers than "
        "hillinfer. A row \"as right\" has the alpha at which a policy answers key-value questions "
        "as well: of 10, 15, 20, 25, 30, 40, 60, 80 %% the least with as many right answers or as "
        "much of full attention's answer (`docs/accuracy-real.md`): h2o %g, prefetch %g (%g "
        "without groups, and %g beside INT4, whose answers have less of full attention's), leoam "
        "%g; all else is as in the policy's own row. host-digest selects what hillinfer does. INT4 "
        "digests find as many of these answers as INT8, so bars are judged against both. The "
        "pipeline has no policy "
        "`window` (sinks and the newest tokens alone), so it has no row: its step would score "
        "nothing and read nothing cold; `docs/accuracy.md` has what it does to answers. "
        "The drive is modelled, `--csd-model %s` but for its `dram`: no measurement of a real "
        "one. " COMPARISON_SCORE " The GPU is the OpenCL device that the machine's line names.\n\n",
        steps, hot_share, ALPHA, ALPHA, as_right[0].alpha, as_right[1].alpha, as_right[2].alpha,
        as_right[3].alpha, as_right[4].alpha, point_csd_model());
    comparison_print_legend();
    print_missing_policies();
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("policies", argc, argv);
    point_prepare(&o);
    if (o.quick)
        o.rounds = 1;
    hot_share = choose_hot_share(&o);
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
        print_sweeps(&parts[i]);
        if (parts[i].c.rounds)
            print_bars(&parts[i].c);
    }
    if (!bench_is_set("PREPARE"))
        policy_bytes(&o);
    return 0;
}
