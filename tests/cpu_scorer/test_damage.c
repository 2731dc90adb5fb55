/* tests/cpu_scorer/test_damage.c - the list of damaged entries against a table of flags, and what
 * it costs to make them again against the sum spelt out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "cpu_scorer/damage.h"
#include "tests/draws.h"

enum { LAYERS = 5, TOKENS = 40, ROUNDS = 20000 };

static bool flags[TOKENS][LAYERS];

static uint32_t flagged(void)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < TOKENS; p++)
        for (uint32_t l = 0; l < LAYERS; l++)
            n += flags[p][l];
    return n;
}

static void check_list(const struct damage *d)
{
    uint32_t i = 0;
    for (uint32_t p = 0; p < TOKENS; p++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            assert_int_equal(damage_has(d, l, p), flags[p][l]);
            if (!flags[p][l])
                continue;
            assert_true(i < d->n);
            assert_int_equal(d->items[i].position, p);
            assert_int_equal(d->items[i].layer, l);
            i++;
        }
    assert_int_equal(i, d->n);
}

static void check_questions(const struct damage *d, uint32_t layer, uint32_t position)
{
    uint32_t first = DAMAGE_NONE;
    bool below = false;
    for (uint32_t p = 0; p < TOKENS; p++) {
        below |= p < position && flags[p][layer];
        for (uint32_t l = 0; l < LAYERS && p >= position && first == DAMAGE_NONE; l++)
            first = flags[p][l] ? p : first;
    }
    assert_int_equal(damage_below(d, layer, position), below);
    assert_int_equal(damage_first(d, position), first);
}

static void a_list_is_a_table_of_flags(void **unused)
{
    (void)unused;
    struct damage d = {0};
    uint32_t refused = 0;
    memset(flags, 0, sizeof flags);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t layer = draw(LAYERS), position = draw(TOKENS), what = draw(100);
        if (what < 60) {
            bool room = flags[position][layer] || flagged() < RECORD_DAMAGED_MAX;
            assert_int_equal(damage_add(&d, layer, position), room);
            flags[position][layer] |= room;
            refused += !room;
        } else if (what < 99) {
            damage_remove(&d, layer, position);
            flags[position][layer] = false;
        } else {
            damage_cut(&d, position);
            memset(flags[position], 0, (TOKENS - position) * sizeof *flags);
        }
        check_list(&d);
        check_questions(&d, layer, position);
    }
    assert_true(refused > 0);
}

static void what_it_costs_is_the_rule_of_the_book(void **unused)
{
    (void)unused;
    uint32_t pays = 0, rounds = 4000;
    for (uint32_t i = 0; i < rounds; i++) {
        struct damage d = {0};
        uint32_t n_layers = 1 + draw(40), prompt = 1 + draw(800), decoded = draw(20);
        uint64_t again = 0, anew = 0;
        for (uint32_t n = 1 + draw(RECORD_DAMAGED_MAX); n; n--)
            damage_add(&d, draw(n_layers), draw(prompt));
        for (uint32_t p = 0; p < prompt; p++)
            for (uint32_t l = n_layers; l-- > 0;)
                if (damage_has(&d, l, p)) {
                    again += (uint64_t)(l + 1) * (p + DAMAGE_ROW);
                    break;
                }
        for (uint32_t l = 0; l < n_layers; l++)
            anew += prompt * DAMAGE_PROMPT_ROW + prompt * prompt / DAMAGE_PROMPT_PAST +
                    decoded * DAMAGE_ROW;
        assert_int_equal(damage_pays(&d, n_layers, prompt, decoded), again <= anew);
        pays += again <= anew;
    }
    assert_true(pays > rounds / 20 && pays < rounds - rounds / 20);
}

/* At the very border, and one entry beyond it. */
static void the_border_is_on_the_side_of_making_again(void **unused)
{
    (void)unused;
    struct damage d = {0};
    const uint32_t prompt = 1000, anew = 9000 + 3125, at = anew - 60;
    damage_add(&d, 0, at);
    assert_true(damage_pays(&d, 1, prompt, 0));
    damage_remove(&d, 0, at);
    damage_add(&d, 0, at + 1);
    assert_false(damage_pays(&d, 1, prompt, 0));
    assert_true(damage_pays(&d, 1, prompt, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_a_table_of_flags),
        cmocka_unit_test(what_it_costs_is_the_rule_of_the_book),
        cmocka_unit_test(the_border_is_on_the_side_of_making_again),
    };
    draws_seed(20261123);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
