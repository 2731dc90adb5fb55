/*
 * How digests lie in groups (kv/group.h): every byte's place against the layout written down by
 * hand, and copies of tokens against copies of rows.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kv/group.h"
#include "tests/kv/digests.h"

#define SEED 4117u

static void sizes_are_those_worked_out_by_hand(void **state)
{
    static const struct {
        struct kv_geometry g;
        uint32_t mantissas_at, group, token;
    } known[] = {
        {{1, 8, 8, 64}, 128, 128 + 8192, 520},      {{1, 1, 1, 256}, 64, 64 + 4096, 260},
        {{1, 12, 12, 64}, 192, 192 + 12288, 780},   {{1, 2, 2, 3}, 64, 64 + 128, 12},
        {{1, 5, 5, 9}, 128, 128 + 5 * 3 * 64, 68},  {{1, 8, 8, 64, 8}, 128, 128 + 8192, 520},
        {{1, 8, 8, 64, 4}, 128, 128 + 4096, 264},   {{1, 1, 1, 9, 4}, 64, 64 + 128, 12},
        {{1, 256, 256, 256}, 4096, 1052672, 65792},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_int_equal(kv_group_mantissas_at(&known[i].g), known[i].mantissas_at);
        assert_int_equal(kv_group_bytes(&known[i].g), known[i].group);
        assert_int_equal(kv_digest_bytes(&known[i].g), known[i].token);
        assert_int_equal(kv_group_bytes(&known[i].g) % KV_GROUP_ALIGN, 0);
    }
    assert_int_equal(kv_groups_touched(5, 0), 0);
    assert_int_equal(kv_groups_touched(0, 16), 1);
    assert_int_equal(kv_groups_touched(15, 2), 2);
    assert_int_equal(kv_groups_touched(31, 17), 2);
    assert_int_equal(kv_groups_touched(16, 17), 2);
}

static void random_token(const struct kv_geometry *g, int8_t *m, uint8_t *e)
{
    for (uint32_t i = 0; i < kv_key_dims(g); i++)
        m[i] = (int8_t)(kv_digest_bits(g) == 4 ? rand() % 15 - 7 : rand() % 255 - 127);
    for (uint32_t h = 0; h < g->n_kv_heads; h++)
        e[h] = (uint8_t)(rand() % 17);
}

/* Where dimension d of a token lies, the group's lanes set aside: a word is dimensions 4w .. 4w + 3
 * in its bytes, or 8w .. 8w + 3 in their lower and 8w + 4 .. 8w + 7 in their upper nibbles. */
static void oracle_put(const struct kv_geometry *g, uint8_t *group, uint32_t lane, uint32_t h,
                       uint32_t d, int m)
{
    uint32_t words = g->digest_bits == 4 ? (g->head_dim + 7) / 8 : (g->head_dim + 3) / 4;
    uint8_t *lanes = group + (g->n_kv_heads * 16 + 63) / 64 * 64 + h * words * 64 + lane * 4;
    if (g->digest_bits != 4) {
        lanes[d / 4 * 64 + d % 4] = (uint8_t)m;
        return;
    }
    uint8_t *byte = &lanes[d / 8 * 64 + d % 4];
    if (d % 8 < 4)
        *byte = (uint8_t)((*byte & 0xf0) | (m + 8));
    else
        *byte = (uint8_t)((*byte & 0x0f) | (m + 8) << 4);
}

static void a_token_lies_where_the_layout_says(void **state)
{
    (void)state;
    srand(SEED);
    for (int round = 0; round < 400; round++) {
        struct kv_geometry g = {1, 64, 1 + (uint32_t)rand() % 9, 1 + (uint32_t)rand() % 70,
                                4u * (uint32_t)(round % 3)}; /* 0 is 8 */
        size_t bytes = kv_group_bytes(&g);
        uint32_t index = (uint32_t)rand() % 48, dims = (g.head_dim + 7) / 8 * 8;
        uint8_t *groups = malloc(3 * bytes), *expected = malloc(3 * bytes);
        int8_t m[9 * 70], back[9 * 70];
        uint8_t e[9], back_e[9];
        if (g.digest_bits != 4)
            dims = (g.head_dim + 3) / 4 * 4;
        random_token(&g, m, e);
        memset(groups, 0x5a, 3 * bytes);
        memset(expected, 0x5a, 3 * bytes);
        uint8_t *group = expected + index / 16 * bytes;
        for (uint32_t h = 0; h < g.n_kv_heads; h++) {
            group[h * 16 + index % 16] = e[h];
            for (uint32_t d = 0; d < dims; d++)
                oracle_put(&g, group, index % 16, h, d, d < g.head_dim ? m[h * g.head_dim + d] : 0);
        }
        kv_digest_put(&g, groups, index, m, e);
        assert_memory_equal(groups, expected, 3 * bytes); /* and nothing else was touched */
        kv_digest_get(&g, groups, index, back, back_e);
        assert_memory_equal(back, m, kv_key_dims(&g));
        assert_memory_equal(back_e, e, g.n_kv_heads);
        free(groups);
        free(expected);
    }
}

/* tokens copied one by one are the oracle; lanes beside them keep their bytes */
static void copies_equal_tokens_copied_one_by_one(void **state)
{
    (void)state;
    srand(SEED + 1);
    for (int round = 0; round < 500; round++) {
        struct kv_geometry g = {1, 64, 1 + (uint32_t)rand() % 4, 1 + (uint32_t)rand() % 20,
                                round % 4 < 2 ? 8 : 4};
        size_t bytes = 8 * (size_t)kv_group_bytes(&g);
        uint8_t *from = malloc(bytes), *to = malloc(bytes), *expected = malloc(bytes);
        uint32_t n = (uint32_t)rand() % 65, at = (uint32_t)rand() % 64,
                 source = (uint32_t)rand() % 64;
        int8_t m[4 * 20];
        uint8_t e[4];
        if (round % 2)
            source = source / 16 * 16 + at % 16; /* the same lanes: whole groups at once */
        memset(to, 0x11, bytes);
        memset(from, 0, bytes);
        for (uint32_t t = 0; t < 128; t++) {
            random_token(&g, m, e);
            kv_digest_put(&g, from, t, m, e);
        }
        memcpy(expected, to, bytes);
        for (uint32_t i = 0; i < n; i++) {
            kv_digest_get(&g, from, source + i, m, e);
            kv_digest_put(&g, expected, at + i, m, e);
        }
        kv_digest_copy(&g, to, at, from, source, n);
        for (uint32_t t = 0; t < 128; t++) {
            int8_t other[4 * 20];
            uint8_t other_e[4];
            kv_digest_get(&g, to, t, m, e);
            kv_digest_get(&g, expected, t, other, other_e);
            assert_memory_equal(m, other, kv_key_dims(&g));
            assert_memory_equal(e, other_e, g.n_kv_heads);
        }
        free(from);
        free(to);
        free(expected);
    }
}

static void a_query_is_filled_up_to_whole_words(void **state)
{
    static int8_t room[KV_QUERY_WORDS_ROOM];
    struct kv_geometry whole = {1, 2, 2, 4}, part = {1, 2, 2, 5}, four = {1, 2, 2, 5, 4};
    const int8_t q[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const int8_t filled[16] = {1, 2, 3, 4, 5, 0, 0, 0, 6, 7, 8, 9, 10, 0, 0, 0};
    (void)state;
    memset(room, 0x77, sizeof(room));
    assert_ptr_equal(kv_query_words(&whole, 2, q, room), q);
    assert_ptr_equal(kv_query_words(&part, 2, q, room), room);
    assert_memory_equal(room, filled, sizeof(filled));
    assert_int_equal(kv_query_words_bytes(&part, 2), 16);
    assert_int_equal(kv_query_words_bytes(&four, 2), 16);
    assert_ptr_equal(kv_query_words(&four, 2, q, room), room);
    assert_memory_equal(room, filled, sizeof(filled));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_worked_out_by_hand),
        cmocka_unit_test(a_token_lies_where_the_layout_says),
        cmocka_unit_test(copies_equal_tokens_copied_one_by_one),
        cmocka_unit_test(a_query_is_filled_up_to_whole_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
