/* base/log.c - see log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

static const char *process_name = "hill";
static enum hill_log_level log_threshold = HILL_LOG_INFO;
static bool log_times;
static const char *const level_names[] = {"error", "warn", "info", "debug"};

/* Is stderr the journal's? The variable alone does not say so: who is started from a unit inherits
 * it, whatever its stderr is. */
static bool goes_to_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    char own[64];
    struct stat is;
    if (!stream || fstat(STDERR_FILENO, &is))
        return false;
    snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)is.st_dev,
             (unsigned long long)is.st_ino);
    return strcmp(stream, own) == 0;
}

void hill_log_init(const char *process, enum hill_log_level threshold)
{
    process_name = process;
    log_threshold = threshold;
    log_times = !goes_to_journal();
    tzset();
}

int hill_log_parse_level(const char *text, enum hill_log_level *out)
{
    for (int i = 0; i <= HILL_LOG_DEBUG; i++)
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum hill_log_level)i;
            return 0;
        }
    return HILL_E_INVALID;
}

void hill_log(enum hill_log_level level, const char *format, ...)
{
    if (level > log_threshold)
        return;
    char line[1024], at[16] = "";
    time_t now = time(NULL);
    struct tm local;
    if (log_times && localtime_r(&now, &local))
        strftime(at, sizeof at, "%H:%M:%S ", &local);
    int used = snprintf(line, sizeof line, "%s%s: %s: ", at, process_name, level_names[level]);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = (size_t)used + (more > 0 ? (size_t)more : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    hill_one_line(line);
    line[length++] = '\n';
    /* A log line that cannot be written has nowhere to be reported. */
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored;
}
