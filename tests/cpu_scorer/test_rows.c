/*
 * tests/cpu_scorer/test_rows.c - rows in flight: the rows of a step ask together, and the drive is
 * at several of them. What is selected is the same for any number of them.
 */
#include "tests/cpu_scorer/pipeline_rig.h"
#include "tests/rounds.h"

enum { ROWS = 4, STEPS = 12 + TEST_ROUNDS(8) };

static const uint32_t prompts[ROWS] = {600, 300, 340, 280};

/* Shown with what is staged besides. */
static void stage_question(struct rig *r, const struct rig_question *asked)
{
    void *room;
    assert_int_equal(shm_ring_reserve(&r->gpu[RING_QUERY], sizeof *asked, &room), 0);
    memcpy(room, asked, sizeof *asked);
    shm_ring_stage(&r->gpu[RING_QUERY], RECORD_QUERY, sizeof *asked);
}

/* A layer of a step: all queries are shown at once, each row's new token before or after. */
static void ask_layer(struct rig *r, struct rig_request *q[ROWS], uint32_t layer,
                      struct rig_question asked[ROWS])
{
    for (uint32_t i = 0; i < ROWS; i++) {
        gpu_finish_reading(q[i]);
        gpu_fill_question(q[i], layer, q[i]->n, QUERY_EXACT, &asked[i]);
        if (q[i]->appended[layer] == q[i]->n && (q[i]->step + layer + i) % 2)
            gpu_append(q[i], layer, 1);
        stage_question(r, &asked[i]);
    }
    shm_ring_flush(&r->gpu[RING_QUERY]);
    for (uint32_t i = 0; i < ROWS; i++)
        if (q[i]->appended[layer] == q[i]->n)
            gpu_append(q[i], layer, 1);
}

/* Answers come in the order of the questions. Returns the first status that is not 0. */
static int take_answers(struct rig_request *q[ROWS], uint32_t layer,
                        const struct rig_question asked[ROWS], int status[ROWS])
{
    int first = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        status[i] = gpu_answer(q[i], layer, q[i]->n, &asked[i]);
        first = first ? first : status[i];
    }
    return first;
}

static int decode_layer(struct rig *r, struct rig_request *q[ROWS], uint32_t layer, int status[])
{
    struct rig_question asked[ROWS];
    ask_layer(r, q, layer, asked);
    return take_answers(q, layer, asked, status);
}

static int decode(struct rig *r, struct rig_request *q[ROWS])
{
    int status[ROWS];
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++) {
        int rc = decode_layer(r, q, layer, status);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        q[i]->n++;
        gpu_step_end(q[i]);
    }
    return 0;
}

static struct rig *begin(struct rig_options o, const struct kv_selection_settings *how,
                         struct rig_request *q[ROWS])
{
    o.n_sequences = ROWS;
    struct rig *r = rig_start(&o);
    for (uint32_t i = 0; i < ROWS; i++) {
        q[i] = gpu_begin(r, i, prompts[i], prompts[i] + STEPS, how, 0);
        gpu_prefill(q[i]);
    }
    return r;
}

/* Whole requests, each answer compared with the oracle's: their hashes. */
static void run_rows(struct rig_options o, const struct kv_selection_settings *how,
                     uint64_t hashes[ROWS])
{
    struct rig_request *q[ROWS];
    struct rig *r = begin(o, how, q);
    uint64_t moved = 0;
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(decode(r, q), 0);
    for (uint32_t i = 0; i < ROWS; i++) {
        hashes[i] = XXH64_digest(q[i]->hash);
        struct scorer_stats s = gpu_end(q[i]);
        assert_int_equal(s.selection_hash, hashes[i]);
        moved += s.promoted;
    }
    assert_true(o.placement != PLACEMENT_BKP || moved > 0);
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
}

static void test_any_number_of_rows_selects_the_same(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = true, .beta = 0.25},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .reads_hot = true, .gpu_drop = 0.5},
        {.csd = true, .beta = 0.25, .cpu_gb_per_s = 1},
        {.csd = false},
    };
    static const uint32_t rows[] = {1, 2, 2 * ROWS};
    uint64_t hashes[ROWS], first[ROWS];
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            struct rig_options o = places[i];
            o.rows = rows[n];
            run_rows(o, &usual, i + n ? hashes : first);
            if (i + n)
                assert_memory_equal(hashes, first, sizeof first);
        }
}

/* Their keys are read through one set of windows: a row is scored while others fetch. */
static void test_every_policy_selects_the_same(void **unused)
{
    (void)unused;
    for (uint32_t policy = 0; policy < KV_POLICY_COUNT; policy++) {
        struct kv_selection_settings how = usual;
        struct rig_options o = {.csd = true, .beta = 0.25, .policy = policy};
        uint64_t one[ROWS], several[ROWS];
        how.policy = policy;
        o.rows = 1;
        run_rows(o, &how, one);
        o.rows = 3;
        run_rows(o, &how, several);
        assert_memory_equal(one, several, sizeof one);
    }
}

/* ---- the drive's busy spans ------------------------------------------------------------------ */

static const struct rig_span *span_of(const struct rig_agent *a, uint32_t command,
                                      uint32_t sequence, uint32_t layer, uint32_t step)
{
    for (uint32_t i = 0; i < a->n_spans; i++) {
        const struct rig_span *s = &a->spans[i];
        if (s->command == command && s->sequence == sequence && s->layer == layer &&
            s->step == step)
            return s;
    }
    fail_msg("sequence %u has no span in layer %u of step %u", sequence, layer, step);
    return NULL;
}

/* Pairs of a row's FETCH and the next row's scoring: how many, and how many of them overlap. The
 * drive has the whole GPU's share to fetch in every layer. */
static uint32_t count_overlaps(uint32_t rows, bool holds, uint32_t *pairs)
{
    struct rig_options o = {.csd = true, .beta = 0.25, .rows = rows, .gpu_drop = 1};
    struct rig_request *q[ROWS];
    uint32_t overlaps = 0, first_step;
    struct rig *r = begin(o, &usual, q);
    first_step = q[0]->step;
    atomic_store_explicit(&r->agent->rows, holds ? ROWS : 0, memory_order_relaxed);
    for (int i = 0; i < 3; i++)
        assert_int_equal(decode(r, q), 0);
    *pairs = 0;
    for (uint32_t at = 0; at < 3 * RIG_LAYERS; at++)
        for (uint32_t row = 0; row + 2 < ROWS; row++) {
            uint32_t layer = at % RIG_LAYERS, step = first_step + at / RIG_LAYERS;
            const struct rig_span *fetch = span_of(r->agent, RECORD_FETCH, row, layer, step);
            const struct rig_span *next =
                span_of(r->agent, RECORD_AGENT_QUERY, row + 1, layer, step);
            overlaps += fetch->began < next->ended && next->began < fetch->ended;
            ++*pairs;
        }
    for (uint32_t i = 0; i < ROWS; i++)
        gpu_end(q[i]);
    rig_stop(r);
    return overlaps;
}

/* A drive that is done with a query only when it has the next one gets it: so it is at a row's
 * scores while it fetches for the row before, and is never without work between two of them. With
 * one row in flight it has one thing to do at a time. */
static void test_a_row_is_scored_while_the_one_before_is_fetched(void **unused)
{
    uint32_t pairs, overlaps;
    (void)unused;
    overlaps = count_overlaps(2, true, &pairs);
    assert_true(pairs > 0);
    assert_int_equal(overlaps, pairs);
    overlaps = count_overlaps(1, false, &pairs);
    assert_true(pairs > 0);
    assert_int_equal(overlaps, 0);
}

/* A drive that is done with a layer's query only when it has the next layer's guess gets it: so it
 * has work from layer to layer, of one sequence, too. */
static void test_a_guess_is_scored_beside_the_layer_before(void **unused)
{
    struct rig_options o = {
        .csd = true, .beta = 0.25, .rows = 2, .speculates = true, .gpu_drop = 1};
    struct rig *r = rig_start(&o);
    struct rig_request *q = gpu_begin(r, 0, prompts[0], prompts[0] + 1, &usual, 0);
    struct rig_question asked[2];
    (void)unused;
    gpu_prefill(q);
    rig_settle(r);
    atomic_store_explicit(&r->agent->rows, 2, memory_order_relaxed);
    for (uint32_t layer = 0; layer < 2; layer++) {
        gpu_fill_question(q, layer, q->n, layer ? QUERY_SPECULATIVE : QUERY_EXACT, &asked[layer]);
        stage_question(r, &asked[layer]);
    }
    shm_ring_flush(&r->gpu[RING_QUERY]);
    for (uint32_t layer = 0; layer < 2; layer++)
        assert_int_equal(gpu_answer(q, layer, q->n, &asked[layer]), 0);
    assert_true(span_of(r->agent, RECORD_AGENT_QUERY, 0, 1, q->step)->began <
                span_of(r->agent, RECORD_AGENT_QUERY, 0, 0, q->step)->ended);
    gpu_end(q);
    rig_stop(r);
}

/* ---- one command for several rows ------------------------------------------------------------ */

/* A step's new tokens, before it asks for anything: no row waits for one. */
static void append_all(struct rig *r, struct rig_request *q[ROWS])
{
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
            gpu_append(q[i], layer, 1);
    rig_settle(r);
}

/* Room in the command ring as a test grants it. */
struct room {
    struct shm_ring_tap taps[RING_COUNT];
    _Atomic uint32_t most; /* bytes of a FETCH that are granted */
    uint32_t refused;      /* bytes that were, if nothing has been granted since */
    uint32_t n_fewer;      /* times that less was granted then */
};

static uint32_t at_commands(void *context, enum shm_ring_moment moment, uint32_t type,
                            const void *payload, uint32_t bytes)
{
    struct room *room = context;
    if (moment != SHM_RING_RESERVED || bytes % 2) /* odd: a query (cpu_scorer/evaluate_digest.c) */
        return rig_tap(context, moment, type, payload, bytes);
    if (bytes > atomic_load(&room->most)) {
        room->refused = bytes;
        return 0;
    }
    room->n_fewer += bytes < room->refused;
    room->refused = 0;
    return 1;
}

static void open_room(struct room *room, uint32_t most)
{
    *room = (struct room){.most = most};
    for (int ring = 0; ring < RING_COUNT; ring++)
        room->taps[ring] =
            (struct shm_ring_tap){room, ring == RING_COMMAND ? at_commands : rig_tap};
}

/* Whole requests at drives that answer all open queries at once: hashes, FETCH commands, and the
 * rows in them. */
static void fetch_rows(struct rig_options o, uint64_t hashes[ROWS], uint32_t *commands,
                       uint32_t *rows)
{
    struct rig_request *q[ROWS];
    o.threads = 1; /* so that a scorer that sleeps has scored all that it can */
    struct rig *r = begin(o, &usual, q);
    *commands = *rows = 0;
    for (uint32_t d = 0; d < r->n_drives; d++)
        atomic_store_explicit(&r->agents[d]->gathers, true, memory_order_relaxed);
    for (int i = 0; i < STEPS; i++) {
        append_all(r, q);
        assert_int_equal(decode(r, q), 0);
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        hashes[i] = XXH64_digest(q[i]->hash);
        struct scorer_stats s = gpu_end(q[i]);
        assert_int_equal(s.selection_hash, hashes[i]);
        assert_int_equal(s.link_kv_bytes, 10 * s.cold.hits); /* each has its part, and no more */
    }
    for (uint32_t d = 0; d < r->n_drives; d++) {
        *commands += r->agents[d]->n_fetches;
        *rows += r->agents[d]->n_fetched_rows;
    }
    assert_int_equal(r->n_failures, 0);
    rig_stop(r);
}

/* Four rows that are scored at the same time are fetched by fewer commands, as many as the ring has
 * room for in one; a row alone has its own. */
static void test_rows_that_are_ready_are_fetched_together(void **unused)
{
    static const struct rig_options places[] = {
        {.csd = true, .beta = 0.66},
        {.csd = true, .beta = 0.66, .gpu_drop = 1},
        {.csd = true, .beta = 0.66, .n_drives = 2, .gpu_drop = 0.5},
        {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP, .reads_hot = true},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct rig_options o = places[i];
        uint64_t one[ROWS], several[ROWS];
        uint32_t commands, rows;
        o.rows = 1;
        fetch_rows(o, one, &commands, &rows);
        assert_int_equal(commands, rows);
        o.rows = ROWS;
        fetch_rows(o, several, &commands, &rows);
        print_message("%u rows' entries by %u commands\n", rows, commands);
        assert_true(commands > 0 && commands < rows);
        assert_memory_equal(one, several, sizeof one);
    }
}

/* The ring has no room for all rows that are ready, but for fewer. */
static void test_fewer_rows_are_fetched_together_where_room_is_short(void **unused)
{
    (void)unused;
    static struct room room;
    struct rig_options o = {.csd = true, .beta = 0.25, .rows = 1, .gpu_drop = 1};
    uint64_t one[ROWS], several[ROWS];
    uint32_t commands, rows;
    fetch_rows(o, one, &commands, &rows);
    o.rows = ROWS;
    /* as much as all selected tokens of the longest row */
    const struct kv_layer_windows none = {0};
    uint32_t most = kv_most_tokens(&usual, &none, prompts[0] + STEPS);
    open_room(&room, (uint32_t)(sizeof(struct record_fetch) + most * sizeof(struct fetch_item)));
    o.taps = room.taps;
    fetch_rows(o, several, &commands, &rows);
    print_message("%u rows' entries by %u commands; fewer than were ready %u times\n", rows,
                  commands, room.n_fewer);
    assert_true(room.n_fewer > 0);
    assert_true(commands < rows);
    assert_memory_equal(one, several, sizeof one);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A damaged entry of the k-th row that asks, which alone has that position: the others go on. */
static void fail_one_row(bool together, uint32_t k)
{
    struct rig_options o = {.csd = true, .beta = 0.25, .rows = 3, .gpu_drop = 1, .threads = 1};
    struct rig_request *begun[ROWS], *q[ROWS];
    int status[ROWS], failed = 0;
    struct rig *r = begin(o, &usual, begun);
    for (uint32_t i = 0; i < ROWS; i++)
        q[(i + k) % ROWS] = begun[i]; /* the first is the longest */
    atomic_store_explicit(&r->agent->gathers, together, memory_order_relaxed);
    for (uint32_t i = prompts[2] + STEPS; i < prompts[2] + 2 * STEPS && !failed; i++) {
        atomic_store_explicit(&r->agent->damaged_position, i, memory_order_relaxed);
        append_all(r, q);
        for (uint32_t layer = 0; layer < RIG_LAYERS && !failed; layer++) {
            decode_layer(r, q, layer, status);
            failed = status[k];
            for (uint32_t row = 0; row < ROWS; row++)
                assert_int_equal(status[row], row == k ? failed : 0);
        }
        for (uint32_t row = 0; row < ROWS; row++) {
            if (row == k && failed)
                continue;
            q[row]->n++;
            gpu_step_end(q[row]);
        }
    }
    assert_int_equal(failed, HILL_E_ENTRY);
    for (uint32_t row = 0; row < ROWS; row++) {
        uint64_t hash = XXH64_digest(q[row]->hash);
        uint64_t said = gpu_end(q[row]).selection_hash;
        assert_true(row == k || said == hash);
    }
    assert_int_equal(r->n_failures, 1);
    assert_true(r->agent->damaged_rows > 1 || !together);
    rig_stop(r);
}

static void test_one_row_fails_and_the_others_go_on(void **unused)
{
    (void)unused;
    for (uint32_t k = 0; k < 2; k++) {
        fail_one_row(false, k);
        fail_one_row(true, k); /* whose entry it was the answer to all of them does not say */
    }
}

/* No FETCH finds room for as long as an agent may take: its row is answered, others go on. */
static void test_a_fetch_without_room_is_a_timeout(void **unused)
{
    (void)unused;
    static struct room room;
    struct rig_request *q[ROWS];
    struct rig_question asked;
    open_room(&room, UINT32_MAX);
    struct rig_options o = {.csd = true,
                            .beta = 0.25,
                            .rows = 3,
                            .gpu_drop = 1,
                            .taps = room.taps,
                            .agent_deadline_ms = RIG_SOON};
    struct rig *r = begin(o, &usual, q);
    append_all(r, q);
    atomic_store(&room.most, 0);
    gpu_ask(q[0], 0, q[0]->n, false, &asked);
    assert_int_equal(gpu_answer(q[0], 0, q[0]->n, &asked), HILL_E_TIMEOUT);
    atomic_store(&room.most, UINT32_MAX);
    assert_int_equal(gpu_query(q[1], 0, q[1]->n, false), 0);
    for (uint32_t i = 0; i < ROWS; i++)
        gpu_end(q[i]);
    assert_int_equal(r->n_failures, 1);
    rig_stop(r);
}

/* Queries that the scorer has seen first. */
static _Atomic uint32_t n_seen;

static uint32_t at_queries(void *context, enum shm_ring_moment moment, uint32_t type,
                           const void *payload, uint32_t bytes)
{
    if (moment == SHM_RING_PEEKED && type == RECORD_QUERY)
        atomic_fetch_add(&n_seen, 1);
    return rig_tap(context, moment, type, payload, bytes);
}

/* An agent that answers nothing: every row in flight is answered, and those behind them. All of
 * them are in flight at once, whatever their policy: which are taken together does not depend on
 * how far the scoring is, which threads have a part in and a recording does not show. */
static void test_a_silent_agent_fails_all_rows(void **unused)
{
    static const uint32_t policies[] = {KV_POLICY_HILLINFER, KV_POLICY_LEOAM};
    struct shm_ring_tap taps[RING_COUNT];
    (void)unused;
    for (int ring = 0; ring < RING_COUNT; ring++)
        taps[ring] = (struct shm_ring_tap){NULL, ring == RING_QUERY ? at_queries : rig_tap};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct kv_selection_settings how = usual;
        struct rig_options o = {.csd = true,
                                .beta = 0.25,
                                .policy = policies[i],
                                .rows = ROWS,
                                .taps = taps,
                                .agent_deadline_ms = RIG_SOON};
        struct rig_request *q[ROWS];
        struct rig_question asked[ROWS];
        int status[ROWS];
        how.policy = policies[i];
        struct rig *r = begin(o, &how, q);
        append_all(r, q);
        atomic_store_explicit(&r->agent->silent, true, memory_order_relaxed);
        atomic_store(&n_seen, 0);
        ask_layer(r, q, 0, asked);
        rig_settle(r);
        assert_int_equal(atomic_load(&n_seen), ROWS);
        take_answers(q, 0, asked, status);
        for (uint32_t row = 0; row < ROWS; row++)
            assert_int_equal(status[row], HILL_E_TIMEOUT);
        for (uint32_t row = 0; row < ROWS; row++)
            gpu_free(q[row]);
        atomic_store_explicit(&r->agent->silent, false, memory_order_relaxed);
        rig_stop(r);
    }
}

/* Turns that rows have asked for in the selection ring, as a test grants them. */
struct turns {
    _Atomic uint32_t granted;
    _Atomic bool closed;
};

static uint32_t at_selections(void *context, enum shm_ring_moment moment, uint32_t type,
                              const void *payload, uint32_t bytes)
{
    struct turns *turns = context;
    if (moment != SHM_RING_RESERVED || bytes % 2 == 0) /* odd: no record (cpu_scorer/query.c) */
        return rig_tap(context, moment, type, payload, bytes);
    if (atomic_load(&turns->closed))
        return 0;
    atomic_fetch_add(&turns->granted, 1);
    return 1;
}

/* A row that fetches nothing takes its staging slots beside others only with room in the selection
 * ring, which is an event of a recording; without room for as long as an agent may take it is
 * answered, and the last, which is alone then, needs none. */
static void test_a_row_that_fetches_nothing_has_its_turn(void **unused)
{
    static struct turns turns;
    struct shm_ring_tap taps[RING_COUNT];
    struct rig_request *q[ROWS];
    int status[ROWS];
    (void)unused;
    for (int ring = 0; ring < RING_COUNT; ring++)
        taps[ring] =
            (struct shm_ring_tap){&turns, ring == RING_SELECTION ? at_selections : rig_tap};
    struct rig_options o = {.rows = ROWS, .taps = taps, .agent_deadline_ms = RIG_SOON};
    struct rig *r = begin(o, &usual, q);
    append_all(r, q);
    assert_int_equal(decode_layer(r, q, 0, status), 0);
    assert_int_equal(atomic_load(&turns.granted), ROWS - 1);
    atomic_store(&turns.closed, true);
    decode_layer(r, q, 1, status);
    for (uint32_t row = 0; row < ROWS; row++)
        assert_int_equal(status[row], row < ROWS - 1 ? HILL_E_TIMEOUT : 0);
    for (uint32_t row = 0; row < ROWS; row++)
        gpu_free(q[row]);
    rig_stop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_of_rows_selects_the_same),
        cmocka_unit_test(test_every_policy_selects_the_same),
        cmocka_unit_test(test_a_row_is_scored_while_the_one_before_is_fetched),
        cmocka_unit_test(test_a_guess_is_scored_beside_the_layer_before),
        cmocka_unit_test(test_rows_that_are_ready_are_fetched_together),
        cmocka_unit_test(test_fewer_rows_are_fetched_together_where_room_is_short),
        cmocka_unit_test(test_one_row_fails_and_the_others_go_on),
        cmocka_unit_test(test_a_fetch_without_room_is_a_timeout),
        cmocka_unit_test(test_a_silent_agent_fails_all_rows),
        cmocka_unit_test(test_a_row_that_fetches_nothing_has_its_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
