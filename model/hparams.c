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
    char key[96];
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

/* The string as one printable word for a message. */
static const char *printable(struct gguf_string string, char out[48])
{
    uint64_t length = string.length < 47 ? string.length : 47;
    for (uint64_t i = 0; i < length; i++)
        out[i] = string.data[i] >= ' ' && string.data[i] <= '~' ? string.data[i] : '?';
    out[length] = 0;
    return out;
}

/* The architecture's key of that name: "llama.block_count". Good until the next call. */
static const char *key_of(struct context *c, const char *name)
{
    snprintf(c->key, sizeof c->key, "%s.%s", c->hp->arch->name, name);
    return c->key;
}

static int read_architecture(struct context *c)
{
    struct gguf_string name;
    char word[48], key[64];
    uint64_t experts = 0, part = 0, parts = 0;
    if (gguf_get_u64(c->file, "split.count", &parts) && parts > 1) {
        gguf_get_u64(c->file, "split.no", &part);
        return fail(c, HILL_E_UNSUPPORTED,
                    "it is part %llu of %llu of a model; join them: llama-gguf-split --merge FIRST "
                    "WHOLE",
                    (unsigned long long)part + 1, (unsigned long long)parts);
    }
    if (!gguf_get_string(c->file, "general.architecture", &name))
        return fail(c, HILL_E_DAMAGED, "metadata key general.architecture is missing");
    snprintf(key, sizeof key, "%s.expert_count", printable(name, word));
    if (gguf_get_u64(c->file, key, &experts) && experts > 0)
        return fail(c, HILL_E_UNSUPPORTED,
                    "its architecture '%s' is a mixture of %llu experts, which are not supported",
                    word, (unsigned long long)experts);
    c->hp->arch = arch_find(name);
    if (!c->hp->arch)
        return fail(c, HILL_E_UNSUPPORTED, "its architecture is '%s'; supported are %s", word,
                    arch_names());
    return 0;
}

static int read_heads(struct context *c)
{
    struct model_hparams *hp = c->hp;
    uint32_t value_length;
    int rc = read_count(c, key_of(c, "attention.head_count"), MOST_WIDTH, 0, &hp->n_heads);
    if (!rc)
        rc = read_count(c, key_of(c, "attention.head_count_kv"), MOST_WIDTH, hp->n_heads,
                        &hp->n_kv_heads);
    if (rc)
        return rc;
    if (hp->n_heads % hp->n_kv_heads != 0)
        return fail(c, HILL_E_DAMAGED, "%u heads do not divide among %u kv heads", hp->n_heads,
                    hp->n_kv_heads);
    bool divides = hp->n_embd % hp->n_heads == 0;
    rc = read_count(c, key_of(c, "attention.key_length"), MOST_WIDTH,
                    divides ? hp->n_embd / hp->n_heads : 0, &hp->head_dim);
    /* llama.cpp's default for the value length is the quotient too, not the key length */
    if (!rc)
        rc = read_count(c, key_of(c, "attention.value_length"), MOST_WIDTH,
                        divides ? hp->n_embd / hp->n_heads : hp->head_dim, &value_length);
    if (rc)
        return rc;
    if (value_length != hp->head_dim)
        return fail(c, HILL_E_UNSUPPORTED, "its keys have %u dimensions and its values %u",
                    hp->head_dim, value_length);
    return 0;
}

static int read_linear(struct context *c)
{
    double factor = 0;
    const char *name = gguf_find(c->file, key_of(c, "rope.scaling.factor")) ? "rope.scaling.factor"
                                                                            : "rope.scale_linear";
    if (gguf_get_f64(c->file, key_of(c, name), &factor) && factor == 0)
        return 0; /* 0 says "not scaled" */
    return read_positive(c, c->key, &c->hp->rope_scale);
}

/* The checkpoint's mscale_all_dim: 1 takes all of the amplitude away. As in llama.cpp, mscale is
 * taken to be 1. */
static int read_yarn_multiplier(struct context *c)
{
    struct model_hparams *hp = c->hp;
    const char *key = key_of(c, "rope.scaling.yarn_log_multiplier");
    double multiplier;
    if (!hp->arch->has_yarn_multiplier || !gguf_find(c->file, key))
        return 0;
    if (!gguf_get_f64(c->file, key, &multiplier) || !(multiplier >= 0) ||
        !isfinite((float)multiplier))
        return fail(c, HILL_E_DAMAGED, "metadata key %s is not a number from 0 on", key);
    if (hp->rope_scale > 1)
        hp->rope_amplitude /= 0.1f * (float)multiplier * logf(hp->rope_scale) + 1;
    return 0;
}

/* Names of the paper (arXiv:2309.00071): s, L, beta (fast), alpha (slow). */
static int read_yarn(struct context *c)
{
    struct model_hparams *hp = c->hp;
    static const char *const refused[] = {"rope.scaling.yarn_ext_factor",
                                          "rope.scaling.yarn_log_multiplier"};
    unsigned n_refused = hp->arch->has_yarn_multiplier ? 1 : 2;
    double value;
    for (unsigned i = 0; i < n_refused; i++)
        if (gguf_get_f64(c->file, key_of(c, refused[i]), &value) && value != (i == 0 ? 1 : 0))
            return fail(c, HILL_E_UNSUPPORTED, "metadata key %s is %g", c->key, value);
    hp->rope_yarn = true;
    int rc = read_linear(c);
    if (!rc)
        rc = read_positive(c, key_of(c, "rope.scaling.yarn_beta_fast"), &hp->yarn_beta_fast);
    if (!rc)
        rc = read_positive(c, key_of(c, "rope.scaling.yarn_beta_slow"), &hp->yarn_beta_slow);
    /* The paper's. yarn_attn_factor, which converters write where the checkpoint spells it out,
     * repeats this factor, and llama.cpp passes over it. */
    hp->rope_amplitude *= 0.1f * logf(hp->rope_scale) + 1;
    return rc ? rc : read_yarn_multiplier(c);
}

/* A rope.scaling.type that is absent means linear, as in llama.cpp. */
static int read_rope_scale(struct context *c)
{
    struct gguf_string type = {"linear", 6};
    char word[48];
    const char *key = key_of(c, "rope.scaling.type");
    if (gguf_find(c->file, key) && !gguf_get_string(c->file, key, &type))
        return fail(c, HILL_E_DAMAGED, "metadata key %s is no string", key);
    if (gguf_string_is(type, "none") ||
        (c->hp->arch->has_rope_factors && gguf_string_is(type, "longrope")))
        return 0;
    if (gguf_string_is(type, "linear"))
        return read_linear(c);
    if (gguf_string_is(type, "yarn"))
        return read_yarn(c);
    return fail(c, HILL_E_UNSUPPORTED,
                "its rope scaling is '%s'; none, linear and yarn are supported",
                printable(type, word));
}

static int read_rope(struct context *c)
{
    struct model_hparams *hp = c->hp;
    float amplitude = 1;
    if (hp->arch->rotary == ARCH_ROTARY_NONE)
        return 0;
    int rc =
        read_count(c, key_of(c, "rope.dimension_count"), MOST_WIDTH, hp->head_dim, &hp->rope_dims);
    if (!rc && (hp->rope_dims > hp->head_dim || hp->rope_dims % 2))
        rc = fail(c, HILL_E_DAMAGED, "it rotates %u of %u head dimensions", hp->rope_dims,
                  hp->head_dim);
    if (!rc)
        rc = read_positive(c, key_of(c, "rope.freq_base"), &hp->rope_base);
    if (!rc)
        rc = read_positive(c, key_of(c, "rope.freq_base_swa"), &hp->rope_base_window);
    if (!rc)
        rc = read_count(c, key_of(c, "rope.scaling.original_context_length"), UINT32_MAX,
                        hp->n_ctx_train ? hp->n_ctx_train : UINT32_MAX, &hp->rope_original_tokens);
    if (!rc)
        rc = read_rope_scale(c);
    if (!rc)
        rc = read_positive(c, key_of(c, "rope.scaling.attn_factor"), &amplitude);
    hp->rope_amplitude *= amplitude;
    return rc;
}

/* Queries at position p are to be scaled by 1 + scale ln(1 + floor(p / L)), L the context before it
 * was stretched. The arithmetic has no such step; within L there is nothing to scale. */
static int read_temperature(struct context *c)
{
    struct model_hparams *hp = c->hp;
    double scale;
    if (!gguf_find(c->file, key_of(c, "attention.temperature_scale")))
        return 0;
    if (!gguf_get_f64(c->file, c->key, &scale))
        return fail(c, HILL_E_DAMAGED, "metadata key %s is not a number", c->key);
    if (scale == 0)
        return 0;
    if (hp->rope_original_tokens == 0 || hp->rope_original_tokens == UINT32_MAX)
        return fail(c, HILL_E_UNSUPPORTED, "metadata key %s is %g", c->key, scale);
    hp->n_ctx_max = hp->rope_original_tokens;
    return 0;
}

/* What the arithmetic does not do must not be asked for. */
static int refuse_caps(struct context *c)
{
    static const char *const caps[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    double value;
    for (unsigned i = 0; i < sizeof caps / sizeof caps[0]; i++)
        if (gguf_get_f64(c->file, key_of(c, caps[i]), &value) && value != 0)
            return fail(c, HILL_E_UNSUPPORTED, "metadata key %s is %g: soft caps are not supported",
                        c->key, value);
    return 0;
}

/* Windows only where the table has them: llama.cpp ignores phi3's stated window as well. */
static int read_window(struct context *c)
{
    struct model_hparams *hp = c->hp;
    uint64_t window;
    hp->global_every = hp->arch->global_every;
    if (!hp->global_every)
        return 0;
    if (!gguf_find(c->file, key_of(c, "attention.sliding_window"))) {
        hp->global_every = 0;
        return 0;
    }
    if (!gguf_get_u64(c->file, c->key, &window) || window < 2 || window > UINT32_MAX)
        return fail(c, HILL_E_DAMAGED, "metadata key %s is no window", c->key);
    hp->window = (uint32_t)window;
    return read_count(c, key_of(c, "attention.sliding_window_pattern"), MOST_LAYERS,
                      hp->global_every, &hp->global_every);
}

static int read_metadata(struct context *c)
{
    struct model_hparams *hp = c->hp;
    uint64_t context_length = 0;
    int rc = read_architecture(c);
    if (!rc)
        rc = read_count(c, key_of(c, "block_count"), MOST_LAYERS, 0, &hp->n_layers);
    if (!rc)
        rc = read_count(c, key_of(c, "embedding_length"), MOST_WIDTH, 0, &hp->n_embd);
    if (!rc)
        rc = read_count(c, key_of(c, "feed_forward_length"), MOST_WIDTH, 0, &hp->n_ff);
    if (!rc)
        rc = read_heads(c);
    if (!rc && gguf_get_u64(c->file, key_of(c, "context_length"), &context_length))
        hp->n_ctx_train = context_length > UINT32_MAX ? UINT32_MAX : (uint32_t)context_length;
    if (!rc)
        rc = read_rope(c);
    if (!rc)
        rc = read_temperature(c);
    if (!rc)
        rc = read_window(c);
    if (!rc)
        rc = refuse_caps(c);
    if (!rc)
        rc = read_positive(c,
                           key_of(c, hp->arch->norm == ARCH_NORM_RMS
                                         ? "attention.layer_norm_rms_epsilon"
                                         : "attention.layer_norm_epsilon"),
                           &hp->norm_eps);
    /* gemma3's largest (62 layers) divides by its width per head instead of the head size */
    hp->attention_dims = hp->head_dim;
    if (!rc && hp->arch->scales_embedding && hp->n_layers == 62)
        hp->attention_dims = hp->n_embd / hp->n_heads;
    if (!rc && hp->attention_dims == 0)
        return fail(c, HILL_E_DAMAGED, "it has more heads than dimensions");
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

struct shape {
    uint64_t width, height;
};

/* Of a layer's tensor. */
static struct shape part_shape(const struct model_hparams *hp, enum arch_part part)
{
    uint64_t n = hp->n_embd, ff = hp->n_ff, q = (uint64_t)hp->n_heads * hp->head_dim,
             kv = (uint64_t)hp->n_kv_heads * hp->head_dim;
    const struct shape shapes[ARCH_PART_COUNT] = {
        [ARCH_PART_Q] = {n, q},
        [ARCH_PART_K] = {n, kv},
        [ARCH_PART_V] = {n, kv},
        [ARCH_PART_QKV] = {n, q + 2 * kv},
        [ARCH_PART_Q_BIAS] = {q, 1},
        [ARCH_PART_K_BIAS] = {kv, 1},
        [ARCH_PART_V_BIAS] = {kv, 1},
        [ARCH_PART_QKV_BIAS] = {q + 2 * kv, 1},
        [ARCH_PART_Q_NORM] = {hp->head_dim, 1},
        [ARCH_PART_K_NORM] = {hp->head_dim, 1},
        [ARCH_PART_OUTPUT] = {q, n},
        [ARCH_PART_GATE] = {n, ff},
        [ARCH_PART_UP] = {n, ff},
        [ARCH_PART_GATE_UP] = {n, 2 * ff},
        [ARCH_PART_UP_BIAS] = {ff, 1},
        [ARCH_PART_DOWN] = {ff, n},
    };
    /* norms, and biases of what is added to the residual */
    return shapes[part].width ? shapes[part] : (struct shape){n, 1};
}

/* A part that a layer has only where q, k and v are tensors of their own. */
static bool is_apart(enum arch_part part)
{
    return part == ARCH_PART_Q || part == ARCH_PART_K || part == ARCH_PART_V ||
           part == ARCH_PART_Q_BIAS || part == ARCH_PART_K_BIAS || part == ARCH_PART_V_BIAS;
}

static int check_part(const struct context *c, uint32_t layer, enum arch_part part, bool joint)
{
    const struct model_arch *arch = c->hp->arch;
    struct shape shape = part_shape(c->hp, part);
    bool there = model_layer_tensor(c->file, layer, part) != NULL;
    bool displaced = joint ? is_apart(part) : part == ARCH_PART_QKV_BIAS;
    char name[64];
    model_layer_tensor_name(name, layer, part);
    if (displaced && there && arch_takes(arch, part))
        return fail(c, HILL_E_UNSUPPORTED, "tensor '%s' has no place %s attn_qkv.weight", name,
                    joint ? "beside" : "without");
    if (displaced || !(arch_requires(arch, part) || (there && arch_takes(arch, part))))
        return 0;
    return check_tensor(c, name, shape.width, shape.height);
}

static int check_layers(const struct context *c)
{
    int rc = 0;
    for (uint32_t layer = 0; !rc && layer < c->hp->n_layers; layer++) {
        bool joint = arch_takes(c->hp->arch, ARCH_PART_QKV) &&
                     model_layer_tensor(c->file, layer, ARCH_PART_QKV);
        for (int p = 0; !rc && p < ARCH_PART_COUNT; p++)
            rc = check_part(c, layer, p, joint);
    }
    return rc;
}

/* Learned positions: as many as there are, after those in front of position 0. */
static int check_positions(const struct context *c)
{
    const struct gguf_tensor *t = gguf_tensor(c->file, "position_embd.weight");
    uint32_t offset = c->hp->arch->position_offset;
    if (c->hp->arch->rotary != ARCH_ROTARY_NONE)
        return 0;
    if (t && (t->dims[1] <= offset || t->dims[1] > MOST_WIDTH))
        return fail(c, HILL_E_DAMAGED, "it has %llu learned positions",
                    (unsigned long long)t->dims[1]);
    c->hp->n_ctx_max = t ? (uint32_t)t->dims[1] - offset : 0;
    return check_tensor(c, "position_embd.weight", c->hp->n_embd, c->hp->n_ctx_max + offset);
}

/* Tensors of no layer. */
struct single {
    const char *name;
    bool has_place, required;
    uint64_t width, height;
};

enum { SINGLES = 7 };

static void list_singles(const struct model_hparams *hp, struct single out[SINGLES])
{
    const struct model_arch *arch = hp->arch;
    bool layer_norm = arch->norm == ARCH_NORM_LAYER, factors = arch->has_rope_factors;
    uint64_t n = hp->n_embd, pairs = hp->rope_dims / 2;
    const struct single all[SINGLES] = {
        {"token_embd.weight", true, true, n, hp->n_vocab},
        {"output.weight", true, false, n, hp->n_vocab},
        {"output_norm.weight", true, true, n, 1},
        {"output_norm.bias", layer_norm, layer_norm, n, 1},
        {"rope_freqs.weight", pairs && !factors, false, pairs, 1},
        {"rope_factors_long.weight", factors, false, pairs, 1},
        {"rope_factors_short.weight", factors, false, pairs, 1},
    };
    memcpy(out, all, sizeof all);
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
    struct single singles[SINGLES];
    list_singles(c->hp, singles);
    int rc = 0;
    for (int i = 0; !rc && i < SINGLES; i++)
        if (singles[i].required || (singles[i].has_place && gguf_tensor(c->file, singles[i].name)))
            rc = check_tensor(c, singles[i].name, singles[i].width, singles[i].height);
    return rc ? rc : check_positions(c);
}

/* Is this tensor one that the arithmetic uses, or one that says nothing new? */
static bool tensor_expected(const struct model_hparams *hp, struct gguf_string name)
{
    struct single singles[SINGLES];
    char text[64], rest[48];
    unsigned layer;
    list_singles(hp, singles);
    for (int i = 0; i < SINGLES; i++)
        if (gguf_string_is(name, singles[i].name))
            return singles[i].has_place;
    if (gguf_string_is(name, "position_embd.weight"))
        return hp->arch->rotary == ARCH_ROTARY_NONE;
    if (name.length >= sizeof rest || memchr(name.data, 0, name.length))
        return false;
    memcpy(text, name.data, name.length);
    text[name.length] = 0;
    if (sscanf(text, "blk.%9u.%47s", &layer, rest) != 2 || layer >= hp->n_layers)
        return false;
    for (int p = 0; p < ARCH_PART_COUNT; p++)
        if (arch_takes(hp->arch, p) && strcmp(rest, arch_part_name(p)) == 0)
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
    struct context c = {.hp = out, .file = file, .why = why};
    *out = (struct model_hparams){.rope_base = 10000,
                                  .rope_base_window = 10000,
                                  .rope_scale = 1,
                                  .rope_amplitude = 1,
                                  .yarn_beta_fast = 32,
                                  .yarn_beta_slow = 1,
                                  .norm_eps = 1e-5f};
    int rc = read_metadata(&c);
    if (!rc)
        rc = check_vocabulary(&c);
    if (!rc)
        rc = check_layers(&c);
    if (!rc)
        rc = refuse_others(&c);
    return rc;
}

/* ---- questions ------------------------------------------------------------------------------ */

void model_layer_tensor_name(char out[64], uint32_t layer, enum arch_part part)
{
    snprintf(out, 64, "blk.%u.%s", layer, arch_part_name(part));
}

const struct gguf_tensor *model_layer_tensor(const struct gguf_file *file, uint32_t layer,
                                             enum arch_part part)
{
    char name[64];
    model_layer_tensor_name(name, layer, part);
    return gguf_tensor(file, name);
}

bool model_layer_rotates(const struct model_hparams *hp, uint32_t layer)
{
    uint32_t every = hp->arch->unrotated_every;
    return hp->arch->rotary != ARCH_ROTARY_NONE && (!every || (layer + 1) % every != 0);
}

uint32_t model_layer_window(const struct model_hparams *hp, uint32_t layer)
{
    return hp->global_every && (layer + 1) % hp->global_every != 0 ? hp->window : 0;
}
