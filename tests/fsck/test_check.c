/* tests/fsck/test_check.c - a pool with some entries: whole; any bit of what counts in it flipped,
 * found and counted as what it is; what does not count passed over. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kv/score.h"
#include "tests/draws.h"
#include "tests/pool/directory_write.h"
#include "tools/fsck/check.h"

#define FINGERPRINT UINT64_C(0x1234)

enum { SLOTS = 70, FLIPS = 300 };

static const struct kv_geometry geometry = {1, 4, 2, 24};
static struct pool_layout layout;
static int fd;
static uint64_t bad_sector; /* 0: none */

/* In the place of the C library's: a drive that cannot read one sector. */
ssize_t pread(int from, void *to, size_t bytes, off_t at)
{
    if (bad_sector && (uint64_t)at <= bad_sector && (uint64_t)at + bytes > bad_sector) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, from, to, bytes, at);
}

static void write_at(uint64_t at, const void *bytes, uint64_t n)
{
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
}

/* Slots 0 .. SLOTS - 1 of stripe 1, every one but those divisible by seven; digests of all. */
static void fill(struct pool_directory *d)
{
    uint32_t bytes = kv_entry_bytes(&geometry);
    uint8_t *digests = calloc(1, layout.digest_stripe_bytes), *entry = malloc(bytes);
    assert_true(digests && entry);
    pool_stripe_claim(d, 1, 3, 0, 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t i = 0; i < bytes / 2; i++) {
            uint16_t half = (uint16_t)(draw(2) << 15 | (8 + draw(12)) << 10 | draw(1024));
            memcpy(entry + (size_t)i * 2, &half, 2);
        }
        kv_digest_keys(&geometry, (const uint16_t *)(const void *)entry, bytes / 2, 1, digests,
                       slot);
        uint32_t at = layout.stripe_slots + slot;
        write_at(pool_entry_at(&layout, at), entry, bytes);
        if (slot % 7)
            pool_slot_set(d, at, 100 + slot, pool_entry_checksum(entry, bytes));
    }
    write_at(pool_digest_at(&layout, 1), digests, layout.digest_stripe_bytes);
    free(digests);
    free(entry);
}

static int set_up(void **unused)
{
    char path[] = "/tmp/hill-test-fsck-XXXXXX";
    struct pool_directory *d;
    struct hill_why why = {""};
    (void)unused;
    fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    uint64_t cap = pool_bytes_with_keys(&geometry, 0, 2, 300);
    assert_int_equal(pool_layout_with_keys(&layout, &geometry, 0, cap, &why), 0);
    assert_true(layout.n_stripes >= 2);
    assert_int_equal(pool_format(fd, &layout, FINGERPRINT, &why), 0);
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, &why), 0);
    fill(d);
    assert_int_equal(pool_directory_write(d, &layout, fd, 1, &why), 0);
    pool_close(d);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    return close(fd);
}

static struct pool_check checked(int expected)
{
    struct pool_check c = {.quiet = true};
    struct hill_why why = {""};
    assert_int_equal(pool_check_file(&c, fd, &why), expected);
    return c;
}

static void flip(uint64_t at, uint32_t bit)
{
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= (uint8_t)(1u << bit);
    write_at(at, &byte, 1);
}

static void test_a_whole_pool_is_whole(void **unused)
{
    (void)unused;
    struct pool_check c = checked(0);
    assert_int_equal(c.stripes, 1);
    assert_int_equal(c.slots, SLOTS - SLOTS / 7);
    assert_int_equal(c.bad_records + c.bad_entries + c.bad_digests + c.twice, 0);
    assert_int_equal(c.identity.fingerprint, FINGERPRINT);
    assert_int_equal(c.identity.uuid[6] >> 4, 4);
}

static void test_a_bit_of_an_entry(void **unused)
{
    (void)unused;
    for (int i = 0; i < FLIPS; i++) {
        uint32_t slot = draw(SLOTS), bit = draw(8);
        uint64_t at =
            pool_entry_at(&layout, layout.stripe_slots + slot) + draw(kv_entry_bytes(&geometry));
        flip(at, bit);
        struct pool_check c = checked(0);
        assert_int_equal(c.bad_entries, slot % 7 != 0);
        assert_int_equal(c.bad_records + c.bad_digests + c.twice, 0);
        flip(at, bit);
    }
}

static void test_a_bit_of_a_digest(void **unused)
{
    (void)unused;
    uint32_t found = 0, words = geometry.n_kv_heads * kv_head_words(&geometry);
    for (int i = 0; i < FLIPS; i++) {
        /* a word of a lane: mantissas of a slot, all of them dimensions (24 are whole words) */
        uint32_t slot = draw(SLOTS), bit = draw(8);
        uint64_t at = pool_digest_at(&layout, 1) +
                      slot / KV_GROUP_TOKENS * kv_group_bytes(&geometry) +
                      kv_group_mantissas_at(&geometry) +
                      (draw(words) * KV_GROUP_TOKENS + slot % KV_GROUP_TOKENS) * 4 + draw(4);
        flip(at, bit);
        struct pool_check c = checked(0);
        assert_int_equal(c.bad_digests, slot % 7 != 0);
        assert_int_equal(c.bad_records + c.bad_entries + c.twice, 0);
        found += (uint32_t)c.bad_digests;
        flip(at, bit);
    }
    assert_true(found > FLIPS / 2);
}

static void test_a_bit_of_superblock_or_directory(void **unused)
{
    (void)unused;
    for (int i = 0; i < FLIPS; i++) {
        uint32_t bit = draw(8);
        uint64_t in_block = draw(POOL_PAGE_BYTES);
        flip(in_block, bit);
        checked(HILL_E_DAMAGED);
        flip(in_block, bit);
        uint64_t at = layout.directory_offset + layout.directory_record_bytes +
                      draw((uint32_t)layout.directory_record_bytes);
        flip(at, bit);
        struct pool_check c = checked(0);
        assert_int_equal(c.bad_records, 1);
        assert_int_equal(c.slots, 0);
        flip(at, bit);
    }
}

static void test_a_stripe_or_a_position_that_is_there_twice(void **unused)
{
    (void)unused;
    struct pool_directory *d;
    struct hill_why why = {""};
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, &why), 0);
    pool_slot_set(d, layout.stripe_slots + 2, 101, d->stripes[1].checksums[2]);
    assert_int_equal(pool_directory_write(d, &layout, fd, 1, &why), 0);
    assert_int_equal(checked(0).twice, 1); /* position 101 */
    pool_stripe_claim(d, 0, 3, 0, 0);
    assert_int_equal(pool_directory_write(d, &layout, fd, 0, &why), 0);
    assert_int_equal(checked(0).twice, 2); /* order 0 of sequence 3, layer 0 */
    pool_close(d);
}

static void test_what_is_no_pool_or_cut_short(void **unused)
{
    struct pool_check c = {.quiet = true};
    struct pool_superblock page;
    struct hill_why why = {""};
    (void)unused;
    assert_int_equal(pread(fd, &page, sizeof page, 0), sizeof page);
    page.being_formatted = 1;
    page.checksum = pool_sealed_checksum(&page, sizeof page);
    write_at(0, &page, sizeof page);
    assert_int_equal(pool_check_file(&c, fd, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "a format was cut short"));
    assert_int_equal(ftruncate(fd, (off_t)layout.total_bytes - 1), 0);
    checked(HILL_E_DAMAGED);
    assert_int_equal(ftruncate(fd, 100), 0);
    checked(HILL_E_DAMAGED);
    assert_int_equal(ftruncate(fd, 0), 0);
    checked(HILL_E_DAMAGED);
}

/* What pool_check_file prints. */
static struct pool_check printed(char *text, size_t size)
{
    struct pool_check c = {.quiet = false};
    struct hill_why why = {""};
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(file && saved >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    int code = pool_check_file(&c, fd, &why);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    ssize_t n = pread(fileno(file), text, size - 1, 0);
    fclose(file);
    assert_int_equal(code, 0);
    assert_true(n >= 0 && (size_t)n < size - 1);
    text[n] = '\0';
    return c;
}

static uint32_t lines_of(const char *text)
{
    uint32_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* A line for each, and after so many of a kind none. */
static void test_what_is_damaged_is_named(void **unused)
{
    (void)unused;
    static char text[64 * 1024];
    printed(text, sizeof text);
    assert_string_equal(text, "");
    uint32_t n = 0;
    for (uint32_t slot = 0; n < POOL_CHECK_LINES + 5; slot++) {
        if (slot % 7 == 0)
            continue;
        flip(pool_entry_at(&layout, layout.stripe_slots + slot), 0);
        struct pool_check c = printed(text, sizeof text);
        assert_int_equal(c.bad_entries, ++n);
        assert_int_equal(lines_of(text), n < POOL_CHECK_LINES ? n : POOL_CHECK_LINES);
        assert_int_equal(strstr(text, "further ones are only counted") != NULL,
                         n >= POOL_CHECK_LINES);
        if (n == 1)
            assert_string_equal(text, "stripe 1, slot 1: the entry of position 101 (sequence 3, "
                                      "layer 0) is damaged: its checksum is wrong\n");
    }
}

/* Of its digests or of its entries: it is named, and what is damaged in the others, too. */
static void test_a_stripe_that_cannot_be_read(void **unused)
{
    static char text[64 * 1024];
    struct pool_directory *d;
    struct hill_why why = {""};
    (void)unused;
    assert_int_equal(pool_open(&d, fd, FINGERPRINT, &why), 0);
    pool_stripe_claim(d, 0, 2, 0, 0);
    pool_slot_set(d, 5, 9, 0);
    pool_slot_set(d, 6, 10, 0);
    assert_int_equal(pool_directory_write(d, &layout, fd, 0, &why), 0);
    pool_close(d);
    flip(pool_entry_at(&layout, layout.stripe_slots + 1), 0);
    for (int entries = 0; entries < 2; entries++) {
        bad_sector =
            (entries ? pool_entry_at(&layout, 0) : pool_digest_at(&layout, 0)) + POOL_PAGE_BYTES;
        struct pool_check c = printed(text, sizeof text);
        bad_sector = 0;
        assert_int_equal(c.bad_stripes, 1);
        assert_int_equal(c.bad_entries, 1);
        assert_int_equal(c.bad_records + c.bad_digests + c.twice, 0);
        assert_int_equal(c.slots, SLOTS - SLOTS / 7 + 2);
        assert_int_equal(lines_of(text), 2);
        assert_non_null(strstr(text, "stripe 0 (sequence 2, layer 0) cannot be read, none of its "
                                     "2 slots was looked at: reading the cold pool's"));
        assert_non_null(strstr(text, "stripe 1, slot 1: the entry of position 101"));
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_whole_pool_is_whole),
        TEST(test_a_bit_of_an_entry),
        TEST(test_a_bit_of_a_digest),
        TEST(test_a_bit_of_superblock_or_directory),
        TEST(test_a_stripe_or_a_position_that_is_there_twice),
        TEST(test_what_is_damaged_is_named),
        TEST(test_a_stripe_that_cannot_be_read),
        TEST(test_what_is_no_pool_or_cut_short),
    };
    draws_seed(20261122);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
