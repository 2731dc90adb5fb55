/*
 * cpu_scorer/key_reader.h - FP16 keys (or digests) of a query's tokens, hot ones and those that the
 * drive has, past an evaluator.
 *
 * What: hot keys are evaluated where they lie, as a job of the scoring threads. Cold ones come over
 * the link with every query: READ_KEYS commands fill the windows behind the staging arena, up to
 * KV_KEY_WINDOWS on their way while the threads evaluate the hot keys and then the windows that
 * have arrived. Of several drives the one with fewest windows on their way has the next, so that
 * all of them read at the same time. Windows are given again when they have been evaluated; the
 * last are smaller than the first, since what comes last is evaluated when the drive has nothing
 * more to do. What came over is counted as link_key by its completions. Digests come and are
 * evaluated in whole groups (host-digest). Who calls it: evaluators that read keys or digests
 * through the windows; data thread alone. Failure: a query that fails is settled when no command of
 * it is out any more, since the agent may still be writing into a window [I13].
 */
#pragma once

#include "cpu_scorer/evaluator.h"
#include "cpu_scorer/query.h"
#include "kv/plane.h"

struct key_reader;
struct key_window;

/* n keys of the plane, or digests in whole groups, one after the other from this cold slot on, at
 * these positions (COLD_NONE: a slot of nobody); called by several threads. */
typedef void key_evaluate(struct key_reader *r, const void *keys, uint32_t n, uint32_t slot,
                          const uint32_t *positions);

/* All tokens' scores by position into r->scores. 0, or an error: then `count` of `wanted` keys had
 * come. */
typedef int key_scores(struct key_reader *r, const struct query *q, uint32_t *count,
                       uint32_t *wanted);

struct key_reader { /* the first member of each evaluator's own struct */
    struct evaluator base;
    key_evaluate *evaluate;
    key_scores *scores_of;
    uint32_t key_bytes;            /* of a key, or a digest, in the plane */
    uint32_t together;             /* so many slots are read together: a group of digests; 1 */
    struct key_range *ranges;      /* of the query: [ranges_max], the caller fills them */
    uint32_t n_ranges, ranges_max; /* by slot, at least by drive */
    struct work_job hot;           /* of the query, the caller fills it */
    /* the query's state; NULL: none */
    struct query *query;
    uint32_t list;
    struct key_cursor {
        uint32_t range, slot, end; /* of its ranges: up to `end` */
    } next[LAYOUT_DRIVES_MAX];     /* what is to be read next, of each drive */
    uint64_t bytes_left;           /* of it, about */
    struct key_window *windows;    /* [KV_KEY_WINDOWS] */
    uint32_t next_read, working;   /* windows are given in turn; the one that is evaluated */
    uint32_t n_open;               /* READ_KEYS without their completion */
    int status;                    /* of those */
    enum key_job { KEY_JOB_NONE, KEY_JOB_HOT, KEY_JOB_WINDOW } job; /* in the pool's hands */
    bool hot_done;
    int64_t began_ns, read_ns; /* last completion */
    int64_t worked_ns;         /* of the scoring threads, before it */
    uint64_t read_bytes;       /* by the scoring threads, until then */
    struct key_piece *pieces;  /* [pieces_max] */
    uint32_t n_pieces;
    uint32_t *blocks; /* [core_blocks_max] hot blocks of the query */
    uint16_t *scores; /* [core_blocks_max * 64] of the query, by position */
    struct stage_span span;
};

/* base is filled. HILL_E_NOMEM. A query has at most ranges_max ranges. */
int key_reader_create(struct key_reader *r, uint32_t ranges_max, key_evaluate *evaluate,
                      key_scores *scores_of);
void key_reader_destroy(struct key_reader *r);
uint64_t key_reader_bytes(const struct key_reader *r);

/* A query: then the caller fills ranges and hot, and key_reader_start is called. */
void key_reader_begin(struct key_reader *r, struct query *q);
void key_reader_start(struct key_reader *r);
/* All cold tokens: the used part of each of the list's stripes. Ranges at most: */
static inline uint32_t key_reader_stripes_max(const struct core *c)
{
    return c->tiers.cold.n_stripes + 1;
}
void key_reader_list_stripes(struct key_reader *r);
/* The list's stripes in order: slots that were handed out, from its first on. */
typedef void key_stripe(struct key_reader *r, uint32_t first_slot, uint32_t n);
void key_reader_each_stripe(struct key_reader *r, key_stripe *stripe);
/* The query's hot blocks are the job's items. */
void key_reader_list_blocks(struct key_reader *r, void (*run)(void *, uint32_t, uint32_t));
/* Bytes from its stripe's first key to that of a slot. */
uint64_t key_reader_offset(const struct key_reader *r, uint32_t slot);

/* The evaluator's; finish has the scores worked out and puts them into the selector. */
int key_reader_step(struct evaluator *e, struct query *q);
int key_reader_settle(struct evaluator *e, struct query *q);
int key_reader_finish(struct evaluator *e, struct query *q);
