/*
 * Placements under random operations: lru, lfu and score against brute-force models that search
 * every token; bkp against a table of exact counts in FP64; belady against every possible choice.
 *
 * HILL_TEST_SEED and HILL_TEST_OPERATIONS (default 40000 a placement) set seed and length.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "placement/placement.h"
#include "tests/rounds.h"

#define MAX 260u

static uint64_t seed = 20240607, random_state;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % n);
}

/* ---- the model ---------------------------------------------------------------------------- */

struct model {
    enum placement_kind kind;
    uint32_t sinks, window, n, capacity, step, stamp;
    uint32_t rate;
    bool hot[MAX];
    uint32_t recency[MAX], count[MAX], used[MAX], moved[MAX];
    uint16_t score[MAX];
    double exact[MAX]; /* bkp's count in selections of today */
    struct placement_stats stats;
};

static bool forced(const struct model *m, uint32_t i)
{
    return i < m->sinks || i + m->window >= m->n;
}

static uint32_t hot_tokens(const struct model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++)
        n += m->hot[i];
    return n;
}

/* Is a to go down before b? */
static bool worse(const struct model *m, uint32_t a, uint32_t b)
{
    if (m->kind == PLACEMENT_LRU)
        return m->recency[a] < m->recency[b];
    if (m->kind == PLACEMENT_SCORE)
        return m->score[a] < m->score[b];
    if (m->count[a] != m->count[b])
        return m->count[a] < m->count[b];
    return m->used[a] < m->used[b];
}

static uint32_t model_victim(const struct model *m, bool spare_selected)
{
    uint32_t worst = UINT32_MAX;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->hot[i] && !forced(m, i) && !(spare_selected && m->used[i] == m->step) &&
            (worst == UINT32_MAX || worse(m, i, worst)))
            worst = i;
    return worst;
}

static void model_move(struct model *m, uint32_t i, bool up)
{
    if (up && m->moved[i] && m->step - m->moved[i] <= 16)
        m->stats.bounced++;
    m->hot[i] = up;
    m->moved[i] = m->step;
    m->recency[i] = ++m->stamp;
    if (up)
        m->stats.promoted++;
    else
        m->stats.demoted++;
}

static void model_append(struct model *m, uint32_t count, uint32_t capacity)
{
    uint32_t old = m->n, was_forced_from = old > m->window ? old - m->window : 0;
    m->n += count;
    uint32_t least = m->sinks + m->window < m->n ? m->sinks + m->window : m->n;
    m->capacity = capacity > least ? capacity : least;
    for (uint32_t i = old; i < m->n; i++) {
        m->hot[i] = true;
        m->moved[i] = 0;
    }
    for (uint32_t i = m->sinks; old == 0 && i < m->n && hot_tokens(m) > m->capacity; i++) {
        m->hot[i] = false;
        m->stats.placed_cold++;
    }
    for (uint32_t i = was_forced_from; i < m->n; i++)
        if (!forced(m, i) && m->hot[i])
            m->recency[i] = ++m->stamp;
    while (hot_tokens(m) > m->capacity)
        model_move(m, model_victim(m, false), false);
}

static void model_watch(struct model *m, const uint32_t *selected, uint32_t n)
{
    m->step++;
    m->stats.steps++;
    for (uint32_t i = 0; i < m->n; i++)
        m->exact[i] /= exp2(1.0 / placement_defaults().half_life);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = selected[i];
        m->exact[s]++;
        m->used[s] = m->step;
        if (forced(m, s))
            continue;
        m->count[s]++;
        if (m->hot[s]) {
            m->stats.hits_hot++;
            m->recency[s] = ++m->stamp;
        } else {
            m->stats.hits_cold++;
        }
    }
}

/* Does lru or lfu bring up the i-th selected token? All that fit into the rate, else the highest
 * counts, and of equal ones (by lru all are) a run that begins where it begins at this step. */
static bool model_comes_up(const struct model *m, const uint32_t *selected, uint32_t n, uint32_t i)
{
    uint32_t higher = 0, equal = 0, mine = 0, wanted = 0;
    if (m->hot[selected[i]] || forced(m, selected[i]))
        return false;
    for (uint32_t j = 0; j < n; j++) {
        if (m->hot[selected[j]] || forced(m, selected[j]))
            continue;
        uint32_t a = m->count[selected[j]], b = m->count[selected[i]];
        wanted++;
        higher += m->kind == PLACEMENT_LFU && a > b;
        if (m->kind == PLACEMENT_LRU || a == b) {
            mine = j < i ? mine + 1 : mine;
            equal++;
        }
    }
    if (m->rate == 0 || wanted <= m->rate)
        return true;
    if (higher >= m->rate)
        return false;
    uint32_t left = m->rate - higher;
    return left >= equal || (mine + equal - m->step * left % equal) % equal < left;
}

/* lru and lfu */
static void model_cache_step(struct model *m, const uint32_t *selected, uint32_t n)
{
    bool up[MAX];
    for (uint32_t i = 0; i < n; i++)
        up[i] = model_comes_up(m, selected, n, i);
    for (uint32_t i = 0; i < n; i++) {
        if (!up[i])
            continue;
        if (hot_tokens(m) >= m->capacity) {
            uint32_t down = model_victim(m, true);
            if (down == UINT32_MAX)
                break;
            model_move(m, down, false);
        }
        model_move(m, selected[i], true);
    }
}

/* the forced tokens, then by score, the newer first: rank by counting who is better */
static void model_score_step(struct model *m, const uint16_t *scores)
{
    bool wanted[MAX];
    memcpy(m->score, scores, m->n * sizeof *scores);
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < m->n; j++)
            better += j != i && (forced(m, j) ||
                                 (scores[j] > scores[i] || (scores[j] == scores[i] && j > i)));
        wanted[i] = forced(m, i) || better < m->capacity;
    }
    for (uint32_t i = 0; i < m->n; i++)
        if (wanted[i] != m->hot[i])
            model_move(m, i, wanted[i]);
}

static void model_trim(struct model *m, uint32_t n)
{
    for (uint32_t i = n; i < MAX; i++) {
        m->hot[i] = false;
        m->moved[i] = m->count[i] = m->used[i] = m->score[i] = 0;
        m->exact[i] = 0;
    }
    m->n = n;
    uint32_t least = m->sinks + m->window < n ? m->sinks + m->window : n;
    if (m->capacity < least)
        m->capacity = least;
}

/* ---- what holds for all -------------------------------------------------------------------- */

struct rig {
    struct placement *placement;
    struct model model;
    struct placement_settings settings;
    bool follows; /* the model says every move; else (bkp) it follows what is done */
    bool loose;   /* trim or place may leave forced tokens cold, or too many hot */
};

static void apply(struct rig *r, const struct placement_moves *moves)
{
    struct model *m = &r->model;
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        assert_true(m->hot[moves->demoted[i]]);
        assert_false(forced(m, moves->demoted[i]));
        model_move(m, moves->demoted[i], false);
    }
    for (uint32_t i = 0; i < moves->n_promoted; i++) {
        assert_false(m->hot[moves->promoted[i]]);
        model_move(m, moves->promoted[i], true);
    }
}

static void compare(const struct rig *r)
{
    const struct model *m = &r->model;
    assert_int_equal(placement_tokens(r->placement), m->n);
    assert_int_equal(placement_hot_tokens(r->placement), hot_tokens(m));
    for (uint32_t i = 0; i < m->n; i++)
        assert_int_equal(placement_is_hot(r->placement, i), m->hot[i]);
    assert_memory_equal(placement_stats(r->placement), &m->stats, sizeof m->stats);
    if (!r->loose) {
        assert_true(hot_tokens(m) <= m->capacity);
        for (uint32_t i = 0; i < m->n; i++)
            assert_true(m->hot[i] || !forced(m, i));
    }
}

/* bkp: swaps pay, rest is kept, pinned tokens stay, the highest counts stay. */
static void check_bkp_step(const struct rig *r, const struct placement_moves *moves, bool was_full)
{
    const struct model *m = &r->model;
    const struct placement_settings *s = &r->settings;
    uint32_t pin = (uint32_t)ceil(s->pin * m->n);
    pin = pin < m->capacity / 16 ? pin : m->capacity / 16;
    if (was_full)
        assert_int_equal(moves->n_promoted, moves->n_demoted);
    for (uint32_t i = 0; i < moves->n_demoted; i++) {
        uint32_t down = moves->demoted[i],
                 up = moves->promoted[moves->n_promoted - moves->n_demoted + i];
        /* integers and the growing weight: a twentieth of a selection is lost at most */
        assert_true(m->exact[up] > m->exact[down] + s->margin - 0.05);
        if (pin <= m->capacity - s->sinks)
            assert_true(down + pin < m->n);
        assert_true(m->moved[down] == 0 || m->step - m->moved[down] >= s->rest_steps);
    }
    for (uint32_t i = 0; i < moves->n_promoted; i++)
        assert_true(m->moved[moves->promoted[i]] == 0 ||
                    m->step - m->moved[moves->promoted[i]] >= s->rest_steps);
}

/* ---- operations --------------------------------------------------------------------------- */

/* A few favourites, a drifting neighbourhood, some anywhere; ascending. */
static uint32_t choose(const struct model *m, uint32_t *selected)
{
    bool in[MAX] = {false};
    uint32_t n = 0, about = m->step / 7 % m->n;
    for (uint32_t i = 0; i < m->n / 4 + 1; i++) {
        uint32_t kind = random_below(3);
        in[kind == 0   ? random_below(m->n) * random_below(8) / 8
           : kind == 1 ? (about + random_below(9)) % m->n
                       : random_below(m->n)] = true;
    }
    for (uint32_t i = 0; i < m->n; i++)
        if (in[i] || (forced(m, i) && random_below(8)))
            selected[n++] = i;
    return n;
}

static void do_append(struct rig *r)
{
    struct model *m = &r->model;
    struct placement_moves moves;
    uint32_t count = m->n == 0 ? 1 + random_below(MAX / 2) : random_below(3);
    if (count > MAX - m->n)
        count = MAX - m->n;
    uint32_t capacity = random_below(50) ? m->capacity : 1 + random_below(m->n + count);
    assert_int_equal(placement_append(r->placement, count, capacity, &moves), 0);
    assert_int_equal(moves.n_promoted, 0);
    if (r->follows) {
        model_append(m, count, capacity);
    } else {
        uint32_t large = MAX;
        if (m->n)
            model_append(m, count, large);
        else
            model_append(m, count, capacity);
        uint32_t least = m->sinks + m->window < m->n ? m->sinks + m->window : m->n;
        m->capacity = capacity > least ? capacity : least;
        apply(r, &moves);
    }
    if (hot_tokens(m) <= m->capacity && m->n == count)
        r->loose = false;
}

static void do_step(struct rig *r)
{
    struct model *m = &r->model;
    struct placement_moves moves;
    uint32_t selected[MAX], n;
    uint16_t scores[MAX];
    if (m->n == 0)
        return;
    n = choose(m, selected);
    for (uint32_t i = 0; i < m->n; i++)
        scores[i] = (uint16_t)random_below(40);
    bool was_full = hot_tokens(m) >= m->capacity;
    assert_int_equal(placement_step(r->placement, selected, n, scores, 0, &moves), 0);
    model_watch(m, selected, n);
    if (m->rate)
        assert_true(moves.n_promoted <= m->rate);
    if (m->kind == PLACEMENT_BKP) {
        check_bkp_step(r, &moves, was_full);
        apply(r, &moves);
    } else if (m->kind == PLACEMENT_SCORE) {
        model_score_step(m, scores);
    } else {
        model_cache_step(m, selected, n);
    }
}

static void do_rare(struct rig *r)
{
    struct model *m = &r->model;
    uint32_t selected[MAX], n;
    switch (random_below(3)) {
    case 0:
        if (m->n == 0)
            return;
        n = choose(m, selected);
        assert_int_equal(placement_watch(r->placement, selected, n), 0);
        model_watch(m, selected, n);
        return;
    case 1: /* a new sequence */
        assert_int_equal(placement_trim(r->placement, 0), 0);
        model_trim(m, 0);
        return;
    default: /* without a window a trim leaves nothing cold that is forced */
        n = m->n > 3 ? m->n - random_below(3) : m->n;
        assert_int_equal(placement_trim(r->placement, n), 0);
        model_trim(m, n);
        r->loose |= m->window != 0;
    }
}

static void run(enum placement_kind kind, uint32_t sinks, uint32_t window, uint32_t rate)
{
    const char *text = getenv("HILL_TEST_OPERATIONS");
    uint32_t operations = text ? (uint32_t)strtoul(text, NULL, 10) : TEST_ROUNDS(40000);
    struct rig r = {.settings = placement_defaults(), .follows = kind != PLACEMENT_BKP};
    struct hill_why why;
    random_state = seed + kind * 1000 + window;
    r.settings.max_tokens = MAX;
    r.settings.sinks = sinks;
    r.settings.window = window;
    r.settings.rate = rate;
    r.model =
        (struct model){.kind = kind, .sinks = sinks, .window = window, .rate = rate, .capacity = 9};
    assert_int_equal(placement_create(&r.placement, kind, &r.settings, &why), 0);
    for (uint32_t i = 0; i < operations; i++) {
        uint32_t what = random_below(1000);
        if (what < 4 || r.model.n >= MAX - 2)
            do_rare(&r);
        else if (what < 300)
            do_append(&r);
        else
            do_step(&r);
        compare(&r);
    }
    printf("%s: seed %llu, %u operations, %llu promoted, %llu demoted, %llu bounced\n",
           placement_name(kind), (unsigned long long)seed, operations,
           (unsigned long long)r.model.stats.promoted, (unsigned long long)r.model.stats.demoted,
           (unsigned long long)r.model.stats.bounced);
    assert_true(r.model.stats.promoted > operations / 100);
    placement_destroy(r.placement);
}

static void lru_is_the_model(void **state)
{
    (void)state;
    run(PLACEMENT_LRU, 2, 5, 0);
    run(PLACEMENT_LRU, 0, 0, 3);
}

static void lfu_is_the_model(void **state)
{
    (void)state;
    run(PLACEMENT_LFU, 2, 5, 0);
    run(PLACEMENT_LFU, 0, 0, 3);
}

static void score_is_the_model(void **state)
{
    (void)state;
    run(PLACEMENT_SCORE, 2, 5, 0);
    run(PLACEMENT_SCORE, 0, 0, 0);
}

static void bkp_keeps_its_rules(void **state)
{
    (void)state;
    run(PLACEMENT_BKP, 2, 5, 4);
    run(PLACEMENT_BKP, 0, 0, 1);
    run(PLACEMENT_BKP, 3, 20, 0);
}

/* ---- belady against every choice ------------------------------------------------------------ */

#define TINY_TOKENS 6u
#define TINY_STEPS  6u

struct tiny {
    uint32_t capacity;
    uint32_t n_tokens[TINY_STEPS];
    uint32_t masks[TINY_STEPS]; /* selected */
};

/* Most hits from `step` on, with the tokens of `hot` there before its new tokens arrive: every
 * subset of what is hot, new or selected may be kept. No sinks, a window of 1. */
static uint32_t most_hits(const struct tiny *t, uint32_t step, uint32_t hot, uint32_t n)
{
    if (step == TINY_STEPS)
        return 0;
    uint32_t all = (1u << t->n_tokens[step]) - 1, last = 1u << (t->n_tokens[step] - 1), best = 0;
    uint32_t there = hot | (all & ~((1u << n) - 1)); /* the new ones are hot at first */
    for (uint32_t before = there; before; before = (before - 1) & there) {
        if (!(before & last) || (uint32_t)__builtin_popcount(before) > t->capacity)
            continue;
        uint32_t hits = (uint32_t)__builtin_popcount(before & t->masks[step] & ~last);
        uint32_t may = before | t->masks[step];
        for (uint32_t after = may; after; after = (after - 1) & may)
            if ((after & last) && (uint32_t)__builtin_popcount(after) <= t->capacity) {
                uint32_t total = hits + most_hits(t, step + 1, after, t->n_tokens[step]);
                best = total > best ? total : best;
            }
    }
    return best;
}

static uint32_t belady_hits(const struct tiny *t)
{
    uint32_t lists[TINY_STEPS][TINY_TOKENS], counts[TINY_STEPS] = {0};
    const uint32_t *selected[TINY_STEPS];
    for (uint32_t s = 0; s < TINY_STEPS; s++) {
        selected[s] = lists[s];
        for (uint32_t i = 0; i < TINY_TOKENS; i++)
            if (t->masks[s] >> i & 1)
                lists[s][counts[s]++] = i;
    }
    struct placement_future future = {TINY_STEPS, t->n_tokens, counts, selected};
    struct placement_settings settings = placement_defaults();
    struct placement *p;
    struct placement_moves moves;
    settings.max_tokens = TINY_TOKENS;
    settings.sinks = 0;
    settings.window = 1;
    settings.future = &future;
    assert_int_equal(placement_create(&p, PLACEMENT_BELADY, &settings, NULL), 0);
    for (uint32_t s = 0; s < TINY_STEPS; s++) {
        assert_int_equal(
            placement_append(p, t->n_tokens[s] - placement_tokens(p), t->capacity, &moves), 0);
        assert_int_equal(placement_step(p, selected[s], counts[s], NULL, 0, &moves), 0);
        assert_int_equal(moves.n_promoted, moves.n_demoted);
        assert_true(placement_hot_tokens(p) <= t->capacity);
    }
    uint32_t hits = (uint32_t)placement_stats(p)->hits_hot;
    placement_destroy(p);
    return hits;
}

static void belady_is_the_best_of_all_choices(void **state)
{
    (void)state;
    uint64_t sum = 0;
    random_state = seed;
    for (uint32_t round = 0; round < 150; round++) {
        struct tiny t = {.capacity = 2 + random_below(2)};
        uint32_t n = 3 + random_below(2);
        for (uint32_t s = 0; s < TINY_STEPS; s++) {
            t.n_tokens[s] = n;
            t.masks[s] = random_below(1u << n) & (random_below(1u << n) | 1u << random_below(n));
            n += n < TINY_TOKENS && random_below(3) == 0;
        }
        /* the prompt's newest are hot */
        uint32_t prompt = (1u << t.n_tokens[0]) - 1;
        uint32_t hot = prompt & ~((1u << (t.n_tokens[0] - t.capacity)) - 1);
        uint32_t best = most_hits(&t, 0, hot, t.n_tokens[0]);
        assert_int_equal(belady_hits(&t), best);
        sum += best;
    }
    printf("belady: seed %llu, %llu hits in all\n", (unsigned long long)seed,
           (unsigned long long)sum);
    assert_true(sum > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_is_the_model),
        cmocka_unit_test(lfu_is_the_model),
        cmocka_unit_test(score_is_the_model),
        cmocka_unit_test(bkp_keeps_its_rules),
        cmocka_unit_test(belady_is_the_best_of_all_choices),
    };
    const char *text = getenv("HILL_TEST_SEED");
    if (text)
        seed = strtoull(text, NULL, 10);
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
