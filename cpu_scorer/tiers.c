/* cpu_scorer/tiers.c - see tiers.h. */
#include "cpu_scorer/tiers.h"

#include "base/log.h"
#include "kv/plane.h"

static int create_map(struct cold_map *map, const struct scorer_config *config, uint32_t n_lists)
{
    uint32_t stripes[LAYOUT_DRIVES_MAX];
    double speeds[LAYOUT_DRIVES_MAX];
    if (!config->csd || config->n_drives < 2)
        return cold_map_init(map, config->csd ? config->stripe_slots : 1,
                             config->csd ? config->n_stripes : 0, n_lists);
    for (uint32_t d = 0; d < config->n_drives; d++) {
        stripes[d] = config->drives[d].n_stripes;
        speeds[d] = config->drives[d].speed;
    }
    int rc = cold_map_init_drives(map, config->stripe_slots, config->n_stripes, stripes,
                                  config->n_drives, n_lists);
    if (rc == 0)
        cold_map_set_speeds(map, speeds);
    return rc;
}

static int create_digests(struct tiers *t, const struct scorer_config *config)
{
    const struct cold_map *cold = &t->cold;
    struct cached_digests_config digests = {.geometry = config->geometry,
                                            .n_blocks = cold->n_stripes *
                                                        (cold->stripe_slots / KV_HOT_BLOCK_TOKENS),
                                            .n_lists = cold->n_lists,
                                            .cap_bytes = config->digest_cache_bytes,
                                            .shares = config->policy != KV_POLICY_HOST_DIGEST};
    if (config->lends_digests) {
        digests.hot_digests = t->hkm.digests;
        digests.hot_entries = t->hkm.entries;
        digests.n_hot_blocks = t->hkm.n_blocks;
        digests.n_owners = config->n_sequences;
    }
    return cached_digests_create(&t->digests, &digests);
}

int tiers_create(struct tiers *t, const struct scorer_config *config, const struct scorer_io *io,
                 struct hill_why *why)
{
    uint32_t n_lists = config->n_sequences * config->geometry.n_layers;
    struct hill_why found = {""};
    uint32_t n_drives = config->n_drives > 1 ? config->n_drives : 1;
    uint64_t pool_slots =
        config->csd ? (uint64_t)n_drives * config->n_stripes * config->stripe_slots : 0;
    struct hkm_config tables = {
        .geometry = config->geometry,
        .ctx_tokens = config->ctx_tokens,
        .n_sequences = config->n_sequences,
        .gpu_slots = config->gpu_slots,
        .n_blocks = config->hot_blocks,
        .cold_slots = (uint32_t)(config->cold_slots > pool_slots ? config->cold_slots : pool_slots),
        .state_bytes = kv_plan_state_bytes(&config->geometry, config->policy, config->ctx_tokens)};
    t->staging = io->staging;
    t->staging_unreserved = io->staging->slot_count;
    t->adopted = config->adopts && hkm_adopt(&t->hkm, io->hot, io->hot_bytes, &tables, &found) == 0;
    int rc = t->adopted ? 0 : hkm_init(&t->hkm, io->hot, io->hot_bytes, &tables, why);
    if (rc)
        return rc;
    if (config->adopts && !t->adopted)
        log_warn("nothing of the hot pool is kept: %s", found.text);
    t->hkm.no_digests = kv_policy_reads_keys(config->policy);
    gpu_slots_init(&t->gpu, t->hkm.gpu_table, n_lists, config->gpu_slots);
    rc = create_map(&t->cold, config, n_lists);
    if (rc)
        return hill_fail(why, rc, "cannot map a cold pool of %u stripes of %u slots: %s",
                         config->n_stripes, config->stripe_slots, hill_strerror(rc));
    rc = create_digests(t, config);
    return rc ? hill_fail(why, rc, "cannot keep digests of cold tokens: %s", hill_strerror(rc)) : 0;
}

void tiers_destroy(struct tiers *t)
{
    cached_digests_destroy(&t->digests);
    cold_map_finish(&t->cold);
}

uint64_t tiers_private_bytes(const struct tiers *t)
{
    uint64_t slots = (uint64_t)t->cold.n_stripes * t->cold.stripe_slots;
    return cached_digests_bytes(&t->digests) + slots * sizeof(uint32_t) + slots / KV_GROUP_TOKENS +
           t->cold.n_stripes * sizeof(struct cold_stripe) +
           (uint64_t)t->cold.n_lists * t->cold.n_drives * sizeof(struct cold_list);
}

static void give_back(void *hkm, uint32_t block)
{
    hkm_give_back(hkm, block);
}

void tiers_lend(struct tiers *t, uint32_t sequence, uint32_t n)
{
    struct cached_digests *d = &t->digests;
    uint32_t blocks[KV_LENT_UNIT_MAX], unit = d->unit.n_blocks;
    uint32_t want = n * t->hkm.geometry.n_layers / unit * unit;
    if (!d->n_frames || !d->config.n_owners)
        return;
    uint32_t has = cached_digests_lent(d, sequence);
    if (has > want)
        cached_digests_take_back(d, sequence, has - want, give_back, &t->hkm);
    for (; has < want && hkm_lend(&t->hkm, unit, blocks) == 0; has += unit)
        cached_digests_lend(d, sequence, blocks);
}

void tiers_release_near(struct tiers *t, uint32_t sequence)
{
    tiers_lend(t, sequence, 0);
    for (uint32_t layer = 0; layer < t->hkm.geometry.n_layers; layer++)
        gpu_slots_clear(&t->gpu, tiers_list(t, sequence, layer));
    hkm_release(&t->hkm, sequence);
}

void tiers_release_cold(struct tiers *t, uint32_t sequence)
{
    for (uint32_t layer = 0; layer < t->hkm.geometry.n_layers; layer++)
        for (uint32_t d = 0; d < t->cold.n_drives; d++)
            cold_map_release(&t->cold, tiers_part(t, sequence, layer, d));
}
