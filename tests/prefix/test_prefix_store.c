/*
 * tests/prefix/test_prefix_store.c - random puts, drops and queries against an oracle that compares
 * whole token lists; who may take what. HILL_TEST_SEED draws others.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/prefix_store.h"
#include "tests/draws.h"
#include "tests/rounds.h"

enum { SLOTS = 6, LONGEST = 40, OPERATIONS = TEST_ROUNDS(20000) };

/* What the oracle remembers of a slot. */
struct known {
    bool there;
    struct prefix_entry e;
    uint32_t tokens[LONGEST];
    uint32_t put; /* when */
};

static void random_tokens(uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = draw(8) ? i : draw(3); /* much in common */
}

/* Position by position, for every length: the longest list that both begin with. */
static uint32_t longest(const struct known *k, const struct prefix_query *q, uint32_t most)
{
    uint32_t best = 0;
    for (uint32_t n = 1; n <= most && n < q->n; n++)
        if (memcmp(k->tokens, q->tokens, n * sizeof *q->tokens) == 0)
            best = n;
    return best;
}

static void check_query(const struct prefix_store *store, const struct known *known)
{
    uint32_t tokens[LONGEST], n = 1 + draw(LONGEST), best = 0, last = 0, at = SLOTS, history = 0;
    bool taken[PREFIX_SEQUENCES_MAX] = {false};
    random_tokens(tokens, n);
    struct prefix_query q = {tokens, n, draw(3), draw(4) ? 0 : 1 + draw(30), draw(2)};
    for (uint32_t i = 0; i < SLOTS; i++)
        taken[i] = draw(4) == 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        const struct known *k = &known[i];
        if (!k->there || taken[i])
            continue;
        bool own = (q.conversation && k->e.conversation == q.conversation) ||
                   (q.after && k->e.request == q.after);
        uint32_t found = longest(k, &q, own ? k->e.n_kept : k->e.n_plain);
        history = own && k->e.n_kept > history ? k->e.n_kept : history;
        if (q.room && !own && 4 * found < n)
            found = 0; /* the most of it is computed anyway */
        if (found > best || (found && found == best && k->put > last))
            best = found, last = k->put, at = i;
    }
    struct prefix_hit hit = prefix_store_find(store, &q, taken);
    assert_int_equal(hit.n_tokens, best);
    assert_int_equal(hit.n_history, history);
    assert_int_equal(hit.request, best ? known[at].e.request : 0);
    if (best) {
        assert_int_equal(hit.sequence, at);
        assert_int_equal(hit.n_plain, best < known[at].e.n_plain ? best : known[at].e.n_plain);
    }
}

static void check_slot(const struct prefix_store *store, const struct known *known)
{
    bool taken[PREFIX_SEQUENCES_MAX] = {false};
    uint32_t want = SLOTS;
    for (uint32_t i = 0; i < SLOTS; i++)
        taken[i] = draw(3) == 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint32_t used = known[i].there ? known[i].put : 0;
        if (!taken[i] && (want == SLOTS || used < (known[want].there ? known[want].put : 0)))
            want = i;
    }
    assert_int_equal(prefix_store_slot(store, SLOTS, taken), want);
}

static void put(struct prefix_store *store, struct known *k, uint32_t slot, uint32_t now)
{
    k->e = (struct prefix_entry){.request = now,
                                 .conversation = draw(3),
                                 .tokens = k->tokens,
                                 .n_tokens = 1 + draw(LONGEST),
                                 .finished = draw(2)};
    random_tokens(k->tokens, k->e.n_tokens);
    k->e.n_kept = 1 + draw(k->e.n_tokens);
    k->e.n_plain = draw(k->e.n_kept + 1);
    k->there = true;
    k->put = now;
    assert_int_equal(prefix_store_put(store, slot, &k->e), 0);
}

static void test_against_lists(void **unused)
{
    (void)unused;
    struct prefix_store store;
    struct known known[SLOTS] = {{0}};
    draws_seed(3);
    prefix_store_init(&store);
    for (uint32_t i = 1; i <= OPERATIONS; i++) {
        uint32_t slot = draw(SLOTS);
        switch (draw(8)) {
        case 0:
            put(&store, &known[slot], slot, i);
            break;
        case 1:
            prefix_store_drop(&store, slot);
            known[slot].there = false;
            break;
        case 2:
            check_slot(&store, known);
            break;
        case 3: {
            const struct prefix_entry *e = prefix_store_request(&store, known[slot].e.request);
            assert_true((e != NULL) == known[slot].there);
            if (e)
                assert_memory_equal(e->tokens, known[slot].tokens, e->n_tokens * sizeof *e->tokens);
            break;
        }
        default:
            check_query(&store, known);
        }
        if (draw(2000) == 0) {
            prefix_store_clear(&store);
            memset(known, 0, sizeof known);
        }
    }
    prefix_store_finish(&store);
}

/* The same prompt again: all but its last token. */
static void test_the_last_token_is_computed(void **unused)
{
    (void)unused;
    uint32_t tokens[] = {5, 6, 7, 8};
    const bool taken[PREFIX_SEQUENCES_MAX] = {false};
    struct prefix_store store;
    prefix_store_init(&store);
    struct prefix_entry e = {
        .request = 9, .tokens = tokens, .n_tokens = 4, .n_kept = 4, .n_plain = 3};
    assert_int_equal(prefix_store_put(&store, 2, &e), 0);
    struct prefix_query q = {.tokens = tokens, .n = 4};
    assert_int_equal(prefix_store_find(&store, &q, taken).n_tokens, 3);
    q.after = 9;
    struct prefix_hit hit = prefix_store_find(&store, &q, taken);
    assert_int_equal(hit.n_tokens, 3);
    assert_int_equal(hit.n_history, 4);
    q.n = 1;
    assert_int_equal(prefix_store_find(&store, &q, taken).request, 0);
    q = (struct prefix_query){.tokens = tokens, .n = 4};
    tokens[0] = 4;
    assert_int_equal(prefix_store_find(&store, &q, taken).request, 0);
    assert_null(prefix_store_request(&store, 0));
    assert_null(prefix_store_request(&store, 10));
    prefix_store_finish(&store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_lists),
        cmocka_unit_test(test_the_last_token_is_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
