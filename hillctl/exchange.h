/*
 * hillctl/exchange.h - one request to the pipeline, from the prompt to its summary.
 *
 * What: text goes to stdout as it comes, progress to a terminal's stderr. SIGINT cancels the
 * request; the pipeline stays. When the coordinator dies the exchange waits for the next one, for
 * as long as the pipeline's --recovery-timeout says, and goes on (proto/follower.h), or has that
 * one cancel the request. Who calls it: generate.c, chat.c. Failure: HILL_E_CANCELLED; no
 * coordinator comes: HILL_E_TIMEOUT; the pipeline has ended, or there was none: HILL_E_PEER_GONE;
 * and the request's own code; why says which. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>

#include "proto/options_hill.h"
#include "hillctl/report.h"
#include "model/tokenizer.h"
#include "proto/client.h"
#include "proto/follower.h"

struct exchange {
    struct client *client;
    bool quiet;    /* text is kept, not written */
    bool terminal; /* stderr is one: progress is shown */

    struct report report; /* the answer so far; its summary, if any, is `summary`'s */
    Hill__Message *summary;
    bool cancelling, progress_shown;
    int64_t last_heard_ns, last_ping_ns;
    struct follower follower;
};

struct exchange_request {
    const struct hill_request_options *options;
    const struct prompt_piece *pieces;
    uint64_t n_pieces;
    const uint32_t *ids; /* instead of pieces, where n_ids is not 0 */
    size_t n_ids;
    const char *answer_end;     /* of a chat's template (proto: Generate.answer_end); NULL: none */
    const char *save;           /* a session's file, or "" */
    uint64_t conversation;      /* proto: Generate.conversation */
    uint64_t after;             /* the same */
    Hill__Selection *selection; /* NULL: the pipeline's */
};

/* Send a prompt. 0 or what client_send says. */
int exchange_send(struct exchange *exchange, const struct exchange_request *request,
                  struct hill_why *why);
/* Send an order, Generate or RestoreSession. */
int exchange_send_order(struct exchange *exchange, const Hill__Message *order,
                        struct hill_why *why);
/* Go on until the request is over: 0, or a negative code. */
int exchange_follow(struct exchange *exchange, struct hill_why *why);
/* Forget the answer; the next request may be sent. */
void exchange_reset(struct exchange *exchange);
void exchange_clear_progress(struct exchange *exchange);
