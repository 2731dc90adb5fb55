/*
 * coordinator/serve_trace.c - stage events: a client's request to every worker, their answers back
 * to it.
 *
 * What: one client at a time watches; it has the watch until it switches it off or was silent for
 * TRACE_LEASE_MS (the workers end by themselves then, proto/worker_trace.h). The coordinator's own
 * answer goes first and says how many workers were asked. Nothing is kept here. Who calls it:
 * serve_clients.c, serve_workers.c. Failure: a worker that cannot be reached is not counted; an
 * answer that nobody waits for is dropped.
 */
#include "coordinator/pipeline_internal.h"

#include <unistd.h>

#include "base/clock.h"

#define TRACE_LEASE_MS 5000

static uint32_t ask_workers(struct pipeline *p, const Hill__TraceRequest *request)
{
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__TraceRequest copy = *request;
    uint32_t asked = 0;
    message.body_case = HILL__MESSAGE__BODY_TRACE_REQUEST;
    message.trace_request = &copy;
    for (enum worker w = 0; w < WORKER_COUNT; w++)
        if (worker_running(&p->workers.rows[w]) && worker_send(p, w, &message) == 0)
            asked++;
    return asked;
}

void trace_ask(struct pipeline *p, const struct proto_address *from,
               const Hill__TraceRequest *request)
{
    int64_t now = clock_now_ns();
    if (p->ending) {
        client_reply(p, from, HILL_E_PEER_GONE, "the pipeline is ending");
        return;
    }
    if (now < p->trace_until_ns && !proto_same_address(from, &p->trace_client)) {
        client_reply(p, from, HILL_E_BUSY, "another hillctl trace is under way");
        return;
    }
    p->trace_client = *from;
    p->trace_until_ns = request->on ? now + CLOCK_MS(TRACE_LEASE_MS) : 0;
    Hill__Message message = HILL__MESSAGE__INIT;
    Hill__TraceAnswer answer = HILL__TRACE_ANSWER__INIT;
    answer.role = HILL__ROLE__ROLE_COORDINATOR;
    answer.pid = (int32_t)getpid();
    answer.serial = request->serial;
    answer.expected = ask_workers(p, request);
    message.body_case = HILL__MESSAGE__BODY_TRACE_ANSWER;
    message.trace_answer = &answer;
    proto_send(p->control_socket, from, &message);
}

void trace_pass_on(struct pipeline *p, const Hill__Message *message)
{
    if (p->trace_client.length)
        proto_send(p->control_socket, &p->trace_client, message);
}
