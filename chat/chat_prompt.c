/* chat/chat_prompt.c - see chat_prompt.h. */
#include "chat/chat_prompt.h"

#include <stdlib.h>
#include <string.h>

#include "chat/chat_helper.h"

int chat_prompt_check(const Hill__ModelInfo *info, struct hill_why *why)
{
    return info->chat_template.len
               ? 0
               : hill_fail(why, HILL_E_UNSUPPORTED,
                           "model %.200s has no chat template (a base model?): it continues a text",
                           info->path);
}

const struct chat_format *chat_prompt_format(const Hill__ModelInfo *info)
{
    return chat_format_find((const char *)info->chat_template.data, info->chat_template.len);
}

static char *text_of(const ProtobufCBinaryData *bytes)
{
    return strndup(bytes->len ? (const char *)bytes->data : "", bytes->len);
}

int chat_prompt_render(struct chat_prompt *out, const Hill__ModelInfo *info,
                       const struct chat_message *messages, unsigned count, int stop_fd,
                       struct hill_why *why)
{
    char *bos = text_of(&info->bos_text), *eos = text_of(&info->eos_text);
    const struct chat_vocabulary vocabulary = {bos, eos, time(NULL)};
    const struct chat_format *format = chat_prompt_format(info);
    *out = (struct chat_prompt){0};
    int code = chat_prompt_check(info, why);
    if (code == 0)
        code = chat_check(messages, count, why);
    if (code == 0 && (!bos || !eos))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
    if (code == 0 && format)
        code = chat_render(out, format, &vocabulary, messages, count, why);
    else if (code == 0)
        code =
            chat_helper_render(out, (const char *)info->chat_template.data, info->chat_template.len,
                               &vocabulary, messages, count, stop_fd, why);
    free(bos);
    free(eos);
    return code;
}

Hill__PromptPiece **chat_prompt_wire(const struct prompt_piece *pieces, size_t n)
{
    Hill__PromptPiece **list = calloc(n + 1, sizeof *list + sizeof **list);
    Hill__PromptPiece *parts = list ? (Hill__PromptPiece *)(list + n + 1) : NULL;
    for (size_t i = 0; list && i < n; i++) {
        list[i] = &parts[i];
        hill__prompt_piece__init(list[i]);
        list[i]->text = (ProtobufCBinaryData){pieces[i].bytes, (uint8_t *)pieces[i].text};
        list[i]->kind = (Hill__PromptKind)pieces[i].kind;
    }
    return list;
}
