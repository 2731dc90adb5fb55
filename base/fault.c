/* base/fault.c - specs read, times counted, the deed; see fault.h. Empty in other builds. */
#ifdef HILL_FAULTS

#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault_calls.h"

#define SPECS_MAX 16u

enum fault_action { ACTION_KILL, ACTION_STOP, ACTION_FAIL };

struct spec {
    enum fault_point point;
    enum fault_action action;
    unsigned long at, seen;
    bool and_after, ours, from_file;
};

static const struct {
    const char *process, *name, *text; /* a kind is of every process: "" */
} points[FAULT_COUNT] = {
#define FAULT_ROW(process, part, moment, text) {#process, #part "." #moment, text},
    FAULT_LIST(FAULT_ROW)
#undef FAULT_ROW
#define FAULT_ROW(name, text) {"", #name, text},
        FAULT_KINDS(FAULT_ROW)
#undef FAULT_ROW
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct spec specs[SPECS_MAX];
static unsigned n_specs;     /* of the environment: the file's, if any, follows */
static bool with_file;       /* specs[n_specs] is there */
static struct stat file_was; /* when it was read */
static const char *file_path;
static char process_name[64];

void fault_list(FILE *to)
{
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        fprintf(to, "%s:%s\t%s\n", points[i].process, points[i].name, points[i].text);
}

/* One line on stderr; without memory. */
static void say(const char *format, ...)
{
    char line[512];
    int used = snprintf(line, sizeof line, "%s: fault: ", program_invocation_short_name);
    va_list args;
    va_start(args, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (used > (int)sizeof line - 2)
        used = (int)sizeof line - 2;
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)used);
    (void)ignored;
}

/* ---- specs ---------------------------------------------------------------------------------- */

static void refuse(const char *text, const char *reason)
{
    say("'%s' is no PROCESS:POINT:ACTION[:N[+]]: %s", text, reason);
    _exit(100);
}

static bool is_process(const char *name)
{
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        if (*points[i].process && strcmp(points[i].process, name) == 0)
            return true;
    return strcmp(name, process_name) == 0; /* a test of this module */
}

static enum fault_point find_point(const char *process, const char *name)
{
    unsigned i = 0;
    while (i < FAULT_COUNT && (strcmp(points[i].name, name) != 0 ||
                               (*points[i].process && strcmp(points[i].process, process) != 0)))
        i++;
    return (enum fault_point)i;
}

static struct spec read_spec(const char *text)
{
    static const char *const actions[] = {"kill", "stop", "fail"};
    char copy[256], *parts[4] = {NULL}, *rest = copy, *end;
    struct spec out = {.at = 1};
    unsigned n = 0, action = 0;
    if (strlen(text) >= sizeof copy)
        refuse(text, "it is too long");
    strcpy(copy, text);
    while (rest && n < 4)
        parts[n++] = strsep(&rest, ":");
    if (rest || n < 3)
        refuse(text, "three or four parts are wanted");
    if (!is_process(parts[0]))
        refuse(text, "there is no such process");
    out.point = find_point(parts[0], parts[1]);
    if (out.point == FAULT_COUNT)
        refuse(text, "the process has no such point");
    while (action < 3 && strcmp(parts[2], actions[action]) != 0)
        action++;
    out.action = (enum fault_action)action;
    if (action == 3 || (out.action == ACTION_FAIL && *points[out.point].process))
        refuse(text, "the action is kill, stop or, of a kind of calls, fail");
    if (n == 4) {
        errno = 0;
        out.at = strtoul(parts[3], &end, 10);
        out.and_after = *end == '+';
        if (errno || end == parts[3] || end[out.and_after] || out.at == 0)
            refuse(text, "N is a number from 1 on, and perhaps a +");
    }
    out.ours = strcmp(parts[0], process_name) == 0;
    return out;
}

static void read_environment(void)
{
    const char *list = getenv("HILL_FAULT");
    const char *own = program_invocation_short_name;
    snprintf(process_name, sizeof process_name, "%s", strncmp(own, "hill-", 5) ? own : own + 5);
    for (char *c = process_name; *c; c++)
        *c = *c == '-' ? '_' : *c;
    file_path = getenv("HILL_FAULT_FILE");
    while (list && *list) {
        char text[256];
        size_t length = strcspn(list, ",");
        if (length >= sizeof text || n_specs == SPECS_MAX - 1)
            refuse(list, "it is too long");
        memcpy(text, list, length);
        text[length] = '\0';
        specs[n_specs++] = read_spec(text);
        list += length + (list[length] == ',');
    }
}

/* The file's spec, if it is another than before. */
static void look_at_file(void)
{
    struct stat is;
    char text[256];
    if (stat(file_path, &is) != 0) {
        with_file = false;
        return;
    }
    if (with_file && is.st_ino == file_was.st_ino && is.st_mtim.tv_sec == file_was.st_mtim.tv_sec &&
        is.st_mtim.tv_nsec == file_was.st_mtim.tv_nsec)
        return;
    int fd = open(file_path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : fault_real_read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    with_file = n >= 0;
    if (!with_file)
        return;
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    file_was = is;
    specs[n_specs] = read_spec(text);
    specs[n_specs].from_file = true;
}

/* ---- the deed ------------------------------------------------------------------------------- */

/* Nobody else has done it. */
static bool claim_file(void)
{
    char fired[4096];
    int length = snprintf(fired, sizeof fired, "%s.fired", file_path);
    with_file = false;
    return length < (int)sizeof fired && fault_real_rename(file_path, fired) == 0;
}

/* Is it due? With the lock. */
static bool is_due(struct spec *s, enum fault_point point)
{
    if (!s->ours || s->point != point)
        return false;
    s->seen++;
    return s->and_after ? s->seen >= s->at : s->seen == s->at;
}

bool fault_at(enum fault_point point)
{
    static const char *const verbs[] = {"killing this process", "stopping this process",
                                        "failing the call"};
    enum fault_action action = ACTION_FAIL;
    bool due = false;
    unsigned long seen = 0;
    pthread_once(&once, read_environment);
    if (!n_specs && !file_path)
        return false;
    pthread_mutex_lock(&lock);
    if (file_path)
        look_at_file();
    for (unsigned i = 0; i < n_specs + with_file; i++) { /* each counts each time */
        bool now = is_due(&specs[i], point);
        if (now && specs[i].from_file && !specs[i].and_after)
            now = claim_file();
        if (!now || due)
            continue;
        due = true;
        action = specs[i].action;
        seen = specs[i].seen;
    }
    pthread_mutex_unlock(&lock);
    if (!due)
        return false;
    say("%s at %s, time %lu", verbs[action], points[point].name, seen);
    if (action != ACTION_FAIL)
        kill(getpid(), action == ACTION_KILL ? SIGKILL : SIGSTOP);
    return action == ACTION_FAIL;
}

#endif
