/* bench/formula.c - see formula.h. */
#include "bench/formula.h"

#include <string.h>

#define SCORE_BYTES 4.0 /* of a token in a Score Block: u16 slot offset, u16 score */

enum formula_policy formula_policy(const char *name)
{
    static const struct {
        const char *name;
        enum formula_policy policy;
    } policies[] = {
        {"full", FORMULA_FULL},   {"hillinfer", FORMULA_HILLINFER}, {"h2o", FORMULA_KEYS},
        {"oracle", FORMULA_KEYS}, {"leoam", FORMULA_CHUNKS},
    };
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
        if (strcmp(name, policies[i].name) == 0)
            return policies[i].policy;
    return FORMULA_NONE;
}

double formula_cold_keys(enum formula_policy policy, double tokens, double cold, double selected,
                         double forced)
{
    if (policy == FORMULA_KEYS)
        return cold;
    if (policy != FORMULA_CHUNKS || selected <= forced || tokens <= forced)
        return 0;
    double looked_at = (selected - forced) * FORMULA_CANDIDATES;
    if (looked_at > tokens - forced)
        looked_at = tokens - forced;
    return looked_at * cold / (tokens - forced);
}

struct formula_bytes formula_bytes(enum formula_policy policy, const struct formula_shape *shape,
                                   const struct formula_query *query)
{
    struct formula_bytes b = {0};
    double evaluated = 0; /* read from flash for it */
    if (policy == FORMULA_HILLINFER) {
        b.link_score = query->cold * SCORE_BYTES;
        evaluated = query->cold * shape->digest_bytes;
    } else {
        b.link_key = evaluated = query->keys * shape->key_bytes;
    }
    b.link_kv = query->fetched * shape->entry_bytes;
    b.flash_read = evaluated + b.link_kv;
    b.gpu_upload = (query->fetched + query->copied) * shape->entry_bytes;
    return b;
}

double formula_full_fetched(double cold, double kept, double steps)
{
    double later = cold > kept ? cold - kept : 0;
    return (cold + (steps - 1) * later) / steps;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* GB/s to seconds. */
static double at_rate(double bytes, double gb_per_s)
{
    return bytes / (gb_per_s * 1e9);
}

struct formula_times formula_times(enum formula_policy policy, const struct formula_shape *shape,
                                   const struct csd_model *model, const struct formula_query *query)
{
    struct formula_bytes b = formula_bytes(policy, shape, query);
    struct formula_times t = {0};
    double latency = model->latency_us * 1e-6;
    if (policy == FORMULA_HILLINFER && query->cold > 0) {
        double last = query->cold < shape->block_tokens ? query->cold : shape->block_tokens;
        t.evaluate = latency +
                     larger(at_rate(b.flash_read - b.link_kv, model->flash),
                            at_rate(query->cold * shape->entry_bytes, model->score)) +
                     at_rate(last * SCORE_BYTES, model->link);
    } else if (query->keys > 0) {
        t.evaluate =
            latency + larger(at_rate(b.link_key, model->flash), at_rate(b.link_key, model->link));
    }
    if (query->fetched > 0)
        t.fetch =
            latency + larger(at_rate(b.link_kv, model->flash), at_rate(b.link_kv, model->link));
    return t;
}

double formula_step(const struct formula_native *native, const struct formula_times *times,
                    const struct formula_bytes *bytes, const struct csd_model *model, bool gpu_link,
                    double rows, double layers)
{
    double query =
        larger(native->evaluate, times->evaluate) + native->select + times->fetch + native->other;
    double upload = gpu_link ? at_rate(bytes->gpu_upload, model->gpu_link) : 0;
    return native->compute + layers * (rows * query + upload);
}
