/*
 * hillctl/conversation.c - see conversation.h.
 */
#include "hillctl/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "chat/chat_prompt.h"
#include "hillctl/prompt_file.h"
#include "model/gguf.h"

static int lacks_template(const char *model, struct hill_why *why)
{
    return hill_fail(why, HILL_E_UNSUPPORTED,
                     "model %.200s has no chat template (a base model?): it continues a text, see "
                     "hillctl generate; or give one with --chat-template-file",
                     model);
}

static int check_info(const Hill__ModelInfo *info, struct hill_why *why)
{
    int code = chat_prompt_check(info, why);
    return code && !info->chat_template.len ? lacks_template(info->path, why) : code;
}

/* What is wrong with the file itself its pipeline says. */
static int check_model(const char *path, struct hill_why *why)
{
    Hill__ModelInfo info = HILL__MODEL_INFO__INIT;
    struct gguf_file *model;
    struct gguf_string text = {"", 0};
    if (gguf_open(&model, path, &(struct hill_why){""}))
        return 0;
    gguf_get_string(model, "tokenizer.chat_template", &text);
    info.path = (char *)path;
    info.chat_template = (ProtobufCBinaryData){text.length, (uint8_t *)text.data};
    int code = check_info(&info, why);
    gguf_close(model);
    return code;
}

int conversation_options_read(struct conversation_options *out, const struct options *options,
                              struct hill_why *why)
{
    const char *file = options_text(options, "chat-template-file"),
               *model = options_text(options, "check-model");
    *out = (struct conversation_options){.system = options_text(options, "system"),
                                         .no_think = options_flag(options, "no-think")};
    if (file && options_flag(options, "check") && prompt_file_is_stream(file))
        return 0;
    return file    ? chat_prompt_read_template(&out->template, file, why)
           : model ? check_model(model, why)
                   : 0;
}

void conversation_options_finish(struct conversation_options *options)
{
    free(options->template.data);
    options->template = (ProtobufCBinaryData){0};
}

int conversation_open(struct conversation *c, struct client *client,
                      const struct conversation_options *options, struct hill_why *why)
{
    Hill__ModelInfoRequest request = HILL__MODEL_INFO_REQUEST__INIT;
    *c = (struct conversation){0};
    Hill__Message message = PROTO_MESSAGE(MODEL_INFO_REQUEST, model_info_request, &request);
    int code = client_call(client, &message, HILL__MESSAGE__BODY_MODEL_INFO, CLIENT_ANSWER_MS,
                           &c->info, why);
    if (code == 0 && options->template.len)
        code = chat_prompt_set_template(c->info->model_info, &options->template, why);
    if (code)
        return code;
    code = check_info(c->info->model_info, why);
    if (code)
        return code;
    c->no_think = options->no_think;
    if (c->no_think && !chat_prompt_has_thinking(c->info->model_info))
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "--no-think: the chat template of %.200s has no such switch "
                         "(enable_thinking)",
                         c->info->model_info->path);
    c->format = c->no_think ? NULL : chat_prompt_format(c->info->model_info);
    return options->system ? conversation_set_system(c, options->system, why) : 0;
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
    return chat_prompt_render(out, c->info->model_info, c->no_think, c->messages, c->count, -1,
                              why);
}
