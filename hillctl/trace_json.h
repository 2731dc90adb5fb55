/*
 * hillctl/trace_json.h - stage events of several processes as Chrome/Perfetto trace JSON.
 *
 * What: collects events up to a bound, then writes them sorted by their start: a track (pid, tid)
 * for every process and stage, a complete event ("X") for every span with request, sequence, step,
 * layer and bytes as its arguments, and a flow that joins the spans of one query of a decode step
 * across the processes. The coordinator says which request had which sequence when; a span that
 * began while nobody had its sequence, or while more of them came and went than the coordinator
 * keeps between two looks, has no request. What was lost stands in the file's metadata.
 * Who calls it: trace.c. Failure: HILL_E_NOMEM; writing, the stream's error flag.
 */
#pragma once

#include <stdio.h>

#include "base/stage_trace.h"
#include "kv/plan.h"
#include "proto/envelope.h"

#define TRACE_EVENTS_MAX    (1u << 20) /* 64 MiB here, about 250 MB of JSON */
#define TRACE_PROCESSES_MAX 16u        /* a worker that is started again is another process */

struct traced_event {
    struct stage_event event;
    uint32_t process; /* index into processes */
    uint32_t flow;    /* number of its flow; 0: none */
    uint32_t place;   /* enum flow_place */
};

struct traced_process {
    Hill__Role role;
    int32_t pid;
    uint64_t events, lost;
};

struct traced_turn {
    uint64_t request; /* 0: nobody's */
    int64_t since_ns;
    uint32_t sequence;
};

struct trace_collection {
    struct traced_event *events;
    uint32_t n_events, capacity, n_processes;
    struct traced_turn *turns;
    size_t n_turns, turns_room;
    int64_t known_ns[KV_MAX_SEQUENCES]; /* since_ns of each sequence's newest turn */
    struct traced_process processes[TRACE_PROCESSES_MAX];
    uint64_t lost;    /* overwritten in a worker before they were asked for */
    uint64_t dropped; /* beyond TRACE_EVENTS_MAX */
    uint64_t unheard; /* answers that a worker owed and did not send in time */
    uint32_t rounds;  /* how often the workers were asked */
    double seconds;
};

/* Take a worker's answer, or the coordinator's. 0 or HILL_E_NOMEM. */
int trace_collect(struct trace_collection *c, const Hill__TraceAnswer *answer);
/* Sort, find the flows, write. The stream's error flag tells of a failure; 0 or HILL_E_NOMEM. */
int trace_write_json(struct trace_collection *c, FILE *out);
void trace_collection_finish(struct trace_collection *c);
