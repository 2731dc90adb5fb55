/*
 * tools/bench/bench_flash.c - figure "flash": streaming digests from a file, O_DIRECT, and entries
 * at random places, 4 KiB each.
 *
 * What: the agent's own path (its file backend: digests of all stripes read through io_uring while
 * the batch before is scored, by the host's CPU or the OpenCL device $CSD_DEVICE), beside plain
 * io_uring loops over liburing with several sizes of reads and depths, the same loops with a sum of
 * each page's words (the least that one can do with what has been read), pread one block after
 * another, and fio with io_uring where it is installed, in turn on the same bytes of the same file:
 * the digest region of a cold pool, written here with random digests and removed at the end. Also
 * the same kernel over digests that are in memory. The agent is compared with the fastest of either
 * kind of loop. The sum of the scores is checked against the reference. Beside each rate stands the
 * CPU time of the method's process, all threads: what decides where other processes want the CPUs,
 * too. Then entries, an entry a page, as a fetch reads them where no two are neighbours: through
 * the agent's backend, plain io_uring and fio, at the depth that the agent has. All read into huge
 * pages; fio is told to by its C library. What lies below the file system (a hypervisor's cache, a
 * drive's) is not controlled, and the text says so. Concurrency: one thread, and an OpenCL
 * device's. Failure: status 77 and one line where O_DIRECT is refused; 1 for every other failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <jansson.h>
#include <liburing.h>

#include "base/clock.h"
#include "tools/bench/harness.h"
#include "csd_agent/csd_drive.h"
#include "csd_agent/file_io.h"
#include "csd_agent/score_device.h"
#include "kv/score.h"
#include "pool/pool.h"

#define FILE_BYTES   (2ull << 30)
#define QUICK_BYTES  (64ull << 20)
#define MIB          (1u << 20)
#define BLOCK_MAX    (2 * MIB)
#define BUFFER_BYTES (64ull * MIB)
#define DEPTH_MAX    64u

#define ENTRY_BYTES  4096u /* = kv_entry_bytes, and a page */
#define ENTRIES      (1u << 17)
#define FEW_ENTRIES  (1u << 12)
#define SELECTED     256u /* entries a fetch */
#define ENTRY_READS  65536u
#define HUGE_FOR_FIO "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" /* madvise, as bench_memory */

#define KV_HEADS   8u
#define HEAD_DIM   128u
#define MEMORY_MIB 4u /* of digests a launch of the figure from memory */

struct file {
    char path[4096];
    int fd;
    struct pool_layout layout;
    uint64_t start, bytes; /* what the plain methods read: whole blocks of the digest region */
    uint32_t n_stripes;    /* what the agent reads */
    uint64_t score_sum;    /* of all its slots, by the reference */
    uint64_t word_sum;     /* of `bytes` */
    uint64_t query_bytes;  /* that a query reads of flash */
    uint8_t *buffers;      /* [BUFFER_BYTES], from it [depth][block_bytes] */
    uint32_t n_entries, n_reads;
    uint64_t entries;   /* where they begin */
    uint64_t *entry_at; /* [n_reads]: places, in the order in which they are read */
};

static struct file file = {.fd = -1};
static int8_t query_mantissas[KV_HEADS * HEAD_DIM];
static uint8_t query_shifts[KV_HEADS];
static const struct kv_query query = {query_mantissas, query_shifts, KV_IMPORTANCE_SUM, NULL};
static struct csd_drive *drive;
static struct score_device *device;
static struct csd_span *spans;

static void remove_file(void)
{
    if (file.fd >= 0)
        unlink(file.path);
}

static void open_file(const struct bench_options *options)
{
    snprintf(file.path, sizeof(file.path), "%s/hill-bench-flash-%d", options->folder,
             (int)getpid());
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
}

/* The agent's drive over the file, and another scorer of its kind for the figure from memory. */
static void open_agent(void)
{
    const char *name = getenv("CSD_DEVICE");
    struct csd_options options = {.device = name};
    struct hill_why why = {""};
    char url[4200];
    snprintf(url, sizeof(url), "file:%s", file.path);
    int status = csd_drive_open(&drive, url, &options, &why);
    if (status == 0)
        status = csd_drive_prepare(drive, &file.layout, &why);
    if (status == 0)
        status = score_device_create(&device,
                                     &(struct score_settings){.geometry = file.layout.geometry,
                                                              .batch_bytes = MEMORY_MIB << 20,
                                                              .on_host = csd_means_host(name),
                                                              .device = name},
                                     &why);
    if (status != 0)
        bench_fail("opening the agent's drive: %s", why.text);
}

/* The least that one can do with what has been read. */
static uint64_t sum_of_words(const uint8_t *memory, uint64_t bytes)
{
    uint64_t sum = 0, word;
    for (uint64_t i = 0; i < bytes; i += sizeof(word)) {
        memcpy(&word, memory + i, sizeof(word));
        sum += word;
    }
    return sum;
}

/* A stripe's groups: random mantissas and valid exponents; returns the sum of their scores. */
static uint64_t make_stripe(uint8_t *stripe, uint16_t *scores, uint64_t *state)
{
    const struct pool_layout *l = &file.layout;
    uint32_t group = kv_group_bytes(&l->geometry);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < l->digest_stripe_bytes; i += 8) {
        uint64_t r = bench_random(state);
        memcpy(stripe + i, &r, 8);
    }
    for (uint64_t at = 0; at < l->stripe_slots / KV_GROUP_TOKENS * group; at += group)
        for (uint32_t i = 0; i < KV_HEADS * KV_GROUP_TOKENS; i++)
            stripe[at + i] %= KV_KEY_EXP_MAX + 1;
    kv_score_reference(&l->geometry, &query, stripe, l->stripe_slots, scores);
    for (uint32_t i = 0; i < l->stripe_slots; i++)
        sum += scores[i];
    return sum;
}

/* Entries, written once; what they hold does not matter, but holes would not be read. */
static void make_entries(const struct bench_options *options)
{
    uint64_t state = 7, stripe = file.layout.entry_stripe_bytes;
    file.n_entries = options->quick ? FEW_ENTRIES : ENTRIES;
    file.n_reads = options->quick ? FEW_ENTRIES : ENTRY_READS;
    file.entries = pool_entry_at(&file.layout, 0);
    file.entry_at = calloc(file.n_reads, sizeof(*file.entry_at));
    uint64_t bytes = (uint64_t)file.n_entries * ENTRY_BYTES;
    if (kv_entry_bytes(&file.layout.geometry) != ENTRY_BYTES || file.entries % ENTRY_BYTES != 0 ||
        stripe != file.layout.stripe_slots * (uint64_t)ENTRY_BYTES || file.entry_at == NULL)
        bench_fail("entries are not pages that follow one another, or no memory");
    for (uint64_t i = 0; i < MIB; i += 8) {
        uint64_t r = bench_random(&state);
        memcpy(file.buffers + i, &r, 8);
    }
    for (uint64_t at = 0; at < bytes; at += MIB)
        if (pwrite(file.fd, file.buffers, MIB, (off_t)(file.entries + at)) != MIB)
            bench_fail("writing %s: %s", file.path, strerror(errno));
    for (uint32_t i = 0; i < file.n_reads; i++)
        file.entry_at[i] = file.entries + bench_random(&state) % file.n_entries * ENTRY_BYTES;
}

static void make_file(const struct bench_options *options)
{
    const struct kv_geometry geometry = {1, 4 * KV_HEADS, KV_HEADS, HEAD_DIM};
    uint64_t state = 99, bytes = options->quick ? QUICK_BYTES : FILE_BYTES;
    struct hill_why why = {""};
    /* digests are about a fifth of a pool; its entries are never touched, and not written */
    if (pool_layout_with_keys(&file.layout, &geometry, 0, 6 * bytes, &why) != 0)
        bench_fail("laying out a pool: %s", why.text);
    uint64_t stripe_bytes = file.layout.digest_stripe_bytes;
    file.n_stripes = (uint32_t)(bytes / stripe_bytes);
    file.start = file.layout.digest_offset;
    file.bytes = file.n_stripes * stripe_bytes / BLOCK_MAX * BLOCK_MAX;
    file.buffers = bench_memory(BUFFER_BYTES);
    spans = calloc(file.n_stripes, sizeof(*spans));
    uint16_t *scores = calloc(file.layout.stripe_slots, sizeof(*scores));
    if (!spans || !scores || file.n_stripes > file.layout.n_stripes)
        bench_fail("no memory or a pool too small");
    for (uint32_t i = 0; i < sizeof(query_mantissas); i++)
        query_mantissas[i] = (int8_t)((int)(bench_random(&state) % 255) - 127);
    for (uint32_t i = 0; i < sizeof(query_shifts); i++)
        query_shifts[i] = (uint8_t)(bench_random(&state) % (KV_QUERY_SHIFT_MAX + 1));
    open_file(options);
    open_agent();
    for (uint32_t s = 0; s < file.n_stripes; s++) {
        spans[s] = (struct csd_span){s, 0, file.layout.stripe_slots};
        file.score_sum += make_stripe(file.buffers, scores, &state);
        uint64_t left = s * stripe_bytes < file.bytes ? file.bytes - s * stripe_bytes : 0;
        file.word_sum += sum_of_words(file.buffers, left < stripe_bytes ? left : stripe_bytes);
        uint64_t at = pool_digest_at(&file.layout, s);
        if (pwrite(file.fd, file.buffers, stripe_bytes, (off_t)at) != (ssize_t)stripe_bytes)
            bench_fail("writing %s: %s", file.path, strerror(errno));
        csd_drive_seal(drive, at, stripe_bytes,
                       file.buffers); /* checked in each read from now on */
    }
    free(scores);
    make_entries(options);
    if (fsync(file.fd) != 0)
        bench_fail("flushing %s: %s", file.path, strerror(errno));
}

/* ---- methods: seconds for file.bytes -------------------------------------------------------- */

/* How a method reads. */
struct way {
    uint32_t block_bytes, depth;
    bool sums; /* the words of what it has read, too */
};

static double read_plain(struct way way)
{
    int64_t start = clock_now_ns();
    for (uint64_t at = 0; at < file.bytes; at += way.block_bytes)
        if (pread(file.fd, file.buffers, way.block_bytes, (off_t)(file.start + at)) !=
            (ssize_t)way.block_bytes)
            bench_fail("reading %s: %s", file.path, strerror(errno));
    return (double)(clock_now_ns() - start) * 1e-9;
}

/* An io_uring loop: n blocks, one after another or where `places` says. */
struct loop {
    struct io_uring ring;
    struct way way;
    uint64_t n;
    const uint64_t *places;
    uint64_t sum;
};

static uint8_t *buffer_of(const struct loop *l, uint32_t buffer)
{
    return file.buffers + (uint64_t)buffer * l->way.block_bytes;
}

static void submit(struct loop *l, uint32_t buffer, uint64_t i)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);
    if (sqe == NULL)
        bench_fail("no room in the submission queue");
    uint64_t at = l->places != NULL ? l->places[i] : file.start + i * l->way.block_bytes;
    io_uring_prep_read_fixed(sqe, file.fd, buffer_of(l, buffer), l->way.block_bytes, at,
                             (int)buffer);
    io_uring_sqe_set_data64(sqe, buffer);
}

static double stream(struct loop *l)
{
    int64_t start = clock_now_ns();
    uint64_t next = 0, done = 0;
    for (uint32_t i = 0; i < l->way.depth && next < l->n; i++)
        submit(l, i, next++);
    while (done < l->n) {
        struct io_uring_cqe *cqe;
        int rc = io_uring_submit_and_wait(&l->ring, 1);
        if (rc < 0 && rc != -EINTR)
            bench_fail("io_uring: %s", strerror(-rc));
        while (io_uring_peek_cqe(&l->ring, &cqe) == 0) {
            uint32_t buffer = (uint32_t)io_uring_cqe_get_data64(cqe);
            if (cqe->res != (int)l->way.block_bytes)
                bench_fail("reading %s: %s", file.path,
                           cqe->res < 0 ? strerror(-cqe->res) : "a short read");
            io_uring_cqe_seen(&l->ring, cqe);
            done++;
            if (l->way.sums)
                l->sum += sum_of_words(buffer_of(l, buffer), l->way.block_bytes);
            if (next < l->n)
                submit(l, buffer, next++);
            if (l->way.sums) /* the next sum takes long */
                io_uring_submit(&l->ring);
        }
    }
    return (double)(clock_now_ns() - start) * 1e-9;
}

static double read_blocks(struct loop *l)
{
    struct iovec buffers[DEPTH_MAX];
    for (uint32_t i = 0; i < l->way.depth; i++)
        buffers[i] = (struct iovec){buffer_of(l, i), l->way.block_bytes};
    int rc = io_uring_queue_init(l->way.depth, &l->ring, 0);
    if (rc == 0)
        rc = io_uring_register_buffers(&l->ring, buffers, l->way.depth);
    if (rc != 0)
        bench_fail("io_uring: %s", strerror(-rc));
    double seconds = stream(l);
    io_uring_queue_exit(&l->ring);
    return seconds;
}

static double read_uring(struct way way)
{
    struct loop loop = {.way = way, .n = file.bytes / way.block_bytes};
    double seconds = read_blocks(&loop);
    if (way.sums && loop.sum != file.word_sum)
        bench_fail("what was read is not what was written");
    return seconds;
}

static double read_entries_uring(struct way way)
{
    struct loop loop = {.way = way, .n = file.n_reads, .places = file.entry_at};
    return read_blocks(&loop);
}

static bool fio_there(void)
{
    return system("command -v fio >/dev/null 2>&1") == 0;
}

/* fio's own rate, bytes a second, of what `what` says. */
static double fio_rate(const char *what, struct way way)
{
    char command[5000];
    snprintf(command, sizeof(command),
             HUGE_FOR_FIO
             " fio --name=read --filename='%s' %s --bs=%u --ioengine=io_uring --direct=1 "
             "--fixedbufs=1 --iodepth=%u --output-format=json",
             file.path, what, way.block_bytes, way.depth);
    FILE *output = popen(command, "r");
    json_t *report = output != NULL ? json_loadf(output, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    int status = output != NULL ? pclose(output) : -1;
    double rate = json_number_value(json_object_get(
        json_object_get(json_array_get(json_object_get(report, "jobs"), 0), "read"), "bw_bytes"));
    json_decref(report);
    if (status != 0 || rate <= 0)
        bench_fail("fio failed (status %d)", status);
    return rate;
}

static double read_fio(struct way way)
{
    char what[200];
    snprintf(what, sizeof(what), "--rw=read --offset=%llu --size=%llu",
             (unsigned long long)file.start, (unsigned long long)file.bytes);
    return (double)file.bytes / fio_rate(what, way);
}

static double read_entries_fio(struct way way)
{
    char what[300];
    snprintf(what, sizeof(what),
             "--rw=randread --norandommap --offset=%llu --size=%llu --io_size=%llu",
             (unsigned long long)file.entries, (unsigned long long)file.n_entries * ENTRY_BYTES,
             (unsigned long long)file.n_reads * ENTRY_BYTES);
    return (double)file.n_reads * ENTRY_BYTES / fio_rate(what, way);
}

/* Fetches of SELECTED entries each, as the cold pool hands them to the drive. */
static double read_entries_agent(struct way way)
{
    struct csd_extent extents[SELECTED];
    struct hill_why why = {""};
    (void)way;
    int64_t start = clock_now_ns();
    for (uint32_t done = 0; done < file.n_reads; done += SELECTED) {
        for (uint32_t i = 0; i < SELECTED; i++)
            extents[i] = (struct csd_extent){.offset = file.entry_at[done + i],
                                             .memory = file.buffers + (uint64_t)i * ENTRY_BYTES,
                                             .bytes = ENTRY_BYTES};
        if (csd_drive_transfer(drive, extents, SELECTED, &why) != 0)
            bench_fail("the agent's drive: %s", why.text);
    }
    return (double)(clock_now_ns() - start) * 1e-9;
}

static int add_scores(void *context, uint32_t span, uint32_t first_slot, uint32_t n,
                      const uint16_t *scores)
{
    uint64_t *sum = context;
    (void)span;
    (void)first_slot;
    for (uint32_t i = 0; i < n; i++)
        *sum += scores[i];
    return 0;
}

/* A query over all stripes, as the agent runs it. */
static double read_agent(struct way way)
{
    uint64_t sum = 0;
    struct csd_score_job job = {.query = query,
                                .spans = spans,
                                .n_spans = file.n_stripes,
                                .scored = add_scores,
                                .context = &sum};
    struct hill_why why = {""};
    (void)way;
    int64_t start = clock_now_ns();
    if (csd_drive_score(drive, &job, &why) != 0)
        bench_fail("the agent's drive: %s", why.text);
    double seconds = (double)(clock_now_ns() - start) * 1e-9;
    if (sum != file.score_sum)
        bench_fail("the agent's scores are not the reference's");
    file.query_bytes = job.flash_read_bytes;
    return seconds * (double)file.bytes / (double)job.flash_read_bytes;
}

/* The same kernel over two batches that are in memory (and, with 4 MiB each, out of L2). */
static double score_memory(struct way way)
{
    uint32_t n = score_device_slots_max(device);
    struct score_piece piece = {.n_slots = n};
    uint64_t launch_bytes = (uint64_t)n * kv_digest_bytes(&file.layout.geometry), done = 0;
    struct hill_why why = {""};
    const uint16_t *scores;
    uint8_t *memory;
    (void)way;
    int status = score_device_query(device, &query, &why);
    int64_t start = clock_now_ns();
    for (uint32_t i = 0; status == 0 && done < file.bytes; i++, done += launch_bytes) {
        uint32_t b = i % SCORE_BATCHES;
        if (i >= SCORE_BATCHES)
            status = score_device_wait(device, b, &scores, &why);
        if (status == 0)
            status = score_device_map(device, b, &memory, &why);
        if (status == 0)
            status = score_device_launch(device, b, &piece, 1, &why);
    }
    for (uint32_t b = 0; status == 0 && b < SCORE_BATCHES; b++)
        status = score_device_wait(device, b, &scores, &why);
    if (status != 0)
        bench_fail("scoring from memory: %s", why.text);
    return (double)(clock_now_ns() - start) * 1e-9 * (double)file.bytes / (double)done;
}

/* ---- measuring ------------------------------------------------------------------------------ */

struct method {
    const char *name;
    double (*read)(struct way way);
    struct way way;
};

/* The first is the agent. */
static const struct method methods[] = {
    {"agent: read and scored", read_agent, {0}},
    {"io_uring, 256 KiB, depth 32", read_uring, {MIB / 4, 32}},
    {"io_uring, 1 MiB, depth 2", read_uring, {MIB, 2}},
    {"io_uring, 1 MiB, depth 8", read_uring, {MIB, 8}},
    {"io_uring, 1 MiB, depth 32", read_uring, {MIB, 32}},
    {"io_uring, 2 MiB, depth 8", read_uring, {2 * MIB, 8}},
    {"io_uring, 256 KiB, depth 32, words summed", read_uring, {MIB / 4, 32, true}},
    {"io_uring, 1 MiB, depth 8, words summed", read_uring, {MIB, 8, true}},
    {"io_uring, 1 MiB, depth 32, words summed", read_uring, {MIB, 32, true}},
    {"pread, 1 MiB, one after another", read_plain, {MIB, 1}},
    {"fio, io_uring, 1 MiB, depth 8", read_fio, {MIB, 8}},
    {"fio, io_uring, 1 MiB, depth 32", read_fio, {MIB, 32}},
    {"kernel alone, digests in memory", score_memory, {0}},
};

static const struct method entry_methods[] = {
    {"agent: fetched", read_entries_agent, {0}},
    {"io_uring, depth 64", read_entries_uring, {ENTRY_BYTES, FILE_IO_DEPTH}},
    {"fio, io_uring, depth 64", read_entries_fio, {ENTRY_BYTES, FILE_IO_DEPTH}},
};

enum {
    N_METHODS = sizeof(methods) / sizeof(*methods),
    N_ENTRY_METHODS = sizeof(entry_methods) / sizeof(*entry_methods)
};
_Static_assert(FILE_IO_DEPTH <= DEPTH_MAX, "a buffer for each");

/* What a method took, a sample a round. */
struct taken {
    struct bench_samples seconds, cpu; /* cpu: seconds of it, user and system */
};

/* amount: of what the unit says, in a round; gb: of what is read. */
static void print_table(const char *unit, double amount, double gb, const struct method *list,
                        uint32_t n, const struct taken *taken)
{
    printf("| method | %s, median | lowest - highest | CPU s a GB, median | the agent's share of "
           "the rate, round by round: median | " BENCH_QUARTILES_TEXT
           " |\n|---|---:|---:|---:|---:|---:|\n",
           unit);
    for (uint32_t m = 0; m < n; m++) {
        const struct bench_samples *seconds = &taken[m].seconds;
        if (seconds->count == 0)
            continue;
        struct bench_samples share = bench_ratios(seconds, &taken[0].seconds);
        printf("| %s | %.2f | %.2f - %.2f | %.3f | ", list[m].name, amount / bench_median(seconds),
               amount / bench_highest(seconds), amount / bench_lowest(seconds),
               bench_median(&taken[m].cpu) / gb);
        bench_print_quartiles(&share, "%.2f | %.2f - %.2f |\n");
    }
}

/* The agent beside the fastest of the loops that sum, or of those that do not. */
static void print_share(bool sums, const char *what, const struct taken *taken)
{
    uint32_t best = 0;
    for (uint32_t m = 1; m < N_METHODS; m++)
        if (methods[m].read == read_uring && methods[m].way.sums == sums &&
            taken[m].seconds.count > 0 &&
            (best == 0 || bench_median(&taken[m].seconds) < bench_median(&taken[best].seconds)))
            best = m;
    if (best == 0)
        return;
    struct bench_samples share = bench_ratios(&taken[best].seconds, &taken[0].seconds);
    printf("%s is fastest as \"%s\": ", what, methods[best].name);
    bench_print_quartiles(&share, "the agent has %.2f of it (%.2f - %.2f). ");
}

/* Of this process and of those that it has waited for. */
static double cpu_seconds(void)
{
    struct rusage own, children;
    if (getrusage(RUSAGE_SELF, &own) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0)
        bench_fail("asking for CPU time: %s", strerror(errno));
    const struct timeval *parts[] = {&own.ru_utime, &own.ru_stime, &children.ru_utime,
                                     &children.ru_stime};
    double seconds = 0;
    for (uint32_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        seconds += (double)parts[i]->tv_sec + (double)parts[i]->tv_usec * 1e-6;
    return seconds;
}

/* A round of each method that is asked for; the agent always is. Each round begins with another
 * one: what a method finds in caches below the file system depends on the one before it. */
static void measure(const struct bench_options *options, uint32_t round, bool fio,
                    const struct method *list, uint32_t n, struct taken *taken)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t m = (i + round - 1) % n;
        if (((list[m].read == read_fio || list[m].read == read_entries_fio) && !fio) ||
            (m > 0 && !bench_is_asked("TESTS", list[m].name)))
            continue;
        bench_progress(round, options->rounds, list[m].name);
        double cpu = cpu_seconds();
        bench_sample(&taken[m].seconds, list[m].read(list[m].way));
        bench_sample(&taken[m].cpu, cpu_seconds() - cpu);
    }
}

int main(int argc, char **argv)
{
    struct bench_options options = bench_start("flash", argc, argv);
    static struct taken taken[N_METHODS], entries_taken[N_ENTRY_METHODS];
    char description[300];
    bool fio = fio_there();
    make_file(&options);
    for (uint32_t round = 1; round <= options.rounds; round++) {
        measure(&options, round, fio, methods, N_METHODS, taken);
        measure(&options, round, fio, entry_methods, N_ENTRY_METHODS, entries_taken);
        bench_progress(round, options.rounds, "");
    }
    csd_drive_describe(drive, description, sizeof(description));
    printf("## Flash, streaming digests\n\n");
    printf(
        "%llu MiB of digests (%u KV heads x %u) of a cold pool's file, O_DIRECT; %u rounds, "
        "methods in turn. The agent: %s; a query over all of them, scores equal to "
        "the reference's. The plain io_uring loops read into registered buffers in huge pages.\n",
        (unsigned long long)(file.bytes >> 20), KV_HEADS, HEAD_DIM, options.rounds, description);
    printf("A query reads %.4f bytes a byte of digests. ",
           (double)file.query_bytes / ((double)file.n_stripes * file.layout.stripe_slots *
                                       kv_digest_bytes(&file.layout.geometry)));
    printf("What lies below the file system (a hypervisor's or a drive's cache) is part of what "
           "was measured.%s\n\n",
           fio ? " fio reads into huge pages, too (`" HUGE_FOR_FIO "`)."
               : " fio is not installed here: no figure of it.");
    print_table("GB/s", (double)file.bytes * 1e-9, (double)file.bytes * 1e-9, methods, N_METHODS,
                taken);
    printf("\n");
    print_share(false, "Plain io_uring", taken);
    print_share(true, "io_uring with a sum of what has been read", taken);
    printf("\n");
    printf("\nEntries at random places: %u reads of %u bytes among %u MiB of entries; the agent "
           "fetches %u at a time and waits for them, the others keep 64 on their way.\n\n",
           file.n_reads, ENTRY_BYTES, file.n_entries / (1048576 / ENTRY_BYTES), SELECTED);
    print_table("thousand reads/s", file.n_reads * 1e-3, file.n_reads * (double)ENTRY_BYTES * 1e-9,
                entry_methods, N_ENTRY_METHODS, entries_taken);
    free(file.entry_at);
    csd_drive_close(drive);
    score_device_destroy(device);
    free(spans);
    return 0;
}
