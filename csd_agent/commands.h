/*
 * csd_agent/commands.h - the agent's rings: takes commands, carries them out, answers each with a
 * COMPLETION.
 *
 * What: two input rings (command: urgent, ordered; background: demotes), two output rings (Score
 * Blocks, completions). A turn carries out at most one command, from the command ring when there is
 * one, so that a query waits for one demote record at most. A trim first carries out the demotes
 * that were pushed before it: else they would claim stripes of a sequence that is gone [I18].
 * When all that a query or fetch reads has been asked for, and the next command is one, too, its
 * reads begin: several commands' are on their way then, while each is answered in its turn.
 * Output rings that are full are waited for with the doorbell, in slices, with a deadline: nothing
 * is dropped, and the scorer drains its inputs whatever it waits for. Bad records: one of another
 * epoch is dropped and counted; one that record_check refuses, or that does not belong on its ring,
 * is counted, logged and, where its tag can be read, answered with HILL_E_PROTOCOL. None is fatal.
 * A record is copied out of its ring, checked and carried out as the copy: what lies in the ring
 * can be changed meanwhile by a process that maps it. Digests and entries of a DEMOTE, data of any
 * value, are read where they lie.
 * Under a device model (modelled_drive.h) a command is carried out at once and charged to the
 * modelled drive; what it answers is held (held_output.h) and sent when the drive would have had
 * it, by a later turn, while other commands are carried out. A demote is taken only when the
 * modelled flash is free, so that a query waits for one of them there, too. No wait burns CPU:
 * data_plane_next_ns says when to look again. Who calls it: agent.c; tests, with rings in private
 * memory. Concurrency: one thread. Failure: data_plane_turn answers with a negative code when the
 * rings cannot be used any more.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "csd_agent/cold_pool.h"
#include "csd_agent/modelled_drive.h"
#include "csd_agent/held_output.h"
#include "shm/arena.h"
#include "shm/ring.h"

#define OUTPUT_DEADLINE_MS 30000 /* the scorer has not drained a ring for so long: it hangs */

/* A record as it was when it was taken. Of a DEMOTE the place of its digests and entries is left
 * as it is. */
struct record_copy {
    uint8_t *record;
    uint32_t room, type, bytes; /* bytes 0: none */
};

struct data_plane {
    /* set by the owner before the first turn */
    struct kv_geometry geometry;
    uint32_t n_sequences, epoch;
    struct shm_ring_end *command, *background, *score, *completion; /* the owner's, open */
    struct shm_arena *staging;                                      /* the owner's view */
    struct cold_pool *pool;
    uint8_t *key_windows; /* [KV_KEY_WINDOWS][key_window_bytes]; NULL: none */
    uint32_t key_window_bytes;
    uint32_t wrong_position; /* test hook: this token scores 65535; COLD_NO_POSITION: none */
    bool (*stopping)(void *context); /* asked while waiting for an output ring */
    void *stopping_context;
    /* statistics */
    uint64_t commands, dropped, malformed;
    uint64_t read_ahead;         /* commands of which reads were begun while the one before ran */
    struct modelled_drive drive; /* counters: the owner may set them before the first turn */
    /* own */
    uint64_t held_max; /* payload bytes that may be held; 0: HELD_BYTES_MAX (tests: few) */
    struct held_output held;
    bool gated;                   /* background work waits for the modelled flash */
    struct drive_command *device; /* the command under way, as the modelled drive sees it */
    struct record_copy taken[2];  /* of the command ring and of the background ring */
    struct record_copy ahead;     /* whose reads have begun */
    const uint8_t *demoted;       /* the DEMOTE under way, in its ring */
    int lost;                     /* why the rings are of no use any more, or 0 */
};

/* The device model of the commands that start from now on. */
void data_plane_set_model(struct data_plane *plane, const struct csd_model *figures);

/* When a turn has something to do although no ring has changed: a record is due, or the modelled
 * flash is free again. INT64_MAX: not known to. */
int64_t data_plane_next_ns(const struct data_plane *plane);

/* Write one changed page of the pool's directory, as cold_pool_write_directory; 0 also while the
 * modelled flash is busy. */
int data_plane_write_directory(struct data_plane *plane, struct hill_why *why);

/* Send what is due and carry out one command: 1; nothing was there: 0. Negative: HILL_E_PEER_GONE,
 * HILL_E_DAMAGED, HILL_E_TIMEOUT (an output ring was not drained), HILL_E_CANCELLED (stopping). */
int data_plane_turn(struct data_plane *plane);

/* Drop what is held back; rings and pool are the caller's. Safe on a zeroed struct. */
void data_plane_close(struct data_plane *plane);
