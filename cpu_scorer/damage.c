/* cpu_scorer/damage.c - see damage.h. */
#include "cpu_scorer/damage.h"

#include <string.h>

/* Where it is, or belongs. */
static uint32_t place_of(const struct damage *d, uint32_t layer, uint32_t position)
{
    uint32_t i = 0;
    while (i < d->n && (d->items[i].position < position ||
                        (d->items[i].position == position && d->items[i].layer < layer)))
        i++;
    return i;
}

static bool is_at(const struct damage *d, uint32_t i, uint32_t layer, uint32_t position)
{
    return i < d->n && d->items[i].position == position && d->items[i].layer == layer;
}

bool damage_add(struct damage *d, uint32_t layer, uint32_t position)
{
    uint32_t i = place_of(d, layer, position);
    if (is_at(d, i, layer, position))
        return true;
    if (d->n == RECORD_DAMAGED_MAX)
        return false;
    memmove(d->items + i + 1, d->items + i, (d->n - i) * sizeof *d->items);
    d->items[i] = (struct damaged_entry){layer, position};
    d->n++;
    return true;
}

bool damage_has(const struct damage *d, uint32_t layer, uint32_t position)
{
    return is_at(d, place_of(d, layer, position), layer, position);
}

void damage_remove(struct damage *d, uint32_t layer, uint32_t position)
{
    uint32_t i = place_of(d, layer, position);
    if (!is_at(d, i, layer, position))
        return;
    d->n--;
    memmove(d->items + i, d->items + i + 1, (d->n - i) * sizeof *d->items);
}

bool damage_below(const struct damage *d, uint32_t layer, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < d->n && d->items[i].position < n_tokens; i++)
        if (d->items[i].layer == layer)
            return true;
    return false;
}

uint32_t damage_first(const struct damage *d, uint32_t position)
{
    uint32_t i = place_of(d, 0, position);
    return i < d->n ? d->items[i].position : DAMAGE_NONE;
}

void damage_cut(struct damage *d, uint32_t position)
{
    d->n = place_of(d, 0, position);
}

bool damage_pays(const struct damage *d, uint32_t n_layers, uint32_t prompt_tokens,
                 uint32_t decoded_tokens)
{
    uint64_t again = 0, n = prompt_tokens;
    uint64_t anew = n * DAMAGE_PROMPT_ROW + n * n / DAMAGE_PROMPT_PAST;
    for (uint32_t i = 0; i < d->n; i++) { /* a token's last one is of its highest layer */
        bool last = i + 1 == d->n || d->items[i + 1].position != d->items[i].position;
        again += last ? (d->items[i].layer + 1ull) * (d->items[i].position + DAMAGE_ROW) : 0;
    }
    return again <= n_layers * (anew + (uint64_t)decoded_tokens * DAMAGE_ROW);
}
