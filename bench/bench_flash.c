/*
 * bench/bench_flash.c - figure "flash": reading a file as the agent streams digests, sequentially,
 * O_DIRECT, 1 MiB at a time.
 *
 * What: io_uring at several depths (plain loop over liburing, not the agent's code), pread one
 * block after another, and fio with io_uring where it is installed, in turn on the same file, which
 * is written here with random bytes and removed at the end. What lies below the file system (a
 * hypervisor's cache, a drive's) is not controlled, and the text says so. Concurrency: one thread.
 * Failure: status 77 and one line where O_DIRECT is refused; 1 for every other failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <jansson.h>
#include <liburing.h>

#include "base/clock.h"
#include "bench/harness.h"

#define BLOCK_BYTES (1u << 20)
#define FILE_BYTES  (2ull << 30)
#define QUICK_BYTES (64ull << 20)
#define DEPTH_MAX   32u

struct file {
    char path[4096];
    int fd;
    uint64_t bytes;
    uint8_t *buffers; /* [DEPTH_MAX][BLOCK_BYTES] */
};

static struct file file = {.fd = -1};

static void remove_file(void)
{
    if (file.fd >= 0)
        unlink(file.path);
}

static void make_file(const struct bench_options *options)
{
    uint64_t state = 99;
    snprintf(file.path, sizeof(file.path), "%s/hill-bench-flash-%d", options->folder,
             (int)getpid());
    file.bytes = options->quick ? QUICK_BYTES : FILE_BYTES;
    file.buffers = bench_memory((uint64_t)DEPTH_MAX * BLOCK_BYTES);
    file.fd = open(file.path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    if (file.fd < 0 && errno == EINVAL) {
        unlink(file.path); /* open makes the name before it refuses the flag */
        fprintf(stderr, "bench_flash: skipped: the file system of %s refuses O_DIRECT\n",
                options->folder);
        exit(77);
    }
    if (file.fd < 0)
        bench_fail("creating %s: %s", file.path, strerror(errno));
    atexit(remove_file);
    for (uint64_t at = 0; at < file.bytes; at += BLOCK_BYTES) {
        for (uint32_t i = 0; i < BLOCK_BYTES; i += 8) {
            uint64_t r = bench_random(&state);
            memcpy(file.buffers + i, &r, 8);
        }
        if (pwrite(file.fd, file.buffers, BLOCK_BYTES, (off_t)at) != BLOCK_BYTES)
            bench_fail("writing %s: %s", file.path, strerror(errno));
    }
    if (fsync(file.fd) != 0)
        bench_fail("flushing %s: %s", file.path, strerror(errno));
}

/* ---- methods: seconds to read the whole file ------------------------------------------------ */

static double read_plain(uint32_t depth)
{
    (void)depth;
    int64_t start = clock_now_ns();
    for (uint64_t at = 0; at < file.bytes; at += BLOCK_BYTES)
        if (pread(file.fd, file.buffers, BLOCK_BYTES, (off_t)at) != BLOCK_BYTES)
            bench_fail("reading %s: %s", file.path, strerror(errno));
    return (double)(clock_now_ns() - start) * 1e-9;
}

static void submit(struct io_uring *ring, uint32_t buffer, uint64_t at)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (sqe == NULL)
        bench_fail("no room in the submission queue");
    io_uring_prep_read_fixed(sqe, file.fd, file.buffers + (uint64_t)buffer * BLOCK_BYTES,
                             BLOCK_BYTES, at, (int)buffer);
    io_uring_sqe_set_data64(sqe, buffer);
}

static double stream(struct io_uring *ring, uint32_t depth)
{
    int64_t start = clock_now_ns();
    uint64_t next = 0, done = 0;
    for (uint32_t i = 0; i < depth && next < file.bytes; i++, next += BLOCK_BYTES)
        submit(ring, i, next);
    while (done < file.bytes) {
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(ring, 1);
        if (rc < 0 && rc != -EINTR)
            bench_fail("io_uring: %s", strerror(-rc));
        while (io_uring_peek_cqe(ring, &cqe) == 0) {
            uint32_t buffer = (uint32_t)io_uring_cqe_get_data64(cqe);
            if (cqe->res != (int)BLOCK_BYTES)
                bench_fail("reading %s: %s", file.path,
                           cqe->res < 0 ? strerror(-cqe->res) : "a short read");
            io_uring_cqe_seen(ring, cqe);
            done += BLOCK_BYTES;
            if (next < file.bytes) {
                submit(ring, buffer, next);
                next += BLOCK_BYTES;
            }
        }
    }
    return (double)(clock_now_ns() - start) * 1e-9;
}

static double read_uring(uint32_t depth)
{
    struct io_uring ring;
    struct iovec buffers[DEPTH_MAX];
    for (uint32_t i = 0; i < depth; i++)
        buffers[i] = (struct iovec){file.buffers + (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES};
    int rc = io_uring_queue_init(depth, &ring, 0);
    if (rc == 0)
        rc = io_uring_register_buffers(&ring, buffers, depth);
    if (rc != 0)
        bench_fail("io_uring: %s", strerror(-rc));
    double seconds = stream(&ring, depth);
    io_uring_queue_exit(&ring);
    return seconds;
}

static bool fio_there(void)
{
    return system("command -v fio >/dev/null 2>&1") == 0;
}

/* fio's own figure for the whole file: bytes read over its run time. */
static double read_fio(uint32_t depth)
{
    char command[5000];
    snprintf(command, sizeof(command),
             "fio --name=read --filename='%s' --rw=read --bs=1M --size=%llu --ioengine=io_uring "
             "--direct=1 --fixedbufs=1 --iodepth=%u --output-format=json",
             file.path, (unsigned long long)file.bytes, depth);
    FILE *output = popen(command, "r");
    json_t *report = output != NULL ? json_loadf(output, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    int status = output != NULL ? pclose(output) : -1;
    double rate = json_number_value(json_object_get(
        json_object_get(json_array_get(json_object_get(report, "jobs"), 0), "read"), "bw_bytes"));
    json_decref(report);
    if (status != 0 || rate <= 0)
        bench_fail("fio failed (status %d)", status);
    return (double)file.bytes / rate;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static const struct method {
    const char *name;
    double (*read)(uint32_t depth);
    uint32_t depth;
} methods[] = {
    {"pread, one block after another", read_plain, 1},
    {"io_uring, depth 2", read_uring, 2},
    {"io_uring, depth 8", read_uring, 8},
    {"io_uring, depth 32", read_uring, 32},
    {"fio, io_uring, depth 8", read_fio, 8},
    {"fio, io_uring, depth 32", read_fio, 32},
};

enum { N_METHODS = sizeof(methods) / sizeof(methods[0]) };

int main(int argc, char **argv)
{
    struct bench_options options = bench_start("flash", argc, argv);
    static struct bench_samples seconds[N_METHODS];
    bool fio = fio_there();
    make_file(&options);
    for (uint32_t round = 1; round <= options.rounds; round++) {
        for (uint32_t m = 0; m < N_METHODS; m++) {
            if (methods[m].read == read_fio && !fio)
                continue;
            bench_progress(round, options.rounds, methods[m].name);
            bench_sample(&seconds[m], methods[m].read(methods[m].depth));
        }
        bench_progress(round, options.rounds, "");
    }
    printf("## Flash, sequential\n\n");
    printf("A file of %llu MiB of random bytes, read whole with O_DIRECT in blocks of 1 MiB; %u "
           "rounds, methods in turn. io_uring reads into registered buffers.\n",
           (unsigned long long)(file.bytes >> 20), options.rounds);
    printf("What lies below the file system (a hypervisor's or a drive's cache) is part of what "
           "was measured.%s\n\n",
           fio ? "" : " fio is not installed here: no figure of it.");
    printf("| method | GB/s, median | lowest - highest |\n|---|---:|---:|\n");
    for (uint32_t m = 0; m < N_METHODS; m++) {
        if (seconds[m].count > 0)
            printf("| %s | %.2f | %.2f - %.2f |\n", methods[m].name,
                   (double)file.bytes / bench_median(&seconds[m]) * 1e-9,
                   (double)file.bytes / bench_highest(&seconds[m]) * 1e-9,
                   (double)file.bytes / bench_lowest(&seconds[m]) * 1e-9);
    }
    return 0;
}
