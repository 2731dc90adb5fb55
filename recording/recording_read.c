/* recording/recording_read.c - the reading side of recording.h. */
#include "recording/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "recording/recording_internal.h"
#include "proto/records.h"

uint64_t recording_frame_check(const struct recording_frame *frame, const void *payload,
                               uint64_t padded_bytes, uint64_t number)
{
    uint64_t fields = XXH64(frame, offsetof(struct recording_frame, check), number);
    return padded_bytes ? XXH64(payload, padded_bytes, fields) : fields;
}

/* ---- opening ------------------------------------------------------------------------------ */

static int map_file(struct recording_file *f, const char *path, struct hill_why *why)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        int reason = errno;
        if (fd >= 0)
            close(fd);
        return hill_fail(why, hill_from_errno(reason), "cannot read the recording %.300s: %s", path,
                         strerror(reason));
    }
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size < sizeof(struct recording_header)) {
        close(fd);
        return hill_fail(why, HILL_E_DAMAGED, "%.300s is no recording: field size: %lld bytes",
                         path, (long long)status.st_size);
    }
    void *map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int reason = errno;
    close(fd);
    if (map == MAP_FAILED)
        return hill_fail(why, hill_from_errno(reason), "cannot map the recording %.300s: %s", path,
                         strerror(reason));
    f->map = map;
    f->bytes = (uint64_t)status.st_size;
    return 0;
}

static int damaged(struct hill_why *why, const char *path, const char *field)
{
    return hill_fail(why, HILL_E_DAMAGED, "the recording %.300s is damaged: field %s", path, field);
}

static int check_header(struct recording_file *f, const char *path, struct hill_why *why)
{
    struct recording_header h;
    memcpy(&h, f->map, sizeof h);
    if (memcmp(h.magic, RECORDING_MAGIC, sizeof h.magic) != 0)
        return damaged(why, path, "magic");
    if (h.header_check != XXH64(&h, offsetof(struct recording_header, header_check), 0))
        return damaged(why, path, "header_check");
    if (h.version != RECORDING_VERSION || h.header_bytes != sizeof h ||
        h.records_version != PROTO_RECORDS_VERSION)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the recording %.300s has version %u and records version %u, this program "
                         "reads %u and %u",
                         path, h.version, h.records_version, RECORDING_VERSION,
                         PROTO_RECORDS_VERSION);
    if (recording_pad(h.configure_bytes) > f->bytes - sizeof h)
        return damaged(why, path, "configure_bytes");
    if (h.configure_check != XXH64(f->map + sizeof h, h.configure_bytes, 0))
        return damaged(why, path, "configure_check");
    f->at = sizeof h + recording_pad(h.configure_bytes);
    for (uint64_t i = sizeof h + h.configure_bytes; i < f->at; i++)
        if (f->map[i])
            return damaged(why, path, "configure padding");
    f->message = hill__message__unpack(NULL, h.configure_bytes, f->map + sizeof h);
    if (!f->message || f->message->body_case != HILL__MESSAGE__BODY_CONFIGURE)
        return damaged(why, path, "configure");
    struct hill_why reason = {""};
    if (proto_validate(f->message, &reason) != 0 ||
        epoch_settings_read(&f->settings, f->message->configure, &reason) != 0)
        return hill_fail(why, HILL_E_DAMAGED, "the recording %.200s is damaged: %.200s", path,
                         reason.text);
    f->layout = epoch_layout(&f->settings);
    if (h.fingerprint != layout_fingerprint(&f->layout))
        return damaged(why, path, "fingerprint");
    return 0;
}

/* The frame at f->at, as far as its bytes can be there; NULL with the field at fault. */
static const struct recording_frame *frame_at(const struct recording_file *f, const char **field)
{
    const struct recording_frame *frame = (const void *)(f->map + f->at);
    uint64_t left = f->bytes - f->at;
    if (f->at > f->bytes || left < sizeof *frame) {
        *field = "end (the file is cut short)";
        return NULL;
    }
    uint64_t padded = recording_bare(frame->kind) ? 0 : recording_pad(frame->bytes);
    if (frame->kind < RECORDING_IN || frame->kind > RECORDING_END)
        *field = "kind";
    else if (frame->ring >= RING_COUNT)
        *field = "ring";
    else if (padded > left - sizeof *frame)
        *field = "bytes";
    else if (frame->zero || (recording_memory(frame->kind) && frame->looks))
        *field = "reserved";
    else if (frame->check != recording_frame_check(frame, frame + 1, padded, f->next))
        *field = "check";
    else
        return frame;
    return NULL;
}

static uint64_t step_over(const struct recording_frame *frame)
{
    return sizeof *frame + (recording_bare(frame->kind) ? 0 : recording_pad(frame->bytes));
}

/* What a worker relies on in a record: whole, and of this geometry. A record that the pipeline was
 * given damaged was dropped there and counted; it cannot be told from a damaged file, nor can it be
 * of use. */
static const char *bad_content(const struct recording_file *f, const struct recording_frame *frame)
{
    const struct layout_input *in = &f->layout;
    if (frame->kind == RECORDING_STAGING)
        return frame->type >= f->settings.staging_slots        ? "staging slot"
               : frame->bytes != kv_entry_bytes(&in->geometry) ? "staging bytes"
                                                               : NULL;
    if (frame->kind == RECORDING_WINDOW)
        return frame->type >= KV_KEY_WINDOWS                         ? "window"
               : frame->bytes > recording_window_bytes(&f->settings) ? "window bytes"
                                                                     : NULL;
    if (frame->kind != RECORDING_IN && frame->kind != RECORDING_OUT)
        return NULL;
    _Alignas(16) static const uint8_t nothing[16];
    const void *payload = frame->bytes ? (const void *)(frame + 1) : nothing;
    return record_check(frame->type, payload, frame->bytes, &in->geometry, in->n_sequences, NULL)
               ? "payload"
               : NULL;
}

static int check_end(struct recording_file *f, const struct recording_frame *frame,
                     const char *path, struct hill_why *why)
{
    struct recording_end end;
    if (frame->bytes != sizeof end)
        return damaged(why, path, "end.bytes");
    memcpy(&end, frame + 1, sizeof end);
    if (end.frames != f->next || end.cut > 1)
        return damaged(why, path, "end.frames");
    if (f->at + step_over(frame) != f->bytes)
        return damaged(why, path, "size: there are bytes after the end");
    f->frames = end.frames;
    f->cut = end.cut != 0;
    return 0;
}

static int check_frames(struct recording_file *f, const char *path, struct hill_why *why)
{
    for (;;) {
        const char *field = NULL;
        const struct recording_frame *frame = frame_at(f, &field);
        if (frame)
            field = bad_content(f, frame);
        if (field)
            return hill_fail(why, HILL_E_DAMAGED,
                             "the recording %.300s is damaged: frame %llu, field %s", path,
                             (unsigned long long)f->next, field);
        if (frame->kind == RECORDING_END)
            return check_end(f, frame, path, why);
        f->at += step_over(frame);
        f->next++;
    }
}

int recording_open(struct recording_file *f, const char *path, struct hill_why *why)
{
    memset(f, 0, sizeof *f);
    int rc = map_file(f, path, why);
    if (rc == 0)
        rc = check_header(f, path, why);
    if (rc == 0)
        rc = check_frames(f, path, why);
    if (rc)
        recording_finish(f);
    else
        recording_rewind(f);
    return rc;
}

void recording_finish(struct recording_file *f)
{
    proto_free(f->message);
    if (f->map)
        munmap((void *)(uintptr_t)f->map, f->bytes);
    memset(f, 0, sizeof *f);
}

/* ---- walking ------------------------------------------------------------------------------ */

void recording_rewind(struct recording_file *f)
{
    const struct recording_header *h = (const void *)f->map;
    f->at = sizeof *h + recording_pad(h->configure_bytes);
    f->next = 0;
}

bool recording_next(struct recording_file *f, struct recording_event *event)
{
    const struct recording_frame *frame = (const void *)(f->map + f->at);
    if (f->next == f->frames)
        return false;
    *event = (struct recording_event){.kind = frame->kind,
                                      .ring = frame->ring,
                                      .type = frame->type,
                                      .bytes = frame->bytes,
                                      .looks = frame->looks,
                                      .payload = (const uint8_t *)(frame + 1),
                                      .number = f->next};
    f->at += step_over(frame);
    f->next++;
    return true;
}
