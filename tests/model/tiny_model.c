/*
 * tests/model/tiny_model.c - keys, vocabulary and tensors of a model that is small and whole.
 * Interface: tiny_model.h.
 */
#include "tests/model/tiny_model.h"

/* Worked from its definition: printable Latin-1 stands for itself, the rest follows from U+0100 on
 * in byte order. */
void spell_byte(int byte, char out[4])
{
    int others = 0, code_point = byte;
    for (int b = 0; b <= byte; b++) {
        int printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
        if (b == byte && !printable)
            code_point = 256 + others;
        others += !printable;
    }
    memset(out, 0, 4);
    if (code_point < 128) {
        out[0] = (char)code_point;
    } else {
        out[0] = (char)(0xC0 | code_point / 64);
        out[1] = (char)(0x80 | code_point % 64);
    }
}

void byte_vocabulary(struct writer *w, const char *pre, const char *const *more, uint64_t n_more,
                     const char *const *merges, uint64_t n_merges)
{
    key_text(w, "tokenizer.ggml.model", "gpt2");
    if (pre)
        key_text(w, "tokenizer.ggml.pre", pre);
    key_array(w, "tokenizer.ggml.tokens", 8, 256 + n_more);
    for (int byte = 0; byte < 256; byte++) {
        char text[4];
        spell_byte(byte, text);
        put_text(&w->values, text);
    }
    for (uint64_t i = 0; i < n_more; i++)
        put_text(&w->values, more[i]);
    if (merges)
        key_texts(w, "tokenizer.ggml.merges", merges, n_merges);
}

void tiny_f32(struct writer *w, const char *name, uint64_t width, uint64_t height)
{
    tensor(w, name, width, height, 0, NULL, width * height * 4);
}

static void tiny_layer(struct writer *w, int layer, const char *skip)
{
    static const struct {
        const char *name;
        uint64_t width, height;
    } parts[] = {{"attn_norm", TINY_EMBD, 1},      {"ffn_norm", TINY_EMBD, 1},
                 {"attn_q", TINY_EMBD, 8},         {"attn_k", TINY_EMBD, 4},
                 {"attn_v", TINY_EMBD, 4},         {"attn_output", 8, TINY_EMBD},
                 {"ffn_gate", TINY_EMBD, TINY_FF}, {"ffn_up", TINY_EMBD, TINY_FF},
                 {"ffn_down", TINY_FF, TINY_EMBD}};
    for (unsigned p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[p].name);
        if (!skip || strcmp(name, skip) != 0)
            tiny_f32(w, name, parts[p].width, parts[p].height);
    }
}

void tiny_counts(struct writer *w)
{
    key_u32(w, "llama.block_count", TINY_LAYERS);
    key_u32(w, "llama.context_length", 64);
    key_u32(w, "llama.embedding_length", TINY_EMBD);
    key_u32(w, "llama.feed_forward_length", TINY_FF);
    key_u32(w, "llama.attention.head_count", TINY_HEADS);
    key_u32(w, "llama.attention.head_count_kv", TINY_KV);
}

void tiny_tensors(struct writer *w, const char *skip)
{
    if (!skip || strcmp(skip, "token_embd.weight") != 0)
        tiny_f32(w, "token_embd.weight", TINY_EMBD, TINY_VOCAB);
    if (!skip || strcmp(skip, "output_norm.weight") != 0)
        tiny_f32(w, "output_norm.weight", TINY_EMBD, 1);
    for (int layer = 0; layer < TINY_LAYERS; layer++)
        tiny_layer(w, layer, skip);
}

void tiny_vocabulary(struct writer *w)
{
    static const char *const more[] = {"<s>", "</s>"};
    byte_vocabulary(w, "gpt-2", more, 2, NULL, 0);
    key_u32(w, "tokenizer.ggml.bos_token_id", 256);
    key_u32(w, "tokenizer.ggml.eos_token_id", 257);
}
