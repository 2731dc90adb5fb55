/*
 * test_cold_pool.c - random demotes, commits, queries, fetches and trims against a model in arrays;
 * what a query reads; commands that do not fit.
 */
#include "csd_agent/digest_cache.h"
#include "tests/csd_agent/pool_scene.h"
#include "tests/kv/digests.h"

/* ---- commands, each carried out and checked ---- */

/* Slots after the last in use, sometimes with a gap; or, one time in four, written slots in the
 * middle again. */
static void random_demote(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t stripe = model_stripe_for(&s->m, sequence, layer, random_below(6) == 0);
    struct cold_cost cost = {0};

    if (stripe == UINT32_MAX)
        return;
    uint32_t base = stripe * s->m.stripe_slots, end = base + s->m.stripe_slots, at = base;
    for (uint32_t i = base; i < end; i++)
        if (s->m.slots[i].state != SLOT_FREE)
            at = i + 1;
    if (random_below(4) == 0 && at > base) {
        uint32_t again = base + random_below(at - base);
        at = s->m.slots[again].state == SLOT_WRITTEN ? again : at;
    }
    if (random_below(5) == 0 && (at == end || s->m.slots[at].state == SLOT_FREE))
        at += random_below(40);
    uint32_t n = 1 + random_below(random_below(2) ? MAX_COMMAND_SLOTS : 9);
    if (at >= end)
        return;
    if (n > end - at)
        n = end - at;
    for (uint32_t i = 0; i < n; i++)
        if (s->m.slots[at + i].state == SLOT_COMMITTED)
            n = i;
    if (n > 0)
        assert_int_equal(pool_scene_write(s, at, n, &cost), 0);
    /* the pages of two groups, and two of entries */
    uint64_t group_pages = kv_group_bytes(&s->m.g) / CSD_ALIGN + 2;
    assert_true(cost.flash_read_bytes <= (2 * group_pages + 2) * CSD_ALIGN);
}

/* Slots that are written or were never, wherever they lie in the layer's stripes; what is committed
 * beside them stays as it is. */
static void random_reuse(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t slots[MAX_COMMAND_SLOTS], positions[MAX_COMMAND_SLOTS], n = 0, kv_heads, dims;
    uint32_t most = 1 + random_below(random_below(2) ? MAX_COMMAND_SLOTS : 9);
    uint32_t each = 1 + random_below(60), entry_bytes = kv_entry_bytes(&s->m.g);
    struct cold_cost cost = {0};
    struct hill_why why = {""};

    kv_heads = s->m.g.n_kv_heads;
    dims = kv_key_dims(&s->m.g);
    for (uint32_t i = 0; i < s->m.n_stripes * s->m.stripe_slots && n < most; i++) {
        const struct model_stripe *stripe = &s->m.stripes[i / s->m.stripe_slots];
        if (stripe->claimed && stripe->sequence == sequence && stripe->layer == layer &&
            s->m.slots[i].state != SLOT_COMMITTED && random_below(each) == 0)
            slots[n++] = i;
    }
    if (n == 0)
        return;
    uint32_t lane = slots[0] % KV_GROUP_TOKENS;
    uint8_t *groups = malloc((size_t)kv_groups_touched(lane, n) * kv_group_bytes(&s->m.g));
    uint8_t *entries = malloc((size_t)n * entry_bytes);
    for (uint32_t i = 0; i < n; i++) {
        model_write(&s->m, slots[i], 1);
        positions[i] = s->m.slots[slots[i]].position;
        kv_digest_put(&s->m.g, groups, lane + i, s->m.mantissas + (size_t)slots[i] * dims,
                      s->m.exponents + (size_t)slots[i] * kv_heads);
        memcpy(entries + (size_t)i * entry_bytes, s->m.entries + (size_t)slots[i] * entry_bytes,
               entry_bytes);
    }
    struct cold_demote demote = {.sequence = sequence,
                                 .layer = layer,
                                 .first_slot = slots[0],
                                 .n_slots = n,
                                 .slots = slots,
                                 .positions = positions,
                                 .digests = groups,
                                 .entries = entries};
    assert_int_equal(cold_pool_demote(s->pool, &demote, &cost, &why), 0);
    /* no page more than those of each slot's group and entry, nothing twice */
    uint64_t pages = kv_group_bytes(&s->m.g) / CSD_ALIGN + 2 + entry_bytes / CSD_ALIGN + 2;
    assert_true(cost.flash_write_bytes <= n * pages * CSD_ALIGN);
    assert_true(cost.flash_read_bytes <= cost.flash_write_bytes);
    free(groups);
    free(entries);
}

static void random_commit(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t slots[MAX_COMMAND_SLOTS] = {0}, n = 0;
    struct hill_why why = {""};
    bool all = random_below(2);

    for (uint32_t i = 0; i < s->m.n_stripes * s->m.stripe_slots && n < MAX_COMMAND_SLOTS; i++) {
        const struct model_stripe *stripe = &s->m.stripes[i / s->m.stripe_slots];
        if (s->m.slots[i].state == SLOT_WRITTEN && stripe->sequence == sequence &&
            stripe->layer == layer && (all || random_below(3)))
            slots[n++] = i;
    }
    for (uint32_t i = n; i > 1; i--) { /* any order will do */
        uint32_t j = random_below(i), t = slots[i - 1];
        slots[i - 1] = slots[j];
        slots[j] = t;
    }
    assert_int_equal(cold_pool_commit(s->pool, sequence, layer, slots, n, &why), 0);
    for (uint32_t i = 0; i < n; i++)
        s->m.slots[slots[i]].state = SLOT_COMMITTED;
}

/* Some of what is committed moves up: it is written, not committed, and can be committed again. */
static void random_release(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t slots[MAX_COMMAND_SLOTS] = {0}, n = 0;
    struct hill_why why = {""};

    for (uint32_t i = 0; i < s->m.n_stripes * s->m.stripe_slots && n < MAX_COMMAND_SLOTS; i++) {
        const struct model_stripe *stripe = &s->m.stripes[i / s->m.stripe_slots];
        if (s->m.slots[i].state == SLOT_COMMITTED && stripe->sequence == sequence &&
            stripe->layer == layer && random_below(5) == 0)
            slots[n++] = i;
    }
    assert_int_equal(cold_pool_release(s->pool, sequence, layer, slots, n, &why), 0);
    for (uint32_t i = 0; i < n; i++)
        s->m.slots[slots[i]].state = SLOT_WRITTEN;
    if (n > 0)
        assert_int_equal(cold_pool_release(s->pool, sequence, layer, slots, 1, &why),
                         HILL_E_PROTOCOL);
}

static uint32_t pick_committed(const struct model *m, uint32_t sequence, uint32_t layer)
{
    for (uint32_t tries = 0; tries < 2000; tries++) {
        uint32_t slot = random_below(m->n_stripes * m->stripe_slots);
        const struct model_stripe *stripe = &m->stripes[slot / m->stripe_slots];
        if (m->slots[slot].state == SLOT_COMMITTED && stripe->sequence == sequence &&
            stripe->layer == layer)
            return slot;
    }
    return UINT32_MAX;
}

/* Committed ones, until there are `most`; how many there are then. */
static uint32_t pick_items(struct pool_scene *s, uint32_t sequence, uint32_t layer,
                           struct fetch_item *items, uint32_t n, uint32_t most)
{
    uint32_t first = n;
    for (uint32_t i = n; i < most; i++) {
        uint32_t slot = i % 3 && n > first ? items[n - 1].cold_slot + 1
                                           : pick_committed(&s->m, sequence, layer);
        if (slot >= s->m.n_stripes * s->m.stripe_slots || slot % s->m.stripe_slots == 0 ||
            s->m.slots[slot].state != SLOT_COMMITTED)
            continue;
        items[n] = (struct fetch_item){slot, s->m.slots[slot].position, n,
                                       shm_arena_generation(&s->staging, n)};
        n++;
    }
    return n;
}

static void random_fetch(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t entry_bytes = kv_entry_bytes(&s->m.g), other = (sequence + 1) % s->m.n_sequences, bad;
    struct fetch_item items[STAGING_SLOTS];
    struct cold_cost cost = {0};
    struct hill_why why = {""};

    uint32_t own = pick_items(s, sequence, layer, items, 0, 1 + random_below(STAGING_SLOTS));
    uint32_t n = pick_items(s, other, layer, items, own, STAGING_SLOTS);
    const struct fetch_row row = {.sequence = other, .first = own};
    const struct cold_fetch fetch = {sequence, layer, items, n, &s->staging, &row, n > own};
    if (n == 0)
        return;
    random_bytes(shm_arena_slot(&s->staging, 0), STAGING_SLOTS * s->staging.stride);
    assert_int_equal(cold_pool_fetch(s->pool, &fetch, &cost, &bad, &why), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_memory_equal(shm_arena_slot(&s->staging, items[i].staging_slot),
                            s->m.entries + (size_t)items[i].cold_slot * entry_bytes, entry_bytes);
    assert_int_equal(cost.flash_read_bytes, cost.link_kv_bytes);
    assert_int_equal(cost.link_kv_bytes % CSD_ALIGN, 0);
    if (own && n > own && other != sequence) { /* the second one's as the first one's */
        struct cold_fetch of_one = fetch;
        of_one.n_rows = 0;
        assert_int_equal(cold_pool_fetch(s->pool, &of_one, &cost, &bad, &why), HILL_E_PROTOCOL);
        cost = (struct cold_cost){0};
    }
    items[0].generation++;
    assert_int_equal(cold_pool_fetch(s->pool, &fetch, &cost, &bad, &why), HILL_E_PROTOCOL);
}

/* The stripe's committed slots, some at a time; what was only written is free. */
static void adopt_stripe(struct pool_scene *s, uint32_t stripe)
{
    const struct model_stripe *owner = &s->m.stripes[stripe];
    uint32_t entry_bytes = kv_entry_bytes(&s->m.g), n = 0;
    struct adopt_item items[MAX_COMMAND_SLOTS];
    struct hill_why why = {""};

    for (uint32_t i = 0; i < s->m.stripe_slots; i++) {
        uint32_t slot = stripe * s->m.stripe_slots + i;
        if (s->m.slots[slot].state == SLOT_WRITTEN)
            s->m.slots[slot].state = SLOT_FREE;
        if (s->m.slots[slot].state == SLOT_COMMITTED)
            items[n++] = (struct adopt_item){
                slot, s->m.slots[slot].position,
                pool_entry_checksum(s->m.entries + (size_t)slot * entry_bytes, entry_bytes)};
        if (n < MAX_COMMAND_SLOTS && i + 1 < s->m.stripe_slots && random_below(50))
            continue;
        const struct cold_adopt adopt = {owner->sequence, owner->layer, stripe,
                                         owner->order,    items,        n};
        struct cold_adopted adopted;
        assert_int_equal(cold_pool_adopt(s->pool, &adopt, &adopted, &why), 0);
        assert_int_equal(adopted.n, n);
        assert_int_equal(cold_pool_adopt(s->pool, &adopt, &adopted, &why), 0);
        assert_int_equal(adopted.n, 0); /* once */
        if (n > 0) {
            items[n - 1].position++; /* another token's by now */
            assert_int_equal(cold_pool_adopt(s->pool, &adopt, &adopted, &why), HILL_E_PROTOCOL);
        }
        n = 0;
    }
}

/* Another agent takes the pool over. Whose stamp is another adopts nothing. */
static void reopen(struct pool_scene *s, const struct cold_pool_config *config)
{
    struct cold_pool_config kept = *config;
    const struct cold_adopt nothing = {0};
    struct cold_adopted adopted;
    struct hill_why why = {""};

    cold_pool_close(s->pool);
    kept.keeps = true;
    assert_int_equal(cold_pool_open(&s->pool, &kept, &why), 0);
    for (uint32_t stripe = 0; stripe < s->m.n_stripes; stripe++)
        if (s->m.stripes[stripe].claimed)
            adopt_stripe(s, stripe);
    if (model_committed(&s->m, 0, 0) + model_committed(&s->m, 1, 0) > 0)
        return;
    cold_pool_close(s->pool); /* nobody has anything in layer 0: then all of it may go */
    kept.stamp.epoch++;
    assert_int_equal(cold_pool_open(&s->pool, &kept, &why), 0);
    assert_int_equal(cold_pool_adopt(s->pool, &nothing, &adopted, &why), HILL_E_DAMAGED);
    assert_int_equal(adopted.bad_position, COLD_NO_POSITION);
    cold_pool_close(s->pool);
    assert_int_equal(cold_pool_open(&s->pool, config, &why), 0);
    model_trim(&s->m, 0);
    model_trim(&s->m, 1);
}

static uint32_t dram_max; /* digests are kept in memory, up to a cap that changes; 0: none are */

static void random_operations(const struct cold_pool_config *config, uint32_t n)
{
    struct pool_scene s;

    pool_scene_open(&s, config);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sequence = random_below(2), layer = random_below(config->geometry.n_layers);
        uint32_t what = random_below(100);
        if (what < 35)
            random_demote(&s, sequence, layer);
        else if (what < 45)
            random_reuse(&s, sequence, layer);
        else if (what < 60)
            random_commit(&s, sequence, layer);
        else if (what < 67)
            random_release(&s, sequence, layer);
        else if (what < 80)
            pool_scene_query_part(&s, sequence, layer);
        else if (what < 97)
            random_fetch(&s, sequence, layer);
        else {
            cold_pool_trim(s.pool, sequence);
            model_trim(&s.m, sequence);
        }
        if (random_below(4) == 0)
            assert_true(cold_pool_write_directory(s.pool, NULL) >= 0);
        if (random_below(40) == 0)
            reopen(&s, config);
        if (dram_max && random_below(10) == 0)
            cold_pool_limit_dram(s.pool, random_below(dram_max));
    }
    pool_scene_close(&s);
}

static void test_random_operations_equal_the_model(void **state)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 12);

    (void)state;
    random_seed(11);
    random_operations(&config, 400);
    config.options.device = FIRST_OPENCL_DEVICE;
    random_operations(&config, 400);
}

/* Entries are fetched from where they lie. */
static void test_random_operations_in_memory(void **state)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 12);

    (void)state;
    skip_without_folder();
    random_seed(18);
    random_operations(&config, 400);
}

static void test_random_operations_where_groups_are_longer_than_a_page(void **state)
{
    /* groups of 5440 bytes: each has another's bytes in its first and its last page */
    struct kv_geometry g = {2, 1, 1, 333};
    struct cold_pool_config config = pool_scene_config(&g, 6);

    (void)state;
    random_seed(12);
    random_operations(&config, 200);
    config.options.device = FIRST_OPENCL_DEVICE;
    random_operations(&config, 200);
}

static void test_random_operations_with_digests_in_dram(void **state)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = pool_scene_config(&g, 12);

    (void)state;
    random_seed(17);
    dram_max = 4 * 64 * 1024; /* some stripes of it */
    random_operations(&config, 400);
    config.options.device = FIRST_OPENCL_DEVICE;
    random_operations(&config, 400);
    dram_max = 0;
}

static void test_random_operations_with_digests_of_four_bits(void **state)
{
    struct kv_geometry g = {2, 4, 2, 28, 4};
    struct cold_pool_config config = pool_scene_config(&g, 10);

    (void)state;
    random_seed(15);
    random_operations(&config, 250);
    config.options.device = FIRST_OPENCL_DEVICE;
    random_operations(&config, 250);
}

static void test_random_operations_on_the_fallback_paths(void **state)
{
    struct kv_geometry g = {2, 4, 2, 20};
    struct cold_pool_config config = pool_scene_config(&g, 8);

    (void)state;
    random_seed(13);
    config.options.force_buffered = config.options.force_pread = true;
    random_operations(&config, 150);
}

static void test_random_operations_on_keys_that_are_cast(void **state)
{
    /* keys of 96 and, two of them a page with another's bytes, 2664 */
    struct kv_geometry shapes[] = {{2, 4, 2, 24}, {2, 4, 4, 333, 4}};

    (void)state;
    random_seed(21);
    for (int i = 0; i < 2; i++) {
        struct cold_pool_config config = pool_scene_config_cast(&shapes[i], 8);
        random_operations(&config, 150);
        config.options.device = FIRST_OPENCL_DEVICE;
        random_operations(&config, 150);
    }
}

static void cover_a_whole_layer(const char *device)
{
    struct kv_geometry g = {1, 8, 8, 64}; /* stripes of about 1 MiB of digests */
    struct cold_pool_config config = pool_scene_config(&g, 3);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;

    config.options.device = device;
    config.options.batch_bytes = 0;
    pool_scene_open(&s, &config);
    for (uint32_t stripe = 0; stripe < 3; stripe++) {
        s.m.stripes[stripe] = (struct model_stripe){true, 0, 0, stripe};
        for (uint32_t at = 0; at < s.m.stripe_slots; at += 256)
            assert_int_equal(pool_scene_write(&s, stripe * s.m.stripe_slots + at, 256, &cost), 0);
    }
    assert_int_equal(cost.flash_read_bytes, 0); /* in order: no page is ever read back */
    for (uint32_t i = 0; i < 3 * s.m.stripe_slots; i++) {
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &i, 1, &why), 0);
        s.m.slots[i].state = SLOT_COMMITTED;
    }
    pool_scene_query(&s, 0, 0);
    pool_scene_close(&s);
}

static void test_default_batches_cover_a_whole_layer(void **state)
{
    (void)state;
    random_seed(14);
    cover_a_whole_layer(CSD_HOST_CPU);
    cover_a_whole_layer(FIRST_OPENCL_DEVICE);
}

/* Groups of 4160 bytes, a page and 64 bytes: what a query reads is counted by hand. */
static void test_a_query_passes_over_groups_that_do_not_count(void **state)
{
    struct kv_geometry g = {1, 4, 4, 63}; /* 64 of exponents, 4 heads of 16 words of 16 tokens */
    struct cold_pool_config config = pool_scene_config(&g, 3);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    random_seed(16);
    pool_scene_open(&s, &config);
    assert_int_equal(kv_group_bytes(&g), 64 + 4096);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    s.m.stripes[2] = (struct model_stripe){true, 0, 0, 1};
    for (uint32_t stripe = 0; stripe < 3; stripe += 2)
        for (uint32_t i = 0; i < 256; i++) { /* 16 groups of each */
            uint32_t slot = stripe * s.m.stripe_slots + i;
            assert_int_equal(pool_scene_write(&s, slot, 1, &cost), 0);
            assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
            s.m.slots[slot].state = SLOT_COMMITTED;
        }
    assert_int_equal(pool_scene_query_reads(&s), 2 * 17 * CSD_ALIGN);
    for (uint32_t i = 0; i < 3 * 16; i++) /* groups 5, 6, 7: fewer bytes than are passed over */
        pool_scene_release(&s, 80 + i);
    assert_int_equal(pool_scene_query_reads(&s), 2 * 17 * CSD_ALIGN);
    for (uint32_t i = 0; i < 15; i++) /* all but one of group 8 */
        pool_scene_release(&s, 8 * 16 + i);
    assert_int_equal(pool_scene_query_reads(&s), 2 * 17 * CSD_ALIGN);
    pool_scene_release(&s, 8 * 16 + 15); /* groups 0 .. 4 are 6 pages, 9 .. 15 are 8 */
    assert_int_equal(pool_scene_query_reads(&s), (6 + 8 + 17) * CSD_ALIGN);
    for (uint32_t i = 0; i < 80; i++) /* nothing before it: no gap at a stripe's start */
        pool_scene_release(&s, i);
    assert_int_equal(pool_scene_query_reads(&s), (8 + 17) * CSD_ALIGN);
    for (uint32_t i = 2 * s.m.stripe_slots; i < 2 * s.m.stripe_slots + 256; i++)
        pool_scene_release(&s, i);
    assert_int_equal(pool_scene_query_reads(&s), 8 * CSD_ALIGN);
    uint32_t again = 8 * 16 + 3;
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, &again, 1, &why), 0);
    s.m.slots[again].state = SLOT_COMMITTED;
    assert_int_equal(pool_scene_query_reads(&s), 9 * CSD_ALIGN);
    pool_scene_close(&s);
}

/* DRAM for one of the cache's pieces, and not for two. */
#define ONE_PIECE ((uint64_t)(PIECE_PAGES + PIECE_PAGES / 2) * CSD_ALIGN)

/* The second time nothing is read from flash; what is written is there at once; a cap is kept. */
static void test_digests_in_dram_are_read_once(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 6);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;

    (void)state;
    random_seed(19);
    pool_scene_open(&s, &config);
    const uint64_t stripe = cold_pool_layout(s.pool)->digest_stripe_bytes;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t slot = i * s.m.stripe_slots;
        s.m.stripes[i] = (struct model_stripe){true, 0, 0, i};
        for (uint32_t n = 0; n < 64; n++, slot++) {
            assert_int_equal(pool_scene_write(&s, slot, 1, &cost), 0);
            assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
            s.m.slots[slot].state = SLOT_COMMITTED;
        }
    }
    uint64_t all = pool_scene_query_reads(&s);
    assert_int_equal(pool_scene_query_reads(&s), all);
    cold_pool_limit_dram(s.pool, 4 * stripe);
    assert_int_equal(pool_scene_query_reads(&s), all);
    assert_int_equal(pool_scene_query_reads(&s), 0);
    pool_scene_release(&s, 3);
    assert_int_equal(pool_scene_write(&s, 3, 1, &cost), 0); /* through to flash and DRAM */
    uint32_t slot = 3;
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
    s.m.slots[3].state = SLOT_COMMITTED;
    assert_int_equal(pool_scene_query_reads(&s), 0);
    cold_pool_limit_dram(s.pool, ONE_PIECE); /* one stripe's of three */
    uint64_t some = pool_scene_query_reads(&s);
    assert_int_equal(some, all / 3 * 2);
    assert_int_equal(pool_scene_query_reads(&s), some); /* and stays: none pushes another out */
    cold_pool_limit_dram(s.pool, 0);
    assert_int_equal(pool_scene_query_reads(&s), all);
    pool_scene_close(&s);
}

/* n slots of a fresh stripe of sequence 0. */
static void fill_stripe(struct pool_scene *s, uint32_t stripe, uint32_t n)
{
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    s->m.stripes[stripe] = (struct model_stripe){true, 0, 0, 0};
    for (uint32_t slot = stripe * s->m.stripe_slots; n--; slot++) {
        assert_int_equal(pool_scene_write(s, slot, 1, &cost), 0);
        assert_int_equal(cold_pool_commit(s->pool, 0, 0, &slot, 1, &why), 0);
        s->m.slots[slot].state = SLOT_COMMITTED;
    }
}

/* What comes after a sequence has its DRAM at once, wherever it lies, and from its writing on. */
static void test_what_is_trimmed_leaves_the_dram(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = pool_scene_config(&g, 6);
    struct pool_scene s;

    (void)state;
    random_seed(20);
    pool_scene_open(&s, &config);
    cold_pool_limit_dram(s.pool, ONE_PIECE);
    for (uint32_t i = 0; i < 3; i++) {
        fill_stripe(&s, i, 64);
        assert_int_equal(pool_scene_query_reads(&s), 0);
        cold_pool_trim(s.pool, 0);
        model_trim(&s.m, 0);
    }
    pool_scene_close(&s);
}

/* ---- protocol ---- */

static void test_commands_that_do_not_fit_the_state_change_nothing(void **state)
{
    struct kv_geometry g = {2, 2, 2, 16};
    struct cold_pool_config config = pool_scene_config(&g, 4);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct pool_scene s;
    uint32_t bad;

    (void)state;
    random_seed(15);
    pool_scene_open(&s, &config);
    s.m.stripes[1] = (struct model_stripe){true, 0, 1, 0};
    uint32_t base = s.m.stripe_slots;
    assert_int_equal(pool_scene_write(&s, base, 10, &cost), 0);
    /* a commit names a slot twice, one not written, one of another layer, one outside */
    uint32_t twice[] = {base, base + 1, base}, unwritten[] = {base, base + 10},
             outside[] = {s.m.n_stripes * base};
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, twice, 3, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, unwritten, 2, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, &base, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, outside, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_committed(s.pool, 0, 1), 0);
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, &base, 1, &why), 0);
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, &base, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_committed(s.pool, 0, 1), 1);
    /* a release names a slot twice, one of another layer, one not committed, one outside */
    uint32_t released[] = {base, base};
    assert_int_equal(cold_pool_release(s.pool, 0, 1, released, 2, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_release(s.pool, 0, 0, &base, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_release(s.pool, 0, 1, unwritten + 1, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_release(s.pool, 0, 1, outside, 1, &why), HILL_E_PROTOCOL);
    assert_int_equal(cold_pool_committed(s.pool, 0, 1), 1);
    assert_int_equal(cold_pool_release(s.pool, 0, 1, &base, 1, &why), 0);
    assert_int_equal(cold_pool_committed(s.pool, 0, 1), 0);
    assert_int_equal(cold_pool_commit(s.pool, 0, 1, &base, 1, &why), 0);
    /* a demote over a committed slot, over a stripe's end, into another's stripe */
    assert_int_equal(pool_scene_write(&s, base, 1, &cost), HILL_E_PROTOCOL);
    assert_int_equal(pool_scene_write(&s, 2 * base - 1, 2, &cost), HILL_E_PROTOCOL);
    s.m.stripes[1].layer = 0;
    assert_int_equal(pool_scene_write(&s, base + 20, 1, &cost), HILL_E_PROTOCOL);
    s.m.stripes[2] = (struct model_stripe){true, 0, 1, 0}; /* an order that is taken */
    assert_int_equal(pool_scene_write(&s, 2 * base, 1, &cost), HILL_E_PROTOCOL);
    /* named slots: one committed, of another layer, of a stripe nobody has, out of order */
    static const uint8_t nothing[4096];
    uint32_t named[][2] = {{base, base + 3}, {base + 3, base + 4}, {0, base + 3}, {base + 4, base}};
    for (uint32_t i = 0; i < 4; i++) {
        struct cold_demote demote = {.layer = i != 1,
                                     .first_slot = named[i][0],
                                     .n_slots = 2,
                                     .slots = named[i],
                                     .positions = named[i],
                                     .digests = nothing,
                                     .entries = nothing};
        struct cold_cost none = {0};
        assert_int_equal(cold_pool_demote(s.pool, &demote, &none, &why), HILL_E_PROTOCOL);
        assert_int_equal(none.flash_write_bytes, 0);
    }
    /* a fetch of a slot that is not committed, of another position, to a slot that is not there */
    uint32_t generation = shm_arena_generation(&s.staging, 0);
    struct fetch_item items[] = {{base + 1, 1, 0, generation},
                                 {base, 77, 0, generation},
                                 {base, 0, STAGING_SLOTS, generation}};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(cold_pool_fetch(s.pool,
                                         &(struct cold_fetch){.layer = 1,
                                                              .items = &items[i],
                                                              .n_items = 1,
                                                              .staging = &s.staging},
                                         &cost, &bad, &why),
                         HILL_E_PROTOCOL);
    pool_scene_close(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
#define TEST_IN_MEMORY(name)                                                                       \
    cmocka_unit_test_setup_teardown(name, make_memory_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_random_operations_equal_the_model),
        TEST_IN_MEMORY(test_random_operations_in_memory),
        TEST(test_random_operations_where_groups_are_longer_than_a_page),
        TEST(test_random_operations_with_digests_in_dram),
        TEST(test_random_operations_with_digests_of_four_bits),
        TEST(test_random_operations_on_the_fallback_paths),
        TEST(test_random_operations_on_keys_that_are_cast),
        TEST(test_default_batches_cover_a_whole_layer),
        TEST(test_a_query_passes_over_groups_that_do_not_count),
        TEST(test_commands_that_do_not_fit_the_state_change_nothing),
        TEST(test_digests_in_dram_are_read_once),
        TEST(test_what_is_trimmed_leaves_the_dram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
