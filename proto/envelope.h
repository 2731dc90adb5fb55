/*
 * proto/envelope.h - one protobuf Message in one ZeroMQ message, with a protocol version, every
 * field validated.
 *
 * Wire: [optional routing frame of ROUTER sockets] [8 bytes: magic "HILL", u16 protocol version,
 * u16 zero, little endian] [Message]. A Hello has the same form in every protocol version and
 * is received from any, with its version in protocol_version, so that its sender can be refused by
 * name; everything else of another version is refused as malformed. Failure: a malformed message
 * (wrong magic or version, unparsable, a field out of range, too large) is HILL_E_PROTOCOL with the
 * field in why: the receiver counts it and answers with a Reply; it is never fatal. Who calls it:
 * every process. Concurrency: one thread per socket.
 */
#pragma once

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/csd_model.h"
#include "base/error.h"
#include "proto/hill.pb-c.h"

#define PROTO_VERSION             6u
#define PROTO_MESSAGE_MAX         (64u << 20) /* bytes: a prompt of 16 M tokens */
#define PROTO_RECORDS_VERSION     18u
#define PROTO_SESSION_TERMS_BYTES 80u /* SessionFile.terms */

/* A ZeroMQ routing id (ROUTER sockets). */
struct proto_address {
    uint8_t bytes[256];
    size_t length; /* 0: none (DEALER) */
};

/* A message with this body, for as long as the block in which it stands: PROTO_MESSAGE(CANCEL,
 * cancel, &body). */
#define PROTO_MESSAGE(CASE, member, body)                                                          \
    ((Hill__Message){.base = PROTOBUF_C_MESSAGE_INIT(&hill__message__descriptor),                  \
                     .body_case = HILL__MESSAGE__BODY_##CASE,                                      \
                     .member = (body)})

bool proto_same_address(const struct proto_address *a, const struct proto_address *b);

/* Send body as one message; to may be NULL. Never blocks: HILL_E_WOULD_BLOCK when the queue is
 * full, HILL_E_PEER_GONE when a ROUTER knows no such peer. */
int proto_send(void *socket, const struct proto_address *to, const Hill__Message *message);

/* Receive without blocking. 0 and *out (free with proto_free); HILL_E_WOULD_BLOCK when there is
 * none; HILL_E_PROTOCOL when malformed (the message is consumed; from, when given, is filled where
 * known so that a Reply can be sent). */
int proto_receive(void *socket, struct proto_address *from, Hill__Message **out,
                  struct hill_why *why);

void proto_free(Hill__Message *message);
/* A deep copy, through the wire form; NULL: out of memory. */
Hill__Message *proto_copy(const Hill__Message *message);

/* Check every field of a parsed message: ranges, enums, finite numbers, string lengths. 0 or
 * HILL_E_PROTOCOL. */
int proto_validate(const Hill__Message *message, struct hill_why *why);

/* Parse and validate raw bytes (envelope frame and body) without a socket: what fuzzers and tests
 * call. */
int proto_decode(const void *frame, size_t frame_bytes, const void *body, size_t body_bytes,
                 Hill__Message **out, struct hill_why *why);

/* A device model out of a message (NULL: off), and into one. */
struct csd_model proto_csd_model(const Hill__CsdModel *message);
void proto_set_csd_model(Hill__CsdModel *out, const struct csd_model *in);

/* "gpu_worker", ... (JSON and log names). */
const char *proto_role_name(Hill__Role role);
/* Of one among several of a role: "csd_agent_2". */
const char *proto_worker_name(const Hill__WorkerStatus *worker);
