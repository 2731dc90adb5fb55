/* gateway/json_bounds.c - see json_bounds.h. */
#include "gateway/json_bounds.h"

#include <string.h>

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
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
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
