/*
 * model/hparams.c - read a model's shape from the metadata, then hold every tensor against it. See
 * hparams.h.
 *
 * A tensor that the arithmetic does not use (a bias, an expert) is refused: to leave it out would
 * answer wrongly in silence.
 */
#include "model/hparams.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No model comes near these; they keep every product of two counts inside 64 bits. */
#define MOST_LAYERS 65536
#define MOST_WIDTH  (1 << 28)

struct context {
    struct model_hparams *hp;
    const struct gguf_file *file;
    struct hill_why *why;
};

static int fail(const struct context *c, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(const struct context *c, int code, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return hill_fail(c->why, code, "cannot use model %.200s: %s", gguf_path(c->file), text);
}

/* ---- metadata ------------------------------------------------------------------------------- */

/* A count in 1..most under key; absent: fallback (0 means that it must be there). */
static int read_count(const struct context *c, const char *key, uint64_t most, uint32_t fallback,
                      uint32_t *out)
{
    uint64_t value;
    if (!gguf_find(c->file, key)) {
        if (!fallback)
            return fail(c, HILL_E_DAMAGED, "metadata key %s is missing", key);
        *out = fallback;
        return 0;
    }
    if (!gguf_get_u64(c->file, key, &value))
        return fail(c, HILL_E_UNSUPPORTED, "metadata key %s is not a single count", key);
    if (value == 0 || value > most)
        return fail(c, HILL_E_DAMAGED, "metadata key %s is %llu, outside 1..%llu", key,
                    (unsigned long long)value, (unsigned long long)most);
    *out = (uint32_t)value;
    return 0;
}

/* A positive finite number under key; absent: *out stays. */
static int read_positive(const struct context *c, const char *key, float *out)
{
    double value;
    if (!gguf_find(c->file, key))
        return 0;
    if (!gguf_get_f64(c->file, key, &value) || !((float)value > 0) || !isfinite((float)value))
        return fail(c, HILL_E_DAMAGED, "metadata key %s is not a positive number", key);
    *out = (float)value;
    return 0;
}

static bool string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.data, text, string.length) == 0;
}

/* The string as one printable word for a message. */
static const char *printable(struct gguf_string string, char out[48])
{
    uint64_t length = string.length < 47 ? string.length : 47;
    for (uint64_t i = 0; i < length; i++)
        out[i] = string.data[i] >= ' ' && string.data[i] <= '~' ? string.data[i] : '?';
    out[length] = 0;
    return out;
}

static int read_architecture(const struct context *c)
{
    struct gguf_string name;
    char word[48];
    uint64_t experts;
    if (!gguf_get_string(c->file, "general.architecture", &name))
        return fail(c, HILL_E_DAMAGED, "metadata key general.architecture is missing");
    if (!string_is(name, "llama"))
        return fail(c, HILL_E_UNSUPPORTED, "its architecture is '%s'; only 'llama' is supported",
                    printable(name, word));
    if (gguf_get_u64(c->file, "llama.expert_count", &experts) && experts > 0)
        return fail(c, HILL_E_UNSUPPORTED, "it is a mixture of %llu experts",
                    (unsigned long long)experts);
    return 0;
}

static int read_heads(const struct context *c)
{
    struct model_hparams *hp = c->hp;
    uint32_t value_length;
    int rc = read_count(c, "llama.attention.head_count", MOST_WIDTH, 0, &hp->n_heads);
    if (!rc)
        rc = read_count(c, "llama.attention.head_count_kv", MOST_WIDTH, hp->n_heads,
                        &hp->n_kv_heads);
    if (rc)
        return rc;
    if (hp->n_heads % hp->n_kv_heads != 0)
        return fail(c, HILL_E_DAMAGED, "%u heads do not divide among %u kv heads", hp->n_heads,
                    hp->n_kv_heads);
    bool divides = hp->n_embd % hp->n_heads == 0;
    rc = read_count(c, "llama.attention.key_length", MOST_WIDTH,
                    divides ? hp->n_embd / hp->n_heads : 0, &hp->head_dim);
    /* llama.cpp's default for the value length is the quotient too, not the key length */
    if (!rc)
        rc = read_count(c, "llama.attention.value_length", MOST_WIDTH,
                        divides ? hp->n_embd / hp->n_heads : hp->head_dim, &value_length);
    if (rc)
        return rc;
    if (value_length != hp->head_dim)
        return fail(c, HILL_E_UNSUPPORTED, "its keys have %u dimensions and its values %u",
                    hp->head_dim, value_length);
    return 0;
}

/* A rope.scaling.type that is absent means linear, as in llama.cpp. */
static int read_rope_scale(const struct context *c)
{
    struct gguf_string type = {"linear", 6};
    char word[48];
    double factor = 0;
    if (gguf_find(c->file, "llama.rope.scaling.type") &&
        !gguf_get_string(c->file, "llama.rope.scaling.type", &type))
        return fail(c, HILL_E_DAMAGED, "metadata key llama.rope.scaling.type is no string");
    if (string_is(type, "none"))
        return 0;
    if (!string_is(type, "linear"))
        return fail(c, HILL_E_UNSUPPORTED,
                    "its rope scaling is '%s'; none and linear are supported",
                    printable(type, word));
    const char *key = gguf_find(c->file, "llama.rope.scaling.factor") ? "llama.rope.scaling.factor"
                                                                      : "llama.rope.scale_linear";
    if (gguf_get_f64(c->file, key, &factor) && factor == 0)
        return 0; /* 0 says "not scaled" */
    return read_positive(c, key, &c->hp->rope_scale);
}

static int read_rope(const struct context *c)
{
    struct model_hparams *hp = c->hp;
    int rc = read_count(c, "llama.rope.dimension_count", MOST_WIDTH, hp->head_dim, &hp->rope_dims);
    if (!rc && (hp->rope_dims > hp->head_dim || hp->rope_dims % 2))
        rc = fail(c, HILL_E_DAMAGED, "it rotates %u of %u head dimensions", hp->rope_dims,
                  hp->head_dim);
    if (!rc)
        rc = read_positive(c, "llama.rope.freq_base", &hp->rope_base);
    if (!rc)
        rc = read_rope_scale(c);
    return rc;
}

static int read_metadata(const struct context *c)
{
    struct model_hparams *hp = c->hp;
    uint64_t context_length = 0;
    int rc = read_architecture(c);
    if (!rc)
        rc = read_count(c, "llama.block_count", MOST_LAYERS, 0, &hp->n_layers);
    if (!rc)
        rc = read_count(c, "llama.embedding_length", MOST_WIDTH, 0, &hp->n_embd);
    if (!rc)
        rc = read_count(c, "llama.feed_forward_length", MOST_WIDTH, 0, &hp->n_ff);
    if (!rc)
        rc = read_heads(c);
    if (!rc)
        rc = read_rope(c);
    if (!rc)
        rc = read_positive(c, "llama.attention.layer_norm_rms_epsilon", &hp->rms_eps);
    if (!rc && gguf_get_u64(c->file, "llama.context_length", &context_length))
        hp->n_ctx_train = context_length > UINT32_MAX ? UINT32_MAX : (uint32_t)context_length;
    return rc;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static int check_tensor(const struct context *c, const char *name, uint64_t width, uint64_t height)
{
    const struct gguf_tensor *tensor = gguf_tensor(c->file, name);
    if (!tensor)
        return fail(c, HILL_E_DAMAGED, "tensor %s is missing", name);
    if (tensor->dims[0] != width || tensor->dims[1] != height || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1)
        return fail(c, HILL_E_DAMAGED, "tensor %s is %llu x %llu x %llu x %llu, not %llu x %llu",
                    name, (unsigned long long)tensor->dims[0], (unsigned long long)tensor->dims[1],
                    (unsigned long long)tensor->dims[2], (unsigned long long)tensor->dims[3],
                    (unsigned long long)width, (unsigned long long)height);
    return 0;
}

enum { PARTS_OF_A_LAYER = 9 };

struct part {
    const char *name;
    uint64_t width, height;
};

static void layer_parts(const struct model_hparams *hp, struct part out[PARTS_OF_A_LAYER])
{
    uint64_t q = (uint64_t)hp->n_heads * hp->head_dim, kv = (uint64_t)hp->n_kv_heads * hp->head_dim;
    const struct part parts[PARTS_OF_A_LAYER] = {
        {"attn_norm.weight", hp->n_embd, 1},       {"attn_q.weight", hp->n_embd, q},
        {"attn_k.weight", hp->n_embd, kv},         {"attn_v.weight", hp->n_embd, kv},
        {"attn_output.weight", q, hp->n_embd},     {"ffn_norm.weight", hp->n_embd, 1},
        {"ffn_gate.weight", hp->n_embd, hp->n_ff}, {"ffn_up.weight", hp->n_embd, hp->n_ff},
        {"ffn_down.weight", hp->n_ff, hp->n_embd}};
    memcpy(out, parts, sizeof parts);
}

static int check_layers(const struct context *c)
{
    struct part parts[PARTS_OF_A_LAYER];
    layer_parts(c->hp, parts);
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < c->hp->n_layers; layer++)
        for (int p = 0; !rc && p < PARTS_OF_A_LAYER; p++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, parts[p].name);
            rc = check_tensor(c, name, parts[p].width, parts[p].height);
        }
    return rc;
}

static int check_vocabulary(const struct context *c)
{
    const struct gguf_tensor *embedding = gguf_tensor(c->file, "token_embd.weight");
    const struct gguf_value *tokens = gguf_find(c->file, "tokenizer.ggml.tokens");
    if (!embedding)
        return fail(c, HILL_E_DAMAGED, "tensor token_embd.weight is missing");
    if (embedding->dims[1] > MOST_WIDTH)
        return fail(c, HILL_E_DAMAGED, "its vocabulary has %llu tokens",
                    (unsigned long long)embedding->dims[1]);
    c->hp->n_vocab = (uint32_t)embedding->dims[1];
    if (tokens && tokens->count != c->hp->n_vocab)
        return fail(c, HILL_E_DAMAGED, "its tokenizer has %llu tokens and its embedding %u rows",
                    (unsigned long long)tokens->count, c->hp->n_vocab);
    int rc = check_tensor(c, "token_embd.weight", c->hp->n_embd, c->hp->n_vocab);
    if (!rc && gguf_tensor(c->file, "output.weight"))
        rc = check_tensor(c, "output.weight", c->hp->n_embd, c->hp->n_vocab);
    if (!rc)
        rc = check_tensor(c, "output_norm.weight", c->hp->n_embd, 1);
    if (!rc && gguf_tensor(c->file, "rope_freqs.weight"))
        rc = check_tensor(c, "rope_freqs.weight", c->hp->rope_dims / 2, 1);
    return rc;
}

/* Is this tensor one that the arithmetic uses, or one that says nothing new? */
static bool tensor_expected(const struct model_hparams *hp, struct gguf_string name)
{
    static const char *const single[] = {"token_embd.weight", "output.weight", "output_norm.weight",
                                         "rope_freqs.weight"};
    struct part parts[PARTS_OF_A_LAYER];
    char text[64], rest[48];
    unsigned layer;
    for (unsigned i = 0; i < sizeof single / sizeof single[0]; i++)
        if (string_is(name, single[i]))
            return true;
    if (name.length >= sizeof rest || memchr(name.data, 0, name.length))
        return false;
    memcpy(text, name.data, name.length);
    text[name.length] = 0;
    if (sscanf(text, "blk.%9u.%47s", &layer, rest) != 2 || layer >= hp->n_layers)
        return false;
    layer_parts(hp, parts);
    for (int p = 0; p < PARTS_OF_A_LAYER; p++)
        if (strcmp(rest, parts[p].name) == 0)
            return true;
    return strcmp(rest, "attn_rot_embd.weight") ==
           0; /* old converters: the rotary table, recomputed here */
}

static int refuse_others(const struct context *c)
{
    char word[48];
    for (uint64_t i = 0; i < gguf_tensor_count(c->file); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(c->file, i);
        if (!tensor_expected(c->hp, tensor->name))
            return fail(c, HILL_E_UNSUPPORTED, "tensor '%s' has no place in the architecture",
                        printable(tensor->name, word));
    }
    return 0;
}

int model_hparams_read(struct model_hparams *out, const struct gguf_file *file,
                       struct hill_why *why)
{
    const struct context c = {out, file, why};
    *out = (struct model_hparams){.rope_base = 10000, .rope_scale = 1, .rms_eps = 1e-5f};
    int rc = read_metadata(&c);
    if (!rc)
        rc = check_vocabulary(&c);
    if (!rc)
        rc = check_layers(&c);
    if (!rc)
        rc = refuse_others(&c);
    return rc;
}
