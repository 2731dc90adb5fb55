/*
 * proto/records.c - checks a data-plane record before anyone follows its counts.
 *
 * Every fixed part is checked to be there, then every count against its limit, then the record's
 * size against the counts, so that arrays may be walked afterwards. Sizes are computed in 64 bits.
 * Who calls it: every worker, once for each record that it peeks. Concurrency: pure functions.
 * Failure: HILL_E_PROTOCOL with record and field in why; the receiver counts and drops the record.
 */
#include "proto/records.h"

#include <string.h>

#include "kv/plane.h"
#include "kv/score.h"
#include "proto/envelope.h"
#include "proto/layout.h"

#define FAIL(why, ...) hill_fail(why, HILL_E_PROTOCOL, __VA_ARGS__)

/* What a check needs; parts of it are the record's own. */
struct checked {
    const void *payload;
    uint64_t bytes;
    const struct kv_geometry *geometry;
    uint32_t n_sequences;
    const char *name;
    struct hill_why *why;
};

static int check_size(const struct checked *c, uint64_t expected)
{
    if (c->bytes != expected)
        return FAIL(c->why, "%s record has %llu bytes, its counts ask for %llu", c->name,
                    (unsigned long long)c->bytes, (unsigned long long)expected);
    return 0;
}

static int check_range(const struct checked *c, const char *field, uint64_t value, uint64_t low,
                       uint64_t high)
{
    if (value < low || value > high)
        return FAIL(c->why, "%s record: %s is %llu, not %llu..%llu", c->name, field,
                    (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
    return 0;
}

static int check_status(const struct checked *c, int32_t status)
{
    if (status > 0 || status < HILL_E_LAST)
        return FAIL(c->why, "%s record: status %d is no error code", c->name, status);
    return 0;
}

/* The first check that fails is the answer. */
#define TRY(check)                                                                                 \
    do {                                                                                           \
        int rc = check;                                                                            \
        if (rc)                                                                                    \
            return rc;                                                                             \
    } while (0)
#define RANGE(field, low, high) TRY(check_range(c, #field, r->field, low, high))

struct kv_selection_settings record_selection_settings(const struct record_seq_begin *r)
{
    return (struct kv_selection_settings){.alpha = r->alpha,
                                          .budget = r->budget,
                                          .sinks = r->sinks,
                                          .window = r->window,
                                          .policy = r->policy,
                                          .importance = r->importance,
                                          .exact_below = r->exact_below,
                                          .granularity = r->granularity};
}

static int check_seq_begin(const struct checked *c)
{
    const struct record_seq_begin *r = c->payload;
    struct kv_selection_settings settings = record_selection_settings(r);
    struct hill_why detail = {""};
    TRY(check_size(c, sizeof(*r)));
    RANGE(max_tokens, 1, KV_MAX_TOKENS);
    RANGE(prompt_tokens, 1, r->max_tokens);
    RANGE(reads_hot, 0, 1);
    RANGE(adopt_max, 0, r->identity ? r->max_tokens : 0);
    RANGE(adopt_min, 0, r->adopt_max);
    RANGE(after_tokens, r->after ? 1 : 0, r->after ? r->prompt_tokens - 1 : 0);
    RANGE(past_tokens, 0, r->prompt_tokens);
    return kv_selection_check(&settings, &detail)
               ? FAIL(c->why, "%s record: %s", c->name, detail.text)
               : 0;
}

static int check_append(const struct checked *c)
{
    const struct record_append *r = c->payload;
    RANGE(n_tokens, 1, KV_MAX_TOKENS);
    RANGE(first, 0, KV_MAX_TOKENS - r->n_tokens);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_tokens * kv_entry_bytes(c->geometry));
}

static int check_step_end(const struct checked *c)
{
    const struct record_step_end *r = c->payload;
    RANGE(n_tokens, 1, KV_MAX_TOKENS);
    return check_size(c, sizeof(*r));
}

static int check_seq_end(const struct checked *c)
{
    const struct record_seq_end *r = c->payload;
    TRY(check_status(c, r->status));
    RANGE(keep, 0, 1);
    return check_size(c, sizeof(*r));
}

static int check_query(const struct checked *c)
{
    const struct record_query *r = c->payload;
    const struct kv_geometry *g = c->geometry;
    RANGE(kind, QUERY_EXACT, QUERY_KINDS - 1);
    uint32_t heads = r->kind == QUERY_KNOWN ? 0 : g->n_heads;
    RANGE(n_heads, heads, heads);
    RANGE(n_tokens, 1, KV_MAX_TOKENS);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_heads * g->head_dim * sizeof(float));
}

static int check_prompt(const struct checked *c)
{
    const struct record_prompt *r = c->payload;
    RANGE(total_bytes, 1, PROTO_MESSAGE_MAX);
    RANGE(n_bytes, 1, r->total_bytes);
    RANGE(first_byte, 0, r->total_bytes - r->n_bytes);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_bytes);
}

static int check_read(const struct checked *c)
{
    const struct record_read *r = c->payload;
    RANGE(n_tokens, 1, KV_MAX_TOKENS);
    RANGE(first, 0, KV_MAX_TOKENS - r->n_tokens);
    RANGE(what, READ_ENTRIES, READ_MASS);
    RANGE(ahead, 0, 1);
    return check_size(c, sizeof(*r));
}

static int check_mass(const struct checked *c)
{
    const struct record_mass *r = c->payload;
    TRY(check_status(c, r->status));
    RANGE(n_tokens, r->status ? 0 : 1, r->status ? 0 : KV_MAX_TOKENS);
    RANGE(first, 0, KV_MAX_TOKENS - r->n_tokens);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_tokens * sizeof(float));
}

static int check_entries(const struct checked *c)
{
    const struct record_entries *r = c->payload;
    TRY(check_status(c, r->status));
    RANGE(n_entries, 0, KV_MAX_TOKENS);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_entries * sizeof(struct staged_entry));
}

static int check_item(const struct checked *c, const struct selected_item *items, uint32_t i)
{
    TRY(check_range(c, "position", items[i].position,
                    i == 0 ? 0 : (uint64_t)items[i - 1].position + 1, KV_MAX_TOKENS - 1));
    TRY(check_range(c, "slot", items[i].gpu_slot, 0, 2 * (uint64_t)SELECTED_HOT - 1));
    return 0;
}

static int check_selection(const struct checked *c)
{
    const struct record_selection *r = c->payload;
    const struct selected_item *items = (const void *)(r + 1);
    TRY(check_status(c, r->status));
    RANGE(n_selected, 0, KV_MAX_TOKENS);
    RANGE(n_uploads, 0, r->n_selected);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_selected * sizeof(struct selected_item) +
                          (uint64_t)r->n_uploads * sizeof(struct selected_upload)));
    for (uint32_t i = 0; i < r->n_selected; i++)
        TRY(check_item(c, items, i));
    return 0;
}

/* Each within what is kept, and behind the one before it. */
static int check_damaged(const struct checked *c, const struct damaged_entry *entries, uint32_t i)
{
    const struct record_seq_ready *r = c->payload;
    const struct damaged_entry *e = &entries[i], *before = &entries[i ? i - 1 : 0];
    bool same = i && e->position == before->position;
    TRY(check_range(c, "a damaged position", e->position, i ? before->position : 0,
                    r->kept_tokens - 1));
    return check_range(c, "a damaged layer", e->layer, same ? before->layer + 1 : 0,
                       c->geometry->n_layers - 1);
}

static int check_seq_ready(const struct checked *c)
{
    const struct record_seq_ready *r = c->payload;
    TRY(check_status(c, r->status));
    RANGE(hot_entries, 0, SELECTED_HOT);
    RANGE(kept_tokens, 0, r->status ? 0 : KV_MAX_TOKENS);
    RANGE(n_damaged, 0, r->kept_tokens ? RECORD_DAMAGED_MAX : 0);
    RANGE(replay_to, 0, r->kept_tokens ? UINT32_MAX : 0);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_damaged * sizeof(struct damaged_entry)));
    for (uint32_t i = 0; i < r->n_damaged; i++)
        TRY(check_damaged(c, (const struct damaged_entry *)(r + 1), i));
    return 0;
}

static int check_agent_query(const struct checked *c)
{
    const struct record_agent_query *r = c->payload;
    const struct kv_geometry *g = c->geometry;
    RANGE(importance, 0, KV_IMPORTANCE_COUNT - 1);
    RANGE(block_tokens, 1, UINT16_MAX + 1);
    RANGE(committed, 0, KV_MAX_TOKENS);
    RANGE(expected, 0, r->committed);
    RANGE(n_host_words, 0, RECORD_HOST_WORDS_MAX);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_host_words * sizeof(uint64_t) +
                          kv_query_bytes(g, r->importance)));
    struct kv_query query = kv_query_at(g, r->importance, record_agent_query_terms(r));
    for (uint32_t t = 0; t < kv_query_terms(g, r->importance); t++)
        TRY(check_range(c, "query shift", query.shifts[t], 0, KV_QUERY_SHIFT_MAX));
    uint64_t n = (uint64_t)kv_query_terms(g, r->importance) * g->head_dim;
    if (memchr(query.mantissas, INT8_MIN, n)) /* kernels negate them (kv/score_avx2.c) */
        return FAIL(c->why, "%s record: a query mantissa is -128, not -127..127", c->name);
    return 0;
}

/* And of RELEASE, whose layout is the same. */
static int check_commit(const struct checked *c)
{
    const struct record_commit *r = c->payload;
    RANGE(n_slots, 1, LAYOUT_COMMIT_SLOTS_MAX);
    return check_size(c, sizeof(*r) + (uint64_t)r->n_slots * sizeof(uint32_t));
}

static int check_fetch(const struct checked *c)
{
    const struct record_fetch *r = c->payload;
    const struct fetch_item *items = (const void *)(r + 1);
    RANGE(n_entries, 1, LAYOUT_FETCH_ITEMS_MAX);
    RANGE(n_rows, 0, c->n_sequences - 1);
    const struct fetch_row *rows = (const void *)(items + r->n_entries);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_entries * sizeof(*items) +
                          (uint64_t)r->n_rows * sizeof(*rows)));
    for (uint32_t i = 0; i < r->n_entries; i++)
        TRY(check_range(c, "position", items[i].position, 0, KV_MAX_TOKENS - 1));
    for (uint32_t i = 0; i < r->n_rows; i++) { /* each has an item */
        TRY(check_range(c, "a row's first", rows[i].first, i ? rows[i - 1].first + 1 : 1,
                        r->n_entries - 1));
        TRY(check_range(c, "a row's sequence", rows[i].sequence, 0, c->n_sequences - 1));
    }
    return 0;
}

static int check_read_keys(const struct checked *c)
{
    const struct record_read_keys *r = c->payload;
    const struct key_range *ranges = (const void *)(r + 1);
    RANGE(n_ranges, 1, LAYOUT_KEY_RANGES_MAX);
    RANGE(window, 0, KV_KEY_WINDOWS - 1);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_ranges * sizeof(*ranges)));
    for (uint32_t i = 0; i < r->n_ranges; i++)
        TRY(check_range(c, "n_slots", ranges[i].n_slots, 1, RECORD_STRIPE_SLOTS_MAX));
    return 0;
}

/* Slots that a DEMOTE names: ascending from first_slot on. */
static int check_slots(const struct checked *c, const struct record_demote *r, uint64_t at)
{
    const uint32_t *slots = (const void *)((const uint8_t *)c->payload + at);
    TRY(check_range(c, "slot", slots[0], r->first_slot, r->first_slot));
    for (uint32_t i = 1; i < r->n_slots; i++)
        TRY(check_range(c, "slot", slots[i], (uint64_t)slots[i - 1] + 1, UINT32_MAX));
    return 0;
}

static int check_demote(const struct checked *c)
{
    const struct record_demote *r = c->payload;
    const uint32_t *positions = (const void *)(r + 1);
    struct demote_parts parts;
    RANGE(n_slots, 1, RECORD_STRIPE_SLOTS_MAX);
    RANGE(first_slot, 0, UINT32_MAX - r->n_slots);
    record_demote_parts(&parts, c->geometry, r->first_slot, r->n_slots);
    RANGE(scattered, 0, 1);
    TRY(check_size(c, r->scattered ? parts.scattered_total : parts.total));
    for (uint32_t i = 0; i < r->n_slots; i++)
        TRY(check_range(c, "position", positions[i], 0, KV_MAX_TOKENS - 1));
    return r->scattered ? check_slots(c, r, parts.total) : 0;
}

static int check_adopt(const struct checked *c)
{
    const struct record_adopt *r = c->payload;
    const struct adopt_item *items = (const void *)(r + 1);
    RANGE(n_slots, 0, RECORD_STRIPE_SLOTS_MAX);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n_slots * sizeof(*items)));
    for (uint32_t i = 0; i < r->n_slots; i++) {
        TRY(check_range(c, "slot", items[i].slot, i ? (uint64_t)items[i - 1].slot + 1 : 0,
                        INT32_MAX));
        TRY(check_range(c, "position", items[i].position, 0, KV_MAX_TOKENS - 1));
    }
    return 0;
}

static int check_score_block(const struct checked *c)
{
    const struct record_score_block *r = c->payload;
    const struct score_tuple *tuples = (const void *)(r + 1);
    RANGE(version, SCORE_BLOCK_VERSION, SCORE_BLOCK_VERSION);
    RANGE(planes, 1, 1);
    RANGE(first_slot, 0, RECORD_STRIPE_SLOTS_MAX - 1);
    RANGE(n, 0, RECORD_STRIPE_SLOTS_MAX - r->first_slot);
    TRY(check_size(c, sizeof(*r) + (uint64_t)r->n * sizeof(*tuples)));
    for (uint32_t i = 0; i < r->n; i++)
        TRY(check_range(c, "slot offset", tuples[i].slot_offset, 0,
                        RECORD_STRIPE_SLOTS_MAX - 1 - r->first_slot));
    return 0;
}

static int check_completion(const struct checked *c)
{
    const struct record_completion *r = c->payload;
    TRY(check_status(c, r->status));
    RANGE(command, RECORD_AGENT_QUERY, RECORD_ADOPT);
    RANGE(count, 0, KV_MAX_TOKENS);
    RANGE(busy_ns, 0, RECORD_BUSY_NS_MAX);
    return check_size(c, sizeof(*r));
}

static const struct {
    uint32_t type, fixed_bytes;
    const char *name;
    int (*check)(const struct checked *c); /* NULL: there is nothing but its size */
} kinds[] = {
    {RECORD_SEQ_BEGIN, sizeof(struct record_seq_begin), "SEQ_BEGIN", check_seq_begin},
    {RECORD_APPEND, sizeof(struct record_append), "APPEND", check_append},
    {RECORD_STEP_END, sizeof(struct record_step_end), "STEP_END", check_step_end},
    {RECORD_SEQ_END, sizeof(struct record_seq_end), "SEQ_END", check_seq_end},
    {RECORD_QUERY, sizeof(struct record_query), "QUERY", check_query},
    {RECORD_READS_DONE, sizeof(struct record_reads_done), "READS_DONE", NULL},
    {RECORD_PROMPT, sizeof(struct record_prompt), "PROMPT", check_prompt},
    {RECORD_RESUME, sizeof(struct record_resume), "RESUME", NULL},
    {RECORD_READ, sizeof(struct record_read), "READ", check_read},
    {RECORD_MASS, sizeof(struct record_mass), "MASS", check_mass},
    {RECORD_ENTRIES, sizeof(struct record_entries), "ENTRIES", check_entries},
    {RECORD_SELECTION, sizeof(struct record_selection), "SELECTION", check_selection},
    {RECORD_SEQ_READY, sizeof(struct record_seq_ready), "SEQ_READY", check_seq_ready},
    {RECORD_SEQ_STATS, sizeof(struct record_seq_stats), "SEQ_STATS", NULL},
    {RECORD_AGENT_QUERY, sizeof(struct record_agent_query), "AGENT_QUERY", check_agent_query},
    {RECORD_COMMIT, sizeof(struct record_commit), "COMMIT", check_commit},
    {RECORD_FETCH, sizeof(struct record_fetch), "FETCH", check_fetch},
    {RECORD_READ_KEYS, sizeof(struct record_read_keys), "READ_KEYS", check_read_keys},
    {RECORD_TRIM, sizeof(struct record_trim), "TRIM", NULL},
    {RECORD_DEMOTE, sizeof(struct record_demote), "DEMOTE", check_demote},
    {RECORD_RELEASE, sizeof(struct record_release), "RELEASE", check_commit},
    {RECORD_ADOPT, sizeof(struct record_adopt), "ADOPT", check_adopt},
    {RECORD_SCORE_BLOCK, sizeof(struct record_score_block), "SCORE_BLOCK", check_score_block},
    {RECORD_COMPLETION, sizeof(struct record_completion), "COMPLETION", check_completion},
};

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

const char *record_name(uint32_t type)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (kinds[i].type == type)
            return kinds[i].name;
    }
    return "unknown";
}

void record_demote_parts(struct demote_parts *out, const struct kv_geometry *g, uint32_t first_slot,
                         uint32_t n_slots)
{
    uint64_t n = n_slots;
    out->positions = sizeof(struct record_demote);
    out->digests = out->positions + record_pad16(n * sizeof(uint32_t));
    out->entries =
        out->digests + (uint64_t)kv_groups_touched(first_slot, n_slots) * kv_group_bytes(g);
    out->total = out->entries + n * kv_entry_bytes(g);
    out->scattered_total = out->total + n * sizeof(uint32_t);
}

int record_check(uint32_t type, const void *payload, uint32_t payload_bytes,
                 const struct kv_geometry *g, uint32_t n_sequences, struct hill_why *why)
{
    size_t kind = 0;
    while (kind < N_KINDS && kinds[kind].type != type)
        kind++;
    if (kind == N_KINDS)
        return FAIL(why, "record type %u is unknown", type);
    struct checked c = {payload, payload_bytes, g, n_sequences, kinds[kind].name, why};
    if (payload_bytes < kinds[kind].fixed_bytes)
        return FAIL(why, "%s record has %u bytes, fewer than its fixed %u", c.name, payload_bytes,
                    kinds[kind].fixed_bytes);
    const struct record_header *header = payload;
    int rc = n_sequences == 0 ? FAIL(why, "%s record: there are no sequences", c.name)
                              : check_range(&c, "sequence", header->sequence, 0, n_sequences - 1);
    if (rc == 0)
        rc = check_range(&c, "layer", header->layer, 0, g->n_layers - 1);
    if (rc == 0)
        rc = kinds[kind].check ? kinds[kind].check(&c) : check_size(&c, kinds[kind].fixed_bytes);
    return rc;
}
