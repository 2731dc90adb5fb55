/* proto/worker_trace.c - see worker_trace.h. */
#include "proto/worker_trace.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/stage_trace.h"

/* The control thread's alone. */
static int64_t lease_until_ns; /* 0: tracing is off */

static void switch_off(void)
{
    lease_until_ns = 0;
    stage_trace_switch(false); /* off never fails */
}

/* Everything that is unread, as one message. */
static void answer(struct worker_link *link, worker_trace_send *send, Hill__Role role,
                   uint32_t serial, int code)
{
    Hill__TraceAnswer body = HILL__TRACE_ANSWER__INIT;
    struct stage_event *events = malloc(STAGE_RING_EVENTS * sizeof *events);
    uint64_t lost = 0;
    uint32_t n = events ? stage_trace_take(events, STAGE_RING_EVENTS, &lost) : 0;
    body.role = role;
    body.pid = getpid();
    body.serial = serial;
    body.events.data = (uint8_t *)events;
    body.events.len = n * sizeof *events;
    body.lost = lost;
    body.code = code ? code : events ? 0 : HILL_E_NOMEM;
    if (send(link, &PROTO_MESSAGE(TRACE_ANSWER, trace_answer, &body)))
        log_warn("stage events were not sent: out of memory");
    free(events);
}

bool worker_trace_take(struct worker_link *link, worker_trace_send *send, Hill__Role role,
                       Hill__Message *message)
{
    if (message->body_case != HILL__MESSAGE__BODY_TRACE_REQUEST)
        return false;
    const Hill__TraceRequest *request = message->trace_request;
    int code = 0;
    if (request->on) {
        code = stage_trace_switch(true);
        lease_until_ns = clock_deadline_ms(WORKER_TRACE_LEASE_MS);
    } else {
        switch_off();
    }
    answer(link, send, role, request->serial, code);
    proto_free(message);
    return true;
}

void worker_trace_tick(int64_t now_ns)
{
    if (lease_until_ns && now_ns >= lease_until_ns)
        switch_off();
}
