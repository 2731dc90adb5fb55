/*
 * cpu_scorer/evaluate_mass.c - attention mass by the FP16 keys of all tokens, whole ones (h2o,
 * oracle) or a part of their columns (prefetch; kv/partial.h), worked out on the CPU; see
 * evaluator.h and mass_table.h. Positions decide the order of every sum, not places [I7].
 *
 * h2o ranks by the sums over all queries so far, the others by the query's own mass. The prompt's
 * sums come by MASS before the first query. A guess that is verified adds nothing. prefetch: the
 * first keys of a layer say which columns are kept, for the drive's plane too; parts of keys come
 * with a DEMOTE in the place of the mantissas.
 */
#include <stdlib.h>

#include "cpu_scorer/key_reader.h"
#include "cpu_scorer/mass_table.h"
#include "kv/partial.h"

struct mass_evaluator {
    struct key_reader reader;
    struct mass_table *table;
    /* parts of keys; NULL: whole ones */
    uint16_t *columns; /* [n_sequences][n_layers][n_kv_heads][partial dims] */
    float *part;       /* [n_heads][partial dims] of the query */
};

static struct mass_evaluator *of(const void *e)
{
    return (
        struct mass_evaluator *)(void *)e; /* an evaluator, a reader, a context: its first member */
}

/* ---- sums ----------------------------------------------------------------------------------- */

static void open_sequence(struct evaluator *base, const struct sequence *s)
{
    mass_table_clear(of(base)->table, s->index);
}

static void add_mass(struct evaluator *base, const struct sequence *s, uint32_t layer,
                     uint32_t first, uint32_t n, const float *mass)
{
    mass_table_add(of(base)->table, s->index, layer, first, n, mass);
}

static void read_mass(const struct evaluator *base, const struct sequence *s, uint32_t layer,
                      uint32_t first, uint32_t n, float *mass)
{
    mass_table_read(of(base)->table, s->index, layer, first, n, mass);
}

/* ---- parts of keys -------------------------------------------------------------------------- */

/* Of a list; how many there are of all lists. */
static uint16_t *columns_of(const struct mass_evaluator *e, uint32_t sequence, uint32_t layer)
{
    const struct kv_geometry *g = &e->reader.base.core->config.geometry;
    return e->columns + (uint64_t)tiers_list(&e->reader.base.core->tiers, sequence, layer) *
                            g->n_kv_heads * kv_partial_dims(g);
}

static uint64_t columns_of_all(const struct scorer_config *c)
{
    return (uint64_t)c->n_sequences * c->geometry.n_layers * c->geometry.n_kv_heads *
           kv_partial_dims(&c->geometry);
}

static void look(struct evaluator *base, const struct sequence *s, const struct record_append *r)
{
    uint32_t n = r->n_tokens < KV_PARTIAL_TOKENS ? r->n_tokens : KV_PARTIAL_TOKENS;
    kv_partial_columns(&base->core->config.geometry, (const uint16_t *)(const void *)(r + 1),
                       base->core->tiers.hkm.entry_bytes / 2, n,
                       columns_of(of(base), s->index, r->header.layer));
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

static enum mass_rank rank_of(const struct query *q)
{
    if (!q->sequence->sums)
        return MASS_OF_QUERY;
    return q->kind == QUERY_AHEAD ? MASS_OF_ALL_AHEAD : MASS_OF_ALL;
}

static int scores_of(struct key_reader *r, const struct query *q, uint32_t *count, uint32_t *wanted)
{
    struct mass_table *table = of(r)->table;
    (void)wanted;
    int rc = mass_table_finish(table, r->base.core->pool, q->sequence->index, q->header.layer,
                               q->header.step, rank_of(q), r->scores);
    *count = mass_table_count(table);
    return rc;
}

static int finish(struct evaluator *base, struct query *q)
{
    return key_reader_finish(&of(base)->reader, q, scores_of);
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
    int rc = key_reader_create(&e->reader, key_reader_stripes_max(core), evaluate);
    return rc ? rc : mass_table_create(&e->table, keys, c->mass, c->ctx_tokens, c->n_sequences);
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
    e->columns = calloc(columns_of_all(&core->config), sizeof *e->columns);
    e->part = calloc((size_t)parts.n_heads * parts.head_dim, sizeof *e->part);
    return e->columns && e->part ? 0 : HILL_E_NOMEM;
}

static void destroy(struct evaluator *base)
{
    struct mass_evaluator *e = of(base);
    mass_table_destroy(e->table);
    key_reader_destroy(&e->reader);
    free(e->columns);
    free(e->part);
    free(e);
}

static uint64_t private_bytes(const struct evaluator *base)
{
    const struct mass_evaluator *e = of(base);
    return key_reader_bytes(&e->reader) + mass_table_bytes(e->table) +
           (e->columns ? columns_of_all(&base->core->config) * sizeof(uint16_t) : 0);
}

const struct evaluator_ops evaluate_mass = {.create = create,
                                            .destroy = destroy,
                                            .bytes = private_bytes,
                                            .open = open_sequence,
                                            .add_mass = add_mass,
                                            .read_mass = read_mass,
                                            .begin = begin,
                                            .step = key_reader_step,
                                            .settle = key_reader_settle,
                                            .finish = finish};

const struct evaluator_ops evaluate_partial = {.create = create_parts,
                                               .destroy = destroy,
                                               .bytes = private_bytes,
                                               .look = look,
                                               .plane = make_plane,
                                               .begin = begin_parts,
                                               .step = key_reader_step,
                                               .settle = key_reader_settle,
                                               .finish = finish};
