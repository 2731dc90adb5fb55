/*
 * tests/fuzz/fuzz_ring.c - a ring whose other end writes what it likes.
 *
 * What: byte 0 says which end is ours and how large the ring is, byte 1 where its indices begin;
 * then each operation is a byte and its operands: the peer writes anything anywhere into the ring's
 * memory, or ours peeks, releases, skips, reserves, publishes, stages or asks for credits. What a
 * peek or a reserve hands out is read or written to its last byte; the memory is of exactly the
 * ring's size. Failure: sanitizer findings; abort() where something outside the ring is handed out.
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shm/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t size, at;
};

static uint32_t take(struct input *in, unsigned bytes)
{
    uint32_t out = 0;
    for (unsigned i = 0; i < bytes && in->at < in->size; i++)
        out |= (uint32_t)in->data[in->at++] << 8 * i;
    return out;
}

/* Four bytes of the header or of the records, by the peer. */
static void peer_writes(struct input *in, uint8_t *memory, uint64_t bytes)
{
    uint32_t at = take(in, 2) % (uint32_t)(bytes - 3), value = take(in, 4);
    memcpy(memory + at, &value, sizeof value);
}

/* What was handed out lies in the ring's data. */
static void check(const struct shm_ring_end *end, const uint8_t *memory, uint64_t bytes,
                  const void *payload, uint32_t payload_bytes)
{
    const uint8_t *from = payload;
    if (from < memory + SHM_RING_HEADER_BYTES || from + payload_bytes > memory + bytes ||
        payload_bytes > shm_ring_payload_max(end))
        abort();
}

static void consume(struct input *in, struct shm_ring_end *end, uint8_t *memory, uint64_t bytes)
{
    static volatile uint8_t sink;
    const void *payload;
    uint32_t type, payload_bytes;
    while (in->at < in->size) {
        uint32_t what = take(in, 1) % 4;
        if (what == 0) {
            peer_writes(in, memory, bytes);
            continue;
        }
        if (shm_ring_peek(end, &type, &payload, &payload_bytes) != 0)
            continue;
        check(end, memory, bytes, payload, payload_bytes);
        for (uint32_t i = 0; i < payload_bytes; i++)
            sink = ((const uint8_t *)payload)[i];
        if (what == 1 && shm_ring_peek_behind(end, &type, &payload, &payload_bytes))
            check(end, memory, bytes, payload, payload_bytes);
        if (what == 2)
            shm_ring_release(end);
        else if (what == 3)
            shm_ring_skip(end);
    }
    (void)sink;
}

static void produce(struct input *in, struct shm_ring_end *end, uint8_t *memory, uint64_t bytes)
{
    void *payload;
    while (in->at < in->size) {
        uint32_t what = take(in, 1) % 6, n = take(in, 1) * 3;
        if (what == 0)
            peer_writes(in, memory, bytes);
        else if (what == 1)
            shm_ring_flush(end);
        else if (what == 2 && shm_ring_credits(end) > shm_ring_payload_max(end))
            abort();
        if (what < 3 || shm_ring_reserve(end, n, &payload) != 0)
            continue;
        check(end, memory, bytes, payload, n);
        memset(payload, 0x5a, n);
        if (what == 3)
            shm_ring_publish(end, 7, n);
        else if (what == 4)
            shm_ring_stage(end, 7, n / 2);
        /* else: the next reserve takes its place */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shm_doorbell own, peer;
    struct shm_ring_end end;
    struct input in = {data, size, 2};
    if (size < 2)
        return 0;
    bool producer = data[0] & 1;
    uint32_t capacity = 64u << data[0] / 2 % 5;
    uint64_t bytes = shm_ring_bytes(capacity);
    uint8_t *memory = aligned_alloc(64, bytes); /* a multiple of 64 */
    if (!memory)
        abort();
    memset(memory, 0, bytes);
    shm_doorbell_init(&own);
    shm_doorbell_init(&peer);
    if (shm_ring_init(memory, capacity, data[1] & 1 ? UINT32_MAX - 3 : data[1] * 64u) != 0)
        abort();
    if (data[1] & 2) /* also before it is opened */
        peer_writes(&in, memory, bytes);
    if (shm_ring_open(&end, memory, bytes, producer, &own, &peer) == 0) {
        if (producer)
            produce(&in, &end, memory, bytes);
        else
            consume(&in, &end, memory, bytes);
        shm_ring_close(&end);
    }
    free(memory);
    return 0;
}
