/*
 * gpu_worker/prefill.c - the prompt, layer by layer in chunks. See engine.h.
 *
 * One unit is one chunk of one layer. Hidden states of all tokens stay on the device; so do the
 * keys and values of the current layer only, packed for attention. Entries leave in the order in
 * which they are computed, two chunks' worth at a time. In the last layer only the last token's
 * state is needed, unless the logits of all tokens are asked for: earlier chunks end at their keys
 * and values (or at what they attend to, where that is asked for: prefill_mass.c), and of the last
 * chunk only the block of the last token goes on. That changes no bit of it: a row's result does
 * not depend on other rows. A prompt may follow tokens whose entries others keep: past entries of a
 * layer are packed before its first unit (prefill_past.c), and rows begin behind them. A row's bits
 * do not depend on that either: attention walks keys from position 0 on, whoever computed them.
 */
#include <string.h>

#include "gpu_worker/engine_internal.h"

static uint32_t row_tiles(uint32_t rows)
{
    return (rows + TILE_ROWS - 1) / TILE_ROWS;
}

struct prefill_sizes {
    uint64_t hidden, turns, kt, v, entries, normed, qkv, q, attended, activated, quantised;
};

struct part {
    struct device_buffer *buffer;
    uint64_t bytes;
};
#define PARTS 12u /* what every prompt takes */

static void compute_sizes(const struct engine *e, uint32_t n_past, uint32_t n_tokens,
                          struct prefill_sizes *s)
{
    const struct model_hparams *hp = &e->hp;
    uint64_t batch = e->batch_tokens < n_tokens ? e->batch_tokens : n_tokens;
    uint64_t batch_rows = (uint64_t)row_tiles((uint32_t)batch) * TILE_ROWS;
    uint64_t keys = round_up(n_past + n_tokens, ATTEND_KEYS);
    uint64_t q_dims = (uint64_t)hp->n_heads * hp->head_dim;
    s->hidden = 4ull * n_tokens * e->hidden_stride;
    s->turns = 4ull * n_tokens * hp->rope_dims * model_rope_tables(hp);
    s->kt = 2ull * keys * hp->n_kv_heads * hp->head_dim;
    s->v = 2ull * keys * hp->n_kv_heads * round_up(hp->head_dim, 16);
    s->entries = batch * e->entry_bytes;
    s->normed = 4ull * batch_rows * e->hidden_stride; /* also what is to be joined */
    s->qkv = 4ull * batch * e->qkv_stride;
    s->q = 4ull * batch_rows * q_dims;
    s->attended = 4ull * batch_rows * q_dims;
    s->activated = 4ull * batch_rows * e->act_stride;
    s->quantised = e->quantised ? 4ull * batch_rows * quant_stride(e) : 0;
}

uint64_t engine_kv_bytes_needed(const struct engine *e, uint32_t n_past, uint32_t n_tokens)
{
    struct prefill_sizes s;
    compute_sizes(e, n_past, n_tokens, &s);
    uint64_t total = past_bytes(e, n_past) + s.hidden + s.turns + s.kt + s.v + 2 * s.entries +
                     s.normed + s.qkv + s.q + s.attended + s.activated + s.quantised;
    total += decode_bytes(e);
    for (uint32_t layer = 0; e->slots && layer < e->hp.n_layers; layer++)
        total += e->slots[layer].bytes;
    total += n_past ? 0 : prompt_copy_bytes(e, n_tokens);
    return total + 16 * 64; /* buffers are rounded up */
}

static void list_parts(struct engine *e, const struct prefill_sizes *s, struct part *parts)
{
    const struct part list[PARTS] = {{&e->hidden, s->hidden},
                                     {&e->turns, s->turns},
                                     {&e->kt, s->kt},
                                     {&e->v, s->v},
                                     {&e->entries[0], s->entries},
                                     {&e->entries[1], s->entries},
                                     {&e->normed, s->normed},
                                     {&e->qkv, s->qkv},
                                     {&e->q, s->q},
                                     {&e->attended, s->attended},
                                     {&e->activated, s->activated},
                                     {&e->quantised_rows, s->quantised}};
    memcpy(parts, list, sizeof list);
}

/* Bytes by which the buffer grows. */
static uint64_t growth(const struct part *part)
{
    return part->bytes > part->buffer->bytes ? part->bytes - part->buffer->bytes : 0;
}

int engine_prefill_within(struct engine *e, uint32_t n_past, uint32_t n_tokens, uint64_t more,
                          uint64_t cap, struct hill_why *why)
{
    struct prompt_memory *m = &e->prompt;
    struct prefill_sizes s;
    struct part parts[PARTS + 4];
    uint64_t past = past_bytes(e, n_past) / 2,
             out = n_past ? 0 : prompt_copy_bytes(e, n_tokens) / 2;
    uint64_t kept = e->kept_runs.bytes + e->past_sources[0].bytes + e->past_sources[1].bytes;
    uint64_t total = e->kv_bytes - kept - m->hidden.bytes + more; /* hidden: it goes in any case */
    compute_sizes(e, n_past, n_tokens, &s);
    list_parts(e, &s, parts);
    for (uint32_t i = 0; i < 2; i++) {
        parts[PARTS + i] = (struct part){&e->past[i], past};
        parts[PARTS + 2 + i] = (struct part){&m->out[i], out};
    }
    for (uint32_t i = 0; i < PARTS + 4; i++)
        total += growth(&parts[i]);
    if (!cap || total + (PARTS + 4) * 64 <= cap) /* buffers are rounded up */
        return 0;
    int rc = engine_finish(e, why);
    e->n_tokens = 0;
    for (uint32_t i = 0; i < PARTS + 4; i++)
        engine_release(e, parts[i].buffer);
    mass_release(e);
    probe_release(e);
    return rc;
}

/* A prompt that is kept has its hidden states elsewhere. */
static int reserve_prefill(struct engine *e, uint32_t n_past, uint32_t n_tokens,
                           struct hill_why *why)
{
    struct prefill_sizes s;
    struct part parts[PARTS];
    bool elsewhere = prompt_hidden(e) != e->hidden.mem;
    if (elsewhere)
        engine_release(e, &e->hidden);
    compute_sizes(e, n_past, n_tokens, &s);
    s.hidden = elsewhere ? 0 : s.hidden;
    list_parts(e, &s, parts);
    int rc = past_reserve(e, n_past, why);
    for (uint32_t i = 0; !rc && i < PARTS; i++)
        rc = engine_reserve(e, parts[i].buffer, parts[i].bytes, why);
    return rc;
}

static int write_rows(struct engine *e, cl_mem to, uint64_t first, uint32_t count, uint32_t stride,
                      struct hill_why *why)
{
    if (stride == 0)
        return 0;
    return cldevice_check(clEnqueueWriteBuffer(e->queue, to, CL_TRUE, 4ull * first * stride,
                                               4ull * count * stride, e->host_row, 0, NULL, NULL),
                          "cannot write the prompt to the device", why);
}

static int begin(struct engine *e, uint32_t n_past, uint32_t n_tokens,
                 const struct engine_keep *keep, struct hill_why *why)
{
    if (n_tokens == 0 || !e->batch_tokens)
        return hill_fail(why, HILL_E_INVALID, "an empty prompt");
    int rc = engine_finish(e, why);
    if (!rc)
        rc = prompt_memory_begin(e, n_tokens, keep, why);
    if (!rc)
        rc = reserve_prefill(e, n_past, n_tokens, why);
    e->weighs = e->whole_prompt = e->selects = false;
    e->n_past = n_past;
    e->n_tokens = rc ? 0 : n_tokens;
    e->tokens_given = 0;
    e->past_loaded = engine_past_from(e, 0);
    e->n_chunks = (n_tokens + e->batch_tokens - 1) / e->batch_tokens;
    e->panels = round_up(n_past + n_tokens, ATTEND_KEYS) / 16;
    e->units_queued = e->prompt.from;
    e->units_read = e->prompt.read_from;
    return rc ? rc : prompt_memory_load(e, why);
}

int engine_prefill_begin(struct engine *e, uint32_t n_past, uint32_t n_tokens, struct hill_why *why)
{
    return begin(e, n_past, n_tokens, NULL, why);
}

int engine_prefill_begin_kept(struct engine *e, uint32_t n_tokens, const struct engine_keep *keep,
                              struct hill_why *why)
{
    return begin(e, 0, n_tokens, keep, why);
}

void engine_prefill_whole(struct engine *e)
{
    e->whole_prompt = true;
}

int engine_prefill_tokens(struct engine *e, const uint32_t *tokens, uint32_t count,
                          struct hill_why *why)
{
    if (count > e->n_tokens - e->tokens_given)
        return hill_fail(why, HILL_E_INVALID, "more tokens than the prompt's %u", e->n_tokens);
    cl_mem hidden = prompt_hidden(e);
    bool embeds = e->prompt.from == 0; /* else layers have been computed on them */
    for (uint32_t done = 0; done < count;) {
        uint32_t n = count - done < HOST_ROWS ? count - done : HOST_ROWS, first = e->tokens_given;
        int rc = 0;
        for (uint32_t i = 0; !rc && embeds && i < n; i++)
            rc = engine_embedding(e, tokens[done + i], e->n_past + first + i,
                                  e->host_row + (size_t)i * e->hidden_stride, why);
        if (!rc && embeds)
            rc = write_rows(e, hidden, first, n, e->hidden_stride, why);
        if (!rc && embeds)
            prompt_embedded(e, first, n);
        for (uint32_t table = 0; !rc && table < model_rope_tables(&e->hp); table++) {
            for (uint32_t i = 0; i < n; i++)
                engine_turns(e, table, e->n_past + first + i,
                             e->host_row + (size_t)i * e->hp.rope_dims);
            rc = write_rows(e, e->turns.mem, (uint64_t)table * e->n_tokens + first, n,
                            e->hp.rope_dims, why);
        }
        if (rc)
            return rc;
        e->tokens_given += n;
        done += n;
    }
    return 0;
}

uint32_t engine_prefill_queued(const struct engine *e)
{
    return e->units_queued;
}

/* The unit's first token among the prompt's rows. */
static uint32_t first_row(const struct engine *e, const struct engine_unit *u)
{
    return u->first - e->n_past;
}

/* The same in the layer's rotary table. */
static uint32_t first_turn(const struct engine *e, const struct engine_unit *u)
{
    return model_layer_rope_table(&e->hp, u->layer) * e->n_tokens + first_row(e, u);
}

/* Where kernels find int8 activations; NULL without quantised weights. */
static cl_mem quantised_rows(const struct engine *e)
{
    return e->quantised ? e->quantised_rows.mem : NULL;
}

/* The input of a product with m, packed rows `stride` apart, for its quantised panels. */
static int enqueue_quantise(struct engine *e, const struct matrix *m, cl_mem rows, uint32_t stride,
                            uint32_t first_tile, uint32_t n_tiles, struct hill_why *why)
{
    if (!m->quantised)
        return 0;
    uint32_t items = e->device.has_groups ? TILE_ROWS : 1; /* of a row, or of a tile's rows */
    return LAUNCH(e, KERNEL_QUANTISE_ROWS, first_tile, n_tiles * items, m->k / 32, NULL, why,
                  ARG_BUFFER(rows), ARG_U32(stride), ARG_U32(m->k),
                  ARG_BUFFER(e->quantised_rows.mem));
}

/* Norm, and the first n_panels of the layer's projections (an even number), into qkv. */
static int enqueue_projections(struct engine *e, const struct engine_unit *u, uint32_t n_panels,
                               struct hill_why *why)
{
    const struct layer_weights *w = &e->layers[u->layer];
    uint32_t tiles = row_tiles(u->count);
    cl_mem hidden = prompt_hidden(e), quantised = quantised_rows(e);
    int rc =
        LAUNCH_ROWS(e, KERNEL_NORM_ROWS, 0, u->count, NULL, why, ARG_BUFFER(hidden),
                    ARG_U32(e->hidden_stride), ARG_U32(first_row(e, u)), ARG_BUFFER(w->attn_norm),
                    ARG_U32(e->hp.n_embd), ARG_F32(e->hp.norm_eps), ARG_BUFFER(e->normed.mem));
    if (!rc)
        rc = enqueue_quantise(e, &w->qkv, e->normed.mem, e->hp.n_embd, 0, tiles, why);
    if (!rc)
        rc = LAUNCH_TILES(e, KERNEL_GEMM_STORE, 0, tiles, n_panels / 2, NULL, why,
                          ARG_BUFFER(e->normed.mem), ARG_U32(e->hp.n_embd), ARG_BUFFER(quantised),
                          ARG_BUFFER(w->qkv.buffer), ARG_U32(w->qkv.k), ARG_U32(u->count),
                          ARG_BUFFER(e->qkv.mem), ARG_U32(e->qkv_stride));
    return rc;
}

/* Dimensions of a head that the layer turns. */
static uint32_t rotated(const struct engine *e, uint32_t layer)
{
    return model_layer_rotates(&e->hp, layer) ? e->hp.rope_dims : 0;
}

/* Norm, projections, rotation; keys and values stored. */
static int enqueue_keys(struct engine *e, const struct engine_unit *u, uint32_t unit,
                        struct hill_why *why)
{
    const struct layer_weights *w = &e->layers[u->layer];
    uint32_t tiles = row_tiles(u->count), parity = unit % 2, first_entry;
    cl_mem entries = prompt_entries(e, unit, &first_entry);
    engine_forget_event(&e->stored[parity]);
    int rc = enqueue_projections(e, u, w->qkv.panels, why);
    if (!rc)
        rc = LAUNCH_HEADS(e, KERNEL_ROTATE_STORE, 0, u->count, e->hp.n_heads + e->hp.n_kv_heads,
                          &e->stored[parity], why, ARG_BUFFER(e->qkv.mem), ARG_U32(e->qkv_stride),
                          ARG_BUFFER(w->qkv.bias), ARG_BUFFER(w->q_norm), ARG_BUFFER(w->k_norm),
                          ARG_F32(e->hp.norm_eps), ARG_BUFFER(e->turns.mem),
                          ARG_U32(first_turn(e, u)), ARG_U32(rotated(e, u->layer)),
                          ARG_U32(unit_key(e, u)), ARG_BUFFER(e->q.mem), ARG_U32(tiles),
                          ARG_BUFFER(e->kt.mem), ARG_BUFFER(e->v.mem), ARG_U32(e->panels),
                          ARG_BUFFER(entries), ARG_U32(first_entry));
    return rc;
}

/* The last of what was queued tells when all is computed. */
static void keep_settled(struct engine *e, cl_event event)
{
    engine_forget_event(&e->settled);
    e->settled = event;
}

/* Attention of the unit's row tiles from block_start * ATTEND_SUBTILES on. */
static int enqueue_attention(struct engine *e, const struct engine_unit *u, uint32_t block_start,
                             struct hill_why *why)
{
    uint32_t tiles = row_tiles(u->count);
    uint32_t blocks = (tiles + ATTEND_SUBTILES - 1) / ATTEND_SUBTILES;
    cl_mem log_sums = mass_log_sums(e);
    bool groups = e->device.has_groups; /* a group has a tile, an item a block of them */
    uint32_t from = groups ? block_start * ATTEND_SUBTILES : block_start;
    return LAUNCH_AS(e, groups, KERNEL_ATTEND_CHUNK, from, (groups ? tiles : blocks) - from,
                     e->hp.n_heads, NULL, why, ARG_BUFFER(e->q.mem), ARG_U32(tiles),
                     ARG_BUFFER(e->kt.mem), ARG_BUFFER(e->v.mem), ARG_U32(e->panels),
                     ARG_U32(unit_key(e, u)), ARG_U32(u->count),
                     ARG_U32(model_layer_window(&e->hp, u->layer)), ARG_BUFFER(e->attended.mem),
                     ARG_BUFFER(log_sums));
}

/* Row tiles of a chunk from `start` on, and what tells that the last product is computed. */
struct tile_span {
    uint32_t start, rest;
    cl_event *event;
};

/* hidden += a . m, by way of a buffer where the product takes a bias or a norm before it is
 * added. */
static int enqueue_addition(struct engine *e, const struct engine_unit *u, struct tile_span span,
                            const struct device_buffer *a, uint32_t a_stride,
                            const struct matrix *m, cl_mem norm, struct hill_why *why)
{
    cl_mem quantised = quantised_rows(e), hidden = prompt_hidden(e);
    int rc = enqueue_quantise(e, m, a->mem, a_stride, span.start, span.rest, why);
    if (!rc && !m->bias && !norm)
        return LAUNCH_TILES(e, KERNEL_GEMM_ADD, span.start, span.rest, m->panels / 2, span.event,
                            why, ARG_BUFFER(a->mem), ARG_U32(a_stride), ARG_BUFFER(quantised),
                            ARG_BUFFER(m->buffer), ARG_U32(m->k), ARG_U32(u->count),
                            ARG_BUFFER(hidden), ARG_U32(e->hidden_stride),
                            ARG_U32(first_row(e, u)));
    if (!rc)
        rc = LAUNCH_TILES(e, KERNEL_GEMM_STORE, span.start, span.rest, m->panels / 2, NULL, why,
                          ARG_BUFFER(a->mem), ARG_U32(a_stride), ARG_BUFFER(quantised),
                          ARG_BUFFER(m->buffer), ARG_U32(m->k), ARG_U32(u->count),
                          ARG_BUFFER(e->normed.mem), ARG_U32(e->hidden_stride));
    if (!rc)
        rc = LAUNCH_ROWS(e, KERNEL_JOIN_ROWS, span.start * TILE_ROWS,
                         u->count - span.start * TILE_ROWS, span.event, why,
                         ARG_BUFFER(e->normed.mem), ARG_U32(e->hidden_stride), ARG_BUFFER(m->bias),
                         ARG_BUFFER(norm), ARG_U32(e->hp.n_embd), ARG_F32(e->hp.norm_eps),
                         ARG_BUFFER(hidden), ARG_U32(first_row(e, u)));
    return rc;
}

/* What follows attention, for the same row tiles. */
static int enqueue_rest(struct engine *e, const struct engine_unit *u, uint32_t block_start,
                        struct hill_why *why)
{
    const struct layer_weights *w = &e->layers[u->layer];
    uint32_t q_dims = e->hp.n_heads * e->hp.head_dim, tiles = row_tiles(u->count);
    uint32_t start = block_start * ATTEND_SUBTILES, rest = tiles - start;
    cl_mem quantised = quantised_rows(e), hidden = prompt_hidden(e);
    cl_event settled = NULL;
    int rc = enqueue_addition(e, u, (struct tile_span){start, rest, NULL}, &e->attended, q_dims,
                              &w->output, w->post_attn_norm, why);
    if (!rc)
        rc = LAUNCH_ROWS(e, KERNEL_NORM_ROWS, start * TILE_ROWS, u->count - start * TILE_ROWS, NULL,
                         why, ARG_BUFFER(hidden), ARG_U32(e->hidden_stride),
                         ARG_U32(first_row(e, u)), ARG_BUFFER(w->ffn_norm), ARG_U32(e->hp.n_embd),
                         ARG_F32(e->hp.norm_eps), ARG_BUFFER(e->normed.mem));
    if (!rc)
        rc = enqueue_quantise(e, &w->gate_up, e->normed.mem, e->hp.n_embd, start, rest, why);
    if (!rc)
        rc = LAUNCH_TILES(e, KERNEL_GEMM_ACTIVATE, start, rest, w->gate_up.panels / 2, NULL, why,
                          ARG_BUFFER(e->normed.mem), ARG_U32(e->hp.n_embd), ARG_BUFFER(quantised),
                          ARG_BUFFER(w->gate_up.buffer), ARG_U32(w->gate_up.k),
                          ARG_BUFFER(w->gate_up.bias), ARG_BUFFER(e->activated.mem),
                          ARG_U32(e->act_stride), ARG_U32(u->count));
    if (!rc)
        rc = enqueue_addition(e, u, (struct tile_span){start, rest, &settled}, &e->activated,
                              e->act_stride, &w->down, w->post_ffn_norm, why);
    if (settled)
        keep_settled(e, settled);
    return rc;
}

static int enqueue_mass(struct engine *e, const struct engine_unit *u, struct hill_why *why)
{
    cl_event done = NULL;
    int rc = mass_enqueue(e, u, &done, why);
    if (done)
        keep_settled(e, done);
    return rc;
}

int engine_prefill_keys(struct engine *e, uint32_t layer, uint32_t n_selected, struct hill_why *why)
{
    if (!e->selects || layer != e->keys_queued || layer != e->units_queued ||
        layer >= e->hp.n_layers || layer >= e->units_read + 2 || n_selected > e->n_past ||
        e->tokens_given != e->n_tokens)
        return hill_fail(why, HILL_E_INVALID, "queries of layer %u are out of order", layer);
    struct engine_unit u = engine_prefill_unit(e, layer);
    e->selected = n_selected;
    e->past_loaded = 0;
    e->guessed = false;
    int rc = prompt_unit_begins(e, &u, layer, why);
    if (!rc)
        rc = enqueue_keys(e, &u, layer, why);
    e->keys_queued += rc ? 0 : 1;
    return rc;
}

int engine_prefill_guess(struct engine *e, uint32_t layer, struct hill_why *why)
{
    if (!e->selects || layer != e->keys_queued || layer != e->units_queued + 1 ||
        layer >= e->hp.n_layers)
        return hill_fail(why, HILL_E_INVALID, "a guess of layer %u is out of order", layer);
    uint32_t n = probe_rows(e, true), q_dims = e->hp.n_heads * e->hp.head_dim;
    struct engine_unit u = {layer, e->n_past + e->n_tokens - n, n};
    const struct layer_weights *w = &e->layers[layer];
    int rc = probe_reserve_guess(e, why);
    if (!rc)
        rc = enqueue_projections(e, &u, (uint32_t)round_up(q_dims, 32) / 16, why);
    if (!rc)
        rc = LAUNCH_HEADS(e, KERNEL_ROTATE_QUERIES, 0, u.count, e->hp.n_heads, NULL, why,
                          ARG_BUFFER(e->qkv.mem), ARG_U32(e->qkv_stride), ARG_BUFFER(w->qkv.bias),
                          ARG_BUFFER(w->q_norm), ARG_F32(e->hp.norm_eps), ARG_BUFFER(e->turns.mem),
                          ARG_U32(first_turn(e, &u)), ARG_U32(rotated(e, layer)),
                          ARG_BUFFER(e->guessed_q.mem), ARG_U32(row_tiles(n)));
    e->guessed = !rc;
    return rc;
}

/* Is all of the past there that the next unit attends to, and its own keys where these come
 * first? */
static bool has_past(const struct engine *e, uint32_t unit)
{
    return e->selects ? e->keys_queued == unit + 1 && e->past_loaded == e->selected
                      : e->past_loaded == e->n_past;
}

int engine_prefill_enqueue(struct engine *e, uint32_t unit, struct hill_why *why)
{
    if (unit != e->units_queued || unit >= engine_prefill_units(e) || unit >= e->units_read + 2 ||
        e->tokens_given != e->n_tokens)
        return hill_fail(why, HILL_E_INVALID, "prefill unit %u is out of order", unit);
    if (!has_past(e, unit))
        return hill_fail(why, HILL_E_INVALID, "prefill unit %u is queued before its past", unit);
    struct engine_unit u = engine_prefill_unit(e, unit);
    bool last_layer = u.layer + 1 == e->hp.n_layers;
    bool last_chunk = first_row(e, &u) + u.count == e->n_tokens;
    bool every_row = !last_layer || e->whole_prompt, goes_on = every_row || last_chunk;
    uint32_t from = every_row ? 0 : (row_tiles(u.count) - 1) / ATTEND_SUBTILES;
    int rc = e->selects ? 0 : prompt_unit_begins(e, &u, unit, why);
    if (!rc && !e->selects)
        rc = enqueue_keys(e, &u, unit, why);
    if (!rc && (goes_on || e->weighs))
        rc = enqueue_attention(e, &u, e->weighs ? 0 : from, why);
    if (!rc && e->weighs)
        rc = enqueue_mass(e, &u, why);
    if (!rc && goes_on)
        rc = enqueue_rest(e, &u, from, why);
    if (!rc)
        rc = prompt_unit_ends(e, &u, unit, why);
    if (!rc)
        rc = cldevice_check(clFlush(e->queue), "the device failed", why);
    e->units_queued += rc ? 0 : 1;
    if (!rc && last_chunk && !last_layer)
        e->past_loaded = engine_past_from(e, u.layer + 1);
    return rc;
}

int engine_prefill_done(struct engine *e, uint32_t unit, struct hill_why *why)
{
    if (prompt_was_computed(e, unit))
        return 1;
    return unit < e->units_queued && e->stored[unit % 2]
               ? engine_ask_event(e->stored[unit % 2], why)
               : 0;
}

int engine_prefill_settled(struct engine *e, struct hill_why *why)
{
    return e->units_queued && e->settled ? engine_ask_event(e->settled, why) : 1;
}

static int read_entries(struct engine *e, uint32_t unit, uint32_t first, uint32_t count,
                        void *entries, struct hill_why *why)
{
    uint32_t from;
    cl_mem buffer = prompt_entries(e, unit, &from);
    return cldevice_check(clEnqueueReadBuffer(e->read_queue, buffer, CL_TRUE,
                                              ((uint64_t)from + first) * e->entry_bytes,
                                              (uint64_t)count * e->entry_bytes, entries, 1,
                                              &e->stored[unit % 2], NULL),
                          "cannot read KV entries from the device", why);
}

int engine_prefill_read(struct engine *e, uint32_t unit, uint32_t first, uint32_t count,
                        void *entries, struct hill_why *why)
{
    struct engine_unit u = engine_prefill_unit(e, unit);
    if (unit != e->units_read || unit >= e->units_queued || first > u.count ||
        count > u.count - first || count == 0)
        return hill_fail(why, HILL_E_INVALID, "entries of prefill unit %u are read out of order",
                         unit);
    int rc = 0;
    if (prompt_was_computed(e, unit))
        prompt_read_kept(e, unit, first, count, entries);
    else
        rc = read_entries(e, unit, first, count, entries, why);
    e->units_read += !rc && first + count == u.count ? 1 : 0;
    return rc;
}

int engine_prefill_pass(struct engine *e, uint32_t unit, struct hill_why *why)
{
    if (unit != e->units_read || unit >= e->units_queued)
        return hill_fail(why, HILL_E_INVALID, "prefill unit %u is passed out of order", unit);
    int rc = prompt_was_computed(e, unit) ? 0
                                          : cldevice_check(clWaitForEvents(1, &e->stored[unit % 2]),
                                                           "the device failed", why);
    e->units_read += rc ? 0 : 1;
    return rc;
}

int engine_prefill_logits_of(struct engine *e, uint32_t token, float *logits, struct hill_why *why)
{
    if (!e->n_tokens || e->units_queued != engine_prefill_units(e))
        return hill_fail(why, HILL_E_INVALID, "logits before the prompt is done");
    uint32_t row = token - e->n_past; /* of a past token: beyond all */
    if (row >= e->n_tokens || (row + 1 < e->n_tokens && !e->whole_prompt))
        return hill_fail(why, HILL_E_INVALID, "logits of token %u were not asked for", token);
    uint64_t bytes = 4ull * e->hidden_stride;
    int rc = cldevice_check(clEnqueueCopyBuffer(e->queue, prompt_hidden(e), e->x.device.mem,
                                                row * bytes, 0, bytes, 0, NULL, NULL),
                            "cannot copy a hidden state", why);
    e->next_layer = UINT32_MAX; /* x and the logits were a step's */
    return rc ? rc : engine_logits(e, logits, why);
}

int engine_prefill_logits(struct engine *e, float *logits, struct hill_why *why)
{
    return engine_prefill_logits_of(e, e->n_past + e->n_tokens - 1, logits, why);
}
