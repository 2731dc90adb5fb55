/*
 * model/tokenizer_marks.c - cut tokens that are spelt out in a text out of it. See
 * tokenizer_internal.h.
 *
 * Marks are control, unknown and user-defined tokens: no merge makes them, they are found as they
 * are spelt, the longest ones first, those of one length from the left. What kind of piece each
 * byte of the text comes from decides which of them count: a control token that a person typed
 * stays text, so nobody gets one into a prompt by spelling it.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_internal.h"

static int longer_first(const void *a, const void *b)
{
    uint64_t left = ((const struct mark_length *)a)->length;
    uint64_t right = ((const struct mark_length *)b)->length;
    return left < right ? 1 : left > right ? -1 : 0;
}

/* Phi 3's tokenizer.json lets the white space behind its marks be part of them; GGUF files do not
 * say so. */
static void set_strips(struct tokenizer *t, const struct gguf_file *file)
{
    struct gguf_string arch;
    if (t->kind != TOKENIZER_SPM || !gguf_get_string(file, "general.architecture", &arch) ||
        arch.length != 4 || memcmp(arch.data, "phi3", 4) != 0)
        return;
    static const char *const keep[] = {"<unk>", "<s>", "<|endoftext|>"};
    for (uint32_t i = 0; i < t->n_tokens; i++)
        t->tokens[i].strips_right = token_is_mark(&t->tokens[i]);
    for (unsigned i = 0; i < sizeof keep / sizeof keep[0]; i++) {
        uint32_t token = tokenizer_lookup(t, keep[i], strlen(keep[i]));
        if (token != TOKEN_NONE)
            t->tokens[token].strips_right = false;
    }
}

int tokenizer_collect_marks(struct tokenizer *t, const struct gguf_file *file)
{
    uint64_t count = 0, kept = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        count += token_is_mark(&t->tokens[i]);
    struct mark_length *lengths = t->mark_lengths = calloc(count + 1, sizeof *lengths);
    if (!lengths)
        return HILL_E_NOMEM;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        const struct token *token = &t->tokens[i];
        if (!token_is_mark(token) || !token->text.length)
            continue;
        uint8_t first = (uint8_t)token->text.data[0];
        lengths[kept].length = token->text.length;
        lengths[kept++].first_bytes[first / 64] = UINT64_C(1) << first % 64;
    }
    set_strips(t, file);
    qsort(lengths, kept, sizeof *lengths, longer_first);
    for (uint64_t i = 0; i < kept; i++) {
        struct mark_length *last = t->n_mark_lengths ? &lengths[t->n_mark_lengths - 1] : NULL;
        if (!last || last->length != lengths[i].length)
            lengths[t->n_mark_lengths++] = lengths[i];
        else
            for (int word = 0; word < 4; word++)
                last->first_bytes[word] |= lengths[i].first_bytes[word];
    }
    return 0;
}

/* ---- which marks count ---------------------------------------------------------------------- */

/* Could the token's text steer a chat? User-defined tokens that are letters, white space or the
 * like are text as any other. */
static bool looks_like_mark(struct gguf_string text)
{
    char first = text.data[0], last = text.data[text.length - 1];
    return (first == '<' || first == '[') && (last == '>' || last == ']');
}

static bool kind_allows(enum prompt_kind kind, const struct token *token)
{
    switch (kind) {
    case PROMPT_SPECIAL:
        return true;
    case PROMPT_LITERAL:
        return token->type == TOKEN_USER_DEFINED && !looks_like_mark(token->text);
    default:
        return token->type == TOKEN_USER_DEFINED;
    }
}

/* Do all the pieces that start..start + length touches allow the token? */
static bool allowed(const struct marked_text *text, const struct token *token, uint64_t start)
{
    uint64_t low = 0, high = text->n_pieces - 1;
    while (low < high) { /* the first piece that ends behind start */
        uint64_t middle = low + (high - low) / 2;
        if (text->ends[middle] > start)
            high = middle;
        else
            low = middle + 1;
    }
    for (uint64_t i = low; i < text->n_pieces; i++) {
        bool empty = i > 0 && text->ends[i] == text->ends[i - 1];
        if (!empty && !kind_allows(text->kinds[i], token))
            return false;
        if (text->ends[i] >= start + token->text.length)
            break;
    }
    return true;
}

/* ---- cutting -------------------------------------------------------------------------------- */

struct cutter {
    const struct tokenizer *t;
    const struct marked_text *text;
    const struct mark_sink *sink;
};

/* The first mark of that length in *at..end; TOKEN_NONE when there is none. */
static uint32_t find_mark(const struct cutter *c, const struct mark_length *which, uint64_t *at,
                          uint64_t end)
{
    const uint8_t *text = c->text->text;
    for (; end >= which->length && *at <= end - which->length; ++*at) {
        uint8_t first = text[*at];
        if (!(which->first_bytes[first / 64] >> first % 64 & 1))
            continue;
        uint32_t token = tokenizer_lookup(c->t, text + *at, which->length);
        if (token != TOKEN_NONE && token_is_mark(&c->t->tokens[token]) &&
            allowed(c->text, &c->t->tokens[token], *at))
            return token;
    }
    return TOKEN_NONE;
}

static bool is_space(uint8_t byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Cut marks of mark_lengths[level...] out of start..end. It recurses only behind a match, so at
 * most as deep as different lengths fit into the text together. */
static void cut_from(const struct cutter *c, uint64_t start, uint64_t end, uint64_t level)
{
    for (; level < c->t->n_mark_lengths; level++) {
        const struct mark_length *which = &c->t->mark_lengths[level];
        uint64_t at = start;
        uint32_t token;
        while ((token = find_mark(c, which, &at, end)) != TOKEN_NONE) {
            cut_from(c, start, at, level + 1);
            c->sink->mark(c->sink->context, token);
            at += which->length;
            if (c->t->tokens[token].strips_right)
                while (at < end && is_space(c->text->text[at]))
                    at++;
            start = at;
        }
    }
    c->sink->plain(c->sink->context, c->text->text + start, end - start);
}

void tokenizer_cut_marks(const struct tokenizer *t, const struct marked_text *text,
                         const struct mark_sink *sink)
{
    const struct cutter c = {t, text, sink};
    if (text->n_pieces)
        cut_from(&c, 0, text->ends[text->n_pieces - 1], 0);
}
