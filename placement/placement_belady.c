/*
 * placement/placement_belady.c - the offline optimum: Belady's rule with bypass.
 *
 * A token's next use is the next step that selects it while it is not forced. When room is needed
 * the furthest next use goes down; a selected cold token comes up only in place of one whose next
 * use is further. Each span from one use of a token to its next is an interval that gives one hit
 * if the token stays hot over it; dropping the interval that ends last whenever more overlap than
 * fit keeps the most intervals (interval scheduling on C machines). Optimal among placements that
 * bring up only what a query has just selected, without a rate limit. The steps must be those of
 * the future it was given. Cost: O(selected * log N).
 */
#include "placement/placement_internal.h"

#include <stdlib.h>
#include <string.h>

struct own {
    uint32_t n_steps;
    uint64_t *first; /* [n_steps + 1]: where a step's entries begin in next */
    uint32_t *next;  /* by step and index of the selection: the step of the next use */
    uint32_t *use;   /* [max_tokens]: next use as of now */
    uint32_t *order; /* [of all selections]: candidates of one */
    struct placement_heap heap;
};

static uint64_t own_bytes(const struct placement_settings *s)
{
    uint64_t entries = 0;
    if (s->future)
        for (uint32_t i = 0; i < s->future->n_steps; i++)
            entries += s->future->n_selected[i];
    return sizeof(struct own) + (s->future ? s->future->n_steps + 1ull : 0) * sizeof(uint64_t) +
           entries * 2 * sizeof(uint32_t) + (uint64_t)s->max_tokens * sizeof(uint32_t) +
           placement_heap_bytes(s->max_tokens);
}

/* Walk the future backwards; use[] ends as the first use of each token. */
static void look_ahead(struct placement *p, const struct placement_future *future)
{
    struct own *own = p->own;
    uint32_t sinks = p->settings.sinks, window = p->settings.window;
    for (uint32_t step = future->n_steps; step-- > 0;) {
        uint32_t n = future->n_tokens[step], from = n > window ? n - window : 0;
        for (uint32_t i = 0; i < future->n_selected[step]; i++) {
            uint32_t position = future->selected[step][i];
            own->next[own->first[step] + i] = own->use[position];
            if (position >= sinks && position < from)
                own->use[position] = step;
        }
    }
}

static int create(struct placement *p)
{
    const struct placement_future *future = p->settings.future;
    uint32_t max = p->settings.max_tokens;
    struct own *own = p->own;
    void *rest = own + 1;
    own->n_steps = future->n_steps;
    own->first = placement_table(&rest, own->n_steps + 1ull, sizeof *own->first);
    for (uint32_t i = 0; i < future->n_steps; i++)
        own->first[i + 1] = own->first[i] + future->n_selected[i];
    placement_heap_init(&own->heap, max, &rest);
    own->next = placement_table(&rest, own->first[own->n_steps], sizeof *own->next);
    own->order = placement_table(&rest, own->first[own->n_steps], sizeof *own->order);
    own->use = placement_table(&rest, max, sizeof *own->use);
    memset(own->use, 0xff, max * sizeof *own->use);
    look_ahead(p, future);
    return 0;
}

/* The furthest next use has the lowest key. */
static void enter(struct placement *p, uint32_t position)
{
    struct own *own = p->own;
    placement_heap_set(&own->heap, position, UINT32_MAX - own->use[position]);
}

static void leave(struct placement *p, uint32_t position)
{
    placement_heap_remove(&((struct own *)p->own)->heap, position);
}

static void watch(struct placement *p, const uint32_t *selected, uint32_t n)
{
    struct own *own = p->own;
    uint32_t now = p->step - 1;
    if (now >= own->n_steps || n != own->first[now + 1] - own->first[now])
        return; /* not the future it was given: the last known next uses stay */
    for (uint32_t i = 0; i < n; i++) {
        if (placement_is_forced(p, selected[i]))
            continue;
        own->use[selected[i]] = own->next[own->first[now] + i];
        if (p->hot[selected[i]])
            enter(p, selected[i]);
    }
}

static uint32_t victim(struct placement *p)
{
    return placement_heap_top(&((struct own *)p->own)->heap);
}

static int by_use(const void *a, const void *b, void *context)
{
    const uint32_t *use = context, x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (use[x] != use[y])
        return use[x] < use[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int step(struct placement *p, const uint32_t *selected, uint32_t n, const uint16_t *scores,
                uint32_t rate)
{
    struct own *own = p->own;
    uint32_t count = 0;
    int rc = 0;
    (void)scores;
    for (uint32_t i = 0; i < n; i++)
        if (!p->hot[selected[i]] && !placement_is_forced(p, selected[i]) &&
            own->use[selected[i]] != PLACEMENT_NEVER)
            own->order[count++] = selected[i];
    qsort_r(own->order, count, sizeof *own->order, by_use, own->use);
    for (uint32_t i = 0; i < count && rate-- && rc == 0; i++) {
        if (p->n_hot >= p->capacity) {
            uint32_t down = victim(p);
            if (down == PLACEMENT_NONE || own->use[down] <= own->use[own->order[i]])
                break;
            rc = placement_demote(p, down);
        }
        if (rc == 0)
            rc = placement_promote(p, own->order[i]);
    }
    return rc;
}

const struct placement_ops placement_belady_ops = {.name = "belady",
                                                   .needs_future = true,
                                                   .bytes = own_bytes,
                                                   .create = create,
                                                   .enter = enter,
                                                   .leave = leave,
                                                   .watch = watch,
                                                   .step = step,
                                                   .victim = victim};
