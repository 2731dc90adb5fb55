/*
 * tests/base/test_base.c - base/error, base/process, base/clock, base/in_line, base/log,
 * base/json_text, base/whole_io and base/xxh3.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/grow.h"
#include "base/huge_pages.h"
#include "base/in_line.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/process.h"
#include "base/whole_io.h"
#include "base/xxh3.h"

/* ---- error ------------------------------------------------------------------------------ */

static void every_code_has_words_and_an_exit_code(void **state)
{
    (void)state;
    /* the exit codes of docs/interface.md, written down here once more */
    static const int exits[] = {0, 100, 111, 111, 111, 111, 111, 1, 1, 111, 111, 1, 100, 1, 130, 1};
    for (int i = 0; i <= 15; i++) {
        assert_int_equal(hill_exit_code(-i), exits[i]);
        assert_string_not_equal(hill_strerror(-i), "unknown error");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hill_strerror(-i), hill_strerror(-k));
    }
    assert_int_equal(HILL_E_PROTOCOL, -15);
    assert_string_equal(hill_strerror(-1000), "unknown error");
    assert_string_equal(hill_strerror(1), "unknown error");
    assert_int_equal(hill_exit_code(-1000), 1);
}

static void errno_becomes_a_code(void **state)
{
    (void)state;
    static const struct {
        int err, code;
    } known[] = {{0, HILL_OK},
                 {ENOMEM, HILL_E_NOMEM},
                 {ENOSPC, HILL_E_NOSPACE},
                 {EACCES, HILL_E_PERMISSION},
                 {EPERM, HILL_E_PERMISSION},
                 {ENODEV, HILL_E_NODEV},
                 {EAGAIN, HILL_E_WOULD_BLOCK},
                 {ETIMEDOUT, HILL_E_TIMEOUT},
                 {EINVAL, HILL_E_INVALID},
                 {EIO, HILL_E_IO},
                 {99999, HILL_E_IO}};
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(hill_from_errno(known[i].err), known[i].code);
}

static void a_failure_says_why(void **state)
{
    (void)state;
    struct hill_why why;
    assert_int_equal(hill_fail(&why, HILL_E_IO, "read %s: %d", "x", 7), HILL_E_IO);
    assert_string_equal(why.text, "read x: 7");
    assert_int_equal(hill_fail(NULL, HILL_E_NOMEM, "nobody listens"), HILL_E_NOMEM);
    /* what is quoted cannot end the line, nor colour it; found by tests/fuzz/fuzz_options.c */
    hill_fail(&why, HILL_E_INVALID, "unknown option %s", "--a\nb\x1b[1mc\r\x7f\xc3\xa9");
    assert_string_equal(why.text, "unknown option --a b?[1mc ?\xc3\xa9");
    assert_int_equal(hill_fail(&why, HILL_E_IO, "%01000d", 1), HILL_E_IO);
    assert_int_equal(strlen(why.text), sizeof why.text - 1);
}

/* ---- process ---------------------------------------------------------------------------- */

static void usage_grows_with_work_and_memory(void **state)
{
    (void)state;
    uint64_t cpu_before, cpu_after = 0, rss_before, rss_after;
    const size_t bytes = (size_t)16 << 20;
    process_usage(&cpu_before, &rss_before);
    uint8_t *memory = malloc(bytes);
    assert_non_null(memory);
    int64_t end = clock_deadline_ms(10000);
    for (unsigned i = 1; cpu_after < cpu_before + 50 && clock_now_ns() < end; i++) {
        memset(memory, (int)i, bytes);
        process_usage(&cpu_after, &rss_after);
    }
    assert_true(cpu_after >= cpu_before + 50);
    assert_true(rss_after >= rss_before + bytes / 2);
    free(memory);
}

static void closed_standard_descriptors_are_opened(void **state)
{
    (void)state;
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        int next = dup(STDERR_FILENO);
        close(next);
        close(STDIN_FILENO);
        close(STDERR_FILENO);
        process_open_standard();
        bool opened = fcntl(STDIN_FILENO, F_GETFD) == 0 && fcntl(STDERR_FILENO, F_GETFD) == 0;
        _exit(opened && dup(STDERR_FILENO) == next ? 0 : 1); /* and nothing else stays open */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void this_process_is_alive(void **state)
{
    (void)state;
    int32_t pid = (int32_t)getpid();
    uint64_t start = process_start_time(pid);
    assert_true(start > 0);
    assert_int_equal(process_start_time(pid), start);
    assert_true(process_alive(pid, start));
    assert_false(process_alive(pid, start + 1));
    assert_false(process_alive(pid, 0));
    /* started before now, and after boot */
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    assert_true(start <= ((uint64_t)up.tv_sec + 1) * (uint64_t)sysconf(_SC_CLK_TCK));
}

static void a_process_is_killed_by_pid_and_start_time(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    uint64_t start = process_start_time(child);
    assert_true(process_kill(child, start + 1, 0)); /* that one is gone: nobody is killed */
    assert_true(process_alive(child, start));
    assert_true(process_kill(child, start, 10000));
    assert_false(process_alive(child, start));
    waitpid(child, NULL, 0);
    assert_true(process_kill(child, start, 0));
}

static void no_process_has_no_start_time(void **state)
{
    (void)state;
    static const int32_t pids[] = {-1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(process_start_time(pids[i]), 0);
        assert_false(process_alive(pids[i], 0));
    }
}

static void a_zombie_is_dead(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        for (;;)
            pause();
    uint64_t start = process_start_time((int32_t)child);
    assert_true(process_alive((int32_t)child, start));
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_false(process_alive((int32_t)child, start));
    waitpid(child, NULL, 0);
    assert_false(process_alive((int32_t)child, start));
}

static void brackets_in_a_name_do_not_confuse(void **state)
{
    (void)state;
    char old[16];
    int32_t pid = (int32_t)getpid();
    uint64_t start = process_start_time(pid);
    assert_int_equal(prctl(PR_GET_NAME, old), 0);
    assert_int_equal(prctl(PR_SET_NAME, "a) Z 1 (2 ) b"), 0);
    uint64_t renamed = process_start_time(pid);
    bool alive = process_alive(pid, start);
    prctl(PR_SET_NAME, old);
    assert_int_equal(renamed, start);
    assert_true(alive);
}

/* ---- clock ------------------------------------------------------------------------------ */

static void time_goes_on(void **state)
{
    (void)state;
    int64_t before = clock_now_ns();
    int64_t deadline = clock_deadline_ms(10);
    nanosleep(&(struct timespec){.tv_nsec = 10500000}, NULL);
    int64_t after = clock_now_ns();
    assert_true(after - before >= 10500000);
    assert_true(deadline >= before + 10000000 && deadline <= after);
    assert_true(CLOCK_NEVER > after);
    assert_int_equal(CLOCK_MS(3), 3000000);
}

static void who_stands_in_line_waits_as_long_as_asked(void **state)
{
    (void)state;
    struct in_line line = in_line(0);
    assert_false(in_line_stand(&line));
    /* unless another thread has had this CPU for long: then it may be over sooner */
    for (int tries = 0; tries < 100; tries++) {
        int64_t began = clock_now_ns(), longest = 0, before = began;
        line = in_line(CLOCK_MS(5));
        while (in_line_stand(&line)) {
            longest = line.now - before > longest ? line.now - before : longest;
            before = line.now;
        }
        longest = line.now - before > longest ? line.now - before : longest;
        if (longest < IN_LINE_MOST_NS) {
            assert_true(line.now - began >= CLOCK_MS(5));
            return;
        }
    }
    skip(); /* others had this CPU again and again */
}

/* ---- log -------------------------------------------------------------------------------- */

/* What one call of hill_log writes to stderr; returns its length. */
static ssize_t captured(char *text, size_t size, enum hill_log_level level, const char *word)
{
    int pipes[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe2(pipes, O_NONBLOCK), 0);
    dup2(pipes[1], STDERR_FILENO);
    hill_log(level, "open %s: %d", word, 5);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipes[1]);
    ssize_t got = read(pipes[0], text, size - 1);
    close(pipes[0]);
    text[got > 0 ? got : 0] = '\0';
    return got;
}

static void log_lines_name_time_process_and_level(void **state)
{
    (void)state;
    char text[4096];
    int hour, minute, second, used = 0;
    unsetenv("JOURNAL_STREAM");
    hill_log_init("tester", HILL_LOG_WARN);
    captured(text, sizeof text, HILL_LOG_ERROR, "pool");
    assert_int_equal(sscanf(text, "%2d:%2d:%2d %n", &hour, &minute, &second, &used), 3);
    assert_string_equal(text + used, "tester: error: open pool: 5\n");
    struct stat is;
    char own[64];
    assert_int_equal(fstat(STDERR_FILENO, &is), 0);
    for (int other = 1; other >= 0; other--) { /* inherited with another stderr, or this one's */
        snprintf(own, sizeof own, "%ju:%ju", (uintmax_t)is.st_dev, (uintmax_t)is.st_ino + other);
        setenv("JOURNAL_STREAM", own, 1);
        hill_log_init("tester", HILL_LOG_WARN);
        captured(text, sizeof text, HILL_LOG_WARN, "pool");
        assert_int_equal(sscanf(text, "%2d:%2d:%2d ", &hour, &minute, &second), other ? 3 : 0);
    }
    unsetenv("JOURNAL_STREAM");
    assert_string_equal(text, "tester: warn: open pool: 5\n");
    assert_int_equal(captured(text, sizeof text, HILL_LOG_INFO, "pool"), 0);
    assert_int_equal(captured(text, sizeof text, HILL_LOG_DEBUG, "pool"), 0);
}

static void a_long_line_is_cut_and_ended(void **state)
{
    (void)state;
    char text[4096], word[3000];
    memset(word, 'w', sizeof word);
    word[sizeof word - 1] = '\0';
    hill_log_init("tester", HILL_LOG_INFO);
    ssize_t got = captured(text, sizeof text, HILL_LOG_INFO, word);
    assert_in_range(got, 500, 1024);
    assert_int_equal(strlen(text), got);
    assert_int_equal(text[got - 1], '\n');
    assert_int_equal(strchr(text, '\n') - text, got - 1);
}

static void levels_are_parsed(void **state)
{
    (void)state;
    enum hill_log_level level = HILL_LOG_ERROR;
    assert_int_equal(hill_log_parse_level("debug", &level), 0);
    assert_int_equal(level, HILL_LOG_DEBUG);
    assert_int_equal(hill_log_parse_level("error", &level), 0);
    assert_int_equal(level, HILL_LOG_ERROR);
    assert_int_equal(hill_log_parse_level("Error", &level), HILL_E_INVALID);
    assert_int_equal(hill_log_parse_level("", &level), HILL_E_INVALID);
    assert_int_equal(level, HILL_LOG_ERROR);
}

/* ---- whole reads and writes --------------------------------------------------------------- */

static void a_read_ends_at_the_files_end_and_a_full_device_is_named(void **state)
{
    char bytes[16] = "0123456789";
    FILE *file = tmpfile();
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    (void)state;
    assert_non_null(file);
    assert_int_equal(whole_write(fileno(file), bytes, 10, 3), 0);
    memset(bytes, 'x', sizeof bytes);
    assert_int_equal(whole_read(fileno(file), bytes, sizeof bytes, 7), 6);
    assert_memory_equal(bytes, "456789xx", 8);
    assert_int_equal(whole_read(fileno(file), bytes, 4, 13), 0);
    fclose(file);
    assert_int_equal(whole_write(full, bytes, 1, 0), HILL_E_NOSPACE);
    assert_int_equal(errno, ENOSPC);
    assert_true(whole_read(full, bytes, 1, 0) < 0); /* it is open for writing */
    close(full);
}

static void an_array_grows_no_further_than_its_room_can_say(void **state)
{
    (void)state;
    uint32_t *items = NULL;
    uint8_t room = 0;
    uint64_t most = 0, too_many = (UINT64_C(1) << 63) + 1;
    assert_true(GROW(items, room, 100));
    assert_int_equal(room, 128);
    assert_false(GROW(items, room, 200)); /* 256 items */
    assert_int_equal(room, 128);
    free(items);
    items = NULL;
    assert_false(GROW(items, most, too_many));
    assert_false(GROW(items, most, too_many - 1)); /* more bytes than there are */
    assert_null(items);
    assert_int_equal(most, 0);
}

/* ---- huge pages -------------------------------------------------------------------------- */

/* The oracle: does a mapping of this process that is advised get huge pages at all? */
static bool advice_gives_huge_pages(void)
{
    uint64_t bytes = 2 * HUGE_PAGE_BYTES;
    void *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    madvise(all, bytes, MADV_HUGEPAGE);
    memset(all, 1, bytes);
    bool given = huge_pages_mapped(all) != 0;
    munmap(all, bytes);
    return given;
}

static void private_memory_lies_on_huge_pages(void **state)
{
    (void)state;
    uint64_t taken = 0, wanted = 2 * HUGE_PAGE_BYTES + 5000;
    uint8_t *pages = huge_pages_take(wanted, &taken);
    assert_non_null(pages);
    assert_int_equal((uintptr_t)pages % HUGE_PAGE_BYTES, 0);
    assert_in_range(taken, wanted, wanted + 4095);
    for (uint64_t i = 0; i < taken; i += 1000)
        assert_int_equal(pages[i], 0);
    memset(pages, 7, taken);
    if (advice_gives_huge_pages())
        assert_in_range(huge_pages_mapped(pages + 4096), 1, taken);
    huge_pages_give(pages, taken);
    assert_int_equal(huge_pages_mapped(NULL), 0);
    huge_pages_give(NULL, 0);
    assert_null(huge_pages_take(UINT64_MAX - 10, &taken));
    assert_null(huge_pages_take(INT64_MAX / 4096 * 4096 - HUGE_PAGE_BYTES, &taken));
}

/* ---- xxh3 ------------------------------------------------------------------------------- */

/* As the library has it for every x86-64; of each length up to where all its ways of hashing have
 * been, then of pages, wherever they begin. */
static void xxh3_is_the_same_by_wide_vectors(void **state)
{
    static uint8_t bytes[3 * 4096 + 64];
    uint64_t word = 1;
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(word >> 56);
    }
    for (size_t n = 0; n <= 2100; n++)
        assert_true(xxh3_64(bytes + n % 64, n) == XXH3_64bits(bytes + n % 64, n));
    for (size_t from = 0; from < 64; from++)
        for (size_t n = 4096; n <= sizeof bytes - 64; n += 4096)
            assert_true(xxh3_64(bytes + from, n) == XXH3_64bits(bytes + from, n));
    assert_true(xxh3_64(bytes, 4096) != xxh3_64(bytes + 1, 4096));
}

/* ---- json_text ---------------------------------------------------------------------------- */

static void any_bytes_are_a_json_text(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *text;
    } known[] = {
        {"", ""},
        {"it's \"é\" \xE2\x82\xAC", "it's \"é\" \xE2\x82\xAC"},
        {"caf\xE9.gguf", "caf\xEF\xBF\xBD.gguf"},                 /* Latin-1 */
        {"cut \xE2\x82", "cut \xEF\xBF\xBD\xEF\xBF\xBD"},         /* within a character */
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong */
        {"\xFF\xF0\x9F\x98\x80", "\xEF\xBF\xBD\xF0\x9F\x98\x80"}, /* before a good one */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        json_t *got = json_text(known[i].bytes, strlen(known[i].bytes));
        assert_string_equal(json_string_value(got), known[i].text);
        json_decref(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_words_and_an_exit_code),
        cmocka_unit_test(errno_becomes_a_code),
        cmocka_unit_test(a_failure_says_why),
        cmocka_unit_test(closed_standard_descriptors_are_opened),
        cmocka_unit_test(this_process_is_alive),
        cmocka_unit_test(usage_grows_with_work_and_memory),
        cmocka_unit_test(a_process_is_killed_by_pid_and_start_time),
        cmocka_unit_test(no_process_has_no_start_time),
        cmocka_unit_test(a_zombie_is_dead),
        cmocka_unit_test(brackets_in_a_name_do_not_confuse),
        cmocka_unit_test(time_goes_on),
        cmocka_unit_test(who_stands_in_line_waits_as_long_as_asked),
        cmocka_unit_test(log_lines_name_time_process_and_level),
        cmocka_unit_test(a_long_line_is_cut_and_ended),
        cmocka_unit_test(levels_are_parsed),
        cmocka_unit_test(any_bytes_are_a_json_text),
        cmocka_unit_test(an_array_grows_no_further_than_its_room_can_say),
        cmocka_unit_test(a_read_ends_at_the_files_end_and_a_full_device_is_named),
        cmocka_unit_test(private_memory_lies_on_huge_pages),
        cmocka_unit_test(xxh3_is_the_same_by_wide_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
