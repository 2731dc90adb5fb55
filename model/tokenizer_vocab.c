/*
 * model/tokenizer_vocab.c - the vocabulary: texts, scores, types, and the bytes each token stands
 * for. See tokenizer_internal.h. Two blocks of bytes hold all texts and all pieces; a piece is
 * never longer than its text.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_internal.h"

/* ---- GPT-2's byte table --------------------------------------------------------------------- */

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

uint32_t tokenizer_byte_code_point(uint8_t byte)
{
    if (stands_for_itself(byte))
        return byte;
    /* the others follow from U+0100 on, in order: 0x00-0x20, 0x7F-0xA0, 0xAD */
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x100u + 0x21 + (byte - 0x7Fu);
}

/* The byte behind a code point, -1 for none. */
static int byte_of_code_point(uint32_t code_point)
{
    if (code_point < 0x100)
        return stands_for_itself(code_point) ? (int)code_point : -1;
    if (code_point <= 0x120)
        return (int)(code_point - 0x100);
    if (code_point <= 0x142)
        return (int)(code_point - 0x121 + 0x7F);
    return code_point == 0x143 ? 0xAD : -1;
}

/* ---- pieces --------------------------------------------------------------------------------- */

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* "<0xE2>" -> 0xE2, -1 for another text. */
static int byte_of_text(struct gguf_string text)
{
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static uint64_t decode_spm(struct gguf_string text, char *out)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < text.length;)
        if (text.length - i >= 3 && memcmp(text.data + i, "\xE2\x96\x81", 3) == 0) {
            out[used++] = ' ';
            i += 3;
        } else {
            out[used++] = text.data[i++];
        }
    return used;
}

/* Characters outside the byte table stand for themselves. */
static uint64_t decode_bpe(struct gguf_string text, char *out)
{
    const uint8_t *bytes = (const uint8_t *)text.data;
    uint64_t used = 0;
    for (uint64_t i = 0; i < text.length;) {
        uint32_t n = utf8_char_bytes(bytes + i, text.length - i);
        int byte = n ? byte_of_code_point(utf8_code_point(bytes + i, n)) : -1;
        if (byte >= 0) {
            out[used++] = (char)byte;
        } else {
            memcpy(out + used, bytes + i, n ? n : 1);
            used += n ? n : 1;
        }
        i += n ? n : 1;
    }
    return used;
}

static uint64_t write_piece(const struct tokenizer *t, const struct token *token, char *out)
{
    int byte;
    if (token->type == TOKEN_USER_DEFINED ||
        (token->type == TOKEN_CONTROL && token->is_reasoning_tag)) {
        memcpy(out, token->text.data, token->text.length);
        return token->text.length;
    }
    switch (token->type) {
    case TOKEN_NORMAL:
        return t->kind == TOKENIZER_BPE ? decode_bpe(token->text, out)
                                        : decode_spm(token->text, out);
    case TOKEN_BYTE:
        byte = byte_of_text(token->text);
        if (byte < 0)
            return 0;
        *out = (char)byte;
        return 1;
    default: /* control, unknown, unused: said by nobody */
        return 0;
    }
}

/* With U+FF5C for | and U+2581 between words */
#define DEEPSEEK_MARK(a, b, c) "<\xEF\xBD\x9C" a "\xE2\x96\x81" b "\xE2\x96\x81" c "\xEF\xBD\x9C>"
#define DEEPSEEK_GAP(word)                                                                         \
    "<\xEF\xBD\x9C"                                                                                \
    "fim\xE2\x96\x81" word "\xEF\xBD\x9C>"

/* ---- reading -------------------------------------------------------------------------------- */

/* An array of exactly n_tokens items under key, of one of two item types; *out NULL when absent. */
static int find_column(const struct tokenizer *t, const struct gguf_file *file, const char *key,
                       enum gguf_type type, enum gguf_type other, const struct gguf_value **out,
                       struct hill_why *why)
{
    *out = gguf_find(file, key);
    if (!*out)
        return 0;
    if ((*out)->type != GGUF_ARRAY || ((*out)->item_type != type && (*out)->item_type != other) ||
        (*out)->count != t->n_tokens)
        return hill_fail(why, HILL_E_DAMAGED, "%s is not a list of %u numbers, one per token", key,
                         t->n_tokens);
    return 0;
}

static int read_scores_and_types(struct tokenizer *t, const struct gguf_file *file,
                                 struct hill_why *why)
{
    const struct gguf_value *scores, *types;
    int rc = find_column(t, file, "tokenizer.ggml.scores", GGUF_F32, GGUF_F32, &scores, why);
    if (!rc)
        rc = find_column(t, file, "tokenizer.ggml.token_type", GGUF_I32, GGUF_U32, &types, why);
    for (uint32_t i = 0; !rc && i < t->n_tokens; i++) {
        int32_t type = TOKEN_NORMAL;
        if (types)
            memcpy(&type, types->data + 4 * (uint64_t)i, 4);
        t->tokens[i].type = type > 0 && type <= TOKEN_BYTE ? (uint8_t)type : TOKEN_UNDEFINED;
        if (scores)
            memcpy(&t->tokens[i].score, scores->data + 4 * (uint64_t)i, 4);
        if (isnan(t->tokens[i].score)) /* it would have no place in the order of merges */
            rc = hill_fail(why, HILL_E_DAMAGED, "the score of token %u is not a number", i);
    }
    return rc;
}

static int read_texts(struct tokenizer *t, const struct gguf_value *array, struct hill_why *why)
{
    struct gguf_string text;
    uint64_t index = 0, total = 0;
    for (const uint8_t *cursor = array->data; gguf_next_string(array, &cursor, &index, &text);)
        total += text.length;
    t->text_bytes = malloc(total + 1);
    t->piece_bytes = malloc(total + 1);
    if (!t->text_bytes || !t->piece_bytes || bytes_map_init(&t->by_text, t->n_tokens))
        return hill_fail(why, HILL_E_NOMEM, "no memory for a vocabulary of %u tokens", t->n_tokens);
    char *at = t->text_bytes;
    index = 0;
    for (const uint8_t *cursor = array->data; gguf_next_string(array, &cursor, &index, &text);) {
        memcpy(at, text.data, text.length);
        t->tokens[index - 1].text = (struct gguf_string){at, text.length};
        if (text.length) /* of two tokens with one text the later one counts */
            bytes_map_put(&t->by_text, at, text.length, (uint32_t)index - 1);
        if (text.length > t->longest)
            t->longest = text.length;
        at += text.length;
    }
    return 0;
}

/* Tokens that end a turn, and those around a gap to fill, by their text: control tokens, also where
 * the file says otherwise. */
static const struct {
    const char *text;
    bool ends;
} control_texts[] = {
    {"<|eot_id|>", true},
    {"<|im_end|>", true},
    {"<|end|>", true},
    {"<end_of_turn>", true},
    {"<|endoftext|>", true},
    {"<|eom_id|>", true},
    {"<EOT>", true},
    {"<|end_of_text|>", true},
    {"<turn|>", true},
    {"</s>", true},
    {"<|tool_response>", true},
    {"<end_of_utterance>", true},
    {"_<EOT>", true},
    {"[EOT]", true},
    {"[EOS]", true},
    {"<eos>", true},
    {"<|return|>", true},
    {"<|call|>", true},
    {"<|calls|>", true},
    {"<|flush|>", true},
    {"[e~[", true},
    {DEEPSEEK_MARK("end", "of", "sentence"), true},
    /* between the files of a code model's training: what follows is another file's text */
    {"<|fim_pad|>", true},
    {"<fim-pad>", true},
    {"<fim_pad>", true},
    {"<PAD>", true},
    {"[PAD]", true},
    {"<|fim_repo|>", true},
    {"<|repo_name|>", true},
    {"<fim-repo>", true},
    {"<REPO>", true},
    {"<reponame>", true},
    {"<|file_sep|>", true},
    {"<|fim_prefix|>", false},
    {"<|fim_suffix|>", false},
    {"<|fim_middle|>", false},
    {"<fim_prefix>", false},
    {"<fim_suffix>", false},
    {"<fim_middle>", false},
    {DEEPSEEK_GAP("begin"), false},
    {DEEPSEEK_GAP("hole"), false},
    {DEEPSEEK_GAP("end"), false},
};

static bool has_token(const struct tokenizer *t, const char *text)
{
    return tokenizer_lookup(t, text, strlen(text)) != TOKEN_NONE;
}

/* In Gemma's vocabularies, which have <bos> and not <s> as their begin, </s> is a tag of HTML. */
static bool is_html(const struct tokenizer *t, const char *text, uint32_t token)
{
    bool gemma = has_token(t, "<bos>") &&
                 (has_token(t, "<end_of_turn>") || has_token(t, "<|tool_response>"));
    return strcmp(text, "</s>") == 0 && (gemma || t->tokens[token].type == TOKEN_NORMAL);
}

/* Where these tokens are (gpt-oss, Solar Open) <|end|> ends a part of an answer, not all of it. */
static bool has_parts(const struct tokenizer *t)
{
    return (has_token(t, "<|return|>") && has_token(t, "<|call|>")) ||
           (has_token(t, "<|flush|>") && has_token(t, "<|calls|>"));
}

static void mark_controls(struct tokenizer *t)
{
    bool parts = has_parts(t);
    for (unsigned i = 0; i < sizeof control_texts / sizeof control_texts[0]; i++) {
        const char *text = control_texts[i].text;
        uint32_t token = tokenizer_lookup(t, text, strlen(text));
        if (token == TOKEN_NONE || is_html(t, text, token))
            continue;
        t->tokens[token].ends = control_texts[i].ends && !(parts && strcmp(text, "<|end|>") == 0);
        t->tokens[token].type = TOKEN_CONTROL;
    }
}

const struct reasoning_tags reasoning_tags[REASONING_TAGS] = {
    {"<think>", "</think>"},
    {"[THINK]", "[/THINK]"}, /* Mistral's, control tokens of its vocabularies */
};

static void mark_reasoning_tag(struct tokenizer *t, const char *text)
{
    uint32_t token = tokenizer_lookup(t, text, strlen(text));
    if (token != TOKEN_NONE)
        t->tokens[token].is_reasoning_tag = true;
}

static void mark_reasoning_tags(struct tokenizer *t)
{
    for (unsigned i = 0; i < REASONING_TAGS; i++) {
        mark_reasoning_tag(t, reasoning_tags[i].begin);
        mark_reasoning_tag(t, reasoning_tags[i].end);
    }
}

static void find_byte_symbols(struct tokenizer *t)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t token;
        if (t->kind != TOKENIZER_BPE) {
            char text[8];
            uint8_t raw = (uint8_t)byte;
            snprintf(text, sizeof text, "<0x%02X>", byte);
            token = tokenizer_lookup(t, text, 6);
            if (token == TOKEN_NONE)
                token = tokenizer_lookup(t, &raw, 1);
        } else {
            uint8_t spelling[2];
            uint32_t bytes = utf8_write_short(tokenizer_byte_code_point((uint8_t)byte), spelling);
            token = tokenizer_lookup(t, spelling, bytes);
            /* DeepSeek's letters of U+00C0 and on, spelt as bytes that UTF-8 never has */
            if (token != TOKEN_NONE && t->tokens[token].type == TOKEN_USER_DEFINED)
                token = TOKEN_NONE;
        }
        t->byte_symbols[byte] = token != TOKEN_NONE ? token : t->n_tokens + byte;
    }
}

static void write_pieces(struct tokenizer *t)
{
    char *at = t->piece_bytes;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        uint64_t length = write_piece(t, &t->tokens[i], at);
        t->tokens[i].piece = (struct gguf_string){at, length};
        at += length;
    }
}

int tokenizer_read_vocab(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    const struct gguf_value *array = gguf_find(file, "tokenizer.ggml.tokens");
    if (!array || array->type != GGUF_ARRAY || array->item_type != GGUF_STRING || !array->count)
        return hill_fail(why, HILL_E_DAMAGED,
                         "model %.200s has no vocabulary (tokenizer.ggml.tokens)", gguf_path(file));
    if (array->count > INT32_MAX)
        return hill_fail(why, HILL_E_DAMAGED, "model %.200s claims %llu tokens", gguf_path(file),
                         (unsigned long long)array->count);
    t->n_tokens = (uint32_t)array->count;
    t->tokens = calloc(t->n_tokens, sizeof *t->tokens);
    if (!t->tokens)
        return hill_fail(why, HILL_E_NOMEM, "no memory for a vocabulary of %u tokens", t->n_tokens);
    int rc = read_texts(t, array, why);
    if (!rc)
        rc = read_scores_and_types(t, file, why);
    if (rc)
        return rc;
    mark_controls(t);
    mark_reasoning_tags(t);
    find_byte_symbols(t);
    write_pieces(t);
    return 0;
}

uint32_t tokenizer_lookup(const struct tokenizer *t, const void *text, uint64_t length)
{
    /* longer than any token: not worth hashing */
    return length > t->longest ? TOKEN_NONE : bytes_map_get(&t->by_text, text, length);
}

uint32_t tokenizer_lookup_plain(const struct tokenizer *t, const void *text, uint64_t length)
{
    uint32_t token = tokenizer_lookup(t, text, length);
    return token != TOKEN_NONE && token_is_mark(&t->tokens[token]) ? TOKEN_NONE : token;
}

void tokenizer_add_byte(const struct tokenizer *t, uint8_t byte, struct token_list *list)
{
    uint32_t token = t->byte_symbols[byte];
    if (token >= t->n_tokens)
        token = t->unknown;
    if (token == TOKEN_NONE)
        list->error = HILL_E_UNSUPPORTED; /* to drop it would answer another text */
    else
        token_list_add(list, token);
}
