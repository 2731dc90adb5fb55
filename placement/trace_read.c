/*
 * placement/trace_read.c - the reading side of trace.h.
 *
 * Opening walks the whole file once and checks everything; lengths are compared with what is left
 * of the file before anything is read or allocated. Who calls it: hill-kvtrace, bench, tests.
 * Failure: as trace.h.
 */
#include "base/grow.h"
#include "base/whole_io.h"
#include "placement/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

struct trace_file {
    int fd;
    char *path;
    uint64_t bytes;
    struct trace_settings settings;
    struct trace_record *records; /* [capacity] */
    uint64_t *offsets;            /* [capacity]: of the payloads */
    uint32_t count, capacity;
    uint8_t *payload; /* [payload_room] */
    uint64_t payload_room;
    struct hill_why tail; /* empty: the file ends with a whole record */
};

static int read_at(const struct trace_file *f, uint64_t offset, void *to, uint64_t bytes,
                   struct hill_why *why)
{
    int64_t got = whole_read(f->fd, to, bytes, offset);
    if (got < 0)
        return hill_fail(why, (int)got, "cannot read trace %s: %s", f->path,
                         hill_strerror((int)got));
    if ((uint64_t)got < bytes)
        return hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: it became shorter", f->path);
    return 0;
}

static int check_header(struct trace_file *f, struct hill_why *why)
{
    struct trace_header header;
    struct hill_why geometry;
    if (f->bytes < sizeof header)
        return hill_fail(why, HILL_E_DAMAGED,
                         "cannot read trace %s: its %llu bytes hold no trace header", f->path,
                         (unsigned long long)f->bytes);
    int rc = read_at(f, 0, &header, sizeof header, why);
    if (rc)
        return rc;
    if (memcmp(header.magic, TRACE_MAGIC, sizeof header.magic) != 0)
        return hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: it is no KV trace (magic)",
                         f->path);
    if (header.version != TRACE_VERSION || header.header_bytes != sizeof header)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "cannot read trace %s: version %u, this program reads %u", f->path,
                         header.version, TRACE_VERSION);
    if (header.checksum != XXH64(&header, offsetof(struct trace_header, checksum), 0))
        return hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: header checksum", f->path);
    if (kv_geometry_check(&header.settings.geometry, &geometry))
        return hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: header geometry: %.300s",
                         f->path, geometry.text);
    f->settings = header.settings;
    f->settings.model[sizeof f->settings.model - 1] = '\0';
    return 0;
}

static int fail_record(const struct trace_file *f, uint32_t index, uint64_t offset,
                       const char *what, struct hill_why *why)
{
    return hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: record %u at byte %llu: %s",
                     f->path, index, (unsigned long long)offset, what);
}

/* What a header must satisfy beside its checksum; NULL: sound. */
static const char *wrong_in(const struct trace_file *f, const struct trace_record *r)
{
    uint64_t scores = r->flags & TRACE_SCORES ? (uint64_t)r->n_tokens * 2 : 0;
    if (r->magic != TRACE_RECORD_MAGIC)
        return "magic";
    if (r->header_checksum != XXH64((const uint8_t *)r + 8, sizeof *r - 8, 0))
        return "header checksum";
    if (r->flags & ~(uint32_t)TRACE_SCORES)
        return "unknown flags";
    if (r->layer >= f->settings.geometry.n_layers)
        return "layer beyond the model";
    if (r->n_tokens == 0 || r->n_tokens > KV_MAX_TOKENS)
        return "token count out of range";
    if (r->n_selected > r->n_tokens)
        return "more selected than tokens";
    if (r->payload_bytes != ((uint64_t)r->n_selected * 4 + scores + 7) / 8 * 8)
        return "payload length";
    return NULL;
}

/* Read and check a payload that the file is long enough for. */
static int load_payload(struct trace_file *f, uint32_t index, const struct trace_record *r,
                        uint64_t offset, struct hill_why *why)
{
    if (!GROW(f->payload, f->payload_room, r->payload_bytes))
        return hill_fail(why, HILL_E_NOMEM, "cannot read trace %s: out of memory", f->path);
    if (r->payload_bytes) {
        int rc = read_at(f, offset, f->payload, r->payload_bytes, why);
        if (rc)
            return rc;
    }
    if (XXH64(f->payload, r->payload_bytes, 0) != r->payload_checksum)
        return fail_record(f, index, offset - sizeof *r, "payload checksum", why);
    const uint32_t *words = (const uint32_t *)(const void *)f->payload;
    for (uint32_t i = 0, next = 0; i < r->n_selected; i++) {
        uint32_t position = words[i] & TRACE_POSITION_MASK;
        if (position < next || position >= r->n_tokens)
            return fail_record(f, index, offset - sizeof *r, "positions out of order or range",
                               why);
        next = position + 1;
    }
    return 0;
}

static int keep(struct trace_file *f, const struct trace_record *r, uint64_t offset)
{
    if (f->count == f->capacity) {
        if (f->capacity > UINT32_MAX / 2)
            return HILL_E_NOMEM;
        uint32_t capacity = f->capacity ? f->capacity * 2 : 256;
        struct trace_record *records = realloc(f->records, capacity * sizeof *records);
        if (records == NULL)
            return HILL_E_NOMEM;
        f->records = records;
        uint64_t *offsets = realloc(f->offsets, capacity * sizeof *offsets);
        if (offsets == NULL)
            return HILL_E_NOMEM;
        f->offsets = offsets;
        f->capacity = capacity;
    }
    f->records[f->count] = *r;
    f->offsets[f->count++] = offset;
    return 0;
}

static void note_tail(struct trace_file *f, uint64_t offset)
{
    hill_fail(&f->tail, 0,
              "trace %s: cut short in record %u at byte %llu; the %u whole records before it are "
              "used",
              f->path, f->count, (unsigned long long)offset, f->count);
}

static int walk(struct trace_file *f, struct hill_why *why)
{
    struct trace_record r;
    for (uint64_t at = sizeof(struct trace_header); at < f->bytes;) {
        if (f->bytes - at < sizeof r) {
            note_tail(f, at);
            return 0;
        }
        int rc = read_at(f, at, &r, sizeof r, why);
        if (rc)
            return rc;
        const char *wrong = wrong_in(f, &r);
        if (wrong)
            return fail_record(f, f->count, at, wrong, why);
        at += sizeof r;
        if (f->bytes - at < r.payload_bytes) {
            note_tail(f, at - sizeof r);
            return 0;
        }
        rc = load_payload(f, f->count, &r, at, why);
        if (rc)
            return rc;
        if (keep(f, &r, at))
            return hill_fail(why, HILL_E_NOMEM, "cannot read trace %s: out of memory", f->path);
        at += r.payload_bytes;
    }
    return 0;
}

int trace_file_open(struct trace_file **out, const char *path, struct hill_why *why)
{
    struct stat status;
    *out = NULL;
    struct trace_file *f = calloc(1, sizeof *f);
    if (f)
        f->path = strdup(path);
    if (f == NULL || f->path == NULL) {
        free(f);
        return hill_fail(why, HILL_E_NOMEM, "cannot read trace %s: out of memory", path);
    }
    int rc = 0;
    /* not blocking: a pipe that nobody writes to must not hang; regular files do not care */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &status))
        rc = hill_fail(why, hill_from_errno(errno), "cannot read trace %s: %s", path,
                       strerror(errno));
    else if (!S_ISREG(status.st_mode))
        rc = hill_fail(why, HILL_E_DAMAGED, "cannot read trace %s: it is no regular file", path);
    if (rc == 0) {
        f->bytes = (uint64_t)status.st_size;
        rc = check_header(f, why);
    }
    if (rc == 0)
        rc = walk(f, why);
    if (rc) {
        trace_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void trace_file_close(struct trace_file *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->payload);
    free(file->offsets);
    free(file->records);
    free(file->path);
    free(file);
}

const char *trace_file_path(const struct trace_file *file)
{
    return file->path;
}

const struct trace_settings *trace_file_settings(const struct trace_file *file)
{
    return &file->settings;
}

uint32_t trace_file_count(const struct trace_file *file)
{
    return file->count;
}

const char *trace_file_tail(const struct trace_file *file)
{
    return file->tail.text[0] ? file->tail.text : NULL;
}

const struct trace_record *trace_file_record(const struct trace_file *file, uint32_t i)
{
    return &file->records[i];
}

int trace_file_read(struct trace_file *file, uint32_t i, const uint32_t **words,
                    const uint16_t **scores, struct hill_why *why)
{
    const struct trace_record *r = &file->records[i];
    int rc = load_payload(file, i, r, file->offsets[i], why);
    if (rc)
        return rc;
    *words = (const uint32_t *)(const void *)file->payload;
    *scores = r->flags & TRACE_SCORES
                  ? (const uint16_t *)(const void *)(file->payload + (uint64_t)r->n_selected * 4)
                  : NULL;
    return 0;
}
