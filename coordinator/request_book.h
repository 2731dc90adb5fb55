/*
 * coordinator/request_book.h - the requests: a queue, those that run, their attempts and tokens
 * (bookkeeping only).
 *
 * What: first come, first served; at most `parallel` run, each on a sequence slot of its own, and
 * at most REQUEST_WAITING_MAX wait. Each attempt has a wire id of its own, so that a late message
 * of an attempt that was given up is told from one of the current attempt; what people read, logs
 * of workers included, names the request's id (Prefill.identity). Tokens that were sent to the
 * client stay: a later attempt must make the same ones and they are not sent again [I21]. A request
 * that the scorer has no room for beside the others goes back to its place in the queue; one whose
 * entries a coordinator before has left on a slot goes first, on that slot, which stays free for it
 * while it is AWAITED; nobody behind it is started before it has been taken up.
 * Life: WAITING -> RUNNING (Prefill sent) -> FINISHING (Done seen, statistics awaited) -> removed;
 * RUNNING or FINISHING -> INTERRUPTED (a worker died) -> RUNNING; RUNNING -> WAITING (no room
 * beside the others); RUNNING -> CANCELLING -> FINISHING. A request that another coordinator has
 * left in its token log is AWAITED until its client comes back -> WAITING; one with a log is
 * DELIVERED before it is removed. Both are parked: they run nowhere and wait for no slot. Who calls
 * it: the coordinator's service. Concurrency: one thread. Failure: codes as documented; sends
 * nothing itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/hash_state.h"
#include "kv/plan.h"
#include "kv/select.h"
#include "model/tokenizer.h"
#include "coordinator/token_log.h"
#include "prefix/prefix_store.h"
#include "proto/envelope.h"

#define REQUEST_WAITING_MAX  64u
#define REQUEST_ATTEMPTS_MAX 5u
#define REQUEST_PARALLEL_MAX KV_MAX_SEQUENCES
#define REQUEST_ALONE_MAX    3u /* "no room beside others" in a row with nobody beside it: a bug */
#define REQUEST_CANCEL_NS    INT64_C(10000000000)
/* After Done. The scorer has them when the drive has written all: it waits 30 s for a drive. */
#define REQUEST_STATS_NS INT64_C(40000000000)
#define REQUEST_STATS_ERR_NS                                                                       \
    INT64_C(                                                                                       \
        1000000000) /* after a Done that is no success: the scorer may never have heard of it  \
                         */
/* Of a client that used to ask for the status: then it is looked for. */
#define REQUEST_SILENCE_NS INT64_C(20000000000)

enum request_state {
    REQUEST_WAITING,     /* in the queue */
    REQUEST_RUNNING,     /* Prefill sent */
    REQUEST_INTERRUPTED, /* to be sent again when all workers are ready */
    REQUEST_CANCELLING,  /* Cancel sent, Done awaited until deadline_ns */
    REQUEST_FINISHING,   /* Done seen, SequenceStats awaited until deadline_ns */
    REQUEST_AWAITED, /* of a coordinator before this one: its client is awaited until deadline_ns */
    REQUEST_DELIVERED, /* Summary sent: Delivered is awaited until deadline_ns, then its log goes */
};

#define REQUEST_STATES 8u /* as many whole steps as the scorer keeps of a sequence */

/* What lets a later attempt go on where an earlier one was interrupted, and what was done again. */
struct request_recovery {
    /* of the hash over the logits after a token, by index: of states_from .. states_to - 1 */
    struct hash_state states[REQUEST_STATES];
    uint32_t states_from, states_to;
    bool resumed;   /* this attempt has gone on */
    bool in_prompt; /* and that in its prompt */
    bool barred;    /* one that went on has failed: the next ones begin anew */
    bool damaged;   /* since the last new token an entry of it was found damaged */
    uint32_t recoveries;
    uint64_t steps_repeated, units_repeated, entries_repeated;
    /* of the prompt: by this attempt, by those before it; UINT64_MAX: all */
    uint64_t units_done, units_lost;
};

/* What it may take over from finished ones, and what it has. */
struct request_prefix {
    bool off;
    uint64_t conversation, after; /* as the client said; 0: none */
    struct prefix_hit hit;        /* of its first attempt */
    struct prefix_entry taken;    /* what its slot held then; its tokens are owned, or NULL */
    bool decoded; /* it has gone on over decoded entries, perhaps under a coordinator before */
    bool drive_decoded; /* the same of the drive's store, which may have them still */
    bool selected;      /* its first token came of important tokens of a stored prefix alone */
};

struct request {
    struct request *next; /* in the queue, or among those that run */
    enum request_state state;
    uint32_t sequence; /* its slot while it runs */
    bool returns;      /* waiting: `sequence` has what a coordinator before this one kept of it */
    uint64_t started;  /* AWAITED: the attempt that had `sequence`; 0: none, or not known */
    uint64_t id, wire_id; /* the client's; this attempt's (0: none) */
    uint64_t key;         /* by which its client asks for it again; 0: it cannot */
    struct proto_address client;
    bool client_gone, client_asks; /* no longer reachable; has asked for the status since */
    int64_t client_seen_ns; /* it was heard, or it could be sent something after its silence */
    /* the order */
    uint32_t *prompt; /* [n_prompt + n_forced], owned */
    uint32_t n_prompt, predict;
    uint32_t n_forced; /* 0, or predict: the answer is prompt[n_prompt ...], to be scored */
    bool ignore_eos, want_progress, want_passages;
    uint32_t n_question; /* of the prompt: tokens behind the restored session's */
    bool from_prompt;    /* restored, and its prompt is answered from the first token on */
    uint32_t answer_end; /* a chat's: ends the answer besides the model's; TOKEN_NONE: none */
    Hill__Sampling sampling;
    struct kv_selection_settings selection;
    uint64_t restore_checksum; /* of the session's header, when it was taken */
    uint32_t restore_n_prompt, restore_first_append; /* in it */
    char *restore_path, *save_path; /* sessions: begins from, is saved at the end; owned, or NULL */
    char *saving_path;              /* a save that was ordered meanwhile; owned, or NULL */
    struct proto_address saver;     /* by whom */
    /* the answer */
    struct token_log *log;        /* owned; NULL: none. Closed with the request, its file stays */
    uint32_t restarts;            /* of the coordinator, since the request was accepted */
    double *logprobs;             /* [predict], owned; NULL: neither forced nor asked for */
    uint32_t *tokens;             /* [predict], owned */
    uint32_t n_tokens;            /* committed: sent to the client */
    uint32_t n_attempt;           /* of this attempt */
    uint32_t n_taken;             /* that the GPU worker knows to be here (Taken) */
    uint32_t attempt_from;        /* those whose times are not this attempt's */
    uint32_t attempts, fruitless; /* all; those since the last new token */
    struct request_recovery recovery;
    struct request_prefix prefix;
    bool refused;           /* for want of room beside the others, and not taken up since */
    uint32_t refused_alone; /* times in a row that nobody was beside it */
    uint64_t freed_seen;    /* book.n_freed when the attempt began */
    int64_t attempt_first_ns, attempt_last_ns; /* tokens of this attempt */
    double prefill_share; /* of this attempt, 0 .. 1, as the GPU worker said last */
    struct detokenizer text;
    bool rest_there; /* its client has what an answer leaves that ends within a character */
    int64_t accepted_ns, prefill_ns, first_token_ns, progress_ns; /* 0: not yet */
    int64_t deadline_ns;
    int64_t outage_ns; /* since when a lost worker, not a new drive's agent, keeps it from going on;
                          0: none does */
    Hill__CsdModelCounters csd_before; /* when its first attempt began */
    int failure_code;                  /* what a worker said about it; 0: nothing */
    char failure_text[512];
    Hill__Message *done, *stats; /* owned; NULL: not there */
    Hill__Message *first_done;   /* of an attempt that is repeated for its statistics; owned */
};

struct request_book {
    uint32_t parallel;
    struct request *running; /* not WAITING; in the order in which they came */
    uint32_t n_running;
    struct request *first; /* the queue, in the order in which they came */
    uint32_t n_waiting;
    struct request *parked; /* AWAITED and DELIVERED */
    uint64_t n_done, next_id, next_attempt;
    uint64_t n_freed;                          /* slots given back so far */
    bool slot_taken[REQUEST_PARALLEL_MAX];     /* by sequence */
    uint64_t slot_freed[REQUEST_PARALLEL_MAX]; /* n_freed when it was given back */
};

/* parallel: 1 .. REQUEST_PARALLEL_MAX */
void request_book_init(struct request_book *book, uint32_t parallel);
void request_book_finish(struct request_book *book);

/* A new request with its id and room for its tokens, not yet in the queue. prompt is taken over,
 * also on failure (NULL: out of memory). */
struct request *request_create(struct request_book *book, uint32_t *prompt, uint32_t n_prompt,
                               uint32_t predict);
void request_destroy(struct request *request);
/* Numbers alone are taken. */
void request_set_sampling(struct request *request, const Hill__Sampling *sampling);
/* Its answer is given: n tokens behind the prompt; HILL_E_NOMEM. */
int request_set_forced(struct request *request, uint32_t n);
/* Its sampling wants log-probabilities: they are kept, to be sent again. HILL_E_NOMEM. */
int request_keep_logprobs(struct request *request);
/* A request that has an id already, of another coordinator; new ones get higher ids. */
void request_keep_id(struct request_book *book, struct request *request, uint64_t id);
/* That id is nobody's from now on. */
void request_book_skip_id(struct request_book *book, uint64_t id);

/* To the end of the queue; HILL_E_BUSY when it is full. */
int request_book_add(struct request_book *book, struct request *request);
/* The first that waits gets a slot, the one that has been free for longest, and is to be sent
 * (INTERRUPTED). NULL: nobody waits, no slot is free, the first one was refused and nobody has
 * ended since, or a refused one has been sent again and not taken up yet. Who returns comes before
 * all others. */
struct request *request_book_advance(struct request_book *book);
/* Is the one whose turn it is one that returns? */
bool request_book_next_returns(const struct request_book *book);
/* A new one, to be parked AWAITED, had its slot last in this attempt. Of those that had the same
 * slot only the newest may return to it: the others' entries went when it came. */
void request_book_claim(struct request_book *book, struct request *request, uint64_t attempt);
/* Is the slot kept free for one that is AWAITED? */
bool request_book_is_reserved(const struct request_book *book, uint32_t slot);
/* Does anybody return? */
bool request_book_returns(const struct request_book *book);
/* Nobody does any more; only_awaited: of those whose clients have not come. */
void request_book_stay_away(struct request_book *book, bool only_awaited);
/* To another slot, which is not taken or its own, before it is sent. */
void request_book_move(struct request_book *book, struct request *request, uint32_t sequence);
/* No room beside the others: the attempt does not count, and the request waits again, before all
 * that came later. HILL_E_TIMEOUT, and nothing changed, when nobody was beside it
 * REQUEST_ALONE_MAX times in a row. */
int request_book_refused(struct request_book *book, struct request *request);
/* All workers are ready, and the GPU worker has it: no lost worker keeps it from going on. */
void request_sent(struct request *request);
/* The workers have taken the attempt up. */
void request_taken_up(struct request *request);
/* Out of the queue or of those that run, or new: it runs no longer. state: AWAITED or DELIVERED
 * (which is counted as done). */
void request_book_park(struct request_book *book, struct request *request, enum request_state state,
                       int64_t deadline_ns);
/* An AWAITED one into the queue, at its old place, however long that is. */
void request_book_unpark(struct request_book *book, struct request *request);
/* Take it out, wherever it is, count it, and destroy it. */
void request_book_remove(struct request_book *book, struct request *request);

/* id 0: the newest of this client's. NULL when there is none. */
struct request *request_book_find(const struct request_book *book,
                                  const struct proto_address *client, uint64_t id);
/* Of any client, running, waiting or AWAITED; NULL when there is none. */
struct request *request_book_by_key(const struct request_book *book, uint64_t key);
bool request_same_client(const struct request *request, const struct proto_address *client);
/* The client lives: of all its requests. asks: it has asked for the status. */
void request_book_heard(struct request_book *book, const struct proto_address *client, bool asks,
                        int64_t now_ns);
/* The running request whose current attempt has this wire_id. */
struct request *request_book_by_wire(const struct request_book *book, uint64_t wire_id);

/* Begin an attempt: a new wire id, RUNNING. HILL_E_PEER_GONE after REQUEST_ATTEMPTS_MAX without a
 * new token. */
int request_begin_attempt(struct request_book *book, struct request *request, int64_t now_ns);
/* The attempt is lost: its messages count no more; it counts, or not. */
void request_interrupt(struct request *request, bool counts);
/* It is FINISHING and the statistics that it lacks are lost, or on their way: INTERRUPTED, so that
 * another attempt makes them, unless they come before that begins. False: it lacks none, or did not
 * end well. */
bool request_repeat_end(struct request *request);
/* An attempt that was to make the statistics again has failed: the Done of the one before it
 * counts, without them. False: there is none. */
bool request_take_first_end(struct request *request);
/* It could not even be sent: the same, and it counts as no attempt. */
void request_not_sent(struct request *request);

/* A token of the current attempt: 1 (new: send it), 0 (the client has it), HILL_E_PROTOCOL (not the
 * next index, or more than were asked for), HILL_E_DAMAGED (differs from the one that the client
 * has), HILL_E_UNSUPPORTED (is not the forced one). */
int request_take_token(struct request *request, uint32_t index, uint32_t token, int64_t now_ns);

/* What came with that token, which has been taken: a struct hash_state, or nothing. */
void request_note_state(struct request *request, uint32_t index, const void *bytes, size_t n);
/* Tokens that the GPU worker may make beyond those that are here: then one of the steps that the
 * scorer keeps is before them, with one under way. */
uint32_t request_ahead_max(const struct request *request);
/* NULL: none is known. */
const struct hash_state *request_state_after(const struct request *request, uint32_t index);
/* Can an attempt go on after a token? Its state and those of the newer ones: from *first on, copied
 * into states, how many; 0: it begins anew. */
uint32_t request_resume_states(const struct request *request, uint32_t *first,
                               struct hash_state states[REQUEST_STATES]);
/* The attempt has gone on with so many of the tokens; HILL_E_PROTOCOL: it cannot have. */
int request_take_resumed(struct request *request, uint32_t tokens, int64_t now_ns);
/* The attempt has gone on with so many units of the prompt, and computes some again;
 * HILL_E_PROTOCOL: it cannot have. */
int request_take_units(struct request *request, uint64_t units, uint64_t repeated);
/* So many units of the prompt are computed in this attempt. */
void request_note_units(struct request *request, uint64_t done);
/* An attempt that had gone on has failed: is it to begin anew? Then it is interrupted. */
bool request_begin_anew(struct request *request);

/* Take over a Done or SequenceStats message; the second of a kind is HILL_E_PROTOCOL and not taken.
 */
int request_take_done(struct request *request, Hill__Message *message, int64_t now_ns);
int request_take_stats(struct request *request, Hill__Message *message);
/* Its Done is there, and statistics are there or (FINISHING) overdue. */
bool request_is_over(const struct request *request, int64_t now_ns);
