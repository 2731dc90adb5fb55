/* tests/cpu_scorer/test_hkm.c - the hot pool, the location words and the cold map against a plain
 * model, with random operations (HILL_TEST_OPERATIONS, HILL_TEST_SEED). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_scorer/cold_map.h"
#include "cpu_scorer/hkm.h"
#include "kv/score.h"
#include "tests/draws.h"
#include "tests/kv/digests.h"
#include "tests/cpu_scorer/hkm_audit.h"

enum { LAYERS = 3, SEQUENCES = 2, CTX = 700, ENTRY = 2 * 2 * 8 * 2, BLOCKS = 40 };
enum { STRIPE = 256, STRIPES = 3 * LAYERS * SEQUENCES, LISTS = LAYERS * SEQUENCES };

#ifdef __SANITIZE_ADDRESS__
#define OPERATIONS 100000ull
#else
#define OPERATIONS 1000000ull
#endif
#define CHECK_EVERY 2000

static const struct kv_geometry geometry = {LAYERS, 4, 2, 8};

/* What the tables should say: where each token is, and its bytes. */
struct model_token {
    enum hkm_tag tag;
    uint32_t cold_slot; /* also of a hot token that was cold: COLD_NONE when it never was */
    bool moving;
    uint16_t entry[ENTRY / 2];
};
struct model_list {
    uint32_t n, n_hot, n_cold;
    struct model_token tokens[CTX];
};
static struct model_list model[SEQUENCES][LAYERS];
static uint32_t limits[SEQUENCES];

static struct cold_map cold;
static uint16_t random_half(void)
{
    return (uint16_t)(draw(2) << 15 | (8 + draw(12)) << 10 | draw(1024));
}

static void *memory;

static void set_up_tables(struct hkm *h)
{
    struct hkm_config config = {.geometry = geometry,
                                .ctx_tokens = CTX,
                                .n_sequences = SEQUENCES,
                                .gpu_slots = 16,
                                .n_blocks = BLOCKS};
    uint64_t bytes = hkm_tables_bytes(&config) + BLOCKS * hkm_block_bytes(&geometry);
    assert_int_equal(posix_memalign(&memory, 64, bytes), 0);
    memset(memory, 0, bytes);
    assert_int_equal(hkm_init(h, memory, bytes, &config, NULL), 0);
    assert_int_equal(h->n_blocks, BLOCKS);
}

static void check_token(const struct hkm *h, uint32_t s, uint32_t l, uint32_t p)
{
    const struct model_token *t = &model[s][l].tokens[p];
    uint32_t word = hkm_location(h, s, l, p);
    int8_t mantissas[16], expected[16];
    uint8_t exponents[2], expected_exponents[2], group[512];
    if (p >= model[s][l].n) {
        assert_int_equal(hkm_tag(word), HKM_NOWHERE);
        return;
    }
    assert_int_equal(hkm_tag(word), t->tag);
    /* one place: what is hot is not committed in the cold pool, even where its copy is */
    if (t->cold_slot != COLD_NONE)
        assert_int_equal(cold_map_position(&cold, s * LAYERS + l, t->cold_slot),
                         t->tag == HKM_COLD ? p : COLD_NONE);
    if (t->tag == HKM_COLD) {
        assert_int_equal(hkm_slot(word), t->cold_slot);
        return;
    }
    assert_int_equal(h->positions[hkm_slot(word)], p);
    assert_memory_equal(hkm_entry(h, hkm_slot(word)), t->entry, ENTRY);
    kv_digest_keys(&geometry, t->entry, ENTRY / 2, 1, group, 0);
    kv_digest_get(&geometry, group, 0, expected, expected_exponents);
    kv_digest_get(&geometry, h->digests, hkm_slot(word), mantissas, exponents);
    assert_memory_equal(mantissas, expected, 16);
    assert_memory_equal(exponents, expected_exponents, 2);
}

static void check_all(const struct hkm *h)
{
    struct hill_why why = {""};
    if (hkm_audit(h, &why))
        fail_msg("audit: %s", why.text);
    for (uint32_t s = 0; s < SEQUENCES; s++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            for (uint32_t p = 0; p < CTX; p++)
                check_token(h, s, l, p);
            assert_int_equal(hkm_hot_tokens(h, s, l), model[s][l].n_hot);
            assert_int_equal(cold.lists[s * LAYERS + l].committed, model[s][l].n_cold);
            assert_int_equal(model[s][l].n_hot + model[s][l].n_cold, model[s][l].n);
            assert_true(model[s][l].n_hot <= limits[s] * KV_HOT_BLOCK_TOKENS);
        }
}

static void op_append(struct hkm *h, uint32_t s, uint32_t l)
{
    static uint16_t entries[150][ENTRY / 2];
    struct model_list *m = &model[s][l];
    uint32_t n = 1 + draw(150);
    if (n > CTX - m->n)
        n = CTX - m->n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < ENTRY / 2; j++)
            entries[i][j] = random_half();
    uint32_t room = limits[s] * KV_HOT_BLOCK_TOKENS - m->n_hot;
    uint32_t taken = hkm_append(h, s, l, m->n, n, entries);
    assert_int_equal(taken, n < room ? n : room); /* holes are used, the cap is never exceeded */
    for (uint32_t i = 0; i < taken; i++) {
        struct model_token *t = &m->tokens[m->n + i];
        *t = (struct model_token){.tag = HKM_HOT, .cold_slot = COLD_NONE};
        memcpy(t->entry, entries[i], ENTRY);
    }
    m->n += taken;
    m->n_hot += taken;
}

static void flip_down(struct hkm *h, uint32_t s, uint32_t l, uint32_t p)
{
    struct model_list *m = &model[s][l];
    struct model_token *t = &m->tokens[p];
    uint32_t list = s * LAYERS + l, order;
    if (t->cold_slot == COLD_NONE)
        assert_int_equal(cold_map_take_positions(&cold, list, &p, 1, &t->cold_slot, &order), 1);
    cold_map_commit(&cold, list, t->cold_slot, 1);
    hkm_set_cold(h, s, l, p, t->cold_slot);
    t->tag = HKM_COLD;
    m->n_hot--;
    m->n_cold++;
}

/* Start: only the model knows; the word stays hot. Complete: the flip. */
static void op_demote(struct hkm *h, uint32_t s, uint32_t l, bool complete)
{
    struct model_list *m = &model[s][l];
    uint32_t first = m->n ? draw(m->n) : 0, n = draw(30);
    for (uint32_t p = first; p < m->n && p < first + n; p++) {
        struct model_token *t = &m->tokens[p];
        if (t->tag != HKM_HOT || t->moving == !complete)
            continue;
        t->moving = !complete;
        if (complete)
            flip_down(h, s, l, p);
    }
}

/* Cold tokens here and there come up as long as there is room. */
static void op_promote(struct hkm *h, uint32_t s, uint32_t l)
{
    struct model_list *m = &model[s][l];
    for (uint32_t i = draw(16), p; i > 0 && m->n; i--) {
        struct model_token *t = &m->tokens[p = draw(m->n)];
        if (t->tag != HKM_COLD)
            continue;
        uint32_t room = limits[s] * KV_HOT_BLOCK_TOKENS - m->n_hot;
        assert_int_equal(hkm_append(h, s, l, p, 1, t->entry), room ? 1 : 0);
        if (room == 0)
            return;
        cold_map_uncommit(&cold, s * LAYERS + l, t->cold_slot);
        t->tag = HKM_HOT;
        m->n_hot++;
        m->n_cold--;
    }
}

/* Blocks that are lent, with bytes of the borrower's in them. */
static struct {
    uint32_t blocks[BLOCKS], n;
} lent;

static void fill_lent(struct hkm *h, uint32_t block)
{
    memset(hkm_entry(h, block * 64), (int)block, 64 * (size_t)h->entry_bytes);
    memset(h->digests + block * 64 * (size_t)kv_digest_bytes(&geometry), (int)block,
           64 * (size_t)kv_digest_bytes(&geometry));
}

static void check_lent(struct hkm *h, uint32_t block)
{
    const uint8_t *digests = h->digests + block * 64 * (size_t)kv_digest_bytes(&geometry);
    for (size_t i = 0; i < 64 * (size_t)h->entry_bytes; i++)
        assert_int_equal(hkm_entry(h, block * 64)[i], block);
    for (size_t i = 0; i < 64 * (size_t)kv_digest_bytes(&geometry); i++)
        assert_int_equal(digests[i], block);
}

static uint32_t unreserved(void)
{
    return BLOCKS - (limits[0] + limits[1]) * LAYERS - lent.n;
}

static void op_lend(struct hkm *h)
{
    uint32_t n = 1 + draw(5), left = unreserved();
    int rc = hkm_lend(h, n, lent.blocks + lent.n);
    assert_int_equal(rc, n <= left ? 0 : HILL_E_NOSPACE);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        fill_lent(h, lent.blocks[lent.n++]);
}

static void op_give_back(struct hkm *h)
{
    uint32_t i = draw(BLOCKS);
    if (i >= lent.n)
        return;
    check_lent(h, lent.blocks[i]);
    hkm_give_back(h, lent.blocks[i]);
    lent.blocks[i] = lent.blocks[--lent.n];
}

/* Fewer blocks, if no layer holds more. */
static void op_shrink(struct hkm *h, uint32_t s)
{
    uint32_t to = draw(limits[s] + 2), most = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t has = h->lists[hkm_list_index(h, s, l)].n_blocks;
        most = has > most ? has : most;
    }
    bool can = to <= limits[s] && most <= to;
    assert_int_equal(hkm_shrink(h, s, to), can);
    limits[s] = can ? to : limits[s];
}

static void op_end(struct hkm *h, uint32_t s)
{
    hkm_release(h, s);
    memset(model[s], 0, sizeof model[s]);
    uint32_t want = 1 + draw(9), free_blocks = BLOCKS - limits[1 - s] * LAYERS - lent.n;
    int rc = hkm_reserve(h, s, want);
    assert_int_equal(rc, want * LAYERS <= free_blocks ? 0 : HILL_E_NOSPACE);
    limits[s] = rc ? 0 : want;
    for (uint32_t l = 0; l < LAYERS; l++) {
        cold_map_release(&cold, s * LAYERS + l);
        assert_int_equal(cold_map_reserve(&cold, s * LAYERS + l, 3), 0);
    }
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void test_random_operations_match_the_model(void **unused)
{
    (void)unused;
    struct hkm h;
    uint64_t operations = from_environment("HILL_TEST_OPERATIONS", OPERATIONS);
    draws_seed(20240611);
    print_message("%llu operations\n", (unsigned long long)operations);
    set_up_tables(&h);
    assert_int_equal(cold_map_init(&cold, STRIPE, STRIPES, LISTS), 0);
    op_end(&h, 0);
    op_end(&h, 1);
    for (uint64_t round = 0; round < operations; round++) {
        uint32_t s = draw(SEQUENCES), l = draw(LAYERS), what = draw(1000);
        if (what < 200)
            op_append(&h, s, l);
        else if (what < 450)
            op_demote(&h, s, l, false);
        else if (what < 700)
            op_demote(&h, s, l, true);
        else if (what < 990)
            op_promote(&h, s, l);
        else if (what < 993)
            op_lend(&h);
        else if (what < 996)
            op_give_back(&h);
        else if (what < 997)
            op_shrink(&h, s);
        else
            op_end(&h, s);
        if (round % CHECK_EVERY == 0)
            check_all(&h);
    }
    check_all(&h);
    for (uint32_t i = 0; i < lent.n; i++)
        check_lent(&h, lent.blocks[i]);
    cold_map_finish(&cold);
    free(memory);
}

static void test_blocks_of_a_list_cover_its_tokens_once(void **unused)
{
    (void)unused;
    struct hkm h;
    static uint16_t entries[200][ENTRY / 2];
    uint32_t blocks[BLOCKS], seen[200] = {0};
    set_up_tables(&h);
    assert_int_equal(hkm_reserve(&h, 0, 4), 0);
    assert_int_equal(hkm_append(&h, 0, 1, 0, 200, entries), 200);
    uint32_t n = hkm_blocks(&h, 0, 1, blocks, BLOCKS);
    assert_int_equal(n, 4);
    for (uint32_t i = 0; i < n * KV_HOT_BLOCK_TOKENS; i++) {
        uint32_t p = h.positions[blocks[i / 64] * 64 + i % 64];
        if (p != HKM_NO_POSITION)
            seen[p]++;
    }
    for (uint32_t p = 0; p < 200; p++)
        assert_int_equal(seen[p], 1);
    free(memory);
}

static void test_memory_too_small_is_refused(void **unused)
{
    (void)unused;
    struct hkm h;
    struct hkm_config config = {geometry, CTX, SEQUENCES, 16, BLOCKS};
    uint64_t bytes = hkm_tables_bytes(&config) + (LAYERS - 1) * hkm_block_bytes(&geometry);
    assert_int_equal(posix_memalign(&memory, 64, bytes), 0);
    assert_int_equal(hkm_init(&h, memory, bytes, &config, NULL), HILL_E_INVALID);
    free(memory);
}

static void test_audit_finds_a_word_that_lies(void **unused)
{
    (void)unused;
    struct hkm h;
    static uint16_t entries[10][ENTRY / 2];
    set_up_tables(&h);
    assert_int_equal(hkm_reserve(&h, 0, 1), 0);
    assert_int_equal(hkm_append(&h, 0, 0, 0, 10, entries), 10);
    assert_int_equal(hkm_audit(&h, NULL), 0);
    atomic_store_explicit(&h.words[3], hkm_word(HKM_COLD, 1), memory_order_relaxed);
    assert_int_equal(hkm_audit(&h, NULL), HILL_E_DAMAGED);
    free(memory);
}

/* Layers grow in turn, as in a prefill; each one's blocks follow one another all the same. */
static void test_a_list_grows_in_one_run(void **unused)
{
    (void)unused;
    struct hkm h;
    uint32_t blocks[BLOCKS];
    static uint8_t entries[50 * ENTRY];
    set_up_tables(&h);
    for (int request = 0; request < 3; request++) {
        assert_int_equal(hkm_reserve(&h, 0, BLOCKS / LAYERS), 0);
        for (uint32_t at = 0; at + 50 <= CTX; at += 50)
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                assert_int_equal(hkm_append(&h, 0, layer, at, 50, entries), 50);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t n = hkm_blocks(&h, 0, layer, blocks, BLOCKS);
            assert_int_equal(n, (CTX / 50 * 50 + 63) / 64);
            for (uint32_t i = 1; i < n; i++)
                assert_int_equal(blocks[i], blocks[0] + i);
        }
        assert_int_equal(hkm_audit(&h, NULL), 0);
        hkm_release(&h, 0);
        assert_int_equal(hkm_audit(&h, NULL), 0);
    }
    free(memory);
}

/* kv/plan.c does not know the layout here, but counts it to the byte: M_0 is a hard cap. */
static void test_the_plan_counts_what_is_laid_out(void **unused)
{
    (void)unused;
    for (uint32_t n = 1; n <= KV_MAX_SEQUENCES; n = n * 3 + 1) {
        struct kv_plan_input in = {.geometry = geometry,
                                   .ctx_tokens = CTX,
                                   .n_sequences = n,
                                   .selection = {.alpha = 0.3, .sinks = 4, .window = 32}};
        struct hkm_config config = {geometry, CTX, n, kv_budget_tokens(&in.selection, CTX), 0};
        config.state_bytes = kv_plan_state_bytes(&geometry, KV_POLICY_HILLINFER, CTX);
        struct kv_hot_plan plan;
        assert_int_equal(kv_plan_hot(&plan, &in, kv_plan_hot_full_bytes(&in), NULL), 0);
        assert_int_equal(plan.tables_bytes, hkm_tables_bytes(&config));
        assert_int_equal(plan.block_bytes, hkm_block_bytes(&geometry));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_plan_counts_what_is_laid_out),
        cmocka_unit_test(test_a_list_grows_in_one_run),
        cmocka_unit_test(test_random_operations_match_the_model),
        cmocka_unit_test(test_blocks_of_a_list_cover_its_tokens_once),
        cmocka_unit_test(test_memory_too_small_is_refused),
        cmocka_unit_test(test_audit_finds_a_word_that_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
