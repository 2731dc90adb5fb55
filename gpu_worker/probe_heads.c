/* gpu_worker/probe_heads.c - see probe_heads.h. */
#include "gpu_worker/probe_heads.h"

#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/log.h"
#include "gpu_worker/important_runs.h"
#include "gpu_worker/worker.h"
#include "model/tokenizer.h"

HILL_EMBED(gpu_worker_probe_text, "gpu_worker/probe_text.txt");

/* ---- comparing ------------------------------------------------------------------------------- */

static bool among(const uint32_t *sorted, uint32_t n, uint32_t x)
{
    uint32_t low = 0;
    while (n) {
        uint32_t half = n / 2;
        if (sorted[low + half] < x) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return sorted[low] == x;
}

static uint32_t common(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += a[i] <= b[n - 1] && among(b, n, a[i]);
    return count;
}

/* The heads with the highest counts, the lower one of two that are equal; ascending. */
static void take_best(uint32_t *counts, uint32_t n_heads, uint32_t n_probes, uint16_t *heads)
{
    for (uint32_t p = 0; p < n_probes; p++) {
        uint32_t best = 0, at = p;
        for (uint32_t h = 1; h < n_heads; h++)
            best = counts[h] > counts[best] ? h : best;
        counts[best] = 0;
        for (; at > 0 && heads[at - 1] > best; at--)
            heads[at] = heads[at - 1];
        heads[at] = (uint16_t)best;
    }
}

int probe_heads_compare(const float *sums, uint32_t n_heads, uint32_t n, uint32_t n_probes,
                        uint16_t *heads)
{
    uint32_t top = (uint32_t)(PROBE_TOP * n);
    float *all = calloc(n, sizeof *all);
    uint32_t *of_all = calloc(top + 1, sizeof *of_all), *of_head = calloc(top + 1, sizeof *of_head);
    uint32_t *counts = calloc(n_heads, sizeof *counts);
    int rc = all && of_all && of_head && counts ? 0 : HILL_E_NOMEM;
    for (uint32_t i = 0; !rc && i < n_heads * n; i++)
        all[i % n] += sums[i];
    if (!rc)
        rc = important_choose(all, n, 1, top, of_all);
    for (uint32_t h = 0; !rc && h < n_heads; h++) {
        rc = important_choose(sums + (size_t)h * n, n, 1, top, of_head);
        counts[h] = rc ? 0 : 1 + common(of_head, of_all, top);
    }
    if (!rc)
        take_best(counts, n_heads, n_probes, heads);
    free(all);
    free(of_all);
    free(of_head);
    free(counts);
    return rc;
}

/* ---- measuring ------------------------------------------------------------------------------- */

struct measurement {
    struct worker *w;
    uint32_t *tokens;
    uint8_t *entries; /* [n_layers][PROBE_PAST][entry] */
    uint8_t *keys;    /* [PROBE_PAST][head_dim] */
    float *sums;      /* [n_kv_heads][PROBE_PAST] */
    uint32_t asked;
};

static int read_tokens(struct measurement *m, struct hill_why *why)
{
    struct tokenizer *tokenizer;
    uint64_t n = 0, bytes = (uint64_t)(gpu_worker_probe_text_end - gpu_worker_probe_text);
    int rc = tokenizer_open(&tokenizer, m->w->file, why);
    if (rc)
        return rc;
    rc = tokenizer_encode(tokenizer, gpu_worker_probe_text, bytes, true, &m->tokens, &n);
    tokenizer_close(tokenizer);
    if (rc)
        return hill_fail(why, rc, "cannot tokenize the text for probe heads: %s",
                         hill_strerror(rc));
    return n >= PROBE_PAST + m->asked
               ? 0
               : hill_fail(why, HILL_E_UNSUPPORTED,
                           "the text for probe heads has %llu tokens, %u are needed",
                           (unsigned long long)n, PROBE_PAST + m->asked);
}

/* The text's first tokens, as any prompt. */
static int compute_past(struct measurement *m, struct hill_why *why)
{
    struct engine *e = m->w->engine;
    uint32_t bytes = worker_entry_bytes(m->w);
    int rc = engine_prefill_within(e, 0, PROBE_PAST, 0, m->w->settings.gpu_kv_cap_bytes, why);
    if (!rc)
        rc = engine_prefill_begin(e, 0, PROBE_PAST, why);
    if (!rc)
        rc = engine_prefill_tokens(e, m->tokens, PROBE_PAST, why);
    for (uint32_t u = 0; !rc && u < engine_prefill_units(e); u++) {
        struct engine_unit unit = engine_prefill_unit(e, u);
        rc = engine_prefill_enqueue(e, u, why);
        if (!rc)
            rc = engine_prefill_read(
                e, u, 0, unit.count,
                m->entries + ((uint64_t)unit.layer * PROBE_PAST + unit.first) * bytes, why);
        worker_unit_of_work(m->w);
    }
    return rc;
}

static int probe_head(struct measurement *m, uint16_t head, const uint8_t *entries,
                      struct hill_why *why)
{
    uint32_t bytes = worker_entry_bytes(m->w), key = 2 * m->w->hparams.head_dim;
    for (uint32_t t = 0; t < PROBE_PAST; t++)
        memcpy(m->keys + (size_t)t * key, entries + (size_t)t * bytes + (size_t)head * key, key);
    return engine_prefill_probe(m->w->engine, &head, 1, m->keys,
                                m->sums + (size_t)head * PROBE_PAST, why);
}

static int give_past(struct measurement *m, uint32_t layer, const uint8_t *entries, uint32_t first,
                     struct hill_why *why)
{
    int rc = 0;
    for (uint32_t at = first; rc >= 0 && at < PROBE_PAST; at += rc ? ENGINE_PAST_TOKENS : 0) {
        uint32_t rest = PROBE_PAST - at, n = rest < ENGINE_PAST_TOKENS ? rest : ENGINE_PAST_TOKENS;
        rc = engine_prefill_past(m->w->engine, layer, at - first, n,
                                 entries + (size_t)at * worker_entry_bytes(m->w), why);
    }
    return rc < 0 ? rc : 0;
}

static int compare_layer(struct measurement *m, uint32_t layer, uint32_t n_probes, uint16_t *heads,
                         struct hill_why *why)
{
    struct engine *e = m->w->engine;
    const struct model_hparams *hp = &m->w->hparams;
    const uint8_t *entries = m->entries + (uint64_t)layer * PROBE_PAST * worker_entry_bytes(m->w);
    uint32_t first = engine_past_from(e, layer);
    int rc = engine_prefill_keys(e, layer, PROBE_PAST - first, why);
    for (uint16_t h = 0; !rc && h < hp->n_kv_heads; h++)
        rc = probe_head(m, h, entries, why);
    if (!rc && probe_heads_compare(m->sums, hp->n_kv_heads, PROBE_PAST, n_probes, heads))
        rc = hill_fail(why, HILL_E_NOMEM, "out of memory for probe heads");
    if (!rc)
        rc = give_past(m, layer, entries, first, why);
    if (!rc)
        rc = engine_prefill_enqueue(e, layer, why);
    if (!rc)
        rc = engine_prefill_pass(e, layer, why);
    worker_unit_of_work(m->w);
    return rc;
}

static int measure(struct measurement *m, uint32_t n_probes, uint16_t *heads, struct hill_why *why)
{
    struct engine *e = m->w->engine;
    uint64_t probes = engine_probe_bytes_needed(e, PROBE_PAST, m->asked, 1);
    int rc = compute_past(m, why);
    if (!rc)
        rc = engine_prefill_within(e, PROBE_PAST, m->asked, probes, m->w->settings.gpu_kv_cap_bytes,
                                   why);
    if (!rc)
        rc = engine_prefill_begin(e, PROBE_PAST, m->asked, why);
    if (!rc)
        rc = engine_prefill_select(e, why);
    if (!rc)
        rc = engine_prefill_tokens(e, m->tokens + PROBE_PAST, m->asked, why);
    for (uint32_t l = 0; !rc && l < m->w->hparams.n_layers; l++)
        rc = compare_layer(m, l, n_probes, heads + (size_t)l * n_probes, why);
    return rc;
}

/* Within the limits of any prompt. */
static int admit(const struct measurement *m, struct hill_why *why)
{
    const struct worker *w = m->w;
    const struct epoch_settings *s = &w->settings;
    uint64_t past = engine_kv_bytes_needed(w->engine, 0, PROBE_PAST),
             needed = engine_kv_bytes_needed(w->engine, PROBE_PAST, m->asked) +
                      engine_probe_bytes_needed(w->engine, PROBE_PAST, m->asked, 1);
    needed = past > needed ? past : needed;
    if (PROBE_PAST + m->asked > s->plan.ctx_tokens)
        return hill_fail(why, HILL_E_TOO_LONG,
                         "the text for probe heads has %u tokens, more than a context of %u",
                         PROBE_PAST + m->asked, s->plan.ctx_tokens);
    if (s->gpu_kv_cap_bytes && needed > s->gpu_kv_cap_bytes)
        return hill_fail(why, HILL_E_NOSPACE,
                         "the text for probe heads needs %.1f MiB of GPU memory for KV, the cap is "
                         "%.1f",
                         (double)needed / 1048576.0, (double)s->gpu_kv_cap_bytes / 1048576.0);
    return 0;
}

int probe_heads_choose(struct worker *w, uint32_t n_probes, uint16_t *heads, struct hill_why *why)
{
    uint32_t batch = w->settings.plan.batch_tokens;
    struct measurement m = {.w = w, .asked = batch < PROBE_ASKED ? batch : PROBE_ASKED};
    int64_t start = clock_now_ns();
    m.entries = malloc((uint64_t)w->hparams.n_layers * PROBE_PAST * worker_entry_bytes(w));
    m.keys = malloc(2ull * PROBE_PAST * w->hparams.head_dim);
    m.sums = malloc(sizeof(float) * PROBE_PAST * w->hparams.n_kv_heads);
    int rc = m.entries && m.keys && m.sums
                 ? admit(&m, why)
                 : hill_fail(why, HILL_E_NOMEM, "out of memory for probe heads");
    if (!rc)
        rc = read_tokens(&m, why);
    if (!rc)
        rc = measure(&m, n_probes, heads, why);
    if (!rc)
        log_info("probe heads chosen: %u of %u KV heads of each layer, in %.1f s", n_probes,
                 w->hparams.n_kv_heads, (clock_now_ns() - start) * 1e-9);
    free(m.tokens);
    free(m.entries);
    free(m.keys);
    free(m.sums);
    return rc;
}
