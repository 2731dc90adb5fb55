/*
 * bench/bench_policies.c - figure "policies": what a decode step costs under each policy, against
 * context length and batch, on the paper's device model and on this machine's drive.
 *
 * What: every policy that the coordinator accepts (oracle left out: it costs what h2o costs and is
 * no system), one binary, one model, one share of hot entries, one share of the context kept on the
 * GPU (bench/point.h). Under the device model each point has a prediction: bytes by
 * kv/policy_cost.h from the lengths, tiers and, where a selection decides, the counts of selected
 * entries that the GPU lacked; time from those bytes, the model's rates and the compute of the same
 * point measured without a drive. Bars: bytes within 5 %, time within 20 %. Points are measured one
 * after the other; POINTS chooses some, RESUME=1 keeps those that there are (bench/README.md).
 * Concurrency: one thread. Failure: as bench/point.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/formula.h"
#include "bench/picture.h"
#include "bench/point.h"

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
    for (uint32_t i = 0, n = point_policies(policies); i < n; i++)
        if (strcmp(policies[i], "oracle") != 0)
            memmove(policies[n_policies++], policies[i], sizeof policies[i]);
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
                          .options = "",
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
    c->bytes = (struct step_bytes){.link_key = (double)cost.link_key * POINT_LAYERS,
                                   .link_score = (double)cost.link_score * POINT_LAYERS,
                                   .link_kv = (double)cost.link_kv * POINT_LAYERS,
                                   .flash_read = (double)cost.flash_read * POINT_LAYERS,
                                   .gpu_upload = uploaded * POINT_LAYERS};
    if (kv_policy == KV_POLICY_FULL) /* of a step that is not the first: what the median is */
        load = load_of(c, kv_policy, fmax(0, c->run.cold - kept));
    struct formula_times times = formula_times(&load, &model, BLOCK_TOKENS);
    struct formula_native native = native_of(c, kv_policy, rows);
    c->step_ms =
        MS * formula_step(&native, &times, uploaded, &model, c->run.gpu_link, rows, POINT_LAYERS);
}

static void measure(void)
{
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++) {
                struct cell *c = &cells[i][l][b];
                struct point none = point_of(i, l, b, POINT_NONE);
                struct point run = point_of(i, l, b, POINT_MODELLED);
                struct point native = point_of(i, l, b, POINT_NATIVE);
                c->there = point_get(&none, &c->none) && point_get(&run, &c->run);
                if (c->there)
                    predict(c, i, batches[b], lengths[l]);
                if (batches[b] == 1) /* no bar, no prediction: one batch is enough */
                    c->native_there = point_get(&native, &c->native);
            }
}

/* ---- the section ---- */

static const char *const byte_names[] = {"link_key", "link_score", "link_kv", "flash_read",
                                         "gpu_upload"};

static void bytes_of(const struct cell *c, double measured[5], double formula[5])
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
    double measured[5], formula[5], worst = 0;
    bytes_of(c, measured, formula);
    for (uint32_t i = 0; i < 5; i++)
        if (measured[i] != formula[i])
            worst = fmax(worst, formula[i] ? fabs(measured[i] / formula[i] - 1) : INFINITY);
    return worst;
}

/* The cells that are there, in the order of the tables. */
typedef void each_cell(const struct cell *c, uint32_t policy, uint32_t length, uint32_t batch);
static void each(each_cell *visit)
{
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t b = 0; b < n_batches; b++)
            for (uint32_t i = 0; i < n_policies; i++)
                if (cells[i][l][b].there)
                    visit(&cells[i][l][b], i, l, b);
}

static void print_time(const struct cell *c, uint32_t policy, uint32_t l, uint32_t b)
{
    const struct point_result *r = &c->run;
    double selected = r->gpu_hits + r->hot_hits + r->cold_hits;
    printf("| %u | %u | %s | %.2f | %.2f |", lengths[l], batches[b], policies[policy], r->mean_ms,
           r->step_ms);
    if (c->predicted)
        printf(" %.2f | %+.0f %% |", c->step_ms, (r->step_ms / c->step_ms - 1) * 100);
    else
        printf(" | |");
    printf(" %.2f | %.0f %% | %.0f %% | %.0f %% | %.1f |\n", c->none.step_ms - c->none.idle_ms,
           100 * r->idle_ms / r->step_ms, 100 * r->cold / (r->hot + r->cold),
           selected ? 100 * r->cold_hits / selected : 0, r->commands ? r->late_ms : 0);
}

static void print_bytes(const struct cell *c, uint32_t policy, uint32_t l, uint32_t b)
{
    double measured[5], formula[5];
    bytes_of(c, measured, formula);
    printf("| %u | %u | %s |", lengths[l], batches[b], policies[policy]);
    for (uint32_t i = 0; i < 5; i++)
        if (c->predicted)
            printf(" %.3f (%.3f) |", measured[i] * MB, formula[i] * MB);
        else
            printf(" %.3f |", measured[i] * MB);
    if (c->predicted)
        printf(" %.1f %% |\n", 100 * worst_bytes(c));
    else
        printf(" |\n");
}

static uint32_t n_predicted, n_bytes_met, n_time_met;
static void count_bars(const struct cell *c, uint32_t policy, uint32_t l, uint32_t b)
{
    (void)policy, (void)l, (void)b;
    n_predicted += c->predicted;
    n_bytes_met += c->predicted && worst_bytes(c) <= BYTES_BAR;
    n_time_met += c->predicted && fabs(c->run.step_ms / c->step_ms - 1) <= TIME_BAR;
}

static void print_ratio(const struct cell *c, uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *ours = &cells[0][l][b]; /* hillinfer is the first */
    if (policy == 0 || !ours->there)
        return;
    printf("| %u | %u | %s | %.2f |", lengths[l], batches[b], policies[policy],
           c->run.step_ms / ours->run.step_ms);
    if (c->predicted && ours->predicted)
        printf(" %.2f |", c->step_ms / ours->step_ms);
    else
        printf(" |");
    printf(" %.2f-%.2f |\n", PAPER_LOW, PAPER_HIGH);
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

/* The ratio if scoring never were the slowest stage: by formula alone. */
static double without_score_limit(const struct cell *c, uint32_t rows)
{
    struct kv_geometry g = point_geometry();
    double slower = fmax(0, c->run.cold * (kv_entry_bytes(&g) / (model.score * 1e9) -
                                           kv_digest_bytes(&g) / (model.flash * 1e9)));
    return c->step_ms - MS * slower * rows * POINT_LAYERS;
}

static void print_what_if(const struct cell *c, uint32_t policy, uint32_t l, uint32_t b)
{
    const struct cell *ours = &cells[0][l][b];
    if (policy && c->predicted && ours->there && ours->predicted)
        printf("| %u | %u | %s | %.2f |\n", lengths[l], batches[b], policies[policy],
               c->step_ms / without_score_limit(ours, batches[b]));
}

static void print_native(void)
{
    printf("\n### This machine's drive\n\nThe same without a device model, on the file system of "
           "`BENCH_DIR`, one sequence; entries in DRAM are read in place. Nothing is predicted "
           "here.\n\n"
           "| tokens | policy | ms/token | GPU idle | cold of selected | of hillinfer |\n"
           "|---:|---|---:|---:|---:|---:|\n");
    for (uint32_t l = 0; l < n_lengths; l++)
        for (uint32_t i = 0; i < n_policies; i++) {
            const struct cell *c = &cells[i][l][0], *ours = &cells[0][l][0];
            const struct point_result *r = &c->native;
            if (!c->native_there)
                continue;
            printf("| %u | %s | %.2f | %.0f %% | %.0f %% |", lengths[l], policies[i], r->step_ms,
                   100 * r->idle_ms / r->step_ms,
                   100 * r->cold_hits / (r->gpu_hits + r->hot_hits + r->cold_hits));
            if (ours->native_there)
                printf(" %.2f |\n", r->step_ms / ours->native.step_ms);
            else
                printf(" |\n");
        }
}

static void print_head(const struct bench_options *o)
{
    char text[CSD_MODEL_TEXT];
    printf("## Policies\n\n"
           "Milliseconds of a decode step (a token of every sequence): the median of %u steps "
           "after a prompt (and their mean: the first step finds the GPU empty and touches its "
           "buffers for the first time); a random-weight model: " POINT_MODEL ".\n"
           "Few weights and many bytes of KV, so that the drive decides. The same for every "
           "policy: alpha %g, beta %g (a share of %.2f of the entries hot), and %g of the context "
           "kept on the GPU from one query to the next. Queries are exact (`--speculate off`), "
           "rows are answered one after the other.\n\n",
           steps, POINT_ALPHA, POINT_BETA, POINT_BETA / (1 + POINT_BETA), POINT_ALPHA);
    if (o->full)
        printf("The full matrix.\n\n");
    printf("### Under the paper's device model\n\n`--csd-model %s`: a modelled drive, no "
           "measurement of a real one; its pool lies in memory, so that the real work is "
           "done before the modelled time is over (late: by how many ms together it was not, "
           "prompts included; then the time is not the model's). The GPU has memory of its own: "
           "hot entries are copied to it too.\n\n",
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
        "`full` nothing.\n\n");
}

static void print_section(const struct bench_options *o, bool pictures)
{
    print_head(o);
    printf(
        "| tokens | batch | policy | mean | ms/token | predicted | | compute | GPU idle | cold of "
        "all | cold of selected | late, ms |\n"
        "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    each(print_time);
    printf("\nBytes of one sequence's token, MB (10^6), and by formula in brackets:\n\n"
           "| tokens | batch | policy |");
    for (uint32_t i = 0; i < 5; i++)
        printf(" %s |", byte_names[i]);
    printf(" worst |\n|---:|---:|---|---:|---:|---:|---:|---:|---:|\n");
    each(print_bytes);
    each(count_bars);
    printf("\nBars: bytes within %.0f %% of the formula at %u of %u points, time within %.0f %% of "
           "the prediction at %u of %u.\n",
           100 * BYTES_BAR, n_bytes_met, n_predicted, 100 * TIME_BAR, n_time_met, n_predicted);
    printf("\nHow much longer a token takes than with hillinfer, beside what the paper reports of "
           "its machine and models:\n\n"
           "| tokens | batch | policy | measured | predicted | paper |\n"
           "|---:|---:|---|---:|---:|---:|\n");
    each(print_ratio);
    print_reasons();
    printf("\nBy formula alone, not measured: the same ratios if the drive scored as fast as it "
           "reads digests:\n\n| tokens | batch | policy | ratio |\n|---:|---:|---|---:|\n");
    each(print_what_if);
    if (pictures)
        printf("\n![ms/token against context length](policies-length.svg)\n"
               "![ms/token against batch](policies-batch.svg)\n");
    print_native();
}

/* ---- pictures ---- */

/* Of each policy measured and predicted against length (batch 1) or batch (the middle length). */
static bool draw(bool by_length)
{
    static struct picture p;
    char title[96], name[48];
    uint32_t fixed = by_length ? 0 : n_lengths / 2;
    snprintf(title, sizeof title,
             by_length ? "batch %u, modelled drive" : "%u tokens, modelled drive",
             by_length ? batches[fixed] : lengths[fixed]);
    p = (struct picture){.file = by_length ? "policies-length.svg" : "policies-batch.svg",
                         .title = title,
                         .x_label = by_length ? "context, tokens" : "sequences in a step",
                         .y_label = "ms/token",
                         .log_x = by_length};
    for (uint32_t i = 0; i < n_policies; i++)
        for (int predicted = 0; predicted < 2; predicted++) {
            snprintf(name, sizeof name, "%s%s", policies[i], predicted ? ", predicted" : "");
            struct picture_series *s = picture_add(&p, name, predicted);
            for (uint32_t k = 0; k < (by_length ? n_lengths : n_batches); k++) {
                const struct cell *c = by_length ? &cells[i][k][fixed] : &cells[i][fixed][k];
                if (c->there && (!predicted || c->predicted))
                    picture_point(s, by_length ? lengths[k] : batches[k],
                                  predicted ? c->step_ms : c->run.step_ms);
            }
        }
    return picture_write(&p);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("policies", argc, argv);
    point_prepare(&o);
    choose_matrix(&o);
    measure();
    bool length = draw(true), batch = draw(false);
    print_section(&o, length && batch);
    return 0;
}
