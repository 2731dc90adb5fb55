/*
 * tests/cpu_scorer/pipeline_rig.h - a pipeline between a fake GPU worker and a fake agent, over
 * real rings in one process.
 *
 * The pipeline runs in a thread, the fake agent of each drive (rig_agent.h) in another, the test is
 * the GPU worker (rig_gpu.c). Rings are tiny, so that back-pressure and wrap-around happen all the
 * time. The GPU worker's oracle (rig_oracle.c) scores all tokens from its own copy and sorts.
 */
#pragma once

#include "tests/cpu_scorer/rig_agent.h"

/* ---- the rig ------------------------------------------------------------------------------ */

/* Of most requests. */
static const struct kv_selection_settings usual = {
    .alpha = 0.1, .sinks = 4, .window = 16, .policy = KV_POLICY_HILLINFER};

struct rig_options {
    double beta;
    enum placement_kind placement;
    double pin; /* of bkp, paper; negative: alpha */
    bool adapts;
    bool csd;
    kv_score_fn *score;
    uint32_t hot_blocks;                /* 0: plenty */
    uint32_t n_stripes;                 /* 0: plenty */
    uint32_t n_drives;                  /* 0: one */
    uint32_t drive_stripes[RIG_DRIVES]; /* of several, each; 0: plenty */
    double speeds[RIG_DRIVES];          /* of several; all 0: equal */
    uint32_t staging;                   /* slots; 0: RIG_STAGING */
    int64_t agent_deadline_ms;          /* 0: a minute; RIG_SOON: its silence is what is tested */
    bool reads_hot;                     /* the GPU worker reads hot entries where they lie */
    uint32_t past_tokens;               /* of every prompt: a session's */
    bool speculates;
    uint32_t policy, importance;     /* the pipeline's */
    struct kv_layer_windows windows; /* the model's */
    const char *mass;                /* path that evaluates keys; NULL: auto */
    uint64_t digest_cache_bytes;     /* of hillinfer, host-digest */
    double host_scores;  /* above 0: digests lie in hot blocks that are lent (hot_share.h) */
    double cpu_gb_per_s; /* modelled */
    const struct shm_ring_tap *taps; /* [RING_COUNT], of the scorer's ends; NULL: none */
    uint32_t n_sequences;            /* 0: RIG_SEQUENCES */
    uint32_t rows;                   /* in flight; 0: 1 */
    uint32_t threads;                /* that score; 0: 2 */
    double gpu_drop;
    struct trace_writer *trace; /* NULL: none */
    void *hot;                  /* of rig_stop_keeping, with the same options: an earlier epoch's */
};

struct rig {
    void *ring_memory[LAYOUT_RINGS_MAX];
    void *staging_memory, *hot_memory, *windows;
    struct shm_doorbell bells[PARTY_COUNT], drive_bells[RIG_DRIVES]; /* of the agents */
    struct shm_ring_end scorer[LAYOUT_RINGS_MAX], gpu[RING_COUNT];
    struct shm_arena staging, staging_view;
    struct scorer *pipeline;
    uint32_t n_drives;
    struct rig_agent *agents[RIG_DRIVES], *agent; /* the first */
    pthread_t pipeline_thread, agent_threads[RIG_DRIVES];
    int run_result;
    _Atomic bool interrupt;
    bool csd, reads_hot;
    uint32_t past_tokens;
    struct kv_layer_windows layer_windows;
    uint32_t n_staging;        /* slots */
    struct scorer_stats stats; /* of the last request that ended; read after SEQ_STATS */
    _Atomic uint32_t n_failures;
    _Atomic uint32_t n_wrong_stats;     /* that the coordinator would refuse */
    _Atomic bool ask_profile, profiled; /* asked for; profile is there */
    struct scorer_profile profile;
    _Atomic bool ask_drain;
    uint32_t drain_drive;
    _Atomic uint32_t n_drained;    /* times that it was told */
    struct scorer_drained drained; /* the last time */
    _Atomic uint64_t hot_now;      /* entries of a running sequence, as live statistics say */
    _Atomic uint32_t set_beta;     /* in hundredths; 0: as it is */
    _Atomic uint32_t live_most;    /* sequences with live statistics at the same time, at most */
};

/* What rig_start configures; a test may ask for the same of its own. */
struct scorer_config rig_config(const struct rig_options *o);

/* Start the pipeline and the agent in their threads; rig_stop ends and audits them. */
struct rig *rig_start(const struct rig_options *o);

/* Wait until the pipeline and its agents have done all that they have been given, and sleep. What a
 * silent or slow agent keeps to itself stays undone. */
void rig_settle(struct rig *r);

/* A tap that changes nothing, and what others answer when they have looked. */
uint32_t rig_tap(void *context, enum shm_ring_moment moment, uint32_t type, const void *payload,
                 uint32_t bytes);

/* Ask for a profile and wait for it. */
const struct scorer_profile *rig_profile(struct rig *r);

/* Another beta from now on, in hundredths. */
void rig_set_beta(struct rig *r, uint32_t hundredths);

/* Have the drive, or one of several, emptied from now on. */
void rig_drain(struct rig *r);
void rig_drain_drive(struct rig *r, uint32_t drive);

/* Interrupt the pipeline, audit its tables, free everything. */
void rig_stop(struct rig *r);
/* The same, but for the hot segment. */
void *rig_stop_keeping(struct rig *r);

/* What a drive has when all is settled, to outlive the rig; and into the next one, which adopts it:
 * nothing counts. The memory is the caller's. */
struct rig_slot *rig_take_slots(const struct rig *r, uint32_t drive);
void rig_give_slots(struct rig *r, uint32_t drive, const struct rig_slot *slots);

/* ---- the fake GPU worker ------------------------------------------------------------------ */

struct rig_request {
    struct rig *rig;
    uint32_t sequence, step, n, query_id;
    uint64_t request_id, random;
    uint16_t spoil; /* 0: no; else in the last token's entry that is appended, */
    uint32_t spoil_at;
    struct kv_selection_settings settings;
    uint16_t entries[RIG_LAYERS][RIG_CTX][RIG_ENTRY / 2];
    uint8_t digests[RIG_LAYERS][RIG_GROUPS * RIG_GROUP_BYTES]; /* of the entries' keys */
    uint8_t gpu[RIG_LAYERS][RIG_GPU_SLOTS][RIG_ENTRY];
    uint32_t appended[RIG_LAYERS];
    XXH64_state_t *hash; /* the oracle's */
    uint64_t uploads, in_place;
    uint32_t chosen[RIG_CTX];         /* how often each position was in an answer */
    bool check;                       /* against the oracle */
    double seen[RIG_LAYERS][RIG_CTX]; /* the oracle's sums of attention mass */
    bool kept[RIG_LAYERS][2][16];     /* prefetch: columns of each KV head that count */
    /* uploads of the last selection, until it has been read: staging slot, generation */
    uint32_t staged[RIG_GPU_SLOTS][2], n_staged;
    /* of the last selection: what the attention still reads in the hot pool */
    uint32_t reading[RIG_GPU_SLOTS][2], n_reading, reading_layer; /* hot slot, position */
    uint32_t linger_us;                                           /* of each attention */
    /* the oracle's, of guesses that are verified */
    uint64_t guess_chosen[RIG_LAYERS], guess_found[RIG_LAYERS];
};

/* Push a record to the scorer, waiting for credits. */
void gpu_push(struct rig *r, enum layout_ring ring, uint32_t type, const void *record,
              uint32_t bytes);

/* Wait for the next record of the selection ring, which stays peeked. */
const void *gpu_wait(struct rig *r, uint32_t expected);

/* The header of the request's records, of its step. */
struct record_header gpu_header(const struct rig_request *q, uint32_t layer);

/* SEQ_BEGIN alone. */
void gpu_push_begin(const struct rig_request *q, uint32_t max);

/* A request of prompt tokens that may become max; its SEQ_READY must have expected_status. */
struct rig_request *gpu_begin(struct rig *r, uint32_t sequence, uint32_t prompt, uint32_t max,
                              const struct kv_selection_settings *settings, int expected_status);

/* The answer to a SEQ_BEGIN that goes on with what an earlier epoch has left. */
struct rig_ready {
    struct record_seq_ready ready;
    struct damaged_entry damaged[RECORD_DAMAGED_MAX];
};

/* The request goes on in a rig of the next epoch, from adopt_min to adopt_max tokens. */
void gpu_go_on(struct rig_request *q, struct rig *r, uint32_t prompt, uint32_t max,
               uint32_t adopt_min, uint32_t adopt_max, struct rig_ready *out);

/* A damaged entry as it was. */
void gpu_append_again(struct rig_request *q, uint32_t layer, uint32_t position);

/* Append n random entries to a layer. */
void gpu_append(struct rig_request *q, uint32_t layer, uint32_t n);

/* The attention of the last query is over: the record that says so may follow. */
void gpu_finish_reading(struct rig_request *q);

/* The attention is over and the step too. */
void gpu_step_end(struct rig_request *q);

/* What the prompt's queries attended to, made up, some tokens at a time. */
void gpu_weigh(struct rig_request *q, uint32_t layer);

/* The whole prompt, layer by layer. */
void gpu_prefill(struct rig_request *q);

struct rig_question {
    struct record_query query;
    float q[64];
};

/* A random query for n tokens of a layer. */
void gpu_fill_question(struct rig_request *q, uint32_t layer, uint32_t n, enum query_kind kind,
                       struct rig_question *out);

/* Ask, and append the next token before or after. */
void gpu_ask(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first,
             struct rig_question *out);

/* Take the answer and compare it with the oracle; its status. */
int gpu_answer(struct rig_request *q, uint32_t layer, uint32_t n, const struct rig_question *asked);

/* Ask and answer. */
int gpu_query(struct rig_request *q, uint32_t layer, uint32_t n, bool append_first);

/* One decode step: every layer asks for the tokens before this one, and appends it. The first
 * failure. */
int gpu_decode(struct rig_request *q);

/* So many steps. After each fourth and the last one all moves that were ordered are over, however
 * slow the agent's thread is, so that what has moved can be counted. */
void gpu_decode_settled(struct rig_request *q, uint32_t steps);

/* A decode step whose queries are guessed from layer 1 on: the next layer's guess goes out before
 * this layer's attention reads, and that reads on while the guess is worked at. */
int gpu_decode_guessed(struct rig_request *q, enum query_kind kind);

/* Of a request that is over for the scorer. */
void gpu_free(struct rig_request *q);

/* End the request: its statistics; q is freed. */
struct scorer_stats gpu_end(struct rig_request *q);

/* The pipeline has no record for the GPU worker. */
bool nothing_was_said(struct rig *r);

/* ---- its oracle, which knows all it appended ----------------------------------------------- */

/* The value of a finite half-precision number that is not subnormal. */
double rig_half_value(uint16_t bits);

/* What the attention reads in the hot pool is there still [I11], and what is staged for it
 * [I9]. */
void gpu_check_reading(const struct rig_request *q);

/* Apply the uploads, look at what attention would read, compare with what must be selected. */
void oracle_check_answer(struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                         const struct record_selection *answer);

/* How much of what the exact query chooses its guess had chosen. */
void oracle_recall(struct rig_request *q, uint32_t layer, uint32_t n, const float *guess,
                   const float *exact);
