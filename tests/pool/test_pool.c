/*
 * The cold pool's format: layout invariants, format and open, damage of every kind, no space.
 * Files live in a fresh folder below TMPDIR (or the working folder's file system).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xxhash.h>

#include "pool/pool.h"
#include "tests/pool/directory_write.h"

#define FINGERPRINT 0x1234567890abcdefull
#define SEED        5150u

/* digest 2064 bytes: stripes of 256 slots, 2048 KiB of entries: small enough to flip every byte */
static const struct kv_geometry geometry = {2, 16, 16, 128};

static int open_temporary(int flags)
{
    char path[] = "./test_pool_XXXXXX";
    const char *folder = getenv("TMPDIR");
    char full[512];
    snprintf(full, sizeof(full), "%s/%s", folder != NULL ? folder : "/tmp", path + 2);
    int fd = mkstemp(full);
    assert_true(fd >= 0);
    if (flags != 0) {
        close(fd);
        fd = open(full, O_RDWR | flags);
    }
    unlink(full);
    return fd;
}

static struct pool_layout small_layout(void)
{
    struct pool_layout layout;
    uint64_t cap = pool_bytes_with_keys(&geometry, 0, 1, 512);
    assert_int_equal(pool_layout_with_keys(&layout, &geometry, 0, cap, NULL), 0);
    return layout;
}

static int formatted(struct pool_layout *layout)
{
    struct hill_why why = {""};
    *layout = small_layout();
    int fd = open_temporary(0);
    if (pool_format(fd, layout, FINGERPRINT, &why) != 0)
        fail_msg("%s", why.text);
    return fd;
}

static uint64_t allocated_bytes(int fd)
{
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

/* ---- layout ------------------------------------------------------------------------------- */

static void check_layout(const struct pool_layout *l, uint64_t cap)
{
    const struct kv_geometry *g = &l->geometry;
    uint64_t s = l->stripe_slots, n = l->n_stripes;
    assert_true(s % 256 == 0 && s >= 256 && s <= 4096);
    assert_true(l->total_bytes <= cap);
    assert_true(n >= g->n_layers);
    assert_true(n * s <= INT32_MAX);
    const uint64_t pages[] = {
        l->digest_stripe_bytes, l->entry_stripe_bytes, l->directory_record_bytes,
        l->directory_offset,    l->digest_offset,      l->entry_offset,
        l->total_bytes};
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        assert_int_equal(pages[i] % POOL_PAGE_BYTES, 0);
    assert_true(l->digest_stripe_bytes >= s * kv_digest_bytes(g));
    assert_true(l->entry_stripe_bytes >= s * kv_entry_bytes(g));
    assert_true(l->directory_record_bytes >= s / 8 + 8 * s);
    /* regions follow each other without overlap */
    assert_true(l->directory_offset >= POOL_PAGE_BYTES);
    assert_true(l->directory_offset + n * l->directory_record_bytes <= l->digest_offset);
    assert_true(l->digest_offset + n * l->digest_stripe_bytes <= l->entry_offset);
    assert_true(l->entry_offset + n * l->entry_stripe_bytes <= l->total_bytes);
    uint32_t last = (uint32_t)(n * s - 1);
    assert_true(pool_entry_at(l, last) + kv_entry_bytes(g) <= l->total_bytes);
    assert_true(pool_digest_at(l, (uint32_t)n - 1) + s / 16 * kv_group_bytes(g) <= l->entry_offset);
    assert_int_equal(pool_entry_at(l, 1) - pool_entry_at(l, 0), kv_entry_bytes(g));
}

static void layouts_of_random_shapes_are_sound_and_within_the_cap(void **state)
{
    (void)state;
    print_message("seed %u\n", SEED);
    srand(SEED);
    for (int round = 0; round < 20000; round++) {
        uint32_t kv_heads = 1 + (uint32_t)rand() % 128;
        struct kv_geometry g = {1 + (uint32_t)rand() % 100, kv_heads * (1 + (uint32_t)rand() % 8),
                                kv_heads, 1 + (uint32_t)rand() % 512};
        struct pool_layout l;
        if (g.n_heads * g.head_dim > KV_MAX_KEY_DIMS)
            g.n_heads = kv_heads;
        uint64_t cap = ((uint64_t)rand() << 20) >> rand() % 24;
        if (rand() % 8 == 0)
            cap = UINT64_MAX >> rand() % 3;
        int rc = pool_layout_with_keys(&l, &g, 0, cap, NULL);
        if (rc == 0)
            check_layout(&l, cap);
        else
            assert_true(cap < pool_bytes_with_keys(&g, 0, 1, 1));
    }
}

static void the_cap_for_tokens_holds_them(void **state)
{
    (void)state;
    for (uint32_t tokens = 1; tokens < 100000; tokens += 997) {
        struct pool_layout l;
        uint64_t cap = pool_bytes_with_keys(&geometry, 0, 2, tokens);
        assert_int_equal(pool_layout_with_keys(&l, &geometry, 0, cap, NULL), 0);
        uint64_t each = (tokens + l.stripe_slots - 1) / l.stripe_slots;
        assert_true(l.n_stripes >= 2 * geometry.n_layers * each);
        assert_int_equal(l.total_bytes, cap);
    }
}

static void digest_stripes_are_about_a_mebibyte(void **state)
{
    (void)state;
    struct kv_geometry g = {32, 32, 8, 128};
    struct pool_layout l;
    assert_int_equal(pool_layout_with_keys(&l, &g, 0, 1ull << 32, NULL), 0);
    assert_true(l.digest_stripe_bytes <= 1u << 20 && l.digest_stripe_bytes > 1u << 19);
}

static void too_small_a_cap_is_refused_with_both_sizes(void **state)
{
    (void)state;
    struct pool_layout l;
    struct hill_why why;
    uint64_t least = pool_bytes_with_keys(&geometry, 0, 1, 1);
    assert_int_equal(pool_layout_with_keys(&l, &geometry, 0, least, NULL), 0);
    assert_int_equal(pool_layout_with_keys(&l, &geometry, 0, least - 1, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "MiB needed"));
    assert_int_equal(pool_layout_with_keys(&l, &geometry, 0, 0, NULL), HILL_E_INVALID);
    struct kv_geometry bad = {0, 1, 1, 1};
    assert_int_equal(pool_layout_with_keys(&l, &bad, 0, 1u << 30, NULL), HILL_E_INVALID);
}

/* ---- round trip --------------------------------------------------------------------------- */

static void an_empty_pool_opens_as_formatted(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct pool_directory *d;
    int fd = formatted(&layout);
    assert_true(allocated_bytes(fd) >= layout.total_bytes);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_memory_equal(&d->layout, &layout, sizeof(layout));
    for (uint32_t i = 0; i < layout.n_stripes; i++) {
        assert_int_equal(d->stripes[i].sequence, POOL_NO_OWNER);
        assert_int_equal(d->stripes[i].n_valid, 0);
    }
    pool_close(d);
    pool_close(NULL);
    close(fd);
}

static void written_records_are_read_back(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct pool_directory *d;
    int fd = formatted(&layout);
    uint32_t s = layout.stripe_slots, first = 2 * s;
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    pool_stripe_claim(d, 2, 0, 1, 7);
    for (uint32_t i = 0; i < s; i += 3)
        pool_slot_set(d, first + i, 1000 + i, 0x80000000u + i);
    pool_slot_set(d, first, 5, 6); /* again: replaces */
    assert_int_equal(pool_directory_write(d, &layout, fd, 2, NULL), 0);
    pool_close(d);

    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    const struct pool_stripe *stripe = &d->stripes[2];
    assert_int_equal(stripe->sequence, 0);
    assert_int_equal(stripe->layer, 1);
    assert_int_equal(stripe->order, 7);
    assert_int_equal(stripe->n_valid, (s + 2) / 3);
    assert_int_equal(stripe->positions[0], 5);
    assert_int_equal(stripe->checksums[0], 6);
    for (uint32_t i = 0; i < s; i++) {
        assert_int_equal(pool_slot_valid(d, first + i), i % 3 == 0);
        assert_false(pool_slot_valid(d, i));
        if (i % 3 == 0 && i > 0) {
            assert_int_equal(stripe->positions[i], 1000 + i);
            assert_int_equal(stripe->checksums[i], 0x80000000u + i);
        }
    }
    assert_false(pool_slot_valid(d, layout.n_stripes * s));
    pool_stripe_free(d, 2);
    assert_false(pool_slot_valid(d, first));
    assert_int_equal(pool_directory_write(d, &layout, fd, 2, NULL), 0);
    pool_close(d);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_int_equal(d->stripes[2].sequence, POOL_NO_OWNER);
    pool_close(d);
    close(fd);
}

static void encode_says_where_its_own_pages_go(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct pool_directory *d;
    int fd = formatted(&layout);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    uint64_t bytes = pool_directory_page_bytes(&layout), offset, next;
    void *pages = aligned_alloc(4096, bytes), *stored = malloc(bytes);
    assert_int_equal(pool_directory_encode(d, 1, pages, &offset), bytes);
    assert_int_equal(pread(fd, stored, bytes, (off_t)offset), bytes);
    assert_memory_equal(pages, stored, bytes); /* what format wrote for a free stripe */
    pool_directory_encode(d, 2, pages, &next);
    assert_true(next >= offset + bytes && offset % 4096 == 0);
    free(pages);
    free(stored);
    pool_close(d);
    close(fd);
}

static void formatting_again_raises_the_generation_and_forgets_slots(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct pool_directory *d;
    int fd = formatted(&layout);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_int_equal(d->generation, 1);
    pool_stripe_claim(d, 0, 0, 0, 0);
    pool_slot_set(d, 0, 1, 2);
    assert_int_equal(pool_directory_write(d, &layout, fd, 0, NULL), 0);
    assert_int_equal(pool_format(fd, &layout, FINGERPRINT, NULL), 0);
    /* a record of the former generation that arrives late is not taken */
    assert_int_equal(pool_directory_write(d, &layout, fd, 1, NULL), 0);
    pool_close(d);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), HILL_E_DAMAGED);
    assert_int_equal(pool_format(fd, &layout, FINGERPRINT, NULL), 0);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_int_equal(d->generation, 3);
    assert_false(pool_slot_valid(d, 0));
    pool_close(d);
    close(fd);
}

static void it_works_under_o_direct(void **state)
{
    (void)state;
    struct pool_layout layout = small_layout();
    struct pool_directory *d;
    int fd = open_temporary(O_DIRECT);
    if (fd < 0)
        skip(); /* a file system without O_DIRECT */
    assert_int_equal(pool_format(fd, &layout, FINGERPRINT, NULL), 0);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    pool_stripe_claim(d, 3, 0, 1, 0);
    pool_slot_set(d, 3 * layout.stripe_slots, 9, 9);
    assert_int_equal(pool_directory_write(d, &layout, fd, 3, NULL), 0);
    pool_close(d);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_true(pool_slot_valid(d, 3 * layout.stripe_slots));
    pool_close(d);
    close(fd);
}

static void a_smaller_pool_gives_the_rest_of_the_file_back(void **state)
{
    (void)state;
    struct pool_layout layout, smaller;
    struct stat info;
    int fd = formatted(&layout);
    assert_int_equal(pool_layout_with_keys(&smaller, &geometry, 0,
                                           pool_bytes_with_keys(&geometry, 0, 1, 1), NULL),
                     0);
    assert_int_equal(pool_format(fd, &smaller, FINGERPRINT, NULL), 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, smaller.total_bytes);
    close(fd);
}

static void entry_checksums_are_the_low_half_of_xxh3(void **state)
{
    (void)state;
    const char entry[] = "an entry of thirty-two bytes....";
    assert_int_equal(pool_entry_checksum(entry, 32), (uint32_t)(XXH3_64bits(entry, 32)));
    assert_int_not_equal(pool_entry_checksum(entry, 31), pool_entry_checksum(entry, 32));
}

/* ---- damage ------------------------------------------------------------------------------- */

static int open_code(int fd, uint64_t fingerprint)
{
    struct pool_directory *d = NULL;
    struct hill_why why = {""};
    int rc = pool_open(&d, fd, fingerprint, &why);
    assert_true(rc == 0 || (why.text[0] != '\0' && d == NULL));
    pool_close(d);
    return rc;
}

static void flip(int fd, uint64_t offset, uint8_t mask)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
}

static void any_flipped_byte_of_the_superblock_is_damage(void **state)
{
    (void)state;
    struct pool_layout layout;
    int fd = formatted(&layout);
    for (uint64_t at = 0; at < POOL_PAGE_BYTES; at++) {
        uint8_t mask = (uint8_t)(1u << at % 8);
        flip(fd, at, mask);
        assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_DAMAGED);
        flip(fd, at, mask);
    }
    assert_int_equal(open_code(fd, FINGERPRINT), 0);
    close(fd);
}

static void any_flipped_byte_of_a_record_is_damage(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct pool_directory *d;
    int fd = formatted(&layout);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    pool_stripe_claim(d, 1, 0, 1, 0);
    for (uint32_t i = 0; i < layout.stripe_slots; i++)
        pool_slot_set(d, layout.stripe_slots + i, i, i);
    assert_int_equal(pool_directory_write(d, &layout, fd, 1, NULL), 0);
    pool_close(d);
    uint64_t record = layout.directory_offset + layout.directory_record_bytes;
    for (uint64_t at = 0; at < layout.directory_record_bytes; at++) {
        uint8_t mask = (uint8_t)(1u << at % 8);
        flip(fd, record + at, mask);
        assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_DAMAGED);
        flip(fd, record + at, mask);
    }
    assert_int_equal(open_code(fd, FINGERPRINT), 0);
    close(fd);
}

/* A resealed page: checksum first in the page, over the rest. */
static void reseal(int fd, uint64_t at, uint64_t bytes, uint64_t field, uint32_t value)
{
    uint8_t *page = malloc(bytes);
    assert_int_equal(pread(fd, page, bytes, (off_t)at), bytes);
    memcpy(page + field, &value, 4);
    uint64_t sum = XXH3_64bits(page + 8, bytes - 8);
    memcpy(page, &sum, 8);
    assert_int_equal(pwrite(fd, page, bytes, (off_t)at), bytes);
    free(page);
}

/* what a writer with a bug, or an attacker, can seal: every 32-bit word of the superblock's numbers
 */
static void sealed_nonsense_in_the_superblock_is_refused(void **state)
{
    (void)state;
    static const uint32_t values[] = {0, 1, 0x7fffffff, UINT32_MAX};
    struct pool_layout layout;
    for (uint64_t field = 8; field < 144; field += 4) {
        if ((field >= 32 && field < 40) || field == 40 || field == 44)
            continue; /* generation; layers and heads, which only the fingerprint binds */
        for (size_t v = 0; v < 4; v++) {
            uint32_t was;
            int fd = formatted(&layout);
            assert_int_equal(pread(fd, &was, 4, (off_t)field), 4);
            reseal(fd, 0, POOL_PAGE_BYTES, field, values[v]);
            if (was != values[v])
                assert_int_not_equal(open_code(fd, FINGERPRINT), 0);
            close(fd);
        }
    }
}

static void sealed_nonsense_in_a_record_is_refused(void **state)
{
    (void)state;
    struct pool_layout layout;
    int fd = formatted(&layout);
    uint64_t bytes = layout.directory_record_bytes, at = layout.directory_offset;
    /* offsets: generation 8, stripe 16, sequence 20, layer 24, order 28, n_valid 32, bitmap 64 */
    static const struct {
        uint64_t field;
        uint32_t bad, good;
    } cases[] = {{8, 99, 1},          {16, 1, 0}, {20, 0, UINT32_MAX},
                 {24, 0, UINT32_MAX}, {32, 1, 0}, {64, 1, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reseal(fd, at, bytes, cases[i].field, cases[i].bad);
        assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_DAMAGED);
        reseal(fd, at, bytes, cases[i].field, cases[i].good);
        assert_int_equal(open_code(fd, FINGERPRINT), 0);
    }
    close(fd);
}

static void another_version_is_unsupported(void **state)
{
    (void)state;
    struct pool_layout layout;
    int fd = formatted(&layout);
    reseal(fd, 0, POOL_PAGE_BYTES, 16, 4);
    assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_UNSUPPORTED);
    reseal(fd, 0, POOL_PAGE_BYTES, 16, 6);
    assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_UNSUPPORTED);
    close(fd);
}

/* what a stripe's digests are made of belongs to the layout */
static void digests_of_four_bits_are_told_from_those_of_eight(void **state)
{
    (void)state;
    struct kv_geometry g = {2, 8, 8, 64, 4}, eight = {2, 8, 8, 64, 8};
    struct pool_layout four_bits, layout;
    struct pool_directory *directory = NULL;
    struct hill_why why = {""};
    int fd = open_temporary(0);
    assert_int_equal(pool_layout_with_keys(&four_bits, &g, 0, 64u << 20, &why), 0);
    assert_int_equal(pool_layout_with_keys(&layout, &eight, 0, 64u << 20, &why), 0);
    assert_true(four_bits.stripe_slots > layout.stripe_slots); /* stripes of equal bytes */
    assert_int_equal(pool_format(fd, &four_bits, FINGERPRINT, &why), 0);
    assert_int_equal(pool_open(&directory, fd, FINGERPRINT, &why), 0);
    assert_int_equal(kv_digest_bits(&directory->layout.geometry), 4);
    assert_int_equal(directory->layout.digest_stripe_bytes, four_bits.digest_stripe_bytes);
    pool_close(directory);
    close(fd);
}

static void a_foreign_fingerprint_is_invalid(void **state)
{
    (void)state;
    struct pool_layout layout;
    int fd = formatted(&layout);
    assert_int_equal(open_code(fd, FINGERPRINT + 1), HILL_E_INVALID);
    close(fd);
}

static void truncated_files_are_damage(void **state)
{
    (void)state;
    struct pool_layout layout;
    int fd = formatted(&layout);
    const uint64_t lengths[] = {layout.total_bytes - 1,
                                layout.entry_offset,
                                layout.digest_offset,
                                layout.directory_offset + 1,
                                POOL_PAGE_BYTES,
                                4095,
                                1,
                                0};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        assert_int_equal(ftruncate(fd, (off_t)lengths[i]), 0);
        assert_int_equal(open_code(fd, FINGERPRINT), HILL_E_DAMAGED);
    }
    close(fd);
}

/* ---- a format that is cut short ------------------------------------------------------------ */

enum { CUT = 3, NOT_FLUSHED = 4, SECTOR = 512 };

static struct {
    bool on, slow;                /* slow: the file system has no fallocate */
    int writes;                   /* the process dies in the one after so many */
    size_t bytes;                 /* of that one that reach the file, at most */
    bool first_waits, rest_waits; /* for a flush: the first page, what is behind it */
} cut;

/* In the places of the C library's, for pool_format: writes of which one is the last, and a power
 * loss between any two would find the first page and the rest in this order on flash. */
ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    if (!cut.on)
        return syscall(SYS_pwrite64, fd, from, bytes, at);
    bool first = at == 0;
    if (first ? cut.rest_waits : cut.first_waits)
        _exit(NOT_FLUSHED);
    *(first ? &cut.first_waits : &cut.rest_waits) = true;
    bool dies = cut.writes-- == 0;
    ssize_t n = syscall(SYS_pwrite64, fd, from, dies && bytes > cut.bytes ? cut.bytes : bytes, at);
    if (dies)
        _exit(CUT);
    return n;
}

int fsync(int fd)
{
    cut.first_waits = cut.rest_waits = false;
    return (int)syscall(SYS_fsync, fd);
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (cut.on && cut.slow) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

/* Was it cut? Else it ran to its end. */
static bool format_is_cut(int fd, const struct pool_layout *layout)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cut.on = true;
        _exit(pool_format(fd, layout, FINGERPRINT, NULL) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == CUT));
    return WEXITSTATUS(status) == CUT;
}

/* The file is known as ours, and another format makes the pool of the same uuid in it. */
static void cut_is_repeated(int fd, const struct pool_layout *layout, const uint8_t *uuid)
{
    struct pool_superblock page;
    struct pool_directory *d = NULL;
    struct hill_why why = {""};
    assert_int_equal(pread(fd, &page, sizeof page, 0), sizeof page);
    assert_true(page.magic == POOL_MAGIC);
    if (uuid)
        assert_memory_equal(page.uuid, uuid, sizeof page.uuid);
    int rc = pool_open(&d, fd, FINGERPRINT, &why);
    assert_int_equal(rc, page.being_formatted ? HILL_E_DAMAGED : 0);
    assert_true(rc == 0 || strstr(why.text, "cut short"));
    pool_close(d);
    assert_int_equal(pool_format(fd, layout, FINGERPRINT, NULL), 0);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, NULL), 0);
    assert_int_equal(d->generation, page.generation + 1);
    assert_memory_equal(d->identity.uuid, page.uuid, sizeof page.uuid);
    pool_close(d);
}

/* On a drive that is blank, or has a pool; whole writes, or a sector of the last one. */
static void a_format_that_is_cut_short_says_so(void **state)
{
    (void)state;
    struct pool_layout layout;
    for (int round = 0; round < 8; round++) {
        bool again = round & 1;
        int writes = 0;
        cut.slow = round & 2;
        cut.bytes = round & 4 ? SECTOR : SIZE_MAX;
        for (bool was_cut = true; was_cut; writes++) {
            struct pool_superblock before;
            int fd = formatted(&layout);
            assert_int_equal(pread(fd, &before, sizeof before, 0), sizeof before);
            if (!again)
                assert_int_equal(ftruncate(fd, 0), 0);
            if (!again && cut.bytes == SECTOR) /* as a block device is: of its size */
                assert_int_equal(ftruncate(fd, (off_t)layout.total_bytes), 0);
            cut.writes = writes;
            was_cut = format_is_cut(fd, &layout);
            cut_is_repeated(fd, &layout, again ? before.uuid : NULL);
            close(fd);
        }
        assert_true(writes > 3); /* mark, directory, superblock, and a format that is whole */
    }
}

/* ---- space -------------------------------------------------------------------------------- */

static void a_cap_beyond_the_disk_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    struct pool_layout layout;
    struct hill_why why = {""};
    struct stat info;
    char needed[32];
    int fd = formatted(&layout); /* even what was there goes */
    struct kv_geometry large = {64, 64, 64, 512};
    assert_int_equal(pool_layout_with_keys(&layout, &large, 0, 1ull << 50, NULL), 0);
    assert_int_equal(pool_format(fd, &layout, FINGERPRINT, &why), HILL_E_NOSPACE);
    snprintf(needed, sizeof(needed), "%llu", (unsigned long long)layout.total_bytes);
    assert_non_null(strstr(why.text, needed));
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, 0);
    assert_int_equal(info.st_blocks, 0);
    close(fd);
}

static void a_read_only_file_cannot_be_formatted(void **state)
{
    (void)state;
    struct pool_layout layout = small_layout();
    struct hill_why why = {""};
    int fd = open("/dev/null", O_RDONLY);
    assert_true(pool_format(fd, &layout, FINGERPRINT, &why) < 0);
    assert_string_not_equal(why.text, "");
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_of_random_shapes_are_sound_and_within_the_cap),
        cmocka_unit_test(the_cap_for_tokens_holds_them),
        cmocka_unit_test(digest_stripes_are_about_a_mebibyte),
        cmocka_unit_test(too_small_a_cap_is_refused_with_both_sizes),
        cmocka_unit_test(an_empty_pool_opens_as_formatted),
        cmocka_unit_test(written_records_are_read_back),
        cmocka_unit_test(encode_says_where_its_own_pages_go),
        cmocka_unit_test(formatting_again_raises_the_generation_and_forgets_slots),
        cmocka_unit_test(it_works_under_o_direct),
        cmocka_unit_test(a_smaller_pool_gives_the_rest_of_the_file_back),
        cmocka_unit_test(entry_checksums_are_the_low_half_of_xxh3),
        cmocka_unit_test(any_flipped_byte_of_the_superblock_is_damage),
        cmocka_unit_test(any_flipped_byte_of_a_record_is_damage),
        cmocka_unit_test(sealed_nonsense_in_the_superblock_is_refused),
        cmocka_unit_test(sealed_nonsense_in_a_record_is_refused),
        cmocka_unit_test(another_version_is_unsupported),
        cmocka_unit_test(digests_of_four_bits_are_told_from_those_of_eight),
        cmocka_unit_test(a_foreign_fingerprint_is_invalid),
        cmocka_unit_test(truncated_files_are_damage),
        cmocka_unit_test(a_format_that_is_cut_short_says_so),
        cmocka_unit_test(a_cap_beyond_the_disk_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_read_only_file_cannot_be_formatted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
