/*
 * hill-kvtrace - replay KV traces through placements, offline.
 *
 * SYNOPSIS
 *     hill-kvtrace FILE... [OPTIONS]        (hill-kvtrace --help)
 * DESCRIPTION
 *     Reads the traces that --trace-kv wrote and reports, for each placement, how many of the
 *     selected entries that were not forced (sinks, window) and that the GPU lacked it would have
 *     had in the hot tier, and what it would have moved for that. --importance-counts counts
 *     instead how often each token was important (the paper's Figure 8).
 * DIAGNOSTICS
 *     One line on stderr; a trace that ends inside a record is used up to there, and a line says
 *     so. Exit codes: 0 done; 1 a trace is damaged; 100 wrong use, or a trace is not there; 111 the
 *     environment failed.
 */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "tools/kvtrace/counts.h"
#include "tools/kvtrace/placement_report.h"

#define FILES_MAX 256

static const struct option_spec specs[] = {
    OPTION("placement", STRING, "LIST",
           "all (score only where the trace has scores), or some of "
           "recency,bkp,paper,lru,lfu,score,belady",
           .fallback = "all"),
    OPTION("hot", REAL, "SHARE", "share of a sequence's tokens that may be hot", .min_open = true,
           .max = 1, .fallback = "0.6"),
    OPTION("gpu-slots", INTEGER, "N",
           "entries that the GPU holds of a sequence and layer; what it has is no miss; 0: none",
           .max = KV_MAX_TOKENS, .unset_help = "the budget of the trace's whole context"),
    OPTION("layer", INTEGER, "N", "that layer alone", .max = KV_MAX_LAYERS - 1,
           .unset_help = "all"),
    OPTION("alpha", REAL, "SHARE",
           "bkp, paper: the share with the highest counts, which is not demoted for a promotion",
           .min_open = true, .max = 1, .unset_help = "the trace's"),
    OPTION("pin", REAL, "SHARE", "bkp, paper: the newest share, which is locked hot", .max = 1,
           .unset_help = "alpha"),
    OPTION("rate", INTEGER, "N", "promotions per step and layer, of every placement", .min = 1,
           .max = KV_MAX_TOKENS,
           .unset_help = "of bkp 32, as all have it live; of others no limit"),
    OPTION("half-life", INTEGER, "STEPS", "bkp: steps in which a count loses half its weight",
           .min = 1, .max = 256, .unset_help = "16, as live"),
    OPTION("margin", REAL, "COUNT", "bkp: misses by which a token must beat the one that goes down",
           .max = 64, .unset_help = "1, as live"),
    OPTION("rest", INTEGER, "STEPS", "bkp: a token that was moved stays so long", .max = 1000000,
           .unset_help = "2"),
    OPTION("write-cost", REAL, "MISSES",
           "bkp: misses that a token must save, besides, for a victim that must be written",
           .max = 64, .unset_help = "as live before it is measured"),
    OPTION("copies-part", INTEGER, "N",
           "of what has moved up a copy is kept below for one of N cold tokens; 0: of all",
           .max = KV_MAX_TOKENS, .unset_help = "2, as live"),
    OPTION("importance-counts", FLAG, NULL,
           "print per token how often it was important, secondary, unimportant"),
    OPTION("svg", PATH, "FILE", "with --importance-counts: draw them too"),
    OPTION("json", FLAG, NULL, "print one JSON array"),
};

static const struct option_table table = {
    .title = "options", .specs = specs, .count = sizeof specs / sizeof specs[0]};

static const struct option_program program = {
    .name = "hill-kvtrace",
    .usage = "FILE... [OPTIONS]",
    .summary = "Replays KV traces (--trace-kv) through placements and compares them.",
    .example = "hill-kvtrace run.kvt --placement score,bkp,belady --hot 0.4",
    .notes =
        "Hits count selected entries that were not forced (sinks, window). A placement hears only\n"
        "of what the GPU lacked, as the live scorer's does. belady knows the future: no placement\n"
        "that brings up only what the GPU has just lacked has more hits. Bounces are\n"
        "promotions of tokens that went down at most 16 queries of their layer before.\n",
    .tables = &table,
    .n_tables = 1,
    .positional_max = FILES_MAX,
    .arguments_only = true,
};

static void read_settings(struct trace_replay_settings *s, const struct options *o)
{
    s->hot = options_real(o, "hot");
    if (options_is_set(o, "gpu-slots"))
        s->gpu_slots = (uint32_t)options_integer(o, "gpu-slots");
    if (options_is_set(o, "layer"))
        s->layer = options_integer(o, "layer");
    if (options_is_set(o, "alpha"))
        s->placement.alpha = s->placement.pin = options_real(o, "alpha");
    if (options_is_set(o, "pin"))
        s->placement.pin = options_real(o, "pin");
    if (options_is_set(o, "rate")) {
        s->placement.rate = (uint32_t)options_integer(o, "rate");
        s->limits_all = true;
    }
    if (options_is_set(o, "half-life"))
        s->placement.half_life = (uint32_t)options_integer(o, "half-life");
    if (options_is_set(o, "margin"))
        s->placement.margin = options_real(o, "margin");
    if (options_is_set(o, "rest"))
        s->placement.rest_steps = (uint32_t)options_integer(o, "rest");
    if (options_is_set(o, "write-cost"))
        s->placement.write_cost = options_real(o, "write-cost");
    if (options_is_set(o, "copies-part"))
        s->copies_part = (uint32_t)options_integer(o, "copies-part");
}

static int count_importance(struct trace_file *file, int64_t layer, const char *svg,
                            struct hill_why *why)
{
    struct counts counts;
    char title[256];
    int rc = counts_take(&counts, file, layer, why);
    if (rc)
        return rc;
    if (counts_print(&counts, stdout))
        rc = hill_fail(why, HILL_E_IO, "cannot write the counts");
    snprintf(title, sizeof title, "importance counts per token, %u queries: %.180s",
             counts.n_queries, basename(trace_file_path(file)));
    if (rc == 0 && svg)
        rc = counts_draw(&counts, title, svg, why);
    counts_free(&counts);
    return rc;
}

static int compare_placements(struct trace_file *file, const struct options *o,
                              const struct trace_replay_settings *settings, json_t *all,
                              struct hill_why *why)
{
    struct report report = {.file = file, .settings = *settings};
    int rc = report_parse_placements(&report, options_text(o, "placement"), why);
    if (rc == 0)
        rc = report_run(&report, why);
    if (rc)
        return rc;
    if (report.all && report.without_scores)
        fprintf(stderr,
                "hill-kvtrace: %s has no scores (--trace-scores): placement score is left out\n",
                trace_file_path(file));
    if (!all)
        report_print(&report, stdout);
    else if (json_array_append_new(all, report_json(&report)))
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the JSON of %s",
                         trace_file_path(file));
    return 0;
}

static int work_on(const char *path, const struct options *o, json_t *all, struct hill_why *why)
{
    struct trace_file *file;
    int rc = options_check_file(path, why);
    if (rc == 0)
        rc = trace_file_open(&file, path, why);
    if (rc)
        return rc;
    if (trace_file_tail(file))
        fprintf(stderr, "hill-kvtrace: %s\n", trace_file_tail(file));
    struct trace_replay_settings settings = trace_replay_defaults(file);
    read_settings(&settings, o);
    uint32_t n_layers = trace_file_settings(file)->geometry.n_layers;
    if (settings.layer >= n_layers)
        rc = hill_fail(why, HILL_E_INVALID, "--layer %lld: %s has %u layers",
                       (long long)settings.layer, path, n_layers);
    else if (options_flag(o, "importance-counts"))
        rc = count_importance(file, settings.layer, options_text(o, "svg"), why);
    else
        rc = compare_placements(file, o, &settings, all, why);
    trace_file_close(file);
    return rc;
}

static int check_pairs(const struct options *o, struct hill_why *why)
{
    bool counting = options_flag(o, "importance-counts");
    if (options_positional_count(o) == 0)
        return hill_fail(why, HILL_E_INVALID, "no trace given");
    if (options_is_set(o, "svg") && !counting)
        return hill_fail(why, HILL_E_INVALID, "--svg goes with --importance-counts");
    if (counting && options_flag(o, "json"))
        return hill_fail(why, HILL_E_INVALID, "--importance-counts prints no JSON");
    if (counting && options_positional_count(o) > 1)
        return hill_fail(why, HILL_E_INVALID, "--importance-counts takes one trace");
    return 0;
}

static int report_all(const struct options *o, struct hill_why *why)
{
    json_t *all = options_flag(o, "json") ? json_array() : NULL;
    int rc = 0;
    for (unsigned i = 0; i < options_positional_count(o) && rc == 0; i++)
        rc = work_on(options_positional(o, i), o, all, why);
    if (rc == 0 && all)
        json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    if (rc == 0 && all)
        putchar('\n');
    if (rc == 0 && (fflush(stdout) || ferror(stdout)))
        rc = hill_fail(why, HILL_E_IO, "cannot write the report");
    json_decref(all);
    return rc;
}

int main(int argc, char **argv)
{
    return options_main(&program, argc, argv, check_pairs, report_all);
}
