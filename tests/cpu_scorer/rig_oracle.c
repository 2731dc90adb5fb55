/*
 * tests/cpu_scorer/rig_oracle.c - what the scorer must select, computed from the fake GPU worker's
 * own copy of all entries: by score, by attention mass, by the bounds of chunks. Interface:
 * pipeline_rig.h.
 */
#include "tests/cpu_scorer/pipeline_rig.h"

double rig_half_value(uint16_t bits)
{
    double size = ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25); /* rig_half's are normal */
    return bits & 0x8000 ? -size : size;
}

void gpu_check_reading(const struct rig_request *q)
{
    const struct hkm *tables = scorer_tables(q->rig->pipeline);
    const uint8_t *entries = tables->entries;
    for (uint32_t i = 0; i < q->n_reading; i++) /* not given to another, nor free for one */
        assert_int_equal(tables->positions[q->reading[i][0]], q->reading[i][1]);
    for (uint32_t i = 0; i < q->n_reading; i++)
        assert_memory_equal(entries + (size_t)q->reading[i][0] * RIG_ENTRY,
                            q->entries[q->reading_layer][q->reading[i][1]], RIG_ENTRY);
    for (uint32_t i = 0; i < q->n_staged; i++)
        assert_int_equal(shm_arena_generation(&q->rig->staging_view, q->staged[i][0]),
                         q->staged[i][1]);
}

/* What must be selected: every token scored from our copy, sorted, the best k with the forced ones.
 */
struct rig_ranked {
    uint32_t position;
    int64_t rank;
};

static int rank_order(const void *a, const void *b)
{
    const struct rig_ranked *x = a, *y = b;
    return x->rank < y->rank ? 1 : x->rank > y->rank ? -1 : 0;
}

static int position_order(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* What a query head reaches on the sample, by the book: the first four tokens, and the best of
 * every 32nd; logits are terms * 2^(exponent - 10) / sqrt(16). */
static int64_t oracle_offset(const struct rig_request *q, uint32_t layer, uint32_t n,
                             const struct kv_query *query, uint32_t h, int exponent)
{
    double reached[5] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, most = -INFINITY,
           sum = 0, unit = ldexp(0.25, exponent - 10);
    for (uint32_t p = 0; p < n; p += p < 3 ? 1 : p == 3 ? 28 : 32) {
        int8_t key[16];
        int byte = kv_digest_get_head(&rig_geometry, q->digests[layer], p, h / 2, key);
        double term = 0;
        for (uint32_t j = 0; j < 16; j++)
            term += (double)query->mantissas[h * 16 + j] * key[j];
        term = ldexp(term, byte + query->shifts[h]);
        reached[p < 4 ? p : 4] = p < 4 ? term : fmax(reached[4], term);
        most = fmax(most, term);
    }
    for (uint32_t i = 0; i < 5; i++)
        sum += exp((reached[i] - most) * unit);
    return llrint(most) + llrint(round(64 * log(sum)) / 64 / unit);
}

static uint32_t oracle_select(const struct rig_request *q, uint32_t layer, uint32_t n,
                              const float *query, uint32_t *positions)
{
    static struct rig_ranked ranked[RIG_CTX];
    static uint16_t scores[RIG_CTX];
    int8_t mantissas[2 * RIG_DIMS];
    uint8_t shifts[4];
    int64_t offsets[4];
    struct kv_query digest = {mantissas, shifts, q->settings.importance, NULL};
    int exponent = kv_digest_query(&rig_geometry, q->settings.importance, query, mantissas, shifts);
    for (uint32_t h = 0; h < 4 && q->settings.importance == KV_IMPORTANCE_HEADS; h++)
        offsets[h] = oracle_offset(q, layer, n, &digest, h, exponent);
    if (q->settings.importance == KV_IMPORTANCE_HEADS)
        digest.offsets = offsets;
    kv_score_reference(&rig_geometry, &digest, q->digests[layer], n, scores);
    for (uint32_t p = 0; p < n; p++) {
        bool forced = p < q->settings.sinks || p + q->settings.window >= n;
        ranked[p] =
            (struct rig_ranked){p, ((int64_t)forced << 48) | ((int64_t)scores[p] << 32) | p};
    }
    qsort(ranked, n, sizeof *ranked, rank_order);
    uint32_t k = kv_budget_tokens(&q->settings, n);
    for (uint32_t i = 0; i < k; i++)
        positions[i] = ranked[i].position;
    qsort(positions, k, sizeof *positions, position_order);
    return k;
}

/* Attention mass of n tokens, by the book. */
static void oracle_mass(const struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                        double *mass)
{
    static double weights[RIG_CTX];
    memset(mass, 0, n * sizeof *mass);
    for (uint32_t h = 0; h < 4; h++) {
        double most = -1e300, sum = 0;
        for (uint32_t p = 0; p < n; p++) {
            double dot = 0;
            for (uint32_t i = 0; i < 16; i++)
                if (q->settings.policy != KV_POLICY_PREFETCH || q->kept[layer][h / 2][i])
                    dot += (double)query[h * 16 + i] *
                           rig_half_value(q->entries[layer][p][h / 2 * 16 + i]);
            weights[p] = dot / 4;
            most = fmax(most, weights[p]);
        }
        for (uint32_t p = 0; p < n; p++)
            sum += weights[p] = exp(weights[p] - most);
        for (uint32_t p = 0; p < n; p++)
            mass[p] += weights[p] / sum;
    }
}

/* Forced tokens are in, and of the others none that is left out beats one that is in by more than
 * a score's precision. The positions are the caller's to hash. */
static uint32_t check_by_mass(struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                              const struct selected_item *items, uint32_t *positions)
{
    static double mass[RIG_CTX];
    bool in[RIG_CTX] = {false};
    double least = 1e300, most = 0;
    uint32_t k = kv_budget_tokens(&q->settings, n);
    oracle_mass(q, layer, n, query, mass);
    for (uint32_t p = 0; p < n; p++)
        q->seen[layer][p] += mass[p];
    for (uint32_t i = 0; i < k; i++)
        in[positions[i] = items[i].position] = true;
    for (uint32_t p = 0; p < n; p++) {
        double rank = q->settings.policy == KV_POLICY_H2O ? q->seen[layer][p] : mass[p];
        if (p < q->settings.sinks || p + q->settings.window >= n)
            assert_true(in[p]);
        else if (in[p])
            least = fmin(least, rank);
        else
            most = fmax(most, rank);
    }
    assert_true(most <= least * (1 + 0x1p-9));
    return k;
}

struct rig_chunk {
    uint32_t chunk;
    double logits[4], mass;
};

static int chunk_order(const void *a, const void *b)
{
    const struct rig_chunk *x = a, *y = b;
    return x->mass < y->mass ? 1 : x->mass > y->mass ? -1 : x->chunk < y->chunk ? 1 : -1;
}

/* What the keys of positions first .. end - 1 can have at most for each head, by the book. */
static void oracle_bounds(const struct rig_request *q, uint32_t layer, const float *query,
                          uint32_t first, uint32_t end, struct rig_chunk *out)
{
    for (uint32_t h = 0; h < 4; h++) {
        out->logits[h] = 0;
        for (uint32_t i = 0; i < 16; i++) {
            double most = -1e300;
            for (uint32_t p = first; p < end; p++)
                most = fmax(most, (double)query[h * 16 + i] *
                                      rig_half_value(q->entries[layer][p][h / 2 * 16 + i]));
            out->logits[h] += most / 4;
        }
    }
}

/* By attention mass among themselves, the most first. */
static void oracle_rank(struct rig_chunk *chunks, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++)
        chunks[c].mass = 0;
    for (uint32_t h = 0; h < 4; h++) {
        double most = -1e300, sum = 0;
        for (uint32_t c = 0; c < n; c++)
            most = fmax(most, chunks[c].logits[h]);
        for (uint32_t c = 0; c < n; c++)
            sum += exp(chunks[c].logits[h] - most);
        for (uint32_t c = 0; c < n; c++)
            chunks[c].mass += exp(chunks[c].logits[h] - most) / sum;
    }
    qsort(chunks, n, sizeof *chunks, chunk_order);
}

static bool rig_is_free(const struct rig_request *q, uint32_t p, uint32_t n)
{
    return p >= q->settings.sinks && p + q->settings.window < n;
}

/* leoam's candidates: coarse chunks by their bounds until there are four times as many tokens as
 * can be selected, their fine chunks until there are twice as many. */
static void oracle_candidates(const struct rig_request *q, uint32_t layer, uint32_t n,
                              const float *query, bool *candidate)
{
    static struct rig_chunk coarse[RIG_CTX / 64 + 1], fine[RIG_CTX / 16 + 1];
    uint32_t k = kv_budget_tokens(&q->settings, n), forced = q->settings.sinks + q->settings.window;
    uint32_t target = 2 * (k - forced), found = 0, refined = 0, n_fine = 0;
    for (uint32_t c = 0; c < n / 64; c++) {
        coarse[c].chunk = c;
        oracle_bounds(q, layer, query, c * 64, c * 64 + 64, &coarse[c]);
    }
    oracle_rank(coarse, n / 64);
    coarse[n / 64].chunk = n / 64; /* not whole: always refined */
    for (uint32_t i = 0; i <= n / 64; i++) {
        if (i < n / 64 && refined >= 2 * target)
            continue;
        for (uint32_t p = coarse[i].chunk * 64; p < coarse[i].chunk * 64 + 64; p++) {
            refined += i < n / 64 && rig_is_free(q, p, n);
            if (p % 16 == 0 && p + 16 <= n) {
                fine[n_fine].chunk = p / 16;
                oracle_bounds(q, layer, query, p, p + 16, &fine[n_fine++]);
            }
        }
    }
    oracle_rank(fine, n_fine);
    for (uint32_t p = n / 16 * 16; p < n; p++) /* not whole: always looked at */
        found += candidate[p] = rig_is_free(q, p, n);
    for (uint32_t i = 0; i < n_fine && found < target; i++)
        for (uint32_t p = fine[i].chunk * 16; p < fine[i].chunk * 16 + 16; p++)
            found += candidate[p] = rig_is_free(q, p, n);
}

/* Of the candidates those with the most attention mass among themselves are in. */
static uint32_t check_by_chunks(struct rig_request *q, uint32_t layer, uint32_t n,
                                const float *query, const struct selected_item *items,
                                uint32_t *positions)
{
    static struct rig_chunk keys[RIG_CTX];
    bool in[RIG_CTX] = {false}, candidate[RIG_CTX] = {false};
    uint32_t k = kv_budget_tokens(&q->settings, n), n_keys = 0;
    double least = 1e300, most = -1e300;
    oracle_candidates(q, layer, n, query, candidate);
    for (uint32_t i = 0; i < k; i++)
        in[positions[i] = items[i].position] = true;
    for (uint32_t p = 0; p < n; p++) {
        assert_true(in[p] ? candidate[p] || !rig_is_free(q, p, n) : rig_is_free(q, p, n));
        if (!candidate[p])
            continue;
        keys[n_keys].chunk = p;
        oracle_bounds(q, layer, query, p, p + 1, &keys[n_keys++]);
    }
    oracle_rank(keys, n_keys);
    for (uint32_t i = 0; i < n_keys; i++)
        if (in[keys[i].chunk])
            least = fmin(least, keys[i].mass);
        else
            most = fmax(most, keys[i].mass);
    assert_true(most <= least * (1 + 0x1p-9));
    return k;
}

void oracle_check_answer(struct rig_request *q, uint32_t layer, uint32_t n, const float *query,
                         const struct record_selection *answer)
{
    static uint32_t positions[RIG_CTX];
    const struct selected_item *items = (const struct selected_item *)(answer + 1);
    const struct selected_upload *uploads =
        (const struct selected_upload *)(items + answer->n_selected);
    for (uint32_t i = 0; i < answer->n_uploads; i++) {
        const struct selected_upload *u = &uploads[i];
        assert_int_equal(shm_arena_generation(&q->rig->staging_view, u->staging_slot),
                         u->generation);
        q->staged[i][0] = u->staging_slot;
        q->staged[i][1] = u->generation;
        memcpy(q->gpu[layer][u->gpu_slot], shm_arena_slot(&q->rig->staging_view, u->staging_slot),
               RIG_ENTRY);
    }
    q->uploads += q->n_staged = answer->n_uploads;
    q->reading_layer = layer;
    for (uint32_t i = 0; i < answer->n_selected; i++) {
        q->chosen[items[i].position]++;
        if (!(items[i].gpu_slot & SELECTED_HOT))
            continue;
        assert_true(q->rig->reads_hot);
        q->reading[q->n_reading][0] = items[i].gpu_slot & ~SELECTED_HOT;
        q->reading[q->n_reading++][1] = items[i].position;
        q->in_place++;
    }
    gpu_check_reading(q);
    for (uint32_t i = 0; i < answer->n_selected; i++)
        if (!(items[i].gpu_slot & SELECTED_HOT))
            assert_memory_equal(q->gpu[layer][items[i].gpu_slot],
                                q->entries[layer][items[i].position], RIG_ENTRY);
    if (!q->check)
        return;
    bool mass = kv_policy_reads_keys(q->settings.policy);
    uint32_t window = kv_window_tokens(&q->rig->layer_windows, layer, n);
    assert_int_equal(answer->n_selected, window ? window : kv_budget_tokens(&q->settings, n));
    for (uint32_t i = 0; i < window; i++)
        positions[i] = n - window + i;
    uint32_t k = window ? window
                 : q->settings.policy == KV_POLICY_LEOAM
                     ? check_by_chunks(q, layer, n, query, items, positions)
                 : mass ? check_by_mass(q, layer, n, query, items, positions)
                        : oracle_select(q, layer, n, query, positions);
    uint32_t head[2] = {q->step, layer};
    for (uint32_t i = 0; i < k; i++)
        assert_int_equal(items[i].position, positions[i]);
    XXH64_update(q->hash, head, sizeof head);
    XXH64_update(q->hash, positions, k * sizeof *positions);
}

void oracle_recall(struct rig_request *q, uint32_t layer, uint32_t n, const float *guess,
                   const float *exact)
{
    static uint32_t guessed[RIG_CTX], wanted[RIG_CTX];
    uint32_t k = oracle_select(q, layer, n, guess, guessed);
    oracle_select(q, layer, n, exact, wanted);
    for (uint32_t i = 0; i < k; i++) {
        if (wanted[i] < q->settings.sinks || wanted[i] + q->settings.window >= n)
            continue;
        q->guess_chosen[layer]++;
        for (uint32_t j = 0; j < k; j++)
            q->guess_found[layer] += guessed[j] == wanted[i];
    }
}
