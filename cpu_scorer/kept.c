/* cpu_scorer/kept.c - see kept.h. */
#include "cpu_scorer/kept.h"

#include <stdatomic.h>
#include <string.h>

/* relaxed everywhere: one process at a time has the segment; a successor maps it after this one's
 * end */

static uint64_t identity_of(const struct kept *k)
{
    return atomic_load_explicit(&k->identity, memory_order_relaxed);
}

static void set_identity(struct kept *k, uint64_t identity)
{
    /* release: what was written before is there when the identity is, also for who is killed
     * between two stores */
    atomic_store_explicit(&k->identity, identity, memory_order_release);
}

static uint64_t check_plan(const struct kept_plan *plan, uint64_t identity)
{
    return XXH3_64bits_withSeed(plan, sizeof *plan, identity);
}

static uint64_t check_step(const struct kept_step *step, uint64_t identity)
{
    return XXH3_64bits_withSeed(step, offsetof(struct kept_step, check), identity);
}

void kept_begin(struct kept *k, uint64_t identity, const struct kept_plan *plan)
{
    set_identity(k, 0);
    memset(k->steps, 0, sizeof k->steps);
    k->plan = *plan;
    k->check = check_plan(plan, identity);
    set_identity(k, identity);
}

void kept_replan(struct kept *k, const struct kept_plan *plan)
{
    uint64_t identity = identity_of(k);
    if (!identity)
        return;
    k->plan = *plan;
    k->check = check_plan(plan, identity);
}

void kept_end(struct kept *k)
{
    set_identity(k, 0);
}

void kept_note(struct kept *k, uint32_t step, uint32_t n_tokens, const XXH64_state_t *hash)
{
    struct kept_step *out = &k->steps[step % KEPT_STEPS];
    uint64_t identity = identity_of(k);
    if (!identity)
        return;
    out->step = step;
    out->n_tokens = n_tokens;
    hash_state_save(&out->selection_hash, hash);
    out->check = check_step(out, identity);
}

uint64_t kept_read(const struct kept *k, struct kept_plan *plan)
{
    uint64_t identity = identity_of(k);
    *plan = k->plan;
    return identity && k->check == check_plan(plan, identity) ? identity : 0;
}

const struct kept_step *kept_newest(const struct kept *k, uint32_t min, uint32_t max)
{
    const struct kept_step *newest = NULL;
    uint64_t identity = identity_of(k);
    for (uint32_t i = 0; i < KEPT_STEPS; i++) {
        const struct kept_step *s = &k->steps[i];
        if (s->n_tokens < min || s->n_tokens > max || s->n_tokens == 0 ||
            s->check != check_step(s, identity))
            continue;
        if (!newest || s->n_tokens > newest->n_tokens)
            newest = s;
    }
    return newest;
}

void kept_cut(struct kept *k, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < KEPT_STEPS; i++)
        if (k->steps[i].n_tokens > n_tokens)
            memset(&k->steps[i], 0, sizeof k->steps[i]);
}
