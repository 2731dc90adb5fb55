/*
 * tests/gpu_worker/stage.h - coordinator and scorer played by a test, around a real hill-gpu-worker
 * process.
 *
 * The played scorer keeps every entry of STAGE_LANES sequences and selects all of them, staging
 * what is not resident, in GPU slots that are a permutation of the positions. In epochs of odd
 * number there is a hot pool, and those at even positions (or all) are named there in place. It
 * checks the order of what it is sent. A lane is a sequence and the request that runs on it. A
 * request can go on with what an earlier one has left on its lane, but for damaged entries.
 * Single-threaded: stage_pump does what is to be done.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "proto/envelope.h"
#include "proto/party.h"
#include "proto/records.h"
#include "tests/gpu_worker/random_model.h"
#include "tests/shm/run_id.h"

enum { STAGE_CTX = 192, STAGE_TOKENS = 64, STAGE_LANES = 3, STAGE_HOT_OFFSET = 320 };

struct stage_lane {
    /* the scorer's */
    uint32_t appended[8], resident[8];
    uint32_t taken[2][STAGE_CTX], n_taken[2]; /* of the newest selection, of the one before */
    uint8_t *entries[8];
    uint32_t expect_step, expect_layer; /* of the next query that is not AHEAD */
    /* what was seen */
    uint32_t n_begins, n_ends, n_steps, n_queries, n_reads_done, n_in_place;
    uint32_t n_kinds[QUERY_KINDS]; /* of its queries */
    uint32_t silent_step;          /* known queries of this step get no answers any more */
    bool reads_hot;
    /* what is to go wrong, at the query with this number (counted from 1; 0: never) */
    uint32_t stall_at, refuse_at, old_generation_at, cancel_at, wild_at;
    uint32_t decline_from;             /* known queries from this step on are declined; 0: none */
    struct stage_lane *cancelled_then; /* its next query, of the same step: cancelled unanswered */
    /* an earlier attempt's entries are there: what the next SEQ_BEGIN that offers to go on is told;
     * 0 tokens: nothing is kept. The damaged ones are lost, and come in this order. */
    uint32_t kept_tokens, replay_to, n_damaged;
    struct damaged_entry damaged[RECORD_DAMAGED_MAX];
    bool keeps_silent; /* no SEQ_BEGIN is answered */
    uint32_t n_mended; /* of them that came */
    uint32_t adopt_min, adopt_max;
    /* READs, and the tokens in them; the ends of their layers and positions; stalled ones are not
     * answered, a status is the answer to all */
    uint32_t n_reads, n_read, read_layers, read_end;
    bool stall_reads;
    int refuse_reads;
    struct record_read stalled[2];
    uint32_t n_stalled;
    uint32_t declined_step;
    uint64_t request_id;
    /* what came back */
    uint32_t tokens[STAGE_TOKENS], n_tokens;
    bool done;
    Hill__FinishReason finish;
    int code;
    uint64_t logits_hash;
    uint32_t done_tokens;                   /* as Done says */
    struct hash_state states[STAGE_TOKENS]; /* of the logits' hash, after each token */
    double busy_ms, idle_ms, decode_ms, gap_ms;
    uint64_t upload_bytes, link_bytes, link_ns, weights_read, attended_bytes;
};

struct stage {
    char dir[64], model[96];
    void *context, *control, *heartbeat;
    struct proto_address worker;
    pid_t pid;
    struct epoch_settings settings; /* of this epoch, and the next Configure */
    struct party party;             /* the scorer that is played */
    struct random_model m;
    uint32_t entry_bytes;
    struct stage_lane lanes[STAGE_LANES];
    uint64_t n_requests;
    uint32_t n_ready, n_failures, n_refused; /* refused: Done of a request that is on no lane */
    int refused_code;
    uint32_t ahead_max;         /* of requests */
    uint32_t policy;            /* of requests; full: all that is in place is asked for ahead */
    bool json;                  /* of requests */
    const Hill__Resume *resume; /* of requests; NULL: they begin */
    uint32_t resumed_tokens, entries_repeated; /* as the newest Resumed says */
    bool all_hot;          /* in epochs with a hot pool nothing lies anywhere else */
    uint32_t most_at_once; /* lanes whose queries were there together */
};

/* ---- the scorer ---- */

void stage_enter_epoch(struct stage *s);

void stage_cancel(struct stage *s, const struct stage_lane *lane);

/* What was stalled is answered, and so is all that follows. */
void stage_answer_reads(struct stage *s, struct stage_lane *lane);

/* ---- the coordinator ---- */

/* Do what is to be done: messages, rings, heartbeats. */
void stage_pump(struct stage *s);

#define STAGE_UNTIL(s, condition)                                                                  \
    do {                                                                                           \
        int64_t until_ = clock_deadline_ms(60000);                                                 \
        while (!(condition)) {                                                                     \
            stage_pump(s);                                                                         \
            if (clock_now_ns() > until_)                                                           \
                fail_msg("after 60 s still not: %s", #condition);                                  \
        }                                                                                          \
    } while (0)

void stage_configure(struct stage *s);

/* The coordinator has so many tokens of the lane's request. */
void stage_say_taken(struct stage *s, const struct stage_lane *lane, uint32_t tokens);

/* The device model changes. */
void stage_set_model(struct stage *s, const char *text);

/* Returns the request's id; on which lane it is, the caller says. */
uint64_t stage_send_request(struct stage *s, uint32_t sequence, const uint32_t *tokens, uint32_t n,
                            uint32_t predict, uint32_t stop);

void stage_request(struct stage *s, uint32_t sequence, const uint32_t *tokens, uint32_t n,
                   uint32_t predict, uint32_t stop);

/* With the GPU worker of $HILL_BIN (default build/bin). False: there is no such program, as a line
 * on stdout says; the test is skipped. */
bool stage_open(struct stage *s, const struct random_shape *shape);

/* The worker's exit status after SIGTERM. */
int stage_close(struct stage *s);
