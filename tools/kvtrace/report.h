/*
 * tools/kvtrace/report.h - what the policies would have done with a trace, for people and for programs.
 *
 * Who calls it: hill-kvtrace. Concurrency: none. Failure: codes of replay.h; HILL_E_IO when stdout
 * does not take it.
 */
#ifndef HILL_KVTRACE_REPORT_H
#define HILL_KVTRACE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "placement/replay.h"

struct report {
    struct trace_file *file;
    struct replay_settings settings;
    bool wanted[POLICY_COUNT];
    struct replay_result results[POLICY_COUNT];
    uint64_t gpu, hot, cold; /* unforced selected entries as the trace has them */
};

/* "all" or names with commas between them. HILL_E_INVALID: why names the wrong one. */
int report_parse_policies(struct report *report, const char *text, struct hill_why *why);

/* Replay every wanted policy and count where the entries were. */
int report_run(struct report *report, struct hill_why *why);

void report_print(const struct report *report, FILE *to);
json_t *report_json(const struct report *report); /* NULL: out of memory */

#endif
