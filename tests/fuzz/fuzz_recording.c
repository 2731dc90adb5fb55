/*
 * tests/fuzz/fuzz_recording.c - any bytes as a recording of the rings.
 *
 * What: byte 0 says which checksums are made right (session_seed.h), the rest is the file. Of a
 * recording that opens every event is walked, twice, and its payload read to the end. Failure:
 * sanitizer findings; abort() where the walks differ. Who calls it: libFuzzer (tests/fuzz/run).
 * Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "recording/recording_internal.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/session_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Frames behind the Configure, as far as they lie in the file. */
static void seal_frames(uint8_t *file, size_t size, uint64_t at)
{
    struct recording_frame frame;
    for (uint64_t n = 0; at < size && size - at >= sizeof frame; n++) {
        memcpy(&frame, file + at, sizeof frame);
        uint64_t padded = recording_bare(frame.kind) ? 0 : recording_pad(frame.bytes);
        if (padded > size - at - sizeof frame)
            return;
        frame.check = recording_frame_check(&frame, file + at + sizeof frame, padded, n);
        memcpy(file + at, &frame, sizeof frame);
        at += sizeof frame + padded;
    }
}

static void seal(uint8_t *file, size_t size, uint8_t what)
{
    struct recording_header h;
    if (size < sizeof h)
        return;
    memcpy(&h, file, sizeof h);
    uint64_t at = sizeof h + recording_pad(h.configure_bytes);
    if (what & FUZZ_SEAL_HEADER) {
        if (h.configure_bytes <= size - sizeof h)
            h.configure_check = XXH64(file + sizeof h, h.configure_bytes, 0);
        h.header_check = XXH64(&h, offsetof(struct recording_header, header_check), 0);
    }
    memcpy(file, &h, sizeof h);
    if (what & FUZZ_SEAL_PARTS)
        seal_frames(file, size, at);
}

/* What all events say, as one number. */
static uint64_t walk(struct recording_file *f)
{
    struct recording_event e;
    uint64_t sum = 0;
    while (recording_next(f, &e)) {
        bool bare = recording_bare((uint8_t)e.kind);
        sum = XXH64(e.payload, bare ? 0 : e.bytes, sum + e.kind + e.type + e.looks);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why = {""};
    struct recording_file f;
    if (size < 1)
        return 0;
    int rc = recording_open(&f, sealed_file(data, size, seal), &why);
    if (rc == 0) {
        uint64_t first = walk(&f);
        recording_rewind(&f);
        if (walk(&f) != first)
            abort();
        recording_finish(&f);
    }
    return 0;
}
