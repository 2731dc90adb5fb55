/*
 * tests/replay/test_replay_script.c - a recording whose frames are whole but contradict one
 * another is refused: what they say is a file's word. Made with the writing side itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/replay_script.h"
#include "tests/proto/configure.h"

enum { EPOCH = 3, PIECE = 16 };

static const struct layout_input layout = {
    .geometry = {2, 4, 2, 16}, .ctx_tokens = 64, .n_sequences = 1};
static char path[] = "/tmp/hill-script-XXXXXX";

/* What the GPU worker says: a piece of a prompt, n bytes of total from `first` on. */
struct piece {
    uint32_t total, first, n;
};

static void push_piece(struct shm_ring_end *gpu, struct shm_ring_end *scorer,
                       const struct piece *piece)
{
    uint32_t bytes = (uint32_t)sizeof(struct record_prompt) + piece->n, type;
    const void *seen;
    void *payload;
    assert_int_equal(shm_ring_reserve(gpu, bytes, &payload), 0);
    memset(payload, 7, bytes);
    *(struct record_prompt *)payload = (struct record_prompt){.header = {EPOCH, 0, 0, 0},
                                                              .total_bytes = piece->total,
                                                              .first_byte = piece->first,
                                                              .n_bytes = piece->n};
    shm_ring_publish(gpu, RECORD_PROMPT, bytes);
    assert_int_equal(shm_ring_peek(scorer, &type, &seen, &bytes), 0);
    shm_ring_release(scorer);
}

static void push_begin(struct shm_ring_end *gpu, struct shm_ring_end *scorer)
{
    struct record_seq_begin begin = {.header = {EPOCH, 0, 0, 0},
                                     .request_id = 9,
                                     .prompt_tokens = 4,
                                     .max_tokens = 8,
                                     .alpha = 0.2};
    uint32_t type, bytes;
    const void *seen;
    assert_int_equal(shm_ring_push(gpu, RECORD_SEQ_BEGIN, &begin, sizeof begin), 0);
    assert_int_equal(shm_ring_peek(scorer, &type, &seen, &bytes), 0);
    shm_ring_release(scorer);
}

/* A recording of two pieces and a SEQ_BEGIN; how reading it ends. */
static int read_script(const struct piece pieces[2], struct hill_why *why)
{
    uint64_t bytes = layout_rings_bytes(&layout);
    void *rings = aligned_alloc(64, (bytes + 63) & ~UINT64_C(63));
    struct shm_ring_end ends[RING_COUNT] = {0}, gpu;
    struct recording_file file;
    struct recording *recording;
    struct script script;
    char name[RECORDING_NAME_BYTES];
    struct epoch_settings settings = make_settings(&layout, EPOCH);
    unlink(path);
    assert_non_null(rings);
    memset(rings, 0, bytes);
    assert_int_equal(layout_init(rings, bytes, &layout), 0);
    assert_int_equal(layout_open(&gpu, rings, bytes, &layout, RING_APPEND, PARTY_GPU), 0);
    assert_int_equal(
        layout_open(&ends[RING_APPEND], rings, bytes, &layout, RING_APPEND, PARTY_SCORER), 0);
    assert_int_equal(recording_create(&recording, path, &settings, name, why), 0);
    recording_tap(recording, ends, NULL, NULL);
    for (int i = 0; i < 2; i++)
        push_piece(&gpu, &ends[RING_APPEND], &pieces[i]);
    push_begin(&gpu, &ends[RING_APPEND]);
    assert_int_equal(recording_close(recording), 0);
    shm_ring_close(&gpu);
    shm_ring_close(&ends[RING_APPEND]);
    free(rings);
    assert_int_equal(recording_open(&file, path, why), 0);
    int rc = script_read(&script, &file, why);
    script_free(&script);
    recording_finish(&file);
    return rc;
}

static void a_prompt_in_two_pieces_is_put_together(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(read_script((struct piece[2]){{32, 0, PIECE}, {32, PIECE, PIECE}}, &why), 0);
}

static void a_prompt_that_has_grown_between_its_pieces_is_refused(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(read_script((struct piece[2]){{PIECE, 0, PIECE}, {4096, PIECE, 4000}}, &why),
                     HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "event 1"));
}

static void a_piece_that_does_not_follow_is_refused(void **state)
{
    (void)state;
    struct hill_why why = {""};
    assert_int_equal(read_script((struct piece[2]){{64, 0, PIECE}, {64, 40, PIECE}}, &why),
                     HILL_E_DAMAGED);
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_in_two_pieces_is_put_together),
        cmocka_unit_test(a_prompt_that_has_grown_between_its_pieces_is_refused),
        cmocka_unit_test(a_piece_that_does_not_follow_is_refused),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
