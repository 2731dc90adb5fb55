/*
 * placement/placement_bkp.c - bidirectional KV pools (paper, 4.2), with what keeps tokens from
 * bouncing.
 *
 * (1) Temporal-aware pinning: the newest `pin` of the tokens, at most a sixteenth of the capacity,
 * stay hot, and so do the forced ones. (2) Hit-rate table: a u16 per token (2N bytes). A selection
 * adds `weight`; instead of every count decaying at each step, the weight grows by a factor of
 * 2^(1/half_life) and once it has doubled, it and all counts are halved. So counts are
 * exponentially aged at O(1) a step, amortised, and an old favourite loses. A count cannot
 * overflow: it saturates. (3) Promotion and demotion: a selected cold token comes up when its count
 * exceeds the rank of the lowest-ranked token in play by `margin` selections of today and it has
 * rested since its last move; the highest counts first, `rate` at most; the lowest-ranked goes down
 * for it, unless it is resting or among the top alpha fraction by rank. A token's rank is its
 * count, and of one that has no copy below `write_cost` selections more: its going down would be
 * written. Lowest-ranked tokens come from
 * a queue that one pass over the table fills with the lowest N / QUEUE_SHARE; it is filled again
 * when it is used up or QUEUE_STEPS old, at most once a step. What was selected meanwhile is passed
 * over. Cost of a step: O(selected + moves) and two passes over 3N bytes every QUEUE_STEPS, one
 * over 2N bytes every half-life. Without a rate in the settings it is N / RATE_SHARE, at least
 * RATE_LEAST.
 */
#include "placement/placement_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_SHARE 16u
#define QUEUE_LEAST 32u
#define QUEUE_STEPS 16u
#define RATE_LEAST  16u
#define RATE_SHARE  64u
#define PIN_SHARE   16u
#define BUCKETS     1024u /* of a count's upper 10 bits */
#define SHIFT       6

struct own {
    uint16_t *counts; /* [max_tokens]: the hit-rate table */
    double growth;    /* of the weight per step */
    double weight;    /* what a selection adds; base .. 2 * base */
    double base;
    uint32_t *queue;       /* [queue_room]: tokens in play, lowest rank first */
    uint16_t *queue_ranks; /* [queue_room]: their ranks at that time */
    uint32_t queue_room, queue_count, queue_next;
    uint32_t queue_step;     /* when it was filled */
    uint32_t write;          /* what a write adds to a rank, since then */
    uint16_t protected_from; /* ranks from here on are of the top alpha fraction */
    uint32_t *best;          /* [best_room]: the step's candidates, a heap, lowest count first */
    uint32_t best_room;
    uint32_t histogram[BUCKETS + 1]; /* of tokens in play by bucket; the last: the others */
};

static uint32_t queue_room(const struct placement_settings *s)
{
    return s->max_tokens / QUEUE_SHARE + QUEUE_LEAST;
}

static uint32_t rate_of(const struct placement_settings *s, uint32_t n_tokens)
{
    uint32_t share = n_tokens / RATE_SHARE;
    return s->rate ? s->rate : share > RATE_LEAST ? share : RATE_LEAST;
}

static uint32_t best_room(const struct placement_settings *s)
{
    uint32_t rate = rate_of(s, s->max_tokens);
    return rate < s->max_tokens ? rate : s->max_tokens;
}

static uint64_t own_bytes(const struct placement_settings *s)
{
    return sizeof(struct own) + (uint64_t)s->max_tokens * sizeof(uint16_t) +
           (uint64_t)queue_room(s) * (sizeof(uint32_t) + sizeof(uint16_t)) +
           (uint64_t)best_room(s) * sizeof(uint32_t);
}

static int create(struct placement *p)
{
    const struct placement_settings *s = &p->settings;
    struct own *own = p->own;
    void *rest = own + 1;
    own->queue_room = queue_room(s);
    own->best_room = best_room(s);
    own->queue = placement_table(&rest, own->queue_room, sizeof *own->queue);
    own->best = placement_table(&rest, own->best_room, sizeof *own->best);
    own->queue_ranks = placement_table(&rest, own->queue_room, sizeof *own->queue_ranks);
    own->counts = placement_table(&rest, s->max_tokens, sizeof *own->counts);
    own->growth = exp2(1.0 / s->half_life);
    /* a token that is selected at every step sums up to 2 * base * half_life / ln 2 and a bit */
    own->base = floor(UINT16_MAX / (2 * (s->half_life / M_LN2 + 1)));
    own->weight = own->base;
    return 0;
}

/* ---- counts ------------------------------------------------------------------------------- */

static void age(struct placement *p)
{
    struct own *own = p->own;
    own->weight *= own->growth;
    if (own->weight < 2 * own->base)
        return;
    own->weight /= 2;
    for (uint32_t i = 0; i < p->n_tokens; i++)
        own->counts[i] = (uint16_t)(own->counts[i] >> 1);
    for (uint32_t i = 0; i < own->queue_count; i++)
        own->queue_ranks[i] = (uint16_t)(own->queue_ranks[i] >> 1);
    own->protected_from = (uint16_t)(own->protected_from >> 1);
    own->write >>= 1;
}

static void watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    struct own *own = p->own;
    age(p);
    uint32_t weight = (uint32_t)own->weight;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = own->counts[selected[i]] + weight;
        own->counts[selected[i]] = (uint16_t)(count < UINT16_MAX ? count : UINT16_MAX);
    }
}

/* ---- the lowest-ranked tokens ------------------------------------------------------------- */

/* Positions from here on are pinned; at most a sixteenth of the capacity (README.md says why), and
 * never more than fits beside the sinks. */
static uint32_t pinned_from(const struct placement *p)
{
    uint32_t pin = (uint32_t)ceil(p->settings.pin * p->n_tokens), from;
    if (pin > p->capacity / PIN_SHARE)
        pin = p->capacity / PIN_SHARE;
    if (p->settings.sinks < p->capacity && pin > p->capacity - p->settings.sinks)
        pin = p->capacity - p->settings.sinks;
    from = p->n_tokens - (pin < p->n_tokens ? pin : p->n_tokens);
    return from < p->forced_from ? from : p->forced_from;
}

static bool is_resting(const struct placement *p, uint32_t position)
{
    return p->moved[position] && p->step - p->moved[position] < p->settings.rest_steps;
}

/* What keeps a token hot: of one without a copy the write, too. */
static uint16_t rank_of(const struct placement *p, uint32_t position)
{
    const struct own *own = p->own;
    const uint32_t *copies = p->settings.copies;
    bool written = !copies || copies[position] >= PLACEMENT_LOST;
    uint32_t rank = own->counts[position] + (written ? own->write : 0);
    return (uint16_t)(rank < UINT16_MAX ? rank : UINT16_MAX);
}

/* The rank from which on at most `tokens` of those in play and not pinned are. */
static uint16_t count_of_top(const struct own *own, uint32_t tokens)
{
    uint32_t bucket = BUCKETS, above = 0;
    while (bucket > 1 && above + own->histogram[bucket - 1] <= tokens)
        above += own->histogram[--bucket];
    return (uint16_t)(bucket < BUCKETS ? bucket << SHIFT : UINT16_MAX);
}

static int by_count(const void *a, const void *b, void *context)
{
    const uint16_t *counts = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (counts[x] != counts[y])
        return counts[x] < counts[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int by_rank(const void *a, const void *b, void *context)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint16_t of_x = rank_of(context, x), of_y = rank_of(context, y);
    return of_x != of_y ? (of_x < of_y ? -1 : 1) : x < y ? -1 : x > y;
}

static void fill_queue(struct placement *p)
{
    struct own *own = p->own;
    uint32_t to = pinned_from(p), n = 0, taken = 0, bucket = 0;
    memset(own->histogram, 0, sizeof own->histogram);
    own->write = (uint32_t)(p->settings.write_cost * own->weight);
    for (uint32_t i = p->settings.sinks; i < to; i++)
        /* no branch: a coin toss per token would cost more than the pass */
        own->histogram[p->hot[i] ? rank_of(p, i) >> SHIFT : BUCKETS]++;
    n = (to > p->settings.sinks ? to - p->settings.sinks : 0) - own->histogram[BUCKETS];
    double alpha = ceil(p->settings.alpha * p->n_tokens);
    own->protected_from = count_of_top(own, alpha < n / 2 ? (uint32_t)alpha : n / 2);
    while (bucket < BUCKETS && taken + own->histogram[bucket] <= own->queue_room)
        taken += own->histogram[bucket++];
    /* of the bucket that does not fit as a whole, the oldest tokens */
    uint32_t rest = own->queue_room - taken;
    own->queue_count = own->queue_next = 0;
    for (uint32_t i = p->settings.sinks; i < to && own->queue_count < own->queue_room; i++) {
        uint32_t b = rank_of(p, i) >> SHIFT;
        if (!p->hot[i] || b > bucket || (b == bucket && rest == 0))
            continue;
        rest -= b == bucket;
        own->queue[own->queue_count++] = i;
    }
    qsort_r(own->queue, own->queue_count, sizeof *own->queue, by_rank, p);
    for (uint32_t i = 0; i < own->queue_count; i++)
        own->queue_ranks[i] = rank_of(p, own->queue[i]);
    own->queue_step = p->step;
}

/* The next of the queue that can go down, left there; PLACEMENT_NONE: used up. for_room: a new
 * token needs its place, so rest and protection do not count. */
static uint32_t queue_head(struct placement *p, uint32_t pinned, bool for_room)
{
    struct own *own = p->own;
    for (; own->queue_next < own->queue_count; own->queue_next++) {
        uint32_t head = own->queue[own->queue_next], rank = rank_of(p, head);
        if (head >= pinned || placement_is_forced(p, head) || !p->hot[head] ||
            rank > own->queue_ranks[own->queue_next])
            continue; /* pinned, gone, selected since, or without its copy: not of the lowest */
        if (for_room || (!is_resting(p, head) && rank < own->protected_from))
            return head;
    }
    return PLACEMENT_NONE;
}

static uint32_t lowest(struct placement *p, bool for_room, bool *filled)
{
    struct own *own = p->own;
    uint32_t pinned = pinned_from(p);
    bool stale = p->step - own->queue_step > QUEUE_STEPS;
    uint32_t head = stale ? PLACEMENT_NONE : queue_head(p, pinned, for_room);
    if (head == PLACEMENT_NONE && !*filled) {
        fill_queue(p);
        *filled = true;
        head = queue_head(p, pinned, for_room);
    }
    return head;
}

static uint32_t victim(struct placement *p)
{
    bool filled = false;
    return lowest(p, true, &filled);
}

/* ---- the step ----------------------------------------------------------------------------- */

static void sink_best(struct own *own, uint32_t count)
{
    uint32_t index = 0, moving = own->best[0];
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= count)
            break;
        if (child + 1 < count &&
            by_count(&own->best[child + 1], &own->best[child], own->counts) < 0)
            child++;
        if (by_count(&own->best[child], &moving, own->counts) >= 0)
            break;
        own->best[index] = own->best[child];
        index = child;
    }
    own->best[index] = moving;
}

/* The `limit` cold tokens with the highest counts above `threshold`, into own->best, highest
 * first (newest first among equals). */
static uint32_t find_candidates(struct placement *p, const uint32_t *selected, uint32_t n,
                                uint32_t threshold, uint32_t limit)
{
    struct own *own = p->own;
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = selected[i];
        if (p->hot[position] || placement_is_forced(p, position) ||
            own->counts[position] <= threshold || is_resting(p, position))
            continue;
        if (count < limit) {
            own->best[count++] = position;
            if (count == limit) /* ascending is a heap */
                qsort_r(own->best, count, sizeof *own->best, by_count, own->counts);
        } else if (by_count(&position, &own->best[0], own->counts) > 0) {
            own->best[0] = position;
            sink_best(own, count);
        }
    }
    qsort_r(own->best, count, sizeof *own->best, by_count, own->counts);
    for (uint32_t i = 0; i < count / 2; i++) {
        uint32_t other = own->best[i];
        own->best[i] = own->best[count - 1 - i];
        own->best[count - 1 - i] = other;
    }
    return count;
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    struct own *own = p->own;
    bool filled = false;
    uint32_t margin = (uint32_t)(p->settings.margin * own->weight);
    uint32_t down = p->n_hot < p->capacity ? PLACEMENT_NONE : lowest(p, false, &filled);
    (void)scores;
    if (p->n_hot >= p->capacity && down == PLACEMENT_NONE)
        return 0; /* nothing may go down */
    uint32_t threshold = down == PLACEMENT_NONE ? 0 : rank_of(p, down) + margin;
    uint32_t limit = rate_of(&p->settings, p->n_tokens);
    limit = rate < limit ? rate : limit;
    limit = limit < own->best_room ? limit : own->best_room;
    uint32_t count = find_candidates(p, selected, n, threshold, limit);
    for (uint32_t i = 0; i < count; i++) {
        int rc = 0;
        if (p->n_hot >= p->capacity) {
            down = lowest(p, false, &filled);
            if (down == PLACEMENT_NONE || own->counts[own->best[i]] <= rank_of(p, down) + margin)
                break;
            rc = placement_demote(p, down);
        }
        if (rc == 0)
            rc = placement_promote(p, own->best[i]);
        if (rc)
            return rc;
    }
    return 0;
}

static void trimmed(struct placement *p)
{
    struct own *own = p->own;
    memset(own->counts + p->n_tokens, 0,
           (p->settings.max_tokens - p->n_tokens) * sizeof *own->counts);
    own->queue_count = own->queue_next = 0; /* it may name tokens that are gone */
}

const struct placement_ops placement_bkp_ops = {.name = "bkp",
                                                .bytes = own_bytes,
                                                .create = create,
                                                .trimmed = trimmed,
                                                .watch = watch,
                                                .step = step,
                                                .victim = victim};
