/*
 * pool/pool.h - the cold pool's format on flash.
 *
 * File (all regions 4 KiB aligned, little endian):
 *     superblock   4 KiB   magic, version, uuid, fingerprint, geometry, layout, generation, stamp,
 *                          checksum
 *     directory    n_stripes records: owner (sequence, layer), order within its owner,
 *                  valid bitmap, positions, entry checksums
 *     digests      n_stripes stripes: [S / 16] groups (kv/group.h), padded to 4 KiB; in a pool
 *                  of keys (key_bytes > 0) instead: keys, or parts of them, [S][key_bytes],
 *                  padded to 4 KiB
 *     entries      n_stripes stripes: FP16 entries [S][entry bytes], packed back to back,
 *                  padded to 4 KiB
 *
 * A stripe is S = stripe_slots slots of one (sequence, layer); slot i's digest is token i of the
 * stripe's groups. Its digest part is about 1 MiB, so that consecutive stripes of a layer stream
 * sequentially. A cold slot id is stripe * S + slot (u32). Entries are packed, not one per page:
 * they are read by their covering pages. A directory record fills whole pages of its own, so that
 * writing one cannot tear another. Slot ids stay below 2^31. Superblock and every record carry a
 * checksum over all their bytes; records also the generation. Invariants: a slot counts only once
 * its bit in the directory is set; bits are set after entry and digest are on flash. Who calls it:
 * csd_agent (owner while it lives), scorer and coordinator for sizes, tools/fsck. This library does
 * plain pread/pwrite for superblock and directory; the agent streams the rest itself at the offsets
 * given here.
 * Failure: HILL_E_DAMAGED (checksum, magic, truncated), HILL_E_UNSUPPORTED (version),
 * HILL_E_NOSPACE, HILL_E_INVALID (foreign fingerprint). Concurrency: one thread per file and
 * directory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kv/geometry.h"
#include "kv/group.h"

#define POOL_PAGE_BYTES    4096u
#define POOL_NO_OWNER      UINT32_MAX
#define POOL_UNKNOWN_OWNER (UINT32_MAX - 1) /* its record cannot be used: pool_open_stamped */
#define POOL_UUID_BYTES    16u
#define POOL_UUID_TEXT     37u /* bytes of "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx" and its end */

/* Where everything lies in a pool; offsets and sizes in bytes. */
struct pool_layout {
    struct kv_geometry geometry;
    uint32_t stripe_slots; /* S: multiple of 256, 256..4096 */
    uint32_t n_stripes;
    uint32_t key_bytes; /* of a slot in the plane of keys; 0: the plane is of digests */
    uint32_t reserved;
    uint64_t digest_stripe_bytes, entry_stripe_bytes, directory_record_bytes; /* 4 KiB multiples */
    uint64_t key_stripe_bytes;                                                /* of one plane 0 */
    uint64_t directory_offset, digest_offset, key_offset, entry_offset, total_bytes;
};

/* The layout for a cap, of a pool with a plane of keys (kv_plane_key_bytes) or, with key_bytes 0,
 * of digests; HILL_E_INVALID when not even one stripe per layer fits (why: needed and given). */
int pool_layout_with_keys(struct pool_layout *out, const struct kv_geometry *g, uint32_t key_bytes,
                          uint64_t cap_bytes, struct hill_why *why);

/* Slots that n_sequences sequences of n_tokens tokens can use: whole stripes, every layer. */
uint64_t pool_slots_for_tokens(const struct kv_geometry *g, uint32_t n_sequences,
                               uint32_t n_tokens);

static inline uint64_t pool_digest_at(const struct pool_layout *l, uint32_t stripe)
{
    return l->digest_offset + (uint64_t)stripe * l->digest_stripe_bytes;
}

/* The cap of a pool with a plane of keys. */
uint64_t pool_bytes_with_keys(const struct kv_geometry *g, uint32_t key_bytes, uint32_t n_sequences,
                              uint32_t n_tokens);

static inline uint64_t pool_key_at(const struct pool_layout *l, uint32_t slot)
{
    return l->key_offset + (uint64_t)(slot / l->stripe_slots) * l->key_stripe_bytes +
           (uint64_t)(slot % l->stripe_slots) * l->key_bytes;
}

/* Has the plane whole keys, from which digests can be made? */
static inline bool pool_has_keys(const struct pool_layout *l)
{
    return l->key_bytes == 2 * kv_key_dims(&l->geometry);
}

/* What READ_KEYS and scoring read: keys, or, where there is no plane of them, digests, in whole
 * groups. Bytes of a slot, and where it lies; of digests a group's first slot. */
static inline uint32_t pool_read_bytes(const struct pool_layout *l)
{
    return l->key_bytes ? l->key_bytes : kv_digest_bytes(&l->geometry);
}

static inline uint64_t pool_read_at(const struct pool_layout *l, uint32_t slot)
{
    return l->key_bytes ? pool_key_at(l, slot)
                        : pool_digest_at(l, slot / l->stripe_slots) +
                              (uint64_t)(slot % l->stripe_slots) * pool_read_bytes(l);
}

static inline uint64_t pool_entry_at(const struct pool_layout *l, uint32_t slot)
{
    return l->entry_offset + (uint64_t)(slot / l->stripe_slots) * l->entry_stripe_bytes +
           (uint64_t)(slot % l->stripe_slots) * kv_entry_bytes(&l->geometry);
}

/* In-memory image of one stripe's directory record. */
struct pool_stripe {
    uint32_t sequence, layer; /* POOL_NO_OWNER: free */
    uint32_t order;           /* allocation order within its owner */
    uint32_t n_valid;
    uint64_t *valid;     /* bitmap [S / 64] */
    uint32_t *positions; /* [S] */
    uint32_t *checksums; /* [S]: low 32 bits of XXH3_64bits(entry) */
};

/* Whose entries lie in a pool: set when its use begins, so that a later process of the same use
 * knows the pool again, and not one that was formatted, or another file, since. */
struct pool_stamp {
    uint64_t run_id, epoch; /* of the coordinator's run; in which the tiers were made */
};

struct pool_directory {
    struct pool_layout layout;
    struct pool_stripe *stripes; /* [n_stripes] */
    uint64_t generation;         /* from the superblock: goes up at every format */
    struct pool_identity {       /* from there as well */
        uint8_t
            uuid[POOL_UUID_BYTES]; /* drawn at a format that finds no pool; kept by later ones */
        uint64_t fingerprint;      /* of the model and the configuration */
        struct pool_stamp stamp;
    } identity;
};

/* As people write it; returns out. */
const char *pool_uuid_print(char out[POOL_UUID_TEXT], const uint8_t uuid[POOL_UUID_BYTES]);

/* The low 32 bits of XXH3 of the entry. */
uint32_t pool_entry_checksum(const void *entry, uint32_t entry_bytes);

/* Reserve the file's space (HILL_E_NOSPACE with needed and free bytes in why), write superblock and
 * an empty directory, flushed. A mark goes first, the superblock last: a format cut short leaves no
 * pool (HILL_E_DAMAGED, why: "cut short"), but the magic, which says that nobody's data is lost by
 * another format. Whose data is there is asked before, by the caller. When it fails, a file is cut
 * to 0 bytes, so that nothing stays allocated. fd is open read-write on a file or block device;
 * O_DIRECT allowed (buffers inside are aligned). */
int pool_format(int fd, const struct pool_layout *layout, uint64_t fingerprint,
                struct hill_why *why);

/* Read and check superblock and directory. */
int pool_open(struct pool_directory **out, int fd, uint64_t fingerprint, struct hill_why *why);
/* A pool with this stamp (else HILL_E_INVALID), for who knows better than its directory, which may
 * be behind, what lies in it: that frees every stripe, on flash too, and claims its own. A record
 * that cannot be used is a stripe of POOL_UNKNOWN_OWNER. */
int pool_open_stamped(struct pool_directory **out, int fd, uint64_t fingerprint,
                      const struct pool_stamp *stamp, struct hill_why *why);
/* Put the stamp into the superblock of an open pool. Not flushed: it is for processes that follow
 * one another, not for a machine that starts again. */
int pool_set_stamp(int fd, const struct pool_stamp *stamp, struct hill_why *why);
/* The uuid of the pool in a file, whatever pool it is; HILL_E_DAMAGED, HILL_E_UNSUPPORTED: none. */
int pool_read_uuid(int fd, uint8_t uuid[POOL_UUID_BYTES], struct hill_why *why);
/* Whatever pool it is, for somebody who only looks: damaged(context, stripe, line) is told of each
 * record of the directory that cannot be used, whose stripe is free in memory. A damaged
 * superblock, or a file that is too short: as pool_open. */
int pool_survey(struct pool_directory **out, int fd,
                void (*damaged)(void *context, uint32_t stripe, const char *line), void *context,
                struct hill_why *why);
void pool_close(struct pool_directory *directory);

/* Owner changes and bits in memory (cheap). A stripe or slot that the layout does not have is never
 * valid; to claim, free or set it, or to set a slot of a free stripe, is a bug (abort). Setting a
 * set slot replaces its position and checksum. */
void pool_stripe_claim(struct pool_directory *d, uint32_t stripe, uint32_t sequence, uint32_t layer,
                       uint32_t order);
void pool_stripe_free(struct pool_directory *d, uint32_t stripe);
bool pool_slot_valid(const struct pool_directory *d, uint32_t slot);
void pool_slot_set(struct pool_directory *d, uint32_t slot, uint32_t position, uint32_t checksum);
/* A slot that is not set stays so. */
void pool_slot_clear(struct pool_directory *d, uint32_t slot);

/* Serialise a stripe's record into `pages`, a 4 KiB-aligned buffer of pool_directory_page_bytes
 * bytes, for the agent's asynchronous write at *offset; returns the bytes to write. It is the
 * caller who flushes. */
uint64_t pool_directory_page_bytes(const struct pool_layout *layout);
uint64_t pool_directory_encode(const struct pool_directory *d, uint32_t stripe, void *pages,
                               uint64_t *offset);
