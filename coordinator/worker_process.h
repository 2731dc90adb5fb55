/*
 * coordinator/worker_process.h - start and reap worker processes (mechanism; worker_table.h is the
 * policy).
 *
 * What: fork and exec of a program in the coordinator's own folder, with a clean signal mask and
 * SIGTERM at the parent's death; a pidfd for each, which can be polled for its end. And a question
 * to a program there, which ends with the answer. Who calls it: supervisor.c, settings.c.
 * Concurrency: one thread, and the same one as long as the process lives (the parent-death signal
 * follows the thread that forked). Failure: an exec that fails is reported here, not as a child
 * that dies.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct worker_process {
    int32_t pid;
    uint64_t start_time; /* as base/process.h */
    int fd;              /* a pidfd: readable when the process has ended */
};

/* How a process has ended. */
struct worker_end {
    char text[64]; /* "exited with 1", "was killed by signal 9" */
    bool orderly;  /* it was asked to end, by whomever, and did: exit code 0 */
    bool killed;   /* by a signal: it has no last words */
};

/* Start BINARY --run-dir DIR --log-level LEVEL from the folder of /proc/self/exe. HILL_E_NOMEM:
 * there is no room for a process or a descriptor now, later there may be; others: not worth a try.
 */
int worker_process_start(struct worker_process *out, const char *binary, const char *run_dir,
                         const char *log_level, struct hill_why *why);

/* Run BINARY QUESTION ABOUT from that folder to its end: its exit code. HILL_E_TIMEOUT: it took
 * longer (a driver may hang) and was killed; one that is still there 3 s later is left, and will be
 * a zombie. HILL_E_IO: it was not started, or ended without one. */
int worker_process_ask(const char *binary, const char *question, const char *about, int limit_ms);

/* Has it ended, and how? It stays to be reaped. */
bool worker_process_ended(const struct worker_process *process, struct worker_end *end);
/* Reap it, when it has ended; its fd is closed. */
void worker_process_reap(struct worker_process *process);
