/*
 * coordinator/supervisor_parts.h - the inside of the supervisor: its four files alone include this.
 *
 * supervisor_processes.c starts and ends workers; supervisor_epochs.c makes and removes segments
 * and configures workers, and calls the former; supervisor_drive.c attaches and detaches a drive,
 * and calls both; supervisor.c has what workers and clients send, what time brings, and calls all.
 */
#pragma once

#include "coordinator/supervisor.h"

/* ---- supervisor_processes.c ---- */

/* A failure that passes is tried again later; another one ends the pipeline. */
void supervisor_start(struct supervisor *s, enum worker w);
/* SIGTERM now, SIGKILL in_ns later; nothing where it is not running or is being ended already. */
void supervisor_terminate(struct supervisor *s, enum worker w, int64_t in_ns, const char *reason);
/* End the pipeline: starting `w` again does not help. how: "could not be started". */
void supervisor_give_up(struct supervisor *s, enum worker w, const char *how);

/* ---- supervisor_epochs.c ---- */

/* As supervisor_new_epoch, for a caller that leaves no drain under way. counts: as an attempt of
 * the requests that run. */
void supervisor_next_epoch(struct supervisor *s, bool counts, const char *reason);
/* Tell a worker the current epoch's settings, if there is one. */
void supervisor_configure(struct supervisor *s, enum worker w);
/* All are ready with what was kept: no earlier death was due to it. */
void supervisor_tiers_work(struct supervisor *s);
/* keep: all but the hot segment. */
void supervisor_remove_segments(struct supervisor *s, bool keep);

/* ---- supervisor_drive.c ---- */

/* A newly attached agent cannot work: detach again; the client is told why when the others are
 * ready again. */
void drive_undo_attach(struct supervisor *s, int code, const char *text);
/* The next epoch's scorer knows of no drain: the detach asks for it again when all are ready. */
void drive_lose_drain(struct supervisor *s);
/* A worker has ended that an epoch is made without: what a change of the drive waited for from it
 * does not come, and a drive that is lost may be one that is detached. given_up: no further process
 * would be tried. True: so it is, and the others are to hear of it. */
bool drive_lose(struct supervisor *s, enum worker w, bool given_up);
/* Attach and Detach of a client, Drained of the scorer. */
void drive_take_attach(void *owner, struct arrival *a);
void drive_take_detach(void *owner, struct arrival *a);
void drive_take_drained(void *owner, struct arrival *a);
