/*
 * tests/fuzz/memory_file.h - an input as a file with a path: shared by harnesses of what is opened
 * by name. Failure aborts. Concurrency: one thread.
 */
#pragma once

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is opened for writing, or looked at beside others, has a name of its own. */
static inline void write_file(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n)
        abort();
    close(fd);
}

/* The path of a file of these bytes, valid until the next call. */
static inline const char *memory_file(const void *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* The same of an input whose first byte says what `seal` is to make right of the rest. */
static inline const char *sealed_file(const uint8_t *data, size_t size,
                                      void (*seal)(uint8_t *bytes, size_t size, uint8_t what))
{
    uint8_t *bytes = malloc(size);
    if (!bytes)
        abort();
    memcpy(bytes, data + 1, size - 1);
    seal(bytes, size - 1, data[0]);
    const char *path = memory_file(bytes, size - 1);
    free(bytes);
    return path;
}
