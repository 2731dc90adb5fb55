/*
 * coordinator/notify.h - what a service manager hears: sd_notify's protocol, without its library.
 *
 * What: datagrams to the socket that $NOTIFY_SOCKET names (a path, or @name for an abstract one):
 * READY=1, STATUS= one line, WATCHDOG=1 twice in each $WATCHDOG_USEC, STOPPING=1. Without the
 * variable nothing is sent. Protocol: sd_notify(3), sd_watchdog_enabled(3). Who calls it:
 * pipeline.c, whose loop feeds the watchdog: one that does not go round is not fed. Concurrency:
 * one thread. Failure: what cannot be sent is lost; a manager that misses it says so itself.
 */
#ifndef HILL_COORDINATOR_NOTIFY_H
#define HILL_COORDINATOR_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

struct notify {
    int fd; /* -1: nobody asked */
    struct sockaddr_un to;
    unsigned to_bytes;
    int64_t watchdog_ns, next_ns; /* 0 and CLOCK_NEVER: no watchdog */
};

/* Reads the three variables and takes them out of the environment: they are not the workers'. */
void notify_open(struct notify *n, int64_t now_ns);
void notify_close(struct notify *n);

/* VARIABLE=VALUE lines. */
void notify_send(const struct notify *n, const char *text);
/* Feed the watchdog when that is due. */
void notify_tick(struct notify *n, int64_t now_ns);

#endif
