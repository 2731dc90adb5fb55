/* cpu_scorer/intake.c - see intake.h. */
#include "cpu_scorer/intake.h"

#include <math.h>

#include "base/fault.h"
#include "base/log.h"
#include "kv/score.h"

#define RECORDS_PER_TURN 16 /* then the agent's rings are looked at again */

/* ---- tokens ------------------------------------------------------------------------------- */

/* Keys that are no numbers have no score, and values none that attention could weigh. */
static bool refuse_no_numbers(struct intake *in, struct sequence *s, const struct record_append *r)
{
    const uint16_t *halfs = (const uint16_t *)(const void *)(r + 1);
    uint64_t each = in->core->tiers.hkm.entry_bytes / sizeof *halfs;
    if (kv_halfs_are_finite(halfs, r->n_tokens * each))
        return false;
    uint32_t i = 0;
    while (kv_halfs_are_finite(halfs + i * each, each))
        i++;
    core_fail(in->core, s, HILL_E_DAMAGED,
              "token %u of layer %u has a key or a value that is infinite or no number in FP16: "
              "a damaged model, or one whose activations FP16 does not hold",
              r->first + i, r->header.layer);
    return true;
}

/* Place tokens of one kind from `position` on; returns how many were taken. */
static uint32_t place_some(struct intake *in, struct sequence *s, uint32_t layer, uint32_t position,
                           uint32_t n, const uint8_t *entries)
{
    bool cold = position >= s->cold_from && position < s->cold_to;
    uint32_t border = cold ? s->cold_to : position < s->cold_from ? s->cold_from : UINT32_MAX;
    if (border - position < n)
        n = border - position;
    if (cold) {
        n = demote_entries(in->demotions, s, layer, position, n, entries);
        s->layers[layer].uncommitted += n;
        return n;
    }
    uint32_t taken = hkm_append(&in->core->tiers.hkm, s->index, layer, position, n, entries);
    if (taken < n)
        s->moves_wanted = true; /* full until something goes down */
    return taken;
}

/* A damaged entry that has been made again goes to the hot tier, or to the cold one where that is
 * full. 1: placed; 0: no room now. */
static int take_mended(struct intake *in, struct sequence *s, const struct record_append *r)
{
    uint32_t layer = r->header.layer, p = r->first;
    struct layer_state *l = &s->layers[layer];
    const uint8_t *entry = (const uint8_t *)(r + 1);
    if (refuse_no_numbers(in, s, r))
        return 1;
    bool hot = hkm_append(&in->core->tiers.hkm, s->index, layer, p, 1, entry) == 1;
    if (!hot && !demote_again(in->demotions, s, layer, p, entry)) {
        s->moves_wanted = true;
        return 0;
    }
    l->uncommitted += !hot;
    l->low = hot && p < l->low ? p : l->low;
    if (l->placement && p < placement_tokens(l->placement))
        placement_place(l->placement, p, hot);
    damage_remove(&s->damage, layer, p);
    return 1;
}

static int take_append(struct intake *in, const struct record_append *r)
{
    struct sequence *s = &in->core->sequences[r->header.sequence];
    struct layer_state *l = &s->layers[r->header.layer];
    if (!core_runs(s) || s->leaving)
        return 1;
    if (r->n_tokens == 1 && damage_has(&s->damage, r->header.layer, r->first))
        return take_mended(in, s, r);
    if (in->done == 0 && (r->first != l->appended || r->n_tokens > s->max_tokens - l->appended)) {
        core_fail(in->core, s, HILL_E_PROTOCOL,
                  "tokens %u..%u of layer %u were appended after %u of at most %u", r->first,
                  r->first + r->n_tokens - 1, r->header.layer, l->appended, s->max_tokens);
        return 1;
    }
    if (!in->looked && refuse_no_numbers(in, s, r))
        return 1;
    const uint8_t *entries = (const uint8_t *)(r + 1);
    struct evaluator *e = in->evaluator;
    uint32_t entry_bytes = in->core->tiers.hkm.entry_bytes;
    int moved = 0;
    FAULT_POINT(cpu_scorer, append, taken);
    if (e->ops->look && !in->looked)
        e->ops->look(e, s, r);
    in->looked = true; /* once, however long the record waits for room */
    while (in->done < r->n_tokens) {
        uint32_t first = r->first + in->done;
        const uint8_t *from = entries + (uint64_t)in->done * entry_bytes;
        uint32_t taken = place_some(in, s, r->header.layer, first, r->n_tokens - in->done, from);
        if (taken == 0)
            return moved ? -1 : 0;
        if (e->ops->append)
            e->ops->append(e, s, r->header.layer, first, taken, from);
        moved = 1;
        in->done += taken;
        l->appended += taken;
    }
    FAULT_POINT(cpu_scorer, append, placed);
    return 1;
}

/* A decode step is over: how far apart its drives were done. */
static void note_drives(const struct core *c, struct sequence *s)
{
    struct step_balance *b = &s->balance;
    int64_t most = 0, least = INT64_MAX;
    for (uint32_t d = 0; d < c->config.n_drives; d++) {
        const struct scorer_drive *drive = &s->stats.drives[d];
        int64_t took = drive->score_ns + drive->fetch_ns - b->drive_ns[d];
        b->drive_ns[d] += took;
        if (!c->config.drives[d].n_stripes)
            continue;
        most = took > most ? took : most;
        least = took < least ? took : least;
    }
    if (c->config.n_drives < 2 || most <= 0)
        return;
    b->drive_counts[(most - least) * 100 / most]++;
    b->drive_steps++;
}

/* And its two sides. */
static void note_balance(struct sequence *s)
{
    struct step_balance *b = &s->balance;
    int64_t cpu = s->stats.score_hot_ns + s->stats.copy_hot_ns;
    int64_t csd = s->stats.score_cold_ns + s->stats.fetch_cold_ns;
    double a = (double)(cpu - b->cpu_ns), c = (double)(csd - b->csd_ns);
    b->cpu_ns = cpu;
    b->csd_ns = csd;
    if (!(a > 0 && c > 0))
        return; /* one side alone, or a prompt's end */
    b->counts[(int)(100 * fabs(a - c) / fmax(a, c))]++;
    s->stats.steps++;
}

static int take_step_end(struct intake *in, const struct record_step_end *r)
{
    struct sequence *s = &in->core->sequences[r->header.sequence];
    if (!core_runs(s))
        return 1;
    for (uint32_t layer = 0; layer < in->core->config.geometry.n_layers; layer++)
        if (s->layers[layer].appended != r->n_tokens) {
            core_fail(in->core, s, HILL_E_PROTOCOL,
                      "step %u ends with %u tokens, layer %u was given %u", r->header.step,
                      r->n_tokens, layer, s->layers[layer].appended);
            return 1;
        }
    if (s->damage.n) {
        core_fail(in->core, s, HILL_E_PROTOCOL, "step %u ends with %u damaged entries",
                  r->header.step, s->damage.n);
        return 1;
    }
    note_balance(s);
    note_drives(in->core, s);
    s->moves_wanted = true;
    if (r->header.step < s->replay_to)
        return 1; /* the hash is not of this step */
    s->replay_to = 0;
    bool ahead = s->hashed_step > r->header.step; /* the next step's first query has come before */
    kept_note(tiers_kept(&in->core->tiers, s->index), r->header.step, r->n_tokens,
              ahead ? s->hash_before : s->hash);
    return 1;
}

/* What the prompt, or a session before, has attended to (h2o). */
static void take_mass(struct intake *in, const struct record_mass *r)
{
    struct sequence *s = &in->core->sequences[r->header.sequence];
    struct layer_state *l = &s->layers[r->header.layer];
    if (!core_runs(s) || s->leaving)
        return;
    if (!s->sums || r->status || r->first != l->weighed ||
        r->n_tokens > s->prompt_tokens - l->weighed || r->n_tokens > l->appended - l->weighed) {
        core_fail(in->core, s, HILL_E_PROTOCOL,
                  "attention of tokens %u..%u of layer %u came after that of %u of the "
                  "prompt's %u (%u were appended)",
                  r->first, r->first + r->n_tokens - 1, r->header.layer, l->weighed,
                  s->prompt_tokens, l->appended);
        return;
    }
    in->evaluator->ops->add_mass(in->evaluator, s, r->header.layer, r->first, r->n_tokens,
                                 (const float *)(const void *)(r + 1));
    l->weighed += r->n_tokens;
}

/* The selection hash of a restored session goes on. */
static void take_resume(struct core *c, const struct record_resume *r)
{
    struct sequence *s = &c->sequences[r->header.sequence];
    if (!core_runs(s) || s->request_id != r->request_id)
        return;
    s->hashed_step = r->header.step;
    if (!hash_state_load(s->hash, &r->selection_hash))
        log_info("request %llu: the session was saved with another version of xxHash: its "
                 "selection_hash begins anew",
                 (unsigned long long)s->identity);
}

/* 1: the record is done, 0: it waits, -1: it moved on and waits. */
static int take_record(struct intake *in, uint32_t type, const void *payload, uint32_t bytes)
{
    if (!in->checked) {
        in->refused = !core_accept(in->core, type, payload, bytes);
        in->checked = true;
    }
    if (in->refused)
        return type == RECORD_SEQ_BEGIN ? requests_refuse_begin(in->requests, payload, bytes) : 1;
    switch (type) {
    case RECORD_SEQ_BEGIN:
        return requests_take_begin(in->requests, payload);
    case RECORD_PROMPT:
        return 1; /* for the recording alone */
    case RECORD_RESUME:
        take_resume(in->core, payload);
        return 1;
    case RECORD_APPEND:
        return take_append(in, payload);
    case RECORD_MASS:
        take_mass(in, payload);
        return 1;
    case RECORD_STEP_END:
        return take_step_end(in, payload);
    case RECORD_SEQ_END:
        return requests_take_end(in->requests, payload);
    default:
        in->core->dropped_records++;
        return 1;
    }
}

int intake_pump(struct intake *in)
{
    struct shm_ring_end *ring = &in->core->io.rings[RING_APPEND];
    int moved = 0;
    for (int i = 0; i < RECORDS_PER_TURN; i++) {
        uint32_t type, bytes;
        const void *payload;
        int rc = shm_ring_peek(ring, &type, &payload, &bytes);
        if (rc == HILL_E_WOULD_BLOCK || rc == HILL_E_PEER_GONE)
            break; /* a new GPU worker comes with a new epoch */
        if (rc)
            return rc;
        rc = take_record(in, type, payload, bytes);
        if (rc != 1)
            return moved || rc < 0;
        in->done = 0;
        in->checked = in->looked = false;
        shm_ring_release(ring);
        core_work_done(in->core);
        moved = 1;
    }
    return moved;
}
