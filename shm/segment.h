/*
 * shm/segment.h - named POSIX shared-memory segments with a checked header.
 *
 * What: a segment is a file in /dev/shm with a 4096-byte header and a payload after it. The
 * coordinator creates and unlinks segments and never touches a payload; workers attach by name.
 * Names: "hill-<run id>-<epoch>-<what>" (shm_segment_name); the run id is 16 hex digits derived
 * from the run folder, so that the next start in the same folder finds what a killed one left.
 * Invariants: no pointers in shared memory [I23]; magic is published last (release) and read first
 * (acquire); pages are really allocated at creation, so that a full /dev/shm is an error code and
 * never SIGBUS. Who calls it: all processes. Concurrency: calls on one struct by one thread.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SHM_SEGMENT_MAGIC  0x4d53484cu /* "LHSM" in memory order */
#define SHM_LAYOUT_VERSION 2u
#define SHM_HEADER_BYTES   4096u
#define SHM_NAME_BYTES     80

struct shm_segment_header {
    _Atomic uint32_t magic;  /* creator, last */
    uint32_t layout_version; /* creator */
    uint64_t total_bytes;    /* creator: header and payload */
    uint64_t fingerprint;    /* creator: geometry and record layout, see proto/layout.h */
    uint64_t creator_start;  /* creator: its start time (clock ticks since boot, /proc/PID/stat) */
    int32_t creator_pid;     /* creator */
    uint32_t epoch;          /* creator: the incarnation of the data plane */
};

_Static_assert(sizeof(struct shm_segment_header) == 40, "segment header layout");
_Static_assert(offsetof(struct shm_segment_header, epoch) == 36, "segment header layout");

struct shm_segment {
    void *base; /* the mapping (header first), NULL when not attached */
    uint64_t total_bytes;
    char name[SHM_NAME_BYTES];
};

/* Write "/hill-%016x-%u-%s" into name[SHM_NAME_BYTES]; what: at most 40 bytes without '/', else
 * name is made empty, which create and attach refuse. */
void shm_segment_name(char *name, uint64_t run_id, uint32_t epoch, const char *what);

/* Create, map, allocate (in huge pages where /dev/shm gives them) and publish. HILL_E_BUSY when the
 * name exists, HILL_E_NOSPACE when /dev/shm has no room, others from errno. On failure no segment
 * of this name remains (but for HILL_E_BUSY: it is another's). */
int shm_segment_create(struct shm_segment *segment, const char *name, uint64_t payload_bytes,
                       uint64_t fingerprint, uint32_t epoch, struct hill_why *why);

/* The same with the first page of the payload alone, where how much of it is ever used is not known
 * yet: that page says what the others hold, and may be read before they are there. */
int shm_segment_create_empty(struct shm_segment *segment, const char *name, uint64_t payload_bytes,
                             uint64_t fingerprint, uint32_t epoch, struct hill_why *why);
/* Give the payload's first bytes of such a segment their pages, those that they lack.
 * HILL_E_NOSPACE when fewer than `leave` bytes of /dev/shm would be left to others. */
int shm_segment_fill(const struct shm_segment *segment, uint64_t payload_bytes, uint64_t leave,
                     struct hill_why *why);

/* Map an existing segment and check magic, layout version, size, fingerprint and epoch.
 * HILL_E_DAMAGED (not a segment, truncated, another epoch) or HILL_E_UNSUPPORTED (other layout
 * version or fingerprint, named in why) on mismatch; HILL_E_PEER_GONE when there is no such name.
 */
int shm_segment_attach(struct shm_segment *segment, const char *name, uint64_t fingerprint,
                       uint32_t epoch, struct hill_why *why);

/* The same, to be read only: it is mapped without the right to write. */
int shm_segment_attach_to_read(struct shm_segment *segment, const char *name, uint64_t fingerprint,
                               uint32_t epoch, struct hill_why *why);

/* Zeroed memory of this process alone, without a name or a header to check: for what plays all
 * sides itself. HILL_E_INVALID when payload_bytes is 0, HILL_E_NOMEM. */
int shm_segment_private(struct shm_segment *segment, uint64_t payload_bytes, struct hill_why *why);

/* The first payload byte and the payload's size. */
void *shm_segment_payload(const struct shm_segment *segment);
uint64_t shm_segment_payload_bytes(const struct shm_segment *segment);

/* Advise huge pages, and interleave over NUMA nodes when there are several (libnuma). Best effort:
 * existing pages are moved, so call it once, by the creator, before others attach. Returns 1 when
 * huge pages were advised, 2 when interleaved, 3 both, 0 neither. */
int shm_segment_place(const struct shm_segment *segment);

/* Unmap; safe on a zeroed struct. */
void shm_segment_detach(struct shm_segment *segment);

/* Remove the name; 0 also when it does not exist. */
int shm_segment_unlink(const char *name);
/* Bytes of memory that it takes; 0: it is not there. */
uint64_t shm_segment_held(const char *name);

/* Remove every segment of run_id whose creator is no longer alive (dead, or its pid belongs to
 * another start time), or that is damaged; one that is just being created looks damaged, so the
 * caller holds the run folder's lock. All are tried. keep_epoch: those with its number in their
 * names stay; 0: none do. Returns how many were removed, or a negative code. */
int shm_segment_reap(uint64_t run_id, uint32_t keep_epoch);
