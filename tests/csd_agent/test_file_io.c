/*
 * test_file_io.c - transfers come back as they went, on every path, in pieces that are alike; a
 * confined process has the ring it made before; odd files.
 */
#include "tests/csd_agent/fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <liburing.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/harden.h"
#include "csd_agent/file_io.h"

#define FILE_PAGES 1200u

/* What goes through the C library's calls while it is looked at. */
static struct {
    bool on;
    uint32_t n;
    struct {
        uintptr_t memory;
        uint64_t offset, bytes;
        bool write;
    } pieces[64];
} seen;

/* The kernel takes nothing until then, and is asked so often. */
enum { BUSY_MS = 50 };
static bool is_to_be_busy; /* from the first transfer on */
static int64_t busy_until_ns;
static uint32_t n_refused;

static bool is_busy(void)
{
    if (is_to_be_busy)
        busy_until_ns = clock_deadline_ms(BUSY_MS);
    is_to_be_busy = false;
    bool busy = clock_now_ns() < busy_until_ns;
    n_refused += busy;
    errno = busy ? EAGAIN : errno;
    return busy;
}

static void note_piece(uintptr_t memory, uint64_t bytes, off_t at, bool write)
{
    if (!seen.on)
        return;
    assert_true(seen.n < sizeof seen.pieces / sizeof *seen.pieces);
    seen.pieces[seen.n].memory = memory;
    seen.pieces[seen.n].offset = (uint64_t)at;
    seen.pieces[seen.n].bytes = bytes;
    seen.pieces[seen.n++].write = write;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    note_piece((uintptr_t)to, bytes, at, false);
    if (is_busy())
        return -1;
    return syscall(SYS_pread64, fd, to, bytes, at);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    note_piece((uintptr_t)from, bytes, at, true);
    if (is_busy())
        return -1;
    return syscall(SYS_pwrite64, fd, from, bytes, at);
}

static bool ring_breaks; /* the next call fails, and what is prepared stays in the ring */

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
                                     struct __kernel_timespec *timeout, sigset_t *mask)
{
    static int (*real)(struct io_uring *, struct io_uring_cqe **, unsigned,
                       struct __kernel_timespec *, sigset_t *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "io_uring_submit_and_wait_timeout");
    if (ring_breaks) {
        ring_breaks = false;
        return -EIO;
    }
    return real(ring, cqe, n, timeout, mask);
}

static void fill_file(const char *path, uint8_t *content)
{
    FILE *f = fopen(path, "wb");

    random_bytes(content, FILE_PAGES * CSD_ALIGN);
    assert_non_null(f);
    assert_int_equal(fwrite(content, CSD_ALIGN, FILE_PAGES, f), FILE_PAGES);
    fclose(f);
}

/* Many random disjoint extents, written through one path, read back through another handle. */
static void round_trip(const struct csd_options *options)
{
    uint8_t *content = malloc(FILE_PAGES * CSD_ALIGN);
    uint8_t *memory = aligned_alloc(CSD_ALIGN, FILE_PAGES * CSD_ALIGN);
    struct csd_extent extents[FILE_PAGES];
    struct hill_why why = {""};
    struct file_io *io;
    size_t n = 0;

    assert_true(content && memory);
    fill_file(pool_path(), content);
    assert_int_equal(file_io_open(&io, pool_path(), options, &why), 0);
    for (uint32_t page = 0; page < FILE_PAGES;) {
        uint32_t pages = 1 + random_below(random_below(10) == 0 ? 600 : 4);
        if (pages > FILE_PAGES - page)
            pages = FILE_PAGES - page;
        extents[n++] = (struct csd_extent){.offset = (uint64_t)page * CSD_ALIGN,
                                           .memory = memory + page * CSD_ALIGN,
                                           .bytes = (uint64_t)pages * CSD_ALIGN};
        page += pages;
    }
    assert_int_equal(file_io_run(io, extents, n, &why), 0);
    assert_memory_equal(memory, content, FILE_PAGES * CSD_ALIGN);
    random_bytes(memory, FILE_PAGES * CSD_ALIGN);
    for (size_t i = 0; i < n; i += 2)
        extents[i].write = true;
    for (size_t i = 0; i < n; i += 2)
        memcpy(content + extents[i].offset, memory + extents[i].offset, extents[i].bytes);
    assert_int_equal(file_io_run(io, extents, n, &why), 0);
    assert_memory_equal(memory, content, FILE_PAGES * CSD_ALIGN);
    file_io_close(io);
    FILE *f = fopen(pool_path(), "rb");
    assert_non_null(f);
    assert_int_equal(fread(memory, CSD_ALIGN, FILE_PAGES, f), FILE_PAGES);
    fclose(f);
    assert_memory_equal(memory, content, FILE_PAGES * CSD_ALIGN);
    free(content);
    free(memory);
}

static void test_round_trip_as_the_machine_can(void **state)
{
    (void)state;
    random_seed(3);
    round_trip(&(struct csd_options){0});
}

static void test_round_trip_without_io_uring(void **state)
{
    (void)state;
    random_seed(4);
    round_trip(&(struct csd_options){.force_pread = true});
}

/* What was prepared for a file that is dead does not come of the next one, which is another. */
static void test_a_file_after_a_dead_one_has_its_own_transfers(void **state)
{
    (void)state;
    uint8_t *content = malloc(FILE_PAGES * CSD_ALIGN);
    uint8_t *memory = aligned_alloc(CSD_ALIGN, FILE_PAGES * CSD_ALIGN);
    struct csd_extent extents[64];
    struct hill_why why = {""};
    struct file_io *io;
    char how[80];

    random_seed(5);
    assert_true(content && memory);
    fill_file(pool_path(), content);
    for (uint32_t i = 0; i < 64; i++)
        extents[i] = (struct csd_extent){.offset = (i + 64ull) * CSD_ALIGN,
                                         .memory = memory + (i + 64ull) * CSD_ALIGN,
                                         .bytes = CSD_ALIGN};
    file_io_prepare();
    assert_int_equal(file_io_open(&io, pool_path(), &(struct csd_options){0}, &why), 0);
    file_io_describe(io, "", how, sizeof how);
    if (!strstr(how, "io_uring")) { /* a kernel without, or a folder in memory */
        file_io_close(io);
        skip();
    }
    ring_breaks = true;
    assert_int_equal(file_io_run(io, extents, 64, &why), HILL_E_IO);
    assert_true(file_io_dead(io));
    file_io_close(io);
    memset(memory, 0, FILE_PAGES * CSD_ALIGN);
    assert_int_equal(file_io_open(&io, pool_path(), &(struct csd_options){0}, &why), 0);
    file_io_describe(io, "", how, sizeof how);
    assert_non_null(strstr(how, "pread"));
    struct csd_extent other = {.memory = memory, .bytes = 64 * CSD_ALIGN};
    assert_int_equal(file_io_run(io, &other, 1, &why), 0);
    assert_memory_equal(memory, content, 64 * CSD_ALIGN);
    file_io_close(io);
    for (uint32_t i = 64 * CSD_ALIGN; i < 128 * CSD_ALIGN; i++)
        assert_int_equal(memory[i], 0);
    free(content);
    free(memory);
}

static void test_a_busy_kernel_is_asked_again_after_a_pause(void **state)
{
    (void)state;
    uint8_t *page = aligned_alloc(CSD_ALIGN, CSD_ALIGN);
    struct csd_extent extent = {.memory = page, .bytes = CSD_ALIGN, .write = true};
    struct hill_why why = {""};
    struct file_io *io;

    assert_non_null(page);
    memset(page, 7, CSD_ALIGN);
    assert_int_equal(file_io_open(&io, pool_path(),
                                  &(struct csd_options){.force_pread = true, .create = true}, &why),
                     0);
    for (int i = 0; i < 2; i++, extent.write = false) {
        n_refused = 0;
        is_to_be_busy = true;
        assert_int_equal(file_io_run(io, &extent, 1, &why), 0);
        assert_in_range(n_refused, 1, 60);
        assert_int_equal(page[CSD_ALIGN - 1], 7);
    }
    file_io_close(io);
    free(page);
}

static void test_round_trip_through_the_page_cache(void **state)
{
    (void)state;
    random_seed(5);
    round_trip(&(struct csd_options){.force_buffered = true});
}

/* They follow one another from the extent's start to its end, are as few as can be, and differ by a
 * page at most. */
static void check_pieces(const struct csd_extent *e)
{
    uint64_t done = 0, least = UINT64_MAX, most = 0;

    for (uint32_t i = 0; i < seen.n; i++) {
        assert_int_equal(seen.pieces[i].write, e->write);
        assert_int_equal(seen.pieces[i].offset, e->offset + done);
        assert_int_equal(seen.pieces[i].memory, (uintptr_t)e->memory + done);
        assert_int_equal(seen.pieces[i].bytes % CSD_ALIGN, 0);
        least = seen.pieces[i].bytes < least ? seen.pieces[i].bytes : least;
        most = seen.pieces[i].bytes > most ? seen.pieces[i].bytes : most;
        done += seen.pieces[i].bytes;
    }
    assert_int_equal(done, e->bytes);
    assert_int_equal(seen.n, (e->bytes + FILE_IO_PIECE_BYTES - 1) / FILE_IO_PIECE_BYTES);
    assert_true(most <= FILE_IO_PIECE_BYTES && most - least <= CSD_ALIGN);
}

/* An extent, read and then written; what lies before and behind it stays, in memory and on
 * flash. */
static void move_extent(struct file_io *io, uint8_t *content, uint8_t *memory, uint32_t pages)
{
    uint64_t all = (uint64_t)FILE_PAGES * CSD_ALIGN;
    struct csd_extent e = {.offset =
                               (uint64_t)(1 + random_below(FILE_PAGES - pages - 1)) * CSD_ALIGN,
                           .memory = memory + CSD_ALIGN,
                           .bytes = (uint64_t)pages * CSD_ALIGN};
    struct csd_extent whole = {.memory = memory, .bytes = all};
    struct hill_why why = {""};

    memset(memory, 0xa5, all);
    for (int write = 0; write < 2; write++) {
        e.write = write;
        if (write)
            random_bytes(e.memory, e.bytes);
        seen.n = 0;
        seen.on = true;
        assert_int_equal(file_io_run(io, &e, 1, &why), 0);
        seen.on = false;
        if (seen.n > 0) /* else io_uring moved them */
            check_pieces(&e);
        if (write)
            memcpy(content + e.offset, e.memory, e.bytes);
        assert_memory_equal(e.memory, content + e.offset, e.bytes);
        for (uint32_t i = 0; i < CSD_ALIGN; i++)
            assert_true(memory[i] == 0xa5 && memory[CSD_ALIGN + e.bytes + i] == 0xa5);
    }
    assert_int_equal(file_io_run(io, &whole, 1, &why), 0);
    assert_memory_equal(memory, content, all);
}

static void test_an_extent_is_moved_in_pieces_that_are_alike(void **state)
{
    static const uint32_t sizes[] = {1,   2,   255, 256, 257, 258, 300, 511,  512,
                                     513, 514, 767, 768, 769, 770, 900, 1023, 1025};
    const struct csd_options ways[] = {{.force_pread = true}, {0}};
    uint8_t *content = malloc(FILE_PAGES * CSD_ALIGN);
    uint8_t *memory = aligned_alloc(CSD_ALIGN, FILE_PAGES * CSD_ALIGN);
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    random_seed(7);
    assert_true(content && memory);
    for (uint32_t way = 0; way < 2; way++) {
        fill_file(pool_path(), content);
        assert_int_equal(file_io_open(&io, pool_path(), &ways[way], &why), 0);
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            move_extent(io, content, memory, sizes[i]);
            assert_true(way == 1 || seen.n > 0);
        }
        file_io_close(io);
    }
    free(content);
    free(memory);
}

static void test_round_trip_in_memory(void **state)
{
    (void)state;
    skip_without_folder();
    random_seed(6);
    round_trip(&(struct csd_options){0});
}

/* Read, grown and read again: the map follows; what is beyond the end is an error, not a signal. */
static void test_a_file_in_memory_may_grow(void **state)
{
    struct csd_options options = {.create = true};
    uint8_t page[CSD_ALIGN], *memory;
    struct csd_extent extent = {.bytes = CSD_ALIGN};
    struct hill_why why = {""};
    struct file_io *io;
    char text[100];

    (void)state;
    skip_without_folder();
    extent.memory = memory = aligned_alloc(CSD_ALIGN, 2 * CSD_ALIGN);
    assert_int_equal(file_io_open(&io, pool_path(), &options, &why), 0);
    file_io_describe(io, "device", text, sizeof text);
    assert_string_equal(text, "device, mapped from memory");
    for (uint32_t pages = 1; pages <= 3; pages++) {
        memset(page, (int)pages, sizeof page);
        extent.offset = (pages - 1) * CSD_ALIGN;
        assert_int_equal(file_io_run(io, &extent, 1, &why), HILL_E_IO);
        assert_null(file_io_view(io, extent.offset, 1));
        assert_int_equal(pwrite(file_io_fd(io), page, sizeof page, (off_t)extent.offset),
                         sizeof page);
        memset(memory, 0xee, CSD_ALIGN);
        assert_int_equal(file_io_run(io, &extent, 1, &why), 0);
        assert_memory_equal(memory, page, CSD_ALIGN);
        const uint8_t *view = file_io_view(io, extent.offset, CSD_ALIGN);
        assert_non_null(view);
        assert_memory_equal(view, page, CSD_ALIGN);
        assert_null(file_io_view(io, extent.offset, CSD_ALIGN + 1));
    }
    file_io_close(io);
    free(memory);
}

static void test_falls_back_where_direct_access_is_refused(void **state)
{
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    /* procfs refuses O_DIRECT with EINVAL everywhere */
    assert_true(open("/proc/self/comm", O_RDWR | O_DIRECT) < 0);
    assert_int_equal(file_io_open(&io, "/proc/self/comm", &(struct csd_options){0}, &why), 0);
    assert_false(file_io_direct(io));
    file_io_close(io);
}

static void test_reading_past_the_end_is_an_error(void **state)
{
    for (int pread_path = 0; pread_path < 2; pread_path++) {
        struct csd_options options = {.create = true, .force_pread = pread_path};
        uint8_t *memory = aligned_alloc(CSD_ALIGN, 2 * CSD_ALIGN);
        struct csd_extent extent = {.memory = memory, .bytes = 2 * CSD_ALIGN};
        struct hill_why why = {""};
        struct file_io *io;

        assert_int_equal(file_io_open(&io, pool_path(), &options, &why), 0);
        assert_int_equal(ftruncate(file_io_fd(io), CSD_ALIGN), 0);
        assert_int_equal(file_io_run(io, &extent, 1, &why), HILL_E_IO);
        extent.bytes = CSD_ALIGN; /* and the file can still be used */
        assert_int_equal(file_io_run(io, &extent, 1, &why), 0);
        file_io_close(io);
        free(memory);
    }
    (void)state;
}

/* A read fails, and so does the first page, once less than it takes. */
static void almost_lose(struct file_io *io, const struct csd_extent *extent)
{
    assert_int_equal(truncate(pool_path(), 0), 0);
    assert_int_equal(file_io_run(io, extent, 1, NULL), HILL_E_IO);
    for (uint32_t n = 2; n < FILE_IO_LOST_AFTER; n++)
        assert_int_equal(file_io_lost(io, NULL), 0);
}

static void test_a_file_that_only_fails_is_lost(void **state)
{
    uint8_t *page = aligned_alloc(CSD_ALIGN, CSD_ALIGN);
    const struct csd_extent first = {.memory = page, .bytes = CSD_ALIGN};
    const struct csd_extent second = {.offset = CSD_ALIGN, .memory = page, .bytes = CSD_ALIGN};
    const struct csd_options ways[] = {{.create = true},
                                       {.create = true, .force_pread = true},
                                       {.create = true, .force_buffered = true}};
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    assert_non_null(page);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[128];
        assert_int_equal(file_io_open(&io, pool_path(), &ways[i], &why), 0);
        file_io_describe(io, "", text, sizeof text);
        if (strstr(text, "mapped")) { /* in memory there is no drive to be lost */
            file_io_close(io);
            continue;
        }
        almost_lose(io, &first);
        assert_int_equal(truncate(pool_path(), CSD_ALIGN), 0);
        assert_int_equal(file_io_run(io, &first, 1, &why), 0); /* it has answered */
        almost_lose(io, &first);
        assert_int_equal(truncate(pool_path(), CSD_ALIGN), 0);
        assert_int_equal(file_io_lost(io, &why), 0); /* the first page is there */
        for (uint32_t n = 0; n < 2 * FILE_IO_LOST_AFTER; n++) {
            assert_int_equal(file_io_run(io, &second, 1, NULL), HILL_E_IO);
            assert_int_equal(file_io_lost(io, &why), 0); /* still */
        }
        int64_t began_ns = clock_now_ns(), deadline = clock_deadline_ms(20000);
        almost_lose(io, &first);
        assert_int_equal(file_io_run(io, NULL, 0, &why), 0); /* which is no answer */
        int status;
        while ((status = file_io_lost(io, &why)) == 0)
            assert_true(clock_now_ns() < deadline);
        assert_int_equal(status, HILL_E_IO);
        assert_true(clock_now_ns() - began_ns >= CLOCK_MS(FILE_IO_LOST_MS));
        assert_non_null(strstr(why.text, "first page cannot be read: "));
        file_io_close(io);
    }
    free(page);
}

static void test_a_file_of_another_user_is_refused(void **state)
{
    const struct csd_options options = {0};
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    FILE *file = fopen(pool_path(), "w");
    assert_non_null(file);
    fclose(file);
    if (chown(pool_path(), 65534, 65534) != 0) /* not root, or root of its own users alone */
        skip();
    assert_int_equal(file_io_open(&io, pool_path(), &options, &why), 0);
    file_io_close(io); /* nobody else could have made it */
    assert_int_equal(chmod(folder, 01777), 0);
    assert_int_equal(file_io_open(&io, pool_path(), &options, &why), HILL_E_PERMISSION);
    assert_non_null(strstr(why.text, "belongs to another user"));
}

static void test_unaligned_transfers_are_refused(void **state)
{
    struct csd_options options = {.create = true};
    uint8_t *memory = aligned_alloc(CSD_ALIGN, 2 * CSD_ALIGN);
    struct csd_extent extents[] = {{.offset = 512, .memory = memory, .bytes = CSD_ALIGN},
                                   {.offset = 0, .memory = memory + 8, .bytes = CSD_ALIGN},
                                   {.offset = 0, .memory = memory, .bytes = 100}};
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    assert_int_equal(file_io_open(&io, pool_path(), &options, &why), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(file_io_run(io, &extents[i], 1, &why), HILL_E_INVALID);
    file_io_close(io);
    free(memory);
}

/* As nobody, where the tests run as root. */
static void test_a_file_that_may_not_be_opened_is_said(void **state)
{
    struct csd_options options = {.create = true};
    struct hill_why why = {""};
    struct file_io *io;
    uid_t user = geteuid();

    (void)state;
    int fd = open(pool_path(), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, user ? 0 : 0600), 0);
    close(fd);
    if (user == 0 && seteuid(65534) != 0)
        skip(); /* a user namespace of one user */
    int status = file_io_open(&io, pool_path(), &options, &why);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0); /* the leak sanitizer looks at its process */
    assert_int_equal(status, HILL_E_PERMISSION);
    assert_non_null(strstr(why.text, pool_path()));
}

/* A drive that was pulled out, or misspelt: root could make a file of that name. */
static void test_no_file_is_made_in_the_place_of_a_device(void **state)
{
    struct csd_options options = {.create = true};
    struct hill_why why = {""};
    struct file_io *io;

    (void)state;
    assert_int_equal(file_io_open(&io, "/dev/hill-no-such-drive", &options, &why), HILL_E_IO);
    assert_non_null(strstr(why.text, strerror(ENOENT)));
    assert_int_equal(access("/dev/hill-no-such-drive", F_OK), -1);
}

static void test_a_file_has_one_user(void **state)
{
    struct csd_options options = {.create = true};
    struct file_io *first, *second;
    struct hill_why why = {""};

    (void)state;
    assert_int_equal(file_io_open(&first, pool_path(), &options, &why), 0);
    assert_int_equal(file_io_open(&second, pool_path(), &options, &why), HILL_E_BUSY);
    file_io_close(first);
    assert_int_equal(access(pool_path(), F_OK), -1); /* it was made and nothing came of it */
    assert_int_equal(file_io_open(&second, folder, &options, &why), HILL_E_IO);
}

/* As the transfers of an agent that was killed hold it, until the drive has answered them. */
static void *hold_for_a_while(void *first)
{
    usleep(50000);
    file_io_close(first);
    return NULL;
}

static void test_a_lock_that_is_let_go_soon_is_waited_for(void **state)
{
    struct csd_options options = {.create = true};
    struct file_io *first, *second;
    struct hill_why why = {""};
    pthread_t holder;

    (void)state;
    assert_int_equal(file_io_open(&first, pool_path(), &options, &why), 0);
    assert_int_equal(truncate(pool_path(), CSD_ALIGN), 0); /* or closing it removes it */
    assert_int_equal(pthread_create(&holder, NULL, hold_for_a_while, first), 0);
    assert_int_equal(file_io_open(&second, pool_path(), &options, &why), 0);
    pthread_join(holder, NULL);
    file_io_close(second);
}

/* Jobs of many small reads (more than the depth together), finished in another order than started,
 * with a plain run in between. */
static void read_jobs(const struct csd_options *options, bool pinned)
{
    enum { PAGES = 64 };
    static const uint32_t order[FILE_IO_JOBS] = {2, 0, 5, 4, 3, 1};
    uint8_t *content = malloc(FILE_PAGES * CSD_ALIGN);
    uint8_t *memory = aligned_alloc(CSD_ALIGN, (FILE_IO_JOBS * PAGES + 1) * CSD_ALIGN);
    struct csd_extent extents[FILE_IO_JOBS][PAGES];
    struct hill_why why = {""};
    struct file_io *io;

    assert_true(content && memory);
    fill_file(pool_path(), content);
    assert_int_equal(file_io_open(&io, pool_path(), options, &why), 0);
    uint8_t *twice[] = {memory, memory + 2 * PAGES * CSD_ALIGN}; /* not all of it */
    if (pinned && !file_io_pin(io, twice, 2, 2 * PAGES * CSD_ALIGN))
        print_message("not pinned: this machine refuses it, or it is the pread path\n");
    else if (pinned)
        assert_false(options->force_pread);
    for (uint32_t j = 0; j < FILE_IO_JOBS; j++) {
        for (uint32_t i = 0; i < PAGES; i++)
            extents[j][i] =
                (struct csd_extent){.offset = (uint64_t)random_below(FILE_PAGES) * CSD_ALIGN,
                                    .memory = memory + (j * PAGES + i) * CSD_ALIGN,
                                    .bytes = CSD_ALIGN};
        assert_int_equal(file_io_start(io, j, extents[j], PAGES, &why), 0);
    }
    struct csd_extent between = {.offset = 3 * CSD_ALIGN,
                                 .memory = memory + FILE_IO_JOBS * PAGES * CSD_ALIGN,
                                 .bytes = CSD_ALIGN};
    assert_int_equal(file_io_run(io, &between, 1, &why), 0);
    assert_memory_equal(between.memory, content + between.offset, CSD_ALIGN);
    for (uint32_t j = 0; j < FILE_IO_JOBS; j++) {
        assert_int_equal(file_io_finish(io, order[j], &why), 0);
        for (uint32_t i = 0; i < PAGES; i++)
            assert_memory_equal(extents[order[j]][i].memory, content + extents[order[j]][i].offset,
                                CSD_ALIGN);
    }
    file_io_close(io);
    free(content);
    free(memory);
}

static void jobs_go_on_beside_each_other(void **state)
{
    (void)state;
    read_jobs(&(struct csd_options){.create = true}, false);
    read_jobs(&(struct csd_options){.create = true}, true);
    read_jobs(&(struct csd_options){.create = true, .force_pread = true}, true);
}

/* Which of our descriptors is a ring; -1: none. */
static int ring_descriptor(void)
{
    for (int fd = 0; fd < 64; fd++) {
        char name[32], to[64] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        if (readlink(name, to, sizeof to - 1) > 0 && strstr(to, "io_uring"))
            return fd;
    }
    return -1;
}

enum { NO_RING = 77 };

static void read_confined(void)
{
    const struct harden_needs needs = {.programs = true, .files = true};
    struct {
        struct io_uring_probe head;
        struct io_uring_probe_op ops[4];
    } probe = {0};
    char text[HARDEN_TEXT_BYTES];

    file_io_prepare();
    int fd = ring_descriptor();
    if (fd < 0)
        _exit(NO_RING);
    assert_int_equal(syscall(SYS_io_uring_register, fd, IORING_REGISTER_PROBE, &probe, 4), -1);
    assert_int_equal(errno, EACCES); /* not one of what it is restricted to */
    harden_confine(&needs, text);
    for (int i = 0; i < 3; i++) {
        struct file_io *io;
        struct hill_why why = {""};
        char what[128];
        read_jobs(&(struct csd_options){.create = true}, i < 2);
        assert_int_equal(file_io_open(&io, pool_path(), &(struct csd_options){0}, &why), 0);
        file_io_describe(io, "", what, sizeof what);
        assert_non_null(strstr(what, "io_uring"));
        file_io_close(io);
    }
}

/* A file after a file has the ring that was there before, with its buffers pinned anew. */
static void a_confined_process_has_the_ring_it_made_before(void **state)
{
    int status;

    (void)state;
    pid_t child = fork();
    if (child == 0) {
        read_confined(); /* a check that fails ends it by a signal or another status */
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_RING)
        skip();
    assert_int_equal(status, 0);
}

/* The first failure of one job is that job's alone. */
static void a_failed_job_spoils_no_other(void **state)
{
    (void)state;
    uint8_t *content = malloc(FILE_PAGES * CSD_ALIGN);
    uint8_t *memory = aligned_alloc(CSD_ALIGN, 2 * CSD_ALIGN);
    struct hill_why why = {""};
    struct file_io *io;

    assert_true(content && memory);
    fill_file(pool_path(), content);
    assert_int_equal(file_io_open(&io, pool_path(), &(struct csd_options){0}, &why), 0);
    struct csd_extent beyond = {
        .offset = (uint64_t)2 * FILE_PAGES * CSD_ALIGN, .memory = memory, .bytes = CSD_ALIGN};
    struct csd_extent good = {.memory = memory + CSD_ALIGN, .bytes = CSD_ALIGN};
    struct csd_extent odd = {.offset = 1, .memory = memory, .bytes = CSD_ALIGN};
    assert_int_equal(file_io_start(io, 0, &beyond, 1, &why), 0);
    assert_int_equal(file_io_start(io, 1, &good, 1, &why), 0);
    assert_int_equal(file_io_start(io, 2, &odd, 1, &why), HILL_E_INVALID);
    assert_int_equal(file_io_finish(io, 1, &why), 0);
    assert_memory_equal(good.memory, content, CSD_ALIGN);
    assert_int_equal(file_io_finish(io, 0, &why), HILL_E_IO);
    assert_int_equal(file_io_start(io, 0, &good, 1, &why), 0);
    assert_int_equal(file_io_finish(io, 0, &why), 0);
    file_io_close(io);
    free(content);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_go_on_beside_each_other),
        cmocka_unit_test(a_failed_job_spoils_no_other),
        cmocka_unit_test(test_no_file_is_made_in_the_place_of_a_device),
        cmocka_unit_test_setup_teardown(a_confined_process_has_the_ring_it_made_before, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_round_trip_as_the_machine_can, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_an_extent_is_moved_in_pieces_that_are_alike,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_round_trip_in_memory, make_memory_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_in_memory_may_grow, make_memory_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_round_trip_without_io_uring, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_busy_kernel_is_asked_again_after_a_pause,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_round_trip_through_the_page_cache, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_falls_back_where_direct_access_is_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_reading_past_the_end_is_an_error, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_that_only_fails_is_lost, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_of_another_user_is_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_unaligned_transfers_are_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_that_may_not_be_opened_is_said, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_has_one_user, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_lock_that_is_let_go_soon_is_waited_for, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_a_file_after_a_dead_one_has_its_own_transfers,
                                        make_folder, remove_folder), /* the last with that ring */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
