/* Tests of coordinator/tiers_record.[ch] and drives_record.[ch]: what is written is read, a changed
 * byte or another run folder is none, and which settings count. Uses a folder below /tmp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/settings.h"
#include "coordinator/tiers_record.h"
#include "pool/pool.h"
#include "tests/proto/configure.h"

static char folder[64], name[96];
static struct tiers_record found;
static struct epoch_settings settings;

static int setup(void **state)
{
    const struct layout_input layout = {
        .geometry = {2, 4, 2, 32, 8}, .ctx_tokens = 128, .n_sequences = 2};
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/hill-tiers-%d", (int)getpid());
    snprintf(name, sizeof name, "%s/" TIERS_RECORD_NAME, folder);
    settings = make_settings(&layout, 7);
    settings.tiers_epoch = 5;
    return mkdir(folder, 0700);
}

static int teardown(void **state)
{
    (void)state;
    tiers_record_remove(folder);
    drives_record_remove(folder);
    return rmdir(folder);
}

static void reads_back_what_was_written(void **state)
{
    struct stat info;
    (void)state;
    tiers_record_read(folder, 1, &found);
    assert_int_equal(found.tiers_epoch, 0); /* there is none */
    assert_int_equal(tiers_record_write(folder, &settings, 33, NULL), 0);
    settings.epoch = 8;
    assert_int_equal(tiers_record_write(folder, &settings, 33, NULL), 0);
    assert_int_equal(stat(name, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    tiers_record_read(folder, 1, &found);
    assert_int_equal(found.epoch, 8);
    assert_int_equal(found.tiers_epoch, 5);
    assert_true(found.settings == tiers_record_settings(&settings));
    assert_true(found.asked == 33 && found.hot_cap_bytes == settings.hot_cap_bytes &&
                found.gpu_kv_cap_bytes == settings.gpu_kv_cap_bytes &&
                found.cold_cap_bytes == settings.cold_cap_bytes && found.drive_cap_bytes[0] == 0);
    settings.csd_drives = 3;
    settings.drives[0] = (struct epoch_drive){.attached = true, .cap_bytes = 11 << 20};
    settings.drives[1] = (struct epoch_drive){.attached = false, .cap_bytes = 12 << 20};
    settings.drives[2] = (struct epoch_drive){.attached = true, .cap_bytes = 13 << 20};
    assert_int_equal(tiers_record_write(folder, &settings, 33, NULL), 0);
    tiers_record_read(folder, 1, &found);
    assert_true(found.drive_cap_bytes[0] == 11 << 20 && found.drive_cap_bytes[1] == 0 &&
                found.drive_cap_bytes[2] == 13 << 20);
    settings.csd_drives = 0;
    memset(settings.drives, 0, sizeof settings.drives);
    tiers_record_read(folder, 2, &found); /* another run folder's */
    assert_int_equal(found.tiers_epoch, 0);
}

static void no_changed_byte_is_taken(void **state)
{
    (void)state;
    assert_int_equal(tiers_record_write(folder, &settings, 33, NULL), 0);
    for (size_t at = 0; at <= sizeof found; at++) {
        uint8_t bytes[sizeof found];
        int fd = open(name, O_RDWR);
        assert_int_equal(pread(fd, bytes, sizeof bytes, 0), sizeof bytes);
        uint8_t changed = bytes[at % sizeof bytes] ^ 16;
        if (at < sizeof bytes)
            assert_int_equal(pwrite(fd, &changed, 1, (off_t)at), 1);
        else
            assert_int_equal(ftruncate(fd, sizeof bytes - 1), 0);
        tiers_record_read(folder, 1, &found);
        assert_int_equal(found.tiers_epoch, 0);
        assert_int_equal(pwrite(fd, bytes, sizeof bytes, 0), sizeof bytes);
        close(fd);
    }
    tiers_record_read(folder, 1, &found);
    assert_int_equal(found.tiers_epoch, 5);
}

static void settings_that_size_the_tiers_count(void **state)
{
    (void)state;
    struct epoch_settings other = settings;
    uint64_t sum = tiers_record_settings(&settings);
    other.epoch = 90;
    other.tiers_epoch = 80;
    other.beta = 0.5;
    other.prefix_bytes++;       /* a share of what is free, of a store beside the tiers */
    other.prefix_cache_bytes++; /* the GPU worker's own, gone with it */
    other.prefix_gpu_cache_bytes++;
    assert_true(tiers_record_settings(&other) == sum);
    other.hot_cap_bytes++;
    assert_false(tiers_record_settings(&other) == sum);
    other = settings;
    other.csd_url = "file:/another";
    assert_false(tiers_record_settings(&other) == sum);
    other = settings;
    other.plan.n_sequences++;
    assert_false(tiers_record_settings(&other) == sum);
}

/* What was free at its start is not what is free now. */
static void sizes_that_were_measured_are_taken_over(void **state)
{
    (void)state;
    static struct settings then, now;
    struct hill_why why;
    then.epoch = settings;
    then.epoch.csd_attached = false;
    then.epoch.csd_url = "";
    then.options.hot_bytes = 64 << 20;
    now = then;
    then.epoch.gpu_kv_cap_bytes = 12 << 20;
    assert_int_equal(settings_size_like(&then, &found, &why), 0); /* nothing is left */
    const struct tiers_record left = {.tiers_epoch = 5,
                                      .asked = settings_asked(&then),
                                      .hot_cap_bytes = 1,
                                      .gpu_kv_cap_bytes = 12 << 20};
    now.epoch.gpu_kv_cap_bytes = 11 << 20;
    assert_int_equal(settings_size_like(&now, &left, &why), 0);
    assert_int_equal(now.epoch.gpu_kv_cap_bytes, 12 << 20);
    assert_int_equal(now.epoch.hot_cap_bytes, 64 << 20); /* as a person says */
    assert_null(now.like);
    now.options.gpu_kv_bytes = now.epoch.gpu_kv_cap_bytes = 11 << 20; /* asked for otherwise */
    assert_int_equal(settings_size_like(&now, &left, &why), 0);
    assert_int_equal(now.epoch.gpu_kv_cap_bytes, 11 << 20);
}

/* Of several drives each has the cap that it had, whatever is free where it lies now. */
static void each_drive_has_its_cap_again(void **state)
{
    (void)state;
    static struct settings then, now;
    struct hill_why why = {""};
    then.epoch = settings;
    then.epoch.csd_attached = true;
    then.epoch.csd_drives = 2;
    then.options.hot_bytes = 64 << 20;
    for (uint32_t d = 0; d < 2; d++) {
        then.options.csd[d].url = d ? "file:/tmp/hill-2" : "file:/tmp/hill-1";
        then.options.csd[d].length = 16;
        then.epoch.drives[d].cap_bytes = (d + 1) * (32 << 20);
    }
    now = then;
    now.epoch.drives[0].cap_bytes = 5 << 20; /* half of the disk is full */
    assert_true(settings_asked(&now) == settings_asked(&then));
    const struct tiers_record left = {.tiers_epoch = 5,
                                      .asked = settings_asked(&then),
                                      .hot_cap_bytes = 1,
                                      .gpu_kv_cap_bytes = 12 << 20,
                                      .cold_cap_bytes = 96 << 20,
                                      .drive_cap_bytes = {32 << 20, 64 << 20}};
    assert_int_equal(settings_size_like(&now, &left, &why), 0);
    assert_int_equal(now.epoch.drives[0].cap_bytes, 32 << 20);
    assert_int_equal(now.epoch.drives[1].cap_bytes, 64 << 20);
    assert_int_equal(now.epoch.cold_cap_bytes, 96 << 20);
}

/* Where it cannot be written the one of before goes: it would name what is not there. */
static void what_cannot_be_written_is_not_there(void **state)
{
    struct hill_why why = {""};
    char fresh[128];
    (void)state;
    snprintf(fresh, sizeof fresh, "%s.new", name);
    assert_int_equal(tiers_record_write(folder, &settings, 33, NULL), 0);
    assert_int_equal(mkdir(fresh, 0700), 0);
    assert_int_not_equal(tiers_record_write(folder, &settings, 33, &why), 0);
    assert_non_null(strstr(why.text, name));
    assert_int_equal(rmdir(fresh), 0);
    tiers_record_read(folder, 1, &found);
    assert_int_equal(found.tiers_epoch, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

/* ---- which drives there were (drives_record.h) ---- */

static void drives_are_those_that_were_written(void **state)
{
    (void)state;
    static struct drives_record written, read;
    struct hill_why why = {""};
    char file[128], line[128];
    snprintf(file, sizeof file, "%s/drives", folder);
    drives_record_read(folder, &read);
    assert_int_equal(read.n, 0); /* there is none */
    written.n = 3;
    written.drives[0] = (struct drive_note){.state = DRIVE_NOTE_ATTACHED,
                                            .cap_bytes = 5,
                                            .model = CSD_MODEL_SMARTSSD,
                                            .url = "file:/a path, with spaces"};
    written.drives[0].model.dram_read = 0; /* not a SmartSSD's */
    written.drives[1] = (struct drive_note){.state = DRIVE_NOTE_PLAIN, .url = "tcp://h:1"};
    assert_int_equal(drives_record_write(folder, &written, &why), 0);
    drives_record_read(folder, &read);
    assert_int_equal(read.n, 3);
    for (unsigned d = 0; d < 3; d++) {
        assert_int_equal(read.drives[d].state, written.drives[d].state);
        assert_true(read.drives[d].cap_bytes == written.drives[d].cap_bytes);
        assert_true(csd_model_same(&read.drives[d].model, &written.drives[d].model));
        assert_true(read.drives[d].model.dram_read == written.drives[d].model.dram_read);
        assert_string_equal(read.drives[d].url, written.drives[d].url);
    }
    FILE *cut = fopen(file, "re"); /* each cut at a line's end, or within one, is seen */
    assert_non_null(cut);
    assert_non_null(fgets(line, sizeof line, cut));
    long first = ftell(cut);
    fclose(cut);
    for (long bytes = first + 1; bytes > 0; bytes--) {
        assert_int_equal(truncate(file, bytes), 0);
        drives_record_read(folder, &read);
        assert_int_equal(read.n, 0);
    }
    snprintf(written.drives[1].url, sizeof written.drives[1].url, "file:/a\nb");
    assert_int_not_equal(drives_record_write(folder, &written, &why), 0);
    assert_int_equal(access(file, F_OK), -1); /* what cannot be written is not there */
}

/* A second life has the drives of the first one, whatever the options name. */
static void drives_are_attached_as_they_were(void **state)
{
    (void)state;
    static struct settings then, now;
    static struct drives_record left, again;
    struct hill_why why = {""};
    then.epoch = settings;
    then.epoch.csd_attached = false;
    then.epoch.csd_drives = 0;
    snprintf(then.csd_default_url, sizeof then.csd_default_url, "file:/tmp/hill-options");
    now = then;
    assert_false(settings_attach_left(&now, &left)); /* nothing is known */
    assert_int_equal(settings_attach(&then, 0, "file:/tmp/hill-other", NULL, &why), 0);
    assert_int_equal(settings_change_model(&then, "latency_us=9", &why), 0);
    settings_note_drives(&then, &left);
    left.drives[0].cap_bytes = 40 << 20;
    assert_true(settings_attach_left(&now, &left));
    assert_string_equal(now.epoch.csd_url, "file:/tmp/hill-other");
    assert_true(now.epoch.csd_model.latency_us == 9);
    assert_int_equal(now.epoch.cold_cap_bytes, 40 << 20); /* not what is free now */
    uint64_t tokens = now.cold_tokens;
    assert_true(tokens > 0);
    settings_detach_to_plain(&now);
    settings_note_drives(&now, &again);
    assert_true(settings_attach_left(&then, &again));
    assert_true(then.epoch.csd_plain && then.plain_tokens == tokens && then.cold_tokens == 0);
    assert_int_equal(settings_attach(&then, 0, "file:/tmp/hill-other", NULL, &why), 0);
    assert_int_equal(then.epoch.cold_cap_bytes, 40 << 20); /* with what it has, whatever is free */
    assert_false(then.epoch.csd_plain);
    settings_detach(&now, 0);
    settings_note_drives(&now, &again);
    assert_true(settings_attach_left(&then, &again));
    assert_false(then.epoch.csd_attached || then.epoch.csd_plain);
    assert_string_equal(then.epoch.csd_url, "");
}

/* A drive that comes makes all shares equal, until they are measured; one that is refused leaves
 * them as they were. */
static void an_attach_that_is_undone_leaves_the_speeds(void **state)
{
    (void)state;
    static struct settings s;
    const double speeds[LAYOUT_DRIVES_MAX] = {1, 5};
    const char *const urls[] = {"file:/tmp/hill-first", "file:/tmp/hill-second"};
    struct hill_why why = {""};
    s.epoch = settings;
    s.epoch.csd_attached = false;
    s.epoch.csd_drives = 3;
    s.options.cold_bytes = 32 << 20;
    for (uint32_t d = 0; d < 2; d++)
        assert_int_equal(settings_attach(&s, d, urls[d], NULL, &why), 0);
    settings_set_speeds(&s, speeds);
    assert_int_equal(settings_attach(&s, 2, urls[0], NULL, &why), HILL_E_INVALID);
    assert_int_equal(settings_attach(&s, 2, "file:/tmp/hill-third", NULL, &why), 0);
    assert_true(s.epoch.drives[1].speed == 0);
    settings_undo_attach(&s, 2);
    assert_false(s.epoch.drives[2].attached);
    for (uint32_t d = 0; d < 3; d++)
        assert_true(s.epoch.drives[d].speed == speeds[d]);
}

/* Requests still have entries on a detached drive: the drive of that pool may come, by whatever
 * name. */
static void one_that_is_read_still_is_known_by_its_pool(void **state)
{
    (void)state;
    const struct kv_geometry g = {2, 4, 2, 32, 8};
    const char *const is_not[] = {"", "host CPU, pread", "host CPU, pool no"};
    static struct settings s;
    struct pool_layout layout;
    struct pool_directory *d;
    struct hill_why why = {""};
    char file[96], url[112], said[112], uuid[POOL_UUID_TEXT];
    uint32_t drive;
    snprintf(file, sizeof file, "%s/pool", folder);
    snprintf(url, sizeof url, "file:%s", file);
    s.epoch = settings;
    s.epoch.csd_drives = 0;
    s.epoch.csd_attached = s.epoch.csd_plain = true;
    s.epoch.csd_model = (struct csd_model){.on = true, .latency_us = 9};
    s.epoch.cold_cap_bytes = 40 << 20;
    snprintf(s.csd_url, sizeof s.csd_url, "file:/tmp/hill-gone");
    int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_int_equal(
        pool_layout_with_keys(&layout, &g, 0, pool_bytes_with_keys(&g, 0, 1, 64), &why), 0);
    assert_int_equal(pool_format(fd, &layout, 1, &why), 0);
    assert_int_equal(pool_open(&d, fd, 1, &why), 0);
    snprintf(said, sizeof said, "host CPU, pool %s", pool_uuid_print(uuid, d->identity.uuid));
    pool_close(d);
    for (unsigned i = 0; i < sizeof is_not / sizeof *is_not; i++)
        assert_int_equal(settings_may_attach(&s, url, is_not[i], &drive, &why), HILL_E_BUSY);
    assert_int_equal(settings_may_attach(&s, "file:/tmp/hill-none", said, &drive, &why),
                     HILL_E_BUSY);
    assert_int_equal(settings_may_attach(&s, url, said, &drive, &why), 0);
    assert_int_equal(settings_attach(&s, drive, url, NULL, &why), 0);
    assert_string_equal(s.epoch.csd_url, url);
    assert_true(s.epoch.csd_model.latency_us == 9);
    assert_int_equal(s.epoch.cold_cap_bytes, 40 << 20);
    s.epoch.csd_plain = true;
    snprintf(s.csd_url, sizeof s.csd_url, "file:/tmp/hill-gone");
    assert_int_equal(pwrite(fd, "", 1, 200), 1); /* of zeros: as it was */
    assert_int_equal(settings_may_attach(&s, url, said, &drive, &why), 0);
    assert_int_equal(pwrite(fd, "x", 1, 200), 1); /* a superblock that is damaged is no pool's */
    assert_int_equal(settings_may_attach(&s, url, said, &drive, &why), HILL_E_BUSY);
    close(fd);
    unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(reads_back_what_was_written),
        T(no_changed_byte_is_taken),
        T(settings_that_size_the_tiers_count),
        T(sizes_that_were_measured_are_taken_over),
        T(each_drive_has_its_cap_again),
        T(what_cannot_be_written_is_not_there),
        T(drives_are_those_that_were_written),
        T(drives_are_attached_as_they_were),
        T(an_attach_that_is_undone_leaves_the_speeds),
        T(one_that_is_read_still_is_known_by_its_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
