/* cpu_scorer/hot_share.c - see hot_share.h. */
#include "cpu_scorer/hot_share.h"

#include <math.h>
#include <string.h>

#include "kv/plan.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t hot_share_target(const struct hot_share *p, uint32_t n)
{
    if (!(p->beta > 0))
        return smaller(p->limit, n);
    double share = ceil((double)n * (p->beta / (1 + p->beta)));
    uint32_t forced = (uint32_t)fmin((double)p->sinks + p->window, n);
    uint32_t hot = share < n ? (uint32_t)share : n;
    return smaller(p->limit, hot > forced ? hot : forced);
}

void hot_share_cold_range(const struct hot_share *p, uint32_t prompt, uint32_t *from, uint32_t *to)
{
    uint32_t hot = hot_share_target(p, prompt);
    uint32_t sinks = smaller(p->sinks, hot);
    *from = sinks;
    *to = prompt - (hot - sinks);
}

/* What one sequence may take of each layer's share. */
struct allowance {
    uint32_t blocks, stripes[LAYOUT_DRIVES_MAX];
};

static int plan_hot_alone(struct hot_share *p, uint32_t blocks_allowed, uint32_t max_tokens,
                          uint32_t *blocks, struct hill_why *why)
{
    *blocks = kv_hot_blocks(max_tokens);
    p->limit = max_tokens;
    if (*blocks > blocks_allowed)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "cannot take a request of %u tokens without a CSD: %u hot blocks per "
                         "layer needed, there are %u; raise --hot-mb or attach a CSD",
                         max_tokens, *blocks, blocks_allowed);
    return 0;
}

/* Of max_tokens tokens, of which `hot` are hot: how many the host is to score (hot_share.h). */
static double scored_tokens(const struct hot_share *p, uint32_t max_tokens, uint32_t hot)
{
    double most_hot = p->beta / (1 + p->beta), h = fmin((double)hot / max_tokens, most_hot);
    double falls = p->adapts && p->copies ? 0 : fmax(p->scores - most_hot, 0); /* beta may rise */
    double s = fmax(p->scores, most_hot) - falls * h / most_hot;
    return p->beta > 0 ? fmin(s, 1) * max_tokens : max_tokens;
}

/* Of `blocks` that hold entries, one of them for those that wait for their way down: how many
 * others are lent. Each drive may have a block of cold slots that is not full. */
static uint32_t lent_beside(const struct hot_share *p, const struct hot_share_room *room,
                            uint32_t max_tokens, uint32_t blocks)
{
    uint32_t hot = (blocks - 1) * KV_HOT_BLOCK_TOKENS;
    double by_digest = fmax(scored_tokens(p, max_tokens, hot) - hot, 0);
    double frames = ceil(by_digest / KV_HOT_BLOCK_TOKENS) + room->n_drives;
    return (uint32_t)ceil(frames * room->lent_blocks / room->lent_frames);
}

/* M_0 allows fewer blocks than are wanted for entries: how many are for entries, no fewer than
 * `least`, if the others hold digests. */
static uint32_t plan_lent(struct hot_share *p, const struct hot_share_room *room, uint32_t allowed,
                          uint32_t max_tokens, uint32_t least)
{
    uint32_t hot = allowed;
    while (hot > least && lent_beside(p, room, max_tokens, hot) > allowed - hot)
        hot--;
    p->lent = smaller(lent_beside(p, room, max_tokens, hot), allowed - hot);
    return hot;
}

/* One block above the target lets entries wait for their way down while new ones come. */
static int plan_hot_of_two(struct hot_share *p, const struct hot_share_room *room,
                           uint32_t blocks_allowed, uint32_t max_tokens, uint32_t *blocks,
                           struct hill_why *why)
{
    uint32_t forced = (uint32_t)fmin((double)p->sinks + p->window, max_tokens);
    uint32_t all = kv_hot_blocks(max_tokens), least = smaller(kv_hot_blocks(forced) + 1, all);
    if (blocks_allowed < least)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "cannot take the request: its sinks and window need %u hot blocks per "
                         "layer, there are %u; raise --hot-mb",
                         least, blocks_allowed);
    p->limit = max_tokens;
    uint32_t want = smaller(kv_hot_blocks(hot_share_target(p, max_tokens)) + 1, all);
    if (p->adapts && p->copies)
        want = all;
    *blocks = want > blocks_allowed && room->lent_frames && p->scores > 0
                  ? plan_lent(p, room, blocks_allowed, max_tokens, least)
                  : smaller(want, blocks_allowed);
    p->limit = *blocks == all ? max_tokens : (*blocks - 1) * KV_HOT_BLOCK_TOKENS;
    return 0;
}

static uint32_t stripes_for(const struct hot_share_room *room, double tokens)
{
    return (uint32_t)ceil(tokens / room->stripe_slots);
}

static uint32_t sum_of(const struct hot_share_room *room, const uint32_t *stripes)
{
    uint32_t sum = 0;
    for (uint32_t d = 0; d < room->n_drives; d++)
        sum += stripes[d];
    return sum;
}

/* The drive with the largest share of those that have more; n_drives: none. */
static uint32_t next_drive(const struct hot_share_room *room, const uint32_t *most,
                           const uint32_t *stripes)
{
    uint32_t found = room->n_drives;
    for (uint32_t d = 0; d < room->n_drives; d++)
        if (stripes[d] < most[d] &&
            (found == room->n_drives || room->drives[d].share > room->drives[found].share))
            found = d;
    return found;
}

bool hot_share_stripes(const struct hot_share_room *room, const uint32_t most[LAYOUT_DRIVES_MAX],
                       uint32_t cold, uint32_t stripes[LAYOUT_DRIVES_MAX])
{
    uint32_t wanted = stripes_for(room, cold), next;
    for (uint32_t d = 0; d < room->n_drives; d++)
        stripes[d] = smaller(stripes_for(room, cold * room->drives[d].share), most[d]);
    while (sum_of(room, stripes) < wanted) {
        if ((next = next_drive(room, most, stripes)) == room->n_drives)
            return false;
        stripes[next]++;
    }
    return true;
}

/* Within an allowance, with copies or without. */
static int plan_within(struct hot_share *p, const struct hot_share_room *room,
                       struct allowance allowed, bool copies, uint32_t max_tokens, uint32_t *blocks,
                       uint32_t *stripes, struct hill_why *why)
{
    memset(stripes, 0, LAYOUT_DRIVES_MAX * sizeof *stripes);
    p->copies = copies;
    p->lent = 0;
    if (!room->cold_pool)
        return plan_hot_alone(p, allowed.blocks, max_tokens, blocks, why);
    int rc = plan_hot_of_two(p, room, allowed.blocks, max_tokens, blocks, why);
    if (rc)
        return rc;
    p->all = *blocks + p->lent;
    uint32_t cold = copies ? max_tokens : max_tokens - hot_share_target(p, max_tokens);
    if (!hot_share_stripes(room, allowed.stripes, cold, stripes))
        return hill_fail(why, HILL_E_TOO_LONG,
                         "cannot take a request of %u tokens: %u cold tokens per layer need %u "
                         "stripes, there are %u; raise --cold-mb",
                         max_tokens, cold, stripes_for(room, cold), sum_of(room, allowed.stripes));
    return 0;
}

static void add_stripes(const struct hot_share_room *room, struct allowance *out, bool free_ones,
                        uint32_t parts)
{
    for (uint32_t d = 0; d < room->n_drives; d++)
        out->stripes[d] =
            (free_ones ? room->drives[d].free_stripes : room->drives[d].stripes) / parts;
}

int hot_share_plan(struct hot_share *p, const struct hot_share_room *room, uint32_t max_tokens,
                   uint32_t *blocks_per_layer, uint32_t stripes_per_layer[LAYOUT_DRIVES_MAX],
                   struct hill_why *why)
{
    uint32_t layers = room->n_layers, each = layers * room->n_sequences;
    struct allowance free_now = {.blocks = room->unreserved / layers};
    struct allowance quota = {.blocks = smaller(room->hot_blocks / each, free_now.blocks)};
    struct allowance whole = {.blocks = room->hot_blocks / layers};
    add_stripes(room, &free_now, true, layers);
    add_stripes(room, &whole, false, layers);
    add_stripes(room, &quota, false, each);
    for (uint32_t d = 0; d < room->n_drives; d++)
        quota.stripes[d] = smaller(quota.stripes[d], free_now.stripes[d]);
    struct hot_share_room others = *room; /* what others may have is not lent */
    others.lent_frames = 0;
    const struct {
        const struct hot_share_room *room;
        struct allowance allowed;
        bool copies;
    } tries[] = {{room, quota, true}, {room, quota, false}, {&others, free_now, false}};
    if (!room->cold_pool)
        p->beta = 0;
    for (unsigned i = room->wants_copies ? 0 : 1; i < sizeof tries / sizeof tries[0]; i++)
        if (plan_within(p, tries[i].room, tries[i].allowed, tries[i].copies, max_tokens,
                        blocks_per_layer, stripes_per_layer, NULL) == 0)
            return 0;
    int rc =
        plan_within(p, &others, whole, false, max_tokens, blocks_per_layer, stripes_per_layer, why);
    return rc ? rc
              : hill_fail(why, HILL_E_BUSY,
                          "a request of %u tokens has no room beside those that run", max_tokens);
}
