/*
 * tests/gpu_worker/random_model.c - random weights of any shape, and their file. Interface:
 * random_model.h.
 */
#include "tests/gpu_worker/random_model.h"

static float random_unit(uint64_t *state)
{
    return (float)((double)(next_random(state) >> 40) / (1 << 24) * 2 - 1);
}

uint16_t to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    int exponent = (int)(bits >> 23 & 255) - 127 + 15;
    if (exponent <= 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    uint32_t half = (bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff);
    uint32_t rest = bits & 0x1fff;
    return (uint16_t)(half + (rest > 0x1000 || (rest == 0x1000 && (half & 1))));
}

float from_half(uint16_t half)
{
    int exponent = half >> 10 & 31;
    float value = exponent ? ldexpf(1024 + (half & 1023), exponent - 25) : ldexpf(half & 1023, -24);
    return half & 0x8000 ? -value : value;
}

/* Random values times scale, rounded to the type; appends the tensor and keeps what the file says.
 */
static float *random_tensor(struct writer *w, uint64_t *state, const char *name, uint32_t width,
                            uint32_t height, uint32_t type, float scale)
{
    size_t n = (size_t)width * height;
    float *values = malloc(n * sizeof *values);
    uint8_t *data = malloc(n * 4);
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        float x = random_unit(state) * scale;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (type == GGUF_TENSOR_F16) {
            uint16_t half = to_half(x);
            x = from_half(half);
            memcpy(data + bytes, &half, 2);
            bytes += 2;
        } else if (type == GGUF_TENSOR_BF16) {
            uint16_t top = (uint16_t)(bits >> 16);
            bits &= 0xffff0000u;
            memcpy(&x, &bits, 4);
            memcpy(data + bytes, &top, 2);
            bytes += 2;
        } else if (type == GGUF_TENSOR_Q8_0) { /* 32 values: half scale, 32 int8 */
            uint16_t d = to_half(scale / 127);
            int8_t q = (int8_t)lrintf(x / from_half(d));
            if (i % 32 == 0) {
                memcpy(data + bytes, &d, 2);
                bytes += 2;
            }
            memcpy(data + bytes, &q, 1);
            bytes += 1;
            x = q * from_half(d);
        } else {
            memcpy(data + bytes, &x, 4);
            bytes += 4;
        }
        values[i] = x;
    }
    const uint64_t dims[2] = {width, height};
    while (w->data.size % w->alignment)
        put(&w->data, "", 1);
    tensor_entry(w, name, height == 1 ? 1 : 2, dims, type, w->data.size);
    put(&w->data, data, bytes);
    free(data);
    return values;
}

/* Norm weights near 1, rope factors between 0.5 and 1.5. */
static float *random_vector(struct writer *w, uint64_t *state, const char *name, uint32_t n)
{
    float *values = malloc(n * sizeof *values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = 1.0f + 0.5f * random_unit(state);
    const uint64_t dims[1] = {n};
    while (w->data.size % w->alignment)
        put(&w->data, "", 1);
    tensor_entry(w, name, 1, dims, GGUF_TENSOR_F32, w->data.size);
    put(&w->data, values, n * sizeof *values);
    return values;
}

void random_key_halves(struct writer *w, const struct random_shape *s)
{
    key_text(w, "general.architecture", "llama");
    key_u32(w, "llama.block_count", s->n_layers);
    key_u32(w, "llama.context_length", 4096);
    key_u32(w, "llama.embedding_length", s->n_embd);
    key_u32(w, "llama.feed_forward_length", s->n_ff);
    key_u32(w, "llama.attention.head_count", s->n_heads);
    key_u32(w, "llama.attention.head_count_kv", s->n_kv_heads);
    key_u32(w, "llama.attention.key_length", s->head_dim);
    key_u32(w, "llama.attention.value_length", s->head_dim);
    key_u32(w, "llama.rope.dimension_count", s->rope_dims);
    key_f32(w, "llama.rope.freq_base", s->rope_base);
    key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->rope_scale != 1.0f) {
        key_text(w, "llama.rope.scaling.type", "linear");
        key_f32(w, "llama.rope.scaling.factor", s->rope_scale);
    }
    key_text(w, "tokenizer.ggml.model", "none"); /* its tokens are no text */
    key_array(w, "tokenizer.ggml.tokens", 8, s->n_vocab);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        char text[16];
        snprintf(text, sizeof text, "t%u", i);
        put_text(&w->values, text);
    }
}

struct blob random_model_build(struct random_model *m, const struct random_shape *s, uint64_t seed)
{
    static const char *const names[PART_COUNT] = {"attn_q",      "attn_k",    "attn_v",
                                                  "attn_output", "ffn_gate",  "ffn_up",
                                                  "ffn_down",    "attn_norm", "ffn_norm"};
    const uint32_t q_dims = s->n_heads * s->head_dim, kv_dims = s->n_kv_heads * s->head_dim;
    const uint32_t sizes[PART_COUNT][2] = {
        {s->n_embd, q_dims},  {s->n_embd, kv_dims}, {s->n_embd, kv_dims},
        {q_dims, s->n_embd},  {s->n_embd, s->n_ff}, {s->n_embd, s->n_ff},
        {s->n_ff, s->n_embd}, {s->n_embd, 1},       {s->n_embd, 1}};
    struct writer w = writer_new();
    uint64_t state = seed * 2 + 1;
    memset(m, 0, sizeof *m);
    m->shape = *s;
    random_key_halves(&w, s);
    m->embedding =
        random_tensor(&w, &state, "token_embd.weight", s->n_embd, s->n_vocab, s->type, 1.0f);
    m->output =
        s->tied ? m->embedding
                : random_tensor(&w, &state, "output.weight", s->n_embd, s->n_vocab, s->type, 0.3f);
    m->output_norm = random_vector(&w, &state, "output_norm.weight", s->n_embd);
    if (s->rope_freqs)
        m->factors = random_vector(&w, &state, "rope_freqs.weight", s->rope_dims / 2);
    m->parts = calloc(s->n_layers, sizeof *m->parts);
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (int p = 0; p < PART_COUNT; p++) {
            char name[64];
            uint32_t type = s->part_types && p < PART_ATTN_NORM ? s->part_types[p] : s->type;
            snprintf(name, sizeof name, "blk.%u.%s.weight", l, names[p]);
            m->parts[l][p] = p >= PART_ATTN_NORM
                                 ? random_vector(&w, &state, name, s->n_embd)
                                 : random_tensor(&w, &state, name, sizes[p][0], sizes[p][1], type,
                                                 2.0f / sqrtf((float)sizes[p][0]));
        }
    struct blob bytes = writer_build(&w);
    writer_free(&w);
    return bytes;
}

void random_model_make(struct random_model *m, const struct random_shape *s, uint64_t seed)
{
    struct hill_why why = {0};
    struct blob bytes = random_model_build(m, s, seed);
    if (open_bytes(&m->file, bytes.data, bytes.size, &why) ||
        model_hparams_read(&m->hp, m->file, &why)) {
        fprintf(stderr, "the random model is refused: %s\n", why.text);
        abort();
    }
    free(bytes.data);
}

void random_model_make_windowed(struct random_model *m, uint64_t seed, uint32_t window)
{
    struct random_shape shape = RANDOM_SHAPE_SMALL(3);
    if (window) {
        shape.n_kv_heads = 1;
        shape.head_dim = 10;
        shape.rope_dims = 6;
    }
    random_model_make(m, &shape, seed);
    if (window) {
        m->hp.window = window;
        m->hp.global_every = 3;
        m->hp.rope_base_window = 10000;
    }
}

void random_model_free(struct random_model *m)
{
    if (m->output != m->embedding)
        free(m->output);
    free(m->embedding);
    free(m->output_norm);
    free(m->factors);
    for (uint32_t l = 0; l < m->shape.n_layers; l++)
        for (int p = 0; p < PART_COUNT; p++)
            free(m->parts[l][p]);
    free(m->parts);
    gguf_close(m->file);
}
