/*
 * cpu_scorer/scorer_internal.h - what the files of the scorer share; nobody else includes it.
 *
 * scorer.c         life, the loop, waiting
 * scorer_append.c  the append ring: sequences begin, grow, end
 * scorer_agent.c   the agent: commands, completions, demotions, commits, trims
 * scorer_moves.c   placement by a policy: what a query's answer moves up and down
 * scorer_keys.c    a query of a policy that evaluates FP16 keys: read, evaluate
 * scorer_query.c   a query: score, merge, select, gather, answer
 * scorer_profile.c how fast both sides are, measured between requests
 * scorer_ahead.c   what selections hold until they are read, and what guesses bring ahead
 * scorer_read.c    sessions: entries that are to be saved, a hash that goes on
 *
 * A pump does what can be done now and returns 1 (something moved), 0 (nothing to do, or it must
 * wait) or a negative code that ends the loop (HILL_E_CANCELLED: interrupted). Nothing but
 * scorer_pause ever sleeps.
 */
#ifndef HILL_CPU_SCORER_SCORER_INTERNAL_H
#define HILL_CPU_SCORER_SCORER_INTERNAL_H

#include <xxhash.h>

#include "cpu_scorer/cold_map.h"
#include "placement/gpu_slots.h"
#include "cpu_scorer/hkm.h"
#include "cpu_scorer/scorer.h"
#include "cpu_scorer/hot_share.h"
#include "cpu_scorer/scoring.h"
#include "kv/select.h"
#include "placement/placement.h"
#include "proto/records.h"

#define MAX_DEMOTES 128u /* DEMOTE commands in flight; the index is the low byte of their tag */

#define MOVES_OPEN_MAX                                                                             \
    4u /* DEMOTEs from hot in flight: bulk must not delay what a query waits for */
#define MOVE_TOKENS_MIN                                                                            \
    4u /* over the target before moving: one more or less is not worth a record of its own */
#define MOVES_UP   PLACEMENT_LIVE_RATE /* entries that one answer moves up */
#define MOVES_DOWN 64u                 /* entries of one batch on their way down */

enum sequence_state {
    SEQUENCE_FREE,
    SEQUENCE_ACTIVE,   /* between SEQ_READY and SEQ_END */
    SEQUENCE_ENDING,   /* waits for its demotions, then trims */
    SEQUENCE_TRIMMING, /* waits for the completion of its TRIM: its stripes are not reused before */
};

struct layer_state {
    uint32_t appended; /* tokens placed: 0 .. appended-1 */
    uint32_t
        uncommitted; /* of them on their way to the cold pool out of the append ring, nowhere yet */
    uint32_t moving; /* hot tokens on their way down */
    uint32_t weighed; /* h2o: tokens whose mass in the prompt's queries has come: 0 .. weighed-1 */
    uint32_t low;     /* no hot token but sinks below this position */
    /* placement by a policy; nothing new is ordered before these moves are over */
    struct placement *policy; /* NULL: by recency */
    uint32_t *kept; /* [max_tokens]: cold slot that holds a copy of a hot token, or COLD_NONE */
    uint32_t down[MOVES_DOWN]; /* positions */
    uint32_t n_down;
};

/* What an answer names, until the GPU worker has read it. */
struct holding {
    uint32_t *staging; /* [gpu_slots] */
    uint32_t n_staging;
    bool reading; /* it names hot slots of `layer`: none of them is freed */
    uint32_t layer;
};

/* What a guessed query has brought for the exact one of its (step, layer). */
struct guess {
    bool there;
    uint32_t step, layer, n;
    uint32_t *positions; /* [gpu_slots], ascending */
    uint32_t
        *staging; /* [gpu_slots]: where the entry lies, or GUESS_NONE: the GPU will not need it */
};
#define GUESS_NONE UINT32_MAX

/* The two sides of each step: what hot entries took (scored, copied), and what cold ones did
 * (scored and fetched by the drive). */
struct step_balance {
    int64_t cpu_ns, csd_ns; /* of all layers, when the last step ended */
    uint32_t counts[101];   /* steps by |difference| in percent of the longer side */
};

struct sequence {
    enum sequence_state state;
    int status; /* negative: the request has failed, and every query is answered with this */
    uint64_t request_id;
    uint32_t index;
    uint32_t prompt_tokens, max_tokens;
    uint32_t cold_from, cold_to; /* prompt positions that go straight to the cold pool */
    struct kv_selection_settings settings;
    struct hot_share share;
    struct layer_state *layers; /* [n_layers] */
    uint32_t demotes;           /* in flight */
    bool cold_used;             /* a DEMOTE was sent: the agent holds stripes */
    bool moves_wanted;
    bool reads_hot; /* the GPU worker reads hot entries where they lie */
    uint64_t first_tag, trim_tag;
    /* records of the append ring that wait for the drive, so that others' do not wait with them */
    bool leaving, begin_held; /* end has come; begin has, and waits until the slot is free */
    struct record_seq_end end;
    struct record_seq_begin begin;
    uint32_t k_max;         /* of a selection: k at max_tokens */
    uint32_t staging_max;   /* slots set aside: those of a selection, or of two */
    struct holding held[2]; /* of the newest selection, and of the one before it */
    struct guess guess;
    uint64_t *guess_chosen, *guess_found; /* [n_layers]; NULL: queries are not guessed */
    uint32_t move_layer;                  /* whose turn it is */
    uint32_t *kept;                       /* [n_layers][max_tokens], NULL: by recency */
    XXH64_state_t *hash;
    struct scorer_stats stats;
    struct step_balance balance;
};

struct demote {
    uint64_t tag;
    uint32_t sequence, layer, first_slot, n;
    bool used, done, from_hot;
    bool scattered; /* into slots of copies: `slots`, else first_slot and those after it */
    uint32_t slots[MOVES_DOWN];
};

/* The query being answered. */
struct query_state {
    bool open; /* relayed and not complete: nothing else of the tables moves */
    uint32_t query_id, sequence, layer;
    uint32_t cold_expected, cold_scored;
    bool cold_done; /* its completion arrived */
    int status;
    int64_t relayed_ns, cold_done_ns;
    int64_t hot_due_ns; /* the modelled CPU is busy until then; 0: it is not waited for */
    uint64_t fetch_first_tag, fetch_last_tag;
    uint32_t fetches_sent, fetches_open, fetched; /* items, records, items */
};

struct key_eval; /* scorer_keys.c */

struct scorer {
    struct scorer_config config;
    struct scorer_io io;
    struct scorer_hooks hooks;
    struct hkm hkm;
    struct gpu_slots gpu;
    struct cold_map cold;
    struct score_pool *pool;
    struct kv_selector *selector;
    struct sequence *sequences;
    uint32_t staging_unreserved;

    uint32_t append_done; /* tokens of the APPEND at the ring's head that are placed */
    bool append_checked, append_refused;

    struct demote demotes[MAX_DEMOTES];
    uint32_t n_demotes, n_moves; /* in use; of them from hot */
    uint64_t next_tag;
    uint32_t commands_open; /* commands without a completion */
    int64_t agent_heard_ns; /* last sign of life while commands are open */
    int agent_status; /* negative: the agent did not answer in time; no command is sent any more */

    struct query_state query;
    uint32_t *positions;        /* [gpu_slots] selected */
    uint32_t *slots;            /* [gpu_slots] their GPU slots, with GPU_SLOTS_UPLOAD, or
                                   SELECTED_HOT and their hot slots */
    uint32_t *missed;           /* [gpu_slots] those that the GPU lacked */
    struct fetch_item *fetches; /* [gpu_slots] the cold ones among the answer's uploads */
    struct copy_item *copies;   /* [gpu_slots] the hot ones, still to be made */
    struct fetch_item *late;    /* [gpu_slots] fetches still to be made: those of the answer that no
                  guess has made, or a guess's; the same array where none are guessed */
    uint32_t n_fetches, n_late, n_copies;
    uint8_t *filled; /* [gpu_slots] of the answer's uploads: a guess has brought it; NULL: none */
    uint32_t n_selected, n_uploads; /* of the answer */
    uint32_t n_in_place;            /* of the selected: named by their hot slots */
    int answer_status;
    uint32_t *blocks;      /* [blocks of ctx + 1] hot blocks of the query */
    uint16_t *scores;      /* [blocks][64] */
    struct key_eval *keys; /* NULL: the policy scores digests, or nothing */
    int8_t *query_mantissas;
    uint8_t *query_shifts;
    uint64_t dropped_records;
    uint64_t control_bytes;   /* completions and Score Block headers */
    int64_t profile_limit_ns; /* 0: no profile is asked for */
};

/* ---- scorer.c ---- */

/* Sleep until the doorbell moves on from `seen`, at most until the next deadline. 0, or
 * HILL_E_CANCELLED. */
int scorer_pause(struct scorer *p, uint32_t seen, bool busy);

/* Is this record whole and of this epoch? false: it was counted as dropped. */
bool scorer_accept(struct scorer *p, uint32_t type, const void *payload, uint32_t bytes);

/* The request of this sequence fails: log, tell, remember. */
void scorer_fail(struct scorer *p, struct sequence *s, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline struct record_header scorer_header(const struct scorer *p, uint32_t sequence,
                                                 uint32_t step, uint32_t layer)
{
    return (struct record_header){p->config.epoch, sequence, step, layer};
}

/* May hot slots of this layer be freed? See the invariant in README.md. */
static inline bool scorer_reading(const struct sequence *s, uint32_t layer)
{
    return (s->held[0].reading && s->held[0].layer == layer) ||
           (s->held[1].reading && s->held[1].layer == layer);
}

static inline uint32_t scorer_list(const struct scorer *p, uint32_t sequence, uint32_t layer)
{
    return sequence * p->config.geometry.n_layers + layer;
}

/* ---- scorer_append.c ---- */

int append_pump(struct scorer *p);
/* Sequences that end, and those that wait for their slots or room. */
int append_pump_endings(struct scorer *p);
/* Everything the sequence holds goes back; no stripe is reused before the agent has trimmed. */
void append_close(struct scorer *p, struct sequence *s);
/* The trim is done (or nothing had to be trimmed). */
void append_free(struct scorer *p, struct sequence *s);

/* ---- scorer_agent.c ---- */

/* Take what the agent sent: scores into the selector, completions. */
int agent_pump(struct scorer *p);
/* Flip what has arrived below. Only while no query is open. */
int agent_pump_commits(struct scorer *p);
/* Start demotions of sequences over their hot target. */
int agent_pump_moves(struct scorer *p);
/* Send up to n tokens (entries, from `first`) straight to the cold pool; returns how many, 0: no
 * room now. */
uint32_t agent_demote_entries(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t first,
                              uint32_t n, const uint8_t *entries);
/* The same from the hot pool, for any hot positions, counted as a move of the layer: into slots of
 * copies that are not kept any longer, while there are such, else behind the layer's others. */
uint32_t agent_demote_hot(struct scorer *p, struct sequence *s, uint32_t layer,
                          const uint32_t *positions, uint32_t n);
/* A COMMIT or RELEASE of these slots. */
int agent_push_slots(struct scorer *p, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n);
/* A record in the command ring was published. */
void agent_sent(struct scorer *p);
uint64_t agent_tag(struct scorer *p);
/* 0, or HILL_E_WOULD_BLOCK. */
int agent_trim(struct scorer *p, struct sequence *s);
/* Give the agent up when it has not been heard of for too long. */
void agent_check_deadline(struct scorer *p);
/* Drop the sequence's demotions whose completion will not come any more. */
void agent_forget(struct scorer *p, struct sequence *s);

/* ---- scorer_moves.c ---- */

/* A sequence begins: its policies and tables, when it is placed by one. HILL_E_NOMEM. */
int moves_begin(struct scorer *p, struct sequence *s);
/* It is over: everything but what is in flight. */
void moves_end(struct scorer *p, struct sequence *s);
/* A query has been answered, and the GPU lacked these entries: the cold ones among them are in the
 * staging slots that p->fetches says. What pays moves up out of there. */
void moves_note(struct scorer *p, struct sequence *s, uint32_t layer, const uint32_t *missed,
                uint32_t n);
/* Go on with a sequence's moves. Only while no query is open. */
int moves_pump(struct scorer *p, struct sequence *s);
uint64_t moves_bounced(const struct scorer *p, const struct sequence *s);

/* ---- scorer_ahead.c ---- */

int ahead_create(struct scorer *p, struct sequence *s); /* HILL_E_NOMEM */
void ahead_destroy(struct sequence *s);
/* A sequence begins. */
void ahead_begin(struct scorer *p, struct sequence *s);
/* A query says what has been read: that is free, and so is a guess that it has no use for. */
void ahead_release(struct scorer *p, struct sequence *s, const struct record_query *q);
/* Nothing is read in place any more. */
void ahead_reads_done(struct sequence *s);
/* Everything that is held is free. */
void ahead_release_all(struct scorer *p, struct sequence *s);
/* A guess has selected p->positions[0 .. k-1]: note them, and what of them the exact query will
 * need in staging (scorer_bring). 0, or an error. */
int ahead_plan(struct scorer *p, struct sequence *s, const struct record_query *q, uint32_t k);
/* It is there. */
void ahead_keep(struct sequence *s, const struct record_query *q);
/* It has failed. */
void ahead_lose(struct scorer *p, struct sequence *s);
/* An exact query has selected these: how much of that its guess had found is counted. */
void ahead_compare(struct sequence *s, const struct record_query *q, const uint32_t *positions,
                   uint32_t k);
/* Staging slots for the answer's uploads, which p->slots [k] says: s->held[0].staging. What the
 * guess has filled of them keeps its slot, and p->filled is set; its other slots are free. */
int ahead_take_staging(struct scorer *p, struct sequence *s, uint32_t k, uint32_t n_uploads);
/* ---- scorer_keys.c: for p->config.policy; nothing of it where keys are not read ---- */

int keys_create(struct scorer *p); /* after the tables; HILL_E_NOMEM */
void keys_destroy(struct scorer *p);
uint64_t keys_private_bytes(const struct scorer *p);
/* A sequence begins. */
void keys_begin(struct scorer *p, struct sequence *s);
/* The plane of n tokens on their way down, from entries, or from the hot ones at positions; false:
 * it is the agent's to make, or of digests. */
bool keys_fill_plane(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t n,
                     const uint8_t *entries, const uint32_t *positions, uint8_t *plane);
/* An APPEND is to be placed. */
void keys_look(struct scorer *p, struct sequence *s, const struct record_append *r);
/* Tokens were placed, in order. */
void keys_append(struct scorer *p, struct sequence *s, uint32_t layer, uint32_t first, uint32_t n,
                 const uint8_t *entries);
/* A MASS of the append ring. */
void keys_take_mass(struct scorer *p, const struct record_mass *r);
/* The sums of a layer's tokens, to be saved. */
void keys_read_mass(const struct scorer *p, const struct sequence *s, uint32_t layer,
                    uint32_t first, uint32_t n, float *mass);
/* Has the layer all that its queries are added to? */
bool keys_weighed(const struct sequence *s, const struct layer_state *l);
/* A query, which is open until keys_step has said 1: set up; then steps of a wait (1 done, 0 not
 * yet, negative: failed); after a failure keys_back is waited for. */
void keys_query(struct scorer *p, struct sequence *s, const struct record_query *q);
int keys_step(struct scorer *p, struct sequence *s, const struct record_query *q);
int keys_back(struct scorer *p, struct sequence *s, const struct record_query *q);
/* Everything evaluated into the selector. */
int keys_finish(struct scorer *p, struct sequence *s, const struct record_query *q);
void keys_complete(struct scorer *p, const struct record_completion *c);

/* ---- scorer_query.c ---- */

int query_pump(struct scorer *p);
/* Note that the entry of a position is to be brought to a staging slot: p->late, or p->copies. 0,
 * or HILL_E_DAMAGED. */
int scorer_bring(struct scorer *p, const struct sequence *s, uint32_t layer, uint32_t position,
                 uint32_t staging);
/* What a query waits for: 1 done, 0 not yet, negative: failed. */
typedef int wait_step(struct scorer *p, struct sequence *s, const struct record_query *q);
/* Wait until its N tokens are there. 0, or an error. */
int query_await_tokens(struct scorer *p, struct sequence *s, const struct record_query *q);
/* The last n of the query's N tokens, when they are there, into the sequence's staging slots. */
int query_stage(struct scorer *p, struct sequence *s, const struct record_query *q, uint32_t n);
/* Wait until push has found room in the selection ring. */
int query_push(struct scorer *p, struct sequence *s, const struct record_query *q, wait_step *push);

/* ---- scorer_read.c ---- */

int read_answer(struct scorer *p, const struct record_read *r);
void read_take_resume(struct scorer *p, const struct record_resume *r);

/* ---- scorer_profile.c ---- */

/* The profile that was asked for, if any. */
int profile_pump(struct scorer *p);

#endif
