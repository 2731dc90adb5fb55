/* tests/pool/directory_write.h - one record of a pool's directory, written at once. */
#pragma once

#include <stdlib.h>

#include "pool/pool_disk.h"

static inline int pool_directory_write(const struct pool_directory *d,
                                       const struct pool_layout *layout, int fd, uint32_t stripe,
                                       struct hill_why *why)
{
    uint64_t offset;
    void *pages = pool_page_alloc(pool_directory_page_bytes(layout));
    if (pages == NULL)
        return HILL_E_NOMEM;
    uint64_t bytes = pool_directory_encode(d, stripe, pages, &offset);
    int rc = pool_write_all(fd, pages, bytes, offset, "directory", why);
    free(pages);
    return rc;
}
