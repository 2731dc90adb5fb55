/*
 * tools/bench/bench_decode.c - figure "decode": tokens a second at the start of a text and deep in
 * it, beside other engines, and how near a step comes to what reading its bytes takes.
 *
 * What: the running pipeline with everything hot, at depth 0, and after 16384 and 32768 tokens with
 * --alpha 0.05, with INT8 digests and with INT4 ones (--score-bits 4); each peer of PEER_DIR
 * (peer.h) on the same model file, with its fastest flags. A prompt is read once: by the pipeline
 * into a session, by a peer into its prompt cache; every round restores both. Flags for the deep
 * depths are chosen at 8192, since each try reads a prompt. In every round of a depth this
 * machine's memory is read, too, with as many threads (read_rate.h): the bytes that the workers
 * count as read in a step, at that rate, are the least time that a step can take. TESTS="0 32768"
 * chooses depths. Depth 0 has five measurements in each round, since a request takes a quarter of a
 * second there and the machine's memory is faster at one moment than at the next. Shape, threads
 * and failure: dense_model.h, run_pipeline.h. Concurrency: as bench_prefill.c.
 */
#include <stdio.h>
#include <string.h>

#include "tools/bench/dense_model.h"
#include "tools/bench/peer.h"
#include "tools/bench/read_rate.h"
#include "tools/bench/run_pipeline.h"

#define STEPS       32u
#define REPEATS     5u /* of depth 0 in a round */
#define FIRST_STEPS 16u
#define DEEP_STEPS  192u
#define ALPHA       0.05
#define TRY_DEPTH   8192u /* of flags for the deep depths */
#define READ_BYTES  (1ull << 30)
#define ASKED       4.0  /* times the better peer, at the greatest depth */
#define NEAR        0.75 /* the least time of a step, of what it takes */

static const uint32_t score_bits[] = {8, 4};
#define WIDTHS (sizeof score_bits / sizeof *score_bits)

static struct depth {
    uint32_t tokens; /* 0: the start of a text, where nothing is scored */
    bool asked;
    struct bench_samples ours[WIDTHS], peers[PEERS_MAX], rate; /* tokens a second; bytes a second */
    struct pipeline_answer answer[WIDTHS];                     /* of the last round */
    char flags[PEERS_MAX][PEER_FLAGS_MAX][128];
    uint32_t n_flags[PEERS_MAX], best[PEERS_MAX];
    double speeds[PEERS_MAX][PEER_FLAGS_MAX];
} depths[] = {{.tokens = 0}, {.tokens = 16384}, {.tokens = 32768}};
#define DEPTHS (sizeof depths / sizeof *depths)
#define LAST   (DEPTHS - 1)

static struct read_area area;

static void in_folder(const char *form, uint32_t number, char out[4200])
{
    char name[64];
    snprintf(name, sizeof name, form, number);
    snprintf(out, 4200, "%s/%s", pipeline_folder, name);
}

/* ---- flags ---- */

static uint32_t depth_of_tries(const struct depth *d)
{
    return d->tokens < TRY_DEPTH ? d->tokens : TRY_DEPTH;
}

static void choose_flags(struct depth *d)
{
    char model[4200], options[64];
    in_folder("model.gguf", 0, model);
    for (uint32_t p = 0; p < peer_count(); p++) {
        fprintf(stderr, "  decode: flags of %s at depth %u\n", peer_name(p), depth_of_tries(d));
        d->n_flags[p] = peer_flags(p, d->flags[p]);
        if (d->tokens)
            peer_depth_options(p, depth_of_tries(d), STEPS, options);
        else
            snprintf(options, sizeof options, "-p 0 -n %u", STEPS);
        if (d->n_flags[p] > 1)
            d->best[p] =
                peer_best_flags(p, model, options, d->tokens ? 1 : PEER_PROBES, d->speeds[p]);
    }
}

static void choose_all_flags(void)
{
    for (size_t i = 0; i < DEPTHS; i++) {
        const struct depth *before = &depths[i - (i > 0)];
        if (!depths[i].asked)
            continue;
        if (i > 1 && before->asked) {
            memcpy(depths[i].flags, before->flags, sizeof before->flags);
            memcpy(depths[i].best, before->best, sizeof before->best);
        } else {
            choose_flags(&depths[i]);
        }
    }
}

static const char *flags_of(const struct depth *d, uint32_t peer)
{
    return d->flags[peer][d->best[peer]];
}

/* ---- measuring ---- */

static void measure_shallow(const struct bench_options *o, struct depth *d)
{
    char model[4200], options[64];
    in_folder("model.gguf", 0, model);
    snprintf(options, sizeof options, "-p 0 -n %u", STEPS);
    pipeline_start("model", "-c 4096");
    pipeline_prompt("short", 2, 0);
    pipeline_ask("short", 3);
    for (uint32_t round = 0, n = o->rounds * REPEATS; round < n; round++) {
        bench_progress(round + 1, n, "depth 0");
        d->answer[0] = pipeline_ask("short", STEPS + 1);
        bench_sample(&d->ours[0], pipeline_decode_speed(&d->answer[0]));
        for (uint32_t p = 0; p < peer_count(); p++)
            bench_sample(&d->peers[p], peer_bench_of(p, model, options, flags_of(d, p)));
        bench_sample(&d->rate, read_rate(&area, PIPELINE_THREADS));
    }
    pipeline_stop();
}

static double peer_speed(const struct depth *d, uint32_t peer)
{
    char model[4200], prompt[4200], state[4200], form[64];
    in_folder("model.gguf", 0, model);
    in_folder("deep-%u.txt", d->tokens, prompt);
    snprintf(form, sizeof form, "peer-%u-%%u.state", peer);
    in_folder(form, d->tokens, state);
    return peer_decode_of(peer, model, flags_of(d, peer), prompt, state, d->tokens, DEEP_STEPS);
}

/* A pipeline of its own: the width of digests is one of its options. The first steps touch its
 * memory for the first time, and are not measured. */
static void measure_ours(struct depth *d, size_t width, const char *session)
{
    char options[64];
    snprintf(options, sizeof options, "-c %u --alpha %g --score-bits %u", d->tokens + 256, ALPHA,
             score_bits[width]);
    pipeline_start("model", options);
    pipeline_restore(session, FIRST_STEPS);
    d->answer[width] = pipeline_restore(session, DEEP_STEPS);
    pipeline_stop();
    if (d->answer[width].prompt_tokens != d->tokens + 1) /* the session's newest token */
        bench_fail("a session of %u tokens behind %u", d->answer[width].prompt_tokens, d->tokens);
    bench_sample(&d->ours[width], DEEP_STEPS * 1e3 / d->answer[width].predicted_ms);
}

static void measure_deep(const struct bench_options *o, struct depth *d)
{
    char name[64], prompt[4200], session[4200], options[64];
    snprintf(name, sizeof name, "deep-%u", d->tokens);
    in_folder("deep-%u.txt", d->tokens, prompt);
    in_folder("deep-%u.session", d->tokens, session);
    snprintf(options, sizeof options, "-c %u --alpha %g", d->tokens + 256, ALPHA);
    pipeline_prompt(name, d->tokens, 0);
    pipeline_start("model", options);
    fprintf(stderr, "  decode: all read %u tokens\n", d->tokens);
    pipeline_save(prompt, session);
    pipeline_stop();
    for (uint32_t p = 0; p < peer_count(); p++)
        peer_speed(d, p); /* makes the state */
    for (uint32_t round = 0; round < o->rounds; round++) {
        bench_progress(round + 1, o->rounds, name);
        for (size_t width = 0; width < WIDTHS; width++)
            measure_ours(d, width, session);
        for (uint32_t p = 0; p < peer_count(); p++)
            bench_sample(&d->peers[p], peer_speed(d, p));
        bench_sample(&d->rate, read_rate(&area, PIPELINE_THREADS));
    }
}

/* ---- the section ---- */

/* Widths of digests that were measured at a depth. */
static size_t widths_of(const struct depth *d)
{
    return d->tokens ? WIDTHS : 1;
}

static void print_speeds(const struct depth *d)
{
    for (size_t width = 0; width < widths_of(d); width++) {
        if (width == 0)
            printf("| %u, %u rounds | hillinfer", d->tokens, d->ours[0].count);
        else
            printf("| | hillinfer");
        if (d->tokens)
            printf(", --alpha %g, INT%u digests", ALPHA, score_bits[width]);
        printf(" |");
        bench_print_quartiles(&d->ours[width], " %.1f | %.1f - %.1f | | | | |\n");
    }
    for (uint32_t p = 0; p < peer_count(); p++) {
        printf("| | %s %s |", peer_name(p), flags_of(d, p));
        bench_print_quartiles(&d->peers[p], " %.1f | %.1f - %.1f |");
        for (size_t width = 0; width < widths_of(d); width++) {
            struct bench_samples ratio = bench_ratios(&d->ours[width], &d->peers[p]);
            bench_print_quartiles(&ratio, " %.2f | %.2f - %.2f |");
        }
        printf("%s\n", widths_of(d) < WIDTHS ? " | |" : "");
    }
}

/* Of the greatest depth, beside the faster peer. */
static void print_verdict(const struct depth *d)
{
    uint32_t better = peer_fastest(d->peers);
    printf("\nAt depth %u, times %s, %.0f asked for:", d->tokens, peer_name(better), ASKED);
    for (size_t width = 0; width < WIDTHS; width++) {
        struct bench_samples ratio = bench_ratios(&d->ours[width], &d->peers[better]);
        double got = bench_median(&ratio);
        printf("%s %.2f with INT%u digests, %s", width ? ";" : "", got, score_bits[width],
               got >= ASKED ? "met" : "missed");
    }
    printf(".\n");
}

/* Bytes of a step: by formula, and as the workers counted them. */
static void print_bytes(const struct depth *d, size_t width)
{
    const double mb = 1e-6;
    double steps = d->tokens ? DEEP_STEPS : STEPS, share = d->tokens ? ALPHA : 1;
    double mean = (d->tokens ? d->tokens : 2) + (steps - 1) / 2 + 1; /* the new token's too */
    double formula[3] = {STEP_WEIGHTS, d->tokens ? mean * TOKEN_DIGEST(score_bits[width]) : 0,
                         share * mean * TOKEN_ENTRY};
    const struct pipeline_answer *a = &d->answer[width];
    double counted[3] = {a->weight_bytes / steps, a->scored_bytes / steps,
                         a->attended_bytes / steps};
    double sum = counted[0] + counted[1] + counted[2];
    struct bench_samples near = {.count = 0};
    for (uint32_t i = 0; i < d->ours[width].count; i++) /* least time over time, of one round */
        bench_sample(&near, sum / d->rate.values[i] * d->ours[width].values[i]);
    if (d->tokens)
        printf("| %u, INT%u |", d->tokens, score_bits[width]);
    else
        printf("| %u |", d->tokens);
    printf(" %.1f, %.1f | %.1f, %.1f | %.1f, %.1f | %.1f |", formula[0] * mb, counted[0] * mb,
           formula[1] * mb, counted[1] * mb, formula[2] * mb, counted[2] * mb, sum * mb);
    printf(" %.1f | %.2f |", bench_median(&d->rate) * 1e-9, sum / bench_median(&d->rate) * 1e3);
    bench_print_quartiles(&near, " %.2f | %.2f - %.2f |\n");
}

static void print_choices(void)
{
    printf("\nFlags of the peers, tokens a second when they were chosen:\n\n");
    for (size_t i = 0; i < DEPTHS; i++)
        for (uint32_t p = 0; depths[i].asked && p < peer_count(); p++) {
            if (depths[i].n_flags[p] < 2)
                continue;
            printf("- depth %u, %s:", depth_of_tries(&depths[i]), peer_name(p));
            for (uint32_t f = 0; f < depths[i].n_flags[p]; f++)
                printf("%s `%s` %.1f", f ? "," : "", depths[i].flags[p][f], depths[i].speeds[p][f]);
            printf("\n");
        }
}

static void print_section(void)
{
    printf("## Decode\n\nTokens a second; 134 M parameters in F16 (random weights), %u threads, "
           "everything hot (--csd none), methods in turn in every round, medians: %u steps at "
           "depth 0, where all tokens are attended to, %u deep ones. Ratios are taken round by "
           "round; " BENCH_QUARTILES_TEXT ".\n\n",
           PIPELINE_THREADS, STEPS, DEEP_STEPS);
    printf("| depth | method | tokens/s, median | quartiles | hillinfer's, times it | quartiles | "
           "with INT%u digests | quartiles |\n|---|---|---:|---:|---:|---:|---:|---:|\n",
           score_bits[WIDTHS - 1]);
    for (size_t i = 0; i < DEPTHS; i++)
        if (depths[i].asked)
            print_speeds(&depths[i]);
    if (!peer_is_there())
        printf("\nNo peer: PEER_DIR was not set.\n");
    else if (depths[LAST].asked)
        print_verdict(&depths[LAST]);
    printf(
        "\nBytes that a step reads, MB (10^6): by formula (every matrix once; every digest once; "
        "entries of the share that is attended to), and as counted: weights by the GPU worker "
        "for each launch, entries for each attention, digests by the scoring threads, chunk by "
        "chunk. Rate: this machine's memory read by %u threads in the same rounds, GB/s. The "
        "least time: all that is counted at that rate, ms; its share of a step's time (asked "
        "for: %.2f at the greatest depth).\n\n",
        PIPELINE_THREADS, NEAR);
    printf("| depth | weights | digests | entries | counted in all | rate | least time, ms | share "
           "of a step | quartiles |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (size_t i = 0; i < DEPTHS; i++)
        for (size_t width = 0; depths[i].asked && width < widths_of(&depths[i]); width++)
            print_bytes(&depths[i], width);
    if (peer_is_there())
        print_choices();
    peer_print_versions(PEERS_MAX);
}

int main(int argc, char **argv)
{
    struct bench_options o = bench_start("decode", argc, argv);
    dense_model_prepare(&o);
    area = (struct read_area){.bytes = o.quick ? READ_BYTES / 64 : READ_BYTES};
    area.memory = bench_memory(area.bytes);
    for (size_t i = 0; i < DEPTHS; i++) {
        char word[16];
        depths[i].tokens = o.quick ? 1024u * (uint32_t)i : depths[i].tokens;
        snprintf(word, sizeof word, "%u", depths[i].tokens);
        depths[i].asked = bench_is_asked("TESTS", word);
    }
    choose_all_flags();
    for (size_t i = 0; i < DEPTHS; i++)
        if (depths[i].asked && depths[i].tokens)
            measure_deep(&o, &depths[i]);
        else if (depths[i].asked)
            measure_shallow(&o, &depths[i]);
    print_section();
    return 0;
}
