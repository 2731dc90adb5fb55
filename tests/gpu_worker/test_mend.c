/*
 * tests/gpu_worker/test_mend.c - a request goes on in a hill-gpu-worker process, between a played
 * coordinator and a played scorer that has lost single entries: these are computed again with their
 * bits, each once and in order; the logits' hash is taken up where it was; and whoever ends such a
 * request early is told a hash of steps that were done.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <xxhash.h>

#include "base/hash_state.h"
#include "tests/gpu_worker/stage.h"

enum { LAYERS = 3, PROMPT = 75, PREDICT = 20, KEPT = 8, KNOWN = 10 };

static const struct random_shape shape = RANDOM_SHAPE_SMALL(LAYERS);
static struct stage stage;
static struct stage_lane *const first = &stage.lanes[0], *const other = &stage.lanes[1];
static uint32_t prompt[PROMPT];

/* What the worker makes of the prompt, undisturbed. */
static struct {
    uint32_t tokens[PREDICT];
    uint64_t hash;
    struct hash_state states[PREDICT];
    uint8_t *entries[LAYERS];
} whole;
static const size_t n_entries = PROMPT + PREDICT - 1; /* of a layer: the last token has none */

static void new_epoch(void)
{
    uint32_t ready = stage.n_ready;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == ready + 1);
    for (uint32_t i = 0; i < STAGE_LANES; i++)
        stage.lanes[i].n_begins = stage.lanes[i].n_ends = 0;
}

static void assert_answer(const struct stage_lane *lane)
{
    STAGE_UNTIL(&stage, lane->done);
    assert_int_equal(lane->code, 0);
    assert_int_equal(lane->finish, HILL__FINISH_REASON__FINISH_LENGTH);
    assert_int_equal(lane->n_tokens, PREDICT);
    assert_memory_equal(lane->tokens, whole.tokens, sizeof whole.tokens);
    assert_true(lane->logits_hash == whole.hash);
    STAGE_UNTIL(&stage, lane->n_ends == lane->n_begins);
}

static uint64_t digest_after(uint32_t token)
{
    XXH64_state_t *hash = XXH64_createState();
    assert_true(hash_state_load(hash, &whole.states[token]));
    uint64_t digest = XXH64_digest(hash);
    XXH64_freeState(hash);
    return digest;
}

static void run_whole(void)
{
    stage_request(&stage, 0, prompt, PROMPT, PREDICT, UINT32_MAX);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->n_tokens, PREDICT);
    memcpy(whole.tokens, first->tokens, sizeof whole.tokens);
    memcpy(whole.states, first->states, sizeof whole.states);
    whole.hash = first->logits_hash;
    for (uint32_t l = 0; l < LAYERS; l++) {
        whole.entries[l] = malloc(n_entries * stage.entry_bytes);
        memcpy(whole.entries[l], first->entries[l], n_entries * stage.entry_bytes);
    }
    assert_true(digest_after(PREDICT - 1) == whole.hash);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
}

/* The next request on the lane has lost these. */
static void lose(struct stage_lane *lane, const struct damaged_entry *damaged, uint32_t n)
{
    memcpy(lane->damaged, damaged, n * sizeof *damaged);
    lane->n_damaged = n;
}

/* What follows begins, and does not go on. */
static void forget(struct stage_lane *lane)
{
    lane->kept_tokens = lane->replay_to = lane->n_damaged = lane->n_mended = 0;
    lane->stall_reads = lane->keeps_silent = false;
    lane->refuse_reads = 0;
    lane->cancel_at = lane->stall_at = 0;
}

static bool mends = true; /* its prompt was computed as one */

/* Another attempt: so many tokens are known, with the hash from `first_state` on; the scorer has
 * entries up to those of the answer's first `kept`. */
static void go_on(struct stage_lane *lane, uint32_t known, uint32_t first_state, uint32_t kept)
{
    Hill__Resume offer = HILL__RESUME__INIT;
    offer.tokens = whole.tokens;
    offer.n_tokens = known;
    offer.first_state = first_state;
    offer.logits_states.data = (uint8_t *)&whole.states[first_state];
    offer.logits_states.len = (known - first_state) * sizeof *whole.states;
    offer.mends = mends;
    for (uint32_t l = 0; l < LAYERS; l++)
        memcpy(lane->entries[l], whole.entries[l], n_entries * stage.entry_bytes);
    lane->kept_tokens = PROMPT + kept;
    stage.resume = &offer;
    stage.resumed_tokens = stage.entries_repeated = 0;
    stage_request(&stage, (uint32_t)(lane - stage.lanes), prompt, PROMPT, PREDICT, UINT32_MAX);
    stage.resume = NULL;
    lane->n_tokens = kept + 1;
    memcpy(lane->tokens, whole.tokens, lane->n_tokens * sizeof *whole.tokens);
}

static void assert_entries(const struct stage_lane *lane)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        assert_memory_equal(lane->entries[l], whole.entries[l], n_entries * stage.entry_bytes);
}

/* ---- damaged entries ------------------------------------------------------------------------ */

static const struct damage_case {
    uint32_t n;
    struct damaged_entry lost[9]; /* layer, position */
    uint32_t reads;               /* tokens of the layers below and of its own, before each */
} cases[] = {
    {1, {{0, 0}}, 0},                             /* nothing comes before it */
    {1, {{2, 0}}, 0},                             /* three layers, nothing to be read */
    {1, {{1, 40}}, 2 * 40},                       /* one window a layer */
    {1, {{2, 74}}, 3 * 74},                       /* two; the last token of the prompt */
    {3, {{0, 7}, {1, 7}, {2, 7}}, 3 * 7},         /* one token's, made in one pass */
    {3, {{2, 5}, {0, 6}, {1, 6}}, 3 * 5 + 2 * 6}, /* the later one attends to the first */
    {9,
     {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {2, 1}, {1, 30}, {0, 73}, {0, 74}, {2, 74}},
     3 * 1 + 2 * 30 + 73 + 3 * 74},
};

static uint32_t highest(const struct damage_case *c)
{
    uint32_t layer = 0;
    for (uint32_t i = 0; i < c->n; i++)
        layer = c->lost[i].layer > layer ? c->lost[i].layer : layer;
    return layer;
}

static void make_again(const struct damage_case *c)
{
    lose(first, c->lost, c->n);
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    assert_answer(first);
    assert_int_equal(first->n_mended, c->n); /* of which the played scorer checks the order */
    assert_entries(first);
    assert_int_equal(stage.resumed_tokens, KEPT + 1);
    assert_int_equal(stage.entries_repeated, c->n);
    assert_true(first->n_read >= c->reads); /* and windows that were asked for ahead */
    assert_true(first->read_end <= c->lost[c->n - 1].position);
    assert_true(first->read_layers <= highest(c) + 3 && first->read_layers <= LAYERS);
    assert_true(c->reads == 0 || first->read_layers > highest(c));
    forget(first);
}

/* In an epoch in which hot entries are read in place, and in one in which all is staged. */
static void damaged_entries_are_made_again_with_their_bits(void **state)
{
    (void)state;
    for (uint32_t epoch = 0; epoch < 2; epoch++, new_epoch())
        for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++)
            make_again(&cases[i]);
}

static void as_many_as_a_record_names(void **state)
{
    (void)state;
    struct damaged_entry many[RECORD_DAMAGED_MAX];
    for (uint32_t i = 0; i < RECORD_DAMAGED_MAX; i++)
        many[i] = (struct damaged_entry){i % LAYERS, 10 + i / LAYERS};
    lose(first, many, RECORD_DAMAGED_MAX);
    go_on(first, KNOWN, 0, KEPT);
    assert_answer(first);
    assert_int_equal(first->n_mended, RECORD_DAMAGED_MAX);
    assert_entries(first);
    forget(first);
}

/* A READ that is not answered holds up nobody else. */
static void others_decode_meanwhile(void **state)
{
    static const struct damaged_entry lost[] = {{1, 33}, {2, 60}};
    (void)state;
    stage_request(&stage, 1, prompt, PROMPT, PREDICT, UINT32_MAX);
    STAGE_UNTIL(&stage, other->n_tokens >= 3);
    lose(first, lost, 2);
    first->stall_reads = true;
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    STAGE_UNTIL(&stage, first->n_stalled > 0);
    assert_answer(other);
    assert_false(first->done);
    assert_int_equal(first->n_mended, 0);
    stage_answer_reads(&stage, first);
    assert_answer(first);
    assert_entries(first);
    forget(first);
}

static void a_cancel_ends_one_that_is_mended(void **state)
{
    static const struct damaged_entry lost[] = {{1, 33}};
    (void)state;
    lose(first, lost, 1);
    first->stall_reads = true;
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    STAGE_UNTIL(&stage, first->n_stalled > 0);
    stage_cancel(&stage, first);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_true(first->logits_hash ==
                digest_after(KNOWN - 1)); /* of the tokens that the client has */
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
    forget(first);
    make_again(&cases[3]);
}

static void assert_error(int code, bool says_goodbye)
{
    static const struct damaged_entry lost[] = {{1, 33}};
    uint32_t ends = first->n_ends;
    if (!first->n_damaged)
        lose(first, lost, 1);
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_ERROR);
    assert_int_equal(first->code, code);
    assert_int_equal(first->n_mended, 0);
    if (says_goodbye)
        STAGE_UNTIL(&stage, first->n_ends == ends + 1);
    forget(first);
    /* what follows is as ever, and what had to be said first has been said */
    stage_request(&stage, 0, prompt, PROMPT, PREDICT, UINT32_MAX);
    STAGE_UNTIL(&stage, first->done);
    assert_true(first->logits_hash == whole.hash);
    STAGE_UNTIL(&stage, first->n_ends > ends + says_goodbye);
    assert_int_equal(first->n_ends, ends + 1 + says_goodbye);
}

static void a_failed_read_ends_one_request(void **state)
{
    (void)state;
    first->refuse_reads = HILL_E_IO;
    assert_error(HILL_E_IO, true);
    first->refuse_reads = HILL_E_ENTRY; /* more is damaged: a new epoch looks at it */
    assert_error(HILL_E_ENTRY, false);
    first->n_begins = first->n_ends = 0;
}

/* The time of the decode begins when all is made again. */
static void what_is_made_again_is_no_decoding(void **state)
{
    static const struct damaged_entry lost[] = {{2, 74}};
    (void)state;
    lose(first, lost, 1);
    first->stall_reads = true;
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    STAGE_UNTIL(&stage, first->n_stalled > 0);
    int64_t answered = clock_now_ns();
    stage_answer_reads(&stage, first);
    assert_answer(first);
    assert_true(first->decode_ms * 1e6 <= (double)(clock_now_ns() - answered));
    forget(first);
}

/* Of a prompt that was not computed as one, and of what no prompt has. */
static void what_cannot_be_made_again_ends_one_request(void **state)
{
    static const struct damaged_entry decoded[] = {{1, 33}, {0, PROMPT}};
    (void)state;
    mends = false;
    assert_error(HILL_E_DAMAGED, true);
    mends = true;
    lose(first, decoded, 2);
    assert_error(HILL_E_PROTOCOL, true);
}

static void a_new_epoch_lets_one_that_is_mended_go(void **state)
{
    static const struct damaged_entry lost[] = {{2, 74}};
    (void)state;
    lose(first, lost, 1);
    first->stall_reads = true;
    go_on(first, KNOWN, KNOWN - 2, KEPT);
    STAGE_UNTIL(&stage, first->n_stalled > 0);
    new_epoch();
    assert_false(first->done);
    forget(first);
    make_again(&cases[6]);
}

/* ---- the logits' hash ----------------------------------------------------------------------- */

static void the_hash_goes_on_from_each_token_that_is_known(void **state)
{
    (void)state;
    for (uint32_t kept = 3; kept < KNOWN; kept += 3) {
        go_on(first, KNOWN, 3, kept);
        assert_answer(first);
        assert_int_equal(stage.resumed_tokens, kept + 1);
        for (uint32_t i = kept + 1; i < PREDICT; i++)
            assert_memory_equal(&first->states[i], &whole.states[i], sizeof *whole.states);
        forget(first);
    }
}

enum { FIRST_STATE = 12, REPLAY_FROM = 5, REPLAY_KNOWN = 16 };

/* Steps are made again whose hashes nobody has: from the first one on whose hash is known. */
static void replay(void)
{
    first->replay_to = REPLAY_KNOWN - 2;
    go_on(first, REPLAY_KNOWN, FIRST_STATE, REPLAY_FROM);
}

static void the_hash_is_taken_up_after_a_replay(void **state)
{
    (void)state;
    replay();
    assert_answer(first);
    assert_int_equal(stage.resumed_tokens, REPLAY_FROM + 1);
    for (uint32_t i = FIRST_STATE; i < PREDICT; i++)
        assert_memory_equal(&first->states[i], &whole.states[i], sizeof *whole.states);
    forget(first);
}

static void without_a_replay_to_what_was_not_offered_is_refused(void **state)
{
    (void)state;
    go_on(first, REPLAY_KNOWN, FIRST_STATE, REPLAY_FROM);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->code, HILL_E_PROTOCOL);
    STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
    forget(first);
}

/* The client has tokens up to REPLAY_KNOWN, also while they are made again. */
static void a_cancel_in_a_replay_tells_a_hash_of_steps_done(void **state)
{
    (void)state;
    for (uint32_t token = REPLAY_FROM + 1; token < REPLAY_KNOWN; token++) {
        replay();
        first->cancel_at = (token - REPLAY_FROM - 1) * LAYERS + 2;
        STAGE_UNTIL(&stage, first->done);
        assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
        assert_int_equal(first->done_tokens, token);
        assert_true(first->logits_hash == digest_after(REPLAY_KNOWN - 1));
        STAGE_UNTIL(&stage, first->n_ends == first->n_begins);
        forget(first);
    }
}

static void a_cancel_before_it_goes_on_tells_the_newest_hash(void **state)
{
    (void)state;
    first->keeps_silent = true;
    replay();
    STAGE_UNTIL(&stage, first->n_begins == first->n_ends + 1);
    stage_cancel(&stage, first);
    STAGE_UNTIL(&stage, first->done);
    assert_int_equal(first->finish, HILL__FINISH_REASON__FINISH_CANCEL);
    assert_true(first->logits_hash == digest_after(REPLAY_KNOWN - 1));
    forget(first);
    new_epoch(); /* no SEQ_READY is owed any more */
    make_again(&cases[1]);
}

int main(void)
{
    if (!stage_open(&stage, &shape))
        return 77;
    for (uint32_t i = 0; i < PROMPT; i++)
        prompt[i] = (i * 37 + i * i) % shape.n_vocab;
    stage_enter_epoch(&stage);
    stage_configure(&stage);
    STAGE_UNTIL(&stage, stage.n_ready == 1 || stage.n_failures);
    run_whole();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_entries_are_made_again_with_their_bits),
        cmocka_unit_test(as_many_as_a_record_names),
        cmocka_unit_test(others_decode_meanwhile),
        cmocka_unit_test(a_cancel_ends_one_that_is_mended),
        cmocka_unit_test(a_failed_read_ends_one_request),
        cmocka_unit_test(what_is_made_again_is_no_decoding),
        cmocka_unit_test(what_cannot_be_made_again_ends_one_request),
        cmocka_unit_test(a_new_epoch_lets_one_that_is_mended_go),
        cmocka_unit_test(the_hash_goes_on_from_each_token_that_is_known),
        cmocka_unit_test(the_hash_is_taken_up_after_a_replay),
        cmocka_unit_test(without_a_replay_to_what_was_not_offered_is_refused),
        cmocka_unit_test(a_cancel_in_a_replay_tells_a_hash_of_steps_done),
        cmocka_unit_test(a_cancel_before_it_goes_on_tells_the_newest_hash),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    int status = stage_close(&stage);
    for (uint32_t l = 0; l < LAYERS; l++)
        free(whole.entries[l]);
    if (status != 0)
        printf("the worker ended with %d\n", status);
    return failed || status != 0;
}
