/*
 * gpu_worker/replay.h - the GPU worker alone, driven by a recording of its rings
 * (proto/recording.h).
 *
 * What: `hill-gpu-worker --replay FILE` loads the model that the recording names and runs its
 * requests at full speed: a thread plays coordinator and scorer, gives the recorded answers, and
 * checks that everything the worker publishes for a request is what it published then, byte for
 * byte; so that perf sees the worker and nothing else that matters. What is not compared: query
 * ids, and how the records of different requests lie between one another: both follow from when
 * threads ran, and nothing else does. What answers name is put where they name it: entries that the
 * worker itself appended, into staging and hot slots of the replay's own. Sessions are not saved
 * again. Who calls it: main.c. Failure: a damaged recording, a model or memory that is not there:
 * refused; an output that differs, is missing or too much: HILL_E_DAMAGED with the event's number,
 * exit code 1.
 */
#ifndef HILL_GPU_WORKER_REPLAY_H
#define HILL_GPU_WORKER_REPLAY_H

/* argv[1] is "--replay". Returns the process's exit code. */
int replay_main(int argc, char **argv);

#endif
