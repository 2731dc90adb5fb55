/* hillctl/probe.c - see probe.h. */
#include "hillctl/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <liburing.h>

#include "base/huge_pages.h"

#define BLOCK_BYTES 4096u
#define HUGE_BYTES  (UINT64_C(8) << 20)

int probe_open_scrap(const char *folder, bool direct, struct hill_why *why)
{
    char path[4096 + 32];
    snprintf(path, sizeof path, "%.4095s/doctor-XXXXXX", folder);
    int fd = mkostemp(path, O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (fd < 0)
        return hill_fail(why, hill_from_errno(errno), "%s", strerror(errno));
    unlink(path);
    return fd;
}

/* One transfer; the bytes or a negative errno. */
static int transfer(struct io_uring *ring, int fd, void *block, bool writes)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    struct __kernel_timespec patience = {.tv_sec = 5};
    struct io_uring_cqe *cqe;
    if (writes)
        io_uring_prep_write(sqe, fd, block, BLOCK_BYTES, 0);
    else
        io_uring_prep_read(sqe, fd, block, BLOCK_BYTES, 0);
    int status = io_uring_submit_and_wait_timeout(ring, &cqe, 1, &patience, NULL);
    if (status < 0)
        return status;
    status = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return status;
}

int probe_io_uring(int fd, struct hill_why *why)
{
    struct io_uring ring;
    uint8_t *blocks = aligned_alloc(BLOCK_BYTES, 2 * BLOCK_BYTES); /* O_DIRECT wants it aligned */
    if (!blocks)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    memset(blocks, 0x5a, BLOCK_BYTES);
    memset(blocks + BLOCK_BYTES, 0, BLOCK_BYTES);
    int status = io_uring_queue_init(2, &ring, 0);
    bool open = status == 0;
    if (open && !(ring.features & IORING_FEAT_EXT_ARG))
        status = -ENOSYS; /* before Linux 5.11: no wait with a deadline */
    if (status == 0)
        status = transfer(&ring, fd, blocks, true);
    if (status == (int)BLOCK_BYTES)
        status = transfer(&ring, fd, blocks + BLOCK_BYTES, false);
    if (open)
        io_uring_queue_exit(&ring);
    bool same = memcmp(blocks, blocks + BLOCK_BYTES, BLOCK_BYTES) == 0;
    free(blocks);
    if (status != (int)BLOCK_BYTES || !same)
        return hill_fail(why, status < 0 ? hill_from_errno(-status) : HILL_E_IO, "%s",
                         status < 0 ? strerror(-status) : "what was read is not what was written");
    return 0;
}

int probe_huge_pages(uint64_t *huge_bytes, uint64_t *bytes, struct hill_why *why)
{
    char name[64];
    *bytes = HUGE_BYTES;
    *huge_bytes = 0;
    snprintf(name, sizeof name, "/hill-doctor-%d", (int)getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return hill_fail(why, hill_from_errno(errno), "%s", strerror(errno));
    shm_unlink(name);
    /* no posix_fallocate, which would take small pages before the advice; so look for room first */
    struct statvfs room;
    int code = fstatvfs(fd, &room) || ftruncate(fd, (off_t)HUGE_BYTES) ? errno : 0;
    if (!code && (uint64_t)room.f_bavail * room.f_frsize < 2 * HUGE_BYTES)
        code = ENOSPC;
    void *base =
        code ? MAP_FAILED : mmap(NULL, HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!code && base == MAP_FAILED)
        code = errno;
    close(fd);
    if (code)
        return hill_fail(why, hill_from_errno(code), "%s", strerror(code));
    madvise(base, HUGE_BYTES, MADV_HUGEPAGE); /* refused: then none will be counted */
    memset(base, 1, HUGE_BYTES);
    *huge_bytes = huge_pages_mapped(base);
    munmap(base, HUGE_BYTES);
    return 0;
}
