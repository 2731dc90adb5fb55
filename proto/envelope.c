/* proto/envelope.c - see envelope.h. */
#include "proto/envelope.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#define FRAME_BYTES 8u

static void encode_frame(uint8_t frame[FRAME_BYTES])
{
    memcpy(frame, "HILL", 4);
    frame[4] = PROTO_VERSION & 0xff;
    frame[5] = PROTO_VERSION >> 8;
    frame[6] = frame[7] = 0;
}

static int from_zmq_errno(void)
{
    switch (errno) {
    case EAGAIN:
        return HILL_E_WOULD_BLOCK;
    case EHOSTUNREACH:
    case ETERM:
        return HILL_E_PEER_GONE;
    default:
        return HILL_E_IO;
    }
}

bool proto_same_address(const struct proto_address *a, const struct proto_address *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

int proto_send(void *socket, const struct proto_address *to, const Hill__Message *message)
{
    size_t size = hill__message__get_packed_size(message);
    if (size > PROTO_MESSAGE_MAX)
        return HILL_E_TOO_LONG;
    zmq_msg_t body;
    if (zmq_msg_init_size(&body, size) != 0)
        return HILL_E_NOMEM;
    hill__message__pack(message, zmq_msg_data(&body));
    uint8_t frame[FRAME_BYTES];
    encode_frame(frame);
    /* Once the first part is taken, ZeroMQ takes the others without blocking: a message is all or
     * nothing. */
    if ((to && to->length &&
         zmq_send(socket, to->bytes, to->length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) ||
        zmq_send(socket, frame, sizeof frame, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_msg_send(&body, socket, ZMQ_DONTWAIT) < 0) {
        int code = from_zmq_errno();
        zmq_msg_close(&body);
        return code;
    }
    return 0;
}

int proto_decode(const void *frame, size_t frame_bytes, const void *body, size_t body_bytes,
                 Hill__Message **out, struct hill_why *why)
{
    const uint8_t *f = frame;
    *out = NULL;
    if (frame_bytes != FRAME_BYTES || memcmp(f, "HILL", 4) != 0)
        return hill_fail(why, HILL_E_PROTOCOL, "message refused: no HILL envelope");
    unsigned version = f[4] | (unsigned)f[5] << 8;
    if (f[6] || f[7])
        return hill_fail(why, HILL_E_PROTOCOL,
                         "message refused: reserved envelope bytes are not zero");
    if (body_bytes > PROTO_MESSAGE_MAX)
        return hill_fail(why, HILL_E_PROTOCOL, "message refused: %zu bytes, at most %u", body_bytes,
                         PROTO_MESSAGE_MAX);
    Hill__Message *message = hill__message__unpack(NULL, body_bytes, body);
    bool hello = message && message->body_case == HILL__MESSAGE__BODY_HELLO;
    if (version != PROTO_VERSION && !hello) {
        proto_free(message);
        return hill_fail(why, HILL_E_PROTOCOL,
                         "message refused: protocol version %u, this program speaks %u", version,
                         PROTO_VERSION);
    }
    if (hello)
        message->hello->protocol_version = version;
    if (!message)
        return hill_fail(why, HILL_E_PROTOCOL, "message refused: its %zu bytes do not parse",
                         body_bytes);
    int code = proto_validate(message, why);
    if (code != 0) {
        proto_free(message);
        return code;
    }
    *out = message;
    return 0;
}

/* Receive one part; *more tells whether others follow. */
static int receive_part(void *socket, zmq_msg_t *part, int *more)
{
    zmq_msg_init(part);
    if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0) {
        int code = from_zmq_errno();
        zmq_msg_close(part);
        return code;
    }
    *more = zmq_msg_more(part);
    return 0;
}

static void drain_parts(void *socket, int more)
{
    while (more) {
        zmq_msg_t part;
        if (receive_part(socket, &part, &more) != 0)
            return;
        zmq_msg_close(&part);
    }
}

static bool is_router(void *socket)
{
    int type = 0;
    size_t size = sizeof type;
    zmq_getsockopt(socket, ZMQ_TYPE, &type, &size);
    return type == ZMQ_ROUTER;
}

int proto_receive(void *socket, struct proto_address *from, Hill__Message **out,
                  struct hill_why *why)
{
    zmq_msg_t frame, body;
    int more = 0;
    *out = NULL;
    if (from)
        from->length = 0;
    if (is_router(socket)) {
        zmq_msg_t id;
        int code = receive_part(socket, &id, &more);
        if (code != 0)
            return code;
        if (from && zmq_msg_size(&id) <= sizeof from->bytes) {
            from->length = zmq_msg_size(&id);
            memcpy(from->bytes, zmq_msg_data(&id), from->length);
        }
        zmq_msg_close(&id);
        if (!more)
            return hill_fail(why, HILL_E_PROTOCOL, "message refused: empty");
    }
    int code = receive_part(socket, &frame, &more);
    if (code != 0)
        return code;
    if (!more) {
        zmq_msg_close(&frame);
        return hill_fail(why, HILL_E_PROTOCOL, "message refused: envelope without a body");
    }
    code = receive_part(socket, &body, &more);
    if (code != 0) {
        zmq_msg_close(&frame);
        return code;
    }
    if (more) {
        drain_parts(socket, more);
        code =
            hill_fail(why, HILL_E_PROTOCOL, "message refused: more parts than envelope and body");
    } else {
        code = proto_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), zmq_msg_data(&body),
                            zmq_msg_size(&body), out, why);
    }
    zmq_msg_close(&frame);
    zmq_msg_close(&body);
    return code;
}

void proto_free(Hill__Message *message)
{
    if (message)
        hill__message__free_unpacked(message, NULL);
}

Hill__Message *proto_copy(const Hill__Message *message)
{
    size_t bytes = hill__message__get_packed_size(message);
    uint8_t *packed = malloc(bytes ? bytes : 1);
    if (!packed)
        return NULL;
    hill__message__pack(message, packed);
    Hill__Message *copy = hill__message__unpack(NULL, bytes, packed);
    free(packed);
    return copy;
}

const char *proto_role_name(Hill__Role role)
{
    switch (role) {
    case HILL__ROLE__ROLE_COORDINATOR:
        return "coordinator";
    case HILL__ROLE__ROLE_GPU_WORKER:
        return "gpu_worker";
    case HILL__ROLE__ROLE_CPU_SCORER:
        return "cpu_scorer";
    case HILL__ROLE__ROLE_CSD_AGENT:
        return "csd_agent";
    case HILL__ROLE__ROLE_CLIENT:
        return "client";
    default:
        return "unknown";
    }
}

const char *proto_worker_name(const Hill__WorkerStatus *worker)
{
    return worker->name && *worker->name ? worker->name : proto_role_name(worker->role);
}
