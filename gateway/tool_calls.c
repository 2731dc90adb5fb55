/* gateway/tool_calls.c - see tool_calls.h. */
#include "gateway/tool_calls.h"

#include <inttypes.h>
#include <string.h>

#include <jansson.h>

static const char tag_begin[] = "<tool_call>", tag_end[] = "</tool_call>",
                  space_bytes[] = " \t\r\n";

/* ---- calls ----------------------------------------------------------------------------------- */

static const char *arguments_key(const json_t *call)
{
    return json_object_get(call, "arguments") ? "arguments" : "parameters";
}

/* Without tags around it an object that has a name is a call only with arguments. */
static bool is_call(const struct call_reader *r, const json_t *call)
{
    const json_t *arguments = json_object_get(call, arguments_key(call));
    return json_string_length(json_object_get(call, "name")) &&
           (json_is_object(arguments) || json_is_string(arguments) ||
            (!arguments && r->form == CHAT_TOOLS_TAGS));
}

/* Of a key, a value or an item in valid JSON: the bytes before the mark that ends it. */
static size_t item_bytes(const char *item, const char *end)
{
    const char *at = item;
    size_t depth = 0;
    for (bool quoted = false; at < end && (quoted || depth || !memchr(",:]}", *at, 4)); at++) {
        if (quoted) {
            quoted = *at != '"';
            at += *at == '\\';
            continue;
        }
        quoted = *at == '"';
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
    }
    return (size_t)(at - item);
}

static bool is_key(const char *text, size_t bytes, const char *key)
{
    json_t *read = json_loadb(text, bytes, JSON_DECODE_ANY, NULL);
    bool same = json_is_string(read) && strcmp(json_string_value(read), key) == 0;
    json_decref(read);
    return same;
}

/* The value of a key that the call has, as the model wrote it; of several the last one, which is
 * jansson's, too. NULL: out of memory. */
static const char *written_value(const char *call, const char *end, const char *key, size_t *bytes)
{
    const char *found = NULL, *at = (const char *)memchr(call, '{', (size_t)(end - call)) + 1;
    do {
        size_t n_key = item_bytes(at, end);
        const char *value = at + n_key + 1;
        size_t n = item_bytes(value, end);
        if (is_key(at, n_key, key)) {
            found = value;
            *bytes = n;
        }
        at = value + n + 1;
    } while (at[-1] == ',');
    for (; found && memchr(space_bytes, *found, sizeof space_bytes - 1); found++)
        --*bytes;
    while (found && memchr(space_bytes, found[*bytes - 1], sizeof space_bytes - 1))
        --*bytes;
    return found;
}

static void add_call(struct call_reader *r, const json_t *call, const char *written,
                     const char *end, struct text_buffer *calls, bool stream)
{
    const char *key = arguments_key(call), *text = "{}";
    const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, key);
    size_t bytes = 2;
    if (json_is_string(arguments)) {
        text = json_string_value(arguments);
        bytes = json_string_length(arguments);
    } else if (arguments) {
        text = written_value(written, end, key, &bytes);
    }
    text_puts(calls, calls->length ? "," : "");
    text_puts(calls, "{");
    if (stream)
        text_printf(calls, "\"index\":%u,", r->n);
    text_printf(calls, "\"id\":\"call_%016" PRIx64 "%04x\",\"type\":\"function\",\"function\":{",
                r->id, r->n);
    text_puts(calls, "\"name\":");
    text_add_json(calls, json_string_value(name), json_string_length(name));
    text_puts(calls, ",\"arguments\":");
    text_add_json(calls, text ? text : "", text ? bytes : 0);
    text_puts(calls, "}}");
    calls->failed |= !text;
    r->n++;
}

/* One call or a list of some (Llama 3's template has one a message); false: it is none. */
static bool take_calls(struct call_reader *r, const char *bytes, size_t n,
                       struct text_buffer *calls, bool stream)
{
    /* jansson refuses integers beyond 64 bits, and arguments are handed on as they are written */
    json_t *read = json_loadb(bytes, n, JSON_DECODE_INT_AS_REAL, NULL);
    const char *end = bytes + n, *at = bytes;
    size_t n_list = json_array_size(read);
    bool good = json_is_object(read) ? is_call(r, read)
                                     : n_list == 1 || (n_list && r->form == CHAT_TOOLS_TAGS);
    for (size_t i = 0; good && i < n_list; i++)
        good = is_call(r, json_array_get(read, i));
    if (good && json_is_object(read))
        add_call(r, read, bytes, end, calls, stream);
    for (size_t i = 0; good && i < n_list; i++) {
        at = i ? at + item_bytes(at, end) + 1 : (const char *)memchr(bytes, '[', n) + 1;
        add_call(r, json_array_get(read, i), at, end, calls, stream);
    }
    json_decref(read);
    return good;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* White space waits until it is known that no call follows it. */
static void pass(struct call_reader *r, const char *bytes, size_t n, struct text_buffer *text)
{
    size_t last = n;
    while (last && memchr(space_bytes, bytes[last - 1], sizeof space_bytes - 1))
        last--;
    if (last) {
        text_add(text, r->space.length ? r->space.bytes : "", r->space.length);
        text_add(text, bytes, last);
        r->space.length = 0;
    }
    text_add(&r->space, bytes + last, n - last);
}

static void take_whole(struct call_reader *r, size_t bytes, struct text_buffer *text,
                       struct text_buffer *calls, bool stream)
{
    size_t open = sizeof tag_begin - 1, close = sizeof tag_end - 1;
    if (take_calls(r, r->held.bytes + open, bytes - open - close, calls, stream))
        r->space.length = 0;
    else
        pass(r, r->held.bytes, bytes, text);
    text_drop(&r->held, bytes);
    r->inside = false;
}

/* true: something has been taken, and there may be more. */
static bool take_tagged(struct call_reader *r, struct text_buffer *text, struct text_buffer *calls,
                        bool stream)
{
    const char *tag = r->inside ? tag_end : tag_begin,
               *found =
                   r->held.length ? memmem(r->held.bytes, r->held.length, tag, strlen(tag)) : NULL;
    if (found && r->inside) {
        take_whole(r, (size_t)(found - r->held.bytes) + strlen(tag), text, calls, stream);
        return true;
    }
    size_t sure = found ? (size_t)(found - r->held.bytes)
                  : r->inside
                      ? 0
                      : r->held.length - text_begun(&r->held, tag_begin, sizeof tag_begin - 1);
    if (sure) {
        pass(r, r->held.bytes, sure, text);
        text_drop(&r->held, sure);
    }
    r->inside |= found != NULL;
    return found != NULL;
}

/* An answer that begins with { may be a call, all of it. */
static void take_bare(struct call_reader *r, struct text_buffer *text)
{
    size_t at = 0;
    while (at < r->held.length && memchr(space_bytes, r->held.bytes[at], sizeof space_bytes - 1))
        at++;
    if (!r->began && at < r->held.length) {
        r->began = true;
        r->inside = r->held.bytes[at] == '{' || r->held.bytes[at] == '[';
    }
    if (r->inside || !r->began)
        return;
    pass(r, r->held.bytes, r->held.length, text);
    r->held.length = 0;
}

void calls_feed(struct call_reader *r, const char *bytes, size_t n, struct text_buffer *text,
                struct text_buffer *calls, bool stream)
{
    if (r->form == CHAT_TOOLS_NONE) {
        text_add(text, bytes, n);
        return;
    }
    text_add(&r->held, bytes, n);
    if (r->form == CHAT_TOOLS_JSON)
        take_bare(r, text);
    else
        while (take_tagged(r, text, calls, stream))
            ;
    text->failed |= r->held.failed || r->space.failed;
}

void calls_flush(struct call_reader *r, struct text_buffer *text, struct text_buffer *calls,
                 bool stream)
{
    size_t open = r->form == CHAT_TOOLS_TAGS ? sizeof tag_begin - 1 : 0;
    /* the end of a text takes the place of the last tag */
    bool called =
        r->inside && take_calls(r, r->held.bytes + open, r->held.length - open, calls, stream);
    if (!called && r->held.length)
        pass(r, r->held.bytes, r->held.length, text);
    if (!r->n && r->space.length)
        text_add(text, r->space.bytes, r->space.length);
    r->held.length = r->space.length = 0;
    r->inside = false;
}

void calls_finish(struct call_reader *r)
{
    text_finish(&r->held);
    text_finish(&r->space);
}
