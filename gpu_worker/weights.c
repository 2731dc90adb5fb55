/*
 * gpu_worker/weights.c - the model's tensors, packed into panels of 16 outputs on the device.
 *
 * A matrix is its runs, then their panels as pack.h lays them out: a run is panels of one tensor type,
 * so that a matrix may be made of tensors of different types and takes what they take in the file.
 * Projections that are always computed together are one matrix: q, k, v one after the other; gate,
 * then up. A panel whose rows come from tensors of different types is a run of its own, in F32. The
 * file's pages are forgotten when a tensor is packed. Who calls it: engine.c. Failure: as engine.h
 * says.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu_worker/engine_internal.h"
#include "gpu_worker/pack.h"

/* Output rows of a matrix, in order, from up to three tensors. */
struct row_source {
    const struct gguf_tensor *tensors[3];
    uint32_t n_tensors;
    bool whole_panels; /* each tensor begins with a panel */
};

/* The head of a matrix on the device (product.cl). */
#define RUNS_MAX 7u
struct matrix_run {
    uint32_t first_panel, type, offset, stride; /* offset and stride in units of 64 bytes */
};
struct matrix_head {
    uint32_t n_runs, pad[3];
    struct matrix_run runs[RUNS_MAX];
};
_Static_assert(sizeof(struct matrix_head) == 128, "panels begin at a multiple of 64");

static uint32_t tensor_rows(const struct row_source *s, uint32_t i)
{
    uint32_t rows = (uint32_t)s->tensors[i]->dims[1];
    return s->whole_panels ? round_up(rows, 16) : rows;
}

static uint32_t source_rows(const struct row_source *s)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++)
        rows += tensor_rows(s, i);
    return rows;
}

/* Which tensor and row an output is; NULL for padding. */
static const struct gguf_tensor *find_row(const struct row_source *s, uint32_t row,
                                          uint32_t *in_tensor)
{
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        if (row < tensor_rows(s, i)) {
            *in_tensor = row;
            return row < s->tensors[i]->dims[1] ? s->tensors[i] : NULL;
        }
        row -= tensor_rows(s, i);
    }
    return NULL;
}

/* The type of a panel: that of its rows, or F32 where they differ; padding goes with what is before
 * it. */
static const struct block_format *panel_format(const struct row_source *s, uint32_t panel)
{
    const struct block_format *format = NULL;
    for (uint32_t lane = 0; lane < 16; lane++) {
        uint32_t in_tensor;
        const struct gguf_tensor *t = find_row(s, panel * 16 + lane, &in_tensor);
        if (t && format && format->type != t->type)
            return block_format(GGUF_TENSOR_F32);
        if (t)
            format = block_format(t->type);
    }
    return format ? format : panel_format(s, panel - 1);
}

/* The runs of a matrix; its bytes. */
static uint64_t lay_out(struct matrix *m, const struct row_source *s, struct matrix_head *head)
{
    uint64_t bytes = sizeof *head;
    *head = (struct matrix_head){0};
    m->quantised = false;
    for (uint32_t panel = 0; panel < m->panels; panel++) {
        const struct block_format *format = panel_format(s, panel);
        struct matrix_run *run = &head->runs[head->n_runs - (head->n_runs > 0)];
        if (head->n_runs == 0 || run->type != (uint32_t)format->type) {
            run = &head->runs[head->n_runs++];
            *run = (struct matrix_run){panel, format->type, (uint32_t)(bytes / 64),
                                       (uint32_t)(pack_panel_bytes(format, m->k) / 64)};
        }
        m->quantised = m->quantised || format->bits;
        bytes += 64ull * run->stride;
    }
    return bytes;
}

/* A panel of rows of different types, as F32. */
static int pack_mixed_panel(const struct row_source *s, uint32_t panel, uint32_t k, uint8_t *to)
{
    float *values = malloc(sizeof(float) * k * 16);
    const uint8_t *rows[16] = {NULL};
    int rc = values ? 0 : HILL_E_NOMEM;
    for (uint32_t lane = 0; !rc && lane < 16; lane++) {
        uint32_t in_tensor;
        const struct gguf_tensor *t = find_row(s, panel * 16 + lane, &in_tensor);
        if (!t)
            continue;
        rc = gguf_tensor_rows_f32(t, in_tensor, 1, values + (size_t)lane * k);
        rows[lane] = (const uint8_t *)(values + (size_t)lane * k);
    }
    if (!rc)
        pack_panel(block_format(GGUF_TENSOR_F32), k, rows, to);
    free(values);
    return rc;
}

static int pack_one(const struct row_source *s, const struct block_format *format, uint32_t panel,
                    uint32_t k, uint8_t *to)
{
    const uint8_t *rows[16] = {NULL};
    for (uint32_t lane = 0; lane < 16; lane++) {
        uint32_t in_tensor;
        const struct gguf_tensor *t = find_row(s, panel * 16 + lane, &in_tensor);
        if (t && t->type != format->type)
            return pack_mixed_panel(s, panel, k, to);
        if (t)
            rows[lane] = (const uint8_t *)t->data +
                         (uint64_t)in_tensor * (k / format->items) * format->bytes;
    }
    pack_panel(format, k, rows, to);
    return 0;
}

static int pack(const struct matrix *m, const struct row_source *s, const struct matrix_head *head,
                uint8_t *to)
{
    int rc = 0;
    memcpy(to, head, sizeof *head);
    for (uint32_t i = 0; !rc && i < head->n_runs; i++) {
        const struct matrix_run *run = &head->runs[i];
        uint32_t end = i + 1 < head->n_runs ? head->runs[i + 1].first_panel : m->panels;
        for (uint32_t panel = run->first_panel; !rc && panel < end; panel++)
            rc = pack_one(s, block_format(run->type), panel, m->k,
                          to + 64ull * run->offset +
                              64ull * run->stride * (panel - run->first_panel));
    }
    for (uint32_t i = 0; i < s->n_tensors; i++)
        gguf_forget_pages(s->tensors[i]);
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
    struct matrix_head head;
    uint64_t bytes = lay_out(m, s, &head);
    e->quantised = e->quantised || m->quantised;
    for (uint32_t i = 0; i < head.n_runs; i++)
        e->types |= 1u << head.runs[i].type;
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
    rc = pack(m, s, &head, to);
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
