/* hillctl/trace_json.c - see trace_json.h. */
#include "hillctl/trace_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

enum flow_place { FLOW_NONE, FLOW_START, FLOW_STEP, FLOW_END };

/* ---- collecting --------------------------------------------------------------------------- */

static uint32_t process_of(struct trace_collection *c, const Hill__TraceAnswer *answer)
{
    for (uint32_t i = 0; i < c->n_processes; i++)
        if (c->processes[i].pid == answer->pid && c->processes[i].role == answer->role)
            return i;
    if (c->n_processes == TRACE_PROCESSES_MAX)
        return TRACE_PROCESSES_MAX;
    c->processes[c->n_processes] =
        (struct traced_process){.role = answer->role, .pid = answer->pid};
    return c->n_processes++;
}

static void add_turn(struct trace_collection *c, uint32_t sequence, uint64_t request,
                     int64_t since_ns)
{
    c->known_ns[sequence] = since_ns;
    c->turns[c->n_turns++] = (struct traced_turn){request, since_ns, sequence};
}

/* Those that are new: each answer has a sequence's newest ones, in order. Where the newest that is
 * known is not among them, others were lost behind it: whose the spans were is not known. */
static int collect_turns(struct trace_collection *c, const Hill__TraceAnswer *answer)
{
    if (!GROW(c->turns, c->turns_room, c->n_turns + 2 * answer->n_turns))
        return HILL_E_NOMEM;
    for (size_t i = 0; i < answer->n_turns; i++) {
        const Hill__SequenceTurn *turn = answer->turns[i];
        bool oldest = i == 0 || answer->turns[i - 1]->sequence != turn->sequence;
        int64_t known_ns = c->known_ns[turn->sequence];
        if (turn->since_ns <= known_ns)
            continue;
        if (oldest && known_ns > 0 && known_ns + 1 < turn->since_ns)
            add_turn(c, turn->sequence, 0, known_ns + 1);
        add_turn(c, turn->sequence, turn->request_id, turn->since_ns);
    }
    return 0;
}

int trace_collect(struct trace_collection *c, const Hill__TraceAnswer *answer)
{
    if (answer->role == HILL__ROLE__ROLE_COORDINATOR)
        return collect_turns(c, answer);
    uint32_t n = (uint32_t)(answer->events.len / sizeof(struct stage_event));
    uint32_t process = process_of(c, answer), room = TRACE_EVENTS_MAX - c->n_events;
    uint32_t taken = process == TRACE_PROCESSES_MAX ? 0 : n < room ? n : room;
    if (!GROW(c->events, c->capacity, c->n_events + taken))
        return HILL_E_NOMEM;
    c->lost += answer->lost;
    c->dropped += n - taken;
    if (process < TRACE_PROCESSES_MAX) {
        c->processes[process].events += taken;
        c->processes[process].lost += answer->lost;
    }
    for (uint32_t i = 0; i < taken; i++) {
        struct traced_event *to = &c->events[c->n_events++];
        *to = (struct traced_event){.process = process};
        memcpy(&to->event, answer->events.data + (size_t)i * sizeof to->event, sizeof to->event);
    }
    return 0;
}

void trace_collection_finish(struct trace_collection *c)
{
    free(c->events);
    free(c->turns);
    memset(c, 0, sizeof *c);
}

/* ---- flows -------------------------------------------------------------------------------- */

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* A span that contains another begins before it, or ends after it. */
static int by_start(const void *a, const void *b)
{
    const struct stage_event *x = &((const struct traced_event *)a)->event;
    const struct stage_event *y = &((const struct traced_event *)b)->event;
    int order = compare(x->start_ns, y->start_ns);
    return order ? order : compare(y->end_ns, x->end_ns);
}

static int by_query(const void *a, const void *b)
{
    const struct traced_event *x = *(struct traced_event *const *)a;
    const struct traced_event *y = *(struct traced_event *const *)b;
    int order = compare(x->event.sequence, y->event.sequence);
    if (!order)
        order = compare(x->event.step, y->event.step);
    if (!order)
        order = compare(x->event.layer, y->event.layer);
    return order ? order : compare(x->event.start_ns, y->event.start_ns);
}

static bool same_query(const struct stage_event *a, const struct stage_event *b)
{
    return a->sequence == b->sequence && a->step == b->step && a->layer == b->layer;
}

/* Spans of one query, in the order of their starts: one flow, when there is something to join. */
static void join(struct traced_event **spans, uint32_t n, uint32_t *flows)
{
    if (n < 2)
        return;
    ++*flows;
    for (uint32_t i = 0; i < n; i++) {
        spans[i]->flow = *flows;
        spans[i]->place = i == 0 ? FLOW_START : i + 1 == n ? FLOW_END : FLOW_STEP;
    }
}

/* Step 0 is the prefill, whose records are no queries. Another request on the same sequence counts
 * its steps anew: a flow begins at every span of stage query. */
static int find_flows(struct trace_collection *c)
{
    struct traced_event **spans = malloc((c->n_events ? c->n_events : 1) * sizeof *spans);
    uint32_t flows = 0;
    if (!spans)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < c->n_events; i++)
        spans[i] = &c->events[i];
    qsort(spans, c->n_events, sizeof *spans, by_query);
    for (uint32_t first = 0, next; first < c->n_events; first = next) {
        next = first + 1;
        while (next < c->n_events && same_query(&spans[first]->event, &spans[next]->event) &&
               spans[next]->event.stage != STAGE_query)
            next++;
        if (spans[first]->event.step > 0)
            join(spans + first, next - first, &flows);
    }
    free(spans);
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Track numbers are unique over the processes: some viewers want that. */
static uint32_t track_of(const struct traced_event *e)
{
    return (e->process + 1) * 100 + e->event.stage;
}

static void separate(FILE *out, bool *any)
{
    fputs(*any ? ",\n" : "\n", out);
    *any = true;
}

static void write_names(const struct trace_collection *c, const bool *used, FILE *out, bool *any)
{
    for (uint32_t p = 0; p < c->n_processes; p++) {
        const struct traced_process *process = &c->processes[p];
        separate(out, any);
        fprintf(out,
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":"
                "\"%s\"}}",
                (int)process->pid, proto_role_name(process->role));
        for (uint32_t s = 0; s < STAGE_COUNT; s++) {
            if (!used[p * STAGE_COUNT + s])
                continue;
            separate(out, any);
            fprintf(out,
                    "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%u,\"args\":{"
                    "\"name\":\"%s\"}}",
                    (int)process->pid, (p + 1) * 100 + s, stage_name(s));
        }
    }
}

static void write_flow(const struct traced_event *e, int pid, double start_us, FILE *out, bool *any)
{
    static const char *const phases[] = {[FLOW_START] = "s", [FLOW_STEP] = "t", [FLOW_END] = "f"};
    if (!e->flow)
        return;
    separate(out, any);
    fprintf(out,
            "{\"ph\":\"%s\",\"name\":\"query\",\"cat\":\"flow\",\"id\":%u,\"pid\":%d,\"tid\":%u,"
            "\"ts\":%.3f%s}",
            phases[e->place], e->flow, pid, track_of(e), start_us,
            e->place == FLOW_END ? ",\"bp\":\"e\"" : "");
}

static int by_beginning(const void *a, const void *b)
{
    const struct traced_turn *x = a, *y = b;
    return compare(x->since_ns, y->since_ns);
}

/* Whose each sequence is, at the spans' starts, which come in order. */
struct owners {
    uint64_t requests[KV_MAX_SEQUENCES];
    size_t next; /* turn that has not begun yet */
};

static uint64_t owner_of(struct owners *o, const struct trace_collection *c,
                         const struct stage_event *e)
{
    for (; o->next < c->n_turns && c->turns[o->next].since_ns <= e->start_ns; o->next++)
        o->requests[c->turns[o->next].sequence] = c->turns[o->next].request;
    return e->sequence < KV_MAX_SEQUENCES ? o->requests[e->sequence] : 0;
}

static void write_span(const struct trace_collection *c, const struct traced_event *e,
                       uint64_t request, FILE *out, bool *any)
{
    const struct stage_event *s = &e->event;
    int pid = (int)c->processes[e->process].pid;
    double start_us = (double)s->start_ns / 1e3;
    separate(out, any);
    fprintf(out,
            "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"stage\",\"pid\":%d,\"tid\":%u,\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{",
            stage_name(s->stage), pid, track_of(e), start_us,
            (double)(s->end_ns - s->start_ns) / 1e3);
    if (request)
        fprintf(out, "\"request\":%" PRIu64 ",", request);
    fprintf(out, "\"sequence\":%u,\"step\":%u,\"layer\":%u,\"bytes\":%" PRIu64 "}}", s->sequence,
            s->step, s->layer, s->bytes);
    write_flow(e, pid, start_us, out, any);
}

static void write_metadata(const struct trace_collection *c, FILE *out)
{
    fprintf(
        out,
        "\"otherData\":{\"writer\":\"hillctl %s\",\"clock\":\"CLOCK_MONOTONIC\",\"seconds\":%.3f,"
        "\"events\":%u,\"events_lost\":%" PRIu64 ",\"events_dropped\":%" PRIu64
        ",\"answers_missing\":%" PRIu64 ",\"rounds\":%u,\"processes\":[",
        HILL_VERSION, c->seconds, c->n_events, c->lost, c->dropped, c->unheard, c->rounds);
    for (uint32_t i = 0; i < c->n_processes; i++) {
        const struct traced_process *p = &c->processes[i];
        fprintf(out, "%s{\"role\":\"%s\",\"pid\":%d,\"events\":%" PRIu64 ",\"lost\":%" PRIu64 "}",
                i ? "," : "", proto_role_name(p->role), (int)p->pid, p->events, p->lost);
    }
    fputs("]}}\n", out);
}

int trace_write_json(struct trace_collection *c, FILE *out)
{
    bool used[TRACE_PROCESSES_MAX * STAGE_COUNT] = {false}, any = false;
    struct owners owners = {0};
    if (c->n_events)
        qsort(c->events, c->n_events, sizeof *c->events, by_start);
    if (c->n_turns)
        qsort(c->turns, c->n_turns, sizeof *c->turns, by_beginning);
    int code = find_flows(c);
    if (code != 0)
        return code;
    for (uint32_t i = 0; i < c->n_events; i++)
        used[c->events[i].process * STAGE_COUNT + c->events[i].event.stage] = true;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", out);
    write_names(c, used, out, &any);
    for (uint32_t i = 0; i < c->n_events; i++)
        write_span(c, &c->events[i], owner_of(&owners, c, &c->events[i].event), out, &any);
    fputs("\n],\n", out);
    write_metadata(c, out);
    return 0;
}
