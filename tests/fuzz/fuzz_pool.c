/*
 * tests/fuzz/fuzz_pool.c - any bytes as a cold pool.
 *
 * What: byte 0 says what is sealed anew, byte 1 how large the file is made (sparse), the rest is
 * the head of the file (superblock and directory). Checksums would stop nearly every mutation at
 * the first check, so bit 0 of byte 0 seals the superblock and bit 1 the directory records: what is
 * behind the checksums is reached too. Of a pool that opens, every slot is asked for and every
 * record is encoded. Failure: sanitizer findings; abort() where counts and bitmaps disagree.
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool/pool.h"
#include "pool/pool_disk.h"
#include "tests/fuzz/pool_seed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Seal the whole records that lie in the bytes given. */
static void seal_records(uint8_t *file, size_t size)
{
    const struct pool_superblock *page = (const void *)file;
    uint64_t each = page->directory_record_bytes, at = page->directory_offset;
    if (each < POOL_PAGE_BYTES || each % POOL_PAGE_BYTES != 0 || at % POOL_PAGE_BYTES != 0)
        return;
    for (; at < size && each <= size - at; at += each) {
        uint64_t sum = pool_sealed_checksum(file + at, each);
        memcpy(file + at, &sum, sizeof(sum));
    }
}

static void seal(uint8_t *file, size_t size, uint8_t what)
{
    struct pool_superblock *page = (void *)file;
    if (size < sizeof(*page))
        return;
    if (what & FUZZ_POOL_SEAL_RECORDS)
        seal_records(file, size);
    if (what & FUZZ_POOL_SEAL_SUPERBLOCK)
        page->checksum = pool_sealed_checksum(page, sizeof(*page));
}

static void use(struct pool_directory *d)
{
    const struct pool_layout *l = &d->layout;
    void *pages = NULL;
    if (posix_memalign(&pages, POOL_PAGE_BYTES, pool_directory_page_bytes(l)) != 0)
        abort();
    for (uint32_t stripe = 0; stripe < l->n_stripes; stripe++) {
        uint64_t offset;
        uint32_t valid = 0;
        for (uint32_t i = 0; i < l->stripe_slots; i++)
            valid += pool_slot_valid(d, stripe * l->stripe_slots + i);
        if (valid != d->stripes[stripe].n_valid)
            abort(); /* a record that contradicts itself was let in */
        uint64_t bytes = pool_directory_encode(d, stripe, pages, &offset);
        if (offset + bytes > l->digest_offset)
            abort(); /* a record would be written over digests */
    }
    free(pages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct pool_directory *directory;
    struct hill_why why = {""};
    if (size < 2)
        return 0;
    if (fd < 0)
        fd = memfd_create("pool", 0);
    uint8_t *file = NULL;
    uint8_t what = data[0];
    off_t file_bytes = (off_t)data[1] << FUZZ_POOL_SIZE_SHIFT;
    data += 2;
    size -= 2;
    if (posix_memalign((void **)&file, POOL_PAGE_BYTES, size > 0 ? size : 1) != 0)
        abort();
    memcpy(file, data, size);
    seal(file, size, what);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, file, size, 0) != (ssize_t)size ||
        ftruncate(fd, file_bytes) != 0)
        abort();
    free(file);
    if (pool_open(&directory, fd, FUZZ_POOL_FINGERPRINT, &why) != 0) {
        if (directory != NULL)
            abort();
        return 0;
    }
    use(directory);
    pool_close(directory);
    return 0;
}
