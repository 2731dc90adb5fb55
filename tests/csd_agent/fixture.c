/*
 * tests/csd_agent/fixture.c - random numbers, the folder, and the model of the cold pool.
 * Interface: fixture.h.
 */
#include "tests/csd_agent/fixture.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include "tests/filter.h"
#include "tests/kv/digests.h"

static uint64_t random_state;
char folder[64];

void random_seed(uint64_t fixed)
{
    const char *text = getenv("HILL_TEST_SEED");
    random_state = text ? strtoull(text, NULL, 0) : fixed;
    print_message("seed %llu (HILL_TEST_SEED to change it)\n", (unsigned long long)random_state);
}

static uint64_t random_next(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t random_below(uint32_t n)
{
    return (uint32_t)(random_next() % n);
}

void random_bytes(void *memory, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)memory)[i] = (uint8_t)random_next();
}

void random_mantissas(int8_t *m, size_t n)
{
    uint32_t kind = random_below(8);
    for (size_t i = 0; i < n; i++)
        m[i] = kind == 0   ? 127
               : kind == 1 ? -127
               : kind == 2 ? 0
                           : (int8_t)((int)random_below(255) - 127);
}

struct kv_query random_query(const struct kv_geometry *g, uint32_t importance)
{
    uint32_t terms = kv_query_terms(g, importance);
    int64_t *offsets = malloc(kv_query_bytes(g, importance));
    assert_non_null(offsets);
    int8_t *mantissas = (int8_t *)(offsets + terms);
    uint8_t *shifts = (uint8_t *)mantissas + (size_t)terms * g->head_dim;
    random_mantissas(mantissas, (size_t)terms * g->head_dim);
    for (uint32_t t = 0; t < terms; t++) {
        int64_t size = (int64_t)1 << random_below(44); /* terms are of that order */
        offsets[t] = (int64_t)random_below(1u << 20) * size / (1 << 19) - size;
        shifts[t] = (uint8_t)random_below(KV_QUERY_SHIFT_MAX + 1);
    }
    return kv_query_at(g, importance, offsets);
}

void free_query(struct kv_query *query)
{
    free((void *)(uintptr_t)query->offsets);
}

void random_keys(const struct kv_geometry *g, int8_t *m)
{
    random_mantissas(m, kv_key_dims(g));
    for (uint32_t i = 0; kv_digest_bits(g) == 4 && i < kv_key_dims(g); i++)
        m[i] = (int8_t)(m[i] % 8);
}

void random_digests(const struct kv_geometry *g, uint8_t *groups, uint32_t n_groups)
{
    uint32_t dims = kv_key_dims(g), n = KV_GROUP_TOKENS * dims;
    uint16_t *keys = calloc(n, sizeof *keys);
    assert_non_null(keys);
    for (uint32_t group = 0; group < n_groups; group++) {
        uint16_t kept = (uint16_t)(0x8000u | ((2u << random_below(15)) - 1));
        random_bytes(keys, n * sizeof *keys);
        for (uint32_t i = 0; i < n; i++)
            keys[i] &= kept;
        kv_digest_keys(g, keys, dims, KV_GROUP_TOKENS, groups, (uint64_t)group * KV_GROUP_TOKENS);
    }
    free(keys);
}

int make_folder(void **state)
{
    (void)state;
    hill_log_init("test", HILL_LOG_ERROR);
    snprintf(folder, sizeof folder, "/tmp/hill-csd-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

int make_memory_folder(void **state)
{
    struct statfs status;

    (void)state;
    hill_log_init("test", HILL_LOG_ERROR);
    snprintf(folder, sizeof folder, "/dev/shm/hill-csd-test-XXXXXX");
    if (statfs("/dev/shm", &status) != 0 || status.f_type != TMPFS_MAGIC || !mkdtemp(folder))
        folder[0] = 0;
    return 0;
}

void skip_without_folder(void)
{
    if (!folder[0])
        skip();
}

int remove_folder(void **state)
{
    char path[96];

    (void)state;
    if (!folder[0])
        return 0;
    snprintf(path, sizeof path, "%s/pool", folder);
    unlink(path);
    return rmdir(folder); /* fails when a test left something else behind */
}

const char *pool_path(void)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/pool", folder);
    return path;
}

const char *pool_url(void)
{
    static char url[128];
    snprintf(url, sizeof url, "file:%s", pool_path());
    return url;
}

void model_init(struct model *m, const struct pool_layout *layout, uint32_t n_sequences)
{
    size_t slots = (size_t)layout->n_stripes * layout->stripe_slots;
    *m = (struct model){.g = layout->geometry,
                        .stripe_slots = layout->stripe_slots,
                        .n_stripes = layout->n_stripes,
                        .n_sequences = n_sequences};
    m->slots = calloc(slots, sizeof *m->slots);
    m->stripes = calloc(layout->n_stripes, sizeof *m->stripes);
    m->mantissas = calloc(slots, kv_key_dims(&m->g));
    m->exponents = calloc(slots, m->g.n_kv_heads);
    m->entries = calloc(slots, kv_entry_bytes(&m->g));
    assert_true(m->slots && m->stripes && m->mantissas && m->exponents && m->entries);
}

void model_free(struct model *m)
{
    free(m->slots);
    free(m->stripes);
    free(m->mantissas);
    free(m->exponents);
    free(m->entries);
}

uint32_t model_committed(const struct model *m, uint32_t sequence, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < m->n_stripes; s++)
        for (uint32_t i = 0; m->stripes[s].claimed && m->stripes[s].sequence == sequence &&
                             m->stripes[s].layer == layer && i < m->stripe_slots;
             i++)
            n += m->slots[s * m->stripe_slots + i].state == SLOT_COMMITTED;
    return n;
}

uint32_t random_host(uint64_t words[HOST_WORDS_MAX])
{
    uint32_t n = random_below(HOST_WORDS_MAX + 1), dense = random_below(3);
    for (uint32_t i = 0; i < HOST_WORDS_MAX; i++) { /* a quarter of the bits, half, all */
        random_bytes(&words[i], sizeof words[i]);
        uint64_t more;
        random_bytes(&more, sizeof more);
        words[i] = dense == 0 ? words[i] & more : dense == 1 ? words[i] : UINT64_MAX;
    }
    return n;
}

bool model_host_has(const struct model *m, const uint64_t *words, uint32_t n_words, uint32_t slot)
{
    uint32_t in_order =
        m->stripes[slot / m->stripe_slots].order * m->stripe_slots + slot % m->stripe_slots;
    uint32_t bit = in_order / 64;
    return bit < n_words * 64 && (words[bit / 64] >> bit % 64 & 1);
}

uint32_t model_host_committed(const struct model *m, uint32_t sequence, uint32_t layer,
                              const uint64_t *words, uint32_t n_words)
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < m->n_stripes * m->stripe_slots; slot++) {
        const struct model_stripe *s = &m->stripes[slot / m->stripe_slots];
        n += s->claimed && s->sequence == sequence && s->layer == layer &&
             m->slots[slot].state == SLOT_COMMITTED && model_host_has(m, words, n_words, slot);
    }
    return n;
}

uint32_t model_stripe_for(struct model *m, uint32_t sequence, uint32_t layer, bool fresh)
{
    uint32_t best = UINT32_MAX, orders = 0;
    for (uint32_t s = 0; s < m->n_stripes; s++) {
        const struct model_stripe *x = &m->stripes[s];
        if (!x->claimed || x->sequence != sequence || x->layer != layer)
            continue;
        orders++;
        if (best == UINT32_MAX || x->order > m->stripes[best].order)
            best = s;
    }
    if (best != UINT32_MAX && !fresh)
        return best;
    for (uint32_t tries = 0; tries < 64; tries++) {
        uint32_t s = random_below(m->n_stripes);
        if (!m->stripes[s].claimed) {
            m->stripes[s] = (struct model_stripe){true, sequence, layer, orders};
            return s;
        }
    }
    return best;
}

/* The digest of the slot's entry, as the scorer makes it. */
static void model_digest(struct model *m, uint32_t slot)
{
    uint32_t dims = m->g.head_dim, heads = m->g.n_kv_heads, bytes = kv_entry_bytes(&m->g);
    const void *entry = m->entries + (size_t)slot * bytes;
    uint8_t *group = calloc(1, kv_group_bytes(&m->g));
    assert_non_null(group);
    kv_digest_keys(&m->g, entry, bytes / 2, 1, group, 0);
    for (uint32_t h = 0; h < heads; h++)
        m->exponents[(size_t)slot * heads + h] = kv_digest_get_head(
            &m->g, group, 0, h, m->mantissas + ((size_t)slot * heads + h) * dims);
    free(group);
}

void model_write(struct model *m, uint32_t first, uint32_t n)
{
    for (uint32_t slot = first; slot < first + n; slot++) {
        random_bytes(m->entries + (size_t)slot * kv_entry_bytes(&m->g), kv_entry_bytes(&m->g));
        model_digest(m, slot);
        m->slots[slot] = (struct model_slot){SLOT_WRITTEN, m->next_position++ % KV_MAX_TOKENS};
    }
}

void model_trim(struct model *m, uint32_t sequence)
{
    for (uint32_t s = 0; s < m->n_stripes; s++) {
        if (!m->stripes[s].claimed || m->stripes[s].sequence != sequence)
            continue;
        m->stripes[s].claimed = false;
        memset(&m->slots[s * m->stripe_slots], 0, m->stripe_slots * sizeof *m->slots);
    }
}

uint8_t *model_groups(const struct model *m, uint32_t first, uint32_t n)
{
    size_t bytes = (size_t)kv_groups_touched(first, n) * kv_group_bytes(&m->g);
    uint8_t *groups = malloc(bytes + 1);
    assert_non_null(groups);
    memset(groups, 0xd7, bytes);
    for (uint32_t i = 0; i < n; i++)
        kv_digest_put(&m->g, groups, first % KV_GROUP_TOKENS + i,
                      m->mantissas + (size_t)(first + i) * kv_key_dims(&m->g),
                      m->exponents + (size_t)(first + i) * m->g.n_kv_heads);
    return groups;
}

uint16_t model_score(const struct model *m, const struct kv_query *query, uint32_t slot)
{
    uint16_t scores[KV_GROUP_TOKENS];
    uint8_t *groups = model_groups(m, slot, 1);
    kv_score_reference(&m->g, query, groups, slot % KV_GROUP_TOKENS + 1, scores);
    free(groups);
    return scores[slot % KV_GROUP_TOKENS];
}
