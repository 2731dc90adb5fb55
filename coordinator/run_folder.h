/*
 * coordinator/run_folder.h - the 0700 folder of one running pipeline: lock, sockets, the workers'
 * pids.
 *
 * Contents: lock (flock'ed while the pipeline runs; holds the coordinator's pid, and "progress"
 * once a request got on), worker.sock, heartbeat.sock, control.sock (ZeroMQ), pids (one line "PID
 * START-TIME NAME" a worker), tiers (tiers_record.h), drives (drives_record.h). Invariant: whoever
 * holds the lock owns everything with the folder's run id: what is there at the start was left by a
 * killed pipeline and is removed (worker processes, segments, sockets), but for the segments that
 * the tiers' record names. Who calls it: the coordinator's main.c and pipeline (open, close), its
 * supervisor. Concurrency: one thread. Failure: HILL_E_BUSY (a second pipeline), HILL_E_INVALID
 * (not a folder of ours alone), others from errno.
 */
#pragma once

#include "proto/options_hill.h"
#include "coordinator/tiers_record.h"
#include "coordinator/worker_table.h"

struct run_folder {
    char path[HILL_PATH_BYTES];
    uint64_t run_id;          /* XXH64 of the real path */
    int lock_fd;              /* -1: not open */
    struct tiers_record left; /* segments of a killed pipeline that are there still; zeros: none */
};

/* Create (mode 0700) or check, lock, and remove what a killed pipeline left. */
int run_folder_open(struct run_folder *folder, const char *path, struct hill_why *why);

/* What is left goes: whoever takes it over has no use for it, or has made it their own. */
void run_folder_forget_left(struct run_folder *folder, bool unlink_segments);

/* Write down who runs, for the next start. */
int run_folder_write_pids(const struct run_folder *folder, const struct worker_table *table);

/* Say in the lock file that this life was of use: who starts the next one reads that. */
void run_folder_note_progress(const struct run_folder *folder);

/* Remove sockets, pids, lock, what is left and the folder itself (left if something foreign is in
 * it). Safe when not open. */
void run_folder_close(struct run_folder *folder);
