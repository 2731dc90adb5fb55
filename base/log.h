/*
 * base/log.h - log lines on stderr, one write each.
 *
 * What: "<hh:mm:ss> <process>: <level>: <what was attempted, on what, why it failed, what happens
 * next>". The time, local, is left out where the journal keeps it (JOURNAL_STREAM names what
 * stderr is).
 * Levels: error, warn, info, debug; the threshold comes from --log-level (default info).
 * Who calls it: processes; libraries report through return codes and struct hill_why instead.
 * Concurrency: any thread. A line is one write(2), so lines of several processes do not mix.
 */
#pragma once

enum hill_log_level { HILL_LOG_ERROR, HILL_LOG_WARN, HILL_LOG_INFO, HILL_LOG_DEBUG };

/* Set the process name (kept, not copied) and the threshold; before the process is confined, for
 * the time zone is read here. */
void hill_log_init(const char *process, enum hill_log_level threshold);

/* Parse "error|warn|info|debug"; HILL_E_INVALID otherwise. */
int hill_log_parse_level(const char *text, enum hill_log_level *out);

void hill_log(enum hill_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define log_error(...) hill_log(HILL_LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  hill_log(HILL_LOG_WARN, __VA_ARGS__)
#define log_info(...)  hill_log(HILL_LOG_INFO, __VA_ARGS__)
#define log_debug(...) hill_log(HILL_LOG_DEBUG, __VA_ARGS__)
