/*
 * cpu_scorer/scoring.h - a pool of threads for the two long parts of a query: scoring the hot
 * blocks, and copying the chosen entries into staging.
 *
 * What: the data thread starts a job (a query and a list of blocks; or a list of copies) and takes
 * chunks of it itself, one at a time, so that it can drain the agent's rings in between; helpers,
 * one fewer than the pool's threads, take chunks beside it. Only as many are woken as the job is
 * worth: a small job is over before a sleeper is awake. A helper that finishes the last chunk rings
 * the data thread's doorbell. Scores land in scores[i * 64 + slot] for blocks[i]. Concurrency:
 * start, work, done and wait by one thread; between start and done nobody writes what the job
 * reads. After a job helpers look out for the next one for a while (base/in_line.h), then they
 * sleep on a condition variable.
 * Failure: HILL_E_NOMEM, HILL_E_IO (no threads) at create.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/score.h"
#include "cpu_scorer/topology.h"
#include "shm/doorbell.h"

struct score_pool;

struct score_job {
    const struct kv_geometry *geometry;
    struct kv_query query;
    const uint8_t *digests; /* of all blocks [blocks][4] groups (kv/group.h) */
    const uint32_t *blocks; /* [n_blocks], valid until the job is done */
    uint32_t n_blocks;
    uint16_t *scores; /* [n_blocks][64], written by the threads */
};

struct copy_item {
    void *to;
    const void *from;
};

struct copy_job {
    const struct copy_item *items; /* [n], valid until the job is done; no two overlap */
    uint32_t n, bytes;             /* of each item */
};

/* Any other work that falls into n items, none of which needs another's result. */
struct work_job {
    void (*run)(void *context, uint32_t first, uint32_t end);
    void *context;
    uint32_t n;
    uint64_t bytes; /* that are read: what helpers are woken for */
};

/* n_threads: the caller (thread 0, of node 0's group) and its helpers, each bound to its group's
 * node; 0 is 1. topology: NULL is one node. On several, a group scores the blocks of its node
 * first, and then what other groups have left. */
int score_pool_create(struct score_pool **out, uint32_t n_threads, kv_score_fn *score,
                      const struct topology *topology);
/* Finishes a running job first. NULL allowed. */
void score_pool_destroy(struct score_pool *pool);

/* A scoring job that reads `bytes` comes within some ten microseconds: wake the helpers that it is
 * worth. A thread that sleeps needs as long to wake up as the query takes to be ready. While a job
 * runs nothing is done. */
void score_pool_expect(struct score_pool *pool, uint64_t bytes);

/* Start a job (the former one must be done). bell (NULL: none) is rung when a helper does its last
 * chunk. */
void score_pool_start(struct score_pool *pool, const struct score_job *job,
                      struct shm_doorbell *bell);

/* The same for copies. */
void score_pool_start_copy(struct score_pool *pool, const struct copy_job *job,
                           struct shm_doorbell *bell);

void score_pool_start_work(struct score_pool *pool, const struct work_job *job,
                           struct shm_doorbell *bell);

/* Do one chunk; false when none is left to take. The job may then still be in helpers' hands. */
bool score_pool_work(struct score_pool *pool);

/* Is the last job done? What its threads wrote is then visible to the caller. */
bool score_pool_done(struct score_pool *pool);

/* Work and block until it is: bounded by the job's own length. */
void score_pool_wait(struct score_pool *pool);

/* From the last job's start to its last chunk's end, ns. */
int64_t score_pool_last_ns(const struct score_pool *pool);

/* What all threads together have taken so far for scores and other work, ns: not for copies. Of
 * jobs that are done. */
int64_t score_pool_worked_ns(const struct score_pool *pool);
/* Bytes that they have read meanwhile: whole blocks of digests, and what a work_job says it reads.
 */
uint64_t score_pool_read_bytes(const struct score_pool *pool);
