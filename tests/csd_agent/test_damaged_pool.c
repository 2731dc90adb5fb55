/*
 * test_damaged_pool.c - flipped bits of a cold pool are found and named; files that are not ours
 * are left alone.
 */
#include "tests/csd_agent/pool_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static off_t bad_sector = -1; /* -1: none */

/* In the place of the C library's: a drive that cannot read one sector. */
ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    if (at <= bad_sector && at + (off_t)bytes > bad_sector) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, bytes, at);
}

static bool is_device;      /* the pool's file is a block device */
static int last_write = -1; /* with this pwrite the process is killed; -1: never */

int fstat(int fd, struct stat *info)
{
    int code = (int)syscall(SYS_fstat, fd, info);
    if (code == 0 && is_device && S_ISREG(info->st_mode))
        info->st_mode = (info->st_mode & ~(mode_t)S_IFMT) | S_IFBLK;
    return code;
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    ssize_t n = syscall(SYS_pwrite64, fd, from, bytes, at);
    if (last_write >= 0 && last_write-- == 0)
        _exit(0);
    return n;
}

static void write_file(const char *content, size_t bytes)
{
    FILE *f = fopen(pool_path(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, bytes, f), bytes);
    fclose(f);
}

static void flip_bit(uint64_t at, uint32_t bit)
{
    uint8_t byte;
    int fd = open(pool_path(), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= (uint8_t)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void check_a_flipped_byte(void)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t bad;

    random_seed(16);
    config.options.force_buffered = true; /* so that this test's write is seen */
    pool_scene_open(&s, &config);
    s.m.next_position = 1000;
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    assert_int_equal(pool_scene_write(&s, 0, 50, &cost), 0);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &i, 1, &why), 0);
    flip_bit(pool_entry_at(cold_pool_layout(s.pool), 33) + 5, 4);
    struct fetch_item items[3];
    for (uint32_t i = 0; i < 3; i++)
        items[i] = (struct fetch_item){32 + i, 1032 + i, i, shm_arena_generation(&s.staging, i)};
    assert_int_equal(
        cold_pool_fetch(s.pool,
                        &(struct cold_fetch){.items = items, .n_items = 3, .staging = &s.staging},
                        &cost, &bad, &why),
        HILL_E_DAMAGED);
    assert_int_equal(bad, 1033);
    assert_non_null(strstr(why.text, "1033"));
    items[1] = items[2];
    assert_int_equal(
        cold_pool_fetch(s.pool,
                        &(struct cold_fetch){.items = items, .n_items = 2, .staging = &s.staging},
                        &cost, &bad, &why),
        0);
    pool_scene_close(&s);
}

static void test_a_flipped_byte_is_found_and_named(void **state)
{
    (void)state;
    check_a_flipped_byte();
}

static void test_a_flipped_byte_in_memory_is_found_and_named(void **state)
{
    (void)state;
    skip_without_folder();
    check_a_flipped_byte();
}

/* Another agent takes the pool over, and is asked for its slots: what `adopted` says of that. */
static void reopen_and_name(struct pool_scene *s, const struct cold_pool_config *config,
                            struct adopt_item items[100], struct hill_why *why)
{
    struct cold_pool_config kept = *config;
    uint32_t bytes = kv_entry_bytes(&s->m.g);

    cold_pool_close(s->pool);
    kept.keeps = true;
    assert_int_equal(cold_pool_open(&s->pool, &kept, why), 0);
    for (uint32_t i = 0; i < 100; i++)
        items[i] =
            (struct adopt_item){i, s->m.slots[i].position,
                                pool_entry_checksum(s->m.entries + (size_t)i * bytes, bytes)};
}

static int adopt_status(struct pool_scene *s, const struct cold_pool_config *config,
                        struct hill_why *why)
{
    struct adopt_item items[100];
    const struct cold_adopt adopt = {0, 0, 0, 0, items, 100};
    struct cold_adopted adopted;

    reopen_and_name(s, config, items, why);
    return cold_pool_adopt(s->pool, &adopt, &adopted, why);
}

/* All but the damaged ones count, and each of these is named, one command after the other. */
static void check_adopts_the_others(struct pool_scene *s, const struct cold_pool_config *config,
                                    const uint32_t *bad, uint32_t n_bad)
{
    struct adopt_item items[100];
    struct cold_adopt adopt = {0, 0, 0, 0, items, 100};
    struct cold_adopted adopted;
    struct hill_why why = {""};

    reopen_and_name(s, config, items, &why);
    for (uint32_t i = 0; i < n_bad; i++) {
        assert_int_equal(cold_pool_adopt(s->pool, &adopt, &adopted, &why), HILL_E_DAMAGED);
        assert_int_equal(adopted.n, i ? 0 : 100 - n_bad);
        assert_int_equal(adopted.bad_position, s->m.slots[bad[i]].position);
        assert_int_equal(cold_pool_committed(s->pool, 0, 0), 100 - n_bad);
        for (uint32_t k = 0; k < adopt.n_items; k++) /* it is left out */
            if (items[k].slot == bad[i])
                memmove(items + k, items + k + 1, (--adopt.n_items - k) * sizeof *items);
    }
    assert_int_equal(cold_pool_adopt(s->pool, &adopt, &adopted, &why), 0);
    assert_int_equal(adopted.n, 0);
    assert_int_equal(cold_pool_position(s->pool, bad[0]), COLD_NO_POSITION);
}

/* A hundred committed slots. */
static void open_with_slots(struct pool_scene *s, const struct cold_pool_config *config)
{
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    uint32_t slots[100];

    pool_scene_open(s, config);
    s->m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    assert_int_equal(pool_scene_write(s, 0, 100, &cost), 0);
    for (uint32_t i = 0; i < 100; i++) {
        slots[i] = i;
        s->m.slots[i].state = SLOT_COMMITTED;
    }
    assert_int_equal(cold_pool_commit(s->pool, 0, 0, slots, 100, &why), 0);
    assert_int_equal(pool_scene_query_status(s, &why), 0);
}

/* The same of the keys of a pool without digests. */
static void test_a_flipped_bit_of_a_key_is_found_and_named(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config_cast(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    random_seed(19);
    open_with_slots(&s, &config);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t at = layout.key_offset + random_below(100 * layout.key_bytes);
        uint32_t bit = random_below(8);
        flip_bit(at, bit);
        assert_int_equal(pool_scene_query_status(&s, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, "keys in page"));
        assert_int_equal(adopt_status(&s, &config, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, "the key is damaged"));
        flip_bit(at, bit);
        assert_int_equal(adopt_status(&s, &config, &why), 0);
        assert_int_equal(pool_scene_query_status(&s, &why), 0);
    }
    pool_scene_close(&s);
}

/* Any bit of the digests: by the page's checksum while an agent lives, by the entry's key when
 * another one takes the pool over; of an entry by its checksum. */
static void test_a_flipped_bit_of_a_digest_is_found_and_named(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    random_seed(18);
    open_with_slots(&s, &config);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    for (uint32_t round = 0; round < 60; round++) {
        uint64_t digests = 6 * kv_group_bytes(&g); /* of whole groups: every bit is a slot's */
        uint64_t exponents = kv_group_mantissas_at(&g);
        uint64_t at = random_below((uint32_t)digests), in_group = at % kv_group_bytes(&g);
        uint32_t bit = random_below(8);
        bool used = in_group >= exponents || in_group < g.n_kv_heads * KV_GROUP_TOKENS;
        flip_bit(layout.digest_offset + at, bit);
        assert_int_equal(pool_scene_query_status(&s, &why), HILL_E_DAMAGED);
        if (!strstr(why.text, "digests in page") || !strstr(why.text, "stripe 0"))
            fail_msg("%s", why.text);
        assert_int_equal(adopt_status(&s, &config, &why), used ? HILL_E_DAMAGED : 0);
        if (used && !strstr(why.text, "the digest is damaged"))
            fail_msg("%s", why.text);
        flip_bit(layout.digest_offset + at, bit);
        assert_int_equal(adopt_status(&s, &config, &why), 0);
        assert_int_equal(pool_scene_query_status(&s, &why), 0);
    }
    flip_bit(pool_entry_at(&layout, 57) + 5, 3);
    assert_int_equal(adopt_status(&s, &config, &why), HILL_E_DAMAGED);
    if (!strstr(why.text, "the entry is damaged") || !strstr(why.text, "cold slot 57"))
        fail_msg("%s", why.text);
    flip_bit(layout.digest_offset + kv_group_mantissas_at(&g) - 1, 0); /* an exponent, slot 15 */
    flip_bit(pool_entry_at(&layout, 99) + 1, 6);
    const uint32_t bad[] = {15, 57, 99};
    check_adopts_the_others(&s, &config, bad, 3);
    pool_scene_close(&s);
}

static void note_damaged(void *context, uint32_t stripe, const char *line)
{
    (void)stripe;
    (void)line;
    ++*(uint32_t *)context;
}

/* Stripes that the directory on flash says are somebody's; *damaged: its records that cannot be
 * used. */
static uint32_t stripes_on_flash(uint32_t *damaged)
{
    struct pool_directory *d;
    uint32_t n = 0;
    int fd = open(pool_path(), O_RDONLY);

    *damaged = 0;
    assert_true(fd >= 0);
    assert_int_equal(pool_survey(&d, fd, note_damaged, damaged, NULL), 0);
    for (uint32_t s = 0; s < d->layout.n_stripes; s++)
        n += d->stripes[s].sequence != POOL_NO_OWNER;
    pool_close(d);
    close(fd);
    return n;
}

/* The directory of a pool that goes on is behind: an agent was killed with stripes that nobody
 * adopts, since their request has ended. They are free, on flash too. */
static void test_what_nobody_adopts_is_free_on_flash(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 3);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t damaged;

    (void)state;
    random_seed(20);
    open_with_slots(&s, &config);
    s.m.stripes[1] = (struct model_stripe){true, 1, 0, 0};
    assert_int_equal(pool_scene_write(&s, s.m.stripe_slots, 20, &cost), 0);
    assert_int_equal(adopt_status(&s, &config, &why), 0); /* sequence 0's alone */
    cold_pool_close(s.pool);
    assert_int_equal(stripes_on_flash(&damaged), 1);
    config.keeps = true;
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    assert_int_equal(cold_pool_write_directory(s.pool, &why), 1); /* as an agent does at rest */
    cold_pool_close(s.pool);
    assert_int_equal(stripes_on_flash(&damaged), 0);
    assert_int_equal(damaged, 0);
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    pool_scene_close(&s);
}

/* A record of the directory is of several sectors: some are the new ones', some the old ones', when
 * power goes. Nothing that is kept depends on it; a pool that begins anew is formatted. */
static void test_a_torn_record_of_the_directory_is_written_anew(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t damaged;

    (void)state;
    random_seed(21);
    config.options.force_buffered = true; /* so that this test's write is seen */
    open_with_slots(&s, &config);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    uint8_t older[512], newer[512];
    while (cold_pool_write_directory(s.pool, &why) == 1)
        ;
    int fd = open(pool_path(), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, older, 512, (off_t)layout.directory_offset), 512);
    assert_int_equal(pool_scene_write(&s, 100, 50, &cost), 0);
    for (uint32_t i = 100; i < 150; i++) /* the model knows nothing of them */
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &i, 1, &why), 0);
    while (cold_pool_write_directory(s.pool, &why) == 1)
        ;
    assert_int_equal(pread(fd, newer, 512, (off_t)layout.directory_offset), 512);
    assert_int_equal(pwrite(fd, older, 512, (off_t)layout.directory_offset), 512);
    stripes_on_flash(&damaged);
    assert_int_equal(damaged, 1);
    assert_int_equal(adopt_status(&s, &config, &why), 0); /* 100 of the 150 */
    assert_int_equal(pool_scene_query_status(&s, &why), 0);
    cold_pool_close(s.pool);
    assert_int_equal(stripes_on_flash(&damaged), 1);
    assert_int_equal(damaged, 0);
    assert_int_equal(pwrite(fd, newer, 512, (off_t)layout.directory_offset), 512);
    stripes_on_flash(&damaged);
    assert_int_equal(damaged, 1);
    config.stamp.epoch++;
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    assert_int_equal(stripes_on_flash(&damaged), 0);
    assert_int_equal(damaged, 0);
    close(fd);
    pool_scene_close(&s);
}

/* Of a pool that goes on nothing depends on its directory: what cannot be read is written anew. A
 * pool that begins anew is formatted. */
static void test_a_sector_of_the_directory_that_cannot_be_read(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 3);
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t damaged;

    (void)state;
    random_seed(24);
    open_with_slots(&s, &config);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    cold_pool_close(s.pool);
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    while (cold_pool_write_directory(s.pool, &why) == 1)
        ;
    bad_sector = (off_t)(layout.directory_offset + layout.directory_record_bytes + 512);
    stripes_on_flash(&damaged);
    assert_int_equal(damaged, 1); /* its neighbours can be read */
    assert_int_equal(adopt_status(&s, &config, &why), 0);
    assert_int_equal(pool_scene_query_status(&s, &why), 0);
    assert_int_equal(cold_pool_write_directory(s.pool, &why), 1);
    assert_int_equal(cold_pool_write_directory(s.pool, &why), 1);
    assert_int_equal(cold_pool_write_directory(s.pool, &why), 0); /* the third was free */
    bad_sector = -1;
    cold_pool_close(s.pool);
    assert_int_equal(stripes_on_flash(&damaged), 1);
    assert_int_equal(damaged, 0);
    config.stamp.epoch++;
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    pool_scene_close(&s);
}

static void test_a_foreign_file_is_refused_untouched(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;
    static char content[10000], after[10001];

    (void)state;
    memset(content, 0, sizeof content); /* a disk image may well begin with zeros */
    strcpy(content + 9000, "somebody's thesis");
    for (int round = 0; round < 4; round++) {
        is_device = round & 1;
        write_file(content, sizeof content);
        if (round == 0) /* of a pool's size */
            assert_int_equal(truncate(pool_path(), (off_t)config.cap_bytes), 0);
        assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, pool_path()));
        FILE *f = fopen(pool_path(), "rb");
        assert_true(fread(after, 1, sizeof after, f) >= sizeof content);
        fclose(f);
        assert_memory_equal(after, content, sizeof content);
        if (round == 1)
            strcpy(content, "somebody's letter");
    }
    is_device = false;
}

static void test_a_pool_of_another_shape_is_formatted_anew(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16}, other = {2, 4, 4, 8};
    struct cold_pool_config config = pool_scene_config(&g, 4),
                            changed = pool_scene_config(&other, 4);
    struct cold_cost cost = {0};
    struct pool_scene s;

    (void)state;
    random_seed(17);
    for (int round = 0; round < 3; round++) {
        pool_scene_open(&s, round == 2 ? &changed : &config);
        assert_int_equal(cold_pool_committed(s.pool, 0, 0), 0); /* whatever was there */
        s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
        assert_int_equal(pool_scene_write(&s, 0, 5, &cost), 0);
        uint32_t slot = 3;
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, NULL), 0);
        s.m.slots[3].state = SLOT_COMMITTED;
        pool_scene_query(&s, 0, 0);
        pool_scene_close(&s);
    }
}

/* The same shape, another model: nothing that lies there is of use, neither to an epoch that keeps
 * the tiers. */
static void test_another_models_pool_gives_nothing_back(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    random_seed(22);
    open_with_slots(&s, &config);
    config.fingerprint++;
    assert_int_equal(adopt_status(&s, &config, &why), HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "made anew"));
    assert_int_equal(cold_pool_committed(s.pool, 0, 0), 0);
    pool_scene_close(&s);
    open_with_slots(&s, &config);
    config.fingerprint--;
    cold_pool_close(s.pool);
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    assert_int_equal(cold_pool_committed(s.pool, 0, 0), 0);
    pool_scene_close(&s);
}

/* Nobody may read the file any more: said, and left as it is. */
static void test_a_file_without_permission_is_refused(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;
    struct pool_scene s;
    bool root = geteuid() == 0; /* who may read anything */

    (void)state;
    if (root && seteuid(65534))
        skip(); /* the container has no other users */
    assert_int_equal(root ? seteuid(0) : 0, 0);
    random_seed(23);
    open_with_slots(&s, &config);
    cold_pool_close(s.pool);
    assert_int_equal(chmod(folder, 0711), 0); /* it lets others through: the file's mode refuses */
    for (int keeps = 0; keeps < 2; keeps++) {
        config.keeps = keeps;
        assert_int_equal(chmod(pool_path(), 0), 0);
        assert_int_equal(root ? seteuid(65534) : 0, 0);
        int status = cold_pool_open(&pool, &config, &why);
        assert_int_equal(root ? seteuid(0) : 0, 0);
        assert_int_equal(status, HILL_E_PERMISSION);
        assert_non_null(strstr(why.text, pool_path()));
        assert_non_null(strstr(why.text, "ermission denied"));
    }
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0); /* the leak sanitizer looks at its process */
    assert_int_equal(chmod(pool_path(), 0600), 0);
    assert_int_equal(cold_pool_open(&s.pool, &config, &why), 0);
    assert_int_equal(adopt_status(&s, &config, &why), 0); /* all is there */
    pool_scene_close(&s);
}

/* Of a file that was not there, and of a block device, which is of its size from the start: killed
 * after each of the writes of a format. */
static void test_a_format_that_was_killed_is_repeated(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    for (int round = 0; round < 6; round++) {
        int status;
        is_device = round & 1;
        unlink(pool_path());
        if (is_device) {
            write_file("", 0);
            assert_int_equal(truncate(pool_path(), (off_t)config.cap_bytes), 0);
        }
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            last_write = round / 2;
            cold_pool_open(&s.pool, &config, &why);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        pool_scene_open(&s, &config);
        pool_scene_close(&s);
    }
    is_device = false;
}

static void test_no_space_is_said_and_leaves_no_file(void **state)
{
    struct kv_geometry g = {1, 64, 64, 512};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;

    (void)state;
    config.cap_bytes = (uint64_t)1 << 45; /* more than a test machine's disk */
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_NOSPACE);
    assert_int_equal(access(pool_path(), F_OK), -1);
    config.cap_bytes = 5000;
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    assert_int_equal(access(pool_path(), F_OK), -1);
}

static void test_drives_of_no_kind_are_refused(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;

    (void)state;
    config.url = "tcp://nas:4000"; /* its pool is opened there */
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    config.url = "files:/tmp/x";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    config.url = "/tmp/x";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    config.url = "file:";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
}

/* Every other column of each head, as the scorer would have sent them. */
static void write_parts(const struct pool_layout *l, const struct model *m, uint32_t n)
{
    uint32_t kept = l->key_bytes / 2;
    uint16_t part[256];
    int fd = open(pool_path(), O_RDWR);
    assert_true(fd >= 0 && kept <= 256);
    for (uint32_t slot = 0; slot < n; slot++) {
        const uint8_t *entry = m->entries + (size_t)slot * kv_entry_bytes(&l->geometry);
        for (uint32_t i = 0; i < kept; i++)
            memcpy(&part[i], entry + 4 * i, sizeof part[i]);
        assert_int_equal(pwrite(fd, part, l->key_bytes, (off_t)pool_key_at(l, slot)), l->key_bytes);
    }
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* Any bit of a pool's keys, whole ones or parts, by the entry beside it. */
static void check_adopted_keys(bool parts)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 2);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t slots[100];

    random_seed(19);
    config.key_bytes = 2 * 4 * 48 / (parts ? 2 : 1);
    pool_scene_open(&s, &config);
    assert_int_equal(pool_scene_write(&s, 0, 100, &cost), 0);
    for (uint32_t i = 0; i < 100; i++)
        slots[i] = i;
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, slots, 100, &why), 0);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    if (parts)
        write_parts(&layout, &s.m, 100);
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t at = layout.key_offset + random_below(100 * config.key_bytes);
        uint32_t bit = random_below(8);
        flip_bit(at, bit);
        assert_int_equal(adopt_status(&s, &config, &why), HILL_E_DAMAGED);
        if (!strstr(why.text, "the key is damaged"))
            fail_msg("%s", why.text);
        flip_bit(at, bit);
        assert_int_equal(adopt_status(&s, &config, &why), 0);
    }
    pool_scene_close(&s);
}

static void test_a_flipped_bit_of_an_adopted_key_is_found(void **state)
{
    (void)state;
    check_adopted_keys(false);
    check_adopted_keys(true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
#define TEST_IN_MEMORY(name)                                                                       \
    cmocka_unit_test_setup_teardown(name, make_memory_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_flipped_byte_is_found_and_named),
        TEST_IN_MEMORY(test_a_flipped_byte_in_memory_is_found_and_named),
        TEST(test_a_flipped_bit_of_a_digest_is_found_and_named),
        TEST(test_a_flipped_bit_of_a_key_is_found_and_named),
        TEST(test_a_flipped_bit_of_an_adopted_key_is_found),
        TEST(test_what_nobody_adopts_is_free_on_flash),
        TEST(test_a_torn_record_of_the_directory_is_written_anew),
        TEST(test_a_sector_of_the_directory_that_cannot_be_read),
        TEST(test_a_foreign_file_is_refused_untouched),
        TEST(test_a_pool_of_another_shape_is_formatted_anew),
        TEST(test_another_models_pool_gives_nothing_back),
        TEST(test_a_file_without_permission_is_refused),
        TEST(test_a_format_that_was_killed_is_repeated),
        TEST(test_no_space_is_said_and_leaves_no_file),
        TEST(test_drives_of_no_kind_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
