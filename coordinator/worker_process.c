/* coordinator/worker_process.c - see worker_process.h. */
#include "coordinator/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"

static int own_folder(char *out, size_t room, struct hill_why *why)
{
    ssize_t got = readlink("/proc/self/exe", out, room - 1);
    if (got <= 0)
        return hill_fail(why, HILL_E_IO, "cannot find this program's own folder: %s",
                         strerror(errno));
    out[got] = '\0';
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    return 0;
}

/* In the child: only calls that are safe after fork in a process with threads. */
static void become(const char *path, char *const argv[], pid_t parent, int report)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == parent)
        execv(path, argv);
    int err = errno;
    ssize_t ignored = write(report, &err, sizeof err);
    (void)ignored;
    _exit(127);
}

static bool out_of_something(int err)
{
    return err == EAGAIN || err == ENOMEM || err == EMFILE || err == ENFILE;
}

/* fork and exec; 0 or errno. */
static int spawn(pid_t *child, const char *path, char *const argv[])
{
    int report[2], err = 0;
    if (pipe2(report, O_CLOEXEC))
        return errno;
    pid_t parent = getpid();
    *child = fork();
    if (*child == 0)
        become(path, argv, parent, report[1]);
    if (*child < 0)
        err = errno;
    close(report[1]);
    /* the pipe closes at exec: nothing to read means that it succeeded */
    if (*child > 0 && read(report[0], &err, sizeof err) == (ssize_t)sizeof err)
        waitpid(*child, NULL, 0);
    close(report[0]);
    return err;
}

int worker_process_start(struct worker_process *out, const char *binary, const char *run_dir,
                         const char *log_level, struct hill_why *why)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    pid_t child = 0;
    int code = own_folder(folder, sizeof folder, why);
    if (code)
        return code;
    snprintf(path, sizeof path, "%s/%s", folder, binary);
    char *argv[] = {
        path, (char *)"--run-dir", (char *)run_dir, (char *)"--log-level", (char *)log_level, NULL};
    int err = spawn(&child, path, argv);
    if (err)
        return hill_fail(why, out_of_something(err) ? HILL_E_NOMEM : HILL_E_IO,
                         "cannot start %s: %s", path, strerror(err));
    out->fd = (int)syscall(SYS_pidfd_open, child, 0);
    if (out->fd < 0) {
        err = errno;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        return hill_fail(why, out_of_something(err) ? HILL_E_NOMEM : HILL_E_IO,
                         "cannot watch %s: %s", path, strerror(err));
    }
    out->pid = child;
    out->start_time = process_start_time(child);
    return 0;
}

#define KILLED_MS 3000 /* one that hangs within a driver may not end before the driver does */
#define LOOK_MS   5

/* Its end within so long: child; 0: it is there still; -1: it is none of ours. */
static pid_t wait_for_end(pid_t child, int limit_ms, int *status)
{
    int64_t deadline = clock_deadline_ms(limit_ms);
    pid_t ended;
    while ((ended = waitpid(child, status, WNOHANG)) == 0 && clock_now_ns() < deadline)
        poll(NULL, 0, LOOK_MS);
    return ended;
}

int worker_process_ask(const char *binary, const char *question, const char *about, int limit_ms)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    pid_t child = 0;
    int status;
    if (own_folder(folder, sizeof folder, NULL))
        return HILL_E_IO;
    snprintf(path, sizeof path, "%s/%s", folder, binary);
    char *argv[] = {path, (char *)question, (char *)about, NULL};
    if (spawn(&child, path, argv))
        return HILL_E_IO;
    pid_t ended = wait_for_end(child, limit_ms, &status);
    if (ended == 0) {
        kill(child, SIGKILL);
        wait_for_end(child, KILLED_MS, &status);
        return HILL_E_TIMEOUT;
    }
    return ended == child && WIFEXITED(status) ? WEXITSTATUS(status) : HILL_E_IO;
}

bool worker_process_ended(const struct worker_process *process, struct worker_end *end)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
        return false;
    end->killed = info.si_code != CLD_EXITED;
    end->orderly = !end->killed && info.si_status == 0;
    snprintf(end->text, sizeof end->text, "%s %d",
             end->killed ? "was killed by signal" : "exited with", info.si_status);
    return true;
}

void worker_process_reap(struct worker_process *process)
{
    waitpid(process->pid, NULL, WNOHANG);
    close(process->fd);
    process->fd = -1;
}
