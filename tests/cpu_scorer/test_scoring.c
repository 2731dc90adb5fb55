/* tests/cpu_scorer/test_scoring.c - the scoring threads against one call of the reference. Also run
 * under TSan. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu_scorer/scoring.h"
#include "kv/plan.h"

enum { BLOCKS = 150, SLOTS = BLOCKS * 64, HEADS = 4, DIMS = HEADS * 128 };
enum mode { WORK, WAIT, LEAVE_IT }; /* what the thread that started a job does then */

static const struct kv_geometry geometry = {1, HEADS, HEADS, DIMS / HEADS};
static uint8_t digests[SLOTS * (DIMS + HEADS)];
static uint16_t expected[SLOTS], scores[SLOTS];
static uint64_t state = 9;

static uint32_t next_random(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* One job over n blocks chosen at random, waited for on the doorbell as the pipeline does. */
static void run_job(struct score_pool *pool, struct shm_doorbell *bell, uint32_t n, enum mode mode)
{
    int8_t query[DIMS];
    uint8_t shifts[HEADS];
    uint32_t blocks[BLOCKS];
    for (int i = 0; i < HEADS; i++)
        shifts[i] = (uint8_t)next_random(9);
    for (int i = 0; i < DIMS; i++)
        query[i] = (int8_t)(next_random(255) - 127);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = i > 0 && next_random(2) ? (blocks[i - 1] + 1) % BLOCKS : next_random(BLOCKS);
    struct score_job job = {&geometry, {query, shifts, KV_IMPORTANCE_SUM}, digests, blocks, n,
                            scores};
    kv_score_reference(&geometry, &job.query, digests, SLOTS, expected);
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
            mantissas[i] = (int8_t)(next_random(255) - 127);
        for (uint32_t i = 0; i < HEADS; i++)
            exponents[i] = (uint8_t)next_random(KV_KEY_EXP_MAX + 1);
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
        assert_int_equal(score_pool_create(&pool, threads, kv_score_reference), 0);
        for (int round = 0; round < 20; round++)
            run_job(pool, &bell, next_random(BLOCKS + 1), round % 2 ? WORK : WAIT);
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
    assert_int_equal(score_pool_create(&pool, 2, kv_score_choose("auto")), 0);
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
    assert_int_equal(score_pool_create(&pool, 3, kv_score_reference), 0);
    struct score_job job = {&geometry, {query, shifts, KV_IMPORTANCE_SUM}, digests, blocks, BLOCKS,
                            scores};
    memset(scores, 0xee, sizeof scores);
    score_pool_start(pool, &job, NULL);
    score_pool_destroy(pool);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(scores[i], 0x8000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_match_the_reference),
        cmocka_unit_test(test_a_helper_does_what_the_caller_leaves),
        cmocka_unit_test(test_destroy_finishes_a_running_job),
    };
    return cmocka_run_group_tests(tests, fill_digests, NULL);
}
