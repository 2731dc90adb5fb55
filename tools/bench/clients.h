/*
 * tools/bench/clients.h - clients of the running pipeline (run_pipeline.h) that note when each
 * token reached them.
 *
 * What: up to CLIENTS_MAX connections, each with one request, all read by this thread. "Together"
 * is what counts for a batch: tokens that arrived while every client was decoding, not each
 * client's own speed, because prompts are computed one after another and the first may be done
 * before the last begins. Who calls it: bench_batch.c, bench_gaps.c; point_rows.c. Failure:
 * bench_fail(), also when nothing arrives for a minute. Concurrency: one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/client.h"

#define CLIENTS_MAX   8u
#define CLIENT_TOKENS 2048u

struct bench_client {
    struct client client;
    char *text; /* the prompt, until it is asked */
    uint32_t n; /* tokens that have come */
    int64_t asked_ns;
    int64_t at_ns[CLIENT_TOKENS];
    bool over;
};

/* Connected to the pipeline; client_close(client) ends it. */
void client_connect(struct client *client);

/* Connected, with the prompt NAME.txt read: so nothing delays what other clients are sent when this
 * one asks. */
void client_prepare(struct bench_client *c, const char *prompt);
/* Ask for `predict` tokens after the prompt, which is computed even where its KV is kept;
 * client_close(&c->client) ends the request. Once after client_prepare. */
void client_ask(struct bench_client *c, uint32_t predict);
void client_cancel(struct bench_client *c);

/* Read all n clients until `enough` says so. */
typedef bool clients_enough(const struct bench_client *clients, uint32_t n);
void clients_follow(struct bench_client *clients, uint32_t n, clients_enough *enough);

/* Each has its summary; the first is decoding; the second has its first token. */
clients_enough clients_all_over, clients_first_token, clients_second_began;

/* Tokens a second of n clients together, from the moment that the last of them has its first token
 * to the moment that the first of them has its last; at least `least` steps of all must lie in
 * between. */
double clients_together(const char *prompt, uint32_t n, uint32_t predict, uint32_t least);
