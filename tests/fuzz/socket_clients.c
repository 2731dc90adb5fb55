/*
 * tests/fuzz/socket_clients.c - clients of a gateway's real socket that no well-made client is
 * like: slow, cut, pipelined, oversized, mutated, gone in mid-stream.
 *
 * usage: socket_clients SOCKET CASES SECONDS SEED KEY SECRET
 * SOCKET: a Unix socket; CASES: requests, a line of JSON each (tests/gateway/http_cases.jsonl);
 * KEY: of these clients; SECRET: words of another key's requests, which must never come.
 * What: CLIENTS connections at once, each with a few requests of CASES sent in a random manner.
 * What comes back has to be whole responses of HTTP, none of them 500, none with SECRET or with
 * lines of /etc/passwd in it; requests that are sent as they are have all their answers; the
 * gateway answers a plain question meanwhile. Failure: exit code 1 and what was found, the request
 * in the file found.request. Who calls it: tests/long/http_sockets.sh. Concurrency: one thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"

enum { CLIENTS = 24, CASES_MAX = 512, SENT_MAX = 1 << 20, CAME_MAX = 4 << 20, STATUSES = 600 };
#define LIFE_MS   4000  /* then a client goes, whatever it waits for */
#define ANSWER_MS 20000 /* the plain question's */

enum manner { PLAIN, PIPELINED, SLOW, CUT, HALF_CLOSED, OVERSIZED, MUTATED, LEAVING, MANNERS };
static const char *const manner_names[MANNERS] = {"plain",       "pipelined", "slow",    "cut",
                                                  "half closed", "oversized", "mutated", "leaving"};

struct bytes {
    char *data;
    size_t n;
};

struct client {
    int fd;
    enum manner manner;
    struct bytes out, in;
    size_t sent, enough; /* enough: bytes that are sent, or taken, before it goes */
    unsigned requests;   /* that have to be answered; 0: any number may be */
    int64_t next_ns, ends_ns;
    bool probe;
};

static const char *path, *key, *secret;
static struct bytes cases[CASES_MAX];
static unsigned n_cases;
static uint64_t state;
static struct client clients[CLIENTS];
static uint64_t n_clients, n_requests, by_manner[MANNERS], by_status[STATUSES];

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void found(const struct client *c, const char *what)
{
    FILE *file = fopen("found.request", "w");
    if (file) {
        fwrite(c->out.data, 1, c->out.n, file);
        fclose(file);
    }
    printf("FOUND: %s (%s, %zu of %zu bytes sent; in found.request); what came begins: %.300s\n",
           what, manner_names[c->manner], c->sent, c->out.n, c->in.n ? c->in.data : "");
    exit(1);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void put(struct bytes *to, const char *data, size_t n)
{
    if (to->n + n > SENT_MAX)
        n = SENT_MAX - to->n;
    if (n)
        memcpy(to->data + to->n, data, n);
    to->n += n;
}

static void puts_to(struct bytes *to, const char *text)
{
    put(to, text, strlen(text));
}

static void read_cases(const char *file_name)
{
    FILE *file = fopen(file_name, "r");
    char *line = NULL;
    size_t room = 0;
    while (file && n_cases < CASES_MAX && getline(&line, &room, file) > 0) {
        json_t *one = json_loads(line, 0, NULL);
        const char *method = json_string_value(json_object_get(one, "method")),
                   *where = json_string_value(json_object_get(one, "path"));
        const json_t *body = json_object_get(one, "body");
        size_t n = json_string_length(body);
        struct bytes *to = &cases[n_cases];
        if (method && strcmp(method, "HEAD") == 0) { /* whose answers have no body */
            json_decref(one);
            continue;
        }
        if (!method || !where || !(to->data = malloc(strlen(line) + n + 512)))
            exit(100);
        to->n = (size_t)sprintf(to->data, "%s %s HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n",
                                method, where, key);
        if (body)
            to->n += (size_t)sprintf(to->data + to->n, "Content-Length: %zu\r\n", n);
        puts_to(to, "\r\n");
        put(to, body ? json_string_value(body) : "", n);
        n_cases++;
        json_decref(one);
    }
    free(line);
    if (!file || !n_cases) {
        fprintf(stderr, "socket_clients: no cases in %s\n", file_name);
        exit(111);
    }
    fclose(file);
}

static void add_case(struct client *c)
{
    const struct bytes *one = &cases[draw(n_cases)];
    put(&c->out, one->data, one->n);
    c->requests++;
}

static void add_many(struct bytes *to, const char *text, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        puts_to(to, text);
}

static void add_oversized(struct client *c)
{
    struct bytes *o = &c->out;
    char line[200];
    snprintf(line, sizeof line, "Host: localhost\r\nX-Api-Key: %s\r\n", key);
    uint64_t kind = draw(7);
    puts_to(o, kind == 0 ? "GET /" : "POST /v1/completions");
    if (kind == 0)
        add_many(o, "../%2e%2e/xxxxxxxx", 1 + (unsigned)draw(4000));
    puts_to(o, " HTTP/1.1\r\n");
    puts_to(o, line);
    if (kind == 1)
        add_many(o, "X-Any: 0123456789012345678901234567890123456789\r\n",
                 1 + (unsigned)draw(4000));
    if (kind == 2)
        puts_to(o, "Content-Length: 99999999999999999999\r\n\r\n{");
    else if (kind == 3)
        puts_to(o, "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{\"prompt\":\"");
    else if (kind == 4)
        puts_to(o, "Transfer-Encoding: chunked\r\n\r\n");
    else if (kind > 4) {
        snprintf(line, sizeof line, "Content-Length: %u\r\n\r\n", SENT_MAX);
        puts_to(o, line);
        puts_to(o, "{\"prompt\":");
        add_many(o, kind == 5 ? "[" : "[1],\"a\":\"\\u0000", SENT_MAX / 16);
    }
    if (kind == 4)
        for (unsigned i = (unsigned)draw(20000); i; i--)
            puts_to(o, "1;x=y\r\n[\r\n");
    puts_to(o, "\r\n\r\n");
    c->requests = 0;
}

/* What parsers trip over, wherever it comes. */
#define TOKEN(text)                                                                                \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }
static const struct {
    char text[32];
    size_t n;
} tokens[] = {
    TOKEN("\r\n"),
    TOKEN("\r\n\r\n"),
    TOKEN("\n"),
    TOKEN("\0"),
    TOKEN("Transfer-Encoding: chunked\r\n"),
    TOKEN("Content-Length: 0\r\n"),
    TOKEN("HTTP/"),
    TOKEN("%00"),
    TOKEN("/../.."),
    TOKEN("/etc/passwd"),
    TOKEN("file:///etc/passwd"),
    TOKEN("\"stream\":true,"),
    TOKEN("{"),
    TOKEN("["),
    TOKEN("\\ud800"),
    TOKEN("\xff\xfe"),
    TOKEN("1e999"),
    TOKEN("Expect: 100-continue\r\n"),
    TOKEN("\"messages\":"),
    TOKEN("-1"),
    TOKEN("Connection: close\r\n"),
    TOKEN("Upgrade: h2c\r\n"),
    TOKEN("99999999999999999999"),
};

static void mutate(struct client *c)
{
    struct bytes *o = &c->out;
    for (uint64_t i = 1 + draw(8); i; i--) {
        size_t at = draw(o->n + 1), n = draw(1 + draw(64));
        size_t token = draw(sizeof tokens / sizeof *tokens);
        switch (draw(4)) {
        case 0:
            if (at < o->n)
                o->data[at] ^= (char)(1 << draw(8));
            break;
        case 1:
            n = at + n > o->n ? o->n - at : n;
            memmove(o->data + at, o->data + at + n, o->n - at - n);
            o->n -= n;
            break;
        default:
            n = tokens[token].n;
            if (o->n + n > SENT_MAX)
                break;
            memmove(o->data + at + n, o->data + at, o->n - at);
            memcpy(o->data + at, tokens[token].text, n);
            o->n += n;
        }
    }
    c->requests = 0;
}

static void make_request(struct client *c)
{
    static const char leaving[] =
        "{\"prompt\":\"one two three one two\",\"max_tokens\":1500,\"ignore_eos\":true,"
        "\"stream\":true,\"return_progress\":true,\"return_timeline\":true}";
    char head[300];
    switch (c->manner) {
    case OVERSIZED:
        add_oversized(c);
        break;
    case LEAVING:
        snprintf(head, sizeof head,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 key, sizeof leaving - 1);
        puts_to(&c->out, head);
        puts_to(&c->out, leaving);
        c->enough = 1 + draw(20000);
        break;
    default:
        for (uint64_t i = c->manner == PIPELINED ? 2 + draw(5) : 1; i; i--)
            add_case(c);
        if (c->manner == MUTATED)
            mutate(c);
        if (c->manner != PLAIN && c->manner != PIPELINED && c->manner != SLOW)
            c->requests = 0;
        if (c->manner == CUT || c->manner == HALF_CLOSED)
            c->enough = draw(c->out.n + 1);
    }
}

/* ---- responses ------------------------------------------------------------------------------- */

static bool whole_chunks(const char *at, const char *end, const char **rest)
{
    for (;;) {
        char *digits;
        unsigned long n = strtoul(at, &digits, 16);
        const char *data = digits == at || digits >= end
                               ? NULL
                               : memmem(digits, (size_t)(end - digits), "\r\n", 2);
        if (!data || n > (size_t)(end - data) || (size_t)(end - data) < n + 4)
            return false;
        at = data + 2 + n + 2;
        if (n == 0) {
            *rest = at;
            return true;
        }
    }
}

/* Of the responses in what came: how many are whole. */
static unsigned count_responses(const struct client *c, uint64_t *statuses)
{
    const char *at = c->in.data, *end = at + c->in.n;
    unsigned n = 0;
    while (at < end) {
        int status = 0, used = 0;
        const char *body = memmem(at, (size_t)(end - at), "\r\n\r\n", 4);
        if (!body)
            return n;
        if (sscanf(at, "HTTP/1.%*1[01] %3d%n", &status, &used) != 1 || status < 100 ||
            status >= STATUSES)
            found(c, "what came is no response");
        if (status == 500)
            found(c, "500");
        body += 4;
        const char *length = memmem(at, (size_t)(body - at), "Content-Length: ", 16),
                   *chunked = memmem(at, (size_t)(body - at), "Transfer-Encoding: chunked", 26);
        statuses[status]++;
        if (status == 100) {
            at = body;
            continue;
        }
        if (chunked) {
            if (!whole_chunks(body, end, &at))
                return n;
        } else if (length) {
            size_t bytes = strtoul(length + 16, NULL, 10);
            if (bytes > (size_t)(end - body))
                return n;
            at = body + bytes;
        } else {
            at = status == 204 ? body : end; /* to the connection's end */
        }
        n++;
    }
    return n;
}

/* A stream has its text in pieces, a few letters an event: all of them, one after another. */
static size_t join_pieces(const struct client *c, char *joined)
{
    const char *at = c->in.data, *end = at + c->in.n;
    size_t n = 0;
    while ((at = memmem(at, (size_t)(end - at), "t\":\"", 4))) {
        size_t before = (size_t)(at - c->in.data);
        bool piece = (before >= 4 && memcmp(at - 4, "\"tex", 4) == 0) ||
                     (before >= 7 && memcmp(at - 7, "\"conten", 7) == 0);
        for (at += 4; piece && at < end && *at != '"'; at++)
            joined[n++] = *at;
    }
    return n;
}

static bool has_secret(const struct client *c)
{
    static char joined[CAME_MAX];
    size_t n = strlen(secret);
    return memmem(c->in.data, c->in.n, secret, n) ||
           memmem(joined, join_pieces(c, joined), secret, n);
}

static void check(const struct client *c, bool over)
{
    unsigned n = count_responses(c, by_status);
    if (c->in.n && has_secret(c))
        found(c, "another key's words");
    if (c->in.n && memmem(c->in.data, c->in.n, "root:x:0:", 9))
        found(c, "a file of this machine");
    if (c->probe && (n != 1 || strncmp(c->in.data, "HTTP/1.1 200", 12) != 0))
        found(c, "the gateway does not answer a plain question");
    if (over && c->manner == PLAIN && n != c->requests)
        found(c, "a request that is sent as it is has no whole answer");
    n_requests += n;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void begin(struct client *c, int64_t now, bool probe)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char *out = c->out.data, *in = c->in.data;
    *c = (struct client){.out.data = out, .in.data = in, .probe = probe, .enough = SIZE_MAX};
    c->manner = probe ? PLAIN : (enum manner)draw(MANNERS);
    c->ends_ns = now + CLOCK_MS(probe ? ANSWER_MS : LIFE_MS);
    if (probe) {
        puts_to(&c->out, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        c->requests = 1;
    } else {
        make_request(c);
    }
    strcpy(address.sun_path, path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 ||
        (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EAGAIN)) {
        printf("FOUND: no connection to %s: %s\n", path, strerror(errno));
        exit(1);
    }
    n_clients++;
    by_manner[c->manner]++;
}

static void end(struct client *c, bool over)
{
    close(c->fd);
    c->fd = -1;
    check(c, over);
}

/* It has sent as much as it will. */
static bool is_cut(const struct client *c)
{
    return c->manner == CUT && c->sent >= c->enough;
}

static void send_some(struct client *c, int64_t now)
{
    size_t most = c->out.n - c->sent;
    if (c->manner == SLOW) {
        most = most < 64 ? most : 1 + draw(64);
        c->next_ns = now + CLOCK_MS(draw(20));
    }
    if ((c->manner == CUT || c->manner == HALF_CLOSED) && c->enough - c->sent < most)
        most = c->enough - c->sent;
    ssize_t n = most ? send(c->fd, c->out.data + c->sent, most, MSG_NOSIGNAL) : 0;
    c->sent += n > 0 ? (size_t)n : 0;
    if (n < 0 && errno != EAGAIN)
        c->sent = c->out.n; /* it was refused, and the gateway reads no more */
    if (c->manner == HALF_CLOSED && c->sent >= c->enough) {
        shutdown(c->fd, SHUT_WR);
        c->sent = c->out.n;
    }
}

/* True: it is over. */
static bool take_some(struct client *c)
{
    static uint64_t nowhere[STATUSES];
    ssize_t n = recv(c->fd, c->in.data + c->in.n, CAME_MAX - c->in.n, 0);
    if (n < 0)
        return errno != EAGAIN;
    c->in.n += (size_t)n;
    c->in.data[c->in.n] = '\0';
    if (c->manner == LEAVING && c->in.n >= c->enough)
        return true;
    return n == 0 || c->in.n == CAME_MAX ||
           (c->requests && count_responses(c, nowhere) >= c->requests);
}

static void turn(struct client *c, short events, int64_t now)
{
    bool over = false;
    if (c->sent < c->out.n && now >= c->next_ns && (events & POLLOUT))
        send_some(c, now);
    if (events & (POLLIN | POLLHUP | POLLERR))
        over = take_some(c);
    if (over || is_cut(c) || now > c->ends_ns)
        end(c, over || c->probe);
}

static void run(int64_t until_ns)
{
    struct pollfd items[CLIENTS];
    int64_t now, probe_ns = 0;
    while ((now = clock_now_ns()) < until_ns) {
        for (unsigned i = 0; i < CLIENTS; i++) {
            struct client *c = &clients[i];
            if (c->fd < 0) {
                begin(c, now, now >= probe_ns);
                probe_ns = c->probe ? now + CLOCK_MS(1000) : probe_ns;
            }
            bool sends = c->sent < c->out.n && now >= c->next_ns;
            items[i] = (struct pollfd){c->fd, (short)(POLLIN | (sends ? POLLOUT : 0)), 0};
        }
        poll(items, CLIENTS, 5);
        for (unsigned i = 0; i < CLIENTS; i++)
            turn(&clients[i], items[i].revents, clock_now_ns());
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: socket_clients SOCKET CASES SECONDS SEED KEY SECRET\n");
        return 100;
    }
    path = argv[1];
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        fprintf(stderr, "socket_clients: %s is too long a name for a socket\n", path);
        return 100;
    }
    key = argv[5];
    secret = argv[6];
    state = strtoull(argv[4], NULL, 10) * 2654435761u + 1;
    read_cases(argv[2]);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){
            .fd = -1, .out.data = malloc(SENT_MAX), .in.data = malloc(CAME_MAX + 1)};
        if (!clients[i].out.data || !clients[i].in.data)
            return 111;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    run(clock_now_ns() + (int64_t)(strtod(argv[3], NULL) * 1e9));
    printf("%" PRIu64 " connections, %" PRIu64 " whole responses;", n_clients, n_requests);
    for (unsigned i = 0; i < MANNERS; i++)
        printf(" %" PRIu64 " %s%s", by_manner[i], manner_names[i], i + 1 < MANNERS ? "," : "\n");
    for (unsigned i = 0; i < STATUSES; i++)
        if (by_status[i])
            printf("%u: %" PRIu64 "  ", i, by_status[i]);
    printf("\n");
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (clients[i].fd >= 0)
            close(clients[i].fd);
        free(clients[i].out.data);
        free(clients[i].in.data);
    }
    for (unsigned i = 0; i < n_cases; i++)
        free(cases[i].data);
    return 0;
}
