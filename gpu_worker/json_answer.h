/*
 * gpu_worker/json_answer.h - an answer that is held to JSON: which tokens may come next.
 *
 * What: the bytes of every token, made of the model's file when the first such request comes, and
 * the automaton (json_acceptor.h) of one answer. The sampler asks of the tokens that it would take,
 * best first, not of all of them: a token is refused by its first byte, as most are, or tried on a
 * copy of the automaton. Tokens without bytes (control tokens) and stop tokens are refused: an
 * answer ends with its object. A request that goes on somewhere has its automaton made of its
 * tokens anew. Who calls it: requests. Concurrency: one thread. Failure: what tokenizer_open says;
 * out of memory.
 */
#pragma once

#include "gpu_worker/json_acceptor.h"
#include "gpu_worker/sampler.h"
#include "model/gguf.h"

struct json_tokens {
    uint32_t n;
    uint8_t *first;    /* [n] first byte of each; meaningless where there is none */
    uint32_t *offsets; /* [n + 1] into bytes */
    uint8_t *bytes;
};

int json_tokens_open(struct json_tokens **out, const struct gguf_file *file, struct hill_why *why);
/* The same of given pieces: for tests. HILL_E_NOMEM. */
int json_tokens_make(struct json_tokens **out, const struct gguf_string *pieces, uint32_t n);
void json_tokens_close(struct json_tokens *tokens); /* NULL allowed */

struct json_answer {
    const struct json_tokens *tokens; /* NULL: the answer is any text */
    const uint32_t *stops;            /* [n_stops], the request's */
    size_t n_stops;
    struct json_acceptor at;
    bool may_begin[256]; /* which bytes go on from there */
};

/* An answer of which these tokens are there. HILL_E_INVALID: they begin no JSON. */
int json_answer_begin(struct json_answer *answer, const struct json_tokens *tokens,
                      const uint32_t *ids, uint32_t n);
/* It goes on with this token, which it allows. HILL_E_INVALID: it does not. */
int json_answer_take(struct json_answer *answer, uint32_t id);
bool json_answer_is_complete(const struct json_answer *answer);
/* For the sampler. */
bool json_answer_allows(const void *answer, uint32_t id);
