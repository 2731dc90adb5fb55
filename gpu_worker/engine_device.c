/*
 * gpu_worker/engine_device.c - what every part of the engine stands on: launches, buffers, and the
 * rows that the host fills in. See engine_internal.h.
 */
#include "gpu_worker/engine_internal.h"

#include <math.h>
#include <string.h>

#define EMBEDDINGS_KEPT 32              /* reads of the table before its pages are forgotten */
#define HUGE_FROM       HUGE_PAGE_BYTES /* smaller buffers lie in a page or two whatever its size */

const char *const engine_kernel_names[KERNEL_COUNT] = {
    [KERNEL_GEMM_STORE] = "gemm_store",         [KERNEL_GEMM_ADD] = "gemm_add",
    [KERNEL_GEMM_ACTIVATE] = "gemm_activate",   [KERNEL_QUANTISE_ROWS] = "quantise_rows",
    [KERNEL_NORM_ROWS] = "norm_rows",           [KERNEL_ROTATE_STORE] = "rotate_store",
    [KERNEL_ROTATE_QUERIES] = "rotate_queries", [KERNEL_JOIN_ROWS] = "join_rows",
    [KERNEL_LOAD_ENTRIES] = "load_entries",     [KERNEL_LOAD_RUNS] = "load_runs",
    [KERNEL_ATTEND_CHUNK] = "attend_chunk",     [KERNEL_WEIGH_CHUNK] = "weigh_chunk",
    [KERNEL_WEIGH_HEADS] = "weigh_heads",       [KERNEL_SUM_ROWS] = "sum_rows",
    [KERNEL_PACK_KEYS] = "pack_keys",           [KERNEL_PROBE_ROWS] = "probe_rows",
    [KERNEL_PROBE_KEYS] = "probe_keys",         [KERNEL_STEP] = "decode_step",
    [KERNEL_LAYERS] = "decode_layers",          [KERNEL_NOTE] = "note_layer",
    [KERNEL_SCATTER_GROUPS] = "scatter_groups", [KERNEL_ATTEND_GROUPS] = "attend_groups",
    [KERNEL_COMBINE_GROUPS] = "combine_groups", [KERNEL_PREPARE_GROUPS] = "prepare_groups",
    [KERNEL_ADD_GROUPS] = "add_groups",         [KERNEL_GATE_UP_GROUPS] = "gate_up_groups",
    [KERNEL_PROJECT_GROUPS] = "project_groups", [KERNEL_LOGITS_GROUPS] = "logits_groups",
    [KERNEL_JOIN_GROUPS] = "join_groups",       [KERNEL_HEADS_GROUPS] = "heads_groups",
};

/* Most arguments are those of the kernel's last launch, and setting one costs an allocation. */
static int set_args(struct engine *e, const struct launch *launch, const struct kernel_arg *args,
                    uint32_t n_args, struct hill_why *why)
{
    uint32_t k = 0;
    while (e->kernels[k] != launch->kernel)
        k++;
    for (uint32_t i = 0; i < n_args; i++) {
        struct set_arg *set = i < KERNEL_ARGS ? &e->set_args[k][i] : NULL;
        if (set && set->bytes == args[i].bytes &&
            memcmp(set->value, args[i].value, args[i].bytes) == 0)
            continue;
        cl_int status = clSetKernelArg(launch->kernel, i, args[i].bytes, args[i].value);
        if (status != CL_SUCCESS)
            return cldevice_check(status, launch->name, why);
        if (!set || args[i].bytes > sizeof set->value)
            continue;
        set->bytes = (uint32_t)args[i].bytes;
        memcpy(set->value, args[i].value, args[i].bytes);
    }
    return 0;
}

int engine_launch(struct engine *e, const struct launch *launch, const struct kernel_arg *args,
                  uint32_t n_args, struct hill_why *why)
{
    static const size_t one[2] = {1, 1};
    const size_t group[2] = {launch->group_items, 1};
    const size_t *local = launch->group_items ? group : e->device.has_groups ? NULL : one;
    const size_t size[2] = {launch->size[0] * (launch->group_items ? launch->group_items : 1),
                            launch->size[1]};
    int rc = set_args(e, launch, args, n_args, why);
    if (rc)
        return rc;
    return cldevice_check(clEnqueueNDRangeKernel(e->queue, launch->kernel, 2, NULL, size, local,
                                                 launch->after ? 1 : 0, launch->after,
                                                 launch->event),
                          launch->name, why);
}

/* Make the memory object, over pages of our own where the device works in them. */
static cl_int make_buffer(const struct engine *e, struct device_buffer *buffer, uint64_t bytes)
{
    cl_int status;
    cl_mem_flags flags = CL_MEM_READ_WRITE;
    if (e->device.shares_memory && bytes >= HUGE_FROM) {
        buffer->pages = huge_pages_take(bytes, &buffer->page_bytes);
        if (!buffer->pages)
            return CL_MEM_OBJECT_ALLOCATION_FAILURE;
        flags |= CL_MEM_USE_HOST_PTR;
    }
    buffer->mem = clCreateBuffer(e->device.context, flags, bytes, buffer->pages, &status);
    if (status != CL_SUCCESS)
        buffer->mem = NULL;
    return status;
}

int engine_ask_event(cl_event event, struct hill_why *why)
{
    cl_int state = CL_COMPLETE;
    cl_int status =
        clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    if (status == CL_SUCCESS && state < 0)
        status = state;
    int rc = cldevice_check(status, "the device failed", why);
    return rc ? rc : state == CL_COMPLETE;
}

void engine_forget_event(cl_event *event)
{
    if (*event)
        clReleaseEvent(*event);
    *event = NULL;
}

void engine_release_memory(struct engine *e, cl_mem *memory)
{
    for (uint32_t i = 0; *memory && i < KERNEL_COUNT * KERNEL_ARGS; i++) {
        struct set_arg *set = &e->set_args[i / KERNEL_ARGS][i % KERNEL_ARGS];
        if (set->bytes == sizeof *memory && memcmp(set->value, memory, sizeof *memory) == 0)
            set->bytes = 0;
    }
    if (*memory)
        clReleaseMemObject(*memory);
    *memory = NULL;
}

void engine_release(struct engine *e, struct device_buffer *buffer)
{
    engine_release_memory(e, &buffer->mem);
    huge_pages_give(buffer->pages, buffer->page_bytes);
    e->kv_bytes -= buffer->bytes;
    *buffer = (struct device_buffer){0};
}

int engine_reserve(struct engine *e, struct device_buffer *buffer, uint64_t bytes,
                   struct hill_why *why)
{
    static const cl_uint zero = 0;
    if (buffer->bytes >= bytes)
        return 0;
    engine_release(e, buffer);
    bytes = (bytes + 63) / 64 * 64;
    cl_int status = make_buffer(e, buffer, bytes);
    if (status != CL_SUCCESS) {
        engine_release(e, buffer);
        return hill_fail(why, HILL_E_NOMEM, "cannot allocate %llu MiB on the device: %s",
                         (unsigned long long)(bytes >> 20), cldevice_strerror(status));
    }
    buffer->bytes = bytes;
    e->kv_bytes += bytes;
    /* what is never written is still read as padding: it must be finite. Fresh pages are zero. */
    if (buffer->pages)
        return 0;
    status =
        clEnqueueFillBuffer(e->queue, buffer->mem, &zero, sizeof zero, 0, bytes, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        return 0;
    engine_release(e, buffer); /* some devices allocate at first use: it is there in name alone */
    if (status == CL_OUT_OF_RESOURCES && clFinish(e->queue) == CL_SUCCESS)
        status = CL_MEM_OBJECT_ALLOCATION_FAILURE; /* so called by some, also where a device died */
    return cldevice_check(status, "cannot clear device memory", why);
}

int engine_finish(struct engine *e, struct hill_why *why)
{
    int rc = cldevice_check(clFinish(e->queue), "the device failed", why);
    return rc ? rc : cldevice_check(clFinish(e->read_queue), "the device failed", why);
}

uint32_t engine_prefill_units(const struct engine *e)
{
    return e->n_chunks * e->hp.n_layers;
}

struct engine_unit engine_prefill_unit(const struct engine *e, uint32_t unit)
{
    uint32_t row = unit % e->n_chunks * e->batch_tokens, rest = e->n_tokens - row;
    return (struct engine_unit){unit / e->n_chunks, e->n_past + row,
                                rest < e->batch_tokens ? rest : e->batch_tokens};
}

void engine_turns(const struct engine *e, uint32_t table, uint32_t position, float *out)
{
    uint32_t pairs = e->hp.rope_dims / 2;
    const double *frequencies = e->frequencies + (size_t)table * pairs;
    for (uint32_t i = 0; i < pairs; i++) {
        double angle = position * frequencies[i];
        out[2 * i] = (float)(cos(angle) * e->hp.rope_amplitude);
        out[2 * i + 1] = (float)(sin(angle) * e->hp.rope_amplitude);
    }
}

/* The learned position is added: out [n_embd]. */
static int add_position(const struct engine *e, uint32_t position, float *out, struct hill_why *why)
{
    if (position >= e->hp.n_ctx_max)
        return hill_fail(why, HILL_E_INVALID, "position %u of %u that the model has learned",
                         position, e->hp.n_ctx_max);
    float *row = malloc(sizeof *row * e->hp.n_embd);
    int rc =
        row ? gguf_tensor_rows_f32(e->positions, position + e->hp.arch->position_offset, 1, row)
            : HILL_E_NOMEM;
    for (uint32_t i = 0; !rc && i < e->hp.n_embd; i++)
        out[i] += row[i];
    free(row);
    return rc ? hill_fail(why, rc, "cannot read the embedding of position %u", position) : 0;
}

/* A look at a row maps the pages around it, so that in time the whole table would lie in memory,
 * beside the packed copy that a tied output matrix is. */
static void forget_embeddings(struct engine *e)
{
    if (++e->embeddings_read % EMBEDDINGS_KEPT)
        return;
    gguf_forget_pages(e->embedding);
    if (e->positions)
        gguf_forget_pages(e->positions);
}

int engine_embedding(struct engine *e, uint32_t token, uint32_t position, float *out,
                     struct hill_why *why)
{
    if (token >= e->hp.n_vocab)
        return hill_fail(why, HILL_E_INVALID, "token %u is outside the vocabulary of %u", token,
                         e->hp.n_vocab);
    memset(out + e->hp.n_embd, 0, sizeof(float) * (e->hidden_stride - e->hp.n_embd));
    int rc = gguf_tensor_rows_f32(e->embedding, token, 1, out);
    if (rc)
        return hill_fail(why, rc, "cannot read the embedding of token %u", token);
    forget_embeddings(e);
    if (e->hp.arch->scales_embedding) {
        float scale = sqrtf((float)e->hp.n_embd);
        for (uint32_t i = 0; i < e->hp.n_embd; i++)
            out[i] *= scale;
    }
    return e->positions ? add_position(e, position, out, why) : 0;
}
