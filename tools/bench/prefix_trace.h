/*
 * tools/bench/prefix_trace.h - a trace of requests, played against the prefix store's bookkeeping
 * and against other rules of what goes first.
 *
 * What: a request is the ids of its prompt's blocks of 512 tokens; blocks of one id have the same
 * tokens and follow the same block. As in the store a block is 8 chunks of 64 tokens, a prompt
 * takes its longest stored prefix, leaves its other whole chunks, and a chunk goes only when
 * nothing follows it. TRACE_STORE is the store's own code (prefix/chunk_tree.h) with tokens made of
 * the ids; the other rules share no line with it. Times and answers of a trace are not played: what
 * an answer leaves is seen when a later prompt brings it. Who calls it: bench_eviction.c,
 * tests/bench. Concurrency: one thread. Failure: bench_fail().
 */
#pragma once

#include <stdint.h>

#define TRACE_BLOCK_TOKENS 512u
/* A token's prefill costs 1 + its position / this: attention to so many tokens takes what the rest
 * of a small model (SmolLM2-135M) does. */
#define TRACE_EVEN_TOKENS 4000.0

enum trace_rule {
    TRACE_STORE,
    TRACE_LRU,
    TRACE_LFU,     /* of two of a number of uses the least recently used one goes */
    TRACE_UTILITY, /* age + uses * cost, age the rank of what went last (GreedyDual-Frequency) */
    TRACE_OPTIMUM, /* Belady's: what is of use latest goes, or is not taken in; the most hits */
    TRACE_RULES,
};

struct trace_request {
    uint32_t first, n; /* whole chunks, of chunks[] */
    uint32_t n_tokens;
};

struct prefix_trace {
    struct trace_request *requests; /* [n_requests] */
    uint32_t *chunks;               /* [n_refs]: ids, from 0 on */
    uint32_t *parents;              /* [n_chunks]: of an id; UINT32_MAX: none, or never seen */
    uint8_t *seen;                  /* [n_chunks] */
    uint32_t n_requests, n_refs, n_chunks;
};

struct trace_score {
    uint64_t tokens, hits; /* of all prompts; of them found */
    double cost, saved;    /* of the prefills; of the tokens found */
};

/* Adds a request; `trace` begins as zeros. */
void prefix_trace_add(struct prefix_trace *trace, const uint32_t *blocks, uint32_t n_blocks,
                      uint32_t n_tokens);
/* A file of JSON lines with input_length and hash_ids, compressed by gzip. */
void prefix_trace_read(struct prefix_trace *trace, const char *path);
void prefix_trace_free(struct prefix_trace *trace);

/* With room for so many chunks. */
struct trace_score prefix_trace_play(const struct prefix_trace *trace, enum trace_rule rule,
                                     uint32_t n_slots);
