/* cpu_scorer/key_sample.c - see key_sample.h. */
#include "cpu_scorer/key_sample.h"

#include <string.h>

#include "kv/sample.h"

struct key_sample { /* of a (sequence, layer) */
    uint8_t *groups;
    uint64_t *checks;
};

static struct key_sample sample_of(const struct core *c, const struct sequence *s, uint32_t layer)
{
    const struct hkm *hkm = &c->tiers.hkm;
    uint8_t *state = hkm->states + hkm_list_index(hkm, s->index, layer) * hkm->header->state_bytes;
    uint32_t groups = kv_groups_touched(0, kv_sample_count(c->config.ctx_tokens));
    uint64_t bytes = (uint64_t)groups * kv_group_bytes(&c->config.geometry);
    return (struct key_sample){state, (uint64_t *)(void *)(state + bytes)};
}

static uint64_t check_of(const struct core *c, const struct key_sample *sample, uint32_t i)
{
    const struct kv_geometry *g = &c->config.geometry;
    int8_t mantissas[KV_MAX_HEAD_DIM];
    uint64_t check = i;
    for (uint32_t h = 0; h < g->n_kv_heads; h++) {
        check ^= kv_digest_get_head(g, sample->groups, i, h, mantissas);
        check = XXH3_64bits_withSeed(mantissas, g->head_dim, check);
    }
    return check;
}

void key_sample_look(const struct core *c, const struct sequence *s, const struct record_append *r)
{
    const struct kv_geometry *g = &c->config.geometry;
    struct key_sample sample = sample_of(c, s, r->header.layer);
    uint32_t halves = c->tiers.hkm.entry_bytes / 2;
    uint32_t end = kv_sample_count(r->first + r->n_tokens);
    const uint16_t *entries = (const uint16_t *)(const void *)(r + 1);
    for (uint32_t i = kv_sample_count(r->first); i < end; i++) {
        kv_digest_keys(g, entries + (uint64_t)(kv_sample_position(i) - r->first) * halves, halves,
                       1, sample.groups, i);
        sample.checks[i] = check_of(c, &sample, i);
    }
}

int key_sample_adopt(const struct core *c, const struct sequence *s)
{
    for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++) {
        struct key_sample sample = sample_of(c, s, layer);
        for (uint32_t i = 0; i < kv_sample_count(s->layers[layer].appended); i++)
            if (sample.checks[i] != check_of(c, &sample, i))
                return HILL_E_DAMAGED;
    }
    return 0;
}

struct kv_query key_sample_query(const struct core *c, const struct sequence *s, uint32_t layer,
                                 const float *q, uint32_t n_tokens, void *bytes)
{
    const struct kv_geometry *g = &c->config.geometry;
    int32_t exponent;
    struct kv_query query = kv_query_make(g, s->settings.importance, q, bytes, &exponent);
    int64_t *offsets = bytes;
    if (query.importance == KV_IMPORTANCE_HEADS)
        kv_sample_offsets(g, &query, exponent, sample_of(c, s, layer).groups, n_tokens, offsets);
    return query;
}
