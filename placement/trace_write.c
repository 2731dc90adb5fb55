/*
 * placement/trace_write.c - the writing side of trace.h.
 *
 * Records are put together in a buffer of fixed size; a record that is larger than what is left of
 * it goes out in pieces. Who calls it: the scorer's data thread. Failure: as trace.h.
 */
#include "placement/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

struct trace_writer {
    int fd;
    int failed;    /* what the first failed write gave */
    uint32_t used; /* of the buffer */
    uint8_t buffer[TRACE_BUFFER_BYTES];
};

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "traces are written as they lie");

static void flush(struct trace_writer *w)
{
    for (uint32_t done = 0; done < w->used && !w->failed;) {
        ssize_t n = write(w->fd, w->buffer + done, w->used - done);
        if (n >= 0)
            done += (uint32_t)n;
        else if (errno != EINTR)
            w->failed = hill_from_errno(errno);
    }
    w->used = 0;
}

static void put(struct trace_writer *w, const void *data, uint64_t bytes)
{
    const uint8_t *from = data;
    while (bytes && !w->failed) {
        uint64_t room = TRACE_BUFFER_BYTES - w->used;
        uint32_t n = (uint32_t)(bytes < room ? bytes : room);
        memcpy(w->buffer + w->used, from, n);
        w->used += n;
        from += n;
        bytes -= n;
        if (w->used == TRACE_BUFFER_BYTES)
            flush(w);
    }
}

/* A writer on a file just opened; the file is closed when it fails. */
static int start(struct trace_writer **out, int fd, const char *path,
                 const struct trace_settings *settings, struct hill_why *why)
{
    struct trace_writer *w = malloc(sizeof *w);
    if (w == NULL) {
        close(fd);
        return hill_fail(why, HILL_E_NOMEM, "cannot write trace %s: out of memory", path);
    }
    w->fd = fd;
    w->failed = 0;
    w->used = 0;
    struct trace_header header = {.magic = TRACE_MAGIC,
                                  .version = TRACE_VERSION,
                                  .header_bytes = sizeof header,
                                  .settings = *settings};
    header.settings.model[sizeof header.settings.model - 1] = '\0';
    header.checksum = XXH64(&header, offsetof(struct trace_header, checksum), 0);
    put(w, &header, sizeof header);
    *out = w;
    return 0;
}

static int cannot_open(const char *path, int error, struct hill_why *why)
{
    return hill_fail(why, hill_from_errno(error), "cannot write trace %s: %s", path,
                     strerror(error));
}

int trace_open(struct trace_writer **out, const char *path, const struct trace_settings *settings,
               struct hill_why *why)
{
    *out = NULL;
    int rc = kv_geometry_check(&settings->geometry, why);
    if (rc)
        return rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return fd < 0 ? cannot_open(path, errno, why) : start(out, fd, path, settings, why);
}

int trace_open_new(struct trace_writer **out, const char *path,
                   const struct trace_settings *settings, char name[TRACE_NAME_BYTES],
                   struct hill_why *why)
{
    *out = NULL;
    int rc = kv_geometry_check(&settings->geometry, why);
    if (rc)
        return rc;
    for (unsigned i = 1; i < 10000; i++) {
        int used = i == 1 ? snprintf(name, TRACE_NAME_BYTES, "%s", path)
                          : snprintf(name, TRACE_NAME_BYTES, "%s.%u", path, i);
        if (used >= TRACE_NAME_BYTES)
            return hill_fail(why, HILL_E_INVALID, "cannot write a trace: its name is too long");
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0)
            return start(out, fd, name, settings, why);
        if (errno != EEXIST)
            return cannot_open(name, errno, why);
    }
    return hill_fail(why, HILL_E_IO, "cannot write trace %s: 9999 files of that name are there",
                     path);
}

static bool is_sound(const struct trace_query *q)
{
    if (q->n_tokens == 0 || q->n_tokens > KV_MAX_TOKENS || q->n_selected > q->n_tokens)
        return false;
    uint32_t next = 0;
    for (uint32_t i = 0; i < q->n_selected; i++) {
        uint32_t position = q->words[i] & TRACE_POSITION_MASK;
        if (position < next || position >= q->n_tokens)
            return false;
        next = position + 1;
    }
    return true;
}

int trace_query(struct trace_writer *writer, const struct trace_query *q)
{
    static const uint8_t zeroes[8];
    if (writer->failed)
        return writer->failed;
    if (!is_sound(q))
        return HILL_E_INVALID;
    uint32_t words = q->n_selected * 4, scores = q->scores ? q->n_tokens * 2 : 0;
    uint32_t padding = (8 - (words + scores) % 8) % 8;
    struct trace_record record = {.magic = TRACE_RECORD_MAGIC,
                                  .flags = q->scores ? TRACE_SCORES : 0,
                                  .request = q->request,
                                  .sequence = q->sequence,
                                  .step = q->step,
                                  .layer = q->layer,
                                  .n_tokens = q->n_tokens,
                                  .n_selected = q->n_selected,
                                  .payload_bytes = words + scores + padding};
    XXH64_state_t *hash = XXH64_createState();
    if (hash == NULL)
        return HILL_E_NOMEM;
    XXH64_reset(hash, 0);
    if (words)
        XXH64_update(hash, q->words, words);
    if (scores)
        XXH64_update(hash, q->scores, scores);
    XXH64_update(hash, zeroes, padding);
    record.payload_checksum = XXH64_digest(hash);
    XXH64_freeState(hash);
    record.header_checksum = XXH64((const uint8_t *)&record + 8, sizeof record - 8, 0);
    put(writer, &record, sizeof record);
    put(writer, q->words, words);
    put(writer, q->scores, scores);
    put(writer, zeroes, padding);
    return writer->failed;
}

int trace_flush(struct trace_writer *writer)
{
    flush(writer);
    return writer->failed;
}

int trace_close(struct trace_writer *writer)
{
    if (writer == NULL)
        return 0;
    int rc = trace_flush(writer);
    if (close(writer->fd) && !rc)
        rc = hill_from_errno(errno);
    free(writer);
    return rc;
}
