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

/* What is said of a run. Records of a level lie side by side; so they move, its entries do not. */
struct record {
    struct run_name name;
    double rank;
    uint32_t next;  /* of the same bucket */
    uint32_t place; /* of its entries, in its level; of a record that is free: a free place */
};

struct level {
    uint32_t first, n, n_max; /* records */
};

struct run_cache {
    bool by_age;
    uint32_t run_bytes, n_buckets;
    double clock, half_life; /* uses */
    uint64_t drawn, raised;
    struct level on_device, in_memory;
    struct run_device device;
    struct record *records; /* of the device, then of memory */
    uint32_t *buckets;
    uint8_t *entries; /* [in_memory.n_max][run_bytes] */
    uint8_t *spare;   /* a run that goes down while another one goes up */
};

_Static_assert(sizeof(struct run_name) == 16, "hashed as bytes");

static uint32_t buckets_for(uint32_t n)
{
    uint32_t buckets = 1;
    while (buckets < n)
        buckets *= 2;
    return buckets;
}

/* Runs of a level with this cap, which has so much else in it. */
static uint32_t runs_in(uint64_t cap_bytes, uint64_t beside, uint32_t run_bytes)
{
    uint64_t each = run_bytes + sizeof(struct record) + 2 * sizeof(uint32_t); /* buckets, at most */
    uint64_t n = cap_bytes > beside ? (cap_bytes - beside) / each : 0;
    return n < UINT32_MAX / 4 ? (uint32_t)n : UINT32_MAX / 4;
}

static int allocate(struct run_cache *c)
{
    uint32_t n = c->on_device.n_max + c->in_memory.n_max;
    c->n_buckets = buckets_for(n);
    c->records = malloc(n * sizeof *c->records);
    c->buckets = malloc(c->n_buckets * sizeof *c->buckets);
    c->entries = malloc((uint64_t)c->in_memory.n_max * c->run_bytes);
    c->spare = malloc(c->run_bytes);
    if (!c->records || !c->buckets || (!c->entries && c->in_memory.n_max) || !c->spare)
        return HILL_E_NOMEM;
    memset(c->buckets, 0xff, c->n_buckets * sizeof *c->buckets);
    for (uint32_t i = 0; i < n; i++)
        c->records[i].place = i < c->in_memory.first ? i : i - c->in_memory.first;
    return 0;
}

int run_cache_open(struct run_cache **out, const struct run_cache_terms *t)
{
    uint64_t itself = sizeof(struct run_cache) + t->run_bytes; /* and the spare run */
    uint32_t memory = runs_in(t->memory_bytes, itself, t->run_bytes);
    uint32_t device = runs_in(t->device_bytes, t->memory_bytes ? 0 : itself, t->run_bytes);
    *out = NULL;
    if ((t->memory_bytes && !memory) || (t->device_bytes && !device) || memory + device == 0)
        return HILL_E_INVALID;
    struct run_cache *c = calloc(1, sizeof *c);
    if (!c)
        return HILL_E_NOMEM;
    c->run_bytes = t->run_bytes;
    c->by_age = t->by_age;
    c->half_life = t->by_age ? 1 : HALF_LIVES * (memory + device);
    c->device = t->device;
    c->on_device = (struct level){.first = 0, .n_max = device};
    c->in_memory = (struct level){.first = device, .n_max = memory};
    int rc = allocate(c);
    if (rc)
        run_cache_close(c);
    else
        *out = c;
    return rc;
}

void run_cache_close(struct run_cache *c)
{
    if (c) {
        free(c->records);
        free(c->buckets);
        free(c->entries);
        free(c->spare);
    }
    free(c);
}

uint32_t run_cache_room(const struct run_cache *c)
{
    return c->in_memory.n_max;
}

uint32_t run_cache_slots(const struct run_cache *c)
{
    return c->on_device.n_max;
}

uint64_t run_cache_bytes(const struct run_cache *c)
{
    return sizeof *c + (1 + (uint64_t)c->in_memory.n_max) * c->run_bytes +
           (uint64_t)(c->on_device.n_max + c->in_memory.n_max) * sizeof *c->records +
           c->n_buckets * sizeof *c->buckets;
}

uint64_t run_cache_raised(const struct run_cache *c)
{
    return c->raised;
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
    uint32_t at = *bucket_of(c, name);
    while (at != NONE && !same(&c->records[at].name, name))
        at = c->records[at].next;
    return at;
}

/* After a use now, where so much worth was left of the uses before. */
static double rank_now(const struct run_cache *c, double left, double importance)
{
    double now = c->clock / c->half_life;
    importance = importance > LEAST ? importance : LEAST;
    return c->by_age ? now : log2(left + importance) + now;
}

static bool is_on_device(const struct run_cache *c, uint32_t at)
{
    return at < c->in_memory.first;
}

static uint8_t *entries_at(const struct run_cache *c, uint32_t place)
{
    return c->entries + (uint64_t)place * c->run_bytes;
}

bool run_cache_has(const struct run_cache *c, const struct run_name *name)
{
    return find(c, name) != NONE;
}

bool run_cache_use(struct run_cache *c, const struct run_name *name, double importance,
                   struct run_place *place)
{
    uint32_t at = find(c, name);
    c->clock++;
    if (at == NONE)
        return false;
    struct record *r = &c->records[at];
    r->rank = rank_now(c, exp2(r->rank - c->clock / c->half_life), importance);
    *place = is_on_device(c, at) ? (struct run_place){NULL, r->place}
                                 : (struct run_place){entries_at(c, r->place), 0};
    return true;
}

/* ---- records --------------------------------------------------------------------------------- */

static void find_as(struct run_cache *c, uint32_t at)
{
    uint32_t *bucket = bucket_of(c, &c->records[at].name);
    c->records[at].next = *bucket;
    *bucket = at;
}

static void find_no_more(struct run_cache *c, uint32_t at)
{
    uint32_t *link = bucket_of(c, &c->records[at].name);
    while (*link != at)
        link = &c->records[*link].next;
    *link = c->records[at].next;
}

/* One that is free, in a level with room: its place is given. */
static uint32_t next_free(const struct level *l)
{
    return l->first + l->n;
}

static void take_in(struct run_cache *c, struct level *l, const struct run_name *name, double rank)
{
    uint32_t at = l->first + l->n++;
    c->records[at].name = *name;
    c->records[at].rank = rank;
    find_as(c, at);
}

/* The last record comes in its place, so that those in use stay the first n. */
static void take_out(struct run_cache *c, uint32_t at)
{
    struct level *l = is_on_device(c, at) ? &c->on_device : &c->in_memory;
    uint32_t last = l->first + --l->n, place = c->records[at].place;
    find_no_more(c, at);
    if (at == last)
        return;
    find_no_more(c, last);
    c->records[at] = c->records[last];
    c->records[last].place = place;
    find_as(c, at);
}

/* Another run is where this one was. */
static void replace(struct run_cache *c, uint32_t at, const struct run_name *name, double rank)
{
    find_no_more(c, at);
    c->records[at].name = *name;
    c->records[at].rank = rank;
    find_as(c, at);
}

/* ---- victims --------------------------------------------------------------------------------- */

/* xorshift64*: which ones are compared changes with every turn, and is the same in every run */
static uint32_t draw(struct run_cache *c, uint32_t n)
{
    uint64_t x = c->drawn ? c->drawn : UINT64_C(0x2545f4914f6cdd1d);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    c->drawn = x;
    return (uint32_t)((x * UINT64_C(0x2545f4914f6cdd1d)) >> 32) % n;
}

static uint32_t least_of_some(struct run_cache *c, const struct level *l)
{
    uint32_t least = l->first + draw(c, l->n_max);
    for (uint32_t i = 1; i < DRAWN; i++) {
        uint32_t at = l->first + draw(c, l->n_max);
        least = c->records[at].rank < c->records[least].rank ? at : least;
    }
    return least;
}

/* Where a run of this rank may go in a level: a free record, or one whose run makes room for it.
 * NONE: it has less worth, or there is no such level. */
static uint32_t way_in(struct run_cache *c, const struct level *l, double rank)
{
    if (l->n < l->n_max)
        return next_free(l);
    if (!l->n_max)
        return NONE;
    uint32_t victim = least_of_some(c, l);
    double other = c->records[victim].rank;
    return rank > other || (c->by_age && rank == other) ? victim : NONE;
}

static bool is_free(const struct level *l, uint32_t at)
{
    return at == next_free(l);
}

/* ---- put ------------------------------------------------------------------------------------- */

static int read_slot(struct run_cache *c, uint32_t at, void *entries, struct hill_why *why)
{
    return c->device.read(c->device.context, c->records[at].place, entries, why);
}

static int write_slot(struct run_cache *c, uint32_t at, const void *entries, struct hill_why *why)
{
    return c->device.write(c->device.context, c->records[at].place, entries, why);
}

/* One that is in memory goes up; the device's victim comes in its place. */
static int go_up(struct run_cache *c, uint32_t at, struct hill_why *why)
{
    struct record risen = c->records[at];
    uint8_t *entries = entries_at(c, risen.place);
    uint32_t to = way_in(c, &c->on_device, risen.rank);
    if (to == NONE)
        return 0;
    bool empty = is_free(&c->on_device, to); /* nothing goes down */
    struct record fallen = c->records[to];
    take_out(c, at); /* its record and its place are the next free ones */
    int rc = empty ? 0 : read_slot(c, to, c->spare, why);
    if (!empty)
        take_out(c, to);
    rc = rc ? rc : write_slot(c, next_free(&c->on_device), entries, why);
    if (rc)
        return rc;
    take_in(c, &c->on_device, &risen.name, risen.rank);
    c->raised++;
    if (empty)
        return 0;
    memcpy(entries, c->spare, c->run_bytes);
    take_in(c, &c->in_memory, &fallen.name, fallen.rank);
    return 0;
}

static void put_in_memory(struct run_cache *c, uint32_t at, const struct run_name *name,
                          double rank)
{
    if (is_free(&c->in_memory, at))
        take_in(c, &c->in_memory, name, rank);
    else
        replace(c, at, name, rank);
}

/* The device's victim, whose slot is wanted: into memory, or away. */
static int go_down(struct run_cache *c, uint32_t victim, struct hill_why *why)
{
    struct record fallen = c->records[victim];
    uint32_t to = way_in(c, &c->in_memory, fallen.rank);
    int rc = 0;
    if (to != NONE)
        rc = read_slot(c, victim, c->spare, why);
    take_out(c, victim);
    if (rc || to == NONE)
        return rc;
    memcpy(entries_at(c, c->records[to].place), c->spare, c->run_bytes);
    put_in_memory(c, to, &fallen.name, fallen.rank);
    return 0;
}

int run_cache_put(struct run_cache *c, const struct run_name *name, double importance,
                  const void *entries, struct hill_why *why)
{
    double rank = rank_now(c, 0, importance);
    uint32_t at = find(c, name), to;
    if (at != NONE)
        return is_on_device(c, at) ? 0 : go_up(c, at, why);
    to = way_in(c, &c->on_device, rank);
    if (to != NONE) {
        int rc = is_free(&c->on_device, to) ? 0 : go_down(c, to, why);
        rc = rc ? rc : write_slot(c, next_free(&c->on_device), entries, why);
        if (!rc)
            take_in(c, &c->on_device, name, rank);
        return rc;
    }
    to = way_in(c, &c->in_memory, rank);
    if (to != NONE) {
        memcpy(entries_at(c, c->records[to].place), entries, c->run_bytes);
        put_in_memory(c, to, name, rank);
    }
    return 0;
}

void run_cache_drop(struct run_cache *c, const struct run_name *name)
{
    uint32_t at = find(c, name);
    if (at != NONE)
        take_out(c, at);
}
