/*
 * tools/mkmodel/build.c - see build.h.
 *
 * Rows are made, encoded and written one at a time: memory does not grow with the model.
 */
#include "tools/mkmodel/build.h"

#include <stdio.h>
#include <stdlib.h>

#include "tools/mkmodel/encode.h"
#include "tools/mkmodel/gguf_writer.h"
#include "tools/mkmodel/weights_random.h"
#include "tools/mkmodel/weights_wired.h"

#define RMS_EPS 1e-5f

enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_CONTROL = 3,
    TOKEN_DEFINED = 4
}; /* numbers of the specification */

struct builder {
    struct mkmodel_shape shape;
    struct wired_plan plan; /* unused by a random model */
    struct gguf_writer writer;
    float *row;
    uint8_t *encoded;
};

/* ---- the list of tensors ----------------------------------------------------------------- */

static const struct {
    const char *name;
    enum tensor_role role;
} layer_tensors[] = {
    {"attn_norm", ROLE_ATTN_NORM}, {"attn_q", ROLE_ATTN_Q},           {"attn_k", ROLE_ATTN_K},
    {"attn_v", ROLE_ATTN_V},       {"attn_output", ROLE_ATTN_OUTPUT}, {"ffn_norm", ROLE_FFN_NORM},
    {"ffn_gate", ROLE_FFN_GATE},   {"ffn_up", ROLE_FFN_UP},           {"ffn_down", ROLE_FFN_DOWN},
};

typedef void tensor_action(struct builder *builder, const char *name, enum tensor_role role,
                           uint32_t layer);

/* The directory and the data are written by the same walk, so their orders agree. */
static void each_tensor(struct builder *builder, tensor_action *action)
{
    char name[64];
    action(builder, "token_embd.weight", ROLE_TOKEN_EMBD, 0);
    for (uint32_t layer = 0; layer < builder->shape.n_layers; layer++)
        for (unsigned i = 0; i < sizeof layer_tensors / sizeof layer_tensors[0]; i++) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, layer_tensors[i].name);
            action(builder, name, layer_tensors[i].role, layer);
        }
    action(builder, "output_norm.weight", ROLE_OUTPUT_NORM, 0);
    if (!builder->shape.tied)
        action(builder, "output.weight", ROLE_OUTPUT, 0);
}

static enum gguf_tensor_type type_of_role(const struct builder *builder, enum tensor_role role)
{
    return role_is_norm(role) ? GGUF_TENSOR_F32 : builder->shape.type;
}

static void declare_tensor(struct builder *builder, const char *name, enum tensor_role role,
                           uint32_t layer)
{
    (void)layer;
    uint64_t dims[2];
    shape_of_role(&builder->shape, role, &dims[0], &dims[1]);
    const enum gguf_tensor_type type = type_of_role(builder, role);
    const uint64_t row_bytes = dims[0] / block_format(type)->items * block_format(type)->bytes;
    gguf_writer_tensor(&builder->writer, name, role_is_norm(role) ? 1 : 2, dims, type,
                       row_bytes * dims[1]);
}

static void write_tensor(struct builder *builder, const char *name, enum tensor_role role,
                         uint32_t layer)
{
    (void)name;
    uint64_t length, rows;
    shape_of_role(&builder->shape, role, &length, &rows);
    for (uint64_t row = 0; row < rows && !builder->writer.error; row++) {
        if (builder->shape.random)
            random_row(&builder->shape, role, layer, row, builder->row);
        else
            wired_row(&builder->plan, role, layer, row, builder->row);
        const size_t bytes =
            encode_row(type_of_role(builder, role), builder->row, length, builder->encoded);
        gguf_writer_data(&builder->writer, builder->encoded, bytes);
    }
    gguf_writer_data_end(&builder->writer);
}

/* ---- metadata ---------------------------------------------------------------------------- */

static uint32_t file_type(enum gguf_tensor_type type)
{
    /* llama.cpp's general.file_type: "mostly" that type */
    static const uint8_t numbers[] = {
        [GGUF_TENSOR_F32] = 0,     [GGUF_TENSOR_F16] = 1,     [GGUF_TENSOR_Q4_0] = 2,
        [GGUF_TENSOR_Q4_1] = 3,    [GGUF_TENSOR_Q8_0] = 7,    [GGUF_TENSOR_Q5_0] = 8,
        [GGUF_TENSOR_Q5_1] = 9,    [GGUF_TENSOR_Q2_K] = 10,   [GGUF_TENSOR_Q3_K] = 12,
        [GGUF_TENSOR_Q4_K] = 15,   [GGUF_TENSOR_Q5_K] = 17,   [GGUF_TENSOR_Q6_K] = 18,
        [GGUF_TENSOR_IQ4_NL] = 25, [GGUF_TENSOR_IQ4_XS] = 30, [GGUF_TENSOR_BF16] = 32};
    return numbers[type];
}

static void write_shape(struct gguf_writer *writer, const struct mkmodel_shape *shape)
{
    gguf_writer_string(writer, "general.architecture", "llama");
    gguf_writer_string(writer, "general.name",
                       shape->random ? "random weights" : "hand-wired induction model");
    gguf_writer_u32(writer, "general.alignment", GGUF_WRITER_ALIGNMENT);
    gguf_writer_u32(writer, "general.file_type", file_type(shape->type));
    gguf_writer_u32(writer, "llama.block_count", shape->n_layers);
    gguf_writer_u32(writer, "llama.context_length", shape->n_ctx);
    gguf_writer_u32(writer, "llama.embedding_length", shape->n_embd);
    gguf_writer_u32(writer, "llama.feed_forward_length", shape->n_ff);
    gguf_writer_u32(writer, "llama.attention.head_count", shape->n_heads);
    gguf_writer_u32(writer, "llama.attention.head_count_kv", shape->n_kv_heads);
    gguf_writer_u32(writer, "llama.attention.key_length", shape->head_dim);
    gguf_writer_u32(writer, "llama.attention.value_length", shape->head_dim);
    gguf_writer_f32(writer, "llama.attention.layer_norm_rms_epsilon", RMS_EPS);
    gguf_writer_u32(writer, "llama.rope.dimension_count", shape->head_dim);
    gguf_writer_f32(writer, "llama.rope.freq_base", (float)shape->rope_base);
    gguf_writer_u32(writer, "llama.vocab_size", shape->n_vocab);
    struct shape_number number;
    for (const char *at = shape->metadata; at && shape_next_number(&at, &number);)
        if (number.real)
            gguf_writer_f32(writer, number.key, (float)number.value);
        else
            gguf_writer_u32(writer, number.key, (uint32_t)number.value);
}

/*
 * The byte as byte-level BPE vocabularies spell it: printable Latin-1 stands for itself, the other
 * 68 bytes become U+0100 and up in order. All are below U+0800: two bytes of UTF-8 at most.
 */
static uint32_t byte_code_point(uint32_t byte)
{
    uint32_t others = 0;
    for (uint32_t b = 0; b <= byte; b++) {
        const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        if (b == byte)
            return itself ? b : 0x100 + others;
        others += !itself;
    }
    return byte;
}

static enum token_kind token_text(const struct mkmodel_shape *shape, uint32_t token, char text[32])
{
    if (shape_token_text(shape, token, text))
        return TOKEN_DEFINED;
    if (token == SHAPE_TOKEN_BOS || token == SHAPE_TOKEN_EOS) {
        snprintf(text, 32, "%s", token == SHAPE_TOKEN_BOS ? "<|begin_of_text|>" : "<|endoftext|>");
    } else if (token == SHAPE_TOKEN_MERGE) {
        snprintf(text, 32, "\u0100\u0100");
    } else if (token > SHAPE_TOKEN_MERGE) {
        snprintf(text, 32, "<|%u|>", token); /* no merge makes it: met in generated text only */
    } else {
        const uint32_t point = byte_code_point(token);
        if (point < 0x80)
            snprintf(text, 32, "%c", (int)point);
        else
            snprintf(text, 32, "%c%c", (int)(0xc0 | point >> 6), (int)(0x80 | (point & 0x3f)));
    }
    return token == SHAPE_TOKEN_BOS || token == SHAPE_TOKEN_EOS ? TOKEN_CONTROL : TOKEN_NORMAL;
}

static void write_tokenizer(struct gguf_writer *writer, const struct mkmodel_shape *shape)
{
    char text[32];
    gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(writer, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_array(writer, "tokenizer.ggml.tokens", GGUF_STRING, shape->n_vocab);
    for (uint32_t token = 0; token < shape->n_vocab; token++) {
        token_text(shape, token, text);
        gguf_writer_item_string(writer, text);
    }
    gguf_writer_array(writer, "tokenizer.ggml.token_type", GGUF_I32, shape->n_vocab);
    for (uint32_t token = 0; token < shape->n_vocab; token++)
        gguf_writer_item_i32(writer, (int32_t)token_text(shape, token, text));
    /* One merge that text never needs: loaders want the array, some want it filled. */
    gguf_writer_array(writer, "tokenizer.ggml.merges", GGUF_STRING, 1);
    gguf_writer_item_string(writer, "\u0100 \u0100");
    gguf_writer_u32(writer, "tokenizer.ggml.bos_token_id", SHAPE_TOKEN_BOS);
    gguf_writer_u32(writer, "tokenizer.ggml.eos_token_id", SHAPE_TOKEN_EOS);
    gguf_writer_bool(writer, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_bool(writer, "tokenizer.ggml.add_eos_token", false);
    if (shape->chat_template)
        gguf_writer_string(writer, "tokenizer.chat_template", shape->chat_template);
}

/* ---- the whole file ---------------------------------------------------------------------- */

static size_t longest_row(const struct mkmodel_shape *shape)
{
    size_t longest = (size_t)shape->n_heads * shape->head_dim;
    if (longest < shape->n_embd)
        longest = shape->n_embd;
    return longest < shape->n_ff ? shape->n_ff : longest;
}

static int write_model(struct builder *builder, const char *path, const volatile sig_atomic_t *stop,
                       uint64_t *file_bytes, struct hill_why *why)
{
    const int code = gguf_writer_open(&builder->writer, path, stop, why);
    if (code)
        return code;
    write_shape(&builder->writer, &builder->shape);
    write_tokenizer(&builder->writer, &builder->shape);
    each_tensor(builder, declare_tensor);
    gguf_writer_begin_data(&builder->writer);
    each_tensor(builder, write_tensor);
    return gguf_writer_commit(&builder->writer, file_bytes, why);
}

int build_model(const struct mkmodel_shape *shape, const char *path,
                const volatile sig_atomic_t *stop, uint64_t *file_bytes, struct hill_why *why)
{
    struct builder builder = {.shape = *shape};
    int code = shape_check(shape, why);
    if (!code && !shape->random)
        code = wired_plan_init(&builder.plan, shape, why);
    if (code)
        return code;
    const size_t longest = longest_row(shape);
    builder.row = malloc(longest * sizeof *builder.row);
    builder.encoded = malloc(longest * sizeof(float)); /* no type takes more than F32 */
    if (builder.row && builder.encoded)
        code = write_model(&builder, path, stop, file_bytes, why);
    else
        code = hill_fail(why, HILL_E_NOMEM, "cannot build %s: out of memory", path);
    free(builder.encoded);
    free(builder.row);
    return code;
}
