/*
 * recording/recording.h - the ring traffic of an epoch in a file, as the scorer sees it; and
 * reading it back.
 *
 * What: the scorer takes part in every ring, so one tap on its seven ends (shm/ring.h) sees all
 * traffic, in the one order in which the scorer's thread saw it: records it peeked first, room
 * it was granted, credits it was told, records it published, the staging slots out of which
 * entries came up, and the windows of keys that it evaluated. Looks at the rings that found
 * nothing are counted: they say how many turns of its loop, in which it may have decided
 * something by itself, lay between two events (with several sequences, when a policy hears of
 * new tokens). Order and counts make a replay exact: the scorer's output is a function of them.
 * Not counted are looks at the agent's rings: how often it takes them while it scores follows
 * from its threads, and what they bring does not depend on it. A turn that looks at nothing else
 * and decides all the same says so (shm_ring_decide) and counts as a look. A step that other
 * rows see and whose moment depends on threads or a device model (a row takes staging slots, a
 * guess ahead ends) asks for room in a ring first: that is an event, and gives the step its
 * place. File: struct recording_header, the Configure of the epoch packed as in the control
 * plane, frames, an END frame. Everything little endian, parts padded to 8 bytes with zeros;
 * each frame's checksum covers its fields, its payload and its number. An epoch has a file of
 * its own: FILE, then FILE.2 and so on; nothing is overwritten. Bound: RECORDING_BYTES_MAX; what
 * comes later is not recorded and END says so. Who calls it: cpu_scorer writes (one thread, its
 * data thread), tools/replay reads.
 * Failure: writing: a warning, and the recording ends there, without END when the disk is full;
 * reading: HILL_E_DAMAGED or HILL_E_UNSUPPORTED with the file and the field in why, before anything
 * of it is used.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/envelope.h"
#include "proto/epoch_settings.h"
#include "shm/arena.h"

#define RECORDING_MAGIC      "HILLRING"
#define RECORDING_VERSION    5u
#define RECORDING_BYTES_MAX  (UINT64_C(2) << 30)
#define RECORDING_NAME_BYTES 4200u

struct recording_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t records_version; /* PROTO_RECORDS_VERSION */
    uint32_t configure_bytes; /* of the packed Message that follows, without padding */
    uint64_t fingerprint; /* layout_fingerprint: geometry, context, record and layout versions */
    uint64_t configure_check; /* XXH64 over the packed Message */
    uint64_t header_check;    /* XXH64 over the fields before this one */
};

enum recording_kind {
    RECORDING_IN = 1,  /* a record that the scorer saw first now */
    RECORDING_OUT,     /* a record that it published */
    RECORDING_ROOM,    /* it was granted room for `bytes`; no payload */
    RECORDING_CREDITS, /* it was told `bytes` of credits, not the same as before; no payload */
    RECORDING_GONE,    /* it first found the ring's consumer gone; no payload */
    RECORDING_STAGING, /* `type` is a staging slot, the payload its entry; before a RELEASE */
    RECORDING_WINDOW,  /* `type` is a window of keys, the payload what a READ_KEYS has put there;
                          before its completion */
    RECORDING_END,     /* payload: struct recording_end */
};

struct recording_frame {
    uint8_t kind, ring;
    uint16_t zero;
    uint32_t type; /* enum record_type */
    uint32_t bytes;
    uint32_t looks; /* since the frame before: at append and query rings, no new record; for room,
                       refused; at credits, the same as before (0 at first); decisions that were
                       made without one. 0: STAGING, WINDOW */
    uint64_t check; /* XXH64 over the fields before and the padded payload, seed: frame's number */
    /* then the payload, padded */
};

struct recording_end {
    uint64_t frames; /* before this one */
    uint64_t cut;    /* 1: the traffic went on after this */
};

_Static_assert(sizeof(struct recording_header) == 48, "recording header layout");
_Static_assert(sizeof(struct recording_frame) == 24, "recording frame layout");

/* ---- writing ---- */

struct recording;

/* Open the first free name of path, path.2, ... (it is in name), write the header. */
int recording_create(struct recording **out, const char *path, const struct epoch_settings *s,
                     char name[RECORDING_NAME_BYTES], struct hill_why *why);
/* Tap the scorer's ends, [RING_COUNT] (those that are not open are left alone). windows:
 * KV_KEY_WINDOWS one after the other, of the size that Configure says; NULL: none. All of it lives
 * until recording_close. */
void recording_tap(struct recording *r, struct shm_ring_end *ends, const struct shm_arena *staging,
                   const uint8_t *windows);
/* Writes END and closes. NULL allowed. 0, or why the file is of no use. Close before the rings. */
int recording_close(struct recording *r);

/* ---- reading ---- */

struct recording_event {
    enum recording_kind kind;
    enum layout_ring ring;
    uint32_t type, bytes, looks;
    const uint8_t *payload; /* in the mapped file, 8-byte aligned */
    uint64_t number;        /* from 0 */
};

struct recording_file {
    const uint8_t *map;
    uint64_t bytes, at, frames; /* at: where the next frame lies */
    uint64_t next;
    bool cut;
    Hill__Message *message; /* the Configure; the texts of settings are its */
    struct epoch_settings settings;
    struct layout_input layout; /* of settings */
};

/* Maps the file and checks all of it. */
int recording_open(struct recording_file *f, const char *path, struct hill_why *why);
/* The next event but END; false at the end. */
bool recording_next(struct recording_file *f, struct recording_event *event);
void recording_rewind(struct recording_file *f);
/* Safe on a zeroed struct. */
void recording_finish(struct recording_file *f);
