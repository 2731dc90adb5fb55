/* gateway/listening.c - see listening.h. */
#include "gateway/listening.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    struct sockaddr_un local;
};

static const char *path_of(const struct gateway_settings *s)
{
    return s->host + strlen("unix:");
}

static int make_address(union address *out, socklen_t *bytes, const struct gateway_settings *s,
                        struct hill_why *why)
{
    const char *host = strcmp(s->host, "localhost") == 0 ? "127.0.0.1" : s->host;
    memset(out, 0, sizeof *out);
    if (gateway_is_unix(host)) {
        size_t length = strlen(path_of(s));
        if (!length || length >= sizeof out->local.sun_path)
            return hill_fail(why, HILL_E_INVALID,
                             "--host %.120s: a socket's path has 1 to %zu bytes", host,
                             sizeof out->local.sun_path - 1);
        out->local.sun_family = AF_UNIX;
        memcpy(out->local.sun_path, path_of(s), length);
        *bytes = sizeof out->local;
    } else if (inet_pton(AF_INET, host, &out->four.sin_addr) == 1) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons(s->port);
        *bytes = sizeof out->four;
    } else if (inet_pton(AF_INET6, host, &out->six.sin6_addr) == 1) {
        out->six.sin6_family = AF_INET6;
        out->six.sin6_port = htons(s->port);
        *bytes = sizeof out->six;
    } else {
        return hill_fail(why, HILL_E_INVALID,
                         "--host %.100s is neither an IPv4 or IPv6 address nor localhost nor "
                         "unix:PATH",
                         host);
    }
    return 0;
}

/* The socket of a gateway that was killed: nobody answers there. */
static void remove_stale(const union address *address, socklen_t bytes)
{
    struct stat info;
    const char *path = address->local.sun_path;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, &address->any, bytes) != 0 && errno == ECONNREFUSED &&
        lstat(path, &info) == 0 && S_ISSOCK(info.st_mode))
        unlink(path);
    close(fd);
}

static uint16_t port_of(int fd)
{
    union address got;
    socklen_t bytes = sizeof got;
    if (getsockname(fd, &got.any, &bytes))
        return 0;
    return got.any.sa_family == AF_INET    ? ntohs(got.four.sin_port)
           : got.any.sa_family == AF_INET6 ? ntohs(got.six.sin6_port)
                                           : 0;
}

int gateway_listen(int *out, uint16_t *port, const struct gateway_settings *s, struct hill_why *why)
{
    union address address;
    socklen_t bytes = 0;
    int one = 1, code = make_address(&address, &bytes, s, why);
    if (code)
        return code;
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool local = address.any.sa_family == AF_UNIX;
    if (fd >= 0 && local)
        remove_stale(&address, bytes);
    if (fd >= 0 && !local)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd >= 0 && bind(fd, &address.any, bytes) == 0 && (!local || chmod(path_of(s), 0600) == 0) &&
        listen(fd, BACKLOG) == 0) {
        *out = fd;
        *port = port_of(fd);
        return 0;
    }
    int failed = errno;
    if (fd >= 0)
        close(fd);
    return local ? hill_fail(why, hill_from_errno(failed), "cannot listen on %.120s: %s", s->host,
                             strerror(failed))
                 : hill_fail(why, hill_from_errno(failed),
                             "cannot listen on %.100s, port %u: %s; see --port", s->host, s->port,
                             strerror(failed));
}

void gateway_unlisten(const struct gateway_settings *s)
{
    if (gateway_is_unix(s->host))
        unlink(path_of(s));
}
