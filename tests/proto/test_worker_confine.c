/*
 * tests/proto/test_worker_confine.c - proto/worker_confine: what each worker may, by its role and
 * by the coordinator's variables. Each test confines a child of its own.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/worker_confine.h"
#include "tests/in_child.h"

static char folder[] = "/tmp/hill-test-confine-XXXXXX", named[2][64], other[64];

static void need(bool landlock)
{
    if (!harden_has_seccomp() || (landlock && !harden_landlock_version()))
        skip();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
}

static void confine(Hill__Role role, const char *may_write, const char *may_connect)
{
    char text[HARDEN_TEXT_BYTES];
    MUST(!may_write || setenv("HILL_MAY_WRITE", may_write, 1) == 0);
    MUST(!may_connect || setenv("HILL_MAY_CONNECT", may_connect, 1) == 0);
    worker_confine(role, text);
    MUST(strncmp(text, "seccomp, ", 9) == 0);
}

static int make_file(const char *in)
{
    char name[160];
    snprintf(name, sizeof name, "%s/file", in);
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    return fd < 0 ? fd : unlink(name);
}

static int start_program(void)
{
    char *argv[] = {(char *)"/bin/true", NULL};
    return execv(argv[0], argv);
}

static void scorer_starts_nothing(void)
{
    confine(HILL__ROLE__ROLE_CPU_SCORER, NULL, "1");
    REFUSED(start_program(), EPERM);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
}

static void test_the_scorer_starts_nothing_and_connects_to_nobody(void **state)
{
    (void)state;
    need(false);
    run_in_child(scorer_starts_nothing);
}

static void scorer_writes_where_it_is_told(void)
{
    char lines[160];
    snprintf(lines, sizeof lines, "%s\n%s", named[0], named[1]);
    confine(HILL__ROLE__ROLE_CPU_SCORER, lines, NULL);
    for (int i = 0; i < 2; i++)
        MUST(make_file(named[i]) == 0);
    REFUSED(make_file(other), EACCES);
    MUST(open("/dev/null", O_WRONLY) >= 0);
    MUST(open("/etc/passwd", O_RDONLY) >= 0 && open("/proc/self/stat", O_RDONLY) >= 0);
    REFUSED(open("/etc/passwd", O_WRONLY), EACCES);
    REFUSED(open(folder, O_RDONLY | O_DIRECTORY), EACCES);
}

static void scorer_writes_nowhere_else(void)
{
    confine(HILL__ROLE__ROLE_CPU_SCORER, NULL, NULL);
    REFUSED(make_file(named[0]), EACCES);
}

static void test_the_scorer_writes_in_the_folders_that_it_is_told(void **state)
{
    (void)state;
    need(true);
    run_in_child(scorer_writes_where_it_is_told);
    run_in_child(scorer_writes_nowhere_else);
}

static void agent_of_a_local_drive(void)
{
    confine(HILL__ROLE__ROLE_CSD_AGENT, NULL, NULL);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    MUST(make_file(other) == 0); /* its driver opens any file */
    start_program();
    MUST(false);
}

static void agent_of_none_named(void)
{
    confine(HILL__ROLE__ROLE_CSD_AGENT, NULL, "");
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
}

static void agent_of_a_remote_drive(void)
{
    confine(HILL__ROLE__ROLE_CSD_AGENT, NULL, "1");
    MUST(socket(AF_INET, SOCK_STREAM, 0) >= 0);
}

static void gpu_worker_connects_to_nobody(void)
{
    confine(HILL__ROLE__ROLE_GPU_WORKER, NULL, "1");
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    start_program();
    MUST(false);
}

static void test_only_the_agent_of_a_remote_drive_has_sockets_of_the_internet(void **state)
{
    (void)state;
    need(false);
    run_in_child(agent_of_a_local_drive);
    run_in_child(agent_of_none_named);
    run_in_child(agent_of_a_remote_drive);
    run_in_child(gpu_worker_connects_to_nobody);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_scorer_starts_nothing_and_connects_to_nobody),
        cmocka_unit_test(test_the_scorer_writes_in_the_folders_that_it_is_told),
        cmocka_unit_test(test_only_the_agent_of_a_remote_drive_has_sockets_of_the_internet),
    };
    unsetenv("HILL_MAY_WRITE");
    unsetenv("HILL_MAY_CONNECT");
    unsetenv("HILL_HARDEN");
    if (!mkdtemp(folder))
        return 1;
    snprintf(named[0], sizeof named[0], "%s/first", folder);
    snprintf(named[1], sizeof named[1], "%s/second", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    if (mkdir(named[0], 0700) || mkdir(named[1], 0700) || mkdir(other, 0700))
        return 1;
    int failed = cmocka_run_group_tests_name("worker_confine", tests, NULL, NULL);
    rmdir(named[0]);
    rmdir(named[1]);
    rmdir(other);
    rmdir(folder);
    return failed;
}
