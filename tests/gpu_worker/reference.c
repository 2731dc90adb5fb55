/*
 * tests/gpu_worker/reference.c - the forward pass in plain loops. Interface: reference.h.
 */
#include "tests/gpu_worker/reference.h"

void reference_init(struct reference *r, const struct random_model *m, uint32_t capacity)
{
    size_t kv = (size_t)m->shape.n_layers * capacity * m->shape.n_kv_heads * m->shape.head_dim;
    *r = (struct reference){.m = m, .capacity = capacity};
    r->k = calloc(kv, sizeof(double));
    r->v = calloc(kv, sizeof(double));
    r->logits = calloc(m->shape.n_vocab, sizeof(double));
}

void reference_free(struct reference *r)
{
    free(r->k);
    free(r->v);
    free(r->logits);
    free(r->guesses);
    free(r->masses);
}

static void reference_norm(const double *x, const float *g, uint32_t n, double *out)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + 1e-5) * g[i];
}

static void reference_product(const float *w, uint32_t rows, uint32_t n, const double *x,
                              double *out)
{
    for (uint32_t o = 0; o < rows; o++) {
        out[o] = 0;
        for (uint32_t i = 0; i < n; i++)
            out[o] += (double)w[(size_t)o * n + i] * x[i];
    }
}

static void reference_rotate(const struct random_model *m, double *head, uint32_t position)
{
    for (uint32_t i = 0; i < m->shape.rope_dims / 2; i++) {
        double angle =
            position * pow(m->shape.rope_base, -2.0 * i / m->shape.rope_dims) / m->shape.rope_scale;
        if (m->factors)
            angle /= m->factors[i];
        double a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * cos(angle) - b * sin(angle);
        head[2 * i + 1] = a * sin(angle) + b * cos(angle);
    }
}

/* seen: NULL, or seen[position] says which earlier tokens are attended to. */
static void reference_attend(const struct reference *r, uint32_t layer, const double *q,
                             const uint8_t *seen, double *out)
{
    const struct random_shape *s = &r->m->shape;
    uint32_t d = s->head_dim, kv_dims = s->n_kv_heads * d, n = r->n_tokens + 1;
    double *p = malloc(n * sizeof *p);
    for (uint32_t h = 0; h < s->n_heads; h++) {
        const size_t at =
            (size_t)layer * r->capacity * kv_dims + h / (s->n_heads / s->n_kv_heads) * d;
        double highest = -INFINITY, sum = 0;
        for (uint32_t t = 0; t < n; t++) {
            p[t] = 0;
            for (uint32_t i = 0; i < d; i++)
                p[t] += q[h * d + i] * r->k[at + (size_t)t * kv_dims + i];
            p[t] /= sqrt(d);
            if (seen && t + 1 < n && !seen[t])
                p[t] = -INFINITY;
            highest = fmax(highest, p[t]);
        }
        memset(out + h * d, 0, d * sizeof *out);
        for (uint32_t t = 0; t < n; t++) {
            p[t] = exp(p[t] - highest);
            sum += p[t];
        }
        bool weighs = r->masses && (!r->mass_head || r->mass_head == h + 1);
        for (uint32_t t = 0; weighs && t < n; t++)
            r->masses[(size_t)layer * r->capacity + t] += p[t] / sum;
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t i = 0; i < d; i++)
                out[h * d + i] += p[t] / sum * r->v[at + (size_t)t * kv_dims + i];
    }
    free(p);
}

static void reference_guess(struct reference *r, uint32_t layer, const double *x)
{
    const struct random_shape *s = &r->m->shape;
    uint32_t q_dims = s->n_heads * s->head_dim;
    double *a = calloc(s->n_embd, 8), *q = r->guesses + (size_t)layer * q_dims;
    reference_norm(x, r->m->parts[layer][PART_ATTN_NORM], s->n_embd, a);
    reference_product(r->m->parts[layer][PART_Q], q_dims, s->n_embd, a, q);
    for (uint32_t h = 0; h < s->n_heads; h++)
        reference_rotate(r->m, q + h * s->head_dim, r->n_tokens);
    free(a);
}

static void reference_layer(struct reference *r, uint32_t layer, double *x, const uint8_t *seen)
{
    const struct random_shape *s = &r->m->shape;
    float *const *w = r->m->parts[layer];
    uint32_t d = s->head_dim, q_dims = s->n_heads * d, kv_dims = s->n_kv_heads * d,
             position = r->n_tokens;
    uint32_t widest = q_dims + kv_dims + s->n_embd + s->n_ff;
    double *a = calloc(widest, 8), *q = calloc(widest, 8), *o = calloc(widest, 8),
           *b = calloc(widest, 8);
    double *k = r->k + ((size_t)layer * r->capacity + position) * kv_dims;
    double *v = r->v + ((size_t)layer * r->capacity + position) * kv_dims;
    reference_norm(x, w[PART_ATTN_NORM], s->n_embd, a);
    reference_product(w[PART_Q], q_dims, s->n_embd, a, q);
    reference_product(w[PART_K], kv_dims, s->n_embd, a, k);
    reference_product(w[PART_V], kv_dims, s->n_embd, a, v);
    for (uint32_t h = 0; h < s->n_heads; h++)
        reference_rotate(r->m, q + h * d, position);
    for (uint32_t h = 0; h < s->n_kv_heads; h++)
        reference_rotate(r->m, k + h * d, position);
    for (uint32_t i = 0; i < kv_dims; i++) {
        k[i] = from_half(to_half((float)k[i]));
        v[i] = from_half(to_half((float)v[i]));
    }
    reference_attend(r, layer, q, seen, o);
    reference_product(w[PART_O], s->n_embd, q_dims, o, a);
    for (uint32_t i = 0; i < s->n_embd; i++)
        x[i] += a[i];
    reference_norm(x, w[PART_FFN_NORM], s->n_embd, a);
    reference_product(w[PART_GATE], s->n_ff, s->n_embd, a, q);
    reference_product(w[PART_UP], s->n_ff, s->n_embd, a, b);
    for (uint32_t i = 0; i < s->n_ff; i++)
        b[i] *= q[i] / (1 + exp(-q[i]));
    reference_product(w[PART_DOWN], s->n_embd, s->n_ff, b, a);
    for (uint32_t i = 0; i < s->n_embd; i++)
        x[i] += a[i];
    free(a);
    free(q);
    free(o);
    free(b);
}

void reference_token(struct reference *r, uint32_t token, const uint8_t *seen)
{
    const struct random_shape *s = &r->m->shape;
    double *x = calloc(s->n_embd, 8), *a = calloc(s->n_embd, 8);
    for (uint32_t i = 0; i < s->n_embd; i++)
        x[i] = r->m->embedding[(size_t)token * s->n_embd + i];
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        if (r->guesses && layer + 1 < s->n_layers)
            reference_guess(r, layer + 1, x);
        reference_layer(r, layer, x, seen);
    }
    reference_norm(x, r->m->output_norm, s->n_embd, a);
    reference_product(r->m->output, s->n_vocab, s->n_embd, a, r->logits);
    r->n_tokens++;
    free(x);
    free(a);
}
