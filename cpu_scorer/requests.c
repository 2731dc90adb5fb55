/* cpu_scorer/requests.c - see requests.h. */
#include "cpu_scorer/requests.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "cpu_scorer/admission.h"
#include "cpu_scorer/adoption.h"
#include "cpu_scorer/holding.h"
#include "cpu_scorer/moves.h"
#include "cpu_scorer/resting.h"
#include "cpu_scorer/sequence_stats.h"

/* ---- end ---------------------------------------------------------------------------------- */

void requests_close(struct requests *rs, struct sequence *s)
{
    if (s->state == SEQUENCE_FREE || s->state == SEQUENCE_ENDING || s->state == SEQUENCE_TRIMMING ||
        s->state == SEQUENCE_DORMANT)
        return;
    kept_end(tiers_kept(&rs->core->tiers, s->index));
    holding_release_all(rs->core, s);
    s->leaving = false;
    rs->core->tiers.staging_unreserved += s->staging_max;
    s->staging_max = 0;
    moves_end(rs->core, s);
    tiers_release_near(&rs->core->tiers, s->index);
    s->state = SEQUENCE_ENDING;
}

/* The trim is done (or nothing had to be trimmed). */
static void free_sequence(struct requests *rs, struct sequence *s)
{
    tiers_release_cold(&rs->core->tiers, s->index);
    s->state = SEQUENCE_FREE;
}

static void forget(struct requests *rs, struct sequence *s)
{
    kept_end(tiers_kept(&rs->core->tiers, s->index));
    moves_end(rs->core, s); /* where it was being taken up */
    tiers_release_near(&rs->core->tiers, s->index);
    free_sequence(rs, s); /* the agent knows nothing of it */
}

bool requests_forget_dormant(struct requests *rs)
{
    bool any = false;
    for (uint32_t i = 0; i < rs->core->config.n_sequences; i++) {
        struct sequence *s = &rs->core->sequences[i];
        if (s->state != SEQUENCE_DORMANT)
            continue;
        forget(rs, s);
        any = true;
    }
    return any;
}

/* The one that came to rest first, but for one that is asked for. */
static bool free_oldest(struct requests *rs)
{
    struct sequence *oldest = NULL;
    for (uint32_t i = 0; i < rs->core->config.n_sequences; i++) {
        struct sequence *s = &rs->core->sequences[i];
        if (s->state == SEQUENCE_RESTING && !s->begin_held &&
            (!oldest || s->rests.since < oldest->rests.since))
            oldest = s;
    }
    if (!oldest)
        return false;
    log_debug("sequence %u gives its room to others: its %u tokens are forgotten", oldest->index,
              oldest->rests.n_tokens);
    requests_close(rs, oldest);
    return true;
}

void requests_forget_resting(struct requests *rs)
{
    while (free_oldest(rs))
        ;
}

static void take_trim(void *context, const void *record)
{
    struct requests *rs = context;
    const struct record_completion *r = record;
    struct sequence *s = &rs->core->sequences[r->header.sequence];
    uint32_t from = 1u << rs->agent->from;
    if (s->state != SEQUENCE_TRIMMING || s->trim_tag != r->tag || !(s->trims & from))
        return;
    if (r->status)
        log_error("freeing the cold stripes of sequence %u failed: %s; they are used again",
                  s->index, hill_strerror(r->status));
    s->trims &= ~from;
    if (s->trims == 0)
        free_sequence(rs, s);
}

void requests_init(struct requests *rs, struct core *core, struct agent *agent,
                   struct demotions *demotions, struct evaluator *evaluator)
{
    *rs = (struct requests){core, agent, demotions, evaluator};
    agent_on(agent, RECORD_TRIM, take_trim, rs);
    adoption_listen(agent);
}

/* Nothing more can be asked of a lost agent; its stripes stay taken until the next epoch. */
static void end_without_agent(struct requests *rs, struct sequence *s)
{
    demotions_forget(rs->demotions, s);
    if (s->cold_used)
        s->state = SEQUENCE_FREE;
    else
        free_sequence(rs, s);
}

/* One that has been closed gives its stripes back. */
static int clear_up(struct requests *rs, struct sequence *s)
{
    if (s->state != SEQUENCE_ENDING && s->state != SEQUENCE_TRIMMING)
        return 0;
    if (rs->agent->status) {
        end_without_agent(rs, s);
        return 1;
    }
    if (s->state == SEQUENCE_TRIMMING || s->demotes)
        return 0;
    if (!s->cold_used || rs->agent->n_there == 0) /* or all of several drives have been left */
        free_sequence(rs, s);
    else if (agent_trim(rs->agent, s) == 0)
        s->state = SEQUENCE_TRIMMING;
    else
        return 0;
    return 1;
}

static void finish_stats(struct requests *rs, struct sequence *s)
{
    sequence_stats_fill(rs->core, s);
    log_debug("request %llu: control bytes of the agent's rings so far: %llu",
              (unsigned long long)s->identity, (unsigned long long)rs->agent->control_bytes);
    log_debug("request %llu: %llu of %llu demotions took the slots of copies",
              (unsigned long long)s->identity, (unsigned long long)s->stats.reused,
              (unsigned long long)s->stats.demoted);
}

static bool has_credits(struct requests *rs, uint32_t bytes)
{
    return shm_ring_credits(&rs->core->io.rings[RING_SELECTION]) >= bytes;
}

/* 1: the sequence is over and its worker told so; 0: no credits. */
static int answer_end(struct requests *rs, struct sequence *s, const struct record_seq_end *r,
                      bool ours)
{
    struct record_seq_stats answer = {.header = r->header, .request_id = r->request_id};
    if (!has_credits(rs, sizeof answer))
        return 0;
    uint32_t kept = ours && !rs->agent->status ? resting_tokens(rs->core, s, r) : 0;
    if (ours) {
        s->stats.kept_tokens = kept;
        finish_stats(rs, s);
        if (rs->core->hooks.stats)
            rs->core->hooks.stats(rs->core->hooks.context, &s->stats);
        if (rs->core->io.trace && trace_flush(rs->core->io.trace))
            log_error("writing the KV trace failed");
        if (kept)
            resting_begin(rs->core, s, kept);
        else
            requests_close(rs, s);
    }
    shm_ring_push(&rs->core->io.rings[RING_SELECTION], RECORD_SEQ_STATS, &answer, sizeof answer);
    return 1;
}

static int answer_ready(struct requests *rs, const struct record_seq_ready *answer)
{
    if (!has_credits(rs, sizeof *answer))
        return 0;
    shm_ring_push(&rs->core->io.rings[RING_SELECTION], RECORD_SEQ_READY, answer, sizeof *answer);
    return 1;
}

/* Every SEQ_BEGIN has its answer, since its worker counts them: one that is held does not begin. */
static int refuse_held(struct requests *rs, struct sequence *s, int status)
{
    struct record_seq_ready answer = {.header = s->begin.header, .status = status};
    if (s->begin_held && !answer_ready(rs, &answer))
        return 0;
    s->begin_held = false;
    return 1;
}

/* Stats wait for the demotions under way, so that what they wrote is counted. */
int requests_take_end(struct requests *rs, const struct record_seq_end *r)
{
    struct sequence *s = &rs->core->sequences[r->header.sequence];
    bool ours = s->state == SEQUENCE_ACTIVE && s->request_id == r->request_id && !s->leaving;
    if (!refuse_held(rs, s, HILL_E_CANCELLED))
        return 0;
    FAULT_POINT(cpu_scorer, end, taken);
    if (!ours || !s->demotes || rs->agent->status)
        return answer_end(rs, s, r, ours);
    holding_reads_done(s); /* so that its demotions come to an end */
    s->leaving = true;
    s->end = *r;
    return 1;
}

/* ---- begin -------------------------------------------------------------------------------- */

/* The sequence is this request's; what it has in the tiers stays. */
static void set_request(struct requests *rs, struct sequence *s, const struct record_seq_begin *r)
{
    s->status = 0;
    s->identity = r->identity;
    s->request_id = r->request_id;
    s->prompt_tokens = r->prompt_tokens;
    s->max_tokens = r->max_tokens;
    s->past_tokens = r->past_tokens;
    s->settings = record_selection_settings(r);
    memset(&s->stats, 0, sizeof s->stats);
    memset(&s->balance, 0, sizeof s->balance);
    memset(s->passages, 0, sizeof s->passages);
    s->stats.passages =
        (struct scorer_passages){.chosen = s->passages, .tokens = SCORER_PASSAGE_TOKENS};
    while ((uint64_t)s->stats.passages.tokens * SCORER_PASSAGES < s->max_tokens)
        s->stats.passages.tokens *= 2;
    XXH64_reset(s->hash, 0);
    s->hashed_step = 0;
    s->bounced_before = 0;
    holding_begin(rs->core, s);
    s->reads_hot = r->reads_hot;
    s->first_tag = rs->agent->next_tag;
    s->sums = r->policy == KV_POLICY_H2O;
    s->trim_tag = 0;
    s->adoption = (struct adoption){.stripe = COLD_NONE};
    s->staging_max = s->k_max = 0;
}

static void start_sequence(struct requests *rs, struct sequence *s,
                           const struct record_seq_begin *r)
{
    memset(s->layers, 0, rs->core->config.geometry.n_layers * sizeof *s->layers);
    s->cold_used = s->moves_wanted = false;
    set_request(rs, s, r);
}

static void open_evaluator(struct requests *rs, const struct sequence *s)
{
    if (rs->evaluator->ops->open)
        rs->evaluator->ops->open(rs->evaluator, s);
}

static void place_prompt(struct sequence *s)
{
    hot_share_cold_range(&s->share, s->prompt_tokens, &s->cold_from, &s->cold_to);
    log_debug("request %llu: %u of %u prompt tokens per layer hot (beta %.3g), room for %u hot",
              (unsigned long long)s->identity, s->prompt_tokens - (s->cold_to - s->cold_from),
              s->prompt_tokens, s->share.beta, s->share.limit);
}

/* Does one still give back what it held? */
static bool any_ending(const struct requests *rs)
{
    for (uint32_t i = 0; i < rs->core->config.n_sequences; i++)
        if (rs->core->sequences[i].leaving || rs->core->sequences[i].state == SEQUENCE_ENDING ||
            rs->core->sequences[i].state == SEQUENCE_TRIMMING ||
            rs->core->sequences[i].state == SEQUENCE_ADOPTING)
            return true; /* one that is being cut gives nothing back */
    return false;
}

static void say_where_hot(const struct requests *rs, const struct sequence *s,
                          struct record_seq_ready *answer)
{
    if (!s->reads_hot)
        return;
    answer->hot_offset =
        (uint32_t)(rs->core->tiers.hkm.header->entries_offset / 64); /* a multiple of it */
    answer->hot_entries = rs->core->tiers.hkm.n_blocks * KV_HOT_BLOCK_TOKENS;
}

/* A SEQ_BEGIN finds no room: has the next of what is kept been given up for it, or is room about to
 * be free? Nothing is given up where all of it together would not do. */
static bool make_room(struct requests *rs, const struct record_seq_begin *r)
{
    if (any_ending(rs))
        return true;
    return admission_beside_running(rs->core, rs->agent, r) == 0 &&
           (requests_forget_dormant(rs) || free_oldest(rs));
}

/* 1: answered; 0: not yet. HILL_E_BUSY says that others have to end first: none of them is ending
 * already. */
static int begin_sequence(struct requests *rs, struct sequence *s, const struct record_seq_begin *r)
{
    struct record_seq_ready answer = {.header = r->header};
    struct hill_why why = {""};
    if (s->state != SEQUENCE_FREE || !has_credits(rs, sizeof answer))
        return 0;
    uint64_t identity = rs->core->config.keeps ? r->identity : 0;
    s->damage.n = s->replay_to = 0;
    start_sequence(rs, s, r);
    answer.status = admission_begin(rs->core, rs->agent, s, identity, &why);
    if (answer.status == HILL_E_BUSY && make_room(rs, r))
        return 0;
    if (answer.status == HILL_E_BUSY) {
        log_debug("request %llu waits: %s", (unsigned long long)s->identity, why.text);
    } else if (answer.status) {
        core_fail(rs->core, s, answer.status, "%s", why.text);
    } else {
        open_evaluator(rs, s);
        s->state = SEQUENCE_ACTIVE;
        place_prompt(s);
        say_where_hot(rs, s, &answer);
        FAULT_POINT(cpu_scorer, begin, reserved);
    }
    shm_ring_push(&rs->core->io.rings[RING_SELECTION], RECORD_SEQ_READY, &answer, sizeof answer);
    FAULT_POINT(cpu_scorer, begin, answered);
    return 1;
}

/* ---- taken up again ----------------------------------------------------------------------- */

/* What is kept of it beside its entries. */
static int adopt_evaluator(struct requests *rs, struct sequence *s)
{
    const struct evaluator_ops *ops = rs->evaluator->ops;
    for (uint32_t layer = 0; s->sums && layer < rs->core->config.geometry.n_layers; layer++)
        s->layers[layer].weighed = s->prompt_tokens;
    int rc = ops->adopt ? ops->adopt(rs->evaluator, s) : 0;
    if (rc)
        log_info("request %llu begins anew: what policy %s has kept of it is not there (%s)",
                 (unsigned long long)s->identity, kv_policy_name(s->settings.policy),
                 hill_strerror(rc));
    return rc;
}

/* Can it be? Then its SEQ_READY comes when the agent has its slots; else it is freed. */
static bool adopt(struct requests *rs, struct sequence *s, const struct record_seq_begin *r)
{
    const struct kept_step *step;
    struct hill_why why = {""};
    if (!adoption_fits(rs->core, s, r, &step)) {
        forget(rs, s);
        return false;
    }
    start_sequence(rs, s, r);
    if (admission_check(rs->core, rs->agent, s, &why) ||
        adoption_begin(rs->core, s, step, r->adopt_max) || adopt_evaluator(rs, s)) {
        forget(rs, s);
        return false;
    }
    admission_take_staging(rs->core, s);
    FAULT_POINT(cpu_scorer, adopt, begun);
    return true;
}

/* As of its newest step that the SEQ_BEGIN can go on with. */
static int answer_adopted(struct requests *rs, struct sequence *s)
{
    struct {
        struct record_seq_ready ready;
        struct damaged_entry damaged[RECORD_DAMAGED_MAX];
    } whole = {.ready = {.header = s->begin.header}};
    struct record_seq_ready *answer = &whole.ready;
    uint32_t damaged = s->damage.n * (uint32_t)sizeof *whole.damaged;
    uint32_t bytes = (uint32_t)sizeof *answer + damaged;
    if (!has_credits(rs, bytes))
        return 0;
    FAULT_POINT(cpu_scorer, adopt, counted);
    s->state = SEQUENCE_ACTIVE;
    s->begin_held = false;
    adoption_answer(rs->core, s, answer);
    memcpy(whole.damaged, s->damage.items, damaged);
    say_where_hot(rs, s, answer);
    if (s->damage.n || s->replay_to)
        log_warn("request %llu: %u of its entries are damaged, and the steps after %u of %u: they "
                 "are made again",
                 (unsigned long long)s->identity, s->damage.n, answer->header.step,
                 s->replay_to ? s->replay_to : answer->header.step);
    log_debug("request %llu: goes on after step %u with %u tokens in layer %u, %u of them hot",
              (unsigned long long)s->identity, answer->header.step, answer->kept_tokens,
              answer->header.layer,
              hkm_hot_tokens(&rs->core->tiers.hkm, s->index, answer->header.layer));
    shm_ring_push(&rs->core->io.rings[RING_SELECTION], RECORD_SEQ_READY, answer, bytes);
    FAULT_POINT(cpu_scorer, adopt, answered);
    return 1;
}

static int pump_adoption(struct requests *rs, struct sequence *s)
{
    bool moved = false;
    int rc = adoption_pump(rs->agent, s, &moved);
    bool pays = rc != 1 || adoption_pays(rs->core, s);
    if (rc == 1 && s->begin_held && pays)
        return answer_adopted(rs, s) | moved;
    if (rc == 0)
        return moved;
    if (rc < 0)
        log_warn("request %llu begins anew: the cold pool does not have its entries (%s)",
                 (unsigned long long)s->identity, hill_strerror(rc));
    if (!pays)
        log_warn("request %llu begins anew: that takes less time than its %u damaged entries",
                 (unsigned long long)s->identity, s->damage.n);
    requests_close(rs, s); /* a SEQ_BEGIN that is held begins when it is gone */
    return 1;
}

/* ---- gone on with ------------------------------------------------------------------------- */

/* Its SEQ_BEGIN is held. False: it cannot go on. */
static bool take_up(struct requests *rs, struct sequence *s)
{
    const struct record_seq_begin *r = &s->begin;
    struct hill_why why = {""};
    if (!resting_fits(s, r) || rs->agent->status || core_is_emptied(rs->core))
        return false;
    set_request(rs, s, r);
    int rc = admission_grow(rs->core, rs->agent, s, r->after_tokens, &why);
    if (rc == HILL_E_BUSY && make_room(rs, r))
        return true; /* once that is gone */
    if (rc) {
        log_info("request %llu cannot go on with what is kept: %s", (unsigned long long)s->identity,
                 why.text);
        return false;
    }
    open_evaluator(rs, s);
    s->state = SEQUENCE_CUTTING;
    return true;
}

static int answer_taken_up(struct requests *rs, struct sequence *s)
{
    struct record_seq_ready answer = {.header = s->begin.header};
    uint32_t n_tokens = s->begin.after_tokens;
    if (!has_credits(rs, sizeof answer))
        return 0;
    if (resting_end(rs->core, s)) {
        requests_close(rs, s); /* no memory; it begins anew when the slot is free */
        return 1;
    }
    uint64_t identity = rs->core->config.keeps ? s->identity : 0;
    hkm_rename(&rs->core->tiers.hkm, s->index, n_tokens, identity);
    kept_begin(tiers_kept(&rs->core->tiers, s->index), identity, &s->plan);
    place_prompt(s);
    s->cold_from = s->cold_from > n_tokens ? s->cold_from : n_tokens;
    s->cold_to = s->cold_to > s->cold_from ? s->cold_to : s->cold_from;
    s->state = SEQUENCE_ACTIVE;
    s->begin_held = false;
    s->moves_wanted = true;
    answer.kept_tokens = n_tokens;
    say_where_hot(rs, s, &answer);
    log_info("request %llu goes on with %u tokens of an earlier one",
             (unsigned long long)s->identity, n_tokens);
    shm_ring_push(&rs->core->io.rings[RING_SELECTION], RECORD_SEQ_READY, &answer, sizeof answer);
    return 1;
}

static int pump_cutting(struct requests *rs, struct sequence *s)
{
    int rc = s->begin_held && !s->status && !rs->agent->status
                 ? resting_cut(rs->core, rs->agent, s, s->begin.after_tokens)
                 : HILL_E_CANCELLED;
    if (rc == 1)
        return answer_taken_up(rs, s);
    if (rc < 0)
        requests_close(rs, s);
    return rc < 0;
}

/* Of a sequence that rests, with a SEQ_BEGIN for it or for its slot. Where that has no room beside
 * those that run the sequence rests on. */
static int pump_resting(struct requests *rs, struct sequence *s)
{
    if (take_up(rs, s))
        return s->state != SEQUENCE_RESTING;
    if (admission_beside_running(rs->core, rs->agent, &s->begin) != HILL_E_BUSY) {
        requests_close(rs, s); /* the SEQ_BEGIN that is held begins when it is gone */
        return 1;
    }
    return any_ending(rs) ? 0 : refuse_held(rs, s, HILL_E_BUSY);
}

int requests_take_begin(struct requests *rs, const struct record_seq_begin *r)
{
    struct sequence *s = &rs->core->sequences[r->header.sequence];
    if (!refuse_held(rs, s, HILL_E_CANCELLED))
        return 0;
    if (s->state == SEQUENCE_RESTING) {
        s->begin = *r;
        s->begin_held = true;
        pump_resting(rs, s);
        return 1;
    }
    if (s->state == SEQUENCE_DORMANT && adopt(rs, s, r)) {
        s->begin = *r;
        s->begin_held = true;
        return 1;
    }
    if (!s->leaving)
        requests_close(rs, s); /* another is there and was never ended */
    if (!begin_sequence(rs, s, r)) {
        s->begin = *r;
        s->begin_held = true;
    }
    return 1;
}

int requests_pump(struct requests *rs)
{
    int moved = 0;
    for (uint32_t i = 0; i < rs->core->config.n_sequences; i++) {
        struct sequence *s = &rs->core->sequences[i];
        if (s->state == SEQUENCE_ADOPTING)
            moved |= pump_adoption(rs, s);
        if (s->state == SEQUENCE_RESTING && s->begin_held)
            moved |= pump_resting(rs, s);
        if (s->state == SEQUENCE_CUTTING)
            moved |= pump_cutting(rs, s);
        if (s->leaving && (s->demotes == 0 || rs->agent->status))
            moved |= answer_end(rs, s, &s->end, true);
        moved |= clear_up(rs, s);
    }
    for (uint32_t i = 0; i < rs->core->config.n_sequences; i++) {
        struct sequence *s = &rs->core->sequences[i];
        if (s->begin_held && begin_sequence(rs, s, &s->begin)) {
            s->begin_held = false;
            moved = 1;
        }
    }
    return moved;
}

/* A SEQ_BEGIN that makes no sense is answered all the same, where it says whose it is. */
int requests_refuse_begin(struct requests *rs, const void *payload, uint32_t bytes)
{
    struct record_seq_ready answer = {.status = HILL_E_PROTOCOL};
    if (bytes < sizeof answer.header)
        return 1;
    memcpy(&answer.header, payload, sizeof answer.header);
    return answer.header.epoch == rs->core->config.epoch ? answer_ready(rs, &answer) : 1;
}
