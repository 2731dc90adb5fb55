/*
 * bench/bench_placement.c - figure "placement": hit rate, moved KV and bounces of the placement
 * policies over KV traces.
 *
 * What: replays every *.kvt of the folder $BENCH_TRACES (made with --trace-kv) at three hot shares
 * through score, lru, lfu, bkp and belady, and times a step of bkp. Replays are deterministic, so
 * there is one round. Skipped (status 77) where no trace is. Concurrency: none. Failure: status 1
 * when a trace cannot be replayed.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/harness.h"
#include "policy/replay.h"

static const double shares[] = {0.6, 0.4, 0.2};

static double per_step(uint64_t sum, const struct replay_result *r)
{
    return r->steps ? (double)sum / (double)r->steps : 0;
}

static void print_row(const struct trace_file *file, enum policy_kind kind, double share,
                      const struct replay_result *results)
{
    const struct replay_result *r = &results[kind];
    const struct policy_stats *s = &r->stats, *score = &results[POLICY_SCORE].stats;
    uint64_t entry = kv_entry_bytes(&trace_file_settings(file)->geometry);
    double hit = 100 * replay_hit_rate(r), moved = (double)(s->promoted + s->demoted);
    double naive = (double)(score->promoted + score->demoted);
    printf("| %.0f %% | %s | %.2f %% | %+.2f | %+.2f | %.1f | %.1f | %.3f | %.2f |\n", 100 * share,
           policy_name(kind), hit, hit - 100 * replay_hit_rate(&results[POLICY_SCORE]),
           hit - 100 * replay_hit_rate(&results[POLICY_BELADY]), per_step(s->promoted, r),
           per_step((s->promoted + s->demoted) * entry, r) / 1024, naive > 0 ? moved / naive : 0,
           per_step(s->bounced, r));
}

static void compare(struct trace_file *file)
{
    const struct trace_settings *t = trace_file_settings(file);
    struct hill_why why;
    printf("\n**%s**: %u layers, %u records, alpha %g\n\n", t->model, t->geometry.n_layers,
           trace_file_count(file), t->alpha);
    printf(
        "| hot | policy | hot hits | against score | against belady | promoted/step | KiB "
        "moved/step | moves / score's | bounces/step |\n|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        struct replay_settings settings = replay_defaults(file);
        struct replay_result results[POLICY_COUNT];
        settings.hot = shares[i];
        for (unsigned kind = 0; kind < POLICY_COUNT; kind++) {
            bench_progress(i + 1, 3, policy_name((enum policy_kind)kind));
            if (replay_run(&results[kind], file, (enum policy_kind)kind, &settings, &why))
                bench_fail("%s", why.text);
        }
        for (unsigned kind = 0; kind < POLICY_COUNT; kind++)
            print_row(file, (enum policy_kind)kind, shares[i], results);
    }
}

/* One step of bkp over n tokens, a fifth of them selected at random with favourites. */
static double step_us(uint32_t n, uint32_t steps)
{
    struct policy_settings settings = policy_defaults();
    struct policy_moves moves;
    struct policy *policy;
    uint32_t *selected = bench_memory((uint64_t)n * sizeof *selected);
    uint64_t random = 7;
    int64_t ns = 0;
    settings.max_tokens = n + steps;
    if (policy_create(&policy, POLICY_BKP, &settings, NULL))
        bench_fail("no memory for a policy of %u tokens", n);
    if (policy_append(policy, n, n * 6 / 10, &moves))
        bench_fail("a policy of %u tokens took no prompt", n);
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t chance = bench_random(&random) % 100;
            if (chance < (i % 8 == 0 ? 90u : 10u))
                selected[count++] = i;
        }
        int64_t start = clock_now_ns();
        if (policy_append(policy, 1, (n + step) * 6 / 10, &moves) ||
            policy_step(policy, selected, count, NULL, 0, &moves))
            bench_fail("a step of the policy failed");
        ns += clock_now_ns() - start;
    }
    policy_destroy(policy);
    bench_memory_free(selected, (uint64_t)n * sizeof *selected);
    return (double)ns / steps / 1000;
}

int main(int argc, char **argv)
{
    struct bench_options options = bench_start("placement", argc, argv);
    const char *folder = getenv("BENCH_TRACES");
    char pattern[4200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.kvt", folder ? folder : options.folder);
    if (glob(pattern, 0, NULL, &found) || found.gl_pathc == 0) {
        fprintf(stderr, "bench: no traces match %s; make some with --trace-kv\n", pattern);
        return 77;
    }
    printf("## Placement policies\n\nHits: selected entries that were not forced (sinks, window) "
           "and lay in the hot tier, over KV traces; moves are promotions and demotions of all "
           "layers. belady knows the future.\n");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct trace_file *file;
        struct hill_why why;
        if (trace_file_open(&file, found.gl_pathv[i], &why))
            bench_fail("%s", why.text);
        compare(file);
        trace_file_close(file);
    }
    globfree(&found);
    printf("\n| tokens | bkp, µs per step and layer (a fifth selected) |\n|---|---|\n");
    for (uint32_t n = 4096; n <= (options.quick ? 4096u : 65536u); n *= 4)
        printf("| %u | %.1f |\n", n, step_us(n, options.quick ? 20 : 200));
    return 0;
}
