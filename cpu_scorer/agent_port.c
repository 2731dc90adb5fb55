/* cpu_scorer/agent_port.c - see agent_port.h. */
#include "cpu_scorer/agent_port.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"

#define IDLE_NS CLOCK_MS(1000) /* the longest sleep: a wake-up a second costs nothing */
/* In a query a helper's last chunk is done by then; between two queries of a step the GPU worker's
 * threads have the CPUs meanwhile (shm/doorbell.h). A wake-up would take longer. */
#define SPIN_NS 100000

/* Is there a drive in this place? */
static bool is_there(const struct agent *a, uint32_t drive)
{
    return a->n_drives == 1 || a->core->config.drives[drive].n_stripes;
}

void agent_init(struct agent *a, struct core *core)
{
    *a = (struct agent){.core = core,
                        .next_tag = 1,
                        .n_drives = core->config.n_drives > 1 ? core->config.n_drives : 1};
    for (uint32_t d = 0; d < a->n_drives; d++)
        a->n_there += is_there(a, d);
}

void agent_on(struct agent *a, uint32_t type, agent_handler *take, void *context)
{
    a->handlers[type].take = take;
    a->handlers[type].context = context;
}

/* ---- commands ------------------------------------------------------------------------------ */

struct shm_ring_end *agent_ring(const struct agent *a, uint32_t drive, enum layout_ring ring)
{
    return &a->core->io.rings[layout_ring_of(ring, drive)];
}

int agent_reserve(struct agent *a, uint32_t drive, uint32_t bytes, void **payload)
{
    int rc = shm_ring_reserve(agent_ring(a, drive, RING_COMMAND), bytes, payload);
    if (rc)
        return rc == HILL_E_PEER_GONE || rc == HILL_E_WOULD_BLOCK ? a->status : rc;
    return 1;
}

void agent_publish(struct agent *a, uint32_t drive, enum layout_ring ring, uint32_t type,
                   uint32_t bytes)
{
    struct agent_line *line = &a->lines[drive];
    shm_ring_publish(agent_ring(a, drive, ring), type, bytes);
    if (line->commands_open++ == 0)
        line->heard_ns = line->done_ns = clock_now_ns();
}

uint64_t agent_tag(struct agent *a)
{
    return a->next_tag++ << 8;
}

uint32_t agent_fetch_max(const struct agent *a, uint32_t drive)
{
    uint32_t ring = shm_ring_payload_max(agent_ring(a, drive, RING_COMMAND));
    uint32_t most =
        (ring - (uint32_t)sizeof(struct record_fetch)) / (uint32_t)sizeof(struct fetch_item);
    return most < LAYOUT_FETCH_ITEMS_MAX ? most : LAYOUT_FETCH_ITEMS_MAX;
}

bool agent_has_room(struct agent *a, uint32_t bytes)
{
    void *payload;
    for (uint32_t d = 0; d < a->n_drives; d++)
        if (is_there(a, d) && shm_ring_reserve(agent_ring(a, d, RING_COMMAND), bytes, &payload))
            return false;
    return true;
}

static uint32_t slots_bytes(uint32_t n)
{
    return (uint32_t)(sizeof(struct record_commit) + (uint64_t)n * sizeof(uint32_t));
}

/* The part of a COMMIT or RELEASE that is this drive's, n slots; their room is there. */
static int push_part(struct agent *a, uint32_t drive, uint32_t type, struct record_header header,
                     const uint32_t *slots, uint32_t n_slots, uint32_t n)
{
    void *payload;
    int rc = shm_ring_reserve(agent_ring(a, drive, RING_COMMAND), slots_bytes(n), &payload);
    if (rc)
        return rc;
    if (type == RECORD_COMMIT)
        *(struct record_commit *)payload =
            (struct record_commit){.header = header, .tag = agent_tag(a), .n_slots = n};
    else
        *(struct record_release *)payload =
            (struct record_release){.header = header, .tag = agent_tag(a), .n_slots = n};
    uint32_t *out = (uint32_t *)((uint8_t *)payload + sizeof(struct record_commit));
    for (uint32_t i = 0; i < n_slots; i++)
        if (agent_drive(a, slots[i]) == drive)
            *out++ = agent_slot(a, slots[i]);
    agent_publish(a, drive, RING_COMMAND, type, slots_bytes(n));
    return 0;
}

int agent_push_slots(struct agent *a, uint32_t type, uint32_t sequence, uint32_t layer,
                     const uint32_t *slots, uint32_t n)
{
    const struct record_header header = core_header(a->core, sequence, 0, layer);
    uint32_t each[LAYOUT_DRIVES_MAX] = {0};
    void *payload;
    int rc = 0;
    for (uint32_t i = 0; i < n; i++)
        each[agent_drive(a, slots[i])]++;
    for (uint32_t d = 0; rc == 0 && d < a->n_drives; d++)
        if (each[d] && each[d] < n) /* else: it is the only one */
            rc = shm_ring_reserve(agent_ring(a, d, RING_COMMAND), slots_bytes(each[d]), &payload);
    for (uint32_t d = 0; rc == 0 && d < a->n_drives; d++)
        if (each[d])
            rc = push_part(a, d, type, header, slots, n, each[d]);
    return rc;
}

static int push_trim(struct agent *a, const struct sequence *s, uint32_t drive, uint64_t tag)
{
    void *payload;
    if (shm_ring_reserve(agent_ring(a, drive, RING_COMMAND), sizeof(struct record_trim), &payload))
        return HILL_E_WOULD_BLOCK;
    *(struct record_trim *)payload =
        (struct record_trim){.header = core_header(a->core, s->index, 0, 0), .tag = tag};
    agent_publish(a, drive, RING_COMMAND, RECORD_TRIM, sizeof(struct record_trim));
    return 0;
}

int agent_trim(struct agent *a, struct sequence *s)
{
    if (a->n_drives > 1 && !agent_has_room(a, sizeof(struct record_trim)))
        return HILL_E_WOULD_BLOCK;
    s->trims = 0;
    for (uint32_t d = 0; d < a->n_drives; d++) {
        if (!is_there(a, d))
            continue;
        if (push_trim(a, s, d, a->next_tag << 8))
            return HILL_E_WOULD_BLOCK; /* the only one */
        s->trims |= 1u << d;
    }
    s->trim_tag = agent_tag(a);
    FAULT_POINT(cpu_scorer, trim, pushed);
    return 0;
}

int agent_trim_drive(struct agent *a, struct sequence *s, uint32_t drive)
{
    if (push_trim(a, s, drive, a->next_tag << 8))
        return HILL_E_WOULD_BLOCK;
    agent_tag(a); /* it is used */
    FAULT_POINT(cpu_scorer, trim, pushed);
    return 0;
}

void agent_leave(struct agent *a, uint32_t drive)
{
    a->core->config.drives[drive].n_stripes = 0;
    a->n_there--;
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

#define COST_ENTRIES 4096.0 /* older ones count less and less */
#define COST_LEAST   64.0   /* before a cost is known */

static void note_cost(struct agent_cost *cost, const struct record_completion *r)
{
    if (r->status || r->detail) /* detail: a fetch that was read before it was taken */
        return;
    if (cost->entries >= COST_ENTRIES)
        *cost = (struct agent_cost){cost->ns / 2, cost->entries / 2};
    cost->ns += (double)r->busy_ns;
    cost->entries += r->count;
}

double agent_write_cost(const struct agent *a)
{
    const struct agent_cost *w = &a->writes, *f = &a->fetches;
    if (w->entries < COST_LEAST || f->entries < COST_LEAST || !(f->ns > 0))
        return 0;
    return w->ns / w->entries / (f->ns / f->entries);
}

void agent_count(struct sequence *s, const struct record_completion *r, uint32_t part,
                 uint32_t whole)
{
    if (s->state != SEQUENCE_ACTIVE)
        return;
    s->stats.flash_read_bytes += r->flash_read_bytes * part / whole;
    s->stats.flash_write_bytes += r->flash_write_bytes * part / whole;
    s->stats.link_key_bytes += r->link_key_bytes * part / whole;
    if (r->command == RECORD_FETCH)
        s->stats.link_kv_bytes += r->link_kv_bytes * part / whole;
}

void agent_count_time(const struct agent *a, struct sequence *s, const struct record_completion *r,
                      uint32_t part, uint32_t whole)
{
    int64_t ns = (int64_t)(r->busy_ns * part / whole);
    if (s->state != SEQUENCE_ACTIVE)
        return;
    s->stats.fetch_cold_ns += ns / a->n_there; /* they are at it at the same time */
    s->stats.drives[a->from].fetch_ns += ns;
}

int64_t agent_began(const struct agent *a, const struct record_completion *r, int64_t since)
{
    const struct agent_line *line = &a->lines[a->from];
    int64_t says = line->heard_ns - (int64_t)r->busy_ns;
    /* a move that ended after this was begun went on beside it */
    int64_t moved = line->moved_ns < says ? line->moved_ns : says;
    int64_t began = moved > line->done_ns ? moved : line->done_ns;
    return began > since ? began : since;
}

static bool reads_for_query(uint32_t command)
{
    return command == RECORD_AGENT_QUERY || command == RECORD_FETCH || command == RECORD_READ_KEYS;
}

static void take_completion(struct agent *a, const struct record_completion *r)
{
    struct agent_line *line = &a->lines[a->from];
    struct sequence *s = &a->core->sequences[r->header.sequence];
    if (line->commands_open)
        line->commands_open--;
    if (r->command == RECORD_FETCH)
        note_cost(&a->fetches, r);
    else if (r->command == RECORD_DEMOTE)
        note_cost(&a->writes, r);
    if (r->command != RECORD_FETCH)
        agent_count(s, r, 1, 1);
    if (r->command < AGENT_TYPES && a->handlers[r->command].take)
        a->handlers[r->command].take(a->handlers[r->command].context, r);
    else
        take_commit(a, r);
    *(reads_for_query(r->command) ? &line->done_ns : &line->moved_ns) = line->heard_ns;
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

/* Of a->from. */
static int drain(struct agent *a, enum layout_ring which)
{
    struct shm_ring_end *ring = agent_ring(a, a->from, which);
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
        a->lines[a->from].heard_ns = clock_now_ns();
        if (accepted && which == RING_SCORE)
            take_scores(a, payload);
        else if (accepted)
            take_completion(a, payload);
        shm_ring_release(ring);
        moved = 1;
    }
}

static int pump_line(struct agent *a)
{
    int completions = drain(a, RING_COMPLETION);
    /* second: the scores of a query were published before its completion, so they are all there now
     */
    int scores = completions < 0 ? 0 : drain(a, RING_SCORE);
    if (completions < 0 || scores < 0)
        return completions < 0 ? completions : scores;
    return completions | scores;
}

int agent_pump(struct agent *a)
{
    int moved = 0;
    if (!a->core->config.csd)
        return 0;
    for (a->from = 0; a->from < a->n_drives; a->from++) {
        int rc = is_there(a, a->from) ? pump_line(a) : 0;
        if (rc < 0)
            return rc;
        moved |= rc;
    }
    a->from = 0;
    return moved;
}

/* ---- silence ------------------------------------------------------------------------------- */

/* When the next agent is given up; 0: none has anything to answer. */
static int64_t first_deadline(const struct agent *a, uint32_t *drive)
{
    int64_t first = 0;
    for (uint32_t d = 0; d < a->n_drives; d++)
        if (a->lines[d].commands_open && (!first || a->lines[d].heard_ns < first)) {
            first = a->lines[d].heard_ns;
            *drive = d;
        }
    return first ? first + a->core->config.agent_deadline_ns : 0;
}

static void check_deadline(struct agent *a)
{
    struct core *c = a->core;
    uint32_t drive = 0;
    int64_t deadline = first_deadline(a, &drive);
    char which[32] = "";
    if (!deadline || a->status || clock_now_ns() < deadline)
        return;
    a->status = HILL_E_TIMEOUT;
    if (a->n_drives > 1)
        snprintf(which, sizeof which, " of drive %u", drive + 1);
    log_error("the CSD agent%s left %u commands unanswered for %lld ms; requests that need it fail "
              "until it is replaced",
              which, a->lines[drive].commands_open,
              (long long)(c->config.agent_deadline_ns / 1000000));
    for (uint32_t i = 0; i < c->config.n_sequences; i++) {
        struct sequence *s = &c->sequences[i];
        if (s->state == SEQUENCE_ACTIVE &&
            cold_map_stripes(&c->tiers.cold, tiers_list(&c->tiers, i, 0)))
            core_fail(c, s, HILL_E_TIMEOUT, "waiting for the CSD agent");
    }
}

int agent_pause(struct agent *a, uint32_t seen, int64_t due_ns)
{
    const struct core *c = a->core;
    if (c->hooks.interrupted(c->hooks.context))
        return HILL_E_CANCELLED;
    shm_ring_flush(&c->io.rings[RING_SELECTION]);
    check_deadline(a);
    int64_t deadline = clock_now_ns() + IDLE_NS;
    uint32_t drive;
    int64_t answer = a->status ? 0 : first_deadline(a, &drive);
    if (answer && answer < deadline)
        deadline = answer;
    if (due_ns && due_ns < deadline)
        deadline = due_ns;
    /* a timeout is only another look */
    shm_doorbell_wait(c->io.bell, seen, deadline, SPIN_NS);
    return c->hooks.interrupted(c->hooks.context) ? HILL_E_CANCELLED : 0;
}
