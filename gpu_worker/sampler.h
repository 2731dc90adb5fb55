/*
 * gpu_worker/sampler.h - from logits to a token, on the host.
 *
 * What: greedy (temperature 0; ties go to the lowest id), else the chain of llama.cpp: repeat
 * penalty over the last 64 tokens (prompt included), top-k, top-p, min-p, temperature, then one
 * draw. The random number is a function of (seed, position) only [I8], so a request resumed
 * anywhere goes on with the same tokens. Equal logits rank by id, lower first, so that no sort's
 * mood shows. Tokens that are not allowed are passed over before the chain, as if the vocabulary
 * had none of them. Who calls it: requests. Concurrency: one thread per struct.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define SAMPLER_PENALTY_TOKENS 64u
#define SAMPLER_NO_TOKEN       UINT32_MAX

struct sampler_settings {
    float temperature;    /* 0: greedy */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    uint64_t seed;
};

struct sampler_candidate {
    uint32_t token;
    float logit, probability;
};

struct sampler {
    struct sampler_settings settings;
    uint32_t n_vocab;
    struct sampler_candidate *candidates; /* [n_vocab] */
    float *penalised;                     /* [n_vocab] */
};

/* HILL_E_NOMEM. */
int sampler_init(struct sampler *sampler, uint32_t n_vocab);
void sampler_finish(struct sampler *sampler);

/* Which tokens may be picked; asked only of those that would be. */
struct sampler_filter {
    bool (*allows)(const void *context, uint32_t token);
    const void *context;
};

/* The token for `position` (of the token to be made). logits [n_vocab]: sampler_has_numbers holds;
 * history [n_history]: the sequence so far, oldest first. filter: NULL allows all.
 * SAMPLER_NO_TOKEN: it allows none. */
uint32_t sampler_pick(struct sampler *sampler, const float *logits, const uint32_t *history,
                      uint64_t n_history, uint64_t position, const struct sampler_filter *filter);

/* Can a token be picked? Not where a logit is NaN or +infinity, nor where all are -infinity. */
bool sampler_has_numbers(const float *logits, uint32_t n_vocab);

/* Natural logarithm of token's probability in the plain softmax of logits [n_vocab]: no
 * temperature, no penalty. HILL_E_DAMAGED: it is no finite number, because a logit is none. */
int sampler_logprob(const float *logits, uint32_t n_vocab, uint32_t token, double *out);

/* In [0, 1): 53 bits of a mix of seed and position. */
double sampler_random(uint64_t seed, uint64_t position);
