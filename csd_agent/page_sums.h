/*
 * csd_agent/page_sums.h - checksums of the pages of digests (or keys) on flash, so that a bit that
 * changes there is found before it changes a score.
 *
 * What: low 32 bits of XXH3_64bits of each 4 KiB page that this process has written, or has found
 * right by other means; held in memory, 8 bytes each: 1/512 of the plane. Where a write has failed
 * the page may be as before or as written, and both are right: they agree in all slots that count.
 * A page that is not known is not checked: no slot in it counts, since slots are written by this
 * process or adopted, and adopting looks at them (cold_adopt.c). Entries have checksums of their
 * own. Who calls it: csd_drive.c. Concurrency: one thread. Failure: codes as at each function.
 */
#pragma once

#include "csd_agent/backend.h"

/* Of a page: what it may be. 0: not known. */
struct page_sum {
    uint32_t before, now; /* they differ after a write that failed */
};

struct page_sums {
    uint64_t from, to; /* bytes of the file: the plane's */
    struct page_sum *sums;
};

int page_sums_create(struct page_sums *s, const struct pool_layout *layout); /* HILL_E_NOMEM */
void page_sums_destroy(struct page_sums *s); /* of a zeroed struct, too */

/* This is what lies there, whole pages; what is not of the plane is passed over. */
void page_sums_note(struct page_sums *s, uint64_t offset, uint64_t bytes, const uint8_t *memory);
/* A write of this memory has failed: a page is as before or as written. After a second failure what
 * the first one wrote counts as damage. A page that was not known stays so. */
void page_sums_doubt(struct page_sums *s, uint64_t offset, uint64_t bytes, const uint8_t *memory);
/* Is this what lies there? HILL_E_DAMAGED, *bad: offset of the first page that is another. */
int page_sums_check(const struct page_sums *s, uint64_t offset, uint64_t bytes,
                    const uint8_t *memory, uint64_t *bad);
