/* test_policy_cost.c - the byte formulas, worked by hand for a model of 8 heads, 2 KV heads of 64.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kv/policy_cost.h"

/* key 256, digest 132, entry 512 bytes; 1000 tokens, 200 of them hot; 7 entries come up */
static struct kv_cost_load load_of(uint32_t policy)
{
    return (struct kv_cost_load){
        .geometry = {4, 8, 2, 64},
        .selection = {.alpha = 0.1, .sinks = 4, .window = 16, .policy = policy},
        .hot = 200,
        .cold = 800,
        .fetched = 7};
}

static void expect(uint32_t policy, uint64_t flash, uint64_t key, uint64_t score, uint64_t dram)
{
    struct kv_cost_load load = load_of(policy);
    struct kv_cost c = kv_policy_cost(&load);
    assert_int_equal(c.flash_read, flash + 7 * 512);
    assert_int_equal(c.link_key, key);
    assert_int_equal(c.link_score, score);
    assert_int_equal(c.link_kv, 7 * 512);
    assert_int_equal(c.dram_read, dram);
}

static void test_each_policy_reads_what_it_evaluates(void **unused)
{
    (void)unused;
    expect(KV_POLICY_FULL, 0, 0, 0, 0);
    expect(KV_POLICY_HILLINFER, 800 * 132, 0, 3200, 200 * 132);
    expect(KV_POLICY_HOST_DIGEST, 800 * 132, 800 * 132, 0, 200 * 132);
    expect(KV_POLICY_H2O, 800 * 256, 800 * 256, 0, 200 * 256);
    expect(KV_POLICY_PREFETCH, 800 * 128, 800 * 128, 0, 200 * 128); /* half the columns */
    expect(KV_POLICY_ORACLE, 800 * 256, 800 * 256, 0, 200 * 256);
}

static void test_cached_digests_do_not_cross_the_link(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_HOST_DIGEST);
    load.cached = 500;
    struct kv_cost c = kv_policy_cost(&load);
    assert_int_equal(c.link_key, 300 * 132);
    assert_int_equal(c.dram_read, 700 * 132);
    assert_int_equal(c.products, 1000 * 128); /* and the CPU scores all of them */
}

static void test_leoam_reads_candidates(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_LEOAM);
    kv_cost_spread_candidates(&load);
    assert_true(load.candidates_cold == 128); /* of 160, twice what is selected freely */
    assert_true(load.candidates_hot == 32);
    struct kv_cost c = kv_policy_cost(&load);
    assert_int_equal(c.link_key, 128 * 256);
    assert_int_equal(c.flash_read, 128 * 256 + 7 * 512);
    assert_int_equal(c.dram_read, 32 * 256 + 16 * 512); /* and 16 coarse chunks' abstracts */
}

/* Ten chunks in 4 runs: borders of chunks lie 12 keys of 256 bytes beyond a page's, never on it. */
static void test_leoam_reads_whole_pages(void **unused)
{
    (void)unused;
    struct kv_cost_load load = load_of(KV_POLICY_LEOAM);
    load.candidates_cold = 160;
    load.between = 10;
    load.runs = 4;
    struct kv_cost c = kv_policy_cost(&load);
    assert_int_equal(c.link_key, 170 * 256 + 4 * 4096);
    load.selection.sinks = 16; /* a chunk of 16 keys is a page: now each begins one */
    c = kv_policy_cost(&load);
    assert_int_equal(c.link_key, 170 * 256);
    load.candidates_cold = 160.5; /* a mean over queries */
    c = kv_policy_cost(&load);
    assert_int_equal(c.link_key, 170 * 256 + 128);
}

/* The average over all runs of chunks, laid out one by one. */
static void test_pages_of_chunks_are_the_average_over_runs(void **unused)
{
    (void)unused;
    for (uint32_t item = 64; item <= 8192; item *= 2)
        for (uint32_t sinks = 0; sinks <= 20; sinks += 4) {
            double sum = 0, n = 0;
            for (uint64_t first = 2; first < 2 + 256; first++, n++) {
                uint64_t at = (first * KV_CHUNK_FINE - sinks) * item;
                sum += (double)kv_key_pages(at, 3 * KV_CHUNK_FINE, item);
            }
            assert_true(sum / n == kv_cost_chunk_pages(3.0 * KV_CHUNK_FINE * item, 1, item, sinks));
        }
}

/* The average over all beginnings, counted one by one. */
static void test_pages_are_the_average_over_beginnings(void **unused)
{
    (void)unused;
    for (uint32_t item = 64; item <= 8192; item *= 2) {
        uint64_t sum = 0, n = 0, bytes = 37ull * item;
        for (uint32_t at = 0; at < KV_PAGE_BYTES; at += item, n++)
            sum += kv_key_pages(at, 37, item);
        assert_int_equal(sum / n, kv_cost_pages(bytes, 1, item));
    }
}

static void test_policies_are_served_by_their_own_pipelines(void **unused)
{
    (void)unused;
    for (uint32_t p = 0; p < KV_POLICY_COUNT; p++) {
        assert_true(kv_policy_served(p, p));
        assert_true(kv_policy_served(p, KV_POLICY_FULL));
        assert_int_equal(kv_policy_served(p, KV_POLICY_HILLINFER),
                         p == KV_POLICY_HILLINFER || p == KV_POLICY_FULL);
    }
    assert_true(kv_policy_served(KV_POLICY_H2O, KV_POLICY_ORACLE));
    assert_false(kv_policy_served(KV_POLICY_H2O, KV_POLICY_LEOAM));
}

static void test_windows_hold_a_context_or_a_mebibyte(void **unused)
{
    struct kv_geometry g = {4, 8, 2, 64}, large = {1, 256, 256, 256};
    (void)unused;
    assert_int_equal(kv_key_window_bytes(&g, KV_POLICY_HILLINFER, 1000), 0);
    assert_int_equal(kv_key_window_bytes(&g, KV_POLICY_H2O, 100), 28672 + 8192);
    assert_int_equal(kv_key_window_bytes(&g, KV_POLICY_H2O, 1u << 20), 1u << 20);
    assert_int_equal(kv_key_window_bytes(&large, KV_POLICY_LEOAM, 5000), 1u << 20);
    /* 7 groups of 2112 bytes; and where a group of 1 MiB and 4 KiB is more than a window had */
    assert_int_equal(kv_key_window_bytes(&g, KV_POLICY_HOST_DIGEST, 100), 16384 + 8192);
    assert_int_equal(kv_key_window_bytes(&large, KV_POLICY_HOST_DIGEST, 5000),
                     (1u << 20) + 4096 + 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_policy_reads_what_it_evaluates),
        cmocka_unit_test(test_cached_digests_do_not_cross_the_link),
        cmocka_unit_test(test_leoam_reads_candidates),
        cmocka_unit_test(test_leoam_reads_whole_pages),
        cmocka_unit_test(test_pages_of_chunks_are_the_average_over_runs),
        cmocka_unit_test(test_pages_are_the_average_over_beginnings),
        cmocka_unit_test(test_policies_are_served_by_their_own_pipelines),
        cmocka_unit_test(test_windows_hold_a_context_or_a_mebibyte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
