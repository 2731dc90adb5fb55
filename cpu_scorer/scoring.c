/* cpu_scorer/scoring.c - see scoring.h. */
#include "cpu_scorer/scoring.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/in_line.h"
#include "base/relax.h"
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
#define LINGER_NS        200000 /* less passes between two jobs of a step, but for others' work */
#define WATCH_NS         30000  /* a chunk takes some microseconds */
#define LINGER_LOOKS     16     /* between looks at the clock */

/* Items of a job by group (NUMA node): group g has places first[g] .. first[g + 1] - 1 of order. */
struct pool_job {
    bool copies;
    uint32_t n;            /* blocks or copies */
    const uint32_t *order; /* items in their groups' order; NULL: one group, item i at place i */
    uint32_t n_groups, first[TOPOLOGY_NODES_MAX + 1];
    struct score_job score;
    struct copy_job copy;
    struct work_job work; /* run NULL: it is scores or copies */
};

struct helper {
    pthread_t thread;
    struct score_pool *pool;
    uint32_t group;
};

/* A cache line of its own: groups count at the same time. */
struct group {
    /* serial << 32 | next place to take. A helper that comes late, with a job that is over, sees by
     * the serial that these are no places of its job. Relaxed: it only hands out numbers; what a
     * helper reads of the job it has from under the lock. */
    _Alignas(64) _Atomic uint64_t next;
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
    struct topology topology;
    uint32_t *order; /* of the job, with several nodes */
    uint32_t order_room;
    struct group groups[TOPOLOGY_NODES_MAX];
    /* Items that are not done yet. Decrements release what the chunk wrote, the caller's acquire
     * load of 0 sees it all. */
    _Atomic uint32_t left;
    /* when a chunk was last finished; what all but copies took so far; relaxed: ordered by `left`
     */
    _Atomic int64_t ended_ns, worked_ns;
    _Atomic uint64_t read_bytes; /* as worked_ns */
    uint32_t n_helpers;
    struct helper helpers[];
};

static uint32_t item_at(const struct pool_job *job, uint32_t place)
{
    return job->order ? job->order[place] : place;
}

/* How many of the places from `place` to `end` hold blocks, and scores, that follow one another in
 * memory. */
static uint32_t run_length(const struct pool_job *job, uint32_t place, uint32_t end)
{
    uint32_t run = 1, item = item_at(job, place);
    const uint32_t *blocks = job->score.blocks;
    while (place + run < end && item_at(job, place + run) == item + run &&
           blocks[item + run] == blocks[item] + run)
        run++;
    return run;
}

/* Blocks that follow one another in memory are one call: the kernels and the hardware's prefetchers
 * like long runs. They need some time to notice where a run goes on: a short run's successor is
 * begun beforehand. */
static void score_chunk(kv_score_fn *score, const struct pool_job *all, uint32_t first,
                        uint32_t end)
{
    const struct score_job *job = &all->score;
    uint64_t block_bytes = (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(job->geometry);
    for (uint32_t run; first < end; first += run) {
        uint32_t item = item_at(all, first);
        run = run_length(all, first, end);
        if (first + run < end && run * block_bytes <= SHORT_RUN_BYTES) {
            const uint8_t *next =
                job->digests + job->blocks[item_at(all, first + run)] * block_bytes;
            for (uint32_t at = 0; at < AHEAD_BYTES && at < block_bytes; at += LINE)
                __builtin_prefetch(next + at, 0, 2);
        }
        score(job->geometry, &job->query, job->digests + job->blocks[item] * block_bytes,
              run * KV_HOT_BLOCK_TOKENS, job->scores + (uint64_t)item * KV_HOT_BLOCK_TOKENS);
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

/* The next chunk of a group of job `serial`, places *first to *end; false when there is none. */
static bool take_chunk(struct score_pool *pool, const struct pool_job *job, uint32_t serial,
                       uint32_t group, uint32_t *first, uint32_t *end)
{
    _Atomic uint64_t *counter = &pool->groups[group].next;
    uint64_t next = atomic_load_explicit(counter, memory_order_relaxed /* see the struct */);
    do {
        *first = (uint32_t)next;
        if (next >> 32 != serial || *first >= job->first[group + 1])
            return false;
        uint32_t left = job->first[group + 1] - *first, n = left / CHUNK_SHARE;
        n = n > CHUNK_MOST ? CHUNK_MOST : n < CHUNK_LEAST ? CHUNK_LEAST : n;
        *end = *first + (n < left ? n : left);
    } while (!atomic_compare_exchange_weak_explicit(counter, &next, (uint64_t)serial << 32 | *end,
                                                    memory_order_relaxed /* see the struct */,
                                                    memory_order_relaxed));
    return true;
}

/* Items first .. end - 1 of a job that reads; of other work as if all items read as much. */
static void count_work(struct score_pool *pool, const struct pool_job *job, uint32_t first,
                       uint32_t end, int64_t took)
{
    uint64_t all = job->work.run ? job->work.bytes
                                 : (uint64_t)job->n * KV_HOT_BLOCK_TOKENS *
                                       kv_digest_bytes(job->score.geometry);
    /* relaxed, both: see the struct */
    atomic_fetch_add_explicit(&pool->worked_ns, took, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->read_bytes, all * end / job->n - all * first / job->n,
                              memory_order_relaxed);
}

/* Do the next chunk of the own group, or of another's when the own has none left: -1 there is none,
 * 0 others are left, 1 it was the job's last. */
static int work_on(struct score_pool *pool, const struct pool_job *job, uint32_t serial,
                   uint32_t own)
{
    uint32_t first = 0, end = 0, tried = 0;
    while (tried < job->n_groups &&
           !take_chunk(pool, job, serial, (own + tried) % job->n_groups, &first, &end))
        tried++;
    if (tried == job->n_groups)
        return -1;
    int64_t began = clock_now_ns();
    if (job->work.run)
        job->work.run(job->work.context, first, end);
    else if (job->copies)
        copy_chunk(&job->copy, first, end);
    else
        score_chunk(pool->score, job, first, end);
    int64_t ended = clock_now_ns();
    atomic_store_explicit(&pool->ended_ns, ended, memory_order_relaxed /* see the struct */);
    if (!job->copies)
        count_work(pool, job, first, end, ended - began);
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

/* Look out for a job after job `seen`, for a short time. Threads that want this CPU get it, above
 * all those of the GPU worker's OpenCL device: the next job comes when their launch ends. */
static void linger(struct score_pool *pool, uint32_t seen)
{
    struct in_line line = in_line(LINGER_NS);
    do {
        for (int i = 0; i < LINGER_LOOKS; i++) {
            /* relaxed: the job itself is read under the lock */
            if (atomic_load_explicit(&pool->groups[0].next, memory_order_relaxed) >> 32 != seen)
                return;
            cpu_relax();
        }
    } while (in_line_stand(&line));
}

static void *helper_main(void *arg)
{
    struct helper *self = arg;
    struct score_pool *pool = self->pool;
    uint32_t seen = 0;
    char name[16]; /* what ps -L, top -H and perf show; by the thread itself: another's name is
                      written to /proc, which a confined scorer may not */
    snprintf(name, sizeof name, "score/%u", (unsigned)(self - pool->helpers) % 1000);
    pthread_setname_np(pthread_self(), name);
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
        while ((rc = work_on(pool, &job, seen, self->group)) == 0)
            ;
        if (rc > 0)
            tell_end(pool, bell);
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

/* Where helper i may run: all allowed CPUs, or those of its group's node; but not `here`, unless
 * nothing else is left. */
static void place_helper(struct score_pool *pool, struct helper *helper, int here)
{
    cpu_set_t cpus = pool->allowed, others;
    if (pool->topology.n_nodes > 1)
        CPU_AND(&cpus, &pool->allowed, &pool->topology.cpus[helper->group]);
    others = cpus;
    if (here >= 0)
        CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0)
        others = cpus;
    if (CPU_COUNT(&others)) /* refused: slower */
        pthread_setaffinity_np(helper->thread, sizeof others, &others);
}

static int start_helpers(struct score_pool *pool, uint32_t n)
{
    for (; pool->n_helpers < n; pool->n_helpers++) {
        struct helper *helper = &pool->helpers[pool->n_helpers];
        helper->pool = pool;
        helper->group = topology_node_of_thread(&pool->topology, pool->n_helpers + 1, n + 1);
        if (pthread_create(&helper->thread, NULL, helper_main, helper))
            return HILL_E_IO;
        if (pool->topology.n_nodes > 1)
            place_helper(pool, helper, -1);
    }
    return 0;
}

int score_pool_create(struct score_pool **out, uint32_t n_threads, kv_score_fn *score,
                      const struct topology *topology)
{
    uint32_t n_helpers = n_threads ? n_threads - 1 : 0;
    size_t bytes = sizeof(struct score_pool) + n_helpers * sizeof(struct helper);
    struct score_pool *pool = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *out = NULL;
    if (!pool)
        return HILL_E_NOMEM;
    memset(pool, 0, bytes);
    pool->topology = topology ? *topology : (struct topology){.n_nodes = 1};
    pool->score = score;
    pool->beside = -1;
    if (sched_getaffinity(0, sizeof pool->allowed, &pool->allowed) != 0 ||
        CPU_COUNT(&pool->allowed) < 2)
        CPU_ZERO(&pool->allowed);
    init_lock(&pool->lock);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->ended, NULL);
    int rc = start_helpers(pool, n_helpers);
    if (rc) {
        score_pool_destroy(pool);
        return rc;
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
        pthread_join(pool->helpers[i].thread, NULL);
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->order);
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
    for (uint32_t i = 0; i < pool->n_helpers; i++)
        place_helper(pool, &pool->helpers[i], here);
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
    /* relaxed, all of them: helpers get here through the lock */
    atomic_store_explicit(&pool->ended_ns, pool->started_ns, memory_order_relaxed);
    atomic_store_explicit(&pool->left, job->n, memory_order_relaxed);
    for (uint32_t g = 0; g < job->n_groups; g++)
        atomic_store_explicit(&pool->groups[g].next, (uint64_t)pool->serial << 32 | job->first[g],
                              memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_helpers && i < helpers; i++)
        pthread_cond_signal(&pool->work); /* unlocked: who wakes up wants the lock */
}

/* One group has all items. */
static void take_as_they_come(struct pool_job *job)
{
    job->n_groups = 1;
    job->first[1] = job->n;
}

/* The blocks of each node for the group of that node, in the order in which they come. */
static void divide_by_node(struct score_pool *pool, struct pool_job *job)
{
    const struct topology *t = &pool->topology;
    uint64_t block_bytes = (uint64_t)KV_HOT_BLOCK_TOKENS * kv_digest_bytes(job->score.geometry);
    uint32_t slab = topology_slab_blocks(block_bytes), n = 0;
    if (t->n_nodes < 2 || !GROW(pool->order, pool->order_room, job->n)) {
        take_as_they_come(job);
        return;
    }
    job->order = pool->order;
    job->n_groups = t->n_nodes;
    for (uint32_t node = 0; node < t->n_nodes; node++) {
        for (uint32_t i = 0; i < job->n; i++)
            if (topology_node_of_block(t, slab, job->score.blocks[i]) == node)
                pool->order[n++] = i;
        job->first[node + 1] = n;
    }
}

void score_pool_start(struct score_pool *pool, const struct score_job *job,
                      struct shm_doorbell *bell)
{
    struct pool_job all = {.n = job->n_blocks, .score = *job};
    divide_by_node(pool, &all);
    uint64_t tokens = (uint64_t)job->n_blocks * KV_HOT_BLOCK_TOKENS;
    start(pool, &all, tokens * kv_digest_bytes(job->geometry) / SCORE_PER_THREAD, bell);
}

void score_pool_start_copy(struct score_pool *pool, const struct copy_job *job,
                           struct shm_doorbell *bell)
{
    struct pool_job all = {.copies = true, .n = job->n, .copy = *job};
    take_as_they_come(&all);
    start(pool, &all, (uint64_t)job->n * job->bytes / COPY_PER_THREAD, bell);
}

void score_pool_start_work(struct score_pool *pool, const struct work_job *job,
                           struct shm_doorbell *bell)
{
    struct pool_job all = {.n = job->n, .work = *job};
    take_as_they_come(&all);
    start(pool, &all, job->bytes / COPY_PER_THREAD, bell);
}

void score_pool_expect(struct score_pool *pool, uint64_t bytes)
{
    uint64_t helpers = bytes / SCORE_PER_THREAD;
    struct pool_job none = {0};
    take_as_they_come(&none);
    if (helpers > 0 && score_pool_done(pool))
        start(pool, &none, helpers, NULL);
}

bool score_pool_work(struct score_pool *pool)
{
    /* job and serial without the lock: only this thread writes them */
    return work_on(pool, &pool->job, pool->serial, 0) >= 0;
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
            cpu_relax();
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

uint64_t score_pool_read_bytes(const struct score_pool *pool)
{
    return atomic_load_explicit(&pool->read_bytes, memory_order_relaxed /* see the struct */);
}

int64_t score_pool_worked_ns(const struct score_pool *pool)
{
    return atomic_load_explicit(&pool->worked_ns, memory_order_relaxed /* see the struct */);
}

int64_t score_pool_last_ns(const struct score_pool *pool)
{
    return atomic_load_explicit(&pool->ended_ns, memory_order_relaxed /* see the struct */) -
           pool->started_ns;
}
