/*
 * pool/pool_io.c - whole-buffer reads and writes that are safe under O_DIRECT, and checksums.
 * Who calls it: the rest of pool/. Concurrency: stateless.
 * Failure: HILL_E_DAMAGED when the file ends early, HILL_E_NOMEM, or what errno says.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/whole_io.h"
#include "base/xxh3.h"
#include "pool/pool_disk.h"

void *pool_page_alloc(uint64_t bytes)
{
    void *pages = aligned_alloc(POOL_PAGE_BYTES, bytes);
    if (pages != NULL)
        memset(pages, 0, bytes);
    return pages;
}

int pool_read_all(int fd, void *buffer, uint64_t bytes, uint64_t offset, const char *what,
                  struct hill_why *why)
{
    int64_t n = whole_read(fd, buffer, bytes, offset);
    if (n < 0)
        return hill_fail(why, (int)n, "reading the cold pool's %s: %s", what, strerror(errno));
    return (uint64_t)n == bytes
               ? 0
               : hill_fail(why, HILL_E_DAMAGED, "cold pool is truncated: no %s at byte %llu", what,
                           (unsigned long long)offset + (uint64_t)n);
}

int pool_write_all(int fd, const void *buffer, uint64_t bytes, uint64_t offset, const char *what,
                   struct hill_why *why)
{
    int code = whole_write(fd, buffer, bytes, offset);
    return code ? hill_fail(why, code, "writing the cold pool's %s: %s", what, strerror(errno)) : 0;
}

int pool_file_bytes(int fd, uint64_t *bytes, struct hill_why *why)
{
    struct stat info;
    off_t end = -1;
    if (fstat(fd, &info) == 0)
        end = S_ISREG(info.st_mode) ? info.st_size : lseek(fd, 0, SEEK_END);
    if (end < 0) {
        int err = errno;
        return hill_fail(why, hill_from_errno(err), "asking for the cold pool's size: %s",
                         strerror(err));
    }
    *bytes = (uint64_t)end;
    return 0;
}

uint64_t pool_sealed_checksum(const void *pages, uint64_t bytes)
{
    return xxh3_64((const uint8_t *)pages + sizeof(uint64_t), bytes - sizeof(uint64_t));
}

uint32_t pool_entry_checksum(const void *entry, uint32_t entry_bytes)
{
    return (uint32_t)xxh3_64(entry, entry_bytes);
}
