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

enum { BLOCKS = 150, SLOTS = BLOCKS * 64 };

static const struct kv_geometry geometry = {1, 4, 2, 16};
static int8_t mantissas[SLOTS * 32];
static uint8_t exponents[SLOTS * 2];
static uint16_t expected[SLOTS], scores[SLOTS];
static uint64_t state = 9;

static uint32_t next_random(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* One job over n blocks chosen at random, waited for on the doorbell as the pipeline does. */
static void run_job(struct score_pool *pool, struct shm_doorbell *bell, uint32_t n)
{
    int8_t query[32];
    uint8_t shifts[2] = {(uint8_t)next_random(9), (uint8_t)next_random(9)};
    uint32_t blocks[BLOCKS];
    for (int i = 0; i < 32; i++)
        query[i] = (int8_t)(next_random(255) - 127);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = next_random(BLOCKS);
    struct score_job job = {
        &geometry, {query, shifts, KV_IMPORTANCE_SUM}, mantissas, exponents, blocks, n, scores};
    kv_score_reference(&geometry, &job.query, mantissas, exponents, SLOTS, expected);
    memset(scores, 0xee, sizeof scores);
    score_pool_start(pool, &job, bell);
    for (;;) {
        uint32_t seen = shm_doorbell_read(bell);
        if (score_pool_done(pool))
            break;
        assert_int_equal(shm_doorbell_wait(bell, seen, clock_deadline_ms(20000), 0), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_memory_equal(scores + i * 64, expected + blocks[i] * 64, 64 * sizeof *scores);
}

static void test_jobs_match_the_reference(void **unused)
{
    (void)unused;
    struct score_pool *pool;
    struct shm_doorbell bell;
    shm_doorbell_init(&bell);
    for (uint32_t i = 0; i < sizeof mantissas; i++)
        mantissas[i] = (int8_t)(next_random(255) - 127);
    for (uint32_t i = 0; i < sizeof exponents; i++)
        exponents[i] = (uint8_t)next_random(KV_KEY_EXP_MAX + 1);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        assert_int_equal(score_pool_create(&pool, threads, kv_score_reference), 0);
        for (int round = 0; round < 60; round++)
            run_job(pool, &bell, next_random(BLOCKS + 1));
        score_pool_destroy(pool);
    }
}

static void test_destroy_finishes_a_running_job(void **unused)
{
    (void)unused;
    struct score_pool *pool;
    static const int8_t query[32];
    static const uint8_t shifts[2];
    uint32_t blocks[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        blocks[i] = i;
    assert_int_equal(score_pool_create(&pool, 3, kv_score_reference), 0);
    struct score_job job = {
        &geometry, {query, shifts, KV_IMPORTANCE_SUM}, mantissas, exponents, blocks, BLOCKS,
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
        cmocka_unit_test(test_destroy_finishes_a_running_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
