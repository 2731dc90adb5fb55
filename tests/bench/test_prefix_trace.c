/*
 * tests/bench/test_prefix_trace.c - what goes first, by hand; random traces against a store that is
 * a list without a tree, and against all that could have been kept. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/draws.h"
#include "tests/rounds.h"
#include "tools/bench/prefix_trace.h"

enum { CHUNK = 64, IN_BLOCK = 8, REQUESTS = 40, TRACES = TEST_ROUNDS(400) };

static uint64_t found(const struct prefix_trace *t, enum trace_rule rule, uint32_t n_slots)
{
    struct trace_score s = prefix_trace_play(t, rule, n_slots);
    assert_true(s.saved <= s.cost && s.hits <= s.tokens);
    return s.hits;
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* One chunk a letter. */
static void check_letters(const char *letters, enum trace_rule rule, uint32_t n_slots,
                          uint32_t hits)
{
    struct prefix_trace t = {0};
    for (const char *c = letters; *c; c++) {
        uint32_t block = (uint32_t)(*c - 'A');
        prefix_trace_add(&t, &block, 1, CHUNK + 10);
    }
    uint64_t tokens = found(&t, rule, n_slots);
    if (tokens != hits * CHUNK)
        fail_msg("%s, rule %d: %llu tokens, not %u", letters, (int)rule, (unsigned long long)tokens,
                 hits * CHUNK);
    prefix_trace_free(&t);
}

static void test_by_hand(void **unused)
{
    (void)unused;
    /* ranks in three slots (half-life 3): A's is 3 + 3 * log2(3) = 7.75; B 4, C 5, D 6, E 7, F 8 */
    check_letters("AAABCDEFGA", TRACE_STORE, 3, 3);
    check_letters("AAABCDEFGHA", TRACE_STORE, 3, 2); /* H takes its room */
    check_letters("AAABCDEFGHA", TRACE_LRU, 3, 2);
    check_letters("AAABCDA", TRACE_LRU, 3, 2);
    check_letters("AAABCDA", TRACE_STORE, 3, 3);
    check_letters("AAABCDEFGHA", TRACE_LFU, 3, 3);
    check_letters("ABCADBC", TRACE_LRU, 3, 1); /* D goes in for B, B for C, C for A */
    check_letters("ABCADBC", TRACE_OPTIMUM, 3, 3);
    check_letters("ABABAB", TRACE_LRU, 1, 0);
    check_letters("ABABAB", TRACE_OPTIMUM, 1, 2); /* A stays, B is never taken in */
    check_letters("AAABCDEFGHA", TRACE_UTILITY, 3, 3);
}

/* The end of a text goes before what others share of it; what is behind another's end is kept. */
static void test_ends_go_first(void **unused)
{
    (void)unused;
    struct prefix_trace t = {0};
    const uint32_t text[] = {0, 1}, other[] = {0, 2};
    prefix_trace_add(&t, text, 2, 10 * CHUNK);
    prefix_trace_add(&t, other, 2, 10 * CHUNK); /* 8 found; two of the text's go for two more */
    prefix_trace_add(&t, text, 2, 10 * CHUNK);  /* 8 again */
    assert_int_equal(found(&t, TRACE_STORE, 10), 16 * CHUNK);
    assert_int_equal(found(&t, TRACE_LRU, 10), 16 * CHUNK);
    assert_int_equal(found(&t, TRACE_OPTIMUM, 10), 18 * CHUNK - 1); /* the last token is computed */
    prefix_trace_free(&t);
}

/* ---- a list without a tree ------------------------------------------------------------------- */

struct item {
    uint32_t chunk, parent, uses;
    double at;
};

static struct item items[64];
static uint32_t n_items;
static double now;
static bool tie;

static uint32_t find(uint32_t chunk)
{
    uint32_t i = 0;
    while (i < n_items && items[i].chunk != chunk)
        i++;
    return i;
}

static bool has_child(uint32_t chunk)
{
    for (uint32_t i = 0; i < n_items; i++)
        if (items[i].parent == chunk)
            return true;
    return false;
}

static bool push_out(uint32_t spared, uint32_t n_slots)
{
    uint32_t best = n_items;
    double least = INFINITY;
    for (uint32_t i = 0; i < n_items; i++) {
        double rank = items[i].at + n_slots * log2(items[i].uses);
        if (items[i].chunk == spared || has_child(items[i].chunk))
            continue;
        tie |= rank == least;
        if (rank < least)
            least = rank, best = i;
    }
    if (best == n_items)
        return false;
    items[best] = items[--n_items];
    return true;
}

static uint64_t list_found(const struct prefix_trace *t, uint32_t n_slots)
{
    uint64_t tokens = 0;
    n_items = 0, now = 0, tie = false;
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[i];
        uint32_t n = 0, at;
        while (n < r->n && (at = find(t->chunks[r->first + n])) < n_items) {
            items[at].at = ++now;
            items[at].uses++;
            n++;
        }
        tokens += n * CHUNK < r->n_tokens ? n * CHUNK : r->n_tokens - 1;
        for (; n < r->n; n++) {
            uint32_t parent = n ? t->chunks[r->first + n - 1] : UINT32_MAX;
            if (n_items == n_slots && !push_out(parent, n_slots))
                break;
            items[n_items++] = (struct item){t->chunks[r->first + n], parent, 1, ++now};
        }
    }
    return tokens;
}

/* ---- all that could have been kept ----------------------------------------------------------- */

/* Chunks held of blocks 0 (a text's first), 1 and 2 (behind it), 3 (another text). */
enum { HELD = 9 * 5 * 5 * 5 };
static int64_t best[REQUESTS + 1][HELD]; /* tokens from a request on; -1: not known */

static int64_t most(const struct prefix_trace *t, uint32_t i, const uint32_t held[4],
                    uint32_t n_slots)
{
    if (i == t->n_requests)
        return 0;
    int64_t *known = &best[i][((held[0] * 5 + held[1]) * 5 + held[2]) * 5 + held[3]];
    if (*known >= 0)
        return *known;
    const struct trace_request *r = &t->requests[i];
    uint32_t n = 0, may[4], next[4];
    memcpy(may, held, sizeof may);
    for (uint32_t k = 0; k < r->n; k++) {
        uint32_t block = t->chunks[r->first + k] / IN_BLOCK, in = k % IN_BLOCK;
        n += n == k && in < held[block];
        may[block] = in + 1 > may[block] ? in + 1 : may[block];
    }
    int64_t hits = n * CHUNK < r->n_tokens ? n * CHUNK : r->n_tokens - 1, rest = 0;
    for (next[0] = 0; next[0] <= may[0]; next[0]++)
        for (next[1] = 0; next[1] <= (next[0] == IN_BLOCK ? may[1] : 0); next[1]++)
            for (next[2] = 0; next[2] <= (next[0] == IN_BLOCK ? may[2] : 0); next[2]++)
                for (next[3] = 0; next[3] <= may[3]; next[3]++) {
                    if (next[0] + next[1] + next[2] + next[3] > n_slots)
                        break;
                    int64_t one = most(t, i + 1, next, n_slots);
                    rest = one > rest ? one : rest;
                }
    return *known = hits + rest;
}

static void draw_trace(struct prefix_trace *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t blocks[2] = {draw(3) ? 0 : 3, 1 + draw(2)};
        uint32_t tokens = 1 + draw(blocks[0] ? 4 * CHUNK + 63 : 12 * CHUNK + 63);
        prefix_trace_add(t, blocks, tokens > IN_BLOCK * CHUNK ? 2 : 1, tokens);
    }
}

static void test_random_traces(void **unused)
{
    (void)unused;
    uint32_t compared = 0;
    for (uint32_t i = 0; i < TRACES; i++) {
        struct prefix_trace t = {0};
        const uint32_t none[4] = {0}, n_slots = 1 + draw(18);
        draw_trace(&t, 1 + draw(REQUESTS));
        uint64_t by_list = list_found(&t, n_slots), by_store = found(&t, TRACE_STORE, n_slots);
        if (!tie) { /* of two of a rank either may go */
            assert_int_equal(by_store, by_list);
            compared++;
        }
        if (i % 20 == 0) {
            memset(best, 0xff, sizeof best);
            assert_int_equal(found(&t, TRACE_OPTIMUM, n_slots), most(&t, 0, none, n_slots));
        }
        for (uint32_t rule = 0; rule < TRACE_RULES; rule++)
            assert_true(found(&t, rule, n_slots) <= found(&t, TRACE_OPTIMUM, n_slots));
        prefix_trace_free(&t);
    }
    assert_true(compared > TRACES / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_ends_go_first),
        cmocka_unit_test(test_random_traces),
    };
    draws_seed(20261122);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
