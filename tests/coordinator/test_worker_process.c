/* Tests of coordinator/worker_process.[ch]: a question to a program beside this one. The programs
 * are links that are made in this program's own folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "coordinator/worker_process.h"

static char name[64], link_path[4200];

static int link_beside(const char *program)
{
    char own[4096];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0)
        return -1;
    own[n] = '\0';
    snprintf(name, sizeof name, "asked-%d", (int)getpid());
    snprintf(link_path, sizeof link_path, "%s/%s", dirname(own), name);
    unlink(link_path);
    return symlink(program, link_path);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(link_path);
}

static void test_its_exit_code_is_the_answer(void **state)
{
    (void)state;
    assert_int_equal(link_beside("/bin/sh"), 0);
    assert_int_equal(worker_process_ask(name, "-c", "exit 0", 60000), 0);
    assert_int_equal(worker_process_ask(name, "-c", "exit 3", 60000), 3);
    assert_int_equal(worker_process_ask(name, "-c", "kill -KILL $$", 60000), HILL_E_IO);
    assert_int_equal(worker_process_ask("no-such-program", "-c", "exit 0", 60000), HILL_E_IO);
}

static void test_one_that_hangs_is_killed(void **state)
{
    (void)state;
    int64_t before = clock_now_ns();
    assert_int_equal(link_beside("/bin/sh"), 0);
    assert_int_equal(worker_process_ask(name, "-c", "kill -STOP $$", 50), HILL_E_TIMEOUT);
    assert_true(clock_now_ns() - before >= CLOCK_MS(50));
    assert_int_equal(waitpid(-1, NULL, 0), -1); /* nothing of it is left */
    assert_int_equal(errno, ECHILD);
}

static void on_alarm(int number)
{
    (void)number;
}

static void test_signals_end_no_wait(void **state)
{
    (void)state;
    const struct itimerval often = {{0, 3000}, {0, 3000}}, never = {{0}};
    struct sigaction action = {.sa_handler = on_alarm}, before;
    assert_int_equal(link_beside("/bin/sh"), 0);
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    int hung = worker_process_ask(name, "-c", "kill -STOP $$", 50);
    int answer = worker_process_ask(name, "-c", "exit 3", 60000);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    assert_int_equal(hung, HILL_E_TIMEOUT);
    assert_int_equal(answer, 3);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_its_exit_code_is_the_answer, teardown),
        cmocka_unit_test_teardown(test_one_that_hangs_is_killed, teardown),
        cmocka_unit_test_teardown(test_signals_end_no_wait, teardown),
    };
    return cmocka_run_group_tests_name("worker_process", tests, NULL, NULL);
}
