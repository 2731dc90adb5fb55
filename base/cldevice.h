/*
 * base/cldevice.h - choose an OpenCL device, build programs for it, say what went wrong.
 *
 * What: devices of all platforms are numbered in the order the loader lists them. A choice is that
 * number, or a part of "platform name / device name" or of the platform's vendor (any case), or
 * empty: the first GPU or accelerator, else the first device. Kernels come as source and are built
 * for the one device; a build log ends in `why`. Failure: HILL_E_NODEV for everything the OpenCL
 * runtime refuses (no platform, no such device, lost device), HILL_E_NOMEM where it is out of
 * memory, HILL_E_INVALID for a kernel that does not compile. Who calls it: gpu_worker, csd_agent.
 * Concurrency: one thread per struct; OpenCL objects made from it may be used as OpenCL allows.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <CL/cl.h>

#include "base/error.h"

#define CLDEVICE_NAME_BYTES 256
/* What has_groups asks for. */
#define CLDEVICE_GROUP_ITEMS 128u
#define CLDEVICE_LOCAL_BYTES (32u << 10)
/* Work items of a group that share one sum, where the device takes a group of so many. */
#define CLDEVICE_PRODUCT_ITEMS 512u

struct cldevice {
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    char name[CLDEVICE_NAME_BYTES]; /* "platform / device" */
    bool is_cpu, is_accelerator;    /* neither: a GPU */
    bool shares_memory; /* a CPU that works in the host's memory: a buffer over host memory is that
                         * memory, and both see what the other wrote once a launch is over */
    bool own_memory;    /* apart from the host's: neither a CPU nor beside one in its memory */
    bool has_groups;    /* a GPU with local memory and work groups as kernels for GPUs take them */
    bool dp4a; /* an NVIDIA GPU from compute capability 6.1 on, which has this instruction */
    bool rounds_right;      /* not a CPU; its division and square root can be rounded correctly */
    uint32_t product_items; /* CLDEVICE_PRODUCT_ITEMS, or CLDEVICE_GROUP_ITEMS */
    uint32_t compute_units;
    uint32_t vector_floats; /* lanes of the device's own vectors of F32: 8 with AVX2 */
    uint64_t global_bytes;
};

/* PoCL reads its thread count from the environment at the first OpenCL call of a process: set it to
 * `threads` (0: leave) unless the user has set it. To be called before any other call here. */
void cldevice_set_threads(uint32_t threads);

/* Open the chosen device (NULL or "": see above) and make a context. The struct is zeroed on
 * failure. */
int cldevice_open(struct cldevice *out, const char *choice, struct hill_why *why);
/* Safe on a zeroed struct. Objects made in the context are the caller's to release first. */
void cldevice_close(struct cldevice *device);

/* Bytes that a device with memory of its own has beside `taken` ones, less a sixteenth of all for
 * its driver and small buffers (our choice); UINT64_MAX: it has the host's. */
uint64_t cldevice_room(const struct cldevice *device, uint64_t taken);

/* An in-order queue; profiling: events carry times. NULL on failure. */
cl_command_queue cldevice_queue(const struct cldevice *device, bool profiling,
                                struct hill_why *why);

/* Build `source` (NUL-terminated) with compiler `options`. NULL on failure: why has the end of the
 * build log. For PoCL the declarations of base/opencl_builtins.cl stand in for clang's header; a
 * program that calls another function is built with that header. */
cl_program cldevice_build(const struct cldevice *device, const char *source, const char *options,
                          struct hill_why *why);

/* One line per device: number, platform, name, units, memory. Returns how many, or HILL_E_NODEV:
 * one line says why. */
int cldevice_list(FILE *out);

/* 0 for CL_SUCCESS, else the code (HILL_E_NOMEM or HILL_E_NODEV) with "what: CL_NAME" in why. */
int cldevice_check(cl_int status, const char *what, struct hill_why *why);
/* "CL_INVALID_VALUE", ... */
const char *cldevice_strerror(cl_int status);
