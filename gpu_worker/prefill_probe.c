/*
 * gpu_worker/prefill_probe.c - a prompt that attends to some of the tokens before it: which of them
 * its queries look at, by the keys of a few heads, also a layer ahead by guessed queries
 * (prefill.c). See engine.h, attention.cl.
 *
 * The tokens that are chosen lie side by side in the layer's keys and values, in the order of their
 * positions, with the prompt's own behind them; entries have their rotation, so attention asks for
 * no positions but to mask. A layer with a window takes all that its window may see, so distances
 * are what they are among all tokens. Of a prompt of one chunk alone: all its queries are there
 * when the layer's past is chosen.
 */
#include "gpu_worker/engine_internal.h"

int engine_prefill_select(struct engine *e, struct hill_why *why)
{
    if (!e->n_tokens || e->units_queued || e->tokens_given || e->n_chunks != 1 || !e->n_past ||
        e->weighs || e->n_past % ENGINE_PROBE_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "a prompt that cannot choose among tokens before it");
    e->selects = true;
    e->guessed = false;
    e->probed_layer = UINT32_MAX;
    e->keys_queued = e->selected = 0;
    return 0;
}

_Static_assert(ENGINE_PROBE_TOKENS % ATTEND_KEYS == 0, "no tile of keys is cut");

struct probe_sizes {
    uint64_t keys, packed, sums, log_sums, guessed;
};

static void compute_sizes(const struct engine *e, uint32_t n_past, uint32_t n_tokens,
                          uint32_t n_kv_heads, struct probe_sizes *s)
{
    uint64_t key = 2ull * e->hp.head_dim, group = e->hp.n_heads / e->hp.n_kv_heads;
    s->keys = n_past * key * n_kv_heads;
    s->packed = n_past * key;
    s->sums = 4ull * n_past;
    s->log_sums = 4 * group * round_up(n_tokens, TILE_ROWS);
    uint32_t guessed = n_tokens < ENGINE_GUESS_TOKENS ? n_tokens : ENGINE_GUESS_TOKENS;
    s->guessed = 2 * key * e->hp.n_heads * round_up(guessed, TILE_ROWS);
}

uint64_t engine_probe_bytes_needed(const struct engine *e, uint32_t n_past, uint32_t n_tokens,
                                   uint32_t n_kv_heads)
{
    struct probe_sizes s;
    compute_sizes(e, n_past, n_tokens, n_kv_heads, &s);
    return s.keys + s.packed + s.sums + s.log_sums + s.guessed + 5 * 64; /* rounded up */
}

int probe_reserve_guess(struct engine *e, struct hill_why *why)
{
    struct probe_sizes s;
    compute_sizes(e, e->n_past, e->n_tokens, 1, &s);
    return engine_reserve(e, &e->guessed_q, s.guessed, why);
}

static int reserve(struct engine *e, uint32_t n_kv_heads, struct hill_why *why)
{
    struct probe_sizes s;
    compute_sizes(e, e->n_past, e->n_tokens, n_kv_heads, &s);
    int rc = engine_reserve(e, &e->probe, s.keys, why);
    if (!rc)
        rc = engine_reserve(e, &e->probe_kt, s.packed, why);
    if (!rc)
        rc = engine_reserve(e, &e->probe_sums, s.sums, why);
    if (!rc)
        rc = engine_reserve(e, &e->log_sums, s.log_sums, why);
    return rc;
}

uint32_t probe_rows(const struct engine *e, bool guessed)
{
    return guessed && e->n_tokens > ENGINE_GUESS_TOKENS ? ENGINE_GUESS_TOKENS : e->n_tokens;
}

/* One head's sums behind those of the heads before it. */
static int add_head(struct engine *e, uint32_t kv_head, uint32_t stride, uint32_t at,
                    struct hill_why *why)
{
    uint32_t rows = probe_rows(e, e->guessed), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    cl_mem q = e->guessed ? e->guessed_q.mem : e->q.mem;
    int rc = LAUNCH(e, KERNEL_PACK_KEYS, 0, e->n_past, 1, NULL, why, ARG_BUFFER(e->probe.mem),
                    ARG_U32(stride), ARG_U32(at), ARG_BUFFER(e->probe_kt.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_PROBE_ROWS, 0, tiles, e->hp.n_heads / e->hp.n_kv_heads, NULL, why,
                    ARG_BUFFER(q), ARG_U32(tiles), ARG_BUFFER(e->probe_kt.mem), ARG_U32(e->n_past),
                    ARG_U32(kv_head), ARG_BUFFER(e->log_sums.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_PROBE_KEYS, 0, e->n_past / ATTEND_KEYS, 1, NULL, why, ARG_BUFFER(q),
                    ARG_U32(tiles), ARG_BUFFER(e->probe_kt.mem), ARG_U32(e->n_past), ARG_U32(rows),
                    ARG_U32(kv_head), ARG_BUFFER(e->log_sums.mem), ARG_BUFFER(e->probe_sums.mem));
    return rc;
}

int engine_prefill_probe(struct engine *e, const uint16_t *kv_heads, uint32_t n_kv_heads,
                         const void *keys, float *sums, struct hill_why *why)
{
    const cl_float none = 0;
    uint32_t stride = n_kv_heads * e->hp.head_dim;
    uint32_t layer = e->guessed ? e->keys_queued : e->keys_queued - 1;
    if (!e->selects || e->keys_queued != e->units_queued + 1 || n_kv_heads == 0 ||
        n_kv_heads > e->hp.n_kv_heads || (!keys && layer != e->probed_layer))
        return hill_fail(why, HILL_E_INVALID, "keys are probed out of order");
    int rc = reserve(e, n_kv_heads, why);
    if (!rc && keys)
        rc = cldevice_check(clEnqueueWriteBuffer(e->queue, e->probe.mem, CL_TRUE, 0,
                                                 2ull * e->n_past * stride, keys, 0, NULL, NULL),
                            "cannot write keys to the device", why);
    e->probed_layer = layer;
    if (!rc)
        rc = cldevice_check(clEnqueueFillBuffer(e->queue, e->probe_sums.mem, &none, sizeof none, 0,
                                                4ull * e->n_past, 0, NULL, NULL),
                            "the device failed", why);
    for (uint32_t i = 0; !rc && i < n_kv_heads; i++)
        rc = add_head(e, kv_heads[i], stride, i * e->hp.head_dim, why);
    return rc ? rc
              : cldevice_check(clEnqueueReadBuffer(e->queue, e->probe_sums.mem, CL_TRUE, 0,
                                                   4ull * e->n_past, sums, 0, NULL, NULL),
                               "cannot read what keys are attended to from the device", why);
}

void probe_release(struct engine *e)
{
    engine_release(e, &e->probe);
    engine_release(e, &e->probe_kt);
    engine_release(e, &e->probe_sums);
    engine_release(e, &e->guessed_q);
}
