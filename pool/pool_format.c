/*
 * pool/pool_format.c - makes an empty cold pool: reserves its space, writes directory and
 * superblock.
 *
 * Order: a mark, in the place of the superblock, and a flush; space reserved; the directory, and a
 * flush; the superblock, and a flush. The mark is a superblock that says `being_formatted`. It has
 * the pool's magic, so that a file or device on which a format was cut short (a kill, power that
 * goes) is known as ours, and its uuid and generation, which the next format goes on from. Mark and
 * superblock are zeros beyond their first sector: that one replaces what was there, or does not.
 * Who calls it: the agent, which has seen before that nobody's data is here. Failure:
 * HILL_E_NOSPACE names the bytes; a file that could not be formatted is cut to 0 bytes. A block
 * device is never cut, only checked to be large enough.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "pool/pool_disk.h"

#include "base/fault.h"

#define CHUNK_BYTES (1u << 20)

static int no_space(struct hill_why *why, uint64_t needed, uint64_t available)
{
    return hill_fail(why, HILL_E_NOSPACE, "no room for the cold pool: %llu bytes needed, %llu free",
                     (unsigned long long)needed, (unsigned long long)available);
}

/* What the file system has for this file, its own blocks included; asking costs less than a failing
 * fallocate. */
static int free_bytes(int fd, const struct stat *info, uint64_t *bytes, struct hill_why *why)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0) {
        int err = errno;
        return hill_fail(why, hill_from_errno(err),
                         "asking for the free space of the cold pool: %s", strerror(err));
    }
    /* no blocks at all: a file system without a limit of its own (memfd, tmpfs with size=0) */
    *bytes = fs.f_blocks == 0
                 ? UINT64_MAX
                 : (uint64_t)fs.f_bavail * fs.f_frsize + (uint64_t)info->st_blocks * 512;
    return 0;
}

/* HILL_E_NOSPACE while nothing has been written. available: what there is. */
static int check_room(int fd, const struct stat *info, uint64_t total, uint64_t *available,
                      struct hill_why *why)
{
    int rc = S_ISREG(info->st_mode) ? free_bytes(fd, info, available, why)
                                    : pool_file_bytes(fd, available, why);
    return rc == 0 && *available < total ? no_space(why, total, *available) : rc;
}

/* Where fallocate is not supported: writing is the only way to own the space. The mark stays. */
static int reserve_by_writing(int fd, uint64_t total, struct hill_why *why)
{
    void *zeros = pool_page_alloc(CHUNK_BYTES);
    int rc = zeros != NULL ? 0 : hill_fail(why, HILL_E_NOMEM, "no memory to format the cold pool");
    for (uint64_t at = POOL_PAGE_BYTES; rc == 0 && at < total; at += CHUNK_BYTES)
        rc = pool_write_all(fd, zeros, total - at < CHUNK_BYTES ? total - at : CHUNK_BYTES, at,
                            "space", why);
    free(zeros);
    return rc;
}

static int reserve_file(int fd, const struct stat *info, uint64_t total, uint64_t available,
                        struct hill_why *why)
{
    int err;
    if ((uint64_t)info->st_size > total && ftruncate(fd, (off_t)total) != 0)
        goto failed;
    while (fallocate(fd, 0, 0, (off_t)total) != 0) {
        if (errno == EOPNOTSUPP)
            return reserve_by_writing(fd, total, why);
        if (errno != EINTR)
            goto failed;
    }
    return 0;

failed:
    err = errno;
    if (err == ENOSPC || err == EFBIG || err == EDQUOT)
        return no_space(why, total, available);
    return hill_fail(why, hill_from_errno(err), "reserving %llu bytes for the cold pool: %s",
                     (unsigned long long)total, strerror(err));
}

struct pool_birth {
    uint64_t generation;
    uint8_t uuid[POOL_UUID_BYTES];
};

/* A uuid of random bits (version 4). HILL_E_IO: there are none. */
static int draw_uuid(uint8_t uuid[POOL_UUID_BYTES], struct hill_why *why)
{
    if (getrandom(uuid, POOL_UUID_BYTES, 0) != (ssize_t)POOL_UUID_BYTES)
        return hill_fail(why, HILL_E_IO, "no random number for a cold pool");
    uuid[6] = (uint8_t)(0x40 | (uuid[6] & 15));
    uuid[8] = (uint8_t)(0x80 | (uuid[8] & 63));
    return 0;
}

/* Of a whole superblock or mark that is there: its uuid, and the generation after its own; else 1
 * and a new uuid. */
static int next_birth(int fd, struct pool_superblock *page, struct pool_birth *out,
                      struct hill_why *why)
{
    if (pool_read_all(fd, page, sizeof(*page), 0, "superblock", NULL) != 0 ||
        page->magic != POOL_MAGIC || page->checksum != pool_sealed_checksum(page, sizeof(*page)))
        page->generation = page->version = 0;
    out->generation = page->generation + 1;
    if (page->version != POOL_VERSION)
        return draw_uuid(out->uuid, why);
    memcpy(out->uuid, page->uuid, sizeof out->uuid);
    return 0;
}

static int write_empty_directory(int fd, const struct pool_layout *l, uint64_t generation,
                                 struct hill_why *why)
{
    uint64_t each = l->directory_record_bytes;
    uint32_t batch = CHUNK_BYTES / each > 0 ? (uint32_t)(CHUNK_BYTES / each) : 1;
    const struct pool_stripe empty = {.sequence = POOL_NO_OWNER, .layer = POOL_NO_OWNER};
    uint8_t *records = pool_page_alloc(batch * each);
    if (records == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory to format the cold pool");
    int rc = 0;
    for (uint32_t first = 0; rc == 0 && first < l->n_stripes; first += batch) {
        uint32_t n = l->n_stripes - first < batch ? l->n_stripes - first : batch;
        for (uint32_t i = 0; i < n; i++)
            pool_record_encode(l, generation, first + i, &empty, records + i * each);
        rc = pool_write_all(fd, records, n * each, l->directory_offset + first * each, "directory",
                            why);
    }
    free(records);
    return rc;
}

static int flush(int fd, struct hill_why *why)
{
    if (fsync(fd) == 0)
        return 0;
    int err = errno;
    return hill_fail(why, hill_from_errno(err), "flushing the cold pool: %s", strerror(err));
}

/* What a mark and a superblock have in common. */
static void fill_birth(struct pool_superblock *page, const struct pool_birth *birth)
{
    memset(page, 0, sizeof(*page));
    page->magic = POOL_MAGIC;
    page->version = POOL_VERSION;
    page->generation = birth->generation;
    memcpy(page->uuid, birth->uuid, sizeof page->uuid);
}

static int write_first_page(int fd, struct pool_superblock *page, struct hill_why *why)
{
    page->checksum = pool_sealed_checksum(page, sizeof(*page));
    return pool_write_all(fd, page, sizeof(*page), 0, "superblock", why);
}

static int write_mark(int fd, struct pool_superblock *page, const struct pool_birth *birth,
                      struct hill_why *why)
{
    fill_birth(page, birth);
    page->being_formatted = 1;
    int rc = write_first_page(fd, page, why);
    return rc == 0 ? flush(fd, why) : rc;
}

static void fill_superblock(struct pool_superblock *page, const struct pool_layout *l,
                            uint64_t fingerprint, const struct pool_birth *birth)
{
    fill_birth(page, birth);
    page->stripe_slots = l->stripe_slots;
    page->fingerprint = fingerprint;
    page->n_layers = l->geometry.n_layers;
    page->n_heads = l->geometry.n_heads;
    page->n_kv_heads = l->geometry.n_kv_heads;
    page->head_dim = l->geometry.head_dim;
    page->n_stripes = l->n_stripes;
    page->key_bytes = l->key_bytes;
    page->key_stripe_bytes = l->key_stripe_bytes;
    page->key_offset = l->key_offset;
    page->digest_bits = kv_digest_bits(&l->geometry);
    page->digest_stripe_bytes = l->digest_stripe_bytes;
    page->entry_stripe_bytes = l->entry_stripe_bytes;
    page->directory_record_bytes = l->directory_record_bytes;
    page->directory_offset = l->directory_offset;
    page->digest_offset = l->digest_offset;
    page->entry_offset = l->entry_offset;
    page->total_bytes = l->total_bytes;
}

static int write_pool(int fd, const struct stat *info, const struct pool_layout *l,
                      uint64_t fingerprint, struct pool_superblock *page, struct hill_why *why)
{
    struct pool_birth birth;
    uint64_t available = 0;
    int rc = next_birth(fd, page, &birth, why);
    if (rc == 0)
        rc = check_room(fd, info, l->total_bytes, &available, why);
    if (rc == 0)
        rc = write_mark(fd, page, &birth, why);
    if (rc != 0)
        return rc;
    FAULT_POINT(csd_agent, format, begun);
    if (S_ISREG(info->st_mode))
        rc = reserve_file(fd, info, l->total_bytes, available, why);
    if (rc == 0)
        rc = write_empty_directory(fd, l, birth.generation, why);
    if (rc == 0)
        rc = flush(fd, why);
    if (rc != 0)
        return rc;
    fill_superblock(page, l, fingerprint, &birth);
    rc = write_first_page(fd, page, why);
    FAULT_POINT(csd_agent, format, done);
    return rc == 0 ? flush(fd, why) : rc;
}

int pool_format(int fd, const struct pool_layout *layout, uint64_t fingerprint,
                struct hill_why *why)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        int err = errno;
        return hill_fail(why, hill_from_errno(err), "looking at the cold pool: %s", strerror(err));
    }
    struct pool_superblock *page = pool_page_alloc(sizeof(*page));
    if (page == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory to format the cold pool");
    int rc = write_pool(fd, &info, layout, fingerprint, page, why);
    if (rc != 0 && S_ISREG(info.st_mode) && ftruncate(fd, 0) != 0 && why != NULL) {
        size_t used = strlen(why->text); /* the first failure stays the one that is told */
        static const char also[] = "; its space could not be given back";
        if (used + sizeof(also) <= sizeof(why->text))
            memcpy(why->text + used, also, sizeof(also));
    }
    free(page);
    return rc;
}
