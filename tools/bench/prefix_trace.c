/* tools/bench/prefix_trace.c - see prefix_trace.h. */
#include "tools/bench/prefix_trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "prefix/chunk_tree.h"
#include "tools/bench/run_pipeline.h"

#define BLOCK_CHUNKS (TRACE_BLOCK_TOKENS / CHUNK_TOKENS)
#define NEVER        UINT32_MAX

static void *grown(void *memory, uint64_t n, size_t size)
{
    void *more = realloc(memory, n * size);
    if (!more)
        bench_fail("out of memory for a trace");
    return more;
}

static void *zeros(uint64_t n, size_t size)
{
    void *memory = calloc(n + 1, size);
    if (!memory)
        bench_fail("out of memory for a trace");
    return memory;
}

/* ---- the trace ------------------------------------------------------------------------------- */

static void know(struct prefix_trace *t, uint32_t chunk, uint32_t parent)
{
    if (chunk >= t->n_chunks) {
        uint32_t n = 2 * (chunk + BLOCK_CHUNKS);
        t->parents = grown(t->parents, n, sizeof *t->parents);
        t->seen = grown(t->seen, n, sizeof *t->seen);
        memset(t->seen + t->n_chunks, 0, n - t->n_chunks);
        t->n_chunks = n;
    }
    if (t->seen[chunk] && t->parents[chunk] != parent)
        bench_fail("block %u of the trace follows two blocks", chunk / BLOCK_CHUNKS);
    t->seen[chunk] = 1;
    t->parents[chunk] = parent;
}

void prefix_trace_add(struct prefix_trace *t, const uint32_t *blocks, uint32_t n_blocks,
                      uint32_t n_tokens)
{
    uint32_t n = n_tokens / CHUNK_TOKENS, parent = NEVER;
    if (n_blocks != (n_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS || !n_tokens)
        bench_fail("request %u of the trace has %u tokens in %u blocks", t->n_requests, n_tokens,
                   n_blocks);
    t->requests = grown(t->requests, t->n_requests + 1ull, sizeof *t->requests);
    t->requests[t->n_requests++] = (struct trace_request){t->n_refs, n, n_tokens};
    t->chunks = grown(t->chunks, t->n_refs + n + 1ull, sizeof *t->chunks);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = blocks[i / BLOCK_CHUNKS];
        if (block > (NEVER - 1) / BLOCK_CHUNKS / 4)
            bench_fail("block %u of the trace is out of range", block);
        uint32_t chunk = block * BLOCK_CHUNKS + i % BLOCK_CHUNKS;
        know(t, chunk, parent);
        t->chunks[t->n_refs++] = parent = chunk;
    }
}

static void add_line(struct prefix_trace *t, const char *line, uint32_t number)
{
    json_t *root = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *ids = json_object_get(root, "hash_ids");
    json_int_t tokens = json_integer_value(json_object_get(root, "input_length"));
    size_t n = json_array_size(ids);
    if (n == 0 || n > 1u << 20 || tokens <= 0 || tokens > 1 << 28)
        bench_fail("line %u of the trace: hash_ids or input_length is missing or out of range",
                   number);
    uint32_t *blocks = zeros(n, sizeof *blocks);
    for (size_t i = 0; i < n; i++)
        blocks[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    prefix_trace_add(t, blocks, (uint32_t)n, (uint32_t)tokens);
    free(blocks);
    json_decref(root);
}

void prefix_trace_read(struct prefix_trace *t, const char *path)
{
    char *text = capture("gzip -dc '%s'", path);
    if (!text)
        bench_fail("the trace %s cannot be read", path);
    uint32_t number = 0;
    for (char *line = text, *end; *line; line = end) {
        end = strchrnul(line, '\n');
        end += *end ? 1 : 0;
        add_line(t, line, ++number);
    }
    free(text);
}

void prefix_trace_free(struct prefix_trace *t)
{
    free(t->requests);
    free(t->chunks);
    free(t->parents);
    free(t->seen);
    *t = (struct prefix_trace){0};
}

/* ---- what is counted ------------------------------------------------------------------------- */

static double cost_of(double n)
{
    return n + n * n / 2 / TRACE_EVEN_TOKENS;
}

/* Its first n_chunks were found: as in the store all but the last token count. Returns what a chunk
 * of the others costs, as the store knows it: a mean of all that was computed. */
static double count(struct trace_score *s, const struct trace_request *r, uint32_t n_chunks)
{
    uint32_t hits = n_chunks * CHUNK_TOKENS;
    hits = hits < r->n_tokens ? hits : r->n_tokens - 1;
    s->tokens += r->n_tokens;
    s->hits += hits;
    s->cost += cost_of(r->n_tokens);
    s->saved += cost_of(hits);
    return (cost_of(r->n_tokens) - cost_of(hits)) / (r->n_tokens - hits) * CHUNK_TOKENS;
}

/* ---- the store's own code -------------------------------------------------------------------- */

/* As drive_store.c makes room. CHUNK_NONE: there is none but the parent's. */
static uint32_t room_in(struct chunk_tree *tree, uint32_t parent)
{
    int rc;
    uint32_t slot = chunk_tree_unused(tree, &rc);
    if (rc)
        bench_fail("out of memory for a store");
    if (slot != CHUNK_NONE)
        return slot;
    slot = chunk_tree_victim(tree, parent);
    if (slot != CHUNK_NONE)
        chunk_tree_remove(tree, slot);
    return slot;
}

static void leave(struct chunk_tree *tree, const uint32_t *chunks, uint32_t n, double cost)
{
    uint32_t parent = CHUNK_NONE;
    for (uint32_t i = 0; i < n; i++) {
        struct chunk c = {.stamp = 1, .first = i * CHUNK_TOKENS, .uses = 1, .cost = cost};
        c.n = c.n_plain = CHUNK_TOKENS;
        c.tokens[0] = chunks[i];
        c.parent = parent;
        uint32_t slot = chunk_tree_same(tree, parent, &c);
        if (slot == CHUNK_NONE) {
            slot = room_in(tree, parent);
            if (slot == CHUNK_NONE)
                return;
            if (chunk_tree_add(tree, slot, &c))
                bench_fail("the store does not take a chunk");
        }
        parent = slot;
    }
}

static struct trace_score play_store(const struct prefix_trace *t, uint32_t n_slots)
{
    struct trace_score score = {0};
    struct chunk_tree tree;
    uint32_t longest = 1;
    for (uint32_t i = 0; i < t->n_requests; i++)
        longest = t->requests[i].n_tokens > longest ? t->requests[i].n_tokens : longest;
    uint32_t *tokens = zeros(longest, sizeof *tokens);
    uint32_t *slots = zeros(longest / CHUNK_TOKENS + 1ull, sizeof *slots);
    chunk_tree_init(&tree, n_slots);
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[i];
        const uint32_t *chunks = t->chunks + r->first;
        for (uint32_t k = 0; k < r->n; k++)
            tokens[k * CHUNK_TOKENS] = chunks[k];
        const struct chunk_query query = {.tokens = tokens, .n = r->n * CHUNK_TOKENS};
        struct chunk_hit hit = chunk_tree_find(&tree, &query, slots);
        for (uint32_t k = 0; k < hit.n_chunks; k++)
            chunk_tree_use(&tree, slots[k]);
        double cost = count(&score, r, hit.n_chunks);
        leave(&tree, chunks, r->n, cost);
    }
    chunk_tree_finish(&tree);
    free(tokens);
    free(slots);
    return score;
}

/* ---- other rules ----------------------------------------------------------------------------- */

struct held {
    double rank, cost; /* the least rank goes first */
    uint32_t uses;
    uint32_t children; /* that are held */
    uint32_t place;    /* in the heap of those without children */
    bool here;
};

struct player {
    const struct prefix_trace *trace;
    enum trace_rule rule;
    struct held *held; /* [n_chunks] */
    uint32_t *heap, n_heap;
    uint32_t *next; /* [n_refs]: the request that refers to the chunk again, or NEVER */
    uint32_t used;
    double age;
};

static void sit(struct player *p, uint32_t place, uint32_t chunk)
{
    p->heap[place] = chunk;
    p->held[chunk].place = place;
}

static void sift(struct player *p, uint32_t place)
{
    uint32_t chunk = p->heap[place];
    double rank = p->held[chunk].rank;
    for (; place > 0 && rank < p->held[p->heap[(place - 1) / 2]].rank; place = (place - 1) / 2)
        sit(p, place, p->heap[(place - 1) / 2]);
    for (uint32_t below; (below = 2 * place + 1) < p->n_heap; place = below) {
        if (below + 1 < p->n_heap &&
            p->held[p->heap[below + 1]].rank < p->held[p->heap[below]].rank)
            below++;
        if (p->held[p->heap[below]].rank >= rank)
            break;
        sit(p, place, p->heap[below]);
    }
    sit(p, place, chunk);
}

static void enter_heap(struct player *p, uint32_t chunk)
{
    sit(p, p->n_heap++, chunk);
    sift(p, p->n_heap - 1);
}

static void leave_heap(struct player *p, uint32_t chunk)
{
    uint32_t place = p->held[chunk].place, last = p->heap[--p->n_heap];
    if (place == p->n_heap)
        return;
    sit(p, place, last);
    sift(p, place);
}

/* It was of use in request `now`, and will be in request `next`. */
static void rank(struct player *p, uint32_t chunk, uint32_t now, uint32_t next)
{
    struct held *h = &p->held[chunk];
    h->uses++;
    h->rank = p->rule == TRACE_LRU       ? now
              : p->rule == TRACE_LFU     ? (double)h->uses * p->trace->n_requests + now
              : p->rule == TRACE_UTILITY ? p->age + h->uses * h->cost
                                         : -(double)next;
    if (h->here && h->children == 0)
        sift(p, h->place);
}

/* The one that goes, but for the parent of what comes; NEVER: none. */
static uint32_t choose(const struct player *p, uint32_t parent)
{
    uint32_t best = NEVER;
    for (uint32_t i = 0; i < 3 && i < p->n_heap; i++)
        if (p->heap[i] != parent &&
            (best == NEVER || p->held[p->heap[i]].rank < p->held[best].rank))
            best = p->heap[i];
    return best;
}

static void drop(struct player *p, uint32_t chunk)
{
    uint32_t parent = p->trace->parents[chunk];
    p->age = p->held[chunk].rank > p->age ? p->held[chunk].rank : p->age;
    leave_heap(p, chunk);
    p->held[chunk] = (struct held){0};
    p->used--;
    if (parent != NEVER && --p->held[parent].children == 0)
        enter_heap(p, parent);
}

/* False: there is no room for it, or none worth while. */
static bool take_in(struct player *p, uint32_t chunk, double cost, uint32_t now, uint32_t next,
                    uint32_t n_slots)
{
    uint32_t parent = p->trace->parents[chunk];
    bool knows = p->rule == TRACE_OPTIMUM;
    if (knows && next == NEVER)
        return false;
    if (p->used == n_slots) {
        uint32_t victim = choose(p, parent);
        if (victim == NEVER || (knows && p->held[victim].rank >= -(double)next))
            return false;
        drop(p, victim);
    }
    struct held *h = &p->held[chunk];
    h->cost = cost;
    rank(p, chunk, now, next);
    h->here = true;
    p->used++;
    if (parent != NEVER && p->held[parent].children++ == 0)
        leave_heap(p, parent);
    enter_heap(p, chunk);
    return true;
}

static void look_ahead(struct player *p)
{
    const struct prefix_trace *t = p->trace;
    uint32_t *last = zeros(t->n_chunks, sizeof *last);
    memset(last, 0xff, t->n_chunks * sizeof *last);
    for (uint32_t i = t->n_requests; i-- > 0;)
        for (uint32_t k = t->requests[i].first; k < t->requests[i].first + t->requests[i].n; k++) {
            p->next[k] = last[t->chunks[k]];
            last[t->chunks[k]] = i;
        }
    free(last);
}

static struct trace_score play_rule(const struct prefix_trace *t, enum trace_rule rule,
                                    uint32_t n_slots)
{
    struct trace_score score = {0};
    struct player p = {.trace = t,
                       .rule = rule,
                       .held = zeros(t->n_chunks, sizeof *p.held),
                       .heap = zeros(t->n_chunks, sizeof *p.heap),
                       .next = zeros(t->n_refs, sizeof *p.next)};
    look_ahead(&p);
    for (uint32_t i = 0; i < t->n_requests; i++) {
        const struct trace_request *r = &t->requests[i];
        const uint32_t *chunks = t->chunks + r->first, *next = p.next + r->first;
        uint32_t n = 0;
        for (; n < r->n && p.held[chunks[n]].here; n++)
            rank(&p, chunks[n], i, next[n]);
        double cost = count(&score, r, n);
        while (n < r->n && take_in(&p, chunks[n], cost, i, next[n], n_slots))
            n++;
    }
    free(p.held);
    free(p.heap);
    free(p.next);
    return score;
}

struct trace_score prefix_trace_play(const struct prefix_trace *t, enum trace_rule rule,
                                     uint32_t n_slots)
{
    return rule == TRACE_STORE ? play_store(t, n_slots) : play_rule(t, rule, n_slots);
}
