/*
 * proto/follower.h - a client's side of one request, also over the death of its coordinator.
 *
 * What: an order (Generate, RestoreSession) is sent under a random key. Of what comes, messages of
 * another request and those from before a loss are told apart. When the connection is lost, the
 * next coordinator is sent Follow with the tokens that are here, and sends the rest. Where the
 * request's token log is gone the order is sent again; the coordinator compares what it makes with
 * the tokens that are here. Who calls it: hillctl and the gateway; they own the socket, and say how
 * the connection is. Concurrency: one thread; nothing blocks. Failure: what proto_send says,
 * HILL_E_NOMEM, and HILL_E_TIMEOUT for a coordinator that does not come back.
 */
#pragma once

#include <stdbool.h>

#include "proto/envelope.h"

struct follower {
    void *socket;         /* the caller's */
    Hill__Message *order; /* owned */
    uint64_t key, id;     /* the client's name for it, the coordinator's; id 0: not accepted yet */
    bool answered;        /* Accepted has come since the last loss: what comes now is new */
    int64_t lost_ns;      /* since when nothing is heard of it; 0: all is well */
    uint32_t recovery_ms; /* how long that may last */
    uint32_t *tokens;     /* that have come, owned */
    size_t n_tokens, tokens_room;
    uint64_t text_bytes;
    uint32_t serial, follows; /* of the Accepted that is waited for; of the last Follow */
    uint32_t losses;          /* of the connection, as far as they have been acted on */
    bool cut;                 /* lost, and no Follow was sent since */
};

/* How the connection is. losses: since any moment before the request. */
struct follower_line {
    bool connected;
    uint32_t losses;
    int64_t silent_since_ns; /* 0: the coordinator answers */
};

enum follower_news {
    FOLLOWER_NOTHING, /* the message is of another request, or has been dealt with */
    FOLLOWER_TAKEN,   /* it is this request's */
    FOLLOWER_ANEW,    /* nothing was left of the request, and it was sent again */
    FOLLOWER_LOST     /* the connection has just been lost */
};

/* Send a copy of order with a key of its own. recovery_ms: until the pipeline has said its own. */
int follower_begin(struct follower *f, void *socket, const Hill__Message *order, uint32_t losses,
                   uint32_t recovery_ms);
/* A message has come: enum follower_news. A Summary is acknowledged. Messages that name no request
 * are TAKEN. */
int follower_take(struct follower *f, const Hill__Message *message);
/* Time has passed: enum follower_news; HILL_E_TIMEOUT: it was away for longer than recovery_ms. */
int follower_watch(struct follower *f, const struct follower_line *line, int64_t now_ns);
void follower_finish(struct follower *f);
