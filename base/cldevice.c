/* base/cldevice.c - see cldevice.h. */
#include "base/cldevice.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>

#include "base/embed.h"
#include "base/log.h"

HILL_EMBED(opencl_builtins_cl, "base/opencl_builtins.cl");

#define PLATFORMS_MAX 16u
#define DEVICES_MAX   64u

struct candidate {
    cl_platform_id platform;
    cl_device_id device;
    cl_device_type type;
    char name[CLDEVICE_NAME_BYTES];
    char vendor[64]; /* of the platform: "The pocl project" is how people call theirs */
};

const char *cldevice_strerror(cl_int status)
{
    static const struct {
        cl_int status;
        const char *name;
    } names[] = {
        {CL_SUCCESS, "CL_SUCCESS"},
        {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
        {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
        {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
        {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
        {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
        {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
        {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
        {CL_MAP_FAILURE, "CL_MAP_FAILURE"},
        {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
        {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT"},
        {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
        {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT"},
        {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
        {CL_INVALID_KERNEL, "CL_INVALID_KERNEL"},
        {CL_INVALID_ARG_INDEX, "CL_INVALID_ARG_INDEX"},
        {CL_INVALID_ARG_VALUE, "CL_INVALID_ARG_VALUE"},
        {CL_INVALID_ARG_SIZE, "CL_INVALID_ARG_SIZE"},
        {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
        {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
        {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
        {CL_INVALID_EVENT_WAIT_LIST, "CL_INVALID_EVENT_WAIT_LIST"},
        {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE"},
        {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE"},
        {-1001, "no OpenCL platform installed"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown OpenCL error";
}

int cldevice_check(cl_int status, const char *what, struct hill_why *why)
{
    if (status == CL_SUCCESS)
        return 0;
    bool memory = status == CL_MEM_OBJECT_ALLOCATION_FAILURE || status == CL_OUT_OF_HOST_MEMORY ||
                  status == CL_INVALID_BUFFER_SIZE;
    return hill_fail(why, memory ? HILL_E_NOMEM : HILL_E_NODEV, "%s: %s (%d)", what,
                     cldevice_strerror(status), status);
}

void cldevice_set_threads(uint32_t threads)
{
    char text[16];
    if (!threads)
        return;
    snprintf(text, sizeof text, "%u", threads);
    setenv("POCL_MAX_PTHREAD_COUNT", text, 0);
}

/* PoCL starts its threads at the first question for devices; they take over the name of the thread
 * that asks, and "pocl" tells them from it in ps -L, top -H and perf. */
static cl_int ask_platforms(cl_platform_id *platforms, cl_uint *n_platforms)
{
    char own[16] = "";
    cl_uint ignored = 0;
    prctl(PR_GET_NAME, own);
    prctl(PR_SET_NAME, "pocl");
    cl_int status = clGetPlatformIDs(PLATFORMS_MAX, platforms, n_platforms);
    for (cl_uint p = 0; status == CL_SUCCESS && p < *n_platforms && p < PLATFORMS_MAX; p++)
        clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, 0, NULL, &ignored);
    prctl(PR_SET_NAME, own);
    return status;
}

/* Else another device is chosen, and nobody hears why. */
static void warn_of_platform(cl_platform_id platform, cl_int status)
{
    char name[96] = "";
    if (status == CL_DEVICE_NOT_FOUND)
        return;
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
    log_warn("OpenCL platform '%s' does not name its devices: %s (%d); going on without them", name,
             cldevice_strerror(status), status);
}

/* Fills table (at most DEVICES_MAX); returns the count or a negative code. */
static int list_candidates(struct candidate *table, struct hill_why *why)
{
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_uint n_platforms = 0;
    cl_int status = ask_platforms(platforms, &n_platforms);
    if (status != CL_SUCCESS || n_platforms == 0)
        return hill_fail(why, HILL_E_NODEV, "no OpenCL platform found: %s",
                         cldevice_strerror(status == CL_SUCCESS ? -1001 : status));
    if (n_platforms > PLATFORMS_MAX)
        n_platforms = PLATFORMS_MAX;
    unsigned count = 0;
    for (cl_uint p = 0; p < n_platforms; p++) {
        cl_device_id devices[DEVICES_MAX];
        cl_uint n_devices = 0;
        status = clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, DEVICES_MAX, devices, &n_devices);
        if (status != CL_SUCCESS) {
            warn_of_platform(platforms[p], status);
            continue;
        }
        for (cl_uint d = 0; d < n_devices && d < DEVICES_MAX && count < DEVICES_MAX; d++) {
            struct candidate *c = &table[count++];
            char platform_name[96] = "", device_name[128] = "";
            clGetPlatformInfo(platforms[p], CL_PLATFORM_NAME, sizeof platform_name - 1,
                              platform_name, NULL);
            clGetDeviceInfo(devices[d], CL_DEVICE_NAME, sizeof device_name - 1, device_name, NULL);
            memset(c->vendor, 0, sizeof c->vendor);
            clGetPlatformInfo(platforms[p], CL_PLATFORM_VENDOR, sizeof c->vendor - 1, c->vendor,
                              NULL);
            c->platform = platforms[p];
            c->device = devices[d];
            c->type = 0;
            clGetDeviceInfo(devices[d], CL_DEVICE_TYPE, sizeof c->type, &c->type, NULL);
            snprintf(c->name, sizeof c->name, "%s / %s", platform_name, device_name);
        }
    }
    if (count == 0)
        return hill_fail(why, HILL_E_NODEV, "no OpenCL device found on %u platforms", n_platforms);
    return (int)count;
}

/* The index of the chosen device or a negative code. */
static int choose(const struct candidate *table, int count, const char *choice,
                  struct hill_why *why)
{
    if (!choice || !*choice) {
        for (int i = 0; i < count; i++)
            if (table[i].type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR))
                return i;
        return 0;
    }
    char *end;
    unsigned long number = strtoul(choice, &end, 10);
    if (isdigit((unsigned char)*choice) && *end == '\0') {
        if (number >= (unsigned long)count)
            return hill_fail(why, HILL_E_NODEV,
                             "no OpenCL device %s: there are %d, numbered from 0", choice, count);
        return (int)number;
    }
    for (int i = 0; i < count; i++)
        if (strcasestr(table[i].name, choice) || strcasestr(table[i].vendor, choice))
            return i;
    return hill_fail(why, HILL_E_NODEV,
                     "no OpenCL device is called '%.100s'; the first is '%.200s'", choice,
                     table[0].name);
}

static bool takes_groups_of(cl_device_id device, size_t wanted)
{
    size_t items = 0, sizes[8] = {0}; /* of each dimension; three are usual */
    clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof items, &items, NULL);
    clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, NULL);
    return items >= wanted && sizes[0] >= wanted;
}

static bool has_groups(cl_device_id device, cl_device_type type)
{
    cl_device_local_mem_type local = CL_NONE;
    cl_ulong bytes = 0;
    clGetDeviceInfo(device, CL_DEVICE_LOCAL_MEM_TYPE, sizeof local, &local, NULL);
    clGetDeviceInfo(device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return (type & CL_DEVICE_TYPE_GPU) && local == CL_LOCAL && bytes >= CLDEVICE_LOCAL_BYTES &&
           takes_groups_of(device, CLDEVICE_GROUP_ITEMS);
}

/* cl_nv_device_attribute_query: other devices do not know these numbers, and refuse. */
static bool has_dp4a(cl_device_id device)
{
    const cl_device_info major_nv = 0x4000, minor_nv = 0x4001;
    cl_uint major = 0, minor = 0;
    return clGetDeviceInfo(device, major_nv, sizeof major, &major, NULL) == CL_SUCCESS &&
           clGetDeviceInfo(device, minor_nv, sizeof minor, &minor, NULL) == CL_SUCCESS &&
           (major > 6 || (major == 6 && minor >= 1));
}

static void read_limits(struct cldevice *d, cl_device_type type)
{
    cl_ulong value = 0;
    cl_uint units = 1, floats = 1;
    cl_bool unified = CL_FALSE;
    cl_device_fp_config single = 0;
    d->is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0;
    d->is_accelerator = !d->is_cpu && (type & CL_DEVICE_TYPE_ACCELERATOR) != 0;
    clGetDeviceInfo(d->device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL);
    d->compute_units = units;
    clGetDeviceInfo(d->device, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof floats, &floats, NULL);
    const char *wish = getenv("HILL_TEST_VECTORS");
    d->vector_floats = wish ? (uint32_t)strtoul(wish, NULL, 10) : floats;
    clGetDeviceInfo(d->device, CL_DEVICE_HOST_UNIFIED_MEMORY, sizeof unified, &unified, NULL);
    d->shares_memory = d->is_cpu && unified;
    d->own_memory = !d->is_cpu && !unified;
    d->has_groups = has_groups(d->device, type);
    d->product_items = takes_groups_of(d->device, CLDEVICE_PRODUCT_ITEMS) ? CLDEVICE_PRODUCT_ITEMS
                                                                          : CLDEVICE_GROUP_ITEMS;
    d->dp4a = (type & CL_DEVICE_TYPE_GPU) && has_dp4a(d->device);
    clGetDeviceInfo(d->device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof single, &single, NULL);
    d->rounds_right = !d->is_cpu && (single & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT);
    clGetDeviceInfo(d->device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof value, &value, NULL);
    d->global_bytes = value;
}

int cldevice_open(struct cldevice *out, const char *choice, struct hill_why *why)
{
    struct candidate table[DEVICES_MAX];
    memset(out, 0, sizeof *out);
    int count = list_candidates(table, why);
    if (count < 0)
        return count;
    int index = choose(table, count, choice, why);
    if (index < 0)
        return index;
    const struct candidate *c = &table[index];
    cl_int status;
    cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)c->platform,
                                          0};
    cl_context context = clCreateContext(properties, 1, &c->device, NULL, NULL, &status);
    if (status != CL_SUCCESS)
        return hill_fail(why, HILL_E_NODEV, "cannot open OpenCL device '%.200s': %s", c->name,
                         cldevice_strerror(status));
    out->platform = c->platform;
    out->device = c->device;
    out->context = context;
    memcpy(out->name, c->name, sizeof out->name);
    read_limits(out, c->type);
    return 0;
}

void cldevice_close(struct cldevice *device)
{
    if (device->context)
        clReleaseContext(device->context);
    memset(device, 0, sizeof *device);
}

uint64_t cldevice_room(const struct cldevice *device, uint64_t taken)
{
    if (!device->own_memory || !device->global_bytes)
        return UINT64_MAX;
    taken += device->global_bytes / 16;
    return taken < device->global_bytes ? device->global_bytes - taken : 0;
}

cl_command_queue cldevice_queue(const struct cldevice *device, bool profiling, struct hill_why *why)
{
    cl_int status;
    cl_command_queue queue = clCreateCommandQueue(
        device->context, device->device, profiling ? CL_QUEUE_PROFILING_ENABLE : 0, &status);
    if (cldevice_check(status, "cannot create an OpenCL queue", why))
        return NULL;
    return queue;
}

/* The end of the build log is where the errors are counted; its first lines name the first. */
static void explain_build(const struct cldevice *device, cl_program program, cl_int status,
                          struct hill_why *why)
{
    size_t bytes = 0;
    clGetProgramBuildInfo(program, device->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *log = calloc(1, bytes + 1);
    if (log)
        clGetProgramBuildInfo(program, device->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    hill_fail(why, HILL_E_INVALID, "cannot build the kernels for '%.100s': %s: %.300s",
              device->name, cldevice_strerror(status), log ? log : "");
    free(log);
}

/* CL_SUCCESS: *out is the program. Else there is none, and why has the end of its build log. */
static cl_int build_parts(const struct cldevice *device, const char **parts, cl_uint n_parts,
                          const char *options, cl_program *out, struct hill_why *why)
{
    cl_int status;
    *out = clCreateProgramWithSource(device->context, n_parts, parts, NULL, &status);
    if (cldevice_check(status, "cannot create an OpenCL program", why)) {
        *out = NULL;
        return status;
    }
    status = clBuildProgram(*out, 1, &device->device, options, NULL, NULL);
    if (status != CL_SUCCESS) {
        explain_build(device, *out, status, why);
        clReleaseProgram(*out);
        *out = NULL;
    }
    return status;
}

/* Does the compiler read clang's opencl-c.h unless its guard is defined? */
static bool reads_clangs_header(const struct cldevice *device)
{
    char name[64] = "";
    clGetPlatformInfo(device->platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
    return strcmp(name, "Portable Computing Language") == 0; /* PoCL */
}

/* With the declarations of opencl_builtins.cl in place of clang's header. */
static cl_int build_declared(const struct cldevice *device, const char *source, const char *options,
                             cl_program *out, struct hill_why *why)
{
    const char *parts[] = {opencl_builtins_cl, source};
    char *guarded = NULL;
    *out = NULL;
    if (asprintf(&guarded, "%s -D_OPENCL_H_", options) < 0) {
        hill_fail(why, HILL_E_NOMEM, "no memory for the options of a program");
        return CL_OUT_OF_HOST_MEMORY;
    }
    cl_int status = build_parts(device, parts, 2, guarded, out, why);
    free(guarded);
    return status;
}

/* A division may else be wrong in its last bits, and codes of activations others than a CPU's. */
static cl_program build_rounding_right(const struct cldevice *device, const char *source,
                                       const char *options, struct hill_why *why)
{
    cl_program program = NULL;
    char *exact = NULL;
    if (asprintf(&exact, "%s -cl-fp32-correctly-rounded-divide-sqrt", options) < 0) {
        hill_fail(why, HILL_E_NOMEM, "no memory for the options of a program");
        return NULL;
    }
    build_parts(device, &source, 1, exact, &program, why);
    free(exact);
    return program;
}

cl_program cldevice_build(const struct cldevice *device, const char *source, const char *options,
                          struct hill_why *why)
{
    const char *wish = getenv("HILL_TEST_BUILTINS"); /* for tests: declared or header */
    cl_program program = NULL;
    if (device->rounds_right)
        return build_rounding_right(device, source, options, why);
    if (reads_clangs_header(device) && !(wish && strcmp(wish, "header") == 0)) {
        cl_int status = build_declared(device, source, options, &program, why);
        if (status != CL_BUILD_PROGRAM_FAILURE || (wish && strcmp(wish, "declared") == 0))
            return program;
    }
    build_parts(device, &source, 1, options, &program, why);
    return program;
}

int cldevice_list(FILE *out)
{
    struct candidate table[DEVICES_MAX];
    struct hill_why why;
    int count = list_candidates(table, &why);
    if (count < 0) {
        fprintf(out, "%s\n", why.text);
        return count;
    }
    for (int i = 0; i < count; i++) {
        struct cldevice d = {.device = table[i].device};
        read_limits(&d, table[i].type);
        fprintf(out, "%d: %s (%s, %u units, %llu MiB)\n", i, table[i].name,
                (table[i].type & CL_DEVICE_TYPE_GPU) ? "GPU"
                : d.is_cpu                           ? "CPU"
                                                     : "accelerator",
                d.compute_units, (unsigned long long)(d.global_bytes >> 20));
    }
    return count;
}
