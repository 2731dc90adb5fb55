/* base/process.c - see process.h. */
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads state and start time; false when the process is gone. The command name (field 2) may hold
 * spaces and brackets, so fields are counted from the last ')'. */
static bool read_stat(int32_t pid, char *state, uint64_t *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    char *cursor = strrchr(text, ')');
    if (!cursor || cursor[1] != ' ')
        return false;
    *state = cursor[2];
    for (int field = 2; field < 22; field++) {
        cursor = strchr(cursor + 1, ' ');
        if (!cursor)
            return false;
    }
    *start = strtoull(cursor + 1, NULL, 10);
    return true;
}

uint64_t process_start_time(int32_t pid)
{
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) ? start : 0;
}

bool process_alive(int32_t pid, uint64_t start_time)
{
    char state;
    uint64_t start;
    return read_stat(pid, &state, &start) && start == start_time && state != 'Z' && state != 'X';
}

bool process_kill(int32_t pid, uint64_t start_time, int wait_ms)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return !process_alive(pid, start_time);
    /* asked after the pidfd was opened: what it names can no longer become another process */
    bool gone = !process_alive(pid, start_time);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    if (!gone && syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0)
        gone = poll(&end, 1, wait_ms) == 1;
    close(fd);
    return gone;
}

void process_usage(uint64_t *cpu_ms, uint64_t *rss_bytes)
{
    struct rusage used = {0};
    unsigned long long pages = 0;
    getrusage(RUSAGE_SELF, &used);
    *cpu_ms = (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 +
              (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    *rss_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void process_open_standard(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC); /* the lowest number that is free */
    while (fd >= 0 && fd <= STDERR_FILENO && fcntl(fd, F_SETFD, 0) == 0);
    if (fd >= 0)
        close(fd);
}

int process_signals(bool hangup)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (hangup)
        sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}
