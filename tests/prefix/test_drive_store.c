/*
 * tests/prefix/test_drive_store.c - random requests, reopened stores, flipped bits and full stores
 * against an oracle that keeps the whole token list of every chunk; files of others, cut short, in
 * other hands. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "prefix/drive_store.h"
#include "tests/draws.h"
#include "tests/rounds.h"

enum {
    LAYERS = 2,
    ENTRY = 16,
    LONGEST = 330,
    SLOTS = 24,
    FACTS = 4096,
    OPERATIONS = TEST_ROUNDS(10000)
};

static const struct chunk_terms terms = {.model_bytes = 1000,
                                         .model_identity = 77,
                                         .n_layers = LAYERS,
                                         .entry_bytes = ENTRY,
                                         .n_vocab = 50};
static char folder[] = "/tmp/hill-test-store-XXXXXX";
static uint8_t room[CHUNK_TOKENS * LAYERS * ENTRY];

static uint64_t cap(uint32_t slots)
{
    return CHUNK_FILE_HEAD + slots * (chunk_slot_bytes(&terms) + sizeof(struct chunk_record));
}

/* ---- what the oracle knows ------------------------------------------------------------------- */

/* A chunk: all tokens from the text's first on. */
struct fact {
    bool live, damaged;
    struct drive_chunk chunk;
    uint64_t settings, owner;
    uint32_t tokens[LONGEST];
    uint32_t first, n, n_plain, uses;
    double cost, rank;
    int parent; /* fact; -1: none */
};

static struct fact *facts; /* [FACTS] */
static int n_facts;
static double now; /* uses so far */

static void fill(const struct fact *f, int id, uint8_t *out)
{
    for (uint32_t i = 0; i < f->n * LAYERS * ENTRY; i++)
        out[i] = (uint8_t)(id * 31 + i * 7 + (i >> 8));
}

static bool is_leaf(int id)
{
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live && facts[i].parent == id)
            return false;
    return true;
}

static uint32_t n_live(void)
{
    uint32_t n = 0;
    for (int i = 0; i < n_facts; i++)
        n += facts[i].live;
    return n;
}

static int fact_of(struct drive_chunk chunk)
{
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live && facts[i].chunk.stamp == chunk.stamp)
            return i;
    fail_msg("a chunk that nobody has left");
    return -1;
}

/* The dead make room in the list; parents keep their places. */
static void tidy(void)
{
    while (n_facts && !facts[n_facts - 1].live)
        n_facts--;
    assert_true(n_facts < FACTS - 16);
}

static void kill_below(int id)
{
    facts[id].live = false;
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live && facts[i].parent == id)
            kill_below(i);
}

/* Tokens of the query that the fact's own chunk gives. */
static uint32_t gives(const struct fact *f, const struct chunk_query *q)
{
    bool own = q->owner && f->owner == q->owner;
    uint32_t most = own ? f->n : f->n_plain, n = 0;
    if (f->settings != q->settings)
        return 0;
    while (n < most && f->first + n < q->n && f->tokens[f->first + n] == q->tokens[f->first + n])
        n++;
    return n;
}

/* All tokens up to the fact's, or 0; plain: how many of them are everybody's. */
static uint32_t reach(int id, const struct chunk_query *q, uint32_t *plain)
{
    uint32_t n = gives(&facts[id], q);
    *plain = facts[id].first + (n < facts[id].n_plain ? n : facts[id].n_plain);
    for (int i = facts[id].parent; n && i >= 0; i = facts[i].parent) {
        assert_true(facts[i].live);
        if (gives(&facts[i], q) < CHUNK_TOKENS)
            return 0;
        if (facts[i].n_plain < CHUNK_TOKENS)
            *plain = facts[i].first + facts[i].n_plain;
    }
    return n ? facts[id].first + n : 0;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void draw_text(uint32_t *tokens, uint32_t n)
{
    uint32_t topic = draw(3), turn = draw(n);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i < turn ? (topic * 7 + i) % 50 : draw(40) ? (topic + i) % 50 : draw(50);
}

static void check_sizes(const struct drive_store *s)
{
    struct stat index, data;
    assert_int_equal(fstat(s->file.index_fd, &index), 0);
    assert_int_equal(fstat(s->file.data_fd, &data), 0);
    assert_true((uint64_t)index.st_size + (uint64_t)data.st_size <= cap(SLOTS));
    assert_true(s->tree.n_chunks <= SLOTS);
    assert_int_equal(s->tree.n_chunks, n_live());
}

/* Made needless by the new one: it goes, whatever its rank. */
static bool is_needless(int id, int added)
{
    const struct fact *a = &facts[added], *b = &facts[id];
    bool good = b->owner ? b->owner == a->owner && a->n_plain == b->n_plain : a->n_plain >= b->n;
    return id != added && b->parent == a->parent && b->first == a->first &&
           b->settings == a->settings && good && b->n <= a->n && is_leaf(id) &&
           memcmp(a->tokens + a->first, b->tokens + b->first, b->n * sizeof *b->tokens) == 0;
}

/* Beside what is needless one has gone, if the store was full: nobody's parent, of the least
 * rank. */
static void note_gone(const struct drive_store *s, bool full, int spared, int added)
{
    int victim = -1, other = -1; /* one that is needless, too, may have been it */
    double least = INFINITY;
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live && i != spared && is_leaf(i) && facts[i].rank < least)
            least = facts[i].rank;
    for (int i = 0; i < n_facts; i++) {
        struct fact *f = &facts[i];
        const struct chunk *c = f->live ? chunk_at(&s->tree, f->chunk.slot) : NULL;
        bool gone = f->live && (!c || c->stamp != f->chunk.stamp), needless = is_needless(i, added);
        assert_true(!f->live || gone || !needless);
        if (!gone)
            continue;
        assert_true(is_leaf(i) && i != spared && (needless || full));
        if (!needless) {
            assert_int_equal(victim, -1);
            victim = i;
        } else if (f->rank == least) {
            other = i;
        }
    }
    victim = victim < 0 ? other : victim;
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live && (i == victim || is_needless(i, added)))
            facts[i].live = false;
    if (full)
        assert_true(victim >= 0 && facts[victim].rank == least);
}

static int leave_chunk(struct drive_store *s, int parent, struct chunk *c, const uint32_t *tokens)
{
    int id = n_facts;
    struct fact *f = &facts[id];
    struct drive_chunk before = {0};
    if (parent >= 0)
        before = facts[parent].chunk;
    *f = (struct fact){.settings = c->settings,
                       .owner = c->owner,
                       .first = c->first,
                       .n = c->n,
                       .n_plain = c->n_plain,
                       .uses = 1,
                       .cost = c->cost,
                       .parent = parent};
    memcpy(f->tokens, tokens, (c->first + c->n) * sizeof *tokens);
    fill(f, id, room);
    bool full = n_live() == SLOTS;
    f->chunk = drive_store_put(s, before, c, room);
    if (!f->chunk.stamp) /* the only leaf is its parent */
        return -1;
    n_facts++;
    drive_store_flush(s); /* what is needless goes when this is written */
    note_gone(s, full, parent, id);
    f->live = true;
    f->rank = ++now;
    return id;
}

/* A request leaves its chunks, as gpu_worker/stored_leave.c does. */
static void leave(struct drive_store *s)
{
    uint32_t tokens[LONGEST], n = 1 + draw(LONGEST - 1), n_plain = draw(2) ? n : draw(n);
    uint64_t owner = draw(3), settings = 1 + (draw(8) == 0);
    int parent = -1;
    draw_text(tokens, n);
    for (uint32_t first = 0; first < n; first += CHUNK_TOKENS) {
        struct chunk c = {.settings = settings, .first = first, .cost = 1 + draw(9)};
        c.n = n - first < CHUNK_TOKENS ? n - first : CHUNK_TOKENS;
        c.n_plain = n_plain <= first ? 0 : n_plain - first < c.n ? n_plain - first : c.n;
        c.owner = c.n_plain < c.n ? owner : 0;
        if (!owner && c.n_plain < CHUNK_TOKENS)
            return;
        memcpy(c.tokens, tokens + first, c.n * sizeof *tokens);
        struct drive_chunk before = {0};
        if (parent >= 0)
            before = facts[parent].chunk;
        struct drive_chunk same = drive_store_same(s, before, &c);
        parent = same.stamp ? fact_of(same) : leave_chunk(s, parent, &c, tokens);
        if (parent < 0)
            return;
        if (same.stamp)
            assert_memory_equal(facts[parent].tokens, tokens, (first + c.n) * sizeof *tokens);
        if (same.stamp && c.owner)
            assert_int_equal(facts[parent].n_plain, c.n_plain);
    }
}

static void read_chunk(struct drive_store *s, struct drive_chunk chunk, const struct chunk_query *q,
                       uint32_t n_tokens)
{
    struct hill_why why;
    uint32_t n;
    double cost;
    int id = fact_of(chunk);
    struct fact *f = &facts[id];
    int rc = drive_store_read(s, chunk, room, &n, &cost, &why);
    if (f->damaged) {
        assert_int_equal(rc, HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, "checksum"));
        kill_below(id);
        return;
    }
    uint8_t wanted[sizeof room];
    fill(f, id, wanted);
    assert_int_equal(rc, 0);
    assert_int_equal(n, f->n);
    assert_true(cost == f->cost);
    assert_memory_equal(room, wanted, n * LAYERS * ENTRY);
    uint32_t used = f->first + f->n < n_tokens ? f->first + f->n : n_tokens;
    assert_memory_equal(f->tokens, q->tokens, used * sizeof *f->tokens);
    drive_store_use(s, chunk);
    f->uses++;
    f->rank = ++now + SLOTS * log2(f->uses); /* a store this small forgets this soon */
}

static void take(struct drive_store *s)
{
    uint32_t tokens[LONGEST], best = 0, best_plain = 0, plain;
    struct chunk_query q = {tokens, 1 + draw(LONGEST - 1), 1 + (draw(8) == 0), draw(3)};
    struct drive_chunk chunks[LONGEST / CHUNK_TOKENS + 1];
    struct chunk_hit hit;
    if (n_facts && draw(2)) { /* of what is there, or was */
        const struct fact *f = &facts[draw((uint32_t)n_facts)];
        draw_text(tokens, q.n);
        uint32_t same = f->first + f->n < q.n ? f->first + f->n : q.n;
        memcpy(tokens, f->tokens, same * sizeof *tokens);
    } else {
        draw_text(tokens, q.n);
    }
    for (int i = 0; i < n_facts; i++) {
        uint32_t n = facts[i].live ? reach(i, &q, &plain) : 0;
        best = n > best ? n : best;
        best_plain = n && plain > best_plain ? plain : best_plain;
    }
    assert_int_equal(drive_store_find(s, &q, &hit, chunks), 0);
    assert_int_equal(hit.n_tokens, best);
    if (best_plain == best)
        assert_int_equal(hit.n_plain, best);
    assert_true(hit.n_plain <= best_plain);
    for (uint32_t i = 0; i < hit.n_chunks; i++) {
        int id = fact_of(chunks[i]);
        assert_int_equal(facts[id].first, i * CHUNK_TOKENS);
        assert_int_equal(facts[id].parent, i ? fact_of(chunks[i - 1]) : -1);
    }
    if (hit.n_chunks) {
        assert_int_equal(reach(fact_of(chunks[hit.n_chunks - 1]), &q, &plain), best);
        assert_int_equal(hit.n_plain, plain);
    }
    for (uint32_t i = 0; i < hit.n_chunks && facts[fact_of(chunks[i])].live; i++) {
        int id = fact_of(chunks[i]);
        read_chunk(s, chunks[i], &q, hit.n_tokens);
        if (!facts[id].live)
            return;
    }
}

static void flip(struct drive_store *s)
{
    if (!n_facts)
        return;
    struct fact *f = &facts[draw((uint32_t)n_facts)];
    if (!f->live || f->damaged)
        return;
    drive_store_flush(s);
    off_t at = (off_t)(f->chunk.slot * s->file.slot_bytes + draw(f->n * LAYERS * ENTRY));
    uint8_t byte;
    assert_int_equal(pread(s->file.data_fd, &byte, 1, at), 1);
    byte ^= (uint8_t)(1u << draw(8));
    assert_int_equal(pwrite(s->file.data_fd, &byte, 1, at), 1);
    f->damaged = true;
}

static void reopen(struct drive_store *s)
{
    struct hill_why why = {""};
    drive_store_close(s);
    if (drive_store_open(s, folder, &terms, cap(SLOTS), &why))
        fail_msg("%s", why.text);
    assert_int_equal(s->n_dropped, 0);
    now = 0;
    for (int i = 0; i < n_facts; i++)
        if (facts[i].live)
            now = fmax(now, facts[i].rank - SLOTS * log2(facts[i].uses));
}

static void clear_folder(void)
{
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "chunks.data" : "chunks.index");
        unlink(path);
    }
}

static void test_random_requests(void **unused)
{
    (void)unused;
    struct hill_why why = {""};
    struct drive_store s;
    clear_folder();
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(SLOTS), &why), 0);
    n_facts = 0, now = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        uint32_t what = draw(100);
        if (what < 40)
            leave(&s);
        else if (what < 96)
            take(&s);
        else if (what < 98)
            flip(&s);
        else
            reopen(&s);
        tidy();
        if (n_facts > FACTS / 2) { /* the oracle's list is full of the dead: another store */
            drive_store_close(&s);
            clear_folder();
            assert_int_equal(drive_store_open(&s, folder, &terms, cap(SLOTS), &why), 0);
            n_facts = 0, now = 0;
        }
        check_sizes(&s);
    }
    assert_true(s.n_evicted > 0);
    drive_store_close(&s);
}

/* ---- other files ----------------------------------------------------------------------------- */

/* Three chunks, one behind the other. */
static void make_store(struct drive_store *s, uint64_t cap_bytes)
{
    struct hill_why why = {""};
    struct drive_chunk parent = {0};
    clear_folder();
    if (drive_store_open(s, folder, &terms, cap_bytes, &why))
        fail_msg("%s", why.text);
    memset(room, 1, sizeof room);
    for (uint32_t i = 0; i < 3; i++) {
        struct chunk c = {.settings = 1, .first = i * CHUNK_TOKENS, .n = CHUNK_TOKENS, .cost = 1};
        c.n_plain = c.n;
        parent = drive_store_put(s, parent, &c, room);
        assert_true(parent.stamp != 0);
    }
}

static void check_refused(const struct chunk_terms *here, uint64_t cap_bytes, int code,
                          const char *says)
{
    struct drive_store s;
    struct hill_why why = {""};
    int fd;
    assert_int_equal(chunk_file_hold(folder, here, cap_bytes, &fd, &why), code);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(why.text, says));
    assert_int_equal(drive_store_open(&s, folder, here, cap_bytes, &why), code);
    drive_store_close(&s);
}

static void poke(const char *name, off_t at, const void *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, bytes, n, at) == (ssize_t)n);
    close(fd);
}

/* Whatever the byte is, another. */
static void damage(const char *name, off_t at)
{
    char path[128];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    close(fd);
    byte ^= 0xff;
    poke(name, at, &byte, 1);
}

static void test_refused(void **unused)
{
    (void)unused;
    struct drive_store s;
    struct chunk_terms other = terms;
    char path[128];
    make_store(&s, cap(8));
    drive_store_close(&s);
    other.model_identity++;
    check_refused(&other, cap(8), HILL_E_INVALID, "is of another model");
    check_refused(&terms, cap(0), HILL_E_INVALID, "holds no chunk");
    uint32_t version = CHUNK_FILE_VERSION + 1;
    poke("chunks.index", 8, &version, sizeof version);
    check_refused(&terms, cap(8), HILL_E_DAMAGED, "has version 3, this program reads 2");
    version = CHUNK_FILE_VERSION;
    poke("chunks.index", 8, &version, sizeof version);
    poke("chunks.index", 20, "x", 1);
    check_refused(&terms, cap(8), HILL_E_DAMAGED, "the checksum of the header");
    poke("chunks.index", 0, "x", 1);
    check_refused(&terms, cap(8), HILL_E_DAMAGED, "magic number");
    snprintf(path, sizeof path, "%s/chunks.index", folder);
    assert_int_equal(truncate(path, 30), 0);
    check_refused(&terms, cap(8), HILL_E_DAMAGED, "its header alone takes");
}

static void test_another_pipelines(void **unused)
{
    (void)unused;
    struct hill_why why;
    int fd, second;
    clear_folder();
    assert_int_equal(chunk_file_hold(folder, &terms, cap(8), &fd, &why), 0);
    assert_int_equal(chunk_file_hold(folder, &terms, cap(8), &second, &why), HILL_E_BUSY);
    assert_non_null(strstr(why.text, "another running pipeline's"));
    close(fd);
    assert_int_equal(chunk_file_hold(folder, &terms, cap(8), &fd, &why), 0);
    close(fd);
}

/* A record that is wrong, and a cap that is smaller: what hangs from them goes with them. */
static void test_damaged_records(void **unused)
{
    (void)unused;
    struct hill_why why = {""};
    struct drive_store s;
    for (uint32_t at = 0; at < sizeof(struct chunk_record); at += 7) {
        make_store(&s, cap(8));
        drive_store_close(&s);
        damage("chunks.index", (off_t)(CHUNK_FILE_HEAD + sizeof(struct chunk_record) + at));
        assert_int_equal(drive_store_open(&s, folder, &terms, cap(8), &why), 0);
        assert_int_equal(s.tree.n_chunks, 1);
        drive_store_close(&s);
        assert_int_equal(drive_store_open(&s, folder, &terms, cap(8), &why), 0);
        assert_int_equal(s.n_dropped, 0); /* named once */
        drive_store_close(&s);
    }
    make_store(&s, cap(8));
    drive_store_close(&s);
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(2), &why), 0);
    assert_int_equal(s.tree.n_chunks, 2);
    drive_store_close(&s);
    struct stat info;
    char path[128];
    snprintf(path, sizeof path, "%s/chunks.data", folder);
    assert_int_equal(stat(path, &info), 0);
    assert_true((uint64_t)info.st_size <= 2 * chunk_slot_bytes(&terms));
    assert_int_equal(truncate(path, 10), 0); /* cut short: a miss */
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(2), &why), 0);
    uint32_t n;
    double cost;
    struct drive_chunk chunk = {0, s.tree.chunks[0].stamp};
    assert_int_equal(drive_store_read(&s, chunk, room, &n, &cost, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "too short"));
    assert_int_equal(s.tree.n_chunks, 0);
    drive_store_close(&s);
}

/* One chunk that covers another: a slot is free again afterwards. */
static void put_covered(struct drive_store *s, uint32_t token)
{
    struct chunk c = {.settings = 1, .n = 10, .n_plain = 10, .cost = 1, .tokens = {token}};
    assert_true(drive_store_put(s, (struct drive_chunk){0}, &c, room).stamp != 0);
    c.n = c.n_plain = 20;
    assert_true(drive_store_put(s, (struct drive_chunk){0}, &c, room).stamp != 0);
    drive_store_flush(s);
}

/* The disk takes no more: the store goes on in the slots that it has, and does not lose those whose
 * chunks have gone. When the disk has room again, it takes more. */
static void test_a_full_disk(void **unused)
{
    (void)unused;
    struct hill_why why = {""};
    struct drive_store s;
    struct rlimit before, least;
    make_store(&s, cap(8));
    getrlimit(RLIMIT_FSIZE, &before);
    least = before;
    least.rlim_cur = 3 * chunk_slot_bytes(&terms);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
    struct chunk c = {.settings = 1, .n = CHUNK_TOKENS, .n_plain = CHUNK_TOKENS, .cost = 1};
    memset(room, 2, sizeof room);
    for (uint32_t i = 0; i < 4; i++) {
        c.tokens[0] = 1 + i;
        struct drive_chunk put = drive_store_put(&s, (struct drive_chunk){0}, &c, room);
        drive_store_use(&s, put);
        chunk_writer_flush_until(s.writer, INT64_MAX);
        if (i == 0) { /* a kill now leaves no record of what could not be written */
            struct chunk left;
            uint64_t parent;
            assert_true(put.stamp);
            assert_int_equal(chunk_file_read_record(&s.file, put.slot, &left, &parent, &why), 0);
        }
        drive_store_flush(&s);
        assert_true(s.tree.n_chunks <= 3);
        assert_true(s.full);
    }
    for (uint32_t i = 0; i < 12; i++) {
        put_covered(&s, 10 + i);
        assert_true(s.tree.n_chunks >= 2);
    }
    for (uint32_t i = 0; i < DRIVE_FULL_TURNS; i++) { /* it is tried, and has not */
        c.tokens[0] = 1 + i % 40;
        drive_store_put(&s, (struct drive_chunk){0}, &c, room);
        drive_store_flush(&s);
    }
    assert_true(s.full);
    assert_true(s.tree.n_chunks >= 2);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    for (uint32_t i = 0; i < DRIVE_FULL_TURNS + 8; i++) {
        c.tokens[0] = 1 + i % 40;
        drive_store_put(&s, (struct drive_chunk){0}, &c, room);
        drive_store_flush(&s);
    }
    assert_false(s.full);
    assert_int_equal(s.tree.n_chunks, 8);
    drive_store_close(&s);
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(8), &why), 0);
    assert_int_equal(s.n_dropped, 0);
    for (uint32_t i = 0; i < s.tree.n_room; i++) {
        uint32_t n;
        double cost;
        if (s.tree.chunks[i].stamp) /* whole, each */
            assert_int_equal(drive_store_read(&s, (struct drive_chunk){i, s.tree.chunks[i].stamp},
                                              room, &n, &cost, &why),
                             0);
    }
    drive_store_close(&s);
}

/* What a chunk covers goes when that one is written, and stays where it cannot be. */
static void test_covered(void **unused)
{
    (void)unused;
    struct hill_why why = {""};
    struct drive_store s;
    struct rlimit before, least;
    make_store(&s, cap(8));
    struct chunk c = {.settings = 1, .n = 10, .n_plain = 10, .cost = 1, .tokens = {9}};
    const struct drive_chunk none = {0}, part = drive_store_put(&s, none, &c, room);
    drive_store_flush(&s);
    assert_int_equal(chunk_file_written(&s.file), 4); /* a short one's slot has all of its room */
    getrlimit(RLIMIT_FSIZE, &before);
    least = before;
    least.rlim_cur = 4 * chunk_slot_bytes(&terms);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
    c.n = c.n_plain = 20;
    assert_true(drive_store_put(&s, none, &c, room).stamp != 0);
    assert_int_equal(s.tree.n_chunks, 5); /* until that is known, both */
    drive_store_flush(&s);
    assert_int_equal(s.tree.n_chunks, 4);
    assert_int_equal(s.tree.chunks[part.slot].stamp, part.stamp);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    drive_store_close(&s);
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(8), &why), 0);
    assert_int_equal(s.tree.n_chunks, 4);
    assert_int_equal(s.tree.chunks[part.slot].stamp, part.stamp);
    const struct drive_chunk whole = drive_store_put(&s, none, &c, room);
    drive_store_flush(&s);
    assert_int_equal(s.tree.n_chunks, 4);
    assert_null(chunk_at(&s.tree, part.slot));
    drive_store_close(&s);
    assert_int_equal(drive_store_open(&s, folder, &terms, cap(8), &why), 0);
    assert_int_equal(s.tree.n_chunks, 4);
    assert_int_equal(s.tree.chunks[whole.slot].stamp, whole.stamp);
    drive_store_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_requests),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_another_pipelines), cmocka_unit_test(test_damaged_records),
        cmocka_unit_test(test_a_full_disk),       cmocka_unit_test(test_covered),
    };
    draws_seed(20261122);
    hill_log_init("test", HILL_LOG_ERROR);
    facts = calloc(FACTS, sizeof *facts);
    if (!facts || !mkdtemp(folder))
        return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    clear_folder();
    rmdir(folder);
    free(facts);
    return rc;
}
