/* coordinator/notify.c - see notify.h. */
#include "coordinator/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define ALIVE_NS CLOCK_MS(1000)

/* False: no name of a socket. */
static bool read_address(struct notify *n, const char *name)
{
    size_t length = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || length < 2 || length >= sizeof n->to.sun_path)
        return false;
    n->to.sun_family = AF_UNIX;
    memcpy(n->to.sun_path, name, length);
    bool abstract = name[0] == '@';
    if (abstract)
        n->to.sun_path[0] = '\0';
    n->to_bytes = (unsigned)(offsetof(struct sockaddr_un, sun_path) + length + (abstract ? 0 : 1));
    return true;
}

/* Half of what the manager waits; 0: it does not wait for this process. */
static int64_t watchdog_interval(void)
{
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    long long value = usec ? strtoll(usec, NULL, 10) : 0;
    if (pid && strtoll(pid, NULL, 10) != getpid())
        return 0;
    return value > 0 && value < INT64_MAX / 1000 ? value * 1000 / 2 : 0;
}

void notify_open(struct notify *n, int64_t now_ns)
{
    const char *name = getenv("NOTIFY_SOCKET");
    *n = (struct notify){.fd = -1, .next_ns = CLOCK_NEVER, .alive_fd = -1, .alive_ns = CLOCK_NEVER};
    if (name && *name) {
        if (read_address(n, name))
            n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (n->fd < 0)
            log_warn("NOTIFY_SOCKET %.100s cannot be used; the service manager hears nothing",
                     name);
        n->watchdog_ns = n->fd < 0 ? 0 : watchdog_interval();
        n->next_ns = n->watchdog_ns ? now_ns : CLOCK_NEVER;
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void notify_alive(struct notify *n, int fd, int64_t now_ns)
{
    n->alive_fd = fd;
    n->alive_ns = fd < 0 ? CLOCK_NEVER : now_ns;
    if (fd >= 0) /* who watches may be stopped: then nothing is written, and nobody waits */
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static void close_alive(struct notify *n)
{
    if (n->alive_fd >= 0)
        close(n->alive_fd);
    n->alive_fd = -1;
    n->alive_ns = CLOCK_NEVER;
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
    close_alive(n);
}

void notify_send(const struct notify *n, const char *text)
{
    if (n->fd < 0)
        return;
    if (sendto(n->fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&n->to,
               n->to_bytes) < 0)
        log_debug("telling the service manager failed: %s", strerror(errno));
}

static void say_alive(struct notify *n, int64_t now_ns)
{
    char line[32];
    int length = snprintf(line, sizeof line, "%ld\n", (long)getpid());
    n->alive_ns = now_ns + ALIVE_NS;
    if (write(n->alive_fd, line, (size_t)length) < 0 && errno != EAGAIN) {
        log_warn("nobody watches over this process any more: %s", strerror(errno));
        close_alive(n);
    }
}

void notify_tick(struct notify *n, int64_t now_ns)
{
    if (now_ns >= n->alive_ns)
        say_alive(n, now_ns);
    if (now_ns < n->next_ns)
        return;
    notify_send(n, "WATCHDOG=1");
    n->next_ns = now_ns + n->watchdog_ns;
}

int64_t notify_next_ns(const struct notify *n)
{
    return n->alive_ns < n->next_ns ? n->alive_ns : n->next_ns;
}
