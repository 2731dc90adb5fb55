/* tools/mkmodel/encode.c - see encode.h. Files are little endian, and so are the machines this runs
 * on.
 */
#include "tools/mkmodel/encode.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "values are written as they lie in memory");

#define Q8_0_ITEMS 32u
#define Q8_0_BYTES (2u + Q8_0_ITEMS) /* an F16 scale and the quanta */

uint32_t encode_block_items(enum gguf_tensor_type type)
{
    return type == GGUF_TENSOR_Q8_0 ? Q8_0_ITEMS : 1;
}

uint32_t encode_block_bytes(enum gguf_tensor_type type)
{
    switch (type) {
    case GGUF_TENSOR_F32:
        return 4;
    case GGUF_TENSOR_Q8_0:
        return Q8_0_BYTES;
    default:
        return 2;
    }
}

const char *encode_type_name(enum gguf_tensor_type type)
{
    switch (type) {
    case GGUF_TENSOR_F32:
        return "f32";
    case GGUF_TENSOR_F16:
        return "f16";
    case GGUF_TENSOR_Q8_0:
        return "q8_0";
    case GGUF_TENSOR_BF16:
        return "bf16";
    default:
        return "unknown";
    }
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t encode_f16(float value)
{
    const uint32_t bits = float_bits(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* 65520, the first value that rounds beyond the largest half */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude <
        0x38800000) /* below 2^-14: a multiple of 2^-24, rounded by the FPU's ties-to-even */
        return (uint16_t)(sign | (uint16_t)rint(ldexp(fabs((double)value), 24)));
    const uint32_t rounded = magnitude + 0x0fff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

uint16_t encode_bf16(float value)
{
    const uint32_t bits = float_bits(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* One block: scale = max|x| / 127, quanta rounded to nearest. */
static void encode_q8_0(const float *values, uint8_t *out)
{
    float largest = 0;
    for (unsigned i = 0; i < Q8_0_ITEMS; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    const float scale = largest / 127;
    const uint16_t stored = encode_f16(scale);
    memcpy(out, &stored, sizeof stored);
    for (unsigned i = 0; i < Q8_0_ITEMS; i++) {
        const int8_t quantum = scale > 0 ? (int8_t)lrintf(values[i] / scale) : 0;
        memcpy(out + 2 + i, &quantum, 1);
    }
}

size_t encode_row(enum gguf_tensor_type type, const float *values, size_t count, uint8_t *out)
{
    switch (type) {
    case GGUF_TENSOR_F32:
        memcpy(out, values, count * sizeof *values);
        return count * sizeof *values;
    case GGUF_TENSOR_F16:
    case GGUF_TENSOR_BF16:
        for (size_t i = 0; i < count; i++) {
            const uint16_t item =
                type == GGUF_TENSOR_F16 ? encode_f16(values[i]) : encode_bf16(values[i]);
            memcpy(out + 2 * i, &item, sizeof item);
        }
        return 2 * count;
    case GGUF_TENSOR_Q8_0:
        for (size_t i = 0; i < count / Q8_0_ITEMS; i++)
            encode_q8_0(values + i * Q8_0_ITEMS, out + i * Q8_0_BYTES);
        return count / Q8_0_ITEMS * Q8_0_BYTES;
    default:
        return 0;
    }
}
