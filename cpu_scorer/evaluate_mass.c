/*
 * cpu_scorer/evaluate_mass.c - attention mass by the FP16 keys of all tokens, whole ones (h2o,
 * oracle) or a part of their columns (prefetch; kv/partial.h), worked out on the CPU; see
 * evaluator.h and mass_table.h. Positions decide the order of every sum, not places [I7].
 *
 * h2o ranks by the sums over all queries so far, the others by the query's own mass. The prompt's
 * sums come by MASS before the first query. A guess that is verified adds nothing. prefetch: the
 * first keys of a layer say which columns are kept, for the drive's plane too; parts of keys come
 * with a DEMOTE in the place of the mantissas. Sums and columns lie in the hot segment. Of h2o's
 * prompts the GPU worker has the sums, and what it had goes with it: they begin anew.
 */
#include <stdlib.h>
#include <xxhash.h>

#include "cpu_scorer/key_reader.h"
#include "cpu_scorer/mass_sums.h"
#include "cpu_scorer/mass_table.h"
#include "kv/partial.h"

struct mass_evaluator {
    struct key_reader reader;
    struct mass_table *table;
    struct mass_sums sums; /* of whole keys */
    float *part;           /* [n_heads][partial dims] of the query; NULL: of whole keys */
};

static struct mass_evaluator *of(const void *e)
{
    return (
        struct mass_evaluator *)(void *)e; /* an evaluator, a reader, a context: its first member */
}

/* ---- sums ----------------------------------------------------------------------------------- */

static uint32_t list_of(const struct evaluator *base, const struct sequence *s, uint32_t layer)
{
    return tiers_list(&base->core->tiers, s->index, layer);
}

static void open_sequence(struct evaluator *base, const struct sequence *s)
{
    for (uint32_t layer = 0; layer < base->core->config.geometry.n_layers; layer++)
        mass_sums_clear(&of(base)->sums, list_of(base, s, layer));
}

static int adopt_sums(struct evaluator *base, const struct sequence *s)
{
    int rc = s->sums && s->adoption.prompt ? HILL_E_UNSUPPORTED : 0;
    for (uint32_t layer = 0; s->sums && !rc && layer < base->core->config.geometry.n_layers;
         layer++)
        rc = mass_sums_adopt(&of(base)->sums, list_of(base, s, layer), s->hashed_step);
    return rc;
}

static void add_mass(struct evaluator *base, const struct sequence *s, uint32_t layer,
                     uint32_t first, uint32_t n, const float *mass)
{
    mass_sums_give(&of(base)->sums, list_of(base, s, layer), first, n, mass);
}

static void read_mass(const struct evaluator *base, const struct sequence *s, uint32_t layer,
                      uint32_t first, uint32_t n, float *mass)
{
    mass_sums_read(&of(base)->sums, list_of(base, s, layer), first, n, mass);
}

/* ---- parts of keys -------------------------------------------------------------------------- */

/* Of a list: [n_kv_heads][partial dims], and behind them their check. */
static uint16_t *columns_of(const struct mass_evaluator *e, uint32_t sequence, uint32_t layer)
{
    const struct hkm *hkm = &e->reader.base.core->tiers.hkm;
    uint32_t list = hkm_list_index(hkm, sequence, layer);
    return (uint16_t *)(void *)(hkm->states + list * hkm->header->state_bytes);
}

static uint64_t *check_of(const struct mass_evaluator *e, uint16_t *columns)
{
    uint64_t state_bytes = e->reader.base.core->tiers.hkm.header->state_bytes;
    return (uint64_t *)(void *)((uint8_t *)columns + state_bytes) - 1;
}

static uint64_t check_columns(const struct mass_evaluator *e, const uint16_t *columns)
{
    return XXH3_64bits(columns, e->reader.key_bytes);
}

static void look(struct evaluator *base, const struct sequence *s, const struct record_append *r)
{
    if (r->first != 0)
        return;
    uint32_t n = r->n_tokens < KV_PARTIAL_TOKENS ? r->n_tokens : KV_PARTIAL_TOKENS;
    uint16_t *columns = columns_of(of(base), s->index, r->header.layer);
    kv_partial_columns(&base->core->config.geometry, (const uint16_t *)(const void *)(r + 1),
                       base->core->tiers.hkm.entry_bytes / 2, n, columns);
    *check_of(of(base), columns) = check_columns(of(base), columns);
}

/* Before a layer has its first token its columns are not asked for. */
static int adopt_columns(struct evaluator *base, const struct sequence *s)
{
    for (uint32_t layer = 0; layer < base->core->config.geometry.n_layers; layer++) {
        uint16_t *columns = columns_of(of(base), s->index, layer);
        if (s->layers[layer].appended &&
            *check_of(of(base), columns) != check_columns(of(base), columns))
            return HILL_E_DAMAGED;
    }
    return 0;
}

static void make_plane(struct evaluator *base, const struct sequence *s, uint32_t layer,
                       const struct plane_source *from, uint8_t *plane)
{
    const struct mass_evaluator *e = of(base);
    const struct kv_geometry *g = &base->core->config.geometry;
    const struct hkm *hkm = &base->core->tiers.hkm;
    uint32_t key_bytes = e->reader.key_bytes;
    const uint16_t *columns = columns_of(e, s->index, layer);
    if (key_bytes == 2 * kv_key_dims(g))
        return; /* whole keys, which the agent takes out of the entries */
    for (uint32_t i = 0; i < from->n; i++) {
        const uint8_t *entry =
            from->entries
                ? from->entries + (uint64_t)i * hkm->entry_bytes
                : hkm_entry(hkm, hkm_slot(core_location(base->core, s, layer, from->positions[i])));
        kv_partial_key(g, columns, (const uint16_t *)(const void *)entry,
                       (uint16_t *)(void *)(plane + (uint64_t)i * key_bytes));
    }
}

/* ---- a query -------------------------------------------------------------------------------- */

static void evaluate(struct key_reader *r, const void *keys, uint32_t n, uint32_t slot,
                     const uint32_t *positions)
{
    (void)slot;
    mass_table_keys(of(r)->table, keys, r->key_bytes / 2, n, positions);
}

static void run_hot(void *context, uint32_t first, uint32_t end)
{
    const struct mass_evaluator *e = context;
    const struct hkm *hkm = &e->reader.base.core->tiers.hkm;
    for (uint32_t i = first; i < end; i++) {
        uint32_t slot = e->reader.blocks[i] * KV_HOT_BLOCK_TOKENS;
        mass_table_keys(e->table, (const uint16_t *)(const void *)hkm_entry(hkm, slot),
                        hkm->entry_bytes / 2, KV_HOT_BLOCK_TOKENS, &hkm->positions[slot]);
    }
}

static void run_hot_parts(void *context, uint32_t first, uint32_t end)
{
    const struct mass_evaluator *e = context;
    const struct hkm *hkm = &e->reader.base.core->tiers.hkm;
    const struct query *q = e->reader.query;
    const uint16_t *columns = columns_of(e, q->sequence->index, q->header.layer);
    uint16_t part[KV_MAX_KEY_DIMS / 2];
    for (uint32_t i = first; i < end; i++)
        for (uint32_t j = 0; j < KV_HOT_BLOCK_TOKENS; j++) {
            uint32_t slot = e->reader.blocks[i] * KV_HOT_BLOCK_TOKENS + j;
            if (hkm->positions[slot] == HKM_NO_POSITION)
                continue;
            kv_partial_key(&e->reader.base.core->config.geometry, columns,
                           (const uint16_t *)(const void *)hkm_entry(hkm, slot), part);
            mass_table_keys(e->table, part, e->reader.key_bytes / 2, 1, &hkm->positions[slot]);
        }
}

static void begin_with(struct mass_evaluator *e, struct query *q, const float *vector,
                       void (*hot)(void *, uint32_t, uint32_t))
{
    key_reader_begin(&e->reader, q);
    key_reader_list_stripes(&e->reader);
    key_reader_list_blocks(&e->reader, hot);
    mass_table_begin(e->table, vector, q->n_tokens);
    key_reader_start(&e->reader);
}

static void begin(struct evaluator *base, struct query *q)
{
    begin_with(of(base), q, q->vector, run_hot);
}

static void begin_parts(struct evaluator *base, struct query *q)
{
    struct mass_evaluator *e = of(base);
    kv_partial_query(&base->core->config.geometry,
                     columns_of(e, q->sequence->index, q->header.layer), q->vector, e->part);
    begin_with(e, q, e->part, run_hot_parts);
}

static int scores_of(struct key_reader *r, const struct query *q, uint32_t *count, uint32_t *wanted)
{
    struct mass_evaluator *e = of(r);
    uint32_t list = r->list, step = q->header.step;
    bool adds = q->sequence->sums && q->kind != QUERY_AHEAD; /* an exact query follows a guess */
    struct mass_ranking ranking = {0};
    (void)wanted;
    if (q->sequence->sums)
        ranking.before = mass_sums_before(&e->sums, list, step, &ranking.n_before);
    if (adds)
        ranking.after = mass_sums_begin(&e->sums, list, step);
    int rc = mass_table_finish(e->table, r->base.core->pool, q->sequence->sums ? &ranking : NULL,
                               r->scores);
    if (adds && rc == 0)
        mass_sums_end(&e->sums, list, ranking.after, step, q->n_tokens);
    *count = mass_table_count(e->table);
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------- */

static int create_with(struct evaluator **out, struct core *core, struct agent *agent,
                       const struct evaluator_ops *ops, const struct kv_geometry *keys)
{
    const struct scorer_config *c = &core->config;
    struct mass_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->reader.base = (struct evaluator){ops, core, agent};
    *out = &e->reader.base;
    const struct hkm *hkm = &core->tiers.hkm;
    e->sums = (struct mass_sums){hkm->states, hkm->header->state_bytes, c->ctx_tokens};
    int rc = key_reader_create(&e->reader, key_reader_stripes_max(core), evaluate, scores_of);
    return rc ? rc : mass_table_create(&e->table, keys, c->mass, c->ctx_tokens);
}

static int create(struct evaluator **out, struct core *core, struct agent *agent)
{
    return create_with(out, core, agent, &evaluate_mass, &core->config.geometry);
}

static int create_parts(struct evaluator **out, struct core *core, struct agent *agent)
{
    struct kv_geometry parts = kv_partial_geometry(&core->config.geometry);
    int rc = create_with(out, core, agent, &evaluate_partial, &parts);
    if (rc)
        return rc;
    struct mass_evaluator *e = of(*out);
    e->part = calloc((size_t)parts.n_heads * parts.head_dim, sizeof *e->part);
    return e->part ? 0 : HILL_E_NOMEM;
}

static void destroy(struct evaluator *base)
{
    struct mass_evaluator *e = of(base);
    mass_table_destroy(e->table);
    key_reader_destroy(&e->reader);
    free(e->part);
    free(e);
}

static uint64_t private_bytes(const struct evaluator *base)
{
    const struct mass_evaluator *e = of(base);
    return key_reader_bytes(&e->reader) + mass_table_bytes(e->table);
}

const struct evaluator_ops evaluate_mass = {.create = create,
                                            .destroy = destroy,
                                            .bytes = private_bytes,
                                            .open = open_sequence,
                                            .adopt = adopt_sums,
                                            .add_mass = add_mass,
                                            .read_mass = read_mass,
                                            .begin = begin,
                                            .step = key_reader_step,
                                            .settle = key_reader_settle,
                                            .finish = key_reader_finish};

const struct evaluator_ops evaluate_partial = {.create = create_parts,
                                               .destroy = destroy,
                                               .bytes = private_bytes,
                                               .adopt = adopt_columns,
                                               .look = look,
                                               .plane = make_plane,
                                               .begin = begin_parts,
                                               .step = key_reader_step,
                                               .settle = key_reader_settle,
                                               .finish = key_reader_finish};
