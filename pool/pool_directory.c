/*
 * pool/pool_directory.c - opens a pool, keeps its directory in memory, writes records back.
 *
 * Nothing the file says is used before it is checked: the superblock's layout must be the very one
 * that its geometry and stripe count give, and the file must be that long, before memory is taken
 * for the directory. Who calls it: the agent. Concurrency: one thread per directory.
 */
#include <stdlib.h>
#include <string.h>

#include "pool/pool_disk.h"

#define CHUNK_BYTES (1u << 20)

/* ---- records ------------------------------------------------------------------------------ */

static uint64_t valid_bytes(const struct pool_layout *l)
{
    return l->stripe_slots / 8;
}

static uint64_t column_bytes(const struct pool_layout *l) /* positions or checksums */
{
    return (uint64_t)l->stripe_slots * sizeof(uint32_t);
}

void pool_record_encode(const struct pool_layout *l, uint64_t generation, uint32_t index,
                        const struct pool_stripe *stripe, void *pages)
{
    struct pool_record *record = pages;
    uint8_t *valid = (uint8_t *)(record + 1);
    memset(pages, 0, l->directory_record_bytes);
    record->generation = generation;
    record->stripe = index;
    record->sequence = stripe->sequence;
    record->layer = stripe->layer;
    record->order = stripe->order;
    record->n_valid = stripe->n_valid;
    if (stripe->n_valid > 0) {
        memcpy(valid, stripe->valid, valid_bytes(l));
        memcpy(valid + valid_bytes(l), stripe->positions, column_bytes(l));
        memcpy(valid + valid_bytes(l) + column_bytes(l), stripe->checksums, column_bytes(l));
    }
    record->checksum = pool_sealed_checksum(pages, l->directory_record_bytes);
}

/* Numbers that a sealed record could only hold if its writer was wrong. */
static bool stripe_plausible(const struct pool_layout *l, const struct pool_stripe *stripe)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < l->stripe_slots / 64; w++)
        n += (uint32_t)__builtin_popcountll(stripe->valid[w]);
    if (n != stripe->n_valid)
        return false;
    if (stripe->sequence == POOL_NO_OWNER)
        return stripe->layer == POOL_NO_OWNER && n == 0;
    if (stripe->layer >= l->geometry.n_layers)
        return false;
    for (uint32_t slot = 0; slot < l->stripe_slots; slot++) {
        bool set = (stripe->valid[slot / 64] >> (slot % 64) & 1) != 0;
        if (set && stripe->positions[slot] >= KV_MAX_TOKENS)
            return false;
    }
    return true;
}

static int record_decode(struct pool_directory *d, uint32_t index, const void *pages,
                         struct hill_why *why)
{
    const struct pool_layout *l = &d->layout;
    const struct pool_record *record = pages;
    const uint8_t *valid = (const uint8_t *)(record + 1);
    struct pool_stripe *stripe = &d->stripes[index];
    if (record->checksum != pool_sealed_checksum(pages, l->directory_record_bytes))
        return hill_fail(why, HILL_E_DAMAGED,
                         "cold pool is damaged: directory record %u has a wrong checksum", index);
    if (record->generation != d->generation || record->stripe != index)
        return hill_fail(why, HILL_E_DAMAGED,
                         "cold pool is damaged: directory record %u belongs elsewhere", index);
    stripe->sequence = record->sequence;
    stripe->layer = record->layer;
    stripe->order = record->order;
    stripe->n_valid = record->n_valid;
    memcpy(stripe->valid, valid, valid_bytes(l));
    memcpy(stripe->positions, valid + valid_bytes(l), column_bytes(l));
    memcpy(stripe->checksums, valid + valid_bytes(l) + column_bytes(l), column_bytes(l));
    if (!stripe_plausible(l, stripe))
        return hill_fail(why, HILL_E_DAMAGED,
                         "cold pool is damaged: directory record %u contradicts itself", index);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------ */

static bool layout_matches(const struct pool_layout *l, const struct pool_superblock *page)
{
    return page->digest_bits == kv_digest_bits(&l->geometry) &&
           page->stripe_slots == l->stripe_slots &&
           page->digest_stripe_bytes == l->digest_stripe_bytes &&
           page->entry_stripe_bytes == l->entry_stripe_bytes &&
           page->directory_record_bytes == l->directory_record_bytes &&
           page->directory_offset == l->directory_offset &&
           page->key_stripe_bytes == l->key_stripe_bytes && page->key_offset == l->key_offset &&
           page->digest_offset == l->digest_offset && page->entry_offset == l->entry_offset &&
           page->total_bytes == l->total_bytes;
}

/* fingerprint: NULL: any. */
static int check_superblock(const struct pool_superblock *page, const uint64_t *fingerprint,
                            struct pool_layout *layout, struct hill_why *why)
{
    struct kv_geometry g = {page->n_layers, page->n_heads, page->n_kv_heads, page->head_dim,
                            page->digest_bits};
    struct hill_why detail = {""};
    if (page->magic != POOL_MAGIC)
        return hill_fail(why, HILL_E_DAMAGED, "no cold pool: wrong magic in the superblock");
    if (page->checksum != pool_sealed_checksum(page, sizeof(*page)))
        return hill_fail(why, HILL_E_DAMAGED,
                         "cold pool is damaged: the superblock has a wrong checksum");
    if (page->version != POOL_VERSION)
        return hill_fail(why, HILL_E_UNSUPPORTED, "cold pool has version %u, not %u", page->version,
                         POOL_VERSION);
    if (page->being_formatted)
        return hill_fail(why, HILL_E_DAMAGED,
                         "no cold pool: a format was cut short here, and nothing is in it");
    if (fingerprint && page->fingerprint != *fingerprint)
        return hill_fail(why, HILL_E_INVALID,
                         "cold pool belongs to another model or configuration: fingerprint "
                         "%016llx, not %016llx",
                         (unsigned long long)page->fingerprint, (unsigned long long)*fingerprint);
    if (kv_geometry_check(&g, &detail) != 0)
        return hill_fail(why, HILL_E_DAMAGED, "cold pool is damaged: superblock: %s", detail.text);
    if (page->n_stripes < g.n_layers || page->n_stripes > pool_max_stripes(&g))
        return hill_fail(why, HILL_E_DAMAGED, "cold pool is damaged: superblock: %u stripes",
                         page->n_stripes);
    if (page->key_bytes > 2 * kv_key_dims(&g))
        return hill_fail(why, HILL_E_DAMAGED, "cold pool is damaged: superblock: keys of %u bytes",
                         page->key_bytes);
    pool_layout_fill(layout, &g, page->key_bytes, page->n_stripes);
    if (!layout_matches(layout, page))
        return hill_fail(why, HILL_E_DAMAGED,
                         "cold pool is damaged: superblock: offsets do not fit the geometry");
    return 0;
}

/* fingerprint, stamp: those that it must have; NULL: any. out: what it says. */
static int read_superblock(int fd, const uint64_t *fingerprint, const struct pool_stamp *stamp,
                           struct pool_directory *out, struct hill_why *why)
{
    struct pool_layout *layout = &out->layout;
    uint64_t bytes = 0;
    struct pool_superblock *page = pool_page_alloc(sizeof(*page));
    if (page == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory to open the cold pool");
    int rc = pool_read_all(fd, page, sizeof(*page), 0, "superblock", why);
    if (rc == 0)
        rc = check_superblock(page, fingerprint, layout, why);
    if (rc == 0 && stamp && memcmp(&page->stamp, stamp, sizeof *stamp) != 0)
        rc = hill_fail(why, HILL_E_INVALID, "the cold pool is of another use");
    if (rc == 0)
        rc = pool_file_bytes(fd, &bytes, why);
    if (rc == 0 && bytes < layout->total_bytes)
        rc = hill_fail(why, HILL_E_DAMAGED, "cold pool is truncated: %llu of %llu bytes",
                       (unsigned long long)bytes, (unsigned long long)layout->total_bytes);
    out->generation = page->generation;
    out->identity.fingerprint = page->fingerprint;
    out->identity.stamp = page->stamp;
    memcpy(out->identity.uuid, page->uuid, sizeof page->uuid);
    free(page);
    return rc;
}

/* The directory, its stripes and their columns in one allocation; sizes of the columns keep them
 * aligned. */
static struct pool_directory *directory_alloc(const struct pool_directory *superblock)
{
    const struct pool_layout *l = &superblock->layout;
    uint64_t each = valid_bytes(l) + 2 * column_bytes(l);
    uint64_t head = sizeof(struct pool_directory) + l->n_stripes * sizeof(struct pool_stripe);
    struct pool_directory *d = calloc(1, head + l->n_stripes * each);
    if (d == NULL)
        return NULL;
    *d = *superblock;
    d->stripes = (struct pool_stripe *)(d + 1);
    for (uint32_t i = 0; i < l->n_stripes; i++) {
        uint8_t *columns = (uint8_t *)d + head + i * each;
        d->stripes[i].valid = (uint64_t *)columns;
        d->stripes[i].positions = (uint32_t *)(columns + valid_bytes(l));
        d->stripes[i].checksums = (uint32_t *)(columns + valid_bytes(l) + column_bytes(l));
    }
    return d;
}

/* What a damaged record is to somebody who only looks. */
struct survey {
    void (*damaged)(void *context, uint32_t stripe, const char *line);
    void *context;
};

static int pass_over(struct pool_directory *d, uint32_t stripe, const struct survey *survey,
                     const struct hill_why *found)
{
    pool_stripe_free(d, stripe);
    survey->damaged(survey->context, stripe, found->text);
    return 0;
}

/* survey: NULL: a record that is damaged or cannot be read is an error. */
static int read_records(struct pool_directory *d, int fd, uint8_t *records, uint32_t first,
                        uint32_t n, const struct survey *survey, struct hill_why *why)
{
    struct hill_why found = {""};
    uint64_t each = d->layout.directory_record_bytes;
    int rc = pool_read_all(fd, records, n * each, d->layout.directory_offset + first * each,
                           "directory", survey ? &found : why);
    if (rc != 0 && survey && n == 1)
        return pass_over(d, first, survey, &found);
    if (rc != 0 && survey) { /* one sector of all may be to blame */
        rc = 0;
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            rc = read_records(d, fd, records, first + i, 1, survey, why);
        return rc;
    }
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        rc = record_decode(d, first + i, records + i * each, survey ? &found : why);
        if (rc == HILL_E_DAMAGED && survey)
            rc = pass_over(d, first + i, survey, &found);
    }
    return rc;
}

static int read_directory(struct pool_directory *d, int fd, const struct survey *survey,
                          struct hill_why *why)
{
    const struct pool_layout *l = &d->layout;
    uint64_t each = l->directory_record_bytes;
    uint32_t batch = CHUNK_BYTES / each > 0 ? (uint32_t)(CHUNK_BYTES / each) : 1;
    uint8_t *records = pool_page_alloc(batch * each);
    if (records == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory to open the cold pool");
    int rc = 0;
    for (uint32_t first = 0; rc == 0 && first < l->n_stripes; first += batch) {
        uint32_t n = l->n_stripes - first < batch ? l->n_stripes - first : batch;
        rc = read_records(d, fd, records, first, n, survey, why);
    }
    free(records);
    return rc;
}

/* With a directory that is zeros. */
static int open_superblock(struct pool_directory **out, int fd, const uint64_t *fingerprint,
                           const struct pool_stamp *stamp, struct hill_why *why)
{
    struct pool_directory superblock = {.generation = 0};
    *out = NULL;
    int rc = read_superblock(fd, fingerprint, stamp, &superblock, why);
    if (rc != 0)
        return rc;
    *out = directory_alloc(&superblock);
    if (*out == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the directory of %u stripes",
                         superblock.layout.n_stripes);
    return 0;
}

static int open_with_directory(struct pool_directory **out, int fd, const uint64_t *fingerprint,
                               const struct survey *survey, struct hill_why *why)
{
    int rc = open_superblock(out, fd, fingerprint, NULL, why);
    if (rc != 0)
        return rc;
    rc = read_directory(*out, fd, survey, why);
    if (rc != 0) {
        pool_close(*out);
        *out = NULL;
    }
    return rc;
}

int pool_open(struct pool_directory **out, int fd, uint64_t fingerprint, struct hill_why *why)
{
    return open_with_directory(out, fd, &fingerprint, NULL, why);
}

int pool_survey(struct pool_directory **out, int fd,
                void (*damaged)(void *context, uint32_t stripe, const char *line), void *context,
                struct hill_why *why)
{
    const struct survey survey = {damaged, context};
    return open_with_directory(out, fd, NULL, &survey, why);
}

static char hex_digit(uint8_t nibble)
{
    return (char)(nibble < 10 ? '0' + nibble : 'a' + nibble - 10);
}

const char *pool_uuid_print(char out[POOL_UUID_TEXT], const uint8_t uuid[POOL_UUID_BYTES])
{
    char *at = out;
    for (uint32_t i = 0; i < POOL_UUID_BYTES; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = hex_digit(uuid[i] >> 4);
        *at++ = hex_digit(uuid[i] & 15);
    }
    *at = '\0';
    return out;
}

int pool_read_uuid(int fd, uint8_t uuid[POOL_UUID_BYTES], struct hill_why *why)
{
    struct pool_directory superblock = {.generation = 0};
    int rc = read_superblock(fd, NULL, NULL, &superblock, why);
    memcpy(uuid, superblock.identity.uuid, POOL_UUID_BYTES);
    return rc;
}

static void note_unknown(void *context, uint32_t stripe, const char *line)
{
    (void)line;
    ((struct pool_directory *)context)->stripes[stripe].sequence = POOL_UNKNOWN_OWNER;
}

int pool_open_stamped(struct pool_directory **out, int fd, uint64_t fingerprint,
                      const struct pool_stamp *stamp, struct hill_why *why)
{
    int rc = open_superblock(out, fd, &fingerprint, stamp, why);
    const struct survey survey = {note_unknown, *out};
    if (rc == 0 && (rc = read_directory(*out, fd, &survey, why)) != 0) {
        pool_close(*out);
        *out = NULL;
    }
    return rc;
}

int pool_set_stamp(int fd, const struct pool_stamp *stamp, struct hill_why *why)
{
    struct pool_superblock *page = pool_page_alloc(sizeof(*page));
    if (page == NULL)
        return hill_fail(why, HILL_E_NOMEM, "no memory to mark the cold pool");
    int rc = pool_read_all(fd, page, sizeof(*page), 0, "superblock", why);
    if (rc == 0) {
        page->stamp = *stamp;
        page->checksum = pool_sealed_checksum(page, sizeof(*page));
        rc = pool_write_all(fd, page, sizeof(*page), 0, "superblock", why);
    }
    free(page);
    return rc;
}

void pool_close(struct pool_directory *directory)
{
    free(directory);
}

/* ---- changes ------------------------------------------------------------------------------ */

static struct pool_stripe *stripe_at(const struct pool_directory *d, uint32_t stripe)
{
    if (stripe >= d->layout.n_stripes)
        abort();
    return &d->stripes[stripe];
}

void pool_stripe_claim(struct pool_directory *d, uint32_t stripe, uint32_t sequence, uint32_t layer,
                       uint32_t order)
{
    struct pool_stripe *s = stripe_at(d, stripe);
    s->sequence = sequence;
    s->layer = layer;
    s->order = order;
    s->n_valid = 0;
    memset(s->valid, 0, valid_bytes(&d->layout));
}

void pool_stripe_free(struct pool_directory *d, uint32_t stripe)
{
    pool_stripe_claim(d, stripe, POOL_NO_OWNER, POOL_NO_OWNER, 0);
}

bool pool_slot_valid(const struct pool_directory *d, uint32_t slot)
{
    uint32_t stripe = slot / d->layout.stripe_slots, within = slot % d->layout.stripe_slots;
    return stripe < d->layout.n_stripes &&
           (d->stripes[stripe].valid[within / 64] >> (within % 64) & 1) != 0;
}

void pool_slot_set(struct pool_directory *d, uint32_t slot, uint32_t position, uint32_t checksum)
{
    uint32_t within = slot % d->layout.stripe_slots;
    struct pool_stripe *s = stripe_at(d, slot / d->layout.stripe_slots);
    if (s->sequence == POOL_NO_OWNER)
        abort();
    s->n_valid += pool_slot_valid(d, slot) ? 0 : 1;
    s->valid[within / 64] |= (uint64_t)1 << (within % 64);
    s->positions[within] = position;
    s->checksums[within] = checksum;
}

void pool_slot_clear(struct pool_directory *d, uint32_t slot)
{
    uint32_t within = slot % d->layout.stripe_slots;
    struct pool_stripe *s = stripe_at(d, slot / d->layout.stripe_slots);
    s->n_valid -= pool_slot_valid(d, slot) ? 1 : 0;
    s->valid[within / 64] &= ~((uint64_t)1 << (within % 64));
}

/* ---- writing back ------------------------------------------------------------------------- */

uint64_t pool_directory_page_bytes(const struct pool_layout *layout)
{
    return layout->directory_record_bytes;
}

uint64_t pool_directory_encode(const struct pool_directory *d, uint32_t stripe, void *pages,
                               uint64_t *offset)
{
    pool_record_encode(&d->layout, d->generation, stripe, stripe_at(d, stripe), pages);
    *offset = d->layout.directory_offset + stripe * d->layout.directory_record_bytes;
    return d->layout.directory_record_bytes;
}
