/* cpu_scorer/scoring.c - see scoring.h. */
#include "cpu_scorer/scoring.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kv/plan.h"

/* A chunk is a share of what is left: long ones first, because memory is read fastest in long runs,
 * short ones last, so that threads finish together. */
#define CHUNK_LEAST 4u /* blocks or entries: some microseconds of work */
#define CHUNK_MOST  64u
#define CHUNK_SHARE 8u
/* What a helper is woken for: a thread that sleeps needs as long to wake up as one core needs for
 * about this many digest bytes, or for copying so many */
#define SCORE_PER_THREAD (1u << 20)
#define COPY_PER_THREAD  (1u << 18)
#define PAGE             4096u
#define LINE             64u
#define SHORT_RUN_BYTES  (1u << 18) /* what is read ahead stays in the cache beside so much */
#define AHEAD_BYTES      4096u
#define LINGER_NS        200000 /* from the scores of a query to its copies it is less */
#define WATCH_NS         30000  /* a chunk takes some microseconds */
#define LINGER_LOOKS     16     /* between looks at the clock */

struct pool_job {
    bool copies;
    uint32_t n; /* blocks or copies */
    struct score_job score;
    struct copy_job copy;
    struct work_job work; /* run NULL: it is scores or copies */
};

struct score_pool {
    kv_score_fn *score;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* a job began, or stop */
    pthread_cond_t ended; /* a helper finished a job */
    /* under lock */
    struct pool_job job;
    uint32_t serial; /* of the job; a helper looks at each serial once */
    bool stop;
    struct shm_doorbell *bell;
    /* the caller's alone */
    int64_t started_ns;
    cpu_set_t allowed; /* CPUs of the thread that made the pool; none: unknown, or only one */
    int beside;        /* the CPU that helpers are kept off, -1: none yet */
    /* serial << 32 | next item to take. A helper that comes late, with a job that is over, sees by
     * the serial that these are no items of its job. Relaxed: it only hands out numbers; what a
     * helper reads of the job it has from under the lock. */
    _Atomic uint64_t next;
    /* Items that are not done yet. Decrements release what the chunk wrote, the caller's acquire
     * load of 0 sees it all. */
    _Atomic uint32_t left;
    /* when a chunk was last finished; relaxed: ordered by `left` */
    _Atomic int64_t ended_ns;
    uint32_t n_helpers;
    pthread_t helpers[];
};

/* How many of n blocks follow one another in memory. */
static uint32_t run_length(const uint32_t *blocks, uint32_t n)
{
    uint32_t run = 1;
    while (run < n && blocks[run] == blocks[0] + run)
        run++;
    return run;
}

/* Blocks that follow one another in memory are one call: the kernels and the hardware's prefetchers
 * like long runs. They need some time to notice where a run goes on: a short run's successor is
 * begun beforehand. */
static void score_chunk(kv_score_fn *score, const struct score_job *job, uint32_t first,
                        uint32_t end)
{
    uint64_t block_bytes = (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(job->geometry);
    for (uint32_t run; first < end; first += run) {
        run = run_length(job->blocks + first, end - first);
        if (first + run < end && run * block_bytes <= SHORT_RUN_BYTES) {
            const uint8_t *next = job->digests + job->blocks[first + run] * block_bytes;
            for (uint32_t at = 0; at < AHEAD_BYTES && at < block_bytes; at += LINE)
                __builtin_prefetch(next + at, 0, 2);
        }
        score(job->geometry, &job->query, job->digests + job->blocks[first] * block_bytes,
              run * KV_HOT_BLOCK_TOKENS, job->scores + (uint64_t)first * KV_HOT_BLOCK_TOKENS);
    }
}

/* An entry lies by itself: the address of the next one's pages is looked up while one is copied. */
static void copy_chunk(const struct copy_job *job, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        const uint8_t *next = job->items[i + 1 < end ? i + 1 : i].from;
        for (uint32_t at = 0; at < job->bytes; at += PAGE)
            __builtin_prefetch(next + at);
        __builtin_prefetch(next + job->bytes - 1);
        memcpy(job->items[i].to, job->items[i].from, job->bytes);
    }
}

/* The next chunk of job `serial`, items *first to *end; false when there is none. */
static bool take_chunk(struct score_pool *pool, uint32_t serial, uint32_t n_items, uint32_t *first,
                       uint32_t *end)
{
    uint64_t next = atomic_load_explicit(&pool->next, memory_order_relaxed /* see the struct */);
    do {
        *first = (uint32_t)next;
        if (next >> 32 != serial || *first >= n_items)
            return false;
        uint32_t left = n_items - *first, n = left / CHUNK_SHARE;
        n = n > CHUNK_MOST ? CHUNK_MOST : n < CHUNK_LEAST ? CHUNK_LEAST : n;
        *end = *first + (n < left ? n : left);
    } while (!atomic_compare_exchange_weak_explicit(
        &pool->next, &next, (uint64_t)serial << 32 | *end,
        memory_order_relaxed /* see the struct */, memory_order_relaxed));
    return true;
}

/* Do the next chunk: -1 there is none, 0 others are left, 1 it was the job's last. */
static int work_on(struct score_pool *pool, const struct pool_job *job, uint32_t serial)
{
    uint32_t first, end;
    if (!take_chunk(pool, serial, job->n, &first, &end))
        return -1;
    if (job->work.run)
        job->work.run(job->work.context, first, end);
    else if (job->copies)
        copy_chunk(&job->copy, first, end);
    else
        score_chunk(pool->score, &job->score, first, end);
    atomic_store_explicit(&pool->ended_ns, clock_now_ns(),
                          memory_order_relaxed /* see the struct */);
    /* release: pairs with the acquire in score_pool_done; acquire: who finishes last has all
     * others' chunks behind it */
    return atomic_fetch_sub_explicit(&pool->left, end - first, memory_order_acq_rel) == end - first;
}

/* The job is done, and its caller may be asleep. */
static void tell_end(struct score_pool *pool, struct shm_doorbell *bell)
{
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    if (bell)
        shm_doorbell_ring(bell);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Look out for a job after job `seen`, for a short time. Others that want this CPU get it. */
static void linger(struct score_pool *pool, uint32_t seen)
{
    int64_t until = clock_now_ns() + LINGER_NS;
    do {
        for (int i = 0; i < LINGER_LOOKS; i++) {
            /* relaxed: the job itself is read under the lock */
            if (atomic_load_explicit(&pool->next, memory_order_relaxed) >> 32 != seen)
                return;
            relax();
        }
        sched_yield();
    } while (clock_now_ns() < until);
}

static void *helper_main(void *arg)
{
    struct score_pool *pool = arg;
    uint32_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->serial == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop)
            break;
        struct pool_job job = pool->job;
        struct shm_doorbell *bell = pool->bell;
        int rc;
        seen = pool->serial;
        pthread_mutex_unlock(&pool->lock);
        while ((rc = work_on(pool, &job, seen)) == 0)
            ;
        if (rc > 0)
            tell_end(pool, bell);
        if (!job.copies && job.score.copies_follow)
            linger(pool, seen);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* It is held for some ten instructions at a time: worth spinning for. */
static void init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

int score_pool_create(struct score_pool **out, uint32_t n_threads, kv_score_fn *score)
{
    uint32_t n_helpers = n_threads ? n_threads - 1 : 0;
    struct score_pool *pool = calloc(1, sizeof *pool + n_helpers * sizeof pool->helpers[0]);
    *out = NULL;
    if (!pool)
        return HILL_E_NOMEM;
    pool->score = score;
    pool->beside = -1;
    if (sched_getaffinity(0, sizeof pool->allowed, &pool->allowed) != 0 ||
        CPU_COUNT(&pool->allowed) < 2)
        CPU_ZERO(&pool->allowed);
    init_lock(&pool->lock);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->ended, NULL);
    for (; pool->n_helpers < n_helpers; pool->n_helpers++) {
        char name[16]; /* what ps -L, top -H and perf show */
        if (pthread_create(&pool->helpers[pool->n_helpers], NULL, helper_main, pool)) {
            score_pool_destroy(pool);
            return HILL_E_IO;
        }
        snprintf(name, sizeof name, "score/%u", pool->n_helpers % 1000);
        pthread_setname_np(pool->helpers[pool->n_helpers], name);
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
    for (uint32_t i = 0; i < pool->n_helpers; i++)
        pthread_join(pool->helpers[i], NULL);
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* A helper that wakes up where the caller works would only wait for it, and the kernel often puts
 * it there when other processes keep the other CPUs busy. The caller seldom moves, so this is
 * seldom more than asking where it is. */
static void keep_helpers_beside(struct score_pool *pool)
{
    int here = sched_getcpu();
    if (here < 0 || here == pool->beside || !CPU_ISSET(here, &pool->allowed))
        return;
    cpu_set_t others = pool->allowed;
    CPU_CLR(here, &others);
    for (uint32_t i = 0; i < pool->n_helpers; i++)
        pthread_setaffinity_np(pool->helpers[i], sizeof others, &others); /* refused: slower */
    pool->beside = here;
}

static void start(struct score_pool *pool, const struct pool_job *job, uint64_t helpers,
                  struct shm_doorbell *bell)
{
    pool->started_ns = clock_now_ns();
    if (helpers > 0)
        keep_helpers_beside(pool);
    pthread_mutex_lock(&pool->lock);
    pool->job = *job;
    pool->serial++;
    pool->bell = bell;
    /* relaxed, all three: helpers get here through the lock */
    atomic_store_explicit(&pool->ended_ns, pool->started_ns, memory_order_relaxed);
    atomic_store_explicit(&pool->left, job->n, memory_order_relaxed);
    atomic_store_explicit(&pool->next, (uint64_t)pool->serial << 32, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_helpers && i < helpers; i++)
        pthread_cond_signal(&pool->work); /* unlocked: who wakes up wants the lock */
}

void score_pool_start(struct score_pool *pool, const struct score_job *job,
                      struct shm_doorbell *bell)
{
    struct pool_job all = {.n = job->n_blocks, .score = *job};
    uint64_t tokens = (uint64_t)job->n_blocks * KV_HOT_BLOCK_TOKENS;
    start(pool, &all, tokens * kv_digest_bytes(job->geometry) / SCORE_PER_THREAD, bell);
}

void score_pool_start_copy(struct score_pool *pool, const struct copy_job *job,
                           struct shm_doorbell *bell)
{
    struct pool_job all = {.copies = true, .n = job->n, .copy = *job};
    start(pool, &all, (uint64_t)job->n * job->bytes / COPY_PER_THREAD, bell);
}

void score_pool_start_work(struct score_pool *pool, const struct work_job *job,
                           struct shm_doorbell *bell)
{
    struct pool_job all = {.n = job->n, .work = *job};
    start(pool, &all, job->bytes / COPY_PER_THREAD, bell);
}

bool score_pool_work(struct score_pool *pool)
{
    /* job and serial without the lock: only this thread writes them */
    return work_on(pool, &pool->job, pool->serial) >= 0;
}

bool score_pool_done(struct score_pool *pool)
{
    /* acquire: pairs with the release of each chunk */
    return atomic_load_explicit(&pool->left, memory_order_acquire) == 0;
}

/* Helpers' last chunks take less than going to sleep and being woken does. */
static void watch_end(struct score_pool *pool)
{
    int64_t until = clock_now_ns() + WATCH_NS;
    do {
        for (int i = 0; i < LINGER_LOOKS; i++) {
            if (score_pool_done(pool))
                return;
            relax();
        }
    } while (clock_now_ns() < until);
}

void score_pool_wait(struct score_pool *pool)
{
    while (score_pool_work(pool))
        ;
    watch_end(pool);
    pthread_mutex_lock(&pool->lock);
    while (!score_pool_done(pool))
        pthread_cond_wait(&pool->ended, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int64_t score_pool_last_ns(const struct score_pool *pool)
{
    return atomic_load_explicit(&pool->ended_ns, memory_order_relaxed /* see the struct */) -
           pool->started_ns;
}
