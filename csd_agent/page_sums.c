/* csd_agent/page_sums.c - see page_sums.h. */
#include "csd_agent/page_sums.h"

#include <stdlib.h>

#include "base/xxh3.h"

/* A page whose checksum is 0 counts as one of 1. */
static uint32_t sum_of(const uint8_t *page)
{
    uint32_t sum = (uint32_t)xxh3_64(page, CSD_ALIGN);
    return sum ? sum : 1;
}

/* NULL: the page is not of the plane. */
static struct page_sum *at(const struct page_sums *s, uint64_t offset)
{
    return offset >= s->from && offset < s->to ? &s->sums[(offset - s->from) / CSD_ALIGN] : NULL;
}

int page_sums_create(struct page_sums *s, const struct pool_layout *layout)
{
    uint64_t from = layout->key_bytes ? layout->key_offset : layout->digest_offset;
    *s = (struct page_sums){.from = from, .to = layout->entry_offset};
    s->sums = calloc((s->to - s->from) / CSD_ALIGN + 1, sizeof *s->sums);
    return s->sums ? 0 : HILL_E_NOMEM;
}

void page_sums_destroy(struct page_sums *s)
{
    free(s->sums);
    *s = (struct page_sums){0};
}

void page_sums_note(struct page_sums *s, uint64_t offset, uint64_t bytes, const uint8_t *memory)
{
    for (uint64_t done = 0; done < bytes; done += CSD_ALIGN) {
        struct page_sum *sum = at(s, offset + done);
        if (sum)
            sum->before = sum->now = sum_of(memory + done);
    }
}

void page_sums_doubt(struct page_sums *s, uint64_t offset, uint64_t bytes, const uint8_t *memory)
{
    for (uint64_t done = 0; done < bytes; done += CSD_ALIGN) {
        struct page_sum *sum = at(s, offset + done);
        if (sum && sum->before)
            sum->now = sum_of(memory + done);
    }
}

int page_sums_check(const struct page_sums *s, uint64_t offset, uint64_t bytes,
                    const uint8_t *memory, uint64_t *bad)
{
    for (uint64_t done = 0; done < bytes; done += CSD_ALIGN) {
        const struct page_sum *sum = at(s, offset + done);
        if (!sum || !sum->before)
            continue;
        uint32_t found = sum_of(memory + done);
        if (found == sum->before || found == sum->now)
            continue;
        *bad = offset + done;
        return HILL_E_DAMAGED;
    }
    return 0;
}
