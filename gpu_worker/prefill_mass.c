/*
 * gpu_worker/prefill_mass.c - what a prompt's queries attend to, summed over queries and heads for
 * each key of a layer. See engine.h, attention.cl.
 *
 * Why: h2o ranks tokens by accumulated attention from the prompt on. A weight is known when its
 * row's softmax is, so a second pass over queries and keys follows each chunk's attention: products
 * again, no values. Nothing of it is queued for other policies. Sums of heads are kept apart until
 * the layer's last chunk, so that each is made in the order of positions, whatever the chunks.
 */
#include "gpu_worker/engine_internal.h"

struct mass_sizes {
    uint64_t log_sums, head_sums, mass;
};

static void compute_sizes(const struct engine *e, uint32_t n_tokens, struct mass_sizes *s)
{
    uint64_t batch = e->batch_tokens < n_tokens ? e->batch_tokens : n_tokens;
    uint64_t keys = round_up(n_tokens, ATTEND_KEYS);
    s->log_sums = 4 * round_up((uint32_t)batch, TILE_ROWS) * (uint64_t)e->hp.n_heads;
    s->head_sums = 4 * keys * e->hp.n_heads;
    s->mass = 4 * keys;
}

uint64_t engine_mass_bytes_needed(const struct engine *e, uint32_t n_prompt)
{
    struct mass_sizes s;
    compute_sizes(e, n_prompt, &s);
    return s.log_sums + s.head_sums + 2 * s.mass + 4 * 64; /* buffers are rounded up */
}

int engine_prefill_weigh(struct engine *e, struct hill_why *why)
{
    struct mass_sizes s;
    if (!e->n_tokens || e->units_queued || e->n_past)
        return hill_fail(why, HILL_E_INVALID, "a prompt is to be weighed that has not just begun");
    compute_sizes(e, e->n_tokens, &s);
    int rc = engine_reserve(e, &e->log_sums, s.log_sums, why);
    if (!rc)
        rc = engine_reserve(e, &e->head_sums, s.head_sums, why);
    for (int i = 0; !rc && i < 2; i++)
        rc = engine_reserve(e, &e->mass[i], s.mass, why);
    e->weighs = rc == 0;
    return rc;
}

int mass_enqueue(struct engine *e, const struct engine_unit *u, cl_event *done,
                 struct hill_why *why)
{
    uint32_t tiles = (u->count + TILE_ROWS - 1) / TILE_ROWS, parity = u->layer % 2;
    uint32_t key_tiles = round_up(u->first + u->count, ATTEND_KEYS) / ATTEND_KEYS;
    int rc =
        LAUNCH(e, KERNEL_WEIGH_CHUNK, 0, key_tiles, e->hp.n_heads, done, why, ARG_BUFFER(e->q.mem),
               ARG_U32(tiles), ARG_BUFFER(e->kt.mem), ARG_U32(e->panels), ARG_U32(u->first),
               ARG_U32(u->count), ARG_U32(model_layer_window(&e->hp, u->layer)),
               ARG_BUFFER(e->log_sums.mem), ARG_BUFFER(e->head_sums.mem));
    if (rc || u->first + u->count < e->n_tokens)
        return rc;
    engine_forget_event(&e->weighed[parity]);
    return LAUNCH(e, KERNEL_WEIGH_HEADS, 0, e->panels, 1, &e->weighed[parity], why,
                  ARG_BUFFER(e->head_sums.mem), ARG_U32(e->panels),
                  ARG_BUFFER(e->mass[parity].mem));
}

int engine_prefill_mass(struct engine *e, uint32_t layer, uint32_t first, uint32_t count,
                        float *mass, struct hill_why *why)
{
    uint32_t end = (layer + 1) * e->n_chunks; /* the unit after the layer's last */
    if (!e->weighs || layer >= e->hp.n_layers || e->units_read < end ||
        e->units_queued > end + e->n_chunks || first > e->n_tokens || count == 0 ||
        count > e->n_tokens - first)
        return hill_fail(why, HILL_E_INVALID, "attention of layer %u is read out of order", layer);
    return cldevice_check(clEnqueueReadBuffer(e->read_queue, e->mass[layer % 2].mem, CL_TRUE,
                                              4ull * first, 4ull * count, mass, 1,
                                              &e->weighed[layer % 2], NULL),
                          "cannot read a prompt's attention from the device", why);
}

void mass_release(struct engine *e)
{
    engine_release(e, &e->log_sums);
    engine_release(e, &e->head_sums);
    for (int i = 0; i < 2; i++) {
        engine_release(e, &e->mass[i]);
        engine_forget_event(&e->weighed[i]);
    }
}
