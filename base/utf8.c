/* base/utf8.c - see utf8.h. Byte ranges: the Unicode standard, table 3-7. */
#include "base/utf8.h"

uint32_t utf8_announced(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

bool utf8_continues(const uint8_t *head, uint32_t index, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xBF;
    if (index == 1) {
        low = head[0] == 0xE0 ? 0xA0 : head[0] == 0xF0 ? 0x90 : low;
        high = head[0] == 0xED ? 0x9F : head[0] == 0xF4 ? 0x8F : high;
    }
    return byte >= low && byte <= high;
}

uint32_t utf8_char_bytes(const uint8_t *text, uint64_t length)
{
    uint32_t bytes = length ? utf8_announced(text[0]) : 0;
    if (bytes > length)
        return 0;
    for (uint32_t i = 1; i < bytes; i++)
        if (!utf8_continues(text, i, text[i]))
            return 0;
    return bytes;
}

uint32_t utf8_code_point(const uint8_t *text, uint32_t bytes)
{
    static const uint8_t lead_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t code_point = text[0] & lead_mask[bytes];
    for (uint32_t i = 1; i < bytes; i++)
        code_point = code_point << 6 | (text[i] & 0x3F);
    return code_point;
}

uint32_t utf8_write_short(uint32_t code_point, uint8_t out[2])
{
    if (code_point < 0x80) {
        out[0] = (uint8_t)code_point;
        return 1;
    }
    out[0] = (uint8_t)(0xC0 | code_point >> 6);
    out[1] = (uint8_t)(0x80 | (code_point & 0x3F));
    return 2;
}
