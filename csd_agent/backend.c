/*
 * csd_agent/backend.c - choose a backend by the scheme of its URL; see backend.h.
 */
#include "csd_agent/backend.h"

#include <string.h>

#include "csd_agent/file_io.h"

#define KINDS "file:PATH or xrt:PATH,xclbin=FILE"

static const struct csd_ops *const backends[] = {&csd_file_ops, &csd_xrt_ops};

static bool scheme_is(const char *url, size_t length, const char *scheme)
{
    return strlen(scheme) == length && memcmp(url, scheme, length) == 0;
}

int csd_backend_open(struct csd_backend **out, const char *url, const struct csd_options *options,
                     struct hill_why *why)
{
    const char *colon = url ? strchr(url, ':') : NULL;

    *out = NULL;
    if (!colon || colon == url)
        return hill_fail(why, HILL_E_INVALID, "cannot open drive '%.200s': no scheme (" KINDS ")",
                         url ? url : "");
    size_t length = (size_t)(colon - url);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (scheme_is(url, length, backends[i]->scheme))
            return backends[i]->open(out, colon + 1, options, why);
    return hill_fail(why, HILL_E_INVALID, "cannot open drive '%.200s': unknown scheme (" KINDS ")",
                     url);
}

void csd_backend_close(struct csd_backend *backend)
{
    if (backend)
        backend->ops->close(backend);
}

int csd_pool_fd(const struct csd_backend *backend)
{
    return file_io_fd(backend->io);
}

int csd_start(struct csd_backend *backend, uint32_t job, const struct csd_extent *extents,
              size_t n_extents, struct hill_why *why)
{
    struct csd_statistics *s = &backend->done;
    for (size_t i = 0; i < n_extents; i++)
        *(extents[i].write      ? &s->written_bytes
          : job < SCORE_BATCHES ? &s->device_bytes
                                : &s->host_bytes) += extents[i].bytes;
    return file_io_start(backend->io, job, extents, n_extents, why);
}

int csd_finish(struct csd_backend *backend, uint32_t job, struct hill_why *why)
{
    return file_io_finish(backend->io, job, why);
}

const uint8_t *csd_view(struct csd_backend *backend, uint64_t offset, uint64_t bytes)
{
    return file_io_view(backend->io, offset, bytes);
}

bool csd_is_dead(const struct csd_backend *backend)
{
    return file_io_dead(backend->io);
}

int csd_lost(struct csd_backend *backend, struct hill_why *why)
{
    return file_io_lost(backend->io, why);
}
