/*
 * cpu_scorer/epoch.h - one epoch of the data plane: this party entered, scorer made.
 *
 * What: turns a Configure message into a running scorer, and takes it down again. The scorer lays
 * out rings and staging for everybody and owns the hot segment. Who calls it: main.c, one at a
 * time. Failure: every number of the message is checked against the segments that are really there;
 * the reason is in why, and nothing stays attached.
 */
#pragma once

#include "cpu_scorer/scorer.h"
#include "proto/party.h"
#include "recording/recording.h"

struct epoch {
    struct epoch_settings settings; /* its texts are the message's */
    struct party party;
    struct scorer *scorer;
    struct trace_writer *trace;  /* NULL: none */
    struct recording *recording; /* of the rings; NULL: none */
};

/* The scorer's part of the settings, and what the cold pool will be. */
int epoch_config(struct scorer_config *out, const struct epoch_settings *s, struct hill_why *why);

/* The memory and rings of the scorer's party, without a KV trace. */
struct scorer_io epoch_io(struct party *party);

/* c outlives the epoch. */
int epoch_open(struct epoch *e, const Hill__Configure *c, const struct scorer_hooks *hooks,
               struct hill_why *why);
/* Safe on a zeroed struct. */
void epoch_close(struct epoch *e);

/* Bytes of M_0 that this process holds: hot segment, staging, private buffers. */
uint64_t epoch_resident_bytes(const struct epoch *e);
