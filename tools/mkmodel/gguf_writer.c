/* tools/mkmodel/gguf_writer.c - see gguf_writer.h. */
#include "tools/mkmodel/gguf_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/grow.h"

#define GGUF_VERSION 3u
#define FLUSH_BYTES  (1u << 20)

static void note_errno(struct gguf_writer *writer, const char *what)
{
    if (writer->error)
        return;
    writer->error = hill_from_errno(errno);
    snprintf(writer->reason, sizeof writer->reason, "%s: %s", what, strerror(errno));
}

static void put(struct gguf_writer *writer, struct gguf_bytes *bytes, const void *data, size_t size)
{
    if (writer->error || size == 0)
        return;
    if (!GROW(bytes->data, bytes->capacity, bytes->used + size)) {
        note_errno(writer, "out of memory");
        return;
    }
    memcpy(bytes->data + bytes->used, data, size);
    bytes->used += size;
}

static void put_u32(struct gguf_writer *writer, struct gguf_bytes *bytes, uint32_t value)
{
    put(writer, bytes, &value, sizeof value);
}

static void put_u64(struct gguf_writer *writer, struct gguf_bytes *bytes, uint64_t value)
{
    put(writer, bytes, &value, sizeof value);
}

static void put_string(struct gguf_writer *writer, struct gguf_bytes *bytes, const char *value)
{
    put_u64(writer, bytes, strlen(value));
    put(writer, bytes, value, strlen(value));
}

/* ---- opening ----------------------------------------------------------------------------- */

/* The permissions a plain open() would have given. */
static mode_t default_mode(void)
{
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static int open_temporary(struct gguf_writer *writer)
{
    const size_t room = strlen(writer->path) + sizeof ".tmp-XXXXXX";
    writer->temporary = malloc(room);
    if (!writer->temporary)
        return -1;
    snprintf(writer->temporary, room, "%s.tmp-XXXXXX", writer->path);
    writer->fd = mkostemp(writer->temporary, O_CLOEXEC);
    if (writer->fd < 0) {
        free(writer->temporary);
        writer->temporary = NULL;
        return -1;
    }
    return fchmod(writer->fd, default_mode());
}

static int open_target(struct gguf_writer *writer, const char *path)
{
    struct stat status;
    writer->path = realpath(path, NULL);
    if (!writer->path)
        writer->path = strdup(path); /* a new file */
    if (!writer->path)
        return -1;
    if (stat(writer->path, &status) != 0 || S_ISREG(status.st_mode))
        return open_temporary(writer);
    writer->fd = open(writer->path, O_WRONLY | O_CLOEXEC);
    return writer->fd < 0 ? -1 : 0;
}

/* Everything the writer owns, the temporary file with it unless it was renamed. */
static void release(struct gguf_writer *writer)
{
    if (writer->fd >= 0)
        close(writer->fd);
    if (writer->temporary)
        unlink(writer->temporary);
    free(writer->temporary);
    free(writer->path);
    free(writer->metadata.data);
    free(writer->directory.data);
    free(writer->pending.data);
    *writer = (struct gguf_writer){.fd = -1};
}

int gguf_writer_open(struct gguf_writer *writer, const char *path,
                     const volatile sig_atomic_t *stop, struct hill_why *why)
{
    *writer = (struct gguf_writer){.fd = -1, .stop = stop};
    if (open_target(writer, path) == 0)
        return 0;
    const int err = errno;
    release(writer);
    const int code = hill_from_errno(err);
    return hill_fail(why, code == HILL_E_INVALID ? HILL_E_IO : code, "cannot create %s: %s", path,
                     strerror(err));
}

/* ---- metadata and directory -------------------------------------------------------------- */

static void put_key(struct gguf_writer *writer, const char *key, enum gguf_type type)
{
    put_string(writer, &writer->metadata, key);
    put_u32(writer, &writer->metadata, type);
    writer->n_metadata++;
}

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
    put_key(writer, key, GGUF_U32);
    put_u32(writer, &writer->metadata, value);
}

void gguf_writer_f32(struct gguf_writer *writer, const char *key, float value)
{
    put_key(writer, key, GGUF_F32);
    put(writer, &writer->metadata, &value, sizeof value);
}

void gguf_writer_bool(struct gguf_writer *writer, const char *key, bool value)
{
    const uint8_t byte = value;
    put_key(writer, key, GGUF_BOOL);
    put(writer, &writer->metadata, &byte, 1);
}

void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value)
{
    put_key(writer, key, GGUF_STRING);
    put_string(writer, &writer->metadata, value);
}

void gguf_writer_array(struct gguf_writer *writer, const char *key, enum gguf_type item_type,
                       uint64_t count)
{
    put_key(writer, key, GGUF_ARRAY);
    put_u32(writer, &writer->metadata, item_type);
    put_u64(writer, &writer->metadata, count);
}

void gguf_writer_item_string(struct gguf_writer *writer, const char *value)
{
    put_string(writer, &writer->metadata, value);
}

void gguf_writer_item_i32(struct gguf_writer *writer, int32_t value)
{
    put(writer, &writer->metadata, &value, sizeof value);
}

static uint64_t align(uint64_t offset)
{
    return (offset + GGUF_WRITER_ALIGNMENT - 1) / GGUF_WRITER_ALIGNMENT * GGUF_WRITER_ALIGNMENT;
}

void gguf_writer_tensor(struct gguf_writer *writer, const char *name, uint32_t n_dims,
                        const uint64_t *dims, enum gguf_tensor_type type, uint64_t bytes)
{
    put_string(writer, &writer->directory, name);
    put_u32(writer, &writer->directory, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(writer, &writer->directory, dims[i]);
    put_u32(writer, &writer->directory, type);
    put_u64(writer, &writer->directory, writer->data_bytes);
    writer->data_bytes = align(writer->data_bytes + bytes);
    writer->n_tensors++;
}

/* ---- data -------------------------------------------------------------------------------- */

static void flush(struct gguf_writer *writer)
{
    size_t done = 0;
    while (!writer->error && done < writer->pending.used) {
        const ssize_t got =
            write(writer->fd, writer->pending.data + done, writer->pending.used - done);
        if (got < 0 && errno != EINTR)
            note_errno(writer, "writing failed");
        if (got > 0)
            done += (size_t)got;
        if (writer->stop && *writer->stop && !writer->error) {
            writer->error = HILL_E_CANCELLED;
            snprintf(writer->reason, sizeof writer->reason, "interrupted");
        }
    }
    writer->written += done;
    writer->pending.used = 0;
}

void gguf_writer_data(struct gguf_writer *writer, const void *data, size_t bytes)
{
    put(writer, &writer->pending, data, bytes);
    if (writer->pending.used >= FLUSH_BYTES)
        flush(writer);
}

void gguf_writer_data_end(struct gguf_writer *writer)
{
    static const uint8_t zeros[GGUF_WRITER_ALIGNMENT];
    const uint64_t at = writer->written + writer->pending.used;
    gguf_writer_data(writer, zeros, (size_t)(align(at) - at));
}

void gguf_writer_begin_data(struct gguf_writer *writer)
{
    put(writer, &writer->pending, "GGUF", 4);
    put_u32(writer, &writer->pending, GGUF_VERSION);
    put_u64(writer, &writer->pending, writer->n_tensors);
    put_u64(writer, &writer->pending, writer->n_metadata);
    put(writer, &writer->pending, writer->metadata.data, writer->metadata.used);
    put(writer, &writer->pending, writer->directory.data, writer->directory.used);
    gguf_writer_data_end(writer);
}

/* ---- the end ----------------------------------------------------------------------------- */

int gguf_writer_commit(struct gguf_writer *writer, uint64_t *file_bytes, struct hill_why *why)
{
    flush(writer);
    /* A full disk may show up only now, and only files can be synced. */
    if (!writer->error && writer->temporary && fsync(writer->fd) != 0)
        note_errno(writer, "syncing failed");
    const int closed = close(writer->fd);
    writer->fd = -1;
    if (!writer->error && closed != 0)
        note_errno(writer, "closing failed");
    if (!writer->error && writer->temporary) {
        if (rename(writer->temporary, writer->path) != 0) {
            note_errno(writer, "renaming failed");
        } else {
            free(writer->temporary);
            writer->temporary = NULL;
        }
    }
    int code = writer->error;
    if (code == HILL_E_INVALID) /* EINVAL of a write is the environment's fault, not the options' */
        code = HILL_E_IO;
    if (code)
        hill_fail(why, code, "cannot write %s: %s", writer->path, writer->reason);
    *file_bytes = writer->written;
    release(writer);
    return code;
}
