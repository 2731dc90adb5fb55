/*
 * hillctl/doctor.c - `hillctl doctor`: what this machine has, what is missing, how to get it.
 *
 * What: a table of checks, one line each: ok, warn (it runs, but slower or with less) or missing
 * (it cannot run). Devices are asked for by hill-gpu-worker, for 15 s at most, so that an OpenCL
 * driver that crashes or hangs cannot take this process with it. Needs no running pipeline.
 * Concurrency: none. Failure: exit 111 when something is missing; what cannot be found out is a
 * warning.
 */
#include "hillctl/command_list.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numa.h>

#include "base/disk_room.h"
#include "base/harden.h"
#include "base/json_text.h"
#include "base/memory_room.h"
#include "chat/chat_helper.h"
#include "proto/options_hill.h"
#include "proto/options_http.h"
#include "hillctl/probe.h"
#include "hillctl/report.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

enum level { LEVEL_OK, LEVEL_WARN, LEVEL_MISSING, LEVEL_COUNT };

static const char *const level_names[LEVEL_COUNT] = {"ok", "warn", "missing"};

struct finding {
    enum level level;
    char text[512];
    char hint[256]; /* how to get it; "": nothing to do */
};

struct machine {
    char state_dir[HILL_PATH_BYTES];
    size_t made;             /* length of its first part that was not there; 0: all was */
    char programs[PATH_MAX]; /* folder of this program and its fellows */
    int scrap_fd;            /* in the state folder; -1: it cannot be written */
    bool scrap_direct;
    struct hill_why scrap_why, direct_why;
};

static void say(struct finding *f, enum level level, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void say(struct finding *f, enum level level, const char *hint, const char *format, ...)
{
    va_list arguments;
    f->level = level;
    va_start(arguments, format);
    vsnprintf(f->text, sizeof f->text, format, arguments);
    va_end(arguments);
    snprintf(f->hint, sizeof f->hint, "%s", hint);
}

/* ---- programs and devices ---------------------------------------------------------------- */

static void check_programs(const struct machine *m, struct finding *f)
{
    static const char *const names[] = {"hill-coordinator", "hill-gpu-worker", "hill-cpu-scorer",
                                        "hill-csd-agent"};
    char path[PATH_MAX + 32];
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", m->programs, names[i]);
        if (access(path, X_OK) != 0) {
            say(f, LEVEL_MISSING, "build them with make", "%s is not in %.300s", names[i],
                m->programs);
            return;
        }
    }
    say(f, LEVEL_OK, "", "all four in %.400s", m->programs);
}

static void check_devices(const struct machine *m, struct finding *f)
{
    static const char hint[] =
        "apt install pocl-opencl-icd (CPU), or the OpenCL driver of the GPU; "
        "PoCL needs a cache folder that it can write (POCL_CACHE_DIR)";
    char line[256], first[256] = "";
    unsigned count = 0;
    setenv("programs", m->programs, 1); /* as the shell's variable, in whatever characters */
    FILE *pipe = popen(
        "exec timeout -k 1 15 \"$programs/hill-gpu-worker\" --list-devices 2>/dev/null", "re");
    while (pipe && fgets(line, sizeof line, pipe)) {
        line[strcspn(line, "\n")] = '\0';
        if (!count++)
            snprintf(first, sizeof first, "%s", line);
    }
    int status = pipe ? pclose(pipe) : -1;
    bool late = (WIFEXITED(status) && WEXITSTATUS(status) == 124) || /* as timeout says it */
                (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (count && status == 0)
        say(f, LEVEL_OK, "", "%u: %s%s", count, first, count > 1 ? ", ..." : "");
    else /* the worker says why on the one line */
        say(f, LEVEL_MISSING, hint, "no OpenCL device (%s)",
            late                  ? "the driver did not answer within 15 s"
            : WIFSIGNALED(status) ? "a driver crashed while it was asked"
            : count               ? first
                                  : "none is listed");
}

static void check_simd(const struct machine *m, struct finding *f)
{
    (void)m;
    const char *hint = "scoring in DRAM is slow without AVX2";
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"))
        say(f, LEVEL_OK, "", "AVX-512 with VNNI");
    else if (__builtin_cpu_supports("avx2"))
        say(f, LEVEL_OK, "", "AVX2");
    else
        say(f, LEVEL_WARN, hint, "neither AVX2 nor AVX-512");
#else
    say(f, LEVEL_WARN, hint, "no vector code for this processor: the plain C path runs");
#endif
}

static void check_cores(const struct machine *m, struct finding *f)
{
    (void)m;
    cpu_set_t set;
    int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    say(f, usable < 2 ? LEVEL_WARN : LEVEL_OK,
        usable < 2 ? "the stages overlap only on two cores or more" : "", "%d usable of %ld",
        usable, sysconf(_SC_NPROCESSORS_ONLN));
}

static void check_numa(const struct machine *m, struct finding *f)
{
    (void)m;
    int nodes = numa_available() < 0 ? 1 : numa_num_configured_nodes();
    say(f, LEVEL_OK, "", "%d%s", nodes, nodes > 1 ? ": the hot pool is spread over them" : "");
}

/* ---- memory ------------------------------------------------------------------------------ */

static void check_memory(const struct machine *m, struct finding *f)
{
    (void)m;
    struct memory_room room;
    memory_room_read(&room, "");
    double free_gib = (double)room.bytes / GIB;
    say(f, free_gib < 1 ? LEVEL_WARN : LEVEL_OK,
        free_gib < 1 ? "--hot-mb and --gpu-kv-mb take a share of what is free" : "",
        "%.1f GiB free", free_gib);
}

/* What cannot be asked has none. */
static double gib_in(const char *path)
{
    uint64_t room = disk_room(path);
    return room == UINT64_MAX ? 0 : (double)room / GIB;
}

static void check_shm(const struct machine *m, struct finding *f)
{
    (void)m;
    static const char hint[] = "mount -o remount,size=8G /dev/shm; for a container --shm-size=8g";
    double gib = gib_in("/dev/shm");
    if (access("/dev/shm", W_OK | X_OK) != 0)
        say(f, LEVEL_MISSING, hint, "cannot be written: %s", strerror(errno));
    else if (gib < 1.0 / 64)
        say(f, LEVEL_MISSING, hint, "%.0f MiB free: the shared memory does not fit", gib * 1024);
    else
        say(f, gib < 0.5 ? LEVEL_WARN : LEVEL_OK, gib < 0.5 ? hint : "", "%.2f GiB free", gib);
}

static void check_huge_pages(const struct machine *m, struct finding *f)
{
    (void)m;
    uint64_t huge, bytes;
    struct hill_why why;
    int code = probe_huge_pages(&huge, &bytes, &why);
    if (code != 0)
        say(f, LEVEL_WARN, "", "not known: a segment in /dev/shm failed: %s", why.text);
    else if (huge)
        say(f, LEVEL_OK, "", "shared memory gets them");
    else
        say(f, LEVEL_WARN, "mount -o remount,huge=advise /dev/shm (as root)",
            "shared memory gets none");
}

/* ---- the state folder -------------------------------------------------------------------- */

static void check_state_dir(const struct machine *m, struct finding *f)
{
    static const char hint[] =
        "--state-dir DIR (or HILL_STATE_DIR) on a disk with room, or --csd none";
    double gib = gib_in(m->state_dir);
    if (m->scrap_fd < 0)
        say(f, LEVEL_MISSING, hint, "%.300s cannot be written: %.150s", m->state_dir,
            m->scrap_why.text);
    else
        say(f, gib < 1 ? LEVEL_WARN : LEVEL_OK, gib < 1 ? hint : "", "%.300s, %.1f GiB free",
            m->state_dir, gib);
}

static void check_direct(const struct machine *m, struct finding *f)
{
    if (m->scrap_fd < 0)
        say(f, LEVEL_WARN, "", "not tried: no state folder");
    else if (m->scrap_direct)
        say(f, LEVEL_OK, "", "a file in the state folder opens with it");
    else
        say(f, LEVEL_WARN, "a state folder on ext4, xfs or btrfs",
            "refused (%.200s): the cold pool goes through the page cache", m->direct_why.text);
}

static void check_io_uring(const struct machine *m, struct finding *f)
{
    static const char hint[] =
        "Linux 5.11 or later, sysctl kernel.io_uring_disabled=0; a container "
        "needs a seccomp profile that allows it";
    struct hill_why why;
    if (m->scrap_fd < 0)
        say(f, LEVEL_WARN, "", "not tried: no state folder");
    else if (probe_io_uring(m->scrap_fd, &why) == 0)
        say(f, LEVEL_OK, "", "wrote and read a block%s", m->scrap_direct ? " with O_DIRECT" : "");
    else
        say(f, LEVEL_WARN, hint, "does not work (%.150s): the drive is read with pread, slower",
            why.text);
}

/* ---- tools ------------------------------------------------------------------------------- */

static bool in_path(const char *program)
{
    char copy[8192], path[8192 + 64], *rest = NULL;
    const char *folders = getenv("PATH");
    snprintf(copy, sizeof copy, "%s", folders ? folders : "");
    for (char *folder = strtok_r(copy, ":", &rest); folder; folder = strtok_r(NULL, ":", &rest)) {
        snprintf(path, sizeof path, "%s/%s", folder, program);
        if (access(path, X_OK) == 0)
            return true;
    }
    return false;
}

static void check_perf(const struct machine *m, struct finding *f)
{
    (void)m;
    int paranoid = 2;
    FILE *file = fopen("/proc/sys/kernel/perf_event_paranoid", "re");
    if (file && fscanf(file, "%d", &paranoid) != 1)
        paranoid = 2;
    if (file)
        fclose(file);
    if (!in_path("perf"))
        say(f, LEVEL_WARN, "apt install linux-perf", "not installed (for hillinfer perf)");
    else if (!file)
        say(f, LEVEL_WARN, "", "this kernel has no perf events (for hillinfer perf)");
    else if (paranoid > 2 && geteuid() != 0)
        say(f, LEVEL_WARN, "sysctl kernel.perf_event_paranoid=2 (as root)",
            "kernel.perf_event_paranoid is %d: users may not profile", paranoid);
    else
        say(f, LEVEL_OK, "", "installed, kernel.perf_event_paranoid is %d", paranoid);
}

static void check_hardening(const struct machine *m, struct finding *f)
{
    (void)m;
    int landlock = harden_landlock_version();
    bool seccomp = harden_has_seccomp();
    say(f, landlock && seccomp ? LEVEL_OK : LEVEL_WARN,
        landlock ? "" : "boot with landlock in lsm= (CONFIG_SECURITY_LANDLOCK)",
        landlock ? "%sseccomp, Landlock %d" : "%sseccomp, no Landlock", seccomp ? "" : "no ",
        landlock);
}

static void check_jq(const struct machine *m, struct finding *f)
{
    (void)m;
    bool there = in_path("jq");
    say(f, there ? LEVEL_OK : LEVEL_WARN, there ? "" : "apt install jq", "%s",
        there ? "installed" : "not installed (for hillinfer perf, restart and chat)");
}

/* The helper's process is started, as for a model whose template is not built in. */
static void check_jinja(const struct machine *m, struct finding *f)
{
    static const char template[] = "{{ messages[0].content }}";
    static const struct chat_vocabulary none = {.bos = "", .eos = ""};
    const struct chat_message turn = {CHAT_USER, "hello", 5};
    struct chat_prompt prompt;
    struct hill_why why = {{0}};
    (void)m;
    int code = chat_helper_render(&prompt, template, sizeof template - 1, &none, false, &turn, 1,
                                  -1, &why);
    if (code == 0)
        say(f, LEVEL_OK, "", "Jinja renders those that are not built in");
    else
        say(f, LEVEL_WARN, "apt install python3-jinja2",
            "Jinja does not run, so models whose template is not built in cannot chat: %.250s",
            why.text);
    chat_prompt_finish(&prompt);
}

/* ---- all --------------------------------------------------------------------------------- */

static const struct {
    const char *key, *title;
    void (*run)(const struct machine *m, struct finding *f);
} checks[] = {
    {"programs", "programs", check_programs},
    {"opencl", "OpenCL devices", check_devices},
    {"simd", "vector units", check_simd},
    {"cores", "cores", check_cores},
    {"numa", "NUMA nodes", check_numa},
    {"memory", "memory", check_memory},
    {"shm", "/dev/shm", check_shm},
    {"huge_pages", "huge pages", check_huge_pages},
    {"state_dir", "state folder", check_state_dir},
    {"o_direct", "O_DIRECT", check_direct},
    {"io_uring", "io_uring", check_io_uring},
    {"hardening", "hardening", check_hardening},
    {"perf", "perf", check_perf},
    {"jq", "jq", check_jq},
    {"chat_templates", "chat templates", check_jinja},
};

#define CHECK_COUNT (sizeof checks / sizeof checks[0])

/* The folder and what leads to it; what is there already is fine. The length of the first part that
 * was made. */
static size_t make_folders(const char *path)
{
    char part[HILL_PATH_BYTES];
    size_t made = 0;
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0700) == 0 && !made)
            made = strlen(part);
        *slash = '/';
    }
    if (mkdir(part, 0700) == 0 && !made)
        made = strlen(part);
    return made;
}

static void remove_made_folders(const struct machine *m)
{
    char part[HILL_PATH_BYTES];
    snprintf(part, sizeof part, "%s", m->state_dir);
    char *end = m->made ? part + strlen(part) : NULL;
    for (; end && end >= part + m->made; end = strrchr(part, '/')) {
        *end = '\0';
        rmdir(part);
    }
}

static int machine_open(struct machine *m, const struct options *options, struct hill_why *why)
{
    int code = hill_state_dir(m->state_dir, options, why);
    if (code != 0)
        return code;
    ssize_t got = readlink("/proc/self/exe", m->programs, sizeof m->programs - 1);
    m->programs[got > 0 ? got : 0] = '\0';
    char *slash = strrchr(m->programs, '/');
    if (slash)
        *slash = '\0';
    /* as the coordinator would; a failure shows in the next line */
    m->made = make_folders(m->state_dir);
    m->scrap_fd = probe_open_scrap(m->state_dir, true, &m->direct_why);
    m->scrap_direct = m->scrap_fd >= 0;
    if (m->scrap_fd < 0)
        m->scrap_fd = probe_open_scrap(m->state_dir, false, &m->scrap_why);
    return 0;
}

static int print_json(const struct finding *findings, bool can_run, struct hill_why *why)
{
    json_t *object = json_object(), *list = json_object();
    for (unsigned i = 0; i < CHECK_COUNT; i++) {
        const struct finding *f = &findings[i];
        json_object_set_new(
            list, checks[i].key,
            json_pack("{s:s, s:o, s:o}", "level", level_names[f->level], "text",
                      json_text(f->text, strlen(f->text)), "hint",
                      f->hint[0] ? json_text(f->hint, strlen(f->hint)) : json_null()));
    }
    json_object_set_new(object, "can_run", json_boolean(can_run));
    json_object_set_new(object, "checks", list);
    return report_write_json(object, why);
}

static void print_lines(const struct finding *findings, bool can_run)
{
    for (unsigned i = 0; i < CHECK_COUNT; i++) {
        const struct finding *f = &findings[i];
        printf("%-8s %-15s %s", level_names[f->level], checks[i].title, f->text);
        printf(f->hint[0] ? "; %s\n" : "%s\n", f->hint);
    }
    printf("%s\n", can_run ? "the pipeline can run here" : "the pipeline cannot run here yet");
}

static const struct option_spec doctor_specs[] = {
    OPTION("state-dir", PATH, "DIR", "state folder to look at",
           .unset_help = "${XDG_STATE_HOME:-~/.local/state}/hillinfer"),
    OPTION("json", FLAG, NULL, "print one JSON object"),
};

static int examine(const struct options *options, struct hill_why *why)
{
    struct machine machine = {.scrap_fd = -1};
    struct finding findings[CHECK_COUNT] = {0};
    bool can_run = true;
    int code = machine_open(&machine, options, why);
    for (unsigned i = 0; code == 0 && i < CHECK_COUNT; i++) {
        checks[i].run(&machine, &findings[i]);
        can_run = can_run && findings[i].level != LEVEL_MISSING;
    }
    if (code == 0 && options_flag(options, "json"))
        code = print_json(findings, can_run, why);
    else if (code == 0)
        print_lines(findings, can_run);
    if (machine.scrap_fd >= 0)
        close(machine.scrap_fd);
    remove_made_folders(&machine);
    return code || can_run ? code : HILL_E_NODEV;
}

int command_doctor(int argc, char **argv)
{
    const struct option_table tables[] = {
        HILL_COMMON_TABLE,
        {.title = "doctor", .specs = doctor_specs, .count = 2},
        {.specs = hill_pipeline_specs, .count = hill_pipeline_count, .foreign = true},
        {.specs = hill_request_specs, .count = hill_request_count, .foreign = true},
        HILL_FOREIGN_HTTP_TABLE,
    };
    const struct option_program program = {
        .name = "hillctl doctor",
        .usage = "[--json] [--state-dir DIR]",
        .summary =
            "Say what this machine has, what is missing, and how to get it.\nEach line is ok, "
            "warn (it runs, but slower or with less) or missing (it cannot run: exit 111).",
        .example = "hillctl doctor",
        .tables = tables,
        .n_tables = sizeof tables / sizeof tables[0],
    };
    return options_main(&program, argc, argv, NULL, examine);
}
