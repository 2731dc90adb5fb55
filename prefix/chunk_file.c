/* prefix/chunk_file.c - see chunk_file.h. */
#include "prefix/chunk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/whole_io.h"

#define PAGE         4096u
#define LOCK_WAIT_MS 10000 /* a killed GPU worker is gone sooner */
#define INDEX_NAME   "chunks.index"
#define DATA_NAME    "chunks.data"

_Static_assert(offsetof(struct chunk_record, checksum) == 504, "file format");

/* ---- sizes ----------------------------------------------------------------------------------- */

uint64_t chunk_entries_bytes(const struct chunk_terms *t, uint32_t n)
{
    return (uint64_t)t->n_layers * t->entry_bytes * n;
}

uint64_t chunk_slot_bytes(const struct chunk_terms *t)
{
    return (chunk_entries_bytes(t, CHUNK_TOKENS) + PAGE - 1) / PAGE * PAGE;
}

uint32_t chunk_slots_of(const struct chunk_terms *t, uint64_t cap_bytes)
{
    uint64_t room = cap_bytes > CHUNK_FILE_HEAD ? cap_bytes - CHUNK_FILE_HEAD : 0;
    uint64_t n = room / (chunk_slot_bytes(t) + sizeof(struct chunk_record));
    return n < CHUNK_NONE ? (uint32_t)n : CHUNK_NONE - 1;
}

static uint64_t record_at(uint32_t slot)
{
    return CHUNK_FILE_HEAD + (uint64_t)slot * sizeof(struct chunk_record);
}

/* ---- reading and writing --------------------------------------------------------------------- */

int chunk_file_failed(const char *doing, const char *dir, const char *name, struct hill_why *why)
{
    int err = errno;
    return hill_fail(why, hill_from_errno(err), "%s prefix store %.300s/%s failed: %s", doing, dir,
                     name, strerror(err));
}

/* Bytes read, fewer at the file's end; or a code. */
static int64_t read_at(int fd, uint64_t at, void *to, uint64_t bytes, const char *dir,
                       const char *name, struct hill_why *why)
{
    int64_t n = whole_read(fd, to, bytes, at);
    return n < 0 ? chunk_file_failed("reading", dir, name, why) : n;
}

int chunk_file_write_at(int fd, uint64_t at, const void *from, uint64_t bytes, const char *dir,
                        const char *name, struct hill_why *why)
{
    return whole_write(fd, from, bytes, at) ? chunk_file_failed("writing", dir, name, why) : 0;
}

int chunk_file_reserve_at(int fd, uint64_t at, uint64_t bytes, const char *dir, const char *name,
                          struct hill_why *why)
{
    while (fallocate(fd, 0, (off_t)at, (off_t)bytes))
        if (errno != EINTR)
            return errno == EOPNOTSUPP ? 0 : chunk_file_failed("writing", dir, name, why);
    return 0;
}

static int open_one(const char *dir, const char *name, int *fd, struct hill_why *why)
{
    char path[4096 + 32];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (*fd < 0 || fstat(*fd, &info))
        return chunk_file_failed("opening", dir, name, why);
    return S_ISREG(info.st_mode)
               ? 0
               : hill_fail(why, HILL_E_INVALID, "prefix store %.300s/%s is not a file", dir, name);
}

/* ---- the header ------------------------------------------------------------------------------ */

static uint64_t header_checksum(const struct chunk_file_header *h)
{
    return XXH64(h, offsetof(struct chunk_file_header, checksum), 0);
}

static int write_header(int fd, const char *dir, const struct chunk_terms *terms,
                        struct hill_why *why)
{
    char head[CHUNK_FILE_HEAD] = {0};
    struct chunk_file_header h = {.magic = CHUNK_FILE_MAGIC,
                                  .version = CHUNK_FILE_VERSION,
                                  .header_bytes = sizeof h,
                                  .terms = *terms};
    h.checksum = header_checksum(&h);
    memcpy(head, &h, sizeof h);
    return chunk_file_write_at(fd, 0, head, sizeof head, dir, INDEX_NAME, why);
}

static int check_header(const struct chunk_file_header *h, const char *dir,
                        const struct chunk_terms *here, struct hill_why *why)
{
    if (h->magic != CHUNK_FILE_MAGIC)
        return hill_fail(why, HILL_E_DAMAGED,
                         "%.300s/" INDEX_NAME " is no prefix store: its magic number is another",
                         dir);
    if (h->version != CHUNK_FILE_VERSION)
        return hill_fail(why, HILL_E_DAMAGED,
                         "prefix store %.300s has version %u, this program reads %u", dir,
                         h->version, CHUNK_FILE_VERSION);
    if (h->checksum != header_checksum(h) || h->header_bytes != sizeof *h)
        return hill_fail(why, HILL_E_DAMAGED,
                         "prefix store %.300s is damaged: the checksum of the header of " INDEX_NAME
                         " is wrong",
                         dir);
    if (memcmp(&h->terms, here, sizeof *here) != 0)
        return hill_fail(why, HILL_E_INVALID,
                         "prefix store %.300s is of another model (%llu bytes, identity %016llx): "
                         "give this one a folder of its own",
                         dir, (unsigned long long)h->terms.model_bytes,
                         (unsigned long long)h->terms.model_identity);
    return 0;
}

/* A file that is there in part is damaged; one that has nothing yet begins. */
static int look_at_header(int fd, const char *dir, const struct chunk_terms *terms,
                          struct hill_why *why)
{
    struct chunk_file_header h;
    int64_t n = read_at(fd, 0, &h, sizeof h, dir, INDEX_NAME, why);
    if (n < 0)
        return (int)n;
    if (n == 0)
        return write_header(fd, dir, terms, why);
    if (n < (int64_t)sizeof h)
        return hill_fail(why, HILL_E_DAMAGED,
                         "prefix store %.300s is damaged: " INDEX_NAME " has %lld bytes, its "
                         "header alone takes %zu",
                         dir, (long long)n, sizeof h);
    return check_header(&h, dir, terms, why);
}

static bool terms_are_sound(const struct chunk_terms *t)
{
    return t->n_layers - 1 < CHUNK_LAYERS_MAX && t->entry_bytes - 1 < CHUNK_ENTRY_MAX &&
           t->n_vocab > 0 && !t->reserved;
}

static int check_cap(const char *dir, const struct chunk_terms *terms, uint64_t cap_bytes,
                     struct hill_why *why)
{
    if (!terms_are_sound(terms) || strlen(dir) >= 4096)
        return hill_fail(why, HILL_E_INVALID,
                         "prefix store %.300s: the name or the model's shape "
                         "is out of range",
                         dir);
    if (chunk_slots_of(terms, cap_bytes) > 0)
        return 0;
    return hill_fail(why, HILL_E_INVALID,
                     "a prefix store of %.3f MiB (--prefix-mb) holds no chunk: %u tokens of this "
                     "model take %.3f MiB",
                     (double)cap_bytes / 1048576.0, CHUNK_TOKENS,
                     (double)(chunk_slot_bytes(terms) + sizeof(struct chunk_record)) / 1048576.0);
}

int chunk_file_hold(const char *dir, const struct chunk_terms *terms, uint64_t cap_bytes, int *fd,
                    struct hill_why *why)
{
    int data_fd = -1;
    *fd = -1;
    int rc = check_cap(dir, terms, cap_bytes, why);
    if (!rc && mkdir(dir, 0700) && errno != EEXIST)
        rc = chunk_file_failed("making", dir, "", why);
    if (!rc)
        rc = open_one(dir, INDEX_NAME, fd, why);
    if (!rc && flock(*fd, LOCK_EX | LOCK_NB))
        rc = hill_fail(why, HILL_E_BUSY,
                       "prefix store %.300s is another running pipeline's: give this one a folder "
                       "of its own",
                       dir);
    if (!rc)
        rc = look_at_header(*fd, dir, terms, why);
    if (!rc)
        rc = open_one(dir, DATA_NAME, &data_fd, why);
    if (data_fd >= 0)
        close(data_fd);
    if (rc && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

/* ---- open ------------------------------------------------------------------------------------ */

static int lock_data(struct chunk_file *f, struct hill_why *why)
{
    for (int64_t end = clock_now_ns() + CLOCK_MS(LOCK_WAIT_MS);;) {
        if (flock(f->data_fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return chunk_file_failed("locking", f->dir, DATA_NAME, why);
        if (clock_now_ns() >= end)
            return hill_fail(why, HILL_E_BUSY, "prefix store %.300s is held by another process",
                             f->dir);
        usleep(10000);
    }
}

/* What lies beyond the cap goes: the smaller index first, so that no record is without its data. */
static int cut(struct chunk_file *f, struct hill_why *why)
{
    struct stat info;
    off_t index = record_at(f->n_slots), data = (off_t)(f->slot_bytes * f->n_slots);
    if (fstat(f->index_fd, &info) || (info.st_size > index && ftruncate(f->index_fd, index)))
        return chunk_file_failed("cutting", f->dir, INDEX_NAME, why);
    if (fstat(f->data_fd, &info) || (info.st_size > data && ftruncate(f->data_fd, data)))
        return chunk_file_failed("cutting", f->dir, DATA_NAME, why);
    return 0;
}

int chunk_file_open(struct chunk_file *f, const char *dir, const struct chunk_terms *terms,
                    uint64_t cap_bytes, struct hill_why *why)
{
    *f = (struct chunk_file){.index_fd = -1, .data_fd = -1, .terms = *terms};
    int rc = check_cap(dir, terms, cap_bytes, why);
    if (rc)
        return rc;
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    f->slot_bytes = chunk_slot_bytes(terms);
    f->n_slots = chunk_slots_of(terms, cap_bytes);
    rc = open_one(dir, INDEX_NAME, &f->index_fd, why);
    if (!rc)
        rc = look_at_header(f->index_fd, dir, terms, why);
    if (!rc)
        rc = open_one(dir, DATA_NAME, &f->data_fd, why);
    if (!rc)
        rc = lock_data(f, why);
    return rc ? rc : cut(f, why);
}

void chunk_file_close(struct chunk_file *f)
{
    if (f->index_fd >= 0)
        close(f->index_fd);
    if (f->data_fd >= 0)
        close(f->data_fd);
    f->index_fd = f->data_fd = -1;
}

/* ---- records --------------------------------------------------------------------------------- */

static uint64_t record_checksum(const struct chunk_record *r)
{
    return XXH64(r, offsetof(struct chunk_record, checksum), 0);
}

static const char *wrong_field(const struct chunk_file *f, const struct chunk_record *r,
                               uint32_t slot)
{
    if (r->checksum != record_checksum(r))
        return "checksum";
    if (r->slot != slot)
        return "slot";
    if (r->n == 0 || r->n > CHUNK_TOKENS || r->n_plain > r->n ||
        (r->n_plain < r->n) != (r->owner != 0))
        return "number of tokens";
    if (r->first % CHUNK_TOKENS || r->first >= CHUNK_POSITION_MAX ||
        (r->first == 0) != (r->parent == CHUNK_NONE))
        return "position";
    if (!isfinite(r->rank) || !isfinite(r->cost) || r->rank < 0 || r->cost < 0 || !r->uses)
        return "rank";
    for (uint32_t i = 0; i < r->n; i++)
        if (r->tokens[i] >= f->terms.n_vocab)
            return "tokens";
    return NULL;
}

uint32_t chunk_file_records(const struct chunk_file *f)
{
    struct stat info;
    if (fstat(f->index_fd, &info) || info.st_size <= (off_t)CHUNK_FILE_HEAD)
        return 0;
    uint64_t n = ((uint64_t)info.st_size - CHUNK_FILE_HEAD) / sizeof(struct chunk_record);
    return n < f->n_slots ? (uint32_t)n : f->n_slots;
}

int chunk_file_read_record(struct chunk_file *f, uint32_t slot, struct chunk *out,
                           uint64_t *parent_stamp, struct hill_why *why)
{
    struct chunk_record r;
    int64_t n = read_at(f->index_fd, record_at(slot), &r, sizeof r, f->dir, INDEX_NAME, why);
    if (n < 0)
        return (int)n;
    if (n < (int64_t)sizeof r || r.stamp == 0)
        return 0;
    const char *wrong = wrong_field(f, &r, slot);
    if (wrong)
        return hill_fail(why, HILL_E_DAMAGED,
                         "prefix store %.300s: the %s of record %u of " INDEX_NAME " is wrong",
                         f->dir, wrong, slot);
    *out = (struct chunk){.stamp = r.stamp,
                          .settings = r.settings,
                          .owner = r.owner,
                          .checksum = r.entries_checksum,
                          .rank = r.rank,
                          .cost = r.cost,
                          .uses = r.uses,
                          .first = r.first,
                          .n = r.n,
                          .n_plain = r.n_plain,
                          .parent = r.parent};
    memcpy(out->tokens, r.tokens, sizeof out->tokens);
    *parent_stamp = r.parent_stamp;
    return 1;
}

int chunk_file_write_record(struct chunk_file *f, uint32_t slot, const struct chunk *c,
                            uint64_t parent_stamp, struct hill_why *why)
{
    struct chunk_record r = {.stamp = c->stamp,
                             .parent_stamp = parent_stamp,
                             .settings = c->settings,
                             .owner = c->owner,
                             .entries_checksum = c->checksum,
                             .rank = c->rank,
                             .cost = c->cost,
                             .slot = slot,
                             .parent = c->parent,
                             .first = c->first,
                             .n = c->n,
                             .n_plain = c->n_plain,
                             .uses = c->uses};
    memcpy(r.tokens, c->tokens, c->n * sizeof *c->tokens);
    r.checksum = record_checksum(&r);
    return chunk_file_write_at(f->index_fd, record_at(slot), &r, sizeof r, f->dir, INDEX_NAME, why);
}

int chunk_file_clear_record(struct chunk_file *f, uint32_t slot, struct hill_why *why)
{
    const struct chunk_record none = {0};
    return chunk_file_write_at(f->index_fd, record_at(slot), &none, sizeof none, f->dir, INDEX_NAME,
                               why);
}

/* ---- entries --------------------------------------------------------------------------------- */

uint64_t chunk_checksum(uint64_t stamp, const void *entries, uint64_t bytes)
{
    return XXH64(entries, bytes, stamp); /* an older chunk of the slot has another */
}

int chunk_file_read(struct chunk_file *f, uint32_t slot, const struct chunk *c, void *entries,
                    struct hill_why *why)
{
    uint64_t bytes = chunk_entries_bytes(&f->terms, c->n), at = slot * f->slot_bytes;
    int64_t n = read_at(f->data_fd, at, entries, bytes, f->dir, DATA_NAME, why);
    if (n < 0)
        return (int)n;
    if (n < (int64_t)bytes || chunk_checksum(c->stamp, entries, bytes) != c->checksum)
        return hill_fail(
            why, HILL_E_DAMAGED, "prefix store %.300s: chunk %u of " DATA_NAME " is damaged: %s",
            f->dir, slot, n < (int64_t)bytes ? "the file is too short" : "its checksum is wrong");
    return 0;
}

int chunk_file_write(struct chunk_file *f, uint32_t slot, const void *entries, uint64_t bytes,
                     struct hill_why *why)
{
    uint64_t at = slot * f->slot_bytes;
    int rc = bytes < f->slot_bytes
                 ? chunk_file_reserve_at(f->data_fd, at, f->slot_bytes, f->dir, DATA_NAME, why)
                 : 0;
    return rc ? rc : chunk_file_write_at(f->data_fd, at, entries, bytes, f->dir, DATA_NAME, why);
}

uint32_t chunk_file_written(const struct chunk_file *f)
{
    struct stat info;
    return fstat(f->data_fd, &info) ? 0 : (uint32_t)((uint64_t)info.st_size / f->slot_bytes);
}
