/* gpu_worker/json_answer.c - see json_answer.h. */
#include "gpu_worker/json_answer.h"

#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

void json_tokens_close(struct json_tokens *t)
{
    if (!t)
        return;
    free(t->first);
    free(t->offsets);
    free(t->bytes);
    free(t);
}

int json_tokens_make(struct json_tokens **out, const struct gguf_string *pieces, uint32_t n)
{
    struct json_tokens *t = calloc(1, sizeof *t);
    uint64_t total = 0;
    *out = NULL;
    for (uint32_t i = 0; i < n; i++)
        total += pieces[i].length;
    if (!t || total > UINT32_MAX) {
        free(t);
        return HILL_E_NOMEM;
    }
    t->n = n;
    t->first = calloc((size_t)n + 1, 1);
    t->offsets = calloc((size_t)n + 1, sizeof *t->offsets);
    t->bytes = malloc(total + 1);
    if (!t->first || !t->offsets || !t->bytes) {
        json_tokens_close(t);
        return HILL_E_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = (uint32_t)pieces[i].length;
        if (length)
            memcpy(t->bytes + t->offsets[i], pieces[i].data, length);
        t->first[i] = length ? t->bytes[t->offsets[i]] : 0;
        t->offsets[i + 1] = t->offsets[i] + length;
    }
    *out = t;
    return 0;
}

int json_tokens_open(struct json_tokens **out, const struct gguf_file *file, struct hill_why *why)
{
    struct tokenizer *tokenizer;
    *out = NULL;
    int rc = tokenizer_open(&tokenizer, file, why);
    if (rc)
        return rc;
    uint32_t n = tokenizer_vocab_size(tokenizer);
    struct gguf_string *pieces = calloc((size_t)n + 1, sizeof *pieces);
    for (uint32_t i = 0; pieces && i < n; i++) /* a reasoning tag would be text of a string */
        pieces[i] = tokenizer_is_reasoning_tag(tokenizer, i) ? (struct gguf_string){"", 0}
                                                             : tokenizer_piece(tokenizer, i);
    rc = pieces ? json_tokens_make(out, pieces, n) : HILL_E_NOMEM;
    free(pieces);
    tokenizer_close(tokenizer);
    return rc ? hill_fail(why, rc, "out of memory for the bytes of %u tokens", n) : 0;
}

/* A state that has changed. */
static void look_ahead(struct json_answer *a)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        struct json_acceptor next = a->at;
        a->may_begin[byte] = json_acceptor_take(&next, (uint8_t)byte);
    }
}

static bool take_bytes(struct json_acceptor *at, const struct json_tokens *t, uint32_t id)
{
    for (uint32_t i = t->offsets[id]; i < t->offsets[id + 1]; i++)
        if (!json_acceptor_take(at, t->bytes[i]))
            return false;
    return t->offsets[id] < t->offsets[id + 1];
}

bool json_answer_allows(const void *answer, uint32_t id)
{
    const struct json_answer *a = answer;
    if (id >= a->tokens->n || !a->may_begin[a->tokens->first[id]])
        return false;
    struct json_acceptor at = a->at;
    if (!take_bytes(&at, a->tokens, id))
        return false;
    for (size_t i = 0; i < a->n_stops; i++)
        if (a->stops[i] == id)
            return false;
    return true;
}

int json_answer_take(struct json_answer *a, uint32_t id)
{
    if (id >= a->tokens->n || !take_bytes(&a->at, a->tokens, id))
        return HILL_E_INVALID;
    look_ahead(a);
    return 0;
}

int json_answer_begin(struct json_answer *a, const struct json_tokens *tokens, const uint32_t *ids,
                      uint32_t n)
{
    a->tokens = tokens;
    json_acceptor_init(&a->at);
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= tokens->n || !take_bytes(&a->at, tokens, ids[i]))
            return HILL_E_INVALID;
    look_ahead(a);
    return 0;
}

bool json_answer_is_complete(const struct json_answer *a)
{
    return a->tokens && json_acceptor_is_complete(&a->at);
}
