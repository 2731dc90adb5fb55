/*
 * tests/cpu_scorer/rig_agent.h - the fake agent of pipeline_rig.h, and the sizes of its world.
 *
 * It keeps its own memory and scores with kv_score_reference; it takes background records late and
 * answers DEMOTEs out of order, as a real one may. It runs in a thread of its own.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <unistd.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/log.h"
#include "cpu_scorer/hkm.h"
#include "cpu_scorer/scorer.h"
#include "kv/plane.h"
#include "kv/select.h"
#include "proto/records.h"

enum {
    RIG_LAYERS = 3,
    RIG_CTX = 900,
    RIG_DIMS = 32,
    RIG_ENTRY = 128,
    RIG_GROUP_BYTES = 64 + 16 * RIG_DIMS, /* digests of 16 tokens: kv_group_bytes */
    RIG_GROUPS = (RIG_CTX + 15) / 16,
    RIG_SEQUENCES = 2, /* where a test does not ask for more */
    RIG_SEQUENCES_MAX = 4,
    RIG_SPANS = 4096,
    RIG_DRIVES = 3,
    RIG_STRIPE = 256,
    RIG_STRIPES = 30,
    RIG_FETCH_NS = 12, /* that a FETCH takes for an entry, as its completion says */
    RIG_EPOCH = 7,
    RIG_SOON = 4000, /* ms; a thread of a loaded machine seldom waits so long for a processor */
    RIG_GPU_SLOTS = RIG_CTX,
    RIG_STAGING = RIG_SEQUENCES_MAX * (RIG_CTX + 64) /* a selection and moves of each */
};

static const struct kv_geometry rig_geometry = {RIG_LAYERS, 4, 2, 16};

/* ---- the fake agent ----------------------------------------------------------------------- */

/* What an agent says of a query that is not so. */
enum rig_lie {
    RIG_TRUE,
    RIG_SCORES_TWICE,   /* a slot */
    RIG_SCORES_FOREIGN, /* slots of a stripe that is nobody's */
    RIG_SCORES_FEWER,   /* than it says in its completion */
    RIG_COUNTS_FEWER,
};

struct rig_slot {
    bool written, committed;
    bool spoilt; /* its checksum is wrong: an ADOPT finds it */
    uint32_t sequence, layer, position;
    uint8_t entry[RIG_ENTRY];
    int8_t mantissas[RIG_DIMS];
    uint8_t exponents[2];
};

/* What the drive was at: a query or a FETCH, from its command to its answer, in a clock that counts
 * both. */
struct rig_span {
    uint32_t command, sequence, layer, step;
    uint64_t began, ended;
};

struct rig_agent {
    struct shm_ring_end ends[RING_COUNT];
    struct shm_doorbell *bell, *scorer; /* its own; the scorer's */
    struct shm_arena staging;           /* a view */
    uint8_t *windows;                   /* of keys */
    uint32_t window_bytes, key_bytes;
    struct rig_slot slots[RIG_STRIPE * RIG_STRIPES];
    uint32_t orders[RIG_STRIPES];     /* of stripes, within their (sequence, layer) */
    struct record_completion late[8]; /* DEMOTE completions held back */
    uint32_t n_late;
    struct rig_span spans[RIG_SPANS]; /* the first so many; the test reads them between requests */
    uint32_t n_spans, n_queries, open_query; /* open_query: its span; RIG_SPANS: none */
    uint64_t clock;
    struct record_completion query_done;                  /* of open_query */
    struct record_completion gathered[RIG_SEQUENCES_MAX]; /* of queries */
    uint32_t n_gathered;
    uint32_t n_fetches, n_fetched_rows; /* commands, rows in them */
    uint32_t damaged_rows;              /* of one that had the damaged entry, the most */
    uint64_t random;
    _Atomic uint32_t not_scored; /* tokens that AGENT_QUERY left to the host */
    _Atomic uint32_t reused;     /* slots of copies that were written anew */
    _Atomic uint32_t reads;      /* READ_KEYS that were answered */
    _Atomic uint32_t adopts;     /* ADOPTs */
    _Atomic uint32_t trims;
    _Atomic uint32_t importance; /* of the newest query */
    _Atomic bool at_rest;        /* it has nothing to do and sleeps, or is about to */
    /* hooks; set before the run or between requests */
    _Atomic uint32_t wrong_score_position, damaged_position; /* UINT32_MAX: none */
    _Atomic bool silent, leak, stop;
    _Atomic bool offline;     /* its disk is: FETCHes say HILL_E_NODEV */
    _Atomic bool bad_release; /* the next RELEASE is refused */
    _Atomic bool slow;        /* it answers no DEMOTE and no TRIM; everything else at once */
    _Atomic bool gathers;     /* it answers queries, all at once, when the scorer sleeps */
    _Atomic bool twice;       /* it answers each TRIM twice */
    _Atomic uint32_t lie;     /* enum rig_lie: of the next query that it scores slots for */
    bool keeps;               /* what is written was so in an earlier epoch (rig_give_slots) */
    uint32_t claims;          /* an ADOPT that finds nothing damaged names this position; 0: none */
    /* It is done with a query when it has the next one, but for every so many-th; 0: at once */
    _Atomic uint32_t rows;
};

/* A random number below that, from the generator's state. */
uint32_t rig_random(uint64_t *state, uint32_t below);

/* The agent's thread; arg is its struct rig_agent. Ends once stop is set. */
void *rig_agent_main(void *arg);
