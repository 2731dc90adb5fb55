/* cpu_scorer/scoring.c - see scoring.h. */
#include "cpu_scorer/scoring.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "kv/plan.h"

#define CHUNK_BLOCKS                                                                               \
    16u /* 1024 tokens: a few microseconds of work, so that threads finish together */

struct score_pool {
    kv_score_fn *score;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* a job began, or stop */
    pthread_cond_t ended; /* a job ended */
    /* under lock */
    struct score_job job;
    uint64_t serial; /* of the job; a thread works on each serial once */
    uint32_t busy;   /* threads inside the job */
    bool running, stop;
    struct shm_doorbell *bell;
    int64_t started_ns, last_ns;
    /* next block to take; relaxed everywhere: the lock orders the job, this only hands out numbers
     */
    _Atomic uint32_t next;
    uint32_t n_threads;
    pthread_t threads[];
};

static void score_chunk(kv_score_fn *score, const struct score_job *job, uint32_t first)
{
    uint64_t dims = kv_key_dims(job->geometry), heads = job->geometry->n_kv_heads;
    uint32_t end = first + CHUNK_BLOCKS < job->n_blocks ? first + CHUNK_BLOCKS : job->n_blocks;
    for (uint32_t i = first; i < end; i++) {
        uint64_t slot = (uint64_t)job->blocks[i] * KV_HOT_BLOCK_TOKENS;
        score(job->geometry, &job->query, job->mantissas + slot * dims,
              job->exponents + slot * heads, KV_HOT_BLOCK_TOKENS,
              job->scores + (uint64_t)i * KV_HOT_BLOCK_TOKENS);
    }
}

static void work_on_job(struct score_pool *pool, const struct score_job *job)
{
    for (;;) {
        uint32_t first = atomic_fetch_add_explicit(&pool->next, CHUNK_BLOCKS,
                                                   memory_order_relaxed /* see the struct */);
        if (first >= job->n_blocks)
            return;
        score_chunk(pool->score, job, first);
    }
}

/* Under the lock: a thread has no more to do for the job. */
static void leave_job(struct score_pool *pool)
{
    pool->busy--;
    /* relaxed: see the struct */
    if (pool->busy || !pool->running ||
        atomic_load_explicit(&pool->next, memory_order_relaxed) < pool->job.n_blocks)
        return;
    pool->running = false;
    pool->last_ns = clock_now_ns() - pool->started_ns;
    pthread_cond_broadcast(&pool->ended);
    if (pool->bell)
        shm_doorbell_ring(pool->bell);
}

static void *thread_main(void *arg)
{
    struct score_pool *pool = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && (!pool->running || pool->serial == seen))
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop)
            break;
        struct score_job job = pool->job;
        seen = pool->serial;
        pool->busy++;
        pthread_mutex_unlock(&pool->lock);
        work_on_job(pool, &job);
        pthread_mutex_lock(&pool->lock);
        leave_job(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int score_pool_create(struct score_pool **out, uint32_t n_threads, kv_score_fn *score)
{
    if (!n_threads)
        n_threads = 1;
    struct score_pool *pool = calloc(1, sizeof *pool + n_threads * sizeof pool->threads[0]);
    *out = NULL;
    if (!pool)
        return HILL_E_NOMEM;
    pool->score = score;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->ended, NULL);
    for (; pool->n_threads < n_threads; pool->n_threads++) {
        char name[16]; /* what ps -L, top -H and perf show */
        if (pthread_create(&pool->threads[pool->n_threads], NULL, thread_main, pool)) {
            score_pool_destroy(pool);
            return HILL_E_IO;
        }
        snprintf(name, sizeof name, "score/%u", pool->n_threads % 1000);
        pthread_setname_np(pool->threads[pool->n_threads], name);
    }
    *out = pool;
    return 0;
}

void score_pool_destroy(struct score_pool *pool)
{
    if (!pool)
        return;
    score_pool_wait(pool);
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void score_pool_start(struct score_pool *pool, const struct score_job *job,
                      struct shm_doorbell *bell)
{
    int64_t now = clock_now_ns();
    if (job->n_blocks <= CHUNK_BLOCKS) {
        score_chunk(pool->score, job, 0);
        pool->last_ns = clock_now_ns() - now; /* no job runs: this thread alone touches it */
        if (bell)
            shm_doorbell_ring(bell);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->job = *job;
    pool->serial++;
    pool->running = true;
    pool->bell = bell;
    pool->started_ns = now;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed /* see the struct */);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

bool score_pool_done(struct score_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    bool done = !pool->running;
    pthread_mutex_unlock(&pool->lock);
    return done;
}

void score_pool_wait(struct score_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->running)
        pthread_cond_wait(&pool->ended, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int64_t score_pool_last_ns(const struct score_pool *pool)
{
    return pool->last_ns;
}
