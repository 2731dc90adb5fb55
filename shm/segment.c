/*
 * shm/segment.c - see segment.h.
 */
#include "shm/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/huge_pages.h"
#include "base/process.h"

#define SHM_FOLDER "/dev/shm" /* where the C library's shm_open keeps its names */

void shm_segment_name(char *name, uint64_t run_id, uint32_t epoch, const char *what)
{
    if (strlen(what) > 40 || strchr(what, '/'))
        name[0] = '\0';
    else
        snprintf(name, SHM_NAME_BYTES, "/hill-%016" PRIx64 "-%" PRIu32 "-%s", run_id, epoch, what);
}

static int check_name(const char *name, struct hill_why *why)
{
    size_t length = strnlen(name, SHM_NAME_BYTES);
    if (name[0] == '/' && length > 1 && length < SHM_NAME_BYTES && !strchr(name + 1, '/'))
        return 0;
    return hill_fail(why, HILL_E_INVALID, "open segment '%.80s': not a segment name", name);
}

static int fail_errno(struct hill_why *why, const char *attempt, const char *name, int err)
{
    return hill_fail(why, hill_from_errno(err), "%s segment %s: %s", attempt, name, strerror(err));
}

/* ---- create ----------------------------------------------------------------------------- */

/* Give the file its size in real pages: later there is no SIGBUS for want of memory. */
static int allocate(int fd, const char *name, uint64_t total_bytes, struct hill_why *why)
{
    int err;
    do
        err = posix_fallocate(fd, 0, (off_t)total_bytes);
    while (err == EINTR);
    if (!err)
        return 0;
    /* tmpfs answers EINVAL or EFBIG, not ENOSPC, to sizes beyond what it can ever count */
    int code = err == EINVAL || err == ENOMEM ? HILL_E_NOSPACE : hill_from_errno(err);
    return hill_fail(why, code, "allocate %" PRIu64 " bytes for segment %s: %s", total_bytes, name,
                     strerror(err));
}

static int map(struct shm_segment *segment, int fd, const char *name, uint64_t total_bytes,
               int protection, struct hill_why *why)
{
    void *base = mmap(NULL, total_bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return fail_errno(why, "map", name, errno);
    segment->base = base;
    segment->total_bytes = total_bytes;
    snprintf(segment->name, sizeof segment->name, "%s", name);
    return 0;
}

static void publish(const struct shm_segment *segment, uint64_t fingerprint, uint32_t epoch)
{
    struct shm_segment_header *header = segment->base;
    int32_t pid = (int32_t)getpid();
    header->layout_version = SHM_LAYOUT_VERSION;
    header->total_bytes = segment->total_bytes;
    header->fingerprint = fingerprint;
    header->creator_start = process_start_time(pid);
    header->creator_pid = pid;
    header->epoch = epoch;
    /* release: the header is complete when magic is seen; pairs with the acquire in attach */
    atomic_store_explicit(&header->magic, SHM_SEGMENT_MAGIC, memory_order_release);
}

/* Is there room for what the file lacks, and `leave` beside it? */
static int check_room(int fd, const char *name, uint64_t bytes, uint64_t leave,
                      struct hill_why *why)
{
    struct statvfs folder;
    struct stat file;
    if (fstatvfs(fd, &folder) || fstat(fd, &file))
        return fail_errno(why, "examine", name, errno);
    uint64_t has = (uint64_t)file.st_blocks * 512, lacks = bytes > has ? bytes - has : 0;
    uint64_t room = (uint64_t)folder.f_bavail * folder.f_frsize;
    if (lacks == 0 || folder.f_blocks == 0 || (room >= lacks && room - lacks >= leave))
        return 0; /* no blocks: /dev/shm has no limit */
    return hill_fail(why, HILL_E_NOSPACE,
                     "segment %s: %" PRIu64 " MiB more, and %" PRIu64 " MiB for others, of %" PRIu64
                     " MiB that are free",
                     name, lacks >> 20, leave >> 20, room >> 20);
}

/* Huge pages for the first bytes, as far as the machine gives them: the advice is the mapping's, so
 * pages are taken through it. posix_fallocate knows no advice and takes small ones. Best effort:
 * allocate() does the rest and says what is lacking. */
static void take_huge_pages(const struct shm_segment *segment, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14: where memory is lacking it fails, without a SIGBUS */
    if (bytes >= HUGE_PAGE_BYTES &&
        madvise(segment->base, segment->total_bytes, MADV_HUGEPAGE) == 0)
        (void)madvise(segment->base, bytes, MADV_POPULATE_WRITE);
#else
    (void)segment;
    (void)bytes;
#endif
}

/* allocated: of the payload's bytes; the others are there when they have been filled. */
static int create(struct shm_segment *segment, const char *name, uint64_t payload_bytes,
                  uint64_t allocated, uint64_t fingerprint, uint32_t epoch, struct hill_why *why)
{
    memset(segment, 0, sizeof *segment);
    int rc = check_name(name, why);
    if (rc)
        return rc;
    if (payload_bytes > (uint64_t)INT64_MAX - SHM_HEADER_BYTES)
        return hill_fail(why, HILL_E_NOSPACE, "create segment %s: %" PRIu64 " bytes are too many",
                         name, payload_bytes);
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return hill_fail(why, HILL_E_BUSY, "create segment %s: it exists", name);
    if (fd < 0)
        return fail_errno(why, "create", name, errno);
    rc = check_room(fd, name, allocated + SHM_HEADER_BYTES, 0, why);
    if (!rc && ftruncate(fd, (off_t)(payload_bytes + SHM_HEADER_BYTES)))
        rc = fail_errno(why, "size", name, errno);
    if (!rc)
        rc = map(segment, fd, name, payload_bytes + SHM_HEADER_BYTES, PROT_READ | PROT_WRITE, why);
    if (!rc) {
        take_huge_pages(segment, allocated + SHM_HEADER_BYTES);
        rc = allocate(fd, name, allocated + SHM_HEADER_BYTES, why);
    }
    close(fd);
    if (rc) {
        shm_segment_detach(segment);
        shm_unlink(name);
    } else
        publish(segment, fingerprint, epoch);
    return rc;
}

int shm_segment_create(struct shm_segment *segment, const char *name, uint64_t payload_bytes,
                       uint64_t fingerprint, uint32_t epoch, struct hill_why *why)
{
    return create(segment, name, payload_bytes, payload_bytes, fingerprint, epoch, why);
}

int shm_segment_create_empty(struct shm_segment *segment, const char *name, uint64_t payload_bytes,
                             uint64_t fingerprint, uint32_t epoch, struct hill_why *why)
{
    uint64_t first = payload_bytes < SHM_HEADER_BYTES ? payload_bytes : SHM_HEADER_BYTES;
    return create(segment, name, payload_bytes, first, fingerprint, epoch, why);
}

int shm_segment_fill(const struct shm_segment *segment, uint64_t payload_bytes, uint64_t leave,
                     struct hill_why *why)
{
    uint64_t bytes = payload_bytes + SHM_HEADER_BYTES;
    if (payload_bytes > segment->total_bytes || bytes > segment->total_bytes)
        return hill_fail(why, HILL_E_NOSPACE, "segment %s: %" PRIu64 " bytes of %" PRIu64,
                         segment->name, bytes, segment->total_bytes);
    int fd = shm_open(segment->name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return fail_errno(why, "open", segment->name, errno);
    int rc = check_room(fd, segment->name, bytes, leave, why);
    if (!rc)
        rc = allocate(fd, segment->name, bytes, why);
    close(fd);
    return rc;
}

/* ---- attach ----------------------------------------------------------------------------- */

/* The mapped header against the file's size and what the caller expects. */
static int check_header(const struct shm_segment *segment, uint64_t fingerprint, uint32_t epoch,
                        struct hill_why *why)
{
    const struct shm_segment_header *header = segment->base;
    const char *name = segment->name;
    /* acquire: pairs with the release in publish; the other fields are there */
    uint32_t magic = atomic_load_explicit(&header->magic, memory_order_acquire);
    if (magic != SHM_SEGMENT_MAGIC)
        return hill_fail(why, HILL_E_DAMAGED, "attach segment %s: magic %08" PRIx32 " is wrong",
                         name, magic);
    /* the version before anything whose place may depend on it */
    if (header->layout_version != SHM_LAYOUT_VERSION)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "attach segment %s: layout version %" PRIu32 ", this build has %u", name,
                         header->layout_version, SHM_LAYOUT_VERSION);
    if (header->total_bytes != segment->total_bytes)
        return hill_fail(why, HILL_E_DAMAGED,
                         "attach segment %s: %" PRIu64 " bytes there, %" PRIu64 " expected", name,
                         segment->total_bytes, header->total_bytes);
    if (header->fingerprint != fingerprint)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "attach segment %s: fingerprint %016" PRIx64
                         ", this process has %016" PRIx64,
                         name, header->fingerprint, fingerprint);
    if (header->epoch != epoch)
        return hill_fail(why, HILL_E_DAMAGED,
                         "attach segment %s: epoch %" PRIu32 ", expected %" PRIu32, name,
                         header->epoch, epoch);
    return 0;
}

static int map_existing(struct shm_segment *segment, int fd, const char *name, int protection,
                        struct hill_why *why)
{
    struct stat st;
    if (fstat(fd, &st))
        return fail_errno(why, "examine", name, errno);
    if (st.st_uid != geteuid() || (st.st_mode & 077)) /* a name may be taken when it is free */
        return hill_fail(why, HILL_E_PERMISSION,
                         "attach segment %s: it is another user's, or open to others", name);
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)SHM_HEADER_BYTES)
        return hill_fail(why, HILL_E_DAMAGED, "attach segment %s: too short for a header", name);
    return map(segment, fd, name, (uint64_t)st.st_size, protection, why);
}

static int attach(struct shm_segment *segment, const char *name, uint64_t fingerprint,
                  uint32_t epoch, int protection, struct hill_why *why)
{
    memset(segment, 0, sizeof *segment);
    int rc = check_name(name, why);
    if (rc)
        return rc;
    int fd = shm_open(name, (protection & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC, 0);
    if (fd < 0 && errno == ENOENT)
        return hill_fail(why, HILL_E_PEER_GONE, "attach segment %s: it has been removed", name);
    if (fd < 0)
        return fail_errno(why, "attach", name, errno);
    rc = map_existing(segment, fd, name, protection, why);
    close(fd);
    if (!rc)
        rc = check_header(segment, fingerprint, epoch, why);
    if (rc)
        shm_segment_detach(segment);
    return rc;
}

int shm_segment_attach(struct shm_segment *segment, const char *name, uint64_t fingerprint,
                       uint32_t epoch, struct hill_why *why)
{
    return attach(segment, name, fingerprint, epoch, PROT_READ | PROT_WRITE, why);
}

int shm_segment_attach_to_read(struct shm_segment *segment, const char *name, uint64_t fingerprint,
                               uint32_t epoch, struct hill_why *why)
{
    return attach(segment, name, fingerprint, epoch, PROT_READ, why);
}

int shm_segment_private(struct shm_segment *segment, uint64_t payload_bytes, struct hill_why *why)
{
    memset(segment, 0, sizeof *segment);
    if (payload_bytes == 0 || payload_bytes > INT64_MAX - SHM_HEADER_BYTES)
        return hill_fail(why, HILL_E_INVALID, "private memory of %" PRIu64 " bytes", payload_bytes);
    void *base = mmap(NULL, SHM_HEADER_BYTES + payload_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return hill_fail(why, HILL_E_NOMEM, "no private memory of %" PRIu64 " bytes",
                         payload_bytes);
    segment->base = base;
    segment->total_bytes = SHM_HEADER_BYTES + payload_bytes;
    return 0;
}

void *shm_segment_payload(const struct shm_segment *segment)
{
    return (uint8_t *)segment->base + SHM_HEADER_BYTES;
}

uint64_t shm_segment_payload_bytes(const struct shm_segment *segment)
{
    return segment->total_bytes - SHM_HEADER_BYTES;
}

/* Spread the pages over the nodes of a machine with several: no core has them all far away. */
static bool interleave(const struct shm_segment *segment)
{
    if (numa_available() < 0 || numa_num_configured_nodes() < 2)
        return false;
    /* MOVE, because creation has already allocated the pages on one node */
    return mbind(segment->base, segment->total_bytes, MPOL_INTERLEAVE, numa_all_nodes_ptr->maskp,
                 numa_all_nodes_ptr->size + 1, MPOL_MF_MOVE) == 0;
}

int shm_segment_place(const struct shm_segment *segment)
{
    int done = 0;
    if (madvise(segment->base, segment->total_bytes, MADV_HUGEPAGE) == 0)
        done |= 1;
    if (interleave(segment))
        done |= 2;
    return done;
}

void shm_segment_detach(struct shm_segment *segment)
{
    if (segment->base)
        munmap(segment->base, segment->total_bytes);
    memset(segment, 0, sizeof *segment);
}

/* ---- remove ----------------------------------------------------------------------------- */

int shm_segment_unlink(const char *name)
{
    if (shm_unlink(name) == 0 || errno == ENOENT)
        return 0;
    return hill_from_errno(errno);
}

uint64_t shm_segment_held(const char *name)
{
    struct stat st;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    uint64_t bytes = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    close(fd);
    return bytes;
}

/* 1: nobody living stands behind the segment, or it is damaged; 0: keep it; or a negative code,
 * when it could not be looked at (which is no reason to remove it). */
static int is_stale(const char *name)
{
    struct shm_segment_header header;
    struct stat st;
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return errno == ENOENT ? 0 : hill_from_errno(errno);
    bool whole = fstat(fd, &st) == 0 && st.st_size >= (off_t)SHM_HEADER_BYTES &&
                 pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header;
    close(fd);
    /* relaxed: a private copy */
    return !whole ||
           atomic_load_explicit(&header.magic, memory_order_relaxed) != SHM_SEGMENT_MAGIC ||
           header.total_bytes != (uint64_t)st.st_size ||
           !process_alive(header.creator_pid, header.creator_start);
}

int shm_segment_reap(uint64_t run_id, uint32_t keep_epoch)
{
    char prefix[32], kept[48], name[SHM_NAME_BYTES];
    int length = snprintf(prefix, sizeof prefix, "hill-%016" PRIx64 "-", run_id);
    int kept_length = snprintf(kept, sizeof kept, "%s%u-", prefix, keep_epoch);
    DIR *folder = opendir(SHM_FOLDER);
    if (!folder)
        return hill_from_errno(errno);
    int removed = 0, failed = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0 ||
            strlen(entry->d_name) + 2 > sizeof name ||
            (keep_epoch && strncmp(entry->d_name, kept, (size_t)kept_length) == 0))
            continue;
        snprintf(name, sizeof name, "/%.*s", SHM_NAME_BYTES - 2, entry->d_name);
        int rc = is_stale(name);
        if (rc > 0) {
            rc = shm_segment_unlink(name);
            removed += rc == 0;
        }
        if (rc < 0)
            failed = rc;
    }
    closedir(folder);
    return failed ? failed : removed;
}
