/*
 * cpu_scorer/admission.h - may a request begin: everything that it needs is set aside, or nothing.
 *
 * What: hot blocks, cold stripes, staging and GPU slots for max_tokens tokens, so that nothing is
 * refused in mid-request [I15]. Who calls it: requests.c. Failure: a code and one line with the
 * numbers. HILL_E_BUSY: it fits once others have ended; HILL_E_TOO_LONG: it never does.
 */
#pragma once

#include "cpu_scorer/agent_port.h"

/* What needs no look at the tiers: limits of the pipeline, staging, an agent that answers. */
int admission_check(const struct core *core, const struct agent *agent, const struct sequence *s,
                    struct hill_why *why);

/* Of a sequence that is free. identity: of one that is kept, or 0. */
int admission_begin(struct core *core, const struct agent *agent, struct sequence *s,
                    uint64_t identity, struct hill_why *why);
/* Could it, if all that is kept were given up: what rests, but for what others have asked for, and
 * what an earlier epoch has left? 0 or why not; nothing changes. */
int admission_beside_running(const struct core *core, const struct agent *agent,
                             const struct record_seq_begin *r);
/* Of one that rests, to go on with n_tokens: room for the new request beside what is there. */
int admission_grow(struct core *core, const struct agent *agent, struct sequence *s,
                   uint32_t n_tokens, struct hill_why *why);
/* Staging alone: what an earlier epoch left has the rest. */
void admission_take_staging(struct core *core, struct sequence *s);
