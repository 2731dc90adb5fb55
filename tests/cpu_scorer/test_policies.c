/* tests/cpu_scorer/test_policies.c - the policies that evaluate FP16 keys on the CPU, in the whole
 * pipeline; see pipeline_rig.h. */
#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 500, STEPS = 40, MAX = PROMPT + STEPS };

static struct kv_selection_settings settings_of(uint32_t policy)
{
    return (struct kv_selection_settings){.alpha = 0.1, .sinks = 4, .window = 16, .policy = policy};
}

/* A whole request checked against the oracle: its statistics. */
static struct scorer_stats whole_request(struct rig_options o, uint32_t policy)
{
    struct kv_selection_settings how = settings_of(policy);
    o.policy = o.policy ? o.policy : policy;
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
    gpu_prefill(q);
    gpu_decode_settled(q, STEPS);
    uint64_t hash = XXH64_digest(q->hash);
    struct scorer_stats stats = gpu_end(q);
    assert_int_equal(stats.selection_hash, hash);
    assert_int_equal(stats.queries, STEPS * RIG_LAYERS);
    assert_true(policy == KV_POLICY_HILLINFER || stats.link_score_bytes == 0);
    rig_stop(r);
    return stats;
}

static void each_place_selects_the_same(uint32_t policy)
{
    static const struct rig_options places[] = {
        {.csd = false, .mass = "reference"},
        {.csd = true, .beta = 4},
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.25, .reads_hot = true, .mass = "reference"},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.25, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.25, .n_drives = 3, .speeds = {1, 2, 1}},
    };
    uint64_t hash = whole_request((struct rig_options){.csd = false}, policy).selection_hash;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct scorer_stats s = whole_request(places[i], policy);
        assert_int_equal(s.selection_hash, hash);
        assert_int_equal(s.link_key_bytes > 0, places[i].csd);
        if (places[i].placement == PLACEMENT_BKP)
            assert_true(s.promoted > 0 && s.demoted > 0);
    }
}

static void test_h2o_selects_the_same_at_every_place(void **unused)
{
    (void)unused;
    each_place_selects_the_same(KV_POLICY_H2O);
}

static void test_oracle_selects_the_same_at_every_place(void **unused)
{
    (void)unused;
    each_place_selects_the_same(KV_POLICY_ORACLE);
}

static void test_leoam_selects_the_same_at_every_place(void **unused)
{
    (void)unused;
    each_place_selects_the_same(KV_POLICY_LEOAM);
}

static void test_prefetch_selects_the_same_at_every_place(void **unused)
{
    (void)unused;
    each_place_selects_the_same(KV_POLICY_PREFETCH);
}

static void test_host_digest_selects_the_same_at_every_place(void **unused)
{
    (void)unused;
    each_place_selects_the_same(KV_POLICY_HOST_DIGEST);
}

/* M_0 for the digests of so many blocks of 64 cold slots, of those that the pools have. */
static uint64_t cache_of(uint64_t of_pool, uint64_t blocks)
{
    return of_pool * KV_CACHED_BLOCK_BYTES + RIG_SEQUENCES * RIG_LAYERS * KV_CACHED_LIST_BYTES +
           blocks * (4 * kv_group_bytes(&rig_geometry) + KV_CACHED_FRAME_BYTES);
}

/* Scored on the host or on the drive, with a cache for nothing, a part, and all of the cold
 * digests: the selection is hillinfer's, and what is cached does not come over the link. The
 * cache's bytes are those of M_0 that it was given. */
static void test_host_digest_selects_what_hillinfer_does(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.25, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .pin = 0.05, .reads_hot = true},
    };
    const uint64_t all = RIG_STRIPE * RIG_STRIPES / 64;
    const uint64_t caches[] = {0, cache_of(all, 5), cache_of(all, all)};
    uint64_t hash =
        whole_request((struct rig_options){.csd = false}, KV_POLICY_HILLINFER).selection_hash;
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint64_t link[3];
        for (uint32_t c = 0; c < 3; c++) {
            struct rig_options o = places[i];
            o.digest_cache_bytes = caches[c];
            struct scorer_stats s = whole_request(o, KV_POLICY_HOST_DIGEST);
            assert_int_equal(s.selection_hash, hash);
            link[c] = s.link_key_bytes;
            if (o.placement == PLACEMENT_BKP)
                assert_true(s.promoted > 0 && s.demoted > 0);
        }
        print_message("%llu, %llu, %llu bytes\n", (unsigned long long)link[0],
                      (unsigned long long)link[1], (unsigned long long)link[2]);
        assert_true(link[0] > link[1] && link[1] > 0);
        assert_int_equal(link[2], 0); /* all was written through */
    }
}

/* The same for hillinfer, whose drives score what the cache has not: the more it has, the fewer
 * scores cross the link. */
static void test_hillinfer_selects_the_same_with_digests_in_memory(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.25, .rows = 2, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .pin = 0.05, .reads_hot = true},
        {.csd = true, .beta = 0.25, .n_drives = 3, .speeds = {1, 2, 1}},
    };
    uint64_t hash =
        whole_request((struct rig_options){.csd = false}, KV_POLICY_HILLINFER).selection_hash;
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const uint64_t all = RIG_STRIPE * RIG_STRIPES / 64 * (i == 3 ? RIG_DRIVES : 1);
        const uint64_t caches[] = {0, cache_of(all, RIG_SEQUENCES * RIG_LAYERS * 3),
                                   cache_of(all, all)};
        uint64_t link[3];
        for (uint32_t c = 0; c < 3; c++) {
            struct rig_options o = places[i];
            o.digest_cache_bytes = caches[c];
            struct scorer_stats s = whole_request(o, KV_POLICY_HILLINFER);
            assert_int_equal(s.selection_hash, hash);
            link[c] = s.link_score_bytes;
            if (o.placement == PLACEMENT_BKP)
                assert_true(s.promoted > 0 && s.demoted > 0);
        }
        print_message("%llu, %llu, %llu bytes of scores\n", (unsigned long long)link[0],
                      (unsigned long long)link[1], (unsigned long long)link[2]);
        assert_true(link[0] > link[1] && link[1] > link[2]);
        assert_int_equal(link[2], 0);
    }
}

/* And with digests in hot blocks that the sequence lends, seven blocks of a layer for nine blocks
 * of tokens: fewer scores cross the link. */
static void test_selections_are_the_same_with_digests_in_hot_blocks(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = true, .beta = 9},
        {.csd = true, .beta = 9, .rows = 2, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 9, .adapts = true, .placement = PLACEMENT_BKP, .pin = 0.05},
        {.csd = true, .beta = 9, .reads_hot = true},
        {.csd = true, .beta = 9, .n_drives = 3, .speeds = {1, 2, 1}},
    };
    uint64_t hash =
        whole_request((struct rig_options){.csd = false}, KV_POLICY_HILLINFER).selection_hash;
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint64_t link[2], near[2];
        for (uint32_t lends = 0; lends < 2; lends++) {
            struct rig_options o = places[i];
            o.hot_blocks = 7 * RIG_SEQUENCES * RIG_LAYERS;
            o.host_scores = lends;
            struct scorer_stats s = whole_request(o, KV_POLICY_HILLINFER);
            assert_int_equal(s.selection_hash, hash);
            link[lends] = s.link_score_bytes;
            near[lends] = s.near_tokens;
        }
        print_message("%llu, %llu bytes; %llu tokens near\n", (unsigned long long)link[0],
                      (unsigned long long)link[1], (unsigned long long)near[1]);
        assert_true(link[0] > link[1] && near[0] == 0 && near[1] > 0);
    }
}

static uint32_t reads(struct rig *r, uint32_t drive)
{
    return atomic_load_explicit(&r->agents[drive]->reads, memory_order_acquire);
}

/* One drive answers nothing: the others are asked all the same, and read their first windows. */
static void drives_read_at_once(uint32_t policy)
{
    const struct kv_selection_settings how = settings_of(policy);
    struct rig *r =
        rig_start(&(struct rig_options){.csd = true, .beta = 0.1, .n_drives = 3, .policy = policy});
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    struct rig_question asked;
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    rig_settle(r); /* it takes no record any more */
    uint32_t before[RIG_DRIVES];
    for (uint32_t d = 0; d < RIG_DRIVES; d++)
        before[d] = reads(r, d);
    gpu_ask(q, 0, q->n, true, &asked);
    int64_t deadline = clock_deadline_ms(60000);
    while (reads(r, 1) == before[1] || reads(r, 2) == before[2]) {
        assert_true(clock_now_ns() < deadline);
        usleep(200);
    }
    assert_int_equal(reads(r, 0), before[0]);
    atomic_store_explicit(&r->agent->silent, false, memory_order_relaxed);
    shm_doorbell_ring(&r->bells[PARTY_AGENT]);
    assert_int_equal(gpu_answer(q, 0, q->n, &asked), 0);
    assert_true(reads(r, 0) > before[0]);
    gpu_end(q);
    rig_stop(r);
}

static void test_several_drives_read_at_the_same_time(void **unused)
{
    (void)unused;
    drives_read_at_once(KV_POLICY_ORACLE);
    drives_read_at_once(KV_POLICY_HOST_DIGEST);
}

/* Sequences that follow one another and run beside one another share the cache. */
static void test_host_digest_keeps_sequences_apart(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true,
                            .beta = 0.25,
                            .policy = KV_POLICY_HOST_DIGEST,
                            .digest_cache_bytes = 64u << 10};
    struct kv_selection_settings how = settings_of(KV_POLICY_HOST_DIGEST);
    struct rig *r = rig_start(&o);
    struct rig_request *other = gpu_begin(r, 1, 200, 300, &how, 0);
    gpu_prefill(other);
    for (int round = 0; round < 3; round++) {
        struct rig_request *q = gpu_begin(r, 0, PROMPT - 100 * (uint32_t)round, MAX, &how, 0);
        gpu_prefill(q);
        for (int i = 0; i < 15; i++) {
            assert_int_equal(gpu_decode(q), 0);
            assert_int_equal(gpu_decode(other), 0);
        }
        uint64_t hash = XXH64_digest(q->hash);
        assert_int_equal(gpu_end(q).selection_hash, hash);
    }
    gpu_end(other);
    rig_stop(r);
}

/* A part of the keys comes over, about twice the selected share; candidates that lie together come
 * in whole pages. */
static void test_leoam_reads_fewer_keys_than_h2o(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    uint64_t all = whole_request(o, KV_POLICY_H2O).link_key_bytes;
    uint64_t some = whole_request(o, KV_POLICY_LEOAM).link_key_bytes;
    print_message("h2o %llu, leoam %llu bytes\n", (unsigned long long)all,
                  (unsigned long long)some);
    assert_true(some > 0 && some < all);
}

/* The same where queries come after the tokens behind them have been appended, and before: the
 * chunk that is being filled is not all forced. */
static void test_leoam_does_not_see_tokens_behind_its_query(void **unused)
{
    uint64_t hashes[2];
    (void)unused;
    for (uint32_t i = 0; i < 2; i++) {
        struct kv_selection_settings how = settings_of(KV_POLICY_LEOAM);
        struct rig_options o = {.csd = i > 0, .beta = 0.66, .policy = KV_POLICY_LEOAM};
        how.window = 5;
        struct rig *r = rig_start(&o);
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
        gpu_prefill(q);
        for (int j = 0; j < STEPS; j++)
            assert_int_equal(gpu_decode(q), 0);
        hashes[i] = XXH64_digest(q->hash);
        assert_int_equal(gpu_end(q).selection_hash, hashes[i]);
        rig_stop(r);
    }
    assert_true(hashes[0] == hashes[1]);
}

static void test_the_policies_select_differently(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    assert_true(whole_request(o, KV_POLICY_H2O).selection_hash !=
                whole_request(o, KV_POLICY_ORACLE).selection_hash);
}

/* One set-up serves both, and full; no other is served. */
static void test_a_pipeline_serves_what_it_is_set_up_for(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .policy = KV_POLICY_H2O};
    uint64_t hash =
        whole_request((struct rig_options){.csd = false}, KV_POLICY_ORACLE).selection_hash;
    assert_int_equal(whole_request(o, KV_POLICY_ORACLE).selection_hash, hash);
    struct kv_selection_settings full = settings_of(KV_POLICY_FULL),
                                 digests = settings_of(KV_POLICY_HILLINFER),
                                 keys = settings_of(KV_POLICY_H2O);
    struct rig *r = rig_start(&o);
    gpu_free(gpu_begin(r, 0, PROMPT, MAX, &digests, HILL_E_UNSUPPORTED));
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &full, 0);
    q->check = false;
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    gpu_end(q);
    rig_stop(r);
    o.policy = KV_POLICY_HILLINFER;
    r = rig_start(&o);
    gpu_free(gpu_begin(r, 0, PROMPT, MAX, &keys, HILL_E_UNSUPPORTED));
    rig_stop(r);
}

/* M_0 counts what evaluating keys takes beside the tables. */
static void test_the_plan_counts_what_is_allocated(void **unused)
{
    (void)unused;
    for (uint32_t i = 0; i < 2 * KV_POLICY_COUNT; i++) {
        uint32_t policy = i / 2;
        struct rig_options o = {.csd = true,
                                .beta = 0.25,
                                .policy = policy,
                                .digest_cache_bytes = i % 2 ? 0 : 100000,
                                .host_scores = i % 2,
                                .rows = 2};
        struct kv_plan_input in = {.geometry = rig_geometry,
                                   .ctx_tokens = RIG_CTX,
                                   .n_sequences = RIG_SEQUENCES,
                                   .rows_in_flight = 2,
                                   .selection = {.alpha = 1, .policy = policy},
                                   .cold_slots = RIG_STRIPE * RIG_STRIPES,
                                   .digest_cache_bytes = o.digest_cache_bytes,
                                   .lends_digests = i % 2};
        struct kv_hot_plan plan;
        struct rig *r = rig_start(&o);
        assert_int_equal(kv_plan_hot(&plan, &in, 1u << 30, NULL), 0);
        uint64_t lent = kv_plan_lends(&in) ? kv_lent_block_bytes(&in.geometry) : 0;
        plan.private_bytes -= plan.n_blocks * lent; /* the rig has its own number of blocks */
        plan.private_bytes += scorer_hot_blocks(r->pipeline) * lent;
        print_message("%s: %llu bytes, planned %llu\n", kv_policy_name(policy),
                      (unsigned long long)scorer_private_bytes(r->pipeline),
                      (unsigned long long)plan.private_bytes);
        assert_true(scorer_private_bytes(r->pipeline) <= plan.private_bytes);
        assert_true(plan.private_bytes < scorer_private_bytes(r->pipeline) * 5 / 4);
        assert_true(plan.staging_bytes >=
                    shm_arena_bytes(plan.staging_slots, RIG_ENTRY) +
                        KV_KEY_WINDOWS * kv_key_window_bytes(&rig_geometry, policy, RIG_CTX));
        rig_stop(r);
    }
}

/* What a sequence has seen ends with it: the next on its slot selects as if it were the first. */
static void test_a_new_sequence_has_seen_nothing(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.66, .policy = KV_POLICY_H2O};
    struct kv_selection_settings how = settings_of(KV_POLICY_H2O);
    struct rig *r = rig_start(&o);
    uint64_t first = 0;
    for (int round = 0; round < 3; round++) {
        struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
        gpu_prefill(q);
        for (int i = 0; i < 10; i++)
            assert_int_equal(gpu_decode(q), 0);
        struct scorer_stats s = gpu_end(q);
        first = first ? first : s.selection_hash;
        assert_int_equal(s.selection_hash, first);
    }
    rig_stop(r);
}

/* A MASS of one layer that is not what has to come next fails its request alone. */
static void weigh_wrongly(struct rig *r, uint32_t first, uint32_t n, uint32_t policy)
{
    struct kv_selection_settings how = settings_of(policy);
    struct rig_request *q = gpu_begin(r, 0, 40, 60, &how, 0);
    uint32_t failures = atomic_load_explicit(&r->n_failures, memory_order_relaxed);
    struct {
        struct record_mass mass;
        float values[60];
    } out = {.mass = {.header = gpu_header(q, 1), .first = first, .n_tokens = n}};
    gpu_append(q, 1, 24);
    gpu_push(r, RING_APPEND, RECORD_MASS, &out, (uint32_t)(sizeof out.mass + n * sizeof(float)));
    gpu_end(q);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), failures + 1);
}

static void test_attention_of_other_tokens_is_refused(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .policy = KV_POLICY_H2O};
    struct rig *r = rig_start(&o);
    weigh_wrongly(r, 1, 10, KV_POLICY_H2O);    /* not from the first */
    weigh_wrongly(r, 0, 25, KV_POLICY_H2O);    /* not appended yet */
    weigh_wrongly(r, 0, 10, KV_POLICY_ORACLE); /* it ranks by nothing of before */
    rig_stop(r);
}

/* A query is not answered before what its prompt attended to is there. */
static void test_a_query_waits_for_the_prompts_attention(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .policy = KV_POLICY_H2O};
    struct kv_selection_settings how = settings_of(KV_POLICY_H2O);
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
    struct rig_question asked;
    while (q->appended[0] < q->n)
        gpu_append(q, 0, q->n - q->appended[0] < 24 ? q->n - q->appended[0] : 24);
    gpu_ask(q, 0, q->n, false, &asked);
    gpu_weigh(q, 0);
    assert_int_equal(gpu_answer(q, 0, q->n, &asked), 0);
    gpu_end(q);
    rig_stop(r);
}

/* Two at a time, turn by turn. */
static void test_sequences_do_not_mix(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25, .policy = KV_POLICY_H2O};
    struct kv_selection_settings h2o = settings_of(KV_POLICY_H2O),
                                 oracle = settings_of(KV_POLICY_ORACLE);
    struct rig *r = rig_start(&o);
    struct rig_request *a = gpu_begin(r, 0, 300, 400, &h2o, 0);
    gpu_prefill(a);
    struct rig_request *b = gpu_begin(r, 1, 200, 300, &oracle, 0);
    gpu_prefill(b);
    for (int i = 0; i < 30; i++) {
        assert_int_equal(gpu_decode(a), 0);
        assert_int_equal(gpu_decode(b), 0);
    }
    uint64_t hash = XXH64_digest(b->hash);
    assert_int_equal(gpu_end(b).selection_hash, hash);
    hash = XXH64_digest(a->hash);
    assert_int_equal(gpu_end(a).selection_hash, hash);
    rig_stop(r);
}

static void test_a_silent_agent_fails_the_request(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 0.25, .policy = KV_POLICY_H2O, .agent_deadline_ms = RIG_SOON};
    struct kv_selection_settings how = settings_of(KV_POLICY_H2O);
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
    gpu_prefill(q);
    assert_int_equal(gpu_decode(q), 0);
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    assert_int_equal(gpu_query(q, 0, q->n, false), HILL_E_TIMEOUT);
    gpu_end(q);
    atomic_store_explicit(&r->agent->silent, false, memory_order_relaxed);
    rig_stop(r);
}

/* What the lost agent owes a query is not waited for by another, which asks nothing of it. */
static void test_a_lost_agent_does_not_hold_up_what_is_hot(void **unused)
{
    (void)unused;
    struct rig_options o = {
        .csd = true, .beta = 0.25, .policy = KV_POLICY_H2O, .agent_deadline_ms = RIG_SOON};
    struct kv_selection_settings how = settings_of(KV_POLICY_H2O), all_hot = how;
    all_hot.window = 200;
    struct rig *r = rig_start(&o);
    struct rig_request *cold = gpu_begin(r, 0, PROMPT, MAX, &how, 0);
    gpu_prefill(cold);
    struct rig_request *hot = gpu_begin(r, 1, 100, 120, &all_hot, 0);
    gpu_prefill(hot);
    assert_int_equal(gpu_decode(cold), 0);
    assert_int_equal(gpu_decode(hot), 0);
    atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
    assert_int_equal(gpu_query(cold, 0, cold->n, false), HILL_E_TIMEOUT);
    assert_int_equal(gpu_decode(hot), 0);
    gpu_end(hot);
    gpu_end(cold);
    atomic_store_explicit(&r->agent->silent, false, memory_order_relaxed);
    rig_stop(r);
}

/* As a replay has none: its recording may come from anywhere. */
static void test_keys_on_a_drive_need_windows(void **unused)
{
    (void)unused;
    struct hill_why why = {""};
    struct scorer *p = NULL;
    struct rig_options o = {.csd = true, .beta = 1, .policy = KV_POLICY_LEOAM};
    struct scorer_config config = rig_config(&o);
    struct scorer_io io = {.key_windows = NULL};
    struct scorer_hooks hooks = {.context = NULL};
    assert_int_equal(scorer_create(&p, &config, &io, &hooks, &why), HILL_E_INVALID);
    assert_null(p);
    assert_non_null(strstr(why.text, "leoam"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h2o_selects_the_same_at_every_place),
        cmocka_unit_test(test_oracle_selects_the_same_at_every_place),
        cmocka_unit_test(test_leoam_selects_the_same_at_every_place),
        cmocka_unit_test(test_prefetch_selects_the_same_at_every_place),
        cmocka_unit_test(test_host_digest_selects_the_same_at_every_place),
        cmocka_unit_test(test_host_digest_selects_what_hillinfer_does),
        cmocka_unit_test(test_hillinfer_selects_the_same_with_digests_in_memory),
        cmocka_unit_test(test_selections_are_the_same_with_digests_in_hot_blocks),
        cmocka_unit_test(test_host_digest_keeps_sequences_apart),
        cmocka_unit_test(test_several_drives_read_at_the_same_time),
        cmocka_unit_test(test_leoam_reads_fewer_keys_than_h2o),
        cmocka_unit_test(test_leoam_does_not_see_tokens_behind_its_query),
        cmocka_unit_test(test_the_policies_select_differently),
        cmocka_unit_test(test_a_pipeline_serves_what_it_is_set_up_for),
        cmocka_unit_test(test_the_plan_counts_what_is_allocated),
        cmocka_unit_test(test_attention_of_other_tokens_is_refused),
        cmocka_unit_test(test_a_query_waits_for_the_prompts_attention),
        cmocka_unit_test(test_a_new_sequence_has_seen_nothing),
        cmocka_unit_test(test_sequences_do_not_mix),
        cmocka_unit_test(test_a_silent_agent_fails_the_request),
        cmocka_unit_test(test_a_lost_agent_does_not_hold_up_what_is_hot),
        cmocka_unit_test(test_keys_on_a_drive_need_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
