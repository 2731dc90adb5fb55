/*
 * prefix/chunk_tree.h - which chunks of tokens the prefix store has: a radix tree over token ids,
 * in chunks of 64 (bookkeeping only).
 *
 * What: a chunk is the entries of up to 64 tokens that follow those of its parent; only a last one
 * has fewer than 64. Its number is its slot in the store's files. How its entries came about: the
 * first n_plain tokens were prefilled over nothing but prefilled ones, and anybody's prefill would
 * make the same; the others, and all below them, belong to an owner (a conversation under its
 * settings), or to nobody (owner 0: there are none). Chunks of other settings (another device) lie
 * in the tree as well, and only their own find them. Tokens are compared one by one: no hash says
 * that two texts are the same.
 * Who goes first when all slots are taken: of the chunks that nothing follows the one of least
 * rank, rank = when it was last of use + half_life * log2(uses), by a clock that counts uses: of
 * two of equal rank one has been of use half as often and was of use half_life uses later. Why this
 * and not the cost to compute it: docs/decisions/prefix.md. Who calls it: drive_store.c, which
 * writes ranks down; tools/bench/prefix_trace.c. Concurrency: one thread. Failure: HILL_E_NOMEM;
 * nothing has changed then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHUNK_TOKENS 64u
#define CHUNK_NONE   UINT32_MAX
/* half_life: so many uses, or the number of slots where that is less: a small store has to forget
 * soon what was of use often */
#define CHUNK_HALF_LIFE 16384u

struct chunk {
    uint64_t stamp;    /* no two chunks of a store have had the same; 0: the slot is free */
    uint64_t settings; /* of the run that made it, as far as entries depend on them */
    uint64_t owner;    /* may take tokens from n_plain on, beside the others; 0: n_plain is n */
    uint64_t checksum; /* of the entries: drive_store.c's */
    double rank;       /* when it goes: the least first */
    double cost;       /* to compute it, in us */
    uint32_t uses;     /* at least 1 */
    uint32_t first;    /* position of its first token: a multiple of CHUNK_TOKENS */
    uint32_t n, n_plain;
    uint32_t tokens[CHUNK_TOKENS];
    /* the tree's */
    uint32_t parent, child, sibling; /* slots; CHUNK_NONE: none */
    uint32_t place;                  /* in the heap of those that nothing follows, or CHUNK_NONE */
};

struct chunk_tree {
    struct chunk *chunks; /* [n_room], by slot */
    uint32_t n_slots;     /* there may be so many */
    uint32_t n_room, n_chunks;
    uint32_t root;  /* the first without a parent */
    uint32_t *heap; /* [n_heap], the least rank first; room for n_room */
    uint32_t n_heap;
    uint32_t lowest; /* all slots below have chunks */
    double clock;    /* uses so far; at the start: as the chunks' ranks say */
};

struct chunk_query {
    const uint32_t *tokens; /* [n] */
    uint32_t n;
    uint64_t settings, owner; /* owner 0: plain tokens alone */
};

struct chunk_hit {
    uint32_t n_tokens, n_plain; /* of the query's, from the first on; n_plain of these */
    uint32_t n_chunks;
};

void chunk_tree_init(struct chunk_tree *tree, uint32_t n_slots);
void chunk_tree_finish(struct chunk_tree *tree);

static inline struct chunk *chunk_at(const struct chunk_tree *tree, uint32_t slot)
{
    return slot < tree->n_room && tree->chunks[slot].stamp ? &tree->chunks[slot] : NULL;
}

/* The most tokens that the query may take; slots [n / CHUNK_TOKENS + 1]: their chunks in order. Of
 * as many plain ones and others the plain ones. */
struct chunk_hit chunk_tree_find(const struct chunk_tree *tree, const struct chunk_query *query,
                                 uint32_t *slots);
/* A chunk behind `parent` (CHUNK_NONE: at the beginning) that makes `wanted` needless: it has its
 * tokens, and who may take wanted's may take its. Else CHUNK_NONE. */
uint32_t chunk_tree_same(const struct chunk_tree *tree, uint32_t parent,
                         const struct chunk *wanted);
/* The other way round: one behind the same parent that `slot` makes needless, and that nothing
 * follows. */
uint32_t chunk_tree_needless(const struct chunk_tree *tree, uint32_t slot);

/* A slot without a chunk; CHUNK_NONE: all are taken. HILL_E_NOMEM as CHUNK_NONE with *rc set. */
uint32_t chunk_tree_unused(struct chunk_tree *tree, int *rc);
/* Whose turn it is to go, but for `spared`; CHUNK_NONE: nobody's. */
uint32_t chunk_tree_victim(const struct chunk_tree *tree, uint32_t spared);
/* A copy of *chunk behind its parent in a slot that chunk_tree_unused gave, or that a file names:
 * HILL_E_INVALID when that one is taken or beyond the end, when the parent is not there, not full
 * or not before it, or when the tokens before it are not everybody's and it has another owner. A
 * new one (rank 0) is ranked, as of use now. */
int chunk_tree_add(struct chunk_tree *tree, uint32_t slot, const struct chunk *chunk);
/* One that nothing follows. */
void chunk_tree_remove(struct chunk_tree *tree, uint32_t slot);
/* It was taken once more. */
void chunk_tree_use(struct chunk_tree *tree, uint32_t slot);
/* One below `slot`, or itself, that nothing follows. */
uint32_t chunk_tree_leaf(const struct chunk_tree *tree, uint32_t slot);
