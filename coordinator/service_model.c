/*
 * coordinator/service_model.c - what a client that renders chats has to know of the model, the
 * token that ends an answer of one, and texts as tokens and back.
 *
 * Who calls it: service.c, service_intake.c. Failure: a model without a template or without such a
 * token has none; what cannot be tokenised, or would keep the loop for long, is answered by a Reply
 * with a code and one line. Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <stdlib.h>
#include <string.h>

#define TOKENIZE_BYTES_MAX (4u << 20)

static ProtobufCBinaryData to_wire(struct gguf_string text)
{
    return (ProtobufCBinaryData){text.length, (uint8_t *)text.data};
}

void model_take_info_request(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct settings *s = sv->settings;
    Hill__ModelInfo info = HILL__MODEL_INFO__INIT;
    struct gguf_string text = {"", 0};
    gguf_get_string(s->model, "tokenizer.chat_template", &text);
    info.path = (char *)s->model_path;
    info.chat_template = to_wire(text);
    info.bos_text =
        to_wire(gguf_string_at(s->model, "tokenizer.ggml.tokens", tokenizer_bos(s->tokenizer)));
    info.eos_text =
        to_wire(gguf_string_at(s->model, "tokenizer.ggml.tokens", tokenizer_eos(s->tokenizer)));
    info.ctx_tokens = s->epoch.plan.ctx_tokens;
    info.sampling = (Hill__Sampling *)&s->sampling;
    router_to_client(sv->router, &a->from, &PROTO_MESSAGE(MODEL_INFO, model_info, &info));
}

/* ---- text as tokens, tokens as text --------------------------------------------------------- */

/* Everybody waits meanwhile. */
static bool is_too_long(const Hill__Tokenize *order)
{
    size_t bytes = 0;
    for (size_t i = 0; i < order->n_pieces; i++)
        bytes += order->pieces[i]->text.len;
    return bytes > TOKENIZE_BYTES_MAX;
}

static int encode(const struct tokenizer *tokenizer, const Hill__Tokenize *order, uint32_t **tokens,
                  uint64_t *count)
{
    size_t n = order->n_pieces;
    struct prompt_piece *pieces = calloc(n + 1, sizeof *pieces);
    if (!pieces)
        return HILL_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct prompt_piece){(const char *)order->pieces[i]->text.data,
                                          order->pieces[i]->text.len,
                                          (enum prompt_kind)order->pieces[i]->kind};
    int code = tokenizer_encode_pieces(tokenizer, pieces, n, order->add_bos, tokens, count);
    free(pieces);
    return code;
}

static void answer_tokens(struct service *sv, struct arrival *a, Hill__Tokens *tokens)
{
    int code = router_to_client(sv->router, &a->from, &PROTO_MESSAGE(TOKENS, tokens, tokens));
    if (code == HILL_E_TOO_LONG)
        router_reply(sv->router, &a->from, code, "the answer is larger than a message can be");
}

void model_take_tokenize(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const Hill__Tokenize *order = a->message->tokenize;
    Hill__Tokens answer = HILL__TOKENS__INIT;
    uint64_t count = 0;
    if (is_too_long(order)) {
        router_reply(sv->router, &a->from, HILL_E_INVALID, "the text is longer than 4 MiB");
        return;
    }
    int code = encode(sv->settings->tokenizer, order, &answer.tokens, &count);
    ProtobufCBinaryData *pieces =
        code || !order->with_pieces ? NULL : calloc(count + 1, sizeof *pieces);
    if (!code && order->with_pieces && !pieces)
        code = HILL_E_NOMEM;
    if (code) {
        struct hill_why why;
        hill_fail(&why, code, "cannot tokenise the text: %s", hill_strerror(code));
        router_reply(sv->router, &a->from, code, why.text);
    } else {
        for (uint64_t i = 0; pieces && i < count; i++)
            pieces[i] = to_wire(tokenizer_spelling(sv->settings->tokenizer, answer.tokens[i]));
        answer.n_tokens = count;
        answer.n_pieces = pieces ? count : 0;
        answer.pieces = pieces;
        answer_tokens(sv, a, &answer);
    }
    free(pieces);
    free(answer.tokens);
}

static uint64_t write_token(struct detokenizer *stream, uint32_t token, char *out)
{
    const struct gguf_string spelt = tokenizer_spelling(stream->tokenizer, token);
    if (!spelt.length || tokenizer_piece(stream->tokenizer, token).length)
        return detokenizer_push(stream, token, out);
    uint64_t waited = detokenizer_flush(stream, out);
    memcpy(out + waited, spelt.data, spelt.length);
    return waited + spelt.length;
}

/* All that is there: control tokens as they are spelt, and the first space. HILL_E_INVALID: a token
 * outside the vocabulary, in *bad. */
static int decode(const struct tokenizer *tokenizer, const Hill__Detokenize *order, char **text,
                  size_t *bytes, uint32_t *bad)
{
    struct detokenizer stream;
    size_t room = 16;
    detokenizer_init(&stream, tokenizer, true);
    for (size_t i = 0; i < order->n_tokens; i++) {
        *bad = order->tokens[i];
        if (order->tokens[i] >= tokenizer_vocab_size(tokenizer))
            return HILL_E_INVALID;
        room += tokenizer_spelling(tokenizer, order->tokens[i]).length * 3 + 16;
    }
    *text = malloc(room);
    if (!*text)
        return HILL_E_NOMEM;
    for (size_t i = 0; i < order->n_tokens; i++)
        *bytes += write_token(&stream, order->tokens[i], *text + *bytes);
    *bytes += detokenizer_flush(&stream, *text + *bytes);
    return 0;
}

void model_take_detokenize(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    Hill__Tokens answer = HILL__TOKENS__INIT;
    struct hill_why why;
    char *text = NULL;
    uint32_t bad = 0;
    int code =
        decode(sv->settings->tokenizer, a->message->detokenize, &text, &answer.text.len, &bad);
    answer.text.data = (uint8_t *)text;
    if (code == HILL_E_INVALID)
        hill_fail(&why, code, "token id %u is outside the vocabulary of %u", bad,
                  tokenizer_vocab_size(sv->settings->tokenizer));
    else if (code)
        hill_fail(&why, code, "out of memory for the text of %zu tokens",
                  a->message->detokenize->n_tokens);
    if (code)
        router_reply(sv->router, &a->from, code, why.text);
    else
        answer_tokens(sv, a, &answer);
    free(text);
}

/* ---- chats ---------------------------------------------------------------------------------- */

/* A control token, or one that vocabularies without such tokens spell like one: <|end|>,
 * [/INST]. */
static bool ends_answers(const struct gguf_string text)
{
    const char *t = text.data;
    uint64_t n = text.length;
    return n == 0 ||
           (n > 2 && ((t[0] == '<' && t[n - 1] == '>') || (t[0] == '[' && t[n - 1] == ']')));
}

uint32_t model_answer_end(const struct tokenizer *tokenizer, const char *text, uint64_t bytes)
{
    const struct prompt_piece piece = {text, bytes, PROMPT_SPECIAL};
    uint32_t *tokens = NULL, end = TOKEN_NONE;
    uint64_t count = 0;
    if (!bytes || tokenizer_encode_pieces(tokenizer, &piece, 1, false, &tokens, &count))
        return TOKEN_NONE;
    for (uint64_t i = 0; i < count && end == TOKEN_NONE; i++)
        if (ends_answers(tokenizer_piece(tokenizer, tokens[i])))
            end = tokens[i];
    free(tokens);
    return end;
}
