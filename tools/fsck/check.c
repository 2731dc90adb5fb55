/* tools/fsck/check.c - see check.h. */
#include "tools/fsck/check.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/score.h"
#include "pool/pool_disk.h"

/* One line about something damaged, unless there were enough of its kind. */
static void report_damage(const struct pool_check *c, uint64_t *count, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void report_damage(const struct pool_check *c, uint64_t *count, const char *format, ...)
{
    va_list arguments;
    if (++*count > POOL_CHECK_LINES || c->quiet)
        return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf(*count == POOL_CHECK_LINES ? " (further ones are only counted)\n" : "\n");
}

static void take_damaged(void *context, uint32_t stripe, const char *line)
{
    struct pool_check *c = context;
    (void)stripe;
    report_damage(c, &c->bad_records, "%s", line);
}

/* ---- a stripe ------------------------------------------------------------------------------- */

/* Its parts, and what one slot is compared in. */
struct stripe_bytes {
    uint8_t *keys, *entries, *group; /* keys: or digests */
};

static int allocate(struct stripe_bytes *b, const struct pool_layout *l, struct hill_why *why)
{
    b->keys = malloc(l->digest_stripe_bytes + l->key_stripe_bytes);
    b->entries = malloc(l->entry_stripe_bytes);
    b->group = calloc(1, kv_group_bytes(&l->geometry));
    return b->keys && b->entries && b->group
               ? 0
               : hill_fail(why, HILL_E_NOMEM, "no memory for a stripe of the cold pool");
}

static void release(struct stripe_bytes *b)
{
    free(b->keys);
    free(b->entries);
    free(b->group);
}

/* Is what queries are scored from that of the entry? Parts of keys are not looked at. */
static bool key_fits(const struct pool_layout *l, const uint8_t *entry,
                     const struct stripe_bytes *b, uint32_t slot)
{
    if (l->key_bytes)
        return !pool_has_keys(l) ||
               memcmp(b->keys + (uint64_t)slot * l->key_bytes, entry, l->key_bytes) == 0;
    return kv_digest_is_of(&l->geometry, (const uint16_t *)(const void *)entry, b->keys, slot,
                           b->group);
}

static void check_slot(struct pool_check *c, const struct pool_stripe *s, uint32_t stripe,
                       uint32_t slot, const struct stripe_bytes *b)
{
    const struct kv_geometry *g = &c->layout.geometry;
    const uint8_t *entry = b->entries + (uint64_t)slot * kv_entry_bytes(g);
    if (pool_entry_checksum(entry, kv_entry_bytes(g)) != s->checksums[slot])
        report_damage(
            c, &c->bad_entries,
            "stripe %u, slot %u: the entry of position %u (sequence %u, layer %u) is damaged: its "
            "checksum is wrong",
            stripe, slot, s->positions[slot], s->sequence, s->layer);
    else if (!key_fits(&c->layout, entry, b, slot))
        report_damage(
            c, &c->bad_digests,
            "stripe %u, slot %u: the %s of position %u (sequence %u, layer %u) is damaged: it "
            "is not that of its entry",
            stripe, slot, c->layout.key_bytes ? "key" : "digest", s->positions[slot], s->sequence,
            s->layer);
}

static int read_stripe(const struct pool_layout *l, uint32_t stripe, int fd,
                       const struct stripe_bytes *b, struct hill_why *why)
{
    int code = pool_read_all(fd, b->keys, l->digest_stripe_bytes + l->key_stripe_bytes,
                             pool_read_at(l, stripe * l->stripe_slots),
                             l->key_bytes ? "keys" : "digests", why);
    return code ? code
                : pool_read_all(fd, b->entries, l->entry_stripe_bytes,
                                pool_entry_at(l, stripe * l->stripe_slots), "entries", why);
}

static void check_stripe(struct pool_check *c, const struct pool_directory *d, uint32_t stripe,
                         int fd, const struct stripe_bytes *b)
{
    const struct pool_layout *l = &c->layout;
    const struct pool_stripe *s = &d->stripes[stripe];
    struct hill_why found = {""};
    if (s->sequence == POOL_NO_OWNER)
        return;
    c->stripes++;
    c->slots += s->n_valid;
    if (read_stripe(l, stripe, fd, b, &found)) {
        report_damage(c, &c->bad_stripes,
                      "stripe %u (sequence %u, layer %u) cannot be read, none of its %u slots was "
                      "looked at: %s",
                      stripe, s->sequence, s->layer, s->n_valid, found.text);
        return;
    }
    for (uint32_t slot = 0; slot < l->stripe_slots; slot++)
        if (pool_slot_valid(d, stripe * l->stripe_slots + slot))
            check_slot(c, s, stripe, slot, b);
}

/* ---- what may be there once only ------------------------------------------------------------ */

struct holder {
    uint32_t sequence, layer, what, stripe; /* what: order of a stripe, or position of a slot */
};

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, offsetof(struct holder, stripe));
}

static void find_twice(struct pool_check *c, struct holder *list, uint64_t n, const char *what)
{
    qsort(list, n, sizeof *list, compare);
    for (uint64_t i = 1; i < n; i++)
        if (compare(&list[i - 1], &list[i]) == 0)
            report_damage(c, &c->twice,
                          "stripes %u and %u: %s %u of sequence %u, layer %u is in both",
                          list[i - 1].stripe, list[i].stripe, what, list[i].what, list[i].sequence,
                          list[i].layer);
}

static int check_twice(struct pool_check *c, const struct pool_directory *d, struct hill_why *why)
{
    const struct pool_layout *l = &c->layout;
    struct holder *list = calloc(c->slots + c->stripes + 1, sizeof *list);
    uint64_t n = 0;
    if (!list)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %llu slots",
                         (unsigned long long)c->slots);
    for (uint32_t i = 0; i < l->n_stripes; i++) {
        const struct pool_stripe *s = &d->stripes[i];
        if (s->sequence != POOL_NO_OWNER)
            list[n++] = (struct holder){s->sequence, s->layer, s->order, i};
    }
    find_twice(c, list, n, "stripe order");
    n = 0;
    for (uint32_t slot = 0; slot < l->n_stripes * l->stripe_slots; slot++) {
        const struct pool_stripe *s = &d->stripes[slot / l->stripe_slots];
        if (pool_slot_valid(d, slot))
            list[n++] = (struct holder){s->sequence, s->layer, s->positions[slot % l->stripe_slots],
                                        slot / l->stripe_slots};
    }
    find_twice(c, list, n, "position");
    free(list);
    return 0;
}

int pool_check_file(struct pool_check *c, int fd, struct hill_why *why)
{
    struct pool_directory *d;
    struct stripe_bytes b = {NULL};
    int code = pool_survey(&d, fd, take_damaged, c, why);
    if (code)
        return code;
    c->layout = d->layout;
    c->identity = d->identity;
    c->generation = d->generation;
    code = allocate(&b, &c->layout, why);
    for (uint32_t i = 0; code == 0 && i < c->layout.n_stripes; i++)
        check_stripe(c, d, i, fd, &b);
    if (code == 0)
        code = check_twice(c, d, why);
    release(&b);
    pool_close(d);
    return code;
}
