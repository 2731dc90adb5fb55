/* proto/client.c - see client.h. */
#include "proto/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <zmq.h>

#include "base/clock.h"
#include "base/private_folder.h"
#include "base/process.h"

#define LOOK_MS 500 /* whether a coordinator that is to answer is still there */

/* Before the socket connects, so that no event is missed. */
static bool open_monitor(struct client *client)
{
    static const char address[] = "inproc://control-events";
    int linger = 0;
    if (zmq_socket_monitor(client->socket, address,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED))
        return false;
    client->monitor = zmq_socket(client->context, ZMQ_PAIR);
    if (!client->monitor)
        return false;
    zmq_setsockopt(client->monitor, ZMQ_LINGER, &linger, sizeof linger);
    return zmq_connect(client->monitor, address) == 0;
}

static int open_line(struct client *client, struct hill_why *why)
{
    char address[140];
    int linger = 200; /* ms: a last Cancel should get out */
    snprintf(address, sizeof address, "ipc://%s/control.sock", client->run_dir);
    client->context = zmq_ctx_new();
    client->socket = client->context ? zmq_socket(client->context, ZMQ_DEALER) : NULL;
    if (!client->socket || !open_monitor(client) || zmq_connect(client->socket, address) != 0)
        return hill_fail(why, HILL_E_IO, "connecting to %s failed: %s", address,
                         zmq_strerror(errno));
    zmq_setsockopt(client->socket, ZMQ_LINGER, &linger, sizeof linger);
    return 0;
}

static void close_line(struct client *client)
{
    if (client->socket) {
        /* first: libzmq leaks the address of an event that it cannot send any more */
        zmq_socket_monitor(client->socket, NULL, 0);
        zmq_close(client->socket);
    }
    if (client->monitor)
        zmq_close(client->monitor);
    if (client->context)
        zmq_ctx_term(client->context);
    client->context = client->socket = client->monitor = NULL;
    client->connected = false;
}

int client_reconnect(struct client *client, struct hill_why *why)
{
    close_line(client);
    client->losses++;
    return open_line(client, why);
}

int client_open(struct client *client, const char *run_dir, struct hill_why *why)
{
    memset(client, 0, sizeof *client);
    client->signal_fd = -1;
    int code = 0;
    if (strlen(run_dir) >= sizeof client->run_dir)
        return hill_fail(why, HILL_E_INVALID, "run folder %.80s... is too long for a socket",
                         run_dir);
    strcpy(client->run_dir, run_dir);
    char address[140];
    snprintf(address, sizeof address, "ipc://%s/control.sock", client->run_dir);
    if (access(address + strlen("ipc://"), R_OK | W_OK) != 0)
        return hill_fail(why, errno == ENOENT ? HILL_E_PEER_GONE : hill_from_errno(errno),
                         "no pipeline runs in %s (%s); start one with `hillinfer up -m MODEL`",
                         client->run_dir, strerror(errno));
    code = private_folder_check(client->run_dir, "run folder", why);
    if (code)
        return code;
    client->signal_fd = process_signals(false);
    code = client->signal_fd < 0
               ? hill_fail(why, HILL_E_IO, "signals cannot be waited for: %s", strerror(errno))
               : open_line(client, why);
    if (code)
        client_close(client);
    return code;
}

void client_close(struct client *client)
{
    close_line(client);
    if (client->signal_fd >= 0)
        close(client->signal_fd);
    memset(client, 0, sizeof *client);
    client->signal_fd = -1;
}

int client_send(struct client *client, const Hill__Message *message, struct hill_why *why)
{
    int code = proto_send(client->socket, NULL, message);
    if (code != 0)
        return hill_fail(why, code, "sending to the pipeline in %s failed: %s", client->run_dir,
                         hill_strerror(code));
    return 0;
}

void client_look(struct client *client)
{
    struct {
        uint16_t event;
        uint8_t value[4];
    } __attribute__((packed)) event;
    char address[256];
    while (zmq_recv(client->monitor, &event, sizeof event, ZMQ_DONTWAIT) == (int)sizeof event) {
        zmq_recv(client->monitor, address, sizeof address, ZMQ_DONTWAIT);
        client->connected = event.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        client->losses += !client->connected;
    }
}

bool client_pipeline_ended(const struct client *client)
{
    char lock[sizeof client->run_dir + 8];
    snprintf(lock, sizeof lock, "%s/lock", client->run_dir);
    return access(lock, F_OK) != 0 && errno == ENOENT; /* a killed one leaves it */
}

uint64_t client_random(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
        number = (uint64_t)clock_now_ns();
    return number ? number : 1;
}

int client_receive(struct client *client, int64_t deadline_ns, Hill__Message **out,
                   struct hill_why *why)
{
    for (;;) {
        client_look(client);
        int code = proto_receive(client->socket, NULL, out, why);
        if (code != HILL_E_WOULD_BLOCK)
            return code;
        struct signalfd_siginfo info;
        if (read(client->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            client->signal = (int)info.ssi_signo;
            return hill_fail(why, HILL_E_CANCELLED, "interrupted");
        }
        int64_t left_ns = deadline_ns - clock_now_ns();
        if (left_ns <= 0)
            return hill_fail(why, HILL_E_TIMEOUT, "the pipeline in %s does not answer",
                             client->run_dir);
        zmq_pollitem_t items[] = {{client->socket, 0, ZMQ_POLLIN, 0},
                                  {client->monitor, 0, ZMQ_POLLIN, 0},
                                  {NULL, client->signal_fd, ZMQ_POLLIN, 0}};
        zmq_poll(items, 3, (long)(left_ns / 1000000 + 1));
    }
}

int client_call(struct client *client, const Hill__Message *request,
                Hill__Message__BodyCase expected, int64_t patience_ms, Hill__Message **out,
                struct hill_why *why)
{
    int code = client_send(client, request, why);
    if (code != 0)
        return code;
    int64_t deadline = clock_deadline_ms(patience_ms);
    int64_t there = clock_deadline_ms(CLIENT_ANSWER_MS);
    client_look(client);
    uint32_t losses = client->losses;
    for (;;) {
        Hill__Message *message;
        int64_t look = clock_deadline_ms(LOOK_MS);
        code = client_receive(client, look < deadline ? look : deadline, &message, why);
        if (code == HILL_E_TIMEOUT && client->losses != losses)
            return hill_fail(why, HILL_E_PEER_GONE,
                             "the coordinator in %s was lost before it answered", client->run_dir);
        if (code == HILL_E_TIMEOUT && !client->connected && !client->losses &&
            clock_now_ns() >= there) /* its socket alone is left */
            return HILL_E_PEER_GONE;
        if (code == HILL_E_TIMEOUT && clock_now_ns() < deadline)
            continue;
        if (code != 0)
            return code == HILL_E_TIMEOUT ? HILL_E_PEER_GONE : code;
        if (message->body_case == expected &&
            (expected != HILL__MESSAGE__BODY_REPLY || message->reply->code == 0)) {
            *out = message;
            return 0;
        }
        if (message->body_case == HILL__MESSAGE__BODY_REPLY) {
            code = hill_fail(why, message->reply->code ? message->reply->code : HILL_E_PROTOCOL,
                             "%s", message->reply->text);
            proto_free(message);
            return code;
        }
        proto_free(message);
    }
}

int client_status(struct client *client, int64_t patience_ms, Hill__Message **out,
                  struct hill_why *why)
{
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    return client_call(client, &PROTO_MESSAGE(STATUS_REQUEST, status_request, &request),
                       HILL__MESSAGE__BODY_STATUS_REPLY, patience_ms, out, why);
}

int client_ping(struct client *client, struct hill_why *why)
{
    Hill__StatusRequest request = HILL__STATUS_REQUEST__INIT;
    return client_send(client, &PROTO_MESSAGE(STATUS_REQUEST, status_request, &request), why);
}
