/*
 * base/process.h - is that process still the one we knew? What this one uses, and its signals.
 * A process is identified by pid and start time (field 22 of /proc/PID/stat), so that a recycled
 * pid is not taken for it. Zombies count as dead. Concurrency: stateless.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Start time of pid in clock ticks since boot; 0 when there is no such process. */
uint64_t process_start_time(int32_t pid);

/* true while pid runs (is no zombie) and has that start time. */
bool process_alive(int32_t pid, uint64_t start_time);

/* SIGKILL to that process, and wait for its end for so long. True when it is gone. */
bool process_kill(int32_t pid, uint64_t start_time, int wait_ms);

/* Of this process: CPU time so far (user and system) and resident bytes (shared memory included; 0:
 * unknown). */
void process_usage(uint64_t *cpu_ms, uint64_t *rss_bytes);

/* Descriptors 0, 1 and 2 that are closed lead to /dev/null from here on: else the next file that is
 * opened would get that number, and be taken for stdin, stdout or stderr. Before anything is
 * opened. */
void process_open_standard(void);

/* SIGINT and SIGTERM, with hangup also SIGHUP, as a descriptor, blocked in this thread and in those
 * that it starts. -1: errno says why. */
int process_signals(bool hangup);
