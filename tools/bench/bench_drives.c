/*
 * tools/bench/bench_drives.c - figure "drives": several drives at once, of equal and of unequal
 * modelled speed.
 *
 * What: the whole pipeline on a random-weight model with next to no weights, on one, two and four
 * modelled drives (--csd and --csd-model repeated) that are slow enough to decide how long a step
 * takes; their pools lie in memory. Of each set: milliseconds a step, how many times as fast it is
 * as one drive in the same round, what part of the cold entries each drive has, how far apart the
 * drives are done in a step (median over steps), and how many commands the real work made late. The
 * selections and logits of all sets are compared. Failure: bench_fail(). Concurrency: one request
 * at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/layout.h"
#include "tools/bench/run_pipeline.h"

#define PROMPT  4000u
#define FIGURES "write=0.05,latency_us=300,dram=0" /* slower than the real work */
#define SETS    (sizeof sets / sizeof *sets)

static struct set {
    uint32_t n;
    double score[LAYOUT_DRIVES_MAX]; /* GB/s of FP16 K and V */
    struct bench_samples step, spread, late, share[LAYOUT_DRIVES_MAX];
} sets[] = {{.n = 1, .score = {0.05}},
            {.n = 2, .score = {0.05, 0.05}},
            {.n = 4, .score = {0.05, 0.05, 0.05, 0.05}},
            {.n = 2, .score = {0.05, 0.15}},
            {.n = 4, .score = {0.05, 0.05, 0.1, 0.2}}};

static char hashes[2][64]; /* of the first request: those of all */

static void pool_of(uint32_t drive, char out[64])
{
    snprintf(out, 64, "/dev/shm/hill-bench-drive-%d-%u", (int)getpid(), drive);
}

static void remove_pools(void)
{
    char pool[64];
    for (uint32_t d = 0; d < LAYOUT_DRIVES_MAX; d++) {
        pool_of(d, pool);
        unlink(pool);
    }
}

static void prepare(const struct bench_options *o)
{
    atexit(remove_pools); /* runs after the pipeline has been stopped: the agents hold the pools */
    pipeline_prepare_folder(o);
    run_or_fail("hill-mkmodel",
                capture("build/bin/hill-mkmodel -o %s/model.gguf --random --layers 2 --width 256 "
                        "--heads 8 --kv-heads 8 --head-dim 64 --ffn 512 --vocab 512 --type f16 >&2",
                        pipeline_folder));
}

static void check_hashes(json_t *root)
{
    static const char *const names[] = {"selection_hash", "logits_hash"};
    for (int i = 0; i < 2; i++) {
        const char *hash = json_string_value(json_object_get(root, names[i]));
        if (!hash)
            bench_fail("an answer has no %s", names[i]);
        if (!hashes[i][0])
            snprintf(hashes[i], sizeof hashes[i], "%s", hash);
        if (strcmp(hash, hashes[i]) != 0)
            bench_fail("%s differs between one drive and several", names[i]);
    }
}

/* Each drive's part of the cold entries, and when it is done. */
static void take_drives(struct set *s, json_t *root)
{
    json_t *drives = json_object_get(root, "drives"), *each = json_object_get(drives, "each");
    double sum = 0;
    for (uint32_t d = 0; d < s->n && each; d++)
        sum += json_at(json_array_get(each, d), "tokens", NULL, NULL);
    for (uint32_t d = 0; d < s->n && each; d++)
        bench_sample(&s->share[d], json_at(json_array_get(each, d), "tokens", NULL, NULL) / sum);
    bench_sample(&s->spread, each ? json_at(drives, "spread", NULL, NULL) : 0);
}

static void ask(struct set *s, uint32_t prompt, uint32_t predict)
{
    char options[1024] = "", pool[64];
    for (uint32_t d = 0; d < s->n; d++) {
        size_t used = strlen(options);
        pool_of(d, pool);
        snprintf(options + used, sizeof options - used,
                 "--csd file:%s --csd-model score=%g," FIGURES " ", pool, s->score[d]);
    }
    json_t *root = json_of(
        capture(
            "scripts/hillinfer run --run-dir %s/run --state-dir %s/state -m %s/model.gguf -t %u "
            "-c %u --budget 96 --hot-mb 64 --beta 0.1 %s -f %s/drives.txt -n %u --temp 0 "
            "--ignore-eos --json --log-level error",
            pipeline_folder, pipeline_folder, pipeline_folder, PIPELINE_THREADS,
            prompt + predict + 64, options, pipeline_folder, predict),
        "hillinfer run");
    check_hashes(root);
    take_drives(s, root);
    bench_sample(&s->step, json_at(root, "stages", "token_median_ms", NULL));
    bench_sample(&s->late, json_at(root, "csd_model", "late", NULL) /
                               json_at(root, "csd_model", "commands", NULL));
    json_decref(root);
}

static void print(uint32_t prompt, uint32_t predict, uint32_t rounds)
{
    printf(
        "## drives\n\nModelled drives (`--csd` and `--csd-model` once for each), their pools in "
        "memory: these numbers say whether entries are dealt so that all drives are done "
        "together, not what a drive can do. 2 layers, 2 KiB of K and V a token and layer, beta "
        "0.1, 96 selected, %u steps after a prompt of %u tokens, %u round%s. `score` is what a "
        "drive scores, in GB/s of FP16 K and V (`" FIGURES "`, else a SmartSSD's). The "
        "same selections and logits, bit by bit, in all rows. How many times as fast as one drive: "
        "taken within each round, median and " BENCH_QUARTILES_TEXT ".\n\n",
        predict - 1, prompt, rounds, rounds == 1 ? "" : "s");
    printf("| `score` of the drives | ms a step | times as fast as one drive | quartiles | of "
           "their speeds' sum | entries on "
           "each, %% | apart when they are done (bar: 10 %%) | late commands |\n"
           "|---|---:|---:|---:|---:|---|---:|---:|\n");
    for (size_t i = 0; i < SETS; i++) {
        const struct set *s = &sets[i];
        struct bench_samples ratio = bench_ratios(&sets[0].step, &s->step);
        double sum = 0;
        printf("| ");
        for (uint32_t d = 0; d < s->n; d++) {
            sum += s->score[d] / sets[0].score[0];
            printf("%s%g", d ? ", " : "", s->score[d]);
        }
        printf(" | %.1f |", bench_median(&s->step));
        bench_print_quartiles(&ratio, " %.2f | %.2f - %.2f |");
        printf(" %.0f %% | ", 100 * bench_median(&ratio) / sum);
        for (uint32_t d = 0; d < s->n && s->n > 1; d++)
            printf("%s%.1f", d ? ", " : "", 100 * bench_median(&s->share[d]));
        if (s->n > 1)
            printf(" | %.1f %% | %.2f %% |\n", 100 * bench_median(&s->spread),
                   100 * bench_median(&s->late));
        else
            printf(" | | %.2f %% |\n", 100 * bench_median(&s->late));
    }
    printf("\nBar for four equal drives: 3.4 times. Apart: in a step, what the drive that is done "
           "first lacks of the time of the last, for scoring and its FETCH commands, median over "
           "steps.\n");
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("drives", argc, argv);
    uint32_t prompt = o.quick ? 1000 : PROMPT, predict = o.quick ? 9 : 33;
    prepare(&o);
    pipeline_prompt("drives", prompt, 0);
    for (uint32_t round = 0; round < o.rounds; round++)
        for (size_t i = 0; i < SETS; i++) {
            bench_progress(round * SETS + (uint32_t)i + 1, o.rounds * SETS, "several drives");
            ask(&sets[i], prompt, predict);
        }
    print(prompt, predict, o.rounds);
    return 0;
}
