/*
 * csd_agent/xrt_backend.c - "xrt:PATH,xclbin=FILE[,device=NAME]": a SmartSSD by Xilinx' OpenCL
 * extensions (XRT). PATH is its flash as the host sees it (a block device, or a file on it), FILE
 * the kernels of csd_agent/fpga/ built for the card, NAME an OpenCL device (base/cldevice.h; the
 * first of Xilinx).
 *
 * **It has run on no SmartSSD.** What it asks of the runtime is checked by a stand-in
 * (tests/csd_agent/xrt/), after public descriptions of the hardware.
 *
 * The FPGA issues no NVMe commands: the host reads flash with O_DIRECT, and the target is memory of
 * the card, mapped through its PCIe window (P2P), so that digests never enter the host's memory:
 *
 *     load      program the card, kernel, a P2P buffer a batch, mapped once for its life
 *     start     flash -> P2P memory, by the host's io_uring or pread (not registered: the kernel
 *               refuses to pin it)
 *     execute   runs -> card; kernel; scores -> host; ordered by events, the queue has no order
 *     wait      for the last of them
 *
 * Nothing is read through the window by the CPU (uncached) but one page at load, to see that it
 * works: so pages of digests are not held against their checksums here, and the host keeps no copy
 * of them. Entries and all else go between flash and host memory as for a file. Who calls it:
 * through struct csd_ops (backend.h), which also has concurrency and failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cldevice.h"
#include "csd_agent/backend.h"
#include "csd_agent/file_io.h"
#include "csd_agent/fpga/hls_score.h"
#include "csd_agent/xrt_extensions.h"

#define VENDOR     "Xilinx"
#define BEAT_BYTES (HLS_LANES * 4u) /* a word of each lane */

/* The kernel's arguments, in its order. */
enum argument {
    DIGESTS,
    RUNS,
    QUERY,
    N_RUNS,
    KV_HEADS,
    QUERY_HEADS,
    HEAD_WORDS,
    IMPORTANCE,
    SCORES
};

struct xrt_batch {
    cl_mem digests, runs, scores;
    uint8_t *window; /* digests, mapped */
    uint32_t *table; /* [SCORE_BATCH_PIECES][HLS_RUN_WORDS] */
    uint32_t n_pieces, slots[SCORE_BATCH_PIECES];
    uint16_t *groups; /* as the kernel has written them: [groups_max][16] */
    uint16_t *out;    /* of slots alone */
    cl_event read;    /* of the launch in flight: its last command; or NULL */
};

struct xrt_backend {
    struct csd_backend base;
    char *path, *xclbin, *device_name;
    struct cldevice device;
    cl_command_queue queue;
    cl_program program;
    cl_kernel kernel;
    cl_mem query;
    uint8_t *query_bytes; /* kv_query_send */
    cl_event queried;     /* the query is on the card; or NULL */
    uint32_t importance, groups_max;
    struct csd_program loaded;
    struct xrt_batch batches[SCORE_BATCHES];
};

static struct xrt_backend *of(struct csd_backend *backend)
{
    return (struct xrt_backend *)backend;
}

static void release_event(cl_event *event)
{
    if (*event)
        clReleaseEvent(*event);
    *event = NULL;
}

/* ---- open, close ---- */

static void close_batch(struct xrt_backend *x, struct xrt_batch *b)
{
    release_event(&b->read);
    if (b->window) {
        clEnqueueUnmapMemObject(x->queue, b->digests, b->window, 0, NULL, NULL);
        clFinish(x->queue);
    }
    cl_mem buffers[] = {b->digests, b->runs, b->scores};
    for (unsigned i = 0; i < 3; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    free(b->table);
    free(b->groups);
    free(b->out);
}

/* All of it before main returns: XRT's own tear-down at exit has crashed. */
static void close_card(struct xrt_backend *x)
{
    if (x->queue)
        clFinish(x->queue);
    release_event(&x->queried);
    for (uint32_t b = 0; b < SCORE_BATCHES; b++)
        close_batch(x, &x->batches[b]);
    if (x->query)
        clReleaseMemObject(x->query);
    if (x->kernel)
        clReleaseKernel(x->kernel);
    if (x->program)
        clReleaseProgram(x->program);
    if (x->queue)
        clReleaseCommandQueue(x->queue);
    cldevice_close(&x->device);
    free(x->query_bytes);
}

static void xrt_close(struct csd_backend *backend)
{
    struct xrt_backend *x = of(backend);

    /* the kernel may still write into the windows of a drive that stopped answering */
    if (!x->base.io || !file_io_dead(x->base.io))
        close_card(x);
    file_io_close(x->base.io);
    free(x->path);
    free(x->xclbin);
    free(x->device_name);
    free(x);
}

/* "PATH,xclbin=FILE[,device=NAME]" */
static int read_url(struct xrt_backend *x, const char *rest, struct hill_why *why)
{
    static const char xclbin[] = ",xclbin=", device[] = ",device=";
    const char *file = strstr(rest, xclbin), *name = strstr(rest, device);

    if (!file || file == rest || (name && name < file))
        return hill_fail(why, HILL_E_INVALID,
                         "cannot open drive 'xrt:%.200s': it is xrt:PATH,xclbin=FILE[,device=NAME]",
                         rest);
    x->path = strndup(rest, (size_t)(file - rest));
    file += sizeof xclbin - 1;
    x->xclbin = name ? strndup(file, (size_t)(name - file)) : strdup(file);
    x->device_name = strdup(name ? name + sizeof device - 1 : VENDOR);
    return x->path && x->xclbin && x->device_name
               ? 0
               : hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
}

static int find_card(struct xrt_backend *x, struct hill_why *why)
{
    struct hill_why detail = {""};
    char platform[128] = "";
    int status = cldevice_open(&x->device, x->device_name, &detail);

    if (status == 0)
        clGetPlatformInfo(x->device.platform, CL_PLATFORM_NAME, sizeof platform - 1, platform,
                          NULL);
    if (status == 0 && !strcasestr(platform, VENDOR))
        status = hill_fail(&detail, HILL_E_NODEV, "OpenCL device '%.100s' is not one of " VENDOR,
                           x->device.name);
    return status == 0 ? 0
                       : hill_fail(why, status, "cannot open drive 'xrt:%.150s': %.200s", x->path,
                                   detail.text);
}

static int xrt_open(struct csd_backend **out, const char *rest, const struct csd_options *options,
                    struct hill_why *why)
{
    struct xrt_backend *x = calloc(1, sizeof *x);

    *out = NULL;
    if (!x)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the drive's backend");
    x->base.ops = &csd_xrt_ops;
    int status = read_url(x, rest, why);
    if (status == 0 && options->on_host) { /* the host's CPU reads what lies on its flash */
        status = csd_file_ops.open(out, x->path, options, why);
        xrt_close(&x->base);
        return status;
    }
    if (status == 0)
        status = find_card(x, why); /* before a pool's file is made */
    if (status == 0)
        status = file_io_open(&x->base.io, x->path, options, why);
    if (status != 0) {
        xrt_close(&x->base);
        return status;
    }
    *out = &x->base;
    return 0;
}

static void xrt_describe(struct csd_backend *backend, char *text, size_t size)
{
    const struct xrt_backend *x = of(backend);
    char device[sizeof x->device.name + 8];
    snprintf(device, sizeof device, "%s, P2P", x->device.name);
    file_io_describe(x->base.io, device, text, size);
}

static struct csd_capabilities xrt_capabilities(struct csd_backend *backend)
{
    (void)backend;
    return (struct csd_capabilities){.casts = false, .host_sees = false};
}

/* ---- load ---- */

static int read_xclbin(const struct xrt_backend *x, unsigned char **bytes, size_t *n,
                       struct hill_why *why)
{
    struct stat st;
    int fd = open(x->xclbin, O_RDONLY | O_CLOEXEC);
    bool there = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
    int err = fd < 0 ? errno : 0;

    *bytes = there ? malloc((size_t)st.st_size) : NULL;
    *n = there ? (size_t)st.st_size : 0;
    bool whole = *bytes && read(fd, *bytes, *n) == (ssize_t)*n;
    if (fd >= 0)
        close(fd);
    return whole ? 0
                 : hill_fail(why, err ? hill_from_errno(err) : HILL_E_INVALID,
                             "cannot read the card's program '%.200s': %s", x->xclbin,
                             err ? strerror(err) : "it is empty, or no file");
}

/* This programs the card. */
static int program_card(struct xrt_backend *x, struct hill_why *why)
{
    unsigned char *bytes;
    size_t n;
    cl_int each = CL_SUCCESS, status;
    int code = read_xclbin(x, &bytes, &n, why);
    if (code != 0)
        return code;
    const unsigned char *binary = bytes;
    x->queue = clCreateCommandQueue(x->device.context, x->device.device,
                                    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &status);
    if (status == CL_SUCCESS)
        x->program = clCreateProgramWithBinary(x->device.context, 1, &x->device.device, &n, &binary,
                                               &each, &status);
    free(bytes);
    if (status == CL_SUCCESS && each == CL_SUCCESS)
        x->kernel = clCreateKernel(x->program,
                                   kv_digest_bits(&x->loaded.geometry) == 4 ? "hill_score_int4"
                                                                            : "hill_score_int8",
                                   &status);
    if (status == CL_SUCCESS && each == CL_SUCCESS)
        return 0;
    return hill_fail(why, HILL_E_NODEV, "cannot program '%.100s' with '%.150s': %s", x->device.name,
                     x->xclbin, cldevice_strerror(status == CL_SUCCESS ? each : status));
}

static void *pages(size_t bytes)
{
    return aligned_alloc(CSD_ALIGN, page_ceil(bytes));
}

/* Memory of the card that flash is read into, mapped for good. */
static int make_window(struct xrt_backend *x, struct xrt_batch *b, struct hill_why *why)
{
    struct xrt_mem_ext_ptr ext = {.flags = XRT_EXT_P2P_BUFFER | DIGESTS, .kernel = x->kernel};
    uint64_t bytes = x->loaded.batch_bytes;
    cl_int status;

    b->digests =
        clCreateBuffer(x->device.context, CL_MEM_READ_ONLY | XRT_MEM_EXT_PTR, bytes, &ext, &status);
    if (status == CL_SUCCESS)
        b->window = clEnqueueMapBuffer(x->queue, b->digests, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                       bytes, 0, NULL, NULL, &status);
    if (status == CL_SUCCESS && b->window && (uintptr_t)b->window % CSD_ALIGN == 0)
        return 0;
    return hill_fail(why, HILL_E_NODEV,
                     "cannot map a P2P buffer of %llu bytes of '%.100s': %s (xbutil configure "
                     "--p2p enable, and above-4G decoding?)",
                     (unsigned long long)bytes, x->device.name,
                     status == CL_SUCCESS ? "no window" : cldevice_strerror(status));
}

static int make_batch(struct xrt_backend *x, struct xrt_batch *b, struct hill_why *why)
{
    size_t table = SCORE_BATCH_PIECES * HLS_RUN_WORDS * sizeof *b->table;
    size_t scores = (size_t)x->groups_max * KV_GROUP_TOKENS * sizeof *b->groups;
    cl_int status;
    int code = make_window(x, b, why);

    if (code != 0)
        return code;
    b->table = pages(table);
    b->groups = pages(scores);
    b->out = pages(scores);
    if (!b->table || !b->groups || !b->out)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a scoring batch");
    b->runs = clCreateBuffer(x->device.context, CL_MEM_READ_ONLY, table, NULL, &status);
    if (status == CL_SUCCESS)
        b->scores = clCreateBuffer(x->device.context, CL_MEM_WRITE_ONLY, scores, NULL, &status);
    return cldevice_check(status, "clCreateBuffer of a batch", why);
}

/* A mapping that failed may only have been logged: a page is read both ways and compared. */
static int try_window(struct xrt_backend *x, struct hill_why *why)
{
    uint8_t *page = pages(CSD_ALIGN), *window = x->batches[0].window;
    const struct csd_extent both[] = {{.memory = window, .bytes = CSD_ALIGN},
                                      {.memory = page, .bytes = CSD_ALIGN}};
    int status = page ? file_io_run(x->base.io, both, 2, why)
                      : hill_fail(why, HILL_E_NOMEM, "no memory for a page");
    if (status == 0 && memcmp(page, window, CSD_ALIGN) != 0)
        status = hill_fail(why, HILL_E_IO,
                           "what is read from '%.150s' into the window of '%.100s' is not what "
                           "lies there",
                           x->path, x->device.name);
    free(page);
    return status;
}

static int xrt_load(struct csd_backend *backend, const struct csd_program *program,
                    struct hill_why *why)
{
    struct xrt_backend *x = of(backend);
    size_t query = kv_query_bytes_max(&program->geometry);
    cl_int status;

    x->loaded = *program;
    x->groups_max = (uint32_t)(program->batch_bytes / kv_group_bytes(&program->geometry));
    int code = program_card(x, why);
    if (code != 0)
        return code;
    query = (query + 3) / 4 * 4; /* the kernel takes words */
    x->query_bytes = pages(query);
    if (!x->query_bytes)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a query");
    x->query = clCreateBuffer(x->device.context, CL_MEM_READ_ONLY, query, NULL, &status);
    code = cldevice_check(status, "clCreateBuffer of the query", why);
    for (uint32_t b = 0; code == 0 && b < SCORE_BATCHES; b++)
        code = make_batch(x, &x->batches[b], why);
    return code == 0 ? try_window(x, why) : code;
}

/* ---- transfers ---- */

static int xrt_batch(struct csd_backend *backend, uint32_t b, uint8_t **memory,
                     struct hill_why *why)
{
    (void)why;
    *memory = of(backend)->batches[b].window;
    return 0;
}

/* ---- scoring ---- */

static int xrt_query(struct csd_backend *backend, const struct kv_query *query,
                     struct hill_why *why)
{
    struct xrt_backend *x = of(backend);
    const struct kv_geometry *g = &x->loaded.geometry;

    if (x->queried) { /* no launch has waited where flash could not be read */
        cl_int status = clWaitForEvents(1, &x->queried);
        release_event(&x->queried);
        if (status != CL_SUCCESS)
            return cldevice_check(status, "the query before", why);
    }
    uint32_t bytes = kv_query_send(g, query, x->query_bytes);
    x->importance = query->importance;
    /* not waited for: launches do */
    return cldevice_check(clEnqueueWriteBuffer(x->queue, x->query, CL_FALSE, 0, bytes,
                                               x->query_bytes, 0, NULL, &x->queried),
                          "clEnqueueWriteBuffer of the query", why);
}

/* Pieces as the kernel takes them; groups of scores that they make, 0: they do not fit. */
static uint32_t fill_table(const struct xrt_backend *x, struct xrt_batch *b,
                           const struct score_piece *pieces, uint32_t n_pieces)
{
    uint32_t group = kv_group_bytes(&x->loaded.geometry), n_groups = 0;

    if (n_pieces > SCORE_BATCH_PIECES)
        return 0;
    for (uint32_t i = 0; i < n_pieces; i++) {
        uint32_t n = kv_groups_touched(0, pieces[i].n_slots), *run = b->table + i * HLS_RUN_WORDS;
        if (n == 0 || pieces[i].at % BEAT_BYTES != 0 || n > x->groups_max - n_groups ||
            pieces[i].at + (uint64_t)n * group > x->loaded.batch_bytes)
            return 0;
        run[0] = pieces[i].at / BEAT_BYTES;
        run[1] = n;
        run[2] = n_groups;
        run[3] = 0;
        b->slots[i] = pieces[i].n_slots;
        n_groups += n;
    }
    b->n_pieces = n_pieces;
    return n_groups;
}

static cl_int set_arguments(const struct xrt_backend *x, const struct xrt_batch *b)
{
    const struct kv_geometry *g = &x->loaded.geometry;
    cl_uint heads = g->n_kv_heads, share = g->n_heads / heads, words = kv_head_words(g);
    const struct {
        size_t bytes;
        const void *value;
    } arguments[] = {
        [DIGESTS] = {sizeof(cl_mem), &b->digests}, [RUNS] = {sizeof(cl_mem), &b->runs},
        [QUERY] = {sizeof(cl_mem), &x->query},     [N_RUNS] = {sizeof(cl_uint), &b->n_pieces},
        [KV_HEADS] = {sizeof(cl_uint), &heads},    [QUERY_HEADS] = {sizeof(cl_uint), &share},
        [HEAD_WORDS] = {sizeof(cl_uint), &words},  [IMPORTANCE] = {sizeof(cl_uint), &x->importance},
        [SCORES] = {sizeof(cl_mem), &b->scores},
    };
    cl_int status = CL_SUCCESS;
    for (cl_uint i = 0; status == CL_SUCCESS && i <= SCORES; i++)
        status = clSetKernelArg(x->kernel, i, arguments[i].bytes, arguments[i].value);
    return status;
}

static int xrt_execute(struct csd_backend *backend, uint32_t number,
                       const struct score_piece *pieces, uint32_t n_pieces, struct hill_why *why)
{
    struct xrt_backend *x = of(backend);
    struct xrt_batch *b = &x->batches[number];
    uint32_t n_groups = fill_table(x, b, pieces, n_pieces);
    cl_event before[2] = {x->queried, NULL}, run = NULL;

    if (n_groups == 0)
        return hill_fail(why, HILL_E_INVALID, "scoring batch does not fit its buffer");
    backend->done.launches++;
    /* digests are there: finish has waited for them, and a P2P buffer needs no migration */
    cl_int status = clEnqueueWriteBuffer(x->queue, b->runs, CL_FALSE, 0,
                                         n_pieces * HLS_RUN_WORDS * sizeof *b->table, b->table, 0,
                                         NULL, &before[1]);
    if (status == CL_SUCCESS)
        status = set_arguments(x, b);
    if (status == CL_SUCCESS)
        status = clEnqueueTask(x->queue, x->kernel, 2, before, &run);
    if (status == CL_SUCCESS)
        status = clEnqueueReadBuffer(x->queue, b->scores, CL_FALSE, 0,
                                     n_groups * KV_GROUP_TOKENS * sizeof *b->groups, b->groups, 1,
                                     &run, &b->read);
    if (status == CL_SUCCESS)
        status = clFlush(x->queue);
    release_event(&run);
    release_event(&before[1]);
    if (status != CL_SUCCESS)
        clFinish(x->queue); /* what has gone may still read the table */
    return cldevice_check(status, "scoring launch", why);
}

/* Scores of lanes without a slot, at a piece's end, are left out. */
static int xrt_wait(struct csd_backend *backend, uint32_t number, const uint16_t **scores,
                    struct hill_why *why)
{
    struct xrt_batch *b = &of(backend)->batches[number];
    uint32_t from = 0, to = 0;

    *scores = b->out;
    if (!b->read)
        return 0;
    cl_int status = clWaitForEvents(1, &b->read);
    release_event(&b->read);
    for (uint32_t i = 0; status == CL_SUCCESS && i < b->n_pieces; i++) {
        memcpy(b->out + to, b->groups + from, b->slots[i] * sizeof *b->out);
        to += b->slots[i];
        from += kv_groups_touched(0, b->slots[i]) * KV_GROUP_TOKENS;
    }
    return cldevice_check(status, "scoring launch", why);
}

const struct csd_ops csd_xrt_ops = {
    .scheme = "xrt",
    .open = xrt_open,
    .close = xrt_close,
    .describe = xrt_describe,
    .capabilities = xrt_capabilities,
    .load = xrt_load,
    .batch = xrt_batch,
    .query = xrt_query,
    .execute = xrt_execute,
    .wait = xrt_wait,
};
