/* prefix/run_cache.c - see run_cache.h. Worth is kept as a rank that does not change with time:
 * log2(worth when it was last of use) + that time in half-lives. */
#include "prefix/run_cache.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#define NONE       UINT32_MAX
#define HALF_LIVES 4.0  /* of the room */
#define LEAST      1e-9 /* importance: sinks and newest tokens come whether attended to or not */
#define DRAWN      16u

struct slot {
    struct run_name name;
    double rank;
    uint32_t next; /* of the same bucket */
};

struct run_cache {
    bool by_age;
    uint32_t run_bytes, n, n_slots, n_buckets;
    double clock, half_life; /* uses */
    uint64_t drawn;
    struct slot *slots;
    uint32_t *buckets;
    uint8_t *entries; /* [n_slots][run_bytes] */
};

_Static_assert(sizeof(struct run_name) == 16, "hashed as bytes");

static uint32_t buckets_for(uint32_t n_slots)
{
    uint32_t n = 1;
    while (n < n_slots)
        n *= 2;
    return n;
}

int run_cache_open(struct run_cache **out, uint64_t cap_bytes, uint32_t run_bytes, bool by_age)
{
    uint64_t each = run_bytes + sizeof(struct slot) + 2 * sizeof(uint32_t); /* buckets, at most */
    uint64_t n =
        cap_bytes > sizeof(struct run_cache) ? (cap_bytes - sizeof(struct run_cache)) / each : 0;
    *out = NULL;
    if (n == 0)
        return HILL_E_INVALID;
    struct run_cache *c = calloc(1, sizeof *c);
    if (!c)
        return HILL_E_NOMEM;
    c->n_slots = n < UINT32_MAX / 2 ? (uint32_t)n : UINT32_MAX / 2;
    c->n_buckets = buckets_for(c->n_slots);
    c->run_bytes = run_bytes;
    c->by_age = by_age;
    c->half_life = by_age ? 1 : HALF_LIVES * c->n_slots;
    c->slots = malloc(c->n_slots * sizeof *c->slots);
    c->buckets = malloc(c->n_buckets * sizeof *c->buckets);
    c->entries = malloc((uint64_t)c->n_slots * run_bytes);
    if (!c->slots || !c->buckets || !c->entries) {
        run_cache_close(c);
        return HILL_E_NOMEM;
    }
    memset(c->buckets, 0xff, c->n_buckets * sizeof *c->buckets);
    *out = c;
    return 0;
}

void run_cache_close(struct run_cache *c)
{
    if (c) {
        free(c->slots);
        free(c->buckets);
        free(c->entries);
    }
    free(c);
}

uint32_t run_cache_room(const struct run_cache *c)
{
    return c->n_slots;
}

uint64_t run_cache_bytes(const struct run_cache *c)
{
    return sizeof *c + c->n_slots * (uint64_t)(c->run_bytes + sizeof *c->slots) +
           c->n_buckets * sizeof *c->buckets;
}

static uint32_t *bucket_of(const struct run_cache *c, const struct run_name *name)
{
    return &c->buckets[XXH3_64bits(name, sizeof *name) & (c->n_buckets - 1)];
}

static bool same(const struct run_name *a, const struct run_name *b)
{
    return a->stamp == b->stamp && a->layer == b->layer && a->run == b->run;
}

static uint32_t find(const struct run_cache *c, const struct run_name *name)
{
    uint32_t slot = *bucket_of(c, name);
    while (slot != NONE && !same(&c->slots[slot].name, name))
        slot = c->slots[slot].next;
    return slot;
}

/* After a use now, where so much worth was left of the uses before. */
static double rank_now(const struct run_cache *c, double left, double importance)
{
    double now = c->clock / c->half_life;
    importance = importance > LEAST ? importance : LEAST;
    return c->by_age ? now : log2(left + importance) + now;
}

const void *run_cache_use(struct run_cache *c, const struct run_name *name, double importance)
{
    uint32_t slot = find(c, name);
    c->clock++;
    if (slot == NONE)
        return NULL;
    struct slot *s = &c->slots[slot];
    s->rank = rank_now(c, exp2(s->rank - c->clock / c->half_life), importance);
    return c->entries + (uint64_t)slot * c->run_bytes;
}

/* xorshift64*: which ones are compared changes with every turn, and is the same in every run */
static uint32_t draw(struct run_cache *c)
{
    uint64_t x = c->drawn ? c->drawn : UINT64_C(0x2545f4914f6cdd1d);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    c->drawn = x;
    return (uint32_t)((x * UINT64_C(0x2545f4914f6cdd1d)) >> 32) % c->n_slots;
}

static uint32_t least_of_some(struct run_cache *c)
{
    uint32_t least = draw(c);
    for (uint32_t i = 1; i < DRAWN; i++) {
        uint32_t slot = draw(c);
        least = c->slots[slot].rank < c->slots[least].rank ? slot : least;
    }
    return least;
}

static void take_out(struct run_cache *c, uint32_t slot)
{
    uint32_t *link = bucket_of(c, &c->slots[slot].name);
    while (*link != slot)
        link = &c->slots[*link].next;
    *link = c->slots[slot].next;
}

void run_cache_put(struct run_cache *c, const struct run_name *name, double importance,
                   const void *entries)
{
    double rank = rank_now(c, 0, importance);
    if (find(c, name) != NONE)
        return;
    uint32_t slot = c->n < c->n_slots ? c->n : least_of_some(c);
    if (slot < c->n && c->slots[slot].rank >= rank && !c->by_age)
        return;
    if (slot < c->n)
        take_out(c, slot);
    else
        c->n++;
    uint32_t *bucket = bucket_of(c, name);
    c->slots[slot] = (struct slot){*name, rank, *bucket};
    *bucket = slot;
    memcpy(c->entries + (uint64_t)slot * c->run_bytes, entries, c->run_bytes);
}

/* The last slot comes in its place, so that those in use stay the first n. */
void run_cache_drop(struct run_cache *c, const struct run_name *name)
{
    uint32_t slot = find(c, name), last = c->n - 1;
    if (slot == NONE)
        return;
    take_out(c, slot);
    c->n = last;
    if (slot == last)
        return;
    take_out(c, last);
    uint32_t *bucket = bucket_of(c, &c->slots[last].name);
    c->slots[slot] = c->slots[last];
    c->slots[slot].next = *bucket;
    *bucket = slot;
    memcpy(c->entries + (uint64_t)slot * c->run_bytes, c->entries + (uint64_t)last * c->run_bytes,
           c->run_bytes);
}
