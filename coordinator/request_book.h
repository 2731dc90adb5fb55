/*
 * coordinator/request_book.h - the requests: a queue, the running one, its attempts and its tokens
 * (bookkeeping only).
 *
 * What: first come, first served; one runs, at most REQUEST_WAITING_MAX wait. Each attempt has a
 * wire id of its own, so that a late message of an attempt that was given up is told from one of
 * the current attempt. Tokens that were sent to the client stay: a later attempt must make the same
 * ones and they are not sent again. Life: WAITING -> RUNNING (Prefill sent) -> FINISHING (Done
 * seen, statistics awaited) -> removed; RUNNING -> INTERRUPTED (a worker died) -> RUNNING; RUNNING
 * -> CANCELLING -> FINISHING. Who calls it: pipeline.c and its parts. Concurrency: one thread.
 * Failure: codes as documented; sends nothing itself.
 */
#ifndef HILL_COORDINATOR_REQUEST_BOOK_H
#define HILL_COORDINATOR_REQUEST_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/select.h"
#include "model/tokenizer.h"
#include "proto/envelope.h"

#define REQUEST_WAITING_MAX  64u
#define REQUEST_ATTEMPTS_MAX 5u
#define REQUEST_CANCEL_NS    INT64_C(10000000000)
#define REQUEST_STATS_NS     INT64_C(10000000000) /* after Done */
#define REQUEST_STATS_ERR_NS                                                                       \
    INT64_C(1000000000) /* after a Done that is no success: the scorer may never have heard of it  \
                         */
#define REQUEST_SILENCE_NS INT64_C(20000000000) /* of a client that used to ask for the status */

enum request_state {
    REQUEST_WAITING,     /* in the queue */
    REQUEST_RUNNING,     /* Prefill sent */
    REQUEST_INTERRUPTED, /* to be sent again when all workers are ready */
    REQUEST_CANCELLING,  /* Cancel sent, Done awaited until deadline_ns */
    REQUEST_FINISHING,   /* Done seen, SequenceStats awaited until deadline_ns */
};

struct request {
    struct request *next; /* in the queue */
    enum request_state state;
    uint64_t id, wire_id; /* the client's; this attempt's (0: none) */
    struct proto_address client;
    bool client_gone, client_asks; /* no longer reachable; has asked for the status since */
    int64_t client_heard_ns;
    /* the order */
    uint32_t *prompt; /* [n_prompt], owned */
    uint32_t n_prompt, predict;
    bool ignore_eos, want_progress;
    Hill__Sampling sampling;
    struct kv_selection_settings selection;
    /* the answer */
    uint32_t *tokens;   /* [predict], owned */
    uint32_t n_tokens;  /* committed: sent to the client */
    uint32_t n_attempt; /* of this attempt */
    uint32_t attempts;
    int64_t attempt_first_ns, attempt_last_ns; /* tokens of this attempt */
    double prefill_share; /* of this attempt, 0 .. 1, as the GPU worker said last */
    struct detokenizer text;
    int64_t accepted_ns, prefill_ns, first_token_ns, progress_ns; /* 0: not yet */
    int64_t deadline_ns;
    int failure_code; /* what a worker said about it; 0: nothing */
    char failure_text[512];
    Hill__Message *done, *stats; /* owned; NULL: not there */
};

struct request_book {
    struct request *running; /* not WAITING */
    struct request *first, **last;
    uint32_t n_waiting;
    uint64_t n_done, next_id;
};

void request_book_init(struct request_book *book);
void request_book_finish(struct request_book *book);

/* A new request with its id and room for its tokens, not yet in the queue. prompt is taken over,
 * also on failure (NULL: out of memory). */
struct request *request_create(struct request_book *book, uint32_t *prompt, uint32_t n_prompt,
                               uint32_t predict);
void request_destroy(struct request *request);

/* To the end of the queue; HILL_E_BUSY when it is full. */
int request_book_add(struct request_book *book, struct request *request);
/* Nothing runs and someone waits: the first one becomes running (INTERRUPTED: to be sent). NULL
 * otherwise. */
struct request *request_book_advance(struct request_book *book);
/* Take it out, wherever it is, count it, and destroy it. */
void request_book_remove(struct request_book *book, struct request *request);

/* id 0: any of this client's. NULL when there is none. */
struct request *request_book_find(const struct request_book *book,
                                  const struct proto_address *client, uint64_t id);
bool request_same_client(const struct request *request, const struct proto_address *client);
/* The running request when wire_id is that of its current attempt. */
struct request *request_book_by_wire(const struct request_book *book, uint64_t wire_id);

/* Begin an attempt: a new wire id, RUNNING. HILL_E_PEER_GONE after REQUEST_ATTEMPTS_MAX. */
int request_begin_attempt(struct request_book *book, struct request *request, int64_t now_ns);
/* The attempt is lost: its messages count no more. */
void request_interrupt(struct request *request);

/* A token of the current attempt: 1 (new: send it), 0 (the client has it), HILL_E_PROTOCOL (not the
 * next index, or more than were asked for), HILL_E_DAMAGED (differs from the one that the client
 * has). */
int request_take_token(struct request *request, uint32_t index, uint32_t token, int64_t now_ns);

/* Take over a Done or SequenceStats message; the second of a kind is HILL_E_PROTOCOL and not taken.
 */
int request_take_done(struct request *request, Hill__Message *message, int64_t now_ns);
int request_take_stats(struct request *request, Hill__Message *message);
/* FINISHING, and statistics are there or overdue. */
bool request_is_over(const struct request *request, int64_t now_ns);

/* Is an error one that a restarted worker would not meet again (a peer died or hung)? */
bool request_worth_retry(int code);

#endif
