/* tests/cpu_scorer/test_mended.c - single entries of a sequence are damaged between two epochs, hot
 * ones by a bit and cold ones on the drive: the next epoch's scorer names them, each and no other,
 * has them made again before anything reads them, and goes on with the answers of an oracle that
 * has lost nothing; what it cannot have mended begins anew. See pipeline_rig.h. */
#include "tests/cpu_scorer/pipeline_rig.h"

enum { PROMPT = 500, STEPS = 40, MAX = 640, KEPT_STEPS_BACK = 7 };
enum { CAPACITY = 192 }; /* hot tokens of a layer with three blocks */

/* ---- what an epoch leaves ------------------------------------------------------------------- */

/* A request between two epochs, and what is damaged of it. */
struct left {
    struct rig_options options;
    struct rig_request *q;
    struct rig_slot *slots[RIG_DRIVES];
    uint8_t *hot[RECORD_DAMAGED_MAX]; /* bytes of entries in the hot segment */
    uint32_t n_hot, n_cold;
    struct damaged_entry expected[RECORD_DAMAGED_MAX]; /* by position, then layer */
    uint32_t n;
};

static struct rig *begin_with(struct left *l, const struct rig_options *o, uint32_t steps,
                              const struct kv_selection_settings *settings)
{
    memset(l, 0, sizeof *l);
    l->options = *o;
    l->options.threads = 1; /* so that a scorer that sleeps has scored all that it can */
    struct rig *r = rig_start(&l->options);
    l->q = gpu_begin(r, 0, PROMPT, MAX, settings, 0);
    gpu_prefill(l->q);
    gpu_decode_settled(l->q, steps);
    for (uint32_t d = 0; d < r->n_drives; d++)
        l->slots[d] = rig_take_slots(r, d);
    return r;
}

static struct rig *begin(struct left *l, const struct rig_options *o, uint32_t steps)
{
    return begin_with(l, o, steps, &usual);
}

static uint32_t word_of(const struct rig *r, uint32_t layer, uint32_t position)
{
    return hkm_location(scorer_tables(r->pipeline), 0, layer, position);
}

static bool is_cold(const struct rig *r, uint32_t layer, uint32_t position)
{
    return hkm_tag(word_of(r, layer, position)) == HKM_COLD;
}

static void expect_damaged(struct left *l, uint32_t layer, uint32_t position)
{
    uint32_t i = l->n++;
    for (; i > 0 && (l->expected[i - 1].position > position ||
                     (l->expected[i - 1].position == position && l->expected[i - 1].layer > layer));
         i--)
        l->expected[i] = l->expected[i - 1];
    l->expected[i] = (struct damaged_entry){layer, position};
}

static void damage_cold(struct left *l, const struct rig *r, uint32_t layer, uint32_t position)
{
    uint32_t slot = hkm_slot(word_of(r, layer, position));
    assert_true(is_cold(r, layer, position));
    l->slots[slot / (RIG_STRIPE * RIG_STRIPES)][slot % (RIG_STRIPE * RIG_STRIPES)].spoilt = true;
    l->n_cold++;
}

static void damage(struct left *l, const struct rig *r, uint32_t layer, uint32_t position)
{
    const struct hkm *h = scorer_tables(r->pipeline);
    if (is_cold(r, layer, position))
        damage_cold(l, r, layer, position);
    else
        l->hot[l->n_hot++] = hkm_entry(h, hkm_slot(word_of(r, layer, position)));
    expect_damaged(l, layer, position);
}

/* The lowest cold position from there on. */
static uint32_t cold_from(const struct rig *r, uint32_t layer, uint32_t position)
{
    while (!is_cold(r, layer, position))
        assert_true(++position < MAX);
    return position;
}

static uint32_t hot_from(const struct rig *r, uint32_t layer, uint32_t position)
{
    while (hkm_tag(word_of(r, layer, position)) != HKM_HOT)
        assert_true(++position < MAX);
    return position;
}

/* The next epoch. `answer`: what the request's SEQ_BEGIN is told. */
static struct rig *go_on(struct left *l, struct rig *r, struct rig_ready *answer, bool slow,
                         uint32_t claims)
{
    uint32_t n = l->q->n;
    l->options.hot = rig_stop_keeping(r);
    for (uint32_t i = 0; i < l->n_hot; i++)
        l->hot[i][5] ^= 0x10;
    r = rig_start(&l->options);
    for (uint32_t d = 0; d < r->n_drives; d++) {
        rig_give_slots(r, d, l->slots[d]);
        free(l->slots[d]);
    }
    r->agent->claims = claims;
    atomic_store_explicit(&r->agent->slow, slow, memory_order_relaxed);
    gpu_go_on(l->q, r, PROMPT, MAX, n - KEPT_STEPS_BACK, n, answer);
    return r;
}

/* And nowhere, until they come. */
static void assert_named(const struct left *l, const struct rig *r, const struct rig_ready *answer)
{
    assert_int_equal(answer->ready.status, 0);
    assert_int_equal(answer->ready.n_damaged, l->n);
    assert_memory_equal(answer->damaged, l->expected, l->n * sizeof *l->expected);
    for (uint32_t i = 0; i < l->n; i++)
        assert_int_equal(hkm_tag(word_of(r, l->expected[i].layer, l->expected[i].position)),
                         HKM_NOWHERE);
}

/* As of the newest step. */
static void assert_whole(const struct left *l, const struct rig *r, const struct rig_ready *answer)
{
    assert_named(l, r, answer);
    assert_int_equal(answer->ready.kept_tokens, l->q->n);
    assert_int_equal(answer->ready.header.step, l->q->n - PROMPT);
    assert_int_equal(answer->ready.replay_to, 0);
}

static void assert_anew(const struct rig_ready *answer)
{
    assert_int_equal(answer->ready.status, 0);
    assert_int_equal(answer->ready.kept_tokens, 0);
    assert_int_equal(answer->ready.n_damaged, 0);
}

/* The request goes on to its end, with the oracle's answers and hash; nothing is lost, nothing is
 * there twice. */
static struct scorer_stats finish(struct left *l, struct rig *r, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++)
        assert_int_equal(gpu_decode(l->q), 0);
    uint32_t n = l->q->n;
    uint64_t hash = XXH64_digest(l->q->hash);
    rig_settle(r);
    struct scorer_stats stats = gpu_end(l->q);
    assert_int_equal(stats.selection_hash, hash);
    assert_int_equal(stats.hot.tokens + stats.cold.tokens, (uint64_t)RIG_LAYERS * n);
    assert_int_equal(atomic_load_explicit(&r->n_failures, memory_order_relaxed), 0);
    rig_stop(r);
    return stats;
}

/* It begins anew, on the same slot. */
static void finish_anew(struct left *l, struct rig *r)
{
    gpu_free(l->q);
    struct record_seq_end none = {.header = {RIG_EPOCH, 0, 0, 0}, .request_id = 1000};
    gpu_push(r, RING_APPEND, RECORD_SEQ_END, &none, sizeof none);
    gpu_wait(r, RECORD_SEQ_STATS);
    shm_ring_release(&r->gpu[RING_SELECTION]);
    l->q = gpu_begin(r, 0, PROMPT, MAX, &usual, 0);
    gpu_prefill(l->q);
    finish(l, r, 3);
}

static void mend_all(const struct left *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        gpu_append_again(l->q, l->expected[i].layer, l->expected[i].position);
}

/* ---- entries of the prompt ------------------------------------------------------------------ */

/* Hot and cold ones, several in a stripe, in several layers. */
static void damage_prompt(struct left *l, const struct rig *r)
{
    damage(l, r, 0, 0); /* a sink */
    damage(l, r, 2, hot_from(r, 2, PROMPT - 20));
    damage(l, r, 1, hot_from(r, 1, PROMPT - 20));
    for (uint32_t i = 0; r->csd && i < 3; i++)
        damage(l, r, 1, cold_from(r, 1, 30 + 2 * i));
    if (r->csd) {
        damage(l, r, 1, cold_from(r, 1, 330));
        damage(l, r, 0, cold_from(r, 0, 31));
    }
}

/* A query over damaged entries is answered when all of them are there, and not before. */
static void query_waits(const struct left *l, struct rig *r)
{
    struct rig_question asked;
    gpu_ask(l->q, 1, l->q->n, false, &asked);
    for (uint32_t i = 0; i < l->n; i++) {
        bool owed = false;
        for (uint32_t j = i; j < l->n; j++)
            owed |= l->expected[j].layer == 1;
        rig_settle(r);
        assert_true(nothing_was_said(r) == owed);
        gpu_append_again(l->q, l->expected[i].layer, l->expected[i].position);
    }
    assert_int_equal(gpu_answer(l->q, 1, l->q->n, &asked), 0);
}

/* The step whose layer 1 has been asked for. */
static void end_step(struct rig_request *q)
{
    assert_int_equal(gpu_query(q, 0, q->n, true), 0);
    assert_int_equal(gpu_query(q, 2, q->n, false), 0);
    q->n++;
    gpu_step_end(q);
}

static void mend_prompt(const struct rig_options *o)
{
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, o, STEPS);
    damage_prompt(&l, r);
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    query_waits(&l, r);
    end_step(l.q);
    finish(&l, r, 20);
}

static void test_damaged_entries_are_named_and_come_before_any_query(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = false};
    mend_prompt(&o);
    o = (struct rig_options){.csd = true, .beta = 0.25};
    mend_prompt(&o);
    o.placement = PLACEMENT_BKP;
    mend_prompt(&o);
    o.reads_hot = true;
    mend_prompt(&o);
    o.adapts = true;
    mend_prompt(&o);
    o = (struct rig_options){.csd = true, .beta = 0.25, .n_drives = 3};
    mend_prompt(&o);
}

/* Its beta was fixed, and what it has set aside is what that needs: in an epoch whose beta adapts
 * it stays. */
static void test_a_beta_that_was_fixed_is_not_followed(void **unused)
{
    (void)unused;
    struct left l;
    struct rig_ready answer;
    struct rig_options o = {.csd = true, .beta = 0.66, .placement = PLACEMENT_BKP};
    struct rig *r = begin(&l, &o, 8);
    l.options.adapts = true;
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    gpu_decode_settled(l.q, 4);
    uint64_t hot = atomic_load_explicit(&r->hot_now, memory_order_relaxed);
    rig_set_beta(r, 10);
    gpu_decode_settled(l.q, 20);
    assert_true(atomic_load_explicit(&r->hot_now, memory_order_relaxed) > hot / 2);
    finish(&l, r, 3);
}

/* Without damage each stripe is asked for once. Each damaged slot of one costs another round. */
static void test_the_agent_is_asked_again_for_each_damaged_slot_of_a_stripe(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct left l;
    struct rig_ready answer;
    uint32_t stripes = 0;
    for (uint32_t n = 0; n < 4; n++) {
        struct rig *r = begin(&l, &o, STEPS);
        for (uint32_t i = 0, p = 30; i < n; i++, p++)
            damage(&l, r, 1, p = cold_from(r, 1, p));
        r = go_on(&l, r, &answer, false, 0);
        assert_whole(&l, r, &answer);
        uint32_t adopts = atomic_load_explicit(&r->agent->adopts, memory_order_relaxed);
        stripes = n ? stripes : adopts;
        assert_true(stripes >= RIG_LAYERS);
        assert_int_equal(adopts, (n + 1) * stripes);
        assert_int_equal(atomic_load_explicit(&r->agent->trims, memory_order_relaxed), 0);
        mend_all(&l);
        finish(&l, r, 3);
    }
}

static uint32_t hot_of(const struct rig *r, uint32_t layer)
{
    return hkm_hot_tokens(scorer_tables(r->pipeline), 0, layer);
}

/* Of what is damaged so many have arrived: hot, or in a DEMOTE that is written. */
static uint32_t arrived(const struct left *l, const struct rig *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const struct damaged_entry *e = &l->expected[i];
        bool written = false;
        for (uint32_t s = 0; s < RIG_STRIPE * RIG_STRIPES; s++)
            written |= r->agent->slots[s].written && r->agent->slots[s].layer == e->layer &&
                       r->agent->slots[s].position == e->position;
        n += written || hkm_tag(word_of(r, e->layer, e->position)) == HKM_HOT;
    }
    return n;
}

/* A layer has more damaged cold entries than free hot slots, and the drive commits nothing: what
 * has no room goes to the drive, and no APPEND waits. The query waits for the commit. */
static void test_what_has_no_room_in_dram_goes_to_the_drive(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.4, .hot_blocks = 3 * RIG_LAYERS};
    struct left l;
    struct rig_ready answer;
    struct rig_question asked;
    struct rig *r = begin(&l, &o, STEPS);
    while (CAPACITY - hot_of(r, 1) >= RECORD_DAMAGED_MAX) { /* between two batches */
        gpu_decode_settled(l.q, 1);
        free(l.slots[0]);
        l.slots[0] = rig_take_slots(r, 0);
    }
    uint32_t room = CAPACITY - hot_of(r, 1);
    assert_true(room > 0 && room < RECORD_DAMAGED_MAX);
    for (uint32_t i = 0, p = 10; i < RECORD_DAMAGED_MAX; i++, p++)
        damage(&l, r, 1, p = cold_from(r, 1, p));
    r = go_on(&l, r, &answer, true, 0);
    assert_whole(&l, r, &answer);
    mend_all(&l);
    gpu_ask(l.q, 1, l.q->n, false, &asked);
    rig_settle(r);
    assert_int_equal(arrived(&l, r), RECORD_DAMAGED_MAX);
    assert_true(nothing_was_said(r));
    atomic_store_explicit(&r->agent->slow, false, memory_order_relaxed);
    shm_doorbell_ring(r->agent->bell);
    assert_int_equal(gpu_answer(l.q, 1, l.q->n, &asked), 0);
    end_step(l.q);
    finish(&l, r, 20);
}

/* An epoch ends while the drive commits nothing, so that the next one moves tokens down before a
 * damaged entry comes: that is older than these, and goes down before what is newer. */
static void test_what_is_made_again_goes_down_as_the_oldest(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.4, .hot_blocks = 3 * RIG_LAYERS};
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, &o, STEPS);
    atomic_store_explicit(&r->agent->slow, true, memory_order_relaxed);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(gpu_decode(l.q), 0);
    rig_settle(r);
    free(l.slots[0]);
    l.slots[0] = rig_take_slots(r, 0);
    uint32_t hot = hot_of(r, 1);
    damage(&l, r, 1, cold_from(r, 1, 10));
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    rig_settle(r);
    assert_true(hot_of(r, 1) < hot); /* some have gone down */
    mend_all(&l);
    gpu_decode_settled(l.q, 8);
    assert_true(is_cold(r, 1, l.expected[0].position));
    finish(&l, r, 10);
}

/* As much of a layer that had damage stays hot as of one that had none. Little is selected, so that
 * the placement does not hear of it by a query. */
static void test_the_placement_hears_of_what_is_made_again(void **unused)
{
    (void)unused;
    const struct kv_selection_settings few = {
        .alpha = 0.01, .sinks = 4, .window = 16, .policy = KV_POLICY_HILLINFER};
    struct rig_options o = {.csd = true, .beta = 0.25, .placement = PLACEMENT_BKP};
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin_with(&l, &o, STEPS, &few);
    for (uint32_t i = 0, p = 10; i < 40; i++, p++)
        damage(&l, r, 1, p = cold_from(r, 1, p));
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    mend_all(&l);
    gpu_decode_settled(l.q, 8);
    uint32_t without = hot_of(r, 0), with = hot_of(r, 1);
    assert_true(with < without + 20 && without < with + 20);
    finish(&l, r, 10);
}

/* The same while its drive is left: what a query waits for waits for no drive. */
static void mend_while_leaving(struct rig_options *o, uint32_t drive)
{
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, o, STEPS);
    for (uint32_t i = 0, p = 10; i < RECORD_DAMAGED_MAX; i++, p++)
        damage(&l, r, 1, p = cold_from(r, 1, p));
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    rig_drain_drive(r, drive);
    mend_all(&l);
    finish(&l, r, 20);
}

static void test_what_is_made_again_finds_a_place_while_its_drive_is_left(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    mend_while_leaving(&o, 0);
    o.hot_blocks = 3 * RIG_LAYERS; /* no room for all of it */
    mend_while_leaving(&o, 0);
    o.placement = PLACEMENT_BKP;
    mend_while_leaving(&o, 0);
    o = (struct rig_options){.csd = true, .beta = 0.25, .n_drives = 2, .speeds = {1, 2}};
    mend_while_leaving(&o, 1);
    o.drive_stripes[0] = 2 * RIG_LAYERS; /* the other one has no room */
    mend_while_leaving(&o, 1);
    o.hot_blocks = 3 * RIG_LAYERS; /* nobody has */
    mend_while_leaving(&o, 1);
}

static void test_an_entry_that_is_no_number_fails_the_request(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, &o, 8);
    damage(&l, r, 1, 0);
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    l.q->spoil = 0x7c00;
    gpu_append_again(l.q, 1, 0);
    l.q->spoil = 0;
    assert_int_equal(gpu_query(l.q, 1, l.q->n, false), HILL_E_DAMAGED);
    gpu_end(l.q);
    rig_stop(r);
}

static void test_a_step_does_not_end_before_they_are_there(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, &o, 8);
    damage(&l, r, 1, 0);
    r = go_on(&l, r, &answer, false, 0);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        gpu_append(l.q, layer, 1);
    l.q->n++;
    gpu_step_end(l.q);
    gpu_append_again(l.q, 1, 0);
    assert_int_equal(gpu_query(l.q, 1, l.q->n, false), HILL_E_PROTOCOL);
    gpu_end(l.q);
    rig_stop(r);
}

/* ---- the sample of keys (key_sample.h) ------------------------------------------------------- */

/* It outlives the scorer, also what it has of entries that are damaged. */
static void test_query_heads_go_on_measuring_by_the_same_sample(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct kv_selection_settings heads = usual;
    struct left l;
    struct rig_ready answer;
    heads.importance = KV_IMPORTANCE_HEADS;
    struct rig *r = begin_with(&l, &o, STEPS, &heads);
    damage(&l, r, 1, 31);
    damage(&l, r, 2, hot_from(r, 2, 479));
    assert_int_equal(l.expected[1].position, 479); /* both are of the sample */
    r = go_on(&l, r, &answer, false, 0);
    assert_whole(&l, r, &answer);
    mend_all(&l);
    finish(&l, r, STEPS);
}

static void test_a_damaged_sample_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, &o, 8);
    const struct hkm *h = scorer_tables(r->pipeline);
    /* byte 5: an exponent of the first group */
    l.hot[l.n_hot++] = h->states + hkm_list_index(h, 0, 1) * h->header->state_bytes;
    r = go_on(&l, r, &answer, false, 0);
    assert_anew(&answer);
    finish_anew(&l, r);
}

/* ---- decoded tokens ------------------------------------------------------------------------- */

/* The steps from the damaged token on are made again; the hash has them already. */
static void replay(struct left *l, uint32_t from)
{
    struct rig_request *q = l->q;
    uint32_t steps = q->n - from;
    XXH64_state_t *hash = XXH64_createState();
    XXH64_copyState(hash, q->hash);
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer++)
        q->appended[layer] = from;
    q->n = from;
    q->step = from - PROMPT + 1;
    for (uint32_t i = 0; i < steps; i++)
        assert_int_equal(gpu_decode(q), 0);
    XXH64_copyState(q->hash, hash);
    XXH64_freeState(hash);
}

/* Nothing from there on counts at the agents. */
static void assert_cut(const struct rig *r, uint32_t from)
{
    for (uint32_t d = 0; d < r->n_drives; d++)
        for (uint32_t i = 0; i < RIG_STRIPE * RIG_STRIPES; i++)
            assert_false(r->agents[d]->slots[i].committed &&
                         r->agents[d]->slots[i].position >= from);
}

/* Beside it one of the prompt, and a later decoded one, which is cut. */
static void mend_decoded(const struct rig_options *o)
{
    struct left l;
    struct rig_ready answer;
    struct rig *r = begin(&l, o, STEPS + 40);
    uint32_t n = l.q->n, from = cold_from(r, 2, PROMPT + 3);
    assert_true(from + 20 < n);
    damage(&l, r, 0, cold_from(r, 0, 50));
    damage_cold(&l, r, 2, from);
    damage_cold(&l, r, 0, cold_from(r, 0, from + 1));
    r = go_on(&l, r, &answer, false, 0);
    assert_named(&l, r, &answer);
    assert_int_equal(answer.ready.kept_tokens, from);
    assert_int_equal(answer.ready.header.step, from - PROMPT);
    assert_int_equal(answer.ready.replay_to, n - PROMPT);
    for (uint32_t d = 0; d < r->n_drives; d++)
        assert_true(atomic_load_explicit(&r->agents[d]->trims, memory_order_relaxed) > 0);
    assert_cut(r, from);
    mend_all(&l);
    replay(&l, from);
    struct scorer_stats stats = finish(&l, r, 20);
    assert_true((stats.promoted > 0) == (o->placement != PLACEMENT_RECENCY));
}

static void test_after_a_damaged_decoded_token_the_agent_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.1};
    mend_decoded(&o);
    o.placement = PLACEMENT_BKP; /* and so does the placement */
    mend_decoded(&o);
    o = (struct rig_options){.csd = true, .beta = 0.1, .n_drives = 2};
    mend_decoded(&o);
}

/* ---- what begins anew ----------------------------------------------------------------------- */

/* On the drive, where it is found one by one, and beside what is hot. */
static void test_more_damage_than_is_noted_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    for (uint32_t hot = 0; hot < 2; hot++) {
        struct left l;
        struct rig_ready answer;
        struct rig *r = begin(&l, &o, 8);
        if (hot)
            damage(&l, r, 0, 0);
        for (uint32_t i = hot, p = 10; i <= RECORD_DAMAGED_MAX; i++, p++)
            damage_cold(&l, r, 1, p = cold_from(r, 1, p));
        r = go_on(&l, r, &answer, false, 0);
        assert_anew(&answer);
        finish_anew(&l, r);
    }
}

/* Entries of so many tokens: in the lowest layer they are soon made again; in the highest one all
 * of the request takes less time. */
static void test_damage_that_takes_longer_than_all_of_it_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    for (uint32_t layer = 0; layer < RIG_LAYERS; layer += RIG_LAYERS - 1) {
        struct left l;
        struct rig_ready answer;
        struct rig *r = begin(&l, &o, 8);
        for (uint32_t i = 0, p = 100; i < RECORD_DAMAGED_MAX; i++, p++)
            damage(&l, r, layer, p = cold_from(r, layer, p));
        r = go_on(&l, r, &answer, false, 0);
        if (layer == 0) {
            assert_whole(&l, r, &answer);
            mend_all(&l);
            finish(&l, r, 3);
        } else {
            assert_anew(&answer);
            finish_anew(&l, r);
        }
    }
}

/* An agent that names what is no cold entry of the sequence has another pool. */
static void test_an_agent_that_names_no_entry_begins_anew(void **unused)
{
    (void)unused;
    struct rig_options o = {.csd = true, .beta = 0.25};
    static const uint32_t claims[] = {UINT32_MAX - 1, MAX - 1, PROMPT - 1};
    for (uint32_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct left l;
        struct rig_ready answer;
        struct rig *r = begin(&l, &o, 8);
        assert_false(is_cold(r, 0, PROMPT - 1));
        r = go_on(&l, r, &answer, false, claims[i]);
        assert_anew(&answer);
        finish_anew(&l, r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_entries_are_named_and_come_before_any_query),
        cmocka_unit_test(test_a_beta_that_was_fixed_is_not_followed),
        cmocka_unit_test(test_the_agent_is_asked_again_for_each_damaged_slot_of_a_stripe),
        cmocka_unit_test(test_what_has_no_room_in_dram_goes_to_the_drive),
        cmocka_unit_test(test_what_is_made_again_goes_down_as_the_oldest),
        cmocka_unit_test(test_the_placement_hears_of_what_is_made_again),
        cmocka_unit_test(test_what_is_made_again_finds_a_place_while_its_drive_is_left),
        cmocka_unit_test(test_an_entry_that_is_no_number_fails_the_request),
        cmocka_unit_test(test_a_step_does_not_end_before_they_are_there),
        cmocka_unit_test(test_after_a_damaged_decoded_token_the_agent_begins_anew),
        cmocka_unit_test(test_more_damage_than_is_noted_begins_anew),
        cmocka_unit_test(test_damage_that_takes_longer_than_all_of_it_begins_anew),
        cmocka_unit_test(test_an_agent_that_names_no_entry_begins_anew),
        cmocka_unit_test(test_query_heads_go_on_measuring_by_the_same_sample),
        cmocka_unit_test(test_a_damaged_sample_begins_anew),
    };
    return cmocka_run_group_tests_name("mended", tests, NULL, NULL);
}
