/* cpu_scorer/chunk_table.c - see chunk_table.h. */
#include "cpu_scorer/chunk_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cpu_scorer/mass_table.h"

#define FINE_PER_COARSE (KV_CHUNK_COARSE / KV_CHUNK_FINE)
#define KEYS_AT_ONCE    64u

struct found {
    float mass;
    uint32_t chunk;
};

struct chunk_table {
    struct kv_geometry g;
    const struct kv_mass_ops *ops;
    uint32_t row, halves;
    uint32_t n_fine, n_coarse; /* of a context */
    uint64_t bytes;
    uint8_t *states; /* of lists: fine [chunks][halves], checks [chunks] */
    uint64_t stride;
    uint16_t *coarse;                      /* [n_sequences][n_layers][chunks][halves] */
    float *prepared, *positive, *negative; /* the query */
    float *rows;                           /* [n_fine][row]: bounds of chunks, then weights */
    float *max, *sum, *scale;              /* [row] */
    float *mass;                           /* [n_fine] */
    struct found *found;                   /* [n_fine]: in order of mass */
    uint32_t *chunks;                      /* [n_fine]: of the candidates */
    uint32_t *ranks;                       /* [n_fine]: where a chunk stands among those */
    uint32_t n_chunks;
    uint64_t *candidates;    /* bitmap of fine chunks */
    struct mass_table *keys; /* of the candidates, chunk after chunk */
    uint16_t *scores;        /* the same */
    /* of the query */
    uint32_t list, n_tokens, forced_below, forced_from, wanted;
};

/* ---- life ---------------------------------------------------------------------------------- */

static void *take(struct chunk_table *t, uint64_t bytes)
{
    uint64_t rounded = (bytes + 63) / 64 * 64;
    void *out = aligned_alloc(64, rounded);
    if (out)
        memset(out, 0, rounded); /* pages are made now, not in the first query */
    t->bytes += rounded;
    return out;
}

static bool allocate(struct chunk_table *t, uint64_t lists)
{
    uint64_t query = kv_mass_query_floats(&t->g) * sizeof(float), row = t->row * sizeof(float);
    t->coarse = take(t, lists * t->n_coarse * t->halves * sizeof *t->coarse);
    t->prepared = take(t, query);
    t->positive = take(t, query);
    t->negative = take(t, query);
    t->rows = take(t, t->n_fine * row);
    t->max = take(t, row);
    t->sum = take(t, row);
    t->scale = take(t, row);
    t->mass = take(t, (uint64_t)t->n_fine * sizeof *t->mass);
    t->found = take(t, (uint64_t)t->n_fine * sizeof *t->found);
    t->chunks = take(t, (uint64_t)t->n_fine * sizeof *t->chunks);
    t->ranks = take(t, (uint64_t)t->n_fine * sizeof *t->ranks);
    t->candidates = take(t, (t->n_fine / 64 + 1) * sizeof *t->candidates);
    t->scores = take(t, (uint64_t)t->n_fine * KV_CHUNK_FINE * sizeof *t->scores);
    return t->coarse && t->prepared && t->positive && t->negative && t->rows && t->max && t->sum &&
           t->scale && t->mass && t->found && t->chunks && t->ranks && t->candidates && t->scores;
}

int chunk_table_create(struct chunk_table **out, const struct kv_geometry *g,
                       const struct kv_mass_ops *ops, uint32_t ctx_tokens, uint32_t n_sequences,
                       uint8_t *states, uint64_t stride)
{
    struct chunk_table *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return HILL_E_NOMEM;
    t->g = *g;
    t->ops = ops;
    t->states = states;
    t->stride = stride;
    t->row = kv_mass_row(g);
    t->halves = kv_bounds_halves(g);
    t->n_fine = ctx_tokens / KV_CHUNK_FINE + 1;
    t->n_coarse = ctx_tokens / KV_CHUNK_COARSE + 1;
    if (!allocate(t, (uint64_t)n_sequences * g->n_layers) ||
        mass_table_create(&t->keys, g, ops, t->n_fine * KV_CHUNK_FINE)) {
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
    mass_table_destroy(t->keys);
    free(t->coarse);
    free(t->prepared);
    free(t->positive);
    free(t->negative);
    free(t->rows);
    free(t->max);
    free(t->sum);
    free(t->scale);
    free(t->mass);
    free(t->found);
    free(t->chunks);
    free(t->ranks);
    free(t->candidates);
    free(t->scores);
    free(t);
}

uint64_t chunk_table_bytes(const struct chunk_table *t)
{
    return t->bytes + mass_table_bytes(t->keys);
}

/* ---- abstracts ----------------------------------------------------------------------------- */

static uint16_t *fine_of(const struct chunk_table *t, uint32_t chunk)
{
    uint16_t *fine = (uint16_t *)(void *)(t->states + t->list * t->stride);
    return fine + (uint64_t)chunk * t->halves;
}

/* Of a whole fine chunk: behind all abstracts, which have an even number of halves a key
 * dimension. */
static uint64_t *check_of(const struct chunk_table *t, uint32_t chunk)
{
    return (uint64_t *)(void *)(t->states + (t->list + 1) * t->stride) - t->n_fine + chunk;
}

static uint64_t check_fine(const struct chunk_table *t, uint32_t chunk)
{
    return XXH3_64bits_withSeed(fine_of(t, chunk), t->halves * sizeof(uint16_t), chunk);
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
        if (run == room)
            *check_of(t, at / KV_CHUNK_FINE) = check_fine(t, at / KV_CHUNK_FINE);
    }
}

/* A coarse chunk's abstract is that of its fine ones' least and largest values. */
int64_t chunk_table_adopt(struct chunk_table *t, uint32_t sequence, uint32_t layer,
                          uint32_t n_tokens)
{
    t->list = sequence * t->g.n_layers + layer;
    for (uint32_t c = 0; c < n_tokens / KV_CHUNK_FINE; c++) {
        if (*check_of(t, c) != check_fine(t, c))
            return HILL_E_DAMAGED;
        kv_bounds_add(&t->g, fine_of(t, c), t->halves / 2, 2, c % FINE_PER_COARSE == 0,
                      coarse_of(t, c / FINE_PER_COARSE));
    }
    return n_tokens / KV_CHUNK_FINE * KV_CHUNK_FINE;
}

/* ---- search -------------------------------------------------------------------------------- */

/* What the keys of a chunk can have at most, a row each, of n abstracts that follow one another. */
static void bound_rows(const struct chunk_table *t, const uint16_t *abstracts, uint32_t n,
                       float *rows)
{
    _Alignas(64) float row[KV_MAX_HEADS];
    uint32_t zero = 0, dims = kv_key_dims(&t->g);
    for (uint32_t i = 0; i < n; i++, abstracts += t->halves, rows += t->row) {
        t->ops->logits(&t->g, t->negative, abstracts, t->halves, 1, &zero, 1, rows);
        t->ops->logits(&t->g, t->positive, abstracts + dims, t->halves, 1, &zero, 1, row);
        for (uint32_t c = 0; c < t->row; c++)
            rows[c] += row[c];
    }
}

static void run_coarse(void *context, uint32_t first, uint32_t end)
{
    const struct chunk_table *t = context;
    bound_rows(t, coarse_of(t, first), end - first, t->rows + (uint64_t)first * t->row);
}

/* The same of fine chunks from all over. */
static void run_fine(void *context, uint32_t first, uint32_t end)
{
    const struct chunk_table *t = context;
    for (uint32_t i = first; i < end; i++)
        bound_rows(t, fine_of(t, t->found[i].chunk), 1, t->rows + (uint64_t)i * t->row);
}

/* n abstracts' bounds into rows, on the scoring threads. */
static void bound_all(struct chunk_table *t, struct score_pool *pool, uint32_t n,
                      void (*run)(void *context, uint32_t first, uint32_t end))
{
    struct work_job job = {
        .run = run, .context = t, .n = n, .bytes = (uint64_t)n * t->halves * sizeof(uint16_t)};
    if (n == 0)
        return;
    score_pool_start_work(pool, &job, NULL);
    score_pool_wait(pool);
}

static int by_mass(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->mass != y->mass)
        return x->mass < y->mass ? 1 : -1;
    return x->chunk < y->chunk ? 1 : -1;
}

/* The first n of t->found, whose bounds are in t->rows, in order of their mass. */
static void rank_found(struct chunk_table *t, uint32_t n)
{
    if (n == 0)
        return;
    t->ops->maximum(t->rows, t->row, n, t->max);
    t->ops->weigh(t->rows, t->row, n, t->max, t->sum);
    kv_mass_merge_sum(&t->g, t->sum, 1, t->scale);
    t->ops->mass(t->rows, t->row, n, t->scale, t->mass);
    for (uint32_t i = 0; i < n; i++)
        t->found[i].mass = t->mass[i];
    qsort(t->found, n, sizeof *t->found, by_mass);
}

static bool is_free(const struct chunk_table *t, uint32_t position)
{
    return position >= t->forced_below && position < t->forced_from;
}

/* Tokens from `first` on, of so many, that are not forced. */
static uint32_t free_tokens(const struct chunk_table *t, uint32_t first, uint32_t tokens)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < tokens; i++)
        n += is_free(t, first + i);
    return n;
}

/* A fine chunk's tokens become candidates. */
static void accept(struct chunk_table *t, uint32_t chunk)
{
    uint32_t n = free_tokens(t, chunk * KV_CHUNK_FINE, KV_CHUNK_FINE);
    t->wanted += n;
    if (n)
        t->candidates[chunk / 64] |= (uint64_t)1 << chunk % 64;
}

/* The coarse chunk's fine ones: whole ones are to be bounded and ranked, after the n that are;
 * returns how many there are then. */
static uint32_t refine(struct chunk_table *t, uint32_t coarse, uint32_t n)
{
    for (uint32_t c = coarse * FINE_PER_COARSE; c < (coarse + 1) * FINE_PER_COARSE; c++) {
        if ((c + 1) * KV_CHUNK_FINE <= t->n_tokens)
            t->found[n++].chunk = c;
        else if (c * KV_CHUNK_FINE < t->n_tokens)
            accept(t, c);
    }
    return n;
}

static void search(struct chunk_table *t, struct score_pool *pool, uint32_t target)
{
    uint32_t n = t->n_tokens / KV_CHUNK_COARSE, refined = 0, n_found = 0, n_refined = 0;
    bound_all(t, pool, n, run_coarse);
    for (uint32_t c = 0; c < n; c++)
        t->found[c].chunk = c;
    rank_found(t, n);
    while (n_refined < n && refined < KV_REFINED_PER_CANDIDATE * target) {
        t->chunks[n_refined] = t->found[n_refined].chunk;
        refined += free_tokens(t, t->chunks[n_refined++] * KV_CHUNK_COARSE, KV_CHUNK_COARSE);
    }
    if (t->n_tokens % KV_CHUNK_COARSE)
        n_found = refine(t, n, n_found);
    for (uint32_t i = 0; i < n_refined; i++)
        n_found = refine(t, t->chunks[i], n_found);
    bound_all(t, pool, n_found, run_fine);
    rank_found(t, n_found);
    for (uint32_t i = 0; i < n_found && t->wanted < target; i++)
        accept(t, t->found[i].chunk);
}

static void list_chunks(struct chunk_table *t)
{
    t->n_chunks = 0;
    for (uint32_t w = 0; w <= t->n_fine / 64; w++)
        for (uint64_t bits = t->candidates[w]; bits; bits &= bits - 1) {
            uint32_t chunk = w * 64 + (uint32_t)__builtin_ctzll(bits);
            t->ranks[chunk] = t->n_chunks;
            t->chunks[t->n_chunks++] = chunk;
        }
}

/* Where the key of a position stands among the candidates'. */
static uint32_t place_of(const struct chunk_table *t, uint32_t position)
{
    return t->ranks[position / KV_CHUNK_FINE] * KV_CHUNK_FINE + position % KV_CHUNK_FINE;
}

static uint32_t position_at(const struct chunk_table *t, uint32_t place)
{
    return t->chunks[place / KV_CHUNK_FINE] * KV_CHUNK_FINE + place % KV_CHUNK_FINE;
}

/* A chunk's tokens that are no candidates have no mass among them. */
static void leave_out_forced(struct chunk_table *t)
{
    for (uint32_t i = 0; i < t->n_chunks; i++) {
        uint32_t first = t->chunks[i] * KV_CHUNK_FINE;
        if (first >= t->forced_below && first + KV_CHUNK_FINE <= t->forced_from)
            continue;
        for (uint32_t j = 0; j < KV_CHUNK_FINE; j++)
            if (!chunk_table_wants(t, first + j))
                mass_table_leave_out(t->keys, i * KV_CHUNK_FINE + j);
    }
}

void chunk_table_begin(struct chunk_table *t, struct score_pool *pool, uint32_t sequence,
                       uint32_t layer, const struct kv_selection_settings *settings, const float *q,
                       uint32_t n_tokens)
{
    uint32_t target = kv_bounds_candidates(settings, n_tokens);
    t->list = sequence * t->g.n_layers + layer;
    t->n_tokens = n_tokens;
    t->forced_below = settings->sinks < n_tokens ? settings->sinks : n_tokens;
    t->forced_from = settings->window < n_tokens ? n_tokens - settings->window : 0;
    t->wanted = 0;
    memset(t->candidates, 0, (t->n_fine / 64 + 1) * sizeof *t->candidates);
    kv_mass_query(&t->g, q, t->prepared);
    kv_bounds_query(&t->g, t->prepared, t->positive, t->negative);
    if (target)
        search(t, pool, target);
    list_chunks(t);
    mass_table_begin(t->keys, q, t->n_chunks * KV_CHUNK_FINE);
    leave_out_forced(t);
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
    uint32_t places[KEYS_AT_ONCE];
    for (uint32_t i = 0, run; i < n; i += run + (run == 0)) {
        for (run = 0; i + run < n && run < KEYS_AT_ONCE; run++) {
            if (!chunk_table_wants(t, positions[i + run]))
                break;
            places[run] = place_of(t, positions[i + run]);
        }
        if (run)
            mass_table_keys(t->keys, keys + i * stride_halfs, stride_halfs, run, places);
    }
}

uint32_t chunk_table_count(const struct chunk_table *t, uint32_t *wanted)
{
    *wanted = t->n_chunks * KV_CHUNK_FINE;
    return mass_table_count(t->keys);
}

int chunk_table_finish(struct chunk_table *t, struct score_pool *pool, uint16_t *scores)
{
    int rc = mass_table_finish(t->keys, pool, NULL, t->scores);
    if (rc)
        return rc;
    memset(scores, 0, t->n_tokens * sizeof *scores);
    for (uint32_t i = 0; i < t->n_chunks * KV_CHUNK_FINE; i++)
        if (chunk_table_wants(t, position_at(t, i)))
            scores[position_at(t, i)] = t->scores[i] ? t->scores[i] : 1;
    return 0;
}
