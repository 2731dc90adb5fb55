/*
 * prefix/prefix_store.h - what finished sequences hold: which tokens have their entries in the
 * tiers still, and how these came about (bookkeeping only).
 *
 * What: for each sequence slot at most one finished request: its tokens, and of how many of them
 * the entries are kept. A new prompt takes the longest prefix that it may: of any request the
 * tokens that a prefill has computed over nothing but prefilled ones, since their entries are
 * those that its own prefill would make; within its own conversation, or after a request that it
 * names, also what was decoded. At least the prompt's last token is left to be computed: the
 * answer begins with its logits. While a slot is empty, less than a quarter of a prompt is not
 * worth another's entries, which are cut behind what it takes. Truth is with the scorer, which
 * frees what it needs room for: what is taken here and not there any more is computed. Who calls
 * it: the coordinator. Concurrency: one thread. Failure: HILL_E_NOMEM, and the request is not
 * kept.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PREFIX_SEQUENCES_MAX 64u

struct prefix_entry {
    uint64_t request;      /* its id; 0: the slot holds nothing */
    uint64_t conversation; /* 0: of none */
    uint32_t *tokens;      /* [n_tokens], owned: prompt and answer */
    uint32_t n_tokens;
    uint32_t n_kept;  /* of them have entries: the first */
    uint32_t n_plain; /* of these: prefilled over prefilled ones */
    bool finished;    /* by itself: it may be named */
    uint64_t used;    /* when, by the store's count */
};

struct prefix_store {
    struct prefix_entry entries[PREFIX_SEQUENCES_MAX]; /* by sequence slot */
    uint64_t count;
};

/* What a prompt asks for. */
struct prefix_query {
    const uint32_t *tokens; /* [n] */
    uint32_t n;
    uint64_t conversation; /* 0: none */
    uint64_t after;        /* the request that it names; 0: none */
    bool room;             /* a slot that holds nothing is free */
};

/* What it gets. */
struct prefix_hit {
    uint32_t sequence;
    uint64_t request;   /* whose entries; 0: none */
    uint32_t n_tokens;  /* of the prompt's, from the first on */
    uint32_t n_plain;   /* of these */
    uint32_t n_history; /* kept tokens of the conversation, or of the request that was named: where
                           they are more than n_tokens, the prompt is another from there on */
};

void prefix_store_init(struct prefix_store *store);
void prefix_store_finish(struct prefix_store *store);

/* A request that has ended is kept on its slot, in place of what was there. e->tokens are copied;
 * HILL_E_NOMEM: the slot holds nothing. */
int prefix_store_put(struct prefix_store *store, uint32_t sequence, const struct prefix_entry *e);
/* The slot holds nothing any more. */
void prefix_store_drop(struct prefix_store *store, uint32_t sequence);
/* The same, but what it held is the caller's: its tokens are to be freed, or given back with it to
 * a slot that holds nothing. */
struct prefix_entry prefix_store_take(struct prefix_store *store, uint32_t sequence);
void prefix_store_give_back(struct prefix_store *store, uint32_t sequence, struct prefix_entry *e);
void prefix_store_clear(struct prefix_store *store);

/* The longest prefix for the query on a slot that is not taken [PREFIX_SEQUENCES_MAX]; of two of a
 * length the one that was used last. */
struct prefix_hit prefix_store_find(const struct prefix_store *store,
                                    const struct prefix_query *query, const bool *taken);
/* NULL: it is not kept. */
const struct prefix_entry *prefix_store_request(const struct prefix_store *store, uint64_t request);

static inline bool prefix_store_holds(const struct prefix_store *store, uint32_t sequence)
{
    return store->entries[sequence].request != 0;
}

/* A slot below n that is not taken, for a request that takes no prefix: one that holds nothing,
 * else the least recently used. n: there is none. */
uint32_t prefix_store_slot(const struct prefix_store *store, uint32_t n, const bool *taken);
