/*
 * cpu_scorer/evaluate_digest.h - the digests' evaluator as side_speeds.c measures it.
 *
 * What: a query's digest goes to the drive (digest_open, digest_relay), which scores its cold
 * tokens; Score Blocks go into the query's selector as they arrive. Several rows' queries may be at
 * the drives; their hot blocks are scored one row after the other. Who calls it: evaluators that
 * score digests on the host, and the measurement of both sides. Failure: what the drive did wrong
 * fails the request, and is in `status`.
 */
#pragma once

#include "cpu_scorer/evaluator.h"
#include "cpu_scorer/query.h"

enum digest_stage {
    DIGEST_RELAY,
    DIGEST_THREADS,
    DIGEST_HOT,
    DIGEST_NEAR,
    DIGEST_CPU,
    DIGEST_COLD
};

/* A query that the drive scores; of a row in flight (query.h). */
struct digest_row {
    struct digest_evaluator *evaluator;
    struct query *query; /* NULL: none. Between two nothing of it is left. */
    void *digest_bytes;  /* of the query: kv_query_put */
    struct kv_query digest;
    uint32_t cold_expected, cold_scored; /* on all drives */
    bool cold_done;                      /* every completion has arrived */
    int status;
    struct digest_drive {
        uint32_t committed, expected; /* of which the drive scores so many */
        uint32_t n_host_words;        /* of AGENT_QUERY: the others */
        bool relayed, done;
        int64_t done_ns;
    } drives[LAYOUT_DRIVES_MAX];
    int64_t relayed_ns, hot_began_ns;
    int64_t cold_ns;     /* what the slowest drive took */
    int64_t worked_ns;   /* of the scoring threads, before its hot blocks */
    uint64_t read_bytes; /* by the scoring threads, until then */
    int64_t real_ns;     /* that its hot blocks have taken */
    enum digest_stage stage;
    uint32_t n_blocks;
    /* Cold blocks of 64 slots whose digests are in the host's memory: [n_near], by drive, then in
     * stripe order; and their tokens that count. */
    uint32_t *near, n_near, near_tokens;
    struct stage_span hot_span, cold_span;
};

struct digest_evaluator {
    struct evaluator base;
    struct digest_row *rows; /* [core->config.rows] */
    /* of the row whose hot blocks the threads score */
    uint32_t *blocks;      /* [core_blocks_max] */
    uint16_t *scores;      /* [core_blocks_max][64] */
    uint16_t *near_scores; /* the same of `near` */
};

/* For every evaluator of digests: the sample of keys (key_sample.h). */
int digest_adopt(struct evaluator *e, const struct sequence *s);
void digest_look(struct evaluator *e, const struct sequence *s, const struct record_append *r);

/* The same for what goes down: digests out of entries or hot blocks. */
void digest_plane(struct evaluator *e, const struct sequence *s, uint32_t layer,
                  const struct plane_source *from, uint8_t *plane);
/* Whose the block's digests are. NULL: of nobody who runs or rests; a sequence that is about to
 * begin has none yet. */
const struct sequence *digest_owner(const struct core *c, uint32_t block);

/* Digest the query, of q's sequence and layer, in q's place. */
struct digest_row *digest_open(struct digest_evaluator *e, struct query *q);
/* The drives begin, those that have something committed: 1; 0: no room in a ring; negative:
 * failed. */
int digest_relay(struct digest_row *e);
/* A job for the scoring threads: these blocks, against the query. */
struct score_job digest_job(const struct digest_row *e, const uint32_t *blocks, uint32_t n_blocks,
                            uint16_t *scores);
void digest_close(struct digest_row *e);
