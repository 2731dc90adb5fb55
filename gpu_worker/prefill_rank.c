/*
 * gpu_worker/prefill_rank.c - which of a prompt's tokens its newest ones look at, for the order in
 * which the prefix store keeps them (prefix/chunk_order.h). See engine.h.
 *
 * With a layer's last chunk its queries and all keys are on the device: the newest rows ask the
 * keys before them, of the probe heads alone, as a later prompt will ask (prefill_probe.c). Nothing
 * else depends on that: no bit of the prompt changes. Layers with a window are not asked.
 */
#include "gpu_worker/engine_internal.h"

/* Rows of the last chunk that ask, in whole tiles: the newest ENGINE_RANK_ROWS and a few more. */
static uint32_t asking_from(const struct engine *e)
{
    uint32_t count = e->n_tokens - (e->n_chunks - 1) * e->batch_tokens;
    return count > ENGINE_RANK_ROWS ? (count - ENGINE_RANK_ROWS) / TILE_ROWS * TILE_ROWS : 0;
}

/* Tokens before these, in whole tiles of keys. */
static uint32_t asked(const struct engine *e)
{
    uint32_t before = e->n_past + (e->n_chunks - 1) * e->batch_tokens + asking_from(e);
    return before / ENGINE_PROBE_TOKENS * ENGINE_PROBE_TOKENS;
}

int engine_prefill_rank(struct engine *e, const uint16_t *heads, uint32_t n_heads,
                        struct hill_why *why)
{
    const cl_float none = 0;
    e->ranked = 0;
    if (!e->n_tokens || e->units_queued != e->prompt.from || e->selects || e->weighs)
        return hill_fail(why, HILL_E_INVALID, "a prompt that cannot be ranked");
    uint64_t n = asked(e), sums = 4 * n, key = 2ull * e->hp.head_dim;
    uint64_t rows = round_up(e->n_tokens < e->batch_tokens ? e->n_tokens : e->batch_tokens,
                             TILE_ROWS);
    if (!n)
        return 0;
    int rc = engine_reserve(e, &e->probe_kt, n * key, why);
    if (!rc)
        rc = engine_reserve(e, &e->probe_sums, sums, why);
    if (!rc)
        rc = engine_reserve(e, &e->log_sums, 4 * rows * (e->hp.n_heads / e->hp.n_kv_heads), why);
    if (!rc)
        rc = engine_reserve(e, &e->ranks, sums * e->hp.n_layers, why);
    if (!rc)
        rc = cldevice_check(clEnqueueFillBuffer(e->queue, e->ranks.mem, &none, sizeof none, 0,
                                                sums * e->hp.n_layers, 0, NULL, NULL),
                            "the device failed", why);
    e->rank_heads = heads;
    e->n_rank_heads = n_heads;
    e->ranked = rc ? 0 : (uint32_t)n;
    return rc;
}

uint64_t engine_rank_bytes_needed(const struct engine *e, uint32_t n_past, uint32_t n_tokens)
{
    uint64_t batch = e->batch_tokens < n_tokens ? e->batch_tokens : n_tokens;
    uint64_t n = n_past + (uint64_t)n_tokens, group = e->hp.n_heads / e->hp.n_kv_heads;
    return n * (2ull * e->hp.head_dim + 4 + 4ull * e->hp.n_layers) +
           4 * group * round_up((uint32_t)batch, TILE_ROWS) + 4 * 64; /* buffers are rounded up */
}

/* One head's sums behind those of the heads before it. */
static int add_head(struct engine *e, const struct engine_unit *u, uint32_t kv_head,
                    struct hill_why *why)
{
    uint32_t tiles = (u->count + TILE_ROWS - 1) / TILE_ROWS, from = asking_from(e);
    uint64_t key = 2ull * e->hp.head_dim;
    int rc = cldevice_check(clEnqueueCopyBuffer(e->queue, e->kt.mem, e->probe_kt.mem,
                                                kv_head * (uint64_t)e->panels * 16 * key, 0,
                                                e->ranked * key, 0, NULL, NULL),
                            "cannot copy keys", why);
    if (!rc)
        rc = LAUNCH(e, KERNEL_PROBE_ROWS, from / TILE_ROWS, tiles - from / TILE_ROWS,
                    e->hp.n_heads / e->hp.n_kv_heads, NULL, why, ARG_BUFFER(e->q.mem),
                    ARG_U32(tiles), ARG_BUFFER(e->probe_kt.mem), ARG_U32(e->ranked),
                    ARG_U32(kv_head), ARG_BUFFER(e->log_sums.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_PROBE_KEYS, 0, e->ranked / ATTEND_KEYS, 1, NULL, why,
                    ARG_BUFFER(e->q.mem), ARG_U32(tiles), ARG_BUFFER(e->probe_kt.mem),
                    ARG_U32(e->ranked), ARG_U32(from), ARG_U32(u->count), ARG_U32(kv_head),
                    ARG_BUFFER(e->log_sums.mem), ARG_BUFFER(e->probe_sums.mem));
    return rc;
}

int rank_enqueue(struct engine *e, const struct engine_unit *u, struct hill_why *why)
{
    const cl_float none = 0;
    uint64_t sums = 4ull * e->ranked;
    if (!e->ranked || model_layer_window(&e->hp, u->layer) ||
        u->first + u->count < e->n_past + e->n_tokens)
        return 0;
    int rc = cldevice_check(clEnqueueFillBuffer(e->queue, e->probe_sums.mem, &none, sizeof none, 0,
                                                sums, 0, NULL, NULL),
                            "the device failed", why);
    for (uint32_t i = 0; !rc && i < e->n_rank_heads; i++)
        rc = add_head(e, u, e->rank_heads[(size_t)u->layer * e->n_rank_heads + i], why);
    return rc ? rc
              : cldevice_check(clEnqueueCopyBuffer(e->queue, e->probe_sums.mem, e->ranks.mem, 0,
                                                   u->layer * sums, sums, 0, NULL, NULL),
                               "cannot copy what keys are attended to", why);
}

uint32_t engine_prefill_ranked(const struct engine *e)
{
    return e->ranked;
}

int engine_prefill_ranks(struct engine *e, float *sums, struct hill_why *why)
{
    if (!e->ranked || e->units_queued != engine_prefill_units(e))
        return hill_fail(why, HILL_E_INVALID, "ranks before the prompt is done");
    return cldevice_check(clEnqueueReadBuffer(e->queue, e->ranks.mem, CL_TRUE, 0,
                                              4ull * e->ranked * e->hp.n_layers, sums, 0, NULL,
                                              NULL),
                          "cannot read what keys are attended to from the device", why);
}
