/*
 * tests/fuzz/fuzz_chunks.c - any bytes as the index of a prefix store.
 *
 * What: byte 0 says whether the header's checksum is made right (bit 0) and those of the records
 * (bit 1); the rest is chunks.index. Beside it lies a chunks.data of some bytes. What opens is
 * searched, read, added to and opened again: what was whole stays whole. Failure: sanitizer
 * findings; abort() where a token outside the vocabulary or an empty chunk is handed out. Who calls
 * it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "prefix/drive_store.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct chunk_terms terms = {
    .model_bytes = 1000, .model_identity = 77, .n_layers = 2, .entry_bytes = 16, .n_vocab = 50};
static char folder[] = "/tmp/hill-fuzz-chunks-XXXXXX";

static const char *path(const char *name)
{
    static char text[64];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static void remove_all(void)
{
    unlink(path("chunks.index"));
    unlink(path("chunks.data"));
    rmdir(folder);
}

static void seal(uint8_t *file, size_t size, uint8_t what)
{
    uint64_t sum;
    size_t at = offsetof(struct chunk_file_header, checksum);
    if ((what & 1) && size >= sizeof(struct chunk_file_header)) {
        sum = XXH64(file, at, 0);
        memcpy(file + at, &sum, sizeof sum);
    }
    at = offsetof(struct chunk_record, checksum);
    for (size_t i = CHUNK_FILE_HEAD; (what & 2) && i + sizeof(struct chunk_record) <= size;
         i += sizeof(struct chunk_record)) {
        sum = XXH64(file + i, at, 0);
        memcpy(file + i + at, &sum, sizeof sum);
    }
}

static void use(struct drive_store *s)
{
    uint32_t tokens[300];
    struct drive_chunk chunks[300 / CHUNK_TOKENS + 1], parent = {0};
    struct chunk_hit hit;
    uint8_t room[CHUNK_TOKENS * 32];
    struct hill_why why;
    for (uint32_t i = 0; i < s->tree.n_room; i++) {
        const struct chunk *c = chunk_at(&s->tree, i);
        for (uint32_t k = 0; c && k < c->n; k++)
            if (c->tokens[k] >= terms.n_vocab)
                abort();
        if (c && (c->n == 0 || c->n > CHUNK_TOKENS))
            abort();
        for (uint32_t k = 0; c && k < 300; k++)
            tokens[k] = c->tokens[k % CHUNK_TOKENS];
        if (!c)
            continue;
        struct chunk_query q = {tokens, 300, c->settings, c->owner};
        if (drive_store_find(s, &q, &hit, chunks))
            abort();
        uint32_t n;
        double cost;
        for (uint32_t k = 0; k < hit.n_chunks; k++)
            drive_store_read(s, chunks[k], room, &n, &cost, &why);
    }
    memset(room, 3, sizeof room);
    for (uint32_t i = 0; i < 3; i++) {
        struct chunk c = {
            .settings = 9, .first = i * CHUNK_TOKENS, .n = 64, .n_plain = 64, .cost = 1};
        parent = drive_store_put(s, parent, &c, room);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t some[3 * 4096] = {1};
    struct drive_store s;
    struct hill_why why;
    uint64_t cap = CHUNK_FILE_HEAD + 8 * (chunk_slot_bytes(&terms) + sizeof(struct chunk_record));
    static bool made;
    if (!made) {
        hill_log_init("fuzz", HILL_LOG_ERROR);
        if (!mkdtemp(folder))
            abort();
        made = true;
        atexit(remove_all);
    }
    if (size < 1)
        return 0;
    uint8_t *file = malloc(size);
    if (!file)
        abort();
    memcpy(file, data + 1, size - 1);
    seal(file, size - 1, data[0]);
    write_file(path("chunks.index"), file, size - 1);
    write_file(path("chunks.data"), some, sizeof some);
    free(file);
    int rc = drive_store_open(&s, folder, &terms, cap, &why);
    if (rc == 0)
        use(&s);
    uint32_t left = s.tree.n_chunks;
    drive_store_close(&s);
    if (rc == 0 && (drive_store_open(&s, folder, &terms, cap, &why) || s.tree.n_chunks != left))
        abort();
    if (rc == 0)
        drive_store_close(&s);
    return 0;
}
