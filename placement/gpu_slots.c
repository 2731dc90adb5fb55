/* placement/gpu_slots.c - see gpu_slots.h. */
#include "placement/gpu_slots.h"

#include <string.h>

static uint64_t counts_bytes(uint32_t n_lists)
{
    return ((uint64_t)n_lists * sizeof(uint32_t) + 7) & ~(uint64_t)7;
}

uint64_t gpu_slots_bytes(uint32_t n_lists, uint32_t capacity)
{
    return counts_bytes(n_lists) +
           ((uint64_t)n_lists + 1) * capacity * sizeof(struct gpu_slot_entry);
}

void gpu_slots_init(struct gpu_slots *table, void *memory, uint32_t n_lists, uint32_t capacity)
{
    uint8_t *at = memory;
    table->n_lists = n_lists;
    table->capacity = capacity;
    table->counts = memory;
    table->entries = (struct gpu_slot_entry *)(at + counts_bytes(n_lists));
    table->scratch = table->entries + (uint64_t)n_lists * capacity;
    memset(table->counts, 0, (size_t)n_lists * sizeof(uint32_t));
}

void gpu_slots_clear(struct gpu_slots *table, uint32_t list)
{
    table->counts[list] = 0;
}

/* Find the residents among the selected; slots[i] is their slot, or GPU_SLOTS_UPLOAD alone. */
static uint32_t find_hits(const struct gpu_slot_entry *old, uint32_t count,
                          const uint32_t *positions, uint32_t k, uint32_t *slots)
{
    uint32_t at = 0, hits = 0;
    for (uint32_t i = 0; i < k; i++) {
        while (at < count && old[at].position < positions[i])
            at++;
        if (at < count && old[at].position == positions[i]) {
            slots[i] = old[at].slot;
            hits++;
        } else {
            slots[i] = GPU_SLOTS_UPLOAD;
        }
    }
    return hits;
}

void gpu_slots_find(const struct gpu_slots *table, uint32_t list, const uint32_t *positions,
                    uint32_t k, uint32_t *slots)
{
    find_hits(table->entries + (uint64_t)list * table->capacity, table->counts[list], positions, k,
              slots);
}

/* Next slot for an upload: a fresh one, then those of the residents not selected, oldest first. */
struct supply {
    const struct gpu_slot_entry *old;
    uint32_t count, next_victim, fresh, capacity;
    const uint32_t *positions;
    uint32_t k, next_selected;
};

static uint32_t next_slot(struct supply *s)
{
    if (s->fresh < s->capacity)
        return s->fresh++;
    /* k <= capacity: there are at least as many residents not selected as uploads that find no
     * fresh slot */
    for (;;) {
        const struct gpu_slot_entry *victim = &s->old[s->next_victim++];
        while (s->next_selected < s->k && s->positions[s->next_selected] < victim->position)
            s->next_selected++;
        if (s->next_selected == s->k || s->positions[s->next_selected] != victim->position)
            return victim->slot;
    }
}

/* The new list: the selected, and the residents that were not evicted (old[0 .. first_kept-1] were,
 * or are selected), merged by position. Returns its length. */
static uint32_t merge(struct gpu_slot_entry *out, const struct supply *s, const uint32_t *slots)
{
    uint32_t kept = s->next_victim, i = 0, n = 0;
    while (i < s->k || kept < s->count) {
        if (i == s->k || (kept < s->count && s->old[kept].position < s->positions[i])) {
            out[n++] = s->old[kept++];
            continue;
        }
        if (kept < s->count && s->old[kept].position == s->positions[i])
            kept++; /* the same entry, in the same slot */
        out[n++] = (struct gpu_slot_entry){s->positions[i], slots[i] & ~GPU_SLOTS_UPLOAD};
        i++;
    }
    return n;
}

int64_t gpu_slots_select(struct gpu_slots *table, uint32_t list, const uint32_t *positions,
                         uint32_t k, uint32_t *slots)
{
    if (k > table->capacity)
        return HILL_E_NOSPACE;
    struct gpu_slot_entry *old = table->entries + (uint64_t)list * table->capacity;
    uint32_t count = table->counts[list];
    uint32_t hits = find_hits(old, count, positions, k, slots);
    struct supply supply = {.old = old,
                            .count = count,
                            .fresh = count,
                            .capacity = table->capacity,
                            .positions = positions,
                            .k = k};
    for (uint32_t i = 0; i < k; i++)
        if (slots[i] == GPU_SLOTS_UPLOAD)
            slots[i] |= next_slot(&supply);
    count = merge(table->scratch, &supply, slots);
    memcpy(old, table->scratch, (size_t)count * sizeof *old);
    table->counts[list] = count;
    return (int64_t)k - hits;
}

void gpu_slots_keep(struct gpu_slots *table, uint32_t list, uint32_t keep)
{
    struct gpu_slot_entry *entries = table->entries + (uint64_t)list * table->capacity;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < table->counts[list]; i++)
        if (entries[i].slot < keep)
            entries[kept++] = entries[i];
    table->counts[list] = kept;
}
