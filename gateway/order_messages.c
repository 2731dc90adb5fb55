/*
 * gateway/order_messages.c - the messages of a chat.
 *
 * Content is a text or a list of parts of text; developer is system. What a model that reads text
 * cannot use is refused by name: pictures, sound. An assistant's calls of tools are looked at here
 * and told in tools.c. Who calls it: order.c. Concurrency: none.
 */
#include "gateway/order.h"
#include "gateway/tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 65536u

/* Fields of a message beside role and content that clients send back from earlier answers. */
static const char *const harmless[] = {"name",      "id",        "refusal",          "annotations",
                                       "reasoning", "timestamp", "reasoning_content"};

static int refuse(struct api_error *error, size_t i, const char *field, const char *why)
{
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].%s", i, field);
    return api_refuse(error, 400, "bad_message", param, "%s %s", param, why);
}

static int read_role(enum chat_role *out, const json_t *message, size_t i, struct api_error *error)
{
    static const struct {
        const char *name;
        enum chat_role role;
    } roles[] = {{"system", CHAT_SYSTEM},
                 {"developer", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"tool", CHAT_TOOL}};
    const char *name = json_string_value(json_object_get(message, "role"));
    if (!name)
        return refuse(error, i, "role", "is missing or no text");
    for (unsigned r = 0; r < sizeof roles / sizeof *roles; r++)
        if (strcmp(roles[r].name, name) == 0) {
            *out = roles[r].role;
            return 0;
        }
    return refuse(error, i, "role", "is none of system, developer, user, assistant, tool");
}

static int check_fields(const json_t *message, size_t i, struct api_error *error)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)message, name, value)
    {
        bool known = strcmp(name, "role") == 0 || strcmp(name, "content") == 0;
        for (unsigned h = 0; h < sizeof harmless / sizeof *harmless; h++)
            known |= strcmp(name, harmless[h]) == 0;
        if (known || json_is_null(value))
            continue;
        if (strcmp(name, "tool_call_id") == 0 ||
            (strcmp(name, "tool_calls") == 0 && json_is_array(value)))
            continue;
        char field[48];
        snprintf(field, sizeof field, "%.40s", name);
        return refuse(error, i, field, "is not known here");
    }
    return 0;
}

/* The text of a part, in *bytes; NULL: refused. */
static const char *part_text(const json_t *part, size_t i, size_t *bytes, struct api_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    char why[120];
    if (!type || (strcmp(type, "text") == 0 && !json_is_string(text))) {
        refuse(error, i, "content", "has a part without a type, or of text without a text");
        return NULL;
    }
    if (strcmp(type, "text") != 0) {
        snprintf(why, sizeof why, "has a part of type %.40s: the model reads text alone", type);
        refuse(error, i, "content", why);
        return NULL;
    }
    *bytes = json_string_length(text);
    return json_string_value(text);
}

/* The parts at `to`, which has room for them. As llama-server: a newline between them, but not in
 * a text that the answer goes on with (begun). */
static int join_parts(const json_t *parts, size_t i, bool begun, char *to, uint64_t *length,
                      struct api_error *error)
{
    size_t bytes;
    *length = 0;
    for (size_t p = 0; p < json_array_size(parts); p++) {
        const char *text = part_text(json_array_get(parts, p), i, &bytes, error);
        if (!text)
            return -1;
        if (*length && !begun)
            to[(*length)++] = '\n';
        memcpy(to + *length, text, bytes);
        *length += bytes;
    }
    return 0;
}

/* Bytes that the messages' parts come to at most. */
static size_t bytes_of_parts(const json_t *list)
{
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *parts = json_object_get(json_array_get(list, i), "content");
        for (size_t p = 0; json_is_array(parts) && p < json_array_size(parts); p++)
            bytes += json_string_length(json_object_get(json_array_get(parts, p), "text")) + 1;
    }
    return bytes;
}

int order_read_messages(struct order *order, const json_t *list, struct api_error *error)
{
    size_t n = json_array_size(list), used = 0;
    if (!n || n > MESSAGES_MAX)
        return api_refuse(error, 400, "bad_message", "messages",
                          "messages has to be a list of 1 to %u messages", MESSAGES_MAX);
    order->messages = calloc(n, sizeof *order->messages);
    order->texts = malloc(bytes_of_parts(list) + 1);
    order->calls = calloc(n, sizeof(json_t *));
    if (!order->messages || !order->texts || !order->calls)
        return api_refuse(error, 500, NULL, NULL, "out of memory for the conversation");
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i),
                     *content = json_object_get(message, "content");
        struct chat_message *out = &order->messages[i];
        if (!json_is_object(message))
            return refuse(error, i, "", "is no object");
        if (read_role(&out->role, message, i, error) || check_fields(message, i, error))
            return -1;
        const json_t *calls = json_object_get(message, "tool_calls"),
                     *thought = json_object_get(message, "reasoning_content");
        if (out->role == CHAT_ASSISTANT) {
            out->thought = json_string_value(thought);
            out->thought_bytes = json_string_length(thought);
        }
        if (json_array_size(calls)) {
            if (out->role != CHAT_ASSISTANT)
                return refuse(error, i, "tool_calls", "are an assistant's alone");
            if (tools_check_calls(calls, i, error))
                return -1;
            order->calls[i] = calls;
        }
        if (order->calls[i] && (!content || json_is_null(content))) {
            out->text = "";
        } else if (json_is_string(content)) {
            out->text = json_string_value(content);
            out->bytes = json_string_length(content);
        } else if (json_array_size(content) || (order->calls[i] && json_is_array(content))) {
            out->text = order->texts + used;
            bool begun = i + 1 == n && out->role == CHAT_ASSISTANT;
            if (join_parts(content, i, begun, order->texts + used, &out->bytes, error))
                return -1;
            used += out->bytes;
        } else {
            return refuse(error, i, "content", "is neither a text nor a list of parts");
        }
        order->n_messages++;
    }
    return 0;
}
