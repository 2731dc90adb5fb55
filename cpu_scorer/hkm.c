/* cpu_scorer/hkm.c - see hkm.h. */
#include "cpu_scorer/hkm.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kv/score.h"
#include "placement/gpu_slots.h"
#include "pool/pool.h"

#define SLOTS KV_HOT_BLOCK_TOKENS

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

/* ---- layout ------------------------------------------------------------------------------ */

static uint64_t n_lists(const struct hkm_config *c)
{
    return (uint64_t)c->n_sequences * c->geometry.n_layers;
}

/* Everything in front of the block owners. */
static uint64_t fixed_bytes(const struct hkm_config *c)
{
    return pad64(sizeof(struct hkm_header)) + pad64(n_lists(c) * c->ctx_tokens * 4) +
           pad64(n_lists(c) * sizeof(struct hkm_list)) +
           pad64(gpu_slots_bytes((uint32_t)n_lists(c), c->gpu_slots)) +
           (uint64_t)c->n_sequences * KV_KEPT_BYTES +
           pad64((uint64_t)c->cold_slots * sizeof(struct hkm_check)) +
           n_lists(c) * pad64(c->state_bytes);
}

uint64_t hkm_tables_bytes(const struct hkm_config *config)
{
    return fixed_bytes(config) + 6 * 64; /* and the alignment of the planes */
}

uint64_t hkm_block_bytes(const struct kv_geometry *g)
{
    return sizeof(struct hkm_owner) +
           (uint64_t)SLOTS * (sizeof(uint32_t) + sizeof(struct hkm_check) + kv_digest_bytes(g) +
                              kv_entry_bytes(g));
}

static uint64_t place_offsets(struct hkm_header *header, const struct hkm_config *c)
{
    uint64_t slots = (uint64_t)header->n_blocks * SLOTS, at = pad64(sizeof *header);
    header->words_offset = at;
    at += pad64(n_lists(c) * c->ctx_tokens * 4);
    header->lists_offset = at;
    at += pad64(n_lists(c) * sizeof(struct hkm_list));
    header->gpu_offset = at;
    at += pad64(gpu_slots_bytes((uint32_t)n_lists(c), c->gpu_slots));
    header->kept_offset = at;
    at += (uint64_t)c->n_sequences * KV_KEPT_BYTES;
    header->cold_checks_offset = at;
    at += pad64((uint64_t)c->cold_slots * sizeof(struct hkm_check));
    header->state_offset = at;
    header->state_bytes = pad64(c->state_bytes);
    at += n_lists(c) * header->state_bytes;
    header->owners_offset = at;
    at += pad64(header->n_blocks * sizeof(struct hkm_owner));
    header->positions_offset = at;
    at += pad64(slots * 4);
    header->checks_offset = at;
    at += pad64(slots * sizeof(struct hkm_check));
    header->digests_offset = at;
    at += pad64(slots * kv_digest_bytes(&c->geometry));
    header->entries_offset = at;
    return at + slots * kv_entry_bytes(&c->geometry);
}

static void map_planes(struct hkm *h, uint8_t *memory)
{
    const struct hkm_header *header = h->header;
    h->words = (_Atomic uint32_t *)(memory + header->words_offset);
    h->lists = (struct hkm_list *)(memory + header->lists_offset);
    h->owners = (struct hkm_owner *)(memory + header->owners_offset);
    h->gpu_table = memory + header->gpu_offset;
    h->kept = memory + header->kept_offset;
    h->cold_checks = (struct hkm_check *)(memory + header->cold_checks_offset);
    h->states = memory + header->state_offset;
    h->checks = (struct hkm_check *)(memory + header->checks_offset);
    h->positions = (uint32_t *)(memory + header->positions_offset);
    h->digests = memory + header->digests_offset;
    h->entries = memory + header->entries_offset;
}

/* Every block is free. */
static void empty_lists(struct hkm *h, uint64_t lists)
{
    for (uint64_t i = 0; i < lists; i++)
        h->lists[i] = (struct hkm_list){.first = HKM_NONE};
    for (uint32_t b = 0; b < h->n_blocks; b++)
        h->owners[b] = (struct hkm_owner){.list = HKM_NONE,
                                          .next = b + 1 < h->n_blocks ? b + 1 : HKM_NONE,
                                          .prev = b > 0 ? b - 1 : HKM_NONE};
    memset(h->positions, 0xff, (size_t)h->n_blocks * SLOTS * sizeof *h->positions);
    h->free_block = 0;
    h->n_free = h->n_unreserved = h->n_blocks;
}

/* What the header is to be, but its magic. */
static int fill_header(struct hkm_header *header, uint64_t bytes, const struct hkm_config *config,
                       struct hill_why *why)
{
    const struct kv_geometry *g = &config->geometry;
    uint64_t tables = hkm_tables_bytes(config), block = hkm_block_bytes(g);
    uint64_t fit = bytes > tables ? (bytes - tables) / block : 0;
    if (fit > config->n_blocks)
        fit = config->n_blocks;
    if (fit > HKM_SLOT_MASK / SLOTS)
        fit = HKM_SLOT_MASK / SLOTS;
    if (fit < g->n_layers)
        return hill_fail(
            why, HILL_E_INVALID,
            "cannot lay out the hot pool: %llu bytes hold %llu blocks, %u layers need one each",
            (unsigned long long)bytes, (unsigned long long)fit, g->n_layers);
    memset(header, 0, sizeof *header);
    header->version = HKM_VERSION;
    header->n_layers = g->n_layers;
    header->n_kv_heads = g->n_kv_heads;
    header->head_dim = g->head_dim;
    header->digest_bits = kv_digest_bits(g);
    header->ctx_tokens = config->ctx_tokens;
    header->n_sequences = config->n_sequences;
    header->gpu_slots = config->gpu_slots;
    header->n_blocks = (uint32_t)fit;
    header->n_cold_slots = config->cold_slots;
    header->total_bytes = place_offsets(header, config);
    if (header->total_bytes > bytes)
        abort(); /* a bug: the sums above are what place_offsets adds up */
    return 0;
}

static void map_tables(struct hkm *h, void *memory, const struct hkm_config *config)
{
    struct hkm_header *header = memory;
    *h = (struct hkm){.geometry = config->geometry,
                      .ctx_tokens = config->ctx_tokens,
                      .n_sequences = config->n_sequences,
                      .n_blocks = header->n_blocks,
                      .entry_bytes = kv_entry_bytes(&config->geometry),
                      .header = header};
    map_planes(h, memory);
    empty_lists(h, n_lists(config));
}

int hkm_init(struct hkm *h, void *memory, uint64_t bytes, const struct hkm_config *config,
             struct hill_why *why)
{
    struct hkm_header *header = memory;
    int rc = fill_header(header, bytes, config, why);
    if (rc)
        return rc;
    map_tables(h, memory, config);
    memset(h->words, 0, n_lists(config) * h->ctx_tokens * sizeof *h->words);
    memset(h->kept, 0, (size_t)h->n_sequences * KV_KEPT_BYTES);
    /* release: pairs with the acquire of whoever maps the tables next; they are whole by then */
    atomic_store_explicit(&header->magic, HKM_MAGIC, memory_order_release);
    return 0;
}

int hkm_adopt(struct hkm *h, void *memory, uint64_t bytes, const struct hkm_config *config,
              struct hill_why *why)
{
    struct hkm_header *header = memory, expected;
    int rc = fill_header(&expected, bytes, config, why);
    if (rc)
        return rc;
    /* acquire: pairs with the release in hkm_init; all that it laid out is there */
    uint32_t magic = atomic_load_explicit(&header->magic, memory_order_acquire);
    const size_t first = offsetof(struct hkm_header, version);
    if (magic != HKM_MAGIC || memcmp((const uint8_t *)header + first,
                                     (const uint8_t *)&expected + first, sizeof expected - first))
        return hill_fail(why, HILL_E_DAMAGED, "the hot segment's header is not what was laid out");
    map_tables(h, memory, config);
    return 0;
}

/* ---- blocks ------------------------------------------------------------------------------ */

int hkm_reserve(struct hkm *h, uint32_t sequence, uint32_t blocks_per_layer)
{
    uint32_t has = h->lists[hkm_list_index(h, sequence, 0)].limit;
    uint64_t more = (uint64_t)(blocks_per_layer - has) * h->geometry.n_layers;
    if (blocks_per_layer < has || more > h->n_unreserved)
        return HILL_E_NOSPACE;
    h->n_unreserved -= (uint32_t)more;
    for (uint32_t layer = 0; layer < h->geometry.n_layers; layer++)
        h->lists[hkm_list_index(h, sequence, layer)].limit = blocks_per_layer;
    return 0;
}

uint32_t hkm_extend(struct hkm *h, uint32_t sequence, uint32_t more)
{
    uint32_t there = h->n_unreserved / h->geometry.n_layers;
    uint32_t each = more < there ? more : there;
    h->n_unreserved -= each * h->geometry.n_layers;
    for (uint32_t layer = 0; layer < h->geometry.n_layers; layer++)
        h->lists[hkm_list_index(h, sequence, layer)].limit += each;
    return each;
}

bool hkm_shrink(struct hkm *h, uint32_t sequence, uint32_t blocks_per_layer)
{
    struct hkm_list *lists = &h->lists[hkm_list_index(h, sequence, 0)];
    for (uint32_t layer = 0; layer < h->geometry.n_layers; layer++)
        if (lists[layer].n_blocks > blocks_per_layer || lists[layer].limit < blocks_per_layer)
            return false;
    for (uint32_t layer = 0; layer < h->geometry.n_layers; layer++) {
        h->n_unreserved += lists[layer].limit - blocks_per_layer;
        lists[layer].limit = blocks_per_layer;
    }
    return true;
}

/* The block that would go on where the list's memory ends, so that scoring walks long runs; each
 * list begins as far from the others as its reservation is long. May be taken, or none. */
static uint32_t wanted_block(const struct hkm *h, uint32_t list)
{
    const struct hkm_list *l = &h->lists[list];
    uint64_t want = l->first != HKM_NONE ? (uint64_t)l->first + 1 : (uint64_t)list * l->limit;
    return want < h->n_blocks ? (uint32_t)want : HKM_NONE;
}

static void unlink_free(struct hkm *h, uint32_t block)
{
    const struct hkm_owner *o = &h->owners[block];
    if (o->prev == HKM_NONE)
        h->free_block = o->next;
    else
        h->owners[o->prev].next = o->next;
    if (o->next != HKM_NONE)
        h->owners[o->next].prev = o->prev;
    h->n_free--;
}

/* A free block becomes the list's first. */
static void give_to_list(struct hkm *h, uint32_t list, uint32_t block)
{
    struct hkm_list *l = &h->lists[list];
    unlink_free(h, block);
    h->owners[block] = (struct hkm_owner){.list = list, .next = l->first, .prev = HKM_NONE};
    if (l->first != HKM_NONE)
        h->owners[l->first].prev = block;
    l->first = block;
    l->n_blocks++;
}

/* A free block for the list, put at its front; HKM_NONE when the list has all it may have. */
static uint32_t take_block(struct hkm *h, uint32_t list)
{
    struct hkm_list *l = &h->lists[list];
    if (l->n_blocks == l->limit)
        return HKM_NONE;
    uint32_t block = wanted_block(h, list);
    if (block == HKM_NONE || h->owners[block].list != HKM_NONE)
        block = h->free_block;
    if (block == HKM_NONE)
        abort(); /* a bug: reservations cover the blocks */
    give_to_list(h, list, block);
    return block;
}

static void put_free(struct hkm *h, uint32_t block)
{
    h->owners[block] =
        (struct hkm_owner){.list = HKM_NONE, .next = h->free_block, .prev = HKM_NONE};
    if (h->free_block != HKM_NONE)
        h->owners[h->free_block].prev = block;
    h->free_block = block;
    h->n_free++;
}

static void give_block(struct hkm *h, uint32_t block)
{
    const struct hkm_owner *o = &h->owners[block];
    struct hkm_list *l = &h->lists[o->list];
    if (o->prev == HKM_NONE)
        l->first = o->next;
    else
        h->owners[o->prev].next = o->next;
    if (o->next != HKM_NONE)
        h->owners[o->next].prev = o->prev;
    l->n_blocks--;
    put_free(h, block);
}

static void free_slot(struct hkm *h, uint32_t slot)
{
    struct hkm_owner *o = &h->owners[slot / SLOTS];
    h->positions[slot] = HKM_NO_POSITION;
    o->used &= ~((uint64_t)1 << slot % SLOTS);
    h->lists[o->list].n_hot--;
    if (!o->used)
        give_block(h, slot / SLOTS);
}

/* A run of up to `want` free slots that follow one another in one block of the list; returns its
 * length, 0: none. */
static uint32_t find_run(struct hkm *h, uint32_t list, uint32_t want, uint32_t *slot)
{
    struct hkm_list *l = &h->lists[list];
    uint32_t block = l->first;
    /* the front block is the one being filled; others have holes only where entries went cold */
    if (l->n_hot < (uint64_t)l->n_blocks * SLOTS)
        while (block != HKM_NONE && h->owners[block].used == UINT64_MAX)
            block = h->owners[block].next;
    else
        block = HKM_NONE;
    if (block == HKM_NONE)
        block = take_block(h, list);
    if (block == HKM_NONE)
        return 0;
    uint64_t used = h->owners[block].used;
    uint32_t at = (uint32_t)__builtin_ctzll(~used);
    uint64_t above = used >> at;
    uint32_t run = above ? (uint32_t)__builtin_ctzll(above) : SLOTS - at;
    *slot = block * SLOTS + at;
    return run < want ? run : want;
}

/* ---- entries ----------------------------------------------------------------------------- */

static void set_word(struct hkm *h, uint32_t list, uint32_t position, uint32_t word)
{
    /* release: entry and digest are whole when the word is seen; pairs with the acquire of a
     * successor process that audits the table (this process has one writer, which is the only
     * reader) */
    atomic_store_explicit(&h->words[(uint64_t)list * h->ctx_tokens + position], word,
                          memory_order_release);
}

uint32_t hkm_sum(const struct hkm *h, const void *entry)
{
    return pool_entry_checksum(entry, h->entry_bytes);
}

struct hkm_check hkm_check_of(const struct hkm *h, uint32_t sequence, uint32_t layer,
                              uint32_t position, uint32_t sum)
{
    uint64_t x = h->identities[sequence] * 0x9e3779b97f4a7c15u + ((uint64_t)layer << 32 | position);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u + sum; /* splitmix64's rounds */
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (struct hkm_check){sum, (uint32_t)(x ^ x >> 31)};
}

static struct hkm_check check_list(const struct hkm *h, uint32_t list, uint32_t position,
                                   uint32_t slot)
{
    uint32_t n = h->geometry.n_layers;
    return hkm_check_of(h, list / n, list % n, position, hkm_sum(h, hkm_entry(h, slot)));
}

static void put_run(struct hkm *h, uint32_t list, uint32_t slot, uint32_t first, uint32_t run,
                    const uint8_t *entries)
{
    struct hkm_owner *o = &h->owners[slot / SLOTS];
    uint64_t bits = run == SLOTS ? UINT64_MAX : ((uint64_t)1 << run) - 1;
    memcpy(hkm_entry(h, slot), entries, (size_t)run * h->entry_bytes);
    if (!h->no_digests)
        kv_digest_keys(&h->geometry, (const uint16_t *)(const void *)hkm_entry(h, slot),
                       h->entry_bytes / 2, run, h->digests, slot);
    o->used |= bits << slot % SLOTS;
    h->lists[list].n_hot += run;
    bool checked = h->identities[list / h->geometry.n_layers] != 0;
    for (uint32_t i = 0; i < run; i++) {
        h->positions[slot + i] = first + i;
        if (checked)
            h->checks[slot + i] = check_list(h, list, first + i, slot + i);
        set_word(h, list, first + i, hkm_word(HKM_HOT, slot + i));
    }
}

uint32_t hkm_append(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t first, uint32_t n,
                    const void *entries)
{
    uint32_t list = hkm_list_index(h, sequence, layer), done = 0;
    while (done < n) {
        uint32_t slot = 0, run = find_run(h, list, n - done, &slot);
        if (run == 0)
            break;
        put_run(h, list, slot, first + done, run,
                (const uint8_t *)entries + (uint64_t)done * h->entry_bytes);
        done += run;
    }
    return done;
}

void hkm_set_cold(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t position,
                  uint32_t cold_slot)
{
    uint32_t before = hkm_location(h, sequence, layer, position);
    set_word(h, hkm_list_index(h, sequence, layer), position, hkm_word(HKM_COLD, cold_slot));
    if (hkm_tag(before) == HKM_HOT)
        free_slot(h, hkm_slot(before));
}

static void release_list(struct hkm *h, uint32_t list)
{
    struct hkm_list *l = &h->lists[list];
    for (uint32_t p = 0; p < h->ctx_tokens; p++)
        set_word(h, list, p, hkm_word(HKM_NOWHERE, 0));
    while (l->first != HKM_NONE) {
        uint32_t block = l->first;
        memset(&h->positions[(uint64_t)block * SLOTS], 0xff, SLOTS * sizeof *h->positions);
        give_block(h, block);
    }
    h->n_unreserved += l->limit;
    *l = (struct hkm_list){.first = HKM_NONE};
}

void hkm_release(struct hkm *h, uint32_t sequence)
{
    for (uint32_t layer = 0; layer < h->geometry.n_layers; layer++)
        release_list(h, hkm_list_index(h, sequence, layer));
    h->identities[sequence] = 0;
}

int hkm_lend(struct hkm *h, uint32_t n, uint32_t *blocks)
{
    uint32_t found = 0;
    if (n > h->n_unreserved || n > h->n_free)
        return HILL_E_NOSPACE;
    while (found < n) { /* so many are free: reservations say so */
        uint32_t block = (h->lend_below ? h->lend_below : h->n_blocks) - 1;
        h->lend_below = block;
        if (h->owners[block].list != HKM_NONE)
            continue;
        unlink_free(h, block);
        h->owners[block].list = HKM_LENT;
        blocks[found++] = block;
    }
    h->n_unreserved -= n;
    return 0;
}

void hkm_give_back(struct hkm *h, uint32_t block)
{
    put_free(h, block);
    h->n_unreserved++;
}

void hkm_rename(struct hkm *h, uint32_t sequence, uint32_t n_tokens, uint64_t identity)
{
    bool checked = h->identities[sequence] != 0;
    h->identities[sequence] = identity;
    for (uint32_t layer = 0; checked && layer < h->geometry.n_layers; layer++)
        for (uint32_t p = 0; p < n_tokens; p++) {
            uint32_t word = hkm_location(h, sequence, layer, p), slot = hkm_slot(word);
            struct hkm_check *check =
                hkm_tag(word) == HKM_HOT ? &h->checks[slot] : &h->cold_checks[slot];
            *check = hkm_check_of(h, sequence, layer, p, check->sum);
        }
}

void hkm_drop(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t position)
{
    uint32_t before = hkm_location(h, sequence, layer, position);
    set_word(h, hkm_list_index(h, sequence, layer), position, hkm_word(HKM_NOWHERE, 0));
    if (hkm_tag(before) == HKM_HOT)
        free_slot(h, hkm_slot(before));
}

/* ---- recovery ---------------------------------------------------------------------------- */

/* This block is the list's: it was before, or it is free. */
static bool own_block(struct hkm *h, uint32_t list, uint32_t block)
{
    struct hkm_list *l = &h->lists[list];
    if (h->owners[block].list == list)
        return true;
    if (h->owners[block].list != HKM_NONE || l->n_blocks == l->limit)
        return false;
    give_to_list(h, list, block);
    return true;
}

static int recover_hot(struct hkm *h, uint32_t list, uint32_t position, uint32_t slot,
                       struct hill_why *why)
{
    uint32_t block = slot / SLOTS;
    if (block >= h->n_blocks)
        return hill_fail(why, HILL_E_DAMAGED, "position %u: hot slot %u is none", position, slot);
    struct hkm_check is = check_list(h, list, position, slot);
    if (memcmp(&h->checks[slot], &is, sizeof is) != 0)
        return hill_fail(why, HILL_E_DAMAGED, "position %u: hot slot %u has another entry",
                         position, slot);
    uint64_t bit = (uint64_t)1 << slot % SLOTS;
    if (!own_block(h, list, block) || (h->owners[block].used & bit))
        return hill_fail(why, HILL_E_DAMAGED, "position %u: hot slot %u is another's", position,
                         slot);
    h->owners[block].used |= bit;
    h->lists[list].n_hot++;
    h->positions[slot] = position;
    if (!h->no_digests)
        kv_digest_keys(&h->geometry, (const uint16_t *)(const void *)hkm_entry(h, slot),
                       h->entry_bytes / 2, 1, h->digests, slot);
    return 0;
}

static int recover_list(struct hkm *h, uint32_t list, uint32_t n_tokens, struct damage *damage,
                        struct hill_why *why)
{
    _Atomic uint32_t *words = &h->words[(uint64_t)list * h->ctx_tokens];
    int rc = 0;
    for (uint32_t p = 0; rc == 0 && p < n_tokens; p++) {
        /* acquire: pairs with the release of a predecessor's set_word */
        uint32_t word = atomic_load_explicit(&words[p], memory_order_acquire);
        if (hkm_tag(word) == HKM_HOT)
            rc = recover_hot(h, list, p, hkm_slot(word), why);
        else if (hkm_tag(word) != HKM_COLD)
            rc = hill_fail(why, HILL_E_DAMAGED, "position %u is in no tier", p);
        if (rc && damage && damage_add(damage, list % h->geometry.n_layers, p)) {
            set_word(h, list, p, hkm_word(HKM_NOWHERE, 0));
            rc = 0;
        }
    }
    for (uint32_t p = n_tokens; p < h->ctx_tokens; p++)
        set_word(h, list, p, hkm_word(HKM_NOWHERE, 0));
    return rc;
}

uint32_t hkm_placed(const struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && hkm_tag(hkm_location(h, sequence, layer, n)) != HKM_NOWHERE)
        n++;
    return n;
}

int hkm_recover(struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t n_tokens,
                struct damage *damage, struct hill_why *why)
{
    if (n_tokens > h->ctx_tokens)
        return hill_fail(why, HILL_E_DAMAGED, "%u tokens of a context of %u", n_tokens,
                         h->ctx_tokens);
    return recover_list(h, hkm_list_index(h, sequence, layer), n_tokens, damage, why);
}

uint32_t hkm_blocks(const struct hkm *h, uint32_t sequence, uint32_t layer, uint32_t *blocks,
                    uint32_t max)
{
    uint32_t n = 0;
    uint32_t block = h->lists[hkm_list_index(h, sequence, layer)].first;
    for (; block != HKM_NONE && n < max; block = h->owners[block].next)
        blocks[n++] = block;
    for (uint32_t i = 0; i < n / 2; i++) { /* oldest first: as they follow one another in memory */
        uint32_t swap = blocks[i];
        blocks[i] = blocks[n - 1 - i];
        blocks[n - 1 - i] = swap;
    }
    return n;
}
