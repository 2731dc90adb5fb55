/* base/huge_pages.c - see huge_pages.h. */
#include "base/huge_pages.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_PAGE_BYTES 4096u

void *huge_pages_take(uint64_t bytes, uint64_t *taken)
{
    if (bytes > INT64_MAX - HUGE_PAGE_BYTES)
        return NULL;
    bytes = (bytes + SMALL_PAGE_BYTES - 1) / SMALL_PAGE_BYTES * SMALL_PAGE_BYTES;
    uint8_t *all = mmap(NULL, bytes + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    uint64_t before = -(uintptr_t)all % HUGE_PAGE_BYTES;
    if (before)
        munmap(all, before);
    if (before < HUGE_PAGE_BYTES)
        munmap(all + before + bytes, HUGE_PAGE_BYTES - before);
    /* a wish. Not for the rest of the last one: memory is counted */
    if (bytes >= HUGE_PAGE_BYTES)
        madvise(all + before, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    *taken = bytes;
    return all + before;
}

void huge_pages_give(void *pages, uint64_t taken)
{
    if (pages)
        munmap(pages, taken);
}

uint64_t huge_pages_mapped(const void *address)
{
    static const char *const lines[] = {"AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"};
    char line[512];
    bool inside = false;
    uint64_t first, last, sum = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &first, &last) == 2)
            inside = first <= (uint64_t)(uintptr_t)address && (uint64_t)(uintptr_t)address < last;
        for (size_t i = 0; inside && i < sizeof lines / sizeof lines[0]; i++)
            if (strncmp(line, lines[i], strlen(lines[i])) == 0)
                sum += strtoull(line + strlen(lines[i]), NULL, 10) << 10;
    }
    fclose(file);
    return sum;
}
