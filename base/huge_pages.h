/*
 * base/huge_pages.h - memory of this process that is read so often that its pages should be large.
 *
 * What: zeroed private pages, huge ones (2 MiB) where the system has them: reading memory of 4 KiB
 * pages is up to a third slower. Small pages are right as well. Who calls it: the GPU worker for
 * weights and KV, the CPU scorer for digests of cold tokens; hillctl doctor asks how many bytes of
 * a mapping lie on huge pages. Memory in /dev/shm: shm/segment.h. Concurrency: any thread.
 */
#pragma once

#include <stdint.h>

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)

/* At least so many bytes, from an address that is a multiple of HUGE_PAGE_BYTES; *taken: how many
 * they are, for huge_pages_give. NULL: no memory. A page takes memory when it is first touched. */
void *huge_pages_take(uint64_t bytes, uint64_t *taken);

/* Back to the system; safe on NULL. */
void huge_pages_give(void *pages, uint64_t taken);

/* Of this process' mapping that holds the address, shared or not: its bytes that are mapped by huge
 * pages. 0 also where /proc cannot be read. */
uint64_t huge_pages_mapped(const void *address);
