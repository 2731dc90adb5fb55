/*
 * tests/chaos/asking.h - the requests of a round: asked, followed to another coordinator, and what
 * has come of them.
 *
 * What: one connection for all of them. Each has a key; when the connection is lost and made again
 * every request that is not over is asked for by its key (Follow), with the tokens and the bytes of
 * text that are here, and one that the coordinator does not know is sent once more. What comes is
 * taken from the moment on that its request is accepted: a token twice or one left out would show.
 * Who calls it: chaos.c. Failure: what a coordinator refuses ends the process with a line.
 * Concurrency: one thread.
 */
#pragma once

#include "proto/client.h"

#define REQUESTS_MAX 64u

struct asked {
    char *prompt;
    size_t prompt_bytes;
    uint32_t *wanted, n_wanted; /* the undisturbed run's */
    uint64_t selection_hash, logits_hash;
    /* of this round */
    uint64_t key, id;
    uint32_t serial;  /* of its newest Follow; 0: none */
    bool answered;    /* accepted: what comes of it counts */
    uint32_t *got, n; /* [predict] */
    uint64_t text_bytes;
    bool over, differs;
    double read;               /* tokens of its prompt that it was told of; -1: of none */
    int64_t last_ns, pause_ns; /* the last of both came then; the longest pause since the signal */
    char failure[200];
};

struct asking {
    struct client client;
    struct asked requests[REQUESTS_MAX];
    uint32_t n, predict;
    uint32_t losses;   /* of the connection, those that were acted on */
    bool away;         /* lost, and not made again */
    uint32_t followed; /* serial of the newest Follow */
    uint64_t next_key;
    uint32_t sent[REQUESTS_MAX], n_sent; /* without an Accepted yet, in the order of sending */
};

/* All requests, anew. */
void asking_begin(struct asking *a);
/* The connection has been lost: true, once. Follows the requests when it is there again. */
bool asking_look(struct asking *a);
void asking_accepted(struct asking *a, const Hill__Accepted *accepted);
/* Whose it is; NULL: of none that counts. */
struct asked *asking_find(struct asking *a, uint64_t id);
/* A token and its text; false: it is text alone. */
bool asking_text(const struct asking *a, struct asked *r, const Hill__Text *text);
/* Its Summary is here: its token log may go. */
void asking_over(struct asking *a, struct asked *r);
