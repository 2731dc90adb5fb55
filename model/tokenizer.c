/*
 * model/tokenizer.c - open and close a tokenizer, answer for its tokens, encode a prompt. See
 * tokenizer.h.
 *
 * The pieces of a prompt become one text; tokenizer_marks.c cuts the tokens out that are spelt in
 * it, as far as each piece's kind allows; what lies between goes to the encoder of the vocabulary's
 * kind.
 */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_internal.h"

/* Three bytes for each space must still fit the 32-bit offsets of the encoders. */
#define MOST_TEXT_BYTES (UINT64_C(1) << 30)

_Static_assert(TOKEN_NONE == BYTES_MAP_NONE, "look-ups hand the map's answer on");

/* ---- opening -------------------------------------------------------------------------------- */

static int read_kind(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    struct gguf_string model;
    if (!gguf_get_string(file, "tokenizer.ggml.model", &model))
        return hill_fail(why, HILL_E_DAMAGED,
                         "model %.200s has no tokenizer (tokenizer.ggml.model)", gguf_path(file));
    if (gguf_string_is(model, "llama"))
        t->kind = TOKENIZER_SPM;
    else if (gguf_string_is(model, "gpt2"))
        t->kind = TOKENIZER_BPE;
    else if (gguf_string_is(model, "gemma4"))
        t->kind = TOKENIZER_CHARS;
    else
        return hill_fail(
            why, HILL_E_UNSUPPORTED,
            "the tokenizer of model %.200s is '%.*s'; 'llama', 'gpt2' and 'gemma4' are supported",
            gguf_path(file), (int)(model.length < 40 ? model.length : 40), model.data);
    return 0;
}

/* A token id of the metadata; one outside the vocabulary means none. */
static uint32_t read_special(const struct tokenizer *t, const struct gguf_file *file,
                             const char *key, uint32_t absent)
{
    uint64_t id = absent;
    gguf_get_u64(file, key, &id);
    return id < t->n_tokens ? (uint32_t)id : TOKEN_NONE;
}

static void read_specials(struct tokenizer *t, const struct gguf_file *file)
{
    bool spm = t->kind == TOKENIZER_SPM;
    t->bos = read_special(t, file, "tokenizer.ggml.bos_token_id", spm ? 1 : TOKEN_NONE);
    t->eos = read_special(t, file, "tokenizer.ggml.eos_token_id", spm ? 2 : TOKEN_NONE);
    t->unknown = read_special(t, file, "tokenizer.ggml.unknown_token_id", spm ? 0 : TOKEN_NONE);
    const uint32_t ends[] = {t->eos,
                             read_special(t, file, "tokenizer.ggml.eot_token_id", TOKEN_NONE),
                             read_special(t, file, "tokenizer.ggml.eom_token_id", TOKEN_NONE),
                             read_special(t, file, "tokenizer.ggml.fim_pad_token_id", TOKEN_NONE),
                             read_special(t, file, "tokenizer.ggml.fim_rep_token_id", TOKEN_NONE),
                             read_special(t, file, "tokenizer.ggml.fim_sep_token_id", TOKEN_NONE)};
    for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i] != TOKEN_NONE)
            t->tokens[ends[i]].ends = true;
    if (t->kind != TOKENIZER_CHARS) /* early files of Gemma 4 say false and need it */
        gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &t->add_bos);
    gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix);
}

static int read_tokenizer(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    int rc = read_kind(t, file, why);
    if (rc)
        return rc;
    t->add_space_prefix = t->kind == TOKENIZER_SPM;
    t->add_bos = t->kind != TOKENIZER_BPE;
    rc = tokenizer_read_vocab(t, file, why);
    if (!rc && t->kind != TOKENIZER_SPM)
        rc = bpe_read(t, file, why);
    if (rc)
        return rc;
    read_specials(t, file);
    if (tokenizer_collect_marks(t, file))
        return hill_fail(why, HILL_E_NOMEM, "no memory for the tokenizer");
    return 0;
}

int tokenizer_open(struct tokenizer **out, const struct gguf_file *file, struct hill_why *why)
{
    *out = NULL;
    if (why)
        why->text[0] = 0; /* a warning may come with success */
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return hill_fail(why, HILL_E_NOMEM, "no memory for the tokenizer");
    int rc = read_tokenizer(t, file, why);
    if (rc) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pre_tokenizer_close(tokenizer->pre);
    bytes_map_finish(&tokenizer->by_text);
    bytes_map_finish(&tokenizer->by_pair);
    free(tokenizer->merges);
    free(tokenizer->mark_lengths);
    free(tokenizer->text_bytes);
    free(tokenizer->piece_bytes);
    free(tokenizer->tokens);
    free(tokenizer);
}

/* ---- questions ------------------------------------------------------------------------------ */

uint32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
    return tokenizer->n_tokens;
}

uint64_t tokenizer_longest(const struct tokenizer *tokenizer)
{
    const uint64_t character = 4; /* one that is unknown */
    return tokenizer->longest > character ? tokenizer->longest : character;
}

uint32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t token)
{
    return token < tokenizer->n_tokens && tokenizer->tokens[token].ends;
}

bool tokenizer_is_reasoning_tag(const struct tokenizer *tokenizer, uint32_t token)
{
    return token < tokenizer->n_tokens && tokenizer->tokens[token].is_reasoning_tag;
}

bool tokenizer_adds_space_prefix(const struct tokenizer *tokenizer)
{
    return tokenizer->kind == TOKENIZER_SPM && tokenizer->add_space_prefix;
}

struct gguf_string tokenizer_piece(const struct tokenizer *tokenizer, uint32_t token)
{
    if (token >= tokenizer->n_tokens)
        return (struct gguf_string){"", 0};
    return tokenizer->tokens[token].piece;
}

struct gguf_string tokenizer_spelling(const struct tokenizer *tokenizer, uint32_t token)
{
    bool said = token >= tokenizer->n_tokens || (tokenizer->tokens[token].type != TOKEN_CONTROL &&
                                                 tokenizer->tokens[token].type != TOKEN_UNKNOWN);
    return said ? tokenizer_piece(tokenizer, token) : tokenizer->tokens[token].text;
}

/* ---- encoding ------------------------------------------------------------------------------- */

struct encoding {
    const struct tokenizer *t;
    struct merge_scratch scratch;
    struct token_list list;
    bool after_token; /* at the start or behind a mark: a space prefix is due */
    bool added_bos;
};

static void encode_plain(void *context, const uint8_t *text, uint64_t length)
{
    struct encoding *e = context;
    if (length == 0 || e->list.error)
        return;
    if (e->t->kind == TOKENIZER_SPM)
        spm_encode(e->t, text, length, e->t->add_space_prefix && e->after_token, &e->scratch,
                   &e->list);
    else if (e->t->kind == TOKENIZER_BPE)
        bpe_encode(e->t, text, length, &e->scratch, &e->list);
    else
        chars_encode(e->t, text, length, &e->scratch, &e->list);
    e->after_token = false;
}

static void encode_mark(void *context, uint32_t token)
{
    struct encoding *e = context;
    /* a template that spells BOS itself has said what add_bos would say */
    if (e->added_bos && e->list.count == 1 && token == e->t->bos)
        e->added_bos = false;
    else
        token_list_add(&e->list, token);
    e->after_token = true;
}

/* The pieces put together; *joined is malloc'ed where there is more than one. */
static int join_pieces(const struct prompt_piece *pieces, uint64_t n_pieces,
                       struct marked_text *out, uint8_t **joined)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < n_pieces; i++)
        if (pieces[i].bytes > MOST_TEXT_BYTES || (total += pieces[i].bytes) > MOST_TEXT_BYTES)
            return HILL_E_TOO_LONG;
    uint64_t *ends = malloc((n_pieces + 1) * sizeof *ends);
    enum prompt_kind *kinds = malloc((n_pieces + 1) * sizeof *kinds);
    *joined = n_pieces == 1 ? NULL : malloc(total + 1);
    *out = (struct marked_text){n_pieces == 1 ? (const uint8_t *)pieces[0].text : *joined, ends,
                                kinds, n_pieces};
    if (!ends || !kinds || (n_pieces != 1 && !*joined))
        return HILL_E_NOMEM;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n_pieces; i++) {
        if (*joined && pieces[i].bytes)
            memcpy(*joined + at, pieces[i].text, pieces[i].bytes);
        ends[i] = at += pieces[i].bytes;
        kinds[i] = pieces[i].kind;
    }
    return 0;
}

static int encode_pieces(const struct tokenizer *tokenizer, const struct prompt_piece *pieces,
                         uint64_t n_pieces, bool add_bos, bool goes_on, uint32_t **tokens,
                         uint64_t *count)
{
    struct encoding e = {.t = tokenizer, .after_token = !goes_on};
    struct marked_text text = {0};
    uint8_t *joined = NULL;
    *tokens = NULL;
    *count = 0;
    e.list.error = join_pieces(pieces, n_pieces, &text, &joined);
    e.added_bos = add_bos && tokenizer->add_bos && tokenizer->bos != TOKEN_NONE;
    if (!e.list.error && e.added_bos)
        token_list_add(&e.list, tokenizer->bos);
    if (!e.list.error) {
        const struct mark_sink sink = {encode_plain, encode_mark, &e};
        tokenizer_cut_marks(tokenizer, &text, &sink);
    }
    merge_scratch_finish(&e.scratch);
    free((void *)text.ends);
    free((void *)text.kinds);
    free(joined);
    if (!e.list.error && !e.list.items && !(e.list.items = malloc(sizeof *e.list.items)))
        e.list.error = HILL_E_NOMEM; /* no tokens are a valid, freeable list */
    if (e.list.error) {
        free(e.list.items);
        return e.list.error;
    }
    *tokens = e.list.items;
    *count = e.list.count;
    return 0;
}

int tokenizer_encode_pieces(const struct tokenizer *tokenizer, const struct prompt_piece *pieces,
                            uint64_t n_pieces, bool add_bos, uint32_t **tokens, uint64_t *count)
{
    return encode_pieces(tokenizer, pieces, n_pieces, add_bos, false, tokens, count);
}

int tokenizer_encode_more(const struct tokenizer *tokenizer, const struct prompt_piece *pieces,
                          uint64_t n_pieces, uint32_t **tokens, uint64_t *count)
{
    return encode_pieces(tokenizer, pieces, n_pieces, false, true, tokens, count);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint64_t length,
                     bool add_bos, uint32_t **tokens, uint64_t *count)
{
    const struct prompt_piece piece = {text, length, PROMPT_TEXT};
    return tokenizer_encode_pieces(tokenizer, &piece, 1, add_bos, tokens, count);
}
