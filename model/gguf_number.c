/*
 * model/gguf_number.c - a metadata value as an integer; see gguf.h. It may stand unaligned.
 */
#include "model/gguf.h"

#include <string.h>

#define LOAD(type, from)                                                                           \
    __extension__({                                                                                \
        type loaded_;                                                                              \
        memcpy(&loaded_, (from), sizeof loaded_);                                                  \
        loaded_;                                                                                   \
    })

bool gguf_integer(const struct gguf_value *value, uint64_t *bits, bool *negative)
{
    int64_t number = 0;
    switch (value->type) {
    case GGUF_U8:
        number = *value->data;
        break;
    case GGUF_I8:
        number = LOAD(int8_t, value->data);
        break;
    case GGUF_U16:
        number = LOAD(uint16_t, value->data);
        break;
    case GGUF_I16:
        number = LOAD(int16_t, value->data);
        break;
    case GGUF_U32:
        number = LOAD(uint32_t, value->data);
        break;
    case GGUF_I32:
        number = LOAD(int32_t, value->data);
        break;
    case GGUF_I64:
        number = LOAD(int64_t, value->data);
        break;
    case GGUF_U64:
        *bits = LOAD(uint64_t, value->data);
        *negative = false;
        return true;
    default:
        return false;
    }
    *bits = (uint64_t)number;
    *negative = number < 0;
    return true;
}
