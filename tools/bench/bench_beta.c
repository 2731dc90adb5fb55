/*
 * tools/bench/bench_beta.c - figure "beta": is the beta of Eq. 4 the one that decodes fastest, and
 * does it follow a drive that becomes slower?
 *
 * What: the whole pipeline on random-weight models with next to no weights, so that a step is its
 * waits. The drive is modelled (--csd-model), and so is the host's scoring (cpu=): both sides of a
 * query take the model's time, slow enough for the real work to hide in it; the cold pool's file
 * lies in memory. Sweep: under each of two models both sides are measured alone (hillctl profile)
 * and Eq. 4 predicts beta of that, before any row runs; then requests with fixed betas around it,
 * and with --beta auto, with the paper's skewness correction and without, in turn. At the end
 * stands what auto has come to. Following: a request whose modelled flash goes from 2.9 to 1.0 GB/s
 * beside one that had 1.0 from the start. Draws docs/benchmarks-beta.svg with gnuplot where that is
 * installed (a smoke run: nothing). Failure: bench_fail(). Concurrency: one request at a time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/bench/run_pipeline.h"
#include "coordinator/balance.h"

#define POINTS     7u
#define MODELS     2u
#define AT         3u /* of the points: the prediction itself */
#define WATCH_MAX  4096u
#define CHANGE_AT  60u
#define WITHIN     64u /* steps, of the bar */
#define SWEEP_TEXT 4000u
#define AUTO_TIMES 3u /* as many steps with --beta auto: it starts from what was measured alone */

static const double factors[POINTS] = {0.5, 0.7, 0.87, 1, 1.15, 1.4, 2};

enum way { CORRECTED, EVEN, WAYS }; /* shares of each side's own, or one of both (skewness) */

static struct device {
    const char *name, *figures;
    struct bench_samples rates[4], predicted, step[POINTS]; /* rates: f_c, f_s, B_c, B_s; GB/s */
    struct {
        struct bench_samples step, came_to, imbalance, waits;
    } automatic[WAYS];
} devices[MODELS] = {{.name = "slow drive", .figures = "cpu=0.5,score=0.25,dram=0"},
                     {.name = "slow host", .figures = "cpu=0.25,score=0.5,dram=0"}};

/* What a request that was watched did. */
struct watched {
    uint32_t n, changed_at; /* looks; the step by which the drive had changed */
    int64_t at_ns[WATCH_MAX];
    uint32_t step[WATCH_MAX];
    double beta[WATCH_MAX];
    char tokens_hash[64];
};

static char pool[64];

static void remove_pool(void)
{
    unlink(pool);
}

static void prepare(const struct bench_options *o)
{
    snprintf(pool, sizeof pool, "/dev/shm/hill-bench-pool-%d", (int)getpid());
    atexit(remove_pool); /* runs after the pipeline has been stopped: the agent holds the pool */
    pipeline_prepare_folder(o);
    run_or_fail("hill-mkmodel",
                capture("build/bin/hill-mkmodel -o %s/sweep.gguf --random --layers 4 --width 256 "
                        "--heads 8 --kv-heads 8 --head-dim 64 --ffn 512 --vocab 512 --type f16 "
                        ">&2 && build/bin/hill-mkmodel -o %s/follow.gguf --random --layers 2 "
                        "--width 128 --heads 16 --kv-heads 16 --head-dim 128 --ffn 256 --vocab 512 "
                        "--type f16 >&2",
                        pipeline_folder, pipeline_folder));
}

/* ---- the sweep ------------------------------------------------------------------------------ */

/* All rows have the same context, on which alpha depends. */
static void sweep_options(char out[512], const struct device *d, uint32_t prompt, uint32_t predict)
{
    snprintf(out, 512, "-c %u --budget 96 --hot-mb 96 --csd file:%s --csd-model %s",
             prompt + AUTO_TIMES * predict + 64, pool, d->figures);
}

static json_t *ask(const struct device *d, const char *before, const char *beta, uint32_t prompt,
                   uint32_t predict, uint32_t times)
{
    char options[512];
    sweep_options(options, d, prompt, predict);
    return json_of(capture("%s scripts/hillinfer run --run-dir %s/run --state-dir %s/state -m "
                           "%s/sweep.gguf -t %u %s --beta %s -f %s/sweep.txt -n %u --temp 0 "
                           "--ignore-eos --json --log-level error",
                           before, pipeline_folder, pipeline_folder, pipeline_folder,
                           PIPELINE_THREADS, options, beta, pipeline_folder,
                           times * (predict - 1) + 1),
                   "hillinfer run");
}

static double step_ms(json_t *root)
{
    return json_at(root, "predicted_ms", NULL, NULL) /
           (json_at(root, "predicted_tokens", NULL, NULL) - 1);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Both sides measured with nothing else to do, and what Eq. 4 makes of that. */
static void predict_beta(const struct bench_options *o, struct device *d, uint32_t prompt,
                         uint32_t predict)
{
    static const char *const names[] = {"f_c", "f_s", "B_c", "B_s"};
    char model[4200], options[512];
    snprintf(model, sizeof model, "%s/sweep.gguf", pipeline_folder);
    sweep_options(options, d, prompt, predict);
    pipeline_start_with(model, options);
    for (uint32_t round = 0; round < o->rounds; round++) {
        json_t *root = json_of(
            capture("HILL_RUN_DIR=%s/run scripts/hillinfer profile --json", pipeline_folder),
            "hillinfer profile");
        for (uint32_t i = 0; i < 4; i++)
            bench_sample(&d->rates[i], json_at(root, names[i], NULL, NULL) * 1e-9);
        bench_sample(&d->predicted, json_at(root, "beta", NULL, NULL));
        json_decref(root);
    }
    pipeline_stop();
    fprintf(stderr, "%s: Eq. 4 predicts beta %.3g\n", d->name, bench_median(&d->predicted));
}

static void ask_automatic(struct device *d, enum way way, uint32_t prompt, uint32_t predict)
{
    json_t *root =
        ask(d, way == EVEN ? "HILL_TEST_EVEN_SHARES=1" : "", "auto", prompt, predict, AUTO_TIMES);
    double modelled = larger(json_at(root, "stages", "score_hot_ms", NULL),
                             json_at(root, "csd_model", "score_ms", NULL));
    bench_sample(&d->automatic[way].step, step_ms(root));
    bench_sample(&d->automatic[way].came_to, json_at(root, "profile", "beta", NULL));
    bench_sample(&d->automatic[way].imbalance, json_at(root, "stages", "imbalance", NULL));
    bench_sample(&d->automatic[way].waits, modelled / json_at(root, "predicted_ms", NULL, NULL));
    json_decref(root);
}

static void sweep(const struct bench_options *o, struct device *d, uint32_t prompt,
                  uint32_t predict)
{
    char beta[32];
    for (uint32_t round = 0; round < o->rounds; round++) {
        bench_progress(round + 1, o->rounds, d->name);
        for (uint32_t i = 0; i < POINTS; i++) {
            snprintf(beta, sizeof beta, "%.5g", factors[i] * bench_median(&d->predicted));
            json_t *root = ask(d, "", beta, prompt, predict, 1);
            bench_sample(&d->step[i], step_ms(root));
            json_decref(root);
        }
        for (enum way way = CORRECTED; way < WAYS; way++)
            ask_automatic(d, way, prompt, predict);
    }
}

static uint32_t lowest_point(const struct device *d)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < POINTS; i++)
        if (bench_median(&d->step[i]) < bench_median(&d->step[best]))
            best = i;
    return best;
}

static void print_predictions(void)
{
    printf("Before any row of the sweep, both sides measured alone (`hillinfer profile`), GB/s of "
           "FP16 K and V, and beta by Eq. 4 of that, with one alpha for both sides:\n\n"
           "| device model | f_c | f_s | B_c | B_s | beta |\n|---|---:|---:|---:|---:|---:|\n");
    for (uint32_t m = 0; m < MODELS; m++) {
        const struct device *d = &devices[m];
        printf("| %s: `%s` |", d->name, d->figures);
        for (uint32_t i = 0; i < 4; i++)
            printf(" %.3f |", bench_median(&d->rates[i]));
        bench_print_quartiles(&d->predicted, " %.3g (%.3g - %.3g) |\n");
    }
}

static void print_steps(void)
{
    printf("\n| device model |");
    for (uint32_t i = 0; i < POINTS; i++)
        printf(" x %g |", factors[i]);
    printf(" `auto` | without correction |\n|---|");
    for (uint32_t i = 0; i < POINTS + WAYS; i++)
        printf("---:|");
    printf("\n");
    for (uint32_t m = 0; m < MODELS; m++) {
        const struct device *d = &devices[m];
        printf("| %s |", d->name);
        for (uint32_t i = 0; i < POINTS; i++)
            printf(i == lowest_point(d) ? " **%.1f** |" : " %.1f |", bench_median(&d->step[i]));
        printf(" %.1f | %.1f |\n", bench_median(&d->automatic[CORRECTED].step),
               bench_median(&d->automatic[EVEN].step));
    }
}

static void print_way(const struct device *d, enum way way)
{
    printf("| %s%s | %.0f %% | %.2f | %.2f | %.1f %% |\n", d->name,
           way == EVEN ? ", without correction" : "", 100 * bench_median(&d->automatic[way].waits),
           factors[lowest_point(d)],
           bench_median(&d->automatic[way].came_to) / bench_median(&d->predicted),
           100 * bench_median(&d->automatic[way].imbalance));
}

static void print_sweep(uint32_t prompt, uint32_t predict, uint32_t rounds)
{
    printf("### Sweep\n\n");
    print_predictions();
    printf("\nMilliseconds a step, %u steps after a prompt of %u tokens, 4 layers, 2 "
           "KiB of K and V a token and layer, 96 selected, %u round%s, rows in turn; %u times as "
           "many with `auto`, which begins at what was measured alone: the columns of `auto` have "
           "later "
           "steps with a longer context, to compare with one another and not with the fixed betas. "
           "`cpu` and `score` are GB/s "
           "of FP16 K and V that the host and the drive score in the model; the other figures are "
           "a SmartSSD's. Fixed betas: times the predicted one. Without correction: the share of "
           "entries that queries upload is that of both sides together, not each side's own (the "
           "paper's skewness correction; `HILL_TEST_EVEN_SHARES=1`).\n",
           predict - 1, prompt, rounds, rounds == 1 ? "" : "s", AUTO_TIMES);
    print_steps();
    printf("\n| device model | modelled waits, of the step (bar: 70 %%) | lowest at, of the "
           "predicted (bar: 0.85 - 1.15) | `auto` comes to, of the predicted | \\|T_CPU - T_CSD\\| "
           "/ the longer, median over steps with `auto` (bar: 10 %%) |\n"
           "|---|---:|---:|---:|---:|\n");
    for (uint32_t m = 0; m < MODELS; m++)
        for (enum way way = CORRECTED; way < WAYS; way++)
            print_way(&devices[m], way);
    printf("\nT_CPU: scoring the hot tokens and copying what is selected of them; T_CSD: from the "
           "relay of the query to the drive's last score, and its FETCH commands.\n");
}

static void draw(void)
{
    FILE *to = popen("gnuplot >/dev/null 2>&1", "w");
    if (!to)
        return;
    fprintf(to, "set terminal svg size 720,360 background 'white'\nset output "
                "'docs/benchmarks-beta.svg'\nset logscale x\nset xlabel 'beta, of the "
                "predicted'\nset ylabel 'ms a step'\nset yrange [0:]\nset grid\nset key bottom "
                "right\nset xtics (0.5, 0.7, 0.87, 1, 1.15, 1.4, 2)\nset arrow from 1, graph 0 to "
                "1, graph 1 nohead dashtype 2\nplot ");
    for (uint32_t m = 0; m < MODELS; m++)
        fprintf(to, "%s'-' with linespoints title '%s (%s), predicted %.3g'", m ? ", " : "",
                devices[m].name, devices[m].figures, bench_median(&devices[m].predicted));
    fprintf(to, "\n");
    for (uint32_t m = 0; m < MODELS; m++) {
        for (uint32_t i = 0; i < POINTS; i++)
            fprintf(to, "%g %g\n", factors[i], bench_median(&devices[m].step[i]));
        fprintf(to, "e\n");
    }
    if (pclose(to) == 0)
        printf("\n![ms a step against beta](benchmarks-beta.svg)\n");
}

/* ---- following ------------------------------------------------------------------------------ */

/* One look at the running request; false: there is none. */
static bool look(struct watched *w)
{
    json_t *root = pipeline_status();
    json_t *step = json_object_get(json_object_get(root, "running"), "predicted_tokens");
    bool runs = json_is_integer(step) && w->n < WATCH_MAX;
    if (runs) {
        w->at_ns[w->n] = clock_now_ns();
        w->step[w->n] = (uint32_t)json_integer_value(step);
        w->beta[w->n++] = json_at(root, "profile", "beta", NULL);
    }
    json_decref(root);
    return runs;
}

/* A request from its first step to its last, on a drive that becomes slower when change says so. */
static void watch(struct watched *w, const char *figures, const char *change, uint32_t prompt,
                  uint32_t predict)
{
    char model[4200], options[512], over[4200];
    w->n = w->changed_at = 0;
    snprintf(model, sizeof model, "%s/follow.gguf", pipeline_folder);
    snprintf(options, sizeof options,
             "-c %u --alpha 0.05 --hot-mb 160 --csd file:%s --csd-model %s", prompt + predict + 64,
             pool, figures);
    pipeline_start_with(model, options);
    run_or_fail(
        "hillinfer generate",
        capture("{ scripts/hillinfer generate --run-dir %s/run -f %s/follow.txt -n %u "
                "--temp 0 --ignore-eos --json >%s/answer; touch %s/over; } >/dev/null 2>&1 &",
                pipeline_folder, pipeline_folder, predict, pipeline_folder, pipeline_folder));
    snprintf(over, sizeof over, "%s/over", pipeline_folder);
    while (access(over, F_OK) != 0) {
        bool runs = look(w);
        if (runs && change && w->step[w->n - 1] >= CHANGE_AT) {
            run_or_fail("hillctl csd-model",
                        capture("build/bin/hillctl csd-model %s --run-dir %s/run", change,
                                pipeline_folder));
            if (look(w))
                w->changed_at = w->step[w->n - 1];
            change = NULL;
        }
        usleep(5000);
    }
    unlink(over);
    json_t *root = json_of(capture("cat %s/answer", pipeline_folder), "hillinfer generate");
    const char *hash = json_string_value(json_object_get(root, "logits_hash"));
    snprintf(w->tokens_hash, sizeof w->tokens_hash, "%s", hash ? hash : "");
    json_decref(root);
    pipeline_stop();
}

/* The median beta from a step on. */
static double settled(const struct watched *w, uint32_t from)
{
    double values[WATCH_MAX];
    uint64_t n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->step[i] >= from)
            values[n++] = w->beta[i];
    return n ? bench_quantile(values, n, 0.5) : NAN;
}

/* Steps a second from a step on. */
static double speed(const struct watched *w, uint32_t from)
{
    uint32_t first = 0, last = w->n - 1;
    while (first < last && w->step[first] < from)
        first++;
    if (first == last || w->step[first] == w->step[last])
        return NAN;
    while (w->step[last - 1] == w->step[last]) /* when it was first seen */
        last--;
    return (w->step[last] - w->step[first]) * 1e9 / (double)(w->at_ns[last] - w->at_ns[first]);
}

/* Steps after the change until beta is within a tenth of `wanted` for good; where it never is, all
 * that there were. */
static uint32_t steps_to(const struct watched *w, double wanted)
{
    uint32_t reached = w->changed_at;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->step[i] >= w->changed_at && fabs(w->beta[i] / wanted - 1) > 0.1)
            reached = w->step[i] + 1;
    return reached - w->changed_at;
}

/* The bar as it was first written is of the other request's beta. */
static void print_steps_to(const char *what, const struct bench_samples *steps)
{
    double median = bench_median(steps);
    printf("| steps until beta stays within a tenth of %s | %.0f | %u: %s |\n", what, median,
           WITHIN, median <= WITHIN ? "met" : "missed");
}

static void follow(const struct bench_options *o, uint32_t prompt, uint32_t predict)
{
    static struct watched slow, changed;
    struct bench_samples before = {.count = 0}, after = before, beside = before, steps = before,
                         steps_beside = before, ratio = before;
    for (uint32_t round = 0; round < o->rounds; round++) {
        bench_progress(round + 1, o->rounds, "a drive that becomes slower");
        watch(&slow, "flash=1.0,score=12,cpu=1,dram=0", NULL, prompt, predict);
        watch(&changed, "flash=2.9,score=12,cpu=1,dram=0", "flash=1.0", prompt, predict);
        if (strcmp(slow.tokens_hash, changed.tokens_hash) != 0)
            bench_fail("the change of the drive's speed has changed the logits");
        uint32_t from = changed.changed_at + WITHIN;
        double end = settled(&changed, from), other = settled(&slow, from);
        if (!changed.changed_at || isnan(end) || isnan(other))
            bench_fail("the request was over before beta could follow");
        uint32_t i = 0;
        while (changed.step[i] < CHANGE_AT)
            i++;
        bench_sample(&before, changed.beta[i]);
        bench_sample(&after, end);
        bench_sample(&beside, other);
        bench_sample(&steps, steps_to(&changed, end));
        bench_sample(&steps_beside, steps_to(&changed, other));
        bench_sample(&ratio,
                     speed(&changed, changed.changed_at) / speed(&slow, changed.changed_at));
    }
    printf(
        "\n### A drive that becomes slower\n\n`flash` 2.9 to 1.0 GB/s after %u of %u steps "
        "(`score=12,cpu=1`, a prompt of %u tokens, 2 layers, 8 KiB of K and V a token and layer), "
        "beside a request that had 1.0 GB/s from the start; the same logits, bit by bit.\n\n",
        CHANGE_AT, predict, prompt);
    printf("| | measured | bar |\n|---|---:|---:|\n");
    printf("| beta before the change | %.3g | |\n", bench_median(&before));
    printf("| beta from %u steps after it on | %.3g | |\n", WITHIN, bench_median(&after));
    printf("| beta of the other request at the same steps | %.3g | |\n", bench_median(&beside));
    print_steps_to("that of the other request", &steps_beside);
    print_steps_to("where it settles", &steps);
    printf("| steps a second from the change on, of the other request's | %.0f %% | 90 %% |\n",
           100 * bench_median(&ratio));
    printf("\nThe two need not end at one beta: each stays where its target is less than %.0f %% "
           "away, "
           "and the target counts how many of the selected tokens lie in either tier, which is not "
           "the same after other moves.\n",
           100 * BALANCE_DEAD_BAND);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("beta", argc, argv);
    uint32_t prompt = o.quick ? 1000 : SWEEP_TEXT, predict = o.quick ? 9 : 41;
    prepare(&o);
    pipeline_prompt("sweep", prompt, 0);
    pipeline_prompt("follow", o.quick ? 800 : 3000, 0);
    for (uint32_t m = 0; m < MODELS; m++)
        predict_beta(&o, &devices[m], prompt, predict);
    for (uint32_t m = 0; m < MODELS; m++)
        sweep(&o, &devices[m], prompt, predict);
    printf(
        "## beta\n\nModelled devices (`--csd-model`), the cold pool's file in memory: these "
        "numbers say whether Eq. 4 finds the best beta and whether it is followed, not what this "
        "machine or a SmartSSD can do. The host's scoring is modelled as well (`cpu`), since real "
        "scoring here is so fast that nearly everything would be hot.\n\n");
    print_sweep(prompt, predict, o.rounds);
    if (!o.quick)
        draw();
    follow(&o, o.quick ? 800 : 3000, o.quick ? 220 : 320);
    return 0;
}
