/*
 * base/fault.h - places at which a build with FAULTS=1 fails, hangs or dies when it is told to.
 *
 * What: FAULT_POINT(process, part, moment) names a moment of the move protocol at which a process
 * may be stopped; FAULT_FAILS(kind) asks whether this call is to fail. `make FAULTS=1` builds into
 * build/faults; in every other build both are constants, and no symbol of fault.c and fault_calls.c
 * exists. In a FAULTS build the linker also puts fault_calls.c between the project's objects and
 * malloc, read, write, OpenCL and the like (FAULT_CALLS in the Makefile).
 * How it is told: a spec is PROCESS:POINT:ACTION[:N]. PROCESS is gpu_worker, cpu_scorer, csd_agent
 * or coordinator (the program's name without "hill-"), POINT one of FAULT_LIST ("demote.written")
 * or of FAULT_KINDS ("alloc"), ACTION
 *   kill   the process kills itself (SIGKILL)
 *   stop   the process stops itself (SIGSTOP), and goes on at SIGCONT
 *   fail   the call fails as such a call may fail: only at a kind
 * and N the time at which it happens (default 1; counted from when the process read the spec), or
 * "N+": from then on each time.
 *   HILL_FAULT=SPEC[,SPEC...]  holds for every life of the process
 *   HILL_FAULT_FILE=PATH       a file with one spec, looked at each time: it may come (moved there
 *                              whole), change and go while the process runs. What fires renames it
 *                              to PATH.fired first, so it fires once, in one process; a new file is
 *                              a new spec ("N+" is not renamed: it holds while the file is there)
 * A spec that fires says so in one line on stderr. One that makes no sense ends the process with
 * exit code 100 and one line: a test that waits for what never comes would be worse.
 * `hill-coordinator --list-faults` prints points and kinds.
 * Who calls it: every folder, by the two macros; options.c prints the list.
 * Concurrency: any thread; a lock keeps the counts.
 */
#pragma once

#include <stdbool.h>

/* POINT(process, part, moment, what has been done and what has not) */
#define FAULT_LIST(POINT)                                                                          \
    POINT(coordinator, epoch, created, "segments are there, no worker is configured")              \
    POINT(coordinator, log, created, "the token log has the order, the client no Accepted")        \
    POINT(coordinator, prefill, sent, "the GPU worker was sent the request")                       \
    POINT(coordinator, token, taken, "a token has come, the client has not got it")                \
    POINT(coordinator, token, logged, "the token log has it, the client has not")                  \
    POINT(coordinator, token, passed, "the client has been sent the token")                        \
    POINT(coordinator, done, taken, "Done has come, the client has no Summary")                    \
    POINT(coordinator, attach, begun, "the settings have the drive, there is no epoch with it")    \
    POINT(coordinator, attach, noted, "the run folder has it, the client was not told")            \
    POINT(gpu_worker, begin, pushed, "SEQ_BEGIN is out")                                           \
    POINT(gpu_worker, unit, computed, "a unit of the prompt is computed, none of it appended")     \
    POINT(gpu_worker, append, reserved, "room for an APPEND of the prompt is taken")               \
    POINT(gpu_worker, append, pushed, "an APPEND of the prompt is out")                            \
    POINT(gpu_worker, unit, appended, "all of a unit is out")                                      \
    POINT(gpu_worker, prefill, ended, "the prompt's STEP_END is out, no token")                    \
    POINT(gpu_worker, query, pushed, "a row's QUERY is out, its new entry is not")                 \
    POINT(gpu_worker, entry, pushed, "a row's QUERY and APPEND are out")                           \
    POINT(gpu_worker, selection, taken, "a SELECTION has come, nothing is uploaded")               \
    POINT(gpu_worker, selection, uploaded, "its uploads were given to the device")                 \
    POINT(gpu_worker, layer, launched, "a layer of a decode step computes")                        \
    POINT(gpu_worker, step, ended, "a row's STEP_END is out, no token")                            \
    POINT(gpu_worker, token, sent, "a token was sent to the coordinator")                          \
    POINT(gpu_worker, session, opened, "FILE.saving is there and has its space")                   \
    POINT(gpu_worker, session, written, "a buffer of the session is written, no header")           \
    POINT(gpu_worker, session, sealed, "the header is written and flushed, not renamed")           \
    POINT(gpu_worker, session, renamed, "FILE is the new session, nobody was told")                \
    POINT(gpu_worker, restore, reading, "entries of a session are read, not appended")             \
    POINT(cpu_scorer, begin, reserved, "room is set aside, SEQ_READY is not out")                  \
    POINT(cpu_scorer, begin, answered, "SEQ_READY is out")                                         \
    POINT(cpu_scorer, adopt, begun, "an earlier epoch's is taken up, no slot counts yet")          \
    POINT(cpu_scorer, adopt, counted, "its cold slots count, SEQ_READY is not out")                \
    POINT(cpu_scorer, adopt, answered, "its SEQ_READY is out")                                     \
    POINT(cpu_scorer, append, taken, "an APPEND is looked at, nothing is placed")                  \
    POINT(cpu_scorer, append, placed, "it is placed, its record is still in the ring")             \
    POINT(cpu_scorer, demote, filled, "a DEMOTE is filled, not published")                         \
    POINT(cpu_scorer, demote, pushed, "it is published")                                           \
    POINT(cpu_scorer, demote, answered, "its COMPLETION has come, no COMMIT is out")               \
    POINT(cpu_scorer, commit, pushed, "the COMMIT is out, no location word has flipped")           \
    POINT(cpu_scorer, flip, begun, "one location word has flipped")                                \
    POINT(cpu_scorer, flip, done, "all of the record have")                                        \
    POINT(cpu_scorer, recommit, pushed, "COMMIT of copies is out, no word has flipped")            \
    POINT(cpu_scorer, recommit, flipped, "their words have flipped")                               \
    POINT(cpu_scorer, promote, flipped, "an entry is hot again, its cold slot still counts")       \
    POINT(cpu_scorer, release, pushed, "the RELEASE of what moved up is out")                      \
    POINT(cpu_scorer, drain, fetched, "a FETCH of what a detach brings up is out")                 \
    POINT(cpu_scorer, drain, flipped, "one entry of it is hot, its cold slot still counts")        \
    POINT(cpu_scorer, fetch, pushed, "a FETCH is out")                                             \
    POINT(cpu_scorer, fetch, answered, "its COMPLETION has come, no SELECTION is out")             \
    POINT(cpu_scorer, selection, pushed, "a SELECTION is out, nothing has moved for it")           \
    POINT(cpu_scorer, end, taken, "SEQ_END has come, no statistics are out")                       \
    POINT(cpu_scorer, trim, pushed, "a sequence's TRIM is out")                                    \
    POINT(csd_agent, format, begun, "the mark of a format is on flash, there is no pool")          \
    POINT(csd_agent, format, done, "the pool is formatted, the agent is not ready")                \
    POINT(csd_agent, demote, taken, "a DEMOTE is looked at, nothing is written")                   \
    POINT(csd_agent, demote, chunk, "a chunk of it is written")                                    \
    POINT(csd_agent, demote, pages, "pages for slots used again are read, not written")            \
    POINT(csd_agent, demote, written, "all of it is written, the slots are not noted")             \
    POINT(csd_agent, demote, noted, "the slots are written, the COMPLETION is not out")            \
    POINT(csd_agent, commit, begun, "one slot of a COMMIT counts")                                 \
    POINT(csd_agent, commit, done, "all count, the COMPLETION is not out")                         \
    POINT(csd_agent, release, begun, "one slot of a RELEASE counts no more")                       \
    POINT(csd_agent, release, done, "none counts, the COMPLETION is not out")                      \
    POINT(csd_agent, query, scored, "a Score Block is out, the COMPLETION is not")                 \
    POINT(csd_agent, fetch, read, "entries are read, none is in staging")                          \
    POINT(csd_agent, fetch, begun, "one is in staging")                                            \
    POINT(csd_agent, fetch, done, "all are, the COMPLETION is not out")                            \
    POINT(csd_agent, directory, writing, "a directory record is to be written")                    \
    POINT(csd_agent, directory, written, "it is on flash")                                         \
    POINT(csd_agent, trim, done, "stripes are free, the COMPLETION is not out")

/* KIND(name, which calls): of every process */
#define FAULT_KINDS(KIND)                                                                          \
    KIND(alloc, "malloc, calloc, realloc, aligned_alloc, strdup, mmap: no memory")                 \
    KIND(read, "read, pread and io_uring's of a file: EIO")                                        \
    KIND(write, "write, pwrite, fallocate, flush, rename and io_uring's of a file: ENOSPC")        \
    KIND(push, "room in a ring: as if the ring were full just then")                               \
    KIND(opencl, "OpenCL buffers, kernels and enqueued work: out of resources")

#ifdef HILL_FAULTS

#include <stdio.h>

enum fault_point {
#define FAULT_ENUM(process, part, moment, text) FAULT_##process##_##part##_##moment,
    FAULT_LIST(FAULT_ENUM)
#undef FAULT_ENUM
#define FAULT_ENUM(name, text) FAULT_KIND_##name,
        FAULT_KINDS(FAULT_ENUM)
#undef FAULT_ENUM
            FAULT_COUNT
};

/* It has been reached. True: the call is to fail. */
bool fault_at(enum fault_point point);
/* "PROCESS:POINT<tab>what", then kinds as ":KIND<tab>which calls", a line each. */
void fault_list(FILE *to);

#define FAULT_POINT(process, part, moment) ((void)fault_at(FAULT_##process##_##part##_##moment))
#define FAULT_FAILS(kind)                  fault_at(FAULT_KIND_##kind)

#else

#define FAULT_POINT(process, part, moment) ((void)0)
#define FAULT_FAILS(kind)                  false

#endif
