/* tests/cpu_scorer/test_cold_map.c - the mirror of the cold pool's directory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cpu_scorer/cold_map.h"
#include "kv/group.h"
#include "tests/draws.h"

enum { STRIPE = 256, STRIPES = 30, LISTS = 6 };

/* Positions of several slots are those of each. */
static void check_runs(const struct cold_map *map, uint32_t list)
{
    uint32_t positions[STRIPE];
    for (uint32_t stripe = 0; stripe < STRIPES; stripe++) {
        uint32_t from = draw(STRIPE), n = draw(STRIPE - from + 1), first = stripe * STRIPE + from;
        cold_map_positions(map, list, first, n, positions);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(positions[i], cold_map_position(map, list, first + i));
    }
}

static void test_stripes_of_a_list_are_consecutive(void **unused)
{
    (void)unused;
    struct cold_map map;
    uint32_t slot, order;
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    assert_int_equal(cold_map_reserve(&map, 0, 3), 0);
    assert_int_equal(cold_map_reserve(&map, 1, 2), 0);
    cold_map_release(&map, 0);
    assert_int_equal(cold_map_reserve(&map, 2, 4), 0); /* does not fit in the hole of three */
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(cold_map_take(&map, 2, i * STRIPE, STRIPE, &slot, &order), STRIPE);
        assert_int_equal(slot, (5 + i) * STRIPE);
        assert_int_equal(order, i);
    }
    cold_map_finish(&map);
}

static void test_a_fragmented_pool_is_used_up(void **unused)
{
    (void)unused;
    struct cold_map map;
    assert_int_equal(cold_map_init(&map, STRIPE, 6, LISTS), 0);
    for (uint32_t l = 0; l < 6; l++)
        assert_int_equal(cold_map_reserve(&map, l, 1), 0);
    cold_map_release(&map, 1);
    cold_map_release(&map, 4);
    assert_int_equal(cold_map_reserve(&map, 1, 3), HILL_E_NOSPACE);
    assert_int_equal(cold_map_reserve(&map, 1, 2), 0);
    assert_int_equal(map.drives[0].n_free, 0);
    cold_map_finish(&map);
}

static void test_takes_never_cross_a_stripe(void **unused)
{
    (void)unused;
    struct cold_map map;
    uint32_t slot, order;
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    assert_int_equal(cold_map_reserve(&map, 0, 2), 0);
    assert_int_equal(cold_map_take(&map, 0, 0, 200, &slot, &order), 200);
    assert_int_equal(cold_map_room(&map, 0), 56);
    assert_int_equal(cold_map_take(&map, 0, 200, 200, &slot, &order), 56);
    assert_int_equal(cold_map_room(&map, 0), STRIPE);
    assert_int_equal(cold_map_take(&map, 0, 256, 300, &slot, &order), STRIPE);
    assert_int_equal(order, 1);
    assert_int_equal(cold_map_room(&map, 0), 0);
    assert_int_equal(cold_map_take(&map, 0, 512, 1, &slot, &order), 0);
    cold_map_finish(&map);
}

/* Every slot number there is, against what was handed out and committed. */
static void test_positions_are_those_of_committed_slots_only(void **unused)
{
    (void)unused;
    struct cold_map map;
    static uint32_t owner[STRIPE * STRIPES], position[STRIPE * STRIPES];
    for (uint32_t i = 0; i < STRIPE * STRIPES; i++)
        owner[i] = COLD_NONE;
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    for (uint32_t l = 0; l < LISTS; l++)
        assert_int_equal(cold_map_reserve(&map, l, 5), 0);
    for (int round = 0; round < 300; round++) {
        uint32_t list = draw(LISTS), slot, order, first = draw(10000);
        uint32_t n = cold_map_take(&map, list, first, 1 + draw(40), &slot, &order);
        if (n == 0) {
            cold_map_release(&map, list);
            for (uint32_t i = 0; i < STRIPE * STRIPES; i++)
                owner[i] = owner[i] == list ? COLD_NONE : owner[i];
            assert_int_equal(cold_map_reserve(&map, list, 5), 0);
        } else if (draw(4)) { /* else: stays uncommitted */
            cold_map_commit(&map, list, slot, n);
            for (uint32_t i = 0; i < n; i++) {
                owner[slot + i] = list;
                position[slot + i] = first + i;
            }
        }
    }
    for (uint32_t list = 0; list < LISTS; list++) {
        uint32_t committed = 0;
        for (uint32_t i = 0; i < STRIPE * STRIPES; i++) {
            assert_int_equal(cold_map_position(&map, list, i),
                             owner[i] == list ? position[i] : COLD_NONE);
            committed += owner[i] == list;
        }
        assert_int_equal(map.lists[list].committed, committed);
        check_runs(&map, list);
    }
    assert_int_equal(cold_map_position(&map, 0, (uint64_t)STRIPE * STRIPES), COLD_NONE);
    assert_int_equal(cold_map_position(&map, 0, UINT64_MAX), COLD_NONE);
    cold_map_finish(&map);
}

static void test_a_slot_stops_counting_and_counts_again(void **unused)
{
    (void)unused;
    struct cold_map map;
    static const uint32_t positions[] = {70, 3, 500};
    uint32_t slot, order;
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    assert_int_equal(cold_map_reserve(&map, 0, 1), 0);
    assert_int_equal(cold_map_take_positions(&map, 0, positions, 3, &slot, &order), 3);
    cold_map_commit(&map, 0, slot, 3);
    cold_map_uncommit(&map, 0, slot + 1);
    assert_int_equal(map.lists[0].committed, 2);
    assert_int_equal(cold_map_position(&map, 0, slot), 70);
    assert_int_equal(cold_map_position(&map, 0, slot + 1), COLD_NONE);
    assert_int_equal(cold_map_taken_position(&map, slot + 1), 3);
    assert_int_equal(cold_map_room(&map, 0), STRIPE - 3);
    cold_map_commit(&map, 0, slot + 1, 1);
    assert_int_equal(cold_map_position(&map, 0, slot + 1), 3);
    assert_int_equal(map.lists[0].committed, 3);
    cold_map_finish(&map);
}

/* ---- copies: against arrays that know nothing of groups' counts ---- */

enum { FREE, TAKEN, COUNTS, IS_COPY };

struct mirror {
    uint32_t list, state, position;
};
static struct mirror mirror[STRIPE * STRIPES];

static uint32_t count_state(uint32_t list, uint32_t state_wanted, uint32_t from, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = from; i < end; i++)
        n += mirror[i].state == state_wanted && mirror[i].list == list;
    return n;
}

static uint32_t pick(uint32_t list, uint32_t state_wanted)
{
    uint32_t n = count_state(list, state_wanted, 0, STRIPE * STRIPES);
    uint32_t nth = n ? draw(n) : 0;
    for (uint32_t i = 0; n && i < STRIPE * STRIPES; i++)
        if (mirror[i].state == state_wanted && mirror[i].list == list && nth-- == 0)
            return i;
    return COLD_NONE;
}

/* The slots that were given are copies of the list, in order, each once, and no group that has more
 * copies left than one that was used had before. */
static void check_reuse(struct cold_map *map, uint32_t list, uint32_t n)
{
    uint32_t slots[40], lost[40], positions[40], most_left = 0, least_used = 16;
    uint32_t copies = count_state(list, IS_COPY, 0, STRIPE * STRIPES);
    uint32_t keep = count_state(list, COUNTS, 0, STRIPE * STRIPES) / PLACEMENT_COPIES_PART;
    uint32_t spare = copies > keep ? copies - keep : 0, before[STRIPE * STRIPES / 16];
    for (uint32_t g = 0; g < STRIPE * STRIPES / 16; g++)
        before[g] = count_state(list, IS_COPY, g * 16, g * 16 + 16);
    for (uint32_t i = 0; i < n; i++)
        positions[i] = draw(1u << 24);
    assert_int_equal(cold_map_spare(map, list), spare);
    uint32_t got = cold_map_reuse(map, list, positions, n, slots, lost);
    assert_int_equal(got, n < spare ? n : spare);
    for (uint32_t i = 0; i < got; i++) {
        assert_true(i == 0 || slots[i] > slots[i - 1]);
        assert_true(mirror[slots[i]].list == list && mirror[slots[i]].state == IS_COPY);
        assert_int_equal(lost[i], mirror[slots[i]].position);
        mirror[slots[i]] = (struct mirror){list, TAKEN, positions[i]};
        if (before[slots[i] / 16] < least_used)
            least_used = before[slots[i] / 16];
    }
    for (uint32_t g = 0; got && g < STRIPE * STRIPES / 16; g++) {
        uint32_t left = count_state(list, IS_COPY, g * 16, g * 16 + 16);
        if (left == before[g] && left > most_left)
            most_left = left;
    }
    assert_true(got == 0 || most_left <= least_used);
}

/* One step of a random life. */
static void live(struct cold_map *map, uint32_t list)
{
    uint32_t slot, order, positions[40], what = draw(100), n = 1 + draw(40);
    if (what < 20) {
        for (uint32_t i = 0; i < n; i++)
            positions[i] = draw(1u << 24);
        n = cold_map_take_positions(map, list, positions, n, &slot, &order);
        for (uint32_t i = 0; i < n; i++)
            mirror[slot + i] = (struct mirror){list, TAKEN, positions[i]};
    } else if (what < 70) { /* some count now, some move up, some come down again */
        uint32_t from = what < 40 ? TAKEN : what < 60 ? COUNTS : IS_COPY;
        for (uint32_t i = 0; i < n && (slot = pick(list, from)) != COLD_NONE; i++) {
            if (from == COUNTS)
                cold_map_uncommit(map, list, slot);
            else
                cold_map_commit(map, list, slot, 1);
            mirror[slot].state = from == COUNTS ? IS_COPY : COUNTS;
        }
    } else if (what < 98) {
        check_reuse(map, list, n);
    } else {
        cold_map_release(map, list);
        for (uint32_t i = 0; i < STRIPE * STRIPES; i++)
            if (mirror[i].list == list)
                mirror[i].state = FREE;
        assert_int_equal(cold_map_reserve(map, list, 5), 0);
    }
}

static void test_slots_of_copies_are_used_again(void **unused)
{
    (void)unused;
    struct cold_map map;
    memset(mirror, 0, sizeof mirror);
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    for (uint32_t l = 0; l < LISTS; l++)
        assert_int_equal(cold_map_reserve(&map, l, 5), 0);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t list = draw(LISTS);
        live(&map, list);
        uint32_t slot = draw(STRIPE * STRIPES);
        const struct mirror *m = &mirror[slot];
        assert_int_equal(cold_map_position(&map, list, slot),
                         m->list == list && m->state == COUNTS ? m->position : COLD_NONE);
        assert_int_equal(map.lists[list].committed, count_state(list, COUNTS, 0, STRIPE * STRIPES));
        if (i % 100 == 0)
            check_runs(&map, list);
    }
    cold_map_finish(&map);
}

static void test_stripes_that_are_no_whole_groups_are_refused(void **unused)
{
    (void)unused;
    struct cold_map map;
    assert_int_equal(cold_map_init(&map, 40, 2, 1), HILL_E_INVALID);
    assert_int_equal(cold_map_init(&map, 1, 0, 1), 0); /* without a drive */
    cold_map_finish(&map);
}

/* A list that has grown into a stripe below its others is recovered with all the room it had. */
static void test_a_grown_stripe_below_the_others_is_filled_on(void **unused)
{
    (void)unused;
    struct cold_map map, next;
    uint32_t slot, order, slots[2 * STRIPE + 100], n = 0, part;
    assert_int_equal(cold_map_init(&map, STRIPE, STRIPES, LISTS), 0);
    assert_int_equal(cold_map_reserve(&map, 0, 2), 0);
    assert_int_equal(cold_map_reserve(&map, 1, 2), 0);
    cold_map_release(&map, 0);
    assert_int_equal(cold_map_reserve(&map, 1, 3), 0);
    for (uint32_t want = 2 * STRIPE + 100; n < want; n += part) {
        part = cold_map_take(&map, 1, n, want - n, &slot, &order);
        assert_true(part > 0);
        cold_map_commit(&map, 1, slot, part);
        for (uint32_t i = 0; i < part; i++)
            slots[n + i] = slot + i;
    }
    assert_int_equal(order, 2);
    assert_true(slot / STRIPE < slots[0] / STRIPE);
    assert_int_equal(cold_map_init(&next, STRIPE, STRIPES, LISTS), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(cold_map_hold(&next, 1, slots[i], i), 0);
    assert_int_equal(cold_map_recovered(&next, 1, 3), 0);
    assert_int_equal(next.lists[1].lost, 0);
    assert_int_equal(next.stripes[slot / STRIPE].order, 2);
    assert_int_equal(cold_map_room(&next, 1), STRIPE - 100);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(cold_map_position(&next, 1, slots[i]), i);
    cold_map_finish(&map);
    cold_map_finish(&next);
}

/* ---- several drives ---- */

#define DRIVES 3u

static void make_drives(struct cold_map *map)
{
    const uint32_t stripes[DRIVES] = {4, 0, 6}; /* the second place is empty */
    const double speeds[DRIVES] = {1, 9, 3};
    assert_int_equal(cold_map_init_drives(map, STRIPE, 6, stripes, DRIVES, LISTS), 0);
    cold_map_set_speeds(map, speeds);
    assert_int_equal(cold_map_reserve(map, cold_map_part(map, 1, 0), 2), 0);
    assert_int_equal(cold_map_reserve(map, cold_map_part(map, 1, 1), 1), HILL_E_NOSPACE);
    assert_int_equal(cold_map_reserve(map, cold_map_part(map, 1, 2), 6), 0);
}

/* Deal and take n entries, from position `first` on; per drive how many. */
static void deal(struct cold_map *map, uint32_t first, uint32_t n, uint32_t each[DRIVES],
                 uint32_t *slots)
{
    while (n) {
        uint32_t drive, slot, order, part, most = cold_map_deal(map, 1, n, false, &drive);
        assert_true(most > 0 && most <= n);
        part = cold_map_part(map, 1, drive);
        uint32_t got = cold_map_take(map, part, first, most, &slot, &order);
        assert_true(got > 0 && cold_map_drive(map, slot) == drive);
        cold_map_commit(map, 1, slot, got);
        for (uint32_t i = 0; i < got; i++)
            slots[first + i] = slot + i;
        each[drive] += got;
        first += got;
        n -= got;
    }
}

static void test_entries_are_dealt_by_speed(void **unused)
{
    (void)unused;
    static uint32_t slots[8 * STRIPE];
    struct cold_map map, next;
    uint32_t each[DRIVES] = {0}, drive;
    const uint32_t there[DRIVES] = {4, 0, 6};
    make_drives(&map);
    for (uint32_t i = 0; i < 8; i++) /* a quarter and three quarters, to a group */
        deal(&map, i * 100, 100, each, slots);
    assert_int_equal(each[1], 0);
    assert_in_range(each[0], 200 - KV_GROUP_TOKENS, 200 + KV_GROUP_TOKENS);
    assert_int_equal(cold_map_committed(&map, 1), 800);
    assert_int_equal(map.lists[cold_map_part(&map, 1, 2)].committed, each[2]);
    for (uint32_t p = 0; p < 800; p++)
        assert_int_equal(cold_map_position(&map, 1, slots[p]), p);
    assert_int_equal(cold_map_position(&map, 0, slots[0]), COLD_NONE);

    /* what counts no more is not the drive's load: the next batch goes where it was */
    for (uint32_t p = 0; p < 800; p++)
        if (cold_map_drive(&map, slots[p]) == 2)
            cold_map_uncommit(&map, 1, slots[p]);
    assert_int_equal(cold_map_deal(&map, 1, 64, true, &drive), 64);
    assert_int_equal(drive, 2);
    for (uint32_t p = 0; p < 800; p++)
        if (cold_map_drive(&map, slots[p]) == 2)
            cold_map_commit(&map, 1, slots[p], 1);

    deal(&map, 800, 8 * STRIPE - 800, each, slots); /* all there is, although one is full first */
    assert_int_equal(each[0], 2 * STRIPE);
    assert_int_equal(each[2], 6 * STRIPE);
    assert_int_equal(cold_map_deal(&map, 1, 1, false, &drive), 0);

    assert_int_equal(cold_map_init_drives(&next, STRIPE, 6, there, DRIVES, LISTS), 0);
    for (uint32_t p = 0; p < 8 * STRIPE; p++)
        assert_int_equal(cold_map_hold(&next, 1, slots[p], p), 0);
    assert_int_equal(cold_map_hold(&next, 1, 7 * STRIPE, 0),
                     HILL_E_DAMAGED); /* no drive is there */
    for (uint32_t d = 0; d < DRIVES; d++)
        assert_int_equal(cold_map_recovered(&next, cold_map_part(&next, 1, d),
                                            d == 0   ? 2
                                            : d == 2 ? 6
                                                     : 0),
                         0);
    for (uint32_t p = 0; p < 8 * STRIPE; p++)
        assert_int_equal(cold_map_position(&next, 1, slots[p]), p);
    cold_map_release(&next, cold_map_part(&next, 1, 0));
    assert_int_equal(next.drives[0].n_free, 4);
    assert_int_equal(next.drives[2].n_free, 0);
    cold_map_finish(&map);
    cold_map_finish(&next);
}

/* One entry that lies on `from`, from position *p on, goes to another drive. */
static void carry_one(struct cold_map *map, uint32_t from, uint32_t to, uint32_t *slots,
                      uint32_t n_tokens, uint32_t *p)
{
    uint32_t part = cold_map_part(map, 1, to), slot, order, lost;
    while (cold_map_drive(map, slots[*p]) != from)
        *p = (*p + 1) % n_tokens;
    if (!cold_map_room(map, part))
        assert_int_equal(cold_map_reuse(map, part, p, 1, &slot, &lost), 1);
    else
        assert_int_equal(cold_map_take(map, part, *p, 1, &slot, &order), 1);
    cold_map_commit(map, 1, slot, 1);
    cold_map_uncommit(map, 1, slots[*p]);
    cold_map_disown(map, 1, slots[*p]);
    slots[*p] = slot;
}

/* Batches are carried from drive to drive as by share_out.c, until that ends; none goes back. */
static void carry_all(struct cold_map *map, uint32_t *slots, uint32_t n_tokens)
{
    bool came[DRIVES] = {false};
    uint32_t from, to, p = 0;
    while (cold_map_uneven(map, 1, 64, &from)) {
        assert_false(came[from]);
        for (uint32_t left = 64, n; left; left -= n) {
            if (!cold_map_deal(map, 1, left, true, &to) || to == from)
                return;
            uint32_t part = cold_map_part(map, 1, to);
            n = cold_map_room(map, part) ? cold_map_room(map, part) : cold_map_spare(map, part);
            n = n < left ? n : left;
            came[to] = true;
            for (uint32_t i = 0; i < n; i++)
                carry_one(map, from, to, slots, n_tokens, &p);
        }
    }
}

/* A drive that has come gets its share; a small one gets what it has room for. */
static void test_sharing_out_ends_where_a_drive_is_full(void **unused)
{
    (void)unused;
    static const uint32_t there[DRIVES] = {8, 8, 8};
    static uint32_t slots[3 * STRIPE];
    for (uint32_t small = 0; small < 2; small++) {
        struct cold_map map;
        uint32_t each[DRIVES] = {0}, n = 3 * STRIPE - 40, committed;
        assert_int_equal(cold_map_init_drives(&map, STRIPE, 8, there, DRIVES, LISTS), 0);
        for (uint32_t d = 0; d < 2; d++)
            assert_int_equal(cold_map_reserve(&map, cold_map_part(&map, 1, d), 4), 0);
        cold_map_set_speeds(&map, (const double[DRIVES]){1, 3, 0.1});
        deal(&map, 0, n, each, slots);
        assert_true(each[0] < each[1] && each[0] + each[1] == n);
        cold_map_set_speeds(&map, (const double[DRIVES]){1, 1, small ? 8 : 1});
        assert_int_equal(cold_map_reserve(&map, cold_map_part(&map, 1, 2), small ? 1 : 4), 0);
        carry_all(&map, slots, n);
        committed = cold_map_on(&map, 1, 2)->committed;
        assert_in_range(committed, small ? STRIPE : n / 3 - 64, small ? STRIPE : n / 3 + 64);
        cold_map_finish(&map);
    }
}

int main(void)
{
    draws_seed(5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_are_dealt_by_speed),
        cmocka_unit_test(test_sharing_out_ends_where_a_drive_is_full),
        cmocka_unit_test(test_stripes_of_a_list_are_consecutive),
        cmocka_unit_test(test_a_fragmented_pool_is_used_up),
        cmocka_unit_test(test_takes_never_cross_a_stripe),
        cmocka_unit_test(test_a_slot_stops_counting_and_counts_again),
        cmocka_unit_test(test_slots_of_copies_are_used_again),
        cmocka_unit_test(test_stripes_that_are_no_whole_groups_are_refused),
        cmocka_unit_test(test_a_grown_stripe_below_the_others_is_filled_on),
        cmocka_unit_test(test_positions_are_those_of_committed_slots_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
