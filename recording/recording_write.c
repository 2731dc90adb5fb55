/*
 * recording/recording_write.c - the writing side of recording.h.
 *
 * Frames are put together in a buffer of fixed size that is written when full. Entries that come up
 * are copied out of staging, which the agent filled: a RELEASE tells which they are, and what their
 * slots hold is recorded before it, with nothing but grants of room between the first grant for it
 * and this, so that a replay can look ahead. What READ_KEYS has put into a window is recorded
 * before its completion: from then on until the window's next READ_KEYS it is the scorer's.
 * Failure: as recording.h says; the data loop never hears of one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/grow.h"
#include "base/log.h"
#include "kv/plan.h"
#include "recording/recording_internal.h"
#include "proto/records.h"

#define BUFFER_BYTES (1u << 20)

struct ring_context {
    struct recording *recording;
    enum layout_ring ring;
    bool producer;
};

/* What a sequence's last FETCHes brought for one (step, layer): a guess's and those of the query
 * that it is ahead of. */
struct fetched {
    struct record_header header;
    struct fetch_item *items;
    uint32_t n, room;
};

struct recording {
    int fd, failed; /* what the first failed write gave */
    bool cut;
    uint32_t entry_bytes, window_bytes, used;
    uint64_t frames, written;
    uint32_t looks;               /* since the last frame */
    uint32_t credits[RING_COUNT]; /* as they were told last */
    bool gone[RING_COUNT];
    const struct shm_arena *staging;
    const uint8_t *windows;
    uint64_t window_tags[KV_KEY_WINDOWS]; /* of the READ_KEYS that fills each */
    struct ring_context contexts[RING_COUNT];
    struct shm_ring_tap taps[RING_COUNT];
    struct shm_ring_end *ends;
    struct fetched fetched[KV_MAX_SEQUENCES];
    _Alignas(8) uint8_t buffer[BUFFER_BYTES];
};

/* ---- bytes -------------------------------------------------------------------------------- */

static void write_out(struct recording *r, const uint8_t *from, uint64_t bytes)
{
    while (bytes && !r->failed) {
        ssize_t n = write(r->fd, from, bytes);
        if (n >= 0) {
            from += n;
            bytes -= (uint64_t)n;
        } else if (errno != EINTR) {
            r->failed = hill_from_errno(errno);
            log_warn("recording the rings failed: %s; it ends here", strerror(errno));
        }
    }
}

static void flush(struct recording *r)
{
    write_out(r, r->buffer, r->used);
    r->used = 0;
}

static void put(struct recording *r, const void *data, uint64_t bytes)
{
    if (bytes > BUFFER_BYTES - r->used)
        flush(r);
    r->written += bytes;
    if (bytes > BUFFER_BYTES) {
        write_out(r, data, bytes);
        return;
    }
    memcpy(r->buffer + r->used, data, bytes);
    r->used += (uint32_t)bytes;
}

static void put_padding(struct recording *r, uint64_t bytes)
{
    static const uint8_t zeros[8];
    put(r, zeros, recording_pad(bytes) - bytes);
}

/* ---- frames ------------------------------------------------------------------------------- */

/* Payloads lie in rings and slots that are 16-byte aligned and have room for their padding, but its
 * bytes are anything: the checksum is over zeros there. */
static uint64_t check_of(const struct recording_frame *frame, const void *payload, uint64_t bytes,
                         uint64_t number)
{
    uint64_t padded = recording_pad(bytes);
    if (padded == bytes)
        return recording_frame_check(frame, payload, bytes, number);
    static const uint8_t zeros[8];
    uint64_t fields = recording_frame_check(frame, NULL, 0, number);
    XXH64_state_t *state = XXH64_createState();
    if (!state)
        return 0; /* the frame is refused when it is read */
    XXH64_reset(state, fields);
    XXH64_update(state, payload, bytes);
    XXH64_update(state, zeros, padded - bytes);
    uint64_t check = XXH64_digest(state);
    XXH64_freeState(state);
    return check;
}

static void put_frame(struct recording *r, struct recording_frame frame, const void *payload,
                      uint64_t payload_bytes)
{
    if (r->failed || r->cut)
        return;
    if (frame.kind != RECORDING_END && r->written + payload_bytes > RECORDING_BYTES_MAX) {
        r->cut = true;
        log_warn("the recording has reached its bound of %llu MiB and ends here",
                 (unsigned long long)(RECORDING_BYTES_MAX >> 20));
        return;
    }
    if (!recording_memory(frame.kind)) {
        frame.looks = r->looks;
        r->looks = 0;
    }
    frame.check = check_of(&frame, payload, payload_bytes, r->frames++);
    put(r, &frame, sizeof frame);
    if (payload_bytes)
        put(r, payload, payload_bytes);
    put_padding(r, payload_bytes);
}

/* ---- staging ------------------------------------------------------------------------------ */

/* The next query may have been peeked before what this one fetched has come up: only a FETCH for
 * another query of the sequence replaces it. */
static void note_items(struct recording *r, const struct record_header *header,
                       const struct fetch_item *items, uint32_t n_items)
{
    struct fetched *f = &r->fetched[header->sequence];
    if (memcmp(header, &f->header, sizeof f->header) != 0)
        f->n = 0;
    f->header = *header;
    uint32_t n = f->n + n_items;
    if (!GROW(f->items, f->room, n)) {
        r->cut = true;
        log_warn("the recording ends here: out of memory");
        return;
    }
    memcpy(f->items + f->n, items, n_items * sizeof *f->items);
    f->n = n;
}

static void note_fetch(struct recording *r, const struct record_fetch *fetch)
{
    for (uint32_t i = 0; i <= fetch->n_rows; i++) {
        struct record_header header = fetch->header;
        struct fetch_row row;
        uint32_t n = record_fetch_row(fetch, i, &row);
        header.sequence = row.sequence;
        header.step = row.step;
        note_items(r, &header, (const struct fetch_item *)(fetch + 1) + row.first, n);
    }
}

/* Entries that come up were copied out of the staging slots into which the query, or a guess ahead
 * of it, had them fetched. */
static void record_staging(struct recording *r, const struct record_release *release)
{
    const struct fetched *f = &r->fetched[release->header.sequence];
    const uint32_t *slots = (const uint32_t *)(release + 1);
    for (uint32_t i = 0; i < release->n_slots; i++)
        for (uint32_t k = 0; k < f->n; k++) {
            uint32_t staging = f->items[k].staging_slot;
            if (f->items[k].cold_slot != slots[i])
                continue;
            put_frame(r,
                      (struct recording_frame){.kind = RECORDING_STAGING,
                                               .ring = RING_COMMAND,
                                               .type = staging,
                                               .bytes = r->entry_bytes},
                      shm_arena_slot(r->staging, staging), r->entry_bytes);
        }
}

/* ---- keys --------------------------------------------------------------------------------- */

static void note_read(struct recording *r, const struct record_read_keys *read)
{
    r->window_tags[read->window] = read->tag; /* the scorer's own record: it is right */
}

/* The agent has filled a window, and says how far. */
static void record_window(struct recording *r, const struct record_completion *c)
{
    if (!r->windows || c->command != RECORD_READ_KEYS || c->status ||
        c->link_key_bytes > r->window_bytes)
        return;
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        if (r->window_tags[i] == c->tag)
            put_frame(r,
                      (struct recording_frame){.kind = RECORDING_WINDOW,
                                               .ring = RING_COMPLETION,
                                               .type = i,
                                               .bytes = (uint32_t)c->link_key_bytes},
                      r->windows + (uint64_t)i * r->window_bytes, c->link_key_bytes);
}

/* ---- the tap ------------------------------------------------------------------------------ */

/* Looks that changed nothing: the same again, as a replay answers where it is told nothing else. */
static bool is_look(struct recording *r, enum layout_ring ring, enum shm_ring_moment moment,
                    uint32_t bytes)
{
    uint32_t told = r->credits[ring];
    switch (moment) {
    case SHM_RING_EMPTY:
    case SHM_RING_STILL:
        r->looks += ring < RING_COMMAND;
        return true;
    case SHM_RING_FULL:
    case SHM_RING_DECIDES:
        r->looks++;
        return true;
    case SHM_RING_CREDITS:
        r->credits[ring] = bytes;
        r->looks += told == bytes;
        return told == bytes;
    case SHM_RING_GONE:
        told = r->gone[ring];
        r->gone[ring] = true;
        return told;
    default:
        return false;
    }
}

static uint32_t see(void *context, enum shm_ring_moment moment, uint32_t type, const void *payload,
                    uint32_t bytes)
{
    static const uint8_t kinds[] = {[SHM_RING_PEEKED] = RECORDING_IN,
                                    [SHM_RING_PUBLISHED] = RECORDING_OUT,
                                    [SHM_RING_RESERVED] = RECORDING_ROOM,
                                    [SHM_RING_GONE] = RECORDING_GONE,
                                    [SHM_RING_CREDITS] = RECORDING_CREDITS};
    const struct ring_context *c = context;
    struct recording *r = c->recording;
    uint32_t answer = moment == SHM_RING_CREDITS                            ? bytes
                      : moment == SHM_RING_EMPTY || moment == SHM_RING_FULL ? 0
                                                                            : 1;
    if (is_look(r, c->ring, moment, bytes))
        return answer;
    struct recording_frame frame = {
        .kind = kinds[moment], .ring = (uint8_t)c->ring, .type = type, .bytes = bytes};
    if (moment == SHM_RING_PUBLISHED && type == RECORD_RELEASE)
        record_staging(r, payload);
    if (moment == SHM_RING_PEEKED && c->ring == RING_COMPLETION &&
        bytes == sizeof(struct record_completion))
        record_window(r, payload);
    put_frame(r, frame, payload, payload ? bytes : 0);
    if (moment == SHM_RING_PUBLISHED && type == RECORD_FETCH)
        note_fetch(r, payload);
    if (moment == SHM_RING_PUBLISHED && type == RECORD_READ_KEYS)
        note_read(r, payload);
    return answer;
}

void recording_tap(struct recording *r, struct shm_ring_end *ends, const struct shm_arena *staging,
                   const uint8_t *windows)
{
    r->staging = staging;
    r->windows = windows;
    r->ends = ends;
    for (int ring = 0; ring < RING_COUNT; ring++) {
        r->contexts[ring] = (struct ring_context){r, (enum layout_ring)ring, ends[ring].producer};
        r->taps[ring] = (struct shm_ring_tap){&r->contexts[ring], see};
        if (ends[ring].ring)
            ends[ring].tap = &r->taps[ring];
    }
}

/* ---- life --------------------------------------------------------------------------------- */

static int open_new(const char *path, char name[RECORDING_NAME_BYTES], struct hill_why *why)
{
    for (unsigned i = 1; i < 10000; i++) {
        int used = i == 1 ? snprintf(name, RECORDING_NAME_BYTES, "%s", path)
                          : snprintf(name, RECORDING_NAME_BYTES, "%s.%u", path, i);
        if (used >= (int)RECORDING_NAME_BYTES)
            return hill_fail(why, HILL_E_INVALID, "cannot record: the file's name is too long");
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0)
            return fd;
        if (errno != EEXIST)
            return hill_fail(why, hill_from_errno(errno), "cannot record to %.300s: %s", name,
                             strerror(errno));
    }
    return hill_fail(why, HILL_E_IO, "cannot record to %.300s: 9999 files of that name are there",
                     path);
}

static int put_header(struct recording *r, const struct epoch_settings *s)
{
    struct layout_input in = epoch_layout(s);
    struct epoch_wire wire;
    epoch_settings_to_wire(&wire, s);
    size_t bytes = hill__message__get_packed_size(&wire.message);
    uint8_t *packed = malloc(bytes);
    if (!packed)
        return HILL_E_NOMEM;
    hill__message__pack(&wire.message, packed);
    struct recording_header h = {.version = RECORDING_VERSION,
                                 .header_bytes = sizeof h,
                                 .records_version = PROTO_RECORDS_VERSION,
                                 .configure_bytes = (uint32_t)bytes,
                                 .fingerprint = layout_fingerprint(&in),
                                 .configure_check = XXH64(packed, bytes, 0)};
    memcpy(h.magic, RECORDING_MAGIC, sizeof h.magic);
    h.header_check = XXH64(&h, offsetof(struct recording_header, header_check), 0);
    put(r, &h, sizeof h);
    put(r, packed, bytes);
    put_padding(r, bytes);
    free(packed);
    r->entry_bytes = kv_entry_bytes(&in.geometry);
    r->window_bytes = recording_window_bytes(s);
    return 0;
}

int recording_create(struct recording **out, const char *path, const struct epoch_settings *s,
                     char name[RECORDING_NAME_BYTES], struct hill_why *why)
{
    *out = NULL;
    int fd = open_new(path, name, why);
    if (fd < 0)
        return fd;
    struct recording *r = calloc(1, sizeof *r);
    if (r)
        r->fd = fd;
    if (!r || put_header(r, s)) {
        close(fd);
        unlink(name); /* nothing came of it: leave no empty file */
        free(r);
        return hill_fail(why, HILL_E_NOMEM, "cannot record: out of memory");
    }
    *out = r;
    return 0;
}

int recording_close(struct recording *r)
{
    if (!r)
        return 0;
    for (int ring = 0; r->ends && ring < RING_COUNT; ring++)
        r->ends[ring].tap = NULL;
    struct recording_end end = {.frames = r->frames, .cut = r->cut};
    r->cut = false;
    put_frame(r, (struct recording_frame){.kind = RECORDING_END, .bytes = sizeof end}, &end,
              sizeof end);
    flush(r);
    int rc = r->failed;
    if (close(r->fd) != 0 && rc == 0)
        rc = hill_from_errno(errno);
    for (uint32_t i = 0; i < KV_MAX_SEQUENCES; i++)
        free(r->fetched[i].items);
    free(r);
    return rc;
}
