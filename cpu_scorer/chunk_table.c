/* cpu_scorer/chunk_table.c - see chunk_table.h. */
#include "cpu_scorer/chunk_table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kv/plan.h"

#define FINE_PER_COARSE (KV_CHUNK_COARSE / KV_CHUNK_FINE)
#define AT_ONCE         16u /* keys whose products are worked out before they are combined */

/* A chunk of the search; the heap's top is the best. */
struct found {
    float bound;
    uint32_t chunk;
    bool fine;
};

struct chunk_table {
    struct kv_geometry g, products; /* products: one head a KV head */
    const struct kv_mass_ops *ops;
    uint32_t ctx_tokens, row, halves;
    uint32_t n_fine, n_coarse; /* of a context */
    uint64_t bytes;
    uint16_t *fine, *coarse; /* [n_sequences][n_layers][chunks][halves] */
    float *whole, *positive, *negative;
    float *least, *largest; /* [n_coarse][row]: products with the abstracts' halves */
    struct found *heap;     /* [n_coarse + n_fine] */
    uint32_t n_heap;
    uint32_t *chunks; /* [n_fine] */
    uint32_t n_chunks;
    uint64_t *candidates; /* bitmap of fine chunks */
    uint16_t *scores;     /* [ctx] */
    /* of the query */
    uint32_t list, importance, n_tokens, forced_below, forced_from, wanted;
    uint32_t n_query_coarse;
    /* relaxed: the pool's end publishes it */
    _Atomic uint32_t count;
};

/* ---- life ---------------------------------------------------------------------------------- */

static void *take(struct chunk_table *t, uint64_t bytes)
{
    uint64_t rounded = (bytes + 63) / 64 * 64;
    void *out = aligned_alloc(64, rounded);
    if (out)
        memset(out, 0, rounded);
    t->bytes += rounded;
    return out;
}

static bool allocate(struct chunk_table *t, uint64_t lists)
{
    uint64_t query = (uint64_t)t->g.n_kv_heads * kv_mass_head(&t->g) * sizeof(float);
    uint64_t products = (uint64_t)t->n_coarse * t->row * sizeof(float);
    t->fine = take(t, lists * t->n_fine * t->halves * sizeof *t->fine);
    t->coarse = take(t, lists * t->n_coarse * t->halves * sizeof *t->coarse);
    t->whole = take(t, query);
    t->positive = take(t, query);
    t->negative = take(t, query);
    t->least = take(t, products);
    t->largest = take(t, products);
    t->heap = take(t, (uint64_t)(t->n_coarse + t->n_fine) * sizeof *t->heap);
    t->chunks = take(t, (uint64_t)t->n_fine * sizeof *t->chunks);
    t->candidates = take(t, (t->n_fine / 64 + 1) * sizeof *t->candidates);
    t->scores = take(t, (uint64_t)t->ctx_tokens * sizeof *t->scores);
    return t->fine && t->coarse && t->whole && t->positive && t->negative && t->least &&
           t->largest && t->heap && t->chunks && t->candidates && t->scores;
}

int chunk_table_create(struct chunk_table **out, const struct kv_geometry *g,
                       const struct kv_mass_ops *ops, uint32_t ctx_tokens, uint32_t n_sequences)
{
    struct chunk_table *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return HILL_E_NOMEM;
    t->g = *g;
    t->products = kv_bounds_geometry(g);
    t->ops = ops;
    t->ctx_tokens = ctx_tokens;
    t->row = kv_mass_row(&t->products);
    t->halves = kv_bounds_halves(g);
    t->n_fine = ctx_tokens / KV_CHUNK_FINE + 1;
    t->n_coarse = ctx_tokens / KV_CHUNK_COARSE + 1;
    if (!allocate(t, (uint64_t)n_sequences * g->n_layers)) {
        chunk_table_destroy(t);
        return HILL_E_NOMEM;
    }
    *out = t;
    return 0;
}

void chunk_table_destroy(struct chunk_table *t)
{
    if (!t)
        return;
    free(t->fine);
    free(t->coarse);
    free(t->whole);
    free(t->positive);
    free(t->negative);
    free(t->least);
    free(t->largest);
    free(t->heap);
    free(t->chunks);
    free(t->candidates);
    free(t->scores);
    free(t);
}

uint64_t chunk_table_bytes(const struct chunk_table *t)
{
    return t->bytes;
}

/* ---- abstracts ----------------------------------------------------------------------------- */

static uint16_t *fine_of(const struct chunk_table *t, uint32_t chunk)
{
    return t->fine + ((uint64_t)t->list * t->n_fine + chunk) * t->halves;
}

static uint16_t *coarse_of(const struct chunk_table *t, uint32_t chunk)
{
    return t->coarse + ((uint64_t)t->list * t->n_coarse + chunk) * t->halves;
}

void chunk_table_append(struct chunk_table *t, uint32_t sequence, uint32_t layer, uint32_t first,
                        uint32_t n, const uint16_t *entries, uint32_t entry_halfs)
{
    t->list = sequence * t->g.n_layers + layer;
    for (uint32_t done = 0, run; done < n; done += run) {
        uint32_t at = first + done, room = KV_CHUNK_FINE - at % KV_CHUNK_FINE;
        const uint16_t *keys = entries + (uint64_t)done * entry_halfs;
        run = n - done < room ? n - done : room;
        kv_bounds_add(&t->g, keys, entry_halfs, run, at % KV_CHUNK_FINE == 0,
                      fine_of(t, at / KV_CHUNK_FINE));
        kv_bounds_add(&t->g, keys, entry_halfs, run, at % KV_CHUNK_COARSE == 0,
                      coarse_of(t, at / KV_CHUNK_COARSE));
    }
}

/* ---- search -------------------------------------------------------------------------------- */

/* Products of the query's parts with n abstracts, whose rows are numbered from 0. */
static void bound_products(const struct chunk_table *t, const uint16_t *abstracts, uint32_t n,
                           float *least, float *largest)
{
    uint32_t numbers[AT_ONCE], dims = kv_key_dims(&t->g);
    for (uint32_t i = 0; i < AT_ONCE; i++)
        numbers[i] = i;
    for (uint32_t i = 0; i < n; i += AT_ONCE) {
        uint32_t count = n - i < AT_ONCE ? n - i : AT_ONCE;
        const uint16_t *from = abstracts + (uint64_t)i * t->halves;
        t->ops->logits(&t->products, t->negative, from, t->halves, count, numbers, AT_ONCE,
                       least + (uint64_t)i * t->row);
        t->ops->logits(&t->products, t->positive, from + dims, t->halves, count, numbers, AT_ONCE,
                       largest + (uint64_t)i * t->row);
    }
}

static float bound(const struct chunk_table *t, const float *least, const float *largest)
{
    float products[KV_MAX_KV_HEADS];
    for (uint32_t h = 0; h < t->g.n_kv_heads; h++)
        products[h] = least[h] + largest[h];
    return kv_bounds_combine(&t->g, t->importance, products);
}

static void run_coarse(void *context, uint32_t first, uint32_t end)
{
    const struct chunk_table *t = context;
    uint64_t row = (uint64_t)first * t->row;
    bound_products(t, coarse_of(t, first), end - first, t->least + row, t->largest + row);
}

/* Is a better than b? Finer ones of the same chunk have no larger bound, so they come later. */
static bool better(const struct found *a, const struct found *b)
{
    if (a->bound != b->bound)
        return a->bound > b->bound;
    uint32_t from_a = a->chunk * (a->fine ? 1 : FINE_PER_COARSE);
    uint32_t from_b = b->chunk * (b->fine ? 1 : FINE_PER_COARSE);
    return from_a != from_b ? from_a > from_b : a->fine < b->fine;
}

static void heap_push(struct chunk_table *t, struct found item)
{
    uint32_t at = t->n_heap++;
    for (; at > 0 && better(&item, &t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = item;
}

static struct found heap_pop(struct chunk_table *t)
{
    struct found top = t->heap[0], last = t->heap[--t->n_heap];
    uint32_t at = 0, child;
    while ((child = 2 * at + 1) < t->n_heap) {
        if (child + 1 < t->n_heap && better(&t->heap[child + 1], &t->heap[child]))
            child++;
        if (!better(&t->heap[child], &last))
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* Tokens from n_tokens on may have been appended already: what has them is not bounded by its
 * abstract, or the search would depend on when they came. */
static bool is_whole(const struct chunk_table *t, uint32_t chunk, uint32_t chunk_tokens)
{
    return (uint64_t)(chunk + 1) * chunk_tokens <= t->n_tokens;
}

static void push_chunk(struct chunk_table *t, uint32_t chunk, bool fine, const float *least,
                       const float *largest)
{
    bool whole = is_whole(t, chunk, fine ? KV_CHUNK_FINE : KV_CHUNK_COARSE);
    heap_push(t, (struct found){whole ? bound(t, least, largest) : INFINITY, chunk, fine});
}

static void refine(struct chunk_table *t, uint32_t coarse)
{
    _Alignas(64) float least[FINE_PER_COARSE * KV_MAX_KV_HEADS];
    _Alignas(64) float largest[FINE_PER_COARSE * KV_MAX_KV_HEADS];
    uint32_t first = coarse * FINE_PER_COARSE;
    uint32_t all = (t->n_tokens + KV_CHUNK_FINE - 1) / KV_CHUNK_FINE;
    uint32_t n = all - first < FINE_PER_COARSE ? all - first : FINE_PER_COARSE;
    bound_products(t, fine_of(t, first), n, least, largest);
    for (uint32_t i = 0; i < n; i++)
        push_chunk(t, first + i, true, least + i * t->row, largest + i * t->row);
}

static bool is_free(const struct chunk_table *t, uint32_t position)
{
    return position >= t->forced_below && position < t->forced_from;
}

/* A fine chunk's tokens become candidates; returns how many there are. */
static uint32_t accept(struct chunk_table *t, uint32_t chunk)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < KV_CHUNK_FINE; i++)
        n += is_free(t, chunk * KV_CHUNK_FINE + i);
    if (n)
        t->candidates[chunk / 64] |= (uint64_t)1 << chunk % 64;
    return n;
}

static void list_chunks(struct chunk_table *t)
{
    t->n_chunks = 0;
    for (uint32_t w = 0; w <= t->n_fine / 64; w++)
        for (uint64_t bits = t->candidates[w]; bits; bits &= bits - 1)
            t->chunks[t->n_chunks++] = w * 64 + (uint32_t)__builtin_ctzll(bits);
}

static void search(struct chunk_table *t, uint32_t target)
{
    t->n_heap = 0;
    for (uint32_t c = 0; c < t->n_query_coarse; c++)
        push_chunk(t, c, false, t->least + (uint64_t)c * t->row, t->largest + (uint64_t)c * t->row);
    while (t->n_heap && t->wanted < target) {
        struct found best = heap_pop(t);
        if (best.fine)
            t->wanted += accept(t, best.chunk);
        else
            refine(t, best.chunk);
    }
}

void chunk_table_begin(struct chunk_table *t, struct score_pool *pool, uint32_t sequence,
                       uint32_t layer, const struct kv_selection_settings *settings, const float *q,
                       uint32_t n_tokens)
{
    t->list = sequence * t->g.n_layers + layer;
    t->importance = settings->importance;
    t->n_tokens = n_tokens;
    t->forced_below = settings->sinks < n_tokens ? settings->sinks : n_tokens;
    t->forced_from = settings->window < n_tokens ? n_tokens - settings->window : 0;
    t->wanted = 0;
    t->n_query_coarse = (n_tokens + KV_CHUNK_COARSE - 1) / KV_CHUNK_COARSE;
    memset(t->candidates, 0, (t->n_fine / 64 + 1) * sizeof *t->candidates);
    memset(t->scores, 0, n_tokens * sizeof *t->scores);
    atomic_store_explicit(&t->count, 0, memory_order_relaxed); /* no thread is at work */
    kv_bounds_query(&t->g, t->importance, q, t->whole, t->positive, t->negative);
    struct work_job job = {.run = run_coarse,
                           .context = t,
                           .n = t->n_query_coarse,
                           .bytes = (uint64_t)t->n_query_coarse * t->halves * sizeof(uint16_t)};
    score_pool_start_work(pool, &job, NULL);
    score_pool_wait(pool);
    search(t, kv_bounds_candidates(settings, n_tokens));
    list_chunks(t);
}

const uint32_t *chunk_table_chunks(const struct chunk_table *t, uint32_t *n)
{
    *n = t->n_chunks;
    return t->chunks;
}

bool chunk_table_wants(const struct chunk_table *t, uint32_t position)
{
    uint32_t chunk = position / KV_CHUNK_FINE;
    return position < t->n_tokens && is_free(t, position) &&
           (t->candidates[chunk / 64] >> chunk % 64 & 1);
}

/* ---- keys ---------------------------------------------------------------------------------- */

void chunk_table_keys(struct chunk_table *t, const uint16_t *keys, uint64_t stride_halfs,
                      uint32_t n, const uint32_t *positions)
{
    _Alignas(64) float row[KV_MAX_KV_HEADS];
    uint32_t count = 0, zero = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!chunk_table_wants(t, positions[i]))
            continue;
        t->ops->logits(&t->products, t->whole, keys + i * stride_halfs, stride_halfs, 1, &zero, 1,
                       row);
        uint16_t score = kv_bounds_score16(kv_bounds_combine(&t->g, t->importance, row));
        t->scores[positions[i]] = score ? score : 1;
        count++;
    }
    atomic_fetch_add_explicit(&t->count, count, memory_order_relaxed /* see the struct */);
}

uint32_t chunk_table_count(const struct chunk_table *t, uint32_t *wanted)
{
    *wanted = t->wanted;
    return atomic_load_explicit(&t->count, memory_order_relaxed /* see the struct */);
}

int chunk_table_finish(struct chunk_table *t, uint16_t *scores)
{
    uint32_t wanted;
    if (chunk_table_count(t, &wanted) != wanted)
        return HILL_E_PROTOCOL;
    memcpy(scores, t->scores, t->n_tokens * sizeof *scores);
    return 0;
}
