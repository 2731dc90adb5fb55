/* cpu_scorer/query_records.c - see query_records.h. */
#include "cpu_scorer/query_records.h"

#include "base/fault.h"
#include "base/log.h"

bool query_is_evaluated(const struct core *c, const struct query *q)
{
    return !kv_selection_is_known(&q->sequence->settings, &c->config.windows, q->header.layer,
                                  q->n_tokens);
}

static int answer_room(struct core *c, uint32_t bytes, void **payload)
{
    int rc = shm_ring_reserve(&c->io.rings[RING_SELECTION], bytes, payload);
    return rc == HILL_E_WOULD_BLOCK ? 0 : rc ? rc : 1;
}

uint32_t query_selection_bytes(const struct query *q)
{
    const struct answer *a = &q->answer;
    return (uint32_t)(sizeof(struct record_selection) + a->n_items * sizeof(struct selected_item) +
                      a->n_uploads * sizeof(struct selected_upload));
}

static int push_selection(struct core *c, const struct query *q)
{
    const struct answer *a = &q->answer;
    void *payload;
    int rc = answer_room(c, query_selection_bytes(q), &payload);
    if (rc != 1)
        return rc;
    struct record_selection *answer = payload;
    struct selected_item *items = (struct selected_item *)(answer + 1);
    struct selected_upload *uploads = (struct selected_upload *)(items + a->n_items);
    *answer = (struct record_selection){.header = q->header,
                                        .query_id = q->id,
                                        .n_selected = a->n_items,
                                        .n_uploads = a->n_uploads,
                                        .status = q->status};
    for (uint32_t i = 0; i < a->n_items; i++) {
        const struct answer_item *item = &a->items[i];
        items[i] = (struct selected_item){item->position, item->gpu_slot};
        if (item->flags & ANSWER_UPLOAD)
            *uploads++ = (struct selected_upload){
                item->staging, shm_arena_generation(c->tiers.staging, item->staging),
                item->gpu_slot, 0};
    }
    if (a->n_uploads) /* a device with memory of its own copies them while others are scored */
        shm_ring_publish(&c->io.rings[RING_SELECTION], RECORD_SELECTION, query_selection_bytes(q));
    else
        shm_ring_stage(&c->io.rings[RING_SELECTION], RECORD_SELECTION, query_selection_bytes(q));
    FAULT_POINT(cpu_scorer, selection, pushed);
    return 1;
}

static int push_entries(struct core *c, const struct query *q)
{
    uint32_t n = q->status ? 0 : q->n_read;
    uint32_t bytes = (uint32_t)(sizeof(struct record_entries) + n * sizeof(struct staged_entry));
    void *payload;
    int rc = answer_room(c, bytes, &payload);
    if (rc != 1)
        return rc;
    struct record_entries *answer = payload;
    struct staged_entry *slots = (struct staged_entry *)(answer + 1);
    *answer = (struct record_entries){
        .header = q->header, .read_id = q->id, .n_entries = n, .status = q->status};
    hash_state_save(&answer->selection_hash, q->sequence->hash);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t staging = q->answer.items[i].staging;
        slots[i] = (struct staged_entry){staging, shm_arena_generation(c->tiers.staging, staging)};
    }
    shm_ring_publish(&c->io.rings[RING_SELECTION], RECORD_ENTRIES, bytes);
    return 1;
}

static int push_mass(struct queries *qs, const struct query *q)
{
    struct core *c = qs->core;
    uint32_t n = q->status ? 0 : q->n_read;
    uint32_t bytes = (uint32_t)(sizeof(struct record_mass) + n * sizeof(float));
    void *payload;
    int rc = answer_room(c, bytes, &payload);
    if (rc != 1)
        return rc;
    struct record_mass *answer = payload;
    *answer = (struct record_mass){.header = q->header,
                                   .read_id = q->id,
                                   .first = q->n_tokens - q->n_read,
                                   .n_tokens = n,
                                   .status = q->status};
    if (n)
        qs->evaluator->ops->read_mass(qs->evaluator, q->sequence, q->header.layer, answer->first, n,
                                      (float *)(void *)(answer + 1));
    shm_ring_publish(&c->io.rings[RING_SELECTION], RECORD_MASS, bytes);
    return 1;
}

int query_push(struct queries *qs, const struct query *q)
{
    return q->what == QUERY_SELECTS ? push_selection(qs->core, q)
           : q->what == QUERY_READS ? push_entries(qs->core, q)
                                    : push_mass(qs, q);
}

void query_trace(struct core *c, struct query *q)
{
    const struct sequence *s = q->sequence;
    const struct answer *a = &q->answer;
    for (uint32_t i = 0; i < a->n_items; i++) {
        const struct answer_item *item = &a->items[i];
        a->slots[i] = item->position | (hkm_tag(item->location) == HKM_COLD ? TRACE_COLD : 0) |
                      (item->flags & (ANSWER_UPLOAD | ANSWER_IN_PLACE) ? 0 : TRACE_GPU);
    }
    bool scored = c->io.trace_scores && query_is_evaluated(c, q);
    struct trace_query query = {.request = s->request_id,
                                .sequence = s->index,
                                .step = q->header.step,
                                .layer = q->header.layer,
                                .n_tokens = q->n_tokens,
                                .n_selected = a->n_items,
                                .words = a->slots,
                                .scores = scored ? kv_selector_scores(q->selector) : NULL};
    int rc = trace_query(c->io.trace, &query);
    if (rc == 0)
        return;
    log_error("writing the KV trace failed: %s; going on without one", hill_strerror(rc));
    c->io.trace = NULL;
}
