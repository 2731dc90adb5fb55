/*
 * Geometry limits and the sizes of the tiers, worked by hand for a small model.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "kv/plan.h"
#include "shm/arena.h"

static const struct kv_geometry small = {5, 8, 4, 8}; /* 32 key dims: entry 128, digest 36 bytes */

static struct kv_plan_input input(uint32_t ctx, double alpha)
{
    return (struct kv_plan_input){
        .geometry = small,
        .n_embd = 64,
        .n_ff = 172,
        .n_vocab = 512,
        .ctx_tokens = ctx,
        .batch_tokens = 100,
        .selection = {.alpha = alpha, .sinks = 4, .window = 32},
    };
}

static void geometry_limits_are_checked(void **state)
{
    (void)state;
    struct hill_why why;
    struct kv_geometry g;
    assert_int_equal(kv_geometry_check(&small, &why), 0);
    assert_int_equal(kv_entry_bytes(&small), 128);
    assert_int_equal(kv_digest_bytes(&small), 36);
#define REFUSED(...)                                                                               \
    g = (struct kv_geometry){__VA_ARGS__};                                                         \
    assert_int_equal(kv_geometry_check(&g, &why), HILL_E_INVALID)
    REFUSED(0, 8, 4, 8);
    REFUSED(KV_MAX_LAYERS + 1, 8, 4, 8);
    REFUSED(5, 0, 4, 8);
    REFUSED(5, KV_MAX_HEADS + 1, 1, 8);
    REFUSED(5, 8, 0, 8);
    REFUSED(5, 1024, KV_MAX_KV_HEADS * 2, 8);
    REFUSED(5, 8, 4, 0);
    REFUSED(5, 8, 4, KV_MAX_HEAD_DIM + 1);
    REFUSED(5, 8, 3, 8);
    REFUSED(5, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    REFUSED(5, 256, 256, 257);
}

static void gpu_bytes_worked_by_hand(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    /* 1000 + 200 tokens: k = 120; hidden and angles 1000 * (64 + 8) * 4; one layer of 1024 keys, 4
     * heads of 8 and 16 halfs; chunk of 115 rows: 64 + 128 + 64 + 64 + 192 floats, 192 int8 with
     * 6 * 5 words (78), and two entries; decode: 2 * 64 + 32 + 8 + 2 * 80 + 192 + 512 + 2 * 78
     * floats, partial 8 * 32, uploads of 1024 * 132; 5 slots of 128 + 96 and 4096; 120 slots of 5 *
     * 128 + 4 + 8 * 32 * 4 / 128 */
    uint64_t expected = 288000 + 2 * 1024 * 4 * 24 + 115 * (4 * 590 + 256) + 4 * (1188 + 256) +
                        1024 * 132 + 5 * 224 + 4096 + 120 * 652;
    assert_int_equal(kv_plan_gpu_bytes(&in, 1000, 200), expected);
    /* each further sequence: slots, a row of scratch with its fresh entry and roundings */
    in.n_sequences = 1;
    assert_int_equal(kv_plan_gpu_bytes(&in, 1000, 200), expected);
    in.n_sequences = 3;
    expected += 2 * (4 * (1188 + 256) + 128 + 256 + 120 * 652);
    assert_int_equal(kv_plan_gpu_bytes(&in, 1000, 200), expected);
    /* summed attention: a denominator of each row and head, sums of each key and head, twice those
     * of all heads */
    in.selection.policy = KV_POLICY_H2O;
    expected += 4 * (115 * 8 + 1024 * (8 + 2));
    assert_int_equal(kv_plan_gpu_bytes(&in, 1000, 200), expected);
}

static void gpu_slots_and_bytes_agree(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    uint64_t whole = kv_plan_gpu_bytes(&in, 2000, 0), layer_slot = 5 * 128 + 4 + 8;
    assert_int_equal(kv_plan_gpu_slots(&in, whole), 200);
    assert_int_equal(kv_plan_gpu_slots(&in, UINT64_MAX), 200);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 1), 199);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 164 * layer_slot), 36);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 164 * layer_slot - 1), 0);
    assert_int_equal(kv_plan_gpu_slots(&in, 0), 0);
    in.n_sequences = 8; /* all get one slot less at once */
    whole = kv_plan_gpu_bytes(&in, 2000, 0);
    assert_int_equal(kv_plan_gpu_slots(&in, whole), 200);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 1), 199);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 8 * layer_slot), 199);
    assert_int_equal(kv_plan_gpu_slots(&in, whole - 8 * layer_slot - 1), 198);
}

/* Staging and slots are for max(k(ctx), min(exact_below, ctx)). */
static void exact_contexts_have_their_room(void **state)
{
    (void)state;
    const struct {
        uint32_t ctx, exact_below, most;
    } cases[] = {{2000, 0, 200},     {2000, 100, 200},   {2000, 300, 300},   {2000, 2000, 2000},
                 {2000, 2048, 2000}, {2048, 2048, 2048}, {2049, 2048, 2048}, {30000, 2048, 3000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_plan_input in = input(cases[i].ctx, 0.1), all = in;
        struct kv_hot_plan plan, same;
        in.selection.exact_below = cases[i].exact_below;
        all.selection.budget = cases[i].most;
        assert_int_equal(kv_plan_gpu_slots(&in, UINT64_MAX), cases[i].most);
        assert_int_equal(kv_plan_gpu_bytes(&in, cases[i].ctx, 0),
                         kv_plan_gpu_bytes(&all, cases[i].ctx, 0));
        assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX / 2, NULL), 0);
        assert_int_equal(kv_plan_hot(&same, &all, UINT64_MAX / 2, NULL), 0);
        assert_int_equal(plan.staging_slots, 2 * cases[i].most + 32);
        assert_memory_equal(&plan, &same, sizeof plan);
    }
}

enum { SAMPLE = 3456 };

static void hot_plan_worked_by_hand(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan plan;
    uint64_t min = kv_plan_hot_min_bytes(&in);
    assert_int_equal(kv_plan_hot(&plan, &in, min, NULL), 0);
    assert_int_equal(plan.staging_slots, 2 * 200 + 32);
    assert_int_equal(plan.staging_bytes, shm_arena_bytes(432, 128));
    /* header, words, 5 lists, 6 GPU lists of 200 with 5 counts, what is kept, each layer's sample
     * (66 digests in 5 groups, 8 bytes of check each), planes: each at 64 bytes */
    assert_int_equal(5 * 576 + 66 * 8 + 48, SAMPLE);
    assert_int_equal(plan.tables_bytes, 192 + 40000 + 128 + 9664 + 1280 + 5 * SAMPLE + 384);
    assert_int_equal(plan.private_bytes, kv_selector_bytes(2000) + 33 * 132 + 200 * 48 + 5 * 512 +
                                             4 * 64 + 8 * 17 + 1024);
    /* 64 floats: the row's query; 8 * 17 bytes: its digest; 1024: what is known of it */
    assert_int_equal(plan.block_bytes, 24 + 64 * (128 + 36 + 4 + 8));
    assert_int_equal(plan.n_blocks, 5 * 2); /* 36 tokens: one block, and one more, a layer */
    assert_int_equal(min, plan.staging_bytes + plan.tables_bytes + plan.private_bytes +
                              10 * plan.block_bytes);
    in.placement_bytes = 1000;
    in.cold_slots = 2560;
    assert_int_equal(kv_plan_hot_min_bytes(&in), min + 1000 + 2560 * (4 + 8) + 160 + 10 * 12);
}

/* A location word has thirty bits for a slot: one more would be another slot's name. */
static void more_slots_than_a_word_can_name_are_refused(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan plan;
    struct hill_why why = {""};
    in.cold_slots = (1u << 30) - 1;
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_C(1) << 40, &why), 0);
    in.cold_slots = 1u << 30;
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_C(1) << 40, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "1073741824 slots"));
    assert_non_null(strstr(why.text, "1073741823"));
}

/* Two selections of a sequence are alive: in staging, and in what the scorer knows of them. */
static void guesses_take_a_second_selection(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan off, on;
    in.n_sequences = 3;
    uint64_t gpu = kv_plan_gpu_bytes(&in, 1000, 200);
    assert_int_equal(kv_plan_hot(&off, &in, 64 << 20, NULL), 0);
    in.speculates = true;
    assert_int_equal(kv_plan_hot(&on, &in, 64 << 20, NULL), 0);
    assert_int_equal(on.staging_slots - off.staging_slots, 3 * 200);
    /* slots of the second one, positions and slots of a guess; fetches and flags; two counts a list
     */
    assert_int_equal(on.private_bytes - off.private_bytes, 3 * 200 * 12 + 200 * 17 + 15 * 16);
    assert_int_equal(kv_plan_gpu_bytes(&in, 1000, 200) - gpu,
                     3 * 4 * (64 + 32)); /* a row's guess */
}

/* One row in flight for each sequence, as many as are asked for at most. */
static void each_row_in_flight_is_counted(void **state)
{
    (void)state;
    static const uint32_t rows[][2] = {{0, 1}, {1, 1}, {2, 2}, {3, 3}, {9, 3}};
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan one, plan;
    in.n_sequences = 3;
    assert_int_equal(kv_plan_hot(&one, &in, 64 << 20, NULL), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        in.rows_in_flight = rows[i][0];
        assert_int_equal(kv_plan_hot(&plan, &in, 64 << 20, NULL), 0);
        assert_int_equal(plan.private_bytes - one.private_bytes,
                         (rows[i][1] - 1) *
                             (kv_selector_bytes(2000) + 200 * 44 + 4 * 64 + 8 * 17 + 1024));
    }
}

/* Digests that lie in hot blocks: what the scorer keeps beside the blocks is counted with each. */
static void blocks_that_may_be_lent_cost_more(void **state)
{
    (void)state;
    static const struct {
        struct kv_geometry g;
        struct kv_lent_unit unit;
    } known[] = {
        {{24, 14, 2, 64}, {4, 15, 19}},    /* 64 entries of 512 bytes; groups of 2112 */
        {{24, 14, 2, 64, 4}, {2, 30, 17}}, /* of 1088 */
        {{5, 8, 4, 8}, {2, 14, 9}},        /* 128 bytes; 576 */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct kv_lent_unit unit = kv_lent_unit(&known[i].g);
        assert_memory_equal(&unit, &known[i].unit, sizeof unit);
        assert_true(unit.n_blocks <= KV_LENT_UNIT_MAX);
    }
    assert_int_equal(kv_lent_block_bytes(&known[0].g), 8 + 16 * 19 / 4);
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan plan, without;
    in.cold_slots = 5 * 2048;
    assert_int_equal(kv_plan_hot(&without, &in, 64 << 20, NULL), 0);
    in.lends_digests = true;
    uint64_t min = kv_plan_hot_min_bytes(&in), full = kv_plan_hot_full_bytes(&in);
    uint64_t lent = kv_lent_block_bytes(&in.geometry), tables = 160 * 4 + 5 * 4 + 8 + 33 * 132;
    assert_int_equal(kv_plan_digest_cache(&in), 160 * 4 + 5 * 4 + 8);
    assert_int_equal(kv_plan_hot(&plan, &in, 64 << 20, NULL), 0);
    assert_int_equal(plan.n_blocks, without.n_blocks);
    assert_int_equal(plan.block_bytes, without.block_bytes);
    assert_int_equal(plan.private_bytes, without.private_bytes + tables + plan.n_blocks * lent);
    for (uint64_t cap = min; cap < full + 100000; cap += 4099) {
        assert_int_equal(kv_plan_hot(&plan, &in, cap, NULL), 0);
        uint64_t used = plan.staging_bytes + plan.tables_bytes + plan.private_bytes +
                        plan.n_blocks * plan.block_bytes;
        assert_true(used <= cap);
        assert_true(used + plan.block_bytes + lent > cap || plan.n_blocks == 5 * 33);
    }
    assert_int_equal(kv_plan_hot(&plan, &in, min - 1, NULL), HILL_E_INVALID);
    in.selection.policy = KV_POLICY_H2O; /* scores no digests */
    assert_false(kv_plan_lends(&in));
    assert_int_equal(kv_plan_digest_cache(&in), 0);
}

static void each_sequence_has_its_share_of_the_hot_plan(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan one, plan;
    uint64_t min_one = kv_plan_hot_min_bytes(&in);
    in.placement_bytes = 1000;
    assert_int_equal(kv_plan_hot(&one, &in, min_one + 1000, NULL), 0);
    in.n_sequences = 8;
    uint64_t min = kv_plan_hot_min_bytes(&in), full = kv_plan_hot_full_bytes(&in);
    assert_int_equal(kv_plan_hot(&plan, &in, min - 1, NULL), HILL_E_INVALID);
    assert_int_equal(kv_plan_hot(&plan, &in, min, NULL), 0);
    assert_int_equal(plan.n_blocks, 8 * 5 * 2);
    assert_int_equal(plan.staging_slots, 9 * 200 + 8 * 32); /* a selection each, and one more */
    assert_int_equal(plan.tables_bytes, 192 + 8 * 40000 + 640 + (160 + 41 * 1600 + 32) + 8 * 1280 +
                                            8 * 5 * SAMPLE + 384);
    /* the selector and a query's buffers are for one at a time */
    assert_int_equal(plan.private_bytes - one.private_bytes, 7 * (200 * 4 + 5 * 512 + 1000));
    assert_int_equal(kv_plan_hot(&plan, &in, full, NULL), 0);
    assert_int_equal(plan.n_blocks, 8 * 5 * 33);
    in.n_sequences = KV_MAX_SEQUENCES + 1;
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX, NULL), HILL_E_INVALID);
}

static void the_hot_cap_is_never_exceeded(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan plan;
    uint64_t min = kv_plan_hot_min_bytes(&in), full = kv_plan_hot_full_bytes(&in);
    for (uint64_t cap = min; cap < full + 100000; cap += 4099) {
        assert_int_equal(kv_plan_hot(&plan, &in, cap, NULL), 0);
        uint64_t used = plan.staging_bytes + plan.tables_bytes + plan.private_bytes +
                        plan.n_blocks * plan.block_bytes;
        assert_true(used <= cap);
        assert_true(used + plan.block_bytes > cap || plan.n_blocks == 5 * 33);
    }
    assert_int_equal(kv_plan_hot(&plan, &in, full, NULL), 0);
    assert_true(plan.n_blocks * KV_HOT_BLOCK_TOKENS >= 5 * 2000);
    assert_int_equal(kv_plan_hot(&plan, &in, full - 1, NULL), 0);
    assert_int_equal(plan.n_blocks, 5 * 33 - 1);
}

static void too_small_a_hot_cap_is_refused_with_both_sizes(void **state)
{
    (void)state;
    struct kv_plan_input in = input(2000, 0.1);
    struct kv_hot_plan plan;
    struct hill_why why;
    assert_int_equal(kv_plan_hot(&plan, &in, kv_plan_hot_min_bytes(&in) - 1, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "MiB needed"));
    assert_non_null(strstr(why.text, "MiB given"));
}

static void bad_input_is_refused_before_it_is_computed_with(void **state)
{
    (void)state;
    struct kv_hot_plan plan;
    struct kv_plan_input in = input(0, 0.1);
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX, NULL), HILL_E_INVALID);
    in = input(KV_MAX_TOKENS + 1, 0.1);
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX, NULL), HILL_E_INVALID);
    in = input(100, 0.0);
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX, NULL), HILL_E_INVALID);
    in = input(100, 0.5);
    in.geometry.head_dim = 0;
    assert_int_equal(kv_plan_hot(&plan, &in, UINT64_MAX, NULL), HILL_E_INVALID);
}

/* a context shorter than the forced tokens */
static void a_tiny_context_can_be_planned(void **state)
{
    (void)state;
    struct kv_plan_input in = input(8, 0.5);
    struct kv_hot_plan plan;
    assert_int_equal(kv_plan_hot(&plan, &in, kv_plan_hot_full_bytes(&in), NULL), 0);
    assert_int_equal(plan.n_blocks, 10);
    assert_int_equal(plan.staging_slots, 24);
    assert_int_equal(kv_plan_gpu_slots(&in, UINT64_MAX), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(geometry_limits_are_checked),
        cmocka_unit_test(more_slots_than_a_word_can_name_are_refused),
        cmocka_unit_test(gpu_bytes_worked_by_hand),
        cmocka_unit_test(gpu_slots_and_bytes_agree),
        cmocka_unit_test(exact_contexts_have_their_room),
        cmocka_unit_test(hot_plan_worked_by_hand),
        cmocka_unit_test(guesses_take_a_second_selection),
        cmocka_unit_test(each_row_in_flight_is_counted),
        cmocka_unit_test(blocks_that_may_be_lent_cost_more),
        cmocka_unit_test(each_sequence_has_its_share_of_the_hot_plan),
        cmocka_unit_test(the_hot_cap_is_never_exceeded),
        cmocka_unit_test(too_small_a_hot_cap_is_refused_with_both_sizes),
        cmocka_unit_test(bad_input_is_refused_before_it_is_computed_with),
        cmocka_unit_test(a_tiny_context_can_be_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
