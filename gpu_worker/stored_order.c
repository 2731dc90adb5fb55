/*
 * gpu_worker/stored_order.c - in which order a prompt's chunks are left in the prefix store. See
 * stored.h.
 *
 * Where important tokens are found by the keys of a few heads, a prompt's newest tokens ask these
 * while it is computed (gpu_worker/prefill_rank.c), and what they look at lies side by side on the
 * drive: later questions on a text look at much the same (docs/decisions/important-prefix.md). It
 * is a wish: without memory, or without room in --gpu-kv-mb, chunks lie as the text stands.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gpu_worker/stored_internal.h"
#include "prefix/chunk_order.h"

/* HILL_TEST_CHUNK_ORDER=text: what is compared with. */
static bool is_asked_for(void)
{
    const char *value = getenv("HILL_TEST_CHUNK_ORDER");
    bool text = value && strcmp(value, "text") == 0;
    if (text)
        log_warn("test hook HILL_TEST_CHUNK_ORDER: chunks are stored as the text stands");
    return !text;
}

static bool fits(const struct request *r, uint32_t n_past)
{
    const struct worker *w = r->w;
    uint32_t own = r->prompt - n_past;
    return !w->settings.gpu_kv_cap_bytes ||
           engine_kv_bytes_needed(w->engine, n_past, own) +
                   engine_rank_bytes_needed(w->engine, n_past, own) <=
               w->settings.gpu_kv_cap_bytes;
}

void stored_rank(struct request *r, uint32_t n_past)
{
    const struct worker *w = r->w;
    struct hill_why why;
    if (!w->store || !w->store->keys || !r->prefill->keep || r->prefill->restore || r->selected ||
        request_weighs(r) || r->prompt - n_past < 2 * CHUNK_TOKENS || !fits(r, n_past) ||
        !is_asked_for())
        return;
    const struct chunk_keys *keys = w->store->keys;
    if (engine_prefill_rank(w->engine, keys->heads, keys->shape.n_probes, &why))
        log_info("request %llu: %s: its chunks are stored as the text stands",
                 (unsigned long long)r->prefill->identity, why.text);
}

void stored_take_ranks(struct request *r)
{
    const struct worker *w = r->w;
    uint32_t n = engine_prefill_ranked(w->engine);
    struct hill_why why;
    if (!n || r->ranks)
        return;
    r->ranks = malloc(sizeof *r->ranks * n * w->hparams.n_layers);
    if (r->ranks && engine_prefill_ranks(w->engine, r->ranks, &why) == 0) {
        r->n_ranked = n;
        return;
    }
    free(r->ranks);
    r->ranks = NULL;
}

uint8_t *stored_orders(const struct request *r, uint32_t first)
{
    uint32_t n_layers = r->w->hparams.n_layers;
    if (!r->ranks || first + CHUNK_TOKENS > r->n_ranked)
        return NULL;
    uint8_t *orders = malloc((size_t)n_layers * CHUNK_TOKENS);
    for (uint32_t l = 0; orders && l < n_layers; l++)
        chunk_order_by(r->ranks + (size_t)l * r->n_ranked + first, first == 0,
                       orders + (size_t)l * CHUNK_TOKENS);
    return orders;
}
