/*
 * tools/replay/main.c - hill-replay: drives one worker alone from a recording (replay.h)
 *
 * SYNOPSIS
 *     hill-replay FILE gpu_worker|cpu_scorer
 *     hill-replay FILE csd_agent URL
 * DIAGNOSTICS
 *     One line on stdout: what went in and came out, as recorded, and a hash of the latter. Exits
 *     0 then, 1 when the recording is damaged or the worker does otherwise, 100 on wrong use, 111
 *     when the environment fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "proto/options_hill.h"
#include "tools/replay/replay.h"

static const struct stage {
    const char *name, *in, *out;
    int (*run)(struct recording_file *file, const char *url, struct replay_result *result,
               struct hill_why *why);
} stages[] = {
    {"gpu_worker", "requests", "records out", replay_gpu_worker},
    {"cpu_scorer", "records in", "out", replay_cpu_scorer},
    {"csd_agent", "commands", "records out", replay_csd_agent},
};

static const struct option_program program = {
    .name = "hill-replay",
    .usage = "FILE gpu_worker|cpu_scorer|csd_agent [URL]",
    .summary = "Runs one worker alone, at full speed, driven by a recording of the rings; its\n"
               "output must be the recorded one. URL: of an empty pool, for csd_agent.",
    .example = "hill-replay decode.rec cpu_scorer",
    .notes = "`scripts/hillinfer record` makes recordings; `scripts/hillinfer replay` calls this.",
    .exit_codes = "  0    as recorded\n"
                  "  1    damaged recording, or the worker does otherwise\n"
                  "  100  wrong use\n"
                  "  111  the environment failed: worth a retry\n",
    .positional_max = 3,
    .arguments_only = true,
};

static int find_stage(const struct stage **stage, const struct options *o, struct hill_why *why)
{
    uint32_t n = options_positional_count(o);
    const char *name = n > 1 ? options_positional(o, 1) : "";
    for (*stage = stages; *stage < stages + 3; ++*stage)
        if (strcmp((*stage)->name, name) == 0 && n == (*stage == &stages[2] ? 3u : 2u))
            return 0;
    return hill_fail(why, HILL_E_INVALID, "wrong arguments; try hill-replay --help");
}

static int replay(const struct stage *stage, const struct options *o, struct hill_why *why)
{
    struct recording_file file;
    struct replay_result r = {0};
    int rc = recording_open(&file, options_positional(o, 0), why);
    if (rc)
        return rc;
    rc = stage->run(&file, stage == &stages[2] ? options_positional(o, 2) : NULL, &r, why);
    if (rc == 0) {
        printf("%s: %" PRIu64 " %s, %" PRIu64 " %s, as recorded; %.3f s", stage->name, r.in,
               stage->in, r.out, stage->out, (double)r.took_ns / 1e9);
        if (r.busy_ns)
            printf(", busy %.3f s", (double)r.busy_ns / 1e9);
        printf("; xxhash64 %016" PRIx64 "\n", r.hash);
        if (file.cut)
            log_warn("the recording reached its bound: the run went on after it");
    }
    recording_finish(&file);
    return rc;
}

int main(int argc, char **argv)
{
    struct options *options;
    const struct stage *stage;
    struct hill_why why = {""};
    hill_log_init(program.name, HILL_LOG_WARN);
    int rc = options_start(&options, &program, argc, argv);
    if (rc)
        return rc == 1 ? 0 : hill_exit_code(rc);
    rc = find_stage(&stage, options, &why);
    if (rc == 0)
        rc = replay(stage, options, &why);
    if (rc)
        log_error("%s", why.text);
    options_free(options);
    return hill_exit_code(rc);
}
