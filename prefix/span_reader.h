/*
 * prefix/span_reader.h - pieces of files are read while their caller goes on: some threads and a
 * queue.
 *
 * What: a job is a list of spans, read into the caller's memory. Jobs are begun in the order in
 * which they were given; several spans are read at a time, since a disk is not fast with one. Who
 * calls it: gpu_worker/selected*.c. Concurrency: one caller; `wake` is called by the readers, under
 * their lock. Failure: HILL_E_NOMEM; a job's code is what errno says, HILL_E_DAMAGED: the file is
 * too short.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct span {
    int fd;
    uint64_t at, bytes;
    void *to;
};

struct span_reader;

/* wake, which may be NULL, is called after each job. */
int span_reader_open(struct span_reader **out, void (*wake)(void *context), void *context);
/* What was given is read, or given up where nobody has begun with it. False: a disk has not
 * answered for two seconds; its reads may still write to the memory of every span that was given.
 * Should it answer later, the last reader calls release(context): then that may be freed. NULL
 * allowed. */
bool span_reader_close(struct span_reader *reader, void (*release)(void *context), void *context);

/* A copy of spans [n]. *job: its number, from 1 on. HILL_E_NOMEM. */
int span_reader_give(struct span_reader *reader, const struct span *spans, uint32_t n,
                     uint64_t *job);
/* 1: the job is done, and all before it; 0: not yet; or why one of its spans could not be read, or
 * one of a job before it. */
int span_reader_done(struct span_reader *reader, uint64_t job);
