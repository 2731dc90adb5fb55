/*
 * Replay: a trace whose best placement is known, streams that must not mix, traces that lack
 * something, and the GPU's slots in front.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "placement/trace_replay.h"

#define PROMPT 200u
#define STEPS  100u

static char path[64];
static struct trace_writer *writer;

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-replay-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static void open_writer(void)
{
    const struct trace_settings settings = {
        .geometry = {2, 2, 1, 4}, .sinks = 2, .window = 4, .alpha = 0.1};
    struct hill_why why;
    assert_int_equal(trace_open(&writer, path, &settings, &why), 0);
}

static void put(uint64_t request, uint32_t step, uint32_t layer, uint32_t n, uint32_t from,
                uint32_t count, const uint16_t *scores)
{
    uint32_t words[64];
    for (uint32_t i = 0; i < count; i++)
        words[i] = from + i;
    struct trace_query q = {.request = request,
                            .step = step,
                            .layer = layer,
                            .n_tokens = n,
                            .n_selected = count,
                            .words = words,
                            .scores = scores};
    assert_int_equal(trace_query(writer, &q), 0);
}

static struct trace_file *reopen(void)
{
    struct trace_file *file;
    struct hill_why why;
    assert_int_equal(trace_close(writer), 0);
    assert_int_equal(trace_file_open(&file, path, &why), 0);
    return file;
}

/* One layer, whose queries select the same 20 tokens. */
static struct trace_file *record_one_layer(void)
{
    open_writer();
    for (uint32_t i = 0; i < STEPS; i++)
        put(1, i, 0, PROMPT + i, 10, 20, NULL);
    return reopen();
}

static struct trace_replay_result run(struct trace_file *file, enum placement_kind kind, double hot)
{
    struct trace_replay_settings s = trace_replay_defaults(file);
    struct trace_replay_result r;
    struct hill_why why;
    s.hot = hot;
    s.gpu_slots = 0; /* the placements hear of every selection */
    assert_int_equal(s.placement.sinks, 2);
    assert_int_equal(s.placement.window, 4);
    assert_true(s.placement.alpha == 0.1);
    assert_int_equal(trace_replay_run(&r, file, kind, &s, &why), 0);
    return r;
}

/* Layer 0 selects the same 20 old, cold tokens at each step, and layer 1 others. Each placement
 * that moves what is selected misses them once and never again; bkp when it is convinced. */
static void a_steady_set_is_learned(void **state)
{
    (void)state;
    open_writer();
    for (uint32_t i = 0; i < STEPS; i++) {
        put(1, i, 0, PROMPT + i, 10, 20, NULL);
        put(1, i, 1, PROMPT + i, 50, 20, NULL);
    }
    struct trace_file *file = reopen();
    for (unsigned kind = PLACEMENT_BKP; kind < PLACEMENT_COUNT; kind++) {
        if (kind == PLACEMENT_SCORE)
            continue; /* the traces have no scores */
        struct trace_replay_result r = run(file, (enum placement_kind)kind, 0.4);
        assert_int_equal(r.streams, 2);
        assert_int_equal(r.steps, STEPS);
        assert_int_equal(r.queries, 2 * STEPS);
        assert_int_equal(r.n_last, PROMPT + STEPS - 1);
        assert_int_equal(r.stats.hits_hot + r.stats.hits_cold, 40 * STEPS);
        assert_int_equal(r.stats.promoted, 40);
        assert_int_equal(r.stats.bounced, 0);
        if (kind == PLACEMENT_BKP)
            assert_in_range(r.stats.hits_cold, 40, 40 * 4);
        else
            assert_int_equal(r.stats.hits_cold, 40);
    }
    /* one layer alone */
    struct trace_replay_settings s = trace_replay_defaults(file);
    struct trace_replay_result r;
    struct hill_why why;
    s.layer = 1;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), 0);
    assert_int_equal(r.streams, 1);
    assert_int_equal(r.steps, STEPS);
    trace_file_close(file);
}

/* Two sets take turns in a tier that holds one of them. What has come up goes down free: written is
 * only what was hot at first, or what was appended. By recency nothing comes up, so all is. */
static void what_comes_up_goes_down_free(void **state)
{
    (void)state;
    open_writer();
    for (uint32_t i = 0; i < STEPS; i++)
        put(1, i, 0, PROMPT + i, i % 2 ? 10 : 50, 20, NULL);
    struct trace_file *file = reopen();
    struct trace_replay_settings s = trace_replay_defaults(file);
    struct trace_replay_result r, few;
    struct hill_why why;
    s.hot = 0.1;
    s.gpu_slots = 0;
    s.copies_part = 0;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), 0);
    assert_true(r.stats.demoted > 10 * STEPS);
    assert_in_range(r.written, 14, 14 + STEPS); /* 14 of 20 were hot and not forced at first */
    assert_int_equal(r.given_away, 0);
    assert_true(r.copies > 0 && r.copies < r.cold);
    s.copies_part = PROMPT; /* next to none */
    assert_int_equal(trace_replay_run(&few, file, PLACEMENT_LRU, &s, &why), 0);
    assert_true(few.given_away > 0 && few.given_away <= few.written);
    assert_true(few.written > r.written && few.copies < r.copies);
    assert_int_equal(few.stats.demoted, r.stats.demoted); /* lru does not look at copies */
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_RECENCY, &s, &why), 0);
    assert_true(r.stats.demoted > 0 && r.written == r.stats.demoted);
    assert_true(r.stats.promoted == 0 && r.copies == 0);
    trace_file_close(file);
}

/* The same positions in two requests are not the same tokens, and a file may mix them. */
static void requests_do_not_mix(void **state)
{
    (void)state;
    open_writer();
    for (uint32_t i = 0; i < 10; i++) {
        put(1, i, 0, PROMPT + i, 10, 20, NULL);
        put(2, i, 0, PROMPT + i, 10, 20, NULL);
    }
    struct trace_file *file = reopen();
    struct trace_replay_result r = run(file, PLACEMENT_LRU, 0.4);
    assert_int_equal(r.streams, 2);
    assert_int_equal(r.steps, 20);
    assert_int_equal(r.stats.hits_cold, 40);
    trace_file_close(file);
}

/* After a crash the scorer's trace goes on at an earlier token. */
static void a_trimmed_sequence_goes_on(void **state)
{
    (void)state;
    open_writer();
    for (uint32_t i = 0; i < 10; i++)
        put(1, i, 0, PROMPT + i, 10, 5, NULL);
    for (uint32_t i = 7; i < 20; i++)
        put(1, i, 0, PROMPT + i, 10, 5, NULL);
    struct trace_file *file = reopen();
    for (unsigned kind = PLACEMENT_BKP; kind < PLACEMENT_COUNT; kind++)
        if (kind != PLACEMENT_SCORE)
            assert_int_equal(run(file, (enum placement_kind)kind, 0.4).stats.steps, 23);
    trace_file_close(file);
}

static void the_score_policy_needs_scores(void **state)
{
    (void)state;
    static uint16_t scores[PROMPT + 1];
    struct trace_replay_settings s;
    struct trace_replay_result r;
    struct hill_why why;
    open_writer();
    for (uint32_t i = 10; i < 15; i++)
        scores[i] = 100;
    put(1, 0, 0, PROMPT, 10, 5, scores);
    put(1, 1, 0, PROMPT + 1, 10, 5, scores);
    struct trace_file *file = reopen();
    r = run(file, PLACEMENT_SCORE, 0.1);
    assert_int_equal(r.stats.hits_cold, 5);
    assert_int_equal(r.stats.hits_hot, 5);
    trace_file_close(file);
    open_writer();
    put(1, 0, 0, PROMPT, 10, 5, NULL);
    file = reopen();
    s = trace_replay_defaults(file);
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_SCORE, &s, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "no scores"));
    s.hot = 0;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), HILL_E_INVALID);
    trace_file_close(file);
}

/* As live, where no more than a batch comes up after a query. */
static void a_rate_for_all_limits_every_placement(void **state)
{
    (void)state;
    struct trace_replay_settings s;
    struct trace_replay_result r;
    struct hill_why why;
    struct trace_file *file = record_one_layer();
    s = trace_replay_defaults(file);
    s.gpu_slots = 0;
    s.hot = 0.4;
    s.placement.rate = 3;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), 0);
    assert_int_equal(r.stats.hits_cold, 20);
    s.limits_all = true; /* 20, 17, 14, 11, 8, 5 and 2 are missed */
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), 0);
    assert_int_equal(r.stats.hits_cold, 77);
    assert_int_equal(r.stats.promoted, 20);
    trace_file_close(file);
}

/* What the GPU keeps is no miss: the placements hear of a steady set once. */
static void the_gpu_keeps_what_it_has(void **state)
{
    (void)state;
    struct trace_replay_settings s;
    struct trace_replay_result r;
    struct hill_why why;
    struct trace_file *file = record_one_layer();
    s = trace_replay_defaults(file);
    assert_int_equal(s.gpu_slots, 20); /* no context is known: the longest selection */
    for (unsigned kind = PLACEMENT_BKP; kind < PLACEMENT_COUNT; kind++) {
        if (kind == PLACEMENT_SCORE)
            continue; /* the traces have no scores */
        assert_int_equal(trace_replay_run(&r, file, (enum placement_kind)kind, &s, &why), 0);
        assert_int_equal(r.stats.hits_hot + r.stats.hits_cold, 20);
        assert_int_equal(r.gpu_hits, 20 * (STEPS - 1));
        assert_int_equal(r.uploads, 20);
        assert_int_equal(r.selected, 20 * STEPS);
        assert_true(trace_replay_near_rate(&r) ==
                    (double)(r.gpu_hits + r.stats.hits_hot) / (20 * STEPS));
    }
    s.gpu_slots = 19;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "19 slots"));
    trace_file_close(file);
}

/* A scorer that starts again has an empty GPU. */
static void the_gpu_forgets_when_a_sequence_is_trimmed(void **state)
{
    (void)state;
    struct trace_replay_settings s;
    struct trace_replay_result r;
    struct hill_why why;
    open_writer();
    for (uint32_t i = 0; i < 10; i++)
        put(1, i, 0, PROMPT + i, 10, 5, NULL);
    for (uint32_t i = 7; i < 20; i++)
        put(1, i, 0, PROMPT + i, 10, 5, NULL);
    struct trace_file *file = reopen();
    s = trace_replay_defaults(file);
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_BKP, &s, &why), 0);
    assert_int_equal(r.uploads, 10);
    assert_int_equal(r.gpu_hits, 5 * 21);
    trace_file_close(file);
}

/* The scorer's slots: the budget of the whole context. */
static void the_slots_are_those_of_the_context(void **state)
{
    (void)state;
    const struct trace_settings settings = {
        .geometry = {2, 2, 1, 4}, .sinks = 2, .window = 4, .alpha = 0.1, .ctx_tokens = 500};
    struct hill_why why;
    assert_int_equal(trace_open(&writer, path, &settings, &why), 0);
    put(1, 0, 0, PROMPT, 10, 20, NULL);
    struct trace_file *file = reopen();
    assert_int_equal(trace_replay_defaults(file).gpu_slots, 50);
    trace_file_close(file);
}

/* One stream of random selections against a table kept the plain way: of the entries that are not
 * selected now, the lowest positions make room. lru hears of what is lacked and of nothing else. */
static void the_gpu_against_a_plain_model(void **state)
{
    enum { N = 150, SLOTS = 40, ROUNDS = 400, SINKS = 2, WINDOW = 4 };
    (void)state;
    static bool held[N];
    uint32_t n_held = 0;
    uint64_t random = 4711, kept = 0, lacked = 0, uploads = 0;
    memset(held, 0, sizeof held);
    open_writer();
    for (uint32_t step = 0; step < ROUNDS; step++) {
        bool chosen[N] = {0};
        uint32_t words[SLOTS], n = 0;
        for (uint32_t i = 0; i < N && n < SLOTS; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            chosen[i] = (random >> 33) % (i % 3 ? 12 : 4) == 0;
            if (chosen[i])
                words[n++] = i;
        }
        for (uint32_t i = 0; i < n; i++) {
            bool counts = words[i] >= SINKS && words[i] < N - WINDOW;
            kept += counts && held[words[i]];
            lacked += counts && !held[words[i]];
            uploads += !held[words[i]];
            n_held += !held[words[i]];
            held[words[i]] = true;
        }
        for (uint32_t i = 0; i < N && n_held > SLOTS; i++)
            if (held[i] && !chosen[i]) {
                held[i] = false;
                n_held--;
            }
        struct trace_query q = {
            .request = 1, .step = step, .n_tokens = N, .n_selected = n, .words = words};
        assert_int_equal(trace_query(writer, &q), 0);
    }
    struct trace_file *file = reopen();
    struct trace_replay_settings s = trace_replay_defaults(file);
    struct trace_replay_result r;
    struct hill_why why;
    s.gpu_slots = SLOTS;
    assert_int_equal(trace_replay_run(&r, file, PLACEMENT_LRU, &s, &why), 0);
    assert_int_equal(r.gpu_hits, kept);
    assert_int_equal(r.uploads, uploads);
    assert_int_equal(r.stats.hits_hot + r.stats.hits_cold, lacked);
    assert_true(kept > 1000 && lacked > 1000);
    trace_file_close(file);
}

static void an_empty_trace_is_nothing(void **state)
{
    (void)state;
    open_writer();
    struct trace_file *file = reopen();
    struct trace_replay_result r = run(file, PLACEMENT_BKP, 0.6);
    assert_int_equal(r.queries, 0);
    assert_true(trace_replay_hit_rate(&r) == 1);
    assert_int_equal(r.streams, 0);
    trace_file_close(file);
}

/* Noise around a favourite set that drifts: the paper's promise in small. score follows every
 * score and moves much; bkp must come near it with a fifth of the moves, and near the optimum. */
static void bkp_on_a_drifting_set_with_noise(void **state)
{
    (void)state;
    uint64_t random = 99;
    open_writer();
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t n = 600 + i, words[600], count = 0;
        uint16_t scores[900];
        for (uint32_t t = 0; t < n; t++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            /* every 7th token is a favourite, but for those that the drift has left behind */
            bool favourite = t % 7 == 0 && t >= i / 3 && t < 500 + i / 3;
            scores[t] = (uint16_t)((favourite ? 50000 : 20000) + random % 20000);
            if (t < 2 || t + 4 >= n || (favourite && random % 100 < 95) || random % 1000 < 1)
                words[count++] = t;
        }
        struct trace_query q = {.request = 1,
                                .step = i,
                                .n_tokens = n,
                                .n_selected = count,
                                .words = words,
                                .scores = scores};
        assert_int_equal(trace_query(writer, &q), 0);
    }
    struct trace_file *file = reopen();
    struct trace_replay_result score = run(file, PLACEMENT_SCORE, 0.4),
                               bkp = run(file, PLACEMENT_BKP, 0.4),
                               best = run(file, PLACEMENT_BELADY, 0.4);
    assert_true(trace_replay_hit_rate(&bkp) >= trace_replay_hit_rate(&score) - 0.02);
    assert_true(trace_replay_hit_rate(&bkp) >= trace_replay_hit_rate(&best) - 0.05);
    assert_true((bkp.stats.promoted + bkp.stats.demoted) * 5 <=
                score.stats.promoted + score.stats.demoted);
    trace_file_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_set_is_learned),
        cmocka_unit_test(what_comes_up_goes_down_free),
        cmocka_unit_test(requests_do_not_mix),
        cmocka_unit_test(a_trimmed_sequence_goes_on),
        cmocka_unit_test(the_score_policy_needs_scores),
        cmocka_unit_test(a_rate_for_all_limits_every_placement),
        cmocka_unit_test(the_gpu_keeps_what_it_has),
        cmocka_unit_test(the_gpu_forgets_when_a_sequence_is_trimmed),
        cmocka_unit_test(the_slots_are_those_of_the_context),
        cmocka_unit_test(the_gpu_against_a_plain_model),
        cmocka_unit_test(an_empty_trace_is_nothing),
        cmocka_unit_test(bkp_on_a_drifting_set_with_noise),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
