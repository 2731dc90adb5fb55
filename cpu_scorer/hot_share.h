/*
 * cpu_scorer/hot_share.h - how many tokens of a layer are hot, which of a prompt go cold at once,
 * and admission.
 *
 * Rule: of n tokens of a layer, h(n) are hot: the sinks and the newest h(n) - sinks.
 *     no cold pool, or beta = 0:  h(n) = min(limit, n)
 *     else:  h(n) = min(limit, max(ceil(n * beta / (1 + beta)), min(n, sinks + window)))
 * limit is what M_0 gives this sequence per layer: M_0 wins over beta. beta = M_c / M_s, hot over
 * cold (paper, 4.3). A sequence whose beta may change reserves what it may have at most. With a
 * fixed beta h grows by at most one per token, so what is cold never has to come back.
 *
 * Where M_0 holds fewer entries than beta asks for, digests may lie in hot blocks (--digest-mb
 * auto; `scores`, where coordinator/balance.h says that they pay): the host scores other tokens
 * by their digests, which take a fourth of the room, and fewer entries are hot. Then Eq. 2 has a
 * third part: the host scores the share s of all tokens, of which the share h is hot, and the
 * drive scores the rest and fetches for all that is cold:
 *     s / f_c + alpha_c h / B_c = (1 - s) / f_s + alpha_s (1 - h) / B_s
 * so s falls evenly from `scores` at h = 0 to h itself where h is beta / (1 + beta). M_0 gives h:
 * the largest with which the digests of (s - h) of the tokens fit beside its entries. Above 1 s
 * means all tokens; where beta may change, s stays `scores`.
 *
 * Admission (hot_share_plan) reserves for the whole length ahead, so that nothing is refused in
 * mid-request. Each of n sequences may have 1/n of the hot blocks and of the cold stripes whatever
 * the others do; one that needs more gets what nobody has reserved, or is told to wait. Pure
 * functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/layout.h"

struct hot_share {
    double beta;
    double scores; /* share that the host is to score with digests alone, above 1: all; 0: none */
    uint32_t sinks, window;
    uint32_t limit; /* hot tokens per layer */
    bool adapts;    /* beta may change meanwhile; only with copies */
    bool copies;    /* every token has a cold slot of its own set aside */
    uint32_t lent;  /* hot blocks of a layer that are to hold digests of cold tokens instead */
    uint32_t all;   /* hot blocks of a layer for entries and lent: what the sequence may have */
};

struct hot_share_room {
    uint32_t n_layers, n_sequences;
    uint32_t hot_blocks; /* all of them */
    uint32_t unreserved; /* hot blocks that no sequence has reserved */
    struct {
        uint32_t stripes, free_stripes; /* all of them, those not reserved */
        double share;                   /* of what is cold */
    } drives[LAYOUT_DRIVES_MAX];
    uint32_t n_drives; /* 0 without a cold pool */
    uint32_t stripe_slots;
    bool cold_pool;
    /* So many blocks that are lent hold the digests of so many; 0: none are lent. */
    uint32_t lent_blocks, lent_frames;
    bool wants_copies; /* of what moves up: then every token may need a cold slot of its own */
};

/* h(n). */
uint32_t hot_share_target(const struct hot_share *p, uint32_t n);

/* The positions *from .. *to - 1 of a prompt of `prompt` tokens are placed cold, the others hot. */
void hot_share_cold_range(const struct hot_share *p, uint32_t prompt, uint32_t *from, uint32_t *to);

/* Of a sequence that has reserved so many hot blocks for entries of a layer: how many others it
 * lends. */
static inline uint32_t hot_share_lent(const struct hot_share *p, uint32_t blocks)
{
    uint32_t left = p->all > blocks ? p->all - blocks : 0;
    return p->lent < left ? p->lent : left;
}

/* Stripes of a layer on each drive, for its share of the cold tokens; what does not fit one drive's
 * most goes to others. False: there are not as many. */
bool hot_share_stripes(const struct hot_share_room *room, const uint32_t most[LAYOUT_DRIVES_MAX],
                       uint32_t cold, uint32_t stripes[LAYOUT_DRIVES_MAX]);

/* For a sequence that may grow to max_tokens: fill p->limit and p->copies, the hot blocks and, of
 * each drive, the cold stripes to reserve per layer. HILL_E_BUSY when it fits once others have
 * ended; HILL_E_TOO_LONG (why says what is missing) when it does not fit empty tiers. */
int hot_share_plan(struct hot_share *p, const struct hot_share_room *room, uint32_t max_tokens,
                   uint32_t *blocks_per_layer, uint32_t stripes_per_layer[LAYOUT_DRIVES_MAX],
                   struct hill_why *why);
