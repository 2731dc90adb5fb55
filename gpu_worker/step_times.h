/*
 * gpu_worker/step_times.h - the typical step of a request: medians of the times between its tokens
 * and of what of them was waiting for selections.
 *
 * What: the newest STEP_TIMES steps are kept. A mean is spoilt by one hiccup of the machine, a
 * median is not. Who calls it: request.c. Concurrency: one thread. Failure: none; 0 where there was
 * no step.
 */
#pragma once

#include <stdint.h>

#define STEP_TIMES 256u

struct step_times {
    uint32_t n; /* steps so far */
    float token_ms[STEP_TIMES], idle_ms[STEP_TIMES];
};

void step_times_add(struct step_times *t, int64_t token_ns, int64_t idle_ns);
double step_times_token_ms(const struct step_times *t);
double step_times_idle_ms(const struct step_times *t);
