/* prefix/prefix_store.c - see prefix_store.h. */
#include "prefix/prefix_store.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

void prefix_store_init(struct prefix_store *store)
{
    *store = (struct prefix_store){0};
}

void prefix_store_finish(struct prefix_store *store)
{
    prefix_store_clear(store);
}

void prefix_store_drop(struct prefix_store *store, uint32_t sequence)
{
    free(store->entries[sequence].tokens);
    store->entries[sequence] = (struct prefix_entry){0};
}

struct prefix_entry prefix_store_take(struct prefix_store *store, uint32_t sequence)
{
    struct prefix_entry e = store->entries[sequence];
    store->entries[sequence] = (struct prefix_entry){0};
    return e;
}

void prefix_store_give_back(struct prefix_store *store, uint32_t sequence, struct prefix_entry *e)
{
    store->entries[sequence] = *e;
    *e = (struct prefix_entry){0};
}

void prefix_store_clear(struct prefix_store *store)
{
    for (uint32_t i = 0; i < PREFIX_SEQUENCES_MAX; i++)
        prefix_store_drop(store, i);
}

int prefix_store_put(struct prefix_store *store, uint32_t sequence, const struct prefix_entry *e)
{
    struct prefix_entry *to = &store->entries[sequence];
    prefix_store_drop(store, sequence);
    uint32_t *tokens = malloc(e->n_tokens * sizeof *tokens);
    if (!tokens)
        return HILL_E_NOMEM;
    memcpy(tokens, e->tokens, e->n_tokens * sizeof *tokens);
    *to = *e;
    to->tokens = tokens;
    to->used = ++store->count;
    return 0;
}

/* How many of its tokens a prompt may take: entries that are there, and of its kind. */
static uint32_t usable(const struct prefix_entry *e, const struct prefix_query *q, bool own)
{
    uint32_t most = own ? e->n_kept : e->n_plain, n = 0;
    if (most >= q->n)
        most = q->n - 1; /* its last token is computed: the answer begins with its logits */
    while (n < most && e->tokens[n] == q->tokens[n])
        n++;
    return n;
}

struct prefix_hit prefix_store_find(const struct prefix_store *store, const struct prefix_query *q,
                                    const bool *taken)
{
    struct prefix_hit hit = {0};
    uint64_t used = 0;
    for (uint32_t i = 0; q->n > 0 && i < PREFIX_SEQUENCES_MAX; i++) {
        const struct prefix_entry *e = &store->entries[i];
        bool own = e->request && ((q->conversation && e->conversation == q->conversation) ||
                                  (q->after && e->request == q->after));
        if (!e->request || taken[i])
            continue;
        if (own && e->n_kept > hit.n_history)
            hit.n_history = e->n_kept;
        uint32_t n = usable(e, q, own);
        if (!own && q->room && 4 * (uint64_t)n < q->n)
            continue;
        if (n == 0 || n < hit.n_tokens || (n == hit.n_tokens && e->used < used))
            continue;
        used = e->used;
        hit.sequence = i;
        hit.request = e->request;
        hit.n_tokens = n;
        hit.n_plain = n < e->n_plain ? n : e->n_plain;
    }
    return hit;
}

const struct prefix_entry *prefix_store_request(const struct prefix_store *store, uint64_t request)
{
    for (uint32_t i = 0; request && i < PREFIX_SEQUENCES_MAX; i++)
        if (store->entries[i].request == request)
            return &store->entries[i];
    return NULL;
}

uint32_t prefix_store_slot(const struct prefix_store *store, uint32_t n, const bool *taken)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if (!taken[i] && (best == n || store->entries[i].used < store->entries[best].used))
            best = i;
    return best;
}
