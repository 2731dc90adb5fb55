/* tests/cpu_scorer/test_adoption.c - a process that appends, moves and notes steps in the hot
 * segment is killed at any moment, again and again: what it noted is whole, and of a prompt what
 * comes before the first gap; a successor goes on with it; one bit that has changed is found, and
 * costs a scorer that mends no more than what it is of (HILL_TEST_SEED). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cpu_scorer/adoption.h"
#include "cpu_scorer/requests.h"
#include "tests/draws.h"
#include "tests/cpu_scorer/hkm_audit.h"

enum {
    LAYERS = 2,
    SEQUENCES = 2,
    CTX = 400,
    ENTRY = 2 * 2 * 8 * 2,
    BLOCKS = 40,
    PROMPT = 40,
    PAST = 25
};
enum { STRIPE = 256, STRIPES = 2 * LAYERS * SEQUENCES, COLD = STRIPE * STRIPES };
enum { MOST_HOT = 100, KILLS = 150, FLIPS = 600 };

static const struct kv_geometry geometry = {LAYERS, 4, 2, 8};

/* What outlives a process: the hot segment, the drive, and how far it has come. */
struct world {
    _Atomic uint64_t turns;
    uint8_t drive[COLD][ENTRY];
    _Alignas(64) uint8_t segment[];
};
static struct world *world;
static uint64_t segment_bytes;

/* ---- a scorer without rings ---------------------------------------------------------------- */

static struct core core;
static struct shm_arena staging = {.slot_count = 64};

static bool no_drive;      /* the next core has none */
static bool mends;         /* it notes damaged entries */
static double wanted_beta; /* of it */

static void open_core(bool adopts)
{
    const struct scorer_config config = {.geometry = geometry,
                                         .ctx_tokens = CTX,
                                         .n_sequences = SEQUENCES,
                                         .gpu_slots = 16,
                                         .hot_blocks = BLOCKS,
                                         .stripe_slots = STRIPE,
                                         .n_stripes = STRIPES,
                                         .csd = !no_drive,
                                         .cold_slots = COLD,
                                         .beta = wanted_beta,
                                         .keeps = true,
                                         .adopts = adopts};
    static struct scorer_io io;
    struct hill_why why = {""};
    io = (struct scorer_io){.staging = &staging, .hot = world->segment, .hot_bytes = segment_bytes};
    memset(&core, 0, sizeof core);
    core.config = config;
    core.io = io;
    core.mends = mends;
    if (tiers_create(&core.tiers, &config, &io, &why))
        fail_msg("%s", why.text);
    assert_int_equal(core.tiers.adopted, adopts);
    core.sequences = calloc(SEQUENCES, sizeof *core.sequences);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        core.sequences[i].index = i;
        core.sequences[i].layers = calloc(LAYERS, sizeof *core.sequences[i].layers);
        core.sequences[i].hash = XXH64_createState();
    }
    adoption_find(&core);
}

static void close_core(void)
{
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        free(core.sequences[i].layers);
        XXH64_freeState(core.sequences[i].hash);
    }
    free(core.sequences);
    tiers_destroy(&core.tiers);
}

/* ---- the entries of a request -------------------------------------------------------------- */

static void fill_entry(uint64_t identity, uint32_t layer, uint32_t position, uint8_t *out)
{
    uint64_t x = identity * 1000003 + layer * 7919 + position;
    for (uint32_t i = 0; i < ENTRY / 2; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint16_t half = (uint16_t)((x >> 63) << 15 | (8 + (x >> 40) % 12) << 10 | (x >> 20 & 1023));
        memcpy(out + (size_t)i * 2, &half, 2);
    }
}

static void append(struct sequence *s, uint32_t layer, uint32_t position)
{
    uint8_t entry[ENTRY];
    fill_entry(core.tiers.hkm.identities[s->index], layer, position, entry);
    assert_int_equal(hkm_append(&core.tiers.hkm, s->index, layer, position, 1, entry), 1);
}

/* As demotion.c: the entry and its check, then the commit and the flip. */
static void move_down(struct sequence *s, uint32_t layer, uint32_t position)
{
    struct tiers *t = &core.tiers;
    uint32_t list = tiers_list(t, s->index, layer), slot, order, lost;
    uint32_t word = core_location(&core, s, layer, position);
    if (!cold_map_reuse(&t->cold, list, &position, 1, &slot, &lost))
        assert_int_equal(cold_map_take(&t->cold, list, position, 1, &slot, &order), 1);
    const uint8_t *entry = hkm_entry(&t->hkm, hkm_slot(word));
    t->hkm.cold_checks[slot] =
        hkm_check_of(&t->hkm, s->index, layer, position, hkm_sum(&t->hkm, entry));
    memcpy(world->drive[slot], entry, ENTRY);
    cold_map_commit(&t->cold, list, slot, 1);
    hkm_set_cold(&t->hkm, s->index, layer, position, slot);
}

static void move_up(struct sequence *s, uint32_t layer, uint32_t position)
{
    struct tiers *t = &core.tiers;
    uint32_t slot = hkm_slot(core_location(&core, s, layer, position));
    if (hkm_append(&t->hkm, s->index, layer, position, 1, world->drive[slot]) == 1)
        cold_map_uncommit(&t->cold, tiers_list(t, s->index, layer), slot);
}

static void move_some(struct sequence *s, uint32_t layer)
{
    while (hkm_hot_tokens(&core.tiers.hkm, s->index, layer) > MOST_HOT) {
        uint32_t p = draw(s->layers[layer].appended);
        if (hkm_tag(core_location(&core, s, layer, p)) == HKM_HOT)
            move_down(s, layer, p);
    }
    uint32_t p = draw(s->layers[layer].appended);
    if (draw(2) && hkm_tag(core_location(&core, s, layer, p)) == HKM_COLD)
        move_up(s, layer, p);
}

/* Layer after layer; some tokens are on their way to the drive while those behind them are placed,
 * and some are moved there at once. */
static void place_up_to(struct sequence *s, uint32_t end)
{
    uint32_t late_layer = LAYERS, late = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t *n = &s->layers[layer].appended; *n < end; (*n)++) {
            bool waits = late_layer < LAYERS;
            if (!waits && !draw(8)) {
                late_layer = layer;
                late = *n;
                continue;
            }
            append(s, layer, *n);
            if (waits && !draw(6)) {
                append(s, late_layer, late);
                move_down(s, late_layer, late);
                late_layer = LAYERS;
            }
        }
    if (late_layer < LAYERS)
        append(s, late_layer, late);
}

/* A session's tokens, if there are any, in all layers before the others. */
static void place_prompt(struct sequence *s)
{
    place_up_to(s, s->past_tokens);
    place_up_to(s, PROMPT);
}

/* A request begins; nothing of its prompt is placed yet. */
static void set_aside(struct sequence *s)
{
    struct tiers *t = &core.tiers;
    kept_end(tiers_kept(t, s->index));
    tiers_release_near(t, s->index);
    tiers_release_cold(t, s->index);
    uint32_t blocks = MOST_HOT / 64 + 3;
    assert_int_equal(hkm_reserve(&t->hkm, s->index, blocks), 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(cold_map_reserve(&t->cold, tiers_list(t, s->index, layer), 2), 0);
    s->state = SEQUENCE_ACTIVE;
    s->prompt_tokens = PROMPT;
    s->max_tokens = CTX;
    s->past_tokens = draw(2) ? PAST : 0;
    s->settings = (struct kv_selection_settings){.alpha = 0.5};
    s->share = (struct hot_share){.beta = 1, .limit = MOST_HOT};
    s->hashed_step = 0;
    XXH64_reset(s->hash, 0);
    const struct kept_plan plan = adoption_plan(s, blocks, (const uint32_t[LAYOUT_DRIVES_MAX]){2});
    uint64_t identity = 1 + (uint64_t)draw(UINT32_MAX);
    t->hkm.identities[s->index] = identity;
    kept_begin(tiers_kept(t, s->index), identity, &plan);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        s->layers[layer].appended = 0;
}

static void begin(struct sequence *s)
{
    set_aside(s);
    place_prompt(s);
    kept_note(tiers_kept(&core.tiers, s->index), 0, PROMPT, s->hash);
}

/* One step, or a request's end and the next one's beginning. The hash is of the steps' numbers. */
static void turn(struct sequence *s)
{
    if (s->state != SEQUENCE_ACTIVE || s->layers[0].appended == CTX || !draw(300)) {
        begin(s);
        return;
    }
    s->hashed_step++;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        append(s, layer, s->layers[layer].appended++);
        move_some(s, layer);
    }
    XXH64_update(s->hash, &s->hashed_step, sizeof s->hashed_step);
    kept_note(tiers_kept(&core.tiers, s->index), s->hashed_step, s->layers[0].appended, s->hash);
}

static void live(void)
{
    for (;;) {
        turn(&core.sequences[draw(SEQUENCES)]);
        atomic_fetch_add_explicit(&world->turns, 1, memory_order_relaxed /* a count */);
    }
}

/* ---- what must be there ---------------------------------------------------------------------- */

static bool token_is_there(const struct sequence *s, uint64_t identity, uint32_t layer, uint32_t p)
{
    const struct tiers *t = &core.tiers;
    uint8_t expected[ENTRY];
    uint32_t word = core_location(&core, s, layer, p), slot = hkm_slot(word);
    fill_entry(identity, layer, p, expected);
    if (hkm_tag(word) == HKM_HOT)
        return memcmp(hkm_entry(&t->hkm, slot), expected, ENTRY) == 0;
    return hkm_tag(word) == HKM_COLD &&
           cold_map_position(&t->cold, tiers_list(t, s->index, layer), slot) == p &&
           t->hkm.cold_checks[slot].sum == hkm_sum(&t->hkm, expected) &&
           memcmp(world->drive[slot], expected, ENTRY) == 0;
}

static void check_layer(const struct sequence *s, uint32_t layer, uint32_t n)
{
    uint64_t identity = core.tiers.hkm.identities[s->index];
    for (uint32_t p = 0; p < n; p++)
        if (!token_is_there(s, identity, layer, p))
            fail_msg("sequence %u, layer %u: position %u of %u is not there", s->index, layer, p,
                     n);
    for (uint32_t p = n; p < CTX; p++)
        assert_int_equal(hkm_tag(core_location(&core, s, layer, p)), HKM_NOWHERE);
}

static void check_tokens(const struct sequence *s, uint32_t n)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        check_layer(s, layer, n);
}

static uint64_t hash_of(uint32_t step)
{
    XXH64_state_t *hash = XXH64_createState();
    XXH64_reset(hash, 0);
    for (uint32_t i = 1; i <= step; i++)
        XXH64_update(hash, &i, sizeof i);
    uint64_t out = XXH64_digest(hash);
    XXH64_freeState(hash);
    return out;
}

static uint32_t past_of(const struct sequence *s)
{
    struct kept_plan plan;
    kept_read(tiers_kept(&core.tiers, s->index), &plan);
    return plan.past_tokens;
}

/* Goes on after a step that is `back` before the newest; where that has been cut off before, or a
 * torn note took its place, after the newest. */
static void take_up(struct sequence *s, uint32_t back)
{
    const struct kept *k = tiers_kept(&core.tiers, s->index);
    uint32_t newest = kept_newest(k, 1, CTX)->n_tokens;
    uint32_t to = newest > PROMPT + back ? newest - back : newest;
    if (!kept_newest(k, to, to))
        to = newest;
    const struct record_seq_begin asked = {.identity = core.tiers.hkm.identities[s->index],
                                           .prompt_tokens = PROMPT,
                                           .max_tokens = CTX,
                                           .alpha = 0.5,
                                           .adopt_min = 1,
                                           .adopt_max = to,
                                           .past_tokens = past_of(s)};
    const struct kept_step *step = NULL;
    assert_true(adoption_fits(&core, s, &asked, &step));
    assert_non_null(step);
    assert_int_equal(step->n_tokens, to);
    assert_int_equal(step->step, to - PROMPT);
    assert_int_equal(adoption_begin(&core, s, step, 0), 0);
    assert_int_equal(XXH64_digest(s->hash), hash_of(to - PROMPT));
    check_tokens(s, to);
    s->state = SEQUENCE_ACTIVE;
}

/* What a kill has left of the sequences. */
enum left { NOTHING, OF_A_PROMPT, A_STEP };

static enum left what_is_left(uint32_t sequence)
{
    struct kept_plan plan;
    const struct kept *k = tiers_kept(&core.tiers, sequence);
    if (!kept_read(k, &plan))
        return NOTHING;
    if (kept_newest(k, 1, CTX))
        return A_STEP;
    /* behind a gap nothing is of use, and what comes first is the first layer's first token (the
     * words are shared memory) */
    bool any = hkm_placed(&core.tiers.hkm, sequence, 0, 1) > 0;
    return any ? OF_A_PROMPT : NOTHING;
}

/* Goes on with its prompt, or with the session before it: what is there has no gap, and the rest is
 * placed behind it. */
static void take_prompt(struct sequence *s)
{
    uint32_t past = past_of(s), whole = past ? past : PROMPT;
    const struct record_seq_begin asked = {.identity = core.tiers.hkm.identities[s->index],
                                           .prompt_tokens = PROMPT,
                                           .max_tokens = CTX,
                                           .alpha = 0.5,
                                           .adopt_max = whole,
                                           .past_tokens = past};
    const struct kept_step *step = NULL;
    struct record_seq_ready answer = {.status = 0};
    assert_true(adoption_fits(&core, s, &asked, &step));
    assert_null(step);
    XXH64_reset(s->hash, 0); /* as requests.c begins a sequence */
    s->hashed_step = 0;
    s->past_tokens = past;
    assert_int_equal(adoption_begin(&core, s, NULL, whole), 0);
    adoption_answer(&core, s, &answer);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint32_t n = layer < answer.header.layer    ? whole
                     : layer == answer.header.layer ? answer.kept_tokens
                                                    : 0;
        assert_int_equal(s->layers[layer].appended, n);
        check_layer(s, layer, n);
    }
    s->state = SEQUENCE_ACTIVE;
    place_prompt(s);
    check_tokens(s, PROMPT);
    kept_note(tiers_kept(&core.tiers, s->index), 0, PROMPT, s->hash);
}

static uint32_t n_prompts; /* that a kill has cut */

static void one_life(void)
{
    uint64_t before = atomic_load_explicit(&world->turns, memory_order_relaxed);
    uint32_t turns = draw(400), spin = draw(20000);
    enum left left[SEQUENCES];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        draws += turns;
        live();
    }
    /* any moment: so many turns, and somewhere within one */
    while (atomic_load_explicit(&world->turns, memory_order_relaxed) < before + turns)
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0); /* it has found something wrong */
    for (volatile uint32_t i = 0; i < spin; i++)
        ;
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it has found nothing */
    for (uint32_t i = 0; i < SEQUENCES; i++)
        left[i] = what_is_left(i);
    close_core();
    open_core(true);
    assert_int_equal(hkm_audit(&core.tiers.hkm, NULL), 0);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct sequence *s = &core.sequences[i];
        assert_int_equal(s->state, left[i] ? SEQUENCE_DORMANT : SEQUENCE_FREE);
        if (left[i] == A_STEP)
            take_up(s, draw(KEPT_STEPS - 1));
        else if (left[i] == OF_A_PROMPT)
            take_prompt(s);
        n_prompts += left[i] == OF_A_PROMPT;
    }
    assert_int_equal(hkm_audit(&core.tiers.hkm, NULL), 0);
}

static void set_up_world(void)
{
    const struct hkm_config config = {.geometry = geometry,
                                      .ctx_tokens = CTX,
                                      .n_sequences = SEQUENCES,
                                      .gpu_slots = 16,
                                      .n_blocks = BLOCKS,
                                      .cold_slots = COLD,
                                      .state_bytes =
                                          kv_plan_state_bytes(&geometry, KV_POLICY_HILLINFER, CTX)};
    segment_bytes = hkm_tables_bytes(&config) + BLOCKS * hkm_block_bytes(&geometry);
    world = mmap(NULL, sizeof *world + segment_bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(world != MAP_FAILED);
    open_core(false);
}

static void tear_down_world(void)
{
    close_core();
    munmap(world, sizeof *world + segment_bytes);
}

static void test_a_kill_at_any_moment_loses_nothing(void **unused)
{
    (void)unused;
    set_up_world();
    for (int i = 0; i < KILLS; i++)
        one_life();
    assert_true(n_prompts > 0);
    tear_down_world();
}

/* The first token was on its way to the drive while those behind it, and another layer's, were
 * placed: all of them are behind the gap. */
static void test_a_prompt_without_its_first_token_is_nothing(void **unused)
{
    (void)unused;
    set_up_world();
    set_aside(&core.sequences[0]);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t p = layer == 0; p < PROMPT; p++)
            append(&core.sequences[0], layer, p);
    assert_int_equal(what_is_left(0), NOTHING);
    close_core();
    open_core(true);
    assert_int_equal(core.sequences[0].state, SEQUENCE_FREE);
    assert_int_equal(core.tiers.hkm.n_unreserved, BLOCKS);
    assert_int_equal(hkm_audit(&core.tiers.hkm, NULL), 0);
    tear_down_world();
}

static void flip(uint8_t *bytes, uint64_t n)
{
    bytes[draw((uint32_t)n)] ^= (uint8_t)(1u << draw(8));
}

/* The check of the slot that a location word names; of none all zeros. */
static struct hkm_check check_named(const struct hkm *h, uint32_t word)
{
    uint32_t slot = hkm_slot(word);
    if (hkm_tag(word) == HKM_HOT && slot < BLOCKS * 64)
        return h->checks[slot];
    if (hkm_tag(word) == HKM_COLD && slot < COLD)
        return h->cold_checks[slot];
    return (struct hkm_check){0};
}

/* A bit of a location word, but none that makes the word name a slot in which this very entry was
 * before: the check that still stands there is the entry's. */
static void flip_word(struct hkm *h, uint64_t at)
{
    uint32_t word = h->words[at];
    struct hkm_check was = check_named(h, word), is;
    do {
        h->words[at] = word;
        flip((uint8_t *)&h->words[at], sizeof *h->words);
        is = check_named(h, h->words[at]);
    } while (memcmp(&was, &is, sizeof is) == 0);
}

/* Somewhere in what a successor reads of sequence 0; true: in what it certainly uses. */
static bool flip_something(void)
{
    struct hkm *h = &core.tiers.hkm;
    uint32_t layer = draw(LAYERS), p = draw(core.sequences[0].layers[0].appended);
    uint64_t at = (uint64_t)hkm_list_index(h, 0, layer) * CTX + p;
    uint32_t word = hkm_location(h, 0, layer, p), slot = hkm_slot(word);
    bool hot = hkm_tag(word) == HKM_HOT;
    switch (draw(5)) {
    case 0:
        flip_word(h, at);
        return true;
    case 1:
        flip((uint8_t *)(hot ? &h->checks[slot] : &h->cold_checks[slot]), KV_CHECK_BYTES);
        return true;
    case 2:
        if (hot)
            flip(hkm_entry(h, slot), ENTRY);
        return hot;
    case 3:
        flip(h->kept, KV_KEPT_BYTES);
        return false; /* it may be a step that nobody needs */
    default:          /* what is made anew */
        flip((uint8_t *)h->lists, SEQUENCES * LAYERS * sizeof *h->lists);
        flip((uint8_t *)h->owners, BLOCKS * sizeof *h->owners);
        flip((uint8_t *)h->positions, BLOCKS * 64 * sizeof *h->positions);
        flip(h->digests, (uint64_t)BLOCKS * 64 * kv_digest_bytes(&geometry));
        return false;
    }
}

static void test_a_bit_that_has_changed_is_found(void **unused)
{
    (void)unused;
    set_up_world();
    for (int i = 0; i < 250; i++)
        turn(&core.sequences[i % SEQUENCES]);
    while (!core.sequences[0].hashed_step) /* its last turn has begun it anew: it has no step yet */
        turn(&core.sequences[0]);
    uint8_t *good = malloc(segment_bytes);
    assert_non_null(good);
    memcpy(good, world->segment, segment_bytes);
    uint32_t lost = 0;
    for (int i = 0; i < FLIPS; i++) {
        core.sequences[0].layers[0].appended =
            kept_newest(tiers_kept(&core.tiers, 0), 1, CTX)->n_tokens;
        bool used = flip_something();
        close_core();
        open_core(true);
        const struct sequence *s = &core.sequences[0];
        if (used)
            assert_int_equal(s->state, SEQUENCE_FREE);
        if (s->state == SEQUENCE_DORMANT)
            check_tokens(s, kept_newest(tiers_kept(&core.tiers, 0), 1, CTX)->n_tokens);
        assert_int_equal(core.sequences[1].state, SEQUENCE_DORMANT);
        assert_int_equal(hkm_audit(&core.tiers.hkm, NULL), 0);
        lost += s->state == SEQUENCE_FREE;
        memcpy(world->segment, good, segment_bytes);
        close_core();
        open_core(true);
        assert_int_equal(core.sequences[0].state, SEQUENCE_DORMANT);
    }
    assert_true(lost > FLIPS / 4);
    free(good);
    tear_down_world();
}

/* An entry of sequence 0 with a checksum: hot ones, and what names cold ones. */
static void damage_one(uint32_t layer, uint32_t p)
{
    struct hkm *h = &core.tiers.hkm;
    uint32_t word = hkm_location(h, 0, layer, p), slot = hkm_slot(word);
    if (hkm_tag(word) == HKM_COLD)
        flip((uint8_t *)&h->cold_checks[slot].bound, 4);
    else if (draw(2))
        flip_word(h, (uint64_t)hkm_list_index(h, 0, layer) * CTX + p);
    else
        flip(hkm_entry(h, slot), ENTRY);
}

/* Some of sequence 0's: of the prompt, of all tokens, of the newest. The lowest decoded one. */
static uint32_t damage_some(uint32_t n_tokens)
{
    uint32_t n = 1 + draw(5), lowest = UINT32_MAX, where = draw(4);
    uint32_t from = where == 0 ? n_tokens - 3 : 0, to = where > 1 ? PROMPT : n_tokens;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t layer = draw(LAYERS), p = from + draw(to - from);
        struct damage *d = &core.sequences[0].damage;
        if (damage_has(d, layer, p))
            continue;
        damage_add(d, layer, p); /* of this core: what the next one is to find */
        damage_one(layer, p);
        lowest = p >= PROMPT && p < lowest ? p : lowest;
    }
    return lowest;
}

static void check_noted(const struct damage *expected)
{
    const struct damage *d = &core.sequences[0].damage;
    assert_int_equal(d->n, expected->n);
    assert_memory_equal(d->items, expected->items, d->n * sizeof *d->items);
    for (uint32_t i = 0; i < d->n; i++)
        assert_int_equal(hkm_tag(core_location(&core, &core.sequences[0], d->items[i].layer,
                                               d->items[i].position)),
                         HKM_NOWHERE);
}

/* As intake.c places what the GPU worker has made: all that is damaged of the prompt. */
static void mend(struct sequence *s)
{
    while (s->damage.n) {
        struct damaged_entry e = s->damage.items[0];
        assert_true(e.position < PROMPT);
        append(s, e.layer, e.position);
        damage_remove(&s->damage, e.layer, e.position);
    }
}

/* The lowest damaged decoded token: from there on steps are made again, but where a note is of an
 * earlier step. */
static void check_mended(uint32_t decoded, uint32_t newest)
{
    struct sequence *s = &core.sequences[0];
    struct record_seq_ready answer = {.status = 0};
    const struct record_seq_begin asked = {.identity = core.tiers.hkm.identities[0],
                                           .prompt_tokens = PROMPT,
                                           .max_tokens = CTX,
                                           .alpha = 0.5,
                                           .adopt_min = newest > 3 + PROMPT ? newest - 3 : PROMPT,
                                           .adopt_max = newest};
    const struct kept_step *step = NULL;
    assert_true(adoption_fits(&core, s, &asked, &step));
    uint32_t whole = step->n_tokens, to = decoded < whole ? decoded : whole;
    assert_true(whole >= asked.adopt_min && (whole == newest || whole <= decoded));
    XXH64_reset(s->hash, 0);
    assert_int_equal(adoption_begin(&core, s, step, 0), 0);
    assert_int_equal(XXH64_digest(s->hash), hash_of(whole - PROMPT));
    adoption_answer(&core, s, &answer);
    assert_int_equal(answer.kept_tokens, to);
    assert_int_equal(answer.header.step, to - PROMPT);
    assert_int_equal(answer.replay_to, to < whole ? whole - PROMPT : 0);
    assert_int_equal(answer.n_damaged, s->damage.n);
    mend(s);
    check_tokens(s, to);
    assert_int_equal(hkm_audit(&core.tiers.hkm, NULL), 0);
    s->state = SEQUENCE_ACTIVE;
}

static void test_damaged_entries_alone_are_made_again(void **unused)
{
    (void)unused;
    uint32_t replays = 0, steps_before = 0;
    set_up_world();
    mends = true;
    do { /* one that is no session */
        begin(&core.sequences[0]);
    } while (past_of(&core.sequences[0]));
    for (int i = 0; i < 120; i++) { /* at most CTX tokens */
        struct sequence *s = &core.sequences[0];
        s->hashed_step++;
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            append(s, layer, s->layers[layer].appended++);
            move_some(s, layer);
        }
        XXH64_update(s->hash, &s->hashed_step, sizeof s->hashed_step);
        kept_note(tiers_kept(&core.tiers, 0), s->hashed_step, s->layers[0].appended, s->hash);
    }
    uint8_t *good = malloc(segment_bytes);
    assert_non_null(good);
    memcpy(good, world->segment, segment_bytes);
    uint32_t newest = core.sequences[0].layers[0].appended;
    for (int i = 0; i < FLIPS / 2; i++) {
        uint32_t decoded = damage_some(newest);
        const struct damage expected = core.sequences[0].damage;
        close_core();
        open_core(true);
        assert_int_equal(core.sequences[0].state, SEQUENCE_DORMANT);
        check_noted(&expected);
        check_mended(decoded, newest);
        replays += core.sequences[0].replay_to > 0;
        steps_before += decoded < newest && !core.sequences[0].replay_to;
        memcpy(world->segment, good, segment_bytes);
        close_core();
        open_core(true);
        assert_int_equal(core.sequences[0].state, SEQUENCE_DORMANT);
        assert_int_equal(core.sequences[0].damage.n, 0);
    }
    assert_true(replays > 0 && steps_before > 0);
    free(good);
    tear_down_world();
    mends = false;
}

/* One of a whole step that is damaged is not taken up as a prompt that is not whole. */
static void check_no_prompt(struct sequence *s)
{
    const struct record_seq_begin asked = {.identity = core.tiers.hkm.identities[0],
                                           .prompt_tokens = PROMPT,
                                           .max_tokens = CTX,
                                           .alpha = 0.5,
                                           .adopt_max = PROMPT};
    const struct kept_step *step = NULL;
    assert_false(adoption_fits(&core, s, &asked, &step));
    s->damage.n = 0;
    assert_true(adoption_fits(&core, s, &asked, &step));
    assert_null(step);
}

/* More than can be noted; a session, which has its file: they are freed. */
static void test_much_damage_frees_the_sequence(void **unused)
{
    (void)unused;
    uint32_t kept = 0, freed = 0;
    set_up_world();
    mends = true;
    for (int i = 0; i < 40; i++) {
        struct sequence *s = &core.sequences[0];
        begin(s);
        uint32_t n = draw(2) ? 1 : RECORD_DAMAGED_MAX / LAYERS + 1;
        bool session = past_of(s) > 0, few = n == 1;
        for (uint32_t p = 0; p < n; p++)
            for (uint32_t layer = 0; layer < LAYERS; layer++)
                damage_one(layer, p);
        close_core();
        open_core(true);
        bool stays = core.sequences[0].state == SEQUENCE_DORMANT;
        assert_int_equal(stays, few && !session);
        kept += stays;
        freed += !stays;
        if (stays)
            check_no_prompt(&core.sequences[0]);
    }
    assert_true(kept > 0 && freed > 0);
    tear_down_world();
    mends = false;
}

/* A request that began without a drive: all of it is hot. */
static void begin_without_drive(struct sequence *s)
{
    struct tiers *t = &core.tiers;
    uint32_t blocks = (CTX + 63) / 64;
    assert_int_equal(hkm_reserve(&t->hkm, s->index, blocks), 0);
    s->state = SEQUENCE_ACTIVE;
    s->prompt_tokens = PROMPT;
    s->max_tokens = CTX;
    s->settings = (struct kv_selection_settings){.alpha = 0.5};
    s->share = (struct hot_share){.limit = CTX};
    const struct kept_plan plan = adoption_plan(s, blocks, (const uint32_t[LAYOUT_DRIVES_MAX]){0});
    t->hkm.identities[s->index] = 77;
    kept_begin(tiers_kept(t, s->index), 77, &plan);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (s->layers[layer].appended = 0; s->layers[layer].appended < PROMPT;)
            append(s, layer, s->layers[layer].appended++);
    kept_note(tiers_kept(t, s->index), 0, PROMPT, s->hash);
}

static void expect_plan(double beta, uint32_t stripes)
{
    struct kept_plan plan;
    assert_int_equal(core.sequences[1].state, SEQUENCE_DORMANT);
    assert_int_equal(kept_read(tiers_kept(&core.tiers, 1), &plan), 77);
    assert_true(plan.beta == beta && core.sequences[1].share.beta == beta);
    assert_int_equal(plan.stripes[0], stripes);
    assert_int_equal(plan.limit, CTX);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(core.tiers.cold.lists[tiers_list(&core.tiers, 1, layer)].n_stripes,
                         stripes);
}

static void test_a_drive_that_comes_is_used_and_one_that_goes_is_not_missed(void **unused)
{
    (void)unused;
    no_drive = true;
    set_up_world();
    begin_without_drive(&core.sequences[1]);
    for (int round = 0; round < 3; round++) {
        close_core();
        no_drive = false;
        wanted_beta = 1;
        open_core(true);
        expect_plan(1, 1); /* half of 400 tokens: less than a stripe */
        close_core();
        no_drive = true;
        open_core(true);
        expect_plan(0, 0);
    }
    const struct kept_step *step = kept_newest(tiers_kept(&core.tiers, 1), 1, CTX);
    assert_int_equal(step->n_tokens, PROMPT);
    check_tokens(&core.sequences[1], PROMPT);
    tear_down_world();
    no_drive = false;
    wanted_beta = 0;
}

static bool refused;

static int refuse(struct evaluator *e, const struct sequence *s)
{
    (void)e;
    refused = s->kept != NULL;
    return HILL_E_UNSUPPORTED;
}

/* Nobody reads it: a SEQ_BEGIN is held after what has become of the sequence of before. */
static void open_full_ring(struct shm_ring_end *end, struct shm_doorbell *bells)
{
    static _Alignas(4096) uint8_t memory[16384];
    static const struct record_seq_ready answer;
    memset(memory, 0, sizeof memory);
    assert_true(shm_ring_bytes(4096) <= sizeof memory);
    assert_int_equal(shm_ring_init(memory, 4096, 0), 0);
    assert_int_equal(shm_ring_open(end, memory, shm_ring_bytes(4096), true, &bells[0], &bells[1]),
                     0);
    while (shm_ring_push(end, RECORD_SEQ_READY, &answer, sizeof answer) == 0)
        ;
}

/* What its policy knew of it is not there: nothing of its placements is left for the next one. */
static void test_one_that_cannot_be_taken_up_leaves_no_placement(void **unused)
{
    (void)unused;
    static const struct evaluator_ops ops = {.adopt = refuse};
    static struct shm_ring_end rings[LAYOUT_RINGS_MAX];
    static struct shm_doorbell bells[2];
    static struct agent agent;
    struct evaluator evaluator = {.ops = &ops, .core = &core};
    struct requests requests = {&core, &agent, NULL, &evaluator};
    const struct record_seq_begin r = {.header = {.sequence = 1},
                                       .request_id = 1,
                                       .prompt_tokens = PROMPT,
                                       .max_tokens = CTX,
                                       .alpha = 0.01,
                                       .identity = 77,
                                       .adopt_min = 1,
                                       .adopt_max = CTX};
    set_up_world();
    struct sequence *s = &core.sequences[1];
    XXH64_reset(s->hash, 0);
    begin_without_drive(s);
    s->settings = record_selection_settings(&r);
    s->share.copies = true;
    const struct kept_plan plan =
        adoption_plan(s, (CTX + 63) / 64, (const uint32_t[LAYOUT_DRIVES_MAX]){0});
    kept_replan(tiers_kept(&core.tiers, 1), &plan);
    close_core();
    open_core(true);
    s = &core.sequences[1];
    assert_int_equal(s->state, SEQUENCE_DORMANT);
    open_full_ring(&rings[RING_SELECTION], bells);
    core.io.rings = rings;
    agent = (struct agent){.core = &core};
    assert_int_equal(requests_take_begin(&requests, &r), 1);
    assert_true(refused);
    assert_true(s->begin_held && s->state == SEQUENCE_FREE && s->request_id == 1);
    assert_null(s->kept);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_null(s->layers[layer].placement);
    shm_ring_close(&rings[RING_SELECTION]);
    tear_down_world();
}

static void test_another_shape_is_not_adopted(void **unused)
{
    (void)unused;
    struct hkm h;
    struct hill_why why = {""};
    set_up_world();
    const struct hkm_config other = {.geometry = geometry,
                                     .ctx_tokens = CTX,
                                     .n_sequences = SEQUENCES,
                                     .gpu_slots = 15,
                                     .n_blocks = BLOCKS,
                                     .cold_slots = COLD};
    assert_int_equal(hkm_adopt(&h, world->segment, segment_bytes, &other, &why), HILL_E_DAMAGED);
    tear_down_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_kill_at_any_moment_loses_nothing),
        cmocka_unit_test(test_a_prompt_without_its_first_token_is_nothing),
        cmocka_unit_test(test_a_bit_that_has_changed_is_found),
        cmocka_unit_test(test_damaged_entries_alone_are_made_again),
        cmocka_unit_test(test_much_damage_frees_the_sequence),
        cmocka_unit_test(test_a_drive_that_comes_is_used_and_one_that_goes_is_not_missed),
        cmocka_unit_test(test_one_that_cannot_be_taken_up_leaves_no_placement),
        cmocka_unit_test(test_another_shape_is_not_adopted),
    };
    draws_seed(20261122);
    hill_log_init("test", HILL_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
