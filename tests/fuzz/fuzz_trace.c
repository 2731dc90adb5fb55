/*
 * tests/fuzz/fuzz_trace.c - any bytes as a KV trace.
 *
 * What: byte 0 says which checksums are made right (session_seed.h), the rest is the file. Of a
 * trace that opens every record is read, its positions and scores to the last one. Failure:
 * sanitizer findings; abort() where positions do not ascend below n_tokens. Who calls it: libFuzzer
 * (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "placement/trace.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/session_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void seal_records(uint8_t *file, size_t size)
{
    struct trace_record r;
    for (size_t at = sizeof(struct trace_header); at < size && size - at >= sizeof r;) {
        memcpy(&r, file + at, sizeof r);
        if (r.payload_bytes <= size - at - sizeof r)
            r.payload_checksum = XXH64(file + at + sizeof r, r.payload_bytes, 0);
        memcpy(file + at, &r, sizeof r);
        r.header_checksum = XXH64(file + at + 8, sizeof r - 8, 0);
        memcpy(file + at, &r.header_checksum, sizeof r.header_checksum);
        at += sizeof r + (size_t)r.payload_bytes;
    }
}

static void seal(uint8_t *file, size_t size, uint8_t what)
{
    struct trace_header h;
    if (size < sizeof h)
        return;
    memcpy(&h, file, sizeof h);
    if (what & FUZZ_SEAL_HEADER)
        h.checksum = XXH64(&h, offsetof(struct trace_header, checksum), 0);
    memcpy(file, &h, sizeof h);
    if (what & FUZZ_SEAL_PARTS)
        seal_records(file, size);
}

static void use(struct trace_file *f)
{
    static volatile uint32_t sink;
    for (uint32_t i = 0; i < trace_file_count(f); i++) {
        const struct trace_record *r = trace_file_record(f, i);
        const uint32_t *words;
        const uint16_t *scores;
        struct hill_why why;
        if (trace_file_read(f, i, &words, &scores, &why) != 0)
            abort(); /* it was whole when the file was opened */
        for (uint32_t k = 0; k < r->n_selected; k++)
            if ((words[k] & TRACE_POSITION_MASK) >= r->n_tokens)
                abort();
        for (uint32_t k = 0; scores && k < r->n_tokens; k++)
            sink = scores[k];
    }
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why = {""};
    struct trace_file *f;
    if (size < 1)
        return 0;
    int rc = trace_file_open(&f, sealed_file(data, size, seal), &why);
    if (rc == 0) {
        use(f);
        trace_file_close(f);
    }
    return 0;
}
