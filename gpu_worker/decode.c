/*
 * gpu_worker/decode.c - a step: the tokens of some sequences through the layers, attention over
 * selected entries. See engine.h.
 *
 * One launch a layer where launches are dear (devices that share the host's memory): from the
 * uploads of a layer to the query of the next, or the logits; the host waits once a layer,
 * uploads that are attended to are read from staging and written to their slots in one go, and hot
 * entries are read where they lie.
 * Elsewhere the same kernel runs phase by phase, after uploads have been scattered. A new token's
 * entry is the last item of its row's list. The guessed query of layer i + 1 is made of layer i's
 * input by the same phase that makes layer i's own query, so it takes no launch of its own and is
 * there before the attention of layer i.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu_worker/engine_internal.h"

#define PAGE       4096u
#define WARM_BYTES (4u << 20) /* what a gap between two layers is long enough for */

static void release_event(cl_event *event)
{
    if (*event)
        clReleaseEvent(*event);
    *event = NULL;
}

/* ---- memory that both sides see ---- */

static int shared_reserve(struct engine *e, struct shared_buffer *b, uint64_t bytes,
                          struct hill_why *why)
{
    if (b->device.bytes >= bytes)
        return 0;
    engine_release(e, &b->device);
    free(b->host);
    bytes = (bytes + 63) / 64 * 64;
    uint64_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    b->host = aligned_alloc(PAGE, pages);
    if (!b->host)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the device's inputs and outputs");
    memset(b->host, 0, pages);
    if (!e->device.shares_memory)
        return engine_reserve(e, &b->device, bytes, why);
    cl_int status;
    b->device.mem = clCreateBuffer(e->device.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                   bytes, b->host, &status);
    if (status != CL_SUCCESS) {
        b->device.mem = NULL;
        return cldevice_check(status, "cannot share memory with the device", why);
    }
    b->device.bytes = bytes;
    e->kv_bytes += bytes;
    return 0;
}

static void shared_release(struct engine *e, struct shared_buffer *b)
{
    engine_release(e, &b->device);
    free(b->host);
    b->host = NULL;
}

/* What the host wrote, for the device; the host leaves it alone until the next await(). */
static int push_part(struct engine *e, const struct shared_buffer *b, uint64_t offset,
                     uint64_t bytes, struct hill_why *why)
{
    if (e->device.shares_memory || bytes == 0)
        return 0;
    return cldevice_check(clEnqueueWriteBuffer(e->queue, b->device.mem, CL_FALSE, offset, bytes,
                                               (const uint8_t *)b->host + offset, 0, NULL, NULL),
                          "cannot write to the device", why);
}

static int push(struct engine *e, const struct shared_buffer *b, uint64_t bytes,
                struct hill_why *why)
{
    return push_part(e, b, 0, bytes, why);
}

/* What the device is going to write, for the host: there after the next await(). */
static int pull(struct engine *e, const struct shared_buffer *b, uint64_t bytes,
                struct hill_why *why)
{
    if (e->device.shares_memory)
        return 0;
    return cldevice_check(
        clEnqueueReadBuffer(e->queue, b->device.mem, CL_FALSE, 0, bytes, b->host, 0, NULL, NULL),
        "cannot read from the device", why);
}

/* The last launch is done; not what may be behind it to warm caches. */
static int await(struct engine *e, struct hill_why *why)
{
    if (!e->step_done) {
        engine_end_warming(e);
        return cldevice_check(clFinish(e->queue), "the device failed", why);
    }
    cl_int status = clWaitForEvents(1, &e->step_done);
    release_event(&e->step_done);
    return cldevice_check(status, "the device failed", why);
}

/* ---- buffers ---- */

static int reserve_half(struct engine *e, struct upload_half *h, struct hill_why *why)
{
    uint64_t bytes = (uint64_t)UPLOAD_BATCH * (e->entry_bytes + 8);
    int rc = engine_reserve(e, &h->entries, (uint64_t)UPLOAD_BATCH * e->entry_bytes, why);
    if (!rc)
        rc = engine_reserve(e, &h->list, 8ull * UPLOAD_BATCH, why);
    if (rc || h->host)
        return rc;
    cl_int status;
    h->pinned = clCreateBuffer(e->device.context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes,
                               NULL, &status);
    if (status != CL_SUCCESS)
        h->pinned = NULL;
    else
        h->host = clEnqueueMapBuffer(e->read_queue, h->pinned, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
                                     0, bytes, 0, NULL, NULL, &status);
    return cldevice_check(status, "cannot allocate pinned memory", why);
}

int decode_reserve(struct engine *e, struct hill_why *why)
{
    uint32_t padded = round_up(e->hp.head_dim, 16), tiles = e->gpu_slots / DECODE_TILE + 1;
    uint64_t rows = e->n_sequences, slots = rows * e->gpu_slots;
    struct {
        struct device_buffer *buffer;
        uint64_t bytes;
    } scratch[] = {
        {&e->step_attended, 4 * rows * q_stride(e)},
        {&e->step_activated, 4 * rows * e->act_stride},
        {&e->step_branch, engine_norms_branches(e) ? 4 * rows * e->hidden_stride : 0},
        {&e->step_keys, engine_norms_heads(e) ? rows * e->entry_bytes : 0},
        {&e->step_quantised, e->quantised ? 2 * 4 * rows * quant_stride(e) : 0},
        {&e->partial, 4 * rows * tiles * e->hp.n_heads * (padded + 16)},
        {&e->counters, COUNTER_BYTES},
    };
    struct {
        struct shared_buffer *buffer;
        uint64_t bytes;
    } shared[] = {
        {&e->x, 4 * rows * e->hidden_stride},
        {&e->turn, 4 * rows * e->hp.rope_dims * model_rope_tables(&e->hp)},
        {&e->step_q, 4 * rows * q_stride(e)},
        {&e->step_guess, e->guess_from ? 4 * rows * q_stride(e) : 0},
        {&e->items, 4 * rows * (e->gpu_slots + 1)},
        {&e->lists, 8 * rows},
        {&e->fresh, 2 * rows * fresh_stride(e)},
        {&e->logits, 4 * rows * logits_stride(e)},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof scratch / sizeof *scratch; i++)
        rc = engine_reserve(e, scratch[i].buffer, scratch[i].bytes, why);
    for (size_t i = 0; !rc && i < sizeof shared / sizeof *shared; i++)
        rc = shared_reserve(e, shared[i].buffer, shared[i].bytes, why);
    if (!rc && e->device.shares_memory) {
        rc = shared_reserve(e, &e->uploads, 8 * slots, why);
        if (!rc)
            rc = shared_reserve(e, &e->warm_turn, 64, why);
        /* a list in host memory is no memory of the GPU's */
        e->kv_bytes -= e->uploads.device.bytes + e->warm_turn.device.bytes;
        e->uploads.device.bytes = e->warm_turn.device.bytes = 0;
        free(e->upload_of);
        e->upload_of = calloc(e->gpu_slots, sizeof *e->upload_of);
        if (!rc && !e->upload_of)
            rc = hill_fail(why, HILL_E_NOMEM, "no memory for a table of %u slots", e->gpu_slots);
    }
    for (int i = 0; !rc && i < 2 && !e->device.shares_memory; i++)
        rc = reserve_half(e, &e->halves[i], why);
    return rc;
}

static void release_half(struct engine *e, struct upload_half *h)
{
    release_event(&h->written);
    release_event(&h->scattered);
    engine_release(e, &h->entries);
    engine_release(e, &h->list);
    if (h->host) {
        clEnqueueUnmapMemObject(e->read_queue, h->pinned, h->host, 0, NULL, NULL);
        clFinish(e->read_queue);
    }
    if (h->pinned)
        clReleaseMemObject(h->pinned);
    *h = (struct upload_half){0};
}

static void release_hot(struct engine *e)
{
    if (e->hot)
        clReleaseMemObject(e->hot);
    e->hot = NULL;
    e->hot_bytes = e->hot_offset = e->hot_entries = 0;
}

void decode_release(struct engine *e)
{
    struct device_buffer *buffers[] = {&e->step_attended, &e->step_activated, &e->step_quantised,
                                       &e->step_branch,   &e->step_keys,      &e->partial,
                                       &e->counters};
    struct shared_buffer *shared[] = {&e->x,       &e->turn,     &e->step_q, &e->step_guess,
                                      &e->items,   &e->lists,    &e->fresh,  &e->logits,
                                      &e->uploads, &e->warm_turn};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        engine_release(e, buffers[i]);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        shared_release(e, shared[i]);
    for (int i = 0; i < 2; i++)
        release_half(e, &e->halves[i]);
    free(e->upload_of);
    e->upload_of = NULL;
    if (e->staging)
        clReleaseMemObject(e->staging);
    e->staging = NULL;
    release_hot(e);
}

uint64_t decode_bytes(const struct engine *e)
{
    return e->step_attended.bytes + e->step_activated.bytes + e->step_quantised.bytes +
           e->step_branch.bytes + e->step_keys.bytes + e->partial.bytes + e->counters.bytes +
           e->x.device.bytes + e->turn.device.bytes + e->step_q.device.bytes +
           e->step_guess.device.bytes + e->items.device.bytes + e->lists.device.bytes +
           e->fresh.device.bytes + e->logits.device.bytes + e->halves[0].entries.bytes +
           e->halves[0].list.bytes + e->halves[1].entries.bytes + e->halves[1].list.bytes;
}

int engine_attach_staging(struct engine *e, const void *slots, uint64_t stride, uint32_t count,
                          struct hill_why *why)
{
    int rc = engine_finish(e, why);
    if (e->staging)
        clReleaseMemObject(e->staging);
    e->staging = NULL;
    e->staging_slots = slots;
    e->staging_stride = stride;
    e->staging_count = slots ? count : 0;
    e->n_uploads = 0;
    e->next_layer = UINT32_MAX;
    if (rc || !slots || !e->device.shares_memory)
        return rc;
    cl_int status;
    /* read only for the kernels; OpenCL takes the pointer without const */
    e->staging = clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR,
                                stride * count, (void *)(uintptr_t)slots, &status);
    if (status != CL_SUCCESS)
        e->staging = NULL;
    return cldevice_check(status, "cannot share the staging arena with the device", why);
}

int engine_attach_hot(struct engine *e, const void *memory, uint64_t bytes, struct hill_why *why)
{
    int rc = engine_finish(e, why);
    release_hot(e);
    e->next_layer = UINT32_MAX;
    if (rc || !memory)
        return rc;
    /* the attention may read past the last value of an entry else, and past the memory's end */
    if (!e->device.shares_memory || e->hp.head_dim % 16)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "%s with heads of %u values cannot read the hot pool", e->device.name,
                         e->hp.head_dim);
    cl_int status;
    e->hot = clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, bytes,
                            (void *)(uintptr_t)memory, &status);
    if (status != CL_SUCCESS) {
        e->hot = NULL;
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "%s does not take a hot pool of %.1f MiB (OpenCL error %d)",
                         e->device.name, bytes / 1048576.0, status);
    }
    e->hot_bytes = bytes;
    return 0;
}

int engine_place_hot(struct engine *e, uint64_t offset, uint32_t n_entries, struct hill_why *why)
{
    if (!e->hot || offset % 64 || offset > e->hot_bytes ||
        n_entries > (e->hot_bytes - offset) / e->entry_bytes || n_entries > ENGINE_HOT ||
        (e->hot_entries && (e->hot_entries != n_entries || e->hot_offset != offset)))
        return hill_fail(why, HILL_E_PROTOCOL,
                         "%u hot entries at %llu are not in the pool of %llu bytes, or have moved",
                         n_entries, (unsigned long long)offset, (unsigned long long)e->hot_bytes);
    e->hot_offset = offset;
    e->hot_entries = n_entries;
    return 0;
}

uint32_t engine_hot_entries(const struct engine *e)
{
    return e->hot_entries;
}

/* ---- launches ---- */

struct step_launch {
    const struct layer_weights *layer, *next; /* next NULL: the logits */
    const struct layer_weights *guess;        /* whose query is guessed beside next's, or NULL */
    uint32_t next_layer;                      /* the number of next; guess is the layer after it */
    cl_mem slots, staging, uploads;
    uint32_t n_rows, n_tiles, n_uploads;
    cl_event *event;
    const cl_event *after;
};

/* q comes first in the projections. */
static uint32_t guess_panels(const struct engine *e, const struct step_launch *s)
{
    return s->guess ? (e->hp.n_heads * e->hp.head_dim + 15) / 16 : 0;
}

/* Tasks that make the input of a product int8; as decode.cl's count_quant_tasks. */
static uint32_t quant_tasks(const struct step_launch *s, const struct matrix *m)
{
    return m->quantised ? s->n_rows * ((m->k / 32 + QUANT_BLOCKS - 1) / QUANT_BLOCKS) : 0;
}

static uint32_t count_tasks(const struct engine *e, const struct step_launch *s, enum phase phase)
{
    /* as decode.cl's HEAD_BLOCKS */
    uint32_t block = e->hp.head_dim >= 256 ? 1 : 256 / e->hp.head_dim;
    if (block > e->hp.n_kv_heads)
        block = e->hp.n_kv_heads;
    switch (phase) {
    case PHASE_SCATTER:
        return s->n_uploads;
    case PHASE_ATTEND:
        return s->n_tiles * ((e->hp.n_kv_heads + block - 1) / block);
    case PHASE_COMBINE:
        return s->n_rows * e->hp.n_heads;
    case PHASE_QUANT_OUTPUT:
        return quant_tasks(s, &s->layer->output);
    case PHASE_QUANT_GATE_UP:
        return quant_tasks(s, &s->layer->gate_up);
    case PHASE_QUANT_DOWN:
        return quant_tasks(s, &s->layer->down);
    case PHASE_QUANT_QKV:
        return (s->next ? quant_tasks(s, &s->next->qkv) : 0) +
               (s->guess ? quant_tasks(s, &s->guess->qkv) : 0);
    case PHASE_QUANT_LOGITS:
        return s->next ? 0 : quant_tasks(s, &e->output);
    case PHASE_OUTPUT:
        return s->layer->output.panels;
    case PHASE_JOIN_ATTENTION:
    case PHASE_JOIN_FFN:
        return engine_norms_branches(e) ? s->n_rows : 0;
    case PHASE_GATE_UP:
        return s->layer->gate_up.panels / 2;
    case PHASE_DOWN:
        return s->layer->down.panels;
    case PHASE_QKV:
        return (s->next ? s->next->qkv.panels : 0) + guess_panels(e, s);
    case PHASE_HEADS:
        return s->next && engine_norms_heads(e)
                   ? s->n_rows * (e->hp.n_heads * (s->guess ? 2 : 1) + e->hp.n_kv_heads)
                   : 0;
    default:
        return s->next ? 0 : e->output.panels;
    }
}

#define ARG_WEIGHTS(m, n)                                                                          \
    ARG_BUFFER((m)->buffer), ARG_BUFFER((m)->bias), ARG_U32(n), ARG_U32((m)->k),                   \
        ARG_U32((m)->quantised), ARG_U32((m)->panels)
#define ARG_HEADS(e, w, layer)                                                                     \
    ARG_BUFFER((w)->q_norm), ARG_BUFFER((w)->k_norm), ARG_U32(first_turn(e, layer)),               \
        ARG_U32(rotated_dims(e, layer))

/* Where the turns of the layer's rotary table begin, in floats. */
static uint32_t first_turn(const struct engine *e, uint32_t layer)
{
    return model_layer_rope_table(&e->hp, layer) * e->n_sequences * e->hp.rope_dims;
}

static uint32_t rotated_dims(const struct engine *e, uint32_t layer)
{
    return model_layer_rotates(&e->hp, layer) ? e->hp.rope_dims : 0;
}

static int launch_phases(struct engine *e, const struct step_launch *s, enum phase first,
                         enum phase last, size_t size, struct hill_why *why)
{
    const struct matrix *qkv = s->next ? &s->next->qkv : &s->layer->qkv;
    const struct layer_weights *guess = s->guess ? s->guess : s->layer;
    const struct kernel_arg args[] = {
        ARG_BUFFER(e->x.device.mem),
        ARG_BUFFER(e->step_q.device.mem),
        {sizeof(cl_mem), s->guess ? &e->step_guess.device.mem : &e->step_q.device.mem},
        ARG_BUFFER(e->step_attended.mem),
        ARG_BUFFER(e->step_activated.mem),
        ARG_BUFFER(e->partial.mem),
        ARG_BUFFER(e->logits.device.mem),
        ARG_BUFFER(e->step_branch.mem),
        ARG_BUFFER(e->step_keys.mem),
        ARG_BUFFER(s->slots),
        ARG_BUFFER(e->fresh.device.mem),
        ARG_BUFFER(s->staging),
        {sizeof(cl_mem), e->hot ? &e->hot : &e->fresh.device.mem},
        ARG_BUFFER(e->turn.device.mem),
        ARG_BUFFER(s->layer->ffn_norm),
        {sizeof(cl_mem), s->next ? &s->next->attn_norm : &e->output_norm},
        ARG_BUFFER(guess->attn_norm),
        ARG_BUFFER(s->layer->post_attn_norm),
        ARG_BUFFER(s->layer->post_ffn_norm),
        ARG_BUFFER(e->items.device.mem),
        ARG_BUFFER(s->uploads),
        ARG_BUFFER(e->lists.device.mem),
        {sizeof(cl_mem), e->quantised ? &e->step_quantised.mem : &e->step_activated.mem},
        ARG_U32(s->n_rows),
        ARG_U32(e->gpu_slots + 1),
        ARG_U32(s->n_tiles),
        ARG_U32(s->n_uploads),
        ARG_U32((uint32_t)(e->device.shares_memory ? e->staging_stride : e->entry_bytes) / 2),
        ARG_U32((uint32_t)(e->hot_offset / 64)),
        ARG_F32(e->hp.norm_eps),
        ARG_WEIGHTS(&s->layer->output, s->layer->output.panels),
        ARG_WEIGHTS(&s->layer->gate_up, s->layer->gate_up.panels),
        ARG_WEIGHTS(&s->layer->down, s->layer->down.panels),
        ARG_WEIGHTS(qkv, s->next ? qkv->panels : 0),
        ARG_WEIGHTS(&guess->qkv, guess_panels(e, s)),
        ARG_WEIGHTS(&e->output, s->next ? 0 : e->output.panels),
        ARG_HEADS(e, s->next ? s->next : s->layer, s->next_layer),
        ARG_HEADS(e, guess, s->next_layer + 1),
        ARG_U32(first),
        ARG_U32(last),
        ARG_U32(e->device.shares_memory),
        ARG_BUFFER(e->counters.mem),
    };
    const struct launch launch = {
        e->kernels[KERNEL_STEP], "decode_step", {size, 1}, s->event, s->after};
    return engine_launch(e, &launch, args, sizeof args / sizeof *args, why);
}

/* Weights that the launch after this one begins with: memory would be idle while the host asks for
 * selections, or samples. One CPU is left to those who answer. */
static int warm(struct engine *e, const struct matrix *first, const struct matrix *second,
                struct hill_why *why)
{
    const uint64_t most = WARM_BYTES;
    const uint32_t turn = *(const uint32_t *)e->warm_turn.host;
    const struct kernel_arg args[] = {
        ARG_BUFFER(first->buffer),
        {sizeof first->bytes, &first->bytes},
        ARG_BUFFER(second->buffer),
        {sizeof second->bytes, &second->bytes},
        {sizeof most, &most},
        ARG_U32(turn),
        ARG_BUFFER(e->warm_turn.device.mem),
    };
    const struct launch launch = {e->kernels[KERNEL_WARM], "warm_weights", {1, 1}, NULL, NULL};
    return engine_launch(e, &launch, args, sizeof args / sizeof *args, why);
}

static int launch_fused(struct engine *e, struct step_launch *s, enum phase first, enum phase last,
                        struct hill_why *why)
{
    const struct layer_weights *next = s->next ? s->next : &e->layers[0];
    release_event(&e->step_done);
    s->event = &e->step_done;
    engine_end_warming(e);
    int rc = launch_phases(e, s, first, last, e->device.compute_units, why);
    if (rc || e->device.compute_units < 2)
        return rc;
    return warm(e, s->next ? &next->output : &next->qkv, &next->gate_up, why);
}

static int launch_step(struct engine *e, struct step_launch *s, enum phase first, enum phase last,
                       struct hill_why *why)
{
    int rc = 0;
    if (e->device.shares_memory)
        return launch_fused(e, s, first, last, why);
    for (enum phase phase = first; !rc && phase <= last; phase++) {
        uint32_t n = count_tasks(e, s, phase);
        if (n)
            rc = launch_phases(e, s, phase, phase, n, why);
    }
    return rc;
}

/* The queries and entries of `layer` and the guess of the one after it, or with n_layers the
 * logits, come next to the host. */
static int pull_results(struct engine *e, uint32_t layer, uint32_t n_rows, struct hill_why *why)
{
    if (layer == e->hp.n_layers)
        return pull(e, &e->logits, 4ull * n_rows * logits_stride(e), why);
    int rc = pull(e, &e->step_q, 4ull * n_rows * q_stride(e), why);
    if (!rc && engine_guesses(e, layer + 1))
        rc = pull(e, &e->step_guess, 4ull * n_rows * q_stride(e), why);
    return rc ? rc : pull(e, &e->fresh, 2ull * n_rows * fresh_stride(e), why);
}

/* A launch of what needs no layer's attention before it: layer 0's projections, or the logits. */
static int launch_alone(struct engine *e, const struct layer_weights *next, uint32_t n_rows,
                        struct hill_why *why)
{
    struct step_launch s = {.layer = &e->layers[0],
                            .next = next,
                            .guess = next && engine_guesses(e, 1) ? &e->layers[1] : NULL,
                            .slots = e->slots[0].mem,
                            .staging = e->fresh.device.mem,
                            .uploads = e->items.device.mem,
                            .n_rows = n_rows};
    /* the phase before it makes its input int8 */
    int rc = launch_step(e, &s, next ? PHASE_QUANT_QKV : PHASE_QUANT_LOGITS,
                         next ? PHASE_HEADS : PHASE_LOGITS, why);
    if (!rc)
        rc = pull_results(e, next ? 0 : e->hp.n_layers, n_rows, why);
    return rc ? rc : cldevice_check(clFlush(e->queue), "the device failed", why);
}

/* ---- a step ---- */

/* Before a layer's lists are made. */
static void expect_layer(struct engine *e, uint32_t layer)
{
    e->next_layer = layer;
    e->awaited = false;
    e->n_uploads = e->n_attended = 0;
    for (uint32_t r = 0; r < e->n_rows; r++)
        e->rows[r] = (struct step_row){.sequence = e->rows[r].sequence};
}

static int take_rows(struct engine *e, uint32_t n_rows, const struct engine_row *rows,
                     struct hill_why *why)
{
    uint64_t seen = 0; /* a bit a sequence */
    _Static_assert(ENGINE_SEQUENCES_MAX <= 64, "a bit a sequence");
    if (n_rows == 0 || n_rows > e->n_sequences)
        return hill_fail(why, HILL_E_INVALID, "%u rows for %u sequences", n_rows, e->n_sequences);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t sequence = rows[r].sequence;
        if (sequence >= e->n_sequences || seen >> sequence & 1)
            return hill_fail(why, HILL_E_INVALID, "sequence %u is twice in a step or not there",
                             sequence);
        seen |= UINT64_C(1) << sequence;
        int rc = engine_embedding(e, rows[r].token, rows[r].position,
                                  (float *)e->x.host + r * e->hidden_stride, why);
        if (rc)
            return rc;
        for (uint32_t table = 0; table < model_rope_tables(&e->hp); table++)
            engine_turns(e, table, rows[r].position,
                         (float *)e->turn.host +
                             ((size_t)table * e->n_sequences + r) * e->hp.rope_dims);
        e->rows[r].sequence = sequence;
    }
    e->n_rows = n_rows;
    return 0;
}

int engine_step_begin(struct engine *e, uint32_t n_rows, const struct engine_row *rows,
                      struct hill_why *why)
{
    e->next_layer = UINT32_MAX;
    int rc = await(e, why);
    if (!rc)
        rc = take_rows(e, n_rows, rows, why);
    if (!rc)
        rc = push(e, &e->x, 4ull * n_rows * e->hidden_stride, why);
    if (!rc)
        rc = push(e, &e->turn, 4ull * e->n_sequences * e->hp.rope_dims * model_rope_tables(&e->hp),
                  why);
    if (!rc)
        rc = launch_alone(e, &e->layers[0], n_rows, why);
    if (!rc)
        expect_layer(e, 0);
    return rc;
}

int engine_step_query(struct engine *e, uint32_t layer, uint32_t row, float *q, void *entry,
                      struct hill_why *why)
{
    if (layer != e->next_layer || layer >= e->hp.n_layers || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "row %u of layer %u is out of order", row, layer);
    int rc = e->awaited ? 0 : await(e, why);
    if (rc)
        return rc;
    e->awaited = true;
    if (q)
        memcpy(q, (const float *)e->step_q.host + (size_t)row * q_stride(e),
               4ull * e->hp.n_heads * e->hp.head_dim);
    memcpy(entry, (const uint16_t *)e->fresh.host + (size_t)row * fresh_stride(e), e->entry_bytes);
    return 0;
}

int engine_guess_from(struct engine *e, uint32_t first, struct hill_why *why)
{
    int rc = engine_finish(e, why);
    e->next_layer = UINT32_MAX;
    e->guess_from = first;
    return rc || !first || !e->n_sequences
               ? rc
               : shared_reserve(e, &e->step_guess, 4ull * e->n_sequences * q_stride(e), why);
}

bool engine_guesses(const struct engine *e, uint32_t layer)
{
    return e->guess_from && layer >= e->guess_from && layer < e->hp.n_layers;
}

int engine_step_guess(struct engine *e, uint32_t layer, uint32_t row, float *q,
                      struct hill_why *why)
{
    if (!engine_guesses(e, layer) || layer != e->next_layer + 1 || !e->awaited || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "the guess of row %u, layer %u is out of order", row,
                         layer);
    memcpy(q, (const float *)e->step_guess.host + (size_t)row * q_stride(e),
           4ull * e->hp.n_heads * e->hp.head_dim);
    return 0;
}

static uint32_t first_slot(const struct engine *e, uint32_t row)
{
    return e->rows[row].sequence * e->gpu_slots;
}

/* A batch goes to the device through pinned memory and the second queue, and is scattered from
 * there. */
static int send_batch(struct engine *e, uint32_t layer, uint32_t table, uint32_t count,
                      const struct engine_upload *uploads, struct hill_why *why)
{
    struct upload_half *h = &e->halves[e->next_half++ % 2];
    uint32_t *pairs = (uint32_t *)(void *)(h->host + (uint64_t)UPLOAD_BATCH * e->entry_bytes);
    int rc =
        h->written ? cldevice_check(clWaitForEvents(1, &h->written), "the device failed", why) : 0;
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(h->host + (uint64_t)i * e->entry_bytes,
               e->staging_slots + uploads[i].staging_slot * e->staging_stride, e->entry_bytes);
        pairs[2 * i] = i;
        pairs[2 * i + 1] = table + uploads[i].gpu_slot;
    }
    release_event(&h->written);
    cl_uint n_after = h->scattered ? 1 : 0;
    const cl_event *after = n_after ? &h->scattered : NULL;
    rc = cldevice_check(clEnqueueWriteBuffer(e->read_queue, h->entries.mem, CL_FALSE, 0,
                                             (uint64_t)count * e->entry_bytes, h->host, n_after,
                                             after, NULL),
                        "cannot write entries to the device", why);
    if (!rc)
        rc = cldevice_check(clEnqueueWriteBuffer(e->read_queue, h->list.mem, CL_FALSE, 0,
                                                 8ull * count, pairs, n_after, after, &h->written),
                            "cannot write entries to the device", why);
    if (!rc)
        rc = cldevice_check(clFlush(e->read_queue), "the device failed", why);
    if (rc)
        return rc;
    release_event(&h->scattered);
    struct step_launch s = {.layer = &e->layers[layer],
                            .next = &e->layers[layer],
                            .slots = e->slots[layer].mem,
                            .staging = h->entries.mem,
                            .uploads = h->list.mem,
                            .n_rows = e->n_rows,
                            .n_uploads = count,
                            .event = &h->scattered,
                            .after = &h->written};
    return launch_phases(e, &s, PHASE_SCATTER, PHASE_SCATTER, count, why);
}

/* Noted until engine_step_run: the kernel reads staging itself. A row's uploads lie side by side.
 */
static int note_uploads(struct engine *e, uint32_t row, uint32_t count,
                        const struct engine_upload *uploads, struct hill_why *why)
{
    struct step_row *r = &e->rows[row];
    uint32_t *pairs = (uint32_t *)e->uploads.host + 2ull * e->n_uploads;
    if (r->n_uploads || count > e->gpu_slots)
        return hill_fail(why, HILL_E_INVALID, "row %u has more uploads than GPU slots", row);
    for (uint32_t i = 0; i < count; i++) {
        pairs[2 * i] = uploads[i].staging_slot;
        pairs[2 * i + 1] = first_slot(e, row) + uploads[i].gpu_slot;
    }
    r->first_upload = e->n_uploads;
    r->n_uploads = count;
    e->n_uploads += count;
    return 0;
}

int engine_step_upload(struct engine *e, uint32_t layer, uint32_t row, uint32_t count,
                       const struct engine_upload *uploads, struct hill_why *why)
{
    if (layer != e->next_layer || !e->awaited || row >= e->n_rows || e->rows[row].n_items)
        return hill_fail(why, HILL_E_INVALID, "uploads of row %u, layer %u are out of order", row,
                         layer);
    for (uint32_t i = 0; i < count; i++)
        if (uploads[i].gpu_slot >= e->gpu_slots || uploads[i].staging_slot >= e->staging_count)
            return hill_fail(
                why, HILL_E_INVALID, "staging slot %u of %u or GPU slot %u of %u is out of range",
                uploads[i].staging_slot, e->staging_count, uploads[i].gpu_slot, e->gpu_slots);
    if (e->device.shares_memory)
        return note_uploads(e, row, count, uploads, why);
    int rc = 0;
    for (uint32_t first = 0; !rc && first < count; first += UPLOAD_BATCH) {
        uint32_t n = count - first < UPLOAD_BATCH ? count - first : UPLOAD_BATCH;
        rc = send_batch(e, layer, first_slot(e, row), n, uploads + first, why);
    }
    return rc;
}

/* The list of a row's attention: entries that are uploaded now are read from staging. */
static void list_items(struct engine *e, uint32_t row, uint32_t n, const uint32_t *slots)
{
    struct step_row *r = &e->rows[row];
    uint32_t *items = (uint32_t *)e->items.host + (size_t)row * (e->gpu_slots + 1);
    uint32_t table = first_slot(e, row), *pairs = e->uploads.host;
    uint32_t end = r->first_upload + r->n_uploads;
    /* the attention may read past the last value of an entry, but not past staging */
    bool direct = r->n_uploads && e->hp.head_dim % 16 == 0;
    for (uint32_t u = r->first_upload; direct && u < end; u++)
        e->upload_of[pairs[2 * u + 1] - table] = u + 1;
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] & ENGINE_HOT) {
            items[i] = ITEM_HOT | (slots[i] & ~ENGINE_HOT);
            continue;
        }
        uint32_t u = direct ? e->upload_of[slots[i]] : 0;
        items[i] = u ? ITEM_STAGED | (u - 1) : table + slots[i];
        if (u && !(pairs[2 * (u - 1)] & UPLOAD_ATTENDED)) {
            pairs[2 * (u - 1)] |= UPLOAD_ATTENDED;
            e->n_attended++;
        }
    }
    items[n] = ITEM_FRESH;
    for (uint32_t u = r->first_upload; direct && u < end; u++)
        e->upload_of[pairs[2 * u + 1] - table] = 0;
    r->n_items = n + 1;
}

int engine_step_attend(struct engine *e, uint32_t layer, uint32_t row, uint32_t n_slots,
                       const uint32_t *slots, struct hill_why *why)
{
    if (layer != e->next_layer || !e->awaited || row >= e->n_rows || e->rows[row].n_items ||
        n_slots > e->gpu_slots)
        return hill_fail(why, HILL_E_INVALID,
                         "row %u of layer %u with %u entries is out of order or range", row, layer,
                         n_slots);
    for (uint32_t i = 0; i < n_slots; i++) {
        uint32_t most = slots[i] & ENGINE_HOT ? e->hot_entries : e->gpu_slots;
        if ((slots[i] & ~ENGINE_HOT) >= most)
            return hill_fail(why, HILL_E_INVALID, "slot %x of %u", slots[i], most);
    }
    list_items(e, row, n_slots, slots);
    return push_part(e, &e->items, 4ull * row * (e->gpu_slots + 1), 4ull * (n_slots + 1), why);
}

/* Where each row's tiles of its list begin; all tiles together, or 0 when a row has no list. */
static uint32_t count_tiles(struct engine *e)
{
    uint32_t *lists = e->lists.host, tiles = 0;
    for (uint32_t r = 0; r < e->n_rows; r++) {
        if (!e->rows[r].n_items)
            return 0;
        lists[2 * r] = e->rows[r].n_items;
        lists[2 * r + 1] = tiles;
        tiles += (e->rows[r].n_items + DECODE_TILE - 1) / DECODE_TILE;
    }
    return tiles;
}

int engine_step_run(struct engine *e, uint32_t layer, struct hill_why *why)
{
    if (layer != e->next_layer || !e->awaited)
        return hill_fail(why, HILL_E_INVALID, "layer %u is out of order", layer);
    uint32_t n_tiles = count_tiles(e);
    if (!n_tiles)
        return hill_fail(why, HILL_E_INVALID, "layer %u has a row without a list", layer);
    bool last = layer + 1 == e->hp.n_layers;
    struct step_launch s = {.layer = &e->layers[layer],
                            .next = last ? NULL : &e->layers[layer + 1],
                            .guess = engine_guesses(e, layer + 2) ? &e->layers[layer + 2] : NULL,
                            .next_layer = layer + 1,
                            .slots = e->slots[layer].mem,
                            .staging = e->n_uploads ? e->staging : e->fresh.device.mem,
                            .uploads = e->n_uploads ? e->uploads.device.mem : e->items.device.mem,
                            .n_rows = e->n_rows,
                            .n_tiles = n_tiles,
                            /* the scatter has all of them to look through, or nothing to do */
                            .n_uploads = e->n_attended == e->n_uploads ? 0 : e->n_uploads};
    int rc = push(e, &e->lists, 8ull * e->n_rows, why);
    if (!rc)
        rc = launch_step(e, &s, PHASE_SCATTER, last ? PHASE_LOGITS : PHASE_HEADS, why);
    if (!rc)
        rc = pull_results(e, layer + 1, e->n_rows, why);
    if (!rc)
        rc = cldevice_check(clFlush(e->queue), "the device failed", why);
    expect_layer(e, rc ? UINT32_MAX : layer + 1);
    return rc;
}

/* x is the last hidden state: its logits. */
int engine_logits(struct engine *e, float *logits, struct hill_why *why)
{
    int rc = launch_alone(e, NULL, 1, why);
    if (!rc)
        rc = await(e, why);
    if (!rc)
        memcpy(logits, e->logits.host, 4ull * e->hp.n_vocab);
    return rc;
}

int engine_step_logits(struct engine *e, uint32_t row, float *logits, struct hill_why *why)
{
    if (e->next_layer != e->hp.n_layers || row >= e->n_rows)
        return hill_fail(why, HILL_E_INVALID, "logits before all layers are done");
    int rc = e->awaited ? 0 : await(e, why);
    if (rc)
        return rc;
    e->awaited = true;
    if (logits)
        memcpy(logits, (const float *)e->logits.host + (size_t)row * logits_stride(e),
               4ull * e->hp.n_vocab);
    return 0;
}
