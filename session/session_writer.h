/*
 * session/session_writer.h - write a session's file beside the work that its data comes from.
 *
 * What: the caller fills buffers with the sections in the order of session.h and never waits for a
 * disk; a thread of the writer's checks sums and writes. Everything goes to FILE.saving, its space
 * reserved first, the header last; then it is flushed and renamed to FILE, so that FILE is whole or
 * as it was. What an earlier writer that was killed left in FILE.saving is written over, or removed
 * by session_writer_clear; a second writer at the same time is refused (HILL_E_BUSY). Who calls it:
 * the GPU worker; the coordinator, for what a killed one has left. Concurrency: the calls below
 * belong to one thread; `wake` is called by the writer's thread, under its lock: when a buffer is
 * free again and at the end. Failure: session_writer_state says what and why; FILE.saving is
 * removed then, and by a close before the end. Where the folder alone could not be flushed FILE is
 * there, and the line says so. A FILE that is no regular file, or a link to such, is left as it is
 * (HILL_E_INVALID).
 */
#pragma once

#include <stdbool.h>

#include "session/session.h"

#define SESSION_BUFFER_BYTES (1u << 20)

struct session_writer;

/* file_bytes: what the whole file will take. HILL_E_NOMEM, HILL_E_INVALID. */
int session_writer_open(struct session_writer **out, const char *path, uint64_t file_bytes,
                        void (*wake)(void *context), void *context, struct hill_why *why);

/* A free buffer of SESSION_BUFFER_BYTES, the same until it is given; NULL: not now. */
void *session_writer_room(struct session_writer *writer);
/* Its first bytes are the file's next; section_end: a section's checksum follows them. */
void session_writer_give(struct session_writer *writer, uint32_t bytes, bool section_end);
/* All sections were given. The header is sealed. */
void session_writer_finish(struct session_writer *writer, const struct session_header *header);

/* 1: at work or waiting for more; 0: FILE is there; negative: it failed. */
int session_writer_state(struct session_writer *writer, struct hill_why *why);

/* Before the end: nothing is left behind, and the thread is not waited for. NULL allowed. */
void session_writer_close(struct session_writer *writer);

/* A writer's process may have been killed: remove the FILE.saving that it left, unless another
 * writer is at work on it. */
void session_writer_clear(const char *path);
