/*
 * csd_agent/held_output.h - records that are ready but not due yet, on their way to the output
 * rings.
 *
 * What: under a device model the real work is done at once and its answer leaves at the modelled
 * time. Three streams, each in order: what a query sends, what the other commands send, what
 * background work sends; a stream never waits for another. Records leave in the order of their
 * times, those of one time in the order in which they came. Who calls it: command_output.c, which
 * gives a TRIM's answer the latest time of all that came before it, whatever its stream;
 * score_blocks.c, commands.c. Concurrency: one thread. Failure: none but memory; held_create
 * answers NULL.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define HELD_BYTES_MAX (16u << 20) /* the scores of 4 M tokens; above it new ones wait for room */

enum held_stream { HELD_QUERY, HELD_COMMAND, HELD_BACKGROUND, HELD_STREAMS };

struct held_record {
    struct held_record *next;
    int64_t due_ns, start_ns; /* start: of the command that it completes */
    uint64_t order;
    uint32_t type, bytes; /* a ring's record */
    uint32_t room;        /* of the payload */
    _Alignas(16) uint8_t payload[];
};

struct held_output {
    struct {
        struct held_record *first, *last;
    } streams[HELD_STREAMS];
    uint64_t next_order, bytes; /* of all payloads */
    int64_t read_done_ns;       /* when a query, FETCH or READ_KEYS was last answered */
};

/* A record of its own with room for `room` bytes; NULL without memory. Free it, or add it. */
struct held_record *held_create(uint32_t room);

/* To the end of its stream; not before what the stream has. The record is taken over. */
void held_add(struct held_output *held, enum held_stream stream, struct held_record *record,
              int64_t due_ns);

/* The latest time of all records; INT64_MIN: none are held. */
int64_t held_last_ns(const struct held_output *held);

/* When the next one is due; INT64_MAX: none. */
int64_t held_next_ns(const struct held_output *held);

/* Take out the next one that is due at `now`, to be freed; NULL: none. */
struct held_record *held_take(struct held_output *held, int64_t now);

/* Free what is held. Safe on a zeroed struct. */
void held_finish(struct held_output *held);
