/*
 * tests/fuzz/fuzz_chunk_keys.c - anything as the keys beside a prefix store's chunks.
 *
 * What: a chunks.keys with three chunks' keys and checksums, as the store writes it; an input
 * changes words of it and cuts it, byte 0 says whether the checksums of its header (bit 0) and of
 * its chunks (bit 1) are made right afterwards. What opens is read as a request does: whose they
 * are, each layer's keys, each run of entries; then it is written to and opened again. Failure:
 * sanitizer findings; abort() where a head that the model does not have is handed out, where what
 * has changed fits its checksum, or where what was written is not there. Who calls it: libFuzzer
 * (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "prefix/chunk_file.h"
#include "prefix/chunk_keys.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 2, KV_HEADS = 2, HEAD_DIM = 4, ENTRY = 4 * KV_HEADS * HEAD_DIM, SLOTS = 3 };
enum { CHUNK = LAYERS * CHUNK_TOKENS * ENTRY, ROOM = 64 << 10 };
enum { SEAL_HEADER = 1, SEAL_SUMS = 2 };

static const struct chunk_terms terms = {
    .model_bytes = 1000, .model_identity = 77, .n_layers = LAYERS, .entry_bytes = ENTRY};
static const struct chunk_shape shape = {KV_HEADS, HEAD_DIM, 1, 0};
static char folder[] = "/dev/shm/hill-fuzz-keys-XXXXXX";
static uint8_t entries[SLOTS][CHUNK], good[ROOM], file[ROOM];
static size_t good_bytes;

static const char *path(const char *name)
{
    static char text[64];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static void remove_all(void)
{
    unlink(path("chunks.keys"));
    unlink(path("chunks.data"));
    rmdir(folder);
}

static uint64_t stamp_of(uint32_t slot)
{
    return 100 + slot;
}

static void open_keys(struct chunk_keys *k)
{
    struct hill_why why;
    if (chunk_keys_open(k, folder, &terms, &shape, &why))
        abort();
}

/* A file as the store writes it, in good[]. */
static void make_good(void)
{
    static const uint16_t heads[LAYERS] = {1, 0};
    static const uint8_t data[4096] = {1};
    struct chunk_keys k;
    struct hill_why why;
    if (!mkdtemp(folder))
        abort();
    atexit(remove_all);
    write_file(path("chunks.data"), data, sizeof data);
    open_keys(&k);
    if (chunk_keys_choose(&k, heads, &why))
        abort();
    for (uint32_t s = 0; s < SLOTS; s++) {
        for (uint32_t i = 0; i < CHUNK; i++)
            entries[s][i] = (uint8_t)(i * 7 + s);
        if (chunk_keys_write(&k, s, stamp_of(s), entries[s], &why))
            abort();
    }
    ssize_t n = pread(k.fd, good, sizeof good, 0);
    if (n < 0 || (size_t)n == sizeof good)
        abort();
    good_bytes = (size_t)n;
    chunk_keys_close(&k);
}

/* ---- what an input does to it ---------------------------------------------------------------- */

/* Four bytes of the header and the heads, or of what a chunk has. */
static void change(const struct chunk_keys *k, const uint8_t *edit, size_t size)
{
    uint64_t at = (uint64_t)edit[1] << 8 | edit[2];
    uint32_t what = edit[0] % (SLOTS + 1);
    at = what == SLOTS ? at % (sizeof(struct chunk_keys_header) + LAYERS * sizeof(uint16_t))
                       : chunk_keys_sums_at(k, what) + at % k->slot_bytes;
    if (at + 4 <= size)
        memcpy(file + at, edit + 3, 4);
}

static void seal(const struct chunk_keys *k, size_t size, uint8_t what)
{
    size_t at = offsetof(struct chunk_keys_header, checksum);
    uint64_t sum = XXH64(file + sizeof(struct chunk_keys_header), LAYERS * sizeof(uint16_t),
                         XXH64(file, at, 0));
    if (what & SEAL_HEADER && size >= sizeof(struct chunk_keys_header))
        memcpy(file + at, &sum, sizeof sum);
    for (uint32_t s = 0; s < SLOTS && what & SEAL_SUMS; s++) {
        uint8_t *sums = file + chunk_keys_sums_at(k, s);
        uint64_t stamp;
        if (chunk_keys_sums_at(k, s) + k->sums_bytes > size)
            return;
        memcpy(&stamp, sums, sizeof stamp);
        sum = XXH64(sums + 16, 8ull * LAYERS * (1 + k->n_runs), stamp);
        memcpy(sums + 8, &sum, sizeof sum);
    }
}

/* ---- what must hold -------------------------------------------------------------------------- */

static bool as_written(uint64_t at, const void *bytes, uint64_t n)
{
    return at + n <= good_bytes && memcmp(good + at, bytes, n) == 0;
}

/* sealed: its checksums may be those of something else. */
static void read_slot(const struct chunk_keys *k, uint32_t slot, bool sealed)
{
    uint8_t sums[4096], keys[4096];
    uint64_t at = chunk_keys_sums_at(k, slot), bytes = chunk_keys_layer_bytes(k);
    if (k->sums_bytes > sizeof sums || bytes > sizeof keys ||
        chunk_keys_run_bytes(k) * k->n_runs != CHUNK / LAYERS)
        abort();
    chunk_keys_has(k, slot, stamp_of(slot));
    if (pread(k->fd, sums, k->sums_bytes, (off_t)at) != (ssize_t)k->sums_bytes ||
        !chunk_keys_are_sums(k, sums, stamp_of(slot)))
        return;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        at = chunk_keys_layer_at(k, slot, layer);
        if (pread(k->fd, keys, bytes, (off_t)at) == (ssize_t)bytes &&
            chunk_keys_fit(k, sums, layer, keys) && !sealed && !as_written(at, keys, bytes))
            abort();
        const uint8_t *of_layer = entries[slot] + layer * (CHUNK / LAYERS);
        for (uint32_t r = 0; r < k->n_runs; r++)
            if (!chunk_keys_run_fits(k, sums, layer, r, of_layer + r * chunk_keys_run_bytes(k)) &&
                !sealed)
                abort(); /* the sums are whole, so they are of these entries */
    }
}

/* What is written into whatever is there is there afterwards. */
static void write_slot(struct chunk_keys *k)
{
    static const uint16_t heads[LAYERS] = {0, 1};
    struct hill_why why;
    uint8_t sums[4096];
    if (!k->heads && chunk_keys_choose(k, heads, &why))
        abort();
    if (chunk_keys_write(k, 1, 55, entries[2], &why) || !chunk_keys_has(k, 1, 55))
        abort();
    chunk_keys_cut(k, 2);
    chunk_keys_forget(k, 0, stamp_of(0));
    chunk_keys_close(k);
    open_keys(k);
    if (!k->heads || chunk_keys_has(k, 0, stamp_of(0)) ||
        pread(k->fd, sums, k->sums_bytes, (off_t)chunk_keys_sums_at(k, 1)) !=
            (ssize_t)k->sums_bytes ||
        !chunk_keys_are_sums(k, sums, 55))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chunk_keys k;
    if (size < 2)
        return 0;
    if (!good_bytes) {
        hill_log_init("fuzz", HILL_LOG_ERROR);
        make_good();
    }
    open_keys(&k); /* for where things lie */
    size_t left = data[1] ? good_bytes * data[1] / 256 : good_bytes;
    memcpy(file, good, good_bytes);
    for (size_t at = 2; at + 7 <= size; at += 7)
        change(&k, data + at, left);
    seal(&k, left, data[0]);
    chunk_keys_close(&k);
    write_file(path("chunks.keys"), file, left);
    open_keys(&k);
    if (!k.heads && size < 9 && !data[1]) /* nothing was changed */
        abort();
    for (uint32_t i = 0; k.heads && i < LAYERS; i++)
        if (k.heads[i] >= KV_HEADS)
            abort();
    for (uint32_t s = 0; k.heads && s < SLOTS; s++)
        read_slot(&k, s, data[0] & SEAL_SUMS);
    write_slot(&k);
    chunk_keys_close(&k);
    return 0;
}
