/*
 * model/gguf_values.c - typed access to what gguf.c has checked: metadata values and tensor rows.
 * See gguf.h. Everything in the file may stand unaligned, hence memcpy throughout.
 */
#include "model/gguf.h"

#include <string.h>

#define LOAD(type, from)                                                                           \
    __extension__({                                                                                \
        type loaded_;                                                                              \
        memcpy(&loaded_, (from), sizeof loaded_);                                                  \
        loaded_;                                                                                   \
    })

/* An integer of any type as its bits and sign; false for what is no integer. */
static bool load_integer(const struct gguf_value *value, uint64_t *bits, bool *negative)
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

bool gguf_get_u64(const struct gguf_file *file, const char *key, uint64_t *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    uint64_t bits;
    bool negative;
    if (!value || !load_integer(value, &bits, &negative) || negative)
        return false;
    *out = bits;
    return true;
}

bool gguf_get_f64(const struct gguf_file *file, const char *key, double *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    uint64_t bits;
    bool negative;
    if (!value)
        return false;
    if (value->type == GGUF_F32)
        *out = LOAD(float, value->data);
    else if (value->type == GGUF_F64)
        *out = LOAD(double, value->data);
    else if (load_integer(value, &bits, &negative))
        *out = negative ? (double)(int64_t)bits : (double)bits;
    else
        return false;
    return true;
}

bool gguf_get_bool(const struct gguf_file *file, const char *key, bool *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    if (!value || value->type != GGUF_BOOL)
        return false;
    *out = *value->data != 0;
    return true;
}

bool gguf_get_string(const struct gguf_file *file, const char *key, struct gguf_string *out)
{
    const struct gguf_value *value = gguf_find(file, key);
    if (!value || value->type != GGUF_STRING)
        return false;
    out->length = LOAD(uint64_t, value->data);
    out->data = (const char *)value->data + sizeof(uint64_t);
    return true;
}

bool gguf_next_string(const struct gguf_value *array, const uint8_t **cursor, uint64_t *index,
                      struct gguf_string *out)
{
    if (array->type != GGUF_ARRAY || array->item_type != GGUF_STRING || *index >= array->count)
        return false;
    out->length = LOAD(uint64_t, *cursor);
    out->data = (const char *)*cursor + sizeof(uint64_t);
    *cursor += sizeof(uint64_t) + out->length;
    ++*index;
    return true;
}

/* ---- tensor rows ---------------------------------------------------------------------------- */

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE binary16: subnormals are scaled from an integer, infinities and NaNs keep their payload. */
static float float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31;
    uint32_t fraction = half & 0x3FF;
    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31)
        return float_of_bits(sign | 0x7F800000 | fraction << 13);
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static void load_row(const struct gguf_tensor *tensor, const uint8_t *row, float *out)
{
    for (uint64_t i = 0; i < tensor->dims[0]; i++)
        switch (tensor->type) {
        case GGUF_TENSOR_F32:
            out[i] = LOAD(float, row + 4 * i);
            break;
        case GGUF_TENSOR_F16:
            out[i] = float_of_half(LOAD(uint16_t, row + 2 * i));
            break;
        case GGUF_TENSOR_BF16:
            out[i] = float_of_bits((uint32_t)LOAD(uint16_t, row + 2 * i) << 16);
            break;
        case GGUF_TENSOR_Q8_0: { /* blocks of an F16 scale and 32 int8 */
            const uint8_t *block = row + i / 32 * 34;
            out[i] = float_of_half(LOAD(uint16_t, block)) * (float)(int8_t)block[2 + i % 32];
            break;
        }
        }
}

int gguf_tensor_rows_f32(const struct gguf_tensor *tensor, uint64_t first, uint64_t row_count,
                         float *out)
{
    uint64_t rows = tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
    if (first > rows || row_count > rows - first)
        return HILL_E_INVALID;
    uint64_t row_bytes = tensor->bytes / rows;
    for (uint64_t r = 0; r < row_count; r++)
        load_row(tensor, (const uint8_t *)tensor->data + (first + r) * row_bytes,
                 out + r * tensor->dims[0]);
    return 0;
}
