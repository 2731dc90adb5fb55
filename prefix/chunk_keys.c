/* prefix/chunk_keys.c - see chunk_keys.h. */
#include "prefix/chunk_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "prefix/probe_keys.h"

#define PAGE      4096u
#define KEYS_NAME "chunks.keys"
#define DATA_NAME "chunks.data"
#define PROBE_OF  10u
#define PIECE     (8 * PAGE)

struct sums { /* as they lie in the file */
    uint64_t stamp, checksum;
    uint64_t of[]; /* keys [n_layers], runs [n_layers][n_runs] */
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static uint64_t up(uint64_t n, uint64_t by)
{
    return (n + by - 1) / by;
}

static uint64_t pages(uint64_t bytes)
{
    return up(bytes, PAGE) * PAGE;
}

uint32_t chunk_probes_of(uint32_t n_kv_heads)
{
    uint32_t n = (n_kv_heads + PROBE_OF - 1) / PROBE_OF;
    return n < CHUNK_PROBES_MAX ? n : CHUNK_PROBES_MAX;
}

static uint32_t run_tokens_of(uint32_t entry_bytes)
{
    uint32_t n = 1;
    while (n < CHUNK_TOKENS && (uint64_t)n * entry_bytes % PAGE)
        n *= 2;
    return n;
}

/* Of a chunk's keys. */
static uint64_t layer_bytes(const struct chunk_shape *s)
{
    return probe_keys_bytes(CHUNK_TOKENS, s->n_probes * s->head_dim);
}

static void measure(struct chunk_keys *k)
{
    uint64_t n_layers = k->terms.n_layers;
    k->run_tokens = run_tokens_of(k->terms.entry_bytes);
    k->n_runs = CHUNK_TOKENS / k->run_tokens;
    k->head_bytes =
        pages(sizeof(struct chunk_keys_header) + n_layers * k->shape.n_probes * sizeof *k->heads);
    k->sums_bytes = pages(sizeof(struct sums) + 8 * n_layers * (1 + k->n_runs));
    uint64_t pieces = up(n_layers * layer_bytes(&k->shape), PIECE);
    k->piece_layers = (uint32_t)up(n_layers, pieces);
    k->piece_bytes = pages(k->piece_layers * layer_bytes(&k->shape));
    k->slot_bytes = k->sums_bytes + up(n_layers, k->piece_layers) * k->piece_bytes;
    k->data_slot_bytes = chunk_slot_bytes(&k->terms);
}

uint64_t chunk_keys_leave(const struct chunk_terms *terms, const struct chunk_shape *shape,
                          uint64_t cap_bytes)
{
    struct chunk_keys k = {.terms = *terms, .shape = *shape};
    measure(&k);
    double chunk = (double)(k.data_slot_bytes + sizeof(struct chunk_record));
    double rest = cap_bytes > k.head_bytes ? (double)(cap_bytes - k.head_bytes) : 0;
    return (uint64_t)(rest * (chunk / (chunk + (double)k.slot_bytes)));
}

uint64_t chunk_keys_layer_bytes(const struct chunk_keys *k)
{
    return layer_bytes(&k->shape);
}

uint64_t chunk_keys_unpacked_bytes(const struct chunk_keys *k)
{
    return 2ull * CHUNK_TOKENS * k->shape.n_probes * k->shape.head_dim;
}

uint64_t chunk_keys_sums_at(const struct chunk_keys *k, uint32_t slot)
{
    return k->head_bytes + slot * k->slot_bytes;
}

/* Behind the checksums. */
static uint64_t in_slot(const struct chunk_keys *k, uint32_t layer)
{
    return layer / k->piece_layers * k->piece_bytes +
           layer % k->piece_layers * layer_bytes(&k->shape);
}

uint64_t chunk_keys_layer_at(const struct chunk_keys *k, uint32_t slot, uint32_t layer)
{
    return chunk_keys_sums_at(k, slot) + k->sums_bytes + in_slot(k, layer);
}

uint64_t chunk_keys_run_at(const struct chunk_keys *k, uint32_t slot, uint32_t layer, uint32_t run)
{
    uint64_t token = (uint64_t)layer * CHUNK_TOKENS + (uint64_t)run * k->run_tokens;
    return slot * k->data_slot_bytes + token * k->terms.entry_bytes;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int write_at(const struct chunk_keys *k, uint64_t at, const void *from, uint64_t bytes,
                    struct hill_why *why)
{
    return chunk_file_write_at(k->fd, at, from, bytes, k->dir, KEYS_NAME, why);
}

static uint64_t header_checksum(const struct chunk_keys_header *h, const uint16_t *heads)
{
    uint64_t bytes = (uint64_t)h->terms.n_layers * h->shape.n_probes * sizeof *heads;
    return XXH64(heads, bytes, XXH64(h, offsetof(struct chunk_keys_header, checksum), 0));
}

static int open_file(const char *dir, const char *name, int flags, int *fd, struct hill_why *why)
{
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    return *fd < 0 ? chunk_file_failed("opening", dir, name, why) : 0;
}

static bool heads_in_range(const struct chunk_keys *k, const uint16_t *heads)
{
    for (uint32_t i = 0; i < k->terms.n_layers * k->shape.n_probes; i++)
        if (heads[i] >= k->shape.n_kv_heads)
            return false;
    return true;
}

/* The choice that the file has; none when it is not one of this shape. */
static int read_choice(struct chunk_keys *k, struct hill_why *why)
{
    struct chunk_keys_header h;
    size_t n_heads = (size_t)k->terms.n_layers * k->shape.n_probes;
    uint16_t *heads = malloc(n_heads * sizeof *heads);
    if (!heads)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for prefix store %.300s", k->dir);
    ssize_t n = pread(k->fd, &h, sizeof h, 0),
            more = pread(k->fd, heads, n_heads * sizeof *heads, sizeof h);
    bool sound = n == (ssize_t)sizeof h && more == (ssize_t)(n_heads * sizeof *heads) &&
                 h.magic == CHUNK_KEYS_MAGIC && h.version == CHUNK_KEYS_VERSION &&
                 h.header_bytes == sizeof h && !memcmp(&h.terms, &k->terms, sizeof h.terms) &&
                 !memcmp(&h.shape, &k->shape, sizeof h.shape) &&
                 h.checksum == header_checksum(&h, heads) && heads_in_range(k, heads);
    if (sound) {
        k->heads = heads;
        return 0;
    }
    free(heads);
    if (n)
        log_warn("prefix store %s: %s is damaged or of another version: it is made again", k->dir,
                 KEYS_NAME);
    return 0;
}

int chunk_keys_open(struct chunk_keys *k, const char *dir, const struct chunk_terms *terms,
                    const struct chunk_shape *shape, struct hill_why *why)
{
    *k = (struct chunk_keys){.fd = -1, .data_fd = -1, .terms = *terms, .shape = *shape};
    if (strlen(dir) >= sizeof k->dir || !shape->n_probes || shape->n_probes > shape->n_kv_heads ||
        terms->entry_bytes != 4ull * shape->n_kv_heads * shape->head_dim)
        return hill_fail(why, HILL_E_INVALID, "no keys of this shape lie in prefix store %.300s",
                         dir);
    snprintf(k->dir, sizeof k->dir, "%s", dir);
    measure(k);
    int rc = open_file(dir, KEYS_NAME, O_RDWR | O_CREAT, &k->fd, why);
    if (!rc)
        rc = open_file(dir, DATA_NAME, O_RDONLY, &k->data_fd, why);
    if (rc)
        return rc;
    posix_fadvise(k->fd, 0, 0, POSIX_FADV_RANDOM);
    posix_fadvise(k->data_fd, 0, 0, POSIX_FADV_RANDOM);
    return read_choice(k, why);
}

int chunk_keys_choose(struct chunk_keys *k, const uint16_t *heads, struct hill_why *why)
{
    struct chunk_keys_header h = {.magic = CHUNK_KEYS_MAGIC,
                                  .version = CHUNK_KEYS_VERSION,
                                  .header_bytes = sizeof h,
                                  .terms = k->terms,
                                  .shape = k->shape};
    size_t bytes = (size_t)k->terms.n_layers * k->shape.n_probes * sizeof *heads;
    uint16_t *copy = malloc(bytes);
    if (!copy)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for prefix store %.300s", k->dir);
    memcpy(copy, heads, bytes);
    h.checksum = header_checksum(&h, copy);
    int rc = ftruncate(k->fd, 0) ? chunk_file_failed("cutting", k->dir, KEYS_NAME, why) : 0;
    if (!rc)
        rc = write_at(k, sizeof h, copy, bytes, why);
    if (!rc)
        rc = write_at(k, 0, &h, sizeof h, why);
    free(rc ? copy : k->heads);
    k->heads = rc ? k->heads : copy;
    return rc;
}

void chunk_keys_cut(const struct chunk_keys *k, uint32_t n_slots)
{
    struct stat info;
    struct hill_why why;
    off_t end = (off_t)chunk_keys_sums_at(k, n_slots);
    if (fstat(k->fd, &info) == 0 && (info.st_size <= end || ftruncate(k->fd, end) == 0))
        return;
    chunk_file_failed("cutting", k->dir, KEYS_NAME, &why);
    log_warn("%s", why.text);
}

void chunk_keys_close(struct chunk_keys *k)
{
    if (k->fd >= 0)
        close(k->fd);
    if (k->data_fd >= 0)
        close(k->data_fd);
    free(k->heads);
    *k = (struct chunk_keys){.fd = -1, .data_fd = -1};
}

void chunk_keys_remove(const char *dir)
{
    char path[4096 + 32];
    snprintf(path, sizeof path, "%s/%s", dir, KEYS_NAME);
    if (unlink(path) && errno != ENOENT)
        log_warn("removing prefix store %s failed: %s", path, strerror(errno));
}

/* ---- a slot ---------------------------------------------------------------------------------- */

static uint64_t sums_checksum(const struct chunk_keys *k, const struct sums *s)
{
    return XXH64(s->of, 8ull * k->terms.n_layers * (1 + k->n_runs), s->stamp);
}

/* One layer's keys [token][probe][head_dim] out of its entries. */
static void pick_keys(const struct chunk_keys *k, uint32_t layer, const uint8_t *entries,
                      uint8_t *to)
{
    uint32_t bytes = 2 * k->shape.head_dim, n = k->shape.n_probes;
    const uint16_t *heads = k->heads + (size_t)layer * n;
    for (uint32_t t = 0; t < CHUNK_TOKENS; t++)
        for (uint32_t p = 0; p < n; p++, to += bytes)
            memcpy(to, entries + (size_t)t * k->terms.entry_bytes + (size_t)heads[p] * bytes,
                   bytes);
}

int chunk_keys_write(const struct chunk_keys *k, uint32_t slot, uint64_t stamp, const void *entries,
                     struct hill_why *why)
{
    uint8_t *block = calloc(1, k->slot_bytes);
    uint16_t *picked = malloc(chunk_keys_unpacked_bytes(k));
    if (!block || !picked) {
        free(block);
        free(picked);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for prefix store %.300s", k->dir);
    }
    struct sums *s = (struct sums *)(void *)block;
    uint64_t run_bytes = chunk_keys_run_bytes(k), n_layers = k->terms.n_layers;
    s->stamp = stamp;
    for (uint32_t l = 0; l < n_layers; l++) {
        const uint8_t *layer = (const uint8_t *)entries + l * run_bytes * k->n_runs;
        uint8_t *keys = block + k->sums_bytes + in_slot(k, l);
        pick_keys(k, l, layer, (uint8_t *)picked);
        probe_keys_pack(picked, CHUNK_TOKENS, k->shape.n_probes * k->shape.head_dim, keys);
        s->of[l] = chunk_checksum(stamp, keys, layer_bytes(&k->shape));
        for (uint32_t r = 0; r < k->n_runs; r++)
            s->of[n_layers + l * k->n_runs + r] =
                chunk_checksum(stamp, layer + r * run_bytes, run_bytes);
    }
    s->checksum = sums_checksum(k, s);
    int rc = write_at(k, chunk_keys_sums_at(k, slot), block, k->slot_bytes, why);
    free(block);
    free(picked);
    return rc;
}

int chunk_keys_reserve(const struct chunk_keys *k, uint32_t slot, struct hill_why *why)
{
    return chunk_file_reserve_at(k->fd, chunk_keys_sums_at(k, slot), k->slot_bytes, k->dir,
                                 KEYS_NAME, why);
}

bool chunk_keys_has(const struct chunk_keys *k, uint32_t slot, uint64_t stamp)
{
    uint64_t there;
    return pread(k->fd, &there, sizeof there, (off_t)chunk_keys_sums_at(k, slot)) ==
               (ssize_t)sizeof there &&
           there == stamp;
}

void chunk_keys_forget(const struct chunk_keys *k, uint32_t slot, uint64_t stamp)
{
    const uint64_t nobody = 0;
    struct hill_why why;
    if (chunk_keys_has(k, slot, stamp) &&
        write_at(k, chunk_keys_sums_at(k, slot), &nobody, sizeof nobody, &why))
        log_warn("%s", why.text);
}

bool chunk_keys_are_sums(const struct chunk_keys *k, const void *sums, uint64_t stamp)
{
    const struct sums *s = sums;
    return s->stamp == stamp && s->checksum == sums_checksum(k, s);
}

bool chunk_keys_fit(const struct chunk_keys *k, const void *sums, uint32_t layer, const void *keys)
{
    const struct sums *s = sums;
    return s->of[layer] == chunk_checksum(s->stamp, keys, layer_bytes(&k->shape));
}

void chunk_keys_unpack(const struct chunk_keys *k, const void *keys, uint16_t *to)
{
    probe_keys_unpack(keys, CHUNK_TOKENS, k->shape.n_probes * k->shape.head_dim, to);
}

bool chunk_keys_run_fits(const struct chunk_keys *k, const void *sums, uint32_t layer, uint32_t run,
                         const void *entries)
{
    const struct sums *s = sums;
    return s->of[k->terms.n_layers + layer * k->n_runs + run] ==
           chunk_checksum(s->stamp, entries, chunk_keys_run_bytes(k));
}
