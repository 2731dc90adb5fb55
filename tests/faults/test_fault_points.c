/*
 * tests/faults/test_fault_points.c - base/fault.h in a FAULTS build: specs, counts, the file that
 * fires once, and the calls that fail. Each case is a process of its own.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fault.h"
#include "shm/ring.h"

#define ME "test_fault_points"

static char file[] = "/tmp/hill-fault-XXXXXX"; /* the control file's path, and PATH.fired */
static char fired[sizeof file + 8];

static void allocate_four(void);
static void with_file(void);
static void with_changing_files(void);
static void use_file(void);
static void push_twice(void);

static void (*const works[])(void) = {allocate_four, with_file, with_changing_files, use_file,
                                      push_twice};
#define N_WORKS (sizeof works / sizeof *works)

/* The status of a process of its own that does `work` under the spec; stderr goes to nobody. */
static int child(const char *spec, void (*work)(void))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int nobody = open("/dev/null", O_WRONLY);
        dup2(nobody, STDERR_FILENO);
        char which[2] = "0";
        while (works[which[0] - '0'] != work)
            which[0]++;
        if (spec)
            setenv("HILL_FAULT", spec, 1);
        if (work == with_file || work == with_changing_files)
            setenv("HILL_FAULT_FILE", file, 1);
        execl("/proc/self/exe", ME, which, file, NULL);
        _exit(97);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        int end;
        waitpid(pid, &end, 0);
    }
    return status;
}

/* What it exited with; 1000: it has not exited. */
static int exit_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

static void write_spec(const char *spec)
{
    char text[128], whole[sizeof file + 8];
    snprintf(whole, sizeof whole, "%s.new", file);
    int fd = open(whole, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int n = snprintf(text, sizeof text, "%s\n", spec);
    assert_int_equal(write(fd, text, (size_t)n), n);
    close(fd);
    assert_int_equal(rename(whole, file), 0);
}

/* ---- when ----------------------------------------------------------------------------------- */

/* Exits with the numbers of the allocations of four that failed, as bits. */
static void allocate_four(void)
{
    int failed = 0;
    for (int i = 0; i < 4; i++) {
        errno = 0;
        void *volatile memory = malloc(16);
        failed |= memory ? 0 : 1 << i;
        if (!memory && errno != ENOMEM)
            _exit(99);
        free(memory);
    }
    _exit(failed);
}

static void the_nth_call_fails(void **state)
{
    (void)state;
    assert_int_equal(exit_of(child(NULL, allocate_four)), 0);
    assert_int_equal(exit_of(child(ME ":alloc:fail", allocate_four)), 1);
    assert_int_equal(exit_of(child(ME ":alloc:fail:3", allocate_four)), 4);
    assert_int_equal(exit_of(child(ME ":alloc:fail:2+", allocate_four)), 14);
    assert_int_equal(exit_of(child(ME ":alloc:fail:1," ME ":alloc:fail:4", allocate_four)), 9);
    /* another process's */
    assert_int_equal(exit_of(child("cpu_scorer:alloc:fail:1+", allocate_four)), 0);
}

static void a_call_may_kill_or_stop(void **state)
{
    (void)state;
    int status = child(ME ":alloc:kill:2", allocate_four);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    status = child(ME ":alloc:stop:2", allocate_four);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
}

static void nonsense_ends_the_process(void **state)
{
    (void)state;
    static const char *const specs[] = {"",
                                        "x",
                                        "nobody:alloc:fail",
                                        ME ":nothing:kill",
                                        ME ":alloc:explode",
                                        ":::",
                                        "alloc",
                                        ME ":alloc",
                                        ME ":alloc:fail:0",
                                        ME ":alloc:fail:1x",
                                        "::",
                                        ME "::",
                                        ME ":alloc:fail:-1+x",
                                        "cpu_scorer:flip.done:fail",
                                        ME ":flip.done:kill",
                                        ",",
                                        ME ":alloc:fail:1:2"};
    for (size_t i = 1; i < sizeof specs / sizeof *specs; i++)
        assert_int_equal(exit_of(child(specs[i], allocate_four)), 100);
    /* a process's point is good anywhere, and not ours */
    assert_int_equal(exit_of(child("cpu_scorer:flip.done:kill", allocate_four)), 0);
    assert_int_equal(exit_of(child(specs[0], allocate_four)), 0); /* empty: none */
}

/* ---- the file ------------------------------------------------------------------------------- */

static void with_file(void)
{
    allocate_four();
}

/* Before the file comes, while it is there, after it has changed: failures at 2, 2 and 1 of 2. */
static void with_changing_files(void)
{
    int failed = 0;
    for (int round = 0; round < 3; round++) {
        if (round > 0)
            write_spec(round == 1 ? ME ":alloc:fail:2" : ME ":alloc:fail:1");
        for (int i = 0; i < 2; i++) {
            void *volatile memory = malloc(16);
            failed |= memory ? 0 : 1 << (2 * round + i);
            free(memory);
        }
        if (round > 0 && unlink(fired) != 0)
            _exit(99);
    }
    _exit(failed);
}

static void a_file_fires_once(void **state)
{
    (void)state;
    assert_int_equal(exit_of(child(NULL, with_file)), 0);
    write_spec(ME ":alloc:fail:2");
    assert_int_equal(exit_of(child(NULL, with_file)), 2);
    assert_int_equal(access(file, F_OK), -1);
    assert_int_equal(unlink(fired), 0);
    assert_int_equal(exit_of(child(NULL, with_file)), 0);
    write_spec(ME ":alloc:kill:3");
    assert_true(WIFSIGNALED(child(NULL, with_file)));
    assert_int_equal(unlink(fired), 0);
    assert_int_equal(exit_of(child(NULL, with_changing_files)), 8 + 16);
    write_spec(ME ":alloc:fail:3+"); /* stays */
    assert_int_equal(exit_of(child(NULL, with_file)), 12);
    assert_int_equal(exit_of(child(NULL, with_file)), 12);
    assert_int_equal(unlink(file), 0);
}

/* ---- which calls ---------------------------------------------------------------------------- */

/* Exits with how many of the file's calls failed as they should; a pipe's do not. */
static void use_file(void)
{
    char byte = 0;
    int pipes[2], failed = 0;
    FILE *made = tmpfile();
    int fd = made ? fileno(made) : -1;
    if (fd < 0 || pipe(pipes) != 0)
        _exit(99);
    if (write(pipes[1], "x", 1) != 1 || read(pipes[0], &byte, 1) != 1)
        _exit(98);
    failed += write(fd, "x", 1) == -1 && errno == ENOSPC;
    failed += pwrite(fd, "x", 1, 0) == -1 && errno == ENOSPC;
    failed += ftruncate(fd, 10) == -1 && errno == ENOSPC;
    failed += posix_fallocate(fd, 0, 10) == ENOSPC;
    failed += fsync(fd) == -1 && errno == EIO;
    failed += pread(fd, &byte, 1, 0) == -1 && errno == EIO;
    failed += lseek(fd, 0, SEEK_SET) == 0 && read(fd, &byte, 1) == -1 && errno == EIO;
    _exit(failed);
}

static void calls_of_files_fail(void **state)
{
    (void)state;
    assert_int_equal(exit_of(child(NULL, use_file)), 0);
    assert_int_equal(exit_of(child(ME ":write:fail:1+", use_file)), 5);
    assert_int_equal(exit_of(child(ME ":read:fail:1+", use_file)), 2);
    assert_int_equal(exit_of(child(ME ":write:fail:3", use_file)), 1);
}

/* Room is refused once; the producer's own bell has rung, so that it looks again. */
static void push_twice(void)
{
    static _Alignas(64) uint8_t memory[SHM_RING_HEADER_BYTES + 256];
    static struct shm_doorbell own, peer;
    struct shm_ring_end end;
    shm_doorbell_init(&own);
    shm_doorbell_init(&peer);
    if (shm_ring_init(memory, 256, 0) ||
        shm_ring_open(&end, memory, sizeof memory, true, &own, &peer))
        _exit(99);
    uint32_t seen = shm_doorbell_read(&own);
    int first = shm_ring_push(&end, 1, "x", 1);
    bool rang = shm_doorbell_read(&own) != seen;
    int second = shm_ring_push(&end, 1, "x", 1);
    _exit(first == HILL_E_WOULD_BLOCK && rang && second == 0);
}

static void a_ring_seems_full(void **state)
{
    (void)state;
    assert_int_equal(exit_of(child(NULL, push_twice)), 0);
    assert_int_equal(exit_of(child(ME ":push:fail:1", push_twice)), 1);
}

static void name_fired(void)
{
    snprintf(fired, sizeof fired, "%s.fired", file);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nth_call_fails),        cmocka_unit_test(a_call_may_kill_or_stop),
        cmocka_unit_test(nonsense_ends_the_process), cmocka_unit_test(a_file_fires_once),
        cmocka_unit_test(calls_of_files_fail),       cmocka_unit_test(a_ring_seems_full),
    };
    if (argc == 3) { /* a child */
        memcpy(file, argv[2], sizeof file - 1);
        name_fired();
        works[(size_t)(argv[1][0] - '0') % N_WORKS]();
        return 0;
    }
    int fd = mkstemp(file);
    if (fd < 0)
        return 1;
    close(fd);
    unlink(file);
    name_fired();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
