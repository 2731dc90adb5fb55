/*
 * tests/fuzz/fuzz_adoption.c - anything in the hot segment that an earlier scorer has left.
 *
 * What: a segment with a request that decodes and one in its prompt, entries hot and cold, as a
 * scorer lays it out; an input changes words of it, byte 0 says whether checksums are made right
 * afterwards (bit 0 those of what is kept of a sequence, bit 1 those of entries), and that the
 * successor has no drive (bit 2) or another beta (bit 3), or notes what is damaged (bit 4). A
 * scorer starts over it and each sequence that it keeps is taken up. Failure: sanitizer findings;
 * abort() where the tables contradict each other, a token's place is not one, or blocks are lost.
 * Who calls it: libFuzzer (tests/fuzz/run). Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cpu_scorer/adoption.h"
#include "cpu_scorer/cold_map.h"
#include "cpu_scorer/hkm.h"
#include "cpu_scorer/kept.h"
#include "cpu_scorer/moves.h"
#include "cpu_scorer/tiers.h"
#include "tests/cpu_scorer/hkm_audit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LAYERS = 2, SEQUENCES = 2, CTX = 96, PROMPT = 20, STEPS = 12, HOT = 14, ENTRY = 2 * 2 * 8 };
enum { BLOCKS = 12, STRIPE = 256, STRIPES = LAYERS * SEQUENCES, COLD = STRIPE * STRIPES };
enum { SEAL_KEPT = 1, SEAL_ENTRIES = 2, NO_DRIVE = 4, OTHER_BETA = 8, MENDS = 16 };

static struct hkm_config tables = {.geometry = {LAYERS, 2, 1, 8, 8},
                                   .ctx_tokens = CTX,
                                   .n_sequences = SEQUENCES,
                                   .gpu_slots = 16,
                                   .n_blocks = BLOCKS,
                                   .cold_slots = COLD};
static uint8_t *good, *segment; /* as it was left; as the input has it */
static uint64_t segment_bytes;
static struct core core;
static struct shm_arena staging = {.slot_count = 64};

static void open_core(bool adopts, uint8_t what)
{
    struct hill_why why;
    memset(&core, 0, sizeof core);
    core.config = (struct scorer_config){.geometry = tables.geometry,
                                         .ctx_tokens = CTX,
                                         .n_sequences = SEQUENCES,
                                         .gpu_slots = 16,
                                         .hot_blocks = BLOCKS,
                                         .stripe_slots = STRIPE,
                                         .n_stripes = STRIPES,
                                         .csd = !(what & NO_DRIVE),
                                         .cold_slots = COLD,
                                         .beta = what & OTHER_BETA ? 0.25 : 1,
                                         .keeps = true,
                                         .adopts = adopts};
    core.mends = what & MENDS;
    core.io = (struct scorer_io){.staging = &staging, .hot = segment, .hot_bytes = segment_bytes};
    core.sequences = calloc(SEQUENCES, sizeof *core.sequences);
    if (!core.sequences || tiers_create(&core.tiers, &core.config, &core.io, &why))
        abort();
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        core.sequences[i].index = i;
        core.sequences[i].layers = calloc(LAYERS, sizeof *core.sequences[i].layers);
        core.sequences[i].hash = XXH64_createState();
        if (!core.sequences[i].layers || !core.sequences[i].hash)
            abort();
    }
}

static void close_core(void)
{
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        moves_end(&core, &core.sequences[i]);
        free(core.sequences[i].layers);
        XXH64_freeState(core.sequences[i].hash);
    }
    free(core.sequences);
    tiers_destroy(&core.tiers);
}

/* ---- a segment as a scorer leaves it -------------------------------------------------------- */

static void place(struct sequence *s, uint32_t layer, uint32_t position)
{
    struct tiers *t = &core.tiers;
    uint32_t list = tiers_list(t, s->index, layer), slot, order;
    uint16_t entry[ENTRY];
    for (uint32_t i = 0; i < ENTRY; i++) /* FP16 numbers between 1 and 2 */
        entry[i] = (uint16_t)(0x3c00u | (position * 31 + layer * 7 + i) % 1024);
    if (hkm_append(&t->hkm, s->index, layer, position, 1, entry) != 1)
        abort();
    if (position < HOT)
        return;
    if (cold_map_take(&t->cold, list, position, 1, &slot, &order) != 1)
        abort();
    t->hkm.cold_checks[slot] =
        hkm_check_of(&t->hkm, s->index, layer, position, hkm_sum(&t->hkm, entry));
    cold_map_commit(&t->cold, list, slot, 1);
    hkm_set_cold(&t->hkm, s->index, layer, position, slot);
}

static void begin(struct sequence *s, uint64_t identity)
{
    struct tiers *t = &core.tiers;
    uint32_t blocks = 2;
    if (hkm_reserve(&t->hkm, s->index, blocks))
        abort();
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        if (cold_map_reserve(&t->cold, tiers_list(t, s->index, layer), 1))
            abort();
    s->prompt_tokens = PROMPT;
    s->max_tokens = CTX;
    s->settings = (struct kv_selection_settings){.alpha = 0.5};
    s->share = (struct hot_share){.beta = 1, .limit = HOT};
    XXH64_reset(s->hash, 0);
    t->hkm.identities[s->index] = identity;
    const struct kept_plan plan = adoption_plan(s, blocks, (const uint32_t[LAYOUT_DRIVES_MAX]){1});
    kept_begin(tiers_kept(t, s->index), identity, &plan);
}

static void leave_segment(void)
{
    tables.state_bytes = kv_plan_state_bytes(&tables.geometry, KV_POLICY_HILLINFER, CTX);
    segment_bytes = hkm_tables_bytes(&tables) + BLOCKS * hkm_block_bytes(&tables.geometry);
    uint64_t room = (segment_bytes + 63) / 64 * 64;
    good = aligned_alloc(64, room);
    segment = aligned_alloc(64, room);
    if (!good || !segment)
        abort();
    memset(segment, 0, room);
    open_core(false, 0);
    struct sequence *decodes = &core.sequences[0], *reads = &core.sequences[1];
    begin(decodes, 11);
    begin(reads, 12);
    for (uint32_t n = 1; n <= PROMPT + STEPS; n++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            place(decodes, layer, n - 1);
        if (n >= PROMPT)
            kept_note(tiers_kept(&core.tiers, 0), n - PROMPT, n, decodes->hash);
    }
    for (uint32_t p = 0; p < PROMPT; p++)
        place(reads, 0, p);
    for (uint32_t p = 0; p < PROMPT / 2; p++)
        place(reads, 1, p);
    memcpy(good, segment, segment_bytes);
    close_core();
}

/* ---- what an input does to it ---------------------------------------------------------------- */

/* Four bytes: anywhere, of a word, of what is kept of a sequence, of the header. */
static void change(const uint8_t *edit)
{
    const struct hkm_header *h = (const struct hkm_header *)(const void *)good;
    uint64_t from = 0, bytes = segment_bytes, at = (uint64_t)edit[1] << 8 | edit[2];
    if (edit[0] % 4 == 1) {
        from = h->words_offset;
        bytes = (uint64_t)SEQUENCES * LAYERS * CTX * sizeof(uint32_t);
    } else if (edit[0] % 4 == 2) {
        from = h->kept_offset + edit[0] / 4 % SEQUENCES * KV_KEPT_BYTES;
        bytes = sizeof(struct kept);
    } else if (edit[0] % 4 == 3) {
        bytes = sizeof *h;
    }
    memcpy(segment + from + at * 4 % (bytes - 3), edit + 3, 4);
}

static void seal_kept(struct kept *k)
{
    uint64_t identity = k->identity;
    k->check = XXH3_64bits_withSeed(&k->plan, sizeof k->plan, identity);
    for (uint32_t i = 0; i < KEPT_STEPS; i++)
        if (k->steps[i].n_tokens)
            k->steps[i].check =
                XXH3_64bits_withSeed(&k->steps[i], offsetof(struct kept_step, check), identity);
}

static void seal_entries(struct hkm *h, uint32_t sequence, uint32_t layer)
{
    for (uint32_t p = 0; p < CTX; p++) {
        uint32_t word = hkm_location(h, sequence, layer, p), slot = hkm_slot(word);
        if (hkm_tag(word) == HKM_HOT && slot < h->n_blocks * KV_HOT_BLOCK_TOKENS)
            h->checks[slot] = hkm_check_of(h, sequence, layer, p, hkm_sum(h, hkm_entry(h, slot)));
        else if (hkm_tag(word) == HKM_COLD && slot < COLD)
            h->cold_checks[slot] = hkm_check_of(h, sequence, layer, p, h->cold_checks[slot].sum);
    }
}

static void seal(uint8_t what)
{
    struct core as_left = core;
    struct tiers *t = &as_left.tiers;
    struct hill_why why;
    if (!(what & (SEAL_KEPT | SEAL_ENTRIES)) ||
        hkm_adopt(&t->hkm, segment, segment_bytes, &tables, &why))
        return;
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct kept *k = tiers_kept(t, i);
        t->hkm.identities[i] = k->identity;
        if (what & SEAL_KEPT)
            seal_kept(k);
        for (uint32_t layer = 0; what & SEAL_ENTRIES && layer < LAYERS; layer++)
            seal_entries(&t->hkm, i, layer);
    }
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* Tokens that have a place, of all that may have one: each is where its word says. */
static void check(const struct sequence *s)
{
    const struct tiers *t = &core.tiers;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t p = 0; p < CTX; p++) {
            uint32_t word = core_location(&core, s, layer, p);
            if (hkm_tag(word) == HKM_COLD &&
                cold_map_position(&t->cold, tiers_list(t, s->index, layer), hkm_slot(word)) != p)
                abort();
        }
}

static void take_up(struct sequence *s)
{
    struct kept_plan plan;
    const struct kept_step *step;
    struct hill_why why;
    uint64_t identity = kept_read(tiers_kept(&core.tiers, s->index), &plan);
    const struct kept_step *newest = kept_newest(tiers_kept(&core.tiers, s->index), 1, CTX);
    struct record_seq_begin r = {.header = core_header(&core, s->index, 0, 0),
                                 .identity = identity,
                                 .prompt_tokens = plan.prompt_tokens,
                                 .max_tokens = plan.max_tokens,
                                 .past_tokens = plan.past_tokens,
                                 .alpha = plan.settings.alpha,
                                 .budget = plan.settings.budget,
                                 .sinks = plan.settings.sinks,
                                 .window = plan.settings.window,
                                 .policy = plan.settings.policy,
                                 .importance = plan.settings.importance,
                                 .exact_below = (uint16_t)plan.settings.exact_below,
                                 .adopt_min = newest ? 1 : 0,
                                 .adopt_max = newest ? newest->n_tokens : plan.prompt_tokens};
    if (record_check(RECORD_SEQ_BEGIN, &r, sizeof r, &tables.geometry, SEQUENCES, &why) ||
        !adoption_fits(&core, s, &r, &step))
        return;
    s->past_tokens = r.past_tokens;
    if (adoption_begin(&core, s, step, r.adopt_max) == 0)
        check(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hill_why why;
    if (size < 1)
        return 0;
    if (!good) {
        hill_log_init("fuzz", HILL_LOG_ERROR);
        leave_segment();
    }
    memcpy(segment, good, segment_bytes);
    for (size_t at = 1; at + 7 <= size; at += 7)
        change(data + at);
    seal(data[0]);
    open_core(true, data[0]);
    adoption_find(&core);
    if (size < 8 && !(data[0] & NO_DRIVE) && /* nothing was changed */
        (core.sequences[0].state != SEQUENCE_DORMANT ||
         core.sequences[1].state != SEQUENCE_DORMANT))
        abort();
    if (hkm_audit(&core.tiers.hkm, &why))
        abort();
    for (uint32_t i = 0; i < SEQUENCES; i++)
        if (core.sequences[i].state == SEQUENCE_DORMANT) {
            check(&core.sequences[i]);
            take_up(&core.sequences[i]);
        }
    if (hkm_audit(&core.tiers.hkm, &why))
        abort();
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        moves_end(&core, &core.sequences[i]);
        tiers_release_near(&core.tiers, i);
        tiers_release_cold(&core.tiers, i);
    }
    if (core.tiers.hkm.n_free != core.tiers.hkm.n_blocks ||
        core.tiers.hkm.n_unreserved != core.tiers.hkm.n_blocks)
        abort();
    close_core();
    return 0;
}
