/*
 * tests/csd_agent/fixture.h - what the agent's tests share: random numbers, a folder that goes
 * away, and a model of the cold pool in plain arrays, which is the oracle: it knows neither pages
 * nor stripes' places nor batches.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "csd_agent/cold_pool.h"

#define MAX_COMMAND_SLOTS 600u

#define FIRST_OPENCL_DEVICE "0" /* as the device of a drive: without a name the host's CPU scores */

/* ---- random numbers (splitmix64) ---- */

void random_seed(uint64_t fixed);

uint32_t random_below(uint32_t n);

void random_bytes(void *memory, size_t n);

/* Mantissas as kv_digest_* makes them: -127 .. 127, now and then all at an end of the range. */
void random_mantissas(int8_t *m, size_t n);

/* A query with offsets, as records have it (kv_query_put); and let go. */
struct kv_query random_query(const struct kv_geometry *g, uint32_t importance);
void free_query(struct kv_query *query);

/* A key's, of the geometry's precision. */
void random_keys(const struct kv_geometry *g, int8_t *m);

/* Groups of digests as the scorer makes them, of FP16 keys of any bits; each group's keys are below
 * another power of two. */
void random_digests(const struct kv_geometry *g, uint8_t *groups, uint32_t n_groups);

/* ---- a folder ---- */

/* Its path, of make_folder until remove_folder. */
extern char folder[64];

int make_folder(void **state);

/* On tmpfs; where there is none the test has no folder, and skips itself. */
int make_memory_folder(void **state);
void skip_without_folder(void);

int remove_folder(void **state);

const char *pool_path(void);

const char *pool_url(void);

/* ---- the oracle ---- */

enum slot_state { SLOT_FREE, SLOT_WRITTEN, SLOT_COMMITTED };

struct model_slot {
    enum slot_state state;
    uint32_t position;
};

struct model_stripe {
    bool claimed;
    uint32_t sequence, layer, order;
};

struct model {
    struct kv_geometry g;
    uint32_t stripe_slots, n_stripes, n_sequences;
    struct model_slot *slots;
    struct model_stripe *stripes;
    int8_t *mantissas;
    uint8_t *exponents, *entries;
    uint32_t next_position;
};

void model_init(struct model *m, const struct pool_layout *layout, uint32_t n_sequences);

void model_free(struct model *m);

uint32_t model_committed(const struct model *m, uint32_t sequence, uint32_t layer);

/* Words of AGENT_QUERY, drawn: does the host score the slot? And how many committed slots of
 * (sequence, layer) it does. */
#define HOST_WORDS_MAX 3u
uint32_t random_host(uint64_t words[HOST_WORDS_MAX]);
bool model_host_has(const struct model *m, const uint64_t *words, uint32_t n_words, uint32_t slot);
uint32_t model_host_committed(const struct model *m, uint32_t sequence, uint32_t layer,
                              const uint64_t *words, uint32_t n_words);

/* A stripe of (sequence, layer) to write to: the one of the highest order, or a new one when
 * `fresh`. */
uint32_t model_stripe_for(struct model *m, uint32_t sequence, uint32_t layer, bool fresh);

/* Fill n slots with new random data; they become written. */
void model_write(struct model *m, uint32_t first, uint32_t n);

void model_trim(struct model *m, uint32_t sequence);

/* The groups that a demote of these slots carries, lanes that are not theirs filled with noise;
 * free it. */
uint8_t *model_groups(const struct model *m, uint32_t first, uint32_t n);

uint16_t model_score(const struct model *m, const struct kv_query *query, uint32_t slot);
