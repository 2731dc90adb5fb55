/* gateway/text_buffer.c - see text_buffer.h. */
#include "gateway/text_buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

static bool make_room(struct text_buffer *b, size_t bytes)
{
    if (b->failed)
        return false;
    if (bytes <= b->room - b->length)
        return true;
    size_t room = b->room + b->room / 2 + bytes + 64;
    char *larger = room > bytes ? realloc(b->bytes, room) : NULL;
    b->failed = !larger;
    if (!larger)
        return false;
    b->bytes = larger;
    b->room = room;
    return true;
}

void text_add(struct text_buffer *b, const char *text, size_t bytes)
{
    if (!bytes || !make_room(b, bytes))
        return;
    memcpy(b->bytes + b->length, text, bytes);
    b->length += bytes;
}

void text_puts(struct text_buffer *b, const char *text)
{
    text_add(b, text, strlen(text));
}

void text_printf(struct text_buffer *b, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (bytes < 0 || (size_t)bytes >= sizeof text)
        b->failed = true; /* a caller's mistake: texts of any length go by text_add */
    else
        text_add(b, text, (size_t)bytes);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void add_escaped(struct text_buffer *b, uint8_t byte)
{
    switch (byte) {
    case '"':
        text_puts(b, "\\\"");
        break;
    case '\\':
        text_puts(b, "\\\\");
        break;
    case '\n':
        text_puts(b, "\\n");
        break;
    case '\t':
        text_puts(b, "\\t");
        break;
    case '\r':
        text_puts(b, "\\r");
        break;
    default:
        text_printf(b, "\\u%04x", byte);
    }
}

void text_add_json(struct text_buffer *b, const char *text, size_t bytes)
{
    const uint8_t *t = (const uint8_t *)text;
    size_t from = 0, at = 0;
    text_puts(b, "\"");
    while (at < bytes) {
        uint32_t n = utf8_char_bytes(t + at, bytes - at);
        if (n && t[at] >= ' ' && t[at] != '"' && t[at] != '\\' && t[at] != 0x7f) {
            at += n;
            continue;
        }
        text_add(b, text + from, at - from);
        if (n)
            add_escaped(b, t[at]);
        else
            text_puts(b, UTF8_REPLACEMENT);
        from = ++at;
    }
    text_add(b, text + from, at - from);
    text_puts(b, "\"");
}

void text_add_number(struct text_buffer *b, double number)
{
    if (isfinite(number))
        text_printf(b, "%.12g", number);
    else
        text_puts(b, "null");
}

void text_drop(struct text_buffer *b, size_t bytes)
{
    memmove(b->bytes, b->bytes + bytes, b->length - bytes);
    b->length -= bytes;
}

size_t text_begun(const struct text_buffer *b, const char *word, size_t bytes)
{
    size_t n = bytes ? bytes - 1 : 0;
    n = n < b->length ? n : b->length;
    while (n && memcmp(b->bytes + b->length - n, word, n) != 0)
        n--;
    return n;
}

void text_finish(struct text_buffer *b)
{
    free(b->bytes);
    *b = (struct text_buffer){0};
}
