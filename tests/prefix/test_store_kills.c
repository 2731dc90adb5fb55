/*
 * tests/prefix/test_store_kills.c - the prefix store of a process that is killed again and again:
 * never a wrong prefix, never a leaked chunk, caps never exceeded.
 *
 * A child makes random operations on one store: texts that fork from earlier ones or are cut short
 * are left, asked for and read; what finds no room sends others away. It dies by SIGKILL at a drawn
 * write of a file, before any of it or in its middle, or when all is written; the next child opens
 * what is there and reads all of it. The oracle keeps token lists alone: the bytes of a token's
 * entry are a function of all tokens up to it and of who has decoded it from where on, so what a
 * list must read as is known without the store. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "prefix/drive_store.h"
#include "tests/rounds.h"

enum {
    LAYERS = 2,
    ENTRY = 16,
    LONGEST = 400,
    TEXTS = 12, /* that a fork may begin with */
    SLOTS = 20,
    OPERATIONS = TEST_ROUNDS(10000),
    A_LIFE = 300 /* writes until a kill, on average */
};

static const struct chunk_terms terms = {.model_bytes = 1000,
                                         .model_identity = 78,
                                         .n_layers = LAYERS,
                                         .entry_bytes = ENTRY,
                                         .n_vocab = 50};
static char folder[] = "/tmp/hill-test-kills-XXXXXX";

struct text {
    uint32_t tokens[LONGEST], n, n_plain;
    uint64_t owner;
};

/* What outlives a child. */
static struct shared {
    uint64_t state; /* of the draws */
    struct text texts[TEXTS];
    uint32_t operations;
    bool rested;       /* it died when all was written... */
    uint32_t n_chunks; /* ...so many chunks, of these stamps together */
    uint64_t stamps;
    uint32_t found, evicted, lives, torn; /* chunks compared, sent away; writes that were cut */
    char wrong[200];                      /* why a child gave up */
} * shared;

static uint32_t draw(uint32_t below)
{
    shared->state = shared->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(shared->state >> 33) % below;
}

static uint64_t cap(void)
{
    return CHUNK_FILE_HEAD + SLOTS * (chunk_slot_bytes(&terms) + sizeof(struct chunk_record));
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(shared->wrong, sizeof shared->wrong, "line %d, operation %u: %s", __LINE__,   \
                     shared->operations, #condition);                                              \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- the kill -------------------------------------------------------------------------------- */

static _Atomic uint32_t n_writes;
static uint32_t dies_at; /* the write at which this process is killed; 0: none */

/* In place of the library's. A record is a sector and arrives whole; entries may arrive in part. */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    if (dies_at && atomic_fetch_add(&n_writes, 1) + 1 == dies_at) {
        if (bytes > sizeof(struct chunk_record)) {
            syscall(SYS_pwrite64, fd, from, bytes / 2, at);
            shared->torn++;
        }
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_pwrite64, fd, from, bytes, at);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

/* An entry: of all tokens up to it, and of how it was made. */
static void fill_entry(const uint32_t *tokens, uint32_t position, uint64_t made, uint32_t layer,
                       uint8_t *out)
{
    uint64_t sum = made * 977 + layer + 1;
    for (uint32_t i = 0; i <= position; i++)
        sum = (sum ^ tokens[i]) * 0x100000001b3u;
    for (uint32_t i = 0; i < ENTRY; i++)
        out[i] = (uint8_t)(sum >> i % 8 * 8) ^ (uint8_t)i;
}

/* Decoded ones differ by who decoded them, and from where on. */
static uint64_t made_by(uint32_t position, uint32_t n_plain, uint64_t owner)
{
    return position < n_plain ? 0 : owner * LONGEST + n_plain + 1;
}

static void draw_text(struct text *t)
{
    const struct text *from = &shared->texts[draw(TEXTS)];
    uint32_t same = from->n ? draw(from->n + 1) : 0; /* cut there, then another way */
    t->n = 1 + draw(LONGEST);
    same = same < t->n ? same : t->n;
    for (uint32_t i = 0; i < t->n; i++)
        t->tokens[i] = i < same ? from->tokens[i] : draw(50);
    t->owner = draw(3);
    t->n_plain = t->owner && draw(2) ? draw(t->n) : t->n;
    if (t->owner && same > from->n_plain) /* over decoded ones: the same conversation goes on */
        t->owner = from->owner, t->n_plain = from->n_plain;
    if (!t->owner || t->n_plain >= t->n) /* all plain; and what a kill has torn is no text */
        t->owner = 0, t->n_plain = t->n;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void leave(struct drive_store *s)
{
    static uint8_t entries[CHUNK_TOKENS * LAYERS * ENTRY];
    struct text *t = &shared->texts[draw(TEXTS)], drawn;
    struct drive_chunk parent = {0};
    draw_text(&drawn);
    *t = drawn;
    for (uint32_t first = 0; first < t->n; first += CHUNK_TOKENS) {
        struct chunk c = {.settings = 1, .first = first, .cost = 1};
        c.n = t->n - first < CHUNK_TOKENS ? t->n - first : CHUNK_TOKENS;
        c.n_plain = t->n_plain <= first ? 0 : t->n_plain - first < c.n ? t->n_plain - first : c.n;
        c.owner = c.n_plain < c.n ? t->owner : 0;
        memcpy(c.tokens, t->tokens + first, c.n * sizeof *c.tokens);
        struct drive_chunk same = drive_store_same(s, parent, &c);
        if (!same.stamp) {
            for (uint32_t i = 0; i < LAYERS * c.n; i++)
                fill_entry(t->tokens, first + i % c.n,
                           made_by(first + i % c.n, t->n_plain, t->owner), i / c.n,
                           entries + i * ENTRY);
            same = drive_store_put(s, parent, &c, entries);
        }
        if (!same.stamp)
            return; /* no room: its parent is the only one that could go */
        parent = same;
    }
}

static void take(struct drive_store *s)
{
    static uint8_t entries[CHUNK_TOKENS * LAYERS * ENTRY];
    struct drive_chunk chunks[LONGEST / CHUNK_TOKENS + 1];
    struct chunk_hit hit;
    struct hill_why why;
    struct text t;
    draw_text(&t);
    struct chunk_query q = {t.tokens, t.n, 1, draw(3)};
    CHECK(drive_store_find(s, &q, &hit, chunks) == 0 && hit.n_tokens <= t.n);
    for (uint32_t i = 0; i < hit.n_chunks; i++) {
        uint32_t n, first = i * CHUNK_TOKENS;
        double cost;
        CHECK(drive_store_read(s, chunks[i], entries, &n, &cost, &why) == 0);
        CHECK(n <= CHUNK_TOKENS && first < hit.n_tokens);
        for (uint32_t j = 0; j < LAYERS * n; j++) {
            uint8_t wanted[ENTRY];
            uint32_t position = first + j % n;
            if (position >= hit.n_tokens)
                continue;
            fill_entry(t.tokens, position, made_by(position, hit.n_plain, q.owner), j / n, wanted);
            CHECK(memcmp(entries + j * ENTRY, wanted, ENTRY) == 0);
        }
        drive_store_use(s, chunks[i]);
        shared->found++;
    }
}

/* Below `slot`'s parent; all that is reached from the beginning. */
static uint32_t count_behind(const struct chunk_tree *t, uint32_t slot, uint64_t *stamps)
{
    uint32_t n = 0;
    for (; slot != CHUNK_NONE; slot = t->chunks[slot].sibling) {
        *stamps += t->chunks[slot].stamp;
        n += 1 + count_behind(t, t->chunks[slot].child, stamps);
    }
    return n;
}

/* Nothing is leaked, and nothing is above the cap. */
static void check_room(const struct drive_store *s)
{
    struct stat index, data;
    uint64_t stamps = 0;
    uint32_t used = 0;
    CHECK(!fstat(s->file.index_fd, &index) && !fstat(s->file.data_fd, &data));
    CHECK((uint64_t)index.st_size + (uint64_t)data.st_size <= cap());
    for (uint32_t i = 0; i < s->tree.n_room; i++)
        used += s->tree.chunks[i].stamp != 0;
    CHECK(used == s->tree.n_chunks && used <= SLOTS);
    CHECK(count_behind(&s->tree, s->tree.root, &stamps) == used);
}

/* Every chunk that is there has the entries of its tokens, and those before it. */
static void check_entries(struct drive_store *s)
{
    static uint8_t entries[CHUNK_TOKENS * LAYERS * ENTRY];
    for (uint32_t slot = 0; slot < s->tree.n_room; slot++) {
        const struct chunk *last = chunk_at(&s->tree, slot);
        uint32_t tokens[LONGEST + CHUNK_TOKENS], n, n_plain = UINT32_MAX;
        struct hill_why why;
        double cost;
        if (!last)
            continue;
        const struct drive_chunk chunk = {slot, last->stamp};
        for (const struct chunk *c = last; c; c = chunk_at(&s->tree, c->parent)) {
            memcpy(tokens + c->first, c->tokens, c->n * sizeof *tokens);
            n_plain = c->n_plain < c->n ? c->first + c->n_plain : n_plain;
        }
        CHECK(drive_store_read(s, chunk, entries, &n, &cost, &why) == 0 && n == last->n);
        for (uint32_t j = 0; j < LAYERS * n; j++) {
            uint8_t wanted[ENTRY];
            uint32_t position = last->first + j % n;
            fill_entry(tokens, position, made_by(position, n_plain, last->owner), j / n, wanted);
            CHECK(memcmp(entries + j * ENTRY, wanted, ENTRY) == 0);
        }
    }
}

static void check_opened(struct drive_store *s)
{
    uint64_t stamps = 0;
    CHECK(s->n_dropped == 0); /* each slot is whole or free, each chunk has its parent */
    check_room(s);
    check_entries(s);
    if (shared->rested) {
        CHECK(count_behind(&s->tree, s->tree.root, &stamps) == shared->n_chunks);
        CHECK(stamps == shared->stamps);
    }
    shared->rested = false;
}

static void die_at_rest(struct drive_store *s)
{
    drive_store_flush(s);
    shared->stamps = 0;
    shared->n_chunks = count_behind(&s->tree, s->tree.root, &shared->stamps);
    shared->rested = true;
    kill(getpid(), SIGKILL);
}

static void live(void)
{
    struct drive_store s;
    struct hill_why why = {""};
    uint32_t end = draw(3) ? UINT32_MAX : shared->operations + 1 + draw(100);
    if (drive_store_open(&s, folder, &terms, cap(), &why)) {
        snprintf(shared->wrong, sizeof shared->wrong, "%.190s", why.text);
        _exit(1);
    }
    check_opened(&s);
    if (end == UINT32_MAX)
        dies_at = 1 + draw(2 * A_LIFE);
    for (;;) {
        uint32_t what = draw(100);
        uint64_t before = s.n_evicted;
        if (what < 45)
            leave(&s);
        else if (what < 99)
            take(&s);
        else
            drive_store_flush(&s);
        shared->evicted += (uint32_t)(s.n_evicted - before);
        check_room(&s);
        if (++shared->operations >= end)
            die_at_rest(&s);
    }
}

/* ---- the parent ------------------------------------------------------------------------------ */

static void one_life(void)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        live();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status))
        fail_msg("%s", shared->wrong);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    shared->lives++;
}

static void test_kills(void **unused)
{
    (void)unused;
    while (shared->operations < OPERATIONS)
        one_life();
    printf("%u operations in %u lives: %u chunks taken, %u sent away; %u writes of entries cut\n",
           shared->operations, shared->lives, shared->found, shared->evicted, shared->torn);
    assert_true(shared->found > OPERATIONS / 4);
    assert_true(shared->evicted > OPERATIONS / 10);
}

static void clear_folder(void)
{
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i ? "chunks.data" : "chunks.index");
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kills)};
    const char *seed = getenv("HILL_TEST_SEED");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !mkdtemp(folder))
        return 1;
    shared->state = seed ? strtoull(seed, NULL, 10) : 20261122;
    printf("HILL_TEST_SEED=%llu\n", (unsigned long long)shared->state);
    hill_log_init("test", HILL_LOG_ERROR);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    clear_folder();
    return rc;
}
