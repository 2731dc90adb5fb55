/*
 * hillctl/conversation.c - see conversation.h.
 */
#include "hillctl/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "hillctl/chat_helper.h"

int conversation_open(struct conversation *c, struct client *client, const char *system,
                      struct hill_why *why)
{
    Hill__ModelInfoRequest request = HILL__MODEL_INFO_REQUEST__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    *c = (struct conversation){0};
    message.body_case = HILL__MESSAGE__BODY_MODEL_INFO_REQUEST;
    message.model_info_request = &request;
    int code = client_call(client, &message, HILL__MESSAGE__BODY_MODEL_INFO, CLIENT_ANSWER_MS,
                           &c->info, why);
    if (code)
        return code;
    const Hill__ModelInfo *info = c->info->model_info;
    if (!info->chat_template.len)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "model %.200s has no chat template (a base model?): it continues a text, "
                         "see hillctl generate",
                         info->path);
    c->format = chat_format_find((const char *)info->chat_template.data, info->chat_template.len);
    return system ? conversation_set_system(c, system, why) : 0;
}

void conversation_close(struct conversation *c)
{
    for (unsigned i = 0; i < c->count; i++)
        free((char *)c->messages[i].text);
    free(c->messages);
    proto_free(c->info);
    *c = (struct conversation){0};
}

int conversation_add(struct conversation *c, enum chat_role role, const char *text, uint64_t bytes,
                     struct hill_why *why)
{
    if (c->count == c->room) {
        unsigned room = c->room * 2 + 8;
        struct chat_message *larger = realloc(c->messages, room * sizeof *larger);
        if (!larger)
            return hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
        c->messages = larger;
        c->room = room;
    }
    char *copy = malloc(bytes + 1);
    if (!copy)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
    memcpy(copy, bytes ? text : "", bytes);
    copy[bytes] = '\0';
    c->messages[c->count++] = (struct chat_message){role, copy, bytes};
    return 0;
}

static bool has_system(const struct conversation *c)
{
    return c->count && c->messages[0].role == CHAT_SYSTEM;
}

unsigned conversation_turns(const struct conversation *c)
{
    return c->count - has_system(c);
}

void conversation_drop(struct conversation *c, unsigned count)
{
    for (; count && conversation_turns(c); count--)
        free((char *)c->messages[--c->count].text);
}

const char *conversation_system(const struct conversation *c)
{
    return has_system(c) ? c->messages[0].text : NULL;
}

int conversation_set_system(struct conversation *c, const char *text, struct hill_why *why)
{
    if (has_system(c)) {
        free((char *)c->messages[0].text);
        memmove(c->messages, c->messages + 1, --c->count * sizeof *c->messages);
    }
    if (!text)
        return 0;
    int code = conversation_add(c, CHAT_SYSTEM, text, strlen(text), why); /* at the end, yet */
    if (code)
        return code;
    struct chat_message system = c->messages[c->count - 1];
    memmove(c->messages + 1, c->messages, (c->count - 1) * sizeof *c->messages);
    c->messages[0] = system;
    return 0;
}

static char *text_of(const ProtobufCBinaryData *bytes)
{
    return strndup(bytes->len ? (const char *)bytes->data : "", bytes->len);
}

int conversation_render(const struct conversation *c, struct chat_prompt *out, struct hill_why *why)
{
    const Hill__ModelInfo *info = c->info->model_info;
    char *bos = text_of(&info->bos_text), *eos = text_of(&info->eos_text);
    const struct chat_vocabulary vocabulary = {bos, eos, time(NULL)};
    *out = (struct chat_prompt){0};
    int code = chat_check(c->messages, c->count, why);
    if (code == 0 && (!bos || !eos))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
    if (code == 0 && c->format)
        code = chat_render(out, c->format, &vocabulary, c->messages, c->count, why);
    else if (code == 0)
        code = chat_helper_render(out, (const char *)info->chat_template.data,
                                  info->chat_template.len, &vocabulary, c->messages, c->count, why);
    free(bos);
    free(eos);
    return code;
}
