/*
 * model/gguf_number.c - a metadata value as an integer; see gguf.h. It may stand unaligned.
 */
#include "model/gguf.h"

#include <string.h>

bool gguf_integer(const struct gguf_value *value, uint64_t *bits, bool *negative)
{
    static const struct {
        uint8_t bytes;
        bool is_signed;
    } integers[GGUF_F64 + 1] = {
        [GGUF_U8] = {1, false},  [GGUF_I8] = {1, true},   [GGUF_U16] = {2, false},
        [GGUF_I16] = {2, true},  [GGUF_U32] = {4, false}, [GGUF_I32] = {4, true},
        [GGUF_U64] = {8, false}, [GGUF_I64] = {8, true}};
    unsigned bytes = value->type <= GGUF_F64 ? integers[value->type].bytes : 0;
    if (!bytes)
        return false;
    uint64_t number = 0, sign = UINT64_C(1) << (8 * bytes - 1);
    memcpy(&number, value->data, bytes); /* little endian, as the file (blocks.c) */
    *negative = integers[value->type].is_signed && (number & sign);
    *bits = *negative ? number | (0 - sign) : number;
    return true;
}
