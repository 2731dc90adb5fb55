/* tests/csd_agent/pool_scene.c - see pool_scene.h. */
#include "tests/csd_agent/pool_scene.h"

#define FINGERPRINT 0x5151u

static struct cold_pool_config config_of(const struct kv_geometry *g, uint32_t n_stripes,
                                         uint32_t key_bytes)
{
    struct pool_layout one;
    struct kv_geometry layers = *g;

    layers.n_layers = 1;
    assert_int_equal(pool_layout_with_keys(&one, &layers, key_bytes, UINT64_MAX / 4, NULL), 0);
    uint64_t stripe = one.digest_stripe_bytes + one.key_stripe_bytes + one.entry_stripe_bytes +
                      one.directory_record_bytes;
    return (struct cold_pool_config){
        .url = pool_url(),
        .options = {.create = true, .batch_bytes = 20000},
        .geometry = *g,
        .n_sequences = 2,
        .cap_bytes = POOL_PAGE_BYTES + n_stripes * stripe,
        .fingerprint = FINGERPRINT,
        .key_bytes = key_bytes,
        .stamp = {77, 3},
    };
}

struct cold_pool_config pool_scene_config(const struct kv_geometry *g, uint32_t n_stripes)
{
    return config_of(g, n_stripes, 0);
}

struct cold_pool_config pool_scene_config_cast(const struct kv_geometry *g, uint32_t n_stripes)
{
    return config_of(g, n_stripes, 2 * kv_key_dims(g));
}

void pool_scene_open(struct pool_scene *s, const struct cold_pool_config *config)
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

void pool_scene_close(struct pool_scene *s)
{
    cold_pool_close(s->pool);
    model_free(&s->m);
    free(s->arena_memory);
}

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

int pool_scene_write(struct pool_scene *s, uint32_t first, uint32_t n, struct cold_cost *cost)
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

struct seen {
    struct pool_scene *s;
    const struct kv_query *query;
    uint32_t sequence, layer;
    uint32_t last_order, next_slot; /* they come in stripe order, slot order */
    uint32_t count;
    const uint64_t *host;
    uint32_t n_host_words;
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
        assert_false(model_host_has(m, seen->host, seen->n_host_words, slot));
        seen->count++;
        assert_int_equal(scores[i], model_score(m, seen->query, slot));
    }
    return 0;
}

static void query_some(struct pool_scene *s, uint32_t sequence, uint32_t layer,
                       const uint64_t *host, uint32_t n_host_words)
{
    uint32_t committed = model_committed(&s->m, sequence, layer);
    uint32_t expected =
        committed - model_host_committed(&s->m, sequence, layer, host, n_host_words);
    struct cold_query query = {.sequence = sequence,
                               .layer = layer,
                               .committed = committed,
                               .host = host,
                               .n_host_words = n_host_words};
    struct seen seen = {s, &query.query, sequence, layer, UINT32_MAX, 0, 0, host, n_host_words};
    struct cold_cost cost = {0};
    struct hill_why why = {""};

    query.query = random_query(&s->m.g, random_below(KV_IMPORTANCE_COUNT));
    query.scored = check_scores;
    query.context = &seen;
    assert_int_equal(cold_pool_query(s->pool, &query, &cost, &why), 0);
    assert_int_equal(seen.count, expected);
    assert_int_equal(cost.flash_read_bytes, cost.scored_bytes);
    assert_true(cost.scored_bytes + cost.scored_dram_bytes >=
                (uint64_t)expected * pool_read_bytes(cold_pool_layout(s->pool)));
    assert_int_equal(cost.link_kv_bytes, 0);
    s->query_read = cost.flash_read_bytes;
    query.committed++;
    assert_int_equal(cold_pool_query(s->pool, &query, &cost, &why), HILL_E_PROTOCOL);
    free_query(&query.query);
}

void pool_scene_query(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    query_some(s, sequence, layer, NULL, 0);
}

void pool_scene_query_part(struct pool_scene *s, uint32_t sequence, uint32_t layer)
{
    uint64_t host[HOST_WORDS_MAX];
    query_some(s, sequence, layer, host, random_host(host));
}

uint64_t pool_scene_query_reads(struct pool_scene *s)
{
    query_some(s, 0, 0, NULL, 0);
    return s->query_read;
}

void pool_scene_release(struct pool_scene *s, uint32_t slot)
{
    struct hill_why why = {""};
    assert_int_equal(cold_pool_release(s->pool, 0, 0, &slot, 1, &why), 0);
    s->m.slots[slot].state = SLOT_WRITTEN;
}

int pool_scene_query_status(struct pool_scene *s, struct hill_why *why)
{
    static int8_t mantissas[256];
    static const uint8_t shifts[8];
    struct cold_cost cost = {0};
    mantissas[0] = (int8_t)((mantissas[0] + 1) % 100); /* another one each time */
    struct seen seen = {s, NULL, 0, 0, UINT32_MAX, 0, 0, NULL, 0};
    struct cold_query query = {.committed = model_committed(&s->m, 0, 0),
                               .query = {mantissas, shifts, 0, NULL},
                               .scored = check_scores,
                               .context = &seen};
    seen.query = &query.query;
    return cold_pool_query(s->pool, &query, &cost, why);
}
