/* coordinator/worker_process.c - see worker_process.h. */
#include "coordinator/worker_process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

int worker_process_start(int32_t *pid, uint64_t *start_time, const char *binary,
                         const char *run_dir, const char *log_level, struct hill_why *why)
{
    char folder[PATH_MAX], path[PATH_MAX + 64];
    int report[2], code = own_folder(folder, sizeof folder, why);
    if (code)
        return code;
    snprintf(path, sizeof path, "%s/%s", folder, binary);
    char *argv[] = {
        path, (char *)"--run-dir", (char *)run_dir, (char *)"--log-level", (char *)log_level, NULL};
    if (pipe2(report, O_CLOEXEC))
        return hill_fail(why, hill_from_errno(errno), "cannot start %s: %s", path, strerror(errno));
    pid_t parent = getpid(), child = fork();
    if (child == 0)
        become(path, argv, parent, report[1]);
    int err = child < 0 ? errno : 0;
    close(report[1]);
    /* the pipe closes at exec: nothing to read means that it succeeded */
    if (child > 0 && read(report[0], &err, sizeof err) == (ssize_t)sizeof err)
        waitpid(child, NULL, 0);
    close(report[0]);
    if (err)
        return hill_fail(why, HILL_E_IO, "cannot start %s: %s", path, strerror(err));
    *pid = child;
    *start_time = process_start_time(child);
    return 0;
}

bool worker_process_reap(int32_t *pid, char *how, unsigned how_bytes)
{
    int status;
    pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended <= 0)
        return false;
    *pid = ended;
    if (WIFSIGNALED(status))
        snprintf(how, how_bytes, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(how, how_bytes, "exited with %d", WEXITSTATUS(status));
    return true;
}
