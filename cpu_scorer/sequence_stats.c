/* cpu_scorer/sequence_stats.c - see sequence_stats.h. */
#include "cpu_scorer/sequence_stats.h"

#include <math.h>

#include "cpu_scorer/moves.h"

/* The middle of steps that are counted by percents, to a percent: the last one is 100 % itself,
 * when one side had nothing to do. */
static double median_of(const uint32_t counts[101], uint32_t steps)
{
    uint32_t seen = 0, i = 0;
    while (i < 100 && (seen += counts[i]) * 2 < steps)
        i++;
    return steps ? fmin((i + 0.5) / 100, 1) : 0;
}

static void fill_drives(const struct core *c, struct sequence *s)
{
    s->stats.n_drives = c->config.csd && c->config.n_drives > 1 ? c->config.n_drives : 0;
    s->stats.drive_spread = median_of(s->balance.drive_counts, s->balance.drive_steps);
    for (uint32_t d = 0; d < s->stats.n_drives; d++) {
        s->stats.drives[d].tokens = 0;
        for (uint32_t layer = 0; layer < c->config.geometry.n_layers; layer++)
            s->stats.drives[d].tokens +=
                c->tiers.cold.lists[tiers_part(&c->tiers, s->index, layer, d)].committed;
    }
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
        cold += cold_map_committed(&t->cold, list);
        gpu += gpu_slots_resident(&t->gpu, list);
    }
    stats->request_id = s->request_id;
    stats->imbalance = median_of(s->balance.counts, stats->steps);
    fill_drives(c, s);
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
