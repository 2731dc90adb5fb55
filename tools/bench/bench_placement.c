/*
 * tools/bench/bench_placement.c - figure "placement": hit rate, moved KV and bounces of
 * placements over KV traces, and what the GPU's cache saves.
 *
 * What: runs the pipeline on each of its models over the licence text with --trace-kv, and replays
 * the traces at three hot shares through score, lru, lfu, bkp and belady, with the GPU's slot table
 * in front as in the live scorer. Beside it the live runs' own numbers: uploads against the entries
 * selected, hits and moves. Times a step of bkp. With $BENCH_TRACES set, every *.kvt of that folder
 * is replayed instead and nothing runs. Replays are deterministic, so there is one round. Models:
 * the embedded wired one, a random-weight one of 134 M parameters, stories260K.gguf of $HILL_MODELS
 * (default ../shared/models), and models/hill-ref.gguf or $BENCH_MODEL; a file that is not there is
 * left out and said so. Concurrency: none. Failure: status 1 when a run fails or a trace cannot be
 * replayed; 77: $BENCH_TRACES has none.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/bench/dense_model.h"
#include "tools/bench/run_pipeline.h"
#include "placement/trace_replay.h"

#define SHARES 3u

static const double shares[SHARES] = {0.6, 0.4, 0.2};

/* A trace and what came of it. */
struct figure_trace {
    char name[128];
    uint64_t entry; /* bytes */
    struct trace_replay_result results[SHARES][PLACEMENT_COUNT];
    bool live; /* it was made here, and these are the run's own numbers */
    double prompt_tokens, gpu_hits, hot_hits, cold_hits, upload_bytes, promoted, demoted, bounced;
    uint64_t live_hot, live_cold; /* of the trace: without the forced */
};

static struct figure_trace traces[64];
static unsigned n_traces;

static double per(double sum, double count)
{
    return count > 0 ? sum / count : 0;
}

/* ---- replay ------------------------------------------------------------------------------- */

static void print_row(const struct figure_trace *t, unsigned share, enum placement_kind kind)
{
    const struct trace_replay_result *r = &t->results[share][kind];
    const struct trace_replay_result *score = &t->results[share][PLACEMENT_SCORE];
    const struct placement_stats *s = &r->stats;
    double moved = (double)(s->promoted + s->demoted), steps = (double)r->steps;
    printf("| %.0f %% | %s | %.2f %% | %.2f %% | %.1f | %.1f | %.3f | %.2f |\n",
           100 * shares[share], placement_name(kind), 100 * trace_replay_hit_rate(r),
           100 * trace_replay_near_rate(r), per((double)s->promoted, steps),
           per(moved * (double)t->entry, steps) / 1024,
           per(moved, (double)(score->stats.promoted + score->stats.demoted)),
           per((double)s->bounced, steps));
}

/* Where the selected entries lay that were not forced and that the GPU lacked. */
static void count_recorded(struct figure_trace *t, struct trace_file *file)
{
    const struct trace_settings *s = trace_file_settings(file);
    for (uint32_t i = 0; i < trace_file_count(file); i++) {
        const struct trace_record *r = trace_file_record(file, i);
        uint32_t from = r->n_tokens > s->window ? r->n_tokens - s->window : 0;
        const uint32_t *words;
        const uint16_t *scores;
        struct hill_why why;
        if (trace_file_read(file, i, &words, &scores, &why))
            bench_fail("%s", why.text);
        for (uint32_t j = 0; j < r->n_selected; j++) {
            uint32_t position = words[j] & TRACE_POSITION_MASK;
            if (position < s->sinks || position >= from || (words[j] & TRACE_GPU))
                continue;
            t->live_hot += (words[j] & TRACE_COLD) == 0;
            t->live_cold += (words[j] & TRACE_COLD) != 0;
        }
    }
}

static void replay(struct figure_trace *t, const char *path)
{
    struct trace_file *file;
    struct hill_why why;
    if (trace_file_open(&file, path, &why))
        bench_fail("%s", why.text);
    const struct trace_settings *settings = trace_file_settings(file);
    struct trace_replay_settings s = trace_replay_defaults(file);
    if (!*t->name)
        snprintf(t->name, sizeof t->name, "%s", settings->model);
    t->entry = kv_entry_bytes(&settings->geometry);
    count_recorded(t, file);
    printf(
        "\n**%s**: %u layers, %u queries, %llu bytes an entry, alpha %g, %u GPU slots a layer\n\n",
        t->name, settings->geometry.n_layers, trace_file_count(file), (unsigned long long)t->entry,
        settings->alpha, s.gpu_slots);
    printf("| hot | policy | hits | near | promoted/step | KiB moved/step | moves / score's | "
           "bounces/step |\n|---|---|---|---|---|---|---|---|\n");
    for (unsigned share = 0; share < SHARES; share++) {
        s.hot = shares[share];
        for (unsigned kind = 0; kind < PLACEMENT_COUNT; kind++) {
            bench_progress(share + 1, SHARES, placement_name((enum placement_kind)kind));
            if (trace_replay_run(&t->results[share][kind], file, (enum placement_kind)kind, &s,
                                 &why))
                bench_fail("%s", why.text);
        }
        for (unsigned kind = 0; kind < PLACEMENT_COUNT; kind++)
            print_row(t, share, (enum placement_kind)kind);
    }
    trace_file_close(file);
}

/* ---- the bars, and what a step asks for --------------------------------------------------- */

static const char *met(bool is)
{
    return is ? "met" : "missed";
}

static void print_bars(void)
{
    printf("\nbkp against the bars: hits at least score's - 2 points with at most a fifth of its "
           "moves, and within 5 points of belady. Why bars are missed, and what was tried: "
           "`docs/decisions/placement.md`.\n\n"
           "| model | hot | hits - score's | near - score's | moves / score's | hits - belady's | "
           "near - belady's |\n|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < n_traces; i++)
        for (unsigned share = 0; share < SHARES; share++) {
            const struct figure_trace *t = &traces[i];
            const struct trace_replay_result *bkp = &t->results[share][PLACEMENT_BKP],
                                             *score = &t->results[share][PLACEMENT_SCORE],
                                             *best = &t->results[share][PLACEMENT_BELADY];
            double hits = 100 * (trace_replay_hit_rate(bkp) - trace_replay_hit_rate(score));
            double near = 100 * (trace_replay_near_rate(bkp) - trace_replay_near_rate(score));
            double hits_best = 100 * (trace_replay_hit_rate(bkp) - trace_replay_hit_rate(best));
            double near_best = 100 * (trace_replay_near_rate(bkp) - trace_replay_near_rate(best));
            double moves = per((double)(bkp->stats.promoted + bkp->stats.demoted),
                               (double)(score->stats.promoted + score->stats.demoted));
            printf("| %s | %.0f %% | %+.1f %s | %+.1f %s | %.3f %s | %+.1f %s | %+.1f %s |\n",
                   t->name, 100 * shares[share], hits, met(hits >= -2), near, met(near >= -2),
                   moves, met(moves <= 0.2), hits_best, met(hits_best >= -5), near_best,
                   met(near_best >= -5));
        }
}

/* Promotions of entries that no query had fetched, at least: score brings up others too. */
static double unfetched(const struct trace_replay_result *r)
{
    uint64_t fetched = r->stats.hits_cold;
    return r->stats.promoted > fetched ? (double)(r->stats.promoted - fetched) : 0;
}

/* What score pays for its hits. */
static void print_price(void)
{
    printf("\nWhat score's hits cost, per step and layer: the entries that the GPU lacked (without "
           "the forced), those of them that came from the drive with bkp, with score and with "
           "belady, and what score brings up without a query having fetched it, which the drive "
           "must read besides (at least: its promotions less its misses).\n\n"
           "| model | hot | lacked | cold, bkp | cold, score | cold, belady | score reads besides "
           "|\n|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < n_traces; i++)
        for (unsigned share = 0; share < SHARES; share++) {
            const struct figure_trace *t = &traces[i];
            const struct trace_replay_result *bkp = &t->results[share][PLACEMENT_BKP],
                                             *score = &t->results[share][PLACEMENT_SCORE],
                                             *best = &t->results[share][PLACEMENT_BELADY];
            double queries = (double)bkp->queries;
            printf("| %s | %.0f %% | %.1f | %.1f | %.1f | %.1f | %.1f |\n", t->name,
                   100 * shares[share],
                   per((double)(bkp->stats.hits_hot + bkp->stats.hits_cold), queries),
                   per((double)bkp->stats.hits_cold, queries),
                   per((double)score->stats.hits_cold, queries),
                   per((double)best->stats.hits_cold, queries), per(unfetched(score), queries));
        }
}

/* ---- live runs ---------------------------------------------------------------------------- */

static void read_answer(struct figure_trace *t, const json_t *root)
{
    t->live = true;
    t->prompt_tokens = json_at(root, "prompt_tokens", NULL, NULL);
    t->gpu_hits = json_at(root, "tiers", "gpu", "hits");
    t->hot_hits = json_at(root, "tiers", "hot", "hits");
    t->cold_hits = json_at(root, "tiers", "cold", "hits");
    t->upload_bytes = json_at(root, "bytes", "gpu_upload", NULL);
    t->promoted = json_at(root, "moves", "promoted", NULL);
    t->demoted = json_at(root, "moves", "demoted", NULL);
    t->bounced = json_at(root, "moves", "bounced", NULL);
}

/* Continue the first `bytes` of the licence by n tokens, 60 % hot; then replay its trace. The
 * context is no longer than needed, so that the GPU has slots for one selection. The GPU is treated
 * as one with memory of its own, as the replay has it: where memory is shared, hot entries are read
 * in place and nothing of them is uploaded. */
static void run_model(const char *name, const char *model, uint32_t bytes, uint32_t n)
{
    struct figure_trace *t = &traces[n_traces++];
    char path[4200];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(path, sizeof path, "%s/trace%u.kvt", pipeline_folder, n_traces);
    bench_progress(n_traces, 4, name);
    run_or_fail("head", capture("head -c %u LICENSE >%s/prompt.txt", bytes, pipeline_folder));
    json_t *root =
        json_of(capture("HILL_TEST_COPY_HOT=1 scripts/hillinfer run --run-dir %s/run --state-dir "
                        "%s/state --json -m '%s' "
                        "-f %s/prompt.txt -n %u --temp 0 --ignore-eos -t %u -c %u --alpha 0.2 "
                        "--beta 1.5 --placement bkp --log-level error --trace-kv %s "
                        "--trace-scores",
                        pipeline_folder, pipeline_folder, model, pipeline_folder, n,
                        PIPELINE_THREADS, bytes + n + 8, path),
                "hillinfer run");
    read_answer(t, root);
    json_decref(root);
    replay(t, path);
    remove(path);
}

static void run_file(const char *name, const char *model, uint32_t bytes, uint32_t n)
{
    if (access(model, R_OK) == 0)
        run_model(name, model, bytes, n);
    else
        printf("\n**%s** is left out: there is no such file here.\n", name);
}

static void run_models(const struct bench_options *o)
{
    const char *folder = getenv("HILL_MODELS"), *trained = getenv("BENCH_MODEL");
    char wired[4200], random[4200], stories[4200];
    pipeline_prepare_folder(o);
    snprintf(wired, sizeof wired, "%s/wired.gguf", pipeline_folder);
    run_or_fail("hill-mkmodel", capture("build/bin/hill-mkmodel -o %s >&2", wired));
    if (o->quick) {
        run_model("wired", wired, 500, 16);
        return;
    }
    run_model("wired", wired, 4000, 256);
    trained = trained && *trained ? trained : "models/hill-ref.gguf";
    const char *slash = strrchr(trained, '/');
    run_file(slash ? slash + 1 : trained, trained, 4000, 256);
    snprintf(stories, sizeof stories, "%s/stories260K.gguf",
             folder && *folder ? folder : "../shared/models");
    run_file("stories260K", stories, 1200, 256);
    snprintf(random, sizeof random, "%s/random.gguf", pipeline_folder);
    dense_model_make("random");
    run_model("random 134 M", random, 2000, 48);
}

static void print_live(void)
{
    printf("\nThe same runs live, with bkp, at 60 %% hot. Without residency a step uploads all "
           "that it selects. Hits as above, live and as replayed.\n\n"
           "| model | prompt | selected, KiB/step | uploaded, KiB/step | uploaded / selected | "
           "hits live | hits replayed | promoted/step | demoted/step | bounces/step |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < n_traces; i++) {
        const struct figure_trace *t = &traces[i];
        double steps = (double)t->results[0][PLACEMENT_BKP].steps;
        double selected = (t->gpu_hits + t->hot_hits + t->cold_hits) * (double)t->entry;
        if (!t->live)
            continue;
        printf("| %s | %.0f | %.1f | %.1f | %.3f | %.2f %% | %.2f %% | %.1f | %.1f | %.2f |\n",
               t->name, t->prompt_tokens, per(selected, steps) / 1024,
               per(t->upload_bytes, steps) / 1024, per(t->upload_bytes, selected),
               100 * per((double)t->live_hot, (double)(t->live_hot + t->live_cold)),
               100 * trace_replay_hit_rate(&t->results[0][PLACEMENT_BKP]), per(t->promoted, steps),
               per(t->demoted, steps), per(t->bounced, steps));
    }
}

/* ---- the time of a step ------------------------------------------------------------------- */

/* One step of bkp over n tokens, a fifth of them told at random with favourites. */
static double step_us(uint32_t n, uint32_t steps)
{
    struct placement_settings settings = placement_defaults();
    struct placement_moves moves;
    struct placement *placement;
    uint32_t *selected = bench_memory((uint64_t)n * sizeof *selected);
    uint64_t random = 7;
    int64_t ns = 0;
    settings.max_tokens = n + steps;
    if (placement_create(&placement, PLACEMENT_BKP, &settings, NULL))
        bench_fail("no memory for a placement of %u tokens", n);
    if (placement_append(placement, n, n * 6 / 10, &moves))
        bench_fail("a placement of %u tokens took no prompt", n);
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t chance = bench_random(&random) % 100;
            if (chance < (i % 8 == 0 ? 90u : 10u))
                selected[count++] = i;
        }
        int64_t start = clock_now_ns();
        if (placement_append(placement, 1, (n + step) * 6 / 10, &moves) ||
            placement_step(placement, selected, count, NULL, PLACEMENT_LIVE_RATE, &moves))
            bench_fail("a step of the placement failed");
        ns += clock_now_ns() - start;
    }
    placement_destroy(placement);
    bench_memory_free(selected, (uint64_t)n * sizeof *selected);
    return (double)ns / steps / 1000;
}

static int replay_folder(const char *folder)
{
    char pattern[4200];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.kvt", folder);
    if (glob(pattern, 0, NULL, &found) || found.gl_pathc == 0) {
        fprintf(stderr, "bench: no traces match %s; make some with --trace-kv\n", pattern);
        return 77;
    }
    for (size_t i = 0; i < found.gl_pathc && i < sizeof traces / sizeof traces[0]; i++)
        replay(&traces[n_traces++], found.gl_pathv[i]);
    globfree(&found);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench_options options = bench_start("placement", argc, argv);
    const char *folder = getenv("BENCH_TRACES");
    printf("## Placement policies\n\nKV traces replayed, of a GPU with memory of its own "
           "(`HILL_TEST_COPY_HOT=1`): the GPU's slot table stands in front, and "
           "the policies hear only of what it lacks. Hits: the share of the entries that the GPU "
           "lacked and that were not forced (sinks, window) that lay in the hot tier. Near: the "
           "share of all selected entries, without the forced, that the GPU held or that were hot. "
           "Moves are promotions and demotions of all layers; a bounce is a promotion within 16 "
           "steps of a demotion. belady knows the future, and like all but score it brings up "
           "only what the GPU has just lacked.\n");
    if (folder && *folder) {
        int rc = replay_folder(folder);
        if (rc)
            return rc;
    } else {
        printf("\nEach model continues the start of the licence text, greedily.\n");
        run_models(&options);
    }
    print_bars();
    print_price();
    if (!folder || !*folder)
        print_live();
    printf("\n| tokens | bkp, µs per step and layer (told of a fifth) |\n|---|---|\n");
    for (uint32_t n = 4096; n <= (options.quick ? 4096u : 65536u); n *= 4)
        printf("| %u | %.1f |\n", n, step_us(n, options.quick ? 20 : 200));
    return 0;
}
