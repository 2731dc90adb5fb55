/*
 * proto/drive_link.h - a connection between an agent and the drive that it stands for on another
 * host.
 *
 * What: `--csd tcp://HOST:PORT` has hill-csd-agent here, which owns the local rings and nothing of
 * the drive, relay them to `hill-csd-agent --listen` there, which owns the pool and scores. Both
 * ends are this link: one ZeroMQ socket in a thread of its own, encrypted by CurveZMQ; each end
 * knows the other's public key (hillctl keygen) and talks to nobody else. Messages are a
 * struct drive_frame and a payload:
 *
 *     agent here (DEALER)                         drive there (ROUTER)
 *     HELLO: versions         ───────────────▶    HELLO, or REFUSED with a line
 *     CONTROL: Configure      ───────────────▶    opens its pool, rings and staging of its own
 *                             ◀───────────────    CONTROL: Ready, Failure, CsdModelCounters
 *     RECORD: all commands    ───────────────▶    into its rings, in this order [I18]
 *                             ◀───────────────    RECORD: SCORE_BLOCK, COMPLETION
 *                             ◀───────────────    DATA: what a FETCH or READ_KEYS has read, before
 *                                                 its COMPLETION
 *     PING, when nothing else is sent for 0.5 s: both ways. BYE: the end in order.
 *
 * Credits: the agent sends a command only while what the drive has not completed fits half of the
 * ring that it goes to, so the drive's rings are never full. What is queued to go out is bounded
 * (HILL_E_WOULD_BLOCK: later), and so is what has come and was not taken: then nothing is read from
 * the socket, and TCP holds the other end back.
 * A peer that says nothing for DRIVE_SILENT_MS, sends what is no frame, or answers no HELLO for
 * DRIVE_HELLO_MS is lost: drive_link_lost says why. A lost drive is a lost agent (--csd-on-loss).
 * One peer at a time: another that has a right key is refused while the first one lives. Several
 * drives: a link each; nothing here is global.
 * Who calls it: csd_agent (relay.h connects, listen.h listens); the coordinator and hillctl for
 * keys and addresses. Concurrency: one thread calls; the link's own thread has the sockets.
 * Failure: codes, the reason in why.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/hill.pb-c.h"
#include "shm/doorbell.h"

#define DRIVE_MAGIC         0x76644c48u /* "HLdv" */
#define DRIVE_VERSION       1u
#define DRIVE_PAYLOAD_MAX   (64u << 20)
#define DRIVE_DATA_BYTES    (256u << 10) /* of a DATA message, about */
#define DRIVE_QUEUE_BYTES   (32u << 20)  /* of either queue, about */
#define DRIVE_PING_MS       500
#define DRIVE_SILENT_MS     5000
#define DRIVE_HELLO_MS      5000
#define DRIVE_KEY_BYTES     41 /* Z85 and the zero */
#define DRIVE_PEERS_MAX     16
#define DRIVE_ADDRESS_BYTES 280

enum drive_kind {
    DRIVE_HELLO = 1,
    DRIVE_REFUSED, /* a line of text */
    DRIVE_CONTROL, /* a packed message of proto/hill.proto */
    DRIVE_RECORD,  /* a: enum layout_ring, b: enum record_type; the record */
    DRIVE_DATA,    /* a: first item, b: items, tag: the FETCH's; or b 0: READ_KEYS, a: first byte */
    DRIVE_PING,
    DRIVE_BYE,
    DRIVE_KINDS
};

struct drive_frame {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t a, b;
    uint64_t tag;
};

/* The payload of HELLO. */
struct drive_hello {
    uint32_t protocol_version, records_version;
    char version[56]; /* of the program, zero at the end */
};

_Static_assert(sizeof(struct drive_frame) == 24, "goes over the wire");
_Static_assert(sizeof(struct drive_hello) == 64, "goes over the wire");

/* A message that has come; free() it. payload: 16-byte aligned, on `bytes` bytes. */
struct drive_message {
    struct drive_message *next;
    struct drive_frame frame;
    uint32_t bytes;
    _Alignas(16) uint8_t payload[];
};

/* Is it a frame of this version with a payload that its kind may have? HILL_E_PROTOCOL. */
int drive_frame_check(const void *frame, uint64_t frame_bytes, uint64_t payload_bytes,
                      struct hill_why *why);
/* Does the HELLO fit this program? HILL_E_UNSUPPORTED, with both versions in why. */
int drive_hello_check(const struct drive_hello *hello, struct hill_why *why);
void drive_hello_fill(struct drive_hello *out);

/* A message of proto/hill.proto as the payload of CONTROL, malloc'ed; NULL: no memory. */
uint8_t *drive_control_pack(const Hill__Message *message, uint32_t *bytes);
/* And out of one, validated; HILL_E_PROTOCOL. */
int drive_control_read(const struct drive_message *m, Hill__Message **out, struct hill_why *why);

/* ---- keys ---- */

struct drive_keys {
    char public_key[DRIVE_KEY_BYTES], secret_key[DRIVE_KEY_BYTES];
    char peers[DRIVE_PEERS_MAX][DRIVE_KEY_BYTES];    /* public ones */
    char urls[DRIVE_PEERS_MAX][DRIVE_ADDRESS_BYTES]; /* of each: where it alone is used, or "" */
    uint32_t n_peers;
};

/* key_path: as hillctl keygen wrote it, read by its owner alone; peer_path: public keys, a line
 * each, written by its owner alone: KEY, or "tcp://HOST:PORT KEY" for that drive alone. Owner: this
 * user or root. HILL_E_INVALID, HILL_E_IO: the file and what is wrong with it. */
int drive_keys_read(struct drive_keys *out, const char *key_path, const char *peer_path,
                    struct hill_why *why);
/* Of several the one of the drive at url, as the only one: the line that names it, else the line
 * that names none. HILL_E_INVALID: there is none, or more than one. */
int drive_keys_choose(struct drive_keys *keys, const char *url, struct hill_why *why);
/* A new pair: path, for its owner alone, and path.pub. A file that is there is left:
 * HILL_E_BUSY. */
int drive_keys_write(const char *path, struct hill_why *why);

/* tcp://HOST:PORT, a port from 1 to 65535? HILL_E_INVALID. An address of IPv6: [ADDRESS]:PORT. */
int drive_address_check(const char *url, struct hill_why *why);

/* ---- a link ---- */

struct drive_link;

/* To the first peer of keys; HELLO is sent. */
int drive_link_connect(struct drive_link **out, const char *url, const struct drive_keys *keys,
                       struct hill_why *why);
/* For any of the peers of keys, one at a time. */
int drive_link_listen(struct drive_link **out, const char *url, const struct drive_keys *keys,
                      struct hill_why *why);
/* Sends BYE, what is queued before it, up to half a second. NULL allowed. */
void drive_link_close(struct drive_link *link);

/* Rung when something has come, a full queue takes more, or the peer is lost; NULL: the link's
 * own. */
void drive_link_set_doorbell(struct drive_link *link, struct shm_doorbell *bell);
struct shm_doorbell *drive_link_doorbell(struct drive_link *link);

/* Queue a message. HILL_E_WOULD_BLOCK: too much is queued; HILL_E_PEER_GONE; HILL_E_NOMEM. */
int drive_link_send(struct drive_link *link, const struct drive_frame *frame, const void *payload,
                    uint32_t bytes);
/* The same of a message of proto/hill.proto, as CONTROL. Nobody sends one again: it is queued also
 * where records have to wait, up to twice as much; beyond that, and without memory, the peer is
 * lost. */
int drive_link_tell(struct drive_link *link, const Hill__Message *message);
/* The next message but PING and HELLO, or NULL. */
struct drive_message *drive_link_poll(struct drive_link *link);
/* HELLOs have been exchanged. */
bool drive_link_is_up(struct drive_link *link);
/* 0: not lost; else HILL_E_PEER_GONE (silence, BYE), HILL_E_PROTOCOL, HILL_E_UNSUPPORTED or
 * HILL_E_TIMEOUT, in why what happened. A listening link waits for its next peer only after
 * drive_link_forget. */
int drive_link_lost(struct drive_link *link, struct hill_why *why);
/* Listening: the peer is told why (NULL: BYE), everything of it is dropped, another may come. */
void drive_link_forget(struct drive_link *link, const char *why);
