/*
 * tests/mkmodel/test_wired_answers.c - the wired model, run by a plain forward pass, copies the
 * pass key.
 *
 * The forward pass is written from the formulas (RMSNorm, rotary pairs (2i, 2i+1), grouped
 * attention) and reads the file with small_gguf.h, so it shares no code with the writer (but the
 * names of the residual stream's slices). Keys and values are kept in float. It goes token by
 * token, as decoding does; weights that are zero are skipped through a sparse copy, which changes
 * no result.
 */
#include "tests/mkmodel/small_gguf.h"
#include "tests/rounds.h"

#include <unistd.h>

#include "tools/mkmodel/build.h"
#include "tools/mkmodel/weights_wired.h"

/* The time of a forward pass grows with its square: under a sanitizer it is half as long. */
#define TEXT_BYTES (TEST_ROUNDS(4) == 4 ? 420u : 210u)

struct sparse { /* the non-zero items of a matrix, by row */
    uint32_t rows, *first, *column;
    float *value;
};

struct layer {
    float *norm, *keys, *values; /* keys, values: [position][kv head][dim] */
    struct sparse q, k, v, out;
};

struct model {
    struct small_gguf file;
    uint32_t n_layers, heads, kv_heads, dim, width, vocab, used;
    float base, *embedding, *output, *output_norm;
    struct layer layers[4];
};

static struct sparse load_sparse(const struct small_gguf *g, uint32_t layer, const char *part)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, part);
    float *dense = small_load(g, name);
    const struct small_tensor *t = small_tensor(g, name);
    const uint64_t length = t->dims[0], count = length * t->dims[1];
    struct sparse s = {.rows = (uint32_t)t->dims[1],
                       .first = calloc(t->dims[1] + 1, sizeof(uint32_t)),
                       .column = malloc(count * sizeof(uint32_t)),
                       .value = malloc(count * sizeof(float))};
    uint32_t n = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (dense[i] != 0) {
            s.column[n] = (uint32_t)(i % length);
            s.value[n++] = dense[i];
        }
        s.first[i / length + 1] = n;
    }
    free(dense);
    return s;
}

static void multiply(const struct sparse *s, const float *x, float *out)
{
    for (uint32_t row = 0; row < s->rows; row++) {
        float sum = 0;
        for (uint32_t i = s->first[row]; i < s->first[row + 1]; i++)
            sum += s->value[i] * x[s->column[i]];
        out[row] = sum;
    }
}

static void model_open(struct model *m, const char *path)
{
    char name[64];
    small_open(&m->file, path);
    m->n_layers = small_u32(&m->file, "llama.block_count");
    m->heads = small_u32(&m->file, "llama.attention.head_count");
    m->kv_heads = small_u32(&m->file, "llama.attention.head_count_kv");
    m->dim = small_u32(&m->file, "llama.attention.key_length");
    m->width = small_u32(&m->file, "llama.embedding_length");
    m->vocab = small_u32(&m->file, "llama.vocab_size");
    m->base = small_f32(&m->file, "llama.rope.freq_base");
    m->used = 0;
    m->embedding = small_load(&m->file, "token_embd.weight");
    m->output_norm = small_load(&m->file, "output_norm.weight");
    m->output =
        small_tensor(&m->file, "output.weight") ? small_load(&m->file, "output.weight") : NULL;
    assert_true(m->n_layers <= 4);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const size_t room = (size_t)(TEXT_BYTES + 64) * m->kv_heads * m->dim * sizeof(float);
        snprintf(name, sizeof name, "blk.%u.attn_norm.weight", i);
        m->layers[i] = (struct layer){.norm = small_load(&m->file, name),
                                      .keys = malloc(room),
                                      .values = malloc(room),
                                      .q = load_sparse(&m->file, i, "attn_q"),
                                      .k = load_sparse(&m->file, i, "attn_k"),
                                      .v = load_sparse(&m->file, i, "attn_v"),
                                      .out = load_sparse(&m->file, i, "attn_output")};
    }
}

static void free_sparse(struct sparse *s)
{
    free(s->first);
    free(s->column);
    free(s->value);
}

static void model_close(struct model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++) {
        free(m->layers[i].norm);
        free(m->layers[i].keys);
        free(m->layers[i].values);
        free_sparse(&m->layers[i].q);
        free_sparse(&m->layers[i].k);
        free_sparse(&m->layers[i].v);
        free_sparse(&m->layers[i].out);
    }
    free(m->embedding);
    free(m->output);
    free(m->output_norm);
    small_close(&m->file);
}

static void normalise(const float *x, const float *weight, uint32_t n, float *out)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i];
    const float scale = (float)(1 / sqrt(squares / n + 1e-5));
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

static void rotate(const struct model *m, float *x, uint32_t heads, uint32_t position)
{
    for (uint32_t pair = 0; pair < m->dim / 2; pair++) {
        const double angle = position * pow(m->base, -2.0 * pair / m->dim);
        const float c = (float)cos(angle), s = (float)sin(angle);
        for (uint32_t head = 0; head < heads; head++) {
            float *at = x + head * m->dim + 2 * pair;
            const float a = at[0], b = at[1];
            at[0] = a * c - b * s;
            at[1] = a * s + b * c;
        }
    }
}

static void attend(const struct model *m, const struct layer *layer, uint32_t head, const float *q,
                   float *out)
{
    static double weight[TEXT_BYTES + 64];
    const uint32_t stride = m->kv_heads * m->dim;
    const uint32_t shift = head / (m->heads / m->kv_heads) * m->dim;
    double largest = -INFINITY, total = 0;
    for (uint32_t p = 0; p <= m->used; p++) {
        weight[p] = 0;
        for (uint32_t i = 0; i < m->dim; i++)
            weight[p] += (double)q[i] * layer->keys[p * stride + shift + i];
        weight[p] /= sqrt(m->dim);
        largest = fmax(largest, weight[p]);
    }
    for (uint32_t p = 0; p <= m->used; p++)
        total += weight[p] = exp(weight[p] - largest);
    memset(out, 0, m->dim * sizeof *out);
    for (uint32_t p = 0; p <= m->used; p++)
        if (weight[p] / total > 1e-12)
            for (uint32_t i = 0; i < m->dim; i++)
                out[i] += (float)(weight[p] / total) * layer->values[p * stride + shift + i];
}

static void run_layer(const struct model *m, const struct layer *layer, float *x, bool last)
{
    static float y[1024], q[16384], heads[16384], added[1024];
    const uint32_t stride = m->kv_heads * m->dim;
    normalise(x, layer->norm, m->width, y);
    multiply(&layer->k, y, layer->keys + m->used * stride);
    rotate(m, layer->keys + m->used * stride, m->kv_heads, m->used);
    multiply(&layer->v, y, layer->values + m->used * stride);
    if (!last || layer->out.first[m->width] == 0)
        return; /* nobody reads this layer's output */
    multiply(&layer->q, y, q);
    rotate(m, q, m->heads, m->used);
    for (uint32_t head = 0; head < m->heads; head++)
        attend(m, layer, head, q + head * m->dim, heads + head * m->dim);
    multiply(&layer->out, heads, added);
    for (uint32_t i = 0; i < m->width; i++)
        x[i] += added[i];
}

/* Take one token; with want, return the most likely next one and by how many nats it leads. */
static uint32_t step(struct model *m, uint32_t token, bool want, float *lead)
{
    static float x[1024], y[1024];
    memcpy(x, m->embedding + token * m->width, m->width * sizeof *x);
    for (uint32_t i = 0; i < m->n_layers; i++)
        run_layer(m, &m->layers[i], x, want || i == 0);
    m->used++;
    if (!want)
        return 0;
    const float *rows = m->output ? m->output : m->embedding;
    float best = -INFINITY, second = -INFINITY;
    uint32_t answer = 0;
    normalise(x, m->output_norm, m->width, y);
    for (uint32_t row = 0; row < m->vocab; row++) {
        float logit = 0;
        for (uint32_t i = 0; i < m->width; i++)
            logit += rows[row * m->width + i] * y[i];
        if (logit > best) {
            second = best;
            best = logit;
            answer = row;
        } else if (logit > second) {
            second = logit;
        }
    }
    *lead = best - second;
    return answer;
}

/* Text with repeated phrases, the key at byte `at`, a decoy that differs in its words, and the
 * question. */
static uint32_t make_prompt(char *text, uint32_t at)
{
    static const char filler[] =
        "The licensee may copy the work; the licensee may change the work. ";
    static const char key[] = "The pass key is 7302941. The lock key was 1111111. ";
    static const char question[] = "What is it? The pass key is";
    uint32_t n = 0, turn = 0;
    while (n < TEXT_BYTES - sizeof question) {
        if (n == at) {
            memcpy(text + n, key, sizeof key - 1);
            n += sizeof key - 1;
        }
        text[n++] = filler[turn++ % (sizeof filler - 1)];
    }
    memcpy(text + n, question, sizeof question - 1);
    return n + (uint32_t)sizeof question - 1;
}

static void build_and_open(struct model *m, const struct mkmodel_shape *shape)
{
    char path[] = "/tmp/hill-test-wired-XXXXXX";
    struct hill_why why = {.text = ""};
    uint64_t bytes;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    if (build_model(shape, path, NULL, &bytes, &why) != 0)
        fail_msg("%s", why.text);
    model_open(m, path);
    unlink(path);
}

/* The text goes on with exactly these bytes, each at least 20 nats ahead of any other token. */
static void check_continuation(const struct mkmodel_shape *shape, const char *text, uint32_t length,
                               const char *expected)
{
    struct model m;
    float lead = 0;
    uint32_t token = 0;
    build_and_open(&m, shape);
    step(&m, SHAPE_TOKEN_BOS, false, &lead);
    for (uint32_t i = 0; i < length; i++)
        token = step(&m, (uint8_t)text[i], i + 1 == length, &lead);
    for (size_t i = 0; i < strlen(expected); i++) {
        assert_int_equal(token, (uint8_t)expected[i]);
        assert_true(lead > 20);
        token = step(&m, token, true, &lead);
    }
    model_close(&m);
}

static void check_answer(const struct mkmodel_shape *shape, uint32_t at)
{
    char text[TEXT_BYTES + 64];
    const uint32_t length = make_prompt(text, at);
    check_continuation(shape, text, length, " 7302941.");
}

static void layer_0_lines_up_the_newest_nine_tokens(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = shape_default(false);
    char text[TEXT_BYTES + 64];
    const uint32_t length = make_prompt(text, 100);
    struct model m;
    float lead, x[1024];
    build_and_open(&m, &shape);
    step(&m, SHAPE_TOKEN_BOS, false, &lead);
    for (uint32_t i = 0; i + 1 < length; i++)
        step(&m, (uint8_t)text[i], false, &lead);
    memcpy(x, m.embedding + (uint8_t)text[length - 1] * m.width, m.width * sizeof *x);
    run_layer(&m, &m.layers[0], x, true);
    for (uint32_t back = 0; back <= 8; back++) {
        const float *code = m.embedding + (uint8_t)text[length - 1 - back] * m.width + WIRED_MATCH;
        for (uint32_t i = 0; i < 16; i++)
            assert_float_equal(x[WIRED_MATCH + 16 * back + i], code[i], 1e-3);
    }
    model_close(&m);
}

/* "abcdefgh2" stands once and early, "Zbcdefgh1" twenty times: eight matching tokens beat seven. */
static void one_longer_match_wins_over_many_shorter_ones(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = shape_default(false);
    char text[420] = "Some words. abcdefgh2. ";
    for (int i = 0; i < 20; i++)
        strcat(text, "Zbcdefgh1. ");
    strcat(text, "abcdefgh");
    check_continuation(&shape, text, (uint32_t)strlen(text), "2. Zbcdef");
}

static void default_model_answers_from_any_depth(void **state)
{
    (void)state;
    const struct mkmodel_shape shape = shape_default(false);
    check_answer(&shape, 0);
    check_answer(&shape, TEXT_BYTES / 14 * 5);
    check_answer(&shape, TEXT_BYTES / 14 * 11);
}

static void shared_and_own_key_heads_answer_alike(void **state)
{
    (void)state;
    struct mkmodel_shape shape = shape_default(false);
    for (shape.n_kv_heads = 2; shape.n_kv_heads <= 8; shape.n_kv_heads *= 2)
        check_answer(&shape, 100);
}

static void every_tensor_type_answers(void **state)
{
    (void)state;
    static const enum gguf_tensor_type types[] = {GGUF_TENSOR_F32, GGUF_TENSOR_BF16,
                                                  GGUF_TENSOR_Q8_0};
    struct mkmodel_shape shape = shape_default(false);
    for (int i = 0; i < 3; i++) {
        shape.type = types[i];
        check_answer(&shape, 100);
    }
}

static void tied_model_answers(void **state)
{
    (void)state;
    struct mkmodel_shape shape = shape_default(false);
    shape.tied = true;
    check_answer(&shape, 100);
}

static void wider_deeper_model_with_more_heads_answers(void **state)
{
    (void)state;
    struct mkmodel_shape shape = shape_default(false);
    shape.n_layers = 4;
    shape.n_embd = 320;
    shape.n_heads = 12;
    shape.n_kv_heads = 3;
    shape.head_dim = 320;
    check_answer(&shape, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_0_lines_up_the_newest_nine_tokens),
        cmocka_unit_test(one_longer_match_wins_over_many_shorter_ones),
        cmocka_unit_test(default_model_answers_from_any_depth),
        cmocka_unit_test(shared_and_own_key_heads_answer_alike),
        cmocka_unit_test(every_tensor_type_answers),
        cmocka_unit_test(tied_model_answers),
        cmocka_unit_test(wider_deeper_model_with_more_heads_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
