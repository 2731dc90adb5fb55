/* tests/cpu_scorer/test_scoring.c - the scoring threads against one call of the reference. Also run
 * under TSan. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cpu_scorer/scoring.h"
#include "kv/plan.h"
#include "tests/draws.h"
#include "tests/rounds.h"
#include "tests/kv/digests.h"

enum { BLOCKS = 150, SLOTS = BLOCKS * 64, HEADS = 4, DIMS = HEADS * 128 };
#define MANY_BYTES (64ull << 20)    /* worth all helpers */
enum mode { WORK, WAIT, LEAVE_IT }; /* what the thread that started a job does then */

static const struct kv_geometry geometry = {1, HEADS, HEADS, DIMS / HEADS};
static uint8_t digests[SLOTS * (DIMS + HEADS)];
static uint16_t expected[SLOTS], scores[SLOTS];
static kv_score_fn *plainly; /* the reference, which TSan makes thirty times as slow */

/* One job over n blocks chosen at random, waited for on the doorbell as the pipeline does. */
static void run_job(struct score_pool *pool, struct shm_doorbell *bell, uint32_t n, enum mode mode)
{
    int8_t query[DIMS];
    uint8_t shifts[HEADS];
    uint32_t blocks[BLOCKS];
    for (int i = 0; i < HEADS; i++)
        shifts[i] = (uint8_t)draw(9);
    for (int i = 0; i < DIMS; i++)
        query[i] = (int8_t)(draw(255) - 127);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i > 0 && draw(2) ? (blocks[i - 1] + 1) % BLOCKS : draw(BLOCKS);
    struct score_job job = {&geometry, {query, shifts, KV_IMPORTANCE_SUM, NULL}, digests, blocks, n,
                            scores};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = blocks[i] * 64;
        plainly(&geometry, &job.query, digests + slot * kv_digest_bytes(&geometry), 64,
                expected + slot);
    }
    memset(scores, 0xee, sizeof scores);
    score_pool_start(pool, &job, bell);
    if (mode == WAIT)
        score_pool_wait(pool);
    while (mode == WORK && score_pool_work(pool))
        continue;
    for (;;) {
        uint32_t seen = shm_doorbell_read(bell);
        if (score_pool_done(pool))
            break;
        assert_int_equal(shm_doorbell_wait(bell, seen, clock_deadline_ms(20000), 0), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_memory_equal(scores + i * 64, expected + blocks[i] * 64, 64 * sizeof *scores);
}

static int fill_digests(void **unused)
{
    (void)unused;
    assert_int_equal(kv_digest_bytes(&geometry), DIMS + HEADS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        int8_t mantissas[DIMS];
        uint8_t exponents[HEADS];
        for (uint32_t i = 0; i < DIMS; i++)
            mantissas[i] = (int8_t)(draw(255) - 127);
        for (uint32_t i = 0; i < HEADS; i++)
            exponents[i] = (uint8_t)draw(KV_KEY_EXP_MAX + 1);
        kv_digest_put(&geometry, digests, slot, mantissas, exponents);
    }
    return 0;
}

static void test_jobs_match_the_reference(void **unused)
{
    (void)unused;
    struct score_pool *pool;
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        assert_int_equal(score_pool_create(&pool, threads, plainly, NULL), 0);
        for (int round = 0; round < TEST_ROUNDS(20); round++) {
            if (round % 3) { /* helpers look out for it, or have given up */
                score_pool_expect(pool, MANY_BYTES);
                usleep(round % 3 == 2 ? draw(1000) : 0);
            }
            run_job(pool, &bell, draw(BLOCKS + 1), round % 2 ? WORK : WAIT);
        }
        score_pool_destroy(pool);
    }
}

/* jobs of many MiB are worth a helper: it can do all of one, and rings the bell */
static void test_a_helper_does_what_the_caller_leaves(void **unused)
{
    (void)unused;
    struct score_pool *pool;
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    assert_int_equal(score_pool_create(&pool, 2, kv_score_choose("auto"), NULL), 0);
    for (int round = 0; round < 5; round++) {
        run_job(pool, &bell, BLOCKS, LEAVE_IT);
        assert_true(score_pool_last_ns(pool) > 0);
    }
    score_pool_destroy(pool);
}

static void test_destroy_finishes_a_running_job(void **unused)
{
    (void)unused;
    struct score_pool *pool;
    static const int8_t query[DIMS];
    static const uint8_t shifts[HEADS];
    uint32_t blocks[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    assert_int_equal(score_pool_create(&pool, 3, plainly, NULL), 0);
    struct score_job job = {
        &geometry, {query, shifts, KV_IMPORTANCE_SUM, NULL}, digests, blocks, BLOCKS, scores};
    memset(scores, 0xee, sizeof scores);
    score_pool_start(pool, &job, NULL);
    score_pool_expect(pool, MANY_BYTES); /* changes nothing while one runs */
    score_pool_destroy(pool);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(scores[i], 0x8000);
}

/* ---- two nodes, made up ---- */

enum { THREADS = 4 };

static struct {
    pthread_mutex_t lock;
    pthread_t caller;
    const struct topology *nodes;
    uint32_t slab, counts[BLOCKS], calls[THREADS];
    bool went_abroad[THREADS]; /* has scored a block of another node */
    bool came_back;            /* one that had scored a block of its own again */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Thread 0 is the caller, helper i is thread i + 1: by its name. */
static uint32_t this_thread(void)
{
    char name[16] = "";
    uint32_t helper = 0;
    if (pthread_equal(pthread_self(), seen.caller))
        return 0;
    pthread_getname_np(pthread_self(), name, sizeof name);
    assert_int_equal(sscanf(name, "score/%u", &helper), 1);
    return helper + 1;
}

static void note_who(const struct kv_geometry *g, const struct kv_query *query,
                     const uint8_t *groups, uint32_t n_tokens, uint16_t *out)
{
    (void)query;
    uint32_t block = (uint32_t)((uint64_t)(groups - digests) / (64 * kv_digest_bytes(g)));
    uint32_t n = n_tokens / 64, thread = this_thread();
    uint32_t node = topology_node_of_block(seen.nodes, seen.slab, block);
    memset(out, 0, n_tokens * sizeof *out);
    pthread_mutex_lock(&seen.lock);
    seen.calls[thread]++;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(topology_node_of_block(seen.nodes, seen.slab, block + i), node);
        seen.counts[block + i]++;
    }
    if (node != topology_node_of_thread(seen.nodes, thread, THREADS))
        seen.went_abroad[thread] = true;
    else if (seen.went_abroad[thread])
        seen.came_back = true;
    pthread_mutex_unlock(&seen.lock);
    usleep(300); /* the others get their share */
}

static void test_a_group_scores_its_own_node_first(void **unused)
{
    (void)unused;
    static const int8_t query[DIMS];
    static const uint8_t shifts[HEADS];
    struct topology nodes = {.n_nodes = 2, .ids = {0, 1}};
    struct score_pool *pool;
    uint32_t blocks[BLOCKS], busy = 0, turns = 0;
    int64_t end = clock_deadline_ms(60000);
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7) % BLOCKS; /* 7 and 150 have no common divisor: each once */
    for (uint32_t n = 0; n < 2; n++)
        sched_getaffinity(0, sizeof nodes.cpus[n], &nodes.cpus[n]);
    seen.nodes = &nodes;
    seen.caller = pthread_self();
    seen.slab = topology_slab_blocks(64 * kv_digest_bytes(&geometry));
    assert_true(topology_node_of_block(&nodes, seen.slab, 0) == 0 &&
                topology_node_of_block(&nodes, seen.slab, seen.slab) == 1 && seen.slab < BLOCKS);
    assert_int_equal(score_pool_create(&pool, THREADS, note_who, &nodes), 0);
    struct score_job job = {
        &geometry, {query, shifts, KV_IMPORTANCE_SUM, NULL}, digests, blocks, BLOCKS, scores};
    do { /* one that comes late finds nothing to do: until all have had something */
        memset(seen.went_abroad, 0, sizeof seen.went_abroad);
        score_pool_start(pool, &job, NULL);
        score_pool_wait(pool);
        turns++;
        for (uint32_t i = 0; i < BLOCKS; i++)
            assert_int_equal(seen.counts[i], turns);
        assert_false(seen.came_back);
        busy = 0;
        for (uint32_t t = 0; t < THREADS; t++)
            busy += seen.calls[t] > 0;
    } while (busy < THREADS && clock_now_ns() < end);
    assert_int_equal(busy, THREADS);
    score_pool_destroy(pool);
}

static void test_threads_and_slabs_are_divided_evenly(void **unused)
{
    (void)unused;
    struct topology nodes = {.n_nodes = 3};
    uint32_t threads[3] = {0}, slabs[3] = {0};
    for (uint32_t t = 0; t < 12; t++)
        threads[topology_node_of_thread(&nodes, t, 12)]++;
    for (uint32_t block = 0; block < 90; block++)
        slabs[topology_node_of_block(&nodes, 10, block)]++;
    for (int n = 0; n < 3; n++)
        assert_true(threads[n] == 4 && slabs[n] == 30);
    assert_int_equal(topology_node_of_thread(&nodes, 0, 12), 0); /* the caller's */
    assert_int_equal(topology_slab_blocks(1 << 20), 2);
    assert_int_equal(topology_slab_blocks((1 << 20) + 1), 2);
    assert_int_equal(topology_slab_blocks(5 << 20), 1);
}

static void test_this_machine_has_a_node_at_least(void **unused)
{
    (void)unused;
    struct topology here;
    topology_read(&here);
    assert_in_range(here.n_nodes, 1, TOPOLOGY_NODES_MAX);
    for (uint32_t n = 0; here.n_nodes > 1 && n < here.n_nodes; n++)
        assert_true(CPU_COUNT(&here.cpus[n]) > 0);
}

int main(void)
{
    draws_seed(9);
    plainly = TEST_STRIDE(2) == 1 ? kv_score_reference : kv_score_choose("auto");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_match_the_reference),
        cmocka_unit_test(test_a_helper_does_what_the_caller_leaves),
        cmocka_unit_test(test_destroy_finishes_a_running_job),
        cmocka_unit_test(test_a_group_scores_its_own_node_first),
        cmocka_unit_test(test_threads_and_slabs_are_divided_evenly),
        cmocka_unit_test(test_this_machine_has_a_node_at_least),
    };
    return cmocka_run_group_tests(tests, fill_digests, NULL);
}
