/* tools/mkmodel/command.c - see command.h. */
#include "tools/mkmodel/command.h"

#include <stdio.h>
#include <string.h>

#include "tools/mkmodel/encode.h"

/* Defaults depend on --random: an option without a fallback takes shape_default()'s. */
static const struct option_spec specs[] = {
    OPTION("output", PATH, "FILE", "file to write; replaced only when the new one is complete",
           .letter = "o", .unset_help = "none: it is required"),
    OPTION("random", FLAG, NULL, "random weights of any shape, instead of the wired model"),
    OPTION("layers", INTEGER, "N", "layers; wired: from 2, those beyond pass through", .min = 1,
           .max = 512, .unset_help = "2; random 4"),
    OPTION("heads", INTEGER, "N", "query heads, a multiple of --kv-heads; wired: from 8", .min = 1,
           .max = 1024, .unset_help = "8"),
    OPTION("kv-heads", INTEGER, "N", "key and value heads", .min = 1, .max = 1024,
           .unset_help = "1; random 2"),
    OPTION("width", INTEGER, "N", "width of the residual stream; wired: from 209", .min = 2,
           .max = 65536, .unset_help = "256; random 128"),
    OPTION("head-dim", INTEGER, "N", "size of a head, even; wired: from 156", .min = 2, .max = 4096,
           .unset_help = "256; random 32"),
    OPTION("ffn", INTEGER, "N", "hidden size of the FFN", .min = 1, .max = 1048576,
           .unset_help = "32; random 256"),
    OPTION("vocab", INTEGER, "N", "vocabulary, random only", .min = SHAPE_MIN_VOCAB, .max = 1048576,
           .unset_help = "259; random 512"),
    OPTION("type", CHOICE, "TYPE", "tensor type of the matrices; below q8_0 with --random only",
           .choices =
               "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q2_k|q3_k|q4_k|q5_k|q6_k|iq4_nl|iq4_xs",
           .fallback = "f16"),
    OPTION("rope-base", REAL, "X", "base of the rotary angles", .min = 1, .max = 1e38,
           .unset_help = "1e15; random 1e4"),
    OPTION("ctx-size", INTEGER, "N", "context length to state", .letter = "c", .min = 1,
           .max = 1048576, .fallback = "131072"),
    OPTION("tied", FLAG, NULL, "no output.weight: unembed with the token embedding"),
    OPTION("seed", INTEGER, "N", "of all random weights", .letter = "s", .max = 4294967295.0,
           .fallback = "1"),
    OPTION("chat-template", STRING, "TEXT",
           "Jinja text to put into the file, so that clients can chat; its marks are bytes here"),
    OPTION("metadata", STRING, "KEY=NUMBER",
           "a further key of the file; with a point the number is F32, else U32; said again for "
           "more of them",
           .joins = ','),
    OPTION("tokens", STRING, "TEXT",
           "a user-defined token, as a mark of a chat is one; said again for more of them; random "
           "only",
           .joins = ','),
};

static const struct option_table tables[] = {
    {.title = "model", .specs = specs, .count = sizeof specs / sizeof specs[0]},
};

const struct option_program command_program = {
    .name = "hill-mkmodel",
    .usage = "-o FILE [OPTIONS]",
    .summary =
        "Write a Llama-architecture GGUF model: the hand-wired induction model, which continues a\n"
        "text the way the longest matching earlier passage went on, or plain random weights.",
    .example = "hill-mkmodel -o wired.gguf --kv-heads 2 --type q8_0",
    .tables = tables,
    .n_tables = 1,
    .arguments_only = true,
};

static void take_count(uint32_t *to, const struct options *options, const char *name)
{
    if (options_is_set(options, name))
        *to = (uint32_t)options_integer(options, name);
}

static void take_shape(struct mkmodel_shape *shape, const struct options *options)
{
    *shape = shape_default(options_flag(options, "random"));
    take_count(&shape->n_layers, options, "layers");
    take_count(&shape->n_heads, options, "heads");
    take_count(&shape->n_kv_heads, options, "kv-heads");
    take_count(&shape->n_embd, options, "width");
    take_count(&shape->head_dim, options, "head-dim");
    take_count(&shape->n_ff, options, "ffn");
    take_count(&shape->n_vocab, options, "vocab");
    take_count(&shape->n_ctx, options, "ctx-size");
    shape->type = encode_type(options_text(options, "type"));
    shape->tied = options_flag(options, "tied");
    shape->seed = (uint64_t)options_integer(options, "seed");
    if (options_is_set(options, "rope-base"))
        shape->rope_base = options_real(options, "rope-base");
}

static int take_template(struct mkmodel_options *out, const struct options *options,
                         struct hill_why *why)
{
    const char *text = options_text(options, "chat-template");
    if (!text)
        return 0;
    if (strlen(text) >= sizeof out->chat_template)
        return hill_fail(why, HILL_E_INVALID, "--chat-template is longer than %zu bytes",
                         sizeof out->chat_template - 1);
    strcpy(out->chat_template, text);
    out->shape.chat_template = out->chat_template;
    return 0;
}

static int take_metadata(struct mkmodel_options *out, const struct options *options,
                         struct hill_why *why)
{
    const char *text = options_text(options, "metadata");
    if (!text)
        return 0;
    if (strlen(text) >= sizeof out->metadata)
        return hill_fail(why, HILL_E_INVALID, "--metadata is longer than %zu bytes",
                         sizeof out->metadata - 1);
    strcpy(out->metadata, text);
    out->shape.metadata = out->metadata;
    struct shape_number number;
    for (const char *at = out->metadata; *at;)
        if (!shape_next_number(&at, &number))
            return hill_fail(why, HILL_E_INVALID, "--metadata %s: not KEY=NUMBER", text);
    return 0;
}

static int take_tokens(struct mkmodel_options *out, const struct options *options,
                       struct hill_why *why)
{
    const char *text = options_text(options, "tokens");
    uint32_t n = SHAPE_MIN_VOCAB;
    char token[32];
    if (!text)
        return 0;
    if (strlen(text) >= sizeof out->tokens)
        return hill_fail(why, HILL_E_INVALID, "--tokens is longer than %zu bytes",
                         sizeof out->tokens - 1);
    strcpy(out->tokens, text);
    out->shape.tokens = out->tokens;
    for (const char *at = text; at; at = strchr(at, ','), at += at != NULL)
        if (!shape_token_text(&out->shape, n++, token))
            return hill_fail(why, HILL_E_INVALID, "--tokens %s: one is empty or has 32 bytes",
                             text);
    return n <= out->shape.n_vocab
               ? 0
               : hill_fail(why, HILL_E_INVALID, "--tokens: %u do not fit into --vocab %u",
                           n - SHAPE_MIN_VOCAB, out->shape.n_vocab);
}

int command_parse(struct mkmodel_options *out, int argc, char **argv,
                  enum option_question *question, struct hill_why *why)
{
    struct options *options;
    int code = options_parse(&options, &command_program, argc, argv, question, why);
    if (code || *question != OPTIONS_NONE)
        return code;
    if (options_is_set(options, "output")) {
        snprintf(out->output, sizeof out->output, "%s", options_text(options, "output"));
        take_shape(&out->shape, options);
        code = take_template(out, options, why);
        if (!code)
            code = take_metadata(out, options, why);
        if (!code)
            code = take_tokens(out, options, why);
    } else {
        code = hill_fail(why, HILL_E_INVALID, "no output file given (-o FILE)");
    }
    options_free(options);
    return code;
}
