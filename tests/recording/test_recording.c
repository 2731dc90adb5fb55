/*
 * tests/recording/test_recording.c - recordings of the rings: what is written is read back in
 * order; every flipped bit and every cut is refused with a field; random bytes are survived.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/plane.h"
#include <xxhash.h>

#include "recording/recording.h"
#include "proto/records.h"
#include "tests/proto/configure.h"

enum { SEED = 20261121 };

static const struct layout_input layout = {
    .geometry = {2, 4, 2, 16}, .ctx_tokens = 64, .n_sequences = 2};

static char folder[] = "/tmp/hill-recording-XXXXXX";
static char path[64], copy[64];

/* The scorer's ends, and the others', in private memory. */
struct rig {
    void *rings, *staging;
    uint8_t *windows; /* [KV_KEY_WINDOWS][window_bytes] */
    uint32_t window_bytes;
    struct shm_ring_end ends[RING_COUNT], others[RING_COUNT];
    struct shm_arena arena;
};

static void rig_open(struct rig *rig)
{
    uint64_t bytes = layout_rings_bytes(&layout), staging = shm_arena_bytes(64, 128);
    memset(rig, 0, sizeof *rig);
    rig->rings = aligned_alloc(64, (bytes + 63) & ~UINT64_C(63));
    rig->staging = aligned_alloc(4096, (staging + 4095) & ~UINT64_C(4095));
    assert_non_null(rig->rings);
    assert_non_null(rig->staging);
    memset(rig->rings, 0, bytes);
    memset(rig->staging, 0, staging);
    assert_int_equal(layout_init(rig->rings, bytes, &layout), 0);
    for (int ring = 0; ring < RING_COUNT; ring++) {
        assert_int_equal(
            layout_open(&rig->ends[ring], rig->rings, bytes, &layout, ring, PARTY_SCORER), 0);
        assert_int_equal(layout_open(&rig->others[ring], rig->rings, bytes, &layout, ring,
                                     ring < RING_COMMAND ? PARTY_GPU : PARTY_AGENT),
                         0);
    }
    assert_int_equal(shm_arena_init(rig->staging, 64, 128), 0);
    assert_int_equal(shm_arena_own(&rig->arena, rig->staging, staging), 0);
    rig->window_bytes = kv_key_window_bytes(&layout.geometry, KV_POLICY_H2O, layout.ctx_tokens);
    rig->windows = calloc(KV_KEY_WINDOWS, rig->window_bytes);
    assert_non_null(rig->windows);
}

static void rig_close(struct rig *rig)
{
    for (int ring = 0; ring < RING_COUNT; ring++) {
        shm_ring_close(&rig->ends[ring]);
        shm_ring_close(&rig->others[ring]);
    }
    shm_arena_finish(&rig->arena);
    free(rig->rings);
    free(rig->staging);
    free(rig->windows);
}

static int peek(struct rig *rig, enum layout_ring ring)
{
    uint32_t type, bytes;
    const void *payload;
    return shm_ring_peek(&rig->ends[ring], &type, &payload, &bytes);
}

/* Keys come into window 2, 40 bytes of it. */
static void read_keys(struct rig *rig)
{
    struct {
        struct record_read_keys record;
        struct key_range range;
    } read = {.record = {.header = {3, 0, 1, 1}, .tag = 768, .window = 2, .n_ranges = 1},
              .range = {4, 1}};
    struct record_completion done = {.header = {3, 0, 1, 1},
                                     .tag = 768,
                                     .command = RECORD_READ_KEYS,
                                     .count = 1,
                                     .link_key_bytes = 40};
    assert_int_equal(shm_ring_push(&rig->ends[RING_COMMAND], RECORD_READ_KEYS, &read, sizeof read),
                     0);
    memset(rig->windows + (size_t)2 * rig->window_bytes, 0xcd, 40);
    assert_int_equal(
        shm_ring_push(&rig->others[RING_COMPLETION], RECORD_COMPLETION, &done, sizeof done), 0);
    assert_int_equal(peek(rig, RING_QUERY), HILL_E_WOULD_BLOCK); /* counted for the completion */
    assert_int_equal(peek(rig, RING_COMPLETION), 0);
    shm_ring_release(&rig->ends[RING_COMPLETION]);
}

/* A step end arrives (two looks and a turn without any before it, one look too many at it; those at
 * the agent's do not count), a fetch of two sequences goes out, the second one's slot 5 comes up;
 * keys are read; credits are asked for twice; the agent goes. */
static void make_traffic(struct rig *rig)
{
    struct record_step_end step = {.header = {3, 0, 1, 0}, .n_tokens = 9};
    struct {
        struct record_fetch record;
        struct fetch_item items[2];
        struct fetch_row row;
    } fetch = {.record = {.header = {3, 1, 8, 1}, .tag = 256, .n_entries = 2, .n_rows = 1},
               .items = {{4, 4, 6, 0}, {7, 7, 5, 0}},
               .row = {.sequence = 0, .step = 1, .first = 1}};
    struct {
        struct record_release record;
        uint32_t slots[1];
    } release = {.record = {.header = {3, 0, 0, 1}, .tag = 512, .n_slots = 1}, .slots = {7}};
    assert_int_equal(peek(rig, RING_APPEND), HILL_E_WOULD_BLOCK);
    assert_int_equal(peek(rig, RING_QUERY), HILL_E_WOULD_BLOCK);
    assert_int_equal(peek(rig, RING_SCORE), HILL_E_WOULD_BLOCK);
    shm_ring_decide(&rig->ends[RING_APPEND]);
    assert_int_equal(shm_ring_push(&rig->others[RING_APPEND], RECORD_STEP_END, &step, sizeof step),
                     0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(peek(rig, RING_APPEND), 0);
    shm_ring_release(&rig->ends[RING_APPEND]);
    assert_int_equal(shm_ring_push(&rig->ends[RING_COMMAND], RECORD_FETCH, &fetch, sizeof fetch),
                     0);
    memset(shm_arena_slot(&rig->arena, 5), 0xab, 128);
    assert_int_equal(shm_ring_push(&rig->ends[RING_COMMAND], RECORD_RELEASE, &release,
                                   (uint32_t)(sizeof release.record + sizeof(uint32_t))),
                     0);
    read_keys(rig);
    uint32_t credits = shm_ring_credits(&rig->ends[RING_SELECTION]);
    assert_int_equal(shm_ring_credits(&rig->ends[RING_SELECTION]), credits);
    shm_ring_close(&rig->others[RING_BACKGROUND]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(shm_ring_push(&rig->ends[RING_BACKGROUND], RECORD_DEMOTE, NULL, 0),
                         HILL_E_PEER_GONE);
}

static void record_traffic(void)
{
    struct rig rig;
    struct epoch_settings settings = make_settings(&layout, 3);
    struct recording *recording;
    struct hill_why why;
    char name[RECORDING_NAME_BYTES];
    unlink(path);
    settings.plan.selection.policy = KV_POLICY_H2O;
    rig_open(&rig);
    assert_int_equal(recording_create(&recording, path, &settings, name, &why), 0);
    assert_string_equal(name, path);
    recording_tap(recording, rig.ends, &rig.arena, rig.windows);
    make_traffic(&rig);
    assert_int_equal(recording_close(recording), 0);
    assert_null(rig.ends[RING_APPEND].tap);
    rig_close(&rig);
}

static void what_happened_is_read_back_in_order(void **state)
{
    (void)state;
    static const struct {
        enum recording_kind kind;
        enum layout_ring ring;
        uint32_t type, looks;
    } expected[] = {
        {RECORDING_IN, RING_APPEND, RECORD_STEP_END, 3},
        {RECORDING_ROOM, RING_COMMAND, 0, 1},
        {RECORDING_OUT, RING_COMMAND, RECORD_FETCH, 0},
        {RECORDING_ROOM, RING_COMMAND, 0, 0},
        {RECORDING_STAGING, RING_COMMAND, 5, 0},
        {RECORDING_OUT, RING_COMMAND, RECORD_RELEASE, 0},
        {RECORDING_ROOM, RING_COMMAND, 0, 0},
        {RECORDING_OUT, RING_COMMAND, RECORD_READ_KEYS, 0},
        {RECORDING_WINDOW, RING_COMPLETION, 2, 0},
        {RECORDING_IN, RING_COMPLETION, RECORD_COMPLETION, 1},
        {RECORDING_CREDITS, RING_SELECTION, 0, 0},
        {RECORDING_GONE, RING_BACKGROUND, 0, 1},
    };
    struct recording_file file;
    struct recording_event event;
    struct hill_why why;
    record_traffic();
    assert_int_equal(recording_open(&file, path, &why), 0);
    assert_int_equal(file.settings.epoch, 3);
    assert_false(file.cut);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
            assert_true(recording_next(&file, &event));
            assert_int_equal(event.kind, expected[i].kind);
            assert_int_equal(event.ring, expected[i].ring);
            assert_int_equal(event.type, expected[i].type);
            assert_int_equal(event.looks, expected[i].looks);
            assert_int_equal(event.number, i);
            if (event.kind == RECORDING_STAGING)
                assert_true(event.bytes == 128 && event.payload[0] == 0xab &&
                            event.payload[127] == 0xab);
            if (event.kind == RECORDING_WINDOW)
                assert_true(event.bytes == 40 && event.payload[0] == 0xcd &&
                            event.payload[39] == 0xcd);
        }
        assert_false(recording_next(&file, &event));
        recording_rewind(&file);
    }
    recording_finish(&file);
}

static void nothing_is_overwritten(void **state)
{
    (void)state;
    struct epoch_settings settings = make_settings(&layout, 3);
    struct recording *recording;
    struct hill_why why;
    char name[RECORDING_NAME_BYTES], wanted[80];
    record_traffic();
    settings.plan.selection.policy = KV_POLICY_H2O;
    assert_int_equal(recording_create(&recording, path, &settings, name, &why), 0);
    snprintf(wanted, sizeof wanted, "%s.2", path);
    assert_string_equal(name, wanted);
    assert_int_equal(recording_close(recording), 0);
    unlink(wanted);
    assert_true(recording_create(&recording, "/tmp/hill-not-there/x", &settings, name, &why) < 0);
}

static uint8_t *read_whole(size_t *bytes)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    uint8_t *data = malloc(1 << 16);
    assert_non_null(data);
    *bytes = fread(data, 1, 1 << 16, in);
    assert_true(*bytes > 0 && *bytes < 1 << 16);
    fclose(in);
    return data;
}

/* ---- damage ------------------------------------------------------------------------------- */

static int open_bytes(const uint8_t *data, size_t bytes, struct hill_why *why)
{
    struct recording_file file;
    FILE *out = fopen(copy, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    fclose(out);
    why->text[0] = '\0';
    int rc = recording_open(&file, copy, why);
    if (rc == 0)
        recording_finish(&file);
    return rc;
}

static void another_version_is_refused(void **state)
{
    static const uint32_t versions[][2] = {{RECORDING_VERSION - 1, PROTO_RECORDS_VERSION},
                                           {RECORDING_VERSION + 1, PROTO_RECORDS_VERSION},
                                           {RECORDING_VERSION, PROTO_RECORDS_VERSION - 1}};
    struct recording_header h;
    struct hill_why why;
    size_t bytes;
    (void)state;
    record_traffic();
    uint8_t *data = read_whole(&bytes);
    memcpy(&h, data, sizeof h);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        h.version = versions[i][0];
        h.records_version = versions[i][1];
        h.header_check = XXH64(&h, offsetof(struct recording_header, header_check), 0);
        memcpy(data, &h, sizeof h);
        assert_int_equal(open_bytes(data, bytes, &why), HILL_E_UNSUPPORTED);
        assert_non_null(strstr(why.text, "version"));
    }
    free(data);
}

static void every_flipped_byte_is_refused_by_field(void **state)
{
    (void)state;
    size_t bytes;
    struct hill_why why;
    record_traffic();
    uint8_t *data = read_whole(&bytes);
    assert_int_equal(open_bytes(data, bytes, &why), 0);
    for (size_t i = 0; i < bytes; i++) {
        data[i] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(open_bytes(data, bytes, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, "field"));
        data[i] ^= (uint8_t)(1u << i % 8);
    }
    free(data);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    size_t bytes;
    struct hill_why why;
    record_traffic();
    uint8_t *data = read_whole(&bytes);
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(open_bytes(data, i, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, "field"));
    }
    free(data);
}

/* Random bytes, and random bytes over a good file, at random places. */
static void random_damage_is_survived(void **state)
{
    (void)state;
    size_t bytes;
    struct hill_why why;
    record_traffic();
    uint8_t *data = read_whole(&bytes), *bad = malloc(bytes);
    assert_non_null(bad);
    print_message("seed %d\n", SEED);
    srandom(SEED);
    for (int round = 0; round < 500; round++) {
        memcpy(bad, data, bytes);
        size_t n = 1 + (size_t)random() % 40, at = (size_t)random() % bytes;
        for (size_t i = at; i < at + n && i < bytes; i++)
            bad[i] = (uint8_t)random();
        if (memcmp(bad, data, bytes) != 0)
            assert_int_not_equal(open_bytes(bad, bytes, &why), 0);
        for (size_t i = 0; i < bytes && round % 5 == 0; i++)
            bad[i] = (uint8_t)random();
        if (round % 5 == 0)
            assert_int_not_equal(open_bytes(bad, bytes, &why), 0);
    }
    free(bad);
    free(data);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/rings", folder);
    snprintf(copy, sizeof copy, "%s/copy", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    unlink(copy);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_happened_is_read_back_in_order),
        cmocka_unit_test(nothing_is_overwritten),
        cmocka_unit_test(another_version_is_refused),
        cmocka_unit_test(every_flipped_byte_is_refused_by_field),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(random_damage_is_survived),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
