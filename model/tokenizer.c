/*
 * model/tokenizer.c - open and close a tokenizer, answer for its tokens, encode a text. See
 * tokenizer.h.
 *
 * User-defined tokens are cut out of the text first, the longest ones first, each from the left;
 * what lies between goes to the encoder of the vocabulary's kind. Control tokens written out in the
 * text are text: nobody gets a control token into a prompt by spelling it.
 */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_internal.h"

/* Three bytes for each space must still fit the 32-bit offsets of the encoders. */
#define MOST_TEXT_BYTES (UINT64_C(1) << 30)

_Static_assert(TOKEN_NONE == BYTES_MAP_NONE, "look-ups hand the map's answer on");

/* ---- opening -------------------------------------------------------------------------------- */

static bool string_is(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && memcmp(string.data, text, string.length) == 0;
}

static int read_kind(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    struct gguf_string model;
    if (!gguf_get_string(file, "tokenizer.ggml.model", &model))
        return hill_fail(why, HILL_E_DAMAGED,
                         "model %.200s has no tokenizer (tokenizer.ggml.model)", gguf_path(file));
    if (string_is(model, "llama"))
        t->kind = TOKENIZER_SPM;
    else if (string_is(model, "gpt2"))
        t->kind = TOKENIZER_BPE;
    else
        return hill_fail(
            why, HILL_E_UNSUPPORTED,
            "the tokenizer of model %.200s is '%.*s'; 'llama' and 'gpt2' are supported",
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
                             read_special(t, file, "tokenizer.ggml.eom_token_id", TOKEN_NONE)};
    for (unsigned i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i] != TOKEN_NONE)
            t->tokens[ends[i]].ends = true;
    gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &t->add_bos);
    gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix);
}

static int longer_first(const void *a, const void *b)
{
    uint64_t left = ((const struct user_length *)a)->length;
    uint64_t right = ((const struct user_length *)b)->length;
    return left < right ? 1 : left > right ? -1 : 0;
}

static int collect_user_defined(struct tokenizer *t)
{
    uint64_t count = 0, kept = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        count += t->tokens[i].type == TOKEN_USER_DEFINED;
    struct user_length *lengths = t->user_lengths = calloc(count + 1, sizeof *lengths);
    if (!lengths)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        const struct token *token = &t->tokens[i];
        if (token->type != TOKEN_USER_DEFINED || !token->text.length)
            continue;
        uint8_t first = (uint8_t)token->text.data[0];
        lengths[kept].length = token->text.length;
        lengths[kept++].first_bytes[first / 64] = UINT64_C(1) << first % 64;
    }
    qsort(lengths, kept, sizeof *lengths, longer_first);
    for (uint64_t i = 0; i < kept; i++) {
        struct user_length *last = t->n_user_lengths ? &lengths[t->n_user_lengths - 1] : NULL;
        if (!last || last->length != lengths[i].length)
            lengths[t->n_user_lengths++] = lengths[i];
        else
            for (int word = 0; word < 4; word++)
                last->first_bytes[word] |= lengths[i].first_bytes[word];
    }
    return 0;
}

static int read_tokenizer(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    int rc = read_kind(t, file, why);
    if (rc)
        return rc;
    t->add_bos = t->add_space_prefix = t->kind == TOKENIZER_SPM;
    rc = tokenizer_read_vocab(t, file, why);
    if (!rc && t->kind == TOKENIZER_BPE)
        rc = bpe_read(t, file, why);
    if (rc)
        return rc;
    read_specials(t, file);
    if (collect_user_defined(t))
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
    free(tokenizer->user_lengths);
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

/* ---- encoding ------------------------------------------------------------------------------- */

void token_list_add(struct token_list *list, uint32_t token)
{
    if (list->count == list->capacity) {
        uint64_t more = list->capacity ? list->capacity * 2 : 256;
        uint32_t *moved = realloc(list->items, more * sizeof *moved);
        if (!moved) {
            list->error = HILL_E_NOMEM;
            return;
        }
        list->items = moved;
        list->capacity = more;
    }
    list->items[list->count++] = token;
}

struct encoding {
    const struct tokenizer *t;
    struct merge_scratch scratch;
    struct token_list list;
    bool after_token; /* at the start or behind a special token: a space prefix is due */
};

static void encode_plain(struct encoding *e, const uint8_t *text, uint64_t length)
{
    if (length == 0 || e->list.error)
        return;
    if (e->t->kind == TOKENIZER_SPM)
        spm_encode(e->t, text, length, e->t->add_space_prefix && e->after_token, &e->scratch,
                   &e->list);
    else
        bpe_encode(e->t, text, length, &e->scratch, &e->list);
    e->after_token = false;
}

/* The first user-defined token of that length at or behind *at; TOKEN_NONE when there is none. */
static uint32_t find_user_defined(const struct tokenizer *t, const struct user_length *which,
                                  const uint8_t *text, uint64_t length, uint64_t *at)
{
    for (; length >= which->length && *at <= length - which->length; ++*at) {
        uint8_t first = text[*at];
        if (!(which->first_bytes[first / 64] >> first % 64 & 1))
            continue;
        uint32_t token = tokenizer_lookup(t, text + *at, which->length);
        if (token != TOKEN_NONE && t->tokens[token].type == TOKEN_USER_DEFINED)
            return token;
    }
    return TOKEN_NONE;
}

/* Cut tokens of user_lengths[level...] out. It recurses only behind a match, so at most as deep as
 * different lengths fit into the text together. */
static void encode_from(struct encoding *e, const uint8_t *text, uint64_t length, uint64_t level)
{
    for (; level < e->t->n_user_lengths; level++) {
        const struct user_length *which = &e->t->user_lengths[level];
        uint64_t done = 0, at = 0;
        uint32_t token;
        while ((token = find_user_defined(e->t, which, text, length, &at)) != TOKEN_NONE) {
            encode_from(e, text + done, at - done, level + 1);
            token_list_add(&e->list, token);
            e->after_token = true;
            done = at += which->length;
        }
        text += done;
        length -= done;
    }
    encode_plain(e, text, length);
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, uint64_t length,
                     bool add_special, uint32_t **tokens, uint64_t *count)
{
    struct encoding e = {.t = tokenizer, .after_token = true};
    *tokens = NULL;
    *count = 0;
    if (length > MOST_TEXT_BYTES)
        return HILL_E_TOO_LONG;
    if (add_special && tokenizer->add_bos && tokenizer->bos != TOKEN_NONE)
        token_list_add(&e.list, tokenizer->bos);
    encode_from(&e, (const uint8_t *)text, length, 0);
    merge_scratch_finish(&e.scratch);
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
