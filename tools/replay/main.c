/*
 * tools/replay/main.c - hill-replay: drives one worker alone from a recording (replay.h)
 *
 * SYNOPSIS
 *     hill-replay FILE gpu_worker|cpu_scorer
 *     hill-replay FILE csd_agent URL
 * DIAGNOSTICS
 *     One line on stdout: what went in and came out, as recorded, and a hash of the latter. Exits
 *     0 then, 1 when the recording is damaged or the worker does otherwise, 100 on wrong use or
 *     when FILE is not there, 111 when the environment fails.
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
    .notes = "`hillinfer record` makes recordings; `hillinfer replay` calls this.",
    .exit_codes = "  0    as recorded\n"
                  "  1    damaged recording, or the worker does otherwise\n"
                  "  100  wrong use; no such FILE\n"
                  "  111  the environment failed: worth a retry\n",
    .positional_max = 3,
    .arguments_only = true,
};

/* NULL: none of that name, or with other arguments. */
static const struct stage *stage_of(const struct options *o)
{
    unsigned n = options_positional_count(o);
    for (const struct stage *s = stages; n > 1 && s < stages + 3; s++)
        if (strcmp(s->name, options_positional(o, 1)) == 0)
            return n == (s->run == replay_csd_agent ? 3 : 2) ? s : NULL;
    return NULL;
}

static int check(const struct options *o, struct hill_why *why)
{
    return stage_of(o) ? 0 : hill_fail(why, HILL_E_INVALID, "it needs FILE and a worker");
}

static int replay(const struct options *o, struct hill_why *why)
{
    const struct stage *stage = stage_of(o);
    struct recording_file file;
    struct replay_result r = {0};
    hill_log_init(program.name, HILL_LOG_WARN);
    const char *path = options_positional(o, 0);
    int rc = options_check_file(path, why);
    if (rc == 0)
        rc = recording_open(&file, path, why);
    if (rc)
        return rc;
    rc = stage->run(&file, options_positional(o, 2), &r, why);
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
    return options_main(&program, argc, argv, check, replay);
}
