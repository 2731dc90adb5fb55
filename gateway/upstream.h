/*
 * gateway/upstream.h - the way to the coordinator, and what it has said of the model.
 *
 * What: one connection that stays (proto/client.h): asks once for the model and the pipeline's
 * settings, and tells when the coordinator is lost. Each request has a line of its own, a DEALER
 * socket, so that every answer is of that request: the coordinator knows clients by their socket.
 * Lines find a new coordinator in the same run folder by themselves. Who calls it: jobs, the loop.
 * Concurrency: one thread. Failure: no pipeline is no failure: upstream_known is false.
 */
#pragma once

#include "proto/client.h"

#define MODEL_NAME_BYTES 256

struct upstream {
    struct client client;
    char run_dir[108];
    bool open;       /* client is */
    bool told;       /* why it cannot be: a line in the log */
    bool stale;      /* the coordinator was lost: what it said is asked for again */
    bool ended;      /* the pipeline was here and has ended in order */
    uint32_t losses; /* of the coordinator, since the start; seen by comparing */
    uint32_t client_losses;
    int64_t heard_ns, asked_ns; /* while it is watched; asked_ns 0: it is not */
    int64_t next_ns;            /* when to look again */
    const ProtobufCBinaryData *template;
    Hill__Message *info, *status; /* a ModelInfo and a StatusReply of the pipeline's settings */
    char model_name[MODEL_NAME_BYTES];
    bool fills; /* the vocabulary has Qwen Coder's tokens for filling in */
    bool files; /* and those of several files */
};

/* template: in place of the model's own; of len 0: none. It outlives the upstream. */
void upstream_init(struct upstream *up, const char *run_dir, const ProtobufCBinaryData *template);
void upstream_close(struct upstream *up);

/* Connects, asks, listens; never blocks. While somebody waits for answers it asks again and again:
 * a coordinator that hangs loses no connection. */
void upstream_tick(struct upstream *up, bool watched, int64_t now_ns);
int64_t upstream_next_ns(const struct upstream *up);
/* 0: it answers, or is not watched. */
int64_t upstream_silent_since(const struct upstream *up, int64_t now_ns);

/* Has the pipeline said what it runs? */
bool upstream_known(const struct upstream *up);
const Hill__ModelInfo *upstream_model(const struct upstream *up);

/* NULL: no socket can be had. */
void *upstream_line(struct upstream *up);
void upstream_hang_up(void *line); /* NULL allowed; what was sent last leaves */
