/*
 * coordinator/worker_process.h - start and reap worker processes (mechanism; worker_table.h is the
 * policy).
 *
 * What: fork and exec of a program in the coordinator's own folder, with a clean signal mask and
 * SIGTERM at the parent's death. Who calls it: pipeline.c. Concurrency: one thread, and the same
 * one as long as the process lives (the parent-death signal follows the thread that forked).
 * Failure: an exec that fails is reported here, not as a child that dies.
 */
#ifndef HILL_COORDINATOR_WORKER_PROCESS_H
#define HILL_COORDINATOR_WORKER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Start BINARY --run-dir DIR --log-level LEVEL from the folder of /proc/self/exe. *start_time as
 * base/process.h. */
int worker_process_start(int32_t *pid, uint64_t *start_time, const char *binary,
                         const char *run_dir, const char *log_level, struct hill_why *why);

/* Reap one ended child: true, its pid, and how it ended ("exited with 1", "killed by signal 9"). */
bool worker_process_reap(int32_t *pid, char *how, unsigned how_bytes);

#endif
