/*
 * tests/fuzz/fuzz_small_files.c - any bytes as the small files that processes read when they start.
 *
 * What: byte 0 says which: 0 the record of segments that outlive a coordinator (4: its checksum is
 * made right), 1 the measured rates of a machine, 2 a drive's key and the public keys that may talk
 * to it (two files, a zero byte between them), 3 which drives were attached. Failure: sanitizer
 * findings; abort() where a record that contradicts itself or a rate that is none is handed out,
 * where a key is not one, where rates that were stored beside the others are not found, or where
 * drives that were read are others once they have been written. Who calls it: libFuzzer
 * (tests/fuzz/run). Concurrency: one thread.
 */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "coordinator/drives_record.h"
#include "coordinator/profile.h"
#include "coordinator/tiers_record.h"
#include "proto/drive_link.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/session_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/dev/shm/hill-fuzz-files-XXXXXX";
enum { FILES = 5 };
static const char *const names[FILES] = {TIERS_RECORD_NAME, "profiles.json", "own", "peers",
                                         "drives"};

static const char *path(uint32_t which)
{
    static char texts[FILES][64];
    snprintf(texts[which], sizeof texts[which], "%s/%s", folder, names[which]);
    return texts[which];
}

static void remove_all(void)
{
    for (uint32_t i = 0; i < FILES; i++)
        unlink(path(i));
    rmdir(folder);
}

static void try_record(const uint8_t *bytes, size_t size, bool seal)
{
    struct tiers_record r = {0};
    memcpy(&r, bytes, size < sizeof r ? size : sizeof r);
    if (seal) {
        r.magic = TIERS_RECORD_MAGIC;
        r.version = TIERS_RECORD_VERSION;
        r.run_id = FUZZ_LOG_RUN_ID;
        r.checksum = XXH64(&r, offsetof(struct tiers_record, checksum), 0);
    }
    write_file(path(0), seal ? (const void *)&r : bytes, seal ? sizeof r : size);
    memset(&r, 0xee, sizeof r);
    tiers_record_read(folder, FUZZ_LOG_RUN_ID, &r);
    if (r.tiers_epoch > r.epoch || (r.tiers_epoch && (!r.settings || r.run_id != FUZZ_LOG_RUN_ID)))
        abort();
}

static bool is_rate(double rate)
{
    return isfinite(rate) && rate > 0;
}

static void try_rates(const uint8_t *bytes, size_t size)
{
    const struct profile one = {.rates = {4, 3, 2, 1}, .took_ms = 5};
    struct profile found;
    struct hill_why why;
    write_file(path(1), bytes, size);
    if (profile_cache_find(&found, path(1), "x", &why) == 0 &&
        (!is_rate(found.rates.f_c) || !is_rate(found.rates.f_s) || !is_rate(found.rates.B_c) ||
         !is_rate(found.rates.B_s)))
        abort();
    if (profile_cache_store(path(1), "y", &one, &why) ||
        profile_cache_find(&found, path(1), "y", &why) || found.rates.f_s != 3)
        abort();
}

static void try_keys(const uint8_t *bytes, size_t size)
{
    static struct drive_keys keys;
    struct hill_why why;
    const uint8_t *zero = memchr(bytes, 0, size);
    size_t own = zero ? (size_t)(zero - bytes) : size;
    write_file(path(2), bytes, own);
    write_file(path(3), bytes + own + (zero != NULL), size - own - (zero != NULL));
    if (drive_keys_read(&keys, path(2), path(3), &why))
        return;
    if (!keys.n_peers || keys.n_peers > DRIVE_PEERS_MAX ||
        strlen(keys.public_key) != DRIVE_KEY_BYTES - 1 ||
        strlen(keys.secret_key) != DRIVE_KEY_BYTES - 1)
        abort();
    for (uint32_t i = 0; i < keys.n_peers; i++)
        if (strlen(keys.peers[i]) != DRIVE_KEY_BYTES - 1)
            abort();
}

static void try_drives(const uint8_t *bytes, size_t size)
{
    static struct drives_record r, again;
    struct hill_why why;
    write_file(path(4), bytes, size);
    drives_record_read(folder, &r);
    if (!r.n)
        return;
    if (r.n > LAYOUT_DRIVES_MAX || drives_record_write(folder, &r, &why))
        abort();
    drives_record_read(folder, &again);
    for (uint32_t d = 0; d < r.n; d++) {
        const struct drive_note *a = &r.drives[d], *b = &again.drives[d];
        if (again.n != r.n || a->state > DRIVE_NOTE_PLAIN || a->state != b->state ||
            a->cap_bytes != b->cap_bytes || strcmp(a->url, b->url) != 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    if (!made) {
        if (!mkdtemp(folder))
            abort();
        made = true;
        atexit(remove_all);
    }
    if (size < 1)
        return 0;
    if (data[0] % 4 == 0)
        try_record(data + 1, size - 1, data[0] & 4);
    else if (data[0] % 4 == 1)
        try_rates(data + 1, size - 1);
    else if (data[0] % 4 == 2)
        try_keys(data + 1, size - 1);
    else
        try_drives(data + 1, size - 1);
    return 0;
}
