/*
 * cpu_scorer/mass_sums.h - sums of attention mass over all queries of a (sequence, layer), as they
 * were after each of its newest steps.
 *
 * What: in the hot segment, so that they outlive the scorer: what the prompt has attended to comes
 * first, and each step's query writes its sums in place of the oldest of KV_MASS_STEPS; none is
 * changed afterwards. So a step that a death has interrupted has spoilt nothing, and a query that
 * is sent again makes the same sums again. Each has a checksum, which is looked at when a later
 * scorer goes on with them [I25]. Memory: counted in M_0 (kv/plan.h). Who calls it: the evaluator
 * of h2o, data thread alone. Failure: HILL_E_DAMAGED where a step's sums are not there any more.
 */
#pragma once

#include <stdint.h>

struct mass_sums {
    uint8_t *memory; /* of lists, stride bytes each (kv_plan_state_bytes) */
    uint64_t stride;
    uint32_t ctx_tokens;
};

/* A list begins: there are none. */
void mass_sums_clear(const struct mass_sums *m, uint32_t list);
/* The prompt's, in order from token 0 on, which are below ctx_tokens. What is no number, or
 * negative, counts as 0. */
void mass_sums_give(const struct mass_sums *m, uint32_t list, uint32_t first, uint32_t n,
                    const float *mass);

/* Those before a step; tokens from *n on have none. */
const float *mass_sums_before(const struct mass_sums *m, uint32_t list, uint32_t step, uint32_t *n);
/* Room for those after it, [ctx_tokens], to be filled in; then they count. */
float *mass_sums_begin(const struct mass_sums *m, uint32_t list, uint32_t step);
void mass_sums_end(const struct mass_sums *m, uint32_t list, const float *sums, uint32_t step,
                   uint32_t n);

/* The newest; tokens that have none: 0. */
void mass_sums_read(const struct mass_sums *m, uint32_t list, uint32_t first, uint32_t n,
                    float *mass);

/* An earlier scorer's: as they were after this step. */
int mass_sums_adopt(const struct mass_sums *m, uint32_t list, uint32_t step);
