/*
 * cpu_scorer/hkm.h - the hierarchical KV manager's tables: where every KV entry is, and the hot
 * pool.
 *
 * What: lays out the "hot" segment and keeps it: a location word for each (sequence, layer,
 * position), hot blocks of KV_HOT_BLOCK_TOKENS slots, each owned by one (sequence, layer), and the
 * GPU's slot table (gpu_slots.h). Everything lies in shared memory as offsets and numbers, so that
 * it outlives the process. Layout: header, location words, lists, GPU slot table, what is kept of
 * each sequence (kept.h), checks of cold slots, what the policy knows of each (sequence, layer)
 * (kv_plan_state_bytes), block owners, then the planes of all blocks:
 *     positions  u32 [n_blocks][64]                HKM_NO_POSITION: the slot is free
 *     checks     hkm_check [n_blocks][64]          of sequences that are kept
 *     digests    [n_blocks][4] groups of 16 slots  (kv/group.h)
 *     entries    u16 [n_blocks][64][2 * key dims]
 * Invariants: a location word is the only authority [I1] on where an entry is; it changes by one
 * atomic store, after the entry's copy at its new place is whole and before the old slot is freed.
 * A list never takes more blocks than were reserved for it, so taking a block within the
 * reservation cannot fail. A successor process relies on words, checks and entries alone: lists,
 * owners, positions and digests are made anew out of them [I24] (hkm_adopt, hkm_recover), so that a
 * kill at any moment leaves nothing to repair. Who calls it: the scorer's data thread alone;
 * scoring threads read digest planes while that thread changes none of them. Failure: codes as
 * documented at each function.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cpu_scorer/damage.h"
#include "kv/geometry.h"
#include "kv/plan.h"

#define HKM_MAGIC       0x314d4b48u /* "HKM1" */
#define HKM_VERSION     5u
#define HKM_NO_POSITION UINT32_MAX
#define HKM_NONE        UINT32_MAX
#define HKM_LENT        (UINT32_MAX - 1)

/* A location word: two bits of tag, 30 bits of slot. */
#define HKM_TAG_SHIFT 30
#define HKM_SLOT_MASK 0x3fffffffu
enum hkm_tag { HKM_NOWHERE = 0, HKM_HOT = 1, HKM_COLD = 2 };

_Static_assert(HKM_SLOT_MASK == KV_MAX_SLOTS, "a word names every slot that a plan allows");

static inline uint32_t hkm_word(enum hkm_tag tag, uint32_t slot)
{
    return (uint32_t)tag << HKM_TAG_SHIFT | (slot & HKM_SLOT_MASK);
}

static inline enum hkm_tag hkm_tag(uint32_t word)
{
    return (enum hkm_tag)(word >> HKM_TAG_SHIFT);
}

static inline uint32_t hkm_slot(uint32_t word)
{
    return word & HKM_SLOT_MASK;
}

/* The hot segment's first bytes; written by the scorer at hkm_init, magic last. */
struct hkm_header {
    _Atomic uint32_t magic;
    uint32_t version;
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t ctx_tokens, n_sequences, gpu_slots;
    uint32_t n_blocks, digest_bits;
    uint64_t words_offset, lists_offset, owners_offset, gpu_offset, kept_offset;
    uint64_t cold_checks_offset, n_cold_slots;
    uint64_t positions_offset, checks_offset, digests_offset, entries_offset;
    uint64_t total_bytes;
    uint64_t state_offset, state_bytes; /* of a list */
    uint64_t pad[5];
};

/* What the entry in a slot must be, whoever looks: the entry's checksum (pool_entry_checksum), and
 * a number that only this checksum at this (request, layer, position) has. So a word that points at
 * another entry is found, and an entry that has changed. */
struct hkm_check {
    uint32_t sum, bound;
};

/* The blocks of one (sequence, layer). Writer: the data thread. */
struct hkm_list {
    uint32_t first;    /* block, HKM_NONE: empty */
    uint32_t n_blocks; /* at most limit */
    uint32_t n_hot;    /* slots in use */
    uint32_t limit;    /* blocks reserved at SEQ_BEGIN */
};

/* One block. Writer: the data thread. */
struct hkm_owner {
    uint32_t list;       /* sequence * n_layers + layer; HKM_NONE: free; HKM_LENT: lent */
    uint32_t next, prev; /* in its list, or in the free list */
    uint32_t reserved;
    uint64_t used; /* bit i: slot i holds an entry */
};

_Static_assert(sizeof(struct hkm_header) == 192, "hot segment layout");
_Static_assert(sizeof(struct hkm_check) == KV_CHECK_BYTES, "hot segment layout");
_Static_assert(sizeof(struct hkm_list) == 16, "hot segment layout");
_Static_assert(sizeof(struct hkm_owner) == 24, "hot segment layout");
_Static_assert(KV_HOT_BLOCK_TOKENS == 64, "a block's slots are the bits of one word");

struct hkm_config {
    struct kv_geometry geometry;
    uint32_t ctx_tokens, n_sequences;
    uint32_t gpu_slots;   /* per (sequence, layer) */
    uint32_t n_blocks;    /* at most; fewer when the memory holds fewer */
    uint32_t cold_slots;  /* of the cold pool; 0: there is none */
    uint64_t state_bytes; /* of what the policy knows of a list; 0: nothing */
};

struct hkm {
    struct kv_geometry geometry;
    uint32_t ctx_tokens, n_sequences, n_blocks;
    uint32_t entry_bytes;
    struct hkm_header *header;
    _Atomic uint32_t *words; /* [n_sequences][n_layers][ctx_tokens] */
    struct hkm_list *lists;  /* [n_sequences][n_layers] */
    struct hkm_owner *owners;
    void *gpu_table;                       /* gpu_slots_bytes, see gpu_slots.h */
    uint8_t *kept;                         /* [n_sequences][KV_KEPT_BYTES], see kept.h */
    struct hkm_check *cold_checks;         /* [n_cold_slots] */
    uint8_t *states;                       /* [n_sequences][n_layers][state_bytes] */
    struct hkm_check *checks;              /* [n_blocks][64] */
    uint64_t identities[KV_MAX_SEQUENCES]; /* of the requests; 0: no checks are made */
    uint32_t *positions;                   /* [n_blocks][64] */
    uint8_t *digests;    /* [n_blocks][4] groups: slot i of a block is token i of its groups */
    uint8_t *entries;    /* [n_blocks][64][entry_bytes] */
    uint32_t free_block; /* head of the free list */
    uint32_t n_free;
    uint32_t lend_below;   /* where the next block to be lent is looked for, downwards */
    uint32_t n_unreserved; /* blocks that no list has reserved and that are not lent */
    bool no_digests; /* the policy evaluates keys: digests are not made (the caller's to set) */
};

/* Bytes of the tables that precede the blocks, and of one block. */
uint64_t hkm_tables_bytes(const struct hkm_config *config);
uint64_t hkm_block_bytes(const struct kv_geometry *g);

/* Lay out `memory` (64-byte aligned) with as many blocks as fit, at most config->n_blocks; all
 * empty. HILL_E_INVALID when not even one block per layer fits. Owns nothing: no finish is needed.
 */
int hkm_init(struct hkm *h, void *memory, uint64_t bytes, const struct hkm_config *config,
             struct hill_why *why);

/* The same over what an earlier process laid out for the same config: words, checks and entries
 * stay, every block is free. Each sequence must then be recovered or released. HILL_E_DAMAGED: it
 * is something else; nothing changed. */
int hkm_adopt(struct hkm *h, void *memory, uint64_t bytes, const struct hkm_config *config,
              struct hill_why *why);
/* Positions from 0 on whose words name a place, at most `most`. */
uint32_t hkm_placed(const struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t most);
/* Take the blocks and slots that the words of positions 0 .. n_tokens - 1 of a layer name, of a
 * sequence that has its reservation and identity; words above are dropped. Every one of these
 * positions must be hot with the entry that its check is of, or cold (the caller looks at those);
 * one that is not is nowhere from now on and among the damage (NULL: none is allowed).
 * HILL_E_DAMAGED: the sequence is to be released. */
int hkm_recover(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t n_tokens,
                struct damage *damage, struct hill_why *why);
/* This position is nowhere any more: the newest, or one whose entry is damaged. */
void hkm_drop(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t position);

/* The check of an entry at a position, out of the entry or its checksum. */
struct hkm_check hkm_check_of(const struct hkm *h, uint32_t sequence, uint32_t layer,
                              uint32_t position, uint32_t sum);
uint32_t hkm_sum(const struct hkm *h, const void *entry);

/* A sequence may have blocks_per_layer blocks for every layer, no fewer than now. HILL_E_NOSPACE
 * when that many are not unreserved; then nothing changes. */
int hkm_reserve(struct hkm *h, uint32_t sequence, uint32_t blocks_per_layer);
/* The sequence is another request's from now on: its first n_tokens get that request's checks. */
void hkm_rename(struct hkm *h, uint32_t sequence, uint32_t n_tokens, uint64_t identity);
/* Up to `more` further blocks for every layer of a sequence that has a reservation; returns how
 * many each has got. */
uint32_t hkm_extend(struct hkm *h, uint32_t sequence, uint32_t more);

/* The sequence may have that many blocks for every layer, no more than now, and gives the others
 * back. False: a layer holds more; nothing changed. */
bool hkm_shrink(struct hkm *h, uint32_t sequence, uint32_t blocks_per_layer);

/* Lend n unreserved blocks, whose digests and entries hold what the borrower wants (tiers.h:
 * digests of cold tokens), until each is given back. They lie at the end of the memory where that
 * is free. HILL_E_NOSPACE: there are not so many; nothing changed. */
int hkm_lend(struct hkm *h, uint32_t n, uint32_t *blocks);
void hkm_give_back(struct hkm *h, uint32_t block);

/* Free everything a sequence holds and its reservation; its words become nowhere. */
void hkm_release(struct hkm *h, uint32_t sequence);

/* Put n entries (each entry_bytes, at positions first...) into hot slots, digest them and make
 * their words hot. Returns how many were taken: fewer than n when the list's blocks are full. */
uint32_t hkm_append(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t n,
                    const void *entries);

/* The entry at this position is at cold_slot from now on; a hot slot that it held is freed after
 * the flip. */
void hkm_set_cold(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t position,
                  uint32_t cold_slot);

/* Every block of a (sequence, layer) into blocks[max], the oldest first; returns how many there are
 * (at most max; then the newest). */
uint32_t hkm_blocks(const struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t *blocks,
                    uint32_t max);

static inline uint32_t hkm_list_index(const struct hkm *h, uint32_t sequence, uint32_t layer)
{
    return sequence * h->geometry.n_layers + layer;
}

static inline uint32_t hkm_location(const struct hkm *h, uint32_t sequence, uint32_t layer,
                                    uint32_t position)
{
    uint64_t at = (uint64_t)hkm_list_index(h, sequence, layer) * h->ctx_tokens + position;
    /* relaxed: single writer, and it is this thread; release at the store is for a successor
     * process */
    return atomic_load_explicit(&h->words[at], memory_order_relaxed);
}

static inline uint8_t *hkm_entry(const struct hkm *h, uint32_t slot)
{
    return h->entries + (uint64_t)slot * h->entry_bytes;
}

/* Tokens hot in one (sequence, layer). */
static inline uint32_t hkm_hot_tokens(const struct hkm *h, uint32_t sequence, uint32_t layer)
{
    return h->lists[hkm_list_index(h, sequence, layer)].n_hot;
}
