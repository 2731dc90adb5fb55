/* coordinator/router.c - see router.h. */
#include "coordinator/router.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <zmq.h>

#include "base/log.h"
#include "proto/options_hill.h"

#define BURST     256u /* messages handled of one socket before the others get their turn */
#define LINGER_MS 1000 /* lets the last summaries leave */

/* ---- sockets ----------------------------------------------------------------------------- */

static void *bind_socket(struct router *r, const char *folder, const char *name, int linger_ms,
                         struct hill_why *why)
{
    char address[HILL_PATH_BYTES + 32];
    int one = 1, unlimited = 0;
    int64_t largest = PROTO_MESSAGE_MAX + 4096;
    snprintf(address, sizeof address, "ipc://%s/%s", folder, name);
    void *socket = zmq_socket(r->context, ZMQ_ROUTER);
    if (!socket) {
        hill_fail(why, HILL_E_NOMEM, "cannot open a ZeroMQ socket: %s", zmq_strerror(errno));
        return NULL;
    }
    /* mandatory: sending to a peer that is gone is an error, not silence; no high-water mark: a
     * slow reader's backlog is bounded by the tokens of its request */
    zmq_setsockopt(socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    if (zmq_bind(socket, address)) {
        hill_fail(why, HILL_E_IO, "cannot bind %.200s: %s", address, zmq_strerror(errno));
        zmq_close(socket);
        return NULL;
    }
    return socket;
}

int router_open(struct router *r, const char *folder, const struct worker_table *workers,
                struct hill_why *why)
{
    *r = (struct router){.workers = workers, .context = zmq_ctx_new()};
    if (r->context && (r->worker_socket = bind_socket(r, folder, "worker.sock", 0, why)) &&
        (r->heartbeat_socket = bind_socket(r, folder, "heartbeat.sock", 0, why)) &&
        (r->control_socket = bind_socket(r, folder, "control.sock", LINGER_MS, why)))
        return 0;
    return HILL_E_IO;
}

void router_close(struct router *r)
{
    if (r->control_socket)
        zmq_close(r->control_socket);
    if (r->heartbeat_socket)
        zmq_close(r->heartbeat_socket);
    if (r->worker_socket)
        zmq_close(r->worker_socket);
    if (r->context)
        zmq_ctx_term(r->context);
}

/* ---- sending ----------------------------------------------------------------------------- */

int router_to_worker(struct router *r, enum worker w, const Hill__Message *message)
{
    const struct worker_row *row = &r->workers->rows[w];
    return row->address.length ? proto_send(r->worker_socket, &row->address, message)
                               : HILL_E_PEER_GONE;
}

int router_to_client(struct router *r, const struct proto_address *to, const Hill__Message *message)
{
    return to->length ? proto_send(r->control_socket, to, message) : HILL_E_PEER_GONE;
}

static int reply(void *socket, const struct proto_address *to, int code, const char *text)
{
    Hill__Reply body = HILL__REPLY__INIT;
    body.code = code;
    body.text = (char *)text;
    Hill__Message message = PROTO_MESSAGE(REPLY, reply, &body);
    return to->length ? proto_send(socket, to, &message) : HILL_E_PEER_GONE;
}

int router_reply(struct router *r, const struct proto_address *to, int code, const char *text)
{
    return reply(r->control_socket, to, code, text);
}

void router_refuse(struct router *r, const struct proto_address *from, const char *text)
{
    r->malformed++;
    log_warn("a worker's message was refused: %s", text);
    reply(r->worker_socket, from, HILL_E_PROTOCOL, text);
}

/* ---- receiving --------------------------------------------------------------------------- */

void router_register(struct router *r, const struct route *rows, unsigned count, void *owner)
{
    for (unsigned i = 0; i < ROUTER_TABLES; i++)
        if (!r->tables[i].rows) {
            r->tables[i].rows = rows;
            r->tables[i].count = count;
            r->tables[i].owner = owner;
            return;
        }
}

/* False: nobody takes this message of this sender. */
static bool dispatch(struct router *r, unsigned sender, struct arrival *arrival)
{
    for (unsigned t = 0; t < ROUTER_TABLES; t++)
        for (unsigned i = 0; i < r->tables[t].count; i++) {
            const struct route *row = &r->tables[t].rows[i];
            if (row->body != arrival->message->body_case || !(row->senders & sender))
                continue;
            row->take(r->tables[t].owner, arrival);
            return true;
        }
    return false;
}

static void take_from_worker(struct router *r, struct arrival *a)
{
    a->worker = worker_table_by_address(r->workers, &a->from);
    bool hello = a->message->body_case == HILL__MESSAGE__BODY_HELLO;
    if (hello)
        dispatch(r, FROM_NEWCOMER, a);
    else if (a->worker == WORKER_COUNT)
        r->malformed++; /* late words of a worker that is gone, or a stranger's */
    else if (!dispatch(r, 1u << a->worker, a))
        router_refuse(r, &a->from, "a message that this worker does not send");
}

static void take_from_client(struct router *r, struct arrival *a)
{
    if (dispatch(r, FROM_CLIENT, a))
        return;
    r->malformed++;
    router_reply(r, &a->from, HILL_E_PROTOCOL, "message refused: clients do not send this one");
}

static void take_heartbeat(struct router *r, struct arrival *a)
{
    if (!dispatch(r, FROM_HEARTBEATS, a))
        r->malformed++;
}

static void refuse_client(struct router *r, const struct proto_address *from, const char *text)
{
    r->malformed++;
    log_warn("a client's message was refused: %s", text);
    router_reply(r, from, HILL_E_PROTOCOL, text);
}

/* Two a second come: a line for the first, and for each twice as many. Its worker may be taken for
 * one that hangs. */
static void count_heartbeat(struct router *r, const struct proto_address *from, const char *text)
{
    (void)from;
    r->malformed++;
    r->bad_heartbeats++;
    if ((r->bad_heartbeats & (r->bad_heartbeats - 1)) == 0)
        log_warn("a heartbeat was refused: %s", text);
}

static void
serve(struct router *r, void *socket, void (*take)(struct router *r, struct arrival *arrival),
      void (*refuse)(struct router *r, const struct proto_address *from, const char *text))
{
    for (unsigned i = 0; i < BURST; i++) {
        struct arrival a = {.worker = WORKER_COUNT};
        struct hill_why why = {{0}};
        int code = proto_receive(socket, &a.from, &a.message, &why);
        if (code == HILL_E_PROTOCOL) {
            refuse(r, &a.from, why.text);
        } else if (code) {
            return;
        } else {
            take(r, &a);
            proto_free(a.message);
        }
    }
}

void router_turn(struct router *r)
{
    serve(r, r->heartbeat_socket, take_heartbeat, count_heartbeat);
    serve(r, r->worker_socket, take_from_worker, router_refuse);
    serve(r, r->control_socket, take_from_client, refuse_client);
}
