/*
 * proto/records.h - the records of the data plane, as they lie in the rings; who answers what:
 * docs/decode-step.md.
 *
 * Every record starts with struct record_header. All numbers little endian, fixed width; arrays
 * follow the struct at the offsets named. A receiver checks epoch, ids and every count against the
 * record's size before use (records.c). Rings (proto/layout.h says where they lie):
 * - append, GPU worker to scorer: PROMPT (where rings are recorded), SEQ_BEGIN, RESUME, APPEND,
 *   MASS, STEP_END, SEQ_END, in order;
 * - query, GPU worker to scorer: QUERY (refers to appended tokens by N; the scorer drains append up
 *   to N first), READS_DONE, READ;
 * - selection, scorer to GPU worker: SELECTION, SEQ_READY (answer to SEQ_BEGIN), SEQ_STATS (answer
 *   to SEQ_END), ENTRIES or MASS (answers to READ);
 * - command, scorer to agent: AGENT_QUERY, COMMIT, RELEASE, FETCH, READ_KEYS, TRIM, ADOPT: urgent,
 *   ordered;
 * - background, scorer to agent: DEMOTE;
 * - score, agent to scorer: SCORE_BLOCK;
 * - completion, agent to scorer: COMPLETION, one for every command.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/hash_state.h"
#include "kv/geometry.h"
#include "kv/select.h"

enum record_type {
    RECORD_SEQ_BEGIN = 1,
    RECORD_APPEND = 2,
    RECORD_STEP_END = 3,
    RECORD_SEQ_END = 4,
    RECORD_QUERY = 5,
    RECORD_READS_DONE = 6,
    RECORD_RESUME = 7,
    RECORD_READ = 8,
    RECORD_PROMPT = 9,
    RECORD_MASS = 10,
    RECORD_SELECTION = 16,
    RECORD_SEQ_READY = 17,
    RECORD_SEQ_STATS = 18,
    RECORD_ENTRIES = 19,
    RECORD_AGENT_QUERY = 32,
    RECORD_COMMIT = 33,
    RECORD_FETCH = 34,
    RECORD_TRIM = 35,
    RECORD_DEMOTE = 36,
    RECORD_RELEASE = 37,
    RECORD_READ_KEYS = 38,
    RECORD_ADOPT = 39,
    RECORD_SCORE_BLOCK = 48,
    RECORD_COMPLETION = 49,
};

struct record_header {
    uint32_t epoch;    /* of the data plane; a record of another epoch is dropped and counted */
    uint32_t sequence; /* sequence slot, 0 .. parallel-1 */
    uint32_t step;     /* decode step of the sequence; 0 is the prefill */
    uint32_t layer;
};

/* The newest sequence on a slot; the scorer frees what the slot held before. */
struct record_seq_begin {
    struct record_header header;
    uint64_t request_id;
    uint32_t prompt_tokens; /* known ahead, so that prefill can place each token once */
    uint32_t max_tokens;    /* prompt + predict */
    double alpha;
    /* tokens, budget 0: alpha; enum kv_policy, enum kv_importance */
    uint32_t budget, sinks, window, policy;
    uint16_t importance;
    uint16_t granularity; /* tokens, 0 as 1 */
    uint16_t reads_hot;   /* 1: the attention can read entries in the hot pool, where they lie; 0 */
    uint16_t exact_below; /* of recordings from before it: 0 */
    uint64_t identity;    /* of the request in all its attempts; 0: nothing of it is kept */
    /* What an earlier epoch left of it is taken up again, with as many tokens as the scorer has
     * whole, from adopt_min to adopt_max of them; 0 and 0: it begins. adopt_min 0: of the first
     * adopt_max tokens of its prompt whatever the scorer has. */
    uint32_t adopt_min, adopt_max;
    /* Else: it goes on with the first `after_tokens` of an ended request whose SEQ_END said keep,
     * of this identity and on this slot; they are the first of its prompt. 0: it begins. */
    uint64_t after;
    uint32_t after_tokens;
    /* Of the prompt's: entries of a saved session, which come layer after layer before any other;
     * 0: there are none. */
    uint32_t past_tokens;
};

/* K and V of n_tokens new tokens of one layer, at positions first .. first + n_tokens - 1, each an
 * entry: data [n_tokens][entry bytes] (K then V, FP16). */
struct record_append {
    struct record_header header;
    uint32_t first, n_tokens;
    uint64_t reserved;
    /* then entries */
};

/* Of a sequence that ranks by the attention of all queries so far (policy h2o): the attention that
 * tokens first .. first + n_tokens - 1 of a layer have had, summed over queries and heads. In the
 * append ring that of the prompt's queries, or of a restored session's: all tokens of a layer, in
 * order, after their APPENDs and before the STEP_END. In the selection ring the answer to a READ of
 * READ_MASS; n_tokens is 0 with a status. */
struct record_mass {
    struct record_header header;
    uint32_t read_id; /* of the READ; else 0 */
    uint32_t first, n_tokens;
    int32_t status; /* 0, or a hill_error */
    /* then float mass[n_tokens] */
};

/* All layers of step have been appended: the step is whole. n_tokens: the sequence's length now.
 * The scorer may move entries now (no query is in flight). */
struct record_step_end {
    struct record_header header;
    uint32_t n_tokens;
    uint32_t reserved[3];
};

struct record_seq_end {
    struct record_header header;
    uint64_t request_id;
    int32_t status; /* 0: by itself (stop token, length); else why, a hill_error */
    uint32_t keep;  /* 1: its entries stay while there is room, for a SEQ_BEGIN after it */
};

/* What a query is made of, and which earlier selections of the sequence the attention has read when
 * it comes. The two guesses are made a layer ahead, of the input of the layer before the one they
 * ask for; only where Configure says that queries are guessed. Known ones come before a step, for
 * every layer, in order, where all selections of the step follow from N alone
 * (kv_selection_is_known); they have no vectors. Their answers name entries in place, nothing else:
 * where that cannot be, all of the step are answered with HILL_E_WOULD_BLOCK, and exact ones
 * follow. */
enum query_kind {
    QUERY_EXACT = 0,       /* the layer's own; all have been read */
    QUERY_SPECULATIVE = 1, /* a guess whose answer is attended to; all but the newest */
    QUERY_AHEAD =
        2, /* a guess that has no answer: what it selects is brought to staging for the exact
              query of the same (step, layer), which comes later; all but the newest */
    QUERY_KNOWN = 3, /* no vectors: all of it is known; all of earlier steps, none of this one */
    QUERY_KINDS
};

struct record_query {
    struct record_header header;
    uint32_t query_id; /* free-running, chosen by the GPU worker; the answer carries it */
    uint32_t kind;     /* enum query_kind */
    uint32_t n_heads;  /* query vectors in the record; 0 of QUERY_KNOWN */
    uint32_t
        n_tokens; /* N: tokens appended before this query; it covers exactly positions 0 .. N-1 */
    uint64_t request_id; /* whose: the slot may have gone to another request meanwhile */
    uint64_t reserved;
    /* then float q[n_heads][head_dim], after rotary embedding */
};

/* The attention has read what the sequence's selections named in place. Sent after the last layer
 * of a step; between layers the next QUERY says so, unless it is a known one. */
struct record_reads_done {
    struct record_header header;
    uint64_t request_id;
    uint64_t reserved;
};

/* A part of the request's Prefill message as the control plane packs it: before SEQ_BEGIN, only
 * where the rings are recorded (Configure.record_path), so that a replay of the GPU worker has what
 * it needs. The scorer passes over it. */
struct record_prompt {
    struct record_header header;
    uint32_t total_bytes, first_byte, n_bytes, reserved;
    /* then uint8_t bytes[n_bytes] */
};

/* The sequence is a restored session: its selection hash goes on from there. After SEQ_READY,
 * before the restored entries. */
struct record_resume {
    struct record_header header;
    uint64_t request_id;
    struct hash_state selection_hash;
};

/* Tokens first .. first + n_tokens - 1 of a layer, to be saved or to be followed by more of the
 * prompt: at most as many as a selection of the sequence may have. A record of the sequence as
 * QUERY is, between steps. */
enum read_what {
    READ_ENTRIES = 0, /* answered by ENTRIES */
    READ_MASS = 1,    /* answered by MASS */
};

struct record_read {
    struct record_header header;
    uint32_t read_id; /* of the same counter as query ids */
    uint32_t first, n_tokens;
    uint32_t what; /* enum read_what */
    uint64_t request_id;
    /* 0: what earlier records of the sequence have named is read. 1: but for the newest READ, whose
     * entries stay; both together are at most as many as a selection may have. */
    uint32_t ahead;
    uint32_t reserved;
};

/* They lie in these staging slots, in position order, until a record in the sequence's query ring
 * says that they are read. */
struct record_entries {
    struct record_header header;
    uint32_t read_id;
    uint32_t n_entries; /* 0 with a status */
    int32_t status;     /* 0, or a hill_error */
    uint32_t reserved;
    struct hash_state selection_hash; /* as it stands */
    uint64_t reserved2;
    /* then struct staged_entry slots[n_entries] */
};

struct staged_entry {
    uint32_t staging_slot, generation;
};

/* Selected tokens in position order. Entry i of the attention is GPU slot items[i].gpu_slot, or
 * with SELECTED_HOT an entry of the hot pool (only where SEQ_BEGIN said reads_hot), which keeps its
 * bytes until a record in the query ring says that it has been read (enum query_kind, READS_DONE),
 * or the sequence's SEQ_END. The n_uploads entries
 * listed after the items must be copied staging -> GPU slot first. The scorer owns the GPU slot
 * table: a slot in an upload is free to overwrite. */
struct record_selection {
    struct record_header header;
    uint32_t query_id;
    uint32_t n_selected, n_uploads;
    int32_t status; /* 0, or a hill_error: the request fails */
    /* then struct selected_item items[n_selected], then struct selected_upload uploads[n_uploads]
     */
};

#define SELECTED_HOT 0x40000000u /* | entry of the hot pool, below 2^30 */
struct selected_item {
    uint32_t position, gpu_slot;
};

struct selected_upload {
    uint32_t staging_slot, generation, gpu_slot, reserved;
};

/* Where SEQ_BEGIN said reads_hot: the entries lie one after the other in the payload of the "hot"
 * segment; the same for all sequences of an epoch. Else 0. */
struct record_seq_ready {
    struct record_header header;
    int32_t status;      /* 0, or a hill_error */
    uint32_t hot_offset; /* in units of 64 bytes */
    uint32_t hot_entries;
    /* Tokens whose entries are still there, up to header.step, or after_tokens of SEQ_BEGIN; 0: the
     * request begins anew. For a prompt it counts in header.layer: earlier layers are complete,
     * later ones empty. */
    uint32_t kept_tokens;
    /* How many of these entries are damaged. One APPEND of one token brings each before any query;
     * then they are as they were. */
    uint32_t n_damaged;
    /* Steps header.step + 1 .. replay_to are made again: their tokens are known, and the selection
     * hash has them already. 0: none. */
    uint32_t replay_to;
    uint32_t reserved[2];
    /* then struct damaged_entry damaged[n_damaged], by position, then layer */
};

#define RECORD_DAMAGED_MAX 64u
struct damaged_entry {
    uint32_t layer, position;
};

/* Answer to SEQ_END: the sequence is closed and its SequenceStats has gone to the coordinator over
 * the control plane. */
struct record_seq_stats {
    struct record_header header;
    uint64_t request_id; /* of the SEQ_END */
    uint64_t reserved;
};

/* ---- scorer <-> agent ---- */

/* Slots that a bit of AGENT_QUERY stands for, and words of such bits at most. */
#define RECORD_HOST_SLOTS     64u
#define RECORD_HOST_WORDS_MAX (KV_MAX_TOKENS / 64 / RECORD_HOST_SLOTS)

struct record_agent_query {
    struct record_header header;
    uint32_t query_id;
    uint32_t importance;
    uint32_t block_tokens; /* n: slots framed by one Score Block */
    uint32_t committed;    /* slots of (sequence, layer): a cross-check */
    uint32_t expected;     /* of them, those that the drive is to score: a cross-check */
    uint32_t n_host_words;
    uint32_t reserved[2];
    /* then uint64 host[n_host_words]: bit i % 64 of word i / 64 is of the i-th 64 slots of
     * (sequence, layer), whole stripes by their order: the host has their digests, and scores them.
     * Then of each term (kv_query_terms): int64 offsets[terms], int8 mantissas[terms * head_dim],
     * uint8 shifts[terms] (kv_query_put) */
};

/* These slots of (sequence, layer) count from now on. */
struct record_commit {
    struct record_header header;
    uint64_t tag;
    uint32_t n_slots;
    uint32_t reserved;
    /* then uint32_t slots[n_slots] (cold slot ids) */
};

/* These slots of (sequence, layer), which count, do not count any more: their entries have moved
 * up. What is written in them stays, so that a COMMIT can make them count again; a DEMOTE may also
 * write over them. */
struct record_release {
    struct record_header header;
    uint64_t tag;
    uint32_t n_slots;
    uint32_t reserved;
    /* then uint32_t slots[n_slots] (cold slot ids) */
};

/* Entries of one layer into staging slots. The header names whose they are; where others' are
 * fetched with them, so that the drive reads all at once, `rows` says from which item on whose. A
 * status of such a command is no sequence's: each asks again by itself. */
struct record_fetch {
    struct record_header header;
    uint64_t tag;
    uint32_t n_entries;
    uint32_t n_rows; /* further sequences */
    /* then struct fetch_item items[n_entries], struct fetch_row rows[n_rows] */
};

struct fetch_item {
    uint32_t cold_slot, position, staging_slot, generation;
};

/* Items from `first` on, up to the next row's, are this sequence's. */
struct fetch_row {
    uint32_t sequence, step, first, reserved;
};

/* Read keys out of the pool's plane of keys into a window behind the staging arena (kv/plane.h):
 * the covering pages of each range, one range after the other. A range lies in one stripe
 * and before its last committed slot or up to it; other slots may be among them. Where the plane is
 * of digests, these: a range is whole groups of them, the last one's slots need not all be used. */
struct record_read_keys {
    struct record_header header;
    uint64_t tag;
    uint32_t window; /* 0 .. KV_KEY_WINDOWS - 1 */
    uint32_t n_ranges;
    /* then struct key_range ranges[n_ranges] */
};

struct key_range {
    uint32_t first_slot, n_slots; /* cold slot ids */
};

/* Free every stripe of the sequence. */
struct record_trim {
    struct record_header header;
    uint64_t tag;
    uint64_t reserved;
};

/* The stripe is the list's, and these slots of it were committed in an earlier epoch and count
 * again; those that are not named are free. Several may be about one stripe, also about slots that
 * count again already. HILL_E_DAMAGED with a position: all but the damaged ones count. */
struct record_adopt {
    struct record_header header;
    uint64_t tag;
    uint32_t stripe, stripe_order; /* order of the stripe within (sequence, layer) */
    uint32_t n_slots;
    uint32_t reserved[3];
    /* then struct adopt_item items[n_slots], their slots ascending */
};

struct adopt_item {
    uint32_t slot, position, checksum; /* a cold slot id; checksum: of the entry (pool/pool.h) */
};

/* Write n_slots entries and digests. Slots of one record lie in one stripe, ascending and
 * consecutive from first_slot. */
struct record_demote {
    struct record_header header;
    uint64_t tag;
    uint32_t first_slot, n_slots;
    uint32_t stripe_order; /* order of the stripe within (sequence, layer) */
    uint32_t scattered;    /* 0: slots first_slot .. + n - 1, of one stripe; 1: slots that are in
                            * use again, named behind the entries, in stripes that the layer has */
    uint32_t reserved[2];
    /* then uint32_t positions[n] padded to 16 bytes, the groups of digests (kv/group.h) that hold
     * the slots as they lie in the stripe: of group first_slot / 16 on, slot i in lane i % 16,
     * other lanes are not looked at; entries [n][entry bytes]. Scattered: digests as if the slots
     * followed one another; then uint32_t slots[n], ascending, the first of them first_slot */
};

#define SCORE_BLOCK_VERSION 1u

struct record_score_block {
    struct record_header header;
    uint32_t query_id;
    uint32_t stripe;
    uint32_t first_slot;      /* within the stripe; slot offsets count from here */
    uint32_t n;               /* tuples */
    uint16_t version, planes; /* SCORE_BLOCK_VERSION; planes is 1: one score per token */
    uint32_t reserved[3];
    /* then struct score_tuple tuples[n]: 4n bytes, as in the paper */
};

struct score_tuple {
    uint16_t slot_offset, score;
};

#define RECORD_BUSY_NS_MAX UINT64_C(3600000000000) /* an hour: longer than any deadline */

struct record_completion {
    struct record_header header;
    uint64_t tag;     /* of the command; of a query: its query_id */
    uint32_t command; /* enum record_type of the command */
    int32_t status;   /* 0 or a hill_error */
    /* query: slots scored; read keys: ranges; fetch, demote, commit, release, adopt: entries */
    uint32_t count;
    uint32_t detail; /* status DAMAGED: position of the first damaged entry (adopt: UINT32_MAX:
                       * the pool is another); fetch, status 0: 1: it was read ahead, which busy_ns
                       * leaves out */
    uint64_t flash_read_bytes, flash_write_bytes; /* by this command */
    uint64_t
        link_kv_bytes; /* entry bytes (covering pages) that crossed to the host for this command */
    uint64_t link_key_bytes; /* the same of keys, by READ_KEYS */
    uint64_t busy_ns;        /* time the agent worked on it; at most RECORD_BUSY_NS_MAX */
};

_Static_assert(sizeof(struct record_header) == 16, "record header layout");
_Static_assert(sizeof(struct record_seq_begin) == 96, "layout");
_Static_assert(sizeof(struct record_append) == 32, "layout");
_Static_assert(sizeof(struct record_step_end) == 32, "layout");
_Static_assert(sizeof(struct record_seq_end) == 32, "layout");
_Static_assert(sizeof(struct record_query) == 48, "layout");
_Static_assert(sizeof(struct record_reads_done) == 32, "layout");
_Static_assert(sizeof(struct record_prompt) == 32, "layout");
_Static_assert(sizeof(struct record_resume) == 128, "layout");
_Static_assert(sizeof(struct record_read) == 48, "layout");
_Static_assert(sizeof(struct record_mass) == 32, "layout");
_Static_assert(sizeof(struct record_entries) == 144, "layout");
_Static_assert(sizeof(struct record_selection) == 32, "layout");
_Static_assert(sizeof(struct selected_upload) == 16, "layout");
_Static_assert(sizeof(struct record_seq_ready) == 48, "layout");
_Static_assert(sizeof(struct damaged_entry) == 8, "layout");
_Static_assert(sizeof(struct record_seq_stats) == 32, "layout");
_Static_assert(sizeof(struct record_agent_query) == 48, "layout");
_Static_assert(sizeof(struct record_commit) == 32, "layout");
_Static_assert(sizeof(struct record_release) == 32, "layout");
_Static_assert(sizeof(struct record_fetch) == 32, "layout");
_Static_assert(sizeof(struct fetch_item) == 16, "layout");
_Static_assert(sizeof(struct fetch_row) == 16, "layout");
_Static_assert(sizeof(struct record_read_keys) == 32, "layout");
_Static_assert(sizeof(struct key_range) == 8, "layout");
_Static_assert(sizeof(struct record_trim) == 32, "layout");
_Static_assert(sizeof(struct record_adopt) == 48, "layout");
_Static_assert(sizeof(struct adopt_item) == 12, "layout");
_Static_assert(sizeof(struct record_demote) == 48, "layout");
_Static_assert(sizeof(struct record_score_block) == 48, "layout");
_Static_assert(sizeof(struct score_tuple) == 4, "layout");
_Static_assert(sizeof(struct record_completion) == 80, "layout");

static inline uint64_t record_pad16(uint64_t bytes)
{
    return (bytes + 15u) & ~(uint64_t)15u;
}

/* What follows the host's bits of an AGENT_QUERY: the query (kv_query_at). */
static inline const void *record_agent_query_terms(const struct record_agent_query *r)
{
    return (const uint64_t *)(const void *)(r + 1) + r->n_host_words;
}

/* The i-th sequence of a FETCH that has been checked, 0 .. n_rows: whose, of which step, and its
 * first item; returns how many items it has. */
static inline uint32_t record_fetch_row(const struct record_fetch *r, uint32_t i,
                                        struct fetch_row *row)
{
    const struct fetch_item *items = (const struct fetch_item *)(r + 1);
    const struct fetch_row *rows = (const struct fetch_row *)(items + r->n_entries);
    *row = i ? rows[i - 1]
             : (struct fetch_row){.sequence = r->header.sequence, .step = r->header.step};
    return (i < r->n_rows ? rows[i].first : r->n_entries) - row->first;
}

/* Where the parts of a DEMOTE record lie, from its start; returns the record's total bytes. */
struct demote_parts {
    uint64_t positions, digests, entries, total;
    uint64_t scattered_total; /* of one whose slots are named: those are at `total` */
};
void record_demote_parts(struct demote_parts *out, const struct kv_geometry *g, uint32_t first_slot,
                         uint32_t n_slots);

/* Slots of a pool stripe never exceed this, so neither do the tuples of a Score Block or the slots
 * of a DEMOTE. */
#define RECORD_STRIPE_SLOTS_MAX 4096u

/* Is the record whole: size against its counts (exactly), ids against the geometry and n_sequences,
 * numbers in range? 0 or HILL_E_PROTOCOL with the field in why. The layer of a record that is about
 * no layer is 0. What only the receiver knows (its epoch, its slot counts, which slots are taken)
 * the receiver checks. payload is 16-byte aligned, as rings hand it out. */
int record_check(uint32_t type, const void *payload, uint32_t payload_bytes,
                 const struct kv_geometry *g, uint32_t n_sequences, struct hill_why *why);

const char *record_name(uint32_t type);

/* How a sequence's tokens are to be selected. */
struct kv_selection_settings record_selection_settings(const struct record_seq_begin *r);
