/* cpu_scorer/agent_port.c - see agent_port.h. */
#include "cpu_scorer/agent_port.h"

#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#define IDLE_NS CLOCK_MS(1000) /* the longest sleep: a wake-up a second costs nothing */
#define SPIN_NS                                                                                    \
    30000 /* in a query: a helper's last chunk is done by then, a wake-up would take longer */

void agent_init(struct agent *a, struct core *core)
{
    *a = (struct agent){.core = core, .next_tag = 1};
}

void agent_on(struct agent *a, uint32_t type, agent_handler *take, void *context)
{
    a->handlers[type].take = take;
    a->handlers[type].context = context;
}

/* ---- commands ------------------------------------------------------------------------------ */

int agent_reserve(struct agent *a, uint32_t bytes, void **payload)
{
    int rc = shm_ring_reserve(&a->core->io.rings[RING_COMMAND], bytes, payload);
    if (rc)
        return rc == HILL_E_PEER_GONE || rc == HILL_E_WOULD_BLOCK ? a->status : rc;
    return 1;
}

void agent_publish(struct agent *a, enum layout_ring ring, uint32_t type, uint32_t bytes)
{
    shm_ring_publish(&a->core->io.rings[ring], type, bytes);
    if (a->commands_open++ == 0)
        a->heard_ns = clock_now_ns();
}

uint64_t agent_tag(struct agent *a)
{
    return a->next_tag++ << 8;
}

int agent_push_slots(struct agent *a, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n)
{
    uint32_t bytes = (uint32_t)(sizeof(struct record_commit) + (uint64_t)n * sizeof(uint32_t));
    void *payload;
    int rc = shm_ring_reserve(&a->core->io.rings[RING_COMMAND], bytes, &payload);
    if (rc)
        return rc;
    struct record_header header = core_header(a->core, sequence, 0, layer);
    if (type == RECORD_COMMIT)
        *(struct record_commit *)payload =
            (struct record_commit){.header = header, .tag = agent_tag(a), .n_slots = n};
    else
        *(struct record_release *)payload =
            (struct record_release){.header = header, .tag = agent_tag(a), .n_slots = n};
    memcpy((uint8_t *)payload + sizeof(struct record_commit), slots, n * sizeof *slots);
    agent_publish(a, RING_COMMAND, type, bytes);
    return 0;
}

int agent_trim(struct agent *a, struct sequence *s)
{
    void *payload;
    if (shm_ring_reserve(&a->core->io.rings[RING_COMMAND], sizeof(struct record_trim), &payload))
        return HILL_E_WOULD_BLOCK;
    s->trim_tag = agent_tag(a);
    *(struct record_trim *)payload =
        (struct record_trim){.header = core_header(a->core, s->index, 0, 0), .tag = s->trim_tag};
    agent_publish(a, RING_COMMAND, RECORD_TRIM, sizeof(struct record_trim));
    FAULT_POINT(cpu_scorer, trim, pushed);
    return 0;
}

/* ---- what comes back ----------------------------------------------------------------------- */

/* A COMMIT or RELEASE; of a request that is still the one that sent it. One that is being cut has
 * not begun: it begins anew. */
static void take_commit(struct agent *a, const struct record_completion *r)
{
    struct sequence *s = &a->core->sequences[r->header.sequence];
    if (!r->status || r->tag >> 8 < s->first_tag)
        return;
    if (s->state == SEQUENCE_CUTTING)
        s->status = r->status;
    else if (s->state == SEQUENCE_ACTIVE)
        core_fail(a->core, s, r->status, "committing entries of layer %u in the cold pool",
                  r->header.layer);
}

static void take_completion(struct agent *a, const struct record_completion *r)
{
    struct sequence *s = &a->core->sequences[r->header.sequence];
    if (a->commands_open)
        a->commands_open--;
    if (s->state == SEQUENCE_ACTIVE) {
        s->stats.flash_read_bytes += r->flash_read_bytes;
        s->stats.flash_write_bytes += r->flash_write_bytes;
        s->stats.link_key_bytes += r->link_key_bytes;
        s->stats.link_kv_bytes += r->command == RECORD_FETCH ? r->link_kv_bytes : 0;
        s->stats.fetch_cold_ns += r->command == RECORD_FETCH ? (int64_t)r->busy_ns : 0;
    }
    if (r->command < AGENT_TYPES && a->handlers[r->command].take)
        a->handlers[r->command].take(a->handlers[r->command].context, r);
    else
        take_commit(a, r);
}

static void take_scores(struct agent *a, const struct record_score_block *b)
{
    struct sequence *s = &a->core->sequences[b->header.sequence];
    if (s->state == SEQUENCE_ACTIVE)
        s->stats.link_score_bytes += (uint64_t)b->n * sizeof(struct score_tuple);
    if (a->handlers[RECORD_SCORE_BLOCK].take)
        a->handlers[RECORD_SCORE_BLOCK].take(a->handlers[RECORD_SCORE_BLOCK].context, b);
    else
        a->core->dropped_records++;
}

/* Account for every byte of a record from the agent, whatever it is. */
static void count_link(struct agent *a, uint32_t type, const void *payload, uint32_t bytes,
                       bool accepted)
{
    uint64_t known = 0;
    const struct record_score_block *b = payload;
    if (accepted && type == RECORD_COMPLETION)
        known = sizeof(struct record_completion);
    else if (accepted && type == RECORD_SCORE_BLOCK)
        known = sizeof *b + (uint64_t)b->n * sizeof(struct score_tuple);
    a->control_bytes += type == RECORD_SCORE_BLOCK && accepted ? sizeof *b : known;
    if (bytes <= known)
        return;
    /* nobody's in particular: every request under way is told */
    for (uint32_t i = 0; i < a->core->config.n_sequences; i++)
        if (a->core->sequences[i].state == SEQUENCE_ACTIVE)
            a->core->sequences[i].stats.link_key_bytes += bytes - known;
}

static int drain(struct agent *a, enum layout_ring which)
{
    struct shm_ring_end *ring = &a->core->io.rings[which];
    uint32_t expected = which == RING_SCORE ? RECORD_SCORE_BLOCK : RECORD_COMPLETION;
    int moved = 0;
    for (;;) {
        uint32_t type, bytes;
        const void *payload;
        int rc = shm_ring_peek(ring, &type, &payload, &bytes);
        if (rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE)
            return moved;
        if (rc)
            return rc;
        bool accepted = core_accept(a->core, type, payload, bytes) && type == expected;
        count_link(a, type, payload, bytes, accepted);
        a->heard_ns = clock_now_ns();
        if (accepted && which == RING_SCORE)
            take_scores(a, payload);
        else if (accepted)
            take_completion(a, payload);
        shm_ring_release(ring);
        moved = 1;
    }
}

int agent_pump(struct agent *a)
{
    if (!a->core->config.csd)
        return 0;
    int completions = drain(a, RING_COMPLETION);
    /* second: the scores of a query were published before its completion, so they are all there now
     */
    int scores = completions < 0 ? 0 : drain(a, RING_SCORE);
    if (completions < 0 || scores < 0)
        return completions < 0 ? completions : scores;
    return completions | scores;
}

/* ---- silence ------------------------------------------------------------------------------- */

static void check_deadline(struct agent *a)
{
    struct core *c = a->core;
    if (!a->commands_open || a->status ||
        clock_now_ns() < a->heard_ns + c->config.agent_deadline_ns)
        return;
    a->status = HILL_E_TIMEOUT;
    log_error("the CSD agent left %u commands unanswered for %lld ms; requests that need it fail "
              "until it is replaced",
              a->commands_open, (long long)(c->config.agent_deadline_ns / 1000000));
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        struct sequence *s = &c->sequences[i];
        if (s->state == SEQUENCE_ACTIVE &&
            c->tiers.cold.lists[tiers_list(&c->tiers, i, 0)].n_stripes)
            core_fail(c, s, HILL_E_TIMEOUT, "waiting for the CSD agent");
    }
}

int agent_pause(struct agent *a, uint32_t seen, int64_t due_ns, bool busy)
{
    const struct core *c = a->core;
    if (c->hooks.interrupted(c->hooks.context))
        return HILL_E_CANCELLED;
    shm_ring_flush(&c->io.rings[RING_SELECTION]);
    check_deadline(a);
    int64_t deadline = clock_now_ns() + IDLE_NS;
    if (a->commands_open && !a->status) {
        int64_t answer = a->heard_ns + c->config.agent_deadline_ns;
        deadline = answer < deadline ? answer : deadline;
    }
    if (due_ns && due_ns < deadline)
        deadline = due_ns;
    /* a timeout is only another look */
    shm_doorbell_wait(c->io.bell, seen, deadline, busy ? SPIN_NS : 0);
    return c->hooks.interrupted(c->hooks.context) ? HILL_E_CANCELLED : 0;
}
