/*
 * csd_agent/cold_open.c - whose file is it, and opening or formatting the pool in it; see
 * cold_pool.h.
 *
 * A file is written to only when it is empty (no data in it at all; of a block device the first MiB
 * is zeros), or carries the pool's magic, as a pool does, and what a format leaves that is cut
 * short (pool/pool_format.c). Everything else is somebody's data and is refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "csd_agent/cold_state.h"
#include "pool/pool_disk.h"

#define PROBE_BYTES (1u << 20) /* file systems and partition tables show themselves within it */

enum content { CONTENT_EMPTY, CONTENT_OURS, CONTENT_FOREIGN };

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

/* content from the first bytes. A file that is not sparse may hold something behind zeros. */
static enum content judge(const uint8_t *bytes, ssize_t n, bool zeros_are_empty)
{
    if (n >= (ssize_t)sizeof(struct pool_superblock) &&
        ((const struct pool_superblock *)(const void *)bytes)->magic == POOL_MAGIC)
        return CONTENT_OURS;
    return zeros_are_empty && all_zero(bytes, (size_t)n) ? CONTENT_EMPTY : CONTENT_FOREIGN;
}

/* The file is, or will be, a pool. */
static void close_to_others(int fd)
{
    struct stat status;

    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 077) &&
        fchmod(fd, 0600) != 0)
        log_warn("the cold pool's file is open to others, and stays so: %s", strerror(errno));
}

static int inspect(int fd, enum content *out, struct hill_why *why)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return hill_fail(why, hill_from_errno(errno), "cannot look at the cold pool: %s",
                         strerror(errno));
    bool block = S_ISBLK(status.st_mode);
    if (!block && (status.st_size == 0 || (lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO))) {
        *out = CONTENT_EMPTY;
        return 0;
    }
    size_t probe = block ? PROBE_BYTES : POOL_PAGE_BYTES;
    uint8_t *bytes = aligned_alloc(POOL_PAGE_BYTES, probe);
    if (!bytes)
        return hill_fail(why, HILL_E_NOMEM, "no memory to look at the cold pool");
    ssize_t n = pread(fd, bytes, probe, 0);
    int err = errno;
    if (n >= 0)
        *out = judge(bytes, n, block);
    free(bytes);
    return n >= 0 ? 0
                  : hill_fail(why, hill_from_errno(err), "cannot read the cold pool: %s",
                              strerror(err));
}

static bool same_layout(const struct pool_layout *a, const struct pool_layout *b)
{
    return kv_geometry_equal(&a->geometry, &b->geometry) && a->stripe_slots == b->stripe_slots &&
           a->key_bytes == b->key_bytes && a->n_stripes == b->n_stripes &&
           a->total_bytes == b->total_bytes;
}

/* A pool of this layout keeps its space. Returns 1 when there is none, 0 when it is open. */
static int reuse(struct cold_pool *pool, int fd, const struct cold_pool_config *config,
                 struct hill_why *why)
{
    struct hill_why detail = {""};
    int status = pool_open(&pool->directory, fd, config->fingerprint, &detail);

    if (status == 0 && same_layout(&pool->directory->layout, &pool->layout))
        return 0;
    if (status == 0) {
        log_warn("cold pool '%s' has another shape; formatting it anew", config->url);
        pool_close(pool->directory);
        pool->directory = NULL;
        return 1;
    }
    if (status != HILL_E_DAMAGED && status != HILL_E_UNSUPPORTED && status != HILL_E_INVALID)
        return hill_fail(why, status, "%s", detail.text);
    if (status == HILL_E_INVALID)
        log_warn("%s ('%s'); formatting it anew", detail.text, config->url);
    else
        log_warn("cold pool '%s' cannot be used as it is (%s); formatting it anew", config->url,
                 detail.text);
    return 1;
}

/* The pool that an earlier agent had in this use, as it left it; its directory may be behind, and
 * nobody believes it. */
static bool open_kept(struct cold_pool *pool, int fd, const struct cold_pool_config *config)
{
    struct hill_why why = {""};
    int status = pool_open_stamped(&pool->directory, fd, config->fingerprint, &config->stamp, &why);
    if (status == 0 && same_layout(&pool->directory->layout, &pool->layout))
        return true;
    log_warn("nothing in cold pool '%s' is kept: %s", config->url,
             status ? why.text : "it has another shape");
    pool_close(pool->directory);
    pool->directory = NULL;
    return false;
}

static int open_directory(struct cold_pool *pool, const struct cold_pool_config *config,
                          struct hill_why *why)
{
    int fd = csd_drive_pool_fd(pool->drive);
    struct hill_why detail = {""};
    enum content content = CONTENT_FOREIGN;
    int status = inspect(fd, &content, why);

    if (status != 0)
        return status;
    if (content == CONTENT_FOREIGN)
        return hill_fail(why, HILL_E_DAMAGED,
                         "cannot use '%.300s' as cold pool: it holds something that is no cold "
                         "pool; it was left as it is",
                         config->url);
    close_to_others(fd);
    pool->kept = config->keeps && content == CONTENT_OURS && open_kept(pool, fd, config);
    if (pool->kept)
        return 0;
    status = content == CONTENT_OURS ? reuse(pool, fd, config, &detail) : 1;
    if (status == 1) {
        status = pool_format(fd, &pool->layout, config->fingerprint, &detail);
        if (status == 0)
            status = pool_open(&pool->directory, fd, config->fingerprint, &detail);
    }
    if (status == 0)
        status = pool_set_stamp(fd, &config->stamp, &detail);
    if (status != 0)
        return hill_fail(why, status, "cannot make a cold pool in '%.200s': %s", config->url,
                         detail.text);
    return 0;
}

static int allocate(struct cold_pool *pool, struct hill_why *why)
{
    uint32_t n = pool->layout.n_stripes;

    pool->stripes = calloc(n, sizeof *pool->stripes);
    pool->owners =
        calloc((uint64_t)pool->n_sequences * pool->layout.geometry.n_layers, sizeof *pool->owners);
    pool->dirty = calloc(n, sizeof *pool->dirty);
    pool->is_dirty = calloc(n, 1);
    pool->pages = cold_pages_create();
    pool->extents = calloc(BOUNCE_PAGES, sizeof *pool->extents);
    pool->bounce = csd_drive_alloc(pool->drive, BOUNCE_BYTES);
    pool->fetches[0].memory = pool->bounce; /* nothing else runs while entries are read */
    pool->fetches[1].memory = csd_drive_alloc(pool->drive, BOUNCE_BYTES);
    pool->fetches[1].which = 1;
    pool->directory_pages = csd_drive_alloc(pool->drive, pool_directory_page_bytes(&pool->layout));
    if (pool->stripes && pool->owners && pool->dirty && pool->is_dirty && pool->pages &&
        pool->extents && pool->bounce && pool->fetches[1].memory && pool->directory_pages)
        return 0;
    return hill_fail(why, HILL_E_NOMEM, "no memory for the state of %u stripes", n);
}

/* What an earlier agent left belongs to nobody, unless it is adopted: then its record is written
 * again, else it says so. */
static void forget_contents(struct cold_pool *pool)
{
    uint32_t n_unknown = 0, last = 0;

    for (uint32_t s = 0; s < pool->layout.n_stripes; s++) {
        uint32_t owner = pool->directory->stripes[s].sequence;
        if (owner == POOL_NO_OWNER)
            continue;
        n_unknown += owner == POOL_UNKNOWN_OWNER;
        last = owner == POOL_UNKNOWN_OWNER ? s : last;
        pool_stripe_free(pool->directory, s);
        cold_mark_dirty(pool, s);
    }
    if (n_unknown)
        log_warn("%u records of the cold pool's directory cannot be used, the last is %u: nothing "
                 "depends on them, they are written anew",
                 n_unknown, last);
}

int cold_pool_open(struct cold_pool **out, const struct cold_pool_config *config,
                   struct hill_why *why)
{
    struct cold_pool *pool = calloc(1, sizeof *pool);
    struct csd_options options = config->options;

    *out = NULL;
    if (!pool)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the cold pool");
    pool->n_sequences = config->n_sequences;
    int status = pool_layout_with_keys(&pool->layout, &config->geometry, config->key_bytes,
                                       config->cap_bytes, why);
    if (status == 0)
        status = csd_drive_open(&pool->drive, config->url, &options, why);
    if (status == 0)
        status = open_directory(pool, config, why);
    if (status == 0)
        status = csd_drive_prepare(pool->drive, &pool->layout, why);
    if (status == 0)
        status = allocate(pool, why);
    if (status != 0) {
        cold_pool_close(pool);
        return status;
    }
    forget_contents(pool);
    *out = pool;
    return 0;
}

static void write_directory_back(struct cold_pool *pool)
{
    struct hill_why why = {""};
    int status = 1;

    while (pool->n_dirty > 0 && status > 0)
        status = cold_pool_write_directory(pool, &why);
    if (status < 0)
        log_warn("the cold pool's directory was not written back: %s", why.text);
}

void cold_pool_close(struct cold_pool *pool)
{
    if (!pool)
        return;
    if (pool->drive)
        cold_pool_drop_ahead(pool);
    if (pool->n_dirty > 0)
        write_directory_back(pool);
    for (uint32_t s = 0; pool->stripes && s < pool->layout.n_stripes; s++)
        cold_stripe_destroy(pool->stripes[s]);
    for (uint64_t o = 0;
         pool->owners && o < (uint64_t)pool->n_sequences * pool->layout.geometry.n_layers; o++)
        free(pool->owners[o].stripes);
    free(pool->stripes);
    free(pool->owners);
    free(pool->dirty);
    free(pool->is_dirty);
    free(pool->spans[0].spans);
    free(pool->spans[1].spans);
    free(pool->pages);
    free(pool->extents);
    if (pool->drive) {
        if (pool->bounce)
            csd_drive_release(pool->drive, pool->bounce);
        if (pool->fetches[1].memory)
            csd_drive_release(pool->drive, pool->fetches[1].memory);
        if (pool->directory_pages)
            csd_drive_release(pool->drive, pool->directory_pages);
    }
    pool_close(pool->directory);
    csd_drive_close(pool->drive);
    free(pool);
}
