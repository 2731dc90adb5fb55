/*
 * coordinator/service_model.c - what a client that renders chats has to know of the model, and the
 * token that ends an answer of one.
 *
 * Who calls it: service.c, service_intake.c. Failure: a model without a template or without such a token has
 * none; nothing here fails but for memory. Concurrency: one thread.
 */
#include "coordinator/service.h"

#include <stdlib.h>
#include <string.h>

static ProtobufCBinaryData to_wire(struct gguf_string text)
{
    return (ProtobufCBinaryData){text.length, (uint8_t *)text.data};
}

void model_take_info_request(void *owner, struct arrival *a)
{
    struct service *sv = owner;
    const struct settings *s = sv->settings;
    Hill__Message message = HILL__MESSAGE__INIT;
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
    message.body_case = HILL__MESSAGE__BODY_MODEL_INFO;
    message.model_info = &info;
    router_to_client(sv->router, &a->from, &message);
}

/* A control token, or one that vocabularies without such tokens spell like one: <|end|>, [/INST]. */
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
