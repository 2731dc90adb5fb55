/*
 * gpu_worker/prefill_past.c - entries of tokens before a prompt, packed for its attention. See
 * engine.h.
 *
 * Of one layer at a time: they go into the keys and values of the current layer, so nothing of them
 * may be packed before the layer before is queued; the queue keeps that order. Two buffers: one is
 * written while the other waits behind the layer that is being computed. Entries are FP16 and are
 * copied as they are, so attention reads what it read when they were computed. Runs of entries that
 * are on the device between prompts are packed from where they lie.
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
        engine_release(e, &e->past_sources[i]);
    }
    engine_release(e, &e->kept_runs);
    e->n_kept_runs = 0;
}

/* ---- runs on the device ---------------------------------------------------------------------- */

static uint64_t run_bytes(const struct engine *e)
{
    return (uint64_t)e->kept_run_tokens * e->entry_bytes;
}

int engine_keep_runs(struct engine *e, uint32_t n_slots, uint32_t run_tokens, struct hill_why *why)
{
    int rc = engine_finish(e, why);
    e->n_kept_runs = 0;
    e->kept_run_tokens = run_tokens;
    engine_release(e, &e->kept_runs);
    if (rc || !n_slots)
        return rc;
    if (!run_tokens || run_tokens > ENGINE_PAST_TOKENS)
        return hill_fail(why, HILL_E_INVALID, "runs of %u entries", run_tokens);
    rc = engine_reserve(e, &e->kept_runs, n_slots * run_bytes(e), why);
    for (int i = 0; !rc && i < 2; i++)
        rc = engine_reserve(e, &e->past_sources[i], ENGINE_PAST_TOKENS * sizeof(uint32_t), why);
    if (!rc)
        rc = engine_finish(e, why); /* it is there, also with a device that allocates late */
    if (rc)
        engine_release(e, &e->kept_runs);
    else
        e->n_kept_runs = n_slots;
    return rc;
}

static int check_slot(const struct engine *e, uint32_t slot, struct hill_why *why)
{
    return slot < e->n_kept_runs
               ? 0
               : hill_fail(why, HILL_E_INVALID, "slot %u of the device's %u for runs", slot,
                           e->n_kept_runs);
}

/* What has been queued to be packed, of both buffers: the queue keeps the order. */
static const cl_event *last_packed(const struct engine *e)
{
    const cl_event *packed = &e->past_packed[1 - e->next_past];
    return *packed ? packed : NULL;
}

int engine_write_run(struct engine *e, uint32_t slot, const void *entries, struct hill_why *why)
{
    const cl_event *packed = last_packed(e);
    int rc = check_slot(e, slot, why);
    if (!rc)
        rc = cldevice_check(clEnqueueWriteBuffer(e->read_queue, e->kept_runs.mem, CL_TRUE,
                                                 slot * run_bytes(e), run_bytes(e), entries,
                                                 packed ? 1 : 0, packed, NULL),
                            "cannot write entries to the device", why);
    return rc ? rc : cldevice_check(clFinish(e->read_queue), "the device failed", why);
}

int engine_read_run(struct engine *e, uint32_t slot, void *entries, struct hill_why *why)
{
    int rc = check_slot(e, slot, why);
    return rc ? rc
              : cldevice_check(clEnqueueReadBuffer(e->read_queue, e->kept_runs.mem, CL_TRUE,
                                                   slot * run_bytes(e), run_bytes(e), entries, 0,
                                                   NULL, NULL),
                               "cannot read entries of the device", why);
}

/* ---- a prompt -------------------------------------------------------------------------------- */

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

static int check_order(const struct engine *e, uint32_t layer, uint32_t first, uint32_t count,
                       struct hill_why *why)
{
    uint32_t all = e->selects ? e->selected : e->n_past;
    if (!e->n_tokens || e->units_queued != layer * e->n_chunks || first != e->past_loaded ||
        count == 0 || count > ENGINE_PAST_TOKENS || count > all - first)
        return hill_fail(why, HILL_E_INVALID, "past entries %u.. of layer %u are out of order",
                         first, layer);
    return 0;
}

/* Of the host's, to their places in the buffer that is next. */
static int write_entries(struct engine *e, uint32_t from, uint32_t count, const void *entries,
                         struct hill_why *why)
{
    uint64_t at = (uint64_t)from * e->entry_bytes;
    return cldevice_check(clEnqueueWriteBuffer(e->read_queue, e->past[e->next_past].mem, CL_TRUE,
                                               at, (uint64_t)count * e->entry_bytes,
                                               (const uint8_t *)entries + at, 0, NULL, NULL),
                          "cannot write past entries to the device", why);
}

/* rc: of the launch that packs them. */
static int pass_on(struct engine *e, uint32_t count, int rc, struct hill_why *why)
{
    if (!rc)
        rc = cldevice_check(clFlush(e->queue), "the device failed", why);
    if (rc)
        return rc;
    e->past_loaded += count;
    e->next_past = 1 - e->next_past;
    return 1;
}

int engine_prefill_past(struct engine *e, uint32_t layer, uint32_t first, uint32_t count,
                        const void *entries, struct hill_why *why)
{
    uint32_t i = e->next_past;
    int rc = check_order(e, layer, first, count, why);
    rc = rc ? rc : is_free(e, why);
    if (rc != 1)
        return rc;
    rc = write_entries(e, 0, count, entries, why);
    if (!rc) /* a blocking write has taken the bytes, it need not be over */
        rc = cldevice_check(clFinish(e->read_queue), "the device failed", why);
    if (!rc)
        rc = LAUNCH_HEADS(e, KERNEL_LOAD_ENTRIES, 0, count, e->hp.n_kv_heads, &e->past_packed[i],
                          why, ARG_BUFFER(e->past[i].mem), ARG_U32(0), ARG_U32(first),
                          ARG_BUFFER(e->kt.mem), ARG_BUFFER(e->v.mem), ARG_U32(e->panels));
    return pass_on(e, count, rc, why);
}

/* Those of the host that lie side by side go together. */
static int write_runs(struct engine *e, uint32_t n, const void *entries, const uint32_t *slots,
                      struct hill_why *why)
{
    uint32_t tokens = e->kept_run_tokens;
    int rc =
        cldevice_check(clEnqueueWriteBuffer(e->read_queue, e->past_sources[e->next_past].mem,
                                            CL_TRUE, 0, n * sizeof *slots, slots, 0, NULL, NULL),
                       "cannot write to the device", why);
    for (uint32_t run = 0, end; !rc && run < n; run = end + 1) {
        for (end = run; end < n && slots[end] == ENGINE_NO_SLOT; end++)
            ;
        if (end > run)
            rc = write_entries(e, run * tokens, (end - run) * tokens, entries, why);
    }
    return rc ? rc : cldevice_check(clFinish(e->read_queue), "the device failed", why);
}

int engine_prefill_past_runs(struct engine *e, uint32_t layer, uint32_t first, uint32_t count,
                             const void *entries, const uint32_t *slots, struct hill_why *why)
{
    uint32_t i = e->next_past, tokens = e->kept_run_tokens, n = tokens ? count / tokens : 0;
    int rc = check_order(e, layer, first, count, why);
    if (!rc && (!e->n_kept_runs || n * tokens != count))
        rc = hill_fail(why, HILL_E_INVALID, "%u entries are no runs of the device's", count);
    for (uint32_t run = 0; !rc && run < n; run++)
        rc = slots[run] == ENGINE_NO_SLOT ? 0 : check_slot(e, slots[run], why);
    rc = rc ? rc : is_free(e, why);
    if (rc != 1)
        return rc;
    rc = write_runs(e, n, entries, slots, why);
    if (!rc)
        rc = LAUNCH_HEADS(e, KERNEL_LOAD_RUNS, 0, count, e->hp.n_kv_heads, &e->past_packed[i], why,
                          ARG_BUFFER(e->past[i].mem), ARG_BUFFER(e->kept_runs.mem),
                          ARG_BUFFER(e->past_sources[i].mem), ARG_U32(tokens), ARG_U32(first),
                          ARG_BUFFER(e->kt.mem), ARG_BUFFER(e->v.mem), ARG_U32(e->panels));
    return pass_on(e, count, rc, why);
}
