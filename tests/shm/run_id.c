/*
 * tests/shm/run_id.c - the ids, the keeper process and the check at the end. Interface: run_id.h.
 */
#include "tests/shm/run_id.h"

static uint64_t test_first_run_id;
static pid_t test_run_owner; /* a forked child has an id of its own */

/* Removes every segment of the id and those after it; returns how many there were. */
static int test_remove_segments(uint64_t id)
{
    char prefix[32], name[300];
    int length = snprintf(prefix, sizeof prefix, "hill-%015" PRIx64, id / TEST_RUN_IDS), n = 0;
    DIR *shm = opendir("/dev/shm");
    for (struct dirent *entry; shm && (entry = readdir(shm));) {
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0)
            continue;
        snprintf(name, sizeof name, "/%s", entry->d_name);
        n += shm_unlink(name) == 0;
    }
    if (shm)
        closedir(shm);
    return n;
}

void test_die_with_parent(pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
}

static void test_keep(uint64_t id, pid_t owner)
{
    sigset_t death;
    int signal;
    sigfillset(&death);
    sigprocmask(SIG_BLOCK, &death, NULL);
    sigemptyset(&death);
    sigaddset(&death, SIGUSR1);
    prctl(PR_SET_PDEATHSIG, SIGUSR1);
    setsid(); /* what ends the test's group does not end this */
    for (int fd = 0; fd < 3; fd++)
        close(fd); /* nobody waits for the end of this process's output */
    while (getppid() == owner)
        sigwait(&death, &signal);
    test_remove_segments(id);
    _exit(0);
}

static void test_check_segments(void)
{
    int n = test_run_owner == getpid() ? test_remove_segments(test_first_run_id) : 0;
    if (n == 0)
        return;
    fprintf(stderr, "the test left %d segments in /dev/shm\n", n);
    _exit(1);
}

uint64_t test_run_id(void)
{
    pid_t self = getpid();
    if (test_run_owner == self)
        return test_first_run_id;
    uint64_t noise = (uint64_t)clock_now_ns() / 64 % (1u << 20);
    test_first_run_id = (UINT64_C(0x7e57) << 48 | (uint64_t)self % (1u << 24) << 24 | noise << 4) /
                        TEST_RUN_IDS * TEST_RUN_IDS;
    test_run_owner = self;
    fflush(NULL);
    if (fork() == 0)
        test_keep(test_first_run_id, self);
    atexit(test_check_segments);
    return test_first_run_id;
}
