/*
 * cpu_scorer/evaluate_mass.c - h2o and oracle: attention mass by the FP16 keys of all tokens, worked
 * out on the CPU; see evaluator.h and mass_table.h.
 *
 * h2o ranks by the sums over all queries so far, oracle by the query's own mass. The prompt's sums
 * come by MASS before the first query. A guess that is verified adds nothing.
 */
#include <stdlib.h>

#include "cpu_scorer/key_reader.h"
#include "cpu_scorer/mass_table.h"

struct mass_evaluator {
    struct key_reader reader;
    struct mass_table *table;
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

/* ---- a query -------------------------------------------------------------------------------- */

static void evaluate(struct key_reader *r, const uint16_t *keys, uint32_t n,
                     const uint32_t *positions)
{
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

static void begin(struct evaluator *base, struct query *q)
{
    struct mass_evaluator *e = of(base);
    key_reader_begin(&e->reader, q);
    key_reader_list_stripes(&e->reader);
    key_reader_list_blocks(&e->reader, run_hot);
    mass_table_begin(e->table, q->vector, q->n_tokens);
    key_reader_start(&e->reader);
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

static int create(struct evaluator **out, struct core *core, struct agent *agent)
{
    const struct scorer_config *c = &core->config;
    struct mass_evaluator *e = calloc(1, sizeof *e);
    if (!e)
        return HILL_E_NOMEM;
    e->reader.base = (struct evaluator){&evaluate_mass, core, agent};
    *out = &e->reader.base;
    int rc = key_reader_create(&e->reader, key_reader_stripes_max(core), evaluate);
    return rc ? rc
              : mass_table_create(&e->table, &c->geometry, c->mass, c->ctx_tokens, c->n_sequences);
}

static void destroy(struct evaluator *base)
{
    struct mass_evaluator *e = of(base);
    mass_table_destroy(e->table);
    key_reader_destroy(&e->reader);
    free(e);
}

static uint64_t private_bytes(const struct evaluator *base)
{
    return key_reader_bytes(&of(base)->reader) + mass_table_bytes(of(base)->table);
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
