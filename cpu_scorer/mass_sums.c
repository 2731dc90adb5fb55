/* cpu_scorer/mass_sums.c - see mass_sums.h. */
#include "cpu_scorer/mass_sums.h"

#include <float.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "kv/plan.h"

/* A list: a stamp for each of its steps, then their sums. */
struct stamp {
    uint32_t order;         /* ORDER of the step; PROMPT */
    uint32_t n;             /* tokens */
    _Atomic uint64_t check; /* of all; written last, 0: there are none */
};

#define PROMPT      2u
#define ORDER(step) ((step) + 3u)

_Static_assert(sizeof(struct stamp) == KV_MASS_STAMP_BYTES, "hot segment layout");

static struct stamp *stamps_of(const struct mass_sums *m, uint32_t list)
{
    return (struct stamp *)(void *)(m->memory + list * m->stride);
}

static float *sums_of(const struct mass_sums *m, uint32_t list, const struct stamp *stamp)
{
    struct stamp *stamps = stamps_of(m, list);
    return (float *)(void *)(stamps + KV_MASS_STEPS) + (stamp - stamps) * (ptrdiff_t)m->ctx_tokens;
}

/* The newest below that order; NULL: none. */
static struct stamp *newest(const struct mass_sums *m, uint32_t list, uint32_t order)
{
    struct stamp *stamps = stamps_of(m, list), *found = NULL;
    for (uint32_t i = 0; i < KV_MASS_STEPS; i++)
        if (stamps[i].check && stamps[i].order < order &&
            (!found || stamps[i].order > found->order))
            found = &stamps[i];
    return found;
}

/* That of this order, else one that is free, else the oldest: emptied. */
static struct stamp *take_place(const struct mass_sums *m, uint32_t list, uint32_t order)
{
    struct stamp *stamps = stamps_of(m, list), *found = stamps;
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < KV_MASS_STEPS && least; i++) {
        bool same = stamps[i].check && stamps[i].order == order;
        uint32_t rank = same ? 0 : stamps[i].check ? stamps[i].order : 1; /* orders are 2 and up */
        if (rank < least) {
            least = rank;
            found = &stamps[i];
        }
    }
    found->check = 0;
    return found;
}

static uint64_t check_of(const struct mass_sums *m, uint32_t list, const struct stamp *stamp)
{
    uint32_t n = stamp->n < m->ctx_tokens ? stamp->n : m->ctx_tokens;
    uint64_t check = XXH3_64bits_withSeed(sums_of(m, list, stamp), n * sizeof(float),
                                          (uint64_t)stamp->order << 32 | stamp->n);
    return check ? check : 1;
}

void mass_sums_clear(const struct mass_sums *m, uint32_t list)
{
    memset(stamps_of(m, list), 0, KV_MASS_STEPS * sizeof(struct stamp));
}

static void count(const struct mass_sums *m, uint32_t list, struct stamp *stamp, uint32_t order,
                  uint32_t n)
{
    stamp->order = order;
    stamp->n = n;
    uint64_t check = check_of(m, list, stamp);
    /* release: who finds the check after a death finds what it is of; pairs with mass_sums_adopt in
     * another process, which begins after this one has ended */
    atomic_store_explicit(&stamp->check, check, memory_order_release);
}

void mass_sums_give(const struct mass_sums *m, uint32_t list, uint32_t first, uint32_t n,
                    const float *mass)
{
    struct stamp *stamp = take_place(m, list, PROMPT);
    float *sums = sums_of(m, list, stamp);
    for (uint32_t i = 0; i < n; i++)
        sums[first + i] = mass[i] >= 0 && mass[i] <= FLT_MAX ? mass[i] : 0;
    count(m, list, stamp, PROMPT, first + n);
}

const float *mass_sums_before(const struct mass_sums *m, uint32_t list, uint32_t step, uint32_t *n)
{
    const struct stamp *stamp = newest(m, list, ORDER(step));
    *n = stamp ? stamp->n : 0;
    return stamp ? sums_of(m, list, stamp) : NULL;
}

float *mass_sums_begin(const struct mass_sums *m, uint32_t list, uint32_t step)
{
    return sums_of(m, list, take_place(m, list, ORDER(step)));
}

void mass_sums_end(const struct mass_sums *m, uint32_t list, const float *sums, uint32_t step,
                   uint32_t n)
{
    struct stamp *stamp = stamps_of(m, list);
    while (sums_of(m, list, stamp) != sums)
        stamp++;
    count(m, list, stamp, ORDER(step), n);
}

void mass_sums_read(const struct mass_sums *m, uint32_t list, uint32_t first, uint32_t n,
                    float *mass)
{
    const struct stamp *stamp = newest(m, list, UINT32_MAX);
    const float *sums = stamp ? sums_of(m, list, stamp) : NULL;
    for (uint32_t i = 0; i < n; i++)
        mass[i] = sums && first + i < stamp->n ? sums[first + i] : 0;
}

/* A step below --exact-below, or of a layer with a window, has no sums: the newest before it stand.
 * So each one that is there must be sound: one that is not could be the step's. */
int mass_sums_adopt(const struct mass_sums *m, uint32_t list, uint32_t step)
{
    struct stamp *stamps = stamps_of(m, list);
    uint32_t n = 0;
    for (uint32_t i = 0; i < KV_MASS_STEPS; i++) {
        if (!stamps[i].check)
            continue;
        if (stamps[i].n > m->ctx_tokens || stamps[i].check != check_of(m, list, &stamps[i]))
            return HILL_E_DAMAGED;
        if (stamps[i].order > ORDER(step))
            stamps[i].check = 0;
        n += stamps[i].check != 0;
    }
    return n ? 0 : HILL_E_DAMAGED;
}
