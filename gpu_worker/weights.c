/*
 * gpu_worker/weights.c - the model's tensors, packed into column panels on the device.
 *
 * A matrix is [panels][k][16]: 16 consecutive outputs side by side, as the kernels read them.
 * Projections that are always computed together are one matrix: q, k, v one after the other; gate
 * and up in alternating panels. Such a matrix is F16 when all of its tensors are, else F32; F16,
 * BF16 and Q8_0 to F32 are exact. Who calls it: engine.c. Failure: as engine.h says.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu_worker/engine_internal.h"

/* Output rows of a matrix, in order, from up to three tensors. */
struct row_source {
    const struct gguf_tensor *tensors[3];
    uint32_t n_tensors;
    bool alternate; /* panels of 16 rows taken from each tensor in turn */
};

static uint32_t source_rows(const struct row_source *s)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++)
        rows +=
            s->alternate ? round_up((uint32_t)s->tensors[i]->dims[1], 16) : s->tensors[i]->dims[1];
    return (uint32_t)rows;
}

/* Which tensor and row an output is; NULL for padding. */
static const struct gguf_tensor *find_row(const struct row_source *s, uint32_t row,
                                          uint32_t *in_tensor)
{
    if (s->alternate) {
        uint32_t panel = row / 16;
        const struct gguf_tensor *t = s->tensors[panel % s->n_tensors];
        *in_tensor = panel / s->n_tensors * 16 + row % 16;
        return *in_tensor < t->dims[1] ? t : NULL;
    }
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        if (row < s->tensors[i]->dims[1]) {
            *in_tensor = row;
            return s->tensors[i];
        }
        row -= (uint32_t)s->tensors[i]->dims[1];
    }
    return NULL;
}

static void pack_lane_f16(uint16_t *panel, uint32_t lane, const struct gguf_tensor *t, uint32_t row,
                          uint32_t k)
{
    const uint8_t *from = (const uint8_t *)t->data + (uint64_t)row * k * 2;
    for (uint32_t i = 0; i < k; i++)
        memcpy(&panel[(uint64_t)i * 16 + lane], from + (uint64_t)i * 2, 2);
}

static int pack_lane_f32(float *panel, uint32_t lane, const struct gguf_tensor *t, uint32_t row,
                         uint32_t k, float *scratch)
{
    int rc = gguf_tensor_rows_f32(t, row, 1, scratch);
    for (uint32_t i = 0; rc == 0 && i < k; i++)
        panel[(uint64_t)i * 16 + lane] = scratch[i];
    return rc;
}

static int pack(const struct matrix *m, const struct row_source *s, void *to)
{
    uint64_t panel_values = (uint64_t)m->k * 16;
    float *scratch = malloc(sizeof(float) * m->k);
    int rc = scratch ? 0 : HILL_E_NOMEM;
    memset(to, 0, panel_values * m->panels * (m->f16 ? 2 : 4));
    for (uint32_t row = 0; rc == 0 && row < m->panels * 16; row++) {
        uint32_t in_tensor;
        const struct gguf_tensor *t = find_row(s, row, &in_tensor);
        if (!t)
            continue;
        if (m->f16)
            pack_lane_f16((uint16_t *)to + row / 16 * panel_values, row % 16, t, in_tensor, m->k);
        else
            rc = pack_lane_f32((float *)to + row / 16 * panel_values, row % 16, t, in_tensor, m->k,
                               scratch);
    }
    free(scratch);
    return rc;
}

static void *take_pages(struct engine *e, uint64_t bytes)
{
    struct weight_block *b = e->blocks;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (!b || b->bytes - b->used < bytes) {
        b = calloc(1, sizeof *b);
        if (!b)
            return NULL;
        b->pages =
            engine_map_pages(bytes > WEIGHT_BLOCK_BYTES ? bytes : WEIGHT_BLOCK_BYTES, &b->bytes);
        if (!b->pages) {
            free(b);
            return NULL;
        }
        b->next = e->blocks;
        e->blocks = b;
    }
    b->used += bytes;
    return b->pages + b->used - bytes;
}

static int load_matrix(struct engine *e, struct matrix *m, const struct row_source *s,
                       struct hill_why *why)
{
    cl_int status;
    m->k = (uint32_t)s->tensors[0]->dims[0];
    m->panels = round_up(source_rows(s), 32) / 16;
    m->f16 = true;
    for (uint32_t i = 0; i < s->n_tensors; i++)
        m->f16 = m->f16 && s->tensors[i]->type == GGUF_TENSOR_F16;
    uint64_t bytes = (uint64_t)m->panels * 16 * m->k * (m->f16 ? 2 : 4);
    void *pages = NULL;
    if (e->device.shares_memory) {
        pages = take_pages(e, bytes);
        if (!pages)
            return hill_fail(why, HILL_E_NOMEM, "no memory for %llu MiB of weights",
                             (unsigned long long)(bytes >> 20));
    }
    m->buffer =
        clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | (pages ? CL_MEM_USE_HOST_PTR : 0),
                       bytes, pages, &status);
    int rc = cldevice_check(status, "cannot allocate weights on the device", why);
    if (rc) {
        m->buffer = NULL;
        return rc;
    }
    void *to = clEnqueueMapBuffer(e->queue, m->buffer, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0,
                                  bytes, 0, NULL, NULL, &status);
    rc = cldevice_check(status, "cannot write weights to the device", why);
    if (rc)
        return rc;
    rc = pack(m, s, to);
    if (rc)
        hill_fail(why, rc, "cannot convert tensor '%.*s': %s", (int)s->tensors[0]->name.length,
                  s->tensors[0]->name.data, hill_strerror(rc));
    status = clEnqueueUnmapMemObject(e->queue, m->buffer, to, 0, NULL, NULL);
    e->weight_bytes += bytes;
    return rc ? rc : cldevice_check(status, "cannot write weights to the device", why);
}

/* A vector padded with zeros to 32. */
static int load_vector(struct engine *e, cl_mem *out, const struct gguf_tensor *t,
                       struct hill_why *why)
{
    cl_int status;
    uint32_t n = (uint32_t)t->dims[0];
    uint64_t bytes = sizeof(float) * (uint64_t)round_up(n, 32);
    float *values = calloc(1, bytes);
    if (!values)
        return hill_fail(why, HILL_E_NOMEM, "no memory for tensor '%.*s'", (int)t->name.length,
                         t->name.data);
    int rc = gguf_tensor_rows_f32(t, 0, 1, values);
    if (rc) {
        hill_fail(why, rc, "cannot convert tensor '%.*s'", (int)t->name.length, t->name.data);
    } else {
        *out = clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes,
                              values, &status);
        rc = cldevice_check(status, "cannot allocate weights on the device", why);
        e->weight_bytes += rc ? 0 : bytes;
    }
    free(values);
    return rc;
}

/* The tensor, with the shape the kernels will assume: model_hparams_read has refused other files,
 * but no pointer is followed on another module's word. rows 0: a vector. */
static const struct gguf_tensor *find_tensor(const struct engine *e, const char *name,
                                             uint32_t row_length, uint32_t rows,
                                             struct hill_why *why)
{
    const struct gguf_tensor *t = gguf_tensor(e->file, name);
    if (t && t->dims[0] == row_length && t->dims[1] == (rows ? rows : 1))
        return t;
    hill_fail(why, HILL_E_DAMAGED, "%s: tensor '%s' is missing or not %u x %u", gguf_path(e->file),
              name, row_length, rows ? rows : 1);
    return NULL;
}

static const struct gguf_tensor *layer_tensor(const struct engine *e, uint32_t layer,
                                              const char *part, uint32_t row_length, uint32_t rows,
                                              struct hill_why *why)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, part);
    return find_tensor(e, name, row_length, rows, why);
}

static int load_layer(struct engine *e, uint32_t layer, struct hill_why *why)
{
    const struct model_hparams *hp = &e->hp;
    struct layer_weights *w = &e->layers[layer];
    uint32_t q_dims = hp->n_heads * hp->head_dim, kv_dims = hp->n_kv_heads * hp->head_dim,
             n = hp->n_embd;
    const struct gguf_tensor *attn_norm = layer_tensor(e, layer, "attn_norm", n, 0, why);
    const struct gguf_tensor *ffn_norm =
        attn_norm ? layer_tensor(e, layer, "ffn_norm", n, 0, why) : NULL;
    const struct gguf_tensor *q =
        ffn_norm ? layer_tensor(e, layer, "attn_q", n, q_dims, why) : NULL;
    const struct gguf_tensor *k = q ? layer_tensor(e, layer, "attn_k", n, kv_dims, why) : NULL;
    const struct gguf_tensor *v = k ? layer_tensor(e, layer, "attn_v", n, kv_dims, why) : NULL;
    const struct gguf_tensor *o = v ? layer_tensor(e, layer, "attn_output", q_dims, n, why) : NULL;
    const struct gguf_tensor *gate =
        o ? layer_tensor(e, layer, "ffn_gate", n, hp->n_ff, why) : NULL;
    const struct gguf_tensor *up = gate ? layer_tensor(e, layer, "ffn_up", n, hp->n_ff, why) : NULL;
    const struct gguf_tensor *down =
        up ? layer_tensor(e, layer, "ffn_down", hp->n_ff, n, why) : NULL;
    if (!down)
        return HILL_E_DAMAGED;
    int rc = load_vector(e, &w->attn_norm, attn_norm, why);
    if (!rc)
        rc = load_vector(e, &w->ffn_norm, ffn_norm, why);
    if (!rc)
        rc = load_matrix(e, &w->qkv, &(struct row_source){{q, k, v}, 3, false}, why);
    if (!rc)
        rc = load_matrix(e, &w->output, &(struct row_source){{o}, 1, false}, why);
    if (!rc)
        rc = load_matrix(e, &w->gate_up, &(struct row_source){{gate, up}, 2, true}, why);
    if (!rc)
        rc = load_matrix(e, &w->down, &(struct row_source){{down}, 1, false}, why);
    return rc;
}

int weights_load(struct engine *e, struct hill_why *why)
{
    const struct model_hparams *hp = &e->hp;
    e->layers = calloc(hp->n_layers, sizeof *e->layers);
    if (!e->layers)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u layers", hp->n_layers);
    e->embedding = find_tensor(e, "token_embd.weight", hp->n_embd, hp->n_vocab, why);
    if (!e->embedding)
        return HILL_E_DAMAGED;
    const struct gguf_tensor *output = e->embedding; /* tied, unless it has its own */
    if (gguf_tensor(e->file, "output.weight"))
        output = find_tensor(e, "output.weight", hp->n_embd, hp->n_vocab, why);
    const struct gguf_tensor *norm = find_tensor(e, "output_norm.weight", hp->n_embd, 0, why);
    if (!output || !norm)
        return HILL_E_DAMAGED;
    int rc = load_vector(e, &e->output_norm, norm, why);
    if (!rc)
        rc = load_matrix(e, &e->output, &(struct row_source){{output}, 1, false}, why);
    for (uint32_t layer = 0; rc == 0 && layer < hp->n_layers; layer++)
        rc = load_layer(e, layer, why);
    if (!rc)
        rc = cldevice_check(clFinish(e->queue), "cannot write weights to the device", why);
    return rc;
}

static void release(cl_mem *mem)
{
    if (*mem)
        clReleaseMemObject(*mem);
    *mem = NULL;
}

void weights_free(struct engine *e)
{
    for (uint32_t layer = 0; e->layers && layer < e->hp.n_layers; layer++) {
        struct layer_weights *w = &e->layers[layer];
        release(&w->attn_norm);
        release(&w->ffn_norm);
        release(&w->qkv.buffer);
        release(&w->output.buffer);
        release(&w->gate_up.buffer);
        release(&w->down.buffer);
    }
    free(e->layers);
    e->layers = NULL;
    release(&e->output_norm);
    release(&e->output.buffer);
    while (e->blocks) {
        struct weight_block *b = e->blocks;
        e->blocks = b->next;
        munmap(b->pages, b->bytes);
        free(b);
    }
}
