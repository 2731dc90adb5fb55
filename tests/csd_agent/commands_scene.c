/*
 * tests/csd_agent/commands_scene.c - the agent's thread and the records the test sends it.
 * Interface: commands_scene.h.
 */
#include "tests/csd_agent/commands_scene.h"
#include "tests/kv/digests.h"

static bool stop_asked(void *context)
{
    /* relaxed: a flag alone, nothing is published with it */
    return atomic_load_explicit(&((struct scene *)context)->stop, memory_order_relaxed);
}

void *agent_main(void *context)
{
    struct scene *s = context;
    int status = 0;

    while (status >= 0 && !stop_asked(s)) {
        uint32_t seen = shm_doorbell_read(&s->agent_bell);
        status = data_plane_turn(&s->plane);
        if (status == 0)
            status = data_plane_write_directory(&s->plane, NULL);
        int64_t until = clock_deadline_ms(50), next = data_plane_next_ns(&s->plane);
        if (status == 0)
            shm_doorbell_wait(&s->agent_bell, seen, next < until ? next : until, 0);
    }
    s->ended = status;
    return NULL;
}

static void open_rings(struct scene *s)
{
    struct shm_ring_end **agent_ends[RINGS] = {&s->plane.command, &s->plane.background,
                                               &s->plane.score, &s->plane.completion};

    shm_doorbell_init(&s->agent_bell);
    shm_doorbell_init(&s->scorer_bell);
    for (int r = 0; r < RINGS; r++) {
        uint64_t bytes = shm_ring_bytes(capacities[r]);
        bool agent_produces = r >= SCORE;
        s->ring_memory[r] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_int_equal(shm_ring_init(s->ring_memory[r], capacities[r], UINT32_MAX - 3), 0);
        *agent_ends[r] = &s->agent_ends[r];
        assert_int_equal(shm_ring_open(&s->agent_ends[r], s->ring_memory[r], bytes, agent_produces,
                                       &s->agent_bell, &s->scorer_bell),
                         0);
        assert_int_equal(shm_ring_open(&s->ends[r], s->ring_memory[r], bytes, !agent_produces,
                                       &s->scorer_bell, &s->agent_bell),
                         0);
    }
}

void scene_start(struct scene *s)
{
    atomic_store_explicit(&s->stop, false, memory_order_relaxed); /* before there is a thread */
    assert_int_equal(pthread_create(&s->thread, NULL, agent_main, s), 0);
}

const char *scene_device;

void scene_prepare_as(struct scene *s, uint32_t wrong_position, uint32_t key_bytes, uint32_t bits,
                      uint32_t n_heads)
{
    struct kv_geometry g = {2, n_heads, 2, 24, bits};
    struct cold_pool_config config = {
        .url = pool_url(),
        .options = {.device = scene_device, .create = true, .batch_bytes = 20000},
        .geometry = g,
        .n_sequences = 2,
        .cap_bytes = 12u << 20,
        .fingerprint = 1,
        .key_bytes = key_bytes};
    uint64_t bytes = shm_arena_bytes(STAGING_SLOTS, kv_entry_bytes(&g));

    memset(s, 0, sizeof *s);
    s->plane.geometry = g;
    s->plane.n_sequences = 2;
    s->plane.epoch = EPOCH;
    s->plane.wrong_position = wrong_position;
    s->plane.stopping = stop_asked;
    s->plane.stopping_context = s;
    assert_int_equal(cold_pool_open(&s->plane.pool, &config, NULL), 0);
    model_init(&s->m, cold_pool_layout(s->plane.pool), 2);
    s->arena_memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(s->arena_memory, 0, bytes);
    assert_int_equal(shm_arena_init(s->arena_memory, STAGING_SLOTS, kv_entry_bytes(&g)), 0);
    assert_int_equal(shm_arena_view(&s->agent_staging, s->arena_memory, bytes), 0);
    s->plane.staging = &s->agent_staging;
    assert_int_equal(shm_arena_own(&s->staging, s->arena_memory, bytes), 0);
    open_rings(s);
    if (key_bytes)
        scene_add_windows(s);
}

void scene_add_windows(struct scene *s)
{
    s->plane.key_window_bytes = 64u << 10;
    s->windows = aligned_alloc(4096, KV_KEY_WINDOWS * (64u << 10));
    memset(s->windows, 0xa5, KV_KEY_WINDOWS * (64u << 10));
    s->plane.key_windows = s->windows;
}

void scene_prepare_keys(struct scene *s, uint32_t wrong_position, uint32_t key_bytes)
{
    scene_prepare_as(s, wrong_position, key_bytes, 8, 4);
}

void scene_prepare(struct scene *s, uint32_t wrong_position)
{
    scene_prepare_keys(s, wrong_position, 0);
}

void scene_open(struct scene *s, uint32_t wrong_position)
{
    scene_prepare(s, wrong_position);
    scene_start(s);
}

void scene_stop(struct scene *s)
{
    atomic_store_explicit(&s->stop, true, memory_order_relaxed); /* a flag alone */
    shm_doorbell_ring(&s->agent_bell);
    pthread_join(s->thread, NULL);
}

void scene_close(struct scene *s)
{
    scene_stop(s);
    data_plane_close(&s->plane);
    cold_pool_close(s->plane.pool);
    for (int r = 0; r < RINGS; r++) {
        shm_ring_close(&s->ends[r]);
        free(s->ring_memory[r]);
    }
    shm_arena_finish(&s->staging);
    free(s->arena_memory);
    free(s->windows);
    model_free(&s->m);
}

struct record_header header(uint32_t sequence, uint32_t layer)
{
    return (struct record_header){.epoch = EPOCH, .sequence = sequence, .layer = layer};
}

void push(struct scene *s, int ring, uint32_t type, const void *record, uint32_t bytes)
{
    assert_int_equal(shm_ring_wait(&s->ends[ring], bytes, clock_deadline_ms(20000)), 0);
    assert_int_equal(shm_ring_push(&s->ends[ring], type, record, bytes), 0);
}

struct record_completion completion(struct scene *s)
{
    struct record_completion out;
    const void *payload;
    uint32_t type, bytes;

    assert_int_equal(shm_ring_wait(&s->ends[COMPLETION], 0, clock_deadline_ms(20000)), 0);
    assert_int_equal(shm_ring_peek(&s->ends[COMPLETION], &type, &payload, &bytes), 0);
    assert_int_equal(type, RECORD_COMPLETION);
    assert_int_equal(bytes, sizeof out);
    memcpy(&out, payload, sizeof out);
    assert_int_equal(record_check(type, payload, bytes, &s->m.g, 2, NULL), 0);
    shm_ring_release(&s->ends[COMPLETION]);
    return out;
}

struct record_completion expect(struct scene *s, uint64_t tag, uint32_t command, int status)
{
    struct record_completion c = completion(s);

    assert_int_equal(c.tag, tag);
    assert_int_equal(c.command, command);
    assert_int_equal(c.status, status);
    assert_int_equal(c.header.epoch, EPOCH);
    return c;
}

uint64_t push_demote(struct scene *s, uint32_t first, uint32_t n)
{
    const struct model_stripe *stripe = &s->m.stripes[first / s->m.stripe_slots];
    struct demote_parts parts;

    model_write(&s->m, first, n);
    record_demote_parts(&parts, &s->m.g, first, n);
    uint8_t *bytes = calloc(1, parts.total);
    struct record_demote *record = (struct record_demote *)(void *)bytes;
    *record = (struct record_demote){.header = header(stripe->sequence, stripe->layer),
                                     .tag = ++s->next_tag,
                                     .first_slot = first,
                                     .n_slots = n,
                                     .stripe_order = stripe->order};
    for (uint32_t i = 0; i < n; i++)
        memcpy(bytes + parts.positions + i * 4, &s->m.slots[first + i].position, 4);
    uint8_t *groups = model_groups(&s->m, first, n);
    memcpy(bytes + parts.digests, groups, parts.entries - parts.digests);
    free(groups);
    memcpy(bytes + parts.entries, s->m.entries + (size_t)first * kv_entry_bytes(&s->m.g),
           (size_t)n * kv_entry_bytes(&s->m.g));
    push(s, BACKGROUND, RECORD_DEMOTE, bytes, (uint32_t)parts.total);
    free(bytes);
    return s->next_tag;
}

struct prepared prepare_scattered(struct scene *s, const uint32_t *slots, uint32_t n)
{
    const struct model_stripe *stripe = &s->m.stripes[slots[0] / s->m.stripe_slots];
    uint32_t entry_bytes = kv_entry_bytes(&s->m.g), dims = kv_key_dims(&s->m.g);
    struct demote_parts parts;

    record_demote_parts(&parts, &s->m.g, slots[0], n);
    uint8_t *bytes = calloc(1, parts.scattered_total);
    *(struct record_demote *)(void *)bytes =
        (struct record_demote){.header = header(stripe->sequence, stripe->layer),
                               .tag = ++s->next_tag,
                               .first_slot = slots[0],
                               .n_slots = n,
                               .scattered = 1};
    memcpy(bytes + parts.total, slots, n * sizeof *slots);
    for (uint32_t i = 0; i < n; i++) {
        model_write(&s->m, slots[i], 1);
        memcpy(bytes + parts.positions + i * 4, &s->m.slots[slots[i]].position, 4);
        kv_digest_put(&s->m.g, bytes + parts.digests, slots[0] % KV_GROUP_TOKENS + i,
                      s->m.mantissas + (size_t)slots[i] * dims,
                      s->m.exponents + (size_t)slots[i] * s->m.g.n_kv_heads);
        memcpy(bytes + parts.entries + (size_t)i * entry_bytes,
               s->m.entries + (size_t)slots[i] * entry_bytes, entry_bytes);
    }
    return (struct prepared){bytes, (uint32_t)parts.scattered_total, s->next_tag};
}

void release(struct scene *s, uint32_t sequence, uint32_t layer, const uint32_t *slots, uint32_t n)
{
    struct {
        struct record_release record;
        uint32_t slots[MAX_COMMAND_SLOTS];
    } r = {.record = {.header = header(sequence, layer), .tag = ++s->next_tag, .n_slots = n}};

    memcpy(r.slots, slots, n * sizeof *slots);
    push(s, COMMAND, RECORD_RELEASE, &r, (uint32_t)(sizeof r.record + n * 4));
    expect(s, s->next_tag, RECORD_RELEASE, 0);
    for (uint32_t i = 0; i < n; i++)
        s->m.slots[slots[i]].state = SLOT_WRITTEN;
}

void commit(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t n)
{
    struct {
        struct record_commit record;
        uint32_t slots[MAX_COMMAND_SLOTS];
    } r = {.record = {.header = header(sequence, layer), .tag = ++s->next_tag, .n_slots = n}};

    for (uint32_t i = 0; i < n; i++) {
        r.slots[i] = first + i;
        s->m.slots[first + i].state = SLOT_COMMITTED;
    }
    push(s, COMMAND, RECORD_COMMIT, &r, (uint32_t)(sizeof r.record + n * 4));
    expect(s, s->next_tag, RECORD_COMMIT, 0);
}

void grow(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t n)
{
    uint32_t stripe = model_stripe_for(&s->m, sequence, layer, false);
    uint32_t first = stripe * s->m.stripe_slots, end = first + s->m.stripe_slots;

    while (first < end && s->m.slots[first].state != SLOT_FREE)
        first++;
    if (n > end - first)
        n = end - first;
    if (n == 0)
        return;
    uint64_t tag = push_demote(s, first, n);
    expect(s, tag, RECORD_DEMOTE, 0);
    commit(s, sequence, layer, first, n);
}

void trim(struct scene *s, uint32_t sequence)
{
    struct record_trim record = {.header = header(sequence, 0), .tag = ++s->next_tag};
    push(s, COMMAND, RECORD_TRIM, &record, sizeof record);
    model_trim(&s->m, sequence);
}

uint32_t push_query(struct scene *s, struct asked *q, uint32_t sequence, uint32_t layer,
                    uint32_t block_tokens)
{
    return push_query_part(s, q, sequence, layer, block_tokens, NULL, 0);
}

uint32_t push_query_part(struct scene *s, struct asked *q, uint32_t sequence, uint32_t layer,
                         uint32_t block_tokens, const uint64_t *host, uint32_t n_host_words)
{
    uint32_t committed = model_committed(&s->m, sequence, layer);
    memset(q, 0, sizeof *q);
    q->record = (struct record_agent_query){
        .header = header(sequence, layer),
        .query_id = (uint32_t)++s->next_tag,
        .importance = random_below(KV_IMPORTANCE_COUNT),
        .block_tokens = block_tokens,
        .committed = committed,
        .expected = committed - model_host_committed(&s->m, sequence, layer, host, n_host_words),
        .n_host_words = n_host_words};
    struct kv_query query = random_query(&s->m.g, q->record.importance);
    uint32_t bytes = kv_query_bytes(&s->m.g, q->record.importance);
    uint32_t words = n_host_words * (uint32_t)sizeof *host;
    assert_true(words + bytes <= sizeof q->rest);
    if (words)
        memcpy(q->rest, host, words);
    kv_query_put(&s->m.g, &query, q->rest + words);
    free_query(&query);
    bytes += words + (uint32_t)sizeof q->record;
    push(s, COMMAND, RECORD_AGENT_QUERY, q, bytes);
    return q->record.query_id;
}

struct record_completion collect(struct scene *s, const struct asked *q, uint32_t wrong_position)
{
    struct kv_query query =
        kv_query_at(&s->m.g, q->record.importance, record_agent_query_terms(&q->record));
    const uint64_t *host = (const void *)q->rest;
    uint32_t n_slots = s->m.n_stripes * s->m.stripe_slots, count = 0;
    uint8_t *scored = calloc(n_slots, 1);
    const void *payload;
    uint32_t type, bytes;

    while (count < q->record.expected) {
        assert_int_equal(shm_ring_wait(&s->ends[SCORE], 0, clock_deadline_ms(20000)), 0);
        assert_int_equal(shm_ring_peek(&s->ends[SCORE], &type, &payload, &bytes), 0);
        assert_int_equal(type, RECORD_SCORE_BLOCK);
        assert_int_equal(record_check(type, payload, bytes, &s->m.g, 2, NULL), 0);
        const struct record_score_block *block = payload;
        const struct score_tuple *tuples = (const struct score_tuple *)(block + 1);
        assert_int_equal(block->query_id, q->record.query_id);
        assert_true(block->n > 0 && block->n <= q->record.block_tokens);
        for (uint32_t i = 0; i < block->n; i++) {
            uint32_t slot =
                block->stripe * s->m.stripe_slots + block->first_slot + tuples[i].slot_offset;
            assert_true(slot < n_slots && tuples[i].slot_offset < q->record.block_tokens);
            assert_false(scored[slot]);
            assert_false(model_host_has(&s->m, host, q->record.n_host_words, slot));
            assert_int_equal(s->m.slots[slot].state, SLOT_COMMITTED);
            bool wrong = s->m.slots[slot].position == wrong_position;
            assert_int_equal(tuples[i].score, wrong ? 65535 : model_score(&s->m, &query, slot));
            scored[slot] = 1;
            count++;
        }
        shm_ring_release(&s->ends[SCORE]);
    }
    struct record_completion c = completion(s);
    assert_int_equal(c.tag, q->record.query_id);
    assert_int_equal(c.status, 0);
    assert_int_equal(c.count, count);
    assert_true(c.flash_read_bytes >= (uint64_t)count * kv_digest_bytes(&s->m.g));
    free(scored);
    return c;
}

struct record_completion query(struct scene *s, uint32_t sequence, uint32_t layer,
                               uint32_t block_tokens)
{
    struct asked q;
    push_query(s, &q, sequence, layer, block_tokens);
    return collect(s, &q, COLD_NO_POSITION);
}

#define FETCH_STRIDE 61u /* slots, a prime */

static uint32_t pick_items(struct scene *s, struct fetch_item *items, uint32_t most,
                           uint32_t sequence, uint32_t layer)
{
    uint32_t all = s->m.n_stripes * s->m.stripe_slots, slot = random_below(all), n = 0;
    assert_true(all % FETCH_STRIDE != 0); /* so that it comes by every slot */
    for (uint32_t i = 0; i < all && n < most; i++, slot = (slot + FETCH_STRIDE) % all) {
        const struct model_stripe *stripe = &s->m.stripes[slot / s->m.stripe_slots];
        if (s->m.slots[slot].state == SLOT_COMMITTED && stripe->sequence == sequence &&
            stripe->layer == layer)
            items[n++] = (struct fetch_item){slot, s->m.slots[slot].position, 0, 0};
    }
    return n;
}

static void push_wanted(struct scene *s, struct wanted *w)
{
    uint32_t slots[16], n = w->record.n_entries;
    if (n == 0)
        return;
    assert_int_equal(shm_arena_take(&s->staging, n, slots), 0);
    for (uint32_t i = 0; i < n; i++) {
        w->items[i].staging_slot = slots[i];
        w->items[i].generation = shm_arena_generation(&s->staging, slots[i]);
        memset(shm_arena_slot(&s->staging, slots[i]), 0xa5, kv_entry_bytes(&s->m.g));
    }
    push(s, COMMAND, RECORD_FETCH, w,
         (uint32_t)(sizeof w->record + n * sizeof *w->items + w->record.n_rows * sizeof w->row));
}

void push_fetch(struct scene *s, struct wanted *w, uint32_t sequence, uint32_t layer)
{
    memset(w, 0, sizeof *w);
    w->record = (struct record_fetch){.header = header(sequence, layer), .tag = ++s->next_tag};
    w->record.n_entries = pick_items(s, w->items, 16, sequence, layer);
    push_wanted(s, w);
}

void push_fetch_of_two(struct scene *s, struct wanted *w, uint32_t sequence, uint32_t other,
                       uint32_t layer)
{
    memset(w, 0, sizeof *w);
    w->record = (struct record_fetch){
        .header = header(sequence, layer), .tag = ++s->next_tag, .n_entries = 16, .n_rows = 1};
    assert_int_equal(pick_items(s, w->items, 8, sequence, layer), 8);
    assert_int_equal(pick_items(s, w->items + 8, 8, other, layer), 8);
    w->row = (struct fetch_row){.sequence = other, .first = 8};
    push_wanted(s, w);
}

struct record_completion collect_fetch(struct scene *s, const struct wanted *w)
{
    uint32_t n = w->record.n_entries, entry_bytes = kv_entry_bytes(&s->m.g), slots[16];
    struct record_completion c = completion(s);

    assert_int_equal(c.tag, w->record.tag);
    assert_int_equal(c.status, 0);
    assert_int_equal(c.count, n);
    assert_true(c.link_kv_bytes >= entry_bytes);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = w->items[i].staging_slot;
        assert_memory_equal(shm_arena_slot(&s->staging, slots[i]),
                            s->m.entries + (size_t)w->items[i].cold_slot * entry_bytes,
                            entry_bytes);
    }
    shm_arena_give(&s->staging, n, slots);
    return c;
}

struct record_completion fetch_some(struct scene *s, uint32_t sequence, uint32_t layer)
{
    struct wanted w;
    push_fetch(s, &w, sequence, layer);
    return w.record.n_entries ? collect_fetch(s, &w) : (struct record_completion){.count = 0};
}
