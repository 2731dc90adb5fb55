/* cpu_scorer/query.c - see query.h. */
#include "cpu_scorer/query.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cpu_scorer/holding.h"
#include "cpu_scorer/moves.h"
#include "cpu_scorer/query_records.h"

/* ---- life ----------------------------------------------------------------------------------- */

static uint32_t vector_floats(const struct scorer_config *c)
{
    return c->geometry.n_heads * c->geometry.head_dim;
}

int query_create(struct query *q, struct core *core, struct agent *agent)
{
    q->own_vector = calloc(vector_floats(&core->config), sizeof *q->own_vector);
    int rc = answer_create(&q->answer, core, agent);
    if (rc == 0)
        rc = kv_selector_create(&q->selector, core->config.ctx_tokens);
    return rc == 0 && !q->own_vector ? HILL_E_NOMEM : rc;
}

void query_destroy(struct query *q)
{
    answer_destroy(&q->answer);
    kv_selector_destroy(q->selector);
    free(q->own_vector);
}

uint64_t query_private_bytes(const struct scorer_config *c)
{
    return sizeof(struct query) + answer_private_bytes(c) + kv_selector_bytes(c->ctx_tokens) +
           vector_floats(c) * sizeof(float);
}

/* ---- phases --------------------------------------------------------------------------------- */

static void enter(const struct queries *qs, struct query *q, enum query_phase phase)
{
    q->phase = phase;
    q->deadline_ns = clock_now_ns() + qs->core->config.agent_deadline_ns;
}

/* Tokens that the layer's window gives the query: they are attended to without being scored. 0: the
 * layer has no window. */
static uint32_t window_of(const struct core *c, const struct query *q)
{
    return kv_window_tokens(&c->config.windows, q->header.layer, q->n_tokens);
}

static int64_t select_window(const struct query *q, uint32_t window)
{
    for (uint32_t i = 0; i < window; i++)
        q->answer.positions[i] = q->n_tokens - window + i;
    return window;
}

static int check_query(struct core *c, struct query *q)
{
    struct sequence *s = q->sequence;
    if (s->state != SEQUENCE_ACTIVE || s->request_id != q->request_id || s->leaving)
        return HILL_E_PROTOCOL; /* of a request that is over; its slot may be another's by now */
    if (s->status)
        return s->status;
    if (q->n_tokens > s->max_tokens ||
        kv_most_tokens(&s->settings, &c->config.windows, q->n_tokens) > s->k_max) {
        core_fail(c, s, HILL_E_PROTOCOL, "a query covers %u tokens of at most %u", q->n_tokens,
                  s->max_tokens);
        return HILL_E_PROTOCOL;
    }
    bool guess = q->kind == QUERY_SPECULATIVE || q->kind == QUERY_AHEAD;
    if ((guess && !c->config.speculates) || (q->kind == QUERY_KNOWN && query_is_evaluated(c, q))) {
        core_fail(c, s, HILL_E_PROTOCOL, "a query of layer %u is %s", q->header.layer,
                  guess ? "a guess" : "none, and its selection depends on it");
        return HILL_E_PROTOCOL;
    }
    uint32_t kept = q->ahead ? s->held[0].n_newest : 0;
    if (q->what != QUERY_SELECTS && (kept > s->k_max || q->n_read > s->k_max - kept))
        return HILL_E_PROTOCOL; /* it has no staging slots for more */
    return 0;
}

static bool is_placed(const struct sequence *s, uint32_t layer, uint32_t n_tokens)
{
    const struct layer_state *l = &s->layers[layer];
    return l->appended >= n_tokens && (!s->sums || l->weighed >= s->prompt_tokens) &&
           !damage_below(&s->damage, layer, n_tokens);
}

bool query_has_tokens(const struct query *q)
{
    return is_placed(q->sequence, q->header.layer, q->n_tokens);
}

bool query_may_pass(const struct core *c, const struct sequence *s, uint32_t layer,
                    uint32_t n_tokens)
{
    return is_placed(s, layer, n_tokens) && !s->layers[layer].uncommitted && !c->coming_up;
}

/* Where nothing can be done now a step is 0, where something was done 1; negative: it has failed.
 */
static int step_await(struct queries *qs, struct query *q)
{
    const struct sequence *s = q->sequence;
    if (s->state != SEQUENCE_ACTIVE || s->request_id != q->request_id || s->leaving)
        return HILL_E_PROTOCOL; /* it ended while its query was waiting */
    if (!query_may_pass(qs->core, s, q->header.layer, q->n_tokens))
        return 0;
    qs->look = true;
    if (q->what == QUERY_READS_MASS) {
        enter(qs, q, QUERY_ANSWER);
        return s->sums ? 1 : HILL_E_PROTOCOL;
    }
    if (q->what == QUERY_READS) {
        enter(qs, q, QUERY_PLAN);
        return 1;
    }
    if (q->kind == QUERY_KNOWN && !holding_goes_ahead(q->sequence, &q->header))
        return HILL_E_WOULD_BLOCK;
    if (window_of(qs->core, q)) {
        enter(qs, q, QUERY_SELECT);
        return 1;
    }
    int rc = kv_selector_begin(q->selector, &s->settings, q->n_tokens);
    if (rc)
        return rc;
    enter(qs, q, query_is_evaluated(qs->core, q) ? QUERY_SCORE : QUERY_SELECT);
    return 1;
}

/* Has the evaluator as many rows as it takes? */
static bool evaluator_is_taken(const struct queries *qs)
{
    uint32_t most = qs->evaluator->ops->rows ? qs->evaluator->ops->rows : 1, n = 0;
    for (uint32_t i = 0; i < qs->core->config.rows; i++)
        n += qs->rows[i].phase == QUERY_SCORE && qs->rows[i].begun;
    return n >= most;
}

static int step_score(struct queries *qs, struct query *q)
{
    if (!q->begun) {
        enter(qs, q, QUERY_SCORE); /* what it waits for has a deadline of its own */
        if (evaluator_is_taken(qs))
            return 0;
        q->begun = true;
        qs->evaluator->ops->begin(qs->evaluator, q);
    }
    int rc = qs->evaluator->ops->step(qs->evaluator, q);
    if (rc != EVALUATOR_DONE)
        return rc == EVALUATOR_WORKS ? 1 : rc;
    rc = qs->evaluator->ops->finish(qs->evaluator, q);
    if (rc)
        return rc;
    enter(qs, q, QUERY_SELECT);
    return 1;
}

/* ---- selecting ------------------------------------------------------------------------------ */

/* The end of a step may be taken after the first query of the next one: its hash is kept until
 * then. */
static void hash_selection(const struct query *q, uint32_t k)
{
    struct sequence *s = q->sequence;
    uint32_t head[2] = {q->header.step, q->header.layer};
    if (q->header.step <= s->replay_to && s->replay_to)
        return; /* the hash has the selections of a step that is made again */
    if (q->header.step != s->hashed_step) {
        XXH64_copyState(s->hash_before, s->hash);
        s->hashed_step = q->header.step;
    }
    XXH64_update(s->hash, head, sizeof head);
    XXH64_update(s->hash, q->answer.positions, (size_t)k * sizeof(uint32_t));
}

/* Sinks and the window are always there: no query has chosen them. */
static void count_chosen(const struct query *q, uint32_t k)
{
    struct sequence *s = q->sequence;
    struct scorer_passages *counts = &s->stats.passages;
    unsigned shift = (unsigned)__builtin_ctz(counts->tokens);
    uint32_t window = s->settings.window < q->n_tokens ? s->settings.window : q->n_tokens;
    uint32_t end = q->n_tokens - window, i = 0;
    while (i < k && q->answer.positions[i] < s->settings.sinks)
        i++;
    for (; i < k && q->answer.positions[i] < end; i++)
        s->passages[q->answer.positions[i] >> shift]++;
    counts->n = ((q->n_tokens - 1) >> shift) + 1;
    counts->queries++;
}

/* Its sequence's query of the layer before, if that is in flight still: a guess may be so early. */
static const struct query *query_before(const struct queries *qs, const struct query *q)
{
    for (uint32_t i = 0; i < qs->core->config.rows; i++) {
        const struct query *other = &qs->rows[i];
        if (other->phase != QUERY_NONE && other->sequence == q->sequence &&
            other->header.layer + 1 == q->header.layer)
            return other;
    }
    return NULL;
}

/* The selection into answer.positions; what is attended to is hashed, layer after layer. */
static int step_select(struct queries *qs, struct query *q)
{
    const struct query *before = query_before(qs, q);
    if (before && before->phase <= QUERY_SELECT) {
        enter(qs, q, QUERY_SELECT); /* that one has a deadline of its own */
        return 0;
    }
    struct scorer_stats *stats = &q->sequence->stats;
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(select, &q->header);
    uint32_t window = window_of(qs->core, q);
    int64_t k =
        window ? select_window(q, window) : kv_selector_finish(q->selector, q->answer.positions);
    /* k <= k_max <= gpu_slots */
    STAGE_END(select, k < 0 ? 0 : (uint64_t)k * sizeof(uint32_t));
    stats->merge_ns += clock_now_ns() - start;
    if (k < 0) {
        core_fail(qs->core, q->sequence, (int)k, "%u of %u tokens of layer %u were scored",
                  kv_selector_scored(q->selector), q->n_tokens, q->header.layer);
        return (int)k;
    }
    stats->guess_queries += q->kind == QUERY_SPECULATIVE || q->kind == QUERY_AHEAD;
    if (q->kind != QUERY_AHEAD) {
        hash_selection(q, (uint32_t)k);
        stats->queries++;
        if (!window) {
            stats->budget = (uint32_t)k;
            count_chosen(q, (uint32_t)k);
        }
    }
    q->answer.n_items = (uint32_t)k;
    enter(qs, q, QUERY_PLAN);
    return 1;
}

/* ---- gathering ------------------------------------------------------------------------------ */

/* What the GPU is to forget of this selection, now that the answer names its slots: `--gpu-keep`.
 * The answer's slots are read before the next query's uploads overwrite them. */
static void forget_places(struct core *c, const struct query *q)
{
    struct tiers *t = &c->tiers;
    if (c->config.gpu_drop > 0)
        gpu_slots_keep(&t->gpu, tiers_list(t, q->sequence->index, q->header.layer),
                       q->n_tokens - (uint32_t)(c->config.gpu_drop * q->n_tokens));
}

static void forget_list(struct core *c, const struct query *q)
{
    gpu_slots_clear(&c->tiers.gpu, tiers_list(&c->tiers, q->sequence->index, q->header.layer));
}

static bool is_answer(const struct query *q)
{
    return q->what == QUERY_SELECTS && q->kind != QUERY_AHEAD;
}

static int plan_read(struct query *q)
{
    struct answer *a = &q->answer;
    a->reads = true;
    for (uint32_t i = 0; i < q->n_read; i++)
        a->positions[i] = q->n_tokens - q->n_read + i;
    int rc = answer_locate(a, q->sequence, q->header.layer, q->n_read);
    for (uint32_t i = 0; i < a->n_items; i++)
        a->items[i].flags = ANSWER_BRING;
    return rc;
}

static int plan_guess(struct query *q)
{
    struct answer *a = &q->answer;
    int rc = answer_locate(a, q->sequence, q->header.layer, a->n_items);
    answer_find_lacking(a, q->sequence, q->header.layer);
    return rc;
}

static int plan_answer(struct core *c, struct query *q)
{
    struct sequence *s = q->sequence;
    struct answer *a = &q->answer;
    int rc = answer_locate(a, s, q->header.layer, a->n_items);
    if (rc)
        return rc; /* before places are given, and a guess's slots taken */
    if (q->kind == QUERY_KNOWN && a->n_in_place < a->n_items)
        return HILL_E_DAMAGED; /* nothing of it can be anywhere else */
    holding_compare(s, a, q->header.layer, q->n_tokens);
    rc = answer_give_places(a, s, q->header.layer);
    if (rc)
        return rc; /* admission counted the slots */
    forget_places(c, q);
    holding_use_guess(s, a);
    return 0;
}

/* What is to be brought. Rows are planned before it is their turn, so nothing here may be seen by
 * another sequence: staging slots are taken in the rows' order (query_place). */
static int step_plan(struct queries *qs, struct query *q)
{
    struct core *c = qs->core;
    if (query_before(qs, q)) { /* it decides what the GPU has */
        enter(qs, q, QUERY_PLAN);
        return 0;
    }
    int rc = q->what == QUERY_READS   ? plan_read(q)
             : q->kind == QUERY_AHEAD ? plan_guess(q)
                                      : plan_answer(c, q);
    if (rc && q->what == QUERY_SELECTS)
        core_fail(c, q->sequence, rc, "finding where %s of layer %u is",
                  is_answer(q) ? "the selection" : "a guess", q->header.layer);
    if (rc && is_answer(q))
        forget_list(c, q);
    if (rc)
        return rc;
    answer_plan(&q->answer);
    enter(qs, q, QUERY_GATHER);
    return 1;
}

enum { TURN_BYTES = 1 }; /* no record is so short */

/* Before a step that other rows see, and whose moment depends on threads: room in the selection
 * ring is asked for, since a recording notes it as an event, and a replay takes the step in the
 * same place among the others. 1; 0: no room now; negative: the ring is damaged. */
static int take_turn(struct core *c)
{
    void *payload;
    int rc = shm_ring_reserve(&c->io.rings[RING_SELECTION], TURN_BYTES, &payload);
    if (rc == HILL_E_WOULD_BLOCK)
        return 0;
    return rc && rc != HILL_E_PEER_GONE ? rc : 1;
}

static int take_staging(struct query *q)
{
    return q->what == QUERY_READS   ? holding_take_all(q->sequence, &q->answer)
           : q->kind == QUERY_AHEAD ? holding_guess(q->sequence, &q->answer)
                                    : holding_take(q->sequence, &q->answer);
}

static void count_answer(struct sequence *s, const struct answer *a, bool verified)
{
    s->stats.late_fetches += verified ? a->n_fetches : 0;
    s->stats.cold.hits += a->n_cold;
    s->stats.hot_copied += a->n_uploads - a->n_cold;
    s->stats.hot.hits += a->n_uploads - a->n_cold + a->n_in_place;
}

/* Its turn may have come long after it was scored: only now is it waited for. */
int query_place(struct core *c, struct query *q)
{
    bool verified = q->sequence->guess.there;
    q->gather_began_ns = clock_now_ns();
    q->deadline_ns = q->gather_began_ns + c->config.agent_deadline_ns;
    if (is_answer(q)) {
        STAGE_BEGIN_AT(gather, &q->header);
        q->gather_span = stage_span_gather;
    }
    if (!q->released)
        holding_release(c, q->sequence, &q->header, q->kind);
    q->released = true;
    int rc = take_staging(q);
    if (rc == 0) {
        answer_list_copies(&q->answer);
        if (is_answer(q))
            count_answer(q->sequence, &q->answer, verified);
        return 0;
    }
    if (q->what == QUERY_SELECTS)
        core_fail(c, q->sequence, rc, "taking staging slots for %s of layer %u",
                  is_answer(q) ? "the selection" : "a guess", q->header.layer);
    if (is_answer(q))
        forget_list(c, q); /* what was to be uploaded is not there */
    return rc;
}

/* The answer is in staging, or is not going to be. */
static void end_gathering(struct core *c, struct query *q, int rc)
{
    struct sequence *s = q->sequence;
    struct answer *a = &q->answer;
    if (q->kind == QUERY_AHEAD) {
        if (rc)
            holding_lose_guess(s, a);
        else
            holding_keep_guess(s, &q->header);
        s->stats.fetch_ns += clock_now_ns() - q->gather_began_ns;
        return;
    }
    if (a->fetches_open)
        holding_lose(s);
    if (q->what != QUERY_SELECTS)
        return;
    const struct stage_span stage_span_gather = q->gather_span;
    STAGE_END(gather, (uint64_t)a->n_uploads * c->tiers.hkm.entry_bytes);
    if (rc) {
        forget_list(c, q);
        return;
    }
    s->stats.fetch_ns += clock_now_ns() - q->gather_began_ns;
    s->stats.gpu.hits += (uint64_t)(a->n_items - a->n_uploads) - a->n_in_place;
    if (q->kind == QUERY_KNOWN)
        return;                             /* holding_goes_ahead has said that they are read */
    s->held[0].reading = a->n_in_place > 0; /* no word has flipped since they were looked up */
    s->held[0].layer = q->header.layer;
}

/* 1: placed; 0: not yet; or an error. The rows beside it take and give staging slots, too. */
static int place_in_turn(struct queries *qs, struct query *q)
{
    if (qs->n > 1) {
        if (!q->in_turn)
            enter(qs, q, QUERY_GATHER);
        q->in_turn = true;
        int rc = take_turn(qs->core);
        if (rc != 1)
            return rc;
    }
    int rc = query_place(qs->core, q);
    if (rc && q->kind == QUERY_AHEAD)
        end_gathering(qs->core, q, rc);
    return rc ? rc : 1;
}

/* It has waited for too long. */
static void give_up_gathering(struct core *c, struct query *q)
{
    if (q->gather_began_ns)
        end_gathering(c, q, HILL_E_TIMEOUT);
    else if (is_answer(q))
        forget_list(c, q);
}

static int step_gather(struct queries *qs, struct query *q)
{
    if (!q->gather_began_ns) {
        int rc = place_in_turn(qs, q);
        if (rc != 1)
            return rc;
    }
    bool pushed = q->answer.pushed;
    int rc = answer_gather(&q->answer, q->sequence, &q->header);
    qs->look |= !pushed && q->answer.pushed && q->answer.n_fetches;
    if (rc == 0)
        return 0;
    end_gathering(qs->core, q, rc < 0 ? rc : 0);
    if (rc == 1)
        enter(qs, q, QUERY_ANSWER);
    return rc;
}

/* ---- answering ------------------------------------------------------------------------------ */

/* Are the answers of both waited for together? */
static bool goes_with(const struct record_query *next, const struct query *q)
{
    return next->header.layer == q->header.layer ||
           (next->kind == QUERY_KNOWN && q->kind == QUERY_KNOWN);
}

/* The rows of a step ask together, and of a known one for all layers; their worker goes on when it
 * has all answers: it is woken once, unless what comes next is of another layer (a guess, which is
 * worked at while the worker computes) or takes long (agent_pause). */
static int show_answers(struct core *c, const struct query *q)
{
    struct shm_ring_end *ring = &c->io.rings[RING_QUERY];
    uint32_t type, bytes;
    const void *payload;
    if (q->what != QUERY_SELECTS) {
        shm_ring_flush(&c->io.rings[RING_SELECTION]); /* in case answers waited for it */
        return 0;
    }
    int rc = shm_ring_peek(ring, &type, &payload, &bytes);
    if (rc || type != RECORD_QUERY || bytes < sizeof(struct record_query) || !goes_with(payload, q))
        shm_ring_flush(&c->io.rings[RING_SELECTION]);
    return rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE ? 0 : rc;
}

/* Are others of its layer in flight? */
static bool goes_on(const struct queries *qs, const struct query *q)
{
    for (uint32_t i = 0; i < qs->core->config.rows; i++) {
        const struct query *other = &qs->rows[i];
        if (other != q && other->phase != QUERY_NONE && other->header.layer == q->header.layer)
            return true;
    }
    return false;
}

/* It is over; `answered`: its answer says where the entries are. 0, or the ring is damaged. */
static int end_query(struct queries *qs, struct query *q, bool answered)
{
    struct core *c = qs->core;
    const struct stage_span stage_span_answer = q->answer_span;
    if (q->what == QUERY_SELECTS)
        STAGE_END(answer, answered ? query_selection_bytes(q) : 0);
    int rc = goes_on(qs, q) ? 0 : show_answers(c, q);
    q->phase = QUERY_NONE;
    if (answered && q->what == QUERY_SELECTS && q->status == 0) {
        if (c->io.trace) /* where entries were, not where they go */
            query_trace(c, q);
        moves_note(qs->demotions, q->sequence, q->header.layer, &q->answer);
    }
    if (rc == 0)
        core_work_done(c);
    return rc;
}

static int step_answer(struct queries *qs, struct query *q)
{
    int rc;
    if (q->kind == QUERY_AHEAD) { /* alone; if it has failed, the exact query's answer says so */
        rc = take_turn(qs->core);
        if (rc == 0 && clock_now_ns() < q->deadline_ns)
            return 0;
        rc = rc < 0 ? rc : end_query(qs, q, false);
        return rc ? rc : 1;
    }
    if (q->status) /* it names nothing */
        q->answer.n_items = q->answer.n_uploads = 0;
    rc = query_push(qs, q);
    if (rc == 0 && clock_now_ns() < q->deadline_ns)
        return 0;
    if (rc == 0)
        core_fail(qs->core, q->sequence, HILL_E_TIMEOUT, "answering a query of layer %u",
                  q->header.layer);
    rc = end_query(qs, q, rc == 1); /* a GPU worker that is gone needs no answer */
    return rc ? rc : 1;
}

/* ---- the object ----------------------------------------------------------------------------- */

/* It has failed: the answer says so, when nothing of it is out any more. */
static int fail_query(struct queries *qs, struct query *q, int rc)
{
    if (!q->status)
        enter(qs, q, q->phase);
    q->status = rc;
    if (q->phase == QUERY_SCORE && q->begun &&
        qs->evaluator->ops->settle(qs->evaluator, q) == EVALUATOR_WAITS &&
        clock_now_ns() < q->deadline_ns)
        return 0;
    enter(qs, q, QUERY_ANSWER);
    return 1;
}

/* Does it fail with its sequence while it waits? Past AWAIT it is seen through: where it stands
 * when a failure is heard of depends on threads. Not if the agent is lost. */
static bool may_fail_with(const struct queries *qs, const struct query *q)
{
    return q->phase == QUERY_AWAIT || (q->phase == QUERY_SCORE && qs->agent->status);
}

/* One step of the phase that it is in. 1: something was done, 0: it waits; negative: the loop ends.
 */
int query_step(struct queries *qs, struct query *q)
{
    static int (*const steps[])(struct queries *, struct query *) = {
        [QUERY_AWAIT] = step_await, [QUERY_SCORE] = step_score,   [QUERY_SELECT] = step_select,
        [QUERY_PLAN] = step_plan,   [QUERY_GATHER] = step_gather,
    };
    struct sequence *s = q->sequence;
    if (q->phase == QUERY_ANSWER)
        return step_answer(qs, q);
    if (q->status)
        return fail_query(qs, q, q->status);
    int rc = steps[q->phase](qs, q);
    if (rc == 0 && s->status && may_fail_with(qs, q))
        rc = s->status;
    if (rc == 0 && clock_now_ns() >= q->deadline_ns) {
        rc = HILL_E_TIMEOUT;
        core_fail(qs->core, s, rc, "answering a query of layer %u", q->header.layer);
        if (q->phase == QUERY_GATHER)
            give_up_gathering(qs->core, q);
    }
    return rc < 0 ? fail_query(qs, q, rc) : rc;
}

static void begin(struct queries *qs, struct query *q, const struct record_header *header,
                  uint32_t id, uint32_t n_tokens, uint64_t request_id)
{
    q->header = *header;
    q->id = id;
    q->n_tokens = n_tokens;
    q->request_id = request_id;
    q->sequence = &qs->core->sequences[header->sequence];
    q->status = 0;
    q->begun = q->drive_is_left = q->in_turn = false;
    q->due_ns = q->gather_began_ns = 0;
    answer_begin(&q->answer);
    enter(qs, q, QUERY_AWAIT);
    q->status = check_query(qs->core, q);
    q->released = q->status || !query_before(qs, q);
    if (!q->status && q->ahead)
        holding_keep_newest(qs->core, q->sequence);
    else if (!q->status && q->released)
        holding_release(qs->core, q->sequence, header, q->kind);
}

void query_begin(struct queries *qs, struct query *q, const struct record_query *r, uint32_t bytes)
{
    STAGE_BEGIN_AT(answer, &r->header);
    q->answer_span = stage_span_answer;
    q->what = QUERY_SELECTS;
    q->kind = r->kind;
    q->n_read = 0;
    q->ahead = false;
    q->vector = q->own_vector;
    memcpy(q->own_vector, r + 1, bytes - sizeof *r); /* nothing of a known one */
    begin(qs, q, &r->header, r->query_id, r->n_tokens, r->request_id);
}

void query_begin_reading(struct queries *qs, struct query *q, const struct record_read *r)
{
    q->what = r->what == READ_MASS ? QUERY_READS_MASS : QUERY_READS;
    q->kind = QUERY_EXACT; /* all earlier selections have been read */
    q->n_read = r->n_tokens;
    q->ahead = r->ahead != 0;
    begin(qs, q, &r->header, r->read_id, r->first + r->n_tokens, r->request_id);
}
