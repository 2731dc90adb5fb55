/*
 * model/tokenizer_spm.c - SentencePiece-style encoding: the text's characters merge into tokens,
 * highest score first; a character that ends up outside the vocabulary is spelt in byte tokens. See
 * tokenizer_internal.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_internal.h"

#define SPACE       "\xE2\x96\x81" /* U+2581, the vocabulary's spelling of a space */
#define SPACE_BYTES 3

static bool lookup_text(const struct tokenizer *t, const uint8_t *text, const struct symbol *left,
                        const struct symbol *right, double *priority, uint32_t *id)
{
    *id = tokenizer_lookup_plain(t, text + left->offset, (uint64_t)left->length + right->length);
    if (*id == TOKEN_NONE)
        return false;
    *priority = t->tokens[*id].score;
    return true;
}

uint8_t *tokenizer_escape_spaces(const uint8_t *text, uint64_t length, bool space_prefix,
                                 uint64_t *escaped_length)
{
    uint64_t spaces = space_prefix;
    for (uint64_t i = 0; i < length; i++)
        spaces += text[i] == ' ';
    uint8_t *escaped = malloc(length + spaces * SPACE_BYTES + 1);
    uint8_t *at = escaped;
    if (!escaped)
        return NULL;
    if (space_prefix)
        at = (uint8_t *)mempcpy(at, SPACE, SPACE_BYTES);
    for (uint64_t i = 0; i < length; i++)
        if (text[i] == ' ')
            at = (uint8_t *)mempcpy(at, SPACE, SPACE_BYTES);
        else
            *at++ = text[i];
    *escaped_length = (uint64_t)(at - escaped);
    return escaped;
}

int tokenizer_add_characters(const struct tokenizer *t, const uint8_t *text, uint64_t start,
                             uint64_t end, struct merge_scratch *scratch)
{
    int rc = 0;
    for (uint64_t at = start; !rc && at < end;) {
        /* a byte of no character stands alone; llama.cpp lets its announced length swallow what
         * follows, a space's spelling included, which then does not come back as a space */
        uint32_t bytes = utf8_char_bytes(text + at, end - at);
        if (bytes == 0)
            bytes = 1;
        rc = merge_add_symbol(scratch, (uint32_t)at, bytes,
                              tokenizer_lookup_plain(t, text + at, bytes));
        at += bytes;
    }
    return rc;
}

static void add_symbol_tokens(const struct tokenizer *t, const uint8_t *text,
                              const struct symbol *symbol, struct token_list *list)
{
    uint32_t token = tokenizer_lookup_plain(t, text + symbol->offset, symbol->length);
    if (token != TOKEN_NONE) {
        token_list_add(list, token);
        return;
    }
    for (uint32_t i = 0; i < symbol->length; i++)
        tokenizer_add_byte(t, text[symbol->offset + i], list);
}

void spm_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length, bool space_prefix,
                struct merge_scratch *scratch, struct token_list *list)
{
    uint64_t escaped_length = 0;
    uint8_t *escaped = tokenizer_escape_spaces(text, length, space_prefix, &escaped_length);
    int rc = escaped ? 0 : HILL_E_NOMEM;
    scratch->n_symbols = 0;
    if (!rc)
        rc = tokenizer_add_characters(t, escaped, 0, escaped_length, scratch);
    if (!rc)
        rc = merge_run(t, escaped, scratch, lookup_text);
    for (uint64_t i = 0; !rc && i < scratch->n_symbols; i++)
        if (scratch->symbols[i].length)
            add_symbol_tokens(t, escaped, &scratch->symbols[i], list);
    if (rc)
        list->error = rc;
    free(escaped);
}
