/*
 * tools/bench/bench_prefix.c - figure "prefix": time to first token of a question on a document,
 * against the document's length and where its entries are.
 *
 * What: SmolLM2-135M with documents of 1K to 7.5K tokens; --full: Qwen2.5 0.5B to 32K. One sequence
 * (-np 1), so what runs is alone. A round takes several pipelines in turn (all hot; all but a
 * twentieth on the drive; with a prefix store, read whole, read whole under computing, or its
 * important tokens, of two shares; these four again with a drive that is modelled as slower). In
 * the first two a document is read with a first question, which in the first of them is the round's
 * recomputation, and then asked about. The stores' documents are read in the first round; later
 * rounds' pipelines find them there. Another document has taken the slot by then, or none has it,
 * and the store's files have left the page cache, so that they are read from the drive. load: of a
 * store that is read whole the time in which its chunks were read and handed to the scorer, before
 * any computation; under computing and of important tokens what was waited for; what comes out of
 * tiers is read back while layers compute. Needs the models of `hillinfer get-models`; skipped (77)
 * without. Who calls it: tools/bench/run. Concurrency: one thread. Failure: bench_fail(), also when
 * a question was not answered over the entries that it was to be.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/run_pipeline.h"

#define QUESTION  32u  /* tokens, about */
#define LEFT_OVER 160u /* of a document at most: the store has whole chunks */

enum { LENGTHS_MAX = 6, TIERS = 10 };
enum {
    HOT,
    COLD,
    STORE,
    AHEAD,
    IMPORTANT,
    IMPORTANT_MORE,
    STORE_SLOW,
    AHEAD_SLOW,
    IMPORTANT_SLOW,
    IMPORTANT_MORE_SLOW
};
#define SELECT(share) "--csd none --prefix-mb 4G --prefix-attention select --prefix-share " share
#define SLOW          " --csd-model flash=0.2,link=100,gpu_link=1000"

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
    "SmolLM2-135M Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", {256, 1024}, 2};

static const struct {
    const char *name, *options;
} tiers[TIERS] = {
    [HOT] = {"DRAM tier", "--csd none"},
    [COLD] = {"drive tier", "--beta 0.05 --hot-mb 256 --cold-mb 2G"},
    [STORE] = {"prefix store, drive", "--csd none --prefix-mb 4G"},
    [AHEAD] = {"the same, loaded under computing", SELECT("1")},
    [IMPORTANT] = {"the same, 0.4 of them important", SELECT("0.4")},
    [IMPORTANT_MORE] = {"the same, 0.6 of them important", SELECT("0.6")},
    [STORE_SLOW] = {"prefix store, 0.2 GB/s (modelled)", "--csd none --prefix-mb 4G" SLOW},
    [AHEAD_SLOW] = {"the same, loaded under computing", SELECT("1") SLOW},
    [IMPORTANT_SLOW] = {"the same, 0.4 of them important", SELECT("0.4") SLOW},
    [IMPORTANT_MORE_SLOW] = {"the same, 0.6 of them important", SELECT("0.6") SLOW},
};

static struct {
    struct bench_options o;
    const struct set *set;
    struct bench_samples recompute[LENGTHS_MAX]; /* ms, one a round, as the next */
    struct bench_samples ttft[LENGTHS_MAX][TIERS], load[LENGTHS_MAX][TIERS],
        probe[LENGTHS_MAX][TIERS];
    double mib[LENGTHS_MAX][TIERS]; /* read from the store before the first token, of a question */
} figure;

static bool is_store(uint32_t tier)
{
    return tier >= STORE;
}

static bool is_ahead(uint32_t tier)
{
    return tier == AHEAD || tier == AHEAD_SLOW;
}

static bool is_important(uint32_t tier)
{
    return tier == IMPORTANT || tier == IMPORTANT_MORE || tier == IMPORTANT_SLOW ||
           tier == IMPORTANT_MORE_SLOW;
}

/* What the first token of an answer has waited for. */
struct asked {
    double ttft, load, probe, mib;
};

/* One that is a token of its own in every vocabulary; the same ones in every run (Knuth's MMIX). */
static const char *next_word(uint64_t *state)
{
    static const char *const words[] = {"the", "of", "and", "to",   "in", "is",   "it",   "for",
                                        "on",  "as", "was", "with", "at", "from", "that", "by"};
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return words[*state >> 60];
}

/* A document of about n tokens, which begins as no other, and a question on it. */
static void write_prompt(uint32_t n, uint32_t tier, uint32_t question)
{
    uint64_t state = n * 100 + tier;
    char path[4200];
    snprintf(path, sizeof path, "%s/ask.txt", pipeline_folder);
    FILE *f = fopen(path, "w");
    if (!f)
        bench_fail("cannot write %s", path);
    fprintf(f, "%u %u", n, tier);
    for (uint32_t i = 8; i < n; i++)
        fprintf(f, " %s", next_word(&state));
    for (uint32_t i = 0; i < QUESTION; i++)
        fputs((question >> i % 4) & 1 ? " what" : " who", f);
    if (fclose(f))
        bench_fail("cannot write %s", path);
}

/* Shorter documents have no unimportant tokens. */
#define ALL_IMPORTANT 512u

static struct asked ask(uint32_t n, uint32_t tier, uint32_t question)
{
    write_prompt(n, tier, question);
    json_t *root =
        json_of(capture("HILL_RUN_DIR=%s/run scripts/hillinfer generate -f %s/ask.txt -n 1 "
                        "--temp 0 --ignore-eos --json",
                        pipeline_folder, pipeline_folder),
                "hillinfer generate");
    const json_t *prefix = json_object_get(root, "prefix");
    uint32_t reused = (uint32_t)json_at(root, "prefix", "reused_tokens", NULL);
    struct asked a = {.ttft = json_at(root, "ttft_ms", NULL, NULL)};
    bool from_drive = json_is_number(json_object_get(prefix, "from_drive_ms")),
         selected = json_is_number(json_object_get(prefix, "probe_ms"));
    a.load = json_number_value(json_object_get(prefix, "from_drive_ms"));
    a.probe = json_number_value(json_object_get(prefix, "probe_ms"));
    a.mib = json_number_value(json_object_get(prefix, "loaded_bytes")) / 1048576.0;
    json_decref(root);
    if (question ? reused + LEFT_OVER < n : reused > LEFT_OVER)
        bench_fail("question %u on %u tokens (%s) was answered over %u of them", question, n,
                   tiers[tier].name, reused);
    if (question && is_store(tier) && !from_drive)
        bench_fail("question %u on %u tokens did not come from the drive", question, n);
    bool selects = is_ahead(tier) || (is_important(tier) && n > ALL_IMPORTANT + LEFT_OVER);
    if (question && selected != selects)
        bench_fail("question %u on %u tokens (%s): important tokens alone: %d", question, n,
                   tiers[tier].name, selected);
    return a;
}

/* A question on a document that was read before. */
static void sample(uint32_t i, uint32_t tier, uint32_t question)
{
    struct asked a = ask(figure.set->lengths[i], tier, question);
    bench_sample(&figure.ttft[i][tier], a.ttft);
    bench_sample(&figure.load[i][tier], a.load);
    bench_sample(&figure.probe[i][tier], a.probe);
    figure.mib[i][tier] = a.mib;
}

/* What the store has written leaves the page cache. */
static void forget_file(uint32_t tier, const char *name)
{
    run_or_fail("dd", capture("dd of=%s/store%u/%s oflag=nocache conv=notrunc,fdatasync count=0 "
                              "2>/dev/null </dev/null",
                              pipeline_folder, tier, name));
}

static void forget_files(uint32_t tier)
{
    forget_file(tier, "chunks.data");
    if (is_ahead(tier) || is_important(tier))
        forget_file(tier, "chunks.keys");
}

/* One round of one tier, in a pipeline of its own. What is in a store is there from the first
 * round on; what is in the tiers is read anew. */
static void measure(uint32_t tier, const char *model, uint32_t round)
{
    const struct set *set = figure.set;
    char options[4400];
    int n = snprintf(options, sizeof options, "-c %u -np 1 --policy full %s",
                     set->lengths[set->n - 1] + 512, tiers[tier].options);
    if (is_store(tier))
        snprintf(options + n, sizeof options - (size_t)n, " --prefix-dir %s/store%u",
                 pipeline_folder, tier); /* its own: the others' may not have its keys */
    pipeline_start_with(model, options);
    ask(64, tier, 0); /* kernels are loaded */
    for (uint32_t i = 0; (!is_store(tier) || round == 1) && i < set->n; i++) {
        double first = ask(set->lengths[i], tier, 0).ttft;
        if (tier == HOT)
            bench_sample(&figure.recompute[i], first);
        if (!is_store(tier))
            sample(i, tier, round);
    }
    for (uint32_t i = 0; is_store(tier) && i < set->n; i++) {
        forget_files(tier);
        sample(i, tier, round);
    }
    pipeline_stop();
}

static void print_row(uint32_t i, uint32_t tier)
{
    const struct bench_samples *s = &figure.ttft[i][tier];
    struct bench_samples faster = bench_ratios(&figure.recompute[i], s);
    double load = bench_median(&figure.load[i][tier]), probe = bench_median(&figure.probe[i][tier]);
    printf("| %u | %s |", figure.set->lengths[i], tiers[tier].name);
    bench_print_quartiles(s, " %.0f | %.0f - %.0f | ");
    if (is_store(tier))
        printf("%.1f | %.0f | %.0f | %.0f |", figure.mib[i][tier], load, probe,
               bench_median(s) - load - probe);
    else
        printf("| overlapped | | |");
    bench_print_quartiles(&faster, " %.1f | %.1f - %.1f |\n");
}

static void print_length(uint32_t i)
{
    printf("| %u | recomputed |", figure.set->lengths[i]);
    bench_print_quartiles(&figure.recompute[i], " %.0f | %.0f - %.0f | | | | | | |\n");
    for (uint32_t t = 0; t < TIERS; t++)
        print_row(i, t);
}

static void print_section(void)
{
    const struct set *set = figure.set;
    printf("## A question on a document that was read before\n\nTime to first token, ms, of a "
           "document and a question of %u tokens (%s, `-np 1 --policy full`): medians of %u "
           "round%s, in each of which a document is recomputed once (everything hot) and asked "
           "about once in each other row. times faster: the recomputation over the question of "
           "the same round; " BENCH_QUARTILES_TEXT
           ". The drive tier: `--beta 0.05 --hot-mb 256`; the prefix store: read from the drive, "
           "its files out of the page cache. Loaded under computing: `--prefix-attention select "
           "--prefix-share 1`, two layers asked for at a time. Important: with these shares, and "
           "at least 512 tokens; answers may differ from those over all. 0.2 GB/s: `" SLOW
           "`. MiB: read from the store before the first token. load: the store's chunks read and "
           "handed over, before the rest computes; under computing and of important tokens, waited "
           "for; out of tiers "
           "entries are read back while layers compute. probe: finding what is important. What the "
           "GPU keeps for decoding a prompt does not use. llama.cpp's slot restore: not "
           "measured.\n\n| tokens | from | ms | quartiles | MiB | load | probe | rest | times "
           "faster | quartiles |\n"
           "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
           QUESTION, set->name, figure.o.rounds, figure.o.rounds > 1 ? "s" : "");
    for (uint32_t i = 0; i < set->n; i++)
        print_length(i);
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
    for (uint32_t round = 1; round <= figure.o.rounds; round++)
        for (uint32_t t = 0; t < TIERS; t++) {
            bench_progress(round, figure.o.rounds, tiers[t].name);
            measure(t, model, round);
        }
    print_section();
    return 0;
}
