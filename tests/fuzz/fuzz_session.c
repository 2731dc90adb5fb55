/*
 * tests/fuzz/fuzz_session.c - any bytes as a saved session.
 *
 * What: byte 0 says which checksums are made right (bit 0 the header's, bit 1 the tokens', bit 2
 * the layers') and whether the header's length is the file's (bit 3), so that what is behind them
 * is reached; the rest is the file. What opens is compared with terms and read to its end, in
 * pieces, into memory of exactly the size that the header promises. Failure: sanitizer findings;
 * abort() where a token outside the vocabulary is handed out. Who calls it: libFuzzer
 * (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "session/session.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/session_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The checksum behind `bytes` from `at` on, where all of it lies in the file. */
static void seal_section(uint8_t *file, size_t size, uint64_t at, uint64_t bytes)
{
    if (at > size || bytes > size - at || size - at - bytes < SESSION_CHECKSUM)
        return;
    uint64_t sum = XXH64(file + at, bytes, 0);
    memcpy(file + at + bytes, &sum, sizeof sum);
}

static void seal(uint8_t *file, size_t size, uint8_t what)
{
    struct session_header h;
    if (size < sizeof h)
        return;
    memcpy(&h, file, sizeof h);
    if (what & FUZZ_SESSION_LENGTH)
        h.file_bytes = size;
    if (what & FUZZ_SESSION_TOKENS)
        seal_section(file, size, sizeof h, (uint64_t)h.n_tokens * sizeof(uint32_t));
    for (uint32_t layer = 0; what & FUZZ_SESSION_LAYERS && layer < h.terms.n_layers && layer < 8;
         layer++) {
        uint64_t at = session_layer_offset(&h, layer),
                 bytes = (uint64_t)h.n_entries * h.entry_bytes;
        seal_section(file, size, at, bytes);
        if (session_has_masses(&h.terms))
            seal_section(file, size, at + bytes + SESSION_CHECKSUM,
                         (uint64_t)h.n_entries * sizeof(float));
    }
    if (what & FUZZ_SESSION_HEADER)
        h.checksum = XXH64(&h, offsetof(struct session_header, checksum), 0);
    memcpy(file, &h, sizeof h);
}

static void *room(uint64_t bytes)
{
    void *out = malloc(bytes ? bytes : 1);
    if (!out)
        abort();
    return out;
}

/* Layer by layer, a third at a time. */
static void read_layers(struct session_file *f)
{
    const struct session_header *h = &f->header;
    struct hill_why why;
    int rc = 0;
    while (!rc && f->layer < h->terms.n_layers) {
        uint32_t left = h->n_entries - f->next, n = left > 2 ? left / 3 + 1 : left;
        uint64_t item = f->masses ? sizeof(float) : h->entry_bytes;
        void *to = room(n * item);
        session_read_ahead(f, 4096);
        rc = f->masses ? session_read_masses(f, n, to, &why) : session_read_entries(f, n, to, &why);
        free(to);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why = {""};
    struct session_file f;
    if (size < 1)
        return 0;
    int rc = session_open(&f, sealed_file(data, size, seal), &why);
    if (rc == 0) {
        struct session_terms other = f.header.terms;
        if (session_compare(&f.header, &other, "f", &why) != 0)
            abort(); /* it differs from itself */
        other.n_layers++;
        if (session_compare(&f.header, &other, "f", &why) == 0)
            abort();
        uint32_t *tokens = room((uint64_t)f.header.n_tokens * sizeof *tokens);
        if (session_read_tokens(&f, tokens, &why) == 0)
            for (uint32_t i = 0; i < f.header.n_tokens; i++)
                if (tokens[i] >= f.header.terms.n_vocab)
                    abort();
        free(tokens);
        read_layers(&f);
    }
    session_close(&f);
    return 0;
}
