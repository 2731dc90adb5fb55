/*
 * tools/bench/bench_policies.c - figure "policies": what a decode step costs under each policy,
 * against context length and batch, on the paper's device model and on this machine's drive.
 *
 * What: every policy that the coordinator accepts (oracle left out: it costs what h2o costs and is
 * no system), one binary, one model, one share of hot entries, one share of the context kept on the
 * GPU (tools/bench/point.h). Under the device model each point has a prediction: bytes by
 * kv/policy_cost.h from the lengths, tiers and, where a selection decides, the counts of selected
 * entries that the GPU lacked; time from those bytes, the model's rates and the compute of the same
 * point measured without a drive. Bars: bytes within 5 %, time within 20 %. Beside that, hillinfer
 * on a drive whose kernel scores as fast as a public one would (formula.h), and with INT4 digests:
 * variants. Points are measured one after the other; POINTS chooses some, RESUME=1 keeps those that
 * there are (tools/bench/README.md). Tables have a row for each length and batch and a column for
 * each policy.
 * Concurrency: one thread. Failure: as tools/bench/point.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/formula.h"
#include "tools/bench/picture.h"
#include "tools/bench/point.h"

#define LENGTHS_MAX  8u
#define BATCHES_MAX  8u
#define STEPS        16u
#define SINKS        4u /* as they are by default, like the next two */
#define WINDOW       32u
#define BLOCK_TOKENS 256
#define BYTES_BAR    0.05
#define TIME_BAR     0.20
#define PAPER_LOW    4.21
#define PAPER_HIGH   8.56
#define MS           1e3
#define MB           1e-6

/* Of one row. */
struct step_bytes {
    double link_key, link_score, link_kv, flash_read, gpu_upload;
};

struct cell {
    const struct csd_model *drive;
    uint32_t digest_bits;  /* 0: as usual */
    bool there, predicted; /* measured; and there is a formula, and a run without a drive */
    struct point_result run, none;
    struct step_bytes bytes; /* by formula */
    double step_ms;          /* predicted */
    bool native_there;
    struct point_result native;
};

static uint32_t lengths[LENGTHS_MAX], batches[BATCHES_MAX];
static uint32_t n_lengths, n_batches, n_policies, steps = STEPS;
static char policies[POINT_POLICIES_MAX][24];
static struct cell cells[POINT_POLICIES_MAX][LENGTHS_MAX][BATCHES_MAX];
static struct csd_model model;

/* hillinfer otherwise; the baselines do not score on the drive, so that their measurements stand
 * beside these. */
static struct variant {
    const char *name, *label, *options;
    uint32_t digest_bits;
    bool fast, all_batches;
    struct csd_model drive;
    char csd_model[CSD_MODEL_TEXT];
    struct cell cells[LENGTHS_MAX][BATCHES_MAX];
} variants[] = {
    {.name = "INT4 digests", .label = "int4", .options = "--score-bits 4", .digest_bits = 4},
    {.name = "fast scoring", .label = "fast", .options = "", .fast = true, .all_batches = true},
    {.name = "fast scoring, INT4 digests",
     .label = "fast-int4",
     .options = "--score-bits 4",
     .digest_bits = 4,
     .fast = true},
};
enum { INT4, FAST, FAST_INT4, VARIANTS };

/* ---- the matrix ---- */

static struct kv_geometry geometry_with(uint32_t digest_bits)
{
    struct kv_geometry g = point_geometry();
    g.digest_bits = digest_bits;
    return g;
}

static void choose_matrix(const struct bench_options *o)
{
    static const uint32_t few[] = {4096, 16384, 32768}, few_rows[] = {1, 4, 8};
    static const uint32_t many[] = {4096, 8192, 16384, 24576, 32768, 36864},
                          many_rows[] = {1, 2, 4, 8, 12};
    static const uint32_t quick[] = {512}, quick_rows[] = {1, 2};
    struct hill_why why;
    const uint32_t *from = o->quick ? quick : o->full ? many : few;
    const uint32_t *from_rows = o->quick ? quick_rows : o->full ? many_rows : few_rows;
    n_lengths = o->quick ? 1 : o->full ? 6 : 3;
    n_batches = o->quick ? 2 : o->full ? 5 : 3;
    memcpy(lengths, from, n_lengths * sizeof *lengths);
    memcpy(batches, from_rows, n_batches * sizeof *batches);
    steps = o->quick ? 3 : STEPS;
    if (csd_model_parse(&model, point_csd_model(), &why))
        bench_fail("CSD_MODEL: %s", why.text);
    for (uint32_t i = 0; i < VARIANTS; i++) {
        struct variant *v = &variants[i];
        struct kv_geometry g = geometry_with(v->digest_bits);
        v->drive = model;
        if (v->fast) /* with as many digits as the model's text shows */
            v->drive.score = round(formula_scoring_rate(&g) * 10) / 10;
        csd_model_print(v->csd_model, &v->drive);
    }
    for (uint32_t i = 0, n = point_policies(policies); i < n; i++)
        if (strcmp(policies[i], "oracle") != 0)
            memmove(policies[n_policies++], policies[i], sizeof policies[i]);
}

/* Is fetching ahead by a guess what the policy is? By default the first two layers are exact, and
 * this model has no more. */
static bool guesses(const char *policy)
{
    return strcmp(policy, "prefetch") == 0;
}

static struct point point_of(uint32_t policy, uint32_t length, uint32_t batch,
                             enum point_drive drive)
{
    return (struct point){.policy = policies[policy],
                          .tokens = lengths[length],
                          .rows = batches[batch],
                          .steps = steps,
                          .drive = drive,
                          .csd_model = point_csd_model(),
                          .options = guesses(policies[policy]) ? "--exact-layers 1" : "",
                          .label = ""};
}

/* ---- the prediction ---- */

/* What the formulas are told of a point: nothing that was measured where no selection decides. */
static struct kv_cost_load load_of(const struct cell *c, uint32_t kv_policy, double fetched)
{
    struct kv_cost_load load = {
        .geometry = geometry_with(c->digest_bits),
        .selection = {.alpha = POINT_ALPHA, .sinks = SINKS, .window = WINDOW, .policy = kv_policy},
        .hot = (uint32_t)lround(c->run.hot),
        .cold = (uint32_t)lround(c->run.cold),
        .candidates_hot = c->run.candidates_hot,
        .candidates_cold = c->run.candidates_cold,
        .between = c->run.between,
        .runs = c->run.runs,
        .fetched = (uint32_t)lround(fetched)};
    return load;
}

static struct formula_native native_of(const struct cell *c, uint32_t kv_policy, uint32_t rows)
{
    const struct point_result *n = &c->none;
    double known = n->bounds_ms + n->score_hot_ms + n->merge_ms + n->fetch_ms;
    double cpu_share =
        kv_policy == KV_POLICY_HILLINFER ? c->run.hot / (c->run.hot + c->run.cold) : 1;
    return (struct formula_native){
        .compute = (n->step_ms - n->idle_ms) / MS,
        .bounds = n->bounds_ms / POINT_LAYERS / MS,
        .evaluate = cpu_share * n->score_hot_ms / POINT_LAYERS / MS,
        .select = n->merge_ms / POINT_LAYERS / MS,
        .other = fmax(0, n->idle_ms / rows - known) / POINT_LAYERS / MS,
    };
}

static void predict(struct cell *c, uint32_t policy, uint32_t rows, uint32_t tokens)
{
    uint32_t kv_policy;
    double kept = POINT_ALPHA * tokens, fetched = c->run.cold_hits, copied = c->run.hot_hits;
    c->predicted = kv_policy_parse(policies[policy], &kv_policy) == 0;
    if (!c->predicted)
        return;
    if (kv_policy == KV_POLICY_FULL) {
        fetched = formula_full_fetched(c->run.cold, kept, steps);
        copied = c->run.hot;
    }
    struct kv_cost_load load = load_of(c, kv_policy, fetched);
    struct kv_cost cost = kv_policy_cost(&load);
    double uploaded = (fetched + copied) * kv_entry_bytes(&load.geometry);
    c->bytes = (struct step_bytes){.link_key = (double)cost.link_key * POINT_LAYERS,
                                   .link_score = (double)cost.link_score * POINT_LAYERS,
                                   .link_kv = (double)cost.link_kv * POINT_LAYERS,
                                   .flash_read = (double)cost.flash_read * POINT_LAYERS,
                                   .gpu_upload = uploaded * POINT_LAYERS};
    if (kv_policy == KV_POLICY_FULL) /* of a step that is not the first: what the median is */
        load = load_of(c, kv_policy, fmax(0, c->run.cold - kept));
    struct formula_times times = formula_times(&load, c->drive, BLOCK_TOKENS);
    struct formula_native native = native_of(c, kv_policy, rows);
    c->step_ms =
        MS * formula_step(&native, &times, uploaded, c->drive, c->run.gpu_link, rows, POINT_LAYERS);
}

static void measure_cell(uint32_t policy, uint32_t l, uint32_t b)
{
    struct cell *c = &cells[policy][l][b];
    struct point none = point_of(policy, l, b, POINT_NONE);
    struct point run = point_of(policy, l, b, POINT_MODELLED);
    struct point native = point_of(policy, l, b, POINT_NATIVE);
    c->drive = &model;
    c->there = point_get(&none, &c->none) && point_get(&run, &c->run);
    if (c->there)
        predict(c, policy, batches[b], lengths[l]);
    if (b == 0) /* no bar, no prediction: one batch is enough */
        c->native_there = point_get(&native, &c->native);
}

/* Compute is that of the policies' point, but for what other digests make of the CPU's part. */
static void measure_variant(struct variant *v, uint32_t l, uint32_t b)
{
    struct cell *c = &v->cells[l][b];
    struct point none = point_of(0, l, b, POINT_NONE), run = point_of(0, l, b, POINT_MODELLED);
    c->drive = &v->drive;
    c->digest_bits = v->digest_bits;
    none.label = none.options = run.options = v->options;
    if (v->digest_bits)
        none.label = variants[INT4].label;
    run.label = v->label;
    run.csd_model = v->csd_model;
    if (v == &variants[INT4]) {
        c->there = point_get(&none, &c->none);
    } else {
        const struct cell *from = v->digest_bits ? &variants[INT4].cells[l][b] : &cells[0][l][b];
        c->there = from->there;
        c->none = from->none;
    }
    c->there = point_get(&run, &c->run) && c->there;
    if (c->there)
        predict(c, 0, batches[b], lengths[l]);
}

static void measure(void)
{
    uint32_t shapes = n_lengths * n_batches;
    point_expect(n_policies * (2 * shapes + n_lengths) + shapes + 3 * n_lengths);
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++) {
            for (uint32_t i = 0; i < n_policies; i++)
                measure_cell(i, l, b);
            for (uint32_t i = 0; i < VARIANTS; i++)
                if (b == 0 || variants[i].all_batches)
                    measure_variant(&variants[i], l, b);
        }
}

/* ---- the section ---- */

enum counter { LINK_KEY, LINK_SCORE, LINK_KV, FLASH_READ, GPU_UPLOAD, COUNTERS };

static void bytes_of(const struct cell *c, double measured[COUNTERS], double formula[COUNTERS])
{
    const struct point_result *r = &c->run;
    const double m[] = {r->link_key, r->link_score, r->link_kv, r->flash_read, r->gpu_upload};
    const double f[] = {c->bytes.link_key, c->bytes.link_score, c->bytes.link_kv,
                        c->bytes.flash_read, c->bytes.gpu_upload};
    memcpy(measured, m, sizeof m);
    memcpy(formula, f, sizeof f);
}

/* The largest difference of a counter from its formula, as a share of the formula. */
static double worst_bytes(const struct cell *c)
{
    double measured[COUNTERS], formula[COUNTERS], worst = 0;
    bytes_of(c, measured, formula);
    for (uint32_t i = 0; i < COUNTERS; i++)
        if (measured[i] != formula[i])
            worst = fmax(worst, formula[i] ? fabs(measured[i] / formula[i] - 1) : INFINITY);
    return worst;
}

static double time_off(const struct cell *c)
{
    return c->run.step_ms / c->step_ms - 1;
}

/* What stands in a table for a cell; ours is hillinfer's of the same row. */
typedef void cell_text(const struct cell *c, const struct cell *ours, char *out, size_t room);

/* "measured (by formula)", or the first alone where there is no formula. */
static void print_pair(char *out, size_t room, const char *format, double measured, bool known,
                       double formula)
{
    int n = snprintf(out, room, format, measured);
    if (known && n > 0 && (size_t)n + 3 < room) {
        n += snprintf(out + n, room - (size_t)n, " (");
        n += snprintf(out + n, room - (size_t)n, format, formula);
        snprintf(out + n, room - (size_t)n, ")");
    }
}

static void text_time(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    print_pair(out, room, "%.2f", c->run.step_ms, c->predicted, c->step_ms);
}

static void text_off(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    if (c->predicted)
        snprintf(out, room, "%+.0f %%, %.1f %%", 100 * time_off(c), 100 * worst_bytes(c));
}

static void text_mean(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    snprintf(out, room, "%.2f", c->run.mean_ms);
}

static void text_ratio(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    if (ours->there)
        print_pair(out, room, "%.2f", c->run.step_ms / ours->run.step_ms,
                   c->predicted && ours->predicted, c->step_ms / ours->step_ms);
}

static void text_idle(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    snprintf(out, room, "%.0f %%, %.2f", 100 * c->run.idle_ms / c->run.step_ms,
             c->none.step_ms - c->none.idle_ms);
}

static void text_cold(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    const struct point_result *r = &c->run;
    double selected = r->gpu_hits + r->hot_hits + r->cold_hits;
    (void)ours;
    snprintf(out, room, "%.0f %%", selected ? 100 * r->cold_hits / selected : 0);
}

static void text_link_key(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    print_pair(out, room, "%.3g", c->run.link_key * MB, c->predicted, c->bytes.link_key * MB);
}

static double link_all(const struct cell *c)
{
    return c->run.link_key + c->run.link_score + c->run.link_kv;
}

static void text_link(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    const struct step_bytes *f = &c->bytes;
    (void)ours;
    print_pair(out, room, "%.3g", link_all(c) * MB, c->predicted,
               (f->link_key + f->link_score + f->link_kv) * MB);
}

static void text_flash(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    print_pair(out, room, "%.3g", c->run.flash_read * MB, c->predicted, c->bytes.flash_read * MB);
}

static void text_upload(const struct cell *c, const struct cell *ours, char *out, size_t room)
{
    (void)ours;
    print_pair(out, room, "%.3g", c->run.gpu_upload * MB, c->predicted, c->bytes.gpu_upload * MB);
}

/* The rest of a table's head: a column for each policy from `first` on, behind those of `lead`. */
static void print_policy_columns(uint32_t first, const char *lead)
{
    for (uint32_t i = first; i < n_policies; i++)
        printf(" %s |", policies[i]);
    printf("\n%s", lead);
    for (uint32_t i = first; i < n_policies; i++)
        printf("---:|");
    printf("\n");
}

/* A row for each length and batch, a column for each policy from `first` on. */
static void print_table(const char *caption, uint32_t first, cell_text *text)
{
    char out[64];
    printf("\n%s\n\n| tokens x batch |", caption);
    print_policy_columns(first, "|---|");
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++) {
            bool any = false;
            for (uint32_t i = first; i < n_policies; i++)
                any = any || cells[i][l][b].there;
            if (!any)
                continue;
            printf("| %u x %u |", lengths[l], batches[b]);
            for (uint32_t i = first; i < n_policies; i++) {
                *out = 0;
                if (cells[i][l][b].there)
                    text(&cells[i][l][b], &cells[0][l][b], out, sizeof out);
                printf(" %s |", out);
            }
            printf("\n");
        }
}

static void print_bars(void)
{
    uint32_t n_predicted = 0, bytes_met = 0, time_met = 0;
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++) {
                const struct cell *c = &cells[i][l][b];
                if (!c->there || !c->predicted)
                    continue;
                n_predicted++;
                bytes_met += worst_bytes(c) <= BYTES_BAR;
                time_met += fabs(time_off(c)) <= TIME_BAR;
            }
    printf("\nBars: bytes within %.0f %% of the formula at %u of %u points, time within %.0f %% of "
           "the prediction at %u of %u.\n",
           100 * BYTES_BAR, bytes_met, n_predicted, 100 * TIME_BAR, time_met, n_predicted);
}

/* Where the real work took longer than the modelled time, the times are not the model's. */
static void print_late(void)
{
    char name[128] = "";
    struct point worst = {.policy = ""};
    double most = -1, values[POINT_POLICIES_MAX * LENGTHS_MAX * BATCHES_MAX];
    uint64_t n = 0;
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++) {
                const struct point_result *r = &cells[i][l][b].run;
                if (!cells[i][l][b].there)
                    continue;
                values[n++] = r->late_ms / r->whole_ms;
                if (values[n - 1] > most) {
                    most = values[n - 1];
                    worst = point_of(i, l, b, POINT_MODELLED);
                }
            }
    if (n)
        printf(
            "\nLate, the sum of how long the real work took beyond the modelled time: %.1f %% of "
            "a run (all rows' restoring, whose writes are most of it, and the steps) at the "
            "median point, %.1f %% at the worst (%s).\n",
            100 * bench_quantile(values, n, 0.5), 100 * most, point_name(&worst, name));
}

/* Nanoseconds that one cold token costs each policy's evaluation and one fetched entry, by the
 * model: what the ratios come from. */
static void print_reasons(void)
{
    struct kv_geometry g = point_geometry();
    double entry_bytes = kv_entry_bytes(&g), narrow = fmin(model.flash, model.link);
    double score = entry_bytes / model.score, digest = kv_digest_bytes(&g) / model.flash;
    double key = entry_bytes / 2 / narrow, entry = entry_bytes / narrow;
    printf("\nWhat decides the ratios: under this model one cold token costs a query %.0f ns of "
           "scoring on the drive (%.0f bytes of FP16 KV at %g GB/s; reading its digest takes %.0f "
           "ns of flash meanwhile), %.0f ns where its FP16 key comes to the host, and %.0f ns "
           "where it is attended to without the GPU having it.\n",
           score, entry_bytes, model.score, digest, key, entry);
    printf("So scoring in the drive costs %.2f of what moving the keys costs, and %.2f of moving "
           "everything; with scoring no slower than reading digests it would be %.2f and %.2f. "
           "What is fetched afterwards is the same with every policy that selects.\n",
           score / key, score / entry, digest / key, digest / entry);
}

/* ---- a drive that scores faster, and other digests ---- */

static void print_fast_row(uint32_t l, uint32_t b)
{
    char text[64];
    const struct cell *fast = &variants[FAST].cells[l][b];
    if (!fast->there)
        return;
    text_time(fast, NULL, text, sizeof text);
    printf("| %u x %u | %s |", lengths[l], batches[b], text);
    for (uint32_t i = 1; i < n_policies; i++) {
        *text = 0;
        if (cells[i][l][b].there)
            text_ratio(&cells[i][l][b], fast, text, sizeof text);
        printf(" %s |", text);
    }
    printf("\n");
}

static void print_fast(void)
{
    struct kv_geometry g = point_geometry();
    printf("\n### A drive that scores faster\n\n`--csd-model %s`: the same drive with a kernel "
           "that takes %.0f bytes of digests a clock of %.0f MHz, %.0f %% of the time, as the "
           "timing model of a SmartSSD has it: %.1f GB/s of digests, %.1f GB/s of the FP16 K and V "
           "that they stand for; "
           "reading digests from flash limits it then. The baselines do not score on the drive: "
           "their measurements are those above, and the ratios are over this hillinfer, by formula "
           "in brackets; the paper: %.2f-%.2f.\n\n| tokens x batch | hillinfer, ms/token |",
           variants[FAST].csd_model, FORMULA_BEAT_BYTES, FORMULA_CLOCK_MHZ,
           100 * FORMULA_CLOCK_SHARE,
           formula_scoring_rate(&g) * kv_digest_bytes(&g) / kv_entry_bytes(&g),
           formula_scoring_rate(&g), PAPER_LOW, PAPER_HIGH);
    print_policy_columns(1, "|---|---:|");
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            print_fast_row(l, b);
}

static void print_variants(void)
{
    char text[64];
    printf(
        "\nhillinfer with INT4 digests (`--score-bits 4`) on both drives (the fast one at %.1f "
        "GB/s then, its digests being half as long), ms/token:\n\n| tokens x batch | hillinfer |",
        variants[FAST_INT4].drive.score);
    for (uint32_t i = 0; i < VARIANTS; i++)
        printf(" %s |", variants[i].name);
    printf("\n|---|---:|---:|---:|---:|\n");
    for (uint32_t l = 0; l < n_lengths; l++) {
        if (!cells[0][l][0].there)
            continue;
        text_time(&cells[0][l][0], NULL, text, sizeof text);
        printf("| %u x %u | %s |", lengths[l], batches[0], text);
        for (uint32_t i = 0; i < VARIANTS; i++) {
            *text = 0;
            if (variants[i].cells[l][0].there)
                text_time(&variants[i].cells[l][0], NULL, text, sizeof text);
            printf(" %s |", text);
        }
        printf("\n");
    }
}

/* ---- this machine's drive ---- */

static void print_native(void)
{
    printf("\n### This machine's drive\n\nThe same without a device model, on the file system of "
           "`BENCH_DIR`, batch %u; entries in DRAM are read in place. Nothing is predicted "
           "here. Each cell: ms/token, of hillinfer's, the share in which the GPU waited.\n\n"
           "| tokens |",
           batches[0]);
    print_policy_columns(0, "|---:|");
    for (uint32_t l = 0; l < n_lengths; l++) {
        const struct cell *ours = &cells[0][l][0];
        printf("| %u |", lengths[l]);
        for (uint32_t i = 0; i < n_policies; i++) {
            const struct cell *c = &cells[i][l][0];
            const struct point_result *r = &c->native;
            if (c->native_there && ours->native_there)
                printf(" %.2f, x %.2f, %.0f %% |", r->step_ms, r->step_ms / ours->native.step_ms,
                       100 * r->idle_ms / r->step_ms);
            else if (c->native_there)
                printf(" %.2f, %.0f %% |", r->step_ms, 100 * r->idle_ms / r->step_ms);
            else
                printf(" |");
        }
        printf("\n");
    }
}

static void print_head(const struct bench_options *o)
{
    char text[CSD_MODEL_TEXT];
    printf("## Policies\n\n"
           "Milliseconds of a decode step (a token of every sequence): the median of %u steps "
           "after a prompt (of 4096 tokens alone: in the middle one of three pipelines); a "
           "random-weight model: " POINT_MODEL ".\n"
           "Few weights and many bytes of KV, so that the drive decides. The same for every "
           "policy: alpha %g, beta %g (a share of %.2f of the entries hot), and %g of the context "
           "kept on the GPU from one query to the next. Queries are exact (`--speculate off`; "
           "prefetch guesses those of the second of the two layers, as it is meant to), "
           "rows are answered one after the other.\n\n",
           steps, POINT_ALPHA, POINT_BETA, POINT_BETA / (1 + POINT_BETA), POINT_ALPHA);
    if (o->full)
        printf("The full matrix.\n\n");
    printf("### Under the paper's device model\n\n`--csd-model %s`: a modelled drive, no "
           "measurement of a real one; its pool lies in memory, so that the real work is "
           "done before the modelled time is over. The GPU has memory of its own: hot entries are "
           "copied to it too. In brackets what is predicted.\n\n",
           csd_model_print(text, &model));
    printf(
        "Predicted: bytes by formula over the model's rates, and the compute of the same point "
        "without a drive. Of a step: compute + layers x rows x (bounds + max(evaluation by the "
        "drive, and then on the CPU of the last 256 KiB of keys where those come; all of it on the "
        "CPU) + selection + fetch + other). Compute, bounds, the CPU's evaluation, "
        "the selection and other are "
        "measured in a run of their own with everything in DRAM (`--csd none`, the same "
        "policy, GPU and prompt: its step less the waits for selections, its `bounds_ms` (leoam "
        "must search them before it can ask for keys), its `score_hot_ms`, of "
        "which hillinfer is charged the hot share alone, its `merge_ms`, and what else it waited "
        "for). The formula is told how many tokens are cold and, of policies that select, how many "
        "of the selected entries came from DRAM and from the drive; of leoam also how many "
        "candidates its bounds named in each tier, and in how many runs the cold ones lay; of "
        "`full` nothing.\n");
}

/* Of all entries; the same at each point but for rounding. */
static double cold_share(void)
{
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++)
                if (cells[i][l][b].there) {
                    const struct point_result *r = &cells[i][l][b].run;
                    return r->cold / (r->hot + r->cold);
                }
    return 0;
}

static void print_times(void)
{
    char caption[640];
    print_table("ms/token (predicted):", 0, text_time);
    print_bars();
    print_late();
    snprintf(caption, sizeof caption,
             "How much longer a token takes than with hillinfer (predicted). The paper reports "
             "%.2f-%.2f of its machine and models, each policy being a program of its own there:",
             PAPER_LOW, PAPER_HIGH);
    print_table(caption, 1, text_ratio);
    print_reasons();
    print_table("Measured time and the worst byte counter, off what is predicted:", 0, text_off);
    print_table(
        "Share of a step in which the GPU waits for selections (rows are answered one after "
        "the other, nothing overlaps), and the step's compute in ms, measured without a "
        "drive:",
        0, text_idle);
    snprintf(caption, sizeof caption,
             "Selected entries that the GPU lacked and that came from the drive, of all selected "
             "(of all entries %.0f %% are cold; with `full` all are selected):",
             100 * cold_share());
    print_table(caption, 0, text_cold);
    print_table("Mean ms/token of all steps; the first one finds the GPU without entries, brings "
                "up all that it selects and touches most of its memory for the first time:",
                0, text_mean);
}

static void print_bytes(void)
{
    print_table("#### Bytes of one sequence's token, MB (10^6), by formula in brackets\n\n"
                "Over the drive's link, keys (`link_key`):",
                0, text_link_key);
    print_table("Over the drive's link, all: keys, scores and selected entries (`link_key`, "
                "`link_score`, `link_kv`):",
                0, text_link);
    print_table("From flash, in the drive (`flash_read`):", 0, text_flash);
    print_table("Over the GPU's link (`gpu_upload`):", 0, text_upload);
}

/* ---- pictures ---- */

/* A value of a policy at a length and batch; NAN: there is none. */
typedef double cell_value(uint32_t policy, uint32_t l, uint32_t b);

static double value_time(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return c->there ? c->run.step_ms : NAN;
}

static double value_predicted(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return c->there && c->predicted ? c->step_ms : NAN;
}

static double over(const struct cell *ours, uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return policy && c->there && ours->there ? c->run.step_ms / ours->run.step_ms : NAN;
}

static double value_ratio(uint32_t policy, uint32_t l, uint32_t b)
{
    return over(&cells[0][l][b], policy, l, b);
}

static double value_fast_ratio(uint32_t policy, uint32_t l, uint32_t b)
{
    return over(&variants[FAST].cells[l][b], policy, l, b);
}

static double value_link(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return c->there ? link_all(c) * MB : NAN;
}

static double value_native(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return c->native_there ? c->native.step_ms : NAN;
}

/* Of each policy solid, and dashed what `other` gives, against length (the first batch) or batch
 * (the middle length). */
static struct picture begin_picture(const char *name, char *title, size_t room, const char *what,
                                    const char *y_label, bool by_length)
{
    if (by_length)
        snprintf(title, room, "%s, batch %u", what, batches[0]);
    else
        snprintf(title, room, "%s, %u tokens", what, lengths[n_lengths / 2]);
    return (struct picture){.name = name,
                            .title = title,
                            .x_label = by_length ? "context, tokens" : "sequences in a step",
                            .y_label = y_label,
                            .log_x = by_length};
}

static void add_series(struct picture *p, uint32_t policy, const char *suffix, cell_value *value)
{
    char name[48];
    bool by_length = p->log_x;
    snprintf(name, sizeof name, "%s%s", policies[policy], suffix);
    struct picture_series *s = picture_add(p, name, *suffix != 0);
    for (uint32_t k = 0; k < (by_length ? n_lengths : n_batches); k++) {
        double y = by_length ? value(policy, k, 0) : value(policy, n_lengths / 2, k);
        if (!isnan(y))
            picture_point(s, by_length ? lengths[k] : batches[k], y);
    }
}

static void draw(const char *name, const char *what, const char *y_label, bool by_length,
                 cell_value *value, const char *other_name, cell_value *other)
{
    static struct picture p;
    char title[128];
    p = begin_picture(name, title, sizeof title, what, y_label, by_length);
    for (uint32_t i = 0; i < n_policies; i++) {
        add_series(&p, i, "", value);
        if (other)
            add_series(&p, i, other_name, other);
    }
    picture_show(&p);
}

static void draw_modelled(void)
{
    draw("policies-length", "Modelled drive", "ms/token", true, value_time, ", predicted",
         value_predicted);
    draw("policies-batch", "Modelled drive", "ms/token", false, value_time, ", predicted",
         value_predicted);
    draw("policies-speedup-length", "Modelled drive; dashed: over hillinfer with fast scoring",
         "speedup of hillinfer over it", true, value_ratio, ", fast", value_fast_ratio);
    draw("policies-speedup-batch", "Modelled drive; dashed: over hillinfer with fast scoring",
         "speedup of hillinfer over it", false, value_ratio, ", fast", value_fast_ratio);
    draw("policies-link", "Modelled drive", "MB over the drive's link, a token", true, value_link,
         NULL, NULL);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("policies", argc, argv);
    point_prepare(&o);
    choose_matrix(&o);
    measure();
    print_head(&o);
    print_times();
    print_bytes();
    print_fast();
    print_variants();
    draw_modelled();
    print_native();
    point_print_commits();
    draw("policies-native", "This machine's drive", "ms/token", true, value_native, NULL, NULL);
    return 0;
}
