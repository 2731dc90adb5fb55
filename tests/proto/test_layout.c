/* tests/proto/test_layout.c - the rings segment: room for what runs at the same time, and who may
 * open what. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kv/plan.h"
#include "proto/layout.h"
#include "proto/records.h"

static struct layout_input input(uint32_t n_sequences)
{
    return (struct layout_input){
        .geometry = {3, 6, 2, 32}, .ctx_tokens = 4096, .n_sequences = n_sequences};
}

struct rig {
    struct layout_input in;
    uint64_t bytes;
    void *payload;
};

static void rig_init(struct rig *r, struct layout_input in)
{
    r->in = in;
    r->bytes = layout_rings_bytes(&in);
    assert_int_equal(posix_memalign(&r->payload, 64, r->bytes), 0);
    memset(r->payload, 0, r->bytes);
    assert_int_equal(layout_init(r->payload, r->bytes, &in), 0);
}

static struct shm_ring_end open_end(struct rig *r, enum layout_ring ring, enum layout_party party)
{
    struct shm_ring_end end;
    assert_int_equal(layout_open(&end, r->payload, r->bytes, &r->in, ring, party), 0);
    return end;
}

/* n records of `bytes` fit without anybody taking one out, at any place of the ring. */
static void expect_room(struct shm_ring_end *producer, struct shm_ring_end *consumer, uint32_t type,
                        uint32_t bytes, uint32_t n)
{
    void *record = calloc(1, bytes);
    uint32_t got_type, got_bytes;
    const void *payload;
    for (int round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(shm_ring_push(producer, type, record, bytes), 0);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(shm_ring_peek(consumer, &got_type, &payload, &got_bytes), 0);
            shm_ring_release(consumer);
        }
    }
    free(record);
}

static void test_each_sequence_has_room_for_its_query(void **unused)
{
    (void)unused;
    struct rig r;
    /* large enough that the least capacity does not do it */
    struct layout_input in = {{2, KV_MAX_HEADS, 1, 64}, 512, KV_MAX_SEQUENCES};
    rig_init(&r, in);
    struct shm_ring_end gpu = open_end(&r, RING_QUERY, PARTY_GPU),
                        scorer = open_end(&r, RING_QUERY, PARTY_SCORER);
    uint32_t bytes = (uint32_t)sizeof(struct record_query) + KV_MAX_HEADS * 64 * 4;
    expect_room(&gpu, &scorer, RECORD_QUERY, bytes, KV_MAX_SEQUENCES);
    free(r.payload);
}

static void test_each_sequence_has_room_for_an_entry_beside_bulk(void **unused)
{
    (void)unused;
    struct rig r;
    rig_init(&r, input(KV_MAX_SEQUENCES));
    struct shm_ring_end gpu = open_end(&r, RING_APPEND, PARTY_GPU),
                        scorer = open_end(&r, RING_APPEND, PARTY_SCORER);
    uint32_t entry = kv_entry_bytes(&r.in.geometry), type, got;
    uint32_t bulk =
        (uint32_t)sizeof(struct record_append) + layout_append_tokens_max(&r.in) * entry;
    void *record = calloc(1, bulk);
    const void *payload;
    for (int round = 0; round < 5; round++) {
        assert_int_equal(shm_ring_push(&gpu, RECORD_APPEND, record, bulk), 0);
        for (uint32_t i = 0; i < KV_MAX_SEQUENCES; i++)
            assert_int_equal(shm_ring_push(&gpu, RECORD_APPEND, record,
                                           (uint32_t)sizeof(struct record_append) + entry),
                             0);
        while (shm_ring_peek(&scorer, &type, &payload, &got) == 0)
            shm_ring_release(&scorer);
    }
    free(record);
    free(r.payload);
}

static void test_two_of_the_largest_selections_fit(void **unused)
{
    (void)unused;
    struct rig r;
    rig_init(&r, input(8));
    struct shm_ring_end scorer = open_end(&r, RING_SELECTION, PARTY_SCORER);
    uint32_t bytes =
        (uint32_t)(sizeof(struct record_selection) +
                   4096 * (sizeof(struct selected_item) + sizeof(struct selected_upload)));
    void *record = calloc(1, bytes);
    assert_int_equal(shm_ring_push(&scorer, RECORD_SELECTION, record, bytes), 0);
    assert_int_equal(shm_ring_push(&scorer, RECORD_SELECTION, record, bytes), 0);
    free(record);
    free(r.payload);
}

static void test_the_fingerprint_tells_the_number_of_sequences(void **unused)
{
    (void)unused;
    struct layout_input one = input(1), eight = input(8);
    assert_true(layout_fingerprint(&one) != layout_fingerprint(&eight));
    assert_true(layout_rings_bytes(&one) <= layout_rings_bytes(&eight));
}

static void test_impossible_numbers_of_sequences_are_refused(void **unused)
{
    (void)unused;
    static uint64_t memory[512];
    struct layout_input none = input(0), many = input(KV_MAX_SEQUENCES + 1);
    assert_int_equal(layout_init(memory, UINT64_MAX, &none), HILL_E_INVALID);
    assert_int_equal(layout_init(memory, UINT64_MAX, &many), HILL_E_INVALID);
}

static void test_only_its_two_parties_open_a_ring(void **unused)
{
    (void)unused;
    struct rig r;
    struct shm_ring_end end;
    rig_init(&r, input(2));
    assert_int_equal(layout_open(&end, r.payload, r.bytes, &r.in, RING_QUERY, PARTY_AGENT),
                     HILL_E_INVALID);
    assert_int_equal(layout_open(&end, r.payload, r.bytes, &r.in, RING_SCORE, PARTY_GPU),
                     HILL_E_INVALID);
    assert_int_equal(layout_open(&end, r.payload, r.bytes - 1, &r.in, RING_QUERY, PARTY_GPU),
                     HILL_E_INVALID);
    struct layout_input other = input(KV_MAX_SEQUENCES); /* of other capacities */
    assert_int_equal(
        layout_open(&end, r.payload, UINT64_MAX, &other, RING_SELECTION, PARTY_GPU) == 0, 0);
    free(r.payload);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_sequence_has_room_for_its_query),
        cmocka_unit_test(test_each_sequence_has_room_for_an_entry_beside_bulk),
        cmocka_unit_test(test_two_of_the_largest_selections_fit),
        cmocka_unit_test(test_the_fingerprint_tells_the_number_of_sequences),
        cmocka_unit_test(test_impossible_numbers_of_sequences_are_refused),
        cmocka_unit_test(test_only_its_two_parties_open_a_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
