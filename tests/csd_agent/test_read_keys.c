/*
 * test_read_keys.c - a pool with a plane of keys: what READ_KEYS brings over is the keys of the
 * entries that were demoted, whatever came in between; of one with digests, these, in whole groups;
 * and what it costs.
 */
#include "tests/csd_agent/commands_scene.h"
#include "tests/kv/digests.h"

#define KEY_BYTES (2u * 2 * 24)

struct keys_record {
    struct record_read_keys record;
    struct key_range ranges[16];
};

static void push_read(struct scene *s, struct keys_record *r, uint32_t sequence, uint32_t layer,
                      uint32_t window)
{
    r->record.header = header(sequence, layer);
    r->record.tag = ++s->next_tag;
    r->record.window = window;
    push(s, COMMAND, RECORD_READ_KEYS, r,
         (uint32_t)(sizeof r->record + r->record.n_ranges * sizeof *r->ranges));
}

/* Every committed slot of the ranges lies in the window as its entry's first half; the bytes that
 * this must have taken. */
static uint64_t check_window(const struct scene *s, const struct keys_record *r)
{
    const uint8_t *at = (uint8_t *)s->windows + r->record.window * s->plane.key_window_bytes;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < r->record.n_ranges; i++) {
        const struct key_range *range = &r->ranges[i];
        uint64_t skip = (uint64_t)(range->first_slot % s->m.stripe_slots) * KEY_BYTES % 4096;
        for (uint32_t j = 0; j < range->n_slots; j++)
            if (s->m.slots[range->first_slot + j].state == SLOT_COMMITTED)
                assert_memory_equal(at + bytes + skip + j * KEY_BYTES,
                                    s->m.entries + (size_t)(range->first_slot + j) * 2 * KEY_BYTES,
                                    KEY_BYTES);
        bytes += (skip + range->n_slots * KEY_BYTES + 4095) / 4096 * 4096;
    }
    return bytes;
}

static void check_digest(const struct scene *s, const uint8_t *groups, uint32_t index,
                         uint32_t slot)
{
    uint32_t dims = kv_key_dims(&s->m.g), heads = s->m.g.n_kv_heads;
    int8_t mantissas[2 * 24];
    uint8_t exponents[2];

    kv_digest_get(&s->m.g, groups, index, mantissas, exponents);
    assert_memory_equal(mantissas, s->m.mantissas + (size_t)slot * dims, dims);
    assert_memory_equal(exponents, s->m.exponents + (size_t)slot * heads, heads);
}

/* The same of digests: a range's groups lie behind one another. */
static uint64_t check_digests(const struct scene *s, const struct keys_record *r)
{
    const uint8_t *at = (uint8_t *)s->windows + r->record.window * s->plane.key_window_bytes;
    uint64_t bytes = 0, group = kv_group_bytes(&s->m.g);

    for (uint32_t i = 0; i < r->record.n_ranges; i++) {
        const struct key_range *range = &r->ranges[i];
        uint64_t skip = range->first_slot % s->m.stripe_slots / 16 * group % 4096;
        for (uint32_t j = 0; j < range->n_slots; j++)
            if (s->m.slots[range->first_slot + j].state == SLOT_COMMITTED)
                check_digest(s, at + bytes + skip, j, range->first_slot + j);
        bytes += (skip + range->n_slots / 16 * group + 4095) / 4096 * 4096;
    }
    return bytes;
}

/* Up to 4 ranges of a (sequence, layer), within its stripes' used parts; of digests whole
 * groups. */
static uint32_t random_ranges(struct scene *s, uint32_t sequence, uint32_t layer, uint32_t together,
                              struct key_range *ranges)
{
    uint32_t n = 0;

    for (uint32_t stripe = 0; stripe < s->m.n_stripes && n < 4; stripe++) {
        const struct model_stripe *x = &s->m.stripes[stripe];
        uint32_t base = stripe * s->m.stripe_slots, used = 0;
        for (uint32_t i = 0; i < s->m.stripe_slots; i++)
            if (s->m.slots[base + i].state == SLOT_COMMITTED)
                used = i + 1;
        if (!x->claimed || x->sequence != sequence || x->layer != layer || used == 0)
            continue;
        uint32_t first = random_below(used), most = used - first < 150 ? used - first : 150;
        uint32_t end = first + 1 + random_below(most);
        first = first / together * together;
        end = (end + together - 1) / together * together;
        ranges[n++] = (struct key_range){base + first, end - first};
    }
    return n;
}

/* Some committed slots are written anew, wherever they lie. */
static void rewrite(struct scene *s, uint32_t sequence, uint32_t layer)
{
    uint32_t slots[64], n = 0;

    for (uint32_t i = 0; i < s->m.n_stripes * s->m.stripe_slots && n < 64; i++) {
        const struct model_stripe *x = &s->m.stripes[i / s->m.stripe_slots];
        if (s->m.slots[i].state == SLOT_COMMITTED && x->sequence == sequence && x->layer == layer &&
            random_below(20) == 0)
            slots[n++] = i;
    }
    if (n == 0)
        return;
    release(s, sequence, layer, slots, n);
    struct prepared demote = prepare_scattered(s, slots, n);
    push(s, BACKGROUND, RECORD_DEMOTE, demote.bytes, demote.n_bytes);
    expect(s, demote.tag, RECORD_DEMOTE, 0);
    free(demote.bytes);
    for (uint32_t i = 0; i < n; i++)
        commit(s, sequence, layer, slots[i], 1);
}

static void read_at_random(uint32_t key_bytes, uint32_t n)
{
    uint32_t reads = 0, together = key_bytes ? 1 : 16;
    struct scene s;

    scene_prepare_keys(&s, COLD_NO_POSITION, key_bytes);
    if (!key_bytes)
        scene_add_windows(&s);
    scene_start(&s);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sequence = random_below(2), layer = random_below(2), what = random_below(100);
        struct keys_record r = {.record.n_ranges = 0};
        if (what < 45) {
            grow(&s, sequence, layer, 1 + random_below(random_below(2) ? MAX_COMMAND_SLOTS : 5));
        } else if (what < 55) {
            fetch_some(&s, sequence, layer);
        } else if (what < 65) {
            rewrite(&s, sequence, layer);
        } else if (what < 97) {
            r.record.n_ranges = random_ranges(&s, sequence, layer, together, r.ranges);
            if (r.record.n_ranges == 0)
                continue;
            push_read(&s, &r, sequence, layer, random_below(KV_KEY_WINDOWS));
            struct record_completion c = expect(&s, r.record.tag, RECORD_READ_KEYS, 0);
            uint64_t bytes = key_bytes ? check_window(&s, &r) : check_digests(&s, &r);
            assert_int_equal(c.link_key_bytes, bytes);
            assert_int_equal(c.flash_read_bytes, bytes);
            assert_int_equal(c.link_kv_bytes, 0);
            reads++;
        } else {
            trim(&s, sequence);
            expect(&s, s.next_tag, RECORD_TRIM, 0);
        }
    }
    assert_true(reads > n / 8);
    scene_close(&s);
}

static void test_random_reads_bring_the_keys_of_the_entries(void **state)
{
    (void)state;
    random_seed(91);
    read_at_random(KEY_BYTES, 400);
}

static void test_random_reads_bring_the_digests(void **state)
{
    (void)state;
    random_seed(96);
    read_at_random(0, 150);
}

/* Parts of keys come with a demote in the place of the digests. */
static void test_parts_of_keys_are_what_came_with_the_demote(void **state)
{
    enum { PART = 28 };
    struct scene s;
    struct asked q;

    (void)state;
    random_seed(95);
    scene_prepare_keys(&s, COLD_NO_POSITION, PART);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    for (uint32_t first = 0; first < 400; first += 100) {
        expect(&s, push_demote(&s, first, 100), RECORD_DEMOTE, 0);
        commit(&s, 0, 0, first, 100);
    }
    push_query(&s, &q, 0, 0, 64); /* no digest can be made of them */
    expect(&s, q.record.query_id, RECORD_AGENT_QUERY, HILL_E_PROTOCOL);
    struct keys_record r = {.record.n_ranges = 1, .ranges = {{150, 200}}};
    push_read(&s, &r, 0, 0, 2);
    expect(&s, r.record.tag, RECORD_READ_KEYS, 0);
    const uint8_t *at = (uint8_t *)s.windows + 2 * s.plane.key_window_bytes + 150 * PART % 4096;
    for (uint32_t i = 0; i < 200; i++) { /* a record had 100 parts where digests begin */
        uint32_t record = (150 + i) / 100 * 100, within = (150 + i) % 100;
        uint8_t *came = model_groups(&s.m, record, 100);
        assert_memory_equal(at + i * PART, came + (size_t)within * PART, PART);
        free(came);
    }
    /* two of them anew: the parts are packed in the record, their neighbours stay */
    uint32_t slots[] = {153, 260};
    uint8_t before[200 * PART];
    memcpy(before, at, sizeof before);
    release(&s, 0, 0, slots, 2);
    struct prepared demote = prepare_scattered(&s, slots, 2);
    struct demote_parts parts;
    record_demote_parts(&parts, &s.m.g, slots[0], 2);
    memcpy(before + 3 * PART, (uint8_t *)demote.bytes + parts.digests, PART);
    memcpy(before + 110 * PART, (uint8_t *)demote.bytes + parts.digests + PART, PART);
    push(&s, BACKGROUND, RECORD_DEMOTE, demote.bytes, demote.n_bytes);
    expect(&s, demote.tag, RECORD_DEMOTE, 0);
    free(demote.bytes);
    push_read(&s, &r, 0, 0, 2);
    expect(&s, s.next_tag, RECORD_READ_KEYS, 0);
    assert_memory_equal(at, before, sizeof before);
    scene_close(&s);
}

static void test_reads_that_do_not_fit_are_refused(void **state)
{
    struct scene s;

    (void)state;
    random_seed(92);
    scene_prepare_keys(&s, COLD_NO_POSITION, KEY_BYTES);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    for (uint32_t i = 0; i < 8; i++) {
        expect(&s, push_demote(&s, i * 100, 100), RECORD_DEMOTE, 0);
        commit(&s, 0, 0, i * 100, 100);
    }
    struct keys_record r = {.record.n_ranges = 1, .ranges = {{0, 801}}};
    push_read(&s, &r, 0, 0, 0); /* beyond what is committed */
    expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
    r.ranges[0] = (struct key_range){0, 800};
    push_read(&s, &r, 0, 0, 0); /* 76800 bytes, a window has 65536 */
    expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
    r.ranges[0].n_slots = 100;
    push_read(&s, &r, 0, 1, 0); /* another layer's */
    expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
    r.ranges[0].first_slot = UINT32_MAX - 10;
    push_read(&s, &r, 0, 0, 0);
    expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
    r.ranges[0].first_slot = 0;
    push_read(&s, &r, 0, 0, KV_KEY_WINDOWS);
    expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
    for (uint32_t i = 0; i < KV_KEY_WINDOWS * s.plane.key_window_bytes; i++)
        assert_int_equal(((uint8_t *)s.windows)[i], 0xa5);
    push_read(&s, &r, 0, 0, 3);
    expect(&s, r.record.tag, RECORD_READ_KEYS, 0);
    check_window(&s, &r);
    scene_close(&s);
}

static void test_parts_of_groups_and_reads_without_windows_are_refused(void **state)
{
    struct scene s;

    (void)state;
    for (int windows = 0; windows < 2; windows++) {
        random_seed(93);
        scene_prepare(&s, COLD_NO_POSITION);
        if (windows)
            scene_add_windows(&s);
        scene_start(&s);
        s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
        expect(&s, push_demote(&s, 0, 40), RECORD_DEMOTE, 0);
        commit(&s, 0, 0, 0, 40);
        struct keys_record r = {.record.n_ranges = 1, .ranges = {{0, 48}}};
        push_read(&s, &r, 0, 0, 0); /* the last group is not full */
        expect(&s, r.record.tag, RECORD_READ_KEYS, windows ? 0 : HILL_E_PROTOCOL);
        const struct key_range refused[] = {{0, 40}, {8, 16}, {0, 64}, {48, 16}};
        for (int i = 0; i < 4; i++) {
            r.ranges[0] = refused[i];
            push_read(&s, &r, 0, 0, 0);
            expect(&s, r.record.tag, RECORD_READ_KEYS, HILL_E_PROTOCOL);
        }
        scene_close(&s);
    }
}

static void test_a_modelled_drive_charges_flash_and_link(void **state)
{
    const struct csd_model slow = {.on = true,
                                   .flash = 0.02,
                                   .write = 1,
                                   .link = 0.01,
                                   .gpu_link = 25,
                                   .score = 1,
                                   .latency_us = 500};
    struct scene s;

    (void)state;
    random_seed(94);
    scene_prepare_keys(&s, COLD_NO_POSITION, KEY_BYTES);
    data_plane_set_model(&s.plane, &slow);
    scene_start(&s);
    s.m.stripes[0] = (struct model_stripe){true, 0, 0, 0};
    expect(&s, push_demote(&s, 0, 300), RECORD_DEMOTE, 0);
    commit(&s, 0, 0, 0, 300);
    scene_stop(&s);
    Hill__CsdModelCounters before = s.plane.drive.counters;
    scene_start(&s);
    struct keys_record r = {.record.n_ranges = 1, .ranges = {{0, 300}}};
    push_read(&s, &r, 0, 0, 1);
    struct record_completion c = expect(&s, r.record.tag, RECORD_READ_KEYS, 0);
    assert_int_equal(c.link_key_bytes, 32768);                /* 28800 in whole pages */
    assert_true(c.busy_ns + 1 >= 500000 + 32768 * 1000 / 10); /* the link is the slower one */
    scene_stop(&s);
    /* a page of the directory may have gone out meanwhile */
    assert_true(s.plane.drive.counters.flash_ns - before.flash_ns >= 32768 * 50);
    assert_true(s.plane.drive.counters.link_ns - before.link_ns >= 32768 * 100);
    scene_start(&s);
    scene_close(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_random_reads_bring_the_keys_of_the_entries),
        TEST(test_parts_of_keys_are_what_came_with_the_demote),
        TEST(test_reads_that_do_not_fit_are_refused),
        TEST(test_random_reads_bring_the_digests),
        TEST(test_parts_of_groups_and_reads_without_windows_are_refused),
        TEST(test_a_modelled_drive_charges_flash_and_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
