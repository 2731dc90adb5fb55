/* cpu_scorer/evaluator.c - which policy is evaluated how; see evaluator.h. */
#include "cpu_scorer/evaluator.h"

static const struct evaluator_ops *const of_policy[KV_POLICY_COUNT] = {
    [KV_POLICY_HILLINFER] = &evaluate_digest, [KV_POLICY_FULL] = &evaluate_digest,
    [KV_POLICY_H2O] = &evaluate_mass,         [KV_POLICY_ORACLE] = &evaluate_mass,
    [KV_POLICY_LEOAM] = &evaluate_chunks,     [KV_POLICY_PREFETCH] = &evaluate_partial,
    [KV_POLICY_HOST_DIGEST] = &evaluate_host,
};

int evaluator_create(struct evaluator **out, struct core *core, struct agent *agent)
{
    *out = NULL;
    if (core->config.policy >= KV_POLICY_COUNT)
        return HILL_E_INVALID;
    int rc = of_policy[core->config.policy]->create(out, core, agent);
    if (rc) {
        evaluator_destroy(*out);
        *out = NULL;
    }
    return rc;
}
