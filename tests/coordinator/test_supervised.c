/* The real coordinator and its workers, as a service manager sees them: ready, watchdog, a worker
 * that is stopped, one whose data loop stands still, one that never gets ready, the end. What
 * happens is waited for by its STATUS= or its line in the log, never by time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define LIMIT_MS 60000
#define HANG_MS  2000 /* on a loaded machine a heartbeat is late by less */

static char work[] = "/tmp/hill-test-superv-XXXXXX";
static char *bin;
static int manager;
static pid_t coordinator, held;

static char *in_work(const char *name)
{
    static char path[16][128];
    static unsigned next;
    char *out = path[next++ % 16];
    snprintf(out, sizeof path[0], "%s/%s", work, name);
    return out;
}

static int shell(const char *format, const char *a, const char *b)
{
    char command[512];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

/* ---- the service manager ----------------------------------------------------------------- */

static void open_manager(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/notify", work);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(manager, (struct sockaddr *)&at, sizeof at), 0);
}

/* Until a datagram has this text in it. */
static void await_notice(const char *text)
{
    int64_t deadline = clock_deadline_ms(LIMIT_MS);
    char got[512];
    for (;;) {
        ssize_t n = recv(manager, got, sizeof got - 1, 0);
        got[n > 0 ? n : 0] = '\0';
        if (n > 0 && strstr(got, text))
            return;
        if (n > 0)
            continue;
        if (held) /* a tracee is gone when its tracer has waited for it */
            waitpid(held, NULL, WNOHANG | __WALL);
        poll(&(struct pollfd){.fd = manager, .events = POLLIN}, 1, 50);
        if (clock_now_ns() > deadline)
            fail_msg("no notice '%s' within %d s", text, LIMIT_MS / 1000);
    }
}

/* Does the log have a line with a and then b in it? */
static bool logged(const char *a, const char *b)
{
    char line[512];
    bool found = false;
    FILE *log = fopen(in_work("log"), "r");
    assert_non_null(log);
    while (!found && fgets(line, sizeof line, log)) {
        const char *first = strstr(line, a);
        found = first && strstr(first, b);
    }
    fclose(log);
    return found;
}

/* ---- the pipeline ------------------------------------------------------------------------ */

static pid_t spawn(const char *out, const char *const argv[])
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int fd = open(out, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
        setenv("NOTIFY_SOCKET", in_work("notify"), 1);
        setenv("WATCHDOG_USEC", "1000000", 1);
        execv(argv[0], (char *const *)argv); /* does not change them */
        _exit(127);
    }
    return pid;
}

static int hang_ms = HANG_MS; /* of what start starts */

static void start(const char *folder)
{
    char program[256], hang[16];
    snprintf(program, sizeof program, "%s/hill-coordinator", folder);
    snprintf(hang, sizeof hang, "%d", hang_ms);
    const char *argv[] = {program,      "-m",          in_work("model.gguf"),
                          "-c",         "4096",        "--run-dir",
                          in_work("r"), "--state-dir", in_work("state"),
                          "--beta",     "0.5",         "--hang-ms",
                          hang,         "--stall-ms",  "10000",
                          NULL};
    unlink(in_work("log"));
    coordinator = spawn(in_work("log"), argv);
}

static int result_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int end_coordinator(void)
{
    pid_t pid = coordinator;
    coordinator = 0;
    kill(pid, SIGTERM);
    return result_of(pid);
}

static pid_t worker(const char *name)
{
    char line[128], of[32];
    int pid = 0;
    FILE *pids = fopen(in_work("r/pids"), "r");
    assert_non_null(pids);
    while (fgets(line, sizeof line, pids))
        if (sscanf(line, "%d %*u %31s", &pid, of) == 2 && strcmp(of, name) == 0)
            break;
    fclose(pids);
    assert_true(pid > 1);
    return pid;
}

/* A queue of some ten datagrams that nobody reads is full, and what comes then is lost. */
static void hear_notices(void)
{
    char got[512];
    while (recv(manager, got, sizeof got, 0) > 0)
        continue;
}

static pid_t ask(void)
{
    char program[256];
    snprintf(program, sizeof program, "%s/hillctl", bin);
    const char *argv[] = {
        program, "generate", "--run-dir", in_work("r"), "-p",           "one two three four",
        "-n",    "1000",     "--temp",    "0",          "--ignore-eos", NULL};
    unlink(in_work("answer"));
    pid_t pid = spawn(in_work("answer"), argv);
    struct stat info = {0};
    for (int64_t end = clock_deadline_ms(LIMIT_MS); stat(in_work("answer"), &info) || !info.st_size;
         usleep(1000)) {
        assert_true(clock_now_ns() < end);
        hear_notices();
    }
    return pid;
}

static int setup(void **state)
{
    hang_ms = HANG_MS;
    (void)state;
    manager = -1;
    if (access(bin, X_OK))
        return 0;
    open_manager();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bool ended = coordinator == 0;
    if (!ended)
        end_coordinator();
    /* a worker that a sanitizer ends is started again, and the test goes on */
    bool reported = logged("Sanitizer: ", "") || logged("runtime error: ", "");
    if (!ended || reported)
        shell("cat %s/log%s", work, "");
    if (manager >= 0)
        close(manager);
    unlink(in_work("notify"));
    assert_false(reported);
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------- */

static void test_a_manager_hears_of_ready_watchdog_and_end(void **state)
{
    (void)state;
    start(bin);
    await_notice("STATUS=starting");
    await_notice("READY=1\nSTATUS=ready: epoch ");
    await_notice("WATCHDOG=1");
    await_notice("WATCHDOG=1");
    kill(coordinator, SIGTERM);
    await_notice("STOPPING=1\nSTATUS=ending: asked to by a signal");
    assert_int_equal(end_coordinator(), 0);
}

static void test_a_stopped_worker_is_replaced(void **state)
{
    (void)state;
    static const char *const names[] = {"gpu_worker", "cpu_scorer", "csd_agent"};
    start(bin);
    await_notice("STATUS=ready");
    for (unsigned i = 0; i < 3; i++) {
        pid_t before = worker(names[i]);
        kill(before, SIGSTOP);
        do {
            await_notice("STATUS=waiting");
            await_notice("STATUS=ready: epoch ");
        } while (worker(names[i]) == before); /* another one's heartbeat was late */
        assert_true(logged(names[i], "has sent no heartbeat for"));
    }
    assert_false(logged("", "gave up"));
    assert_int_equal(end_coordinator(), 0);
}

static void test_a_stopped_coordinator_blames_no_worker(void **state)
{
    (void)state;
    int status;
    hang_ms = 5000; /* no heartbeat is to be late, also where workers load for long */
    start(bin);
    await_notice("STATUS=ready");
    pid_t gpu = worker("gpu_worker");
    kill(coordinator, SIGSTOP);
    waitpid(coordinator, &status, WUNTRACED);
    /* longer than --hang-ms: what it would be blamed for has to have been */
    for (int64_t end = clock_deadline_ms(hang_ms * 3 / 2); clock_now_ns() < end;)
        usleep(10000);
    kill(coordinator, SIGCONT);
    for (unsigned i = 0; i < 3; i++)
        await_notice("WATCHDOG=1");
    assert_int_equal(worker("gpu_worker"), gpu);
    assert_false(logged("has", "heartbeat"));
    assert_int_equal(end_coordinator(), 0);
}

/* The thread stands still, the rest of the process goes on. */
static void hold_data_loop(pid_t pid)
{
    assert_int_equal(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
    held = pid;
}

static void test_a_data_loop_that_stands_still_is_replaced(void **state)
{
    (void)state;
    start(bin);
    await_notice("STATUS=ready");
    pid_t request = ask(), before = worker("gpu_worker");
    hold_data_loop(before);
    /* until heartbeats have said so: it gets no time to load with what follows */
    for (int64_t end = clock_deadline_ms(1000); clock_now_ns() < end; usleep(10000))
        hear_notices();
    kill(worker("cpu_scorer"), SIGKILL);
    await_notice("STATUS=waiting");
    await_notice("STATUS=ready");
    held = 0;
    assert_true(worker("gpu_worker") != before);
    assert_true(logged("gpu_worker", "has done nothing for"));
    assert_true(logged("gpu_worker", "starting it again in 0.02 s")); /* it had made tokens */
    assert_int_equal(result_of(request), 0);
    assert_int_equal(end_coordinator(), 0);
}

static void test_a_worker_that_never_gets_ready_ends_in_one_line(void **state)
{
    (void)state;
    char *fakes = in_work("bin");
    mkdir(fakes, 0700);
    assert_int_equal(shell("cp -l %s/hill-* %s/ 2>/dev/null || cp %1$s/hill-* %2$s/", bin, fakes),
                     0);
    FILE *fake = fopen(in_work("bin/fake"), "w");
    fputs("#!/bin/sh\nkill -SEGV $$\n", fake);
    fclose(fake);
    chmod(in_work("bin/fake"), 0700);
    assert_int_equal(shell("mv -f %s/fake %s/hill-gpu-worker", fakes, fakes), 0);
    start(fakes);
    await_notice("STOPPING=1");
    assert_int_equal(result_of(coordinator), 111);
    coordinator = 0;
    assert_true(
        logged("error: gave up because gpu_worker was killed by signal 11, 5 times in a row "
               "without progress",
               ""));
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_a_manager_hears_of_ready_watchdog_and_end),
        T(test_a_stopped_worker_is_replaced),
        T(test_a_stopped_coordinator_blames_no_worker),
        T(test_a_data_loop_that_stands_still_is_replaced),
        T(test_a_worker_that_never_gets_ready_ends_in_one_line),
    };
    bin = realpath(getenv("HILL_BIN") ? getenv("HILL_BIN") : "build/bin", NULL);
    if (!bin || !mkdtemp(work)) {
        printf("skipped: no programs in build/bin\n");
        return 77;
    }
    setenv("HILL_EXACT_BELOW", "0", 1);
    char cache[PATH_MAX];
    if (realpath("build/pocl-cache", cache)) /* as tests/run has it: built kernels */
        setenv("POCL_CACHE_DIR", cache, 0);
    int failed = shell("%s/hill-mkmodel -o %s/model.gguf", bin, work) ? 1 : 0;
    if (!failed)
        failed = cmocka_run_group_tests_name("supervised", tests, NULL, NULL);
    shell("rm -rf %s%s", work, "");
    free(bin);
    return failed;
}
