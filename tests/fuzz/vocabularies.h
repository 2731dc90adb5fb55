/*
 * tests/fuzz/vocabularies.h - small vocabularies of every family, made once; for fuzz_tokenizer.
 * Failure aborts. Concurrency: one thread.
 */
#pragma once

#include "model/tokenizer.h"
#include "tests/model/tiny_model.h"

/* tokenizer.ggml.pre of a family each (model/tokenizer_pre.c) */
static const char *const pre_names[] = {
    "default",        "gpt-2",       "starcoder",  "falcon",     "llama-bpe", "smaug-bpe",
    "glm4",           "qwen2",       "qwen35",     "tekken",     "gpt-4o",    "deepseek-llm",
    "deepseek-coder", "deepseek-v3", "minicpm5",   "seed-coder", "bloom",     "viking",
    "ufakzeka",       "laguna",      "exaone-moe", "spark2_5",   "youtu"};
#define VOCABULARY_SPM (sizeof pre_names / sizeof *pre_names)
#define N_VOCABULARIES (VOCABULARY_SPM + 1)

static inline void write_bpe(struct writer *w, const char *pre)
{
    static const char *const more[] = {"th",          "the", "<s>", "</s>", "\xc4\xa0t",
                                       "\xc4\xa0the", "12",  "123", "ing",  "in"};
    static const char *const merges[] = {"t h", "th e",        "\xc4\xa0 t", "\xc4\xa0t he",
                                         "h e", "\xc4\xa0t h", "1 2",        "12 3",
                                         "i n", "in g"};
    key_text(w, "general.architecture", "llama");
    tiny_counts(w);
    byte_vocabulary(w, pre, more, sizeof more / sizeof *more, merges,
                    sizeof merges / sizeof *merges);
    key_u32(w, "tokenizer.ggml.bos_token_id", 258);
    key_u32(w, "tokenizer.ggml.eos_token_id", 259);
}

static inline void write_spm(struct writer *w)
{
    static const char *const texts[] = {"<unk>",        "<s>", "</s>", "<0x0A>",        "<0xFF>",
                                        "\xE2\x96\x81", "t",   "h",    "\xE2\x96\x81t", "<user>"};
    static const float scores[] = {0, 0, 0, 0, 0, -1, -2, -3, -0.5f, 0};
    static const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 4};
    key_text(w, "general.architecture", "llama");
    tiny_counts(w);
    key_text(w, "tokenizer.ggml.model", "llama");
    key_texts(w, "tokenizer.ggml.tokens", texts, 10);
    key_array(w, "tokenizer.ggml.scores", GGUF_F32, 10);
    put(&w->values, scores, sizeof scores);
    key_array(w, "tokenizer.ggml.token_type", GGUF_I32, 10);
    put(&w->values, types, sizeof types);
    key_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    key_bool(w, "tokenizer.ggml.add_space_prefix", 1);
}

static inline const struct tokenizer *vocabulary(unsigned which)
{
    static struct tokenizer *made[N_VOCABULARIES];
    struct gguf_file *file;
    struct hill_why why = {""};
    if (made[which])
        return made[which];
    struct writer w = writer_new();
    if (which == VOCABULARY_SPM)
        write_spm(&w);
    else
        write_bpe(&w, pre_names[which]);
    tensor(&w, "output_norm.weight", TINY_EMBD, 1, GGUF_TENSOR_F32, NULL, TINY_EMBD * 4);
    struct blob bytes = writer_build(&w);
    if (open_bytes(&file, bytes.data, bytes.size, &why) != 0 ||
        tokenizer_open(&made[which], file, &why) != 0) {
        fprintf(stderr, "vocabulary %u: %s\n", which, why.text);
        abort();
    }
    gguf_close(file);
    free(bytes.data);
    writer_free(&w);
    return made[which];
}
