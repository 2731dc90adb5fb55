/* gateway/json_bounds.c - see json_bounds.h. */
#include "gateway/json_bounds.h"

#include <string.h>

#include "gateway/text_buffer.h"

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL)

static int check_bounds(const char *text, size_t bytes, struct api_error *error)
{
    size_t depth = 0, values = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            quoted = c != '"';
            continue;
        }
        quoted = c == '"';
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth)
            depth--;
        values += c == '{' || c == '[' || c == ',' || c == ':';
        if (depth > JSON_DEPTH_BOUND)
            return api_refuse(error, 400, "json_too_deep", NULL,
                              "the JSON body nests deeper than %u", JSON_DEPTH_BOUND);
        if (values > JSON_VALUES_BOUND)
            return api_refuse(error, 400, "json_too_large", NULL,
                              "the JSON body has more than %u values", JSON_VALUES_BOUND);
    }
    return 0;
}

static bool is_beyond_64_bits(const char *number, size_t bytes)
{
    bool negative = *number == '-';
    const char *bound = negative ? "9223372036854775808" : "9223372036854775807";
    size_t n = bytes - negative;
    for (size_t i = negative; i < bytes; i++)
        if (number[i] < '0' || number[i] > '9')
            return false;
    return n > strlen(bound) ||
           (n == strlen(bound) && memcmp(number + negative, bound, strlen(bound)) > 0);
}

/* jansson refuses integers beyond 64 bits: these alone become reals, by an exponent of 0. */
static json_t *load_large_integers(const char *text, size_t bytes, json_error_t *why)
{
    static const char number_bytes[] = "0123456789+-.eE";
    struct text_buffer wide = {0};
    size_t from = 0, at = 0;
    bool quoted = false;
    while (at < bytes) {
        size_t number = at;
        while (!quoted && at < bytes && memchr(number_bytes, text[at], sizeof number_bytes - 1))
            at++;
        if (at == number) {
            at += quoted && text[at] == '\\' ? 2 : 1;
            quoted ^= text[number] == '"';
        } else if (is_beyond_64_bits(text + number, at - number)) {
            text_add(&wide, text + from, at - from);
            text_puts(&wide, "e0");
            from = at;
        }
    }
    text_add(&wide, text + from, bytes - from);
    json_t *root = wide.failed ? NULL : json_loadb(wide.bytes, wide.length, FLAGS, why);
    text_finish(&wide);
    return root;
}

json_t *json_bounded_object(const char *text, size_t bytes, struct api_error *error)
{
    json_error_t why;
    if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark */
        text += 3;
        bytes -= 3;
    }
    if (!bytes) {
        api_refuse(error, 400, "bad_json", NULL,
                   "the request has no body: a JSON object is wanted");
        return NULL;
    }
    if (check_bounds(text, bytes, error))
        return NULL;
    json_t *root = json_loadb(text, bytes, FLAGS, &why);
    if (!root && json_error_code(&why) == json_error_numeric_overflow)
        root = load_large_integers(text, bytes, &why);
    if (!root) {
        api_refuse(error, 400, "bad_json", NULL, "the body is no JSON: line %d, column %d: %s",
                   why.line, why.column, why.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        api_refuse(error, 400, "bad_json", NULL, "the body is JSON, but no object");
        return NULL;
    }
    return root;
}
