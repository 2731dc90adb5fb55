/*
 * hillctl/conversation.c - see conversation.h.
 */
#include "hillctl/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "chat/chat_prompt.h"

int conversation_open(struct conversation *c, struct client *client, const char *system,
                      struct hill_why *why)
{
    Hill__ModelInfoRequest request = HILL__MODEL_INFO_REQUEST__INIT;
    *c = (struct conversation){0};
    Hill__Message message = PROTO_MESSAGE(MODEL_INFO_REQUEST, model_info_request, &request);
    int code = client_call(client, &message, HILL__MESSAGE__BODY_MODEL_INFO, CLIENT_ANSWER_MS,
                           &c->info, why);
    if (code)
        return code;
    if (chat_prompt_check(c->info->model_info, why))
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "model %.200s has no chat template (a base model?): it continues a text, "
                         "see hillctl generate",
                         c->info->model_info->path);
    c->format = chat_prompt_format(c->info->model_info);
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
    char *copy = malloc(bytes + 1);
    if (!copy || !GROW(c->messages, c->room, c->count + 1)) {
        free(copy);
        return hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
    }
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

int conversation_render(const struct conversation *c, struct chat_prompt *out, struct hill_why *why)
{
    return chat_prompt_render(out, c->info->model_info, c->messages, c->count, -1, why);
}
