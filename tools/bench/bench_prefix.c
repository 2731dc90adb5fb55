/*
 * tools/bench/bench_prefix.c - figure "prefix": time to first token of a question on a document,
 * against the document's length and where its entries are.
 *
 * What: SmolLM2-135M with documents of 1K to 7.5K tokens; --full: Qwen2.5 0.5B to 32K. One sequence
 * (-np 1), so what runs is alone. In each of three pipelines (all hot; all but a twentieth on the
 * drive; with a prefix store) a document is read once with a first question: that is the
 * recomputation, which the pipeline's own questions are compared with. Then others are asked: in the tiers' pipelines at once; in the store's after
 * another document has taken the slot and the store's file has left the page cache, so that they
 * are read from the drive. load: the time in which the store's chunks were read and handed to the
 * scorer, before any computation; what comes out of tiers is read back while layers compute.
 * Needs the models of `hillinfer get-models`; skipped (77) without. Who calls it: tools/bench/run.
 * Concurrency: one thread. Failure: bench_fail(), also when a question was not answered over the
 * entries that it was to be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/run_pipeline.h"

#define QUESTION  32u  /* tokens, about */
#define LEFT_OVER 160u /* of a document at most: the store has whole chunks */

enum { LENGTHS_MAX = 6, TIERS = 3 };
enum { HOT, COLD, STORE };

struct set {
    const char *name, *file;
    uint32_t lengths[LENGTHS_MAX], n;
};

static const struct set small = {
    "SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", {1024, 2048, 4096, 7680}, 4};
static const struct set large = {"Qwen2.5-Coder-0.5B Q4_K_M",
                                 "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                                 {1024, 2048, 4096, 8192, 16384, 32256},
                                 6};
static const struct set smoke = {
    "SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", {256, 512}, 2};

static const struct {
    const char *name, *options;
} tiers[TIERS] = {
    [HOT] = {"DRAM tier", "--csd none"},
    [COLD] = {"drive tier", "--beta 0.05 --hot-mb 256 --cold-mb 2G"},
    [STORE] = {"prefix store, drive", "--csd none --prefix-mb 4G"},
};

static struct {
    struct bench_options o;
    const struct set *set;
    double recompute[LENGTHS_MAX][TIERS]; /* ms, in the same pipeline */
    struct bench_samples ttft[LENGTHS_MAX][TIERS], faster[LENGTHS_MAX][TIERS], load[LENGTHS_MAX];
} figure;

/* A document of about n tokens, which begins as no other, and a question on it. */
static void write_prompt(uint32_t n, uint32_t tier, uint32_t question)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/ask.txt", pipeline_folder);
    FILE *f = fopen(path, "w");
    if (!f)
        bench_fail("cannot write %s", path);
    fprintf(f, "%u %u", n, tier);
    for (uint32_t i = 8; i < n; i++)
        fputs(" the", f);
    for (uint32_t i = 0; i < QUESTION; i++)
        fputs((question >> i % 4) & 1 ? " what" : " who", f);
    if (fclose(f))
        bench_fail("cannot write %s", path);
}

/* Its time to first token; the drive's share of that in *load_ms. */
static double ask(uint32_t n, uint32_t tier, uint32_t question, double *load_ms)
{
    write_prompt(n, tier, question);
    json_t *root =
        json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/ask.txt -n 1 "
                        "--temp 0 --ignore-eos --json",
                        pipeline_folder, pipeline_folder),
                "hillinfer generate");
    uint32_t reused = (uint32_t)json_at(root, "prefix", "reused_tokens", NULL);
    const json_t *from = json_object_get(json_object_get(root, "prefix"), "from_drive_ms");
    double ttft = json_at(root, "ttft_ms", NULL, NULL);
    bool from_drive = json_is_number(from);
    *load_ms = json_number_value(from);
    json_decref(root);
    if (question ? reused + LEFT_OVER < n : reused > LEFT_OVER)
        bench_fail("question %u on %u tokens (%s) was answered over %u of them", question, n,
                   tiers[tier].name, reused);
    if (question && tier == STORE && !from_drive)
        bench_fail("question %u on %u tokens did not come from the drive", question, n);
    return ttft;
}

/* A question on a document that was read before. */
static void sample(uint32_t i, uint32_t tier, uint32_t question)
{
    double load, ms = ask(figure.set->lengths[i], tier, question, &load);
    bench_sample(&figure.ttft[i][tier], ms);
    bench_sample(&figure.faster[i][tier], figure.recompute[i][tier] / ms);
    if (tier == STORE)
        bench_sample(&figure.load[i], load);
}

/* What the store has written leaves the page cache. */
static void forget_file(void)
{
    run_or_fail("dd", capture("dd of=%s/store/chunks.data oflag=nocache conv=notrunc,fdatasync "
                              "count=0 2>/dev/null </dev/null",
                              pipeline_folder));
}

static void measure(uint32_t tier, const char *model)
{
    const struct set *set = figure.set;
    char options[4400];
    double load;
    int n = snprintf(options, sizeof options, "-c %u -np 1 --policy full %s",
                     set->lengths[set->n - 1] + 512, tiers[tier].options);
    if (tier == STORE)
        snprintf(options + n, sizeof options - (size_t)n, " --prefix-dir %s/store",
                 pipeline_folder);
    pipeline_start_with(model, options);
    ask(64, tier, 0, &load); /* kernels are loaded */
    for (uint32_t i = 0; i < set->n; i++) {
        bench_progress(i + 1, set->n, tiers[tier].name);
        figure.recompute[i][tier] = ask(set->lengths[i], tier, 0, &load);
        for (uint32_t q = 1; tier != STORE && q <= figure.o.rounds; q++)
            sample(i, tier, q);
    }
    for (uint32_t q = 1; tier == STORE && q <= figure.o.rounds; q++)
        for (uint32_t i = 0; i < set->n; i++) {
            forget_file();
            sample(i, tier, q);
        }
    pipeline_stop();
}

static void print_row(uint32_t i, uint32_t tier)
{
    const struct bench_samples *s = &figure.ttft[i][tier];
    double ms = bench_median(s), load = tier == STORE ? bench_median(&figure.load[i]) : 0;
    printf("| %u | %s | %.0f | %.0f | %.0f - %.0f | ", figure.set->lengths[i], tiers[tier].name,
           figure.recompute[i][tier], ms, bench_lowest(s), bench_highest(s));
    if (tier == STORE)
        printf("%.0f | %.0f |", load, ms - load);
    else
        printf("overlapped | |");
    bench_print_quartiles(&figure.faster[i][tier], " %.1f | %.1f - %.1f |\n");
}

static void print_section(void)
{
    const struct set *set = figure.set;
    printf("## A question on a document that was read before\n\nTime to first token, ms, of a "
           "document and a question of %u tokens (%s, `-np 1 --policy full`): medians of %u "
           "questions. recomputed: the first question in the same pipeline, which reads the "
           "document, once; times faster: that over each of the questions, " BENCH_QUARTILES_TEXT
           ". The drive tier: `--beta 0.05 --hot-mb 256`; the prefix store: read from the drive, "
           "its file out of the page cache. load: the store's chunks read and handed over, before "
           "the rest computes; out of tiers entries are read back while layers compute. What the "
           "GPU keeps for decoding a prompt does not use. llama.cpp's slot restore: not "
           "measured.\n\n| tokens | from | recomputed | ms | lowest - highest | load | rest | "
           "times faster | quartiles |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|\n",
           QUESTION, set->name, figure.o.rounds);
    for (uint32_t i = 0; i < set->n; i++)
        for (uint32_t t = 0; t < TIERS; t++)
            print_row(i, t);
}

int main(int argc, char **argv)
{
    char model[512];
    figure.o = bench_start("prefix", argc, argv);
    figure.set = figure.o.quick ? &smoke : figure.o.full ? &large : &small;
    if (figure.o.rounds > 15)
        bench_fail("there are 15 questions");
    if (!pipeline_find_model(figure.set->file, model)) {
        fprintf(stderr, "prefix: %s is not there (hillinfer get-models)\n", figure.set->file);
        return 77;
    }
    unsetenv("HILL_NO_PREFIX_CACHE"); /* tools/bench/run: other figures read every prompt */
    pipeline_prepare_folder(&figure.o);
    for (uint32_t t = 0; t < TIERS; t++)
        measure(t, model);
    print_section();
    return 0;
}
