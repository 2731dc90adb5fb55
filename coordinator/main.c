/*
 * hill-coordinator - supervises a HillInfer pipeline and takes its requests.
 *
 * What: starts hill-gpu-worker, hill-cpu-scorer and hill-csd-agent from its own folder, creates the
 * shared-memory segments of each epoch, serves hillctl on control.sock in the run folder, tokenises
 * prompts and streams text. See README.md. Who starts it: scripts/hillinfer, or a person. `--help`
 * is its manual. How it ends: 0 after SIGTERM or `hillctl stop`, 130 after SIGINT, 100 wrong use or
 * a second pipeline in one run folder, 1 a model that is damaged or unsupported, 111 an environment
 * that failed. Nothing stays in the run folder or in /dev/shm.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include "base/clock.h"
#include "base/harden.h"
#include "base/process.h"
#include "coordinator/pipeline.h"
#include "proto/options_http.h"

#define DESCRIPTORS_MIN 128u

static const struct option_spec own_specs[] = {
    OPTION("ready-fd", INTEGER, "FD",
           "write \"ready\" and a newline to this file descriptor when all workers are ready for "
           "the first time",
           .max = 1048576),
    OPTION("alive-fd", INTEGER, "FD",
           "write this process's id and a newline to this file descriptor every second, from when "
           "its loop goes round; who reads there can tell that it hangs",
           .max = 1048576),
};

static int open_signals(struct hill_why *why)
{
    int fd = process_signals(true); /* before ZeroMQ starts its threads, which inherit the mask */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write, with its line */
    return fd >= 0 ? fd
                   : hill_fail(why, hill_from_errno(errno), "cannot open a signalfd: %s",
                               strerror(errno));
}

/* ZeroMQ ends the process when it cannot take a connection for want of a descriptor: have plenty,
 * or do not begin. Workers inherit the limit. */
static int raise_descriptors(struct hill_why *why)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return hill_fail(why, hill_from_errno(errno), "cannot read the limit of open files: %s",
                         strerror(errno));
    rlim_t wanted = files.rlim_max < HARDEN_DESCRIPTORS ? files.rlim_max : HARDEN_DESCRIPTORS;
    if (files.rlim_cur < wanted) {
        files.rlim_cur = wanted;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (wanted < DESCRIPTORS_MIN)
        return hill_fail(why, HILL_E_NOMEM,
                         "at most %llu files may be open (ulimit -Hn), a pipeline needs %u",
                         (unsigned long long)wanted, DESCRIPTORS_MIN);
    return 0;
}

static int inherited_fd(const struct options *options, const char *name, int *out,
                        struct hill_why *why)
{
    *out = -1;
    if (!options_is_set(options, name))
        return 0;
    int fd = (int)options_integer(options, name);
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) /* no business of the workers */
        return hill_fail(why, HILL_E_INVALID, "--%s %d is not open", name, fd);
    *out = fd;
    return 0;
}

/* Everything from the options on, torn down in reverse. */
static int serve(const struct options *options, struct hill_why *why)
{
    struct settings settings = {0};
    struct run_folder folder = {.lock_fd = -1};
    struct pipeline *pipeline = NULL;
    static struct drives_record drives;
    char run_dir[HILL_PATH_BYTES];
    int ready_fd, alive_fd;
    int signal_fd = open_signals(why);
    int code = signal_fd < 0 ? signal_fd : inherited_fd(options, "ready-fd", &ready_fd, why);
    if (!code)
        code = inherited_fd(options, "alive-fd", &alive_fd, why);
    if (!code)
        code = raise_descriptors(why);
    if (!code)
        code = hill_run_dir(run_dir, options, why);
    if (!code)
        code = run_folder_open(&folder, run_dir, why);
    if (!code && coordinator_restarts())
        drives_record_read(folder.path, &drives);
    else if (!code) /* a person has said which drives there are */
        drives_record_remove(folder.path);
    if (!code)
        code = settings_open(&settings, options, &folder.left, &drives, why);
    settings.limits.silent_ns = CLOCK_MS(options_integer(options, "hang-ms"));
    settings.limits.stuck_ns = CLOCK_MS(options_integer(options, "stall-ms"));
    if (!code)
        settings_log(&settings);
    if (!code)
        code = pipeline_open(&pipeline, &settings, &folder, signal_fd, ready_fd, alive_fd, why);
    if (!code)
        code = pipeline_run(pipeline, why);
    pipeline_close(pipeline);
    settings_close(&settings);
    run_folder_close(&folder);
    if (signal_fd >= 0)
        close(signal_fd);
    return code;
}

int main(int argc, char **argv)
{
    const struct option_table tables[] = {
        {.title = "pipeline", .specs = hill_pipeline_specs, .count = hill_pipeline_count},
        HILL_COMMON_TABLE,
        {.title = "supervision",
         .specs = own_specs,
         .count = sizeof own_specs / sizeof own_specs[0]},
        {.specs = hill_request_specs, .count = hill_request_count, .foreign = true},
        HILL_FOREIGN_HTTP_TABLE,
    };
    const struct option_program program = {
        .name = "hill-coordinator",
        .usage = "-m MODEL [OPTIONS]",
        .summary = "Run a HillInfer pipeline: GPU worker, CPU scorer and CSD agent, with the "
                   "requests of hillctl.\n"
                   "Usually started by `hillinfer up`.",
        .example = "hill-coordinator -m model.gguf -c 32768 --budget 512 --hot-mb 64",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
        .hints = hill_hints,
        .n_hints = hill_hint_count,
    };
    struct options *options;
    struct hill_why why = {{0}};
    int code = options_start(&options, &program, argc, argv);
    if (code)
        return code > 0 ? 0 : hill_exit_code(code);
    hill_log_init("hill-coordinator", hill_log_option(options));
    prctl(PR_SET_NAME, "hill-coord");     /* the kernel keeps 15 characters and would cut it */
    struct hill_pipeline_options checked; /* impossible pairs, before anything is touched */
    struct epoch_settings epoch;
    code = hill_pipeline_read(&checked, &epoch, options, &why);
    if (code) {
        options_misuse(&program, &why);
        options_free(options);
        return hill_exit_code(code);
    }
    harden_process();
    umask(077); /* sockets and pools are this user's alone */
    code = serve(options, &why);
    if (code && code != HILL_E_CANCELLED)
        log_error("%s", why.text);
    options_free(options);
    return hill_exit_code(code);
}
