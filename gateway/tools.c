/* gateway/tools.c - see tools.h. */
#include "gateway/tools.h"

#include <stdlib.h>
#include <string.h>

/* ---- fields ---------------------------------------------------------------------------------- */

static bool is_name(const json_t *name)
{
    const char *text = json_string_value(name);
    size_t bytes = json_string_length(name);
    return text && bytes && bytes <= TOOL_NAME_BYTES_MAX &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
               bytes;
}

static bool is_function(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    return type && strcmp(type, "function") == 0;
}

int tools_take(struct order *order, const json_t *list, struct api_error *error)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > TOOLS_MAX)
        return api_refuse(error, 400, "wrong_type", "tools",
                          "tools has to be a list of at most %u functions", TOOLS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *tool = json_array_get(list, i), *function = json_object_get(tool, "function"),
                     *parameters = json_object_get(function, "parameters");
        if (!is_function(tool) || !json_is_object(function))
            return api_refuse(error, 400, "not_served", "tools",
                              "tools[%zu] is none of type function with a function", i);
        if (!is_name(json_object_get(function, "name")))
            return api_refuse(error, 400, "wrong_type", "tools",
                              "tools[%zu].function.name is no name of at most %u letters, digits, "
                              "_, - and .",
                              i, TOOL_NAME_BYTES_MAX);
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return api_refuse(error, 400, "wrong_type", "tools",
                              "tools[%zu].function.parameters is no object", i);
    }
    order->tools = n ? list : NULL;
    return 0;
}

int tools_take_choice(struct order *order, const json_t *value, struct api_error *error)
{
    const char *word = json_string_value(value);
    const json_t *name = json_object_get(json_object_get(value, "function"), "name");
    if (word && strcmp(word, "none") == 0)
        order->tool_choice = TOOL_CHOICE_NONE;
    else if (word && strcmp(word, "auto") == 0)
        order->tool_choice = TOOL_CHOICE_AUTO;
    else if (word && strcmp(word, "required") == 0)
        order->tool_choice = TOOL_CHOICE_REQUIRED;
    else if (is_function(value) && json_is_string(name))
        order->tool_choice = TOOL_CHOICE_NAMED;
    else
        return api_refuse(error, 400, "wrong_type", "tool_choice",
                          "tool_choice is none of none, auto, required and a function's name");
    order->tool_name = json_string_value(name);
    return 0;
}

int tools_check(struct order *order, struct api_error *error)
{
    bool there = order->tool_choice != TOOL_CHOICE_NAMED;
    if (order->tool_choice == TOOL_CHOICE_NONE) {
        order->tools = NULL;
        order->tool_choice = TOOL_CHOICE_AUTO;
    }
    if (!order->tools && order->tool_choice > TOOL_CHOICE_AUTO)
        return api_refuse(error, 400, "missing_field", "tools",
                          "tool_choice wants a call, and there are no tools");
    for (size_t i = 0; i < json_array_size(order->tools); i++) {
        const json_t *function = json_object_get(json_array_get(order->tools, i), "function");
        there |= order->tool_name && strcmp(json_string_value(json_object_get(function, "name")),
                                            order->tool_name) == 0;
    }
    if (!there)
        return api_refuse(error, 400, "out_of_range", "tool_choice",
                          "tool_choice names %.64s, which is none of the tools", order->tool_name);
    if (order->tools && order->logprobs)
        return api_refuse(error, 400, "not_served", "logprobs",
                          "logprobs: not together with tools, whose calls are no text");
    if (order->tools && order->json)
        return api_refuse(error, 400, "excluded", "response_format",
                          "response_format: not together with tools, whose calls are not its JSON");
    return 0;
}

int tools_check_calls(const json_t *calls, size_t i, struct api_error *error)
{
    for (size_t c = 0; c < json_array_size(calls); c++) {
        const json_t *call = json_array_get(calls, c),
                     *function = json_object_get(call, "function"),
                     *arguments = json_object_get(function, "arguments");
        /* any name that a model may have made up */
        if (!json_string_length(json_object_get(function, "name")) ||
            (!json_is_string(arguments) && !json_is_object(arguments)))
            return api_refuse(error, 400, "bad_message", "messages",
                              "messages[%zu].tool_calls[%zu] has no function with a name and "
                              "arguments",
                              i, c);
    }
    return 0;
}

/* ---- telling --------------------------------------------------------------------------------- */

/* JSON as Python writes it, which is what models have been trained on. */
static void add_value(struct text_buffer *out, const json_t *value, size_t flags)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15) | flags);
    out->failed |= !text;
    if (text)
        text_puts(out, text);
    free(text);
}

/* Arguments come as a text that is JSON, or as an object. */
static void add_arguments(struct text_buffer *out, const json_t *arguments)
{
    json_t *read = json_is_string(arguments)
                       ? json_loads(json_string_value(arguments), JSON_DECODE_ANY, NULL)
                       : NULL;
    if (read || !json_is_string(arguments))
        add_value(out, read ? read : arguments, 0);
    else if (!json_string_length(arguments))
        text_puts(out, "{}");
    else
        text_puts(out, json_string_value(arguments)); /* what a model once wrote */
    json_decref(read);
}

static void add_calls(struct text_buffer *out, const json_t *calls, enum chat_tools form)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        bool tags = form == CHAT_TOOLS_TAGS;
        text_puts(out, out->length && tags ? "\n" : "");
        text_puts(out, tags ? "<tool_call>\n{\"name\": " : "{\"name\": ");
        add_value(out, json_object_get(function, "name"), 0);
        text_puts(out, tags ? ", \"arguments\": " : ", \"parameters\": ");
        add_arguments(out, json_object_get(function, "arguments"));
        text_puts(out, tags ? "}\n</tool_call>" : "}");
    }
}

static void add_tools(struct text_buffer *out, const struct order *order, enum chat_tools form)
{
    if (form == CHAT_TOOLS_TAGS)
        text_puts(out, "# Tools\n\nYou may call one or more functions to assist with the user "
                       "query.\n\nYou are provided with function signatures within "
                       "<tools></tools> XML tags:\n<tools>");
    else
        text_puts(out, "Given the following functions, please respond with a JSON for a function "
                       "call with its proper arguments that best answers the given prompt.\n\n"
                       "Respond in the format {\"name\": function name, \"parameters\": dictionary "
                       "of argument name and its value}.Do not use variables.\n\n");
    for (size_t i = 0; i < json_array_size(order->tools); i++) {
        text_puts(out, form == CHAT_TOOLS_TAGS ? "\n" : "");
        add_value(out, json_array_get(order->tools, i),
                  form == CHAT_TOOLS_TAGS ? 0 : JSON_INDENT(4));
        text_puts(out, form == CHAT_TOOLS_TAGS ? "" : "\n\n");
    }
    if (form == CHAT_TOOLS_TAGS)
        text_puts(out, "\n</tools>\n\nFor each function call, return a json object with function "
                       "name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                       "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
                       "</tool_call>");
}

/* The messages as they are told, one after the other. */
struct telling {
    struct order *order;
    enum chat_tools form;
    const struct chat_format *format;
    struct chat_message *out;
    unsigned n;
};

/* What has been written becomes the text of a message; the order owns it. */
static void own(struct telling *t, struct text_buffer *text, const char **to, uint64_t *bytes)
{
    struct order *o = t->order;
    char **larger = realloc(o->told, (o->n_told + 1) * sizeof *larger);
    o->told = larger ? larger : o->told;
    o->told_failed |= !larger || text->failed;
    *to = text->bytes ? text->bytes : "";
    *bytes = text->length;
    if (larger)
        o->told[o->n_told++] = text->bytes;
    else
        text_finish(text);
    *text = (struct text_buffer){0};
}

static void tell_system(struct telling *t, const struct chat_message *given)
{
    struct chat_message *m = &t->out[t->n++];
    struct text_buffer text = {0};
    *m = (struct chat_message){.role = CHAT_SYSTEM, .text = ""};
    if (given)
        *m = *given;
    else if ((m->text = chat_format_system(t->format, &m->bytes)) == NULL)
        m->text = "";
    text_puts(&text, m->bytes ? "\n\n" : "");
    add_tools(&text, t->order, t->form);
    own(t, &text, &m->added, &m->added_bytes);
}

/* In ChatML: the tags are the template's, and tokens in some vocabularies (Qwen3). */
static void tell_tagged(struct telling *t, const struct chat_message *given)
{
    static const char before[] = "<tool_response>\n", after[] = "\n</tool_response>";
    struct chat_message *m = &t->out[t->n++];
    *m = *given;
    m->before = before;
    m->before_bytes = sizeof before - 1;
    m->added = after;
    m->added_bytes = sizeof after - 1;
}

/* In Llama 3: answers of tools, one after the other, are one text. */
static void tell_answers(struct telling *t, unsigned *i)
{
    const struct order *o = t->order;
    struct chat_message *m = &t->out[t->n++];
    struct text_buffer text = {0};
    m->role = CHAT_TOOL;
    for (;; ++*i) {
        const struct chat_message *given = &o->messages[*i];
        text_puts(&text, text.length ? "\n" : "");
        text_add_json(&text, given->text, given->bytes);
        if (*i + 1 == o->n_messages || o->messages[*i + 1].role != CHAT_TOOL)
            break;
    }
    own(t, &text, &m->text, &m->bytes);
}

/* Llama 3's template leaves out what is said beside a call. */
static void tell_call(struct telling *t, const struct chat_message *given, const json_t *calls)
{
    struct chat_message *m = &t->out[t->n++];
    struct text_buffer text = {0};
    add_calls(&text, calls, t->form);
    if (t->form == CHAT_TOOLS_TAGS) {
        *m = *given;
        own(t, &text, &m->added, &m->added_bytes);
    } else {
        m->role = CHAT_ASSISTANT;
        own(t, &text, &m->text, &m->bytes);
    }
}

static void tell_user(struct telling *t, const struct chat_message *given)
{
    struct chat_message *m = &t->out[t->n++];
    struct text_buffer text = {0};
    uint64_t space = chat_space_left(given->text, given->bytes);
    add_tools(&text, t->order, t->form);
    text_add(&text, given->text + space, given->bytes - space);
    m->role = CHAT_USER;
    own(t, &text, &m->text, &m->bytes);
}

static void tell_all(struct telling *t)
{
    const struct order *o = t->order;
    bool tags = t->form == CHAT_TOOLS_TAGS, due = o->tools && !tags; /* before the first user's */
    unsigned i = 0;
    if (o->tools && tags)
        tell_system(t, o->messages->role == CHAT_SYSTEM ? &o->messages[i++] : NULL);
    for (; i < o->n_messages; i++) {
        const struct chat_message *given = &o->messages[i];
        if (given->role == CHAT_TOOL && tags) {
            tell_tagged(t, given);
        } else if (given->role == CHAT_TOOL) {
            tell_answers(t, &i);
        } else if (o->calls[i]) {
            tell_call(t, given, o->calls[i]);
        } else if (due && given->role == CHAT_USER) {
            tell_user(t, given);
            due = false;
        } else {
            t->out[t->n++] = *given;
        }
    }
    t->out->tools = o->tools && !tags;
}

static bool has_tools(const struct order *order)
{
    bool found = order->tools != NULL;
    for (unsigned i = 0; i < order->n_messages; i++)
        found |= order->messages[i].role == CHAT_TOOL || order->calls[i];
    return found;
}

int tools_tell(struct order *order, const struct chat_format *format, struct api_error *error)
{
    struct telling t = {.order = order, .format = format, .form = chat_format_tools(format)};
    if (!has_tools(order))
        return 0;
    if (order->no_think)
        return api_refuse(error, 400, "excluded", "tools",
                          "tools: not together with enable_thinking false or a reasoning_effort of "
                          "none: a template rendered with that switch is not told of tools");
    if (t.form == CHAT_TOOLS_NONE)
        return api_refuse(
            error, 400, "not_served", "tools",
            "tools: they are served for the templates of Qwen 2.5, Qwen3, SmolLM and Llama "
            "3, and this model's is %s",
            format ? chat_format_name(format) : "none that is built in");
    for (unsigned i = 0; t.form == CHAT_TOOLS_JSON && i < order->n_messages; i++)
        if (json_array_size(order->calls[i]) > 1)
            return api_refuse(error, 400, "not_served", "messages",
                              "messages[%u].tool_calls: Llama 3's template has one call a message",
                              i);
    t.out = calloc(order->n_messages + 1, sizeof *t.out);
    if (t.out)
        tell_all(&t);
    if (!t.out || order->told_failed) {
        free(t.out);
        return api_refuse(error, 500, NULL, NULL, "out of memory for the conversation");
    }
    free(order->messages);
    order->messages = t.out;
    order->n_messages = t.n;
    return 0;
}

void tools_begin(struct text_buffer *out, const struct order *order, enum chat_tools form)
{
    bool tags = form == CHAT_TOOLS_TAGS;
    if (!order->tools || order->tool_choice < TOOL_CHOICE_REQUIRED)
        return;
    text_puts(out, tags ? "<tool_call>\n{\"name\": \"" : "{\"name\": \"");
    if (order->tool_choice == TOOL_CHOICE_NAMED) {
        text_puts(out, order->tool_name);
        text_puts(out, tags ? "\", \"arguments\": {" : "\", \"parameters\": {");
    }
}
