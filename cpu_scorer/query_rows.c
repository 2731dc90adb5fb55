/* cpu_scorer/query_rows.c - see query_rows.h. */
#include "cpu_scorer/query_rows.h"

#include <stdlib.h>

#include "base/clock.h"
#include "cpu_scorer/holding.h"
#include "cpu_scorer/query_fetch.h"

/* ---- life ----------------------------------------------------------------------------------- */

static void take_fetch(void *context, const void *record)
{
    struct queries *qs = context;
    for (uint32_t i = 0; i < qs->core->config.rows; i++) /* its tag says whose it is */
        if (qs->rows[i].sequence)
            answer_take_fetch(&qs->rows[i].answer, qs->rows[i].sequence, qs->rows[i].header.layer,
                              record);
}

int queries_create(struct queries *qs, struct core *core, struct agent *agent,
                   struct demotions *demotions, struct evaluator *evaluator)
{
    *qs = (struct queries){
        .core = core, .agent = agent, .demotions = demotions, .evaluator = evaluator};
    agent_on(agent, RECORD_FETCH, take_fetch, qs);
    qs->rows = calloc(core->config.rows, sizeof *qs->rows);
    int rc = qs->rows ? 0 : HILL_E_NOMEM;
    for (uint32_t i = 0; rc == 0 && i < core->config.rows; i++) {
        qs->rows[i].place = i;
        rc = query_create(&qs->rows[i], core, agent);
    }
    return rc;
}

void queries_destroy(struct queries *qs)
{
    for (uint32_t i = 0; qs->rows && i < qs->core->config.rows; i++)
        query_destroy(&qs->rows[i]);
    free(qs->rows);
}

uint64_t queries_private_bytes(const struct scorer_config *c)
{
    return c->rows * query_private_bytes(c);
}

/* ---- what is in flight ---------------------------------------------------------------------- */

/* The i-th oldest. */
static struct query *row_at(const struct queries *qs, uint32_t i)
{
    return &qs->rows[(qs->first + i) % qs->core->config.rows];
}

const struct query *queries_awaited(const struct queries *qs)
{
    return qs->n && row_at(qs, 0)->phase == QUERY_AWAIT ? row_at(qs, 0) : NULL;
}

bool queries_scored(const struct queries *qs)
{
    return qs->n && row_at(qs, 0)->phase > QUERY_AWAIT;
}

int64_t queries_due_ns(const struct queries *qs)
{
    int64_t first = 0;
    for (uint32_t i = 0; i < qs->n; i++) {
        int64_t due = row_at(qs, i)->due_ns;
        first = due && (!first || due < first) ? due : first;
    }
    return first;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* The GPU worker has read what the sequence's last selection named. */
static void take_reads_done(struct core *c, const struct record_reads_done *r)
{
    struct sequence *s = &c->sequences[r->header.sequence];
    if (s->request_id == r->request_id)
        holding_reads_done(s);
}

/* One that fetches and is answered; a replay finds its end by the answer. */
static bool may_overlap(uint32_t kind)
{
    return kind == QUERY_EXACT || kind == QUERY_SPECULATIVE;
}

/* Has the evaluator a place for each row in flight? Where not, threads decide when one begins. */
static bool evaluates_all(const struct queries *qs)
{
    return qs->evaluator->ops->rows >= qs->core->config.rows;
}

/* Is it a guess of the layer behind? */
static bool guesses_behind(const struct record_query *r, const struct query *q)
{
    return r->kind == QUERY_SPECULATIVE && r->header.layer == q->header.layer + 1;
}

/* May it be worked at beside those in flight? It is of their layer, of another sequence, or a guess
 * of the layer behind that can begin at once, and waits for nothing. How far the scoring of those
 * is does not count: threads have a part in that, and a replay is to take the same. */
static bool goes_along(const struct queries *qs, const struct record_query *r)
{
    const struct core *c = qs->core;
    const struct sequence *s = &c->sequences[r->header.sequence];
    for (uint32_t i = 0; i < qs->n; i++) {
        const struct query *q = row_at(qs, i);
        bool beside = q->header.layer == r->header.layer
                          ? q->header.sequence != r->header.sequence
                          : guesses_behind(r, q) && evaluates_all(qs);
        if (q->what != QUERY_SELECTS || !may_overlap(q->kind) || !beside)
            return false;
    }
    return may_overlap(r->kind) && s->state == SEQUENCE_ACTIVE && s->request_id == r->request_id &&
           !s->leaving && !s->status && query_may_pass(c, s, r->header.layer, r->n_tokens);
}

static int take_accepted(struct queries *qs, uint32_t type, const void *payload, uint32_t bytes)
{
    struct core *c = qs->core;
    struct shm_ring_end *ring = &c->io.rings[RING_QUERY];
    if (qs->n && !(type == RECORD_QUERY && goes_along(qs, payload)))
        return 0;
    if (type == RECORD_QUERY)
        query_begin(qs, row_at(qs, qs->n++), payload, bytes);
    else if (type == RECORD_READ)
        query_begin_reading(qs, row_at(qs, qs->n++), payload);
    else if (type == RECORD_READS_DONE)
        take_reads_done(c, payload);
    shm_ring_release(ring);
    if (qs->n)
        return 1;
    shm_ring_flush(&c->io.rings[RING_SELECTION]); /* in case answers waited for it */
    core_work_done(c);
    return 1;
}

/* The record at the ring's head: 1 taken, 0 there is none, or it has to wait. */
static int take_record(struct queries *qs)
{
    struct core *c = qs->core;
    struct shm_ring_end *ring = &c->io.rings[RING_QUERY];
    uint32_t type, bytes;
    const void *payload;
    int rc = shm_ring_peek(ring, &type, &payload, &bytes);
    if (rc)
        return rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE ? 0 : rc;
    if (core_accept(c, type, payload, bytes))
        return take_accepted(qs, type, payload, bytes);
    shm_ring_release(ring);
    shm_ring_flush(&c->io.rings[RING_SELECTION]); /* in case answers waited for it */
    core_work_done(c);
    return 1;
}

/* What is in flight goes to the evaluator, in the rows' order, when one has been taken beside
 * others, before anything else is done: what is done of those depends on threads. 1, or an error.
 */
static int begin_rows(struct queries *qs)
{
    for (uint32_t i = 0; i < qs->n; i++) {
        struct query *q = row_at(qs, i);
        int rc = 1;
        while (rc > 0 && (q->phase == QUERY_AWAIT || (q->phase == QUERY_SCORE && !q->begun)))
            rc = query_step(qs, q);
        if (rc < 0)
            return rc;
    }
    return 1;
}

/* Several right after another: what is to move waits for the last. A layer that nobody guesses
 * comes when those before it are over, so something can move in each step. */
static int take_rows(struct queries *qs)
{
    const struct scorer_config *c = &qs->core->config;
    int taken = 0;
    while (qs->n < c->rows && (qs->n || qs->taken < c->n_sequences) && (qs->n == 0 || qs->look)) {
        uint32_t beside = qs->n;
        int rc = take_record(qs);
        if (beside && qs->n > beside && evaluates_all(qs))
            rc = begin_rows(qs);
        if (rc < 0)
            return rc;
        if (rc == 0 || !beside)
            qs->look = false; /* the first has to leave AWAIT */
        if (rc == 0)
            break;
        qs->taken++;
        taken = 1;
    }
    return taken;
}

/* ---- going on -------------------------------------------------------------------------------- */

/* FETCHes and answers leave in the rows' order. */
static bool is_its_turn(const struct queries *qs, uint32_t i)
{
    const struct query *q = row_at(qs, i), *before = row_at(qs, i ? i - 1 : 0);
    if (i == 0 || q->phase < QUERY_GATHER)
        return true;
    return q->phase == QUERY_GATHER && (before->phase == QUERY_ANSWER || before->answer.pushed);
}

/* Is it planned, or can it be now, without work of this host's on its scores? */
static int plan_now(struct queries *qs, struct query *q)
{
    int rc = 1;
    while (rc > 0 && ((q->phase == QUERY_SCORE && q->drive_is_left) || q->phase == QUERY_SELECT ||
                      q->phase == QUERY_PLAN))
        rc = query_step(qs, q);
    return rc < 0 ? rc : query_fetch_waits(q);
}

enum { FETCH_ALONE = 2 }; /* with as many commands as it takes, or to fail: query_step does that */

/* The i-th oldest's FETCH, with those of its layer's rows behind it that are ready, too; as few of
 * them as there is room for. 1: it is out; 0: no room now; FETCH_ALONE, also when there was no room
 * for as long as an agent may take; or an error. */
static int fetch_together(struct queries *qs, uint32_t i)
{
    struct query *rows[KV_MAX_SEQUENCES];
    uint32_t n = 0;
    int rc = 1;
    while (i + n < qs->n && row_at(qs, i + n)->header.layer == row_at(qs, i)->header.layer &&
           (rc = plan_now(qs, row_at(qs, i + n))) == 1) {
        rows[n] = row_at(qs, i + n);
        n++;
    }
    if (rc < 0)
        return rc;
    for (rc = 0; rc != 1 && n > 0 && query_fetch_waits(rows[0]); n--)
        rc = query_fetch_together(qs->core, qs->agent, rows, n);
    qs->look |= rc == 1;
    if (rc == 0 && clock_now_ns() >= rows[0]->deadline_ns)
        return FETCH_ALONE;
    return rc < 0 ? FETCH_ALONE : rc;
}

/* The i-th oldest, until it waits: 1, 0 (it waited), or an error; *works: it has scored, and is to
 * go on after a look at the agent's rings. */
static int go_on(struct queries *qs, struct query *q, uint32_t i, bool *works)
{
    int moved = 0;
    while (q->phase != QUERY_NONE && is_its_turn(qs, i)) {
        enum query_phase before = q->phase;
        int rc = query_fetch_waits(q) ? fetch_together(qs, i) : FETCH_ALONE;
        if (rc == FETCH_ALONE)
            rc = query_step(qs, q);
        if (rc <= 0)
            return rc < 0 ? rc : moved;
        moved = 1;
        if (before == QUERY_AWAIT && q->phase != before)
            return moved; /* the ring is looked at now, whatever the threads will have done */
        if (before == QUERY_SCORE && q->phase == before) {
            *works = true;
            return moved;
        }
    }
    return moved;
}

/* Each row in turn. A row that may go along is looked for at once, before the agent is heard. */
static int step_rows(struct queries *qs, bool *works)
{
    int moved = 0;
    for (uint32_t i = 0; i < qs->n;) {
        struct query *q = row_at(qs, i);
        int rc = go_on(qs, q, i, works);
        bool over = q->phase == QUERY_NONE; /* it was the oldest */
        moved |= rc;
        if (over) {
            qs->first = (qs->first + 1) % qs->core->config.rows;
            qs->n--;
            qs->look = true;
        }
        if (rc >= 0 && qs->n && qs->look)
            rc = take_rows(qs);
        if (rc < 0)
            return rc;
        moved |= rc;
        i += !over;
    }
    return moved;
}

int queries_pump(struct queries *qs)
{
    int moved = 0;
    for (;;) {
        bool works = false;
        int rc = qs->n ? 0 : take_rows(qs);
        int stepped = rc < 0 ? rc : step_rows(qs, &works);
        if (stepped < 0)
            return stepped;
        moved |= rc | stepped;
        if (qs->n && (works || !stepped))
            return moved; /* the agent's rings are looked at between two steps of scoring */
        if (qs->n == 0 && !stepped)
            break; /* no more of them */
    }
    qs->taken = 0;
    return moved;
}
