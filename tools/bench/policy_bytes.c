/*
 * tools/bench/policy_bytes.c - see policy_bytes.h.
 *
 * Each point has a prediction: bytes by kv/policy_cost.h from the lengths, tiers and, where a
 * selection decides, the counts of selected entries that the GPU lacked; time from those bytes, the
 * model's rates and the compute of the same point measured without a drive. Bars: bytes within 5 %,
 * time within 20 %. Tables have a row for each length and batch and a column for each policy.
 */
#include "tools/bench/policy_bytes.h"

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
#define MS           1e3
#define MB           1e-6

enum counter { LINK_KEY, LINK_SCORE, LINK_KV, FLASH_READ, GPU_UPLOAD, COUNTERS };

struct cell {
    bool there, predicted; /* measured; and there is a formula, and a run without a drive */
    struct point_result run, none;
    double measured[COUNTERS], formula[COUNTERS]; /* bytes of one row */
    double step_ms;                               /* predicted */
};

static uint32_t lengths[LENGTHS_MAX], batches[BATCHES_MAX];
static uint32_t n_lengths, n_batches, n_policies, steps = STEPS;
static char policies[POINT_POLICIES_MAX][24];
static struct cell cells[POINT_POLICIES_MAX][LENGTHS_MAX][BATCHES_MAX];
static struct csd_model model;
static char model_text[CSD_MODEL_TEXT];

/* ---- the matrix ---- */

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
    model.dram = 0; /* else which digests come from flash is no matter of formula */
    csd_model_print(model_text, &model);
    for (uint32_t i = 0, n = point_policies(policies); i < n; i++)
        if (strcmp(policies[i], "oracle") != 0)
            memmove(policies[n_policies++], policies[i], sizeof policies[i]);
}

/* Is fetching ahead by a guess what the policy is? By default the first three layers are exact,
 * and this model has two. */
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
                          .csd_model = model_text,
                          .options = guesses(policies[policy]) ? "--exact-layers 1" : "",
                          .label = ""};
}

/* ---- the prediction ---- */

/* What the formulas are told of a point: nothing that was measured where no selection decides. */
static struct kv_cost_load load_of(const struct cell *c, uint32_t kv_policy, double fetched)
{
    struct kv_cost_load load = {
        .geometry = point_geometry(),
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
    const double layer[COUNTERS] = {(double)cost.link_key, (double)cost.link_score,
                                    (double)cost.link_kv, (double)cost.flash_read, uploaded};
    for (uint32_t i = 0; i < COUNTERS; i++)
        c->formula[i] = layer[i] * POINT_LAYERS;
    if (kv_policy == KV_POLICY_FULL) /* of a step that is not the first: what the median is */
        load = load_of(c, kv_policy, fmax(0, c->run.cold - kept));
    struct formula_times times = formula_times(&load, &model, BLOCK_TOKENS);
    struct formula_native native = native_of(c, kv_policy, rows);
    c->step_ms =
        MS * formula_step(&native, &times, uploaded, &model, c->run.gpu_link, rows, POINT_LAYERS);
}

static void measure_cell(uint32_t policy, uint32_t l, uint32_t b)
{
    struct cell *c = &cells[policy][l][b];
    struct point none = point_of(policy, l, b, POINT_NONE);
    struct point run = point_of(policy, l, b, POINT_MODELLED);
    const struct point_result *r = &c->run;
    c->there = point_get(&none, &c->none) && point_get(&run, &c->run);
    if (!c->there)
        return;
    memcpy(c->measured,
           (double[COUNTERS]){r->link_key, r->link_score, r->link_kv, r->flash_read, r->gpu_upload},
           sizeof c->measured);
    predict(c, policy, batches[b], lengths[l]);
}

static void measure(void)
{
    uint32_t shapes = n_lengths * n_batches;
    point_expect(n_policies * 2 * shapes);
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++)
                measure_cell(i, l, b);
}

/* ---- the section ---- */

/* The largest difference of a counter from its formula, as a share of the formula. */
static double worst_bytes(const struct cell *c)
{
    double worst = 0;
    for (uint32_t i = 0; i < COUNTERS; i++)
        if (c->measured[i] != c->formula[i])
            worst =
                fmax(worst, c->formula[i] ? fabs(c->measured[i] / c->formula[i] - 1) : INFINITY);
    return worst;
}

static double time_off(const struct cell *c)
{
    return c->run.step_ms / c->step_ms - 1;
}

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

static double link_all(const double bytes[COUNTERS])
{
    return bytes[LINK_KEY] + bytes[LINK_SCORE] + bytes[LINK_KV];
}

/* What a table is of: a byte counter, or one of these. */
enum content { TIME = COUNTERS, OFF, RATIO, IDLE, COLD, LINK_ALL };

/* What stands there for a cell; ours is hillinfer's of the same row. */
static void print_cell(unsigned content, const struct cell *c, const struct cell *ours, char *out,
                       size_t room)
{
    const struct point_result *r = &c->run;
    double selected = r->gpu_hits + r->hot_hits + r->cold_hits;
    switch (content) {
    case TIME:
        print_pair(out, room, "%.2f", r->step_ms, c->predicted, c->step_ms);
        break;
    case OFF:
        if (c->predicted)
            snprintf(out, room, "%+.0f %%, %.1f %%", 100 * time_off(c), 100 * worst_bytes(c));
        break;
    case RATIO:
        if (ours->there)
            print_pair(out, room, "%.2f", r->step_ms / ours->run.step_ms,
                       c->predicted && ours->predicted, c->step_ms / ours->step_ms);
        break;
    case IDLE:
        snprintf(out, room, "%.0f %%, %.2f", 100 * r->idle_ms / r->step_ms,
                 c->none.step_ms - c->none.idle_ms);
        break;
    case COLD:
        snprintf(out, room, "%.0f %%", selected ? 100 * r->cold_hits / selected : 0);
        break;
    case LINK_ALL:
        print_pair(out, room, "%.3g", link_all(c->measured) * MB, c->predicted,
                   link_all(c->formula) * MB);
        break;
    default:
        print_pair(out, room, "%.3g", c->measured[content] * MB, c->predicted,
                   c->formula[content] * MB);
    }
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
static void print_table(const char *caption, uint32_t first, unsigned content)
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
                    print_cell(content, &cells[i][l][b], &cells[0][l][b], out, sizeof out);
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
    double score = entry_bytes / model.score, flash = kv_digest_bytes(&g) / model.flash;
    double drive = fmax(score, flash), cached = fmax(score, kv_digest_bytes(&g) / model.dram_read);
    double key = entry_bytes / 2 / narrow, entry = entry_bytes / narrow;
    printf(
        "\nWhat decides the ratios: under this model one cold token costs a query %.0f ns in the "
        "drive (reading its digest from flash; scoring it takes %.0f meanwhile; %.0f where the "
        "digest lies in the drive's DRAM), %.0f ns where its FP16 key comes to the host, and "
        "%.0f ns where it is attended to without the GPU having it.\n",
        drive, score, cached, key, entry);
    printf("So scoring in the drive costs %.2f of what moving the keys costs and %.2f of moving "
           "everything; out of DRAM %.2f and %.2f. What is fetched afterwards is the same with "
           "every policy that selects.\n",
           drive / key, drive / entry, cached / key, cached / entry);
}

static void print_head(const struct bench_options *o)
{
    printf("\n### Bytes and limits, random weights\n\n"
           "What the policies must read, move and score, against formulas: random weights "
           "(" POINT_MODEL
           "), few of them and many bytes of KV, so that the drive decides. What such a model "
           "selects says nothing about real texts; the ratios between policies are those above. "
           "Milliseconds of a decode step, the median of %u; the same for every "
           "policy: alpha %g, beta %g (a share of %.2f of the entries hot), and %g of the context "
           "kept on the GPU. Queries are exact (prefetch guesses the second of the two layers'), "
           "rows are answered one after the other. `--csd-model %s`: no DRAM, so that bytes from "
           "flash are a matter of formula.\n\n",
           steps, POINT_ALPHA, POINT_BETA, POINT_BETA / (1 + POINT_BETA), POINT_ALPHA, model_text);
    if (o->full)
        printf("The full matrix.\n\n");
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
    print_table("ms/token (predicted):", 0, TIME);
    print_bars();
    print_late();
    print_table("How much longer a token takes than with hillinfer (predicted):", 1, RATIO);
    print_reasons();
    print_table("Measured time and the worst byte counter, off what is predicted:", 0, OFF);
    print_table(
        "Share of a step in which the GPU waits for selections (rows are answered one after "
        "the other, nothing overlaps), and the step's compute in ms, measured without a "
        "drive:",
        0, IDLE);
    snprintf(caption, sizeof caption,
             "Selected entries that the GPU lacked and that came from the drive, of all selected "
             "(of all entries %.0f %% are cold; with `full` all are selected):",
             100 * cold_share());
    print_table(caption, 0, COLD);
}

static void print_bytes(void)
{
    print_table("#### Bytes of one sequence's token, MB (10^6), by formula in brackets\n\n"
                "Over the drive's link, keys (`link_key`):",
                0, LINK_KEY);
    print_table("Over the drive's link, all: keys, scores and selected entries (`link_key`, "
                "`link_score`, `link_kv`):",
                0, LINK_ALL);
    print_table("From flash, in the drive (`flash_read`):", 0, FLASH_READ);
    print_table("Over the GPU's link (`gpu_upload`):", 0, GPU_UPLOAD);
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

static double value_ratio(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b], *ours = &cells[0][l][b];
    return policy && c->there && ours->there ? c->run.step_ms / ours->run.step_ms : NAN;
}

static double value_link(uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *c = &cells[policy][l][b];
    return c->there ? link_all(c->measured) * MB : NAN;
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
    draw("policies-speedup-length", "Modelled drive", "speedup of hillinfer over it", true,
         value_ratio, NULL, NULL);
    draw("policies-speedup-batch", "Modelled drive", "speedup of hillinfer over it", false,
         value_ratio, NULL, NULL);
    draw("policies-link", "Modelled drive", "MB over the drive's link, a token", true, value_link,
         NULL, NULL);
}

static bool anything_there(void)
{
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++)
                if (cells[i][l][b].there)
                    return true;
    return false;
}

void policy_bytes(const struct bench_options *o)
{
    choose_matrix(o);
    measure();
    print_head(o);
    if (!anything_there()) {
        printf("\nNot measured.\n");
        return;
    }
    print_times();
    print_bytes();
    draw_modelled();
    point_print_commits();
}
