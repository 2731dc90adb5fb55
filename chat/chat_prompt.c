/* chat/chat_prompt.c - see chat_prompt.h. */
#include "chat/chat_prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/chat_helper.h"

#define TEMPLATE_MAX (1u << 20) /* bytes of a file */

int chat_prompt_read_template(ProtobufCBinaryData *out, const char *path, struct hill_why *why)
{
    *out = (ProtobufCBinaryData){0, malloc(TEMPLATE_MAX + 1)};
    if (!out->data)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a chat template");
    errno = 0;
    FILE *file = fopen(path, "re");
    if (file)
        out->len = fread(out->data, 1, TEMPLATE_MAX + 1, file);
    int err = !file || ferror(file) ? errno : 0;
    if (file)
        fclose(file);
    return err ? hill_fail(why, HILL_E_INVALID, "reading the chat template from %.300s failed: %s",
                           path, strerror(err))
           : out->len == 0 || out->len > TEMPLATE_MAX
               ? hill_fail(why, HILL_E_INVALID, "%.300s is no chat template: it %s", path,
                           out->len ? "has more than 1 MiB" : "is empty")
               : 0;
}

int chat_prompt_set_template(Hill__ModelInfo *info, const ProtobufCBinaryData *text,
                             struct hill_why *why)
{
    uint8_t *copy = malloc(text->len);
    if (!copy)
        return hill_fail(why, HILL_E_NOMEM, "out of memory for a chat template");
    memcpy(copy, text->data, text->len);
    free(info->chat_template.data); /* of protobuf-c, which frees the copy in its place */
    info->chat_template = (ProtobufCBinaryData){text->len, copy};
    return 0;
}

int chat_prompt_check(const Hill__ModelInfo *info, struct hill_why *why)
{
    const char *text = (const char *)info->chat_template.data;
    uint64_t name = chat_template_name(text, info->chat_template.len), shown = 0;
    if (!info->chat_template.len)
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "model %.200s has no chat template (a base model?): it continues a text",
                         info->path);
    while (shown < name && shown < 40 && text[shown] >= ' ' && text[shown] <= '~')
        shown++;
    if (name && !chat_prompt_format(info))
        return hill_fail(why, HILL_E_UNSUPPORTED,
                         "the chat template of model %.200s is '%.*s': no template, and no name of "
                         "a format that is built in here; see --chat-template-file",
                         info->path, (int)shown, text);
    return 0;
}

const struct chat_format *chat_prompt_format(const Hill__ModelInfo *info)
{
    return chat_format_find((const char *)info->chat_template.data, info->chat_template.len);
}

bool chat_prompt_has_thinking(const Hill__ModelInfo *info)
{
    static const char name[] = "enable_thinking";
    return info->chat_template.len &&
           memmem(info->chat_template.data, info->chat_template.len, name, sizeof name - 1);
}

static char *text_of(const ProtobufCBinaryData *bytes)
{
    return strndup(bytes->len ? (const char *)bytes->data : "", bytes->len);
}

int chat_prompt_render(struct chat_prompt *out, const Hill__ModelInfo *info, bool no_think,
                       const struct chat_message *messages, unsigned count, int stop_fd,
                       struct hill_why *why)
{
    char *bos = text_of(&info->bos_text), *eos = text_of(&info->eos_text);
    const struct chat_vocabulary vocabulary = {bos, eos, time(NULL)};
    const struct chat_format *format = no_think ? NULL : chat_prompt_format(info);
    *out = (struct chat_prompt){0};
    int code = chat_prompt_check(info, why);
    if (code == 0)
        code = chat_check(format, messages, count, why);
    if (code == 0 && (!bos || !eos))
        code = hill_fail(why, HILL_E_NOMEM, "out of memory for the conversation");
    if (code == 0 && format)
        code = chat_render(out, format, &vocabulary, messages, count, why);
    else if (code == 0)
        code =
            chat_helper_render(out, (const char *)info->chat_template.data, info->chat_template.len,
                               &vocabulary, no_think, messages, count, stop_fd, why);
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
