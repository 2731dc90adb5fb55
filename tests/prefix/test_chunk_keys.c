/*
 * tests/prefix/test_chunk_keys.c - keys and checksums beside a store's chunks: where they lie, what
 * a flipped bit does, whose they are, that the cap holds with them; pieces that several threads
 * read. HILL_TEST_SEED draws other entries and places.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "prefix/drive_store.h"
#include "prefix/probe_keys.h"
#include "prefix/span_reader.h"
#include "tests/draws.h"

enum { LAYERS = 3, KV_HEADS = 3, HEAD_DIM = 16, PROBES = 2, SLOTS = 5 };
enum { ENTRY = 4 * KV_HEADS * HEAD_DIM, CHUNK = LAYERS * 64 * ENTRY, KEY = 2 * HEAD_DIM };

static const struct chunk_terms terms = {.model_bytes = 1000,
                                         .model_identity = 77,
                                         .n_layers = LAYERS,
                                         .entry_bytes = ENTRY,
                                         .n_vocab = 50};
static const struct chunk_shape shape = {KV_HEADS, HEAD_DIM, PROBES, 0};
static const uint16_t heads[LAYERS * PROBES] = {0, 2, 1, 2, 0, 1};
static char folder[] = "/tmp/hill-test-keys-XXXXXX";
static uint8_t entries[SLOTS][CHUNK];

static const char *path(const char *name)
{
    static char text[64];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static uint64_t size_of(const char *name)
{
    struct stat info;
    return stat(path(name), &info) ? 0 : (uint64_t)info.st_size;
}

static uint64_t all_bytes(void)
{
    return size_of("chunks.data") + size_of("chunks.index") + size_of("chunks.keys");
}

static void flip(const char *name, uint64_t at)
{
    uint8_t byte;
    int fd = open(path(name), O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

static void open_keys(struct chunk_keys *k, const struct chunk_shape *s)
{
    struct hill_why why;
    close(open(path("chunks.data"), O_RDWR | O_CREAT, 0600));
    assert_int_equal(chunk_keys_open(k, folder, &terms, s, &why), 0);
}

static void read_all(const struct span *spans, uint32_t n)
{
    struct span_reader *reader;
    uint64_t job;
    int rc = 0;
    assert_int_equal(span_reader_open(&reader, NULL, NULL), 0);
    assert_int_equal(span_reader_give(reader, spans, n, &job), 0);
    while (rc == 0)
        rc = span_reader_done(reader, job);
    assert_int_equal(rc, 1);
    span_reader_close(reader, NULL, NULL);
}

static uint64_t stamp_of(uint32_t slot)
{
    return 1000 + slot * 7;
}

static void write_all(struct chunk_keys *k)
{
    struct hill_why why;
    int fd = open(path("chunks.data"), O_RDWR);
    for (uint32_t s = 0; s < SLOTS; s++) {
        for (uint32_t i = 0; i < CHUNK; i++)
            entries[s][i] = (uint8_t)draw(256);
        assert_int_equal(pwrite(fd, entries[s], CHUNK, (off_t)(s * chunk_slot_bytes(&terms))),
                         CHUNK);
        assert_int_equal(chunk_keys_write(k, s, stamp_of(s), entries[s], &why), 0);
    }
    close(fd);
}

/* Sums of a slot; the caller frees them. */
static uint8_t *read_sums(const struct chunk_keys *k, uint32_t slot)
{
    uint8_t *sums = malloc(k->sums_bytes);
    struct span span = {k->fd, chunk_keys_sums_at(k, slot), k->sums_bytes, sums};
    read_all(&span, 1);
    return sums;
}

/* What is kept of a layer's entries, before it is packed: [64][PROBES * HEAD_DIM]. */
static void pick(const uint8_t *of_layer, const uint16_t *probes, uint16_t *to)
{
    for (uint32_t t = 0; t < 64; t++)
        for (uint32_t p = 0; p < PROBES; p++)
            memcpy(to + (t * PROBES + p) * HEAD_DIM, of_layer + t * ENTRY + probes[p] * KEY, KEY);
}

static void check_layer(const struct chunk_keys *k, const uint8_t *sums, uint32_t slot,
                        uint32_t layer)
{
    uint64_t bytes = chunk_keys_layer_bytes(k), run = chunk_keys_run_bytes(k);
    uint8_t keys[64 * PROBES * KEY], data[64 * ENTRY], wanted[64 * PROBES * KEY];
    uint16_t picked[64 * PROBES * HEAD_DIM], unpacked[64 * PROBES * HEAD_DIM],
        wanted_unpacked[64 * PROBES * HEAD_DIM];
    struct span spans[1 + 64] = {{k->fd, chunk_keys_layer_at(k, slot, layer), bytes, keys}};
    for (uint32_t r = 0; r < k->n_runs; r++)
        spans[1 + r] =
            (struct span){k->data_fd, chunk_keys_run_at(k, slot, layer, r), run, data + r * run};
    read_all(spans, 1 + k->n_runs);
    assert_true(chunk_keys_fit(k, sums, layer, keys));
    for (uint32_t t = 0; t < 64; t++) {
        const uint8_t *entry = entries[slot] + (layer * 64 + t) * ENTRY;
        assert_memory_equal(data + t * ENTRY, entry, ENTRY);
    }
    pick(entries[slot] + layer * 64 * ENTRY, heads + layer * PROBES, picked);
    assert_int_equal(chunk_keys_unpacked_bytes(k), sizeof picked);
    assert_int_equal(bytes, probe_keys_bytes(64, PROBES * HEAD_DIM));
    probe_keys_pack(picked, 64, PROBES * HEAD_DIM, wanted);
    assert_memory_equal(keys, wanted, bytes);
    chunk_keys_unpack(k, keys, unpacked);
    probe_keys_unpack(wanted, 64, PROBES * HEAD_DIM, wanted_unpacked);
    assert_memory_equal(unpacked, wanted_unpacked, sizeof unpacked);
    for (uint32_t r = 0; r < k->n_runs; r++)
        assert_true(chunk_keys_run_fits(k, sums, layer, r, data + r * run));
    keys[draw((uint32_t)bytes)] ^= 4;
    assert_false(chunk_keys_fit(k, sums, layer, keys));
    data[draw(64 * ENTRY)] ^= 4;
    uint32_t wrong = 0;
    for (uint32_t r = 0; r < k->n_runs; r++)
        wrong += !chunk_keys_run_fits(k, sums, layer, r, data + r * run);
    assert_int_equal(wrong, 1);
}

static void what_is_written_is_found(void **unused)
{
    (void)unused;
    struct chunk_keys k;
    struct hill_why why;
    open_keys(&k, &shape);
    assert_null(k.heads);
    assert_int_equal(chunk_keys_choose(&k, heads, &why), 0);
    assert_int_equal(k.run_tokens * ENTRY % 4096, 0);
    write_all(&k);
    chunk_keys_close(&k);
    open_keys(&k, &shape);
    assert_memory_equal(k.heads, heads, sizeof heads);
    for (uint32_t s = 0; s < SLOTS; s++) {
        uint8_t *sums = read_sums(&k, s);
        assert_true(chunk_keys_has(&k, s, stamp_of(s)));
        assert_true(chunk_keys_are_sums(&k, sums, stamp_of(s)));
        assert_false(chunk_keys_are_sums(&k, sums, stamp_of(s) + 1)); /* another chunk's */
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            check_layer(&k, sums, s, layer);
        free(sums);
    }
    assert_false(chunk_keys_has(&k, SLOTS, stamp_of(SLOTS)));
    flip("chunks.keys", chunk_keys_sums_at(&k, 3) + 16 + draw(8 * LAYERS));
    uint8_t *sums = read_sums(&k, 3);
    assert_false(chunk_keys_are_sums(&k, sums, stamp_of(3)));
    free(sums);
    chunk_keys_forget(&k, 2, stamp_of(2) + 1); /* that chunk has gone from the slot */
    assert_true(chunk_keys_has(&k, 2, stamp_of(2)));
    chunk_keys_forget(&k, 2, stamp_of(2));
    assert_false(chunk_keys_has(&k, 2, stamp_of(2)));
    chunk_keys_close(&k);
}

/* More layers than a piece has, and no multiple of these. */
static void layers_lie_in_pieces(void **unused)
{
    enum { MANY = 31, SLOT = 1, KEYS = 64 * PROBES * HEAD_DIM };
    struct chunk_terms many = terms;
    uint16_t probes[MANY * PROBES], picked[KEYS];
    uint8_t *chunk = malloc(MANY * 64 * ENTRY), wanted[64 * PROBES * KEY], keys[sizeof wanted];
    struct chunk_keys k;
    struct hill_why why;
    (void)unused;
    many.n_layers = MANY;
    for (uint32_t i = 0; i < MANY * PROBES; i++)
        probes[i] = (uint16_t)draw(KV_HEADS);
    for (uint32_t i = 0; i < MANY * 64 * ENTRY; i++)
        chunk[i] = (uint8_t)draw(256);
    assert_int_equal(chunk_keys_open(&k, folder, &many, &shape, &why), 0);
    assert_int_equal(chunk_keys_choose(&k, probes, &why), 0);
    assert_true(k.piece_layers < MANY && MANY % k.piece_layers);
    assert_int_equal(chunk_keys_write(&k, SLOT, stamp_of(SLOT), chunk, &why), 0);
    uint64_t bytes = chunk_keys_layer_bytes(&k), begin = 0;
    uint8_t *sums = read_sums(&k, SLOT), *piece = malloc(k.piece_bytes);
    for (uint32_t l = 0; l < MANY; l++) {
        uint64_t at = chunk_keys_layer_at(&k, SLOT, l);
        if (l % k.piece_layers == 0) { /* a piece is one read */
            assert_true(at % 4096 == 0 && (!l || at == begin + k.piece_bytes));
            begin = at;
            read_all(&(struct span){k.fd, at, k.piece_bytes, piece}, 1);
        }
        assert_true(at + bytes <= begin + k.piece_bytes);
        memcpy(keys, piece + (at - begin), bytes);
        pick(chunk + l * 64 * ENTRY, probes + l * PROBES, picked);
        probe_keys_pack(picked, 64, PROBES * HEAD_DIM, wanted);
        assert_memory_equal(keys, wanted, bytes);
        assert_true(chunk_keys_fit(&k, sums, l, keys));
    }
    free(sums);
    free(piece);
    free(chunk);
    chunk_keys_close(&k);
}

/* A sound header of the version before. */
static void make_older(void)
{
    struct chunk_keys_header h;
    int fd = open(path("chunks.keys"), O_RDWR);
    assert_int_equal(pread(fd, &h, sizeof h, 0), sizeof h);
    h.version--;
    h.checksum =
        XXH64(heads, sizeof heads, XXH64(&h, offsetof(struct chunk_keys_header, checksum), 0));
    assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
    close(fd);
}

/* Another choice would make other keys: a file that is not of this shape begins anew. */
static void another_shape_has_no_choice(void **unused)
{
    (void)unused;
    struct chunk_shape other = shape;
    struct chunk_keys k;
    struct hill_why why;
    open_keys(&k, &shape);
    assert_int_equal(chunk_keys_choose(&k, heads, &why), 0);
    chunk_keys_close(&k);
    other.n_probes = 1;
    open_keys(&k, &other);
    assert_null(k.heads);
    chunk_keys_close(&k);
    make_older();
    open_keys(&k, &shape);
    assert_null(k.heads);
    assert_int_equal(chunk_keys_choose(&k, heads, &why), 0);
    chunk_keys_close(&k);
    open_keys(&k, &shape);
    assert_non_null(k.heads);
    chunk_keys_close(&k);
    flip("chunks.keys", draw(sizeof(struct chunk_keys_header) + sizeof heads));
    open_keys(&k, &shape);
    assert_null(k.heads);
    chunk_keys_close(&k);
    other.head_dim++;
    assert_int_equal(chunk_keys_open(&k, folder, &terms, &other, &why), HILL_E_INVALID);
    chunk_keys_close(&k);
    chunk_keys_remove(folder);
    assert_int_equal(size_of("chunks.keys"), 0);
}

static void what_cannot_be_read_says_so(void **unused)
{
    (void)unused;
    struct span_reader *reader;
    uint8_t to[10];
    uint64_t first, second;
    int fd = open(path("short"), O_RDWR | O_CREAT, 0600), rc = 0;
    assert_int_equal(pwrite(fd, "12345678", 8, 0), 8);
    struct span good = {fd, 0, 8, to}, cut = {fd, 0, 9, to};
    assert_int_equal(span_reader_open(&reader, NULL, NULL), 0);
    assert_int_equal(span_reader_give(reader, NULL, 0, &first), 0);
    assert_int_equal(span_reader_done(reader, first), 1);
    assert_int_equal(span_reader_give(reader, &good, 1, &first), 0);
    while ((rc = span_reader_done(reader, first)) == 0)
        continue;
    assert_int_equal(rc, 1);
    assert_int_equal(span_reader_give(reader, &cut, 1, &second), 0);
    while ((rc = span_reader_done(reader, second)) == 0)
        continue;
    assert_int_equal(rc, HILL_E_DAMAGED);
    span_reader_close(reader, NULL, NULL);
    close(fd);
    unlink(path("short"));
}

static struct drive_chunk put(struct drive_store *s, struct drive_chunk parent, uint32_t first,
                              uint32_t n, const void *from)
{
    struct chunk c = {.first = first, .n = n, .n_plain = n};
    for (uint32_t i = 0; i < n; i++)
        c.tokens[i] = draw(50);
    return drive_store_put(s, parent, &c, from);
}

/* Full chunks have keys: those that are put, and those from before when they are read. All files
 * together stay below the cap. */
static void a_store_writes_keys(void **unused)
{
    (void)unused;
    const struct drive_chunk none = {0};
    uint64_t cap = 900000, left = chunk_keys_leave(&terms, &shape, cap);
    struct chunk_keys *k = calloc(1, sizeof *k);
    struct drive_store s;
    struct hill_why why;
    assert_int_equal(drive_store_open(&s, folder, &terms, left, &why), 0);
    struct drive_chunk before = put(&s, none, 0, 64, entries[0]);
    drive_store_flush(&s);
    open_keys(k, &shape);
    assert_int_equal(chunk_keys_choose(k, heads, &why), 0);
    drive_store_keep_keys(&s, k);
    assert_false(chunk_keys_has(k, before.slot, before.stamp));
    drive_store_add_keys(&s, before, entries[0]);
    struct drive_chunk parent = put(&s, none, 0, 64, entries[1]);
    struct drive_chunk last = put(&s, parent, 64, 10, entries[2]);
    drive_store_flush(&s);
    assert_true(chunk_keys_has(k, before.slot, before.stamp));
    assert_true(chunk_keys_has(k, parent.slot, parent.stamp));
    assert_false(chunk_keys_has(k, last.slot, last.stamp));
    for (int i = 0; i < 200; i++) {
        put(&s, none, 0, 64, entries[i % SLOTS]);
        drive_store_flush(&s);
    }
    assert_true(s.n_evicted > 0 && s.file.n_slots > 4);
    assert_true(all_bytes() <= cap);
    drive_store_close(&s);
    cap /= 2; /* it has fallen */
    assert_true(all_bytes() > cap);
    k = calloc(1, sizeof *k);
    assert_int_equal(
        drive_store_open(&s, folder, &terms, chunk_keys_leave(&terms, &shape, cap), &why), 0);
    open_keys(k, &shape);
    drive_store_keep_keys(&s, k);
    assert_memory_equal(k->heads, heads, sizeof heads);
    assert_true(s.file.n_slots > 0 && all_bytes() <= cap);
    drive_store_close(&s);
}

int main(void)
{
    draws_seed(16);
    if (!mkdtemp(folder))
        return 1;
    hill_log_init("test", HILL_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_found),
        cmocka_unit_test(layers_lie_in_pieces),
        cmocka_unit_test(another_shape_has_no_choice),
        cmocka_unit_test(what_cannot_be_read_says_so),
        cmocka_unit_test(a_store_writes_keys),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const files[] = {"chunks.data", "chunks.index", "chunks.keys"};
    for (size_t i = 0; i < 3; i++)
        unlink(path(files[i]));
    rmdir(folder);
    return failed;
}
