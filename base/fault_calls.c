/* base/fault_calls.c - see fault_calls.h. Empty in other builds. */
#ifdef HILL_FAULTS

#include "base/fault_calls.h"

#include <CL/cl.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

/* TYPE name(parameters), called with the arguments; when it fails, `failure`. */
#define WRAP(type, name, parameters, arguments, fails, failure)                                    \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        if (fails) {                                                                               \
            failure;                                                                               \
        }                                                                                          \
        return __real_##name arguments;                                                            \
    }

/* ---- memory --------------------------------------------------------------------------------- */

#define NO_MEMORY(value)                                                                           \
    errno = ENOMEM;                                                                                \
    return value

WRAP(void *, malloc, (size_t bytes), (bytes), FAULT_FAILS(alloc), NO_MEMORY(NULL))
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes), FAULT_FAILS(alloc), NO_MEMORY(NULL))
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), FAULT_FAILS(alloc), NO_MEMORY(NULL))
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), FAULT_FAILS(alloc),
     NO_MEMORY(NULL))
WRAP(char *, strdup, (const char *text), (text), FAULT_FAILS(alloc), NO_MEMORY(NULL))
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t offset),
     (at, bytes, protection, flags, fd, offset), FAULT_FAILS(alloc), NO_MEMORY(MAP_FAILED))

/* ---- files ---------------------------------------------------------------------------------- */

static bool is_file(int fd)
{
    struct stat status;
    return fd > STDERR_FILENO && fstat(fd, &status) == 0 &&
           (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode));
}

#define FAILS(code)                                                                                \
    errno = code;                                                                                  \
    return -1

WRAP(ssize_t, read, (int fd, void *to, size_t bytes), (fd, to, bytes),
     is_file(fd) && FAULT_FAILS(read), FAILS(EIO))
WRAP(ssize_t, pread, (int fd, void *to, size_t bytes, off_t at), (fd, to, bytes, at),
     is_file(fd) && FAULT_FAILS(read), FAILS(EIO))
WRAP(ssize_t, write, (int fd, const void *from, size_t bytes), (fd, from, bytes),
     is_file(fd) && FAULT_FAILS(write), FAILS(ENOSPC))
WRAP(ssize_t, pwrite, (int fd, const void *from, size_t bytes, off_t at), (fd, from, bytes, at),
     is_file(fd) && FAULT_FAILS(write), FAILS(ENOSPC))
WRAP(int, ftruncate, (int fd, off_t bytes), (fd, bytes), FAULT_FAILS(write), FAILS(ENOSPC))
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes),
     FAULT_FAILS(write), FAILS(ENOSPC))
WRAP(int, posix_fallocate, (int fd, off_t at, off_t bytes), (fd, at, bytes), FAULT_FAILS(write),
     return ENOSPC)
WRAP(int, fsync, (int fd), (fd), FAULT_FAILS(write), FAILS(EIO))
WRAP(int, fdatasync, (int fd), (fd), FAULT_FAILS(write), FAILS(EIO))
WRAP(int, rename, (const char *from, const char *to), (from, to), FAULT_FAILS(write), FAILS(EACCES))

ssize_t fault_real_read(int fd, void *buffer, size_t bytes)
{
    return __real_read(fd, buffer, bytes);
}

int fault_real_rename(const char *from, const char *to)
{
    return __real_rename(from, to);
}

/* ---- OpenCL --------------------------------------------------------------------------------- */

#define CL_FAILS return CL_OUT_OF_RESOURCES
#define CL_FAILS_AT(error, code)                                                                   \
    *(error) = code;                                                                               \
    return NULL

WRAP(cl_mem, clCreateBuffer,
     (cl_context context, cl_mem_flags flags, size_t bytes, void *memory, cl_int *error),
     (context, flags, bytes, memory, error), FAULT_FAILS(opencl),
     CL_FAILS_AT(error, CL_MEM_OBJECT_ALLOCATION_FAILURE))
WRAP(cl_kernel, clCreateKernel, (cl_program program, const char *name, cl_int *error),
     (program, name, error), FAULT_FAILS(opencl), CL_FAILS_AT(error, CL_OUT_OF_HOST_MEMORY))
WRAP(cl_int, clBuildProgram,
     (cl_program program, cl_uint n, const cl_device_id *devices, const char *options,
      void(CL_CALLBACK *notify)(cl_program, void *), void *data),
     (program, n, devices, options, notify, data), FAULT_FAILS(opencl),
     return CL_OUT_OF_HOST_MEMORY)
WRAP(cl_int, clEnqueueNDRangeKernel,
     (cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
      const size_t *global, const size_t *local, cl_uint n_events, const cl_event *events,
      cl_event *event),
     (queue, kernel, dimensions, offset, global, local, n_events, events, event),
     FAULT_FAILS(opencl), CL_FAILS)
WRAP(cl_int, clEnqueueReadBuffer,
     (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t at, size_t bytes, void *to,
      cl_uint n_events, const cl_event *events, cl_event *event),
     (queue, buffer, blocking, at, bytes, to, n_events, events, event), FAULT_FAILS(opencl),
     CL_FAILS)
WRAP(cl_int, clEnqueueWriteBuffer,
     (cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t at, size_t bytes,
      const void *from, cl_uint n_events, const cl_event *events, cl_event *event),
     (queue, buffer, blocking, at, bytes, from, n_events, events, event), FAULT_FAILS(opencl),
     CL_FAILS)
WRAP(void *, clEnqueueMapBuffer,
     (cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags, size_t at,
      size_t bytes, cl_uint n_events, const cl_event *events, cl_event *event, cl_int *error),
     (queue, buffer, blocking, flags, at, bytes, n_events, events, event, error),
     FAULT_FAILS(opencl), CL_FAILS_AT(error, CL_MAP_FAILURE))
WRAP(cl_int, clFinish, (cl_command_queue queue), (queue), FAULT_FAILS(opencl), CL_FAILS)

#endif
