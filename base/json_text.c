/* base/json_text.c - see json_text.h. */
#include "base/json_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

json_t *json_text(const char *text, size_t bytes)
{
    char *whole = malloc(bytes * UTF8_REPLACEMENT_BYTES + 1);
    size_t length = 0;
    for (size_t at = 0; whole && at < bytes;) {
        uint32_t n = utf8_char_bytes((const uint8_t *)text + at, bytes - at);
        uint32_t put = n ? n : UTF8_REPLACEMENT_BYTES;
        memcpy(whole + length, n ? text + at : UTF8_REPLACEMENT, put);
        length += put;
        at += n ? n : 1;
    }
    json_t *string = whole ? json_stringn(whole, length) : NULL;
    free(whole);
    return string;
}
