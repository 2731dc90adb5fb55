/* tests/cpu_scorer/hkm_audit.c - see hkm_audit.h. */
#include "tests/cpu_scorer/hkm_audit.h"

static int audit_block(const struct hkm *h, uint32_t block, uint32_t list, struct hill_why *why)
{
    const struct hkm_owner *o = &h->owners[block];
    for (uint32_t i = 0; i < KV_HOT_BLOCK_TOKENS; i++) {
        uint32_t slot = block * KV_HOT_BLOCK_TOKENS + i, position = h->positions[slot];
        bool used = o->used >> i & 1;
        if (used != (position != HKM_NO_POSITION))
            return hill_fail(why, HILL_E_DAMAGED, "hot slot %u: bit and position disagree", slot);
        if (!used)
            continue;
        if (position >= h->ctx_tokens ||
            atomic_load_explicit(&h->words[(uint64_t)list * h->ctx_tokens + position],
                                 memory_order_relaxed /* single writer */) !=
                hkm_word(HKM_HOT, slot))
            return hill_fail(why, HILL_E_DAMAGED, "hot slot %u: its location word is elsewhere",
                             slot);
    }
    return 0;
}

static int audit_list(const struct hkm *h, uint32_t list, uint64_t *blocks, struct hill_why *why)
{
    const struct hkm_list *l = &h->lists[list];
    uint32_t n = 0, used = 0, hot_words = 0, prev = HKM_NONE;
    for (uint32_t b = l->first; b != HKM_NONE; prev = b, b = h->owners[b].next) {
        if (b >= h->n_blocks || h->owners[b].list != list || h->owners[b].prev != prev ||
            n++ == h->n_blocks)
            return hill_fail(why, HILL_E_DAMAGED, "hot list %u: broken at block %u", list, b);
        int rc = audit_block(h, b, list, why);
        if (rc)
            return rc;
        used += (uint32_t)__builtin_popcountll(h->owners[b].used);
    }
    for (uint32_t p = 0; p < h->ctx_tokens; p++)
        hot_words +=
            hkm_tag(atomic_load_explicit(&h->words[(uint64_t)list * h->ctx_tokens + p],
                                         memory_order_relaxed /* single writer */)) == HKM_HOT;
    if (n != l->n_blocks || n > l->limit || used != l->n_hot || used != hot_words)
        return hill_fail(why, HILL_E_DAMAGED,
                         "hot list %u: %u blocks of %u, %u slots, %u counted, %u hot words", list,
                         n, l->limit, used, l->n_hot, hot_words);
    *blocks += n;
    return 0;
}

int hkm_audit(const struct hkm *h, struct hill_why *why)
{
    uint64_t blocks = 0, limits = 0, n_free = 0, n_lent = 0;
    for (uint32_t list = 0; list < h->n_sequences * h->geometry.n_layers; list++) {
        int rc = audit_list(h, list, &blocks, why);
        if (rc)
            return rc;
        limits += h->lists[list].limit;
    }
    uint32_t prev = HKM_NONE;
    for (uint32_t b = h->free_block; b != HKM_NONE && n_free <= h->n_blocks;
         prev = b, b = h->owners[b].next)
        n_free += h->owners[b].list == HKM_NONE && h->owners[b].prev == prev;
    for (uint32_t b = 0; b < h->n_blocks; b++)
        n_lent += h->owners[b].list == HKM_LENT;
    if (n_free != h->n_free || blocks + n_free + n_lent != h->n_blocks ||
        limits + h->n_unreserved + n_lent != h->n_blocks)
        return hill_fail(why, HILL_E_DAMAGED,
                         "hot pool: %llu blocks owned, %llu free, %llu lent, of %u",
                         (unsigned long long)blocks, (unsigned long long)n_free,
                         (unsigned long long)n_lent, h->n_blocks);
    return 0;
}
