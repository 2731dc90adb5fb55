/*
 * tests/shm/test_segment.c - shm/segment: creation, what attach refuses, a full /dev/shm, and the
 * removal of what dead creators left.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/huge_pages.h"
#include "shm/segment.h"
#include "tests/shm/run_id.h"

#define FINGERPRINT 0x1122334455667788u
#define EPOCH       3u
#define PAYLOAD     10000u

/* of this process, so that test runs side by side do not meet */
static uint64_t run_id;

static void name_of(char *name, const char *what)
{
    shm_segment_name(name, run_id, EPOCH, what);
}

static bool exists(const char *name)
{
    int fd = shm_open(name, O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static int set_up(void **state)
{
    (void)state;
    run_id = test_run_id();
    return 0;
}

/* nothing of the tests stays, whatever failed: all names that the tests use */
static int clean(void **state)
{
    (void)state;
    static const char *const whats[] = {"a", "b", "big", "live", "dead", "half", "short", "busy"};
    char name[SHM_NAME_BYTES];
    for (unsigned i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        name_of(name, whats[i]);
        shm_segment_unlink(name);
    }
    return 0;
}

static void names_hold_run_epoch_and_purpose(void **state)
{
    (void)state;
    char name[SHM_NAME_BYTES];
    shm_segment_name(name, 0xabc, 7, "rings");
    assert_string_equal(name, "/hill-0000000000000abc-7-rings");
    shm_segment_name(name, UINT64_MAX, UINT32_MAX, "0123456789012345678901234567890123456789");
    assert_int_equal(strlen(name), 74);
    shm_segment_name(name, 1, 1, "01234567890123456789012345678901234567890");
    assert_string_equal(name, "");
    shm_segment_name(name, 1, 1, "a/b");
    assert_string_equal(name, "");
}

static void bad_names_are_invalid(void **state)
{
    (void)state;
    struct shm_segment segment;
    struct hill_why why;
    static const char *const bad[] = {"", "/", "hill", "/a/b"};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(shm_segment_create(&segment, bad[i], 1, 0, 0, &why), HILL_E_INVALID);
        assert_int_equal(shm_segment_attach(&segment, bad[i], 0, 0, &why), HILL_E_INVALID);
    }
}

static uint64_t pages_of(const struct shm_segment *segment)
{
    struct stat file;
    int fd = shm_open(segment->name, O_RDONLY, 0);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &file), 0);
    close(fd);
    return (uint64_t)file.st_blocks * 512 / 4096;
}

/* Pages come when they are asked for, and not where others would have none left. */
static void an_empty_segment_is_filled_bit_by_bit(void **state)
{
    (void)state;
    struct shm_segment segment, other;
    struct hill_why why;
    char name[SHM_NAME_BYTES];
    name_of(name, "a");
    assert_int_equal(shm_segment_create_empty(&segment, name, 64 * 4096, FINGERPRINT, EPOCH, NULL),
                     0);
    assert_int_equal(pages_of(&segment), 2); /* the header, and what says what there is */
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, NULL), 0);
    assert_int_equal(shm_segment_payload_bytes(&other), 64 * 4096);
    assert_int_equal(shm_segment_fill(&other, 9 * 4096 + 1, 0, &why), 0);
    assert_int_equal(pages_of(&segment), 11);
    assert_int_equal(shm_segment_fill(&other, 4096, UINT64_MAX / 2, &why), 0); /* they are there */
    assert_int_equal(shm_segment_fill(&other, 20 * 4096, UINT64_MAX / 2, &why), HILL_E_NOSPACE);
    assert_int_equal(shm_segment_fill(&other, 64 * 4096 + 1, 0, &why), HILL_E_NOSPACE);
    assert_int_equal(shm_segment_fill(&other, UINT64_MAX, 0, &why), HILL_E_NOSPACE);
    assert_int_equal(pages_of(&segment), 11);
    assert_int_equal(shm_segment_fill(&other, 64 * 4096, 0, &why), 0);
    ((uint8_t *)shm_segment_payload(&other))[64 * 4096 - 1] = 7;
    assert_int_equal(((uint8_t *)shm_segment_payload(&segment))[64 * 4096 - 1], 7);
    shm_segment_detach(&other);
    shm_segment_detach(&segment);
    shm_segment_unlink(name);
}

static void what_one_writes_the_other_reads(void **state)
{
    (void)state;
    struct shm_segment creator, other;
    char name[SHM_NAME_BYTES];
    name_of(name, "a");
    assert_int_equal(shm_segment_create(&creator, name, PAYLOAD, FINGERPRINT, EPOCH, NULL), 0);
    assert_int_equal(shm_segment_payload_bytes(&creator), PAYLOAD);
    assert_int_equal((uintptr_t)shm_segment_payload(&creator) % 4096, 0);
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, NULL), 0);
    assert_int_equal(shm_segment_payload_bytes(&other), PAYLOAD);
    uint8_t *in = shm_segment_payload(&creator), *out = shm_segment_payload(&other);
    assert_ptr_not_equal(in, out);
    for (uint32_t i = 0; i < PAYLOAD; i++) {
        assert_int_equal(out[i], 0);
        in[i] = (uint8_t)(i * 7 + 1);
        assert_int_equal(out[i], (uint8_t)(i * 7 + 1));
    }
    shm_segment_detach(&creator);
    shm_segment_detach(&creator);
    assert_null(creator.base);
    assert_int_equal(shm_segment_unlink(name), 0);
    assert_int_equal(out[1], 8); /* the mapping outlives the name */
    shm_segment_detach(&other);
    assert_int_equal(shm_segment_unlink(name), 0);
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, NULL), HILL_E_PEER_GONE);
    assert_null(other.base);
}

static void pages_are_allocated_at_creation(void **state)
{
    (void)state;
    struct shm_segment segment;
    struct stat st;
    char name[SHM_NAME_BYTES];
    name_of(name, "a");
    assert_int_equal(shm_segment_create(&segment, name, 1 << 20, FINGERPRINT, EPOCH, NULL), 0);
    int fd = shm_open(name, O_RDONLY, 0);
    assert_int_equal(fstat(fd, &st), 0);
    close(fd);
    assert_int_equal(st.st_size, (1 << 20) + 4096);
    assert_true(st.st_blocks * 512 >= st.st_size);
    assert_int_equal(st.st_mode & 0777, 0600);
    int placed = shm_segment_place(&segment);
    assert_in_range(placed, 0, 3);
    shm_segment_detach(&segment);
}

#define HUGE_PAYLOAD (8u << 20)

/* A /dev/shm of this process alone which gives huge pages where they are advised. */
static bool own_folder_with_huge_pages(void)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, "huge=advise,size=64m"))
        return false;
    int fd = shm_open("/plain", O_RDWR | O_CREAT, 0600);
    bool sized = fd >= 0 && ftruncate(fd, HUGE_PAYLOAD) == 0;
    void *base = sized ? mmap(NULL, HUGE_PAYLOAD, PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (base == MAP_FAILED || madvise(base, HUGE_PAYLOAD, MADV_HUGEPAGE))
        return false;
    memset(base, 1, HUGE_PAYLOAD);
    bool given = huge_pages_mapped(base) != 0;
    munmap(base, HUGE_PAYLOAD);
    close(fd);
    shm_unlink("/plain");
    return given;
}

/* Sum of the payload's bytes, so that it is mapped. */
static uint64_t sum_of(const struct shm_segment *segment)
{
    const uint8_t *payload = shm_segment_payload(segment);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < shm_segment_payload_bytes(segment); i++)
        sum += payload[i];
    return sum;
}

enum { SKIPPED = 77 };

/* In a child, which no other test shares a folder with; the number is that of what is wrong. */
static int take_huge_pages(void)
{
    struct shm_segment mine, other, large;
    if (!own_folder_with_huge_pages())
        return SKIPPED;
    if (shm_segment_create(&mine, "/hill-huge", HUGE_PAYLOAD, FINGERPRINT, EPOCH, NULL))
        return 1;
    if (sum_of(&mine) != 0 || huge_pages_mapped(mine.base) == 0)
        return 2;
    memset(shm_segment_payload(&mine), 3, HUGE_PAYLOAD);
    if (shm_segment_attach(&other, "/hill-huge", FINGERPRINT, EPOCH, NULL))
        return 3;
    if (sum_of(&other) != UINT64_C(3) * HUGE_PAYLOAD || huge_pages_mapped(other.base) == 0)
        return 4;
    if (shm_segment_create(&large, "/hill-large", UINT64_C(64) << 20, FINGERPRINT, EPOCH, NULL) !=
            HILL_E_NOSPACE ||
        large.base || exists("/hill-large"))
        return 5;
    return 0;
}

static void huge_pages_are_taken_where_they_are_given(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(take_huge_pages());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        skip(); /* no right to mount, or no huge pages for shared memory */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_second_create_is_busy(void **state)
{
    (void)state;
    struct shm_segment first, second;
    struct hill_why why;
    char name[SHM_NAME_BYTES];
    name_of(name, "busy");
    assert_int_equal(shm_segment_create(&first, name, PAYLOAD, FINGERPRINT, EPOCH, &why), 0);
    ((uint8_t *)shm_segment_payload(&first))[0] = 42;
    assert_int_equal(shm_segment_create(&second, name, PAYLOAD, FINGERPRINT, EPOCH, &why),
                     HILL_E_BUSY);
    assert_non_null(strstr(why.text, name));
    assert_null(second.base);
    assert_int_equal(shm_segment_attach(&second, name, FINGERPRINT, EPOCH, &why), 0);
    assert_int_equal(((uint8_t *)shm_segment_payload(&second))[0], 42);
    shm_segment_detach(&first);
    shm_segment_detach(&second);
}

/* ---- what attach refuses ---------------------------------------------------------------- */

static void attach_refuses_what_is_open_to_others(void **state)
{
    (void)state;
    struct shm_segment segment, other;
    char name[SHM_NAME_BYTES];
    name_of(name, "a");
    assert_int_equal(shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL), 0);
    int fd = shm_open(name, O_RDWR, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fchmod(fd, i ? 0600 : 0604), 0);
        assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, NULL),
                         i ? 0 : HILL_E_PERMISSION);
        shm_segment_detach(&other);
    }
    if (fchown(fd, 65534, 65534) == 0) /* as root, with other users */
        assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, NULL),
                         HILL_E_PERMISSION);
    close(fd);
    shm_segment_detach(&segment);
}

static void assert_refused(const char *name, int code, const char *word)
{
    struct shm_segment segment;
    struct hill_why why = {""};
    assert_int_equal(shm_segment_attach(&segment, name, FINGERPRINT, EPOCH, &why), code);
    assert_null(segment.base);
    assert_non_null(strstr(why.text, word));
    assert_non_null(strstr(why.text, name));
    assert_null(strchr(why.text, '\n'));
}

static void attach_checks_the_header(void **state)
{
    (void)state;
    struct shm_segment segment, other;
    struct hill_why why;
    char name[SHM_NAME_BYTES];
    name_of(name, "a");
    assert_int_equal(shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL), 0);
    struct shm_segment_header *header = segment.base;
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT + 1, EPOCH, &why),
                     HILL_E_UNSUPPORTED);
    assert_non_null(strstr(why.text, "fingerprint"));
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH + 1, &why),
                     HILL_E_DAMAGED);
    assert_non_null(strstr(why.text, "epoch"));
    header->layout_version++;
    assert_refused(name, HILL_E_UNSUPPORTED, "version");
    header->layout_version--;
    header->total_bytes++;
    assert_refused(name, HILL_E_DAMAGED, "bytes");
    header->total_bytes--;
    atomic_store_explicit(&header->magic, 0, memory_order_relaxed);
    assert_refused(name, HILL_E_DAMAGED, "magic");
    atomic_store_explicit(&header->magic, SHM_SEGMENT_MAGIC, memory_order_relaxed);
    assert_int_equal(shm_segment_attach(&other, name, FINGERPRINT, EPOCH, &why), 0);
    shm_segment_detach(&other);
    shm_segment_detach(&segment);
}

static void attach_refuses_truncated_segments(void **state)
{
    (void)state;
    struct shm_segment segment;
    char name[SHM_NAME_BYTES];
    name_of(name, "short");
    assert_int_equal(shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL), 0);
    shm_segment_detach(&segment);
    static const struct {
        off_t bytes;
        const char *word;
    } cuts[] = {{4096 + PAYLOAD - 1, "bytes"}, {4096, "bytes"}, {4095, "short"}, {0, "short"}};
    for (unsigned i = 0; i < 4; i++) {
        int fd = shm_open(name, O_RDWR, 0);
        assert_int_equal(ftruncate(fd, cuts[i].bytes), 0);
        close(fd);
        assert_refused(name, HILL_E_DAMAGED, cuts[i].word);
    }
}

/* ---- no room ---------------------------------------------------------------------------- */

static void too_large_leaves_nothing(void **state)
{
    (void)state;
    struct shm_segment segment;
    struct statvfs vfs;
    struct hill_why why;
    char name[SHM_NAME_BYTES];
    name_of(name, "big");
    assert_int_equal(shm_segment_create(&segment, name, UINT64_MAX, 0, 0, &why), HILL_E_NOSPACE);
    assert_int_equal(shm_segment_create(&segment, name, INT64_MAX - 4096, 0, 0, &why),
                     HILL_E_NOSPACE);
    assert_false(exists(name));
    assert_int_equal(statvfs("/dev/shm", &vfs), 0);
    if (vfs.f_blocks == 0) /* a /dev/shm without a limit */
        return;
    uint64_t all = (uint64_t)vfs.f_blocks * vfs.f_frsize;
    assert_int_equal(shm_segment_create(&segment, name, all, 0, 0, &why), HILL_E_NOSPACE);
    assert_null(segment.base);
    assert_false(exists(name));
    assert_non_null(strstr(why.text, name));
}

/* ---- reaping ---------------------------------------------------------------------------- */

/* A child that creates `name`, says so and lives on until it is killed. */
static pid_t start_creator(const char *name)
{
    int pipes[2];
    char byte = 1;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct shm_segment segment;
        byte = shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL) != 0;
        if (write(pipes[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    assert_int_equal(byte, 0);
    close(pipes[0]);
    close(pipes[1]);
    return child;
}

static void put_file(const char *name, const void *bytes, size_t size)
{
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static void reap_removes_the_dead_and_keeps_the_living(void **state)
{
    (void)state;
    char live[SHM_NAME_BYTES], dead[SHM_NAME_BYTES], half[SHM_NAME_BYTES], cut[SHM_NAME_BYTES];
    char foreign[SHM_NAME_BYTES];
    struct shm_segment segment;
    name_of(live, "live");
    name_of(dead, "dead");
    name_of(half, "half");
    name_of(cut, "short");
    shm_segment_name(foreign, run_id + 1, EPOCH, "a");
    pid_t living = start_creator(live), killed = start_creator(dead);
    put_file(half, "", 0); /* killed between creating and publishing */
    put_file(cut, "garbage, no header", 18);
    put_file(foreign, "", 0); /* another run folder's: none of our business */
    assert_int_equal(kill(killed, SIGKILL), 0);
    /* a zombie until it is waited for: dead all the same */
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(shm_segment_reap(run_id, EPOCH), 0); /* they are wanted still */
    assert_true(exists(dead));
    assert_int_equal(shm_segment_reap(run_id, EPOCH + 1), 3);
    assert_false(exists(dead));
    assert_false(exists(half));
    assert_false(exists(cut));
    assert_true(exists(foreign));
    assert_int_equal(shm_segment_attach(&segment, live, FINGERPRINT, EPOCH, NULL), 0);
    shm_segment_detach(&segment);
    assert_int_equal(shm_segment_reap(run_id, 0), 0);
    waitpid(killed, NULL, 0);
    assert_int_equal(kill(living, SIGKILL), 0);
    waitpid(living, NULL, 0);
    assert_int_equal(shm_segment_reap(run_id, 0), 1);
    assert_false(exists(live));
    assert_int_equal(shm_segment_unlink(foreign), 0);
}

static void a_recycled_pid_is_not_the_creator(void **state)
{
    (void)state;
    struct shm_segment segment;
    char name[SHM_NAME_BYTES];
    name_of(name, "b");
    assert_int_equal(shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL), 0);
    assert_int_equal(shm_segment_reap(run_id, 0), 0);
    ((struct shm_segment_header *)segment.base)->creator_start--;
    assert_int_equal(shm_segment_reap(run_id, 0), 1);
    assert_false(exists(name));
    shm_segment_detach(&segment);
}

/* A test that creates a segment and ends by this signal, or by itself (0); its wait status. */
static int run_leaver(int signal, char *name)
{
    int status, names[2];
    assert_int_equal(pipe(names), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct shm_segment segment;
        shm_segment_name(name, test_run_id(), EPOCH, "left");
        if (shm_segment_create(&segment, name, PAYLOAD, FINGERPRINT, EPOCH, NULL) ||
            write(names[1], name, SHM_NAME_BYTES) != SHM_NAME_BYTES)
            _exit(3);
        if (signal)
            raise(signal);
        close(2); /* what it says is of no interest */
        exit(0);
    }
    assert_int_equal(read(names[0], name, SHM_NAME_BYTES), SHM_NAME_BYTES);
    close(names[0]);
    close(names[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void what_a_killed_test_leaves_goes_with_it(void **state)
{
    (void)state;
    char name[SHM_NAME_BYTES] = "";
    int status = run_leaver(SIGKILL, name);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (int64_t end = clock_deadline_ms(20000); exists(name) && clock_now_ns() < end;)
        usleep(1000);
    assert_false(exists(name));
}

static void what_a_test_leaves_at_its_end_is_its_failure(void **state)
{
    (void)state;
    char name[SHM_NAME_BYTES] = "";
    int status = run_leaver(0, name);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_false(exists(name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_hold_run_epoch_and_purpose),
        cmocka_unit_test(bad_names_are_invalid),
        cmocka_unit_test_teardown(an_empty_segment_is_filled_bit_by_bit, clean),
        cmocka_unit_test_teardown(what_one_writes_the_other_reads, clean),
        cmocka_unit_test_teardown(pages_are_allocated_at_creation, clean),
        cmocka_unit_test(huge_pages_are_taken_where_they_are_given),
        cmocka_unit_test_teardown(a_second_create_is_busy, clean),
        cmocka_unit_test_teardown(attach_checks_the_header, clean),
        cmocka_unit_test_teardown(attach_refuses_what_is_open_to_others, clean),
        cmocka_unit_test_teardown(attach_refuses_truncated_segments, clean),
        cmocka_unit_test_teardown(too_large_leaves_nothing, clean),
        cmocka_unit_test_teardown(reap_removes_the_dead_and_keeps_the_living, clean),
        cmocka_unit_test_teardown(a_recycled_pid_is_not_the_creator, clean),
        cmocka_unit_test(what_a_killed_test_leaves_goes_with_it),
        cmocka_unit_test(what_a_test_leaves_at_its_end_is_its_failure),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
