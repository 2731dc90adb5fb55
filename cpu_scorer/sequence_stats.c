/* cpu_scorer/sequence_stats.c - see sequence_stats.h. */
#include "cpu_scorer/sequence_stats.h"

#include "cpu_scorer/moves.h"

/* The middle of the steps' imbalances, to a percent. */
static double median_imbalance(const struct sequence *s)
{
    uint32_t seen = 0, i = 0;
    while (i < 100 && (seen += s->balance.counts[i]) * 2 < s->stats.steps)
        i++;
    return s->stats.steps ? (i + 0.5) / 100 : 0;
}

static struct scorer_tier tier_stats(uint64_t tokens, uint64_t token_bytes, uint64_t cap_bytes,
                                     uint64_t hits)
{
    return (struct scorer_tier){tokens, tokens * token_bytes, cap_bytes, hits};
}

void sequence_stats_fill(const struct core *c, struct sequence *s)
{
    struct scorer_stats *stats = &s->stats;
    const struct scorer_config *config = &c->config;
    const struct tiers *t = &c->tiers;
    uint64_t entry = t->hkm.entry_bytes, kept = entry + kv_digest_bytes(&config->geometry);
    uint64_t hot = 0, cold = 0, gpu = 0;
    for (uint32_t layer = 0; layer < config->geometry.n_layers; layer++) {
        uint32_t list = tiers_list(t, s->index, layer);
        hot += hkm_hot_tokens(&t->hkm, s->index, layer);
        cold += t->cold.lists[list].committed;
        gpu += gpu_slots_resident(&t->gpu, list);
    }
    stats->request_id = s->request_id;
    stats->imbalance = median_imbalance(s);
    stats->selection_hash = XXH64_digest(s->hash);
    stats->beta = cold ? (double)hot / (double)cold : -1;
    stats->gpu = tier_stats(gpu, entry, config->gpu_cap_bytes, stats->gpu.hits);
    stats->hot = tier_stats(hot, kept, config->hot_cap_bytes, stats->hot.hits);
    stats->cold =
        tier_stats(cold, kept, config->csd ? config->cold_cap_bytes : 0, stats->cold.hits);
    stats->dropped_records = c->dropped_records;
    stats->bounced = s->bounced_before + moves_bounced(c, s);
}

uint32_t sequence_stats_live(struct core *c, struct scorer_stats *out, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->config.n_sequences && n < max; i++) {
        if (c->sequences[i].state != SEQUENCE_ACTIVE)
            continue;
        sequence_stats_fill(c, &c->sequences[i]);
        out[n++] = c->sequences[i].stats;
    }
    return n;
}
