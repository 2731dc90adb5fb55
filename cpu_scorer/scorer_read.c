/*
 * cpu_scorer/scorer_read.c - sessions: entries and sums of attention that the GPU worker is to
 * save, and the selection hash of one that it has restored.
 *
 * What: a READ names tokens of a layer; they come into the sequence's own staging slots as a
 * query's uploads do, cold ones by FETCH, hot ones copied, and ENTRIES says where they lie. Nothing
 * is scored, selected, moved or counted as a hit; the link's and the flash's bytes are counted,
 * they did flow. Sums (h2o) are in the answer itself. What is restored comes as any other through
 * the append ring. Who calls it:
 * query_pump, append_pump. Failure: the answer carries the status.
 */
#include "cpu_scorer/scorer_internal.h"

#include <string.h>

#include "base/log.h"

static int push_entries(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    uint32_t n = p->answer_status ? 0 : p->n_uploads;
    uint32_t bytes = (uint32_t)(sizeof(struct record_entries) + n * sizeof(struct staged_entry));
    void *payload;
    int rc = shm_ring_reserve(&p->io.rings[RING_SELECTION], bytes, &payload);
    if (rc)
        return rc == HILL_E_WOULD_BLOCK ? 0 : rc;
    struct record_entries *answer = payload;
    struct staged_entry *slots = (struct staged_entry *)(answer + 1);
    *answer = (struct record_entries){
        .header = q->header, .read_id = q->query_id, .n_entries = n, .status = p->answer_status};
    hash_state_save(&answer->selection_hash, s->hash);
    for (uint32_t i = 0; i < n; i++)
        slots[i] = (struct staged_entry){
            s->held[0].staging[i], shm_arena_generation(p->io.staging, s->held[0].staging[i])};
    shm_ring_publish(&p->io.rings[RING_SELECTION], RECORD_ENTRIES, bytes);
    return 1;
}

static int push_mass(struct scorer *p, struct sequence *s, const struct record_query *q)
{
    uint32_t n = p->answer_status ? 0 : p->n_uploads;
    uint32_t bytes = (uint32_t)(sizeof(struct record_mass) + n * sizeof(float));
    void *payload;
    int rc = shm_ring_reserve(&p->io.rings[RING_SELECTION], bytes, &payload);
    if (rc)
        return rc == HILL_E_WOULD_BLOCK ? 0 : rc;
    struct record_mass *answer = payload;
    *answer = (struct record_mass){.header = q->header,
                                   .read_id = q->query_id,
                                   .first = q->n_tokens - p->n_uploads,
                                   .n_tokens = n,
                                   .status = p->answer_status};
    if (n)
        keys_read_mass(p, s, q->header.layer, answer->first, n, (float *)(void *)(answer + 1));
    shm_ring_publish(&p->io.rings[RING_SELECTION], RECORD_MASS, bytes);
    return 1;
}

int read_answer(struct scorer *p, const struct record_read *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    bool mass = r->what == READ_MASS;
    const struct record_query q = {.header = r->header,
                                   .query_id = r->read_id,
                                   .n_tokens = r->first + r->n_tokens,
                                   .request_id = r->request_id};
    p->n_selected = p->n_in_place = p->n_fetches = p->n_late = p->n_copies = 0;
    p->n_uploads = r->n_tokens;
    p->query = (struct query_state){.sequence = s->index, .layer = r->header.layer};
    if (s->state == SEQUENCE_ACTIVE && r->n_tokens > s->k_max)
        p->answer_status = HILL_E_PROTOCOL; /* it has no staging slots for more */
    else if (mass)
        p->answer_status = query_await_tokens(p, s, &q);
    else
        p->answer_status = query_stage(p, s, &q, r->n_tokens);
    if (mass && !p->answer_status && s->settings.policy != KV_POLICY_H2O)
        p->answer_status = HILL_E_PROTOCOL;
    if (p->answer_status == HILL_E_CANCELLED)
        return HILL_E_CANCELLED;
    int rc = query_push(p, s, &q, mass ? push_mass : push_entries);
    return rc == HILL_E_CANCELLED ? rc : 0;
}

void read_take_resume(struct scorer *p, const struct record_resume *r)
{
    struct sequence *s = &p->sequences[r->header.sequence];
    if (s->state != SEQUENCE_ACTIVE || s->request_id != r->request_id || s->status)
        return;
    if (!hash_state_load(s->hash, &r->selection_hash))
        log_info("request %llu: the session was saved with another version of xxHash: its "
                 "selection_hash begins anew",
                 (unsigned long long)s->request_id);
}
