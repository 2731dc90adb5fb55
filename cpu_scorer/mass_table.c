/* cpu_scorer/mass_table.c - see mass_table.h. */
#include "cpu_scorer/mass_table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct mass_table {
    struct kv_geometry g;
    const struct kv_mass_ops *ops;
    uint32_t row, n_tokens;
    uint64_t bytes;
    float *query;
    float *rows;       /* [ctx][row]: logits, then weights */
    float *max, *sums; /* [blocks][row] */
    float *scale;      /* [row] */
    float *mass;       /* [ctx] */
    /* relaxed: the pool's end publishes it */
    _Atomic uint32_t count;
};

static float *floats(struct mass_table *t, uint64_t n)
{
    t->bytes += n * sizeof(float);
    float *out = aligned_alloc(64, (n * sizeof *out + 63) / 64 * 64);
    if (out)
        memset(out, 0, n * sizeof *out); /* pages are made now, not in the first query */
    return out;
}

int mass_table_create(struct mass_table **out, const struct kv_geometry *g,
                      const struct kv_mass_ops *ops, uint32_t ctx_tokens)
{
    struct mass_table *t = calloc(1, sizeof *t);
    uint64_t blocks = ctx_tokens / KV_MASS_BLOCK + 1;
    *out = NULL;
    if (!t)
        return HILL_E_NOMEM;
    t->g = *g;
    t->ops = ops;
    t->row = kv_mass_row(g);
    t->query = floats(t, kv_mass_query_floats(g));
    t->rows = floats(t, (uint64_t)ctx_tokens * t->row);
    t->max = floats(t, blocks * t->row);
    t->sums = floats(t, blocks * t->row);
    t->scale = floats(t, t->row);
    t->mass = floats(t, ctx_tokens);
    if (!t->query || !t->rows || !t->max || !t->sums || !t->scale || !t->mass) {
        mass_table_destroy(t);
        return HILL_E_NOMEM;
    }
    *out = t;
    return 0;
}

void mass_table_destroy(struct mass_table *t)
{
    if (!t)
        return;
    free(t->query);
    free(t->rows);
    free(t->max);
    free(t->sums);
    free(t->scale);
    free(t->mass);
    free(t);
}

uint64_t mass_table_bytes(const struct mass_table *t)
{
    return t->bytes;
}

void mass_table_begin(struct mass_table *t, const float *q, uint32_t n_tokens)
{
    kv_mass_query(&t->g, q, t->query);
    t->n_tokens = n_tokens;
    atomic_store_explicit(&t->count, 0, memory_order_relaxed); /* no thread is at work */
}

void mass_table_keys(struct mass_table *t, const uint16_t *keys, uint64_t stride_halfs, uint32_t n,
                     const uint32_t *positions)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += positions[i] < t->n_tokens;
    t->ops->logits(&t->g, t->query, keys, stride_halfs, n, positions, t->n_tokens, t->rows);
    atomic_fetch_add_explicit(&t->count, count, memory_order_relaxed /* see the struct */);
}

void mass_table_leave_out(struct mass_table *t, uint32_t position)
{
    float *row = t->rows + (uint64_t)position * t->row;
    for (uint32_t c = 0; c < t->row; c++)
        row[c] = -1e30f;
    atomic_fetch_add_explicit(&t->count, 1, memory_order_relaxed /* see the struct */);
}

uint32_t mass_table_count(const struct mass_table *t)
{
    return atomic_load_explicit(&t->count, memory_order_relaxed /* see the struct */);
}

/* ---- logits to masses, blocks in parallel -------------------------------------------------- */

static uint32_t block_tokens(const struct mass_table *t, uint32_t block)
{
    uint32_t left = t->n_tokens - block * KV_MASS_BLOCK;
    return left < KV_MASS_BLOCK ? left : KV_MASS_BLOCK;
}

static void run_maximum(void *context, uint32_t first, uint32_t end)
{
    struct mass_table *t = context;
    for (uint32_t b = first; b < end; b++)
        t->ops->maximum(t->rows + (uint64_t)b * KV_MASS_BLOCK * t->row, t->row, block_tokens(t, b),
                        t->max + (uint64_t)b * t->row);
}

static void run_weigh(void *context, uint32_t first, uint32_t end)
{
    struct mass_table *t = context;
    for (uint32_t b = first; b < end; b++)
        t->ops->weigh(t->rows + (uint64_t)b * KV_MASS_BLOCK * t->row, t->row, block_tokens(t, b),
                      t->max, t->sums + (uint64_t)b * t->row);
}

static void run_mass(void *context, uint32_t first, uint32_t end)
{
    struct mass_table *t = context;
    for (uint32_t b = first; b < end; b++)
        t->ops->mass(t->rows + (uint64_t)b * KV_MASS_BLOCK * t->row, t->row, block_tokens(t, b),
                     t->scale, t->mass + (uint64_t)b * KV_MASS_BLOCK);
}

static void run_all(struct mass_table *t, struct score_pool *pool,
                    void (*run)(void *context, uint32_t first, uint32_t end))
{
    uint32_t blocks = (t->n_tokens + KV_MASS_BLOCK - 1) / KV_MASS_BLOCK;
    struct work_job job = {.run = run,
                           .context = t,
                           .n = blocks,
                           .bytes = (uint64_t)t->n_tokens * t->row * sizeof(float)};
    score_pool_start_work(pool, &job, NULL);
    score_pool_wait(pool);
}

int mass_table_finish(struct mass_table *t, struct score_pool *pool,
                      const struct mass_ranking *ranking, uint16_t *scores)
{
    uint32_t blocks = (t->n_tokens + KV_MASS_BLOCK - 1) / KV_MASS_BLOCK;
    if (mass_table_count(t) != t->n_tokens)
        return HILL_E_PROTOCOL;
    if (t->n_tokens == 0)
        return 0;
    run_all(t, pool, run_maximum);
    kv_mass_merge_max(t->max, t->row, blocks);
    run_all(t, pool, run_weigh);
    kv_mass_merge_sum(&t->g, t->sums, blocks, t->scale);
    run_all(t, pool, run_mass);
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        float before = ranking && i < ranking->n_before ? ranking->before[i] : 0;
        float mass = before + t->mass[i];
        scores[i] = kv_mass_score16(mass);
        if (ranking && ranking->after)
            ranking->after[i] = mass;
    }
    return 0;
}
