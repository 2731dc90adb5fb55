/* gateway/http_server.c - see http_server.h. */
#include "gateway/http_server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/http_guard.h"

#define CONNECTION_BYTES 32768u /* of a request's head, and of what is written at once */

/* The page has its script and style in itself, asks nobody but this gateway, and is no other page's
 * frame. */
#define PAGE_MAY                                                                                   \
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "   \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

struct http_server {
    struct gateway *gateway;
    struct MHD_Daemon *daemon;
    int watch_fd; /* an epoll of the connections that wait for an answer: is the client there? */
    bool closing;
    bool room; /* a connection has ended: one that waits is taken in libmicrohttpd's next turn */
    struct exchange *exchanges;
    struct line *lines;
};

/* A connection: libmicrohttpd bounds its silence, nobody else how long a head may take. */
struct line {
    struct line *next;
    int fd;
    bool asked;           /* a request's head is whole, and it is not answered yet */
    int64_t head_ends_ns; /* otherwise: the next one is whole until then */
};

/* One request on one connection. */
struct exchange {
    struct exchange *next;
    struct http_server *server;
    struct MHD_Connection *connection;
    struct job *job;
    int fd;         /* in watch_fd; -1: not */
    bool suspended; /* libmicrohttpd leaves the connection alone */
    bool gone;
    bool unclear;         /* where its body ends: nothing is read behind it */
    int64_t body_ends_ns; /* a body that was refused is swallowed until then */
    bool queued;          /* the answer's head is libmicrohttpd's */
    const char *allow;    /* Access-Control-Allow-Origin, or NULL */
};

static const char *header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static void suspend(struct exchange *x)
{
    if (!x->suspended && !x->server->closing)
        MHD_suspend_connection(x->connection);
    x->suspended = !x->server->closing;
}

static void resume(struct exchange *x)
{
    if (x->suspended)
        MHD_resume_connection(x->connection);
    x->suspended = false;
}

/* ---- answers --------------------------------------------------------------------------------- */

static ssize_t read_answer(void *context, uint64_t position, char *to, size_t room)
{
    struct exchange *x = context;
    struct text_buffer *out = &x->job->out;
    (void)position;
    if (x->gone || x->server->closing)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (out->length) {
        size_t n = out->length < room ? out->length : room;
        memcpy(to, out->bytes, n);
        text_drop(out, n);
        return (ssize_t)n;
    }
    if (x->job->closed)
        return out->failed ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    suspend(x);
    return 0;
}

static void add_headers(const struct exchange *x, struct MHD_Response *response)
{
    const struct job *job = x->job;
    char number[24];
    if (job->content_type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, job->content_type);
    if (job->retry_after_s) {
        snprintf(number, sizeof number, "%u", job->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number);
    }
    if (job->request) {
        snprintf(number, sizeof number, "%" PRIu64, job->request);
        MHD_add_response_header(response, "X-Request-Id", number);
    }
    if (job->route.allow)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, job->route.allow);
    if (job->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (job->stream) /* nginx passes it on as it comes */
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (x->unclear)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (job->route.endpoint == ENDPOINT_PAGE)
        MHD_add_response_header(response, "Content-Security-Policy", PAGE_MAY);
    if (x->allow) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", x->allow);
        const char *wanted =
            header(x, "Access-Control-Request-Headers"); /* a library sends its own */
        MHD_add_response_header(response, "Access-Control-Allow-Headers",
                                wanted ? wanted : "authorization, content-type, x-api-key");
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(response, "Access-Control-Expose-Headers", "X-Request-Id");
        MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Origin");
    }
}

static enum MHD_Result queue_answer(struct exchange *x)
{
    struct job *job = x->job;
    if (job->out.failed)
        return MHD_NO;
    struct MHD_Response *response =
        job->stream ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CONNECTION_BYTES / 2,
                                                        read_answer, x, NULL)
                    : MHD_create_response_from_buffer(job->out.length, job->out.bytes,
                                                      MHD_RESPMEM_MUST_COPY);
    if (!response)
        return MHD_NO;
    add_headers(x, response);
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)job->status, response);
    MHD_destroy_response(response);
    x->queued = result == MHD_YES;
    return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Who asks? -1 with *error: nobody who may. */
static int find_key(struct exchange *x, struct api_error *error)
{
    const struct api_keys *keys = &x->server->gateway->settings->keys;
    const char *offered = api_keys_bearer(header(x, MHD_HTTP_HEADER_AUTHORIZATION));
    if (!keys->n || x->job->route.open)
        return 0;
    if (!offered)
        offered = header(x, "X-Api-Key");
    if (!offered)
        return api_refuse(error, 401, "missing_api_key", NULL,
                          "a key is needed: Authorization: Bearer KEY");
    x->job->key = api_keys_find(keys, offered, strlen(offered));
    return x->job->key < 0 ? api_refuse(error, 401, "invalid_api_key", NULL, "the key is wrong")
                           : 0;
}

static int check_length(const struct exchange *x, struct api_error *error)
{
    const char *length = header(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t largest = x->server->gateway->settings->body_bytes;
    return length && strtoull(length, NULL, 10) > largest
               ? api_refuse(error, 413, "body_too_large", NULL,
                            "the body is larger than %llu bytes", (unsigned long long)largest)
               : 0;
}

static enum MHD_Result count_named(void *context, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    unsigned *n = context;
    (void)kind;
    (void)value;
    n[0] += strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    n[1] += strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* A proxy before this and this have to agree where a body ends (RFC 9112, section 6.3). */
static int check_framing(struct exchange *x, struct api_error *error)
{
    const char *coding = header(x, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    unsigned n[2] = {0, 0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_named, n);
    x->unclear = n[0] + n[1] > 1 || (coding && strcasecmp(coding, "chunked") != 0);
    return x->unclear ? api_refuse(error, 400, "unclear_length", NULL,
                                   "one Content-Length, or Transfer-Encoding: chunked, and no more")
                      : 0;
}

/* A browser asks beforehand whether a page may. */
static bool is_preflight(const struct exchange *x, const char *method)
{
    return x->allow && strcmp(method, MHD_HTTP_METHOD_OPTIONS) == 0;
}

/* Everything that is known of a request before its body. */
static int admit(struct exchange *x, const char *method, const char *path, struct api_error *error)
{
    const struct gateway_settings *s = x->server->gateway->settings;
    const char *origin = header(x, MHD_HTTP_HEADER_ORIGIN);
    if (check_framing(x, error))
        return -1;
    const char *why = http_guard_why_not(s, header(x, MHD_HTTP_HEADER_HOST), origin);
    if (why)
        return api_refuse(error, 403, "foreign_origin", NULL, "%s", why);
    x->allow = http_guard_allow(s, origin);
    if (is_preflight(x, method)) {
        job_answer(x->job, MHD_HTTP_NO_CONTENT, NULL);
        job_end(x->job);
        return 0;
    }
    struct api_error no_route;
    int found = route_find(&x->job->route, method, path, &no_route);
    if (find_key(x, error))
        return -1;
    if (found) {
        *error = no_route;
        return -1;
    }
    if (x->job->route.endpoint == ENDPOINT_SLOTS && !s->slots)
        return api_refuse(error, 501, "not_served", NULL, "/slots is turned off (--no-slots)");
    if (x->job->route.rest && !(x->job->wanted = strdup(x->job->route.rest)))
        return api_refuse(error, 500, NULL, NULL, "out of memory");
    x->job->route.rest = NULL; /* the path's bytes are libmicrohttpd's */
    return check_length(x, error);
}

/* The descriptor tells when the client goes away; libmicrohttpd does not look while it waits. */
static void watch(struct exchange *x)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = x};
    if (info && epoll_ctl(x->server->watch_fd, EPOLL_CTL_ADD, info->connect_fd, &event) == 0)
        x->fd = info->connect_fd;
}

static void *line_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static void set_asked(const struct http_server *server, struct MHD_Connection *connection,
                      bool asked)
{
    struct line *line = line_of(connection);
    if (!line)
        return;
    line->asked = asked;
    /* silence before it is libmicrohttpd's, and may last as long again */
    line->head_ends_ns = clock_deadline_ms(2 * server->gateway->settings->idle_s * 1000);
}

/* A connection comes or goes. */
static void connection_changed(void *context, struct MHD_Connection *connection, void **kept,
                               enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = context;
    struct line *line = *kept, **at = &server->lines;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *kept = line = info ? calloc(1, sizeof *line) : NULL;
        if (!line)
            return;
        *line = (struct line){.next = server->lines, .fd = info->connect_fd};
        line->head_ends_ns = clock_deadline_ms(2 * server->gateway->settings->idle_s * 1000);
        server->lines = line;
    } else if (line) {
        while (*at != line)
            at = &(*at)->next;
        *at = line->next;
        free(line);
        *kept = NULL;
    }
    server->room |= code == MHD_CONNECTION_NOTIFY_CLOSED;
}

static struct exchange *begin(struct http_server *server, struct MHD_Connection *connection,
                              const char *method, const char *path)
{
    struct exchange *x = calloc(1, sizeof *x);
    struct api_error error;
    if (!x)
        return NULL;
    *x = (struct exchange){.server = server, .connection = connection, .fd = -1};
    x->body_ends_ns = clock_deadline_ms(server->gateway->settings->idle_s * 1000);
    x->job = job_create(server->gateway);
    if (!x->job) {
        free(x);
        return NULL;
    }
    x->next = server->exchanges;
    server->exchanges = x;
    if (admit(x, method, path, &error))
        job_refuse(x->job, &error);
    return x;
}

static enum MHD_Result take_request(void *context, struct MHD_Connection *connection,
                                    const char *path, const char *method, const char *version,
                                    const char *body, size_t *body_bytes, void **kept)
{
    struct http_server *server = context;
    struct exchange *x = *kept;
    (void)version;
    if (server->closing)
        return MHD_NO;
    if (!x) {
        set_asked(server, connection, true);
        x = begin(server, connection, method, path);
        *kept = x;
        if (!x)
            return MHD_NO;
        return x->job->status ? queue_answer(x) : MHD_YES; /* refused before its body */
    }
    if (x->gone)
        return MHD_NO;
    if (*body_bytes) {
        if (!job_take_body(x->job, body, *body_bytes) && clock_now_ns() > x->body_ends_ns)
            return MHD_NO; /* refused, and it goes on sending: for so long and no longer */
        *body_bytes = 0;
        return MHD_YES;
    }
    if (x->queued)
        return MHD_YES;
    if (x->job->state == JOB_READING) {
        watch(x);
        job_begin(x->job);
    }
    if (x->job->status)
        return queue_answer(x);
    if (x->job->closed)
        return MHD_NO; /* out of memory */
    suspend(x);
    return MHD_YES;
}

/* The connection is done with the request, in whatever way. */
static void completed(void *context, struct MHD_Connection *connection, void **kept,
                      enum MHD_RequestTerminationCode code)
{
    struct http_server *server = context;
    struct exchange *x = *kept, **at = &server->exchanges;
    (void)code;
    set_asked(server, connection, false);
    if (!x)
        return;
    *kept = NULL;
    if (x->fd >= 0)
        epoll_ctl(server->watch_fd, EPOLL_CTL_DEL, x->fd, NULL);
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    job_detach(x->job); /* the loop destroys it when it is over */
    x->job->orphan = true;
    free(x);
}

/* ---- the loop's turns ------------------------------------------------------------------------ */

/* Clients that have gone away. */
static void look_for_losses(struct http_server *server)
{
    struct epoll_event events[32];
    int n = epoll_wait(server->watch_fd, events, 32, 0);
    for (int i = 0; i < n; i++) {
        struct exchange *x = events[i].data.ptr;
        x->gone = true;
        job_detach(x->job);
        resume(x);
    }
}

/* Heads that do not end: libmicrohttpd sees their connection end. */
static void end_slow_heads(struct http_server *server)
{
    int64_t now = clock_now_ns();
    for (struct line *line = server->lines; line; line = line->next)
        if (!line->asked && now > line->head_ends_ns) {
            shutdown(line->fd, SHUT_RDWR); /* bytes that come after SHUT_RD would still be read */
            line->head_ends_ns = CLOCK_NEVER;
        }
}

void http_server_turn(struct http_server *server)
{
    look_for_losses(server);
    end_slow_heads(server);
    for (struct exchange *x = server->exchanges; x; x = x->next)
        if (x->job->changed) {
            x->job->changed = false;
            resume(x);
        }
    server->room = false;
    MHD_run(server->daemon);
}

void http_server_descriptors(const struct http_server *server, int out[2])
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    out[0] = info ? info->epoll_fd : -1;
    out[1] = server->watch_fd;
}

int64_t http_server_next_ns(const struct http_server *server, int64_t now_ns)
{
    MHD_UNSIGNED_LONG_LONG ms;
    if (server->room)
        return now_ns;
    int64_t next = MHD_get_timeout(server->daemon, &ms) == MHD_YES ? now_ns + CLOCK_MS((int64_t)ms)
                                                                   : CLOCK_NEVER;
    for (const struct line *line = server->lines; line; line = line->next)
        if (!line->asked && line->head_ends_ns < next)
            next = line->head_ends_ns;
    return next;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void log_line(void *context, const char *format, va_list args)
{
    char text[512];
    (void)context;
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\n")] = '\0';
    log_debug("http: %s", text);
}

int http_server_open(struct http_server **out, struct gateway *gateway, int listen_fd,
                     struct hill_why *why)
{
    const struct gateway_settings *s = gateway->settings;
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return hill_fail(why, HILL_E_NOMEM, "out of memory");
    server->gateway = gateway;
    server->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->watch_fd >= 0)
        server->daemon = MHD_start_daemon(
            MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
            take_request, server, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
            MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT, s->connections,
            MHD_OPTION_CONNECTION_TIMEOUT, s->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
            (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_COMPLETED, completed, server,
            MHD_OPTION_NOTIFY_CONNECTION, connection_changed, server, MHD_OPTION_END);
    if (server->daemon) {
        *out = server;
        return 0;
    }
    if (server->watch_fd >= 0)
        close(server->watch_fd);
    free(server);
    return hill_fail(why, HILL_E_IO, "the HTTP server cannot be started");
}

void http_server_close(struct http_server *server)
{
    if (!server)
        return;
    for (struct exchange *x = server->exchanges; x; x = x->next) {
        x->gone = true;
        resume(x);
    }
    server->closing = true; /* nothing is suspended any more, which libmicrohttpd would abort for */
    MHD_run(server->daemon);
    MHD_stop_daemon(server->daemon);
    close(server->watch_fd);
    free(server);
}
