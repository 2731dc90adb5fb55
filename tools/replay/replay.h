/*
 * tools/replay/replay.h - one worker alone, driven by a recording of its rings
 * (recording/recording.h).
 *
 * What: each of the three runs its worker's own code at full speed, with no device model and nobody
 * at the other ends, gives it what it was given then, and compares what it publishes; so that perf
 * and a debugger see one worker and nothing else that matters. Who calls them: main.c. Failure: a
 * recording that makes no sense, a model, pool, memory or scoring path that is not there: refused;
 * an output that differs, is missing or too much: HILL_E_DAMAGED with the event's number in why.
 */
#pragma once

#include "recording/recording.h"

struct replay_result {
    uint64_t in, out, hash; /* hash: over everything published */
    int64_t took_ns, busy_ns;
};

/* Loads the model that the recording names and runs its requests; a thread plays coordinator and
 * scorer. What is not compared: query ids, and how the records of different requests lie between
 * one another: both follow from when threads ran, and nothing else does. What answers name is put
 * where they name it: entries that the worker itself appended, into staging and hot slots of the
 * replay's own. Sessions are not saved again. in: requests. */
int replay_gpu_worker(struct recording_file *file, const char *url, struct replay_result *result,
                      struct hill_why *why);

/* The scorer of that epoch: all it publishes is what it published then, byte for byte. Its thread
 * is the only one, and whatever it does with a ring is compared with the next event. A look that
 * found nothing then finds nothing again, so that the loop takes as many turns as it took; then a
 * record lies there, or room or credits are granted as they were. A look too many is an error.
 * Looks at the agent's rings, which are not counted, find a record when it is what comes next. in:
 * records. */
int replay_cpu_scorer(struct recording_file *file, const char *url, struct replay_result *result,
                      struct hill_why *why);

/* An empty cold pool at url ("file:PATH") of the recording's geometry and cap, and the recorded
 * commands one after the other in the order in which the scorer sent them. Score Blocks are
 * compared byte for byte and in order; completions by their tag, without the time and the flash
 * bytes they took; keys of committed slots that came into windows. Staging slots have the
 * generation that each FETCH names, and what it puts there is part of the hash. in: commands. */
int replay_csd_agent(struct recording_file *file, const char *url, struct replay_result *result,
                     struct hill_why *why);
