/* tools/replay/replay_agent.c - the agent alone, see replay.h. */
#include "tools/replay/replay.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/cldevice.h"
#include "base/clock.h"
#include "csd_agent/agent.h"
#include "kv/plane.h"
#include "proto/records.h"

/* An answer as it was recorded. */
struct recorded {
    struct recording_event event, window; /* window: kind 0, or what it had put there */
    uint64_t tag;
    uint32_t command;
    bool came; /* of a completion: the replay's */
};

struct replay {
    struct recording_file *file;
    struct data_plane plane;
    struct party scorer, agent;            /* both, over memory of this process alone */
    struct recorded *completions, *blocks; /* completions sorted by command and tag */
    uint64_t n_completions, n_blocks, next_block;
    uint64_t in, out;
    int64_t busy_ns;
    XXH64_state_t *hash;
    const struct recording_event *current; /* the command under way */
    int status;
    struct hill_why *why;
};

/* ---- what was answered then --------------------------------------------------------------- */

static int by_tag(const void *a, const void *b)
{
    const struct recorded *x = a, *y = b;
    if (x->command != y->command)
        return x->command < y->command ? -1 : 1;
    return (x->tag > y->tag) - (x->tag < y->tag);
}

static int list_answers(struct replay *r)
{
    struct recording_event event, window = {0};
    r->completions = calloc(r->file->frames + 1, sizeof *r->completions);
    r->blocks = calloc(r->file->frames + 1, sizeof *r->blocks);
    if (!r->completions || !r->blocks)
        return HILL_E_NOMEM;
    while (recording_next(r->file, &event)) {
        if (event.kind == RECORDING_WINDOW)
            window = event; /* its completion is the next event */
        if (event.kind != RECORDING_IN)
            continue;
        if (event.ring == RING_SCORE && event.type == RECORD_SCORE_BLOCK) {
            r->blocks[r->n_blocks++].event = event;
        } else if (event.ring == RING_COMPLETION && event.type == RECORD_COMPLETION) {
            struct record_completion c;
            memcpy(&c, event.payload, sizeof c);
            r->completions[r->n_completions++] =
                (struct recorded){event, window, c.tag, c.command, false};
            window.kind = 0;
        }
    }
    qsort(r->completions, r->n_completions, sizeof *r->completions, by_tag);
    recording_rewind(r->file);
    return 0;
}

static void differs(struct replay *r, const char *what)
{
    if (r->status)
        return;
    r->status = hill_fail(r->why, HILL_E_DAMAGED,
                          "the replay differs from the recording: %s of the %s at event %" PRIu64,
                          what, record_name(r->current->type), r->current->number);
}

/* Blocks come in the order of the queries, as then. What the scorer had not read when the recording
 * ended has nothing to be compared with. */
static void compare_block(struct replay *r, const void *payload, uint32_t bytes)
{
    if (r->next_block == r->n_blocks)
        return;
    const struct recording_event *then = &r->blocks[r->next_block++].event;
    if (then->bytes != bytes || memcmp(then->payload, payload, bytes) != 0)
        differs(r, "a Score Block");
}

static struct recorded *find_completion(const struct replay *r, uint32_t command, uint64_t tag)
{
    struct recorded key = {.tag = tag, .command = command};
    return bsearch(&key, r->completions, r->n_completions, sizeof key, by_tag);
}

static void compare_completion(struct replay *r, const struct record_completion *now)
{
    struct recorded *found = find_completion(r, now->command, now->tag);
    struct record_completion then;
    if (!found)
        return; /* it was not read before the recording ended */
    found->came = true;
    memcpy(&then, found->event.payload, sizeof then);
    /* a query may overtake a demote: how many pages it then reads is not always the same */
    then.flash_read_bytes = now->flash_read_bytes;
    then.flash_write_bytes = now->flash_write_bytes;
    then.busy_ns = now->busy_ns;
    if (now->status == 0)
        then.detail = now->detail; /* was it read ahead? */
    if (memcmp(&then, now, sizeof then) != 0)
        differs(r, "the completion");
}

static void take_output(struct replay *r, struct shm_ring_end *end)
{
    uint32_t type, bytes;
    const void *payload;
    while (shm_ring_peek(end, &type, &payload, &bytes) == 0) {
        struct record_completion completion;
        if (type == RECORD_COMPLETION && bytes == sizeof completion) {
            memcpy(&completion, payload, sizeof completion);
            r->busy_ns += (int64_t)completion.busy_ns;
            completion.busy_ns = 0;
            if (completion.status == 0)
                completion.detail = 0;
            compare_completion(r, &completion);
            XXH64_update(r->hash, &completion, sizeof completion);
        } else {
            compare_block(r, payload, bytes);
            XXH64_update(r->hash, payload, bytes);
        }
        r->out++;
        shm_ring_release(end);
    }
}

/* Asked while the agent waits for room in its output: here is some. */
static bool make_room(void *context)
{
    struct replay *r = context;
    take_output(r, &r->scorer.ends[RING_SCORE]);
    take_output(r, &r->scorer.ends[RING_COMPLETION]);
    return r->status != 0;
}

/* ---- commands ----------------------------------------------------------------------------- */

/* The scorer took these slots; a wrong slot is left to the agent to refuse. */
static void stage_slots(struct replay *r, const struct recording_event *e)
{
    const struct record_fetch *fetch = (const void *)e->payload;
    const struct fetch_item *items = (const struct fetch_item *)(fetch + 1);
    for (uint32_t i = 0; i < fetch->n_entries; i++)
        if (items[i].staging_slot < r->plane.staging->slot_count)
            /* relaxed: this thread is the only one */
            atomic_store_explicit(&r->plane.staging->generations[items[i].staging_slot],
                                  items[i].generation, memory_order_relaxed);
}

static void hash_fetched(struct replay *r, const struct recording_event *e)
{
    const struct record_fetch *fetch = (const void *)e->payload;
    const struct fetch_item *items = (const struct fetch_item *)(fetch + 1);
    for (uint32_t i = 0; i < fetch->n_entries; i++)
        if (items[i].staging_slot < r->plane.staging->slot_count)
            XXH64_update(r->hash, shm_arena_slot(r->plane.staging, items[i].staging_slot),
                         kv_entry_bytes(&r->plane.geometry));
}

/* A key, or the digest of a token of these groups; false: they differ. */
static bool take_item(struct replay *r, const uint8_t *now, const uint8_t *then, uint32_t item)
{
    const struct pool_layout *l = cold_pool_layout(r->plane.pool);
    const struct kv_geometry *g = &l->geometry;
    uint64_t at = (uint64_t)item * l->key_bytes;
    bool same = !l->key_bytes || memcmp(now + at, then + at, l->key_bytes) == 0;
    XXH64_update(r->hash, now + at, l->key_bytes);
    for (uint32_t h = 0; !l->key_bytes && h < g->n_kv_heads; h++) {
        int8_t mine[KV_MAX_HEAD_DIM], its[KV_MAX_HEAD_DIM];
        uint8_t exponent = kv_digest_get_head(g, now, item, h, mine);
        same &= kv_digest_get_head(g, then, item, h, its) == exponent &&
                memcmp(mine, its, g->head_dim) == 0;
        XXH64_update(r->hash, &exponent, 1);
        XXH64_update(r->hash, mine, g->head_dim);
    }
    return same;
}

/* The keys or digests of committed slots in the pages of a range, which are in `now`, and were in
 * `then`: what else lies in the pages depends on what overtook what. */
static void compare_range(struct replay *r, const struct key_range *range, const uint8_t *now,
                          const uint8_t *then)
{
    const struct pool_layout *l = cold_pool_layout(r->plane.pool);
    uint64_t at = pool_read_at(l, range->first_slot) % KV_PAGE_BYTES;
    for (uint32_t i = 0; i < range->n_slots; i++)
        if (cold_pool_position(r->plane.pool, range->first_slot + i) != COLD_NO_POSITION &&
            !take_item(r, now + at, then + at, i))
            differs(r, l->key_bytes ? "a key" : "a digest");
}

static void compare_keys(struct replay *r, const struct recording_event *e)
{
    const struct record_read_keys *read = (const void *)e->payload;
    const struct key_range *ranges = (const struct key_range *)(read + 1);
    const struct pool_layout *l = cold_pool_layout(r->plane.pool);
    const struct recorded *found = find_completion(r, RECORD_READ_KEYS, read->tag);
    struct record_completion completion = {.status = -1};
    if (found)
        memcpy(&completion, found->event.payload, sizeof completion);
    if (completion.status)
        return; /* nothing was read then, or the recording ended before: there may be nothing */
    uint64_t used = 0, window = read->window;
    for (uint32_t i = 0; i < read->n_ranges && r->status == 0; i++) {
        uint64_t bytes = kv_key_pages(pool_read_at(l, ranges[i].first_slot), ranges[i].n_slots,
                                      pool_read_bytes(l));
        bool there = found->window.kind && found->window.type == window &&
                     used + bytes <= found->window.bytes;
        if (!there)
            differs(r, "the length of a window");
        else
            compare_range(r, &ranges[i],
                          r->plane.key_windows + window * r->plane.key_window_bytes + used,
                          found->window.payload + used);
        used += bytes;
    }
}

static int carry_out(struct replay *r, const struct recording_event *e)
{
    struct shm_ring_end *end = &r->scorer.ends[e->ring];
    int rc = 1;
    r->current = e;
    if (e->type == RECORD_FETCH)
        stage_slots(r, e);
    if (shm_ring_push(end, e->type, e->payload, e->bytes))
        return hill_fail(r->why, HILL_E_DAMAGED, "event %" PRIu64 " does not fit its ring",
                         e->number);
    while (rc == 1 && r->status == 0) {
        rc = data_plane_turn(&r->plane);
        make_room(r);
    }
    if (r->status == 0 && rc < 0)
        return hill_fail(r->why, rc, "the agent gave the rings up at event %" PRIu64 ": %s",
                         e->number, hill_strerror(rc));
    if (e->type == RECORD_FETCH)
        hash_fetched(r, e);
    if (e->type == RECORD_READ_KEYS && r->status == 0)
        compare_keys(r, e);
    r->in++;
    return r->status;
}

static int run(struct replay *r)
{
    struct recording_event event;
    int rc = 0;
    while (rc == 0 && recording_next(r->file, &event))
        if (event.kind == RECORDING_OUT &&
            (event.ring == RING_COMMAND || event.ring == RING_BACKGROUND))
            rc = carry_out(r, &event);
    if (rc)
        return rc;
    if (r->next_block != r->n_blocks)
        return hill_fail(r->why, HILL_E_DAMAGED,
                         "the replay differs from the recording: %" PRIu64 " of %" PRIu64
                         " Score Blocks came",
                         r->next_block, r->n_blocks);
    for (uint64_t i = 0; i < r->n_completions; i++)
        if (!r->completions[i].came)
            return hill_fail(r->why, HILL_E_DAMAGED,
                             "the replay differs from the recording: no completion of the %s with "
                             "tag %" PRIu64 " came",
                             record_name(r->completions[i].command), r->completions[i].tag);
    return 0;
}

/* ---- life --------------------------------------------------------------------------------- */

static int open_plane(struct replay *r, const char *url)
{
    struct epoch_settings s = r->file->settings;
    if (!s.csd_attached || !s.cold_cap_bytes)
        return hill_fail(r->why, HILL_E_INVALID, "no drive was attached when this was recorded");
    s.hot_bytes = 0; /* the agent has no part in it */
    cldevice_set_threads(s.threads);
    int rc = agent_open_pool(&r->plane, &s, url, r->why);
    if (rc == 0)
        rc = party_attach_alone(&r->scorer, &s, r->why);
    if (rc == 0)
        rc = party_open(&r->scorer, NULL, r->why);
    if (rc == 0)
        rc = party_beside(&r->agent, PARTY_AGENT, &r->scorer, r->why);
    if (rc)
        return rc;
    agent_join(&r->plane, &r->agent, s.epoch);
    r->plane.wrong_position = COLD_NO_POSITION;
    r->plane.stopping = make_room;
    r->plane.stopping_context = r;
    rc = list_answers(r);
    return rc ? hill_fail(r->why, rc, "out of memory for the recording's answers") : 0;
}

static void finish(struct replay *r)
{
    data_plane_close(&r->plane);
    cold_pool_close(r->plane.pool);
    party_leave(&r->agent);
    party_leave(&r->scorer);
    free(r->completions);
    free(r->blocks);
    XXH64_freeState(r->hash);
}

int replay_csd_agent(struct recording_file *file, const char *url, struct replay_result *result,
                     struct hill_why *why)
{
    struct replay r = {.file = file, .hash = XXH64_createState(), .why = why};
    int rc = r.hash ? 0 : hill_fail(why, HILL_E_NOMEM, "out of memory");
    if (rc == 0) {
        XXH64_reset(r.hash, 0);
        rc = open_plane(&r, url);
    }
    int64_t start = clock_now_ns();
    if (rc == 0)
        rc = run(&r);
    if (rc == 0)
        *result = (struct replay_result){r.in, r.out, XXH64_digest(r.hash), clock_now_ns() - start,
                                         r.busy_ns};
    finish(&r);
    return rc;
}
