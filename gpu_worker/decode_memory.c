/*
 * gpu_worker/decode_memory.c - what a step computes in: its buffers, the slots and the staging
 * arena that it reads, the hot pool. See engine_internal.h.
 */
#include <stdlib.h>

#include "gpu_worker/engine_internal.h"

/* More items in the lists of all layers than this, and a layer's are all that is kept. */
#define ITEMS_KEPT (1ull << 28)

/* ---- memory that both sides see ---- */

static void shared_release(struct engine *e, struct shared_buffer *b)
{
    if (!e->device.shares_memory)
        free(b->host);
    engine_release(e, &b->device);
    b->host = NULL;
}

/* `counted` of the bytes are memory of the GPU's: what lies in the host's memory for the host's
 * sake is none. */
static int shared_reserve_some(struct engine *e, struct shared_buffer *b, uint64_t bytes,
                               uint64_t counted, struct hill_why *why)
{
    cl_int status;
    shared_release(e, b);
    bytes = (bytes + 63) / 64 * 64;
    b->device.pages = huge_pages_take(bytes, &b->device.page_bytes);
    if (!b->device.pages)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the device's inputs and outputs");
    b->host = b->device.pages;
    b->device.mem = clCreateBuffer(e->device.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                   bytes, b->host, &status);
    if (status != CL_SUCCESS) {
        b->device.mem = NULL;
        return cldevice_check(status, "cannot share memory with the device", why);
    }
    b->device.bytes = (counted + 63) / 64 * 64;
    e->kv_bytes += b->device.bytes;
    return 0;
}

static int shared_reserve(struct engine *e, struct shared_buffer *b, uint64_t bytes,
                          struct hill_why *why)
{
    if (b->device.bytes >= bytes)
        return 0;
    if (e->device.shares_memory)
        return shared_reserve_some(e, b, bytes, bytes, why);
    shared_release(e, b);
    bytes = (bytes + 63) / 64 * 64;
    b->host = calloc(1, bytes);
    if (!b->host)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the device's inputs and outputs");
    return engine_reserve(e, &b->device, bytes, why);
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

/* Where the device shares the host's memory: lists and new entries of every layer, of which one
 * layer's count, and the tables that it looks into. */
static int reserve_lists(struct engine *e, struct hill_why *why)
{
    uint64_t rows = e->n_sequences, items = rows * (e->gpu_slots + 1);
    e->layers_kept = items * e->hp.n_layers <= ITEMS_KEPT ? e->hp.n_layers : 1;
    struct {
        struct shared_buffer *buffer;
        uint64_t counted, layers, more;
    } shared[] = {
        {&e->items, 4 * items, e->layers_kept, 0},
        {&e->lists, 8 * rows, e->layers_kept, 0},
        {&e->fresh, 2 * rows * fresh_stride(e), e->layers_kept, 0},
        {&e->uploads, 0, 0, 8 * rows * e->gpu_slots},
        {&e->places, 0, 0, sizeof(struct layer_place) * (e->hp.n_layers + 1)},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof shared / sizeof *shared; i++)
        rc = shared_reserve_some(e, shared[i].buffer,
                                 shared[i].counted * shared[i].layers + shared[i].more,
                                 shared[i].counted, why);
    free(e->upload_of);
    e->upload_of = calloc(e->gpu_slots, sizeof *e->upload_of);
    if (!rc && !e->upload_of)
        rc = hill_fail(why, HILL_E_NOMEM, "no memory for a table of %u slots", e->gpu_slots);
    return rc ? rc : decode_note_places(e, why);
}

int decode_reserve(struct engine *e, struct hill_why *why)
{
    uint32_t padded = round_up(e->hp.head_dim, 16), tiles = e->gpu_slots / DECODE_TILE + 1;
    uint64_t rows = e->n_sequences;
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
        {&e->logits, 4 * rows * logits_stride(e)},
    };
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof scratch / sizeof *scratch; i++)
        rc = engine_reserve(e, scratch[i].buffer, scratch[i].bytes, why);
    for (size_t i = 0; !rc && i < sizeof shared / sizeof *shared; i++)
        rc = shared_reserve(e, shared[i].buffer, shared[i].bytes, why);
    if (!rc && e->device.shares_memory)
        return reserve_lists(e, why);
    e->layers_kept = 1;
    if (!rc)
        rc = shared_reserve(e, &e->items, 4 * rows * (e->gpu_slots + 1), why);
    if (!rc)
        rc = shared_reserve(e, &e->lists, 8 * rows, why);
    if (!rc)
        rc = shared_reserve(e, &e->fresh, 2 * rows * fresh_stride(e), why);
    for (int i = 0; !rc && i < 2; i++)
        rc = reserve_half(e, &e->halves[i], why);
    return rc;
}

static void release_half(struct engine *e, struct upload_half *h)
{
    engine_forget_event(&h->written);
    engine_forget_event(&h->scattered);
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
    engine_release_memory(e, &e->hot);
    e->hot_bytes = e->hot_offset = e->hot_entries = 0;
}

void decode_release(struct engine *e)
{
    struct device_buffer *buffers[] = {&e->step_attended, &e->step_activated, &e->step_quantised,
                                       &e->step_branch,   &e->step_keys,      &e->partial,
                                       &e->counters};
    struct shared_buffer *shared[] = {&e->x,     &e->turn,  &e->step_q, &e->step_guess, &e->items,
                                      &e->lists, &e->fresh, &e->logits, &e->uploads,    &e->places};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        engine_release(e, buffers[i]);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        shared_release(e, shared[i]);
    for (int i = 0; i < 2; i++)
        release_half(e, &e->halves[i]);
    free(e->upload_of);
    e->upload_of = NULL;
    engine_release_memory(e, &e->staging);
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
    engine_release_memory(e, &e->staging);
    e->staging_slots = slots;
    e->staging_stride = stride;
    e->staging_count = slots ? count : 0;
    e->n_uploads = 0;
    e->next_layer = UINT32_MAX;
    if (rc || !slots)
        return rc;
    cl_int status;
    /* Read only for the kernels; OpenCL takes the pointer without const. Kernels of a device with
     * memory of its own never see the buffer: drivers pin the pages under it, and what is written
     * from pinned pages needs no copy on its way. */
    e->staging = clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR,
                                stride * count, (void *)(uintptr_t)slots, &status);
    if (status != CL_SUCCESS)
        e->staging = NULL;
    return e->device.shares_memory
               ? cldevice_check(status, "cannot share the staging arena with the device", why)
               : 0;
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

int engine_guess_from(struct engine *e, uint32_t first, struct hill_why *why)
{
    int rc = engine_finish(e, why);
    e->next_layer = UINT32_MAX;
    e->guess_from = first;
    return rc || !first || !e->n_sequences
               ? rc
               : shared_reserve(e, &e->step_guess, 4ull * e->n_sequences * q_stride(e), why);
}
