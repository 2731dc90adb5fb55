/* cpu_scorer/key_reader.c - see key_reader.h. */
#include "cpu_scorer/key_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define RANGES_MAX                                                                                 \
    (KV_KEY_WINDOW_BYTES / KV_PAGE_BYTES) /* of a window: each has a page at least \
                                                           */
#define PIECE_SLOTS 64u                   /* of one range: a job's item */

enum window_state { WINDOW_FREE, WINDOW_READING, WINDOW_THERE };

struct key_window {
    enum window_state state;
    uint64_t tag;
    uint32_t drive, n_ranges;
    uint64_t bytes; /* of their pages */
    struct key_range ranges[RANGES_MAX];
};

/* Keys that lie one after the other. */
struct key_piece {
    const void *keys;
    uint32_t slot, n;
};

static struct key_reader *of(struct evaluator *e)
{
    return (struct key_reader *)(void *)e;
}

/* ---- life ----------------------------------------------------------------------------------- */

static uint32_t pieces_max(const struct key_reader *r)
{
    return r->base.core->config.key_window_bytes / (r->key_bytes * PIECE_SLOTS) + RANGES_MAX + 1;
}

static void take_completion(void *context, const void *record)
{
    struct key_reader *r = context;
    const struct record_completion *c = record;
    for (uint32_t i = 0; r->query && i < KV_KEY_WINDOWS; i++) {
        struct key_window *w = &r->windows[i];
        if (w->state != WINDOW_READING || w->tag != c->tag || w->drive != r->base.agent->from)
            continue; /* another window's, or a drive that answers what it was not asked */
        w->state = WINDOW_THERE;
        r->n_open--;
        r->read_ns = clock_now_ns();
        if (!c->status || r->status)
            return;
        r->status = agent_status(c->status);
        core_fail(r->base.core, r->query->sequence, r->status,
                  "reading keys of layer %u from the drive", r->query->header.layer);
        return;
    }
}

int key_reader_create(struct key_reader *r, uint32_t ranges_max, key_evaluate *evaluate,
                      key_scores *scores_of)
{
    const struct core *core = r->base.core;
    r->evaluate = evaluate;
    r->scores_of = scores_of;
    r->ranges_max = ranges_max;
    r->key_bytes = kv_plane_read_bytes(&core->config.geometry, core->config.policy);
    r->together =
        kv_plane_key_bytes(&core->config.geometry, core->config.policy) ? 1 : KV_GROUP_TOKENS;
    r->ranges = calloc(ranges_max, sizeof *r->ranges);
    r->windows = calloc(KV_KEY_WINDOWS, sizeof *r->windows);
    r->pieces = calloc(pieces_max(r), sizeof *r->pieces);
    r->blocks = calloc(core_blocks_max(core), sizeof *r->blocks);
    r->scores = calloc((size_t)core_blocks_max(core) * KV_HOT_BLOCK_TOKENS, sizeof *r->scores);
    agent_on(r->base.agent, RECORD_READ_KEYS, take_completion, r);
    return r->ranges && r->windows && r->pieces && r->blocks && r->scores ? 0 : HILL_E_NOMEM;
}

void key_reader_destroy(struct key_reader *r)
{
    free(r->ranges);
    free(r->windows);
    free(r->pieces);
    free(r->blocks);
    free(r->scores);
}

uint64_t key_reader_bytes(const struct key_reader *r)
{
    return r->ranges_max * sizeof(struct key_range) + KV_KEY_WINDOWS * sizeof(struct key_window) +
           pieces_max(r) * sizeof(struct key_piece) +
           (uint64_t)core_blocks_max(r->base.core) *
               (sizeof(uint32_t) + KV_HOT_BLOCK_TOKENS * sizeof(uint16_t));
}

/* ---- what is to be read --------------------------------------------------------------------- */

static void each_stripe_of(struct key_reader *r, uint32_t drive, key_stripe *stripe)
{
    const struct cold_map *cold = &r->base.core->tiers.cold;
    const struct cold_list *l = &cold->lists[cold_map_part(cold, r->list, drive)];
    uint32_t slots = cold->stripe_slots;
    if (l->committed == 0)
        return;
    for (uint32_t s = l->first; s != COLD_NONE; s = cold->stripes[s].next) {
        stripe(r, s * slots, s == l->current ? l->used : slots);
        if (s == l->current)
            break;
    }
}

void key_reader_each_stripe(struct key_reader *r, key_stripe *stripe)
{
    for (uint32_t d = 0; d < r->base.agent->n_drives; d++)
        each_stripe_of(r, d, stripe);
}

static void add_stripe(struct key_reader *r, uint32_t first_slot, uint32_t n)
{
    const struct cold_map *cold = &r->base.core->tiers.cold;
    while (n && cold_map_position(cold, r->list, (uint64_t)first_slot + n - 1) == COLD_NONE)
        n--;
    if (n)
        r->ranges[r->n_ranges++] = (struct key_range){first_slot, n};
}

void key_reader_list_stripes(struct key_reader *r)
{
    key_reader_each_stripe(r, add_stripe);
}

void key_reader_list_blocks(struct key_reader *r, void (*run)(void *, uint32_t, uint32_t))
{
    const struct core *c = r->base.core;
    const struct query *q = r->query;
    r->hot.run = run;
    r->hot.context = r;
    r->hot.n = hkm_blocks(&c->tiers.hkm, q->sequence->index, q->header.layer, r->blocks,
                          core_blocks_max(c));
    r->hot.bytes = (uint64_t)r->hot.n * KV_HOT_BLOCK_TOKENS * 2 * kv_key_dims(&c->config.geometry);
}

uint64_t key_reader_offset(const struct key_reader *r, uint32_t slot)
{
    return (uint64_t)(slot % r->base.core->tiers.cold.stripe_slots) * r->key_bytes;
}

/* How many of `left` slots from `slot` on fit `room` bytes of whole pages; both are whole groups,
 * where slots are read together, and so is what fits. */
static uint32_t slots_that_fit(const struct key_reader *r, uint32_t slot, uint32_t left,
                               uint64_t room)
{
    uint64_t at = key_reader_offset(r, slot) % KV_PAGE_BYTES;
    uint64_t fit = room > at ? (room / KV_PAGE_BYTES * KV_PAGE_BYTES - at) / r->key_bytes : 0;
    return fit < left ? (uint32_t)(fit - fit % r->together) : left;
}

static uint64_t range_pages(const struct key_reader *r, const struct key_range *range)
{
    return kv_key_pages(key_reader_offset(r, range->first_slot), range->n_slots, r->key_bytes);
}

/* How much of a window is used: half of what is left, within its size. */
static uint64_t window_room(const struct key_reader *r)
{
    uint64_t most = r->base.core->config.key_window_bytes, half = r->bytes_left / 2;
    uint64_t least = (uint64_t)r->together * r->key_bytes + 2 * KV_PAGE_BYTES;
    uint64_t room = half > KV_KEY_LAST_BYTES ? half : KV_KEY_LAST_BYTES;
    room = room > least ? room : least;
    return room < most ? room : most;
}

/* Fill the window's ranges from what is left of its drive; where the reading goes on is in *next.
 * Returns the bytes of their pages. */
static uint64_t fill_window(const struct key_reader *r, struct key_window *w, uint32_t most,
                            struct key_cursor *next)
{
    uint64_t used = 0, room = window_room(r);
    w->n_ranges = 0;
    while (next->range < next->end && w->n_ranges < most) {
        const struct key_range *from = &r->ranges[next->range];
        uint32_t left = from->n_slots - next->slot, first = from->first_slot + next->slot;
        uint32_t n = slots_that_fit(r, first, left, room - used);
        if (n == 0)
            break;
        w->ranges[w->n_ranges] = (struct key_range){first, n};
        used += range_pages(r, &w->ranges[w->n_ranges++]);
        next->slot += n;
        if (n == left) {
            next->range++;
            next->slot = 0;
        }
    }
    return used;
}

/* The drive that has something left and fewest windows on their way; COLD_NONE: all is asked
 * for. */
static uint32_t next_drive(const struct key_reader *r)
{
    uint32_t open[LAYOUT_DRIVES_MAX] = {0}, found = COLD_NONE;
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        open[r->windows[i].drive] += r->windows[i].state == WINDOW_READING;
    for (uint32_t d = 0; d < r->base.agent->n_drives; d++)
        if (r->next[d].range < r->next[d].end && (found == COLD_NONE || open[d] < open[found]))
            found = d;
    return found;
}

/* From next_read on; KV_KEY_WINDOWS: none is free. */
static uint32_t free_window(const struct key_reader *r)
{
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        if (r->windows[(r->next_read + i) % KV_KEY_WINDOWS].state == WINDOW_FREE)
            return (r->next_read + i) % KV_KEY_WINDOWS;
    return KV_KEY_WINDOWS;
}

/* The command for a window that has been filled in: 1, 0: no room now, or an error. */
static int push_window(struct key_reader *r, uint32_t window)
{
    struct key_window *w = &r->windows[window];
    uint32_t bytes =
        (uint32_t)(sizeof(struct record_read_keys) + w->n_ranges * sizeof(struct key_range));
    void *payload;
    int rc = agent_reserve(r->base.agent, w->drive, bytes, &payload);
    if (rc != 1)
        return rc;
    struct record_read_keys *record = payload;
    w->tag = agent_tag(r->base.agent);
    *record = (struct record_read_keys){
        .header = r->query->header, .tag = w->tag, .window = window, .n_ranges = w->n_ranges};
    struct key_range *ranges = (struct key_range *)(record + 1);
    for (uint32_t i = 0; i < w->n_ranges; i++)
        ranges[i] = (struct key_range){agent_slot(r->base.agent, w->ranges[i].first_slot),
                                       w->ranges[i].n_slots};
    agent_publish(r->base.agent, w->drive, RING_COMMAND, RECORD_READ_KEYS, bytes);
    return 1;
}

/* Have the next window filled, when one is free and something is left: 1, 0, or an error. */
static int push_read(struct key_reader *r)
{
    uint32_t window = free_window(r), drive = next_drive(r);
    if (r->status || drive == COLD_NONE || window == KV_KEY_WINDOWS)
        return 0;
    struct key_window *w = &r->windows[window];
    struct key_cursor next = r->next[drive];
    uint32_t most = (shm_ring_payload_max(agent_ring(r->base.agent, drive, RING_COMMAND)) -
                     (uint32_t)sizeof(struct record_read_keys)) /
                    (uint32_t)sizeof(struct key_range);
    w->drive = drive;
    w->bytes = fill_window(r, w, most < RANGES_MAX ? most : RANGES_MAX, &next);
    int rc = push_window(r, window);
    if (rc != 1)
        return rc;
    w->state = WINDOW_READING;
    r->next_read = (window + 1) % KV_KEY_WINDOWS;
    r->next[drive] = next;
    r->bytes_left -= w->bytes < r->bytes_left ? w->bytes : r->bytes_left;
    r->n_open++;
    return 1;
}

/* ---- evaluating ----------------------------------------------------------------------------- */

static void run_pieces(void *context, uint32_t first, uint32_t end)
{
    struct key_reader *r = context;
    uint32_t positions[PIECE_SLOTS];
    for (uint32_t i = first; i < end; i++) {
        const struct key_piece *piece = &r->pieces[i];
        /* COLD_NONE is beyond any query */
        cold_map_positions(&r->base.core->tiers.cold, r->list, piece->slot, piece->n, positions);
        r->evaluate(r, piece->keys, piece->n, piece->slot, positions);
    }
}

/* The window's keys as pieces. */
static void list_pieces(struct key_reader *r, uint32_t window)
{
    const struct key_window *w = &r->windows[window];
    const uint8_t *pages =
        r->base.core->io.key_windows + (uint64_t)window * r->base.core->config.key_window_bytes;
    r->n_pieces = 0;
    for (uint32_t i = 0; i < w->n_ranges; i++) {
        const struct key_range *range = &w->ranges[i];
        const uint8_t *at = pages + key_reader_offset(r, range->first_slot) % KV_PAGE_BYTES;
        for (uint32_t j = 0; j < range->n_slots; j += PIECE_SLOTS) {
            uint32_t left = range->n_slots - j;
            r->pieces[r->n_pieces++] =
                (struct key_piece){at + (uint64_t)j * r->key_bytes, range->first_slot + j,
                                   left < PIECE_SLOTS ? left : PIECE_SLOTS};
        }
        pages += range_pages(r, range);
    }
}

static void start_job(struct key_reader *r, const struct work_job *work, enum key_job job)
{
    r->base.core->scored = r->query;
    score_pool_start_work(r->base.core->pool, work, r->base.core->io.bell);
    r->job = job;
}

/* Of those that have come the one that was asked for first; KV_KEY_WINDOWS: none has. */
static uint32_t first_there(const struct key_reader *r)
{
    uint32_t found = KV_KEY_WINDOWS;
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        if (r->windows[i].state == WINDOW_THERE &&
            (found == KV_KEY_WINDOWS || r->windows[i].tag < r->windows[found].tag))
            found = i;
    return found;
}

static void start_window(struct key_reader *r, uint32_t window)
{
    r->working = window;
    list_pieces(r, window);
    struct work_job work = {
        .run = run_pieces, .context = r, .n = r->n_pieces, .bytes = r->windows[window].bytes};
    start_job(r, &work, KEY_JOB_WINDOW);
}

static void end_job(struct key_reader *r)
{
    if (r->job == KEY_JOB_HOT) {
        r->hot_done = true;
        r->query->sequence->stats.score_hot_ns += score_pool_last_ns(r->base.core->pool);
    } else {
        r->windows[r->working].state = WINDOW_FREE;
    }
    r->job = KEY_JOB_NONE;
    r->base.core->scored = NULL;
}

/* ---- a query -------------------------------------------------------------------------------- */

void key_reader_begin(struct key_reader *r, struct query *q)
{
    r->query = q;
    r->list = tiers_list(&r->base.core->tiers, q->sequence->index, q->header.layer);
    r->n_ranges = r->next_read = 0;
    memset(r->next, 0, sizeof r->next);
    r->status = 0;
    r->job = KEY_JOB_NONE;
    r->worked_ns = score_pool_worked_ns(r->base.core->pool);
    r->read_bytes = score_pool_read_bytes(r->base.core->pool);
    r->hot_done = false;
    r->n_open = 0; /* the query before waited for its own, unless the agent is lost */
    for (uint32_t i = 0; i < KV_KEY_WINDOWS; i++)
        r->windows[i].state = WINDOW_FREE;
}

void key_reader_start(struct key_reader *r)
{
    r->bytes_left = 0;
    for (uint32_t i = 0; i < r->n_ranges; i++) {
        struct key_cursor *next = &r->next[agent_drive(r->base.agent, r->ranges[i].first_slot)];
        next->range = next->end ? next->range : i;
        next->end = i + 1;
        r->bytes_left += range_pages(r, &r->ranges[i]);
    }
    r->began_ns = r->read_ns = clock_now_ns();
    STAGE_BEGIN_AT(score_hot, &r->query->header);
    r->span = stage_span_score_hot;
}

int key_reader_step(struct evaluator *e, struct query *q)
{
    struct key_reader *r = of(e);
    (void)q;
    for (;;) {
        int rc = push_read(r);
        if (rc == 0 && r->status)
            rc = r->status;
        if (rc < 0)
            return rc;
        if (r->job != KEY_JOB_NONE) {
            if (score_pool_work(r->base.core->pool))
                return EVALUATOR_WORKS;
            if (!score_pool_done(r->base.core->pool))
                return EVALUATOR_WAITS; /* the last helper rings */
            end_job(r);
        } else if (!r->hot_done) {
            start_job(r, &r->hot, KEY_JOB_HOT);
        } else if (first_there(r) < KV_KEY_WINDOWS) {
            start_window(r, first_there(r));
        } else if (rc == 0) {
            return r->n_open == 0 && next_drive(r) == COLD_NONE ? EVALUATOR_DONE : EVALUATOR_WAITS;
        }
    }
}

/* After the end: nobody reads the tables, and what the stages took is counted. */
static void close_query(struct key_reader *r)
{
    const struct stage_span stage_span_score_hot = r->span;
    const struct query *q = r->query;
    score_pool_wait(r->base.core->pool);
    r->base.core->scored = NULL;
    STAGE_END(score_hot, (uint64_t)q->n_tokens * r->key_bytes);
    q->sequence->stats.score_cold_ns += r->read_ns - r->began_ns;
    r->query = NULL;
}

int key_reader_settle(struct evaluator *e, struct query *q)
{
    struct key_reader *r = of(e);
    (void)q;
    if (!r->query)
        return EVALUATOR_DONE;
    score_pool_wait(r->base.core->pool);
    if (r->n_open && !r->base.agent->status)
        return EVALUATOR_WAITS;
    close_query(r);
    return EVALUATOR_DONE;
}

int key_reader_finish(struct evaluator *e, struct query *q)
{
    struct key_reader *r = of(e);
    uint32_t count = 0, wanted = q->n_tokens;
    close_query(r);
    int64_t start = clock_now_ns();
    STAGE_BEGIN_AT(merge, &q->header);
    int rc = r->scores_of(r, q, &count, &wanted);
    if (rc)
        core_fail(r->base.core, q->sequence, rc, "%u of %u keys of layer %u were evaluated", count,
                  wanted, q->header.layer);
    else
        rc = kv_selector_add_run(q->selector, 0, r->scores, q->n_tokens);
    STAGE_END(merge, (uint64_t)q->n_tokens * sizeof(uint16_t));
    q->sequence->stats.merge_ns += clock_now_ns() - start;
    q->sequence->stats.score_cpu_ns += score_pool_worked_ns(r->base.core->pool) - r->worked_ns;
    q->sequence->stats.scored_bytes += score_pool_read_bytes(r->base.core->pool) - r->read_bytes;
    return rc;
}
