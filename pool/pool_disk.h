/*
 * pool/pool_disk.h - what superblock and directory records look like on flash; private to pool/.
 *
 * Little endian. The checksum comes first in a record and covers everything after it up to the end
 * of the record's last page, padding included, so that any flipped bit is found.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pool/pool.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the cold pool is written in memory order, which must be little endian"
#endif

#define POOL_MAGIC   0x4c4f4f504c4c4948ull /* "HILLPOOL" in memory order */
#define POOL_VERSION 5u                    /* 5: a uuid */

struct pool_superblock {
    uint64_t checksum; /* XXH3_64bits of the rest of the page; at this place in every version */
    uint64_t magic;
    uint32_t version;
    uint32_t stripe_slots;
    uint64_t fingerprint;
    uint64_t generation;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_stripes, key_bytes;
    uint64_t digest_stripe_bytes, entry_stripe_bytes, directory_record_bytes;
    uint64_t directory_offset, digest_offset, entry_offset, total_bytes;
    uint64_t key_stripe_bytes, key_offset;
    uint32_t digest_bits;
    uint32_t being_formatted; /* not 0: a format has begun, and there is no pool yet */
    struct pool_stamp stamp;  /* zeros: nobody's */
    uint8_t uuid[POOL_UUID_BYTES];
    uint8_t pad[POOL_PAGE_BYTES - 176];
};

_Static_assert(sizeof(struct pool_superblock) == POOL_PAGE_BYTES, "superblock fills a page");
_Static_assert(offsetof(struct pool_superblock, digest_stripe_bytes) == 64, "superblock layout");

struct pool_record {
    uint64_t checksum;
    uint64_t generation; /* of the superblock: a record of an older pool is none */
    uint32_t stripe;     /* its own number: a misplaced write is found */
    uint32_t sequence, layer, order, n_valid;
    uint8_t pad[28];
    /* then uint64_t valid[S / 64], uint32_t positions[S], uint32_t checksums[S], zeros to the end
     * of the page */
};

_Static_assert(sizeof(struct pool_record) == 64, "record layout");

/* The layout of n_stripes stripes; what the stripe count and the geometry say and nothing else. */
void pool_layout_fill(struct pool_layout *out, const struct kv_geometry *g, uint32_t key_bytes,
                      uint32_t n_stripes);
uint32_t pool_max_stripes(const struct kv_geometry *g);

/* Page-aligned zeroed memory, bytes a multiple of POOL_PAGE_BYTES; free() it. NULL when there is
 * none. */
void *pool_page_alloc(uint64_t bytes);

/* All of it or a code; a short read is HILL_E_DAMAGED. what names the thing in why. */
int pool_read_all(int fd, void *buffer, uint64_t bytes, uint64_t offset, const char *what,
                  struct hill_why *why);
int pool_write_all(int fd, const void *buffer, uint64_t bytes, uint64_t offset, const char *what,
                   struct hill_why *why);

/* Bytes of the file or block device. */
int pool_file_bytes(int fd, uint64_t *bytes, struct hill_why *why);

/* XXH3_64bits of a page or record without its first 8 bytes. */
uint64_t pool_sealed_checksum(const void *pages, uint64_t bytes);

/* Encode the record of stripe `index` into zeroed or used pages. */
void pool_record_encode(const struct pool_layout *l, uint64_t generation, uint32_t index,
                        const struct pool_stripe *stripe, void *pages);
