/*
 * cpu_scorer/holding.h - what selections hold until they have been read, and what guessed queries
 * bring ahead.
 *
 * A query says by its kind which earlier selections of its sequence the attention has read: an
 * exact one, all; a guess, which comes while the newest is still to be read, all but that. So where
 * queries are guessed two selections of a sequence are alive at a time, in staging and in what is
 * read in place, and twice the staging slots are set aside for it [I9] [I11]. A guess that is begun
 * while its sequence's query of the layer before is in flight says so when it is placed.
 *
 * A guess that is attended to (QUERY_SPECULATIVE) is a query like any other. One that is verified
 * (QUERY_AHEAD) has no answer: what it selects and the GPU lacks is brought to staging and stays
 * there for the exact query of the same (step, layer). That one scores for itself and takes over
 * what it needs; the rest is free, and what the guess had missed is brought late. Entries do not
 * change, so what has moved between the tiers meanwhile does not matter: a guess holds copies.
 *
 * Known queries of a step (QUERY_KNOWN) come before any of it is attended to, and everything that
 * their answers name lies in hot slots: no staging is taken, and no hot slot of the sequence is
 * freed until the step is over. Where an entry has gone to the cold pool, or is on its way, all of
 * a step are declined, since their staging would not be free in time.
 *
 * Who calls it: queries and whatever frees slots; data thread alone. Failure: codes as documented
 * at each function.
 */
#pragma once

#include "cpu_scorer/answer.h"

int holding_create(const struct core *c, struct sequence *s); /* HILL_E_NOMEM */
void holding_destroy(struct sequence *s);
uint64_t holding_private_bytes(const struct scorer_config *c);
/* A sequence begins. */
void holding_begin(const struct core *c, struct sequence *s);

/* A query says what has been read: that is free, and so is a guess that it has no use for. */
void holding_release(struct core *c, struct sequence *s, const struct record_header *header,
                     uint32_t kind);
/* The same of a READ that comes ahead: all but what the newest READ has brought. */
void holding_keep_newest(struct core *c, struct sequence *s);
/* Nothing is read in place any more. */
void holding_reads_done(struct sequence *s);
/* Staging slots that the sequence's selections and its guess hold now. */
uint32_t holding_slots(const struct sequence *s);
/* Everything that is held is free. */
void holding_release_all(struct core *c, struct sequence *s);

/* May hot slots of this layer be freed? No, while they are read in place. */
static inline bool holding_reads(const struct sequence *s, uint32_t layer)
{
    for (uint32_t i = 0; i < 2; i++)
        if (s->held[i].reading && (s->held[i].layer == layer || s->held[i].layer == ALL_LAYERS))
            return true;
    return false;
}

/* A known query has its tokens: may it be answered? The first of a step decides for all of them;
 * where it is yes everything hot is read in place from now on. */
bool holding_goes_ahead(struct sequence *s, const struct record_header *header);

/* Of the answer's uploads, what the guess has filled keeps its slot; all others are to be brought:
 * ANSWER_BRING. */
void holding_use_guess(struct sequence *s, struct answer *a);
/* Then staging slots for those, held by the newest selection; the guess's other slots are free. 0,
 * or HILL_E_WOULD_BLOCK. */
int holding_take(struct sequence *s, struct answer *a);
/* The same for all items of a READ, beside those that are kept. */
int holding_take_all(struct sequence *s, struct answer *a);
/* The answer's fetches were lost with the agent: their slots are, too, until the next epoch. */
void holding_lose(struct sequence *s);

/* A guess has selected these items: staging for those that are to be brought. 0, or an error. */
int holding_guess(struct sequence *s, struct answer *a);
/* It is there, for this (step, layer); or it has failed. */
void holding_keep_guess(struct sequence *s, const struct record_header *header);
void holding_lose_guess(struct sequence *s, struct answer *a);
/* An exact query over n_tokens has selected these: what of that its guess had found is counted. */
void holding_compare(struct sequence *s, const struct answer *a, uint32_t layer, uint32_t n_tokens);
