/*
 * tools/eval/asker.h - jobs (an item under a setting) sent to a pipeline as requests, answers
 * handed back.
 *
 * Up to `parallel` requests are under way; the coordinator queues what it cannot run at once.
 * Greedy sampling. A prompt that several jobs share is read by a request of its own, which saves a
 * session, and restored for each job; one that cannot be saved is read by each. Failure: what
 * concerns a request (refused, failed) is in its answer and the rest goes on; what concerns the
 * pipeline (HILL_E_PEER_GONE: it stopped answering, or was replaced and lost the requests) or the
 * person (HILL_E_CANCELLED: a signal; the requests are cancelled) ends the run. Who calls it:
 * work.c. Concurrency: one thread.
 */
#pragma once

#include "tools/eval/items.h"
#include "tools/eval/matrix.h"
#include "tools/eval/sessions.h"
#include "proto/client.h"

#define ASKER_PARALLEL_MAX 64u

struct job {
    const struct item *item;
    const struct setting *setting;
    struct prompt *prompt; /* which it shares with others */
};

struct answer {
    int code;      /* 0, or why there is none */
    char why[512]; /* of code */
    char *text;
    size_t text_bytes;
    uint32_t n_tokens; /* generated or forced */
    double logprob;    /* scored items: sum over the n_scored last tokens, natural logarithm */
    uint32_t n_scored;
    uint32_t prompt_tokens, selected; /* selected: k at the end */
    double prompt_ms, predicted_ms;
    bool reading, restored; /* of a prompt that is only read; from a session */
};

/* Called once for each job, and for each prompt that is read for several, in the order in which
 * they end; not 0 ends the run with that code. */
typedef int answer_taker(void *context, const struct job *job, const struct answer *answer,
                         struct hill_why *why);

struct asker_order {
    struct client *client;
    const struct subject *subject;
    const struct sessions *sessions;
    const struct job *jobs; /* [n_jobs]; asked in this order */
    size_t n_jobs;
    unsigned parallel;
    answer_taker *take;
    void *context;
};

int asker_run(const struct asker_order *order, struct hill_why *why);
