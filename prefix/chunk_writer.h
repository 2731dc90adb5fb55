/*
 * prefix/chunk_writer.h - what the prefix store writes, beside the work of who calls it: a thread
 * and a queue.
 *
 * What: jobs are done one after the other, in the order in which they were given, so what a kill
 * leaves is a beginning of that order. Entries in the queue take at most room_bytes, or are one
 * chunk's; a job that finds no room is refused, and who gives it decides whether to wait. What is
 * in the queue can be read. The writer knows no file: `write` does a job, on the thread.
 * Who calls it: drive_store.c. Concurrency: the calls below belong to one thread; `write` and
 * `wake` are called by the writer's, wake under its lock. Failure: a job that failed is kept until
 * it is taken; those behind it are done.
 */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "prefix/chunk_tree.h"

enum chunk_job_kind {
    CHUNK_JOB_PUT,   /* entries into a slot, then its record */
    CHUNK_JOB_NOTE,  /* its record again, where it has one */
    CHUNK_JOB_CLEAR, /* its record says nothing */
    CHUNK_JOB_KEYS,  /* entries are there: their keys (chunk_keys.h) */
};

struct chunk_job {
    enum chunk_job_kind kind;
    uint32_t slot;
    uint64_t parent_stamp;
    struct chunk chunk; /* what the record says; of CLEAR: nothing */
    uint64_t bytes;     /* of the entries; of PUT and KEYS alone */
    /* the writer's */
    void *entries; /* [bytes], owned */
    struct chunk_job *next;
    int rc; /* of a job that failed */
    struct hill_why why;
};

struct chunk_writer;
typedef int chunk_write(void *context, const struct chunk_job *job, struct hill_why *why);

/* HILL_E_NOMEM. */
int chunk_writer_open(struct chunk_writer **out, uint64_t room_bytes, chunk_write *write,
                      void *context);
/* All that was given is done first, however long that takes; who ends the process meanwhile loses
 * what is left. NULL allowed. */
void chunk_writer_close(struct chunk_writer *writer);
/* Whom to call after each job, from now on; NULL: nobody. */
void chunk_writer_wake(struct chunk_writer *writer, void (*wake)(void *context), void *context);

/* Is there room for so many bytes of entries? */
bool chunk_writer_has_room(struct chunk_writer *writer, uint64_t bytes);
/* A copy of the job and of its entries. HILL_E_NOMEM; HILL_E_WOULD_BLOCK: there is no room, never
 * of a CLEAR: what it takes away must not come back. */
int chunk_writer_give(struct chunk_writer *writer, const struct chunk_job *job,
                      const void *entries);
/* The entries of the chunk of that stamp: 1, copied; 0: it is not in the queue; negative: they
 * could not be written. */
int chunk_writer_find(struct chunk_writer *writer, uint64_t stamp, void *entries);

/* How many jobs were given, and are done. */
uint64_t chunk_writer_given(struct chunk_writer *writer);
uint64_t chunk_writer_done(struct chunk_writer *writer);
/* Waits until all are, or until the deadline (base/clock.h): how many chunks are in the queue
 * still.
 */
uint32_t chunk_writer_flush_until(struct chunk_writer *writer, int64_t deadline_ns);
/* The oldest job that failed, once. False: there is none. */
bool chunk_writer_take_failed(struct chunk_writer *writer, struct chunk_job *out);
