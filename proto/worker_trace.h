/*
 * proto/worker_trace.h - a worker's answers to TraceRequest: its stage events (base/stage_trace.h).
 *
 * Who calls it: worker_link.c's control thread, which thereby is the events' one reader; no data
 * loop takes part. Failure: without memory the answer carries a code and no events; whoever asked
 * may die: tracing ends by itself WORKER_TRACE_LEASE_MS after the last request.
 */
#pragma once

#include "proto/worker_link.h"

#define WORKER_TRACE_LEASE_MS 5000

/* worker_link_send, handed in so that calls go one way: from the link to here. */
typedef int worker_trace_send(struct worker_link *link, const Hill__Message *message);

/* Answer the message when it is a TraceRequest: true, and the message is freed. */
bool worker_trace_take(struct worker_link *link, worker_trace_send *send, Hill__Role role,
                       Hill__Message *message);

/* Now and then: end what nobody asks for any more. */
void worker_trace_tick(int64_t now_ns);
