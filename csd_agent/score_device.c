/*
 * csd_agent/score_device.c - batches of keys scored by an OpenCL device; see score_device.h.
 */
#include "csd_agent/score_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cldevice.h"
#include "base/embed.h"
#include "pool/pool.h"

HILL_EMBED(hill_csd_score_cl, "csd_agent/score.cl");

#define HUGE_BYTES       (2u << 20)
#define OTHER_LOCAL_SIZE 64u         /* work-items of a work-group on devices other than CPUs */
#define SLICE_BYTES      (40u << 10) /* on the host: looked at, then scored from the L2 cache */

struct batch {
    cl_command_queue queue; /* of its own: waiting for one batch must not wait for the other */
    cl_mem keys, groups, scores;
    cl_kernel kernel;
    uint8_t *memory;       /* what keys lies over: batch_bytes */
    cl_uint4 *group_table; /* [groups_max] */
    void *mapped;          /* keys while mapped for filling */
    uint16_t *out;         /* [slots_max]: scores handed out */
    uint32_t n_slots;      /* of the launch in flight */
};

struct score_device {
    struct cldevice device;
    struct kv_geometry geometry;
    uint64_t batch_bytes;
    bool cast;
    uint32_t slots_max, groups_max;
    cl_program program;
    cl_mem query;
    uint8_t *query_bytes; /* kv_query_send; on the host: kv_query_put */
    uint32_t importance;
    kv_score_fn *host;   /* NULL: a device scores */
    uint8_t *host_group; /* of digests, cast */
    struct score_look look;
    struct batch batches[SCORE_BATCHES];
};

/* What n slots of a piece take. */
static uint64_t slots_bytes(const struct score_device *d, uint32_t n)
{
    return d->cast ? (uint64_t)n * 2 * kv_key_dims(&d->geometry)
                   : (uint64_t)kv_groups_touched(0, n) * kv_group_bytes(&d->geometry);
}

static bool piece_fits(const struct score_device *d, const struct score_piece *p)
{
    return p->at % (d->cast ? sizeof(uint16_t) : KV_GROUP_ALIGN) == 0 &&
           p->at + slots_bytes(d, p->n_slots) <= d->batch_bytes;
}

/* Over `host` where the device works in the host's memory: then nothing has to be moved, and a
 * launch is one command. Elsewhere a buffer of the device's own. */
static int make_buffer(struct score_device *d, cl_mem *out, cl_mem_flags flags, uint64_t bytes,
                       void *host, const char *what, struct hill_why *why)
{
    cl_int status;

    if (d->device.shares_memory)
        flags |= CL_MEM_USE_HOST_PTR;
    else if (!(flags & CL_MEM_USE_HOST_PTR))
        host = NULL;

    *out = clCreateBuffer(d->device.context, flags, bytes, host, &status);
    return cldevice_check(status, what, why);
}

static int set_arguments(struct score_device *d, struct batch *batch, struct hill_why *why)
{
    cl_int status;

    const char *name = d->device.is_accelerator ? "score_task" : "score_keys";
    batch->kernel = clCreateKernel(d->program, name, &status);
    if (status != CL_SUCCESS)
        return cldevice_check(status, "clCreateKernel of score.cl", why);
    status = clSetKernelArg(batch->kernel, 0, sizeof(cl_mem), &batch->keys);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(batch->kernel, 1, sizeof(cl_mem), &batch->groups);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(batch->kernel, 2, sizeof(cl_mem), &d->query);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(batch->kernel, 4, sizeof(cl_mem), &batch->scores);
    return cldevice_check(status, "clSetKernelArg of score.cl", why);
}

static void *page_memory(size_t bytes)
{
    return aligned_alloc(POOL_PAGE_BYTES,
                         (bytes + POOL_PAGE_BYTES - 1) / POOL_PAGE_BYTES * POOL_PAGE_BYTES);
}

/* Huge pages where they are to be had: a read into scattered 4 KiB pages is a list of 256 segments
 * a MiB, which drives cut into several transfers. */
static uint8_t *batch_memory(uint64_t bytes)
{
    uint64_t align = bytes >= HUGE_BYTES ? HUGE_BYTES : POOL_PAGE_BYTES;
    uint64_t rounded = (bytes + align - 1) / align * align;
    uint8_t *memory = aligned_alloc(align, rounded);

    if (memory && align == HUGE_BYTES)
        madvise(memory, rounded, MADV_HUGEPAGE); /* refused: slower, nothing else */
    if (memory)
        memset(memory, 0, rounded); /* pages are made now, not within the first query */
    return memory;
}

static int make_batch(struct score_device *d, struct batch *batch, struct hill_why *why)
{
    batch->queue = cldevice_queue(&d->device, false, why);
    if (!batch->queue)
        return HILL_E_NODEV;
    batch->memory = batch_memory(d->batch_bytes);
    batch->group_table = page_memory(d->groups_max * sizeof *batch->group_table);
    batch->out = page_memory(d->slots_max * sizeof *batch->out);
    if (!batch->memory || !batch->group_table || !batch->out)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a scoring batch of %llu bytes",
                         (unsigned long long)d->batch_bytes);
    int status = make_buffer(d, &batch->keys, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR,
                             d->batch_bytes, batch->memory, "clCreateBuffer keys", why);
    if (status == 0)
        status = make_buffer(d, &batch->groups, CL_MEM_READ_ONLY,
                             (uint64_t)d->groups_max * sizeof(cl_uint4), batch->group_table,
                             "clCreateBuffer groups", why);
    if (status == 0)
        status = make_buffer(d, &batch->scores, CL_MEM_WRITE_ONLY,
                             (uint64_t)d->slots_max * sizeof(uint16_t), batch->out,
                             "clCreateBuffer scores", why);
    return status == 0 ? set_arguments(d, batch, why) : status;
}

/* A CPU's item scores the tokens of a group side by side in vectors, an accelerator's one item all
 * of them; other devices' items one token each, as do all that cast. */
static int build(struct score_device *d, struct hill_why *why)
{
    bool vectors = !d->cast && (d->device.is_cpu || d->device.is_accelerator);
    char options[144];

    snprintf(options, sizeof options,
             "-D KV_HEADS=%u -D QUERY_HEADS=%u -D HEAD_DIM=%u -D HEAD_WORDS=%u -D BITS=%u -D "
             "LANES=%u -D TASK=%d "
             "-D CAST=%d",
             d->geometry.n_kv_heads, d->geometry.n_heads / d->geometry.n_kv_heads,
             d->geometry.head_dim, kv_head_words(&d->geometry), kv_digest_bits(&d->geometry),
             vectors ? KV_GROUP_TOKENS : 1, d->device.is_accelerator, d->cast);
    d->program = cldevice_build(&d->device, hill_csd_score_cl, options, why);
    return d->program ? 0 : HILL_E_NODEV;
}

static int create_parts(struct score_device *d, const char *device, enum score_as as,
                        struct hill_why *why)
{
    uint32_t query_bytes = kv_query_bytes_max(&d->geometry);
    int status = cldevice_open(&d->device, device, why);

    if (as != SCORE_AS_IT_IS) {
        d->device.shares_memory = d->device.is_cpu = false;
        d->device.is_accelerator = as == SCORE_AS_ACCELERATOR;
    }
    if (status == 0)
        status = build(d, why);
    if (status == 0) {
        d->query_bytes = page_memory(query_bytes);
        if (!d->query_bytes)
            return hill_fail(why, HILL_E_NOMEM, "no memory for a query");
        status = make_buffer(d, &d->query, CL_MEM_READ_ONLY, query_bytes, d->query_bytes,
                             "clCreateBuffer query", why);
    }
    for (uint32_t b = 0; status == 0 && b < SCORE_BATCHES; b++)
        status = make_batch(d, &d->batches[b], why);
    return status;
}

/* Score a slot of zeros: the runtime compiles for the device now, not within the first query. */
static int warm_up(struct score_device *d, struct hill_why *why)
{
    struct score_piece piece = {.n_slots = 1};
    const uint16_t *scores;
    uint8_t *memory;
    int status = 0;

    memset(d->query_bytes, 0, kv_query_bytes_max(&d->geometry));
    for (uint32_t b = 0; status == 0 && b < SCORE_BATCHES; b++) {
        status = score_device_map(d, b, &memory, why);
        if (status == 0) {
            memset(memory, 0, slots_bytes(d, 1));
            status = score_device_launch(d, b, &piece, 1, why);
        }
        if (status == 0)
            status = score_device_wait(d, b, &scores, why);
    }
    return status;
}

static int create_host_parts(struct score_device *d, const char *simd, struct hill_why *why)
{
    bool made = true;
    d->host = kv_score_choose(simd);
    if (!d->host) /* the scorer's machine has it, and this one does not */
        d->host = kv_score_choose("auto");
    d->query_bytes = page_memory(kv_query_bytes_max(&d->geometry));
    d->host_group = calloc(1, kv_group_bytes(&d->geometry));
    for (uint32_t b = 0; b < SCORE_BATCHES; b++) {
        d->batches[b].memory = batch_memory(d->batch_bytes);
        d->batches[b].out = page_memory(d->slots_max * sizeof *d->batches[b].out);
        made &= d->batches[b].memory && d->batches[b].out;
    }
    made &= d->query_bytes && d->host_group;
    return made ? 0 : hill_fail(why, HILL_E_NOMEM, "no memory for scoring batches");
}

int score_device_create(struct score_device **out, const struct score_settings *s,
                        struct hill_why *why)
{
    uint32_t together = s->cast ? 1 : KV_GROUP_TOKENS; /* keys lie there singly */
    uint64_t slots =
        s->batch_bytes /
        slots_bytes(&(struct score_device){.geometry = s->geometry, .cast = s->cast}, together) *
        together;
    *out = NULL;
    if (s->batch_bytes % POOL_PAGE_BYTES != 0 || s->batch_bytes > (1u << 30) || slots == 0)
        return hill_fail(why, HILL_E_INVALID, "scoring batch of %llu bytes is not possible",
                         (unsigned long long)s->batch_bytes);
    struct score_device *d = calloc(1, sizeof *d);
    if (!d)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the scoring device");
    d->geometry = s->geometry;
    d->batch_bytes = s->batch_bytes;
    d->cast = s->cast;
    d->look = s->look;
    d->slots_max = (uint32_t)slots;
    d->groups_max = d->slots_max / SCORE_GROUP_SLOTS + SCORE_BATCH_PIECES;
    int status =
        s->on_host ? create_host_parts(d, s->simd, why) : create_parts(d, s->device, s->as, why);
    if (status == 0 && !s->on_host)
        status = warm_up(d, why);
    if (status == 0)
        *out = d;
    else
        score_device_destroy(d);
    return status;
}

static void release_buffer(cl_mem buffer)
{
    if (buffer)
        clReleaseMemObject(buffer);
}

static void destroy_batch(struct batch *batch)
{
    if (batch->queue) {
        if (batch->mapped)
            clEnqueueUnmapMemObject(batch->queue, batch->keys, batch->mapped, 0, NULL, NULL);
        clFinish(batch->queue);
    }
    if (batch->kernel)
        clReleaseKernel(batch->kernel);
    release_buffer(batch->keys);
    release_buffer(batch->groups);
    release_buffer(batch->scores);
    if (batch->queue)
        clReleaseCommandQueue(batch->queue);
    free(batch->memory);
    free(batch->group_table);
    free(batch->out);
}

void score_device_destroy(struct score_device *d)
{
    if (!d)
        return;
    for (uint32_t b = 0; b < SCORE_BATCHES; b++)
        destroy_batch(&d->batches[b]);
    free(d->host_group);
    release_buffer(d->query);
    if (d->program)
        clReleaseProgram(d->program);
    if (!d->host)
        cldevice_close(&d->device);
    free(d->query_bytes);
    free(d);
}

const char *score_device_name(const struct score_device *d)
{
    return d->host ? "the host's CPU" : d->device.name;
}

uint32_t score_device_slots_max(const struct score_device *d)
{
    return d->slots_max;
}

int score_device_query(struct score_device *d, const struct kv_query *query, struct hill_why *why)
{
    d->importance = query->importance;
    if (d->host) {
        kv_query_put(&d->geometry, query, d->query_bytes);
        return 0;
    }
    uint32_t bytes = kv_query_send(&d->geometry, query, d->query_bytes);
    if (d->device.shares_memory)
        return 0;
    /* a blocking write has taken the bytes, it need not be over: other queues' launches read it */
    cl_int status = clEnqueueWriteBuffer(d->batches[0].queue, d->query, CL_TRUE, 0, bytes,
                                         d->query_bytes, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        status = clFinish(d->batches[0].queue);
    return cldevice_check(status, "clEnqueueWriteBuffer query", why);
}

int score_device_map(struct score_device *d, uint32_t b, uint8_t **memory, struct hill_why *why)
{
    struct batch *batch = &d->batches[b];
    cl_int status = CL_SUCCESS;

    *memory = batch->memory;
    if (d->host || d->device.shares_memory)
        return 0;
    if (!batch->mapped)
        batch->mapped =
            clEnqueueMapBuffer(batch->queue, batch->keys, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION,
                               0, d->batch_bytes, 0, NULL, NULL, &status);
    if (batch->mapped)
        *memory = batch->mapped;
    return cldevice_check(status, "clEnqueueMapBuffer keys", why);
}

/* Cut the pieces into groups; returns how many, 0 when a piece lies outside the batch. */
static uint32_t fill_groups(struct score_device *d, struct batch *batch,
                            const struct score_piece *pieces, uint32_t n_pieces)
{
    uint32_t n_groups = 0, n_slots = 0;

    if (n_pieces > SCORE_BATCH_PIECES)
        return 0;
    for (uint32_t i = 0; i < n_pieces; i++) {
        const struct score_piece *p = &pieces[i];
        if (p->n_slots > d->slots_max - n_slots || !piece_fits(d, p))
            return 0;
        /* an accelerator's one item likes them long */
        uint32_t most = d->device.is_accelerator ? p->n_slots : SCORE_GROUP_SLOTS;
        for (uint32_t s = 0; s < p->n_slots; s += most) {
            uint32_t left = p->n_slots - s;
            batch->group_table[n_groups++] = (cl_uint4){
                {p->at + (uint32_t)slots_bytes(d, s), left < most ? left : most, n_slots + s, 0}};
        }
        n_slots += p->n_slots;
    }
    batch->n_slots = n_slots;
    return n_groups;
}

/* A slice on the CPU; keys are cast a group at a time. */
static void score_slice(struct score_device *d, const struct kv_query *query, const uint8_t *from,
                        uint32_t n_slots, uint16_t *scores)
{
    const struct kv_geometry *g = &d->geometry;
    uint32_t dims = kv_key_dims(g);

    if (!d->cast) {
        d->host(g, query, from, n_slots, scores);
        return;
    }
    for (uint32_t s = 0, n; s < n_slots; s += n) {
        n = n_slots - s < KV_GROUP_TOKENS ? n_slots - s : KV_GROUP_TOKENS;
        kv_digest_keys(g, (const uint16_t *)(const void *)from + (uint64_t)s * dims, dims, n,
                       d->host_group, 0);
        d->host(g, query, d->host_group, n, scores + s);
    }
}

/* A piece of batch b, slice by slice. */
static int score_piece(struct score_device *d, uint32_t b, const struct kv_query *query,
                       const struct score_piece *p, uint16_t *scores, struct hill_why *why)
{
    uint32_t slice = SLICE_BYTES / (uint32_t)slots_bytes(d, KV_GROUP_TOKENS) * KV_GROUP_TOKENS;
    int status = 0;

    if (slice == 0)
        slice = KV_GROUP_TOKENS;
    for (uint32_t s = 0, n; status == 0 && s < p->n_slots; s += n) {
        n = p->n_slots - s < slice ? p->n_slots - s : slice;
        uint64_t from = p->at + slots_bytes(d, s);
        if (d->look.look)
            status = d->look.look(d->look.context, b, from + slots_bytes(d, n), why);
        if (status == 0)
            score_slice(d, query, d->batches[b].memory + from, n, scores + s);
    }
    return status;
}

static int score_on_host(struct score_device *d, uint32_t b, const struct score_piece *pieces,
                         uint32_t n_pieces, struct hill_why *why)
{
    const struct kv_query query = kv_query_at(&d->geometry, d->importance, d->query_bytes);
    uint32_t done = 0;
    int status = 0;
    if (n_pieces > SCORE_BATCH_PIECES)
        return hill_fail(why, HILL_E_INVALID, "scoring batch has too many pieces");
    for (uint32_t i = 0; status == 0 && i < n_pieces; i++) {
        const struct score_piece *p = &pieces[i];
        if (p->n_slots == 0 || p->n_slots > d->slots_max - done || !piece_fits(d, p))
            return hill_fail(why, HILL_E_INVALID, "scoring batch does not fit its buffer");
        status = score_piece(d, b, &query, p, d->batches[b].out + done, why);
        done += p->n_slots;
    }
    return status;
}

/* Hand the filled batch and its groups over to a device with memory of its own. */
static cl_int send_batch(struct batch *batch, uint32_t n_groups)
{
    cl_int status =
        clEnqueueUnmapMemObject(batch->queue, batch->keys, batch->mapped, 0, NULL, NULL);

    batch->mapped = NULL;
    if (status == CL_SUCCESS)
        status =
            clEnqueueWriteBuffer(batch->queue, batch->groups, CL_FALSE, 0,
                                 n_groups * sizeof(cl_uint4), batch->group_table, 0, NULL, NULL);
    return status;
}

/* One item for all groups, or a work-group for each. */
static cl_int enqueue(const struct score_device *d, struct batch *batch, cl_uint n_groups)
{
    bool task = d->device.is_accelerator;
    size_t local = d->device.is_cpu || task ? 1 : OTHER_LOCAL_SIZE;
    size_t global = task ? 1 : n_groups * local;
    cl_uint importance = d->importance;
    cl_int status = clSetKernelArg(batch->kernel, 3, sizeof importance, &importance);

    if (status == CL_SUCCESS && task)
        status = clSetKernelArg(batch->kernel, 5, sizeof n_groups, &n_groups);
    if (status == CL_SUCCESS)
        status = clEnqueueNDRangeKernel(batch->queue, batch->kernel, 1, NULL, &global, &local, 0,
                                        NULL, NULL);
    return status;
}

int score_device_launch(struct score_device *d, uint32_t b, const struct score_piece *pieces,
                        uint32_t n_pieces, struct hill_why *why)
{
    struct batch *batch = &d->batches[b];
    if (d->host)
        return score_on_host(d, b, pieces, n_pieces, why);
    uint32_t n_groups = fill_groups(d, batch, pieces, n_pieces);
    bool shared = d->device.shares_memory;

    if (n_groups == 0)
        return hill_fail(why, HILL_E_INVALID, "scoring batch does not fit its buffer");
    cl_int status = shared ? CL_SUCCESS : send_batch(batch, n_groups);
    if (status == CL_SUCCESS)
        status = enqueue(d, batch, n_groups);
    if (status == CL_SUCCESS && !shared)
        status = clEnqueueReadBuffer(batch->queue, batch->scores, CL_FALSE, 0,
                                     batch->n_slots * sizeof(uint16_t), batch->out, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        status = clFlush(batch->queue);
    return cldevice_check(status, "scoring launch", why);
}

int score_device_wait(struct score_device *d, uint32_t b, const uint16_t **scores,
                      struct hill_why *why)
{
    struct batch *batch = &d->batches[b];

    *scores = batch->out;
    if (d->host)
        return 0;
    return cldevice_check(clFinish(batch->queue), "scoring launch", why);
}
