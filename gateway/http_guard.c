/* gateway/http_guard.c - see http_guard.h. */
#include "gateway/http_guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Bytes of the name in "name:port" or "[::1]:port". */
static size_t name_bytes(const char *host)
{
    return host[0] == '[' ? strcspn(host, "]") + (strchr(host, ']') != NULL) : strcspn(host, ":");
}

/* No name, so that nobody can have it point here in a browser. */
static bool is_address(const char *host)
{
    struct in6_addr address;
    return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

/* "box", "box.local" or the whole name, where this machine is called box. */
static bool is_own_name(const char *host)
{
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    size_t bytes = strcspn(own, ".");
    return bytes && (strcasecmp(host, own) == 0 ||
                     (strncasecmp(host, own, bytes) == 0 &&
                      (!host[bytes] || strcasecmp(host + bytes, ".local") == 0)));
}

static bool names_this_machine(const struct gateway_settings *settings, const char *host)
{
    char name[256];
    size_t bytes = name_bytes(host);
    if (bytes >= sizeof name)
        return false;
    memcpy(name, host, bytes);
    name[bytes] = '\0';
    if (name[0] == '[' && bytes > 2) {
        name[bytes - 1] = '\0';
        memmove(name, name + 1, bytes - 1);
    }
    return strcasecmp(name, "localhost") == 0 || gateway_is_loopback(name) ||
           strcasecmp(name, settings->host) == 0 ||
           (!gateway_is_loopback(settings->host) && (is_address(name) || is_own_name(name)));
}

/* "http://HOST" with the request's own Host: a page that this gateway sent; "https://HOST": through
 * a proxy. */
static bool is_own(const char *origin, const char *host)
{
    size_t scheme = strncasecmp(origin, "http://", 7) == 0    ? 7
                    : strncasecmp(origin, "https://", 8) == 0 ? 8
                                                              : 0;
    return host && scheme && strcasecmp(origin + scheme, host) == 0;
}

const char *http_guard_allow(const struct gateway_settings *settings, const char *origin)
{
    if (!settings->cors || !origin)
        return NULL;
    if (strcmp(settings->cors, "*") == 0)
        return "*";
    return strcasecmp(settings->cors, origin) == 0 ? settings->cors : NULL;
}

const char *http_guard_why_not(const struct gateway_settings *settings, const char *host,
                               const char *origin)
{
    if (!settings->keys.n && host && !names_this_machine(settings, host))
        return "this gateway is for this machine: its Host is localhost or an address of it";
    if (origin && !is_own(origin, host) && !http_guard_allow(settings, origin))
        return "a page of another origin may not ask: see --cors";
    return NULL;
}
