/*
 * model/tokenizer_bpe.c - ranked merges: of each pre-token's bytes, or of each line's characters.
 * See tokenizer_internal.h.
 *
 * The vocabulary spells a byte as a printable character (GPT-2's table); here a byte becomes a
 * symbol at once, a token id or, where the byte has no token, n_tokens + byte. A merge is a pair of
 * symbols, a rank and the token that it makes; one that makes no token of the vocabulary could only
 * make what cannot be spoken, and is ignored.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "model/tokenizer_internal.h"

/* ---- merges --------------------------------------------------------------------------------- */

/* The symbol spelt so: a token or a byte without one; TOKEN_NONE for neither. */
static uint32_t symbol_of(const struct tokenizer *t, const char *text, uint64_t length)
{
    uint32_t token = tokenizer_lookup(t, text, length);
    if (token != TOKEN_NONE)
        return token;
    for (int byte = 0; byte < 256 && length <= 2 && t->kind == TOKENIZER_BPE; byte++) {
        uint8_t spelling[2];
        uint32_t bytes = utf8_write_short(tokenizer_byte_code_point((uint8_t)byte), spelling);
        if (bytes == length && memcmp(spelling, text, length) == 0)
            return t->byte_symbols[byte];
    }
    return TOKEN_NONE;
}

/* "left right" -> merge; false when a part or the result is outside the vocabulary. */
static bool parse_merge(const struct tokenizer *t, struct gguf_string line, char *joined,
                        struct bpe_merge *merge)
{
    /* a part may be a space itself nowhere (it is spelt as U+0120), so the first space after a byte
     * separates */
    const char *space = line.length < 3 ? NULL : memchr(line.data + 1, ' ', line.length - 1);
    if (!space)
        return false;
    uint64_t left = (uint64_t)(space - line.data), right = line.length - left - 1;
    if (left + right > t->longest)
        return false;
    memcpy(joined, line.data, left);
    memcpy(joined + left, space + 1, right);
    merge->pair[0] = symbol_of(t, line.data, left);
    merge->pair[1] = symbol_of(t, space + 1, right);
    merge->result = tokenizer_lookup_plain(t, joined, left + right);
    return merge->pair[0] != TOKEN_NONE && merge->pair[1] != TOKEN_NONE &&
           merge->result != TOKEN_NONE;
}

static int read_merges(struct tokenizer *t, const struct gguf_value *array, struct hill_why *why)
{
    uint64_t count = array ? array->count : 0, index = 0, kept = 0;
    const uint8_t *cursor = array ? array->data : NULL;
    struct gguf_string line;
    if (count >= BYTES_MAP_NONE)
        return hill_fail(why, HILL_E_UNSUPPORTED, "the tokenizer has absurdly many merges");
    char *joined = malloc(t->longest + 1);
    t->merges = calloc(count + 1, sizeof *t->merges);
    if (!joined || !t->merges || bytes_map_init(&t->by_pair, count)) {
        free(joined);
        return hill_fail(why, HILL_E_NOMEM, "no memory for the tokenizer's merges");
    }
    while (count && gguf_next_string(array, &cursor, &index, &line)) {
        struct bpe_merge *merge = &t->merges[kept];
        if (!parse_merge(t, line, joined, merge) ||
            bytes_map_get(&t->by_pair, merge->pair, sizeof merge->pair) != BYTES_MAP_NONE)
            continue; /* of a pair that stands twice the first counts */
        merge->rank = (uint32_t)index;
        bytes_map_put(&t->by_pair, merge->pair, sizeof merge->pair, (uint32_t)kept++);
    }
    free(joined);
    return 0;
}

int bpe_read(struct tokenizer *t, const struct gguf_file *file, struct hill_why *why)
{
    struct gguf_string pre = {"", 0};
    gguf_get_string(file, "tokenizer.ggml.pre", &pre);
    if (t->kind == TOKENIZER_BPE) {
        int rc = pre_tokenizer_open(&t->pre, pre, why);
        if (rc)
            return rc;
        t->ignore_merges = pre_tokenizer_ignores_merges(t->pre);
        t->add_bos = pre_tokenizer_adds_bos(t->pre);
    }
    const struct gguf_value *merges = gguf_find(file, "tokenizer.ggml.merges");
    if (merges &&
        (merges->type != GGUF_ARRAY || (merges->item_type != GGUF_STRING && merges->count > 0)))
        return hill_fail(why, HILL_E_DAMAGED, "tokenizer.ggml.merges is no list of strings");
    return read_merges(t, merges, why);
}

/* ---- encoding ------------------------------------------------------------------------------- */

static bool lookup_pair(const struct tokenizer *t, const uint8_t *text, const struct symbol *left,
                        const struct symbol *right, double *priority, uint32_t *id)
{
    (void)text;
    const uint32_t pair[2] = {left->id, right->id};
    uint32_t index = bytes_map_get(&t->by_pair, pair, sizeof pair);
    if (index == BYTES_MAP_NONE)
        return false;
    *priority = -(double)t->merges[index].rank;
    *id = t->merges[index].result;
    return true;
}

/* The pre-token as the vocabulary would spell it: is it a token? */
static uint32_t whole_token(const struct tokenizer *t, const uint8_t *text, uint64_t length)
{
    uint8_t spelling[1024];
    uint64_t used = 0;
    if (length > sizeof spelling / 2 || length > t->longest)
        return TOKEN_NONE;
    for (uint64_t i = 0; i < length; i++)
        used += utf8_write_short(tokenizer_byte_code_point(text[i]), spelling + used);
    return tokenizer_lookup_plain(t, spelling, used);
}

static void encode_word(const struct tokenizer *t, const uint8_t *text, uint64_t length,
                        struct merge_scratch *scratch, struct token_list *list)
{
    uint32_t whole = t->ignore_merges ? whole_token(t, text, length) : TOKEN_NONE;
    if (whole != TOKEN_NONE) {
        token_list_add(list, whole);
        return;
    }
    scratch->n_symbols = 0;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < length; i++)
        rc = merge_add_symbol(scratch, (uint32_t)i, 1, t->byte_symbols[text[i]]);
    if (!rc)
        rc = merge_run(t, text, scratch, lookup_pair);
    if (rc)
        list->error = rc;
    for (uint64_t i = 0; !rc && i < scratch->n_symbols; i++) {
        const struct symbol *symbol = &scratch->symbols[i];
        if (symbol->length && symbol->id < t->n_tokens)
            token_list_add(list, symbol->id);
        else if (symbol->length)
            tokenizer_add_byte(t, (uint8_t)(symbol->id - t->n_tokens), list);
    }
}

void bpe_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length,
                struct merge_scratch *scratch, struct token_list *list)
{
    struct cuts cuts = {0};
    int rc = pre_tokenizer_split(t->pre, text, length, &cuts);
    uint64_t start = 0;
    if (rc)
        list->error = rc;
    for (uint64_t i = 0; !list->error && i < cuts.count; start = cuts.ends[i++])
        encode_word(t, text + start, cuts.ends[i] - start, scratch, list);
    free(cuts.ends);
}

/* ---- characters ----------------------------------------------------------------------------- */

/* Lines and runs of line feeds do not merge with each other; such a run that is a token is taken
 * whole, as the model's normalizer has it. */
static void encode_line(const struct tokenizer *t, const uint8_t *text, uint64_t start,
                        uint64_t end, struct merge_scratch *scratch, struct token_list *list)
{
    uint32_t whole =
        text[start] == '\n' ? tokenizer_lookup_plain(t, text + start, end - start) : TOKEN_NONE;
    if (whole != TOKEN_NONE) {
        token_list_add(list, whole);
        return;
    }
    scratch->n_symbols = 0;
    int rc = tokenizer_add_characters(t, text, start, end, scratch);
    if (!rc)
        rc = merge_run(t, text, scratch, lookup_pair);
    if (rc)
        list->error = rc;
    for (uint64_t i = 0; !rc && i < scratch->n_symbols; i++) {
        const struct symbol *symbol = &scratch->symbols[i];
        if (symbol->length && symbol->id != TOKEN_NONE)
            token_list_add(list, symbol->id);
        else
            for (uint32_t byte = 0; byte < symbol->length; byte++)
                tokenizer_add_byte(t, text[symbol->offset + byte], list);
    }
}

void chars_encode(const struct tokenizer *t, const uint8_t *text, uint64_t length,
                  struct merge_scratch *scratch, struct token_list *list)
{
    uint64_t escaped_length = 0, end;
    uint8_t *escaped = tokenizer_escape_spaces(text, length, false, &escaped_length);
    if (!escaped)
        list->error = HILL_E_NOMEM;
    for (uint64_t start = 0; !list->error && start < escaped_length; start = end) {
        bool feeds = escaped[start] == '\n';
        for (end = start + 1; end < escaped_length && (escaped[end] == '\n') == feeds;)
            end++;
        encode_line(t, escaped, start, end, scratch, list);
    }
    free(escaped);
}
