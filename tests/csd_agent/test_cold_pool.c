/*
 * test_cold_pool.c - random demotes, commits, queries, fetches and trims against a model in arrays;
 * damage; files that are not ours.
 */
#include "tests/csd_agent/fixture.h"
#include "tests/kv/digests.h"

#include <fcntl.h>
#include <sys/stat.h>

#define STAGING_SLOTS 64u
#define FINGERPRINT   0x5151u

struct scene {
    struct cold_pool *pool;
    struct model m;
    void *arena_memory;
    struct shm_arena staging;
    uint64_t query_read; /* flash bytes of the last random_query */
};

/* The smallest stripe keeps the pool small; batches are small so that a query takes several. */
static struct cold_pool_config config_for(const struct kv_geometry *g, uint32_t n_stripes)
{
    struct pool_layout one;
    struct kv_geometry layers = *g;

    layers.n_layers = 1;
    assert_int_equal(pool_layout_with_keys(&one, &layers, 0, UINT64_MAX / 4, NULL), 0);
    uint64_t stripe = one.digest_stripe_bytes + one.entry_stripe_bytes + one.directory_record_bytes;
    return (struct cold_pool_config){
        .url = pool_url(),
        .options = {.create = true, .batch_bytes = 20000},
        .geometry = *g,
        .n_sequences = 2,
        .cap_bytes = POOL_PAGE_BYTES + n_stripes * stripe,
        .fingerprint = FINGERPRINT,
        .stamp = {77, 3},
    };
}

static void scene_open(struct scene *s, const struct cold_pool_config *config)
{
    struct hill_why why = {""};
    uint32_t entry_bytes = kv_entry_bytes(&config->geometry);
    uint64_t bytes = shm_arena_bytes(STAGING_SLOTS, entry_bytes);

    int status = cold_pool_open(&s->pool, config, &why);
    if (status != 0)
        print_message("%s\n", why.text);
    assert_int_equal(status, 0);
    model_init(&s->m, cold_pool_layout(s->pool), config->n_sequences);
    s->arena_memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    assert_non_null(s->arena_memory);
    memset(s->arena_memory, 0, bytes);
    assert_int_equal(shm_arena_init(s->arena_memory, STAGING_SLOTS, entry_bytes), 0);
    assert_int_equal(shm_arena_view(&s->staging, s->arena_memory, bytes), 0);
}

static void scene_close(struct scene *s)
{
    cold_pool_close(s->pool);
    model_free(&s->m);
    free(s->arena_memory);
}

/* ---- commands, each carried out and checked ---- */

/* The digests are the caller's to free. */
static struct cold_demote demote_of(const struct model *m, uint32_t first, uint32_t n,
                                    const uint32_t *positions)
{
    const struct model_stripe *stripe = &m->stripes[first / m->stripe_slots];
    return (struct cold_demote){
        .sequence = stripe->sequence,
        .layer = stripe->layer,
        .first_slot = first,
        .n_slots = n,
        .stripe_order = stripe->order,
        .positions = positions,
        .digests = model_groups(m, first, n),
        .entries = m->entries + (size_t)first * kv_entry_bytes(&m->g),
    };
}

static int write_slots(struct scene *s, uint32_t first, uint32_t n, struct cold_cost *cost)
{
    uint32_t positions[MAX_COMMAND_SLOTS];
    struct hill_why why = {""};

    assert_true(n <= MAX_COMMAND_SLOTS);
    model_write(&s->m, first, n);
    for (uint32_t i = 0; i < n; i++)
        positions[i] = s->m.slots[first + i].position;
    struct cold_demote demote = demote_of(&s->m, first, n, positions);
    int status = cold_pool_demote(s->pool, &demote, cost, &why);
    free((void *)(uintptr_t)demote.digests);
    if (status != 0)
        print_message("demote: %s\n", why.text);
    return status;
}

/* Slots after the last in use, sometimes with a gap; or, one time in four, written slots in the
 * middle again. */
static void random_demote(struct scene *s, uint32_t sequence, uint32_t layer)
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
        assert_int_equal(write_slots(s, at, n, &cost), 0);
    /* the pages of two groups, and two of entries */
    uint64_t group_pages = kv_group_bytes(&s->m.g) / CSD_ALIGN + 2;
    assert_true(cost.flash_read_bytes <= (2 * group_pages + 2) * CSD_ALIGN);
}

/* Slots that are written or were never, wherever they lie in the layer's stripes; what is committed
 * beside them stays as it is. */
static void random_reuse(struct scene *s, uint32_t sequence, uint32_t layer)
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

static void random_commit(struct scene *s, uint32_t sequence, uint32_t layer)
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
static void random_release(struct scene *s, uint32_t sequence, uint32_t layer)
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

struct seen {
    struct scene *s;
    const struct kv_query *query;
    uint32_t sequence, layer;
    uint32_t last_order, next_slot; /* they come in stripe order, slot order */
    uint32_t count;
};

static int check_scores(void *context, uint32_t stripe, uint32_t first_slot, uint32_t n,
                        const uint16_t *scores)
{
    struct seen *seen = context;
    const struct model *m = &seen->s->m;

    assert_true(stripe < m->n_stripes && first_slot + n <= m->stripe_slots);
    assert_int_equal(m->stripes[stripe].sequence, seen->sequence);
    assert_int_equal(m->stripes[stripe].layer, seen->layer);
    if (seen->last_order != m->stripes[stripe].order) {
        assert_true(seen->last_order == UINT32_MAX || seen->last_order < m->stripes[stripe].order);
        seen->last_order = m->stripes[stripe].order;
        seen->next_slot = 0;
    }
    assert_true(first_slot >= seen->next_slot); /* what is passed over does not count: `count` */
    seen->next_slot = first_slot + n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = stripe * m->stripe_slots + first_slot + i;
        bool committed = m->slots[slot].state == SLOT_COMMITTED;
        assert_int_equal(cold_pool_position(seen->s->pool, slot),
                         committed ? m->slots[slot].position : COLD_NO_POSITION);
        if (!committed)
            continue;
        seen->count++;
        assert_int_equal(scores[i], model_score(m, seen->query, slot));
    }
    return 0;
}

static void random_query(struct scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t dims = kv_key_dims(&s->m.g), expected = model_committed(&s->m, sequence, layer);
    int8_t *mantissas = malloc(dims);
    uint8_t *shifts = malloc(s->m.g.n_kv_heads);
    struct cold_query query = {.sequence = sequence, .layer = layer, .expected = expected};
    struct seen seen = {s, &query.query, sequence, layer, UINT32_MAX, 0, 0};
    struct cold_cost cost = {0};
    struct hill_why why = {""};

    random_mantissas(mantissas, dims);
    for (uint32_t h = 0; h < s->m.g.n_kv_heads; h++)
        shifts[h] = (uint8_t)random_below(KV_QUERY_SHIFT_MAX + 1);
    query.query = (struct kv_query){mantissas, shifts, random_below(KV_IMPORTANCE_COUNT)};
    query.scored = check_scores;
    query.context = &seen;
    assert_int_equal(cold_pool_query(s->pool, &query, &cost, &why), 0);
    assert_int_equal(seen.count, expected);
    assert_int_equal(cost.flash_read_bytes, cost.scored_bytes);
    assert_true(cost.scored_bytes + cost.scored_dram_bytes >=
                (uint64_t)expected * kv_digest_bytes(&s->m.g));
    assert_int_equal(cost.link_kv_bytes, 0);
    s->query_read = cost.flash_read_bytes;
    query.expected++;
    assert_int_equal(cold_pool_query(s->pool, &query, &cost, &why), HILL_E_PROTOCOL);
    free(mantissas);
    free(shifts);
}

/* Of sequence 0, layer 0; its scores are checked. */
static uint64_t query_reads(struct scene *s)
{
    random_query(s, 0, 0);
    return s->query_read;
}

static void release_slot(struct scene *s, uint32_t slot)
{
    struct hill_why why = {""};
    assert_int_equal(cold_pool_release(s->pool, 0, 0, &slot, 1, &why), 0);
    s->m.slots[slot].state = SLOT_WRITTEN;
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

static void random_fetch(struct scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t entry_bytes = kv_entry_bytes(&s->m.g), n = 0, bad;
    struct fetch_item items[STAGING_SLOTS];
    struct cold_cost cost = {0};
    struct hill_why why = {""};

    for (uint32_t i = 0; i < STAGING_SLOTS; i++) {
        uint32_t slot =
            i % 3 && n ? items[n - 1].cold_slot + 1 : pick_committed(&s->m, sequence, layer);
        if (slot >= s->m.n_stripes * s->m.stripe_slots || slot % s->m.stripe_slots == 0 ||
            s->m.slots[slot].state != SLOT_COMMITTED)
            continue;
        items[n] = (struct fetch_item){slot, s->m.slots[slot].position, n,
                                       shm_arena_generation(&s->staging, n)};
        n++;
    }
    if (n == 0)
        return;
    random_bytes(shm_arena_slot(&s->staging, 0), STAGING_SLOTS * s->staging.stride);
    assert_int_equal(
        cold_pool_fetch(s->pool, sequence, layer, items, n, &s->staging, &cost, &bad, &why), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_memory_equal(shm_arena_slot(&s->staging, items[i].staging_slot),
                            s->m.entries + (size_t)items[i].cold_slot * entry_bytes, entry_bytes);
    assert_int_equal(cost.flash_read_bytes, cost.link_kv_bytes);
    assert_int_equal(cost.link_kv_bytes % CSD_ALIGN, 0);
    items[0].generation++;
    assert_int_equal(
        cold_pool_fetch(s->pool, sequence, layer, items, n, &s->staging, &cost, &bad, &why),
        HILL_E_PROTOCOL);
}

/* The stripe's committed slots, some at a time; what was only written is free. */
static void adopt_stripe(struct scene *s, uint32_t stripe)
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
        assert_int_equal(cold_pool_adopt(s->pool, &adopt, &why), 0);
        if (n > 0) /* once */
            assert_int_equal(cold_pool_adopt(s->pool, &adopt, &why), HILL_E_PROTOCOL);
        n = 0;
    }
}

/* Another agent takes the pool over. Whose stamp is another adopts nothing. */
static void reopen(struct scene *s, const struct cold_pool_config *config)
{
    struct cold_pool_config kept = *config;
    const struct cold_adopt nothing = {0};
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
    assert_int_equal(cold_pool_adopt(s->pool, &nothing, &why), HILL_E_DAMAGED);
    cold_pool_close(s->pool);
    assert_int_equal(cold_pool_open(&s->pool, config, &why), 0);
    model_trim(&s->m, 0);
    model_trim(&s->m, 1);
}

static uint32_t dram_max; /* digests are kept in memory, up to a cap that changes; 0: none are */

static void random_operations(const struct cold_pool_config *config, uint32_t n)
{
    struct scene s;

    scene_open(&s, config);
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
            random_query(&s, sequence, layer);
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
    scene_close(&s);
}

static void test_random_operations_equal_the_model(void **state)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = config_for(&g, 12);

    (void)state;
    random_seed(11);
    random_operations(&config, 400);
}

static void test_random_operations_where_groups_are_longer_than_a_page(void **state)
{
    /* groups of 5440 bytes: each has another's bytes in its first and its last page */
    struct kv_geometry g = {2, 1, 1, 333};
    struct cold_pool_config config = config_for(&g, 6);

    (void)state;
    random_seed(12);
    random_operations(&config, 200);
}

static void test_random_operations_with_digests_in_dram(void **state)
{
    struct kv_geometry g = {2, 4, 2, 24};
    struct cold_pool_config config = config_for(&g, 12);

    (void)state;
    random_seed(17);
    dram_max = 4 * 64 * 1024; /* some stripes of it */
    random_operations(&config, 400);
    dram_max = 0;
}

static void test_random_operations_with_digests_of_four_bits(void **state)
{
    struct kv_geometry g = {2, 4, 2, 28, 4};
    struct cold_pool_config config = config_for(&g, 10);

    (void)state;
    random_seed(15);
    random_operations(&config, 250);
}

static void test_random_operations_on_the_fallback_paths(void **state)
{
    struct kv_geometry g = {2, 4, 2, 20};
    struct cold_pool_config config = config_for(&g, 8);

    (void)state;
    random_seed(13);
    config.options.force_buffered = config.options.force_pread = true;
    random_operations(&config, 150);
}

static void test_default_batches_cover_a_whole_layer(void **state)
{
    struct kv_geometry g = {1, 8, 8, 64}; /* stripes of about 1 MiB of digests */
    struct cold_pool_config config = config_for(&g, 3);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;

    (void)state;
    random_seed(14);
    config.options.batch_bytes = 0;
    scene_open(&s, &config);
    for (uint32_t stripe = 0; stripe < 3; stripe++) {
        s.m.stripes[stripe] = (struct model_stripe){true, 0, 0, stripe};
        for (uint32_t at = 0; at < s.m.stripe_slots; at += 256)
            assert_int_equal(write_slots(&s, stripe * s.m.stripe_slots + at, 256, &cost), 0);
    }
    assert_int_equal(cost.flash_read_bytes, 0); /* in order: no page is ever read back */
    for (uint32_t i = 0; i < 3 * s.m.stripe_slots; i++) {
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &i, 1, &why), 0);
        s.m.slots[i].state = SLOT_COMMITTED;
    }
    random_query(&s, 0, 0);
    scene_close(&s);
}

/* Groups of 4160 bytes, a page and 64 bytes: what a query reads is counted by hand. */
static void test_a_query_passes_over_groups_that_do_not_count(void **state)
{
    struct kv_geometry g = {1, 4, 4, 63}; /* 64 of exponents, 4 heads of 16 words of 16 tokens */
    struct cold_pool_config config = config_for(&g, 3);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;

    (void)state;
    random_seed(16);
    scene_open(&s, &config);
    assert_int_equal(kv_group_bytes(&g), 64 + 4096);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    s.m.stripes[2] = (struct model_stripe){true, 0, 0, 1};
    for (uint32_t stripe = 0; stripe < 3; stripe += 2)
        for (uint32_t i = 0; i < 256; i++) { /* 16 groups of each */
            uint32_t slot = stripe * s.m.stripe_slots + i;
            assert_int_equal(write_slots(&s, slot, 1, &cost), 0);
            assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
            s.m.slots[slot].state = SLOT_COMMITTED;
        }
    assert_int_equal(query_reads(&s), 2 * 17 * CSD_ALIGN);
    for (uint32_t i = 0; i < 3 * 16; i++) /* groups 5, 6, 7: fewer bytes than are passed over */
        release_slot(&s, 80 + i);
    assert_int_equal(query_reads(&s), 2 * 17 * CSD_ALIGN);
    for (uint32_t i = 0; i < 15; i++) /* all but one of group 8 */
        release_slot(&s, 8 * 16 + i);
    assert_int_equal(query_reads(&s), 2 * 17 * CSD_ALIGN);
    release_slot(&s, 8 * 16 + 15); /* groups 0 .. 4 are 6 pages, 9 .. 15 are 8 */
    assert_int_equal(query_reads(&s), (6 + 8 + 17) * CSD_ALIGN);
    for (uint32_t i = 0; i < 80; i++) /* nothing before it: no gap at a stripe's start */
        release_slot(&s, i);
    assert_int_equal(query_reads(&s), (8 + 17) * CSD_ALIGN);
    for (uint32_t i = 2 * s.m.stripe_slots; i < 2 * s.m.stripe_slots + 256; i++)
        release_slot(&s, i);
    assert_int_equal(query_reads(&s), 8 * CSD_ALIGN);
    uint32_t again = 8 * 16 + 3;
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, &again, 1, &why), 0);
    s.m.slots[again].state = SLOT_COMMITTED;
    assert_int_equal(query_reads(&s), 9 * CSD_ALIGN);
    scene_close(&s);
}

/* ---- protocol ---- */

static void test_commands_that_do_not_fit_the_state_change_nothing(void **state)
{
    struct kv_geometry g = {2, 2, 2, 16};
    struct cold_pool_config config = config_for(&g, 4);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;
    uint32_t bad;

    (void)state;
    random_seed(15);
    scene_open(&s, &config);
    s.m.stripes[1] = (struct model_stripe){true, 0, 1, 0};
    uint32_t base = s.m.stripe_slots;
    assert_int_equal(write_slots(&s, base, 10, &cost), 0);
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
    assert_int_equal(write_slots(&s, base, 1, &cost), HILL_E_PROTOCOL);
    assert_int_equal(write_slots(&s, 2 * base - 1, 2, &cost), HILL_E_PROTOCOL);
    s.m.stripes[1].layer = 0;
    assert_int_equal(write_slots(&s, base + 20, 1, &cost), HILL_E_PROTOCOL);
    s.m.stripes[2] = (struct model_stripe){true, 0, 1, 0}; /* an order that is taken */
    assert_int_equal(write_slots(&s, 2 * base, 1, &cost), HILL_E_PROTOCOL);
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
        assert_int_equal(cold_pool_fetch(s.pool, 0, 1, &items[i], 1, &s.staging, &cost, &bad, &why),
                         HILL_E_PROTOCOL);
    scene_close(&s);
}

/* ---- damage and foreign files ---- */

static void test_a_flipped_byte_is_found_and_named(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = config_for(&g, 2);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;
    uint32_t bad;

    (void)state;
    random_seed(16);
    config.options.force_buffered = true; /* so that this test's write is seen */
    scene_open(&s, &config);
    s.m.next_position = 1000;
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    assert_int_equal(write_slots(&s, 0, 50, &cost), 0);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &i, 1, &why), 0);
    int fd = open(pool_path(), O_RDWR);
    uint8_t byte;
    off_t at = (off_t)pool_entry_at(cold_pool_layout(s.pool), 33) + 5;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    struct fetch_item items[3];
    for (uint32_t i = 0; i < 3; i++)
        items[i] = (struct fetch_item){32 + i, 1032 + i, i, shm_arena_generation(&s.staging, i)};
    assert_int_equal(cold_pool_fetch(s.pool, 0, 0, items, 3, &s.staging, &cost, &bad, &why),
                     HILL_E_DAMAGED);
    assert_int_equal(bad, 1033);
    assert_non_null(strstr(why.text, "1033"));
    items[1] = items[2];
    assert_int_equal(cold_pool_fetch(s.pool, 0, 0, items, 2, &s.staging, &cost, &bad, &why), 0);
    scene_close(&s);
}

static void write_file(const char *content, size_t bytes)
{
    FILE *f = fopen(pool_path(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, bytes, f), bytes);
    fclose(f);
}

static void flip_bit(uint64_t at, uint32_t bit)
{
    uint8_t byte;
    int fd = open(pool_path(), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= (uint8_t)(1u << bit);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static int query_status(struct scene *s, struct hill_why *why)
{
    static const int8_t mantissas[256];
    static const uint8_t shifts[8];
    struct cold_cost cost = {0};
    struct seen seen = {s, NULL, 0, 0, UINT32_MAX, 0, 0};
    struct cold_query query = {.expected = model_committed(&s->m, 0, 0),
                               .query = {mantissas, shifts, 0},
                               .scored = check_scores,
                               .context = &seen};
    seen.query = &query.query;
    return cold_pool_query(s->pool, &query, &cost, why);
}

static int adopt_status(struct scene *s, const struct cold_pool_config *config,
                        struct hill_why *why)
{
    struct cold_pool_config kept = *config;
    struct adopt_item items[100];
    const struct cold_adopt adopt = {0, 0, 0, 0, items, 100};
    uint32_t bytes = kv_entry_bytes(&s->m.g);

    cold_pool_close(s->pool);
    kept.keeps = true;
    assert_int_equal(cold_pool_open(&s->pool, &kept, why), 0);
    for (uint32_t i = 0; i < 100; i++)
        items[i] =
            (struct adopt_item){i, s->m.slots[i].position,
                                pool_entry_checksum(s->m.entries + (size_t)i * bytes, bytes)};
    return cold_pool_adopt(s->pool, &adopt, why);
}

/* Any bit of the digests: by the page's checksum while an agent lives, by the entry's key when
 * another one takes the pool over; of an entry by its checksum. */
static void test_a_flipped_bit_of_a_digest_is_found_and_named(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = config_for(&g, 2);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;
    uint32_t slots[100];

    (void)state;
    random_seed(18);
    scene_open(&s, &config);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    assert_int_equal(write_slots(&s, 0, 100, &cost), 0);
    for (uint32_t i = 0; i < 100; i++) {
        slots[i] = i;
        s.m.slots[i].state = SLOT_COMMITTED;
    }
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, slots, 100, &why), 0);
    assert_int_equal(query_status(&s, &why), 0);
    const struct pool_layout layout = *cold_pool_layout(s.pool);
    for (uint32_t round = 0; round < 60; round++) {
        uint64_t digests = 6 * kv_group_bytes(&g); /* of whole groups: every bit is a slot's */
        uint64_t exponents = kv_group_mantissas_at(&g);
        uint64_t at = random_below((uint32_t)digests), in_group = at % kv_group_bytes(&g);
        uint32_t bit = random_below(8);
        bool used = in_group >= exponents || in_group < g.n_kv_heads * KV_GROUP_TOKENS;
        flip_bit(layout.digest_offset + at, bit);
        assert_int_equal(query_status(&s, &why), HILL_E_DAMAGED);
        if (!strstr(why.text, "digests in page") || !strstr(why.text, "stripe 0"))
            fail_msg("%s", why.text);
        assert_int_equal(adopt_status(&s, &config, &why), used ? HILL_E_DAMAGED : 0);
        if (used && !strstr(why.text, "the digest is damaged"))
            fail_msg("%s", why.text);
        flip_bit(layout.digest_offset + at, bit);
        assert_int_equal(adopt_status(&s, &config, &why), 0);
        assert_int_equal(query_status(&s, &why), 0);
    }
    flip_bit(pool_entry_at(&layout, 57) + 5, 3);
    assert_int_equal(adopt_status(&s, &config, &why), HILL_E_DAMAGED);
    if (!strstr(why.text, "the entry is damaged") || !strstr(why.text, "cold slot 57"))
        fail_msg("%s", why.text);
    scene_close(&s);
}

/* The second time nothing is read from flash; what is written is there at once; a cap is kept. */
static void test_digests_in_dram_are_read_once(void **state)
{
    struct kv_geometry g = {1, 4, 4, 48};
    struct cold_pool_config config = config_for(&g, 6);
    struct cold_cost cost = {0};
    struct hill_why why = {""};
    struct scene s;

    (void)state;
    random_seed(19);
    scene_open(&s, &config);
    const uint64_t stripe = cold_pool_layout(s.pool)->digest_stripe_bytes;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t slot = i * s.m.stripe_slots;
        s.m.stripes[i] = (struct model_stripe){true, 0, 0, i};
        for (uint32_t n = 0; n < 64; n++, slot++) {
            assert_int_equal(write_slots(&s, slot, 1, &cost), 0);
            assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
            s.m.slots[slot].state = SLOT_COMMITTED;
        }
    }
    uint64_t all = query_reads(&s);
    assert_int_equal(query_reads(&s), all);
    cold_pool_limit_dram(s.pool, 4 * stripe);
    assert_int_equal(query_reads(&s), all);
    assert_int_equal(query_reads(&s), 0);
    release_slot(&s, 3);
    assert_int_equal(write_slots(&s, 3, 1, &cost), 0); /* through to flash and DRAM */
    uint32_t slot = 3;
    assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, &why), 0);
    s.m.slots[3].state = SLOT_COMMITTED;
    assert_int_equal(query_reads(&s), 0);
    cold_pool_limit_dram(s.pool, stripe + stripe / 2); /* one of three stripes */
    uint64_t some = query_reads(&s);
    assert_int_equal(some, all / 3 * 2);
    assert_int_equal(query_reads(&s), some); /* and stays: none pushes another out */
    cold_pool_limit_dram(s.pool, 0);
    assert_int_equal(query_reads(&s), all);
    scene_close(&s);
}

static void test_a_foreign_file_is_refused_untouched(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = config_for(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;
    static char content[10000], after[10001];

    (void)state;
    memset(content, 0, sizeof content); /* a disk image may well begin with zeros */
    strcpy(content + 9000, "somebody's thesis");
    for (int round = 0; round < 2; round++) {
        write_file(content, sizeof content);
        assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_DAMAGED);
        assert_non_null(strstr(why.text, pool_path()));
        FILE *f = fopen(pool_path(), "rb");
        assert_int_equal(fread(after, 1, sizeof after, f), sizeof content);
        fclose(f);
        assert_memory_equal(after, content, sizeof content);
        strcpy(content, "somebody's letter");
    }
}

static void test_a_pool_of_another_shape_is_formatted_anew(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16}, other = {2, 4, 4, 8};
    struct cold_pool_config config = config_for(&g, 4), changed = config_for(&other, 4);
    struct cold_cost cost = {0};
    struct scene s;

    (void)state;
    random_seed(17);
    for (int round = 0; round < 3; round++) {
        scene_open(&s, round == 2 ? &changed : &config);
        assert_int_equal(cold_pool_committed(s.pool, 0, 0), 0); /* whatever was there */
        s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
        assert_int_equal(write_slots(&s, 0, 5, &cost), 0);
        uint32_t slot = 3;
        assert_int_equal(cold_pool_commit(s.pool, 0, 0, &slot, 1, NULL), 0);
        s.m.slots[3].state = SLOT_COMMITTED;
        random_query(&s, 0, 0);
        scene_close(&s);
    }
}

static void test_a_format_that_was_killed_is_repeated(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = config_for(&g, 2);
    static const char zeros[POOL_PAGE_BYTES];
    struct scene s;

    (void)state;
    scene_open(&s, &config);
    scene_close(&s);
    int fd = open(pool_path(), O_RDWR); /* superblock wiped, directory there */
    assert_int_equal(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
    close(fd);
    scene_open(&s, &config);
    scene_close(&s);
}

static void test_no_space_is_said_and_leaves_no_file(void **state)
{
    struct kv_geometry g = {1, 64, 64, 512};
    struct cold_pool_config config = config_for(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;

    (void)state;
    config.cap_bytes = (uint64_t)1 << 45; /* more than a test machine's disk */
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_NOSPACE);
    assert_int_equal(access(pool_path(), F_OK), -1);
    config.cap_bytes = 5000;
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    assert_int_equal(access(pool_path(), F_OK), -1);
}

static void test_drives_of_later_versions_are_refused_by_name(void **state)
{
    struct kv_geometry g = {1, 2, 2, 16};
    struct cold_pool_config config = config_for(&g, 2);
    struct hill_why why = {""};
    struct cold_pool *pool;

    (void)state;
    config.url = "xrt:0000:17:00.1";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_UNSUPPORTED);
    assert_non_null(strstr(why.text, "not in this version"));
    config.url = "tcp://nas:4000";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_UNSUPPORTED);
    config.url = "files:/tmp/x";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    config.url = "/tmp/x";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
    config.url = "file:";
    assert_int_equal(cold_pool_open(&pool, &config, &why), HILL_E_INVALID);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_random_operations_equal_the_model),
        TEST(test_random_operations_where_groups_are_longer_than_a_page),
        TEST(test_random_operations_with_digests_in_dram),
        TEST(test_random_operations_with_digests_of_four_bits),
        TEST(test_random_operations_on_the_fallback_paths),
        TEST(test_default_batches_cover_a_whole_layer),
        TEST(test_a_query_passes_over_groups_that_do_not_count),
        TEST(test_commands_that_do_not_fit_the_state_change_nothing),
        TEST(test_a_flipped_byte_is_found_and_named),
        TEST(test_a_flipped_bit_of_a_digest_is_found_and_named),
        TEST(test_digests_in_dram_are_read_once),
        TEST(test_a_foreign_file_is_refused_untouched),
        TEST(test_a_pool_of_another_shape_is_formatted_anew),
        TEST(test_a_format_that_was_killed_is_repeated),
        TEST(test_no_space_is_said_and_leaves_no_file),
        TEST(test_drives_of_later_versions_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
