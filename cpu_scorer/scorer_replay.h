/*
 * cpu_scorer/scorer_replay.h - the scorer alone, driven by a recording of its rings
 * (proto/recording.h).
 *
 * What: `hill-cpu-scorer --replay FILE` runs the scorer of that epoch at full speed, with nobody
 * at the other ends, and checks that all it publishes is what it published then, byte for byte; so
 * that perf sees the scorer and nothing else. How it stays exact: the scorer's thread is the only
 * one; whatever it does with a ring is compared with the next event of the recording. A look that
 * found nothing then finds nothing again, so that the loop takes as many turns as it took; then a
 * record lies there, or room or credits are granted as they were. A look too many is an error.
 * Looks at the agent's rings, which are not counted, find a record when it is what comes next. No
 * device model.
 * Who calls it: main.c. Failure: a damaged recording, a settings that this machine cannot have
 * (memory, a scoring path): refused; an output that differs or does not come: HILL_E_DAMAGED with
 * the event's number, exit code 1.
 */
#ifndef HILL_CPU_SCORER_SCORER_REPLAY_H
#define HILL_CPU_SCORER_SCORER_REPLAY_H

/* argv[1] is "--replay". Returns the process's exit code. */
int replay_main(int argc, char **argv);

#endif
