/*
 * gpu_worker/decode.c - one token through the layers, attention over selected entries. See
 * engine.h.
 *
 * The slot after the last of a layer's slot buffer takes the new token's entry, so that it is
 * simply the last item of the attention's list.
 */
#include <string.h>

#include "gpu_worker/engine_internal.h"

static int write_buffer(struct engine *e, cl_mem to, const void *from, uint64_t bytes,
                        struct hill_why *why)
{
    if (bytes == 0)
        return 0;
    return cldevice_check(
        clEnqueueWriteBuffer(e->queue, to, CL_TRUE, 0, bytes, from, 0, NULL, NULL),
        "cannot write to the device", why);
}

int engine_step_begin(struct engine *e, uint32_t token, uint32_t position, struct hill_why *why)
{
    e->next_layer = UINT32_MAX;
    int rc = engine_embedding(e, token, e->host_row, why);
    if (!rc)
        rc = write_buffer(e, e->x.mem, e->host_row, 4ull * e->hidden_stride, why);
    if (rc)
        return rc;
    engine_turns(e, position, e->host_row);
    rc = write_buffer(e, e->turn.mem, e->host_row, 4ull * e->hp.rope_dims, why);
    e->position = position;
    e->next_layer = rc ? UINT32_MAX : 0;
    return rc;
}

int engine_step_query(struct engine *e, uint32_t layer, float *q, void *entry, struct hill_why *why)
{
    if (layer != e->next_layer || layer >= e->hp.n_layers)
        return hill_fail(why, HILL_E_INVALID, "layer %u is out of order", layer);
    const struct layer_weights *w = &e->layers[layer];
    uint64_t at = (uint64_t)e->gpu_slots * e->entry_bytes;
    int rc =
        LAUNCH(e, KERNEL_MATVEC_QKV, w->qkv.f16, 0, w->qkv.panels, 1, NULL, why,
               ARG_BUFFER(e->x.mem), ARG_BUFFER(w->attn_norm), ARG_F32(e->hp.rms_eps),
               ARG_BUFFER(w->qkv.buffer), ARG_U32(w->qkv.k), ARG_BUFFER(e->turn.mem),
               ARG_BUFFER(e->step_q.mem), ARG_BUFFER(e->slots[layer].mem), ARG_U32(e->gpu_slots));
    if (!rc)
        rc = cldevice_check(clEnqueueReadBuffer(e->queue, e->step_q.mem, CL_FALSE, 0,
                                                4ull * e->hp.n_heads * e->hp.head_dim, q, 0, NULL,
                                                NULL),
                            "cannot read the query from the device", why);
    if (!rc)
        rc = cldevice_check(clEnqueueReadBuffer(e->queue, e->slots[layer].mem, CL_TRUE, at,
                                                e->entry_bytes, entry, 0, NULL, NULL),
                            "cannot read the new entry from the device", why);
    return rc;
}

int engine_step_upload(struct engine *e, uint32_t layer, uint32_t count, const uint32_t *slots,
                       const void *entries, struct hill_why *why)
{
    int rc = 0;
    if (layer >= e->hp.n_layers)
        return hill_fail(why, HILL_E_INVALID, "no layer %u", layer);
    for (uint32_t i = 0; i < count; i++)
        if (slots[i] >= e->gpu_slots)
            return hill_fail(why, HILL_E_INVALID, "GPU slot %u of %u", slots[i], e->gpu_slots);
    for (uint32_t first = 0; !rc && first < count; first += UPLOAD_BATCH) {
        uint32_t n = count - first < UPLOAD_BATCH ? count - first : UPLOAD_BATCH;
        rc = write_buffer(e, e->upload.mem,
                          (const uint8_t *)entries + (uint64_t)first * e->entry_bytes,
                          (uint64_t)n * e->entry_bytes, why);
        if (!rc)
            rc = write_buffer(e, e->upload_slots.mem, slots + first, 4ull * n, why);
        if (!rc)
            rc = LAUNCH(e, KERNEL_SCATTER_ENTRIES, 0, 0, n, 1, NULL, why, ARG_BUFFER(e->upload.mem),
                        ARG_BUFFER(e->upload_slots.mem), ARG_BUFFER(e->slots[layer].mem));
    }
    return rc;
}

static int enqueue_attention(struct engine *e, uint32_t layer, uint32_t n_items,
                             struct hill_why *why)
{
    uint32_t tiles = (n_items + DECODE_TILE - 1) / DECODE_TILE;
    int rc = LAUNCH(e, KERNEL_ATTEND_LIST, 0, 0, e->hp.n_heads, tiles, NULL, why,
                    ARG_BUFFER(e->step_q.mem), ARG_BUFFER(e->slots[layer].mem),
                    ARG_BUFFER(e->items.mem), ARG_U32(n_items), ARG_BUFFER(e->partial.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_ATTEND_COMBINE, 0, 0, e->hp.n_heads, 1, NULL, why,
                    ARG_BUFFER(e->partial.mem), ARG_U32(tiles), ARG_BUFFER(e->step_attended.mem));
    return rc;
}

int engine_step_attend(struct engine *e, uint32_t layer, uint32_t n_slots, const uint32_t *slots,
                       struct hill_why *why)
{
    if (layer != e->next_layer || layer >= e->hp.n_layers || n_slots > e->gpu_slots)
        return hill_fail(why, HILL_E_INVALID, "layer %u with %u entries is out of order or range",
                         layer, n_slots);
    const struct layer_weights *w = &e->layers[layer];
    for (uint32_t i = 0; i < n_slots; i++)
        if (slots[i] >= e->gpu_slots)
            return hill_fail(why, HILL_E_INVALID, "GPU slot %u of %u", slots[i], e->gpu_slots);
    int rc = write_buffer(e, e->items.mem, slots, 4ull * n_slots, why);
    if (!rc)
        rc = cldevice_check(clEnqueueFillBuffer(e->queue, e->items.mem, &e->gpu_slots, 4,
                                                4ull * n_slots, 4, 0, NULL, NULL),
                            "cannot write to the device", why);
    if (!rc)
        rc = enqueue_attention(e, layer, n_slots + 1, why);
    if (!rc)
        rc = LAUNCH(e, KERNEL_MATVEC_ADD, w->output.f16, 0, w->output.panels, 1, NULL, why,
                    ARG_BUFFER(e->step_attended.mem), ARG_BUFFER(w->output.buffer),
                    ARG_U32(w->output.k), ARG_BUFFER(e->x.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_MATVEC_SWIGLU, w->gate_up.f16, 0, w->gate_up.panels / 2, 1, NULL, why,
                    ARG_BUFFER(e->x.mem), ARG_BUFFER(w->ffn_norm), ARG_F32(e->hp.rms_eps),
                    ARG_BUFFER(w->gate_up.buffer), ARG_U32(w->gate_up.k),
                    ARG_BUFFER(e->step_activated.mem));
    if (!rc)
        rc = LAUNCH(e, KERNEL_MATVEC_ADD, w->down.f16, 0, w->down.panels, 1, NULL, why,
                    ARG_BUFFER(e->step_activated.mem), ARG_BUFFER(w->down.buffer),
                    ARG_U32(w->down.k), ARG_BUFFER(e->x.mem));
    e->next_layer += rc ? 0 : 1;
    return rc;
}

int engine_logits(struct engine *e, float *logits, struct hill_why *why)
{
    int rc = LAUNCH(e, KERNEL_MATVEC_NORM, e->output.f16, 0, e->output.panels, 1, NULL, why,
                    ARG_BUFFER(e->x.mem), ARG_BUFFER(e->output_norm), ARG_F32(e->hp.rms_eps),
                    ARG_BUFFER(e->output.buffer), ARG_U32(e->output.k), ARG_BUFFER(e->logits.mem));
    if (rc)
        return rc;
    return cldevice_check(clEnqueueReadBuffer(e->queue, e->logits.mem, CL_TRUE, 0,
                                              4ull * e->hp.n_vocab, logits, 0, NULL, NULL),
                          "cannot read the logits from the device", why);
}

int engine_step_logits(struct engine *e, float *logits, struct hill_why *why)
{
    if (e->next_layer != e->hp.n_layers)
        return hill_fail(why, HILL_E_INVALID, "logits before all layers are done");
    e->next_layer = UINT32_MAX;
    return engine_logits(e, logits, why);
}
