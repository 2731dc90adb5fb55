/*
 * Data-plane records: every count corrupted, random bytes; and the rings segment opened from two
 * mappings.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv/score.h"
#include "proto/layout.h"
#include "proto/records.h"

#define SEED        90210u
#define N_SEQUENCES 3u
#define ROOM        65536u

static const struct kv_geometry geometry = {5, 8, 4, 8}; /* entry 128, digest 36 bytes */

static const uint32_t all_types[] = {
    RECORD_SEQ_BEGIN, RECORD_APPEND,     RECORD_STEP_END,  RECORD_SEQ_END,     RECORD_QUERY,
    RECORD_SELECTION, RECORD_SEQ_READY,  RECORD_SEQ_STATS, RECORD_AGENT_QUERY, RECORD_COMMIT,
    RECORD_FETCH,     RECORD_TRIM,       RECORD_DEMOTE,    RECORD_SCORE_BLOCK, RECORD_COMPLETION,
    RECORD_RELEASE,   RECORD_READS_DONE, RECORD_READ_KEYS, RECORD_RESUME,      RECORD_READ,
    RECORD_PROMPT,    RECORD_ENTRIES,    RECORD_MASS,      RECORD_ADOPT,
};
#define N_TYPES (sizeof(all_types) / sizeof(all_types[0]))

/* A good record of a type in zeroed room; returns its bytes, written down by hand. */
static uint32_t good_record(uint32_t type, void *room)
{
    struct record_header *header = room;
    memset(room, 0, ROOM);
    header->epoch = 7;
    header->sequence = 2;
    header->layer = type == RECORD_TRIM ? 0 : 4;
    switch (type) {
    case RECORD_SEQ_BEGIN: {
        struct record_seq_begin *r = room;
        r->prompt_tokens = 10;
        r->max_tokens = 20;
        r->alpha = 0.5;
        r->identity = 3;
        r->adopt_min = 11;
        r->adopt_max = 12;
        r->past_tokens = 4;
        r->after = 4;
        r->after_tokens = 9;
        return 96;
    }
    case RECORD_APPEND:
        ((struct record_append *)room)->first = 100;
        ((struct record_append *)room)->n_tokens = 3;
        return 32 + 3 * 128;
    case RECORD_STEP_END:
        ((struct record_step_end *)room)->n_tokens = 3;
        return 32;
    case RECORD_QUERY:
        ((struct record_query *)room)->n_heads = 8;
        ((struct record_query *)room)->n_tokens = 55;
        return 48 + 8 * 8 * 4;
    case RECORD_PROMPT:
        ((struct record_prompt *)room)->total_bytes = 9;
        ((struct record_prompt *)room)->first_byte = 2;
        ((struct record_prompt *)room)->n_bytes = 5;
        return 32 + 5;
    case RECORD_RESUME:
        return 24 + 8 + 96;
    case RECORD_READ:
        ((struct record_read *)room)->first = 7;
        ((struct record_read *)room)->n_tokens = 3;
        return 48;
    case RECORD_MASS:
        ((struct record_mass *)room)->first = 100;
        ((struct record_mass *)room)->n_tokens = 3;
        return 32 + 3 * 4;
    case RECORD_ENTRIES:
        ((struct record_entries *)room)->n_entries = 3;
        return 32 + 8 + 96 + 8 + 3 * 8;
    case RECORD_SELECTION: {
        struct record_selection *r = room;
        r->n_selected = 3;
        r->n_uploads = 2;
        for (uint32_t i = 0; i < 3; i++)
            ((struct selected_item *)(r + 1))[i].position = 10 + i * i;
        return 32 + 3 * 8 + 2 * 16;
    }
    case RECORD_AGENT_QUERY:
        ((struct record_agent_query *)room)->block_tokens = 256;
        ((struct record_agent_query *)room)->committed = 500;
        ((struct record_agent_query *)room)->expected = 400;
        ((struct record_agent_query *)room)->n_host_words = 2;
        return 48 + 2 * 8 + 4 * 8 + 36;
    case RECORD_COMMIT:
        ((struct record_commit *)room)->n_slots = 9;
        return 32 + 9 * 4;
    case RECORD_ADOPT: {
        struct record_adopt *r = room;
        r->stripe = 1;
        r->n_slots = 2;
        for (uint32_t i = 0; i < 2; i++)
            ((struct adopt_item *)(r + 1))[i] = (struct adopt_item){256 + 5 * i, 70 - i, 9};
        return 48 + 2 * 12;
    }
    case RECORD_RELEASE:
        ((struct record_release *)room)->n_slots = 7;
        return 32 + 7 * 4;
    case RECORD_FETCH:
        ((struct record_fetch *)room)->n_entries = 4;
        return 32 + 4 * 16;
    case RECORD_READ_KEYS: {
        struct record_read_keys *r = room;
        r->n_ranges = 2;
        for (uint32_t i = 0; i < 2; i++)
            ((struct key_range *)(r + 1))[i].n_slots = 4096 - i;
        return 32 + 2 * 8;
    }
    case RECORD_DEMOTE:
        ((struct record_demote *)room)->n_slots = 5;
        return 48 + 32 + 576 + 5 * 128; /* 20 bytes padded to 16, one group */
    case RECORD_SCORE_BLOCK: {
        struct record_score_block *r = room;
        r->version = 1;
        r->planes = 1;
        r->n = 6;
        return 48 + 6 * 4;
    }
    case RECORD_COMPLETION:
        ((struct record_completion *)room)->command = RECORD_FETCH;
        return 80;
    case RECORD_SEQ_READY: {
        static const struct damaged_entry damaged[] = {{0, 5}, {4, 5}, {2, 99}};
        struct record_seq_ready *r = room;
        r->kept_tokens = 100;
        r->n_damaged = 3;
        r->replay_to = 9;
        memcpy(r + 1, damaged, sizeof damaged);
        return 48 + 3 * 8;
    }
    default:
        return 32; /* SEQ_END, READS_DONE, SEQ_STATS, TRIM */
    }
}

static int check(uint32_t type, const void *room, uint32_t bytes)
{
    struct hill_why why = {""};
    int rc = record_check(type, room, bytes, &geometry, N_SEQUENCES, &why);
    assert_true(rc == 0 || rc == HILL_E_PROTOCOL);
    assert_true(rc == 0 || why.text[0] != '\0');
    return rc;
}

static void good_records_pass(void **state)
{
    (void)state;
    void *room = malloc(ROOM);
    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t bytes = good_record(all_types[i], room);
        assert_int_equal(check(all_types[i], room, bytes), 0);
        assert_string_not_equal(record_name(all_types[i]), "unknown");
    }
    free(room);
}

static void any_other_size_is_refused(void **state)
{
    (void)state;
    void *room = malloc(ROOM);
    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t right = good_record(all_types[i], room);
        for (uint32_t bytes = 0; bytes < right + 200; bytes++)
            assert_int_equal(check(all_types[i], room, bytes) == 0, bytes == right);
    }
    free(room);
}

struct field {
    uint32_t type;
    size_t offset, width;
    uint64_t bad[6]; /* UINT64_MAX ends the list early */
};

#define END         UINT64_MAX
#define U32(x)      (uint64_t)(uint32_t)(x)
#define FIELD(s, m) offsetof(struct record_##s, m), sizeof(((struct record_##s *)0)->m)

static const struct field fields[] = {
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, prompt_tokens), {0, 21, UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, max_tokens), {0, 9, KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, alpha), {0, 0x7ff8000000000000, 0x4000000000000000, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, budget), {KV_MAX_TOKENS + 1, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, sinks), {UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, window), {UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, policy), {KV_POLICY_COUNT, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, importance), {KV_IMPORTANCE_COUNT, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, reads_hot), {2, UINT16_MAX, END}},
    {RECORD_APPEND, FIELD(append, n_tokens), {0, 2, 4, 3 + (1u << 25), UINT32_MAX, END}},
    {RECORD_APPEND, FIELD(append, first), {KV_MAX_TOKENS - 2, UINT32_MAX, END}},
    {RECORD_STEP_END, FIELD(step_end, n_tokens), {0, KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_QUERY, FIELD(query, kind), {3, UINT32_MAX, END}},
    {RECORD_QUERY, FIELD(query, n_heads), {0, 7, 9, 8 + (1u << 27), UINT32_MAX, END}},
    {RECORD_QUERY, FIELD(query, n_tokens), {0, KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_READ, FIELD(read, what), {2, UINT32_MAX, END}},
    {RECORD_MASS, FIELD(mass, n_tokens), {0, 2, 4, 3 + (1u << 30), UINT32_MAX, END}},
    {RECORD_MASS, FIELD(mass, first), {KV_MAX_TOKENS - 2, UINT32_MAX, END}},
    {RECORD_MASS, FIELD(mass, status), {1, U32(HILL_E_DAMAGED), 0x80000000, END}},
    {RECORD_SELECTION, FIELD(selection, n_selected), {0, 2, 4, 3 + (1u << 29), UINT32_MAX, END}},
    {RECORD_SELECTION, FIELD(selection, n_uploads), {0, 1, 3, 2 + (1u << 28), UINT32_MAX, END}},
    {RECORD_SELECTION, FIELD(selection, status), {1, U32(HILL_E_LAST - 1), 0x80000000, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, adopt_min), {13, UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, adopt_max), {0, 10, 21, UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, identity), {0, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, after), {0, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, after_tokens), {0, 10, UINT32_MAX, END}},
    {RECORD_SEQ_BEGIN, FIELD(seq_begin, past_tokens), {11, UINT32_MAX, END}},
    {RECORD_SEQ_END, FIELD(seq_end, keep), {2, UINT32_MAX, END}},
    {RECORD_READ, FIELD(read, ahead), {2, UINT32_MAX, END}},
    {RECORD_ADOPT, FIELD(adopt, n_slots), {0, 1, 3, 4097, UINT32_MAX, END}},
    {RECORD_SEQ_READY, FIELD(seq_ready, kept_tokens), {0, 99, KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_SEQ_READY, FIELD(seq_ready, n_damaged), {0, 2, 4, 65, 3 + (1u << 29), END}},
    {RECORD_SEQ_READY, 48 + 0, 4, {4, 5, UINT32_MAX, END}}, /* (4, 5) follows */
    {RECORD_SEQ_READY, 48 + 4, 4, {6, UINT32_MAX, END}},
    {RECORD_SEQ_READY, 48 + 20, 4, {4, 100, UINT32_MAX, END}},
    {RECORD_SEQ_READY, FIELD(seq_ready, status), {1, U32(-100), END}},
    {RECORD_SEQ_READY, FIELD(seq_ready, hot_entries), {SELECTED_HOT + 1, UINT32_MAX, END}},
    {RECORD_AGENT_QUERY, FIELD(agent_query, importance), {KV_IMPORTANCE_COUNT, UINT32_MAX, END}},
    {RECORD_AGENT_QUERY, FIELD(agent_query, block_tokens), {0, 65537, UINT32_MAX, END}},
    {RECORD_AGENT_QUERY, FIELD(agent_query, committed), {399, KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_AGENT_QUERY, FIELD(agent_query, expected), {501, UINT32_MAX, END}},
    {RECORD_AGENT_QUERY, FIELD(agent_query, n_host_words), {1, 3, 2 + (1u << 29), UINT32_MAX, END}},
    {RECORD_COMMIT, FIELD(commit, n_slots), {0, 8, 10, 9 + (1u << 30), UINT32_MAX, END}},
    {RECORD_RELEASE, FIELD(release, n_slots), {0, 6, 8, 7 + (1u << 30), UINT32_MAX, END}},
    {RECORD_FETCH, FIELD(fetch, n_entries), {0, 3, 5, 4 + (1u << 28), UINT32_MAX, END}},
    {RECORD_READ_KEYS, FIELD(read_keys, n_ranges), {0, 1, 3, 2 + (1u << 29), UINT32_MAX, END}},
    {RECORD_READ_KEYS, FIELD(read_keys, window), {4, UINT32_MAX, END}},
    {RECORD_READ_KEYS, sizeof(struct record_read_keys) + 12, 4, {0, 4097, UINT32_MAX, END}},
    {RECORD_DEMOTE, FIELD(demote, n_slots), {0, 4, 6, 4097, 5 + (1u << 25), UINT32_MAX}},
    {RECORD_DEMOTE, FIELD(demote, first_slot), {12, 31, UINT32_MAX - 4, UINT32_MAX, END}},
    {RECORD_DEMOTE, FIELD(demote, scattered), {1, 2, UINT32_MAX, END}}, /* 1: too short for it */
    {RECORD_SCORE_BLOCK, FIELD(score_block, n), {0, 5, 7, 4097, 6 + (1u << 30), UINT32_MAX}},
    {RECORD_SCORE_BLOCK, FIELD(score_block, first_slot), {4091, 4096, UINT32_MAX, END}},
    {RECORD_SCORE_BLOCK, FIELD(score_block, version), {0, 2, 65535, END}},
    {RECORD_SCORE_BLOCK, FIELD(score_block, planes), {0, 2, 65535, END}},
    {RECORD_COMPLETION, FIELD(completion, command), {0, 31, 40, UINT32_MAX, END}},
    {RECORD_COMPLETION, FIELD(completion, status), {1, U32(-17), END}},
    {RECORD_COMPLETION, FIELD(completion, count), {KV_MAX_TOKENS + 1, UINT32_MAX, END}},
    {RECORD_COMPLETION, FIELD(completion, busy_ns), {RECORD_BUSY_NS_MAX + 1, 1ull << 63, END}},
};

static void every_corrupted_field_is_refused(void **state)
{
    (void)state;
    void *room = malloc(ROOM);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const struct field *f = &fields[i];
        for (size_t b = 0; b < 6 && f->bad[b] != END; b++) {
            uint32_t bytes = good_record(f->type, room);
            memcpy((uint8_t *)room + f->offset, &f->bad[b], f->width);
            if (check(f->type, room, bytes) != HILL_E_PROTOCOL)
                fail_msg("%s: field at %zu took %llu", record_name(f->type), f->offset,
                         (unsigned long long)f->bad[b]);
        }
    }
    free(room);
}

static void foreign_sequences_and_layers_are_refused(void **state)
{
    (void)state;
    struct record_header *room = malloc(ROOM);
    for (size_t i = 0; i < N_TYPES; i++) {
        uint32_t bytes = good_record(all_types[i], room);
        room->sequence = N_SEQUENCES;
        assert_int_equal(check(all_types[i], room, bytes), HILL_E_PROTOCOL);
        room->sequence = 0;
        room->layer = geometry.n_layers;
        assert_int_equal(check(all_types[i], room, bytes), HILL_E_PROTOCOL);
        room->layer = 0;
        assert_int_equal(record_check(all_types[i], room, bytes, &geometry, 0, NULL),
                         HILL_E_PROTOCOL);
    }
    free(room);
}

/* A DEMOTE that names its slots: ascending, the first as it says, in the right size. */
static void named_slots_of_a_demote_are_checked(void **state)
{
    (void)state;
    static const struct {
        uint32_t slots[5];
        int status;
    } cases[] = {{{3, 4, 90, 91, 4096}, 0},
                 {{3, 4, 90, 4095, UINT32_MAX}, 0},
                 {{4, 5, 90, 91, 4096}, HILL_E_PROTOCOL},
                 {{3, 90, 4, 91, 4096}, HILL_E_PROTOCOL},
                 {{3, 4, 4, 91, 4096}, HILL_E_PROTOCOL},
                 {{3, 4, 90, UINT32_MAX, 5}, HILL_E_PROTOCOL},
                 {{3, 4, 90, UINT32_MAX, UINT32_MAX}, HILL_E_PROTOCOL}};
    uint8_t *room = malloc(ROOM);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t bytes = good_record(RECORD_DEMOTE, room);
        ((struct record_demote *)room)->first_slot = 3;
        ((struct record_demote *)room)->scattered = 1;
        memcpy(room + bytes, cases[i].slots, 20);
        assert_int_equal(check(RECORD_DEMOTE, room, bytes + 20), cases[i].status);
        assert_int_equal(check(RECORD_DEMOTE, room, bytes + 16), HILL_E_PROTOCOL);
        assert_int_equal(check(RECORD_DEMOTE, room, bytes + 24), HILL_E_PROTOCOL);
    }
    free(room);
}

static void values_in_arrays_are_checked(void **state)
{
    (void)state;
    uint8_t *room = malloc(ROOM);
    uint32_t bytes = good_record(RECORD_SELECTION, room);
    ((struct selected_item *)(room + 32))[1].position = 10; /* not ascending */
    assert_int_equal(check(RECORD_SELECTION, room, bytes), HILL_E_PROTOCOL);
    good_record(RECORD_SELECTION, room);
    ((struct selected_item *)(room + 32))[2].gpu_slot = 2 * SELECTED_HOT - 1; /* the last hot one */
    assert_int_equal(check(RECORD_SELECTION, room, bytes), 0);
    ((struct selected_item *)(room + 32))[2].gpu_slot = 2 * SELECTED_HOT;
    assert_int_equal(check(RECORD_SELECTION, room, bytes), HILL_E_PROTOCOL);
    good_record(RECORD_SELECTION, room);
    ((struct record_selection *)room)->n_selected =
        1; /* more uploads than items, in the right size */
    assert_int_equal(check(RECORD_SELECTION, room, 32 + 8 + 2 * 16), HILL_E_PROTOCOL);
    bytes = good_record(RECORD_AGENT_QUERY, room);
    room[64 + 4 * 8 + 32 + 3] = KV_QUERY_SHIFT_MAX + 1;
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), HILL_E_PROTOCOL);
    bytes = good_record(RECORD_AGENT_QUERY, room);
    room[64 + 4 * 8 + 31] = (uint8_t)INT8_MIN; /* the last mantissa */
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), HILL_E_PROTOCOL);
    room[64 + 4 * 8 + 31] = (uint8_t)(INT8_MIN + 1);
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), 0);
    bytes = good_record(RECORD_AGENT_QUERY, room); /* with a term for each query head */
    ((struct record_agent_query *)room)->importance = KV_IMPORTANCE_HEADS;
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), HILL_E_PROTOCOL);
    memset(room + bytes, 0, 4 * (8 + 8 + 1));
    bytes += 4 * (8 + 8 + 1);
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), 0);
    room[64 + 8 * 8 + 64 + 7] = KV_QUERY_SHIFT_MAX + 1;
    assert_int_equal(check(RECORD_AGENT_QUERY, room, bytes), HILL_E_PROTOCOL);
    bytes = good_record(RECORD_FETCH, room);
    ((struct fetch_item *)(room + 32))[3].position = KV_MAX_TOKENS;
    assert_int_equal(check(RECORD_FETCH, room, bytes), HILL_E_PROTOCOL);
    bytes = good_record(RECORD_DEMOTE, room);
    ((uint32_t *)(room + 48))[4] = KV_MAX_TOKENS;
    assert_int_equal(check(RECORD_DEMOTE, room, bytes), HILL_E_PROTOCOL);
    bytes = good_record(RECORD_SCORE_BLOCK, room);
    ((struct score_tuple *)(room + 48))[5].slot_offset = RECORD_STRIPE_SLOTS_MAX;
    assert_int_equal(check(RECORD_SCORE_BLOCK, room, bytes), HILL_E_PROTOCOL);
    free(room);
}

/* A FETCH of three sequences: each has an item, and is one that there is. */
static void rows_of_a_fetch_are_in_order(void **state)
{
    (void)state;
    static const struct {
        struct fetch_row rows[2];
        int status;
    } cases[] = {
        {{{1, 9, 1, 0}, {0, 3, 3, 0}}, 0},
        {{{1, 9, 0, 0}, {0, 3, 3, 0}}, HILL_E_PROTOCOL},
        {{{1, 9, 3, 0}, {0, 3, 3, 0}}, HILL_E_PROTOCOL},
        {{{1, 9, 1, 0}, {0, 3, 4, 0}}, HILL_E_PROTOCOL},
        {{{1, 9, 1, 0}, {N_SEQUENCES, 3, 3, 0}}, HILL_E_PROTOCOL},
    };
    uint8_t *room = calloc(1, ROOM);
    uint32_t bytes = good_record(RECORD_FETCH, room);
    struct record_fetch *fetch = (void *)room;
    fetch->n_rows = 2;
    assert_int_equal(check(RECORD_FETCH, room, bytes), HILL_E_PROTOCOL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(room + bytes, cases[i].rows, sizeof cases[i].rows);
        assert_int_equal(check(RECORD_FETCH, room, bytes + 32), cases[i].status);
    }
    memcpy(room + bytes, cases[0].rows, sizeof cases[0].rows);
    struct fetch_row row;
    assert_int_equal(record_fetch_row(fetch, 0, &row), 1);
    assert_true(row.sequence == fetch->header.sequence && row.first == 0);
    assert_int_equal(record_fetch_row(fetch, 1, &row), 2);
    assert_true(row.sequence == 1 && row.step == 9 && row.first == 1);
    assert_int_equal(record_fetch_row(fetch, 2, &row), 1);
    assert_int_equal(row.first, 3);
    fetch->n_rows = N_SEQUENCES;
    assert_int_equal(check(RECORD_FETCH, room, bytes + 16 * N_SEQUENCES), HILL_E_PROTOCOL);
    free(room);
}

static void unknown_types_are_refused(void **state)
{
    (void)state;
    void *room = calloc(1, ROOM);
    for (uint32_t type = 0; type < 300; type++) {
        size_t i = 0;
        while (i < N_TYPES && all_types[i] != type)
            i++;
        if (i < N_TYPES)
            continue;
        for (uint32_t bytes = 0; bytes < 100; bytes++)
            assert_int_equal(check(type, room, bytes), HILL_E_PROTOCOL);
        assert_string_equal(record_name(type), "unknown");
    }
    free(room);
}

/* Random bytes, and good records with random bytes flipped, in exact heap blocks: ASan sees any
 * read beyond. */
static void random_records_are_never_read_beyond_their_end(void **state)
{
    (void)state;
    unsigned seed = SEED;
    const char *given = getenv("HILL_TEST_SEED");
    if (given != NULL)
        seed = (unsigned)strtoul(given, NULL, 10);
    print_message("seed %u (HILL_TEST_SEED)\n", seed);
    srand(seed);
    uint8_t *room = malloc(ROOM);
    uint32_t passed = 0;
    for (int round = 0; round < 200000; round++) {
        uint32_t type = all_types[(uint32_t)rand() % N_TYPES], bytes = good_record(type, room);
        if (round % 4 == 0)
            bytes = (uint32_t)rand() % (bytes + 1);
        uint8_t *exact = malloc(bytes + 1);
        memcpy(exact, room, bytes);
        for (int flips = rand() % 4; flips > 0 && bytes > 0; flips--)
            exact[(uint32_t)rand() % (rand() % 2 && bytes > 64 ? 64 : bytes)] = (uint8_t)rand();
        uint8_t *tight = bytes > 0 ? realloc(exact, bytes) : exact;
        passed += check(type, tight, bytes) == 0;
        free(tight);
    }
    assert_true(passed > 1000); /* it is not all refused at the door */
    free(room);
}

/* ---- layout ------------------------------------------------------------------------------- */

static const struct layout_input input = {
    .geometry = {5, 8, 4, 8}, .ctx_tokens = 2000, .n_sequences = 1};

static const struct {
    enum layout_ring ring;
    enum layout_party producer, consumer;
} table[] = {
    {RING_APPEND, PARTY_GPU, PARTY_SCORER},       {RING_QUERY, PARTY_GPU, PARTY_SCORER},
    {RING_SELECTION, PARTY_SCORER, PARTY_GPU},    {RING_COMMAND, PARTY_SCORER, PARTY_AGENT},
    {RING_BACKGROUND, PARTY_SCORER, PARTY_AGENT}, {RING_SCORE, PARTY_AGENT, PARTY_SCORER},
    {RING_COMPLETION, PARTY_AGENT, PARTY_SCORER},
};

/* two mappings of one memory, as two processes have them */
static void map_twice(uint64_t bytes, void **one, void **two)
{
    int fd = memfd_create("rings", 0);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    *one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *two = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*one != MAP_FAILED && *two != MAP_FAILED);
    close(fd);
}

/* and every ring takes its largest record twice while nobody reads */
static void every_ring_opens_in_two_views_and_carries_its_largest_record(void **state)
{
    (void)state;
    struct demote_parts parts;
    record_demote_parts(&parts, &input.geometry, 15, layout_demote_slots_max(&input));
    const uint64_t largest[RING_COUNT] = {32 + (uint64_t)layout_append_tokens_max(&input) * 128,
                                          32 + 8 * 8 * 4,
                                          32 + 2000 * 24,
                                          32 + LAYOUT_FETCH_ITEMS_MAX * 16,
                                          parts.total + layout_demote_slots_max(&input) * 4,
                                          48 + 4096 * 4,
                                          72};
    uint64_t bytes = layout_rings_bytes(&input);
    void *one, *two;
    map_twice(bytes, &one, &two);
    assert_int_equal(layout_init(one, bytes, &input), 0);
    for (size_t i = 0; i < RING_COUNT; i++) {
        struct shm_ring_end producer, consumer;
        uint32_t type, size;
        void *room;
        const void *payload;
        assert_int_equal(
            layout_open(&producer, one, bytes, &input, table[i].ring, table[i].producer), 0);
        assert_int_equal(
            layout_open(&consumer, two, bytes, &input, table[i].ring, table[i].consumer), 0);
        for (uint32_t n = 0; n < 2; n++) {
            assert_int_equal(shm_ring_reserve(&producer, (uint32_t)largest[i], &room), 0);
            memset(room, (int)(i + 1), largest[i]);
            shm_ring_publish(&producer, 40 + n, (uint32_t)largest[i]);
        }
        for (uint32_t n = 0; n < 2; n++) {
            assert_int_equal(shm_ring_peek(&consumer, &type, &payload, &size), 0);
            assert_int_equal(type, 40 + n);
            assert_int_equal(size, largest[i]);
            assert_int_equal(((const uint8_t *)payload)[size - 1], i + 1);
            shm_ring_release(&consumer);
        }
        shm_ring_close(&producer);
        shm_ring_close(&consumer);
    }
    munmap(one, bytes);
    munmap(two, bytes);
}

static void doorbells_are_rung_across_views(void **state)
{
    (void)state;
    uint64_t bytes = layout_rings_bytes(&input);
    struct shm_ring_end producer;
    void *one, *two;
    map_twice(bytes, &one, &two);
    assert_int_equal(layout_init(one, bytes, &input), 0);
    uint32_t before = shm_doorbell_read(layout_doorbell(two, PARTY_SCORER));
    uint32_t agent = shm_doorbell_read(layout_doorbell(two, PARTY_AGENT));
    assert_int_equal(layout_open(&producer, one, bytes, &input, RING_QUERY, PARTY_GPU), 0);
    assert_int_equal(shm_ring_push(&producer, 1, "x", 1), 0);
    assert_int_not_equal(shm_doorbell_read(layout_doorbell(two, PARTY_SCORER)), before);
    assert_int_equal(shm_doorbell_read(layout_doorbell(two, PARTY_AGENT)), agent);
    shm_ring_close(&producer);
    munmap(one, bytes);
    munmap(two, bytes);
}

static void rings_open_only_for_their_parties_and_after_init(void **state)
{
    (void)state;
    uint64_t bytes = layout_rings_bytes(&input);
    struct layout_input other = input;
    struct shm_ring_end end;
    void *one, *two;
    map_twice(bytes, &one, &two);
    assert_int_equal(layout_open(&end, one, bytes, &input, RING_QUERY, PARTY_GPU),
                     HILL_E_WOULD_BLOCK);
    assert_int_equal(layout_init(one, bytes - 1, &input), HILL_E_INVALID);
    assert_int_equal(layout_init(one, bytes, &input), 0);
    for (size_t i = 0; i < RING_COUNT; i++) {
        for (enum layout_party party = 0; party < PARTY_COUNT; party++) {
            if (party != table[i].producer && party != table[i].consumer)
                assert_int_equal(layout_open(&end, one, bytes, &input, table[i].ring, party),
                                 HILL_E_INVALID);
        }
    }
    assert_int_equal(layout_open(&end, one, bytes, &input, RING_COUNT, PARTY_GPU), HILL_E_INVALID);
    assert_int_equal(layout_open(&end, one, bytes - 1, &input, RING_QUERY, PARTY_GPU),
                     HILL_E_INVALID);
    other.geometry.n_heads = 1024;
    other.geometry.head_dim = 16; /* a larger query ring than was laid out */
    assert_true(layout_open(&end, one, bytes, &other, RING_QUERY, PARTY_GPU) < 0);
    munmap(one, bytes);
    munmap(two, bytes);
}

static void fingerprints_tell_every_member_apart(void **state)
{
    (void)state;
    uint64_t prints[7];
    prints[0] = layout_fingerprint(&input);
    for (size_t i = 0; i < 6; i++) {
        struct layout_input changed = input;
        uint32_t *members[] = {&changed.geometry.n_layers,   &changed.geometry.n_heads,
                               &changed.geometry.n_kv_heads, &changed.geometry.head_dim,
                               &changed.ctx_tokens,          &changed.n_sequences};
        *members[i] += 1;
        prints[i + 1] = layout_fingerprint(&changed);
        for (size_t j = 0; j <= i; j++)
            assert_true(prints[i + 1] != prints[j]);
    }
}

static void extreme_shapes_have_rings(void **state)
{
    (void)state;
    struct layout_input large = {{1024, 1024, 128, 512}, KV_MAX_TOKENS, 64};
    assert_true(layout_append_tokens_max(&large) >= 1);
    assert_true(layout_demote_slots_max(&large) >= 1);
    assert_true(layout_rings_bytes(&large) > (uint64_t)KV_MAX_TOKENS * 24 * 2);
    struct layout_input tiny = {{1, 1, 1, 1}, 1, 1};
    assert_true(layout_append_tokens_max(&tiny) <= 1024);
    assert_true(layout_rings_bytes(&tiny) < 16u << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_records_pass),
        cmocka_unit_test(any_other_size_is_refused),
        cmocka_unit_test(every_corrupted_field_is_refused),
        cmocka_unit_test(foreign_sequences_and_layers_are_refused),
        cmocka_unit_test(named_slots_of_a_demote_are_checked),
        cmocka_unit_test(values_in_arrays_are_checked),
        cmocka_unit_test(rows_of_a_fetch_are_in_order),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(random_records_are_never_read_beyond_their_end),
        cmocka_unit_test(every_ring_opens_in_two_views_and_carries_its_largest_record),
        cmocka_unit_test(doorbells_are_rung_across_views),
        cmocka_unit_test(rings_open_only_for_their_parties_and_after_init),
        cmocka_unit_test(fingerprints_tell_every_member_apart),
        cmocka_unit_test(extreme_shapes_have_rings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
