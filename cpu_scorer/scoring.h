/*
 * cpu_scorer/scoring.h - a pool of threads that scores the hot blocks of one query.
 *
 * What: the data thread starts a job (a query and a list of blocks) and goes on draining the
 * agent's rings; the threads take chunks of blocks; the last one rings the data thread's doorbell.
 * Scores land in scores[i * 64 + slot] for blocks[i]. A job of one chunk is scored by the caller at
 * once: waking a thread would cost more. Concurrency: start, done and wait by one thread; between
 * start and done nobody writes the digests. Threads sleep on a condition variable while there is no
 * job. Failure: HILL_E_NOMEM, HILL_E_IO (no threads) at create.
 */
#ifndef HILL_CPU_SCORER_SCORING_H
#define HILL_CPU_SCORER_SCORING_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/score.h"
#include "shm/doorbell.h"

struct score_pool;

struct score_job {
    const struct kv_geometry *geometry;
    struct kv_query query;
    const int8_t *mantissas;  /* plane of all blocks [blocks][64][key dims] */
    const uint8_t *exponents; /* plane of all blocks [blocks][64][n_kv_heads] */
    const uint32_t *blocks;   /* [n_blocks], valid until the job is done */
    uint32_t n_blocks;
    uint16_t *scores; /* [n_blocks][64], written by the threads */
};

int score_pool_create(struct score_pool **out, uint32_t n_threads, kv_score_fn *score);
/* Finishes a running job first. NULL allowed. */
void score_pool_destroy(struct score_pool *pool);

/* Start a job (the former one must be done). bell is rung once when it is done. */
void score_pool_start(struct score_pool *pool, const struct score_job *job,
                      struct shm_doorbell *bell);

/* Is the last job done? Its scores are then visible to the caller. */
bool score_pool_done(struct score_pool *pool);

/* Block until it is: bounded by the job's own length, for teardown. */
void score_pool_wait(struct score_pool *pool);

/* Wall time of the last job, ns. */
int64_t score_pool_last_ns(const struct score_pool *pool);

#endif
