/* prefix/drive_store.c - see drive_store.h. */
#include "prefix/drive_store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/log.h"

/* ---- open ------------------------------------------------------------------------------------ */

struct loaded {
    struct chunk chunk;
    uint64_t parent_stamp;
    uint32_t slot;
};

static int by_position(const void *a, const void *b)
{
    const struct loaded *x = a, *y = b;
    return x->chunk.first < y->chunk.first ? -1 : x->chunk.first > y->chunk.first;
}

static void drop_record(struct drive_store *s, uint32_t slot)
{
    struct hill_why why;
    s->n_dropped++;
    if (chunk_file_clear_record(&s->file, slot, &why) && !s->said) {
        log_warn("%s; what the store drops comes back at the next start", why.text);
        s->said = true;
    }
}

/* Parents before what follows them. A parent is the one that it was written behind. */
static int add_all(struct drive_store *s, struct loaded *list, uint32_t n)
{
    qsort(list, n, sizeof *list, by_position);
    for (uint32_t i = 0; i < n; i++) {
        const struct chunk *parent = chunk_at(&s->tree, list[i].chunk.parent);
        bool known =
            list[i].chunk.parent == CHUNK_NONE || (parent && parent->stamp == list[i].parent_stamp);
        int rc = known ? chunk_tree_add(&s->tree, list[i].slot, &list[i].chunk) : HILL_E_INVALID;
        if (rc == HILL_E_NOMEM)
            return rc;
        if (rc)
            drop_record(s, list[i].slot);
    }
    return 0;
}

/* A damaged record is named, once for all of them. */
static int read_records(struct drive_store *s, struct loaded *list, uint32_t n_records, uint32_t *n,
                        struct hill_why *why)
{
    uint32_t damaged = 0;
    char first[sizeof why->text] = "";
    for (uint32_t slot = 0; slot < n_records; slot++) {
        struct loaded *l = &list[*n];
        int rc = chunk_file_read_record(&s->file, slot, &l->chunk, &l->parent_stamp, why);
        l->slot = slot;
        if (rc == 1)
            ++*n;
        if (rc == HILL_E_DAMAGED) {
            if (!damaged++)
                memcpy(first, why->text, sizeof first);
            drop_record(s, slot);
        } else if (rc < 0) {
            return rc;
        }
    }
    if (damaged)
        log_warn("%s: %u such chunks are not used", first, damaged);
    return 0;
}

static int load(struct drive_store *s, struct hill_why *why)
{
    uint32_t n_records = chunk_file_records(&s->file), n = 0;
    struct loaded *list = malloc((n_records + 1ull) * sizeof *list);
    if (!list)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for prefix store %.300s", s->file.dir);
    int rc = read_records(s, list, n_records, &n, why);
    if (!rc && add_all(s, list, n))
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for prefix store %.300s", s->file.dir);
    free(list);
    return rc;
}

static int write_keys(const struct drive_store *s, const struct chunk_job *j, struct hill_why *why)
{
    if (!s->keys)
        return 0;
    return j->chunk.n == CHUNK_TOKENS
               ? chunk_keys_write(s->keys, j->slot, j->chunk.stamp, j->entries, why)
               : chunk_keys_reserve(s->keys, j->slot, why);
}

/* Where the record is there still: entries that could not be written have none. */
static int note(struct chunk_file *file, const struct chunk_job *j, struct hill_why *why)
{
    struct chunk noted;
    uint64_t parent_stamp;
    int rc = chunk_file_read_record(file, j->slot, &noted, &parent_stamp, why);
    return rc == 1 && noted.stamp == j->chunk.stamp
               ? chunk_file_write_record(file, j->slot, &j->chunk, j->parent_stamp, why)
           : rc < 0 ? rc
                    : 0;
}

/* The writer's thread: of the store the files alone. The record is written last, and says nothing
 * while its slot is written over. */
static int do_job(void *store, const struct chunk_job *j, struct hill_why *why)
{
    struct drive_store *s = store;
    struct chunk_file *file = &s->file;
    struct hill_why second;
    if (j->kind == CHUNK_JOB_KEYS)
        return write_keys(s, j, why);
    if (j->kind == CHUNK_JOB_NOTE)
        return note(file, j, why);
    int rc = chunk_file_clear_record(file, j->slot, why);
    if (rc || j->kind == CHUNK_JOB_CLEAR)
        return rc;
    /* the keys first: a slot of the data that is on the disk has room for its keys, too */
    rc = write_keys(s, j, why);
    if (!rc)
        rc = chunk_file_write(file, j->slot, j->entries, j->bytes, why);
    if (!rc)
        rc = chunk_file_write_record(file, j->slot, &j->chunk, j->parent_stamp, why);
    if (rc)
        chunk_file_clear_record(file, j->slot, &second);
    return rc;
}

int drive_store_open(struct drive_store *s, const char *dir, const struct chunk_terms *terms,
                     uint64_t cap_bytes, struct hill_why *why)
{
    *s = (struct drive_store){0};
    int rc = chunk_file_open(&s->file, dir, terms, cap_bytes, why);
    chunk_tree_init(&s->tree, s->file.n_slots);
    if (getrandom(&s->stamp, sizeof s->stamp, GRND_NONBLOCK) != (ssize_t)sizeof s->stamp)
        s->stamp = (uint64_t)clock_now_ns();
    if (!rc)
        rc = load(s, why);
    if (!rc && chunk_writer_open(&s->writer, DRIVE_QUEUE_BYTES, do_job, s))
        rc = hill_fail(why, HILL_E_NOMEM, "no memory or thread for prefix store %.300s", dir);
    if (!rc)
        log_info("prefix store %s: %u of at most %u chunks of %u tokens", dir, s->tree.n_chunks,
                 s->file.n_slots, CHUNK_TOKENS);
    return rc;
}

void drive_store_close(struct drive_store *s)
{
    if (s->writer) {
        uint32_t left = chunk_writer_flush_until(s->writer, clock_deadline_ms(DRIVE_END_MS));
        if (left)
            log_warn("prefix store %s: %u chunks are not written yet: the drive is slow, and what "
                     "is left when this process is ended is lost",
                     s->file.dir, left);
        drive_store_flush(s);
    }
    chunk_writer_close(s->writer);
    s->writer = NULL;
    if (s->keys)
        chunk_keys_close(s->keys);
    free(s->keys);
    s->keys = NULL;
    chunk_tree_finish(&s->tree);
    chunk_file_close(&s->file);
}

/* ---- what is written ------------------------------------------------------------------------- */

static struct chunk *still_there(const struct drive_store *s, struct drive_chunk chunk)
{
    struct chunk *c = chunk_at(&s->tree, chunk.slot);
    return c && c->stamp == chunk.stamp ? c : NULL;
}

/* With all that follows it, the last ones first. */
static void drop(struct drive_store *s, uint32_t slot)
{
    for (uint32_t leaf = CHUNK_NONE; leaf != slot;) {
        leaf = chunk_tree_leaf(&s->tree, slot);
        const struct chunk_job job = {.kind = CHUNK_JOB_CLEAR, .slot = leaf};
        if (chunk_writer_give(s->writer, &job, NULL))
            log_warn("no memory for the prefix store; a chunk that is of no use comes back at the "
                     "next start");
        chunk_tree_remove(&s->tree, leaf);
    }
}

/* A full disk has the slots that it has, from now on. */
static void tell_failed(struct drive_store *s, const struct chunk_job *j)
{
    static const char *const then[] = {
        [CHUNK_JOB_PUT] = "what cannot be written is not kept",
        [CHUNK_JOB_NOTE] = "how often chunks are used is not kept",
        [CHUNK_JOB_CLEAR] = "a chunk that is of no use comes back at the next start",
        [CHUNK_JOB_KEYS] = "chunks without their keys are read whole"};
    if (j->kind == CHUNK_JOB_PUT && j->rc == HILL_E_NOSPACE && !s->full &&
        s->tree.n_chunks < s->tree.n_slots) {
        s->full = true;
        s->n_full = chunk_file_written(&s->file);
        s->n_turns = 0;
        log_warn("%s: the store goes on with the chunks that it has", j->why.text);
    } else if (!s->said && !s->full) {
        s->said = true;
        log_warn("%s; %s", j->why.text, then[j->kind]);
    }
}

/* What is written makes needless what it covers; what is not yet stays noted. */
static void drop_covered(struct drive_store *s, uint64_t done)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_covers; i++) {
        const struct drive_cover c = s->covers[i];
        if (c.job > done)
            s->covers[n++] = c;
        else if (still_there(s, c.chunk))
            for (uint32_t old; (old = chunk_tree_needless(&s->tree, c.chunk.slot)) != CHUNK_NONE;)
                drop(s, old);
    }
    s->n_covers = n;
}

/* What could not be written since the last call is not there. */
static void settle(struct drive_store *s)
{
    struct chunk_job job;
    uint64_t done = chunk_writer_done(s->writer); /* those that failed of them are told below */
    while (chunk_writer_take_failed(s->writer, &job)) {
        const struct drive_chunk chunk = {job.slot, job.chunk.stamp};
        if (job.kind == CHUNK_JOB_PUT && still_there(s, chunk))
            drop(s, job.slot);
        tell_failed(s, &job);
    }
    drop_covered(s, done);
}

void drive_store_flush(struct drive_store *s)
{
    chunk_writer_flush_until(s->writer, INT64_MAX);
    settle(s);
    chunk_writer_flush_until(s->writer, INT64_MAX);
    settle(s);
}

bool drive_store_takes(struct drive_store *s)
{
    return chunk_writer_has_room(s->writer, s->file.slot_bytes);
}

uint64_t drive_store_given(struct drive_store *s)
{
    return chunk_writer_given(s->writer);
}

uint64_t drive_store_done(struct drive_store *s)
{
    return chunk_writer_done(s->writer);
}

void drive_store_wake(struct drive_store *s, void (*wake)(void *context), void *context)
{
    chunk_writer_wake(s->writer, wake, context);
}

/* ---- taking ---------------------------------------------------------------------------------- */

int drive_store_find(struct drive_store *s, const struct chunk_query *q, struct chunk_hit *hit,
                     struct drive_chunk *chunks)
{
    uint32_t *slots = malloc((q->n / CHUNK_TOKENS + 1ull) * sizeof *slots);
    *hit = (struct chunk_hit){0};
    if (!slots)
        return HILL_E_NOMEM;
    settle(s);
    *hit = chunk_tree_find(&s->tree, q, slots);
    for (uint32_t i = 0; i < hit->n_chunks; i++)
        chunks[i] = (struct drive_chunk){slots[i], s->tree.chunks[slots[i]].stamp};
    free(slots);
    return 0;
}

int drive_store_read(struct drive_store *s, struct drive_chunk chunk, void *entries, uint32_t *n,
                     double *cost, struct hill_why *why)
{
    settle(s);
    const struct chunk *c = still_there(s, chunk);
    int found = c ? chunk_writer_find(s->writer, chunk.stamp, entries) : -1;
    if (found < 0) /* dropped with the next call, when it could not be written */
        return hill_fail(why, HILL_E_WOULD_BLOCK, "the chunk has gone");
    *n = c->n;
    *cost = c->cost;
    int rc = found ? 0 : chunk_file_read(&s->file, chunk.slot, c, entries, why);
    if (rc)
        drop(s, chunk.slot);
    return rc;
}

double drive_store_cost(const struct drive_store *s, struct drive_chunk chunk)
{
    const struct chunk *c = still_there(s, chunk);
    return c ? c->cost : 0;
}

void drive_store_use(struct drive_store *s, struct drive_chunk chunk)
{
    const struct chunk *c = still_there(s, chunk);
    if (!c)
        return;
    chunk_tree_use(&s->tree, chunk.slot);
    const struct chunk *parent = chunk_at(&s->tree, c->parent);
    const struct chunk_job job = {.kind = CHUNK_JOB_NOTE,
                                  .slot = chunk.slot,
                                  .parent_stamp = parent ? parent->stamp : 0,
                                  .chunk = *c};
    chunk_writer_give(s->writer, &job, NULL); /* when it cannot be: the next use says it */
}

void drive_store_keep_keys(struct drive_store *s, struct chunk_keys *keys)
{
    s->keys = keys;
    chunk_keys_cut(keys, s->file.n_slots); /* the cap may have fallen */
}

void drive_store_add_keys(struct drive_store *s, struct drive_chunk chunk, const void *entries)
{
    const struct chunk *c = still_there(s, chunk);
    struct chunk_job job = {.kind = CHUNK_JOB_KEYS, .slot = chunk.slot};
    if (!c || !s->keys || c->n < CHUNK_TOKENS || chunk_keys_has(s->keys, chunk.slot, chunk.stamp))
        return;
    job.chunk = *c;
    job.bytes = chunk_entries_bytes(&s->file.terms, c->n);
    chunk_writer_give(s->writer, &job, entries);
}

/* ---- leaving --------------------------------------------------------------------------------- */

struct drive_chunk drive_store_same(struct drive_store *s, struct drive_chunk parent,
                                    const struct chunk *wanted)
{
    uint32_t slot = CHUNK_NONE;
    settle(s);
    if (!parent.stamp || still_there(s, parent))
        slot = chunk_tree_same(&s->tree, parent.stamp ? parent.slot : CHUNK_NONE, wanted);
    return slot == CHUNK_NONE ? (struct drive_chunk){0}
                              : (struct drive_chunk){slot, s->tree.chunks[slot].stamp};
}

static uint64_t next_stamp(struct drive_store *s)
{
    uint64_t x = s->stamp += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64: a permutation */
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x ? x : next_stamp(s);
}

/* On a full disk a slot that was written has its room there, and the others have none. Now and then
 * it is the other way round: the disk may have room again, and a written slot that takes nothing
 * more (on a file system that never writes over a block) must not keep all others from their turn.
 */
static bool has_room(struct drive_store *s, uint32_t unused)
{
    if (!s->full)
        return true;
    uint32_t n_written = chunk_file_written(&s->file);
    s->full = n_written <= s->n_full;
    return !s->full || (unused < n_written) != (++s->n_turns % DRIVE_FULL_TURNS == 0);
}

/* A slot whose chunk has gone: its record goes when it is written over. */
static uint32_t make_room(struct drive_store *s, uint32_t spared)
{
    int rc;
    uint32_t slot = chunk_tree_unused(&s->tree, &rc);
    if (rc || (slot != CHUNK_NONE && has_room(s, slot)))
        return slot;
    slot = chunk_tree_victim(&s->tree, spared);
    if (slot == CHUNK_NONE)
        return CHUNK_NONE;
    chunk_tree_remove(&s->tree, slot);
    s->n_evicted++;
    return slot;
}

struct drive_chunk drive_store_put(struct drive_store *s, struct drive_chunk parent,
                                   const struct chunk *chunk, const void *entries)
{
    struct chunk_job job = {.kind = CHUNK_JOB_PUT, .parent_stamp = parent.stamp};
    struct chunk c = *chunk;
    settle(s);
    if ((parent.stamp && !still_there(s, parent)) || !drive_store_takes(s))
        return (struct drive_chunk){0};
    c.parent = parent.stamp ? parent.slot : CHUNK_NONE;
    job.slot = make_room(s, c.parent);
    if (job.slot == CHUNK_NONE)
        return (struct drive_chunk){0};
    job.bytes = chunk_entries_bytes(&s->file.terms, c.n);
    c.stamp = next_stamp(s);
    c.uses = 1;
    c.rank = 0;
    c.checksum = chunk_checksum(c.stamp, entries, job.bytes);
    if (chunk_tree_add(&s->tree, job.slot, &c))
        return (struct drive_chunk){0};
    job.chunk = s->tree.chunks[job.slot]; /* ranked */
    if (chunk_writer_give(s->writer, &job, entries)) {
        chunk_tree_remove(&s->tree, job.slot);
        return (struct drive_chunk){0};
    }
    const struct drive_chunk put = {job.slot, c.stamp};
    if (chunk_tree_needless(&s->tree, job.slot) != CHUNK_NONE && s->n_covers < DRIVE_COVERS_MAX)
        s->covers[s->n_covers++] = (struct drive_cover){put, chunk_writer_given(s->writer)};
    return put;
}
