/*
 * tests/base/test_harden.c - base/harden: what a confined process tries is refused, what it needs
 * works. Each test confines a child of its own.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/harden.h"
#include "tests/in_child.h"

static char folder[] = "/tmp/hill-test-harden-XXXXXX", inside[64], outside[64], emptied[64];
static pid_t other; /* a process of the same user */

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

static void need(bool seccomp, bool landlock)
{
    if ((seccomp && !harden_has_seccomp()) || (landlock && !harden_landlock_version()))
        skip();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
}

static void *thread(void *out)
{
    *(int *)out = 1;
    return NULL;
}

static void confine(bool programs, bool files)
{
    char text[HARDEN_TEXT_BYTES];
    const char *reads[] = {"/proc", "/no such folder", NULL},
               *writes[] = {inside, "/dev/null", NULL}, *removes[] = {emptied, NULL};
    const struct harden_needs needs = {programs, files, reads, writes, removes};
    harden_confine(&needs, text);
    bool landlock = harden_landlock_version() >= (files ? 4 : 1);
    MUST(strcmp(text, landlock ? "seccomp, Landlock" : "seccomp, no Landlock") == 0);
}

static void is_refused(void)
{
    char *argv[] = {(char *)"/bin/true", NULL};
    struct iovec io = {argv, sizeof argv};
    confine(false, true);
    REFUSED(execv(argv[0], argv), EPERM);
    REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL), EPERM);
    REFUSED(process_vm_readv(getppid(), &io, 1, &io, 1, 0), EPERM);
    REFUSED(kill(getppid(), 0), EPERM);
    REFUSED(sigqueue(getppid(), 0, (union sigval){0}), EPERM);
    REFUSED(syscall(SYS_rt_tgsigqueueinfo, getppid(), getppid(), 0, NULL), EPERM);
    REFUSED(syscall(SYS_io_uring_setup, 1, NULL), EPERM);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    REFUSED(socket(AF_NETLINK, SOCK_RAW, 0), EPERM);
    REFUSED(setuid(getuid()), EPERM);
    REFUSED(chroot("/"), EPERM);
    REFUSED(unshare(0), EPERM);
    struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/tmp/x"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(fd >= 0);
    REFUSED(bind(fd, (struct sockaddr *)&at, sizeof at), EPERM);
    REFUSED(listen(fd, 1), EPERM);
    REFUSED(accept(fd, NULL, NULL), EPERM);
}

static void test_what_no_worker_needs_is_refused(void **state)
{
    (void)state;
    need(true, false);
    run_in_child(is_refused);
}

static void goes_on(void)
{
    pthread_t id;
    int ran = 0, pair[2];
    confine(false, true);
    MUST(pthread_create(&id, NULL, thread, &ran) == 0 && pthread_join(id, NULL) == 0 && ran);
    MUST(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    MUST(kill(getpid(), 0) == 0);
    MUST(sigqueue(getpid(), 0, (union sigval){0}) == 0);
    MUST(pthread_sigqueue(pthread_self(), 0, (union sigval){0}) == 0);
    MUST(open("/proc/self/mem", O_RDWR) >= 0);
    MUST(open("/proc/self/stat", O_RDONLY) >= 0);
}

static void test_what_a_worker_does_works(void **state)
{
    (void)state;
    need(true, false);
    run_in_child(goes_on);
}

static void starts_a_program(void)
{
    char *argv[] = {(char *)"/bin/true", NULL};
    confine(true, true);
    REFUSED(socket(AF_INET, SOCK_STREAM, 0), EPERM);
    execv(argv[0], argv);
    MUST(false);
}

/* Yama lets nobody but an ancestor, or whom the process has named. */
static bool memory_may_be_opened(void)
{
    char name[32];
    int fd = -1;
    snprintf(name, sizeof name, "/proc/%d/mem", (int)other);
    for (int i = 0; i < 1000 && (fd = open(name, O_RDWR)) < 0; i++)
        usleep(1000); /* it may not have named anybody yet */
    close(fd);
    return fd >= 0;
}

static void test_who_needs_programs_may_start_them(void **state)
{
    (void)state;
    need(true, false);
    run_in_child(starts_a_program);
}

/* Of a driver: it opens files, starts programs and may signal these. */
static void reaches_no_other_process(void)
{
    char name[128], to[128];
    int status;
    snprintf(name, sizeof name, "/proc/%d/mem", (int)other);
    MUST(open(name, O_RDWR) >= 0); /* it could */
    confine(true, true);
    REFUSED(open(name, O_RDWR), EACCES);
    REFUSED(open(name, O_RDONLY), EACCES);
    pid_t own = fork();
    if (own == 0)
        pause();
    MUST(kill(own, SIGKILL) == 0 && waitpid(own, &status, 0) == own && WIFSIGNALED(status));
    if (harden_landlock_version() >= 6) {
        REFUSED(kill(other, 0), EPERM);
        REFUSED(sigqueue(other, 0, (union sigval){0}), EPERM);
    }
    snprintf(name, sizeof name, "%s/file", outside);
    snprintf(to, sizeof to, "%s/file", inside);
    MUST(rename(name, to) == 0 && rename(to, name) == 0); /* PoCL's cache does so */
    MUST(chmod(name, 0600) == 0);
}

static void test_who_opens_any_file_looks_into_no_other_process(void **state)
{
    (void)state;
    need(true, true);
    if (harden_landlock_version() < 4 || !memory_may_be_opened())
        skip();
    run_in_child(reaches_no_other_process);
}

/* Through a socket that was there before, for the filter refuses new ones. */
static void connects_to_nobody(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fd >= 0);
    MUST(connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EACCES);
    confine(true, true);
    REFUSED(connect(fd, (struct sockaddr *)&at, sizeof at), EACCES);
}

static void connects_where_it_must(void)
{
    char text[HARDEN_TEXT_BYTES];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct harden_needs needs = {.programs = true, .files = true, .connects = true};
    harden_confine(&needs, text);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    MUST(fd >= 0);
    MUST(connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EACCES && errno != EPERM);
}

static void test_tcp_is_ruled_too(void **state)
{
    (void)state;
    need(true, true);
    run_in_child(connects_where_it_must);
    if (harden_landlock_version() < 4)
        skip();
    run_in_child(connects_to_nobody);
}

static void sees_only_its_files(void)
{
    char name[128];
    confine(false, false);
    snprintf(name, sizeof name, "%s/file", inside);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(fd >= 0 && write(fd, "x", 1) == 1);
    MUST(unlink(name) == 0);
    MUST(open("/proc/self/stat", O_RDONLY) >= 0);
    REFUSED(open("/proc/self/comm", O_WRONLY), EACCES);
    REFUSED(open("/etc/passwd", O_RDONLY), EACCES);
    snprintf(name, sizeof name, "%s/file", outside);
    REFUSED(open(name, O_RDONLY), EACCES);
    REFUSED(open(name, O_WRONLY), EACCES);
    REFUSED(unlink(name), EACCES);
    snprintf(name, sizeof name, "%s/new", outside);
    REFUSED(open(name, O_WRONLY | O_CREAT, 0600), EACCES);
    REFUSED(mkdir(name, 0700), EACCES);
}

static void changes_only_its_files(void)
{
    char name[128];
    struct timespec times[2] = {{0}};
    confine(false, false);
    snprintf(name, sizeof name, "%s/file", inside);
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    MUST(fd >= 0 && ftruncate(fd, 10) == 0 && truncate(name, 5) == 0);
    MUST(open(name, O_WRONLY | O_TRUNC) >= 0 && open("/dev/null", O_WRONLY | O_TRUNC) >= 0);
    MUST(unlink(name) == 0);
    snprintf(name, sizeof name, "%s/file", outside);
    if (harden_landlock_version() >= 3)
        REFUSED(truncate(name, 0), EACCES);
    REFUSED(chmod(name, 0666), EPERM);
    REFUSED(fchmodat(AT_FDCWD, name, 0666, AT_SYMLINK_NOFOLLOW), EPERM);
    REFUSED(syscall(SYS_fchmodat2, AT_FDCWD, name, 0666, 0), EPERM);
    REFUSED(fchmod(fd, 0666), EPERM);
    REFUSED(utimensat(AT_FDCWD, name, times, 0), EPERM);
    REFUSED(setxattr(name, "user.x", "", 0, 0), EPERM);
    REFUSED(removexattr(name, "user.x"), EPERM);
}

static void test_who_names_its_files_changes_no_others(void **state)
{
    (void)state;
    need(true, true);
    run_in_child(changes_only_its_files);
}

static void knows_no_abstract_name(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "hill-test-harden-%d", (int)getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    confine(false, false);
    REFUSED(connect(fd, (struct sockaddr *)&at, sizeof at), EPERM);
}

static void test_who_names_its_files_connects_to_no_abstract_name(void **state)
{
    (void)state;
    need(true, true);
    if (harden_landlock_version() < 6)
        skip();
    run_in_child(knows_no_abstract_name);
}

static void test_who_names_its_files_sees_no_others(void **state)
{
    (void)state;
    need(true, true);
    run_in_child(sees_only_its_files);
}

static void removes_and_no_more(void)
{
    char name[128], to[128];
    snprintf(name, sizeof name, "%s/file", emptied);
    close(open(name, O_WRONLY | O_CREAT, 0600));
    confine(false, false);
    REFUSED(open(name, O_RDONLY), EACCES);
    REFUSED(open(name, O_WRONLY), EACCES);
    REFUSED(open(emptied, O_RDONLY | O_DIRECTORY), EACCES);
    if (harden_landlock_version() >= 3)
        REFUSED(truncate(name, 0), EACCES);
    snprintf(to, sizeof to, "%s/new", emptied);
    REFUSED(open(to, O_WRONLY | O_CREAT, 0600), EACCES);
    REFUSED(rename(name, to), EACCES);
    MUST(unlink(name) == 0);
}

static void test_who_only_removes_neither_reads_nor_writes(void **state)
{
    (void)state;
    need(true, true);
    run_in_child(removes_and_no_more);
}

static void leaves_no_core(void)
{
    struct rlimit core;
    MUST(harden_process());
    MUST(getrlimit(RLIMIT_CORE, &core) == 0);
    MUST(core.rlim_cur == (core.rlim_max ? 1 : 0));
}

static void test_no_core_file_holds_what_a_process_had(void **state)
{
    (void)state;
    need(false, false);
    run_in_child(leaves_no_core);
}

static void keeps_its_descriptors(void)
{
    struct rlimit files = {100, 200}, more = {101, 101};
    MUST(setrlimit(RLIMIT_NOFILE, &files) == 0); /* fewer than the most stay as they are */
    MUST(geteuid() != 0 || setuid(65534) == 0);  /* root may raise any limit */
    confine(false, true);
    MUST(getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == 100 && files.rlim_max == 100);
    REFUSED(setrlimit(RLIMIT_NOFILE, &more), EPERM);
}

static bool root_can_be_somebody_else(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(setuid(65534) ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status == 0;
}

static void test_nobody_raises_the_limit_of_descriptors(void **state)
{
    (void)state;
    need(true, false);
    if (geteuid() == 0 && !root_can_be_somebody_else())
        skip(); /* the container has no other users */
    run_in_child(keeps_its_descriptors);
}

static void is_off(void)
{
    char text[HARDEN_TEXT_BYTES];
    const struct harden_needs needs = {0};
    setenv("HILL_HARDEN", "off", 1);
    harden_confine(&needs, text);
    MUST(strcmp(text, "nothing (switched off)") == 0);
    MUST(open("/etc/passwd", O_RDONLY) >= 0);
    MUST(socket(AF_INET, SOCK_STREAM, 0) >= 0);
}

static void test_the_switch_turns_it_off(void **state)
{
    (void)state;
    run_in_child(is_off);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_no_worker_needs_is_refused),
        cmocka_unit_test(test_what_a_worker_does_works),
        cmocka_unit_test(test_who_needs_programs_may_start_them),
        cmocka_unit_test(test_who_names_its_files_sees_no_others),
        cmocka_unit_test(test_who_names_its_files_changes_no_others),
        cmocka_unit_test(test_who_names_its_files_connects_to_no_abstract_name),
        cmocka_unit_test(test_who_only_removes_neither_reads_nor_writes),
        cmocka_unit_test(test_who_opens_any_file_looks_into_no_other_process),
        cmocka_unit_test(test_tcp_is_ruled_too),
        cmocka_unit_test(test_no_core_file_holds_what_a_process_had),
        cmocka_unit_test(test_nobody_raises_the_limit_of_descriptors),
        cmocka_unit_test(test_the_switch_turns_it_off),
    };
    char name[128];
    if (!mkdtemp(folder))
        return 1;
    snprintf(inside, sizeof inside, "%s/inside", folder);
    snprintf(outside, sizeof outside, "%s/outside", folder);
    snprintf(emptied, sizeof emptied, "%s/emptied", folder);
    snprintf(name, sizeof name, "%s/file", outside);
    if (mkdir(inside, 0700) || mkdir(outside, 0700) || mkdir(emptied, 0700))
        return 1;
    close(open(name, O_WRONLY | O_CREAT, 0600));
    other = fork();
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* whoever could, but for Yama */
        pause();
        _exit(0);
    }
    int failed = cmocka_run_group_tests_name("harden", tests, NULL, NULL);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    unlink(name);
    rmdir(inside);
    rmdir(outside);
    rmdir(emptied);
    rmdir(folder);
    return failed;
}
