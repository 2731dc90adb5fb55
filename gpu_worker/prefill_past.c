/*
 * gpu_worker/prefill_past.c - entries of tokens before a prompt, packed for its attention. See
 * engine.h.
 *
 * Of one layer at a time: they go into the keys and values of the current layer, so nothing of them
 * may be packed before the layer before is queued; the queue keeps that order. Two buffers: one is
 * written while the other waits behind the layer that is being computed. Entries are FP16 and are
 * copied as they are, so attention reads what it read when they were computed.
 */
#include "gpu_worker/engine_internal.h"

static uint64_t buffer_bytes(const struct engine *e, uint32_t n_past)
{
    return (uint64_t)(n_past < ENGINE_PAST_TOKENS ? n_past : ENGINE_PAST_TOKENS) * e->entry_bytes;
}

uint64_t past_bytes(const struct engine *e, uint32_t n_past)
{
    return 2 * buffer_bytes(e, n_past);
}

int past_reserve(struct engine *e, uint32_t n_past, struct hill_why *why)
{
    int rc = 0;
    for (int i = 0; n_past && !rc && i < 2; i++)
        rc = engine_reserve(e, &e->past[i], buffer_bytes(e, n_past), why);
    if (rc || !n_past)
        return rc;
    /* they were cleared through this queue, and are written through the other one */
    return cldevice_check(clFinish(e->queue), "the device failed", why);
}

void past_release(struct engine *e)
{
    for (int i = 0; i < 2; i++) {
        engine_forget_event(&e->past_packed[i]);
        engine_release(e, &e->past[i]);
    }
}

/* Attention begins at a tile of keys; what lies there before the window is masked. */
uint32_t engine_past_from(const struct engine *e, uint32_t layer)
{
    uint32_t window = model_layer_window(&e->hp, layer);
    return window && e->n_past >= window ? (e->n_past - window + 1) / ATTEND_KEYS * ATTEND_KEYS : 0;
}

/* May the next buffer be written? 1, 0, or an error. */
static int is_free(struct engine *e, struct hill_why *why)
{
    cl_event *packed = &e->past_packed[e->next_past];
    int rc = *packed ? engine_ask_event(*packed, why) : 1;
    if (rc == 1)
        engine_forget_event(packed);
    return rc;
}

int engine_prefill_past(struct engine *e, uint32_t layer, uint32_t first, uint32_t count,
                        const void *entries, struct hill_why *why)
{
    uint32_t i = e->next_past, all = e->selects ? e->selected : e->n_past;
    if (!e->n_tokens || e->units_queued != layer * e->n_chunks || first != e->past_loaded ||
        count == 0 || count > ENGINE_PAST_TOKENS || count > all - first)
        return hill_fail(why, HILL_E_INVALID, "past entries %u.. of layer %u are out of order",
                         first, layer);
    int rc = is_free(e, why);
    if (rc != 1)
        return rc;
    rc = cldevice_check(clEnqueueWriteBuffer(e->read_queue, e->past[i].mem, CL_TRUE, 0,
                                             (uint64_t)count * e->entry_bytes, entries, 0, NULL,
                                             NULL),
                        "cannot write past entries to the device", why);
    if (!rc) /* a blocking write has taken the bytes, it need not be over */
        rc = cldevice_check(clFinish(e->read_queue), "the device failed", why);
    if (!rc)
        rc = LAUNCH(e, KERNEL_LOAD_ENTRIES, 0, count, 1, &e->past_packed[i], why,
                    ARG_BUFFER(e->past[i].mem), ARG_U32(0), ARG_U32(first), ARG_BUFFER(e->kt.mem),
                    ARG_BUFFER(e->v.mem), ARG_U32(e->panels));
    if (!rc)
        rc = cldevice_check(clFlush(e->queue), "the device failed", why);
    if (rc)
        return rc;
    e->past_loaded += count;
    e->next_past = 1 - i;
    return 1;
}
