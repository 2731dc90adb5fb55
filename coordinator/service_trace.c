/*
 * coordinator/service_trace.c - stage events: a client's request to every worker, their answers
 * back to it.
 *
 * What: one client at a time watches; it has the watch until all workers have answered that it
 * is off, or until it was silent for TRACE_LEASE_MS (the workers end by themselves then,
 * proto/worker_trace.h): so the next client gets none of its events. The coordinator's own answer
 * goes first and says how many workers were asked, and which request has had which sequence since
 * when: events name sequences alone. No event is kept here. Who calls it: service.c,
 * service_requests.c (turns). Failure: a worker that cannot be reached is not counted; an answer
 * that nobody waits for is dropped.
 */
#include "coordinator/service.h"

#include <unistd.h>

#include "base/clock.h"

#define TRACE_LEASE_MS 5000
#define TRACE_OFF_MS   1000 /* for the last answers, from workers that may be gone */

static uint32_t ask_workers(struct service *sv, const Hill__TraceRequest *request)
{
    Hill__TraceRequest copy = *request;
    uint32_t asked = 0;
    Hill__Message message = PROTO_MESSAGE(TRACE_REQUEST, trace_request, &copy);
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&sv->supervisor->workers.rows[w]) &&
            router_to_worker(sv->router, w, &message) == 0)
            asked++;
    return asked;
}

void trace_note_turn(struct service *sv, uint32_t sequence, uint64_t request)
{
    struct trace_turns *turns = &sv->turns[sequence];
    int64_t now = clock_now_ns();
    int64_t last = turns->n ? turns->of[(turns->n - 1) % TRACE_TURNS].since_ns : 0;
    turns->of[turns->n % TRACE_TURNS].request = request;
    turns->of[turns->n++ % TRACE_TURNS].since_ns = now > last ? now : last + 1;
}

struct turns_told {
    Hill__SequenceTurn turns[REQUEST_PARALLEL_MAX * TRACE_TURNS];
    Hill__SequenceTurn *list[REQUEST_PARALLEL_MAX * TRACE_TURNS];
    size_t n;
};

static void tell_turns(const struct service *sv, struct turns_told *told)
{
    told->n = 0;
    for (uint32_t sequence = 0; sequence < sv->book.parallel; sequence++) {
        const struct trace_turns *turns = &sv->turns[sequence];
        uint64_t i = turns->n > TRACE_TURNS ? turns->n - TRACE_TURNS : 0;
        for (; i < turns->n; i++) {
            Hill__SequenceTurn *to = told->list[told->n] = &told->turns[told->n];
            told->n++;
            hill__sequence_turn__init(to);
            to->request_id = turns->of[i % TRACE_TURNS].request;
            to->sequence = sequence;
            to->since_ns = turns->of[i % TRACE_TURNS].since_ns;
        }
    }
}

void trace_ask(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct proto_address *from = &a->from;
    const Hill__TraceRequest *request = a->message->trace_request;
    int64_t now = clock_now_ns();
    if (sv->supervisor->ending) {
        router_reply(sv->router, from, HILL_E_PEER_GONE, "the pipeline is ending");
        return;
    }
    if (now < sv->trace_until_ns && !proto_same_address(from, &sv->trace_client)) {
        router_reply(sv->router, from, HILL_E_BUSY, "another hillctl trace is under way");
        return;
    }
    sv->trace_client = *from;
    sv->trace_until_ns = now + CLOCK_MS(request->on ? TRACE_LEASE_MS : TRACE_OFF_MS);
    Hill__TraceAnswer answer = HILL__TRACE_ANSWER__INIT;
    struct turns_told told;
    tell_turns(sv, &told);
    answer.turns = told.list;
    answer.n_turns = told.n;
    answer.role = HILL__ROLE__ROLE_COORDINATOR;
    answer.pid = (int32_t)getpid();
    answer.serial = request->serial;
    answer.expected = ask_workers(sv, request);
    sv->trace_serial = request->serial;
    sv->trace_owed = answer.expected;
    sv->trace_ending = !request->on;
    if (sv->trace_ending && !sv->trace_owed)
        sv->trace_until_ns = 0;
    router_to_client(sv->router, from, &PROTO_MESSAGE(TRACE_ANSWER, trace_answer, &answer));
}

void trace_pass_on(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    if (clock_now_ns() >= sv->trace_until_ns)
        return; /* late: whoever watches next is not to have it */
    router_to_client(sv->router, &sv->trace_client, a->message);
    if (a->message->trace_answer->serial == sv->trace_serial && sv->trace_owed)
        sv->trace_owed--;
    if (sv->trace_ending && !sv->trace_owed)
        sv->trace_until_ns = 0;
}
