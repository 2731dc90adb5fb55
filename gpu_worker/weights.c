/*
 * gpu_worker/weights.c - the model's tensors, packed into panels of 16 outputs on the device.
 *
 * A matrix is its runs, then their panels as pack.h lays them out: a run is panels of one tensor
 * type, so that a matrix may be made of tensors of different types and takes what they take in the
 * file. Projections that are always computed together are one matrix: q, k, v one after the other;
 * gate, then up. A panel whose rows come from tensors of different types is a run of its own, in
 * F32. The file's pages are forgotten when a tensor is packed. Who calls it: engine.c. Failure: as
 * engine.h says.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_worker/engine_internal.h"
#include "gpu_worker/pack.h"

/* Rows of a tensor that become consecutive outputs. halves: pairs of a head of head_dim that turn
 * together lie `halves` apart in the tensor, and side by side in the matrix; the kernels know only
 * that order. What is computed is the same: q and k are reordered alike. */
struct row_part {
    const struct gguf_tensor *tensor;
    uint32_t first, rows, head_dim, halves;
};

/* Output rows of a matrix, in order, from up to three parts. */
struct row_source {
    struct row_part parts[3];
    uint32_t n_parts;
    bool whole_panels; /* each part begins with a panel */
};

#define PACK_THREADS_MAX 16u
#define PACK_PANELS      8u /* of a thread, side by side */

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

static uint32_t padded_rows(const struct row_source *s, uint32_t i)
{
    return s->whole_panels ? round_up(s->parts[i].rows, 16) : s->parts[i].rows;
}

static uint32_t source_rows(const struct row_source *s)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        rows += padded_rows(s, i);
    return rows;
}

/* Where output `row` of a part is in its tensor. */
static uint32_t part_row(const struct row_part *p, uint32_t row)
{
    uint32_t dim = p->halves ? row % p->head_dim : 0;
    if (dim < 2 * p->halves)
        row = row - dim + dim / 2 + dim % 2 * p->halves;
    return p->first + row;
}

/* Which tensor and row an output is; NULL for padding. */
static const struct gguf_tensor *find_row(const struct row_source *s, uint32_t row,
                                          uint32_t *in_tensor)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        if (row < padded_rows(s, i)) {
            *in_tensor = part_row(&s->parts[i], row);
            return row < s->parts[i].rows ? s->parts[i].tensor : NULL;
        }
        row -= padded_rows(s, i);
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

/* A thread's panels of a matrix: every n_threads-th stretch of them. */
struct packer {
    const struct matrix *m;
    const struct row_source *s;
    const struct matrix_head *head;
    uint8_t *to;
    uint32_t thread, n_threads;
    int rc;
};

static void *pack_panels(void *context)
{
    struct packer *p = context;
    const struct matrix_head *head = p->head;
    for (uint32_t panel = 0, run = 0; !p->rc && panel < p->m->panels; panel++) {
        run += run + 1 < head->n_runs && head->runs[run + 1].first_panel <= panel;
        const struct matrix_run *r = &head->runs[run];
        if (panel / PACK_PANELS % p->n_threads == p->thread)
            p->rc =
                pack_one(p->s, block_format(r->type), panel, p->m->k,
                         p->to + 64ull * r->offset + 64ull * r->stride * (panel - r->first_panel));
    }
    return NULL;
}

/* One of n_threads that cannot be started is done by the caller. */
static int pack(const struct matrix *m, const struct row_source *s, const struct matrix_head *head,
                uint32_t n_threads, uint8_t *to, struct hill_why *why)
{
    struct packer packers[PACK_THREADS_MAX];
    pthread_t threads[PACK_THREADS_MAX];
    bool runs[PACK_THREADS_MAX] = {false};
    uint32_t n = n_threads > PACK_THREADS_MAX ? PACK_THREADS_MAX : n_threads ? n_threads : 1;
    int rc = 0;
    memcpy(to, head, sizeof *head);
    for (uint32_t i = 0; i < n; i++)
        packers[i] = (struct packer){m, s, head, to, i, n, 0};
    for (uint32_t i = 1; i < n; i++)
        runs[i] = pthread_create(&threads[i], NULL, pack_panels, &packers[i]) == 0;
    for (uint32_t i = 0; i < n; i++)
        if (!runs[i])
            pack_panels(&packers[i]);
    for (uint32_t i = 0; i < n; i++) {
        if (runs[i])
            pthread_join(threads[i], NULL);
        rc = rc ? rc : packers[i].rc;
    }
    for (uint32_t i = 0; i < s->n_parts; i++)
        gguf_forget_pages(s->parts[i].tensor);
    return rc ? hill_fail(why, rc, "cannot convert tensor '%.*s': %s",
                          (int)s->parts[0].tensor->name.length, s->parts[0].tensor->name.data,
                          hill_strerror(rc))
              : 0;
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
            huge_pages_take(bytes > WEIGHT_BLOCK_BYTES ? bytes : WEIGHT_BLOCK_BYTES, &b->bytes);
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

/* Into the pages that lie under its buffer. */
static int pack_in_place(struct engine *e, const struct matrix *m, const struct row_source *s,
                         const struct matrix_head *head, uint64_t bytes, struct hill_why *why)
{
    cl_int status;
    void *to = clEnqueueMapBuffer(e->queue, m->buffer, CL_TRUE, CL_MAP_WRITE_INVALIDATE_REGION, 0,
                                  bytes, 0, NULL, NULL, &status);
    int rc = cldevice_check(status, "cannot write weights to the device", why);
    if (rc)
        return rc;
    rc = pack(m, s, head, e->device.compute_units, to, why);
    status = clEnqueueUnmapMemObject(e->queue, m->buffer, to, 0, NULL, NULL);
    return rc ? rc : cldevice_check(status, "cannot write weights to the device", why);
}

/* In the host's memory, and from there to a device with memory of its own: what is packed is also
 * read, and a map of such a buffer may be a window across the bus. */
static int pack_and_send(struct engine *e, const struct matrix *m, const struct row_source *s,
                         const struct matrix_head *head, uint64_t bytes, struct hill_why *why)
{
    void *packed = malloc(bytes);
    if (!packed)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %llu MiB of packed weights",
                         (unsigned long long)(bytes >> 20));
    int rc = pack(m, s, head, (uint32_t)sysconf(_SC_NPROCESSORS_ONLN), packed, why);
    if (!rc)
        rc = cldevice_check(
            clEnqueueWriteBuffer(e->queue, m->buffer, CL_TRUE, 0, bytes, packed, 0, NULL, NULL),
            "cannot write weights to the device", why);
    free(packed);
    return rc;
}

static int load_matrix(struct engine *e, struct matrix *m, const struct row_source *s,
                       struct hill_why *why)
{
    cl_int status;
    m->k = (uint32_t)s->parts[0].tensor->dims[0];
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
    e->weight_bytes += m->bytes = bytes;
    return pages ? pack_in_place(e, m, s, &head, bytes, why)
                 : pack_and_send(e, m, s, &head, bytes, why);
}

/* values [n], padded with zeros to 32, on the device. */
static int give_vector(struct engine *e, cl_mem *out, const float *values, uint32_t n,
                       struct hill_why *why)
{
    cl_int status;
    uint64_t bytes = sizeof(float) * (uint64_t)round_up(n, 32);
    float *padded = calloc(1, bytes);
    if (!padded)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a vector of %u weights", n);
    memcpy(padded, values, sizeof(float) * n);
    *out = clCreateBuffer(e->device.context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes, padded,
                          &status);
    free(padded);
    int rc = cldevice_check(status, "cannot allocate weights on the device", why);
    if (rc)
        *out = NULL;
    e->weight_bytes += rc ? 0 : bytes;
    return rc;
}

static int read_vector(const struct gguf_tensor *t, float *out, struct hill_why *why)
{
    int rc = gguf_tensor_rows_f32(t, 0, 1, out);
    return rc ? hill_fail(why, rc, "cannot convert tensor '%.*s'", (int)t->name.length,
                          t->name.data)
              : 0;
}

/* The order of a head's dimensions is that of its part. NULL tensor: none is wanted. */
static int load_vector(struct engine *e, cl_mem *out, const struct row_part *p,
                       struct hill_why *why)
{
    if (!p->tensor)
        return 0;
    uint32_t n = (uint32_t)p->tensor->dims[0];
    float *stored = calloc(2, sizeof *stored * n), *ordered = stored + n;
    if (!stored)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a vector of %u weights", n);
    int rc = read_vector(p->tensor, stored, why);
    for (uint32_t i = 0; i < n; i++)
        ordered[i] = stored[part_row(p, i)];
    if (!rc)
        rc = give_vector(e, out, ordered, n, why);
    free(stored);
    return rc;
}

/* ---- biases ---- */

/* What is added to a matrix's results. Under LayerNorm the matrix is applied to
 * (x - mean) * factor * g + b, and the kernels compute W (x g) * factor: so W b is added to the
 * bias, and the sums of W's rows times g are kept behind it, for the mean. */
struct bias_source {
    struct row_part parts[3]; /* tensor NULL: none */
    const struct gguf_tensor *norm,
        *shift; /* g and b of the LayerNorm before the matrix, or NULL */
};

static int fold_norm(const struct gguf_tensor *t, uint32_t row, uint32_t k, float *scratch,
                     const float *norm, float *bias, float *sum)
{
    int rc = gguf_tensor_rows_f32(t, row, 1, scratch);
    double shifted = *bias, weighed = 0;
    for (uint32_t i = 0; !rc && i < k; i++) {
        weighed += (double)scratch[i] * norm[i];
        shifted += (double)scratch[i] * norm[k + i];
    }
    *bias = (float)shifted;
    *sum = (float)weighed;
    return rc;
}

/* biases [3]: of the parts; out [outputs], then the sums [outputs] where there is a norm. */
static int fill_bias(const struct matrix *m, const struct row_source *s,
                     const struct bias_source *b, float *const *biases, const float *norm,
                     float *out)
{
    uint32_t outputs = m->panels * 16;
    float *scratch = malloc(sizeof *scratch * m->k);
    int rc = scratch ? 0 : HILL_E_NOMEM;
    for (uint32_t row = 0; !rc && row < outputs; row++) {
        uint32_t at, left = row;
        const struct gguf_tensor *t = find_row(s, row, &at);
        const struct row_part *part = b->parts;
        if (!t)
            continue;
        for (uint32_t i = 0; i + 1 < s->n_parts && left >= s->parts[i].rows; i++, part++)
            left -= s->parts[i].rows;
        /* a bias has its matrix's rows, of q, k and v in one, too: at is its place in both */
        out[row] = part->tensor ? biases[part - b->parts][at] : 0;
        if (norm)
            rc = fold_norm(t, at, m->k, scratch, norm, &out[row], &out[outputs + row]);
    }
    free(scratch);
    return rc;
}

static int load_bias(struct engine *e, struct matrix *m, const struct row_source *s,
                     const struct bias_source *b, struct hill_why *why)
{
    float *biases[3] = {NULL}, *norm = NULL;
    uint32_t outputs = m->panels * 16, n = b->norm ? 2 * outputs : outputs;
    bool wanted = b->norm || b->parts[0].tensor || b->parts[1].tensor || b->parts[2].tensor;
    if (!wanted)
        return 0;
    float *out = calloc(n, sizeof *out);
    int rc = out ? 0 : HILL_E_NOMEM;
    for (int i = 0; !rc && i < 3; i++)
        if (b->parts[i].tensor) {
            biases[i] = calloc(b->parts[i].tensor->dims[0], sizeof(float));
            rc = biases[i] ? read_vector(b->parts[i].tensor, biases[i], why) : HILL_E_NOMEM;
        }
    if (!rc && b->norm) {
        norm = calloc(2ull * m->k, sizeof *norm);
        rc = norm ? read_vector(b->norm, norm, why) : HILL_E_NOMEM;
        if (!rc)
            rc = read_vector(b->shift, norm + m->k, why);
    }
    if (!rc)
        rc = fill_bias(m, s, b, biases, norm, out);
    if (!rc)
        rc = give_vector(e, &m->bias, out, n, why);
    else if (rc == HILL_E_NOMEM)
        hill_fail(why, rc, "no memory for biases");
    for (int i = 0; i < 3; i++)
        free(biases[i]);
    free(norm);
    free(out);
    return rc;
}

static int load_biased(struct engine *e, struct matrix *m, const struct row_source *s,
                       const struct bias_source *b, struct hill_why *why)
{
    int rc = load_matrix(e, m, s, why);
    return rc ? rc : load_bias(e, m, s, b, why);
}

/* ---- the model's tensors ---- */

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

/* A layer on its way to the device. Once a tensor was not to be had, nothing more is looked up. */
struct loader {
    struct engine *e;
    uint32_t layer;
    struct hill_why *why;
    bool failed;
};

/* NULL where the architecture has no such tensor, or may go without it and does. */
static const struct gguf_tensor *layer_tensor(struct loader *l, enum arch_part part,
                                              uint32_t row_length, uint32_t rows)
{
    const struct model_arch *arch = l->e->hp.arch;
    char name[64];
    if (l->failed || !arch_takes(arch, part))
        return NULL;
    model_layer_tensor_name(name, l->layer, part);
    if (!arch_requires(arch, part) && !gguf_tensor(l->e->file, name))
        return NULL;
    const struct gguf_tensor *t = find_tensor(l->e, name, row_length, rows, l->why);
    l->failed = !t;
    return t;
}

static struct row_part whole(const struct gguf_tensor *t)
{
    return (struct row_part){.tensor = t, .rows = t ? (uint32_t)t->dims[1] : 0};
}

/* Rows of q or k, or a vector over them. */
static struct row_part rotated(const struct engine *e, const struct gguf_tensor *t, uint32_t first,
                               uint32_t rows)
{
    bool halves = e->hp.arch->rotary == ARCH_ROTARY_HALVES;
    return (struct row_part){t, first, rows, e->hp.head_dim, halves ? e->hp.rope_dims / 2 : 0};
}

static int load_qkv(struct loader *l, struct layer_weights *w)
{
    struct engine *e = l->e;
    uint32_t n = e->hp.n_embd, q = e->hp.n_heads * e->hp.head_dim,
             kv = e->hp.n_kv_heads * e->hp.head_dim, head = e->hp.head_dim;
    const struct gguf_tensor *all = layer_tensor(l, ARCH_PART_QKV, n, q + 2 * kv);
    const struct gguf_tensor *qs = all ? all : layer_tensor(l, ARCH_PART_Q, n, q);
    const struct gguf_tensor *ks = all ? all : layer_tensor(l, ARCH_PART_K, n, kv);
    const struct gguf_tensor *vs = all ? all : layer_tensor(l, ARCH_PART_V, n, kv);
    const struct row_source rows = {{rotated(e, qs, 0, q), rotated(e, ks, all ? q : 0, kv),
                                     (struct row_part){vs, all ? q + kv : 0, kv, 0, 0}},
                                    3,
                                    false};
    const struct gguf_tensor *all_bias = layer_tensor(l, ARCH_PART_QKV_BIAS, q + 2 * kv, 0);
    const struct bias_source bias = {
        {whole(all_bias ? all_bias : layer_tensor(l, ARCH_PART_Q_BIAS, q, 0)),
         whole(all_bias ? all_bias : layer_tensor(l, ARCH_PART_K_BIAS, kv, 0)),
         whole(all_bias ? all_bias : layer_tensor(l, ARCH_PART_V_BIAS, kv, 0))},
        e->hp.arch->norm == ARCH_NORM_LAYER ? layer_tensor(l, ARCH_PART_ATTN_NORM, n, 0) : NULL,
        layer_tensor(l, ARCH_PART_ATTN_NORM_BIAS, n, 0)};
    const struct row_part q_norm = rotated(e, layer_tensor(l, ARCH_PART_Q_NORM, head, 0), 0, head);
    const struct row_part k_norm = rotated(e, layer_tensor(l, ARCH_PART_K_NORM, head, 0), 0, head);
    if (l->failed)
        return HILL_E_DAMAGED;
    int rc = load_biased(e, &w->qkv, &rows, &bias, l->why);
    if (!rc)
        rc = load_vector(e, &w->q_norm, &q_norm, l->why);
    return rc ? rc : load_vector(e, &w->k_norm, &k_norm, l->why);
}

static int load_output(struct loader *l, struct layer_weights *w)
{
    struct engine *e = l->e;
    uint32_t n = e->hp.n_embd, q = e->hp.n_heads * e->hp.head_dim;
    const struct row_source rows = {{whole(layer_tensor(l, ARCH_PART_OUTPUT, q, n))}, 1, false};
    const struct bias_source bias = {
        {whole(layer_tensor(l, ARCH_PART_OUTPUT_BIAS, n, 0))}, NULL, NULL};
    return l->failed ? HILL_E_DAMAGED : load_biased(e, &w->output, &rows, &bias, l->why);
}

static int load_ffn(struct loader *l, struct layer_weights *w)
{
    struct engine *e = l->e;
    uint32_t n = e->hp.n_embd, ff = e->hp.n_ff;
    const struct gguf_tensor *both = layer_tensor(l, ARCH_PART_GATE_UP, n, 2 * ff);
    const struct gguf_tensor *gate = both ? both : layer_tensor(l, ARCH_PART_GATE, n, ff);
    const struct gguf_tensor *up = both ? both : layer_tensor(l, ARCH_PART_UP, n, ff);
    struct row_source rows = {{{gate, 0, ff, 0, 0}, {up, both ? ff : 0, ff, 0, 0}}, 2, true};
    if (!gate) /* no gate: up alone */
        rows = (struct row_source){{{up, 0, ff, 0, 0}}, 1, false};
    const struct row_source down = {{whole(layer_tensor(l, ARCH_PART_DOWN, ff, n))}, 1, false};
    const struct bias_source up_bias = {
        {whole(layer_tensor(l, ARCH_PART_UP_BIAS, ff, 0))},
        e->hp.arch->norm == ARCH_NORM_LAYER ? layer_tensor(l, ARCH_PART_FFN_NORM, n, 0) : NULL,
        layer_tensor(l, ARCH_PART_FFN_NORM_BIAS, n, 0)};
    const struct bias_source down_bias = {
        {whole(layer_tensor(l, ARCH_PART_DOWN_BIAS, n, 0))}, NULL, NULL};
    if (l->failed)
        return HILL_E_DAMAGED;
    int rc = load_biased(e, &w->gate_up, &rows, &up_bias, l->why);
    return rc ? rc : load_biased(e, &w->down, &down, &down_bias, l->why);
}

static int load_norm(struct loader *l, cl_mem *out, enum arch_part part)
{
    const struct row_part p = whole(layer_tensor(l, part, l->e->hp.n_embd, 0));
    return l->failed ? HILL_E_DAMAGED : load_vector(l->e, out, &p, l->why);
}

static int load_layer(struct engine *e, uint32_t layer, struct hill_why *why)
{
    struct layer_weights *w = &e->layers[layer];
    struct loader l = {e, layer, why, false};
    int rc = load_norm(&l, &w->attn_norm, ARCH_PART_ATTN_NORM);
    if (!rc)
        rc = load_norm(&l, &w->post_attn_norm, ARCH_PART_POST_ATTN_NORM);
    if (!rc)
        rc = load_norm(&l, &w->ffn_norm, ARCH_PART_FFN_NORM);
    if (!rc)
        rc = load_norm(&l, &w->post_ffn_norm, ARCH_PART_POST_FFN_NORM);
    if (!rc)
        rc = load_qkv(&l, w);
    if (!rc)
        rc = load_output(&l, w);
    return rc ? rc : load_ffn(&l, w);
}

int weights_load(struct engine *e, struct hill_why *why)
{
    const struct model_hparams *hp = &e->hp;
    bool shifted = hp->arch->norm == ARCH_NORM_LAYER,
         learned = hp->arch->rotary == ARCH_ROTARY_NONE;
    e->layers = calloc(hp->n_layers, sizeof *e->layers);
    if (!e->layers)
        return hill_fail(why, HILL_E_NOMEM, "no memory for %u layers", hp->n_layers);
    e->embedding = find_tensor(e, "token_embd.weight", hp->n_embd, hp->n_vocab, why);
    if (!e->embedding)
        return HILL_E_DAMAGED;
    const struct gguf_tensor *output = e->embedding; /* tied, unless it has its own */
    if (gguf_tensor(e->file, "output.weight"))
        output = find_tensor(e, "output.weight", hp->n_embd, hp->n_vocab, why);
    if (learned)
        e->positions = find_tensor(e, "position_embd.weight", hp->n_embd,
                                   hp->n_ctx_max + hp->arch->position_offset, why);
    const struct row_part norm = whole(find_tensor(e, "output_norm.weight", hp->n_embd, 0, why));
    const struct gguf_tensor *shift =
        shifted ? find_tensor(e, "output_norm.bias", hp->n_embd, 0, why) : NULL;
    if (!output || !norm.tensor || (learned && !e->positions) || (shifted && !shift))
        return HILL_E_DAMAGED;
    const struct row_source rows = {{whole(output)}, 1, false};
    const struct bias_source bias = {{{0}}, shifted ? norm.tensor : NULL, shift};
    int rc = load_vector(e, &e->output_norm, &norm, why);
    if (!rc)
        rc = load_biased(e, &e->output, &rows, &bias, why);
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

static void release_matrix(struct matrix *m)
{
    release(&m->buffer);
    release(&m->bias);
}

void weights_free(struct engine *e)
{
    for (uint32_t layer = 0; e->layers && layer < e->hp.n_layers; layer++) {
        struct layer_weights *w = &e->layers[layer];
        cl_mem *vectors[] = {&w->attn_norm, &w->ffn_norm,      &w->post_attn_norm,
                             &w->q_norm,    &w->post_ffn_norm, &w->k_norm};
        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
            release(vectors[i]);
        release_matrix(&w->qkv);
        release_matrix(&w->output);
        release_matrix(&w->gate_up);
        release_matrix(&w->down);
    }
    free(e->layers);
    e->layers = NULL;
    release(&e->output_norm);
    release_matrix(&e->output);
    while (e->blocks) {
        struct weight_block *b = e->blocks;
        e->blocks = b->next;
        huge_pages_give(b->pages, b->bytes);
        free(b);
    }
}
