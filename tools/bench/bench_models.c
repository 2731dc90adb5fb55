/*
 * tools/bench/bench_models.c - figure "models": real models through the running pipeline, beside
 * other engines on the same files.
 *
 * What: of each model that is in $HILL_MODELS or the cache folder, tokens a second of decoding at
 * depth 0, of prompts of 512 and 4096 tokens, and of decoding after 16384 tokens with --alpha 0.05,
 * scored by INT8 digests (the default) and by INT4 ones, everything hot (short contexts are
 * attended to whole: that is the default, and what peers do); beside it each peer of PEER_DIR
 * (peer.h) with the flags that were best for that test. Methods take turns in every round, and
 * every round is kept (kept_rounds.h): RESUME=1 goes on, MODELS="Q4_1 1.5b" and TESTS="decode 512
 * 4096 16384" choose, SECONDS=N begins no further round after N seconds, PREPARE=1 chooses flags
 * and reads the long prompts and measures nothing, PAUSE=N leaves the machine to others for N
 * seconds after each round. A prompt of 16384 tokens is read once: by us into a session, by a peer
 * into its prompt cache; every round restores it. It is a real text (workload.h), since what is
 * selected depends on the text; that of the others is the word "the" again and again, a token each
 * in these vocabularies. Threads and failure: run_pipeline.h. Concurrency: the pipeline waits for
 * requests while a peer runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/kept_rounds.h"
#include "tools/bench/peer.h"
#include "tools/bench/run_pipeline.h"
#include "tools/bench/workload.h"

#define STEPS 64u
#define ALPHA "0.05"
#define INT4  " --score-bits 4"
/* as a person runs it, who sets nothing: tools/bench/run sets 0 for all figures */
#define SHALLOW     "-c 4300 --csd none --exact-below 2048"
#define DEEP_TEXT   (figure.o.quick ? "code" : "moby")
#define KEPT_FOLDER "build/bench/models"
#define KEPT_FILE   (figure.o.quick ? KEPT_FOLDER "/quick.jsonl" : KEPT_FOLDER "/rounds.jsonl")

enum test { DECODE, PROMPT, LONG_PROMPT, DEEP, TESTS };

static const struct {
    const char *word; /* of TESTS */
    uint32_t length;
    double asked, least; /* times the better peer */
} tests[TESTS] = {[DECODE] = {"decode", 2, 1.0, 0.85},
                  [PROMPT] = {"512", 512, 1.0, 0.85},
                  [LONG_PROMPT] = {"4096", 4096, 1.0, 0.85},
                  [DEEP] = {"16384", 16384, 3.0, 2.0}};

static const struct {
    const char *file;
    const char *deep; /* its name as a workload; NULL: its context is not long enough */
} models[] = {{"SmolLM2-135M-Instruct.Q4_1.gguf", NULL},
              {"SmolLM2-135M-Instruct.F16.gguf", NULL},
              {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen0.5b"},
              {"qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen1.5b"}};
#define MODELS (sizeof models / sizeof *models)

static struct {
    struct bench_options o;
    char running[16]; /* what the pipeline was started for: model and depth; "": it is not */
    uint32_t warm;    /* a bit a test */
    char path[MODELS][512];
    struct workload deep[MODELS];
} figure;

/* ---- what is asked for ---- */

static uint32_t length_of(enum test t)
{
    return figure.o.quick && t != DECODE ? 16u << t : tests[t].length;
}

/* ---- ours ---- */

static void write_prompt(enum test t)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.txt", pipeline_folder, tests[t].word);
    FILE *out = fopen(path, "w");
    if (!out)
        bench_fail("cannot write %s", path);
    for (uint32_t i = 0; i < length_of(t); i++)
        fputs(i ? " the" : "the", out);
    if (fclose(out))
        bench_fail("cannot write %s", path);
}

/* The prompt of the deep test. */
static void deep_file(uint32_t model, char out[4200])
{
    snprintf(out, 4200, "%s/%s-deep.txt", pipeline_folder, models[model].file);
}

static void write_deep_prompt(uint32_t model)
{
    char name[64], path[4200];
    snprintf(name, sizeof name, "%s-%u-%s", models[model].deep, length_of(DEEP), DEEP_TEXT);
    deep_file(model, path);
    workload_open(&figure.deep[model], name);
    workload_write_text(&figure.deep[model], path);
}

static void our_options(enum test t, bool int4, char out[80])
{
    if (t == DEEP)
        snprintf(out, 80, "-c %u --csd none --alpha " ALPHA "%s", length_of(DEEP) + 4 * STEPS,
                 int4 ? INT4 : "");
    else
        snprintf(out, 80, SHALLOW);
}

static void session_file(uint32_t model, char out[256])
{
    snprintf(out, 256, KEPT_FOLDER "/%s-%u-%s.session", models[model].file, length_of(DEEP),
             DEEP_TEXT);
}

/* The pipeline that the test asks, started where another one or none runs. */
static void start_for(uint32_t model, enum test t, bool int4)
{
    char wanted[16], options[80];
    snprintf(wanted, sizeof wanted, "%u %s", model, t != DEEP ? "shallow" : int4 ? "INT4" : "deep");
    if (strcmp(figure.running, wanted) == 0)
        return;
    pipeline_stop();
    our_options(t, int4, options);
    pipeline_start_with(figure.path[model], options);
    snprintf(figure.running, sizeof figure.running, "%s", wanted);
    figure.warm = 0;
}

/* Steps a second after the session; each token comes out of a step. */
static double restored_speed(uint32_t model)
{
    char path[256];
    session_file(model, path);
    return STEPS * 1e3 / pipeline_restore(path, STEPS).predicted_ms;
}

static double ask_ours(uint32_t model, enum test t)
{
    if (t == DEEP)
        return restored_speed(model);
    struct pipeline_answer a = pipeline_ask(tests[t].word, t == DECODE ? STEPS + 1 : 1);
    return t == DECODE ? pipeline_decode_speed(&a) : a.prompt_tokens * 1e3 / a.prompt_ms;
}

static double measure_ours(uint32_t model, enum test t, bool int4)
{
    start_for(model, t, int4);
    if (!(figure.warm >> t & 1)) /* buffers grow and kernels are loaded once */
        ask_ours(model, t);
    figure.warm |= 1u << t;
    return ask_ours(model, t);
}

static void make_session(uint32_t model)
{
    char path[256], prompt[4200];
    session_file(model, path);
    if (access(path, R_OK) == 0)
        return;
    start_for(model, DEEP, false);
    deep_file(model, prompt);
    pipeline_save(prompt, path);
}

/* ---- peers ---- */

/* A peer's flags for each test of a model, the speeds that chose them, and where it keeps the KV
 * state of the long prompt. */
struct choice {
    char flags[PEER_FLAGS_MAX][128];
    uint32_t n_flags, best;
    double speeds[PEER_FLAGS_MAX];
    char state[512];
};

static void bench_options_of(uint32_t peer, enum test t, char out[64])
{
    switch (t) {
    case DECODE:
        snprintf(out, 64, "-p 0 -n %u", STEPS);
        break;
    case PROMPT:
        snprintf(out, 64, "-p %u -n 0", length_of(t));
        break;
    case LONG_PROMPT: /* a warm-up would read it twice */
        snprintf(out, 64, "-p %u -n 0 %s", length_of(t),
                 peer_bench_knows(peer, "--no-warmup") ? "--no-warmup" : "-w 0");
        break;
    default:
        peer_depth_options(peer, length_of(DEEP), STEPS, out);
    }
}

static void state_file(uint32_t model, uint32_t peer, struct choice *c)
{
    snprintf(c->state, sizeof c->state, KEPT_FOLDER "/%s-%u-%s-%s%s.state", models[model].file,
             length_of(DEEP), DEEP_TEXT, peer_name(peer), c->flags[c->best]);
    for (char *at = c->state; *at; at++)
        if (*at == ' ')
            *at = '_';
}

/* The best flags, as they were found before, or measured where the test is asked for. */
static void choose(uint32_t model, enum test t, uint32_t peer, bool asked, struct choice *c)
{
    char name[256], settings[1024], options[64];
    struct bench_samples kept[PEER_FLAGS_MAX];
    size_t used = (size_t)snprintf(settings, sizeof settings, "%s", peer_given(peer));
    *c = (struct choice){.n_flags = 0};
    c->n_flags = peer_flags(peer, c->flags);
    for (uint32_t i = 0; i < c->n_flags; i++)
        used += (size_t)snprintf(settings + used, sizeof settings - used, "; %s", c->flags[i]);
    snprintf(name, sizeof name, "flags: %s, %s", models[model].file, tests[t].word);
    const struct kept_test test = {KEPT_FILE, name, settings, c->n_flags};
    if (c->n_flags > 1 && !kept_rounds_load(&test, 1, kept, NULL)) {
        if (!asked)
            return;
        fprintf(stderr, "  models: flags of %s for %s, %s\n", peer_name(peer), models[model].file,
                tests[t].word);
        bench_options_of(peer, t, options);
        /* deep in a text each run reads it */
        peer_best_flags(peer, figure.path[model], options, t == DEEP ? 1 : PEER_PROBES, c->speeds);
        kept_rounds_add(&test, c->speeds);
    } else {
        for (uint32_t i = 0; c->n_flags > 1 && i < c->n_flags; i++)
            c->speeds[i] = kept[i].values[0];
    }
    for (uint32_t i = 0; i < c->n_flags; i++)
        c->best = c->speeds[i] > c->speeds[c->best] ? i : c->best;
    state_file(model, peer, c);
}

static double measure_peer(uint32_t model, enum test t, uint32_t peer, const struct choice *c)
{
    char options[64], prompt[4200];
    if (t == DEEP) {
        deep_file(model, prompt);
        return peer_decode_of(peer, figure.path[model], c->flags[c->best], prompt, c->state,
                              length_of(DEEP), STEPS);
    }
    bench_options_of(peer, t, options);
    return peer_bench_of(peer, figure.path[model], options, c->flags[c->best]);
}

/* ---- a test of a model ---- */

struct measured {
    uint32_t rounds;
    struct bench_samples methods[KEPT_METHODS_MAX]; /* ours, the peers, of the deep test INT4 */
    struct choice choices[PEERS_MAX];
    char commits[256];
};
_Static_assert(KEPT_METHODS_MAX > 1 + PEERS_MAX, "ours, the peers, and ours with INT4");

static uint32_t count_methods(enum test t)
{
    return 1 + peer_count() + (t == DEEP ? 1 : 0);
}

static void prepare(uint32_t model, enum test t, const struct measured *m)
{
    if (t != DEEP)
        return;
    make_session(model);
    for (uint32_t p = 0; p < peer_count(); p++)
        if (access(m->choices[p].state, R_OK) != 0) {
            fprintf(stderr, "  models: %s reads %u tokens\n", peer_name(p), length_of(DEEP));
            measure_peer(model, t, p, &m->choices[p]);
        }
}

/* again: earlier rounds are dropped, as late as can be: a round that is ended costs none. */
static void measure(uint32_t model, enum test t, const struct kept_test *kept, bool again,
                    struct measured *m)
{
    double values[KEPT_METHODS_MAX];
    char what[256];
    snprintf(what, sizeof what, "%s, %s", models[model].file, tests[t].word);
    while (m->rounds < figure.o.rounds && bench_time_is_left()) {
        fprintf(stderr, "  models: round %u/%u, %s:", m->rounds + 1, figure.o.rounds, what);
        values[0] = measure_ours(model, t, false);
        fprintf(stderr, " %.1f", values[0]);
        for (uint32_t p = 0; p < peer_count(); p++) {
            values[1 + p] = measure_peer(model, t, p, &m->choices[p]);
            fprintf(stderr, " %.1f", values[1 + p]);
        }
        if (t == DEEP) {
            values[1 + peer_count()] = measure_ours(model, t, true);
            fprintf(stderr, " %.1f", values[1 + peer_count()]);
        }
        fprintf(stderr, "\n");
        if (again)
            kept_rounds_drop(kept);
        again = false;
        kept_rounds_add(kept, values);
        m->rounds++;
        if (bench_is_set("PAUSE"))
            sleep((unsigned)atoi(getenv("PAUSE")));
    }
}

/* Measured as far as it is asked for and time is left; what is kept is shown. */
static void run_test(uint32_t model, enum test t, struct measured *m)
{
    char name[256], settings[2048], options[80];
    bool asked =
        bench_is_asked("MODELS", models[model].file) && bench_is_asked("TESTS", tests[t].word);
    our_options(t, false, options);
    if (t == DEEP && *figure.deep[model].missing)
        return;
    int used = snprintf(settings, sizeof settings, "%s%s; %u tokens%s%s, %u steps", options,
                        t == DEEP ? " and" INT4 : "", length_of(t), t == DEEP ? " of " : "",
                        t == DEEP ? DEEP_TEXT : "", STEPS);
    for (uint32_t p = 0; p < peer_count(); p++) {
        choose(model, t, p, asked, &m->choices[p]);
        used += snprintf(settings + used, sizeof settings - (size_t)used, "; %s (%s) %s",
                         peer_given(p), peer_version(p), m->choices[p].flags[m->choices[p].best]);
    }
    snprintf(name, sizeof name, "%s, %s", models[model].file, tests[t].word);
    const struct kept_test kept = {KEPT_FILE, name, settings, count_methods(t)};
    bool again = asked && !bench_is_set("RESUME") && !bench_is_set("PREPARE");
    m->rounds = again ? 0 : kept_rounds_load(&kept, figure.o.rounds, m->methods, m->commits);
    if (asked && m->rounds < figure.o.rounds && bench_time_is_left())
        prepare(model, t, m);
    if (asked && !bench_is_set("PREPARE"))
        measure(model, t, &kept, again, m);
    m->rounds = kept_rounds_load(&kept, figure.o.rounds, m->methods, m->commits);
}

/* ---- the section ---- */

static void print_ratio(const struct measured *m, uint32_t ours, uint32_t peer)
{
    struct bench_samples ratio = bench_ratios(&m->methods[ours], &m->methods[1 + peer]);
    bench_print_quartiles(&ratio, " %.2f | %.2f - %.2f |\n");
}

/* After the peers; the ratio is to the faster of these. */
static void print_int4(const struct measured *m)
{
    uint32_t ours = 1 + peer_count();
    printf("| | hillinfer --alpha " ALPHA INT4 "%s |",
           peer_count() ? " (times the faster peer)" : "");
    bench_print_quartiles(&m->methods[ours], " %.1f | %.1f - %.1f |");
    if (peer_count())
        print_ratio(m, ours, peer_fastest(m->methods + 1));
    else
        printf(" | |\n");
}

static const char *title_of(enum test t, char out[64])
{
    if (t == DECODE)
        snprintf(out, 64, "decode at depth 0");
    else if (t == DEEP)
        snprintf(out, 64, "decode at depth %u", length_of(t));
    else
        snprintf(out, 64, "prompt of %u", length_of(t));
    return out;
}

static void print_test(enum test t, const struct measured *m)
{
    char title[64];
    title_of(t, title);
    if (!m->rounds) {
        printf("| %s | not measured | | | | |\n", title);
        return;
    }
    printf("| %s, %u rounds | hillinfer%s |", title, m->rounds, t == DEEP ? " --alpha " ALPHA : "");
    bench_print_quartiles(&m->methods[0], " %.1f | %.1f - %.1f | | |\n");
    for (uint32_t p = 0; p < peer_count(); p++) {
        printf("| | %s %s |", peer_name(p), m->choices[p].flags[m->choices[p].best]);
        bench_print_quartiles(&m->methods[1 + p], " %.1f | %.1f - %.1f |");
        print_ratio(m, 0, p);
    }
    if (t == DEEP)
        print_int4(m);
}

static void print_verdict(const char *file, enum test t, const struct measured *m)
{
    if (!m->rounds || !peer_count())
        return;
    char title[64];
    uint32_t best = peer_fastest(m->methods + 1);
    struct bench_samples ratio = bench_ratios(&m->methods[0], &m->methods[1 + best]);
    double got = bench_median(&ratio);
    if (got < tests[t].asked)
        printf("- %s, %s: %.2f of %s, %.2f asked for%s\n", file, title_of(t, title), got,
               peer_name(best), tests[t].asked,
               got < tests[t].least ? ", **and below the least**" : "");
}

static void print_model(uint32_t model, struct measured m[TESTS])
{
    printf("\n**%s**\n\n| test | method | tokens/s, median | quartiles | hillinfer's, times it | "
           "quartiles |\n|---|---|---:|---:|---:|---:|\n",
           models[model].file);
    for (enum test t = 0; t < TESTS; t++)
        if (t != DEEP || models[model].deep)
            print_test(t, &m[t]);
}

/* What decides which instructions a program may use. */
static void print_flags(void)
{
    char *flags = capture("grep -m1 '^flags' /proc/cpuinfo | tr ' ' '\\n' | "
                          "grep -E '^(avx|amx|fma|f16c)' | sort | tr '\\n' ' '");
    printf("CPU flags: %s\n", flags ? flags : "unknown");
    free(flags);
    char *policy = capture("chrt -p $$ | sed -n 's/.*policy: //p'");
    printf("Scheduling policy of all of them: %s\n", policy ? policy : "unknown");
    free(policy);
}

static void print_choices(struct measured m[MODELS][TESTS])
{
    printf("\nFlags of the peers, tokens a second when they were chosen:\n\n");
    for (uint32_t i = 0; i < MODELS; i++)
        for (uint32_t t = 0; t < TESTS; t++)
            for (uint32_t p = 0; p < peer_count(); p++) {
                const struct choice *c = &m[i][t].choices[p];
                if (c->n_flags < 2 || !m[i][t].rounds)
                    continue;
                printf("- %s, %s, %s:", models[i].file, tests[t].word, peer_name(p));
                for (uint32_t f = 0; f < c->n_flags; f++)
                    printf("%s `%s` %.1f", f ? "," : "", c->flags[f], c->speeds[f]);
                printf("\n");
            }
    printf(
        "\nik_llama.cpp's `-rtr 1` turns F16 weights into BF16 where the CPU has avx512_bf16, and "
        "computes with these; hillinfer multiplies F16 weights as they are, in F32.\n");
}

static void print_commits(struct measured m[MODELS][TESTS])
{
    char seen[1024] = "";
    for (uint32_t i = 0; i < MODELS; i++)
        for (uint32_t t = 0; t < TESTS; t++)
            if (m[i][t].rounds)
                kept_rounds_note_commits(seen, sizeof seen, m[i][t].commits);
    printf("\nRounds were measured at %s.\n", *seen ? seen : "no commit");
}

static void print_section(struct measured m[MODELS][TESTS])
{
    printf("## Models\n\nTokens a second on the same file; %u threads, everything hot, methods in "
           "turn in every round, medians. Decoding is %u steps, at depth 0 with the default "
           "--exact-below: all tokens are attended to, as the peers do. A peer has the flags that "
           "were best for the test (below). The text of %u tokens (%s) is read once: by hillinfer "
           "into a session, by a peer into its prompt "
           "cache; every round restores it (llama-completion or llama-cli, their own \"eval "
           "time\"; the rest is llama-bench's, without a warm-up for %u tokens). Ratios are taken "
           "round by round; " BENCH_QUARTILES_TEXT ".\n",
           PIPELINE_THREADS, STEPS, length_of(DEEP), DEEP_TEXT, length_of(LONG_PROMPT));
    print_flags();
    if (!peer_count())
        printf("No peer: PEER_DIR was not set.\n");
    for (uint32_t i = 0; i < MODELS; i++) {
        if (*figure.path[i])
            print_model(i, m[i]);
        else
            printf("\n%s was not there.\n", models[i].file);
    }
    if (peer_count()) {
        printf("\nBelow what is asked for (1.0 times the better peer, at least 0.85; deep 3, at "
               "least 2):\n\n");
        for (uint32_t i = 0; i < MODELS; i++)
            for (enum test t = 0; t < TESTS; t++)
                print_verdict(models[i].file, t, &m[i][t]);
        print_choices(m);
    }
    peer_print_versions(PEERS_MAX);
    print_commits(m);
}

int main(int argc, char **argv)
{
    static struct measured measured[MODELS][TESTS];
    figure.o = bench_start("models", argc, argv);
    pipeline_prepare_folder(&figure.o);
    mkdir(KEPT_FOLDER, 0777); /* that it is there is noticed when a round is kept */
    for (enum test t = 0; t < DEEP; t++)
        write_prompt(t);
    for (uint32_t i = 0; i < (figure.o.quick && !bench_is_set("MODELS") ? 1 : MODELS); i++) {
        if (!pipeline_find_model(models[i].file, figure.path[i]))
            *figure.path[i] = 0;
        if (*figure.path[i] && models[i].deep)
            write_deep_prompt(i);
        for (enum test t = 0; *figure.path[i] && t < TESTS; t++)
            if (t != DEEP || models[i].deep)
                run_test(i, t, &measured[i][t]);
    }
    pipeline_stop();
    print_section(measured);
    return 0;
}
