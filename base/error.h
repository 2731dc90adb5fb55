/*
 * base/error.h - the project's error codes and their words.
 *
 * What: every fallible function returns 0 (or a documented non-negative value) or one of the
 * negative codes below; hill_strerror() names it, hill_exit_code() maps it to the exit code that
 * a process ends with (0 done, 1 request failed, 100 wrong use, 111 environment, 130 cancelled).
 * A function that has more to say than the code fills a struct hill_why: one line, lower case,
 * no full stop, naming what was attempted, on what, and why it failed.
 * Who calls it: everyone. Concurrency: stateless.
 */
#pragma once

enum hill_error {
    HILL_OK = 0,
    HILL_E_INVALID = -1,     /* bad argument or configuration (exit 100) */
    HILL_E_NOMEM = -2,       /* out of memory (exit 111) */
    HILL_E_NOSPACE = -3,     /* no room on the device or in a hard cap (exit 111) */
    HILL_E_IO = -4,          /* the operating system refused or failed an operation (exit 111) */
    HILL_E_PERMISSION = -5,  /* not allowed (exit 111) */
    HILL_E_NODEV = -6,       /* no such device (exit 111) */
    HILL_E_DAMAGED = -7,     /* a file or message is damaged, truncated or foreign (exit 1) */
    HILL_E_UNSUPPORTED = -8, /* well formed, but not something this build can do (exit 1) */
    HILL_E_WOULD_BLOCK = -9, /* not now: no room or nothing there; try again after a wait */
    HILL_E_PEER_GONE = -10,  /* the other side has closed or died */
    HILL_E_TIMEOUT = -11,    /* a deadline passed */
    HILL_E_BUSY = -12,       /* someone else holds it (second pipeline in a run folder; exit 100) */
    HILL_E_TOO_LONG = -13,   /* a request that cannot fit (exit 1) */
    HILL_E_CANCELLED = -14,  /* the user stopped it (exit 130) */
    HILL_E_PROTOCOL = -15,   /* a message out of range or out of order (exit 1) */
    HILL_E_ENTRY = -16, /* a KV entry is damaged where it is kept: it can be made again (exit 1) */
    HILL_E_LAST = HILL_E_ENTRY,
};

/* One line that says what failed and why; filled by the function that failed. */
struct hill_why {
    char text[512];
};

/* Line ends and tabs become spaces, other control characters '?': what a message quotes (an
 * argument, a file's name, a model's text) must neither end its line nor speak to the terminal. */
void hill_one_line(char *text);

/* printf into why (NULL allowed) and return code, so that `return hill_fail(...)` reads well. The
 * text is one line. */
int hill_fail(struct hill_why *why, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The name of a code, e.g. "no space"; never NULL. */
const char *hill_strerror(int code);

/* Translate errno into a code. */
int hill_from_errno(int err);

/* The process's exit code for an error code (docs/interface.md). */
int hill_exit_code(int code);
