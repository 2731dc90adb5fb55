/* tools/bench/formula.c - see formula.h. */
#include "tools/bench/formula.h"

#define SCORE_BYTES 4.0 /* of a token in a Score Block: u16 slot offset, u16 score */

double formula_full_fetched(double cold, double kept, double steps)
{
    double later = cold > kept ? cold - kept : 0;
    return (cold + (steps - 1) * later) / steps;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* GB/s to seconds. */
static double at_rate(double bytes, double gb_per_s)
{
    return bytes / (gb_per_s * 1e9);
}

struct formula_times formula_times(const struct kv_cost_load *load, const struct csd_model *model,
                                   double block_tokens)
{
    struct kv_cost c = kv_policy_cost(load);
    struct formula_times t = {0};
    double latency = model->latency_us * 1e-6, cold = load->cold, read = (double)c.link_kv;
    if (c.link_score >
        0) { /* the drive evaluates; the last block's scores leave when it is whole */
        double last = cold < block_tokens ? cold : block_tokens;
        t.evaluate = latency +
                     larger(at_rate((double)(c.flash_read - c.link_kv), model->flash),
                            at_rate(cold * kv_entry_bytes(&load->geometry), model->score)) +
                     at_rate(last * SCORE_BYTES, model->link);
    } else if (c.link_key > 0) {
        t.evaluate = latency + larger(at_rate((double)c.link_key, model->flash),
                                      at_rate((double)c.link_key, model->link));
        t.last = smaller(1, KV_KEY_LAST_BYTES / (double)c.link_key);
    }
    if (c.link_kv > 0)
        t.fetch = latency + larger(at_rate(read, model->flash), at_rate(read, model->link));
    return t;
}

double formula_step(const struct formula_native *native, const struct formula_times *times,
                    double upload_bytes, const struct csd_model *model, bool gpu_link, double rows,
                    double layers)
{
    double drive = times->evaluate + times->last * native->evaluate;
    double query = native->bounds + larger(native->evaluate, drive) + native->select +
                   times->fetch + native->other;
    double upload = gpu_link ? at_rate(upload_bytes, model->gpu_link) : 0;
    return native->compute + layers * (rows * query + upload);
}

double formula_scoring_rate(const struct kv_geometry *g)
{
    double kernel = FORMULA_BEAT_BYTES * FORMULA_CLOCK_MHZ * 1e-3 * FORMULA_CLOCK_SHARE;
    double digests = kernel < FORMULA_PORT ? kernel : FORMULA_PORT;
    return digests * kv_entry_bytes(g) / kv_digest_bytes(g);
}
