/*
 * tests/proto/test_party.c - proto/party.[ch]: three parties meet in an epoch's segments and can
 * send each other records in every ring; who comes before the scorer waits, and not for ever; what
 * does not fit, or is not there, is refused and leaves nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "kv/select.h"
#include "proto/party.h"
#include "proto/records.h"
#include "tests/proto/configure.h"
#include "tests/shm/run_id.h"

static const struct layout_input layout = {{2, 4, 2, 32}, 256, 2};

static struct epoch_settings settings_of(uint32_t epoch, uint32_t policy)
{
    struct epoch_settings s = make_settings(&layout, epoch);
    s.run_id = test_run_id();
    s.plan.selection.policy = policy;
    s.hot_bytes = 1 << 16;
    s.csd_attached = true;
    s.cold_cap_bytes = 1 << 20;
    return s;
}

/* A record goes from one side to the other in each ring that both have. */
static void expect_joined(struct party *a, struct party *b, int rings)
{
    int n = 0;
    for (int ring = 0; ring < RING_COUNT; ring++) {
        if (!a->ends[ring].ring || !b->ends[ring].ring)
            continue;
        struct shm_ring_end *from = a->ends[ring].producer ? &a->ends[ring] : &b->ends[ring];
        struct shm_ring_end *to = a->ends[ring].producer ? &b->ends[ring] : &a->ends[ring];
        uint32_t type, bytes, value = 7u + (uint32_t)ring;
        const void *payload;
        assert_int_equal(shm_ring_push(from, 1 + (uint32_t)ring, &value, sizeof value), 0);
        assert_int_equal(shm_ring_peek(to, &type, &payload, &bytes), 0);
        assert_int_equal(type, 1 + ring);
        assert_memory_equal(payload, &value, sizeof value);
        shm_ring_release(to);
        n++;
    }
    assert_int_equal(n, rings);
}

static void expect_one_staging(struct party *scorer, struct party *other)
{
    uint32_t slot;
    assert_int_equal(shm_arena_take(&scorer->arena, 1, &slot), 0);
    memset(shm_arena_slot(&scorer->arena, slot), 0x5a, 16);
    assert_memory_equal(shm_arena_slot(&other->arena, slot), "ZZZZZZZZZZZZZZZZ", 16);
    shm_arena_give(&scorer->arena, 1, &slot);
    if (scorer->key_windows) {
        scorer->key_windows[scorer->key_window_bytes] = 0x33;
        assert_int_equal(other->key_windows[other->key_window_bytes], 0x33);
    }
}

/* ---- processes ---- */

struct early {
    struct epoch_settings settings;
    enum layout_party who;
    struct party party;
    atomic_int turns; /* relaxed: a count that is waited for */
    int code;
    struct hill_why why;
};

static int count_turns(void *context, struct hill_why *why)
{
    (void)why;
    atomic_fetch_add_explicit(&((struct early *)context)->turns, 1, memory_order_relaxed);
    return 0;
}

static void *enter(void *context)
{
    struct early *e = context;
    const struct party_wait wait = {count_turns, e, clock_deadline_ms(20000)};
    e->code = party_attach(&e->party, e->who, &e->settings, &e->why);
    if (e->code == 0)
        e->code = party_open(&e->party, &wait, &e->why);
    return NULL;
}

static void test_each_drive_has_rings_of_its_own(void **state)
{
    (void)state;
    struct epoch_settings s = settings_of(7, KV_POLICY_HILLINFER);
    struct hill_why why = {""};
    struct party scorer, agents[3];
    const uint64_t one = layout_rings_bytes(
        &(struct layout_input){s.plan.geometry, s.plan.ctx_tokens, s.plan.n_sequences, 0});
    s.csd_drives = 3;
    struct layout_input in = epoch_layout(&s);
    assert_true(layout_rings_bytes(&in) > one);
    assert_int_equal(epoch_create(&s, &why), 0);
    assert_int_equal(party_attach(&scorer, PARTY_SCORER, &s, &why), 0);
    assert_int_equal(party_open(&scorer, NULL, &why), 0);
    for (uint32_t d = 0; d < 3; d++) {
        const struct party_wait wait = {.deadline_ns = clock_deadline_ms(20000)};
        s.csd_drive = d;
        assert_int_equal(party_attach(&agents[d], PARTY_AGENT, &s, &why), 0);
        assert_int_equal(party_open(&agents[d], &wait, &why), 0);
    }
    for (uint32_t d = 0; d < 3; d++) {
        uint32_t seen = shm_doorbell_read(agents[d].bell), type, bytes;
        const void *payload;
        struct record_trim trim = {.tag = 40 + d};
        assert_int_equal(shm_ring_push(&scorer.ends[layout_ring_of(RING_COMMAND, d)], RECORD_TRIM,
                                       &trim, sizeof trim),
                         0);
        assert_true(shm_doorbell_read(agents[d].bell) != seen);
        for (uint32_t other = d + 1; other < 3; other++) /* those before have had theirs */
            assert_int_equal(
                shm_ring_peek(&agents[other].ends[RING_COMMAND], &type, &payload, &bytes),
                HILL_E_WOULD_BLOCK);
        assert_int_equal(shm_ring_peek(&agents[d].ends[RING_COMMAND], &type, &payload, &bytes), 0);
        assert_int_equal(((const struct record_trim *)payload)->tag, 40 + d);
    }
    for (uint32_t d = 0; d < 3; d++)
        party_leave(&agents[d]);
    party_leave(&scorer);
    epoch_unlink(s.run_id, s.epoch);
    s.csd_drive = 3;
    assert_int_equal(epoch_settings_check(&s, &why), HILL_E_INVALID);
}

static void test_who_comes_early_waits_and_all_meet(void **state)
{
    (void)state;
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        struct epoch_settings s =
            settings_of(epoch, epoch == 1 ? KV_POLICY_HILLINFER : KV_POLICY_LEOAM);
        struct early early[2] = {{.settings = s, .who = PARTY_GPU},
                                 {.settings = s, .who = PARTY_AGENT}};
        struct party scorer;
        struct hill_why why = {""};
        pthread_t threads[2];
        assert_int_equal(epoch_create(&s, &why), 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, enter, &early[i]), 0);
        int64_t deadline = clock_deadline_ms(20000);
        for (int i = 0; i < 2; i++)
            while (atomic_load_explicit(&early[i].turns, memory_order_relaxed) == 0 &&
                   clock_now_ns() < deadline)
                usleep(1000);
        assert_int_equal(party_attach(&scorer, PARTY_SCORER, &s, &why), 0);
        assert_int_equal(party_open(&scorer, NULL, &why), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(early[i].code, 0);
            assert_true(atomic_load_explicit(&early[i].turns, memory_order_relaxed) > 0);
            expect_one_staging(&scorer, &early[i].party);
        }
        assert_int_equal(scorer.key_windows != NULL, epoch == 2);
        expect_joined(&scorer, &early[0].party, 3);
        expect_joined(&scorer, &early[1].party, 4);
        assert_int_equal(party_attach_hot(&early[0].party, &s, &why), 0);
        ((uint8_t *)shm_segment_payload(&scorer.hot))[5] = 9;
        struct epoch_settings next = s;
        next.epoch = s.epoch + 1;
        next.tiers_epoch = s.epoch;
        assert_int_equal(epoch_kept(&next, &why), 0);
        next.hot_bytes++;
        assert_int_equal(epoch_kept(&next, &why), HILL_E_UNSUPPORTED);
        next.hot_bytes--;
        assert_int_equal(((uint8_t *)shm_segment_payload(&early[0].party.hot))[5], 9);
        epoch_unlink(s.run_id, s.epoch);
        assert_int_equal(epoch_kept(&next, &why), HILL_E_PEER_GONE);
        party_leave(&early[0].party);
        party_leave(&early[1].party);
        party_leave(&scorer);
        assert_int_equal(party_attach(&scorer, PARTY_SCORER, &s, &why), HILL_E_PEER_GONE);
    }
}

static int give_up(void *context, struct hill_why *why)
{
    int *turns = context;
    return ++*turns < 3 ? 0 : hill_fail(why, HILL_E_CANCELLED, "enough");
}

static void test_a_wait_ends(void **state)
{
    struct epoch_settings s = settings_of(3, KV_POLICY_HILLINFER);
    struct party party;
    struct hill_why why = {""};
    int turns = 0;
    (void)state;
    assert_int_equal(epoch_create(&s, &why), 0);
    assert_int_equal(epoch_create(&s, &why), HILL_E_BUSY); /* and takes away what is there */
    assert_int_equal(party_attach(&party, PARTY_AGENT, &s, &why), HILL_E_PEER_GONE);
    assert_int_equal(epoch_create(&s, &why), 0);
    assert_int_equal(party_attach(&party, PARTY_AGENT, &s, &why), 0);
    const struct party_wait cancelled = {give_up, &turns, CLOCK_NEVER},
                            late = {NULL, NULL, clock_deadline_ms(30)};
    assert_int_equal(party_open(&party, &cancelled, &why), HILL_E_CANCELLED);
    assert_int_equal(turns, 3);
    assert_int_equal(party_open(&party, &late, &why), HILL_E_TIMEOUT);
    assert_non_null(strstr(why.text, "has not laid out"));
    party_leave(&party);
    epoch_unlink(s.run_id, s.epoch);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    struct epoch_settings s = settings_of(4, KV_POLICY_HILLINFER), more = s;
    struct party party;
    struct hill_why why = {""};
    (void)state;
    assert_int_equal(epoch_create(&s, &why), 0);
    more.staging_slots = 10 * s.staging_slots;
    assert_int_equal(party_attach(&party, PARTY_GPU, &more, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "staging segment"));
    assert_null(party.rings.base);
    more = s;
    more.plan.selection.policy = KV_POLICY_LEOAM; /* its windows are not there */
    assert_int_equal(party_attach(&party, PARTY_AGENT, &more, &why), HILL_E_INVALID);
    assert_non_null(strstr(why.text, "key windows"));
    more = s;
    more.plan.ctx_tokens *= 2;
    assert_int_equal(party_attach(&party, PARTY_GPU, &more, &why), HILL_E_UNSUPPORTED);
    epoch_unlink(s.run_id, s.epoch);
}

/* ---- alone ---- */

static void test_one_process_plays_all_sides(void **state)
{
    struct epoch_settings s = settings_of(5, KV_POLICY_LEOAM);
    struct party scorer, gpu, agent;
    struct hill_why why = {""};
    (void)state;
    assert_int_equal(party_attach_alone(&scorer, &s, &why), 0);
    assert_int_equal(party_open(&scorer, NULL, &why), 0);
    assert_int_equal(party_beside(&gpu, PARTY_GPU, &scorer, &why), 0);
    assert_int_equal(party_beside(&agent, PARTY_AGENT, &scorer, &why), 0);
    expect_joined(&scorer, &gpu, 3);
    expect_joined(&scorer, &agent, 4);
    expect_one_staging(&scorer, &agent);
    party_leave(&gpu);
    party_leave(&agent);
    party_leave(&scorer);
}

static void test_without_a_drive_the_agents_rings_stay_closed(void **state)
{
    struct epoch_settings s = settings_of(6, KV_POLICY_HILLINFER);
    struct party scorer;
    struct hill_why why = {""};
    (void)state;
    s.cold_cap_bytes = 0;
    assert_int_equal(party_attach_alone(&scorer, &s, &why), 0);
    assert_int_equal(party_open(&scorer, NULL, &why), 0);
    for (int ring = 0; ring < RING_COUNT; ring++)
        assert_int_equal(scorer.ends[ring].ring != NULL, ring < RING_COMMAND);
    party_leave(&scorer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_drive_has_rings_of_its_own),
        cmocka_unit_test(test_who_comes_early_waits_and_all_meet),
        cmocka_unit_test(test_a_wait_ends),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_one_process_plays_all_sides),
        cmocka_unit_test(test_without_a_drive_the_agents_rings_stay_closed),
    };
    return cmocka_run_group_tests_name("party", tests, NULL, NULL);
}
