/*
 * tests/fuzz/fuzz_records.c - any bytes as a record of a ring.
 *
 * What: byte 0 chooses the record type (or, above the known ones, is it), byte 1 the geometry, the
 * rest is the payload, copied to memory of exactly its size. Of a record that passes, what its
 * counts promise is read to the last byte. Failure: sanitizer findings.
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kv/group.h"
#include "kv/score.h"
#include "proto/records.h"
#include "tests/fuzz/record_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint8_t sink;

static void touch(const uint8_t *payload, uint64_t offset, uint64_t bytes)
{
    if (bytes > 0)
        sink = (uint8_t)(payload[offset] ^ payload[offset + bytes - 1]);
}

/* Walk the arrays of the records that have the most to get wrong. */
static void follow_counts(uint32_t type, const uint8_t *payload, const struct kv_geometry *g)
{
    if (type == RECORD_APPEND) {
        const struct record_append *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n_tokens * kv_entry_bytes(g));
    } else if (type == RECORD_QUERY) {
        const struct record_query *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n_heads * g->head_dim * sizeof(float));
    } else if (type == RECORD_SELECTION) {
        const struct record_selection *r = (const void *)payload;
        uint64_t items = (uint64_t)r->n_selected * sizeof(struct selected_item);
        touch(payload, sizeof(*r), items);
        touch(payload, sizeof(*r) + items, (uint64_t)r->n_uploads * sizeof(struct selected_upload));
    } else if (type == RECORD_DEMOTE) {
        const struct record_demote *r = (const void *)payload;
        struct demote_parts parts;
        record_demote_parts(&parts, g, r->first_slot, r->n_slots);
        touch(payload, parts.positions, r->n_slots * sizeof(uint32_t));
        touch(payload, parts.entries, (uint64_t)r->n_slots * kv_entry_bytes(g));
        if (r->scattered)
            touch(payload, parts.total, r->n_slots * sizeof(uint32_t));
    } else if (type == RECORD_FETCH) {
        const struct record_fetch *r = (const void *)payload;
        touch(payload, sizeof(*r),
              (uint64_t)r->n_entries * sizeof(struct fetch_item) +
                  (uint64_t)r->n_rows * sizeof(struct fetch_row));
    } else if (type == RECORD_SCORE_BLOCK) {
        const struct record_score_block *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n * sizeof(struct score_tuple));
    } else if (type == RECORD_COMMIT) {
        const struct record_commit *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n_slots * sizeof(uint32_t));
    } else if (type == RECORD_RELEASE) {
        const struct record_release *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n_slots * sizeof(uint32_t));
    } else if (type == RECORD_READ_KEYS) {
        const struct record_read_keys *r = (const void *)payload;
        touch(payload, sizeof(*r), (uint64_t)r->n_ranges * sizeof(struct key_range));
    } else if (type == RECORD_AGENT_QUERY) {
        const struct record_agent_query *r = (const void *)payload;
        touch(payload, sizeof(*r),
              (uint64_t)r->n_host_words * sizeof(uint64_t) + kv_query_bytes(g, r->importance));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why = {""};
    if (size < 2)
        return 0;
    uint32_t type = data[0] < FUZZ_N_TYPES ? fuzz_types[data[0]] : data[0];
    const struct kv_geometry *g = &fuzz_geometries[data[1] % FUZZ_N_GEOMETRIES];
    uint8_t *payload = NULL;
    size -= 2;
    if (posix_memalign((void **)&payload, 16, size > 0 ? size : 1) != 0)
        abort();
    memcpy(payload, data + 2, size);
    if (record_check(type, payload, (uint32_t)size, g, 2, &why) == 0)
        follow_counts(type, payload, g);
    free(payload);
    return 0;
}
