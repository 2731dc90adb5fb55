/*
 * cpu_scorer/core.h - what every module of the scorer stands on: the epoch's settings and rings,
 * the tiers, the sequences.
 *
 * What: struct core is the ground of one scorer (scorer.h): nothing in it acts. Modules above it
 * have state of their own and know those below them alone (README.md has the map). A sequence is
 * one request in one slot; its layers say how far it is placed and what is on its way. Who calls
 * it: the data thread; scoring threads read the tiers of a job. Failure: a request fails with
 * core_fail, once; the others go on.
 */
#pragma once

#include <xxhash.h>

#include "base/device_model.h"
#include "cpu_scorer/hot_share.h"
#include "cpu_scorer/scorer.h"
#include "cpu_scorer/scoring.h"
#include "cpu_scorer/tiers.h"
#include "kv/select.h"
#include "placement/placement.h"
#include "proto/records.h"

#define MOVES_UP       PLACEMENT_LIVE_RATE /* entries that one answer moves up */
#define MOVES_TOGETHER 32u /* entries that are to be written wait until they are so many */
#define MOVES_DOWN     64u /* entries of one batch on their way down */

enum sequence_state {
    SEQUENCE_FREE,
    SEQUENCE_ACTIVE,   /* between SEQ_READY and SEQ_END */
    SEQUENCE_ENDING,   /* waits for its demotions, then trims */
    SEQUENCE_TRIMMING, /* waits for the completion of its TRIM: its stripes are not reused before */
    SEQUENCE_DORMANT,  /* an earlier epoch's, until its SEQ_BEGIN or another one comes */
    SEQUENCE_ADOPTING, /* its cold slots are being committed; then its SEQ_READY */
    SEQUENCE_RESTING,  /* ended and kept, until its SEQ_BEGIN comes or another one needs the room */
    SEQUENCE_CUTTING, /* taken up: what its SEQ_BEGIN does not go on with goes; then its SEQ_READY */
};

struct layer_state {
    uint32_t appended;    /* tokens placed: 0 .. appended-1 */
    uint32_t uncommitted; /* of the appended: on their way from the append ring to the cold pool */
    uint32_t moving;      /* hot tokens on their way down */
    uint32_t weighed;  /* h2o: tokens whose mass in the prompt's queries has come: 0 .. weighed-1 */
    uint32_t low;      /* no hot token but sinks lies below this position */
    uint32_t cold_end; /* the next cold entries to be carried are looked for below it (carry.h) */
    /* The layer's placement; it orders nothing new before the moves in `down` are over. */
    struct placement *placement; /* NULL: by recency */
    uint32_t *kept; /* [max_tokens]: cold slot that holds a copy of a hot token, or COLD_NONE */
    uint32_t down[MOVES_DOWN]; /* positions of the batch on its way down */
    uint32_t n_down;
};

/* What an answer names, until the GPU worker has read it. */
struct holding {
    uint32_t *staging; /* [gpu_slots] */
    uint32_t n_staging;
    uint32_t n_newest; /* of a READ: the last n of staging; all others have been read */
    bool reading;      /* the answer names hot slots of `layer`: none of them is freed */
    uint32_t layer;    /* ALL_LAYERS: of any layer, as known queries' answers do */
};
#define ALL_LAYERS UINT32_MAX

/* What a guessed query has brought for the exact one of its (step, layer). */
struct guess {
    bool there;
    uint32_t step, layer, n;
    uint32_t *positions; /* [gpu_slots], ascending */
    uint32_t *staging; /* [gpu_slots]: where the entry lies; GUESS_NONE: the GPU does not need it */
};
#define GUESS_NONE UINT32_MAX

/* The two sides of each step: what hot entries took (scored, copied), and what cold ones did
 * (scored and fetched by the drive). */
struct step_balance {
    int64_t cpu_ns, csd_ns;              /* of all layers, when the last step ended */
    uint32_t counts[101];                /* steps by |difference| in percent of the longer side */
    int64_t drive_ns[LAYOUT_DRIVES_MAX]; /* of several drives, each, when the last step ended */
    uint32_t drive_counts[101]; /* steps by what the fastest lacks of the slowest, in percent */
    uint32_t drive_steps;
};

/* A sequence on its way from an earlier epoch into this one. */
struct adoption {
    uint32_t stripe, slot; /* the next cold slot to be committed: within part; COLD_NONE: none */
    uint32_t part;         /* of the sequence's: the drives of layer 0, of layer 1, ... */
    uint64_t first_tag;    /* of the commands */
    uint32_t open[LAYOUT_DRIVES_MAX]; /* without a completion */
    int status;
    bool prompt; /* what there is of its prompt, not a whole step */
    bool again;  /* a cold entry was damaged: the agent is asked once more, without it */
    uint32_t step, n_tokens; /* the step that it goes on with, and what was there then */
};

/* What is left of a sequence that has ended. */
struct resting {
    uint64_t identity;   /* whose it is */
    uint64_t since;      /* by the core's count: the lowest goes first */
    uint32_t n_tokens;   /* whole in every layer */
    uint32_t max_tokens; /* that it was planned for */
    uint32_t layer;      /* being cut */
};

struct sequence {
    enum sequence_state state;
    int status; /* negative: the request has failed, and every query is answered with this */
    uint64_t request_id;
    uint32_t index;
    uint32_t prompt_tokens, max_tokens;
    uint32_t past_tokens;        /* of the prompt: tokens of a saved session */
    uint32_t cold_from, cold_to; /* prompt positions that go straight to the cold pool */
    struct kv_selection_settings settings;
    struct hot_share share;
    struct layer_state *layers; /* [n_layers] */
    uint32_t demotes;           /* in flight */
    bool cold_used;             /* a DEMOTE was sent: the agent holds stripes */
    bool moves_wanted;
    bool sums;      /* h2o: the prompt's sums of attention come before the first query */
    bool reads_hot; /* the GPU worker reads hot entries where they lie */
    uint64_t first_tag, trim_tag;
    uint32_t trims; /* drives, as bits, whose TRIM has no completion yet */
    /* Records of the append ring that wait for the drive are kept here [I16]. leaving: `end` has
     * come; begin_held: `begin` has, and waits until the slot is free. */
    bool leaving, begin_held;
    struct record_seq_end end;
    struct record_seq_begin begin;
    uint32_t k_max;         /* the most tokens of a selection */
    uint32_t staging_max;   /* staging slots set aside: for one selection, or for two */
    struct holding held[2]; /* of the newest selection, and of the one before it */
    uint32_t known_step;    /* the newest step that was asked for with known queries */
    bool declined;          /* its known queries are to come again as exact ones */
    struct guess guess;
    uint64_t *guess_chosen, *guess_found; /* [n_layers]; NULL: queries are not guessed */
    uint32_t move_layer;                  /* the layer whose moves come next */
    uint32_t *kept;                       /* [n_layers][max_tokens], NULL: by recency */
    XXH64_state_t *hash;                  /* of the selections */
    XXH64_state_t *hash_before;           /* as it stood when hashed_step began */
    uint32_t hashed_step;                 /* the newest step that is in `hash`; 0: none */
    struct adoption adoption;
    struct damage damage;    /* entries that the GPU worker makes again before anything else */
    uint32_t replay_to;      /* steps up to this one are made again, and are in the hash already */
    uint64_t identity;       /* of the request in all its attempts; 0: nothing of it is kept */
    struct resting rests;    /* of an ended one */
    struct kept_plan plan;   /* of the request that goes on with what rests here */
    uint64_t bounced_before; /* bounces counted by placements that it has no longer */
    struct scorer_stats stats;
    uint32_t passages[SCORER_PASSAGES]; /* stats.passages.chosen */
    struct step_balance balance;
};

struct query;

struct core {
    struct scorer_config config; /* rows: at least 1 */
    struct device_model device;  /* its CPU alone */
    struct scorer_io io;
    struct scorer_hooks hooks;
    struct tiers tiers;
    bool mends; /* single entries can be made again (evaluator.h) */
    struct score_pool *pool;
    const struct query *scored; /* whose job the pool's threads have; NULL: nobody's */
    struct sequence *sequences; /* [n_sequences] */
    bool drains;                /* what is cold comes up, and nothing new goes down (drain.h) */
    bool drained;   /* all has come up: no drive has anything, nor will have in this epoch */
    bool coming_up; /* a batch of cold entries comes to staging: no query goes past AWAIT */
    uint64_t dropped_records;
    uint64_t n_rested; /* sequences that came to rest so far */
};

int core_create(struct core *c, const struct scorer_config *config, const struct scorer_io *io,
                const struct scorer_hooks *hooks, struct hill_why *why);
void core_destroy(struct core *c); /* of a zeroed struct, too */
uint64_t core_private_bytes(const struct core *c);

/* Is this record whole and of this epoch? false: it was counted as dropped. */
bool core_accept(struct core *c, uint32_t type, const void *payload, uint32_t bytes);

/* The request of this sequence fails: log, tell, remember. The first reason stands. */
void core_fail(struct core *c, struct sequence *s, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static inline struct record_header core_header(const struct core *c, uint32_t sequence,
                                               uint32_t step, uint32_t layer)
{
    return (struct record_header){c->config.epoch, sequence, step, layer};
}

static inline uint32_t core_location(const struct core *c, const struct sequence *s, uint32_t layer,
                                     uint32_t position)
{
    return hkm_location(&c->tiers.hkm, s->index, layer, position);
}

/* A record has been taken, or a query answered. */
static inline void core_work_done(const struct core *c)
{
    if (c->hooks.work_done)
        c->hooks.work_done(c->hooks.context, 1);
}

/* A request that runs and has not failed. */
static inline bool core_runs(const struct sequence *s)
{
    return s->state == SEQUENCE_ACTIVE && !s->status;
}

/* Is there a drive on which something new may be placed? */
static inline bool core_has_drive(const struct core *c)
{
    return c->config.csd && !c->drains;
}

/* Is a drive being emptied (drain.h)? */
static inline bool core_is_emptied(const struct core *c)
{
    bool any = c->drains && !c->drained;
    for (uint32_t d = 0; d < c->tiers.cold.n_drives; d++)
        any |= c->tiers.cold.drives[d].leaves;
    return any;
}

/* What a modelled CPU is charged for n tokens: FP16 K and V; like a modelled drive's `score` its
 * rate is one of INT8 digests, and INT4 ones are half as many bytes. */
static inline uint64_t core_charged_kv(const struct core *c, uint64_t n)
{
    return n * c->tiers.hkm.entry_bytes * kv_digest_bits(&c->config.geometry) / 8;
}

/* Blocks that one layer can have. */
static inline uint32_t core_blocks_max(const struct core *c)
{
    return c->config.ctx_tokens / KV_HOT_BLOCK_TOKENS + 2;
}
