/*
 * tests/csd_agent/xrt/mock_xrt.c - a stand-in for Xilinx' OpenCL runtime and a SmartSSD: a platform
 * that the OpenCL loader finds through OCL_ICD_VENDORS, with one accelerator.
 *
 * What: the calls that csd_agent/xrt_backend.c makes, and no others. It says which rules were
 * broken (mock_xrt.report), after public descriptions of XRT and of the card:
 *     - the card is programmed before there are kernels, and kernels before P2P buffers
 *     - a P2P buffer has exactly these flags, a size of whole pages, its kernel and argument; it is
 *       mapped once, whole, and stays so; it is never written, read or copied by a command
 *     - no buffer is released while it is mapped or a command that uses it has not run
 * Its queue has no order, and is as unkind as that allows: a command runs only when something waits
 * for it, or for one that waits for it, and what else is enqueued stays behind. A command that runs
 * before one that was enqueued earlier and touches the same buffer broke a rule (unless both read).
 * The kernel is csd_agent/fpga/hls_score.c itself, so scores are the card's. Concurrency: one
 * thread.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl_icd.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "csd_agent/fpga/hls_score.h"
#include "csd_agent/xrt_extensions.h"
#include "tests/csd_agent/xrt/mock_xrt.h"

#define PAGE     4096u
#define ARGS     9u
#define SCORES   8u /* the argument that is written */
#define WAITS    4u
#define COMMANDS 256u

/* Objects begin with the loader's table. */
struct object {
    const cl_icd_dispatch *dispatch;
    int refs;
};

struct _cl_platform_id {
    struct object o;
};
struct _cl_device_id {
    struct object o;
};
struct _cl_context {
    struct object o;
};
struct _cl_command_queue {
    struct object o;
};
struct _cl_program {
    struct object o;
};
struct _cl_kernel {
    struct object o;
    bool int4;
    unsigned set; /* bits: arguments */
    uint8_t args[ARGS][sizeof(void *)];
};
struct _cl_mem {
    struct object o;
    bool p2p, mapped, was_mapped;
    size_t bytes;
    uint8_t *memory;
};
struct _cl_event {
    struct object o;
    bool done;
};

enum kind { WRITE, READ, TASK };
struct command {
    enum kind kind;
    cl_event event, waits[WAITS];
    unsigned n_waits;
    cl_mem buffer; /* of write and read; of a task its arguments */
    size_t bytes;
    void *to;
    const void *from;
    uint64_t sum;             /* of what a write takes, when it was enqueued */
    struct _cl_kernel kernel; /* as it was set when it was enqueued */
};

static const cl_icd_dispatch table;
static struct _cl_platform_id platform = {{&table, 1}};
static struct _cl_device_id device = {{&table, 1}};
static struct command queued[COMMANDS];
static unsigned n_queued, n_live;
static bool programmed;
static char report_text[4096], calls_text[16384];
static const char *failing;

/* ---- what tests ask ---- */

static void append(char *text, size_t room, const char *format, va_list arguments)
{
    size_t used = strlen(text);
    vsnprintf(text + used, room - used, format, arguments);
}

static void broken(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append(report_text, sizeof report_text, format, arguments);
    va_end(arguments);
    strncat(report_text, "\n", sizeof report_text - strlen(report_text) - 1);
}

/* True: it is to fail. */
static bool called(const char *name)
{
    if (strlen(calls_text) + strlen(name) + 2 < sizeof calls_text)
        strcat(strcat(calls_text, name), " ");
    return failing && strcmp(failing, name) == 0;
}

static const char *report(void)
{
    return report_text;
}

static const char *calls(void)
{
    return calls_text;
}

static unsigned live(void)
{
    return n_live;
}

static void refuse(const char *call)
{
    failing = call;
}

static void reset(void)
{
    report_text[0] = calls_text[0] = '\0';
    failing = NULL;
}

__attribute__((visibility("default")))
const struct mock_xrt mock_xrt = {report, calls, live, refuse, reset};

/* ---- objects ---- */

static void *create(size_t bytes)
{
    struct object *o = calloc(1, bytes);
    if (!o)
        abort();
    o->dispatch = &table;
    o->refs = 1;
    n_live++;
    return o;
}

/* True: it was the last one. */
static bool let_go(struct object *o)
{
    if (--o->refs > 0)
        return false;
    n_live--;
    return true;
}

static cl_int answer(const void *value, size_t bytes, size_t room, void *to, size_t *size)
{
    if (size)
        *size = bytes;
    if (to && room < bytes)
        return CL_INVALID_VALUE;
    if (to)
        memcpy(to, value, bytes);
    return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t room, void *to, size_t *size)
{
    return answer(text, strlen(text) + 1, room, to, size);
}

/* ---- platform, device, context, queue ---- */

static cl_int CL_API_CALL get_platforms(cl_uint room, cl_platform_id *out, cl_uint *n)
{
    if (n)
        *n = 1;
    if (out && room > 0)
        out[0] = &platform;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id p, cl_platform_info what, size_t room,
                                        void *to, size_t *size)
{
    (void)p;
    const char *text = what == CL_PLATFORM_NAME             ? "Xilinx"
                       : what == CL_PLATFORM_VENDOR         ? "a stand-in"
                       : what == CL_PLATFORM_VERSION        ? "OpenCL 1.2"
                       : what == CL_PLATFORM_PROFILE        ? "EMBEDDED_PROFILE"
                       : what == CL_PLATFORM_EXTENSIONS     ? "cl_khr_icd"
                       : what == CL_PLATFORM_ICD_SUFFIX_KHR ? "mock"
                                                            : NULL;
    return text ? answer_text(text, room, to, size) : CL_INVALID_VALUE;
}

static cl_int CL_API_CALL get_devices(cl_platform_id p, cl_device_type type, cl_uint room,
                                      cl_device_id *out, cl_uint *n)
{
    (void)p;
    if (!(type & (CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_DEFAULT)))
        return CL_DEVICE_NOT_FOUND;
    if (n)
        *n = 1;
    if (out && room > 0)
        out[0] = &device;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL device_info(cl_device_id d, cl_device_info what, size_t room, void *to,
                                      size_t *size)
{
    const cl_device_type type = CL_DEVICE_TYPE_ACCELERATOR;
    (void)d;
    if (what == CL_DEVICE_NAME)
        return answer_text("mock_smartssd", room, to, size);
    return what == CL_DEVICE_TYPE ? answer(&type, sizeof type, room, to, size) : CL_INVALID_VALUE;
}

static cl_context CL_API_CALL create_context(const cl_context_properties *properties, cl_uint n,
                                             const cl_device_id *devices,
                                             void(CL_CALLBACK *notify)(const char *, const void *,
                                                                       size_t, void *),
                                             void *data, cl_int *status)
{
    (void)properties, (void)n, (void)devices, (void)notify, (void)data;
    *status = called("context") ? CL_DEVICE_NOT_AVAILABLE : CL_SUCCESS;
    return *status ? NULL : create(sizeof(struct _cl_context));
}

static cl_int CL_API_CALL release_context(cl_context c)
{
    if (let_go(&c->o))
        free(c);
    if (n_live)
        broken("the context is released before %u other objects", n_live);
    programmed = false;
    return CL_SUCCESS;
}

static cl_command_queue CL_API_CALL create_queue(cl_context c, cl_device_id d,
                                                 cl_command_queue_properties properties,
                                                 cl_int *status)
{
    (void)c, (void)d;
    if (!(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE))
        broken("a queue in order");
    *status = called("queue") ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS;
    return *status ? NULL : create(sizeof(struct _cl_command_queue));
}

static cl_int CL_API_CALL release_queue(cl_command_queue q)
{
    if (n_queued)
        broken("the queue is released with %u commands in it", n_queued);
    if (let_go(&q->o))
        free(q);
    return CL_SUCCESS;
}

/* ---- program, kernel ---- */

static cl_program CL_API_CALL create_program(cl_context c, cl_uint n, const cl_device_id *devices,
                                             const size_t *lengths, const unsigned char **binaries,
                                             cl_int *each, cl_int *status)
{
    (void)c, (void)n, (void)devices;
    bool right = lengths[0] > sizeof MOCK_XCLBIN_MAGIC &&
                 memcmp(binaries[0], MOCK_XCLBIN_MAGIC, sizeof MOCK_XCLBIN_MAGIC - 1) == 0;
    *status = called("program") || !right ? CL_INVALID_BINARY : CL_SUCCESS;
    if (each)
        *each = *status;
    if (*status)
        return NULL;
    programmed = true;
    return create(sizeof(struct _cl_program));
}

static cl_int CL_API_CALL release_program(cl_program p)
{
    if (let_go(&p->o))
        free(p);
    return CL_SUCCESS;
}

static cl_kernel CL_API_CALL create_kernel(cl_program p, const char *name, cl_int *status)
{
    bool int4 = strcmp(name, "hill_score_int4") == 0;
    (void)p;
    *status = called("kernel") || (!int4 && strcmp(name, "hill_score_int8") != 0)
                  ? CL_INVALID_KERNEL_NAME
                  : CL_SUCCESS;
    if (*status)
        return NULL;
    cl_kernel k = create(sizeof *k);
    k->int4 = int4;
    return k;
}

static cl_int CL_API_CALL release_kernel(cl_kernel k)
{
    if (let_go(&k->o))
        free(k);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL set_argument(cl_kernel k, cl_uint i, size_t bytes, const void *value)
{
    bool memory = i < 3 || i == SCORES;
    if (i >= ARGS || bytes != (memory ? sizeof(cl_mem) : sizeof(cl_uint)))
        return CL_INVALID_ARG_SIZE;
    memcpy(k->args[i], value, bytes);
    k->set |= 1u << i;
    return CL_SUCCESS;
}

static cl_mem argument_memory(const struct _cl_kernel *k, unsigned i)
{
    cl_mem m;
    memcpy(&m, k->args[i], sizeof m);
    return m;
}

static uint32_t argument_number(const struct _cl_kernel *k, unsigned i)
{
    uint32_t n;
    memcpy(&n, k->args[i], sizeof n);
    return n;
}

/* ---- buffers ---- */

static void check_p2p(cl_mem_flags flags, size_t bytes, const void *host)
{
    const struct xrt_mem_ext_ptr *ext = host;
    if (!programmed)
        broken("a P2P buffer before the card is programmed");
    if (flags != (CL_MEM_READ_ONLY | XRT_MEM_EXT_PTR))
        broken("a P2P buffer with the flags %llx", (unsigned long long)flags);
    if (bytes % PAGE != 0)
        broken("a P2P buffer of %zu bytes, no whole pages", bytes);
    if (!ext || (ext->flags & ~0xffu) != XRT_EXT_P2P_BUFFER || ext->host_ptr || !ext->kernel ||
        (ext->flags & 0xffu) != 0)
        broken("a P2P buffer without its bit, its kernel or its argument");
}

static cl_mem CL_API_CALL create_buffer(cl_context c, cl_mem_flags flags, size_t bytes, void *host,
                                        cl_int *status)
{
    (void)c;
    bool p2p = (flags & XRT_MEM_EXT_PTR & ~(cl_mem_flags)0x7fffffff) != 0;
    if (p2p)
        check_p2p(flags, bytes, host);
    else if (host || (flags & CL_MEM_USE_HOST_PTR))
        broken("an ordinary buffer over host memory");
    *status = called(p2p ? "p2p-buffer" : "buffer") ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_SUCCESS;
    if (*status)
        return NULL;
    cl_mem m = create(sizeof *m);
    m->p2p = p2p;
    m->bytes = bytes;
    m->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->memory == MAP_FAILED)
        abort();
    memset(m->memory, 0xee, bytes);
    return m;
}

static bool uses(const struct command *c, cl_mem m)
{
    return c->kind != TASK
               ? c->buffer == m
               : argument_memory(&c->kernel, 0) == m || argument_memory(&c->kernel, 1) == m ||
                     argument_memory(&c->kernel, 2) == m ||
                     argument_memory(&c->kernel, SCORES) == m;
}

static cl_int CL_API_CALL release_buffer(cl_mem m)
{
    if (m->mapped)
        broken("a buffer is released while it is mapped");
    for (unsigned i = 0; i < n_queued; i++)
        if (uses(&queued[i], m))
            broken("a buffer is released while a command that uses it has not run");
    if (let_go(&m->o)) {
        munmap(m->memory, m->bytes);
        free(m);
    }
    return CL_SUCCESS;
}

/* ---- commands ---- */

static bool changes(const struct command *c, cl_mem m)
{
    return c->kind == WRITE ? c->buffer == m
                            : c->kind == TASK && argument_memory(&c->kernel, SCORES) == m;
}

static uint64_t sum_of(const struct command *c)
{
    uint64_t sum = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < c->bytes; i++)
        sum = (sum ^ ((const uint8_t *)c->from)[i]) * UINT64_C(1099511628211);
    return sum;
}

static void run(struct command *c)
{
    static const char *const names[] = {"a write", "a read", "the kernel"};
    cl_mem touched[4];
    unsigned n = 0;
    if (c->kind == TASK)
        for (unsigned i = 0; i < ARGS; i += i == 2 ? SCORES - 2 : 1)
            touched[n++] = argument_memory(&c->kernel, i);
    else
        touched[n++] = c->buffer;
    /* what was enqueued before it and has not run */
    for (const struct command *other = queued; other < c; other++)
        for (unsigned i = 0; i < n; i++)
            if (uses(other, touched[i]) && (changes(other, touched[i]) || changes(c, touched[i])))
                broken("%s runs before %s that was enqueued earlier", names[c->kind],
                       names[other->kind]);
    if (c->kind == WRITE && c->sum != sum_of(c))
        broken("what a write takes has changed before it runs");
    if (c->kind != TASK)
        memcpy(c->to, c->from, c->bytes);
    else
        (c->kernel.int4 ? hill_score_int4 : hill_score_int8)(
            (const uint32_t *)(void *)touched[0]->memory,
            (const uint32_t *)(void *)touched[1]->memory,
            (const uint32_t *)(void *)touched[2]->memory, argument_number(&c->kernel, 3),
            argument_number(&c->kernel, 4), argument_number(&c->kernel, 5),
            argument_number(&c->kernel, 6), argument_number(&c->kernel, 7),
            (uint16_t *)(void *)touched[3]->memory);
}

static void release_of_event(cl_event e)
{
    if (let_go(&e->o))
        free(e);
}

static void run_for(cl_event event)
{
    for (unsigned i = 0; i < n_queued && !event->done; i++) {
        if (queued[i].event != event)
            continue;
        const struct command gone = queued[i];
        for (unsigned w = 0; w < gone.n_waits; w++)
            run_for(gone.waits[w]);
        for (i = 0; queued[i].event != event; i++) /* those have left the queue */
            ;
        run(&queued[i]);
        event->done = true;
        memmove(&queued[i], &queued[i + 1], (--n_queued - i) * sizeof *queued);
        for (unsigned w = 0; w < gone.n_waits; w++)
            release_of_event(gone.waits[w]);
        release_of_event(event);
        return;
    }
}

static cl_int enqueue(struct command c, cl_uint n_waits, const cl_event *waits, cl_event *event)
{
    if (n_queued == COMMANDS || n_waits > WAITS)
        abort();
    c.event = create(sizeof *c.event);
    for (c.n_waits = 0; c.n_waits < n_waits; c.n_waits++) {
        c.waits[c.n_waits] = waits[c.n_waits];
        waits[c.n_waits]->o.refs++;
    }
    queued[n_queued++] = c;
    if (event) {
        c.event->o.refs++;
        *event = c.event;
    }
    return CL_SUCCESS;
}

static void *CL_API_CALL map_buffer(cl_command_queue q, cl_mem m, cl_bool blocking,
                                    cl_map_flags flags, size_t offset, size_t bytes, cl_uint n,
                                    const cl_event *waits, cl_event *event, cl_int *status)
{
    (void)q, (void)flags, (void)waits, (void)event;
    *status = called("map") ? CL_MAP_FAILURE : CL_SUCCESS;
    if (*status)
        return NULL;
    if (!m->p2p || m->was_mapped || offset != 0 || bytes != m->bytes || !blocking || n)
        broken("a mapping that is not of a whole P2P buffer, once");
    m->mapped = m->was_mapped = true;
    return m->memory;
}

static cl_int CL_API_CALL unmap(cl_command_queue q, cl_mem m, void *memory, cl_uint n,
                                const cl_event *waits, cl_event *event)
{
    (void)q, (void)n, (void)waits, (void)event;
    called("unmap");
    if (!m->mapped || memory != m->memory)
        broken("what is unmapped was not mapped");
    m->mapped = false;
    return CL_SUCCESS;
}

/* A copy between the host and a buffer. */
static cl_int copy(struct command c, size_t offset, cl_bool blocking, cl_uint n,
                   const cl_event *waits, cl_event *event)
{
    cl_event own;
    if (called(c.kind == WRITE ? "write" : "read"))
        return CL_OUT_OF_RESOURCES;
    if (c.buffer->p2p)
        broken("a P2P buffer is copied by a command");
    if (offset + c.bytes > c.buffer->bytes)
        broken("a copy beyond its buffer");
    c.sum = c.kind == WRITE ? sum_of(&c) : 0;
    cl_int status = enqueue(c, n, waits, &own);
    if (blocking)
        run_for(own);
    if (event)
        *event = own;
    else
        release_of_event(own);
    return status;
}

static cl_int CL_API_CALL write_buffer(cl_command_queue q, cl_mem m, cl_bool blocking,
                                       size_t offset, size_t bytes, const void *from, cl_uint n,
                                       const cl_event *waits, cl_event *event)
{
    (void)q;
    const struct command c = {
        .kind = WRITE, .buffer = m, .bytes = bytes, .to = m->memory + offset, .from = from};
    return copy(c, offset, blocking, n, waits, event);
}

static cl_int CL_API_CALL read_buffer(cl_command_queue q, cl_mem m, cl_bool blocking, size_t offset,
                                      size_t bytes, void *to, cl_uint n, const cl_event *waits,
                                      cl_event *event)
{
    (void)q;
    const struct command c = {
        .kind = READ, .buffer = m, .bytes = bytes, .to = to, .from = m->memory + offset};
    return copy(c, offset, blocking, n, waits, event);
}

static cl_int CL_API_CALL task(cl_command_queue q, cl_kernel k, cl_uint n, const cl_event *waits,
                               cl_event *event)
{
    (void)q;
    if (called("task"))
        return CL_OUT_OF_RESOURCES;
    if (k->set != (1u << ARGS) - 1)
        return CL_INVALID_KERNEL_ARGS;
    cl_mem digests = argument_memory(k, 0);
    if (!digests->p2p || !digests->mapped)
        broken("the kernel takes digests from what is no mapped P2P buffer");
    return enqueue((struct command){.kind = TASK, .kernel = *k}, n, waits, event);
}

static cl_int CL_API_CALL wait_for(cl_uint n, const cl_event *events)
{
    called("wait");
    for (cl_uint i = 0; i < n; i++)
        run_for(events[i]);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL release_event(cl_event e)
{
    release_of_event(e);
    return CL_SUCCESS;
}

static cl_int CL_API_CALL flush(cl_command_queue q)
{
    (void)q;
    return CL_SUCCESS;
}

static cl_int CL_API_CALL finish(cl_command_queue q)
{
    (void)q;
    while (n_queued)
        run_for(queued[0].event);
    return CL_SUCCESS;
}

/* ---- the loader ---- */

static void *CL_API_CALL extension(const char *name)
{
    return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void *)(uintptr_t)get_platforms
           : strcmp(name, "clGetPlatformInfo") == 0    ? (void *)(uintptr_t)platform_info
                                                       : NULL;
}

CL_API_ENTRY __attribute__((visibility("default"))) void *CL_API_CALL
clGetExtensionFunctionAddress(const char *name)
{
    return extension(name);
}

static const cl_icd_dispatch table = {
    .clGetPlatformIDs = get_platforms,
    .clGetPlatformInfo = platform_info,
    .clGetDeviceIDs = get_devices,
    .clGetDeviceInfo = device_info,
    .clCreateContext = create_context,
    .clReleaseContext = release_context,
    .clCreateCommandQueue = create_queue,
    .clReleaseCommandQueue = release_queue,
    .clCreateBuffer = create_buffer,
    .clReleaseMemObject = release_buffer,
    .clCreateProgramWithBinary = create_program,
    .clReleaseProgram = release_program,
    .clCreateKernel = create_kernel,
    .clReleaseKernel = release_kernel,
    .clSetKernelArg = set_argument,
    .clWaitForEvents = wait_for,
    .clReleaseEvent = release_event,
    .clFlush = flush,
    .clFinish = finish,
    .clEnqueueReadBuffer = read_buffer,
    .clEnqueueWriteBuffer = write_buffer,
    .clEnqueueMapBuffer = map_buffer,
    .clEnqueueUnmapMemObject = unmap,
    .clEnqueueTask = task,
    .clGetExtensionFunctionAddress = extension,
};
