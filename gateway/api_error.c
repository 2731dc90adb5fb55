/* gateway/api_error.c - see api_error.h. */
#include "gateway/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

int api_refuse(struct api_error *error, int status, const char *code, const char *param,
               const char *format, ...)
{
    va_list args;
    *error = (struct api_error){.status = status, .code = code};
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    hill_one_line(error->text);
    return -1;
}

int api_refuse_as(struct api_error *error, int code, const char *text)
{
    switch (code) {
    case HILL_E_INVALID:
    case HILL_E_UNSUPPORTED:
        return api_refuse(error, 400, NULL, NULL, "%s", text);
    case HILL_E_TOO_LONG:
        return api_refuse(error, 400, "context_length_exceeded", NULL, "%s", text);
    case HILL_E_BUSY:
        api_refuse(error, 429, "queue_full", NULL, "%s", text);
        error->retry_after_s = 1;
        return -1;
    case HILL_E_PEER_GONE:
    case HILL_E_TIMEOUT:
        api_refuse(error, 503, "pipeline_unavailable", NULL, "%s", text);
        error->retry_after_s = 1;
        return -1;
    default:
        return api_refuse(error, 500, NULL, NULL, "%s", text);
    }
}

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
    case 405:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 501:
        return "not_supported_error";
    case 503:
        return "unavailable_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

static void add_text_or_null(struct text_buffer *out, const char *text)
{
    if (text && text[0])
        text_add_json(out, text, strlen(text));
    else
        text_puts(out, "null");
}

void api_error_write(struct text_buffer *out, const struct api_error *error)
{
    text_puts(out, "{\"error\":{\"message\":");
    text_add_json(out, error->text, strlen(error->text));
    text_printf(out, ",\"type\":\"%s\",\"param\":", type_of(error->status));
    add_text_or_null(out, error->param);
    text_puts(out, ",\"code\":");
    add_text_or_null(out, error->code);
    text_puts(out, "}}");
}
