/*
 * coordinator/notify.h - what a service manager hears (sd_notify's protocol, without its library),
 * and who watches over this process.
 *
 * What: datagrams to the socket that $NOTIFY_SOCKET names (a path, or @name for an abstract one):
 * READY=1, STATUS= one line, WATCHDOG=1 twice in each $WATCHDOG_USEC, STOPPING=1. Without the
 * variable nothing is sent. Protocol: sd_notify(3), sd_watchdog_enabled(3). `scripts/hillinfer`
 * gives a pipe (--alive-fd): a line with this process's pid every second, the first from the loop.
 * Who calls it: pipeline.c, whose loop feeds both: one that does not go round feeds none.
 * Concurrency: one thread. Failure: what cannot be sent is lost; a manager that misses it says so
 * itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: nobody asked */
    struct sockaddr_un to;
    unsigned to_bytes;
    int64_t watchdog_ns, next_ns; /* 0 and CLOCK_NEVER: no watchdog */
    int alive_fd;                 /* -1: nobody reads there */
    int64_t alive_ns;             /* when it is written to next */
};

/* Reads the three variables and takes them out of the environment: they are not the workers'. */
void notify_open(struct notify *n, int64_t now_ns);
/* Writes to this pipe, too; -1: to none. It is closed with n, or when nobody reads there any
 * more. */
void notify_alive(struct notify *n, int fd, int64_t now_ns);
void notify_close(struct notify *n);

/* VARIABLE=VALUE lines. */
void notify_send(const struct notify *n, const char *text);
/* What is due. */
void notify_tick(struct notify *n, int64_t now_ns);
int64_t notify_next_ns(const struct notify *n); /* when that is; CLOCK_NEVER */
