/* tests/cpu_scorer/test_placements.c - every live placement: the same selections, and what it hits
 * and moves is what its replay over the run's trace does; see pipeline_rig.h. */
#include <math.h>
#include <unistd.h>

#include "placement/trace_replay.h"
#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 400, STEPS = 60, MAX = PROMPT + STEPS };

#define BETA 0.66

static char path[64];

static int make_path(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/hill-test-placements-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

/* A request whose GPU keeps nothing, so that each query is told in full; moves are over before the
 * next step, as in a replay. */
static struct scorer_stats run_live(enum placement_kind kind)
{
    struct trace_settings settings = {.geometry = rig_geometry,
                                      .sinks = usual.sinks,
                                      .window = usual.window,
                                      .alpha = usual.alpha};
    struct trace_writer *writer;
    struct hill_why why;
    assert_int_equal(trace_open(&writer, path, &settings, &why), 0);
    struct rig *r = rig_start(&(struct rig_options){
        .csd = true, .beta = BETA, .placement = kind, .pin = -1, .gpu_drop = 1, .trace = writer});
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    for (uint32_t i = 0; i < STEPS; i++)
        gpu_decode_settled(q, 1);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats s = gpu_end(q);
    assert_int_equal(s.selection_hash, hash);
    assert_int_equal(s.hot.tokens + s.cold.tokens, (uint64_t)MAX * RIG_LAYERS);
    rig_stop(r);
    assert_int_equal(trace_close(writer), 0);
    return s;
}

struct counts {
    uint64_t hits_hot, hits_cold, promoted, demoted;
};

/* Of the trace, without what is forced. */
static struct counts count_live(struct trace_file *file, const struct scorer_stats *s)
{
    struct counts c = {.promoted = s->promoted, .demoted = s->demoted};
    for (uint32_t i = 0; i < trace_file_count(file); i++) {
        const struct trace_record *r = trace_file_record(file, i);
        const uint32_t *words;
        const uint16_t *scores;
        struct hill_why why;
        assert_int_equal(trace_file_read(file, i, &words, &scores, &why), 0);
        for (uint32_t j = 0; j < r->n_selected; j++) {
            uint32_t position = words[j] & TRACE_POSITION_MASK;
            if (position < usual.sinks || position + usual.window >= r->n_tokens)
                continue;
            assert_false(words[j] & TRACE_GPU);
            c.hits_hot += !(words[j] & TRACE_COLD);
            c.hits_cold += (words[j] & TRACE_COLD) != 0;
        }
    }
    return c;
}

static struct counts count_replayed(struct trace_file *file, enum placement_kind kind)
{
    struct trace_replay_settings how = trace_replay_defaults(file);
    struct trace_replay_result out;
    struct hill_why why;
    how.hot = BETA / (1 + BETA);
    how.gpu_slots = 0;
    how.limits_all = true;
    how.placement.margin = 0.5; /* the rig's */
    assert_int_equal(trace_replay_run(&out, file, kind, &how, &why), 0);
    return (struct counts){out.stats.hits_hot, out.stats.hits_cold, out.stats.promoted,
                           out.stats.demoted};
}

/* New tokens are told four at a time, and what must be written waits for others: so not to the
 * token. Placements that differ by more live in the order of their replays. */
static bool is_near(uint64_t a, uint64_t b)
{
    return fabs((double)a - (double)b) <= 0.10 * (double)(a > b ? a : b);
}

static void test_what_is_live_is_what_is_replayed(void **unused)
{
    struct counts lives[PLACEMENT_LIVE_COUNT], replays[PLACEMENT_LIVE_COUNT];
    uint64_t first = 0;
    (void)unused;
    for (enum placement_kind kind = 0; kind < PLACEMENT_LIVE_COUNT; kind++) {
        struct scorer_stats stats = run_live(kind);
        struct trace_file *file;
        struct hill_why why;
        first = kind ? first : stats.selection_hash;
        assert_int_equal(stats.selection_hash, first);
        assert_int_equal(trace_file_open(&file, path, &why), 0);
        struct counts live = count_live(file, &stats), replayed = count_replayed(file, kind);
        lives[kind] = live;
        replays[kind] = replayed;
        trace_file_close(file);
        print_message("%s: hot %llu and %llu, cold %llu and %llu, promoted %llu and %llu, demoted "
                      "%llu and %llu\n",
                      placement_name(kind), (unsigned long long)live.hits_hot,
                      (unsigned long long)replayed.hits_hot, (unsigned long long)live.hits_cold,
                      (unsigned long long)replayed.hits_cold, (unsigned long long)live.promoted,
                      (unsigned long long)replayed.promoted, (unsigned long long)live.demoted,
                      (unsigned long long)replayed.demoted);
        assert_true((live.promoted > 0) == (kind != PLACEMENT_RECENCY));
        assert_int_equal(live.hits_hot + live.hits_cold, replayed.hits_hot + replayed.hits_cold);
        assert_true(is_near(live.hits_cold, replayed.hits_cold));
        assert_true(is_near(live.promoted, replayed.promoted));
        assert_true(is_near(live.demoted, replayed.demoted));
    }
    for (int a = 0; a < PLACEMENT_LIVE_COUNT; a++)
        for (int b = 0; b < a; b++)
            if ((double)replays[a].hits_hot > 1.05 * (double)replays[b].hits_hot)
                assert_true(lives[a].hits_hot > lives[b].hits_hot);
            else if ((double)replays[b].hits_hot > 1.05 * (double)replays[a].hits_hot)
                assert_true(lives[b].hits_hot > lives[a].hits_hot);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_live_is_what_is_replayed),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
