/* prefix/chunk_tree.c - see chunk_tree.h. */
#include "prefix/chunk_tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define ROOM_MIN 64u

void chunk_tree_init(struct chunk_tree *t, uint32_t n_slots)
{
    *t = (struct chunk_tree){.n_slots = n_slots, .root = CHUNK_NONE};
}

void chunk_tree_finish(struct chunk_tree *t)
{
    free(t->chunks);
    free(t->heap);
    *t = (struct chunk_tree){.root = CHUNK_NONE};
}

/* ---- the heap of chunks that nothing follows ------------------------------------------------- */

static void put(struct chunk_tree *t, uint32_t place, uint32_t slot)
{
    t->heap[place] = slot;
    t->chunks[slot].place = place;
}

static double rank_at(const struct chunk_tree *t, uint32_t place)
{
    return t->chunks[t->heap[place]].rank;
}

static void swap(struct chunk_tree *t, uint32_t a, uint32_t b)
{
    uint32_t slot = t->heap[a];
    put(t, a, t->heap[b]);
    put(t, b, slot);
}

/* What lies at `place` may have another rank than before. */
static void settle(struct chunk_tree *t, uint32_t place)
{
    while (place > 0 && rank_at(t, place) < rank_at(t, (place - 1) / 2)) {
        swap(t, place, (place - 1) / 2);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t least = place, left = 2 * place + 1;
        for (uint32_t i = left; i < left + 2 && i < t->n_heap; i++)
            if (rank_at(t, i) < rank_at(t, least))
                least = i;
        if (least == place)
            return;
        swap(t, place, least);
        place = least;
    }
}

static void heap_add(struct chunk_tree *t, uint32_t slot)
{
    put(t, t->n_heap++, slot);
    settle(t, t->n_heap - 1);
}

static void heap_drop(struct chunk_tree *t, uint32_t slot)
{
    uint32_t place = t->chunks[slot].place;
    t->chunks[slot].place = CHUNK_NONE;
    if (place == --t->n_heap)
        return;
    put(t, place, t->heap[t->n_heap]);
    settle(t, place);
}

/* ---- finding --------------------------------------------------------------------------------- */

static uint32_t first_behind(const struct chunk_tree *t, uint32_t parent)
{
    return parent == CHUNK_NONE ? t->root : t->chunks[parent].child;
}

static uint32_t common(const uint32_t *a, const uint32_t *b, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && a[n] == b[n])
        n++;
    return n;
}

/* Of a chunk's tokens: those that the query may take. */
static uint32_t usable(const struct chunk *c, const struct chunk_query *q, bool own)
{
    uint32_t most = own ? c->n : c->n_plain;
    if (c->settings != q->settings || c->first >= q->n)
        return 0;
    most = most < q->n - c->first ? most : q->n - c->first;
    return common(c->tokens, q->tokens + c->first, most);
}

/* The chunk behind `parent` with the most usable tokens; own: of the owner's alone. */
static uint32_t best_behind(const struct chunk_tree *t, uint32_t parent,
                            const struct chunk_query *q, bool own, uint32_t *n)
{
    uint32_t best = CHUNK_NONE;
    *n = 0;
    for (uint32_t i = first_behind(t, parent); i != CHUNK_NONE; i = t->chunks[i].sibling) {
        const struct chunk *c = &t->chunks[i];
        if (own && (!q->owner || c->owner != q->owner))
            continue;
        uint32_t found = usable(c, q, own);
        if (found > *n)
            *n = found, best = i;
    }
    return best;
}

/* How many tokens the chunks from behind `parent` on have; into slots, where given. */
static uint32_t walk(const struct chunk_tree *t, uint32_t parent, const struct chunk_query *q,
                     bool own, uint32_t *slots, uint32_t *n_chunks)
{
    uint32_t total = 0, n;
    *n_chunks = 0;
    for (;;) {
        uint32_t slot = best_behind(t, parent, q, own, &n);
        if (slot == CHUNK_NONE)
            return total;
        if (slots)
            slots[*n_chunks] = slot;
        ++*n_chunks;
        total += n;
        if (n < CHUNK_TOKENS)
            return total;
        parent = slot;
    }
}

/* A way through the tree is plain to some chunk and the owner's from there on. */
struct chunk_hit chunk_tree_find(const struct chunk_tree *t, const struct chunk_query *q,
                                 uint32_t *slots)
{
    struct chunk_hit hit = {0};
    uint32_t turn = 0, n_plain_chunks, more, n;
    hit.n_tokens = hit.n_plain = walk(t, CHUNK_NONE, q, false, slots, &n_plain_chunks);
    hit.n_chunks = n_plain_chunks;
    bool turns = false;
    for (uint32_t i = 0; q->owner && i <= n_plain_chunks; i++) {
        uint32_t parent = i ? slots[i - 1] : CHUNK_NONE;
        if (i * CHUNK_TOKENS > hit.n_plain)
            break; /* the last one is not full: nothing follows it */
        n = i * CHUNK_TOKENS + walk(t, parent, q, true, NULL, &more);
        if (n > hit.n_tokens)
            hit.n_tokens = n, turn = i, turns = true;
    }
    if (!turns)
        return hit;
    walk(t, turn ? slots[turn - 1] : CHUNK_NONE, q, true, slots + turn, &more);
    hit.n_chunks = turn + more;
    uint32_t plain = turn * CHUNK_TOKENS + t->chunks[slots[turn]].n_plain;
    hit.n_plain = plain < hit.n_tokens ? plain : hit.n_tokens;
    return hit;
}

/* Is b needless beside a? Both are behind one parent. An owner's tokens are not replaced by plain
 * ones, nor by those of which other ones are decoded: what follows was computed over these. */
static bool covers(const struct chunk *a, const struct chunk *b)
{
    bool as_good = b->owner ? a->owner == b->owner && a->n_plain == b->n_plain : a->n_plain >= b->n;
    return a->settings == b->settings && a->n >= b->n && as_good &&
           common(a->tokens, b->tokens, b->n) == b->n;
}

uint32_t chunk_tree_same(const struct chunk_tree *t, uint32_t parent, const struct chunk *wanted)
{
    uint32_t i = first_behind(t, parent);
    while (i != CHUNK_NONE && !covers(&t->chunks[i], wanted))
        i = t->chunks[i].sibling;
    return i;
}

uint32_t chunk_tree_needless(const struct chunk_tree *t, uint32_t slot)
{
    const struct chunk *c = &t->chunks[slot];
    for (uint32_t i = first_behind(t, c->parent); i != CHUNK_NONE; i = t->chunks[i].sibling)
        if (i != slot && t->chunks[i].child == CHUNK_NONE && covers(c, &t->chunks[i]))
            return i;
    return CHUNK_NONE;
}

uint32_t chunk_tree_leaf(const struct chunk_tree *t, uint32_t slot)
{
    while (t->chunks[slot].child != CHUNK_NONE)
        slot = t->chunks[slot].child;
    return slot;
}

/* ---- adding and removing --------------------------------------------------------------------- */

/* How much longer than one that was of use once it stays. */
static double bonus(const struct chunk_tree *t, const struct chunk *c)
{
    return (t->n_slots < CHUNK_HALF_LIFE ? t->n_slots : CHUNK_HALF_LIFE) * log2(c->uses);
}

static int grow(struct chunk_tree *t, uint32_t wanted)
{
    uint64_t room = t->n_room ? 2ull * t->n_room : ROOM_MIN;
    room = room < wanted ? wanted : room;
    room = room < t->n_slots ? room : t->n_slots;
    struct chunk *chunks = realloc(t->chunks, room * sizeof *chunks);
    if (chunks)
        t->chunks = chunks;
    uint32_t *heap = realloc(t->heap, room * sizeof *heap);
    if (heap)
        t->heap = heap;
    if (!chunks || !heap)
        return HILL_E_NOMEM;
    for (uint32_t i = t->n_room; i < room; i++)
        t->chunks[i] = (struct chunk){.place = CHUNK_NONE};
    t->n_room = (uint32_t)room;
    return 0;
}

uint32_t chunk_tree_unused(struct chunk_tree *t, int *rc)
{
    *rc = 0;
    if (t->n_chunks >= t->n_slots)
        return CHUNK_NONE;
    while (t->lowest < t->n_room && t->chunks[t->lowest].stamp)
        t->lowest++;
    if (t->lowest == t->n_room)
        *rc = grow(t, t->n_room + 1);
    return *rc ? CHUNK_NONE : t->lowest;
}

uint32_t chunk_tree_victim(const struct chunk_tree *t, uint32_t spared)
{
    uint32_t best = CHUNK_NONE;
    if (t->n_heap == 0 || t->heap[0] != spared)
        return t->n_heap ? t->heap[0] : CHUNK_NONE;
    for (uint32_t i = 1; i < 3 && i < t->n_heap; i++)
        if (best == CHUNK_NONE || rank_at(t, i) < t->chunks[best].rank)
            best = t->heap[i];
    return best;
}

static bool fits(const struct chunk_tree *t, const struct chunk *c)
{
    const struct chunk *parent = c->parent == CHUNK_NONE ? NULL : chunk_at(t, c->parent);
    if (c->n == 0 || c->n > CHUNK_TOKENS || c->n_plain > c->n || !c->stamp ||
        (c->n_plain < c->n) != (c->owner != 0) || !c->uses)
        return false;
    if (!parent)
        return c->parent == CHUNK_NONE && c->first == 0;
    return parent->n == CHUNK_TOKENS && parent->first + CHUNK_TOKENS == c->first &&
           parent->settings == c->settings &&
           (!parent->owner || (parent->owner == c->owner && c->n_plain == 0));
}

int chunk_tree_add(struct chunk_tree *t, uint32_t slot, const struct chunk *chunk)
{
    if (slot >= t->n_slots)
        return HILL_E_INVALID;
    if (slot >= t->n_room && grow(t, slot + 1))
        return HILL_E_NOMEM;
    struct chunk *c = &t->chunks[slot];
    if (c->stamp || !fits(t, chunk))
        return HILL_E_INVALID;
    *c = *chunk;
    uint32_t *head = c->parent == CHUNK_NONE ? &t->root : &t->chunks[c->parent].child;
    if (c->parent != CHUNK_NONE && *head == CHUNK_NONE)
        heap_drop(t, c->parent);
    c->child = CHUNK_NONE;
    c->sibling = *head;
    *head = slot;
    if (!(c->rank > 0))
        c->rank = ++t->clock + bonus(t, c);
    else if (c->rank - bonus(t, c) > t->clock)
        t->clock = c->rank - bonus(t, c);
    t->n_chunks++;
    heap_add(t, slot);
    return 0;
}

void chunk_tree_remove(struct chunk_tree *t, uint32_t slot)
{
    struct chunk *c = &t->chunks[slot];
    uint32_t parent = c->parent;
    uint32_t *link = parent == CHUNK_NONE ? &t->root : &t->chunks[parent].child;
    while (*link != slot)
        link = &t->chunks[*link].sibling;
    *link = c->sibling;
    heap_drop(t, slot);
    *c = (struct chunk){.place = CHUNK_NONE};
    t->lowest = slot < t->lowest ? slot : t->lowest;
    t->n_chunks--;
    if (parent != CHUNK_NONE && t->chunks[parent].child == CHUNK_NONE)
        heap_add(t, parent);
}

void chunk_tree_use(struct chunk_tree *t, uint32_t slot)
{
    struct chunk *c = &t->chunks[slot];
    c->uses += c->uses < UINT32_MAX;
    c->rank = ++t->clock + bonus(t, c);
    if (c->place != CHUNK_NONE)
        settle(t, c->place);
}
