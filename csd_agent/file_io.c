/*
 * csd_agent/file_io.c - O_DIRECT transfers through io_uring, with fallbacks; see file_io.h.
 */
#include "csd_agent/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#define SLOW_MS 5000 /* a transfer unanswered for so long is worth a line */
#define LOCK_MS 2000 /* what an agent that was killed has left under way holds its lock */

/* A piece of an extent that is in flight or waits to be submitted again. */
struct piece {
    uint64_t offset;
    uint8_t *memory;
    uint32_t bytes, job;
    bool write;
    bool said;          /* that it is refused */
    int64_t refused_ns; /* since when; 0: it is not */
};

/* Iterates over extents in pieces. */
struct cursor {
    const struct csd_extent *extents;
    size_t n, index;
    uint64_t done; /* of extents[index] */
};

struct job {
    struct cursor cursor;
    uint32_t in_flight; /* pieces */
    int result;         /* of its first failure */
    bool started;
    struct hill_why why;
};

struct file_io {
    int fd;
    bool direct, uring, dead;
    bool memory;  /* the file lies in it: reads are copies */
    uint8_t *map; /* [mapped] of the file then, as long as it was when it was mapped; or NULL */
    uint64_t mapped;
    char *created;                       /* path of a file that was not there before, else NULL */
    struct io_uring *ring, own;          /* the ring: its own, or the prepared one */
    struct iovec pinned[FILE_IO_PINNED]; /* as the ring has them registered */
    uint32_t n_pinned;
    struct piece pieces[FILE_IO_DEPTH]; /* by the index that user_data carries */
    uint32_t free_pieces[FILE_IO_DEPTH];
    uint32_t n_free;
    struct job jobs[FILE_IO_JOBS + 1]; /* the last is file_io_run's */
    uint32_t order[FILE_IO_JOBS + 1];  /* started jobs, oldest first */
    uint32_t n_started;
    uint32_t n_failed;  /* jobs in a row, reads of the first page included */
    int64_t failing_ns; /* since when */
};

/* file_io_prepare's ring. */
static struct io_uring prepared;
static enum { NOT_PREPARED, PREPARED, IN_USE } prepared_state;
static int prepared_error; /* why it is not to be had, negative */

/* liburing has calls for these two, which some versions of its shared library lack. */
static int tell_ring(const struct io_uring *ring, unsigned what, const void *items, unsigned n)
{
    return syscall(SYS_io_uring_register, ring->ring_fd, what, items, n) == 0 ? 0 : -errno;
}

/* One that takes what prepare_piece and file_io_pin ask for, and nothing else. */
static int make_ring(struct io_uring *ring)
{
    const struct io_uring_restriction allowed[] = {
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ},
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED},
        {.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_BUFFERS},
        {.opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_UNREGISTER_BUFFERS},
    };
    int status = io_uring_queue_init(FILE_IO_DEPTH, ring, IORING_SETUP_R_DISABLED);

    if (status != 0)
        return status;
    if (!(ring->features & IORING_FEAT_EXT_ARG))
        status = -ENOSYS; /* before Linux 5.11: no wait with a deadline */
    if (status == 0)
        status = tell_ring(ring, IORING_REGISTER_RESTRICTIONS, allowed,
                           sizeof allowed / sizeof *allowed);
    if (status == 0)
        status = tell_ring(ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
    if (status != 0)
        io_uring_queue_exit(ring);
    return status;
}

void file_io_prepare(void)
{
    if (prepared_state != NOT_PREPARED)
        return;
    prepared_error = make_ring(&prepared);
    if (prepared_error == 0)
        prepared_state = PREPARED;
}

static int take_ring(struct file_io *io)
{
    if (prepared_error != 0)
        return prepared_error;
    io->ring = prepared_state == PREPARED ? &prepared : &io->own;
    if (io->ring == &io->own)
        return make_ring(io->ring);
    prepared_state = IN_USE;
    return 0;
}

/* Nothing is in flight, unless the file is dead: what still comes of it would be taken for what the
 * next file has asked for. */
static void give_ring(struct file_io *io)
{
    if (io->ring == &io->own) {
        io_uring_queue_exit(io->ring);
        return;
    }
    if (io->dead) {
        prepared_error = -EIO; /* later files do without */
        return;
    }
    if (io->n_pinned > 0)
        io_uring_unregister_buffers(io->ring);
    prepared_state = PREPARED;
}

/* Does a read work as the descriptor stands? Some file systems accept the flag and refuse the read.
 */
static bool direct_refused(int fd)
{
    void *page = aligned_alloc(CSD_ALIGN, CSD_ALIGN);
    if (!page)
        return true;
    bool refused = pread(fd, page, CSD_ALIGN, 0) < 0 && errno == EINVAL;
    free(page);
    return refused;
}

/* A drive that is not there: root could make a file of its name, in memory. */
static bool names_a_device(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 && strncmp(path, "/dev/shm/", 9) != 0;
}

/* open, remembering whether the file is new. */
static int open_or_create(struct file_io *io, const char *path, int flags, bool create)
{
    int fd = open(path, flags);

    if (fd >= 0 || errno != ENOENT || !create || names_a_device(path))
        return fd;
    fd = open(path, flags | O_CREAT | O_EXCL, 0600);
    if (fd >= 0)
        io->created = strdup(path);
    return fd;
}

static int open_file(struct file_io *io, const char *path, const struct csd_options *options,
                     struct hill_why *why)
{
    int flags = O_RDWR | O_CLOEXEC;

    io->fd = open_or_create(io, path, flags, options->create);
    if (io->fd < 0)
        return hill_fail(why, hill_from_errno(errno), "cannot open cold pool '%.300s': %s", path,
                         strerror(errno));
    /* now: some file systems refuse it in open when they have made the file */
    io->direct = !options->force_buffered && fcntl(io->fd, F_SETFL, O_DIRECT) == 0;
    if (io->direct && direct_refused(io->fd))
        io->direct = fcntl(io->fd, F_SETFL, 0) != 0;
    if (!io->direct)
        log_warn(
            "cold pool '%s': its file system refuses O_DIRECT; going on through the page cache",
            path);
    return 0;
}

/* 0 or errno. */
static int lock(int fd)
{
    int64_t deadline = clock_deadline_ms(LOCK_MS);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK || clock_now_ns() >= deadline)
            return errno;
        usleep(10000);
    }
    return 0;
}

/* May others put a file into the folder of this one? Where not, another owner is what the file
 * system makes of this user (vfat, NFS). */
static bool others_may_write(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    struct stat status;
    bool may = !folder || stat(folder, &status) != 0 || (status.st_mode & 022);

    free(folder);
    return may;
}

static int check_and_lock(struct file_io *io, const char *path, struct hill_why *why)
{
    struct stat status;

    if (fstat(io->fd, &status) != 0)
        return hill_fail(why, hill_from_errno(errno), "cannot look at cold pool '%.300s': %s", path,
                         strerror(errno));
    if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode))
        return hill_fail(why, HILL_E_INVALID,
                         "cannot use '%.300s' as cold pool: neither a file nor a block device",
                         path);
    if (S_ISREG(status.st_mode) && status.st_uid != geteuid() && others_may_write(path))
        return hill_fail(why, HILL_E_PERMISSION,
                         "cannot use '%.300s' as cold pool: it belongs to another user, who could "
                         "read what is put there",
                         path);
    int err = lock(io->fd);
    if (err)
        return hill_fail(why, err == EWOULDBLOCK ? HILL_E_BUSY : hill_from_errno(err),
                         "cannot lock cold pool '%.300s': %s", path,
                         err != EWOULDBLOCK ? strerror(err)
                                            : "another agent uses it; --state-dir DIR or --csd "
                                              "file:OTHER gives this one its own");
    return 0;
}

/* A file in memory: there is no drive to be kept busy, io_uring hands each of its reads to a thread
 * of the kernel, and a pread costs three times what copying a page does. Not a block device: the
 * file system of its node, which is a tmpfs too, says nothing about it. */
static bool in_memory(int fd)
{
    struct statfs status;
    struct stat info;

    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && fstatfs(fd, &status) == 0 &&
           status.f_type == TMPFS_MAGIC;
}

static void open_ring(struct file_io *io, const char *path, bool force_pread)
{
    io->memory = !force_pread && in_memory(io->fd);
    if (io->memory) {
        log_info("cold pool '%s' lies in memory: it is mapped", path);
        return;
    }
    int status = force_pread ? -ENOSYS : take_ring(io);

    io->uring = status == 0;
    if (!io->uring)
        log_warn("cold pool '%s': no io_uring (%s); going on with pread and pwrite", path,
                 strerror(-status));
    for (uint32_t i = 0; i < FILE_IO_DEPTH; i++)
        io->free_pieces[i] = i;
    io->n_free = FILE_IO_DEPTH;
}

int file_io_open(struct file_io **out, const char *path, const struct csd_options *options,
                 struct hill_why *why)
{
    *out = NULL;
    if (path[0] == '\0')
        return hill_fail(why, HILL_E_INVALID, "cannot open cold pool: no path after 'file:'");
    struct file_io *io = calloc(1, sizeof *io);
    if (!io)
        return hill_fail(why, HILL_E_NOMEM, "cannot open cold pool '%.300s': no memory", path);
    io->fd = -1;
    int status = open_file(io, path, options, why);
    if (status == 0)
        status = check_and_lock(io, path, why);
    if (status != 0) {
        file_io_close(io);
        return status;
    }
    open_ring(io, path, options->force_pread);
    *out = io;
    return 0;
}

void file_io_close(struct file_io *io)
{
    if (!io)
        return;
    if (io->uring)
        give_ring(io);
    if (io->map)
        munmap(io->map, io->mapped);
    struct stat status;
    if (io->created && io->fd >= 0 && fstat(io->fd, &status) == 0 && status.st_size == 0)
        unlink(io->created); /* nothing came of it: leave no empty file */
    if (io->fd >= 0)
        close(io->fd); /* drops the lock too */
    free(io->created);
    free(io);
}

int file_io_fd(const struct file_io *io)
{
    return io->fd;
}

bool file_io_direct(const struct file_io *io)
{
    return io->direct;
}

void file_io_describe(const struct file_io *io, const char *device, char *text, size_t size)
{
    if (io->memory)
        snprintf(text, size, "%s, mapped from memory", device);
    else
        snprintf(text, size, "%s, %s, %s", device, io->uring ? "io_uring" : "pread",
                 io->direct ? "O_DIRECT" : "page cache");
}

bool file_io_dead(const struct file_io *io)
{
    return io->dead;
}

int file_io_lost(struct file_io *io, struct hill_why *why)
{
    struct hill_why said = {""};
    void *page = NULL;

    if (!io->dead && !io->memory && io->n_failed > 0)
        page = aligned_alloc(CSD_ALIGN, CSD_ALIGN);
    if (!page)
        return 0;
    if (!io->direct) /* what the page cache has of it says nothing */
        posix_fadvise(io->fd, 0, CSD_ALIGN, POSIX_FADV_DONTNEED);
    const struct csd_extent first = {.memory = page, .bytes = CSD_ALIGN};
    int status = file_io_run(io, &first, 1, &said);
    if (io->dead) /* its memory stays; the caller's next transfer says so */
        return 0;
    free(page);
    int64_t since_ns = clock_now_ns() - io->failing_ns;
    if (status == 0 || io->n_failed < FILE_IO_LOST_AFTER || since_ns < CLOCK_MS(FILE_IO_LOST_MS))
        return 0;
    return hill_fail(why, HILL_E_IO,
                     "%u transfers in a row have failed, and the cold pool's first page cannot be "
                     "read: %.300s",
                     io->n_failed, said.text);
}

static int transfer_failed(const struct piece *piece, int err, struct hill_why *why)
{
    return hill_fail(why, err ? hill_from_errno(err) : HILL_E_IO,
                     "cannot %s %u bytes at %llu of the cold pool: %s",
                     piece->write ? "write" : "read", piece->bytes,
                     (unsigned long long)piece->offset, err ? strerror(err) : "it ends early");
}

/* Take `done` bytes off the front. O_DIRECT goes on at an aligned place: a short transfer that ends
 * within a page is repeated from that page's start. */
static void piece_advance(struct piece *piece, uint32_t done)
{
    done &= ~(CSD_ALIGN - 1u);
    piece->offset += done;
    piece->memory += done;
    piece->bytes -= done;
    piece->said = false;
    piece->refused_ns = 0;
}

/* EAGAIN: the kernel is short of something. 0: it may be tried again, some time has gone by. */
static int try_later(struct file_io *io, struct piece *piece, struct hill_why *why)
{
    int64_t now = clock_now_ns();

    if (!piece->refused_ns)
        piece->refused_ns = now;
    if (now - piece->refused_ns >= CLOCK_MS(FILE_IO_DEADLINE_MS)) {
        io->dead = true;
        return hill_fail(why, HILL_E_TIMEOUT,
                         "the cold pool's drive has taken no transfer for %d s: %s",
                         FILE_IO_DEADLINE_MS / 1000, strerror(EAGAIN));
    }
    if (!piece->said && now - piece->refused_ns >= CLOCK_MS(SLOW_MS)) {
        log_warn("the cold pool's drive has not taken a transfer for %d s (%s); trying on",
                 SLOW_MS / 1000, strerror(EAGAIN));
        piece->said = true;
    }
    usleep(1000);
    return 0;
}

/* The map's first `end` bytes; NULL when it cannot be had or the file is shorter. The lock keeps
 * other agents off, and nobody else makes a pool shorter while it is in use. */
static const uint8_t *map_up_to(struct file_io *io, uint64_t end)
{
    struct stat status;

    if (end <= io->mapped)
        return io->map;
    if (fstat(io->fd, &status) != 0 || (uint64_t)status.st_size < end)
        return NULL;
    uint8_t *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, io->fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    if (io->map)
        munmap(io->map, io->mapped);
    io->map = map;
    io->mapped = (uint64_t)status.st_size;
    return map;
}

const uint8_t *file_io_view(struct file_io *io, uint64_t offset, uint64_t bytes)
{
    const uint8_t *map = io->memory ? map_up_to(io, offset + bytes) : NULL;
    return map ? map + offset : NULL;
}

static int run_piece_plain(struct file_io *io, struct piece *piece, struct hill_why *why)
{
    const uint8_t *from = piece->write ? NULL : file_io_view(io, piece->offset, piece->bytes);

    if (from) {
        memcpy(piece->memory, from, piece->bytes);
        return 0;
    }
    while (piece->bytes > 0) {
        ssize_t n = piece->write ? pwrite(io->fd, piece->memory, piece->bytes, (off_t)piece->offset)
                                 : pread(io->fd, piece->memory, piece->bytes, (off_t)piece->offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            int status = try_later(io, piece, why);
            if (status != 0)
                return status;
            continue;
        }
        if (n < (ssize_t)CSD_ALIGN)
            return transfer_failed(piece, n < 0 ? errno : 0, why);
        piece_advance(piece, (uint32_t)n);
    }
    return 0;
}

static bool has_more(struct cursor *cursor)
{
    while (cursor->index < cursor->n && cursor->done == cursor->extents[cursor->index].bytes) {
        cursor->index++;
        cursor->done = 0;
    }
    return cursor->index < cursor->n;
}

/* An extent is cut into pieces that are alike: of a mebibyte and a page none is a page. */
static bool next_piece(struct cursor *cursor, struct piece *out)
{
    if (!has_more(cursor))
        return false;
    const struct csd_extent *extent = &cursor->extents[cursor->index];
    uint64_t left = extent->bytes - cursor->done;
    uint64_t pieces = (left + FILE_IO_PIECE_BYTES - 1) / FILE_IO_PIECE_BYTES;
    out->offset = extent->offset + cursor->done;
    out->memory = (uint8_t *)extent->memory + cursor->done;
    out->bytes = (uint32_t)page_ceil(left / pieces);
    out->write = extent->write;
    out->said = false;
    out->refused_ns = 0;
    cursor->done += out->bytes;
    return true;
}

static int run_plain(struct file_io *io, struct cursor *cursor, struct hill_why *why)
{
    struct piece piece;
    int status = 0;

    while (status == 0 && next_piece(cursor, &piece))
        status = run_piece_plain(io, &piece, why);
    return status;
}

bool file_io_pin(struct file_io *io, uint8_t *const *memory, uint32_t n, uint64_t bytes)
{
    if (!io->uring || !io->direct || n > FILE_IO_PINNED)
        return false;
    for (uint32_t i = 0; i < n; i++)
        io->pinned[i] = (struct iovec){memory[i], bytes};
    int status = io_uring_register_buffers(io->ring, io->pinned, n);
    if (status == 0)
        io->n_pinned = n;
    else
        log_info("the cold pool's buffers are not pinned (%s; %llu MiB of locked memory, ulimit "
                 "-l): each read pins its pages anew",
                 strerror(-status), (unsigned long long)(n * bytes >> 20));
    return status == 0;
}

/* Which of the pinned ones the piece lies in; n_pinned: none. */
static uint32_t pinned_of(const struct file_io *io, const struct piece *piece)
{
    uint32_t i = 0;
    while (i < io->n_pinned && (piece->memory < (uint8_t *)io->pinned[i].iov_base ||
                                piece->memory + piece->bytes >
                                    (uint8_t *)io->pinned[i].iov_base + io->pinned[i].iov_len))
        i++;
    return i;
}

/* The submission queue is as long as the table of pieces, so there is always room. */
static void prepare_piece(struct file_io *io, uint32_t index)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(io->ring);
    const struct piece *piece = &io->pieces[index];
    uint32_t pinned = pinned_of(io, piece);

    if (!sqe)
        abort();
    if (!piece->write && pinned < io->n_pinned)
        io_uring_prep_read_fixed(sqe, io->fd, piece->memory, piece->bytes, piece->offset,
                                 (int)pinned);
    else if (piece->write)
        io_uring_prep_write(sqe, io->fd, piece->memory, piece->bytes, piece->offset);
    else
        io_uring_prep_read(sqe, io->fd, piece->memory, piece->bytes, piece->offset);
    io_uring_sqe_set_data64(sqe, index);
}

/* One completion: 0 when its piece is done (or to be tried again, *again), else the failure. */
static int reap(struct file_io *io, const struct io_uring_cqe *cqe, bool *again,
                struct hill_why *why)
{
    struct piece *piece = &io->pieces[io_uring_cqe_get_data64(cqe)];

    *again = false;
    if (piece->write ? FAULT_FAILS(write) : FAULT_FAILS(read))
        return transfer_failed(piece, piece->write ? ENOSPC : EIO, why);
    if (cqe->res == -EINTR || cqe->res == -EAGAIN) {
        int status = cqe->res == -EAGAIN ? try_later(io, piece, why) : 0;
        *again = status == 0;
        return status;
    }
    if (cqe->res < (int)CSD_ALIGN)
        return transfer_failed(piece, cqe->res < 0 ? -cqe->res : 0, why);
    piece_advance(piece, (uint32_t)cqe->res);
    *again = piece->bytes > 0;
    return 0;
}

/* Submit what is prepared and wait for one completion, saying so when the drive is slow. A failure
 * means that the file is dead to us: transfers may be in flight. */
static int submit_and_wait(struct file_io *io, struct io_uring_cqe **cqe, struct hill_why *why)
{
    struct __kernel_timespec slice = {.tv_sec = SLOW_MS / 1000};
    int64_t deadline = clock_deadline_ms(FILE_IO_DEADLINE_MS);

    for (;;) {
        int status = io_uring_submit_and_wait_timeout(io->ring, cqe, 1, &slice, NULL);
        if (io_uring_peek_cqe(io->ring, cqe) == 0)
            return 0;
        if (status == -EAGAIN || status == -EBUSY)
            usleep(1000); /* the kernel is short of something: submit again */
        else if (status < 0 && status != -EINTR && status != -ETIME) {
            io->dead = true;
            return hill_fail(why, hill_from_errno(-status), "io_uring failed: %s",
                             strerror(-status));
        }
        if (clock_now_ns() >= deadline) {
            io->dead = true;
            return hill_fail(why, HILL_E_TIMEOUT, "the cold pool's drive has not answered for %d s",
                             FILE_IO_DEADLINE_MS / 1000);
        }
        if (status == -ETIME)
            log_warn("the cold pool's drive has not answered for %d s; waiting on", SLOW_MS / 1000);
    }
}

/* Take all completions that are there. */
static void reap_all(struct file_io *io, struct io_uring_cqe *cqe)
{
    do {
        uint32_t index = (uint32_t)io_uring_cqe_get_data64(cqe);
        struct job *job = &io->jobs[io->pieces[index].job];
        bool again;
        int status = reap(io, cqe, &again, job->result == 0 ? &job->why : NULL);
        io_uring_cqe_seen(io->ring, cqe);
        if (job->result == 0)
            job->result = status;
        if (again && job->result == 0) {
            prepare_piece(io, index);
        } else {
            io->free_pieces[io->n_free++] = index;
            job->in_flight--;
        }
    } while (io_uring_peek_cqe(io->ring, &cqe) == 0);
}

/* Prepare as many pieces as the depth allows, of the oldest jobs first. */
static void prepare_jobs(struct file_io *io)
{
    for (uint32_t i = 0; i < io->n_started; i++) {
        uint32_t number = io->order[i];
        struct job *job = &io->jobs[number];
        while (io->n_free > 0 && job->result == 0) {
            uint32_t index = io->free_pieces[io->n_free - 1];
            if (!next_piece(&job->cursor, &io->pieces[index]))
                break;
            io->pieces[index].job = number;
            prepare_piece(io, index);
            io->n_free--;
            job->in_flight++;
        }
    }
}

static int finish_uring(struct file_io *io, struct job *job, struct hill_why *why)
{
    for (;;) {
        struct io_uring_cqe *cqe;
        prepare_jobs(io);
        /* pieces that are left without one in flight wait for those of other jobs */
        if (job->in_flight == 0 && (job->result != 0 || !has_more(&job->cursor)))
            return 0;
        int status = submit_and_wait(io, &cqe, why);
        if (status != 0)
            return status;
        reap_all(io, cqe);
    }
}

static int check_extents(const struct csd_extent *extents, size_t n_extents, struct hill_why *why)
{
    for (size_t i = 0; i < n_extents; i++)
        if (((extents[i].offset | extents[i].bytes | (uintptr_t)extents[i].memory) &
             (CSD_ALIGN - 1)) != 0)
            return hill_fail(why, HILL_E_INVALID, "transfer at %llu is not aligned",
                             (unsigned long long)extents[i].offset);
    return 0;
}

static int start_job(struct file_io *io, uint32_t number, const struct csd_extent *extents,
                     size_t n_extents, struct hill_why *why)
{
    struct job *job = &io->jobs[number];

    if (job->started)
        abort(); /* a bug: its extents would be forgotten */
    if (io->dead)
        return hill_fail(why, HILL_E_IO, "the cold pool's drive has stopped answering");
    int status = check_extents(extents, n_extents, why);
    if (status != 0)
        return status;
    *job = (struct job){.cursor = {.extents = extents, .n = n_extents}, .started = true};
    io->order[io->n_started++] = number;
    return 0;
}

static void forget_job(struct file_io *io, uint32_t number)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < io->n_started; i++)
        if (io->order[i] != number)
            io->order[kept++] = io->order[i];
    io->n_started = kept;
    io->jobs[number].started = false;
}

static int finish_job(struct file_io *io, uint32_t number, struct hill_why *why)
{
    struct job *job = &io->jobs[number];
    int status;

    if (!job->started)
        abort(); /* a bug */
    if (io->dead)
        status = hill_fail(why, HILL_E_IO, "the cold pool's drive has stopped answering");
    else
        status = io->uring ? finish_uring(io, job, why) : run_plain(io, &job->cursor, why);
    if (status == 0 && job->result != 0)
        status = hill_fail(why, job->result, "%s", job->why.text);
    if (status != 0 && io->n_failed++ == 0)
        io->failing_ns = clock_now_ns();
    else if (status == 0 && job->cursor.n > 0)
        io->n_failed = 0;
    forget_job(io, number);
    return status;
}

int file_io_start(struct file_io *io, uint32_t job, const struct csd_extent *extents,
                  size_t n_extents, struct hill_why *why)
{
    if (job >= FILE_IO_JOBS)
        abort(); /* a bug */
    int status = start_job(io, job, extents, n_extents, why);
    if (status == 0 && io->uring) {
        prepare_jobs(io);
        io_uring_submit(io->ring); /* what it does not take now, finish submits */
    }
    return status;
}

int file_io_finish(struct file_io *io, uint32_t job, struct hill_why *why)
{
    if (job >= FILE_IO_JOBS)
        abort(); /* a bug */
    return finish_job(io, job, why);
}

int file_io_run(struct file_io *io, const struct csd_extent *extents, size_t n_extents,
                struct hill_why *why)
{
    int status = start_job(io, FILE_IO_JOBS, extents, n_extents, why);

    return status == 0 ? finish_job(io, FILE_IO_JOBS, why) : status;
}
