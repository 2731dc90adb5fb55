/* tests/cpu_scorer/test_pipeline.c - the whole pipeline between a fake GPU worker and a fake agent;
 * see pipeline_rig.h. */
#include "cpu_scorer/hot_share.h"
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/rounds.h"

/* some thirty steps until bkp promotes whatever beta is */
enum { PROMPT = 500, STEPS = 30 + TEST_ROUNDS(30), MAX = PROMPT + STEPS };

/* Sums over each passage of what answers had, but for sinks and window: those of N = PROMPT .. */
static void check_passages(const struct scorer_passages *p, const uint32_t *answered,
                           const struct kv_selection_settings *how)
{
    uint64_t all = 0, counted = 0, always = 0;
    assert_int_equal(p->queries, STEPS * RIG_LAYERS);
    assert_int_equal(p->n, (PROMPT + STEPS - 2) / p->tokens + 1);
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t most = 0;
        for (uint32_t at = i * p->tokens; at < (i + 1) * p->tokens && at < RIG_CTX; at++)
            most += answered[at];
        if ((i + 1) * p->tokens <= PROMPT - how->window && i * p->tokens >= how->sinks)
            assert_int_equal(p->chosen[i], most); /* never in the window */
        assert_true(p->chosen[i] <= most);
        counted += p->chosen[i];
        all += most;
    }
    always = (uint64_t)(how->sinks + how->window) * STEPS * RIG_LAYERS;
    assert_int_equal(counted + always, all);
}

/* A whole request checked against the oracle: its statistics. */
static struct scorer_stats whole_request(const struct rig_options *options,
                                         const struct kv_selection_settings *how)
{
    struct rig *r = rig_start(options);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, how, 0);
    gpu_prefill(q);
    gpu_decode_settled(q, STEPS);
    uint64_t hash = XXH64_digest(q->hash), uploads = q->uploads, in_place = q->in_place;
    uint32_t answered[RIG_CTX];
    memcpy(answered, q->chosen, sizeof answered);
    struct scorer_stats stats = gpu_end(q);
    check_passages(&stats.passages, answered, how); /* the counts are the scorer's, still there */
    assert_int_equal(stats.selection_hash, hash);
    assert_int_equal(stats.hot.hits + stats.cold.hits, uploads + in_place);
    if (options->reads_hot) /* no hot entry is copied */
        assert_true(stats.hot.hits == in_place && stats.cold.hits == uploads && in_place > 0);
    assert_int_equal(stats.queries, STEPS * RIG_LAYERS);
    assert_int_equal(stats.link_key_bytes, 0);
    assert_int_equal(stats.hot.tokens + stats.cold.tokens, MAX * RIG_LAYERS);
    rig_stop(r);
    return stats;
}

static uint64_t hash_of_hot_only(void)
{
    static uint64_t hash;
    struct rig_options o = {.csd = false};
    if (!hash)
        hash = whole_request(&o, &usual).selection_hash;
    return hash;
}

/* Of every token's digest in every query, `least` to `most` was read, and of each list up to a
 * block of more. */
static void assert_digests_read(const struct scorer_stats *s, double least, double most)
{
    double digest = kv_digest_bytes(&rig_geometry), all = 0;
    for (uint32_t step = 0; step < STEPS; step++)
        all += digest * RIG_LAYERS * (PROMPT + step);
    assert_true((double)s->scored_bytes >= least * all);
    assert_true((double)s->scored_bytes <=
                most * all + digest * RIG_LAYERS * STEPS * KV_HOT_BLOCK_TOKENS);
}

static void test_hot_only_selects_what_the_oracle_does(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    struct scorer_stats s = whole_request(&o, &usual);
    assert_int_equal(s.cold.tokens, 0);
    assert_true(s.beta < 0);
    assert_int_equal(s.link_score_bytes, 0);
    assert_true(s.gpu.hits > 0);
    assert_int_equal(s.budget, kv_budget_tokens(&usual, MAX - 1));
    assert_digests_read(&s, 1, 1);
}

static void test_a_fifth_cold_selects_the_same(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 4};
    struct scorer_stats s = whole_request(&o, &usual);
    assert_int_equal(s.selection_hash, hash_of_hot_only());
    assert_true(s.cold.tokens > MAX * RIG_LAYERS / 6 && s.cold.tokens < MAX * RIG_LAYERS / 4);
    assert_true(s.beta > 3.5 && s.beta < 5);
    assert_true(s.cold.hits > 0 && s.hot.hits > 0);
}

static void test_four_fifths_cold_selects_the_same(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct scorer_stats s = whole_request(&o, &usual);
    assert_int_equal(s.selection_hash, hash_of_hot_only());
    assert_true(s.cold.tokens > MAX * RIG_LAYERS * 3 / 4);
    assert_true(s.demoted > 0); /* decode moved some down */
    assert_digests_read(&s, 0.15, 0.4);
    assert_true(s.flash_read_bytes > 0 && s.flash_write_bytes > 0);
    assert_int_equal(s.link_kv_bytes, 10 * s.cold.hits); /* as the fake agent reports it */
    /* four bytes for each cold token of each query, between the first and the last count of cold
     * ones */
    assert_true(s.link_score_bytes >= 4ull * STEPS * RIG_LAYERS * (PROMPT * 4 / 5 - 1));
    assert_true(s.link_score_bytes <= 4ull * STEPS * s.cold.tokens);
}

static void test_every_scoring_path_selects_the_same(void **unused)
{
    static const char *const paths[] = {"avx2", "avx512", "avx512vnni"};
    (void)unused;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct rig_options o = {.csd = true, .beta = 0.25, .score = kv_score_choose(paths[i])};
        if (!o.score)
            continue; /* not on this CPU */
        assert_int_equal(whole_request(&o, &usual).selection_hash, hash_of_hot_only());
        o.csd = false;
        o.beta = 0;
        assert_int_equal(whole_request(&o, &usual).selection_hash, hash_of_hot_only());
    }
}

static void test_policy_full_selects_everything_unscored(void **unused)
{
    (void)unused;
    struct kv_selection_settings full = usual;
    struct rig_options o = {.csd = true, .beta = 0.25};
    full.policy = KV_POLICY_FULL;
    struct scorer_stats s = whole_request(&o, &full);
    assert_int_equal(s.link_score_bytes + s.scored_bytes, 0);
    assert_int_equal(s.budget, MAX - 1);
}

/* The first and last layer attend to their newest tokens alone; the budget is the other one's. */
static void test_layers_with_windows_select_the_newest(void **unused)
{
    (void)unused;
    static const struct rig_options places[] = {
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .pin = -1, .gpu_drop = 0.9},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct rig_options o = places[i];
        o.windows = (struct kv_layer_windows){.tokens = 71, .global_every = 2};
        struct rig *r = rig_start(&o);
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
        gpu_prefill(q);
        gpu_decode_settled(q, STEPS);
        uint64_t hash = XXH64_digest(q->hash);
        struct scorer_stats stats = gpu_end(q);
        assert_int_equal(stats.selection_hash, hash);
        assert_int_equal(stats.budget, kv_budget_tokens(&usual, MAX - 1));
        rig_stop(r);
    }
}

/* whole_request compares every selection with the oracle's; the hash shows that it is a different
 * selection for each importance, and the same one wherever the entries lie. */
static void test_every_importance_selects_the_same_at_every_place(void **unused)
{
    uint64_t hashes[KV_IMPORTANCE_COUNT];
    (void)unused;
    for (uint32_t i = 0; i < KV_IMPORTANCE_COUNT; i += TEST_STRIDE(KV_IMPORTANCE_COUNT)) {
        struct kv_selection_settings other = usual;
        struct rig_options hot = {.csd = false}, cold = {.csd = true, .beta = 0.25},
                           moving = {.csd = true,
                                     .beta = 0.66,
                                     .placement = PLACEMENT_BKP,
                                     .pin = 0.05,
                                     .score = kv_score_reference};
        other.importance = i;
        hashes[i] = whole_request(&hot, &other).selection_hash;
        assert_int_equal(whole_request(&cold, &other).selection_hash, hashes[i]);
        assert_int_equal(whole_request(&moving, &other).selection_hash, hashes[i]);
        for (uint32_t j = 0; j < i; j++)
            assert_true(hashes[i] != hashes[j]);
    }
    assert_int_equal(hashes[KV_IMPORTANCE_SUM], hash_of_hot_only());
}

static uint64_t hot_of_prompt(double beta)
{
    struct hot_share share = {
        .beta = beta, .sinks = usual.sinks, .window = usual.window, .limit = MAX};
    return (uint64_t)RIG_LAYERS * hot_share_target(&share, PROMPT);
}

/* The selection is the same while entries move both ways, at every ratio. */
static void test_bkp_selects_the_same_while_it_moves(void **unused)
{
    static const double betas[] = {4, 1.5, 0.66, 0.25};
    (void)unused;
    for (size_t i = 0; i < sizeof betas / sizeof betas[0]; i += TEST_STRIDE(2)) {
        struct rig_options o = {
            .csd = true, .beta = betas[i], .placement = PLACEMENT_BKP, .pin = 0.05};
        struct scorer_stats s = whole_request(&o, &usual);
        print_message(
            "beta %g: %llu promoted, %llu demoted (%llu free), %llu bounced; %llu hot, %llu cold\n",
            betas[i], (unsigned long long)s.promoted, (unsigned long long)s.demoted,
            (unsigned long long)s.demoted_free, (unsigned long long)s.bounced,
            (unsigned long long)s.hot.tokens, (unsigned long long)s.cold.tokens);
        assert_int_equal(s.selection_hash, hash_of_hot_only());
        assert_true(s.promoted > 0 && s.demoted > 0);
        /* the prompt's hot tokens and each that was appended went down or are hot still */
        assert_int_equal(s.demoted, s.promoted + hot_of_prompt(betas[i]) +
                                        (uint64_t)STEPS * RIG_LAYERS - s.hot.tokens);
        /* where little is cold few copies are kept, and what is written takes their slots: there
         * may be none for what goes down again */
        assert_true(s.demoted_free < s.demoted && (betas[i] > 1 || s.demoted_free > 0));
        assert_true(s.ever_cold >= s.cold.tokens && s.ever_cold <= s.cold.tokens + s.promoted);
        double ratio = (double)s.hot.tokens / (double)s.cold.tokens;
        assert_true(ratio > betas[i] * 0.9 && ratio < betas[i] * 1.15 + 0.1);
    }
}

/* What has moved up leaves its slot to others; the rig's agent looks at what is written over. With
 * little that is cold, and in steps enough, there are more copies than are kept. */
static void test_slots_of_what_moved_up_are_used_again(void **unused)
{
    (void)unused;
    const uint32_t steps = 60;
    struct rig_options o = {.csd = true, .beta = 4, .placement = PLACEMENT_BKP};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, PROMPT + steps, &usual, 0);
    gpu_prefill(q);
    gpu_decode_settled(q, steps);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats s = gpu_end(q);
    assert_int_equal(s.selection_hash, hash);
    uint32_t reused = atomic_load_explicit(&r->agent->reused, memory_order_relaxed); /* a count */
    print_message("%u of %llu demotions; %llu copies were given away for them\n", reused,
                  (unsigned long long)s.demoted,
                  (unsigned long long)(s.given_stream + s.given_room));
    assert_true(reused > 0 && reused < s.demoted);
    assert_int_equal(s.reused, reused);
    assert_true(s.given_stream + s.given_room > 0 && s.given_stream + s.given_room <= reused);
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
}

/* Two at a time, the one replaced again and again while its entries are on their way. */
static void test_bkp_survives_sequences_that_are_dropped(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .hot_blocks = 2 * 3 * RIG_LAYERS};
    struct rig *r = rig_start(&o);
    struct rig_request *b = gpu_begin(r, 1, 300, 420, &usual, 0);
    gpu_prefill(b);
    for (int i = 0; i < 10; i++) {
        struct rig_request *a = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
        gpu_prefill(a);
        for (int j = 0; j < 3 + i; j++) {
            assert_int_equal(gpu_decode(a), 0);
            assert_int_equal(gpu_decode(b), 0);
        }
        gpu_free(a);
    }
    uint64_t hash = XXH64_digest(b->hash);
    struct scorer_stats s = gpu_end(b);
    assert_int_equal(s.selection_hash, hash);
    assert_true(s.promoted > 0);
    assert_true(s.hot.tokens <= 3 * KV_HOT_BLOCK_TOKENS * RIG_LAYERS);
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
}

/* Nothing of the selection, nor of what moves, depends on how hot entries are read; what is read is
 * checked after it has been read. */
static void test_hot_entries_are_read_where_they_lie(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false, .reads_hot = true};
    struct scorer_stats s = whole_request(&o, &usual);
    assert_int_equal(s.selection_hash, hash_of_hot_only());
    assert_int_equal(s.gpu.hits, 0);
    assert_int_equal(s.gpu.tokens, 0); /* they take no GPU slots */
    static const double betas[] = {4, 0.66, 0.25};
    for (size_t i = 0; i < 6; i += TEST_STRIDE(4)) {
        o = (struct rig_options){.csd = true,
                                 .beta = betas[i % 3],
                                 .placement = i < 3 ? PLACEMENT_BKP : PLACEMENT_RECENCY,
                                 .pin = 0.05,
                                 .reads_hot = true};
        s = whole_request(&o, &usual);
        print_message("beta %g: %llu promoted, %llu demoted; hits gpu %llu, hot %llu, cold %llu\n",
                      o.beta, (unsigned long long)s.promoted, (unsigned long long)s.demoted,
                      (unsigned long long)s.gpu.hits, (unsigned long long)s.hot.hits,
                      (unsigned long long)s.cold.hits);
        assert_int_equal(s.selection_hash, hash_of_hot_only());
        assert_true(s.demoted > 0 && (i >= 3 || s.promoted > 0));
    }
}

/* While the attention of one sequence reads, nothing that it reads gives way: its own entries that
 * have gone down meanwhile, with hot tiers so small that their slots are wanted at once, by it and
 * by another sequence. */
static void test_what_is_read_in_place_keeps_its_bytes(void **unused)
{
    (void)unused;
    for (int placement = 0; placement < 2; placement++) {
        struct rig_options o = {.csd = true,
                                .beta = 0.25,
                                .placement = placement ? PLACEMENT_BKP : PLACEMENT_RECENCY,
                                .hot_blocks = 2 * 2 * RIG_LAYERS,
                                .reads_hot = true};
        struct rig *r = rig_start(&o);
        struct rig_request *a = gpu_begin(r, 0, 300, 420, &usual, 0);
        struct rig_request *b = gpu_begin(r, 1, 200, 320, &usual, 0);
        a->linger_us = 300;
        gpu_prefill(a);
        gpu_prefill(b);
        for (int i = 0; i < TEST_ROUNDS(110); i++) {
            assert_int_equal(gpu_decode(a), 0);
            assert_int_equal(gpu_decode(b), 0);
        }
        assert_true(a->in_place > 0 && b->in_place > 0);
        uint64_t hash = XXH64_digest(a->hash);
        struct scorer_stats s = gpu_end(a);
        assert_int_equal(s.selection_hash, hash);
        assert_true(s.demoted > 0);
        gpu_end(b);
        assert_int_equal(r->n_failures, 0);
        rig_stop(r);
    }
}

/* A cold pool that has no room for copies of what moves up: placed by recency, as before. */
static void test_bkp_needs_room_for_copies(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 4, .placement = PLACEMENT_BKP};
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 600, 800, &usual, 0); /* 4 stripes a layer of 10 */
    struct rig_request *b = gpu_begin(r, 1, 600, 800, &usual, 0); /* 4 */
    gpu_prefill(a);
    gpu_prefill(b);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(gpu_decode(a), 0);
        assert_int_equal(gpu_decode(b), 0);
    }
    assert_true(gpu_end(a).promoted > 0);
    assert_true(gpu_end(b).promoted > 0);
    rig_stop(r);
    o.n_stripes = 6; /* two for each layer: enough for what is cold, not for all */
    r = rig_start(&o);
    a = gpu_begin(r, 0, 600, 800, &usual, 0);
    gpu_prefill(a);
    for (int i = 0; i < 20; i++)
        assert_int_equal(gpu_decode(a), 0);
    assert_int_equal(gpu_end(a).promoted, 0);
    rig_stop(r);
}

/* M_0 wins over beta: few hot blocks, everything else goes cold, and the cap holds all the while.
 */
static void test_the_hot_cap_wins_over_beta(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 4, .hot_blocks = RIG_LAYERS * 2 * RIG_SEQUENCES};
    struct scorer_stats s = whole_request(&o, &usual);
    assert_int_equal(s.selection_hash, hash_of_hot_only());
    assert_true(s.hot.tokens <= RIG_LAYERS * 2 * KV_HOT_BLOCK_TOKENS);
}

static void test_a_wrong_score_changes_the_selection(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    r->agent->wrong_score_position = 77;
    q->check = false;
    gpu_prefill(q);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(gpu_decode(q), 0);
    assert_true(gpu_end(q).selection_hash != hash_of_hot_only());
    rig_stop(r);
}

static void test_two_sequences_do_not_mix(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.5};
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 400, 460, &usual, 0);
    struct rig_request *b = gpu_begin(r, 1, 300, 360, &usual, 0);
    gpu_prefill(a);
    gpu_prefill(b);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(gpu_decode(a), 0);
        assert_int_equal(gpu_decode(b), 0);
    }
    assert_int_equal(r->live_most, 2); /* both have statistics while they run */
    uint64_t hash = XXH64_digest(a->hash);
    assert_int_equal(gpu_end(a).selection_hash, hash);
    hash = XXH64_digest(b->hash);
    assert_int_equal(gpu_end(b).selection_hash, hash);
    rig_stop(r);
}

/* A request is dropped in mid-prefill by the next SEQ_BEGIN of its slot; many times, so that
 * stripes must come back. */
/* Others' queries take staging slots and give them back: none of what this one has not read
 * [I9]. */
static void test_what_is_staged_stays_until_it_is_read(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .gpu_drop = 1};
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    struct rig_request *b = gpu_begin(r, 1, PROMPT, MAX, &usual, 0);
    gpu_prefill(a);
    gpu_prefill(b);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        assert_int_equal(gpu_query(a, layer, a->n, false), 0);
        assert_true(a->n_staged > 0);
        assert_int_equal(gpu_decode(b), 0);
        gpu_check_reading(a);
    }
    a->n++;
    gpu_step_end(a);
    gpu_end(a);
    gpu_end(b);
    rig_stop(r);
}

static void test_a_new_sequence_replaces_the_old_one(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct rig *r = rig_start(&o);
    for (int i = 0; i < 12; i++) {
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
            for (int j = 0; j < 15; j++)
                gpu_append(q, layer, 24);
        gpu_free(q);
    }
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(q);
    for (int i = 0; i < 5; i++)
        assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
}

static void test_what_cannot_fit_is_refused_at_the_start(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false, .hot_blocks = 24};
    struct rig *r = rig_start(&o);
    gpu_free(gpu_begin(r, 0, PROMPT, PROMPT + 13, &usual, HILL_E_TOO_LONG));
    gpu_free(gpu_begin(r, 0, PROMPT, RIG_CTX + 1, &usual, HILL_E_TOO_LONG));
    struct rig_request *q = gpu_begin(r, 0, PROMPT, PROMPT + 12, &usual, 0); /* eight blocks */
    gpu_prefill(q);
    for (int i = 0; i < 12; i++)
        assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
}

/* What fits once the other has ended waits: no failure, and the same request is taken then. */
static void test_no_room_beside_another_is_busy_and_no_failure(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false, .hot_blocks = 24}; /* eight blocks a layer, four each */
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 256, 320, &usual, 0); /* five */
    gpu_prefill(a);
    gpu_free(gpu_begin(r, 1, 150, 193, &usual, HILL_E_BUSY)); /* four */
    gpu_free(gpu_begin(r, 1, 400, 513, &usual, HILL_E_TOO_LONG));
    struct rig_request *b = gpu_begin(r, 1, 150, 192, &usual, 0); /* three */
    gpu_prefill(b);
    assert_int_equal(gpu_decode(b), 0);
    assert_int_equal(gpu_decode(a), 0);
    gpu_end(a);
    struct rig_request *c = gpu_begin(r, 0, 256, 320, &usual, 0);
    assert_int_equal(r->n_failures, 1); /* the long one */
    gpu_prefill(c);
    assert_int_equal(gpu_decode(c), 0);
    gpu_end(c);
    gpu_end(b);
    rig_stop(r);
}

/* The cold pool's half is too small for one, its whole is not: nothing is lost while it is cleared
 * up. */
static void test_room_that_is_being_cleared_up_is_waited_for(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .n_stripes = RIG_LAYERS * 2};
    struct rig *r = rig_start(&o);
    for (int i = 0; i < 8; i++) {
        struct rig_request *q = gpu_begin(r, (uint32_t)i % 2, 500, 600, &usual, 0);
        gpu_prefill(q);
        assert_int_equal(gpu_decode(q), 0);
        gpu_end(q); /* its stripes are trimmed while the next one begins on the other slot */
    }
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
}

/* ---- an agent that is slow to write and to trim ---- */

static void be_slow(struct rig *r, bool slow)
{
    atomic_store_explicit(&r->agent->slow, slow, memory_order_relaxed);
    shm_doorbell_ring(&r->bells[PARTY_AGENT]);
}

/* Two sequences with a part on the drive; the first one has demotions under way that are not
 * answered. */
static struct rig *start_two(struct rig_request **a, struct rig_request **b)
{
    struct rig_options o = {.csd = true, .beta = 0.25, .agent_deadline_ms = 20000};
    struct rig *r = rig_start(&o);
    *a = gpu_begin(r, 0, 400, 460, &usual, 0);
    *b = gpu_begin(r, 1, 300, 360, &usual, 0);
    gpu_prefill(*a);
    gpu_prefill(*b);
    assert_int_equal(gpu_decode(*a), 0);
    assert_int_equal(gpu_decode(*b), 0);
    be_slow(r, true);
    for (int i = 0; i < 10; i++)
        assert_int_equal(gpu_decode(*a), 0);
    return r;
}

static void gpu_push_end(struct rig_request *q)
{
    struct record_seq_end end = {.header = gpu_header(q, 0), .request_id = q->request_id};
    gpu_push(q->rig, RING_APPEND, RECORD_SEQ_END, &end, sizeof end);
}

/* What its demotions wrote is said when they are over; nobody else waits for that, nor for the
 * trim. */
static void test_an_end_that_waits_for_the_drive_stops_nobody(void **unused)
{
    (void)unused;
    struct rig_request *a, *b;
    struct rig *r = start_two(&a, &b);
    gpu_push_end(a);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu_decode(b), 0); /* its tokens come behind that record */
    assert_true(nothing_was_said(r));
    be_slow(r, false);
    const struct record_seq_stats *stats = gpu_wait(r, RECORD_SEQ_STATS);
    assert_int_equal(stats->request_id, a->request_id);
    assert_true(r->stats.demoted > 0 && r->stats.flash_write_bytes > 0);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    assert_int_equal(gpu_decode(b), 0);
    uint64_t hash = XXH64_digest(b->hash);
    assert_int_equal(gpu_end(b).selection_hash, hash);
    gpu_free(a);
    rig_stop(r);
}

static void expect_ready(struct rig *r, int status)
{
    const struct record_seq_ready *ready = gpu_wait(r, RECORD_SEQ_READY);
    assert_int_equal(ready->status, status);
    shm_ring_release(&r->gpu[RING_SELECTION]);
}

/* The slot's next request waits for what the drive still writes for the last one, and alone; it may
 * be taken back meanwhile. */
static void test_a_beginning_that_waits_for_the_drive_stops_nobody(void **unused)
{
    (void)unused;
    struct rig_request *a, *b;
    struct rig *r = start_two(&a, &b);
    gpu_push_begin(a, 460);
    for (int i = 0; i < 3; i++)
        assert_int_equal(gpu_decode(b), 0);
    assert_true(nothing_was_said(r));
    gpu_push_end(a);
    expect_ready(r, HILL_E_CANCELLED);
    assert_int_equal(((const struct record_seq_stats *)gpu_wait(r, RECORD_SEQ_STATS))->request_id,
                     a->request_id);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    gpu_push_begin(a, 460);
    assert_int_equal(gpu_decode(b), 0);
    assert_true(nothing_was_said(r));
    be_slow(r, false);
    expect_ready(r, 0);
    assert_int_equal(r->n_failures, 0);
    gpu_end(b);
    gpu_free(a);
    rig_stop(r);
}

/* One drive's agent says twice that a sequence is gone: the other one has not said it, and the slot
 * is not given again. The answer to a later query comes behind both. */
static void test_each_drive_answers_for_itself(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(&(struct rig_options){
        .csd = true, .beta = 0.25, .n_drives = 2, .agent_deadline_ms = 20000});
    struct rig_request *a = gpu_begin(r, 0, 400, 460, &usual, 0);
    struct rig_request *b = gpu_begin(r, 1, 300, 360, &usual, 0);
    gpu_prefill(a);
    gpu_prefill(b);
    assert_int_equal(gpu_decode(a), 0); /* its prompt is committed, and nothing has moved since */
    assert_int_equal(gpu_decode(b), 0);
    be_slow(r, true);
    atomic_store_explicit(&r->agents[1]->twice, true, memory_order_relaxed);
    gpu_push_end(a);
    gpu_wait(r, RECORD_SEQ_STATS);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    gpu_push_begin(a, 460);
    for (int i = 0; i < 2; i++)
        assert_int_equal(gpu_decode(b), 0);
    assert_true(nothing_was_said(r));
    be_slow(r, false);
    expect_ready(r, 0);
    gpu_end(b);
    gpu_free(a);
    rig_stop(r);
}

/* One that is so slow that nothing goes to it: its part of each step is none, and the drives are as
 * far apart as can be. So is one that has just come. */
static void test_a_drive_may_have_nothing_to_do(void **unused)
{
    (void)unused;
    struct rig *r = rig_start(
        &(struct rig_options){.csd = true, .beta = 0.25, .n_drives = 2, .speeds = {1, 1e-9}});
    struct rig_request *a = gpu_begin(r, 0, 400, 460, &usual, 0);
    gpu_prefill(a);
    gpu_decode_settled(a, 6);
    struct scorer_stats stats = gpu_end(a);
    assert_true(stats.drives[0].tokens > 0 && stats.drives[0].score_ns > 0);
    assert_int_equal(stats.drives[1].tokens, 0);
    assert_true(stats.drive_spread == 1);
    rig_stop(r);
}

static void *wake_agent(void *arg)
{
    struct rig *r = arg;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 50000000}, NULL);
    atomic_store_explicit(&r->agent->silent, false, memory_order_relaxed);
    shm_doorbell_ring(&r->bells[PARTY_AGENT]);
    return NULL;
}

/* The type of the next record from the pipeline. */
static uint32_t gpu_next(struct rig *r)
{
    uint32_t type, bytes;
    const void *payload;
    assert_int_equal(shm_ring_wait(&r->gpu[RING_SELECTION], 0, clock_deadline_ms(60000)), 0);
    assert_int_equal(shm_ring_peek(&r->gpu[RING_SELECTION], &type, &payload, &bytes), 0);
    return type;
}

/* A SEQ_BEGIN that must wait for its slot lies before tokens that another sequence's query waits
 * for. */
static void test_a_query_is_answered_behind_a_slot_that_is_cleared_up(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .agent_deadline_ms = 20000};
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 400, 460, &usual, 0);
    struct rig_request *b = gpu_begin(r, 1, 300, 360, &usual, 0);
    struct rig_question asked;
    pthread_t waker;
    gpu_prefill(a);
    gpu_prefill(b);
    assert_int_equal(gpu_decode(a), 0);
    assert_int_equal(gpu_decode(b), 0);
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    gpu_push_begin(a, 460); /* a is dropped; it is trimmed when the agent answers */
    gpu_ask(b, 0, b->n + 1, true, &asked);
    assert_int_equal(pthread_create(&waker, NULL, wake_agent, r), 0);
    bool ready_first = gpu_next(r) == RECORD_SEQ_READY; /* either way */
    if (ready_first)
        expect_ready(r, 0);
    assert_int_equal(gpu_answer(b, 0, b->n + 1, &asked), 0);
    if (!ready_first)
        expect_ready(r, 0);
    pthread_join(waker, NULL);
    assert_int_equal(r->n_failures, 0);
    gpu_end(b);
    gpu_free(a);
    rig_stop(r);
}

/* ---- what a recording counts ---- */

/* Turns that looked at the agent's completions in vain, and what a recording counts beside. */
struct turns {
    struct shm_ring_tap taps[RING_COUNT];
    _Atomic uint32_t begun, looked, decided;
};

static uint32_t at_agent(void *context, enum shm_ring_moment moment, uint32_t type,
                         const void *payload, uint32_t bytes)
{
    struct turns *t = context;
    if (moment == SHM_RING_EMPTY)
        atomic_fetch_add(&t->begun, 1);
    return rig_tap(context, moment, type, payload, bytes);
}

static uint32_t at_others(void *context, enum shm_ring_moment moment, uint32_t type,
                          const void *payload, uint32_t bytes)
{
    struct turns *t = context;
    if (moment == SHM_RING_DECIDES)
        atomic_fetch_add(&t->decided, 1);
    else if (moment == SHM_RING_EMPTY || moment == SHM_RING_STILL)
        atomic_fetch_add(&t->looked, 1);
    return rig_tap(context, moment, type, payload, bytes);
}

struct counts {
    uint32_t begun, looked, decided;
};

/* When the scorer sleeps. It wakes by itself each second: the three are those of one moment. */
static struct counts count_turns(struct rig *r, struct turns *t)
{
    struct counts c;
    do {
        rig_settle(r);
        c = (struct counts){atomic_load(&t->begun), atomic_load(&t->looked),
                            atomic_load(&t->decided)};
        rig_settle(r);
    } while (atomic_load(&t->begun) != c.begun);
    return c;
}

/* A query whose tokens are all there waits for the drive: the append ring is left alone, and moves
 * may be ordered. A replay must take as many turns as the run did. */
static void test_every_turn_of_a_query_that_waits_is_counted(void **unused)
{
    (void)unused;
    struct turns turns = {.begun = 0};
    for (int ring = 0; ring < RING_COUNT; ring++)
        turns.taps[ring] = (struct shm_ring_tap){&turns, ring < RING_COMMAND       ? at_others
                                                         : ring == RING_COMPLETION ? at_agent
                                                                                   : rig_tap};
    struct rig_options o = {.csd = true,
                            .beta = 0.25,
                            .placement = PLACEMENT_BKP,
                            .agent_deadline_ms = 60000,
                            .taps = turns.taps};
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 60, 120, &usual, 0);
    struct rig_question asked;
    be_slow(r, true);
    gpu_prefill(a);
    gpu_ask(a, 0, a->n, false, &asked);
    struct counts before = count_turns(r, &turns), after = before;
    assert_true(before.decided > 0);
    for (int i = 0; i < 5; i++) {
        shm_doorbell_ring(&r->bells[PARTY_SCORER]);
        after = count_turns(r, &turns);
    }
    assert_true(after.begun >= before.begun + 5);
    assert_int_equal(after.decided - before.decided, after.begun - before.begun);
    assert_int_equal(after.looked, before.looked);
    assert_true(nothing_was_said(r));
    be_slow(r, false);
    assert_int_equal(gpu_answer(a, 0, a->n, &asked), 0);
    gpu_end(a);
    rig_stop(r);
}

static void test_an_idle_pipeline_sleeps(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    struct rig *r = rig_start(&o);
    struct timespec pause = {.tv_sec = 2}, before, after;
    rig_settle(r);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&pause, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    assert_true(used < CLOCK_MS(100)); /* a loop that spins uses 2000 */
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_only_selects_what_the_oracle_does),
        cmocka_unit_test(test_a_fifth_cold_selects_the_same),
        cmocka_unit_test(test_four_fifths_cold_selects_the_same),
        cmocka_unit_test(test_every_scoring_path_selects_the_same),
        cmocka_unit_test(test_policy_full_selects_everything_unscored),
        cmocka_unit_test(test_layers_with_windows_select_the_newest),
        cmocka_unit_test(test_every_importance_selects_the_same_at_every_place),
        cmocka_unit_test(test_bkp_selects_the_same_while_it_moves),
        cmocka_unit_test(test_slots_of_what_moved_up_are_used_again),
        cmocka_unit_test(test_bkp_survives_sequences_that_are_dropped),
        cmocka_unit_test(test_hot_entries_are_read_where_they_lie),
        cmocka_unit_test(test_what_is_read_in_place_keeps_its_bytes),
        cmocka_unit_test(test_bkp_needs_room_for_copies),
        cmocka_unit_test(test_the_hot_cap_wins_over_beta),
        cmocka_unit_test(test_a_wrong_score_changes_the_selection),
        cmocka_unit_test(test_two_sequences_do_not_mix),
        cmocka_unit_test(test_what_is_staged_stays_until_it_is_read),
        cmocka_unit_test(test_a_new_sequence_replaces_the_old_one),
        cmocka_unit_test(test_what_cannot_fit_is_refused_at_the_start),
        cmocka_unit_test(test_no_room_beside_another_is_busy_and_no_failure),
        cmocka_unit_test(test_room_that_is_being_cleared_up_is_waited_for),
        cmocka_unit_test(test_an_end_that_waits_for_the_drive_stops_nobody),
        cmocka_unit_test(test_a_beginning_that_waits_for_the_drive_stops_nobody),
        cmocka_unit_test(test_each_drive_answers_for_itself),
        cmocka_unit_test(test_a_drive_may_have_nothing_to_do),
        cmocka_unit_test(test_a_query_is_answered_behind_a_slot_that_is_cleared_up),
        cmocka_unit_test(test_every_turn_of_a_query_that_waits_is_counted),
        cmocka_unit_test(test_an_idle_pipeline_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
