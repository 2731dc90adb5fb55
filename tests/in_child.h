/*
 * tests/in_child.h - checks in a child process, which may confine itself or lose its rights.
 *
 * What: MUST ends the child with the line of the check that failed; run_in_child fails the test
 * with that line. Who calls it: tests that include it after cmocka.h. Concurrency: a child at a
 * time.
 */
#pragma once

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            _exit(__LINE__ % 250 + 1);                                                             \
    } while (0)
#define REFUSED(call, error) MUST((call) < 0 && errno == (error))

static inline void run_in_child(void (*body)(void))
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status))
        fail_msg("the check of line %d (modulo 250) failed", WEXITSTATUS(status) - 1);
}
