/*
 * tests/fuzz/fuzz_http.c - any request: a path, headers that decide who may ask, a body.
 *
 * What: the input is "METHOD PATH\nHOST\nORIGIN\nBODY". The path is routed, the headers guarded,
 * and the body read as an order of the route's kind, and as one of every other kind. What is
 * accepted is walked through; its text goes through its own stop strings and, as an answer, through
 * the reader of reasoning. Failure: sanitizer findings; abort() where a refusal has no status, no
 * reason or several lines, where an accepted value is out of range, where a stop string gets out,
 * or where pieces make another reasoning than the whole. Who calls it: libFuzzer (tests/fuzz/run).
 * Concurrency: one thread.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/answers.h"
#include "gateway/http_guard.h"
#include "gateway/order.h"
#include "gateway/reasoning.h"
#include "gateway/routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_refusal(const struct api_error *error)
{
    struct text_buffer out = {0};
    must(error->status >= 400 && error->status < 600 && error->text[0]);
    must(!strchr(error->text, '\n'));
    api_error_write(&out, error);
    json_t *json = json_loadb(out.bytes, out.length, 0, NULL);
    must(json != NULL);
    json_decref(json);
    text_finish(&out);
}

/* A text, in two pieces and whole: the same is reasoning. */
static void check_reasoning(const char *text, size_t bytes, const struct reasoning_tags *opened)
{
    struct text_buffer reasoning[2] = {{0}}, rest[2] = {{0}};
    for (unsigned i = 0; i < 2; i++) {
        struct reasoning_reader reader = {0};
        size_t cut = i ? bytes / 2 : bytes;
        reasoning_begin(&reader, opened, "", 0);
        reasoning_feed(&reader, text, cut, &reasoning[i], &rest[i]);
        reasoning_feed(&reader, text + cut, bytes - cut, &reasoning[i], &rest[i]);
        reasoning_flush(&reader, &reasoning[i], &rest[i]);
        reasoning_finish(&reader);
    }
    must(reasoning[0].length == reasoning[1].length && rest[0].length == rest[1].length);
    must(!rest[0].length || memcmp(rest[0].bytes, rest[1].bytes, rest[0].length) == 0);
    must(!reasoning[0].length ||
         memcmp(reasoning[0].bytes, reasoning[1].bytes, reasoning[0].length) == 0);
    for (unsigned i = 0; i < 2; i++) {
        text_finish(&reasoning[i]);
        text_finish(&rest[i]);
    }
}

/* A text that a request brought, in two pieces, through its stop strings. */
static void check_stops(const struct order *o, const char *text, size_t bytes)
{
    struct stop_matcher matcher = {.n = o->n_stops};
    struct text_buffer out = {0}, json = {0};
    struct answer_head head = {.chat = true, .model = "m"};
    memcpy(matcher.strings, o->stops, sizeof o->stops);
    if (!stop_feed(&matcher, text, bytes / 2, &out) &&
        !stop_feed(&matcher, text + bytes / 2, bytes - bytes / 2, &out))
        stop_flush(&matcher, &out);
    check_reasoning(text, bytes, NULL);
    for (unsigned i = 0; i < REASONING_TAGS; i++)
        check_reasoning(text, bytes, &reasoning_tags[i]);
    for (unsigned i = 0; i < o->n_stops && out.length; i++)
        must(!memmem(out.bytes, out.length, o->stops[i].text, o->stops[i].bytes));
    answer_chunk(&json, &head, out.length ? out.bytes : "", out.length, NULL);
    json_t *event = json_loadb(json.bytes + 6, json.length - 8, JSON_ALLOW_NUL, NULL);
    must(event != NULL);
    json_decref(event);
    stop_finish(&matcher);
    text_finish(&out);
    text_finish(&json);
}

static void read_order(enum order_kind kind, const char *body, size_t bytes)
{
    struct order order;
    struct api_error error = {0};
    if (order_read(&order, kind, body, bytes, &error)) {
        check_refusal(&error);
    } else {
        must(order.temperature >= 0 && order.top_p >= 0 && order.top_p <= 1);
        must(order.min_p >= 0 && order.min_p <= 1 && order.repeat_penalty > 0);
        must(!order.has_alpha || !order.has_budget);
        for (unsigned i = 0; i < order.n_messages; i++)
            if (order.messages[i].bytes)
                check_stops(&order, order.messages[i].text, order.messages[i].bytes);
        if (order.prompt_bytes)
            check_stops(&order, order.prompt, order.prompt_bytes);
    }
    order_finish(&order);
}

/* The next line of the input, as a text; *rest goes on behind it. */
static char *take_line(const char **rest, size_t *left)
{
    const char *end = memchr(*rest, '\n', *left);
    size_t bytes = end ? (size_t)(end - *rest) : *left;
    char *line = strndup(*rest, bytes);
    *rest += bytes + (end != NULL);
    *left -= bytes + (end != NULL);
    must(line != NULL);
    return line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct gateway_settings settings = {.host = "127.0.0.1", .cors = "https://a.example"};
    const char *rest = size ? (const char *)data : "";
    char *first = take_line(&rest, &size), *host = take_line(&rest, &size),
         *origin = take_line(&rest, &size), *path = strchr(first, ' ');
    struct route route;
    struct api_error error = {0};
    http_guard_why_not(&settings, host, origin);
    api_keys_bearer(host);
    if (path)
        *path++ = '\0';
    if (path && route_find(&route, first, path, &error))
        check_refusal(&error);
    for (unsigned kind = ORDER_CHAT; kind <= ORDER_INFILL; kind *= 2)
        read_order((enum order_kind)kind, rest, size);
    free(first);
    free(host);
    free(origin);
    return 0;
}
