/*
 * tests/csd_agent/commands_scene.h - the agent's command loop in a thread of its own, the test as
 * scorer at the other end of real rings; shared by the tests of commands.c.
 */
#pragma once

#include "tests/csd_agent/fixture.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "csd_agent/commands.h"
#include "kv/plane.h"

#define EPOCH           7u
#define STAGING_SLOTS   64u
#define SCORE_CAPACITY  1024u
#define INPUT_CAPACITY  (1u << 20)
#define ANSWER_CAPACITY 1024u

enum { COMMAND, BACKGROUND, SCORE, COMPLETION, RINGS };

static const uint32_t capacities[RINGS] = {INPUT_CAPACITY, INPUT_CAPACITY, SCORE_CAPACITY,
                                           ANSWER_CAPACITY};

struct scene {
    struct data_plane plane;
    struct model m;
    void *ring_memory[RINGS], *arena_memory, *windows;
    struct shm_ring_end ends[RINGS], agent_ends[RINGS]; /* the scorer's, the agent's */
    struct shm_doorbell agent_bell, scorer_bell;
    struct shm_arena staging, agent_staging;
    pthread_t thread;
    _Atomic bool stop;
    int ended; /* with what the loop ended */
    uint64_t next_tag;
};

/* ---- the agent's thread ---- */

void *agent_main(void *context);

void scene_start(struct scene *s);

/* What scores in the scenes to come, as --csd-device; NULL: what does without. */
extern const char *scene_device;

/* Without its thread: the plane is the caller's to change. key_bytes: of a pool of keys; 0: of
 * digests. bits: of a digest's mantissas. n_heads: of queries; there are 2 KV heads. */
void scene_prepare_as(struct scene *s, uint32_t wrong_position, uint32_t key_bytes, uint32_t bits,
                      uint32_t n_heads);

/* Digests of 8 bits, 4 query heads. */
void scene_prepare_keys(struct scene *s, uint32_t wrong_position, uint32_t key_bytes);

void scene_prepare(struct scene *s, uint32_t wrong_position);

/* For READ_KEYS; a scene of keys has them. */
void scene_add_windows(struct scene *s);

void scene_open(struct scene *s, uint32_t wrong_position);

void scene_stop(struct scene *s);

void scene_close(struct scene *s);

/* ---- the scorer ---- */

struct record_header header(uint32_t sequence, uint32_t layer);

void push(struct scene *s, int ring, uint32_t type, const void *record, uint32_t bytes);

struct record_completion completion(struct scene *s);

struct record_completion expect(struct scene *s, uint64_t tag, uint32_t command, int status);

/* Write n new slots of a stripe; the completion is the caller's to await. */
uint64_t push_demote(struct scene *s, uint32_t first, uint32_t n);

struct prepared {
    void *bytes; /* free them */
    uint32_t n_bytes;
    uint64_t tag;
};

/* A DEMOTE of new data that names its slots, of one (sequence, layer), ascending. */
struct prepared prepare_scattered(struct scene *s, const uint32_t *slots, uint32_t n);

void release(struct scene *s, uint32_t sequence, uint32_t layer, const uint32_t *slots, uint32_t n);

void commit(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t n);

/* Demote and commit the next n slots of (sequence, layer). */
void grow(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t n);

void trim(struct scene *s, uint32_t sequence);

struct asked {
    struct record_agent_query record;
    uint8_t rest[1024]; /* the host's words, the query */
};

uint32_t push_query(struct scene *s, struct asked *q, uint32_t sequence, uint32_t layer,
                    uint32_t block_tokens);

/* The same of which the host scores a part. */
uint32_t push_query_part(struct scene *s, struct asked *q, uint32_t sequence, uint32_t layer,
                         uint32_t block_tokens, const uint64_t *host, uint32_t n_host_words);

/* Take Score Blocks until the query's completion is there; every committed slot is scored once,
 * rightly. */
struct record_completion collect(struct scene *s, const struct asked *q, uint32_t wrong_position);

struct record_completion query(struct scene *s, uint32_t sequence, uint32_t layer,
                               uint32_t block_tokens);

/* A FETCH of up to 16 entries; n_entries 0: there are none, and nothing was pushed. */
struct wanted {
    struct record_fetch record;
    struct fetch_item items[16];
    struct fetch_row row; /* behind 16 items */
};
void push_fetch(struct scene *s, struct wanted *w, uint32_t sequence, uint32_t layer);
/* Of two sequences, 8 of each, which there must be: a record with a row. */
void push_fetch_of_two(struct scene *s, struct wanted *w, uint32_t sequence, uint32_t other,
                       uint32_t layer);
struct record_completion collect_fetch(struct scene *s, const struct wanted *w);

/* Both; count 0: there are none. */
struct record_completion fetch_some(struct scene *s, uint32_t sequence, uint32_t layer);
