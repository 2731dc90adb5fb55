/*
 * tools/kvtrace/placement_report.h - what the placements would have done with a trace, for people
 * and for programs.
 *
 * Who calls it: hill-kvtrace. Concurrency: none. Failure: codes of trace_replay.h; HILL_E_IO when
 * stdout does not take it.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "placement/trace_replay.h"

struct report {
    struct trace_file *file;
    struct trace_replay_settings settings;
    bool wanted[PLACEMENT_COUNT];
    bool all, without_scores; /* both: score, which follows them, is left out */
    struct trace_replay_result results[PLACEMENT_COUNT];
    uint64_t gpu, hot, cold; /* unforced selected entries as the trace has them */
};

/* "all" or names with commas between them. HILL_E_INVALID: why names the wrong one. */
int report_parse_placements(struct report *report, const char *text, struct hill_why *why);

/* Replay every wanted placement and count where the entries were. */
int report_run(struct report *report, struct hill_why *why);

void report_print(const struct report *report, FILE *to);
json_t *report_json(const struct report *report); /* NULL: out of memory */
